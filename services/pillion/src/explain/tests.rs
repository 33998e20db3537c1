//! Tests explanations without a cluster: each mistake must be reported with its own code.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pillion_api::opt_in::OptIn;
use pillion_api::webhook_configuration::{Settings, mutating};
use pillion_control::Release;
use pillion_control::audit::NamespaceAge;
use pillion_control::informer::cluster_listing::{self, Stored};
use pillion_engine::profile::{ProfileName, compile};
use pillion_engine::snapshot::{ProfileSet, Snapshot};
use serde_json::{Value, json};

use super::facts::{self, ExplainFacts, ExplainedObject, NamespaceFacts, WebhookOutages};
use super::judge::{Explanation, Verdict, judge};
use crate::availability::{WebhookDeployment, no_ready_replica};
use crate::finding;
use crate::installation::Part;

/// The creation time of test pods: 2026-11-22T00:00:00Z.
const CREATED: i64 = 1_795_305_600;

fn explain_facts(labels: &[(&str, &str)], profiles: &[(&str, Value)]) -> ExplainFacts {
    let labels: BTreeMap<_, _> = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let metadata = ObjectMeta { name: Some("shop".to_owned()), labels: Some(labels.clone()), ..ObjectMeta::default() };
    let compiled = profiles.iter().map(|(name, spec)| {
        Arc::new(compile(&ProfileName::cluster(*name), &serde_json::from_value(spec.clone()).unwrap()).unwrap())
    });
    let snapshot = Snapshot::new(ProfileSet::new(compiled));
    let snapshot = snapshot.with_namespaces([pillion_control::informer::namespaces::read(metadata, &OptIn::default())]);
    ExplainFacts {
        release: Release::new("pillion", "pillion-system", "cluster.local").unwrap(),
        opt_in: OptIn::default(),
        namespace: NamespaceFacts {
            name: "shop".to_owned(),
            found: snapshot.namespace("shop"),
            labels,
            annotations: BTreeMap::new(),
            age: NamespaceAge { opted_in: Some(CREATED - 1_000), changed: None },
        },
        snapshot: Arc::new(snapshot),
        configurations: Some(vec![mutating(&Settings::new("pillion-system", "ca"))]),
        stored: Vec::new(),
        broken: Vec::new(),
        switched_off: None,
        no_replica: None,
        outages: WebhookOutages { registered: Some(CREATED - 2_000), ready: Some(2), ..WebhookOutages::default() },
        unread: Vec::new(),
        cluster: None,
        is_live: true,
        now: CREATED + 3_600,
    }
}

const ENABLED: &[(&str, &str)] = &[("pillion.dev/injection", "enabled")];

fn logger() -> (&'static str, Value) {
    (
        "logger",
        json!({"activation": "Always", "template": {"spec": {"containers": [{"name": "logger", "image": "l:1"}]}}}),
    )
}

fn guarded() -> (&'static str, Value) {
    let condition = json!({"name": "host-network", "message": "no host network",
        "expression": "!object.spec.?hostNetwork.orValue(false)"});
    (
        "guarded",
        json!({"activation": "Always", "preconditions": [condition],
        "template": {"metadata": {"annotations": {"example.com/a": "1"}}}}),
    )
}

/// Returns a stored pod as an object to explain, after `change` was applied to it.
fn stored(change: impl FnOnce(&mut Value)) -> ExplainedObject {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "namespace": "shop", "uid": "u", "creationTimestamp": "2026-11-22T00:00:00Z",
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]},
        "spec": {"containers": [{"name": "web", "image": "web:1"}]},
    });
    change(&mut pod);
    facts::of_pod(&pod, "shop")
}

fn plain() -> ExplainedObject {
    stored(|_| {})
}

fn record(profile: &str, revision: &str, added: &[&str]) -> String {
    json!({"version": 1, "profiles": [{"profile": profile, "revision": revision, "added": added}]}).to_string()
}

fn codes(explanation: &Explanation) -> Vec<&'static str> {
    explanation.findings.iter().map(|finding| finding.code.as_str()).collect()
}

