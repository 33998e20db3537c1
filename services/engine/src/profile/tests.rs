//! Tests profiles that compile, and the diagnostics of invalid profiles.

use serde_json::{Value as Json, json};

use super::*;

fn diagnostics(name: &ProfileName, spec: &Json) -> Vec<String> {
    match compile(name, &serde_json::from_value(spec.clone()).unwrap()) {
        Ok(_) => Vec::new(),
        Err(diagnostics) => diagnostics.iter().map(ToString::to_string).collect(),
    }
}

fn container(more: &Json) -> Json {
    let mut container = json!({"name": "a", "image": "i"});
    container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"template": {"spec": {"containers": [container]}}})
}

#[test]
fn reports_every_mistake_with_field_path() {
    let spec = json!({
        "requestedBy": {"truthy": ["a,b", "no"]},
        "objectSelector": {"matchExpressions": [{"key": "k", "operator": "In"}]},
        "template": {
            "metadata": {"labels": {"bad key": "x", "n": 1, "pillion.dev/x": "y"}, "name": "x"},
            "status": {},
            "spec": {
                "containers": [{"name": "A", "image": "i"}, {"image": "i"}, {"name": "b"}, {"name": "b", "image": "i"}],
                "initContainers": [{"name": "c", "image": "i", "restartPolicy": "Sometimes"}],
                "volumes": [{"name": "v"}, {"name": "w", "emptyDir": {}, "configMap": {}}],
            },
        },
    });
    let diagnostics = diagnostics(&ProfileName::cluster("p"), &spec);
    for expected in [
        "spec.requestedBy: requestedBy needs an annotation or a label",
        "spec.requestedBy.truthy[0]: a word",
        "spec.requestedBy: the word \"no\" is both",
        "spec.objectSelector.matchExpressions[0].values: ",
        "spec.template.metadata.labels[\"bad key\"]: ",
        "spec.template.metadata.labels[\"n\"]: expected a string",
        "spec.template.metadata.labels[\"pillion.dev/x\"]: ",
        "spec.template.metadata.name: ",
        "spec.template.status: ",
        "spec.template.spec.containers[0].name: ",
        "spec.template.spec.containers[1]: an element of this list needs a name",
        "spec.template.spec.containers[2]: an added container needs an image",
        "spec.template.spec.containers[3].name: the name \"b\" is also used at spec.template.spec.containers[2]",
        "spec.template.spec.initContainers[0].restartPolicy: expected Always, Never or OnFailure",
        "spec.template.spec.volumes[0]: a volume has exactly one source, found none",
        "spec.template.spec.volumes[1]: a volume has exactly one source",
    ] {
        assert!(
            diagnostics.iter().any(|diagnostic| diagnostic.starts_with(expected)),
            "{expected:?} is not among {diagnostics:#?}"
        );
    }
}

#[test]
fn rejects_fields_that_api_server_rejects() {
    for more in [
        json!({"env": [{"name": "PORT", "value": 8080}]}),
        json!({"command": "sh"}),
        json!({"ports": [{"containerPort": "80"}]}),
        json!({"ports": [{"containerPort": 70_000}]}),
        json!({"imagePullpolicy": "Always"}),
        json!({"restartPolicy": "Always"}),
    ] {
        assert!(!diagnostics(&ProfileName::cluster("p"), &container(&more)).is_empty(), "{more}");
    }
}

#[test]
fn rejects_unsupported_directives() {
    for more in [json!({"$when": "x"}), json!({"args": ["${x}"]}), json!({"$forEech": "x"})] {
        assert!(!diagnostics(&ProfileName::cluster("p"), &container(&more)).is_empty(), "{more}");
    }
}

