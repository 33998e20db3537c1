//! Applies `$join`: keeps the object's value and adds the missing pieces. An environment variable with `valueFrom` has
//! no string to extend. With `valueFrom: Compose` in `$join`, such a variable is renamed, and a new variable refers to
//! it. Otherwise it is unchanged.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::Value as Json;

use crate::json::{Content, Key, Kind, OwnedTape, SlotId, Value, write_string};
use crate::profile::template::{Join, JoinFormat, JoinReference};
use crate::schema::{Field, KeyedList};

use super::keys::{push_token, text_of};
use super::merge::{Merge, MergeError, Part};

/// The number of bytes charged to the budget for each byte of a string that is split into pieces and compared.
const PIECES_COST: usize = 5;

/// The prefix of the name of a renamed variable.
const PREFIX: &str = "PILLION_";

impl<'a> Merge<'_, 'a> {
    /// Adds the missing pieces of `value` to the existing value in the slot `present`. Changes nothing unless both are
    /// strings or both are lists.
    pub(super) fn join(
        &mut self,
        present: SlotId,
        value: Value<'a>,
        join: &'a Join,
        field: Option<&'static Field>,
    ) -> Result<(), MergeError> {
        if (self.document.kind(present), value.kind()) != (Kind::Array, Kind::Array) {
            return self.join_text(present, value, join);
        }
        self.document.open(present)?;
        if let Some(Field::Keyed(keyed)) = field {
            return self.join_elements(present, value, keyed);
        }
        let items = self.items_of(present)?;
        let mut missing = Vec::new();
        for item in value.items() {
            self.charge_item(item)?;
            if !items.has(item) {
                missing.push(item);
            }
        }
        if missing.is_empty() {
            self.confirm();
            return Ok(());
        }
        self.note_replaced(present);
        for item in missing {
            self.charge_content(Content::Value(item))?;
            self.document.push_item(present, Content::Value(item));
        }
        Ok(())
    }

    /// Adds the elements of `value` whose keys are missing in the list. Kubernetes uses the last of two variables with
    /// the same name, so adding a duplicate would override the existing variable.
    fn join_elements(&mut self, list: SlotId, value: Value<'a>, keyed: &'static KeyedList) -> Result<(), MergeError> {
        let length = self.pointer.len();
        for item in value.items() {
            self.charge_item(item)?;
            let keys = self.keys_of(Part::Plain(item), keyed)?;
            keys.push(&mut self.pointer);
            if self.find(list, &keys, keyed)?.is_some() {
                self.confirm();
            } else {
                let content = Content::Value(item);
                self.charge_content(content)?;
                let slot = self.document.push_item(list, content);
                self.note_element(list, slot, &keys, keyed);
                self.note_added();
            }
            self.pointer.truncate(length);
        }
        Ok(())
    }

    /// Joins `prepend` to a value that was just added because the object had no value.
    pub(super) fn join_front(&mut self, added: SlotId, join: Option<&'a Join>) -> Result<(), MergeError> {
        let Some(join) = join.filter(|join| join.prepend.is_some()) else { return Ok(()) };
        let around = self.enter_added();
        let own = self.current(added)?;
        let result = self.join_text(added, own, join);
        self.mode = around;
        result
    }

    fn join_text(&mut self, present: SlotId, value: Value<'a>, join: &'a Join) -> Result<(), MergeError> {
        let prepend = match &join.prepend {
            Some(text) => self.choice(text)?,
            None => None,
        };
        // Charge each join, because a loop may join pieces to the same growing string many times.
        let bytes = self.document.raw(present).map_or(0, str::len) + value.raw().len();
        self.charge(bytes.saturating_mul(PIECES_COST))?;
        let existing = self.document.raw(present).and_then(text_of);
        let (Some(existing), Some(value)) = (existing, value.as_str()) else { return Ok(()) };
        let joined = text(&existing, &value, prepend.as_deref(), join);
        if joined.is_none() {
            self.confirm();
        }
        if let Some(joined) = joined {
            self.charge(joined.len())?;
            self.note_replaced(present);
            let content = self.document.keep(joined);
            self.document.replace(present, content);
        }
        Ok(())
    }

    /// Joins the `value` field of a template's element to that of the existing element.
    pub(super) fn join_element(
        &mut self,
        list: SlotId,
        existing: SlotId,
        part: Part<'a>,
        join: &'a Join,
        keyed: &'static KeyedList,
    ) -> Result<(), MergeError> {
        if part.kind() != Kind::Object {
            return Ok(());
        }
        let Some(value) = self.field_of(part, "value")? else { return Ok(()) };
        let length = self.pointer.len();
        if let Some(slot) = self.document.member(existing, "value")? {
            let edits = self.edits;
            push_token(&mut self.pointer, "value");
            let result = self.join_text(slot, value, join);
            self.pointer.truncate(length);
            if self.edits > edits {
                self.remember_env(existing, keyed);
            }
            return result;
        }
        if self.document.member(existing, "valueFrom")?.is_some() {
            return self.join_reference(list, existing, value, join);
        }
        // An absent `value` is treated as an empty string.
        push_token(&mut self.pointer, "value");
        let slot = self.document.add_member(existing, Key::new("value"), Content::Scalar("\"\""));
        self.note_added();
        let around = self.enter_added();
        let result = self.join_text(slot, value, join);
        self.mode = around;
        self.pointer.truncate(length);
        self.remember_env(existing, keyed);
        result
    }

    /// Joins a value to an environment variable with `valueFrom`: renames the variable, and adds one that refers to it.
    /// If `$join` does not allow this, or the new name is taken, only adds a message for the author.
    pub(super) fn join_reference(
        &mut self,
        list: SlotId,
        entry: SlotId,
        value: Value<'a>,
        join: &'a Join,
    ) -> Result<(), MergeError> {
        let name = self.document.value_of(entry, "name").and_then(Value::as_str).map(Cow::into_owned);
        let (Some(name), JoinReference::Compose) = (name, join.value_from) else {
            self.notes.push(format!("{}: nothing was joined, because the variable has valueFrom", self.pointer).into());
            return Ok(());
        };
        let moved_name = format!("{PREFIX}{name}");
        let is_taken = |entry: SlotId| self.document.value_of(entry, "name").is_some_and(|name| name.is(&moved_name));
        if self.document.children(list).any(is_taken) {
            self.notes.push(format!("{}: {moved_name} is taken, so nothing was joined to it", self.pointer).into());
            return Ok(());
        }
        let original = self.current(entry)?;
        let mut moved = String::with_capacity(original.raw().len() + PREFIX.len());
        moved.push('{');
        for (index, (key, value)) in original.members().enumerate() {
            if index > 0 {
                moved.push(',');
            }
            write_string(&mut moved, &key.text());
            moved.push(':');
            if key.is("name") {
                write_string(&mut moved, &moved_name);
            } else {
                moved.push_str(value.raw());
            }
        }
        moved.push('}');
        let prepend = match &join.prepend {
            Some(text) => self.choice(text)?,
            None => None,
        };
        let value = value.as_str().unwrap_or_default();
        let reference = format!("$({moved_name})");
        let Some(joined) = text(&reference, &value, prepend.as_deref(), join) else { return Ok(()) };
        let place = self.document.children(list).position(|child| child == entry).unwrap_or(0);
        let moved = self.keep(&moved)?;
        self.document.insert_item(list, place, Content::Value(moved));
        let here = self.pointer.clone();
        let around = self.pointer.rfind('/').unwrap_or(0);
        self.pointer.truncate(around);
        push_token(&mut self.pointer, &moved_name);
        self.note_added();
        self.pointer = here;
        // The record contains the whole original variable.
        self.note_replaced(entry);
        self.document.replace(entry, Content::Map);
        let name = original.get("name").map_or(Content::Scalar("\"\""), Content::Value);
        self.document.add_member(entry, Key::new("name"), name);
        let joined = self.document.keep(joined);
        self.document.add_member(entry, Key::new("value"), joined);
        self.env.push(entry);
        Ok(())
    }
}

