//! The keys of a policy file: type, default, range and meaning.
//!
//! The keys are read from the JSON schema of the file's types, so each key is described once, at its field:
//!
//! * The doc comment is the meaning, in Markdown.
//! * `range`: the smallest and the largest allowed value. `null` is always allowed where the type is an `Option`.
//! * `expected`: describes the values that the type accepts, if there is no range.
//! * `reloaded`, on a section: a change takes effect at run time. Otherwise it needs a restart.
//!
//! The keys are used to check values against their ranges, and to find the keys that a reload changes. [`table`]
//! generates the tables in `docs/configuration.md`.

use std::fmt::Write as _;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::units::{DURATION, SIZE, Size, Time};

/// A key of a policy file.
#[derive(Debug)]
pub(crate) struct Setting {
    /// The path, such as `requests.maxBody`.
    pub(crate) path: String,
    /// Whether a change takes effect at run time.
    pub(crate) is_reloaded: bool,
    /// The meaning, in Markdown.
    pub(crate) meaning: String,
    pub(crate) default: Value,
    kind: Kind,
    is_optional: bool,
    range: Option<[Value; 2]>,
    expected: Option<String>,
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Boolean,
    Count,
    Duration,
    List,
    Map,
    Number,
    Size,
    Text,
}

/// A value that can have a range. Only values of the same variant are compared.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Amount {
    Duration(Time),
    Size(Size),
    Number(f64),
}

/// Returns the keys of a policy file, except `apiVersion` and `kind`, in the order in which its types declare them.
pub(super) fn of<P: JsonSchema>() -> Vec<Setting> {
    let mut generator = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    generator.meta_schema = None;
    let schema = generator.into_generator().into_root_schema_for::<P>();
    let mut settings = Vec::new();
    let sections = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    for (name, section) in sections.filter(|(name, _)| !["apiVersion", "kind"].contains(&name.as_str())) {
        let is_reloaded = section.get("reloaded").is_some();
        add(&mut settings, name.clone(), section, is_reloaded);
    }
    settings
}

/// Adds a key, or all keys of a map with fixed keys.
fn add(settings: &mut Vec<Setting>, path: String, schema: &Value, is_reloaded: bool) {
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        for (name, schema) in properties {
            add(settings, format!("{path}.{name}"), schema, is_reloaded);
        }
        return;
    }
    let text = |key: &str| schema.get(key).and_then(Value::as_str);
    let types: Vec<&str> = match schema.get("type") {
        Some(Value::Array(types)) => types.iter().filter_map(Value::as_str).collect(),
        other => other.and_then(Value::as_str).into_iter().collect(),
    };
    let kind = match (text("format"), types.first().copied()) {
        (Some(DURATION), _) => Kind::Duration,
        (Some(SIZE), _) => Kind::Size,
        (_, Some("boolean")) => Kind::Boolean,
        (_, Some("integer")) => Kind::Count,
        (_, Some("number")) => Kind::Number,
        (_, Some("array")) => Kind::List,
        (_, Some("object")) => Kind::Map,
        _ => Kind::Text,
    };
    let range = match schema.get("range").and_then(Value::as_array).map(Vec::as_slice) {
        Some([least, most]) => Some([least.clone(), most.clone()]),
        _ => None,
    };
    settings.push(Setting {
        path,
        is_reloaded,
        meaning: text("description").unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" "),
        default: schema.get("default").cloned().unwrap_or_default(),
        kind,
        is_optional: types.contains(&"null"),
        range,
        expected: text("expected").map(str::to_owned),
    });
}

