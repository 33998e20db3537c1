//! Reports the state of the rotation: metrics, log lines, and Events. An Event is recorded when the rotation begins to
//! wait for an administrator, when such a wait ends, and when the connectivity check times out. The Events refer to the
//! Lease, which names the leader, and are in the release's namespace.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::timeout;
use tracing::{debug, error, info, warn};

use crate::certificates::rotation::{Blocked, Phase, Record, Trigger};
use crate::client::chain;
use crate::labels::{Label, LabelPair};
use crate::leader::{FIELD_MANAGER, LeaderContext};

/// Timeout of recording an Event. A failed attempt is not retried, since the log and the metrics have the same
/// information.
const LIMIT: Duration = Duration::from_secs(2);

/// The message, with instructions, if the newest CA cannot sign.
pub(super) const UNABLE: &str = "the newest CA cannot sign, and replicas may already serve its certificates: delete \
                                 the Secret RELEASE-ca, and the controller creates a new CA and keeps all trusted ones";

const CLOCK: &str = "the controller's clock and the API server's differ by minutes: no certificate is created, and \
                     the rotation waits until they agree. Replicas keep their certificates. Correct the wrong clock";

const WEBHOOKS_DISABLED: &str = "an administrator removed the webhook configurations, so no pod is injected: set webhooks: \
                        enabled in the release's ConfigMap to restore them";

/// The message if no API server is known to reach a replica.
pub(super) const UNREACHED: &str = "replicas respond, but no API server has reached one through the Service in time: \
                                    from now on, pods of required namespaces are rejected if no replica responds. \
                                    Check for a network policy, a firewall or a proxy between the control plane and the \
                                    replicas";

const AGREED: &str = "the clocks agree again";
const WEBHOOKS_ENABLED: &str = "the webhook configurations are managed again";
const ABLE: &str = "the newest CA can sign again";

/// Records Events about the Lease.
pub(super) struct EventRecorder {
    recorder: Recorder,
    about: ObjectReference,
}

impl EventRecorder {
    pub(super) fn new(leading: &LeaderContext) -> Self {
        let LeaderContext { client, release, .. } = leading;
        let reporter = Reporter { controller: FIELD_MANAGER.to_owned(), instance: None };
        let about = ObjectReference {
            api_version: Some("coordination.k8s.io/v1".to_owned()),
            kind: Some("Lease".to_owned()),
            name: Some(release.lease()),
            namespace: Some(release.namespace().to_owned()),
            ..ObjectReference::default()
        };
        Self { recorder: Recorder::new(client.clone(), reporter), about }
    }

    /// Records the Events of a wait with the reason `now`, after a wait with the reason `before`. Only waits that need
    /// an administrator have Events.
    pub(super) async fn record_wait(&self, before: Option<Blocked>, now: Blocked) {
        self.record(events(before, now)).await;
    }

    /// Records that the connectivity check timed out.
    pub(super) async fn unreached(&self) {
        self.record([event(EventType::Warning, "ReplicasUnreached", UNREACHED)]).await;
    }

    async fn record(&self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            match timeout(LIMIT, self.recorder.publish(&event, &self.about)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => warn!(error = chain(&error), "an Event could not be recorded"),
                Err(_) => warn!(?LIMIT, "an Event was not recorded in time"),
            }
        }
    }
}

/// Returns the Events to record when the reason for waiting changes from `before` to `now`.
fn events(before: Option<Blocked>, now: Blocked) -> impl Iterator<Item = Event> {
    let over = before.filter(|before| *before != now).and_then(messages).map(|(reason, _, over)| (reason, over));
    let over = over.map(|(reason, over)| event(EventType::Normal, reason, over));
    let begun = messages(now).map(|(reason, begun, _)| event(EventType::Warning, reason, begun));
    over.into_iter().chain(begun)
}

/// Returns the Event's reason, and the messages when the wait begins and ends. `None` if the wait needs no action of an
/// administrator.
const fn messages(blocked: Blocked) -> Option<(&'static str, &'static str, &'static str)> {
    match blocked {
        Blocked::Clock => Some(("ClocksDiffer", CLOCK, AGREED)),
        Blocked::WebhooksDisabled => Some(("WebhooksDisabled", WEBHOOKS_DISABLED, WEBHOOKS_ENABLED)),
        Blocked::Unable => Some(("CACannotSign", UNABLE, ABLE)),
        Blocked::Idle
        | Blocked::NoEndpoint
        | Blocked::ConnectivityCheck
        | Blocked::Propagation
        | Blocked::Endpoints
        | Blocked::Soaking
        | Blocked::Repair => None,
    }
}

fn event(type_: EventType, reason: &str, note: &str) -> Event {
    let (reason, note) = (reason.to_owned(), Some(note.to_owned()));
    Event { type_, reason, note, action: "Rotate".to_owned(), secondary: None }
}

/// Logs that the rotation waits, and why.
pub(super) fn log_wait(blocked: Blocked, until: Option<Timestamp>) {
    let until = until.map(tracing::field::display);
    match blocked {
        Blocked::Idle => info!(until, "all certificates are valid"),
        Blocked::Clock => {
            warn!(
                "this clock and the API server's differ by minutes: steps that depend on the time wait until they agree"
            );
        }
        Blocked::NoEndpoint => {
            info!(
                "the webhook configuration gets its entries when all endpoints serve a certificate that will be trusted"
            );
        }
        Blocked::ConnectivityCheck => {
            info!("until every API server is known to reach a replica, failed calls reject no pods");
        }
        Blocked::WebhooksDisabled => {
            warn!(
                "an administrator disabled the webhooks: the webhook configurations remain removed, and no pod is \
                 injected"
            );
        }
        Blocked::Unable => {
            error!("{}", UNABLE);
        }
        Blocked::Propagation | Blocked::Endpoints | Blocked::Soaking | Blocked::Repair => {
            debug!(until, reason = blocked.as_str(), "the rotation waits");
        }
    }
}

