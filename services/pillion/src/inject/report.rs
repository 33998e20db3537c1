//! Describes the decision about an object in a few lines.

use std::fmt::Write;

use pillion_engine::decision::{Decision, Notice, Outcome, ProfileDecision, ProfileOutcome};

/// Formats a line for the object, for each considered profile, and for each notice.
pub(super) fn lines(name: &str, decision: &Decision) -> String {
    let mut text = format!("{name}: {}", decision.outcome.as_str());
    if decision.outcome != Outcome::Injected {
        let _ = write!(text, ", {}", sentence(decision.reason.sentence(), decision.detail.as_deref()));
    }
    for profile in &decision.profiles {
        let _ = write!(text, "\n  {}", profile_line(profile));
    }
    for notice in &decision.notices {
        let _ = write!(text, "\n  warning: {}", notice_line(notice));
    }
    text
}

fn profile_line(decision: &ProfileDecision) -> String {
    let name = decision.profile.name();
    match decision.outcome {
        ProfileOutcome::Applied => format!("{name}: applied"),
        ProfileOutcome::Unchanged => format!("{name}: unchanged"),
        ProfileOutcome::Validated => format!("{name}: its validations were evaluated"),
        ProfileOutcome::NotMatched | ProfileOutcome::Skipped | ProfileOutcome::Denied => {
            let outcome = decision.outcome.as_str().replace('_', " ");
            format!("{name}: {outcome}, {}", sentence(decision.reason.sentence(), decision.detail.as_deref()))
        }
    }
}

fn sentence(reason: &str, detail: Option<&str>) -> String {
    detail.map_or_else(|| reason.to_owned(), |detail| format!("{reason}: {detail}"))
}

fn notice_line(notice: &Notice) -> String {
    match notice {
        Notice::RecordDropped => {
            "the annotation pillion.dev/injected was not written by Pillion, and was dropped".to_owned()
        }
        Notice::UnknownWord { key, word } => format!("nobody knows the word \"{word}\" in {key}"),
        Notice::AmbiguousWord { key } => {
            format!("more than one profile could be meant by {key}; say which one by its name")
        }
        Notice::Parameter { .. } | Notice::OfProfile { .. } => notice.to_string(),
    }
}
