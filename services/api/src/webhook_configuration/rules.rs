//! Builds the rules of the webhook configurations from the targets of profiles.
//!
//! The targets of profiles contain no wildcards and only namespaced resources. Invalid targets are rejected when a
//! profile is compiled, but this module also leaves them out, because a rule that matches too much can stop a cluster.
//! Cluster-scoped objects have no namespace that could opt in, so the rules for targets never match them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::admissionregistration::v1::RuleWithOperations;

use crate::names::GROUP;
use crate::profile::{Operation, ProfileSpec, Target};

const PODS: &str = "pods";

/// The requests for which the API server calls the validating paths.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Validated {
    /// The rules for all namespaces that opt in. They come from cluster profiles.
    pub everywhere: Vec<RuleWithOperations>,
    /// The requests that only namespaced profiles validate.
    pub own: OwnCalls,
}

/// The namespaces whose own profiles validate requests for pods, by resource (`pods` or a subresource) and operation.
pub type OwnCalls = BTreeMap<(String, Operation), BTreeSet<String>>;

/// Rules for which a configuration has one entry for each failure mode and each opt-in label that can set it.
pub(super) struct Scope<'a> {
    /// The part of the entry's name after the failure mode.
    pub(super) suffix: String,
    pub(super) rules: Vec<RuleWithOperations>,
    /// The namespaces of the entry. `None` if it is for all namespaces that opt in.
    pub(super) namespaces: Option<&'a BTreeSet<String>>,
    /// Whether the rules are for deletions. Unavailable replicas must never block a deletion, because it may be needed
    /// for recovery.
    pub(super) deletes: bool,
}

/// Returns the scopes of the validating configuration. No request matches two of them.
pub(super) fn scopes(validated: &Validated) -> Vec<Scope<'_>> {
    let everywhere = [(false, ""), (true, "-delete")].map(|(deletes, suffix)| {
        let rules = validated.everywhere.iter().filter_map(|rule| {
            let operations = rule.operations.iter().flatten();
            let operations: Vec<_> = operations.filter(|operation| is_delete(operation) == deletes).cloned().collect();
            (!operations.is_empty()).then(|| RuleWithOperations { operations: Some(operations), ..rule.clone() })
        });
        Scope { suffix: suffix.to_owned(), rules: rules.collect(), namespaces: None, deletes }
    });
    let own = validated.own.iter().map(|((resource, operation), namespaces)| Scope {
        suffix: format!("-own-{}-{}", resource.replace('/', "-"), operation.as_str().to_lowercase()),
        rules: vec![rule("", "v1", &[resource], &[operation.as_str()], "Namespaced")],
        namespaces: Some(namespaces),
        deletes: is_delete(operation.as_str()),
    });
    everywhere.into_iter().filter(|scope| !scope.rules.is_empty()).chain(own).collect()
}

fn is_delete(operation: &str) -> bool {
    operation == Operation::Delete.as_str()
}

/// Returns the rules for the objects that profiles inject into: pods, and the other objects in `targets`. For pods,
/// only creations match. For other objects, the creations and updates that a target lists match. Deletions and
/// subresources never match.
///
/// `targets` are the targets of profiles with templates.
#[must_use]
pub fn mutating_rules(targets: impl IntoIterator<Item = Target>) -> Vec<RuleWithOperations> {
    let template_targets = targets.into_iter().map(|target| {
        let is_pods = |resource: &String| target.group.is_empty() && resource == PODS;
        let resources: Vec<_> = target.resources.iter().filter(|resource| !resource.contains('/')).cloned().collect();
        let has_pods = resources.iter().any(is_pods);
        let is_reviewed = |operation: &Operation| match operation {
            Operation::Create => true,
            Operation::Update => !has_pods,
            Operation::Delete => false,
        };
        let requested = operations(&target);
        Target { resources, operations: requested.into_iter().filter(is_reviewed).collect(), ..target }
    });
    let template_targets = template_targets.filter(|target| !target.operations.is_empty());
    rules_of([Target::pods()].into_iter().chain(template_targets))
}

/// Returns the rules for the targets of all profiles with validations.
#[must_use]
pub fn validating_rules<'s>(profiles: impl IntoIterator<Item = &'s ProfileSpec>) -> Vec<RuleWithOperations> {
    let validating = profiles.into_iter().filter(|profile| !profile.validations.is_empty());
    rules_of(validating.map(|profile| profile.target.clone().unwrap_or_else(Target::pods)))
}

/// Returns the rules for targets: one for each group, version and resource, with the operations of all targets. Leaves
/// out resources that no rule may match. The order of the targets does not affect the order of the rules.
#[must_use]
pub fn rules_of(targets: impl IntoIterator<Item = Target>) -> Vec<RuleWithOperations> {
    let mut rules: BTreeMap<(String, String, String), BTreeSet<&'static str>> = BTreeMap::new();
    for target in targets {
        let requested = operations(&target);
        for resource in target.resources.iter().filter(|resource| is_allowed(&target, resource)) {
            let key = (target.group.clone(), target.version.clone(), resource.clone());
            rules.entry(key).or_default().extend(requested.iter().map(|operation| operation.as_str()));
        }
    }
    let rules = rules.into_iter().map(|((group, version, resource), operations)| {
        let operations: Vec<_> = operations.into_iter().collect();
        rule(&group, &version, &[&resource], &operations, "Namespaced")
    });
    rules.collect()
}

pub(super) fn rule(
    group: &str,
    version: &str,
    resources: &[&str],
    operations: &[&str],
    scope: &str,
) -> RuleWithOperations {
    let owned = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect());
    RuleWithOperations {
        api_groups: owned(&[group]),
        api_versions: owned(&[version]),
        operations: owned(operations),
        resources: owned(resources),
        scope: Some(scope.to_owned()),
    }
}

/// Converts a rule to targets, one for each group and version. Leaves out operations that a target cannot have: `*` and
/// `CONNECT`.
pub(super) fn targets_of(rule: &RuleWithOperations) -> Vec<Target> {
    let strings = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
    let requested = strings(&rule.operations);
    let mut operations = vec![Operation::Create, Operation::Update, Operation::Delete];
    operations.retain(|operation| requested.iter().any(|name| name == operation.as_str()));
    let mut targets = Vec::new();
    for group in strings(&rule.api_groups) {
        for version in strings(&rule.api_versions) {
            let (resources, operations) = (strings(&rule.resources), operations.clone());
            targets.push(Target { group: group.clone(), version, resources, operations });
        }
    }
    targets.retain(|target| !target.operations.is_empty());
    targets
}

fn operations(target: &Target) -> Vec<Operation> {
    if target.operations.is_empty() { vec![Operation::Create] } else { target.operations.clone() }
}

/// Whether a rule may match this resource. False for wildcards, leases and Pillion's own kinds, because such rules
/// could stop a cluster or prevent its repair. Compiling a profile rejects further resources.
fn is_allowed(target: &Target, resource: &str) -> bool {
    let is_wildcard = [&target.group, &target.version, resource].into_iter().any(|text| text.contains('*'));
    let is_vital = target.group == GROUP || (target.group == "coordination.k8s.io" && resource == "leases");
    !is_wildcard && !is_vital && !resource.is_empty() && !target.version.is_empty()
}
