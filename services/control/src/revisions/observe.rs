//! The leader's state of profiles and their revisions, from the watches and from the specs that earlier leaders
//! accepted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use futures::stream::{self, BoxStream, Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{ApiResource, DynamicObject, ListParams, PartialObjectMeta};
use kube::runtime::watcher::watcher;
use kube::{Api, Client, Resource};
use pillion_api::names::GROUP;
use pillion_api::revision::{RevisionBounds, RevisionSpec, object_name};
use pillion_api::{ClusterInjectionProfile, ClusterProfileRevision, InjectionProfile, ProfileRevision};
use pillion_engine::profile::{Diagnostic, Limits, ProfileName, ProfileSource};
use pillion_engine::snapshot::Namespace;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::conflicts::{Conflict, conflicts};
use super::dry_runs::{DryRunRequest, DryRuns};
use super::followed::{Followed, FollowedProfiles, RolloutLimits};
use super::opted_in::{Coverage, OptedIn};
use super::plan::{Accepted, Observed};
use super::{BOUNDED_BY_PARENT, BOUNDS_LABEL};
use crate::client::config;
use crate::guard::guarded;
use crate::informer::cache_metrics::{CacheMetrics, WatchedKind};
use crate::informer::index::{Index, Update};
use crate::informer::objects::{self, Change, StoredProfile, read_status};
use crate::informer::share;
use crate::informer::watch::{self, PROFILES_PER_PAGE, Publisher, Watches, changes};

/// An existing revision.
#[derive(Clone, Debug)]
pub(super) struct ExistingRevision {
    owner: Box<str>,
    created: Timestamp,
    bounded_by_parent: bool,
}

/// A change of the metadata of revisions.
pub(super) type RevisionChange = Change<RevisionObject, RevisionObject>;

/// The metadata of an object that holds a revision.
#[derive(Clone, Debug)]
pub(super) struct RevisionObject {
    namespace: Option<Box<str>>,
    object: Box<str>,
    owner: Box<str>,
    created: Timestamp,
    bounded_by_parent: bool,
}

/// The existing revisions of one profile, with their creation times.
#[derive(Default)]
pub(super) struct ExistingRevisions {
    pub(super) created: BTreeMap<Box<str>, Timestamp>,
    pub(super) bounded_by_parent: BTreeSet<Box<str>>,
}

/// Namespace and name of an object.
type ObjectKey = (Option<Box<str>>, Box<str>);

/// The list of revisions of one kind of profile.
#[derive(Default)]
struct RevisionList {
    unfinished: BTreeSet<ObjectKey>,
    is_complete: bool,
}

/// The leader's state of all profiles, revisions and dry runs.
pub(super) struct RevisionStore {
    /// Publishes snapshots. The publisher's index has the profiles with their specs and published revisions.
    publisher: Publisher,
    revisions: BTreeMap<ObjectKey, ExistingRevision>,
    cluster: RevisionList,
    namespaced: RevisionList,
    /// Revisions that were deleted during the current round of writes.
    deleted: BTreeSet<ObjectKey>,
    /// The hashes of accepted revisions that cannot be stored, with their errors.
    unstorable: HashMap<ProfileName, (Box<str>, Vec<Diagnostic>)>,
    /// Errors of the stored generations.
    diagnostics: HashMap<ProfileName, Vec<Diagnostic>>,
    /// The bounds of the accepted revisions.
    pub(super) bounds: HashMap<ProfileName, RevisionBounds>,
    /// Revisions that another build accepted: the hash that this build computes, and the hash in the stored revision's
    /// name.
    aliases: HashMap<ProfileName, (Box<str>, Box<str>)>,
    /// The conflict of each profile that has one.
    conflicts: HashMap<ProfileName, Conflict>,
    /// The dry runs of accepted revisions.
    pub(super) dry_runs: DryRuns,
    /// Dry runs to start.
    pub(super) due_dry_runs: Vec<DryRunRequest>,
    /// The coverage of the safety net, or the reason why there is no safety net.
    pub(super) coverage: Result<Coverage, &'static str>,
    namespaces_changed: bool,
    counts: HashMap<String, i64>,
    /// The names of opted-in namespaces, by the keys and values of their labels. `None` until they are needed.
    namespaces_by_label: Option<NamespacesByLabel>,
}

type NamespacesByLabel = HashMap<Box<str>, HashMap<Box<str>, Vec<Box<str>>>>;

