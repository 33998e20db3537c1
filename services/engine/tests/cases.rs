//! Tests the results of profiles applied to pods. Each file in `tests/cases` and `tests/primitives`, and each example
//! in docs/profiles.md, contains profiles, pods and the expected results.
//!
//! Every resulting pod is passed to the engine again (the second pass). The second patch must be empty, unless the case
//! contains the expected result of the second pass. Each case runs twice: once trusting every injection record, and
//! once with managedFields that list the author's fields, as the API server sets them.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "test helpers fail by panicking")]

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use crate::common::{apply, with_managed_fields};
use pillion_api::names::{FailureMode, INJECTED_ANNOTATION};
use pillion_api::profile::ProfileSpec;
use pillion_engine::inject::undo;
use pillion_engine::lookup::{Answer, LookedUp, ObjectSelection, Wanted};
use pillion_engine::profile::{Parent, Parents, ProfileName, ProfileSource};
use pillion_engine::review::{Decided, Endpoint, Facts, RecordTrust, Review};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use pillion_json::OwnedTape;
use serde::Deserialize;
use serde_json::{Value as Json, json};

/// A file of test cases.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct File {
    /// Profiles by their names, in the form `name` or `namespace/name`.
    profiles: serde_json::Map<String, Json>,
    /// Annotations of the namespace.
    #[serde(default)]
    namespace: serde_json::Map<String, Json>,
    /// Facts about the cluster, which the platform team sets.
    cluster: Option<Json>,
    cases: Vec<Case>,
}

/// A test case: a pod, and the expected results.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Case {
    name: String,
    pod: Json,
    /// Annotations of the namespace. They replace those of the file.
    namespace: Option<serde_json::Map<String, Json>>,
    /// Changes to the `request` of the review, as a merge patch.
    #[serde(default)]
    request: Json,
    /// The metadata of the pod's service account. If it is missing, the service account does not exist.
    service_account: Option<Json>,
    /// The owners of the pod that lookups return.
    #[serde(default)]
    owners: Vec<Json>,
    /// Objects that lookups return, with the key `resource/name`. For a list, the key is `resource`.
    #[serde(default)]
    lookups: serde_json::Map<String, Json>,
    /// The whole resulting object, without the injection record. If it is missing, the pod must not change.
    result: Option<Json>,
    /// Expected reasons of the selected profiles, as values of the metric label.
    reasons: Option<Vec<String>>,
    /// A part of each expected message to the pod author, in order.
    #[serde(default)]
    messages: Vec<String>,
    /// A part of each message that the validating endpoint is expected to return for the result, in order. If it is
    /// missing, the validating endpoint is not tested.
    validated: Option<Vec<String>>,
    /// Changes by other webhooks between the first and the second pass, as a merge patch.
    foreign: Option<Json>,
    /// The whole object after the second pass. If it is missing, the second pass must not change the object.
    then: Option<Json>,
}

/// The profiles of a file. Other profiles may extend them.
struct Specs(Vec<(String, ProfileSpec)>);

impl Parents for Specs {
    fn parent(&self, name: &str) -> Parent<'_> {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map_or(Parent::Unknown, |(_, spec)| Parent::Accepted(Cow::Borrowed(spec)))
    }

    fn names(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name.as_str()).collect()
    }
}

fn profiles(file: &File) -> ProfileSet {
    let read = |(name, spec): (&String, &Json)| {
        let spec = serde_json::from_value(spec.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name.clone(), spec)
    };
    let specs = Specs(file.profiles.iter().map(read).collect());
    let compiled = specs.0.iter().map(|(name, spec)| {
        let named = match name.split_once('/') {
            Some((namespace, name)) => ProfileName::namespaced(namespace, name),
            None => ProfileName::cluster(name.as_str()),
        };
        Arc::new(ProfileSource::Author(spec, &specs).compile(&named).unwrap_or_else(|problems| {
            panic!("{name}: {}", problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
        }))
    });
    ProfileSet::new(compiled)
}

/// Returns the snapshot for a test case. The namespace has the annotations of the test case, or else those of the file.
fn snapshot(file: &File, profiles: &ProfileSet, case: &Case) -> Snapshot {
    let annotations = case.namespace.as_ref().unwrap_or(&file.namespace);
    let annotations = annotations.iter().map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()));
    let namespace = Namespace::new([("pillion.dev/injection", "enabled")], annotations);
    Snapshot::new(profiles.clone()).with_namespace("team-a", Some(namespace))
}

fn tape(value: &Json) -> Arc<OwnedTape> {
    Arc::new(OwnedTape::parse(value.to_string()).unwrap())
}

