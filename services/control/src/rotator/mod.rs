//! Executes the rotation: observes what [`crate::certificates::rotation`] needs, and writes what it decides.
//!
//! A turn reads the objects, asks for the next step and makes at most one write. Turns keep no state but the objects,
//! so any leader can make the next one. Turns follow one another while there is something to write. After that, a turn
//! starts when an object changes, a probe reports, a deadline passes, or a regular interval ends.
//!
//! * `objects`: reads all objects as of one moment.
//! * `reconciler`: one turn; `error`: why a turn failed.
//! * `report`: records Events.
//! * [`question`]: trust probes while the rotation waits for API servers.
//! * `rehearsal`: the connectivity check of the replicas.
//! * [`asked`]: an operator's request for a rotation.
//! * `wake`: watches the objects and starts turns.
//! * [`metrics`]: the state of the rotation.
//!
//! RBAC permissions: `get`, `update` and `watch` on both Secrets, on the webhook configurations and on the `ConfigMap`
//! by name, `create` on Secrets in the release's namespace and on webhook configurations; `get` and `watch` on the
//! Lease; `create` and `patch` on Events.

pub mod asked;
mod error;
pub mod metrics;
mod objects;
pub mod question;
mod rehearsal;
mod report;
mod reconciler;
mod wake;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pillion_api::webhook_configuration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tracing::{debug, error, info, warn};

use self::error::TurnError;
use self::question::{Answered, Question};
use self::reconciler::{Next, Reconciler};
use self::report::EventRecorder;
use crate::certificates::authority::Lifetimes;
use crate::certificates::clock::Clock;
use crate::certificates::rotation::{self, Blocked};
use crate::client::chain;
use crate::leader::LeaderContext;
use crate::probe::{Expected, Found};
use crate::trust_probe::Canary;
use crate::webhook_config::{Live, Rules, Target};

pub use metrics::RotatorMetrics;

/// Maximum number of consecutive writes without a pause: a rotation has ten.
const MOST_AT_ONCE: u32 = 64;
/// Timeout of a turn, which has a few requests. If an API server hangs, the next turn may reach another one.
const TURN_LIMIT: Duration = Duration::from_secs(10);
/// The first pause after an error, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Settings of the rotation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Durations of its phases.
    pub rotation: rotation::Settings,
    /// Lifetimes of CAs and serving certificates.
    pub lifetimes: Lifetimes,
    /// The settings of the webhook configurations, without the bundle.
    pub webhooks: webhook_configuration::Settings,
    /// Maximum time between two turns.
    pub interval: Duration,
}

/// The channels between the rotation and the other tasks of the leader.
#[derive(Debug)]
pub struct RotatorChannels {
    /// The rules for the profiles; `None` until they are known, and the current rules stay.
    pub rules: watch::Receiver<Option<Rules>>,
    /// The requirements for probing endpoints.
    pub expected: watch::Sender<Option<Arc<Expected>>>,
    /// Results of probing them.
    pub found: watch::Receiver<Option<Found>>,
    /// The question for the API servers.
    pub question: watch::Sender<Option<Question>>,
    /// Their answers.
    pub answered: watch::Receiver<Option<Answered>>,
    /// The endpoint that they call for it.
    pub canary: Canary,
    /// The desired state of the webhook configurations, for the task that corrects drift.
    pub target: watch::Sender<Option<Arc<Target>>>,
    /// The observed state of the webhook configurations, from the task that corrects drift. A change starts a turn.
    pub live: watch::Receiver<Option<Live>>,
    /// The comparison of the local clock with the API server's.
    pub clock: Clock,
}

/// The result of a write, as a metric label.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done;