/// The metadata and the status of a profile. The status names the accepted revision.
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

impl RevisionStore {
    pub(super) fn new(publisher: Publisher, memory: share::Limits) -> Self {
        Self {
            publisher: publisher.accepting_texts(memory),
            revisions: BTreeMap::new(),
            cluster: RevisionList::default(),
            namespaced: RevisionList::default(),
            deleted: BTreeSet::new(),
            unstorable: HashMap::new(),
            diagnostics: HashMap::new(),
            bounds: HashMap::new(),
            aliases: HashMap::new(),
            conflicts: HashMap::new(),
            dry_runs: DryRuns::default(),
            due_dry_runs: Vec::new(),
            coverage: Ok(Coverage::default()),
            namespaces_changed: true,
            counts: HashMap::new(),
            namespaces_by_label: None,
        }
    }

    /// Reads the specs that earlier leaders accepted. Call this before the watches start.
    ///
    /// # Errors
    /// The API server is unavailable or returned an error.
    pub(super) async fn read_accepted(&mut self, client: &Client) -> kube::Result<()> {
        let mut accepted: HashMap<ProfileName, (Box<str>, Box<str>)> = HashMap::new();
        let mut note = |object: WithStatus| {
            let status = read_status(object.status);
            let uid = object.metadata.uid.clone().unwrap_or_default();
            if let Some(revision) = status.accepted_revision {
                accepted.insert(objects::name(object.metadata), (uid.into(), revision.into()));
            }
        };
        each::<ClusterInjectionProfile, _>(client, &mut note).await?;
        each::<InjectionProfile, _>(client, &mut note).await?;

        let mut seed = |object: WithSpec| {
            let WithSpec { metadata, spec } = object;
            let name =
                ProfileName { namespace: metadata.namespace.map(Into::into), name: spec.profile.as_str().into() };
            if let Some((uid, revision)) = accepted.get(&name)
                && **revision == *spec.revision
            {
                self.accept(name, uid.clone(), &spec);
            }
        };
        each::<ClusterProfileRevision, _>(client, &mut seed).await?;
        each::<ProfileRevision, _>(client, &mut seed).await
    }

    /// Adds a revision that an earlier leader accepted, as the last valid version of its profile.
    fn accept(&mut self, name: ProfileName, uid: Box<str>, spec: &RevisionSpec) {
        self.bounds.insert(name.clone(), spec.bounds);
        let now =
            guarded(&name, || ProfileSource::Revision(spec).flatten(&name).ok().and_then(|whole| whole.revision()));
        if let Ok(Some(now)) = now {
            self.aliases.insert(name.clone(), (now, spec.revision.as_str().into()));
        }
        self.index_mut().seed(name, uid, spec.source.as_deref().unwrap_or(&spec.text));
    }

    /// Discards the stored hash of an accepted revision that another build computed. From now on, this build's hash is
    /// used.
    pub(super) fn forget_alias(&mut self, name: &ProfileName) {
        self.aliases.remove(name);
    }

    /// Returns the index of profiles and namespaces.
    pub(super) const fn index(&self) -> &Index {
        self.publisher.index()
    }

    /// Returns the index, to apply updates that do not come from the watches.
    pub(super) const fn index_mut(&mut self) -> &mut Index {
        self.publisher.index_mut()
    }

    /// Returns up to `count` profiles that waited for memory, and may now fit into their share. Returns each once.
    pub(super) fn take_readable(&mut self, count: usize) -> Vec<Arc<StoredProfile>> {
        let names = self.index_mut().take_readable(count);
        names.iter().filter_map(|name| self.index().stored_profile(name)).cloned().collect()
    }

    /// Starts the watches of profiles and namespaces.
    pub(super) fn watch(&self, client: Client) -> Watches {
        self.publisher.watch(client)
    }

    /// Publishes the next snapshot if it has changed, and queues the revisions to fetch.
    pub(super) fn publish(&mut self, watches: &mut Watches) {
        self.publisher.publish(watches);
    }

    /// Applies a change of profiles or namespaces, or a fetched revision.
    pub(super) fn update(&mut self, update: Update) {
        self.namespaces_changed |= matches!(update, Update::Namespace(_));
        let is_of_texts = !matches!(update, Update::Fetched(..));
        for broken in self.index_mut().update(update) {
            watch::report(&broken);
            if is_of_texts {
                self.diagnostics.insert(broken.name, broken.diagnostics);
            }
        }
    }

