//! Executes the rotation: observes the inputs of [`crate::certificates::rotation`], and executes the steps that it
//! returns.
//!
//! A reconciliation reads the objects, computes the next step, and makes at most one write. The objects store how far
//! the rotation is, so any leader can make the next step. Reconciliations follow one another while there is something
//! to write. After that, one starts when an object changes, a probe reports, a deadline passes, or a regular interval
//! ends. Each reconciliation reads all objects again. So the content of events is not used, and an interrupted watch
//! does no harm.
//!
//! The rotation is not a kube-rs `Controller`. A `Controller` reconciles one object for each event, but the rotation
//! has one state in several objects and in the results of probes.
//!
//! - [`request`]: an administrator's request for a rotation.
//! - `objects`: reads all objects in a consistent state.
//! - `connectivity`: the checks of the API servers: trust probes, and the connectivity check of the replicas.
//! - `reconciler`: one reconciliation.
//! - `report`: Events, log lines and metrics.
//!
//! RBAC permissions: `get`, `list`, `watch` and `update` on both Secrets by name; `get`, `update` and `delete` on the
//! webhook configurations by name; `get` on the `ConfigMap` by name; `create` on Secrets in the release's namespace and
//! on webhook configurations; `get`, `list` and `watch` on the Lease by name; `create` and `patch` on Events.

mod connectivity;
mod objects;
mod reconciler;
mod report;
pub mod request;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::stream::{BoxStream, StreamExt, select_all};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, PartialObjectMeta};
use kube::{Resource, ResourceExt};
use pillion_api::webhook_configuration;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use self::connectivity::{ApiServerCheck, RoundResponses};
use self::reconciler::{Next, Reconciler};
use self::report::EventRecorder;
use self::request::REQUEST_ANNOTATION;
use crate::certificates::ca::{IssueError, Lifetimes, MissingCa};
use crate::certificates::clock::Clock;
use crate::certificates::rotation;
use crate::client::chain;
use crate::client::watch_object::{self, Observation};
use crate::leader::LeaderContext;
use crate::probe::{self, Expected, ProbeMetrics, ProbeRound};
use crate::trust_probe::server::IdentityError;
use crate::trust_probe::{ApiServerProber, TrustProbe};
use crate::webhook_config::{Live, Rules, Target, WriteError};

pub use report::RotatorMetrics;

/// Maximum number of consecutive writes without a pause. A rotation makes ten writes.
const MAX_WRITES: u32 = 64;
/// Timeout of a reconciliation, which sends a few requests. If an API server hangs, the next reconciliation may reach
/// another API server.
const RECONCILE_LIMIT: Duration = Duration::from_secs(10);
/// The shortest and the longest pause after an error.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Settings of the rotation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Durations of the rotation's phases.
    pub rotation: rotation::Settings,
    /// Lifetimes of CAs and serving certificates.
    pub lifetimes: Lifetimes,
    /// The settings of the webhook configurations, without the bundle.
    pub webhooks: webhook_configuration::Settings,
    /// Settings of the probes of endpoints. Trust probes have the same interval.
    pub probes: probe::Settings,
    /// Maximum time between two reconciliations.
    pub interval: Duration,
}

/// The rotation of a release, with the channels to the leader's other tasks.
#[derive(Debug)]
pub struct Rotator {
    /// The settings of the rotation.
    pub settings: Settings,
    /// The metrics of the rotation, and those of the probes.
    pub metrics: (RotatorMetrics, ProbeMetrics),
    /// Compares the local clock with the API server's.
    pub clock: Clock,
    /// Sends trust probes and connectivity checks to the API servers.
    pub asker: ApiServerProber,
    /// The webhook rules that the profiles require. While this is `None`, the existing rules are kept.
    pub rules: watch::Receiver<Option<Rules>>,
    /// The observed state of the webhook configurations, from the task that corrects drift. A change starts a
    /// reconciliation.
    pub live: watch::Receiver<Option<Live>>,
    /// The desired state of the webhook configurations, for the task that corrects drift.
    pub target: watch::Sender<Option<Arc<Target>>>,
    /// Results of probing the endpoints. Other tasks read them too.
    pub found: watch::Sender<Option<ProbeRound>>,
}

