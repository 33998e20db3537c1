//! Resolves the values of parameters from their sources, and stores the values that expressions read by name.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use pillion_api::parameter::{OnInvalid, ParameterMerge, Source};
use serde_json::{Map, Value as Json};

use super::{Key, Kind, Parameter};
use crate::expression::{EvaluationError, Meter, Value};
use crate::json::OwnedTape;
use crate::lookup::{Answer, Declared, LookedUp};

/// The maximum number of annotations collected for one prefix.
const MAX_GATHERED: usize = 256;

/// The number of labels or annotations that are searched for a key per step of the budget.
const LOOKUP_ENTRIES: usize = 4;

/// The labels and annotations of an object that may set parameters.
pub(crate) trait Metadata {
    /// Returns the value of a label, if the object has it.
    fn label(&self, key: &str) -> Option<Cow<'_, str>>;
    /// Returns the value of an annotation, if the object has it.
    fn annotation(&self, key: &str) -> Option<Cow<'_, str>>;
    /// Returns an upper bound for the number of labels and annotations.
    fn entries(&self) -> usize;
    /// Returns all annotations with this prefix: the key without the prefix, and the value.
    fn annotations_below<'m>(&'m self, prefix: &'m str) -> Box<dyn Iterator<Item = (Cow<'m, str>, Cow<'m, str>)> + 'm>;
}

/// The objects that may set parameters.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'s> {
    pub(crate) pod: &'s dyn Metadata,
    /// The service account. `None` if it does not exist, or an error if the lookup failed.
    pub(crate) service_account: Result<Option<&'s dyn Metadata>, &'s EvaluationError>,
    pub(crate) namespace: &'s dyn Metadata,
}

/// A value that the parameter's constraints do not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Invalid {
    /// The error message, which contains the key of the value.
    pub(crate) message: Box<str>,
    /// The parameter's `onInvalid`, if it is set.
    pub(crate) consequence: Option<OnInvalid>,
}

/// The result of resolving a parameter.
#[derive(Debug, PartialEq)]
pub(crate) struct Resolved {
    /// The value. `None` if no source set one, so that the default applies. An error if a source could not be looked
    /// up, or if the budget does not suffice.
    pub(crate) value: Result<Option<Json>, EvaluationError>,
    /// Messages about values that were clamped to the range.
    pub(crate) moved: Vec<Box<str>>,
}

/// Why a value could not be read.
enum Unread {
    Invalid(Invalid),
    /// The budget does not suffice.
    Exhausted(EvaluationError),
}

impl From<EvaluationError> for Unread {
    fn from(error: EvaluationError) -> Self {
        Self::Exhausted(error)
    }
}

/// A parsed value, and a message if it was clamped.
struct Read {
    value: Json,
    moved: Option<Box<str>>,
}

/// The metadata of a source, and its name for messages.
#[derive(Clone, Copy)]
struct MetadataSource<'m> {
    metadata: &'m dyn Metadata,
    /// The name of the source, appended to the key in messages. Empty for the pod.
    place: &'static str,
}

/// Resolves the value of a parameter from `sources`. Charges the work to `meter` before it is done. Fails if a value is
/// invalid.
pub(crate) fn resolve(parameter: &Parameter, sources: Sources<'_>, meter: &mut Meter) -> Result<Resolved, Invalid> {
    let name = if parameter.fields.is_empty() { "name" } else { "key" };
    let mut found: Option<Json> = None;
    let mut moved = Vec::new();
    for source in parameter.allowed() {
        let from = match sources.from(source) {
            Ok(Some(from)) => from,
            Ok(None) => continue,
            Err(error) => return Ok(Resolved { value: Err(error.clone()), moved }),
        };
        let read = match parameter.set_by(from, meter) {
            Ok(Some(read)) => read,
            Ok(None) => continue,
            Err(Unread::Invalid(invalid)) => return Err(invalid),
            Err(Unread::Exhausted(error)) => return Ok(Resolved { value: Err(error), moved }),
        };
        moved.extend(read.moved);
        found = Some(with_general(found, read.value, name));
        if parameter.merge == ParameterMerge::Replace {
            break;
        }
    }
    if parameter.set_by_namespace
        && parameter.merge == ParameterMerge::Merge
        && found.is_some()
        && let Some(default) = parameter.plain_default()
    {
        found = Some(with_general(found, default.clone(), name));
    }
    Ok(Resolved { value: Ok(found), moved })
}

/// Merges the value found so far with the value of a more general source. The field `name` identifies the items of
/// lists.
fn with_general(found: Option<Json>, general: Json, name: &str) -> Json {
    match found {
        Some(specific) => merge_values(specific, general, name),
        None => general,
    }
}

