//! The elements of a template's lists: found in the object, or made and put in their places.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::expression::{EvaluationError, Value as Computed};
use crate::json::{Content, Key, Kind as JsonKind, SlotId, Value};
use crate::profile::template::{ConflictRule, Kind, Node, Rules};
use crate::report::Reason;
use crate::schema::{self, KeyedList};

use super::merge::{Directives, Fault, Merge, Part, push_escaped, push_token};
use super::render::Spot;

/// How many elements were put at each place of a list so far, by all profiles: several at one place keep their order.
#[derive(Clone, Debug, Default)]
pub(super) struct Places(HashMap<Box<str>, Vec<(Spot, usize)>>);

impl Places {
    /// How many there were, and counts one more.
    fn next(&mut self, list: &str, spot: &Spot) -> usize {
        let spots = match self.0.get_mut(list) {
            Some(spots) => spots,
            None => self.0.entry(list.into()).or_default(),
        };
        if let Some((_, count)) = spots.iter_mut().find(|(at, _)| at == spot) {
            *count += 1;
            return *count - 1;
        }
        spots.push((spot.clone(), 1));
        0
    }
}

/// An element of a template's list.
#[derive(Clone, Copy)]
pub(super) struct Element<'a> {
    pub(super) part: Part<'a>,
    /// The directives beside its fields.
    pub(super) rules: Option<&'a Rules>,
    /// The group that it stands in.
    group: Option<&'a Node>,
    /// Whether `$when` is still to be asked, because it asks what the object has.
    node: Option<&'a Node>,
}

impl<'a> Element<'a> {
    /// The parts whose `$when` is still to be asked.
    pub(super) fn asks(&self) -> impl Iterator<Item = &'a Node> + use<'a> {
        self.group.filter(|group| group.uses_existing).into_iter().chain(self.node)
    }

    /// The directives of its group.
    fn of_group(&self) -> Option<&'a Rules> {
        self.group.and_then(|group| group.rules.as_deref())
    }
}

/// The fields of an element that tell it from others.
pub(super) struct Keys<'a> {
    fields: &'static [&'static str],
    values: [Option<Value<'a>>; 2],
}

impl<'a> Keys<'a> {
    /// The value of a key field that the element has.
    pub(super) fn get(&self, field: &str) -> Option<Value<'a>> {
        self.at(self.fields.iter().position(|candidate| *candidate == field)?)
    }

    /// The value of a key field by its place among them.
    fn at(&self, place: usize) -> Option<Value<'a>> {
        self.values.get(place).copied().flatten()
    }
}

