//! Only valid pods leave: a profile whose expressions give a value that the API server rejects is not applied.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests fail by panicking, as tests do")]

use serde_json::{Value as Json, json};

use crate::common::{answer, patched, review, snapshot};

/// The outcome of a profile whose template computes a value from the annotation `x`, which is JSON.
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
    let (decided, _) = answer(&body, &snapshot(&[("computed", profile)]));
    let object = patched(&body, decided.patch.as_deref());
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

/// A template with a container, of which a field is computed.
fn container(field: &str, value: Json) -> Json {
    let mut container = json!({"name": "side", "image": "side:1"});
    container[field] = value;
    json!({"spec": {"containers": [container]}})
}

#[test]
fn computed_value_of_wrong_type_is_refused() {
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
