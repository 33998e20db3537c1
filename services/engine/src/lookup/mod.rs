//! Look-ups: what expressions and parameters may know beside the request and the namespace.
//!
//! The engine asks nobody. What a profile may want is known from its text ([`Needs`]); what one review wants of it is
//! found before anything is decided ([`Wanted`]); whoever runs the engine fetches that, wherever it is, and gives it as
//! data ([`LookedUp`]). A look-up that found nothing is a fact like any other; one that could not be made is a fault of
//! the profiles that read it, when they read it.

mod declare;
mod known;
mod needs;
mod owners;

use std::sync::Arc;

use pillion_api::selector::LabelSelector;

use crate::expression::EvaluationError;
use crate::json::OwnedTape;
use crate::reason::Reason;

pub(crate) use declare::{Declared, compile};
pub use known::{KnownObjects, metadata_tape};
pub(crate) use known::{group_of, plural};
pub use needs::{Needs, OwnerNeeds};
pub(crate) use owners::{Owner, workload};
pub use owners::{OwnerChain, OwnerReference};

/// How a look-up ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Answer<T> {
    /// It was not made.
    #[default]
    NotAsked,
    /// There is no such thing. That is a fact, and no fault.
    Missing,
    /// This is there.
    Found(T),
    /// It could not be made; why, for people.
    Failed(Box<str>),
}

/// One object, or several, that a look-up is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// API group; empty for the core group.
    pub group: Box<str>,
    /// API version.
    pub version: Box<str>,
    /// Resource, in the plural.
    pub resource: Box<str>,
    /// The namespace to look in; empty for objects that are in none.
    pub namespace: Box<str>,
    /// Which objects.
    pub which: Which,
}

/// Which objects of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The one of this name.
    Named(Box<str>),
    /// All that have these labels, as a list.
    Selected(LabelSelector),
}

/// What one review wants looked up. Empty for nearly all.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The namespace of the object, in which its service account and its owners are.
    pub namespace: Box<str>,
    /// The name of its service account.
    pub service_account: Option<Box<str>>,
    /// Its owners, as far as they are known without a look-up; to be followed to its end.
    pub owners: Option<OwnerChain>,
    /// What profiles declare as `lookups`.
    pub objects: Vec<Query>,
}

/// What was looked up for one review. Objects of which only the metadata is kept are `{"metadata": {...}}`.
#[derive(Clone, Debug, Default)]
pub struct LookedUp {
    /// The metadata of the service account.
    pub service_account: Answer<Arc<OwnedTape>>,
    /// The owners, the nearest first, with what is known of them.
    pub owners: Answer<OwnerChain>,
    /// What profiles declare as `lookups`: an object, or a list of objects.
    pub objects: Vec<(Query, Answer<Arc<OwnedTape>>)>,
    /// What the platform says of the cluster: a map. Nothing has to be looked up for it. `null`: it says something, and what
    /// is not known here; see [`LookedUp::unknown_cluster`].
    pub cluster: Option<Arc<OwnedTape>>,
}

impl<T> Answer<T> {
    /// What was found; `None` if there is none.
    ///
    /// # Errors
    /// If it is not known, because the look-up could not be made.
    pub(crate) fn known(&self, what: &str) -> Result<Option<&T>, EvaluationError> {
        match self {
            Self::Found(found) => Ok(Some(found)),
            Self::Missing => Ok(None),
            Self::Failed(why) => Err(EvaluationError::unavailable(format!("{what} could not be looked up: {why}"))),
            Self::NotAsked => Err(EvaluationError::unavailable(format!("{what} was not looked up"))),
        }
    }
}

impl Wanted {
    /// Whether nothing has to be looked up.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.service_account.is_none() && self.owners.is_none() && self.objects.is_empty()
    }

    /// The same answer to all that is wanted: [`Answer::Missing`] where there is no cluster to ask, or
    /// [`Answer::Failed`] with the reason. Of the owners, those that are known by name stay known where nothing failed.
    #[must_use]
    pub fn answered(self, answer: &Answer<Arc<OwnedTape>>) -> LookedUp {
        LookedUp {
            service_account: if self.service_account.is_some() { answer.clone() } else { Answer::NotAsked },
            owners: match (self.owners, answer) {
                (None, _) => Answer::NotAsked,
                (Some(_), Answer::Failed(why)) => Answer::Failed(why.clone()),
                (Some(chain), _) => Answer::Found(chain),
            },
            objects: self.objects.into_iter().map(|query| (query, answer.clone())).collect(),
            cluster: None,
        }
    }
}

impl LookedUp {
    /// For `cluster`, where it is not known what the platform says: an expression that reads it cannot be evaluated.
    #[must_use]
    pub fn unknown_cluster() -> Option<Arc<OwnedTape>> {
        OwnedTape::parse("null".to_owned()).ok().map(Arc::new)
    }

    /// How a declared look-up ended.
    pub(crate) fn object(&self, query: &Query) -> Answer<Arc<OwnedTape>> {
        self.objects.iter().find(|(asked, _)| asked == query).map_or(Answer::NotAsked, |(_, answer)| answer.clone())
    }
}

/// Why a profile is at fault whose expression could not be evaluated.
pub(crate) fn reason_of(error: &EvaluationError) -> Reason {
    if error.is_unavailable() { Reason::LookupFailed } else { Reason::ExpressionFailed }
}

#[cfg(test)]
mod tests;
