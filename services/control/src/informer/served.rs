//! Serves published revisions: those in the status of each profile, and nothing else.
//!
//! The replica does not read the text of a profile. The status names the served revision and its namespaces; the
//! replica fetches the revision by name, compiles it and keeps it while it is published. So an edited or broken profile
//! changes nothing until the controller has accepted it, also for a replica that starts later. Of unpublished revisions
//! only the hashes are known.
//!
//! A published revision may be missing or unusable for this build. A replica that already serves the profile then keeps
//! its active version. A replica that has just started serves the promoted revision instead, or the latest kept one
//! that it can use.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pillion_api::kinds::ProfileStatus;
use pillion_api::profile::Rollout;
use pillion_engine::profile::{CompiledProfile, Diagnostic, ProfileName};
use pillion_engine::snapshot::{Served, Stage};
use serde_json::Value;

use crate::informer::change::Change;
use crate::informer::profiles::{self, Broken, Updated};

/// The published revisions in the status of a profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Publication {
    /// The newest revision; during a rollout, only a part of the pods gets it.
    pub newest: Box<str>,
    /// The promoted revision, for all other pods.
    pub promoted: Option<Box<str>>,
    /// Which pods get the newest revision; `None` for all.
    pub rollout: Option<Rollout>,
    /// The kept revisions.
    pub kept: Arc<[Box<str>]>,
}

/// A profile with its published revisions.
#[derive(Clone, Debug, PartialEq)]
pub struct Pointer {
    /// Its name.
    pub name: ProfileName,
    /// Changes if the profile is deleted and recreated.
    pub uid: Box<str>,
    /// `None` if nothing is published.
    pub published: Option<Publication>,
}

/// A change from a watch of the published revisions.
pub type PointerChange = Change<ProfileName, Pointer>;

/// A revision of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RevisionKey {
    /// The profile.
    pub profile: ProfileName,
    /// Its hash.
    pub revision: Box<str>,
}

/// Result of fetching a revision.
#[derive(Clone, Debug)]
pub enum Fetched {
    /// It compiles.
    Compiled(Arc<CompiledProfile>),
    /// It does not exist. It may be created again.
    Missing(Vec<Diagnostic>),
    /// This build cannot use it.
    Unusable(Vec<Diagnostic>),
}

impl Pointer {
    /// From an object's metadata and its status.
    #[must_use]
    pub fn new(metadata: ObjectMeta, status: ProfileStatus) -> Self {
        let uid = metadata.uid.clone().unwrap_or_default().into();
        let published = status.revision.map(|newest| Publication {
            newest: newest.into(),
            promoted: status.promoted_revision.map(Into::into),
            rollout: status.rollout,
            kept: status.revisions.into_iter().map(Into::into).collect(),
        });
        Self { name: profiles::name(metadata), uid, published }
    }
}

/// Parses the status of a profile. If a newer version wrote it and this build cannot read it, only the revisions are
/// taken, and all pods get the promoted one.
pub(crate) fn read_status(status: Value) -> ProfileStatus {
    let text = |field: &str| status.get(field).and_then(Value::as_str).map(str::to_owned);
    let promoted = text("promotedRevision");
    let revision = text("revision").map(|newest| promoted.unwrap_or(newest));
    let kept = status.get("revisions").and_then(Value::as_array).into_iter().flatten();
    let cautious = ProfileStatus {
        promoted_revision: revision.clone(),
        revision,
        accepted_revision: text("acceptedRevision"),
        revisions: kept.filter_map(Value::as_str).map(str::to_owned).collect(),
        ..ProfileStatus::default()
    };
    serde_json::from_value(status).unwrap_or(cautious)
}

impl Publication {
    /// The rollout, and the promoted revision unless it equals the newest one.
    fn staged(&self) -> Option<(&Rollout, Option<&str>)> {
        let promoted = self.promoted.as_deref().filter(|promoted| **promoted != *self.newest);
        self.rollout.as_ref().map(|rollout| (rollout, promoted))
    }

    /// The revisions that must be fetched before they are served.
    fn needed(&self) -> impl Iterator<Item = &str> {
        let promoted = self.staged().and_then(|(_, promoted)| promoted);
        std::iter::once(&*self.newest).chain(promoted)
    }

    /// Fallback revisions for a replica that serves nothing yet, best first. The newest is last, as it is not meant for
    /// all pods.
    fn instead(&self) -> impl Iterator<Item = &str> {
        let older = self.promoted.iter().chain(&*self.kept).filter(|older| **older != self.newest);
        older.chain([&self.newest]).map(|revision| &**revision)
    }
}

