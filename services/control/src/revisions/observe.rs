//! All that the leader knows of profiles and their revisions: the watches, and what was there before them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures::stream::{BoxStream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject, ListParams, PartialObjectMeta};
use kube::runtime::watcher::watcher;
use kube::{Api, Client, Resource};
use pillion_api::kinds::ProfileStatus;
use pillion_api::names::{ROLLBACK_FROM_ANNOTATION, ROLLBACK_TO_ANNOTATION};
use pillion_api::revision::{RevisionBounds, RevisionSpec, object_name};
use pillion_api::{ClusterInjectionProfile, ClusterProfileRevision, InjectionProfile, ProfileRevision};
use pillion_engine::profile::{Diagnostic, Limits, ProfileName, Whole};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::plan::{Accepted, Observed, Rollback};
use super::{BOUNDED_BY_PARENT, BOUNDS_LABEL};
use crate::cache_metrics::{CacheMetrics, Kind};
use crate::change::Change;
use crate::index::{Index, Update};
use crate::profiles::{self, State, StoredProfile};
use crate::served::read_status;
use crate::watch::{self, PROFILES_A_PAGE, changes, config};

/// What is kept of a profile besides its text.
#[derive(Clone, Debug)]
pub(super) struct Profile {
    pub(super) uid: Box<str>,
    pub(super) resource_version: Option<String>,
    pub(super) generation: Option<i64>,
    pub(super) status: ProfileStatus,
    rollback_to: Option<Box<str>>,
    rollback_from: Option<Box<str>>,
}

/// A revision that is there.
#[derive(Clone, Debug)]
pub(super) struct Known {
    owner: Box<str>,
    made: Timestamp,
    bounded_by_parent: bool,
}

/// What a watch says.
pub(super) enum Seen {
    Profile(Change<ProfileName, Box<(Profile, StoredProfile)>>, bool),
    Revision(Change<RevisionObject, RevisionObject>, bool),
    Namespace(Update),
}

/// An object that holds a revision, by its metadata.
#[derive(Clone, Debug)]
pub(super) struct RevisionObject {
    namespace: Option<Box<str>>,
    object: Box<str>,
    owner: Box<str>,
    made: Timestamp,
    bounded_by_parent: bool,
}

/// The revisions of one profile that are there, with the time of their making.
#[derive(Default)]
pub(super) struct Existing {
    pub(super) made: BTreeMap<Box<str>, Timestamp>,
    pub(super) bounded_by_parent: BTreeSet<Box<str>>,
}

/// Namespace and name of an object.
type ObjectKey = (Option<Box<str>>, Box<str>);

/// Lists of the objects of one scope that are not complete yet.
#[derive(Default)]
struct Listing {
    profiles: BTreeSet<ProfileName>,
    revisions: BTreeSet<ObjectKey>,
    revisions_synced: bool,
}

/// All that is known.
pub(super) struct World {
    pub(super) index: Index,
    pub(super) profiles: BTreeMap<ProfileName, Profile>,
    revisions: BTreeMap<ObjectKey, Known>,
    cluster: Listing,
    namespaced: Listing,
    /// Accepted texts that cannot be kept, and why.
    refused: HashMap<ProfileName, (Box<str>, Vec<Diagnostic>)>,
    /// What is wrong with the generation that is stored.
    diagnostics: HashMap<ProfileName, Vec<Diagnostic>>,
    /// What bounds what was accepted.
    pub(super) bounds: HashMap<ProfileName, RevisionBounds>,
    /// What this build calls a text that another build accepted, and what that build called it.
    aliases: HashMap<ProfileName, (Box<str>, Box<str>)>,
    namespaces_changed: bool,
    counts: HashMap<String, i64>,
}

/// The part of a profile that tells what was accepted of it.
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

impl World {
    fn new() -> Self {
        Self {
            index: Index::default().keeping_texts(),
            profiles: BTreeMap::new(),
            revisions: BTreeMap::new(),
            cluster: Listing::default(),
            namespaced: Listing::default(),
            refused: HashMap::new(),
            diagnostics: HashMap::new(),
            bounds: HashMap::new(),
            aliases: HashMap::new(),
            namespaces_changed: true,
            counts: HashMap::new(),
        }
    }

