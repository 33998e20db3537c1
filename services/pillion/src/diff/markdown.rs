//! Prints a comparison as Markdown: a table, and a collapsed diff of each workload that differs. The length is bounded,
//! because GitHub rejects comments of more than 65,536 characters.

use std::fmt::Write as _;

use super::{Compared, text};

/// The maximum length of the report, in bytes.
const MAX_BYTES: usize = 60_000;

/// The maximum length of the summary and the table, in bytes, so that the first diffs have space.
const MAX_TABLE_BYTES: usize = 20_000;

/// The number of bytes reserved for the last line, which states how many diffs and rows were left out.
const HINT_BYTES: usize = 300;

/// Returns the report.
pub(super) fn report(compared: &[Compared]) -> anyhow::Result<String> {
    let differing: Vec<_> = compared.iter().filter(|one| one.differs()).collect();
    let mut report = format!("### Effects on pods\n\n{}.\n", text::summary(compared));
    if !differing.is_empty() {
        report.push_str("\n| workload | pods | effect |\n|---|---|---|\n");
    }
    let (mut rows, mut diffs) = (0, 0);
    for one in &differing {
        let row = format!("| {} | {} | {} |\n", code(&one.name), one.pods, one.change().as_str());
        if report.len() + row.len() <= MAX_TABLE_BYTES {
            report.push_str(&row);
            rows += 1;
        }
    }
    for one in &differing {
        let diff = anstream::adapter::strip_str(&text::workload(one)?).to_string();
        let fence = fence(&diff);
        let block =
            format!("\n<details><summary>{}</summary>\n\n{fence}diff\n{diff}{fence}\n\n</details>\n", html(&one.name));
        if report.len() + block.len() <= MAX_BYTES - HINT_BYTES {
            report.push_str(&block);
            diffs += 1;
        }
    }
    if rows.min(diffs) < differing.len() {
        // Writing to a string never fails.
        let (all, rows, diffs) = (differing.len(), differing.len() - rows, differing.len() - diffs);
        let _ = writeln!(
            report,
            "\nThis report has at most {MAX_BYTES} bytes. It leaves out {diffs} of {all} diffs, and {rows} of {all} rows of \
             the table. `pillion diff -o text` shows them, with the same flags.",
        );
    }
    Ok(report)
}

/// Formats a string as code in a cell of a table. Names in manifests may contain any character.
fn code(text: &str) -> String {
    let cell = text.replace(['`', '\n', '\r'], " ").replace('|', "\\|");
    format!("`{cell}`")
}

/// Escapes all characters of a string that may have a meaning in HTML or Markdown.
fn html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_alphanumeric() || " /.-".contains(letter) {
            escaped.push(letter);
        } else {
            let _ = write!(escaped, "&#{};", u32::from(letter));
        }
    }
    escaped
}

/// Returns a fence that does not occur in the text.
fn fence(text: &str) -> String {
    let (mut longest, mut current) = (2, 0);
    for letter in text.chars() {
        current = if letter == '`' { current + 1 } else { 0 };
        longest = longest.max(current);
    }
    "`".repeat(longest + 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::super::Rendered;
    use super::*;

    fn changed(name: &str, lines: usize) -> Compared {
        let rendered = |value: &str| {
            let pod = json!({"spec": (0..lines).map(|line| format!("{value} {line}")).collect::<Vec<_>>()});
            Some(Rendered { pod: Some(pod), profiles: BTreeMap::new() })
        };
        Compared { name: name.to_owned(), pods: 1, before: rendered("old"), after: rendered("new"), at: None }
    }

    #[test]
    fn report_is_bounded_and_says_what_is_left_out() {
        let large: Vec<_> = (0..2_000).map(|number| changed(&format!("Deployment shop/web-{number}"), 3)).collect();
        let report = report(&large).unwrap();
        assert!(report.len() <= MAX_BYTES && report.len() > MAX_BYTES - 1_000, "{}", report.len());
        let (rows, diffs) = (report.matches("| changed |").count(), report.matches("<details>").count());
        let hint = format!("leaves out {} of 2000 diffs, and {} of 2000 rows", 2_000 - diffs, 2_000 - rows);
        assert!(report.contains(&hint) && rows > 100 && diffs > 100, "{hint}\n{report}");
    }

    #[test]
    fn diff_after_oversized_one_is_shown() {
        let report = report(&[changed("Pod a/large", 10_000), changed("Pod a/small", 1)]).unwrap();
        assert!(report.contains("leaves out 1 of 2 diffs, and 0 of 2 rows"), "{report}");
        assert!(report.contains("<summary>Pod a/small"), "{report}");
    }

    #[test]
    fn names_and_diffs_are_escaped() {
        let mut one = changed("Pod a/|`<b>@team\n", 1);
        one.after.as_mut().unwrap().pod = Some(json!({"spec": ["a\n````\nb"]}));
        let report = report(&[one]).unwrap();
        assert!(report.contains("| `Pod a/\\| <b>@team ` | 1 | changed |"), "{report}");
        assert!(report.contains("<summary>Pod a/&#124;&#96;&#60;b&#62;&#64;team&#10;</summary>"), "{report}");
        assert!(report.contains("\n`````diff\n"), "{report}");
    }
}
