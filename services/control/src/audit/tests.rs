//! Tests the state of the audit after changes of pods, profiles and namespaces. Tests that each finding has its cause.

use std::sync::Arc;

use pillion_api::names::{FailureMode, INJECTION_LABEL};
use pillion_engine::lookup::{Answer, LookedUp};
use pillion_engine::profile::{NoParents, ProfileName, ProfileSource, compile};
use pillion_engine::snapshot::{Namespace, ProfileSet, Served, Snapshot};
use pillion_json::OwnedTape;
use serde_json::{Value, json};

use super::*;
use crate::informer::objects::Change;

/// When the audit starts, in seconds since 1970.
const START: i64 = 1_000;

fn profiles(profiles: &[(&str, Value)]) -> ProfileSet {
    let compiled = profiles.iter().map(|(name, spec)| {
        let mut spec = spec.clone();
        if spec.get("template").is_none() {
            spec["template"] = json!({"metadata": {"annotations": {"example.com/there": "1"}}});
        }
        Arc::new(compile(&ProfileName::cluster(*name), &serde_json::from_value(spec).unwrap()).unwrap())
    });
    ProfileSet::new(compiled)
}

fn always() -> Value {
    json!({"activation": "Always"})
}

/// Returns a profile that matches pods with one container, so the audit needs whole pods.
fn conditional() -> Value {
    json!({"activation": "Always",
        "matchConditions": [{"name": "one", "expression": "object.spec.containers.size() == 1"}]})
}

fn revision(snapshot: &Snapshot, name: &str) -> String {
    let found = snapshot.profiles().iter().find(|profile| profile.display_name() == name).unwrap();
    found.revision().to_owned()
}

fn shop(set: ProfileSet) -> Snapshot {
    Snapshot::new(set).with_namespace("shop", Some(Namespace::opted_in(FailureMode::Enabled)))
}

#[derive(Clone)]
struct Pod {
    value: Value,
}

fn pod(name: &str) -> Pod {
    Pod {
        value: json!({
            "metadata": {"namespace": "shop", "name": name, "creationTimestamp": "1970-01-01T00:30:00Z",
                "uid": format!("029dc23e-3de8-41af-ab3c-{:012}", name.len()),
                "managedFields": [{"fieldsV1": {"f:spec": {}}}],
                "ownerReferences": [{"kind": "ReplicaSet", "name": "web", "controller": true}]},
            "spec": {"containers": [{"name": "app", "image": "app:1"}]},
        }),
    }
}

impl Pod {
    fn with(mut self, profile: &str, revision: &str) -> Self {
        let entry = json!({"profile": profile, "revision": revision, "added": []});
        let record = &mut self.value["metadata"]["annotations"]["pillion.dev/injected"];
        let mut read: Value =
            record.as_str().map_or(json!({"version": 1, "profiles": []}), |text| serde_json::from_str(text).unwrap());
        read["profiles"].as_array_mut().unwrap().push(entry);
        *record = read.to_string().into();
        self
    }

    fn label(mut self, key: &str, value: &str) -> Self {
        self.value["metadata"]["labels"][key] = value.into();
        self
    }

    fn containers(mut self, count: usize) -> Self {
        let container = |number| json!({"name": format!("c{number}"), "image": "app:1"});
        self.value["spec"]["containers"] = (0..count).map(container).collect();
        self
    }

    fn whole(&self) -> OwnedTape {
        OwnedTape::parse(self.value.to_string()).unwrap()
    }

    /// Returns the pod as the watch delivers it, without its spec.
    fn audited(&self) -> AuditedPod {
        let mut value = self.value.clone();
        value.as_object_mut().unwrap().remove("spec");
        read(OwnedTape::parse(value.to_string()).unwrap().root()).unwrap()
    }
}

fn listed(snapshot: Snapshot, pods: &[Pod]) -> Auditor {
    let mut auditor = Auditor::new(Arc::new(snapshot), START);
    auditor.update(Change::Restarted);
    for pod in pods {
        auditor.update(Change::Listed(pod.audited()));
    }
    auditor.update(Change::ListComplete);
    auditor
}