fn found(facts: &ExplainFacts, question: &ExplainedObject) -> (Vec<&'static str>, Verdict) {
    let explanation = judge(facts, question);
    for finding in &explanation.findings {
        assert!(!finding.message.is_empty() && !finding.remedy.is_empty(), "{finding:?}");
    }
    (codes(&explanation), explanation.verdict)
}

#[test]
fn uncalled_webhook_has_its_cause() {
    for (labels, code) in [
        (&[][..], "not_opted_in"),
        (&[("pillion.dev/injection", "yes")], "opt_in_value_unknown"),
        (&[("pillion.dev/injection", "disabled")], "not_opted_in"),
        (&[("pillion.dev/inject", "true")], "opt_in_label_misspelt"),
        (&[("pillion.dev/injection", "held")], "excluded_namespace"),
    ] {
        assert_eq!(
            found(&explain_facts(labels, &[logger()]), &plain()),
            (vec![code], Verdict::NotInjected),
            "{labels:?}"
        );
    }
    let out = stored(|pod| pod["metadata"]["labels"] = json!({"pillion.dev/inject": "false"}));
    assert_eq!(found(&explain_facts(ENABLED, &[logger()]), &out).0, ["opted_out"]);
    let facts = ExplainFacts { configurations: Some(Vec::new()), ..explain_facts(ENABLED, &[logger()]) };
    assert_eq!(found(&facts, &plain()).0, ["not_registered"]);
    let facts = ExplainFacts { configurations: None, ..explain_facts(&[], &[logger()]) };
    assert_eq!(found(&facts, &plain()).0, ["not_opted_in"]);
}

#[test]
fn pod_without_record_has_cause_from_creation_time() {
    let facts = || explain_facts(ENABLED, &[logger()]);
    let since = |opted_in| NamespaceAge { opted_in: Some(opted_in), changed: None };
    let late = ExplainFacts { namespace: NamespaceFacts { age: since(CREATED + 60), ..facts().namespace }, ..facts() };
    let off = WebhookOutages { off_since: Some(CREATED - 5), ..facts().outages };
    for (facts, code, said) in [
        (late, "created_before_opt_in", "2026-11-22T00:01:00Z"),
        (facts(), "unexplained", "a replica skipped the profile"),
        (
            ExplainFacts { outages: WebhookOutages { ready: Some(0), ..facts().outages }, ..facts() },
            "webhook_unavailable",
            "no replica is ready now",
        ),
        (
            ExplainFacts { outages: WebhookOutages { registered: Some(CREATED + 9), ..facts().outages }, ..facts() },
            "webhook_unavailable",
            "was not registered yet",
        ),
        (
            ExplainFacts {
                outages: WebhookOutages { endpoints_changed: Some(CREATED + 9), ..facts().outages },
                ..facts()
            },
            "unexplained",
            "have changed since",
        ),
        (ExplainFacts { outages: off, ..facts() }, "switched_off", "when the pod was created"),
    ] {
        let explanation = judge(&facts, &plain());
        assert_eq!(codes(&explanation), [code], "{said}");
        let finding = &explanation.findings[0];
        assert!(finding.message.contains(said), "{finding:?}");
        assert_eq!((finding.profile.as_deref(), explanation.verdict), (Some("logger"), Verdict::NotInjected));
    }
}

