//! The leader's state of profiles and their revisions, from the watches and from what was stored before.

mod reading;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Client;
use pillion_api::kinds::ProfileStatus;
use pillion_api::names::{GROUP, ROLLBACK_FROM_ANNOTATION, ROLLBACK_TO_ANNOTATION};
use pillion_api::revision::{RevisionBounds, RevisionSpec, object_name};
use pillion_api::{ClusterInjectionProfile, ClusterProfileRevision, InjectionProfile, ProfileRevision};
use pillion_engine::profile::{Diagnostic, FlattenedProfile, Limits, ProfileName};
use serde::Deserialize;
use serde_json::Value;

use self::reading::each;
pub(super) use self::reading::{read_again, seen};
use super::conflicts::{Conflict, conflicts};
use super::plan::{Accepted, Observed, Rollback};
use super::trials::{Question, Trials};
use super::{BOUNDED_BY_PARENT, BOUNDS_LABEL};
use crate::guard::guarded;
use crate::informer::change::Change;
use crate::informer::index::{Index, Update};
use crate::informer::profiles::{self, State, StoredProfile};
use crate::informer::served::read_status;
use crate::informer::share;
use crate::informer::watch;

/// The data of a profile besides its text.
#[derive(Clone, Debug)]
pub(super) struct Profile {
    pub(super) uid: Box<str>,
    pub(super) resource_version: Option<String>,
    pub(super) generation: Option<i64>,
    pub(super) status: ProfileStatus,
    rollback_to: Option<Box<str>>,
    rollback_from: Option<Box<str>>,
}

/// An existing revision.
#[derive(Clone, Debug)]
pub(super) struct Known {
    owner: Box<str>,
    made: Timestamp,
    bounded_by_parent: bool,
}

/// A change from a watch.
pub(super) enum Seen {
    Profile(Change<ProfileName, Box<(Profile, StoredProfile)>>, bool),
    Revision(Change<RevisionObject, RevisionObject>, bool),
    Namespace(Update),
}

/// The metadata of an object that holds a revision.
#[derive(Clone, Debug)]
pub(super) struct RevisionObject {
    namespace: Option<Box<str>>,
    object: Box<str>,
    owner: Box<str>,
    made: Timestamp,
    bounded_by_parent: bool,
}

/// The existing revisions of one profile, with their creation times.
#[derive(Default)]
pub(super) struct Existing {
    pub(super) made: BTreeMap<Box<str>, Timestamp>,
    pub(super) bounded_by_parent: BTreeSet<Box<str>>,
}

/// Namespace and name of an object.
type ObjectKey = (Option<Box<str>>, Box<str>);

/// Unfinished lists of the objects of one scope.
#[derive(Default)]
struct Listing {
    profiles: BTreeSet<ProfileName>,
    revisions: BTreeSet<ObjectKey>,
    revisions_synced: bool,
}

/// The leader's complete state.
pub(super) struct RevisionStore {
    pub(super) index: Index,
    /// Shared with the tasks that act on them: after each event all are planned.
    pub(super) profiles: BTreeMap<ProfileName, Arc<Profile>>,
    revisions: BTreeMap<ObjectKey, Known>,
    cluster: Listing,
    namespaced: Listing,
    /// Accepted texts that cannot be stored, and why.
    refused: HashMap<ProfileName, (Box<str>, Vec<Diagnostic>)>,
    /// Errors of the stored generations.
    diagnostics: HashMap<ProfileName, Vec<Diagnostic>>,
    /// The bounds of the accepted revisions.
    pub(super) bounds: HashMap<ProfileName, RevisionBounds>,
    /// This build's hash of a text that another build accepted, and that build's hash.
    aliases: HashMap<ProfileName, (Box<str>, Box<str>)>,
    /// Conflicts of profiles.
    conflicts: HashMap<ProfileName, Conflict>,
    /// The dry runs of accepted revisions.
    pub(super) trials: Trials,
    /// Dry runs to start.
    pub(super) questions: Vec<Question>,
    namespaces_changed: bool,
    counts: HashMap<String, i64>,
}

/// The part of a profile that names its accepted revision.
#[derive(Deserialize)]
struct WithStatus {
    metadata: ObjectMeta,
    #[serde(default)]
    status: Value,
}

#[derive(Deserialize)]
struct WithSpec {
    metadata: ObjectMeta,
    spec: RevisionSpec,
}

