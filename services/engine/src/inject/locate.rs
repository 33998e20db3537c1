//! Finds the place that a record's pointer names, and undoes what a record says.

use std::borrow::Cow;

use crate::json::{Content, Document, Key, Kind, Malformed, OwnedTape, SlotId, Value, write_escaped};
use crate::schema::{self, Field, KeyedList, Type};

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
}

/// The object as its author wrote it: without what the record says was added, and with what was there put back. Lists and
/// maps that have nothing left are taken away too, as they were made for what was added.
pub(crate) fn without_record(object: Value<'_>, record: &Record) -> Result<Option<OwnedTape>, Malformed> {
    let mut document = Document::new(object);
    let keys: Vec<(String, Value<'_>)> = record
        .all_replaced()
        .map(|(pointer, original)| {
            let mut key = Vec::new();
            write_escaped(&mut key, &unescaped(pointer.rsplit('/').next().unwrap_or_default()));
            (String::from_utf8(key).unwrap_or_default(), original)
        })
        .collect();
    let replaced: Vec<_> = record.all_replaced().map(|(pointer, _)| pointer).zip(&keys).collect();
    // The last change is undone first.
    for (pointer, (key, original)) in replaced.into_iter().rev() {
        match locate(&mut document, &pointer)? {
            Some(Place { slot: Some(slot), .. }) => document.replace(slot, Content::Value(*original)),
            // An element that was removed.
            Some(Place { parent, slot: None }) if document.kind(parent) == Kind::Array => {
                document.push_item(parent, Content::Value(*original));
            }
            Some(Place { parent, slot: None }) if document.kind(parent) == Kind::Object => {
                document.add_member(parent, Key::new(key), Content::Value(*original));
            }
            _ => {}
        }
    }
    for pointer in record.all_added() {
        if let Some(Place { parent, slot: Some(slot) }) = locate(&mut document, &pointer)? {
            document.remove(slot, parent);
            remove_if_empty(&mut document, &pointer)?;
        }
    }
    let annotation = "/metadata/annotations/pillion.dev~1injected";
    if let Some(Place { parent, slot: Some(slot) }) = locate(&mut document, annotation)? {
        document.remove(slot, parent);
        remove_if_empty(&mut document, annotation)?;
    }
    let mut text = Vec::with_capacity(object.raw().len());
    document.write(Document::ROOT, &mut text);
    Ok(String::from_utf8(text).ok().and_then(|text| OwnedTape::parse(text).ok()))
}

/// Takes away the list or map around a place, if it has nothing left.
fn remove_if_empty(document: &mut Document<'_>, pointer: &str) -> Result<(), Malformed> {
    let Some((around, _)) = pointer.rsplit_once('/') else { return Ok(()) };
    // `metadata` and `spec` themselves are the author's.
    if around.matches('/').count() < 2 {
        return Ok(());
    }
    if let Some(Place { parent, slot: Some(slot) }) = locate(document, around)?
        && document.children(slot).next().is_none()
    {
        document.remove(slot, parent);
    }
    Ok(())
}

/// The place that a pointer names; `None` if what is around it is not there.
fn locate(document: &mut Document<'_>, pointer: &str) -> Result<Option<Place>, Malformed> {
    let mut tokens = pointer.split('/').skip(1).peekable();
    let mut parent = Document::ROOT;
    let mut known = Some(Known::Object(&schema::POD));
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
            (slot, None) => return Ok(Some(Place { parent, slot })),
            (Some(slot), Some(_)) => (parent, known) = (slot, below),
            (None, Some(_)) => return Ok(None),
        }
    }
    Ok(None)
}

/// The part of a value that a pointer names, where the first bytes of the pointer lead to the value.
pub(super) fn value_at<'v>(value: Value<'v>, pointer: &str, length: usize) -> Option<Value<'v>> {
    let mut known = Some(Known::Object(&schema::POD));
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
