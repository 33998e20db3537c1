//! The injection record: the annotation `pillion.dev/injected`.
//!
//! For each profile, the record contains the revision, the pointers of the added elements, the original of every
//! replaced value, and the moves of existing elements. Pointers identify elements of keyed lists by their keys, such as
//! `/spec/containers/logger`, because indexes change. The entry of a namespaced profile that only extends a cluster
//! profile also contains the name of the cluster profile: `extends: agent`. An entry that the admission policy of the
//! safety net wrote, and not the webhook, is marked with `by: policy`.
//!
//! Only a genuine record is trusted. In a CREATE review, the API server computes `metadata.managedFields`, which list
//! the fields that the author of the request wrote. They do not list fields that admission plugins added. If they list
//! the record's annotation, Pillion did not write the record.

use std::borrow::Cow;

use pillion_api::names::INJECTED_ANNOTATION;

use crate::json::{OwnedTape, Value};

mod write;

pub(crate) use write::RecordWriter;

/// The maximum size of the record in bytes, without its moves. All annotations of an object together are limited to 256
/// KiB.
const MAX_RECORD_BYTES: usize = 16 * 1024;

/// The maximum size of the moves in a record, in bytes. Moves that do not fit are left out without an error.
const MAX_MOVE_BYTES: usize = 4 * 1024;

/// The version of the format.
const VERSION: &str = "1";

/// The key for the name of the cluster profile, in the entry of a namespaced profile that only extends it.
const EXTENDS: &str = "extends";

/// The key that names the writer of an entry, if it is not the webhook.
pub(crate) const BY: &str = "by";

/// The value of [`BY`] in the entries of the safety net's admission policy.
pub(crate) const BY_POLICY: &str = "policy";

/// The record of an earlier pass, which is an earlier call of the webhook for the same object.
#[derive(Debug)]
pub(crate) struct Record {
    tape: OwnedTape,
}

/// The pointer of a replaced value, and its original. For a removed element, also the key of the preceding element,
/// such as `/web`. It is empty if the removed element was the first.
pub(crate) type Replacement<'r> = (Cow<'r, str>, Value<'r>, Option<Cow<'r, str>>);

/// An element that was moved within its keyed list.
#[derive(Clone, Debug)]
pub(crate) struct Move<'r> {
    pub(crate) pointer: Cow<'r, str>,
    /// The key of the preceding element before the move, such as `/web`. It is empty if the moved element was the
    /// first.
    pub(crate) behind: Cow<'r, str>,
    /// The number of elements after the preceding one that have the same key as the preceding one. An author may use a
    /// name twice.
    pub(crate) same: usize,
}

/// A change to an object.
#[derive(Clone, Debug)]
pub(crate) enum Change<'r> {
    Added(Cow<'r, str>),
    Replaced(Replacement<'r>),
    Moved(Move<'r>),
}

impl Change<'_> {
    /// Returns the pointer of the change.
    pub(crate) fn pointer(&self) -> &str {
        match self {
            Self::Added(pointer) | Self::Replaced((pointer, ..)) | Self::Moved(Move { pointer, .. }) => pointer,
        }
    }

    /// Returns the change with its pointer relative to `place`. `None` if the change is not below `place`.
    pub(crate) fn below(&self, place: &str) -> Option<Self> {
        let rest = self.pointer().strip_prefix(place).filter(|rest| rest.starts_with('/'))?;
        let pointer = Cow::Owned(rest.to_owned());
        Some(match self.clone() {
            Self::Added(_) => Self::Added(pointer),
            Self::Replaced((_, original, behind)) => Self::Replaced((pointer, original, behind)),
            Self::Moved(moved) => Self::Moved(Move { pointer, ..moved }),
        })
    }
}

/// The kind of change that a profile made at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    /// The profile added a value. If it has been removed since, there is nothing to protect.
    Added,
    /// The profile replaced or removed the value, or the object already had the profile's value. A removed value must
    /// not be added again.
    Set,
    /// The profile moved an existing element within its list.
    Moved,
    /// The profile inserted an element at the start of a list, or before another element.
    PutInFront,
}

