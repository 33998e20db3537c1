//! Tracks where the parts of a merged profile were written, so that mistakes are reported for the right profile.

use std::collections::BTreeMap;

/// Where a part and its nested parts were written.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    /// The index in the chain: 0 is the profile that extends nothing.
    text: usize,
    /// The field's path in that profile.
    path: String,
    below: Below,
}

#[derive(Clone, Debug)]
enum Below {
    /// All nested parts are at the same path in the same profile.
    Same,
    Fields(BTreeMap<String, Origin>),
    Items(Vec<Origin>),
}

impl Origin {
    /// Creates the origin of a part that was written entirely in one profile.
    pub(super) fn of(text: usize, path: impl Into<String>) -> Self {
        Self { text, path: path.into(), below: Below::Same }
    }

    /// Returns the same origin with fields that were written elsewhere.
    pub(super) fn with_fields(&self, fields: BTreeMap<String, Self>) -> Self {
        Self { text: self.text, path: self.path.clone(), below: Below::Fields(fields) }
    }

    /// Returns the same origin with items that were written elsewhere.
    pub(super) fn with_items(&self, items: Vec<Self>) -> Self {
        Self { text: self.text, path: self.path.clone(), below: Below::Items(items) }
    }

    /// Returns the origin of a field of this part.
    pub(super) fn field(&self, name: &str) -> Self {
        match &self.below {
            Below::Fields(fields) if fields.contains_key(name) => fields.get(name).cloned(),
            _ => None,
        }
        .unwrap_or_else(|| Self::of(self.text, format!("{}.{name}", self.path)))
    }

    /// Returns the origin of an item of this part.
    pub(super) fn item(&self, index: usize) -> Self {
        match &self.below {
            Below::Items(items) => items.get(index).cloned(),
            _ => None,
        }
        .unwrap_or_else(|| Self::of(self.text, format!("{}[{index}]", self.path)))
    }

    /// Returns the profile in which a path below this part was written, and the path there. For a path that was not
    /// written, it is the nearest written part above, with the rest of the path.
    pub(super) fn locate(&self, path: &str) -> (usize, String) {
        let (mut here, mut rest) = (self, path);
        // Every step goes one level down, and the tree is no deeper than the profile.
        loop {
            let next = match &here.below {
                Below::Same => None,
                Below::Fields(fields) => step_into_field(fields, rest),
                Below::Items(items) => step_into_item(items, rest),
            };
            match next {
                Some((next, remaining)) => (here, rest) = (next, remaining),
                None => return (here.text, format!("{}{rest}", here.path)),
            }
        }
    }
}

/// Finds the field that a path begins with. Keys may contain dots, so the longest match is taken. Some paths omit
/// `$value`.
fn step_into_field<'o, 'p>(fields: &'o BTreeMap<String, Origin>, rest: &'p str) -> Option<(&'o Origin, &'p str)> {
    let ends = |remaining: &str| remaining.is_empty() || remaining.starts_with(['.', '[']);
    let fitting = fields.iter().filter_map(|(key, origin)| {
        let plain = rest.strip_prefix('.').and_then(|rest| rest.strip_prefix(key.as_str()));
        let remaining = plain.or_else(|| rest.strip_prefix(&format!("[{key:?}]"))).filter(|rest| ends(rest))?;
        Some((origin, remaining))
    });
    let longest = fitting.min_by_key(|(_, remaining)| remaining.len());
    longest.or_else(|| fields.get("$value").filter(|_| !rest.is_empty()).map(|value| (value, rest)))
}

fn step_into_item<'o, 'p>(items: &'o [Origin], rest: &'p str) -> Option<(&'o Origin, &'p str)> {
    let (index, remaining) = rest.strip_prefix('[')?.split_once(']')?;
    Some((items.get(index.parse::<usize>().ok()?)?, remaining))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged() -> Origin {
        let child = Origin::of(1, "spec");
        let list = child.field("list").with_items(vec![Origin::of(0, "spec.list[4]"), child.field("list").item(0)]);
        let value = child.field("args").with_fields([("$value".to_owned(), Origin::of(0, "spec.args"))].into());
        let fields = [("list", list), ("a", Origin::of(0, "spec.a")), ("a.b/c", child.field("a.b/c")), ("args", value)];
        child.with_fields(fields.into_iter().map(|(name, origin)| (name.to_owned(), origin)).collect())
    }

    #[test]
    fn a_path_is_found_where_it_was_written() {
        for (path, text, own) in [
            (".list[0].name", 0, "spec.list[4].name"),
            (".list[1].name", 1, "spec.list[0].name"),
            (".list[7]", 1, "spec.list[7]"),
            (".list", 1, "spec.list"),
            (".a.b", 0, "spec.a.b"),
            (".a.b/c", 1, "spec.a.b/c"),
            ("[\"a.b/c\"]", 1, "spec.a.b/c"),
            (".args[2]", 0, "spec.args[2]"),
            (".args.$value[2]", 0, "spec.args[2]"),
            (".other", 1, "spec.other"),
            ("", 1, "spec"),
        ] {
            assert_eq!(merged().locate(path), (text, own.to_owned()), "{path}");
        }
    }
}
