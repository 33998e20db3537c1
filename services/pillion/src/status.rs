//! `pillion status`: shows whether the installation works now, and lists pods that differ from their profiles, with
//! reasons. It lists the objects from the API server, so it works without a running controller.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::pin::pin;

use anyhow::{Context, bail};
use clap::Args;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::{Client, Error};
use pillion_api::ClusterInjectionProfile;
use pillion_api::webhook_configuration::opt_in_of;
use pillion_control::audit::{self, AuditSettings, Finding, PodScope, Reads, Report};
use pillion_control::informer::cluster_listing;
use pillion_control::webhook_config::switch::{self, INJECTION_KEY, Position, WEBHOOKS_KEY};
use pillion_control::{Lookups, Release};
use prometheus_client::registry::Registry;
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::ClusterArgs;
use crate::args::block_on;
use crate::availability::{self, WebhookDeployment};
use crate::certs::CertificateState;
use crate::exit::Exit;
use crate::explain::profiles::readiness;
use crate::explain::sidecar;
use crate::finding::{self, Code, ObjectRef};
use crate::installation::{Unread, endpoints, slices};
use crate::output::{self, ListForm, Progress};
use crate::running_pods;

/// Arguments of `pillion status`.
#[derive(Clone, Debug, Args)]
pub(crate) struct StatusArgs {
    /// Show only the pods of this namespace. Default: all opted-in namespaces.
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Show the pods of all opted-in namespaces. This is the default.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Show only pods with these labels, as in app=web,tier!=cache.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// Show only the pods, and not the installation. Implied by --namespace and --selector.
    #[arg(long)]
    pods: bool,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = ListForm::Text, value_name = "FORMAT")]
    output: ListForm,
    #[command(flatten)]
    at: ClusterArgs,
}

/// The output of the command.
struct Status {
    /// The problems of the installation and of injected containers.
    problems: Vec<finding::Finding>,
    /// The state of the installation; `None` if only pods are shown.
    overview: Option<Overview>,
    report: Report,
}

/// Prints the state of the installation, and the pods that differ from their profiles. Returns [`Exit::Findings`] if
/// the installation does not work, if there is such a pod, or if a problem needs action.
pub(crate) fn run(args: StatusArgs) -> anyhow::Result<Exit> {
    let format = args.output;
    let (status, audited) = block_on(read(args))?;
    if let Err(error) = audited {
        // The state of the installation is useful even if the pods could not be read.
        if format.is_text() {
            output::show(&text(&status, false))?;
        }
        return Err(error);
    }
    format.print(|is_wide| text(&status, is_wide), || document(&status))?;
    if format.is_text() {
        output::report(&summary(&status.report))?;
    }
    let works = status.overview.as_ref().is_none_or(Overview::is_healthy);
    Ok(Exit::findings(!works || status.report.total() > 0 || !finding::needs_no_action(&status.problems)))
}

/// Reads the installation, unless only pods are shown, and then the pods. If the pods cannot be read, the second value
/// is the error.
async fn read(args: StatusArgs) -> anyhow::Result<(Status, anyhow::Result<()>)> {
    let StatusArgs { namespace, all_namespaces: _, selector, pods, at, output: _ } = args;
    let (client, release) = at.connect().await?;
    let is_whole = namespace.is_none() && selector.is_none() && !pods;
    let scope = PodScope { namespace: namespace.as_deref(), selector: selector.as_deref() };
    let configurations = Api::<MutatingWebhookConfiguration>::all(client.clone());
    let configuration = configurations.get_opt(release.configuration()).await;
    let opt_in = configuration.as_ref().ok().and_then(|found| opt_in_of(found.as_ref()?)).unwrap_or_default();
    let listing = cluster_listing::read(&client, scope.namespace, &opt_in).await;
    let mut status = Status { problems: Vec::new(), overview: None, report: Report::default() };
    if is_whole {
        let mut unread = Unread::new();
        let replicas = slices(&client, &release, &mut unread).await.map(|slices| endpoints(&slices));
        let replicas = replicas.ok_or_else(|| describe_unread(&mut unread));
        let map = Api::<ConfigMap>::namespaced(client.clone(), release.namespace()).get_opt(release.switch()).await;
        status.problems = unavailable(&client, &release, &replicas, map.as_ref().ok().and_then(Option::as_ref)).await;
        if switch::webhooks(map.as_ref().ok().and_then(Option::as_ref)) != Position::Off {
            status.problems.extend(unregistered(&release, &configuration));
        }
        status.overview = Some(Overview::read(&client, &release, replicas, map, &listing).await);
    }
    let audited = run_audit(&client, &release, scope, &listing, &mut status).await;
    status.problems = finding::sorted(status.problems);
    Ok((status, audited))
}

