//! Generates complete pods and templates.

use serde_json::{Value as Json, json};

use crate::oracle::parts::{Place, container, maybe, pod_security_context};
use pillion_testkit::dice::Dice;

const KEYS: [&str; 4] = ["app", "example.com/tier", "example.com/a", "example.com/b"];
const APPS: [&str; 4] = ["app", "web", "proxy", "log"];
const INITS: [&str; 3] = ["setup", "mesh", "agent"];
const VOLUMES: [&str; 5] = ["data", "config", "tmp", "token", "extra"];

/// What to generate: a pod as its author writes it, or a template.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Author,
    Template,
}

/// Generates the metadata and the spec of a pod, as its author would write them.
pub(crate) fn author(dice: &mut Dice) -> Json {
    let mut pod = write(dice, Role::Author, &[]);
    complete(&mut pod, &Json::Null);
    repeat(dice, &mut pod);
    pod
}

/// Repeats the first environment variable of some containers, as Kubernetes permits in a pod. The last entry is
/// effective.
fn repeat(dice: &mut Dice, pod: &mut Json) {
    for container in pod["spec"]["containers"].as_array_mut().into_iter().flatten() {
        if let Some(env) = container.get_mut("env").and_then(Json::as_array_mut)
            && !env.is_empty()
            && dice.chance(10)
        {
            let name = env[0]["name"].clone();
            env.push(json!({"name": name, "value": "again"}));
        }
    }
}

/// Generates the template of a profile for `pod`. The template may mount the pod's volumes.
pub(crate) fn template(dice: &mut Dice, pod: &Json) -> Json {
    let mut template = write(dice, Role::Template, &names(&pod["spec"]["volumes"]));
    complete(&mut template, pod);
    template
}

fn names(list: &Json) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|item| Some(item["name"].as_str()?.to_owned())).collect()
}

fn write(dice: &mut Dice, role: Role, known: &[String]) -> Json {
    let is_author = role == Role::Author;
    let mut spec = json!({});
    maybe!(dice, spec.volumes, 60, volumes(dice));
    let mut usable = names(&spec["volumes"]);
    usable.extend(known.iter().filter(|name| !usable.contains(name)).cloned().collect::<Vec<_>>());
    let mut apps = dice.some(&APPS, 3);
    if apps.is_empty() && is_author {
        apps.push("app");
    }
    if dice.chance(2) && !is_author {
        // The pod may have an init container with this name. In that case the engine and the API server must both
        // reject the template.
        apps.push(dice.pick(&INITS));
    }
    let mut inits = dice.some(&INITS, 2);
    inits.retain(|name| !apps.contains(name));
    if !apps.is_empty() {
        spec["containers"] = apps.into_iter().map(|name| container(dice, name, Place::App, &usable)).collect();
    }
    if !inits.is_empty() {
        spec["initContainers"] = inits.into_iter().map(|name| container(dice, name, Place::Init, &usable)).collect();
    }
    scheduling(dice, &mut spec);
    settings(dice, &mut spec);
    if dice.chance(20) {
        claims(dice, &mut spec);
    }
    let mut metadata = json!({});
    maybe!(dice, metadata.labels, 60, entries(dice));
    maybe!(dice, metadata.annotations, 60, entries(dice));
    json!({"metadata": metadata, "spec": spec})
}

/// Adds a handler to each probe that lacks one, unless the same container in `there` already has that probe.
fn complete(object: &mut Json, there: &Json) {
    for list in ["containers", "initContainers"] {
        let others = there["spec"][list].as_array();
        for container in object["spec"].get_mut(list).and_then(Json::as_array_mut).into_iter().flatten() {
            let other = others.into_iter().flatten().find(|other| other["name"] == container["name"]);
            for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
                let is_there = other.is_some_and(|other| other.get(name).is_some());
                if let Some(probe) = container.get_mut(name)
                    && !is_there
                    && !["exec", "httpGet", "tcpSocket", "grpc"].iter().any(|handler| probe.get(handler).is_some())
                {
                    probe["exec"] = json!({"command": ["true"]});
                }
            }
        }
    }
}

fn entries(dice: &mut Dice) -> Json {
    let keys = dice.some(&KEYS, 3);
    Json::Object(keys.into_iter().map(|key| (key.to_owned(), json!(dice.pick(&["1", "2", ""])))).collect())
}

fn volumes(dice: &mut Dice) -> Json {
    let mut volumes: Vec<_> = dice.some(&VOLUMES, 4).into_iter().map(|name| volume(dice, name)).collect();
    if dice.chance(15) {
        for name in ["block-a", "block-b"] {
            volumes.push(json!({"name": name, "persistentVolumeClaim": {"claimName": "disk"}}));
        }
    }
    Json::Array(volumes)
}

