//! Computes the engine's result for the comparison: applies a template to a pod, as a profile would.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use pillion_api::names::FailureMode;
use pillion_engine::decision::ProfileOutcome;
use pillion_engine::profile::{ProfileName, compile};
use pillion_engine::review::{Endpoint, Facts, Review};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use serde_json::{Value as Json, json};

use crate::oracle::openapi::{OpenApi, Shape};

/// Returns the pod's metadata and spec after the engine has applied the template, or the reason why the engine rejects
/// it.
pub(crate) fn merged(openapi: &OpenApi, pod: &Json, template: &Json) -> Result<Result<Json, String>> {
    let spec = json!({"activation": "Always", "template": with_directives(openapi, template)});
    let spec = serde_json::from_value(spec)?;
    let compiled = compile(&ProfileName::cluster("oracle"), &spec).map_err(|faults| {
        let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
        anyhow!("the profile does not compile: {faults:#?}")
    })?;
    let snapshot = Snapshot::new(ProfileSet::new([Arc::new(compiled)]))
        .with_namespace("default", Some(Namespace::opted_in(FailureMode::Enabled)));

    let mut object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"], "spec": pod["spec"]});
    object["metadata"]["name"] = json!("pod");
    object["metadata"]["namespace"] = json!("default");
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "namespace": "default", "operation": "CREATE", "object": object,
            "resource": {"group": "", "version": "v1", "resource": "pods"},
        },
    });
    let body = review.to_string().into_bytes();
    let review = Review::parse(&body)?;
    let facts = Facts { namespace: snapshot.namespace("default"), ..Facts::default() };
    let decided = review.decide(Endpoint::FailureMode(FailureMode::Enabled), &snapshot, &facts)?;
    let profile = decided.decision.profiles.first().context("the result contains no profile")?;
    if !matches!(profile.outcome, ProfileOutcome::Applied | ProfileOutcome::Unchanged) {
        return Ok(Err(format!("{:?} {:?}", profile.reason, profile.detail)));
    }
    if let Some(patch) = &decided.patch {
        json_patch::patch(&mut object, &serde_json::from_slice::<json_patch::Patch>(patch)?)?;
    }
    let metadata = object["metadata"].as_object_mut().context("no metadata")?;
    metadata.remove("name");
    metadata.remove("namespace");
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Json::as_object_mut) {
        annotations.remove("pillion.dev/injected");
    }
    Ok(Ok(json!({"metadata": object["metadata"], "spec": object["spec"]})))
}

/// Adds directives to the template, so that it replaces existing values and puts new elements first, as the API
/// server's patches do.
fn with_directives(openapi: &OpenApi, template: &Json) -> Json {
    let mut template = template.clone();
    for (part, type_) in [("metadata", "ObjectMeta"), ("spec", "PodSpec")] {
        add_positions(openapi, type_, &mut template[part]);
        template[part]["$conflict"] = json!("Replace");
    }
    // By default, the engine rejects a template whose volume or container has the name of an existing one.
    for list in ["containers", "initContainers", "volumes"] {
        for element in template["spec"].get_mut(list).and_then(Json::as_array_mut).into_iter().flatten() {
            element["$conflict"] = json!("Replace");
        }
    }
    template
}

fn add_positions(openapi: &OpenApi, type_: &str, value: &mut Json) {
    let Some(fields) = value.as_object_mut() else { return };
    for (name, value) in fields.iter_mut() {
        match openapi.field(type_, name) {
            Some(Shape::Struct(inner)) => add_positions(openapi, inner, value),
            Some(Shape::List(list)) if list.kind == "map" => {
                for element in value.as_array_mut().into_iter().flatten() {
                    if let Some(type_) = list.element {
                        add_positions(openapi, type_, element);
                    }
                    element["$position"] = json!("First");
                }
            }
            _ => {}
        }
    }
}
