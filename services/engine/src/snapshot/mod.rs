//! The state that decisions depend on in addition to the request: compiled profiles, guardrails, and namespaces.
//!
//! A [`Snapshot`] is immutable. The watcher of the cluster derives a new snapshot from the previous one and publishes
//! it as a whole. So a request uses one consistent state. Only the two caches below use locks. The cost of deriving a
//! snapshot depends only on the change: namespaces are stored in shards, and a changed namespace copies one shard. New
//! profiles do not copy namespaces.
//!
//! Derived snapshots share two caches. The first stores each distinct set of candidates once. It begins empty if the
//! profiles change. With thousands of profiles for a few namespaces each, a set needs hundreds of bytes, but ten
//! thousand namespaces only have a few hundred distinct sets. The second cache stores requested revisions that are not
//! active, in compiled form. They never become stale, because revisions are immutable. Few of them are requested, so
//! the cache is small. If it is full, the least recently used entry is replaced.

mod profile_set;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use arc_swap::ArcSwapWeak;
use pillion_api::names::FailureMode;
use pillion_api::opt_in::OptIn;
use pillion_api::revision::RevisionSpec;
use serde::Deserialize;

use crate::json::OwnedTape;
use crate::limits::Guardrails;
use crate::lookup::{Answer, LookedUp, Query};
pub use crate::namespace::{NamespaceMetadata, Pairs};
use crate::profile::{CompiledProfile, ProfileName, ProfileSource};
use crate::select::candidates::Candidates;
use crate::select::revisions::{self, TargetObject};
pub use profile_set::{ProfileSet, Served, Stage};

/// The number of shards of the index of namespaces.
const SHARDS: usize = 64;

/// The number of sets at which the pool begins to remove unused ones.
const FEW: usize = 64;

/// The capacity of the revision cache.
const MAX_REVISIONS: usize = 64;

type Shard = HashMap<Box<str>, Arc<Namespace>>;

/// The profiles, guardrails and namespaces at one point in time.
#[derive(Clone, Debug)]
pub struct Snapshot {
    profiles: Arc<ProfileSet>,
    guardrails: Arc<Guardrails>,
    shards: Arc<[Arc<Shard>]>,
    /// The candidates of the namespaces. Each distinct set is stored once.
    pool: Arc<CandidatesPool>,
    /// Requested revisions that are not active.
    revision_cache: Arc<RevisionCache>,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self::new(ProfileSet::default())
    }
}

impl Snapshot {
    /// Creates a snapshot of profiles, without namespaces.
    #[must_use]
    pub fn new(profiles: ProfileSet) -> Self {
        Self {
            profiles: Arc::new(profiles),
            guardrails: Arc::default(),
            shards: (0..SHARDS).map(|_| Arc::default()).collect(),
            pool: Arc::default(),
            revision_cache: Arc::default(),
        }
    }

    /// Returns the compiled profiles.
    #[must_use]
    pub fn profiles(&self) -> &ProfileSet {
        &self.profiles
    }

    /// Returns the guardrails: the platform's limits for tenants' profiles.
    #[must_use]
    pub fn guardrails(&self) -> &Guardrails {
        &self.guardrails
    }

    /// Replaces the guardrails. Snapshots derived from the result also have them.
    #[must_use]
    pub fn with_guardrails(self, guardrails: Guardrails) -> Self {
        Self { guardrails: Arc::new(guardrails), ..self }
    }

    /// Derives a snapshot with the same namespaces and the given profiles.
    #[must_use]
    pub fn with_profiles(&self, profiles: ProfileSet) -> Self {
        let profiles = Arc::new(profiles);
        Self { profiles, pool: Arc::default(), ..self.clone() }
    }

    /// Derives a snapshot in which one namespace is added, changed, or removed (`None`).
    #[must_use]
    pub fn with_namespace(&self, name: &str, namespace: Option<Namespace>) -> Self {
        let mut next = self.clone();
        next.set_namespace(name, namespace.map(Arc::new));
        next
    }

