//! Profiles that extend others: a chain of texts becomes one, which is then compiled as if somebody had written it so.
//!
//! * `merge` lays a child's text over its parent's. Parameters, variables, look-ups, conditions, rules for containers
//!   and validations merge by `name`, the template by the keys of server-side apply; all else is replaced. A parameter is
//!   merged field by field, so that a child which says only `{name: endpoint, default: x}` keeps the type and the bounds of
//!   its parent's; `sources: []` takes the keys away. `description`, `activation` and
//!   `rollout` are each profile's own.
//! * `tenant` holds a namespace's profile to what its parent allows. One that only extends and sets values is bounded by
//!   its parent alone; one that says more (a template, variables, ...) is bounded as any other of a namespace is.
//! * `origin` remembers who wrote what, so that a mistake in an inherited part is told as the parent's.
//!
//! A revision is a hash of the merged text and of what bounds it: a change of a parent gives its children a new one.

mod merge;
mod origin;
mod tenant;

use std::borrow::Cow;

use pillion_api::profile::ProfileSpec;
use serde::Deserialize;
use serde_json::Value as Json;

use self::merge::Part;
use self::origin::Origin;
use super::{Diagnostic, Limits, ProfileName};
use crate::expression::closest;

/// How many profiles a chain may have: the one that is compiled, and four that it extends. What the shipped profiles of a
/// language extend is two deep already; a platform's own stands before them, and a namespace's before that.
pub const MAX_CHAIN: usize = 5;

/// How many parts of one kind a profile may have together with those that it extends: as many as one may have alone,
/// which is what the definitions of the two kinds allow.
const MAX_PARTS: usize = 64;

/// The same for parameters and for variables: what other tools spread over values, templates and code is all in these.
const MAX_NAMES: usize = 128;

/// The same for look-ups.
const MAX_LOOKUPS: usize = 16;

/// The field about which everything is told that is wrong with a parent.
const EXTENDS: &str = "spec.extends.name";

/// The cluster profile of a name, as one that extends it finds it.
#[derive(Clone, Debug)]
pub enum Parent<'p> {
    /// Its text, which compiles by itself.
    Accepted(Cow<'p, ProfileSpec>),
    /// It does not compile. Its text, as far as it can be read, tells what it extends itself.
    Broken(Option<Cow<'p, ProfileSpec>>),
    /// There is none.
    Unknown,
}

/// The cluster profiles that there are.
pub trait Parents {
    /// The one of this name.
    fn parent(&self, name: &str) -> Parent<'_>;
    /// The names of all, to tell which one was probably meant.
    fn names(&self) -> Vec<&str>;
}

/// No profiles.
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

/// The text of a profile with what it inherits.
#[derive(Clone, Debug)]
pub(super) struct Effective {
    pub(super) spec: ProfileSpec,
    pub(super) limits: Limits,
    /// The profiles that it extends, the nearest first.
    pub(super) ancestors: Vec<Box<str>>,
    /// The inherited parameters that a profile of a namespace sets.
    pub(super) set: Vec<String>,
    origin: Origin,
}

/// A text of the chain.
struct Ancestor<'p> {
    name: Box<str>,
    spec: Cow<'p, ProfileSpec>,
}

/// Makes the text of a profile and those of all that it extends into one, which extends nothing.
///
/// # Errors
/// What is wrong with the chain, and what a namespace's profile may not say of what it inherits.
pub(super) fn resolve(
    name: &ProfileName,
    spec: &ProfileSpec,
    parents: &dyn Parents,
) -> Result<Effective, Vec<Diagnostic>> {
    let ancestors = ancestors(name, spec, parents).map_err(|diagnostic| vec![diagnostic])?;
    let mut diagnostics = Vec::new();
    let mut set = Vec::new();
    let mut merged: Option<Part> = None;
    for (text, ancestor) in ancestors.iter().rev().enumerate() {
        let part = part(text, &ancestor.spec)?;
        merged = Some(match merged {
            Some(parent) => merge::lay_spec(parent, part),
            None => part,
        });
    }
    let own = part(ancestors.len(), spec)?;
    let merged = match merged {
        Some(parent) if name.namespace.is_some() => {
            let inherited = read(&parent.json)?;
            tenant::check(spec, &inherited, &mut diagnostics);
            let theirs = |name: &String| spec.parameters.iter().any(|own| own.name == *name);
            set.extend(inherited.parameters.iter().map(|parameter| parameter.name.clone()).filter(theirs));
            let mut merged = merge::lay_spec(parent, own);
            tenant::narrow(&mut merged, &inherited, spec);
            merged
        }
        Some(parent) => merge::lay_spec(parent, own),
        None => own,
    };
    let mut spec_of_all = read(&merged.json)?;
    spec_of_all.extends = None;
    check_sizes(&spec_of_all, &mut diagnostics);
    let limits = match Limits::of(name) {
        Limits::Tenant if tenant::only_extends(spec) => Limits::Parent,
        limits => limits,
    };
    if diagnostics.is_empty() {
        let ancestors = ancestors.into_iter().map(|ancestor| ancestor.name).collect();
        Ok(Effective { spec: spec_of_all, limits, ancestors, set, origin: merged.origin })
    } else {
        Err(diagnostics)
    }
}

