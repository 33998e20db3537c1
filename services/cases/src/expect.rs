//! Compares the result of a case with the case's expectations.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value as Json};

use super::compare::{missing, unequal};
use super::{Aspect, Case, Difference, Verdict};
use pillion_engine::decision::ProfileDecision;

/// Returns the differences between a verdict and the case's expectations. `before` is the object of the case.
pub(crate) fn differences(case: &Case, before: &Json, verdict: &Verdict) -> Vec<Difference> {
    let mut all = denied(case, verdict);
    if case.unchanged {
        all.extend(unequal(Aspect::Object, &verdict.object, before));
    }
    if let Some(result) = &case.result {
        all.extend(unequal(Aspect::Object, &verdict.object, &without_default_kind(result, case)));
    }
    if let Some(part) = &case.part {
        all.extend(missing(Aspect::Object, &verdict.object, &without_default_kind(part, case)));
    }
    for (container, variables) in &case.env {
        all.extend(env(container, variables, &verdict.object));
    }
    for part in
        case.messages.iter().filter(|part| !verdict.messages.iter().any(|message| message.contains(part.as_str())))
    {
        let found = (!verdict.messages.is_empty()).then(|| verdict.messages.join("\n").into());
        all.push(difference(Aspect::Message, String::new(), found, Some(part.as_str().into())));
    }
    for (profile, expected) in &case.reasons {
        let found = reason(profile, verdict);
        if found.as_deref() != Some(expected) {
            let found = found.map(Json::from);
            all.push(difference(Aspect::Reason, profile.clone(), found, Some(expected.as_str().into())));
        }
    }
    all
}

const fn difference(aspect: Aspect, path: String, found: Option<Json>, expected: Option<Json>) -> Difference {
    Difference { aspect, path, found, expected }
}

/// Removes default `apiVersion` and `kind` from an expected object if the case's object omits them too.
fn without_default_kind(expected: &Json, case: &Case) -> Json {
    let mut expected = expected.clone();
    if let Some(members) = expected.as_object_mut() {
        for (field, value) in [("apiVersion", "v1"), ("kind", "Pod")] {
            if !case.object.contains_key(field) && members.get(field).is_some_and(|found| found == value) {
                members.remove(field);
            }
        }
    }
    expected
}

fn denied(case: &Case, verdict: &Verdict) -> Vec<Difference> {
    let found = verdict.denied.as_ref();
    let message = found.map(|denied| Json::from(denied.message.as_str()));
    let is_so = match (&case.denied, found) {
        (Some(part), Some(denied)) => denied.message.contains(part.as_str()),
        (None, found) => found.is_none(),
        (Some(_), None) => false,
    };
    let mut all = Vec::new();
    if !is_so {
        all.push(difference(Aspect::Denied, String::new(), message, case.denied.as_deref().map(Json::from)));
    }
    if let (Some(code), Some(denied)) = (case.code, found)
        && code != denied.code
    {
        all.push(difference(Aspect::Denied, "code".to_owned(), Some(denied.code.into()), Some(code.into())));
    }
    all
}

fn reason(profile: &str, verdict: &Verdict) -> Option<String> {
    let validation = verdict.validation.iter().flat_map(|decision| &decision.profiles);
    let named = |decision: &&ProfileDecision| decision.profile.display_name() == profile;
    let decision = verdict.decision.profiles.iter().chain(validation).find(named)?;
    Some(decision.reason.as_str().to_owned())
}

/// Parses the value of a variable as JSON, or as base64 of JSON.
fn as_json(text: &str) -> Option<Json> {
    let plain = serde_json::from_str(text).ok();
    plain.or_else(|| serde_json::from_slice(&STANDARD.decode(text).ok()?).ok())
}

/// Returns the differences in the environment variables of a container.
fn env(container: &str, expected: &Map<String, Json>, object: &Json) -> Vec<Difference> {
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    let containers = lists.iter().filter_map(|list| object.get("spec")?.get(list)?.as_array()).flatten();
    let named = |name: &str, item: &&Json| item.get("name").is_some_and(|found| found == name);
    let Some(found) = containers.into_iter().find(|item| named(container, item)) else {
        let expected = Some("a container with this name".into());
        return vec![difference(Aspect::Env, container.to_owned(), None, expected)];
    };
    let variables = found.get("env").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut all = Vec::new();
    for (name, expected) in expected {
        let path = format!("{container}.{name}");
        let variable = variables.iter().find(|item| named(name, item));
        let value = variable.map(|item| item.get("value").or_else(|| item.get("valueFrom")).unwrap_or(&Json::Null));
        match (value, expected) {
            (None, Json::Null) => {}
            (Some(Json::String(text)), expected) if !expected.is_string() && !expected.is_null() => {
                let read = as_json(text).unwrap_or_else(|| text.as_str().into());
                let mut differences = unequal(Aspect::Env, &read, expected);
                for difference in &mut differences {
                    let dot = if difference.path.is_empty() || difference.path.starts_with('[') { "" } else { "." };
                    difference.path = format!("{path}{dot}{}", difference.path);
                }
                all.extend(differences);
            }
            (value, expected) if value == Some(expected) => {}
            (value, expected) => {
                let expected = (!expected.is_null()).then(|| expected.clone());
                all.push(difference(Aspect::Env, path, value.cloned(), expected));
            }
        }
    }
    all
}