/// Returns the facts of a cluster that was set up long before the pods.
fn known(auditor: &Auditor) -> ClusterFacts {
    let mut facts = ClusterFacts::default();
    facts.unavailable.add_sample(START, false);
    facts.disabled.add_sample(START, false);
    facts.registered = Some(1);
    for (name, namespace) in auditor.snapshot().namespaces() {
        facts.set_namespace(name, namespace, NamespaceAge { opted_in: Some(10), changed: Some(10) });
    }
    for profile in auditor.snapshot().profiles().iter() {
        let age = ProfileAge { created: Some(20), changed: Some(20) };
        facts.set_profile(profile.display_name(), profile.revision(), age);
    }
    facts
}

fn findings(auditor: &Auditor, facts: &ClusterFacts) -> Vec<(String, String, State, Cause)> {
    let report = auditor.report(facts, 100);
    assert_eq!(report.total(), report.findings.len() as u64);
    let summary = |finding: Finding| (finding.pod.into(), finding.profile.into(), finding.state, finding.cause);
    report.findings.into_iter().map(summary).collect()
}

fn finding(pod: &str, profile: &str, state: State, cause: Cause) -> Vec<(String, String, State, Cause)> {
    vec![(pod.to_owned(), profile.to_owned(), state, cause)]
}

/// Executes all due fetches, with `pods` as the pods of the cluster. Returns the number of fetches.
fn run_fetches(auditor: &mut Auditor, pods: &[Pod]) -> usize {
    let mut count = 0;
    while let Some(pod_fetch) = auditor.next_fetch() {
        count += 1;
        assert!(count < 1_000, "the fetches do not end: {pod_fetch:?}");
        let is_asked = |pod: &&Pod| {
            let text = |key: &str| pod.value["metadata"][key].as_str().unwrap().to_owned();
            match &pod_fetch {
                PodFetch::Get { namespace, name } => text("namespace") == **namespace && text("name") == **name,
                PodFetch::List { namespace, .. } => text("namespace") == **namespace,
            }
        };
        let found: Vec<_> = pods.iter().filter(is_asked).collect();
        for pod in &found {
            auditor.whole(pod.whole().root(), &LookedUp::default());
        }
        auditor.done(&pod_fetch, None, !found.is_empty());
    }
    count
}

#[test]
fn matching_pod_is_no_finding() {
    let snapshot = shop(profiles(&[("a", always())]));
    let right = pod("right").with("a", &revision(&snapshot, "a"));
    let out = pod("out").label("pillion.dev/inject", "false");
    let auditor = listed(snapshot, &[right, out]);
    let report = auditor.report(&known(&auditor), 10);
    assert_eq!(report.total(), 0, "{report:?}");
    assert_eq!((report.pods.injected, report.pods.opted_out), (1, 1));
    assert_eq!(report.profiles["a"], ProfileAudit { injected: 1, ..ProfileAudit::default() });
    assert!(report.is_complete);
}

#[test]
fn each_finding_has_its_cause() {
    let snapshot = shop(profiles(&[("a", always())]));
    let auditor = listed(snapshot.clone(), &[pod("p")]);
    let plain = known(&auditor);
    let missing = |cause| finding("p", "a", State::Missing, cause);
    assert_eq!(findings(&auditor, &plain), missing(Cause::Unknown));

    let mut away = plain.clone();
    away.unavailable.add_sample(1_900, true);
    assert_eq!(findings(&auditor, &away), missing(Cause::WebhookUnavailable));
    let mut unregistered = plain.clone();
    unregistered.registered = Some(2_000);
    assert_eq!(findings(&auditor, &unregistered), missing(Cause::WebhookUnavailable));
    let mut off = plain.clone();
    off.disabled.add_sample(1_900, true);
    assert_eq!(findings(&auditor, &off), missing(Cause::SwitchedOff));

    let mut young = plain.clone();
    let revision = revision(&snapshot, "a");
    young.set_profile("a", &revision, ProfileAge { created: Some(2_000), changed: None });
    assert_eq!(findings(&auditor, &young), missing(Cause::ProfileCreated));
    let mut edited = plain.clone();
    edited.set_profile("a", &revision, ProfileAge { created: Some(20), changed: Some(2_000) });
    assert_eq!(findings(&auditor, &edited), missing(Cause::ProfileChanged));

    let namespace = snapshot.namespace("shop").unwrap();
    let mut late = plain.clone();
    late.set_namespace("shop", &namespace, NamespaceAge { opted_in: Some(5_000), changed: None });
    assert_eq!(findings(&auditor, &late), missing(Cause::Unknown), "the audit saw the opt-in before the pod");
    let mut asked = plain;
    asked.set_namespace("shop", &namespace, NamespaceAge { opted_in: Some(10), changed: Some(5_000) });
    assert_eq!(findings(&auditor, &asked), missing(Cause::NamespaceChanged));

    let left_out = listed(snapshot, &[pod("p").with("b", "r")]);
    let found = findings(&left_out, &known(&left_out));
    assert!(found.contains(&("p".into(), "a".into(), State::Missing, Cause::Skipped)), "{found:?}");
    assert!(found.contains(&("p".into(), "b".into(), State::Orphaned, Cause::ProfileDeleted)), "{found:?}");
}

