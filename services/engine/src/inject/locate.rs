//! Finds the place that a record's pointer names, and undoes what a record says.

use std::borrow::Cow;

use crate::json::{Content, Document, Key, Kind, Malformed, OwnedTape, SlotId, Value, write_escaped};
use crate::schema::{Field, KeyedList, Type};

use super::elements::push_keys;
use super::record::Record;

/// What is known of a place.
#[derive(Clone, Copy)]
enum Known {
    Object(&'static Type),
    Keyed(&'static KeyedList),
}

/// A place below the whole object.
struct Place {
    parent: SlotId,
    slot: Option<SlotId>,
    known: Option<Known>,
}

/// The object as its author wrote it: without what the record says was added, and with what was there put back. Lists and
/// maps that have nothing left are taken away too, as they were made for what was added.
pub(crate) fn without_record(
    object: Value<'_>,
    record: &Record,
    type_: &'static Type,
) -> Result<Option<OwnedTape>, Malformed> {
    let replaced = originals(record.all_replaced());
    let mut document = Document::new(object);
    undo(&mut document, &replaced, record.all_added(), type_)?;
    let annotation = "/metadata/annotations/pillion.dev~1injected";
    if let Some(Place { parent, slot: Some(slot), .. }) = locate(&mut document, annotation, type_)? {
        document.remove(slot, parent);
        remove_if_empty(&mut document, annotation, type_)?;
    }
    let mut text = Vec::with_capacity(object.raw().len());
    document.write(Document::ROOT, &mut text);
    Ok(String::from_utf8(text).ok().and_then(|text| OwnedTape::parse(text).ok()))
}

/// What stood at a place before some places of a whole object were replaced and some were added, as JSON; `None` if nothing
/// did.
pub(super) fn before<'v>(
    object: Value<'v>,
    replaced: Vec<(Cow<'_, str>, Value<'v>)>,
    added: Vec<Cow<'_, str>>,
    pointer: &str,
    type_: &'static Type,
) -> Result<Option<Vec<u8>>, Malformed> {
    let replaced = originals(replaced);
    let mut document = Document::new(object);
    undo(&mut document, &replaced, added, type_)?;
    let Some(Place { slot: Some(slot), .. }) = locate(&mut document, pointer, type_)? else { return Ok(None) };
    let mut text = Vec::new();
    document.write(slot, &mut text);
    Ok(Some(text))
}

/// A place that was replaced, with its last token as the key of a member and what stood there.
struct Replaced<'p, 'v> {
    pointer: Cow<'p, str>,
    key: String,
    original: Value<'v>,
}

fn originals<'p, 'v>(replaced: impl IntoIterator<Item = (Cow<'p, str>, Value<'v>)>) -> Vec<Replaced<'p, 'v>> {
    let read = |(pointer, original): (Cow<'p, str>, Value<'v>)| {
        let mut key = Vec::new();
        write_escaped(&mut key, &unescaped(pointer.rsplit('/').next().unwrap_or_default()));
        Replaced { key: String::from_utf8(key).unwrap_or_default(), pointer, original }
    };
    replaced.into_iter().map(read).collect()
}

/// Puts back what was replaced and takes away what was added.
fn undo<'v, 'p>(
    document: &mut Document<'v>,
    replaced: &'v [Replaced<'_, 'v>],
    added: impl IntoIterator<Item = Cow<'p, str>>,
    type_: &'static Type,
) -> Result<(), Malformed> {
    // The last change is undone first.
    for Replaced { pointer, key, original } in replaced.iter().rev() {
        make_around(document, pointer, type_)?;
        match locate(document, pointer, type_)? {
            Some(Place { slot: Some(slot), .. }) => document.replace(slot, Content::Value(*original)),
            // An element that was removed.
            Some(Place { parent, slot: None, .. }) if document.kind(parent) == Kind::Array => {
                document.push_item(parent, Content::Value(*original));
            }
            Some(Place { parent, slot: None, .. }) if document.kind(parent) == Kind::Object => {
                document.add_member(parent, Key::new(key), Content::Value(*original));
            }
            _ => {}
        }
    }
    for pointer in added {
        if let Some(Place { parent, slot: Some(slot), .. }) = locate(document, &pointer, type_)? {
            document.remove(slot, parent);
            remove_if_empty(document, &pointer, type_)?;
        }
    }
    Ok(())
}

/// Makes the list or map around a place from which something was taken away: the API server drops one that is empty.
fn make_around(document: &mut Document<'_>, pointer: &str, type_: &'static Type) -> Result<(), Malformed> {
    let Some((around, _)) = pointer.rsplit_once('/') else { return Ok(()) };
    if let Some(Place { parent, slot: None, known: Some(known) }) = locate(document, around, type_)?
        && document.kind(parent) == Kind::Object
    {
        let content = match known {
            Known::Keyed(_) => Content::List,
            Known::Object(type_) if type_.spread => Content::Map,
            Known::Object(_) => return Ok(()),
        };
        // Fields that are known have names that need no escape.
        let Some(field) = field_of(around, type_) else { return Ok(()) };
        document.add_member(parent, Key::new(field), content);
    }
    Ok(())
}

/// The name of the known field that a pointer ends with.
fn field_of(pointer: &str, type_: &'static Type) -> Option<&'static str> {
    let mut tokens = pointer.split('/').skip(1);
    let mut known = type_;
    let mut name = None;
    while let Some(token) = tokens.next() {
        let (field, below) = known.fields.iter().find(|(field, _)| *field == token)?;
        name = Some(*field);
        match below {
            Field::Object(type_) => known = type_,
            Field::Keyed(keyed) => {
                if tokens.next().is_some() {
                    name = None;
                }
                known = keyed.element;
            }
        }
    }
    name
}

/// Takes away the list or map around a place, if it has nothing left and was made for what was added. Of maps that are one
/// addition as a whole, one that has nothing left is its author's: `securityContext: {}`.
fn remove_if_empty(document: &mut Document<'_>, pointer: &str, type_: &'static Type) -> Result<(), Malformed> {
    let Some((around, _)) = pointer.rsplit_once('/') else { return Ok(()) };
    // `metadata` and `spec` themselves are the author's.
    if around.matches('/').count() < 2 {
        return Ok(());
    }
    let is_made = |known: Option<Known>| match known {
        Some(Known::Keyed(_)) => true,
        Some(Known::Object(type_)) => type_.spread,
        None => false,
    };
    if let Some(Place { parent, slot: Some(slot), known }) = locate(document, around, type_)?
        && is_made(known)
        && document.children(slot).next().is_none()
    {
        document.remove(slot, parent);
    }
    Ok(())
}

/// The place that a pointer names; `None` if what is around it is not there.
fn locate(document: &mut Document<'_>, pointer: &str, type_: &'static Type) -> Result<Option<Place>, Malformed> {
    let mut tokens = pointer.split('/').skip(1).peekable();
    let mut parent = Document::ROOT;
    let mut known = Some(Known::Object(type_));
    while let Some(token) = tokens.next() {
        let (slot, below) = match (document.kind(parent), known) {
            (Kind::Object, _) => {
                let name = unescaped(token);
                let field = match known {
                    Some(Known::Object(type_)) => type_.field(&name),
                    _ => None,
                };
                let below = field.map(|field| match field {
                    Field::Object(type_) => Known::Object(type_),
                    Field::Keyed(keyed) => Known::Keyed(keyed),
                });
                (document.member(parent, &name)?, below)
            }
            (Kind::Array, Some(Known::Keyed(keyed))) => {
                (element(document, parent, token, keyed)?, Some(Known::Object(keyed.element)))
            }
            _ => return Ok(None),
        };
        match (slot, tokens.peek()) {
            (slot, None) => return Ok(Some(Place { parent, slot, known: below })),
            (Some(slot), Some(_)) => (parent, known) = (slot, below),
            (None, Some(_)) => return Ok(None),
        }
    }
    Ok(None)
}

/// The part of a value that a pointer names, where the first bytes of the pointer lead to the value.
pub(super) fn value_at<'v>(value: Value<'v>, pointer: &str, length: usize, type_: &'static Type) -> Option<Value<'v>> {
    let mut known = Some(Known::Object(type_));
    let mut found = value;
    let mut at = 0;
    for token in pointer.split('/').skip(1) {
        at += token.len() + 1;
        let name = unescaped(token);
        let is_below = at > length;
        known = match known {
            Some(Known::Keyed(keyed)) => {
                if is_below {
                    let mut keys = String::new();
                    let has_keys = |item: &Value<'v>| {
                        keys.clear();
                        push_keys(&mut keys, keyed, |key| item.get(key));
                        keys.strip_prefix('/') == Some(token)
                    };
                    found = found.items().filter(has_keys).last()?;
                }
                Some(Known::Object(keyed.element))
            }
            Some(Known::Object(type_)) => {
                if is_below {
                    found = found.get(&name)?;
                }
                type_.field(&name).map(|field| match field {
                    Field::Object(type_) => Known::Object(type_),
                    Field::Keyed(keyed) => Known::Keyed(keyed),
                })
            }
            None => {
                if is_below {
                    found = found.get(&name)?;
                }
                None
            }
        };
    }
    Some(found)
}

fn element(
    document: &mut Document<'_>,
    list: SlotId,
    token: &str,
    keyed: &KeyedList,
) -> Result<Option<SlotId>, Malformed> {
    document.open(list)?;
    let mut name = String::new();
    let has_keys = |child: &SlotId| {
        name.clear();
        push_keys(&mut name, keyed, |key| document.value_of(*child, key));
        name.strip_prefix('/') == Some(token)
    };
    // As the merge finds it.
    Ok(document.children(list).filter(has_keys).last())
}

fn unescaped(token: &str) -> Cow<'_, str> {
    if token.contains('~') { Cow::Owned(token.replace("~1", "/").replace("~0", "~")) } else { Cow::Borrowed(token) }
}
