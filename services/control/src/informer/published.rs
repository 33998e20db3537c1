//! The published revisions of a profile, which the profile's status names.
//!
//! A replica does not read the spec of a profile. The status names the published revisions and the workloads that get
//! them. The replica fetches each revision by name, compiles it, and keeps it while it is published. So an edited or
//! broken profile changes nothing until the controller has accepted it, even for a replica that starts later. The
//! replica keeps only the hashes of revisions that are no longer published.
//!
//! A published revision may be missing, or unusable for this build. A replica that already serves the profile then
//! keeps its active version. A replica that has just started serves the promoted revision instead, or else the most
//! recent older revision in the status that this build can use. It tries the newest revision last.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use pillion_api::kinds::ProfileStatus;
use pillion_api::profile::Rollout;
use pillion_engine::profile::{CompiledProfile, Diagnostic, ProfileName};
use pillion_engine::snapshot::{Served, Stage};

/// The published revisions in the status of a profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Publication {
    /// The newest revision. During a rollout, only some of the pods get it.
    pub newest: Box<str>,
    /// The promoted revision, which the other pods get during a rollout. `None` if no revision was promoted yet.
    pub promoted: Option<Box<str>>,
    /// Which pods get the newest revision; `None` for all.
    pub rollout: Option<Rollout>,
    /// The hashes of the stored revisions in the status, most recently published first.
    pub kept: Arc<[Box<str>]>,
}

/// A revision of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RevisionKey {
    /// The profile.
    pub profile: ProfileName,
    /// The hash of the revision.
    pub revision: Box<str>,
}

/// Result of fetching a revision.
#[derive(Clone, Debug)]
pub enum Fetched {
    /// The revision compiles.
    Compiled(Arc<CompiledProfile>),
    /// The revision does not exist, or cannot be read at present. A later attempt may find it.
    Missing(Vec<Diagnostic>),
    /// This build cannot use the revision.
    Unusable(Vec<Diagnostic>),
}

/// The published revisions of a profile, and which of them were fetched.
#[derive(Debug, Default)]
pub(crate) struct PublishedRevisions {
    pub(crate) publication: Option<Publication>,
    /// The served revision. Until the published revision is fetched, the previous one continues to be served.
    pub(crate) served: Option<Served>,
    /// Fetched revisions that are not served yet.
    fetched: HashMap<Box<str>, Arc<CompiledProfile>>,
    /// Needed revisions that are missing, or that this build cannot use.
    pub(crate) unusable: BTreeSet<Box<str>>,
}

impl Publication {
    /// Reads the published revisions from a status; `None` if nothing is published.
    pub(crate) fn of(status: ProfileStatus) -> Option<Self> {
        let newest = status.revision?.into();
        let kept = status.revisions.into_iter().map(Into::into).collect();
        Some(Self { newest, promoted: status.promoted_revision.map(Into::into), rollout: status.rollout, kept })
    }

    /// Returns the rollout, and the promoted revision unless it equals the newest one. `None` without a rollout.
    fn staged(&self) -> Option<(&Rollout, Option<&str>)> {
        let promoted = self.promoted.as_deref().filter(|promoted| **promoted != *self.newest);
        self.rollout.as_ref().map(|rollout| (rollout, promoted))
    }

    /// Returns the published revisions, which must all be fetched before they are served.
    fn needed(&self) -> impl Iterator<Item = &str> {
        let promoted = self.staged().and_then(|(_, promoted)| promoted);
        std::iter::once(&*self.newest).chain(promoted)
    }

    /// Returns the revisions that a replica without an active version may serve if a published one is unusable; best
    /// first. The newest is last, since it is not meant for all pods.
    fn fallbacks(&self) -> impl Iterator<Item = &str> {
        let older = self.promoted.iter().chain(&*self.kept).filter(|older| **older != self.newest);
        older.chain([&self.newest]).map(|revision| &**revision)
    }
}