#[test]
fn record_is_compared_with_pod_and_active_revision() {
    let facts = explain_facts(ENABLED, &[logger()]);
    let revision = facts.snapshot.profiles().iter().next().unwrap().revision().to_owned();
    let with = |record: String, has_container: bool| {
        stored(|pod| {
            pod["metadata"]["annotations"] = json!({"pillion.dev/injected": record});
            if has_container {
                pod["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "logger", "image": "l:1"}));
            }
        })
    };
    let added = ["/spec/containers/logger"];
    assert_eq!(found(&facts, &with(record("logger", &revision, &added), true)), (vec![], Verdict::Injected));
    let robbed = found(&facts, &with(record("logger", &revision, &added), false));
    assert_eq!(robbed, (vec!["removed_after_injection"], Verdict::PartlyInjected));
    let old = found(&facts, &with(record("logger", "0000000000", &added), true));
    assert_eq!(old, (vec!["outdated_revision"], Verdict::Injected));
    let none = explain_facts(ENABLED, &[]);
    let orphaned = found(&none, &with(record("logger", &revision, &added), true));
    assert!(orphaned.0.contains(&"orphaned_profile"), "{orphaned:?}");
    let copied = stored(|pod| {
        pod["metadata"]["annotations"] = json!({"pillion.dev/injected": record("logger", &revision, &added)});
        pod["metadata"]["managedFields"] =
            json!([{"fieldsV1": {"f:metadata": {"f:annotations": {"f:pillion.dev/injected": {}}}}}]);
    });
    // A record that was copied from another pod is reported, and its changes are ignored.
    let explanation = judge(&facts, &copied);
    assert_eq!(
        (codes(&explanation), explanation.verdict),
        (vec!["unexplained", "foreign_record"], Verdict::NotInjected)
    );
    assert!(explanation.changes.is_empty(), "{explanation:?}");
    // A profile without changes in the record counts as injected.
    assert_eq!(found(&facts, &with(record("logger", &revision, &[]), true)), (vec![], Verdict::Injected));
}

#[test]
fn each_pod_and_profile_cause_has_its_code() {
    let facts = explain_facts(ENABLED, &[guarded()]);
    let host = stored(|pod| pod["spec"]["hostNetwork"] = json!(true));
    assert_eq!(found(&facts, &host).0, ["host_network"]);
    let mirror = stored(|pod| {
        pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        pod["spec"]["nodeName"] = json!("node-1");
    });
    assert_eq!(found(&facts, &mirror).0, ["mirror_pod"]);
    let gated = stored(|pod| pod["spec"]["schedulingGates"] = json!([{"name": "pillion.dev/injection"}]));
    assert!(found(&facts, &gated).0.contains(&"held"));
    let ended = stored(|pod| pod["status"] = json!({"phase": "Succeeded"}));
    let explanation = judge(&facts, &ended);
    assert_eq!((codes(&explanation), explanation.verdict.is_good()), (vec!["being_deleted"], true));
    // A missing sidecar in a completed pod needs no action.
    let explanation = judge(&explain_facts(&[], &[logger()]), &ended);
    assert_eq!(codes(&explanation), ["not_opted_in", "being_deleted"]);
    assert!(explanation.verdict.is_good() && finding::needs_no_action(&explanation.findings), "{explanation:?}");
    assert_eq!(found(&explain_facts(ENABLED, &[]), &plain()).0, ["no_profile"]);
    let requested =
        ("asked", json!({"activation": "Requested", "template": {"metadata": {"annotations": {"a/b": "1"}}}}));
    assert_eq!(found(&explain_facts(ENABLED, std::slice::from_ref(&requested)), &plain()).0, ["not_requested"]);
    let misled = stored(|pod| pod["metadata"]["annotations"] = json!({"pillion.dev/profiles": "askd"}));
    let explanation = judge(&explain_facts(ENABLED, &[requested]), &misled);
    assert_eq!(codes(&explanation), ["unknown_profile"]);
    assert!(explanation.findings[0].message.contains("did you mean asked?"), "{:?}", explanation.findings);
}

#[test]
fn near_requests_are_named() {
    let spec = json!({"requestedBy": {"annotation": "logs.example.com/ship"},
        "template": {"metadata": {"annotations": {"a/b": "1"}}}});
    let facts = explain_facts(ENABLED, &[("asked", spec.clone())]);
    for (part, key, expected) in [
        (
            "annotations",
            "pillion.dev/profile",
            "pillion.dev/profile on the pod looks like a misspelt pillion.dev/profiles",
        ),
        ("annotations", "logs.example.com/shp", "looks like a misspelt logs.example.com/ship"),
        ("labels", "pillion.dev/profiles", "pillion.dev/profiles is a label of the pod"),
    ] {
        let explanation = judge(&facts, &stored(|pod| pod["metadata"][part] = json!({key: "asked"})));
        assert_eq!(codes(&explanation), ["not_requested"]);
        assert!(explanation.findings[0].message.contains(expected), "{:?}", explanation.findings);
    }
    let other = stored(|pod| pod["metadata"]["annotations"] = json!({"logs.example.com/format": "json"}));
    let message = &judge(&facts, &other).findings[0].message;
    assert_eq!(message, "neither the pod nor its namespace requests a profile; available: asked");
}

#[test]
fn requested_profile_that_is_not_active_is_not_unknown() {
    let rejected = json!({"observedGeneration": 2, "conditions": [
        {"type": "Accepted", "status": "False", "reason": "Invalid", "message": "spec.template: wrong",
         "lastTransitionTime": "2026-11-22T00:00:00Z"}]});
    let spec = json!({"activation": "Requested", "template": {"metadata": {"annotations": {"a/b": "1"}}}});
    let another = ("another", spec.clone());
    let question = stored(|pod| pod["metadata"]["annotations"] = json!({"pillion.dev/profiles": "ours"}));
    let of = |namespace: &str| {
        let stored = vec![stored_profile("ours", Some(namespace), &spec, &rejected)];
        judge(&ExplainFacts { stored, ..explain_facts(ENABLED, std::slice::from_ref(&another)) }, &question)
    };
    let here = of("shop");
    assert!(codes(&here).contains(&"profile_not_ready") && !codes(&here).contains(&"unknown_profile"), "{here:?}");
    let elsewhere = of("pay");
    let found = finding_of(&elsewhere, "unknown_profile");
    assert!(found.message.contains("namespace pay has a profile of this name"), "{found:?}");
}

#[test]
fn template_is_explained_for_its_pods() {
    let facts = explain_facts(ENABLED, &[logger()]);
    let workload = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "backup", "namespace": "shop",
        "annotations": {"pillion.dev/profiles": "logger"}},
        "spec": {"jobTemplate": {"spec": {"template": {"spec": {"containers": [{"name": "b", "image": "b:1"}]}}}}}});
    let kind = facts::kind_of(&workload).unwrap();
    let question = facts::of_template(&workload, kind, "shop").unwrap();
    assert_eq!(found(&facts, &question), (vec!["annotation_on_workload"], Verdict::WouldBeInjected));
    let facts = ExplainFacts { switched_off: Some("kubectl".to_owned()), ..facts };
    assert_eq!(found(&facts, &question).1, Verdict::WouldNotBeInjected);
}

