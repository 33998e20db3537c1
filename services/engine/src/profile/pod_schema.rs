//! The fields of a pod and their types, as a small table.
//!
//! The table is a text file with one line for each type. It is parsed only while a profile is checked, so that replicas
//! do not keep the parsed table in memory. `just generate` creates the file from the API server's OpenAPI document.
//!
//! The API server also rejects pods that violate rules about several fields of a container. This module checks these
//! rules too.

use std::collections::BTreeMap;

use crate::expression::Quantity;
use crate::json;
use crate::schema::{HOOK_HANDLERS, PROBE_HANDLERS};

/// Lines of `Type field:kind field:kind`, sorted by type.
const TABLE: &str = include_str!("pod_schema.txt");

/// The values that Kubernetes accepts as the `restartPolicy` of an init container. `Always` makes it a native sidecar.
/// API servers before 1.35 accept no other value.
pub(super) const RESTART_POLICIES: &str = "Always|Never|OnFailure";

/// The parsed table. It exists only while a profile is checked.
#[derive(Debug)]
pub(super) struct PodSchema {
    types: BTreeMap<&'static str, &'static str>,
}

/// The kind of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A string.
    Text,
    /// The name of a container or volume.
    Label,
    /// The name of an environment variable.
    EnvName,
    /// An image reference.
    Image,
    /// One of the given words, which are separated by `|`. A word that ends with `*` matches all strings with that
    /// prefix.
    Word(&'static str),
    /// True or false.
    Boolean,
    /// A 32-bit integer.
    Int32,
    /// A 64-bit integer.
    Int64,
    /// A quantity, such as `100m`, `1Gi` or 2.
    Quantity,
    /// An integer or a string, such as a port number or name, or a number or percentage.
    IntOrString,
    /// Any value.
    Any,
    /// A list of elements of the given kind.
    List(&'static str),
    /// A map from strings to values of the given kind.
    Map(&'static str),
    /// An object of the given type.
    Object(&'static str),
}

impl PodSchema {
    /// Parses the table.
    pub(super) fn new() -> Self {
        let types = TABLE.lines().filter_map(|line| line.split_once(' ')).collect();
        Self { types }
    }

    /// Returns the fields of a type, sorted by name.
    pub(super) fn fields(&self, of: &str) -> impl Iterator<Item = (&'static str, Kind)> + use<> {
        let fields = self.types.get(of).copied().unwrap_or_default();
        fields.split(' ').filter_map(|field| field.split_once(':')).map(|(name, kind)| (name, Kind::of(kind)))
    }

    /// Returns the kind of a field of a type. `None` if the type has no such field.
    pub(super) fn field(&self, of: &str, name: &str) -> Option<Kind> {
        match (of, name) {
            ("Pod", "metadata") => Some(Kind::Object("ObjectMeta")),
            ("Pod", "spec") => Some(Kind::Object("PodSpec")),
            ("Container" | "Volume", "name") => Some(Kind::Label),
            ("Container", "image") => Some(Kind::Image),
            ("EnvVar", "name") => Some(Kind::EnvName),
            _ => self.fields(of).find(|(field, _)| *field == name).map(|(_, kind)| kind),
        }
    }

    /// Returns the paths below a type that lead to a field with this name. Returns only the nearest ones, within
    /// `steps` levels.
    pub(super) fn below(&self, of: &'static str, name: &str, steps: usize) -> Vec<String> {
        let mut level = vec![(String::new(), of)];
        for _ in 0..steps {
            let mut next = Vec::new();
            for (path, of) in level {
                for (field, kind) in self.fields(of) {
                    if let Some((mark, below)) = kind.object() {
                        next.push((format!("{path}{field}{mark}."), below));
                    }
                }
            }
            let found = next.iter().filter_map(|(path, of)| {
                let same = self.fields(of).find(|(field, _)| field.eq_ignore_ascii_case(name));
                same.map(|(field, _)| format!("{path}{field}"))
            });
            let found: Vec<_> = found.collect();
            if !found.is_empty() {
                return found;
            }
            level = next;
        }
        Vec::new()
    }
}

impl Kind {
    /// Parses a kind in the notation of the table.
    pub(super) fn of(text: &'static str) -> Self {
        let inner = |open, close| text.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
        match text {
            "string" => Self::Text,
            "boolean" => Self::Boolean,
            "int32" => Self::Int32,
            "int64" => Self::Int64,
            "quantity" => Self::Quantity,
            "intOrString" => Self::IntOrString,
            "any" => Self::Any,
            _ if text.contains('|') => Self::Word(text),
            _ => match (inner('[', ']'), inner('{', '}')) {
                (Some(item), _) => Self::List(item),
                (_, Some(value)) => Self::Map(value),
                _ => Self::Object(text),
            },
        }
    }

    /// Returns the path suffix and the object type, for an object or a list of objects.
    fn object(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Object(of) => Some(("", of)),
            Self::List(item) => match Self::of(item) {
                Self::Object(of) => Some(("[]", of)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the kind of a list's elements. A list within a list is spliced into the outer list, so the elements of
    /// both have the same kind.
    pub(super) fn element(self) -> Self {
        match self {
            Self::List(item) => Self::of(item),
            other => other,
        }
    }

    /// Returns the Kubernetes rule that the string violates. `None` if the string is valid.
    pub(super) fn rule_broken_by(self, text: &str) -> Option<&'static str> {
        match self {
            Self::Label if !is_label(text) => {
                Some("at most 63 lower-case letters, digits and '-', with a letter or digit at both ends")
            }
            Self::EnvName
                if text.is_empty() || text.bytes().any(|byte| byte == b'=' || !(b' '..=b'~').contains(&byte)) =>
            {
                Some("at least one printable ASCII character, and no '='")
            }
            Self::Image if text.is_empty() || text.trim() != text => {
                Some("the name of an image, without leading or trailing spaces")
            }
            Self::Word(words) if !is_one_of(words, text) => Some("one of the values that Kubernetes accepts here"),
            Self::Quantity if !Quantity::is_written(text) => Some("a quantity, for instance 100m, 0.5, 1Gi"),
            _ => None,
        }
    }

    /// Returns the first error in a computed value of this kind. For an object, checks only the rules about several
    /// fields.
    fn mistake_in(self, value: json::Value<'_>) -> Option<InvalidValue> {
        let wrong = || Some(InvalidValue::Type(format!("expected {}, found {}", self.expected(), called(value))));
        match self {
            Self::Any => None,
            Self::Text
            | Self::Label
            | Self::EnvName
            | Self::Image
            | Self::Word(_)
            | Self::Quantity
            | Self::IntOrString => match (value.as_str(), self) {
                (Some(text), _) => self
                    .rule_broken_by(&text)
                    .map(|rule| InvalidValue::Type(format!("expected {rule}; found {:?}", shown(&text)))),
                (None, Self::Quantity) if value.kind() == json::Kind::Number => None,
                (None, Self::IntOrString) if value.raw().parse::<i32>().is_ok() => None,
                (None, _) => wrong(),
            },
            Self::Boolean if value.as_bool().is_some() => None,
            Self::Int32 if value.raw().parse::<i32>().is_ok() => None,
            Self::Int64 if value.raw().parse::<i64>().is_ok() => None,
            Self::List(item) if value.kind() == json::Kind::Array => {
                let item = Self::of(item);
                value.items().find_map(|value| item.mistake_in(value))
            }
            Self::Map(item) if value.kind() == json::Kind::Object => {
                let item = Self::of(item);
                value.members().find_map(|(_, value)| item.mistake_in(value))
            }
            Self::Object(of) if value.kind() == json::Kind::Object => {
                violation(of, value, Completeness::Partial).map(InvalidValue::Combination)
            }
            Self::Boolean | Self::Int32 | Self::Int64 | Self::List(_) | Self::Map(_) | Self::Object(_) => wrong(),
        }
    }

    /// Returns a description of the expected value for messages.
    pub(super) fn expected(self) -> String {
        match self {
            Self::Text | Self::Label | Self::EnvName | Self::Image => "a string".to_owned(),
            Self::Word(words) => {
                let words: Vec<_> = words.split('|').filter(|word| !word.is_empty()).collect();
                match words.split_last() {
                    Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
                    _ => words.concat(),
                }
            }
            Self::Boolean => "a boolean".to_owned(),
            Self::Int32 | Self::Int64 => "an integer".to_owned(),
            Self::Quantity => "a quantity".to_owned(),
            Self::IntOrString => "an integer or a string".to_owned(),
            Self::Any => "any value".to_owned(),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) | Self::Object(_) => "an object".to_owned(),
        }
    }
}

/// The kind of value that an expression must compute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub(super) kind: Kind,
    /// Whether the expression is an element of a list. Its result may then also be a list of elements.
    pub(super) is_element: bool,
}

/// An error in a computed value, with a description. The API server would reject the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InvalidValue {
    /// The field does not allow this type of value, or this string.
    Type(String),
    /// The fields of the value violate a rule about several fields.
    Combination(String),
}

impl Expected {
    /// The expected value of a computed `restartPolicy` of an init container.
    pub(crate) const RESTART_POLICY: Self = Self { kind: Kind::Word(RESTART_POLICIES), is_element: false };

    /// Checks a computed value. The API server would reject the pod if the patch contained a value of the wrong type.
    ///
    /// # Errors
    /// Returns the first error.
    pub(crate) fn check(self, value: json::Value<'_>) -> Result<(), InvalidValue> {
        let mistake = match value.kind() {
            json::Kind::Array if self.is_element => value.items().find_map(|item| self.kind.mistake_in(item)),
            _ => self.kind.mistake_in(value),
        };
        mistake.map_or(Ok(()), Err)
    }

    /// Whether a computed string must be checked. True for all kinds except `Any` and `Text`.
    pub(crate) fn has_rule(self) -> bool {
        !matches!(self.kind, Kind::Any | Kind::Text)
    }
}

/// Whether a string is one of the words separated by `|`. A word that ends with `*` stands for all strings with that
/// prefix.
pub(super) fn is_one_of(words: &str, text: &str) -> bool {
    let is = |word: &str| word.strip_suffix('*').map_or(word == text, |begin| text.starts_with(begin));
    words.split('|').any(is)
}

/// Whether a string is a DNS label.
pub(super) fn is_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn called(value: json::Value<'_>) -> &'static str {
    match value.kind() {
        json::Kind::Null => "null",
        json::Kind::True | json::Kind::False => "a boolean",
        json::Kind::Number => "a number",
        json::Kind::String | json::Kind::EscapedString => "a string",
        json::Kind::Array => "a list",
        json::Kind::Object => "an object",
    }
}

/// Truncates a string for messages.
fn shown(text: &str) -> &str {
    const LETTERS: usize = 60;
    text.char_indices().nth(LETTERS).map_or(text, |(end, _)| text.get(..end).unwrap_or(text))
}

/// Returns the type of a container's field that has rules about several of its own fields; `None` for another field.
pub(crate) fn ruled_type(field: &str) -> Option<&'static str> {
    match field {
        "resources" => Some("ResourceRequirements"),
        "livenessProbe" | "readinessProbe" | "startupProbe" => Some("Probe"),
        "lifecycle" => Some("Lifecycle"),
        _ => None,
    }
}

/// Whether a value contains all its fields.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Completeness {
    Complete,
    /// The value is merged into an existing one, which may contain the missing handler.
    Partial,
}

/// Returns a description of the rule that a value of this type violates. `None` if it violates none. Null fields are
/// treated as absent.
pub(crate) fn violation(type_name: &str, value: json::Value<'_>, completeness: Completeness) -> Option<String> {
    let below = |type_of: fn(&str) -> Option<&'static str>| {
        present(value).find_map(|(name, field)| {
            let name = name.text();
            let rule = violation(type_of(&name)?, field, completeness)?;
            Some(format!("{name}: {rule}"))
        })
    };
    match type_name {
        "Container" => below(ruled_type),
        "Lifecycle" => below(|hook| ["postStart", "preStop"].contains(&hook).then_some("LifecycleHandler")),
        "ResourceRequirements" => {
            let (limits, requests) = (value.get("limits")?, value.get("requests")?);
            limits.members().find_map(|(name, limit)| {
                let name = name.text();
                above_limit(&name, quantity(requests.get(&name)?)?, quantity(limit)?)
            })
        }
        _ => {
            let known = handlers(type_name)?;
            match present(value).filter(|(name, _)| known.contains(&&*name.text())).count() {
                1 => None,
                0 if completeness == Completeness::Partial => None,
                _ => {
                    let is_present = |name: &str| value.get(name).is_some_and(|handler| !handler.is_null());
                    let found: Vec<_> = known.iter().copied().filter(|name| is_present(name)).collect();
                    Some(wrong_number_of_handlers(known, &found))
                }
            }
        }
    }
}

