//! Constraints between keys of the policy file.

use std::fmt::Display;

use pillion_api::names::INJECTION_LABEL;
use pillion_api::opt_in::{OptIn, OptInError};

use super::policy::WebhookPolicy;
use super::units::Size;

/// A violated constraint between two keys.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Contradiction {
    /// The key at which the problem is reported.
    pub(crate) path: &'static str,
    /// The other key.
    pub(crate) other: &'static str,
    /// The problem.
    pub(crate) message: String,
    /// The remedy.
    pub(crate) help: &'static str,
}

/// Returns all violated constraints.
pub(crate) fn contradictions(policy: &WebhookPolicy) -> Vec<Contradiction> {
    let WebhookPolicy { requests, overload, connections, look_ups, .. } = policy;
    // A single body may use three quarters of the whole memory.
    let large = Size(requests.max_body_memory.0 / 4 * 3);
    [
        at_most(
            ("connections.drainMinimum", connections.drain_minimum),
            ("connections.drainDeadline", connections.drain_deadline),
            "make the minimum shorter or the deadline longer",
        ),
        at_most(
            ("connections.handshakeTimeout", connections.handshake_timeout),
            ("connections.idleTimeout", connections.idle_timeout),
            "make the handshake's time shorter",
        ),
        at_most(
            ("connections.maxHandshakes", connections.max_handshakes),
            ("connections.max", connections.max),
            "each handshake is a connection: allow more connections or fewer handshakes",
        ),
        at_most(
            ("requests.bodyTimeout", requests.body_timeout),
            ("requests.timeout", requests.timeout),
            "make the body's time shorter or the whole request's longer",
        ),
        at_most(
            ("requests.lookUpTimeout", requests.look_up_timeout),
            ("requests.timeout", requests.timeout),
            "make the look-up's time shorter or the whole request's longer",
        ),
        at_most(
            ("overload.maxUnfinishedPerAddress", overload.max_unfinished_per_address),
            ("overload.maxUnfinished", overload.max_unfinished),
            "an address has a part of all: allow it fewer or all more",
        ),
        at_most(
            ("overload.maxQueued", overload.max_queued),
            ("overload.maxInFlight", overload.max_in_flight),
            "who waits is in flight: allow more in flight or fewer to wait",
        ),
        at_most(
            ("overload.maxQueuedPerNamespace", overload.max_queued_per_namespace),
            ("overload.maxQueued", overload.max_queued),
            "a namespace has a part of the queue: make its part smaller or the queue longer",
        ),
        at_most(
            ("overload.maxQueuedLargePerNamespace", overload.max_queued_large_per_namespace),
            ("overload.maxQueuedLarge", overload.max_queued_large),
            "a namespace has a part of the queue: make its part smaller or the queue longer",
        ),
        at_most(
            ("overload.defaultTimeout", overload.default_timeout),
            ("overload.longestTimeout", overload.longest_timeout),
            "make the default shorter or the longest longer",
        ),
        at_most(
            ("lookUps.freshFor", look_ups.fresh_for),
            ("lookUps.staleFor", look_ups.stale_for),
            "an answer is old only when it is not fresh any more: make the second longer",
        ),
        (requests.max_body > large).then(|| Contradiction {
            path: "requests.maxBody",
            other: "requests.maxBodyMemory",
            message: format!(
                "expected at most {large}, three quarters of requests.maxBodyMemory ({}), found {}",
                requests.max_body_memory, requests.max_body
            ),
            help: "a body that is larger could never be read: allow smaller bodies or more memory",
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Requires that one value is at most another.
pub(super) fn at_most<T: PartialOrd + Display>(
    (path, value): (&'static str, T),
    (other, most): (&'static str, T),
    help: &'static str,
) -> Option<Contradiction> {
    (value > most).then(|| Contradiction {
        path,
        other,
        message: format!("expected at most {other} ({most}), found {value}"),
        help,
    })
}

/// Returns the problem with the opt-in labels, if there is one.
pub(super) fn opt_in_fault(labels: &Result<OptIn, OptInError>) -> Option<String> {
    match labels {
        Err(error) => Some(error.to_string()),
        // The admission policies that hold pods select no other label.
        Ok(labels) => labels.held_by_others().map(|(key, value)| {
            format!(
                "{key}={value} cannot be held: only {INJECTION_LABEL}=held has pods wait; expected enabled or required \
                 here, and that label on namespaces whose pods shall wait"
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::units::Time;
    use super::*;

    type Spoil = fn(&mut WebhookPolicy);

    fn seconds(count: u64) -> Time {
        Time(std::time::Duration::from_secs(count))
    }

    #[test]
    fn the_defaults_go_together_and_each_contradiction_is_found() {
        assert_eq!(contradictions(&WebhookPolicy::default()), []);
        let cases: [(Spoil, &str, &str); 7] = [
            (
                |policy| policy.connections.drain_minimum = seconds(101),
                "connections.drainMinimum",
                "drainDeadline (1m40s)",
            ),
            (
                |policy| policy.connections.handshake_timeout = seconds(121),
                "connections.handshakeTimeout",
                "idleTimeout (2m)",
            ),
            (|policy| policy.connections.max = 100, "connections.maxHandshakes", "connections.max (100), found 256"),
            (|policy| policy.requests.timeout = seconds(4), "requests.bodyTimeout", "requests.timeout (4s), found 5s"),
            (|policy| policy.requests.look_up_timeout = seconds(41), "requests.lookUpTimeout", "(40s), found 41s"),
            (
                |policy| policy.overload.max_unfinished = 100,
                "overload.maxUnfinishedPerAddress",
                "overload.maxUnfinished (100), found 256",
            ),
            (|policy| policy.requests.max_body = Size(50 << 20), "requests.maxBody", "at most 48Mi"),
        ];
        for (spoil, path, expected) in cases {
            let mut policy = WebhookPolicy::default();
            spoil(&mut policy);
            let found = contradictions(&policy);
            let [only] = found.as_slice() else { panic!("{path}: {found:?}") };
            assert_eq!(only.path, path);
            assert!(only.message.contains(expected), "{}", only.message);
        }
    }
}
