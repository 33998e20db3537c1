//! Asks API servers for trust probes or connectivity checks, repeatedly while the rotation waits for them.

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::certificates::rotation::{Generation, Propagation};
use crate::leader::LeaderContext;
use crate::trust_probe::Asker;

/// A question for the API servers. An answer belongs to one question only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whether they trust the newest CA, after the configuration was written.
    Trust {
        /// The newest CA.
        newest: Generation,
        /// The epoch of the configuration that API servers should have.
        epoch: u64,
        /// When it was written, by the writer's clock: it only distinguishes writes, and is compared with no clock.
        written: Timestamp,
    },
    /// Whether they reach the replicas.
    Replica {
        /// The epoch of the configuration that routes to them.
        epoch: u64,
    },
}

/// Time between two rounds of the connectivity check: short, since pods are allowed without injection meanwhile.
const REHEARSAL_PAUSE: Duration = Duration::from_millis(200);

/// Results of the last round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    question: Question,
    propagation: Propagation,
}

/// Without any answers.
pub(super) const UNASKED: Propagation = Propagation { proven: 0, behind: 0, silent: 0 };

impl Answered {
    /// The results for this question.
    pub(super) fn to(answered: Option<&Self>, question: Option<Question>) -> Propagation {
        let asked = answered.filter(|answered| Some(answered.question) == question);
        asked.map_or(UNASKED, |answered| answered.propagation)
    }
}

/// Asks while this controller leads and there is a question, with a `pause` between two rounds.
pub async fn run(
    leading: LeaderContext,
    mut asker: Asker,
    pause: Duration,
    mut question: watch::Receiver<Option<Question>>,
    answered: watch::Sender<Option<Answered>>,
) {
    let asking = async {
        loop {
            let wanted = *question.borrow_and_update();
            if let Some(wanted) = wanted {
                let (answer, pause) = match wanted {
                    Question::Trust { newest, epoch, .. } => (asker.ask(newest, epoch).await, pause),
                    Question::Replica { .. } => (asker.rehearse().await, REHEARSAL_PAUSE),
                };
                let propagation = answer.propagation;
                answered.send_replace(Some(Answered { question: wanted, propagation }));
                tokio::select! {
                    changed = question.changed() => if changed.is_err() { return },
                    () = sleep(pause) => {}
                }
            } else if question.changed().await.is_err() {
                return;
            }
        }
    };
    leading.stop.run_until_cancelled(asking).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_one_to_its_question_only() {
        let question = |epoch| Question::Trust { newest: Generation(2), epoch, written: Timestamp::UNIX_EPOCH };
        let propagation = Propagation { proven: 2, behind: 0, silent: 0 };
        let answered = Answered { question: question(3), propagation };
        assert_eq!(Answered::to(Some(&answered), Some(question(3))), propagation);
        assert_eq!(Answered::to(Some(&answered), Some(question(4))), UNASKED);
        assert_eq!(Answered::to(Some(&answered), Some(Question::Replica { epoch: 3 })), UNASKED);
        assert_eq!(Answered::to(Some(&answered), None), UNASKED);
        assert_eq!(Answered::to(None, Some(question(3))), UNASKED);
    }
}
