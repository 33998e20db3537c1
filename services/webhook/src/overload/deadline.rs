//! The deadline of a request: the API server sends its own timeout as `?timeout=`.
//!
//! The value has Go's duration format. An invalid or empty value means the default; a value longer than any API
//! server's timeout is reduced to that.

use std::time::Duration;

use tokio::time::Instant;

use super::OverloadSettings;

/// An upper bound on any timeout, so that the clock's arithmetic cannot overflow.
const LONGEST: Duration = Duration::from_hours(24);

/// A deadline that is at most the longest timeout away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline(pub(crate) Instant);

impl Deadline {
    /// Returns the deadline of a request with this query whose head has just arrived.
    pub(crate) fn of(query: Option<&str>, settings: &OverloadSettings) -> Self {
        let timeout = timeout(query, settings).min(LONGEST);
        Self(Instant::now() + timeout.saturating_sub(settings.margin.min(timeout / 5)))
    }

    pub(crate) fn has_passed(self) -> bool {
        self.left().is_zero()
    }

    /// Returns the remaining time.
    pub(crate) fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// Returns how long the caller waits.
fn timeout(query: Option<&str>, settings: &OverloadSettings) -> Duration {
    let text = query.and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("timeout=")));
    let said = text.and_then(go_duration).filter(|said| !said.is_zero());
    said.unwrap_or(settings.default_timeout).min(settings.longest_timeout)
}

/// Parses a duration in Go's format: `10s`, `1m30s`, `1.5h`. `None` if it is invalid or negative. A duration that is
/// too long saturates.
fn go_duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut nanoseconds = 0_u128;
    // Each iteration consumes at least one character.
    loop {
        let (whole, after) = digits(rest);
        let (fraction, after) = after.strip_prefix('.').map_or(("", after), digits);
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let (unit, after) = unit(after)?;
        let whole = whole.parse::<u64>().map_or_else(|_| saturated(whole), u128::from);
        nanoseconds = nanoseconds.saturating_add(whole.saturating_mul(unit));
        let mut place = unit;
        for digit in fraction.bytes() {
            place /= 10;
            nanoseconds = nanoseconds.saturating_add(u128::from(digit - b'0') * place);
        }
        rest = after;
        if rest.is_empty() {
            return Some(Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)));
        }
    }
}

/// Returns the value for digits that do not parse: zero if there are none, else the maximum.
const fn saturated(digits: &str) -> u128 {
    if digits.is_empty() { 0 } else { u64::MAX as u128 }
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

/// Splits off a leading unit: returns its nanoseconds and the rest.
fn unit(text: &str) -> Option<(u128, &str)> {
    const UNITS: [(&str, u128); 7] = [
        ("ns", 1),
        ("us", 1_000),
        ("\u{b5}s", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", 3_600_000_000_000),
    ];
    // `ms` comes before `m`, or its prefix would match.
    UNITS.iter().find_map(|(name, nanoseconds)| Some((*nanoseconds, text.strip_prefix(name)?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_go_writes_is_read() {
        for (text, milliseconds) in [
            ("10s", 10_000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("1.5s", 1_500),
            (".5s", 500),
            ("1.s", 1_000),
            ("1h0m0s", 3_600_000),
            ("+3s", 3_000),
            ("0", 0),
            ("0s", 0),
            ("1000us", 1),
            ("2000000ns", 2),
        ] {
            assert_eq!(go_duration(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
        for bad in ["", "abc", "-1s", "10", "s", ".s", "1.2.3s", "1s ", " 1s", "1sm", "1s1", "1x", "--1s", "\u{661}s"] {
            assert_eq!(go_duration(bad), None, "{bad:?}");
        }
        let endless = format!("{}h", "9".repeat(400));
        assert_eq!(go_duration(&endless), Some(Duration::from_nanos(u64::MAX)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_time_is_the_default_and_what_is_too_long_is_30_s() {
        for (query, milliseconds) in [
            (None, 9_800),
            (Some(""), 9_800),
            (Some("timeout="), 9_800),
            (Some("timeout=0s"), 9_800),
            (Some("timeout=-1s"), 9_800),
            (Some("timeout=abc"), 9_800),
            (Some("timeout=1h"), 29_800),
            (Some("timeout=99999999999999999999h"), 29_800),
            (Some("timeout=3s"), 2_800),
            (Some("timeout=1s"), 800),
            // A fifth of the timeout, if that is less.
            (Some("timeout=500ms"), 400),
            (Some("timeout=5ms"), 4),
            (Some("a=b&timeout=2s"), 1_800),
            (Some("timeouts=2s&xtimeout=2s"), 9_800),
        ] {
            let deadline = Deadline::of(query, &OverloadSettings::default());
            assert_eq!(deadline.left(), Duration::from_millis(milliseconds), "{query:?}");
        }
        let deadline = Deadline::of(Some("timeout=1s"), &OverloadSettings::default());
        tokio::time::advance(Duration::from_millis(799)).await;
        assert!(!deadline.has_passed());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(deadline.has_passed());
    }

    proptest! {
        #[test]
        fn no_text_is_too_much(text in "[-+0-9.hmsnu\u{b5}a]{0,40}") {
            let _ = go_duration(&text);
        }

        #[test]
        fn parts_add_up(hours in 0_u64..50, minutes in 0_u64..60, seconds in 0_u64..60, millis in 0_u64..1000) {
            let text = format!("{hours}h{minutes}m{seconds}.{millis:03}s");
            let expected = Duration::from_millis(((hours * 60 + minutes) * 60 + seconds) * 1000 + millis);
            prop_assert_eq!(go_duration(&text), Some(expected));
        }
    }
}
