//! How a peer's case is run: its profiles compiled, the pod decided about, the patch applied, the result compared.
//!
//! What is compared is the object, never the patch, and without the record of the engine. What else may differ is said
//! case by case, with its reason. Each case is run as the command line runs it, and as the API server's request comes: with
//! managedFields that name what the author wrote. Both are then injected again, which has to change nothing.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pillion_api::names::InjectionLevel;
use pillion_api::profile::ProfileSpec;
use pillion_engine::json::OwnedTape;
use pillion_engine::lookup::{Answer, LookedUp};
use pillion_engine::profile::{Parent, Parents, ProfileName, ProfileSet, advise, compile_with};
use pillion_engine::review::{Endpoint, Facts, RecordTrust, Review};
use pillion_engine::snapshot::{Namespace, Snapshot};
use serde_json::{Map, Value as Json, json};

use crate::compare::{assert_contains, assert_same};

/// The variable that names the folder with the peers' own cases.
const FOLDER: &str = "PILLION_PEERS";

/// Where the folder is looked for if the variable is not set: beside the checkout.
const BESIDE: &str = "shared/fixtures/peers";

const RECORD: &str = "pillion.dev/injected";

/// The profiles of a peer, as they are written.
#[derive(Clone, Debug)]
pub(crate) struct Profiles(Vec<(String, Json)>);

/// What a case is about.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    pub(crate) pod: Json,
    pub(crate) namespace: String,
    pub(crate) namespace_annotations: Map<String, Json>,
    /// The annotations of the pod's service account; `None` if there is no such account.
    pub(crate) service_account: Option<Map<String, Json>>,
    pub(crate) cluster: Json,
}

/// What became of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The object without the record.
    pub(crate) object: Json,
    /// Reasons of the profiles that were asked for, and what the author is told.
    pub(crate) told: String,
}

/// A case of the peer's: its name, and what fails if it is not as the peer has it.
pub(crate) type Case<'c> = (String, Box<dyn Fn() + 'c>);

/// A case that is known to differ, and why.
pub(crate) type Pinned = (&'static str, &'static str);

impl Parents for Profiles {
    fn parent(&self, name: &str) -> Parent<'_> {
        let Some((_, spec)) = self.0.iter().find(|(found, _)| found == name) else { return Parent::Unknown };
        let spec: ProfileSpec = serde_json::from_value(spec.clone()).unwrap();
        Parent::Accepted(std::borrow::Cow::Owned(spec))
    }

    fn names(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name.as_str()).collect()
    }
}

impl Profiles {
    /// The profiles in `tests/peers/<peer>/profile.yaml`.
    pub(crate) fn of(peer: &str) -> Self {
        let documents = documents(&own_folder(peer).join("profile.yaml"));
        Self(documents.iter().map(|document| (text(&document["metadata"]["name"]), document["spec"].clone())).collect())
    }

    /// With one more.
    pub(crate) fn with(mut self, name: &str, spec: Json) -> Self {
        self.0.push((name.to_owned(), spec));
        self
    }

    /// With another default of a parameter, as the one who installs the profile would write it.
    pub(crate) fn with_default(mut self, profile: &str, parameter: &str, value: Json) -> Self {
        let (_, spec) = self.0.iter_mut().find(|(name, _)| name == profile).unwrap();
        let is_child = spec.get("extends").is_some();
        let parameters = spec.as_object_mut().unwrap().entry("parameters").or_insert_with(|| json!([]));
        let parameters = parameters.as_array_mut().unwrap();
        match parameters.iter_mut().find(|found| found["name"] == parameter) {
            Some(found) => found["default"] = value,
            None if is_child => parameters.push(json!({"name": parameter, "default": value})),
            None => panic!("{profile} has no parameter {parameter}"),
        }
        self
    }

    /// With other words by which it is asked for, beside its name.
    pub(crate) fn with_values(mut self, profile: &str, values: Json) -> Self {
        let (_, spec) = self.0.iter_mut().find(|(name, _)| name == profile).unwrap();
        spec["request"]["values"] = values;
        self
    }

    /// Whether a profile is asked for by an annotation that begins so.
    pub(crate) fn asks(&self, profile: &str, prefix: &str) -> bool {
        let found = self.0.iter().find(|(name, _)| name == profile);
        found.is_some_and(|(_, spec)| text(&spec["request"]["annotation"]).starts_with(prefix))
    }

    /// What an author would be told to look at, in profiles that compile.
    pub(crate) fn advice(&self) -> Vec<String> {
        self.compiled();
        let mut told = Vec::new();
        for (name, spec) in &self.0 {
            let spec = serde_json::from_value(spec.clone()).unwrap();
            told.extend(advise(&spec).into_iter().map(|diagnostic| format!("{name}: {diagnostic}")));
        }
        told
    }

