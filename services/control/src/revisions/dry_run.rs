//! The dry run of an accepted revision: builds the object for the API server, and interprets the response. It does no
//! I/O.
//!
//! The engine applies the revision alone to a minimal pod. The API server validates the result as a `PodTemplate`: like
//! a pod, but without Pod Security admission or webhooks for pods. Nothing is stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodTemplate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject};
use pillion_api::names::{FailureMode, INJECTION_LABEL, PROFILES_ANNOTATION};
use pillion_api::selector::{LabelSelector, Operator};
use pillion_engine::creation::Creation;
use pillion_engine::decision::Reason;
use pillion_engine::lookup::{KnownObjects, LookedUp};
use pillion_engine::profile::CompiledProfile;
use pillion_engine::review::{Endpoint, Facts, Review};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use serde_json::{Value as Json, json};

use crate::client::chain;
use crate::leader::FIELD_MANAGER;

/// Maximum bytes of a profile's errors in its status. The schema allows 32 KiB, but shorter messages are easier to
/// read.
pub(super) const MESSAGE_BYTES: usize = 2_000;

/// Name of the pod, and of its namespace for a cluster profile.
const NAME: &str = "pillion-dry-run";
/// UID of the review for the engine.
const UID: &str = "00000000-0000-4000-8000-000000000000";

/// The result of a dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The API server accepts the pod.
    Valid,
    /// The API server rejects the pod, with this message.
    Rejected(String),
    /// The engine did not apply the revision, since the API server would reject the pod for this reason.
    Invalid(String),
    /// The revision does not change the pod of the dry run, for this reason.
    NotApplicable(String),
    /// The API server did not validate the pod, for this reason.
    NotRequested(String),
}

impl Verdict {
    /// Returns the status, the reason and the message of the condition `Valid` for this revision.
    pub(super) fn condition(&self, revision: &str) -> (&'static str, &'static str, String) {
        match self {
            Self::Valid => ("True", "DryRun", format!("the API server accepts a pod with revision {revision}")),
            Self::Rejected(message) => {
                ("False", "DryRun", format!("the API server rejects a pod with revision {revision}: {message}"))
            }
            Self::Invalid(why) => {
                ("False", "Invalid", format!("the API server would reject a pod with revision {revision}: {why}"))
            }
            Self::NotApplicable(why) => (
                "Unknown",
                "NotApplicable",
                format!("revision {revision} does not change the pod of the dry run: {why}"),
            ),
            Self::NotRequested(why) => {
                ("Unknown", NOT_ASKED, format!("the API server has not validated revision {revision}: {why}"))
            }
        }
    }
}

/// The condition's reason while the API server has not validated the revision.
pub(super) const NOT_ASKED: &str = "NotRequested";

/// Builds the object for the dry run.
///
/// # Errors
/// The engine does not apply the revision: [`Verdict::Invalid`] or [`Verdict::NotApplicable`].
pub(super) fn pod_template(profile: &Arc<CompiledProfile>) -> Result<DynamicObject, Verdict> {
    let mut pod = injected(profile)?;
    if let Some(metadata) = pod.get_mut("metadata").and_then(Json::as_object_mut) {
        metadata.retain(|field, _| !["name", "namespace"].contains(&&**field));
    }
    let template = json!({"template": {"metadata": pod.get("metadata"), "spec": pod.get("spec")}});
    let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
    let object = DynamicObject::new("", &ApiResource::erase::<PodTemplate>(&())).data(template);
    Ok(DynamicObject { metadata, ..object })
}

