//! The task that keeps the configurations in their desired state.
//!
//! It watches both configurations and the `ConfigMap` of the switch by name, so it corrects most changes within
//! milliseconds. It creates a missing `ConfigMap`. It receives the desired state, and makes no decisions about the CA.
//! It never overwrites a later epoch with an earlier one. It fills an empty configuration only if [`Confirm`] returns
//! true: if no replica served a certificate that the entries trust, API servers would reject pods.
//!
//! It is not a kube-rs `Controller`, for two reasons. Three objects form one state, and all three must be known before
//! a write. And the pauses depend on the client that made the change.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use tokio::sync::watch;
use tracing::{debug, error, info, warn};

use super::Metrics;
use super::desired::{Drift, DriftKind, Target, differences, owner};
use super::live::{Live, epoch};
use super::pacing::{Pacing, Settings};
use super::write::{WriteError, claim, remove, write};
use crate::client::chain;
use crate::client::watch_object::{self, Observation};
use crate::leader::LeaderContext;
use crate::release::Release;
use crate::webhook_config::switch::{self, Position, SwitchCreator, SwitchState, WEBHOOKS_KEY};

/// Returns whether the entries of a target with this epoch may be added to an empty configuration: the target is still
/// required, and an endpoint serves a certificate that it trusts. A caller that cannot find out returns false.
pub type Confirm = Arc<dyn Fn(u64) -> BoxFuture<'static, bool> + Send + Sync>;

/// Timeout of a confirmation.
const CONFIRM_LIMIT: Duration = Duration::from_secs(5);
/// Pause after a target was not confirmed.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// The pause after the first failed write. It doubles with each further failure.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause after a failed write.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// Keeps the configurations of a release in their desired state.
#[must_use = "nothing is kept until it is run"]
pub struct Keeper {
    settings: Settings,
    metrics: Metrics,
    target: watch::Receiver<Option<Arc<Target>>>,
    confirm: Confirm,
    live: watch::Sender<Option<Live>>,
}

impl fmt::Debug for Keeper {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Keeper").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// An event of a watch.
enum Update {
    Mutating(Observation<MutatingWebhookConfiguration>),
    Validating(Observation<ValidatingWebhookConfiguration>),
    Switch(Observation<ConfigMap>),
}

/// The next action.
#[derive(Debug, PartialEq)]
enum Plan {
    Idle,
    /// The configurations exist and must be removed.
    Remove,
    /// The configurations differ from the desired state.
    Repair(Vec<Drift>),
    /// The configurations were written for a later epoch.
    Behind(u64),
    /// The configurations belong to another release.
    OtherRelease(String),
}

/// The resource versions of both configurations.
type Versions = [Option<String>; 2];

struct KeeperState {
    keeper: Keeper,
    leading: LeaderContext,
    live: Live,
    switch: SwitchState,
    /// Whether a watch has reported the state of the mutating configuration, the validating one, and the `ConfigMap`.
    /// The `ConfigMap` also counts as reported if the controller may not read it.
    seen: [bool; 3],
    pacing: Pacing,
    creator: SwitchCreator,
    /// The versions that last matched the target. If the objects still have these versions but differ from the target,
    /// then the target has changed.
    matching: Option<Versions>,
    /// Start of the current drift.
    since: Option<Instant>,
    failures: u32,
    /// The last log line, so that it is not repeated.
    logged: Option<String>,
}

impl Keeper {
    /// Creates the task and a receiver of the observed state, whose changes wake the rotation. While `target` has no
    /// value, the task only removes configurations that an administrator disabled.
    pub fn new(
        settings: Settings,
        metrics: Metrics,
        target: watch::Receiver<Option<Arc<Target>>>,
        confirm: Confirm,
    ) -> (Self, watch::Receiver<Option<Live>>) {
        let (live, seen) = watch::channel(None);
        (Self { settings, metrics, target, confirm, live }, seen)
    }

