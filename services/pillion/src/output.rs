//! Prints the results of a command to standard output, and problems and progress to standard error.
//!
//! The reader of the output may close it early, as in `pillion crds | head`, which is not an error.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::ValueEnum;
use serde_json::Value;

use crate::load::Problem;

/// The maximum number of problems that are printed at once. It is limited because a file may contain as many problems
/// as bytes.
pub(crate) const MAX_PROBLEMS: usize = 100;

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// YAML documents.
    Yaml,
    /// One JSON object; a List for several objects.
    Json,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// Human-readable text.
    Text,
    /// One JSON object.
    Json,
    /// One object, as YAML.
    Yaml,
}

impl Form {
    /// Prints the human-readable `text`, or `value` as JSON or YAML. Colours of `text` are removed if standard output
    /// is not a terminal.
    pub(crate) fn print(
        self,
        text: impl FnOnce() -> anyhow::Result<String>,
        value: impl FnOnce() -> anyhow::Result<Value>,
    ) -> anyhow::Result<()> {
        match self {
            Self::Text => show(&text()?),
            Self::Json => print(&json(&value()?)?),
            Self::Yaml => print(&yaml(&value()?)?),
        }
    }
}

/// The output format of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListForm {
    /// A table.
    Text,
    /// A table with more columns.
    Wide,
    /// One JSON object.
    Json,
    /// One object, as YAML.
    Yaml,
}

impl ListForm {
    /// Prints a table, or `value` as JSON or YAML. The argument of `table` is true for a wide table.
    pub(crate) fn print(self, table: impl FnOnce(bool) -> String, value: impl FnOnce() -> Value) -> anyhow::Result<()> {
        match self {
            Self::Text => show(&table(false)),
            Self::Wide => show(&table(true)),
            Self::Json => print(&json(&value())?),
            Self::Yaml => print(&yaml(&value())?),
        }
    }

    /// Whether the output is human-readable.
    pub(crate) const fn is_text(self) -> bool {
        matches!(self, Self::Text | Self::Wide)
    }
}

/// Formats a table in the style of kubectl. Returns an empty string if there are no rows.
pub(crate) fn columns<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    aligned(&std::iter::once(head.map(str::to_owned)).chain(rows).collect::<Vec<_>>())
}

