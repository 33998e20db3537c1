//! Parameters of profiles. A pod, a service account or a namespace sets their values, which are then checked.
//!
//! A parameter is read from an annotation or a label that another author wrote. It is parsed into a typed value and
//! checked. The value becomes a JSON node and is never inserted into text that is parsed again, so it cannot inject
//! code. Errors contain the key that holds the value.

mod default;
mod value;
mod resolve;

use std::sync::Arc;

use pillion_api::parameter::{Keys, OnInvalid, Parameter as Text, ParameterMerge, ParameterType, Source, TextFormat};
use pillion_api::profile::EmptyValue;
use serde_json::Value as Json;

use crate::diagnostic::Diagnostic;
use crate::expression::{Bindings, EvaluationError, Meter, Pattern, Scope};
use crate::lookup::Needs;
use default::Default;

pub(crate) use resolve::{Invalid, Metadata, NO_VALUES, Resolved, Sources, Values, resolve};

/// The message for a parameter whose field `empty` has no effect.
const EMPTY_OF_A_KEY: &str = "empty requires a single annotation or label";

/// A compiled parameter.
#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) name: Arc<str>,
    /// Whether a namespaced profile sets this inherited parameter.
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
    /// Whether a service account may set the parameter.
    pub(crate) fn reads_service_account(&self) -> bool {
        self.sources.contains(&Source::ServiceAccount)
    }

    /// Evaluates and checks the default. `None` if there is no default, or if it evaluates to an empty optional.
    pub(crate) fn default_value<'v>(
        &'v self,
        bindings: &dyn Bindings<'v>,
        meter: &mut Meter,
    ) -> Result<Option<Json>, EvaluationError> {
        match &self.default {
            None => Ok(None),
            Some(Default::Value(value, steps)) => {
                meter.charge(*steps)?;
                Ok(Some(value.clone()))
            }
            Some(Default::Computed(node)) => {
                let Some(value) = node.evaluate(bindings, meter)? else { return Ok(None) };
                meter.charge(self.kind.value_steps(&value))?;
                self.kind
                    .check(value)
                    .map(Some)
                    .map_err(|message| EvaluationError::new(format!("the default of params.{}: {message}", self.name)))
            }
        }
    }

    /// Returns the default if it is a constant.
    pub(crate) const fn plain_default(&self) -> Option<&Json> {
        match &self.default {
            Some(Default::Value(value, _)) => Some(value),
            _ => None,
        }
    }

    /// Adds the lookups that the parameter may need.
    pub(crate) fn add_needs(&self, needs: &mut Needs) {
        needs.service_account |= self.sources.contains(&Source::ServiceAccount);
        if let Some(Default::Computed(node)) = &self.default {
            node.each_expression(&mut |expression| needs.add(expression));
        }
    }
}

/// A key that may contain the parameter's value.
#[derive(Debug)]
enum Key {
    Annotation(Box<str>),
    Label(Box<str>),
}

/// A field of a parameter of type `records`. Its values come from the annotations with one prefix.
#[derive(Debug)]
struct RecordField {
    name: Box<str>,
    prefix: Box<str>,
    opens: bool,
}

/// The type and the constraints of a parameter's value.
#[derive(Debug)]
struct Kind {
    type_: ParameterType,
    format: TextFormat,
    enum_: Vec<Json>,
    pattern: Option<Pattern>,
    max_length: Option<usize>,
    minimum: Option<Bound>,
    maximum: Option<Bound>,
    clamp: bool,
    items: Option<Box<Self>>,
}

/// A limit of a range: the value as written, and its size in the base unit of the type.
#[derive(Debug)]
struct Bound {
    value: Json,
    size: f64,
}

