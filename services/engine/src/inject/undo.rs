//! Undoes an injection: resolves the pointers of a record, and reverts the changes at these places.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use pillion_api::names::INJECTED_ANNOTATION;
use thiserror::Error;

use crate::json::{Content, Document, Key, Kind, Malformed, OwnedTape, SlotId, State, Value, write_escaped};
use crate::record::{Change, Move, Record};
use crate::schema::{self, Field, KeyedList, Type};

use super::keys::push_keys;
use super::pod_resources::PodResources;

/// The maximum length of a list that is searched without an index.
const FEW: usize = 16;

/// The pointer of the record in an object.
const RECORD_POINTER: &str = "/metadata/annotations/pillion.dev~1injected";

/// A place below the root of the object.
struct Place {
    parent: SlotId,
    slot: Option<SlotId>,
    field: Option<Field>,
}

/// Returns the original object: removes the additions in the record, restores the originals, and moves elements back.
/// Also removes lists and maps that become empty, because they were created for the additions. `None` if the result is
/// not valid JSON.
pub(crate) fn without_record(
    object: Value<'_>,
    record: &Record,
    type_: &'static Type,
) -> Result<Option<OwnedTape>, Malformed> {
    undo_record(object, record, type_, &mut |_| {})
}

/// Undoes the changes like [`without_record`]. Calls `missing` with the pointer of each addition and replacement that
/// cannot be undone because its place no longer exists.
pub(super) fn undo_record(
    object: Value<'_>,
    record: &Record,
    type_: &'static Type,
    missing: &mut dyn FnMut(&str),
) -> Result<Option<OwnedTape>, Malformed> {
    let changes = undoable(record.changes());
    let mut undoing = Undoing::of(object, type_);
    undoing.undo_whole(&changes, missing)?;
    undoing.remove_addition(RECORD_POINTER)?;
    let mut text = String::with_capacity(object.raw().len());
    undoing.document.write(Document::ROOT, &mut text);
    Ok(OwnedTape::parse(text).ok())
}

/// Undoes changes to an object, and returns the resulting value at a pointer, as JSON. `None` if there is no such
/// value.
pub(super) fn before<'v>(
    object: Value<'v>,
    changes: Vec<Change<'v>>,
    pointer: &str,
    type_: &'static Type,
) -> Result<Option<String>, Malformed> {
    let changes = undoable(changes);
    let mut undoing = Undoing::of(object, type_);
    undoing.undo(&changes, &mut |_| {})?;
    let Some(Place { slot: Some(slot), .. }) = undoing.locate(pointer)? else { return Ok(None) };
    let mut text = String::new();
    undoing.document.write(slot, &mut text);
    Ok(Some(text))
}

/// Undoes changes in a part of an object, and returns the part as JSON. The pointers of `changes` are relative to the
/// part, and `type_` is its schema.
pub(super) fn part_before<'v>(
    part: Value<'v>,
    changes: Vec<Change<'v>>,
    type_: &'static Type,
) -> Result<String, Malformed> {
    let changes = undoable(changes);
    let mut undoing = Undoing { depth: 1, ..Undoing::of(part, type_) };
    undoing.undo(&changes, &mut |_| {})?;
    let mut text = String::new();
    undoing.document.write(Document::ROOT, &mut text);
    Ok(text)
}

/// The changes that namespaced profiles made in an earlier pass, except those of stand-ins: namespaced profiles that
/// are applied instead of the cluster profile that they extend.
pub(crate) struct NamespaceChanges<'r> {
    changes: Vec<Undoable<'r>>,
    /// The record without these changes.
    pub(super) others: Record,
}

impl<'r> NamespaceChanges<'r> {
    /// Reads the changes from the record. `None` if it contains none. `stands_in` returns whether the profile with this
    /// name is now a stand-in for a cluster profile.
    pub(crate) fn of(record: &'r Record, stands_in: impl Fn(&str) -> bool) -> Option<Self> {
        let (changes, others) = record.split(stands_in)?;
        Some(Self { changes: undoable(changes), others })
    }

    /// Returns the object without these changes, and without those of the safety net's policy.
    pub(super) fn undone(
        &'r self,
        object: Value<'r>,
        type_: &'static Type,
        policy: Option<&'r PolicyChanges<'r>>,
    ) -> Result<Document<'r>, Malformed> {
        let mut undoing = Undoing::of(object, type_);
        if let Some(policy) = policy {
            policy.undo(&mut undoing)?;
        }
        undoing.undo_whole(&self.changes, &mut |_| {})?;
        Ok(undoing.document)
    }
}

