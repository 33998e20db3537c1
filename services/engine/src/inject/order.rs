//! The order of a container's environment: Kubernetes replaces `$(NAME)` in a value only if NAME stands before it, so an
//! entry that is new or joined has to stand behind all that it refers to.

use std::collections::HashSet;

use crate::json::{Document, SlotId};

use super::join::text_of;

/// Moves entries of an env list that refer to others behind them. What was there moves only if it was joined and refers to
/// something that is there; what is new moves before it.
pub(super) fn behind_what_they_need(document: &mut Document<'_>, list: SlotId, entries: &[SlotId]) {
    // Each entry moves at most once, so entries that refer to one another in a circle end.
    for entry in entries {
        let needed = references(document, *entry);
        if needed.is_empty() {
            continue;
        }
        let order: Vec<_> = document.children(list).collect();
        let place = |slot: SlotId| order.iter().position(|other| *other == slot);
        let Some(own) = place(*entry) else { continue };
        let behind: Vec<_> = order
            .iter()
            .enumerate()
            .skip(own + 1)
            .filter(|(_, slot)| name(document, **slot).is_some_and(|name| needed.contains(&name)))
            .map(|(place, slot)| (place, *slot))
            .collect();
        let Some((end, _)) = behind.last() else { continue };
        let is_new = |slot: &SlotId| document.state(*slot) == crate::json::State::Added;
        // What is new and refers to nothing itself can stand anywhere; so nothing of the author's has to move.
        let movable = behind.iter().all(|(_, slot)| is_new(slot) && references(document, *slot).is_empty());
        if !is_new(entry) && movable {
            for (_, slot) in behind {
                document.move_item(list, slot, Some(*entry));
            }
        } else {
            document.move_item(list, *entry, order.get(end + 1).copied());
        }
    }
}

fn name(document: &Document<'_>, entry: SlotId) -> Option<String> {
    document.value_of(entry, "name")?.as_str().map(std::borrow::Cow::into_owned)
}

/// The names that an entry's value refers to.
fn references(document: &Document<'_>, entry: SlotId) -> HashSet<String> {
    let Some(raw) = document.raw_of(entry, "value") else { return HashSet::new() };
    if !raw.contains("$(") {
        return HashSet::new();
    }
    text_of(raw).map(|text| names_in(&text).into_iter().collect()).unwrap_or_default()
}

/// The names in a text that stand as `$(NAME)`; `$$(NAME)` is a literal.
fn names_in(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = text;
    while let Some((_, behind)) = rest.split_once('$') {
        if let Some(escaped) = behind.strip_prefix('$') {
            rest = escaped;
        } else if let Some((name, behind)) = behind.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            names.push(name.to_owned());
            rest = behind;
        } else {
            rest = behind;
        }
    }
    names
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
            assert_eq!(names_in(text), names, "{text}");
        }
    }
}
