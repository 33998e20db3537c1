//! Tests properties of generated profiles with directives and expressions. A second call of the webhook (a second pass)
//! must change nothing. After changes by other webhooks, only the first further pass may change the pod.

#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "test helpers fail by panicking")]

use crate::common::{patched, respond, review, snapshot};
use pillion_engine::snapshot::Snapshot;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

fn name() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("app"), Just("web"), Just("proxy"), Just("data")]
}

fn variable() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("A"), Just("B"), Just("C"), Just("D"), Just("E")]
}

/// Generates the name of an environment variable in a pod. Templates may change or remove `Y` and `Z`, but never add
/// them.
fn pods_variable() -> impl Strategy<Value = &'static str> {
    prop_oneof![5 => variable(), 1 => Just("Y"), 1 => Just("Z")]
}

fn value() -> impl Strategy<Value = Json> {
    prop_oneof![
        Just(json!("x")),
        Just(json!("x,y")),
        Just(json!("k=1,l=2")),
        Just(json!("$(A),$(C)")),
        Just(json!("{\"j\":1}")),
        Just(json!("")),
    ]
}

/// Generates an environment variable in a pod.
fn entry() -> impl Strategy<Value = Json> {
    (pods_variable(), value(), 0..6).prop_map(|(name, value, kind)| match kind {
        0 => json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
        1 => json!({"name": name}),
        _ => json!({"name": name, "value": value}),
    })
}

fn unique(list: Vec<Json>) -> Json {
    let mut seen = std::collections::HashSet::new();
    let mut list = list;
    list.retain(|element| seen.insert(element["name"].to_string()));
    Json::Array(list)
}

fn container() -> impl Strategy<Value = Json> {
    (name(), prop::collection::vec(entry(), 0..5), any::<bool>(), any::<bool>()).prop_map(|(name, env, args, probe)| {
        let mut container = json!({"name": name, "image": "auto", "env": unique(env)});
        if args {
            container["args"] = json!(["--a", "--b"]);
        }
        if probe {
            container["livenessProbe"] = json!({"httpGet": {"path": "/", "port": 1}});
        }
        container
    })
}

prop_compose! {
    fn pod()(
        init in prop::collection::vec(container(), 0..3),
        containers in prop::collection::vec(container(), 1..3),
        tolerations in prop::collection::vec(prop_oneof![Just(json!({"key": "a"})), Just(json!({"key": "b"}))], 0..3),
        hold in any::<bool>(),
    ) -> Json {
        let Json::Array(all) = unique(init.iter().chain(&containers).cloned().collect()) else { unreachable!() };
        let count = init.len().min(all.len() - 1);
        let (init, containers) = all.split_at(count);
        json!({
            "metadata": {
                "annotations": {"example.com/hold": hold.to_string(), "old/x": "1"},
                "managedFields": [{"manager": "m", "fieldsV1": {"f:metadata": {"f:annotations": {}}}}],
            },
            "spec": {"initContainers": init, "containers": containers, "tolerations": tolerations},
        })
    }
}

/// Generates up to two directives for an element, as pairs of name and value.
fn directives() -> impl Strategy<Value = Vec<(&'static str, Json)>> {
    let one = prop_oneof![
        Just(("$when", json!("params.hold"))),
        Just(("$when", json!("!existing.hasValue()"))),
        Just(("$when", json!("existing.?value.orValue('') != 'x'"))),
        Just(("$forEach", json!("['p', 'q']"))),
        Just(("$conflict", json!("Merge"))),
        Just(("$conflict", json!("Keep"))),
        Just(("$conflict", json!("Replace"))),
        Just(("$conflict", json!("Fail"))),
        Just(("$conflict", json!("${params.hold ? 'Replace' : 'Keep'}"))),
        Just(("$position", json!("First"))),
        Just(("$position", json!({"before": "B"}))),
        Just(("$position", json!({"after": "${'C'}"}))),
        Just(("$join", json!({"separator": ","}))),
        Just(("$join", json!({"separator": ",", "key": "=", "prepend": "z=9"}))),
        Just(("$join", json!({"separator": ",", "valueFrom": "Compose"}))),
        Just(("$join", json!({"format": "Auto", "separator": ","}))),
    ];
    prop::collection::vec(one, 0..3)
}

