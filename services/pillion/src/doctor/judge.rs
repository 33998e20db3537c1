//! Derives findings from facts, without I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhook;
use pillion_api::names::INJECTION_LABEL;
use pillion_control::certificates::ca::certificates;
use pillion_control::certificates::ca::judge::{Expected, judge as judge_certificate};
use pillion_control::probe::{Defect, Probed, Verdict};
use pillion_control::webhook_config::switch::{self, INJECTION_KEY, Position, WEBHOOKS_KEY};
use rustls_pki_types::CertificateDer;
use serde::Serialize;

use super::gather::{DryRun, Facts, is_ours, service};
use super::requests::Unrequested;
use crate::availability;
use crate::explain::judge::{NO, misspelt};
use crate::explain::profiles::{readiness, rolled_back};
use crate::explain::webhooks::{creates_pods, selects};
use crate::finding::{Code, Finding, ObjectRef, Severity, sorted};
use crate::installation::{NotRead, Part, switching};

/// A group of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Check {
    Definitions,
    Switch,
    WebhookConfiguration,
    Replicas,
    NetworkPath,
    Certificates,
    DryRun,
    Rights,
    Leader,
    Profiles,
    NamespaceLabels,
    Requests,
    OtherWebhooks,
    Versions,
}

impl Check {
    pub(crate) const ALL: [Self; 14] = [
        Self::Definitions,
        Self::Switch,
        Self::WebhookConfiguration,
        Self::Replicas,
        Self::NetworkPath,
        Self::Certificates,
        Self::DryRun,
        Self::Rights,
        Self::Leader,
        Self::Profiles,
        Self::NamespaceLabels,
        Self::Requests,
        Self::OtherWebhooks,
        Self::Versions,
    ];

    /// Returns the name of the check for the report.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Definitions => "CRDs",
            Self::Switch => "kill switch and break-glass",
            Self::WebhookConfiguration => "webhook configuration",
            Self::Replicas => "replicas behind the Service",
            Self::NetworkPath => "connections to replicas",
            Self::Certificates => "certificates and CA bundles",
            Self::DryRun => "dry run of a pod through the API server",
            Self::Rights => "RBAC permissions of the service accounts",
            Self::Leader => "leader of the controllers",
            Self::Profiles => "profiles",
            Self::NamespaceLabels => "labels of namespaces",
            Self::Requests => "requests and limits of added containers",
            Self::OtherWebhooks => "other webhooks that change pods",
            Self::Versions => "versions",
        }
    }
}

/// Returns the findings by check.
pub(crate) fn judge(facts: &Facts) -> Vec<(Check, Vec<Finding>)> {
    let of = |check: Check| match check {
        Check::Definitions => crds(facts),
        Check::Switch => kill_switch(facts),
        Check::WebhookConfiguration => configuration(facts),
        Check::Replicas => replicas(facts),
        Check::NetworkPath => network(facts),
        Check::Certificates => certificate_findings(facts),
        Check::DryRun => dry_run(facts),
        Check::Rights => permissions(facts),
        Check::Leader => leader(facts),
        Check::Profiles => facts
            .stored
            .iter()
            .filter_map(|stored| readiness(stored, &facts.broken).or_else(|| rolled_back(stored)))
            .collect(),
        Check::NamespaceLabels => labels(facts),
        Check::Requests => facts.unrequested.iter().map(Unrequested::finding).collect(),
        Check::OtherWebhooks => others(facts),
        Check::Versions => versions(facts),
    };
    Check::ALL.into_iter().map(|check| (check, sorted(of(check)))).collect()
}

/// Returns a finding for each fact that could not be read.
pub(crate) fn unread(facts: &Facts) -> Vec<Finding> {
    let object = ObjectRef::new("Release", Some(facts.release.namespace()), facts.release.name());
    let finding =
        |(part, why): &(Part, String)| Finding::new(Code::Unreadable, object.clone(), format!("{part}: {why}"));
    facts.unread.iter().map(finding).collect()
}

