//! Durations and sizes as Kubernetes writes them: `1m30s`, `64Mi`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::fmt::friendly::{Spacing, SpanPrinter};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The format of durations in JSON schemas.
pub(super) const DURATION: &str = "duration";
/// The format of sizes in JSON schemas.
pub(super) const SIZE: &str = "size";

/// The maximum number of digits in a duration, far more than any range needs. A duration of this many digits fits a
/// [`Duration`] in any unit.
const MAX_DIGITS: usize = 15;

/// The suffixes of sizes, each with its number of bytes. Only the powers of 1024 are used to format sizes.
const SIZE_UNITS: [(&str, usize); 8] = [
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
        // kube's parser panics on overflow and on signs after the first character, and reads an empty string as 0.
        let is_plain = text.chars().all(|character| character.is_alphanumeric() || character == '.');
        let digits = text.bytes().filter(u8::is_ascii_digit).count();
        if !is_plain || !(1..=MAX_DIGITS).contains(&digits) {
            return None;
        }
        text.parse::<kube::core::Duration>().ok().map(|duration| Self(duration.into()))
    }
}

impl FromStr for Time {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).ok_or("expected a duration with a unit, such as 30s, 5m or 1h30m")
    }
}

impl fmt::Display for Time {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let printer = SpanPrinter::new().spacing(Spacing::None);
        formatter.write_str(&printer.unsigned_duration_to_string(&self.0))
    }
}

impl Size {
    /// Parses a quantity of whole bytes. Parsers of other crates are not used: they read the suffix `m` as millions,
    /// but in Kubernetes it means thousandths.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let suffix = SIZE_UNITS.into_iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
        let (digits, bytes) = suffix.unwrap_or((text, 1));
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        digits.parse::<usize>().ok()?.checked_mul(bytes).map(Self)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, bytes) in SIZE_UNITS.into_iter().take(4) {
            if self.0 > 0 && self.0.is_multiple_of(bytes) {
                return write!(formatter, "{}{unit}", self.0 / bytes);
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
        formatter.write_str("a duration such as 5s, 300ms or 1m30s")
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
        formatter.write_str("a size in bytes such as 65536, 512Ki or 64Mi")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
        Size::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Size, E> {
        usize::try_from(number).map(Size).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": DURATION})
    }
}

impl JsonSchema for Size {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": SIZE})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_parsed_and_written_in_gos_format() {
        for (text, milliseconds, written) in [
            ("5s", 5_000, "5s"),
            ("300ms", 300, "300ms"),
            ("1m30s", 90_000, "1m30s"),
            ("90s", 90_000, "1m30s"),
            ("1.5h", 5_400_000, "1h30m"),
            (".5s", 500, "500ms"),
            ("1.5h30m", 7_200_000, "2h"),
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
        for wrong in ["", "5", "s", "-5s", "5d", "five", "1m30", ".s", "99999999999999999h", "1.2.3s", "1h-5m", "+5s"] {
            assert_eq!(Time::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn size_is_parsed_and_written_as_quantity() {
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
        for wrong in ["", "Mi", "-1", "1.5Gi", "1 Mi", "64MB", "64mi", "64m", "99999999999999999Ti"] {
            assert_eq!(Size::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn error_states_expected_format() {
        let time = serde_json::from_str::<Time>("5").unwrap_err().to_string();
        assert!(time.contains("integer `5`, expected a duration such as 5s"), "{time}");
        let size = serde_json::from_str::<Size>("\"64MB\"").unwrap_err().to_string();
        assert!(size.contains("string \"64MB\", expected a size in bytes such as"), "{size}");
        assert_eq!(serde_json::from_str::<Size>("4096").unwrap(), Size(4096));
        assert_eq!(serde_json::from_str::<Time>("0").unwrap(), Time(Duration::ZERO));
    }
}
