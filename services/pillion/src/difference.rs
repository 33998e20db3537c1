//! Shows the difference between two objects as a unified diff of their YAML, in colour on a terminal.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use similar::{ChangeTag, TextDiff};

use crate::output;

const RED: &str = "\u{1b}[31m";
const GREEN: &str = "\u{1b}[32m";
const CYAN: &str = "\u{1b}[36m";
const BOLD: &str = "\u{1b}[1m";
const PLAIN: &str = "\u{1b}[0m";

/// The number of unchanged lines shown around a change.
const CONTEXT: usize = 3;

/// A hunk of a unified diff.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Hunk {
    /// The header, as in `@@ -2,5 +2,7 @@`.
    pub(crate) header: String,
    /// The line number of the hunk's first line in the new text, from 1.
    pub(crate) start: usize,
    pub(crate) lines: Vec<Line>,
}

/// A line of a hunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Line {
    pub(crate) change: Change,
    /// The text without the line end.
    pub(crate) text: String,
}

/// Whether a line is unchanged, removed or added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Change {
    Same,
    Removed,
    Added,
}

/// Returns the hunks that turn `old` into `new`, with context; empty if both are equal. If there is a time `limit`, the
/// hunks may be larger than necessary.
pub(crate) fn hunks(old: &str, new: &str, limit: Option<Duration>) -> Vec<Hunk> {
    let mut how = TextDiff::configure();
    if let Some(limit) = limit {
        how.timeout(limit);
    }
    let diff = how.diff_lines(old, new);
    let mut unified = diff.unified_diff();
    let hunks = unified.context_radius(CONTEXT).iter_hunks().map(|hunk| {
        let lines = hunk.iter_changes().map(|change| Line {
            change: match change.tag() {
                ChangeTag::Equal => Change::Same,
                ChangeTag::Delete => Change::Removed,
                ChangeTag::Insert => Change::Added,
            },
            text: change.value().trim_end_matches('\n').to_owned(),
        });
        let start = hunk.ops().first().map_or(0, |first| first.new_range().start) + 1;
        Hunk { header: hunk.header().to_string(), start, lines: lines.collect() }
    });
    hunks.collect()
}

/// Formats the difference between two states of an object as YAML; empty if both are equal. The order of keys is
/// ignored. Each argument contains the name of a state for the header, and the state. The result contains colours,
/// which [`output::show`] removes if the output is not a terminal.
pub(crate) fn of(before: (&str, &Value), after: (&str, &Value)) -> anyhow::Result<String> {
    let (old, new) = (output::yaml(before.1)?, output::yaml(&in_order_of(before.1, after.1))?);
    if old == new {
        return Ok(String::new());
    }
    let mut text = format!("{BOLD}--- {}{PLAIN}\n{BOLD}+++ {}{PLAIN}\n", before.0, after.0);
    for Hunk { header, lines, .. } in hunks(&old, &new, None) {
        // Writing to a string never fails.
        let _ = writeln!(text, "{CYAN}{header}{PLAIN}");
        for Line { change, text: line } in lines {
            let _ = match change {
                Change::Same => writeln!(text, " {line}"),
                Change::Removed => writeln!(text, "{RED}-{line}{PLAIN}"),
                Change::Added => writeln!(text, "{GREEN}+{line}{PLAIN}"),
            };
        }
    }
    Ok(text)
}

/// Returns `after` with the keys of its objects in the same order as in `before`; new keys come last. A list item takes
/// the order from the item of the same name, or else from the item at the same index.
fn in_order_of(before: &Value, after: &Value) -> Value {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            let kept = before.iter().filter_map(|(key, old)| Some((key, in_order_of(old, after.get(key)?))));
            let new = after.iter().filter(|(key, _)| !before.contains_key(*key)).map(|(key, new)| (key, new.clone()));
            Value::Object(kept.chain(new).map(|(key, value)| (key.clone(), value)).collect())
        }
        (Value::Array(before), Value::Array(after)) => {
            let old = |index: usize, new: &Value| {
                let named = new.get("name").and_then(|name| before.iter().find(|old| old.get("name") == Some(name)));
                named.or_else(|| before.get(index)).unwrap_or(&Value::Null)
            };
            let items = after.iter().enumerate().map(|(index, new)| in_order_of(old(index, new), new));
            Value::Array(items.collect())
        }
        _ => after.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn diff_shows_changes_with_context() {
        let before = json!({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6});
        let after = json!({"a": 1, "b": 2, "c": 3, "d": 4, "e": "5", "f": 6, "g": [7]});
        let text = of(("x", &before), ("y", &after)).unwrap();
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert_eq!(plain, "--- x\n+++ y\n@@ -2,5 +2,7 @@\n b: 2\n c: 3\n d: 4\n-e: 5\n+e: \"5\"\n f: 6\n+g:\n+- 7\n");
        assert!(text.contains("\u{1b}[32m+g:\u{1b}[0m"), "{text:?}");
        assert_eq!(of(("x", &before), ("y", &before)).unwrap(), "");
    }

    #[test]
    fn order_of_keys_is_no_difference() {
        let before =
            json!({"spec": {"containers": [{"name": "app", "image": "a:1", "env": []}], "dnsPolicy": "Default"}});
        let after =
            json!({"spec": {"dnsPolicy": "Default", "containers": [{"env": [], "image": "a:2", "name": "app"}]}});
        let text = of(("x", &before), ("y", &after)).unwrap();
        let plain = anstream::adapter::strip_str(&text).to_string();
        let changed: Vec<_> = plain.lines().skip(2).filter(|line| line.starts_with(['+', '-'])).collect();
        assert_eq!(changed, ["-    image: a:1", "+    image: a:2"], "{plain}");
    }
}