fn volume(dice: &mut Dice, name: &str) -> Json {
    let (kind, source) = match dice.below(10) {
        0 | 1 => {
            let mut source = json!({});
            maybe!(dice, source.medium, 40, "Memory");
            maybe!(dice, source.sizeLimit, 40, dice.pick(&["1Gi", "500Mi"]));
            ("emptyDir", source)
        }
        2 | 3 => {
            let mut source = json!({"name": dice.pick(&["one", "two"])});
            maybe!(dice, source.optional, 30, dice.chance(50));
            maybe!(dice, source.items, 30, items(dice));
            ("configMap", source)
        }
        4 => {
            let mut source = json!({"secretName": dice.pick(&["one", "two"])});
            maybe!(dice, source.defaultMode, 40, dice.pick(&[256, 420]));
            maybe!(dice, source.items, 30, items(dice));
            ("secret", source)
        }
        5 => ("projected", projected(dice)),
        6 => {
            let mut source = json!({"path": dice.pick(&["/var", "/run"])});
            maybe!(dice, source.type, 40, dice.pick(&["Directory", "DirectoryOrCreate"]));
            ("hostPath", source)
        }
        7 => {
            let mut source = json!({"claimName": dice.pick(&["one", "two"])});
            maybe!(dice, source.readOnly, 30, dice.chance(50));
            ("persistentVolumeClaim", source)
        }
        8 => {
            let path = dice.pick(&["metadata.labels", "metadata.annotations"]);
            ("downwardAPI", json!({"items": [{"path": "p", "fieldRef": {"fieldPath": path}}]}))
        }
        _ => {
            let mut source = json!({"driver": dice.pick(&["a.example.com", "b.example.com"])});
            maybe!(dice, source.readOnly, 30, dice.chance(50));
            maybe!(dice, source.volumeAttributes, 60, json!({dice.pick(&["k", "l"]): "v"}));
            ("csi", source)
        }
    };
    json!({"name": name, kind: source})
}

fn items(dice: &mut Dice) -> Json {
    let keys = dice.some(&["k", "l"], 2);
    keys.into_iter().map(|key| json!({"key": key, "path": format!("{key}/{}", dice.below(2))})).collect()
}

fn projected(dice: &mut Dice) -> Json {
    let token = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": 3600 + dice.below(2)}});
    let config = json!({"configMap": {"name": dice.pick(&["one", "two"])}});
    let mut source = json!({"sources": match dice.below(3) {
        0 => json!([token]),
        1 => json!([config]),
        _ => json!([config, token]),
    }});
    maybe!(dice, source.defaultMode, 30, 256);
    source
}

fn scheduling(dice: &mut Dice, spec: &mut Json) {
    maybe!(dice, spec.nodeSelector, 25, entries(dice));
    maybe!(dice, spec.tolerations, 25, tolerations(dice));
    maybe!(dice, spec.topologySpreadConstraints, 25, constraints(dice));
    maybe!(dice, spec.affinity, 25, affinity(dice));
    maybe!(dice, spec.schedulerName, 10, dice.pick(&["default-scheduler", "other"]));
    if dice.chance(20) {
        let names = dice.some(&["example.com/a", "example.com/b", "example.com/c"], 3);
        spec["schedulingGates"] = names.into_iter().map(|name| json!({"name": name})).collect();
    }
    if dice.chance(10) {
        let names = dice.some(&["example.com/ready", "example.com/other"], 2);
        spec["readinessGates"] = names.into_iter().map(|name| json!({"conditionType": name})).collect();
    }
}

fn tolerations(dice: &mut Dice) -> Json {
    let keys = dice.some(&["a", "b", "c"], 3);
    keys.into_iter()
        .map(|key| match dice.below(3) {
            0 => json!({"key": key, "operator": "Exists"}),
            1 => json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}),
            _ => json!({"key": key, "value": "v", "effect": dice.pick(&["NoSchedule", "PreferNoSchedule"])}),
        })
        .collect()
}

