//! Writes the audit's results as objects of the kind `Report` of `openreports.io`, one for each namespace.
//!
//! A report exists as long as its namespace has results, as with Kyverno: passed results count too, and a report
//! without results is deleted. Kubernetes deletes a report together with its namespace.
//!
//! The audit does not keep the findings of all namespaces. The audit's summary contains only counts and a hash of the
//! findings of each namespace. This task requests the findings of one namespace at a time, before it writes the
//! namespace's report. To limit the load, it writes at most ten reports a second. If only counts have changed, it
//! writes a report at most every five minutes.
//!
//! A new leader writes each report once. The API server does not store an unchanged object again.

mod content;
pub mod metrics;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use self::content::{API_VERSION, MANAGED_BY, MAX_RESULTS};
use self::metrics::{OpenReportMetrics, ReportState, ReportWrite};
use super::condition::FirstReport;
use super::report::{NamespaceAudit, Report};
use super::task::{AuditQuestion, Audited};
use crate::client::{chain, lists};
use crate::leader::{FIELD_MANAGER, LeaderContext};

/// Minimum time between two rounds of writes.
const ROUND_PAUSE: Duration = Duration::from_secs(2);
/// Minimum time between two writes.
const WRITE_PAUSE: Duration = Duration::from_millis(100);
/// Maximum time to wait for a new report of the audit before the next round.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Time between two lists of the stored reports. A deleted report is written again after a list.
const LIST_INTERVAL: Duration = Duration::from_mins(10);
/// Pause after a failed list, and before a failed write is repeated.
const RETRY_PAUSE: Duration = Duration::from_mins(1);
/// Minimum time between two writes of a report in which only the counts changed.
const COUNTS_INTERVAL: Duration = Duration::from_mins(5);

/// A report that exists, or that could not be written.
#[derive(Clone, Copy, Debug)]
struct StoredReport {
    /// The content. `None`: this controller has not written it.
    content: Option<NamespaceAudit>,
    written: Instant,
    /// No request is sent before this time.
    not_before: Instant,
}

/// Tracks which reports have to be written or deleted, by namespace.
#[derive(Debug, Default)]
struct ReportTracker(BTreeMap<Box<str>, StoredReport>);

/// Writes reports while this controller leads.
pub async fn run(
    leading: LeaderContext,
    mut audited: watch::Receiver<Audited>,
    questions: mpsc::Sender<AuditQuestion>,
    metrics: OpenReportMetrics,
) {
    let stop = leading.stop.clone();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("openreports.io", "v1alpha1", "Report"));
    let (tracker, first) = (ReportTracker::default(), FirstReport::default());
    let mut writer =
        Writer { leading, resource, questions, metrics, tracker, next_list: Instant::now(), problem: None };
    let writing = async {
        let mut first = first;
        // The loop ends when the audit's task has dropped its sender.
        while !matches!(timeout(CHECK_INTERVAL, audited.changed()).await, Ok(Err(_))) {
            let found = audited.borrow_and_update().clone();
            if first.is_usable(&found.report, Instant::now()) {
                writer.write_due(&found.report).await;
            }
            sleep(ROUND_PAUSE).await;
        }
    };
    stop.run_until_cancelled(writing).await;
}

struct Writer {
    leading: LeaderContext,
    resource: ApiResource,
    questions: mpsc::Sender<AuditQuestion>,
    metrics: OpenReportMetrics,
    tracker: ReportTracker,
    next_list: Instant,
    /// Why the last list failed, so that a lasting problem is logged once.
    problem: Option<String>,
}

impl Writer {
    async fn write_due(&mut self, report: &Report) {
        if Instant::now() >= self.next_list {
            self.list().await;
        }
        if self.problem.is_some() {
            return;
        }
        for namespace in self.tracker.due(report, Instant::now()) {
            sleep(WRITE_PAUSE).await;
            match self.write(&namespace).await {
                Ok(content) => {
                    self.metrics.written(if content.is_some() { ReportWrite::Written } else { ReportWrite::Deleted });
                    self.tracker.written(namespace, content, Instant::now());
                }
                Err(error) => {
                    self.metrics.written(ReportWrite::Failed);
                    debug!(%namespace, error = chain(&error), "the report could not be written; trying again");
                    self.tracker.failed(namespace, Instant::now());
                    if matches!(&error, kube::Error::Api(status) if status.code == 404) {
                        // The namespace or the CRD was deleted.
                        self.next_list = Instant::now();
                    }
                }
            }
        }
    }

    /// Lists the stored reports of this release.
    async fn list(&mut self) {
        let name = self.leading.release.name();
        let parameters = ListParams::default()
            .fields(&format!("metadata.name={name}"))
            .labels(&format!("{}={}", MANAGED_BY.0, MANAGED_BY.1));
        let reports = Api::<DynamicObject>::all_with(self.leading.client.clone(), &self.resource);
        let (state, problem) = match lists::all_metadata(&reports, &parameters).await {
            Ok(found) => {
                let namespaces = found.into_iter().filter_map(|object| object.metadata.namespace.map(Into::into));
                self.tracker.listed(&namespaces.collect(), Instant::now());
                (ReportState::Active, None)
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let problem = "the cluster does not have the kind Report of openreports.io/v1alpha1: install the CRD \
                               (https://github.com/openreports/reports-api), or disable audit.openReports";
                (ReportState::NotInstalled, Some(problem.to_owned()))
            }
            Err(error) => (ReportState::Failing, Some(format!("reports cannot be listed: {}", chain(&error)))),
        };
        self.next_list = Instant::now() + if problem.is_some() { RETRY_PAUSE } else { LIST_INTERVAL };
        self.metrics.state(state);
        if problem != self.problem {
            if let Some(problem) = &problem {
                warn!(api_version = API_VERSION, "the audit writes no reports: {problem}");
            } else {
                info!(api_version = API_VERSION, "the audit writes reports again");
            }
        }
        self.problem = problem;
    }