/// The changes that the safety net's admission policy made before the API server called the webhook.
pub(crate) struct PolicyChanges<'r>(Vec<Undoable<'r>>);

impl<'r> PolicyChanges<'r> {
    /// Reads the changes from the record of the policy.
    pub(crate) fn of(record: &'r Record) -> Self {
        Self(undoable(record.changes()))
    }

    /// Returns the object without these changes and without the record.
    pub(crate) fn undone(&'r self, object: Value<'r>, type_: &'static Type) -> Result<Document<'r>, Malformed> {
        let mut undoing = Undoing::of(object, type_);
        self.undo(&mut undoing)?;
        Ok(undoing.document)
    }

    fn undo(&'r self, undoing: &mut Undoing<'r>) -> Result<(), Malformed> {
        // `undo` suffices instead of `undo_whole`: the policy never raises pod-level resources, so there are none to
        // lower.
        undoing.undo(&self.0, &mut |_| {})?;
        undoing.remove_addition(RECORD_POINTER)?;
        // The maximum size of a patch is for what profiles change in the author's object.
        undoing.document.disregard_removed();
        Ok(())
    }
}

/// A change, prepared to be undone.
enum Undoable<'v> {
    Added(Cow<'v, str>),
    Replaced(Replaced<'v>),
    Moved(Move<'v>),
}

/// A replaced value: its pointer, the last token of the pointer as an escaped key, and the original value.
struct Replaced<'v> {
    pointer: Cow<'v, str>,
    key: String,
    original: Value<'v>,
    /// For a removed element, the pointer of the preceding element, or an empty string if it was the first. `None` for
    /// other values.
    behind: Option<String>,
}

fn undoable<'v>(changes: impl IntoIterator<Item = Change<'v>>) -> Vec<Undoable<'v>> {
    let read = |change: Change<'v>| {
        let (pointer, original, behind) = match change {
            Change::Added(pointer) => return Undoable::Added(pointer),
            Change::Moved(moved) => return Undoable::Moved(moved),
            Change::Replaced(replaced) => replaced,
        };
        let around = pointer.rsplit_once('/').map_or("", |(around, _)| around);
        let behind = behind.map(|key| if key.is_empty() { String::new() } else { format!("{around}{key}") });
        let mut key = String::new();
        write_escaped(&mut key, &unescape(last_token(&pointer)));
        Undoable::Replaced(Replaced { pointer, key, original, behind })
    };
    changes.into_iter().map(read).collect()
}

/// An object whose changes are being undone.
struct Undoing<'v> {
    document: Document<'v>,
    type_: &'static Type,
    elements: Elements,
    /// The minimum depth, in pointer tokens, at which undoing an addition may also remove a list or map that became
    /// empty. It is 2 for a whole object, because `metadata` and `spec` always belong to the author, and 1 for a part.
    depth: usize,
}

/// An index of the elements of long lists by token, so that each list is read only once. Elements with the same token
/// keep their order. Removed elements remain in the index.
#[derive(Default)]
struct Elements(HashMap<SlotId, HashMap<String, Vec<SlotId>>>);

impl<'v> Undoing<'v> {
    fn of(object: Value<'v>, type_: &'static Type) -> Self {
        Self { document: Document::new(object), type_, elements: Elements::default(), depth: 2 }
    }

