//! The rotation of the CA: a pure function from the observed state to the next step.
//!
//! The API server trusts the CA *bundle* in the webhook configuration. Replicas serve the *serving certificate* in a
//! Secret. Both change at different times, and a change reaches each API server and each replica at a different time.
//! The leader may crash or pause between any two writes. None of this may make an admission request fail. So:
//!
//! - The bundle of every API server must have a CA before a replica serves a certificate of this CA. The CA is removed
//!   from the bundle only after every replica has served a certificate of its successor. Unless the CA's key is
//!   compromised, it remains trusted for an additional time.
//! - All state between steps is in three objects: the *record* (a Secret with the CAs and the [`Phase`]), the Secret
//!   with the serving certificate, and the webhook configuration. The next leader continues from there.
//! - A step writes at most one object, or the two webhook configurations. Each write is guarded by the object's
//!   `resourceVersion` and by an *epoch*. The epoch grows with each write of the record, and is written into the other
//!   objects. If an object has a later epoch than the record that a leader read, this leader is outdated and observes
//!   again.
//!
//! A replica without a certificate first reads the Secret from etcd. A cache of the API server could return a
//! certificate that is no longer trusted. Then the replica watches the Secret.
//!
//! This file has the stored state ([`Record`]), the observed state ([`Observed`]) and the possible steps ([`Step`]).
//! The function [`next`] in [`plan`] chooses the next step. `tests/rotation_model/` explores the rotation with two
//! leaders, lagging replicas and API servers, and crashes at any point.

pub mod plan;

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use plan::{Settings, next};

/// The number of a CA. A new CA has a higher number than all earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u32);

pillion_api::labelled! {
    /// The phase of a rotation. Each phase requires a bundle and a serving certificate, and ends on a condition.
    #[derive(PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Phase {
        /// There is one CA. The phase ends when the CA reaches its rotation age, when an administrator requests a
        /// rotation, or when the CA is lost or cannot sign.
        Stable => "stable",
        /// The next CA exists, and is not trusted yet.
        Staged => "staged",
        /// The bundle has both CAs. The phase ends when every API server is known to trust the next one, or after a
        /// timeout if none is known to reject it.
        Expanded => "expanded",
        /// The next CA issues the serving certificate. The phase ends when the Secret contains that certificate.
        Switched => "switched",
        /// The controller verifies the endpoints. The phase ends when every endpoint has served a certificate of the
        /// next CA in several consecutive rounds of probes.
        Verified => "verified",
        /// Like `Verified`, but the old key is deleted. Connections and replicas that the probes did not reach may
        /// still need the old CA, so it remains trusted for some time.
        Soaking => "soaking",
        /// The bundle has only the next CA. The phase ends under the same conditions as `Expanded`. If an API server or
        /// an endpoint still needs the old CA, the rotation returns to `Verified`.
        Contracted => "contracted",
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

pillion_api::labelled! {
    /// Why a rotation began.
    #[derive(Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Trigger {
        /// The CA has reached its rotation age.
        Age => "age",
        /// An administrator requested the rotation.
        Requested => "requested",
        /// An administrator reported that the CA's key is compromised, so there is no soaking.
        Compromised => "compromised",
        /// The record or the CA's key is lost, so the CA cannot sign.
        Lost => "lost",
    }
}

/// A CA in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ca {
    /// The number of the CA.
    pub generation: Generation,
    /// When the CA was created. The validity of its certificate begins somewhat earlier.
    pub created: Timestamp,
    /// End of the validity of the CA's certificate.
    pub not_after: Timestamp,
    /// Whether the CA's key exists, so that the CA can sign.
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
    /// The epoch. It grows with each write of the record.
    pub epoch: u64,
    /// The epoch of the last required change of the bundle. Bundles of an earlier epoch are outdated.
    pub bundle_epoch: u64,
    /// The epoch of the last required change of the serving certificate.
    pub certificate_epoch: u64,
    /// The active CA, which signs the serving certificates before phase `Switched`. `None` after the record was lost.
    /// The bundle then has unknown certificates, which remain trusted until the phase `Contracted`.
    pub active: Option<Ca>,
    /// The next CA. `None` only in phase `Stable`.
    pub next: Option<Ca>,
    /// Why the current or last rotation began.
    pub trigger: Option<Trigger>,
}

