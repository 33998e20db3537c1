//! Turns changes of profiles and namespaces into snapshots. It does no I/O.
//!
//! Each profile has one entry, with the state of its stored spec (`TextState`) and of its published revisions
//! (`PublishedRevisions`). A replica needs only one of these states. The leading controller needs both, from one set of
//! watches: it accepts specs and publishes revisions. A *text* is a spec as JSON.
//!
//! Nothing is published before the first lists of cluster profiles, namespaced profiles and namespaces are complete.
//! With half a list, an existing profile would appear to be missing. After that, the watches are independent: while a
//! watch is interrupted, the objects that it last delivered remain in use.
//!
//! If a profile does not fit into the memory [`share`] of its namespace, its stored text and the compiled form of that
//! text are dropped. The last accepted version, if there is one, remains active. Once memory is free, the caller reads
//! the profile again (`Index::take_readable`).
//!
//! kube's `reflector` and `Store` are not used: they keep whole objects, which are several times larger than the
//! compiled profiles, and during a list they keep both the old and the new objects.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pillion_api::kinds::ProfileStatus;
use pillion_engine::profile::{
    CompiledProfile, FlattenedProfile, MAX_CHAIN, Parent, Parents, ProfileName, ProfileSource,
};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use serde_json::Value;

use crate::guard;
use crate::informer::cache_metrics::WatchedKind;
use crate::informer::namespaces::{NamespaceChange, NamespaceIndex};
use crate::informer::objects::{Change, ProfileChange, StoredProfile};
use crate::informer::published::{Fetched, Publication, PublishedRevisions, RevisionKey};
use crate::informer::share::{self, Shares};
use crate::informer::text::{Broken, Text, TextState, check_memory, is_same_version, read};

/// An event of a watch, or a fetched revision.
#[derive(Clone, Debug)]
pub enum Update {
    /// A change of cluster profiles.
    Cluster(ProfileChange),
    /// A change of namespaced profiles.
    Namespaced(ProfileChange),
    /// A change of namespaces.
    Namespace(NamespaceChange),
    /// A published revision was fetched.
    Fetched(RevisionKey, Fetched),
}

impl Update {
    /// Creates an update from a change of cluster profiles or of namespaced ones.
    pub(crate) fn of_profiles(change: ProfileChange, is_cluster: bool) -> Self {
        if is_cluster { Self::Cluster(change) } else { Self::Namespaced(change) }
    }
}

/// The state of the index, for readiness and gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether a snapshot can be published: all first lists are complete and, if revisions are served, they were
    /// fetched or are unusable.
    pub synced: bool,
    /// Number of active profiles.
    pub profiles: usize,
    /// Number of profiles whose stored or published version is not active: an older version is active, or none.
    pub broken_profiles: usize,
    /// Number of namespaces.
    pub namespaces: usize,
}

/// The state of a profile's stored spec.
#[derive(Clone, Copy, Debug)]
pub struct ProfileState<'i> {
    /// The UID of the object.
    pub uid: &'i str,
    /// The last version that compiled, with its current parents.
    pub good: Option<&'i Arc<CompiledProfile>>,
    /// Whether the stored version did not compile, or does not fit into the memory share.
    pub broken: bool,
    /// Whether the stored version still has to be compiled.
    pub due: bool,
    /// The generation of the object that this state describes.
    pub generation: Option<i64>,
}

#[derive(Debug)]
struct Entry {
    uid: Box<str>,
    /// The object without its spec. Only the leader keeps it, to write the status.
    stored: Option<Arc<StoredProfile>>,
    text: TextState,
    published: PublishedRevisions,
}

type Entries = BTreeMap<ProfileName, Entry>;

/// The lists of one kind of profile.
#[derive(Debug, Default)]
struct Lists {
    /// The profiles of an unfinished list.
    unfinished: Option<BTreeSet<ProfileName>>,
    /// Whether a list was completed.
    is_complete: bool,
    /// Whether each revision that was published at the time of the first list was fetched, or is unusable.
    are_revisions_known: bool,
}