    /// Undoes changes to a whole object. Also lowers pod-level resources that were raised.
    fn undo_whole(&mut self, changes: &'v [Undoable<'v>], missing: &mut dyn FnMut(&str)) -> Result<(), Malformed> {
        let resources = if self.type_.is_pod() { PodResources::of(&mut self.document)? } else { None };
        self.undo(changes, missing)?;
        resources.map_or(Ok(()), |resources| resources.shrink(&mut self.document))
    }

    /// Undoes changes, from the last to the first. Calls `missing` with the pointer of each addition and replacement
    /// whose place no longer exists.
    fn undo(&mut self, changes: &'v [Undoable<'v>], missing: &mut dyn FnMut(&str)) -> Result<(), Malformed> {
        for change in changes.iter().rev() {
            match change {
                Undoable::Added(pointer) => {
                    if !self.remove_addition(pointer)? {
                        missing(pointer);
                    }
                }
                Undoable::Replaced(replaced) => {
                    if !self.restore(replaced)? {
                        missing(&replaced.pointer);
                    }
                }
                Undoable::Moved(moved) => self.move_back(moved)?,
            }
        }
        Ok(())
    }

    /// Removes an addition. Returns false if the object no longer contains it.
    fn remove_addition(&mut self, pointer: &str) -> Result<bool, Malformed> {
        let Some(Place { parent, slot: Some(slot), .. }) = self.locate(pointer)? else { return Ok(false) };
        // An added slot is unlinked instead of marked as removed, so its list's index would still contain it.
        if self.document.state(slot) == State::Added {
            self.elements.forget(parent);
        }
        self.document.remove(slot, parent);
        self.remove_empty_parent(pointer)?;
        Ok(true)
    }

    /// Restores an original value. Returns false if its parent no longer exists.
    fn restore(&mut self, replaced: &'v Replaced<'v>) -> Result<bool, Malformed> {
        let Replaced { pointer, key, original, behind } = replaced;
        let original = Content::Value(*original);
        self.create_parent(pointer)?;
        let Some(Place { parent, slot, .. }) = self.locate(pointer)? else { return Ok(false) };
        match (self.document.kind(parent), slot, behind.as_deref()) {
            // Insert a removed element even if the list has an element with the same keys, because the author wrote the
            // removed element.
            (Kind::Array, _, Some(behind)) => {
                let index = if behind.is_empty() { Some(0) } else { self.index_behind(parent, behind)? };
                let added = self.document.insert_item(parent, index.unwrap_or(usize::MAX), original);
                self.elements.put(&self.document, parent, last_token(pointer), added);
            }
            (kind, Some(slot), _) => {
                if kind == Kind::Array {
                    self.elements.forget(parent);
                }
                self.document.replace(slot, original);
            }
            (Kind::Array, None, None) => {
                let added = self.document.insert_item(parent, usize::MAX, original);
                self.elements.put(&self.document, parent, last_token(pointer), added);
            }
            (Kind::Object, None, _) => {
                self.document.add_member(parent, Key::new(key), original);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Moves an element of a list back after the element that it followed, if both exist. Moves it to the start of the
    /// list if it was the first element.
    fn move_back(&mut self, Move { pointer, behind, same }: &Move<'_>) -> Result<(), Malformed> {
        let Some((list, token)) = pointer.rsplit_once('/') else { return Ok(()) };
        let Some(Place { slot: Some(list), field: Some(Field::Keyed(keyed)), .. }) = self.locate(list)? else {
            return Ok(());
        };
        let Some(item) = self.element(list, token, keyed, 0)? else { return Ok(()) };
        let place = match behind.strip_prefix('/') {
            None => 0,
            Some(behind) => {
                let Some(behind) = self.element(list, behind, keyed, *same)? else { return Ok(()) };
                let others = self.document.children(list).filter(|child| *child != item);
                others.take_while(|child| *child != behind).count() + 1
            }
        };
        let before = self.document.children(list).filter(|child| *child != item).nth(place);
        let moved = self.document.move_item(list, item, before);
        self.elements.moved(&self.document, list, token, item, moved);
        Ok(())
    }

    /// Returns the index after an element of a list. `None` if the element no longer exists.
    fn index_behind(&mut self, list: SlotId, behind: &str) -> Result<Option<usize>, Malformed> {
        let Some(Place { parent, slot: Some(slot), .. }) = self.locate(behind)? else { return Ok(None) };
        let index = || self.document.children(list).position(|child| child == slot);
        Ok((parent == list).then(index).flatten().map(|index| index + 1))
    }

    /// Creates the missing list or map that contains a place, because the API server drops empty lists and maps.
    fn create_parent(&mut self, pointer: &str) -> Result<(), Malformed> {
        let Some((around, _)) = pointer.rsplit_once('/') else { return Ok(()) };
        if let Some(Place { parent, slot: None, field: Some(field) }) = self.locate(around)?
            && self.document.kind(parent) == Kind::Object
        {
            let content = match field {
                Field::Keyed(_) => Content::List,
                Field::Object(type_) if type_.records_by_field => Content::Map,
                Field::Object(_) => return Ok(()),
            };
            // Field names in schemas contain no characters that need an escape.
            let Some(field) = field_of(around, self.type_) else { return Ok(()) };
            self.document.add_member(parent, Key::new(field), content);
        }
        Ok(())
    }

    /// Removes the list or map that contains a place, if it is empty and was created for an addition. An empty map such
    /// as `securityContext` remains, because it belongs to the author: if a profile had created it, the record would
    /// contain it as one addition.
    fn remove_empty_parent(&mut self, pointer: &str) -> Result<(), Malformed> {
        let Some((around, _)) = pointer.rsplit_once('/') else { return Ok(()) };
        if around.matches('/').count() < self.depth {
            return Ok(());
        }
        let is_created = |field: Option<Field>| match field {
            Some(Field::Keyed(_)) => true,
            Some(Field::Object(type_)) => type_.records_by_field,
            None => false,
        };
        if let Some(Place { parent, slot: Some(slot), field }) = self.locate(around)?
            && is_created(field)
            && self.document.children(slot).next().is_none()
        {
            self.document.remove(slot, parent);
        }
        Ok(())
    }

    /// Resolves a pointer. `None` if the parent of the place does not exist.
    fn locate(&mut self, pointer: &str) -> Result<Option<Place>, Malformed> {
        let mut tokens = pointer.split('/').skip(1).peekable();
        let mut parent = Document::ROOT;
        let mut field = Some(Field::Object(self.type_));
        while let Some(token) = tokens.next() {
            let (slot, below) = match (self.document.kind(parent), field) {
                (Kind::Object, _) => {
                    let name = unescape(token);
                    let below = match field {
                        Some(Field::Object(type_)) => type_.field(&name).copied(),
                        _ => None,
                    };
                    (self.document.member(parent, &name)?, below)
                }
                (Kind::Array, Some(Field::Keyed(keyed))) => {
                    (self.element(parent, token, keyed, 0)?, Some(Field::Object(keyed.element)))
                }
                _ => return Ok(None),
            };
            match (slot, tokens.peek()) {
                (slot, None) => return Ok(Some(Place { parent, slot, field: below })),
                (Some(slot), Some(_)) => (parent, field) = (slot, below),
                (None, Some(_)) => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Finds an element of a list by its token. `same` is the number of elements with the same token that follow the
    /// wanted element. With 0, returns the last element, as the merge does.
    fn element(
        &mut self,
        list: SlotId,
        token: &str,
        keyed: &KeyedList,
        same: usize,
    ) -> Result<Option<SlotId>, Malformed> {
        self.document.open(list)?;
        if same == 0 && self.document.children(list).nth(FEW).is_none() {
            let mut name = String::new();
            let is_named = |child: &SlotId| token_of(&self.document, *child, keyed, &mut name) == Some(token);
            return Ok(self.document.children(list).filter(is_named).last());
        }
        let mut named = self.elements.of(&self.document, list, keyed, token).rev();
        Ok(named.nth(same))
    }
}

impl Elements {
    /// Returns the existing elements with a token, in the order of the list. Builds the index of the list if there is
    /// none.
    fn of(
        &mut self,
        document: &Document<'_>,
        list: SlotId,
        keyed: &KeyedList,
        token: &str,
    ) -> impl DoubleEndedIterator<Item = SlotId> {
        let by_token = self.0.entry(list).or_insert_with(|| {
            let mut by_token: HashMap<String, Vec<SlotId>> = HashMap::new();
            let mut name = String::new();
            for child in document.children(list) {
                let token = token_of(document, child, keyed, &mut name).unwrap_or_default();
                match by_token.get_mut(token) {
                    Some(named) => named.push(child),
                    None => {
                        by_token.insert(token.to_owned(), vec![child]);
                    }
                }
            }
            by_token
        });
        let named = by_token.get(token).map(Vec::as_slice).unwrap_or_default();
        named.iter().copied().filter(|slot| document.state(*slot) != State::Removed)
    }

    /// Adds an inserted element to the index. Drops the index if other elements have the same token, because their
    /// order is then unknown.
    fn put(&mut self, document: &Document<'_>, list: SlotId, token: &str, added: SlotId) {
        let Some(by_token) = self.0.get_mut(&list) else { return };
        let named = by_token.entry(token.to_owned()).or_default();
        named.retain(|slot| document.state(*slot) != State::Removed);
        if named.is_empty() {
            named.push(added);
        } else {
            self.forget(list);
        }
    }

    /// Updates the index after an element moved from the slot `before` to the slot `after`.
    fn moved(&mut self, document: &Document<'_>, list: SlotId, token: &str, before: SlotId, after: SlotId) {
        if let Some(named) = self.0.get_mut(&list).and_then(|by_token| by_token.get_mut(token)) {
            named.retain(|slot| *slot != before);
        }
        self.put(document, list, token, after);
    }

    /// Drops the index of a list, so that the list is read again.
    fn forget(&mut self, list: SlotId) {
        self.0.remove(&list);
    }
}

/// Returns the name of the field at the end of a pointer. `None` if the pointer ends at an element or an unknown field.
fn field_of(pointer: &str, type_: &'static Type) -> Option<&'static str> {
    let mut tokens = pointer.split('/').skip(1);
    let mut around = type_;
    let mut name = None;
    while let Some(token) = tokens.next() {
        let (field, below) = around.fields.iter().find(|(field, _)| *field == token)?;
        name = Some(*field);
        match below {
            Field::Object(type_) => around = type_,
            Field::Keyed(keyed) => {
                if tokens.next().is_some() {
                    name = None;
                }
                around = keyed.element;
            }
        }
    }
    name
}

/// Returns the part of `value` at a pointer, if it exists. The first `length` bytes of the pointer refer to `value`
/// itself.
pub(super) fn value_at<'v>(value: Value<'v>, pointer: &str, length: usize, type_: &'static Type) -> Option<Value<'v>> {
    let mut field = Some(Field::Object(type_));
    let mut found = value;
    let mut end = 0;
    for token in pointer.split('/').skip(1) {
        end += token.len() + 1;
        let is_below = end > length;
        if let Some(Field::Keyed(keyed)) = field {
            if is_below {
                let mut keys = String::new();
                let has_keys = |item: &Value<'v>| {
                    keys.clear();
                    push_keys(&mut keys, keyed, |key| item.get(key));
                    keys.strip_prefix('/') == Some(token)
                };
                found = found.items().filter(has_keys).last()?;
            }
            field = Some(Field::Object(keyed.element));
            continue;
        }
        let name = unescape(token);
        if is_below {
            found = found.get(&name)?;
        }
        field = match field {
            Some(Field::Object(type_)) => type_.field(&name).copied(),
            _ => None,
        };
    }
    Some(found)
}

/// Returns the token of an element, written to the buffer `name`.
fn token_of<'n>(document: &Document<'_>, element: SlotId, keyed: &KeyedList, name: &'n mut String) -> Option<&'n str> {
    name.clear();
    push_keys(name, keyed, |key| document.value_of(element, key));
    name.strip_prefix('/')
}

fn last_token(pointer: &str) -> &str {
    pointer.rsplit('/').next().unwrap_or_default()
}

fn unescape(token: &str) -> Cow<'_, str> {
    if token.contains('~') { Cow::Owned(token.replace("~1", "/").replace("~0", "~")) } else { Cow::Borrowed(token) }
}

/// The result of undoing an injection.
#[derive(Clone, Debug)]
pub struct Undone {
    /// The original object.
    pub object: Arc<OwnedTape>,
    /// The display names of the undone profiles, each with its revision.
    pub profiles: Vec<(Box<str>, Box<str>)>,
    /// Places in the record that no longer exist, so nothing was removed or restored there. Values that were changed
    /// after injection are not listed, because the record does not contain the injected values. They are removed or
    /// replaced by the original.
    pub gone: Vec<Box<str>>,
}

/// The reason why an injection cannot be undone.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UndoError {
    /// The object has no record.
    #[error("the object has no injection record: the annotation {INJECTED_ANNOTATION} is missing")]
    NoRecord,
    /// The record is invalid, or its format is unknown to this version.
    #[error("the format of the injection record {INJECTED_ANNOTATION} is unknown to this version of pillion")]
    UnknownRecord,
    /// The object cannot be parsed.
    #[error("the object cannot be parsed: {0}")]
    Malformed(Box<str>),
}

/// Undoes all changes in the record of a pod or pod template. The record is not verified, because it does not matter
/// who wrote the record of a manifest.
///
/// The result is the original object except for empty lists and maps. Those that injection created are removed, and so
/// are those that were empty before, because the record does not contain them.
///
/// # Errors
/// There is no record, or the record or the object cannot be parsed.
pub fn undo(pod: &str) -> Result<Undone, UndoError> {
    let malformed = |error: &dyn std::fmt::Display| UndoError::Malformed(error.to_string().into());
    let tape = OwnedTape::parse(pod).map_err(|error| malformed(&error))?;
    let object = tape.root();
    let annotation = object.at(&["metadata", "annotations", INJECTED_ANNOTATION]).ok_or(UndoError::NoRecord)?;
    let record = annotation.as_str().and_then(|text| Record::read(&text)).ok_or(UndoError::UnknownRecord)?;
    let mut gone = Vec::new();
    let undone = undo_record(object, &record, schema::of("", "pods"), &mut |place| {
        gone.push(Box::from(place));
    });
    let object = undone.map_err(|error| malformed(&format!("the key {:?} occurs twice", error.key)))?;
    let object = object.ok_or_else(|| malformed(&"the original object is not valid JSON"))?;
    // Parts of an addition, such as those of a moved container, are removed together with it, so they are not missing.
    let added: Vec<_> = record.all_added().collect();
    let goes_with = |place: &str| {
        let mut around = place.rmatch_indices('/').filter_map(|(at, _)| place.get(..at));
        around.any(|around| added.iter().any(|added| **added == *around))
    };
    gone.retain(|place| !goes_with(place));
    gone.sort_unstable();
    gone.dedup();
    Ok(Undone {
        object: Arc::new(object),
        profiles: record.revisions().map(|(profile, revision)| (profile.into(), revision.into())).collect(),
        gone,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn pod(record: &Json) -> Json {
        json!({
            "metadata": {"annotations": {INJECTED_ANNOTATION: record.to_string(), "kept": "x"}},
            "spec": {"containers": [{"name": "app", "image": "new"}, {"name": "proxy"}], "volumes": [{"name": "v"}]},
        })
    }

    fn record(added: &Json, replaced: &Json) -> Json {
        json!({"version": 1, "profiles": [{"profile": "p", "revision": "r1", "added": added, "replaced": replaced}]})
    }

    fn read(undone: &Undone) -> Json {
        serde_json::from_str(undone.object.root().raw()).unwrap()
    }

    #[test]
    fn undo_removes_additions_and_restores_originals() {
        let record = record(
            &json!(["/spec/containers/proxy", "/spec/volumes/v"]),
            &json!([["/spec/containers/app/image", "old"], ["/spec/hostNetwork", true]]),
        );
        let undone = undo(&pod(&record).to_string()).unwrap();
        let expected = json!({
            "metadata": {"annotations": {"kept": "x"}},
            "spec": {"containers": [{"name": "app", "image": "old"}], "hostNetwork": true},
        });
        assert_eq!(read(&undone), expected);
        assert_eq!(undone.profiles, [("p".into(), "r1".into())]);
        assert_eq!(undone.gone, Vec::<Box<str>>::new());
    }

    #[test]
    fn undo_reverts_values_changed_since_injection() {
        let record = record(&json!(["/spec/containers/proxy"]), &json!([["/spec/containers/app/image", "old"]]));
        let mut pod = pod(&record);
        pod["spec"]["containers"][0]["image"] = json!("changed");
        pod["spec"]["containers"][1]["image"] = json!("changed");
        let undone = undo(&pod.to_string()).unwrap();
        assert_eq!(read(&undone)["spec"]["containers"], json!([{"name": "app", "image": "old"}]));
        assert_eq!(undone.gone, Vec::<Box<str>>::new());
    }

    #[test]
    fn undo_lists_missing_places() {
        let record = record(
            &json!(["/spec/containers/other", "/spec/containers/proxy"]),
            &json!([["/spec/containers/gone/image", "old"]]),
        );
        let undone = undo(&pod(&record).to_string()).unwrap();
        assert_eq!(undone.gone, ["/spec/containers/gone/image".into(), "/spec/containers/other".into()]);
        assert_eq!(read(&undone)["spec"]["containers"], json!([{"name": "app", "image": "new"}]));
    }

    #[test]
    fn undo_rejects_missing_or_invalid_record() {
        assert_eq!(undo("{}").unwrap_err(), UndoError::NoRecord);
        let unknown = pod(&json!({"version": 2, "profiles": []}));
        assert_eq!(undo(&unknown.to_string()).unwrap_err(), UndoError::UnknownRecord);
        assert!(matches!(undo("{"), Err(UndoError::Malformed(_))));
    }
}
