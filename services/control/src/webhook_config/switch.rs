//! The `ConfigMap` with which an administrator disables injection or the webhooks of a release. It has two keys.
//!
//! - `injection: disabled` is the *kill switch*. Replicas allow every object unchanged and validate nothing. `enabled`,
//!   a missing key, or a missing `ConfigMap` is normal operation.
//! - `webhooks: disabled` is the *break-glass switch*. The controller removes the webhook configurations, so that
//!   the API server calls no webhook, and keeps them removed. With `enabled` or a missing key, it keeps them in place.
//!
//! An unknown value changes nothing and is logged, so a typing error neither stops nor starts injection. An unavailable
//! API server changes nothing either.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::client::chain;
use crate::client::watch_object::{self, Observation};
use crate::leader::FIELD_MANAGER;
use crate::release::Release;
use crate::webhook_config::live::field_manager;

/// The key of the kill switch: `enabled` or `disabled`.
pub const INJECTION_KEY: &str = "injection";
/// The key of the break-glass switch: `enabled` or `disabled`.
pub const WEBHOOKS_KEY: &str = "webhooks";

/// Maximum bytes of an unknown value in messages.
const SHOWN: usize = 64;

/// Writes `webhooks: disabled` before a release is uninstalled, and creates the `ConfigMap` if it is missing. Other
/// keys are kept.
///
/// The controller's service account becomes the owner, so Kubernetes deletes the `ConfigMap` after the account is
/// deleted. By then, no controller can create the configurations again, and a later installation starts enabled.
/// Returns false if the account does not exist. The `ConfigMap` then has no owner.
///
/// # Errors
/// The API server rejected the request.
pub async fn disable(client: &Client, release: &Release) -> Result<bool, kube::Error> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), release.namespace());
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), release.namespace());
    let account = accounts.get_opt(&release.controller()).await?;
    let owners: Vec<_> = account.into_iter().filter_map(|account| account.metadata.uid).collect();
    let owners = owners.iter().map(|uid| {
        serde_json::json!({"apiVersion": "v1", "kind": "ServiceAccount", "name": release.controller(), "uid": uid})
    });
    let owners: Vec<_> = owners.collect();
    let marked = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": release.switch(), "ownerReferences": owners},
        "data": {WEBHOOKS_KEY: "disabled"},
    });
    let parameters = PatchParams::apply("pillion-uninstall").force();
    api.patch(release.switch(), &parameters, &Patch::Apply(&marked)).await?;
    Ok(!owners.is_empty())
}

/// Creates the `ConfigMap` if it is missing, so that administrators can patch and read it. Returns whether it was
/// created. An existing `ConfigMap` is not changed. Both keys get their defaults. The API server would not record the
/// writer of a key that is added to an empty `ConfigMap`.
///
/// # Errors
/// The API server rejected the request.
pub async fn ensure(client: &Client, release: &Release) -> Result<bool, kube::Error> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), release.namespace());
    let metadata = ObjectMeta { name: Some(release.switch().to_owned()), ..ObjectMeta::default() };
    let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let data = [(INJECTION_KEY, "enabled"), (WEBHOOKS_KEY, "enabled")];
    let data = Some(data.map(|(key, word)| (key.to_owned(), word.to_owned())).into());
    match api.create(&parameters, &ConfigMap { metadata, data, ..ConfigMap::default() }).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

/// The value of a key in the `ConfigMap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// Normal operation.
    On,
    /// An administrator disabled injection or the webhooks.
    Off,
    /// An unknown value.
    Unreadable(String),
}

/// A switch that is on unless an administrator turns it off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchState {
    /// Whether an administrator turned the switch off.
    pub off: bool,
}

impl SwitchState {
    /// Applies the value of a key. Returns whether the state changed; an unknown value changes nothing.
    pub(crate) fn move_to(&mut self, position: &Position) -> bool {
        let before = self.off;
        self.off = match position {
            Position::On => false,
            Position::Off => true,
            Position::Unreadable(_) => before,
        };
        self.off != before
    }
}

/// Returns the value of the kill switch, which is on if the `ConfigMap` or the key is missing.
#[must_use]
pub fn injection(config_map: Option<&ConfigMap>) -> Position {
    position(config_map, INJECTION_KEY, "enabled", "disabled")
}

/// Returns the value of the break-glass switch, which is on if the `ConfigMap` or the key is missing.
#[must_use]
pub fn webhooks(config_map: Option<&ConfigMap>) -> Position {
    position(config_map, WEBHOOKS_KEY, "enabled", "disabled")
}

/// Returns the field manager that wrote `key`. If only the controller owns the key, returns the last writer of the
/// `ConfigMap`, or `None` if that is the controller or unknown. A client chooses this name itself.
#[must_use]
pub fn author(config_map: Option<&ConfigMap>, key: &str) -> Option<String> {
    field_manager(&config_map?.metadata, &["f:data", &format!("f:{key}")])
}

