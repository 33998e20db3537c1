//! Applies the container rules of a profile: finds the containers that each rule matches, and merges its template into
//! them.

use std::borrow::Cow;

use pillion_api::profile::{ContainerType, Otherwise};

use crate::context;
use crate::decision::Reason;
use crate::json::{Document, SlotId, Value};
use crate::profile::rules::ContainerRule;
use crate::schema;

use super::elements::ITEM_COST;
use super::pointer::push_token;
use super::state::{Conflict, Merge, MergeError};

/// The lists of a pod's containers to which rules apply, in the order in which containers start.
const LISTS: [&str; 2] = ["initContainers", "containers"];

/// The initial capacity for the containers of a list.
const CONTAINERS: usize = 8;

/// The origin of a container that the profile itself does not add, as the profile sees it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ContainerOrigin {
    /// A profile injected it, and this profile sees it.
    Injected,
    /// A profile injected it, and this profile must not see it.
    Hidden,
    /// The author wrote it. It may have been moved.
    Author,
}

/// A container to which rules may apply.
struct Target<'a> {
    slot: SlotId,
    /// The list that holds it.
    list: &'static str,
    name: Cow<'a, str>,
    kind: ContainerType,
    /// The container as expressions see it: an author's as it was before any profile, an injected one as it is now.
    value: Value<'a>,
}

impl<'a> Merge<'_, 'a> {
    /// Applies the rules in their order, each to all containers in theirs. `origin` returns the origin of the container
    /// at a pointer.
    pub(super) fn rules(
        &mut self,
        rules: &'a [ContainerRule],
        author: Value<'a>,
        origin: &dyn Fn(&str) -> ContainerOrigin,
    ) -> Result<(), MergeError> {
        if rules.is_empty() {
            return Ok(());
        }
        let wants_injected = rules.iter().any(|rule| rule.types.contains(&ContainerType::Injected));
        let targets = self.targets(author, origin, wants_injected)?;
        for rule in rules {
            for target in targets.iter().filter(|target| rule.types.contains(&target.kind)) {
                self.charge(ITEM_COST)?;
                let known = self.bindings.known();
                let result = self.rule(rule, target);
                self.bindings.forget(known);
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
            // In most cases both are in the same order.
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
                    // It is another profile's and hidden, or no rule applies to it.
                    ContainerOrigin::Hidden | ContainerOrigin::Injected => continue,
                    ContainerOrigin::Author => {
                        let found = match in_order.next_if(has_name) {
                            Some(next) => Some((list, next)),
                            None => self.authors_container(author, list, has_name)?,
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

    /// A container of the original object, with its original list. A container that was moved stands in the other list.
    fn authors_container(
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

    fn rule(&mut self, rule: &'a ContainerRule, target: &Target<'a>) -> Result<(), MergeError> {
        let image = target.value.get("image").and_then(Value::as_str).unwrap_or_default();
        if !rule.names_match(&target.name, &image) {
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
        self.bindings.know("container", container);
        if let Some(condition) = &rule.condition
            && !self.truth(condition)?
        {
            return Ok(());
        }
        for condition in &rule.conditions {
            if self.truth(&condition.expression)? {
                continue;
            }
            let message = condition.told(self.bindings, &mut self.meter);
            let place = format!("{}: rule {}: {message}", self.pointer, rule.name);
            match condition.otherwise {
                Otherwise::NotMatched => {}
                Otherwise::Skip => self.notes.push(place.into()),
                Otherwise::Deny => return Err(MergeError::Denied(Conflict::new(Reason::MatchCondition, &place))),
            }
            return Ok(());
        }
        let known = self.bindings.known();
        self.know_existing(&rule.template, Some(target.slot))?;
        let part =
            if self.is_wanted(&rule.template)? { self.resolve(&rule.template, &schema::CONTAINER)? } else { None };
        let directives = self.directives(&rule.template)?;
        self.bindings.forget(known);
        let around = self.mode;
        self.follow(directives);
        let result = match part {
            Some(part) => self.object(target.slot, part, &schema::CONTAINER, None),
            None => Ok(()),
        };
        self.mode = around;
        result
    }
}
