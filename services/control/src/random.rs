//! Random tokens that cannot be guessed, and random pauses that keep processes from acting at the same moment.

use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Returns 128 random bits as 32 hexadecimal digits: unguessable and unique.
pub(crate) fn token() -> String {
    let mut bytes = [0_u8; 16];
    if rustls::crypto::aws_lc_rs::default_provider().secure_random.fill(&mut bytes).is_err() {
        // If the operating system has no random bytes, use the standard library's 64-bit keys, which are always
        // available.
        let (first, second) = (RandomState::new().hash_one(0_u8), RandomState::new().hash_one(1_u8));
        bytes = ((u128::from(first) << 64) | u128::from(second)).to_ne_bytes();
    }
    bytes.iter().fold(String::with_capacity(32), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns a random duration that is shorter than the limit. Returns zero if the limit is zero.
pub(crate) fn up_to(limit: Duration) -> Duration {
    let nanoseconds = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).max(1);
    Duration::from_nanos(RandomState::new().hash_one(0_u8) % nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_unique() {
        let mut tokens: Vec<_> = (0..100).map(|_| token()).collect();
        tokens.sort();
        tokens.dedup();
        assert_eq!(tokens.len(), 100);
        assert!(tokens.iter().all(|token| token.len() == 32 && pillion_api::names::is_dns_label(token)));
    }

    #[test]
    fn jitter_is_spread_below_limit() {
        let limit = Duration::from_secs(2);
        let all: Vec<_> = (0..200).map(|_| up_to(limit)).collect();
        assert!(all.iter().all(|each| *each < limit));
        assert!(all.iter().any(|each| *each < limit / 4) && all.iter().any(|each| *each > limit * 3 / 4));
        assert_eq!(up_to(Duration::ZERO), Duration::ZERO);
    }
}