impl<'a> Merge<'_, 'a> {
    /// Goes over the elements of a template's list: groups are opened, `$forEach` is gone through, and what `$when` leaves
    /// out is left out.
    pub(super) fn expand(
        &mut self,
        nodes: &'a [Node],
        group: Option<&'a Node>,
        type_: &'static schema::Type,
        sink: &mut dyn FnMut(&mut Self, Element<'a>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        for node in nodes {
            let rules = node.rules.as_deref();
            if rules.is_some_and(|rules| rules.each.is_some() || rules.prune.is_some()) {
                continue;
            }
            let Some(for_each) = rules.and_then(|rules| rules.for_each.as_ref()) else {
                self.expand_one(node, group, type_, sink)?;
                continue;
            };
            let known = self.computation.known();
            let list = self.evaluate(&for_each.list)?;
            if list.is_absent() {
                continue;
            }
            let items = pairs(&list).ok_or_else(|| {
                self.failed(&EvaluationError::new("$forEach goes over a list or a map, and this is neither"))
            })?;
            for (index, (key, item)) in items.into_iter().enumerate() {
                self.charge(ITEM_COST)?;
                self.computation.know("index", Computed::Int(i64::try_from(index).unwrap_or(i64::MAX)));
                self.computation.know("key", key);
                self.computation.know(&for_each.item, item);
                let result = self.expand_one(node, group, type_, sink);
                self.computation.forget(known);
                result?;
            }
        }
        Ok(())
    }

    fn expand_one(
        &mut self,
        node: &'a Node,
        group: Option<&'a Node>,
        type_: &'static schema::Type,
        sink: &mut dyn FnMut(&mut Self, Element<'a>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let rules = node.rules.as_deref();
        if !node.uses_existing && !self.is_wanted(node)? {
            return Ok(());
        }
        let asked = node.uses_existing.then_some(node);
        match &node.kind {
            // A list in a list is spliced.
            Kind::List(nodes) => return self.expand(nodes, rules.map(|_| node).or(group), type_, sink),
            Kind::Map(_) => return sink(self, Element { part: Part::Node(node), rules, group, node: asked }),
            Kind::Plain(_) | Kind::Text(_) | Kind::Changed(_) => {}
        }
        let known = self.computation.known();
        self.know_nothing_exists(node);
        let part = self.resolve(node, type_)?;
        self.computation.forget(known);
        match part {
            Some(Part::Plain(value)) if value.kind() == JsonKind::Array => value
                .items()
                .try_for_each(|item| sink(self, Element { part: Part::Plain(item), rules, group, node: asked })),
            Some(part) => sink(self, Element { part, rules, group, node: asked }),
            None => Ok(()),
        }
    }

    /// Lays a template's list over one whose elements are told apart by keys.
    pub(super) fn list(
        &mut self,
        parent: SlotId,
        list: SlotId,
        part: Part<'a>,
        keyed: &'static KeyedList,
    ) -> Result<(), Fault> {
        self.document.open(list)?;
        let around = std::mem::take(&mut self.env);
        let result = match part {
            Part::Plain(value) => value.items().try_for_each(|item| {
                let element = Element { part: Part::Plain(item), rules: None, group: None, node: None };
                self.element(parent, list, element, keyed)
            }),
            Part::Node(Node { kind: Kind::List(nodes), .. }) => {
                self.change_elements(list, nodes, keyed.element, Some(keyed))?;
                let type_ = keyed.element;
                self.expand(nodes, None, type_, &mut |merge, element| merge.element(parent, list, element, keyed))
            }
            Part::Node(_) => Ok(()),
        };
        let mut entries = std::mem::replace(&mut self.env, around);
        result?;
        if entries.is_empty() {
            return Ok(());
        }
        // What a rule before this one added may refer to what is new now.
        let mut known = entries.clone();
        known.sort_unstable();
        let is_own = |child: &SlotId| self.is_own(*child) && known.binary_search(child).is_err();
        entries.extend(self.document.children(list).filter(is_own));
        for (before, moved) in super::order::behind_what_they_need(self.document, list, &entries) {
            // Slots are numbered as they are made, so this one stands behind all others.
            if self.is_own(before) {
                self.own.push(moved);
            }
        }
        Ok(())
    }

    /// Whether an element was added in this pass.
    pub(super) fn is_own(&self, element: SlotId) -> bool {
        self.own.binary_search(&element).is_ok()
    }

    fn element(
        &mut self,
        parent: SlotId,
        list: SlotId,
        element: Element<'a>,
        keyed: &'static KeyedList,
    ) -> Result<(), Fault> {
        let length = self.pointer.len();
        let (known, around) = (self.computation.known(), self.manner);
        let result = self.place(parent, list, element, keyed, length);
        self.pointer.truncate(length);
        self.computation.forget(known);
        self.manner = around;
        result
    }

    fn place(
        &mut self,
        parent: SlotId,
        list: SlotId,
        element: Element<'a>,
        keyed: &'static KeyedList,
        list_pointer: usize,
    ) -> Result<(), Fault> {
        let keys = self.keys_of(element.part, keyed)?;
        push_keys(&mut self.pointer, keyed, |key| keys.get(key));
        let (list, list_pointer) = self.list_of(parent, list, element, list_pointer)?;
        let existing = self.find(list, &keys, keyed)?;
        for node in element.asks() {
            self.know_existing(node, existing)?;
            if !self.is_wanted(node)? {
                return Ok(());
            }
        }
        let Directives { conflict: written, join } = self.element_directives(element)?;
        let rule = written.unwrap_or(if keyed.names { ConflictRule::Fail } else { self.manner.conflict });
        let existing = match existing {
            Some(existing) => Some(existing),
            None => self.find_elsewhere(parent, list, &keys, keyed, rule, element)?,
        };
        let Some(existing) = existing else {
            if self.manner.settled && join.is_none() {
                return Ok(());
            }
            return self.add_element(list, element, &keys, keyed, list_pointer);
        };
        let is_sidecar = self.sidecar(element)? == Some(true);
        let edits = self.edits;
        match rule {
            _ if self.is_ours() && rule != ConflictRule::Replace && join.is_none() => {
                if element.part.acts_again() {
                    self.settle();
                    self.object(existing, element.part, keyed.element, Some(&keys))?;
                }
            }
            _ if join.is_some() => {
                if let Some(join) = join {
                    self.join_element(list, existing, element.part, join, keyed)?;
                }
            }
            ConflictRule::Merge | ConflictRule::Replace => {
                self.manner.conflict = rule;
                self.manner.settled &= rule != ConflictRule::Replace;
                self.manner.overlay |=
                    keyed.names && rule == ConflictRule::Merge && !self.manner.within_added && self.is_authors();
                self.object(existing, element.part, keyed.element, Some(&keys))?;
                if is_sidecar {
                    self.make_sidecar(existing)?;
                }
                if self.edits > edits {
                    self.remember_env(existing, keyed);
                }
            }
            ConflictRule::Keep => {}
            ConflictRule::Fail => {
                let is_equal = matches!(element.part, Part::Plain(value) if self.is_equal(existing, value));
                if !is_equal {
                    return Err(self.fault(Reason::NameTaken));
                }
            }
        }
        Ok(())
    }

    fn add_element(
        &mut self,
        list: SlotId,
        element: Element<'a>,
        keys: &Keys<'a>,
        keyed: &'static KeyedList,
        list_pointer: usize,
    ) -> Result<(), Fault> {
        let content = match element.part {
            Part::Plain(value) => Content::Value(value),
            Part::Node(_) => Content::Map,
        };
        self.charge_content(content)?;
        let slot = self.insert(list, element, content, keyed, list_pointer)?;
        self.own.push(slot);
        if self.collects_containers && !keyed.siblings.is_empty() {
            self.containers.push(self.pointer.as_str().into());
        }
        if matches!(content, Content::Map) {
            let around = self.enter_added();
            self.manner.conflict = ConflictRule::Merge;
            let result = self.object(slot, element.part, keyed.element, Some(keys));
            self.manner = around;
            result?;
        }
        if self.sidecar(element)? == Some(true) {
            let around = self.enter_added();
            let result = self.make_sidecar(slot);
            self.manner = around;
            result?;
        }
        let join = element.rules.and_then(|rules| rules.join.as_ref()).filter(|join| join.prepend.is_some());
        if join.is_some()
            && let Some(value) = self.document.member(slot, "value")?
        {
            self.join_front(value, join)?;
        }
        self.note_added();
        self.remember_env(slot, keyed);
        Ok(())
    }

    /// Entries of an env list that are new or joined stand behind what they refer to.
    fn remember_env(&mut self, slot: SlotId, keyed: &'static KeyedList) {
        if schema::is_env(keyed) {
            self.env.push(slot);
        }
    }

    /// Joins to an element that is there. In an env entry that is about its value.
    fn join_element(
        &mut self,
        list: SlotId,
        existing: SlotId,
        part: Part<'a>,
        join: &'a crate::profile::template::Join,
        keyed: &'static KeyedList,
    ) -> Result<(), Fault> {
        if part.kind() != JsonKind::Object {
            return Ok(());
        }
        let Some(whole) = self.value_of(part)? else { return Ok(()) };
        let Some(value) = whole.get("value") else { return Ok(()) };
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
        // An entry with neither is an empty text.
        push_token(&mut self.pointer, "value");
        let slot = self.document.add_member(existing, Key::new("value"), Content::Scalar("\"\""));
        self.note_added();
        let around = self.enter_added();
        let result = self.join_text(slot, value, join);
        self.manner = around;
        self.pointer.truncate(length);
        self.remember_env(existing, keyed);
        result
    }

    /// The directives of an element: its own, else those of its group.
    fn element_directives(&mut self, element: Element<'a>) -> Result<Directives<'a>, Fault> {
        let own = match element.rules {
            Some(rules) => self.directives_of(rules)?,
            None => Directives::default(),
        };
        match element.of_group() {
            Some(group) if own.conflict.is_none() => {
                Ok(Directives { conflict: self.directives_of(group)?.conflict, ..own })
            }
            _ => Ok(own),
        }
    }

    /// The fields that tell an element from others.
    fn keys_of(&mut self, part: Part<'a>, keyed: &'static KeyedList) -> Result<Keys<'a>, Fault> {
        let mut keys = Keys { fields: keyed.keys, values: [None; 2] };
        for (value, field) in keys.values.iter_mut().zip(keyed.keys) {
            *value = match part {
                Part::Plain(whole) => whole.get(field),
                Part::Node(Node { kind: Kind::Map(fields), .. }) => {
                    match fields.iter().find(|(key, _)| **key == **field) {
                        Some((_, node)) => match self.resolve(node, &schema::ANY)? {
                            Some(part) => self.value_of(part)?,
                            None => None,
                        },
                        None => None,
                    }
                }
                Part::Node(_) => None,
            };
            let has_default = keyed.defaults.iter().any(|(key, _)| key == field);
            if value.is_none_or(|value| !value.is_scalar()) && !has_default {
                return Err(self.failed(&EvaluationError::new(format!("an element of this list has no {field}"))));
            }
        }
        Ok(keys)
    }

    /// Puts a new element where its profile says.
    pub(super) fn insert(
        &mut self,
        list: SlotId,
        element: Element<'a>,
        content: Content<'a>,
        keyed: &'static KeyedList,
        list_pointer: usize,
    ) -> Result<SlotId, Fault> {
        let position = element.rules.and_then(|rules| rules.position.as_ref());
        let position = position.or_else(|| element.of_group().and_then(|rules| rules.position.as_ref()));
        let spot = self.spot(position)?;
        let index = match &spot {
            Spot::Last => None,
            Spot::First => Some(0),
            Spot::Before(name) => self.index_of(list, name, keyed)?,
            Spot::After(name) => self.index_of(list, name, keyed)?.map(|index| index + 1),
        };
        Ok(match (index, &spot) {
            (None, _) => self.document.push_item(list, content),
            // Each goes directly before the element that is named, so behind those that went there already.
            (Some(index), Spot::Before(_)) => self.document.insert_item(list, index, content),
            (Some(index), _) => {
                let list_pointer = self.pointer.get(..list_pointer).unwrap_or_default();
                let already = self.places.next(list_pointer, &spot);
                self.charge_looks(already + self.places.0.len())?;
                self.document.insert_item(list, index + already, content)
            }
        })
    }

    /// The place of the element with a key; of ports also with a name.
    fn index_of(&mut self, list: SlotId, key: &str, keyed: &'static KeyedList) -> Result<Option<usize>, Fault> {
        let Some(first) = keyed.keys.first() else { return Ok(None) };
        let mut looks = 0;
        let mut place = |field: &str| {
            self.document.children(list).position(|child| {
                looks += 1;
                let value = self.document.value_of(child, field);
                value.is_some_and(|value| value.is(key) || value.raw() == key)
            })
        };
        let index = place(first).or_else(|| place("name"));
        self.charge_looks(looks)?;
        Ok(index)
    }

    /// The element of a list that has the same keys. The last one, as that counts where an author writes a variable twice.
    pub(super) fn find(&mut self, list: SlotId, keys: &Keys<'a>, keyed: &KeyedList) -> Result<Option<SlotId>, Fault> {
        let wanted: [Option<Cow<'_, str>>; 2] =
            std::array::from_fn(|place| keyed.keys.get(place).and_then(|key| key_of(keys.at(place), key, keyed)));
        let mut looks = 0;
        let has_keys = |candidate: &SlotId| {
            looks += 1;
            keyed.keys.iter().zip(&wanted).all(|(key, wanted)| match self.document.value_of(*candidate, key) {
                Some(found) => wanted.as_deref().is_some_and(|wanted| is_key(found, wanted)),
                None => key_of(None, key, keyed) == *wanted,
            })
        };
        let found = self.document.children(list).filter(has_keys).last();
        self.charge_looks(looks)?;
        Ok(found)
    }
}

impl Part<'_> {
    /// Whether there is something to do in it also where an earlier pass has added it.
    pub(super) fn acts_again(self) -> bool {
        matches!(self, Self::Node(node) if node.acts_again)
    }
}