/// Builds snapshots from the changes of the watches.
#[expect(clippy::struct_excessive_bools, reason = "two flags are modes of the index, and two record changes")]
#[derive(Debug, Default)]
pub struct Index {
    entries: Entries,
    cluster: Lists,
    namespaced: Lists,
    namespaces: NamespaceIndex,
    /// Whether the specs of all accepted profiles are kept, even if nothing else needs them.
    keeps_texts: bool,
    /// Whether snapshots have the published revisions, instead of the stored specs.
    serves_revisions: bool,
    /// Specs that were accepted before this index was created, with the UIDs of their profiles.
    seeds: BTreeMap<ProfileName, (Box<str>, Text)>,
    /// The memory limits of namespaced profiles.
    shares: Shares,
    /// Profiles that must be compiled.
    due: BTreeSet<ProfileName>,
    /// Profiles whose stored spec is not active, because it waits for memory.
    lacking: BTreeSet<ProfileName>,
    /// Cluster profiles whose children have to be compiled again.
    touched: BTreeSet<Box<str>>,
    /// Revisions that must be fetched and are not being fetched yet.
    unfetched: BTreeSet<RevisionKey>,
    /// Revisions that are being fetched.
    fetching: BTreeSet<RevisionKey>,
    snapshot: Snapshot,
    profiles_changed: bool,
    namespaces_changed: bool,
}

impl Index {
    /// Builds snapshots from the published revisions instead of the stored specs.
    #[must_use]
    pub fn serves_revisions(self) -> Self {
        Self { serves_revisions: true, ..self }
    }

    /// Keeps the specs of all accepted profiles, from which the controller creates revisions.
    #[must_use]
    pub(crate) fn keeping_texts(self) -> Self {
        Self { keeps_texts: true, ..self }
    }

    /// Limits the memory of namespaced profiles.
    #[must_use]
    pub(crate) fn bounded_by(self, limits: share::Limits) -> Self {
        Self { shares: Shares::new(limits), ..self }
    }

    /// Creates an index whose first snapshot is based on `snapshot`.
    #[must_use]
    pub(crate) fn from_snapshot(snapshot: Snapshot) -> Self {
        Self { snapshot, ..Self::default() }
    }

    /// Whether the index needs the stored specs of profiles.
    pub(crate) const fn reads_texts(&self) -> bool {
        self.keeps_texts || !self.serves_revisions
    }

    /// Adds a spec (JSON) that was accepted before this index was created. If the profile does not compile when it is
    /// first seen, the seed is its last valid version.
    pub(crate) fn seed(&mut self, name: ProfileName, uid: Box<str>, text: &str) {
        // An unreadable spec cannot be the last valid version.
        let Ok(spec) = guard::compiled(&name, || read(text)) else { return };
        let parent = spec.extends.map(|parent| parent.name.into());
        self.seeds.insert(name, (uid, Text { json: text.into(), parent }));
    }

    /// Applies an update. Returns the profiles that are newly broken.
    pub fn update(&mut self, update: Update) -> Vec<Broken> {
        match update {
            Update::Cluster(change) => self.update_profiles(change, true),
            Update::Namespaced(change) => self.update_profiles(change, false),
            Update::Namespace(change) => {
                self.namespaces_changed |= self.namespaces.update(change, &mut self.snapshot);
                Vec::new()
            }
            Update::Fetched(key, fetched) => self.add_fetched(&key, fetched).into_iter().collect(),
        }
    }

    fn update_profiles(&mut self, change: ProfileChange, is_cluster: bool) -> Vec<Broken> {
        let mut broken = Vec::new();
        match change {
            // Discard a partial list. The watch may list again, or continue without a list.
            Change::Restarted => self.lists_mut(is_cluster).unfinished = None,
            Change::Listed(stored) => {
                let lists = self.lists_mut(is_cluster);
                lists.unfinished.get_or_insert_default().insert(stored.name.clone());
                broken.extend(self.apply(stored));
            }
            Change::ListComplete => {
                let lists = self.lists_mut(is_cluster);
                let listed = lists.unfinished.take().unwrap_or_default();
                if !std::mem::replace(&mut lists.is_complete, true) {
                    // The first list is published even if it is empty.
                    self.profiles_changed = true;
                    self.seeds.retain(|name, _| is_of_cluster(name) != is_cluster);
                }
                let is_gone = |name: &&ProfileName| is_of_cluster(name) == is_cluster && !listed.contains(*name);
                let gone: Vec<_> = self.entries.keys().filter(is_gone).cloned().collect();
                for name in gone {
                    self.remove(&name);
                }
            }
            Change::Applied(stored) => broken.extend(self.apply(stored)),
            Change::Deleted(name) => self.remove(&name),
        }
        self.check_revisions_known();
        broken.extend(self.compile_due());
        broken
    }

