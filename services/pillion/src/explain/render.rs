//! Prints an explanation for people.

use std::fmt::Write;

use super::changes::What;
use super::judge::Explanation;
use super::webhooks::Outcome;
use crate::finding::{self, Finding};

const BOLD: &str = "\u{1b}[1m";
const DIM: &str = "\u{1b}[2m";
const RED: &str = "\u{1b}[31m";
const GREEN: &str = "\u{1b}[32m";
const YELLOW: &str = "\u{1b}[33m";
const RESET: &str = "\u{1b}[0m";

/// Characters of a value that are printed.
const SHOWN: usize = 60;

/// Formats the explanation: the object in full, its pods in one line each, then the findings.
pub(crate) fn text(explanations: &[Explanation], findings: &[Finding]) -> String {
    let mut text = String::new();
    // Writing to a string never fails.
    for (index, explanation) in explanations.iter().enumerate() {
        let colour = if explanation.verdict.is_good() { GREEN } else { RED };
        let words = explanation.verdict.words();
        let _ = writeln!(text, "{BOLD}{}{RESET}: {colour}{words}{RESET}", explanation.object);
        if index == 0 {
            webhooks(&mut text, explanation);
            profiles(&mut text, explanation);
            changes(&mut text, explanation);
        }
    }
    if !findings.is_empty() {
        let _ = writeln!(text);
        text += &finding::lines(findings);
    }
    text
}

fn webhooks(text: &mut String, explanation: &Explanation) {
    if explanation.webhooks.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{BOLD}Webhook entries for pods{RESET}");
    for entry in &explanation.webhooks {
        let (colour, what) = match entry.outcome {
            Outcome::Called => (GREEN, "called".to_owned()),
            Outcome::Unknown => (YELLOW, format!("not known: {}", entry.detail)),
            _ => (DIM, format!("not called: {}", entry.detail)),
        };
        let _ = writeln!(text, "  {} {DIM}({}){RESET}  {colour}{what}{RESET}", entry.name, entry.configuration);
    }
}

fn profiles(text: &mut String, explanation: &Explanation) {
    let decision = &explanation.decision;
    let _ = writeln!(text, "\n{BOLD}Profiles{RESET}  {DIM}{}: {}{RESET}", decision.outcome, decision.message);
    for profile in &explanation.profiles {
        let colour = match profile.outcome {
            "applied" | "unchanged" => GREEN,
            "skipped" | "denied" | "not_served" => RED,
            _ => DIM,
        };
        let outcome = profile.outcome.replace('_', " ");
        let revision = if profile.revision.is_empty() { String::new() } else { format!("@{}", profile.revision) };
        let _ = write!(text, "  {}{DIM}{revision}{RESET}  {colour}{outcome}{RESET}", profile.profile);
        let _ = match profile.outcome {
            "applied" | "unchanged" => writeln!(text),
            _ => writeln!(text, ", {}", profile.message),
        };
        for parameter in &profile.parameters {
            let value = match &parameter.error {
                Some(error) => format!("{RED}{error}{RESET}"),
                None => shortened(&parameter.value.to_string()),
            };
            let _ = writeln!(text, "    {} = {value}  {DIM}{}{RESET}", parameter.name, parameter.told());
        }
    }
    for notice in &decision.notices {
        let _ = writeln!(text, "  {YELLOW}told{RESET}: {notice}");
    }
}

fn changes(text: &mut String, explanation: &Explanation) {
    if !explanation.changes.is_empty() {
        let _ = writeln!(text, "\n{BOLD}Changes by Pillion{RESET}");
    }
    for change in &explanation.changes {
        let sign = match change.what {
            What::Added => "+",
            What::Replaced => "~",
            What::Removed => "-",
        };
        let gone = if change.present { String::new() } else { format!("  {RED}not there any more{RESET}") };
        let revision = change.revision.as_deref().unwrap_or_default();
        let _ = writeln!(text, "  {sign} {}  {DIM}{}@{revision}{RESET}{gone}", change.path, change.by);
    }
    if !explanation.managers.is_empty() {
        let told: Vec<_> = explanation.managers.iter().map(|one| format!("{} ({})", one.manager, one.time)).collect();
        let _ = writeln!(text, "\n{BOLD}Written by{RESET}  {}", told.join(", "));
    }
}

fn shortened(value: &str) -> String {
    match value.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", value.get(..end).unwrap_or(value)),
        None => value.to_owned(),
    }
}
