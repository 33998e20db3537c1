//! Summarises verdicts for the rotation: the consecutive rounds that found all endpoints with the newest certificate.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::{Endpoint, Expected, Probed, Unfit, Verdict};
use crate::certificates::rotation::{Endpoints, Generation};

/// Rounds count together only if this stays the same, as well as the set of endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    leaf_epoch: u64,
    newest: Option<Generation>,
}

/// The number of consecutive passed rounds.
#[derive(Debug, Default)]
pub struct Rounds {
    of: Option<(Key, BTreeSet<Endpoint>)>,
    passed: u32,
    /// Start of the last counted round.
    last: Option<Instant>,
}

/// Without results, nothing is proven.
pub(crate) const UNKNOWN: Endpoints =
    Endpoints { answering: 0, rounds: 0, older: false, stranger: false, unreachable: 0 };

impl From<&Expected> for Key {
    fn from(expected: &Expected) -> Self {
        Self { leaf_epoch: expected.leaf_epoch, newest: expected.newest }
    }
}

impl Rounds {
    /// Adds a round over all endpoints, which began at `began`.
    ///
    /// A round is passed if there are endpoints and each serves the newest certificate. It counts if it began at least
    /// `gap` after the last counted one. The count starts again after a failed round, or when the certificate, the CA
    /// or the set of endpoints changes.
    pub fn add(&mut self, key: Key, probed: &[Probed], began: Instant, gap: Duration) -> Endpoints {
        let endpoints: BTreeSet<_> = probed.iter().map(|each| each.endpoint.clone()).collect();
        let is_passed = !probed.is_empty() && probed.iter().all(|each| each.verdict == Verdict::Newest);
        let goes_on = self.of.as_ref().is_some_and(|(of, all)| (of, all) == (&key, &endpoints));
        if !goes_on || !is_passed {
            *self = Self { of: Some((key, endpoints)), ..Self::default() };
        }
        if is_passed && self.last.is_none_or(|last| began.saturating_duration_since(last) >= gap) {
            self.passed = self.passed.saturating_add(1);
            self.last = Some(began);
        }
        Endpoints {
            answering: probed.iter().filter(|each| each.trusted).count(),
            rounds: self.passed,
            older: probed.iter().any(|each| is_another(each.verdict)),
            stranger: probed.iter().any(|each| matches!(each.verdict, Verdict::Trusted | Verdict::Stranger)),
            unreachable: probed.iter().filter(|each| matches!(each.verdict, Verdict::Unreachable(_))).count(),
        }
    }
}