/// The metric labels of the rotation's writes and of the connectivity check, and of their results.
const STEPS: [&str; 6] =
    ["create_ca", "advance", "claim", "write_certificate", "write_ca_bundle", "check_connectivity"];
const RESULTS: [&str; 3] = ["ok", "conflict", "error"];

/// Metrics of the leader's rotation. A controller that does not lead reports no phase, and its times are 0.
#[derive(Clone, Debug, Default)]
pub struct RotatorMetrics {
    phases: Family<Label, Gauge>,
    blocked: Family<Label, Gauge>,
    begun: Family<Label, Counter>,
    steps: Family<LabelPair, Counter>,
    forged_epochs: Counter,
    phase_since: Gauge,
    ca_not_after: Gauge,
    certificate_renewal: Gauge,
    last_reconcile: Gauge,
}

impl RotatorMetrics {
    /// Creates the metrics and registers them, with all series.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        for phase in Phase::ALL {
            metrics.phases.get_or_create_owned(&[("phase", phase.as_str())]);
        }
        for reason in Blocked::ALL {
            metrics.blocked.get_or_create_owned(&[("reason", reason.as_str())]);
        }
        for trigger in Trigger::ALL {
            metrics.begun.get_or_create_owned(&[("reason", trigger.as_str())]);
        }
        for step in STEPS {
            for result in RESULTS {
                metrics.steps.get_or_create_owned(&[("operation", step), ("result", result)]);
            }
        }
        let registry = registry.sub_registry_with_prefix("pillion_controller");
        registry.register("rotation_phase", "1 for the current phase of the rotation", metrics.phases.clone());
        registry.register("rotation_blocked", "1 for the reason why the rotation waits", metrics.blocked.clone());
        registry.register("rotations_started", "Rotations that were started, by reason", metrics.begun.clone());
        let text = "Writes and connectivity checks of the rotation, by operation and result";
        registry.register("rotation_operations", text, metrics.steps.clone());
        let text = "Epochs in annotations that another client wrote, and that the controller replaced";
        registry.register("rotation_foreign_epochs", text, metrics.forged_epochs.clone());
        for (name, help, gauge) in [
            ("rotation_phase_start", "Start of the current phase of the rotation, as Unix time", &metrics.phase_since),
            ("ca_not_after", "End of the signing CA's validity, as Unix time", &metrics.ca_not_after),
            (
                "certificate_renewal",
                "Planned renewal of the serving certificate, as Unix time",
                &metrics.certificate_renewal,
            ),
            ("rotation_last_reconcile", "Last reconciliation of the rotation, as Unix time", &metrics.last_reconcile),
        ] {
            registry.register_with_unit(format!("{name}_timestamp"), help, Unit::Seconds, gauge.clone());
        }
        metrics
    }

    pub(super) fn set_state(&self, now: Timestamp, record: Option<&Record>, renewal: Option<Timestamp>) {
        self.last_reconcile.set(now.as_second());
        for phase in Phase::ALL {
            let is = record.is_some_and(|record| record.phase == phase);
            self.phases.get_or_create_owned(&[("phase", phase.as_str())]).set(i64::from(is));
        }
        self.phase_since.set(record.map_or(0, |record| record.since.as_second()));
        let signer = record.and_then(Record::signer);
        self.ca_not_after.set(signer.map_or(0, |signer| signer.not_after.as_second()));
        self.certificate_renewal.set(renewal.map_or(0, Timestamp::as_second));
    }

    pub(super) fn set_blocked(&self, blocked: Option<Blocked>) {
        for reason in Blocked::ALL {
            let label = [("reason", reason.as_str())];
            self.blocked.get_or_create_owned(&label).set(i64::from(blocked == Some(reason)));
        }
    }

    pub(super) fn count_step(&self, step: &'static str, result: &'static str) {
        self.steps.get_or_create_owned(&[("operation", step), ("result", result)]).inc();
    }

    pub(super) fn count_forged_epoch(&self) {
        self.forged_epochs.inc();
    }

    pub(super) fn count_rotation(&self, trigger: Trigger) {
        self.begun.get_or_create_owned(&[("reason", trigger.as_str())]).inc();
    }

    /// Resets the metrics when leadership ends.
    pub(super) fn reset(&self) {
        self.set_state(Timestamp::UNIX_EPOCH, None, None);
        self.set_blocked(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_start_and_end_of_operator_conditions() {
        let recorded = |before, now| -> Vec<_> {
            events(before, now).map(|event| format!("{:?} {}", event.type_, event.reason)).collect()
        };
        assert_eq!(recorded(None, Blocked::Clock), ["Warning ClocksDiffer"]);
        assert_eq!(recorded(Some(Blocked::Clock), Blocked::Idle), ["Normal ClocksDiffer"]);
        assert_eq!(
            recorded(Some(Blocked::WebhooksDisabled), Blocked::Clock),
            ["Normal WebhooksDisabled", "Warning ClocksDiffer"]
        );
        assert_eq!(recorded(Some(Blocked::Soaking), Blocked::Idle), [""; 0]);
        for blocked in Blocked::ALL {
            // The API server limits notes to 1 KiB.
            assert!(events(None, blocked).all(|event| event.note.unwrap_or_default().len() < 1024));
        }
    }
}
