//! Parameters: what pod, service account or namespace may set in a profile, from where, and within which bounds.
//!
//! A parameter is read from text that somebody else wrote, an annotation or a label, into a typed value, checked, and then
//! only ever put into a JSON node; it never becomes text that is parsed again. What is wrong with a value is said with the
//! key that holds it.

mod compile;
mod default;
mod duration;
mod read;
mod resolve;
mod values;

use std::sync::Arc;

use pillion_api::parameter::{OnInvalid, ParameterMerge, ParameterType, Source, TextFormat};
use pillion_api::profile::EmptyValue;
use regex::Regex;
use serde_json::Value as Json;

pub(crate) use compile::compile;
pub(crate) use default::Default;
pub(crate) use resolve::{Invalid, Metadata, Resolved, Sources, resolve};
pub(crate) use values::{NONE as NO_VALUES, Values};

/// A parameter that was found to be right.
#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) name: Arc<str>,
    /// Whether the default is what a profile of the namespace sets: then `Namespace` is where it comes from.
    pub(crate) set_by_namespace: bool,
    pub(crate) default: Option<Default>,
    keys: Vec<Key>,
    empty: EmptyValue,
    prefix: Option<Box<str>>,
    sources: Vec<Source>,
    merge: ParameterMerge,
    kind: Kind,
    pub(crate) on_invalid: Option<OnInvalid>,
    fields: Vec<RecordField>,
}

impl Parameter {
    /// Whether a service account may set it.
    pub(crate) fn asks_service_account(&self) -> bool {
        self.sources.contains(&Source::ServiceAccount)
    }
}

/// Where a value is read from.
#[derive(Debug)]
enum Key {
    Annotation(Box<str>),
    Label(Box<str>),
}

/// One family of annotations of a parameter of type `records`.
#[derive(Debug)]
struct RecordField {
    name: Box<str>,
    prefix: Box<str>,
    opens: bool,
}

/// What a value has to be.
#[derive(Debug)]
struct Kind {
    type_: ParameterType,
    format: TextFormat,
    enum_: Vec<Json>,
    pattern: Option<Regex>,
    max_length: Option<usize>,
    minimum: Option<Bound>,
    maximum: Option<Bound>,
    clamp: bool,
    items: Option<Box<Self>>,
}

/// An end of a range: the value as its author wrote it, and its size in the type's base unit.
#[derive(Debug)]
struct Bound {
    value: Json,
    size: f64,
}

#[cfg(test)]
mod tests;