impl<'s> Sources<'s> {
    /// Returns the metadata of a source. `None` if the object does not exist, or an error if the lookup failed.
    fn from(self, source: Source) -> Result<Option<MetadataSource<'s>>, &'s EvaluationError> {
        let (metadata, place) = match source {
            Source::Pod => (Some(self.pod), ""),
            Source::ServiceAccount => (self.service_account?, " of the service account"),
            Source::Namespace => (Some(self.namespace), " of the namespace"),
        };
        Ok(metadata.map(|metadata| MetadataSource { metadata, place }))
    }
}

impl Parameter {
    /// Returns the sources that may set the parameter, the most specific first.
    fn allowed(&self) -> impl Iterator<Item = Source> {
        let order = [Source::Pod, Source::ServiceAccount, Source::Namespace];
        order.into_iter().filter(|source| self.sources.contains(source))
    }

    /// Returns the sources that set the parameter, and their keys, the most specific first. Does not check the values.
    pub(crate) fn found_in(&self, sources: Sources<'_>) -> Vec<(Source, Box<str>)> {
        let mut found = Vec::new();
        for source in self.allowed() {
            let Ok(Some(MetadataSource { metadata, .. })) = sources.from(source) else { continue };
            let Some(key) = self.key_in(metadata) else { continue };
            found.push((source, key));
            if self.merge == ParameterMerge::Replace {
                break;
            }
        }
        found
    }

    /// Returns the object's key that sets the parameter. For annotations with a prefix, returns the prefix followed by
    /// `*`.
    fn key_in(&self, metadata: &dyn Metadata) -> Option<Box<str>> {
        let family = |prefix: &str| Some(format!("{prefix}*").into());
        if !self.fields.is_empty() {
            let mut opening = self.fields.iter().filter(|field| field.opens).map(|field| &*field.prefix);
            let opens = |prefix: &&str| metadata.annotations_below(prefix).any(|(suffix, _)| !suffix.is_empty());
            return opening.find(opens).and_then(family);
        }
        if let Some(prefix) = &self.prefix {
            return metadata.annotations_below(prefix).next().and_then(|_| family(prefix));
        }
        self.written_in(metadata).map(|(name, _)| name.into())
    }

    fn set_by(&self, from: MetadataSource<'_>, meter: &mut Meter) -> Result<Option<Read>, Unread> {
        let MetadataSource { metadata, place } = from;
        let entries = metadata.entries();
        if !self.fields.is_empty() {
            meter.charge(2usize.saturating_mul(self.fields.len()).saturating_mul(entries))?;
            let Some(records) = self.records(metadata) else { return Ok(None) };
            return self.checked(&self.name, place, &records, meter).map(Some);
        }
        if let Some(prefix) = &self.prefix {
            meter.charge(entries)?;
            let gathered = metadata.annotations_below(prefix).take(MAX_GATHERED);
            let map: Map<_, _> = gathered.map(|(key, value)| (key.into_owned(), Json::from(value.as_ref()))).collect();
            if map.is_empty() {
                return Ok(None);
            }
            return self.checked(prefix, place, &Json::Object(map), meter).map(Some);
        }
        meter.charge(self.keys.len().saturating_mul(1 + entries / LOOKUP_ENTRIES))?;
        let Some((name, text)) = self.written_in(metadata) else { return Ok(None) };
        meter.charge(self.kind.text_steps(&text))?;
        let written = self.kind.parse(&text).map_err(|message| self.invalid(name, place, &message))?;
        self.checked(name, place, &written, meter).map(Some)
    }

    /// Returns the first of the parameter's keys that the object has, and its value. Skips empty values if `empty` is
    /// `Absent`.
    fn written_in<'m>(&'m self, metadata: &'m dyn Metadata) -> Option<(&'m str, Cow<'m, str>)> {
        self.keys.iter().find_map(|key| {
            let (name, text) = match key {
                Key::Annotation(name) => (name, metadata.annotation(name)),
                Key::Label(name) => (name, metadata.label(name)),
            };
            Some((&**name, text.filter(|text| self.empty.says(text))?))
        })
    }

    /// Collects the records, sorted by key. An annotation of a field with `opens` creates the record for its suffix.
    /// `None` if there are none.
    fn records(&self, metadata: &dyn Metadata) -> Option<Json> {
        let mut records: BTreeMap<String, Map<String, Json>> = BTreeMap::new();
        for field in self.fields.iter().filter(|field| field.opens) {
            let suffixes = metadata.annotations_below(&field.prefix).filter(|(suffix, _)| !suffix.is_empty());
            for (suffix, _) in suffixes.take(MAX_GATHERED) {
                let key = Json::from(suffix.as_ref());
                records.entry(suffix.into_owned()).or_default().insert("key".to_owned(), key);
            }
        }
        for field in &self.fields {
            for (suffix, value) in metadata.annotations_below(&field.prefix).take(MAX_GATHERED) {
                if let Some(record) = records.get_mut(suffix.as_ref()) {
                    record.insert(field.name.to_string(), Json::from(value.as_ref()));
                }
            }
        }
        (!records.is_empty()).then(|| Json::Array(records.into_values().map(Json::Object).collect()))
    }

    fn checked(&self, key: &str, place: &str, written: &Json, meter: &mut Meter) -> Result<Read, Unread> {
        meter.charge(self.kind.value_steps(written))?;
        let value = self.kind.check_read(written.clone()).map_err(|message| self.invalid(key, place, &message))?;
        let was_moved = self.kind.was_moved(written, &value);
        let moved = was_moved
            .then(|| format!("{key}{place}: {written} is outside of the allowed range; {value} is used").into());
        Ok(Read { value, moved })
    }

    fn invalid(&self, key: &str, place: &str, message: &str) -> Unread {
        let message = format!("{key}{place}: {message}").into();
        Unread::Invalid(Invalid { message, consequence: self.on_invalid })
    }
}