/// Returns the members of an object that are not null.
fn present(value: json::Value<'_>) -> impl Iterator<Item = (json::Key<'_>, json::Value<'_>)> {
    value.members().filter(|(_, field)| !field.is_null())
}

/// Returns the handlers of a probe or hook, which must have exactly one. `None` for another type.
pub(super) fn handlers(type_name: &str) -> Option<&'static [&'static str]> {
    match type_name {
        "Probe" => Some(&PROBE_HANDLERS),
        "LifecycleHandler" => Some(&HOOK_HANDLERS),
        _ => None,
    }
}

fn quantity(value: json::Value<'_>) -> Option<Quantity> {
    match value.as_str() {
        Some(text) => Quantity::read(&text),
        None => Quantity::read(value.raw()),
    }
}

pub(super) fn wrong_number_of_handlers(known: &[&str], found: &[&str]) -> String {
    let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
    format!("expected exactly one of {}; found {found}", known.join(", "))
}

/// Returns a description of a resource request that exceeds its limit. `None` if it does not.
pub(super) fn above_limit(name: &str, requests: Quantity, limit: Quantity) -> Option<String> {
    requests
        .is_more_than(limit)
        .then(|| format!("requests {requests} of {name}, which is more than its limit of {limit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_fields_have_kinds() {
        let schema = PodSchema::new();
        for (of, field, kind) in [
            ("PodSpec", "containers", Kind::List("Container")),
            ("PodSpec", "nodeSelector", Kind::Map("string")),
            ("PodSpec", "hostNetwork", Kind::Boolean),
            ("Container", "image", Kind::Image),
            ("Container", "workingDir", Kind::Text),
            ("Container", "imagePullPolicy", Kind::Word("Always|IfNotPresent|Never")),
            ("ContainerPort", "containerPort", Kind::Int32),
            ("PodSpec", "terminationGracePeriodSeconds", Kind::Int64),
            ("HTTPGetAction", "port", Kind::IntOrString),
            ("ResourceRequirements", "limits", Kind::Map("quantity")),
            ("Volume", "emptyDir", Kind::Object("EmptyDirVolumeSource")),
        ] {
            assert_eq!(schema.field(of, field), Some(kind), "{of}.{field}");
        }
        assert_eq!(schema.field("Container", "nothing"), None);
    }

    #[test]
    fn every_kind_names_existing_type() {
        let schema = PodSchema::new();
        for of in schema.types.keys() {
            for (field, kind) in schema.fields(of) {
                let inner = match kind {
                    Kind::List(inner) | Kind::Map(inner) => Kind::of(inner),
                    kind => kind,
                };
                if let Kind::Object(of) = inner {
                    assert!(schema.types.contains_key(of), "{field}: {of}");
                }
            }
        }
    }

    #[test]
    fn finds_misplaced_field_below() {
        let schema = PodSchema::new();
        assert_eq!(schema.below("Container", "RunAsUser", 2), ["securityContext.runAsUser"]);
        assert_eq!(schema.below("Container", "containerport", 2), ["ports[].containerPort"]);
        assert_eq!(schema.below("Container", "hostNetwork", 3), Vec::<String>::new());
    }
}
