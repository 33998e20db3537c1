//! Finds the profiles that extend a profile: a rollback or a rollout of it does not affect them.

use std::collections::BTreeSet;

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use pillion_api::{ClusterInjectionProfile, InjectionProfile};
use pillion_control::client::lists;

/// The maximum number of children that are named.
const NAMED: usize = 20;

/// A profile that extends another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Child {
    namespace: Option<String>,
    name: String,
    parent: String,
}

/// Formats a note about the profiles that extend a cluster profile, directly or indirectly; empty if there are none.
pub(super) async fn told(client: &Client, name: &str) -> String {
    match listed(client).await {
        Ok(all) => text(name, &extending(name, &all)),
        Err(error) => format!(
            "Profiles that extend {name} go on with its text as it is stored; who they are was not told: {error}\n"
        ),
    }
}

async fn listed(client: &Client) -> kube::Result<Vec<Child>> {
    let mut all = Vec::new();
    for resource in [ApiResource::erase::<ClusterInjectionProfile>(&()), ApiResource::erase::<InjectionProfile>(&())] {
        let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
        all.extend(lists::all(&api, &ListParams::default()).await?.into_iter().filter_map(child));
    }
    Ok(all)
}

fn child(object: DynamicObject) -> Option<Child> {
    let parent = object.data.pointer("/spec/extends/name")?.as_str()?.to_owned();
    Some(Child { namespace: object.metadata.namespace, name: object.metadata.name?, parent })
}

/// Returns all descendants. Only cluster profiles can be extended, so a namespace's profile has no children.
fn extending<'c>(name: &str, all: &'c [Child]) -> BTreeSet<&'c Child> {
    let mut found = BTreeSet::new();
    let mut parents = vec![name];
    while let Some(parent) = parents.pop() {
        for child in all.iter().filter(|child| child.parent == parent) {
            if found.insert(child) && child.namespace.is_none() {
                parents.push(&child.name);
            }
        }
    }
    found
}

fn text(name: &str, children: &BTreeSet<&Child>) -> String {
    if children.is_empty() {
        return String::new();
    }
    let named = children.iter().take(NAMED).map(|Child { namespace, name, .. }| match namespace {
        Some(namespace) => format!("  InjectionProfile {namespace}/{name}\n"),
        None => format!("  ClusterInjectionProfile {name}\n"),
    });
    let more = children.len().saturating_sub(NAMED);
    let more = if more > 0 { format!("  and {more} more\n") } else { String::new() };
    format!(
        "It is not rolled back for those that extend it, which go on with its text as it is stored:\n{}{more}\
         Roll each of them back too. An InjectionProfile that only sets parameters cannot be: correct the text of {name} \
         for those.\n",
        named.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_extend_it_are_told_also_by_way_of_others() {
        let child = |namespace: Option<&str>, name: &str, parent: &str| Child {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            parent: parent.to_owned(),
        };
        let all = [
            child(None, "java", "otel"),
            child(Some("shop"), "ours", "java"),
            child(Some("shop"), "otel", "otel"),
            child(Some("shop"), "theirs", "nginx"),
            // A cycle, which the controller never accepts.
            child(None, "otel", "java"),
        ];
        let told = text("otel", &extending("otel", &all));
        for expected in
            ["ClusterInjectionProfile java\n", "InjectionProfile shop/ours\n", "InjectionProfile shop/otel\n"]
        {
            assert!(told.contains(expected), "{told}");
        }
        assert!(!told.contains("theirs"), "{told}");
        assert_eq!(text("nothing", &extending("nothing", &all)), "");
        let many: Vec<_> = (0..NAMED + 3).map(|number| child(None, &format!("p-{number}"), "otel")).collect();
        assert!(text("otel", &extending("otel", &many)).contains("and 3 more"));
    }
}