#[test]
fn ages_are_read_once_for_findings_only() {
    let auditor = listed(shop(profiles(&[("a", always())])), &[pod("p")]);
    let report = auditor.report(&ClusterFacts::default(), 10);
    assert_eq!(report.asked_namespaces.iter().map(|name| &**name).collect::<Vec<_>>(), ["shop"]);
    assert_eq!(report.asked_profiles.iter().map(|name| &**name).collect::<Vec<_>>(), ["a"]);
    let report = auditor.report(&known(&auditor), 10);
    assert!(report.asked_namespaces.is_empty() && report.asked_profiles.is_empty());
}

#[test]
fn pods_of_namespace_that_opts_in_are_listed() {
    let set = profiles(&[("a", always())]);
    let before = Snapshot::new(set).with_namespace("shop", Some(Namespace::default()));
    let mut auditor = listed(before.clone(), &[pod("p")]);
    assert_eq!(auditor.pods(), 0, "pods of other namespaces are not kept");
    let label = [(INJECTION_LABEL, "enabled")];
    auditor.set_snapshot(Arc::new(before.with_namespace("shop", Some(Namespace::new(label, [])))), 5_000);
    let pod_fetch = auditor.next_fetch().unwrap();
    assert_eq!(pod_fetch, PodFetch::List { namespace: "shop".into(), from: None });
    auditor.failed(pod_fetch);
    assert!(!auditor.report(&ClusterFacts::default(), 1).is_complete);
    assert_eq!(run_fetches(&mut auditor, &[pod("p")]), 1);
    let mut facts = known(&auditor);
    let namespace = auditor.namespace("shop").unwrap();
    facts.set_namespace("shop", namespace, NamespaceAge { opted_in: Some(4_990), changed: None });
    assert_eq!(findings(&auditor, &facts), finding("p", "a", State::Missing, Cause::BeforeOptIn));

    auditor.set_snapshot(Arc::new(before), 6_000);
    assert_eq!(auditor.pods(), 0);
}

#[test]
fn changed_profile_outdates_pods_without_reads() {
    let first = shop(profiles(&[("a", conditional())]));
    let old = revision(&first, "a");
    let mut auditor = listed(first.clone(), &[pod("p").with("a", &old)]);
    assert_eq!(auditor.next_fetch(), None, "the record lists the profile, so the whole pod is not read");
    assert!(findings(&auditor, &known(&auditor)).is_empty());

    let mut edited = conditional();
    edited["template"] = json!({"metadata": {"annotations": {"example.com/there": "2"}}});
    let second = Arc::new(first.with_profiles(profiles(&[("a", edited)])));
    assert!(auditor.set_snapshot(Arc::clone(&second), 2_000));
    assert!(!auditor.judge(100));
    assert_eq!(auditor.next_fetch(), None);
    assert_eq!(findings(&auditor, &known(&auditor)), finding("p", "a", State::Outdated, Cause::ProfileChanged));
    let reported = auditor.report(&known(&auditor), 1).findings.remove(0);
    assert_eq!((reported.has.as_deref(), reported.want), (Some(&*old), Some(revision(&second, "a").into())));
    assert_eq!(reported.owner.as_deref(), Some("ReplicaSet/web"));

    auditor.set_snapshot(Arc::new(second.with_profiles(profiles(&[]))), 3_000);
    auditor.judge(100);
    assert_eq!(findings(&auditor, &known(&auditor)), finding("p", "a", State::Orphaned, Cause::ProfileDeleted));
}

