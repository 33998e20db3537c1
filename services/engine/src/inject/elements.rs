//! Merges elements of lists: finds them in the object, and creates, inserts and moves them.
//!
//! The list of an init container depends on its computed `restartPolicy`: if the policy is null or absent, the
//! container belongs in `containers`. An author's container with the same name is moved to that list. `$position`
//! determines the position in the list. Environment variables are placed after the variables that they refer to.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::decision::Reason;
use crate::expression::{EvaluationError, Meter, Value as Computed};
use crate::json::{Content, Document, Key, Kind as JsonKind, SlotId, State, Value, has_byte};
use crate::profile::Expected;
use crate::profile::template::{ConflictRule, ForEach, Kind, Node, NodeDirectives};
use crate::schema::{self, KeyedList};

use super::keys::{Keys, is_key, key_of, push_token, same_key, text_of};
use super::merge::{Element, INIT_CONTAINERS, InsertPosition, Merge, MergeError, Part, ResolvedDirectives};
use super::notes::move_of;

/// The number of bytes charged to the budget for one item.
pub(super) const ITEM_COST: usize = 256;

const CONTAINERS: &str = "containers";

const RESTART_POLICY: &str = "restartPolicy";

/// The initial capacity for environment variables.
const ENTRIES: usize = 32;

/// The list into which a container of the template's `initContainers` is merged.
#[derive(Clone, Copy)]
enum ContainerList<'a> {
    /// The list that contains the element in the template. Also used for elements of other lists.
    AsWritten,
    /// `initContainers`, with the computed `restartPolicy`.
    Init(Value<'a>),
    /// `containers`, because the computed `restartPolicy` is null or absent.
    Main,
}

