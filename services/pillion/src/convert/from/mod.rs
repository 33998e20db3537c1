//! Conversions from the configuration of other injectors to profiles: values in, values out, and what is wrong with them by
//! document and path. They read no files and know nothing of the program, so that tests of the engine use them as they are.

pub(crate) mod morvencao;
pub(crate) mod opentelemetry;
pub(crate) mod sidecarset;
pub(crate) mod tumblr;

use serde_json::{Map, Value as Json};

/// A document that is converted.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    /// The file that it comes from, or what stands for one: other documents name it so.
    pub(crate) file: String,
    /// What it says.
    pub(crate) value: Json,
}

/// What became of documents.
#[derive(Clone, Debug, Default)]
pub(crate) struct Converted {
    /// The profiles, in the order of the documents.
    pub(crate) profiles: Vec<Json>,
    /// What no profile says, or says otherwise.
    pub(crate) notes: Vec<Remark>,
}

/// Something about a place in one of the documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remark {
    /// Which document, counted from zero.
    pub(crate) document: usize,
    /// The path of the field: `containers[0].name`.
    pub(crate) path: String,
    /// What there is to say, without a full stop.
    pub(crate) message: String,
    /// What to do.
    pub(crate) help: Option<String>,
}

impl Remark {
    /// About the field at a path of a document.
    pub(crate) fn new(document: usize, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { document, path: path.into(), message: message.into(), help: None }
    }

    /// The same with a word on what to do.
    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// Whether a value says nothing, as Go writes fields that are not set.
fn is_nothing(value: &Json) -> bool {
    match value {
        Json::Null => true,
        Json::String(text) => text.is_empty(),
        Json::Array(items) => items.is_empty(),
        Json::Object(members) => members.values().all(is_nothing),
        Json::Bool(_) | Json::Number(_) => false,
    }
}

/// A value as a template has it: what begins an expression there is text here, and what is null is not there.
///
/// # Errors
/// The path of a key that a template would take for a directive or an expression.
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

/// A text in which nothing begins an expression.
fn escaped(text: &str) -> String {
    text.replace("${", "$${")
}

/// A text as an expression has it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// A name of Kubernetes that is as near to a text as can be.
fn object_name(text: &str) -> String {
    let lower = text.to_lowercase();
    let mapped = lower.chars().map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' });
    let short: String = mapped.take(63).collect();
    let name = short.trim_matches('-');
    if name.is_empty() { "unnamed".to_owned() } else { name.to_owned() }
}
