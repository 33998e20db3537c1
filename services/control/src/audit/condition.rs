//! Writes the audit's findings of each profile as the condition `Injected` of its status.
//!
//! The condition has a separate field manager, so that server-side apply keeps it and the rest of the status apart. An
//! unchanged condition is not written: a new leader compares its first report with the stored condition. Nothing is
//! written before the first report is complete, since a part of the pods proves nothing.
//!
//! Each write is sent to all watchers of profiles. So a changed status or reason is written at once, and changed
//! numbers of pods follow at intervals.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::Client;
use pillion_api::kinds::ProfileStatus;
use pillion_engine::profile::ProfileName;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use super::report::{ProfileAudit, Report};
use super::task::Audited;
use crate::client::chain;
use crate::leader::LeaderContext;
use crate::revisions::profile_status;

/// The condition's type: `True` while every matching pod has the profile's active revision.
pub const INJECTED: &str = "Injected";

/// The field manager of the condition.
const MANAGER: &str = "pillion-controller-audit";
/// Minimum time between two rounds of writes.
const AT_MOST_EVERY: Duration = Duration::from_secs(5);
/// Maximum time between two checks for conditions that are due or could not be written.
const AT_LEAST_EVERY: Duration = Duration::from_secs(30);
/// Minimum time between two writes of a condition in which only the counts changed.
const COUNTS_EVERY: Duration = Duration::from_mins(5);
/// The maximum time to wait for a complete report, once all pods were listed. In a busy cluster, no report may ever be
/// complete.
const COMPLETE_WITHIN: Duration = Duration::from_mins(2);

/// The content of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    status: &'static str,
    reason: &'static str,
    message: String,
}

/// The last condition of a profile.
#[derive(Clone, Debug)]
struct Told {
    said: Said,
    at: Instant,
    /// Whether it was written.
    is_written: bool,
}

/// The last condition of each profile.
#[derive(Debug, Default)]
struct ConditionTracker {
    told: BTreeMap<Box<str>, Told>,
    /// When all pods were listed.
    listed: Option<Instant>,
    has_begun: bool,
}

/// Writes conditions while this controller leads.
pub async fn run(leading: LeaderContext, mut audited: watch::Receiver<Audited>) {
    let writing = async {
        let mut tracker = ConditionTracker::default();
        // Continue after the timeout, or with a new report.
        while !matches!(timeout(AT_LEAST_EVERY, audited.changed()).await, Ok(Err(_))) {
            let found = audited.borrow_and_update().clone();
            for (profile, said) in tracker.due(&found.report, Instant::now()) {
                match write(&leading.client, &profile, &said).await {
                    Ok(()) => tracker.is_written(&profile),
                    Err(error) => {
                        debug!(%profile, error = chain(&error), "what the audit found of a profile was not written; trying again");
                    }
                }
            }
            sleep(AT_MOST_EVERY).await;
        }
    };
    leading.stop.run_until_cancelled(writing).await;
}

impl ConditionTracker {
    /// Returns the conditions to write. Each one stays due until [`ConditionTracker::is_written`] is called.
    fn due(&mut self, report: &Report, now: Instant) -> Vec<(Box<str>, Said)> {
        let listed = self.listed.or_else(|| report.is_listed.then_some(now));
        self.listed = listed;
        let has_waited = listed.is_some_and(|listed| now.duration_since(listed) >= COMPLETE_WITHIN);
        self.has_begun |= report.is_complete || has_waited;
        if !self.has_begun {
            return Vec::new();
        }
        // The last pod of these profiles was deleted, or the profile itself. In the second case, the write finds no
        // profile.
        let gone = self.told.keys().filter(|name| !report.profiles.contains_key(*name)).cloned();
        let gone: Vec<_> = gone.map(|name| (name, ProfileAudit::default())).collect();
        let found = report.profiles.iter().map(|(name, audit)| (name.clone(), *audit));
        let mut due = Vec::new();
        for (name, audit) in found.chain(gone) {
            let said = said(&audit);
            let is_told = self.told.get(&name).is_some_and(|told| {
                let is_same = told.said.status == said.status && told.said.reason == said.reason;
                let is_recent = told.said.message == said.message || now.duration_since(told.at) < COUNTS_EVERY;
                told.is_written && is_same && is_recent
            });
            if !is_told {
                self.told.insert(name.clone(), Told { said: said.clone(), at: now, is_written: false });
                due.push((name, said));
            }
        }
        due
    }

