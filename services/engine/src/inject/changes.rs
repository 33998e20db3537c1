//! Changes and removes existing list elements and map entries: `$forEach: existing` and `$prune`.
//!
//! Items of lists without keys are compared by value. In this way, a pass recognizes items that the same profile kept
//! or added in an earlier pass. A pass is one call of the webhook for the object.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::expression::{Expression, Meter, TextValue as ComputedText, Value as Computed};
use crate::json::{Content, Document, Kind as JsonKind, SlotId, State, Value, write_string};
use crate::limits::{Excess, Limit};
use crate::profile::template::{Kind, Node};
use crate::schema::{self, KeyedList};

use super::elements::ITEM_COST;
use super::keys::{push_keys, push_token};
use super::merge::{Merge, MergeError, MergeMode, OriginalValue, Part, ProfileOrigin};

/// The number of bytes charged to the budget for each byte of an item that is searched for or stored.
const ITEM_BYTE_COST: usize = 4;

/// An element of a template's list that changes or removes existing elements.
#[derive(Clone, Copy)]
struct Rule<'a> {
    node: &'a Node,
    /// The condition of `$prune`, which removes elements. `None` for `$forEach: existing`, which changes elements.
    prune: Option<&'a Expression>,
}

impl<'a> Rule<'a> {
    fn of(node: &'a Node) -> Option<Self> {
        let directives = node.directives.as_deref().filter(|directives| directives.targets_existing_elements())?;
        Some(Self { node, prune: directives.prune.as_ref() })
    }
}