/// Adds the report of the audit, and findings for injected containers that do not run or are not ready.
async fn run_audit(
    client: &Client,
    release: &Release,
    scope: PodScope<'_>,
    listing: &cluster_listing::ClusterListing,
    status: &mut Status,
) -> anyhow::Result<()> {
    check_list_permissions(client).await?;
    let lookups =
        Lookups::new(client.clone(), pillion_control::informer::lookups::Metrics::register(&mut Registry::default()));
    let reads = Reads { lookups: Some(lookups), cluster: None };
    let settings = AuditSettings { max_findings: usize::MAX, ..AuditSettings::default() };
    let mut progress = Progress::new();
    let report = audit::once(client, release, scope, &reads, &settings, |name, number, of| {
        progress.show_step("namespaces", number, of, name);
    });
    status.report = report.await?;
    let opted_in =
        listing.snapshot.namespaces().filter(|(_, found)| found.failure_mode().is_some()).map(|(name, _)| name);
    status.problems.extend(failing_sidecars(client, opted_in.collect(), scope.selector).await?);
    Ok(())
}

/// Returns the reasons why no pod is injected at all; empty if there are none. A part that cannot be read is skipped,
/// since the overview contains the error.
async fn unavailable(
    client: &Client,
    release: &Release,
    replicas: &Result<Vec<(String, bool)>, String>,
    map: Option<&ConfigMap>,
) -> Vec<finding::Finding> {
    let mut found = Vec::new();
    if let Ok(replicas) = replicas {
        let deployment = WebhookDeployment::read(client, release).await;
        found.extend(availability::no_ready_replica(release, replicas, deployment));
    }
    if switch::injection(map) == Position::Off {
        let by = switch::author(map, INJECTION_KEY);
        found.push(availability::injection_disabled(release, by.as_deref()));
    }
    if switch::webhooks(map) == Position::Off {
        let by = switch::author(map, WEBHOOKS_KEY);
        found.push(availability::webhooks_disabled(release, by.as_deref()));
    }
    found
}

/// Returns a finding if the webhook configuration does not exist or has no entries. `None` if it could not be read.
fn unregistered(
    release: &Release,
    configuration: &kube::Result<Option<MutatingWebhookConfiguration>>,
) -> Option<finding::Finding> {
    let has_entries = |found: &MutatingWebhookConfiguration| found.webhooks.as_ref().is_some_and(|all| !all.is_empty());
    let is_missing = configuration.as_ref().is_ok_and(|found| !found.as_ref().is_some_and(has_entries));
    is_missing.then(|| availability::not_registered(release))
}

/// Returns a finding for each injected container that does not run or is not ready.
async fn failing_sidecars(
    client: &Client,
    namespaces: BTreeSet<&str>,
    selector: Option<&str>,
) -> anyhow::Result<Vec<finding::Finding>> {
    let mut found = Vec::new();
    for namespace in namespaces {
        let mut pages = pin!(running_pods::pages(client, Some(namespace), selector));
        while let Some(pods) = pages.next().await {
            for pod in pods.with_context(|| format!("the pods of {namespace} cannot be listed"))? {
                found.extend(findings_of_pod(namespace, &serde_json::to_value(pod)?));
            }
        }
    }
    Ok(found)
}

