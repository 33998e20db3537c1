//! Reads the deadline and the namespace of a request before its body is parsed.
//!
//! The API server sends its own timeout as `?timeout=`, in Go's duration format. If the value is invalid, empty or
//! zero, the default applies. A value above the maximum is reduced to the maximum.
//!
//! The namespace determines the class in which a request is queued. The API server writes `request.namespace` before
//! the object, so the first bytes of the body suffice. The peek skips nested objects and strings, so that text inside
//! them is not mistaken for the field. If a body does not have the API server's format, it belongs to no namespace.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::time::Instant;

use super::OverloadSettings;

/// An upper bound on any timeout, so that additions to the current time cannot overflow.
const LONGEST: Duration = Duration::from_hours(24);

/// The time by which a request must be answered. It is never further away than the longest timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline(pub(crate) Instant);

impl Deadline {
    /// Returns the deadline of a request whose head has just arrived: its timeout minus the margin. `query` is the
    /// query of its URL.
    pub(crate) fn of(query: Option<&str>, settings: &OverloadSettings) -> Self {
        let timeout = timeout(query, settings).min(LONGEST);
        Self(Instant::now() + timeout.saturating_sub(settings.margin.min(timeout / 5)))
    }

    pub(crate) fn has_passed(self) -> bool {
        self.remaining().is_zero()
    }

    /// Returns the remaining time.
    pub(crate) fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// Returns the timeout in the query, or the default timeout. The result is at most the longest timeout.
fn timeout(query: Option<&str>, settings: &OverloadSettings) -> Duration {
    let text = query.and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("timeout=")));
    let requested = text.and_then(go_duration).filter(|timeout| !timeout.is_zero());
    requested.unwrap_or(settings.default_timeout).min(settings.longest_timeout)
}

/// Parses a duration in Go's format: `10s`, `1m30s`, `1.5h`. `None` if the text is invalid or the duration is negative.
/// Returns the maximum if the duration is too long.
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

/// Returns the value of digits that cannot be parsed: zero if there are none, and otherwise the maximum.
const fn saturated(digits: &str) -> u128 {
    if digits.is_empty() { 0 } else { u64::MAX as u128 }
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

/// Splits off the unit at the start of `text`. Returns the number of nanoseconds in the unit, and the rest of `text`.
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
    // `ms` must come before `m`, which is a prefix of it.
    UNITS.iter().find_map(|(name, nanoseconds)| Some((*nanoseconds, text.strip_prefix(name)?)))
}

/// The number of bytes at the start of a body that are inspected.
const WINDOW: usize = 4096;

/// Returns the class of a request with this body. Each namespace has a class, and all bodies without a namespace share
/// one.
pub(crate) fn class(keys: &RandomState, body: &[u8]) -> u64 {
    keys.hash_one(namespace(body))
}

/// Returns the namespace in this body. `None` if the namespace is not within the inspected bytes, has escapes, or is
/// not valid UTF-8.
pub(crate) fn peek_namespace(body: &[u8]) -> Option<&str> {
    namespace(body).and_then(|name| std::str::from_utf8(name).ok())
}

/// Returns the string at `/request/namespace`. `None` if the string is not within the inspected bytes, or has escapes.
fn namespace(body: &[u8]) -> Option<&[u8]> {
    let mut peek = EnvelopePeek(body.get(..WINDOW).unwrap_or(body));
    peek.member(b"request")?;
    peek.member(b"namespace")?;
    peek.plain_string()
}

/// The bytes that are not inspected yet. Each step consumes at least one byte at the front, or ends the inspection.
struct EnvelopePeek<'b>(&'b [u8]);

impl<'b> EnvelopePeek<'b> {
    /// Enters the object that is next, and advances to the value of the member `name`. `None` if the next value is not
    /// an object, or has no such member within the inspected bytes.
    fn member(&mut self, name: &[u8]) -> Option<()> {
        self.token(b'{')?;
        loop {
            let found = self.string()? == name;
            self.token(b':')?;
            if found {
                return Some(());
            }
            self.value()?;
            self.token(b',')?;
        }
    }

    fn space(&mut self) {
        self.0 = self.0.trim_ascii_start();
    }

    fn token(&mut self, expected: u8) -> Option<()> {
        self.space();
        self.0 = self.0.strip_prefix(&[expected])?;
        Some(())
    }

