//! State of the audit: the stored data of each pod, the pods that must be judged, and the pods that must be read as a
//! whole. This module does no I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use pillion_engine::audit::{self, MatchState};
use pillion_engine::lookup::{LookedUp, Wanted};
use pillion_engine::profile::CompiledProfile;
use pillion_engine::snapshot::{Namespace, Snapshot};
use pillion_json::{OwnedTape, Value};

use super::facts::ClusterFacts;
use super::pod::{AuditedPod, PodChange, PodEntry, Pool, ProfileVerdict, RecordedProfiles, read};
use super::report::{Report, Reporter};
use crate::guard::guarded;
use crate::informer::objects::Change;

/// Maximum number of a namespace's pods that are read individually. If more are due, the namespace is listed.
const MAX_SINGLE_READS: usize = 8;

/// A request for whole pods, not only their metadata. The caller passes each pod that it reads to [`Auditor::whole`],
/// and then calls [`Auditor::done`] once for the request. If the request fails, it calls [`Auditor::failed`] instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodFetch {
    /// Read one pod.
    Get {
        /// The namespace of the pod.
        namespace: Box<str>,
        /// The name of the pod.
        name: Box<str>,
    },
    /// Read a page of a namespace's pods.
    List {
        /// The namespace.
        namespace: Box<str>,
        /// The continue token of the page; `None` for the first one.
        from: Option<String>,
    },
}

impl PodFetch {
    pub(super) fn namespace(&self) -> &str {
        let (Self::Get { namespace, .. } | Self::List { namespace, .. }) = self;
        namespace
    }
}

/// An audited pod whose record lists a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfilePod {
    /// The namespace of the pod.
    pub namespace: Box<str>,
    /// The name of the pod.
    pub name: Box<str>,
    /// The UID of the pod as a number; 0 if it is missing or invalid.
    pub uid: u128,
    /// The recorded revision of the profile or, after an upgrade in place, the revision of the upgrade.
    pub revision: Box<str>,
    /// Kind and name of the pod's controller, such as `ReplicaSet/web-5d8`.
    pub owner: Option<Arc<Box<str>>>,
    /// A JSON object with the pod's `metadata` before injection: labels, annotations and the controlling owner.
    pub metadata: Arc<Box<str>>,
}

/// The audit's state for the pods of all opted-in namespaces.
#[derive(Debug)]
pub struct Auditor {
    snapshot: Arc<Snapshot>,
    namespaces: BTreeMap<Box<str>, NamespaceState>,
    /// Namespaces for which the webhook is never called, whatever their labels.
    excluded: BTreeSet<Box<str>>,
    /// Number of the watch's current or last list. A pod with an older number was not in that list.
    epoch: u32,
    is_listed: bool,
    /// Namespaces whose pods must be judged again. If the value is `true`, results from whole pods are discarded.
    unjudged: BTreeMap<Box<str>, bool>,
    due: BTreeMap<Box<str>, Due>,
    /// Running lists, by namespace.
    listings: BTreeMap<Box<str>, Listing>,
    /// Namespaces with a running request, at most one request for each. The value has the pods that the watch reported
    /// during the request: the response may have older versions of them.
    in_flight: BTreeMap<Box<str>, HashSet<Box<str>>>,
    /// Namespace of the last fetch. The next fetch is for a namespace that follows it, so that all of them make
    /// progress.
    last: Box<str>,
    pools: InternPools,
}

/// An opted-in namespace.
#[derive(Debug)]
struct NamespaceState {
    namespace: Arc<Namespace>,
    /// When the audit first saw the namespace as opted in, in seconds since 1970.
    since: i64,
    pods: HashMap<Box<str>, PodEntry>,
}

/// The pods of a namespace that must be read as a whole.
#[derive(Debug)]
enum Due {
    All,
    Some(BTreeSet<Box<str>>),
}

/// A list of a namespace's pods, page by page.
#[derive(Debug, Default)]
struct Listing {
    next: Option<String>,
    /// Pods deleted during the list. A later page may still contain them.
    gone: HashSet<Box<str>>,
}

/// Interned values that pods share.
#[derive(Debug, Default)]
struct InternPools {
    texts: Pool<Box<str>>,
    records: Pool<RecordedProfiles>,
    verdicts: Pool<Vec<ProfileVerdict>>,
}

