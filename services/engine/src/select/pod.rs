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
        let text = map?.get(key)?.as_str()?;
        (!self.is_ours(field, key)).then_some(text)
    }

    fn entries(self, map: Option<Value<'p>>, field: &'static str) -> impl Iterator<Item = (Key<'p>, Value<'p>)> {
        let entries = map.into_iter().flat_map(Value::members);
        entries.filter(move |(key, _)| self.record.is_none() || !self.is_ours(field, &key.text()))
    }

    fn is_ours(self, field: &str, key: &str) -> bool {
        self.record.is_some_and(|record| record.added_entry(field, key))
    }
}
