//! Tests the explanation of the considered profiles.

use std::sync::Arc;

use pillion_api::names::FailureMode;
use serde_json::{Value as Json, json};

use crate::lookup::{Answer, LookedUp, metadata_tape};
use crate::profile::{ProfileName, compile};
use crate::review::{Endpoint, Facts, Review};
use crate::select::considered::{Considered, RequestState, SetBy};
use crate::snapshot::{Namespace, ProfileSet, Snapshot};

fn profile(name: &ProfileName, spec: &Json) -> Arc<crate::profile::CompiledProfile> {
    Arc::new(compile(name, &serde_json::from_value(spec.clone()).unwrap()).unwrap())
}

/// Returns the considered profiles for a pod with these annotations in the namespace `shop`.
fn considered(annotations: &Json) -> Vec<Considered> {
    let template = json!({"metadata": {"annotations": {"a/b": "${params.failure_mode}"}}});
    let everybody = json!(["Pod", "ServiceAccount", "Namespace"]);
    let set = json!({
        "parameters": [
            {"name": "failure_mode", "type": "string", "default": "info", "annotation": "log/failure_mode", "sources": everybody},
            {"name": "port", "type": "integer", "minimum": 1024, "annotation": "log/port", "sources": ["Pod"]},
            {"name": "tags", "type": "map", "default": {}, "annotationPrefix": "tag/", "sources": everybody, "merge": "Merge"},
        ],
        "activation": "Requested",
        "template": template,
    });
    let plain = json!({"template": {"metadata": {"labels": {"a": "b"}}}});
    let mut on_request = plain.clone();
    on_request["activation"] = json!("Requested");
    let mut selective = plain.clone();
    selective["namespaceSelector"] = json!({"matchLabels": {"region": "eu"}});
    let profiles = [
        (ProfileName::cluster("set"), &set),
        (ProfileName::cluster("other"), &on_request),
        (ProfileName::cluster("selective"), &selective),
        (ProfileName::namespaced("shop", "own"), &plain),
        (ProfileName::namespaced("till", "theirs"), &plain),
    ];
    let snapshot = Snapshot::new(ProfileSet::new(profiles.iter().map(|(name, spec)| profile(name, spec))));
    let namespace =
        Namespace::new([("pillion.dev/injection", "enabled")], [("log/failure_mode", "warn"), ("tag/team", "a")]);
    let account = json!({"metadata": {"annotations": {"log/failure_mode": "debug", "tag/tier": "web"}}});
    let looked_up =
        LookedUp { service_account: Answer::Found(metadata_tape(&account).unwrap()), ..LookedUp::default() };
    let facts = Facts { namespace: Some(Arc::new(namespace)), looked_up, ..Facts::default() };
    let pod = json!({"metadata": {"name": "web", "annotations": annotations},
        "spec": {"containers": [{"name": "web", "image": "web:1"}]}});
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "namespace": "shop", "operation": "CREATE",
        "resource": {"group": "", "version": "v1", "resource": "pods"}, "object": pod}});
    let body = review.to_string();
    Review::parse(body.as_bytes()).unwrap().considered(Endpoint::FailureMode(FailureMode::Enabled), &snapshot, &facts)
}

#[test]
fn considered_lists_profiles_with_request_state() {
    let all = considered(&json!({"pillion.dev/profiles": "set"}));
    let found: Vec<_> = all.iter().map(|entry| (entry.profile.display_name(), entry.request_state)).collect();
    let expected = [
        ("set", RequestState::Requested),
        // Without `requestedBy`, a profile applies to all pods by default.
        ("shop/own", RequestState::Requested),
        ("other", RequestState::NotRequested),
        ("selective", RequestState::NamespaceSelector),
    ];
    assert_eq!(found, expected);
    assert!(all.iter().skip(2).all(|entry| entry.parameters.is_empty()));
}

#[test]
fn considered_parameter_has_sources_and_keys() {
    let values = |annotations: &Json| -> Vec<(Json, Vec<(SetBy, String)>)> {
        let all = considered(annotations);
        let parameters = all.into_iter().next().unwrap().parameters.into_iter();
        let value = |value: Result<Option<Json>, Box<str>>| match value {
            Ok(value) => json!(value),
            Err(error) => json!({"error": error}),
        };
        parameters
            .map(|parameter| {
                (value(parameter.value), parameter.set_by.into_iter().map(|(by, key)| (by, key.into())).collect())
            })
            .collect()
    };
    let by = |by: SetBy, key: &str| (by, key.to_owned());
    let asked = values(&json!({"pillion.dev/profiles": "set"}));
    assert_eq!(asked[0], (json!("debug"), vec![by(SetBy::ServiceAccount, "log/failure_mode")]));
    assert_eq!(asked[1], (json!(null), vec![by(SetBy::Default, "")]));
    let tags = vec![by(SetBy::ServiceAccount, "tag/*"), by(SetBy::Namespace, "tag/*")];
    assert_eq!(asked[2], (json!({"tier": "web", "team": "a"}), tags));
    let set = values(&json!({"pillion.dev/profiles": "set", "log/failure_mode": "error", "log/port": "80"}));
    assert_eq!(set[0], (json!("error"), vec![by(SetBy::Object, "log/failure_mode")]));
    assert_eq!(set[1].1, [by(SetBy::Object, "log/port")]);
    assert!(set[1].0["error"].is_string(), "{:?}", set[1]);
}
