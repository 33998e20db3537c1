//! Elements and entries that are there, changed or removed: `$each` and `$prune`.

use crate::expression::{Expression, Value as Computed};
use crate::json::{Content, SlotId};
use crate::profile::template::{Kind, Node};
use crate::schema::{self, KeyedList};

use super::elements::{ITEM_COST, push_keys};
use super::merge::{Fault, Merge, Part, push_token};

impl<'a> Merge<'_, 'a> {
    /// Changes and removes elements that are there: `$each` and `$prune`.
    pub(super) fn change_elements(
        &mut self,
        list: SlotId,
        nodes: &'a [Node],
        element: &'static schema::Type,
        keyed: Option<&'static KeyedList>,
    ) -> Result<(), Fault> {
        for node in nodes {
            let Some(rules) = node.rules.as_deref() else { continue };
            let (condition, prunes) = match (&rules.each, &rules.prune) {
                (Some(each), _) => (each, false),
                (None, Some(prune)) => (prune, true),
                (None, None) => continue,
            };
            if !prunes && keyed.is_some_and(|keyed| gives_keys(node, keyed)) {
                // By another key the record could not name an element, so it has the list as a whole.
                let node = std::slice::from_ref(node);
                self.as_one(list, |merge| merge.change_elements(list, node, element, None))?;
                continue;
            }
            let elements: Vec<_> = self.document.children(list).collect();
            for (index, slot) in elements.into_iter().enumerate() {
                self.charge(ITEM_COST)?;
                let (known, length, around) = (self.computation.known(), self.pointer.len(), self.manner);
                let item = self.current(slot)?;
                if let Some(keyed) = keyed {
                    push_keys(&mut self.pointer, keyed, |key| item.get(key));
                }
                // What the profile adds itself is as it should be.
                if self.is_own(slot) || (keyed.is_some() && (self.is_below_ours() || self.is_later())) {
                    self.pointer.truncate(length);
                    continue;
                }
                self.computation.know("index", Computed::Int(i64::try_from(index).unwrap_or(i64::MAX)));
                self.computation.know("item", Computed::from(item));
                let result = self.change_element(list, slot, node, condition, prunes, element);
                self.computation.forget(known);
                self.pointer.truncate(length);
                self.manner = around;
                result?;
            }
        }
        Ok(())
    }

    fn change_element(
        &mut self,
        list: SlotId,
        slot: SlotId,
        node: &'a Node,
        condition: &'a Expression,
        prunes: bool,
        element: &'static schema::Type,
    ) -> Result<(), Fault> {
        if !self.truth(condition)? {
            return Ok(());
        }
        self.know_existing(node, Some(slot))?;
        if !self.is_wanted(node)? {
            return Ok(());
        }
        if prunes {
            self.note_replaced(slot);
            self.document.remove(slot, list);
            return Ok(());
        }
        let directives = self.directives(node)?;
        self.follow(directives);
        self.object(slot, Part::Node(node), element, None)
    }

    /// `$each` and `$prune` on a list whose elements have no keys: what was there is remembered as a whole. Other elements
    /// beside them are added where the list lacks them.
    pub(super) fn change_items(&mut self, list: SlotId, part: Part<'a>) -> Result<(), Fault> {
        let Part::Node(Node { kind: Kind::List(nodes), .. }) = part else { return Ok(()) };
        self.as_one(list, |merge| {
            merge.document.open(list)?;
            merge.change_elements(list, nodes, &schema::ANY, None)?;
            merge.expand(nodes, None, &schema::ANY, &mut |merge, element| {
                for node in element.asks() {
                    merge.know_nothing_exists(node);
                    if !merge.is_wanted(node)? {
                        return Ok(());
                    }
                }
                merge.add_item(list, element.part)
            })
        })
    }

    fn add_item(&mut self, list: SlotId, part: Part<'a>) -> Result<(), Fault> {
        let Some(value) = self.value_of(part)? else { return Ok(()) };
        let items: Vec<_> = self.document.children(list).collect();
        self.charge_looks(items.len())?;
        for item in items {
            if self.current(item)?.means(value) {
                return Ok(());
            }
        }
        let content = Content::Value(value);
        self.charge_content(content)?;
        self.document.push_item(list, content);
        self.note_added();
        Ok(())
    }

    /// Removes the entries of a map for which a condition is true.
    pub(super) fn prune_map(&mut self, map: SlotId, condition: &'a Expression) -> Result<(), Fault> {
        self.document.open(map)?;
        let entries: Vec<_> = self.document.children(map).collect();
        for slot in entries {
            let Some(key) = self.document.key(slot) else { continue };
            self.charge(ITEM_COST)?;
            let (known, length) = (self.computation.known(), self.pointer.len());
            let text = key.text();
            push_token(&mut self.pointer, &text);
            let item = self.current(slot)?;
            self.computation.know("key", Computed::String(text.into()));
            self.computation.know("item", Computed::from(item));
            let is_others = !self.is_below_ours() && !self.is_later();
            let result = self.truth(condition).map(|prunes| {
                if prunes && is_others {
                    self.note_replaced(slot);
                    self.document.remove(slot, map);
                }
            });
            self.computation.forget(known);
            self.pointer.truncate(length);
            result?;
        }
        Ok(())
    }
}

/// Whether a part sets fields by which the elements of a list are told apart.
fn gives_keys(node: &Node, keyed: &KeyedList) -> bool {
    let Kind::Map(fields) = &node.kind else { return false };
    fields.iter().any(|(field, _)| keyed.keys.contains(&&**field))
}
