//! How long CAs and serving certificates live, and when a serving certificate is renewed.

use std::time::Duration;

use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// The lifetimes. Tests scale them down to seconds, the finest unit of certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lifetimes {
    /// Validity of a CA from its creation.
    pub authority: Duration,
    /// Validity of a serving certificate from its creation.
    pub leaf: Duration,
    /// How long before its CA a serving certificate ends at the latest.
    pub margin: Duration,
    /// Part of its life after which a serving certificate is renewed, in percent.
    pub renew_percent: u8,
    /// How much earlier it may be renewed, in percent of that time, so that not all releases renew at once.
    pub jitter_percent: u8,
    /// How long before its creation a certificate is already valid: for clocks that are behind.
    pub backdating: Duration,
}

impl Default for Lifetimes {
    /// A CA is valid for a year, a serving certificate for a week.
    fn default() -> Self {
        Self {
            authority: 365 * DAY,
            leaf: 7 * DAY,
            margin: 30 * DAY,
            renew_percent: 50,
            jitter_percent: 10,
            backdating: 2 * HOUR,
        }
    }
}

impl Lifetimes {
    /// Lifetimes with these validities; all other values keep their default proportions. A serving certificate of less
    /// than a second cannot be created.
    #[must_use]
    pub fn of(authority: Duration, leaf: Duration) -> Self {
        let default = Self::default();
        Self {
            authority,
            leaf,
            margin: authority.mul_f64(default.margin.div_duration_f64(default.authority)),
            backdating: default.backdating.min(leaf),
            ..default
        }
    }

    /// When to renew this certificate: it depends on the certificate alone, so all leaders agree.
    #[must_use]
    pub fn renew_at(&self, leaf: &CertificateDer<'_>, not_before: Timestamp, not_after: Timestamp) -> Timestamp {
        let issued = not_before.saturating_add(self.backdating).unwrap_or(not_before);
        // Another tool created it and did not backdate it.
        let issued = if issued < not_after { issued } else { not_before };
        let life = Duration::try_from(not_after.duration_since(issued)).unwrap_or_default().as_nanos();
        let share = life * u128::from(self.renew_percent.min(100)) / 100;
        let chance = Sha256::digest(leaf).iter().take(2).fold(0, |number, byte| number << 8 | u128::from(*byte));
        let jitter = share * u128::from(self.jitter_percent.min(100)) / 100 * chance / (1 << 16);
        let after = u64::try_from(share - jitter).map_or(Duration::MAX, Duration::from_nanos);
        issued.saturating_add(after).map_or(not_after, |at| at.min(not_after))
    }
}

/// Truncates to seconds, as in certificates.
pub(super) fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_leaf_is_renewed_at_half_of_its_life_or_a_tenth_of_that_sooner() {
        let lifetimes = Lifetimes::default();
        let (made, day) = (1_000_000, 86_400);
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..200_u8 {
            let leaf = CertificateDer::from(vec![number; 300]);
            let (from, until) = (at(made - 7_200), at(made + 7 * day));
            let renew = lifetimes.renew_at(&leaf, from, until);
            assert_eq!(renew, lifetimes.renew_at(&leaf, from, until), "the same for whoever leads");
            let after = renew.as_second() - made;
            assert!((day * 315 / 100..=day * 350 / 100).contains(&after), "{after}");
            seen.insert(after);
        }
        assert!(seen.len() > 190, "spread: {}", seen.len());
        assert!(seen.last().unwrap() - seen.first().unwrap() > day / 4, "over most of the time there is");
    }

    #[test]
    fn everything_scales_down_to_seconds() {
        let lifetimes = Lifetimes::of(Duration::from_mins(1), Duration::from_secs(10));
        assert_eq!(lifetimes.margin.as_secs(), 4);
        let leaf = CertificateDer::from(vec![7; 300]);
        let renew = lifetimes.renew_at(&leaf, at(100 - 10), at(110));
        let after = renew.duration_since(at(100)).as_millis();
        assert!((4_500..=5_000).contains(&after), "{after}");
    }

    #[test]
    fn a_life_that_makes_no_sense_is_renewed_at_its_end_at_the_latest() {
        let leaf = CertificateDer::from(vec![1]);
        for (from, until) in [
            (Timestamp::MIN, Timestamp::MAX),
            (Timestamp::MAX, Timestamp::MIN),
            (Timestamp::MIN, Timestamp::MIN),
            (Timestamp::MAX, Timestamp::MAX),
            (at(0), at(0)),
            (at(0), at(1)),
        ] {
            for lifetimes in [Lifetimes::default(), Lifetimes::of(Duration::ZERO, Duration::ZERO)] {
                assert!(lifetimes.renew_at(&leaf, from, until) <= until);
            }
        }
    }
}