    /// Adds, changes, or removes (`None`) one namespace. Clones of this snapshot do not change, because a shared shard
    /// is copied before its first change.
    pub fn set_namespace(&mut self, name: &str, namespace: Option<Arc<Namespace>>) {
        let Some(shard) = Arc::make_mut(&mut self.shards).get_mut(shard_of(name)) else { return };
        let shard = Arc::make_mut(shard);
        match namespace {
            Some(namespace) => match shard.get_mut(name) {
                Some(old) => *old = namespace,
                None => drop(shard.insert(name.into(), namespace)),
            },
            None => drop(shard.remove(name)),
        }
    }

    /// Derives a snapshot with the same profiles and the given namespaces.
    #[must_use]
    pub fn with_namespaces(&self, namespaces: impl IntoIterator<Item = (Box<str>, Namespace)>) -> Self {
        self.with_shared_namespaces(namespaces.into_iter().map(|(name, namespace)| (name, Arc::new(namespace))))
    }

    /// Like [`Snapshot::with_namespaces`], but for shared namespaces. For example, after a relist this snapshot may
    /// already contain some of them.
    #[must_use]
    pub fn with_shared_namespaces(&self, namespaces: impl IntoIterator<Item = (Box<str>, Arc<Namespace>)>) -> Self {
        let mut shards: Vec<Shard> = (0..SHARDS).map(|_| Shard::new()).collect();
        for (name, namespace) in namespaces {
            if let Some(shard) = shards.get_mut(shard_of(&name)) {
                shard.insert(name, namespace);
            }
        }
        Self { shards: shards.into_iter().map(Arc::new).collect(), ..self.clone() }
    }

    /// Returns the namespace with this name, if it exists.
    #[must_use]
    pub fn namespace(&self, name: &str) -> Option<Arc<Namespace>> {
        self.shards.get(shard_of(name))?.get(name).cloned()
    }

    /// Returns all namespaces in unspecified order.
    pub fn namespaces(&self) -> impl Iterator<Item = (&str, &Arc<Namespace>)> {
        self.shards.iter().flat_map(|shard| shard.iter()).map(|(name, namespace)| (&**name, namespace))
    }

    /// Returns the number of namespaces.
    #[must_use]
    pub fn namespace_count(&self) -> usize {
        self.shards.iter().map(|shard| shard.len()).sum()
    }

    /// Returns the profiles that are available in a namespace. The namespace caches its last result, so the result is
    /// usually computed once per set of profiles. Namespaces with equal results share one copy.
    pub(crate) fn candidates(&self, name: &str, namespace: &Namespace) -> Arc<Candidates> {
        let (cluster, own) = self.profiles.indexes(name);
        if let Some(found) = namespace.cached_candidates()
            && found.is_of(cluster, own)
        {
            return found;
        }
        let found = self.pool.share(Candidates::find(cluster, own, namespace));
        namespace.cache_candidates(&found);
        found
    }

    /// Chooses the revisions for an object. Revisions that are not active come from the cache or from `looked_up`.
    pub(crate) fn choose_revisions(
        &self,
        candidates: Arc<Candidates>,
        subject: TargetObject<'_>,
        looked_up: &LookedUp,
    ) -> Arc<Candidates> {
        revisions::choose(candidates, subject, &mut |profile, revision| {
            if let Some(cached) = self.revision_cache.get(profile, revision) {
                return Answer::Found(cached);
            }
            match looked_up.object(&revisions::query(profile, revision)) {
                Answer::Found(object) => match self.revision_cache.compile(profile, revision, &object) {
                    Some(compiled) => Answer::Found(compiled),
                    None => Answer::Missing,
                },
                Answer::Missing => Answer::Missing,
                Answer::NotRequested => Answer::NotRequested,
                Answer::Failed(why) => Answer::Failed(why),
            }
        })
    }

    /// Chooses the revisions for an object without lookups. Also returns the chosen revisions that are not available;
    /// the active revisions replace them.
    pub(crate) fn choose_available(
        &self,
        candidates: Arc<Candidates>,
        subject: TargetObject<'_>,
    ) -> (Arc<Candidates>, Vec<(ProfileName, Box<str>)>) {
        let mut missing: Vec<(ProfileName, Box<str>)> = Vec::new();
        let mut fetch = |profile: &ProfileName, revision: &str| -> Answer<Arc<CompiledProfile>> {
            missing.retain(|(other, _)| other != profile);
            if let Some(cached) = self.revision_cache.get(profile, revision) {
                return Answer::Found(cached);
            }
            let Some(active) = self.profiles.iter().find(|active| active.name() == profile) else {
                return Answer::Missing;
            };
            missing.push((profile.clone(), revision.into()));
            Answer::Found(Arc::clone(active))
        };
        let candidates = revisions::choose(candidates, subject, &mut fetch);
        missing.retain(|(profile, _)| candidates.pinned().any(|pinned| pinned.name() == profile));
        (candidates, missing)
    }

