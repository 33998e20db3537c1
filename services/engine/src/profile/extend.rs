//! Profiles that extend others: merges a chain of profiles into one.
//!
//! * `merge` merges a child into its parent. Parameters, variables, lookups, conditions, preconditions, container
//!   patches and validations merge by `name`, and templates by the keys of server-side apply. Everything else is
//!   replaced. Parameters merge field by field: a child with `{name: endpoint, default: x}` keeps the type and the
//!   range of the parent's parameter, and `sources: []` removes the keys. `description`, `activation`, `rollout` and
//!   `safetyNet` are never inherited.
//! * A namespaced profile that only extends a profile and sets values has no limits of its own. Any other namespaced
//!   profile has the limits for tenants.
//! * Each merged part keeps its origin, so that an error in an inherited part is reported for the parent.
//!
//! A revision is a hash of the flattened profile and its limits. So a change to an inherited field of a parent gives
//! its children new revisions.

mod merge;

use std::borrow::Cow;

use pillion_api::profile::ProfileSpec;
use serde::Deserialize;
use serde_json::Value as Json;

use self::merge::Part;
use super::flattened::{EXTENDS, FlattenedProfile, Origin};
use super::{Diagnostic, Limits, ProfileName, tenant};
use crate::expression::closest;

/// The maximum length of a chain: the profile and four ancestors. A shipped language profile already extends two
/// others, and a profile of the platform and one of the namespace may extend it.
pub const MAX_CHAIN: usize = 5;

/// The maximum number of match conditions in a flattened profile, and also of preconditions, container patches and
/// validations. The CRDs have the same limit for one profile.
const MAX_PARTS: usize = 64;

/// The maximum number of parameters, and also of variables. Profiles that replace other tools need many.
const MAX_NAMES: usize = 128;

/// The maximum number of lookups.
const MAX_LOOKUPS: usize = 16;

/// The result of looking up a cluster profile to extend.
#[derive(Clone, Debug)]
pub enum Parent<'p> {
    /// A profile that compiles by itself.
    Accepted(Cow<'p, ProfileSpec>),
    /// An invalid profile, with its spec if it can be parsed. The spec contains the name of the profile that it
    /// extends.
    Broken(Option<Cow<'p, ProfileSpec>>),
    /// The profile does not exist.
    Unknown,
}

/// The cluster profiles that can be extended.
pub trait Parents {
    /// Looks up a profile by name.
    fn parent(&self, name: &str) -> Parent<'_>;
    /// Returns the names of all profiles, for suggestions.
    fn names(&self) -> Vec<&str>;
}

/// A [`Parents`] without any profile.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoParents;

impl Parents for NoParents {
    fn parent(&self, _: &str) -> Parent<'_> {
        Parent::Unknown
    }

    fn names(&self) -> Vec<&str> {
        Vec::new()
    }
}

/// A cluster profile that another profile extends, directly or through others.
struct Ancestor<'p> {
    name: Box<str>,
    spec: Cow<'p, ProfileSpec>,
}

/// Merges a profile with all profiles that it extends.
///
/// # Errors
/// The chain is invalid, a namespaced profile changes inherited fields that it must not change, or the merged profile
/// has too many parts.
pub(super) fn flatten(
    name: &ProfileName,
    spec: &ProfileSpec,
    parents: &dyn Parents,
) -> Result<FlattenedProfile, Vec<Diagnostic>> {
    if spec.extends.is_none() {
        return Ok(FlattenedProfile::standalone(spec.clone(), Limits::of(name)));
    }
    let ancestors = ancestors(name, spec, parents).map_err(|diagnostic| vec![diagnostic])?;
    let mut inherited: Option<Part> = None;
    for (text, ancestor) in ancestors.iter().rev().enumerate() {
        let part = part(text, &ancestor.spec)?;
        inherited = Some(match inherited {
            Some(parent) => merge::merge_spec(parent, part),
            None => part,
        });
    }
    let own = part(ancestors.len(), spec)?;
    let mut diagnostics = Vec::new();
    let mut set_by_namespace = Vec::new();
    let merged = match inherited {
        Some(parent) if name.namespace.is_some() => {
            let inherited = read(&parent.json)?;
            tenant::check_extension(spec, &inherited, &mut diagnostics);
            let is_set = |name: &String| spec.parameters.iter().any(|own| own.name == *name);
            set_by_namespace.extend(inherited.parameters.iter().map(|parameter| parameter.name.clone()).filter(is_set));
            let mut merged = merge::merge_spec(parent, own);
            tenant::narrow(&mut merged.json, &inherited, spec);
            merged
        }
        Some(parent) => merge::merge_spec(parent, own),
        None => own,
    };
    let flat = ProfileSpec { extends: None, ..read(&merged.json)? };
    check_sizes(&flat, &mut diagnostics);
    if !diagnostics.is_empty() {
        return Err(diagnostics);
    }
    let limits = match Limits::of(name) {
        Limits::Tenant if tenant::only_extends(spec) => Limits::Parent,
        limits => limits,
    };
    let ancestors = ancestors.into_iter().map(|ancestor| ancestor.name).collect();
    let origin = Some(merged.origin);
    Ok(FlattenedProfile { spec: flat, limits, ancestors, set_by_namespace, stored_revision: None, origin })
}