    /// Reconciles until leadership ends.
    pub async fn run(self, leading: LeaderContext) {
        let stop = leading.stop.clone();
        let metrics = self.metrics.clone();
        let pacing = Pacing::new(self.settings.clone());
        let state = KeeperState {
            keeper: self,
            leading,
            live: Live::default(),
            switch: SwitchState::default(),
            seen: [false; 3],
            pacing,
            creator: SwitchCreator::default(),
            matching: None,
            since: None,
            failures: 0,
            logged: None,
        };
        // The version that was read is a precondition of every write, so the task can be interrupted at any time.
        stop.run_until_cancelled(state.run()).await;
        for gauge in [&metrics.drifted, &metrics.contested, &metrics.disabled] {
            gauge.set(0);
        }
    }
}

impl KeeperState {
    async fn run(mut self) {
        let mut updates = self.updates();
        let mut target = self.keeper.target.clone();
        loop {
            let due = self.act().await;
            let due = [due, self.create_switch().await].into_iter().flatten().min();
            let sleep = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            let changed = async {
                if target.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                biased;
                update = updates.next() => match update {
                    Some(update) => self.apply_update(update),
                    // This is a bug in Pillion. Leadership continues, but changes are no longer detected.
                    None => return error!("the watches of the webhook configurations ended without a shutdown"),
                },
                () = changed => {}
                () = sleep => {}
            }
        }
    }

    fn checks_connectivity(&self) -> bool {
        self.keeper.target.borrow().as_ref().is_some_and(|target| target.settings.checks_connectivity)
    }

    fn updates(&self) -> BoxStream<'static, Update> {
        let LeaderContext { client, release, .. } = &self.leading;
        let (client, name) = (|| client.clone(), release.configuration());
        let switches = Api::namespaced(client(), release.namespace());
        stream::select_all([
            watch_object::watch(Api::all(client()), "the mutating configuration", name).map(Update::Mutating).boxed(),
            watch_object::watch(Api::all(client()), "the validating configuration", name)
                .map(Update::Validating)
                .boxed(),
            watch_object::watch(switches, "the ConfigMap of the break-glass", release.switch())
                .map(Update::Switch)
                .boxed(),
        ])
        .boxed()
    }

    fn apply_update(&mut self, update: Update) {
        let object = match update {
            Update::Mutating(Observation::State(existing)) => {
                self.live.mutating = existing.map(|existing| *existing);
                0
            }
            Update::Validating(Observation::State(existing)) => {
                self.live.validating = existing.map(|existing| *existing);
                1
            }
            Update::Switch(Observation::State(existing)) => {
                self.creator.seen(existing.is_some());
                self.apply_switch(existing.as_deref());
                2
            }
            // If the controller may not read the switch, it does not wait for the switch's state.
            Update::Switch(Observation::Forbidden) => 2,
            Update::Mutating(Observation::Forbidden) | Update::Validating(Observation::Forbidden) => return,
        };
        if let Some(seen) = self.seen.get_mut(object) {
            *seen = true;
        }
        self.send_live();
    }

    /// Creates the `ConfigMap` of the switch if it is missing. Returns when to try again; `None` if no attempt is due
    /// before the next change.
    async fn create_switch(&mut self) -> Option<Instant> {
        // Create the `ConfigMap` only after the final webhook configuration was written. While the `ConfigMap` exists,
        // a guardrail rejects pods without a decision. Before the connectivity check has ended, pods may have no
        // decision, because the API server calls no webhook, or ignores failed calls. When an administrator enables the
        // webhooks again, the `ConfigMap` already exists, so the guardrail is active at once. docs/break-glass.md gives
        // the order of the steps.
        if self.matching.is_none() || self.checks_connectivity() {
            return None;
        }
        let LeaderContext { client, release, .. } = &self.leading;
        self.creator.create(client, release).await
    }

    fn apply_switch(&mut self, config_map: Option<&ConfigMap>) {
        let position = switch::webhooks(config_map);
        let by = switch::author(config_map, WEBHOOKS_KEY);
        let by = by.as_deref().unwrap_or("unknown");
        if let Position::Unreadable(value) = &position {
            let stays = if self.switch.off { "disabled" } else { "enabled" };
            warn!(value, by, stays, "the break-glass switch is neither enabled nor disabled, so it keeps its state");
        }
        if self.switch.move_to(&position) {
            if self.switch.off {
                warn!(by, "the webhook configurations are disabled: they are removed, and no pod is injected");
            } else {
                info!(by, "the webhook configurations are enabled again");
            }
        }
        self.live.disabled = self.switch.off;
        self.keeper.metrics.disabled.set(i64::from(self.switch.off));
    }

