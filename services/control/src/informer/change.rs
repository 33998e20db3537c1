//! One event of a watch, without the client's types, so that all code behind it is tested without a cluster.

use kube::runtime::watcher::Event;

/// One change from a watch. The first list, and each later one, arrives as [`Change::Listed`] for every object and one
/// [`Change::ListComplete`]: objects missing from the list are gone. All other changes arrive between two lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<K, T> {
    /// The watch was interrupted. An unfinished list starts again: its objects so far do not count.
    Restarted,
    /// An object of the list.
    Listed(T),
    /// The list is complete.
    ListComplete,
    /// An object was created or has changed.
    Applied(T),
    /// The object with this key was deleted.
    Deleted(K),
}

impl<K, T> Change<K, T> {
    /// Converts the client's event. `read` reduces an object, `key` returns its key.
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
    /// `None` for an object that could not be read.
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
