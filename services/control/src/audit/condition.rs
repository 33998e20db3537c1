//! Writes the audit's result for each profile to the condition `Injected` in the profile's status.
//!
//! A separate field manager writes the condition, so that server-side apply does not change the rest of the status. An
//! unchanged condition is not written: a new leader compares its first report with the stored condition. Nothing is
//! written until a report is complete, since incomplete counts could be wrong. In a busy cluster, it is possible that
//! no report is ever complete. So writing starts at the latest two minutes after all pods were listed.
//!
//! The API server sends each write to all watchers of profiles. To limit the load, a changed status or reason is
//! written at once, but changed pod counts only at intervals.

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

/// The condition's type. Its status is `True` while the audit knows no pod in which the profile is missing, outdated,
/// orphaned or undecided.
pub(crate) const INJECTED: &str = "Injected";

/// The field manager of the condition.
const MANAGER: &str = "pillion-controller-audit";
/// Minimum time between two rounds of writes.
const WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum time to wait for a new report before the last one is checked again for conditions that are due or could not
/// be written.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Minimum time between two writes of a condition in which only the counts changed.
const COUNTS_INTERVAL: Duration = Duration::from_mins(5);
/// The maximum time to wait for a complete report, once all pods were listed. In a busy cluster, it is possible that no
/// report is ever complete.
const COMPLETE_LIMIT: Duration = Duration::from_mins(2);

/// The content of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ConditionContent {
    status: &'static str,
    reason: &'static str,
    message: String,
}

/// The last condition that had to be written for a profile.
#[derive(Clone, Debug)]
struct LastCondition {
    content: ConditionContent,
    at: Instant,
    /// Whether the condition was written.
    is_written: bool,
}

/// Tracks which conditions have to be written.
#[derive(Debug, Default)]
struct ConditionTracker {
    last: BTreeMap<Box<str>, LastCondition>,
    first: FirstReport,
}

/// Tracks whether reports have become complete enough to be written.
#[derive(Debug, Default)]
pub(super) struct FirstReport {
    /// When all pods were listed.
    listed: Option<Instant>,
    is_over: bool,
}

impl FirstReport {
    /// Whether this report can be written: it or an earlier one is complete, or all pods were listed at least two
    /// minutes ago.
    pub(super) fn is_usable(&mut self, report: &Report, now: Instant) -> bool {
        self.listed = self.listed.or_else(|| report.is_listed.then_some(now));
        let has_waited = self.listed.is_some_and(|listed| now.duration_since(listed) >= COMPLETE_LIMIT);
        self.is_over |= report.is_complete || has_waited;
        self.is_over
    }
}

/// Writes conditions while this controller leads.
pub async fn run(leading: LeaderContext, mut audited: watch::Receiver<Audited>) {
    let writing = async {
        let mut tracker = ConditionTracker::default();
        // A round starts with each new report, or after the timeout. The loop ends when the audit's task has dropped
        // its sender.
        while !matches!(timeout(CHECK_INTERVAL, audited.changed()).await, Ok(Err(_))) {
            let found = audited.borrow_and_update().clone();
            for (profile, content) in tracker.due(&found.report, Instant::now()) {
                match write(&leading.client, &profile, &content).await {
                    Ok(()) => tracker.is_written(&profile),
                    Err(error) => {
                        debug!(%profile, error = chain(&error), "the condition Injected could not be written; trying again");
                    }
                }
            }
            sleep(WRITE_INTERVAL).await;
        }
    };
    leading.stop.run_until_cancelled(writing).await;
}