#[test]
fn served_profile_is_not_matched_without_opt_in() {
    let facts = explain_facts(&[], &[logger()]);
    let reported: Vec<_> =
        judge(&facts, &plain()).profiles.into_iter().map(|one| (one.profile, one.outcome, one.reason)).collect();
    assert_eq!(reported, [("logger".to_owned(), "not_matched", "not_opted_in")]);
}

/// Returns the name and groups of the user in the review, and its field `dryRun`.
fn request(question: &ExplainedObject) -> (&Value, Vec<&str>, bool) {
    let request = &question.review["request"];
    let groups =
        request["userInfo"]["groups"].as_array().unwrap().iter().map(|group| group.as_str().unwrap()).collect();
    (&request["userInfo"]["username"], groups, request["dryRun"].as_bool().unwrap())
}

#[test]
fn workload_pods_are_created_by_its_controller() {
    let owned = stored(|pod| {
        let controller =
            json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "web", "uid": "d", "controller": true});
        pod["metadata"]["ownerReferences"] = json!([controller]);
    });
    let groups = vec!["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"];
    let name = json!("system:serviceaccount:kube-system:daemon-set-controller");
    assert_eq!(request(&owned), (&name, groups.clone(), false));
    let workload = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "uid": "d"},
        "spec": {"template": {"spec": {"containers": [{"name": "b", "image": "b:1"}]}}}});
    let template = facts::of_template(&workload, facts::kind_of(&workload).unwrap(), "shop").unwrap();
    assert_eq!(request(&template), (&json!("system:serviceaccount:kube-system:replicaset-controller"), groups, false));
    // A rollout assigns revisions by the workload's name, so the pods need the workload as their owner.
    let itself =
        json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": true}]);
    assert_eq!(template.pod()["metadata"]["ownerReferences"], itself);
    assert_eq!(request(&plain()).1, ["system:authenticated"]);
}