/// The changes that one profile made in an earlier pass.
#[derive(Debug, Default)]
pub(crate) struct EarlierPass<'r> {
    /// Whether there was an earlier pass. It may have only moved elements.
    pub(crate) is_there: bool,
    pub(crate) added: Vec<Cow<'r, str>>,
    /// Replaced values and their originals.
    pub(crate) replaced: Vec<(Cow<'r, str>, Value<'r>)>,
    /// Pointers of containers that the profile moved to the other list of containers. They are also in `added`, but
    /// belong to the author.
    pub(crate) moved: Vec<String>,
    /// All changes of the profile. They can be undone in reverse order.
    pub(crate) changes: Vec<Change<'r>>,
    /// The changes of profiles that were applied after this one. They were not visible to this profile in the earlier
    /// pass, so they must not be visible now.
    pub(crate) later: Vec<Change<'r>>,
}

/// Whether the record of an object is genuine: the object has managedFields, and they do not list the record.
pub(crate) fn is_genuine(object: Value<'_>) -> bool {
    let Some(managed) = object.at(&["metadata", "managedFields"]) else { return false };
    let mut entries = managed.items().peekable();
    let names_it = |entry: Value<'_>| {
        let annotations = entry.at(&["fieldsV1", "f:metadata", "f:annotations"]);
        let mut fields = annotations.into_iter().flat_map(Value::members);
        fields.any(|(field, _)| field.text().strip_prefix("f:") == Some(INJECTED_ANNOTATION))
    };
    entries.peek().is_some() && !entries.any(names_it)
}

impl Record {
    /// Parses a record. `None` if it is too large, invalid, or of an unknown version.
    pub(crate) fn read(text: &str) -> Option<Self> {
        if text.len() > MAX_RECORD_BYTES + MAX_MOVE_BYTES {
            return None;
        }
        let tape = OwnedTape::parse(text).ok()?;
        (tape.root().get("version")?.raw() == VERSION).then_some(Self { tape })
    }

