//! Tests that patched pods are valid: a profile is not applied if its expressions compute values that the API server
//! rejects.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test helpers fail by panicking")]

use serde_json::{Value as Json, json};

use crate::common::{patched, respond, review, snapshot};

/// Applies a template that reads the variable `x` to a pod. The pod's annotation `x` is the JSON text `value`, and the
/// variable contains the parsed value. Returns the patched pod, or the reason why the profile was not applied.
fn outcome(template: &Json, value: &str) -> Result<Json, String> {
    let profile = json!({
        "activation": "Always",
        "variables": [{"name": "x", "expression": "parseJson(object.metadata.annotations['x'])"}],
        "template": template,
    });
    let pod = json!({
        "metadata": {"annotations": {"x": value}},
        "spec": {"containers": [{"name": "web", "image": "web:1"}]},
    });
    let body = review(&pod);
    let (decided, _) = respond(&body, &snapshot(&[("computed", profile)]));
    let object = patched(&body, &decided);
    let decision = &decided.decision.profiles[0];
    match decision.reason.as_str() {
        "injected" => Ok(object),
        "expression_failed" => {
            assert_eq!(object, pod);
            Err(decision.detail.as_deref().unwrap_or_default().to_owned())
        }
        other => Err(format!("{other}: {decision:?}")),
    }
}

/// Returns a template with a container that has the given value in `field`.
fn container(field: &str, value: Json) -> Json {
    let mut container = json!({"name": "side", "image": "side:1"});
    container[field] = value;
    json!({"spec": {"containers": [container]}})
}