    /// Chooses the revisions for an object, where available. Also returns the lookups for missing revisions.
    pub(crate) fn missing_revisions(
        &self,
        candidates: Arc<Candidates>,
        subject: TargetObject<'_>,
    ) -> (Arc<Candidates>, Vec<Query>) {
        let mut wanted: Vec<Query> = Vec::new();
        let mut fetch = |profile: &ProfileName, revision: &str| -> Answer<Arc<CompiledProfile>> {
            if let Some(cached) = self.revision_cache.get(profile, revision) {
                return Answer::Found(cached);
            }
            let query = revisions::query(profile, revision);
            if !wanted.contains(&query) {
                wanted.push(query);
            }
            Answer::NotRequested
        };
        let candidates = revisions::choose(candidates, subject, &mut fetch);
        (candidates, wanted)
    }
}

/// Returns the index of the shard for a namespace. The hash has no random key. This is safe: only users who may create
/// namespaces can choose names, and a bad distribution only makes changes slower. Lookups within a shard use a keyed
/// hash.
fn shard_of(name: &str) -> usize {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    usize::try_from(hasher.finish() % SHARDS as u64).unwrap_or(0)
}

/// A namespace: its metadata, and a weak reference to its most recent candidates.
pub struct Namespace {
    metadata: NamespaceMetadata,
    /// The candidates may be from an older set of profiles; see [`Candidates::is_of`].
    candidates: ArcSwapWeak<Candidates>,
}

impl Namespace {
    /// Creates a namespace from labels and annotations in any order. If a key is repeated, its last value is used.
    /// Pillion's own label sets the failure mode, unless [`Namespace::opting_in_by`] sets it from other labels.
    #[must_use]
    pub fn new<K: Into<Box<str>>, V: Into<Box<str>>>(
        labels: impl IntoIterator<Item = (K, V)>,
        annotations: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        NamespaceMetadata::new(labels, annotations).into()
    }

    /// Sets the failure mode from the opt-in labels of a release.
    #[must_use]
    pub fn opting_in_by(self, opt_in: &OptIn) -> Self {
        Self { metadata: self.metadata.opting_in_by(opt_in), ..self }
    }

    /// Creates a namespace that has only the opt-in label.
    #[must_use]
    pub fn opted_in(failure_mode: FailureMode) -> Self {
        NamespaceMetadata::opted_in(failure_mode).into()
    }

    /// Returns the approximate memory of the namespace, in bytes.
    #[must_use]
    pub const fn memory(&self) -> usize {
        size_of::<Self>() + self.metadata.text_bytes()
    }

    /// Returns the cached candidates, if they have not been freed.
    fn cached_candidates(&self) -> Option<Arc<Candidates>> {
        self.candidates.load().upgrade()
    }

    /// Caches the candidates without keeping them alive.
    fn cache_candidates(&self, candidates: &Arc<Candidates>) {
        self.candidates.store(Arc::downgrade(candidates));
    }
}

impl From<NamespaceMetadata> for Namespace {
    fn from(metadata: NamespaceMetadata) -> Self {
        Self { metadata, candidates: ArcSwapWeak::new(Weak::new()) }
    }
}

impl Deref for Namespace {
    type Target = NamespaceMetadata;

    fn deref(&self) -> &NamespaceMetadata {
        &self.metadata
    }
}

impl Default for Namespace {
    fn default() -> Self {
        NamespaceMetadata::default().into()
    }
}

impl Clone for Namespace {
    fn clone(&self) -> Self {
        self.metadata.clone().into()
    }
}

impl PartialEq for Namespace {
    fn eq(&self, other: &Self) -> bool {
        self.metadata == other.metadata
    }
}

