//! Compiles stored profiles.
//!
//! A stored profile may be one that this build cannot read (a field of a newer version) or that does not compile. Then
//! the last valid version stays active, and the errors are reported once for each generation: a mistake in one profile
//! must neither remove an active version nor stop the watch that would deliver the fix.
//!
//! A profile that extends another one is compiled when its parent is known, and again when the parent changes. If its
//! own text is broken by then, the last valid text is compiled. If that fails too, or the parent is gone, the last
//! valid version stays active. A namespaced profile that is bounded only by its parent is the exception: it would keep
//! what the platform has withdrawn.
//!
//! If a namespace's [`crate::informer::share`] lacks memory for a profile, it is neither compiled nor kept as text.
//! Once there is memory, it must be read again ([`ProfileIndex::take_readable`]).

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pillion_api::ProfileSpec;
use pillion_engine::profile::{
    CompiledProfile, Diagnostic, FlattenedProfile, Limits, Parent, Parents, Part, ProfileName, compile, compile_with,
};
use pillion_engine::snapshot::ProfileSet;
use serde_json::Value;

use crate::guard;
use crate::informer::change::Change;
use crate::informer::share::{self, Grant, Shares};

/// A stored profile, not parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredProfile {
    /// Its name.
    pub name: ProfileName,
    /// Changes if the profile is deleted and recreated.
    pub uid: Box<str>,
    /// Rises with each change of the text, but not with changes of the status.
    pub generation: Option<i64>,
    /// The text: the object's `spec`, null if it has none.
    pub spec: Value,
}

impl StoredProfile {
    /// From an object's metadata and its `spec`.
    #[must_use]
    pub fn new(metadata: ObjectMeta, spec: Value) -> Self {
        let generation = metadata.generation;
        let uid = metadata.uid.clone().unwrap_or_default().into();
        Self { name: name(metadata), uid, generation, spec }
    }
}

/// The name of the profile with this metadata.
#[must_use]
pub fn name(metadata: ObjectMeta) -> ProfileName {
    ProfileName { namespace: metadata.namespace.map(Into::into), name: metadata.name.unwrap_or_default().into() }
}

/// The changes of active profiles, by name.
#[must_use]
pub fn news(before: &ProfileSet, now: &ProfileSet) -> Vec<News> {
    if std::ptr::eq(before, now) {
        return Vec::new();
    }
    let mut all: BTreeMap<&ProfileName, (Option<&str>, Option<&str>)> =
        before.iter().map(|profile| (profile.name(), (Some(profile.revision()), None))).collect();
    for profile in now.iter() {
        all.entry(profile.name()).or_default().1 = Some(profile.revision());
    }
    let changed = all.into_iter().filter(|(_, (before, now))| before != now);
    changed
        .map(|(name, (before, now))| News {
            name: name.clone(),
            before: before.map(Into::into),
            now: now.map(Into::into),
        })
        .collect()
}

/// A change from a watch of profiles.
pub type ProfileChange = Change<ProfileName, StoredProfile>;

/// A profile whose stored version is not active.
#[derive(Clone, Debug)]
pub struct Broken {
    /// Its name.
    pub name: ProfileName,
    /// The broken generation.
    pub generation: Option<i64>,
    /// Revision of the last valid version, which stays active; `None` if there is none.
    pub serving: Option<Box<str>>,
    /// The errors; at least one.
    pub diagnostics: Vec<Diagnostic>,
}

/// Result of an update of a [`ProfileIndex`].
#[derive(Debug, Default)]
pub struct Updated {
    /// Whether the active profiles changed.
    pub changed: bool,
    /// Profiles that are newly broken.
    pub broken: Vec<Broken>,
    /// Names of profiles whose children have to be compiled again.
    pub touched: BTreeSet<Box<str>>,
}

