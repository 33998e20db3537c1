//! The state that decisions depend on besides the request: compiled profiles, guardrails, and namespaces.
//!
//! A [`Snapshot`] is immutable. The watcher of the cluster derives a new snapshot from the last one and publishes it as
//! a whole. So a request sees one state from beginning to end, and reads it without a lock. Deriving a snapshot costs
//! only what changed: namespaces are kept in shards, and a change copies one shard. New profiles leave the namespaces
//! as they are.

mod candidates_pool;
mod namespace;
mod profile_set;
mod revision_cache;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::limits::Guardrails;
use crate::lookup::{Answer, LookedUp, Query};
use crate::profile::{CompiledProfile, ProfileName};
use crate::select::candidates::Candidates;
use crate::select::revisions::{self, TargetObject};

pub use self::namespace::Namespace;
pub use crate::namespace::{NamespaceMetadata, Pairs};
use candidates_pool::CandidatesPool;
pub use profile_set::{ProfileSet, Served, Stage};
use revision_cache::RevisionCache;

/// The number of shards of the index of namespaces.
const SHARDS: usize = 64;

type Shard = HashMap<Box<str>, Arc<Namespace>>;

/// The profiles, guardrails and namespaces at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    profiles: Arc<ProfileSet>,
    guardrails: Arc<Guardrails>,
    shards: Arc<[Arc<Shard>]>,
    /// The candidates of the namespaces, each distinct set once.
    pool: Arc<CandidatesPool>,
    /// Revisions that are not active and were requested.
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

    /// The compiled profiles.
    #[must_use]
    pub fn profiles(&self) -> &ProfileSet {
        &self.profiles
    }

    /// The platform's limits for tenants' profiles.
    #[must_use]
    pub fn guardrails(&self) -> &Guardrails {
        &self.guardrails
    }

    /// Replaces the guardrails. Snapshots derived from the result have them too.
    #[must_use]
    pub fn with_guardrails(self, guardrails: Guardrails) -> Self {
        Self { guardrails: Arc::new(guardrails), ..self }
    }

    /// Derives a snapshot with the same namespaces and other profiles.
    #[must_use]
    pub fn with_profiles(&self, profiles: ProfileSet) -> Self {
        let profiles = Arc::new(profiles);
        Self { profiles, pool: Arc::default(), ..self.clone() }
    }

    /// Derives a snapshot in which one namespace was added, changed, or (`None`) removed.
    #[must_use]
    pub fn with_namespace(&self, name: &str, namespace: Option<Namespace>) -> Self {
        let mut next = self.clone();
        next.set_namespace(name, namespace.map(Arc::new));
        next
    }

    /// Adds, changes, or (`None`) removes one namespace. Clones of this snapshot do not change: a shared shard is
    /// copied before its first change.
    pub fn set_namespace(&mut self, name: &str, namespace: Option<Arc<Namespace>>) {
        let Some(shard) = Arc::make_mut(&mut self.shards).get_mut(shard_of(name)) else { return };
        let shard = Arc::make_mut(shard);
        match namespace {
            Some(namespace) => match shard.get_mut(name) {
                Some(known) => *known = namespace,
                None => drop(shard.insert(name.into(), namespace)),
            },
            None => drop(shard.remove(name)),
        }
    }

    /// Derives a snapshot with the same profiles and other namespaces.
    #[must_use]
    pub fn with_namespaces(&self, namespaces: impl IntoIterator<Item = (Box<str>, Namespace)>) -> Self {
        self.with_shared_namespaces(namespaces.into_iter().map(|(name, namespace)| (name, Arc::new(namespace))))
    }

    /// Like [`Snapshot::with_namespaces`], for namespaces that may be shared with this snapshot, as after a relist.
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

    /// The namespace with this name.
    #[must_use]
    pub fn namespace(&self, name: &str) -> Option<Arc<Namespace>> {
        self.shards.get(shard_of(name))?.get(name).cloned()
    }

    /// All namespaces, in no order.
    pub fn namespaces(&self) -> impl Iterator<Item = (&str, &Arc<Namespace>)> {
        self.shards.iter().flat_map(|shard| shard.iter()).map(|(name, namespace)| (&**name, namespace))
    }

    /// The number of namespaces.
    #[must_use]
    pub fn namespace_count(&self) -> usize {
        self.shards.iter().map(|shard| shard.len()).sum()
    }

    /// The profiles that may act in a namespace. They are found once for each namespace and set of profiles, and stored
    /// once for all namespaces with the same result.
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

    /// Chooses the revisions that an object gets. Revisions that are not active may come from lookups.
    pub(crate) fn chosen(
        &self,
        candidates: Arc<Candidates>,
        subject: TargetObject<'_>,
        looked_up: &LookedUp,
    ) -> Arc<Candidates> {
        revisions::choose(candidates, subject, &mut |profile, revision| {
            if let Some(known) = self.revision_cache.get(profile, revision) {
                return Answer::Found(known);
            }
            match looked_up.object(&revisions::query(profile, revision)) {
                Answer::Found(object) => match self.revision_cache.compile(profile, revision, &object) {
                    Some(compiled) => Answer::Found(compiled),
                    None => Answer::Missing,
                },
                Answer::Missing => Answer::Missing,
                Answer::NotAsked => Answer::NotAsked,
                Answer::Failed(why) => Answer::Failed(why),
            }
        })
    }

    /// Chooses the revisions that an object gets, and returns those that are not here. The active revision stands in
    /// for each of them.
    pub(crate) fn standing_in(
        &self,
        candidates: Arc<Candidates>,
        subject: TargetObject<'_>,
    ) -> (Arc<Candidates>, Vec<(ProfileName, Box<str>)>) {
        let mut asked: Vec<(ProfileName, Box<str>)> = Vec::new();
        let mut fetch = |profile: &ProfileName, revision: &str| -> Answer<Arc<CompiledProfile>> {
            asked.retain(|(other, _)| other != profile);
            if let Some(known) = self.revision_cache.get(profile, revision) {
                return Answer::Found(known);
            }
            let Some(at_work) = self.profiles.iter().find(|at_work| at_work.name() == profile) else {
                return Answer::Missing;
            };
            asked.push((profile.clone(), revision.into()));
            Answer::Found(Arc::clone(at_work))
        };
        let candidates = revisions::choose(candidates, subject, &mut fetch);
        asked.retain(|(profile, _)| candidates.pinned().any(|pinned| pinned.name() == profile));
        (candidates, asked)
    }

    /// Chooses the revisions that an object gets as far as they are known, and returns the lookups for the others.
    pub(crate) fn choosing(
        &self,
        candidates: Arc<Candidates>,
        subject: TargetObject<'_>,
    ) -> (Arc<Candidates>, Vec<Query>) {
        let mut wanted: Vec<Query> = Vec::new();
        let mut fetch = |profile: &ProfileName, revision: &str| -> Answer<Arc<CompiledProfile>> {
            if let Some(known) = self.revision_cache.get(profile, revision) {
                return Answer::Found(known);
            }
            let query = revisions::query(profile, revision);
            if !wanted.contains(&query) {
                wanted.push(query);
            }
            Answer::NotAsked
        };
        let candidates = revisions::choose(candidates, subject, &mut fetch);
        (candidates, wanted)
    }
}

