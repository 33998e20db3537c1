//! Finds the position of a field in the source by its path.
//!
//! The engine and serde name a field like `spec.template.spec.containers[0].image`. A key may contain dots, as in
//! labels and annotations, and may be plain, in brackets or in quotes.

use std::ops::Range;

use serde_json::Value;

use super::yaml::{Content, Node};

/// Returns the position of a field, or of its nearest existing ancestor.
pub(crate) fn of(root: &Node, path: &str) -> Range<usize> {
    let mut node = root;
    let mut place = root.span.clone();
    let mut rest = path.trim_start_matches(['.', '$']);
    // Every step consumes at least one character of the path.
    while !rest.is_empty() {
        let Some((next, next_place, remaining)) = step(node, rest) else { break };
        (node, place, rest) = (next, next_place, remaining.strip_prefix('.').unwrap_or(remaining));
    }
    place
}

/// Returns the position of a key in the mapping at a path, if it exists. serde's path of an unknown field includes the
/// field itself, which is removed.
pub(crate) fn of_key(root: &Node, path: &str, key: &str) -> Option<Range<usize>> {
    let mut node = root;
    let mut rest = path;
    while !rest.is_empty() && rest != key {
        let (next, _, remaining) = step(node, rest)?;
        (node, rest) = (next, remaining.strip_prefix('.').unwrap_or(remaining));
    }
    node.entry(key).map(|entry| entry.key_span.clone())
}

/// Returns the position of a field's name. For a missing field it is the position from [`of`].
pub(crate) fn of_name(root: &Node, path: &str) -> Range<usize> {
    let mut node = root;
    let mut rest = path.trim_start_matches(['.', '$']);
    let mut place = None;
    while !rest.is_empty() {
        let Some((next, _, remaining)) = step(node, rest) else { return of(root, path) };
        place = match &node.content {
            Content::Mapping(entries) => entries
                .iter()
                .find(|entry| std::ptr::eq(&raw const entry.value, next))
                .map(|entry| entry.key_span.clone()),
            _ => None,
        };
        (node, rest) = (next, remaining.strip_prefix('.').unwrap_or(remaining));
    }
    place.unwrap_or_else(|| of(root, path))
}

/// Returns the position of some bytes of a field's value. The value may be quoted, escaped or folded, so the bytes are
/// searched for. If they are not found literally, it is the whole field.
pub(crate) fn of_part(text: &str, root: &Node, path: &str, part: &Range<usize>) -> Range<usize> {
    let whole = of(root, path);
    part_of(text, root, path, part, &whole).unwrap_or(whole)
}

fn part_of(text: &str, root: &Node, path: &str, part: &Range<usize>, whole: &Range<usize>) -> Option<Range<usize>> {
    let mut node = root;
    let mut rest = path.trim_start_matches(['.', '$']);
    while !rest.is_empty() {
        let (next, _, remaining) = step(node, rest)?;
        (node, rest) = (next, remaining.strip_prefix('.').unwrap_or(remaining));
    }
    let Content::Scalar(Value::String(value)) = &node.content else { return None };
    let written = text.get(whole.clone())?;
    // For an empty piece, the text before it is searched for.
    let (piece, behind) = match value.get(part.clone())? {
        "" => (value.get(..part.start)?.rsplit('\n').next()?.trim_start(), true),
        piece => (piece.lines().next()?.trim_end(), false),
    };
    if piece.is_empty() {
        return None;
    }
    let before = if behind { part.start - piece.len() } else { part.start };
    let nth = value.get(..before)?.matches(piece).count();
    let (offset, _) = written.match_indices(piece).nth(nth)?;
    let start = whole.start + offset;
    let end = start + piece.len();
    Some(if behind { end..end } else { start..end })
}

/// Takes one step down: returns the node, its position, and the rest of the path.
fn step<'n, 'p>(node: &'n Node, path: &'p str) -> Option<(&'n Node, Range<usize>, &'p str)> {
    match &node.content {
        Content::Scalar(_) => None,
        Content::Sequence(items) => {
            let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
            let item = items.get(index.parse::<usize>().ok()?)?;
            Some((item, item.span.clone(), rest))
        }
        Content::Mapping(entries) => {
            let (entry, rest) = entries
                .iter()
                .filter_map(|entry| Some((entry, after_key(path, &entry.key)?)))
                .min_by_key(|(_, rest)| rest.len())?;
            // For a scalar the value is marked, for anything larger its key.
            let place = match entry.value.content {
                Content::Scalar(_) if !entry.value.span.is_empty() => entry.value.span.clone(),
                _ => entry.key_span.clone(),
            };
            Some((&entry.value, place, rest))
        }
    }
}