    /// Applies the latest state of a profile. Returns the errors of its spec if they are new.
    fn apply(&mut self, mut stored: StoredProfile) -> Option<Broken> {
        let publication = self.serves_revisions.then(|| Publication::of(stored.status.clone())).flatten();
        let (text, broken) = if self.reads_texts() { self.next_text(&stored) } else { Default::default() };
        let (name, uid) = (stored.name.clone(), stored.uid.clone());
        stored.spec = Value::Null;
        let stored = self.keeps_texts.then(|| Arc::new(stored));
        let before = self.entries.remove(&name);
        let text_before = before.as_ref().map(|before| &before.text);
        let is_touched = text_before.is_none_or(|before| before.accepted != text.accepted);
        if is_touched && is_of_cluster(&name) {
            self.touched.insert(name.name.clone());
        }
        if text.due {
            self.due.insert(name.clone());
        }
        if !self.serves_revisions {
            let good_before = text_before.and_then(|before| before.good.as_ref());
            self.profiles_changed |= !is_same_version(good_before, text.good.as_ref());
        }
        // If the profile was recreated while the watch was interrupted, the old object's revisions are ignored.
        let published = match before {
            Some(before) if before.uid == uid => before.published,
            before => {
                self.profiles_changed |= before.is_some_and(|before| before.published.served.is_some());
                PublishedRevisions::default()
            }
        };
        let mut entry = Entry { uid, stored, text, published };
        if entry.published.publication != publication {
            self.profiles_changed |= entry.published.set_publication(publication);
            let wanted = entry.published.wanted(&name).filter(|key| !self.fetching.contains(key));
            self.unfetched.extend(wanted);
        }
        self.entries.insert(name, entry);
        broken
    }

    fn remove(&mut self, name: &ProfileName) {
        let Some(gone) = self.entries.remove(name) else { return };
        self.lacking.remove(name);
        if is_of_cluster(name) {
            self.touched.insert(name.name.clone());
        }
        let was_active = gone.published.served.is_some() || (!self.serves_revisions && gone.text.good.is_some());
        self.profiles_changed |= was_active;
    }

    /// Returns the state of the stored spec, and its errors if they are new.
    fn next_text(&mut self, stored: &StoredProfile) -> (TextState, Option<Broken>) {
        let name = stored.name.clone();
        let entry = self.entries.get(&name);
        let grant = entry.and_then(|entry| entry.text.grant.clone());
        // If the profile was recreated while the watch was interrupted, it has no last valid version.
        let known = entry.filter(|entry| entry.uid == stored.uid).map(|entry| &entry.text);
        if let Some(known) = known.filter(|known| known.is_generation(stored.generation))
            && let Some(bytes) = known.lacking_bytes.filter(|bytes| *bytes > 0)
            && check_memory(&name, bytes, grant.as_ref(), &self.shares).is_err()
        {
            self.lacking.insert(name);
            return (known.clone(), None);
        }
        let mut seed = match known {
            Some(_) => None,
            // Clone the seed instead of removing it: an interrupted list starts again, and then needs the seed again.
            None => self.seeds.get(&name).filter(|(uid, _)| *uid == stored.uid).map(|(_, text)| text.clone()),
        };
        if let Some(seed) = seed.as_mut().filter(|seed| seed.is_text_of(&stored.spec)) {
            seed.json = stored.spec.to_string().into();
        } else if self.defers_new_texts(&name) && known.is_none_or(|known| known.lacking_bytes == Some(0)) {
            // Specs that an earlier leader accepted get memory first. This stored spec is new, so the profile is read
            // again when the list is complete.
            self.lacking.insert(name);
            let known = known.cloned();
            let state = known.unwrap_or(TextState { due: seed.is_some(), accepted: seed, ..TextState::default() });
            return (TextState { generation: stored.generation, lacking_bytes: Some(0), ..state }, None);
        }
        let is_accepted = seed.is_some();
        let (mut state, broken) = TextState::next(known, stored, seed, self.keeps_texts);
        let Err(lack) = state.charge(&name, grant.as_ref(), known.is_some(), is_accepted, &mut self.shares) else {
            self.lacking.remove(&name);
            return (state, broken);
        };
        // The last accepted spec remains active, and the stored spec is not kept.
        let mut state = TextState {
            broken: true,
            lacking_bytes: Some(lack.bytes),
            lacking_parent: state.extending.and_then(|text| text.parent),
            ..TextState::of_generation(stored.generation)
        };
        if let Some(known) = known.cloned() {
            (state.good, state.accepted, state.grant) = (known.good, known.accepted, known.grant);
        }
        self.lacking.insert(name.clone());
        let broken = state.to_broken(&name, vec![lack.diagnostic(&name)]);
        (state, Some(broken))
    }