fn findings_of_pod(namespace: &str, pod: &Value) -> Vec<finding::Finding> {
    let name = pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let of = |failing: sidecar::FailingSidecar| {
        let remedy = failing.remedy(namespace, name, "restart the workload");
        let object = ObjectRef::new("Pod", Some(namespace), name);
        let finding = finding::Finding::new(Code::SidecarNotRunning, object, failing.message());
        finding.remedy(remedy).of_profile(&failing.profile)
    };
    sidecar::failing(pod, Timestamp::now().as_second()).into_iter().map(of).collect()
}

/// Fails at once if the user may not list profiles or namespaces, or if the CRDs are missing. The audit would retry
/// instead of failing.
async fn check_list_permissions(client: &Client) -> anyhow::Result<()> {
    let one = ListParams::default().limit(1);
    let profiles = Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<ClusterInjectionProfile>(&()));
    let namespaces = Api::<Namespace>::all(client.clone());
    let profiles = profiles.list_metadata(&one).await.map(drop);
    for asked in [profiles, namespaces.list_metadata(&one).await.map(drop)] {
        match asked {
            Err(Error::Api(status)) if status.code == 403 => bail!(
                "{}; the audit reads all namespaces and profiles. For one namespace: pillion explain namespace/NAME",
                status.message
            ),
            Err(Error::Api(status)) if status.code == 404 => {
                bail!("the CRDs of Pillion are missing, so it is not installed: pillion crds | kubectl apply -f -")
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Formats the verdict, the problems with their remedies, the parts of the installation, and the table.
fn text(status: &Status, is_wide: bool) -> String {
    let Status { problems, overview, report } = status;
    let problems = finding::lines(problems);
    let mut text = match overview {
        Some(overview) if overview.is_healthy() && problems.is_empty() => {
            "\u{1b}[32mPillion works.\u{1b}[0m\n\n".to_owned()
        }
        Some(overview) if !overview.is_healthy() => format!("{}\n\n", overview.verdict()),
        Some(_) if status.problems.iter().all(|problem| problem.code == Code::SidecarNotRunning) => {
            "Pillion works, but containers that it added do not run:\n\n".to_owned()
        }
        _ => String::new(),
    };
    text.push_str(&problems);
    if !problems.is_empty() {
        text.push('\n');
    }
    if let Some(overview) = overview {
        text.push_str(&overview.text());
    }
    text + &table(&report.findings, is_wide)
}

/// Returns the machine-readable output. Without an overview, `works`, `installation` and `certificates` are null.
fn document(status: &Status) -> Value {
    let Status { problems, overview, report } = status;
    let findings = report.findings.iter().map(|finding| {
        json!({
            "namespace": *finding.namespace,
            "pod": *finding.pod,
            "owner": finding.owner.as_deref(),
            "profile": *finding.profile,
            "state": finding.state.as_str(),
            "cause": finding.cause.as_str(),
            "want": finding.want.as_deref(),
            "has": finding.has.as_deref(),
        })
    });
    let pods = &report.pods;
    json!({
        "problems": problems,
        "works": overview.as_ref().map(Overview::is_healthy),
        "installation": overview.as_ref().map(|overview| &overview.lines),
        "certificates": overview.as_ref().and_then(|overview| overview.certificates.as_ref()),
        "pods": {
            "missing": pods.missing, "outdated": pods.outdated, "orphaned": pods.orphaned, "pending": pods.pending,
            "undecided": pods.undecided, "injected": pods.injected, "optedOut": pods.opted_out, "notRequested": pods.not_requested,
        },
        "findings": findings.collect::<Vec<_>>(),
    })
}

/// Formats a table in the style of kubectl. Returns an empty string if there are no findings. A wide table also shows
/// owners and revisions.
fn table(findings: &[Finding], is_wide: bool) -> String {
    if !is_wide {
        let rows = findings.iter().map(|finding| {
            [
                finding.namespace.to_string(),
                finding.pod.to_string(),
                finding.profile.to_string(),
                finding.state.to_string(),
                finding.cause.to_string(),
            ]
        });
        return output::columns(["NAMESPACE", "POD", "PROFILE", "STATE", "CAUSE"], rows);
    }
    let head = ["NAMESPACE", "POD", "OWNER", "PROFILE", "STATE", "WANT", "HAS", "CAUSE"];
    let text = |text: Option<&str>| text.unwrap_or("-").to_owned();
    let rows = findings.iter().map(|finding| {
        [
            finding.namespace.to_string(),
            finding.pod.to_string(),
            text(finding.owner.as_deref()),
            finding.profile.to_string(),
            finding.state.to_string(),
            text(finding.want.as_deref()),
            text(finding.has.as_deref()),
            finding.cause.to_string(),
        ]
    });
    output::columns(head, rows)
}

/// Formats one line with the number of pods in each state, and the number of namespaces with findings.
fn summary(report: &Report) -> String {
    let pods = &report.pods;
    let kinds = [
        (pods.missing, "without a profile"),
        (pods.outdated, "outdated"),
        (pods.orphaned, "with a profile that no longer matches"),
        (pods.pending + pods.undecided, "undecided"),
        (pods.injected, "up to date"),
        (pods.opted_out, "opted out"),
        (pods.not_requested, "that no profile matches"),
    ];
    let counts: Vec<_> =
        kinds.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    let counts = if counts.is_empty() { "none".to_owned() } else { counts.join(", ") };
    match report.namespaces.values().filter(|audit| audit.total() > 0).count() {
        0 => format!("pods of opted-in namespaces: {counts}"),
        1 => format!("pods of opted-in namespaces: {counts}; findings in 1 namespace"),
        namespaces => format!("pods of opted-in namespaces: {counts}; findings in {namespaces} namespaces"),
    }
}

/// A line of the overview.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Line {
    part: &'static str,
    text: String,
    /// The reason why no pod is injected, or no change takes effect; `None` if this part works or could not be read.
    problem: Option<&'static str>,
}

/// The state of the installation.
#[derive(Clone, Debug, PartialEq)]
struct Overview {
    lines: Vec<Line>,
    /// The state of the certificates; `None` if it could not be read.
    certificates: Option<Value>,
}

impl Overview {
    /// Reads all parts. If an object cannot be read, its line contains the error.
    async fn read(
        client: &Client,
        release: &Release,
        replicas: Result<Vec<(String, bool)>, String>,
        map: kube::Result<Option<ConfigMap>>,
        listing: &cluster_listing::ClusterListing,
    ) -> Self {
        let now = Timestamp::now();
        let mut lines = Vec::new();
        let mut line = |part, text: String, problem| lines.push(Line { part, text, problem });
        match replicas {
            Ok(found) => line("replicas", describe_replicas(&found), problem_of_replicas(&found)),
            Err(why) => line("replicas", why, None),
        }
        match Api::<Lease>::namespaced(client.clone(), release.namespace()).get_opt(&release.lease()).await {
            Ok(lease) => line("leader", describe_leader(lease.as_ref(), now), problem_of_leader(lease.as_ref(), now)),
            Err(error) => line("leader", unreadable(error), None),
        }
        match map {
            Ok(map) => line("switch", describe_switch(map.as_ref()), problem_of_switch(map.as_ref())),
            Err(error) => line("switch", unreadable(error), None),
        }
        let mut certificates = None;
        match CertificateState::read(client, release).await {
            Ok(seen) => {
                for (what, said) in seen.lines(now) {
                    line(what, said, seen.problem(what));
                }
                certificates = Some(seen.value());
            }
            Err(error) => line("certificate", format!("cannot be read: {}", output::causes(&error)), None),
        }
        line("profiles", describe_profiles(listing), None);
        Self { lines, certificates }
    }

    /// Whether no part has a problem.
    fn is_healthy(&self) -> bool {
        self.lines.iter().all(|line| line.problem.is_none())
    }

    /// Formats the problems of all parts.
    fn verdict(&self) -> String {
        let problems: Vec<_> = self.lines.iter().filter_map(|line| line.problem).collect();
        format!("\u{1b}[31mPillion does not work\u{1b}[0m: {}", problems.join("; "))
    }

    /// Formats a line for each part, followed by an empty line.
    fn text(&self) -> String {
        let mut text = String::new();
        for Line { part, text: line, problem } in &self.lines {
            let (begin, end) = if problem.is_some() { ("\u{1b}[31m", "\u{1b}[0m") } else { ("", "") };
            // Writing to a string never fails.
            let _ = writeln!(text, "{begin}{part:<14}{line}{end}");
        }
        text.push('\n');
        text
    }
}

fn unreadable(error: Error) -> String {
    format!("cannot be read: {}", output::causes(&error.into()))
}

fn describe_unread(unread: &mut Unread) -> String {
    format!("cannot be read: {}", unread.pop().map(|(_, why)| why).unwrap_or_default())
}

fn describe_replicas(endpoints: &[(String, bool)]) -> String {
    let ready = endpoints.iter().filter(|(_, ready)| *ready).count();
    format!("{ready} of {} ready", endpoints.len())
}

fn problem_of_replicas(endpoints: &[(String, bool)]) -> Option<&'static str> {
    (!endpoints.iter().any(|(_, is_ready)| *is_ready)).then_some("no webhook replica is ready")
}

fn problem_of_leader(lease: Option<&Lease>, now: Timestamp) -> Option<&'static str> {
    let spec = lease.and_then(|lease| lease.spec.as_ref());
    let leads = spec.is_some_and(|spec| {
        let is_held = spec.holder_identity.as_deref().is_some_and(|holder| !holder.is_empty());
        let seconds = i64::from(spec.lease_duration_seconds.unwrap_or(15));
        // Twice the lease duration, as in `doctor`, because the clock of this machine may be ahead.
        let is_recent = |renewed: Timestamp| now.duration_since(renewed).as_secs() <= 2 * seconds;
        is_held && spec.renew_time.as_ref().is_some_and(|renewed| is_recent(renewed.0))
    });
    (!leads).then_some("no controller leads")
}

