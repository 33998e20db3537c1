//! Joining: the object's text stays, and the pieces that it lacks are added.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::Value as Json;

use crate::json::{Kind, OwnedTape, Value, write_string};
use crate::profile::template::{Join, JoinFormat};

/// The text that a JSON string stands for; `None` if it is not a string.
pub(super) fn text_of(raw: &str) -> Option<Cow<'_, str>> {
    if !raw.starts_with('"') {
        return None;
    }
    if raw.contains('\\') {
        let tape = OwnedTape::parse(raw).ok()?;
        return tape.root().as_str().map(|text| Cow::Owned(text.into_owned()));
    }
    raw.get(1..raw.len() - 1).map(Cow::Borrowed)
}

/// What becomes of a text to which the missing pieces of another are joined, as a JSON string; `None` if nothing is
/// missing. `prepend` goes in front.
pub(super) fn text(there: &str, value: &str, prepend: Option<&str>, join: &Join) -> Option<String> {
    let as_json = match join.format {
        JoinFormat::Text => None,
        JoinFormat::Json => Some(united(there, value)),
        JoinFormat::Auto => serde_json::from_str::<Json>(there)
            .is_ok_and(|there| there.is_object() || there.is_array())
            .then(|| united(there, value)),
    };
    let joined = match as_json {
        Some(united) => united?,
        None => joined(there, value, prepend, join)?,
    };
    let mut quoted = Vec::new();
    write_string(&mut quoted, &joined);
    String::from_utf8(quoted).ok()
}

fn joined(there: &str, value: &str, prepend: Option<&str>, join: &Join) -> Option<String> {
    let pieces = pieces(there, &join.separator);
    let names: HashSet<_> = pieces.iter().map(|piece| name(piece, join)).collect();
    let missing = |text: &str| -> Vec<String> {
        let wanted = self::pieces(text, &join.separator);
        let is_missing = |piece: &&str| {
            if join.separator.is_empty() {
                return !there.contains(*piece);
            }
            !names.contains(name(piece, join))
        };
        wanted.into_iter().filter(is_missing).map(str::to_owned).collect()
    };
    let front = prepend.map(missing).unwrap_or_default();
    let behind = missing(value);
    if front.is_empty() && behind.is_empty() {
        return None;
    }
    let there = (!there.is_empty()).then(|| there.to_owned());
    let all: Vec<_> = front.into_iter().chain(there).chain(behind).collect();
    Some(all.join(&join.separator))
}

/// Two JSON texts in one: the keys of objects that are there win, and lists get what they lack. `None` if nothing is
/// missing, and also if they are not alike: then what is there stays.
fn united(there: &str, value: &str) -> Option<String> {
    let ours = OwnedTape::parse(value).ok()?;
    if there.trim().is_empty() {
        return Some(value.to_owned());
    }
    let theirs = OwnedTape::parse(there).ok()?;
    let (theirs, ours) = (theirs.root(), ours.root());
    // What is there stays to the byte: numbers may be longer than any type of ours.
    let (is_empty, missing): (bool, Vec<String>) = match (theirs.kind(), ours.kind()) {
        (Kind::Object, Kind::Object) => {
            let there: HashSet<_> = theirs.members().map(|(key, _)| key.text()).collect();
            let missing = ours.members().filter(|(key, _)| !there.contains(&key.text()));
            let written = missing.map(|(key, value)| format!("\"{}\":{}", key.escaped(), value.raw()));
            (theirs.members().next().is_none(), written.collect())
        }
        (Kind::Array, Kind::Array) => {
            // A number that is too long to be read is known by how it is written.
            let read = |item: Value<'_>| serde_json::from_str(item.raw()).unwrap_or_else(|_| Json::from(item.raw()));
            let there: HashSet<_> = theirs.items().map(read).collect();
            let missing = ours.items().filter(|item| !there.contains(&read(*item)));
            (theirs.items().next().is_none(), missing.map(|item| item.raw().to_owned()).collect())
        }
        _ => return None,
    };
    if missing.is_empty() {
        return None;
    }
    let raw = theirs.raw();
    let (open, end) = raw.split_at_checked(raw.len().checked_sub(1)?)?;
    let comma = if is_empty { "" } else { "," };
    Some(format!("{open}{comma}{}{end}", missing.join(",")))
}

