//! The request key of a profile: a label or annotation with which a pod or its namespace requests the profile.
//!
//! The value of a key is a comma-separated list of case-insensitive words. A truthy word requests the default profile
//! of the key, and a falsy word requests none. Any other word requests the profile that has the word as its name or
//! among its `values`.

use std::borrow::Cow;

use pillion_api::profile::{Activation, EmptyValue, OnUnknown, OptOut, RequestKey};

use super::check::check_key;
use super::{CompiledProfile, Diagnostic};

/// The maximum number of words in one value. Further words are ignored.
const MAX_WORDS: usize = 64;

/// The default truthy words.
const TRUTHY: [&str; 6] = ["true", "yes", "y", "on", "enabled", "1"];

/// The default falsy words.
const FALSY: [&str; 6] = ["false", "no", "n", "off", "disabled", "0"];

/// A compiled request key. All its words are in lower case.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) label: Option<Box<str>>,
    pub(crate) annotation: Option<Box<str>>,
    pub(crate) values: Box<[Box<str>]>,
    pub(crate) truthy: Box<[Box<str>]>,
    pub(crate) falsy: Box<[Box<str>]>,
    pub(crate) empty: EmptyValue,
    pub(crate) on_unknown: OnUnknown,
}

impl Request {
    /// Whether a value requests no profile: it is empty or contains only falsy words.
    pub(crate) fn declines(&self, value: &str) -> bool {
        words(value).all(|word| self.falsy.iter().any(|falsy| **falsy == *word))
    }
}

/// Compiles a request key. Adds errors to `diagnostics`.
pub(super) fn compile(request: &RequestKey, diagnostics: &mut Vec<Diagnostic>) -> Request {
    if request.annotation.is_none() && request.label.is_none() {
        diagnostics.push(Diagnostic::new("spec.requestedBy", "requestedBy needs an annotation or a label"));
    }
    for (field, key) in [("annotation", &request.annotation), ("label", &request.label)] {
        if let Some(sentence) = key.as_deref().and_then(check_key) {
            diagnostics.push(Diagnostic::new(format!("spec.requestedBy.{field}"), sentence));
        }
    }
    let lower = |words: &[String]| words.iter().map(|word| word.trim().to_lowercase().into()).collect();
    let or = |words: &Option<Vec<String>>, default: &[&str]| match words {
        Some(words) => lower(words),
        None => default.iter().map(|word| Box::from(*word)).collect(),
    };
    let compiled = Request {
        label: request.label.as_deref().map(Box::from),
        annotation: request.annotation.as_deref().map(Box::from),
        values: lower(&request.values),
        truthy: or(&request.truthy, &TRUTHY),
        falsy: or(&request.falsy, &FALSY),
        empty: request.empty.unwrap_or_default(),
        on_unknown: request.on_unknown.unwrap_or(OnUnknown::Ignore),
    };
    for (field, words) in [("values", &compiled.values), ("truthy", &compiled.truthy), ("falsy", &compiled.falsy)] {
        for (index, _) in words.iter().enumerate().filter(|(_, word)| word.is_empty() || word.contains(',')) {
            diagnostics.push(
                Diagnostic::new(
                    format!("spec.requestedBy.{field}[{index}]"),
                    "a word cannot be empty or contain a comma",
                )
                .with_help("a comma separates the words of a request"),
            );
        }
    }
    if let Some(word) = compiled.truthy.iter().find(|word| compiled.falsy.contains(word)) {
        diagnostics.push(Diagnostic::new("spec.requestedBy", format!("the word {word:?} is both truthy and falsy")));
    }
    compiled
}

/// Returns the words of a value in lower case.
pub(crate) fn words(value: &str) -> impl Iterator<Item = Cow<'_, str>> {
    names(value).map(|word| {
        let is_lower = !word.chars().any(char::is_uppercase);
        if is_lower { Cow::Borrowed(word) } else { Cow::Owned(word.to_lowercase()) }
    })
}

/// Returns the words of a value as written.
pub(crate) fn names(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|word| !word.is_empty()).take(MAX_WORDS)
}

impl CompiledProfile {
    /// Returns the key whose truthy values could request either of two profiles with the same scope and target. A pod
    /// with such a value gets neither. `None` if there is no such key, or if both profiles have namespace selectors and
    /// these differ, because there may be no namespace that matches both.
    #[must_use]
    pub fn contends_with(&self, other: &Self) -> Option<&str> {
        let is_default =
            |profile: &Self| profile.activation != Activation::Never && profile.opt_out != OptOut::Forbidden;
        if self.name == other.name
            || self.name.namespace != other.name.namespace
            || !is_default(self)
            || !is_default(other)
            || self.target() != other.target()
        {
            return None;
        }
        let (left, right) = (&self.namespace_selector, &other.namespace_selector);
        if left.is_some() && right.is_some() && left != right {
            return None;
        }
        let (left, right) = (self.request.as_ref()?, other.request.as_ref()?);
        if !left.truthy.iter().any(|word| right.truthy.contains(word)) {
            return None;
        }
        let keys = [(&left.label, &right.label), (&left.annotation, &right.annotation)];
        keys.into_iter().filter(|(left, right)| left == right).find_map(|(key, _)| key.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::profile::{ProfileName, compile};

    fn profile(name: &ProfileName, changes: &Value) -> CompiledProfile {
        let mut spec = json!({"requestedBy": {"annotation": "example.com/inject"},
                              "template": {"metadata": {"labels": {"a": "b"}}}});
        json_patch::merge(&mut spec, changes);
        compile(name, &serde_json::from_value(spec).unwrap()).unwrap()
    }

    #[test]
    fn profiles_with_one_key_contend() {
        let (a, b) = (ProfileName::cluster("a"), ProfileName::cluster("b"));
        let one = profile(&a, &json!({}));
        let selector = |team: &str| json!({"namespaceSelector": {"matchLabels": {"team": team}}});
        for (changes, expected) in [
            (json!({}), Some("example.com/inject")),
            (selector("red"), Some("example.com/inject")),
            (json!({"requestedBy": {"annotation": "example.com/other"}}), None),
            (json!({"requestedBy": {"annotation": null, "label": "example.com/inject"}}), None),
            (json!({"requestedBy": {"truthy": ["please"]}}), None),
            (json!({"requestedBy": null}), None),
            (json!({"activation": "Never"}), None),
            (json!({"optOut": "Forbidden", "failurePolicy": "Fail"}), None),
        ] {
            assert_eq!(one.contends_with(&profile(&b, &changes)), expected, "{changes}");
            assert_eq!(profile(&b, &changes).contends_with(&one), expected, "{changes}");
        }
        assert_eq!(one.contends_with(&one), None);
        assert_eq!(one.contends_with(&profile(&ProfileName::namespaced("shop", "b"), &json!({}))), None);
        let (red, blue) = (profile(&a, &selector("red")), profile(&b, &selector("blue")));
        assert_eq!(red.contends_with(&blue), None, "no namespace matches both selectors");
    }
}
