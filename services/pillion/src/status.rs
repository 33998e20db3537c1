//! `pillion status`: summarises the installation, and lists pods that differ from their profiles, with reasons. It
//! reads lists from the API server, so it works without a running controller.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::{Client, Error};
use pillion_api::ClusterInjectionProfile;
use pillion_control::audit::{self, AuditSettings, Finding, Reads, Report};
use pillion_control::informer::cluster_listing;
use pillion_control::webhook_config::switch::{self, INJECTION_KEY, Position, WEBHOOKS_KEY};
use pillion_control::{Lookups, Release};
use prometheus_client::registry::Registry;
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::ClusterArgs;
use crate::args::block_on;
use crate::certs::Seen;
use crate::explain::profiles::readiness;
use crate::installation::{Unread, endpoints, slices};
use crate::output::{self, Form};

/// Arguments of `pillion status`.
#[derive(Clone, Debug, Args)]
pub(crate) struct StatusArgs {
    /// The namespace of the pods. Default: all opted-in namespaces.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Show only the pods, without replicas, certificates and profiles. Implied by --namespace.
    #[arg(long)]
    pods: bool,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORMAT")]
    output: Form,
    #[command(flatten)]
    at: ClusterArgs,
}

/// Prints the overview and the findings. Exit code 1: there are findings.
pub(crate) fn run(args: StatusArgs) -> anyhow::Result<ExitCode> {
    let format = args.output;
    let (lines, report) = block_on(report(args))?;
    format.print(|| Ok(at_a_glance(&lines) + &table(&report.findings)), || Ok(document(&lines, &report)))?;
    if format == Form::Text {
        output::report(&summary(&report))?;
    }
    Ok(if report.total() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn report(args: StatusArgs) -> anyhow::Result<(Vec<Line>, Report)> {
    let StatusArgs { namespace, pods, at, output: _ } = args;
    let (client, release) = at.connect().await?;
    let is_whole = namespace.is_none() && !pods;
    let lines = if is_whole { overview(&client, &release).await } else { Vec::new() };
    may_be_asked(&client).await?;
    let lookups =
        Lookups::new(client.clone(), pillion_control::informer::lookups::Metrics::register(&mut Registry::default()));
    let reads = Reads { lookups: Some(lookups), cluster: None };
    let settings = AuditSettings { most_findings: usize::MAX, ..AuditSettings::default() };
    let report = audit::once(&client, &release, namespace.as_deref(), &reads, &settings).await?;
    Ok((lines, report))
}

/// Fails at once if the user may not list profiles or namespaces. The audit would retry instead.
async fn may_be_asked(client: &Client) -> anyhow::Result<()> {
    let one = ListParams::default().limit(1);
    let profiles = Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<ClusterInjectionProfile>(&()));
    let namespaces = Api::<Namespace>::all(client.clone());
    let profiles = profiles.list_metadata(&one).await.map(drop);
    for asked in [profiles, namespaces.list_metadata(&one).await.map(drop)] {
        if let Err(Error::Api(status)) = asked
            && status.code == 403
        {
            bail!(
                "{}; the audit reads all namespaces and profiles. Who may not asks about their own: pillion explain namespace/NAME",
                status.message
            );
        }
    }
    Ok(())
}

/// Formats the overview in columns, followed by an empty line.
fn at_a_glance(lines: &[Line]) -> String {
    let mut text = String::new();
    for line in lines {
        // Writing to a string never fails.
        let _ = writeln!(text, "{:<14}{}", line.what, line.said);
    }
    if !lines.is_empty() {
        text.push('\n');
    }
    text
}

/// Returns the output for programs.
fn document(lines: &[Line], report: &Report) -> Value {
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
        "installation": lines,
        "pods": {
            "missing": pods.missing, "outdated": pods.outdated, "surplus": pods.surplus, "pending": pods.pending,
            "undecided": pods.undecided, "injected": pods.injected, "optedOut": pods.opted_out, "notAsked": pods.not_asked,
        },
        "findings": findings.collect::<Vec<_>>(),
    })
}

/// Formats a table like kubectl. Returns an empty string if there are no findings.
fn table(findings: &[Finding]) -> String {
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
        (pods.missing, "lack a profile"),
        (pods.outdated, "carry an older revision"),
        (pods.surplus, "carry a profile that is not for them any more"),
        (pods.pending + pods.undecided, "cannot be judged"),
        (pods.injected, "are as their profiles say"),
        (pods.opted_out, "opted out"),
        (pods.not_asked, "have no profile"),
    ];
    let counts: Vec<_> =
        kinds.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    let counts = if counts.is_empty() { "none".to_owned() } else { counts.join(", ") };
    match report.namespaces.len() {
        0 => format!("pods of opted-in namespaces: {counts}"),
        1 => format!("pods of opted-in namespaces: {counts}; findings in 1 namespace"),
        namespaces => format!("pods of opted-in namespaces: {counts}; findings in {namespaces} namespaces"),
    }
}