fn crds(facts: &Facts) -> Vec<Finding> {
    let object = ObjectRef::new("CustomResourceDefinition", None, "clusterinjectionprofiles.pillion.dev");
    let missing = || Finding::new(Code::CrdMissing, object, "the API server has no CRDs of pillion.dev");
    (!facts.has_crds).then(missing).into_iter().collect()
}

fn kill_switch(facts: &Facts) -> Vec<Finding> {
    let Ok(map) = &facts.switch else { return Vec::new() };
    let release = &facts.release;
    let mut found = Vec::new();
    for (key, position, on) in [
        (INJECTION_KEY, switch::injection(map.as_ref()), "enabled"),
        (WEBHOOKS_KEY, switch::webhooks(map.as_ref()), "enabled"),
    ] {
        if let Position::Unreadable(word) = position {
            let message = format!("{key} has the unknown value {word:?}, so the kill switch keeps its previous state");
            let finding = Finding::new(Code::SwitchUnreadable, availability::switch(release), message);
            found.push(finding.remedy(switching(release, key, on)));
        }
    }
    let who = |key| switch::author(map.as_ref(), key);
    if switch::injection(map.as_ref()) == Position::Off {
        found.push(availability::injection_disabled(release, who(INJECTION_KEY).as_deref()));
    }
    if switch::webhooks(map.as_ref()) == Position::Off {
        found.push(availability::webhooks_disabled(release, who(WEBHOOKS_KEY).as_deref()));
    }
    found
}

fn webhooks_are_disabled(facts: &Facts) -> bool {
    facts.switch.as_ref().is_ok_and(|map| switch::webhooks(map.as_ref()) == Position::Off)
}

/// Whether the webhook configurations were read, and none has an entry of this release for new pods.
fn is_unregistered(facts: &Facts) -> bool {
    let is_for_pods = |entry: &&MutatingWebhook| entry.rules.iter().flatten().any(creates_pods);
    facts.configurations.as_ref().is_some_and(|configurations| {
        let entries = configurations.iter().flat_map(|one| one.webhooks.iter().flatten());
        !entries.filter(is_for_pods).any(|entry| is_ours(entry, &facts.release))
    })
}

fn configuration(facts: &Facts) -> Vec<Finding> {
    if !is_unregistered(facts) || webhooks_are_disabled(facts) {
        return Vec::new();
    }
    vec![availability::not_registered(&facts.release)]
}

fn replicas(facts: &Facts) -> Vec<Finding> {
    let Some(endpoints) = &facts.endpoints else { return Vec::new() };
    let few = || {
        let is_single = ready(endpoints) == 1;
        let message = format!("only 1 of {} webhook replicas is ready: there is no spare if it fails", endpoints.len());
        is_single.then(|| Finding::new(Code::FewReadyReplicas, service(facts), message))
    };
    availability::no_ready_replica(&facts.release, endpoints, facts.deployment).or_else(few).into_iter().collect()
}

fn ready(endpoints: &[(String, bool)]) -> usize {
    endpoints.iter().filter(|(_, is_ready)| *is_ready).count()
}

/// Whether the dry run proves that the webhook does not answer the API server. An unchanged pod is a proof only if
/// nothing else can be the cause.
fn is_unanswered(facts: &Facts) -> bool {
    let DryRun::Tried { namespace, untouched, refused, .. } = &facts.dry_run else { return false };
    if !refused.is_empty() {
        return true;
    }
    let is_off = facts.switch.as_ref().is_ok_and(|map| switch::injection(map.as_ref()) != Position::On);
    let none = BTreeMap::new();
    let labels = facts.namespaces.iter().find(|(name, _)| name == namespace).map_or(&none, |(_, labels)| labels);
    let is_called = |entry: &&MutatingWebhook| {
        entry.rules.iter().flatten().any(creates_pods) && selects(entry.namespace_selector.as_ref(), labels)
    };
    let called =
        || facts.configurations.iter().flatten().flat_map(|one| one.webhooks.iter().flatten()).filter(is_called);
    let is_ours_alone =
        called().any(|entry| is_ours(entry, &facts.release)) && called().all(|entry| is_ours(entry, &facts.release));
    *untouched > 0 && !is_off && is_ours_alone
}