    /// What was there before the watches: the texts that were accepted last.
    ///
    /// # Errors
    /// The API server cannot be asked.
    pub(super) async fn begin(client: &Client) -> kube::Result<Self> {
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

        let mut world = Self::new();
        let mut seed = |object: WithSpec| {
            let WithSpec { metadata, spec } = object;
            let name =
                ProfileName { namespace: metadata.namespace.map(Into::into), name: spec.profile.as_str().into() };
            if let Some((uid, revision)) = accepted.get(&name)
                && **revision == *spec.revision
            {
                world.accept(name, uid.clone(), &spec);
            }
        };
        each::<ClusterProfileRevision, _>(client, &mut seed).await?;
        each::<ProfileRevision, _>(client, &mut seed).await?;
        Ok(world)
    }

    /// Remembers what was accepted by whoever led before.
    fn accept(&mut self, name: ProfileName, uid: Box<str>, spec: &RevisionSpec) {
        self.bounds.insert(name.clone(), spec.bounds);
        if let Some(now) = Whole::from_revision(&name, spec).ok().and_then(|whole| whole.revision()) {
            self.aliases.insert(name.clone(), (now, spec.revision.as_str().into()));
        }
        self.index.seed(name, uid, spec.source.as_deref().unwrap_or(&spec.text));
    }

    /// Takes what a watch says.
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
                self.profiles.insert(stored.name.clone(), profile);
                Change::Listed(stored)
            }
            Change::ListComplete => {
                let listed = std::mem::take(&mut listing.profiles);
                self.profiles.retain(|name, _| name.namespace.is_none() != is_cluster || listed.contains(name));
                Change::ListComplete
            }
            Change::Applied(seen) => {
                let (profile, stored) = *seen;
                self.profiles.insert(stored.name.clone(), profile);
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

    /// Forgets what was known of profiles that are gone, and what was wrong with those that are mended.
    pub(super) fn tidy(&mut self) {
        let (index, profiles) = (&self.index, &self.profiles);
        self.diagnostics.retain(|name, _| index.state(name).is_some_and(|state| state.broken));
        self.bounds.retain(|name, _| profiles.contains_key(name));
        self.aliases.retain(|name, _| profiles.contains_key(name));
        self.refused.retain(|name, _| profiles.contains_key(name));
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

    /// A revision was made, as the watch will say later.
    pub(super) fn made(&mut self, metadata: ObjectMeta) {
        self.add_revision(RevisionObject::new(metadata));
    }

    /// The status of a profile was written, as the watch will say later.
    pub(super) fn written(&mut self, name: &ProfileName, metadata: ObjectMeta, status: ProfileStatus) {
        if let Some(profile) = self.profiles.get_mut(name) {
            profile.resource_version = metadata.resource_version;
            profile.status = status;
        }
    }

    /// An accepted text cannot be kept.
    pub(super) fn refuse(&mut self, name: ProfileName, revision: Box<str>, fault: Diagnostic) {
        self.refused.insert(name, (revision, vec![fault]));
    }

    /// A revision was deleted.
    pub(super) fn unmade(&mut self, name: &ProfileName, revision: &str) {
        self.revisions.remove(&(name.namespace.clone(), object_name(&name.name, revision).into()));
    }

    /// Whether all first lists were complete.
    pub(super) const fn is_complete(&self) -> bool {
        self.index.is_complete() && self.cluster.revisions_synced && self.namespaced.revisions_synced
    }

    /// How many profiles are stored as they cannot be accepted.
    pub(super) fn rejected(&self) -> usize {
        self.diagnostics.len()
    }

    /// The revisions of a profile that are there, by their hashes.
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
        // All names of a profile's revisions have the same begin, behind which nothing but a hash stands.
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

    /// What is observed of a profile; `None` if it is not compiled yet, also if it was seen anew and what was compiled is
    /// another generation of it, or of one of its name that was there before: a list comes in pages, and is taken at its end.
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
        })
    }

    /// Whether namespaces have to be counted anew.
    pub(super) const fn namespaces_changed(&self) -> bool {
        self.namespaces_changed
    }

    /// Counts namespaces from now on anew.
    pub(super) fn count_anew(&mut self) {
        self.counts.clear();
        self.namespaces_changed = false;
    }

    /// How many opted-in namespaces a profile may act in.
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
        let owner = metadata.owner_references.as_ref().and_then(|owners| owners.first()).map(|owner| owner.uid.clone());
        Self {
            namespace: metadata.namespace.map(Into::into),
            object: metadata.name.unwrap_or_default().into(),
            owner: owner.unwrap_or_default().into(),
            made: metadata.creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            bounded_by_parent: bounds.as_deref() == Some(BOUNDED_BY_PARENT),
        }
    }
}