/// Returns the rest of a path after this key, if the path begins with it.
fn after_key<'p>(path: &'p str, key: &str) -> Option<&'p str> {
    let plain = path.strip_prefix(key).filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
    plain.or_else(|| {
        let inner = path.strip_prefix('[')?;
        ["", "\"", "'"]
            .into_iter()
            .find_map(|quote| inner.strip_prefix(quote)?.strip_prefix(key)?.strip_prefix(quote)?.strip_prefix(']'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::yaml;

    const TEXT: &str = "\
metadata:
  annotations:
    example.com/a.b: first
    example: {com/a: second}
spec:
  containers:
  - name: a
    image: one
  - {name: b, image: two}
  volumes:
";

    fn shown(path: &str) -> &'static str {
        let documents = yaml::documents(TEXT).unwrap();
        &TEXT[of(&documents[0], path)]
    }

    #[test]
    fn a_scalar_is_shown_itself_and_anything_larger_by_its_key() {
        assert_eq!(shown("spec.containers[0].image"), "one");
        assert_eq!(shown(".spec.containers[1].image"), "two");
        assert_eq!(shown("spec.containers"), "containers");
        assert_eq!(shown("spec.containers[0]"), "name");
        assert_eq!(shown("spec.volumes"), "volumes");
    }

    #[test]
    fn a_field_that_is_not_there_is_shown_at_the_nearest_above() {
        assert_eq!(shown("spec.containers[0].command"), "name");
        assert_eq!(shown("spec.containers[7].command"), "containers");
        assert_eq!(shown("spec.hostNetwork"), "spec");
        assert_eq!(shown(""), "metadata");
    }

    #[test]
    fn a_key_with_dots_is_found_however_it_is_written() {
        for path in ["example.com/a.b", "[example.com/a.b]"] {
            assert_eq!(shown(&format!("metadata.annotations.{path}").replace(".[", "[")), "first");
        }
        assert_eq!(shown("metadata.annotations[\"example.com/a.b\"]"), "first");
        assert_eq!(shown("metadata.annotations['example.com/a.b']"), "first");
        assert_eq!(shown("metadata.annotations.example.com/a"), "second");
    }

    #[test]
    fn a_name_is_shown_where_it_stands() {
        let documents = yaml::documents(TEXT).unwrap();
        let name = |path| &TEXT[of_name(&documents[0], path)];
        assert_eq!(name("spec.containers[0].image"), "image");
        assert_eq!(name("metadata.annotations[\"example.com/a.b\"]"), "example.com/a.b");
        assert_eq!(name("spec.containers[0]"), "name");
        assert_eq!(name("spec.nothing"), "spec");
    }

    #[test]
    fn a_piece_of_a_text_is_found_however_the_text_is_written() {
        let text = "a: x + yy + x\nb: \"x \\\"q\\\" + yy\"\nc: 'it''s yy'\nd: >-\n  x +\n  yy + x\ne: |\n  x\n  yy\n";
        let documents = yaml::documents(text).unwrap();
        let shown = |path: &str, part: Range<usize>| {
            let place = of_part(text, &documents[0], path, &part);
            (place.start, &text[place])
        };
        let second = |line: &str, piece: &str| text.find(line).unwrap() + line.rfind(piece).unwrap();
        assert_eq!(shown("a", 9..10), (second("a: x + yy + x", "x"), "x"));
        assert_eq!(shown("a", 4..6).1, "yy");
        assert_eq!(shown("a", 10..10), (second("a: x + yy + x", "x") + 1, ""));
        for (path, value) in [("b", "x \"q\" + yy"), ("c", "it's yy"), ("d", "x + yy + x"), ("e", "x\nyy\n")] {
            assert_eq!(documents[0].text(path), Some(value));
            let start = value.find("yy").unwrap();
            assert_eq!(shown(path, start..start + 2).1, "yy", "{path}");
        }
    }

    #[test]
    fn a_key_is_found_with_and_without_itself_in_the_path() {
        let documents = yaml::documents(TEXT).unwrap();
        for path in ["spec.containers[0]", "spec.containers[0].image"] {
            let place = of_key(&documents[0], path, "image").unwrap();
            assert_eq!((&TEXT[place.clone()], place.start), ("image", TEXT.find("image").unwrap()));
        }
        assert_eq!(of_key(&documents[0], "spec", "spec").map(|place| &TEXT[place]), Some("spec"));
        assert_eq!(of_key(&documents[0], "spec", "nothing"), None);
    }
}
