//! The record of a rotation in the CA's Secret, without the certificates themselves.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The number of an authority. Each new one has a higher number than all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u32);

/// How far a rotation is. Each phase says what the bundle and the leaf have to be while it lasts, and what has to be true
/// for it to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// There is one authority. Ends when it is old, or when somebody asks.
    Stable,
    /// The next authority exists, and nobody knows of it.
    Staged,
    /// The bundle has both. Ends when every API server is known to trust the next one.
    Expanded,
    /// Leaves are those of the next authority. Ends when such a leaf is in the Secret.
    Switched,
    /// The same. Ends when every endpoint is seen to serve such a leaf, several times.
    Verified,
    /// The same, for as long as a connection or a replica that nobody sees may need the old one. The old key is gone.
    Soaking,
    /// The bundle has the next authority alone. Ends when every API server is known to manage with it.
    Contracted,
}

impl Phase {
    /// All phases in their order.
    pub const ALL: [Self; 7] =
        [Self::Stable, Self::Staged, Self::Expanded, Self::Switched, Self::Verified, Self::Soaking, Self::Contracted];

    /// The phase as it stands in the record, in metrics and for people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Staged => "staged",
            Self::Expanded => "expanded",
            Self::Switched => "switched",
            Self::Verified => "verified",
            Self::Soaking => "soaking",
            Self::Contracted => "contracted",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// Why a rotation began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trigger {
    /// The authority has lived its share.
    Age,
    /// A person asked.
    Asked,
    /// A person says that the authority's key is known to others: no soaking.
    Compromised,
    /// The record or the authority's key is lost, so that it can sign nothing more.
    Lost,
}

impl Trigger {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::Age, Self::Asked, Self::Compromised, Self::Lost];

    /// The reason as it stands in the record, in metrics and for people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Asked => "asked",
            Self::Compromised => "compromised",
            Self::Lost => "lost",
        }
    }
}

/// An authority, as far as decisions need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Authority {
    /// Its number.
    pub generation: Generation,
    /// From when on its certificate is meant to be used: when it was made.
    pub created: Timestamp,
    /// When its certificate ends.
    pub not_after: Timestamp,
    /// Whether its key is there, so that it can sign.
    pub has_key: bool,
}

/// How far a rotation is, and with whom.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// How far.
    pub phase: Phase,
    /// Since when in this phase.
    pub since: Timestamp,
    /// Grows with each write of the record.
    pub epoch: u64,
    /// The epoch at which the bundle last had to become another: what was written before it does not count.
    pub bundle_epoch: u64,
    /// The same for the leaf.
    pub leaf_epoch: u64,
    /// Whose leaves are or were served. `None` after the record was lost: the bundle has certificates of somebody who is not
    /// known any more, and they stay trusted until the rotation is through.
    pub active: Option<Authority>,
    /// Who comes after. `None` only while stable.
    pub next: Option<Authority>,
    /// Why the rotation began that is going on or was the last.
    pub trigger: Option<Trigger>,
}

impl Record {
    /// Whether leaves are those of the next authority.
    #[must_use]
    pub fn has_switched(&self) -> bool {
        self.phase >= Phase::Switched
    }

    /// Who signs leaves at present. `None` while the one who did is lost and the next is not trusted yet.
    #[must_use]
    pub fn signer(&self) -> Option<Authority> {
        if self.has_switched() { self.next } else { self.active }
    }

    /// Which authorities the bundle has to have.
    pub fn trusted(&self) -> impl Iterator<Item = Generation> {
        let active = self.active.filter(|_| self.phase != Phase::Contracted);
        let next = self.next.filter(|_| self.phase >= Phase::Expanded);
        active.into_iter().chain(next).map(|authority| authority.generation)
    }

    /// Whether certificates in the bundle that nobody knows are to stay: their authority's record is lost, and replicas may
    /// still serve its leaves.
    #[must_use]
    pub fn keeps_unknown(&self) -> bool {
        self.active.is_none() && self.phase != Phase::Contracted
    }
}
