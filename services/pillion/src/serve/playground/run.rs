//! A run: converts the texts of the editors to problems or results. For files with the same content, `pillion lint`,
//! `pillion inject` and `pillion explain` produce the same results.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pillion_api::ProfileSpec;
use pillion_api::names::GROUP;
use pillion_control::Release;
use pillion_control::informer::namespaces;
use pillion_engine::decision::Outcome;
use pillion_engine::lookup::KnownObjects;
use pillion_engine::profile::CompiledProfile;
use pillion_json::OwnedTape;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::config::WebhookPolicy;
use crate::difference::{self, Hunk};
use crate::explain::facts::{self, Change};
use crate::explain::{self, DecisionView, Explanation};
use crate::inject::objects::{self, Place};
use crate::inject::simulated_cluster::{self, SimulatedCluster};
use crate::load::{self, Defaults, Loaded, Problem, Severity, Source, yaml};
use crate::output::{self, Format};

/// The file names in diagnostics, one for each editor. The page uses them to select the editor.
const PROFILE: &str = "profile.yaml";
const OBJECT: &str = "object.yaml";
const NAMESPACE: &str = "namespace.yaml";
const PARAMETERS: &str = "parameters.yaml";

/// The maximum number of pods and pod templates in the object editor. A decision and an explanation are computed for
/// each.
const MAX_PODS: usize = 50;
/// The maximum number of profiles: each is compiled, and evaluated for each pod.
const MAX_PROFILES: usize = 100;
/// The time limit for computing a minimal diff.
const DIFF_WITHIN: Duration = Duration::from_secs(1);

/// The common inputs of all runs: the policy, and the simulated release.
#[derive(Clone, Debug)]
pub(super) struct Platform {
    policy: WebhookPolicy,
    release: Release,
    cluster: Option<Arc<OwnedTape>>,
}

/// The texts of the editors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Texts {
    /// The profiles, as YAML.
    pub(super) profile: String,
    /// A manifest, as for `pillion inject -f`.
    pub(super) object: String,
    /// A Namespace. If empty, an opted-in Namespace with the name `default` is used.
    #[serde(default)]
    pub(super) namespace: String,
    /// Defaults of parameters, by profile.
    #[serde(default)]
    pub(super) parameters: String,
}

/// The result that the page shows.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    /// Problems in the format of `pillion lint -o json`.
    pub(super) diagnostics: Vec<Value>,
    /// `None` if there are errors.
    pub(super) result: Option<Injected>,
}

/// The result of injecting.
#[derive(Debug, Serialize)]
pub(super) struct Injected {
    /// The injected manifest, as YAML.
    objects: String,
    diff: Vec<Hunk>,
    /// The patch of each object.
    patches: Vec<Vec<Value>>,
    pub(super) pods: Vec<Pod>,
}

/// The result for a pod, or for the pod template of a workload.
#[derive(Debug, Serialize)]
pub(super) struct Pod {
    name: String,
    pub(super) decision: DecisionView,
    /// The message of the decision that rejects the pod, or of a validation that rejects the injected pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<String>,
    /// Warnings of validations.
    warnings: Vec<String>,
    changes: Vec<Change>,
    /// `None` if `pillion explain` does not cover the object, such as a `PodTemplate`.
    explanation: Option<Explanation>,
}

impl Platform {
    /// Creates the inputs from a policy and the simulated release.
    ///
    /// # Errors
    /// The policy has too many cluster facts, or they nest too deeply.
    pub(super) fn new(policy: WebhookPolicy, release: Release) -> anyhow::Result<Self> {
        Ok(Self { cluster: policy.cluster_facts()?, policy, release })
    }
}

/// The parsed texts, if all are valid.
struct Parsed {
    profiles: Vec<Arc<CompiledProfile>>,
    documents: Vec<Value>,
    namespace: ObjectMeta,
}