/// A profile whose active revision changed, or that is no longer active.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// Its name.
    pub name: ProfileName,
    /// The earlier active revision; `None` if the profile is new.
    pub before: Option<Box<str>>,
    /// The active revision; `None` if the profile is gone.
    pub now: Option<Box<str>>,
}

#[derive(Clone, Debug)]
struct Entry {
    uid: Box<str>,
    generation: Option<i64>,
    /// The last version that compiled.
    good: Option<Arc<CompiledProfile>>,
    /// Its text, if it may be needed again: other profiles may extend it, or it extends one.
    accepted: Option<Text>,
    broken: bool,
    /// The stored text, if it extends another profile.
    extending: Option<Text>,
    /// It must be compiled: the profile or its parent has changed.
    due: bool,
    /// The memory grant of a namespaced profile.
    grant: Option<Grant>,
    /// Bytes that the stored text needs, if it lacked memory; 0 if that is not known yet. The text is not kept.
    lacks: Option<usize>,
    /// The parent of a text that is not kept.
    lacks_with: Option<Box<str>>,
}

/// A profile that lacks memory.
#[derive(Clone, Copy, Debug)]
struct Lack {
    /// Bytes that it needs.
    bytes: usize,
    /// Bytes for all profiles of its namespace.
    limit: usize,
}

impl Lack {
    fn diagnostic(self, name: &ProfileName) -> Diagnostic {
        let mib = |bytes: usize| format!("{}.{} MiB", bytes >> 20, ((bytes & 0xf_ffff) * 10) >> 20);
        let message = format!(
            "the profiles of namespace {} may take {} of memory, and with the {} of this one they take more",
            name.namespace.as_deref().unwrap_or_default(),
            mib(self.limit),
            mib(self.bytes),
        );
        let help = "make it smaller, or delete others: it is looked at again when there is room. Literals and regular \
                    expressions take most. The limits are `profiles` in the controller's policy; no namespace gets more \
                    than half of what the others leave";
        Diagnostic { path: "spec".to_owned(), message, help: Some(help.to_owned()), part: Part::Value }
    }
}

/// Checks that a namespaced profile has memory, in place of an earlier grant.
fn room(name: &ProfileName, bytes: usize, instead_of: Option<&Grant>, shares: &Shares) -> Result<(), Lack> {
    let Some(namespace) = &name.namespace else { return Ok(()) };
    shares.fits(namespace, bytes, instead_of).map_err(|limit| Lack { bytes, limit })
}

/// The text of a profile.
#[derive(Clone, Debug, PartialEq)]
struct Text {
    json: Arc<str>,
    /// The name of its parent.
    parent: Option<Box<str>>,
}

type Entries = BTreeMap<ProfileName, Entry>;

/// Follows a watch of one kind of profile.
#[derive(Debug, Default)]
pub struct ProfileIndex {
    entries: Entries,
    listing: Option<Entries>,
    /// Entries to compile.
    due: BTreeSet<ProfileName>,
    synced: bool,
    /// Whether the texts of all accepted profiles are kept, even if nothing else needs them.
    keeps_texts: bool,
    /// Texts that were accepted before this index started.
    seeds: BTreeMap<ProfileName, (Box<str>, Text)>,
    /// The memory for namespaced profiles.
    shares: Shares,
    /// Entries that lack memory.
    lacking: BTreeSet<ProfileName>,
}

/// The state of a profile.
#[derive(Clone, Copy, Debug)]
pub struct State<'i> {
    /// The UID of the object.
    pub uid: &'i str,
    /// The last version that compiled, with what it inherits now.
    pub good: Option<&'i Arc<CompiledProfile>>,
    /// Whether the stored version did not compile.
    pub broken: bool,
    /// It is not compiled yet.
    pub due: bool,
    /// The generation of this state.
    pub generation: Option<i64>,
}

impl ProfileIndex {
    /// Keeps the texts of all accepted profiles.
    #[must_use]
    pub fn keeping_texts(self) -> Self {
        Self { keeps_texts: true, ..self }
    }

