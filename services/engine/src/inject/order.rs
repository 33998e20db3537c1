//! Orders the environment of a container. Kubernetes replaces `$(NAME)` in a value only if NAME stands before it, so a
//! new or joined entry must stand after the entries that it refers to.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::json::{Content, Document, SlotId, State, has_byte};

use super::join::text_of;

/// The initial capacity for variables.
const ENTRIES: usize = 32;

/// Moves variables after those that they refer to. An existing variable moves only if it was joined and refers to
/// another existing one; new ones move before it. `own` are the slots added in this pass, and is updated if they get
/// other slots. `before_move` is called before anything else is moved.
pub(super) fn order_env_by_refs<'a>(
    document: &mut Document<'a>,
    list: SlotId,
    entries: &[SlotId],
    own: &mut Vec<SlotId>,
    mut before_move: impl FnMut(&Document<'a>, &[SlotId], SlotId),
) {
    let mut order: Vec<(SlotId, Option<Cow<'_, str>>)> = Vec::new();
    // Each variable moves at most once, so circular references end.
    for entry in entries {
        let needed = references(document, *entry);
        if needed.is_empty() {
            continue;
        }
        if order.is_empty() {
            let name = |slot| document.value_of(slot, "name").and_then(crate::json::Value::as_str);
            order.reserve(ENTRIES);
            order.extend(document.children(list).map(|slot| (slot, name(slot))));
        }
        let Some(at) = order.iter().position(|(slot, _)| slot == entry) else { continue };
        let is_needed = |name: &Option<Cow<'_, str>>| name.as_ref().is_some_and(|name| needed.contains(&**name));
        let behind = order.iter().enumerate().skip(at + 1).filter(|(_, (_, name))| is_needed(name));
        let behind: Vec<_> = behind.map(|(place, (slot, _))| (place, *slot)).collect();
        let Some((end, _)) = behind.last().copied() else { continue };
        let is_new = |slot: SlotId| document.state(slot) == State::Added;
        // New variables without references can stand anywhere, so no variable of the author has to move.
        let movable = behind.iter().all(|(_, slot)| is_new(*slot) && references(document, *slot).is_empty());
        if !is_new(*entry) && movable {
            for (index, (place, slot)) in behind.into_iter().enumerate() {
                let moved = document.move_item(list, slot, Some(*entry));
                moved_to(own, slot, moved);
                let (_, name) = order.remove(place);
                order.insert(at + index, (moved, name));
            }
        } else {
            if own.binary_search(entry).is_err() {
                before_move(document, own, *entry);
            }
            let moved = document.move_item(list, *entry, order.get(end + 1).map(|(slot, _)| *slot));
            moved_to(own, *entry, moved);
            let (_, name) = order.remove(at);
            order.insert(end, (moved, name));
        }
    }
}

/// Slot numbers rise, so a new slot is the last one.
fn moved_to(own: &mut Vec<SlotId>, before: SlotId, moved: SlotId) {
    if own.binary_search(&before).is_ok() {
        own.push(moved);
    }
}

/// The names that a variable's value refers to.
fn references(document: &Document<'_>, entry: SlotId) -> HashSet<String> {
    // Most values have no reference, and searching one byte is faster than finding a member or two bytes.
    let may_refer = |raw: &str| has_byte(raw, b'$');
    if matches!(document.content(entry), Content::Value(whole) if !may_refer(whole.raw())) {
        return HashSet::new();
    }
    let Some(raw) = document.raw_of(entry, "value") else { return HashSet::new() };
    if !may_refer(raw) || !raw.contains("$(") {
        return HashSet::new();
    }
    text_of(raw).map(|text| names_in(&text).map(str::to_owned).collect()).unwrap_or_default()
}

/// The names in a text that stand as `$(NAME)`; `$$(NAME)` is a literal.
fn names_in(text: &str) -> impl Iterator<Item = &str> {
    // Nothing closes after the last bracket.
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