/// Returns the lookup results that the review needs, from the test case and the file.
fn looked_up(file: &File, case: &Case, wanted: Wanted) -> LookedUp {
    let found = |object: Option<Json>| object.map_or(Answer::Missing, |object| Answer::Found(tape(&object)));
    let service_account = match wanted.service_account {
        Some(_) => found(case.service_account.as_ref().map(|metadata| json!({"metadata": metadata}))),
        None => Answer::NotRequested,
    };
    let owners = wanted.owners.map_or(Answer::NotRequested, |mut chain| {
        while let Some(next) = chain.next() {
            let named = |owner: &&Json| owner["metadata"]["name"] == *next.name && owner["kind"] == *next.kind;
            let owner = case.owners.iter().find(named).map(tape);
            chain.found(owner);
        }
        Answer::Found(chain)
    });
    let objects = wanted.objects.into_iter().map(|query| {
        let key = match &query.which {
            ObjectSelection::Named(name) => format!("{}/{name}", query.resource),
            ObjectSelection::Selected(_) => query.resource.to_string(),
        };
        let object = case.lookups.get(&key).cloned();
        (query, found(object))
    });
    LookedUp { service_account, owners, objects: objects.collect(), cluster: file.cluster.as_ref().map(tape) }
}

fn review(case: &Case, pod: &Json) -> Vec<u8> {
    let mut review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "11111111-2222-3333-4444-555555555555", "operation": "CREATE", "namespace": "team-a",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "userInfo": {"username": "someone"}, "object": pod, "oldObject": null, "dryRun": false,
        },
    });
    if case.request.is_object() {
        json_patch::merge(&mut review["request"], &case.request);
    }
    serde_json::to_vec(&review).unwrap()
}

fn decide(file: &File, snapshot: &Snapshot, case: &Case, pod: &Json, record_trust: RecordTrust) -> (Decided, Json) {
    decide_at(file, snapshot, case, pod, (Endpoint::FailureMode(FailureMode::Enabled), record_trust))
}

fn decide_at(
    file: &File,
    snapshot: &Snapshot,
    case: &Case,
    pod: &Json,
    (endpoint, record_trust): (Endpoint, RecordTrust),
) -> (Decided, Json) {
    let body = review(case, pod);
    let review = Review::parse(&body).unwrap();
    let mut facts = Facts { namespace: snapshot.namespace("team-a"), record_trust, ..Facts::default() };
    facts.looked_up = looked_up(file, case, review.needs(endpoint, snapshot, &facts));
    let decided = review.decide(endpoint, snapshot, &facts).unwrap();
    let response: Json = serde_json::from_slice(&review.respond(&decided)).unwrap();
    (decided, response)
}

