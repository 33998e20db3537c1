//! A term of leadership: starts the leader's tasks and connects them.
//!
//! The tasks do not call one another. They share the snapshot of the published revisions. They pass results through
//! `watch` channels, which keep only the last value, and questions to the audit through an `mpsc` channel.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::FutureExt;
use pillion_api::opt_in::OptIn;
use pillion_control::LeaderContext;
use pillion_control::Lookups;
use pillion_control::Publisher;
use pillion_control::Release;
use pillion_control::Status;
use pillion_control::audit::open_reports::{self, metrics::OpenReportMetrics};
use pillion_control::audit::{self, AuditMetrics, AuditQuestion, AuditSettings, Audited, condition};
use pillion_control::certificates::clock::{self, Clock, ClockMetrics};
use pillion_control::guard::guarded;
use pillion_control::held::{HeldMetrics, Injection, ReleaseSettings, policies, release, wanted};
use pillion_control::informer::lookups;
use pillion_control::lease::Claim;
use pillion_control::probe::{self, ProbeMetrics};
use pillion_control::revisions::{self, Coverage, NetChannels};
use pillion_control::rollout::{self, RolloutChannels, RolloutMetrics};
use pillion_control::rotator::{Rotator, RotatorMetrics};
use pillion_control::safety_net::{self, NetInputs, NetSettings, SafetyNetMetrics};
use pillion_control::trust_probe::{ApiServerProber, TrustProbe, TrustProbeMetrics};
use pillion_control::webhook_config::switch::{self, KillSwitch};
use pillion_control::webhook_config::{self, Keeper, Rules};
use pillion_engine::snapshot::Snapshot;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::config::follow::Ticks;
use crate::config::{ControllerPolicy, MetricLimits};

/// How often to check whether the rules of the profiles changed.
const RULES_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The metrics of all leader tasks.
#[derive(Clone, Debug)]
pub(crate) struct LeaderMetrics {
    pub(crate) trust_probe: TrustProbeMetrics,
    rotator: RotatorMetrics,
    probe: ProbeMetrics,
    configuration: webhook_config::Metrics,
    clock: ClockMetrics,
    held: HeldMetrics,
    safety_net: SafetyNetMetrics,
    audit: AuditMetrics,
    open_reports: OpenReportMetrics,
    lookups: lookups::Metrics,
    revisions: revisions::Metrics,
    rollout: RolloutMetrics,
    /// 1 while the kill switch disables injection.
    disabled: Gauge,
}

impl LeaderMetrics {
    pub(crate) fn register(registry: &mut Registry, limits: &MetricLimits) -> Self {
        Self {
            trust_probe: TrustProbeMetrics::register(registry),
            rotator: RotatorMetrics::register(registry),
            probe: ProbeMetrics::register(registry),
            configuration: webhook_config::Metrics::register(registry),
            clock: ClockMetrics::register(registry),
            held: HeldMetrics::register(registry),
            safety_net: SafetyNetMetrics::register(registry),
            audit: AuditMetrics::register(registry, limits.max_tenants, limits.max_profiles),
            open_reports: OpenReportMetrics::register(registry),
            lookups: lookups::Metrics::register(registry),
            revisions: revisions::Metrics::register(registry),
            rollout: RolloutMetrics::register(registry),
            disabled: switch::register(registry),
        }
    }

    /// Sets all gauges to 0, except those that the tasks themselves reset when they end.
    fn reset(&self) {
        self.trust_probe.reset();
        self.configuration.reset();
        self.clock.reset();
        self.held.reset();
        self.open_reports.reset();
        self.safety_net.reset();
        self.revisions.reset();
        self.rollout.reset();
        self.disabled.set(0);
    }
}

/// A task failure within this time after another one is treated as permanent.
const REPEAT_WITHIN: Duration = Duration::from_mins(10);
/// After a permanent failure, how long the other tasks continue before a new term starts the failed task again.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_mins(5);

/// The time of the last failed task. A failed task ends the term, since a new term fixes most problems. But a task that
/// fails in each term must not stop all other tasks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures(Arc<Mutex<Option<Instant>>>);

/// The inputs of every term.
#[derive(Clone)]
pub(crate) struct Term {
    pub(crate) client: kube::Client,
    pub(crate) config: kube::Config,
    pub(crate) release: Arc<Release>,
    pub(crate) policy: Arc<ControllerPolicy>,
    pub(crate) metrics: LeaderMetrics,
    pub(crate) trust_probe: TrustProbe,
    /// The address of the trust probe for API servers.
    pub(crate) trust_probe_address: SocketAddr,
    pub(crate) failures: Failures,
}

