//! The profiles and the generated pods of the test.

use std::collections::BTreeMap;

use pillion_testkit::dice::Dice;
use serde_json::{Value as Json, json};

/// The namespaces, each with its labels and annotations. All of them except `plain` are opted in.
pub(super) fn namespaces() -> Json {
    let namespace = |name: &str, labels: Json, annotations: Json| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels, "annotations": annotations}});
    let enabled = json!({"pillion.dev/injection": "enabled"});
    let gold = json!({"pillion.dev/injection": "enabled", "tier": "gold"});
    let items = json!([
        namespace("shop", enabled.clone(), json!({})),
        namespace("bank", gold, json!({})),
        namespace(
            "asking",
            enabled.clone(),
            json!({"pillion.dev/profiles": "asked", "inject.example.com/logger": "true"})
        ),
        namespace("plain", json!({}), json!({})),
        namespace("tenant", enabled, json!({})),
    ]);
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// The namespaces of the pods to which only profiles of the safety net apply. None of them has profiles of its own.
const COVERED: [&str; 4] = ["shop", "bank", "asking", "plain"];

/// The number of profiles that the policy covers.
pub(super) const COVERED_PROFILES: u64 = 7;

/// The profiles. The policy covers all except `patches` and `tenant/own`.
pub(super) fn profiles() -> Json {
    let cluster = |name: &str, mut spec: Json| {
        spec["safetyNet"] = json!(true);
        json!({"apiVersion": "pillion.dev/v1alpha1", "kind": "ClusterInjectionProfile", "metadata": {"name": name}, "spec": spec})
    };
    let items = json!([
        cluster("labels", json!({"order": 10, "template": {"metadata": {
            "labels": {"team": "platform", "example.com/net": "yes"},
            "annotations": {"example.com/note": "it's \"here\"\\", "example.com/name": "${object.metadata.name}-${params.suffix}"},
        }}, "parameters": [{"name": "suffix", "type": "string", "default": "x"}]})),
        // The expression fails for a pod without the label `app`, so the engine skips the profile.
        cluster("strict", json!({"order": 15, "template": {"metadata": {"annotations": {"example.com/app": "${object.metadata.labels['app']}"}}}})),
        cluster("proxy", json!({
            "order": 20,
            "matchConditions": [{"name": "mesh", "expression": "variables.mesh != 'off'"}],
            "variables": [{"name": "mesh", "expression": "object.metadata.?labels[?'mesh'].orValue('on')"}],
            "template": {
                "metadata": {"labels": {"proxy": "on"}},
                "spec": {
                    "initContainers": [{
                        "$position": "First", "name": "proxy", "image": "proxy:1", "restartPolicy": "Always",
                        "args": ["--mode=${variables.mesh}", "--port=8080"], "ports": [{"containerPort": 8080, "name": "proxy"}],
                        "startupProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 2},
                        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                        "securityContext": {"runAsNonRoot": true, "capabilities": {"drop": ["ALL"]}},
                    }],
                    "volumes": [{"name": "tmp", "emptyDir": {}}],
                },
            },
        })),
        cluster("logger", json!({
            "order": 30,
            "requestedBy": {"annotation": "inject.example.com/logger", "values": ["logger:v1"]},
            "template": {"spec": {
                "containers": [{
                    "name": "logger", "image": "logger:1",
                    "env": [
                        {"name": "APP", "value": "${object.metadata.?labels[?'app'].orValue('none')}"},
                        {"name": "PATHS", "value": "$(APP)/logs"},
                        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    ],
                    "resources": {"requests": {"cpu": "10m"}, "limits": {"memory": "64Mi"}},
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                }],
                "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "logger-config", "configMap": {"name": "logger", "optional": true}}],
            }},
        })),
        cluster("proxy-two", json!({"order": 40, "template": {"spec": {"initContainers": [
            {"$position": "First", "name": "second", "image": "second:1", "restartPolicy": "Always"},
            {"name": "last", "image": "last:1"},
        ]}}})),
        cluster("gold", json!({
            "order": 50, "namespaceSelector": {"matchLabels": {"tier": "gold"}},
            "objectSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["b"]}]},
            "template": {"spec": {"initContainers": [{"name": "setup", "image": "setup:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}},
        })),
        // For a pod with a deadline, the result of the expression is not a string.
        cluster("asked", json!({"order": 60, "activation": "Requested", "template": {"metadata": {"annotations": {
            "asked": "${object.spec.?activeDeadlineSeconds.orValue('yes')}",
        }}}})),
        cluster("patches", json!({
            "order": 25, "requestedBy": {"label": "patch"},
            "containerPatches": [{"name": "all", "template": {"env": [{"name": "PATCHED", "value": "yes"}]}}],
        })),
        {"apiVersion": "pillion.dev/v1alpha1", "kind": "InjectionProfile", "metadata": {"name": "own", "namespace": "tenant"}, "spec": {
            "activation": "Always",
            "template": {"metadata": {"labels": {"tenant": "yes"}}, "spec": {"containers": [{"name": "own", "image": "own:1"}]}},
        }},
    ]);
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// Returns a pod to which the policy adds all profiles in [`limited`], in the namespace `asking`.
pub(super) fn ordinary() -> Json {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"},
        "spec": {"containers": [{"name": "web", "image": "web:1"}]},
    })
}

/// Returns pods to which the policy does not add a profile, because it cannot do what a replica would do, each with the
/// name of the profile.
pub(super) fn limited() -> [(Json, &'static str); 5] {
    let pod = |part: &str, field: &str, value: Json| {
        let mut pod = ordinary();
        pod[part][field] = value;
        pod
    };
    [
        (pod("spec", "resources", json!({"limits": {"cpu": "1"}})), "logger"),
        (pod("metadata", "annotations", json!({"pillion.dev/profiles": "proxy@f"})), "proxy"),
        (pod("metadata", "annotations", json!({"pillion.dev/injected": "junk"})), "labels"),
        (pod("spec", "initContainers", json!([{"name": "last", "image": "last:1"}])), "proxy-two"),
        (pod("spec", "activeDeadlineSeconds", json!(5)), "asked"),
    ]
}

/// A pseudo-random generator of pods. The same seed always results in the same pods.
pub(super) struct Generator(Dice);

impl Generator {
    pub(super) const fn new(seed: u64) -> Self {
        Self(Dice::new(seed))
    }

    /// Returns a namespace and a pod. With `is_covered`, only profiles of the safety net apply to the pod, and the
    /// policy changes it in the same way as the engine.
    pub(super) fn pod(&mut self, number: usize, is_covered: bool) -> (&'static str, Json) {
        let namespace = if is_covered { self.0.pick(&COVERED) } else { self.0.pick(&["shop", "bank", "tenant"]) };
        let (labels, annotations) = (self.labels(is_covered), self.annotations(is_covered));
        // The API server generates names only after admission, so the expression of `labels` fails for these pods.
        let has_name = !number.is_multiple_of(10);
        let mut metadata =
            if has_name { json!({"name": format!("pod-{number}")}) } else { json!({"generateName": "pod-"}) };
        if !labels.is_empty() {
            metadata["labels"] = json!(labels);
        }
        if !annotations.is_empty() {
            metadata["annotations"] = json!(annotations);
        }
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": self.spec(is_covered)});
        (namespace, pod)
    }

    fn labels(&mut self, is_covered: bool) -> BTreeMap<&'static str, &'static str> {
        let mut labels = BTreeMap::new();
        let mut add = |generator: &mut Self, percent, key, values: &[&'static str]| {
            if generator.0.chance(percent) {
                labels.insert(key, generator.0.pick(values));
            }
        };
        add(self, 60, "app", &["a", "b"]);
        add(self, 30, "mesh", &["off", "on", "strict"]);
        add(self, 20, "team", &["own", "platform"]);
        add(self, 10, "pillion.dev/inject", &["false", "true"]);
        add(self, 10, "proxy", &["mine"]);
        if !is_covered {
            add(self, 50, "patch", &["true", "no"]);
        }
        labels
    }

    fn annotations(&mut self, is_covered: bool) -> BTreeMap<&'static str, &'static str> {
        let mut annotations = BTreeMap::new();
        let mut add = |generator: &mut Self, percent, key, values: &[&'static str]| {
            if generator.0.chance(percent) {
                annotations.insert(key, generator.0.pick(values));
            }
        };
        let values = ["true", "YES", "no", "", "logger", "Logger:V1", "other", "no,true"];
        add(self, 60, "inject.example.com/logger", &values);
        add(
            self,
            30,
            "pillion.dev/profiles",
            &["asked", "-proxy", "-logger, asked", "-labels,-strict", "nobody", "asked,-asked"],
        );
        add(self, 10, "example.com/note", &["mine"]);
        add(self, 20, "example.com/kept", &["as it is"]);
        if !is_covered {
            add(self, 20, "pillion.dev/profiles", &["labels@0000", "-proxy@1", "proxy@f"]);
            let forged = r#"{"version":1,"profiles":[{"profile":"labels","revision":"0","added":["/spec/containers/web"],"by":"policy"}]}"#;
            add(self, 20, "pillion.dev/injected", &[forged, "junk"]);
        }
        annotations
    }

    fn spec(&mut self, is_covered: bool) -> Json {
        let container = |name: &str| json!({"name": name, "image": format!("{name}:1")});
        let mut containers = vec![container("web")];
        for (percent, name) in [(30, "other"), (8, "logger"), (4, "last")] {
            if self.0.chance(percent) {
                let at = self.0.below(containers.len() + 1);
                containers.insert(at, container(name));
            }
        }
        let names: Vec<_> = containers.iter().map(|container| container["name"].clone()).collect();
        let mut init = Vec::new();
        for (percent, name) in [(30, "init"), (8, "proxy"), (4, "second")] {
            if self.0.chance(percent) && !names.contains(&json!(name)) {
                init.push(container(name));
            }
        }
        let mut volumes = Vec::new();
        if self.0.chance(50) {
            volumes.push(json!({"name": "data", "emptyDir": {}}));
        }
        match self.0.below(8) {
            0 => volumes.push(json!({"name": "tmp", "emptyDir": {}})),
            1 => volumes.push(json!({"name": "tmp", "configMap": {"name": "mine"}})),
            2 => volumes.insert(0, json!({"name": "logger-config", "emptyDir": {"medium": "Memory"}})),
            _ => {}
        }
        let mut spec = json!({"containers": containers});
        if !init.is_empty() {
            spec["initContainers"] = json!(init);
        }
        if !volumes.is_empty() {
            spec["volumes"] = json!(volumes);
        }
        if self.0.chance(5) {
            spec["nodeSelector"] = json!({"kubernetes.io/os": self.0.pick(&["windows", "linux"])});
        }
        if !is_covered && self.0.chance(20) {
            spec["resources"] = json!({"limits": {"cpu": "1"}});
        }
        spec
    }
}
