//! The reasons for which a valid request is rejected.

use std::fmt;

/// Why a valid request was rejected with 503.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shed {
    /// The limit of concurrent requests is reached.
    InFlight,
    /// Too many bodies were incomplete, and this one was the oldest.
    Unfinished,
    /// The queue for permits is full.
    QueueFull,
    /// The queue of its namespace is full.
    TenantQueueFull,
    /// Its deadline passed before it got a permit.
    Deadline,
    /// The memory budget for bodies is exhausted.
    NoMemory,
    /// The first lists of the cluster are not complete yet.
    NotReady,
    /// The namespace is missing from the snapshot, and its lookup failed.
    Namespace,
}

impl Shed {
    /// All reasons.
    pub const ALL: [Self; 8] = [
        Self::InFlight,
        Self::Unfinished,
        Self::QueueFull,
        Self::TenantQueueFull,
        Self::Deadline,
        Self::NoMemory,
        Self::NotReady,
        Self::Namespace,
    ];

    /// Returns the reason as shown in metrics, logs and traces.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InFlight => "in_flight",
            Self::Unfinished => "unfinished",
            Self::QueueFull => "queue_full",
            Self::TenantQueueFull => "tenant_queue_full",
            Self::Deadline => "deadline",
            Self::NoMemory => "no_memory",
            Self::NotReady => "not_ready",
            Self::Namespace => "namespace",
        }
    }

    /// Whether to send `Retry-After`. After the deadline it is useless, since the caller has given up.
    pub(crate) const fn is_worth_a_retry(self) -> bool {
        !matches!(self, Self::Deadline)
    }
}

impl fmt::Display for Shed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::InFlight => "as many requests are being answered as may be at one time: try again",
            Self::Unfinished => {
                "too many requests are still sending their bodies, and this one had been for the longest: send the body \
                 at once, and try again"
            }
            Self::QueueFull => "as many requests wait to be decided as may at one time: try again",
            Self::TenantQueueFull => {
                "as many requests of this namespace wait to be decided as may at one time: try again"
            }
            Self::Deadline => "the caller's deadline had come before the request could be decided",
            Self::NoMemory => {
                "the bodies of the requests that are being read take as much memory as they may: try again"
            }
            Self::Namespace => "the namespace is not known yet and could not be looked up: try again",
            Self::NotReady => "profiles and namespaces are not known yet: try again",
        })
    }
}
