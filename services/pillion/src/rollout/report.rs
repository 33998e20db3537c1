//! Prints stale workloads and the results, as a table and for programs.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Value, json};

use super::plan::Plan;
use super::stale::Stale;
use crate::output;

/// A workload, its plan, and the result.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// The stale workload.
    pub(super) stale: Stale,
    /// The planned action.
    pub(super) plan: Plan,
    /// The result; `None` if it was not restarted.
    pub(super) outcome: Option<Outcome>,
}

/// The result of a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All pods are new, available and as their profiles say.
    Restarted,
    /// The restart failed, for this reason.
    Failed(String),
    /// A restart before it failed.
    NotBegun,
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restarted => formatter.write_str("restarted"),
            Self::Failed(why) => write!(formatter, "failed: {why}"),
            Self::NotBegun => formatter.write_str("not begun, as another one failed"),
        }
    }
}

impl Line {
    fn told(&self) -> String {
        match (&self.outcome, &self.plan) {
            (Some(outcome), _) => outcome.to_string(),
            (None, Plan::Restart) => "would be restarted".to_owned(),
            (None, Plan::Wait(why)) => format!("would wait: {why}"),
            (None, Plan::Leave(why)) => format!("left alone: {why}"),
        }
    }

    fn profiles(&self) -> String {
        let profiles = self.stale.profiles.iter().map(|(name, wrong)| {
            let list =
                |revisions: &BTreeSet<Box<str>>| revisions.iter().map(|one| &**one).collect::<Vec<_>>().join("|");
            let state = wrong.state.as_str();
            match (wrong.has.is_empty(), wrong.want.is_empty()) {
                (true, _) => format!("{name} {state}"),
                (false, true) => format!("{name} {state} ({})", list(&wrong.has)),
                (false, false) => format!("{name} {state} ({} -> {})", list(&wrong.has), list(&wrong.want)),
            }
        });
        profiles.collect::<Vec<_>>().join(", ")
    }
}

/// Formats a table like kubectl; empty if there are no lines.
pub(super) fn table(lines: &[Line]) -> String {
    let head = ["NAMESPACE", "WORKLOAD", "PODS", "PROFILES", "RESULT"];
    let rows = lines.iter().map(|line| {
        let workload = &line.stale.workload;
        [
            workload.namespace.to_string(),
            format!("{}/{}", workload.kind, workload.name),
            line.stale.pods.to_string(),
            line.profiles(),
            line.told(),
        ]
    });
    output::columns(head, rows)
}

/// Formats one line with the number of workloads and results.
pub(super) fn summary(lines: &[Line], applies: bool) -> String {
    let count = |is: fn(&Line) -> bool| lines.iter().filter(|line| is(line)).count();
    if lines.is_empty() {
        return "no workload is stale".to_owned();
    }
    let left = count(|line| matches!(line.plan, Plan::Leave(_)));
    let all = match lines.len() {
        1 => "1 workload is stale".to_owned(),
        all => format!("{all} workloads are stale"),
    };
    if applies {
        let restarted = count(|line| line.outcome == Some(Outcome::Restarted));
        let failed = count(|line| matches!(line.outcome, Some(Outcome::Failed(_))));
        let not_begun = count(|line| line.outcome == Some(Outcome::NotBegun));
        return format!("{all}: {restarted} restarted, {failed} failed, {not_begun} not begun, {left} left alone");
    }
    let restart = lines.len() - left;
    format!("{all}: {restart} would be restarted by --apply, {left} left alone")
}

/// Returns the lines as JSON.
pub(super) fn value(lines: &[Line], applies: bool) -> Value {
    let workloads = lines.iter().map(|line| {
        let Line { stale: Stale { workload, pods, profiles }, plan, outcome } = line;
        let profiles = profiles.iter().map(|(name, wrong)| {
            json!({
                "profile": name, "state": wrong.state.as_str(), "want": wrong.want, "has": wrong.has,
                "causes": wrong.causes.iter().map(|cause| cause.as_str()).collect::<Vec<_>>(),
            })
        });
        let (action, why) = match plan {
            Plan::Restart => ("restart", None),
            Plan::Wait(why) => ("wait", Some(why)),
            Plan::Leave(why) => ("leave", Some(why)),
        };
        let (outcome, error) = match outcome {
            None => (None, None),
            Some(Outcome::Restarted) => (Some("restarted"), None),
            Some(Outcome::Failed(why)) => (Some("failed"), Some(why)),
            Some(Outcome::NotBegun) => (Some("notBegun"), None),
        };
        json!({
            "namespace": workload.namespace, "kind": workload.kind, "name": workload.name, "pods": pods,
            "profiles": profiles.collect::<Vec<_>>(), "action": action, "why": why, "outcome": outcome, "error": error,
        })
    });
    json!({"applied": applies, "workloads": workloads.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pillion_control::audit::{Cause, State};

    use super::super::stale::Wrong;
    use super::*;
    use crate::workload::Workload;

    fn line(plan: Plan, outcome: Option<Outcome>) -> Line {
        let wrong = Wrong {
            state: State::Outdated,
            causes: [Cause::ProfileChanged].into(),
            want: ["b2".into()].into(),
            has: ["a1".into()].into(),
        };
        let workload = Workload::new("shop", "Deployment", "web");
        let profiles = BTreeMap::from([("nginx".into(), wrong)]);
        Line { stale: Stale { workload, pods: 3, profiles }, plan, outcome }
    }

    #[test]
    fn a_line_says_what_is_wrong_and_what_is_to_be_done() {
        assert_eq!(
            table(&[line(Plan::Restart, None)]),
            "NAMESPACE   WORKLOAD         PODS   PROFILES                    RESULT\n\
             shop        Deployment/web   3      nginx outdated (a1 -> b2)   would be restarted\n"
        );
        let lines = [line(Plan::Leave("it is paused".to_owned()), None), line(Plan::Restart, None)];
        assert!(table(&lines).contains("left alone: it is paused"));
        assert_eq!(summary(&lines, false), "2 workloads are stale: 1 would be restarted by --apply, 1 left alone");
        let lines =
            [line(Plan::Restart, Some(Outcome::Restarted)), line(Plan::Restart, Some(Outcome::Failed("x".to_owned())))];
        assert_eq!(summary(&lines, true), "2 workloads are stale: 1 restarted, 1 failed, 0 not begun, 0 left alone");
        let found = value(&lines, true);
        assert_eq!(found["workloads"][1]["error"], "x");
        assert_eq!(found["workloads"][0]["profiles"][0]["causes"], json!(["profile_changed"]));
        assert_eq!((table(&[]).as_str(), summary(&[], false).as_str()), ("", "no workload is stale"));
    }
}
