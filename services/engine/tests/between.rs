//! Tests changes by other webhooks before, between and after Pillion's passes, and invalid injection records.
//!
//! The API server calls webhooks one after the other, and may call some of them again. Each call of Pillion's webhook
//! is a pass. Between the passes, the admission plugins for `LimitRange`s and service accounts also change the pod. In
//! any order, the second pass after a change must not change the pod. Every pass must keep the changes of others, and
//! must not add anything twice.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "test helpers fail by panicking")]

use crate::common::{apply, review, snapshot, with_managed_fields};
use pillion_api::names::INJECTED_ANNOTATION;
use pillion_engine::decision::Notice;
use pillion_engine::review::{Decided, Endpoint, Facts, RecordTrust, Review};
use pillion_engine::snapshot::Snapshot;
use serde_json::{Map, Value as Json, json};

/// Returns a snapshot with profiles that are similar to those of real installations.
fn realistic() -> Snapshot {
    let files = [include_str!("cases/mesh.yaml"), include_str!("cases/vault.yaml")];
    let own = json!({"profiles": {"otel": {
        "activation": "Always",
        "template": {"spec": {"volumes": [{"name": "agent", "emptyDir": {}}]}},
        "containerPatches": [{
            "name": "apps", "match": {"types": ["App"]},
            "template": {
                "env": [
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    {"name": "OPTIONS", "value": "-javaagent:/a.jar", "$join": {"separator": " "}},
                    {"name": "ATTRIBUTES", "value": "node=$(NODE),c=${container.name}", "$join": {"separator": ",", "key": "="}},
                ],
                "volumeMounts": [{"name": "agent", "mountPath": "/agent"}],
            },
        }],
    }}});
    let files = files.into_iter().map(|file| serde_saphyr::from_str::<Json>(file).unwrap()).chain([own]);
    let files: Vec<Json> = files.collect();
    let profiles = files.iter().flat_map(|file| file["profiles"].as_object().unwrap());
    let profiles: Vec<_> = profiles.map(|(name, spec)| (name.as_str(), spec.clone())).collect();
    snapshot(&profiles)
}

fn decide(pod: &Json, snapshot: &Snapshot) -> Decided {
    let body = review(pod);
    let review = Review::parse(&body).unwrap();
    let facts =
        Facts { namespace: snapshot.namespace("team-a"), record_trust: RecordTrust::ManagedFields, ..Facts::default() };
    review.decide(Endpoint::Any, snapshot, &facts).unwrap()
}

fn pass(pod: &mut Json, snapshot: &Snapshot) -> Decided {
    let decided = decide(pod, snapshot);
    apply(pod, &decided);
    decided
}

/// Returns the pod with managedFields that list all its fields as the author's.
fn managed(pod: &Json) -> Json {
    with_managed_fields(pod.clone(), pod)
}

fn pods() -> Vec<Json> {
    let app = json!({
        "name": "app", "image": "i", "ports": [{"name": "http", "containerPort": 80}],
        "env": [{"name": "OPTIONS", "value": "-Xmx1g"}, {"name": "ATTRIBUTES", "value": "c=mine"}],
        "livenessProbe": {"httpGet": {"path": "/", "port": "http"}},
    });
    let native = json!({
        "sidecar.istio.io/nativeSidecar": "true", "vault.hashicorp.com/agent-inject-secret-db": "kv/db",
        "vault.hashicorp.com/secret-volume-path-db": "/db",
    });
    let overlay = json!({"name": "istio-proxy", "image": "auto", "securityContext": {"runAsUser": 5}});
    vec![
        json!({"metadata": {}, "spec": {"containers": [app]}}),
        json!({"metadata": {"annotations": native}, "spec": {"initContainers": [{"name": "setup"}], "containers": [app]}}),
        json!({"metadata": {}, "spec": {"containers": [app, overlay]}}),
        json!({"metadata": {"annotations": native}, "spec": {"containers": [app, overlay]}}),
    ]
}

fn containers(pod: &mut Json) -> impl Iterator<Item = &mut Json> {
    let lists = pod["spec"].as_object_mut().unwrap().iter_mut().filter(|(key, _)| key.ends_with("ontainers"));
    lists.filter_map(|(_, list)| list.as_array_mut()).flatten()
}

/// Adds an element at the start or the end of the list `list` in `parent`. Creates the list if it is missing.
fn push(parent: &mut Json, list: &str, element: Json, at_front: bool) {
    if !parent[list].is_array() {
        parent[list] = json!([]);
    }
    let list = parent[list].as_array_mut().unwrap();
    list.insert(if at_front { 0 } else { list.len() }, element);
}

