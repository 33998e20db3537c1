//! A problem in a file, shown in the format of compiler errors: the message, the file with line and column, an excerpt,
//! and a remedy.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use serde::Serialize;
use serde_json::{Value, json};

use super::yaml::SyntaxError;

/// The length in bytes above which a message, a field's path or a remedy is shortened to its beginning and end, since
/// it may quote the source.
const LONGEST_MESSAGE: usize = 1_000;

/// The maximum underlined length, in bytes.
const LONGEST_MARK: usize = 200;

/// The content of a file, with its name.
#[derive(Debug)]
pub(crate) struct Source {
    /// The path as the user wrote it, or `<stdin>`.
    pub(crate) name: String,
    /// The content. [`Problem::whole`] leaves it empty.
    pub(crate) text: String,
    /// The byte offset of each line.
    lines: Vec<usize>,
}

impl Source {
    /// Returns a source with this name and content.
    pub(crate) fn new(name: impl Into<String>, text: String) -> Self {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(index, _)| index + 1)).collect();
        Self { name: name.into(), text, lines }
    }

    /// Returns the number of the line at an offset, from 1, and the line's offset.
    pub(crate) fn line(&self, offset: usize) -> (usize, usize) {
        let number = self.lines.partition_point(|start| *start <= offset);
        (number.max(1), number.checked_sub(1).and_then(|index| self.lines.get(index)).copied().unwrap_or_default())
    }
}

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// The file or the object with the problem cannot be used.
    Error,
    /// The file or the object can be used, but perhaps has a different effect than intended.
    Warning,
}

/// Why a command cannot use its files.
#[derive(Debug)]
pub(crate) enum LoadError {
    /// Problems in files.
    Problems(Vec<Problem>),
    /// Any other error.
    Other(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for LoadError {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

/// A problem in a file.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    /// The severity.
    pub(crate) severity: Severity,
    /// The file.
    pub(crate) source: Arc<Source>,
    /// The position in bytes. `None`: the problem concerns the whole file, or its position is unknown.
    pub(crate) span: Option<Range<usize>>,
    /// The path of the field in the object; empty if the problem concerns no specific field.
    pub(crate) path: String,
    /// The message, without a full stop.
    pub(crate) message: String,
    /// What the author can do to solve the problem.
    pub(crate) help: Option<String>,
}

impl Problem {
    /// Returns a problem that concerns a whole file.
    pub(crate) fn whole(name: impl Into<String>, message: impl Into<String>) -> Self {
        let source = Arc::new(Source::new(name, String::new()));
        Self { span: None, ..Self::at(&source, 0..0, message) }
    }

    /// Returns a problem at a position.
    pub(crate) fn at(source: &Arc<Source>, span: Range<usize>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            source: Arc::clone(source),
            span: Some(span),
            path: String::new(),
            message: shortened(message.into()),
            help: None,
        }
    }

    /// Returns the problem for a YAML syntax error.
    pub(crate) fn syntax(source: &Arc<Source>, error: SyntaxError) -> Self {
        Self { span: error.span, help: error.help, ..Self::at(source, 0..0, error.message) }
    }

    /// Sets the path of the field.
    pub(crate) fn of_field(mut self, path: impl Into<String>) -> Self {
        self.path = shortened(path.into());
        self
    }

    /// Makes the problem a warning.
    pub(crate) const fn into_warning(mut self) -> Self {
        self.severity = Severity::Warning;
        self
    }

    /// Sets the remedy.
    pub(crate) fn with_help(mut self, help: impl Into<Option<String>>) -> Self {
        self.help = help.into().map(shortened);
        self
    }

    /// Returns line and column, from 1; the column counts characters. `None` for a problem without a span.
    pub(crate) fn position(&self) -> Option<(usize, usize)> {
        self.position_of(self.span.as_ref()?.start)
    }

    fn position_of(&self, offset: usize) -> Option<(usize, usize)> {
        let (line, start) = self.source.line(offset);
        Some((line, self.source.text.get(start..offset)?.chars().count() + 1))
    }

    /// Returns the problem as JSON, without empty fields.
    pub(crate) fn to_json(&self) -> Value {
        let end = self.span.as_ref().and_then(|span| self.position_of(visible(&self.source.text, span).end));
        let mut json = json!({
            "severity": self.severity,
            "file": self.source.name,
            "line": self.position().map(|(line, _)| line),
            "column": self.position().map(|(_, column)| column),
            "endColumn": end.map(|(_, column)| column),
            "path": self.path,
            "message": self.message,
            "help": self.help,
        });
        if let Value::Object(fields) = &mut json {
            fields.retain(|_, value| !value.is_null() && *value != "");
        }
        json
    }

    /// Returns the message, preceded by the path of the field if there is one and the message does not name the field.
    fn title(&self) -> String {
        if self.path.is_empty() || self.message.starts_with("unknown field") {
            self.message.clone()
        } else {
            format!("{}: {}", self.path, self.message)
        }
    }

    /// Formats the problem with an excerpt, in colour. [`crate::output::report`] removes the colours for streams that
    /// are not terminals.
    pub(crate) fn render(&self) -> String {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let title = level.primary_title(self.title());
        let name = self.source.name.as_str();
        let group = match &self.span {
            Some(span) => {
                let text = self.source.text.as_str();
                let shown = visible(text, span);
                // The renderer scans its whole input, so it gets only this line.
                let (number, start) = self.source.line(shown.start);
                let line = text.get(start..).and_then(|rest| rest.lines().next()).unwrap_or_default();
                title.element(
                    Snippet::source(line)
                        .line_start(number)
                        .path(name)
                        .annotation(AnnotationKind::Primary.span(shown.start - start..shown.end - start)),
                )
            }
            None => title.element(Origin::path(name)),
        };
        let mut report = vec![group];
        if let Some(help) = &self.help {
            report.push(Group::with_title(Level::HELP.secondary_title(help.as_str())));
        }
        Renderer::styled().render(&report)
    }
}

/// Formats the problem on one line.
impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.source.name)?;
        if let Some((line, column)) = self.position() {
            write!(formatter, ":{line}:{column}")?;
        }
        write!(formatter, ": {}", self.title())?;
        match &self.help {
            Some(help) => write!(formatter, " ({help})"),
            None => Ok(()),
        }
    }
}

