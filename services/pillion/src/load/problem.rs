//! What is wrong with a file, and showing it as compilers do: the message, the file with line and column, the piece of
//! text, and what to do.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use super::yaml::Fault;

/// A text and what it is called.
#[derive(Debug)]
pub(crate) struct Source {
    /// Its path as the user wrote it, or `<stdin>`.
    pub(crate) name: String,
    /// All of it. Empty if it could not be read.
    pub(crate) text: String,
}

/// Something that is wrong with a file.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    /// The file.
    pub(crate) source: Arc<Source>,
    /// Where in it, in bytes; `None` if it is about the file as a whole.
    pub(crate) span: Option<Range<usize>>,
    /// What is wrong, without a full stop.
    pub(crate) message: String,
    /// What to do.
    pub(crate) help: Option<String>,
}

impl Problem {
    /// About a file as a whole.
    pub(crate) fn whole(name: impl Into<String>, message: impl Into<String>) -> Self {
        let source = Arc::new(Source { name: name.into(), text: String::new() });
        Self { source, span: None, message: message.into(), help: None }
    }

    /// About a place in a file.
    pub(crate) fn at(source: &Arc<Source>, span: Range<usize>, message: impl Into<String>) -> Self {
        Self { source: Arc::clone(source), span: Some(span), message: message.into(), help: None }
    }

    /// What the YAML parser has to say about a file.
    pub(crate) fn syntax(source: &Arc<Source>, fault: Fault) -> Self {
        Self { source: Arc::clone(source), span: fault.span, message: fault.message, help: fault.help }
    }

    /// The same with a word on what to do.
    pub(crate) fn with_help(mut self, help: impl Into<Option<String>>) -> Self {
        self.help = help.into();
        self
    }

    /// Line and column, counted from one, the column in characters.
    pub(crate) fn position(&self) -> Option<(usize, usize)> {
        let before = self.source.text.get(..self.span.as_ref()?.start)?;
        let start = before.rfind('\n').map_or(0, |index| index + 1);
        Some((before.matches('\n').count() + 1, before.get(start..)?.chars().count() + 1))
    }

    /// The problem with its piece of text, coloured; a stream that is not a terminal takes the colours out.
    pub(crate) fn render(&self) -> String {
        let title = Level::ERROR.primary_title(self.message.as_str());
        let name = self.source.name.as_str();
        let group = match &self.span {
            Some(span) => title.element(
                Snippet::source(self.source.text.as_str())
                    .path(name)
                    .annotation(AnnotationKind::Primary.span(visible(&self.source.text, span))),
            ),
            None => title.element(Origin::path(name)),
        };
        let mut report = vec![group];
        if let Some(help) = &self.help {
            report.push(Group::with_title(Level::HELP.secondary_title(help.as_str())));
        }
        Renderer::styled().render(&report)
    }
}

/// In one line.
impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.source.name)?;
        if let Some((line, column)) = self.position() {
            write!(formatter, ":{line}:{column}")?;
        }
        write!(formatter, ": {}", self.message)?;
        match &self.help {
            Some(help) => write!(formatter, " ({help})"),
            None => Ok(()),
        }
    }
}

/// The part of a span that is on its first line: a block of many lines would be shown whole.
fn visible(text: &str, span: &Range<usize>) -> Range<usize> {
    let piece = text.get(span.clone()).unwrap_or_default();
    let first = piece.split(['\n', '\r']).next().unwrap_or_default();
    span.start.min(text.len())..(span.start + first.trim_end().len()).min(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str, piece: &str) -> Problem {
        let source = Arc::new(Source { name: "a.yaml".to_owned(), text: text.to_owned() });
        let start = text.find(piece).unwrap();
        Problem::at(&source, start..start + piece.len(), "that is wrong")
    }

    #[test]
    fn a_line_has_file_line_and_column() {
        let problem = problem("a: 1\né: ü: x\n", "ü").with_help("do it right".to_owned());
        assert_eq!(problem.to_string(), "a.yaml:2:4: that is wrong (do it right)");
        assert_eq!(Problem::whole("b", "cannot be read").to_string(), "b: cannot be read");
    }

    #[test]
    fn the_piece_of_text_is_shown_with_its_line() {
        let text = anstream::adapter::strip_str(&problem("a: 1\nb: 22\n", "22").with_help("x".to_owned()).render())
            .to_string();
        assert_eq!(text, "error: that is wrong\n --> a.yaml:2:4\n  |\n2 | b: 22\n  |    ^^\n  |\nhelp: x",);
    }

    #[test]
    fn of_many_lines_the_first_is_shown_and_an_end_of_file_can_be() {
        let text = problem("a: |\n  one\n  two\n", "one\n  two").render();
        assert!(text.contains("one") && !text.contains("two"), "{text}");
        let mut last = problem("a: 1\n", "1");
        last.span = Some(5..5);
        assert!(last.render().contains("a.yaml"), "{}", last.render());
    }
}