impl Auditor {
    /// Creates the state for the opted-in namespaces of `snapshot`, without pods: [`Auditor::update`] adds them. `now`
    /// is in seconds since 1970.
    #[must_use]
    pub fn new(snapshot: Arc<Snapshot>, now: i64) -> Self {
        let mut auditor = Self {
            snapshot: Arc::new(Snapshot::default()),
            namespaces: BTreeMap::new(),
            excluded: BTreeSet::new(),
            epoch: 0,
            is_listed: false,
            unjudged: BTreeMap::new(),
            due: BTreeMap::new(),
            listings: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            last: Box::default(),
            pools: InternPools::default(),
        };
        auditor.set_snapshot(snapshot, now);
        // The first list delivers all pods, so no namespace needs to be read.
        auditor.due.clear();
        auditor
    }

    /// Number of tracked pods.
    #[must_use]
    pub fn pods(&self) -> usize {
        self.namespaces.values().map(|state| state.pods.len()).sum()
    }

    /// The current profiles and namespaces.
    #[must_use]
    pub const fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// The namespaces for which the webhook is never called.
    #[must_use]
    pub const fn excluded(&self) -> &BTreeSet<Box<str>> {
        &self.excluded
    }

    /// Replaces profiles and namespaces. Returns whether pods must be judged again, by [`Auditor::judge`].
    pub fn set_snapshot(&mut self, snapshot: Arc<Snapshot>, now: i64) -> bool {
        let other_profiles = !std::ptr::eq(self.snapshot.profiles(), snapshot.profiles());
        let mut seen = BTreeSet::new();
        let excluded = &self.excluded;
        let is_audited =
            |name: &str, namespace: &Namespace| namespace.failure_mode().is_some() && !excluded.contains(name);
        for (name, namespace) in snapshot.namespaces().filter(|(name, namespace)| is_audited(name, namespace)) {
            seen.insert(name);
            if let Some(state) = self.namespaces.get_mut(name) {
                let is_other = state.namespace != *namespace;
                state.namespace = Arc::clone(namespace);
                if is_other || other_profiles {
                    *self.unjudged.entry(name.into()).or_default() |= is_other;
                }
            } else {
                let state = NamespaceState { namespace: Arc::clone(namespace), since: now, pods: HashMap::new() };
                self.namespaces.insert(name.into(), state);
                self.due.insert(name.into(), Due::All);
            }
        }
        self.namespaces.retain(|name, _| seen.contains(&**name));
        self.due.retain(|name, _| seen.contains(&**name));
        self.listings.retain(|name, _| seen.contains(&**name));
        self.unjudged.retain(|name, _| seen.contains(&**name));
        drop(seen);
        self.snapshot = snapshot;
        !self.unjudged.is_empty()
    }

    /// Replaces the excluded namespaces. Returns whether pods must be judged again.
    pub(crate) fn set_excluded(&mut self, excluded: BTreeSet<Box<str>>, now: i64) -> bool {
        if self.excluded == excluded {
            return !self.unjudged.is_empty();
        }
        self.excluded = excluded;
        self.set_snapshot(Arc::clone(&self.snapshot), now)
    }

    /// Applies a change from the watch.
    pub fn update(&mut self, change: PodChange) {
        match change {
            Change::Restarted => self.epoch = self.epoch.wrapping_add(1),
            Change::Listed(audited) | Change::Applied(audited) => {
                self.record_newer(&audited.namespace, &audited.name);
                self.take(audited);
            }
            Change::ListComplete => {
                let epoch = self.epoch;
                for state in self.namespaces.values_mut() {
                    state.pods.retain(|_, pod| pod.epoch == epoch);
                    state.pods.shrink_to(state.pods.len() * 2);
                }
                self.is_listed = true;
            }
            Change::Deleted((namespace, name)) => {
                self.record_newer(&namespace, &name);
                self.remove(&namespace, &name);
            }
        }
    }

    fn record_newer(&mut self, namespace: &str, name: &str) {
        if let Some(newer) = self.in_flight.get_mut(namespace) {
            newer.insert(name.into());
        }
    }