impl<'a> Merge<'_, 'a> {
    /// Finds the element of a list with the given keys. If there are several, returns the last, because Kubernetes uses
    /// the last of two variables with the same name.
    pub(super) fn find(
        &mut self,
        list: SlotId,
        keys: &Keys<'a>,
        keyed: &KeyedList,
    ) -> Result<Option<SlotId>, MergeError> {
        let Some((first, others)) = keyed.keys.split_first() else { return Ok(None) };
        let wanted = keys.text(0);
        let elements = self.index.of(self.document, list, first);
        let looks = elements.len();
        let is_wanted = |found: Option<Value<'_>>, wanted: Option<&str>, key: &str| match found {
            Some(found) => wanted.is_some_and(|wanted| is_key(found, wanted)),
            None => key_of(None, key, keyed).as_deref() == wanted,
        };
        let has_others = |element: SlotId| {
            others
                .iter()
                .enumerate()
                .all(|(place, key)| is_wanted(self.document.value_of(element, key), keys.text(place + 1), key))
        };
        let mut behind_first = elements.iter().rev();
        let found = behind_first.find(|(element, key)| is_wanted(*key, wanted, first) && has_others(*element));
        let found = found.map(|(element, _)| *element);
        self.charge_looks(looks)?;
        Ok(found)
    }

    /// Calls `sink` with each element to merge from a template's list. Expands groups and `$forEach`, and leaves out
    /// elements that `$when` excludes. Skips elements that change or remove existing ones. `group` is the group that
    /// contains the nodes.
    pub(super) fn expand(
        &mut self,
        nodes: &'a [Node],
        group: Option<&'a Node>,
        type_: &'static schema::Type,
        sink: &mut dyn FnMut(&mut Self, Element<'a>) -> Result<(), MergeError>,
    ) -> Result<(), MergeError> {
        for node in nodes {
            let directives = node.directives.as_deref();
            if directives.is_some_and(NodeDirectives::targets_existing_elements) {
                continue;
            }
            let Some(ForEach::Items(list)) = directives.and_then(|directives| directives.for_each.as_ref()) else {
                self.expand_one(node, group, type_, sink)?;
                continue;
            };
            let known = self.bindings.bound_count();
            let list = self.evaluate(list)?;
            if list.is_absent() {
                continue;
            }
            let pairs = pairs(&list, &mut self.meter).map_err(|error| self.failed(&error))?;
            let items = pairs.ok_or_else(|| {
                self.failed(&EvaluationError::new("$forEach needs a list or a map, and this value is neither"))
            })?;
            for (index, (key, item)) in items.into_iter().enumerate() {
                self.charge(ITEM_COST)?;
                self.bindings.bind("index", Computed::Int(i64::try_from(index).unwrap_or(i64::MAX)));
                self.bindings.bind("key", key);
                self.bindings.bind("item", item);
                let result = self.expand_one(node, group, type_, sink);
                self.bindings.unbind_to(known);
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
        sink: &mut dyn FnMut(&mut Self, Element<'a>) -> Result<(), MergeError>,
    ) -> Result<(), MergeError> {
        let directives = node.directives.as_deref();
        if !node.uses_existing && !self.is_wanted(node)? {
            return Ok(());
        }
        let pending = node.uses_existing.then_some(node);
        match &node.kind {
            // A list within a list is a group: its elements are spliced into the outer list.
            Kind::List(nodes) => return self.expand(nodes, directives.map(|_| node).or(group), type_, sink),
            Kind::Map(_) => return sink(self, Element { part: Part::Node(node), directives, group, node: pending }),
            Kind::Plain(_) | Kind::Text(..) | Kind::Changed(_) => {}
        }
        let known = self.bindings.bound_count();
        self.bind_existing_to_none(node);
        let part = self.resolve(node, type_)?;
        self.bindings.unbind_to(known);
        match part {
            Some(Part::Plain(value)) if value.kind() == JsonKind::Array => value
                .items()
                .try_for_each(|item| sink(self, Element { part: Part::Plain(item), directives, group, node: pending })),
            Some(part) => sink(self, Element { part, directives, group, node: pending }),
            None => Ok(()),
        }
    }

    /// Merges a template's list into a list with keyed elements.
    pub(super) fn list(
        &mut self,
        parent: SlotId,
        list: SlotId,
        part: Part<'a>,
        keyed: &'static KeyedList,
    ) -> Result<(), MergeError> {
        self.document.open(list)?;
        let (env, end) = (self.env.len(), self.document.end());
        match part {
            Part::Plain(value) => value.items().try_for_each(|item| {
                let element = Element { part: Part::Plain(item), directives: None, group: None, node: None };
                self.element(parent, list, element, keyed)
            })?,
            Part::Node(Node { kind: Kind::List(nodes), .. }) => {
                self.change_elements(list, nodes, keyed.element, keyed)?;
                let type_ = keyed.element;
                self.expand(nodes, None, type_, &mut |merge, element| merge.element(parent, list, element, keyed))?;
            }
            Part::Node(_) => {}
        }
        if self.env.len() > env {
            self.order_env(list, keyed, env, end)?;
            self.env.truncate(env);
        }
        Ok(())
    }

    /// Moves the new and joined environment variables in `self.env[from..]` after the variables that they refer to.
    /// Slots from `end` on were created while this list was merged.
    fn order_env(
        &mut self,
        list: SlotId,
        keyed: &'static KeyedList,
        from: usize,
        end: SlotId,
    ) -> Result<(), MergeError> {
        // Variables that were added earlier in this pass may refer to new ones.
        let children = self.document.children(list);
        let earlier: Vec<_> = children.filter(|child| *child < end && self.is_own(*child)).collect();
        if !earlier.is_empty() {
            let mut remembered = self.env.get(from..).unwrap_or_default().to_vec();
            remembered.sort_unstable();
            self.env.extend(earlier.into_iter().filter(|child| remembered.binary_search(child).is_err()));
        }
        // Charge each call, because each call may read the variables that all earlier calls added.
        let entries = self.env.get(from..).unwrap_or_default().iter();
        let texts = entries.filter_map(|entry| self.document.raw_of(*entry, "value"));
        let read = texts.map(str::len).sum();
        self.charge(read)?;
        let is_noted = !self.mode.within_added && !self.is_in_earlier_addition();
        let (record, pointer, earlier) = (&mut *self.record, self.pointer.as_str(), self.earlier.added.as_slice());
        let note = |document: &_, own: &[SlotId], item| {
            if is_noted && record.has_room_for_moves() {
                let is_own = |slot| own.binary_search(&slot).is_ok();
                record.moves(&move_of(document, list, item, pointer, keyed, earlier, is_own));
            }
        };
        let entries = self.env.get(from..).unwrap_or_default();
        order_env_by_refs(self.document, list, entries, &mut self.added_slots, note);
        Ok(())
    }

    /// Whether this profile added an element in this pass.
    pub(super) fn is_own(&self, element: SlotId) -> bool {
        self.added_slots.binary_search(&element).is_ok()
    }

    fn element(
        &mut self,
        parent: SlotId,
        list: SlotId,
        element: Element<'a>,
        keyed: &'static KeyedList,
    ) -> Result<(), MergeError> {
        let length = self.pointer.len();
        let (known, around) = (self.bindings.bound_count(), self.mode);
        let field = length.saturating_sub(INIT_CONTAINERS.len());
        let is_among_init = !keyed.siblings.is_empty() && self.is_at_init_containers(field);
        let result = self.place(parent, list, element, keyed, length);
        self.pointer.truncate(length);
        if is_among_init && !self.is_at_init_containers(field) {
            // The container moved to the other list. Reset the pointer, because the next element is an init container
            // again.
            self.pointer.truncate(field);
            self.pointer.push_str(INIT_CONTAINERS);
        }
        self.bindings.unbind_to(known);
        self.mode = around;
        result
    }

    fn place(
        &mut self,
        parent: SlotId,
        list: SlotId,
        element: Element<'a>,
        keyed: &'static KeyedList,
        list_pointer: usize,
    ) -> Result<(), MergeError> {
        let keys = self.keys_of(element.part, keyed)?;
        keys.push(&mut self.pointer);
        let container_list = self.container_list(element)?;
        let (list, list_pointer) = self.list_of(parent, list, container_list, list_pointer)?;
        let existing = self.find(list, &keys, keyed)?;
        for node in element.pending_conditions() {
            match existing {
                Some(_) => self.bind_existing(node, existing)?,
                // If `$prune` removed the element in an earlier pass, the record contains its original. The condition
                // did not read that original in the first pass, so it must not read it in this one.
                None => self.bind_existing_to_none(node),
            }
            if !self.is_wanted(node)? {
                return Ok(());
            }
        }
        let ResolvedDirectives { conflict: written, join } = self.element_directives(element)?;
        let rule = written.unwrap_or(if keyed.names { ConflictRule::Fail } else { self.mode.conflict });
        let is_here = existing.is_some();
        let existing = match existing {
            Some(existing) => Some(existing),
            None => self.find_elsewhere(parent, list, &keys, keyed, rule, element)?,
        };
        let Some(existing) = existing else {
            if self.mode.settled && join.is_none() {
                return Ok(());
            }
            return self.add_element(list, element, &keys, keyed, list_pointer, container_list);
        };
        let edits = self.edits;
        self.note_in_front(list, element, keyed);
        match rule {
            _ if self.is_earlier_addition() && rule != ConflictRule::Replace && join.is_none() => {
                if element.part.changes_earlier_additions() {
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
                self.mode.conflict = rule;
                self.mode.settled &= rule != ConflictRule::Replace;
                let is_overlay =
                    keyed.names && rule == ConflictRule::Merge && !self.mode.within_added && self.is_author_written();
                self.mode.overlay |= is_overlay;
                self.object(existing, element.part, keyed.element, Some(&keys))?;
                if let ContainerList::Init(policy) = container_list {
                    self.add_restart_policy(existing, policy)?;
                }
                if is_overlay && is_here {
                    self.put_in_place(list, existing, element, keyed, list_pointer)?;
                }
                if self.edits > edits {
                    self.remember_env(existing, keyed);
                }
            }
            ConflictRule::Keep => {}
            ConflictRule::Fail => {
                let is_equal = match element.part {
                    Part::Plain(value) => self.is_equal(existing, value)?,
                    Part::Node(_) => false,
                };
                if !is_equal {
                    return Err(self.conflict_here(Reason::NameTaken));
                }
                self.confirm();
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
        container_list: ContainerList<'a>,
    ) -> Result<(), MergeError> {
        let content = match element.part {
            Part::Plain(value) => Content::Value(value),
            Part::Node(_) => Content::Map,
        };
        self.charge_content(content)?;
        let slot = self.insert(list, element, content, keyed, list_pointer)?;
        self.note_element(list, slot, keys, keyed);
        if matches!(content, Content::Map) {
            let around = self.enter_added();
            self.mode.conflict = ConflictRule::Merge;
            let result = self.object(slot, element.part, keyed.element, Some(keys));
            self.mode = around;
            result?;
        }
        if let ContainerList::Init(policy) = container_list {
            let around = self.enter_added();
            let result = self.add_restart_policy(slot, policy);
            self.mode = around;
            result?;
        }
        let join =
            element.directives.and_then(|directives| directives.join.as_ref()).filter(|join| join.prepend.is_some());
        if join.is_some()
            && let Some(value) = self.document.member(slot, "value")?
        {
            self.join_front(value, join)?;
        }
        self.note_added();
        self.remember_env(slot, keyed);
        Ok(())
    }

    /// Records an inserted element for later steps of this pass.
    pub(super) fn note_element(&mut self, list: SlotId, slot: SlotId, keys: &Keys<'a>, keyed: &'static KeyedList) {
        self.index.added(self.document, list, slot, keys);
        self.added_slots.push(slot);
        if self.collects_containers && !keyed.siblings.is_empty() {
            self.containers.push(self.pointer.as_str().into());
        }
    }

    /// Records a new or joined environment variable, which must be placed after the variables that it refers to.
    /// Ignores elements of other lists.
    pub(super) fn remember_env(&mut self, slot: SlotId, keyed: &'static KeyedList) {
        if schema::is_env(keyed) {
            self.env.push(slot);
        }
    }

    /// Returns the directives of an element. If it sets no conflict rule, the rule of its group applies.
    fn element_directives(&mut self, element: Element<'a>) -> Result<ResolvedDirectives<'a>, MergeError> {
        let own = match element.directives {
            Some(directives) => self.directives_of(directives)?,
            None => ResolvedDirectives::default(),
        };
        match element.of_group() {
            Some(group) if own.conflict.is_none() => {
                Ok(ResolvedDirectives { conflict: self.directives_of(group)?.conflict, ..own })
            }
            _ => Ok(own),
        }
    }

    /// Returns the keys of an element. Fails if a key without a default is absent or not a scalar.
    pub(super) fn keys_of(&mut self, part: Part<'a>, keyed: &'static KeyedList) -> Result<Keys<'a>, MergeError> {
        let mut values = [None; 2];
        for (value, field) in values.iter_mut().zip(keyed.keys) {
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
            let has_default = || keyed.defaults.iter().any(|(key, _)| key == field);
            if value.is_none_or(|value| !value.is_scalar()) && !has_default() {
                return Err(self.failed(&EvaluationError::new(format!("an element of this list has no {field}"))));
            }
        }
        Ok(Keys::new(keyed, values))
    }

    /// Inserts a new element at its position.
    pub(super) fn insert(
        &mut self,
        list: SlotId,
        element: Element<'a>,
        content: Content<'a>,
        keyed: &'static KeyedList,
        list_pointer: usize,
    ) -> Result<SlotId, MergeError> {
        let position = self.insert_position(element.position())?;
        self.note_in_front(list, element, keyed);
        let index = match &position {
            InsertPosition::Last => None,
            InsertPosition::First => Some(self.front(list, list_pointer, keyed)?),
            InsertPosition::Before(name) => self.index_of(list, name, keyed)?,
            InsertPosition::After(name) => match self.index_of(list, name, keyed)? {
                Some(index) => Some((index + 1).max(self.front(list, list_pointer, keyed)?)),
                None => None,
            },
        };
        Ok(match (index, &position) {
            (None, _) => self.document.push_item(list, content),
            // Insert directly before the named element, which is after the elements that were inserted there earlier.
            (Some(index), InsertPosition::Before(_)) => self.document.insert_item(list, index, content),
            (Some(index), _) => {
                let list_pointer = self.pointer.get(..list_pointer).unwrap_or_default();
                let already = self.insert_counts.next(list_pointer, &position);
                self.charge_looks(already + self.insert_counts.len())?;
                self.document.insert_item(list, index + already, content)
            }
        })
    }

    /// Returns the index of the element with the given key. A port is also found by its name.
    pub(super) fn index_of(
        &mut self,
        list: SlotId,
        key: &str,
        keyed: &'static KeyedList,
    ) -> Result<Option<usize>, MergeError> {
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

    /// Returns the list for an element, and the length of the list's pointer. If a container from the template's
    /// `initContainers` belongs in `containers`, changes the current pointer accordingly.
    fn list_of(
        &mut self,
        parent: SlotId,
        list: SlotId,
        container_list: ContainerList<'a>,
        list_pointer: usize,
    ) -> Result<(SlotId, usize), MergeError> {
        if !matches!(container_list, ContainerList::Main) {
            return Ok((list, list_pointer));
        }
        let other = match self.document.member(parent, CONTAINERS)? {
            Some(other) => other,
            None => self.document.add_member(parent, Key::new(CONTAINERS), Content::List),
        };
        self.document.open(other)?;
        let pointer = self.pointer.replacen(INIT_CONTAINERS, CONTAINERS, 1);
        let length = list_pointer + CONTAINERS.len() - INIT_CONTAINERS.len();
        self.pointer = pointer;
        Ok((other, length))
    }

    /// Whether the current pointer is that of the list of init containers. `field` is the offset of the field name in
    /// the pointer.
    pub(super) fn is_at_init_containers(&self, field: usize) -> bool {
        self.pointer.get(field..) == Some(INIT_CONTAINERS)
    }

    /// Evaluates the computed `restartPolicy` of an init container to determine its list.
    fn container_list(&mut self, element: Element<'a>) -> Result<ContainerList<'a>, MergeError> {
        let Some(policy) = element.directives.and_then(|directives| directives.restart_policy.as_ref()) else {
            return Ok(ContainerList::AsWritten);
        };
        let length = self.pointer.len();
        push_token(&mut self.pointer, RESTART_POLICY);
        let policy = self.text(policy, Expected::RESTART_POLICY)?;
        self.pointer.truncate(length);
        Ok(policy.map_or(ContainerList::Main, ContainerList::Init))
    }

    /// Adds the computed `restartPolicy`, unless the container already has one.
    fn add_restart_policy(&mut self, container: SlotId, policy: Value<'a>) -> Result<(), MergeError> {
        let existing = self.document.member(container, RESTART_POLICY)?;
        let length = self.pointer.len();
        push_token(&mut self.pointer, RESTART_POLICY);
        if existing.is_none() {
            self.document.add_member(container, Key::new(RESTART_POLICY), Content::Value(policy));
            self.note_added();
        } else {
            self.confirm();
        }
        self.pointer.truncate(length);
        Ok(())
    }

    /// Moves an overlay, which is an author's container into which the template was merged, to the position that the
    /// template sets. A later pass does not move it again, because other webhooks may have inserted elements beside it
    /// in the meantime. An overlay is not moved if another container has the same name, because the move could change
    /// which of them is the last, and the last one is used. API servers reject such a pod anyway.
    pub(super) fn put_in_place(
        &mut self,
        list: SlotId,
        container: SlotId,
        element: Element<'a>,
        keyed: &'static KeyedList,
        list_pointer: usize,
    ) -> Result<(), MergeError> {
        let Some(position) = element.position().filter(|_| !keyed.siblings.is_empty() && !self.earlier.is_there) else {
            return Ok(());
        };
        let position = self.insert_position(Some(position))?;
        let all: Vec<_> = self.document.children(list).collect();
        self.charge_looks(all.len())?;
        let Some(own) = all.iter().position(|slot| *slot == container) else { return Ok(()) };
        let name = self.document.value_of(container, "name");
        if all.iter().any(|slot| *slot != container && same_key(self.document.value_of(*slot, "name"), name)) {
            return Ok(());
        }
        // Positions are counted as if the container were not in the list.
        let without = |index: usize| index - usize::from(index > own);
        let index = match &position {
            InsertPosition::Last => None,
            InsertPosition::First => Some(0),
            InsertPosition::Before(name) => self.index_of(list, name, keyed)?.map(without),
            InsertPosition::After(name) => self.index_of(list, name, keyed)?.map(|index| without(index + 1)),
        };
        let index = match (index, &position) {
            (Some(index), InsertPosition::First | InsertPosition::After(_)) => {
                let already = self.insert_counts.next(self.pointer.get(..list_pointer).unwrap_or_default(), &position);
                Some((index + already).min(all.len() - 1))
            }
            (index, _) => index,
        };
        let index = index.unwrap_or(all.len() - 1);
        if index != own {
            self.note_move(list, container, list_pointer, keyed);
            let before = all.iter().filter(|slot| **slot != container).nth(index).copied();
            self.document.move_item(list, container, before);
            self.edits += 1;
            self.changes += 1;
        }
        Ok(())
    }

    /// Finds a container with the same name in a sibling list; container names are unique across these lists. If the
    /// template computes the `restartPolicy` and the conflict rule allows changes, moves the container to `list` and
    /// returns its new slot. Otherwise returns a conflict. `None` if no sibling list has such a container.
    fn find_elsewhere(
        &mut self,
        parent: SlotId,
        list: SlotId,
        keys: &Keys<'a>,
        keyed: &'static KeyedList,
        rule: ConflictRule,
        element: Element<'a>,
    ) -> Result<Option<SlotId>, MergeError> {
        for name in keyed.siblings {
            let Some(sibling) = self.document.member(parent, name)?.filter(|sibling| *sibling != list) else {
                continue;
            };
            self.document.open(sibling)?;
            let Some(found) = self.find(sibling, keys, keyed)? else { continue };
            let moves = element.directives.is_some_and(|directives| directives.restart_policy.is_some())
                && matches!(*name, INIT_CONTAINERS | CONTAINERS)
                && matches!(rule, ConflictRule::Merge | ConflictRule::Replace);
            if !moves {
                return Err(self.conflict_here(Reason::NameTaken));
            }
            let (target, source) =
                if *name == CONTAINERS { (INIT_CONTAINERS, CONTAINERS) } else { (CONTAINERS, INIT_CONTAINERS) };
            let current = self.current(found)?;
            let source_pointer = self.pointer.replacen(target, source, 1);
            let here = std::mem::replace(&mut self.pointer, source_pointer);
            // To undo this, the container is first appended to its original list, and then moved back to the noted
            // position.
            let list_pointer = self.pointer.rfind('/').unwrap_or(0);
            self.note_move(sibling, found, list_pointer, keyed);
            self.note_replaced(found);
            self.pointer = here;
            self.document.remove(found, sibling);
            let length = self.pointer.rfind('/').unwrap_or(0);
            let put = self.insert(list, element, Content::Value(current), keyed, length)?;
            self.moved_containers.push(put);
            self.note_added();
            return Ok(Some(put));
        }
        Ok(None)
    }
}

/// Returns key-value pairs: the sorted entries of a map, or the items of a list, each with a null key. `None` for other
/// values.
fn pairs<'v>(
    list: &Computed<'v>,
    meter: &mut Meter,
) -> Result<Option<Vec<(Computed<'v>, Computed<'v>)>>, EvaluationError> {
    if let Computed::Optional(Some(present)) = list {
        return pairs(present.value(), meter);
    }
    match list.items(meter)? {
        Some(items) => Ok(Some(items.iter().map(|item| (Computed::Null, item.clone())).collect())),
        None => list.sorted_entries(meter),
    }
}

/// Moves the variables in `entries` after the variables that they refer to. If all later variables that an author's
/// variable refers to are new and have no references, moves those before it instead. `own` contains the slots that were
/// added in this pass; a move updates it, because the element gets a new slot. `before_move` is called before a
/// variable in `entries` moves that is not in `own`.
pub(super) fn order_env_by_refs<'a>(
    document: &mut Document<'a>,
    list: SlotId,
    entries: &[SlotId],
    own: &mut Vec<SlotId>,
    mut before_move: impl FnMut(&Document<'a>, &[SlotId], SlotId),
) {
    let mut order: Vec<(SlotId, Option<Cow<'_, str>>)> = Vec::new();
    // Each variable moves at most once, so circular references do not loop forever.
    for entry in entries {
        let needed = references(document, *entry);
        if needed.is_empty() {
            continue;
        }
        if order.is_empty() {
            let name = |slot| document.value_of(slot, "name").and_then(Value::as_str);
            order.reserve(ENTRIES);
            order.extend(document.children(list).map(|slot| (slot, name(slot))));
        }
        let Some(at) = order.iter().position(|(slot, _)| slot == entry) else { continue };
        let is_needed = |name: &Option<Cow<'_, str>>| name.as_ref().is_some_and(|name| needed.contains(&**name));
        let behind = order.iter().enumerate().skip(at + 1).filter(|(_, (_, name))| is_needed(name));
        let behind: Vec<_> = behind.map(|(place, (slot, _))| (place, *slot)).collect();
        let Some((end, _)) = behind.last().copied() else { continue };
        let is_new = |slot: SlotId| document.state(slot) == State::Added;
        // New variables without references can have any position, so move those instead of the author's variable.
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

/// Records the new slot of a moved element, if `own` contains the element. Slot numbers increase, so the list remains
/// sorted.
fn moved_to(own: &mut Vec<SlotId>, before: SlotId, moved: SlotId) {
    if own.binary_search(&before).is_ok() {
        own.push(moved);
    }
}

/// Returns the names that a variable's value refers to.
fn references(document: &Document<'_>, entry: SlotId) -> HashSet<String> {
    // Most values have no reference. Searching for one byte is faster than finding a member.
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

/// Returns the names that a string refers to as `$(NAME)`. `$$(NAME)` is a literal.
fn names_in(text: &str) -> impl Iterator<Item = &str> {
    // A reference ends with a parenthesis, so no reference follows the last parenthesis.
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
    fn finds_references_as_kubernetes() {
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