/// How the record stores the changes to a list's elements.
#[derive(Clone, Copy)]
enum Recording<'s, 'a> {
    /// By element: the record identifies each changed element by its keys.
    ByKeys(&'static KeyedList),
    /// As a whole list: the record contains the original list. The fields are the items after an earlier pass, and the
    /// schema of the list if its elements have keys.
    WholeList(Option<&'s Settled<'a>>, Option<&'static KeyedList>),
}

impl<'a> Merge<'_, 'a> {
    /// Changes and removes existing elements of a list with keys, according to the directives in a template's list.
    pub(super) fn change_elements(
        &mut self,
        list: SlotId,
        nodes: &'a [Node],
        element: &'static schema::Type,
        keyed: &'static KeyedList,
    ) -> Result<(), MergeError> {
        let mut settled = None;
        for (place, node) in nodes.iter().enumerate() {
            let Some(rule) = Rule::of(node) else { continue };
            if rule.prune.is_some() || !gives_keys(node, keyed) {
                self.change_matching(list, rule, element, Recording::ByKeys(keyed))?;
                continue;
            }
            // If the keys change, the record cannot identify the element by its keys, so it contains the whole list.
            if settled.is_none() {
                let all = nodes.get(place..).unwrap_or_default();
                let work = |merge: &mut Merge<'_, 'a>| merge.change_elements(Document::ROOT, all, element, keyed);
                settled = Some(self.earlier_items(None, work)?);
            }
            let recording = Recording::WholeList(settled.as_ref().and_then(Option::as_ref), Some(keyed));
            let edits = self.edits;
            self.change_whole_list(list, |merge| merge.change_matching(list, rule, element, recording))?;
            if self.edits > edits && matches!(self.profile_origin, ProfileOrigin::Namespace(_)) {
                return Err(MergeError::from(&renamed(&self.pointer)));
            }
        }
        Ok(())
    }

    fn change_matching(
        &mut self,
        list: SlotId,
        rule: Rule<'a>,
        element: &'static schema::Type,
        recording: Recording<'_, 'a>,
    ) -> Result<(), MergeError> {
        let (keyed, settled, keys) = match recording {
            Recording::ByKeys(keyed) => (Some(keyed), None, Some(keyed)),
            Recording::WholeList(settled, keys) => (None, settled, keys),
        };
        let elements: Vec<_> = self.document.children(list).collect();
        // The last element so far that is not removed. The record stores it with a removed element, because undoing
        // the removal inserts the removed element after it.
        let mut stays = None;
        for (index, slot) in elements.into_iter().enumerate() {
            self.charge(ITEM_COST)?;
            let previous = stays.replace(slot);
            let (known, length, around) = (self.bindings.bound_count(), self.pointer.len(), self.mode);
            let item = self.current(slot)?;
            // Skip elements that this profile added and, in lists with keys, those that a later profile added. If the
            // record contains the whole list, also skip the items that an earlier pass left in the list.
            let mut is_settled = self.is_own(slot) || self.is_earlier_item(settled, item)?;
            if let Some(keys) = keys {
                push_keys(&mut self.pointer, keys, |key| item.get(key));
                is_settled = is_settled || self.is_in_earlier_addition() || self.is_later_addition();
            }
            if is_settled {
                self.pointer.truncate(length);
                continue;
            }
            if keyed.is_none() {
                self.pointer.truncate(length);
            }
            let item = if keyed.is_some() { self.element_before(slot, element)? } else { item };
            self.bindings.bind("index", Computed::Int(i64::try_from(index).unwrap_or(i64::MAX)));
            self.bind_item(item)?;
            let result = if rule.prune.is_some() {
                self.prune_element(list, slot, rule, keyed.map(|keyed| (keyed, previous)))
            } else {
                self.change_element(slot, rule, element)
            };
            self.bindings.unbind_to(known);
            self.pointer.truncate(length);
            self.mode = around;
            result?;
            if self.document.state(slot) == State::Removed {
                stays = previous;
            }
        }
        Ok(())
    }

    /// Whether a rule applies to an element: the condition of its `$prune` and its `$when` both hold.
    fn rule_matches(&mut self, slot: SlotId, rule: Rule<'a>) -> Result<bool, MergeError> {
        if let Some(condition) = rule.prune
            && !self.truth(condition)?
        {
            return Ok(false);
        }
        self.bind_existing(rule.node, Some(slot))?;
        self.is_wanted(rule.node)
    }

    /// Removes an element if the rule matches it. `keyed` is set if the elements have keys. The slot in `keyed` is the
    /// last preceding element that is not removed.
    fn prune_element(
        &mut self,
        list: SlotId,
        slot: SlotId,
        rule: Rule<'a>,
        keyed: Option<(&'static KeyedList, Option<SlotId>)>,
    ) -> Result<(), MergeError> {
        if self.rule_matches(slot, rule)? {
            match keyed {
                Some((keyed, previous)) => self.note_removed(slot, previous, keyed)?,
                None => self.note_replaced(slot),
            }
            self.document.remove(slot, list);
        }
        Ok(())
    }

    fn change_element(
        &mut self,
        slot: SlotId,
        rule: Rule<'a>,
        element: &'static schema::Type,
    ) -> Result<(), MergeError> {
        if !self.rule_matches(slot, rule)? {
            return Ok(());
        }
        let directives = self.directives(rule.node)?;
        self.apply_directives(directives);
        self.object(slot, Part::Node(rule.node), element, None)
    }

    /// Changes and removes existing items of a list without keys. The record contains the whole original list. The
    /// other elements of the template's list are added if they are missing.
    pub(super) fn change_items(&mut self, list: SlotId, part: Part<'a>) -> Result<(), MergeError> {
        let Part::Node(Node { kind: Kind::List(nodes), .. }) = part else { return Ok(()) };
        let work = |merge: &mut Merge<'_, 'a>| merge.change_and_add(Document::ROOT, nodes, None);
        let settled = self.earlier_items(Some(part), work)?;
        self.change_whole_list(list, |merge| {
            merge.document.open(list)?;
            merge.change_and_add(list, nodes, settled.as_ref())
        })
    }

    fn change_and_add(
        &mut self,
        list: SlotId,
        nodes: &'a [Node],
        settled: Option<&Settled<'a>>,
    ) -> Result<(), MergeError> {
        for rule in nodes.iter().filter_map(Rule::of) {
            self.change_matching(list, rule, &schema::ANY, Recording::WholeList(settled, None))?;
        }
        let mut items = None;
        self.expand(nodes, None, &schema::ANY, &mut |merge, element| {
            for node in element.pending_conditions() {
                merge.bind_existing_to_none(node);
                if !merge.is_wanted(node)? {
                    return Ok(());
                }
            }
            let current = match items.take() {
                Some(items) => items,
                None => merge.items_of(list)?,
            };
            merge.add_item(list, element.part, items.insert(current))
        })
    }

    /// Adds an item to a list and to `items`, the set of the list's items, unless it is already in the set.
    fn add_item(&mut self, list: SlotId, part: Part<'a>, items: &mut Items<'a>) -> Result<(), MergeError> {
        let Some(value) = self.value_of(part)? else { return Ok(()) };
        self.charge_item(value)?;
        if !items.add(value) {
            self.confirm();
            return Ok(());
        }
        let content = Content::Value(value);
        self.charge_content(content)?;
        self.document.push_item(list, content);
        self.note_added();
        Ok(())
    }

    /// Removes the entries of a map that match a condition. Keeps the entries that this profile or a later one added in
    /// an earlier pass.
    pub(super) fn prune_map(&mut self, map: SlotId, condition: &'a Expression) -> Result<(), MergeError> {
        self.document.open(map)?;
        let entries: Vec<_> = self.document.children(map).collect();
        for slot in entries {
            let Some(key) = self.document.key(slot) else { continue };
            self.charge(ITEM_COST)?;
            let (known, length) = (self.bindings.bound_count(), self.pointer.len());
            let text = key.text();
            push_token(&mut self.pointer, &text);
            let item = match self.original() {
                OriginalValue::Was(original) => original,
                OriginalValue::Unchanged | OriginalValue::Nothing => self.current(slot)?,
            };
            let key = ComputedText::read_key(key, &mut self.meter).map_err(|error| self.failed(&error))?;
            self.bindings.bind("key", Computed::String(key));
            self.bind_item(item)?;
            let is_others = !self.is_in_earlier_addition() && !self.is_later_addition();
            let result = self.truth(condition).map(|prunes| {
                if prunes && is_others {
                    self.note_replaced(slot);
                    self.document.remove(slot, map);
                }
            });
            self.bindings.unbind_to(known);
            self.pointer.truncate(length);
            result?;
        }
        Ok(())
    }

    fn bind_item(&mut self, item: Value<'a>) -> Result<(), MergeError> {
        let item = Computed::read(item, &mut self.meter).map_err(|error| self.failed(&error))?;
        self.bindings.bind("item", item);
        Ok(())
    }

    /// Recomputes the items that the current list had after an earlier pass of this profile. Returns `None` if no
    /// earlier pass changed the list. Repeats `work` on the original list in the record, or evaluates `part` if the
    /// list was absent.
    pub(super) fn earlier_items(
        &mut self,
        part: Option<Part<'a>>,
        work: impl FnOnce(&mut Merge<'_, 'a>) -> Result<(), MergeError>,
    ) -> Result<Option<Settled<'a>>, MergeError> {
        // Use a separate meter. Otherwise, a profile that fits its budget in the first pass might exceed it in a second
        // one.
        std::mem::swap(&mut self.meter, &mut self.recompute_meter);
        let settled = self.find_earlier_items(part, work);
        std::mem::swap(&mut self.meter, &mut self.recompute_meter);
        settled
    }

    fn find_earlier_items(
        &mut self,
        part: Option<Part<'a>>,
        work: impl FnOnce(&mut Merge<'_, 'a>) -> Result<(), MergeError>,
    ) -> Result<Option<Settled<'a>>, MergeError> {
        let earlier_list = match self.original() {
            OriginalValue::Was(list)
                if list.kind() == JsonKind::Array
                    && (self.is_earlier_replacement() || self.is_in_earlier_addition()) =>
            {
                let mode = MergeMode { settled: false, within_added: true, ..self.mode };
                let changed = self.change_copy(list, |merge| {
                    merge.mode = mode;
                    merge.document.open(Document::ROOT)?;
                    work(merge)
                });
                Some(changed?)
            }
            OriginalValue::Nothing if self.is_earlier_addition() => match part {
                Some(part) => self.value_of(part)?,
                None => None,
            },
            OriginalValue::Nothing if self.is_in_earlier_addition() => return Ok(Some(Settled::All)),
            OriginalValue::Was(_) | OriginalValue::Nothing | OriginalValue::Unchanged => None,
        };
        let Some(earlier_list) = earlier_list else { return Ok(None) };
        let mut items = Items::default();
        for item in earlier_list.items() {
            self.charge_item(item)?;
            items.add(item);
        }
        Ok(Some(Settled::These(items)))
    }

