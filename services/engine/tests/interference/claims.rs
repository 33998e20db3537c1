//! Finds the changes of cluster profiles by comparing an object before and after them, independently of the engine.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

/// Lists whose elements have a key, each with the name of the key field.
const KEYED: [(&str, &str); 7] = [
    ("containers", "name"),
    ("initContainers", "name"),
    ("volumes", "name"),
    ("env", "name"),
    ("volumeMounts", "mountPath"),
    ("ports", "containerPort"),
    ("imagePullSecrets", "name"),
];

/// Maps that may contain values from several writers.
const OPEN: [&str; 10] = [
    "metadata",
    "spec",
    "data",
    "labels",
    "annotations",
    "resources",
    "limits",
    "requests",
    "template",
    "securityContext",
];

/// The changes of cluster profiles to an object, called claims. The final object must contain them.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// The changed values by path. `None` if the value was removed.
    values: BTreeMap<Vec<String>, Option<Json>>,
    /// The elements that cluster profiles added: the path of the list, and the keys of the elements.
    added: BTreeMap<Vec<String>, Vec<String>>,
}

fn key_field(list: &str) -> Option<&'static str> {
    KEYED.iter().find(|(name, _)| *name == list).map(|(_, field)| *field)
}

fn keys(list: &Json, field: &str) -> Vec<String> {
    let text = |element: &Json| element[field].as_str().map_or_else(|| element[field].to_string(), str::to_owned);
    list.as_array().into_iter().flatten().map(text).collect()
}

impl Claims {
    /// Returns the changes of the cluster profiles: the differences between an object `before` and `after` they are
    /// applied.
    pub(super) fn of(before: &Json, after: &Json) -> Self {
        let mut claims = Self::default();
        claims.compare(&mut Vec::new(), before, after);
        claims
    }

    fn compare(&mut self, path: &mut Vec<String>, before: &Json, after: &Json) {
        if before == after {
            return;
        }
        let list = path.last().and_then(|name| key_field(name));
        match (list, before, after) {
            (Some(field), Json::Array(_) | Json::Null, Json::Array(items)) => {
                let (old, new) = (keys(before, field), keys(after, field));
                for key in old.iter().filter(|key| !new.contains(key)) {
                    self.claim(path, key, None);
                }
                for (key, element) in new.iter().zip(items) {
                    if let Some(place) = old.iter().rposition(|other| other == key) {
                        path.push(key.clone());
                        self.compare_fields(path, &before[place], element);
                        path.pop();
                    } else {
                        self.claim(path, key, Some(element));
                        self.added.entry(path.clone()).or_default().push(key.clone());
                    }
                }
            }
            _ => self.compare_fields(path, before, after),
        }
    }

    fn compare_fields(&mut self, path: &mut Vec<String>, before: &Json, after: &Json) {
        let is_open = path.last().is_none_or(|name| OPEN.contains(&name.as_str()));
        let empty = Map::new();
        let (before, after) = match (before, after) {
            (Json::Object(before), Json::Object(after)) => (before, after),
            (Json::Null, Json::Object(after)) if is_open => (&empty, after),
            _ => {
                if before != after {
                    self.values.insert(path.clone(), Some(after.clone()));
                }
                return;
            }
        };
        for (key, value) in after.iter().filter(|(key, _)| *key != "pillion.dev/injected") {
            path.push(key.clone());
            self.compare(path, before.get(key).unwrap_or(&Json::Null), value);
            path.pop();
        }
        for key in before.keys().filter(|key| !after.contains_key(*key) && *key != "pillion.dev/injected") {
            self.claim(path, key, None);
        }
    }

    fn claim(&mut self, path: &[String], key: &str, value: Option<&Json>) {
        let mut path = path.to_vec();
        path.push(key.to_owned());
        self.values.insert(path, value.cloned());
    }

    /// Adds claims for values in `expected` that cluster profiles did not change, because the object already had the
    /// profiles' values. `bare` is a minimal object, and `made` is the result of the cluster profiles for it.
    pub(super) fn confirm(&mut self, bare: &Json, made: &Json, expected: &Json) {
        for (path, value) in Self::of(bare, made).values {
            let Some(value) = value else { continue };
            for (below, leaf) in leaves(&value) {
                let path: Vec<_> = path.iter().cloned().chain(below).collect();
                let is_so = at(expected, &path) == Some(&leaf);
                if is_so && !self.values.keys().any(|known| path.starts_with(known)) {
                    self.values.insert(path, Some(leaf));
                }
            }
        }
    }