/// Lints, injects and explains the texts. `parents` are cluster profiles that the profiles may extend. The response has
/// no result if the run was cancelled through `given_up`, which is checked between decisions. The number of profiles is
/// limited, since each decision evaluates all of them.
pub(super) fn run(
    texts: &Texts,
    platform: &Platform,
    parents: &BTreeMap<Box<str>, ProfileSpec>,
    given_up: &CancellationToken,
) -> Answer {
    let object = Arc::new(Source::new(OBJECT, texts.object.clone()));
    let (parsed, mut problems) = parse(texts, &object, parents);
    let result = parsed.and_then(|parsed| match inject(&parsed, platform, given_up) {
        Ok(result) => Some(result),
        Err(error) => {
            problems.push(Problem::whole(OBJECT, format!("{error:#}")));
            None
        }
    });
    Answer { diagnostics: diagnostics(problems), result }
}

/// Formats the problems, up to the maximum number: errors first, since they prevent a result.
fn diagnostics(mut problems: Vec<Problem>) -> Vec<Value> {
    problems.sort_by_key(|problem| problem.severity != Severity::Error);
    problems.iter().take(output::MAX_PROBLEMS).map(Problem::to_json).collect()
}

/// Checks that the run has not been cancelled.
///
/// # Errors
/// The run was cancelled.
fn ensure_not_given_up(given_up: &CancellationToken) -> anyhow::Result<()> {
    anyhow::ensure!(!given_up.is_cancelled(), "the run was cancelled: its client disconnected");
    Ok(())
}

/// Parses all texts, and reports the problems of each independently. If all texts are valid, the problems are only
/// warnings.
fn parse(
    texts: &Texts,
    object: &Arc<Source>,
    parents: &BTreeMap<Box<str>, ProfileSpec>,
) -> (Option<Parsed>, Vec<Problem>) {
    let mut problems = Vec::new();
    let namespace = namespace(&texts.namespace).unwrap_or_else(|problem| {
        problems.push(problem);
        ObjectMeta::default()
    });
    let name = namespace.name.as_deref().unwrap_or("default");
    let source = Arc::new(Source::new(PARAMETERS, texts.parameters.clone()));
    let defaults = yaml::documents(&source.text).map_err(|fault| Problem::syntax(&source, fault));
    let defaults = defaults.and_then(|documents| Defaults::read(&source, &documents)).unwrap_or_else(|problem| {
        problems.push(problem);
        Defaults::default()
    });
    let source = Arc::new(Source::new(PROFILE, texts.profile.clone()));
    let (profiles, warnings) = if let Some(problem) = too_many(&source) {
        problems.push(problem);
        (Vec::new(), Vec::new())
    } else {
        let Loaded { profiles, problems: faults, warnings, .. } = load::profiles_of(&source, name, parents, defaults);
        problems.extend(faults);
        (profiles, warnings)
    };
    let documents = documents(object).unwrap_or_else(|problem| {
        problems.push(problem);
        Vec::new()
    });
    let is_right = problems.is_empty();
    problems.extend(warnings);
    problems.extend(foreign_namespace_warnings(object, &documents, name));
    (is_right.then_some(Parsed { profiles, documents, namespace }), problems)
}

/// Returns a problem at the first profile beyond [`MAX_PROFILES`], if any.
fn too_many(source: &Arc<Source>) -> Option<Problem> {
    // The loader reports syntax errors.
    let documents = yaml::documents(&source.text).ok()?;
    let objects = documents.iter().flat_map(yaml::Node::objects);
    let profiles: Vec<&yaml::Node> = objects.filter(|object| is_profile(object)).collect();
    let first = profiles.get(MAX_PROFILES)?;
    let message = format!("there are {} profiles; the playground accepts at most {MAX_PROFILES}", profiles.len());
    Some(Problem::at(source, first.span.clone(), message).with_help("pillion inject accepts any number".to_owned()))
}

/// Whether a document has Pillion's API group, as all profiles have. It may be invalid.
pub(super) fn is_profile(document: &yaml::Node) -> bool {
    document.text("apiVersion").is_some_and(|version| version.split('/').next() == Some(GROUP))
}

/// Parses the text of the namespace editor. If it is empty, returns an opted-in namespace.
fn namespace(text: &str) -> Result<ObjectMeta, Problem> {
    if text.trim().is_empty() {
        return Ok(ObjectMeta { name: Some("default".to_owned()), ..explain::opted_in() });
    }
    let source = Arc::new(Source::new(NAMESPACE, text.to_owned()));
    let mut described = simulated_cluster::namespaces_of(&source)?;
    match (described.pop(), described.pop()) {
        (Some(one), None) => Ok(one),
        _ => Err(Problem::at(&source, 0..0, "contains more than one Namespace")
            .with_help("keep only the object's Namespace; all other namespaces are treated as opted in".to_owned())),
    }
}