#[test]
fn pods_lacking_conditional_profile_are_read_once() {
    let first = shop(profiles(&[("a", conditional())]));
    let pods = [pod("1").containers(1), pod("22").containers(2)];
    let mut auditor = listed(first.clone(), &pods);
    assert_eq!(auditor.report(&known(&auditor), 1).pods.pending, 2);
    assert_eq!(run_fetches(&mut auditor, &pods), 2);
    let missing = finding("1", "a", State::Missing, Cause::Unknown);
    assert_eq!(findings(&auditor, &known(&auditor)), missing);
    assert_eq!(auditor.report(&known(&auditor), 1).pods.not_requested, 1);

    // Only the status of the pod changes, so the result remains valid.
    auditor.update(Change::Applied(pods[1].audited()));
    assert_eq!(run_fetches(&mut auditor, &pods), 0);
    // The result also remains valid when another profile changes.
    let other = Arc::new(first.with_profiles(profiles(&[("a", conditional()), ("b", json!({}))])));
    auditor.set_snapshot(other, 2_000);
    auditor.judge(100);
    assert_eq!(run_fetches(&mut auditor, &pods), 0);
    // After a change of the namespace or of the revision, the pods are read again.
    let annotated = Namespace::new([(INJECTION_LABEL, "enabled"), ("team", "red")], []);
    let renamed = Arc::new(first.with_namespace("shop", Some(annotated)));
    auditor.set_snapshot(Arc::clone(&renamed), 2_000);
    auditor.judge(100);
    assert_eq!(run_fetches(&mut auditor, &pods), 2);
    assert_eq!(findings(&auditor, &known(&auditor)), missing);
    let mut edited = conditional();
    edited["order"] = 7.into();
    auditor.set_snapshot(Arc::new(renamed.with_profiles(profiles(&[("a", edited)]))), 2_000);
    auditor.judge(100);
    assert_eq!(run_fetches(&mut auditor, &pods), 2);
}

#[test]
fn many_pods_are_listed_and_failures_retried() {
    let pods: Vec<_> = (0..100).map(|number| pod(&format!("p{number:03}"))).collect();
    let mut auditor = listed(shop(profiles(&[("a", conditional())])), &pods);
    let pod_fetch = auditor.next_fetch().unwrap();
    assert_eq!(pod_fetch, PodFetch::List { namespace: "shop".into(), from: None });
    auditor.failed(pod_fetch);
    let pod_fetch = auditor.next_fetch().unwrap();
    for pod in &pods[..50] {
        auditor.whole(pod.whole().root(), &LookedUp::default());
    }
    auditor.done(&pod_fetch, Some("more".to_owned()), true);
    let pod_fetch = auditor.next_fetch().unwrap();
    assert_eq!(pod_fetch, PodFetch::List { namespace: "shop".into(), from: Some("more".to_owned()) });
    // A pod is deleted during the request for the next page, which still contains it.
    auditor.update(Change::Deleted(("shop".into(), "p099".into())));
    for pod in &pods[50..] {
        auditor.whole(pod.whole().root(), &LookedUp::default());
    }
    auditor.done(&pod_fetch, None, true);
    assert_eq!(auditor.next_fetch(), None);
    let report = auditor.report(&known(&auditor), 10);
    assert_eq!((report.pods.missing, auditor.pods()), (99, 99));
    assert_eq!(report.findings.len(), 10, "all findings are counted, and some have details");
    assert_eq!(report.namespaces["shop"].total(), 99);
}

#[test]
fn namespace_has_its_own_report_and_digest() {
    let snapshot = shop(profiles(&[("a", always()), ("b", always())]));
    let (a, b) = (revision(&snapshot, "a"), revision(&snapshot, "b"));
    let mut auditor = listed(snapshot, &[pod("one").with("a", &a)]);
    let facts = known(&auditor);
    let first = auditor.report(&facts, 10).namespaces["shop"];
    assert_eq!((first.findings, first.injected, first.skipped), ([1, 0, 0], 1, 0));
    assert_eq!(auditor.report(&facts, 0).namespaces["shop"], first, "the limit does not change the digest");
    let own = auditor.namespace_report("shop", &facts, 10);
    assert_eq!((own.namespaces["shop"], own.findings), (first, auditor.report(&facts, 10).findings));
    assert_eq!(auditor.namespace_report("till", &facts, 10).namespaces.len(), 0);

    // A pod without findings changes the counts, and one with findings also changes the digest.
    let whole = pod("two").with("a", &a).with("b", &b);
    auditor.update(Change::Applied(whole.audited()));
    let second = auditor.report(&facts, 10).namespaces["shop"];
    assert_eq!((second.digest, second.injected), (first.digest, 3));
    auditor.update(Change::Applied(pod("three").with("a", "older").with("b", &b).audited()));
    let third = auditor.report(&facts, 10).namespaces["shop"];
    assert_eq!(third.findings, [1, 1, 0]);
    assert_ne!(third.digest, first.digest);
}