impl Setting {
    /// Returns the value of this key in a policy's tree; null if the tree does not contain the key.
    pub(crate) fn value<'p>(&self, policy: &'p Value) -> &'p Value {
        self.path.split('.').fold(policy, |value, key| value.get(key).unwrap_or(&Value::Null))
    }

    /// Returns a message if the value of this key in a policy's tree is out of range.
    pub(crate) fn out_of_range(&self, policy: &Value) -> Option<String> {
        let [least, most] = self.range.as_ref()?;
        let value = self.value(policy);
        if self.is_optional && value.is_null() {
            return None;
        }
        let found = self.amount(value);
        let is_within = self.amount(least) <= found && found <= self.amount(most);
        (!is_within).then(|| format!("expected {}, found {}", self.range(), plain(value)))
    }

    fn amount(&self, value: &Value) -> Option<Amount> {
        match self.kind {
            Kind::Duration => Time::parse(value.as_str()?).map(Amount::Duration),
            Kind::Size => Size::parse(value.as_str()?).map(Amount::Size),
            _ => value.as_f64().map(Amount::Number),
        }
    }

    /// Formats the expected values. Returns an empty string if the key does not describe them.
    fn range(&self) -> String {
        let or_null = if self.is_optional { ", or null" } else { "" };
        match (&self.range, &self.expected) {
            (Some([least, most]), _) => format!("{} to {}{or_null}", plain(least), plain(most)),
            (None, Some(expected)) => expected.clone(),
            (None, None) if self.kind == Kind::Boolean => "`true` or `false`".to_owned(),
            (None, None) => String::new(),
        }
    }

    /// Returns the name of the type.
    fn type_name(&self) -> String {
        let name = match self.kind {
            Kind::Boolean => "boolean",
            Kind::Count => "whole number",
            Kind::Duration => "duration",
            Kind::List => "list of strings",
            Kind::Map => "map",
            Kind::Number => "number",
            Kind::Size => "size",
            Kind::Text => "string",
        };
        if self.is_optional { format!("{name} or null") } else { name.to_owned() }
    }
}

/// Formats a value for a message: a string without quotes, other values as JSON.
pub(super) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the table of a file's keys, for `docs/configuration.md`.
pub(crate) fn table(settings: &[Setting]) -> String {
    let mut table = "| key | type | default | range | reloaded | meaning |\n|---|---|---|---|---|---|\n".to_owned();
    for setting in settings {
        let default = plain(&setting.default).replace("\",\"", "\", \"").replace('"', "");
        let reloaded = if setting.is_reloaded { "yes" } else { "no" };
        let (path, type_name, range) = (&setting.path, setting.type_name(), setting.range());
        // Writing to a string never fails.
        let _ =
            writeln!(table, "| `{path}` | {type_name} | `{default}` | {range} | {reloaded} | {} |", setting.meaning);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::read::PolicyFile;
    use super::super::{ControllerPolicy, WebhookPolicy};
    use super::*;

    /// Checks that each key is described, and that its default is within its range.
    fn check<P: PolicyFile>() {
        let defaults = P::default().to_value();
        let settings = P::settings();
        assert!(settings.len() > 15, "{settings:?}");
        for setting in settings {
            assert_eq!(setting.value(&defaults), &setting.default, "{}", setting.path);
            assert_eq!(setting.out_of_range(&defaults), None, "{}", setting.path);
            assert!(setting.meaning.ends_with('.') && !setting.range().is_empty(), "{setting:?}");
            if let Some([least, most]) = &setting.range {
                let (least, most) = (setting.amount(least).unwrap(), setting.amount(most).unwrap());
                assert!(least < most, "{setting:?}");
            }
        }
    }

    #[test]
    fn every_key_has_meaning_range_and_valid_default() {
        check::<WebhookPolicy>();
        check::<ControllerPolicy>();
    }

    #[test]
    fn changed_keys_are_found() {
        let before = WebhookPolicy::default();
        let mut after = before.clone();
        after.requests.max_body = Size(1 << 20);
        after.cluster.insert("region".to_owned(), "eu".into());
        let (before, after) = (before.to_value(), after.to_value());
        let changed = WebhookPolicy::settings().iter().filter(|key| key.value(&before) != key.value(&after));
        let changed: Vec<_> = changed.map(|setting| (setting.path.as_str(), setting.is_reloaded)).collect();
        assert_eq!(changed, [("cluster", true), ("requests.maxBody", false)]);
    }
}
