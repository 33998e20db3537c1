//! The checks of the API servers that the rotation needs: trust probes while the rotation waits for their results, and
//! the connectivity check of the replicas.
//!
//! # The connectivity check
//! The check shows whether API servers reach the replicas. It runs before the final configuration, with which API
//! servers reject pods if no replica responds.
//!
//! A replica that responds at its own address proves nothing about the Service. The Service's endpoints, and the rules
//! for them on each API server's machine, follow seconds later. So the controller first writes entries for a check into
//! an empty configuration. With these entries, a failed call rejects no pod, and dry runs are routed to the replicas.
//! The controller then sends a dry run to each API server. When each has reached a replica, the final configuration is
//! written. After a time limit, the final configuration is written anyway, even if no API server is known to reach a
//! replica.
//!
//! The result is kept while this controller leads, so a deleted configuration is created again without another check.
//! When an administrator disables the webhooks, the result is discarded.

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::certificates::rotation::{Configuration, Generation, Propagation};
use crate::release::Release;
use crate::trust_probe::ApiServerProber;
use crate::webhook_config::Live;

/// A check of the API servers. A response is used only for the check that requested it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApiServerCheck {
    /// Whether the API servers trust the newest CA, after the configuration was written.
    Trust {
        /// The newest CA.
        newest: Generation,
        /// The epoch of the configuration that API servers should have.
        epoch: u64,
        /// When the configuration was written, by the writer's clock. The time only distinguishes writes, and is not
        /// compared with any clock.
        written: Timestamp,
    },
    /// Whether the API servers reach the replicas.
    Replica {
        /// The epoch of the configuration that routes dry runs to the replicas.
        epoch: u64,
    },
}

/// Time between two rounds of the connectivity check. It is short, since pods are not injected if their calls fail
/// during the check.
const CONNECTIVITY_PAUSE: Duration = Duration::from_millis(200);

/// The results of the last round, and the check that they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RoundResponses {
    question: ApiServerCheck,
    propagation: Propagation,
}

/// The results before any response.
pub(super) const NO_RESPONSES: Propagation = Propagation { proven: 0, behind: 0, silent: 0 };

impl RoundResponses {
    /// Returns the results if they are for `question`, otherwise [`NO_RESPONSES`].
    pub(super) fn of(responses: Option<&Self>, question: Option<ApiServerCheck>) -> Propagation {
        let matching = responses.filter(|responses| Some(responses.question) == question);
        matching.map_or(NO_RESPONSES, |responses| responses.propagation)
    }
}

/// Runs the current check of the API servers while this controller leads. `pause` is the time between two rounds of
/// trust probes.
pub(super) async fn ask(
    stop: &CancellationToken,
    mut asker: ApiServerProber,
    pause: Duration,
    mut question: watch::Receiver<Option<ApiServerCheck>>,
    responses: watch::Sender<Option<RoundResponses>>,
) {
    let asking = async {
        loop {
            let wanted = *question.borrow_and_update();
            if let Some(wanted) = wanted {
                let (answer, pause) = match wanted {
                    ApiServerCheck::Trust { newest, epoch, .. } => (asker.ask(newest, epoch).await, pause),
                    ApiServerCheck::Replica { .. } => (asker.check_connectivity().await, CONNECTIVITY_PAUSE),
                };
                let propagation = answer.propagation;
                responses.send_replace(Some(RoundResponses { question: wanted, propagation }));
                tokio::select! {
                    changed = question.changed() => if changed.is_err() { return },
                    () = sleep(pause) => {}
                }
            } else if question.changed().await.is_err() {
                return;
            }
        }
    };
    stop.run_until_cancelled(asking).await;
}

/// Time limit of the connectivity check.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// State of the connectivity check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectivityCheck {
    /// The check has not started: no webhook is called, or this leader has not read the configuration yet.
    Due,
    /// The check started at this time.
    Since(Instant),
    /// The check ended, or was not needed because an earlier leader wrote the final configuration.
    Over,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckResult {
    /// Each API server reached a replica.
    Proven,
    /// At the time limit, some API servers have reached a replica, but not all are known to: for example, they cannot
    /// be addressed one by one.
    Partly,
    /// At the time limit, no API server is known to have reached a replica.
    Late,
}

/// The state of the configuration for the connectivity check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// No webhook is called, since an administrator disabled the webhooks.
    WebhooksDisabled,
    /// No webhook is called, since the configuration is missing or has no entries.
    Empty,
    /// The configuration has the entries for a check.
    Check,
    /// The configuration has the final entries.
    Filled,
}

impl Stage {
    pub(super) fn of(configuration: &Configuration, live: &Live, release: &Release) -> Self {
        match configuration {
            Configuration::WebhooksDisabled => Self::WebhooksDisabled,
            Configuration::Absent | Configuration::Empty { .. } => Self::Empty,
            Configuration::Present(_) if live.is_connectivity_check(release) => Self::Check,
            Configuration::Present(_) => Self::Filled,
        }
    }
}

impl ConnectivityCheck {
    /// Whether the configuration should have the entries for a check, instead of the final ones.
    pub(super) const fn is_wanted(self) -> bool {
        !matches!(self, Self::Over)
    }

