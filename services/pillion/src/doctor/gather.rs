//! Gathers facts from the cluster. It changes nothing: it creates pods only with a dry run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, ServiceAccount};
use kube::Client;
use kube::api::{Api, ListParams, PostParams};
use pillion_api::names::{FailureMode, PROFILES_ANNOTATION, SYSTEM_NAMESPACES};
use pillion_api::opt_in::OptIn;
use pillion_control::Release;
use pillion_control::certificates::ca::certificates;
use pillion_control::client::lists;
use pillion_control::informer::cluster_listing::Stored;
use pillion_control::informer::text::Broken;
use pillion_control::probe::{self, Expected, ProbeMetrics, Probed, Prober};
use pillion_engine::decision::ProfileOutcome;
use pillion_engine::snapshot::Snapshot;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use super::requests::{self, Unrequested};
use crate::availability::WebhookDeployment;
use crate::explain::facts::{self, ChangeKind};
use crate::finding::ObjectRef;
use crate::installation::{Installation, NotRead, Part, Unread, endpoints, kept, own_configuration};
use crate::trial;

/// The maximum number of pairs of a namespace and a profile that are evaluated to find a pair for the dry run.
const MAX_PAIRS: usize = 2_000;
/// The number of rejected pods after which the dry run stops.
const MAX_REFUSALS: usize = 5;
/// The number of pods that are created with a dry run. Each one may reach a different replica.
const TRIES: usize = 6;

/// An RBAC permission that a component requires.
#[derive(Clone, Copy)]
struct Permission {
    account: &'static str,
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    in_release_namespace: bool,
    /// The suffix of the object's name after the release's name. `None`: any name.
    name: Option<&'static str>,
}

const fn permission(
    account: &'static str,
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
) -> Permission {
    Permission { account, verb, group, resource, subresource: "", in_release_namespace: false, name: None }
}

const fn in_release_namespace(permission: Permission, name: &'static str) -> Permission {
    Permission { in_release_namespace: true, name: Some(name), ..permission }
}

/// The permissions that the components cannot work without. `tests/e2e/rbac.rs` contains the complete lists.
const PERMISSIONS: [Permission; 19] = [
    permission("webhook", "list", "", "namespaces"),
    permission("webhook", "watch", "", "namespaces"),
    permission("webhook", "list", "pillion.dev", "clusterinjectionprofiles"),
    permission("webhook", "watch", "pillion.dev", "injectionprofiles"),
    permission("webhook", "get", "pillion.dev", "clusterprofilerevisions"),
    permission("webhook", "get", "pillion.dev", "profilerevisions"),
    in_release_namespace(permission("webhook", "watch", "", "secrets"), "-serving"),
    in_release_namespace(permission("webhook", "watch", "", "configmaps"), ""),
    permission("controller", "create", "admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    Permission {
        name: Some(""),
        ..permission("controller", "update", "admissionregistration.k8s.io", "mutatingwebhookconfigurations")
    },
    permission("controller", "list", "", "pods"),
    permission("controller", "watch", "pillion.dev", "clusterinjectionprofiles"),
    permission("controller", "create", "pillion.dev", "clusterprofilerevisions"),
    Permission {
        subresource: "status",
        ..permission("controller", "patch", "pillion.dev", "clusterinjectionprofiles")
    },
    permission("controller", "create", "pillion.dev", "injectiontrustprobes"),
    in_release_namespace(permission("controller", "update", "", "secrets"), "-ca"),
    in_release_namespace(permission("controller", "update", "", "secrets"), "-serving"),
    in_release_namespace(permission("controller", "update", "coordination.k8s.io", "leases"), "-controller"),
    Permission { in_release_namespace: true, ..permission("controller", "list", "discovery.k8s.io", "endpointslices") },
];

