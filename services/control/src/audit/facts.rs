//! Facts besides pods and profiles: when namespaces and profiles last changed, and when the webhook was unavailable or
//! switched off.

use std::collections::BTreeMap;
use std::sync::Arc;

use pillion_engine::snapshot::Namespace;

use super::ages::{NamespaceAge, ProfileAge};
use super::cause::Silence;
use super::spans::Spans;

/// Facts that explain findings. Ages are requested when a finding needs them, and removed when their object changes.
#[derive(Clone, Debug, Default)]
pub struct ClusterFacts {
    /// When the webhook was unavailable.
    pub away: Spans,
    /// When injection was disabled.
    pub off: Spans,
    /// When the webhook configuration was created; no webhook was called before.
    pub registered: Option<i64>,
    namespaces: BTreeMap<Box<str>, (Arc<Namespace>, NamespaceAge)>,
    profiles: BTreeMap<Box<str>, (Box<str>, ProfileAge)>,
}

impl ClusterFacts {
    /// Stores the age of a namespace.
    pub fn set_namespace(&mut self, name: &str, namespace: &Arc<Namespace>, age: NamespaceAge) {
        self.namespaces.insert(name.into(), (Arc::clone(namespace), age));
    }

    /// Stores the age of a profile at a revision.
    pub fn set_profile(&mut self, name: &str, revision: &str, age: ProfileAge) {
        self.profiles.insert(name.into(), (revision.into(), age));
    }

    /// The age of the namespace in this state; `None` if it was not requested.
    #[must_use]
    pub fn namespace(&self, name: &str, namespace: &Arc<Namespace>) -> Option<NamespaceAge> {
        let (known, age) = self.namespaces.get(name)?;
        (Arc::ptr_eq(known, namespace) || known == namespace).then_some(*age)
    }

    /// The age of a profile at a revision; `None` if it was not requested.
    #[must_use]
    pub fn profile(&self, name: &str, revision: &str) -> Option<ProfileAge> {
        let (known, age) = self.profiles.get(name)?;
        (**known == *revision).then_some(*age)
    }

    /// Removes all other ages.
    pub(super) fn keep(&mut self, namespaces: impl Fn(&str) -> bool, profiles: impl Fn(&str) -> bool) {
        self.namespaces.retain(|name, _| namespaces(name));
        self.profiles.retain(|name, _| profiles(name));
    }

    /// Why the webhook may not have injected at this time.
    #[must_use]
    pub fn silence(&self, time: i64) -> Option<Silence> {
        let is_away = || self.away.cover(time) || self.registered.is_some_and(|registered| time < registered);
        if self.off.cover(time) { Some(Silence::SwitchedOff) } else { is_away().then_some(Silence::Away) }
    }
}