impl Kind {
    /// Whether clamping changed `written`, or one of its items.
    fn was_moved(&self, written: &Json, value: &Json) -> bool {
        if self.clamp && self.size(written) != self.size(value) {
            return true;
        }
        match (&self.items, written, value) {
            (Some(items), Json::Array(written), Json::Array(value)) => {
                written.iter().zip(value).any(|(written, value)| items.was_moved(written, value))
            }
            _ => false,
        }
    }
}

/// Merges two values, the more specific first. Maps merge by key, and lists by the field `name` of their items.
fn merge_values(specific: Json, general: Json, name: &str) -> Json {
    match (specific, general) {
        (Json::Object(mut specific), Json::Object(general)) => {
            for (key, value) in general {
                specific.entry(key).or_insert(value);
            }
            Json::Object(specific)
        }
        (Json::Array(mut specific), Json::Array(general)) => {
            // Both lists may be long, so use sets instead of comparing all pairs.
            let names: HashSet<_> = specific.iter().filter_map(|item| item.get(name)).collect();
            let items: HashSet<_> = specific.iter().collect();
            let is_there =
                |item: &Json| item.get(name).map_or_else(|| items.contains(item), |name| names.contains(name));
            let missing: Vec<_> = general.into_iter().filter(|item| !is_there(item)).collect();
            specific.extend(missing);
            Json::Array(specific)
        }
        (specific, _) => specific,
    }
}

/// The parameter values of one profile for one object. Parameters with neither a value nor a default are absent. An
/// error in a parameter only affects the expressions that read it; these fail.
#[derive(Debug, Default)]
pub(crate) struct Values {
    parameters: Vec<(Arc<str>, Result<Json, EvaluationError>)>,
    lookups: Vec<(Box<str>, Answer<Arc<OwnedTape>>)>,
}

/// The values for profiles without parameters and lookups. Most profiles have neither.
pub(crate) static NO_VALUES: Values = Values { parameters: Vec::new(), lookups: Vec::new() };

impl Values {
    /// Creates the values from the results of the declared lookups, without parameters.
    pub(crate) fn new(declared: &[Declared], looked_up: &LookedUp, namespace: &str) -> Self {
        let answer = |lookup: &Declared| (lookup.name.clone(), looked_up.object(&lookup.query(namespace)));
        Self { parameters: Vec::new(), lookups: declared.iter().map(answer).collect() }
    }

    /// Adds the value of a parameter.
    pub(crate) fn push(&mut self, name: &Arc<str>, value: Result<Json, EvaluationError>) {
        self.parameters.push((Arc::clone(name), value));
    }

    /// Returns the value of a parameter. `None` if it was not set and has no default.
    ///
    /// # Errors
    /// The value is invalid, or it could not be looked up or computed.
    pub(crate) fn parameter(&self, name: &str) -> Option<Result<&Json, Box<str>>> {
        let (_, value) = self.parameters.iter().find(|(known, _)| **known == *name)?;
        Some(value.as_ref().map_err(|error| error.message().into()))
    }

    /// Returns a member of `params` or `lookups`. `None` if `name` is neither of them.
    pub(crate) fn member(
        &self,
        name: &str,
        member: &str,
        meter: &mut Meter,
    ) -> Option<Result<Option<Value<'_>>, EvaluationError>> {
        match name {
            "params" => {
                let value = self.parameters.iter().find(|(name, _)| **name == *member).map(|(_, value)| value);
                Some(value.map(|value| value.as_ref().map(Value::from).map_err(Clone::clone)).transpose())
            }
            "lookups" => {
                let answer = self.lookups.iter().find(|(name, _)| **name == *member).map(|(_, answer)| answer);
                let known = answer.map_or(Ok(None), |answer| answer.known(&format!("lookups.{member}")));
                Some(known.and_then(|found| found.map(|object| Value::read(object.root(), meter)).transpose()))
            }
            _ => None,
        }
    }
}
