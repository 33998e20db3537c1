//! Asks API servers for trust probes or connectivity checks, again and again while the rotation waits for them.

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::certificates::rotation::{Generation, Propagation};
use crate::leader::LeaderContext;
use crate::trust_probe::Asker;

/// What is asked. An answer to another question is none to this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whether the newest authority is trusted since the configuration was written.
    Trust {
        /// The newest authority.
        newest: Generation,
        /// The epoch of the configuration that API servers ought to have.
        epoch: u64,
        /// When it was written, by the clock of whoever did: it tells one writing from another, and is compared with no clock.
        written: Timestamp,
    },
    /// Whether replicas are reached.
    Replica {
        /// The epoch of the configuration that leads to them.
        epoch: u64,
    },
}

/// How long there is between two rounds of asking whether replicas are reached: a moment, since pods are let through
/// meanwhile.
const REHEARSAL_PAUSE: Duration = Duration::from_millis(200);

/// What the last round of asking found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    question: Question,
    propagation: Propagation,
}

/// Nobody was asked.
pub(super) const UNASKED: Propagation = Propagation { proven: 0, behind: 0, silent: 0 };

impl Answered {
    /// What is known of this question.
    pub(super) fn to(answered: Option<&Self>, question: Option<Question>) -> Propagation {
        let asked = answered.filter(|answered| Some(answered.question) == question);
        asked.map_or(UNASKED, |answered| answered.propagation)
    }
}

/// Asks while it leads and while there is a question, with a `pause` between two rounds.
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