/// The watches.
pub(super) fn seen(client: &Client) -> impl futures::Stream<Item = Seen> + Send + Unpin + use<> {
    let metrics = CacheMetrics::default();
    futures::stream::select_all([
        profiles_of::<ClusterInjectionProfile>(client, Kind::ClusterProfiles, &metrics, true),
        profiles_of::<InjectionProfile>(client, Kind::Profiles, &metrics, false),
        revisions_of::<ClusterProfileRevision>(client, Kind::ClusterProfiles, &metrics, true),
        revisions_of::<ProfileRevision>(client, Kind::Profiles, &metrics, false),
        watch::namespaces_of(client, &metrics).map(Seen::Namespace).boxed(),
    ])
}

fn profiles_of<K: Resource<DynamicType = ()>>(
    client: &Client,
    kind: Kind,
    metrics: &CacheMetrics,
    is_cluster: bool,
) -> BoxStream<'static, Seen> {
    let read = |mut object: DynamicObject| {
        let spec = object.data.get_mut("spec").map_or(Value::Null, Value::take);
        let status = object.data.get_mut("status").map_or(Value::Null, Value::take);
        let profile = Profile::new(&object.metadata, read_status(status));
        Box::new((profile, StoredProfile::new(object.metadata, spec)))
    };
    let key = |object: DynamicObject| profiles::name(object.metadata);
    let api = Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<K>(&()));
    let changes = changes(watcher(api, config(PROFILES_A_PAGE)), kind, metrics.clone(), read, key);
    changes.map(move |change| Seen::Profile(change, is_cluster)).boxed()
}

/// Of revisions only the metadata are asked for.
fn revisions_of<K>(client: &Client, kind: Kind, metrics: &CacheMetrics, is_cluster: bool) -> BoxStream<'static, Seen>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let read = |object: PartialObjectMeta<K>| RevisionObject::new(object.metadata);
    let api = Api::<PartialObjectMeta<K>>::all(client.clone());
    let changes = changes(watcher(api, config(PROFILES_A_PAGE)), kind, metrics.clone(), read, read);
    changes.map(move |change| Seen::Revision(change, is_cluster)).boxed()
}