/// A change by another webhook, with its description.
type Foreign = (&'static str, fn(&mut Json));

/// The changes by others. Each is made at most once to a pod.
const FOREIGN: [Foreign; 7] = [
    ("a webhook adds a container", |pod| {
        let late = json!({"name": "late", "image": "l", "livenessProbe": {"tcpSocket": {"port": 9}}});
        push(&mut pod["spec"], "containers", late, false);
    }),
    ("a webhook adds a container in front", |pod| {
        push(&mut pod["spec"], "initContainers", json!({"name": "early", "image": "e"}), true);
    }),
    ("a LimitRange sets resources", |pod| {
        for container in containers(pod).filter(|container| container.get("resources").is_none()) {
            container["resources"] = json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "100m"}});
        }
    }),
    ("a webhook rewrites images", |pod| {
        for container in containers(pod) {
            let image = container["image"].as_str().unwrap_or("none");
            container["image"] =
                json!(format!("mirror.example.com/{}", image.trim_start_matches("mirror.example.com/")));
        }
    }),
    ("a webhook adds variables", |pod| {
        for container in containers(pod) {
            push(container, "env", json!({"name": "FOREIGN", "value": "$(NODE)"}), true);
        }
    }),
    ("the service account's token is mounted", |pod| {
        push(&mut pod["spec"], "volumes", json!({"name": "token", "projected": {"sources": []}}), false);
        for container in containers(pod) {
            push(container, "volumeMounts", json!({"name": "token", "mountPath": "/token"}), false);
        }
    }),
    ("a webhook sets labels and turns the containers around", |pod| {
        pod["metadata"]["labels"]["foreign"] = json!("yes");
        pod["spec"]["containers"].as_array_mut().unwrap().reverse();
    }),
];

/// Asserts that the elements of every list have unique names, except in `volumeMounts`.
fn assert_unique(value: &Json, at: &str) {
    match value {
        Json::Object(members) => members.iter().for_each(|(key, value)| assert_unique(value, &format!("{at}/{key}"))),
        Json::Array(items) => {
            let mut names: Vec<_> = items.iter().filter_map(|item| item["name"].as_str()).collect();
            names.sort_unstable();
            let count = names.len();
            names.dedup();
            assert!(names.len() == count || at.ends_with("/volumeMounts"), "{at}: {items:#?}");
            for item in items {
                assert_unique(item, at);
            }
        }
        _ => {}
    }
}

/// Asserts that the final pod has the changes of all profiles, and the changes 0, 1, 4 and 5 of [`FOREIGN`] if they are
/// in `done`. `story` describes the case in error messages.
fn assert_whole(pod: &mut Json, done: &[usize], story: &str) {
    assert_unique(pod, "");
    let all: Vec<_> = containers(pod).map(|container| container.clone()).collect();
    let names: Vec<_> = all.iter().filter_map(|container| container["name"].as_str()).collect();
    for expected in ["app", "istio-proxy", "istio-init"] {
        assert_eq!(names.iter().filter(|name| **name == expected).count(), 1, "{story}: {names:?}");
    }
    let of = |name: &str| all.iter().find(|container| container["name"] == name).unwrap_or_else(|| panic!("{story}"));
    let env = |container: &Json, name: &str| {
        let mut entries = container["env"].as_array().unwrap().iter();
        entries.find(|entry| entry["name"] == name).map(|entry| entry["value"].as_str().unwrap_or_default().to_owned())
    };
    let app = of("app");
    assert_eq!(app["livenessProbe"]["httpGet"]["path"], "/app-health/app/livez", "{story}");
    assert_eq!(env(app, "OPTIONS").as_deref(), Some("-Xmx1g -javaagent:/a.jar"), "{story}");
    assert_eq!(env(app, "ATTRIBUTES").as_deref(), Some("c=mine,node=$(NODE)"), "{story}");
    let probers = env(of("istio-proxy"), "ISTIO_KUBE_APP_PROBERS").unwrap();
    assert!(probers.contains("/app-health/app/livez"), "{story}: {probers}");
    if done.contains(&0) {
        assert_eq!(of("late")["livenessProbe"]["httpGet"]["path"], "/app-health/late/livez", "{story}");
        assert!(probers.contains("/app-health/late/livez"), "{story}: {probers}");
        assert!(env(of("late"), "OPTIONS").is_some(), "{story}");
    }
    if done.contains(&1) {
        let _ = of("early");
    }
    if done.contains(&4) {
        assert_eq!(env(app, "FOREIGN").as_deref(), Some("$(NODE)"), "{story}");
    }
    if done.contains(&5) {
        assert!(pod["spec"]["volumes"].to_string().contains("\"token\""), "{story}");
    }
}