/// Applies the profile to the minimal pod, or returns why it does not apply.
fn injected(profile: &Arc<CompiledProfile>) -> Result<Json, Verdict> {
    if !profile.injects() {
        return Err(Verdict::NotApplicable("the profile only validates".to_owned()));
    }
    if !profile.target().resources.iter().any(|resource| resource == "pods") {
        return Err(Verdict::NotApplicable("the profile is not for pods".to_owned()));
    }
    let name = profile.name();
    let namespace = name.namespace.as_deref().unwrap_or(NAME);
    let mut pod = minimal_pod(namespace, &name.name, &matching(profile.object_selector()));
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    let mut labels = matching(profile.namespace_selector());
    labels.insert(INJECTION_LABEL.to_owned(), FailureMode::Enabled.label_value().to_owned());

    let user = json!({"username": FIELD_MANAGER});
    let creation = Creation { object: &pod, namespace, uid: UID, user: &user, dry_run: true };
    let body = creation.review().to_string();
    let failed = |error: &dyn std::error::Error| Verdict::NotApplicable(error.to_string());
    let review = Review::parse(body.as_bytes()).map_err(|error| failed(&error))?;
    let snapshot = Snapshot::new(ProfileSet::new([Arc::clone(profile)]));
    let endpoint = Endpoint::FailureMode(FailureMode::Enabled);
    let mut facts = Facts { namespace: Some(Arc::new(Namespace::new(labels, BTreeMap::new()))), ..Facts::default() };
    facts.looked_up = KnownObjects::new([&account], namespace).answer(review.needs(endpoint, &snapshot, &facts));
    facts.looked_up.cluster = LookedUp::unknown_cluster();
    let decided = review.decide(endpoint, &snapshot, &facts).map_err(|fault| failed(&fault))?;
    let Some(patch) = decided.patch else {
        let decision = decided.decision;
        let Some(profile) = decision.profiles.first() else {
            return Err(Verdict::NotApplicable(decision.reason.sentence().to_owned()));
        };
        return Err(match (profile.reason, &profile.detail) {
            (Reason::InvalidResult, Some(detail)) => Verdict::Invalid(detail.to_string()),
            (reason, None) => Verdict::NotApplicable(reason.sentence().to_owned()),
            (reason, Some(detail)) => Verdict::NotApplicable(format!("{}: {detail}", reason.sentence())),
        });
    };
    let patch: json_patch::Patch = serde_json::from_slice(&patch).map_err(|error| failed(&error))?;
    json_patch::patch(&mut pod, &patch).map_err(|error| failed(&error))?;
    Ok(pod)
}

/// Returns a pod that requests a profile by name. The pod has the defaults that the API server sets before it calls
/// webhooks.
fn minimal_pod(namespace: &str, profile: &str, labels: &BTreeMap<String, String>) -> Json {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": NAME, "namespace": namespace, "labels": labels, "annotations": {PROFILES_ANNOTATION: profile},
        },
        "spec": {
            "containers": [{
                "name": "app", "image": "app", "imagePullPolicy": "Always", "resources": {},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            }],
            "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "restartPolicy": "Always",
            "schedulerName": "default-scheduler", "securityContext": {},
            "serviceAccount": "default", "serviceAccountName": "default", "terminationGracePeriodSeconds": 30,
        },
    })
}

/// Returns labels for a selector: its `matchLabels`, and the first permitted value of each other key that must exist.
/// The labels match, unless several requirements of the selector are about one key.
fn matching(selector: Option<&LabelSelector>) -> BTreeMap<String, String> {
    let Some(LabelSelector { match_labels, match_expressions }) = selector else { return BTreeMap::new() };
    let mut labels = match_labels.clone();
    for requirement in match_expressions {
        if matches!(requirement.operator, Operator::In | Operator::Exists) {
            let value = requirement.values.first().cloned().unwrap_or_default();
            labels.entry(requirement.key.clone()).or_insert(value);
        }
    }
    labels
}