/// Why a reconciliation failed.
#[derive(Debug, thiserror::Error)]
enum ReconcileError {
    /// An object changed while it was read, or before it was written.
    #[error("another client changed an object of the rotation")]
    Changed,
    /// The reconciliation exceeded its time limit.
    #[error("the API server did not respond within {0:?}")]
    Late(Duration),
    /// An object could not be read.
    #[error("an object of the rotation cannot be read")]
    Read(#[source] kube::Error),
    /// A Secret could not be written.
    #[error("the Secret {name} cannot be written")]
    Secret {
        /// The name of the Secret.
        name: String,
        /// The cause.
        #[source]
        source: kube::Error,
    },
    /// A webhook configuration could not be written.
    #[error(transparent)]
    Configuration(WriteError),
    /// A certificate could not be created.
    #[error("no certificate can be created")]
    Issue(#[from] IssueError),
    /// The certificate or the key of a CA in the record is missing.
    #[error(transparent)]
    Missing(#[from] MissingCa),
    /// The trust probe cannot serve its new certificate.
    #[error("the trust probe has no certificate to serve")]
    TrustProbe(#[from] IdentityError),
    /// The step needs the rotation's record, which is missing or unreadable.
    #[error("the record of the rotation cannot be read")]
    NoRecord,
    /// The record could not be serialized.
    #[error("the record of the rotation cannot be serialized")]
    Text(#[from] serde_json::Error),
}

impl ReconcileError {
    /// Whether another client's write caused the error, so that another reconciliation may succeed.
    const fn is_conflict(&self) -> bool {
        matches!(
            self,
            Self::Changed | Self::Configuration(WriteError::Changed | WriteError::Behind { .. } | WriteError::NotEmpty)
        )
    }
}

/// The values that other tasks send, and the clock. A change of a value starts a reconciliation.
struct Inputs {
    rules: watch::Receiver<Option<Rules>>,
    live: watch::Receiver<Option<Live>>,
    found: watch::Receiver<Option<ProbeRound>>,
    responses: watch::Receiver<Option<RoundResponses>>,
    clock: Clock,
}

/// The channels to the tasks that the rotation directs.
struct Outputs {
    /// The desired state of the webhook configurations.
    target: watch::Sender<Option<Arc<Target>>>,
    /// The requirements for probing endpoints.
    expected: watch::Sender<Option<Arc<Expected>>>,
    /// The check that should run against the API servers: the connectivity check or the trust probe. `None` if none
    /// should run.
    question: watch::Sender<Option<ApiServerCheck>>,
    /// The endpoint that API servers call for a trust probe.
    trust_probe: TrustProbe,
}

impl Inputs {
    async fn changed(&mut self) {
        tokio::select! {
            () = changed(&mut self.rules) => {}
            () = changed(&mut self.live) => {}
            () = changed(&mut self.found) => {}
            () = changed(&mut self.responses) => {}
        }
    }
}

impl Outputs {
    /// Clears all values for other tasks when leadership ends.
    fn clear(&self) {
        self.target.send_replace(None);
        self.expected.send_replace(None);
        self.question.send_replace(None);
        self.trust_probe.show(None);
    }
}

/// Waits for a change of the value. Waits forever if the sender is gone.
async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

impl Rotator {
    /// Rotates the CA, probes endpoints, and checks the API servers, while this controller leads.
    pub async fn run(self, leading: LeaderContext) {
        let Self { settings, metrics: (metrics, probe_metrics), clock, asker, rules, live, target, found } = self;
        let (expected, expects) = watch::channel(None);
        let (question, questions) = watch::channel(None);
        let (answers, responses) = watch::channel(None);
        let trust_probe = asker.trust_probe().clone();
        let probes = settings.probes.clone();
        let inputs = Inputs { rules, live, found: found.subscribe(), responses, clock: clock.clone() };
        let outputs = Outputs { target, expected, question, trust_probe };
        let pause = probes.gap;
        let stop = leading.stop.clone();
        let reconciler = Reconciler::new(leading.clone(), settings, metrics, inputs, outputs);
        tokio::join!(
            reconcile(reconciler, &leading),
            probe::run(leading.clone(), probes, probe_metrics, clock, expects, found),
            connectivity::ask(&stop, asker, pause, questions, answers),
        );
    }
}

/// Reconciles until leadership ends.
async fn reconcile(mut reconciler: Reconciler, leading: &LeaderContext) {
    let mut changes = select_all(object_changes(leading));
    let events = EventRecorder::new(leading);
    let (mut pause, mut writes, mut reported) = (FIRST_PAUSE, 0, None);
    while !leading.stop.is_cancelled() {
        // This reconciliation covers all changes so far.
        while changes.next().now_or_never().flatten().is_some() {}
        // A reconciliation can be interrupted safely: every write is guarded, and the next one reads everything again.
        let reconciliation = timeout(RECONCILE_LIMIT, reconciler.reconcile());
        let Some(result) = Box::pin(leading.stop.run_until_cancelled(reconciliation)).await else { break };
        let result = result.unwrap_or(Err(ReconcileError::Late(RECONCILE_LIMIT)));
        if reconciler.check_timed_out() {
            events.unreached().await;
        }
        let rest = match result {
            Ok(Next::Again) if writes < MAX_WRITES => {
                (pause, writes) = (FIRST_PAUSE, writes + 1);
                continue;
            }
            Ok(Next::Again) => {
                warn!(writes, "the rotation keeps writing: another client may be changing its objects");
                LONGEST_PAUSE
            }
            Ok(Next::Wait { blocked, until }) => {
                pause = FIRST_PAUSE;
                if reported != Some(blocked) {
                    report::log_wait(blocked, until);
                    events.record_wait(reported, blocked).await;
                    reported = Some(blocked);
                }
                let left =
                    until.map(|until| Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default());
                reconciler.interval().min(left.unwrap_or(Duration::MAX)).max(FIRST_PAUSE)
            }
            Err(error) if error.is_conflict() => {
                debug!("{}: reading again", chain(&error));
                FIRST_PAUSE
            }
            Err(error) => {
                warn!("the rotation failed; trying again: {}", chain(&error));
                pause = (pause * 2).min(LONGEST_PAUSE);
                pause
            }
        };
        writes = 0;
        let due = Instant::now() + rest;
        tokio::select! {
            () = leading.stop.cancelled() => break,
            () = tokio::time::sleep_until(due) => {}
            Some(()) = changes.next() => {}
            () = reconciler.inputs.changed() => {}
        }
    }
    reconciler.end();
}

/// Returns streams of the changes of both Secrets and of an administrator's request. The task that corrects drift
/// watches the webhook configurations.
fn object_changes(leading: &LeaderContext) -> Vec<BoxStream<'static, ()>> {
    let LeaderContext { client, release, .. } = leading;
    let secret = || Api::<PartialObjectMeta<Secret>>::namespaced(client.clone(), release.namespace());
    let lease = Api::<PartialObjectMeta<Lease>>::namespaced(client.clone(), release.namespace());
    vec![
        of(secret(), "the rotation's record", &release.ca_secret(), ResourceExt::resource_version),
        of(secret(), "the serving certificate", &release.serving_secret(), ResourceExt::resource_version),
        // The Lease is renewed every few seconds, so only its annotation is compared.
        of(lease, "the request for a rotation", &release.lease(), |lease| {
            lease.annotations().get(REQUEST_ANNOTATION).cloned()
        }),
    ]
}

/// Returns a stream with an item for each change of the value that `what` reads from one object. `called` names the
/// object in log lines.
fn of<K>(
    api: Api<PartialObjectMeta<K>>,
    called: &'static str,
    name: &str,
    what: fn(&PartialObjectMeta<K>) -> Option<String>,
) -> BoxStream<'static, ()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut last = None;
    let changed = watch_object::watch(api, called, name).filter_map(move |seen| {
        let changed = match seen {
            Observation::State(object) => {
                let now = object.as_deref().and_then(what);
                std::mem::replace(&mut last, now.clone()) != now
            }
            Observation::Forbidden => false,
        };
        std::future::ready(changed.then_some(()))
    });
    changed.boxed()
}