#[test]
fn namespaces_take_turns_at_reads() {
    let mut snapshot = Snapshot::new(profiles(&[("a", conditional())]));
    for name in ["a-busy", "b-broken", "quiet"] {
        snapshot = snapshot.with_namespace(name, Some(Namespace::opted_in(FailureMode::Enabled)));
    }
    let of = |namespace: &str, name: &str| {
        let mut pod = pod(name);
        pod.value["metadata"]["namespace"] = namespace.into();
        pod
    };
    let busy: Vec<_> = (0..100).map(|number| of("a-busy", &format!("p{number:03}"))).collect();
    let others = [of("b-broken", "p"), of("quiet", "p")];
    let mut auditor = listed(snapshot, &[&busy[..], &others[..]].concat());
    let mut order = Vec::new();
    for _ in 0..9 {
        // One namespace's list never ends, and the fetch of another namespace always fails.
        let pod_fetch = auditor.next_fetch().unwrap();
        match &pod_fetch {
            PodFetch::List { namespace, .. } => {
                assert_eq!(&**namespace, "a-busy");
                order.push("a-busy");
                auditor.done(&pod_fetch, Some("more".to_owned()), true);
            }
            PodFetch::Get { namespace, .. } if &**namespace == "b-broken" => {
                order.push("b-broken");
                auditor.failed(pod_fetch);
            }
            PodFetch::Get { .. } => {
                order.push("quiet");
                auditor.whole(others[1].whole().root(), &LookedUp::default());
                auditor.done(&pod_fetch, None, true);
            }
        }
    }
    let turn = ["a-busy", "b-broken"];
    assert_eq!(order, [&["a-busy", "b-broken", "quiet"], &turn[..], &turn, &turn].concat());
}

#[test]
fn each_namespace_is_read_by_one_request() {
    let mut snapshot = Snapshot::new(profiles(&[("a", conditional())]));
    let mut pods = Vec::new();
    for name in ["one", "two", "three"] {
        snapshot = snapshot.with_namespace(name, Some(Namespace::opted_in(FailureMode::Enabled)));
        for number in 0..2 {
            let mut pod = pod(&format!("p{number}"));
            pod.value["metadata"]["namespace"] = name.into();
            pods.push(pod);
        }
    }
    let mut auditor = listed(snapshot, &pods);
    let pod_fetches: Vec<_> = std::iter::from_fn(|| auditor.next_fetch()).collect();
    let namespaces: Vec<_> = pod_fetches.iter().map(PodFetch::namespace).collect();
    assert_eq!(namespaces, ["one", "three", "two"]);
    let complete = |auditor: &Auditor| auditor.report(&ClusterFacts::default(), 10).is_complete;
    auditor.failed(pod_fetches[0].clone());
    assert_eq!(auditor.next_fetch().unwrap().namespace(), "one");
    // No fetch is left to start, but some are still running.
    assert_eq!((auditor.next_fetch(), complete(&auditor)), (None, false));
}

#[test]
fn late_response_does_not_restore_deleted_pod() {
    let mut auditor = listed(shop(profiles(&[("a", conditional())])), &[pod("p")]);
    let pod_fetch = auditor.next_fetch().unwrap();
    auditor.update(Change::Deleted(("shop".into(), "p".into())));
    auditor.whole(pod("p").whole().root(), &LookedUp::default());
    auditor.done(&pod_fetch, None, true);
    assert_eq!((auditor.pods(), auditor.next_fetch()), (0, None));
}

#[test]
fn namespace_without_due_pods_is_not_read() {
    let mut auditor = listed(shop(profiles(&[("a", conditional())])), &[pod("p")]);
    auditor.update(Change::Deleted(("shop".into(), "p".into())));
    assert_eq!(auditor.next_fetch(), None);
    assert!(auditor.report(&ClusterFacts::default(), 1).is_complete);
}