/// Interprets the response to the dry run. Only an error about the pod's content, when the API server decodes or
/// validates it, shows that a pod would be rejected. Policies and quotas for `PodTemplates` do not apply to pods.
pub(super) fn verdict(answer: kube::Result<()>) -> Verdict {
    let error = match answer {
        Ok(()) => return Verdict::Valid,
        Err(error) => error,
    };
    let bounded = |text: &str| text.get(..text.floor_char_boundary(MESSAGE_BYTES)).unwrap_or_default().to_owned();
    if let kube::Error::Api(status) = &error {
        // The message is `PodTemplate "pillion-dry-run" is invalid: template.spec…`. Authors know neither the object
        // nor its name, so this prefix is removed.
        let invalid = status.message.strip_prefix("PodTemplate \"").and_then(|rest| rest.split_once("\" is invalid: "));
        let unreadable = || status.message.contains("cannot be handled as a PodTemplate");
        match (status.code, invalid) {
            (422, Some((_, message))) => return Verdict::Rejected(bounded(message)),
            (400, _) if unreadable() => return Verdict::Rejected(bounded(&status.message)),
            _ => return Verdict::NotRequested(bounded(&status.message)),
        }
    }
    Verdict::NotRequested(bounded(&chain(&error)))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use pillion_engine::profile::{ProfileName, compile};

    use super::*;

    fn profile(name: &ProfileName, spec: Json) -> Arc<CompiledProfile> {
        Arc::new(compile(name, &serde_json::from_value(spec).unwrap()).unwrap())
    }

    fn sidecar(spec: &Json) -> Json {
        let mut whole = json!({"template": {"spec": {"containers": [{"name": "proxy", "image": "proxy"}]}}});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        whole
    }

    #[test]
    fn dry_run_pod_has_profile_applied() {
        let names = [ProfileName::cluster("proxy"), ProfileName::namespaced("shop", "proxy")];
        let selecting = json!({
            "objectSelector": {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "team", "operator": "Exists"}]},
        });
        let conditional = json!({
            "namespaceSelector": {"matchExpressions": [
                {"key": "stage", "operator": "In", "values": ["prod", "test"]}, {"key": "old", "operator": "DoesNotExist"},
            ]},
            "matchConditions": [{"name": "account", "expression": "serviceAccount.?name.orValue('') == 'default'"}],
        });
        for (name, spec) in
            [(&names[0], json!({})), (&names[1], json!({})), (&names[0], selecting), (&names[0], conditional)]
        {
            let object = pod_template(&profile(name, sidecar(&spec))).unwrap();
            let object = json!(object);
            assert_eq!((&object["kind"], &object["metadata"]["namespace"]), (&json!("PodTemplate"), &Json::Null));
            let template = &object["template"];
            let containers = template["spec"]["containers"].as_array().unwrap();
            let found: Vec<_> = containers.iter().map(|container| container["name"].as_str().unwrap()).collect();
            assert_eq!(found, ["app", "proxy"], "{spec}");
            assert!(template["metadata"].get("name").is_none(), "{template}");
        }
    }

    #[test]
    fn dry_run_explains_unchanged_pod() {
        let name = ProfileName::cluster("proxy");
        let condition = json!({"matchConditions": [{"name": "never", "expression": "1 > 2"}]});
        let parameter = json!({
            "parameters": [{"name": "size", "type": "string", "sources": ["Pod"], "annotation": "example.com/size"}],
            "template": {"spec": {"containers": [{"name": "proxy", "image": "proxy:${params.size.lowerAscii()}"}]}},
        });
        let other = json!({
            "target": {"group": "apps", "version": "v1", "resources": ["deployments"]},
            "template": {"metadata": {"labels": {"a": "b"}}},
        });
        let lookup = json!({
            "lookups": [{"name": "map", "version": "v1", "resource": "configmaps", "objectName": "map"}],
            "template": {"metadata": {"labels": {"a": "${lookups.map.data.a}"}}},
        });
        for (spec, why) in [
            (sidecar(&condition), "a match condition of the profile is false"),
            (parameter, "size"),
            (other, "the profile is not for pods"),
            (lookup, "map"),
            (sidecar(&json!({"activation": "Never"})), "profile"),
            (json!({"validations": [{"name": "never", "expression": "false"}]}), "the profile only validates"),
        ] {
            let Err(Verdict::NotApplicable(reason)) = pod_template(&profile(&name, spec.clone())) else {
                panic!("{spec}")
            };
            assert!(reason.contains(why), "{spec}: {reason}");
        }
    }

    fn answer(code: u16, message: &str) -> Verdict {
        let status = Status { code, ..Status::failure(message, "") };
        verdict(Err(kube::Error::Api(status.boxed())))
    }

    #[test]
    fn only_validation_of_api_server_rejects_pod() {
        let message =
            "template.spec.containers[1].name: Invalid value: \"Bad_Name\": a lowercase RFC 1123 label must …";
        let invalid = format!("PodTemplate \"pillion-dry-run\" is invalid: {message}");
        assert_eq!(answer(422, &invalid), Verdict::Rejected(message.to_owned()));
        let unreadable =
            "PodTemplate in version \"v1\" cannot be handled as a PodTemplate: json: cannot unmarshal string";
        assert_eq!(answer(400, unreadable), Verdict::Rejected(unreadable.to_owned()));
        assert_eq!(verdict(Ok(())), Verdict::Valid);
        for (code, message) in [
            (422, "podtemplates \"pillion-dry-run\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: no"),
            (403, "podtemplates \"pillion-dry-run\" is forbidden: exceeded quota: none"),
            (400, "admission webhook \"policy.example.com\" denied the request: PodTemplate is invalid"),
            (500, "etcdserver: request timed out"),
        ] {
            assert_eq!(answer(code, message), Verdict::NotRequested(message.to_owned()));
        }
        let long = format!("PodTemplate \"pillion-dry-run\" is invalid: {}", "ü".repeat(MESSAGE_BYTES));
        let Verdict::Rejected(bounded) = answer(422, &long) else { panic!() };
        assert_eq!(bounded.len(), MESSAGE_BYTES);
    }
}
