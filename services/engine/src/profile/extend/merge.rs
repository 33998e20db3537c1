//! Merges a child profile into its parent: lists of named parts by name, templates by the keys of server-side apply.
//!
//! The child's value replaces the parent's, unless both are maps or keyed lists; those merge part by part. An element
//! without a key never matches another element. Examples are a string such as `${params.env}`, and elements that a
//! directive creates. The parent's elements come first, then the child's.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Map, Value as Json};

use crate::profile::flattened::Origin;
use crate::schema::{ANY, CONTAINER, Field, KeyedList, POD, Type};

/// The maximum depth of a merge. More deeply nested templates do not compile.
const MAX_DEPTH: usize = 64;

/// Directives of elements that cannot be matched by key, because such an element stands for any number of elements.
const UNMATCHABLE_DIRECTIVES: [&str; 3] = ["$value", "$forEach", "$prune"];

/// Fields that are not inherited. A parent with `activation: Never` exists only to be extended, but its children are
/// applied. Each profile also has its own rollout of revisions, and its own safety net.
const OWN_FIELDS: [&str; 5] = ["extends", "description", "activation", "rollout", "safetyNet"];

/// Fields of a parameter that define the keys to read, and the meaning of an empty value.
const KEY_FIELDS: [&str; 4] = ["annotation", "label", "annotationPrefix", "empty"];

/// A value, and the place in the profile where it was written.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) json: Json,
    pub(super) origin: Origin,
}

