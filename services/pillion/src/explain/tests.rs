//! Explains facts without a cluster: each mistake has its code.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pillion_api::opt_in::OptIn;
use pillion_api::webhook_configuration::{Settings, mutating};
use pillion_control::Release;
use pillion_control::audit::NamespaceAge;
use pillion_engine::profile::{ProfileName, compile};
use pillion_engine::snapshot::{ProfileSet, Snapshot};
use serde_json::{Value, json};

use super::facts::{self, ExplainFacts, NamespaceFacts, Question, Silences};
use super::judge::{Explanation, Verdict, judge};
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
        silences: Silences { registered: Some(CREATED - 2_000), ready: Some(2), ..Silences::default() },
        unread: Vec::new(),
        cluster: None,
        is_live: true,
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

/// Returns the question about a stored pod, after `change`.
fn stored(change: impl FnOnce(&mut Value)) -> Question {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "namespace": "shop", "uid": "u", "creationTimestamp": "2026-11-22T00:00:00Z",
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]},
        "spec": {"containers": [{"name": "web", "image": "web:1"}]},
    });
    change(&mut pod);
    facts::of_pod(&pod, "shop")
}

fn plain() -> Question {
    stored(|_| {})
}

fn record(profile: &str, revision: &str, added: &[&str]) -> String {
    json!({"version": 1, "profiles": [{"profile": profile, "revision": revision, "added": added}]}).to_string()
}

fn codes(explanation: &Explanation) -> Vec<&'static str> {
    explanation.findings.iter().map(|finding| finding.code.as_str()).collect()
}

fn found(facts: &ExplainFacts, question: &Question) -> (Vec<&'static str>, Verdict) {
    let explanation = judge(facts, question);
    for finding in &explanation.findings {
        assert!(!finding.message.is_empty() && !finding.remedy.is_empty(), "{finding:?}");
    }
    (codes(&explanation), explanation.verdict)
}

