//! Computes the lookups that a profile may read from its text, and those that a review needs.

use std::collections::BTreeSet;

use super::{Declared, OwnerChain, Query, Wanted};
use crate::expression::Expression;
use crate::json::Value;

/// The fields of an owner that are known from a reference or a name.
const NAMED: [&str; 3] = ["apiVersion", "kind", "name"];

/// The service account of a pod that sets none.
const DEFAULT_ACCOUNT: &str = "default";

/// The lookups that a profile may read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Whether it reads the service account.
    pub service_account: bool,
    /// What it reads of the owners.
    pub owners: OwnerNeeds,
    /// The names of the declared `lookups` that it reads.
    pub lookups: BTreeSet<Box<str>>,
}

/// What a profile reads of owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum OwnerNeeds {
    /// Nothing.
    #[default]
    Nothing,
    /// Their API version, kind and name.
    Names,
    /// Also labels, annotations or UID, which need a lookup of each owner.
    Metadata,
}

impl Needs {
    /// Adds what an expression reads. All expressions of a profile count, even if they may not be evaluated.
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

    /// Whether no pod needs a lookup.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Wanted {
    /// Adds the lookups that a profile needs for an object.
    pub(crate) fn add(&mut self, needs: &Needs, declared: &[Declared], object: Value<'_>) {
        if needs.service_account && self.service_account.is_none() {
            self.service_account = Some(account_of(object));
        }
        if needs.owners > OwnerNeeds::Nothing {
            let chain = OwnerChain::of_pod(object, needs.owners == OwnerNeeds::Metadata);
            // Only a chain that needs more replaces one that is there.
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
    // The second field is the deprecated name of the first. The API server sets both.
    let name = field("serviceAccountName").or_else(|| field("serviceAccount"));
    name.map_or_else(|| DEFAULT_ACCOUNT.into(), Into::into)
}
