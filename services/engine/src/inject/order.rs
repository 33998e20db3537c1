//! The order of a container's environment: Kubernetes replaces `$(NAME)` in a value only if NAME stands before it, so an
//! entry that is new or joined has to stand behind all that it refers to.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::json::{Document, SlotId, State};

use super::join::text_of;

/// Moves entries of an env list that refer to others behind them. What was there moves only if it was joined and refers to
/// something that is there; what is new moves before it. Gives the slots that were moved, each with the one that it has
/// become.
pub(super) fn behind_what_they_need(
    document: &mut Document<'_>,
    list: SlotId,
    entries: &[SlotId],
) -> Vec<(SlotId, SlotId)> {
    let mut all_moved = Vec::new();
    let mut order: Vec<(SlotId, Option<Cow<'_, str>>)> = Vec::new();
    // Each entry moves at most once, so entries that refer to one another in a circle end.
    for entry in entries {
        let needed = references(document, *entry);
        if needed.is_empty() {
            continue;
        }
        if order.is_empty() {
            let name = |slot| document.value_of(slot, "name").and_then(crate::json::Value::as_str);
            order = document.children(list).map(|slot| (slot, name(slot))).collect();
        }
        let Some(own) = order.iter().position(|(slot, _)| slot == entry) else { continue };
        let is_needed = |name: &Option<Cow<'_, str>>| name.as_ref().is_some_and(|name| needed.contains(&**name));
        let behind = order.iter().enumerate().skip(own + 1).filter(|(_, (_, name))| is_needed(name));
        let behind: Vec<_> = behind.map(|(place, (slot, _))| (place, *slot)).collect();
        let Some((end, _)) = behind.last().copied() else { continue };
        let is_new = |slot: SlotId| document.state(slot) == State::Added;
        // What is new and refers to nothing itself can stand anywhere; so nothing of the author's has to move.
        let movable = behind.iter().all(|(_, slot)| is_new(*slot) && references(document, *slot).is_empty());
        if !is_new(*entry) && movable {
            for (index, (place, slot)) in behind.into_iter().enumerate() {
                let moved = document.move_item(list, slot, Some(*entry));
                all_moved.push((slot, moved));
                let (_, name) = order.remove(place);
                order.insert(own + index, (moved, name));
            }
        } else {
            let moved = document.move_item(list, *entry, order.get(end + 1).map(|(slot, _)| *slot));
            all_moved.push((*entry, moved));
            let (_, name) = order.remove(own);
            order.insert(end, (moved, name));
        }
    }
    all_moved
}

/// The names that an entry's value refers to.
fn references(document: &Document<'_>, entry: SlotId) -> HashSet<String> {
    let Some(raw) = document.raw_of(entry, "value") else { return HashSet::new() };
    // Nearly no value has one, and one byte is found faster than two.
    if !raw.as_bytes().contains(&b'$') || !raw.contains("$(") {
        return HashSet::new();
    }
    text_of(raw).map(|text| names_in(&text).map(str::to_owned).collect()).unwrap_or_default()
}

/// The names in a text that stand as `$(NAME)`; `$$(NAME)` is a literal.
fn names_in(text: &str) -> impl Iterator<Item = &str> {
    // Behind the last bracket nothing is closed, and nothing has to be looked for.
    let mut rest = text.rfind(')').and_then(|end| text.get(..=end)).unwrap_or_default();
    std::iter::from_fn(move || {
        while let Some((_, behind)) = rest.split_once('$') {
            if let Some(escaped) = behind.strip_prefix('$') {
                rest = escaped;
            } else if let Some((name, behind)) = behind.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
                rest = behind;
                return Some(name);
            } else {
                rest = behind;
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::names_in;

    #[test]
    fn references_are_found_as_kubernetes_finds_them() {
        for (text, names) in [
            ("", &[][..]),
            ("$(A)", &["A"]),
            ("x$(A)y$(B)", &["A", "B"]),
            ("$$(A)", &[]),
            ("$$$(A)", &["A"]),
            ("$(A", &[]),
            ("$A", &[]),
            ("a=$(A),b=${B}", &["A"]),
        ] {
            assert_eq!(names_in(text).collect::<Vec<_>>(), names, "{text}");
        }
    }
}
