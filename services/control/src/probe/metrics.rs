//! Metrics of the probes of endpoints.

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::{Probed, Verdict};
use crate::certificates::rotation::ProbeSummary;
use crate::labels::Label;

pillion_api::labelled! {
    /// The result of a round.
    pub enum RoundResult {
        /// Every endpoint serves a valid certificate of the newest CA, or of another trusted issuer.
        Passed => "passed",
        /// Some endpoint serves another certificate or none, or there is no endpoint.
        Failed => "failed",
        /// The endpoints could not be listed.
        Error => "error",
    }
}

/// Gauges and counters of probes. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ProbeMetrics {
    endpoints: Family<Label, Gauge>,
    rounds: Family<Label, Counter>,
    passed: Gauge,
    /// When the first of the served certificates expires, as Unix time; 0 if unknown.
    not_after: Gauge,
}

impl ProbeMetrics {
    /// Creates the metrics and registers them with the prefix `pillion_controller`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("pillion_controller");
        let text = "Endpoints of the webhook, by the state of their certificate in the last round of probes";
        registry.register("endpoints", text, metrics.endpoints.clone());
        let text =
            "Rounds of probes of all endpoints, by result. A round passes if every certificate is valid and trusted";
        registry.register("probe_rounds", text, metrics.rounds.clone());
        let text = "Latest consecutive rounds in which every endpoint served a certificate of the newest CA";
        registry.register("probe_consecutive_passes", text, metrics.passed.clone());
        let text = "Earliest end of a certificate that an endpoint serves, as Unix time; 0 if unknown";
        let name = "endpoint_certificate_not_after_timestamp";
        registry.register_with_unit(name, text, Unit::Seconds, metrics.not_after.clone());
        metrics.reset();
        for result in RoundResult::ALL {
            drop(metrics.rounds.get_or_create_owned(&[("result", result.as_str())]));
        }
        metrics
    }

    /// Records the results of a round, and its summary.
    pub(super) fn record_round(&self, probed: &[Probed], summary: ProbeSummary) {
        for state in Verdict::LABELS {
            let number = probed.iter().filter(|each| each.verdict.as_str() == state).count();
            self.endpoints.get_or_create_owned(&[("state", state)]).set(i64::try_from(number).unwrap_or(i64::MAX));
        }
        self.passed.set(i64::from(summary.rounds));
        self.not_after.set(probed.iter().filter_map(|each| each.not_after).min().map_or(0, Timestamp::as_second));
        let good = |each: &Probed| matches!(each.verdict, Verdict::Newest | Verdict::Trusted);
        let passed = !probed.is_empty() && probed.iter().all(good);
        self.count_round(if passed { RoundResult::Passed } else { RoundResult::Failed });
    }

    pub(super) fn count_round(&self, result: RoundResult) {
        self.rounds.get_or_create_owned(&[("result", result.as_str())]).inc();
    }

    /// Resets the results when probing ends.
    pub(super) fn reset(&self) {
        for state in Verdict::LABELS {
            self.endpoints.get_or_create_owned(&[("state", state)]).set(0);
        }
        self.passed.set(0);
        self.not_after.set(0);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Endpoint, NO_RESULTS};
    use super::*;
    use crate::labels::exposition;

    #[test]
    fn endpoints_are_counted_with_earliest_expiry() {
        let mut registry = Registry::default();
        let metrics = ProbeMetrics::register(&mut registry);
        let not_after = || {
            let page = exposition(&registry);
            let name = "pillion_controller_endpoint_certificate_not_after_timestamp_seconds ";
            page.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse::<i64>().unwrap()
        };
        assert_eq!(not_after(), 0, "no round was run yet");
        let probed = |verdict, days: u64| Probed {
            endpoint: Endpoint { address: "10.0.0.1".to_owned(), port: Some(1) },
            verdict,
            trusted: true,
            not_after: Some(Timestamp::now() + Duration::from_hours(24 * days)),
        };
        let all = [probed(Verdict::Newest, 7), probed(Verdict::Newest, 3), probed(Verdict::Untrusted, 9)];
        metrics.record_round(&all, ProbeSummary { rounds: 2, ..NO_RESULTS });
        let page = exposition(&registry);
        for line in [
            "pillion_controller_endpoints{state=\"newest\"} 2",
            "pillion_controller_endpoints{state=\"untrusted\"} 1",
            "pillion_controller_endpoints{state=\"unreachable\"} 0",
            "pillion_controller_probe_rounds_total{result=\"failed\"} 1",
            "pillion_controller_probe_rounds_total{result=\"passed\"} 0",
            "pillion_controller_probe_consecutive_passes 2",
        ] {
            assert!(page.lines().any(|each| each == line), "{line} is not in\n{page}");
        }
        let left = not_after() - Timestamp::now().as_second();
        assert!((left - 3 * 86_400).abs() < 60, "{left}");

        metrics.reset();
        assert!(exposition(&registry).contains("pillion_controller_endpoints{state=\"newest\"} 0"));
    }
}