/// The schema that determines how a value merges.
#[derive(Clone, Copy)]
enum Shape {
    Object(&'static Type),
    Keyed(&'static KeyedList),
}

/// Merges the `spec` of a child into that of its parent.
pub(super) fn merge_spec(parent: Part, child: Part) -> Part {
    let is_pod = [&child, &parent].into_iter().find_map(|part| part.json.get("target")).is_none_or(is_pods);
    let template = if is_pod { &POD } else { &ANY };
    let mut parent = parent;
    if let Some(fields) = parent.json.as_object_mut() {
        fields.retain(|name, _| !OWN_FIELDS.contains(&name.as_str()));
    }
    merge_fields(parent, child, |name, parent, child| match name {
        "template" => merge_values(parent, child, Shape::Object(template), 0),
        "parameters" => keyed(parent, child, name_of, merge_parameter),
        "containerPatches" => keyed(parent, child, name_of, merge_container_patch),
        "matchConditions" | "preconditions" | "variables" | "lookups" | "validations" => {
            keyed(parent, child, name_of, |_, child| child)
        }
        _ => child,
    })
}

/// Merges a parameter field by field, so that a child that only sets a default inherits the type and the constraints.
/// If the types differ, the child replaces the parent's parameter. `sources: []` in the child also removes the parent's
/// keys.
fn merge_parameter(parent: Part, child: Part) -> Part {
    let type_of = |part: &Part| part.json.get("type").cloned();
    if type_of(&child).is_some_and(|type_| type_of(&parent) != Some(type_)) {
        return child;
    }
    let is_locked = child.json.get("sources").and_then(Json::as_array).is_some_and(Vec::is_empty);
    let mut parent = parent;
    if let Some(fields) = parent.json.as_object_mut().filter(|_| is_locked) {
        fields.retain(|name, _| !KEY_FIELDS.contains(&name.as_str()));
    }
    merge_fields(parent, child, |_, _, child| child)
}

/// Merges the conditions and the template of a container patch. All other fields of the child, such as its matchers,
/// replace those of the parent.
fn merge_container_patch(parent: Part, child: Part) -> Part {
    merge_fields(parent, child, |name, parent, child| match name {
        "matchConditions" | "preconditions" => keyed(parent, child, name_of, |_, child| child),
        "template" => merge_values(parent, child, Shape::Object(&CONTAINER), 0),
        _ => child,
    })
}

/// Merges a part of a child's template into its parent's.
fn merge_values(parent: Part, child: Part, shape: Shape, depth: usize) -> Part {
    if depth > MAX_DEPTH {
        return child;
    }
    match (&parent.json, &child.json, shape) {
        (Json::Object(_), Json::Object(_), shape) => merge_map(parent, child, shape, depth),
        (Json::Array(_), Json::Array(_), Shape::Keyed(list)) => {
            let element = |parent, child| merge_values(parent, child, Shape::Object(list.element), depth + 1);
            keyed(parent, child, |element| key_of(element, list), element)
        }
        // One value is plain, and the other is a map that only contains directives, which apply to the plain value.
        (Json::Object(fields), _, shape) if is_directives(fields) => merge_map(parent, as_value(child), shape, depth),
        (_, Json::Object(fields), shape) if is_directives(fields) => merge_map(as_value(parent), child, shape, depth),
        _ => child,
    }
}

fn merge_map(mut parent: Part, child: Part, shape: Shape, depth: usize) -> Part {
    let object = match shape {
        Shape::Object(object) => object,
        Shape::Keyed(_) => &ANY,
    };
    let is_choice = |name: &str| !name.starts_with('$') && object.one_of.holds(name);
    if let (Json::Object(fields), Json::Object(others)) = (&mut parent.json, &child.json)
        && others.keys().any(|name| is_choice(name))
    {
        // If the child sets a member of a union, drop the parent's other members of the union.
        fields.retain(|name, _| !is_choice(name) || others.contains_key(name));
    }
    merge_fields(parent, child, |name, parent, child| match (name, object.field(name)) {
        ("$value", _) => merge_values(parent, child, shape, depth + 1),
        (name, _) if name.starts_with('$') => child,
        (_, Some(Field::Object(object))) => merge_values(parent, child, Shape::Object(object), depth + 1),
        (_, Some(Field::Keyed(list))) => merge_values(parent, child, Shape::Keyed(list), depth + 1),
        (_, None) => merge_values(parent, child, Shape::Object(&ANY), depth + 1),
    })
}

/// Merges two maps. Calls `merge` for fields that both maps have.
fn merge_fields(parent: Part, child: Part, merge: impl Fn(&str, Part, Part) -> Part) -> Part {
    let (mut fields, mut others) = match (parent.json, child.json) {
        (Json::Object(fields), Json::Object(others)) => (fields, others),
        (_, json) => return Part { json, origin: child.origin },
    };
    let mut merged = Map::new();
    let mut origins = BTreeMap::new();
    let mut put = |name: String, Part { json, origin }: Part| {
        origins.insert(name.clone(), origin);
        merged.insert(name, json);
    };
    for (name, json) in std::mem::take(&mut fields) {
        let part = Part { json, origin: parent.origin.field(&name) };
        let part = match others.remove(&name) {
            Some(json) => merge(&name, part, Part { json, origin: child.origin.field(&name) }),
            None => part,
        };
        put(name, part);
    }
    for (name, json) in others {
        let origin = child.origin.field(&name);
        put(name, Part { json, origin });
    }
    Part { json: Json::Object(merged), origin: child.origin.with_fields(origins) }
}

/// Merges two lists by key. A child's element merges into the parent's element with the same key, at its position. New
/// elements follow.
///
/// A parent may have several conditional elements with the same key (`$when`). If the child has one such element, it is
/// merged into each of them. If the child has several, they replace all of the parent's.
fn keyed(parent: Part, child: Part, key: impl Fn(&Json) -> Option<String>, merge: impl Fn(Part, Part) -> Part) -> Part {
    let (Json::Array(items), Json::Array(others)) = (parent.json, child.json) else {
        // Only templates can have other types here, and `merge_values` has checked those.
        return Part { json: Json::Array(Vec::new()), origin: child.origin };
    };
    let own: Vec<_> =
        others.into_iter().enumerate().map(|(index, json)| Part { json, origin: child.origin.item(index) }).collect();
    let mut by_key: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, part) in own.iter().enumerate() {
        if let Some(key) = key(&part.json) {
            by_key.entry(key).or_default().push(index);
        }
    }
    let mut merged = Vec::new();
    let mut placed = HashSet::new();
    for (index, json) in items.into_iter().enumerate() {
        let part = Part { json, origin: parent.origin.item(index) };
        let same = key(&part.json).and_then(|key| by_key.get(&key)).map_or(&[][..], Vec::as_slice);
        match same {
            [] => merged.push(part),
            [one] => {
                placed.insert(*one);
                merged.extend(own.get(*one).map(|own| merge(part, own.clone())));
            }
            several => {
                let fresh = several.iter().filter(|index| placed.insert(**index));
                merged.extend(fresh.filter_map(|index| own.get(*index).cloned()));
            }
        }
    }
    let new = own.into_iter().enumerate().filter(|(index, _)| !placed.contains(index));
    merged.extend(new.map(|(_, part)| part));
    let (json, origins) = merged.into_iter().map(|Part { json, origin }| (json, origin)).unzip();
    Part { json: Json::Array(json), origin: child.origin.with_items(origins) }
}

/// Returns the name of a named part, which is its key for merging.
fn name_of(element: &Json) -> Option<String> {
    element.get("name").and_then(Json::as_str).map(str::to_owned)
}

/// Returns the key of an element of a template's list. Expressions are compared as written.
fn key_of(element: &Json, list: &KeyedList) -> Option<String> {
    let fields = element.as_object()?;
    if UNMATCHABLE_DIRECTIVES.iter().any(|directive| fields.contains_key(*directive)) {
        return None;
    }
    let part = |key: &&str| match fields.get(*key) {
        Some(Json::Object(_) | Json::Array(_) | Json::Null) => None,
        Some(value) => Some(value.to_string()),
        None => list.defaults.iter().find(|(name, _)| name == key).map(|(_, default)| (*default).to_owned()),
    };
    list.keys.iter().map(part).collect::<Option<Vec<_>>>().map(|parts| parts.join(","))
}

fn is_directives(fields: &Map<String, Json>) -> bool {
    !fields.is_empty() && fields.keys().all(|name| name.starts_with('$'))
}

/// Wraps a value in `$value`, so that directives can be added to it.
fn as_value(part: Part) -> Part {
    let Part { json, origin } = part;
    let value = "$value".to_owned();
    Part {
        json: Json::Object(Map::from_iter([(value.clone(), json)])),
        origin: origin.with_fields(BTreeMap::from([(value, origin.clone())])),
    }
}

/// Whether a target contains only pods and their subresources.
fn is_pods(target: &Json) -> bool {
    let is_core = target.get("group").and_then(Json::as_str).is_none_or(str::is_empty);
    let mut resources = target.get("resources").and_then(Json::as_array).into_iter().flatten();
    is_core && resources.all(|resource| resource.as_str().is_some_and(|name| name.split('/').next() == Some("pods")))
}