/// Returns the messages to the pod author: the denial message and the warnings.
fn messages(response: &Json) -> Vec<String> {
    let warnings = response["response"]["warnings"].as_array().cloned().unwrap_or_default();
    let denied = response["response"]["status"]["message"].as_str().map(Json::from);
    denied.into_iter().chain(warnings).map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn assert_messages(messages: &[String], expected: &[String], at: &str) {
    assert_eq!(messages.len(), expected.len(), "{at}: {messages:?}");
    for (message, part) in messages.iter().zip(expected) {
        assert!(message.contains(part.as_str()), "{at}: {message:?} does not contain {part:?}");
    }
}

/// Returns the object without its injection record, and without managedFields if `pod` has none.
fn plain(mut object: Json, pod: &Json) -> Json {
    if let Some(annotations) = object["metadata"].get_mut("annotations").and_then(Json::as_object_mut) {
        annotations.remove(INJECTED_ANNOTATION);
        if annotations.is_empty() {
            object["metadata"].as_object_mut().unwrap().remove("annotations");
        }
    }
    if pod["metadata"].get("managedFields").is_none() {
        object["metadata"].as_object_mut().unwrap().remove("managedFields");
    }
    object
}

fn patched(pod: &Json, decided: &Decided) -> Json {
    let mut object = pod.clone();
    apply(&mut object, decided);
    object
}

fn check(name: &str, file: &File, profiles: &ProfileSet, case: &Case) {
    let at = format!("{name}: {}", case.name);
    let snapshot = &snapshot(file, profiles, case);
    let expected = case.result.as_ref().unwrap_or(&case.pod);
    for trust in [RecordTrust::AsFound, RecordTrust::ManagedFields] {
        let pod = match trust {
            RecordTrust::AsFound => case.pod.clone(),
            RecordTrust::ManagedFields if case.pod["metadata"].get("managedFields").is_some() => case.pod.clone(),
            RecordTrust::ManagedFields => with_managed_fields(case.pod.clone(), &case.pod),
        };
        let (decided, response) = decide(file, snapshot, case, &pod, trust);
        let result = patched(&pod, &decided);
        let shown = decided.decision.profiles.iter().map(|profile| format!("{} {:?}", profile.reason, profile.detail));
        let shown = format!("{trust:?} {:?} {response}", shown.collect::<Vec<_>>());
        assert_same(&plain(result.clone(), &case.pod), expected, &format!("{at} ({shown})"));
        if let Some(reasons) = &case.reasons {
            let found: Vec<_> = decided.decision.profiles.iter().map(|decision| decision.reason.as_str()).collect();
            assert_eq!(&found, reasons, "{at} ({shown})");
        }
        assert_messages(&messages(&response), &case.messages, &at);
        if let Some(expected) = &case.validated {
            let endpoint = Endpoint::ValidateFailureMode(FailureMode::Enabled);
            let (_, response) = decide_at(file, snapshot, case, &result, (endpoint, trust));
            assert_messages(&messages(&response), expected, &format!("{at}: on the validating path"));
        }
        undone(&result, &pod, &format!("{at} ({trust:?})"));
        let mut again = result;
        if let Some(foreign) = &case.foreign {
            json_patch::merge(&mut again, foreign);
        }
        let (second, _) = decide(file, snapshot, case, &again, trust);
        match &case.then {
            None => {
                let patch = second.patch.as_deref().map(String::from_utf8_lossy);
                assert_eq!(patch, None, "{at}: the second pass changes something ({trust:?})");
            }
            Some(then) => {
                let result = patched(&again, &second);
                assert_same(&plain(result.clone(), &case.pod), then, &format!("{at}: the second pass ({trust:?})"));
                let (third, _) = decide(file, snapshot, case, &result, trust);
                let patch = third.patch.as_deref().map(String::from_utf8_lossy);
                assert_eq!(patch, None, "{at}: the third pass changes something ({trust:?})");
            }
        }
    }
}

/// Asserts that undoing the injection restores the original pod. Does nothing if `result` has no injection record or
/// `pod` already had one.
fn undone(result: &Json, pod: &Json, at: &str) {
    let has_record =
        |object: &Json| object["metadata"].get("annotations").is_some_and(|all| all.get(INJECTED_ANNOTATION).is_some());
    if !has_record(result) || has_record(pod) {
        return;
    }
    let undone = undo(&result.to_string()).unwrap_or_else(|error| panic!("{at}: {error}"));
    assert_eq!(undone.gone, Vec::<Box<str>>::new(), "{at}");
    let undone: Json = serde_json::from_str(undone.object.root().raw()).unwrap();
    assert_same(&undone, pod, &format!("{at}: the undone object differs from the original"));
}

/// Asserts that two objects are equal, except for the order of their keys.
fn assert_same(found: &Json, expected: &Json, at: &str) {
    let sorted = |value: &Json| {
        let mut value = value.clone();
        value.sort_all_objects();
        serde_json::to_string_pretty(&value).unwrap()
    };
    let (found, expected) = (sorted(found), sorted(expected));
    assert!(found == expected, "{at}\n--- found\n{found}\n--- expected\n{expected}");
}

/// Parses the documents in a YAML file, and returns them with their names. Each document contains either a file of test
/// cases, or one test case with its `profile`.
fn documents(name: &str, text: &str) -> Vec<(String, File)> {
    let documents = format!("\n{text}");
    let documents = documents.split("\n---\n").enumerate().map(|(place, text)| {
        let name = format!("{name}#{place}");
        let document: Json = serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let file = serde_json::from_value(whole(document)).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, file)
    });
    documents.collect()
}

/// Converts a document with a `profile` to a file with one test case. Also adds `metadata` to the objects of all test
/// cases if they have none.
fn whole(mut document: Json) -> Json {
    if let Some(profile) = document.as_object_mut().unwrap().remove("profile") {
        let cluster = document.as_object_mut().unwrap().remove("cluster");
        document = json!({"profiles": {"p": profile}, "cases": [document], "cluster": cluster});
    }
    for case in document["cases"].as_array_mut().unwrap() {
        for name in ["pod", "result", "then"] {
            if let Some(object) = case.get_mut(name).and_then(Json::as_object_mut) {
                object.entry("metadata").or_insert_with(|| json!({}));
            }
        }
    }
    document
}

/// Reads the YAML files of a folder in `tests`. Returns their documents with their names.
fn files(folder: &str) -> Vec<(String, File)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        documents(&name, &std::fs::read_to_string(&path).unwrap())
    };
    files.into_iter().flat_map(read).collect()
}

/// Runs the test cases in files, and returns their number. Panics with the names of all failing test cases.
fn run(files: &[(String, File)]) -> usize {
    let mut count = 0;
    let mut failed = Vec::new();
    for (name, file) in files {
        let guarded = |run: &mut dyn FnMut()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_ok();
        let mut set = None;
        if !guarded(&mut || set = Some(profiles(file))) {
            failed.push(format!("{name}: its profiles do not compile"));
        }
        let Some(set) = set else { continue };
        for case in &file.cases {
            count += 1;
            if !guarded(&mut || check(name, file, &set, case)) {
                failed.push(format!("{name}: {}", case.name));
            }
        }
    }
    assert!(failed.is_empty(), "{} of {count} failed: {failed:#?}", failed.len());
    count
}