    /// Returns the applied profiles and their revisions.
    pub(crate) fn revisions(&self) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
        self.profiles().filter_map(|entry| {
            Some((entry.get("profile").and_then(Value::as_str)?, entry.get("revision").and_then(Value::as_str)?))
        })
    }

    /// Returns the pointers of the elements that profiles added.
    pub(crate) fn all_added(&self) -> impl Iterator<Item = Cow<'_, str>> {
        self.profiles().flat_map(Self::added)
    }

    /// Returns the pointers of the elements that profiles added, each with the name of its profile. Leaves out
    /// containers that a profile only moved to the other list.
    pub(crate) fn added_by_profile(&self) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
        self.profiles().flat_map(|entry| {
            let profile = entry.get("profile").and_then(Value::as_str).unwrap_or_default();
            let moved: Vec<_> = Self::moved_by(entry).collect();
            let is_new = move |pointer: &Cow<'_, str>| !moved.iter().any(|moved| **moved == **pointer);
            Self::added(entry).filter(is_new).map(move |pointer| (pointer, profile.clone()))
        })
    }

    /// Returns the pointers of the elements that were added by cluster profiles, or by namespaced profiles that only
    /// extend one.
    pub(crate) fn added_by_platform(&self) -> impl Iterator<Item = Cow<'_, str>> {
        self.profiles().filter(Self::is_of_platform).flat_map(Self::added)
    }

    /// Returns the changes of all profiles. They can be undone in reverse order. The additions of a profile come last,
    /// because an addition may take the place of a value that the profile removed.
    pub(crate) fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        self.profiles().flat_map(Self::changes_of)
    }

    /// Returns the pointers of containers that a profile moved to the other list of containers. They belong to the
    /// author, because the author wrote a part of them.
    pub(crate) fn moved(&self) -> impl Iterator<Item = String> {
        self.profiles().flat_map(Self::moved_by)
    }

    /// Returns the places that were added, replaced or moved by cluster profiles, or by namespaced profiles that only
    /// extend one.
    pub(crate) fn of_the_platform(&self) -> impl Iterator<Item = (Cow<'_, str>, ChangeKind)> {
        let places = |entry| {
            let added = Self::added(entry).map(|pointer| (pointer, ChangeKind::Added));
            let moved = Self::moves(entry).map(|(_, moved)| (moved.pointer, ChangeKind::Moved));
            added.chain(Self::replaced(entry).map(|(pointer, _)| (pointer, ChangeKind::Set))).chain(moved)
        };
        self.profiles().filter(Self::is_of_platform).flat_map(places)
    }

    /// Separates the changes of namespaced profiles from the record, except those of stand-ins: profiles that are
    /// applied instead of the cluster profile that they extend. `stands_in` returns whether a profile is a stand-in.
    /// Returns the changes, which can be undone in reverse order, and the remaining record. `None` if there are no such
    /// changes.
    pub(crate) fn split(&self, stands_in: impl Fn(&str) -> bool) -> Option<(Vec<Change<'_>>, Self)> {
        let is_platform = |entry: &Value<'_>| {
            let name = entry.get("profile").and_then(Value::as_str);
            Self::is_of_platform(entry) && name.is_some_and(|name| !name.contains('/') || stands_in(&name))
        };
        let (platform, own): (Vec<_>, Vec<_>) = self.profiles().partition(is_platform);
        let changes: Vec<_> = own.into_iter().flat_map(Self::changes_of).collect();
        let others = Self::of_entries(platform.into_iter().map(|entry| entry.raw().to_owned()))?;
        (!changes.is_empty()).then_some((changes, others))
    }

    /// Separates the entries that the safety net's admission policy wrote from those of the webhook. Returns the record
    /// of the policy, and that of the webhook if it has entries. `None` if the policy wrote no entry.
    pub(crate) fn split_policy(&self) -> Option<(Self, Option<Self>)> {
        let is_of_policy = |entry: &Value<'_>| entry.get(BY).is_some_and(|by| by.is(BY_POLICY));
        let (policy, webhook): (Vec<_>, Vec<_>) = self.profiles().partition(is_of_policy);
        if policy.is_empty() {
            return None;
        }
        let record =
            |entries: Vec<Value<'_>>| Self::of_entries(entries.into_iter().map(|entry| entry.raw().to_owned()));
        let webhook = if webhook.is_empty() { None } else { record(webhook) };
        Some((record(policy)?, webhook))
    }

    /// Assigns the entries of namespaced profiles that no longer stand in for cluster profiles to those cluster
    /// profiles. `revision` returns the revision of the cluster profile. `None` if there is no such entry.
    pub(crate) fn taken_over<'r>(&self, revision: impl Fn(&str, &str) -> Option<&'r str>) -> Option<Self> {
        let mut heirs = Vec::new();
        let entries: Vec<_> = self
            .profiles()
            .map(|entry| {
                let text = |field| entry.get(field).and_then(Value::as_str);
                let (profile, parent) = text("profile").zip(text(EXTENDS))?;
                let revision =
                    revision(&profile, &parent).filter(|_| !self.has(&parent) && !heirs.contains(&parent))?;
                let mut taken_over = format!("{{\"profile\":\"{parent}\",\"revision\":\"{revision}\"");
                for (key, value) in entry.members() {
                    let key = key.text();
                    if !["profile", "revision", EXTENDS].contains(&&*key) {
                        taken_over.extend([",\"", &key, "\":", value.raw()]);
                    }
                }
                taken_over.push('}');
                heirs.push(parent);
                Some(taken_over)
            })
            .collect();
        if heirs.is_empty() {
            return None;
        }
        let entries = entries.into_iter().zip(self.profiles());
        Self::of_entries(entries.map(|(taken_over, entry)| taken_over.unwrap_or_else(|| entry.raw().to_owned())))
    }

    fn of_entries(entries: impl Iterator<Item = String>) -> Option<Self> {
        let entries: Vec<_> = entries.collect();
        Self::read(&format!("{{\"version\":{VERSION},\"profiles\":[{}]}}", entries.join(",")))
    }

    /// Returns the pointers of the values that a profile replaced or removed.
    pub(crate) fn replaced_by(&self, profile: &str) -> impl Iterator<Item = Cow<'_, str>> {
        self.entry(profile).into_iter().flat_map(Self::replaced).map(|(pointer, _)| pointer)
    }

    /// Whether the record has an entry for a profile.
    pub(crate) fn has(&self, profile: &str) -> bool {
        self.entry(profile).is_some()
    }

    /// Whether an entry belongs to a cluster profile, or to a namespaced profile that only extends one. Names of
    /// namespaced profiles contain a slash.
    fn is_of_platform(entry: &Value<'_>) -> bool {
        let name = entry.get("profile").and_then(Value::as_str);
        name.is_some_and(|name| !name.contains('/')) || entry.get(EXTENDS).is_some()
    }

    /// Returns the changes of `profile` in an earlier pass, and those of later profiles. `is_before` returns whether
    /// another profile comes before `profile`.
    pub(crate) fn of(&self, profile: &str, is_before: impl Fn(&str) -> bool) -> EarlierPass<'_> {
        let mut earlier = EarlierPass::default();
        for entry in self.profiles() {
            let name = entry.get("profile").and_then(Value::as_str).unwrap_or_default();
            if name == profile {
                earlier.is_there = true;
                earlier.added.extend(Self::added(entry));
                earlier.replaced.extend(Self::replaced(entry));
                earlier.moved.extend(Self::moved_by(entry));
                earlier.changes.extend(Self::changes_of(entry));
            } else if !is_before(&name) {
                earlier.later.extend(Self::changes_of(entry));
            }
        }
        earlier
    }

    fn profiles(&self) -> impl Iterator<Item = Value<'_>> {
        self.tape.root().get("profiles").into_iter().flat_map(Value::items)
    }

    fn entry(&self, profile: &str) -> Option<Value<'_>> {
        self.profiles().find(|entry| entry.get("profile").is_some_and(|name| name.is(profile)))
    }

    fn added(entry: Value<'_>) -> impl Iterator<Item = Cow<'_, str>> {
        entry.get("added").into_iter().flat_map(Value::items).filter_map(Value::as_str)
    }

    fn changes_of(entry: Value<'_>) -> impl Iterator<Item = Change<'_>> {
        let (mut replaced, mut moves) = (Self::replacements(entry), Self::moves(entry).peekable());
        let mut count = 0;
        let in_turn = std::iter::from_fn(move || {
            if let Some((_, moved)) = moves.next_if(|(at, _)| *at <= count) {
                return Some(Change::Moved(moved));
            }
            count += 1;
            replaced.next().map(Change::Replaced).or_else(|| moves.next().map(|(_, moved)| Change::Moved(moved)))
        });
        in_turn.chain(Self::added(entry).map(Change::Added))
    }

    /// Returns the containers that moved to the other list. An entry contains such a container as a replaced value, but
    /// not as a removed element.
    fn moved_by(entry: Value<'_>) -> impl Iterator<Item = String> {
        Self::replacements(entry).filter(|(.., behind)| behind.is_none()).filter_map(|(pointer, ..)| {
            let (other, name) = match pointer.strip_prefix("/spec/containers/") {
                Some(name) => ("/spec/initContainers/", name),
                None => ("/spec/containers/", pointer.strip_prefix("/spec/initContainers/")?),
            };
            (!name.contains('/')).then(|| format!("{other}{name}"))
        })
    }

    fn replaced(entry: Value<'_>) -> impl Iterator<Item = (Cow<'_, str>, Value<'_>)> {
        Self::replacements(entry).map(|(pointer, original, _)| (pointer, original))
    }

    /// Returns the moves, each with the number of replacements that precede it.
    fn moves(entry: Value<'_>) -> impl Iterator<Item = (usize, Move<'_>)> {
        entry.get("order").into_iter().flat_map(Value::items).filter_map(|items| {
            let mut items = items.items();
            let (pointer, behind) = (items.next()?.as_str()?, items.next()?.as_str()?);
            let mut number = || items.next().and_then(|number| number.raw().parse().ok());
            let at = number()?;
            Some((at, Move { pointer, behind, same: number().unwrap_or(0) }))
        })
    }

    fn replacements(entry: Value<'_>) -> impl Iterator<Item = Replacement<'_>> {
        entry.get("replaced").into_iter().flat_map(Value::items).filter_map(|items| {
            let mut items = items.items();
            Some((items.next()?.as_str()?, items.next()?, items.next().and_then(Value::as_str)))
        })
    }
}
