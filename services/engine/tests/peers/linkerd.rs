//! Linkerd: pods with the patches that its webhook makes of them, and workloads with what its command line makes of them.

use std::path::Path;

use serde_json::{Map, Value as Json, json};

use crate::compare::assert_same;
use crate::harness::{Case, Input, Pinned, Profiles, documents, fixtures, own_cases, run_own, tally, text};

const PINNED: &[Pinned] = &[(
    "cli/inject_emojivoto_cronjob_nometa",
    "this command does not inject: it writes the annotation that asks the webhook for it",
)];

/// How many of the peer's cases are as the peer has them.
const PASSING: usize = 13;

/// The webhook's cases: the pod, its namespace, and the patch; none where nothing is to be done.
const WEBHOOK: [(&str, &str, Option<&str>); 7] = [
    ("pod-inject-empty", "namespace-inject-enabled", Some("pod.patch")),
    ("pod-inject-enabled", "namespace-inject-enabled", Some("pod.patch")),
    ("pod-inject-enabled", "namespace-inject-disabled", Some("pod.patch")),
    ("pod-inject-enabled-log-level", "namespace-inject-enabled", Some("pod-log-level")),
    ("pod-with-debug-enabled", "namespace-inject-disabled", Some("pod-with-debug.patch")),
    ("pod-inject-empty", "namespace-inject-disabled", None),
    ("deployment-inject-disabled", "namespace-inject-enabled", None),
];

/// The command line's cases. It asks for every workload.
const COMMAND_LINE: [&str; 7] = [
    "inject_contour",
    "inject_emojivoto_cronjob_nometa",
    "inject_emojivoto_deployment",
    "inject_emojivoto_deployment_capabilities",
    "inject_emojivoto_deployment_hostNetwork_true",
    "inject_emojivoto_deployment_udp",
    "inject_emojivoto_pod",
];

fn profiles(settings: &[(&str, &str)]) -> Profiles {
    settings.iter().fold(Profiles::of("linkerd"), |profiles, (parameter, value)| {
        profiles.with_default("linkerd-proxy", parameter, json!(value))
    })
}

/// The pod of a workload, with a controller that is known without looking anything up.
fn pod_of(object: &Json) -> Json {
    let (mut pod, owner) = match object["kind"].as_str() {
        Some("Deployment") => (object["spec"]["template"].clone(), Some(("apps/v1", "Deployment"))),
        Some("CronJob") => (object["spec"]["jobTemplate"]["spec"]["template"].clone(), Some(("batch/v1", "CronJob"))),
        _ => (object.clone(), None),
    };
    if !pod["metadata"].is_object() {
        pod["metadata"] = json!({});
    }
    if let Some((version, kind)) = owner {
        pod["metadata"]["ownerReferences"] = json!([{"apiVersion": version, "kind": kind, "name": object["metadata"]["name"], "uid": "1", "controller": true}]);
    }
    // Some of the peer's annotations are booleans in YAML. The API server would refuse them.
    for value in pod["metadata"]["annotations"].as_object_mut().into_iter().flatten().map(|(_, value)| value) {
        if !value.is_string() {
            *value = value.to_string().into();
        }
    }
    pod
}

/// Without what is the test's own, and what the API server's types leave out when they are written.
fn level(object: &mut Json) {
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.remove("ownerReferences");
    metadata.remove("creationTimestamp");
    for container in object["spec"]["initContainers"].as_array_mut().into_iter().flatten() {
        if let Some(probe) = container.get_mut("startupProbe").and_then(Json::as_object_mut) {
            probe.retain(|key, value| key != "initialDelaySeconds" || value != 0);
        }
    }
}

