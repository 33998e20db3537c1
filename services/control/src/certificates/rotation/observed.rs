//! The observed state before a decision: the three objects, the clock, and the results of probes.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::record::{Generation, Record, Trigger};

/// The inputs of a decision.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The leader's clock.
    pub now: Timestamp,
    /// Whether that clock agrees with the API server's. If not, no step depends on age.
    pub clock_agrees: bool,
    /// The record.
    pub record: Stored<Record>,
    /// The Secret with the serving certificate.
    pub serving: Stored<Serving>,
    /// The webhook configurations.
    pub configuration: Configuration,
    /// Results of the last probes of the endpoints.
    pub endpoints: Endpoints,
    /// Which API servers are known to have the bundle.
    pub propagation: Propagation,
    /// The rotation that an operator requested, if it is not done yet.
    pub asked: Option<Trigger>,
    /// The highest number in any certificate of this release; a new CA gets a higher one.
    pub highest: Option<Generation>,
}

/// The state of a stored object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stored<T> {
    /// The object does not exist.
    Missing,
    /// The object exists but is unreadable.
    Corrupt,
    /// The contents.
    Is(T),
}

impl<T> Stored<T> {
    /// The contents, if they are readable.
    pub const fn get(&self) -> Option<&T> {
        match self {
            Self::Is(value) => Some(value),
            Self::Missing | Self::Corrupt => None,
        }
    }
}

/// The serving certificate in its Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serving {
    /// The certificate; `None` if no replica would serve it: it is broken, has other names, or lacks its key.
    pub leaf: Option<Leaf>,
    /// The epoch of the record for which it was written.
    pub epoch: u64,
}

/// A certificate that can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The CA that signed it; `None` if unknown.
    pub signer: Option<Generation>,
    /// When to renew it: long before its end, and not at once for all releases of a cluster.
    pub renew_at: Timestamp,
}

/// The state of the webhook configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Configuration {
    /// There is none, and one is wanted.
    Absent,
    /// It exists without entries, so the API server calls no webhook.
    Empty {
        /// The epoch of the record for which it was written.
        epoch: u64,
    },
    /// There is none, since an operator disabled the webhooks.
    Disarmed,
    /// It exists, with this bundle.
    Present(Bundle),
}

/// The CAs that API servers trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// The CAs in every entry.
    pub authorities: BTreeSet<Generation>,
    /// Whether all entries have the same bundle, and only certificates.
    pub uniform: bool,
    /// Whether some entry has an unknown certificate.
    pub unknown: bool,
    /// The epoch of the record for which it was written.
    pub epoch: u64,
    /// When this leader first saw it in this state. Other leaders' clocks do not count.
    pub written: Timestamp,
}

/// Results of probing every endpoint, each over its own TLS connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// Endpoints that responded with a certificate that the bundle trusts.
    pub answering: usize,
    /// Consecutive rounds in which every endpoint served a certificate of the *newest* CA.
    pub rounds: u32,
    /// Whether the last round found an endpoint that serves another CA's certificate.
    pub older: bool,
    /// Whether the last round found an endpoint that serves an untrusted certificate.
    pub stranger: bool,
    /// Endpoints that could not be probed in the last round.
    pub unreachable: usize,
}

/// Whether the API servers are known to have the current bundle. The trust probe asks each of them to call a server
/// with a certificate of the newest CA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Propagation {
    /// API servers whose call succeeded.
    pub proven: usize,
    /// API servers that did not trust the certificate.
    pub behind: usize,
    /// API servers that could not be asked.
    pub silent: usize,
}
