//! Tests which fields a namespaced profile may change, and how much it may add.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::record::ChangeKind;

const SIDE: &str = "/spec/containers/1";

fn side(changes: &[(&str, Json)]) -> Json {
    with(pod(), &[(SIDE, with(json!({"name": "side", "image": "ghcr.io/team/side:1"}), changes))])
}

fn limit(case: &Case, before: &Json, after: &Json) -> Option<Limit> {
    case.exceeded(before, after).map(|(limit, _)| limit)
}

#[test]
fn allows_containers_volumes_and_metadata() {
    let after = with(
        side(&[("/volumeMounts", json!([{"name": "data", "mountPath": "/data"}]))]),
        &[
            ("/metadata/annotations/team.example.com~1y", json!("2")),
            ("/metadata/labels/team.example.com~1x", json!("2")),
            (
                "/spec/initContainers",
                json!([{"name": "init", "image": "a"}, {"name": "s", "image": "a", "restartPolicy": "Always"}]),
            ),
            ("/spec/volumes/1", json!({"name": "config", "configMap": {"name": "c"}})),
            ("/spec/containers/0/env", json!([{"name": "A", "value": "1"}])),
            ("/spec/containers/0/args", json!(["--x"])),
            ("/spec/containers/0/image", json!("ghcr.io/team/app:2")),
            ("/spec/containers/0/resources", json!({"limits": {"cpu": "1"}})),
            ("/spec/containers/0/volumeMounts", json!([{"name": "config", "mountPath": "/config"}])),
        ],
    );
    assert_eq!(Case::default().check(&pod(), &after), Ok(()));
    assert_eq!(Case::default().check(&pod(), &pod()), Ok(()));
}

#[test]
fn other_fields_cannot_change() {
    for (path, value) in [
        ("/spec/hostNetwork", json!(true)),
        ("/spec/serviceAccountName", json!("admin")),
        ("/spec/automountServiceAccountToken", json!(true)),
        ("/spec/nodeName", json!("n")),
        ("/spec/nodeSelector", json!({"a": "b"})),
        ("/spec/tolerations", json!([{"operator": "Exists"}])),
        ("/spec/imagePullSecrets", json!([{"name": "x"}])),
        ("/spec/securityContext", json!({"runAsUser": 1})),
        ("/spec/shareProcessNamespace", json!(true)),
        ("/spec/hostAliases", json!([{"ip": "1.2.3.4", "hostnames": ["x"]}])),
        ("/spec/priorityClassName", json!("high")),
        ("/spec/runtimeClassName", json!("x")),
        ("/spec/schedulingGates", json!([{"name": "x"}])),
        ("/spec/resourceClaims", json!([{"name": "x"}])),
        ("/spec/ephemeralContainers", json!([{"name": "x"}])),
        ("/spec/somethingNew", json!({})),
        ("/spec", json!(1)),
        ("/metadata/name", json!("other")),
        ("/metadata/namespace", json!("other")),
        ("/metadata/finalizers", json!(["x"])),
        ("/metadata/ownerReferences", json!([{"uid": "x"}])),
        ("/metadata/labels", json!("x")),
        ("/status", json!({"phase": "Running"})),
        ("/kind", json!("Node")),
    ] {
        let after = with(pod(), &[(path, value)]);
        assert!(matches!(limit(&Case::default(), &pod(), &after), Some(Limit::Field)), "{path}");
        assert_eq!(limit(&Case::default(), &after, &after), None, "{path}");
    }
}