#[test]
fn checks_rollout() {
    let with = |name: &ProfileName, rollout: Json| {
        let mut spec = container(&json!({}));
        spec["rollout"] = rollout;
        diagnostics(name, &spec)
    };
    let (cluster, own) = (ProfileName::cluster("p"), ProfileName::namespaced("shop", "p"));
    for right in [json!({}), json!({"percent": 0}), json!({"percent": 100})] {
        assert_eq!(with(&cluster, right.clone()), Vec::<String>::new());
        assert_eq!(with(&own, right), Vec::<String>::new());
    }
    let selector = json!({"percent": 5, "namespaceSelector": {"matchLabels": {"a": "b"}}});
    assert_eq!(with(&cluster, selector.clone()), Vec::<String>::new());
    assert!(with(&own, selector).iter().any(|diagnostic| diagnostic.starts_with("spec.rollout.namespaceSelector: ")));
    assert!(
        with(&cluster, json!({"percent": 101})).iter().any(|diagnostic| diagnostic.contains("101 is more than 100"))
    );
    let steps = json!([{"percent": 5, "bakeSeconds": 60}, {"percent": 100}]);
    let in_place = json!({"strategy": "InPlace", "maxUnavailable": 3, "steps": steps, "autoRollback": false});
    assert_eq!(with(&own, in_place), Vec::<String>::new());
    for (wrong, path) in [
        (json!({"strategy": "InPlace", "percent": 5}), "spec.rollout.percent: percent is only for"),
        (json!({"steps": steps}), "spec.rollout.steps: steps is only for the strategies InPlace and Restart"),
        (json!({"strategy": "InPlace", "steps": [{"percent": 5}, {"percent": 5}]}), "spec.rollout.steps: the percent"),
        (json!({"windows": [{"start": "22:00", "hours": 1}]}), "spec.rollout.windows: windows is only for"),
        (json!({"strategy": "Restart", "windows": [{"start": "9:00", "hours": 1}]}), "spec.rollout.windows[0].start: "),
        (
            json!({"strategy": "Restart", "windows": [{"start": "09:00", "hours": 25}]}),
            "spec.rollout.windows[0].hours: 25",
        ),
        (json!({"strategy": "InPlace", "steps": [{"percent": 0}]}), "spec.rollout.steps[0].percent: 0 is not between"),
    ] {
        let found = with(&cluster, wrong);
        assert!(found.iter().any(|diagnostic| diagnostic.starts_with(path)), "{path}: {found:?}");
    }
}

#[test]
fn loop_directives_have_rules() {
    let element = |directives: &Json| {
        let mut entry = json!({"name": "A_${string(index)}", "value": "x"});
        entry.as_object_mut().unwrap().extend(directives.as_object().unwrap().clone());
        diagnostics(&ProfileName::cluster("p"), &container(&json!({"env": [entry]})))
    };
    for right in [
        json!({"$forEach": "['a']"}),
        json!({"$forEach": "existing"}),
        json!({"$forEach": "existing", "$when": "existing.hasValue()"}),
    ] {
        assert_eq!(element(&right), Vec::<String>::new(), "{right}");
    }
    for (wrong, expected) in [
        (json!({"$forEach": "existing.orValue([])"}), "`existing` is not available here"),
        (json!({"$forEach": " existing"}), "`existing` is not available here"),
        (json!({"$forEach": "existing", "$prune": "true"}), "$forEach: existing and $prune are mutually exclusive"),
        (json!({"$forEach": "['a']", "$as": "x"}), "there is no directive $as"),
        (json!({"$each": "true"}), "there is no directive $each"),
    ] {
        let found = element(&wrong);
        assert!(found.iter().any(|diagnostic| diagnostic.contains(expected)), "{wrong}: {found:?}");
    }
}

#[test]
fn computed_restart_policy_is_one_expression() {
    let container = |policy: &Json| {
        let container = json!({"name": "a", "image": "i", "restartPolicy": policy});
        diagnostics(&ProfileName::cluster("p"), &json!({"template": {"spec": {"initContainers": [container]}}}))
    };
    for right in [json!("Always"), json!("${true ? 'Always' : null}"), json!({"$value": "Always", "$conflict": "Keep"})]
    {
        assert_eq!(container(&right), Vec::<String>::new(), "{right}");
    }
    for (wrong, expected) in [
        (json!("Al${'ways'}"), "must be one expression"),
        (json!({"$value": "Always", "$when": "true"}), "must be one expression"),
        (json!({"$value": "${'Always'}", "$conflict": "Replace"}), "must be one expression"),
        (json!("${existing.orValue('Always')}"), "`existing` is not available here"),
        (json!("${nosuch}"), "nosuch"),
        (json!("Sometimes"), "expected Always, Never or OnFailure"),
    ] {
        let found = container(&wrong);
        let start = "spec.template.spec.initContainers[0].restartPolicy: ";
        assert!(found.iter().any(|one| one.starts_with(start) && one.contains(expected)), "{wrong}: {found:?}");
    }
}