#[test]
fn deleted_and_unlisted_pods_are_removed() {
    let snapshot = shop(profiles(&[("a", always())]));
    let mut auditor = listed(snapshot, &[pod("a"), pod("bb"), pod("ccc")]);
    auditor.update(Change::Deleted(("shop".into(), "a".into())));
    assert_eq!(auditor.pods(), 2);
    auditor.update(Change::Restarted);
    auditor.update(Change::Listed(pod("bb").audited()));
    assert_eq!(auditor.pods(), 2, "known pods stay until the list is complete");
    auditor.update(Change::ListComplete);
    assert_eq!(auditor.pods(), 1);
    let mut ending = pod("bb").audited();
    ending.is_exempt = true;
    auditor.update(Change::Applied(ending));
    assert_eq!(auditor.pods(), 0);
}

#[test]
fn unknowable_condition_leaves_pod_undecided() {
    let spec = json!({"activation": "Always",
        "matchConditions": [{"name": "me", "expression": "request.userInfo.username == 'me'"}]});
    let mut auditor = listed(shop(profiles(&[("a", spec)])), &[pod("p")]);
    run_fetches(&mut auditor, &[pod("p")]);
    let report = auditor.report(&known(&auditor), 10);
    assert_eq!((report.total(), report.pods.undecided, report.profiles["a"].undecided), (0, 1, 1));
    auditor.update(Change::Applied(pod("p").label("x", "y").audited()));
    assert!(auditor.next_fetch().is_some(), "a changed pod is read again");
}

/// Returns a snapshot in which profile `a` has an active and an older revision. Also returns the hashes of both
/// revisions, the active one first.
fn with_older_revision() -> (Snapshot, [String; 2]) {
    let text = |text: &str| {
        let spec =
            json!({"activation": "Always", "template": {"metadata": {"annotations": {"example.com/text": text}}}});
        Arc::new(compile(&ProfileName::cluster("a"), &serde_json::from_value(spec).unwrap()).unwrap())
    };
    let (new, old) = (text("new"), text("old"));
    let revisions = [&new, &old].map(|profile| profile.revision().to_owned());
    let kept = revisions.iter().map(|revision| revision.as_str().into()).collect();
    let served = Served { profile: new, stage: None, kept };
    (shop(ProfileSet::serving(&ProfileSet::default(), [served])), revisions)
}

#[test]
fn pinned_pod_needs_the_pinned_revision() {
    let (snapshot, [new, old]) = with_older_revision();
    let pinning = |name: &str| {
        let mut pod = pod(name);
        pod.value["metadata"]["annotations"]["pillion.dev/profiles"] = format!("a@{old}").into();
        pod
    };
    let pods = [pinning("r").with("a", &old), pinning("ww").with("a", &new), pinning("lll")];
    let mut auditor = listed(snapshot, &pods);
    assert_eq!(findings(&auditor, &known(&auditor)), finding("ww", "a", State::Outdated, Cause::ProfileChanged));
    assert_eq!(auditor.report(&known(&auditor), 1).pods.pending, 1, "the pinned revision was not read yet");
    assert_eq!(run_fetches(&mut auditor, &pods), 1);
    // No lookup succeeded, so the pinned revision is still unknown.
    assert_eq!(auditor.report(&known(&auditor), 1).pods.undecided, 1);
    assert_eq!(auditor.retry_failed_lookups(), 1);
    let pod_fetch = auditor.next_fetch().unwrap();
    let wanted = auditor.needs(pods[2].whole().root());
    assert_eq!(wanted.objects.len(), 1);
    let spec = json!({"activation": "Always", "template": {"metadata": {"annotations": {"example.com/text": "old"}}}});
    let name = ProfileName::cluster("a");
    let whole = ProfileSource::Author(&serde_json::from_value(spec).unwrap(), &NoParents).flatten(&name).unwrap();
    let object = json!({"spec": whole.to_revision(&name, None, None).unwrap()}).to_string();
    let object = Answer::Found(Arc::new(OwnedTape::parse(object).unwrap()));
    let looked_up = LookedUp { objects: vec![(wanted.objects[0].clone(), object)], ..LookedUp::default() };
    auditor.whole(pods[2].whole().root(), &looked_up);
    auditor.done(&pod_fetch, None, true);
    let missing = auditor.report(&known(&auditor), 10).findings.into_iter().find(|finding| &*finding.pod == "lll");
    assert_eq!(missing.unwrap().want.as_deref(), Some(&*old));
}

