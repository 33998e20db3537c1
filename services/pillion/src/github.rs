//! Prints problems as GitHub Actions annotations, which GitHub shows at their line in a change.

use crate::load::Problem;

/// Formats an annotation. `None`: the position is unknown.
pub(crate) fn line(level: &str, file: &str, at: Option<(usize, usize)>, title: &str, message: &str) -> String {
    let mut properties = vec![format!("file={}", property(file))];
    if let Some((line, column)) = at {
        properties.push(format!("line={line},col={column}"));
    }
    if !title.is_empty() {
        properties.push(format!("title={}", property(title)));
    }
    format!("::{level} {}::{}\n", properties.join(","), data(message))
}

/// Formats one annotation for each problem.
pub(crate) fn problems<'p>(problems: impl IntoIterator<Item = &'p Problem>) -> String {
    let line = |problem: &Problem| {
        let json = problem.to_json();
        let text = |key: &str| json.get(key).and_then(serde_json::Value::as_str).unwrap_or_default();
        let level = if text("severity") == "warning" { "warning" } else { "error" };
        let message = [text("message"), text("help")].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>();
        line(level, &problem.source.name, problem.position(), text("path"), &message.join("\n"))
    };
    problems.into_iter().map(line).collect()
}

fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_end_a_property_or_a_line_is_escaped() {
        let shown = line("error", "a,b.yaml", Some((3, 7)), "spec: x", "100%\nof it: a, b");
        assert_eq!(shown, "::error file=a%2Cb.yaml,line=3,col=7,title=spec%3A x::100%25%0Aof it: a, b\n");
        assert_eq!(line("warning", "a", None, "", "b"), "::warning file=a::b\n");
    }
}
