//! Limits of namespaced profiles, checked on the result of every injection.
//!
//! A tenant's profile acts on all pods of the namespace. Its text does not show what it will do, because values may
//! come from expressions. So the pod after the profile is compared with the pod before it:
//!
//! * `protected`: changes of the platform's profiles keep their values and positions.
//! * `scope`: which fields may change at all, and how much may be added.
//! * `pod_security`: no new violations of the Pod Security Standards ([`Control`]).
//!
//! [`Guardrails`] are the limits that the platform configures: registries, kinds of volumes, numbers. The first
//! violation is returned as an `Excess`, and the profile is not applied. Cluster profiles belong to the platform and
//! have no limits.

mod control;
mod difference;
mod excess;
mod image;
mod guardrails;
mod pod_security;
mod protected;
mod scope;

use std::collections::HashSet;

pub use control::{Control, PodSecurityLevel};
pub(crate) use excess::{Excess, Limit};
pub use guardrails::{Domain, Guardrails, VolumeKind};
pub use image::ImagePrefix;
pub(crate) use protected::Protected;

use crate::json::{Document, OwnedTape, Value};
use crate::namespace::NamespaceMetadata;
use crate::profile::Limits;
use pod_security::{CONTAINER_LISTS, Subject, Violation, name_of, violations};

/// The inputs of the limits for one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds<'b> {
    pub(crate) namespace: &'b NamespaceMetadata,
    pub(crate) guardrails: &'b Guardrails,
}

impl Bounds<'_> {
    /// Checks the result of a namespaced profile with these limits. `before` is the object after preceding profiles, if
    /// they changed it.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check(
        &self,
        limits: Limits,
        object: Value<'_>,
        before: Option<&Document<'_>>,
        after: &Document<'_>,
        protected: &Protected,
    ) -> Result<(), Excess> {
        let (before, after) = (before.map(read).transpose()?, read(after)?);
        let before = before.as_ref().map_or(object, OwnedTape::root);
        match limits {
            Limits::Tenant => check(before, after.root(), protected, self.namespace, self.guardrails),
            Limits::Parent | Limits::Platform => protected.check(before, after.root()),
        }
    }
}

/// Checks that the changes of the platform's profiles alone are part of the joint result of all profiles.
///
/// # Errors
/// The first violation.
pub(crate) fn check_interference(
    alone: &Document<'_>,
    together: &Document<'_>,
    protected: &Protected,
) -> Result<(), Excess> {
    protected.check(read(alone)?.root(), read(together)?.root())
}

fn read(document: &Document<'_>) -> Result<OwnedTape, Excess> {
    let mut text = String::new();
    document.write(Document::ROOT, &mut text);
    OwnedTape::parse(text).map_err(|_| Excess::unreadable())
}

/// Checks the result of a namespaced profile on a pod.
///
/// # Errors
/// The first violation.
pub(crate) fn check(
    before: Value<'_>,
    after: Value<'_>,
    protected: &Protected,
    namespace: &NamespaceMetadata,
    guardrails: &Guardrails,
) -> Result<(), Excess> {
    protected.check(before, after)?;
    scope::check(before, after, protected, guardrails)?;
    let label = PodSecurityLevel::from_label(namespace.label(PodSecurityLevel::LABEL));
    check_pod_security(before, after, label.max(guardrails.minimum_pod_security))
}

/// Checks that the pod has no new violation of a control. The controls of the level apply to all elements. Existing
/// elements must also keep fulfilling controls of higher levels that they fulfilled before.
fn check_pod_security(before: Value<'_>, after: Value<'_>, level: PodSecurityLevel) -> Result<(), Excess> {
    let known = violations(before);
    let names: HashSet<_> = elements(before).map(|(_, name)| name).collect();
    let weak: HashSet<_> = known.iter().map(|violation| (violation.control, &violation.subject)).collect();
    let counts = |violation: &&Violation<'_>| {
        let was_there = match &violation.subject {
            Subject::Pod => true,
            Subject::Container(name) | Subject::Volume(name) => names.contains(name),
        };
        let was_fulfilled = was_there && !weak.contains(&(violation.control, &violation.subject));
        violation.control.level() <= level || was_fulfilled
    };
    let after_all = violations(after);
    match after_all.iter().filter(|violation| !known.contains(*violation)).find(counts) {
        Some(violation) => Err(excess(violation, after, level)),
        None => Ok(()),
    }
}

/// Returns the containers and volumes of a pod, as list and name.
fn elements(pod: Value<'_>) -> impl Iterator<Item = (&'static str, std::borrow::Cow<'_, str>)> {
    CONTAINER_LISTS.into_iter().chain(["volumes"]).flat_map(move |list| {
        let items = pod.at(&["spec", list]).into_iter().flat_map(Value::items);
        items.map(move |item| (list, name_of(item)))
    })
}

fn excess(violation: &Violation<'_>, pod: Value<'_>, level: PodSecurityLevel) -> Excess {
    let Violation { control, subject, field, found } = violation;
    let path = field.replace('.', "/");
    let place = match subject {
        Subject::Pod if field.starts_with("metadata") => format!("/{path}"),
        Subject::Pod => format!("/spec/{path}"),
        Subject::Container(name) => {
            let list = elements(pod).find(|(list, other)| *list != "volumes" && other == name);
            format!("/spec/{}/{name}/{path}", list.map_or("containers", |(list, _)| list))
        }
        Subject::Volume(name) => format!("/spec/volumes/{name}/{path}"),
    };
    let what = if found.is_empty() { "what should be there is missing".to_owned() } else { format!("{found:?}") };
    let whose = if control.level() <= level { "of the namespace's pods" } else { "that was fulfilled before" };
    let message = format!(
        "{what} violates the Pod Security control {control} ({}) {whose}; expected {}; change it in the profile, or let a \
         cluster profile do it",
        control.level(),
        control.expected(),
    );
    Excess::new(Limit::PodSecurity(*control), place, message)
}

#[cfg(test)]
mod tests;