/// Gathers all facts. If a fact cannot be read, the others are still gathered, and `unread` lists it. The exceptions
/// are `deployment`, `missing_accounts`, `images` and `unrequested`, which `unread` never lists.
pub(crate) async fn gather(client: &Client, release: &Release) -> Facts {
    let home = release.namespace();
    let Installation { configurations, opt_in, listing, snapshot, slices, switch, mut unread, .. } =
        Installation::read(client, release, None, None).await;
    let ours = own_configuration(configurations.as_deref(), release);
    let has_crds = !listing.unread.iter().any(|(_, why)| is_not_found(why));
    unread
        .extend(listing.unread.into_iter().filter(|(_, why)| !is_not_found(why)).map(|(part, why)| (part.into(), why)));
    let serving = Api::<Secret>::namespaced(client.clone(), home).get_opt(&release.serving_secret()).await;
    let lease = Api::<Lease>::namespaced(client.clone(), home).get_opt(&release.lease()).await;
    let mut entries = ours.into_iter().flat_map(|one| one.webhooks.iter().flatten());
    let bundle = entries.find_map(|entry| {
        let bundle = entry.client_config.ca_bundle.as_ref().filter(|_| is_ours(entry, release));
        bundle.map(|bundle| bundle.0.clone())
    });
    let namespaces = lists::all_metadata(&Api::<Namespace>::all(client.clone()), &ListParams::default()).await;
    let namespaces = kept(namespaces, Part::Namespaces, &mut unread).unwrap_or_default();
    let (permissions, missing_accounts) = permissions(client, release, &mut unread).await;
    let probed = probe(client, release, bundle, &mut unread).await;
    let dry_run = dry_run(client, &snapshot, ours).await;
    let request_keys =
        snapshot.profiles().iter().flat_map(|profile| profile.request_keys().map(str::to_owned)).collect();
    Facts {
        now: Timestamp::now(),
        has_crds,
        endpoints: slices.map(|found| endpoints(&found)),
        deployment: WebhookDeployment::read(client, release).await,
        switch,
        serving: kept(serving, Part::ServingSecret, &mut unread).ok_or(NotRead),
        lease: kept(lease, Part::Lease, &mut unread).ok_or(NotRead),
        probed,
        dry_run,
        request_keys,
        permissions,
        missing_accounts,
        namespaces: namespaces
            .into_iter()
            .map(|one| (one.metadata.name.unwrap_or_default(), one.metadata.labels.unwrap_or_default()))
            .collect(),
        stored: listing.stored,
        broken: listing.broken,
        images: images(client, release).await,
        unrequested: requests::unrequested(client, &snapshot).await,
        configurations,
        opt_in,
        release: release.clone(),
        unread,
    }
}

/// Whether an error of the API server means that the resource type does not exist.
fn is_not_found(why: &str) -> bool {
    why.contains("could not find the requested resource") || why.contains("404")
}

async fn probe(client: &Client, release: &Release, bundle: Option<Vec<u8>>, unread: &mut Unread) -> Vec<Probed> {
    let bundle = bundle.map(|bundle| certificates(&bundle)).unwrap_or_default();
    let Some(expected) = Expected::of_other_issuer(release, bundle) else { return Vec::new() };
    let mut prober = Prober::new(probe::Settings::default(), ProbeMetrics::register(&mut Registry::default()));
    let found = prober.round(client, release, &Arc::new(expected)).await;
    kept(found, Part::Endpoints, unread).map(|found| found.probed).unwrap_or_default()
}

async fn permissions(
    client: &Client,
    release: &Release,
    unread: &mut Unread,
) -> (Vec<(String, String, bool)>, Vec<String>) {
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), release.namespace());
    let mut missing = Vec::new();
    for account in ["webhook", "controller"] {
        let name = format!("{}-{account}", release.name());
        if matches!(accounts.get_metadata_opt(&name).await, Ok(None)) {
            missing.push(name);
        }
    }
    let reviews = Api::<SubjectAccessReview>::all(client.clone());
    let mut found = Vec::new();
    for permission in &PERMISSIONS {
        let account = format!("{}-{}", release.name(), permission.account);
        if missing.contains(&account) {
            continue;
        }
        let name = permission.name.map(|suffix| format!("{}{suffix}", release.name()));
        let attributes = ResourceAttributes {
            verb: Some(permission.verb.to_owned()),
            group: Some(permission.group.to_owned()),
            resource: Some(permission.resource.to_owned()),
            subresource: Some(permission.subresource.to_owned()).filter(|sub| !sub.is_empty()),
            namespace: permission.in_release_namespace.then(|| release.namespace().to_owned()),
            name: name.clone(),
            ..ResourceAttributes::default()
        };
        let user = format!("system:serviceaccount:{}:{account}", release.namespace());
        let groups = ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{}", release.namespace())];
        let spec = SubjectAccessReviewSpec {
            user: Some(user),
            groups: Some([&groups[..], &["system:authenticated".to_owned()]].concat()),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let Some(answer) = kept(reviews.create(&PostParams::default(), &review).await, Part::Rights, unread) else {
            // If one review fails, usually for lack of permission, the others would fail too.
            break;
        };
        let part =
            if permission.subresource.is_empty() { String::new() } else { format!("/{}", permission.subresource) };
        let what = format!(
            "{} {}{part}{}{}",
            permission.verb,
            permission.resource,
            name.map(|name| format!(" {name}")).unwrap_or_default(),
            if permission.in_release_namespace { format!(" in {}", release.namespace()) } else { String::new() }
        );
        found.push((account, what, answer.status.is_some_and(|status| status.allowed)));
    }
    (found, missing)
}