    /// Bounds the memory for namespaced profiles.
    #[must_use]
    pub fn bounded_by(self, limits: share::Limits) -> Self {
        Self { shares: Shares::new(limits), ..self }
    }

    /// Returns up to `count` profiles that lacked memory and now fit, each once. Pass their stored objects to
    /// [`Self::update`] again.
    pub fn take_readable(&mut self, count: usize) -> Vec<ProfileName> {
        if !self.synced {
            return Vec::new();
        }
        let mut readable: Vec<ProfileName> = Vec::new();
        // They have to fit together.
        let mut planned = 0;
        for name in &self.lacking {
            let Some(entry) = self.entries.get(name).filter(|_| readable.len() < count) else { continue };
            let bytes = entry.lacks.unwrap_or(0);
            if bytes == 0 || room(name, planned + bytes, entry.grant.as_ref(), &self.shares).is_ok() {
                planned += bytes;
                readable.push(name.clone());
            }
        }
        for name in &readable {
            self.lacking.remove(name);
        }
        readable
    }

    /// Reports that a profile could not be read again; it will be returned again.
    pub fn not_read(&mut self, name: ProfileName) {
        self.lacking.insert(name);
    }

    /// Adds a text that was accepted before this index started. It is the last valid text of a profile that does not
    /// compile when it is first seen.
    pub fn seed(&mut self, name: ProfileName, uid: Box<str>, text: &str) {
        // An unreadable text cannot be the last valid one.
        let Ok(spec) = guard::compiled(&name, || read(text)) else { return };
        let parent = spec.extends.map(|parent| parent.name.into());
        self.seeds.insert(name, (uid, Text { json: text.into(), parent }));
    }

