//! A pod as selection sees it: its labels and annotations, without those that Pillion itself added in an earlier pass.
//! What was added must not change what is decided, or a second pass would decide otherwise than the first.

use std::borrow::Cow;

use crate::inject::Record;
use crate::json::{Key, Value};

/// The labels and annotations of an object.
#[derive(Clone, Copy)]
pub(crate) struct Pod<'p> {
    labels: Option<Value<'p>>,
    annotations: Option<Value<'p>>,
    /// The genuine record of an earlier pass.
    record: Option<&'p Record>,
}

impl<'p> Pod<'p> {
    pub(crate) fn new(object: Value<'p>, record: Option<&'p Record>) -> Self {
        let metadata = object.get("metadata");
        let part = |name| metadata.and_then(|metadata| metadata.get(name));
        Self { labels: part("labels"), annotations: part("annotations"), record }
    }

    pub(crate) fn label(self, key: &str) -> Option<Cow<'p, str>> {
        self.entry(self.labels, "labels", key)
    }

    pub(crate) fn annotation(self, key: &str) -> Option<Cow<'p, str>> {
        self.entry(self.annotations, "annotations", key)
    }

    pub(crate) fn labels(self) -> impl Iterator<Item = (Key<'p>, Value<'p>)> {
        self.entries(self.labels, "labels")
    }

    pub(crate) fn annotations(self) -> impl Iterator<Item = (Key<'p>, Value<'p>)> {
        self.entries(self.annotations, "annotations")
    }

    fn entry(self, map: Option<Value<'p>>, field: &str, key: &str) -> Option<Cow<'p, str>> {
        self.author(field, key, map?.get(key)?)?.as_str()
    }

    fn entries(self, map: Option<Value<'p>>, field: &'static str) -> impl Iterator<Item = (Key<'p>, Value<'p>)> {
        let entries = map.into_iter().flat_map(Value::members);
        entries.filter_map(move |(key, value)| match self.record {
            None => Some((key, value)),
            Some(_) => Some((key, self.author(field, &key.text(), value)?)),
        })
    }

    /// What the author has at a place: nothing where we added it, and what stood there where we replaced it.
    fn author(self, field: &str, key: &str, value: Value<'p>) -> Option<Value<'p>> {
        match self.record {
            Some(record) => record.authors(field, key, value),
            None => Some(value),
        }
    }
}