impl Term {
    /// Runs the leader's tasks until the term is over.
    pub(crate) async fn lead(self, claim: Claim) {
        let leading = claim.leading(self.client.clone(), Arc::clone(&self.release));
        let mut tasks = Tasks { running: JoinSet::new(), leading };
        let (failures, metrics) = (self.failures.clone(), self.metrics.clone());
        // The labels were validated when the file was read.
        let opt_in = self.policy.webhooks.labels().unwrap_or_default();
        let memory = self.policy.profiles.memory();
        let mut accepting = revisions::Settings { memory, ..revisions::Settings::default() };
        // Like replicas, the other tasks use published revisions, not the stored profiles.
        let snapshot = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
        let (publisher, status) = Publisher::new(Arc::clone(&snapshot));
        let publisher = publisher.opting_in_by(opt_in.clone());
        let (questions, asked) = mpsc::channel(1);
        let reporting = self.policy.audit.open_reports.then(|| questions.clone());
        if let Some(settings) = self.policy.rollouts() {
            let (followed_sender, followed) = watch::channel(None);
            accepting.followed = Some(followed_sender);
            accepting.limits = self.policy.rollout_limits();
            let lookups = Lookups::new(self.client.clone(), self.metrics.lookups.clone());
            let channels = RolloutChannels {
                published: Arc::clone(&snapshot),
                followed,
                status: status.clone(),
                questions,
                lookups,
                metrics: self.metrics.rollout.clone(),
            };
            tasks.spawn("the upgrades of running pods", rollout::run(tasks.leading(), channels, settings));
        }
        let net = self.policy.safety_net(&self.release).map(|settings| {
            let (opted_in_sender, opted_in) = watch::channel(None);
            let (coverage_sender, coverage) = watch::channel(Coverage::default());
            accepting.safety_net = Ok(NetChannels { opted_in: opted_in_sender, coverage });
            Net { settings, opted_in, coverage: coverage_sender }
        });
        if let Err(why) = &net {
            accepting.safety_net = Err(why);
            let policy = self.policy.safety_net_policy(&self.release);
            tasks.spawn("the disabled safety net", safety_net::run_disabled(tasks.leading(), policy));
        }
        let accepting = revisions::run(tasks.leading(), accepting, self.metrics.revisions.clone(), publisher);
        tasks.spawn("the revisions of profiles", accepting);
        let audited = tasks.audit(&self.client, &snapshot, status.clone(), asked, &self.metrics, opt_in);
        if let Some(questions) = reporting {
            let metrics = self.metrics.open_reports.clone();
            tasks.spawn("the reports", open_reports::run(tasks.leading(), audited, questions, metrics));
        }
        if self.policy.certificates.managed {
            self.rotate(&mut tasks, snapshot, status, net.ok());
        } else {
            // The probe task also creates the ConfigMap of the kill switch. If certificates are managed, the task for
            // the webhook configurations creates the ConfigMap instead.
            let probing = probe::report(tasks.leading(), self.policy.certificates.probes(), self.metrics.probe);
            tasks.spawn("the probes", probing);
        }
        tasks.run(&failures).await;
        metrics.reset();
    }

    /// Starts the tasks for certificates and webhook configurations, and those that depend on them.
    fn rotate(
        self,
        tasks: &mut Tasks,
        snapshot: Arc<ArcSwap<Snapshot>>,
        status: watch::Receiver<Status>,
        net: Option<Net>,
    ) {
        let Self { client, config, release, policy, metrics, trust_probe, trust_probe_address, failures: _ } = self;
        let (rules_sender, rules) = watch::channel(None);
        tasks.spawn("the rules", follow_rules(Arc::clone(&snapshot), status, rules_sender, tasks.stop()));

        let clock = Clock::new(clock::Settings::default(), metrics.clock);
        let (clock_task, api_server, until) = (clock.clone(), client.clone(), tasks.stop());
        tasks.spawn("the clock", async move { clock_task.run(api_server, until).await });

        let access = (client.clone(), config);
        let asking = policy.certificates.trust_probe();
        let asker = ApiServerProber::new(
            access,
            Arc::clone(&release),
            trust_probe,
            trust_probe_address,
            asking,
            metrics.trust_probe,
        );

        let (target, targets) = watch::channel(None);
        // Only the rotation knows whether endpoints respond. So this task treats every target as unconfirmed, and never
        // adds entries to an empty configuration.
        let never: webhook_config::Confirm = Arc::new(|_| async { false }.boxed());
        let (keeper, live) = Keeper::new(webhook_config::Settings::default(), metrics.configuration, targets, never);
        tasks.spawn("the webhook configurations", keeper.run(tasks.leading()));

        let off = tasks.switch(&client, &release, metrics.disabled);
        if let Some(Net { settings, opted_in, coverage }) = net {
            let (live, off) = (live.clone(), off.clone());
            let inputs = NetInputs { published: snapshot, opted_in, live, off, coverage };
            let keeping = safety_net::run(tasks.leading(), settings, inputs, metrics.safety_net);
            tasks.spawn("the safety net", keeping);
        }
        let (probe_results_sender, found) = watch::channel(None);
        let known = wanted::Inputs { found, live: live.clone(), off };
        tasks.held(known, policy.held_policies(&release), policy.held_releases(), metrics.held);
        let rotator = Rotator {
            settings: policy.rotator(&release),
            metrics: (metrics.rotator, metrics.probe),
            clock,
            asker,
            rules,
            live,
            target,
            found: probe_results_sender,
        };
        tasks.spawn("the rotation", rotator.run(tasks.leading()));
    }
}