/// Whether a client that trusts only the newest CA would reject the endpoint now.
const fn is_another(verdict: Verdict) -> bool {
    match verdict {
        Verdict::Newest | Verdict::Unfit(Unfit::Expiring) | Verdict::Unreachable(_) => false,
        Verdict::Older(_) | Verdict::Trusted | Verdict::Stranger | Verdict::Unfit(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::super::dial::Unreachable;
    use super::*;

    const GAP: Duration = Duration::from_secs(10);
    const OLD: Verdict = Verdict::Older(Generation(1));

    fn probed(verdicts: &[(&str, Verdict)]) -> Vec<Probed> {
        let one = |(address, verdict): &(&str, Verdict)| Probed {
            endpoint: Endpoint { address: (*address).to_owned(), port: Some(8443) },
            verdict: *verdict,
            trusted: matches!(verdict, Verdict::Newest | Verdict::Older(_)),
            not_after: None,
        };
        verdicts.iter().map(one).collect()
    }

    const fn key(leaf_epoch: u64, newest: u32) -> Key {
        Key { leaf_epoch, newest: Some(Generation(newest)) }
    }

    /// The verdicts of a round, by address.
    type Verdicts<'v> = &'v [(&'v str, Verdict)];

    /// The count after each of these rounds, which begin `seconds` after the first.
    fn after(rounds: &[(u64, Key, Verdicts<'_>)]) -> Vec<u32> {
        let zero = Instant::now();
        let mut count = Rounds::default();
        let mut passed = Vec::new();
        for (seconds, key, verdicts) in rounds {
            let began = zero + Duration::from_secs(*seconds);
            passed.push(count.add(*key, &probed(verdicts), began, GAP).rounds);
        }
        passed
    }

    #[test]
    fn rounds_count_when_everybody_serves_the_newest_and_time_passed_between_them() {
        let all: &[_] = &[("a", Verdict::Newest), ("b", Verdict::Newest)];
        let k = key(5, 2);
        assert_eq!(after(&[(0, k, all), (10, k, all), (20, k, all)]), [1, 2, 3]);
        assert_eq!(after(&[(0, k, all), (9, k, all), (10, k, all), (19, k, all), (20, k, all)]), [1, 1, 2, 2, 3]);
    }

    #[test]
    fn whatever_else_is_found_makes_the_count_begin_anew() {
        let all: &[_] = &[("a", Verdict::Newest), ("b", Verdict::Newest)];
        let k = key(5, 2);
        let spoilt = [
            OLD,
            Verdict::Stranger,
            Verdict::Trusted,
            Verdict::Unfit(Unfit::Expiring),
            Verdict::Unfit(Unfit::WrongName),
            Verdict::Unreachable(Unreachable::Timeout),
        ];
        for verdict in spoilt {
            let spoilt: &[_] = &[("a", Verdict::Newest), ("b", verdict)];
            let passed = after(&[(0, k, all), (10, k, all), (20, k, spoilt), (30, k, all), (40, k, all)]);
            assert_eq!(passed, [1, 2, 0, 1, 2], "{verdict:?}");
        }
    }

    #[test]
    fn another_leaf_another_authority_and_another_set_of_endpoints_make_it_begin_anew() {
        let all: &[_] = &[("a", Verdict::Newest), ("b", Verdict::Newest)];
        let more: &[_] = &[("a", Verdict::Newest), ("b", Verdict::Newest), ("c", Verdict::Newest)];
        let k = key(5, 2);
        assert_eq!(after(&[(0, k, all), (10, k, all), (20, key(6, 2), all)]), [1, 2, 1]);
        assert_eq!(after(&[(0, k, all), (10, k, all), (20, key(5, 3), all)]), [1, 2, 1]);
        assert_eq!(after(&[(0, k, all), (10, k, more), (20, k, more), (30, k, all)]), [1, 1, 2, 1]);
        let replaced: &[_] = &[("a", Verdict::Newest), ("c", Verdict::Newest)];
        assert_eq!(after(&[(0, k, all), (10, k, replaced)]), [1, 1]);
    }

    #[test]
    fn nobody_is_never_everybody() {
        let k = key(5, 2);
        assert_eq!(after(&[(0, k, &[]), (10, k, &[]), (20, k, &[("a", Verdict::Newest)])]), [0, 0, 1]);
    }

    #[test]
    fn what_was_found_is_told_by_kind() {
        let add =
            |verdicts: &[(&str, Verdict)]| Rounds::default().add(key(5, 2), &probed(verdicts), Instant::now(), GAP);
        let all = add(&[("a", Verdict::Newest), ("b", OLD), ("c", Verdict::Unreachable(Unreachable::Handshake))]);
        let expected = Endpoints { answering: 2, rounds: 0, older: true, stranger: false, unreachable: 1 };
        assert_eq!(all, expected);
        // An untrusted certificate also counts as one of another CA.
        let stranger = add(&[("a", Verdict::Stranger)]);
        assert_eq!(stranger, Endpoints { older: true, stranger: true, ..UNKNOWN });
        // An expired certificate counts as another CA's; an expiring one does not.
        assert!(add(&[("a", Verdict::Unfit(Unfit::Expired))]).older);
        assert!(!add(&[("a", Verdict::Unfit(Unfit::Expiring))]).older);
        assert_eq!(add(&[("a", Verdict::Unreachable(Unreachable::Timeout))]), Endpoints { unreachable: 1, ..UNKNOWN });
    }
}
