//! Profiles as they are stored become compiled profiles.
//!
//! A stored profile may be one that this build cannot read (a field of a newer version) or that does not compile. Then
//! the last one that did stays at work, and what is wrong is reported once for each generation: a mistake in one profile
//! must neither take away what runs nor stop the watch that would bring its repair.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pillion_api::ProfileSpec;
use pillion_engine::profile::{CompiledProfile, Diagnostic, Part, ProfileName, ProfileSet, compile};
use serde_json::Value;

use crate::change::Change;

/// A profile as it is stored, its text unread.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredProfile {
    /// Which one it is.
    pub name: ProfileName,
    /// Another one means that it was deleted and made anew.
    pub uid: Box<str>,
    /// Rises with each change of the text, and not with a change of the status.
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

/// Which profile an object's metadata name.
#[must_use]
pub fn name(metadata: ObjectMeta) -> ProfileName {
    ProfileName { namespace: metadata.namespace.map(Into::into), name: metadata.name.unwrap_or_default().into() }
}

/// What is at work now that was not before, by name.
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

/// What a watch of profiles says.
pub type ProfileChange = Change<ProfileName, StoredProfile>;

/// A profile that does not take effect as it is stored.
#[derive(Clone, Debug)]
pub struct Broken {
    /// Which one.
    pub name: ProfileName,
    /// The generation that is broken.
    pub generation: Option<i64>,
    /// Revision of the last good one, which stays at work; `None` if there is none.
    pub serving: Option<Box<str>>,
    /// What is wrong; at least one.
    pub diagnostics: Vec<Diagnostic>,
}

/// What an update of a [`ProfileIndex`] did.
#[derive(Debug, Default)]
pub struct Updated {
    /// Whether the profiles at work are others than before.
    pub changed: bool,
    /// A profile that is broken, and was not known to be.
    pub broken: Option<Broken>,
}

/// A profile that is at work with another revision than before, or not any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// Which one.
    pub name: ProfileName,
    /// The revision that was at work; `None` if it is new.
    pub before: Option<Box<str>>,
    /// The revision that is; `None` if it is gone.
    pub now: Option<Box<str>>,
}

#[derive(Clone, Debug)]
struct Entry {
    uid: Box<str>,
    generation: Option<i64>,
    /// The last one that compiled.
    good: Option<Arc<CompiledProfile>>,
    broken: bool,
}

type Entries = BTreeMap<ProfileName, Entry>;

/// Follows a watch of one kind of profile.
#[derive(Debug, Default)]
pub struct ProfileIndex {
    entries: Entries,
    listing: Option<Entries>,
    synced: bool,
}

impl ProfileIndex {
    /// Takes a change.
    pub fn update(&mut self, change: ProfileChange) -> Updated {
        match change {
            Change::Restarted => {
                self.listing = Some(Entries::new());
                Updated::default()
            }
            Change::Listed(stored) => {
                // Compared with what was known before the list, so that what did not change is not compiled again.
                let (name, entry, broken) = next(self.entries.get(&stored.name), stored);
                self.listing.get_or_insert_default().insert(name, entry);
                Updated { changed: false, broken }
            }
            Change::ListComplete => {
                let listed = self.listing.take().unwrap_or_default();
                let changed = !self.synced || !same_at_work(&self.entries, &listed);
                self.entries = listed;
                self.synced = true;
                Updated { changed, broken: None }
            }
            Change::Applied(stored) => {
                let known = self.entries.get(&stored.name);
                let before = known.and_then(|entry| entry.good.clone());
                let (name, entry, broken) = next(known, stored);
                let changed = !same(before.as_ref(), entry.good.as_ref());
                self.entries.insert(name, entry);
                Updated { changed, broken }
            }
            Change::Deleted(name) => {
                let gone = self.entries.remove(&name);
                Updated { changed: gone.is_some_and(|entry| entry.good.is_some()), broken: None }
            }
        }
    }

    /// The profiles at work, by name.
    pub fn at_work(&self) -> impl Iterator<Item = &Arc<CompiledProfile>> {
        self.entries.values().filter_map(|entry| entry.good.as_ref())
    }

    /// How many are not at work as they are stored.
    #[must_use]
    pub fn broken(&self) -> usize {
        self.entries.values().filter(|entry| entry.broken).count()
    }

    /// Whether a list was complete at least once.
    #[must_use]
    pub const fn synced(&self) -> bool {
        self.synced
    }
}

/// What is known of a profile after it was seen as `stored`, and what is newly wrong with it.
fn next(known: Option<&Entry>, stored: StoredProfile) -> (ProfileName, Entry, Option<Broken>) {
    let StoredProfile { name, uid, generation, spec } = stored;
    // What was deleted and made anew, while the watch was away, has no last good one.
    let known = known.filter(|entry| entry.uid == uid);
    if let Some(entry) = known.filter(|entry| generation.is_some() && entry.generation == generation) {
        return (name, entry.clone(), None);
    }
    let (good, broken) = match read(&name, spec) {
        Ok(compiled) => (Some(Arc::new(compiled)), None),
        Err(diagnostics) => {
            let good = known.and_then(|entry| entry.good.clone());
            let serving = good.as_ref().map(|profile| profile.revision().into());
            (good, Some(Broken { name: name.clone(), generation, serving, diagnostics }))
        }
    };
    (name, Entry { uid, generation, good, broken: broken.is_some() }, broken)
}

fn read(name: &ProfileName, spec: Value) -> Result<CompiledProfile, Vec<Diagnostic>> {
    let spec: ProfileSpec = serde_path_to_error::deserialize(spec).map_err(|error| vec![unreadable(&error)])?;
    compile(name, &spec)
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