#[test]
fn existing_parts_stay() {
    let before = with(
        pod(),
        &[
            ("/spec/containers/1", json!({"name": "other", "image": "a"})),
            (
                "/spec/initContainers",
                json!([{"name": "init", "image": "a"}, {"name": "proxy", "image": "a", "restartPolicy": "Always"}]),
            ),
        ],
    );
    for (path, value) in [
        ("/spec/containers", json!([hardened("app")])),
        ("/spec/initContainers", json!([])),
        ("/spec/initContainers", Json::Null),
        ("/spec/volumes", json!([])),
        // Renaming a container removes one container and adds another.
        ("/spec/containers/1/name", json!("another")),
        // A regular container becomes an init container.
        (
            "/spec",
            with(
                before["spec"].clone(),
                &[
                    ("/containers", json!([hardened("app")])),
                    ("/initContainers/2", json!({"name": "other", "image": "a"})),
                ],
            ),
        ),
    ] {
        assert_eq!(
            limit(&Case::default(), &before, &with(before.clone(), &[(path, value)])),
            Some(Limit::Removal),
            "{path}"
        );
    }
}

#[test]
fn native_sidecar_may_become_ordinary_container() {
    let proxy = |changes: &[(&str, Json)]| with(json!({"name": "proxy", "image": "ghcr.io/team/proxy:1"}), changes);
    let ordinary = |proxy: Json| with(pod(), &[(SIDE, proxy)]);
    let native = |proxy: Json| with(pod(), &[("/spec/initContainers", json!([proxy]))]);
    let always = ("/restartPolicy", json!("Always"));
    let case = Case::guarded(json!({"registries": ["ghcr.io/team"], "maxContainers": 0}));
    let plain = ordinary(proxy(&[]));
    assert_eq!(limit(&case, &plain, &native(proxy(std::slice::from_ref(&always)))), None);
    assert_eq!(limit(&case, &native(proxy(std::slice::from_ref(&always))), &plain), None);
    let evil = native(proxy(&[always.clone(), ("/image", json!("evil.example/x"))]));
    assert_eq!(limit(&case, &plain, &evil), Some(Limit::Registry));
    let privileged = native(proxy(&[always, ("/securityContext/privileged", json!(true))]));
    assert_eq!(limit(&case, &plain, &privileged), Some(Limit::PodSecurity(Control::PrivilegedContainers)));
}

#[test]
fn images_must_come_from_allowed_registries() {
    let case = Case::guarded(json!({"registries": ["ghcr.io/team", "docker.io/library"]}));
    for (image, allowed) in [
        (json!("ghcr.io/team/side:1"), true),
        (json!("nginx"), true),
        (json!("GHCR.IO/team/side"), true),
        (json!("docker.io.evil.example/x"), false),
        (json!("ghcr.io/teammate/side"), false),
        (json!("ghcr.io:8443/team/side"), false),
        (json!("team/side"), false),
        (json!(null), false),
        (json!(1), false),
    ] {
        let expected = if allowed { None } else { Some(Limit::Registry) };
        for place in ["/spec/containers/0", SIDE] {
            let mut after = if place == SIDE { side(&[]) } else { pod() };
            set(&mut after, &format!("{place}/image"), image.clone());
            assert_eq!(limit(&case, &pod(), &after), expected, "{place} {image}");
        }
        let init = with(pod(), &[("/spec/initContainers", json!([{"name": "i", "image": image}]))]);
        assert_eq!(limit(&case, &pod(), &init), expected, "{image}");
        // The author's own images may come from any registry.
        let before = with(pod(), &[("/spec/containers/0/image", image.clone())]);
        let after = with(before.clone(), &[("/spec/containers/0/env", json!([{"name": "A"}]))]);
        assert_eq!(limit(&case, &before, &after), None, "{image}");
    }
    let none = Case::guarded(json!({"registries": []}));
    let message = none.check(&pod(), &side(&[])).unwrap_err().to_string();
    assert!(message.starts_with("/spec/containers/side/image: \"ghcr.io/team/side:1\" is not from"), "{message}");
}

