//! The labels with which namespaces opt in: Pillion's own label, and labels that a cluster already uses
//! (`istio-injection=enabled`).
//!
//! The labels are ordered, and **the first label that a namespace has decides**, regardless of its value. So a
//! namespace has at most one failure mode, and `pillion.dev/injection=disabled` overrides another label that would opt
//! the namespace in.

use thiserror::Error;

use crate::names::{FailureMode, GROUP, INJECTION_LABEL, NAMESPACE_NAME_LABEL};

/// A label with which namespaces opt in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptInLabel {
    /// The label's key.
    pub key: String,
    /// The values that opt a namespace in, each with its failure mode.
    pub values: Vec<(String, FailureMode)>,
}

/// All labels with which namespaces opt in, in order of precedence. There is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptIn {
    labels: Vec<OptInLabel>,
}

/// The reason why labels cannot be used for opting in.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OptInError {
    /// An argument does not have the form `KEY=VALUE` or `KEY=VALUE:MODE`.
    #[error("{0:?} is not an opt-in label: expected KEY=VALUE or KEY=VALUE:MODE; MODE is enabled, required or held")]
    Syntax(String),
    /// The key or value is not valid in a label.
    #[error("{0:?} is not a valid label key or value")]
    NotALabel(String),
    /// The key is the label that the API server sets on every namespace.
    #[error("{NAMESPACE_NAME_LABEL} is set on every namespace, so it cannot be an opt-in label")]
    NamespaceName,
    /// A value is listed twice, possibly with different failure modes.
    #[error("{key}={value} is given twice; a value can set only one failure mode")]
    Ambiguous {
        /// The label's key.
        key: String,
        /// The label's value.
        value: String,
    },
    /// The webhooks for two keys would have the same name.
    #[error("{0} and {1} result in the same webhook name; use only one of them")]
    SameName(String, String),
    /// The list of labels is empty.
    #[error("there is no opt-in label")]
    Empty,
}

impl Default for OptIn {
    /// Returns the list that contains only Pillion's own label.
    fn default() -> Self {
        let values = FailureMode::ALL.map(|failure_mode| (failure_mode.label_value().to_owned(), failure_mode));
        Self { labels: vec![OptInLabel { key: INJECTION_LABEL.to_owned(), values: values.into() }] }
    }
}

impl OptIn {
    /// Creates the list that contains only these labels, in this order of precedence.
    ///
    /// # Errors
    /// The list is empty, a label is invalid, or labels contradict each other.
    pub fn new(labels: Vec<OptInLabel>) -> Result<Self, OptInError> {
        if labels.is_empty() {
            return Err(OptInError::Empty);
        }
        for (index, label) in labels.iter().enumerate() {
            check(label)?;
            let same = |other: &&OptInLabel| dns_name(&other.key) == dns_name(&label.key);
            if let Some(other) = labels.iter().take(index).find(same) {
                return Err(OptInError::SameName(other.key.clone(), label.key.clone()));
            }
        }
        Ok(Self { labels })
    }

    /// Creates the list that contains Pillion's own label, followed by `others`. Each of the others has the form
    /// `KEY=VALUE:MODE`, or `KEY=VALUE` if the failure mode is `enabled`.
    ///
    /// # Errors
    /// An argument has a different form, a label is invalid, or labels contradict each other.
    pub fn with<'t>(others: impl IntoIterator<Item = &'t str>) -> Result<Self, OptInError> {
        let mut labels = Self::default().labels;
        for text in others {
            let syntax = || OptInError::Syntax(text.to_owned());
            let (key, rest) = text.split_once('=').ok_or_else(syntax)?;
            let (value, failure_mode) = rest.split_once(':').unwrap_or((rest, FailureMode::Enabled.label_value()));
            let failure_mode = FailureMode::from_label_value(failure_mode).ok_or_else(syntax)?;
            match labels.iter_mut().find(|label| label.key == key) {
                Some(label) => label.values.push((value.to_owned(), failure_mode)),
                None => labels.push(OptInLabel { key: key.to_owned(), values: vec![(value.to_owned(), failure_mode)] }),
            }
        }
        Self::new(labels)
    }

    /// Returns the labels, in order of precedence.
    #[must_use]
    pub fn labels(&self) -> &[OptInLabel] {
        &self.labels
    }

    /// Returns the first label and value, other than `pillion.dev/injection=held`, that set the failure mode `held`.
    /// `None` if there are none. The admission policies for waiting pods only support `pillion.dev/injection=held`.
    #[must_use]
    pub fn held_by_others(&self) -> Option<(&str, &str)> {
        let held =
            self.labels.iter().flat_map(|label| label.values_of(FailureMode::Held).map(|value| (&*label.key, value)));
        let own = (INJECTION_LABEL, FailureMode::Held.label_value());
        held.into_iter().find(|other| *other != own)
    }

    /// Returns the failure mode of a namespace; `None` if it is not opted in. `label` returns the value of the
    /// namespace's label with the given key.
    pub fn failure_mode<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> Option<FailureMode> {
        let (known, value) = self.labels.iter().find_map(|known| Some((known, label(&known.key)?)))?;
        known.values.iter().find(|(opts_in, _)| opts_in == value).map(|(_, failure_mode)| *failure_mode)
    }
}

