//! Applies the container patches of a profile, and checks the changed containers.
//!
//! A patch merges its template into each container that it selects. After each profile is applied, its new and changed
//! containers must satisfy the API server's rules that involve several fields.

use std::borrow::Cow;

use pillion_api::profile::{ContainerType, PreconditionAction};

use crate::decision::Reason;
use crate::json::{Content, Document, OwnedTape, SlotId, State, Value};
use crate::profile::parts::ContainerPatch;
use crate::profile::pod_schema::{Completeness, ruled_type, violation};
use crate::{context, schema};

use super::elements::ITEM_COST;
use super::keys::push_token;
use super::merge::{Conflict, Merge, MergeError};

/// The lists of containers in a pod to which patches apply, in the order in which the containers start.
const LISTS: [&str; 2] = ["initContainers", "containers"];

/// The initial capacity for the containers of a list.
const CONTAINERS: usize = 8;

/// The number of bytes charged to the budget for examining one container or field.
const LOOK: usize = 64;

/// The origin of a container in the pod, as the current profile sees it. Containers that the current profile added are
/// [`Injected`](Self::Injected).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ContainerOrigin {
    /// A profile injected the container, and it is visible to the current profile.
    Injected,
    /// A profile injected the container, and it is hidden from the current profile.
    Hidden,
    /// The author wrote the container, but a profile may have moved it.
    Author,
}

/// A container to which patches may apply.
struct Target<'a> {
    slot: SlotId,
    /// The list that contains the container.
    list: &'static str,
    name: Cow<'a, str>,
    kind: ContainerType,
    /// The value of the container in expressions: the original of an author's container, or the current state of an
    /// injected one.
    value: Value<'a>,
}

/// A rule that a field of a container violates.
#[derive(PartialEq, Eq)]
struct Violation {
    field: Box<str>,
    /// A description of the rule.
    rule: String,
}

impl Violation {
    fn of(field: &str, value: Value<'_>) -> Option<Self> {
        let rule = violation(ruled_type(field)?, value, Completeness::Complete)?;
        Some(Self { field: field.into(), rule })
    }
}

