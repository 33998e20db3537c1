//! Converts the configuration of other injectors to profiles. The conversions take and return values, and report
//! problems by document and path. They read no files and use no other module of this crate, so tests of other crates
//! can include this module.

pub(crate) mod morvencao;
pub(crate) mod opentelemetry;
pub(crate) mod sidecarset;
pub(crate) mod tumblr;

use serde_json::{Map, Value as Json};

/// A document to convert.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    /// The path of its file, or a generated one. Other documents reference it by this path.
    pub(crate) file: String,
    /// The content.
    pub(crate) value: Json,
}

/// The profiles and remarks that a conversion produces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Converted {
    /// The profiles, in the order of the documents.
    pub(crate) profiles: Vec<Json>,
    /// Remarks on parts that were omitted or converted with differences.
    pub(crate) notes: Vec<Remark>,
}

/// A remark on a field of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remark {
    /// The document's index.
    pub(crate) document: usize,
    /// The path of the field: `containers[0].name`.
    pub(crate) path: String,
    /// The message, without a full stop.
    pub(crate) message: String,
    /// The remedy, if there is one.
    pub(crate) help: Option<String>,
}

impl Remark {
    /// Returns a remark on the field at this path.
    pub(crate) fn new(document: usize, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { document, path: path.into(), message: message.into(), help: None }
    }

    /// Adds a remedy.
    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// Whether a value is empty: null, an empty string or list, or an object whose members are all empty.
fn is_empty_value(value: &Json) -> bool {
    match value {
        Json::Null => true,
        Json::String(text) => text.is_empty(),
        Json::Array(items) => items.is_empty(),
        Json::Object(members) => members.values().all(is_empty_value),
        Json::Bool(_) | Json::Number(_) => false,
    }
}

/// Converts a value to a literal in a template: escapes expressions, and omits fields that are null.
///
/// # Errors
/// The path of a key that a template would interpret as a directive or an expression.
fn literal(value: &Json, path: &str) -> Result<Json, String> {
    Ok(match value {
        Json::String(text) => Json::from(escaped(text)),
        Json::Array(items) => {
            let items = items.iter().enumerate().map(|(index, item)| literal(item, &format!("{path}[{index}]")));
            Json::Array(items.collect::<Result<_, _>>()?)
        }
        Json::Object(members) => Json::Object(literal_members(members, path)?),
        other => other.clone(),
    })
}

fn literal_members(members: &Map<String, Json>, path: &str) -> Result<Map<String, Json>, String> {
    let there = members.iter().filter(|(_, member)| !member.is_null());
    let literal = there.map(|(key, member)| {
        let path = format!("{path}.{key}");
        if key.starts_with('$') || key.contains("${") { Err(path) } else { Ok((key.clone(), literal(member, &path)?)) }
    });
    literal.collect()
}

/// Escapes expressions in a string.
fn escaped(text: &str) -> String {
    text.replace("${", "$${")
}

/// Quotes a string for an expression.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// Converts a string to a valid Kubernetes object name: at most 63 characters, in lower case, with hyphens instead of
/// invalid characters.
fn object_name(text: &str) -> String {
    let lower = text.to_lowercase();
    let mapped = lower.chars().map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' });
    let short: String = mapped.take(63).collect();
    let name = short.trim_matches('-');
    if name.is_empty() { "unnamed".to_owned() } else { name.to_owned() }
}
