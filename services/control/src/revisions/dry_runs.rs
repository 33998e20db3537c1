//! Tracks which dry runs of accepted revisions are due, running and done. It does no I/O.
//!
//! A leader runs one dry run for each accepted revision whose result is not in the profile's status yet. If the API
//! server did not validate the pod, the dry run is repeated after a pause, which doubles each time. If a namespace
//! accepts revisions faster than its budget allows, its dry runs wait, without delaying other namespaces.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pillion_engine::profile::{CompiledProfile, ProfileName};
use tokio::time::Instant;

use super::dry_run::Verdict;
use super::schedule::Budget;

/// Pause before the second dry run of a revision, and before a namespace without budget tries again.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// The longest pause before a dry run is repeated.
const LONGEST_PAUSE: Duration = Duration::from_mins(10);

/// A revision for a dry run.
#[derive(Clone, Debug)]
pub(super) struct DryRunRequest {
    pub(super) name: ProfileName,
    /// The hash in the name of the stored revision. Another build may have computed it.
    pub(super) revision: Box<str>,
    pub(super) profile: Arc<CompiledProfile>,
}

/// All dry runs of this leader.
#[derive(Debug, Default)]
pub(super) struct DryRuns {
    all: HashMap<ProfileName, Trial>,
    budget: Budget,
    /// When a namespace that had no budget may start a dry run again.
    budget_at: Option<Instant>,
}

/// The dry run of the latest revision of a profile.
#[derive(Debug)]
struct Trial {
    revision: Box<str>,
    verdict: Option<Verdict>,
    state: State,
    pause: Duration,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Running,
    Done,
    RetryAt(Instant),
}

impl DryRuns {
    /// Returns the result of the dry run of a revision, if there is one.
    pub(super) fn verdict(&self, name: &ProfileName, revision: &str) -> Option<&Verdict> {
        self.all.get(name).filter(|trial| *trial.revision == *revision)?.verdict.as_ref()
    }

    /// Starts the dry run of a revision. Returns `None` if the dry run is running, done or not due for a retry, or if
    /// the namespace has no budget.
    pub(super) fn begin(
        &mut self,
        name: &ProfileName,
        revision: &str,
        profile: &Arc<CompiledProfile>,
        now: Instant,
    ) -> Option<DryRunRequest> {
        let before = self.all.get(name).filter(|trial| *trial.revision == *revision);
        if before.is_some_and(|trial| !matches!(trial.state, State::RetryAt(at) if at <= now)) {
            return None;
        }
        if !self.budget.take(name.namespace.as_deref(), now) {
            self.budget_at = Some(now + FIRST_PAUSE);
            return None;
        }
        let (verdict, pause) = before.map_or((None, FIRST_PAUSE), |trial| (trial.verdict.clone(), trial.pause));
        let trial = Trial { revision: revision.into(), verdict, state: State::Running, pause };
        self.all.insert(name.clone(), trial);
        Some(DryRunRequest { name: name.clone(), revision: revision.into(), profile: Arc::clone(profile) })
    }

    /// Records a result, unless another revision was accepted meanwhile.
    pub(super) fn record_verdict(&mut self, name: &ProfileName, revision: &str, verdict: Verdict, now: Instant) {
        let Some(trial) = self.all.get_mut(name).filter(|trial| *trial.revision == *revision) else { return };
        trial.state = State::Done;
        if matches!(verdict, Verdict::NotRequested(_)) {
            trial.state = State::RetryAt(now + trial.pause);
            trial.pause = (2 * trial.pause).min(LONGEST_PAUSE);
        }
        trial.verdict = Some(verdict);
    }

    /// Returns when the next dry run may be due. The caller has started, or no longer needs, the dry runs that were due
    /// at `start`.
    pub(super) fn next_after(&self, start: Instant) -> Option<Instant> {
        let again = self.all.values().filter_map(|trial| match trial.state {
            State::RetryAt(at) => Some(at),
            State::Running | State::Done => None,
        });
        again.chain(self.budget_at).filter(|at| *at > start).min()
    }

    /// Removes the dry runs of profiles for which `is_there` returns false.
    pub(super) fn retain(&mut self, is_there: impl Fn(&ProfileName) -> bool) {
        self.all.retain(|name, _| is_there(name));
    }
}

#[cfg(test)]
mod tests {
    use pillion_engine::profile::compile;
    use serde_json::json;

    use super::*;

    fn profile(name: &ProfileName) -> Arc<CompiledProfile> {
        let spec = json!({"template": {"metadata": {"labels": {"a": "b"}}}});
        Arc::new(compile(name, &serde_json::from_value(spec).unwrap()).unwrap())
    }

    #[test]
    fn each_revision_has_one_dry_run() {
        let (mut dry_runs, now, name) = (DryRuns::default(), Instant::now(), ProfileName::cluster("proxy"));
        let profile = profile(&name);
        let begin =
            |dry_runs: &mut DryRuns, revision: &str, now| dry_runs.begin(&name, revision, &profile, now).is_some();
        assert!(begin(&mut dry_runs, "a", now));
        assert!(!begin(&mut dry_runs, "a", now), "the dry run is running");
        dry_runs.record_verdict(&name, "a", Verdict::Valid, now);
        assert!(!begin(&mut dry_runs, "a", now + LONGEST_PAUSE), "the dry run is done");
        assert_eq!((dry_runs.verdict(&name, "a"), dry_runs.verdict(&name, "b")), (Some(&Verdict::Valid), None));
        assert_eq!(dry_runs.next_after(now), None);

        assert!(begin(&mut dry_runs, "b", now));
        dry_runs.record_verdict(&name, "a", Verdict::Valid, now);
        assert_eq!(dry_runs.verdict(&name, "b"), None, "a late response for another revision is ignored");
        dry_runs.retain(|_| false);
        assert!(begin(&mut dry_runs, "b", now));
    }

    #[test]
    fn dry_run_without_response_is_retried_with_pauses() {
        let (mut dry_runs, mut now, name) = (DryRuns::default(), Instant::now(), ProfileName::cluster("proxy"));
        let profile = profile(&name);
        let away = Verdict::NotRequested("away".to_owned());
        let mut pauses = Vec::new();
        for _ in 0..12 {
            assert!(dry_runs.begin(&name, "a", &profile, now).is_some());
            dry_runs.record_verdict(&name, "a", away.clone(), now);
            let next = dry_runs.next_after(now).unwrap();
            assert!(dry_runs.begin(&name, "a", &profile, next - Duration::from_millis(1)).is_none());
            pauses.push((next - now).as_secs());
            now = next;
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600, 600]);
        assert!(dry_runs.begin(&name, "a", &profile, now).is_some());
        assert_eq!(dry_runs.verdict(&name, "a"), Some(&away), "the last result is kept until the next response");
    }

    #[test]
    fn budget_delays_only_its_namespace() {
        let (mut dry_runs, now) = (DryRuns::default(), Instant::now());
        let names: Vec<_> = (0..100).map(|number| ProfileName::namespaced("noisy", format!("p{number}"))).collect();
        let profile = profile(&names[0]);
        let start = |dry_runs: &mut DryRuns, now| {
            names.iter().filter(|name| dry_runs.begin(name, "a", &profile, now).is_some()).count()
        };
        assert_eq!(start(&mut dry_runs, now), 25);
        assert!(dry_runs.begin(&ProfileName::namespaced("quiet", "p"), "a", &profile, now).is_some());
        let next = dry_runs.next_after(now).unwrap();
        assert_eq!(start(&mut dry_runs, next), 1);
    }
}
