//! Formats results as human-readable lines, as a JSON object, and as annotations for GitHub.

use std::fmt::Write as _;

use pillion_cases::Difference;
use serde_json::{Value, json};

use super::suite::{Outcome, Suite};
use crate::load::Problem;
use crate::output;

/// The maximum number of differences printed for one case.
const MAX_DIFFERENCES: usize = 20;

// Colours, which are removed for streams that are not terminals.
const RED: &str = "\u{1b}[31m";
const GREEN: &str = "\u{1b}[32m";
const BOLD: &str = "\u{1b}[1m";
const PLAIN: &str = "\u{1b}[0m";

/// Formats a line for each folder, the failed cases, and the totals.
pub(super) fn text(suites: &[Suite]) -> String {
    let mut text = String::new();
    let name = |suite: &Suite| suite.folder.display().to_string();
    let width = suites.iter().map(|suite| name(suite).len()).max().unwrap_or_default();
    for suite in suites {
        let _ = writeln!(text, "{:width$}  {}", name(suite), counts_text(suite));
        for case in suite.cases.iter().filter(|case| !case.passes()) {
            failure(&mut text, case);
        }
        if suite.failed() > 0 {
            text.push('\n');
        }
    }
    let (cases, failed) = counts(suites);
    let unread: usize = suites.iter().map(|suite| suite.problems.len()).sum();
    let mut summary = format!("{}: {} passed, {failed} failed", counted(cases, "case"), cases - failed);
    if unread > 0 {
        let _ = write!(summary, ", {}", counted(unread, "problem"));
    }
    let colour = if failed + unread == 0 { GREEN } else { RED };
    let _ = writeln!(text, "{colour}{summary}{PLAIN}");
    text
}

/// Formats the results as GitHub annotations.
pub(super) fn github(suites: &[Suite]) -> String {
    let mut text = String::new();
    for suite in suites {
        text.push_str(&output::github_annotations(suite.problems.iter().chain(&suite.warnings)));
        for case in suite.cases.iter().filter(|case| !case.passes()) {
            text.push_str(&output::github_annotation(
                "error",
                &case.file,
                Some((case.line, 1)),
                &case.name,
                &case.failures().join("\n"),
            ));
        }
    }
    let (cases, failed) = counts(suites);
    let _ = writeln!(text, "{}: {} passed, {failed} failed", counted(cases, "case"), cases - failed);
    text
}

/// Returns the results as JSON.
pub(super) fn json(suites: &[Suite]) -> Value {
    let (cases, failed) = counts(suites);
    let all = |problems: fn(&Suite) -> &Vec<Problem>| -> Vec<Value> {
        suites.iter().flat_map(problems).map(Problem::to_json).collect()
    };
    let mut problems = all(|suite| &suite.problems);
    problems.extend(all(|suite| &suite.warnings));
    let folders: Vec<_> = suites
        .iter()
        .map(|suite| {
            json!({
                "folder": suite.folder.display().to_string(),
                "profiles": suite.profiles,
                "cases": suite.cases.iter().map(case_json).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({"folders": folders, "passed": cases - failed, "failed": failed, "problems": problems})
}

fn case_json(case: &Outcome) -> Value {
    let mut json = json!({"name": case.name, "file": case.file, "line": case.line, "passed": case.passes()});
    if let Some(fields) = json.as_object_mut() {
        match &case.verdict {
            Ok(verdict) if verdict.passes() => {}
            Ok(verdict) => {
                fields.insert("differences".to_owned(), json!(verdict.differences));
                fields.insert("messages".to_owned(), json!(verdict.messages));
            }
            Err(unusable) => drop(fields.insert("error".to_owned(), unusable.to_string().into())),
        }
    }
    json
}

fn counts(suites: &[Suite]) -> (usize, usize) {
    (suites.iter().map(|suite| suite.cases.len()).sum(), suites.iter().map(Suite::failed).sum())
}

/// Formats the summary of a folder.
fn counts_text(suite: &Suite) -> String {
    let cases = counted(suite.cases.len(), "case");
    let rest = match (suite.problems.len(), suite.failed()) {
        (0, 0) if suite.cases.is_empty() => return "no cases".to_owned(),
        (0, 0) => return cases,
        (0, failed) => format!("{failed} failed"),
        (problems, 0) => counted(problems, "problem"),
        (problems, failed) => format!("{failed} failed, {}", counted(problems, "problem")),
    };
    format!("{cases}, {RED}{rest}{PLAIN}")
}

fn failure(text: &mut String, case: &Outcome) {
    let Outcome { name, file, line, verdict, update: _ } = case;
    let _ = writeln!(text, "\n{BOLD}{file}:{line}: {name}{PLAIN}");
    match verdict {
        Err(unusable) => {
            let _ = writeln!(text, "  {RED}{unusable}{PLAIN}");
        }
        Ok(verdict) => {
            for difference in verdict.differences.iter().take(MAX_DIFFERENCES) {
                places(text, difference);
            }
            let more = verdict.differences.len().saturating_sub(MAX_DIFFERENCES);
            if more > 0 {
                let _ = writeln!(text, "  and {} more", counted(more, "difference"));
            }
            for message in &verdict.messages {
                let _ = writeln!(text, "  message to the author: {message}");
            }
        }
    }
}

/// Formats a difference, with expected values in green and found values in red.
fn places(text: &mut String, difference: &Difference) {
    let mut colour = "";
    for line in difference.to_string().lines() {
        match line.get(..10) {
            Some("  expected") => colour = GREEN,
            Some("  found   ") => colour = RED,
            _ => {}
        }
        let end = if colour.is_empty() { "" } else { PLAIN };
        let _ = writeln!(text, "  {colour}{line}{end}");
    }
}

/// Formats a count with its noun.
fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}