impl Profile {
    fn new(metadata: &ObjectMeta, status: ProfileStatus) -> Self {
        let annotation = |key: &str| metadata.annotations.as_ref()?.get(key).map(|value| value.trim().into());
        Self {
            uid: metadata.uid.clone().unwrap_or_default().into(),
            resource_version: metadata.resource_version.clone(),
            generation: metadata.generation,
            status,
            rollback_to: annotation(ROLLBACK_TO_ANNOTATION),
            rollback_from: annotation(ROLLBACK_FROM_ANNOTATION),
        }
    }
}

impl RevisionStore {
    fn new(memory: share::Limits) -> Self {
        Self {
            index: Index::default().keeping_texts().bounded_by(memory),
            profiles: BTreeMap::new(),
            revisions: BTreeMap::new(),
            cluster: Listing::default(),
            namespaced: Listing::default(),
            refused: HashMap::new(),
            diagnostics: HashMap::new(),
            bounds: HashMap::new(),
            aliases: HashMap::new(),
            conflicts: HashMap::new(),
            trials: Trials::default(),
            questions: Vec::new(),
            namespaces_changed: true,
            counts: HashMap::new(),
        }
    }

    /// Reads the texts that were accepted before the watches start.
    ///
    /// # Errors
    /// The API server is unavailable or returned an error.
    pub(super) async fn begin(client: &Client, memory: share::Limits) -> kube::Result<Self> {
        let mut accepted: HashMap<ProfileName, (Box<str>, Box<str>)> = HashMap::new();
        let mut note = |object: WithStatus| {
            let status = read_status(object.status);
            let uid = object.metadata.uid.clone().unwrap_or_default();
            if let Some(revision) = status.accepted_revision {
                accepted.insert(profiles::name(object.metadata), (uid.into(), revision.into()));
            }
        };
        each::<ClusterInjectionProfile, _>(client, &mut note).await?;
        each::<InjectionProfile, _>(client, &mut note).await?;

        let mut store = Self::new(memory);
        let mut seed = |object: WithSpec| {
            let WithSpec { metadata, spec } = object;
            let name =
                ProfileName { namespace: metadata.namespace.map(Into::into), name: spec.profile.as_str().into() };
            if let Some((uid, revision)) = accepted.get(&name)
                && **revision == *spec.revision
            {
                store.accept(name, uid.clone(), &spec);
            }
        };
        each::<ClusterProfileRevision, _>(client, &mut seed).await?;
        each::<ProfileRevision, _>(client, &mut seed).await?;
        Ok(store)
    }

    /// Adds a revision that an earlier leader had accepted.
    fn accept(&mut self, name: ProfileName, uid: Box<str>, spec: &RevisionSpec) {
        self.bounds.insert(name.clone(), spec.bounds);
        let now =
            guarded(&name, || FlattenedProfile::from_revision(&name, spec).ok().and_then(|whole| whole.revision()));
        if let Ok(Some(now)) = now {
            self.aliases.insert(name.clone(), (now, spec.revision.as_str().into()));
        }
        self.index.seed(name, uid, spec.source.as_deref().unwrap_or(&spec.text));
    }

    /// Uses this build's hash for a text that another build accepted.
    pub(super) fn forget_alias(&mut self, name: &ProfileName) {
        self.aliases.remove(name);
    }

    /// Applies a change from a watch.
    pub(super) fn take(&mut self, seen: Seen) {
        match seen {
            Seen::Profile(change, is_cluster) => self.take_profile(change, is_cluster),
            Seen::Revision(change, is_cluster) => self.take_revision(change, is_cluster),
            Seen::Namespace(update) => {
                self.namespaces_changed = true;
                self.index.update(update);
            }
        }
    }

    fn take_profile(&mut self, change: Change<ProfileName, Box<(Profile, StoredProfile)>>, is_cluster: bool) {
        let listing = if is_cluster { &mut self.cluster } else { &mut self.namespaced };
        let change = match change {
            Change::Restarted => {
                listing.profiles.clear();
                Change::Restarted
            }
            Change::Listed(seen) => {
                let (profile, stored) = *seen;
                listing.profiles.insert(stored.name.clone());
                self.profiles.insert(stored.name.clone(), Arc::new(profile));
                Change::Listed(stored)
            }
            Change::ListComplete => {
                let listed = std::mem::take(&mut listing.profiles);
                self.profiles.retain(|name, _| name.namespace.is_none() != is_cluster || listed.contains(name));
                Change::ListComplete
            }
            Change::Applied(seen) => {
                let (profile, stored) = *seen;
                self.profiles.insert(stored.name.clone(), Arc::new(profile));
                Change::Applied(stored)
            }
            Change::Deleted(name) => {
                self.profiles.remove(&name);
                Change::Deleted(name)
            }
        };
        let update = if is_cluster { Update::Cluster(change) } else { Update::Namespaced(change) };
        for broken in self.index.update(update) {
            watch::report(&broken);
            self.diagnostics.insert(broken.name, broken.diagnostics);
        }
    }

