//! The value that a parameter has for one object: who set it, or the default.

use std::borrow::Cow;
use std::collections::BTreeMap;

use pillion_api::parameter::{OnInvalid, ParameterMerge, Source};
use serde_json::{Map, Value as Json};

use super::{Key, Parameter};

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
    pub(crate) service_account: Option<&'s dyn Metadata>,
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

/// The value of a parameter as somebody set it; `None` if nobody did, and the default is the value.
pub(crate) fn resolve(parameter: &Parameter, sources: Sources<'_>) -> Result<Option<Json>, Invalid> {
    // The most specific first, whatever the order in which the profile allows them.
    let order = [Source::Pod, Source::ServiceAccount, Source::Namespace];
    let mut found = Vec::new();
    for source in order.into_iter().filter(|source| parameter.sources.contains(source)) {
        let metadata = match source {
            Source::Pod => Some(sources.pod),
            Source::ServiceAccount => sources.service_account,
            Source::Namespace => Some(sources.namespace),
        };
        let Some(value) = metadata.map(|metadata| parameter.set_by(metadata)).transpose()?.flatten() else { continue };
        if parameter.merge == ParameterMerge::Replace {
            return Ok(Some(value));
        }
        found.push(value);
    }
    if parameter.set_by_namespace && !found.is_empty() {
        found.extend(parameter.default.clone());
    }
    Ok(found.into_iter().reduce(unite))
}

impl Parameter {
    fn set_by(&self, metadata: &dyn Metadata) -> Result<Option<Json>, Invalid> {
        if !self.fields.is_empty() {
            return self.records(metadata);
        }
        if let Some(prefix) = &self.prefix {
            let gathered = metadata.annotations_below(prefix).take(MAX_GATHERED);
            let map: Map<_, _> = gathered.map(|(key, value)| (key.into_owned(), Json::from(value.as_ref()))).collect();
            return if map.is_empty() { Ok(None) } else { self.checked(prefix, Json::Object(map)).map(Some) };
        }
        for key in &self.keys {
            let (name, text) = match key {
                Key::Annotation(name) => (name, metadata.annotation(name)),
                Key::Label(name) => (name, metadata.label(name)),
            };
            if let Some(text) = text {
                return self.kind.read(&text).map(Some).map_err(|message| self.invalid(name, &message));
            }
        }
        Ok(None)
    }

    /// One record for each suffix of a family that opens records, sorted by it.
    fn records(&self, metadata: &dyn Metadata) -> Result<Option<Json>, Invalid> {
        let mut records: BTreeMap<String, Map<String, Json>> = BTreeMap::new();
        for field in self.fields.iter().filter(|field| field.opens) {
            for (suffix, _) in metadata.annotations_below(&field.prefix).take(MAX_GATHERED) {
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
        self.checked(&self.name, records).map(Some)
    }

    fn checked(&self, key: &str, value: Json) -> Result<Json, Invalid> {
        self.kind.check(value).map_err(|message| self.invalid(key, &message))
    }

    fn invalid(&self, key: &str, message: &str) -> Invalid {
        Invalid { message: format!("{key}: {message}").into(), consequence: self.on_invalid }
    }
}

/// Unites two values, of which the first is the more specific: maps by key, lists by the `name` of their items.
fn unite(specific: Json, general: Json) -> Json {
    match (specific, general) {
        (Json::Object(mut specific), Json::Object(general)) => {
            for (key, value) in general {
                specific.entry(key).or_insert(value);
            }
            Json::Object(specific)
        }
        (Json::Array(specific), Json::Array(general)) => {
            let is_there = |item: &Json| {
                let name = item.get("name");
                specific.iter().any(|other| if name.is_some() { other.get("name") == name } else { other == item })
            };
            let missing: Vec<_> = general.into_iter().filter(|item| !is_there(item)).collect();
            Json::Array(specific.into_iter().chain(missing).collect())
        }
        (specific, _) => specific,
    }
}
