//! The record of a rotation in the CA's Secret, without the certificates themselves.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The number of a CA. Each new CA has a higher number than all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u32);

/// The phase of a rotation. Each phase defines the bundle and the serving certificate while it lasts, and the condition
/// for its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// There is one CA. Ends when it is old, or when an operator requests a rotation.
    Stable,
    /// The next CA exists, and is not trusted yet.
    Staged,
    /// The bundle has both CAs. Ends when every API server is known to trust the next one.
    Expanded,
    /// The next CA signs. Ends when its serving certificate is in the Secret.
    Switched,
    /// Like `Switched`. Ends when every endpoint has served such a certificate, several times.
    Verified,
    /// Like `Verified`, for unseen connections and replicas that may still need the old CA. The old key is deleted.
    Soaking,
    /// The bundle has only the next CA. Ends when every API server is known to trust it.
    Contracted,
}

impl Phase {
    /// All phases in their order.
    pub const ALL: [Self; 7] =
        [Self::Stable, Self::Staged, Self::Expanded, Self::Switched, Self::Verified, Self::Soaking, Self::Contracted];

    /// The phase in the record, in metrics and in messages.
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
    /// The CA has reached its maximum age.
    Age,
    /// An operator requested it.
    Asked,
    /// An operator reported the CA's key as compromised: no soaking.
    Compromised,
    /// The record or the CA's key is lost, so that it cannot sign.
    Lost,
}

impl Trigger {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::Age, Self::Asked, Self::Compromised, Self::Lost];

    /// The reason in the record, in metrics and in messages.
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

/// A CA, as far as decisions need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Authority {
    /// Its number.
    pub generation: Generation,
    /// When it was created: from then on its certificate is meant to be used.
    pub created: Timestamp,
    /// End of its certificate's validity.
    pub not_after: Timestamp,
    /// Whether its key exists, so that it can sign.
    pub has_key: bool,
}

/// The state of a rotation and its CAs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The phase.
    pub phase: Phase,
    /// Start of the phase.
    pub since: Timestamp,
    /// Grows with each write of the record.
    pub epoch: u64,
    /// The epoch of the last required change of the bundle: earlier bundles do not count.
    pub bundle_epoch: u64,
    /// The same for the serving certificate.
    pub leaf_epoch: u64,
    /// The CA of the current or earlier serving certificates. `None` after the record was lost: the bundle has unknown
    /// certificates, which stay trusted until the rotation is complete.
    pub active: Option<Authority>,
    /// The next CA. `None` only in phase `Stable`.
    pub next: Option<Authority>,
    /// Why the current or last rotation began.
    pub trigger: Option<Trigger>,
}

impl Record {
    /// Whether the next CA signs serving certificates.
    #[must_use]
    pub fn has_switched(&self) -> bool {
        self.phase >= Phase::Switched
    }

    /// The CA that signs now. `None` while it is lost and the next one is not trusted yet.
    #[must_use]
    pub fn signer(&self) -> Option<Authority> {
        if self.has_switched() { self.next } else { self.active }
    }

    /// The CAs that the bundle must have.
    pub fn trusted(&self) -> impl Iterator<Item = Generation> {
        let active = self.active.filter(|_| self.phase != Phase::Contracted);
        let next = self.next.filter(|_| self.phase >= Phase::Expanded);
        active.into_iter().chain(next).map(|authority| authority.generation)
    }

    /// Whether unknown certificates stay in the bundle: the record of their CA is lost, and replicas may still serve
    /// its certificates.
    #[must_use]
    pub fn keeps_unknown(&self) -> bool {
        self.active.is_none() && self.phase != Phase::Contracted
    }
}