/// Adds the missing pieces of `prepend` before `existing` and those of `value` after it. If the format is JSON, or if
/// it is `Auto` and `existing` is a JSON object or list, merges the JSON and ignores `prepend`. Returns a JSON string.
/// `None` if nothing is missing, or if the JSON cannot be merged.
fn text(existing: &str, value: &str, prepend: Option<&str>, join: &Join) -> Option<String> {
    let as_json = match join.format {
        JoinFormat::Text => None,
        JoinFormat::Json => Some(merged_json(existing, value)),
        JoinFormat::Auto => serde_json::from_str::<Json>(existing)
            .is_ok_and(|existing| existing.is_object() || existing.is_array())
            .then(|| merged_json(existing, value)),
    };
    let joined = match as_json {
        Some(merged_json) => merged_json?,
        None => joined(existing, value, prepend, join)?,
    };
    let mut quoted = String::with_capacity(joined.len() + 2);
    write_string(&mut quoted, &joined);
    Some(quoted)
}

fn joined(existing: &str, value: &str, prepend: Option<&str>, join: &Join) -> Option<String> {
    let names: HashSet<_> = pieces(existing, &join.separator).map(|piece| name(piece, join)).collect();
    let is_missing = |piece: &&str| {
        if join.separator.is_empty() {
            return !existing.contains(*piece);
        }
        !names.contains(name(piece, join))
    };
    let length = existing.len() + value.len() + prepend.map_or(0, str::len) + 2 * join.separator.len();
    let mut all = String::with_capacity(length);
    let mut put = |piece: &str| {
        if !all.is_empty() {
            all.push_str(&join.separator);
        }
        all.push_str(piece);
    };
    let mut missing = 0;
    for piece in prepend.into_iter().flat_map(|text| pieces(text, &join.separator)).filter(is_missing) {
        put(piece);
        missing += 1;
    }
    if !existing.is_empty() {
        put(existing);
    }
    for piece in pieces(value, &join.separator).filter(is_missing) {
        put(piece);
        missing += 1;
    }
    (missing > 0).then_some(all)
}

