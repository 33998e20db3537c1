//! Adapter for the test cases of OpenTelemetry's operator (the peer). Each folder has the steps of an end-to-end test.
//! Objects that a step installs (`Instrumentation`s, namespaces, workloads) exist in all later steps. Steps also assert
//! parts of pods.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pillion_cases::{Case, Metadata};
use serde_json::{Map, Value as Json, json};

use crate::peers::files::{all, documents, name, normalize_quantities, string};
use crate::peers::runner::{Expected, PeerCase, RunnableCase, ShippedProfiles, annotations, case, set};
use crate::peers::workloads::Workload;

const PREFIX: &str = "instrumentation.opentelemetry.io/inject-";

/// Languages: the name in the annotation and in our profiles, and the field of an `Instrumentation`.
const LANGUAGES: [(&str, &str); 8] = [
    ("java", "java"),
    ("nodejs", "nodejs"),
    ("python", "python"),
    ("dotnet", "dotnet"),
    ("go", "go"),
    ("apache-httpd", "apacheHttpd"),
    ("nginx", "nginx"),
    ("sdk", "sdk"),
];

/// Fields of an `Instrumentation` for all languages, and the parameter that each profile has for them.
const COMMON: &[(&str, &str)] = &[
    ("/env", "env"),
    ("/exporter/endpoint", "endpoint"),
    ("/exporter/tls", "tls"),
    ("/propagators", "propagators"),
    ("/sampler/type", "sampler"),
    ("/sampler/argument", "samplerArgument"),
    ("/resource/resourceAttributes", "platformAttributes"),
    ("/resource/addK8sUIDAttributes", "addUIDs"),
    ("/defaults/useLabelsForResourceAttributes", "useLabels"),
];

/// Fields for all languages that have an agent.
const AGENT: &[(&str, &str)] =
    &[("/imagePullPolicy", "pullPolicy"), ("/initContainerSecurityContext", "securityContext")];

/// Fields for one language, and their parameters.
const LANGUAGE: &[(&str, &str)] = &[
    ("/env", "languageEnv"),
    ("/image", "image"),
    ("/resources", "resources"),
    ("/resourceRequirements", "resources"),
    ("/securityContext", "securityContext"),
    ("/extensions", "extensions"),
    ("/attrs", "attrs"),
    ("/version", "version"),
    ("/configPath", "configPath"),
    ("/configFile", "configFile"),
];

/// Fields that are converted to a parameter by [`volume`].
const VOLUME: &[&str] = &["/volume/size", "/volumeLimitSize", "/volumeClaimTemplate"];

pub(crate) fn cases(folder: &Path, shipped: &ShippedProfiles) -> Vec<PeerCase> {
    let mut scenarios: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in all(folder).into_iter().filter(|file| file.extension().is_some_and(|end| end == "yaml" || end == "yml"))
    {
        let scenario = file.parent().and_then(|parent| parent.strip_prefix(folder).ok()).unwrap_or(folder);
        scenarios.entry(scenario.to_string_lossy().into_owned()).or_default().push(file);
    }
    scenarios.iter().flat_map(|(scenario, files)| self::scenario(scenario, files, shipped)).collect()
}

/// A file of a scenario: `NN-install-app.yaml`, `NN-assert.yaml`.
struct Step {
    number: String,
    /// The part of the file name after the number.
    rest: String,
    file: PathBuf,
}

impl Step {
    fn of(file: &Path) -> Self {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let (number, rest) = match stem.split_once('-') {
            Some((number, rest)) if is_number(number) => (number.to_owned(), rest.to_owned()),
            None if is_number(&stem) => (stem, String::new()),
            _ => (String::new(), stem),
        };
        Self { number, rest, file: file.to_owned() }
    }

    fn is_assertion(&self) -> bool {
        self.rest.contains("assert") || self.is_error()
    }

    /// Whether the objects of the step must not exist.
    fn is_error(&self) -> bool {
        self.rest.contains("error")
    }
}