    /// Removes the data of deleted profiles, and the errors of corrected ones.
    pub(super) fn tidy(&mut self) {
        let (index, profiles) = (&self.index, &self.profiles);
        self.diagnostics.retain(|name, _| index.state(name).is_some_and(|state| state.broken));
        self.bounds.retain(|name, _| profiles.contains_key(name));
        self.aliases.retain(|name, _| profiles.contains_key(name));
        self.refused.retain(|name, _| profiles.contains_key(name));
        self.trials.retain(|name| profiles.contains_key(name));
        let good = profiles.keys().filter_map(|name| index.state(name)?.good);
        if let Ok(found) = guarded(&"the conflicts of profiles", || conflicts(good.map(|good| &**good))) {
            self.conflicts = found;
        }
        for name in profiles.keys() {
            if let Some(good) = index.state(name).and_then(|state| state.good) {
                let bounds = match good.limits() {
                    Limits::Platform => RevisionBounds::Platform,
                    Limits::Parent => RevisionBounds::Parent,
                    Limits::Tenant => RevisionBounds::Tenant,
                };
                if self.bounds.get(name) != Some(&bounds) {
                    self.bounds.insert(name.clone(), bounds);
                }
            }
        }
    }

    fn take_revision(&mut self, change: Change<RevisionObject, RevisionObject>, is_cluster: bool) {
        let listing = if is_cluster { &mut self.cluster } else { &mut self.namespaced };
        match change {
            Change::Restarted => listing.revisions.clear(),
            Change::Listed(object) => {
                listing.revisions.insert((object.namespace.clone(), object.object.clone()));
                self.add_revision(object);
            }
            Change::ListComplete => {
                let listed = std::mem::take(&mut listing.revisions);
                listing.revisions_synced = true;
                self.revisions.retain(|key, _| key.0.is_none() != is_cluster || listed.contains(key));
            }
            Change::Applied(object) => self.add_revision(object),
            Change::Deleted(object) => {
                self.revisions.remove(&(object.namespace, object.object));
            }
        }
    }

    fn add_revision(&mut self, object: RevisionObject) {
        let RevisionObject { namespace, object, owner, made, bounded_by_parent } = object;
        self.revisions.insert((namespace, object), Known { owner, made, bounded_by_parent });
    }

    /// Adds a created revision before the watch delivers it.
    pub(super) fn made(&mut self, metadata: ObjectMeta) {
        self.add_revision(RevisionObject::new(metadata));
    }

    /// Updates the written status before the watch delivers it.
    pub(super) fn written(&mut self, name: &ProfileName, metadata: ObjectMeta, status: ProfileStatus) {
        if let Some(profile) = self.profiles.get_mut(name) {
            let profile = Arc::make_mut(profile);
            profile.resource_version = metadata.resource_version;
            profile.status = status;
        }
    }

    /// Records that an accepted text cannot be stored.
    pub(super) fn refuse(&mut self, name: ProfileName, revision: Box<str>, fault: Diagnostic) {
        self.refused.insert(name, (revision, vec![fault]));
    }

    /// Removes a deleted revision.
    pub(super) fn unmade(&mut self, name: &ProfileName, revision: &str) {
        self.revisions.remove(&(name.namespace.clone(), object_name(&name.name, revision).into()));
    }

    /// Whether all first lists are complete.
    pub(super) const fn is_complete(&self) -> bool {
        self.index.is_complete() && self.cluster.revisions_synced && self.namespaced.revisions_synced
    }

    /// Number of profiles whose stored generation is invalid.
    pub(super) fn rejected(&self) -> usize {
        self.diagnostics.len()
    }

    /// The existing revisions of a profile, by hash.
    pub(super) fn existing(&self, name: &ProfileName, uid: &str) -> Existing {
        let mut existing = Existing::default();
        self.each_of(name, uid, |revision, known| {
            existing.made.insert(revision.into(), known.made);
            if known.bounded_by_parent {
                existing.bounded_by_parent.insert(revision.into());
            }
        });
        existing
    }

