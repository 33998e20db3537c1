//! Lookups: cluster objects that expressions and parameters read, in addition to the request and the namespace.
//!
//! The engine does no I/O. [`Needs`] lists the lookups that a profile may read; they follow from the profile's spec.
//! [`Wanted`] lists the lookups that one review needs; they are known before the decision. The caller makes these
//! lookups and passes the results as [`LookedUp`]. A missing object is a valid result. A failed lookup is an error only
//! if an expression or a parameter reads its result.

mod known;
mod owners;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use pillion_api::names::is_dns_name;
use pillion_api::profile::Lookup;
use pillion_api::selector::LabelSelector;

use crate::diagnostic::Diagnostic;
use crate::expression::{EvaluationError, Expression};
use crate::json::{OwnedTape, Value};
use crate::reason::Reason;

pub use known::{KnownObjects, group_of, metadata_tape, plural};
pub(crate) use owners::{Owner, workload};
pub use owners::{OwnerChain, OwnerReference};

/// The fields of an owner that are known without a lookup: from the owner reference, or derived from the ReplicaSet's
/// name.
const NAMED: [&str; 3] = ["apiVersion", "kind", "name"];

/// The service account of a pod that sets none.
const DEFAULT_ACCOUNT: &str = "default";

/// The result of a lookup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Answer<T> {
    /// The lookup was not requested.
    #[default]
    NotRequested,
    /// The object does not exist. This is not an error.
    Missing,
    /// The found object.
    Found(T),
    /// The lookup failed, with a human-readable message.
    Failed(Box<str>),
}

/// A lookup of one object or of several objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// API group; empty for the core group.
    pub group: Box<str>,
    /// API version.
    pub version: Box<str>,
    /// Resource, in the plural.
    pub resource: Box<str>,
    /// The namespace of the objects; empty for cluster-scoped objects.
    pub namespace: Box<str>,
    /// Which objects to return.
    pub which: ObjectSelection,
}

/// A selection of the objects of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectSelection {
    /// The object with this name.
    Named(Box<str>),
    /// All objects that match this selector, as a list.
    Selected(LabelSelector),
}

/// The lookups that one review needs. Empty for most reviews.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The namespace of the object, of its service account and of its owners.
    pub namespace: Box<str>,
    /// The name of the object's service account. `None` if no profile reads the service account.
    pub service_account: Option<Box<str>>,
    /// The owners that are known without a lookup. The caller looks up the owners that [`OwnerChain::next`] returns.
    /// `None` if no owner has to be looked up.
    pub owners: Option<OwnerChain>,
    /// The declared `lookups` of profiles.
    pub objects: Vec<Query>,
}

/// The results of the lookups for one review. If only the metadata of an object is kept, the value is `{"metadata":
/// {...}}`.
#[derive(Clone, Debug, Default)]
pub struct LookedUp {
    /// The metadata of the service account.
    pub service_account: Answer<Arc<OwnedTape>>,
    /// The owners, the nearest first, with the metadata that was looked up.
    pub owners: Answer<OwnerChain>,
    /// The results of declared `lookups`: an object, or a list of objects.
    pub objects: Vec<(Query, Answer<Arc<OwnedTape>>)>,
    /// The platform's facts about the cluster, as a map. They need no lookup. `None` if there are no facts. `null` if
    /// the facts exist but are not available here; see [`LookedUp::unknown_cluster`].
    pub cluster: Option<Arc<OwnedTape>>,
}

/// The lookups that a profile may read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Whether the profile reads the service account.
    pub service_account: bool,
    /// The data of owners that the profile reads.
    pub owners: OwnerNeeds,
    /// The names of the declared `lookups` that the profile reads.
    pub lookups: BTreeSet<Box<str>>,
}

/// The data of owners that a profile reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum OwnerNeeds {
    /// No data.
    #[default]
    Nothing,
    /// The API version, kind and name of owners.
    Names,
    /// The data of [`Self::Names`], and also the labels, annotations or UID. These require a lookup of each owner.
    Metadata,
}

impl Needs {
    /// Adds the lookups that an expression reads, even if the expression is not always evaluated.
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

    /// Whether the profile reads no lookup results.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A compiled entry of a profile's `lookups`.
#[derive(Clone, Debug)]
pub(crate) struct Declared {
    pub(crate) name: Box<str>,
    /// The query. If `in_objects_namespace` is set, the profile sets no namespace, and the query's namespace is
    /// ignored.
    query: Query,
    in_objects_namespace: bool,
}

impl Declared {
    /// Returns the query for the review of an object in this namespace.
    pub(crate) fn query(&self, namespace: &str) -> Query {
        let mut query = self.query.clone();
        if self.in_objects_namespace {
            query.namespace = namespace.into();
        }
        query
    }
}

impl<T> Answer<T> {
    /// Returns the object. `None` if it does not exist. `what` is the name of the lookup in error messages.
    ///
    /// # Errors
    /// The lookup was not requested, or it failed.
    pub(crate) fn known(&self, what: &str) -> Result<Option<&T>, EvaluationError> {
        match self {
            Self::Found(found) => Ok(Some(found)),
            Self::Missing => Ok(None),
            Self::Failed(why) => Err(EvaluationError::unavailable(format!("{what} could not be looked up: {why}"))),
            Self::NotRequested => Err(EvaluationError::unavailable(format!("{what} was not looked up"))),
        }
    }
}

impl Wanted {
    /// Adds the lookups that a profile needs for an object. `declared` contains the profile's compiled `lookups`.
    pub(crate) fn add(&mut self, needs: &Needs, declared: &[Declared], object: Value<'_>) {
        if needs.service_account && self.service_account.is_none() {
            self.service_account = Some(account_of(object));
        }
        if needs.owners > OwnerNeeds::Nothing {
            let chain = OwnerChain::of_pod(object, needs.owners == OwnerNeeds::Metadata);
            // Replace an existing chain only with one that includes metadata.
            if chain.next().is_some() && (self.owners.is_none() || needs.owners == OwnerNeeds::Metadata) {
                self.owners = Some(chain);
            }
        }
        for lookup in declared.iter().filter(|lookup| needs.lookups.contains(&lookup.name)) {
            let query = lookup.query(&self.namespace);
            if !self.objects.contains(&query) {
                self.objects.push(query);
            }
        }
    }

