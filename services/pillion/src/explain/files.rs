//! Gathers facts from files: profiles, manifests, a namespace, the webhook configuration. Missing objects default to
//! those of a release with default settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pillion_api::names::{INJECTION_LABEL, InjectionLevel, NAMESPACE_NAME_LABEL};
use pillion_api::webhook_configuration::{Settings, mutating};
use pillion_control::Release;
use pillion_control::audit::NamespaceAge;
use pillion_control::informer::namespaces;
use pillion_engine::lookup::{KnownObjects, LookedUp};
use pillion_engine::profile::CompiledProfile;
use pillion_engine::review::{Endpoint, Facts, Review};
use pillion_engine::snapshot::{ProfileSet, Snapshot};
use serde_json::Value;

use super::facts::{ExplainFacts, NamespaceFacts, Question, Silences};
use super::subject;
use crate::config::WebhookPolicy;
use crate::load::{self, Problem, Source, yaml};

/// The command's inputs.
pub(crate) struct Given<'a> {
    pub(crate) profiles: &'a [PathBuf],
    pub(crate) namespace_file: Option<&'a Path>,
    pub(crate) webhooks_file: Option<&'a Path>,
    pub(crate) policy: &'a WebhookPolicy,
    pub(crate) release: &'a Release,
    pub(crate) namespace: &'a str,
}

/// Returns all objects of a file, with lists expanded. "-" is standard input.
pub(crate) fn objects(file: &Path) -> anyhow::Result<Vec<Value>> {
    let (name, text) = if file.as_os_str() == "-" {
        ("<stdin>".to_owned(), std::io::read_to_string(std::io::stdin()))
    } else {
        (file.display().to_string(), std::fs::read_to_string(file))
    };
    let text = text.with_context(|| format!("{name} cannot be read"))?;
    let source = Arc::new(Source::new(name.as_str(), text));
    let documents = yaml::documents(&source.text).map_err(|fault| Problem::syntax(&source, fault));
    let documents = documents.map_err(|problem| anyhow::anyhow!("{problem}"))?;
    Ok(taken_apart(documents.iter().map(yaml::Node::to_value)))
}

/// Expands lists into their items.
pub(crate) fn taken_apart(documents: impl IntoIterator<Item = Value>) -> Vec<Value> {
    let mut objects = Vec::new();
    for document in documents {
        match document.get("items").and_then(Value::as_array) {
            Some(items) if document.get("kind").and_then(Value::as_str).is_some_and(|kind| kind.ends_with("List")) => {
                objects.extend(items.iter().cloned());
            }
            _ => objects.push(document),
        }
    }
    objects
}

/// Gathers the facts from files.
///
/// # Errors
/// A file cannot be read. Problems of profiles are returned as the inner error.
pub(crate) fn surroundings(given: &Given<'_>) -> anyhow::Result<Result<ExplainFacts, Vec<Problem>>> {
    let loaded = load::profiles_in(given.profiles, given.namespace);
    if !loaded.problems.is_empty() {
        return Ok(Err(loaded.problems));
    }
    let configurations = given.webhooks_file.map(|file| {
        let is_one =
            |object: &Value| object.get("kind").and_then(Value::as_str) == Some("MutatingWebhookConfiguration");
        let found: Result<Vec<MutatingWebhookConfiguration>, _> =
            objects(file)?.into_iter().filter(is_one).map(serde_json::from_value).collect();
        found.with_context(|| format!("{} has no MutatingWebhookConfiguration that can be read", file.display()))
    });
    around(loaded.profiles, namespace(given)?, configurations.transpose()?, given.policy, given.release).map(Ok)
}

/// Returns the facts for these profiles in a namespace. `configurations` are the webhook configurations; `None` means
/// that of a release with default settings.
///
/// # Errors
/// The policy's cluster facts nest too deeply.
pub(crate) fn around(
    profiles: impl IntoIterator<Item = Arc<CompiledProfile>>,
    mut metadata: ObjectMeta,
    configurations: Option<Vec<MutatingWebhookConfiguration>>,
    policy: &WebhookPolicy,
    release: &Release,
) -> anyhow::Result<ExplainFacts> {
    let opt_in = policy.opt_in();
    let name = metadata.name.clone().unwrap_or_default();
    // The API server sets it on every namespace.
    metadata.labels.get_or_insert_default().insert(NAMESPACE_NAME_LABEL.to_owned(), name.clone());
    let age = NamespaceAge::of(&metadata, &opt_in);
    let (labels, annotations) =
        (metadata.labels.clone().unwrap_or_default(), metadata.annotations.clone().unwrap_or_default());
    let snapshot = Snapshot::new(ProfileSet::new(profiles)).with_guardrails(policy.guardrails.clone());
    let snapshot = snapshot.with_namespaces([namespaces::read(metadata, &opt_in)]);
    let configurations = configurations.unwrap_or_else(|| {
        vec![mutating(&Settings {
            name: release.configuration().to_owned(),
            service_name: release.service().to_owned(),
            levels: InjectionLevel::ALL.to_vec(),
            opt_in: opt_in.clone(),
            ..Settings::new(release.namespace(), "files")
        })]
    });
    Ok(ExplainFacts {
        namespace: NamespaceFacts { found: snapshot.namespace(&name), name, labels, annotations, age },
        release: release.clone(),
        opt_in,
        snapshot: Arc::new(snapshot),
        configurations: Some(configurations),
        stored: Vec::new(),
        broken: Vec::new(),
        switched_off: None,
        silences: Silences::default(),
        unread: Vec::new(),
        cluster: policy.cluster_facts()?,
        is_live: false,
    })
}

