//! Converts a profile to Kubernetes' own policies with their bindings: one policy for its additions, and one for each
//! action of its validations.

use pillion_api::ProfileSpec;
use pillion_api::names::GROUP;
use pillion_api::profile::{FailurePolicy, Operation, OptOut, Target, Validation, ValidationAction};
use pillion_engine::native::{
    Common, Expressions, Message, NotExported, PolicyScope, Profile, Used, common, namespace_selector, quoted,
};
use serde_json::{Map, Value, json};

use super::Exported;

const API_VERSION: &str = "admissionregistration.k8s.io/v1";

/// The reasons that an exported policy can return, each with its HTTP status.
const REASONS: [(&str, u16); 4] =
    [("Invalid", 422), ("Forbidden", 403), ("Unauthorized", 401), ("RequestEntityTooLarge", 413)];

/// Resources that every cluster needs, or that only query permissions. Policies with `--everywhere` exclude them, since
/// no profile may target them.
const EXCLUDED_RESOURCES: [(&str, &str); 4] = [
    ("", "events"),
    ("events.k8s.io", "events"),
    ("coordination.k8s.io", "leases"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
];

/// A validation in the API server's format, and the variables that it uses.
struct Native {
    text: Value,
    used: Used,
}

/// Exports a profile as policies with their bindings, and lists the parts that were omitted.
pub(super) fn export(profile: Profile<'_>) -> Exported {
    let mut left_out = Vec::new();
    let additions = match additions(profile.spec) {
        Ok(Some(_)) if profile.scope == PolicyScope::Everywhere => {
            left_out.push(NotExported::new(
                "spec.template",
                "with --everywhere, only validations are exported: additions must not apply to every object",
            ));
            None
        }
        Ok(additions) => additions,
        Err(why) => {
            left_out.push(why);
            None
        }
    };
    if !profile.spec.container_patches.is_empty() {
        let why = "Kubernetes' own policies cannot patch each container";
        left_out.push(NotExported::new("spec.containerPatches", why));
    }
    if profile.spec.validations.is_empty() && additions.is_none() {
        return Exported { objects: Vec::new(), left_out };
    }
    let expressions = Expressions::new(profile.spec);
    let common = match common(profile, &expressions) {
        Ok(common) => common,
        Err(why) => {
            let parts =
                [("spec.template", additions.is_some()), ("spec.validations", !profile.spec.validations.is_empty())];
            for (part, _) in parts.iter().filter(|(_, is_there)| *is_there) {
                left_out.push(NotExported::new(*part, format!("it depends on {}: {}", why.path, why.why)));
            }
            return Exported { objects: Vec::new(), left_out };
        }
    };
    let mut objects = Vec::new();
    if let Some(additions) = additions {
        match mutating(profile, &common, &additions, &expressions) {
            Ok(made) => objects.extend(made),
            Err(error) => left_out.push(NotExported::new("spec.template", error.to_string())),
        }
    }
    for action in [ValidationAction::Deny, ValidationAction::Warn, ValidationAction::Audit] {
        let mut natives = Vec::new();
        for (index, validation) in profile.spec.validations.iter().enumerate() {
            if validation.action.unwrap_or(ValidationAction::Deny) != action {
                continue;
            }
            match native(validation, &common, &expressions) {
                Ok(native) => natives.push(native),
                Err(why) => left_out.push(NotExported::new(format!("spec.validations[{index}]"), why)),
            }
        }
        if natives.is_empty() {
            continue;
        }
        match policy(profile, action, &common, natives, &expressions) {
            Ok(made) => objects.extend(made),
            Err(error) => left_out.push(NotExported::new("spec.validations", error.to_string())),
        }
    }
    Exported { objects, left_out }
}

fn native(validation: &Validation, common: &Common, expressions: &Expressions<'_>) -> Result<Native, String> {
    let mut used = expressions.check(&validation.expression)?;
    used.extend(common.used.iter().cloned());
    let source = validation.expression.trim();
    let expression = if common.guards.is_empty() {
        source.to_owned()
    } else {
        let guards: Vec<_> = common.guards.iter().map(|guard| format!("variables.{}", guard.name)).collect();
        format!("!({}) || ({source})", guards.join(" && "))
    };
    let mut text = json!({"expression": expression});
    let unsaid = || one_line(&format!("failed expression: {source}"));
    let field = validation.field_path.as_deref().map(|field| format!(" ({field})")).unwrap_or_default();
    match validation.message.as_deref().filter(|message| !message.trim().is_empty()) {
        None => set(&mut text, "message", json!(unsaid() + &field)),
        Some(message) => match expressions.message(message).map_err(|why| format!("its message: {why}"))? {
            (Message::Plain(plain), _) => set(&mut text, "message", json!(one_line(&plain) + &field)),
            (Message::Computed(computed), needed) => {
                used.extend(needed);
                let field = if field.is_empty() { field } else { format!(" + {}", quoted(&field)) };
                set(&mut text, "messageExpression", json!(computed + &field));
                set(&mut text, "message", json!(unsaid()));
            }
        },
    }
    if validation.action.unwrap_or(ValidationAction::Deny) == ValidationAction::Deny {
        set(&mut text, "reason", json!(reason(validation)?));
    }
    Ok(Native { text, used })
}

/// Returns the reason of the policy, which determines the HTTP status. Returns an error if no reason in [`REASONS`] has
/// the validation's reason and code.
fn reason(validation: &Validation) -> Result<&'static str, String> {
    let known = |find: &dyn Fn(&(&str, u16)) -> bool| REASONS.into_iter().find(|known| find(known));
    let all = "Invalid (422), Forbidden (403), Unauthorized (401) and RequestEntityTooLarge (413)";
    match (validation.reason.as_deref(), validation.code) {
        (None, None) => Ok("Invalid"),
        (reason, code) => {
            let fits = |(name, status): &(&str, u16)| {
                reason.is_none_or(|reason| reason == *name) && code.is_none_or(|code| code == *status)
            };
            let said = match (reason, code) {
                (Some(reason), Some(code)) => format!("reason {reason} with code {code}"),
                (Some(reason), None) => format!("reason {reason}"),
                (None, code) => format!("code {}", code.unwrap_or_default()),
            };
            known(&fits)
                .map(|(name, _)| name)
                .ok_or_else(|| format!("Kubernetes' own policies do not support {said}, only {all}"))
        }
    }
}

