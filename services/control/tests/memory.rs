//! Measures the memory of the caches at full size: 10,000 namespaces, and 2,000 profiles of 1.5 KB with three
//! expressions each. The index receives the objects as the watches deliver them. The allocated bytes are the same in
//! every run, so the test limits them. Times are only printed: `just run --no-capture memory::` shows them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers report failures by panicking")]
#![allow(clippy::print_stdout, reason = "figures help to find the cause of a failure")]
#![allow(clippy::cast_precision_loss, reason = "figures are only printed")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use allocation_counter::{AllocationInfo, measure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pillion_api::names::FailureMode;
use pillion_api::opt_in::OptIn;
use pillion_control::audit::{self, Auditor, ClusterFacts};
use pillion_control::informer::index::{Index, Update};
use pillion_control::informer::namespaces;
use pillion_control::informer::objects::Change;
use pillion_control::informer::objects::StoredProfile;
use pillion_engine::review::{Endpoint, Facts, Review};
use pillion_engine::snapshot::{ProfileSet, Snapshot};
use pillion_json::OwnedTape;
use serde_json::{Value, json};

const NAMESPACES: usize = 10_000;
const PROFILES: usize = 2_000;
const MIB: f64 = 1024.0 * 1024.0;

/// Reads a namespace as a watch does.
fn read(metadata: ObjectMeta) -> namespaces::Named {
    namespaces::read(metadata, &OptIn::default())
}

/// Returns a typical namespace: five labels, three annotations, and the copy that kubectl stores.
fn namespace(number: usize, cost_center: usize) -> ObjectMeta {
    let team = number % 400;
    let name = format!("team-{team:03}-service-{number:05}");
    let text = |pairs: &[(&str, String)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
    };
    ObjectMeta {
        labels: Some(text(&[
            ("kubernetes.io/metadata.name", name.clone()),
            ("pillion.dev/injection", "enabled".to_owned()),
            ("app.kubernetes.io/managed-by", "platform-provisioner".to_owned()),
            ("platform.example.com/team", format!("team-{team:03}")),
            ("pod-security.kubernetes.io/enforce", "baseline".to_owned()),
        ])),
        annotations: Some(text(&[
            ("platform.example.com/owner", format!("owners-of-team-{team:03}@example.com")),
            ("platform.example.com/cost-center", format!("cc-{cost_center:06}")),
            ("platform.example.com/description", format!("The service number {number} of team {team}, in production")),
            ("kubectl.kubernetes.io/last-applied-configuration", "x".repeat(900)),
        ])),
        uid: Some(format!("029dc23e-3de8-41af-ab3c-{number:012}")),
        resource_version: Some(number.to_string()),
        name: Some(name),
        ..ObjectMeta::default()
    }
}