    fn is_written(&mut self, profile: &str) {
        if let Some(told) = self.told.get_mut(profile) {
            told.is_written = true;
        }
    }
}

fn said(audit: &ProfileAudit) -> Said {
    let ProfileAudit { injected, missing, outdated, surplus, undecided } = *audit;
    let (status, reason) = match (missing, outdated, surplus, undecided, injected) {
        (1.., ..) => ("False", "PodsWithout"),
        (0, 1.., ..) => ("False", "PodsOutdated"),
        (0, 0, 1.., ..) => ("False", "PodsWithNeedless"),
        (0, 0, 0, 1.., _) => ("Unknown", "PodsUndecided"),
        (0, 0, 0, 0, 1..) => ("True", "AllInjected"),
        (0, 0, 0, 0, 0) => ("True", "NoPods"),
    };
    let counts = [
        (injected, "as it is at work"),
        (missing, "lack it"),
        (outdated, "have an older revision"),
        (surplus, "have it and should not"),
        (undecided, "are not decided about"),
    ];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    let counts = counts.collect::<Vec<_>>().join(", ");
    let message = if counts.is_empty() { "it is for no pod at present".to_owned() } else { format!("pods: {counts}") };
    Said { status, reason, message }
}

async fn write(client: &Client, profile: &str, said: &Said) -> kube::Result<()> {
    let name = match profile.split_once('/') {
        Some((namespace, name)) => ProfileName::namespaced(namespace, name),
        None => ProfileName::cluster(profile),
    };
    let Some(stored) = profile_status::api(client, &name).get_opt(&name.name).await? else { return Ok(()) };
    let status = stored.data.get("status").cloned().unwrap_or(Value::Null);
    let status: ProfileStatus = serde_json::from_value(status).unwrap_or_default();
    let before = status.conditions.iter().find(|condition| condition.type_ == INJECTED);
    let Some(condition) = condition(before, said, stored.metadata.generation, Timestamp::now()) else { return Ok(()) };
    let (guard, status) = (("uid", stored.metadata.uid.as_deref()), json!({"conditions": [condition]}));
    match profile_status::apply(client, &name, MANAGER, guard, status).await {
        Ok(_) => Ok(()),
        // The profile was deleted or recreated since it was read.
        Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the condition to write, or `None` if it is already stored.
fn condition(before: Option<&Condition>, said: &Said, generation: Option<i64>, now: Timestamp) -> Option<Condition> {
    let is_there = |before: &&Condition| {
        before.status == said.status && before.reason == said.reason && before.message == said.message
    };
    if before.as_ref().is_some_and(is_there) {
        return None;
    }
    let since = before.filter(|before| before.status == said.status).map(|before| before.last_transition_time.clone());
    Some(Condition {
        last_transition_time: since.unwrap_or(Time(now)),
        message: said.message.clone(),
        observed_generation: generation,
        reason: said.reason.to_owned(),
        status: said.status.to_owned(),
        type_: INJECTED.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn audit(injected: u64, missing: u64, outdated: u64) -> ProfileAudit {
        ProfileAudit { injected, missing, outdated, ..ProfileAudit::default() }
    }

    #[test]
    fn the_worst_decides_and_all_is_said() {
        for (found, status, reason, message) in [
            (audit(0, 0, 0), "True", "NoPods", "it is for no pod at present"),
            (audit(3, 0, 0), "True", "AllInjected", "pods: 3 as it is at work"),
            (audit(3, 1, 2), "False", "PodsWithout", "pods: 3 as it is at work, 1 lack it, 2 have an older revision"),
            (audit(0, 0, 2), "False", "PodsOutdated", "pods: 2 have an older revision"),
            (
                ProfileAudit { surplus: 1, ..audit(1, 0, 0) },
                "False",
                "PodsWithNeedless",
                "pods: 1 as it is at work, 1 have it and should not",
            ),
            (
                ProfileAudit { undecided: 4, ..audit(1, 0, 0) },
                "Unknown",
                "PodsUndecided",
                "pods: 1 as it is at work, 4 are not decided about",
            ),
        ] {
            assert_eq!(said(&found), Said { status, reason, message: message.to_owned() });
        }
    }

    fn report<const N: usize>(is_complete: bool, found: [(&str, ProfileAudit); N]) -> Report {
        let profiles = found.into_iter().map(|(name, audit)| (name.into(), audit)).collect();
        Report { is_complete, is_listed: is_complete, profiles, ..Report::default() }
    }

    fn write_all(tracker: &mut ConditionTracker, report: &Report, now: Instant) -> Vec<(String, &'static str)> {
        let due = tracker.due(report, now);
        for (name, _) in &due {
            tracker.is_written(name);
        }
        due.into_iter().map(|(name, said)| (name.into(), said.reason)).collect()
    }

    #[test]
    fn condition_with_new_counts_waits_for_its_interval() {
        let (mut tracker, now) = (ConditionTracker::default(), Instant::now());
        let told = |name: &str, reason| vec![(name.to_owned(), reason)];
        let first = report(true, [("a", audit(1, 0, 0)), ("b", audit(1, 1, 0))]);
        assert_eq!(write_all(&mut tracker, &first, now).len(), 2);
        assert_eq!(write_all(&mut tracker, &first, now), []);
        let counts = report(true, [("a", audit(2, 0, 0)), ("b", audit(2, 1, 0))]);
        assert_eq!(write_all(&mut tracker, &counts, now + AT_LEAST_EVERY), []);
        let status = report(true, [("a", audit(2, 0, 0)), ("b", audit(2, 0, 0))]);
        assert_eq!(write_all(&mut tracker, &status, now + AT_LEAST_EVERY), told("b", "AllInjected"));
        assert_eq!(write_all(&mut tracker, &status, now + COUNTS_EVERY), told("a", "AllInjected"));
        let gone = report(true, [("b", audit(2, 0, 0))]);
        assert_eq!(write_all(&mut tracker, &gone, now + COUNTS_EVERY), told("a", "NoPods"));
        assert_eq!(write_all(&mut tracker, &gone, now + 2 * COUNTS_EVERY), []);
    }

    #[test]
    fn what_was_not_written_stays_due() {
        let (mut tracker, now) = (ConditionTracker::default(), Instant::now());
        let found = report(true, [("a", audit(1, 0, 0))]);
        assert_eq!(tracker.due(&found, now).len(), 1);
        assert_eq!(tracker.due(&found, now).len(), 1, "an unwritten condition stays due");
        tracker.is_written("a");
        assert_eq!(tracker.due(&found, now), []);
        let gone = report(true, []);
        assert_eq!((tracker.due(&gone, now).len(), tracker.due(&gone, now).len()), (1, 1));
    }

    #[test]
    fn nothing_is_told_before_a_report_is_complete() {
        let (mut tracker, now) = (ConditionTracker::default(), Instant::now());
        let half = report(false, [("a", audit(0, 0, 0))]);
        assert_eq!(tracker.due(&half, now), []);
        assert_eq!(tracker.due(&half, now + 2 * COMPLETE_WITHIN), [], "the pods were not listed");
        let listed = Report { is_listed: true, ..half };
        assert_eq!(tracker.due(&listed, now), []);
        assert_eq!(tracker.due(&listed, now + COMPLETE_WITHIN).len(), 1, "a listed report need not be complete");
        let mut tracker = ConditionTracker::default();
        assert_eq!(write_all(&mut tracker, &report(true, [("a", audit(1, 0, 0))]), now).len(), 1);
        assert_eq!(write_all(&mut tracker, &report(false, [("a", audit(1, 1, 0))]), now).len(), 1);
    }

    #[test]
    fn unchanged_condition_is_not_written() {
        let (early, late) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(60).unwrap());
        let first = condition(None, &said(&audit(1, 1, 0)), Some(2), early).unwrap();
        assert_eq!((first.status.as_str(), first.observed_generation), ("False", Some(2)));
        assert_eq!(condition(Some(&first), &said(&audit(1, 1, 0)), Some(2), late), None);
        let second = condition(Some(&first), &said(&audit(1, 2, 0)), Some(2), late).unwrap();
        assert_eq!(second.last_transition_time.0, early, "the status has not changed");
        let third = condition(Some(&second), &said(&audit(3, 0, 0)), Some(2), late).unwrap();
        assert_eq!(third.last_transition_time.0, late);
    }
}