impl OptInLabel {
    /// Returns the label values that set this failure mode.
    pub(crate) fn values_of(&self, failure_mode: FailureMode) -> impl Iterator<Item = &str> {
        self.values.iter().filter(move |(_, of)| *of == failure_mode).map(|(value, _)| &**value)
    }

    /// Returns the suffix of the names of this label's webhooks. For Pillion's own label, this is the API group.
    pub(crate) fn webhook_suffix(&self) -> String {
        if self.key == INJECTION_LABEL { GROUP.to_owned() } else { format!("{}.{GROUP}", dns_name(&self.key)) }
    }
}

fn check(label: &OptInLabel) -> Result<(), OptInError> {
    let OptInLabel { key, values } = label;
    if key == NAMESPACE_NAME_LABEL {
        return Err(OptInError::NamespaceName);
    }
    let (prefix, name) = key.split_once('/').map_or((None, key.as_str()), |(prefix, name)| (Some(prefix), name));
    if !is_label_text(name) || prefix.is_some_and(|prefix| !crate::names::is_dns_name(prefix)) {
        return Err(OptInError::NotALabel(key.clone()));
    }
    for (index, (value, _)) in values.iter().enumerate() {
        if !is_label_text(value) {
            return Err(OptInError::NotALabel(value.clone()));
        }
        if values.iter().take(index).any(|(earlier, _)| earlier == value) {
            return Err(OptInError::Ambiguous { key: key.clone(), value: value.clone() });
        }
    }
    Ok(())
}

/// Whether a string is a valid name or value of a label. An empty value is not allowed, because no namespace opts in
/// with it.
fn is_label_text(text: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    text.len() <= 63
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// Converts a label key to a DNS name: `sidecar.istio.io/inject` becomes `inject.sidecar.istio.io`.
fn dns_name(key: &str) -> String {
    let (prefix, name) = key.split_once('/').unwrap_or(("", key));
    let name = name.to_ascii_lowercase().replace(['_', '.'], "-");
    if prefix.is_empty() { name } else { format!("{name}.{prefix}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure_mode(opt_in: &OptIn, labels: &[(&str, &'static str)]) -> Option<FailureMode> {
        opt_in.failure_mode(|key| labels.iter().find(|(known, _)| *known == key).map(|(_, value)| *value))
    }

    #[test]
    fn first_present_label_decides() {
        let opt_in = OptIn::with(["istio-injection=enabled", "istio-injection=strict:required", "b=c:held"]).unwrap();
        let own = INJECTION_LABEL;
        for (labels, expected) in [
            (&[][..], None),
            (&[(own, "held")], Some(FailureMode::Held)),
            (&[(own, "maybe")], None),
            (&[("istio-injection", "enabled")], Some(FailureMode::Enabled)),
            (&[("istio-injection", "strict")], Some(FailureMode::Required)),
            (&[("istio-injection", "disabled")], None),
            (&[("b", "c")], Some(FailureMode::Held)),
            (&[("b", "c"), ("istio-injection", "disabled")], None),
            (&[("istio-injection", "enabled"), (own, "required")], Some(FailureMode::Required)),
            (&[("istio-injection", "enabled"), (own, "disabled")], None),
        ] {
            assert_eq!(failure_mode(&opt_in, labels), expected, "{labels:?}");
        }
        assert_eq!(failure_mode(&OptIn::default(), &[("istio-injection", "enabled")]), None);
    }

    #[test]
    fn rejects_contradictory_labels() {
        let wrong = |texts: &[&str]| OptIn::with(texts.iter().copied()).unwrap_err().to_string();
        for (texts, expected) in [
            (&["istio-injection"][..], "expected KEY=VALUE"),
            (&["a=b:firmly"], "enabled, required or held"),
            (&["a b=c"], "\"a b\" is not a valid label key"),
            (&["a="], "\"\" is not a valid label key"),
            (&["A/b=c"], "\"A/b\" is not a valid label key"),
            (&["a=b", "a=b:held"], "a=b is given twice"),
            (&["pillion.dev/injection=enabled:held"], "is given twice"),
            (&["a_b=c", "a.b=c"], "a_b and a.b result in the same webhook name"),
            (&["kubernetes.io/metadata.name=shop"], "every namespace"),
        ] {
            assert!(wrong(texts).contains(expected), "{texts:?}: {}", wrong(texts));
        }
        assert_eq!(OptIn::new(Vec::new()), Err(OptInError::Empty));
    }

    #[test]
    fn webhook_names_depend_on_key_only() {
        let opt_in = OptIn::with(["Sidecar_Injector=on", "sidecar.istio.io/inject=true"]).unwrap();
        let suffixes: Vec<_> = opt_in.labels().iter().map(OptInLabel::webhook_suffix).collect();
        assert_eq!(suffixes, ["pillion.dev", "sidecar-injector.pillion.dev", "inject.sidecar.istio.io.pillion.dev"]);
    }
}
