//! One event of a watch, without the client's types, so that all code behind it is tested without a cluster.

use kube::runtime::watcher::Event;

/// Something a watch says. First, and again after it lost its place, come all objects as [`Change::Listed`], then one
/// [`Change::ListComplete`]: what was not among them is gone. Everything else comes between two lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<K, T> {
    /// The watch was cut off. If that was during a list, it begins anew: what was listed so far does not count.
    Restarted,
    /// An object of the list.
    Listed(T),
    /// The list is complete.
    ListComplete,
    /// An object is new or has changed.
    Applied(T),
    /// The object with this key is gone.
    Deleted(K),
}

impl<K, T> Change<K, T> {
    /// From the client's event. `read` takes an object apart, `key` says which one it is.
    pub fn from_event<O>(event: Event<O>, read: impl FnOnce(O) -> T, key: impl FnOnce(O) -> K) -> Self {
        match event {
            Event::Init => Self::Restarted,
            Event::InitApply(object) => Self::Listed(read(object)),
            Event::InitDone => Self::ListComplete,
            Event::Apply(object) => Self::Applied(read(object)),
            Event::Delete(object) => Self::Deleted(key(object)),
        }
    }
}

impl<K, T> Change<K, Option<T>> {
    /// Nothing for an object that could not be taken apart.
    #[must_use]
    pub fn known(self) -> Option<Change<K, T>> {
        Some(match self {
            Self::Restarted => Change::Restarted,
            Self::Listed(object) => Change::Listed(object?),
            Self::ListComplete => Change::ListComplete,
            Self::Applied(object) => Change::Applied(object?),
            Self::Deleted(key) => Change::Deleted(key),
        })
    }
}