    fn compiled(&self) -> ProfileSet {
        let compiled = self.0.iter().map(|(name, spec)| {
            let spec = serde_json::from_value(spec.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
            let compiled = compile_with(&ProfileName::cluster(name.as_str()), &spec, self);
            Arc::new(compiled.unwrap_or_else(|faults| {
                panic!("{name}: {}", faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
            }))
        });
        ProfileSet::new(compiled)
    }

    /// Injects, and again, which has to change nothing.
    pub(crate) fn inject(&self, input: &Input) -> Outcome {
        let annotations = input.namespace_annotations.iter().map(|(key, value)| (key.clone(), text(value)));
        let labels = [("pillion.dev/injection".to_owned(), "enabled".to_owned())];
        let namespace = Namespace::new(labels, annotations);
        let snapshot = Snapshot::new(self.compiled()).with_namespace(&input.namespace, Some(namespace));
        let tape = |value: &Json| Arc::new(OwnedTape::parse(value.to_string()).unwrap());
        let account = input.service_account.as_ref().map(|annotations| {
            let name = input.pod["spec"]["serviceAccountName"].as_str().unwrap_or("default");
            tape(&json!({"metadata": {"name": name, "annotations": annotations}}))
        });
        let facts = Facts {
            namespace: snapshot.namespace(&input.namespace),
            looked_up: LookedUp {
                service_account: account.map_or(Answer::Missing, Answer::Found),
                cluster: Some(tape(&input.cluster)),
                ..LookedUp::default()
            },
            record_trust: RecordTrust::AsFound,
            ..Facts::default()
        };
        let (object, told) = decide(&input.pod, &input.namespace, &snapshot, &facts);
        let (again, _) = decide(&object, &input.namespace, &snapshot, &facts);
        assert_same(&again, &object, "the second pass changes something");
        let facts = Facts { record_trust: RecordTrust::ManagedFields, ..facts };
        let (by_server, _) = decide(&managed(&input.pod), &input.namespace, &snapshot, &facts);
        let (again, _) = decide(&by_server, &input.namespace, &snapshot, &facts);
        assert_same(&again, &by_server, "the second pass of the API server changes something");
        let object = without_bookkeeping(object);
        assert_same(&without_bookkeeping(by_server), &object, "the API server's request comes to something else");
        Outcome { object, told }
    }
}

impl Input {
    pub(crate) fn new(pod: Json) -> Self {
        Self {
            pod,
            namespace: "default".to_owned(),
            namespace_annotations: Map::new(),
            service_account: Some(Map::new()),
            cluster: json!({}),
        }
    }
}

fn decide(pod: &Json, namespace: &str, snapshot: &Snapshot, facts: &Facts) -> (Json, String) {
    let body = serde_json::to_vec(&json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "11111111-2222-3333-4444-555555555555", "operation": "CREATE", "namespace": namespace,
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "userInfo": {"username": "someone"}, "object": pod, "oldObject": null, "dryRun": false,
        },
    }))
    .unwrap();
    let review = Review::parse(&body).unwrap();
    let decided = review.decide(Endpoint::Level(InjectionLevel::Enabled), snapshot, facts).unwrap();
    let answer: Json = serde_json::from_slice(&review.respond(&decided)).unwrap();
    let mut told = String::new();
    for profile in &decided.decision.profiles {
        writeln!(told, "{} {:?}", profile.reason, profile.detail).unwrap();
    }
    for warning in answer["response"]["warnings"].as_array().into_iter().flatten() {
        writeln!(told, "{warning}").unwrap();
    }
    if answer["response"]["allowed"] != true {
        writeln!(told, "denied: {}", answer["response"]["status"]["message"]).unwrap();
    }
    let mut object = pod.clone();
    if let Some(patch) = &decided.patch {
        json_patch::patch(&mut object, &serde_json::from_slice::<json_patch::Patch>(patch).unwrap()).unwrap();
    }
    (object, told)
}

/// The folder with the peers' cases; `None`, with a word on standard error, where it is not there.
pub(crate) fn fixtures(peer: &str) -> Option<PathBuf> {
    let beside = || {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
        Some(checkout.parent()?.join(BESIDE))
    };
    let folder = std::env::var_os(FOLDER).map(PathBuf::from).or_else(beside).map(|folder| folder.join(peer));
    let found = folder.filter(|folder| folder.is_dir());
    if found.is_none() {
        eprintln!("skipped: the cases of {peer} itself are not here; set {FOLDER} to the folder with {peer}/ in it");
    }
    found
}

fn own_folder(peer: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(peer)
}

/// The cases of `tests/peers/<peer>/cases.yaml`.
pub(crate) fn own_cases(peer: &str) -> Vec<Json> {
    documents(&own_folder(peer).join("cases.yaml"))
}