#[derive(Debug)]
struct Entry {
    pointer: Pointer,
    /// The served revision; it may be the earlier one until the published one is fetched.
    served: Option<Served>,
    /// Fetched revisions that are not served yet.
    fetched: HashMap<Box<str>, Arc<CompiledProfile>>,
    /// Revisions that cannot be used.
    unusable: BTreeSet<Box<str>>,
}

/// Follows a watch of one kind of profile, and the fetched revisions.
#[derive(Debug, Default)]
pub struct ServedIndex {
    entries: BTreeMap<ProfileName, Entry>,
    listing: Option<BTreeSet<ProfileName>>,
    /// Revisions to fetch that are not being fetched yet.
    due: BTreeSet<RevisionKey>,
    /// Revisions that are being fetched.
    fetching: BTreeSet<RevisionKey>,
    listed: bool,
    /// All revisions published at the time of the first list were fetched.
    synced: bool,
}

impl ServedIndex {
    /// Applies a change.
    pub fn update(&mut self, change: PointerChange) -> Updated {
        let mut updated = Updated::default();
        match change {
            Change::Restarted => self.listing = Some(BTreeSet::new()),
            Change::Listed(pointer) => {
                self.listing.get_or_insert_default().insert(pointer.name.clone());
                updated.changed = self.point(pointer);
            }
            Change::ListComplete => {
                let listed = self.listing.take().unwrap_or_default();
                let before = self.entries.len();
                self.entries.retain(|name, _| listed.contains(name));
                self.listed = true;
                updated.changed = self.entries.len() != before;
            }
            Change::Applied(pointer) => updated.changed = self.point(pointer),
            Change::Deleted(name) => updated.changed = self.entries.remove(&name).is_some(),
        }
        updated.changed |= self.check_synced();
        updated
    }

    /// Applies a fetched revision, or that it cannot be used.
    pub fn fetched(&mut self, key: &RevisionKey, fetched: Fetched) -> Updated {
        self.fetching.remove(key);
        let mut updated = Updated::default();
        if let Some(entry) = self.entries.get_mut(&key.profile)
            && entry.needs(&key.revision)
        {
            match fetched {
                Fetched::Compiled(compiled) => {
                    entry.unusable.remove(&key.revision);
                    entry.fetched.insert(key.revision.clone(), compiled);
                    updated.changed = entry.settle();
                }
                Fetched::Missing(diagnostics) | Fetched::Unusable(diagnostics) => {
                    if entry.unusable.insert(key.revision.clone()) {
                        let serving = entry.served.as_ref().map(|served| served.profile.revision().into());
                        let name = key.profile.clone();
                        updated.broken.push(Broken { name, generation: None, serving, diagnostics });
                        updated.changed = entry.settle();
                        let wanted = entry.wanted(&key.profile).filter(|key| !self.fetching.contains(key));
                        self.due.extend(wanted);
                    }
                }
            }
        }
        updated.changed |= self.check_synced();
        updated
    }

    /// Reports that a fetch failed for now. Returns whether the revision is still needed, so that the caller retries.
    #[must_use]
    pub fn still_wants(&mut self, key: &RevisionKey) -> bool {
        let wants = self.entries.get(&key.profile).is_some_and(|entry| entry.needs(&key.revision));
        if !wants {
            self.fetching.remove(key);
            self.check_synced();
        }
        wants
    }

    /// Returns the revisions to fetch now. Each is returned once.
    pub fn due(&mut self) -> Vec<RevisionKey> {
        let due: Vec<_> = std::mem::take(&mut self.due).into_iter().collect();
        self.fetching.extend(due.iter().cloned());
        due
    }

    /// The served profiles, by name.
    pub fn at_work(&self) -> impl Iterator<Item = &Served> {
        self.entries.values().filter_map(|entry| entry.served.as_ref())
    }

    /// Number of profiles.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of profiles that are not served as published.
    #[must_use]
    pub fn broken(&self) -> usize {
        self.entries.values().filter(|entry| !entry.unusable.is_empty()).count()
    }

    /// Whether all published revisions were fetched once, or are unusable.
    #[must_use]
    pub const fn synced(&self) -> bool {
        self.synced
    }