#[test]
fn unreadable_part_is_reported_with_its_severity() {
    let facts = ExplainFacts {
        unread: vec![(Part::Namespaces, "forbidden".to_owned())],
        ..explain_facts(ENABLED, &[logger()])
    };
    let explanation = judge(&facts, &plain());
    let unreadable = explanation.findings.iter().find(|finding| finding.code.as_str() == "unreadable").unwrap();
    assert_eq!((unreadable.severity, &*unreadable.object.kind), (finding::Severity::Warning, "Release"));
}

#[test]
fn tenant_gets_one_finding_for_unreadable_parts_and_no_claim_about_profiles() {
    let forbidden = |part| (part, "forbidden".to_owned());
    let unread = [Part::Configurations, Part::Endpoints, Part::Switch].map(forbidden).to_vec();
    let facts = ExplainFacts { unread, ..explain_facts(ENABLED, &[]) };
    let explanation = judge(&facts, &plain());
    let messages: Vec<_> =
        explanation.findings.iter().map(|finding| (finding.code.as_str(), &*finding.message)).collect();
    let of_parts = "webhook configurations, the webhook's endpoints, the kill switch cannot be read: forbidden";
    assert!(messages.contains(&("unreadable", of_parts)), "{messages:?}");
    assert_eq!(messages.iter().filter(|(code, _)| *code == "unreadable").count(), 1);
    assert_eq!(explanation.decision.message, "no profile matches this namespace");

    let profiles = Part::Profiles(cluster_listing::Part::ClusterProfiles);
    let facts = ExplainFacts { unread: vec![forbidden(profiles)], ..explain_facts(ENABLED, &[]) };
    let explanation = judge(&facts, &plain());
    assert_eq!(explanation.decision.message, "no profile matches this namespace (not all profiles can be read)");
}

#[test]
fn selector_that_does_not_match_is_shown() {
    let with = |selector: &str| {
        let (name, mut spec) = logger();
        spec[selector] = json!({"matchLabels": {"team": "payments"}});
        judge(&explain_facts(ENABLED, &[(name, spec)]), &plain())
    };
    let (pod, namespace) = (with("objectSelector"), with("namespaceSelector"));
    let message = &finding_of(&pod, "object_selector").message;
    assert_eq!(message, "the labels of the pod do not match the profile's objectSelector: team=payments");
    let message = &finding_of(&namespace, "namespace_selector").message;
    assert_eq!(message, "the labels of the namespace do not match the profile's namespaceSelector: team=payments");
    assert_eq!(*message, namespace.profiles[0].message);
}

/// Returns a profile that the API server stores, with this name and namespace.
fn stored_profile(name: &str, namespace: Option<&str>, spec: &Value, status: &Value) -> Stored {
    let object =
        json!({"metadata": {"name": name, "namespace": namespace, "generation": 2}, "spec": spec, "status": status});
    Stored::new(serde_json::from_value(object).unwrap())
}

fn finding_of<'e>(explanation: &'e Explanation, code: &str) -> &'e finding::Finding {
    let found = explanation.findings.iter().find(|finding| finding.code.as_str() == code);
    found.unwrap_or_else(|| panic!("no {code} in {:?}", explanation.findings))
}

/// Returns a Deployment as an object to explain. It has 2 replicas, and the API server rejected both pods.
fn rejected_deployment(why: &str) -> ExplainedObject {
    let failure = json!({"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": why});
    let workload = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [{"name": "web", "image": "web:1"}]}}},
        "status": {"conditions": [failure]}});
    facts::of_template(&workload, facts::kind_of(&workload).unwrap(), "shop").unwrap()
}