/// The input that one of the own cases describes.
fn own_input(case: &Json) -> Input {
    let map = |name: &str| case[name].as_object().cloned();
    Input {
        pod: case["pod"].clone(),
        namespace: case["namespace"].as_str().unwrap_or("default").to_owned(),
        namespace_annotations: map("namespaceAnnotations").unwrap_or_default(),
        service_account: map("serviceAccount"),
        cluster: map("cluster").unwrap_or_default().into(),
    }
}

/// The documents of a YAML file.
pub(crate) fn documents(path: &Path) -> Vec<Json> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let found: Vec<Json> =
        serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    found.into_iter().filter(|document| !document.is_null()).collect()
}

/// Files of a folder and of those in it, by what their names end with, sorted.
pub(crate) fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

pub(crate) fn text(value: &Json) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a text")).to_owned()
}

/// The pod with what the API server says of who wrote what: its author, all of it.
fn managed(pod: &Json) -> Json {
    fn fields(value: &Json) -> Json {
        match value {
            Json::Object(members) => {
                members.iter().map(|(key, value)| (format!("f:{key}"), fields(value))).collect::<Map<_, _>>().into()
            }
            Json::Array(items) if items.iter().all(|item| item.get("name").is_some()) => items
                .iter()
                .map(|item| (format!("k:{}", json!({"name": item["name"]})), fields(item)))
                .collect::<Map<_, _>>()
                .into(),
            _ => json!({}),
        }
    }
    let mut managed = pod.clone();
    managed["metadata"]["managedFields"] = json!([{
        "manager": "kubectl-create", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": fields(pod),
    }]);
    managed
}

fn without_bookkeeping(mut object: Json) -> Json {
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.remove("managedFields");
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Json::as_object_mut) {
        annotations.remove(RECORD);
    }
    object
}

/// Runs the cases of our own that are written down for a peer. `container` is the one whose variables a case names one by
/// one, and `level` takes out of an object what differs each time.
pub(crate) fn run_own(profiles: &Profiles, cases: &[Json], container: &str, level: impl Fn(&mut Json)) {
    for case in cases {
        let mut profiles = profiles.clone();
        for (profile, defaults) in case["defaults"].as_object().into_iter().flatten() {
            for (parameter, value) in defaults.as_object().unwrap() {
                profiles = profiles.with_default(profile, parameter, value.clone());
            }
        }
        let mut outcome = profiles.inject(&own_input(case));
        level(&mut outcome.object);
        let at = format!("{}: {}", case["name"], outcome.told);
        match (case.get("part"), case.get("result")) {
            (Some(part), _) => assert_contains(&outcome.object, part, &at),
            (None, Some(result)) => assert_same(&outcome.object, result, &at),
            (None, None) => assert_same(&outcome.object, &case["pod"], &at),
        }
        for told in case["told"].as_array().into_iter().flatten() {
            assert!(outcome.told.contains(&text(told)), "{at}");
        }
        let spec = &outcome.object["spec"];
        let containers = ["initContainers", "containers"].iter().filter_map(|list| spec[list].as_array()).flatten();
        let env = containers.filter(|found| found["name"] == container).find_map(|found| found["env"].as_array());
        for (name, value) in case["env"].as_object().into_iter().flatten() {
            let found =
                env.unwrap_or_else(|| panic!("{at}: no {container}")).iter().find(|found| found["name"] == *name);
            assert_eq!(&found.unwrap_or_else(|| panic!("{at}: no {name}"))["value"], value, "{at}: {name}");
        }
    }
}

/// Runs cases by name and counts those that are as the peer has it. A case that is pinned has to differ still, so that
/// the table tells the truth; all others have to pass, and there have to be as many as somebody once counted.
pub(crate) fn tally(peer: &str, cases: &[Case<'_>], pinned: &[Pinned], passing: usize) {
    let mut passed = 0;
    let mut wrong = Vec::new();
    for (name, _) in pinned {
        if !cases.iter().any(|(case, _)| case == name) {
            wrong.push(format!("{name} is pinned, and there is no such case"));
        }
    }
    for (name, case) in cases {
        let reason = pinned.iter().find(|(pinned, _)| pinned == name).map(|(_, reason)| *reason);
        eprintln!("case {peer}/{name}");
        match (catch_unwind(AssertUnwindSafe(case)), reason) {
            (Ok(()), None) => passed += 1,
            (Err(_), Some(_)) => {}
            (Ok(()), Some(reason)) => wrong.push(format!("{name} passes, though it is pinned: {reason}")),
            (Err(_), None) => wrong.push(format!("{name} is not as {peer} has it")),
        }
    }
    assert!(wrong.is_empty(), "{peer}: {wrong:#?}");
    assert_eq!(passed, passing, "{peer}: the number of cases that are as the peer has them");
}
