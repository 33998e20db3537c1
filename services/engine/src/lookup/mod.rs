//! Lookups: objects of the cluster that expressions and parameters read, besides the request and the namespace.
//!
//! The engine does no I/O. [`Needs`] is what a profile may read, known from its text. [`Wanted`] is what one review
//! needs, known before anything is decided. The caller fetches it and passes it as [`LookedUp`]. That a lookup found
//! nothing is a valid result. A lookup that failed is an error of the expressions that read it, at the time they read
//! it.

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

/// The result of a lookup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Answer<T> {
    /// It was not made.
    #[default]
    NotAsked,
    /// The object does not exist. This is not an error.
    Missing,
    /// The object.
    Found(T),
    /// It failed; the message is for people.
    Failed(Box<str>),
}

/// One object or several to look up.
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
    /// The objects.
    pub which: Which,
}

/// A selection of the objects of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The object with this name.
    Named(Box<str>),
    /// All objects with these labels, as a list.
    Selected(LabelSelector),
}

/// The lookups that one review needs. Empty for most reviews.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The namespace of the object, of its service account and of its owners.
    pub namespace: Box<str>,
    /// The name of its service account.
    pub service_account: Option<Box<str>>,
    /// The owners that are known without a lookup. The chain is to be completed.
    pub owners: Option<OwnerChain>,
    /// The declared `lookups` of profiles.
    pub objects: Vec<Query>,
}

/// The results of the lookups for one review. Objects of which only the metadata is kept are `{"metadata": {...}}`.
#[derive(Clone, Debug, Default)]
pub struct LookedUp {
    /// The metadata of the service account.
    pub service_account: Answer<Arc<OwnedTape>>,
    /// The owners, the nearest first, with the metadata that is known.
    pub owners: Answer<OwnerChain>,
    /// The results of declared `lookups`: an object, or a list of objects.
    pub objects: Vec<(Query, Answer<Arc<OwnedTape>>)>,
    /// The platform's facts about the cluster: a map, which needs no lookup. `null`: there are facts, but they are not
    /// known here; see [`LookedUp::unknown_cluster`].
    pub cluster: Option<Arc<OwnedTape>>,
}

impl<T> Answer<T> {
    /// The object; `None` if it does not exist.
    ///
    /// # Errors
    /// The lookup was not made or failed.
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
    /// Whether no lookup is needed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.service_account.is_none() && self.owners.is_none() && self.objects.is_empty()
    }

    /// Gives all lookups the same result: [`Answer::Missing`] if there is no cluster to ask, or [`Answer::Failed`] with
    /// the reason. Owners that are known by name stay known unless the lookups failed.
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
    /// The value of `cluster` if the facts are not known: an expression that reads it fails.
    #[must_use]
    pub fn unknown_cluster() -> Option<Arc<OwnedTape>> {
        OwnedTape::parse("null".to_owned()).ok().map(Arc::new)
    }

    /// The result of a declared lookup.
    pub(crate) fn object(&self, query: &Query) -> Answer<Arc<OwnedTape>> {
        self.objects.iter().find(|(asked, _)| asked == query).map_or(Answer::NotAsked, |(_, answer)| answer.clone())
    }
}

/// The reason for a profile whose expression could not be evaluated.
pub(crate) fn reason_of(error: &EvaluationError) -> Reason {
    if error.is_unavailable() { Reason::LookupFailed } else { Reason::ExpressionFailed }
}

#[cfg(test)]
mod tests;