fn check_webhook(folder: &Path, pod: &str, namespace: &str, patch: Option<&str>) {
    // The peer's pods live in a namespace of the system, in which the engine never injects.
    let namespace_of_pods = "kube-somewhere";
    let replaced = |path: &Path| std::fs::read_to_string(path).unwrap().replace("kube-public", namespace_of_pods);
    let object: Json = serde_saphyr::from_str(&replaced(&folder.join(format!("{pod}.yaml")))).unwrap();
    let namespace: Json = serde_saphyr::from_str(&replaced(&folder.join(format!("{namespace}.yaml")))).unwrap();
    let mut input = Input::new(pod_of(&object));
    // The peer's test says that it is a Deployment's pod.
    input.pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "owner-deployment", "uid": "1", "controller": true}]);
    namespace_of_pods.clone_into(&mut input.namespace);
    input.namespace_annotations = namespace["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    let mut expected = input.pod.clone();
    if let Some(patch) = patch {
        let patch = replaced(&folder.join(format!("{patch}.json")));
        json_patch::patch(&mut expected, &serde_json::from_str::<json_patch::Patch>(&patch).unwrap()).unwrap();
    }
    let settings =
        [("version", "dev-undefined"), ("debugVersion", "dev-undefined"), ("trustAnchors", "IdentityTrustAnchorsPEM")];
    let mut outcome = profiles(&settings).inject(&input);
    // The annotations of the namespace are copied to the pod by another function of the peer's, which this test of
    // its does not call.
    let annotations = outcome.object["metadata"]["annotations"].as_object_mut().unwrap();
    if expected["metadata"]["annotations"].get("linkerd.io/inject").is_none() {
        annotations.remove("linkerd.io/inject");
    }
    level(&mut outcome.object);
    level(&mut expected);
    assert_same(&outcome.object, &expected, &outcome.told);
}

fn check_command_line(folder: &Path, name: &str) {
    let workload = documents(&folder.join(format!("{name}.input.yml"))).remove(0);
    let golden = documents(&folder.join(format!("{name}.golden.yml"))).into_iter().next();
    let mut input = Input::new(pod_of(&workload));
    input.namespace = text(&workload["metadata"]["namespace"]);
    input.namespace_annotations = Map::from_iter([("linkerd.io/inject".to_owned(), json!("enabled"))]);
    let mut expected = golden.as_ref().map_or_else(|| input.pod.clone(), pod_of);
    // The roots of trust are the installation's.
    let env = &expected["spec"]["initContainers"][1]["env"];
    let is_anchors = |found: &&Json| found["name"] == "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS";
    let anchors = env.as_array().and_then(|env| env.iter().find(is_anchors)).map(|found| text(&found["value"]));
    let settings = [
        ("version", "test-inject-proxy-version"),
        ("createdBy", "linkerd/cli dev-undefined"),
        ("trustAnchors", anchors.as_deref().unwrap_or_default()),
    ];
    let mut outcome = profiles(&settings).inject(&input);
    if golden.is_none() {
        let error = std::fs::read_to_string(folder.join(format!("{name}.golden.stderr"))).unwrap();
        assert!(error.contains("hostNetwork is enabled") && outcome.told.contains("hostNetwork is enabled"));
    } else if expected["metadata"]["annotations"].get("linkerd.io/inject").is_none() {
        // The namespace that asks is this test's way to say what the command says.
        outcome.object["metadata"]["annotations"].as_object_mut().unwrap().remove("linkerd.io/inject");
    }
    level(&mut outcome.object);
    level(&mut expected);
    assert_same(&outcome.object, &expected, &outcome.told);
}

#[test]
fn the_cases_of_linkerd() {
    let Some(folder) = fixtures("linkerd") else { return };
    let (webhook, command_line) = (folder.join("webhook"), folder.join("cli"));
    let mut cases: Vec<Case<'_>> = Vec::new();
    for (pod, namespace, patch) in WEBHOOK {
        let webhook = webhook.clone();
        cases.push((
            format!("webhook/{pod}/{namespace}"),
            Box::new(move || check_webhook(&webhook, pod, namespace, patch)),
        ));
    }
    for name in COMMAND_LINE {
        let command_line = command_line.clone();
        cases.push((format!("cli/{name}"), Box::new(move || check_command_line(&command_line, name))));
    }
    tally("linkerd", &cases, PINNED, PASSING);
}

#[test]
fn cases_of_our_own() {
    let cases = own_cases("linkerd");
    assert!(cases.len() >= 6, "only {} cases were found", cases.len());
    run_own(&profiles(&[("version", "v1"), ("trustAnchors", "roots")]), &cases, "linkerd-proxy", |_| {});
}
