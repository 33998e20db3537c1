//! `pillion status`: summarises the installation, and lists pods that differ from their profiles, with reasons. It
//! reads lists from the API server, so it works without a running controller.

mod overview;

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use pillion_api::ClusterInjectionProfile;
use pillion_control::Lookups;
use pillion_control::audit::{self, AuditSettings, Finding, Reads, Report};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use self::overview::Line;
use crate::args::ClusterArgs;
use crate::args::block_on;
use crate::output::{self, Form};

/// Arguments of `pillion status`.
#[derive(Clone, Debug, Args)]
pub(crate) struct StatusArgs {
    /// The pods of this namespace. Default: of all that are opted in.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// The pods alone, without replicas, certificates and profiles. So it is with --namespace.
    #[arg(long)]
    pods: bool,
    /// How the answer is printed.
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORMAT")]
    output: Form,
    #[command(flatten)]
    at: ClusterArgs,
}

/// Prints the findings. Exit code 1: there are some.
pub(crate) fn run(args: StatusArgs) -> anyhow::Result<ExitCode> {
    let format = args.output;
    let (lines, report) = block_on(report(args))?;
    format.print(|| Ok(at_a_glance(&lines) + &table(&report.findings)), || Ok(document(&lines, &report)))?;
    if format == Form::Text {
        output::tell(&summary(&report))?;
    }
    Ok(if report.total() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn report(args: StatusArgs) -> anyhow::Result<(Vec<Line>, Report)> {
    let StatusArgs { namespace, pods, at, output: _ } = args;
    let (client, release) = at.connect().await?;
    let is_whole = namespace.is_none() && !pods;
    let lines = if is_whole { overview::overview(&client, &release).await } else { Vec::new() };
    may_be_asked(&client).await?;
    let lookups =
        Lookups::new(client.clone(), pillion_control::informer::lookups::Metrics::register(&mut Registry::default()));
    let reads = Reads { lookups: Some(lookups), cluster: None };
    let settings = AuditSettings { most_findings: usize::MAX, ..AuditSettings::default() };
    let report = audit::once(&client, &release, namespace.as_deref(), &reads, &settings).await?;
    Ok((lines, report))
}

/// Fails at once if the permission to list profiles or namespaces is missing, instead of retrying.
async fn may_be_asked(client: &Client) -> anyhow::Result<()> {
    let one = ListParams::default().limit(1);
    let profiles = Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<ClusterInjectionProfile>(&()));
    let namespaces = Api::<Namespace>::all(client.clone());
    let profiles = profiles.list_metadata(&one).await.map(drop);
    for asked in [profiles, namespaces.list_metadata(&one).await.map(drop)] {
        if let Err(kube::Error::Api(status)) = asked
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

/// Formats a table like kubectl; empty if there are no findings.
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

/// Formats one line with the number of pods in each state, and the places of the findings.
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
    let told: Vec<_> =
        kinds.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    let told = if told.is_empty() { "none".to_owned() } else { told.join(", ") };
    match report.namespaces.len() {
        0 => format!("pods of opted-in namespaces: {told}"),
        1 => format!("pods of opted-in namespaces: {told}; findings in 1 namespace"),
        namespaces => format!("pods of opted-in namespaces: {told}; findings in {namespaces} namespaces"),
    }
}

#[cfg(test)]
mod tests {
    use pillion_control::audit::{Cause, Standings, State};

    use super::*;

    #[test]
    fn a_table_has_columns_and_a_summary_counts() {
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
        report.namespaces.insert("shop".into(), 1);
        assert_eq!(
            summary(&report),
            "pods of opted-in namespaces: 1 lack a profile, 2 are as their profiles say; findings in 1 namespace"
        );
        assert_eq!(summary(&Report::default()), "pods of opted-in namespaces: none");
    }
}
