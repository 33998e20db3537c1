//! The value that a parameter has for one object: who set it, or the default.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use pillion_api::parameter::{OnInvalid, ParameterMerge, Source};
use serde_json::{Map, Value as Json};

use super::{Key, Kind, Parameter};
use crate::expression::EvaluationError;

/// How many annotations a prefix or the families of records may gather.
const MAX_GATHERED: usize = 256;

/// The labels and annotations of an object that may set parameters.
pub(crate) trait Metadata {
    /// The value of a label.
    fn label(&self, key: &str) -> Option<Cow<'_, str>>;
    /// The value of an annotation.
    fn annotation(&self, key: &str) -> Option<Cow<'_, str>>;
    /// All annotations whose keys begin so, with the rest of their keys.
    fn annotations_below<'m>(&'m self, prefix: &'m str) -> Box<dyn Iterator<Item = (Cow<'m, str>, Cow<'m, str>)> + 'm>;
}

/// Who may set parameters of this object.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'s> {
    pub(crate) pod: &'s dyn Metadata,
    /// `None` if there is none; an error if it could not be looked up.
    pub(crate) service_account: Result<Option<&'s dyn Metadata>, &'s EvaluationError>,
    pub(crate) namespace: &'s dyn Metadata,
}

/// A value that a parameter does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Invalid {
    /// What is wrong, with the key that holds it.
    pub(crate) message: Box<str>,
    /// What it does.
    pub(crate) consequence: Option<OnInvalid>,
}

/// What was found out about a parameter.
#[derive(Debug, PartialEq)]
pub(crate) struct Resolved {
    /// The value as somebody set it; `None` if nobody did, and the default is the value; an error if nobody knows, because
    /// who may have set it could not be looked up.
    pub(crate) value: Result<Option<Json>, EvaluationError>,
    /// Values that were moved into their range, for whoever wrote them.
    pub(crate) moved: Vec<Box<str>>,
}

/// A value that was read from somewhere.
struct Read {
    value: Json,
    moved: Option<Box<str>>,
}

/// Where a parameter is set, for sentences about it.
#[derive(Clone, Copy)]
struct From<'m> {
    metadata: &'m dyn Metadata,
    /// What follows the key where that is not the pod's.
    whose: &'static str,
}

/// The value of a parameter as somebody set it.
pub(crate) fn resolve(parameter: &Parameter, sources: Sources<'_>) -> Result<Resolved, Invalid> {
    let name = if parameter.fields.is_empty() { "name" } else { "key" };
    let mut found: Option<Json> = None;
    let mut moved = Vec::new();
    for source in parameter.allowed() {
        let from = match sources.from(source) {
            Ok(Some(from)) => from,
            Ok(None) => continue,
            Err(error) => return Ok(Resolved { value: Err(error.clone()), moved }),
        };
        let Some(read) = parameter.set_by(from)? else { continue };
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

/// What was found so far, united with a value that is more general.
fn with_general(found: Option<Json>, general: Json, name: &str) -> Json {
    match found {
        Some(specific) => unite(specific, general, name),
        None => general,
    }
}

impl<'s> Sources<'s> {
    /// Where a source has its keys; `None` if there is no such object, and an error if it could not be looked up.
    fn from(self, source: Source) -> Result<Option<From<'s>>, &'s EvaluationError> {
        let (metadata, whose) = match source {
            Source::Pod => (Some(self.pod), ""),
            Source::ServiceAccount => (self.service_account?, " of the service account"),
            Source::Namespace => (Some(self.namespace), " of the namespace"),
        };
        Ok(metadata.map(|metadata| From { metadata, whose }))
    }
}

impl Parameter {
    /// Who may set it, the most specific first, whatever the order in which the profile has them.
    fn allowed(&self) -> impl Iterator<Item = Source> {
        let order = [Source::Pod, Source::ServiceAccount, Source::Namespace];
        order.into_iter().filter(|source| self.sources.contains(source))
    }

    /// Who sets it and by which key, the most specific first: as far as values count, whatever they are worth.
    pub(crate) fn found_in(&self, sources: Sources<'_>) -> Vec<(Source, Box<str>)> {
        let mut found = Vec::new();
        for source in self.allowed() {
            let Ok(Some(From { metadata, .. })) = sources.from(source) else { continue };
            let Some(key) = self.key_in(metadata) else { continue };
            found.push((source, key));
            if self.merge == ParameterMerge::Replace {
                break;
            }
        }
        found
    }

    /// The key by which an object sets it; of a family of keys, what they begin with.
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

    fn set_by(&self, from: From<'_>) -> Result<Option<Read>, Invalid> {
        let From { metadata, whose } = from;
        if !self.fields.is_empty() {
            return self.records(from);
        }
        if let Some(prefix) = &self.prefix {
            let gathered = metadata.annotations_below(prefix).take(MAX_GATHERED);
            let map: Map<_, _> = gathered.map(|(key, value)| (key.into_owned(), Json::from(value.as_ref()))).collect();
            return if map.is_empty() { Ok(None) } else { self.checked(prefix, whose, &Json::Object(map)).map(Some) };
        }
        let Some((name, text)) = self.written_in(metadata) else { return Ok(None) };
        let written = self.kind.parse(&text).map_err(|message| self.invalid(name, whose, &message))?;
        self.checked(name, whose, &written).map(Some)
    }

    /// The first of its keys that an object has, with its value.
    fn written_in<'m>(&'m self, metadata: &'m dyn Metadata) -> Option<(&'m str, Cow<'m, str>)> {
        self.keys.iter().find_map(|key| {
            let (name, text) = match key {
                Key::Annotation(name) => (name, metadata.annotation(name)),
                Key::Label(name) => (name, metadata.label(name)),
            };
            Some((&**name, text.filter(|text| self.empty.says(text))?))
        })
    }

    /// One record for each suffix of a family that opens records, sorted by it.
    fn records(&self, from: From<'_>) -> Result<Option<Read>, Invalid> {
        let From { metadata, whose } = from;
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
        if records.is_empty() {
            return Ok(None);
        }
        let records = Json::Array(records.into_values().map(Json::Object).collect());
        self.checked(&self.name, whose, &records).map(Some)
    }

    fn checked(&self, key: &str, whose: &str, written: &Json) -> Result<Read, Invalid> {
        let value = self.kind.check_read(written.clone()).map_err(|message| self.invalid(key, whose, &message))?;
        let was_moved = self.kind.was_moved(written, &value);
        let moved = was_moved
            .then(|| format!("{key}{whose}: {written} is outside of what is allowed, {value} was taken").into());
        Ok(Read { value, moved })
    }

    fn invalid(&self, key: &str, whose: &str, message: &str) -> Invalid {
        Invalid { message: format!("{key}{whose}: {message}").into(), consequence: self.on_invalid }
    }
}

impl Kind {
    /// Whether a value was moved into its range, it or one of its items.
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

/// Unites two values, of which the first is the more specific: maps by key, lists by the name of their items, which is in
/// this field.
fn unite(specific: Json, general: Json, name: &str) -> Json {
    match (specific, general) {
        (Json::Object(mut specific), Json::Object(general)) => {
            for (key, value) in general {
                specific.entry(key).or_insert(value);
            }
            Json::Object(specific)
        }
        (Json::Array(mut specific), Json::Array(general)) => {
            // Both may be long, and neither is compared with the other item by item.
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
