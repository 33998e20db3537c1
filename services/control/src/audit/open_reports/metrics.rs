//! Metrics of the reports of `openreports.io`.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::labels::Label;

pillion_api::labelled! {
    /// Whether reports can be written.
    pub enum ReportState {
        /// Reports are written.
        Active => "active",
        /// The cluster does not have the CRD.
        NotInstalled => "not_installed",
        /// The reports could not be listed.
        Failing => "failing",
    }
}

pillion_api::labelled! {
    /// Result of writing the report of a namespace.
    pub enum ReportWrite {
        /// The report was written.
        Written => "written",
        /// The report was deleted, because the namespace no longer has results.
        Deleted => "deleted",
        /// The API server rejected the request or was unavailable.
        Failed => "failed",
    }
}

/// The metrics. Clones share the values.
#[derive(Clone, Debug)]
pub struct OpenReportMetrics {
    states: [Gauge; ReportState::ALL.len()],
    writes: [Counter; ReportWrite::ALL.len()],
}

impl OpenReportMetrics {
    /// Creates the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let (states, writes) = (Family::<Label, Gauge>::default(), Family::<Label, Counter>::default());
        registry.register(
            "pillion_controller_open_reports",
            "1 for the state of the audit's reports of openreports.io; 0 for all states if they are disabled",
            states.clone(),
        );
        registry.register(
            "pillion_controller_open_report_writes",
            "Writes and deletions of the audit's reports of openreports.io, by result",
            writes.clone(),
        );
        Self {
            states: ReportState::ALL.map(|state| states.get_or_create_owned(&[("state", state.as_str())])),
            writes: ReportWrite::ALL.map(|result| writes.get_or_create_owned(&[("result", result.as_str())])),
        }
    }

    /// Sets the gauges to 0 when leadership ends.
    pub fn reset(&self) {
        self.states.iter().for_each(|gauge| _ = gauge.set(0));
    }

    pub(super) fn state(&self, state: ReportState) {
        for (gauge, each) in self.states.iter().zip(ReportState::ALL) {
            gauge.set(i64::from(each == state));
        }
    }

    pub(super) fn written(&self, result: ReportWrite) {
        for (counter, each) in self.writes.iter().zip(ReportWrite::ALL) {
            if each == result {
                counter.inc();
            }
        }
    }
}