impl ConditionTracker {
    /// Returns the conditions to write. A condition is returned again until [`ConditionTracker::is_written`] is called.
    fn due(&mut self, report: &Report, now: Instant) -> Vec<(Box<str>, ConditionContent)> {
        if !self.first.is_usable(report, now) {
            return Vec::new();
        }
        // The profiles in `gone` are no longer active, and no pod has them. If such a profile was deleted, the write
        // does nothing.
        let gone = self.last.keys().filter(|name| !report.profiles.contains_key(*name)).cloned();
        let gone: Vec<_> = gone.map(|name| (name, ProfileAudit::default())).collect();
        let found = report.profiles.iter().map(|(name, audit)| (name.clone(), *audit));
        let mut due = Vec::new();
        for (name, audit) in found.chain(gone) {
            let content = content_of(&audit);
            let is_reported = self.last.get(&name).is_some_and(|last| {
                let is_same = last.content.status == content.status && last.content.reason == content.reason;
                let is_recent =
                    last.content.message == content.message || now.duration_since(last.at) < COUNTS_INTERVAL;
                last.is_written && is_same && is_recent
            });
            if !is_reported {
                self.last.insert(name.clone(), LastCondition { content: content.clone(), at: now, is_written: false });
                due.push((name, content));
            }
        }
        due
    }

    fn is_written(&mut self, profile: &str) {
        if let Some(last) = self.last.get_mut(profile) {
            last.is_written = true;
        }
    }
}

fn content_of(audit: &ProfileAudit) -> ConditionContent {
    let ProfileAudit { injected, missing, outdated, orphaned, undecided } = *audit;
    let (status, reason) = match (missing, outdated, orphaned, undecided, injected) {
        (1.., ..) => ("False", "PodsWithout"),
        (0, 1.., ..) => ("False", "PodsOutdated"),
        (0, 0, 1.., ..) => ("False", "PodsWithNeedless"),
        (0, 0, 0, 1.., _) => ("Unknown", "PodsUndecided"),
        (0, 0, 0, 0, 1..) => ("True", "AllInjected"),
        (0, 0, 0, 0, 0) => ("True", "NoPods"),
    };
    let counts = [
        (injected, "up to date"),
        (missing, "without the profile"),
        (outdated, "outdated"),
        (orphaned, "no longer matching"),
        (undecided, "undecided"),
    ];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    let counts = counts.collect::<Vec<_>>().join(", ");
    let message = if counts.is_empty() { "no pod matches the profile".to_owned() } else { format!("pods: {counts}") };
    ConditionContent { status, reason, message }
}

