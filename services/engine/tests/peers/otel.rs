//! OpenTelemetry's operator: an `Instrumentation`, a workload, and the part of its pod that its end-to-end tests look at.

use std::path::Path;

use serde_json::{Value as Json, json};

use crate::compare::assert_contains;
use crate::harness::{Input, Pinned, Profiles, documents, files, fixtures, own_cases, run_own, tally, text};

const PREFIX: &str = "instrumentation.opentelemetry.io/inject-";

/// Languages: as in the annotation, and as in an `Instrumentation`.
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

const PINNED: &[Pinned] = &[];

/// How many of the peer's cases are as the peer has them.
const PASSING: usize = 15;

/// The profiles, as somebody would set them up who has this `Instrumentation`.
fn profiles(instrumentation: &Json, namespace: &str) -> Profiles {
    let mut profiles = Profiles::of("otel");
    let name = text(&instrumentation["metadata"]["name"]);
    let spec = &instrumentation["spec"];
    for (language, field) in LANGUAGES {
        let profile = format!("otel-{language}");
        let own = &spec[field];
        let settings = [
            ("env", spec["env"].clone()),
            ("endpoint", spec["exporter"]["endpoint"].clone()),
            ("tls", spec["exporter"]["tls"].clone()),
            ("propagators", spec["propagators"].clone()),
            ("sampler", spec["sampler"]["type"].clone()),
            ("samplerArgument", spec["sampler"]["argument"].clone()),
            ("languageEnv", own["env"].clone()),
            (
                "volume",
                match &own["volumeClaimTemplate"] {
                    Json::Null => Json::Null,
                    template => json!({"ephemeral": {"volumeClaimTemplate": template}}),
                },
            ),
            ("attrs", own["attrs"].clone()),
        ];
        for (parameter, value) in settings.into_iter().filter(|(_, value)| !value.is_null()) {
            profiles = profiles.with_default(&profile, parameter, value);
        }
        profiles = profiles.with_values(&profile, json!([name, format!("{namespace}/{name}")]));
    }
    profiles
}

/// The pod of a workload, as its controller creates it.
fn pod_of(workload: &Json) -> Json {
    if workload["kind"] == "Pod" {
        return workload.clone();
    }
    let mut pod = workload["spec"]["template"].clone();
    let name = text(&workload["metadata"]["name"]);
    pod["metadata"]["generateName"] = json!(format!("{name}-5d9c7b-"));
    pod["metadata"]["labels"]["pod-template-hash"] = json!("5d9c7b");
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{name}-5d9c7b"), "uid": "1", "controller": true,
    }]);
    pod
}

/// Without what is not the injector's: what the API server fills in, what the mount of the account's token is, which
/// another admission controller adds, and what happened after the pod was created.
fn level(value: &mut Json) {
    match value {
        Json::Object(members) => {
            members.retain(|key, value| {
                !(key == "apiVersion" && value == "v1"
                    || key == "protocol" && value == "TCP"
                    || key == "successThreshold"
                    || key == "status")
            });
            members.values_mut().for_each(level);
        }
        Json::Array(items) => {
            items.retain(|item| item["mountPath"] != "/var/run/secrets/kubernetes.io/serviceaccount");
            items.iter_mut().for_each(level);
        }
        _ => {}
    }
}

fn check(install: &Path, assertion: &Path) {
    let folder = install.parent().unwrap();
    let instrumentation = files(folder, "install-instrumentation.yaml").remove(0);
    let instrumentation =
        documents(&instrumentation).into_iter().find(|found| found["kind"] == "Instrumentation").unwrap();
    let namespace = instrumentation["metadata"]["namespace"].as_str().unwrap_or("default");
    let is_workload = |found: &Json| found["spec"].get("template").is_some() || found["kind"] == "Pod";
    let workload = documents(install).into_iter().find(is_workload).unwrap();
    let mut part = documents(assertion).into_iter().find(|found| found["kind"] == "Pod").unwrap();
    let input = Input::new(pod_of(&workload));
    let mut outcome = profiles(&instrumentation, namespace).inject(&input);
    level(&mut outcome.object);
    level(&mut part);
    part.as_object_mut().unwrap().remove("kind");
    let at = format!("{} ({})", assertion.display(), outcome.told);
    assert_contains(&outcome.object, &part, &at);
}

#[test]
fn the_cases_of_the_operator() {
    let Some(folder) = fixtures("otel") else { return };
    let cases = files(&folder, "install-app.yaml").into_iter().map(|install| {
        let file = install.file_name().unwrap().to_string_lossy().into_owned();
        let number = file.split('-').next().unwrap().to_owned();
        let scenario = install.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
        let assertion = install.with_file_name(format!("{number}-assert.yaml"));
        let case: Box<dyn Fn()> = Box::new(move || check(&install, &assertion));
        (format!("{scenario}/{number}"), case)
    });
    tally("otel", &cases.collect::<Vec<_>>(), PINNED, PASSING);
}

#[test]
fn cases_of_our_own() {
    let cases = own_cases("otel");
    assert!(cases.len() >= 11, "only {} cases were found", cases.len());
    run_own(&Profiles::of("otel"), &cases, "app", |_| {});
    // Every language is asked for by an annotation of its own.
    assert!(LANGUAGES.iter().all(|(language, _)| Profiles::of("otel").asks(&format!("otel-{language}"), PREFIX)));
}