#[test]
fn checks_expressions() {
    let conditions = |expression: &str| {
        let mut spec = container(&json!({}));
        spec["variables"] = json!([{"name": "team", "expression": "object.metadata.labels.team"}]);
        spec["matchConditions"] = json!([{"name": "c", "expression": expression}]);
        diagnostics(&ProfileName::cluster("p"), &spec)
    };
    assert_eq!(conditions("variables.team == 'a'"), Vec::<String>::new());
    for (expression, expected) in [
        ("objct.spec == 1", "objct"),
        ("variables.taem == 'a'", "taem"),
        ("object.spec.contains(", "spec.matchConditions[0].expression"),
        ("nosuch(object)", "nosuch"),
        (&format!("1{}", "+1".repeat(5_000)), "spec.matchConditions[0].expression"),
        (&"(".repeat(900), "spec.matchConditions[0].expression"),
    ] {
        let diagnostics = conditions(expression);
        assert!(
            diagnostics.iter().any(|diagnostic| diagnostic.contains(expected)),
            "{expression:.40}: {diagnostics:?}"
        );
    }
    let mut circular = container(&json!({}));
    circular["variables"] =
        json!([{"name": "a", "expression": "variables.b"}, {"name": "b", "expression": "variables.a"}]);
    assert!(diagnostics(&ProfileName::cluster("p"), &circular)[0].contains("depends on its own value"));
}

#[test]
fn checks_directives() {
    for (more, expected) in [
        (json!({"$conflict": "Sometimes"}), "expected Merge, Keep, Replace or Fail"),
        (json!({"$position": "Middle"}), "expected First, Last"),
        (json!({"$position": {"before": "a", "after": "b"}}), "expected First, Last"),
        (json!({"args": {"$value": ["a"], "$join": {"seperator": ","}}}), "$join cannot have seperator"),
        (json!({"args": {"$value": ["a"], "$position": "First"}}), "is allowed only in an element"),
        (json!({"args": {"$value": ["a"], "$join": {}, "$conflict": "Keep"}}), "are mutually exclusive"),
        (json!({"$forEech": "x"}), "there is no directive $forEech"),
    ] {
        let diagnostics = diagnostics(&ProfileName::cluster("p"), &container(&more));
        assert!(diagnostics.iter().any(|diagnostic| diagnostic.contains(expected)), "{more}: {diagnostics:?}");
    }
}

#[test]
fn tenant_profile_has_limits() {
    let own = ProfileName::namespaced("team-a", "p");
    let privileged = container(&json!({"securityContext": {"privileged": true}}));
    assert!(diagnostics(&ProfileName::cluster("p"), &privileged).is_empty());
    assert!(!diagnostics(&own, &privileged).is_empty());
    let mut hidden = container(&json!({}));
    hidden["template"]["spec"]["containers"][0]["securityContext"] = json!({"$value": {"privileged": true}});
    assert!(!diagnostics(&own, &hidden).is_empty(), "a value in a directive is checked too");
    for field in ["namespaceSelector", "optOut"] {
        let mut spec = container(&json!({}));
        spec[field] = if field == "optOut" { json!("Forbidden") } else { json!({}) };
        assert!(!diagnostics(&own, &spec).is_empty(), "{field}");
    }
}

#[test]
fn template_size_and_depth_are_bounded() {
    let deep = (0..200).fold(json!("x"), |inner, _| json!({"a": inner}));
    assert!(diagnostics(&ProfileName::cluster("p"), &json!({"template": {"spec": deep}}))[0].contains("levels deep"));
    let large = container(&json!({"args": ["x".repeat(MAX_TEMPLATE_BYTES)]}));
    assert!(diagnostics(&ProfileName::cluster("p"), &large)[0].contains("are allowed"));
}

#[test]
fn revision_ignores_order_of_fields() {
    let name = ProfileName::cluster("p");
    let revision = |json: &str| compile(&name, &serde_json::from_str(json).unwrap()).unwrap().revision().to_owned();
    let one = revision(r#"{"order": 1, "template": {"metadata": {"labels": {"a": "1", "b": "2"}}}}"#);
    let same = revision(r#"{"template": {"metadata": {"labels": {"b": "2", "a": "1"}}}, "order": 1}"#);
    let other = revision(r#"{"template": {"metadata": {"labels": {"b": "3", "a": "1"}}}, "order": 1}"#);
    assert_eq!(one, same);
    assert_ne!(one, other);
    assert_eq!(one.len(), 10);
}
