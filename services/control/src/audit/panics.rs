//! Tests that a panic during the evaluation of one pod affects only this pod, and that the audit continues.

use std::sync::Arc;

use pillion_api::names::FailureMode;
use pillion_engine::lookup::LookedUp;
use pillion_engine::profile::{ProfileName, compile};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use pillion_json::OwnedTape;
use serde_json::{Value, json};

use super::pod::RecordedProfiles;
use super::*;
use crate::guard::faults;
use crate::informer::objects::Change;

/// When the audit starts, in seconds since 1970.
const START: i64 = 1_000;

/// Creates an audit of pods with these names, each in a separate namespace. `profile` is the only profile.
fn listed(profile: &Value, pods: &[&str]) -> Auditor {
    let name = ProfileName::cluster("proxy");
    let compiled = compile(&name, &serde_json::from_value(profile.clone()).unwrap()).unwrap();
    let mut snapshot = Snapshot::new(ProfileSet::new([Arc::new(compiled)]));
    for pod in pods {
        snapshot = snapshot.with_namespace(&format!("of-{pod}"), Some(Namespace::opted_in(FailureMode::Enabled)));
    }
    let mut auditor = Auditor::new(Arc::new(snapshot), START);
    auditor.update(Change::Restarted);
    for pod in pods {
        auditor.update(Change::Listed(audited(pod)));
    }
    auditor.update(Change::ListComplete);
    auditor
}

fn whole(name: &str) -> OwnedTape {
    let pod = json!({
        "metadata": {"namespace": format!("of-{name}"), "name": name, "creationTimestamp": "1970-01-01T00:30:00Z",
            "uid": format!("029dc23e-3de8-41af-ab3c-{:012}", name.len())},
        "spec": {"containers": [{"name": "app", "image": "app:1"}]},
    });
    OwnedTape::parse(pod.to_string()).unwrap()
}

fn audited(name: &str) -> AuditedPod {
    read(whole(name).root()).unwrap()
}

fn pod_counts(auditor: &Auditor) -> PodCounts {
    auditor.report(&ClusterFacts::default(), 10).pods
}

#[test]
fn pod_whose_evaluation_panics_is_undecided() {
    let conditions = json!([{"name": "one", "expression": "object.spec.containers.size() == 1"}]);
    let template = json!({"metadata": {"labels": {"a": "b"}}});
    let mut auditor =
        listed(&json!({"activation": "Always", "matchConditions": conditions, "template": template}), &["bad", "good"]);
    assert_eq!(pod_counts(&auditor).pending, 2);
    let fault = faults::at("pod of-bad/bad");
    for pod_fetch in std::iter::from_fn(|| auditor.next_fetch()).collect::<Vec<_>>() {
        let PodFetch::Get { name, .. } = &pod_fetch else { panic!("{pod_fetch:?}") };
        auditor.whole(whole(name).root(), &LookedUp::default());
        auditor.done(&pod_fetch, None, true);
    }
    drop(fault);
    let found = pod_counts(&auditor);
    assert_eq!((found.undecided, found.missing, found.pending), (1, 1, 0), "{found:?}");
    assert_eq!(auditor.next_fetch(), None);
}

#[test]
fn panic_over_metadata_affects_one_pod() {
    let fault = faults::at("the metadata of a pod of namespace of-bad");
    let mut auditor =
        listed(&json!({"activation": "Always", "template": {"metadata": {"labels": {"a": "b"}}}}), &["bad", "good"]);
    assert_eq!((auditor.pods(), pod_counts(&auditor).missing), (2, 1));

    // The older revision in the pod's record is not reported as orphaned.
    let has = RecordedProfiles { is_recorded: true, profiles: vec![("proxy".into(), "old".into())] };
    auditor.update(Change::Applied(AuditedPod { has, ..audited("bad") }));
    drop(fault);
    let found = pod_counts(&auditor);
    assert_eq!((found.undecided, found.orphaned), (1, 0), "{found:?}");
}
