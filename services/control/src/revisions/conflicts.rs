//! Finds conflicts between profiles, for the condition `Conflicted`. Only the specs and names of the profiles are
//! compared.
//!
//! - If two profiles of one scope share a request key, a value such as `true` selects neither of them.
//! - If a namespaced profile has the name of a cluster profile, pods that request the name get both profiles.
//!
//! Conflicts over the same pod are not considered here. They are found when the pod is created, and reported by
//! warnings and by the audit.

use std::collections::{BTreeSet, HashMap};

use pillion_api::profile::Activation;
use pillion_engine::profile::{CompiledProfile, ProfileName};

/// Maximum number of profiles with the same key that are compared with each profile.
const COMPARED: usize = 64;
/// Maximum number of conflicting profiles that a message names.
const NAMED: usize = 5;

/// A conflict of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// A value that requests the default profile of `key` may also mean `others`.
    AmbiguousRequest { key: Box<str>, others: Vec<Box<str>> },
    /// A cluster profile has the same name.
    SharesName(Box<str>),
}

impl Conflict {
    /// Returns the reason for the condition `Conflicted`.
    pub(super) const fn reason(&self) -> &'static str {
        match self {
            Self::AmbiguousRequest { .. } => "AmbiguousRequest",
            Self::SharesName(_) => "SharesName",
        }
    }

    /// Returns the message for the condition `Conflicted`, with instructions.
    pub(super) fn message(&self) -> String {
        match self {
            Self::AmbiguousRequest { key, others } => format!(
                "a value such as true for {key} could mean this profile or {}, so pods with this value get none of \
                 them: name the profile in the pod, or change a key",
                others.join(", ")
            ),
            Self::SharesName(name) => format!(
                "ClusterInjectionProfile {name} has the same name: pods that request {name} get both profiles; rename this \
                 profile so that pods can request each of them"
            ),
        }
    }
}

/// Returns the conflict of each profile that has one.
pub(super) fn conflicts<'p>(profiles: impl Iterator<Item = &'p CompiledProfile>) -> HashMap<ProfileName, Conflict> {
    let active: Vec<_> = profiles.filter(|profile| profile.activation() != Activation::Never).collect();
    let mut cluster_names = BTreeSet::new();
    let mut by_key: HashMap<(Option<&str>, &str), Vec<&CompiledProfile>> = HashMap::new();
    for profile in &active {
        let ProfileName { namespace, name } = profile.name();
        if namespace.is_none() {
            cluster_names.insert(&**name);
        }
        for key in profile.request_keys() {
            by_key.entry((namespace.as_deref(), key)).or_default().push(profile);
        }
    }
    let mut found = HashMap::new();
    for profile in &active {
        let ProfileName { namespace, name } = profile.name();
        for key in profile.request_keys() {
            let sharing = by_key.get(&(namespace.as_deref(), key)).into_iter().flatten().take(COMPARED);
            let contending = sharing.filter(|other| profile.contends_with(other) == Some(key));
            let others: Vec<_> = contending.map(|other| other.display_name().into()).take(NAMED).collect();
            if !others.is_empty() && !found.contains_key(profile.name()) {
                found.insert(profile.name().clone(), Conflict::AmbiguousRequest { key: key.into(), others });
            }
        }
        if namespace.is_some() && cluster_names.contains(&**name) {
            found.entry(profile.name().clone()).or_insert_with(|| Conflict::SharesName(name.clone()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use pillion_engine::profile::compile;
    use serde_json::json;

    use super::*;

    fn profile(name: &ProfileName, key: Option<&str>) -> CompiledProfile {
        let spec = json!({"requestedBy": key.map(|key| json!({"annotation": key})),
                          "template": {"metadata": {"labels": {"a": "b"}}}});
        compile(name, &serde_json::from_value(spec).unwrap()).unwrap()
    }

    #[test]
    fn reports_shared_keys_and_shared_names() {
        let (cluster, shop) =
            (|name: &str| ProfileName::cluster(name), |name: &str| ProfileName::namespaced("shop", name));
        let all = [
            profile(&cluster("java"), Some("otel/inject")),
            profile(&cluster("python"), Some("otel/inject")),
            profile(&cluster("nginx"), Some("nginx/inject")),
            profile(&shop("own"), Some("nginx/inject")),
            profile(&shop("nginx"), None),
            profile(&ProfileName::namespaced("other", "own"), Some("nginx/inject")),
        ];
        let found = conflicts(all.iter());
        let ambiguous =
            |other: &str| Conflict::AmbiguousRequest { key: "otel/inject".into(), others: vec![other.into()] };
        let expected = [
            (cluster("java"), ambiguous("python")),
            (cluster("python"), ambiguous("java")),
            (shop("nginx"), Conflict::SharesName("nginx".into())),
        ];
        // `shop/own` and the cluster profile `nginx` share a key without a conflict: a namespace's own default profile
        // takes precedence.
        assert_eq!(found, HashMap::from(expected));
    }
}