    /// The state of a profile; `None` if there is no such profile.
    #[must_use]
    pub fn state(&self, name: &ProfileName) -> Option<State<'_>> {
        let entry = self.entries.get(name)?;
        let Entry { uid, good, broken, due, generation, lacks, .. } = entry;
        // A profile that was not examined yet is neither good nor broken.
        let due = *due || (lacks.is_some() && !broken);
        Some(State { uid, good: good.as_ref(), broken: *broken, due, generation: *generation })
    }

    /// The accepted text of a profile, flattened and as written; only where texts are kept.
    #[must_use]
    pub fn whole(&self, name: &ProfileName, cluster: &Self) -> Option<(FlattenedProfile, Arc<str>)> {
        let text = self.entries.get(name)?.accepted.as_ref()?;
        let whole = FlattenedProfile::new(name, &read(&text.json).ok()?, &Texts(&cluster.entries)).ok()?;
        Some((whole, Arc::clone(&text.json)))
    }

    /// Computes the entry of a stored profile, and its new errors.
    fn take(&mut self, stored: StoredProfile) -> (ProfileName, Entry, Option<Broken>) {
        let known = self.entries.get(&stored.name);
        let mut seed = match known {
            Some(_) => None,
            // The seed stays until the list is complete: an interrupted list starts again without entries.
            None => self.seeds.get(&stored.name).filter(|(uid, _)| *uid == stored.uid).map(|(_, text)| text.clone()),
        };
        if let Some(known) = known.filter(|known| known.uid == stored.uid && known.is_generation(stored.generation))
            && let Some(bytes) = known.lacks.filter(|bytes| *bytes > 0)
            && room(&stored.name, bytes, known.grant.as_ref(), &self.shares).is_err()
        {
            return (stored.name, known.clone(), None);
        }
        if let Some(seed) = seed.as_mut().filter(|seed| seed.is_text_of(&stored.spec)) {
            seed.json = stored.spec.to_string().into();
        } else if !self.synced && !self.seeds.is_empty() && known.is_none() && stored.name.namespace.is_some() {
            // Accepted texts get memory first. This text is new: it is read again when the list is complete.
            let StoredProfile { name, uid, generation, .. } = stored;
            self.lacking.insert(name.clone());
            let due = seed.is_some();
            return (name, Entry { accepted: seed, due, lacks: Some(0), ..Entry::new(uid, generation) }, None);
        }
        let is_accepted = seed.is_some();
        let (name, mut entry, broken) = next(known, stored, seed, self.keeps_texts);
        let Err(lack) = entry.charge(&name, known, is_accepted, &mut self.shares) else {
            self.lacking.remove(&name);
            return (name, entry, broken);
        };
        // The last accepted text stays active. The stored text is not kept.
        let Entry { uid, generation, .. } = entry;
        let lacks_with = entry.extending.and_then(|text| text.parent);
        let mut entry = Entry { broken: true, lacks: Some(lack.bytes), lacks_with, ..Entry::new(uid, generation) };
        if let Some(known) = known.filter(|known| known.uid == entry.uid) {
            let Entry { good, accepted, grant, .. } = known.clone();
            (entry.good, entry.accepted, entry.grant) = (good, accepted, grant);
        }
        self.lacking.insert(name.clone());
        let serving = entry.good.as_ref().map(|profile| profile.revision().into());
        let broken = Broken { name: name.clone(), generation, serving, diagnostics: vec![lack.diagnostic(&name)] };
        (name, entry, Some(broken))
    }

    /// Applies a change. Profiles that extend others are only marked: [`Self::compile_due`] compiles them.
    pub fn update(&mut self, change: ProfileChange) -> Updated {
        match change {
            Change::Restarted => {
                self.listing = Some(Entries::new());
                Updated::default()
            }
            Change::Listed(stored) => {
                // Compared with the entries before the list, so that unchanged profiles are not compiled again.
                let (name, entry, broken) = self.take(stored);
                self.listing.get_or_insert_default().insert(name, entry);
                Updated { broken: broken.into_iter().collect(), ..Updated::default() }
            }
            Change::ListComplete => {
                let listed = self.listing.take().unwrap_or_default();
                let changed = !self.synced || !same_at_work(&self.entries, &listed);
                let names: BTreeSet<_> = self.entries.keys().chain(listed.keys()).collect();
                let touched = names.into_iter().filter(|name| is_touched(self.entries.get(name), listed.get(name)));
                let touched = touched.map(|name| name.name.clone()).collect();
                let due = listed.iter().filter(|(_, entry)| entry.due).map(|(name, _)| name.clone());
                self.due = due.collect();
                let lacking = listed.iter().filter(|(_, entry)| entry.lacks.is_some()).map(|(name, _)| name.clone());
                self.lacking = lacking.collect();
                self.entries = listed;
                self.seeds.clear();
                self.synced = true;
                Updated { changed, touched, ..Updated::default() }
            }
            Change::Applied(stored) => {
                let (name, entry, broken) = self.take(stored);
                let known = self.entries.get(&name);
                let changed = !same(known.and_then(|known| known.good.as_ref()), entry.good.as_ref());
                let touched = is_touched(known, Some(&entry)).then(|| name.name.clone());
                if entry.due {
                    self.due.insert(name.clone());
                }
                self.entries.insert(name, entry);
                Updated { changed, broken: broken.into_iter().collect(), touched: touched.into_iter().collect() }
            }
            Change::Deleted(name) => {
                let gone = self.entries.remove(&name);
                self.lacking.remove(&name);
                let touched = gone.iter().map(|_| name.name.clone()).collect();
                Updated { changed: gone.is_some_and(|entry| entry.good.is_some()), touched, ..Updated::default() }
            }
        }
    }

    /// Marks the profiles that extend one of these. Returns the names of all profiles that are due.
    pub fn touch(&mut self, parents: &BTreeSet<Box<str>>) -> BTreeSet<Box<str>> {
        let mut touched = BTreeSet::new();
        if parents.is_empty() {
            return touched;
        }
        for (name, entry) in &mut self.entries {
            if entry.parents().any(|parent| parents.contains(parent)) {
                entry.due = true;
                self.due.insert(name.clone());
                touched.insert(name.name.clone());
                if entry.lacks.is_some() && entry.lacks_with.is_some() {
                    // It may need less memory now.
                    entry.lacks = Some(0);
                    self.lacking.insert(name.clone());
                }
            }
        }
        touched
    }

    /// Compiles the profiles that are due; their parents are in `cluster`, or in this index itself.
    pub fn compile_due(&mut self, cluster: Option<&Self>) -> Updated {
        let mut updated = Updated::default();
        // Each round removes at least one.
        while !self.due.is_empty() {
            let is_due = |parent: &str| self.due.contains(&ProfileName::cluster(parent));
            let waits = |name: &&ProfileName| self.entries.get(name).is_some_and(|entry| entry.parents().any(is_due));
            let mut ready: Vec<_> = self.due.iter().filter(|name| !waits(name)).cloned().collect();
            if ready.is_empty() {
                // They extend one another in a cycle; each of them reports it.
                ready = self.due.iter().cloned().collect();
            }
            for name in ready {
                self.due.remove(&name);
                self.compile(&name, cluster, &mut updated);
            }
        }
        updated
    }

    fn compile(&mut self, name: &ProfileName, cluster: Option<&Self>, updated: &mut Updated) {
        let Some(entry) = self.entries.get(name) else { return };
        let parents = Texts(&cluster.unwrap_or(self).entries);
        let lacks = Cell::new(None);
        let compiled = |text: &Text| {
            let good = guard::compiled(name, || read(&text.json).and_then(|spec| compile_with(name, &spec, &parents)))?;
            // A text that was accepted before stays, even if its parent has grown.
            if entry.accepted.as_ref() == Some(text) {
                return Ok(good);
            }
            let bytes = good.memory() + 2 * text.json.len();
            match room(name, bytes, entry.grant.as_ref(), &self.shares) {
                Ok(()) => Ok(good),
                Err(lack) => {
                    lacks.set(Some(lack.bytes));
                    Err(vec![lack.diagnostic(name)])
                }
            }
        };
        let stored = entry.extending.clone().map(|text| (compiled(&text), text));
        let accepted = match &stored {
            Some((Ok(_), _)) => None,
            // The accepted text need not be compiled twice.
            Some((Err(_), text)) => entry.accepted.as_ref().filter(|accepted| *accepted != text).map(compiled),
            None => entry.accepted.as_ref().map(compiled),
        };
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.due = false;
        let good = match (stored, accepted) {
            (Some((Ok(good), text)), _) => {
                entry.broken = false;
                if entry.accepted.as_ref() != Some(&text) {
                    entry.accepted = Some(text);
                    updated.touched.insert(name.name.clone());
                }
                Some(good)
            }
            (Some((Err(diagnostics), _)), accepted) => {
                if !entry.broken {
                    entry.broken = true;
                    let (name, generation) = (name.clone(), entry.generation);
                    updated.broken.push(Broken { name, generation, serving: None, diagnostics });
                }
                accepted.and_then(Result::ok)
            }
            (None, accepted) => accepted.and_then(Result::ok),
        };
        if lacks.get().is_some() {
            entry.lacks = lacks.get();
            entry.lacks_with = entry.extending.take().and_then(|text| text.parent);
            self.lacking.insert(name.clone());
        }
        updated.changed |= entry.put_to_work(good);
        entry.take_memory(name, 0, &mut self.shares);
        if let Some(broken) = updated.broken.last_mut().filter(|broken| broken.name == *name) {
            broken.serving = entry.good.as_ref().map(|profile| profile.revision().into());
        }
    }

    /// The active profiles, by name.
    pub fn at_work(&self) -> impl Iterator<Item = &Arc<CompiledProfile>> {
        self.entries.values().filter_map(|entry| entry.good.as_ref())
    }

    /// Number of profiles, active or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of profiles whose stored version is not active.
    #[must_use]
    pub fn broken(&self) -> usize {
        self.entries.values().filter(|entry| entry.broken).count()
    }

    /// Whether a list was completed.
    #[must_use]
    pub const fn synced(&self) -> bool {
        self.synced
    }
}