fn position(config_map: Option<&ConfigMap>, key: &str, on: &str, off: &str) -> Position {
    let Some(text) = config_map.and_then(|map| map.data.as_ref()?.get(key)) else { return Position::On };
    let word = text.trim();
    if word.eq_ignore_ascii_case(on) {
        Position::On
    } else if word.eq_ignore_ascii_case(off) {
        Position::Off
    } else {
        Position::Unreadable(text.chars().take(SHOWN).collect())
    }
}

/// Called with true when injection is disabled, and with false when it is enabled again.
pub type OnChange = Arc<dyn Fn(bool) + Send + Sync>;

/// Watches the kill switch of a release.
pub struct KillSwitch {
    client: Client,
    release: Release,
    on_change: OnChange,
    known: Option<Box<dyn FnOnce() + Send>>,
    gauge: Gauge,
    state: SwitchState,
}

impl std::fmt::Debug for KillSwitch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("KillSwitch").field("release", &self.release).finish_non_exhaustive()
    }
}

/// Registers the gauge for disabled injection. It stays 0 if no switch is watched.
pub fn register(registry: &mut Registry) -> Gauge {
    let gauge = Gauge::default();
    registry.sub_registry_with_prefix("pillion").register(
        "injection_disabled",
        "1 while the kill switch disables injection in the whole cluster",
        gauge.clone(),
    );
    gauge
}

impl KillSwitch {
    /// Creates the watch of a release's switch. `on_change` is called at each change. `known` is called once, as soon
    /// as the value is known or the API server forbids reading it. Until then, a starting replica should not inject.
    pub fn new(
        client: Client,
        release: Release,
        gauge: Gauge,
        on_change: OnChange,
        known: impl FnOnce() + Send + 'static,
    ) -> Self {
        Self { client, release, on_change, known: Some(Box::new(known)), gauge, state: SwitchState::default() }
    }

    /// Watches the switch until `stop`.
    pub async fn follow(mut self, stop: CancellationToken) {
        let api = Api::<ConfigMap>::namespaced(self.client.clone(), self.release.namespace());
        let mut seen = std::pin::pin!(watch_object::watch(api, "the kill switch", self.release.switch()));
        while let Some(Some(seen)) = stop.run_until_cancelled(seen.next()).await {
            match seen {
                Observation::State(config_map) => self.take(config_map.as_deref()),
                Observation::Forbidden => {}
            }
            if let Some(known) = self.known.take() {
                known();
            }
        }
        // This task must not end before `stop`.
        stop.cancelled().await;
        self.gauge.set(0);
    }

    fn take(&mut self, config_map: Option<&ConfigMap>) {
        let position = injection(config_map);
        let by = author(config_map, INJECTION_KEY);
        let by = by.as_deref().unwrap_or("unknown");
        if let Position::Unreadable(value) = &position {
            let stays = if self.state.off { "disabled" } else { "enabled" };
            warn!(value, by, stays, "the kill switch is neither enabled nor disabled, so it keeps its state");
        }
        if !self.state.move_to(&position) {
            return;
        }
        (self.on_change)(self.state.off);
        self.gauge.set(i64::from(self.state.off));
        if self.state.off {
            warn!(by, "injection is disabled for the whole cluster: all pods are allowed unchanged");
        } else {
            info!(by, "injection is enabled again");
        }
    }
}

/// Minimum time between two attempts to create the `ConfigMap`.
const CREATE_PAUSE: Duration = Duration::from_mins(1);

/// Creates the `ConfigMap` of the kill switch if it is missing, so that administrators find it. If it is deleted, it is
/// created again, since guardrails depend on it, but at most once in [`CREATE_PAUSE`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SwitchCreator {
    /// Whether the `ConfigMap` is known to exist. An attempt to create an existing `ConfigMap` does no harm.
    is_there: bool,
    /// Time of the last attempt to create the `ConfigMap`.
    tried: Option<Instant>,
    /// Whether the last attempt failed.
    has_failed: bool,
}

impl SwitchCreator {
    /// Records whether the `ConfigMap` exists.
    pub(crate) const fn seen(&mut self, is_there: bool) {
        self.is_there = is_there;
    }

    /// Creates the `ConfigMap` if it is missing. Returns when to try again; `None` if the `ConfigMap` exists.
    pub(crate) async fn create(&mut self, client: &Client, release: &Release) -> Option<Instant> {
        let now = Instant::now();
        let due = self.due(now)?;
        if due > now {
            return Some(due);
        }
        let created = ensure(client, release).await;
        let (name, is_new) = (release.switch(), self.tried(created.is_ok(), now));
        match created {
            Ok(true) => info!(name, "the ConfigMap of the kill switch is created"),
            Err(error) if is_new => warn!(
                name,
                error = chain(&error),
                "the ConfigMap of the kill switch could not be created: to stop injection, create it by hand"
            ),
            Ok(false) | Err(_) => {}
        }
        self.due(now)
    }