/// The objects that exist when the assertions of a step are checked.
#[derive(Default)]
struct Installed {
    instrumentations: Vec<Json>,
    namespaces: Vec<Json>,
    /// Workloads, each with the step that installed it.
    workloads: Vec<(String, Workload)>,
    others: Vec<Json>,
}

impl Installed {
    fn add(&mut self, step: &str, object: Json) {
        let is_same = |other: &Json| {
            ["/kind", "/metadata/name", "/metadata/namespace"].iter().all(|at| other.pointer(at) == object.pointer(at))
        };
        match object["kind"].as_str() {
            Some("Instrumentation") => {
                self.instrumentations.retain(|other| !is_same(other));
                self.instrumentations.push(object);
            }
            Some("Namespace") => {
                self.namespaces.retain(|other| !is_same(other));
                self.namespaces.push(object);
            }
            _ => match Workload::of(&object) {
                Some(workload) => {
                    self.workloads.retain(|(_, other)| !is_same(&other.object));
                    self.workloads.push((step.to_owned(), workload));
                }
                None => self.others.push(object),
            },
        }
    }

    /// Returns the workloads whose pods an assertion may describe: those with its labels and name or, if there are
    /// none, all. Workloads of the same step take precedence.
    fn matching_workloads(&self, step: &str, part: &Json) -> Vec<&Workload> {
        let fits = |workload: &Workload| {
            let (pod, _) = workload.created();
            let named = |map: &str| part["metadata"][map].as_object().cloned().unwrap_or_default();
            let labels = named("labels").iter().all(|(key, value)| pod["metadata"]["labels"].get(key) == Some(value));
            let name = string(part, "/metadata/name").filter(|name| !name.starts_with('('));
            labels && name.is_none_or(|name| pod["metadata"]["name"].as_str() == Some(name))
        };
        let (here, before): (Vec<_>, Vec<_>) = self.workloads.iter().partition(|(other, _)| other == step);
        for chosen in [&here, &before] {
            let fitting: Vec<_> =
                chosen.iter().map(|(_, workload)| workload).filter(|workload| fits(workload)).collect();
            if !fitting.is_empty() {
                return fitting;
            }
        }
        // No pod has the asserted labels yet. The injector may add them, so the pod of any workload may match.
        let last = if here.is_empty() { before } else { here };
        last.into_iter().map(|(_, workload)| workload).collect()
    }

    /// Returns the metadata of a namespace; without labels and annotations if no step installed the namespace.
    fn namespace(&self, name: &str) -> Metadata {
        let found = self.namespaces.iter().find(|namespace| namespace["metadata"]["name"] == name);
        let map = |map: &str| annotations(found.and_then(|namespace| namespace["metadata"][map].as_object()));
        Metadata { name: Some(name.to_owned()), labels: map("labels"), annotations: map("annotations") }
    }

    /// Returns the `Instrumentation` that the value of an annotation selects: the only one of the namespace, or one by
    /// name. If the namespace has none, looks in all namespaces.
    fn instrumentation(&self, requested: &str, namespace: &str) -> Option<&Json> {
        let namespace_of = |found: &Json| string(found, "/metadata/namespace").unwrap_or("default").to_owned();
        let (of, name) = match requested.split_once('/') {
            Some((of, name)) => (of, Some(name)),
            None if requested.eq_ignore_ascii_case("true") => (namespace, None),
            None => (namespace, Some(requested)),
        };
        let is_meant =
            |found: &&Json| namespace_of(found) == of && name.is_none_or(|name| found["metadata"]["name"] == name);
        let found = self.instrumentations.iter().find(is_meant);
        // If the namespace has several, none is selected.
        if name.is_none() && self.instrumentations.iter().filter(is_meant).count() > 1 {
            return None;
        }
        // The peer's test may generate the names of namespaces, so look in all namespaces.
        found.or_else(|| {
            self.instrumentations.iter().find(|found| name.is_none_or(|name| found["metadata"]["name"] == name))
        })
    }
}