impl Entry {
    const fn new(uid: Box<str>, generation: Option<i64>) -> Self {
        Self {
            uid,
            generation,
            good: None,
            accepted: None,
            broken: false,
            extending: None,
            due: false,
            grant: None,
            lacks: None,
            lacks_with: None,
        }
    }

    fn is_generation(&self, generation: Option<i64>) -> bool {
        generation.is_some() && self.generation == generation
    }

    /// Charges what is kept to the namespace's share. A rollout or a rollback may serve older revisions of a profile as
    /// well. So the profile keeps its largest grant until it is deleted.
    ///
    /// # Errors
    /// The share lacks memory for new data.
    fn charge(
        &mut self,
        name: &ProfileName,
        known: Option<&Self>,
        is_accepted: bool,
        shares: &mut Shares,
    ) -> Result<(), Lack> {
        let before = known.and_then(|known| known.grant.as_ref());
        let once = before.filter(|_| known.is_some_and(|known| known.uid == self.uid)).map_or(0, Grant::bytes);
        if !is_accepted {
            room(name, self.bytes().max(once), before, shares)?;
        }
        self.take_memory(name, once, shares);
        Ok(())
    }

    fn take_memory(&mut self, name: &ProfileName, least: usize, shares: &mut Shares) {
        let Some(namespace) = &name.namespace else { return };
        let granted = self.grant.as_ref().map_or(0, Grant::bytes);
        let bytes = self.bytes().max(least).max(granted);
        if bytes != granted {
            self.grant = Some(shares.grant(namespace, bytes));
        }
    }