/// The documentation page with the examples. An example consists of blocks in this order: `profile`s, one or more
/// `pod`s, then changes by `others` to the last result, and the result `then`. Blocks with facts (`namespace`, `facts`)
/// precede the pod. The `result` and the messages to the author (`messages`) follow the pod.
const PAGE: &str = include_str!("../../../docs/profiles.md");

/// Returns the fenced blocks of the page, each with its info string, line number and content.
fn blocks() -> Vec<(&'static str, usize, String)> {
    let mut blocks = Vec::new();
    let mut lines = PAGE.lines().enumerate();
    while let Some((line, text)) = lines.next() {
        let Some(words) = text.strip_prefix("```") else { continue };
        let body: Vec<_> = lines.by_ref().map(|(_, text)| text).take_while(|text| *text != "```").collect();
        blocks.push((words, line + 1, body.join("\n")));
    }
    blocks
}

/// An example of the page. It is converted to a file of test cases.
#[derive(Default)]
struct Example {
    profiles: serde_json::Map<String, Json>,
    cluster: Json,
    /// The facts that apply to the next pod.
    facts: serde_json::Map<String, Json>,
    cases: Vec<Json>,
}

impl Example {
    fn profile(&mut self, profile: &Json) {
        let (name, spec) = match profile.get("spec") {
            Some(spec) => (profile["metadata"]["name"].as_str().unwrap(), spec.clone()),
            None => ("p", profile.clone()),
        };
        assert!(self.profiles.insert(name.to_owned(), spec).is_none(), "two profiles {name}");
    }

    /// Sets the field `name` of the last test case. `line` is the line of the block, for error messages.
    fn of_pod(&mut self, line: usize, name: &str, value: Json) {
        let case = self.cases.last_mut().unwrap_or_else(|| panic!("line {line}: no pod precedes it"));
        assert!(case.get(name).is_none(), "line {line}: the pod before it already has {name}");
        case[name] = value;
    }

    fn file(self) -> File {
        for case in &self.cases {
            let shows = ["result", "messages"].into_iter().any(|name| case.get(name).is_some());
            assert!(shows, "{}: the pod has no expected result", case["name"]);
        }
        let Self { profiles, cluster, cases, .. } = self;
        serde_json::from_value(whole(json!({"profiles": profiles, "cluster": cluster, "cases": cases}))).unwrap()
    }
}

/// Returns the examples of the page. Their names are their line numbers.
fn examples() -> Vec<(String, File)> {
    let mut examples: Vec<(String, Example)> = Vec::new();
    for (words, line, text) in blocks() {
        let value = || -> Json { serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("line {line}: {error}")) };
        if words == "yaml profile" {
            // A profile after a pod starts a new example.
            if examples.last().is_none_or(|(_, example)| !example.cases.is_empty()) {
                examples.push((format!("docs/profiles.md:{line}"), Example::default()));
            }
            examples.last_mut().unwrap().1.profile(&value());
            continue;
        }
        let (_, example) = examples.last_mut().unwrap_or_else(|| panic!("line {line}: no profile precedes it"));
        match words {
            "yaml namespace" => drop(example.facts.insert("namespace".to_owned(), value())),
            "yaml facts" => {
                let Json::Object(mut facts) = value() else { panic!("line {line}: facts must be a map") };
                example.cluster = facts.remove("cluster").unwrap_or_default();
                example.facts.extend(facts);
            }
            "yaml pod" => {
                let mut case = Json::Object(std::mem::take(&mut example.facts));
                case["name"] = format!("line {line}").into();
                case["pod"] = value();
                example.cases.push(case);
            }
            "yaml result" => example.of_pod(line, "result", value()),
            "yaml others" => example.of_pod(line, "foreign", value()),
            "yaml then" => example.of_pod(line, "then", value()),
            "text messages" => example.of_pod(line, "messages", text.lines().collect::<Vec<_>>().into()),
            _ => panic!("line {line}: unknown block {words:?}"),
        }
    }
    examples.into_iter().map(|(name, example)| (name, example.file())).collect()
}

#[test]
fn cases_have_expected_results() {
    let count = run(&files("cases"));
    assert!(count >= 25, "only {count} cases were found");
}

#[test]
fn primitives_have_expected_results() {
    let count = run(&files("primitives"));
    assert!(count >= 60, "only {count} cases were found");
}

#[test]
fn examples_of_page_have_expected_results() {
    let count = run(&examples());
    assert!(count >= 20, "only {count} examples were found");
}