    /// Applies the published revisions of a profile. Returns whether the served revision changed at once.
    fn point(&mut self, pointer: Pointer) -> bool {
        let name = pointer.name.clone();
        let mut was_served = false;
        // A profile that was recreated while the watch was interrupted shares nothing with the earlier one.
        if self.entries.get(&name).is_some_and(|entry| entry.pointer.uid != pointer.uid) {
            was_served = self.entries.remove(&name).is_some_and(|entry| entry.served.is_some());
        }
        let entry = self.entries.entry(name.clone()).or_insert_with(|| Entry {
            pointer: Pointer { published: None, ..pointer.clone() },
            served: None,
            fetched: HashMap::new(),
            unusable: BTreeSet::new(),
        });
        if entry.pointer.published == pointer.published {
            return was_served;
        }
        entry.pointer = pointer;
        let named: BTreeSet<Box<str>> = entry.needed().map(Into::into).collect();
        entry.unusable.retain(|revision| named.contains(revision));
        entry.fetched.retain(|revision, _| named.contains(revision));
        let settled = entry.settle();
        let unknown = |key: &RevisionKey| !entry.unusable.contains(&key.revision) && !self.fetching.contains(key);
        self.due.extend(entry.wanted(&name).filter(unknown));
        settled || was_served
    }

    /// Returns whether the index has just become synced.
    fn check_synced(&mut self) -> bool {
        let now = !self.synced && self.listed && self.due.is_empty() && self.fetching.is_empty();
        self.synced |= now;
        now
    }
}

impl Entry {
    fn needed(&self) -> impl Iterator<Item = &str> {
        self.pointer.published.iter().flat_map(Publication::needed).chain(self.instead())
    }

    /// The fallback revision, if nothing is served and the published revision is unusable.
    fn instead(&self) -> Option<&str> {
        let published = self.pointer.published.as_ref().filter(|_| self.served.is_none())?;
        let is_usable = |revision: &&str| !self.unusable.contains(*revision);
        if published.needed().all(|revision| is_usable(&revision)) {
            return None;
        }
        published.instead().find(is_usable)
    }

    /// The revisions that are needed and not fetched.
    fn wanted<'e>(&'e self, profile: &'e ProfileName) -> impl Iterator<Item = RevisionKey> + 'e {
        let missing =
            self.needed().filter(|revision| !self.unusable.contains(*revision) && self.at_hand(revision).is_none());
        missing.map(|revision| RevisionKey { profile: profile.clone(), revision: revision.into() })
    }

    fn needs(&self, revision: &str) -> bool {
        self.needed().any(|needed| needed == revision)
    }

    /// A revision that was fetched or is served already.
    fn at_hand(&self, revision: &str) -> Option<Arc<CompiledProfile>> {
        let served = self.served.iter().flat_map(|served| {
            let promoted = served.stage.as_ref().and_then(|stage| stage.promoted.as_ref());
            std::iter::once(&served.profile).chain(promoted)
        });
        let mut known = self.fetched.values().chain(served);
        known.find(|profile| profile.revision() == revision).cloned()
    }

    /// Activates the published revision, once all of it is fetched. Returns true if it changed.
    fn settle(&mut self) -> bool {
        if self.pointer.published.is_none() {
            return self.served.take().is_some();
        }
        let Some(now) = self.as_published().or_else(|| self.fallback_revision()) else { return false };
        let is_whole =
            self.pointer.published.iter().flat_map(Publication::needed).all(|needed| self.at_hand(needed).is_some());
        self.served = Some(now);
        if is_whole {
            self.fetched.clear();
        }
        true
    }

    /// The fallback revision for all pods, if it is fetched.
    fn fallback_revision(&self) -> Option<Served> {
        let profile = self.at_hand(self.instead()?)?;
        let kept = &self.pointer.published.as_ref()?.kept;
        Some(Served { profile, stage: None, kept: Arc::clone(kept) })
    }

    /// The published revision, if all of it is fetched.
    fn as_published(&self) -> Option<Served> {
        let published = self.pointer.published.as_ref()?;
        let profile = self.at_hand(&published.newest)?;
        let stage = match published.staged() {
            None => None,
            Some((rollout, promoted)) => {
                let promoted = match promoted {
                    Some(promoted) => Some(self.at_hand(promoted)?),
                    None => None,
                };
                let percent = rollout.percent.unwrap_or(100);
                Some(Stage { promoted, percent, namespaces: rollout.namespace_selector.clone() })
            }
        };
        // A rollout of the revision that is already promoted has no effect.
        let stage = stage.filter(|_| published.promoted.as_deref() != Some(&*published.newest));
        Some(Served { profile, stage, kept: Arc::clone(&published.kept) })
    }
}

#[cfg(test)]
mod tests;