/// Tests all pairs of changes by others. There are three moments at which each of the two changes may be made. After
/// each moment, one pass may change the pod, and another one must not.
#[test]
fn passes_settle_after_changes_by_others() {
    let snapshot = realistic();
    let pods = pods();
    for first in 0..FOREIGN.len() {
        for second in 0..FOREIGN.len() {
            // Each pair is tested with one of the pods.
            let pod = &pods[(first + second) % pods.len()];
            for moments in 0..9 {
                let plan = [(moments % 3, first), (moments / 3, second)];
                let mut story = format!("{pod}");
                let mut object = managed(pod);
                let mut done = Vec::new();
                for moment in 0..3 {
                    for (_, foreign) in plan.iter().filter(|(when, _)| *when == moment) {
                        if !done.contains(foreign) {
                            let (what, change) = FOREIGN[*foreign];
                            change(&mut object);
                            done.push(*foreign);
                            story = format!("{story}\n{what}");
                        }
                    }
                    let decided = pass(&mut object, &snapshot);
                    let dropped = decided.decision.notices.contains(&Notice::RecordDropped);
                    assert!(!dropped, "{story}");
                    story = format!("{story}\na pass: {object}");
                    let again = pass(&mut object, &snapshot);
                    let patch = again.patch.as_deref().map(String::from_utf8_lossy);
                    assert_eq!(patch, None, "{story}\nanother pass changes the pod");
                }
                assert_whole(&mut object, &done, &story);
            }
        }
    }
}

/// Returns the pod without its injection record and managedFields.
fn without_record(mut pod: Json) -> Json {
    if let Some(annotations) = pod["metadata"]["annotations"].as_object_mut() {
        annotations.remove(INJECTED_ANNOTATION);
    }
    if pod["metadata"]["annotations"].as_object().is_some_and(Map::is_empty) {
        pod["metadata"].as_object_mut().unwrap().remove("annotations");
    }
    pod["metadata"].as_object_mut().unwrap().remove("managedFields");
    pod
}

fn record_of(added: &Json, replaced: &Json) -> String {
    let entry = json!({"profile": "mesh", "revision": "1", "added": added, "replaced": replaced});
    json!({"version": 1, "profiles": [entry]}).to_string()
}

/// Returns injection records that are malformed or contain wrong pointers or values.
fn strange() -> Vec<String> {
    let huge: Vec<_> = (0..2_000).map(|number| format!("/spec/containers/c{number}")).collect();
    let good = record_of(&json!(["/spec/containers/istio-proxy"]), &json!([]));
    let mut records: Vec<_> = (0..good.len()).step_by(7).map(|end| good[..end].to_owned()).collect();
    records.extend([
        record_of(&json!(["/spec/containers/app", "/spec/containers/istio-proxy", "/metadata"]), &json!([])),
        record_of(&json!(["/spec/containers/gone", "/spec/volumes/gone/emptyDir", "/a/b/c/d/e"]), &json!([])),
        record_of(&json!(["", "/", "//", "///", "/~", "/~2", "/~1~0~", "/spec/", "/spec//", "spec"]), &json!([])),
        record_of(&json!(["/spec/containers/x/../..", "/spec/containers/0", "/spec/containers/-"]), &json!([])),
        record_of(
            &json!(["/spec/containers/app/ports/80", "/spec/containers/app/ports/80,", "/spec/containers/app/ports/,"]),
            &json!([]),
        ),
        record_of(
            &json!([]),
            &json!([["", 1], ["/", 2], ["/spec", null], ["/metadata", []], ["/spec/containers", {}]]),
        ),
        record_of(&json!([]), &json!([["/spec/containers/app", 7], ["/spec/containers/app/image", {"deep": [1]}]])),
        record_of(
            &json!([]),
            &json!([["/spec/containers/new", {"name": "other"}], ["/spec/new/x", 1], ["/x~1y~0z", 1]]),
        ),
        record_of(&json!([1, null, [], {}]), &json!([1, [], [1], ["/spec"], {"a": 1}, ["/spec/x", 1, 2]])),
        record_of(&json!("x"), &json!({"a": "b"})),
        record_of(&json!(huge), &json!([])),
        r#"{"version":1,"version":2,"profiles":[]}"#.to_owned(),
        r#"{"version":1,"profiles":[{"profile":"mesh","profile":"vault","added":["/spec/volumes"]}]}"#.to_owned(),
        "[".repeat(10_000),
        "\u{0}".to_owned(),
    ]);
    records
}