/// Returns the ancestors of a profile, the nearest first.
fn ancestors<'p>(
    name: &ProfileName,
    spec: &ProfileSpec,
    parents: &'p dyn Parents,
) -> Result<Vec<Ancestor<'p>>, Diagnostic> {
    let mut chain: Vec<Ancestor<'p>> = Vec::new();
    let mut broken: Option<Box<str>> = None;
    let mut next = spec.extends.as_ref().map(|extends| Box::from(extends.name.as_str()));
    // A repeated name is an error, and the length is limited, so the loop ends.
    while let Some(parent) = next.take() {
        let at_extends = |sentence: &str| Diagnostic::new(EXTENDS, sentence);
        let by = chain.last().map(|ancestor| &ancestor.name);
        let so_far = || {
            let names = chain.iter().map(|ancestor| &*ancestor.name);
            std::iter::once(&*name.name).chain(names).chain([&*parent]).collect::<Vec<_>>().join(" -> ")
        };
        let is_itself = name.namespace.is_none() && *name.name == *parent;
        if is_itself || chain.iter().any(|ancestor| ancestor.name == parent) {
            return Err(at_extends(&format!("a profile cannot extend itself: {}", so_far()))
                .with_help("remove extends from one of them"));
        }
        if chain.len() + 1 >= MAX_CHAIN {
            return Err(at_extends(&format!("a chain has at most {MAX_CHAIN} profiles: {}", so_far()))
                .with_help("extend a later profile of the chain"));
        }
        let spec = match parents.parent(&parent) {
            Parent::Accepted(spec) => Some(spec),
            Parent::Broken(spec) => {
                broken.get_or_insert_with(|| parent.clone());
                spec
            }
            Parent::Unknown => {
                let by = by.map_or_else(String::new, |by| format!(", which {by} extends"));
                let diagnostic = at_extends(&format!("there is no cluster profile {parent:?}{by}"));
                return Err(match closest(&parent, parents.names()) {
                    Some(meant) => diagnostic.with_help(format!("did you mean {meant:?}?")),
                    None => diagnostic.with_help("only cluster profiles (ClusterInjectionProfile) can be extended"),
                });
            }
        };
        let Some(spec) = spec else { break };
        next = spec.extends.as_ref().map(|extends| Box::from(extends.name.as_str()));
        chain.push(Ancestor { name: parent, spec });
    }
    match broken {
        Some(broken) => {
            let diagnostic = Diagnostic::new(EXTENDS, format!("the cluster profile {broken:?} is invalid"));
            Err(diagnostic.with_help("correct it first; this profile needs no change"))
        }
        None => Ok(chain),
    }
}

/// Creates the part for the spec of one profile. `text` is the index of the profile in the chain: 0 is the profile that
/// extends nothing.
fn part(text: usize, spec: &ProfileSpec) -> Result<Part, Vec<Diagnostic>> {
    let json = serde_json::to_value(spec).map_err(|error| vec![unusable(&error)])?;
    Ok(Part { json, origin: Origin::of(text, "spec") })
}

fn read(json: &Json) -> Result<ProfileSpec, Vec<Diagnostic>> {
    ProfileSpec::deserialize(json).map_err(|error| vec![unusable(&error)])
}

/// Returns the diagnostic for a spec that cannot be converted to or from JSON during merging. This is a bug in Pillion,
/// because the specs were valid before.
fn unusable(error: &serde_json::Error) -> Diagnostic {
    Diagnostic::new(EXTENDS, format!("the profile cannot be merged with its parent: {error}"))
}

/// Checks that the merged spec does not have more parts than a stored profile may have.
fn check_sizes(spec: &ProfileSpec, diagnostics: &mut Vec<Diagnostic>) {
    for (field, found, most) in [
        ("parameters", spec.parameters.len(), MAX_NAMES),
        ("variables", spec.variables.len(), MAX_NAMES),
        ("matchConditions", spec.match_conditions.len(), MAX_PARTS),
        ("preconditions", spec.preconditions.len(), MAX_PARTS),
        ("containerPatches", spec.container_patches.len(), MAX_PARTS),
        ("validations", spec.validations.len(), MAX_PARTS),
        ("lookups", spec.lookups.len(), MAX_LOOKUPS),
    ] {
        if found > most {
            let message = format!("there are {found} {field}, including inherited ones; {most} are allowed");
            diagnostics.push(Diagnostic::new(format!("spec.{field}"), message));
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