    /// Returns a message about the first claim that the result `together` violates. `None` if it violates none. `alone`
    /// is the result of the cluster profiles without namespaced profiles.
    pub(super) fn broken(&self, alone: &Json, together: &Json) -> Option<String> {
        for (path, value) in &self.values {
            let there = |object| at(object, path).filter(|found: &&Json| !found.is_null());
            let (found, expected) = (there(together), value.as_ref().filter(|value| !value.is_null()));
            // If the cluster profiles themselves added a second element with the same key, the claim is ambiguous, so
            // skip it.
            if there(alone) != expected {
                continue;
            }
            if found != expected {
                return Some(format!("{} is {found:?}, but the platform set {expected:?}", path.join("/")));
            }
            // A second element with the same key could override the claimed value: Kubernetes uses the last of several
            // environment variables with the same name.
            for end in 1..path.len() {
                let Some(field) = path.get(end - 1).and_then(|name| key_field(name)) else { continue };
                let count = |object: &Json| {
                    let keys = at(object, &path[..end]).map(|list| keys(list, field)).unwrap_or_default();
                    keys.iter().filter(|key| **key == path[end]).count()
                };
                if count(together) > count(alone).max(1) {
                    return Some(format!("{} exists twice", path[..=end].join("/")));
                }
            }
        }
        self.added.iter().find_map(|(list, added)| order_broken(list, added, alone, together))
    }
}

/// Returns a message if elements that cluster profiles added to a list have moved or are no longer first.
fn order_broken(list: &[String], added: &[String], alone: &Json, together: &Json) -> Option<String> {
    let field = key_field(list.last()?)?;
    let keys_in = |object: &Json| keys(at(object, list).unwrap_or(&Json::Null), field);
    let (alone, together) = (keys_in(alone), keys_in(together));
    let place = list.join("/");
    for element in added {
        let before = |keys: &[String]| -> Vec<String> {
            let behind = keys.iter().position(|key| key == element).unwrap_or(keys.len());
            let mut before: Vec<_> = keys[..behind].iter().filter(|key| alone.contains(key)).cloned().collect();
            before.sort();
            before
        };
        // A namespaced profile may remove the author's elements, so ignore removed ones.
        let stays = |key: &String| together.contains(key);
        let expected: Vec<_> = before(&alone).into_iter().filter(stays).collect();
        if before(&together) != expected {
            return Some(format!("{element} moved in {place}: {alone:?} -> {together:?}"));
        }
    }
    let leading = alone.iter().take_while(|key| added.contains(key)).count();
    let begins_so = together.iter().take(leading).eq(alone.iter().take(leading));
    (!begins_so).then(|| format!("an element precedes the first of {place}: {alone:?} -> {together:?}"))
}

/// Returns the value at a path. If several elements have the same key, uses the last one.
fn at<'j>(object: &'j Json, path: &[String]) -> Option<&'j Json> {
    let mut found = object;
    let mut list = None;
    for token in path {
        found = match list {
            Some(field) if found.is_array() => {
                let place = keys(found, field).iter().rposition(|key| key == token)?;
                &found[place]
            }
            _ => found.get(token)?,
        };
        list = if list.is_some() { None } else { key_field(token) };
    }
    Some(found)
}

/// Returns the innermost values in `value`, with their paths. A list without keyed elements is one value.
fn leaves(value: &Json) -> Vec<(Vec<String>, Json)> {
    let Json::Object(fields) = value else { return vec![(Vec::new(), value.clone())] };
    let mut all = Vec::new();
    for (name, value) in fields {
        let below: Vec<_> = match (key_field(name), value) {
            (Some(field), Json::Array(items)) => {
                let elements = keys(value, field).into_iter().zip(items);
                elements.flat_map(|(key, item)| with(&key, leaves(item))).collect()
            }
            _ => leaves(value),
        };
        all.extend(with(name, below));
    }
    all
}

fn with(name: &str, below: Vec<(Vec<String>, Json)>) -> Vec<(Vec<String>, Json)> {
    let add = |(path, leaf): (Vec<String>, Json)| (std::iter::once(name.to_owned()).chain(path).collect(), leaf);
    below.into_iter().map(add).collect()
}