/// Formats rows of cells. The first row is the head. Returns an empty string if there is no other row.
pub(crate) fn aligned(rows: &[impl AsRef<[String]>]) -> String {
    let mut widths = vec![0; rows.first().map_or(0, |head| head.as_ref().len())];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row.as_ref()) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut out = String::new();
    for row in rows.iter().filter(|_| rows.len() > 1) {
        let mut line = String::new();
        for (cell, width) in row.as_ref().iter().zip(&widths) {
            // Writing to a string never fails.
            let _ = write!(line, "{cell:width$}   ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Formats objects as YAML documents, as one JSON object, or as one JSON List.
pub(crate) fn objects(objects: &[Value], format: Format) -> anyhow::Result<String> {
    match (format, objects) {
        (Format::Yaml, objects) => {
            let documents = objects.iter().map(yaml).collect::<anyhow::Result<Vec<_>>>()?;
            Ok(documents.join("---\n"))
        }
        (Format::Json, [object]) => json(object),
        (Format::Json, objects) => {
            json(&serde_json::json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": objects}))
        }
    }
}

/// Formats one YAML document in block style, without changing the order of keys. Strings are quoted where YAML 1.1 or
/// 1.2 would read a different type.
pub(crate) fn yaml(value: &Value) -> anyhow::Result<String> {
    let options = serde_saphyr::ser_options! {
        // Command lines and annotations are not wrapped, so that users can search for them.
        folded_wrap_chars: 1_000_000,
    };
    serde_saphyr::to_string_with_options(value, options).context("cannot format the result as YAML")
}

/// Formats indented JSON with a final newline.
pub(crate) fn json(value: &Value) -> anyhow::Result<String> {
    let mut text = serde_json::to_string_pretty(value).context("cannot format the result as JSON")?;
    text.push('\n');
    Ok(text)
}

/// Prints a command's result to standard output unchanged.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    unless_closed(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())).context("cannot write the result")
}

/// Prints a command's human-readable result. Colours are removed if standard output is not a terminal.
pub(crate) fn show(text: &str) -> anyhow::Result<()> {
    let text = replace_control_characters(text);
    let mut stdout = anstream::stdout().lock();
    unless_closed(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())).context("cannot write the result")
}

/// Replaces all control characters except line feeds, tabs and those of accepted colour sequences (see [`colour`]).
/// Parts of the text come from the cluster, and a control sequence could hide or overwrite a line.
fn replace_control_characters(text: &str) -> Cow<'_, str> {
    let acts = |letter: char| letter.is_control() && letter != '\n' && letter != '\t';
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, from)) = rest.find(acts).map(|place| rest.split_at(place)) {
        out.push_str(before);
        let length = colour(from).unwrap_or(0);
        let (kept, behind) = from.split_at(length);
        out.push_str(kept);
        rest = behind;
        if length == 0 {
            out.push(char::REPLACEMENT_CHARACTER);
            let mut letters = behind.chars();
            letters.next();
            rest = letters.as_str();
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Returns the length, in bytes, of the colour sequence at the start of the text. `None` for other text, and for a
/// sequence that contains the number 8, because it may hide text.
fn colour(text: &str) -> Option<usize> {
    let numbers = text.strip_prefix("\u{1b}[")?;
    let end = numbers.find(|letter: char| !letter.is_ascii_digit() && letter != ';')?;
    let (numbers, rest) = numbers.split_at(end);
    (rest.starts_with('m') && numbers.split(';').all(|number| number != "8")).then_some(end + 3)
}

/// Prints a message to standard error. Colours are removed if it is not a terminal.
pub(crate) fn report(text: &str) -> anyhow::Result<()> {
    let text = replace_control_characters(text);
    unless_closed(writeln!(anstream::stderr().lock(), "{text}")).context("cannot write to standard error")
}

/// Prints the error of a failed command.
pub(crate) fn error(error: &anyhow::Error) -> anyhow::Result<()> {
    report(&format!("error: {}", causes(error)))
}

/// Prints problems with their excerpts, at most [`MAX_PROBLEMS`].
pub(crate) fn problems(problems: &[Problem]) -> anyhow::Result<()> {
    problems.iter().take(MAX_PROBLEMS).try_for_each(|problem| report(&format!("{}\n", problem.render())))?;
    match problems.len().saturating_sub(MAX_PROBLEMS) {
        0 => Ok(()),
        more => report(&format!("and {more} more\n")),
    }
}

fn unless_closed(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Formats an error with its causes on one line. Skips causes that an outer message already contains: some libraries
/// repeat the cause in the error's own text and also return it as the source.
pub(crate) fn causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(cause.trim_end()) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// Formats an annotation of GitHub Actions, which GitHub shows at its line in a pull request. `at` is the line and
/// column; `None` if they are unknown.
pub(crate) fn github_annotation(
    level: &str,
    file: &str,
    at: Option<(usize, usize)>,
    title: &str,
    message: &str,
) -> String {
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
pub(crate) fn github_annotations<'p>(problems: impl IntoIterator<Item = &'p Problem>) -> String {
    let annotation = |problem: &Problem| {
        let json = problem.to_json();
        let text = |key: &str| json.get(key).and_then(Value::as_str).unwrap_or_default();
        let level = if text("severity") == "warning" { "warning" } else { "error" };
        let message = [text("message"), text("help")].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>();
        github_annotation(level, &problem.source.name, problem.position(), text("path"), &message.join("\n"))
    };
    problems.into_iter().map(annotation).collect()
}

fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// The width of the progress line, in characters.
const WIDTH: usize = 78;

/// The time between two lines of progress if standard error is not a terminal.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// Shows the progress of a long operation on standard error. On a terminal, it is one line, which is overwritten.
/// Otherwise, at most one line is printed in each [`PROGRESS_EVERY`], so a short command prints none.
#[derive(Debug)]
pub(crate) struct Progress {
    is_terminal: bool,
    /// The earliest time of the next line, if standard error is not a terminal.
    next: Instant,
    is_shown: bool,
}

impl Progress {
    /// Creates the progress display without showing anything yet.
    pub(crate) fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), next: Instant::now() + PROGRESS_EVERY, is_shown: false }
    }

    /// Shows the current step.
    pub(crate) fn show(&mut self, step: &str) {
        let step = replace_control_characters(step);
        if self.is_terminal {
            overwrite_line(&step.chars().take(WIDTH).collect::<String>());
            self.is_shown = true;
        } else if self.is_due(Instant::now()) {
            // Progress is not shown if standard error cannot be written.
            let _ = report(&step);
        }
    }

    /// Shows the current step among a known number of steps. `what` names the steps, in the plural.
    pub(crate) fn show_step(&mut self, what: &str, number: usize, of: usize, name: &str) {
        self.show(&format!("{what}: {number} of {of}, {name}"));
    }

    /// Prints a message that is not overwritten.
    pub(crate) fn report(&mut self, text: &str) -> anyhow::Result<()> {
        self.clear();
        report(text)
    }

    /// Whether a line is due. If so, the next one is due after [`PROGRESS_EVERY`].
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now + PROGRESS_EVERY;
        }
        is_due
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            overwrite_line("");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn overwrite_line(text: &str) {
    // Progress is not shown if standard error cannot be written.
    let _ = write!(io::stderr().lock(), "\r{text:<WIDTH$}\r");
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::load::yaml::{Node, documents};

    #[test]
    fn control_sequences_are_replaced() {
        let fine = "\u{1b}[31merror\u{1b}[0m\t\u{1b}[38;5;12mone\n";
        assert_eq!(replace_control_characters(fine), fine);
        let wrong = "a\u{1b}[2Kb\u{1b}]0;title\u{7}c\rd\u{9b}8me\u{1b}[8mf\u{1b}[31mg\u{1b}";
        assert_eq!(
            replace_control_characters(wrong),
            "a\u{fffd}[2Kb\u{fffd}]0;title\u{fffd}c\u{fffd}d\u{fffd}8me\u{fffd}[8mf\u{1b}[31mg\u{fffd}"
        );
    }

    fn read_back(value: &Value) -> Value {
        let text = yaml(value).unwrap();
        let documents = documents(&text).unwrap_or_else(|error| panic!("{error:?} in\n{text}"));
        documents.first().map_or(Value::Null, Node::to_value)
    }

    #[test]
    fn yaml_is_block_style_in_order() {
        let value = json!({
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"labels": {}, "annotations": {"a": "yes", "b": "0644", "c": "x: y", "d": "one\ntwo\n"}},
            "spec": {"containers": [{"name": "a", "args": [], "ports": [{"containerPort": 80}]}]},
        });
        let expected = "\
kind: Pod
apiVersion: v1
metadata:
  labels: {}
  annotations:
    a: \"yes\"
    b: \"0644\"
    c: \"x: y\"
    d: |
      one
      two
spec:
  containers:
  - name: a
    args: []
    ports:
    - containerPort: 80
";
        assert_eq!(yaml(&value).unwrap(), expected);
    }

    #[test]
    fn long_lines_are_not_folded() {
        let long = "word ".repeat(100) + "end";
        assert_eq!(yaml(&json!({"a": long})).unwrap(), format!("a: {long}\n"));
    }

    #[test]
    fn ambiguous_strings_stay_strings() {
        for text in [
            "",
            "yes",
            "No",
            "y",
            "n",
            "on",
            "off",
            "yEs",
            "null",
            "~",
            "0644",
            "0o17",
            "0x1f",
            "1e3",
            "1_000",
            ".5",
            "+1",
            "089",
            "1:30",
            "2001-01-01",
            "=",
            "<<",
            "-",
            "---",
            "...",
            "- a",
            "a: b",
            "a #b",
            "#",
            "*a",
            "&a",
            "!a",
            "%a",
            "@a",
            "`a",
            "{a}",
            "[a]",
            "a:",
            " a",
            "a ",
            "\t",
            "a\tb",
            "\n",
            "a\n\n\n",
            "  a\nb\n",
            "a\r\nb",
            "\u{7}",
            "\u{85}",
            "\u{2028}",
            "\u{feff}",
            "'a'",
            "\"a\"",
            "C:\\a",
            "${a}",
            "|",
            ">",
            "? a",
            "true",
            "é ✓ 🦀",
        ] {
            let value = json!({"value": text, text: "key", "list": [text]});
            assert_eq!(read_back(&value), value, "{text:?}");
        }
    }

    #[test]
    fn objects_become_documents_or_list() {
        let last_is_empty = [json!({"a": {}}), json!({"b": []}), json!({"c": "d\n\n"}), json!({})];
        let expected = "a: {}\n---\nb: []\n---\nc: |+\n  d\n  \n---\n{}\n";
        assert_eq!(objects(&last_is_empty, Format::Yaml).unwrap(), expected);
        let two = [json!({"a": 1}), json!({"b": 2})];
        assert_eq!(objects(&two, Format::Yaml).unwrap(), "a: 1\n---\nb: 2\n");
        let list: Value = serde_json::from_str(&objects(&two, Format::Json).unwrap()).unwrap();
        assert_eq!(list["kind"], "List");
        assert_eq!(list["items"], json!(two));
        assert_eq!(objects(&two[..1], Format::Json).unwrap(), "{\n  \"a\": 1\n}\n");
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            // JSON can represent some control characters that YAML cannot represent.
            proptest::string::string_regex("[ -~\n\té✓🦀]{0,12}").unwrap().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(("[ -~]{0,8}", inner), 0..4)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn yaml_round_trips(value in any_value()) {
            let value = json!({"value": value});
            prop_assert_eq!(read_back(&value), value);
        }
    }

    #[test]
    fn each_cause_is_printed_once() {
        let error = anyhow!("no such file").context("cannot read a.yaml: no such file").context("cannot start");
        assert_eq!(causes(&error), "cannot start: cannot read a.yaml: no such file");
        assert_eq!(causes(&anyhow!("b").context("a")), "a: b");
        assert_eq!(causes(&anyhow!("alone")), "alone");
    }

    #[test]
    fn annotation_properties_are_escaped() {
        let shown = github_annotation("error", "a,b.yaml", Some((3, 7)), "spec: x", "100%\nof it: a, b");
        assert_eq!(shown, "::error file=a%2Cb.yaml,line=3,col=7,title=spec%3A x::100%25%0Aof it: a, b\n");
        assert_eq!(github_annotation("warning", "a", None, "", "b"), "::warning file=a::b\n");
    }

    #[test]
    fn progress_without_terminal_is_due_after_each_pause() {
        let mut progress = Progress { is_terminal: false, ..Progress::new() };
        let start = Instant::now();
        progress.next = start + PROGRESS_EVERY;
        let due: Vec<_> = [0, 4, 5, 6, 9, 10, 30, 34, 35]
            .into_iter()
            .filter(|seconds| progress.is_due(start + Duration::from_secs(*seconds)))
            .collect();
        assert_eq!(due, [5, 10, 30, 35]);
    }
}