/// Returns metadata of an opted-in namespace, the default if none is given.
pub(crate) fn opted_in() -> ObjectMeta {
    let labels = [(INJECTION_LABEL.to_owned(), InjectionLevel::Enabled.label_value().to_owned())];
    ObjectMeta { labels: Some(labels.into()), ..ObjectMeta::default() }
}

/// Returns the metadata of the namespace. Without a file it is opted in.
fn namespace(given: &Given<'_>) -> anyhow::Result<ObjectMeta> {
    let name = given.namespace;
    let mut metadata = match given.namespace_file {
        None => opted_in(),
        Some(file) => {
            let all = objects(file)?;
            let is_it = |object: &&Value| {
                object.get("kind").and_then(Value::as_str).is_none_or(|kind| kind == "Namespace")
                    && subject::metadata(object, "name") == Some(name)
            };
            let Some(found) = all.iter().find(is_it) else {
                bail!("there is no Namespace {name} in {}", file.display());
            };
            let metadata = found.get("metadata").cloned().unwrap_or_default();
            serde_json::from_value(metadata).with_context(|| format!("the Namespace in {}", file.display()))?
        }
    };
    metadata.name = Some(name.to_owned());
    Ok(metadata)
}

/// Returns the namespace of a file's pods and workloads.
///
/// # Errors
/// The objects have different namespaces, or another one than `asked`.
pub(crate) fn namespace_of(objects: &[Value], asked: Option<&str>) -> anyhow::Result<String> {
    let mut found = asked.map(|asked| (asked, "-n".to_owned()));
    for object in objects {
        let Some(kind) = subject::kind_of(object).filter(|kind| kind.kind != "Namespace") else { continue };
        let Some(namespace) = subject::metadata(object, "namespace") else { continue };
        let who = format!("{} {}", kind.kind, subject::metadata(object, "name").unwrap_or_default());
        match &found {
            Some((other, by)) if *other != namespace => {
                bail!(
                    "{by} says namespace {other}, and {who} is in namespace {namespace}: ask about one namespace at a time"
                )
            }
            Some(_) => {}
            None => found = Some((namespace, who)),
        }
    }
    Ok(found.map_or("default", |(namespace, _)| namespace).to_owned())
}

/// Returns the questions about the objects of a file.
pub(crate) fn questions(objects: &[Value], namespace: &str) -> Vec<Question> {
    let question = |object: &Value| {
        let kind = subject::kind_of(object)?;
        match kind.kind {
            "Pod" => Some(subject::of_pod(object, namespace)),
            "Namespace" => None,
            _ => subject::of_template(object, kind, namespace),
        }
    };
    objects.iter().filter_map(question).collect()
}

/// Does the lookups for a question among the given objects.
pub(crate) fn complete(question: &mut Question, facts: &ExplainFacts, objects: &[Value]) {
    let known = KnownObjects::new(objects, &facts.namespace.name);
    let asked = Facts { namespace: facts.namespace.found.clone(), ..Facts::default() };
    let wanted = serde_json::to_vec(&question.review).ok().and_then(|body| {
        let review = Review::parse(&body).ok()?;
        Some(review.needs(Endpoint::Any, &facts.snapshot, &asked))
    });
    question.looked_up = wanted.map_or_else(LookedUp::default, |wanted| known.answer(wanted));
    question.looked_up.cluster.clone_from(&facts.cluster);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_of_a_file_are_in_one_namespace_and_in_the_one_that_is_asked_for() {
        let pod = |name: &str, namespace: Option<&str>| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}});
        let of = |objects: &[Value], asked| namespace_of(objects, asked).map_err(|error| error.to_string());
        assert_eq!(of(&[pod("a", None)], None).unwrap(), "default");
        assert_eq!(of(&[pod("a", None), pod("b", Some("shop"))], None).unwrap(), "shop");
        assert_eq!(of(&[pod("a", Some("shop"))], Some("shop")).unwrap(), "shop");
        let two = of(&[pod("a", Some("shop")), pod("b", Some("till"))], None).unwrap_err();
        assert!(two.contains("Pod a says namespace shop, and Pod b is in namespace till"), "{two}");
        assert!(of(&[pod("a", Some("shop"))], Some("till")).unwrap_err().contains("-n says namespace till"));
    }
}