    /// Whether no lookup is needed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.service_account.is_none() && self.owners.is_none() && self.objects.is_empty()
    }

    /// Sets the same result for all lookups: [`Answer::Missing`] if there is no cluster, or [`Answer::Failed`] with the
    /// reason. The names of owners that are known without a lookup are kept unless the result is `Failed`.
    #[must_use]
    pub fn answered(self, answer: &Answer<Arc<OwnedTape>>) -> LookedUp {
        LookedUp {
            service_account: if self.service_account.is_some() { answer.clone() } else { Answer::NotRequested },
            owners: match (self.owners, answer) {
                (None, _) => Answer::NotRequested,
                (Some(_), Answer::Failed(why)) => Answer::Failed(why.clone()),
                (Some(chain), _) => Answer::Found(chain),
            },
            objects: self.objects.into_iter().map(|query| (query, answer.clone())).collect(),
            cluster: None,
        }
    }
}

impl LookedUp {
    /// Returns the value of [`LookedUp::cluster`] for unknown facts. Expressions that read the facts then fail.
    #[must_use]
    pub fn unknown_cluster() -> Option<Arc<OwnedTape>> {
        OwnedTape::parse("null".to_owned()).ok().map(Arc::new)
    }

    /// Returns the result of a declared lookup. [`Answer::NotRequested`] if it was not requested.
    pub(crate) fn object(&self, query: &Query) -> Answer<Arc<OwnedTape>> {
        self.objects.iter().find(|(asked, _)| asked == query).map_or(Answer::NotRequested, |(_, answer)| answer.clone())
    }
}

/// Returns the decision reason for an expression that could not be evaluated.
pub(crate) fn reason_of(error: &EvaluationError) -> Reason {
    if error.is_unavailable() { Reason::LookupFailed } else { Reason::ExpressionFailed }
}

/// Returns the name of a pod's service account.
fn account_of(object: Value<'_>) -> Box<str> {
    let field = |name: &str| object.at(&["spec", name]).and_then(Value::as_str).filter(|name| !name.is_empty());
    // `serviceAccount` is the deprecated name of `serviceAccountName`. The API server sets both.
    let name = field("serviceAccountName").or_else(|| field("serviceAccount"));
    name.map_or_else(|| DEFAULT_ACCOUNT.into(), Into::into)
}

/// Compiles the lookups that a profile declares. Adds errors to `diagnostics`, and leaves out lookups with errors.
///
/// Lookups use Pillion's permissions, and profiles may write the results into any author's pods. Therefore only cluster
/// profiles may declare lookups, the spec and the reviewed object's namespace alone determine the objects, and Secrets
/// cannot be looked up.
pub(crate) fn compile(lookups: &[Lookup], diagnostics: &mut Vec<Diagnostic>) -> Box<[Declared]> {
    let mut names = HashMap::new();
    let mut compiled = Vec::new();
    for (index, lookup) in lookups.iter().enumerate() {
        let path = format!("spec.lookups[{index}]");
        let before = diagnostics.len();
        if let Some(first) = names.insert(&lookup.name, index) {
            let message = format!("the name {:?} is also used at spec.lookups[{first}]", lookup.name);
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
                    diagnostic.with_help("use the lower-case plural without a subresource, such as configmaps")
                }
                _ => diagnostic,
            });
        }
    }
}

fn which(path: &str, lookup: &Lookup, diagnostics: &mut Vec<Diagnostic>) -> Option<ObjectSelection> {
    match (&lookup.object_name, &lookup.selector) {
        (Some(name), None) if is_dns_name(name) => Some(ObjectSelection::Named(name.as_str().into())),
        (Some(name), None) => {
            let diagnostic =
                Diagnostic::new(format!("{path}.objectName"), format!("{name:?} is not the name of an object"));
            diagnostics.push(diagnostic.with_help("expressions are not evaluated in this name"));
            None
        }
        (None, Some(selector)) => match selector.fault() {
            None => Some(ObjectSelection::Selected(selector.clone())),
            Some((field, sentence)) => {
                diagnostics.push(Diagnostic::new(format!("{path}.selector.{field}"), sentence));
                None
            }
        },
        (None, None) | (Some(_), Some(_)) => {
            let diagnostic = Diagnostic::new(path, "a lookup has either an objectName or a selector");
            diagnostics.push(diagnostic.with_help("objectName for one object, selector for a list"));
            None
        }
    }
}

#[cfg(test)]
mod tests;