    /// Whether new stored specs of this profile must wait until the first list is complete, so that seeds get memory
    /// first.
    fn defers_new_texts(&self, name: &ProfileName) -> bool {
        let has_seeds = self.seeds.keys().next_back().is_some_and(|name| !is_of_cluster(name));
        !is_of_cluster(name) && !self.namespaced.is_complete && has_seeds
    }

    /// Compiles the profiles that are due: those that extend a changed profile, and those that waited for their parent.
    /// Does nothing until all cluster profiles are known, since a missing parent may still arrive.
    fn compile_due(&mut self) -> Vec<Broken> {
        let mut broken = Vec::new();
        if !self.reads_texts() {
            self.touched.clear();
            return broken;
        }
        if !self.cluster.is_complete || self.cluster.unfinished.is_some() {
            return broken;
        }
        // A profile that waited for its parent may itself have children that wait. Chains are short, so few rounds
        // suffice.
        for _ in 0..2 * MAX_CHAIN {
            let mut touched = std::mem::take(&mut self.touched);
            for _ in 0..MAX_CHAIN {
                touched = self.touch_children(&touched);
            }
            self.compile_due_of(true, &mut broken);
            if self.touched.is_empty() {
                break;
            }
        }
        self.compile_due_of(false, &mut broken);
        broken
    }

    /// Marks the profiles that extend one of `parents` as due. Returns the names of the cluster profiles among them.
    fn touch_children(&mut self, parents: &BTreeSet<Box<str>>) -> BTreeSet<Box<str>> {
        let mut touched = BTreeSet::new();
        if parents.is_empty() {
            return touched;
        }
        for (name, Entry { text, .. }) in &mut self.entries {
            if !text.parents().any(|parent| parents.contains(parent)) {
                continue;
            }
            text.due = true;
            self.due.insert(name.clone());
            if is_of_cluster(name) {
                touched.insert(name.name.clone());
            }
            if text.lacking_bytes.is_some() && text.lacking_parent.is_some() {
                // The profile may need less memory with the changed parent.
                text.lacking_bytes = Some(0);
                self.lacking.insert(name.clone());
            }
        }
        touched
    }

    /// Compiles the due profiles of one kind, parents first.
    fn compile_due_of(&mut self, is_cluster: bool, broken: &mut Vec<Broken>) {
        // The loop ends, because each round removes at least one profile from `due`.
        loop {
            let due: Vec<_> = self.due.iter().filter(|name| is_of_cluster(name) == is_cluster).cloned().collect();
            if due.is_empty() {
                return;
            }
            let is_due = |parent: &str| self.due.contains(&ProfileName::cluster(parent));
            let waits =
                |name: &ProfileName| self.entries.get(name).is_some_and(|entry| entry.text.parents().any(is_due));
            let mut ready: Vec<_> = due.iter().filter(|name| !waits(name)).cloned().collect();
            if ready.is_empty() {
                // The remaining profiles extend one another in a cycle. Compiling each of them reports the cycle.
                ready = due;
            }
            for name in ready {
                self.due.remove(&name);
                self.compile(&name, broken);
            }
        }
    }