impl Done {
    pub(crate) const STEPS: [&'static str; 6] =
        ["new_authority", "advance", "claim", "write_leaf", "write_bundle", "rehearse"];
    pub(crate) const RESULTS: [&'static str; 3] = ["ok", "conflict", "error"];
}

/// Runs the rotation while this controller leads.
pub async fn run(leading: LeaderContext, settings: Settings, mut channels: RotatorChannels, metrics: RotatorMetrics) {
    let wake = wake::Wake::new(&leading);
    let mut reconciler = Reconciler::new(leading.clone(), settings.clone(), metrics.clone());
    let teller = EventRecorder::new(&leading);
    let (mut pause, mut writes, mut told) = (FIRST_PAUSE, 0, None);
    while !leading.stop.is_cancelled() {
        // A turn can be interrupted safely, since every write is guarded: the next turn reads everything again.
        let made = timeout(TURN_LIMIT, reconciler.make(&mut channels));
        let looked = Box::pin(leading.stop.run_until_cancelled(made)).await;
        let looked = looked.map(|made| made.unwrap_or(Err(TurnError::Late(TURN_LIMIT))));
        if reconciler.gave_up() {
            teller.unreached().await;
        }
        let rest = match looked {
            None => break,
            Some(Ok(Next::Again)) if writes < MOST_AT_ONCE => {
                (pause, writes) = (FIRST_PAUSE, writes + 1);
                continue;
            }
            Some(Ok(Next::Again)) => {
                warn!(
                    writes,
                    "the rotation writes again and again, and does not come to rest: somebody else writes too?"
                );
                writes = 0;
                LONGEST_PAUSE
            }
            Some(Ok(Next::Wait { blocked, until })) => {
                (pause, writes) = (FIRST_PAUSE, 0);
                if told != Some(blocked) {
                    tell(blocked, until);
                    teller.waits(told, blocked).await;
                    told = Some(blocked);
                }
                let left =
                    until.map(|until| Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default());
                settings.interval.min(left.unwrap_or(Duration::MAX)).max(FIRST_PAUSE)
            }
            Some(Err(error)) if error.is_conflict() => {
                debug!("{}: looking again", chain(&error));
                writes = 0;
                FIRST_PAUSE
            }
            Some(Err(error)) => {
                warn!("the rotation cannot go on, and is tried again: {}", chain(&error));
                writes = 0;
                pause = (pause * 2).min(LONGEST_PAUSE);
                pause
            }
        };
        let due = Instant::now() + rest;
        tokio::select! {
            () = leading.stop.cancelled() => break,
            () = tokio::time::sleep_until(due) => {}
            () = wake.woken() => {}
            () = changed(&mut channels.found) => {}
            () = changed(&mut channels.answered) => {}
            () = changed(&mut channels.live) => {}
            () = changed(&mut channels.rules) => {}
        }
    }
    channels.expected.send_replace(None);
    channels.question.send_replace(None);
    channels.target.send_replace(None);
    channels.canary.show(None);
    metrics.forget();
}

/// Waits for a change of the value; for ever if its sender is gone.
async fn changed<T>(wire: &mut watch::Receiver<T>) {
    if wire.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn tell(blocked: Blocked, until: Option<Timestamp>) {
    let until = until.map(tracing::field::display);
    match blocked {
        Blocked::Idle => info!(until, "certificates are as they should be"),
        Blocked::Clock => {
            warn!("this clock and the API server's differ by minutes: nothing is decided by time until they agree");
        }
        Blocked::NoEndpoint => {
            info!(
                "the webhook configuration is filled when all endpoints answer with a certificate that will be trusted"
            );
        }
        Blocked::Rehearsal => {
            info!("failed calls refuse nobody until every API server has shown that it reaches a replica");
        }
        Blocked::Disarmed => {
            warn!("the webhook configuration was taken away on purpose, and stays away: nobody is injected");
        }
        Blocked::Unable => {
            error!("{}", report::UNABLE);
        }
        Blocked::Propagation | Blocked::Endpoints | Blocked::Soaking | Blocked::Repair => {
            debug!(until, reason = blocked.as_str(), "the rotation waits");
        }
    }
}
