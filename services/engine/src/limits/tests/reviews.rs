//! Tests limits in the decisions for whole reviews.

use std::sync::Arc;

use pillion_api::names::FailureMode;

use super::*;
use crate::decision::{Outcome, ProfileOutcome, Reason};
use crate::profile::{CompiledProfile, ProfileName, compile};
use crate::review::{Decided, Endpoint, Facts, RecordTrust, Review};
use crate::snapshot::{ProfileSet, Snapshot};

/// Creates a tenant's profile, whose literal values the compiler checks.
fn tenants(name: &str, spec: &Json) -> Arc<CompiledProfile> {
    let spec = serde_json::from_value(spec.clone()).unwrap();
    Arc::new(compile(&ProfileName::namespaced("team-a", name), &spec).unwrap())
}

/// Creates a tenant's profile whose values are not checked by the compiler, as if they came from expressions.
fn tenants_unseen(name: &str, spec: &Json) -> Arc<CompiledProfile> {
    let spec = serde_json::from_value(spec.clone()).unwrap();
    Arc::new(compile(&ProfileName::cluster(name), &spec).unwrap().into_namespaced("team-a"))
}

fn platforms(name: &str, spec: &Json) -> Arc<CompiledProfile> {
    let spec = serde_json::from_value(spec.clone()).unwrap();
    Arc::new(compile(&ProfileName::cluster(name), &spec).unwrap())
}

fn always(template: &Json) -> Json {
    json!({"activation": "Always", "template": template})
}

/// Returns the decision for a pod, and the resulting pod.
fn decide(object: &Json, snapshot: &Snapshot, level: Option<&str>) -> (Decided, Json) {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "namespace": "team-a", "operation": "CREATE", "object": object,
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
        },
    });
    let body = review.to_string();
    let labels = level.map(|level| (PodSecurityLevel::LABEL, level));
    let facts = Facts {
        namespace: Some(Arc::new(Namespace::new(labels, []))),
        record_trust: RecordTrust::AsFound,
        ..Facts::default()
    };
    let endpoint = Endpoint::FailureMode(FailureMode::Enabled);
    let decided = Review::parse(body.as_bytes()).unwrap().decide(endpoint, snapshot, &facts).unwrap();
    let mut object = object.clone();
    if let Some(patch) = &decided.patch {
        json_patch::patch(&mut object, &serde_json::from_slice::<json_patch::Patch>(patch).unwrap()).unwrap();
    }
    (decided, object)
}

fn snapshot(profiles: impl IntoIterator<Item = Arc<CompiledProfile>>) -> Snapshot {
    Snapshot::new(ProfileSet::new(profiles))
}

#[test]
fn rejects_capability_on_authors_container() {
    let append = always(&json!({"spec": {"containers": [{
        "name": "app", "image": "its-own", "$conflict": "Merge",
        "securityContext": {"capabilities": {"add": {"$value": ["SYS_ADMIN"], "$join": {}}}},
    }]}}));
    let author = with(pod(), &[("/spec/containers/0/securityContext/capabilities/add", json!(["CHOWN"]))]);
    let (decided, object) = decide(&author, &snapshot([tenants_unseen("more", &append)]), None);
    assert_eq!(decided.decision.outcome, Outcome::Skipped);
    assert_eq!(object, author);
    let profile = &decided.decision.profiles[0];
    assert_eq!((profile.outcome, profile.reason), (ProfileOutcome::Skipped, Reason::LimitExceeded));
    let detail = profile.detail.as_deref().unwrap();
    let expected =
        "/spec/containers/app/securityContext/capabilities/add: \"SYS_ADMIN\" violates the Pod Security control";
    assert!(detail.starts_with(expected), "{detail}");
    // Limits do not apply to cluster profiles, and changes by cluster profiles are not attributed to the tenant's next
    // profile.
    let label = always(&json!({"metadata": {"labels": {"team.example.com/z": "1"}}}));
    let (decided, object) = decide(&author, &snapshot([platforms("more", &append), tenants("label", &label)]), None);
    assert_eq!(decided.decision.outcome, Outcome::Injected);
    assert_eq!(
        object["spec"]["containers"][0]["securityContext"]["capabilities"]["add"],
        json!(["CHOWN", "SYS_ADMIN"])
    );
    assert_eq!(object["metadata"]["labels"]["team.example.com/z"], "1");
}

#[test]
fn finds_violation_in_computed_values() {
    let probe = always(&json!({"spec": {"containers": [{
        "name": "side", "image": "a", "livenessProbe": {"httpGet": {"port": 80, "host": "169.254.169.254"}},
    }]}}));
    let (decided, object) = decide(&pod(), &snapshot([tenants("probe", &probe)]), None);
    assert_eq!(decided.decision.profiles[0].reason, Reason::LimitExceeded);
    assert_eq!(object, pod());
}

#[test]
fn excess_denies_pod_with_failure_policy_fail() {
    let mut privileged = always(
        &json!({"spec": {"containers": [{"name": "s", "image": "a", "securityContext": {"privileged": true}}]}}),
    );
    privileged["failurePolicy"] = json!("Fail");
    let (decided, _) = decide(&pod(), &snapshot([tenants_unseen("p", &privileged)]), Some("privileged"));
    assert_eq!((decided.decision.outcome, decided.decision.reason), (Outcome::Denied, Reason::LimitExceeded));
    let message = decided.decision.denial_message();
    assert!(message.contains("profile team-a/p: /spec/containers/s/securityContext/privileged:"), "{message}");
}