    fn compile(&mut self, name: &ProfileName, broken: &mut Vec<Broken>) {
        let Some(Entry { text: state, .. }) = self.entries.get(name) else { return };
        let parents = AcceptedTexts(&self.entries);
        let lacking_bytes = Cell::new(None);
        let compiled = |text: &Text| {
            let good = guard::compiled(name, || {
                read(&text.json).and_then(|spec| ProfileSource::Author(&spec, &parents).compile(name))
            })?;
            // A spec that was accepted before remains accepted, even if its parent has grown.
            if state.accepted.as_ref() == Some(text) {
                return Ok(good);
            }
            let bytes = good.memory() + 2 * text.json.len();
            match check_memory(name, bytes, state.grant.as_ref(), &self.shares) {
                Ok(()) => Ok(good),
                Err(lack) => {
                    lacking_bytes.set(Some(lack.bytes));
                    Err(vec![lack.diagnostic(name)])
                }
            }
        };
        let stored = state.extending.clone().map(|text| (compiled(&text), text));
        let accepted = match &stored {
            Some((Ok(_), _)) => None,
            // If the stored spec equals the accepted one, do not compile it twice.
            Some((Err(_), text)) => state.accepted.as_ref().filter(|accepted| *accepted != text).map(compiled),
            None => state.accepted.as_ref().map(compiled),
        };
        let Some(Entry { text: state, .. }) = self.entries.get_mut(name) else { return };
        state.due = false;
        let mut diagnostics = None;
        let good = match (stored, accepted) {
            (Some((Ok(good), text)), _) => {
                state.broken = false;
                if state.accepted.as_ref() != Some(&text) {
                    state.accepted = Some(text);
                    if is_of_cluster(name) {
                        self.touched.insert(name.name.clone());
                    }
                }
                Some(good)
            }
            (Some((Err(errors), _)), accepted) => {
                // Report errors only if the profile was not broken before.
                diagnostics = (!std::mem::replace(&mut state.broken, true)).then_some(errors);
                accepted.and_then(Result::ok)
            }
            (None, accepted) => accepted.and_then(Result::ok),
        };
        if lacking_bytes.get().is_some() {
            state.lacking_bytes = lacking_bytes.get();
            state.lacking_parent = state.extending.take().and_then(|text| text.parent);
            self.lacking.insert(name.clone());
        }
        self.profiles_changed |= state.activate(good) && !self.serves_revisions;
        state.take_memory(name, 0, &mut self.shares);
        broken.extend(diagnostics.map(|diagnostics| state.to_broken(name, diagnostics)));
    }

    /// Returns up to `count` profiles that waited for memory, and may now fit into their share. Returns each once. The
    /// caller reads their stored objects and passes them to [`Self::update`].
    pub(crate) fn take_readable(&mut self, count: usize) -> Vec<ProfileName> {
        if !self.namespaced.is_complete {
            return Vec::new();
        }
        let mut readable: Vec<ProfileName> = Vec::new();
        // All returned profiles must fit into the memory together.
        let mut planned = 0;
        for name in &self.lacking {
            let Some(entry) = self.entries.get(name).filter(|_| readable.len() < count) else { continue };
            let bytes = entry.text.lacking_bytes.unwrap_or(0);
            let grant = entry.text.grant.as_ref();
            if bytes == 0 || check_memory(name, planned + bytes, grant, &self.shares).is_ok() {
                planned += bytes;
                readable.push(name.clone());
            }
        }
        for name in &readable {
            self.lacking.remove(name);
        }
        readable
    }

    /// Records that a profile could not be read, so that [`Self::take_readable`] returns it again.
    pub(crate) fn not_read(&mut self, name: ProfileName) {
        self.lacking.insert(name);
    }