/// Merges two strings that contain JSON. Objects keep their existing keys, and lists get the missing items. If
/// `existing_text` is blank, returns `value`. `None` if nothing is missing, if a string is not JSON, or if the two are
/// neither both objects nor both lists.
fn merged_json(existing_text: &str, value: &str) -> Option<String> {
    let added = OwnedTape::parse(value).ok()?;
    if existing_text.trim().is_empty() {
        return Some(value.to_owned());
    }
    let existing = OwnedTape::parse(existing_text).ok()?;
    let (existing, added) = (existing.root(), added.root());
    // The existing JSON is copied byte for byte, because its numbers may exceed the range of Rust's types.
    let (is_empty, missing): (bool, Vec<String>) = match (existing.kind(), added.kind()) {
        (Kind::Object, Kind::Object) => {
            let keys: HashSet<_> = existing.members().map(|(key, _)| key.text()).collect();
            let missing = added.members().filter(|(key, _)| !keys.contains(&key.text()));
            let written = missing.map(|(key, value)| format!("\"{}\":{}", key.escaped(), value.raw()));
            (existing.members().next().is_none(), written.collect())
        }
        (Kind::Array, Kind::Array) => {
            // A number that cannot be parsed is compared as text.
            let read = |item: Value<'_>| serde_json::from_str(item.raw()).unwrap_or_else(|_| Json::from(item.raw()));
            let items: HashSet<_> = existing.items().map(read).collect();
            let missing = added.items().filter(|item| !items.contains(&read(*item)));
            (existing.items().next().is_none(), missing.map(|item| item.raw().to_owned()).collect())
        }
        _ => return None,
    };
    if missing.is_empty() {
        return None;
    }
    let raw = existing.raw();
    let (open, end) = raw.split_at_checked(raw.len().checked_sub(1)?)?;
    let comma = if is_empty { "" } else { "," };
    Some(format!("{open}{comma}{}{end}", missing.join(",")))
}

/// Splits a string at the separator, without blank pieces. If the separator is empty, the whole string is one piece.
fn pieces<'t>(text: &'t str, separator: &'t str) -> impl Iterator<Item = &'t str> {
    let is_one = separator.is_empty();
    let whole = (is_one && !text.is_empty()).then_some(text);
    let split = (!is_one).then(|| text.split(separator).filter(|piece| !piece.trim().is_empty()));
    whole.into_iter().chain(split.into_iter().flatten())
}

/// Returns the key of a piece: the part before the key separator, or the whole piece if it contains none.
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
    fn join_adds_only_missing_pieces() {
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
    fn join_prepends_missing_piece() {
        assert_eq!(joined("b", "", ":", None, Some("a")).as_deref(), Some("a:b"));
        assert_eq!(joined("b", "c", ":", None, Some("a")).as_deref(), Some("a:b:c"));
        assert_eq!(joined("a:b", "b", ":", None, Some("a")), None);
    }

    #[test]
    fn join_unites_json_objects_and_lists() {
        let merged_json = |there: &str, value: &str, format| {
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
            assert_eq!(merged_json(there, value, format).as_deref(), expected, "{there:?} + {value:?}");
        }
    }

    #[test]
    fn join_is_idempotent() {
        let once = joined("a=1", "b=2,a=3", ",", Some("="), Some("z=0")).unwrap();
        assert_eq!(joined(&once, "b=2,a=3", ",", Some("="), Some("z=0")), None);
    }
}