#[test]
fn authored_record_changes_nothing() {
    let snapshot = realistic();
    for pod in pods() {
        let mut expected = managed(&pod);
        pass(&mut expected, &snapshot);
        for record in strange() {
            let mut forged = pod.clone();
            forged["metadata"]["annotations"][INJECTED_ANNOTATION] = json!(record);
            // According to the managedFields, the author wrote the record. A pod from a file that was never stored has
            // no managedFields.
            for managed_fields in [true, false] {
                let mut object = if managed_fields { managed(&forged) } else { forged.clone() };
                let decided = pass(&mut object, &snapshot);
                assert!(decided.decision.notices.contains(&Notice::RecordDropped), "{record}");
                assert_eq!(without_record(object.clone()), without_record(expected.clone()), "{record}");
                // The new injection record is valid.
                if managed_fields {
                    object["metadata"]["managedFields"] = managed(&pod)["metadata"]["managedFields"].clone();
                    let again = decide(&object, &snapshot);
                    assert_eq!(again.patch.as_deref().map(String::from_utf8_lossy), None, "{record}");
                }
            }
        }
    }
}

/// A trusted injection record that Pillion did not write does not remove the author's container `app`. The third pass
/// changes nothing.
#[test]
fn record_of_missing_paths_is_harmless() {
    let snapshot = realistic();
    for pod in pods() {
        for record in strange() {
            let mut object = managed(&pod);
            object["metadata"]["annotations"][INJECTED_ANNOTATION] = json!(record);
            pass(&mut object, &snapshot);
            assert!(object["spec"]["containers"].to_string().contains("\"app\""), "{record}: {object}");
            pass(&mut object, &snapshot);
            let third = decide(&object, &snapshot);
            assert_eq!(third.patch.as_deref().map(String::from_utf8_lossy), None, "{record}\n-> {object}");
        }
    }
}

/// Creating a copy of a running pod, including its injection record, adds nothing twice.
#[test]
fn copied_pod_has_no_duplicates() {
    let snapshot = realistic();
    for pod in pods() {
        let mut running = managed(&pod);
        pass(&mut running, &snapshot);
        running["metadata"].as_object_mut().unwrap().remove("managedFields");
        let mut copy = managed(&running);
        let decided = pass(&mut copy, &snapshot);
        assert!(decided.decision.notices.contains(&Notice::RecordDropped));
        assert_unique(&copy, "");
        let proxies = containers(&mut copy).filter(|container| container["name"] == "istio-proxy").count();
        assert_eq!(proxies, 1, "{copy}");
        let mut before = decided;
        for _ in 0..2 {
            before = pass(&mut copy, &snapshot);
        }
        assert_eq!(before.patch.as_deref().map(String::from_utf8_lossy), None, "{copy}");
    }
}

/// Values that a `LimitRange` sets in the author's overlay do not override the profile's values. The `LimitRange` may
/// set them before or after the first pass.
#[test]
fn limit_range_does_not_override_profile() {
    let spec = json!({
        "activation": "Always",
        "template": {"spec": {"containers": [{
            "name": "proxy", "$conflict": "Merge", "image": "p:1",
            "resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}},
        }]}},
    });
    let snapshot = snapshot(&[("p", spec)]);
    for own in [json!({}), json!({"limits": {"memory": "7Gi"}})] {
        let mut pod =
            json!({"metadata": {}, "spec": {"containers": [{"name": "app"}, {"name": "proxy", "image": "mine"}]}});
        if own != json!({}) {
            pod["spec"]["containers"][1]["resources"] = own.clone();
        }
        let fake = |pod: &mut Json| {
            for container in containers(pod) {
                for (kind, resource, value) in
                    [("limits", "cpu", "100m"), ("limits", "memory", "64Mi"), ("requests", "cpu", "50m")]
                {
                    if container["resources"][kind].get(resource).is_none() {
                        container["resources"][kind][resource] = json!(value);
                    }
                }
            }
        };
        let memory = own.pointer("/limits/memory").cloned().unwrap_or_else(|| json!("1Gi"));
        let expected = json!({"limits": {"cpu": "2", "memory": memory}, "requests": {"cpu": "1"}});
        for comes_first in [true, false] {
            let mut object = managed(&pod);
            if comes_first {
                fake(&mut object);
            }
            pass(&mut object, &snapshot);
            fake(&mut object);
            pass(&mut object, &snapshot);
            let proxy = &object["spec"]["containers"][1];
            assert_eq!((&proxy["image"], &proxy["resources"]), (&json!("mine"), &expected), "{comes_first} {object}");
            assert_eq!(decide(&object, &snapshot).patch, None, "{object}");
        }
    }
}
