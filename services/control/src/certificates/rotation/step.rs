//! The possible steps: one write to one object, or nothing, with the reason.

use jiff::Timestamp;

use super::record::{Generation, Record, Trigger};

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Create a first or next CA, and write the record that [`Record::with`] builds.
    NewAuthority {
        /// Its number.
        generation: Generation,
        /// Why.
        trigger: Option<Trigger>,
    },
    /// Write this record.
    Advance(Record),
    /// Write the configuration without entries, for this epoch; create it if it is missing. From then on, a leader with
    /// an earlier epoch gets a conflict when it fills the configuration.
    Claim {
        /// The epoch of the record.
        epoch: u64,
    },
    /// Issue a serving certificate of this CA and write it, for this epoch.
    WriteLeaf {
        /// The CA that signs.
        signer: Generation,
        /// The epoch of the record.
        epoch: u64,
    },
    /// Write the bundle of every entry, for this epoch; add missing entries.
    WriteBundle {
        /// The CAs.
        authorities: Vec<Generation>,
        /// Whether unknown certificates stay in the bundle.
        keep_unknown: bool,
        /// The epoch of the record.
        epoch: u64,
        /// Why the bundle is written.
        repair: Repair,
    },
    /// Wait until the observed state changes or this time has come.
    Wait {
        /// The reason.
        blocked: Blocked,
        /// The time, if it alone ends the wait.
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
    /// A required CA was removed, or an entry differs from the others.
    Damaged,
    /// It has an unknown certificate.
    Foreign,
}

/// Why a rotation waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blocked {
    /// There is nothing to do.
    Idle,
    /// The local clock and the API server's differ.
    Clock,
    /// No endpoint serves a trusted certificate: a webhook configuration would reject pods now.
    NoEndpoint,
    /// No API server is known to reach the replicas yet; until then, a failed call rejects no pod.
    Rehearsal,
    /// An operator disabled the webhooks.
    Disarmed,
    /// Not every API server is known to have the bundle.
    Propagation,
    /// Not every endpoint is known to serve the newest certificate.
    Endpoints,
    /// The old CA stays trusted for some time.
    Soaking,
    /// The webhook configuration is damaged, and its task must correct it first.
    Repair,
    /// The newest CA cannot sign, and its certificates are already served: an operator must delete the record.
    Unable,
}

impl Blocked {
    /// All reasons.
    pub const ALL: [Self; 10] = [
        Self::Idle,
        Self::Clock,
        Self::NoEndpoint,
        Self::Rehearsal,
        Self::Disarmed,
        Self::Propagation,
        Self::Endpoints,
        Self::Soaking,
        Self::Repair,
        Self::Unable,
    ];

    /// The reason in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Clock => "clock",
            Self::NoEndpoint => "no_endpoint",
            Self::Rehearsal => "rehearsal",
            Self::Disarmed => "disarmed",
            Self::Propagation => "propagation",
            Self::Endpoints => "endpoints",
            Self::Soaking => "soaking",
            Self::Repair => "repair",
            Self::Unable => "unable",
        }
    }
}
