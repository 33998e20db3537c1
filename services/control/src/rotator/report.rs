//! Records Events when the rotation starts or stops waiting for an operator. They refer to the Lease, by which people
//! find the leader, and are in the release's namespace.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::time::timeout;
use tracing::warn;

use crate::certificates::rotation::Blocked;
use crate::client::chain;
use crate::leader::{FIELD_MANAGER, LeaderContext};

/// Timeout of one Event. It is sent once: the log and the metrics have the same information.
const LIMIT: Duration = Duration::from_secs(2);

/// Instructions for a CA that cannot sign.
pub(super) const UNABLE: &str = "the newest authority cannot sign, and replicas may serve its certificates already, so that no other \
                                 can take its place: delete the Secret RELEASE-authority, and a new one comes beside all who are \
                                 trusted now";

const CLOCK: &str = "the controller's clock and the API server's differ by minutes: no certificate is made and no rotation goes \
                     on until they agree. What is served stays. Set the clock right of whichever is wrong";

const DISARMED: &str = "the webhook configurations were taken away on purpose, and nobody is injected: write webhooks: armed to \
                        the release's ConfigMap to have them back";

/// The message if no API server is known to reach a replica.
pub(super) const UNREACHED: &str = "no API server has shown in time that it reaches a replica by the Service, though replicas answer: pods \
                                    of namespaces that require injection are refused from now on where nobody answers. Is there \
                                    a network policy, a firewall or a proxy between the control plane and the replicas?";

const AGREED: &str = "the clocks agree again";
const ARMED: &str = "the webhook configurations are kept again";
const ABLE: &str = "the newest authority can sign";

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

    /// Records that the rotation waits for something else than before.
    pub(super) async fn waits(&self, before: Option<Blocked>, now: Blocked) {
        self.tell(events(before, now)).await;
    }

    /// Records that the connectivity check timed out.
    pub(super) async fn unreached(&self) {
        self.tell([event(EventType::Warning, "ReplicasUnreached", UNREACHED)]).await;
    }

    async fn tell(&self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            match timeout(LIMIT, self.recorder.publish(&event, &self.about)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => warn!(error = chain(&error), "an event could not be told"),
                Err(_) => warn!(?LIMIT, "an event was not told in time"),
            }
        }
    }
}

/// The Events for a change of the wait.
fn events(before: Option<Blocked>, now: Blocked) -> impl Iterator<Item = Event> {
    let over = before.filter(|before| *before != now).and_then(news).map(|(reason, _, over)| (reason, over));
    let over = over.map(|(reason, over)| event(EventType::Normal, reason, over));
    let begun = news(now).map(|(reason, begun, _)| event(EventType::Warning, reason, begun));
    over.into_iter().chain(begun)
}

/// Conditions that need operator action: the reason, and the messages at the start and at the end.
const fn news(blocked: Blocked) -> Option<(&'static str, &'static str, &'static str)> {
    match blocked {
        Blocked::Clock => Some(("ClocksDiffer", CLOCK, AGREED)),
        Blocked::Disarmed => Some(("Disarmed", DISARMED, ARMED)),
        Blocked::Unable => Some(("AuthorityUnable", UNABLE, ABLE)),
        Blocked::Idle
        | Blocked::NoEndpoint
        | Blocked::Rehearsal
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_has_to_see_to_is_told_when_it_begins_and_when_it_is_over() {
        let told = |before, now| -> Vec<_> {
            events(before, now).map(|event| format!("{:?} {}", event.type_, event.reason)).collect()
        };
        assert_eq!(told(None, Blocked::Clock), ["Warning ClocksDiffer"]);
        assert_eq!(told(Some(Blocked::Clock), Blocked::Idle), ["Normal ClocksDiffer"]);
        assert_eq!(told(Some(Blocked::Disarmed), Blocked::Clock), ["Normal Disarmed", "Warning ClocksDiffer"]);
        assert_eq!(told(Some(Blocked::Soaking), Blocked::Idle), [""; 0]);
        for blocked in Blocked::ALL {
            // The API server limits notes to 1 KiB.
            assert!(events(None, blocked).all(|event| event.note.unwrap_or_default().len() < 1024));
        }
    }
}