/// A line of the overview.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Line {
    what: &'static str,
    said: String,
}

/// Returns all lines of the overview. If an object cannot be read, its line contains the error.
async fn overview(client: &Client, release: &Release) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut line = |what, said: String| lines.push(Line { what, said });
    let mut unread = Vec::new();
    let replicas = slices(client, release, &mut unread).await.map(|slices| endpoints(&slices));
    line("replicas", replicas.map_or_else(|| describe_unread(&mut unread), |found| describe_replicas(&found)));
    let lease = Api::<Lease>::namespaced(client.clone(), release.namespace()).get_opt(&release.lease()).await;
    line("leader", lease.map_or_else(cannot, |lease| describe_leader(lease.as_ref(), Timestamp::now())));
    let map = Api::<ConfigMap>::namespaced(client.clone(), release.namespace()).get_opt(release.switch()).await;
    line("switch", map.map_or_else(cannot, |map| describe_switch(map.as_ref())));
    match Seen::read(client, release).await {
        Ok(seen) => {
            for (what, said) in seen.lines(Timestamp::now()) {
                line(what, said);
            }
        }
        Err(error) => line("certificate", format!("cannot be read: {}", output::causes(&error))),
    }
    let found = cluster_listing::read(client, None, &pillion_api::opt_in::OptIn::default()).await;
    line("profiles", describe_profiles(&found));
    lines
}

fn cannot(error: Error) -> String {
    format!("cannot be read: {}", output::causes(&error.into()))
}

fn describe_unread(unread: &mut Unread) -> String {
    format!("cannot be read: {}", unread.pop().map(|(_, why)| why).unwrap_or_default())
}

fn describe_replicas(endpoints: &[(String, bool)]) -> String {
    let ready = endpoints.iter().filter(|(_, ready)| *ready).count();
    format!("{ready} of {} ready", endpoints.len())
}

fn describe_leader(lease: Option<&Lease>, now: Timestamp) -> String {
    let spec = lease.and_then(|lease| lease.spec.as_ref());
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).filter(|holder| !holder.is_empty());
    let Some((spec, holder)) = spec.zip(holder) else { return "nobody".to_owned() };
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
            Position::Unreadable(word) => format!("{key} is {word:?}, which nobody understands"),
        }
    };
    let injection = describe(INJECTION_KEY, switch::injection(map), "enabled", "disabled");
    format!("{injection}, {}", describe(WEBHOOKS_KEY, switch::webhooks(map), "armed", "disarmed"))
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
        let _ = write!(text, "; not at work as they are stored: {}", not_ready.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use pillion_control::audit::{Cause, Standings, State};
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
            cause: Cause::WebhookAway,
            want: Some("1a2b3c".into()),
            has: None,
        };
        assert_eq!(
            table(std::slice::from_ref(&finding)),
            "NAMESPACE   POD               OWNER                      PROFILE   STATE     WANT     HAS   CAUSE\n\
             shop        web-7c9d6f5b8-x   ReplicaSet/web-7c9d6f5b8   nginx     missing   1a2b3c   -     created while the webhook was away\n"
        );
        assert_eq!(table(&[]), "");
        let mut report = Report {
            pods: Standings { missing: 1, injected: 2, ..Standings::default() },
            findings: vec![finding],
            ..Report::default()
        };
        report.namespaces.insert("shop".into(), [1, 0, 0]);
        assert_eq!(
            summary(&report),
            "pods of opted-in namespaces: 1 lack a profile, 2 are as their profiles say; findings in 1 namespace"
        );
        assert_eq!(summary(&Report::default()), "pods of opted-in namespaces: none");
    }

    #[test]
    fn status_lines_describe_components() {
        assert_eq!(describe_replicas(&[("a".to_owned(), true), ("b".to_owned(), false)]), "1 of 2 ready");
        let now: Timestamp = "2026-11-22T00:00:10Z".parse().unwrap();
        let lease = json!({"spec": {"holderIdentity": "a", "renewTime": "2026-11-22T00:00:05.000000Z"}});
        let lease: Lease = serde_json::from_value(lease).unwrap();
        assert_eq!(describe_leader(Some(&lease), now), "a, renewed 5 s ago");
        assert_eq!(describe_leader(None, now), "nobody");
        let map: ConfigMap =
            serde_json::from_value(json!({"data": {"injection": "disabled", "webhooks": "no"}})).unwrap();
        assert_eq!(describe_switch(None), "injection enabled, webhooks armed");
        assert_eq!(describe_switch(Some(&map)), "injection disabled, webhooks is \"no\", which nobody understands");
    }
}