    /// Sends the observed state to the rotation if it has changed. Does nothing until all three objects are known.
    fn send_live(&self) {
        if self.seen == [true; 3] {
            let live = &self.live;
            self.keeper.live.send_if_modified(|sent| {
                let changed = sent.as_ref() != Some(live);
                if changed {
                    *sent = Some(live.clone());
                }
                changed
            });
        }
    }

    /// Executes the next actions. Returns when to act again if nothing changes.
    async fn act(&mut self) -> Option<Instant> {
        // Each round makes one change, and the next round compares again.
        for _ in 0..4 {
            if self.seen != [true; 3] {
                return None;
            }
            match self.step().await {
                Next::Repeat => {}
                Next::At(due) => return Some(due),
                Next::Idle => break,
            }
        }
        let now = Instant::now();
        let contested = self.pacing.is_contested(now);
        self.keeper.metrics.contested.set(i64::from(contested));
        contested.then(|| now + self.keeper.settings.window / 10)
    }

    async fn step(&mut self) -> Next {
        let target = self.keeper.target.borrow().clone();
        let plan = plan(&self.leading.release, &self.live, target.as_deref(), Timestamp::now());
        self.keeper.metrics.drifted.set(i64::from(matches!(plan, Plan::Repair(_))));
        match (plan, target) {
            (Plan::Remove, _) => return self.remove().await,
            (Plan::Repair(drifts), Some(target)) => return self.repair(drifts, &target).await,
            (Plan::OtherRelease(other), _) => {
                let line = format!("the webhook configuration belongs to release {other}, and is not changed");
                self.log_once(line);
            }
            (Plan::Behind(live), target) => {
                let ours = target.map(|target| target.epoch);
                debug!(live, ours, "the webhook configuration was written for a later epoch");
            }
            (Plan::Idle, Some(_)) if !self.live.disabled => {
                self.matching = Some(versions(&self.live));
                self.logged = None;
            }
            (Plan::Idle | Plan::Repair(_), _) => {}
        }
        self.since = None;
        Next::Idle
    }

    async fn repair(&mut self, drifts: Vec<Drift>, target: &Target) -> Next {
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        let is_update = self.matching.as_ref() == Some(&versions(&self.live));
        let writer = drifts.iter().find_map(|drift| drift.manager.clone()).unwrap_or_else(|| "unknown".to_owned());
        let due = self.pacing.due(&writer, now);
        if !is_update && due > now {
            let pause = due.duration_since(now);
            let line =
                format!("{writer} keeps changing the webhook configurations: from now on, corrections are delayed");
            if self.logged.as_ref() != Some(&line) {
                warn!(manager = writer, ?pause, drift = %Drifts(&drifts), "{line}");
                self.logged = Some(line);
            }
            return Next::At(due);
        }
        match self.write(target).await {
            Ok(None) => Next::At(now + ASK_AGAIN),
            Ok(Some(live)) => {
                self.live = live;
                self.failures = 0;
                self.since = None;
                // Only the next comparison shows whether the configurations match: the API server may store something
                // other than what was written.
                self.matching = None;
                self.send_live();
                if is_update {
                    info!(epoch = target.epoch, changes = %Drifts(&drifts), "the webhook configurations were written");
                } else {
                    self.pacing.repaired(&writer, now);
                    self.keeper.metrics.repaired(&drifts);
                    let (release, after) = (&self.leading.release, since.elapsed());
                    let is_missing = drifts.iter().any(|drift| drift.kind == DriftKind::Missing);
                    let help = is_missing.then(|| disable_command(release));
                    warn!(manager = writer, drift = %Drifts(&drifts), epoch = target.epoch, ?after, help, "the webhook configurations were changed, and are corrected");
                }
                Next::Repeat
            }
            Err(error) => self.schedule_retry(&error),
        }
    }

