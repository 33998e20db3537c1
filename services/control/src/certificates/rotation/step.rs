//! The possible steps: one write to one object, or nothing, with the reason.

use jiff::Timestamp;

use super::record::{Generation, Record, Trigger};

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make a first or a next authority, and write the record that [`Record::with`] makes of it.
    NewAuthority {
        /// Its number.
        generation: Generation,
        /// Why.
        trigger: Option<Trigger>,
    },
    /// Write this record.
    Advance(Record),
    /// Write the configuration without an entry, for this epoch; create it if there is none. Whoever meant to fill it for an
    /// earlier epoch meets a conflict from then on.
    Claim {
        /// For which epoch of the record.
        epoch: u64,
    },
    /// Issue a leaf of this authority and write it, for this epoch.
    WriteLeaf {
        /// Who signs.
        signer: Generation,
        /// For which epoch of the record.
        epoch: u64,
    },
    /// Write the bundle of every entry, for this epoch; the entries themselves too, if some are missing.
    WriteBundle {
        /// Which authorities.
        authorities: Vec<Generation>,
        /// Whether the certificates in it that nobody knows stay in it.
        keep_unknown: bool,
        /// For which epoch of the record.
        epoch: u64,
        /// What was wrong with the one that is there.
        repair: Repair,
    },
    /// Nothing, until something else is observed or this time has come.
    Wait {
        /// Why.
        blocked: Blocked,
        /// When time alone changes it.
        until: Option<Timestamp>,
    },
}

/// Why the bundle is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repair {
    /// There is no entry yet.
    Create,
    /// The rotation wants another one.
    Rotation,
    /// An authority was taken away that is needed, or an entry differs from the others.
    Damaged,
    /// There is a certificate of somebody who is not known.
    Foreign,
}

/// What a rotation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blocked {
    /// For nothing: there is nothing to do.
    Idle,
    /// The clock and the API server's differ.
    Clock,
    /// No endpoint answers with a leaf that would be trusted: a configuration now would refuse pods.
    NoEndpoint,
    /// The API servers are not known to reach the replicas: a failed call refuses nobody yet.
    Rehearsal,
    /// Somebody took the configuration away on purpose.
    Disarmed,
    /// The API servers are not known to have the bundle.
    Propagation,
    /// Some endpoint is not known to serve the newest leaf.
    Endpoints,
    /// The old authority is kept for some time more.
    Soaking,
    /// The webhook configuration is damaged, and is put right by who repairs it.
    Repair,
    /// The newest authority cannot sign, and its leaves are served already: a person has to take the record away.
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

    /// The reason as it stands in metrics and logs.
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
