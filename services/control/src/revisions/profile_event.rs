//! Records Events about profiles of either kind.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use pillion_api::names::API_VERSION;
use pillion_engine::profile::ProfileName;

use super::profile_status::kind;
use crate::leader::FIELD_MANAGER;

/// Maximum bytes of an Event's note. The API server allows 1 KiB.
const NOTE_BYTES: usize = 1_000;

/// The type, the reason, the action and the note of an Event. A note of more than [`NOTE_BYTES`] is cut.
pub(crate) type Parts<'p> = (EventType, &'p str, &'p str, &'p str);

/// Records an Event about a profile.
pub(crate) async fn record(
    client: &Client,
    name: &ProfileName,
    uid: Option<String>,
    (type_, reason, action, note): Parts<'_>,
) -> kube::Result<()> {
    let note = note.get(..note.floor_char_boundary(NOTE_BYTES)).unwrap_or_default().to_owned();
    let reference = ObjectReference {
        api_version: Some(API_VERSION.to_owned()),
        kind: Some(kind(name).to_owned()),
        name: Some(name.name.to_string()),
        namespace: name.namespace.as_deref().map(str::to_owned),
        uid,
        ..ObjectReference::default()
    };
    let event =
        Event { type_, reason: reason.to_owned(), note: Some(note), action: action.to_owned(), secondary: None };
    // A recorder merges Events that differ only in their notes, and keeps the first note. So each Event gets its own
    // recorder.
    let reporter = Reporter { controller: FIELD_MANAGER.to_owned(), instance: None };
    Recorder::new(client.clone(), reporter).publish(&event, &reference).await
}