fn network(facts: &Facts) -> Vec<Finding> {
    if facts.endpoints.as_ref().is_some_and(|endpoints| ready(endpoints) == 0) {
        let finding = Finding::new(Code::Unreadable, service(facts), "no connection was tried: no replica is ready");
        return vec![finding.graded(Severity::Info).remedy("get replicas ready first")];
    }
    let is_ready = |address: &str| {
        facts.endpoints.iter().flatten().any(|(ready, is)| {
            *is && (ready == address
                || address.starts_with(&format!("{ready}:"))
                || address.starts_with(&format!("[{ready}]")))
        })
    };
    let ready: Vec<_> = facts.probed.iter().filter(|one| is_ready(&one.endpoint.to_string())).collect();
    let silent: Vec<_> = ready.iter().filter(|one| matches!(one.verdict, Verdict::Unreachable(_))).collect();
    // Outside the cluster's network, no replica is reachable. That is not a problem as long as the API servers' calls
    // succeed.
    if silent.len() == ready.len() && !is_unanswered(facts) {
        let message = "no replica is reachable from here, outside of the cluster's network";
        let outside = || {
            Finding::new(Code::Unreadable, service(facts), message)
                .graded(Severity::Info)
                .remedy("rely on the dry run through the API server, or run the command in the cluster")
        };
        return (!silent.is_empty()).then(outside).into_iter().collect();
    }
    let find = |one: &&&Probed| {
        let Verdict::Unreachable(why) = one.verdict else { return None };
        let message = format!("{} is listed as ready but is unreachable: {}", one.endpoint, why.as_str());
        Some(Finding::new(Code::ReplicaUnreachable, service(facts), message))
    };
    silent.iter().filter_map(find).collect()
}

fn dry_run(facts: &Facts) -> Vec<Finding> {
    match &facts.dry_run {
        DryRun::NotTried(why) => {
            let object = ObjectRef::new("Release", Some(facts.release.namespace()), facts.release.name());
            vec![Finding::new(Code::DryRunNotTried, object, format!("no dry run through the API server: {why}"))]
        }
        DryRun::Tried { namespace, profile, tries, untouched, refused } => {
            let object = || ObjectRef::new("Namespace", None, namespace);
            let mut found = Vec::new();
            if *untouched > 0 {
                let message =
                    format!("{untouched} of {tries} dry-run pods in namespace {namespace} have no profile {profile}");
                found.push(Finding::new(Code::DryRunFailed, object(), message));
            }
            if let Some(error) = refused.first() {
                let message = format!("{} of {tries} dry-run pods were rejected: {error}", refused.len());
                found.push(Finding::new(Code::DryRunFailed, object(), message));
            }
            found
        }
    }
}

fn permissions(facts: &Facts) -> Vec<Finding> {
    let account = |name: &str| ObjectRef::new("ServiceAccount", Some(facts.release.namespace()), name);
    let missing = facts.missing_accounts.iter().map(|name| {
        Finding::new(Code::ServiceAccountMissing, account(name), "the service account of the release does not exist")
            .remedy("install the chart, or apply deploy/rbac")
    });
    let lacking = facts.permissions.iter().filter(|(.., may)| !may).map(|(name, what, _)| {
        Finding::new(Code::PermissionMissing, account(name), format!("it lacks the permission to {what}"))
    });
    missing.chain(lacking).collect()
}

fn leader(facts: &Facts) -> Vec<Finding> {
    let Ok(lease) = &facts.lease else { return Vec::new() };
    let object = ObjectRef::new("Lease", Some(facts.release.namespace()), &facts.release.lease());
    let spec = lease.as_ref().and_then(|lease| lease.spec.as_ref());
    let Some(spec) = spec.filter(|spec| spec.holder_identity.as_ref().is_some_and(|holder| !holder.is_empty())) else {
        return vec![Finding::new(Code::NoLeader, object, "no controller holds the Lease")];
    };
    let renewed = spec.renew_time.as_ref().map(|time| time.0);
    let seconds = i64::from(spec.lease_duration_seconds.unwrap_or(15));
    let is_old = renewed.is_none_or(|renewed| facts.now.duration_since(renewed).as_secs() > 2 * seconds);
    let message =
        || format!("its holder has not renewed it since {}", renewed.map(|time| time.to_string()).unwrap_or_default());
    is_old.then(|| Finding::new(Code::NoLeader, object, message())).into_iter().collect()
}

