//! Changes and removes existing elements and entries: `$each` and `$prune`.

use crate::expression::{Expression, TextValue as ComputedText, Value as Computed};
use crate::json::{self, Content, Document, SlotId, State};
use crate::limits::{Excess, Limit};
use crate::profile::template::{Kind, Node};
use crate::schema::{self, KeyedList};

use super::elements::ITEM_COST;
use super::index::push_keys;
use super::pointer::push_token;
use super::settled::{Items, Settled};
use super::state::{Conflict, Merge, MergeError, OriginalValue, Part, ProfileOrigin};

/// A `$each` or `$prune` element of a template's list.
#[derive(Clone, Copy)]
struct Rule<'a> {
    node: &'a Node,
    condition: &'a Expression,
    /// Whether matching elements are removed; else they are changed.
    prunes: bool,
}

impl<'a> Rule<'a> {
    fn of(node: &'a Node) -> Option<Self> {
        let rules = node.rules.as_deref()?;
        let (condition, prunes) = match (&rules.each, &rules.prune) {
            (Some(each), _) => (each, false),
            (None, Some(prune)) => (prune, true),
            (None, None) => return None,
        };
        Some(Self { node, condition, prunes })
    }
}

/// How the record holds the changes of the elements of a list.
#[derive(Clone, Copy)]
enum How<'s, 'a> {
    /// By element.
    ByKeys(&'static KeyedList),
    /// As a whole list, with what an earlier pass left of it. The elements may have keys all the same.
    AsOne(Option<&'s Settled<'a>>, Option<&'static KeyedList>),
}

impl<'a> Merge<'_, 'a> {
    /// Changes and removes existing elements: `$each` and `$prune`.
    pub(super) fn change_elements(
        &mut self,
        list: SlotId,
        nodes: &'a [Node],
        element: &'static schema::Type,
        keyed: &'static KeyedList,
    ) -> Result<(), MergeError> {
        let mut left = None;
        for (place, node) in nodes.iter().enumerate() {
            let Some(rule) = Rule::of(node) else { continue };
            if rule.prunes || !gives_keys(node, keyed) {
                self.change_each(list, rule, element, How::ByKeys(keyed))?;
                continue;
            }
            // If the keys change, the record cannot name the element, so it holds the whole list.
            if left.is_none() {
                let all = nodes.get(place..).unwrap_or_default();
                let work = |merge: &mut Merge<'_, 'a>| merge.change_elements(Document::ROOT, all, element, keyed);
                left = Some(self.left_by_us(None, work)?);
            }
            let how = How::AsOne(left.as_ref().and_then(Option::as_ref), Some(keyed));
            let edits = self.edits;
            self.as_one(list, |merge| merge.change_each(list, rule, element, how))?;
            if self.edits > edits && matches!(self.profile_origin, ProfileOrigin::Namespace(_)) {
                return Err(MergeError::Conflict(Conflict::of(&renamed(&self.pointer))));
            }
        }
        Ok(())
    }

    fn change_each(
        &mut self,
        list: SlotId,
        rule: Rule<'a>,
        element: &'static schema::Type,
        how: How<'_, 'a>,
    ) -> Result<(), MergeError> {
        let (keyed, settled, keys) = match how {
            How::ByKeys(keyed) => (Some(keyed), None, Some(keyed)),
            How::AsOne(settled, keys) => (None, settled, keys),
        };
        let elements: Vec<_> = self.document.children(list).collect();
        // The preceding element among those that stay: removed elements are restored after it.
        let mut stays = None;
        for (index, slot) in elements.into_iter().enumerate() {
            self.charge(ITEM_COST)?;
            let previous = stays.replace(slot);
            let (known, length, around) = (self.bindings.known(), self.pointer.len(), self.mode);
            let item = self.current(slot)?;
            // Elements that an earlier pass left, and the profile's own additions, already are as they should be.
            let mut is_settled = self.is_own(slot) || self.is_left(settled, item)?;
            if let Some(keys) = keys {
                push_keys(&mut self.pointer, keys, |key| item.get(key));
                is_settled = is_settled || self.is_below_ours() || self.is_later();
            }
            if is_settled {
                self.pointer.truncate(length);
                continue;
            }
            if keyed.is_none() {
                self.pointer.truncate(length);
            }
            let item = if keyed.is_some() { self.element_before(slot, element)? } else { item };
            self.bindings.know("index", Computed::Int(i64::try_from(index).unwrap_or(i64::MAX)));
            self.know_item(item)?;
            let result = if rule.prunes {
                self.prune_element(list, slot, rule, keyed.map(|keyed| (keyed, previous)))
            } else {
                self.change_element(slot, rule, element)
            };
            self.bindings.forget(known);
            self.pointer.truncate(length);
            self.mode = around;
            result?;
            if self.document.state(slot) == State::Removed {
                stays = previous;
            }
        }
        Ok(())
    }

    /// Whether `$each` or `$prune` matches an element.
    fn means(&mut self, slot: SlotId, rule: Rule<'a>) -> Result<bool, MergeError> {
        if !self.truth(rule.condition)? {
            return Ok(false);
        }
        self.know_existing(rule.node, Some(slot))?;
        self.is_wanted(rule.node)
    }

    /// Removes an element that the rule matches. `keyed` is set if the elements have keys, with the element before this
    /// one that stays.
    fn prune_element(
        &mut self,
        list: SlotId,
        slot: SlotId,
        rule: Rule<'a>,
        keyed: Option<(&'static KeyedList, Option<SlotId>)>,
    ) -> Result<(), MergeError> {
        if self.means(slot, rule)? {
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
        if !self.means(slot, rule)? {
            return Ok(());
        }
        let directives = self.directives(rule.node)?;
        self.follow(directives);
        self.object(slot, Part::Node(rule.node), element, None)
    }

    /// Applies `$each` and `$prune` to a list without keys: the record holds the whole original. Other elements of the
    /// template are added if the list lacks them.
    pub(super) fn change_items(&mut self, list: SlotId, part: Part<'a>) -> Result<(), MergeError> {
        let Part::Node(Node { kind: Kind::List(nodes), .. }) = part else { return Ok(()) };
        let work = |merge: &mut Merge<'_, 'a>| merge.change_and_add(Document::ROOT, nodes, None);
        let left = self.left_by_us(Some(part), work)?;
        self.as_one(list, |merge| {
            merge.document.open(list)?;
            merge.change_and_add(list, nodes, left.as_ref())
        })
    }

    fn change_and_add(
        &mut self,
        list: SlotId,
        nodes: &'a [Node],
        left: Option<&Settled<'a>>,
    ) -> Result<(), MergeError> {
        for rule in nodes.iter().filter_map(Rule::of) {
            self.change_each(list, rule, &schema::ANY, How::AsOne(left, None))?;
        }
        let mut items = None;
        self.expand(nodes, None, &schema::ANY, &mut |merge, element| {
            for node in element.asks() {
                merge.know_nothing_exists(node);
                if !merge.is_wanted(node)? {
                    return Ok(());
                }
            }
            let there = match items.take() {
                Some(items) => items,
                None => merge.items_of(list)?,
            };
            merge.add_item(list, element.part, items.insert(there))
        })
    }

    /// Adds an item to a list, unless the list has it.
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

    /// Removes the entries of a map that match a condition.
    pub(super) fn prune_map(&mut self, map: SlotId, condition: &'a Expression) -> Result<(), MergeError> {
        self.document.open(map)?;
        let entries: Vec<_> = self.document.children(map).collect();
        for slot in entries {
            let Some(key) = self.document.key(slot) else { continue };
            self.charge(ITEM_COST)?;
            let (known, length) = (self.bindings.known(), self.pointer.len());
            let text = key.text();
            push_token(&mut self.pointer, &text);
            let item = match self.original() {
                OriginalValue::Was(original) => original,
                OriginalValue::Unchanged | OriginalValue::Nothing => self.current(slot)?,
            };
            let key = ComputedText::read_key(key, &mut self.meter).map_err(|error| self.failed(&error))?;
            self.bindings.know("key", Computed::String(key));
            self.know_item(item)?;
            let is_others = !self.is_below_ours() && !self.is_later();
            let result = self.truth(condition).map(|prunes| {
                if prunes && is_others {
                    self.note_replaced(slot);
                    self.document.remove(slot, map);
                }
            });
            self.bindings.forget(known);
            self.pointer.truncate(length);
            result?;
        }
        Ok(())
    }
}

impl<'a> Merge<'_, 'a> {
    fn know_item(&mut self, item: json::Value<'a>) -> Result<(), MergeError> {
        let item = Computed::read(item, &mut self.meter).map_err(|error| self.failed(&error))?;
        self.bindings.know("item", item);
        Ok(())
    }
}

/// Returns the violation of a namespaced profile that changes keys. The record could only restore the whole list, and
/// the platform's profiles would not see in a second pass what others added in between.
fn renamed(list: &str) -> Excess {
    let message = "a namespaced profile cannot change the fields by which elements of a list are told apart; leave them out of \
                   $each, or remove the element and add another one";
    Excess::new(Limit::Removal, list, message)
}

/// Whether a part sets key fields of the elements of a list.
fn gives_keys(node: &Node, keyed: &KeyedList) -> bool {
    let Kind::Map(fields) = &node.kind else { return false };
    fields.iter().any(|(field, _)| keyed.keys.contains(&&**field))
}