    fn remove(&mut self, namespace: &str, name: &str) {
        if let Some(listing) = self.listings.get_mut(namespace) {
            listing.gone.insert(name.into());
        }
        if let Some(state) = self.namespaces.get_mut(namespace) {
            state.pods.remove(name);
        }
        if let Some(Due::Some(names)) = self.due.get_mut(namespace) {
            names.remove(name);
        }
    }

    fn take(&mut self, audited: AuditedPod) {
        if audited.is_exempt {
            return self.remove(&audited.namespace, &audited.name);
        }
        let Some(state) = self.namespaces.get_mut(&audited.namespace) else { return };
        let AuditedPod { namespace, name, uid, created, owner, metadata, has, .. } = audited;
        let known = state.pods.get_mut(&name).filter(|known| known.uid == uid);
        let is_same = |known: &PodEntry| *known.metadata == metadata;
        let verdict = match known {
            Some(known) if is_same(known) && *known.has == has => {
                known.epoch = self.epoch;
                return;
            }
            Some(known) if is_same(known) => Arc::clone(&known.verdict),
            _ => Arc::default(),
        };
        let pools = &mut self.pools;
        let mut entry = PodEntry {
            uid,
            created,
            epoch: self.epoch,
            owner: owner.map(|owner| pools.texts.share(owner)),
            metadata: pools.texts.share(metadata),
            has: pools.records.share(has),
            verdict,
        };
        entry.verdict = judge(&self.snapshot, (&namespace, &state.namespace), &entry, false, pools);
        if is_open(&entry.verdict) {
            add_due(&mut self.due, &namespace, &name);
        }
        state.pods.insert(name, entry);
    }

    /// Judges pods again, one whole namespace after another, until at least `most` pods are judged. Returns whether
    /// more pods must be judged.
    pub fn judge(&mut self, most: usize) -> bool {
        let mut judged = 0;
        while judged < most {
            let Some((name, discards_results)) = self.unjudged.pop_first() else { break };
            let Some(state) = self.namespaces.get_mut(&name) else { continue };
            judged += state.pods.len().max(1);
            // Pods with equal stored data are judged once. A key of the map contains the address of the old verdict, so
            // the map also owns that verdict: otherwise, the address could be reused.
            let mut verdicts = HashMap::new();
            for (pod_name, pod) in &mut state.pods {
                let key = (Arc::as_ptr(&pod.metadata), Arc::as_ptr(&pod.has), Arc::as_ptr(&pod.verdict));
                let (_, verdict) = verdicts.entry(key).or_insert_with(|| {
                    let verdict =
                        judge(&self.snapshot, (&name, &state.namespace), pod, discards_results, &mut self.pools);
                    (Arc::clone(&pod.verdict), verdict)
                });
                pod.verdict = Arc::clone(verdict);
                if is_open(verdict) {
                    add_due(&mut self.due, &name, pod_name);
                }
            }
        }
        !self.unjudged.is_empty()
    }

    /// Returns the next fetch. Namespaces take turns. The caller must call [`Self::done`] or [`Self::failed`] for each
    /// fetch.
    pub(crate) fn next_fetch(&mut self) -> Option<PodFetch> {
        let namespace = self.next_namespace()?;
        self.last.clone_from(&namespace);
        let pod_fetch = self.fetch_of(namespace)?;
        self.in_flight.insert(pod_fetch.namespace().into(), HashSet::new());
        Some(pod_fetch)
    }

    fn fetch_of(&mut self, namespace: Box<str>) -> Option<PodFetch> {
        if let Some(listing) = self.listings.get(&namespace) {
            return Some(PodFetch::List { namespace, from: listing.next.clone() });
        }
        let due = self.due.get_mut(&namespace)?;
        if let Due::Some(names) = due
            && names.len() <= MAX_SINGLE_READS
        {
            let name = names.pop_first();
            if names.is_empty() {
                self.due.remove(&namespace);
            }
            return Some(PodFetch::Get { namespace, name: name? });
        }
        self.due.remove(&namespace);
        self.listings.insert(namespace.clone(), Listing::default());
        Some(PodFetch::List { namespace, from: None })
    }