/// Creates pods with a dry run, in opted-in namespaces where a profile matches according to the engine.
async fn dry_run(client: &Client, snapshot: &Snapshot, ours: Option<&MutatingWebhookConfiguration>) -> DryRun {
    let entries = ours.into_iter().flat_map(|one| one.webhooks.iter().flatten());
    let excluded: Vec<_> = entries
        .flat_map(|entry| entry.namespace_selector.iter().flat_map(|one| one.match_expressions.iter().flatten()))
        .filter(|one| one.operator == "NotIn")
        .flat_map(|one| one.values.clone().unwrap_or_default())
        .collect();
    let mut namespaces: Vec<_> = snapshot
        .namespaces()
        .filter(|(name, namespace)| {
            namespace.failure_mode().is_some()
                && !SYSTEM_NAMESPACES.contains(name)
                && !excluded.iter().any(|one| one == name)
        })
        .collect();
    if namespaces.is_empty() {
        return DryRun::NotTried("no namespace is opted in".to_owned());
    }
    // Namespaces that reject pods on failure come first, because there the API server returns the reason.
    namespaces.sort_by_key(|(name, namespace)| (namespace.failure_mode() != Some(FailureMode::Required), *name));
    let pairs = namespaces
        .iter()
        .flat_map(|(name, namespace)| snapshot.profiles().iter().map(move |profile| (*name, *namespace, profile)));
    let own: Vec<_> =
        ours.into_iter().flat_map(|one| one.webhooks.iter().flatten()).map(|entry| &*entry.name).collect();
    let mut not_taken = Vec::new();
    for (name, namespace, profile) in pairs.take(MAX_PAIRS) {
        let pod = pod(name, &profile.name().name);
        let Some(decided) = trial::decide(&pod, name, namespace, snapshot) else { continue };
        let applies = decided
            .decision
            .profiles
            .iter()
            .any(|one| one.profile.name() == profile.name() && one.outcome == ProfileOutcome::Applied);
        if applies && decided.patch.is_some() {
            match send(client, name, profile.display_name(), &pod, &own).await {
                // A quota, a policy or another webhook rejects pods here; another namespace may accept them.
                DryRun::NotTried(why) => not_taken.push(why),
                tried @ DryRun::Tried { .. } => return tried,
            }
            if not_taken.len() >= MAX_REFUSALS {
                break;
            }
        }
    }
    if let Some(why) = not_taken.pop() {
        return DryRun::NotTried(why);
    }
    DryRun::NotTried("no profile matches a plain pod in an opted-in namespace".to_owned())
}

fn pod(namespace: &str, profile: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "generateName": "pillion-doctor-", "namespace": namespace,
            "annotations": {PROFILES_ANNOTATION: profile},
        },
        "spec": {
            "automountServiceAccountToken": false,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65_532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "doctor", "image": "registry.k8s.io/pause:3.10",
                "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"cpu": "10m", "memory": "8Mi"}},
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    })
}

/// Whether the API server reports a failed call of one of these webhooks. The message contains the webhook's name in
/// quotes.
fn is_failed_call(message: &str, own: &[&str]) -> bool {
    let quoted = message.split_once("failed calling webhook \"").and_then(|(_, rest)| rest.split_once('"'));
    quoted.is_some_and(|(name, _)| own.contains(&name))
}

async fn send(client: &Client, namespace: &str, profile: &str, pod: &Value, own: &[&str]) -> DryRun {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let Ok(pod) = serde_json::from_value::<Pod>(pod.clone()) else {
        return DryRun::NotTried("the pod cannot be built".to_owned());
    };
    let parameters = PostParams { dry_run: true, field_manager: Some("pillion-doctor".to_owned()) };
    let (mut untouched, mut refused) = (0, Vec::new());
    for _ in 0..TRIES {
        match pods.create(&parameters, &pod).await {
            Ok(made) => {
                let changes = facts::of_record(&serde_json::to_value(&made).unwrap_or_default());
                let is_whole = !changes.is_empty()
                    && changes.iter().all(|change| change.present || change.what != ChangeKind::Added);
                untouched += usize::from(!is_whole);
            }
            Err(kube::Error::Api(status)) if is_failed_call(&status.message, own) => {
                refused.push(status.message.clone());
            }
            Err(error) => {
                return DryRun::NotTried(format!(
                    "the API server rejects the pod in namespace {namespace}: {}",
                    crate::output::causes(&error.into())
                ));
            }
        }
    }
    DryRun::Tried { namespace: namespace.to_owned(), profile: profile.to_owned(), tries: TRIES, untouched, refused }
}