    /// Applies the result of a fetch. Returns the errors of an unusable revision if they are new.
    fn add_fetched(&mut self, key: &RevisionKey, fetched: Fetched) -> Option<Broken> {
        self.fetching.remove(key);
        let mut broken = None;
        let entry = self.entries.get_mut(&key.profile).filter(|entry| entry.published.needs(&key.revision));
        if let Some(Entry { published, .. }) = entry {
            match fetched {
                Fetched::Compiled(compiled) => self.profiles_changed |= published.add(&key.revision, compiled),
                Fetched::Missing(diagnostics) | Fetched::Unusable(diagnostics) => {
                    let serving = published.served.as_ref().map(|served| served.profile.revision().into());
                    let (is_new, changed) = published.add_unusable(&key.revision);
                    self.profiles_changed |= changed;
                    if is_new {
                        let name = key.profile.clone();
                        broken = Some(Broken { name, generation: None, serving, diagnostics });
                        let wanted = published.wanted(&key.profile).filter(|key| !self.fetching.contains(key));
                        self.unfetched.extend(wanted);
                    }
                }
            }
        }
        self.check_revisions_known();
        broken
    }

    /// Returns the revisions to fetch now. Each revision is returned once.
    pub(crate) fn take_unfetched(&mut self) -> Vec<RevisionKey> {
        let keys: Vec<_> = std::mem::take(&mut self.unfetched).into_iter().collect();
        self.fetching.extend(keys.iter().cloned());
        keys
    }

    /// Whether the revision of a failed fetch is still needed. If so, the caller retries the fetch.
    pub(crate) fn still_needs(&mut self, key: &RevisionKey) -> bool {
        let needs = self.entries.get(&key.profile).is_some_and(|entry| entry.published.needs(&key.revision));
        if !needs {
            self.fetching.remove(key);
            self.check_revisions_known();
        }
        needs
    }

    fn check_revisions_known(&mut self) {
        for is_cluster in [true, false] {
            let awaited = self.unfetched.iter().chain(&self.fetching);
            let lists = self.lists(is_cluster);
            let is_known = !lists.are_revisions_known
                && lists.is_complete
                && !awaited.into_iter().any(|key| is_of_cluster(&key.profile) == is_cluster);
            if is_known {
                self.lists_mut(is_cluster).are_revisions_known = true;
                self.profiles_changed = true;
            }
        }
    }