    /// Returns the next namespace in alphabetical order after the last one, among those that have pods to read and no
    /// running request. After the end, it starts from the beginning.
    fn next_namespace(&self) -> Option<Box<str>> {
        fn after<'m, V>(map: &'m BTreeMap<Box<str>, V>, from: Bound<&str>) -> impl Iterator<Item = &'m str> {
            map.range::<str, _>((from, Bound::Unbounded)).map(|(name, _)| &**name)
        }
        let is_free = |name: &&str| !self.in_flight.contains_key(*name);
        let first = |from| {
            let (due, listed) = (after(&self.due, from).find(is_free), after(&self.listings, from).find(is_free));
            due.into_iter().chain(listed).min().map(Into::into)
        };
        first(Bound::Excluded(&*self.last)).or_else(|| first(Bound::Unbounded))
    }

    /// Records that a fetch is done. `next` is the continue token of the next page. `is_there`: whether the pod of a
    /// [`PodFetch::Get`] exists.
    pub fn done(&mut self, pod_fetch: &PodFetch, next: Option<String>, is_there: bool) {
        self.in_flight.remove(pod_fetch.namespace());
        match pod_fetch {
            PodFetch::Get { namespace, name } if !is_there => self.remove(namespace, name),
            PodFetch::Get { .. } => {}
            PodFetch::List { namespace, .. } if next.is_none() => _ = self.listings.remove(namespace),
            PodFetch::List { namespace, .. } => {
                if let Some(listing) = self.listings.get_mut(namespace) {
                    listing.next = next;
                }
            }
        }
    }

    /// Records that a fetch failed, so that its pods are read again.
    pub fn failed(&mut self, pod_fetch: PodFetch) {
        self.in_flight.remove(pod_fetch.namespace());
        match pod_fetch {
            PodFetch::Get { namespace, name } if self.namespaces.contains_key(&namespace) => {
                add_due(&mut self.due, &namespace, &name);
            }
            PodFetch::Get { .. } => {}
            PodFetch::List { namespace, .. } => {
                self.listings.remove(&namespace);
                if self.namespaces.contains_key(&namespace) {
                    self.due.insert(namespace, Due::All);
                }
            }
        }
    }

    /// Schedules another read of the pods with failed lookups. Returns the number of these pods.
    pub(crate) fn retry_failed_lookups(&mut self) -> usize {
        let lookup_failed = |judged: &ProfileVerdict| judged.match_state == MatchState::NotLookedUp;
        let mut count = 0;
        for (namespace, state) in &mut self.namespaces {
            for (name, pod) in state.pods.iter_mut().filter(|(_, pod)| pod.verdict.iter().any(lookup_failed)) {
                let open = pod.verdict.iter().cloned().map(|judged| match judged.match_state {
                    MatchState::NotLookedUp => {
                        ProfileVerdict { match_state: MatchState::Open, from_whole: false, ..judged }
                    }
                    _ => judged,
                });
                pod.verdict = self.pools.verdicts.share(open.collect());
                add_due(&mut self.due, namespace, name);
                count += 1;
            }
        }
        count
    }

    /// Returns the lookups that this whole pod needs before it can be judged.
    #[must_use]
    pub fn needs(&self, pod: Value<'_>) -> Wanted {
        let name = pod.at(&["metadata", "namespace"]).and_then(Value::as_str).unwrap_or_default();
        let Some(state) = self.namespaces.get(&*name) else { return Wanted::default() };
        let needs = || {
            let read = audit::read(pod);
            let original = read.original_object.as_ref().map_or(pod, OwnedTape::root);
            audit::needs(&self.snapshot, &name, &state.namespace, original)
        };
        guarded(&format_args!("the lookups for a pod of namespace {name}"), needs).unwrap_or_default()
    }

    /// Judges a whole pod for the profiles for which its metadata was not sufficient.
    pub fn whole(&mut self, pod: Value<'_>, looked_up: &LookedUp) {
        let Ok(Some(audited)) = guarded(&"a pod that the audit reads", || read(pod)) else { return };
        if self.listings.get(&audited.namespace).is_some_and(|listing| listing.gone.contains(&audited.name)) {
            return;
        }
        if self.in_flight.get(&audited.namespace).is_some_and(|newer| newer.contains(&audited.name)) {
            // While the pod was read, the watch delivered a newer state. Read the pod again if a profile still needs
            // the whole pod.
            let state = self.namespaces.get(&audited.namespace);
            if state.and_then(|state| state.pods.get(&audited.name)).is_some_and(|pod| is_open(&pod.verdict)) {
                add_due(&mut self.due, &audited.namespace, &audited.name);
            }
            return;
        }
        let (namespace, name) = (audited.namespace.clone(), audited.name.clone());
        self.take(audited);
        let Some(state) = self.namespaces.get_mut(&namespace) else { return };
        let Some(entry) = state.pods.get_mut(&name).filter(|entry| is_open(&entry.verdict)) else { return };
        let found = guarded(&format_args!("pod {namespace}/{name}"), || {
            let record = audit::read(pod);
            let original = record.original_object.as_ref().map_or(pod, OwnedTape::root);
            audit::of_object(&self.snapshot, &namespace, &state.namespace, original, looked_up)
        });
        let answered = entry.verdict.iter().cloned().map(|judged| {
            if judged.match_state != MatchState::Open {
                return judged;
            }
            // The evaluation panicked. Another attempt would panic too.
            let Ok(found) = &found else {
                return ProfileVerdict { match_state: MatchState::Undecided, from_whole: true, ..judged };
            };
            let of_whole = found.iter().find(|expected| expected.profile.display_name() == &**judged.profile.as_ref());
            let match_state = match of_whole {
                // The whole pod does not match this profile.
                None => MatchState::NotWanted,
                // The pinned revision was unavailable, so the verdict is for a different revision.
                Some(expected) if expected.revision() != &**judged.revision.as_ref() => MatchState::NotLookedUp,
                Some(expected) => expected.match_state,
            };
            ProfileVerdict { match_state, from_whole: true, ..judged }
        });
        entry.verdict = self.pools.verdicts.share(answered.collect());
        // Judge the pod again: the results determine which profile of an exclusive group applies.
        entry.verdict = judge(&self.snapshot, (&namespace, &state.namespace), entry, false, &mut self.pools);
        if let Some(Due::Some(names)) = self.due.get_mut(&namespace) {
            names.remove(&name);
            if names.is_empty() {
                self.due.remove(&namespace);
            }
        }
    }

    /// Whether a pod of an opted-in namespace is unknown to the audit, or must still be read as a whole.
    #[must_use]
    pub fn waits(&self, namespace: &str, name: &str) -> bool {
        let pod = self.namespaces.get(namespace).map(|state| state.pods.get(name));
        pod.is_some_and(|pod| pod.is_none_or(|pod| is_open(&pod.verdict)))
    }

    /// Returns the pods of opted-in namespaces whose record lists a profile, by its display name. `None` before all
    /// pods are listed.
    #[must_use]
    pub fn pods_with(&self, profile: &str) -> Option<Vec<ProfilePod>> {
        // A namespaced profile applies only to pods of its own namespace.
        let own = profile.split_once('/').map(|(namespace, _)| namespace);
        let namespaces = self.namespaces.iter().filter(|(namespace, _)| own.is_none_or(|own| own == &***namespace));
        let pods = namespaces.flat_map(|(namespace, state)| {
            state.pods.iter().filter_map(|(name, pod)| {
                let revision = pod.has.revision(profile)?.into();
                let (owner, metadata) = (pod.owner.clone(), Arc::clone(&pod.metadata));
                let (namespace, name) = (namespace.clone(), name.clone());
                Some(ProfilePod { namespace, name, uid: pod.uid, revision, owner, metadata })
            })
        });
        self.is_listed.then(|| pods.collect())
    }

    /// The current state of an opted-in namespace; `None` if the namespace is not audited.
    #[must_use]
    pub fn namespace(&self, name: &str) -> Option<&Arc<Namespace>> {
        self.namespaces.get(name).map(|state| &state.namespace)
    }

    /// Creates a report that describes at most `most` findings in detail.
    #[must_use]
    pub fn report(&self, facts: &ClusterFacts, most: usize) -> Report {
        self.report_on(self.namespaces.iter(), facts, most)
    }

    /// Creates a report about the pods of one namespace. It is empty if the namespace is not audited.
    #[must_use]
    pub fn namespace_report(&self, name: &str, facts: &ClusterFacts, most: usize) -> Report {
        self.report_on(self.namespaces.get_key_value(name).into_iter(), facts, most)
    }

    fn report_on<'a>(
        &'a self,
        namespaces: impl Iterator<Item = (&'a Box<str>, &'a NamespaceState)>,
        facts: &ClusterFacts,
        most: usize,
    ) -> Report {
        let mut reporter = Reporter::new(&self.snapshot, facts, most);
        for (name, state) in namespaces {
            // Sort the pods, so that every report has the same order.
            let mut pods: Vec<_> = state.pods.iter().collect();
            pods.sort_unstable_by_key(|(name, _)| *name);
            for (pod_name, pod) in pods {
                reporter.add((name, &state.namespace), state.since, pod_name, pod);
            }
        }
        let is_idle =
            self.unjudged.is_empty() && self.due.is_empty() && self.listings.is_empty() && self.in_flight.is_empty();
        reporter.finish(self.is_listed, is_idle)
    }

    /// Marks the list of pods as complete. Call this after all pods were passed to [`Auditor::whole`].
    pub(super) const fn set_listed(&mut self) {
        self.is_listed = true;
    }
}

