//! When two objects mean the same, and when one has all that is said of it.
//!
//! To Kubernetes an empty map, an empty list and a null are as if they were not there. All else counts, the order of lists
//! too, and what differs is told place by place.

use std::fmt::Write as _;

use serde_json::{Map, Value as Json};

/// Without what is empty, with sorted keys.
pub(crate) fn levelled(value: &Json) -> Json {
    fn is_empty(value: &Json) -> bool {
        match value {
            Json::Null => true,
            Json::Array(items) => items.is_empty(),
            Json::Object(members) => members.is_empty(),
            _ => false,
        }
    }
    let mut level = match value {
        Json::Array(items) => items.iter().map(levelled).collect(),
        Json::Object(members) => members
            .iter()
            .map(|(key, value)| (key.clone(), levelled(value)))
            .filter(|(_, value)| !is_empty(value))
            .collect::<Map<_, _>>()
            .into(),
        other => other.clone(),
    };
    level.sort_all_objects();
    level
}

/// Fails, with both and their differences, if two objects do not mean the same.
pub(crate) fn assert_same(found: &Json, expected: &Json, at: &str) {
    let (found, expected) = (levelled(found), levelled(expected));
    if found != expected {
        let mut differences = String::new();
        list_differences(&found, &expected, "", &mut differences);
        panic!("{at}\n{differences}");
    }
}

/// Every place at which two objects differ, a line each.
fn list_differences(found: &Json, expected: &Json, path: &str, list: &mut String) {
    match (found, expected) {
        (Json::Object(left), Json::Object(right)) => {
            let keys = left.keys().chain(right.keys().filter(|key| !left.contains_key(*key)));
            for key in keys {
                let null = Json::Null;
                let (left, right) = (left.get(key).unwrap_or(&null), right.get(key).unwrap_or(&null));
                list_differences(left, right, &format!("{path}.{key}"), list);
            }
        }
        (Json::Array(left), Json::Array(right)) => {
            for place in 0..left.len().max(right.len()) {
                let null = Json::Null;
                let (left, right) = (left.get(place).unwrap_or(&null), right.get(place).unwrap_or(&null));
                list_differences(left, right, &format!("{path}[{place}]"), list);
            }
        }
        _ if found == expected => {}
        _ => writeln!(list, "  {path}:\n    found    {found}\n    expected {expected}").unwrap(),
    }
}

/// What a partial object says has to be in the other one; lists are as long, and in the same order.
pub(crate) fn assert_contains(found: &Json, part: &Json, at: &str) {
    let mut differences = String::new();
    list_missing(&levelled(found), &levelled(part), "", &mut differences);
    assert!(differences.is_empty(), "{at}\n{differences}");
}

fn list_missing(found: &Json, part: &Json, path: &str, list: &mut String) {
    match (found, part) {
        (Json::Object(whole), Json::Object(part)) => {
            for (key, part) in part {
                list_missing(whole.get(key).unwrap_or(&Json::Null), part, &format!("{path}.{key}"), list);
            }
        }
        (Json::Array(whole), Json::Array(part)) if whole.len() == part.len() => {
            for (place, (whole, part)) in whole.iter().zip(part).enumerate() {
                list_missing(whole, part, &format!("{path}[{place}]"), list);
            }
        }
        (Json::Array(whole), Json::Array(part)) => {
            let names = |items: &[Json]| {
                let name = |item: &Json| item.get("name").unwrap_or(item).to_string();
                items.iter().map(name).collect::<Vec<_>>().join(" ")
            };
            let (whole, part) = (names(whole), names(part));
            writeln!(list, "  {path}:\n    found    {whole}\n    expected {part}").unwrap();
        }
        _ if found == part => {}
        _ => writeln!(list, "  {path}:\n    found    {found}\n    expected {part}").unwrap(),
    }
}