impl<'a> Merge<'_, 'a> {
    /// Applies the patches one after the other, each to all containers that it selects. `origin` returns the origin of
    /// the container at a JSON pointer.
    pub(super) fn patch_containers(
        &mut self,
        patches: &'a [ContainerPatch],
        author: Value<'a>,
        origin: &dyn Fn(&str) -> ContainerOrigin,
    ) -> Result<(), MergeError> {
        if patches.is_empty() {
            return Ok(());
        }
        let wants_injected = patches.iter().any(|patch| patch.types.contains(&ContainerType::Injected));
        let targets = self.targets(author, origin, wants_injected)?;
        for patch in patches {
            for target in targets.iter().filter(|target| patch.types.contains(&target.kind)) {
                self.charge(ITEM_COST)?;
                let known = self.bindings.bound_count();
                let result = self.patch_container(patch, target);
                self.bindings.unbind_to(known);
                self.pointer.clear();
                result?;
            }
        }
        Ok(())
    }

    fn targets(
        &mut self,
        author: Value<'a>,
        origin: &dyn Fn(&str) -> ContainerOrigin,
        wants_injected: bool,
    ) -> Result<Vec<Target<'a>>, MergeError> {
        let mut targets = Vec::new();
        let Some(spec) = self.document.member(Document::ROOT, "spec")? else { return Ok(targets) };
        let mut pointer = self.take_scratch();
        for list in LISTS {
            let Some(slot) = self.document.member(spec, list)? else { continue };
            self.document.open(slot)?;
            let authors_list = author.at(&["spec", list]);
            let mut containers = Vec::with_capacity(CONTAINERS);
            containers.extend(self.document.children(slot));
            // The containers usually have the same order as in the original pod, so the next original container is
            // tried first.
            let mut in_order = authors_list.into_iter().flat_map(Value::items).peekable();
            pointer.clear();
            push_token(&mut pointer, "spec");
            push_token(&mut pointer, list);
            let length = pointer.len();
            for slot in containers {
                let Some(name) = self.document.value_of(slot, "name").and_then(Value::as_str) else { continue };
                pointer.truncate(length);
                push_token(&mut pointer, &name);
                let origin = if self.bindings.adds(&name) { ContainerOrigin::Injected } else { origin(&pointer) };
                let has_name = |container: &Value<'_>| container.get("name").is_some_and(|other| other.is(&name));
                let (kind, value) = match origin {
                    ContainerOrigin::Injected if wants_injected => (ContainerType::Injected, self.current(slot)?),
                    // The container is hidden, or no patch applies to injected containers.
                    ContainerOrigin::Hidden | ContainerOrigin::Injected => continue,
                    ContainerOrigin::Author => {
                        let found = match in_order.next_if(has_name) {
                            Some(next) => Some((list, next)),
                            None => self.original_container(author, list, has_name)?,
                        };
                        match found {
                            Some(("containers", value)) => (ContainerType::App, value),
                            Some((_, value)) if context::init_kind(value) == "Sidecar" => {
                                (ContainerType::Sidecar, value)
                            }
                            Some((_, value)) => (ContainerType::Init, value),
                            None => continue,
                        }
                    }
                };
                targets.push(Target { slot, list, name, kind, value });
            }
        }
        self.scratch = pointer;
        Ok(targets)
    }

    /// Finds a container in the original object, and returns it with the list that contained it. Searches `list` first
    /// and then the other list, because a profile may have moved the container.
    fn original_container(
        &mut self,
        author: Value<'a>,
        list: &'static str,
        is_it: impl Fn(&Value<'_>) -> bool,
    ) -> Result<Option<(&'static str, Value<'a>)>, MergeError> {
        let mut looks = 0;
        let others = LISTS.into_iter().filter(|other| *other != list);
        let mut lists = std::iter::once(list).chain(others);
        let found = lists.find_map(|list| {
            let mut all = author.at(&["spec", list]).into_iter().flat_map(Value::items);
            let found = all.find(|container| {
                looks += 1;
                is_it(container)
            });
            found.map(|found| (list, found))
        });
        self.charge_looks(looks)?;
        Ok(found)
    }

    fn patch_container(&mut self, patch: &'a ContainerPatch, target: &Target<'a>) -> Result<(), MergeError> {
        let image = target.value.get("image").and_then(Value::as_str).unwrap_or_default();
        if !patch.names_match(&target.name, &image) {
            return Ok(());
        }
        push_token(&mut self.pointer, "spec");
        push_token(&mut self.pointer, target.list);
        push_token(&mut self.pointer, &target.name);
        let kind = match target.kind {
            ContainerType::App => "App",
            ContainerType::Init => "Init",
            ContainerType::Sidecar => "Sidecar",
            ContainerType::Injected => "Injected",
        };
        let container = context::container(target.value, kind, &mut self.meter).map_err(|error| self.failed(&error))?;
        self.bindings.bind("container", container);
        let match_conditions = patch.match_conditions.iter().map(|condition| &condition.expression);
        for condition in patch.where_.iter().chain(match_conditions) {
            if !self.truth(condition)? {
                return Ok(());
            }
        }
        for precondition in &patch.preconditions {
            if self.truth(&precondition.expression)? {
                continue;
            }
            let message = precondition.failure_message(self.bindings, &mut self.meter);
            let place = format!("{}: container patch {}: {message}", self.pointer, patch.name);
            match precondition.action {
                PreconditionAction::Warn => self.notes.push(place.into()),
                PreconditionAction::Skip => {
                    self.notes.push(place.into());
                    return Ok(());
                }
                PreconditionAction::Deny => {
                    return Err(MergeError::Denied(Conflict::new(Reason::Precondition, &place)));
                }
            }
        }
        let known = self.bindings.bound_count();
        self.bind_existing(&patch.template, Some(target.slot))?;
        let part =
            if self.is_wanted(&patch.template)? { self.resolve(&patch.template, &schema::CONTAINER)? } else { None };
        let directives = self.directives(&patch.template)?;
        self.bindings.unbind_to(known);
        let around = self.mode;
        self.apply_directives(directives);
        let result = match part {
            Some(part) => self.object(target.slot, part, &schema::CONTAINER, None),
            None => Ok(()),
        };
        self.mode = around;
        result
    }

    /// Checks the containers that profiles added or changed. Ignores violations that the original pod already has.
    ///
    /// # Errors
    /// A container violates a rule, or the profile exceeds its budget.
    pub(super) fn check_containers(&mut self, original: Value<'_>) -> Result<(), MergeError> {
        let Some(spec) = self.document.member(Document::ROOT, "spec")? else { return Ok(()) };
        for list in ["containers", "initContainers"] {
            let Some(containers) = self.document.member(spec, list)? else { continue };
            let mut next = self.document.first(containers);
            while let Some(container) = next {
                next = self.document.next(container);
                if !self.is_changed(container) {
                    continue;
                }
                for violation in self.violations_in(container)? {
                    let name = self.document.raw_of(container, "name").unwrap_or_default().to_owned();
                    if !self.is_violated_before(original, &name, &violation)? {
                        let Violation { field, rule } = violation;
                        let place = format!("/spec/{list}/{}/{field}: {rule}", name.trim_matches('"'));
                        return Err(MergeError::conflict(Reason::InvalidResult, &place));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a slot exists and may differ from the original object.
    fn is_changed(&self, slot: SlotId) -> bool {
        match self.document.state(slot) {
            State::Removed => false,
            State::Original => !matches!(self.document.content(slot), Content::Value(_)),
            State::Replaced | State::Added => true,
        }
    }

    /// Returns the rules that the fields of a changed container violate. Unchanged fields are not checked.
    fn violations_in(&mut self, container: SlotId) -> Result<Vec<Violation>, MergeError> {
        let mut violations = Vec::new();
        if let Content::Value(container) = self.document.content(container) {
            self.charge(LOOK)?;
            for (field, value) in container.members().filter(|(_, value)| !value.is_null()) {
                violations.extend(Violation::of(&field.text(), value));
            }
            return Ok(violations);
        }
        let is_added = self.document.state(container) != State::Original;
        let mut next = self.document.first(container);
        while let Some(slot) = next {
            next = self.document.next(slot);
            let Some(field) = self.document.key(slot) else { continue };
            let is_present = self.document.state(slot) != State::Removed;
            if !(is_present && (is_added || self.is_changed(slot))) || ruled_type(&field.text()).is_none() {
                continue;
            }
            self.charge(LOOK)?;
            match self.document.content(slot) {
                Content::Value(value) if !value.is_null() => violations.extend(Violation::of(&field.text(), value)),
                Content::Map => {
                    let mut text = String::new();
                    self.document.write(slot, &mut text);
                    self.charge(2 * text.len())?;
                    if let Ok(tape) = OwnedTape::parse(text) {
                        violations.extend(Violation::of(&field.text(), tape.root()));
                    }
                }
                Content::Value(_) | Content::Scalar(_) | Content::Made(_) | Content::List => {}
            }
        }
        Ok(violations)
    }

    /// Whether the container with this name in the original pod already violates the same rule. Searches both lists,
    /// because a profile may have moved the container.
    fn is_violated_before(
        &mut self,
        original: Value<'_>,
        name: &str,
        violation: &Violation,
    ) -> Result<bool, MergeError> {
        for list in ["containers", "initContainers"] {
            for container in original.at(&["spec", list]).into_iter().flat_map(Value::items) {
                self.charge(LOOK)?;
                if container.get("name").is_some_and(|own| own.raw() == name)
                    && let Some(value) = container.get(&violation.field)
                    && Violation::of(&violation.field, value).as_ref() == Some(violation)
                {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