    /// Removes the data of deleted profiles, and the errors of corrected ones. Also updates the conflicts and the
    /// bounds.
    pub(super) fn remove_stale(&mut self) {
        let index = self.publisher.index();
        let exists = |name: &ProfileName| index.state(name).is_some();
        self.diagnostics.retain(|name, _| index.state(name).is_some_and(|state| state.broken));
        self.bounds.retain(|name, _| exists(name));
        self.aliases.retain(|name, _| exists(name));
        self.unstorable.retain(|name, _| exists(name));
        self.dry_runs.retain(exists);
        let good = index.stored().filter_map(|stored| index.state(&stored.name)?.good);
        if let Ok(found) = guarded(&"the conflicts of profiles", || conflicts(good.map(|good| &**good))) {
            self.conflicts = found;
        }
        for name in index.stored().map(|stored| &stored.name) {
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

    /// Applies a change of the metadata of revisions.
    pub(super) fn update_revisions(&mut self, change: RevisionChange, is_cluster: bool) {
        let list = if is_cluster { &mut self.cluster } else { &mut self.namespaced };
        match change {
            Change::Restarted => list.unfinished.clear(),
            Change::Listed(object) => {
                list.unfinished.insert((object.namespace.clone(), object.object.clone()));
                self.add_revision(object);
            }
            Change::ListComplete => {
                let listed = std::mem::take(&mut list.unfinished);
                list.is_complete = true;
                self.revisions.retain(|key, _| key.0.is_none() != is_cluster || listed.contains(key));
            }
            Change::Applied(object) => self.add_revision(object),
            Change::Deleted(object) => {
                let key = (object.namespace, object.object);
                self.revisions.remove(&key);
                self.deleted.insert(key);
            }
        }
    }

    fn add_revision(&mut self, object: RevisionObject) {
        let RevisionObject { namespace, object, owner, created, bounded_by_parent } = object;
        self.revisions.insert((namespace, object), ExistingRevision { owner, created, bounded_by_parent });
    }

    /// Marks the start of a round of writes. [`Self::add_created`] ignores only revisions that are deleted after this.
    pub(super) fn start_writes(&mut self) {
        self.deleted.clear();
    }

    /// Adds a created revision before the watch delivers it, unless it was deleted meanwhile.
    pub(super) fn add_created(&mut self, metadata: ObjectMeta) {
        let object = RevisionObject::new(metadata);
        if !self.deleted.contains(&(object.namespace.clone(), object.object.clone())) {
            self.add_revision(object);
        }
    }

    /// Records that an accepted revision cannot be stored because of `fault`.
    pub(super) fn set_unstorable(&mut self, name: ProfileName, revision: Box<str>, fault: Diagnostic) {
        self.unstorable.insert(name, (revision, vec![fault]));
    }

    /// Removes a revision that the leader has deleted, before the watch delivers the deletion.
    pub(super) fn remove_revision(&mut self, name: &ProfileName, revision: &str) {
        self.revisions.remove(&(name.namespace.clone(), object_name(&name.name, revision).into()));
    }

    /// Whether all first lists are complete.
    pub(super) const fn is_complete(&self) -> bool {
        self.index().is_complete() && self.cluster.is_complete && self.namespaced.is_complete
    }

    /// Returns the number of profiles whose stored generation is invalid.
    pub(super) fn rejected(&self) -> usize {
        self.diagnostics.len()
    }

    /// Returns the existing revisions of the profile with this UID, by hash.
    pub(super) fn existing(&self, name: &ProfileName, uid: &str) -> ExistingRevisions {
        let mut existing = ExistingRevisions::default();
        self.each_of(name, uid, |revision, known| {
            existing.created.insert(revision.into(), known.created);
            if known.bounded_by_parent {
                existing.bounded_by_parent.insert(revision.into());
            }
        });
        existing
    }

    fn each_of(&self, name: &ProfileName, uid: &str, mut see: impl FnMut(&str, &ExistingRevision)) {
        // The names of a profile's revisions have a common prefix, which is followed by a hash.
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

    /// Returns the observed state of a profile. `None` until its current generation is compiled.
    pub(super) fn observe<'w>(
        &'w self,
        profile: &'w StoredProfile,
        existing: &'w ExistingRevisions,
        namespaces: i64,
    ) -> Option<Observed<'w>> {
        let name = &profile.name;
        let state = self.index().state(name).filter(|state| !state.due)?;
        let accepted = state.good.map(|good| {
            let alias = self.aliases.get(name).filter(|(now, _)| **now == *good.revision());
            let revision = alias.map_or_else(|| good.revision().into(), |(_, stored)| stored.clone());
            Accepted { revision, activation: good.activation(), rollout: good.rollout().cloned() }
        });
        let rollback = profile.rollback.as_deref();
        let bounds = self.bounds.get(name).copied();
        let rejected = self.diagnostics.get(name).map(Vec::as_slice).filter(|_| state.broken);
        let unstorable = self
            .unstorable
            .get(name)
            .filter(|(revision, _)| accepted.as_ref().is_some_and(|accepted| accepted.revision == *revision));
        let (accepted, rejected) = match unstorable {
            Some((_, faults)) => (None, Some(faults.as_slice())),
            None => (accepted, rejected),
        };
        let generation = profile.generation;
        let status = &profile.status;
        let verdict = accepted.as_ref().and_then(|accepted| self.dry_runs.verdict(name, &accepted.revision));
        Some(Observed {
            generation,
            is_namespaced: name.namespace.is_some(),
            accepted,
            rejected,
            bounds,
            status,
            rollback,
            existing: &existing.created,
            bounded_by_parent: &existing.bounded_by_parent,
            namespaces,
            conflict: self.conflicts.get(name),
            verdict,
            uncovered: self.uncovered(name),
        })
    }

    /// Returns the profiles for the task that upgrades running pods.
    pub(super) fn followed(&self, limits: RolloutLimits) -> FollowedProfiles {
        let mut followed = FollowedProfiles::default();
        for profile in self.index().stored() {
            let state = self.index().state(&profile.name);
            let rollout = state.as_ref().and_then(|state| state.good?.rollout());
            // The last valid spec may come from a revision, which contains no rollout. So only a valid stored spec
            // shows that the strategy was removed.
            let is_current = state.as_ref().is_some_and(|state| !state.due && !state.broken && state.good.is_some());
            let has_strategy = rollout.is_some_and(|rollout| rollout.strategy.unwrap_or_default().has_running_pods());
            if is_current && !has_strategy && profile.status.upgrade.is_some() {
                followed.ended.push((profile.name.clone(), profile.resource_version.clone()));
            }
            followed.active.extend(Followed::read(profile, rollout, limits));
        }
        followed
    }

    /// Returns the profiles that opt in to the safety net.
    pub(super) fn opted_in(&self) -> Vec<OptedIn> {
        let opted_in = self.index().stored().filter(|profile| self.has_safety_net(&profile.name));
        opted_in.filter_map(|profile| OptedIn::read(profile)).collect()
    }

    fn has_safety_net(&self, name: &ProfileName) -> bool {
        self.index().state(name).and_then(|state| state.good).is_some_and(|good| good.has_safety_net())
    }

    /// Returns the reason why the safety net does not cover a profile that opts in.
    fn uncovered(&self, name: &ProfileName) -> Option<&str> {
        if !self.has_safety_net(name) {
            return None;
        }
        match &self.coverage {
            Ok(coverage) => coverage.get(&name.name)?.as_ref().err().map(String::as_str),
            Err(why) => Some(why),
        }
    }

    /// Whether namespaces have changed since the last [`Self::reset_counts`].
    pub(super) const fn namespaces_changed(&self) -> bool {
        self.namespaces_changed
    }

    /// Discards the counts of namespaces.
    pub(super) fn reset_counts(&mut self) {
        self.counts.clear();
        self.namespaces_changed = false;
    }

    /// Returns the number of opted-in namespaces that a profile may match, as of the last [`Self::reset_counts`].
    pub(super) fn count(&mut self, name: &ProfileName) -> i64 {
        let good = self.index().state(name).and_then(|state| state.good).cloned();
        let Some(selector) = good.as_ref().map(|good| good.namespace_selector()) else { return 0 };
        let key = match &name.namespace {
            Some(namespace) => format!("{namespace} {selector:?}"),
            None => format!("{selector:?}"),
        };
        if let Some(count) = self.counts.get(&key) {
            return *count;
        }
        let is_in = |name: &str, namespace: &Namespace| {
            is_counted(name, namespace) && selector.is_none_or(|selector| selector.matches(|key| namespace.label(key)))
        };
        let mut by_label = self.namespaces_by_label.take();
        let is_named = |name: &str| self.index().namespace(name).is_some_and(|namespace| is_in(name, &namespace));
        let count = match (&name.namespace, selector) {
            (Some(own), _) => usize::from(is_named(own)),
            // In a large cluster, a search through all namespaces for each profile would take seconds.
            (None, Some(selector)) if !selector.match_labels.is_empty() => {
                let by_label = by_label.get_or_insert_with(|| namespaces_by_label(self.index()));
                let with = |(key, value): (&String, &String)| by_label.get(&**key)?.get(&**value).map(Vec::as_slice);
                let lists = selector.match_labels.iter().map(|label| with(label).unwrap_or_default());
                let fewest = lists.min_by_key(|names| names.len()).unwrap_or_default();
                fewest.iter().filter(|name| is_named(name)).count()
            }
            (None, _) => self.index().namespaces().filter(|(name, namespace)| is_in(name, namespace)).count(),
        };
        self.namespaces_by_label = by_label;
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.counts.insert(key, count);
        count
    }

    /// Releases the memory that only [`Self::count`] needs.
    pub(super) fn end_counting(&mut self) {
        self.namespaces_by_label = None;
    }
}

/// Whether profiles may apply in a namespace.
fn is_counted(name: &str, namespace: &Namespace) -> bool {
    namespace.failure_mode().is_some() && !pillion_api::names::SYSTEM_NAMESPACES.contains(&name)
}

fn namespaces_by_label(index: &Index) -> NamespacesByLabel {
    let mut by_label = NamespacesByLabel::new();
    for (name, namespace) in index.namespaces().filter(|(name, namespace)| is_counted(name, namespace)) {
        for (key, value) in namespace.labels() {
            by_label.entry(key.into()).or_default().entry(value.into()).or_default().push(name.into());
        }
    }
    by_label
}

impl RevisionObject {
    fn new(metadata: ObjectMeta) -> Self {
        let bounds = metadata.labels.and_then(|mut labels| labels.remove(BOUNDS_LABEL));
        // Other clients may have added owner references before or after the profile's.
        let is_profile = |owner: &&OwnerReference| {
            owner.api_version.split('/').next() == Some(GROUP)
                && [InjectionProfile::KIND, ClusterInjectionProfile::KIND].contains(&&*owner.kind)
        };
        let owner = metadata.owner_references.iter().flatten().find(is_profile).map(|owner| owner.uid.clone());
        Self {
            namespace: metadata.namespace.map(Into::into),
            object: metadata.name.unwrap_or_default().into(),
            owner: owner.unwrap_or_default().into(),
            created: metadata.creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            bounded_by_parent: bounds.as_deref() == Some(BOUNDED_BY_PARENT),
        }
    }
}

/// Watches the metadata of all revisions. The flag of each change is true for revisions of cluster profiles. kube's
/// `Store` is not used, since it would keep `managedFields` too.
pub(super) fn watch_revisions(client: &Client) -> impl Stream<Item = (RevisionChange, bool)> + Send + Unpin + use<> {
    stream::select_all([
        revisions_of::<ClusterProfileRevision>(client, WatchedKind::ClusterProfiles, true),
        revisions_of::<ProfileRevision>(client, WatchedKind::Profiles, false),
    ])
}

/// Watches the metadata of revisions of one kind.
fn revisions_of<K>(client: &Client, kind: WatchedKind, is_cluster: bool) -> BoxStream<'static, (RevisionChange, bool)>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let read = |object: PartialObjectMeta<K>| RevisionObject::new(object.metadata);
    let api = Api::<PartialObjectMeta<K>>::all(client.clone());
    let changes = changes(watcher(api, config(PROFILES_PER_PAGE)), kind, CacheMetrics::default(), read, read);
    changes.map(move |change| (change, is_cluster)).boxed()
}

/// Reads all objects of a kind, page by page. Objects that this build cannot parse are skipped.
async fn each<K, T>(client: &Client, take: &mut impl FnMut(T)) -> kube::Result<()>
where
    K: Resource<DynamicType = ()>,
    T: DeserializeOwned,
{
    let api = Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<K>(&()));
    let mut parameters = ListParams::default().limit(PROFILES_PER_PAGE);
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
mod tests;
