//! A simulated cluster: the profiles and namespaces with which a command computes decisions for pods without an API
//! server. Lookups use the other objects of the manifests. The owner of a template's pod is the workload itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pillion_api::names::{FailureMode, INJECT_LABEL, INJECTION_LABEL, NAMESPACE_NAME_LABEL};
use pillion_api::opt_in::OptIn;
use pillion_engine::decision::{Decision, Reason};
use pillion_engine::limits::Guardrails;
pub(crate) use pillion_engine::lookup::KnownObjects;
use pillion_engine::lookup::{Answer, LookedUp, OwnerChain, OwnerReference, Wanted, metadata_tape};
use pillion_engine::profile::CompiledProfile;
use pillion_engine::review::{Decided, Endpoint, Facts, RecordTrust, Review};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use pillion_json::OwnedTape;
use serde_json::{Value, json};

use super::objects::Place;
use crate::config::{ConfigArg, Overrides, WebhookPolicy};
use crate::load::{self, LoadError, Problem, Source, typed, yaml};
use crate::trial;

/// Profiles, namespaces, the namespace of objects that do not set one, and the cluster facts.
#[derive(Debug)]
pub(crate) struct SimulatedCluster {
    snapshot: Snapshot,
    default_namespace: String,
    cluster: Option<Arc<OwnedTape>>,
}

impl SimulatedCluster {
    /// Reads profiles, namespaces and the webhook's policy file.
    ///
    /// # Errors
    /// The files have problems, or the cluster facts are invalid.
    pub(crate) fn configured(
        profiles: &[PathBuf],
        namespaces: Option<&Path>,
        default_namespace: Option<&str>,
        config: &ConfigArg,
    ) -> Result<Self, LoadError> {
        let (simulated, mut problems) = Self::load(profiles, namespaces, default_namespace);
        match (simulated, config.load::<WebhookPolicy>(&Overrides::default())) {
            (Some(simulated), Ok(policy)) if problems.is_empty() => {
                let cluster = policy.cluster_facts()?;
                let opt_in = policy.opt_in();
                Ok(simulated.guarded(policy.guardrails).opting_in_by(&opt_in).with_cluster(cluster))
            }
            (_, Err(more)) => {
                problems.extend(more);
                Err(LoadError::Problems(problems))
            }
            _ => Err(LoadError::Problems(problems)),
        }
    }

    /// Reads profiles and namespaces. If the namespaces cannot be read, returns `None` and the problem.
    fn load(
        profiles: &[PathBuf],
        namespaces: Option<&Path>,
        default_namespace: Option<&str>,
    ) -> (Option<Self>, Vec<Problem>) {
        let namespaces = match namespaces.map(read_namespaces).transpose() {
            Ok(namespaces) => namespaces.unwrap_or_default(),
            Err(problem) => return (None, vec![problem]),
        };
        let only = match namespaces.as_slice() {
            [(name, _)] => Some(&**name),
            _ => None,
        };
        let default_namespace = default_namespace.or(only).unwrap_or("default").to_owned();
        let loaded = load::profiles_in(profiles, &default_namespace);
        (Some(Self::new(loaded.profiles, namespaces, default_namespace)), loaded.problems)
    }

    /// Creates a cluster with these profiles and namespaces.
    pub(crate) fn new(
        profiles: impl IntoIterator<Item = Arc<CompiledProfile>>,
        namespaces: Vec<(Box<str>, Namespace)>,
        default_namespace: String,
    ) -> Self {
        let snapshot = Snapshot::new(ProfileSet::new(profiles)).with_namespaces(namespaces);
        Self { snapshot, default_namespace, cluster: None }
    }

    /// Sets the cluster facts of the platform.
    pub(crate) fn with_cluster(self, cluster: Option<Arc<OwnedTape>>) -> Self {
        Self { cluster, ..self }
    }

    /// Returns the cluster facts of the platform.
    pub(crate) fn cluster(&self) -> Option<Arc<OwnedTape>> {
        self.cluster.clone()
    }

