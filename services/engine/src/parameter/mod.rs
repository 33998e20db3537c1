//! Parameters: values that a pod, a service account or a namespace sets in a profile, and the checks on them.
//!
//! A parameter is read from an annotation or a label that somebody else wrote. It is parsed into a typed value and
//! checked. It only ever becomes a JSON node, never text that is parsed again. An error about a value names the key
//! that holds it.

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

/// A compiled parameter.
#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) name: Arc<str>,
    /// Whether a namespaced profile set the default: then the value comes from `Namespace`.
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

/// The key that holds a value.
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

/// The type and the constraints of a value.
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

/// An end of a range: the value as written, and its size in the base unit of the type.
#[derive(Debug)]
struct Bound {
    value: Json,
    size: f64,
}

#[cfg(test)]
mod tests;