fn constraints(dice: &mut Dice) -> Json {
    let mut constraints: Vec<Json> = Vec::new();
    for key in dice.some(&["zone", "host"], 2) {
        let count = if dice.chance(10) { 2 } else { 1 };
        for when in ["DoNotSchedule", "ScheduleAnyway"].into_iter().rev().take(count) {
            let when = if dice.chance(90) { "DoNotSchedule" } else { when };
            if constraints.iter().any(|other| other["topologyKey"] == key && other["whenUnsatisfiable"] == when) {
                continue;
            }
            let mut constraint = json!({"maxSkew": dice.below(2) + 1, "topologyKey": key, "whenUnsatisfiable": when});
            maybe!(dice, constraint.labelSelector, 60, selector(dice));
            maybe!(dice, constraint.nodeTaintsPolicy, 20, dice.pick(&["Honor", "Ignore"]));
            constraints.push(constraint);
        }
    }
    Json::Array(constraints)
}

fn selector(dice: &mut Dice) -> Json {
    let mut selector = json!({});
    maybe!(dice, selector.matchLabels, 70, entries(dice));
    if dice.chance(30) {
        selector["matchExpressions"] = json!([{"key": dice.pick(&["x", "y"]), "operator": "Exists"}]);
    }
    selector
}

fn affinity(dice: &mut Dice) -> Json {
    let expression = |dice: &mut Dice| json!({"key": dice.pick(&["x", "y"]), "operator": "In", "values": ["1"]});
    let mut affinity = json!({});
    if dice.chance(60) {
        let mut node = json!({});
        if dice.chance(60) {
            node["requiredDuringSchedulingIgnoredDuringExecution"] =
                json!({"nodeSelectorTerms": [{"matchExpressions": [expression(dice)]}]});
        }
        if dice.chance(40) {
            node["preferredDuringSchedulingIgnoredDuringExecution"] =
                json!([{"weight": dice.below(2) + 1, "preference": {"matchExpressions": [expression(dice)]}}]);
        }
        affinity["nodeAffinity"] = node;
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        if dice.chance(30) {
            affinity[kind] = json!({"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": dice.pick(&["zone", "host"]), "labelSelector": selector(dice)},
            ]});
        }
    }
    affinity
}

fn settings(dice: &mut Dice, spec: &mut Json) {
    maybe!(dice, spec.serviceAccountName, 20, dice.pick(&["one", "two"]));
    maybe!(dice, spec.terminationGracePeriodSeconds, 20, dice.below(3) + 10);
    maybe!(dice, spec.restartPolicy, 10, dice.pick(&["Always", "OnFailure", "Never"]));
    maybe!(dice, spec.shareProcessNamespace, 15, dice.chance(50));
    maybe!(dice, spec.automountServiceAccountToken, 15, dice.chance(50));
    maybe!(dice, spec.enableServiceLinks, 15, dice.chance(50));
    maybe!(dice, spec.hostname, 10, dice.pick(&["one", "two"]));
    maybe!(dice, spec.runtimeClassName, 10, dice.pick(&["one", "two"]));
    maybe!(dice, spec.preemptionPolicy, 5, "Never");
    maybe!(dice, spec.securityContext, 30, pod_security_context(dice));
    if dice.chance(20) {
        let names = dice.some(&["one", "two", "three"], 3);
        spec["imagePullSecrets"] = names.into_iter().map(|name| json!({"name": name})).collect();
    }
    if dice.chance(20) {
        let addresses = dice.some(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], 3);
        let hosts = |dice: &mut Dice| dice.some(&["a.example.com", "b.example.com"], 2);
        spec["hostAliases"] = addresses.into_iter().map(|ip| json!({"ip": ip, "hostnames": hosts(dice)})).collect();
    }
    if dice.chance(15) {
        let mut dns = json!({});
        maybe!(dice, dns.nameservers, 60, dice.some(&["10.0.0.53", "10.0.1.53"], 2));
        maybe!(dice, dns.searches, 40, dice.some(&["a.example.com", "b.example.com"], 2));
        maybe!(dice, dns.options, 40, json!([{"name": dice.pick(&["ndots", "timeout"]), "value": "2"}]));
        spec["dnsConfig"] = dns;
    }
}

/// Adds resource claims to the spec, and uses them in its containers.
fn claims(dice: &mut Dice, spec: &mut Json) {
    let name_field = |dice: &mut Dice| dice.pick(&["resourceClaimName", "resourceClaimTemplateName"]);
    let claims: Vec<_> =
        ["gpu", "nic"].iter().map(|name| json!({"name": name, name_field(dice): dice.pick(&["x", "y"])})).collect();
    spec["resourceClaims"] = json!(claims);
    for container in spec.get_mut("containers").and_then(Json::as_array_mut).into_iter().flatten() {
        let names = dice.some(&["gpu", "nic"], 2);
        if !names.is_empty() {
            container["resources"]["claims"] = names.into_iter().map(|name| json!({"name": name})).collect();
        }
    }
}