fn problem_of_switch(map: Option<&ConfigMap>) -> Option<&'static str> {
    if switch::injection(map) == Position::Off {
        return Some("injection is disabled");
    }
    (switch::webhooks(map) == Position::Off).then_some("the webhooks are disabled")
}

fn describe_leader(lease: Option<&Lease>, now: Timestamp) -> String {
    let spec = lease.and_then(|lease| lease.spec.as_ref());
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).filter(|holder| !holder.is_empty());
    let Some((spec, holder)) = spec.zip(holder) else { return "none".to_owned() };
    match spec.renew_time.as_ref() {
        Some(renewed) => format!("{holder}, renewed {} s ago", now.duration_since(renewed.0).as_secs()),
        None => holder.to_owned(),
    }
}

fn describe_switch(map: Option<&ConfigMap>) -> String {
    let describe = |key: &str, position: Position, on: &str, off: &str| {
        let who = || switch::author(map, key).map(|who| format!(" by {who}")).unwrap_or_default();
        match position {
            Position::On => format!("{key} {on}"),
            Position::Off => format!("{key} {off}{}", who()),
            Position::Unreadable(word) => format!("{key} has the unknown value {word:?}"),
        }
    };
    let injection = describe(INJECTION_KEY, switch::injection(map), "enabled", "disabled");
    format!("{injection}, {}", describe(WEBHOOKS_KEY, switch::webhooks(map), "enabled", "disabled"))
}

