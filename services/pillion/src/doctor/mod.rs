//! `pillion doctor`: finds problems that prevent Pillion from working in a cluster, and suggests remedies.
//!
//! * [`gather`]: gathers facts from the cluster, and sends pods through the API server with a dry run.
//! * [`requests`]: finds added containers that lack requests or limits.
//! * [`judge`]: a pure function from facts to findings.

mod gather;
mod judge;
mod requests;

use std::fmt::Write;

use clap::Args;
use serde_json::{Value, json};

use crate::args::ClusterArgs;
use crate::args::block_on;
use crate::exit::Exit;
use crate::finding::{self, Finding, Severity};
use crate::output::Form;

/// Arguments of `pillion doctor`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DoctorArgs {
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORMAT")]
    output: Form,
    #[command(flatten)]
    at: ClusterArgs,
}

/// Runs the checks, and prints problems with their remedies.
pub(crate) fn run(args: DoctorArgs) -> anyhow::Result<Exit> {
    let DoctorArgs { output, at } = args;
    let facts = block_on(async {
        let (client, release) = at.connect().await?;
        Ok(gather::gather(&client, &release).await)
    })?;
    let checks = judge::judge(&facts);
    let found = checks.iter().flat_map(|(_, findings)| findings.iter().cloned()).chain(judge::unread(&facts));
    let findings = finding::sorted(found.collect());
    output.print(|| Ok(text(&checks, &findings)), || document(&checks, &findings))?;
    Ok(Exit::findings(!finding::needs_no_action(&findings)))
}

fn worst(findings: &[Finding]) -> Option<Severity> {
    findings.iter().map(|finding| finding.severity).min()
}

fn text(checks: &[(judge::Check, Vec<Finding>)], findings: &[Finding]) -> String {
    let mut text = String::new();
    for (check, findings) in checks {
        let mark = match worst(findings) {
            None => "\u{1b}[32mok     \u{1b}[0m",
            Some(Severity::Info) => "\u{1b}[36minfo   \u{1b}[0m",
            Some(Severity::Warning) => "\u{1b}[33mwarning\u{1b}[0m",
            Some(Severity::Error) => "\u{1b}[31merror  \u{1b}[0m",
        };
        // Writing to a string never fails.
        let _ = writeln!(text, "{mark}  {}", check.words());
    }
    if !findings.is_empty() {
        text.push('\n');
        text += &finding::lines(findings);
    }
    text
}

fn document(checks: &[(judge::Check, Vec<Finding>)], findings: &[Finding]) -> anyhow::Result<Value> {
    let checks: Vec<_> =
        checks.iter().map(|(check, findings)| json!({"check": check, "worst": worst(findings)})).collect();
    Ok(json!({"checks": checks, "findings": serde_json::to_value(findings)?}))
}
