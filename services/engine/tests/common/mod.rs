//! Helpers for the engine's tests: captured reviews, and a realistic profile.
#![allow(dead_code, reason = "no test file uses all of this module")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test helpers fail by panicking")]

use std::path::PathBuf;
use std::sync::Arc;

use pillion_api::names::FailureMode;
use pillion_engine::profile::{ProfileName, compile};
use pillion_engine::review::{Decided, Endpoint, Facts, Review};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use serde_json::{Map, Value as Json, json};

/// The file name of the captured review for a pod of a Deployment.
pub(crate) const DEPLOYMENT: &str = "create-deployment-pod.json";

/// Returns the reviews captured from a real API server, with their file names.
pub(crate) fn captured() -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/reviews");
    let mut reviews: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
        .collect();
    reviews.sort();
    assert!(reviews.len() > 5, "the captured reviews are missing");
    reviews
}

pub(crate) fn captured_by_name(name: &str) -> Vec<u8> {
    captured().into_iter().find(|(file, _)| file == name).unwrap().1
}

/// Returns a captured review with `variables` additional environment variables. With 1,000 of them, it is as large as
/// the largest reviews in real clusters.
pub(crate) fn large_review(variables: usize) -> Vec<u8> {
    let mut review: Json = serde_json::from_slice(&captured_by_name(DEPLOYMENT)).unwrap();
    let env = review["request"]["object"]["spec"]["containers"][0]["env"].as_array_mut().unwrap();
    env.extend((0..variables).map(|number| json!({"name": format!("VARIABLE_{number}"), "value": "x".repeat(180)})));
    serde_json::to_vec(&review).unwrap()
}

/// Returns a profile with a container, a native sidecar, a volume, a label and an annotation.
pub(crate) fn sidecar(name: &str) -> Json {
    json!({
        "activation": "Always",
        "template": {
            "metadata": {
                "labels": {format!("example.com/{name}"): "yes"},
                "annotations": {format!("{name}.example.com/status"): "injected"},
            },
            "spec": {
                "initContainers": [{"name": format!("{name}-native"), "image": "native:1", "restartPolicy": "Always"}],
                "containers": [{
                    "name": name, "image": "registry.example.com/sidecar:1.0",
                    "ports": [{"containerPort": 80}],
                    "volumeMounts": [{"name": format!("{name}-config"), "mountPath": "/etc/sidecar"}],
                }],
                "volumes": [{"name": format!("{name}-config"), "configMap": {"name": "sidecar"}}],
            },
        },
    })
}

pub(crate) fn snapshot(profiles: &[(&str, Json)]) -> Snapshot {
    let compiled = profiles.iter().map(|(name, spec)| {
        let spec = serde_json::from_value(spec.clone()).unwrap();
        Arc::new(compile(&ProfileName::cluster(*name), &spec).unwrap())
    });
    Snapshot::new(ProfileSet::new(compiled)).with_namespace("team-a", Some(Namespace::opted_in(FailureMode::Enabled)))
}

/// Decides the review in `body`, and returns the decision and the response.
pub(crate) fn respond(body: &[u8], snapshot: &Snapshot) -> (Decided, Vec<u8>) {
    let review = Review::parse(body).unwrap();
    let facts = Facts { namespace: snapshot.namespace(review.namespace()), ..Facts::default() };
    let decided = review.decide(Endpoint::FailureMode(FailureMode::Enabled), snapshot, &facts).unwrap();
    let response = review.respond(&decided);
    (decided, response)
}

/// Applies the patch of a decision to an object.
pub(crate) fn apply(object: &mut Json, decided: &Decided) {
    if let Some(patch) = &decided.patch {
        json_patch::patch(object, &serde_json::from_slice::<json_patch::Patch>(patch).unwrap()).unwrap();
    }
}

/// Returns the object of the review in `body` with the patch of a decision applied.
pub(crate) fn patched(body: &[u8], decided: &Decided) -> Json {
    let mut object = serde_json::from_slice::<Json>(body).unwrap()["request"]["object"].clone();
    apply(&mut object, decided);
    object
}

/// Returns the review of the creation of a pod.
pub(crate) fn review(object: &Json) -> Vec<u8> {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "namespace": "team-a", "operation": "CREATE", "object": object,
            "resource": {"group": "", "version": "v1", "resource": "pods"},
        },
    });
    review.to_string().into_bytes()
}

/// Sets `managedFields` of the object. They list the fields of the object `author` as fields of `kubectl-create`.
pub(crate) fn with_managed_fields(mut object: Json, author: &Json) -> Json {
    fn fields(value: &Json) -> Json {
        match value {
            Json::Object(members) => {
                members.iter().map(|(key, value)| (format!("f:{key}"), fields(value))).collect::<Map<_, _>>().into()
            }
            Json::Array(items) if items.iter().all(|item| item.get("name").is_some()) => {
                let named = items.iter().map(|item| (format!("k:{}", json!({"name": item["name"]})), fields(item)));
                named.collect::<Map<_, _>>().into()
            }
            _ => json!({}),
        }
    }
    let mut author = author.clone();
    author["metadata"].as_object_mut().unwrap().remove("managedFields");
    object["metadata"]["managedFields"] = json!([{
        "manager": "kubectl-create", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": fields(&author),
    }]);
    object
}