/// The pieces of a text; without a separator it is one.
fn pieces<'t>(text: &'t str, separator: &str) -> Vec<&'t str> {
    if separator.is_empty() {
        return if text.is_empty() { Vec::new() } else { vec![text] };
    }
    text.split(separator).filter(|piece| !piece.trim().is_empty()).collect()
}

/// What tells a piece from others: the part before the key, or all of it.
fn name<'p>(piece: &'p str, join: &Join) -> &'p str {
    let name = join.key.as_deref().and_then(|key| piece.split_once(key)).map_or(piece, |(name, _)| name);
    name.trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(there: &str, value: &str, separator: &str, key: Option<&str>, prepend: Option<&str>) -> Option<String> {
        let join = Join { separator: separator.into(), key: key.map(Box::from), ..Join::default() };
        text(there, value, prepend, &join).map(|quoted| serde_json::from_str(&quoted).unwrap())
    }

    #[test]
    fn only_what_is_missing_is_added() {
        for (there, value, separator, key, expected) in [
            ("a,b", "b,c", ",", None, Some("a,b,c")),
            ("a,b", "b,a", ",", None, None),
            ("", "a", ",", None, Some("a")),
            ("a=1,b=2", "a=9,c=3", ",", Some("="), Some("a=1,b=2,c=3")),
            ("-Xmx1g", " -javaagent:/a.jar", "", None, Some("-Xmx1g -javaagent:/a.jar")),
            ("-Xmx1g -javaagent:/a.jar", " -javaagent:/a.jar", "", None, None),
            ("/app", "/instrumentation", ":", None, Some("/app:/instrumentation")),
        ] {
            assert_eq!(joined(there, value, separator, key, None).as_deref(), expected, "{there:?} + {value:?}");
        }
    }

    #[test]
    fn a_piece_may_go_in_front() {
        assert_eq!(joined("b", "", ":", None, Some("a")).as_deref(), Some("a:b"));
        assert_eq!(joined("b", "c", ":", None, Some("a")).as_deref(), Some("a:b:c"));
        assert_eq!(joined("a:b", "b", ":", None, Some("a")), None);
    }

    #[test]
    fn objects_and_lists_are_united() {
        let united = |there: &str, value: &str, format| {
            let join = Join { separator: ",".into(), format, ..Join::default() };
            text(there, value, None, &join).map(|quoted| serde_json::from_str::<String>(&quoted).unwrap())
        };
        for (there, value, format, expected) in [
            (r#"{"a":1}"#, r#"{"a":2,"b":3}"#, JoinFormat::Json, Some(r#"{"a":1,"b":3}"#)),
            (r#"{"a":1}"#, r#"{"a":2}"#, JoinFormat::Json, None),
            ("[1]", "[1,2]", JoinFormat::Json, Some("[1,2]")),
            ("[1]", r#"{"a":2}"#, JoinFormat::Json, None),
            ("", r#"{"a":2}"#, JoinFormat::Json, Some(r#"{"a":2}"#)),
            ("not json", r#"{"a":2}"#, JoinFormat::Json, None),
            (r#"{"a":1}"#, r#"{"b":3}"#, JoinFormat::Auto, Some(r#"{"a":1,"b":3}"#)),
            ("a,b", "b,c", JoinFormat::Auto, Some("a,b,c")),
            ("1", "2", JoinFormat::Auto, Some("1,2")),
        ] {
            assert_eq!(united(there, value, format).as_deref(), expected, "{there:?} + {value:?}");
        }
    }

    #[test]
    fn joining_twice_is_joining_once() {
        let once = joined("a=1", "b=2,a=3", ",", Some("="), Some("z=0")).unwrap();
        assert_eq!(joined(&once, "b=2,a=3", ",", Some("="), Some("z=0")), None);
    }
}