impl Failures {
    /// Waits until the term should end: it was stopped, or a task failed. If a task also failed recently, the other
    /// tasks continue for a while.
    async fn end_of_term(&self, running: &mut JoinSet<&'static str>, stop: &CancellationToken) {
        let first = running.join_next().await;
        if stop.is_cancelled() {
            return;
        }
        let now = Instant::now();
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        let again = last.is_some_and(|last| now.duration_since(last) < REPEAT_WITHIN);
        let then = if again {
            "the other tasks continue for five minutes, then a new term retries it"
        } else {
            "the term ends"
        };
        match first {
            Some(Err(error)) => error!(%error, "a task of the leader failed: {then}"),
            Some(Ok(what)) => error!(what, "a task of the leader ended unexpectedly: {then}"),
            None => {}
        }
        if again {
            stop.run_until_cancelled(sleep(PAUSE_AFTER_FAILURE)).await;
        }
    }
}

/// The settings of the safety net, and its connection to the revisions of profiles.
struct Net {
    settings: NetSettings,
    opted_in: watch::Receiver<Option<Vec<revisions::OptedIn>>>,
    coverage: watch::Sender<Coverage>,
}

/// The tasks of a term.
struct Tasks {
    running: JoinSet<&'static str>,
    leading: LeaderContext,
}

impl Tasks {
    fn leading(&self) -> LeaderContext {
        self.leading.clone()
    }

    fn stop(&self) -> CancellationToken {
        self.leading.stop.clone()
    }

    fn spawn<T: Send + 'static>(&mut self, what: &'static str, task: impl Future<Output = T> + Send + 'static) {
        self.running.spawn(task.map(move |_| what));
    }

    /// Runs until the term is over. A failed task ends the term. The next leader, which may be this controller, starts
    /// all tasks again.
    async fn run(mut self, failures: &Failures) {
        failures.end_of_term(&mut self.running, &self.leading.stop).await;
        self.leading.stop.cancel();
        while self.running.join_next().await.is_some() {}
    }

    /// Starts following the kill switch. The returned receiver contains whether injection is disabled; `None` until
    /// that is known. If the API server forbids reading the switch, injection is treated as enabled.
    fn switch(&mut self, client: &kube::Client, release: &Release, gauge: Gauge) -> watch::Receiver<Option<bool>> {
        let (sender, off) = watch::channel(None);
        let begin = sender.clone();
        let tell = Arc::new(move |is_off| _ = sender.send_replace(Some(is_off)));
        let switch = KillSwitch::new(client.clone(), release.clone(), gauge, tell, move || {
            // Injection is treated as enabled unless the switch has already reported its state.
            begin.send_if_modified(|off| {
                let was_unknown = off.is_none();
                off.get_or_insert(false);
                was_unknown
            });
        });
        self.spawn("the kill switch", switch.follow(self.stop()));
        off
    }

    /// Starts the tasks for held pods.
    fn held(
        &mut self,
        known: wanted::Inputs,
        settings: policies::PolicySettings,
        releases: ReleaseSettings,
        metrics: HeldMetrics,
    ) {
        let (wanted_sender, wanted) = watch::channel(None);
        let (injection_sender, injection) = watch::channel(Injection::Silent);
        let (judging, until) = (wanted::follow(known, wanted_sender, injection_sender), self.stop());
        self.spawn("the state of held namespaces", async move { until.run_until_cancelled(judging).await });
        let keeping = policies::run(self.leading(), settings, wanted, metrics.clone());
        self.spawn("the policies of held namespaces", keeping);
        let releasing = release::run(self.leading(), releases, injection, metrics);
        self.spawn("the release of held pods", releasing);
    }

    /// Starts the audit of pods. Returns its results.
    fn audit(
        &mut self,
        client: &kube::Client,
        snapshot: &Arc<ArcSwap<Snapshot>>,
        status: watch::Receiver<Status>,
        questions: mpsc::Receiver<AuditQuestion>,
        metrics: &LeaderMetrics,
        opt_in: OptIn,
    ) -> watch::Receiver<Audited> {
        let (audited, found) = watch::channel(Audited::default());
        self.spawn("the results of the audit", condition::run(self.leading(), found.clone()));
        let lookups = Lookups::new(client.clone(), metrics.lookups.clone());
        let reads = audit::Reads { lookups: Some(lookups), cluster: None };
        let published = Arc::clone(snapshot);
        let metrics = metrics.audit.clone();
        let parts = audit::AuditChannels { published, status, reads, metrics, audited, questions };
        self.spawn(
            "the audit",
            audit::run(self.leading(), parts, AuditSettings { opt_in, ..AuditSettings::default() }),
        );
        found
    }
}

