//! Exposes the leader's last report as metrics. When leadership ends, the report becomes empty. All labels have fixed
//! sets of values, except the names of tenants and profiles. The number of names with their own series is limited.

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
use super::report::{PodCounts, ProfileAudit, Report};

/// The last report, and the number of requests for pods. Published as metrics.
#[derive(Clone, Debug, Default)]
pub struct AuditMetrics(Arc<MetricsState>);

#[derive(Debug, Default)]
struct MetricsState {
    report: ArcSwap<Report>,
    max_tenants: usize,
    max_profiles: usize,
    /// Number of successful requests for pods, and number of failed ones.
    requests: [AtomicU64; 2],
}

/// Writes the metrics when the registry is scraped.
#[derive(Debug)]
struct AuditCollector(AuditMetrics);

impl AuditMetrics {
    /// Registers the metrics. Up to `max_tenants` namespaces and `max_profiles` profiles have separate series: those
    /// with the most findings. All others are counted together as `_other`.
    #[must_use]
    pub fn register(registry: &mut Registry, max_tenants: usize, max_profiles: usize) -> Self {
        let metrics = Self(Arc::new(MetricsState { max_tenants, max_profiles, ..MetricsState::default() }));
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

fn pod_counts(pods: &PodCounts) -> [(&'static str, u64); 8] {
    let PodCounts { missing, outdated, orphaned, pending, undecided, injected, opted_out, not_requested } = *pods;
    [
        ("missing", missing),
        ("outdated", outdated),
        ("orphaned", orphaned),
        ("pending", pending),
        ("undecided", undecided),
        ("injected", injected),
        ("opted_out", opted_out),
        ("not_requested", not_requested),
    ]
}

fn gauge(count: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX))
}

impl Collector for AuditCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let MetricsState { report, max_tenants, max_profiles, requests } = &*self.0.0;
        let report = report.load();
        let help = "1 once the audit has checked all pods of opted-in namespaces, and none is pending";
        let metric = encoder.encode_descriptor("audit_complete", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::from(report.is_complete)).encode(metric)?;

        let help = "Pods of opted-in namespaces, by result of the audit";
        let mut metric = encoder.encode_descriptor("audit_pods", help, None, MetricType::Gauge)?;
        for (state, count) in pod_counts(&report.pods) {
            gauge(count).encode(metric.encode_family(&[("state", state)])?)?;
        }

        let help = "Differences between pods and their profiles, by kind of difference and likely reason";
        let mut metric = encoder.encode_descriptor("audit_findings", help, None, MetricType::Gauge)?;
        for state in State::ALL {
            for cause in Cause::ALL {
                let labels = [("state", state.as_str()), ("reason", cause.as_str())];
                gauge(report.count(state, cause)).encode(metric.encode_family(&labels)?)?;
            }
        }

        let help = "Requests of the audit for whole pods, by result";
        let mut metric = encoder.encode_descriptor("audit_requests", help, None, MetricType::Counter)?;
        for (result, count) in ["answered", "failed"].into_iter().zip(requests) {
            let count = prometheus_client::metrics::counter::ConstCounter::new(count.load(Ordering::Relaxed));
            count.encode(metric.encode_family(&[("result", result)])?)?;
        }

        let tenants = report.namespaces.iter().filter(|(_, audit)| audit.total() > 0);
        let tenants = tenants.map(|(name, audit)| (&**name, audit.findings));
        let help = "Differences between the pods of a tenant and their profiles, by kind of difference";
        write_largest(&mut encoder, ("audit_tenant_findings", help, "tenant"), tenants, *max_tenants)?;

        let counts = |audit: &ProfileAudit| [audit.missing, audit.outdated, audit.orphaned];
        let profiles = report.profiles.iter().map(|(name, audit)| (&**name, counts(audit)));
        let help = "Differences between a profile and pods, by kind of difference";
        write_largest(&mut encoder, ("audit_profile_findings", help, "profile"), profiles, *max_profiles)
    }
}

/// Numbers of findings, in the order of [`State::ALL`].
type StateCounts = [u64; State::ALL.len()];

/// Writes a metric with one series for each of the `max` names with the most findings, and the sum of all others as
/// `_other`.
fn write_largest<'r>(
    encoder: &mut DescriptorEncoder<'_>,
    (metric, help, label): (&'static str, &'static str, &'static str),
    names: impl Iterator<Item = (&'r str, StateCounts)>,
    max: usize,
) -> Result<(), fmt::Error> {
    let mut metric = encoder.encode_descriptor(metric, help, None, MetricType::Gauge)?;
    for (name, counts) in largest(names, max) {
        for (state, count) in State::ALL.into_iter().zip(counts) {
            gauge(count).encode(metric.encode_family(&[(label, name), ("state", state.as_str())])?)?;
        }
    }
    Ok(())
}

/// Returns the `max` names with the most findings, and the sum of all others as `_other`.
fn largest<'r>(names: impl Iterator<Item = (&'r str, StateCounts)>, max: usize) -> Vec<(&'r str, StateCounts)> {
    let mut all: Vec<_> = names.collect();
    let total = |counts: &StateCounts| counts.iter().sum::<u64>();
    all.sort_by(|(one, first), (other, second)| total(second).cmp(&total(first)).then(one.cmp(other)));
    let others = all.split_off(all.len().min(max));
    let mut sum = StateCounts::default();
    for (_, counts) in others {
        for (sum, count) in sum.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    all.push(("_other", sum));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::NamespaceAudit;
    use crate::labels::exposition;

    #[test]
    fn series_exist_from_start_with_bounded_names() {
        let mut registry = Registry::default();
        let metrics = AuditMetrics::register(&mut registry, 2, 1);
        let empty = exposition(&registry);
        assert_eq!(empty.matches("pillion_controller_audit_findings{").count(), 27, "{empty}");
        assert!(empty.contains("pillion_controller_audit_complete 0"), "{empty}");

        let mut report = Report { is_complete: true, ..Report::default() };
        report.counts[State::Missing as usize][Cause::WebhookUnavailable as usize] = 7;
        let tenant = |count| NamespaceAudit { findings: [count, 0, 1], ..NamespaceAudit::default() };
        report.namespaces =
            [("a", 1), ("b", 3), ("c", 2), ("d", 1)].map(|(name, count)| (name.into(), tenant(count))).into();
        let profile = |missing, outdated| ProfileAudit { missing, outdated, ..ProfileAudit::default() };
        report.profiles = [("logger".into(), profile(1, 1)), ("proxy".into(), profile(3, 0))].into();
        metrics.publish(Arc::new(report));
        metrics.requested(true);
        let text = exposition(&registry);
        for line in [
            "pillion_controller_audit_complete 1",
            "pillion_controller_audit_findings{state=\"missing\",reason=\"webhook_unavailable\"} 7",
            "pillion_controller_audit_findings{state=\"outdated\",reason=\"unknown\"} 0",
            "pillion_controller_audit_tenant_findings{tenant=\"b\",state=\"missing\"} 3",
            "pillion_controller_audit_tenant_findings{tenant=\"_other\",state=\"missing\"} 2",
            "pillion_controller_audit_tenant_findings{tenant=\"_other\",state=\"orphaned\"} 2",
            "pillion_controller_audit_profile_findings{profile=\"proxy\",state=\"missing\"} 3",
            "pillion_controller_audit_profile_findings{profile=\"_other\",state=\"outdated\"} 1",
            "pillion_controller_audit_requests_total{result=\"answered\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("tenant=\"a\""), "{text}");
    }
}