/// Bytes that going over one item is charged as.
pub(super) const ITEM_COST: usize = 256;

/// The items of a list, or the entries of a map by their keys.
fn pairs<'v>(list: &Computed<'v>) -> Option<Vec<(Computed<'v>, Computed<'v>)>> {
    if let Computed::Optional(Some(list)) = list {
        return pairs(list);
    }
    if let Some(items) = list.list_items() {
        return Some(items.into_iter().map(|item| (Computed::Null, item)).collect());
    }
    list.map_entries()
}

/// The value of a key field, as text: strings by what they stand for, anything else as it stands.
fn key_of<'v>(value: Option<Value<'v>>, key: &str, keyed: &'v KeyedList) -> Option<Cow<'v, str>> {
    if let Some(value) = value {
        return Some(key_text(value));
    }
    let default = keyed.defaults.iter().find(|(field, _)| *field == key);
    default.map(|(_, text)| Cow::Borrowed(text.trim_matches('"')))
}

/// Whether the value of a key field is a text.
fn is_key(value: Value<'_>, text: &str) -> bool {
    match value.kind() {
        JsonKind::String | JsonKind::EscapedString => value.is(text),
        _ => value.raw() == text,
    }
}

fn key_text(value: Value<'_>) -> Cow<'_, str> {
    value.as_str().unwrap_or_else(|| Cow::Borrowed(value.raw()))
}

/// Writes the token of an element by the values of its key fields.
pub(super) fn push_keys<'v>(pointer: &mut String, keyed: &'v KeyedList, value: impl Fn(&str) -> Option<Value<'v>>) {
    for (index, key) in keyed.keys.iter().enumerate() {
        let value = key_of(value(key), key, keyed).unwrap_or_default();
        if index == 0 {
            push_token(pointer, &value);
        } else {
            pointer.push(',');
            push_escaped(pointer, &value);
        }
    }
}
