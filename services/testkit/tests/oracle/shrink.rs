//! Shrinks a template that shows a difference, so that its cause is easier to find.

use serde_json::Value as Json;

/// Returns the paths of all parts of a value, outermost parts first.
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
                // The last elements come first, so that removing one does not shift the paths of the others.
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

/// Returns a value without the element at a path, or `None` if the path does not exist.
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