/// Returns a profile of 1.5 KB with three expressions, as the watch delivers it.
fn profile(number: usize, generation: i64) -> StoredProfile {
    let spec: Value = json!({
        "order": 100,
        "requestedBy": {"annotation": format!("sidecars.example.com/agent-{number:04}")},
        "namespaceSelector": {"matchLabels": {"platform.example.com/team": format!("team-{:03}", number % 400)}},
        "matchConditions": [{"name": "not-a-job", "expression":
            "!object.metadata.?ownerReferences.orValue([]).exists(o, o.kind == 'Job')"}],
        "template": {
            "metadata": {"annotations": {format!("example.com/agent-{number:04}"): "on"}},
            "spec": {
                "containers": [{
                    "name": format!("agent-{number:04}"),
                    "image": format!("registry.example.com/platform/agents/agent-{number:04}:1.{generation}"),
                    "args": ["--listen", ":15020", "--log-format", "json", "--config", "/etc/agent/agent.yaml",
                             "--service", "${object.metadata.?labels['app'].orValue('unknown')}"],
                    "env": [
                        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                        {"name": "TEAM", "value": "${namespaceObject.metadata.labels[?'team'].orValue('none')}"},
                        {"name": "ENDPOINT", "value": "https://collector.observability.svc.example.com:4317"},
                    ],
                    "ports": [{"name": "agent", "containerPort": 15_020}],
                    "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
                    "readinessProbe": {"httpGet": {"path": "/ready", "port": 15_020}, "periodSeconds": 5},
                    "securityContext": {"runAsNonRoot": true, "runAsUser": 1337, "readOnlyRootFilesystem": true,
                        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                    "volumeMounts": [{"name": "agent-config", "mountPath": "/etc/agent", "readOnly": true}],
                }],
                "volumes": [{"name": "agent-config", "configMap": {"name": "agent-config", "optional": true}}],
            },
        },
    });
    let metadata = ObjectMeta {
        name: Some(format!("agent-{number:04}")),
        uid: Some(format!("129dc23e-3de8-41af-ab3c-{number:012}")),
        generation: Some(generation),
        ..ObjectMeta::default()
    };
    StoredProfile::new(metadata, spec)
}

fn listed(index: &mut Index, cost_center: usize, generation: i64) {
    index.update(Update::Namespace(Change::Restarted));
    for number in 0..NAMESPACES {
        index.update(Update::Namespace(Change::Listed(read(namespace(number, cost_center)))));
    }
    index.update(Update::Namespace(Change::ListComplete));
    index.update(Update::Namespaced(Change::Restarted));
    index.update(Update::Namespaced(Change::ListComplete));
    index.update(Update::Cluster(Change::Restarted));
    for number in 0..PROFILES {
        let broken = index.update(Update::Cluster(Change::Listed(profile(number, generation))));
        assert!(broken.is_empty(), "{broken:?}");
    }
    index.update(Update::Cluster(Change::ListComplete));
}

/// Prints and returns the memory that a measured closure did not free, and its peak use, in MiB.
fn print_memory(what: &str, info: &AllocationInfo) -> (f64, f64) {
    let (live, peak) = (info.bytes_current as f64 / MIB, info.bytes_max as f64 / MIB);
    println!("{what}: {live:.2} MiB live, {peak:.2} MiB at the peak, {} allocations", info.count_total);
    (live, peak)
}

#[test]
fn ten_thousand_namespaces_take_a_few_mebibytes() {
    let mut index = Index::default();
    let info = measure(|| {
        index.update(Update::Namespace(Change::Restarted));
        for number in 0..NAMESPACES {
            index.update(Update::Namespace(Change::Listed(read(namespace(number, 1)))));
        }
        index.update(Update::Namespace(Change::ListComplete));
    });
    let (live, peak) = print_memory("10,000 namespaces", &info);
    println!("{} bytes a namespace", info.bytes_current / 10_000);
    assert_eq!(index.status().namespaces, NAMESPACES);
    assert!(live < 5.5 && peak < 6.0, "{live} MiB live, {peak} MiB at the peak");
}

/// Computes which lookups a pod needs, for every fifth namespace. The snapshot then caches the profiles for these
/// namespaces.
fn ask_everywhere(snapshot: &Snapshot) {
    for number in (0..NAMESPACES).step_by(5) {
        let name = namespace(number, 1).name.unwrap();
        let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "namespace": name, "operation": "CREATE",
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "object": {"metadata": {}, "spec": {"containers": [{"name": "app", "image": "app:1"}]}}}})
        .to_string();
        let review = Review::parse(body.as_bytes()).unwrap();
        let facts = Facts { namespace: snapshot.namespace(&name), ..Facts::default() };
        let wanted = review.needs(Endpoint::FailureMode(FailureMode::Enabled), snapshot, &facts);
        assert!(wanted.service_account.is_none());
    }
}

