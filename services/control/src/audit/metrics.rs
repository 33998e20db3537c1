//! Exposes the last report as metrics. All labels have fixed sets of values, except the namespace. The number of
//! namespaces with series is limited, and is zero by default.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::cause::{Cause, State};
use super::report::{Report, Standings};

/// The last report, and the number of requests for pods. Published as metrics.
#[derive(Clone, Debug, Default)]
pub struct AuditMetrics(Arc<MetricsState>);

#[derive(Debug, Default)]
struct MetricsState {
    report: ArcSwap<Report>,
    max_namespaces: usize,
    /// Number of successful requests for pods, and number of failed ones.
    requests: [AtomicU64; 2],
}

/// Writes the metrics when the registry is scraped.
#[derive(Debug)]
struct AuditCollector(AuditMetrics);

impl AuditMetrics {
    /// Registers the metrics. At most `max_namespaces` namespaces have series of their own: those with the most
    /// findings. All others are counted together as `_other`.
    #[must_use]
    pub fn register(registry: &mut Registry, max_namespaces: usize) -> Self {
        let metrics = Self(Arc::new(MetricsState { max_namespaces, ..MetricsState::default() }));
        registry
            .sub_registry_with_prefix("pillion_controller")
            .register_collector(Box::new(AuditCollector(metrics.clone())));
        metrics
    }

    pub(super) fn publish(&self, report: Arc<Report>) {
        self.0.report.store(report);
    }

    pub(super) fn requested(&self, is_answered: bool) {
        let [answered, failed] = &self.0.requests;
        let count = if is_answered { answered } else { failed };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

fn standings(pods: &Standings) -> [(&'static str, u64); 8] {
    let Standings { missing, outdated, surplus, pending, undecided, injected, opted_out, not_asked } = *pods;
    [
        ("missing", missing),
        ("outdated", outdated),
        ("surplus", surplus),
        ("pending", pending),
        ("undecided", undecided),
        ("injected", injected),
        ("opted_out", opted_out),
        ("not_asked", not_asked),
    ]
}

fn gauge(count: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX))
}

impl Collector for AuditCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let MetricsState { report, max_namespaces, requests } = &*self.0.0;
        let report = report.load();
        let help = "Whether the audit has seen all pods of opted-in namespaces, and none waits to be looked at";
        let metric = encoder.encode_descriptor("audit_complete", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::from(report.is_complete)).encode(metric)?;

        let help = "Pods of opted-in namespaces, by what the audit found of them";
        let mut metric = encoder.encode_descriptor("audit_pods", help, None, MetricType::Gauge)?;
        for (state, count) in standings(&report.pods) {
            gauge(count).encode(metric.encode_family(&[("state", state)])?)?;
        }

        let help = "Pods and profiles that do not agree, by what is wrong and why";
        let mut metric = encoder.encode_descriptor("audit_findings", help, None, MetricType::Gauge)?;
        for state in State::ALL {
            for cause in Cause::ALL {
                let labels = [("state", state.as_str()), ("cause", cause.as_str())];
                gauge(report.count(state, cause)).encode(metric.encode_family(&labels)?)?;
            }
        }

        let help = "Requests of the audit for whole pods, by how they ended";
        let mut metric = encoder.encode_descriptor("audit_requests", help, None, MetricType::Counter)?;
        for (result, count) in ["answered", "failed"].into_iter().zip(requests) {
            let count = prometheus_client::metrics::counter::ConstCounter::new(count.load(Ordering::Relaxed));
            count.encode(metric.encode_family(&[("result", result)])?)?;
        }

        if *max_namespaces > 0 {
            let help = "Pods with a finding of the audit, by namespace";
            let mut metric = encoder.encode_descriptor("audit_namespace_pods", help, None, MetricType::Gauge)?;
            for (namespace, count) in largest(&report, *max_namespaces) {
                gauge(count).encode(metric.encode_family(&[("namespace", namespace)])?)?;
            }
        }
        Ok(())
    }
}

/// Returns the `max` namespaces with the most findings, with their counts. Adds the sum of all other namespaces as
/// `_other`.
fn largest(report: &Report, max: usize) -> Vec<(&str, u64)> {
    let mut all: Vec<_> = report.namespaces.iter().map(|(name, count)| (&**name, *count)).collect();
    all.sort_by(|(one, first), (other, second)| second.cmp(first).then(one.cmp(other)));
    let others = all.split_off(all.len().min(max));
    if !others.is_empty() {
        all.push(("_other", others.iter().map(|(_, count)| count).sum()));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::labels::exposition;

    #[test]
    fn series_exist_from_start_with_bounded_namespaces() {
        let mut registry = Registry::default();
        let metrics = AuditMetrics::register(&mut registry, 2);
        let empty = exposition(&registry);
        assert_eq!(empty.matches("pillion_controller_audit_findings{").count(), 27, "{empty}");
        assert!(empty.contains("pillion_controller_audit_complete 0"), "{empty}");

        let mut report = Report { is_complete: true, ..Report::default() };
        report.counts[State::Missing as usize][Cause::WebhookAway as usize] = 7;
        report.namespaces = [("a", 1), ("b", 3), ("c", 2), ("d", 1)].map(|(name, count)| (name.into(), count)).into();
        metrics.publish(Arc::new(report));
        metrics.requested(true);
        let text = exposition(&registry);
        for line in [
            "pillion_controller_audit_complete 1",
            "pillion_controller_audit_findings{state=\"missing\",cause=\"webhook_away\"} 7",
            "pillion_controller_audit_findings{state=\"outdated\",cause=\"unknown\"} 0",
            "pillion_controller_audit_namespace_pods{namespace=\"b\"} 3",
            "pillion_controller_audit_namespace_pods{namespace=\"_other\"} 2",
            "pillion_controller_audit_requests_total{result=\"answered\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("namespace=\"a\""), "{text}");
    }
}
