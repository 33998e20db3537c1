//! Metrics of the trust probe.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::answer::Outcome;
use crate::certificates::rotation::Propagation;

/// Gauges and counters of the trust probe. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct CanaryMetrics {
    servers: Family<ResultLabel, Gauge>,
    asked: Family<ResultLabel, Counter>,
    calls: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

impl CanaryMetrics {
    /// Creates the metrics and registers them with the prefix `pillion_controller`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("pillion_controller");
        let text = "API servers by what the last round of canaries found: proven to trust the newest authority, known not \
                    to, or silent. They are asked while the bundle changes";
        registry.register("propagation_api_servers", text, metrics.servers.clone());
        let text = "Canaries that API servers were asked for, by result";
        registry.register("canary_requests", text, metrics.asked.clone());
        let text = "Calls of the canary by API servers that were answered";
        registry.register("canary_calls", text, metrics.calls.clone());
        for result in Outcome::LABELS {
            drop(metrics.servers.get_or_create_owned(&ResultLabel { result }));
            drop(metrics.asked.get_or_create_owned(&ResultLabel { result }));
        }
        metrics
    }

    /// Number of answered calls.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.get()
    }

    pub(super) fn called(&self) {
        self.calls.inc();
    }

    pub(super) fn asked(&self, outcome: &Outcome) {
        self.asked.get_or_create_owned(&ResultLabel { result: outcome.as_str() }).inc();
    }

    pub(super) fn found(&self, found: Propagation) {
        let Propagation { proven, behind, silent } = found;
        for (result, number) in Outcome::LABELS.into_iter().zip([proven, behind, silent]) {
            let number = i64::try_from(number).unwrap_or(i64::MAX);
            self.servers.get_or_create_owned(&ResultLabel { result }).set(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_series_are_there_from_the_beginning() {
        let mut registry = Registry::default();
        let metrics = CanaryMetrics::register(&mut registry);
        metrics.called();
        metrics.asked(&Outcome::Behind);
        metrics.found(Propagation { proven: 1, behind: 2, silent: 3 });
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "pillion_controller_propagation_api_servers{result=\"proven\"} 1",
            "pillion_controller_propagation_api_servers{result=\"behind\"} 2",
            "pillion_controller_propagation_api_servers{result=\"silent\"} 3",
            "pillion_controller_canary_requests_total{result=\"behind\"} 1",
            "pillion_controller_canary_requests_total{result=\"proven\"} 0",
            "pillion_controller_canary_calls_total 1",
        ] {
            assert!(text.lines().any(|each| each == line), "{line} is not in\n{text}");
        }
    }
}
