//! Metrics of the configurations: kinds of drift, number of repairs, and whether another writer keeps changing them.
//! Only the log names that writer.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::drift::{Drift, DriftKind};
use super::live::ConfigurationKind;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    configuration: &'static str,
    drift: &'static str,
}

/// The metrics of the webhook configurations. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    repairs: Family<Labels, Counter>,
    pub(super) drifted: Gauge,
    pub(super) contested: Gauge,
    pub(super) disarmed: Gauge,
}

impl Metrics {
    /// Creates the metrics and registers them, with all series.
    pub fn register(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("pillion_controller_configuration");
        let repairs = Family::<Labels, Counter>::default();
        registry.register(
            "repairs",
            "Differences that were undone in the webhook configurations, by what was different",
            repairs.clone(),
        );
        for which in ConfigurationKind::ALL {
            for kind in DriftKind::ALL {
                drop(repairs.get_or_create(&Labels { configuration: which.as_str(), drift: kind.as_str() }));
            }
        }
        let mut gauge = |name, help| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let drifted = gauge("drifted", "1 while a webhook configuration is not as it ought to be");
        let contested = gauge(
            "contested",
            "1 while there were more than five repairs of the webhook configurations in ten minutes: somebody does not give up",
        );
        let disarmed = gauge("disarmed", "1 while a person keeps the webhook configurations away: nobody is injected");
        Self { repairs, drifted, contested, disarmed }
    }

    pub(super) fn repaired(&self, drifts: &[Drift]) {
        for Drift { which, kind, .. } in drifts {
            self.repairs.get_or_create(&Labels { configuration: which.as_str(), drift: kind.as_str() }).inc();
        }
    }
}
