//! One-ofs: groups of fields of which only one may be set. The API server's schema does not list these fields, so the
//! constants below follow the Kubernetes reference, independently of the engine's schema.

use serde_json::{Map, Value as Json};

use crate::oracle::openapi::{List, OpenApi, Shape};
use crate::oracle::parts::port_key;

/// Types in which all fields but the listed ones form a one-of.
const ONE_OF_EXCEPT: [(&str, &[&str]); 3] =
    [("Volume", &["name"]), ("PodResourceClaim", &["name"]), ("EnvVarSource", &[])];

/// Types in which only the listed fields form a one-of.
const ONE_OF_FIELDS: [(&str, &[&str]); 3] = [
    ("EnvVar", &["value", "valueFrom"]),
    ("Probe", &["exec", "httpGet", "tcpSocket", "grpc"]),
    ("LifecycleHandler", &["exec", "httpGet", "tcpSocket", "sleep"]),
];

/// Returns the fields of a type that form a one-of.
pub(crate) fn choice<'a>(openapi: &'a OpenApi, type_: &str) -> Vec<&'a str> {
    let fields = openapi.fields(type_).map(|(name, _)| name);
    if let Some((_, others)) = ONE_OF_EXCEPT.iter().find(|(name, _)| *name == type_) {
        return fields.filter(|field| !others.contains(field)).collect();
    }
    let members = ONE_OF_FIELDS.iter().find(|(name, _)| *name == type_).map_or(&[][..], |(_, members)| members);
    fields.filter(|field| members.contains(field)).collect()
}

/// Counts the positions where the template and the pod set different members of a one-of. If `yields` is set, also
/// replaces the template's member with the pod's.
pub(crate) fn switches(openapi: &OpenApi, type_: &str, template: &mut Json, pod: &Json, yields: bool) -> usize {
    let (Some(fields), Some(there)) = (template.as_object_mut(), pod.as_object()) else { return 0 };
    let members = choice(openapi, type_);
    let is_other = |name: &str| {
        members.contains(&name) && there.keys().any(|other| other != name && members.contains(&other.as_str()))
    };
    let switched: Vec<_> = fields.keys().filter(|name| is_other(name)).cloned().collect();
    if yields && !switched.is_empty() {
        fields.retain(|name, _| !switched.contains(name));
        let chosen = there.iter().filter(|(name, _)| members.contains(&name.as_str()));
        fields.extend(chosen.map(|(name, value)| (name.clone(), value.clone())));
    }
    let mut count = switched.len();
    for (name, value) in fields.iter_mut() {
        let Some(present) = there.get(name) else { continue };
        count += match openapi.field(type_, name) {
            Some(Shape::Struct(inner)) => switches(openapi, inner, value, present, yields),
            Some(Shape::List(List { kind: "map", element: Some(element), .. })) => {
                let pairs = pairs(openapi, type_, name, value, present);
                pairs.into_iter().map(|(ours, theirs)| switches(openapi, element, ours, theirs, yields)).sum()
            }
            _ => 0,
        };
    }
    count
}

/// Pairs each element of a template's list with the pod's element that has the same keys. Leaves out elements that only
/// the template has.
fn pairs<'a>(
    openapi: &OpenApi,
    type_: &str,
    field: &str,
    template: &'a mut Json,
    pod: &'a Json,
) -> Vec<(&'a mut Json, &'a Json)> {
    let Some(Shape::List(list)) = openapi.field(type_, field) else { return Vec::new() };
    let keys = list.keys();
    let theirs: Vec<_> = pod.as_array().into_iter().flatten().collect();
    template
        .as_array_mut()
        .into_iter()
        .flatten()
        .filter_map(|element| {
            let key = key_of(element, &keys);
            let same = theirs.iter().find(|other| key_of(other, &keys) == key)?;
            Some((element, *same))
        })
        .collect()
}

/// Returns an element's key as a string.
pub(crate) fn key_of(element: &Json, keys: &[&str]) -> String {
    if keys == ["containerPort", "protocol"] {
        let (number, protocol) = port_key(element);
        return format!("{},{protocol}", number.unwrap_or_default());
    }
    let parts = keys.iter().map(|key| element[*key].as_str().map_or_else(|| element[*key].to_string(), str::to_owned));
    parts.collect::<Vec<_>>().join(",")
}

/// Sorts a template's keyed lists as strategic merge does: new elements first, then the elements that the pod has too,
/// in the pod's order.
pub(crate) fn arrange(openapi: &OpenApi, type_: &str, template: &mut Json, pod: &Json) {
    let Some(fields) = template.as_object_mut() else { return };
    for (name, value) in fields.iter_mut() {
        let Some(present) = pod.get(name) else { continue };
        match openapi.field(type_, name) {
            Some(Shape::Struct(inner)) => arrange(openapi, inner, value, present),
            Some(Shape::List(list)) if list.kind == "map" => {
                if let Some(element) = list.element {
                    for (ours, theirs) in pairs(openapi, type_, name, value, present) {
                        arrange(openapi, element, ours, theirs);
                    }
                }
                let keys = list.keys();
                let order: Vec<_> = present.as_array().into_iter().flatten().map(|item| key_of(item, &keys)).collect();
                let place = |item: &Json| order.iter().position(|key| *key == key_of(item, &keys));
                if let Some(elements) = value.as_array_mut() {
                    elements.sort_by_key(|item| place(item).map_or(0, |place| place + 1));
                }
            }
            _ => {}
        }
    }
}

/// Converts a template to a strategic merge patch. If the template sets a member of a one-of, the patch removes the
/// other members.
pub(crate) fn as_strategic_patch(openapi: &OpenApi, type_: &str, template: &Json) -> Json {
    let Some(fields) = template.as_object() else { return template.clone() };
    let members = choice(openapi, type_);
    let has_chosen = fields.keys().any(|name| members.contains(&name.as_str()));
    let mut patch = Map::new();
    for (name, value) in fields {
        let value = match openapi.field(type_, name) {
            Some(Shape::Struct(inner)) => as_strategic_patch(openapi, inner, value),
            Some(Shape::List(list)) if list.merge_key().is_some() => strategic_list(openapi, list, value),
            _ => value.clone(),
        };
        patch.insert(name.clone(), value);
    }
    if has_chosen {
        let others: Vec<_> = members.into_iter().filter(|name| !patch.contains_key(*name)).collect();
        patch.extend(others.into_iter().map(|name| (name.to_owned(), Json::Null)));
    }
    Json::Object(patch)
}

fn strategic_list(openapi: &OpenApi, list: List<'_>, elements: &Json) -> Json {
    let (Some(elements), Some(type_)) = (elements.as_array(), list.element) else { return elements.clone() };
    let patch = |element: &Json| {
        let members = choice(openapi, type_);
        let has_chosen = members.iter().any(|name| element.get(*name).is_some());
        let mut patch = as_strategic_patch(openapi, type_, element);
        if let Some(fields) = patch.as_object_mut()
            && has_chosen
            && list.retains_keys()
        {
            // For the elements of a list that retains keys, Kubernetes defines the directive `$retainKeys`, which
            // removes all other fields.
            fields.retain(|_, value| !value.is_null());
            let names: Json = fields.keys().cloned().collect();
            fields.insert("$retainKeys".into(), names);
        }
        patch
    };
    elements.iter().map(patch).collect()
}