/// The shard of a name. The hash is not keyed. Only people who may create namespaces choose the names, and a bad
/// distribution only makes changes slower: lookups within a shard use a keyed hash.
fn shard_of(name: &str) -> usize {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    usize::try_from(hasher.finish() % SHARDS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use pillion_api::names::InjectionLevel;

    use super::*;

    #[test]
    fn a_snapshot_does_not_change_when_the_next_one_is_made() {
        let first = Snapshot::default().with_namespace("a", Some(Namespace::opted_in(InjectionLevel::Enabled)));
        let second = first.with_namespace("a", Some(Namespace::opted_in(InjectionLevel::Required)));
        let third = second.with_namespace("a", None);
        assert_eq!(first.namespace("a").and_then(|n| n.level()), Some(InjectionLevel::Enabled));
        assert_eq!(second.namespace("a").and_then(|n| n.level()), Some(InjectionLevel::Required));
        assert_eq!(third.namespace("a"), None);
        assert_eq!((first.namespace_count(), third.namespace_count()), (1, 0));
    }

    #[test]
    fn a_relist_replaces_all_namespaces() {
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
    fn namespaces_that_get_the_same_keep_it_once() {
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
        assert!(of(&second, "ns-1").is_empty(), "other profiles, other candidates");
        assert!(!of(&first, "ns-1").is_empty(), "who still serves the older set finds what it finds there");
        let gone = Arc::downgrade(&of(&first, "ns-0"));
        drop(first);
        assert!(gone.upgrade().is_none(), "what no snapshot serves is not kept by those who asked");
    }

    #[test]
    fn what_no_namespace_gets_any_more_is_forgotten() {
        let keyed =
            serde_json::json!({"request": {"annotation": "a"}, "template": {"metadata": {"labels": {"x": "y"}}}});
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
}
