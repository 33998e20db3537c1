//! What a profile wants looked up, as its text says it, and what one review therefore wants.

use std::collections::BTreeSet;

use super::{Declared, OwnerChain, Query, Wanted};
use crate::expression::Expression;
use crate::json::Value;

/// The fields of an owner that a reference to it has, or that follow from a name.
const NAMED: [&str; 3] = ["apiVersion", "kind", "name"];

/// The service account of a pod that names none.
const DEFAULT_ACCOUNT: &str = "default";

/// What a profile may read of what has to be looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Whether it reads the service account.
    pub service_account: bool,
    /// What it reads of the owners.
    pub owners: OwnerNeeds,
    /// The names of those of its `lookups` that it reads.
    pub lookups: BTreeSet<Box<str>>,
}

/// What a profile reads of owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum OwnerNeeds {
    /// Nothing.
    #[default]
    Nothing,
    /// Who they are: version, kind and name.
    Names,
    /// Labels, annotations or UID too, for which each has to be looked up.
    Metadata,
}

impl Needs {
    /// Adds what an expression reads. All expressions of a profile count, also those that may not be evaluated.
    pub(crate) fn add(&mut self, expression: &Expression) {
        self.service_account |= expression.uses("serviceAccount");
        for (name, is_list) in [("owner", false), ("owners", true)] {
            if !expression.uses(name) {
                continue;
            }
            let only_names = expression
                .fields_of(name, is_list)
                .is_some_and(|fields| fields.iter().all(|field| NAMED.contains(&&**field)));
            self.owners = self.owners.max(if only_names { OwnerNeeds::Names } else { OwnerNeeds::Metadata });
        }
        self.lookups.extend(expression.members("lookups").map(Box::from));
    }

    /// Whether nothing has to be looked up, for whatever pod.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Wanted {
    /// Adds what a profile needs for an object.
    pub(crate) fn add(&mut self, needs: &Needs, declared: &[Declared], object: Value<'_>) {
        if needs.service_account && self.service_account.is_none() {
            self.service_account = Some(account_of(object));
        }
        if needs.owners > OwnerNeeds::Nothing {
            let chain = OwnerChain::of_pod(object, needs.owners == OwnerNeeds::Metadata);
            // A chain that is wanted already is replaced only by one that wants more.
            if chain.next().is_some() && (self.owners.is_none() || needs.owners == OwnerNeeds::Metadata) {
                self.owners = Some(chain);
            }
        }
        for lookup in declared.iter().filter(|lookup| needs.lookups.contains(&lookup.name)) {
            let query: Query = lookup.query(&self.namespace);
            if !self.objects.contains(&query) {
                self.objects.push(query);
            }
        }
    }
}

/// The name of a pod's service account.
fn account_of(object: Value<'_>) -> Box<str> {
    let field = |name: &str| object.at(&["spec", name]).and_then(Value::as_str).filter(|name| !name.is_empty());
    // The second is the old name of the first. The API server fills in both.
    let name = field("serviceAccountName").or_else(|| field("serviceAccount"));
    name.map_or_else(|| DEFAULT_ACCOUNT.into(), Into::into)
}