/// Parses the objects. Reports an error unless there are 1 to [`MAX_PODS`] pods.
fn documents(source: &Arc<Source>) -> Result<Vec<Value>, Problem> {
    let documents = crate::inject::manifests(source)?;
    let pods: usize = documents.iter().map(|document| objects::pods(document).len()).sum();
    match pods {
        0 => Err(Problem::whole(OBJECT, "contains neither a pod nor a workload")
            .with_help("write a Pod, a Deployment or another object that creates pods".to_owned())),
        1..=MAX_PODS => Ok(documents),
        _ => Err(Problem::whole(OBJECT, format!("there are {pods} pods; the playground accepts at most {MAX_PODS}"))
            .with_help("pillion inject accepts any number".to_owned())),
    }
}

/// Returns a warning for each namespace of the pods that differs from the given one.
fn foreign_namespace_warnings(source: &Arc<Source>, documents: &[Value], described: &str) -> Vec<Problem> {
    // Parsed values have no positions, so in this rare case the source is parsed again.
    let nodes = || yaml::documents(&source.text).unwrap_or_default();
    let mut reported = BTreeSet::new();
    let mut problems = Vec::new();
    for (index, document) in documents.iter().enumerate() {
        for namespace in objects::pods(document).into_iter().filter_map(|place| place.namespace) {
            if namespace == described || !reported.insert(namespace.clone()) {
                continue;
            }
            let span = nodes().get(index).map(|node| node.place("metadata.namespace")).unwrap_or_default();
            let message =
                format!("{NAMESPACE} describes {described} and not {namespace}, which is treated as opted in");
            let problem = Problem::at(source, span, message).of_field("metadata.namespace").into_warning();
            problems.push(problem.with_help(format!("name the Namespace {namespace} to use its labels")));
        }
    }
    problems
}

fn inject(parsed: &Parsed, platform: &Platform, given_up: &CancellationToken) -> anyhow::Result<Injected> {
    let Parsed { profiles, documents, namespace } = parsed;
    let opt_in = platform.policy.opt_in();
    let described = namespaces::read(namespace.clone(), &opt_in);
    let default_namespace = described.0.to_string();
    let simulated = SimulatedCluster::new(profiles.iter().cloned(), vec![described], default_namespace)
        .guarded(platform.policy.guardrails.clone())
        .opting_in_by(&opt_in)
        .with_cluster(platform.cluster.clone());
    let known = KnownObjects::new(documents, simulated.default_namespace());
    let mut explanations = explanations(parsed, platform, given_up)?;
    let (mut injected, mut patches, mut pods) = (documents.clone(), Vec::new(), Vec::new());
    for document in &mut injected {
        let mut patch = Vec::new();
        for place in objects::pods(document) {
            ensure_not_given_up(given_up)?;
            let name = place.describe(simulated.default_namespace());
            let (changed, mut pod) =
                one(document, &place, &simulated, &known, given_up).with_context(|| name.clone())?;
            patch.extend(changed);
            let is_it = |one: &Explanation| one.object.to_string() == name.trim_end_matches('?');
            let index = explanations.iter().position(is_it);
            pod.explanation = index.map(|index| explanations.remove(index));
            pods.push(Pod { name, ..pod });
        }
        patches.push(patch);
    }
    let (before, after) = (output::objects(documents, Format::Yaml)?, output::objects(&injected, Format::Yaml)?);
    let diff = difference::hunks(&before, &after, Some(DIFF_WITHIN));
    Ok(Injected { diff, objects: after, patches, pods })
}