fn describe_profiles(found: &cluster_listing::ClusterListing) -> String {
    if let Some((part, why)) = found.unread.iter().find(|(part, _)| *part != cluster_listing::Part::Namespaces) {
        return format!("{} cannot be read: {why}", part.as_str());
    }
    let not_ready: Vec<_> = found
        .stored
        .iter()
        .filter(|stored| readiness(stored, &found.broken).is_some())
        .map(|stored| stored.name.to_string())
        .collect();
    let mut text = format!("{} stored, {} served", found.stored.len(), found.snapshot.profiles().iter().count());
    if !not_ready.is_empty() {
        // Writing to a string never fails.
        let _ = write!(text, "; last edit not active: {}", not_ready.join(", "));
    }
    for stored in &found.stored {
        if let Some(rollback) = stored.status.rollback() {
            let _ = write!(text, "; {} is rolled back to {} from {}", stored.name, rollback.to, rollback.from);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use pillion_control::audit::{Cause, NamespaceAudit, PodCounts, State};
    use serde_json::json;

    use super::*;

    #[test]
    fn table_aligns_columns_and_summary_counts() {
        let finding = Finding {
            namespace: "shop".into(),
            pod: "web-7c9d6f5b8-x".into(),
            owner: Some("ReplicaSet/web-7c9d6f5b8".into()),
            profile: "nginx".into(),
            state: State::Missing,
            cause: Cause::WebhookUnavailable,
            want: Some("1a2b3c".into()),
            has: None,
        };
        assert_eq!(
            table(std::slice::from_ref(&finding), true),
            "NAMESPACE   POD               OWNER                      PROFILE   STATE     WANT     HAS   CAUSE\n\
             shop        web-7c9d6f5b8-x   ReplicaSet/web-7c9d6f5b8   nginx     missing   1a2b3c   -     created while no replica was ready\n"
        );
        assert_eq!(
            table(std::slice::from_ref(&finding), false),
            "NAMESPACE   POD               PROFILE   STATE     CAUSE\n\
             shop        web-7c9d6f5b8-x   nginx     missing   created while no replica was ready\n"
        );
        assert_eq!(table(&[], false), "");
        let mut report = Report {
            pods: PodCounts { missing: 1, injected: 2, ..PodCounts::default() },
            findings: vec![finding],
            ..Report::default()
        };
        report.namespaces.insert("shop".into(), NamespaceAudit { findings: [1, 0, 0], ..NamespaceAudit::default() });
        assert_eq!(
            summary(&report),
            "pods of opted-in namespaces: 1 without a profile, 2 up to date; findings in 1 namespace"
        );
        assert_eq!(summary(&Report::default()), "pods of opted-in namespaces: none");
    }

    #[test]
    fn problems_come_first_with_remedy() {
        let release = Release::new("pillion", "pillion-system", "cluster.local").unwrap();
        let problems: Vec<_> =
            availability::no_ready_replica(&release, &[], WebhookDeployment::Replicas(0)).into_iter().collect();
        let problem = problem_of_replicas(&[]);
        let lines = vec![Line { part: "replicas", text: "0 of 0 ready".to_owned(), problem }];
        let status =
            Status { problems, overview: Some(Overview { lines, certificates: None }), report: Report::default() };
        let text = anstream::adapter::strip_str(&text(&status, false)).to_string();
        let begin = "Pillion does not work: no webhook replica is ready\n\nerror no_ready_replica: Service pillion-system/pillion\n";
        assert!(text.starts_with(begin), "{text}");
        assert!(
            text.contains("do: kubectl -n pillion-system scale deployment pillion-webhook --replicas=2\n"),
            "{text}"
        );
        assert!(text.ends_with("\n\nreplicas      0 of 0 ready\n\n"), "{text}");
        assert!(!finding::needs_no_action(&status.problems));
        let document = document(&status);
        assert_eq!(document["problems"][0]["code"], "no_ready_replica");
        assert_eq!((&document["works"], &document["installation"][0]["text"]), (&json!(false), &json!("0 of 0 ready")));
    }

    #[test]
    fn rolled_back_profile_is_named_in_overview() {
        let object = json!({"metadata": {"name": "nginx"}, "spec": {},
            "status": {"revision": "b", "promotedRevision": "b", "acceptedRevision": "c"}});
        let stored = cluster_listing::Stored::new(serde_json::from_value(object).unwrap());
        let listing = cluster_listing::ClusterListing {
            snapshot: std::sync::Arc::default(),
            serves_revisions: true,
            stored: vec![stored],
            broken: Vec::new(),
            unread: Vec::new(),
        };
        assert_eq!(describe_profiles(&listing), "1 stored, 0 served; nginx is rolled back to b from c");
    }

    #[test]
    fn status_lines_describe_components() {
        assert_eq!(describe_replicas(&[("a".to_owned(), true), ("b".to_owned(), false)]), "1 of 2 ready");
        let now: Timestamp = "2026-11-22T00:00:10Z".parse().unwrap();
        let lease = json!({"spec": {"holderIdentity": "a", "renewTime": "2026-11-22T00:00:05.000000Z"}});
        let lease: Lease = serde_json::from_value(lease).unwrap();
        assert_eq!(describe_leader(Some(&lease), now), "a, renewed 5 s ago");
        assert_eq!(describe_leader(None, now), "none");
        let map = map(&json!({"injection": "disabled", "webhooks": "no"}));
        assert_eq!(describe_switch(None), "injection enabled, webhooks enabled");
        assert_eq!(describe_switch(Some(&map)), "injection disabled, webhooks has the unknown value \"no\"");
    }

    fn map(data: &Value) -> ConfigMap {
        serde_json::from_value(json!({"data": data})).unwrap()
    }

    #[test]
    fn missing_replicas_leader_or_switch_is_problem() {
        let ready = ("a".to_owned(), true);
        let down = ("b".to_owned(), false);
        assert_eq!(problem_of_replicas(&[ready, down.clone()]), None);
        for none in [&[][..], &[down]] {
            assert_eq!(problem_of_replicas(none), Some("no webhook replica is ready"));
        }

        let lease = |holder: &str, renewed: &str| -> Lease {
            let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed});
            serde_json::from_value(json!({"spec": spec})).unwrap()
        };
        let now: Timestamp = "2026-11-22T00:00:35Z".parse().unwrap();
        let fresh = "2026-11-22T00:00:05.000000Z";
        assert_eq!(problem_of_leader(Some(&lease("a", fresh)), now), None);
        for lease in [None, Some(&lease("", fresh)), Some(&lease("a", "2026-11-22T00:00:04.000000Z"))] {
            assert_eq!(problem_of_leader(lease, now), Some("no controller leads"));
        }

        assert_eq!(problem_of_switch(None), None);
        let problem = |key: &str, value: &str| problem_of_switch(Some(&map(&json!({key: value}))));
        assert_eq!(problem("injection", "disabled"), Some("injection is disabled"));
        assert_eq!(problem("webhooks", "disabled"), Some("the webhooks are disabled"));
        assert_eq!(problem("webhooks", "enabled"), None);
    }

    #[test]
    fn working_installation_has_verdict() {
        let lines = vec![Line { part: "replicas", text: "2 of 2 ready".to_owned(), problem: None }];
        let overview = Some(Overview { lines, certificates: None });
        let status = Status { problems: Vec::new(), overview, report: Report::default() };
        let text = text(&status, false);
        assert!(text.contains("Pillion works.") && text.contains("2 of 2 ready"), "{text}");
    }
}
