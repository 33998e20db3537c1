//! `--update`: replaces the `result` of a test case with the actual one, or adds it to a test case without
//! expectations.
//!
//! The file is edited as text, so comments and all other parts remain unchanged.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;

use anyhow::Context;
use serde_json::Value;

use crate::load::yaml;
use crate::output;

/// A result to write into a file of test cases.
#[derive(Clone, Debug)]
pub(super) struct Update {
    /// The expected result to write: the whole object.
    pub(super) object: Value,
    /// The byte offset of the key `result`; `None` if the case does not have this key.
    pub(super) key: Option<usize>,
    /// The byte offset at which the case begins.
    pub(super) begin: usize,
}

/// Writes all updates. Returns the number of changed cases, and messages for those that could not be changed.
pub(super) fn write(updates: &BTreeMap<String, Vec<(String, Update)>>) -> anyhow::Result<(usize, Vec<String>)> {
    let mut written = 0;
    let mut left = Vec::new();
    for (file, updates) in updates {
        let before = fs::read_to_string(file).with_context(|| format!("{file} cannot be read"))?;
        let mut text = before.clone();
        let mut edits = Vec::new();
        for (name, update) in updates {
            match place(&text, update) {
                Some(place) => edits.push((place, name, update)),
                None => left.push(format!("{file}: {name}: its `result` does not begin on its own line")),
            }
        }
        // The edits are applied from the end, so that earlier offsets remain valid.
        edits.sort_by_key(|(place, ..)| std::cmp::Reverse(place.start));
        for (place, name, update) in edits {
            let edited = edited(&text, place, &update.object)?;
            if says(&text, &edited, update) {
                written += 1;
                text = edited;
            } else {
                left.push(format!("{file}: {name}: its `result` cannot be updated automatically: edit it manually"));
            }
        }
        if text != before {
            fs::write(file, text).with_context(|| format!("{file} cannot be written"))?;
        }
    }
    Ok((written, left))
}

/// Returns the file's text, in which the result replaces the range `place`.
fn edited(text: &str, place: Range<usize>, object: &Value) -> anyhow::Result<String> {
    let begins_line = place.start == 0 || text.get(..place.start).is_some_and(|text| text.ends_with('\n'));
    let object = output::yaml(object)?;
    let indented = object.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("  {line}\n") });
    let result = format!("{}result:\n{}", if begins_line { "" } else { "\n" }, indented.collect::<String>());
    let mut edited = text.to_owned();
    edited.replace_range(place, &result);
    Ok(edited)
}

/// Whether the edited file contains the result of the update, and is otherwise unchanged.
fn says(before: &str, edited: &str, update: &Update) -> bool {
    let (Ok(before), Ok(after)) = (yaml::documents(before), yaml::documents(edited)) else { return false };
    before.len() == after.len()
        && before.iter().zip(&after).all(|(before, after)| {
            let mut expected = before.to_value();
            if before.span.start == update.begin
                && let Some(fields) = expected.as_object_mut()
            {
                fields.insert("result".to_owned(), update.object.clone());
            }
            after.to_value() == expected
        })
}

/// Returns the range of lines to replace, which is empty for a new result. `None` if the key `result` does not begin a
/// line, or if the case is in flow style.
fn place(text: &str, update: &Update) -> Option<Range<usize>> {
    let Some(key) = update.key else {
        let end = end_of_document(text, update.begin);
        // No line can be added to a mapping in flow style.
        return (!text.get(update.begin..)?.starts_with('{')).then_some(end..end);
    };
    let before = text.get(..key)?;
    if !(before.is_empty() || before.ends_with('\n')) {
        return None;
    }
    let (mut at, mut end) = (key, key);
    for line in text.get(key..)?.split_inclusive('\n') {
        let is_blank = line.trim().is_empty();
        let is_indented = line.starts_with([' ', '\t']);
        // A comment without indentation may be inside the value.
        if at > key && !is_blank && !is_indented && !line.starts_with('#') {
            break;
        }
        at += line.len();
        // Trailing blank lines and comments are not part of the value.
        if !is_blank && (is_indented || end == key) {
            end = at;
        }
    }
    Some(key..end)
}

/// Returns the offset after the last non-blank line of a document.
fn end_of_document(text: &str, begin: usize) -> usize {
    let mut at = begin;
    let mut end = begin;
    for line in text.get(begin..).unwrap_or_default().split_inclusive('\n') {
        if at > begin && (line.trim_end() == "---" || line.starts_with("--- ") || line.trim_end() == "...") {
            break;
        }
        at += line.len();
        if !line.trim().is_empty() {
            end = at;
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn updated(text: &str, updates: &[Update]) -> (String, usize, usize) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let name = file.path().display().to_string();
        let updates = updates.iter().map(|update| ("a case".to_owned(), update.clone())).collect();
        let (written, left) = write(&BTreeMap::from([(name, updates)])).unwrap();
        (fs::read_to_string(file.path()).unwrap(), written, left.len())
    }

    fn update(text: &str, key: Option<&str>, begin: &str) -> Update {
        Update {
            object: json!({"spec": {"a": "x\n\ny\n"}}),
            key: key.map(|key| text.find(key).unwrap()),
            begin: text.find(begin).unwrap(),
        }
    }

    const NEW: &str = "result:\n  spec:\n    a: |\n      x\n      \n      y\n";

    #[test]
    fn update_rewrites_only_the_result() {
        let text = "# one\nname: a\nresult:\n  old: 1\n  # in it\n\n  more: 2\n\n# behind it\nenv: {}\n---\nname: b\nresult: {old: 1}\n";
        let second = Update { key: text.rfind("result"), ..update(text, None, "name: b") };
        let (after, written, left) = updated(text, &[update(text, Some("result"), "name: a"), second]);
        assert_eq!(after, format!("# one\nname: a\n{NEW}\n# behind it\nenv: {{}}\n---\nname: b\n{NEW}"));
        assert_eq!((written, left), (2, 0));
    }

    #[test]
    fn unindented_comment_does_not_end_result() {
        let text = "name: a\nresult:\n  old: 1\n# in it\n  more: 2\n# behind it\nenv: {}\n";
        let (after, written, left) = updated(text, &[update(text, Some("result"), "name: a")]);
        assert_eq!(after, format!("name: a\n{NEW}# behind it\nenv: {{}}\n"));
        assert_eq!((written, left), (1, 0));
    }

    #[test]
    fn update_that_loses_result_is_skipped() {
        // Lines of a quoted string may begin without indentation.
        let text = "name: a\nresult: {old: 'a\nb'}\nenv: {}\n";
        assert_eq!(updated(text, &[update(text, Some("result"), "name: a")]), (text.to_owned(), 0, 1));
    }

    #[test]
    fn case_without_result_gets_one_appended() {
        let text = "name: a\nobject: {}\n\n---\nname: b\nobject: {}";
        let (after, ..) = updated(text, &[update(text, None, "name: a"), update(text, None, "name: b")]);
        assert_eq!(after, format!("name: a\nobject: {{}}\n{NEW}\n---\nname: b\nobject: {{}}\n{NEW}"));
    }

    #[test]
    fn flow_style_case_is_skipped() {
        let text = "{name: a, result: {}}\n";
        assert_eq!(updated(text, &[update(text, Some("result"), "{name")]), (text.to_owned(), 0, 1));
    }
}
