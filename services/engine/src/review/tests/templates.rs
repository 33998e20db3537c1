//! Tests how templates change objects, and which values they do not change.

use super::*;

#[test]
fn taken_name_leaves_out_whole_profile() {
    for (field, element) in [
        ("containers", json!({"name": "sidecar", "image": "mine:1"})),
        ("initContainers", json!({"name": "sidecar", "image": "mine:1"})),
        ("volumes", json!({"name": "config", "emptyDir": {}})),
    ] {
        let mut object = pod();
        let list = object["spec"].as_object_mut().unwrap().entry(field).or_insert_with(|| json!([]));
        list.as_array_mut().unwrap().push(element);
        let skipped = inject(&object, &[("nginx", sidecar())]);
        assert_eq!(skipped.object, object, "{field}");
        assert_eq!(skipped.decided.decision.profiles[0].reason, Reason::NameTaken, "{field}");
        assert!(skipped.answer["response"]["warnings"][0].as_str().unwrap().contains("nginx"), "{field}");

        let mut strict = sidecar();
        strict["failurePolicy"] = json!("Fail");
        let denied = inject(&object, &[("nginx", strict)]);
        assert_eq!(denied.answer["response"]["allowed"], false, "{field}");
        assert_eq!(denied.answer["response"]["status"]["code"], 403, "{field}");
    }
}

#[test]
fn conflict_leaves_other_profiles_applied() {
    let clash = json!({"activation": "Always", "order": 200, "template": {
        "metadata": {"labels": {"clash": "yes"}},
        "spec": {"containers": [{"name": "sidecar", "image": "other:1"}]},
    }});
    let result = inject(&pod(), &[("nginx", sidecar()), ("clash", clash)]);
    assert_eq!(result.decided.decision.outcome, Outcome::Injected);
    assert_eq!(result.object["spec"]["containers"].as_array().unwrap().len(), 2);
    assert_eq!(result.object["metadata"].get("labels"), None);
}

#[test]
fn author_values_win() {
    let mut object = pod();
    object["metadata"]["annotations"] = json!({"example.com/status": "mine"});
    object["spec"]["terminationGracePeriodSeconds"] = json!(7);
    let mut profile = sidecar();
    profile["template"]["spec"]["terminationGracePeriodSeconds"] = json!(60);
    profile["template"]["spec"]["securityContext"] = json!({"fsGroup": 2000});
    let result = inject(&object, &[("nginx", profile)]);
    assert_eq!(result.object["metadata"]["annotations"]["example.com/status"], "mine");
    assert_eq!(result.object["spec"]["terminationGracePeriodSeconds"], 7);
    assert_eq!(result.object["spec"]["securityContext"]["fsGroup"], 2000);
}

#[test]
fn null_counts_as_absent() {
    let mut object = pod();
    object["metadata"]["annotations"] = Json::Null;
    object["spec"]["volumes"] = Json::Null;
    object["spec"]["initContainers"] = json!([]);
    let result = inject(&object, &[("nginx", sidecar())]);
    assert_eq!(result.object["metadata"]["annotations"]["example.com/status"], "injected");
    assert_eq!(result.object["spec"]["volumes"][0]["name"], "config");
}

#[test]
fn preserves_unknown_fields() {
    let text = review_of(&pod()).to_string().replace(
        r#""spec":{"#,
        r#""spec":{"fooBar":{"n":1e999,"big":18446744073709551616,"precise":0.10000000000000000055,"z":-0},"#,
    );
    let review = Review::parse(text.as_bytes()).unwrap();
    let decided = review.decide(ENABLED, &snapshot(&[("nginx", sidecar())]), &Facts::default()).unwrap();
    let patch = String::from_utf8(decided.patch.unwrap()).unwrap();
    assert!(!patch.contains("fooBar"), "{patch}");
}