/// Injects into one pod of a document. Returns the document's patch, and the pod's result.
fn one(
    document: &mut Value,
    place: &Place,
    simulated: &SimulatedCluster,
    known: &KnownObjects,
    given_up: &CancellationToken,
) -> anyhow::Result<(Vec<Value>, Pod)> {
    let decided = simulated_cluster::decide(document, place, simulated, known)?;
    let mut refused = (decided.decision.outcome == Outcome::Denied).then(|| decided.decision.denial_message());
    let patch = objects::apply(document, place, decided.patch.as_deref())?;
    let mut warnings = Vec::new();
    if refused.is_none() {
        ensure_not_given_up(given_up)?;
        let passed = simulated_cluster::validate(document, place, simulated, known)?.decision;
        refused = (passed.outcome == Outcome::Denied).then(|| passed.denial_message());
        warnings.extend(explain::view(&passed).notices);
    }
    let changes = if patch.is_empty() {
        Vec::new()
    } else {
        document.pointer(&place.pointer).map(facts::of_record).unwrap_or_default()
    };
    let decision = explain::view(&decided.decision);
    Ok((patch, Pod { name: String::new(), decision, refused, warnings, changes, explanation: None }))
}

/// Explains all pods and workloads, by namespace.
fn explanations(
    parsed: &Parsed,
    platform: &Platform,
    given_up: &CancellationToken,
) -> anyhow::Result<Vec<Explanation>> {
    let Parsed { profiles, documents, namespace } = parsed;
    let described = namespace.name.clone().unwrap_or_default();
    let mut by_namespace: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for object in explain::expand_lists(documents.iter().cloned()) {
        let name = object.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or(&described).to_owned();
        by_namespace.entry(name).or_default().push(object);
    }
    let mut explanations = Vec::new();
    for (name, objects) in by_namespace {
        let metadata = if name == described { namespace.clone() } else { explain::opted_in() };
        let metadata = ObjectMeta { name: Some(name), ..metadata };
        ensure_not_given_up(given_up)?;
        let of_objects = explain::of_objects(
            &objects,
            documents,
            profiles.iter().cloned(),
            metadata,
            &platform.policy,
            &platform.release,
        )?;
        for explanation in of_objects {
            explanations.push(explanation);
            ensure_not_given_up(given_up)?;
        }
    }
    Ok(explanations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: web, image: w}]}\n";

    fn profile(name: usize) -> String {
        format!(
            "---\napiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {{name: p{name}}}\n\
             spec: {{activation: Always, template: {{metadata: {{labels: {{l{name}: x}}}}}}}}\n"
        )
    }

    fn ran(profiles: usize, given_up: &CancellationToken) -> Answer {
        let release = args::release("pillion-system/pillion").unwrap();
        let platform = Platform::new(WebhookPolicy::default(), release).unwrap();
        let texts = Texts { profile: (0..profiles).map(profile).collect(), object: POD.to_owned(), ..Texts::default() };
        run(&texts, &platform, &BTreeMap::new(), given_up)
    }

    #[test]
    fn abandoned_run_ends() {
        let given_up = CancellationToken::new();
        assert!(ran(2, &given_up).result.is_some());
        given_up.cancel();
        let answer = ran(2, &given_up);
        assert!(answer.result.is_none());
        assert!(answer.diagnostics[0]["message"].as_str().unwrap().contains("cancelled"), "{:?}", answer.diagnostics);
    }

    #[test]
    fn too_many_profiles_are_reported() {
        let answer = ran(MAX_PROFILES, &CancellationToken::new());
        assert!(answer.result.is_some(), "{:?}", answer.diagnostics);
        let answer = ran(MAX_PROFILES + 1, &CancellationToken::new());
        assert!(answer.result.is_none());
        let [diagnostic] = answer.diagnostics.as_slice() else { panic!("{:?}", answer.diagnostics) };
        assert!(diagnostic["message"].as_str().unwrap().starts_with("there are 101 profiles;"), "{diagnostic}");
        assert_eq!((&diagnostic["file"], &diagnostic["line"]), (&PROFILE.into(), &(MAX_PROFILES * 5 + 2).into()));
    }

    #[test]
    fn errors_are_listed_before_warnings() {
        let mut problems = vec![Problem::whole(OBJECT, "mild").into_warning(); output::MAX_PROBLEMS];
        problems.push(Problem::whole(OBJECT, "grave"));
        let listed = diagnostics(problems);
        assert_eq!(listed.len(), output::MAX_PROBLEMS);
        assert_eq!((&listed[0]["message"], &listed[1]["message"]), (&"grave".into(), &"mild".into()));
    }
}