#[test]
fn caches_fit_memory_share_of_replica() {
    println!("a profile's text: {} bytes", profile(1, 1).spec.to_string().len());
    let mut index = Index::default();
    let mut published: Option<Arc<Snapshot>> = None;
    let first = measure(|| {
        listed(&mut index, 1, 1);
        published = index.publish();
    });
    let (first_live, first_peak) = print_memory("first lists and publication", &first);
    let snapshot = published.clone().unwrap();
    let asked = measure(|| ask_everywhere(&snapshot));
    let (asked_live, _) = print_memory("what each namespace gets", &asked);
    drop(snapshot);

    let same = measure(|| {
        listed(&mut index, 1, 1);
        if let Some(next) = index.publish() {
            published = Some(next);
        }
    });
    let (same_live, same_peak) = print_memory("a list in which nothing is new", &same);
    let other = measure(|| {
        listed(&mut index, 2, 2);
        published = index.publish();
    });
    let (_, other_peak) = print_memory("a list in which everything is new", &other);
    assert!(first_live + asked_live < 28.0, "{first_live} + {asked_live} MiB live");
    assert!(first_peak < 28.0 && same_peak < 1.5 && other_peak < 27.0, "{first_peak}, {same_peak}, {other_peak} MiB");
    assert!(same_live.abs() < 0.5, "an unchanged list keeps no memory: {same_live} MiB");
}

/// Returns the processor time of this thread, which does not depend on other threads.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or_default())
}

/// Returns the shortest time of several runs.
fn fastest(mut run: impl FnMut(usize)) -> Duration {
    let times = (0..9).map(|number| {
        let began = processor_time();
        run(number);
        processor_time().saturating_sub(began)
    });
    times.min().unwrap()
}

#[test]
fn publication_cost_depends_on_change() {
    let mut index = Index::default();
    listed(&mut index, 1, 1);
    let mut published = index.publish().unwrap();
    ask_everywhere(&published);

    let one_namespace = measure(|| {
        index.update(Update::Namespace(Change::Applied(read(namespace(7, 2)))));
        published = index.publish().unwrap();
    });
    println!("one namespace: {} allocations", one_namespace.count_total);
    let one_profile = measure(|| {
        index.update(Update::Cluster(Change::Applied(profile(7, 2))));
        published = index.publish().unwrap();
    });
    println!(
        "one profile: {} allocations, {:.2} MiB in all",
        one_profile.count_total,
        one_profile.bytes_total as f64 / MIB
    );

    // Measure a hundred changes, since the clock of processor time may be as coarse as a scheduler tick.
    let hundred_times = fastest(|number| {
        for time in 0..100 {
            let changed = read(namespace(9, 3 + 100 * number + time));
            index.update(Update::Namespace(Change::Applied(changed)));
            published = index.publish().unwrap();
        }
    });
    let namespace_time = hundred_times / 100;
    let profile_time = fastest(|number| {
        index.update(Update::Cluster(Change::Applied(profile(9, 3 + i64::try_from(number).unwrap()))));
        published = index.publish().unwrap();
    });
    let burst_time = fastest(|number| {
        for namespace_number in 0..1000 {
            let changed = namespace(namespace_number, 100 + number);
            index.update(Update::Namespace(Change::Applied(read(changed))));
        }
        published = index.publish().unwrap();
    });
    println!(
        "processor time until published: one namespace {namespace_time:?}, one profile {profile_time:?}, 1,000 namespaces {burst_time:?}"
    );
    assert_eq!(published.profiles().len(), PROFILES);
    assert!(one_namespace.count_total < 400, "{} allocations for one namespace", one_namespace.count_total);
    assert!(one_profile.count_total < 70_000, "{} allocations for one profile", one_profile.count_total);
}

/// Returns the metadata of a pod of a workload with ten pods, as the API server stores it.
fn audited_pod(number: usize, revision: &str) -> Value {
    let workload = number / 10;
    let record = json!({"version": 1, "profiles": [{"profile": "agent-0001", "revision": revision, "added":
        ["/spec/containers/agent-0001", "/spec/volumes/agent-config", "/metadata/annotations/example.com~1agent-0001"]}]});
    json!({"metadata": {
        "name": format!("service-{workload:05}-7c9d6f5b8-{number:05}"),
        "namespace": format!("team-{:03}", workload % 400),
        "uid": format!("029dc23e-3de8-41af-ab3c-{number:012}"),
        "creationTimestamp": "2026-11-21T20:00:00Z",
        "labels": {
            "app.kubernetes.io/name": format!("service-{workload:05}"), "app.kubernetes.io/part-of": "shop",
            "pod-template-hash": "7c9d6f5b8", "team": format!("team-{:03}", workload % 400),
        },
        "annotations": {
            "sidecars.example.com/agent-0001": "yes", "example.com/agent-0001": "on",
            "checksum/config": format!("{workload:064}"), "pillion.dev/injected": record.to_string(),
        },
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": true,
            "name": format!("service-{workload:05}-7c9d6f5b8"), "uid": format!("129dc23e-3de8-41af-ab3c-{workload:012}")}],
        "managedFields": [
            {"manager": "kube-controller-manager", "operation": "Update", "fieldsV1":
                {"f:metadata": {"f:annotations": {".": {}, "f:checksum/config": {}}, "f:labels": {".": {}, "f:team": {}}},
                 "f:spec": {"f:containers": {"k:{\"name\":\"app\"}": {".": {}, "f:image": {}, "f:name": {}}}}}},
            {"manager": "kubelet", "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": {}}},
        ],
    }})
}