    /// Returns the state of a profile's stored spec, or `None` if the profile does not exist.
    #[must_use]
    pub fn state(&self, name: &ProfileName) -> Option<ProfileState<'_>> {
        let Entry { uid, text, .. } = self.entries.get(name)?;
        // A profile that was not compiled yet is neither good nor broken.
        let due = text.due || (text.lacking_bytes.is_some() && !text.broken);
        Some(ProfileState { uid, good: text.good.as_ref(), broken: text.broken, due, generation: text.generation })
    }

    /// Returns the accepted spec of a profile, both flattened and as its author wrote it. Returns `None` if the profile
    /// has none, or if it does not flatten.
    #[must_use]
    pub(crate) fn accepted_text(&self, name: &ProfileName) -> Option<(FlattenedProfile, Arc<str>)> {
        let text = self.entries.get(name)?.text.accepted.as_ref()?;
        let accepted_text =
            ProfileSource::Author(&read(&text.json).ok()?, &AcceptedTexts(&self.entries)).flatten(name).ok()?;
        Some((accepted_text, Arc::clone(&text.json)))
    }

    /// Returns the profiles without their specs, ordered by name. Empty unless the index keeps specs.
    pub(crate) fn stored(&self) -> impl Iterator<Item = &Arc<StoredProfile>> {
        self.entries.values().filter_map(|entry| entry.stored.as_ref())
    }

    /// Returns a profile without its spec. `None` if it does not exist, or if the index does not keep specs.
    pub(crate) fn stored_profile(&self, name: &ProfileName) -> Option<&Arc<StoredProfile>> {
        self.entries.get(name)?.stored.as_ref()
    }

    /// Applies a status that the controller wrote, before the watch delivers it. If the watch has delivered the profile
    /// since `before`, the status is ignored: the watch delivers all changes in order.
    pub(crate) fn set_status(&mut self, before: &Arc<StoredProfile>, version: Option<String>, status: ProfileStatus) {
        if self.is_latest(before)
            && let Some(entry) = self.entries.get_mut(&before.name)
        {
            let stored = Arc::new(StoredProfile { resource_version: version, status, ..(**before).clone() });
            entry.stored = Some(stored);
        }
    }

    /// Whether `before` is the last state of the profile that the watch delivered.
    pub(crate) fn is_latest(&self, before: &Arc<StoredProfile>) -> bool {
        self.stored_profile(&before.name).is_some_and(|stored| Arc::ptr_eq(stored, before))
    }

    /// Returns the namespaces of the snapshot, with their names.
    pub fn namespaces(&self) -> impl Iterator<Item = (&str, &Namespace)> {
        self.snapshot.namespaces().map(|(name, namespace)| (name, &**namespace))
    }

    /// Returns a namespace of the snapshot.
    #[must_use]
    pub fn namespace(&self, name: &str) -> Option<Arc<Namespace>> {
        self.snapshot.namespace(name)
    }

    /// Returns the next snapshot; `None` if nothing changed, or if no snapshot can be published yet.
    pub fn publish(&mut self) -> Option<Arc<Snapshot>> {
        let due = self.synced() && (self.profiles_changed || self.namespaces_changed);
        if !due {
            return None;
        }
        if self.profiles_changed {
            let before = self.snapshot.profiles();
            let profiles = if self.serves_revisions {
                ProfileSet::serving(before, self.entries.values().filter_map(|entry| entry.published.served.clone()))
            } else {
                ProfileSet::after(before, self.entries.values().filter_map(|entry| entry.text.good.clone()))
            };
            self.snapshot = self.snapshot.with_profiles(profiles);
        }
        (self.profiles_changed, self.namespaces_changed) = (false, false);
        Some(Arc::new(self.snapshot.clone()))
    }

    /// Returns the state of the index, for readiness and gauges.
    #[must_use]
    pub fn status(&self) -> Status {
        let is_broken = |entry: &&Entry| {
            if self.serves_revisions { !entry.published.unusable.is_empty() } else { entry.text.broken }
        };
        Status {
            synced: self.synced(),
            profiles: self.snapshot.profiles().len(),
            broken_profiles: self.entries.values().filter(is_broken).count(),
            namespaces: self.snapshot.namespace_count(),
        }
    }

    /// Returns whether all objects of a kind are known, and their number.
    #[must_use]
    pub fn known(&self, kind: WatchedKind) -> (bool, usize) {
        let count = |is_cluster| self.entries.keys().filter(|name| is_of_cluster(name) == is_cluster).count();
        match kind {
            WatchedKind::ClusterProfiles => (self.is_synced(&self.cluster), count(true)),
            WatchedKind::Profiles => (self.is_synced(&self.namespaced), count(false)),
            WatchedKind::Namespaces => (self.namespaces.synced(), self.snapshot.namespace_count()),
        }
    }

    /// Whether all first lists are complete.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.cluster.is_complete && self.namespaced.is_complete && self.namespaces.synced()
    }

    /// Whether snapshots can be published: all first lists are complete and, if revisions are served, they were fetched
    /// or are unusable.
    const fn synced(&self) -> bool {
        self.is_synced(&self.cluster) && self.is_synced(&self.namespaced) && self.namespaces.synced()
    }

    const fn is_synced(&self, lists: &Lists) -> bool {
        lists.is_complete && (lists.are_revisions_known || !self.serves_revisions)
    }

    const fn lists(&self, is_cluster: bool) -> &Lists {
        if is_cluster { &self.cluster } else { &self.namespaced }
    }

    const fn lists_mut(&mut self, is_cluster: bool) -> &mut Lists {
        if is_cluster { &mut self.cluster } else { &mut self.namespaced }
    }
}

const fn is_of_cluster(name: &ProfileName) -> bool {
    name.namespace.is_none()
}

/// The last accepted specs of cluster profiles, for the profiles that extend them.
struct AcceptedTexts<'e>(&'e Entries);

impl Parents for AcceptedTexts<'_> {
    fn parent(&self, name: &str) -> Parent<'_> {
        let Some(Entry { text, .. }) = self.0.get(&ProfileName::cluster(name)) else { return Parent::Unknown };
        let spec = |text: &Text| read(&text.json).ok().map(Cow::Owned);
        match text.accepted.as_ref().and_then(spec) {
            Some(spec) => Parent::Accepted(spec),
            None => Parent::Broken(text.extending.as_ref().and_then(spec)),
        }
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().filter(|name| is_of_cluster(name)).map(|name| &*name.name).collect()
    }
}

#[cfg(test)]
mod tests;