fn is_open(verdict: &[ProfileVerdict]) -> bool {
    verdict.iter().any(|judged| judged.match_state == MatchState::Open)
}

fn add_due(due: &mut BTreeMap<Box<str>, Due>, namespace: &str, name: &str) {
    match due.entry(namespace.into()).or_insert_with(|| Due::Some(BTreeSet::new())) {
        Due::All => {}
        Due::Some(names) => {
            names.insert(name.into());
            // If too many pods are due, list them instead of reading each one.
            if names.len() > 4 * MAX_SINGLE_READS {
                due.insert(namespace.into(), Due::All);
            }
        }
    }
}

/// Judges a pod by its metadata, its record, and earlier results from the whole pod.
fn judge(
    snapshot: &Snapshot,
    (name, namespace): (&str, &Arc<Namespace>),
    pod: &PodEntry,
    discards_results: bool,
    pools: &mut InternPools,
) -> Arc<Vec<ProfileVerdict>> {
    let before = |profile: &str, revision: &str| {
        let is_result_of_whole = |judged: &&ProfileVerdict| {
            judged.from_whole && &**judged.profile.as_ref() == profile && &**judged.revision.as_ref() == revision
        };
        pod.verdict.iter().find(is_result_of_whole).filter(|_| !discards_results)
    };
    let known = |profile: &CompiledProfile, revision: &str| {
        // The webhook already matched a recorded profile when the pod was created.
        let has = pod.has.revision(profile.display_name()).map(|_| true);
        has.or_else(|| before(profile.display_name(), revision).map(|judged| judged.match_state == MatchState::Wanted))
    };
    let found = guarded(&format_args!("the metadata of a pod of namespace {name}"), || {
        let tape = OwnedTape::parse((**pod.metadata).to_owned()).ok()?;
        Some(audit::of_metadata(snapshot, name, namespace, tape.root(), known))
    });
    let Ok(found) = found else {
        // The expected profiles are unknown, so no recorded profile is orphaned.
        let undecided = |(profile, revision): &(Box<str>, Box<str>)| ProfileVerdict {
            profile: pools.texts.share(profile.clone()),
            revision: pools.texts.share(revision.clone()),
            match_state: MatchState::Undecided,
            from_whole: false,
        };
        let undecided = pod.has.profiles.iter().map(undecided).collect();
        return pools.verdicts.share(undecided);
    };
    let found = found.unwrap_or_default();
    let judged = found.into_iter().map(|expected| {
        let (profile, revision) = (expected.profile.display_name(), expected.revision());
        let before = before(profile, revision).filter(|_| pod.has.revision(profile).is_none());
        let match_state = match (expected.match_state, before.map(|judged| judged.match_state)) {
            (MatchState::NotWanted, Some(found @ (MatchState::Undecided | MatchState::NotLookedUp))) => found,
            (match_state, _) => match_state,
        };
        ProfileVerdict {
            profile: pools.texts.share(profile.into()),
            revision: pools.texts.share(revision.into()),
            match_state,
            from_whole: before.is_some(),
        }
    });
    let judged = judged.collect();
    pools.verdicts.share(judged)
}
