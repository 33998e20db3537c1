//! The reasons for which a valid request is rejected.

use std::fmt;

/// Why a request was turned away although nothing is wrong with it. Each is answered with 503.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shed {
    /// As many requests are being answered as may be.
    InFlight,
    /// Its body had been arriving for longer than any other, and there were too many that had not arrived.
    Unfinished,
    /// The queue for permits is full.
    QueueFull,
    /// The queue of its namespace is full.
    TenantQueueFull,
    /// Its deadline passed before it got a permit.
    Deadline,
    /// The bodies of all requests take as much memory as they may.
    NoMemory,
    /// The process does not know the cluster yet.
    NotReady,
    /// Its namespace is not known yet, and could not be looked up.
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

    /// The reason as it stands in metrics, logs and traces.
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

    /// Whether it may be answered if it comes again in a second. Not when its caller will have given up by then: of two
    /// answers the one that says why is worth more than silence.
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
