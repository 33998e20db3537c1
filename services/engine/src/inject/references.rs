//! Joins to an environment variable with `valueFrom`, which has no text: renames the variable, and adds one that refers
//! to it.

use std::borrow::Cow;

use crate::json::{Content, Key, SlotId, Value, write_string};
use crate::profile::template::{Join, JoinReference};

use super::join;
use super::pointer::push_token;
use super::state::{Merge, MergeError};

/// The prefix of the name of a renamed variable.
const PREFIX: &str = "PILLION_";

impl<'a> Merge<'_, 'a> {
    /// Joins a value to a variable with `valueFrom`.
    pub(super) fn join_reference(
        &mut self,
        list: SlotId,
        entry: SlotId,
        value: Value<'a>,
        join: &'a Join,
    ) -> Result<(), MergeError> {
        let name = self.document.value_of(entry, "name").and_then(Value::as_str).map(Cow::into_owned);
        let (Some(name), JoinReference::Compose) = (name, join.value_from) else {
            self.notes.push(format!("{}: is a reference, so nothing was joined to it", self.pointer).into());
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
        let there = format!("$({moved_name})");
        let Some(joined) = join::text(&there, &value, prepend.as_deref(), join) else { return Ok(()) };
        let place = self.document.children(list).position(|child| child == entry).unwrap_or(0);
        let moved = self.keep(&moved)?;
        self.document.insert_item(list, place, Content::Value(moved));
        let here = self.pointer.clone();
        let around = self.pointer.rfind('/').unwrap_or(0);
        self.pointer.truncate(around);
        push_token(&mut self.pointer, &moved_name);
        self.note_added();
        self.pointer = here;
        // The original is the whole variable.
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