impl Record {
    /// Whether the next CA signs serving certificates.
    #[must_use]
    pub(crate) fn has_switched(&self) -> bool {
        self.phase >= Phase::Switched
    }

    /// Returns the CA that signs now. `None` if the active CA is lost and the next one does not sign yet.
    #[must_use]
    pub fn signer(&self) -> Option<Ca> {
        if self.has_switched() { self.next } else { self.active }
    }

    /// Returns the CAs that the bundle must have.
    pub fn trusted(&self) -> impl Iterator<Item = Generation> {
        let active = self.active.filter(|_| self.phase != Phase::Contracted);
        let next = self.next.filter(|_| self.phase >= Phase::Expanded);
        active.into_iter().chain(next).map(|ca| ca.generation)
    }

    /// Whether unknown certificates are kept in the bundle: the record of their CA is lost, and replicas may still
    /// serve certificates of that CA.
    #[must_use]
    pub(crate) fn keeps_unknown(&self) -> bool {
        self.active.is_none() && self.phase != Phase::Contracted
    }
}

/// The inputs of a decision.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The leader's clock.
    pub now: Timestamp,
    /// Whether the leader's clock agrees with the API server's. If not, no certificate is created, and no step that
    /// depends on an age is taken.
    pub clock_agrees: bool,
    /// The record.
    pub record: Stored<Record>,
    /// The Secret with the serving certificate.
    pub serving: Stored<Serving>,
    /// The webhook configurations.
    pub configuration: Configuration,
    /// Results of the last probes of the endpoints.
    pub endpoints: ProbeSummary,
    /// Which API servers are known to have the bundle.
    pub propagation: Propagation,
    /// The trigger of a rotation that an administrator requested, if it has not started yet.
    pub requested: Option<Trigger>,
    /// The highest CA number in any certificate of this release. A new CA gets a higher number.
    pub highest: Option<Generation>,
}

/// The state of a stored object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stored<T> {
    /// The object does not exist.
    Missing,
    /// The object exists but is unreadable.
    Corrupt,
    /// The contents of the object.
    Is(T),
}

impl<T> Stored<T> {
    /// Returns the contents, if the object exists and is readable.
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
    /// The certificate; `None` if no replica would serve it: for example, it is damaged, has expired, or lacks its key.
    pub certificate: Option<ServingCertificate>,
    /// The epoch of the record for which the Secret was written.
    pub epoch: u64,
}

/// A certificate that can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServingCertificate {
    /// The CA that signed the certificate; `None` if unknown.
    pub signer: Option<Generation>,
    /// When to renew the certificate. This is long before its end, and differs between the releases of a cluster.
    pub renew_at: Timestamp,
}

/// The state of the webhook configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Configuration {
    /// No configuration exists, and one is required.
    Absent,
    /// The configuration exists without entries, so the API server calls no webhook.
    Empty {
        /// The epoch of the record for which the configuration was written.
        epoch: u64,
    },
    /// An administrator disabled the webhooks, so the controller removes the configurations.
    WebhooksDisabled,
    /// The configuration exists, with this bundle.
    Present(Bundle),
}

/// The bundles of the webhook configurations, with the CAs that API servers trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// The CAs of the record that every entry trusts.
    pub cas: BTreeSet<Generation>,
    /// Whether all entries have the same `caBundle`, with nothing but certificates.
    pub uniform: bool,
    /// Whether some entry has an unknown certificate.
    pub unknown: bool,
    /// The epoch of the record for which the configurations were written.
    pub epoch: u64,
    /// When this leader first saw the bundle in this state. Other leaders' clocks are not used.
    pub written: Timestamp,
}

