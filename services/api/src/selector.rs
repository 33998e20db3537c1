//! Kubernetes label selectors: their fields, and how they match labels.
//!
//! The semantics are those of `metav1.LabelSelector`: all requirements must hold, an empty selector matches everything,
//! and `NotIn` and `DoesNotExist` also match if the label is absent.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Selects objects by their labels. Both parts must match. An empty selector selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LabelSelector {
    /// Labels that must exist with exactly these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements, all of which must be met.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

/// A requirement for one label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// How to compare the label's value with `values`.
    pub operator: Operator,
    /// The values of `In` and `NotIn`. Empty for `Exists` and `DoesNotExist`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// The operator of a [`Requirement`]: the relation between the label's value and `values`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    /// The label exists, with one of the values.
    In,
    /// The label is absent, or has none of the values.
    NotIn,
    /// The label exists.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

impl LabelSelector {
    /// Whether an object matches. `label` returns the value of the object's label with the given key.
    pub fn matches<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        self.match_labels.iter().all(|(key, value)| label(key) == Some(value.as_str()))
            && self.match_expressions.iter().all(|requirement| requirement.is_met_by(label(&requirement.key)))
    }

    /// Returns the field of the first invalid requirement, and a description of the error. `None` if the selector is
    /// valid.
    #[must_use]
    pub fn fault(&self) -> Option<(String, &'static str)> {
        self.match_expressions.iter().enumerate().find_map(|(index, requirement)| {
            let wants_values = matches!(requirement.operator, Operator::In | Operator::NotIn);
            let sentence = match (wants_values, requirement.values.is_empty()) {
                (true, true) => "operators In and NotIn need at least one value",
                (false, false) => "operators Exists and DoesNotExist take no values",
                _ => return None,
            };
            Some((format!("matchExpressions[{index}].values"), sentence))
        })
    }
}

/// Formats a selector as kubectl's `--selector` does, for example `app=web,tier in (a,b),!legacy`.
impl fmt::Display for LabelSelector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = self.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
        let requirements = self.match_expressions.iter().map(ToString::to_string);
        formatter.write_str(&labels.chain(requirements).collect::<Vec<_>>().join(","))
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, operator, values } = self;
        let values = values.join(",");
        match operator {
            Operator::In => write!(formatter, "{key} in ({values})"),
            Operator::NotIn => write!(formatter, "{key} notin ({values})"),
            Operator::Exists => formatter.write_str(key),
            Operator::DoesNotExist => write!(formatter, "!{key}"),
        }
    }
}

impl Requirement {
    fn is_met_by(&self, value: Option<&str>) -> bool {
        let listed = || value.is_some_and(|value| self.values.iter().any(|listed| listed == value));
        match self.operator {
            Operator::In => listed(),
            Operator::NotIn => !listed(),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(json: &str) -> LabelSelector {
        serde_json::from_str(json).unwrap()
    }

    fn matches(json: &str, labels: &[(&str, &str)]) -> bool {
        selector(json).matches(|key| labels.iter().find(|(k, _)| *k == key).map(|(_, v)| *v))
    }

    #[test]
    fn empty_selector_matches_everything() {
        assert!(matches("{}", &[]));
        assert!(matches("{}", &[("a", "b")]));
    }

    #[test]
    fn selector_requires_every_part() {
        let both = r#"{"matchLabels":{"a":"1"},"matchExpressions":[{"key":"b","operator":"Exists"}]}"#;
        assert!(matches(both, &[("a", "1"), ("b", "x")]));
        assert!(!matches(both, &[("a", "1")]));
        assert!(!matches(both, &[("b", "x")]));
    }

    #[test]
    fn absent_label_satisfies_negative_operators_only() {
        for (operator, values, absent, other, listed) in [
            ("In", r#"["x"]"#, false, false, true),
            ("NotIn", r#"["x"]"#, true, true, false),
            ("Exists", "[]", false, true, true),
            ("DoesNotExist", "[]", true, false, false),
        ] {
            let json = format!(r#"{{"matchExpressions":[{{"key":"k","operator":"{operator}","values":{values}}}]}}"#);
            assert_eq!(matches(&json, &[]), absent, "{operator}, absent");
            assert_eq!(matches(&json, &[("k", "y")]), other, "{operator}, other value");
            assert_eq!(matches(&json, &[("k", "x")]), listed, "{operator}, listed value");
        }
    }

    #[test]
    fn checks_values_by_operator() {
        let fault = |json| selector(json).fault().map(|(path, _)| path);
        assert_eq!(
            fault(r#"{"matchExpressions":[{"key":"k","operator":"Exists"},{"key":"k","operator":"In"}]}"#).as_deref(),
            Some("matchExpressions[1].values")
        );
        assert!(fault(r#"{"matchExpressions":[{"key":"k","operator":"Exists","values":["x"]}]}"#).is_some());
        assert!(fault(r#"{"matchExpressions":[{"key":"k","operator":"NotIn","values":["x"]}]}"#).is_none());
    }

    #[test]
    fn is_written_as_by_kubectl() {
        let all = r#"{"matchLabels":{"app":"web","a":"1"},"matchExpressions":[
            {"key":"tier","operator":"In","values":["x","y"]}, {"key":"zone","operator":"NotIn","values":["z"]},
            {"key":"team","operator":"Exists"}, {"key":"legacy","operator":"DoesNotExist"}]}"#;
        assert_eq!(selector(all).to_string(), "a=1,app=web,tier in (x,y),zone notin (z),team,!legacy");
    }

    #[test]
    fn rejects_unknown_field() {
        assert!(serde_json::from_str::<LabelSelector>(r#"{"matchLabel":{}}"#).is_err());
    }
}