fn set(object: &mut Value, field: &str, value: Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(field.to_owned(), value);
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the policy for one action, and its binding.
fn policy(
    profile: Profile<'_>,
    action: ValidationAction,
    common: &Common,
    natives: Vec<Native>,
    expressions: &Expressions<'_>,
) -> Result<[Value; 2], serde_json::Error> {
    let spec = profile.spec;
    let (suffix, action) = match action {
        ValidationAction::Deny => ("", "Deny"),
        ValidationAction::Warn => ("-warn", "Warn"),
        ValidationAction::Audit => ("-audit", "Audit"),
    };
    let name = format!("pillion-{}{suffix}", profile.compiled.display_name().replace('/', "-"));
    let used: Used = natives.iter().flat_map(|native| native.used.iter().cloned()).collect();
    let mut policy = base(profile, common, &used, expressions, &rule(spec, profile.scope))?;
    if profile.scope == PolicyScope::Everywhere
        && let Some(constraints) = policy.get_mut("matchConstraints")
    {
        set(
            constraints,
            "excludeResourceRules",
            EXCLUDED_RESOURCES.map(|(group, resource)| every(group, resource, &["*"])).into(),
        );
    }
    set(&mut policy, "validations", natives.into_iter().map(|native| native.text).collect());
    let binding = json!({"policyName": name, "validationActions": [action]});
    Ok(objects(profile, &name, ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"], [policy, binding]))
}

/// Returns the policy that adds labels and annotations, and its binding.
fn mutating(
    profile: Profile<'_>,
    common: &Common,
    additions: &Additions,
    expressions: &Expressions<'_>,
) -> Result<[Value; 2], serde_json::Error> {
    let name = format!("pillion-{}", profile.compiled.display_name().replace('/', "-"));
    let mut policy = base(profile, common, &common.used, expressions, &mutation_rule(profile.spec))?;
    // Objects that are being deleted must not be changed.
    let condition = json!({"name": "pillion-stays", "expression": "!has(object.metadata.deletionTimestamp)"});
    if let Some(conditions) = policy.get_mut("matchConditions").and_then(Value::as_array_mut) {
        conditions.push(condition);
    } else {
        set(&mut policy, "matchConditions", json!([condition]));
    }
    let guards: Vec<_> = common.guards.iter().map(|guard| format!("variables.{}", guard.name)).collect();
    let expression = expression(additions, &guards);
    set(&mut policy, "mutations", json!([{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}]));
    set(&mut policy, "reinvocationPolicy", json!("IfNeeded"));
    let binding = json!({"policyName": name});
    Ok(objects(profile, &name, ["MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"], [policy, binding]))
}

/// Returns the policy and its binding as objects with the same metadata.
fn objects(profile: Profile<'_>, name: &str, kinds: [&str; 2], specs: [Value; 2]) -> [Value; 2] {
    let from = format!("{}@{}", profile.compiled.display_name(), profile.compiled.revision());
    let metadata = json!({"name": name, "annotations": {format!("{GROUP}/exported-from"): from}});
    let [first, second] = kinds;
    let [policy, binding] = specs;
    [(first, policy), (second, binding)].map(
        |(kind, spec)| json!({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata.clone(), "spec": spec}),
    )
}

/// Returns the common parts of all policies of a profile: match constraints, conditions and variables.
fn base(
    profile: Profile<'_>,
    common: &Common,
    used: &Used,
    expressions: &Expressions<'_>,
    rule: &Value,
) -> Result<Value, serde_json::Error> {
    let spec = profile.spec;
    let mut constraints = json!({
        "matchPolicy": "Equivalent",
        "namespaceSelector": namespace_selector(profile)?,
        "resourceRules": [rule],
    });
    if let Some(selector) = &spec.object_selector {
        set(&mut constraints, "objectSelector", serde_json::to_value(selector)?);
    }
    let mut policy = json!({
        "failurePolicy": if fails_on_error(spec) { "Fail" } else { "Ignore" },
        "matchConstraints": constraints,
    });
    if !common.conditions.is_empty() {
        let conditions = common.conditions.iter();
        set(
            &mut policy,
            "matchConditions",
            conditions.map(|c| json!({"name": c.name, "expression": c.expression})).collect(),
        );
    }
    let own = expressions.in_order(used).into_iter().map(|variable| (&variable.name, &variable.expression));
    let all = own.chain(common.guards.iter().map(|guard| (&guard.name, &guard.expression)));
    let variables: Vec<_> = all.map(|(name, expression)| json!({"name": name, "expression": expression})).collect();
    if !variables.is_empty() {
        set(&mut policy, "variables", variables.into());
    }
    Ok(policy)
}

fn fails_on_error(spec: &ProfileSpec) -> bool {
    match spec.failure_policy {
        Some(policy) => policy == FailurePolicy::Fail,
        None => spec.opt_out == Some(OptOut::Forbidden),
    }
}

fn rule(spec: &ProfileSpec, scope: PolicyScope) -> Value {
    let target = spec.target.clone().unwrap_or_else(Target::pods);
    let create = vec![Operation::Create];
    let operations = if target.operations.is_empty() { create } else { target.operations };
    let operations: Vec<_> = operations.into_iter().map(Operation::as_str).collect();
    match scope {
        PolicyScope::Everywhere => every("*", "*", &operations),
        PolicyScope::Profile => json!({
            "apiGroups": [target.group], "apiVersions": [target.version], "resources": target.resources,
            "operations": operations, "scope": "Namespaced",
        }),
    }
}

/// Returns a rule for all versions of a resource.
fn every(group: &str, resource: &str, operations: &[&str]) -> Value {
    json!({
        "apiGroups": [group], "apiVersions": ["*"], "resources": [resource],
        "operations": operations, "scope": "Namespaced",
    })
}

/// The added labels and annotations: for each map, its name and its keys with their values.
pub(super) type Additions = Vec<(&'static str, Vec<(String, String)>)>;

const MAPS: [&str; 2] = ["labels", "annotations"];

/// Returns the additions of a template if a policy can express them. `None`: there is no template.
pub(super) fn additions(spec: &ProfileSpec) -> Result<Option<Additions>, NotExported> {
    let Some(template) = spec.template.as_ref().and_then(Value::as_object) else { return Ok(None) };
    if let Some(field) = template.keys().find(|field| *field != "metadata") {
        let why = "additions by Kubernetes' own policies override the author's fields and are not recorded";
        return Err(NotExported::new(format!("spec.template.{field}"), why));
    }
    let metadata = template.get("metadata").and_then(Value::as_object);
    let mut additions = Vec::new();
    for (map, entries) in metadata.into_iter().flat_map(Map::iter) {
        let path = format!("spec.template.metadata.{map}");
        let Some(known) = MAPS.into_iter().find(|known| known == map) else {
            return Err(NotExported::new(path, "only labels and annotations are exported"));
        };
        let mut pairs = Vec::new();
        for (key, value) in entries.as_object().into_iter().flat_map(Map::iter) {
            let plain = value.as_str().filter(|text| !key.starts_with('$') && !text.contains("${"));
            let Some(text) = plain else {
                return Err(NotExported::new(
                    format!("{path}[{key:?}]"),
                    "directives and expressions are not exported",
                ));
            };
            pairs.push((key.clone(), text.to_owned()));
        }
        additions.push((known, pairs));
    }
    Ok(Some(additions))
}

/// Returns the rule for the template. It covers the target's resources and operations, except deletions and
/// subresources. If the resources include pods, it covers only creations.
pub(super) fn mutation_rule(spec: &ProfileSpec) -> Value {
    let target = spec.target.clone().unwrap_or_else(Target::pods);
    let is_pods = target.group.is_empty() && target.resources.iter().any(|resource| resource == "pods");
    let lasting = |operation: &Operation| match operation {
        Operation::Create => true,
        Operation::Update => !is_pods,
        Operation::Delete => false,
    };
    let named = if target.operations.is_empty() { vec![Operation::Create] } else { target.operations };
    let operations: Vec<_> = named.into_iter().filter(lasting).map(Operation::as_str).collect();
    let resources: Vec<_> = target.resources.into_iter().filter(|resource| !resource.contains('/')).collect();
    json!({
        "apiGroups": [target.group], "apiVersions": [target.version], "resources": resources,
        "operations": operations, "scope": "Namespaced",
    })
}

/// Returns the expression of the patch. It adds a map that is missing as a whole, and otherwise each key that is
/// missing.
pub(super) fn expression(additions: &Additions, guards: &[String]) -> String {
    let parts: Vec<_> = additions.iter().map(|(map, pairs)| of_map(map, pairs)).collect();
    let patch = parts.join(" +\n");
    if guards.is_empty() { patch } else { format!("!({}) ? [] :\n{patch}", guards.join(" && ")) }
}

fn of_map(map: &str, pairs: &[(String, String)]) -> String {
    let all: Vec<_> = pairs.iter().map(|(key, value)| format!("{}: {}", quoted(key), quoted(value))).collect();
    let whole = format!("[JSONPatch{{op: 'add', path: '/metadata/{map}', value: {{{}}}}}]", all.join(", "));
    let each: Vec<_> = pairs
        .iter()
        .map(|(key, value)| {
            let path = quoted(&format!("/metadata/{map}/{}", key.replace('~', "~0").replace('/', "~1")));
            let (key, value) = (quoted(key), quoted(value));
            format!("({key} in object.metadata.{map} ? [] : [JSONPatch{{op: 'add', path: {path}, value: {value}}}])")
        })
        .collect();
    format!("(!has(object.metadata.{map}) ? {whole} :\n  {})", each.join(" +\n  "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(template: &Value) -> Result<Option<Additions>, NotExported> {
        additions(&ProfileSpec { template: Some(template.clone()), ..ProfileSpec::default() })
    }

    #[test]
    fn only_literal_labels_and_annotations_are_exported() {
        for template in [
            json!({"spec": {"containers": []}}),
            json!({"metadata": {"finalizers": ["a"]}}),
            json!({"metadata": {"labels": {"a": "${object.metadata.name}"}}}),
            json!({"metadata": {"labels": {"$conflict": "Replace", "a": "b"}}}),
            json!({"metadata": {"annotations": {"a": {"$value": "b", "$join": {}}}}}),
        ] {
            assert!(of(&template).is_err(), "{template}");
        }
        let template = json!({"metadata": {"annotations": {"example.com/a": "it's"}}});
        let additions = of(&template).unwrap().unwrap();
        let text = expression(&additions, &["variables.g".to_owned()]);
        assert!(text.starts_with("!(variables.g) ? [] :"), "{text}");
        assert!(text.contains("path: '/metadata/annotations/example.com~1a', value: 'it\\'s'"), "{text}");
    }

    #[test]
    fn exported_policy_changes_pods_only_at_creation() {
        let rule_of = |target: Value| {
            let target = serde_json::from_value(target).unwrap();
            let rule = mutation_rule(&ProfileSpec { target: Some(target), ..ProfileSpec::default() });
            (rule["resources"].to_string(), rule["operations"].to_string())
        };
        let both = json!({"version": "v1", "resources": ["pods", "pods/ephemeralcontainers"], "operations": ["CREATE", "UPDATE"]});
        assert_eq!(rule_of(both), ("[\"pods\"]".to_owned(), "[\"CREATE\"]".to_owned()));
        let maps = json!({"version": "v1", "resources": ["configmaps"], "operations": ["UPDATE", "DELETE"]});
        assert_eq!(rule_of(maps), ("[\"configmaps\"]".to_owned(), "[\"UPDATE\"]".to_owned()));
    }
}