fn scenario(scenario: &str, files: &[PathBuf], shipped: &ShippedProfiles) -> Vec<PeerCase> {
    let mut steps: Vec<Step> = files.iter().map(|file| Step::of(file)).collect();
    // Objects of a step exist before its assertions.
    steps.sort_by_key(|step| (step.number.clone(), step.is_assertion(), name(&step.file)));
    let mut installed = Installed::default();
    let mut cases = Vec::new();
    for step in &steps {
        let documents = match documents(&step.file) {
            Ok(documents) => documents,
            Err(error) => {
                cases.push(PeerCase::read(format!("{scenario}/{}", name(&step.file)), || Err(error)));
                continue;
            }
        };
        if !step.is_assertion() {
            for object in documents {
                installed.add(&step.number, object);
            }
            continue;
        }
        let pods: Vec<_> = documents.into_iter().filter(|document| document["kind"] == "Pod").collect();
        // Each pod of an assertion becomes a case.
        for (index, part) in pods.into_iter().enumerate() {
            let parts = [step.number.as_str(), step.rest.as_str()];
            let parts =
                parts.into_iter().filter(|part| !part.is_empty() && (*part != "assert" || step.number.is_empty()));
            let mut label = format!("{scenario}/{}", parts.collect::<Vec<_>>().join("-"));
            if index > 0 {
                label = format!("{label}#{}", index + 1);
            }
            cases.push(PeerCase::read(label, || read(step, part, &installed, shipped)));
        }
    }
    cases
}

fn read(step: &Step, part: Json, installed: &Installed, shipped: &ShippedProfiles) -> Result<RunnableCase, String> {
    let matching_workloads = installed.matching_workloads(&step.number, &part).into_iter();
    let cases: Vec<Case> =
        matching_workloads.map(|workload| case_of(workload, installed, shipped)).collect::<Result<_, _>>()?;
    if cases.is_empty() {
        return Err("the assertion matches no installed workload".to_owned());
    }
    let mut part = part;
    if let Some(members) = part.as_object_mut() {
        members.remove("kind");
        members.remove("apiVersion");
    }
    if let Some(metadata) = part["metadata"].as_object_mut() {
        metadata.remove("namespace");
    }
    let expected = if step.is_error() { Expected::NotPart(part) } else { Expected::Part(part) };
    let mut ready = RunnableCase::new(shipped.all(), Case::default(), expected).normalized_by(|pod| {
        normalize(pod);
        normalize_quantities(pod);
    });
    ready.cases = cases;
    Ok(ready)
}

fn case_of(workload: &Workload, installed: &Installed, shipped: &ShippedProfiles) -> Result<Case, String> {
    let (pod, owners) = workload.created();
    let names = LANGUAGES.map(|(language, _)| format!("otel-{language}"));
    let mut case = case(&names, pod.clone());
    case.namespace = installed.namespace(workload.namespace());
    case.service_account = Some(Metadata::default());
    case.objects = owners.into_iter().chain(installed.others.iter().cloned()).collect();
    for (language, field) in LANGUAGES {
        let key = format!("{PREFIX}{language}");
        let pod_value = pod["metadata"]["annotations"].get(&key).and_then(Json::as_str).unwrap_or_default();
        let namespace_value = case.namespace.annotations.get(&key).map(String::as_str).unwrap_or_default();
        let effective_value = effective_value(pod_value, namespace_value).to_owned();
        if effective_value.is_empty() || effective_value.eq_ignore_ascii_case("false") {
            continue;
        }
        let Some(instrumentation) = installed.instrumentation(&effective_value, workload.namespace()) else {
            // The peer skips a pod if it cannot inject one of the languages.
            case.profiles = Some(Vec::new());
            break;
        };
        let profile = format!("otel-{language}");
        for (parameter, value) in settings(&instrumentation["spec"], language, field)? {
            set(&mut case, shipped, &profile, &parameter, value);
        }
        case.values.insert(profile, vec![effective_value]);
    }
    Ok(case)
}