fn with(mut element: Json, directives: Vec<(&'static str, Json)>) -> Json {
    for (name, value) in directives {
        element[name] = value;
    }
    if element.get("$join").is_some() {
        element.as_object_mut().unwrap().remove("$conflict");
    }
    element
}

/// Generates an environment variable in a template.
fn templated() -> impl Strategy<Value = Json> {
    let value = prop_oneof![
        value(),
        Just(json!("${containers.map(c, c.name).join(',')}")),
        Just(json!("${toJson({'n': containers.size()})}")),
        Just(json!("n=${params.hold}")),
        Just(json!("${object.metadata.annotations[?'none']}")),
    ];
    (variable(), value, directives()).prop_map(|(name, value, directives)| {
        let repeats = directives.iter().any(|(name, _)| *name == "$forEach");
        let name = if repeats { json!(format!("{name}_${{item}}")) } else { json!(name) };
        with(json!({"name": name, "value": value}), directives)
    })
}

fn env() -> impl Strategy<Value = Json> {
    let group =
        prop::collection::vec(templated(), 1..3).prop_map(|entries| json!({"$value": entries, "$when": "params.hold"}));
    let removal = prop_oneof![
        Just(json!({"$prune": "item.name == 'Z'"})),
        Just(
            json!({"$forEach": "existing", "$when": "has(item.value) && item.name == 'Y'", "$conflict": "Replace", "value": "each"})
        ),
        Just(json!("${[{'name': 'B', 'value': 'computed'}]}")),
    ];
    // Keep only the first variable of each name. The compiler rejects two variables with the same name, unless they
    // have conditions. In that case, they could contradict each other.
    prop::collection::vec(prop_oneof![6 => templated(), 1 => group, 1 => removal], 1..5).prop_map(|mut entries| {
        let mut seen = std::collections::HashSet::new();
        let mut is_new = |entry: &Json| entry.get("name").is_none_or(|name| seen.insert(name.to_string()));
        for entry in &mut entries {
            if let Some(group) = entry.get_mut("$value").and_then(Json::as_array_mut) {
                group.retain(&mut is_new);
            }
        }
        entries.retain(|entry| entry.get("$value").is_some() || is_new(entry));
        entries.retain(|entry| {
            *entry != json!("${[{'name': 'B', 'value': 'computed'}]}") || is_new(&json!({"name": "B"}))
        });
        Json::Array(entries)
    })
}

/// Puts `prefix` before the names of everything that `template` adds, also before names in computed lists.
fn renamed(template: &Json, prefix: &str) -> Json {
    let text = template.to_string();
    let text = text.replace("\"name\":\"", &format!("\"name\":\"{prefix}"));
    let text = text.replace("'name': '", &format!("'name': '{prefix}"));
    // The parameter keeps its name, because expressions read it.
    serde_json::from_str(&text.replace(&format!("{prefix}hold"), "hold")).unwrap()
}

prop_compose! {
    fn profile()(
        sidecar in prop::option::of((env(), any::<bool>(), any::<bool>())),
        patch in prop::option::of((env(), prop::sample::subsequence(vec!["App", "Init", "Sidecar", "Injected"], 1..4))),
        probes in any::<bool>(),
        tolerations in any::<bool>(),
        prune in any::<bool>(),
    ) -> Json {
        let mut spec = json!({
            "activation": "Always",
            "parameters": [{"name": "hold", "type": "boolean", "default": false, "annotation": "example.com/hold", "sources": ["Pod"]}],
            "template": {"metadata": {"labels": {"example.com/l": "${string(containers.size())}"}}},
        });
        if let Some((env, native, merge)) = sidecar {
            let mut container = json!({
                "name": "proxy", "env": env,
                "image": {"$value": "proxy:1", "$conflict": "${existing.orValue('') == 'auto' ? 'Replace' : 'Keep'}"},
            });
            if native {
                container["restartPolicy"] = json!("${params.hold ? 'Always' : null}");
            }
            container["$conflict"] = if merge { json!("Merge") } else { json!("Fail") };
            spec["template"]["spec"]["initContainers"] = json!([container]);
        }
        if let Some((env, types)) = patch {
            // If a patch set the same variables in the profile's own container, it would contradict the template.
            let env = if types.contains(&"Injected") {
                renamed(&env, "R")
            } else {
                env
            };
            let mut template = json!({"env": env, "args": {"$value": ["--b", "--c"], "$join": {}}});
            if probes {
                template["livenessProbe"] = json!({"$when": "existing.?httpGet.hasValue()", "$conflict": "Replace", "httpGet": {"port": 15020}});
            }
            spec["containerPatches"] = json!([{"name": "r", "match": {"types": types}, "template": template}]);
        }
        if tolerations {
            spec["template"]["spec"]["tolerations"] =
                json!([{"$forEach": "existing", "$when": "item.key == 'a'", "$conflict": "Replace", "effect": "NoExecute"}, {"$prune": "item.key == 'b'"}]);
        }
        if prune {
            spec["template"]["metadata"]["annotations"] = json!({"$prune": "key.startsWith('old/')", "example.com/new": "n"});
        }
        spec
    }
}

/// Generates changes by other webhooks between two passes. Each number is a change that [`edited`] makes.
fn edits() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0u8..7, 0..4)
}