    fn each_of(&self, name: &ProfileName, uid: &str, mut see: impl FnMut(&str, &Known)) {
        // All names of a profile's revisions share a prefix, followed only by a hash.
        let begin = object_name(&name.name, "");
        let from = (name.namespace.clone(), begin.as_str().into());
        let all = self
            .revisions
            .range(from..)
            .take_while(|((namespace, object), _)| *namespace == name.namespace && object.starts_with(&begin));
        for ((_, object), known) in all.filter(|(_, known)| *known.owner == *uid) {
            let revision = object.strip_prefix(&*begin).unwrap_or_default();
            if !revision.is_empty() && revision.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                see(revision, known);
            }
        }
    }

    /// The observed state of a profile; `None` until its current generation is compiled. The compiled text may still be
    /// an earlier generation or a deleted profile's, since a list comes in pages and is applied at its end.
    pub(super) fn observe<'w>(
        &'w self,
        name: &ProfileName,
        profile: &'w Profile,
        existing: &'w Existing,
        namespaces: i64,
    ) -> Option<Observed<'w>> {
        let is_it = |state: &State<'_>| state.generation == profile.generation && *state.uid == *profile.uid;
        let state = self.index.state(name).filter(|state| !state.due && is_it(state))?;
        let accepted = state.good.map(|good| {
            let alias = self.aliases.get(name).filter(|(now, _)| **now == *good.revision());
            let revision = alias.map_or_else(|| good.revision().into(), |(_, stored)| stored.clone());
            Accepted { revision, rollout: good.rollout().cloned() }
        });
        let rollback = profile.rollback_to.as_deref().map(|to| Rollback { to, from: profile.rollback_from.as_deref() });
        let bounds = self.bounds.get(name).copied();
        let rejected = self.diagnostics.get(name).map(Vec::as_slice).filter(|_| state.broken);
        let refused = self
            .refused
            .get(name)
            .filter(|(revision, _)| accepted.as_ref().is_some_and(|accepted| accepted.revision == *revision));
        let (accepted, rejected) = match refused {
            Some((_, faults)) => (None, Some(faults.as_slice())),
            None => (accepted, rejected),
        };
        let generation = profile.generation;
        let status = &profile.status;
        let verdict = accepted.as_ref().and_then(|accepted| self.trials.verdict(name, &accepted.revision));
        Some(Observed {
            generation,
            accepted,
            rejected,
            bounds,
            status,
            rollback,
            existing: &existing.made,
            bounded_by_parent: &existing.bounded_by_parent,
            namespaces,
            conflict: self.conflicts.get(name),
            verdict,
        })
    }

    /// Whether namespaces must be counted again.
    pub(super) const fn namespaces_changed(&self) -> bool {
        self.namespaces_changed
    }

    /// Discards the counts of namespaces.
    pub(super) fn count_anew(&mut self) {
        self.counts.clear();
        self.namespaces_changed = false;
    }

    /// Number of opted-in namespaces that a profile may match.
    pub(super) fn count(&mut self, name: &ProfileName) -> i64 {
        let good = self.index.state(name).and_then(|state| state.good);
        let Some(selector) = good.map(|good| good.namespace_selector()) else { return 0 };
        let key = match &name.namespace {
            Some(namespace) => format!("{namespace} {selector:?}"),
            None => format!("{selector:?}"),
        };
        if let Some(count) = self.counts.get(&key) {
            return *count;
        }
        let is_in = |(namespace, known): &(&str, &pillion_engine::snapshot::Namespace)| {
            known.level().is_some()
                && !pillion_api::names::SYSTEM_NAMESPACES.contains(namespace)
                && name.namespace.as_deref().is_none_or(|own| own == *namespace)
                && selector.is_none_or(|selector| selector.matches(|key| known.label(key)))
        };
        let count = i64::try_from(self.index.namespaces().filter(is_in).count()).unwrap_or(i64::MAX);
        self.counts.insert(key, count);
        count
    }
}

impl RevisionObject {
    fn new(metadata: ObjectMeta) -> Self {
        let bounds = metadata.labels.and_then(|mut labels| labels.remove(BOUNDS_LABEL));
        // Other clients may have added owner references before or after it.
        let is_profile = |owner: &&OwnerReference| {
            owner.api_version.split('/').next() == Some(GROUP)
                && [InjectionProfile::KIND, ClusterInjectionProfile::KIND].contains(&&*owner.kind)
        };
        let owner = metadata.owner_references.iter().flatten().find(is_profile).map(|owner| owner.uid.clone());
        Self {
            namespace: metadata.namespace.map(Into::into),
            object: metadata.name.unwrap_or_default().into(),
            owner: owner.unwrap_or_default().into(),
            made: metadata.creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            bounded_by_parent: bounds.as_deref() == Some(BOUNDED_BY_PARENT),
        }
    }
}

#[cfg(test)]
mod tests;