fn labels(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, labels) in &facts.namespaces {
        let object = || ObjectRef::new("Namespace", None, name);
        for label in facts.opt_in.labels() {
            let Some(value) = labels.get(&label.key).filter(|value| !NO.contains(&&***value)) else { continue };
            if !label.values.iter().any(|(known, _)| known == value) {
                let values: Vec<_> = label.values.iter().map(|(value, _)| value.as_str()).collect();
                let message =
                    format!("its label {}={value} has an unknown value; use one of {}", label.key, values.join(", "));
                found.push(Finding::new(Code::OptInValueUnknown, object(), message));
            }
        }
        if let Some((key, value)) =
            misspelt(labels, &facts.opt_in, &|key| facts.request_keys.iter().any(|known| known == key))
        {
            let message = format!("its label {key}={value} looks like a misspelt {INJECTION_LABEL}");
            let remedy = format!("kubectl label namespace {name} {INJECTION_LABEL}=enabled");
            found.push(Finding::new(Code::OptInLabelMisspelt, object(), message).remedy(remedy));
        }
    }
    found
}

/// Returns findings for other mutating webhooks. If another injector selects namespaces by the same label, both would
/// inject.
fn others(facts: &Facts) -> Vec<Finding> {
    let release = &facts.release;
    let opted_in: Vec<_> = facts
        .namespaces
        .iter()
        .filter(|(_, labels)| facts.opt_in.failure_mode(|key| labels.get(key).map(String::as_str)).is_some())
        .collect();
    let mut found = Vec::new();
    for configuration in facts.configurations.iter().flatten() {
        let name = configuration.metadata.name.clone().unwrap_or_default();
        let of_others: Vec<_> = configuration
            .webhooks
            .iter()
            .flatten()
            .filter(|entry| !is_ours(entry, release) && entry.rules.iter().flatten().any(creates_pods))
            .collect();
        if of_others.is_empty() {
            continue;
        }
        let entries: Vec<_> = of_others.iter().map(|entry| entry.name.as_str()).collect();
        let shared: BTreeSet<_> = of_others
            .iter()
            .flat_map(|entry| opted_in.iter().filter(|(_, labels)| selects(entry.namespace_selector.as_ref(), labels)))
            .map(|(name, _)| name.as_str())
            .collect();
        // Whether an entry selects namespaces by an opt-in label.
        let has_key = |entry: &&MutatingWebhook| {
            let selector = entry.namespace_selector.as_ref();
            let by_labels =
                selector.and_then(|selector| selector.match_labels.as_ref()).into_iter().flatten().map(|(key, _)| key);
            let by_expressions = selector
                .and_then(|selector| selector.match_expressions.as_ref())
                .into_iter()
                .flatten()
                .filter(|one| ["In", "Exists"].contains(&&*one.operator))
                .map(|one| &one.key);
            by_labels.chain(by_expressions).any(|key| facts.opt_in.labels().iter().any(|label| label.key == *key))
        };
        let is_by_our_label = !shared.is_empty() && of_others.iter().any(has_key);
        let object = ObjectRef::new("MutatingWebhookConfiguration", None, &name);
        let when = if name.as_str() < release.configuration() { "before" } else { "after" };
        let some: Vec<_> = shared.iter().copied().take(5).collect();
        let shared = match shared.len() {
            0 => "in no opted-in namespace".to_owned(),
            1 => format!("in 1 opted-in namespace: {}", some.join(", ")),
            count => format!("in {count} opted-in namespaces: {}", some.join(", ")),
        };
        let message = format!("its entries also change pods, {when} Pillion, {shared}: {}", entries.join(", "));
        let finding = Finding::new(Code::OtherInjector, object, message);
        found.push(if is_by_our_label {
            finding.graded(Severity::Warning).remedy(
                "one label enables both: use another one for the other webhook, or remove it from webhooks.optIn",
            )
        } else {
            finding
        });
    }
    found
}