/// Reads all objects of a kind, page by page. One that this build cannot read is passed over.
async fn each<K, T>(client: &Client, take: &mut impl FnMut(T)) -> kube::Result<()>
where
    K: Resource<DynamicType = ()>,
    T: DeserializeOwned,
{
    let api = Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<K>(&()));
    let mut parameters = ListParams::default().limit(PROFILES_A_PAGE);
    loop {
        let page = api.list(&parameters).await?;
        for object in page.items {
            if let Ok(read) = serde_json::to_value(object).and_then(serde_json::from_value) {
                take(read);
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(namespace: Option<&str>, name: &str, owner: &str) -> RevisionObject {
        let metadata = json!({
            "namespace": namespace, "name": name, "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{"apiVersion": "v", "kind": "k", "name": "n", "uid": owner}],
        });
        RevisionObject::new(serde_json::from_value(metadata).unwrap())
    }

    #[test]
    fn a_profiles_revisions_are_those_of_its_name_its_namespace_and_its_uid() {
        let mut world = World::new();
        for (namespace, name, owner) in [
            (None, "proxy-aa11", "1"),
            (None, "proxy-bb22", "another"),
            (None, "proxy-two-cc33", "2"),
            (None, "proxy-", "1"),
            (None, "proxy-two", "1"),
            (Some("shop"), "proxy-dd44", "1"),
        ] {
            world.take(Seen::Revision(Change::Applied(object(namespace, name, owner)), namespace.is_none()));
        }
        let revisions = |world: &World, name: &ProfileName, uid: &str| -> Vec<String> {
            world.existing(name, uid).made.keys().map(ToString::to_string).collect()
        };
        let name = ProfileName::cluster("proxy");
        assert_eq!(revisions(&world, &name, "1"), ["aa11"]);
        assert_eq!(revisions(&world, &ProfileName::cluster("proxy-two"), "2"), ["cc33"]);
        assert_eq!(revisions(&world, &ProfileName::namespaced("shop", "proxy"), "1"), ["dd44"]);

        // A new list of one scope leaves the other as it is.
        world.take(Seen::Revision(Change::Restarted, true));
        world.take(Seen::Revision(Change::Listed(object(None, "proxy-ee55", "1")), true));
        world.take(Seen::Revision(Change::ListComplete, true));
        assert_eq!(revisions(&world, &name, "1"), ["ee55"]);
        assert_eq!(revisions(&world, &ProfileName::namespaced("shop", "proxy"), "1"), ["dd44"]);
        world.unmade(&name, "ee55");
        assert!(revisions(&world, &name, "1").is_empty());
    }

    #[test]
    fn a_revision_that_a_parent_bounds_is_known_by_its_label() {
        let mut world = World::new();
        let mut bounded = object(None, "proxy-aa11", "1");
        for bounds in [None, Some("Tenant"), Some(BOUNDED_BY_PARENT)] {
            let metadata = json!({
                "name": "proxy-aa11", "labels": bounds.map(|bounds| json!({BOUNDS_LABEL: bounds})),
                "ownerReferences": [{"apiVersion": "v", "kind": "k", "name": "n", "uid": "1"}],
            });
            bounded = RevisionObject::new(serde_json::from_value(metadata).unwrap());
            assert_eq!(bounded.bounded_by_parent, bounds == Some(BOUNDED_BY_PARENT), "{bounds:?}");
        }
        world.take(Seen::Revision(Change::Applied(object(None, "proxy-bb22", "1")), true));
        world.take(Seen::Revision(Change::Applied(bounded), true));
        let existing = world.existing(&ProfileName::cluster("proxy"), "1");
        assert_eq!(existing.made.len(), 2);
        assert_eq!(existing.bounded_by_parent, ["aa11".into()].into());
    }

    fn seen(uid: &str, generation: i64, label: &str) -> Box<(Profile, StoredProfile)> {
        let metadata = json!({"name": "proxy", "uid": uid, "generation": generation});
        let metadata: ObjectMeta = serde_json::from_value(metadata).unwrap();
        let profile = Profile::new(&metadata, ProfileStatus::default());
        let spec = json!({"template": {"metadata": {"labels": {"a": label}}}});
        Box::new((profile, StoredProfile::new(metadata, spec)))
    }

    #[test]
    fn between_the_pages_of_a_list_nothing_is_said_of_what_was_seen_anew() {
        let name = ProfileName::cluster("proxy");
        let take = |world: &mut World, change| world.take(Seen::Profile(change, true));
        let accepted = |world: &World| {
            let (profile, existing) = (&world.profiles[&name], Existing::default());
            world.observe(&name, profile, &existing, 0).map(|observed| observed.accepted.unwrap().revision)
        };
        for (uid, generation) in [("1", 2), ("2", 1)] {
            let mut world = World::new();
            take(&mut world, Change::Restarted);
            take(&mut world, Change::Listed(seen("1", 1, "old")));
            take(&mut world, Change::ListComplete);
            let before = accepted(&world).expect("it is known");
            take(&mut world, Change::Restarted);
            take(&mut world, Change::Listed(seen(uid, generation, "new")));
            assert_eq!(accepted(&world), None, "the new one is not compiled: {uid} {generation}");
            take(&mut world, Change::ListComplete);
            assert!(accepted(&world).is_some_and(|after| after != before));
        }
    }
}