#[test]
fn missing_volume_leaves_out_profile() {
    let mut profile = sidecar();
    profile["template"]["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "logs", "mountPath": "/logs"}]);
    let without = inject(&pod(), &[("nginx", profile.clone())]);
    assert_eq!(without.decided.decision.profiles[0].reason, Reason::MissingVolume);
    assert_eq!(without.object, pod());
    let mut object = pod();
    object["spec"]["volumes"] = json!([{"name": "logs", "emptyDir": {}}]);
    assert_eq!(inject(&object, &[("nginx", profile)]).decided.decision.outcome, Outcome::Injected);
}

#[test]
fn windows_pod_gets_no_linux_container() {
    let labels = json!({"activation": "Always", "template": {"metadata": {"labels": {"x": "y"}}}});
    for (field, value) in [("os", json!({"name": "windows"})), ("nodeSelector", json!({"kubernetes.io/os": "windows"}))]
    {
        let mut object = pod();
        object["spec"][field] = value;
        let result = inject(&object, &[("nginx", sidecar()), ("labels", labels.clone())]);
        let outcomes: Vec<_> = result.decided.decision.profiles.iter().map(|p| (p.outcome, p.reason)).collect();
        let expected =
            [(ProfileOutcome::Applied, Reason::Injected), (ProfileOutcome::Skipped, Reason::OperatingSystem)];
        assert_eq!(outcomes, expected, "{field}");
    }
}

/// Returns a profile that sets fields which the object already has, with the given conflict rule.
fn overriding(rule: &str) -> Json {
    json!({"activation": "Always", "template": {
        "metadata": {"labels": {"tier": {"$value": "gold", "$conflict": rule}}},
        "spec": {"terminationGracePeriodSeconds": {"$value": 90, "$conflict": rule}},
    }})
}

#[test]
fn conflict_follows_rule_of_template() {
    let mut object = as_stored(pod());
    object["metadata"]["labels"] = json!({"tier": "mine"});
    object["spec"]["terminationGracePeriodSeconds"] = json!(5);
    for rule in ["Merge", "Keep"] {
        let result = inject(&object, &[("p", overriding(rule))]);
        assert_eq!(result.object, object, "{rule}");
    }
    let failed = inject(&object, &[("p", overriding("Fail"))]);
    assert_eq!(failed.decided.decision.profiles[0].reason, Reason::NameTaken);
    assert_eq!(failed.object, object);

    let replaced = inject(&object, &[("p", overriding("Replace"))]);
    assert_eq!(replaced.object["metadata"]["labels"]["tier"], "gold");
    assert_eq!(replaced.object["spec"]["terminationGracePeriodSeconds"], 90);
    let record: Json =
        serde_json::from_str(replaced.object["metadata"]["annotations"]["pillion.dev/injected"].as_str().unwrap())
            .unwrap();
    let originals = json!([["/metadata/labels/tier", "mine"], ["/spec/terminationGracePeriodSeconds", 5]]);
    assert_eq!(record["profiles"][0]["replaced"], originals);

    // A second pass changes nothing, even if the profile's selector matches only the original value of a replaced
    // label. If another writer changed a value after the first pass, the second pass replaces it again.
    let mut selective = overriding("Replace");
    selective["objectSelector"] = json!({"matchLabels": {"tier": "mine"}});
    let first = inject(&object, &[("p", selective.clone())]);
    let second = inject(&first.object, &[("p", selective.clone())]);
    assert_eq!((second.decided.patch.clone(), second.decided.decision.reason), (None, Reason::AlreadyInjected));
    let mut meddled = first.object.clone();
    meddled["spec"]["terminationGracePeriodSeconds"] = json!(1);
    let third = inject(&meddled, &[("p", selective)]);
    assert_eq!(third.object["spec"], first.object["spec"]);
}

#[test]
fn overlay_is_merged_and_author_wins() {
    let mut object = pod();
    object["spec"]["containers"].as_array_mut().unwrap().push(json!({
        "name": "sidecar", "image": "auto", "env": [{"name": "LEVEL", "value": "debug"}],
    }));
    let profile = json!({"activation": "Always", "template": {"spec": {"containers": [{
        "name": "sidecar", "$conflict": "Merge",
        "image": {"$value": "sidecar:1", "$conflict": "Replace"},
        "args": ["run"],
        "env": [{"name": "LEVEL", "value": "info"}, {"name": "MODE", "value": "x"}],
    }]}}});
    let result = inject(&object, &[("p", profile)]);
    let expected = json!({
        "name": "sidecar", "image": "sidecar:1", "args": ["run"],
        "env": [{"name": "LEVEL", "value": "debug"}, {"name": "MODE", "value": "x"}],
    });
    assert_eq!(result.object["spec"]["containers"][1], expected);
}

#[test]
fn exclusive_fields_keep_or_replace_authors_choice() {
    let mut object = pod();
    object["spec"]["containers"][0]["livenessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 3});
    let profile = |rule: &str| {
        json!({"activation": "Always", "template": {"spec": {"containers": [{
            "name": "app", "image": "app:1", "$conflict": "Merge",
            "livenessProbe": {"httpGet": {"port": 1}, "timeoutSeconds": 2, "$conflict": rule},
        }]}}})
    };
    let probe =
        |rule| inject(&object, &[("p", profile(rule))]).object["spec"]["containers"][0]["livenessProbe"].clone();
    assert_eq!(probe("Merge"), json!({"exec": {"command": ["true"]}, "periodSeconds": 3, "timeoutSeconds": 2}));
    assert_eq!(probe("Replace"), json!({"httpGet": {"port": 1}, "periodSeconds": 3, "timeoutSeconds": 2}));
}

#[test]
fn new_elements_follow_position_of_template() {
    let mut object = pod();
    object["spec"]["initContainers"] = json!([{"name": "one", "image": "i"}, {"name": "two", "image": "i"}]);
    let init = |name: &str, position: Json| json!({"name": name, "image": "i", "$position": position});
    let first = json!({"activation": "Always", "order": 1, "template": {"spec": {"initContainers": [
        init("f1", json!("First")), init("f2", json!("First")), init("l1", json!("Last")),
        init("b1", json!({"before": "two"})), init("b2", json!({"before": "two"})),
        init("a1", json!({"after": "one"})), init("a2", json!({"after": "one"})),
        init("x", json!({"before": "nobody"})),
    ]}}});
    let second = json!({"activation": "Always", "order": 2, "template": {"spec": {"initContainers": [
        init("f3", json!("First")), init("a3", json!({"after": "one"})), init("l2", json!("Last")),
    ]}}});
    let result = inject(&object, &[("p", first), ("q", second)]);
    let names: Vec<_> =
        result.object["spec"]["initContainers"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
    assert_eq!(names, ["f1", "f2", "f3", "one", "a1", "a2", "a3", "b1", "b2", "two", "l1", "x", "l2"]);
}

#[test]
fn join_adds_each_piece_once() {
    let mut object = as_stored(pod());
    object["metadata"]["annotations"] = json!({"features": "a,b"});
    object["spec"]["containers"][0]["args"] = json!(["--x"]);
    object["spec"]["containers"][0]["env"] =
        json!([{"name": "OPTS", "value": "-Xmx1g"}, {"name": "REF", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]);
    let profile = json!({"activation": "Always", "template": {
        "metadata": {"annotations": {"features": {"$value": "b,c", "$join": {"separator": ","}}}},
        "spec": {"containers": [{
            "name": "app", "image": "app:1", "$conflict": "Merge",
            "args": {"$value": ["--x", "--y"], "$join": {}},
            "env": [
                {"name": "OPTS", "value": " -agent", "$join": {"separator": ""}},
                {"name": "REF", "value": "v", "$join": {"separator": ","}},
                {"name": "NEW", "value": "v", "$join": {"separator": ","}},
            ],
        }]},
    }});
    let first = inject(&object, &[("p", profile.clone())]);
    assert_eq!(first.object["metadata"]["annotations"]["features"], "a,b,c");
    let app = &first.object["spec"]["containers"][0];
    assert_eq!(app["args"], json!(["--x", "--y"]));
    assert_eq!(app["env"][0]["value"], "-Xmx1g -agent");
    assert_eq!(app["env"][1], object["spec"]["containers"][0]["env"][1], "a variable with valueFrom is unchanged");
    assert_eq!(app["env"][2], json!({"name": "NEW", "value": "v"}));
    let second = inject(&first.object, &[("p", profile)]);
    assert_eq!(second.decided.patch.map(|patch| String::from_utf8(patch).unwrap()), None);
}
