//! The observed state before a decision: the three objects, the clock, and the results of probes.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::record::{Generation, Record, Trigger};

/// Everything that the next step depends on.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The leader's clock.
    pub now: Timestamp,
    /// Whether that clock agrees with the API server's. If it does not, nothing is decided by age.
    pub clock_agrees: bool,
    /// The record.
    pub record: Stored<Record>,
    /// The Secret with the leaf.
    pub serving: Stored<Serving>,
    /// The webhook configuration.
    pub configuration: Configuration,
    /// What the last probes of the endpoints found.
    pub endpoints: Endpoints,
    /// What the API servers are known to trust.
    pub propagation: Propagation,
    /// What a person asks for, and has not got yet.
    pub asked: Option<Trigger>,
    /// The highest number that any certificate of ours has that is seen anywhere; a new one gets a higher one.
    pub highest: Option<Generation>,
}

/// An object that keeps something.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stored<T> {
    /// There is no such object.
    Missing,
    /// There is one, and it cannot be read.
    Corrupt,
    /// What it keeps.
    Is(T),
}

impl<T> Stored<T> {
    /// What it keeps, if it can be read.
    pub const fn get(&self) -> Option<&T> {
        match self {
            Self::Is(value) => Some(value),
            Self::Missing | Self::Corrupt => None,
        }
    }
}

/// The leaf in its Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serving {
    /// The leaf; `None` if it is none that a replica would serve: broken, for other names, or its key is not there.
    pub leaf: Option<Leaf>,
    /// The record's epoch for which it was written.
    pub epoch: u64,
}

/// A leaf that can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Whose it is; `None` if nobody's who is known.
    pub signer: Option<Generation>,
    /// When it is to be renewed: long before its end, and not for all releases of a cluster at once.
    pub renew_at: Timestamp,
}

/// The webhook configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Configuration {
    /// There is none, and there shall be one.
    Absent,
    /// There is one without an entry, so that nobody is called.
    Empty {
        /// The record's epoch for which it was written.
        epoch: u64,
    },
    /// There is none, and somebody took it away on purpose.
    Disarmed,
    /// There is one.
    Present(Bundle),
}

/// Whom the API servers are told to trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// The authorities that every entry has.
    pub authorities: BTreeSet<Generation>,
    /// Whether all entries have the same, and nothing but certificates.
    pub uniform: bool,
    /// Whether some entry has a certificate of somebody who is not known.
    pub unknown: bool,
    /// The record's epoch for which it was written.
    pub epoch: u64,
    /// Since when it is so, as the leader has seen it: no other leader's clock counts, and no step of its own.
    pub written: Timestamp,
}

/// What probing every endpoint found, each by a TLS connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// Endpoints that answered with a leaf that the bundle trusts.
    pub answering: usize,
    /// How many rounds, one after the other, found every endpoint with a leaf that the *newest* authority alone verifies.
    pub rounds: u32,
    /// Whether the last round found one that serves another authority's leaf.
    pub older: bool,
    /// Whether the last round found one that serves a leaf of nobody who is known.
    pub stranger: bool,
    /// Endpoints that could not be probed in the last round.
    pub unreachable: usize,
}

/// Whether the API servers are known to have the bundle as it is: for each that is known, whether a call of it to somebody
/// with a leaf of the newest authority went through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Propagation {
    /// Those that made the call.
    pub proven: usize,
    /// Those that answered that they did not trust whom they called.
    pub behind: usize,
    /// Those that could not be asked.
    pub silent: usize,
}
