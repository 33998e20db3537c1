//! Tests the functions that the export leaves unchanged in policies: they must return the same results on a real API
//! server. The test evaluates every exportable example in the language reference that the API server compiles.

use std::fmt::Write as _;

use anyhow::{Result, ensure};
use axum::http::Request;
use pillion_expression::{Expression, Scope};
use pillion_testkit::{ControlPlane, eventually, isolated};
use serde_json::{Value as Json, json};

use crate::rig::SOON;

const PAGE: &str = include_str!("../../../../docs/expressions.md");

/// The variables of the examples. The exported expressions read them from fields of an object that can contain any
/// JSON.
const NAMES: [&str; 3] = ["object", "container", "params"];

/// Examples that the API server does not compile, because its types are stricter. It rejects a policy that contains
/// them.
const TYPED: [&str; 2] =
    ["1 == 1.0 && 1 < 1.5 && [1, 2u] == [1.0, 2]", "optional.none().or(optional.ofNonZeroValue(0)).orValue('y')"];

/// The prefix of an example that maps over the members of an object. The engine preserves their order, but the API
/// server returns them in any order.
const UNORDERED: &str = "object.data.params.tags.map(";

fn blocks(language: &str) -> impl Iterator<Item = &'static str> {
    PAGE.split("\n```").skip(1).step_by(2).filter_map(move |block| block.strip_prefix(language)?.strip_prefix('\n'))
}

/// Replaces the variables in an expression with fields of the object's data.
fn moved(source: &str) -> String {
    let mut text = String::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let before = text.chars().next_back();
        let begins = before.is_none_or(|c| !(c.is_alphanumeric() || "_.'\"".contains(c)));
        let name = NAMES.into_iter().find(|name| {
            let behind = rest.strip_prefix(name).and_then(|behind| behind.chars().next());
            begins && behind.is_some_and(|c| ".,)[".contains(c))
        });
        if let Some(name) = name {
            let _ = write!(text, "object.data.{name}");
            rest = &rest[name.len()..];
        } else {
            text.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    text
}

/// Returns the exportable examples, each with its result.
fn examples() -> Vec<(String, Json)> {
    let scope = NAMES.into_iter().fold(Scope::new(), Scope::with);
    let mut examples = Vec::new();
    for line in blocks("cel").flat_map(str::lines) {
        let Some((source, expected)) = line.rsplit_once("// => ") else { continue };
        let Ok(expression) = Expression::compile(source, &scope) else { continue };
        let is_exported = expression.not_native().is_empty() && !TYPED.contains(&source.trim());
        if let (true, Ok(expected)) = (is_exported, serde_json::from_str(expected)) {
            examples.push((moved(source.trim()), expected));
        }
    }
    examples
}

#[test]
fn native_functions_match_api_server_results() {
    isolated(|| async {
        let examples = examples();
        ensure!(examples.len() > 50, "{} examples", examples.len());
        let plane = ControlPlane::start().await?;
        plane.create_namespace("team-a", &[]).await?;
        let world: Json = serde_json::from_str(blocks("json").next().unwrap_or_default())?;
        let validations: Vec<_> = examples
            .iter()
            .enumerate()
            .map(|(index, (source, expected))| {
                // The reference shows a quantity as a string, because it becomes one in an object. In this expression
                // it remains a quantity, so it is compared with a quantity.
                if let (true, Some(text)) = (source.starts_with("quantity("), expected.as_str()) {
                    return json!({"expression": format!("{source} == quantity('{text}')"), "message": source});
                }
                if source.starts_with(UNORDERED) {
                    let (list, other) = (format!("({source})"), format!("object.data.expected[{index}]"));
                    let same = format!("size({list}) == size({other}) && {list}.all(x, x in {other})");
                    return json!({"expression": same, "message": format!("{index}: {source}")});
                }
                // If the result is an optional, it is compared with an optional of the expected value.
                let value = format!("dyn({source})");
                let same = format!("{value} == object.data.expected[{index}]");
                let held = format!("dyn(optional.of(object.data.expected[{index}])) == {value}");
                json!({"expression": format!("{same} || {held}"), "message": format!("{index}: {source}")})
            })
            .collect();
        let rules = json!([{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["controllerrevisions"]}]);
        for (name, validations) in
            [("examples", validations), ("canary", vec![json!({"expression": "!has(object.data.canary)"})])]
        {
            let spec = json!({"failurePolicy": "Fail", "matchConstraints": {"resourceRules": rules}, "validations": validations});
            let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec});
            plane.apply_yaml(&policy.to_string()).await?;
            let spec = json!({"policyName": name, "validationActions": ["Deny"]});
            let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name}, "spec": spec});
            plane.apply_yaml(&binding.to_string()).await?;
        }
        let create = async |data: &Json| -> Result<String, kube::Error> {
            let object = json!({"metadata": {"name": "x"}, "revision": 1, "data": data});
            let request = Request::post("/apis/apps/v1/namespaces/team-a/controllerrevisions?dryRun=All");
            let request = request.header("content-type", "application/json").body(object.to_string().into_bytes());
            plane.client().request_text(request.unwrap()).await
        };
        let mut data = world;
        data["expected"] = examples.iter().map(|(_, expected)| expected.clone()).collect();
        // Wait until both policies are active: one rejects an object with the field `canary`, and the other one an
        // object with unexpected results.
        for (field, value) in [("canary", json!(true)), ("expected", json!(vec!["none"; examples.len()]))] {
            let mut wrong = data.clone();
            wrong[field] = value;
            eventually(SOON, "the policies are active", async || {
                ensure!(create(&wrong).await.is_err(), "{field} is not rejected");
                Ok(())
            })
            .await?;
        }
        create(&data).await?;
        Ok(())
    });
}
