//! Writes results as `JUnit` XML, which CI servers read.

use std::fmt::Write as _;

use super::suite::{Outcome, Suite};

/// Returns the results as XML, with one suite for each folder.
pub(super) fn xml(suites: &[Suite]) -> String {
    let cases: usize = suites.iter().map(|suite| suite.cases.len()).sum();
    let failures: usize = suites.iter().map(Suite::failed).sum();
    let errors: usize = suites.iter().map(|suite| suite.problems.len()).sum();
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(
        xml,
        "<testsuites name=\"pillion test\" tests=\"{}\" failures=\"{failures}\" errors=\"{errors}\">",
        cases + errors
    );
    for suite in suites {
        let _ = writeln!(
            xml,
            "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\">",
            escaped(&suite.folder.display().to_string()),
            suite.cases.len() + suite.problems.len(),
            suite.failed(),
            suite.problems.len()
        );
        for case in &suite.cases {
            self::case(&mut xml, case);
        }
        for problem in &suite.problems {
            let file = escaped(&problem.source.name);
            let _ = writeln!(xml, "    <testcase classname=\"{file}\" name=\"{file}\" file=\"{file}\">");
            let _ = writeln!(xml, "      <error message=\"{}\"/>", escaped(&problem.to_string()));
            xml.push_str("    </testcase>\n");
        }
        xml.push_str("  </testsuite>\n");
    }
    xml.push_str("</testsuites>\n");
    xml
}

fn case(xml: &mut String, case: &Outcome) {
    let (file, name) = (escaped(&case.file), escaped(&case.name));
    let begin = format!("    <testcase classname=\"{file}\" name=\"{name}\" file=\"{file}\" line=\"{}\"", case.line);
    let messages = case.failures();
    let Some(first) = messages.first() else {
        let _ = writeln!(xml, "{begin}/>");
        return;
    };
    let message = escaped(first.lines().next().unwrap_or_default());
    let _ = writeln!(xml, "{begin}>\n      <failure message=\"{message}\">{}</failure>", escaped(&messages.join("\n")));
    xml.push_str("    </testcase>\n");
}

/// Escapes text for XML. Replaces characters that XML cannot represent, and control characters except line feeds and
/// tabs, with U+FFFD.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push_str("&#10;"),
            '\t' => escaped.push('\t'),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_xml_characters_are_replaced() {
        assert_eq!(escaped("a<b>&\"\n\u{7}é"), "a&lt;b&gt;&amp;&quot;&#10;\u{fffd}é");
    }
}