#[test]
fn failed_lookup_of_pod_is_retried() {
    let spec = json!({"activation": "Always",
        "matchConditions": [{"name": "it", "expression": "!serviceAccount.hasValue()"}]});
    let mut auditor = listed(shop(profiles(&[("a", spec)])), &[pod("p")]);
    let answer = |auditor: &mut Auditor, answer: Answer<Arc<OwnedTape>>| {
        let pod_fetch = auditor.next_fetch().unwrap();
        let looked_up = LookedUp { service_account: answer, ..LookedUp::default() };
        auditor.whole(pod("p").whole().root(), &looked_up);
        auditor.done(&pod_fetch, None, true);
    };
    answer(&mut auditor, Answer::Failed("no response in time".into()));
    let report = auditor.report(&known(&auditor), 10);
    assert!(report.is_complete && report.total() == 0 && report.pods.undecided == 1, "{report:?}");
    assert_eq!((auditor.next_fetch(), auditor.retry_failed_lookups()), (None, 1));
    answer(&mut auditor, Answer::Missing);
    assert_eq!(findings(&auditor, &known(&auditor)), finding("p", "a", State::Missing, Cause::Unknown));
    assert_eq!(auditor.retry_failed_lookups(), 0);
}

#[test]
fn namespaces_excluded_from_webhook_are_ignored() {
    let mut auditor = listed(shop(profiles(&[("a", always())])), &[pod("p")]);
    assert_eq!(findings(&auditor, &known(&auditor)).len(), 1);
    auditor.set_excluded(["shop".into()].into(), START);
    assert_eq!((auditor.pods(), findings(&auditor, &known(&auditor)).len()), (0, 0));
    auditor.update(Change::Applied(pod("other").audited()));
    assert_eq!((auditor.pods(), auditor.next_fetch()), (0, None));
    auditor.set_excluded([].into(), START);
    assert_eq!(run_fetches(&mut auditor, &[pod("p")]), 1, "pods are listed when their namespace is no longer excluded");
    assert_eq!(findings(&auditor, &known(&auditor)).len(), 1);
}

#[test]
fn whole_pods_decide_between_profiles_of_a_group() {
    let group = |mut spec: Value, order: i32| {
        spec["exclusiveGroup"] = "g".into();
        spec["order"] = order.into();
        spec
    };
    let set = profiles(&[("a", group(conditional(), 1)), ("b", group(always(), 2))]);
    let pods = [pod("1").containers(1), pod("22").containers(2)];
    let mut auditor = listed(shop(set), &pods);
    run_fetches(&mut auditor, &pods);
    let found = findings(&auditor, &known(&auditor));
    let expected =
        [finding("1", "a", State::Missing, Cause::Unknown), finding("22", "b", State::Missing, Cause::Unknown)];
    assert_eq!(found, expected.concat());
}

#[test]
fn only_new_profile_text_overrides_injection_record() {
    let first = shop(profiles(&[("a", always())]));
    let old = revision(&first, "a");
    // The pod got its label after its creation.
    let out = pod("p").with("a", &old).label("pillion.dev/inject", "false");
    let mut auditor = listed(first.clone(), &[out]);
    assert!(findings(&auditor, &known(&auditor)).is_empty());

    let asked = profiles(&[("a", json!({"requestedBy": {"annotation": "example.com/ask"}}))]);
    auditor.set_snapshot(Arc::new(first.with_profiles(asked)), 2_000);
    auditor.judge(100);
    assert_eq!(findings(&auditor, &known(&auditor)), finding("p", "a", State::Orphaned, Cause::ProfileChanged));
}

#[test]
fn pods_with_profile_are_listed() {
    let (snapshot, [new, old]) = with_older_revision();
    let pods = [pod("r").with("a", &old), pod("ww").with("a", &new), pod("lll")];
    assert_eq!(Auditor::new(Arc::new(snapshot.clone()), START).pods_with("a"), None, "no pod is listed yet");
    let auditor = listed(snapshot, &pods);
    let of = |profile: &str| {
        let mut found: Vec<_> =
            auditor.pods_with(profile).unwrap().into_iter().map(|pod| (pod.name, pod.revision)).collect();
        found.sort();
        found
    };
    assert_eq!(of("a"), [("r".into(), old.into()), ("ww".into(), new.into())]);
    assert_eq!(of("other/a"), []);
}