    /// Whether an item was in the list after an earlier pass, according to `settled`.
    pub(super) fn is_earlier_item(
        &mut self,
        settled: Option<&Settled<'a>>,
        item: Value<'a>,
    ) -> Result<bool, MergeError> {
        match settled {
            None => Ok(false),
            Some(Settled::All) => Ok(true),
            Some(Settled::These(items)) => {
                self.charge_item(item)?;
                Ok(items.has(item))
            }
        }
    }

    /// Returns the set of a list's current items.
    pub(super) fn items_of(&mut self, list: SlotId) -> Result<Items<'a>, MergeError> {
        let slots: Vec<_> = self.document.children(list).collect();
        self.charge_looks(slots.len())?;
        let mut items = Items::default();
        for slot in slots {
            let item = self.current(slot)?;
            self.charge_item(item)?;
            items.add(item);
        }
        Ok(items)
    }

    /// Charges the budget for searching for an item, or for storing it.
    pub(super) fn charge_item(&mut self, item: Value<'a>) -> Result<(), MergeError> {
        self.charge(Meter::BYTES + item.raw().len().saturating_mul(ITEM_BYTE_COST))
    }
}

/// Returns the violation for a namespaced profile that changes keys. The record would contain the whole original list.
/// In a second pass, cluster profiles would read that list, and would not see elements that other webhooks added after
/// the first pass.
fn renamed(list: &str) -> Excess {
    let message = "a namespaced profile cannot change the fields that identify elements of a list; leave them out of \
                   $forEach: existing, or remove the element and add another one";
    Excess::new(Limit::Removal, list, message)
}