fn versions(facts: &Facts) -> Vec<Finding> {
    let tag = |image: &str| {
        let name = image.split('@').next()?.rsplit('/').next()?;
        Some(name.split_once(':')?.1.to_owned())
    };
    let tags: BTreeSet<_> = facts.images.iter().filter_map(|(_, image)| tag(image)).collect();
    let object = || ObjectRef::new("Release", Some(facts.release.namespace()), facts.release.name());
    let versions = tags.iter().cloned().collect::<Vec<_>>().join(", ");
    let own = env!("CARGO_PKG_VERSION");
    if tags.len() > 1 {
        return vec![Finding::new(Code::VersionSkew, object(), format!("its pods run {versions}"))];
    }
    // A tag such as `dev` or a digest does not identify the version.
    let is_other = tags.iter().any(|tag| version(tag).is_some_and(|version| version != own));
    let other = || {
        Finding::new(Code::VersionSkew, object(), format!("its pods run {versions}, and this program is {own}"))
            .graded(Severity::Info)
            .remedy("use the CLI of the release's version: its findings about profiles may differ")
    };
    is_other.then(other).into_iter().collect()
}

/// Returns the version in a tag, such as `1.2.3` for `v1.2.3`; `None` if it has none.
fn version(tag: &str) -> Option<&str> {
    let version = tag.strip_prefix('v').unwrap_or(tag);
    let numbers = version.split(['-', '+']).next().unwrap_or_default();
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    (numbers.split('.').count() == 3 && numbers.split('.').all(is_number)).then_some(version)
}

/// The minimum remaining lifetime of a serving certificate. A shorter one means that the certificate was not renewed in
/// time.
const RENEWED_BEFORE: Duration = Duration::from_hours(24);

/// A certificate with its key, as in the serving Secret.
type Pair = (Vec<u8>, Vec<u8>);

/// Returns all findings about certificates.
pub(super) fn certificate_findings(facts: &Facts) -> Vec<Finding> {
    let (certificate, mut found) = served(facts);
    if let Some(certificate) = &certificate {
        found.extend(bundles(facts, certificate));
    }
    found.extend(if found.is_empty() && certificate.is_some() && is_intercepted(facts) {
        vec![intercepted(facts)]
    } else {
        facts.probed.iter().filter_map(|one| shown(facts, one)).collect()
    });
    if let DryRun::Tried { refused, .. } = &facts.dry_run
        && found.iter().all(|finding| finding.code != Code::CaBundleMismatch)
        && let Some(error) = refused.iter().find(|error| error.contains("x509"))
    {
        found.push(Finding::new(Code::CaBundleMismatch, service(facts), format!("the API server reports: {error}")));
    }
    found
}

/// Whether a proxy between this process and the replicas replaces their certificates: no replica shows a trusted
/// certificate here, but the API server's calls succeed.
fn is_intercepted(facts: &Facts) -> bool {
    let DryRun::Tried { untouched: 0, refused, .. } = &facts.dry_run else { return false };
    let mut reached = facts.probed.iter().filter(|one| !matches!(one.verdict, Verdict::Unreachable(_))).peekable();
    let is_other = |one: &Probed| matches!(one.verdict, Verdict::Untrusted | Verdict::Invalid(_));
    refused.is_empty() && reached.peek().is_some() && reached.all(is_other)
}

fn intercepted(facts: &Facts) -> Finding {
    let message = "connections from here return a different certificate than the serving Secret, but the API server's \
                   calls succeed: a proxy between here and the cluster intercepts TLS";
    Finding::new(Code::Unreadable, service(facts), message)
        .graded(Severity::Info)
        .remedy("rely on the dry run through the API server, or run the command in the cluster")
}

