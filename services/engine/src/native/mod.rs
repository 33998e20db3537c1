//! Converts profiles for Kubernetes' own admission policies, which the API server evaluates itself. The conversion is
//! pure: `pillion export` prints the policies, and the controller stores those of the safety net.
//!
//! * `conditions`: converts the selection of a profile to conditions, and checks which expressions the API server can
//!   evaluate.
//! * [`safety_net`]: converts the additions of profiles to the mutations of one policy.

mod conditions;
mod literal;
pub mod safety_net;

use pillion_api::ProfileSpec;
use pillion_api::opt_in::OptIn;
use pillion_api::profile::PreconditionAction;

use crate::profile::CompiledProfile;

pub use conditions::{Condition, Expressions, Message, Used, namespace_selector, quoted};

/// The objects that a policy covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyScope {
    /// Objects to which the profile applies.
    Profile,
    /// Objects of every kind, in all namespaces that the profile's selector matches. This is possible because the API
    /// server evaluates the policy itself; it never calls the webhook for every kind.
    Everywhere,
}

/// A part of a profile that Kubernetes' own policies cannot express.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotExported {
    /// The path of the field, such as `spec.validations[0]`.
    pub path: String,
    /// The reason, without a full stop.
    pub why: String,
}

impl NotExported {
    /// Creates the reason for a field.
    pub fn new(path: impl Into<String>, why: impl Into<String>) -> Self {
        Self { path: path.into(), why: why.into() }
    }
}

/// A profile, both compiled and as a spec, with the settings of the export.
#[derive(Clone, Copy, Debug)]
pub struct Profile<'p> {
    /// The compiled profile.
    pub compiled: &'p CompiledProfile,
    /// The spec from which it was compiled.
    pub spec: &'p ProfileSpec,
    /// The name of another profile that is requested with the same key.
    pub rival: Option<&'p str>,
    /// The objects that the policy covers.
    pub scope: PolicyScope,
    /// The labels with which namespaces opt in.
    pub opt_in: &'p OptIn,
}

/// The parts that all mutations and validations of a profile's policies share.
#[derive(Clone, Debug)]
pub struct Common {
    /// The match conditions of the policies.
    pub conditions: Vec<Condition>,
    /// Conditions that use variables or the namespace, which the API server's match conditions do not support. The
    /// mutations and validations apply only if all of these are true.
    pub guards: Vec<Condition>,
    /// The variables that the guards use.
    pub used: Used,
}

/// Returns the common parts of a profile's policies.
///
/// # Errors
/// Returns the field of the profile that policies cannot express, with the reason.
pub fn common(profile: Profile<'_>, expressions: &Expressions<'_>) -> Result<Common, NotExported> {
    let spec = profile.spec;
    for (path, is_there, why) in [
        ("spec.extends", spec.extends.is_some(), "some of its fields are in another profile"),
        ("spec.exclusiveGroup", spec.exclusive_group.is_some(), "policies cannot exclude one another"),
        ("spec.rollout", spec.rollout.is_some(), "a policy has no revisions"),
    ] {
        if is_there {
            return Err(NotExported::new(path, why));
        }
    }
    if let Some(index) = spec
        .parameters
        .iter()
        .position(|parameter| parameter.sources.as_ref().is_some_and(|sources| !sources.is_empty()))
    {
        let why = "the API server does not read parameters from annotations, so it cannot report an invalid value";
        return Err(NotExported::new(format!("spec.parameters[{index}]"), why));
    }
    if let Some(precondition) = spec.preconditions.first() {
        let why = match precondition.action.unwrap_or(PreconditionAction::Skip) {
            PreconditionAction::Warn | PreconditionAction::Skip => "it warns, which a condition of a policy cannot do",
            PreconditionAction::Deny => {
                "it rejects objects, which a condition of a policy cannot do; use a validation instead"
            }
        };
        return Err(NotExported::new("spec.preconditions[0]", why));
    }
    let (mut guards, mut conditions): (Vec<_>, Vec<_>) = conditions::conditions(profile)?
        .into_iter()
        .partition(|condition| condition.expression.contains("namespaceObject"));
    let mut used = Used::new();
    for (index, condition) in spec.match_conditions.iter().enumerate() {
        let path = format!("spec.matchConditions[{index}]");
        let needed = expressions.check(&condition.expression).map_err(|why| NotExported::new(&path, why))?;
        let name = if is_name(&condition.name) { condition.name.clone() } else { format!("condition-{index}") };
        let own = Condition { name, expression: condition.expression.trim().to_owned() };
        if needed.is_empty() && !expressions.reads_namespace(&condition.expression) {
            conditions.push(own);
        } else {
            guards.push(own);
            used.extend(needed);
        }
    }
    for (index, guard) in guards.iter_mut().enumerate() {
        let name = guard.name.trim_start_matches("pillion-").replace(['-', '.'], "_");
        guard.name = format!("pillion_{index}_{name}");
    }
    Ok(Common { conditions, guards, used })
}

/// Whether the API server accepts this condition name, and the name does not start with the prefix of the exporter's
/// own names.
fn is_name(name: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    edge(name.chars().next())
        && edge(name.chars().next_back())
        && name.len() <= 63
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && !name.starts_with("pillion-")
}