    /// Writes the report of a namespace, or deletes it if the namespace has no results. Returns the written content;
    /// `None` if the report was deleted.
    async fn write(&self, namespace: &str) -> kube::Result<Option<NamespaceAudit>> {
        let (answer, report) = oneshot::channel();
        let question = AuditQuestion::Namespace { name: namespace.into(), most: MAX_RESULTS, answer };
        let ended = || kube::Error::Service("the audit has ended".into());
        self.questions.send(question).await.map_err(|_| ended())?;
        let report = report.await.map_err(|_| ended())?;
        let name = self.leading.release.name();
        let reports = Api::<DynamicObject>::namespaced_with(self.leading.client.clone(), namespace, &self.resource);
        let content = report.namespaces.get(namespace).copied();
        if let Some(audit) = &content {
            let object = content::report(name, namespace, audit, &report.findings);
            // `force` replaces the changes of other clients, because the controller owns the whole content.
            reports.patch_metadata(name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&object)).await?;
        } else {
            match reports.delete(name, &DeleteParams::default()).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(content)
    }
}

impl ReportTracker {
    /// Returns the namespaces whose reports have to be written or deleted.
    fn due(&self, report: &Report, now: Instant) -> Vec<Box<str>> {
        let found = report.namespaces.iter().filter(|(name, audit)| {
            self.0.get(*name).is_none_or(|stored| {
                let is_other = stored.content.is_none_or(|content| {
                    content.digest != audit.digest
                        || (content != **audit && now.duration_since(stored.written) >= COUNTS_INTERVAL)
                });
                is_other && now >= stored.not_before
            })
        });
        let gone =
            self.0.iter().filter(|(name, stored)| !report.namespaces.contains_key(*name) && now >= stored.not_before);
        found.map(|(name, _)| name).chain(gone.map(|(name, _)| name)).cloned().collect()
    }

    /// Records the stored reports. Reports that are missing, or that this controller has not written, are written
    /// again.
    fn listed(&mut self, namespaces: &BTreeSet<Box<str>>, now: Instant) {
        self.0.retain(|name, stored| namespaces.contains(name) || now < stored.not_before);
        for name in namespaces {
            let unknown = StoredReport { content: None, written: now, not_before: now };
            self.0.entry(name.clone()).or_insert(unknown);
        }
    }

    /// Records that a report was written, or deleted if there is no content.
    fn written(&mut self, namespace: Box<str>, content: Option<NamespaceAudit>, now: Instant) {
        if content.is_some() {
            self.0.insert(namespace, StoredReport { content, written: now, not_before: now });
        } else {
            self.0.remove(&namespace);
        }
    }

    fn failed(&mut self, namespace: Box<str>, now: Instant) {
        self.0.insert(namespace, StoredReport { content: None, written: now, not_before: now + RETRY_PAUSE });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report<const N: usize>(namespaces: [(&str, NamespaceAudit); N]) -> Report {
        Report { namespaces: namespaces.map(|(name, audit)| (name.into(), audit)).into(), ..Report::default() }
    }

    fn audit(digest: u64, injected: u64) -> NamespaceAudit {
        NamespaceAudit { injected, digest, ..NamespaceAudit::default() }
    }

    fn names<const N: usize>(names: [&str; N]) -> Vec<Box<str>> {
        names.map(Into::into).into()
    }

    #[test]
    fn counts_wait_and_findings_do_not() {
        let (mut tracker, now) = (ReportTracker::default(), Instant::now());
        assert_eq!(tracker.due(&report([("a", audit(1, 1)), ("b", audit(0, 1))]), now), names(["a", "b"]));
        tracker.written("a".into(), Some(audit(1, 1)), now);
        assert_eq!(tracker.due(&report([("a", audit(1, 1))]), now + 2 * COUNTS_INTERVAL), names([]));
        assert_eq!(tracker.due(&report([("a", audit(1, 2))]), now + COUNTS_INTERVAL / 2), names([]));
        assert_eq!(tracker.due(&report([("a", audit(1, 2))]), now + COUNTS_INTERVAL), names(["a"]));
        assert_eq!(tracker.due(&report([("a", audit(2, 1))]), now), names(["a"]));
        assert_eq!(tracker.due(&report([]), now), names(["a"]), "a report without results is deleted");
        tracker.written("a".into(), None, now);
        assert_eq!(tracker.due(&report([]), now), names([]));
    }

    #[test]
    fn failed_and_lost_reports_are_written_again() {
        let (mut tracker, now) = (ReportTracker::default(), Instant::now());
        let both = report([("a", audit(1, 1)), ("b", audit(1, 1))]);
        tracker.failed("a".into(), now);
        tracker.written("b".into(), Some(audit(1, 1)), now);
        assert_eq!(tracker.due(&both, now), names([]));
        tracker.listed(&["b".into()].into(), now);
        assert_eq!(tracker.due(&both, now), names([]), "a list does not end the pause after a failure");
        assert_eq!(tracker.due(&both, now + RETRY_PAUSE), names(["a"]));
        tracker.listed(&["c".into()].into(), now + RETRY_PAUSE);
        assert_eq!(
            tracker.due(&both, now + RETRY_PAUSE),
            names(["a", "b", "c"]),
            "b was deleted, c is of another leader"
        );
    }
}