impl Eq for Namespace {}

impl fmt::Debug for Namespace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.metadata.fmt(formatter)
    }
}

/// The candidates for one set of profiles. Namespaces only have weak references to them, so they are freed together
/// with the pool when the set of profiles is no longer used.
#[derive(Debug, Default)]
struct CandidatesPool {
    stored: Mutex<HashSet<Arc<Candidates>>>,
}

impl CandidatesPool {
    /// Returns stored candidates that equal the given ones. If there are none, stores the given ones and returns them.
    fn share(&self, candidates: Candidates) -> Arc<Candidates> {
        let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(equal) = stored.get(&candidates) {
            return Arc::clone(equal);
        }
        // Before the table grows, remove entries that no namespace caches and no request uses. They are from namespaces
        // that have changed or no longer exist.
        if stored.len() >= FEW && stored.len() == stored.capacity() {
            stored.retain(|candidates| Arc::weak_count(candidates) > 0 || Arc::strong_count(candidates) > 1);
        }
        let candidates = Arc::new(candidates);
        stored.insert(Arc::clone(&candidates));
        candidates
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// The name of a profile, and a revision.
type Key = (ProfileName, Box<str>);

/// Compiled revisions that are not active. All clones of a snapshot share this cache.
#[derive(Debug, Default)]
struct RevisionCache {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    compiled: HashMap<Key, (Arc<CompiledProfile>, u64)>,
    /// The number of calls of [`RevisionCache::get`] and [`Self::keep`], used as the clock of the cache.
    requests: u64,
}

/// The part of a revision object that is needed to compile it.
#[derive(Deserialize)]
struct RevisionObject {
    spec: RevisionSpec,
}

impl RevisionCache {
    fn get(&self, profile: &ProfileName, revision: &str) -> Option<Arc<CompiledProfile>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.requests += 1;
        let now = entries.requests;
        let (compiled, last_used) = entries.compiled.get_mut(&(profile.clone(), revision.into()))?;
        *last_used = now;
        Some(Arc::clone(compiled))
    }

    /// Compiles a revision object and caches the result. `None` if the object cannot be parsed, contains a different
    /// revision, or does not compile.
    fn compile(&self, profile: &ProfileName, revision: &str, object: &OwnedTape) -> Option<Arc<CompiledProfile>> {
        let RevisionObject { spec } = serde_json::from_str(object.root().raw()).ok()?;
        if *spec.revision != *revision {
            return None;
        }
        let compiled = Arc::new(ProfileSource::Revision(&spec).compile(profile).ok()?);
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).keep((profile.clone(), revision.into()), &compiled);
        Some(compiled)
    }
}

impl Entries {
    fn keep(&mut self, key: Key, compiled: &Arc<CompiledProfile>) {
        self.requests += 1;
        if self.compiled.len() >= MAX_REVISIONS && !self.compiled.contains_key(&key) {
            let oldest = self.compiled.iter().min_by_key(|(_, (_, last_used))| *last_used).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                self.compiled.remove(&oldest);
            }
        }
        self.compiled.insert(key, (Arc::clone(compiled), self.requests));
    }
}

#[cfg(test)]
mod tests {
    use pillion_api::names::FailureMode;
    use serde_json::json;

    use crate::profile::Library;

    use super::*;

    #[test]
    fn derived_snapshot_leaves_original_unchanged() {
        let first = Snapshot::default().with_namespace("a", Some(Namespace::opted_in(FailureMode::Enabled)));
        let second = first.with_namespace("a", Some(Namespace::opted_in(FailureMode::Required)));
        let third = second.with_namespace("a", None);
        assert_eq!(first.namespace("a").and_then(|n| n.failure_mode()), Some(FailureMode::Enabled));
        assert_eq!(second.namespace("a").and_then(|n| n.failure_mode()), Some(FailureMode::Required));
        assert_eq!(third.namespace("a"), None);
        assert_eq!((first.namespace_count(), third.namespace_count()), (1, 0));
    }

    #[test]
    fn relist_replaces_all_namespaces() {
        let before = Snapshot::default().with_namespace("gone", Some(Namespace::default()));
        let after = before.with_namespaces((0..1_000).map(|i| (format!("ns-{i}").into(), Namespace::default())));
        assert_eq!(after.namespace_count(), 1_000);
        assert_eq!(after.namespace("gone"), None);
        assert!(after.namespace("ns-999").is_some());
    }

