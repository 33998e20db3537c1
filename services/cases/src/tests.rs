//! Tests of cases that pass, and of the differences of cases that fail.

use serde_json::{Value as Json, json};

use super::*;
use pillion_engine::profile::ProfileName;

fn profiles(specs: &Json) -> Profiles {
    let specs = specs.as_object().unwrap().clone();
    Profiles::new(specs.into_iter().map(|(name, spec)| {
        let named = match name.split_once('/') {
            Some((namespace, name)) => ProfileName::namespaced(namespace, name),
            None => ProfileName::cluster(name.as_str()),
        };
        (named, serde_json::from_value(spec).unwrap())
    }))
}

/// Returns a profile that adds a container with a configurable image.
fn helper() -> Profiles {
    profiles(&json!({"helper": {
        "activation": "Always",
        "parameters": [{"name": "image", "type": "string", "default": "helper:1"}],
        "template": {"spec": {"containers": [{"name": "helper", "image": "${params.image}", "env": [{"name": "A", "value": "{\"b\": 1}"}]}]}},
    }}))
}

fn case(value: Json) -> Case {
    let mut case = value;
    case.as_object_mut().unwrap().entry("name").or_insert_with(|| "a case".into());
    let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "app", "image": "app:1"}]}});
    case.as_object_mut().unwrap().entry("object").or_insert_with(|| pod);
    serde_json::from_value(case).unwrap()
}

fn differences(profiles: &Profiles, value: Json) -> Vec<String> {
    let verdict = run(&case(value), profiles).unwrap();
    verdict.differences.iter().map(ToString::to_string).collect()
}

fn unusable(profiles: &Profiles, value: Json) -> String {
    run(&case(value), profiles).unwrap_err().to_string()
}

#[test]
fn expected_result_passes() {
    let result = json!({"metadata": {"name": "a"}, "spec": {"containers": [
        {"name": "app", "image": "app:1"},
        {"name": "helper", "image": "helper:2", "env": [{"name": "A", "value": "{\"b\": 1}"}]},
    ]}});
    let set = json!({"helper": {"image": "helper:2"}});
    let case = json!({
        "result": result, "parameters": set, "reasons": {"helper": "injected"},
        "part": {"spec": {"containers": [{}, {"name": "helper"}]}}, "env": {"helper": {"A": {"b": 1}, "B": null}},
    });
    assert_eq!(differences(&helper(), case), Vec::<String>::new());
}

#[test]
fn reports_each_unexpected_result() {
    let case = json!({
        "part": {"spec": {"containers": [{}, {"image": "helper:2"}]}},
        "env": {"helper": {"A": {"b": 2}, "C": "x"}, "nobody": {"A": "x"}},
        "messages": ["something"], "denied": "no", "reasons": {"helper": "match_condition", "other": "injected"},
    });
    assert_eq!(
        differences(&helper(), case),
        [
            "denial\n  expected  \"no\"\n  found     (nothing)",
            "spec.containers[1].image\n  expected  \"helper:2\"\n  found     \"helper:1\"",
            "variable helper.A.b\n  expected  2\n  found     1",
            "variable helper.C\n  expected  \"x\"\n  found     (nothing)",
            "variable nobody\n  expected  \"a container with this name\"\n  found     (nothing)",
            "message to the author\n  expected  \"something\"\n  found     (nothing)",
            "reason of helper\n  expected  \"match_condition\"\n  found     \"injected\"",
            "reason of other\n  expected  \"injected\"\n  found     (nothing)",
        ]
    );
    let found = differences(&helper(), json!({"unchanged": true}));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("spec.containers\n  expected  \"app\"\n  found     \"app helper\""), "{found:?}");
}

#[test]
fn reports_changes_of_second_pass() {
    let growing = profiles(&json!({"growing": {"activation": "Always", "template": {"metadata": {"annotations": {
        "example.com/a": {"$value": "${object.metadata.?annotations['example.com/a'].orValue('') + 'x'}", "$conflict": "Replace"},
    }}}}}));
    let found = differences(&growing, json!({"part": {}}));
    assert!(found.iter().all(|found| found.starts_with("a second pass changes metadata.annotations")), "{found:?}");
}