#[test]
fn excess_skips_only_the_offending_profile() {
    let plain = always(&json!({"spec": {"containers": [{"name": "plain", "image": "a"}]}}));
    let hardened = always(&json!({"spec": {"containers": [hardened("hard")]}}));
    let snapshot = snapshot([tenants("a-plain", &plain), tenants("b-hard", &hardened)]);
    let names = |object: &Json| -> Vec<String> {
        let containers = object["spec"]["containers"].as_array().unwrap();
        containers.iter().map(|container| container["name"].as_str().unwrap().to_owned()).collect()
    };
    for (level, expected) in [(None, vec!["app", "plain", "hard"]), (Some("restricted"), vec!["app", "hard"])] {
        let (decided, object) = decide(&pod(), &snapshot, level);
        assert_eq!(names(&object), expected, "{level:?}");
        // The record does not mention profiles that were not applied, and a second pass changes nothing.
        let record = object["metadata"]["annotations"]["pillion.dev/injected"].as_str().unwrap();
        assert_eq!(record.contains("a-plain"), level.is_none(), "{record}");
        assert_eq!(decided.decision.outcome, Outcome::Injected);
        let (second, again) = decide(&object, &snapshot, level);
        assert_eq!((second.patch, again), (None, object), "{level:?}");
    }
}

#[test]
fn cluster_profile_changes_are_protected() {
    let platform = always(&json!({
        "metadata": {"annotations": {"example.com/mesh": "on"}},
        "spec": {
            "containers": [
                {"name": "proxy", "image": "proxy:1"},
                {"name": "app", "image": "its-own", "$conflict": "Merge", "imagePullPolicy": {"$value": "Always", "$conflict": "Replace"},
                 "env": [{"name": "MESH", "value": "on"}]},
            ],
            "volumes": [{"name": "certs", "emptyDir": {}}],
        },
    }));
    let author = with(pod(), &[("/spec/containers/0/imagePullPolicy", json!("Never"))]);
    for (template, expected) in [
        (
            json!({"spec": {"containers": [{"name": "proxy", "$conflict": "Replace", "image": "evil:1"}]}}),
            Reason::LimitExceeded,
        ),
        (
            json!({"spec": {"containers": [{"name": "proxy", "image": "proxy:1", "$conflict": "Merge", "env": [{"name": "A"}]}]}}),
            Reason::LimitExceeded,
        ),
        (
            json!({"spec": {"containers": [{"name": "app", "image": "its-own", "$conflict": "Merge", "env": [{"name": "MESH", "value": "off", "$conflict": "Replace"}]}]}}),
            Reason::LimitExceeded,
        ),
        (
            json!({"spec": {"containers": [{"name": "app", "image": "its-own", "$conflict": "Replace", "imagePullPolicy": "IfNotPresent"}]}}),
            Reason::LimitExceeded,
        ),
        (
            json!({"spec": {"volumes": [{"name": "certs", "$conflict": "Merge", "emptyDir": {"medium": "Memory"}}]}}),
            Reason::LimitExceeded,
        ),
        (
            json!({"metadata": {"annotations": {"example.com/mesh": {"$value": "off", "$conflict": "Replace"}}}}),
            Reason::LimitExceeded,
        ),
        (
            json!({"spec": {"containers": [{"name": "app", "image": "its-own", "$conflict": "Merge", "env": [{"name": "OWN", "value": "1"}]}]}}),
            Reason::Injected,
        ),
    ] {
        let snapshot = snapshot([platforms("mesh", &platform), tenants_unseen("t", &always(&template))]);
        let (decided, object) = decide(&author, &snapshot, None);
        assert_eq!(
            decided.decision.profiles[1].reason, expected,
            "{template}: {:?}",
            decided.decision.profiles[1].detail
        );
        assert_eq!(object["spec"]["containers"][1], json!({"name": "proxy", "image": "proxy:1"}), "{template}");
        // The result is the same if an earlier pass applied the cluster profile.
        let only_platform = Snapshot::new(ProfileSet::new([platforms("mesh", &platform)]));
        let (_, first) = decide(&author, &only_platform, None);
        let (decided, _) = decide(&first, &snapshot, None);
        assert_eq!(decided.decision.profiles[1].reason, expected, "{template} in a second pass");
    }
}

#[test]
fn derived_snapshot_keeps_guardrails() {
    let side = always(&json!({"spec": {"containers": [{"name": "s", "image": "ghcr.io/team/x"}]}}));
    let guardrails = |registry: &str| serde_json::from_value(json!({"registries": [registry]})).unwrap();
    for (registry, expected) in [("ghcr.io/team", Reason::Injected), ("ghcr.io/other", Reason::LimitExceeded)] {
        let snapshot = Snapshot::default()
            .with_guardrails(guardrails(registry))
            .with_profiles(ProfileSet::new([tenants("s", &side)]))
            .with_namespaces([])
            .with_namespace("team-a", Some(Namespace::default()));
        let (decided, _) = decide(&pod(), &snapshot, None);
        assert_eq!(decided.decision.profiles[0].reason, expected, "{registry}");
    }
}