impl Effective {
    /// What is wrong with the merged text, told of the text in which it was written.
    pub(super) fn relocate(&self, diagnostic: Diagnostic) -> Diagnostic {
        let Some(path) = diagnostic.path.strip_prefix("spec") else { return diagnostic };
        let (text, path) = self.origin.locate(path);
        // The last text is the profile's own, the one before it its parent's.
        let up = self.ancestors.len().checked_sub(text + 1);
        match up.and_then(|up| self.ancestors.get(up)) {
            None => Diagnostic { path, ..diagnostic },
            Some(ancestor) => {
                let message = format!("{path} of {ancestor}, which it extends: {}", diagnostic.message);
                Diagnostic { help: diagnostic.help, ..Diagnostic::new(EXTENDS, message) }
            }
        }
    }
}

/// The profiles that one extends, the nearest first.
fn ancestors<'p>(
    name: &ProfileName,
    spec: &ProfileSpec,
    parents: &'p dyn Parents,
) -> Result<Vec<Ancestor<'p>>, Diagnostic> {
    let mut chain: Vec<Ancestor<'p>> = Vec::new();
    let mut broken: Option<Box<str>> = None;
    let mut next = spec.extends.as_ref().map(|extends| Box::from(extends.name.as_str()));
    // A name that comes again is found, and a chain has few names: the loop ends.
    while let Some(parent) = next.take() {
        let said = |sentence: &str| Diagnostic::new(EXTENDS, sentence);
        let by = chain.last().map(|ancestor| &ancestor.name);
        let so_far = || {
            let names = chain.iter().map(|ancestor| &*ancestor.name);
            std::iter::once(&*name.name).chain(names).chain([&*parent]).collect::<Vec<_>>().join(" -> ")
        };
        let is_itself = name.namespace.is_none() && *name.name == *parent;
        if is_itself || chain.iter().any(|ancestor| ancestor.name == parent) {
            return Err(said(&format!("a profile cannot extend itself: {}", so_far()))
                .with_help("leave extends out of one of them"));
        }
        if chain.len() + 1 >= MAX_CHAIN {
            return Err(said(&format!("a chain has at most {MAX_CHAIN} profiles: {}", so_far()))
                .with_help("extend one of the later ones"));
        }
        let spec = match parents.parent(&parent) {
            Parent::Accepted(spec) => Some(spec),
            Parent::Broken(spec) => {
                broken.get_or_insert_with(|| parent.clone());
                spec
            }
            Parent::Unknown => {
                let by = by.map_or_else(String::new, |by| format!(", which {by} extends"));
                let diagnostic = said(&format!("there is no cluster profile {parent:?}{by}"));
                return Err(match closest(&parent, parents.names()) {
                    Some(meant) => diagnostic.with_help(format!("did you mean {meant:?}?")),
                    None => diagnostic.with_help(
                        "what is extended is a ClusterInjectionProfile; a profile of a namespace cannot be extended",
                    ),
                });
            }
        };
        let Some(spec) = spec else { break };
        next = spec.extends.as_ref().map(|extends| Box::from(extends.name.as_str()));
        chain.push(Ancestor { name: parent, spec });
    }
    match broken {
        Some(broken) => {
            let diagnostic = Diagnostic::new(EXTENDS, format!("the cluster profile {broken:?} is broken itself"));
            Err(diagnostic.with_help("mend it first; this one follows by itself"))
        }
        None => Ok(chain),
    }
}

/// The whole of a text.
fn part(text: usize, spec: &ProfileSpec) -> Result<Part, Vec<Diagnostic>> {
    let json = serde_json::to_value(spec).map_err(|error| vec![unusable(&error)])?;
    Ok(Part { json, origin: Origin::of(text, "spec") })
}

fn read(json: &Json) -> Result<ProfileSpec, Vec<Diagnostic>> {
    ProfileSpec::deserialize(json).map_err(|error| vec![unusable(&error)])
}

/// Texts that were read once can be read merged: a mistake here is this program's.
fn unusable(error: &serde_json::Error) -> Diagnostic {
    Diagnostic::new(EXTENDS, format!("the profile cannot be merged with its parent: {error}"))
}

/// Each text alone is bounded where it is stored; together they have to be as well.
fn check_sizes(spec: &ProfileSpec, diagnostics: &mut Vec<Diagnostic>) {
    for (field, found, most) in [
        ("parameters", spec.parameters.len(), MAX_NAMES),
        ("variables", spec.variables.len(), MAX_NAMES),
        ("matchConditions", spec.match_conditions.len(), MAX_PARTS),
        ("containers", spec.containers.len(), MAX_PARTS),
        ("validations", spec.validations.len(), MAX_PARTS),
        ("lookups", spec.lookups.len(), MAX_LOOKUPS),
    ] {
        if found > most {
            let message = format!("with those that are inherited there are {found} {field}; {most} are allowed");
            diagnostics.push(Diagnostic::new(format!("spec.{field}"), message));
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