#[test]
fn rejects_computed_value_of_wrong_type() {
    let annotation = json!({"metadata": {"annotations": {"example.com/a": "${variables.x}"}}});
    let label = json!({"metadata": {"labels": {"a": "${variables.x}"}}});
    let env = container("env", json!([{"name": "A", "value": "${variables.x}"}]));
    let name = json!({"spec": {"containers": [{"name": "${variables.x}", "image": "i:1"}]}});
    let mixed_name = json!({"spec": {"containers": [{"name": "side-${variables.x}", "image": "i:1"}]}});
    let env_name = container("env", json!([{"name": "${variables.x}", "value": "a"}]));
    let image = container("image", json!("${variables.x}"));
    let port = container("ports", json!([{"containerPort": "${variables.x}"}]));
    let limits = container("resources", json!({"limits": {"cpu": "${variables.x}"}}));
    let all_limits = container("resources", json!({"limits": "${variables.x}"}));
    let args = container("args", json!("${variables.x}"));
    let policy = container("imagePullPolicy", json!("${variables.x}"));
    let tty = container("tty", json!("${variables.x}"));
    let security = container("securityContext", json!("${variables.x}"));
    let environment = container("env", json!(["${variables.x}"]));
    for (template, right, wrong) in [
        (&annotation, vec![r#""1""#], vec!["1", "true", "[]", "{}"]),
        (&label, vec![r#""a""#], vec!["1.5", "false"]),
        (&env, vec![r#""1""#, r#""""#], vec!["8080", "{}"]),
        (&name, vec![r#""a-1""#], vec![r#""Bad_Name""#, r#""""#, r#""-a""#, "1"]),
        (&mixed_name, vec![r#""a""#], vec![r#""A""#, r#""a_b""#, r#""-""#]),
        (&env_name, vec![r#""A_B""#, r#""a.b""#], vec![r#""A=B""#, r#""""#, r#""\u00e9""#, "1"]),
        (&image, vec![r#""a:1""#], vec![r#"" a:1""#, r#""a:1\n""#, r#""""#, "[]"]),
        (&port, vec!["80"], vec![r#""80""#, "1.5", "5000000000", "true"]),
        (&limits, vec![r#""1""#, r#""100m""#, "2"], vec![r#""one""#, r#""""#, "{}"]),
        (&all_limits, vec![r#"{"cpu": "1"}"#], vec![r#"{"cpu": "one"}"#, "[]"]),
        (&args, vec![r#"["a"]"#], vec![r#""a""#, "[1]", r#"[["a"]]"#]),
        (&policy, vec![r#""Always""#], vec![r#""Sometimes""#]),
        (&tty, vec!["true"], vec![r#""true""#, "1"]),
        (&security, vec![r#"{"runAsUser": 1}"#], vec!["[]", "1"]),
        (
            &environment,
            vec![r#"{"name": "A", "value": "b"}"#, r#"[{"name": "A"}, {"name": "B"}]"#],
            vec!["1", r#"["A"]"#],
        ),
    ] {
        for value in right {
            let object = outcome(template, value);
            assert!(object.is_ok(), "{template} {value}: {object:?}");
        }
        for value in wrong {
            let refused = outcome(template, value).unwrap_err();
            assert!(refused.contains("expected "), "{template} {value}: {refused}");
        }
    }
}

/// Returns the reason and the detail of the decision, and the patched pod.
fn applied(profile: Json, pod: &Json) -> (String, String, Json) {
    let body = review(pod);
    let (decided, _) = respond(&body, &snapshot(&[("merged", profile)]));
    let decision = &decided.decision.profiles[0];
    let detail = decision.detail.as_deref().unwrap_or_default().to_owned();
    (decision.reason.as_str().to_owned(), detail, patched(&body, &decided))
}

/// Returns a profile that changes the existing containers of the pod.
fn changing(template: &Json) -> Json {
    json!({"activation": "Always", "containerPatches": [{"name": "all", "template": template}]})
}

#[test]
fn merged_fields_of_a_container_fit_one_another() {
    let http = json!({"httpGet": {"port": 80}});
    let web = |fields: Json| {
        let mut container = json!({"name": "web", "image": "web:1"});
        container.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({"spec": {"containers": [container]}})
    };
    let (bare, limited) = (web(json!({})), web(json!({"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}})));
    let probed = web(json!({"livenessProbe": http}));
    let cpu = |kind: &str, amount: &str| json!({"resources": {kind: {"cpu": amount}}});
    for (template, pod, message) in [
        (cpu("requests", "500m"), &limited, None),
        (
            cpu("requests", "2"),
            &limited,
            Some("/spec/containers/web/resources: requests 2 of cpu, which is more than its limit of 1"),
        ),
        (cpu("requests", "2"), &bare, None),
        (json!({"livenessProbe": {"periodSeconds": 5}}), &probed, None),
        (
            json!({"livenessProbe": {"periodSeconds": 5}}),
            &bare,
            Some(
                "/spec/containers/web/livenessProbe: expected exactly one of exec, grpc, httpGet, tcpSocket; found none",
            ),
        ),
        (json!({"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}), &probed, None),
    ] {
        let (reason, detail, object) = applied(changing(&template), pod);
        match message {
            None => assert_eq!(reason, "injected", "{template}: {detail}"),
            Some(message) => {
                assert_eq!((reason.as_str(), &object), ("invalid_result", pod), "{template}: {detail}");
                assert!(detail.contains(message), "{detail}");
            }
        }
    }
    // Violations that the original pod already has are not attributed to the profile.
    let wrong = web(json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}));
    let (reason, detail, _) = applied(changing(&json!({"resources": {"limits": {"memory": "1Gi"}}})), &wrong);
    assert_eq!(reason, "injected", "{detail}");
}

#[test]
fn computed_fields_of_a_container_fit_one_another() {
    let pod = json!({"spec": {"containers": [{"name": "web", "image": "web:1"}]}});
    let resources = |limit: &str| json!({"requests": {"cpu": "2"}, "limits": {"cpu": limit}});
    for template in [
        container("resources", resources("${'1'}")),
        container("resources", json!("${{'requests': {'cpu': '2'}, 'limits': {'cpu': '1'}}}")),
        container("livenessProbe", json!("${{'exec': {'command': ['a']}, 'tcpSocket': {'port': 1}}}")),
        container("lifecycle", json!({"preStop": "${{'exec': {'command': ['a']}, 'sleep': {'seconds': 1}}}"})),
        json!({"spec": {"containers": ["${{'name': 'c', 'image': 'i', 'resources': {'requests': {'cpu': 2}, 'limits': {'cpu': 1}}}}"]}}),
    ] {
        let (reason, detail, object) = applied(json!({"activation": "Always", "template": template}), &pod);
        assert_eq!((reason.as_str(), &object), ("invalid_result", &pod), "{template}: {detail}");
    }
    let one = json!("${{'exec': null, 'tcpSocket': {'port': 1}}}");
    for fits in [container("resources", resources("${'2'}")), container("livenessProbe", one)] {
        let (reason, detail, _) = applied(json!({"activation": "Always", "template": fits}), &pod);
        assert_eq!(reason, "injected", "{detail}");
    }
}

#[test]
fn rejects_new_probe_without_handler() {
    let pod = json!({"spec": {"containers": [{"name": "web", "image": "web:1"}]}});
    for probe in [json!({"periodSeconds": 5}), json!("${{'periodSeconds': 5}}")] {
        let profile = json!({"activation": "Always", "template": container("livenessProbe", probe)});
        let (reason, detail, object) = applied(profile, &pod);
        assert_eq!((reason.as_str(), object), ("invalid_result", pod.clone()), "{detail}");
    }
}

#[test]
fn check_of_many_containers_is_charged() {
    let container = |number: usize| {
        json!({"name": format!("c{number}"), "image": "i:1",
        "resources": {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}})
    };
    let pod = json!({"spec": {"containers": (0..3_000).map(container).collect::<Vec<_>>()}});
    let profile = json!({
        "activation": "Always",
        "template": {"metadata": {"labels": {"a": "b"}}},
        "containerPatches": [{"name": "all", "template": {"resources": {"requests": {"memory": "1Gi"}}}}],
    });
    let began = std::time::Instant::now();
    let (reason, detail, object) = applied(profile, &pod);
    assert_eq!((reason.as_str(), &object), ("expression_failed", &pod), "{detail}");
    assert!(began.elapsed() < std::time::Duration::from_secs(4), "{:?}", began.elapsed());
}