fn edited(mut object: Json, edits: &[u8]) -> Json {
    for edit in edits {
        let spec = &mut object["spec"];
        let late = json!({"name": "late", "image": "l", "env": [{"name": "A", "value": "late"}]});
        let has_late = spec["containers"].as_array().unwrap().iter().any(|container| container["name"] == "late");
        match edit {
            0 if !has_late => spec["containers"].as_array_mut().unwrap().push(late),
            1 if !has_late => spec["containers"].as_array_mut().unwrap().insert(0, late),
            2 | 3 => {
                if let Some(first) = spec["containers"].get_mut(0).and_then(Json::as_object_mut) {
                    first.insert("image".into(), json!("mirror/x"));
                    if *edit == 3 {
                        first.remove("env");
                    }
                }
            }
            4 => object["metadata"]["labels"] = json!({"other": "1"}),
            5 => {
                spec["containers"].as_array_mut().unwrap().reverse();
            }
            6 => spec["priority"] = json!(7),
            _ => {}
        }
    }
    object
}

fn compiled(profiles: &[Json]) -> Snapshot {
    let profiles: Vec<_> = ["a", "b", "c"].into_iter().zip(profiles.iter().cloned()).collect();
    snapshot(&profiles)
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn second_pass_changes_nothing(pod in pod(), profile in profile()) {
        let snapshot = compiled(&[profile]);
        let (first, _) = respond(&review(&pod), &snapshot);
        let after = patched(&review(&pod), &first);
        let (second, _) = respond(&review(&after), &snapshot);
        let patch = second.patch.map(|patch| String::from_utf8(patch).unwrap());
        prop_assert_eq!(patch, None, "{}\n-> {}", pod, after);
    }

    #[test]
    fn settles_one_pass_after_changes_by_others(
        pod in pod(), profiles in prop::collection::vec(profile(), 1..3), edits in edits(),
    ) {
        // Two profiles that replace the same value would contradict each other.
        let profiles: Vec<Json> = profiles.iter().enumerate().map(|(number, profile)| {
            if number == 0 { profile.clone() } else { renamed(profile, &number.to_string()) }
        }).collect();
        let snapshot = compiled(&profiles);
        let (first, _) = respond(&review(&pod), &snapshot);
        let after = edited(patched(&review(&pod), &first), &edits);
        let (second, _) = respond(&review(&after), &snapshot);
        let then = patched(&review(&after), &second);
        let (third, _) = respond(&review(&then), &snapshot);
        let patch = third.patch.map(|patch| String::from_utf8(patch).unwrap());
        prop_assert_eq!(patch, None, "{}\n-> {}\n-> {}", pod, after, then);
    }
}
