//! The labels and annotations that the author of an object wrote.

use std::borrow::Cow;

use crate::context::EvalContext;
use crate::json::{Key, Value};

/// The labels and annotations of an object.
#[derive(Clone, Copy)]
pub(crate) struct Pod<'p> {
    labels: Option<Value<'p>>,
    annotations: Option<Value<'p>>,
}

impl<'p> Pod<'p> {
    pub(crate) fn new(object: Value<'p>) -> Self {
        let metadata = object.get("metadata");
        let part = |name| metadata.and_then(|metadata| metadata.get(name));
        Self { labels: part("labels"), annotations: part("annotations") }
    }

    /// Of the object that a request is about: of one that is deleted there is only what it was.
    pub(crate) fn of(context: EvalContext<'p>) -> Self {
        let old = || context.request.get("oldObject").unwrap_or(context.object);
        Self::new(if context.object.is_null() { old() } else { context.object })
    }

    pub(crate) fn label(self, key: &str) -> Option<Cow<'p, str>> {
        self.labels?.get(key)?.as_str()
    }

    pub(crate) fn annotation(self, key: &str) -> Option<Cow<'p, str>> {
        self.annotations?.get(key)?.as_str()
    }

    pub(crate) fn labels(self) -> impl Iterator<Item = (Key<'p>, Value<'p>)> {
        self.labels.into_iter().flat_map(Value::members)
    }

    pub(crate) fn annotations(self) -> impl Iterator<Item = (Key<'p>, Value<'p>)> {
        self.annotations.into_iter().flat_map(Value::members)
    }
}