/// Creates an audit of this many pods in 400 opted-in namespaces. Returns the audit, and the memory that the pods take.
fn audited(pods: usize) -> (Auditor, AllocationInfo) {
    let mut index = Index::default();
    for update in [Change::Restarted, Change::ListComplete] {
        index.update(Update::Namespaced(update));
    }
    index.update(Update::Cluster(Change::Restarted));
    let mut of_all = profile(1, 1);
    of_all.spec.as_object_mut().unwrap().remove("namespaceSelector");
    assert!(index.update(Update::Cluster(Change::Listed(of_all))).is_empty());
    index.update(Update::Cluster(Change::ListComplete));
    index.update(Update::Namespace(Change::Restarted));
    for number in 0..400 {
        let labels = [("pillion.dev/injection", "enabled")];
        let namespace = pillion_engine::snapshot::Namespace::new(labels, []);
        index.update(Update::Namespace(Change::Listed((format!("team-{number:03}").into(), namespace))));
    }
    index.update(Update::Namespace(Change::ListComplete));
    let snapshot = index.publish().unwrap();
    let revision = snapshot.profiles().iter().next().unwrap().revision().to_owned();
    let mut auditor = Auditor::new(snapshot, 0);
    auditor.update(Change::Restarted);
    let info = measure(|| {
        for number in 0..pods {
            // A fifth of the pods have an older revision.
            let revision = if number % 5 == 0 { "older" } else { &revision };
            let tape = OwnedTape::parse(audited_pod(number, revision).to_string()).unwrap();
            auditor.update(Change::Listed(audit::read(tape.root()).unwrap()));
        }
        auditor.update(Change::ListComplete);
    });
    assert_eq!(auditor.pods(), pods);
    (auditor, info)
}

#[test]
fn fifty_thousand_pods_take_few_mebibytes() {
    const PODS: usize = 50_000;
    println!("a pod's metadata: {} bytes", audited_pod(1, "r").to_string().len());
    let (mut auditor, info) = audited(PODS);
    let (live, peak) = print_memory("50,000 pods of the audit", &info);
    println!("{} bytes a pod", info.bytes_current / 50_000);
    assert!(live < 13.0 && peak < 13.5, "{live} MiB live, {peak} MiB at the peak");

    let facts = ClusterFacts::default();
    let mut report = None;
    let reported = measure(|| report = Some(auditor.report(&facts, 1_000)));
    print_memory("a report", &reported);
    let report = report.unwrap();
    assert_eq!((report.pods.outdated, report.pods.injected), (10_000, 40_000));
    assert_eq!(report.findings.len(), 1_000);
    let took = fastest(|_| {
        assert_eq!(auditor.report(&facts, 1_000).total(), 10_000);
    });
    println!("processor time of a report: {took:?}");

    // After a change of profiles, new results replace the old ones and take no additional memory.
    let snapshot = auditor.snapshot().with_profiles(ProfileSet::new([]));
    let again = measure(|| {
        auditor.set_snapshot(Arc::new(snapshot), 0);
        while auditor.judge(2_000) {}
    });
    let (more, peak) = print_memory("all judged again", &again);
    assert!(more < 1.0 && peak < 4.0, "{more} MiB more, {peak} MiB at the peak");
    assert_eq!(auditor.report(&facts, 0).pods.orphaned, 50_000);
}
