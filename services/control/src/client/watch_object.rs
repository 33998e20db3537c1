//! Watches one object by its name.

use std::fmt::Debug;

use futures::stream::{Stream, StreamExt};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tracing::warn;

use crate::client::{WATCH_DURATION, error_message, with_pauses};

/// An observation of the watched object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Observation<K> {
    /// The object's state; `None` if it does not exist.
    State(Option<Box<K>>),
    /// The API server denies reading the object. Other errors cause no observation, and the last state remains valid.
    Forbidden,
}

/// Watches the object with this name. The stream starts with the current state, and continues with each change. After
/// an error, it restarts automatically after a growing pause. A change that is reverted during a pause is not reported.
pub(crate) fn watch<K>(
    api: Api<K>,
    what: &'static str,
    name: &str,
) -> impl Stream<Item = Observation<K>> + Send + 'static
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let seconds = u32::try_from(WATCH_DURATION.as_secs()).unwrap_or(u32::MAX);
    // By default, a watch starts with the current state.
    let config = watcher::Config::default().fields(&format!("metadata.name={name}")).timeout(seconds);
    observations(with_pauses(watcher(api, config), || {}), what, name)
}

/// Converts the events of a watcher to observations.
pub(crate) fn observations<K, E>(
    events: E,
    what: &'static str,
    name: &str,
) -> impl Stream<Item = Observation<K>> + Send + use<K, E>
where
    K: Send,
    E: Stream<Item = watcher::Result<Event<K>>> + Send,
{
    let name = name.to_owned();
    let mut listed: Option<Box<K>> = None;
    events.filter_map(move |event| {
        std::future::ready(match event {
            Ok(Event::Init) => None,
            Ok(Event::InitApply(object)) => {
                listed = Some(Box::new(object));
                None
            }
            Ok(Event::InitDone) => Some(Observation::State(listed.take())),
            Ok(Event::Apply(object)) => Some(Observation::State(Some(Box::new(object)))),
            Ok(Event::Delete(_)) => Some(Observation::State(None)),
            Err(error) => {
                // After an error, the watcher starts the list again.
                listed = None;
                let (help, text) = (help(&error), error_message(&error));
                warn!(
                    what,
                    name,
                    error = text,
                    help,
                    "the watch failed; the last known object remains in use while it is retried"
                );
                is_forbidden(&error).then_some(Observation::Forbidden)
            }
        })
    })
}

/// Returns instructions for an error that a retry does not resolve; `None` for other errors.
fn help(error: &watcher::Error) -> Option<&'static str> {
    match status(error)? {
        401 => Some("the API server rejected the credentials: check the service account's token or the kubeconfig"),
        403 => Some("the service account needs a role with the verbs get, list and watch for this object, by its name"),
        _ => None,
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    status(error) == Some(403)
}

/// Returns the HTTP status with which the API server rejected a list or a watch; `None` for other errors.
const fn status(error: &watcher::Error) -> Option<u16> {
    let (watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))) = error
    else {
        return None;
    };
    Some(status.code)
}