    /// Bytes of what is kept. Until a text is compiled, the version that it replaces does not count.
    fn bytes(&self) -> usize {
        let texts = self.accepted.iter().chain(&self.extending).map(|text| text.json.len());
        let good = self.good.as_ref().filter(|_| !self.due).map_or(0, |good| good.memory());
        texts.sum::<usize>() + good
    }

    /// The parents of its texts.
    fn parents(&self) -> impl Iterator<Item = &str> {
        let of_texts = self.extending.iter().chain(&self.accepted).filter_map(|text| text.parent.as_deref());
        of_texts.chain(self.lacks_with.as_deref())
    }

    /// Replaces the active version; `None` if there is none any more. Returns whether the revision changed.
    fn put_to_work(&mut self, now: Option<CompiledProfile>) -> bool {
        let keep = match (&self.good, &now) {
            (Some(good), Some(now)) => is_same_profile(good, now),
            (Some(good), None) => good.limits() != Limits::Parent,
            (None, now) => now.is_none(),
        };
        if !keep {
            self.good = now.map(Arc::new);
        }
        !keep
    }
}

impl Text {
    /// Whether this text equals the stored one, apart from `rollout`.
    fn is_text_of(&self, stored: &Value) -> bool {
        let plain = |spec: Result<ProfileSpec, _>| Some(ProfileSpec { rollout: None, ..spec.ok()? });
        let own = plain(read(&self.json));
        own.is_some() && own == plain(from_value(stored))
    }
}

/// The last accepted texts of cluster profiles, for the profiles that extend them.
struct Texts<'e>(&'e Entries);

impl Parents for Texts<'_> {
    fn parent(&self, name: &str) -> Parent<'_> {
        let Some(entry) = self.0.get(&ProfileName::cluster(name)) else { return Parent::Unknown };
        let spec = |text: &Text| read(&text.json).ok().map(Cow::Owned);
        match entry.accepted.as_ref().and_then(spec) {
            Some(spec) => Parent::Accepted(spec),
            None => Parent::Broken(entry.extending.as_ref().and_then(spec)),
        }
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().map(|name| &*name.name).collect()
    }
}

