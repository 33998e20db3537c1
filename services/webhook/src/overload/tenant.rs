//! Peeks the namespace of a request from the first bytes of its body, before the body is parsed.
//!
//! The API server writes `request.namespace` before the object, so a few hundred bytes suffice. The result decides only
//! in which class a request waits. The peek knows enough JSON not to mistake a text inside the object or a string for
//! the field. A body that does not look like the API server's belongs to no namespace.

use std::hash::{BuildHasher, RandomState};

/// Bytes of the body that are inspected.
const WINDOW: usize = 4096;

/// Returns the class for a request with this body: one for each namespace, and one for all bodies without a namespace.
pub(crate) fn class(keys: &RandomState, body: &[u8]) -> u64 {
    keys.hash_one(namespace(body))
}

/// Returns the string at `/request/namespace`, if it is within the window and has no escapes.
pub(super) fn namespace(body: &[u8]) -> Option<&[u8]> {
    let mut glance = EnvelopePeek(body.get(..WINDOW).unwrap_or(body));
    glance.member(b"request")?;
    glance.member(b"namespace")?;
    glance.plain_string()
}

/// The bytes not yet inspected. Each step consumes some at the front, or ends the peek.
struct EnvelopePeek<'b>(&'b [u8]);

impl<'b> EnvelopePeek<'b> {
    /// Enters the next object, and advances to the value of this member.
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

    /// Returns the raw bytes of a string.
    fn string(&mut self) -> Option<&'b [u8]> {
        self.token(b'"')?;
        let text = self.0;
        let mut end = 0;
        loop {
            end += text.get(end..)?.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
            if text.get(end) == Some(&b'"') {
                break;
            }
            // The byte after a backslash does not end the string.
            end += 2;
        }
        self.0 = text.get(end + 1..)?;
        text.get(..end)
    }

    /// Returns a string without escapes.
    fn plain_string(&mut self) -> Option<&'b [u8]> {
        self.string().filter(|text| !text.contains(&b'\\'))
    }

    /// Skips a value. Brackets of both kinds are counted alike, since validity does not matter here.
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

    fn found(text: &str) -> Option<&str> {
        namespace(text.as_bytes()).map(|bytes| std::str::from_utf8(bytes).unwrap())
    }

    #[test]
    fn it_is_found_where_the_api_server_writes_it() {
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
    fn it_is_found_nowhere_else() {
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
    fn each_namespace_has_its_class_and_those_without_share_one() {
        let keys = RandomState::new();
        let class_of = |text: &str| class(&keys, text.as_bytes());
        let (a, b) = (r#"{"request":{"namespace":"a"}}"#, r#"{"request":{"namespace":"b"}}"#);
        assert_eq!(class_of(a), class_of(r#"{"x":1,"request":{"uid":"","namespace":"a","operation":""}}"#));
        assert_ne!(class_of(a), class_of(b));
        assert_eq!(class_of("{}"), class_of("[]"));
        assert_ne!(class_of("{}"), class_of(r#"{"request":{"namespace":""}}"#), "an object of the cluster's own");
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
        fn of_any_json_it_is_what_a_parser_finds(value in any_json()) {
            let expected = value.pointer("/request/namespace").and_then(Value::as_str);
            let expected = expected.filter(|text| !text.contains(['\\', '"']));
            // A JSON pointer would also match inside a list.
            let expected = expected.filter(|_| value.is_object() && value["request"].is_object());
            let text = value.to_string();
            prop_assert_eq!(found(&text), expected, "{}", text);
        }

        #[test]
        fn no_bytes_hurt(bytes in prop::collection::vec(prop::sample::select(b"{}[]\",:\\ arequstnmp0".to_vec()), 0..200)) {
            let _ = namespace(&bytes);
        }
    }
}
