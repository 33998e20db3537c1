//! The webhook configurations of a release: desired state, observed state, drift, and the task that corrects it.
//!
//! The controller owns both configurations as a whole: anything else in their entries is drift and is removed. So it
//! *replaces* the objects that it read, if they still have the same `resourceVersion`. Server-side apply would keep
//! entries, conditions and fields of other clients. Labels and annotations of other clients are kept.
//!
//! The annotation `EPOCH_ANNOTATION` has the *epoch* of the rotation's record for which a configuration was written. A
//! write never lowers the epoch, except a forged one: a writer with an older record is outdated.
//!
//! - [`live`]: the observed state, also for the rotation.
//! - [`switch`]: the `ConfigMap` with the kill switch, and its creation.
//! - [`desired`]: the desired state, from settings, rules and bundle; and the differences from the observed state.
//! - [`write`](mod@write): claims, writes and removes configurations.
//! - `pacing`: slows down corrections if another client overwrites them again and again.
//! - [`keeper`]: the task that corrects drift.

pub mod desired;
pub mod keeper;
pub mod live;
mod pacing;
pub mod switch;
pub mod write;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::labels::LabelPair;

pub(crate) use crate::certificates::ca::EPOCH_ANNOTATION;
pub use desired::{Drift, DriftKind, MAXIMUM_OWN_CALLS, Rules, Target, settings_of};
pub use keeper::{Confirm, Keeper};
pub use live::{ConfigurationKind, Live, entry_manager};
pub use pacing::Settings;
pub use write::{WriteError, claim, observe, remove, write};

/// The annotation with the time of the last write of the entries, by the writer's clock.
pub(crate) const WRITTEN_ANNOTATION: &str = "pillion.dev/ca-written";
/// The annotation with the owning release, as NAMESPACE/NAME. Other releases do not write the object.
pub(crate) const RELEASE_ANNOTATION: &str = "pillion.dev/release";
/// The label with the managing component, for users and tools.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "pillion-controller");

/// The metrics of the webhook configurations. Clones share the values.
#[derive(Clone, Debug)]
pub struct Metrics {
    repairs: Family<LabelPair, Counter>,
    pub(super) drifted: Gauge,
    pub(super) contested: Gauge,
    pub(super) disabled: Gauge,
}

impl Metrics {
    /// Creates the metrics and registers them. All series exist from the start.
    pub fn register(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("pillion_controller_configuration");
        let repairs = Family::<LabelPair, Counter>::default();
        registry.register(
            "repairs",
            "Drift of the webhook configurations that was corrected, by configuration and reason",
            repairs.clone(),
        );
        for which in ConfigurationKind::ALL {
            for kind in DriftKind::ALL {
                drop(repairs.get_or_create(&[("configuration", which.as_str()), ("reason", kind.as_str())]));
            }
        }
        let mut gauge = |name, help| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let drifted = gauge("drifted", "1 while a webhook configuration has drifted");
        let contested = gauge(
            "contested",
            "1 after more than five corrections within ten minutes: another client keeps changing the configurations",
        );
        let disabled =
            gauge("disabled", "1 while an administrator has removed the webhook configurations. No pod is injected");
        Self { repairs, drifted, contested, disabled }
    }

    /// Sets the gauges to 0 when leadership ends.
    pub fn reset(&self) {
        for gauge in [&self.drifted, &self.contested, &self.disabled] {
            gauge.set(0);
        }
    }

    pub(super) fn repaired(&self, drifts: &[Drift]) {
        for Drift { configuration, kind, .. } in drifts {
            self.repairs.get_or_create(&[("configuration", configuration.as_str()), ("reason", kind.as_str())]).inc();
        }
    }
}