    /// Sets the platform's guardrails for tenants' profiles.
    pub(crate) fn guarded(self, guardrails: Guardrails) -> Self {
        Self { snapshot: self.snapshot.with_guardrails(guardrails), ..self }
    }

    /// Sets the labels with which namespaces opt in.
    pub(crate) fn opting_in_by(self, opt_in: &OptIn) -> Self {
        let known =
            self.snapshot.namespaces().map(|(name, known)| (name.into(), Namespace::clone(known).opting_in_by(opt_in)));
        let known: Vec<(Box<str>, Namespace)> = known.collect();
        Self { snapshot: self.snapshot.with_namespaces(known), ..self }
    }

    /// Returns the profiles and namespaces for the engine.
    pub(crate) const fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Returns the namespace of objects that do not set one.
    pub(crate) fn default_namespace(&self) -> &str {
        &self.default_namespace
    }

    /// Returns a namespace, and the path that the API server would call for it. A namespace without a manifest is
    /// treated as opted in.
    pub(crate) fn namespace(&self, name: &str) -> (Arc<Namespace>, Endpoint) {
        if let Some(namespace) = self.snapshot.namespace(name) {
            return (namespace, Endpoint::Any);
        }
        let failure_mode = FailureMode::Enabled;
        let labels = [(INJECTION_LABEL, failure_mode.label_value()), (NAMESPACE_NAME_LABEL, name)];
        (Arc::new(Namespace::new(labels, [])), Endpoint::FailureMode(failure_mode))
    }
}

fn read_namespaces(file: &Path) -> Result<Vec<(Box<str>, Namespace)>, Problem> {
    let name = file.display().to_string();
    let text =
        fs::read_to_string(file).map_err(|error| Problem::whole(name.as_str(), format!("cannot be read: {error}")))?;
    let source = Arc::new(Source::new(name, text));
    let described = namespaces_of(&source)?.into_iter().map(|ObjectMeta { name, labels, annotations, .. }| {
        let (name, mut labels) = (name.unwrap_or_default(), labels.unwrap_or_default());
        // The API server sets this label on each namespace.
        labels.insert(NAMESPACE_NAME_LABEL.to_owned(), name.clone());
        (name.into(), Namespace::new(labels, annotations.unwrap_or_default()))
    });
    Ok(described.collect())
}

/// Returns the metadata of the Namespaces in a source. Objects without a kind count as Namespaces. Returns an error if
/// the source is not valid YAML or contains no Namespace, or if a Namespace has no name or invalid metadata.
pub(crate) fn namespaces_of(source: &Arc<Source>) -> Result<Vec<ObjectMeta>, Problem> {
    let documents = yaml::documents(&source.text).map_err(|fault| Problem::syntax(source, fault))?;
    let listed = |document: &yaml::Node| document.text("kind").is_some_and(|kind| kind.ends_with("List"));
    let objects = documents.iter().flat_map(|document| match document.get("items") {
        Some(items) if listed(document) => items.items().iter().collect(),
        _ => vec![document],
    });
    let mut namespaces = Vec::new();
    for object in objects.filter(|object| object.text("kind").is_none_or(|kind| kind == "Namespace")) {
        let metadata = object
            .get("metadata")
            .ok_or_else(|| Problem::at(source, object.span.clone(), "a Namespace needs metadata.name"))?;
        let described: ObjectMeta = typed::read(source, metadata, "metadata")?;
        if described.name.is_none() {
            return Err(Problem::at(source, metadata.span.clone(), "a Namespace needs metadata.name"));
        }
        namespaces.push(described);
    }
    if namespaces.is_empty() {
        return Err(Problem::whole(source.name.as_str(), "contains no Namespace"));
    }
    Ok(namespaces)
}