/// Computes the entry of a profile that was seen as `stored`, and its new errors.
fn next(
    known: Option<&Entry>,
    stored: StoredProfile,
    seed: Option<Text>,
    keeps_text: bool,
) -> (ProfileName, Entry, Option<Broken>) {
    let StoredProfile { name, uid, generation, spec } = stored;
    // A profile that was recreated while the watch was interrupted has no last valid version.
    let known = known.filter(|entry| entry.uid == uid);
    let is_read = |entry: &&Entry| entry.is_generation(generation) && entry.lacks.is_none();
    if let Some(entry) = known.filter(is_read) {
        return (name, entry.clone(), None);
    }
    let good = known.and_then(|entry| entry.good.clone());
    let accepted = known.and_then(|entry| entry.accepted.clone()).or(seed);
    let mut entry = Entry { good, accepted, ..Entry::new(uid, generation) };
    let text = |parent| Text { json: spec.to_string().into(), parent };
    let compiled = match guard::compiled(&name, || from_value(&spec)) {
        Ok(ProfileSpec { extends: Some(parent), .. }) => {
            entry.extending = Some(text(Some(parent.name.into())));
            entry.due = true;
            return (name, entry, None);
        }
        Ok(spec) => guard::compiled(&name, || compile(&name, &spec)),
        Err(diagnostics) => Err(diagnostics),
    };
    let broken = match compiled {
        Ok(compiled) => {
            entry.good = Some(Arc::new(compiled));
            entry.accepted = (keeps_text || name.namespace.is_none()).then(|| text(None));
            None
        }
        Err(diagnostics) => {
            entry.broken = true;
            // A text that was accepted before this index started is not compiled yet.
            entry.due = entry.good.is_none() && entry.accepted.is_some();
            let serving = entry.good.as_ref().map(|profile| profile.revision().into());
            Some(Broken { name: name.clone(), generation, serving, diagnostics })
        }
    };
    (name, entry, broken)
}

fn read(text: &str) -> Result<ProfileSpec, Vec<Diagnostic>> {
    let mut reader = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut reader).map_err(|error| vec![unreadable(&error)])
}

fn from_value(spec: &Value) -> Result<ProfileSpec, Vec<Diagnostic>> {
    serde_path_to_error::deserialize(spec).map_err(|error| vec![unreadable(&error)])
}

fn unreadable(error: &serde_path_to_error::Error<serde_json::Error>) -> Diagnostic {
    let path = error.path().to_string();
    Diagnostic {
        path: if path == "." { "spec".to_owned() } else { format!("spec.{path}") },
        message: error.inner().to_string(),
        help: Some(
            "this build does not know the field or its type: correct it, or upgrade Pillion if the profile is written \
             for a newer version"
                .to_owned(),
        ),
        part: Part::Value,
    }
}

/// Whether the children of a profile have to be compiled again.
fn is_touched(before: Option<&Entry>, after: Option<&Entry>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => before.accepted != after.accepted,
        (before, after) => before.is_some() != after.is_some(),
    }
}

fn is_same_profile(one: &CompiledProfile, other: &CompiledProfile) -> bool {
    one.revision() == other.revision()
        && one.limits() == other.limits()
        && one.ancestors().eq(other.ancestors())
        && one.rollout() == other.rollout()
}

fn same(one: Option<&Arc<CompiledProfile>>, other: Option<&Arc<CompiledProfile>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}

fn same_at_work(before: &Entries, after: &Entries) -> bool {
    before.len() == after.len()
        && before
            .iter()
            .zip(after)
            .all(|((one, before), (other, after))| one == other && same(before.good.as_ref(), after.good.as_ref()))
}
