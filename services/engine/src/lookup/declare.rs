//! Compiles the `lookups` that a profile declares.
//!
//! Lookups run with Pillion's permissions, and their results go into pods of others. So only cluster profiles may
//! declare them, their objects are known from the text alone, and Secrets are excluded.

use std::collections::HashMap;

use pillion_api::names::is_dns_name;
use pillion_api::profile::Lookup;

use super::{Query, Which};
use crate::diagnostic::Diagnostic;

/// A compiled lookup.
#[derive(Clone, Debug)]
pub(crate) struct Declared {
    pub(crate) name: Box<str>,
    /// The query. Its namespace counts only if the profile sets one.
    query: Query,
    in_objects_namespace: bool,
}

impl Declared {
    /// The query for an object of a namespace.
    pub(crate) fn query(&self, namespace: &str) -> Query {
        let mut query = self.query.clone();
        if self.in_objects_namespace {
            query.namespace = namespace.into();
        }
        query
    }
}

/// Compiles the lookups of a profile. Mistakes go to `diagnostics`.
pub(crate) fn compile(lookups: &[Lookup], diagnostics: &mut Vec<Diagnostic>) -> Box<[Declared]> {
    let mut names = HashMap::new();
    let mut compiled = Vec::new();
    for (index, lookup) in lookups.iter().enumerate() {
        let path = format!("spec.lookups[{index}]");
        let before = diagnostics.len();
        if let Some(first) = names.insert(&lookup.name, index) {
            let message = format!("the name {:?} stands at spec.lookups[{first}] too", lookup.name);
            diagnostics.push(Diagnostic::new(format!("{path}.name"), message));
        }
        check_resource(&path, lookup, diagnostics);
        let which = which(&path, lookup, diagnostics);
        if let (Some(which), true) = (which, diagnostics.len() == before) {
            compiled.push(Declared {
                name: lookup.name.as_str().into(),
                query: Query {
                    group: lookup.group.as_str().into(),
                    version: lookup.version.as_str().into(),
                    resource: lookup.resource.as_str().into(),
                    namespace: lookup.namespace.as_deref().unwrap_or_default().into(),
                    which,
                },
                in_objects_namespace: lookup.namespace.is_none(),
            });
        }
    }
    compiled.into()
}

fn check_resource(path: &str, lookup: &Lookup, diagnostics: &mut Vec<Diagnostic>) {
    if lookup.group.is_empty() && lookup.resource == "secrets" {
        let diagnostic = Diagnostic::new(format!("{path}.resource"), "Secrets are never looked up");
        diagnostics
            .push(diagnostic.with_help("let the pod refer to the Secret: env[].valueFrom.secretKeyRef, or a volume"));
        return;
    }
    for (field, value, may_be_empty) in [
        ("group", lookup.group.as_str(), true),
        ("version", &lookup.version, false),
        ("resource", &lookup.resource, false),
        ("namespace", lookup.namespace.as_deref().unwrap_or_default(), true),
    ] {
        if !(is_dns_name(value) || value.is_empty() && may_be_empty) {
            let message = format!("{value:?} is not a name of lower-case letters, digits, '-' and '.'");
            let diagnostic = Diagnostic::new(format!("{path}.{field}"), message);
            diagnostics.push(match field {
                "resource" => {
                    diagnostic.with_help("it is the plural in lower case, without a sub-resource: configmaps")
                }
                _ => diagnostic,
            });
        }
    }
}

fn which(path: &str, lookup: &Lookup, diagnostics: &mut Vec<Diagnostic>) -> Option<Which> {
    match (&lookup.object_name, &lookup.selector) {
        (Some(name), None) if is_dns_name(name) => Some(Which::Named(name.as_str().into())),
        (Some(name), None) => {
            let diagnostic =
                Diagnostic::new(format!("{path}.objectName"), format!("{name:?} is not the name of an object"));
            diagnostics
                .push(diagnostic.with_help("the name stands here as it is; expressions are not evaluated in it"));
            None
        }
        (None, Some(selector)) => match selector.fault() {
            None => Some(Which::Selected(selector.clone())),
            Some((field, sentence)) => {
                diagnostics.push(Diagnostic::new(format!("{path}.selector.{field}"), sentence));
                None
            }
        },
        (None, None) | (Some(_), Some(_)) => {
            let diagnostic = Diagnostic::new(path, "a look-up has either an objectName or a selector");
            diagnostics.push(diagnostic.with_help("objectName for one object, selector for a list"));
            None
        }
    }
}
