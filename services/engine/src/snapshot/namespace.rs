//! A namespace as a snapshot keeps it: the metadata, and a cache of the profiles that may act there.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapWeak;
use pillion_api::names::InjectionLevel;
use pillion_api::opt_in::OptIn;

use crate::namespace::NamespaceMetadata;
use crate::select::candidates::Candidates;

/// A namespace: its metadata, and a weak reference to the candidates that were last found for it.
pub struct Namespace {
    metadata: NamespaceMetadata,
    /// May belong to an older set of profiles; [`Candidates::is_of`] tells.
    candidates: ArcSwapWeak<Candidates>,
}

impl Namespace {
    /// Creates it from labels and annotations in any order. Of two with the same key, the last one counts. Pillion's
    /// own label opts it in, unless [`Namespace::opting_in_by`] sets other labels.
    #[must_use]
    pub fn new<K: Into<Box<str>>, V: Into<Box<str>>>(
        labels: impl IntoIterator<Item = (K, V)>,
        annotations: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        NamespaceMetadata::new(labels, annotations).into()
    }

    /// Applies the opt-in labels of a release.
    #[must_use]
    pub fn opting_in_by(self, opt_in: &OptIn) -> Self {
        Self { metadata: self.metadata.opting_in_by(opt_in), ..self }
    }

    /// Creates a namespace that has only the opt-in label.
    #[must_use]
    pub fn opted_in(level: InjectionLevel) -> Self {
        NamespaceMetadata::opted_in(level).into()
    }

    /// About how many bytes of memory it takes.
    #[must_use]
    pub const fn memory(&self) -> usize {
        size_of::<Self>() + self.metadata.text_bytes()
    }

    /// The cached candidates, if a snapshot still holds them.
    pub(super) fn cached_candidates(&self) -> Option<Arc<Candidates>> {
        self.candidates.load().upgrade()
    }

    /// Caches the candidates without keeping them alive.
    pub(super) fn cache_candidates(&self, candidates: &Arc<Candidates>) {
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
