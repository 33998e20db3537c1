//! `pillion status`: which pods are not as their profiles say, and why. It asks the API server itself, by lists, so it works
//! with the controller dead.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use pillion_control::Lookups;
use pillion_control::audit::{self, AuditSettings, Finding, Reads, Report};
use prometheus_client::registry::Registry;

use crate::args::ClusterArgs;
use crate::output;

/// Arguments of `pillion status`.
#[derive(Clone, Debug, Args)]
pub(crate) struct StatusArgs {
    /// The pods of this namespace. Default: of all that are opted in.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    at: ClusterArgs,
}

/// Prints the findings; fails if there is any.
pub(crate) fn run(args: StatusArgs) -> anyhow::Result<ExitCode> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a thread")?;
    let report = runtime.block_on(report(args))?;
    output::print(&table(&report.findings))?;
    output::tell(&summary(&report))?;
    Ok(if report.total() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn report(args: StatusArgs) -> anyhow::Result<Report> {
    let StatusArgs { namespace, at } = args;
    let (client, release) = at.connect().await?;
    let lookups = Lookups::new(client.clone(), pillion_control::lookups::Metrics::register(&mut Registry::default()));
    let reads = Reads { lookups: Some(lookups), cluster: None };
    let settings = AuditSettings { most_findings: usize::MAX, ..AuditSettings::default() };
    Ok(audit::once(&client, &release, namespace.as_deref(), &reads, &settings).await?)
}

/// In columns, as kubectl has them; nothing if there is nothing.
fn table(findings: &[Finding]) -> String {
    let head = ["NAMESPACE", "POD", "OWNER", "PROFILE", "STATE", "WANT", "HAS", "CAUSE"].map(str::to_owned);
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
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    let mut widths = [0; 8];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut out = String::new();
    for row in rows.iter().filter(|_| !findings.is_empty()) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            // Writing to a text never fails.
            let _ = write!(line, "{cell:width$}   ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// One line: how many pods there are of each kind, and where the findings are.
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