async fn images(client: &Client, release: &Release) -> Vec<(String, String)> {
    let selector = format!("app.kubernetes.io/name=pillion,app.kubernetes.io/instance={}", release.name());
    let pods = Api::<Pod>::namespaced(client.clone(), release.namespace());
    let Ok(pods) = pods.list(&ListParams::default().labels(&selector)).await else { return Vec::new() };
    let images = pods.items.into_iter().filter_map(|pod| {
        // Other injectors may have added containers.
        let is_own = |name: &str| ["webhook", "controller"].contains(&name);
        let image = pod.spec?.containers.into_iter().find(|container| is_own(&container.name))?.image?;
        Some((pod.metadata.name?, image))
    });
    images.collect()
}

/// All facts. `None` or [`NotRead`] means that a fact could not be read; `unread` has the reason.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) release: Release,
    pub(crate) now: Timestamp,
    pub(crate) opt_in: OptIn,
    /// Whether the API server serves the CRDs.
    pub(crate) has_crds: bool,
    pub(crate) configurations: Option<Vec<MutatingWebhookConfiguration>>,
    pub(crate) switch: Result<Option<ConfigMap>, NotRead>,
    /// The addresses behind the Service, each with its readiness.
    pub(crate) endpoints: Option<Vec<(String, bool)>>,
    pub(crate) deployment: WebhookDeployment,
    pub(crate) serving: Result<Option<Secret>, NotRead>,
    /// The result of probing each endpoint from this process.
    pub(crate) probed: Vec<Probed>,
    pub(crate) dry_run: DryRun,
    /// The labels and annotations by which pods and namespaces request profiles.
    pub(crate) request_keys: Vec<String>,
    /// RBAC permissions of the service accounts: account, permission, and whether it is granted.
    pub(crate) permissions: Vec<(String, String, bool)>,
    /// Service accounts that are missing.
    pub(crate) missing_accounts: Vec<String>,
    /// Namespaces and their labels.
    pub(crate) namespaces: Vec<(String, BTreeMap<String, String>)>,
    pub(crate) stored: Vec<Stored>,
    pub(crate) broken: Vec<Broken>,
    pub(crate) lease: Result<Option<Lease>, NotRead>,
    /// The pods of the release, each with its image.
    pub(crate) images: Vec<(String, String)>,
    /// The added containers that lack a request or a limit.
    pub(crate) unrequested: BTreeSet<Unrequested>,
    pub(crate) unread: Unread,
}

/// The result of creating pods with a dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DryRun {
    /// The dry run has no result, for this reason.
    NotTried(String),
    /// `tries` pods were sent. `untouched` is the number of returned pods that lack the injection record or an added
    /// part. `refused` has the API server's messages for failed calls of the webhook.
    Tried { namespace: String, profile: String, tries: usize, untouched: usize, refused: Vec<String> },
}

pub(super) fn service(facts: &Facts) -> ObjectRef {
    ObjectRef::new("Service", Some(facts.release.namespace()), facts.release.service())
}

/// Whether a webhook entry calls the release's Service.
pub(super) fn is_ours(entry: &MutatingWebhook, release: &Release) -> bool {
    let service = entry.client_config.service.as_ref();
    service.is_some_and(|service| service.name == release.service() && service.namespace == release.namespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_only_failed_calls_of_own_webhooks() {
        let said = |name: &str| {
            format!(
                "Internal error occurred: failed calling webhook \"{name}\": failed to call webhook: Post \"https://x\": x509: unknown"
            )
        };
        let own = ["enabled.pillion.dev"];
        assert!(is_failed_call(&said("enabled.pillion.dev"), &own));
        assert!(!is_failed_call(&said("other.example.test"), &own));
        assert!(!is_failed_call("admission webhook \"enabled.pillion.dev\" denied the request", &own));
        assert!(!is_failed_call("exceeded quota: failed calling webhook", &own));
    }
}
