//! Durations and sizes as Kubernetes writes them: `1m30s`, `64Mi`.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The expected format of a duration, for error messages.
const A_DURATION: &str = "a duration such as 5s, 300ms or 1m30s";
/// The expected format of a size, for error messages.
const A_SIZE: &str = "a size in bytes such as 65536, 512Ki or 64Mi";

/// Units of a duration, in nanoseconds. A unit comes before any prefix of it.
const TIME_UNITS: [(&str, u64); 7] = [
    ("h", 3_600_000_000_000),
    ("ms", 1_000_000),
    ("m", 60_000_000_000),
    ("us", 1_000),
    ("µs", 1_000),
    ("ns", 1),
    ("s", 1_000_000_000),
];

/// Suffixes of a size. Powers of 1024 are written, the others only parsed.
const SIZE_UNITS: [(&str, u64); 8] = [
    ("Ti", 1 << 40),
    ("Gi", 1 << 30),
    ("Mi", 1 << 20),
    ("Ki", 1 << 10),
    ("T", 1_000_000_000_000),
    ("G", 1_000_000_000),
    ("M", 1_000_000),
    ("k", 1_000),
];

/// A duration, written as `1m30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time(pub(crate) Duration);

/// A number of bytes, written as `64Mi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) usize);

impl Time {
    /// Parses the format of Go's `time.ParseDuration`, without a sign. Every number except 0 needs a unit.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text == "0" {
            return Some(Self(Duration::ZERO));
        }
        let mut rest = text;
        let mut nanoseconds = 0_u64;
        while !rest.is_empty() {
            let number = rest.find(|character: char| !character.is_ascii_digit() && character != '.')?;
            let (digits, behind) = rest.split_at(number);
            let (unit, worth) = TIME_UNITS.into_iter().find(|(unit, _)| behind.starts_with(unit))?;
            rest = behind.strip_prefix(unit)?;
            let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
            let whole = if whole.is_empty() && !fraction.is_empty() { 0 } else { whole.parse::<u64>().ok()? };
            nanoseconds = nanoseconds.checked_add(whole.checked_mul(worth)?)?;
            let mut place = worth;
            for digit in fraction.chars() {
                place /= 10;
                nanoseconds = nanoseconds.checked_add(place * u64::from(digit.to_digit(10)?))?;
            }
        }
        (!text.is_empty()).then_some(Self(Duration::from_nanos(nanoseconds)))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX);
        if left == 0 {
            return formatter.write_str("0s");
        }
        for (unit, worth) in
            [("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)]
        {
            let count = left / worth;
            left %= worth;
            if count > 0 {
                write!(formatter, "{count}{unit}")?;
            }
        }
        if left > 0 { write!(formatter, "{left}ns") } else { Ok(()) }
    }
}

impl Size {
    /// Parses a quantity of whole bytes that is not negative.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let suffix = SIZE_UNITS.into_iter().find_map(|(unit, worth)| Some((text.strip_suffix(unit)?, worth)));
        let (digits, worth) = suffix.unwrap_or((text, 1));
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let bytes = digits.parse::<u64>().ok()?.checked_mul(worth)?;
        usize::try_from(bytes).ok().map(Self)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units =
            SIZE_UNITS.into_iter().take(4).filter_map(|(unit, worth)| Some((unit, usize::try_from(worth).ok()?)));
        for (unit, worth) in units {
            if self.0 > 0 && self.0.is_multiple_of(worth) {
                return write!(formatter, "{}{unit}", self.0 / worth);
            }
        }
        write!(formatter, "{}", self.0)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TimeVisitor)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct TimeVisitor;

impl Visitor<'_> for TimeVisitor {
    type Value = Time;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(A_DURATION)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Time, E> {
        Time::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Time, E> {
        match number {
            0 => Ok(Time(Duration::ZERO)),
            _ => Err(E::invalid_type(de::Unexpected::Unsigned(number), &self)),
        }
    }
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(A_SIZE)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
        Size::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Size, E> {
        usize::try_from(number).map(Size).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_read_as_go_reads_it_and_written_so() {
        for (text, milliseconds, written) in [
            ("5s", 5_000, "5s"),
            ("300ms", 300, "300ms"),
            ("1m30s", 90_000, "1m30s"),
            ("90s", 90_000, "1m30s"),
            ("1.5h", 5_400_000, "1h30m"),
            (".5s", 500, "500ms"),
            ("2m", 120_000, "2m"),
            ("1h0m0.25s", 3_600_250, "1h250ms"),
            ("0", 0, "0s"),
            ("0s", 0, "0s"),
        ] {
            let time = Time::parse(text).unwrap();
            assert_eq!(time.0, Duration::from_millis(milliseconds), "{text}");
            assert_eq!(time.to_string(), written, "{text}");
            assert_eq!(Time::parse(written), Some(time), "{written}");
        }
        for wrong in ["", "5", "s", "-5s", "5 s", "5d", "five", "1m30", ".s", "9999999999999h", "1.2.3s"] {
            assert_eq!(Time::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_size_is_read_as_a_quantity_and_written_so() {
        for (text, bytes, written) in [
            ("64Mi", 64 << 20, "64Mi"),
            ("7340032", 7 << 20, "7Mi"),
            ("1500", 1500, "1500"),
            ("2k", 2000, "2000"),
            ("1Gi", 1 << 30, "1Gi"),
            ("0", 0, "0"),
        ] {
            let size = Size::parse(text).unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, written), "{text}");
            assert_eq!(Size::parse(written), Some(size), "{written}");
        }
        for wrong in ["", "Mi", "-1", "1.5Gi", "1 Mi", "64MB", "64mi", "99999999999999999Ti"] {
            assert_eq!(Size::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn what_is_none_says_what_was_expected() {
        let time = serde_json::from_str::<Time>("5").unwrap_err().to_string();
        assert!(time.contains("integer `5`, expected a duration such as 5s"), "{time}");
        let size = serde_json::from_str::<Size>("\"64MB\"").unwrap_err().to_string();
        assert!(size.contains("string \"64MB\", expected a size in bytes such as"), "{size}");
        assert_eq!(serde_json::from_str::<Size>("4096").unwrap(), Size(4096));
        assert_eq!(serde_json::from_str::<Time>("0").unwrap(), Time(Duration::ZERO));
    }
}