/// Shortens a long string to its beginning and end.
fn shortened(text: String) -> String {
    if text.len() <= LONGEST_MESSAGE {
        return text;
    }
    let half = LONGEST_MESSAGE / 2;
    let begin = text.get(..text.floor_char_boundary(half)).unwrap_or_default();
    let end = text.get(text.ceil_char_boundary(text.len() - half)..).unwrap_or_default();
    format!("{begin}…{end}")
}

/// Returns the part of a span that is on its first line, up to [`LONGEST_MARK`] bytes, so that a block of many lines is
/// not printed in full.
fn visible(text: &str, span: &Range<usize>) -> Range<usize> {
    let piece = text.get(span.clone()).unwrap_or_default();
    let first = piece.split(['\n', '\r']).next().unwrap_or_default();
    let shown = first.trim_end();
    let shown = shown.floor_char_boundary(LONGEST_MARK.min(shown.len()));
    span.start.min(text.len())..(span.start + shown).min(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str, piece: &str) -> Problem {
        let source = Arc::new(Source::new("a.yaml", text.to_owned()));
        let start = text.find(piece).unwrap();
        Problem::at(&source, start..start + piece.len(), "that is wrong")
    }

    #[test]
    fn line_has_file_line_and_column() {
        let problem = problem("a: 1\né: ü: x\n", "ü").with_help("do it right".to_owned());
        assert_eq!(problem.to_string(), "a.yaml:2:4: that is wrong (do it right)");
        assert_eq!(Problem::whole("b", "cannot be read").to_string(), "b: cannot be read");
    }

    #[test]
    fn problem_shows_marked_source_line() {
        let text = anstream::adapter::strip_str(&problem("a: 1\nb: 22\n", "22").with_help("x".to_owned()).render())
            .to_string();
        assert_eq!(text, "error: that is wrong\n --> a.yaml:2:4\n  |\n2 | b: 22\n  |    ^^\n  |\nhelp: x",);
    }

    #[test]
    fn json_has_parts_of_problem() {
        let problem = problem("a: 1\nb: 22\n", "22").with_help("x".to_owned()).of_field("spec.b").into_warning();
        assert_eq!(problem.to_string(), "a.yaml:2:4: spec.b: that is wrong (x)");
        let expected = json!({"severity": "warning", "file": "a.yaml", "line": 2, "column": 4, "endColumn": 6,
            "path": "spec.b", "message": "that is wrong", "help": "x"});
        assert_eq!(problem.to_json(), expected);
        let whole = Problem::whole("b", "cannot be read").to_json();
        assert_eq!(whole, json!({"severity": "error", "file": "b", "message": "cannot be read"}));
    }

    #[test]
    fn shows_positions_of_lines_and_end_of_file() {
        let text = problem("a: |\n  one\n  two\n", "one\n  two").render();
        assert!(text.contains("one") && !text.contains("two"), "{text}");
        let mut last = problem("a: 1\n", "1");
        last.span = Some(5..5);
        assert!(last.render().contains("a.yaml"), "{}", last.render());
    }
}