    /// Whether the check is running.
    pub(super) const fn is_running(self) -> bool {
        matches!(self, Self::Since(_))
    }

    /// Returns the next state, after this stage was observed at `now`.
    pub(super) const fn after(self, stage: Stage, now: Instant) -> Self {
        match (self, stage) {
            (_, Stage::WebhooksDisabled) => Self::Due,
            (Self::Due, Stage::Check) => Self::Since(now),
            (Self::Due, Stage::Filled) => Self::Over,
            // A check that has started or ended keeps its state, even if another client writes or deletes the
            // configuration.
            (known, _) => known,
        }
    }

    /// Returns the result if the check ends now; `None` if it continues or does not run.
    pub(super) fn result(self, propagation: Propagation, now: Instant) -> Option<CheckResult> {
        let Self::Since(since) = self else { return None };
        let Propagation { proven, behind, silent } = propagation;
        if proven > 0 && behind == 0 && silent == 0 {
            return Some(CheckResult::Proven);
        }
        let is_late = now.saturating_duration_since(since) >= LIMIT;
        is_late.then_some(if proven > 0 { CheckResult::Partly } else { CheckResult::Late })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_count_only_for_their_question() {
        let question = |epoch| ApiServerCheck::Trust { newest: Generation(2), epoch, written: Timestamp::UNIX_EPOCH };
        let propagation = Propagation { proven: 2, behind: 0, silent: 0 };
        let responses = RoundResponses { question: question(3), propagation };
        assert_eq!(RoundResponses::of(Some(&responses), Some(question(3))), propagation);
        assert_eq!(RoundResponses::of(Some(&responses), Some(question(4))), NO_RESPONSES);
        assert_eq!(RoundResponses::of(Some(&responses), Some(ApiServerCheck::Replica { epoch: 3 })), NO_RESPONSES);
        assert_eq!(RoundResponses::of(Some(&responses), None), NO_RESPONSES);
        assert_eq!(RoundResponses::of(None, Some(question(3))), NO_RESPONSES);
    }

    const fn answers(proven: usize, behind: usize, silent: usize) -> Propagation {
        Propagation { proven, behind, silent }
    }

    #[test]
    fn check_starts_only_without_final_configuration() {
        let now = Instant::now();
        let after =
            |stages: &[Stage]| stages.iter().fold(ConnectivityCheck::Due, |known, stage| known.after(*stage, now));
        assert!(after(&[]).is_wanted() && !after(&[]).is_running());
        assert_eq!(after(&[Stage::Empty]), ConnectivityCheck::Due);
        assert_eq!(after(&[Stage::Empty, Stage::Check]), ConnectivityCheck::Since(now));
        assert_eq!(after(&[Stage::Filled]), ConnectivityCheck::Over, "an earlier leader wrote the final configuration");
        assert_eq!(
            after(&[Stage::Check]),
            ConnectivityCheck::Since(now),
            "an earlier leader did not complete the check"
        );
        // A configuration that is deleted and created again needs no new check. Entries for a check that another client
        // writes start no check.
        assert_eq!(after(&[Stage::Filled, Stage::Empty]), ConnectivityCheck::Over);
        assert_eq!(after(&[Stage::Filled, Stage::Check]), ConnectivityCheck::Over);
        // If another client writes the final entries too early, the check continues.
        assert_eq!(after(&[Stage::Check, Stage::Filled]), ConnectivityCheck::Since(now));
        // After an administrator enables the webhooks again, other replicas may be running.
        assert_eq!(after(&[Stage::Filled, Stage::WebhooksDisabled, Stage::Empty]), ConnectivityCheck::Due);
    }

    #[test]
    fn check_starts_once() {
        let (begun, later) = (Instant::now(), Instant::now() + LIMIT / 2);
        assert_eq!(ConnectivityCheck::Since(begun).after(Stage::Check, later), ConnectivityCheck::Since(begun));
        assert_eq!(ConnectivityCheck::Since(begun).after(Stage::Empty, later), ConnectivityCheck::Since(begun));
    }

    #[test]
    fn check_ends_with_proof_or_time_limit() {
        let begun = Instant::now();
        let end = |answers, after| ConnectivityCheck::Since(begun).result(answers, begun + after);
        let (early, late) = (Duration::from_millis(1), LIMIT);
        assert_eq!(end(answers(2, 0, 0), early), Some(CheckResult::Proven));
        for not_yet in [answers(0, 0, 0), answers(1, 0, 1), answers(1, 1, 0), answers(0, 0, 1)] {
            assert_eq!(end(not_yet, late.saturating_sub(early)), None, "{not_yet:?}");
        }
        assert_eq!(end(answers(1, 1, 1), late), Some(CheckResult::Partly));
        assert_eq!(
            end(answers(0, 0, 0), late),
            Some(CheckResult::Late),
            "the check ends although no API server could be asked"
        );
        assert_eq!(ConnectivityCheck::Due.result(answers(2, 0, 0), begun + late), None);
        assert_eq!(ConnectivityCheck::Over.result(answers(0, 0, 2), begun + late), None);
    }
}