/// Whether a template node sets key fields of the elements of a list.
fn gives_keys(node: &Node, keyed: &KeyedList) -> bool {
    let Kind::Map(fields) = &node.kind else { return false };
    fields.iter().any(|(field, _)| keyed.keys.contains(&&**field))
}

/// A set of items, compared by value.
#[derive(Default)]
pub(super) struct Items<'a>(HashSet<Cow<'a, str>>);

/// The items of a list after an earlier pass.
pub(super) enum Settled<'a> {
    /// All items, because this profile added a value that contains the list.
    All,
    /// Only the items in this set.
    These(Items<'a>),
}

impl<'a> Items<'a> {
    pub(super) fn has(&self, item: Value<'a>) -> bool {
        self.0.contains(&normal(item))
    }

    /// Adds an item. Returns false if the set already contains it.
    pub(super) fn add(&mut self, item: Value<'a>) -> bool {
        self.0.insert(normal(item))
    }
}

/// Returns the canonical form of a value. Equal values have the same form.
fn normal(value: Value<'_>) -> Cow<'_, str> {
    match value.kind() {
        JsonKind::EscapedString | JsonKind::Object | JsonKind::Array => {
            let mut out = String::with_capacity(value.raw().len());
            write_normal(value, &mut out);
            Cow::Owned(out)
        }
        _ => Cow::Borrowed(value.raw()),
    }
}

fn write_normal(value: Value<'_>, out: &mut String) {
    match value.kind() {
        JsonKind::EscapedString => write_string(out, &value.as_str().unwrap_or_default()),
        JsonKind::Object => {
            let mut members: Vec<_> = value.members().map(|(key, value)| (key.text(), value)).collect();
            members.sort_by(|(key, _), (other, _)| key.cmp(other));
            out.push('{');
            for (key, value) in members {
                write_string(out, &key);
                out.push(':');
                write_normal(value, out);
                out.push(',');
            }
            out.push('}');
        }
        JsonKind::Array => {
            out.push('[');
            for item in value.items() {
                write_normal(item, out);
                out.push(',');
            }
            out.push(']');
        }
        _ => out.push_str(value.raw()),
    }
}

#[cfg(test)]
mod tests {
    use crate::json::OwnedTape;

    use super::*;

    #[test]
    fn equal_values_have_one_form() {
        let texts = [
            r#"{"a":1,"b":[{"x":"y","z":null}]}"#,
            r#"{ "b" : [ {"z":null,"\u0078":"\u0079"} ], "a" : 1 }"#,
            r#"{"a":1,"b":[{"x":"y"}]}"#,
            r#"{"a":1.0,"b":[{"x":"y","z":null}]}"#,
            r#""a\u007f/\"""#,
            "\"a\u{7f}\\/\\u0022\"",
            "\"a\u{7f}\"",
            r#""a\u007f""#,
            r#""1""#,
            "1",
            "[1]",
            "[[1]]",
            r#"["1"]"#,
        ];
        let tapes = texts.map(|text| OwnedTape::parse(text).unwrap());
        for left in &tapes {
            for right in &tapes {
                let (left, right) = (left.root(), right.root());
                assert_eq!(normal(left) == normal(right), left.equals(right), "{} {}", left.raw(), right.raw());
            }
        }
    }
}