impl PublishedRevisions {
    /// Applies the publication of the status. Returns whether a revision was activated or removed. Afterwards,
    /// [`Self::wanted`] returns the revisions to fetch.
    pub(crate) fn set_publication(&mut self, publication: Option<Publication>) -> bool {
        self.publication = publication;
        let needed: BTreeSet<Box<str>> = self.needed().map(Into::into).collect();
        self.unusable.retain(|revision| needed.contains(revision));
        self.fetched.retain(|revision, _| needed.contains(revision));
        self.activate()
    }

    /// Applies a fetched revision. Returns whether a revision was activated.
    pub(crate) fn add(&mut self, revision: &str, compiled: Arc<CompiledProfile>) -> bool {
        self.unusable.remove(revision);
        self.fetched.insert(revision.into(), compiled);
        self.activate()
    }

    /// Records that a revision is missing or unusable. Returns whether this was not recorded before, and whether a
    /// revision was activated.
    pub(crate) fn add_unusable(&mut self, revision: &str) -> (bool, bool) {
        let is_new = self.unusable.insert(revision.into());
        (is_new, is_new && self.activate())
    }

    fn needed(&self) -> impl Iterator<Item = &str> {
        self.publication.iter().flat_map(Publication::needed).chain(self.fallback())
    }

    /// Returns the fallback revision if nothing is served and a published revision is unusable, else `None`.
    fn fallback(&self) -> Option<&str> {
        let published = self.publication.as_ref().filter(|_| self.served.is_none())?;
        let is_usable = |revision: &&str| !self.unusable.contains(*revision);
        if published.needed().all(|revision| is_usable(&revision)) {
            return None;
        }
        published.fallbacks().find(is_usable)
    }

    /// Returns the revisions to fetch: those that are needed, but are neither fetched nor served yet, and not known to
    /// be unusable.
    pub(crate) fn wanted<'e>(&'e self, profile: &'e ProfileName) -> impl Iterator<Item = RevisionKey> + 'e {
        let missing =
            self.needed().filter(|revision| !self.unusable.contains(*revision) && self.available(revision).is_none());
        missing.map(|revision| RevisionKey { profile: profile.clone(), revision: revision.into() })
    }

    pub(crate) fn needs(&self, revision: &str) -> bool {
        self.needed().any(|needed| needed == revision)
    }

    /// Returns the compiled revision if it was fetched or is already served, else `None`.
    fn available(&self, revision: &str) -> Option<Arc<CompiledProfile>> {
        let served = self.served.iter().flat_map(|served| {
            let promoted = served.stage.as_ref().and_then(|stage| stage.promoted.as_ref());
            std::iter::once(&served.profile).chain(promoted)
        });
        let mut known = self.fetched.values().chain(served);
        known.find(|profile| profile.revision() == revision).cloned()
    }

    /// Activates the published revisions once all are fetched, or else the fallback. Returns whether anything was
    /// activated or removed.
    fn activate(&mut self) -> bool {
        if self.publication.is_none() {
            return self.served.take().is_some();
        }
        let Some(served) = self.as_published().or_else(|| self.fallback_revision()) else { return false };
        let is_complete =
            self.publication.iter().flat_map(Publication::needed).all(|needed| self.available(needed).is_some());
        self.served = Some(served);
        if is_complete {
            self.fetched.clear();
        }
        true
    }

    /// Returns the fallback revision for all pods, or `None` if it is not needed or not fetched.
    fn fallback_revision(&self) -> Option<Served> {
        let profile = self.available(self.fallback()?)?;
        let kept = &self.publication.as_ref()?.kept;
        Some(Served { profile, stage: None, kept: Arc::clone(kept) })
    }

    /// Returns the newest revision with its rollout, or `None` if a revision that is needed is not fetched.
    fn as_published(&self) -> Option<Served> {
        let published = self.publication.as_ref()?;
        let profile = self.available(&published.newest)?;
        let stage = match published.staged() {
            None => None,
            Some((rollout, promoted)) => {
                let promoted = match promoted {
                    Some(promoted) => Some(self.available(promoted)?),
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
