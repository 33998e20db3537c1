//! Compares two results. Locates each difference by types and fields of the API server's schema.

use serde_json::Value as Json;

use crate::oracle::choices::key_of;
use crate::oracle::openapi::{List, OpenApi, Shape};

/// A difference between the results of the engine and of the API server.
#[derive(Clone, Debug)]
pub(crate) struct Difference {
    /// The path of fields, outermost first: `PodSpec.containers`, `Container.ports`.
    pub(crate) places: Vec<String>,
    /// The description of the difference.
    pub(crate) what: String,
    /// Whether only the order differs: the lists at this path have the same elements.
    pub(crate) is_order: bool,
}

impl Difference {
    /// Returns a difference that concerns the whole object.
    pub(crate) const fn whole(what: String) -> Self {
        Self { places: Vec::new(), what, is_order: false }
    }
}

/// The state of a comparison of two values.
struct Comparison<'a> {
    openapi: &'a OpenApi,
    places: Vec<String>,
    found: Vec<Difference>,
}

/// Returns the differences between two pods. Each pod is given as an object with its metadata and spec.
pub(crate) fn differences(openapi: &OpenApi, ours: &Json, theirs: &Json) -> Vec<Difference> {
    let mut comparison = Comparison { openapi, places: Vec::new(), found: Vec::new() };
    comparison.object("PodTemplateSpec", ours, theirs);
    comparison.found
}

impl Comparison<'_> {
    fn object(&mut self, type_: &str, ours: &Json, theirs: &Json) {
        let (Some(left), Some(right)) = (ours.as_object(), theirs.as_object()) else {
            return self.leaf(ours, theirs);
        };
        let mut names: Vec<_> = left.keys().chain(right.keys()).collect();
        names.sort();
        names.dedup();
        for name in names {
            self.places.push(format!("{type_}.{name}"));
            let (ours, theirs) = (&ours[name], &theirs[name]);
            match self.openapi.field(type_, name) {
                Some(Shape::Struct(inner)) => self.object(inner, ours, theirs),
                Some(Shape::List(list)) if list.kind == "map" => self.list(list, ours, theirs),
                _ => self.leaf(ours, theirs),
            }
            self.places.pop();
        }
    }

    fn list(&mut self, list: List<'_>, ours: &Json, theirs: &Json) {
        let empty = Vec::new();
        let (left, right) = (ours.as_array().unwrap_or(&empty), theirs.as_array().unwrap_or(&empty));
        let keys = list.keys();
        let order = |items: &[Json]| items.iter().map(|item| key_of(item, &keys)).collect::<Vec<_>>();
        let (ours, theirs) = (order(left), order(right));
        // A list of environment variables may repeat a name. Elements with the same key are compared in their order in
        // the list.
        let by_key = |order: &[String]| {
            let mut places: Vec<_> = (0..order.len()).collect();
            places.sort_by_key(|place| order[*place].clone());
            places
        };
        let pairs: Vec<_> = by_key(&ours).into_iter().zip(by_key(&theirs)).collect();
        if ours.len() != theirs.len() || pairs.iter().any(|(one, other)| ours[*one] != theirs[*other]) {
            return self.note(format!("ours has {ours:?}, theirs {theirs:?}"), false);
        }
        if ours != theirs {
            self.note(format!("order: ours {ours:?}, theirs {theirs:?}"), true);
        }
        for (one, other) in pairs {
            match list.element {
                Some(element) => self.object(element, &left[one], &right[other]),
                None => self.leaf(&left[one], &right[other]),
            }
        }
    }

    fn leaf(&mut self, ours: &Json, theirs: &Json) {
        if ours != theirs {
            self.note(format!("ours {ours}, theirs {theirs}"), false);
        }
    }

    fn note(&mut self, what: String, is_order: bool) {
        self.found.push(Difference { places: self.places.clone(), what, is_order });
    }
}