async fn write(client: &Client, profile: &str, content: &ConditionContent) -> kube::Result<()> {
    let name = match profile.split_once('/') {
        Some((namespace, name)) => ProfileName::namespaced(namespace, name),
        None => ProfileName::cluster(profile),
    };
    let Some(stored) = profile_status::api(client, &name).get_opt(&name.name).await? else { return Ok(()) };
    let status = stored.data.get("status").cloned().unwrap_or(Value::Null);
    let status: ProfileStatus = serde_json::from_value(status).unwrap_or_default();
    let before = status.conditions.iter().find(|condition| condition.type_ == INJECTED);
    let Some(condition) = condition(before, content, stored.metadata.generation, Timestamp::now()) else {
        return Ok(());
    };
    let (guard, status) = (("uid", stored.metadata.uid.as_deref()), json!({"conditions": [condition]}));
    match profile_status::apply(client, &name, MANAGER, guard, status).await {
        Ok(_) => Ok(()),
        // The profile was deleted or recreated since it was read.
        Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the condition to write; `None` if it is already stored.
fn condition(
    before: Option<&Condition>,
    content: &ConditionContent,
    generation: Option<i64>,
    now: Timestamp,
) -> Option<Condition> {
    let is_there = |before: &&Condition| {
        before.status == content.status && before.reason == content.reason && before.message == content.message
    };
    if before.as_ref().is_some_and(is_there) {
        return None;
    }
    let since =
        before.filter(|before| before.status == content.status).map(|before| before.last_transition_time.clone());
    Some(Condition {
        last_transition_time: since.unwrap_or(Time(now)),
        message: content.message.clone(),
        observed_generation: generation,
        reason: content.reason.to_owned(),
        status: content.status.to_owned(),
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
    fn worst_finding_decides_the_condition() {
        for (found, status, reason, message) in [
            (audit(0, 0, 0), "True", "NoPods", "no pod matches the profile"),
            (audit(3, 0, 0), "True", "AllInjected", "pods: 3 up to date"),
            (audit(3, 1, 2), "False", "PodsWithout", "pods: 3 up to date, 1 without the profile, 2 outdated"),
            (audit(0, 0, 2), "False", "PodsOutdated", "pods: 2 outdated"),
            (
                ProfileAudit { orphaned: 1, ..audit(1, 0, 0) },
                "False",
                "PodsWithNeedless",
                "pods: 1 up to date, 1 no longer matching",
            ),
            (
                ProfileAudit { undecided: 4, ..audit(1, 0, 0) },
                "Unknown",
                "PodsUndecided",
                "pods: 1 up to date, 4 undecided",
            ),
        ] {
            assert_eq!(content_of(&found), ConditionContent { status, reason, message: message.to_owned() });
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
        due.into_iter().map(|(name, content)| (name.into(), content.reason)).collect()
    }

    #[test]
    fn condition_with_new_counts_waits_for_its_interval() {
        let (mut tracker, now) = (ConditionTracker::default(), Instant::now());
        let last = |name: &str, reason| vec![(name.to_owned(), reason)];
        let first = report(true, [("a", audit(1, 0, 0)), ("b", audit(1, 1, 0))]);
        assert_eq!(write_all(&mut tracker, &first, now).len(), 2);
        assert_eq!(write_all(&mut tracker, &first, now), []);
        let counts = report(true, [("a", audit(2, 0, 0)), ("b", audit(2, 1, 0))]);
        assert_eq!(write_all(&mut tracker, &counts, now + CHECK_INTERVAL), []);
        let status = report(true, [("a", audit(2, 0, 0)), ("b", audit(2, 0, 0))]);
        assert_eq!(write_all(&mut tracker, &status, now + CHECK_INTERVAL), last("b", "AllInjected"));
        assert_eq!(write_all(&mut tracker, &status, now + COUNTS_INTERVAL), last("a", "AllInjected"));
        let gone = report(true, [("b", audit(2, 0, 0))]);
        assert_eq!(write_all(&mut tracker, &gone, now + COUNTS_INTERVAL), last("a", "NoPods"));
        assert_eq!(write_all(&mut tracker, &gone, now + 2 * COUNTS_INTERVAL), []);
    }

    #[test]
    fn unwritten_condition_stays_due() {
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
    fn writes_no_condition_before_complete_report() {
        let (mut tracker, now) = (ConditionTracker::default(), Instant::now());
        let half = report(false, [("a", audit(0, 0, 0))]);
        assert_eq!(tracker.due(&half, now), []);
        assert_eq!(tracker.due(&half, now + 2 * COMPLETE_LIMIT), [], "the pods were not listed");
        let listed = Report { is_listed: true, ..half };
        assert_eq!(tracker.due(&listed, now), []);
        assert_eq!(tracker.due(&listed, now + COMPLETE_LIMIT).len(), 1, "an incomplete report is used after the limit");
        let mut tracker = ConditionTracker::default();
        assert_eq!(write_all(&mut tracker, &report(true, [("a", audit(1, 0, 0))]), now).len(), 1);
        assert_eq!(write_all(&mut tracker, &report(false, [("a", audit(1, 1, 0))]), now).len(), 1);
    }

    #[test]
    fn unchanged_condition_is_not_written() {
        let (early, late) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(60).unwrap());
        let first = condition(None, &content_of(&audit(1, 1, 0)), Some(2), early).unwrap();
        assert_eq!((first.status.as_str(), first.observed_generation), ("False", Some(2)));
        assert_eq!(condition(Some(&first), &content_of(&audit(1, 1, 0)), Some(2), late), None);
        let second = condition(Some(&first), &content_of(&audit(1, 2, 0)), Some(2), late).unwrap();
        assert_eq!(second.last_transition_time.0, early, "the status has not changed");
        let third = condition(Some(&second), &content_of(&audit(3, 0, 0)), Some(2), late).unwrap();
        assert_eq!(third.last_transition_time.0, late);
    }
}