    /// Writes the desired state. Returns `None` if the target was not confirmed.
    async fn write(&mut self, target: &Target) -> Result<Option<Live>, WriteError> {
        let LeaderContext { client, release, .. } = &self.leading;
        let entries = |existing: &MutatingWebhookConfiguration| existing.webhooks.iter().flatten().next().is_some();
        if self.live.mutating.as_ref().is_some_and(entries) {
            return write(client, release, &self.live, target).await.map(Some);
        }
        // Claim the configuration before the confirmation, so that outdated leaders get a conflict. No webhook is
        // called yet.
        let is_ours = self.live.mutating.as_ref().is_some_and(|existing| epoch(&existing.metadata) == target.epoch);
        if !is_ours {
            self.live = claim(client, release, &self.live, target.epoch).await?;
        }
        let confirmed = tokio::time::timeout(CONFIRM_LIMIT, (self.keeper.confirm)(target.epoch)).await;
        if confirmed.unwrap_or(false) { write(client, release, &self.live, target).await.map(Some) } else { Ok(None) }
    }

    async fn remove(&mut self) -> Next {
        let now = Instant::now();
        let writer = "disabled";
        let due = self.pacing.due(writer, now);
        if due > now {
            return Next::At(due);
        }
        match remove(&self.leading.client, &self.leading.release).await {
            Ok(_) => {
                self.pacing.repaired(writer, now);
                self.live = Live { mutating: None, validating: None, ..self.live.clone() };
                self.matching = None;
                self.failures = 0;
                self.send_live();
                warn!("the webhook configurations are removed: no pod is injected until they are enabled again");
                Next::Idle
            }
            Err(error) => self.schedule_retry(&WriteError::Client(error)),
        }
    }

    /// Logs a failed write. Returns when to retry, or `Idle` if a retry cannot succeed.
    fn schedule_retry(&mut self, error: &WriteError) -> Next {
        if let WriteError::OtherRelease(_) | WriteError::NoCa = error {
            self.log_once(chain(error));
            return Next::Idle;
        }
        self.failures = self.failures.saturating_add(1);
        let factor = 1_u32.checked_shl(self.failures - 1).unwrap_or(u32::MAX);
        let pause = FIRST_PAUSE.saturating_mul(factor).min(LONGEST_PAUSE);
        match error {
            WriteError::Client(error) => {
                warn!(error = chain(error), ?pause, "the webhook configurations could not be written; trying again");
            }
            error => debug!(%error, "the webhook configurations were not written"),
        }
        Next::At(Instant::now() + pause)
    }

    fn log_once(&mut self, line: String) {
        if self.logged.as_ref() != Some(&line) {
            error!("{line}");
            self.logged = Some(line);
        }
    }
}

enum Next {
    Repeat,
    At(Instant),
    Idle,
}

fn plan(release: &Release, live: &Live, target: Option<&Target>, now: Timestamp) -> Plan {
    if let Some(other) = live.other_owner(&owner(release)) {
        return Plan::OtherRelease(other);
    }
    if live.disabled {
        return if live.views().next().is_some() { Plan::Remove } else { Plan::Idle };
    }
    let Some(target) = target else { return Plan::Idle };
    match live.epoch() {
        Some(live) if live > target.epoch => Plan::Behind(live),
        _ => {
            let drifts = differences(live, &target.desired(release, now), now);
            if drifts.is_empty() { Plan::Idle } else { Plan::Repair(drifts) }
        }
    }
}

fn versions(live: &Live) -> Versions {
    let mutating = live.mutating.as_ref().and_then(|existing| existing.metadata.resource_version.clone());
    let validating = live.validating.as_ref().and_then(|existing| existing.metadata.resource_version.clone());
    [mutating, validating]
}

/// Returns the command that keeps the configurations removed. It helps an administrator who deleted a configuration on
/// purpose, and sees that the controller creates it again.
fn disable_command(release: &Release) -> String {
    let (namespace, name) = (release.namespace(), release.switch());
    format!(
        "to keep it removed: kubectl -n {namespace} patch configmap {name} --type merge -p '{{\"data\":{{\"{WEBHOOKS_KEY}\":\"disabled\"}}}}'"
    )
}

/// Formats at most 16 differences for one log line.
struct Drifts<'d>(&'d [Drift]);

impl fmt::Display for Drifts<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, drift) in self.0.iter().enumerate().take(16) {
            let space = if index > 0 { " " } else { "" };
            write!(formatter, "{space}{}:{drift}", drift.configuration.as_str())?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