#[test]
fn without_replica_new_pods_are_not_injected() {
    let endpoints = [("10.0.0.1".to_owned(), false)];
    let none = |labels| {
        let facts = explain_facts(labels, &[logger()]);
        let no_replica = no_ready_replica(&facts.release, &endpoints, WebhookDeployment::Replicas(0));
        ExplainFacts { no_replica, outages: WebhookOutages { ready: Some(0), ..facts.outages }, ..facts }
    };
    let why = "Internal error occurred: failed calling webhook \"required.pillion.dev\": connection refused";
    for (labels, verdict, then) in [
        (ENABLED, Verdict::WouldNotBeInjected, "get no sidecars"),
        (&[("pillion.dev/injection", "required")][..], Verdict::WouldBeRejected, "are rejected"),
    ] {
        let explanation = judge(&none(labels), &rejected_deployment(why));
        assert_eq!((codes(&explanation), explanation.verdict), (vec!["no_ready_replica", "pods_missing"], verdict));
        let first = &explanation.findings[0];
        assert!(first.message.ends_with(then) && first.remedy.contains("scale deployment"), "{first:?}");
        let missing = finding_of(&explanation, "pods_missing");
        assert!(missing.message.starts_with("2 of 2 pods are missing: Internal error"), "{missing:?}");
        assert!(missing.remedy.contains("up to 17 minutes"), "{missing:?}");
        assert!(missing.remedy.ends_with("kubectl -n shop rollout restart deployment web"), "{missing:?}");
    }
    // Injected pods keep working without a webhook replica.
    let revision = none(ENABLED).snapshot.profiles().iter().next().unwrap().revision().to_owned();
    let injected = stored(|pod| {
        pod["metadata"]["annotations"] =
            json!({"pillion.dev/injected": record("logger", &revision, &["/spec/containers/logger"])});
        pod["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "logger", "image": "l:1"}));
    });
    let explanation = judge(&none(ENABLED), &injected);
    assert!(explanation.verdict.is_good() && finding::needs_no_action(&explanation.findings), "{explanation:?}");
    // If the webhook is not the cause, the finding has the default remedy.
    let explanation = judge(&explain_facts(ENABLED, &[logger()]), &rejected_deployment("exceeded quota: pods"));
    assert_eq!((codes(&explanation), explanation.verdict), (vec!["pods_missing"], Verdict::WouldBeInjected));
    assert!(!finding_of(&explanation, "pods_missing").remedy.contains("minutes"));
}

#[test]
fn failing_sidecar_is_reported() {
    let facts = explain_facts(ENABLED, &[logger()]);
    let revision = facts.snapshot.profiles().iter().next().unwrap().revision().to_owned();
    let pod = stored(|pod| {
        pod["metadata"]["annotations"] =
            json!({"pillion.dev/injected": record("logger", &revision, &["/spec/containers/logger"])});
        pod["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "logger", "image": "l:1"}));
        let waiting = json!({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image \"l:1\""}});
        pod["status"] = json!({"phase": "Pending", "containerStatuses": [{"name": "logger", "state": waiting}]});
    });
    let explanation = judge(&facts, &pod);
    assert_eq!((codes(&explanation), explanation.verdict), (vec!["sidecar_not_running"], Verdict::Injected));
    let found = finding_of(&explanation, "sidecar_not_running");
    assert_eq!((found.severity, found.profile.as_deref()), (finding::Severity::Error, Some("logger")));
    assert!(found.message.contains("ImagePullBackOff: Back-off pulling"), "{found:?}");
}

#[test]
fn rejected_profile_of_tenant_is_reported() {
    let rejected = json!({"observedGeneration": 2, "conditions": [
        {"type": "Accepted", "status": "False", "reason": "Invalid", "message": "spec.template: wrong",
         "lastTransitionTime": "2026-11-22T00:00:00Z"}]});
    let spec = json!({"template": {"spec": {}}});
    let facts = ExplainFacts {
        stored: vec![stored_profile("ours", Some("shop"), &spec, &rejected)],
        ..explain_facts(ENABLED, &[])
    };
    let workload = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"template": {"spec": {"containers": [{"name": "web", "image": "web:1"}]}}}});
    let deployment = facts::of_template(&workload, facts::kind_of(&workload).unwrap(), "shop").unwrap();
    for question in [plain(), deployment] {
        let explanation = judge(&facts, &question);
        assert_eq!(codes(&explanation), ["profile_not_ready"]);
        let found = finding_of(&explanation, "profile_not_ready");
        assert_eq!(found.message, "the profile is invalid, so no pod gets it: spec.template: wrong");
        assert_eq!(explanation.profiles[0].message, found.message);
    }
}