#[test]
fn volumes_are_of_kinds_that_are_allowed() {
    let token = json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}});
    let projected = |source: &str| json!({"projected": {"sources": [{"configMap": {}}, {source: {}}]}});
    let more = Case::guarded(json!({"volumeKinds": ["csi", "image", "projected"], "registries": ["ghcr.io"]}));
    let default = Case::default();
    for (case, source, expected) in [
        (&default, json!({"emptyDir": {}}), None),
        (&default, json!({"configMap": {}}), None),
        (&default, json!({"secret": {}}), None),
        (&default, json!({"downwardAPI": {}}), None),
        (&default, json!({"ephemeral": {}}), None),
        (&default, json!({"persistentVolumeClaim": {}}), None),
        (&default, json!({}), None),
        (&default, json!({"hostPath": {"path": "/"}}), Some(Limit::VolumeKind)),
        (&default, json!({"hostPath": null, "emptyDir": {}}), None),
        (&default, json!({"nfs": {}}), Some(Limit::VolumeKind)),
        (&default, json!({"csi": {}}), Some(Limit::VolumeKind)),
        (&default, json!({"image": {}}), Some(Limit::VolumeKind)),
        (&default, json!({"somethingNew": {}}), Some(Limit::VolumeKind)),
        (&default, json!({"projected": {"sources": []}}), None),
        (&default, projected("secret"), None),
        (&default, projected("downwardAPI"), None),
        (&default, projected("podCertificate"), Some(Limit::VolumeKind)),
        (&default, projected("clusterTrustBundle"), Some(Limit::VolumeKind)),
        (&default, token.clone(), Some(Limit::ServiceAccountToken)),
        (&more, token, Some(Limit::ServiceAccountToken)),
        (&more, projected("serviceAccountToken"), Some(Limit::VolumeKind)),
        (&more, json!({"projected": {"sources": [{"clusterTrustBundle": {}}]}}), None),
        (&more, json!({"csi": {}}), None),
        (&more, json!({"emptyDir": {}}), Some(Limit::VolumeKind)),
        (&more, json!({"image": {"reference": "ghcr.io/x"}}), None),
        (&more, json!({"image": {"reference": "evil.example/x"}}), Some(Limit::Registry)),
    ] {
        let volume = with(source.clone(), &[("/name", json!("v"))]);
        let added = with(pod(), &[("/spec/volumes/1", volume.clone())]);
        assert_eq!(limit(case, &pod(), &added), expected, "{source}");
        let before = with(pod(), &[("/spec/volumes/1", json!({"name": "v", "image": {"reference": "a"}}))]);
        let changed = with(before.clone(), &[("/spec/volumes/1", volume)]);
        assert_eq!(limit(case, &before, &changed), expected, "{source}");
        // A pod that already exceeds the limit may still be changed in other ways.
        let beside = with(added.clone(), &[("/metadata/annotations/x", json!("y"))]);
        assert_eq!(limit(case, &added, &beside), None, "{source}");
    }
}

