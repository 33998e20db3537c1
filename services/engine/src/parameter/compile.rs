//! From the text of a parameter to a [`Parameter`], or to what is wrong with it.

use pillion_api::parameter::{Keys, Parameter as Text, ParameterMerge, ParameterType, Source, TextFormat};
use regex::RegexBuilder;
use serde_json::Value as Json;

use super::{Bound, Key, Kind, Parameter, RecordField};
use crate::profile::Diagnostic;

/// How large a compiled regular expression may be, in bytes.
const MAX_PATTERN_BYTES: usize = 256 * 1024;

/// Compiles a parameter that stands at a field path.
///
/// # Errors
/// Everything that is wrong with it.
pub(crate) fn compile(path: &str, text: &Text) -> Result<Parameter, Vec<Diagnostic>> {
    let mut faults = Vec::new();
    let kind = kind(path, text, &mut faults);
    let keys = keys(text);
    let sources = text.sources.as_deref().unwrap_or_default();
    if sources.is_empty() && (!keys.is_empty() || text.annotation_prefix.is_some() || !text.fields.is_empty()) {
        faults.push(
            Diagnostic::new(format!("{path}.sources"), "a parameter with a key needs sources")
                .with_help("say who may set it: Pod, ServiceAccount, Namespace"),
        );
    }
    if !sources.is_empty() && keys.is_empty() && text.annotation_prefix.is_none() && text.fields.is_empty() {
        faults.push(
            Diagnostic::new(path, "a parameter with sources needs a key")
                .with_help("say annotation, label or annotationPrefix, or leave sources out"),
        );
    }
    if text.annotation_prefix.is_some() && text.type_ != Some(ParameterType::Map) {
        let fault = Diagnostic::new(format!("{path}.annotationPrefix"), "annotationPrefix makes a map");
        faults.push(fault.with_help("set type: map"));
    }
    if (text.type_ == Some(ParameterType::Records)) == text.fields.is_empty() {
        let fault = Diagnostic::new(format!("{path}.fields"), "type records and fields need one another");
        faults.push(fault.with_help("records are joined from families of annotations, one for each field"));
    }
    if text.default.as_ref().is_some_and(is_expression) {
        let fault = Diagnostic::new(format!("{path}.default"), "an expression is not supported here by this build");
        faults.push(fault.with_help("write the value itself"));
    }
    if sources.contains(&Source::ServiceAccount) {
        let fault = Diagnostic::new(format!("{path}.sources"), "ServiceAccount is not supported by this build");
        faults.push(fault.with_help("use Pod and Namespace"));
    }
    let default = match (&kind, &text.default) {
        (Some(kind), Some(default)) if !is_expression(default) => match kind.check(default.clone()) {
            Ok(default) => Some(default),
            Err(message) => {
                faults.push(Diagnostic::new(format!("{path}.default"), message));
                None
            }
        },
        (_, default) => default.clone(),
    };
    match kind {
        Some(kind) if faults.is_empty() => Ok(Parameter {
            name: text.name.as_str().into(),
            default,
            set_by_namespace: false,
            keys,
            prefix: text.annotation_prefix.as_deref().map(Box::from),
            sources: sources.to_vec(),
            merge: text.merge.unwrap_or(ParameterMerge::Replace),
            kind,
            on_invalid: text.on_invalid,
            fields: text
                .fields
                .iter()
                .map(|field| RecordField {
                    name: field.name.as_str().into(),
                    prefix: field.annotation_prefix.as_str().into(),
                    opens: field.opens.unwrap_or(false),
                })
                .collect(),
        }),
        _ => Err(faults),
    }
}

/// Whether a default is found by an expression.
fn is_expression(default: &Json) -> bool {
    match default {
        Json::String(text) => text.contains("${"),
        Json::Array(items) => items.iter().any(is_expression),
        Json::Object(fields) => fields.values().any(is_expression),
        Json::Null | Json::Bool(_) | Json::Number(_) => false,
    }
}

fn keys(text: &Text) -> Vec<Key> {
    let each = |keys: &Option<Keys>, make: fn(Box<str>) -> Key| -> Vec<Key> {
        match keys {
            None => Vec::new(),
            Some(Keys::One(key)) => vec![make(key.as_str().into())],
            Some(Keys::FirstOf(keys)) => keys.iter().map(|key| make(key.as_str().into())).collect(),
        }
    };
    let mut all = each(&text.label, Key::Label);
    all.extend(each(&text.annotation, Key::Annotation));
    all
}

fn kind(path: &str, text: &Text, faults: &mut Vec<Diagnostic>) -> Option<Kind> {
    let Some(type_) = text.type_ else {
        let fault = Diagnostic::new(format!("{path}.type"), "the type is missing");
        faults.push(fault.with_help("only a parameter of the profile that this one extends has a type already"));
        return None;
    };
    let pattern = match &text.pattern {
        Some(pattern) => match RegexBuilder::new(pattern).size_limit(MAX_PATTERN_BYTES).build() {
            Ok(pattern) => Some(pattern),
            Err(error) => {
                let path = format!("{path}.pattern");
                faults.push(Diagnostic::new(path, format!("cannot be used as a regular expression: {error}")));
                return None;
            }
        },
        None => None,
    };
    let items = match &text.items {
        Some(items) => {
            let path = format!("{path}.items");
            let mut items = items.clone();
            if let Some(fields) = items.as_object_mut() {
                // Items are described by the same words as a parameter, without a name of their own.
                fields.entry("name").or_insert_with(|| Json::from("item"));
            }
            match serde_json::from_value::<Text>(items) {
                Ok(items) => Some(Box::new(kind(&path, &items, faults)?)),
                Err(error) => {
                    faults.push(Diagnostic::new(path, error.to_string()));
                    return None;
                }
            }
        }
        None => None,
    };
    let format = text.format.unwrap_or(match type_ {
        ParameterType::Map => TextFormat::Pairs,
        ParameterType::Object => TextFormat::Json,
        _ => TextFormat::Csv,
    });
    let mut kind = Kind {
        type_,
        format,
        enum_: text.enum_.clone(),
        pattern,
        max_length: text.max_length.and_then(|length| usize::try_from(length).ok()),
        minimum: None,
        maximum: None,
        clamp: text.clamp.unwrap_or(false),
        items,
    };
    for (field, bound, is_minimum) in [("minimum", &text.minimum, true), ("maximum", &text.maximum, false)] {
        let Some(value) = bound else { continue };
        let Some(size) = kind.size(value) else {
            let message = format!("{value} is no end of a range of this type");
            faults.push(Diagnostic::new(format!("{path}.{field}"), message));
            return None;
        };
        let bound = Some(Bound { value: value.clone(), size });
        if is_minimum {
            kind.minimum = bound;
        } else {
            kind.maximum = bound;
        }
    }
    if let (Some(minimum), Some(maximum)) = (&kind.minimum, &kind.maximum)
        && minimum.size > maximum.size
    {
        let message = format!("the range from {} to {} is empty", minimum.value, maximum.value);
        faults.push(Diagnostic::new(format!("{path}.minimum"), message));
    }
    Some(kind)
}