    fn profile(name: &str, team: &str) -> Arc<CompiledProfile> {
        let spec = serde_json::json!({
            "activation": "Always", "template": {"metadata": {"labels": {"x": "y"}}},
            "namespaceSelector": {"matchLabels": {"team": team}},
        });
        let name = ProfileName::cluster(name);
        Arc::new(crate::profile::compile(&name, &serde_json::from_value(spec).unwrap()).unwrap())
    }

    #[test]
    fn equal_candidates_are_stored_once() {
        let (red, blue) = (profile("red", "red"), profile("blue", "blue"));
        let team = |team: &'static str| Namespace::new([("team", team)], []);
        let all = (0..1_000).map(|i| (format!("ns-{i}").into(), team(if i % 2 == 0 { "red" } else { "blue" })));
        let first = Snapshot::new(ProfileSet::new([red.clone(), blue])).with_namespaces(all);
        let of = |snapshot: &Snapshot, name: &str| snapshot.candidates(name, &snapshot.namespace(name).unwrap());
        for number in 0..1_000 {
            of(&first, &format!("ns-{number}"));
        }
        assert_eq!(first.pool.len(), 2);
        assert!(Arc::ptr_eq(&of(&first, "ns-0"), &of(&first, "ns-2")));
        assert!(!Arc::ptr_eq(&of(&first, "ns-0"), &of(&first, "ns-1")));

        let second = first.with_profiles(ProfileSet::new([red]));
        assert!(of(&second, "ns-1").is_empty(), "a snapshot with other profiles has other candidates");
        assert!(!of(&first, "ns-1").is_empty(), "the older snapshot keeps its candidates");
        let gone = Arc::downgrade(&of(&first, "ns-0"));
        drop(first);
        assert!(gone.upgrade().is_none(), "namespaces do not keep candidates alive");
    }

    #[test]
    fn unused_candidates_are_dropped() {
        let keyed =
            serde_json::json!({"requestedBy": {"annotation": "a"}, "template": {"metadata": {"labels": {"x": "y"}}}});
        let name = ProfileName::cluster("keyed");
        let keyed = crate::profile::compile(&name, &serde_json::from_value(keyed).unwrap()).unwrap();
        let mut snapshot = Snapshot::new(ProfileSet::new([Arc::new(keyed)]));
        for number in 0..1_000 {
            let namespace = Namespace::new([], [("a".to_owned(), number.to_string())]);
            snapshot.set_namespace("changing", Some(Arc::new(namespace)));
            snapshot.candidates("changing", &snapshot.namespace("changing").unwrap());
        }
        assert!(snapshot.pool.len() < 300, "{}", snapshot.pool.len());
    }

    #[test]
    fn evicts_least_recently_used_revision() {
        let (cache, name) = (RevisionCache::default(), ProfileName::cluster("proxy"));
        let spec = |number: usize| {
            let spec = json!({"template": {"metadata": {"labels": {"a": number.to_string()}}}});
            let whole = ProfileSource::Author(&serde_json::from_value(spec).unwrap(), &Library::new([]))
                .flatten(&name)
                .unwrap();
            whole.to_revision(&name, Some(1), None).unwrap()
        };
        let revision = |number: usize| spec(number).revision;
        let add = |number: usize| {
            let object = OwnedTape::parse(json!({"spec": spec(number)}).to_string()).unwrap();
            assert!(cache.compile(&name, &revision(number), &object).is_some());
        };
        let is_kept = |number: usize| cache.get(&name, &revision(number)).is_some();
        (0..MAX_REVISIONS).for_each(add);
        assert!(is_kept(0), "the entry was just used");
        add(MAX_REVISIONS);
        assert!(!is_kept(1));
        // All other entries remain.
        assert!((2..=MAX_REVISIONS).chain([0]).all(is_kept));
        // Adding a revision that is already cached evicts no other entry.
        add(MAX_REVISIONS);
        assert!((2..=MAX_REVISIONS).chain([0]).all(is_kept));
    }
}