    /// Returns when to create the `ConfigMap`; `None` if it exists.
    fn due(&self, now: Instant) -> Option<Instant> {
        (!self.is_there).then(|| self.tried.map_or(now, |tried| now.max(tried + CREATE_PAUSE)))
    }

    /// Records an attempt. Returns whether to log it: a failure is logged once.
    const fn tried(&mut self, is_created: bool, now: Instant) -> bool {
        let is_new = is_created || !self.has_failed;
        self.is_there = is_created;
        self.tried = Some(now);
        self.has_failed = !is_created;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn config_map(key: &str, value: &str) -> ConfigMap {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "pillion", "managedFields": [
                {"manager": "kubectl-patch", "time": "2026-11-21T03:00:00Z", "fieldsV1": {"f:data": {format!("f:{key}"): {}}}},
            ]},
            "data": {key: value},
        }))
        .unwrap()
    }

    #[test]
    fn parses_positions_and_keeps_unknown_values() {
        assert_eq!(injection(None), Position::On, "without a ConfigMap");
        assert_eq!(injection(Some(&config_map("webhooks", "disabled"))), Position::On, "without the key");
        for (text, expected) in [
            ("enabled", Position::On),
            ("disabled", Position::Off),
            (" Disabled\n", Position::Off),
            ("off", Position::Unreadable("off".to_owned())),
            ("", Position::Unreadable(String::new())),
            (&"é".repeat(99), Position::Unreadable("é".repeat(64))),
        ] {
            assert_eq!(injection(Some(&config_map("injection", text))), expected, "{text:?}");
        }
        assert_eq!(webhooks(Some(&config_map("webhooks", "disabled"))), Position::Off);
        assert_eq!(webhooks(Some(&config_map("webhooks", "enabled"))), Position::On);
        let by = author(Some(&config_map("injection", "disabled")), INJECTION_KEY);
        assert_eq!(by.as_deref(), Some("kubectl-patch"));
    }

    #[test]
    fn unknown_value_changes_nothing() {
        let mut state = SwitchState::default();
        let unreadable = Position::Unreadable("?".to_owned());
        for (position, changes, off) in [
            (&unreadable, false, false),
            (&Position::On, false, false),
            (&Position::Off, true, true),
            (&unreadable, false, true),
            (&Position::Off, false, true),
            (&Position::On, true, false),
        ] {
            assert_eq!((state.move_to(position), state.off), (changes, off), "{position:?}");
        }
    }

    #[tokio::test]
    async fn kill_switch_reports_only_changes() {
        let reported = Arc::new(Mutex::new(Vec::new()));
        let recorder = Arc::clone(&reported);
        let answer = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("nobody"))
        });
        let release = Release::new("pillion", "pillion-system", "cluster.local").unwrap();
        let on_change: OnChange = Arc::new(move |off| recorder.lock().unwrap().push(off));
        let gauge = register(&mut Registry::default());
        let mut switch = KillSwitch::new(Client::new(answer, "default"), release, gauge.clone(), on_change, || {});
        switch.take(None);
        switch.take(Some(&config_map("injection", "disabled")));
        switch.take(Some(&config_map("injection", "what")));
        assert_eq!(gauge.get(), 1);
        switch.take(None);
        assert_eq!((gauge.get(), reported.lock().unwrap().clone()), (0, vec![true, false]));
    }

    #[test]
    fn deleted_config_map_is_created_again_with_pauses() {
        let begun = Instant::now();
        let later = |seconds| begun + Duration::from_secs(seconds);
        let mut creator = SwitchCreator::default();
        assert_eq!(creator.due(begun), Some(begun), "a missing ConfigMap is created at once");
        assert!(creator.tried(true, begun));
        assert_eq!(creator.due(later(1)), None);
        creator.seen(true);
        assert_eq!(creator.due(later(100)), None);
        creator.seen(false);
        assert_eq!(creator.due(later(100)), Some(later(100)));
        assert!(creator.tried(true, later(100)));
        creator.seen(false);
        assert_eq!(creator.due(later(101)), Some(later(160)), "the next attempt waits for the pause");
        assert_eq!(creator.due(later(200)), Some(later(200)));
    }

    #[test]
    fn failed_creation_is_retried_and_logged_once() {
        let begun = Instant::now();
        let mut creator = SwitchCreator::default();
        assert!(creator.tried(false, begun));
        assert_eq!(creator.due(begun), Some(begun + CREATE_PAUSE));
        assert!(!creator.tried(false, begun + CREATE_PAUSE));
        assert!(creator.tried(true, begun + 2 * CREATE_PAUSE));
        creator.seen(false);
        assert!(creator.tried(false, begun + 3 * CREATE_PAUSE));
    }
}