/// Results of probing every endpoint over a separate TLS connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeSummary {
    /// Number of endpoints that responded with a certificate that the bundle trusts or, while there is no bundle, that
    /// a CA of the record signed.
    pub answering: usize,
    /// Consecutive rounds in which every endpoint served a certificate of the *newest* CA.
    pub rounds: u32,
    /// Whether a client that trusts only the newest CA would have rejected an endpoint in the last round. In the phases
    /// `Staged` and `Expanded`, it would reject every endpoint.
    pub is_other_ca_served: bool,
    /// Whether the last round found an endpoint whose certificate is from no CA of the record.
    pub untrusted: bool,
    /// Number of endpoints that could not be probed in the last round. [`plan`] does not use it.
    pub unreachable: usize,
}

/// Whether the API servers are known to have the current bundle. The trust probe makes each API server call an endpoint
/// that serves a certificate of the newest CA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Propagation {
    /// Number of API servers whose call succeeded.
    pub proven: usize,
    /// Number of API servers that did not trust the certificate.
    pub behind: usize,
    /// Number of API servers without a result.
    pub silent: usize,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Create the first or the next CA, and write the record that [`Record::with`] builds.
    NewCa {
        /// The number of the new CA.
        generation: Generation,
        /// Why the CA is created; `None` for the first one.
        trigger: Option<Trigger>,
    },
    /// Write this record.
    Advance(Record),
    /// Write the configuration without entries, for this epoch, and create it if it is missing. From then on, a leader
    /// with an earlier epoch gets a conflict when it adds entries.
    Claim {
        /// The epoch of the record.
        epoch: u64,
    },
    /// Issue a serving certificate of this CA, and write it for this epoch.
    WriteServingCertificate {
        /// The CA that signs.
        signer: Generation,
        /// The epoch of the record.
        epoch: u64,
    },
    /// Write the bundle of every entry for this epoch, and add missing entries.
    WriteBundle {
        /// The CAs of the bundle.
        cas: Vec<Generation>,
        /// Whether unknown certificates are kept in the bundle.
        keep_unknown: bool,
        /// The epoch of the record.
        epoch: u64,
        /// Why the bundle is written.
        repair: Repair,
    },
    /// Wait until the observed state changes, or until a given time.
    Wait {
        /// The reason.
        blocked: Blocked,
        /// When the wait ends at the latest; `None` to wait until the observed state changes.
        until: Option<Timestamp>,
    },
}

/// Why the bundle is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repair {
    /// There are no entries yet.
    Create,
    /// The rotation changes the bundle.
    Rotation,
    /// A required CA was removed, or the bundles are not uniform ([`Bundle::uniform`]).
    Damaged,
    /// The bundle has an unknown certificate.
    Foreign,
}

pillion_api::labelled! {
    /// Why a rotation waits.
    #[derive(Hash)]
    pub enum Blocked {
        /// There is nothing to do.
        Idle => "idle",
        /// The local clock and the API server's differ, or the difference is unknown.
        Clock => "clock",
        /// No endpoint serves a trusted certificate, or a client that trusts only the newest CA would reject some
        /// endpoint. If the webhook configuration had entries, API servers could reject pods.
        NoEndpoint => "no_endpoint",
        /// The connectivity check is running. Until it ends, a failed webhook call rejects no pod.
        ConnectivityCheck => "connectivity_check",
        /// An administrator disabled the webhooks.
        WebhooksDisabled => "disabled",
        /// Not every API server is known to have the bundle.
        Propagation => "propagation",
        /// Not every endpoint is known to serve a certificate of the newest CA.
        Endpoints => "endpoints",
        /// The old CA remains trusted for some time.
        Soaking => "soaking",
        /// The webhook configuration is damaged, and the task that corrects drift must correct it first.
        Repair => "repair",
        /// The newest CA cannot sign, and its certificates may already be served. An administrator must delete the
        /// record.
        Unable => "unable",
    }
}