/// Returns the webhook's decision for a pod of a manifest. Lookups read from `known`.
pub(crate) fn decide(
    document: &Value,
    place: &Place,
    simulated: &SimulatedCluster,
    known: &KnownObjects,
) -> anyhow::Result<Decided> {
    let name = place.namespace.as_deref().unwrap_or_else(|| simulated.default_namespace());
    let (_, endpoint) = simulated.namespace(name);
    ask(document, place, simulated, known, endpoint)
}

/// Validates an injected pod with its profiles.
pub(crate) fn validate(
    document: &Value,
    place: &Place,
    simulated: &SimulatedCluster,
    known: &KnownObjects,
) -> anyhow::Result<Decided> {
    ask(document, place, simulated, known, Endpoint::Validate)
}

fn ask(
    document: &Value,
    place: &Place,
    simulated: &SimulatedCluster,
    known: &KnownObjects,
    endpoint: Endpoint,
) -> anyhow::Result<Decided> {
    let name = place.namespace.as_deref().unwrap_or_else(|| simulated.default_namespace());
    let (namespace, _) = simulated.namespace(name);
    let pod = place.pod(document, name);
    let label = pod.pointer("/metadata/labels").and_then(|labels| labels.get(INJECT_LABEL)).and_then(Value::as_str);
    if namespace.failure_mode() == Some(FailureMode::Enabled) && label == Some("false") {
        // The webhook's object selector excludes such pods.
        return Ok(Decided { decision: Decision::skipped(Reason::OptedOut), patch: None });
    }
    let body = serde_json::to_vec(&envelope(&pod, name)).context("cannot serialize the review")?;
    let review = Review::parse(&body).context("cannot parse its review")?;
    // A manifest has no `managedFields`, so its injection record is trusted, as if an earlier run of this command had
    // written it.
    let mut facts = Facts { namespace: Some(namespace), record_trust: RecordTrust::AsFound, ..Facts::default() };
    let wanted = review.needs(endpoint, simulated.snapshot(), &facts);
    facts.looked_up = look_up(known, wanted, document, place);
    facts.looked_up.cluster = simulated.cluster();
    review.decide(endpoint, simulated.snapshot(), &facts).context("cannot decide the review")
}

/// Answers a saved review. Returns the response as JSON, and the decision.
pub(crate) fn answer(body: &[u8], simulated: &SimulatedCluster) -> anyhow::Result<(String, Decided)> {
    let review = Review::parse(body).context("this is not an AdmissionReview")?;
    let (namespace, endpoint) = simulated.namespace(review.namespace());
    let mut facts = Facts { namespace: Some(Arc::clone(&namespace)), ..Facts::default() };
    // Without a cluster, no lookup finds an object.
    facts.looked_up = review.needs(endpoint, simulated.snapshot(), &facts).answered(&Answer::Missing);
    facts.looked_up.cluster = simulated.cluster();
    let decided = review.decide(endpoint, simulated.snapshot(), &facts).context("cannot decide the review")?;
    let response = String::from_utf8(review.respond(&decided)).context("the response is not UTF-8")?;
    Ok((response, decided))
}

/// Returns a review like the one that the API server sends when a pod is created with a dry run.
fn envelope(pod: &Value, namespace: &str) -> Value {
    let user = json!({"username": "pillion-inject"});
    trial::review(pod, namespace, &user)
}

/// Resolves the lookups for a review of a pod in a manifest.
pub(crate) fn look_up(known: &KnownObjects, mut wanted: Wanted, document: &Value, place: &Place) -> LookedUp {
    wanted.owners = owner_of_template(document, place).or(wanted.owners);
    known.answer(wanted)
}

/// Returns the workload as the owner, if the pod is a workload's template.
fn owner_of_template(document: &Value, place: &Place) -> Option<OwnerChain> {
    let object = place.workload(document)?;
    let reference = OwnerReference {
        api_version: object.get("apiVersion").and_then(Value::as_str).unwrap_or(&place.api_version).into(),
        kind: place.kind.as_str().into(),
        name: place.name.as_deref().unwrap_or_default().into(),
        uid: None,
    };
    Some(OwnerChain::from_owner(reference, metadata_tape(object)?))
}