/// Returns the effective value of the annotations of a pod and its namespace. The pod's value is used, unless it is
/// empty, or it is `true` and the namespace's value is a name.
fn effective_value<'w>(pod_value: &'w str, namespace_value: &'w str) -> &'w str {
    let is_yes = pod_value.eq_ignore_ascii_case("true");
    let names = !namespace_value.is_empty() && !namespace_value.eq_ignore_ascii_case("false");
    if pod_value.is_empty() || is_yes && names { namespace_value } else { pod_value }
}

/// Returns the settings of an `Instrumentation` for a language's profile.
///
/// # Errors
///
/// Fails if a setting is unknown, because ignoring it would change the case.
fn settings(spec: &Json, language: &str, field: &str) -> Result<Map<String, Json>, String> {
    let language_spec = &spec[field];
    let of_all = COMMON.iter().chain(AGENT).map(|(path, _)| *path);
    let languages: Vec<String> = LANGUAGES.iter().map(|(_, field)| format!("/{field}")).collect();
    check_known(spec, "", &of_all.chain(languages.iter().map(String::as_str)).collect::<Vec<_>>())?;
    check_known(
        language_spec,
        "",
        &LANGUAGE.iter().map(|(path, _)| *path).chain(VOLUME.iter().copied()).collect::<Vec<_>>(),
    )
    .map_err(|setting| format!("{field}.{setting}"))?;
    let pick = |from: &Json, table: &[(&'static str, &'static str)]| -> Vec<_> {
        table.iter().filter_map(|(path, parameter)| Some((*parameter, from.pointer(path)?.clone()))).collect()
    };
    let mut settings = pick(spec, COMMON);
    if language != "sdk" {
        // The Go agent is a sidecar, so settings of init containers do not apply.
        settings.extend(pick(spec, AGENT).into_iter().filter(|(name, _)| language != "go" || *name == "pullPolicy"));
        settings.extend(pick(language_spec, LANGUAGE));
        settings.extend(volume(language_spec).map(|volume| ("volume", volume)).filter(|_| language != "go"));
    }
    Ok(settings.into_iter().map(|(parameter, value)| (parameter.to_owned(), value)).collect())
}

/// Checks that every value is at or below one of the paths.
fn check_known(value: &Json, at: &str, paths: &[&str]) -> Result<(), String> {
    match value {
        _ if paths.contains(&at) => Ok(()),
        Json::Object(members) => {
            members.iter().try_for_each(|(key, value)| check_known(value, &format!("{at}/{key}"), paths))
        }
        Json::Null => Ok(()),
        _ => Err(format!("{} is a setting that is not known", at.trim_start_matches('/').replace('/', "."))),
    }
}

/// Returns the configured volume of an agent; `None` if none is configured.
fn volume(language_spec: &Json) -> Option<Json> {
    let size = language_spec.pointer("/volumeLimitSize").or_else(|| language_spec.pointer("/volume/size"));
    let template = language_spec.get("volumeClaimTemplate");
    template
        .map(|template| json!({"ephemeral": {"volumeClaimTemplate": template}}))
        .or_else(|| size.map(|size| json!({"emptyDir": {"sizeLimit": size}})))
}

/// Removes parts that the injector does not write: defaults of the API server, the mount of the service account's
/// token, the status, and expressions that the peer's test runner evaluates.
fn normalize(value: &mut Json) {
    match value {
        Json::Object(members) => {
            members.retain(|key, value| {
                !(key == "apiVersion" && value == "v1"
                    || key == "protocol" && value == "TCP"
                    || key == "successThreshold"
                    || key == "status"
                    || key.starts_with('(')
                    || value.as_str().is_some_and(|text| text.starts_with('(') && text.ends_with(')')))
            });
            members.values_mut().for_each(normalize);
        }
        Json::Array(items) => {
            items.retain(|item| item["mountPath"] != "/var/run/secrets/kubernetes.io/serviceaccount");
            items.iter_mut().for_each(normalize);
        }
        _ => {}
    }
}