/// Returns the certificate and key in the serving Secret, and findings about the certificate itself.
fn served(facts: &Facts) -> (Option<Pair>, Vec<Finding>) {
    let release = &facts.release;
    let object = ObjectRef::new("Secret", Some(release.namespace()), &release.serving_secret());
    let find = |code, message: String| vec![Finding::new(code, object, message)];
    let secret = match &facts.serving {
        Ok(Some(secret)) => secret,
        Ok(None) => return (None, find(Code::CertificateInvalid, "the Secret does not exist".to_owned())),
        Err(NotRead) => return (None, Vec::new()),
    };
    let part = |key: &str| secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.clone());
    let pair = (part("tls.crt").unwrap_or_default(), part("tls.key").unwrap_or_default());
    let found = match judge_certificate(&pair.0, &pair.1, expected(facts, &release.server_names(), None)) {
        Err(unfit) => find(Code::CertificateInvalid, format!("it cannot be served: {unfit}")),
        Ok(fit) => soon(fit.not_after, facts.now).map(|left| find(Code::CertificateExpiring, left)).unwrap_or_default(),
    };
    (Some(pair), found)
}

fn expected<'e>(facts: &Facts, names: &'e [String], trusted: Option<&'e [CertificateDer<'static>]>) -> Expected<'e> {
    Expected { names: names.get(..1).unwrap_or_default(), now: facts.now, trusted }
}

/// Returns findings for webhook entries whose `caBundle` does not verify the certificate. Empty if the certificate
/// itself is invalid.
fn bundles(facts: &Facts, (certificate, key): &Pair) -> Vec<Finding> {
    let release = &facts.release;
    let names = release.server_names();
    let mut found = Vec::new();
    if judge_certificate(certificate, key, expected(facts, &names, None)).is_err() {
        return found;
    }
    for configuration in facts.configurations.iter().flatten() {
        let name = configuration.metadata.name.as_deref().unwrap_or_default();
        for entry in configuration.webhooks.iter().flatten().filter(|entry| is_ours(entry, release)) {
            let trusted = certificates(entry.client_config.ca_bundle.as_ref().map_or(&[][..], |bundle| &bundle.0));
            if let Err(unfit) = judge_certificate(certificate, key, expected(facts, &names, Some(&trusted))) {
                let object = ObjectRef::new("MutatingWebhookConfiguration", None, name);
                let message =
                    format!("the caBundle of entry {} does not verify the serving certificate: {unfit}", entry.name);
                found.push(Finding::new(Code::CaBundleMismatch, object, message));
            }
        }
    }
    found
}

/// Returns a finding if a replica serves an invalid or untrusted certificate.
fn shown(facts: &Facts, one: &Probed) -> Option<Finding> {
    let (code, what) = match one.verdict {
        // Without an entry, there is no `caBundle`.
        Verdict::Untrusted if is_unregistered(facts) => return None,
        Verdict::Untrusted => {
            (Code::CaBundleMismatch, "serves a certificate that the caBundle does not verify".to_owned())
        }
        Verdict::Invalid(Defect::Expiring) => {
            (Code::CertificateExpiring, "serves a certificate that expires soon".to_owned())
        }
        Verdict::Invalid(why) => {
            (Code::CertificateInvalid, format!("serves an invalid certificate: {}", describe(why)))
        }
        Verdict::Newest | Verdict::Older(_) | Verdict::Trusted | Verdict::Unreachable(_) => return None,
    };
    Some(Finding::new(code, service(facts), format!("the replica at {} {what}", one.endpoint)))
}

const fn describe(defect: Defect) -> &'static str {
    match defect {
        Defect::Expiring => "it expires soon",
        Defect::Expired => "it has expired",
        Defect::NotYetValid => "it is not valid yet",
        Defect::WrongName => "it does not have the name of the Service",
        Defect::Ca => "its CA has expired, or is not valid yet",
        Defect::Unusable => "it is damaged, or not a server certificate",
    }
}

fn soon(not_after: Timestamp, now: Timestamp) -> Option<String> {
    let left = not_after.duration_since(now);
    let limit = jiff::SignedDuration::try_from(RENEWED_BEFORE).ok()?;
    (left < limit).then(|| format!("it expires at {not_after}, in {} minutes", left.as_mins()))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