#[test]
fn denials_of_both_paths_count() {
    let mutating = profiles(&json!({"p": {"activation": "Always", "failurePolicy": "Fail", "preconditions": [
        {"name": "c", "expression": "false", "action": "Deny", "message": "not here"}], "template": {"spec": {}}}}));
    assert_eq!(differences(&mutating, json!({"denied": "not here"})), Vec::<String>::new());
    let unexpected = differences(&mutating, json!({"unchanged": true}));
    assert!(unexpected[0].starts_with("denial\n  expected  (nothing)\n  found     \""), "{unexpected:?}");

    let validating = profiles(&json!({"p": {"activation": "Always", "validations": [
        {"expression": "!has(object.spec.hostPID)", "message": "no PIDs", "code": 402}]}}));
    let object = json!({"metadata": {}, "spec": {"hostPID": true, "containers": [{"name": "app", "image": "a"}]}});
    let messages = json!({"object": object, "denied": "no PIDs", "code": 402, "unchanged": true});
    assert_eq!(differences(&validating, messages), Vec::<String>::new());
    let other = differences(&validating, json!({"object": object, "denied": "no PIDs", "code": 403}));
    assert_eq!(other, ["denial code\n  expected  403\n  found     402"]);
    assert_eq!(differences(&validating, json!({"unchanged": true})), Vec::<String>::new());
}

#[test]
fn case_sets_namespace_account_objects_and_cluster() {
    let asking = profiles(&json!({"p": {
        "activation": "Always",
        "lookups": [{"name": "map", "version": "v1", "resource": "configmaps", "objectName": "settings"}],
        "template": {"metadata": {"labels": {
            "team": "${serviceAccount.?annotations.team.orValue('nobody')}",
            "map": "${lookups.?map.data.a.orValue('none')}",
            "zone": "${cluster.?zone.orValue('nowhere')}",
            "tier": "${namespaceObject.metadata.?annotations.tier.orValue('low')}",
            "owner": "${owner.?name.orValue('none')}",
        }}},
    }}));
    let labels = |labels: Json| json!({"metadata": {"labels": labels}});
    let nothing = labels(json!({"team": "nobody", "map": "none", "zone": "nowhere", "tier": "low", "owner": "none"}));
    let verdict = run(&case(json!({"part": nothing})), &asking).unwrap();
    assert!(verdict.passes(), "{verdict:?}");
    let all = json!({
        "part": labels(json!({"team": "red", "map": "1", "zone": "z", "tier": "high", "owner": "web"})),
        "serviceAccount": {"annotations": {"team": "red"}},
        "cluster": {"zone": "z"},
        "namespace": {"name": "shop", "annotations": {"tier": "high"}},
        "objects": [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "1"}},
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "rs", "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "2", "controller": true}]}},
        ],
        "object": {"metadata": {"ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "1", "controller": true}]},
            "spec": {"containers": [{"name": "app", "image": "a"}]}},
    });
    assert_eq!(differences(&asking, all), Vec::<String>::new());
}

#[test]
fn opted_out_objects_are_unchanged() {
    let out = json!({"unchanged": true, "namespace": {"labels": {"pillion.dev/injection": "disabled"}}});
    assert_eq!(differences(&helper(), out), Vec::<String>::new());
    let object = json!({"metadata": {"labels": {"pillion.dev/inject": "false"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    assert_eq!(differences(&helper(), json!({"unchanged": true, "object": object})), Vec::<String>::new());
}

#[test]
fn case_selects_profiles_and_request_values() {
    let two = profiles(&json!({
        "a": {"requestedBy": {"annotation": "example.com/ask"}, "template": {"metadata": {"labels": {"a": "1"}}}},
        "b": {"activation": "Always", "template": {"metadata": {"labels": {"b": "1"}}}},
    }));
    let object = json!({"metadata": {"annotations": {"example.com/ask": "please"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    let case = json!({"object": object, "profiles": ["a"], "values": {"a": ["please"]},
        "result": {"metadata": {"annotations": {"example.com/ask": "please"}, "labels": {"a": "1"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}});
    assert_eq!(differences(&two, case), Vec::<String>::new());
}

#[test]
fn unusable_case_has_reason() {
    for (value, expected) in [
        (json!({}), "nothing is expected"),
        (json!({"unchanged": true, "profiles": ["helpr"]}), "profiles: there is no profile \"helpr\"; there is helper"),
        (json!({"unchanged": true, "parameters": {"helper": {"imag": 1}}}), "no parameter \"imag\"; there is image"),
        (json!({"unchanged": true, "parameters": {"helper": {"image": 1}}}), "profile helper does not compile: "),
    ] {
        let text = unusable(&helper(), value);
        assert!(text.contains(expected), "{text}");
    }
}