/// Compiles a parameter at a field path. Its default may use the names in `scope`.
///
/// # Errors
/// Returns all diagnostics if the parameter is invalid.
pub(crate) fn compile(path: &str, text: &Text, scope: &Scope) -> Result<Parameter, Vec<Diagnostic>> {
    let mut diagnostics = Vec::new();
    let kind = kind(path, text, scope, &mut diagnostics);
    let keys = keys(text);
    let sources = text.sources.as_deref().unwrap_or_default();
    if sources.is_empty() && (!keys.is_empty() || text.annotation_prefix.is_some() || !text.fields.is_empty()) {
        diagnostics.push(
            Diagnostic::new(format!("{path}.sources"), "a parameter with a key needs sources")
                .with_help("set the objects that may set the value: Pod, ServiceAccount, Namespace"),
        );
    }
    if !sources.is_empty() && keys.is_empty() && text.annotation_prefix.is_none() && text.fields.is_empty() {
        diagnostics.push(
            Diagnostic::new(path, "a parameter with sources needs a key")
                .with_help("set annotation, label or annotationPrefix, or remove sources"),
        );
    }
    if text.annotation_prefix.is_some() && text.type_ != Some(ParameterType::Map) {
        let diagnostic =
            Diagnostic::new(format!("{path}.annotationPrefix"), "a parameter with annotationPrefix must be a map");
        diagnostics.push(diagnostic.with_help("set type: map"));
    }
    if (text.type_ == Some(ParameterType::Records)) == text.fields.is_empty() {
        let diagnostic = Diagnostic::new(
            format!("{path}.fields"),
            "type: records requires fields, and fields require type: records",
        );
        diagnostics.push(diagnostic.with_help("each field of the records is read from annotations with one prefix"));
    }
    check_empty(path, text, &mut diagnostics);
    check_fields(path, text, &mut diagnostics);
    check_format(path, text, &mut diagnostics);
    let default = match (&kind, &text.default) {
        (Some(kind), Some(default)) => {
            Default::compile(&format!("{path}.default"), default, kind, scope, &mut diagnostics)
        }
        _ => None,
    };
    match kind {
        Some(kind) if diagnostics.is_empty() => Ok(Parameter {
            name: text.name.as_str().into(),
            default,
            set_by_namespace: false,
            keys,
            empty: text.empty.unwrap_or_default(),
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
        _ => Err(diagnostics),
    }
}

/// Checks that `empty` is set only for a parameter that has `annotation` or `label`, and neither `annotationPrefix` nor
/// `fields`.
fn check_empty(path: &str, text: &Text, diagnostics: &mut Vec<Diagnostic>) {
    let is_gathered = text.annotation_prefix.is_some() || !text.fields.is_empty();
    if text.empty.is_none() || (!is_gathered && (text.annotation.is_some() || text.label.is_some())) {
        return;
    }
    let help = if is_gathered {
        "remove empty: each annotation with the prefix is part of the value"
    } else {
        "set annotation or label, or remove empty"
    };
    diagnostics.push(Diagnostic::new(format!("{path}.empty"), EMPTY_OF_A_KEY).with_help(help));
}

/// Checks that only types with a string form have `pattern` and `maxLength`, and only lists have `items`.
fn check_bounds(path: &str, type_: ParameterType, text: &Text, diagnostics: &mut Vec<Diagnostic>) {
    if text.items.is_some() && type_ != ParameterType::List {
        let diagnostic = Diagnostic::new(format!("{path}.items"), "only a list can have items");
        diagnostics.push(diagnostic.with_help("remove items, or set type: list"));
    }
    let help = match type_ {
        ParameterType::List => "set it in items, where it applies to each item",
        ParameterType::Map | ParameterType::Object | ParameterType::Records => {
            "remove it, and check the value in matchConditions"
        }
        _ => return,
    };
    for (field, is_set) in [("pattern", text.pattern.is_some()), ("maxLength", text.max_length.is_some())] {
        if is_set {
            let diagnostic = Diagnostic::new(
                format!("{path}.{field}"),
                "values of this type are not strings, so they cannot be checked this way",
            );
            diagnostics.push(diagnostic.with_help(help));
        }
    }
}

/// Checks the fields of records: their names are unique and different from `key`, and at least one field has
/// `opens: true`, so that its annotations create records.
fn check_fields(path: &str, text: &Text, diagnostics: &mut Vec<Diagnostic>) {
    for (index, field) in text.fields.iter().enumerate() {
        let path = format!("{path}.fields[{index}]");
        if field.name == "key" {
            let diagnostic = Diagnostic::new(
                format!("{path}.name"),
                "the name key is reserved for the part of the annotation after the prefix",
            );
            diagnostics.push(diagnostic.with_help("choose another name"));
        }
        if let Some(first) = text.fields.iter().take(index).position(|other| other.name == field.name) {
            let message = format!("the name {:?} is also used at fields[{first}]", field.name);
            diagnostics.push(Diagnostic::new(format!("{path}.name"), message));
        }
    }
    if !text.fields.is_empty() && !text.fields.iter().any(|field| field.opens == Some(true)) {
        let diagnostic =
            Diagnostic::new(format!("{path}.fields"), "no field opens a record, so the list would always be empty");
        diagnostics.push(diagnostic.with_help("set opens: true on the fields whose annotations create a record"));
    }
}

/// Checks that the format supports the type.
fn check_format(path: &str, text: &Text, diagnostics: &mut Vec<Diagnostic>) {
    let Some(format) = text.format else { return };
    let (allowed, names): (&[_], _) = match text.type_ {
        Some(ParameterType::List) => (&[TextFormat::Csv, TextFormat::Json, TextFormat::Yaml], "CSV, JSON, YAML"),
        Some(ParameterType::Map) => (&[TextFormat::Pairs, TextFormat::Json, TextFormat::Yaml], "Pairs, JSON, YAML"),
        Some(ParameterType::Object) => (&[TextFormat::Json, TextFormat::Yaml], "JSON, YAML"),
        _ => {
            let diagnostic = Diagnostic::new(format!("{path}.format"), "values of this type have only one format");
            diagnostics.push(diagnostic.with_help("remove format; only lists, maps and objects can have one"));
            return;
        }
    };
    if !allowed.contains(&format) {
        let diagnostic = Diagnostic::new(format!("{path}.format"), "this type does not support the format");
        diagnostics.push(diagnostic.with_help(format!("use one of {names}")));
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

/// Compiles the type and the constraints of a value. Adds errors to `diagnostics`. `None` after an error that prevents
/// further checks, such as a missing type or an invalid pattern.
fn kind(path: &str, text: &Text, scope: &Scope, diagnostics: &mut Vec<Diagnostic>) -> Option<Kind> {
    let Some(type_) = text.type_ else {
        let diagnostic = Diagnostic::new(format!("{path}.type"), "the type is missing");
        diagnostics
            .push(diagnostic.with_help("the type may be omitted only if the extended profile has this parameter"));
        return None;
    };
    check_bounds(path, type_, text, diagnostics);
    let pattern = match &text.pattern {
        Some(pattern) => match scope.pattern(pattern) {
            Ok(pattern) => Some(pattern),
            Err(error) => {
                diagnostics.push(Diagnostic::new(format!("{path}.pattern"), error));
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
                // Items are defined like parameters, but without a name, so a name is inserted before parsing.
                fields.entry("name").or_insert_with(|| Json::from("item"));
            }
            match serde_json::from_value::<Text>(items) {
                Ok(items) => {
                    if items.empty.is_some() {
                        let diagnostic = Diagnostic::new(format!("{path}.empty"), EMPTY_OF_A_KEY);
                        diagnostics.push(diagnostic.with_help("set it on the list, beside its annotation or label"));
                    }
                    Some(Box::new(kind(&path, &items, scope, diagnostics)?))
                }
                Err(error) => {
                    diagnostics.push(Diagnostic::new(path, error.to_string()));
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
            let message = format!("{value} is not a valid range limit for this type");
            diagnostics.push(Diagnostic::new(format!("{path}.{field}"), message));
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
        diagnostics.push(Diagnostic::new(format!("{path}.minimum"), message));
    }
    Some(kind)
}

#[cfg(test)]
mod tests;
