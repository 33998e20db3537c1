//! Metrics of the probes of endpoints.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};

use super::{Probed, Verdict};
use crate::certificates::rotation::Endpoints;
use crate::labels::{Label, labelled};

labelled! {
    /// The result of a round.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    expiry: Expiry,
}

/// The earliest end of an endpoint's certificate. The time left is computed when metrics are scraped.
#[derive(Clone, Debug, Default)]
struct Expiry(Arc<Mutex<Option<Timestamp>>>);

impl ProbeMetrics {
    /// Creates the metrics and registers them with the prefix `pillion_controller`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("pillion_controller");
        let text = "Endpoints of the webhook by what the last round of TLS probes found: a leaf of the newest authority, of \
                    an older one, one that is trusted though nobody of ours signed it, of a stranger, one that ends soon, \
                    one that will not do, or no answer";
        registry.register("endpoints", text, metrics.endpoints.clone());
        let text = "Rounds of TLS probes of all endpoints, by outcome: passed if each serves a leaf that will do";
        registry.register("probe_rounds", text, metrics.rounds.clone());
        let text = "Rounds in a row that found every endpoint with a leaf of the newest authority";
        registry.register("probe_rounds_in_a_row", text, metrics.passed.clone());
        registry.register_collector(Box::new(metrics.expiry.clone()));
        metrics.reset();
        for outcome in RoundResult::ALL {
            drop(metrics.rounds.get_or_create_owned(&[("outcome", outcome.as_str())]));
        }
        metrics
    }

    /// Records the results of a round, and its summary.
    pub(super) fn record_round(&self, probed: &[Probed], folded: Endpoints) {
        for result in Verdict::LABELS {
            let number = probed.iter().filter(|each| each.verdict.as_str() == result).count();
            self.endpoints.get_or_create_owned(&[("result", result)]).set(i64::try_from(number).unwrap_or(i64::MAX));
        }
        self.passed.set(i64::from(folded.rounds));
        self.expiry.set(probed.iter().filter_map(|each| each.not_after).min());
        let good = |each: &Probed| matches!(each.verdict, Verdict::Newest | Verdict::Trusted);
        let passed = !probed.is_empty() && probed.iter().all(good);
        self.count_round(if passed { RoundResult::Passed } else { RoundResult::Failed });
    }

    pub(super) fn count_round(&self, outcome: RoundResult) {
        self.rounds.get_or_create_owned(&[("outcome", outcome.as_str())]).inc();
    }

    /// Resets the results when probing ends.
    pub(super) fn reset(&self) {
        for result in Verdict::LABELS {
            self.endpoints.get_or_create_owned(&[("result", result)]).set(0);
        }
        self.passed.set(0);
        self.expiry.set(None);
    }
}

impl Expiry {
    fn set(&self, time: Option<Timestamp>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = time;
    }
}

impl Collector for Expiry {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(time) = *self.0.lock().unwrap_or_else(PoisonError::into_inner) else { return Ok(()) };
        let text = "Time until the first leaf that an endpoint serves ends, negative once it has";
        let seconds = time.duration_since(Timestamp::now()).as_secs_f64();
        let family =
            encoder.encode_descriptor("endpoints_earliest_expiry", text, Some(&Unit::Seconds), MetricType::Gauge)?;
        ConstGauge::new(seconds).encode(family)
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
        assert!(!exposition(&registry).contains("earliest_expiry_seconds "), "no round was run yet");
        let probed = |verdict, days: u64| Probed {
            endpoint: Endpoint { address: "10.0.0.1".to_owned(), port: Some(1) },
            verdict,
            trusted: true,
            not_after: Some(Timestamp::now() + Duration::from_hours(24 * days)),
        };
        let all = [probed(Verdict::Newest, 7), probed(Verdict::Newest, 3), probed(Verdict::Untrusted, 9)];
        metrics.record_round(&all, Endpoints { rounds: 2, ..NO_RESULTS });
        let page = exposition(&registry);
        for line in [
            "pillion_controller_endpoints{result=\"newest\"} 2",
            "pillion_controller_endpoints{result=\"stranger\"} 1",
            "pillion_controller_endpoints{result=\"unreachable\"} 0",
            "pillion_controller_probe_rounds_total{outcome=\"failed\"} 1",
            "pillion_controller_probe_rounds_total{outcome=\"passed\"} 0",
            "pillion_controller_probe_rounds_in_a_row 2",
        ] {
            assert!(page.lines().any(|each| each == line), "{line} is not in\n{page}");
        }
        let left = page
            .lines()
            .find_map(|line| line.strip_prefix("pillion_controller_endpoints_earliest_expiry_seconds "))
            .unwrap();
        let left: f64 = left.parse().unwrap();
        assert!((left - 3.0 * 86_400.0).abs() < 60.0, "{left}");

        metrics.reset();
        assert!(exposition(&registry).contains("pillion_controller_endpoints{result=\"newest\"} 0"));
    }
}