#[test]
fn where_the_api_server_does_not_call_it_says_why() {
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
fn a_pod_without_its_record_was_created_at_another_time_or_while_nobody_answered() {
    let facts = || explain_facts(ENABLED, &[logger()]);
    let since = |opted_in| NamespaceAge { opted_in: Some(opted_in), changed: None };
    let late = ExplainFacts { namespace: NamespaceFacts { age: since(CREATED + 60), ..facts().namespace }, ..facts() };
    let off = Silences { off_since: Some(CREATED - 5), ..facts().silences };
    for (facts, code, said) in [
        (late, "created_before_opt_in", "2026-11-22T00:01:00Z"),
        (facts(), "unexplained", "and left the profile out"),
        (
            ExplainFacts { silences: Silences { ready: Some(0), ..facts().silences }, ..facts() },
            "webhook_away",
            "no replica",
        ),
        (
            ExplainFacts { silences: Silences { registered: Some(CREATED + 9), ..facts().silences }, ..facts() },
            "webhook_away",
            "younger than the pod",
        ),
        (
            ExplainFacts { silences: Silences { endpoints_changed: Some(CREATED + 9), ..facts().silences }, ..facts() },
            "unexplained",
            "have changed since",
        ),
        (ExplainFacts { silences: off, ..facts() }, "switched_off", "when the pod was created"),
    ] {
        let explanation = judge(&facts, &plain());
        assert_eq!(codes(&explanation), [code], "{said}");
        let finding = &explanation.findings[0];
        assert!(finding.message.contains(said), "{finding:?}");
        assert_eq!((finding.profile.as_deref(), explanation.verdict), (Some("logger"), Verdict::NotInjected));
    }
}

#[test]
fn a_record_is_held_against_the_pod_and_against_what_is_at_work() {
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
    let surplus = found(&none, &with(record("logger", &revision, &added), true));
    assert!(surplus.0.contains(&"surplus_profile"), "{surplus:?}");
    let copied = stored(|pod| {
        pod["metadata"]["annotations"] = json!({"pillion.dev/injected": record("logger", &revision, &added)});
        pod["metadata"]["managedFields"] =
            json!([{"fieldsV1": {"f:metadata": {"f:annotations": {"f:pillion.dev/injected": {}}}}}]);
    });
    // The record belongs to another pod, and is reported once.
    let explanation = judge(&facts, &copied);
    assert_eq!(
        (codes(&explanation), explanation.verdict),
        (vec!["unexplained", "foreign_record"], Verdict::NotInjected)
    );
    assert!(explanation.changes.is_empty(), "{explanation:?}");
    // A record without changes still counts as an injection.
    assert_eq!(found(&facts, &with(record("logger", &revision, &[]), true)), (vec![], Verdict::Injected));
}

#[test]
fn what_the_pod_is_and_what_the_profile_says_has_its_code() {
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
    // Missing parts of an ended pod need no action.
    let explanation = judge(&explain_facts(&[], &[logger()]), &ended);
    assert_eq!(codes(&explanation), ["not_opted_in", "being_deleted"]);
    assert!(explanation.verdict.is_good() && finding::is_well(&explanation.findings), "{explanation:?}");
    assert_eq!(found(&explain_facts(ENABLED, &[]), &plain()).0, ["no_profile"]);
    let requested = ("asked", json!({"template": {"metadata": {"annotations": {"a/b": "1"}}}}));
    assert_eq!(found(&explain_facts(ENABLED, std::slice::from_ref(&requested)), &plain()).0, ["not_requested"]);
    let misled = stored(|pod| pod["metadata"]["annotations"] = json!({"pillion.dev/profiles": "askd"}));
    let explanation = judge(&explain_facts(ENABLED, &[requested]), &misled);
    assert_eq!(codes(&explanation), ["unknown_profile"]);
    assert!(explanation.findings[0].message.contains("did you mean asked?"), "{:?}", explanation.findings);
}

#[test]
fn a_template_is_asked_what_its_pods_would_get() {
    let facts = explain_facts(ENABLED, &[logger()]);
    let workload = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "backup", "namespace": "shop",
        "annotations": {"pillion.dev/profiles": "logger"}},
        "spec": {"jobTemplate": {"spec": {"template": {"spec": {"containers": [{"name": "b", "image": "b:1"}]}}}}}});
    let kind = facts::kind_of(&workload).unwrap();
    let question = facts::of_template(&workload, kind, "shop").unwrap();
    assert_eq!(found(&facts, &question), (vec!["annotation_on_workload"], Verdict::WouldBeInjected));
    let facts = ExplainFacts { switched_off: Some(", by kubectl".to_owned()), ..facts };
    assert_eq!(found(&facts, &question).1, Verdict::WouldNotBeInjected);
}

#[test]
fn a_profile_that_is_served_is_not_told_as_one_that_is_not_where_nobody_is_opted_in() {
    let facts = explain_facts(&[], &[logger()]);
    let told: Vec<_> =
        judge(&facts, &plain()).profiles.into_iter().map(|one| (one.profile, one.outcome, one.reason)).collect();
    assert_eq!(told, [("logger".to_owned(), "not_matched", "not_opted_in")]);
}

/// Returns the user's name, groups and `dryRun` of the review.
fn request(question: &Question) -> (&Value, Vec<&str>, bool) {
    let request = &question.review["request"];
    let groups =
        request["userInfo"]["groups"].as_array().unwrap().iter().map(|group| group.as_str().unwrap()).collect();
    (&request["userInfo"]["username"], groups, request["dryRun"].as_bool().unwrap())
}

#[test]
fn pods_of_a_workload_are_created_by_its_controller_and_not_by_a_dry_run() {
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
    // A rollout assigns revisions by the workload's name, so its pods need it as their owner.
    let itself =
        json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": true}]);
    assert_eq!(template.pod()["metadata"]["ownerReferences"], itself);
    assert_eq!(request(&plain()).1, ["system:authenticated"]);
}

#[test]
fn what_could_not_be_read_is_told_of_the_release_and_counts_by_what_it_is() {
    let facts = ExplainFacts {
        unread: vec![(Part::Namespaces, "forbidden".to_owned())],
        ..explain_facts(ENABLED, &[logger()])
    };
    let explanation = judge(&facts, &plain());
    let unreadable = explanation.findings.iter().find(|finding| finding.code.as_str() == "unreadable").unwrap();
    assert_eq!((unreadable.severity, &*unreadable.object.kind), (finding::Severity::Warning, "Release"));
}