#[test]
fn rollback_is_reported_with_both_revisions() {
    let (name, spec) = logger();
    let facts = explain_facts(ENABLED, &[(name, spec.clone())]);
    let revision = facts.snapshot.profiles().iter().next().unwrap().revision().to_owned();
    let status = json!({"revision": revision, "promotedRevision": revision, "acceptedRevision": "newer", "observedGeneration": 2});
    let mut profile = stored_profile(name, None, &spec, &status);
    profile.metadata.annotations = Some([("pillion.dev/rollback-from".to_owned(), "newer".to_owned())].into());
    let facts = ExplainFacts { stored: vec![profile], ..facts };
    let newer = stored(|pod| {
        pod["metadata"]["annotations"] =
            json!({"pillion.dev/injected": record("logger", "newer", &["/spec/containers/logger"])});
        pod["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "logger", "image": "l:1"}));
    });
    let explanation = judge(&facts, &newer);
    assert_eq!(codes(&explanation), ["outdated_revision", "rolled_back"]);
    let outdated = finding_of(&explanation, "outdated_revision");
    assert_eq!(outdated.message, format!("the pod has revision newer of the profile, and new pods get {revision}"));
    let rolled_back = finding_of(&explanation, "rolled_back");
    assert_eq!(rolled_back.message, format!("rolled back: pods get revision {revision} instead of newer"));
    let undo = "end the rollback: pillion profiles rollback logger --undo";
    assert_eq!(rolled_back.remedy, format!("correct the profile, or {undo}"));

    // This rollback lasts until the annotation is removed.
    let facts = ExplainFacts { stored: vec![stored_profile(name, None, &spec, &status)], ..facts };
    assert_eq!(finding_of(&judge(&facts, &newer), "rolled_back").remedy, undo);
}

#[test]
fn bare_pod_has_remedy_without_controller() {
    let facts = ExplainFacts {
        outages: WebhookOutages { ready: Some(0), ..WebhookOutages::default() },
        ..explain_facts(ENABLED, &[logger()])
    };
    let remedy =
        |question: &ExplainedObject| finding_of(&judge(&facts, question), "webhook_unavailable").remedy.clone();
    assert_eq!(remedy(&plain()), "delete and recreate pod web yourself: it has no controller");
    let owned = stored(|pod| {
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "web", "uid": "d", "controller": true});
        pod["metadata"]["ownerReferences"] = json!([job]);
    });
    assert_eq!(remedy(&owned), "kubectl -n shop delete pod web: its controller recreates it");
}

#[test]
fn text_hides_entries_of_other_failure_modes() {
    let facts = explain_facts(ENABLED, &[logger()]);
    let explanation = judge(&facts, &facts::of_namespace("shop"));
    assert!(explanation.webhooks.len() > 1);
    let text = anstream::adapter::strip_str(&super::text(std::slice::from_ref(&explanation), &[])).to_string();
    assert!(!text.contains("not called"), "{text}");
    assert!(text.contains("Profiles  for a pod that requests no profile, injected:"), "{text}");
    // If the namespace has no label, the text shows for each entry why it is not called.
    let explanation = judge(&explain_facts(&[], &[logger()]), &facts::of_namespace("shop"));
    let text = anstream::adapter::strip_str(&super::text(std::slice::from_ref(&explanation), &[])).to_string();
    assert_eq!(text.matches("not called: label pillion.dev/injection must be").count(), 2, "{text}");
}

#[test]
fn workload_finding_is_not_repeated_for_pods() {
    let facts = explain_facts(ENABLED, &[logger()]);
    let labels = json!({"pillion.dev/inject": "false"});
    let workload = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"template": {
        "metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "web:1"}]}}}});
    let deployment = facts::of_template(&workload, facts::kind_of(&workload).unwrap(), "shop").unwrap();
    let pod = stored(|pod| pod["metadata"]["labels"] = labels.clone());
    let late = stored(|pod| pod["status"] = json!({"phase": "Succeeded"}));
    let explanations = [judge(&facts, &deployment), judge(&facts, &pod), judge(&facts, &late)];
    let found = super::all_findings(&explanations, Vec::new());
    let found: Vec<_> = found.iter().map(|finding| (finding.code.as_str(), &*finding.object.kind)).collect();
    assert_eq!(found, [("opted_out", "Deployment"), ("being_deleted", "Pod")]);
}