/// Sends the rules for the webhook configurations whenever the profiles change them. Starts once all profiles are
/// known.
async fn follow_rules(
    snapshot: Arc<ArcSwap<Snapshot>>,
    mut status: watch::Receiver<Status>,
    rules: watch::Sender<Option<Rules>>,
    stop: CancellationToken,
) {
    let synced = async { status.wait_for(|status| status.synced).await.is_ok() };
    if stop.run_until_cancelled(synced).await != Some(true) {
        // The watch of the profiles has ended, or the term was stopped.
        return;
    }
    let mut ticks = Ticks::new(RULES_CHECK_INTERVAL, stop);
    let mut seen = None;
    while ticks.next().await {
        let now = snapshot.load_full();
        if seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &now)) {
            continue;
        }
        seen = Some(Arc::clone(&now));
        // If the rules cannot be computed, the previous rules remain in use.
        let Ok(fresh) = guarded(&"the rules of profiles", || Rules::of(now.profiles())) else { continue };
        log_omitted_namespaces(rules.borrow().as_ref(), &fresh);
        let fresh = Some(fresh);
        rules.send_if_modified(|known| {
            let differs = *known != fresh;
            if differs {
                *known = fresh;
            }
            differs
        });
    }
}

/// Warns of namespaces whose profiles validate objects that the API server does not send to the webhook. Warns only if
/// the list of these namespaces has changed.
fn log_omitted_namespaces(before: Option<&Rules>, now: &Rules) {
    let is_news = before.is_none_or(|before| before.omitted_namespaces != now.omitted_namespaces);
    if let (true, Some(first)) = (is_news, now.omitted_namespaces.first()) {
        warn!(
            namespaces = now.omitted_namespaces.len(),
            first = %first,
            "too many namespaces have profiles that validate resources or operations that no cluster profile validates, \
             so the API server does not call the webhook for these; write a cluster profile with a validation for the \
             same resources and operations, or delete profiles"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a term in which one task panics after a second, and returns how long the term lasts. The other task must
    /// continue until then.
    async fn term(failures: &Failures, stop: &CancellationToken) -> Duration {
        let mut running = JoinSet::new();
        running.spawn(async {
            sleep(Duration::from_secs(1)).await;
            panic!("for a test")
        });
        running.spawn(std::future::pending());
        let began = Instant::now();
        failures.end_of_term(&mut running, stop).await;
        assert_eq!(running.len(), 1, "the other task continues");
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn failing_task_leaves_time_to_others() {
        let (failures, stop) = (Failures::default(), CancellationToken::new());
        let second = Duration::from_secs(1);
        assert_eq!(term(&failures, &stop).await, second, "the first failure ends the term");
        assert_eq!(term(&failures, &stop).await, second + PAUSE_AFTER_FAILURE);
        assert_eq!(term(&failures, &stop).await, second + PAUSE_AFTER_FAILURE);
        sleep(REPEAT_WITHIN).await;
        assert_eq!(term(&failures, &stop).await, second, "an old failure is ignored");
        // A term that is stopped ends at once.
        let stopped = stop.clone();
        tokio::spawn(async move {
            sleep(Duration::from_secs(3)).await;
            stopped.cancel();
        });
        assert_eq!(term(&failures, &stop).await, Duration::from_secs(3));
    }
}