    /// Consumes the next string, and returns its raw bytes between the quotes. `None` if the next bytes are not a
    /// complete string.
    fn string(&mut self) -> Option<&'b [u8]> {
        self.token(b'"')?;
        let text = self.0;
        let mut end = 0;
        loop {
            end += text.get(end..)?.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
            if text.get(end) == Some(&b'"') {
                break;
            }
            // Skips the backslash and the byte after it, which cannot end the string.
            end += 2;
        }
        self.0 = text.get(end + 1..)?;
        text.get(..end)
    }

    /// Consumes the next string, and returns it. `None` if the string is incomplete or has escapes.
    fn plain_string(&mut self) -> Option<&'b [u8]> {
        self.string().filter(|text| !text.contains(&b'\\'))
    }

    /// Skips a value. Does not distinguish the two kinds of brackets, because this function need not detect invalid
    /// JSON.
    fn value(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            self.space();
            match *self.0.first()? {
                b'"' => {
                    self.string()?;
                }
                b'{' | b'[' => {
                    depth += 1;
                    self.step();
                    continue;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.step();
                }
                b',' | b':' if depth > 0 => {
                    self.step();
                    continue;
                }
                b',' | b':' => return None,
                _ => self.scalar(),
            }
            if depth == 0 {
                return Some(());
            }
        }
    }

    fn step(&mut self) {
        self.0 = self.0.get(1..).unwrap_or_default();
    }

    /// Skips a number, `true`, `false` or `null`: at least one byte.
    fn scalar(&mut self) {
        let ends =
            |byte: &u8| matches!(byte, b',' | b':' | b'{' | b'}' | b'[' | b']' | b'"') || byte.is_ascii_whitespace();
        let end = self.0.iter().position(ends).unwrap_or(self.0.len());
        self.0 = self.0.get(end.max(1)..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn reads_go_durations() {
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
    async fn invalid_timeout_is_default_and_long_one_capped() {
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
            // If a fifth of the timeout is less than 200 ms, the margin is that fifth.
            (Some("timeout=500ms"), 400),
            (Some("timeout=5ms"), 4),
            (Some("a=b&timeout=2s"), 1_800),
            (Some("timeouts=2s&xtimeout=2s"), 9_800),
        ] {
            let deadline = Deadline::of(query, &OverloadSettings::default());
            assert_eq!(deadline.remaining(), Duration::from_millis(milliseconds), "{query:?}");
        }
        let deadline = Deadline::of(Some("timeout=1s"), &OverloadSettings::default());
        tokio::time::advance(Duration::from_millis(799)).await;
        assert!(!deadline.has_passed());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(deadline.has_passed());
    }

    fn found(text: &str) -> Option<&str> {
        namespace(text.as_bytes()).map(|bytes| std::str::from_utf8(bytes).unwrap())
    }

    #[test]
    fn finds_namespace_in_api_server_review() {
        let review = json!({
            "kind": "AdmissionReview",
            "apiVersion": "admission.k8s.io/v1",
            "request": {
                "uid": "u", "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "name": "a\\\"namespace\":\"x", "namespace": "team-a", "operation": "CREATE",
                "object": {"metadata": {"namespace": "other"}}
            }
        });
        assert_eq!(found(&review.to_string()), Some("team-a"));
        assert_eq!(found(&format!("{review:#}")), Some("team-a"));
    }

    #[test]
    fn finds_namespace_nowhere_else() {
        for text in [
            "",
            "{",
            "[]",
            "null",
            r#"{"namespace":"a"}"#,
            r#"{"request":"namespace"}"#,
            r#"{"request":{"object":{"namespace":"a"}}}"#,
            r#"{"request":{"object":{"request":{"namespace":"a"}}}}"#,
            r#"{"a":{"request":{"namespace":"a"}}}"#,
            r#"{"request":{"name":"\",\"namespace\":\"a"}}"#,
            r#"{"request":{"namespace":null}}"#,
            r#"{"request":{"namespace":{"namespace":"a"}}}"#,
            r#"{"request":[{"namespace":"a"}]}"#,
            r#"{"request":{"namespace":"a\u0062"}}"#,
            r#"{"request":{"name\u0073pace":"a"}}"#,
            r#"{"request":{"namespace":"a"#,
            r#"{"request":{}}}{"request":{"namespace":"a"}}"#,
            r#"{"request":{,"namespace":"a"}}"#,
        ] {
            assert_eq!(found(text), None, "{text}");
        }
        let late = format!(r#"{{"request":{{"name":"{}","namespace":"a"}}}}"#, "x".repeat(WINDOW));
        assert_eq!(found(&late), None, "beyond the window");
    }

    #[test]
    fn each_namespace_has_own_class() {
        let keys = RandomState::new();
        let class_of = |text: &str| class(&keys, text.as_bytes());
        let (a, b) = (r#"{"request":{"namespace":"a"}}"#, r#"{"request":{"namespace":"b"}}"#);
        assert_eq!(class_of(a), class_of(r#"{"x":1,"request":{"uid":"","namespace":"a","operation":""}}"#));
        assert_ne!(class_of(a), class_of(b));
        assert_eq!(class_of("{}"), class_of("[]"));
        assert_ne!(class_of("{}"), class_of(r#"{"request":{"namespace":""}}"#), "a cluster-scoped object");
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let text = prop_oneof![Just("request".to_owned()), Just("namespace".to_owned()), "[a-z\"\\\\{}:, ]{0,6}"];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            text.clone().prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 40, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((text.clone(), inner), 0..4)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_timeout_text_is_handled(text in "[-+0-9.hmsnu\u{b5}a]{0,40}") {
            let _ = go_duration(&text);
        }

        #[test]
        fn parts_of_duration_add_up(hours in 0_u64..50, minutes in 0_u64..60, seconds in 0_u64..60, millis in 0_u64..1000) {
            let text = format!("{hours}h{minutes}m{seconds}.{millis:03}s");
            let expected = Duration::from_millis(((hours * 60 + minutes) * 60 + seconds) * 1000 + millis);
            prop_assert_eq!(go_duration(&text), Some(expected));
        }

        #[test]
        fn peek_agrees_with_parser(value in any_json()) {
            let expected = value.pointer("/request/namespace").and_then(Value::as_str);
            let expected = expected.filter(|text| !text.contains(['\\', '"']));
            // `found` only enters objects, and never lists.
            let expected = expected.filter(|_| value.is_object() && value["request"].is_object());
            let text = value.to_string();
            prop_assert_eq!(found(&text), expected, "{}", text);
        }

        #[test]
        fn peek_handles_any_bytes(bytes in prop::collection::vec(prop::sample::select(b"{}[]\",:\\ arequstnmp0".to_vec()), 0..200)) {
            let _ = namespace(&bytes);
        }
    }
}
