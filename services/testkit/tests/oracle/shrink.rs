//! Makes a template that shows a difference smaller, so that a person can see what it is about.

use serde_json::Value as Json;

/// The places of a value below which something can be left out, the large ones first.
pub(crate) fn places(value: &Json) -> Vec<String> {
    let mut places = Vec::new();
    let mut level = vec![(String::new(), value)];
    while !level.is_empty() {
        let mut next = Vec::new();
        for (place, value) in level {
            let children: Vec<_> = match value {
                Json::Object(fields) => {
                    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
                    fields.iter().map(|(key, child)| (format!("{place}/{}", escaped(key)), child)).collect()
                }
                // The last first, so that the places before it stay what they are.
                Json::Array(items) => {
                    items.iter().enumerate().rev().map(|(index, child)| (format!("{place}/{index}"), child)).collect()
                }
                _ => Vec::new(),
            };
            places.extend(children.iter().map(|(place, _)| place.clone()));
            next.extend(children);
        }
        level = next;
    }
    places
}

/// A value without what stands at a place; `None` if nothing does.
pub(crate) fn without(value: &Json, place: &str) -> Option<Json> {
    let mut smaller = value.clone();
    let (around, last) = place.rsplit_once('/')?;
    match smaller.pointer_mut(around)? {
        Json::Object(fields) => fields.remove(&last.replace("~1", "/").replace("~0", "~"))?,
        Json::Array(items) => {
            let index = last.parse().ok().filter(|index| *index < items.len())?;
            items.remove(index)
        }
        _ => return None,
    };
    Some(smaller)
}
