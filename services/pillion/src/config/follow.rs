//! Reloads the policy file at run time. Applies the settings that can change at run time, and reports changes of all
//! other settings. If the file is invalid, reports the problems, and the last valid policy remains active.
//!
//! The file is polled. A watch would miss changes, because the kubelet replaces a symbolic link to the file's
//! directory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use pillion_webhook::metrics::PREFIX;
use pillion_webhook::policy::Policy;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::read::{self, Overrides, PolicyFile};
use super::webhook::WebhookPolicy;
use crate::load::Problem;
use crate::output;
use crate::telemetry::Controls;

/// How often the file is read. The kubelet takes up to a minute to update a ConfigMap anyway.
pub(crate) const POLL: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// The metrics of reloads: their number by result, whether the last one succeeded, and whether a restart is needed.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    family: Family<ResultLabel, Counter>,
    good: Counter,
    failed: Counter,
    last_successful: Gauge,
    restart_needed: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let family = Family::<ResultLabel, Counter>::default();
        let of = |result| family.get_or_create_owned(&ResultLabel { result });
        let (good, failed) = (of("ok"), of("failed"));
        let (last_successful, restart_needed) = (Gauge::default(), Gauge::default());
        // The process could not have started with an invalid file.
        last_successful.set(1);
        Self { family, good, failed, last_successful, restart_needed }
    }
}

/// Registers the reload metrics. Without a policy file, they report success.
pub(crate) fn register(registry: &mut Registry, file: Option<&ConfigFile>) {
    let metrics = file.map(|file| file.metrics.clone()).unwrap_or_default();
    let registry = registry.sub_registry_with_prefix(PREFIX);
    registry.register("config_reloads", "Reloads of a changed policy file, by result", metrics.family);
    let help = "1 if the last reload of the policy file succeeded. Otherwise the last valid policy is active";
    registry.register("config_last_reload_successful", help, metrics.last_successful);
    let help = "1 if the policy file has changes that need a restart";
    registry.register("config_restart_required", help, metrics.restart_needed);
}

/// The receivers of a new policy.
#[derive(Clone, Debug)]
pub(crate) struct ReloadTargets {
    /// The policy that the webhook applies to requests.
    pub(crate) policy: Arc<ArcSwap<Policy>>,
    pub(crate) controls: Controls,
}

impl ReloadTargets {
    fn apply(&self, policy: &WebhookPolicy) -> anyhow::Result<()> {
        let decision_policy = policy.decision_policy()?;
        self.policy.store(Arc::new(decision_policy));
        self.controls.apply(&policy.logs, &policy.traces);
        Ok(())
    }
}

/// The policy file and its active content.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    file: PathBuf,
    overrides: Overrides,
    /// The policy with which the process started. Settings that need a restart keep these values.
    started: Value,
    active: Value,
    /// The content or the error of the last read.
    seen: Option<Result<String, String>>,
    targets: ReloadTargets,
    metrics: Metrics,
}

impl ConfigFile {
    /// Creates the reloader for the policy file with which the process was started.
    pub(crate) fn new(file: PathBuf, overrides: Overrides, started: &WebhookPolicy, targets: ReloadTargets) -> Self {
        let started = started.to_value();
        let active = started.clone();
        Self { file, overrides, started, active, seen: None, targets, metrics: Metrics::default() }
    }

    /// Polls the file until `stop` is cancelled.
    pub(crate) async fn follow(mut self, every: Duration, stop: CancellationToken) {
        let mut ticks = Ticks::new(every, stop);
        while ticks.next().await {
            // The file is small, so it is read on this worker thread.
            tokio::task::block_in_place(|| self.check_for_changes());
        }
    }

    fn check_for_changes(&mut self) {
        let text = read::text_of(&self.file);
        let seen = text.clone().map_err(|problem| problem.to_string());
        // A problem is reported only once while the file does not change.
        let before = self.seen.replace(seen.clone());
        if before.as_ref() == Some(&seen) {
            return;
        }
        let is_first = before.is_none();
        match text
            .map_err(|problem| vec![problem])
            .and_then(|text| read::from_text::<WebhookPolicy>(&self.file, &text, &self.overrides))
        {
            // The first read usually finds the file unchanged since the start.
            Ok(policy) if is_first && policy.to_value() == self.active => {}
            Ok(policy) => self.take(&policy),
            Err(problems) => self.refuse(&problems),
        }
    }

    fn refuse(&self, problems: &[Problem]) {
        self.metrics.failed.inc();
        self.metrics.last_successful.set(0);
        error!("the policy file is invalid, the last valid one remains active: {}", read::lines(problems));
    }

    fn take(&mut self, policy: &WebhookPolicy) {
        if let Err(error) = self.targets.apply(policy) {
            let problem = Problem::whole(self.file.display().to_string(), output::causes(&error));
            return self.refuse(&[problem]);
        }
        self.metrics.good.inc();
        self.metrics.last_successful.set(1);
        let tree = policy.to_value();
        let applied = changed(&self.active, &tree, true);
        let waiting = changed(&self.started, &tree, false);
        info!(file = %self.file.display(), changed = applied, "the policy file was reloaded");
        if !waiting.is_empty() {
            warn!(settings = waiting, "some changes of the policy file take effect only after a restart");
        }
        self.metrics.restart_needed.set(i64::from(!waiting.is_empty()));
        self.active = tree;
    }
}

/// Returns the keys that differ between two policies, separated by commas. With `is_reloaded`, returns only keys that
/// can change at run time, and otherwise only keys that need a restart.
fn changed(before: &Value, after: &Value, is_reloaded: bool) -> String {
    let settings = WebhookPolicy::settings().iter().filter(|setting| setting.is_reloaded == is_reloaded);
    let changed = settings.filter(|setting| setting.value(before) != setting.value(after));
    changed.map(|setting| setting.path.as_str()).collect::<Vec<_>>().join(", ")
}

/// A timer for polling files until the process stops.
#[derive(Debug)]
pub(crate) struct Ticks {
    interval: Interval,
    stop: CancellationToken,
}

impl Ticks {
    /// Creates a timer whose first tick is immediate. A handler that takes longer than `every` delays the next tick;
    /// missed ticks are skipped.
    pub(crate) fn new(every: Duration, stop: CancellationToken) -> Self {
        let mut interval = interval(every);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { interval, stop }
    }

    /// Waits for the next tick. Returns `false` once stopped.
    pub(crate) async fn next(&mut self) -> bool {
        self.stop.run_until_cancelled(self.interval.tick()).await.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ticks_end_when_stopped() {
        let stop = CancellationToken::new();
        let mut ticks = Ticks::new(Duration::from_secs(10), stop.clone());
        let began = tokio::time::Instant::now();
        assert!(ticks.next().await);
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(ticks.next().await);
        assert_eq!(began.elapsed(), Duration::from_secs(10));
        // The handler of this tick takes 25 s. The next tick is immediate, and missed ticks are skipped.
        tokio::time::sleep(Duration::from_secs(25)).await;
        assert!(ticks.next().await);
        assert!(ticks.next().await);
        assert_eq!(began.elapsed(), Duration::from_secs(45));
        stop.cancel();
        assert!(!ticks.next().await);
    }
}