#[test]
fn mounted_volumes_must_be_allowed_volumes() {
    let token = json!({"sources": [{"serviceAccountToken": {"path": "t"}}]});
    let before = with(
        pod(),
        &[
            ("/spec/volumes/1", json!({"name": "host", "hostPath": {"path": "/var/run"}})),
            ("/spec/volumes/2", json!({"name": "token", "projected": token})),
            ("/spec/volumes/3", json!({"name": "kube-api-access-x", "projected": token})),
            (
                "/spec/containers/0/volumeMounts",
                json!([{"name": "host", "mountPath": "/h", "readOnly": true}, {"name": "data", "mountPath": "/d"}]),
            ),
            // The API server adds this mount to every container before it calls the webhook.
            (
                "/spec/initContainers",
                json!([{"name": "i", "image": "a", "volumeMounts": [
                    {"name": "kube-api-access-x", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
                ]}]),
            ),
        ],
    );
    let token_folder = "/var/run/secrets/kubernetes.io/serviceaccount";
    for (name, folder, expected) in [
        ("data", "/data", None),
        ("host", "/host", Some(Limit::VolumeKind)),
        ("token", "/token", Some(Limit::ServiceAccountToken)),
        ("kube-api-access-x", token_folder, None),
        ("kube-api-access-x", "//var/run/secrets/kubernetes.io/./serviceaccount/", None),
        ("kube-api-access-x", "/token", Some(Limit::ServiceAccountToken)),
        ("token", token_folder, Some(Limit::ServiceAccountToken)),
        ("host", token_folder, Some(Limit::VolumeKind)),
    ] {
        let mount = json!({"name": name, "mountPath": folder});
        let in_new = with(before.clone(), &[(SIDE, json!({"name": "s", "volumeMounts": [mount]}))]);
        let in_old = with(before.clone(), &[("/spec/containers/0/volumeMounts/2", mount)]);
        for after in [in_new, in_old] {
            assert_eq!(limit(&Case::default(), &before, &after), expected, "{name} {folder}");
        }
    }
    for (path, value, expected) in [
        ("/spec/containers/0/volumeMounts/0/readOnly", json!(false), Some(Limit::VolumeKind)),
        ("/spec/containers/0/volumeMounts/1/name", json!("host"), Some(Limit::VolumeKind)),
        ("/spec/containers/0/volumeMounts/1/readOnly", json!(true), None),
        ("/spec/containers/0/volumeMounts", json!([]), None),
        ("/spec/containers/0/volumeDevices", json!([{"name": "data", "devicePath": "/dev/x"}]), Some(Limit::RawDevice)),
        (
            SIDE,
            json!({"name": "s", "volumeDevices": [{"name": "data", "devicePath": "/dev/x"}]}),
            Some(Limit::RawDevice),
        ),
    ] {
        assert_eq!(limit(&Case::default(), &before, &with(before.clone(), &[(path, value)])), expected, "{path}");
    }
}

#[test]
fn reserved_keys_cannot_change() {
    let case = Case::guarded(json!({"reservedDomains": ["platform.example.com"], "reservedKeys": ["app", "tier"]}));
    for (key, reserved) in [
        ("app", true),
        ("tier", true),
        ("pillion.dev~1profiles", true),
        ("app.kubernetes.io~1name", true),
        ("x.kubernetes.io~1", true),
        ("k8s.io~1x", true),
        ("a.platform.example.com~1x", true),
        ("notkubernetes.io~1x", false),
        ("team.example.com~1y", false),
        ("version", false),
    ] {
        for map in ["labels", "annotations"] {
            let place = format!("/metadata/{map}/{key}");
            let without = with(pod(), &[(&place, Json::Null)]);
            let one = with(pod(), &[(&place, json!("1"))]);
            let two = with(pod(), &[(&place, json!("2"))]);
            for (before, after) in [(&without, &one), (&one, &two), (&one, &without)] {
                let expected = reserved.then(|| (Limit::ReservedKey, place.clone()));
                assert_eq!(case.exceeded(before, after), expected, "{place}");
            }
        }
    }
}

#[test]
fn platform_changes_are_protected() {
    let proxy = json!({"name": "proxy", "image": "a", "volumeMounts": [{"name": "data", "mountPath": "/d"}]});
    let before = with(
        pod(),
        &[
            (SIDE, proxy),
            ("/metadata/annotations/example.com~1a", json!("1")),
            ("/spec/containers/0/env", json!([{"name": "A", "value": "1"}, {"name": "OWN", "value": "1"}])),
            ("/spec/containers/0/volumeMounts", json!([{"name": "data", "mountPath": "/agent"}])),
        ],
    );
    let case = Case {
        protected: Protected::new([
            ("/spec/containers/proxy", ChangeKind::Added),
            ("/spec/volumes/data", ChangeKind::Added),
            ("/metadata/annotations/example.com~1a", ChangeKind::Added),
            ("/spec/containers/app/env/A", ChangeKind::Added),
            ("/spec/containers/app/env/PRUNED", ChangeKind::Set),
            ("/spec/containers/app/env/LOST", ChangeKind::Added),
            ("/spec/containers/app/securityContext/runAsNonRoot", ChangeKind::Set),
            ("/spec/containers/app/volumeMounts/~1agent", ChangeKind::Added),
        ]),
        ..Case::default()
    };
    for (path, value, expected) in [
        ("/spec/containers/1/env", json!([{"name": "X"}]), Some(Limit::Protected)),
        ("/spec/containers/1/image", json!("b"), Some(Limit::Protected)),
        ("/spec/containers", json!([before["spec"]["containers"][0]]), Some(Limit::Protected)),
        ("/spec/volumes/0", json!({"name": "data", "secret": {}}), Some(Limit::Protected)),
        ("/spec/volumes", json!([]), Some(Limit::Protected)),
        ("/metadata/annotations/example.com~1a", json!("2"), Some(Limit::Protected)),
        ("/metadata/annotations", Json::Null, Some(Limit::Protected)),
        ("/spec/containers/0/env/0/value", json!("2"), Some(Limit::Protected)),
        ("/spec/containers/0/env", json!([{"name": "OWN", "value": "1"}]), Some(Limit::Protected)),
        ("/spec/containers/0/securityContext/runAsNonRoot", Json::Null, Some(Limit::Protected)),
        ("/spec/containers/0/volumeMounts/0/readOnly", json!(true), Some(Limit::Protected)),
        ("/spec/containers/0/volumeMounts/1", json!({"name": "data", "mountPath": "/agent/lib"}), Some(Limit::Mount)),
        ("/spec/containers/0/volumeMounts/1", json!({"name": "data", "mountPath": "/agent/"}), Some(Limit::Mount)),
        ("/spec/containers/0/volumeMounts/1", json!({"name": "data", "mountPath": "//x/../agent"}), Some(Limit::Mount)),
        ("/spec/containers/0/volumeMounts/1", json!({"name": "data", "mountPath": "/agents"}), None),
        ("/spec/containers/0/env/1/value", json!("2"), None),
        ("/spec/containers/0/env/2", json!({"name": "NEW"}), None),
        ("/spec/containers/0/env/2", json!({"name": "LOST"}), None),
        ("/spec/containers/0/env/2", json!({"name": "PRUNED"}), Some(Limit::Protected)),
    ] {
        assert_eq!(limit(&case, &before, &with(before.clone(), &[(path, value)])), expected, "{path}");
    }
}

#[test]
fn additions_stay_within_numeric_limits() {
    let case = Case::guarded(json!({
        "maxContainers": 2, "maxVolumes": 1, "maxEnv": 3, "maxMounts": 2, "maxKeys": 2, "maxBytes": 2000,
    }));
    let containers = |count: usize| {
        let added: Vec<_> = (0..count).map(|i| json!({"name": format!("s{i}"), "image": "a"})).collect();
        with(pod(), &[("/spec/initContainers", json!(added))])
    };
    let volumes = |count: usize| {
        let all: Vec<_> = std::iter::once("data".to_owned()).chain((0..count).map(|i| format!("v{i}"))).collect();
        with(pod(), &[("/spec/volumes", all.iter().map(|name| json!({"name": name, "emptyDir": {}})).collect())])
    };
    let env = |old: usize, new: usize| {
        let entries = |count: usize| -> Json { (0..count).map(|i| json!({"name": format!("E{i}")})).collect() };
        with(side(&[("/env", entries(new))]), &[("/spec/containers/0/env", entries(old))])
    };
    let mounts = |old: usize, new: usize| {
        let entries = |count: usize| -> Json {
            (0..count).map(|i| json!({"name": "data", "mountPath": format!("/{i}")})).collect()
        };
        with(side(&[("/volumeMounts", entries(new))]), &[("/spec/containers/0/volumeMounts", entries(old))])
    };
    let keys = |labels: usize, annotations: usize| {
        let map = |count: usize| -> Json {
            (0..count).map(|i| (format!("k{i}"), json!(""))).collect::<serde_json::Map<_, _>>().into()
        };
        let mut labels = map(labels);
        labels.as_object_mut().unwrap().extend(pod()["metadata"]["labels"].as_object().unwrap().clone());
        with(pod(), &[("/metadata/labels", labels), ("/metadata/annotations", map(annotations))])
    };
    let bytes = |count: usize| with(pod(), &[("/spec/containers/0/args", json!(["x".repeat(count)]))]);
    for (fits, exceeds, expected) in [
        (containers(2), containers(3), Limit::Containers),
        (volumes(1), volumes(2), Limit::Volumes),
        (env(2, 1), env(2, 2), Limit::Env),
        (mounts(1, 1), mounts(2, 1), Limit::Mounts),
        (keys(1, 1), keys(1, 2), Limit::Keys),
        (bytes(1900), bytes(2100), Limit::Bytes),
    ] {
        assert_eq!(limit(&case, &pod(), &fits), None, "{expected:?}");
        assert_eq!(limit(&case, &pod(), &exceeds), Some(expected), "{expected:?}");
        // Existing elements are not counted.
        assert_eq!(limit(&case, &exceeds, &exceeds), None, "{expected:?}");
    }
}

#[test]
fn limit_checks_take_linear_time() {
    let large = |count: usize| {
        let env: Vec<_> = (0..count).map(|i| json!({"name": format!("E{i}"), "value": "x"})).collect();
        let containers: Vec<_> =
            (0..count).map(|i| with(hardened(&format!("c{i}")), &[("/env", json!(&env[..5.min(count)]))])).collect();
        with(
            pod(),
            &[("/spec/containers", json!(containers)), ("/spec/initContainers", json!([{"name": "i", "env": env}]))],
        )
    };
    let before = large(10_000);
    let after = with(before.clone(), &[("/spec/containers/10000", hardened("side"))]);
    let start = Instant::now();
    assert_eq!(Case::default().check(&before, &after), Ok(()));
    // Quadratic time would take minutes.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

/// Generates arbitrary JSON that contains the field names that the limits check.
fn anything() -> impl Strategy<Value = Json> {
    let names = [
        "metadata",
        "labels",
        "annotations",
        "spec",
        "containers",
        "initContainers",
        "volumes",
        "name",
        "image",
        "env",
        "volumeMounts",
        "mountPath",
        "securityContext",
        "capabilities",
        "add",
        "drop",
        "projected",
        "sources",
        "ports",
        "hostPort",
        "livenessProbe",
        "httpGet",
        "host",
        "seccompProfile",
        "type",
        "restartPolicy",
        "a/b~c",
    ];
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        proptest::sample::select(&["", "a", "Always", "ALL", "/", "../x", "ü"][..]).prop_map(Json::from),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
            proptest::collection::vec((proptest::sample::select(names.to_vec()), inner), 0..6)
                .prop_map(|fields| fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// The check does not panic for any two objects, and an unchanged object exceeds no limit.
    #[test]
    fn check_accepts_any_unchanged_object(left in anything(), right in anything()) {
        let case = Case::guarded(json!({"registries": ["ghcr.io"], "maxContainers": 1}));
        for (before, after) in [(&left, &right), (&right, &left)] {
            let pods = [before, after].map(|spec| json!({"metadata": spec["metadata"], "spec": spec}));
            let answer = case.check(&pods[0], &pods[1]);
            prop_assert!(answer.is_ok() || pods[0] != pods[1]);
            // Each violation contains a path and a message.
            if let Err(excess) = answer {
                prop_assert!(excess.place.starts_with('/') && !excess.message.is_empty(), "{}", excess);
            }
            prop_assert_eq!(case.check(&pods[0], &pods[0]), Ok(()));
        }
    }
}
