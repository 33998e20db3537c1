//! Answers lookups from a given set of objects, for manifests and test cases without a cluster.
//!
//! A lookup of an object outside the set finds nothing.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Answer, LookedUp, ObjectSelection, OwnerChain, Query, Wanted};
use crate::json::OwnedTape;

/// The maximum nesting of `List` objects.
const MAX_LISTS: usize = 8;

/// An object of the set.
#[derive(Debug)]
struct KnownObject {
    group: String,
    resource: String,
    /// The namespace of the object. `None` if the object sets none: it is in the default namespace or cluster-scoped.
    namespace: Option<String>,
    name: String,
    object: Value,
}

/// A set of objects that answers lookups.
#[derive(Debug, Default)]
pub struct KnownObjects {
    objects: Vec<KnownObject>,
    default_namespace: String,
}

impl KnownObjects {
    /// Creates the set from objects and lists of objects. An object without a namespace is treated both as
    /// cluster-scoped and as an object in `default_namespace`.
    #[must_use]
    pub fn new<'o>(objects: impl IntoIterator<Item = &'o Value>, default_namespace: &str) -> Self {
        let mut known = Self { objects: Vec::new(), default_namespace: default_namespace.to_owned() };
        for object in objects {
            known.add(object, 0);
        }
        known
    }

    fn add(&mut self, object: &Value, depth: usize) {
        if let Some(items) = object.get("items").and_then(Value::as_array).filter(|_| depth < MAX_LISTS) {
            for item in items {
                self.add(item, depth + 1);
            }
        }
        let text = |field: &str| object.get(field).and_then(Value::as_str);
        let metadata = |field: &str| Some(object.get("metadata")?.get(field)?.as_str()?.to_owned());
        let (Some(version), Some(kind), Some(name)) = (text("apiVersion"), text("kind"), metadata("name")) else {
            return;
        };
        self.objects.push(KnownObject {
            group: group_of(version).to_owned(),
            resource: plural(kind),
            namespace: metadata("namespace"),
            name,
            object: object.clone(),
        });
    }

    fn all<'k>(
        &'k self,
        group: &'k str,
        resource: &'k str,
        namespace: &'k str,
    ) -> impl Iterator<Item = &'k KnownObject> {
        self.objects.iter().filter(move |known| {
            let is_there = match &known.namespace {
                Some(other) => other == namespace,
                None => namespace.is_empty() || namespace == self.default_namespace,
            };
            known.group == group && known.resource == resource && is_there
        })
    }

    fn metadata(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Arc<OwnedTape>> {
        let known = self.all(group, resource, namespace).find(|known| known.name == name)?;
        metadata_tape(&known.object)
    }

    /// Answers all lookups of a review. The result does not contain facts about the cluster.
    #[must_use]
    pub fn answer(&self, wanted: Wanted) -> LookedUp {
        let namespace = wanted.namespace.clone();
        let service_account = wanted.service_account.as_deref().map_or(Answer::NotRequested, |name| {
            self.metadata("", "serviceaccounts", &namespace, name).map_or(Answer::Missing, Answer::Found)
        });
        let objects = wanted.objects.into_iter().map(|query| {
            let answer = self.object(&query).map_or(Answer::Missing, Answer::Found);
            (query, answer)
        });
        LookedUp {
            service_account,
            objects: objects.collect(),
            owners: wanted.owners.map_or(Answer::NotRequested, |chain| Answer::Found(self.follow(chain, &namespace))),
            cluster: None,
        }
    }

    fn follow(&self, mut chain: OwnerChain, namespace: &str) -> OwnerChain {
        while let Some(next) = chain.next() {
            let found =
                next.resource().and_then(|resource| self.metadata(next.group(), resource, namespace, &next.name));
            chain.found(found);
        }
        chain
    }

    fn object(&self, query: &Query) -> Option<Arc<OwnedTape>> {
        let mut all = self.all(&query.group, &query.resource, &query.namespace);
        let value = match &query.which {
            ObjectSelection::Named(name) => all.find(|known| *known.name == **name)?.object.clone(),
            ObjectSelection::Selected(selector) => {
                let is_selected = |known: &&KnownObject| {
                    let labels = known.object.pointer("/metadata/labels");
                    selector.matches(|key| labels?.get(key)?.as_str())
                };
                Value::Array(all.filter(is_selected).map(|known| known.object.clone()).collect())
            }
        };
        OwnedTape::parse(value.to_string()).ok().map(Arc::new)
    }
}

/// Returns the part of an object that a lookup of its metadata returns. Missing labels and annotations become empty
/// maps.
#[must_use]
pub fn metadata_tape(object: &Value) -> Option<Arc<OwnedTape>> {
    let mut metadata = object.get("metadata").cloned().unwrap_or_else(|| json!({}));
    for field in ["labels", "annotations"] {
        if metadata.get(field).is_none_or(Value::is_null)
            && let Some(metadata) = metadata.as_object_mut()
        {
            metadata.insert(field.to_owned(), json!({}));
        }
    }
    OwnedTape::parse(json!({"metadata": metadata}).to_string()).ok().map(Arc::new)
}

/// Returns the group of an `apiVersion`. Empty for the core group.
#[must_use]
pub fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Returns the resource name of a kind, by the conventions of Kubernetes: `ingresses` for `Ingress`, `networkpolicies`
/// for `NetworkPolicy`.
#[must_use]
pub fn plural(kind: &str) -> String {
    let kind = kind.to_lowercase();
    match kind.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{stem}ies"),
        _ if kind.ends_with(['s', 'x']) || kind.ends_with("ch") || kind.ends_with("sh") => format!("{kind}es"),
        _ => format!("{kind}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_plural_resources() {
        for (kind, resource) in [
            ("ServiceAccount", "serviceaccounts"),
            ("NetworkPolicy", "networkpolicies"),
            ("Ingress", "ingresses"),
            ("Gateway", "gateways"),
            ("ConfigMap", "configmaps"),
        ] {
            assert_eq!(plural(kind), resource);
        }
    }

    #[test]
    fn finds_objects_by_namespace_resource_and_labels() {
        let map = |name: &str, namespace: Option<&str>, team: &str| {
            json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": namespace, "labels": {"team": team}}})
        };
        let documents = [json!({"kind": "List", "apiVersion": "v1", "items": [
            map("a", None, "red"), map("b", Some("shop"), "red"), map("c", Some("shop"), "blue")]})];
        let known = KnownObjects::new(&documents, "default");
        let query = |namespace: &str, which: ObjectSelection| Query {
            group: "".into(),
            version: "v1".into(),
            resource: "configmaps".into(),
            namespace: namespace.into(),
            which,
        };
        let named = |namespace: &str, name: &str| {
            known.object(&query(namespace, ObjectSelection::Named(name.into()))).is_some()
        };
        assert!(named("default", "a") && named("shop", "b"));
        assert!(!named("shop", "a") && !named("default", "b") && !named("shop", "d"));
        let selector = serde_json::from_value(json!({"matchLabels": {"team": "red"}})).unwrap();
        let red = known.object(&query("shop", ObjectSelection::Selected(selector))).unwrap();
        let found: Vec<_> = red.root().items().filter_map(|item| item.at(&["metadata", "name"])?.as_str()).collect();
        assert_eq!(found, ["b"]);
    }
}
