//! Compares objects: whether two are equal, and whether one contains an expected part.
//!
//! As in Kubernetes, an empty map, an empty list and null are equal to an absent field. All other differences are
//! reported, including a different order of a list. Elements with names are compared by name, so that an additional
//! container does not make all later containers differ. In an expected part, null or an empty list requires that the
//! field is absent or empty; an empty map requires nothing.

use serde_json::{Map, Value as Json};

use super::difference::{Aspect, Difference};

/// Fields that identify elements of a list. The first field is used for which all elements of both lists have distinct
/// values.
const NAMES: [&str; 4] = ["mountPath", "name", "ip", "containerPort"];

/// Returns the value without empty fields.
fn without_empty_fields(value: &Json) -> Json {
    match value {
        Json::Array(items) => items.iter().map(without_empty_fields).collect(),
        Json::Object(members) => members
            .iter()
            .map(|(key, value)| (key.clone(), without_empty_fields(value)))
            .filter(|(_, value)| !is_empty(value))
            .collect::<Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

/// Returns all differences between two objects.
#[must_use]
pub fn unequal(aspect: Aspect, found: &Json, expected: &Json) -> Vec<Difference> {
    compared(aspect, Mode::Equal, found, expected)
}

/// Returns all differences of an object from an expected part. Lists must have the same length and order.
#[must_use]
pub fn missing(aspect: Aspect, found: &Json, part: &Json) -> Vec<Difference> {
    compared(aspect, Mode::Partial, found, part)
}

/// The mode of a comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Equal,
    /// The found object may contain more than is expected.
    Partial,
}

struct Comparison {
    aspect: Aspect,
    mode: Mode,
    differences: Vec<Difference>,
}

fn compared(aspect: Aspect, mode: Mode, found: &Json, expected: &Json) -> Vec<Difference> {
    let mut comparison = Comparison { aspect, mode, differences: Vec::new() };
    let expected_fields = (mode == Mode::Equal).then(|| without_empty_fields(expected));
    comparison.values(Some(&without_empty_fields(found)), Some(expected_fields.as_ref().unwrap_or(expected)), "");
    comparison.differences
}

fn is_empty(value: &Json) -> bool {
    match value {
        Json::Null => true,
        Json::Array(items) => items.is_empty(),
        Json::Object(members) => members.values().all(is_empty),
        _ => false,
    }
}

impl Comparison {
    fn differ(&mut self, found: Option<&Json>, expected: Option<&Json>, path: &str) {
        self.differences.push(Difference {
            aspect: self.aspect,
            path: path.to_owned(),
            found: found.cloned(),
            expected: expected.cloned(),
        });
    }

    fn values(&mut self, found: Option<&Json>, expected: Option<&Json>, path: &str) {
        match (found, expected) {
            (Some(Json::Object(found)), Some(Json::Object(expected))) => self.maps(found, expected, path),
            (Some(Json::Array(found)), Some(Json::Array(expected))) => self.lists(found, expected, path),
            (Some(found), Some(expected)) if found == expected => {}
            (found, expected) => {
                let nothing = |value: Option<&Json>| value.is_none_or(is_empty);
                if !(nothing(found) && nothing(expected)) {
                    self.differ(found, expected, path);
                }
            }
        }
    }

    fn maps(&mut self, found: &Map<String, Json>, expected: &Map<String, Json>, path: &str) {
        for (key, expected) in expected {
            self.values(found.get(key), Some(expected), &below(path, key));
        }
        if self.mode == Mode::Equal {
            for (key, found) in found.iter().filter(|(key, _)| !expected.contains_key(*key)) {
                self.values(Some(found), None, &below(path, key));
            }
        }
    }

    fn lists(&mut self, found: &[Json], expected: &[Json], path: &str) {
        let by = |field| Some((names(found, field)?, names(expected, field)?));
        match NAMES.into_iter().find_map(by) {
            Some((found_names, expected_names)) if found_names != expected_names => {
                self.named(found, &found_names, expected, &expected_names, path);
            }
            names => {
                if found.len() != expected.len() {
                    let length = |items: &[Json]| Json::from(format!("a list of {}", items.len()));
                    self.differ(Some(&length(found)), Some(&length(expected)), path);
                }
                let name = |index: usize| names.as_ref().and_then(|(names, _)| names.get(index)).cloned();
                for index in 0..found.len().max(expected.len()) {
                    let at = format!("{path}[{}]", name(index).unwrap_or_else(|| index.to_string()));
                    self.values(found.get(index), expected.get(index), &at);
                }
            }
        }
    }

    /// Compares lists whose elements have different names, or the same names in a different order. Reports both lists
    /// of names first, then differences in common elements, then the elements that only one list has. In mode
    /// `Partial`, additional found elements are not reported one by one.
    fn named(
        &mut self,
        found: &[Json],
        found_names: &[String],
        expected: &[Json],
        expected_names: &[String],
        path: &str,
    ) {
        let listed = |names: &[String]| Json::from(names.join(" "));
        self.differ(Some(&listed(found_names)), Some(&listed(expected_names)), path);
        for (name, element) in expected_names.iter().zip(expected) {
            if let Some(found) = found_names.iter().position(|other| other == name).and_then(|index| found.get(index)) {
                self.values(Some(found), Some(element), &format!("{path}[{name}]"));
            }
        }
        if self.mode == Mode::Equal {
            for (name, element) in found_names.iter().zip(found).filter(|(name, _)| !expected_names.contains(name)) {
                self.differ(Some(element), None, &format!("{path}[{name}]"));
            }
        }
        for (name, element) in expected_names.iter().zip(expected).filter(|(name, _)| !found_names.contains(name)) {
            self.differ(None, Some(element), &format!("{path}[{name}]"));
        }
    }
}

/// Appends a key to a path. Keys with dots or slashes, such as those of annotations, are written in brackets.
fn below(path: &str, key: &str) -> String {
    match (path, key.contains(['.', '/', '['])) {
        ("", false) => key.to_owned(),
        (path, false) => format!("{path}.{key}"),
        (path, true) => format!("{path}[{key}]"),
    }
}

/// Returns the value of a field in each element. `None` unless all values are strings or numbers, and distinct.
fn names(items: &[Json], field: &str) -> Option<Vec<String>> {
    let mut names = Vec::with_capacity(items.len());
    for item in items {
        let name = match item.get(field)? {
            Json::String(name) => name.clone(),
            Json::Number(number) => number.to_string(),
            _ => return None,
        };
        if names.contains(&name) {
            return None;
        }
        names.push(name);
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn paths(differences: &[Difference]) -> Vec<&str> {
        differences.iter().map(|difference| difference.path.as_str()).collect()
    }

    #[test]
    fn empty_fields_equal_absent_ones() {
        let found = json!({"a": {}, "b": [], "c": null, "d": {"e": {"f": []}}, "g": [{}, 1]});
        assert_eq!(unequal(Aspect::Object, &found, &json!({"g": [{}, 1]})), []);
        assert_eq!(unequal(Aspect::Object, &json!({}), &json!(null)), []);
        assert_eq!(missing(Aspect::Object, &json!({}), &json!({"a": {"b": null}})), []);
    }

    #[test]
    fn part_requires_absent_fields() {
        let found = json!({"a": {"b": 1, "c": [1]}, "d": [{"name": "x", "env": [1]}]});
        let part = |part: Json| paths(&missing(Aspect::Object, &found, &part)).join(" ");
        assert_eq!(part(json!({"a": {"b": null, "c": [], "e": null}, "f": {"g": null}, "h": []})), "a.b a.c a.c[0]");
        assert_eq!(part(json!({"a": null})), "a");
        assert_eq!(part(json!({"a": {}, "d": [{"env": null}]})), "d[0].env");
    }

    #[test]
    fn lists_of_different_lengths_differ() {
        for compare in [unequal, missing] {
            assert_eq!(paths(&compare(Aspect::Object, &json!({"a": [1, {}]}), &json!({"a": [1]}))), ["a"]);
            assert_eq!(paths(&compare(Aspect::Object, &json!({"a": [1]}), &json!({"a": [1, {}]}))), ["a"]);
        }
    }

    #[test]
    fn reports_each_differing_path() {
        let found = json!({"metadata": {"annotations": {"example.com/a": "1", "b": "2"}}, "spec": {"x": [1, 2]}});
        let expected = json!({"metadata": {"annotations": {"example.com/a": "2"}}, "spec": {"x": [2, 1], "y": 1}});
        assert_eq!(
            paths(&unequal(Aspect::Object, &found, &expected)),
            ["metadata.annotations[example.com/a]", "metadata.annotations.b", "spec.x[0]", "spec.x[1]", "spec.y"]
        );
        assert_eq!(
            paths(&missing(Aspect::Object, &found, &expected)),
            ["metadata.annotations[example.com/a]", "spec.x[0]", "spec.x[1]", "spec.y"]
        );
    }

    #[test]
    fn added_container_is_one_difference() {
        let container = |name: &str, image: &str| json!({"name": name, "image": image});
        let found = json!({"c": [container("new", "n"), container("a", "a"), container("b", "other")]});
        let expected = json!({"c": [container("a", "a"), container("b", "b")]});
        let differences = unequal(Aspect::Object, &found, &expected);
        assert_eq!(paths(&differences), ["c", "c[b].image", "c[new]"]);
        assert_eq!(differences[0].found, Some(json!("new a b")));
        let turned = json!({"c": [container("b", "b"), container("a", "a")]});
        assert_eq!(paths(&missing(Aspect::Object, &turned, &expected)), ["c"]);
    }

    #[test]
    fn part_has_whole_lists_of_partial_elements() {
        let found = json!({"c": [{"name": "a", "image": "i", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]});
        let part = |part: Json| paths(&missing(Aspect::Object, &found, &part)).join(" ");
        assert_eq!(part(json!({"c": [{"name": "a"}, {"name": "b"}]})), "");
        assert_eq!(part(json!({"c": [{"image": "i"}, {}]})), "");
        assert_eq!(part(json!({"c": [{"name": "a"}]})), "c");
        assert_eq!(part(json!({"c": [{"env": [{"name": "X", "value": "2"}]}, {}]})), "c[0].env[X].value");
    }

    #[test]
    fn duplicate_names_are_compared_by_index() {
        let found = json!([{"name": "x", "value": 1}, {"name": "x", "value": 2}]);
        let expected = json!([{"name": "x", "value": 1}, {"name": "x", "value": 3}]);
        assert_eq!(paths(&unequal(Aspect::Object, &found, &expected)), ["[1].value"]);
    }
}
