//! A YAML tree in which every node has its position, so that later errors can be shown in the source.
//!
//! Scalars have the same types as in kubectl, which reads YAML 1.1: `yes`, `no`, `on`, `off`, `y` and `n` are booleans,
//! `0644` is 420, a whole number with a fraction of zero is an integer, and keys that are numbers or booleans become
//! strings. JSON files are also accepted, since JSON is a subset of YAML. The positions come from the parser's
//! `Spanned`; docs/decisions.md explains why this module does not use the parser's own tree.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::slice;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Error, Location, MessageFormatter, Options, Spanned, UserMessageFormatter};

/// The maximum number of documents in a source.
const MAX_DOCUMENTS: usize = 10_000;

/// The maximum nesting depth of nodes.
const MAX_DEPTH: usize = 128;

/// A node and its position.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The byte range in the source: of a scalar, of a mapping's first key, or of the beginning of a sequence or empty
    /// mapping.
    pub(crate) span: Range<usize>,
    /// The content.
    pub(crate) content: Content,
}

/// The content of a node.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A scalar value.
    Scalar(Value),
    /// A list.
    Sequence(Vec<Node>),
    /// The entries of a mapping, in the order of the source.
    Mapping(Vec<Entry>),
}

/// A key with its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_span: Range<usize>,
    pub(crate) value: Node,
}

/// The reason why a source is not valid YAML for Kubernetes.
#[derive(Clone, Debug)]
pub(crate) struct SyntaxError {
    /// The position, if known.
    pub(crate) span: Option<Range<usize>>,
    /// The message.
    pub(crate) message: String,
    /// The remedy.
    pub(crate) help: Option<String>,
}

/// Parses all documents of a source. Empty documents are omitted.
pub(crate) fn documents(text: &str) -> Result<Vec<Node>, SyntaxError> {
    let raw: Vec<Raw> =
        serde_saphyr::from_multiple_with_options(text, options()).map_err(|error| syntax_error(text, &error))?;
    raw.into_iter()
        .map(|document| finish(text, document))
        .filter(|document| !matches!(document, Ok(Node { content: Content::Scalar(Value::Null), .. })))
        .collect()
}

impl Node {
    /// Returns the value without positions.
    pub(crate) fn to_value(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => value.clone(),
            Content::Sequence(items) => Value::Array(items.iter().map(Self::to_value).collect()),
            Content::Mapping(entries) => Value::Object(
                entries.iter().map(|entry| (entry.key.clone(), entry.value.to_value())).collect::<Map<_, _>>(),
            ),
        }
    }

    /// Returns the entry with this key; `None` if the node is not a mapping, or does not contain the key.
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    /// Returns the value of a mapping's entry with this key.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// Returns the value of a mapping's entry with this key, if the value is a string.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        match &self.get(key)?.content {
            Content::Scalar(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// Returns the entries of a mapping; empty for other nodes.
    pub(crate) fn entries(&self) -> &[Entry] {
        match &self.content {
            Content::Mapping(entries) => entries,
            _ => &[],
        }
    }

    /// Returns the items of a sequence; empty for other nodes.
    pub(crate) fn items(&self) -> &[Self] {
        match &self.content {
            Content::Sequence(items) => items,
            _ => &[],
        }
    }

    /// Returns the items of a List, or any other object itself.
    pub(crate) fn objects(&self) -> &[Self] {
        match self.get("items") {
            Some(items) if self.text("kind") == Some("List") => items.items(),
            _ => slice::from_ref(self),
        }
    }

    /// Returns the position of a field, or of its nearest existing ancestor. Paths have the format of the engine's and
    /// serde's errors, such as `spec.template.spec.containers[0].image`. A key may contain dots, as in labels and
    /// annotations. It may be written plainly, in brackets, or in brackets and quotes.
    pub(crate) fn place(&self, path: &str) -> Range<usize> {
        self.walk(path).place
    }

    /// Returns the position of a field's name. For a list element or a missing field, returns the same position as
    /// [`Node::place`].
    pub(crate) fn place_of_name(&self, path: &str) -> Range<usize> {
        let Walk { place, key, rest, .. } = self.walk(path);
        key.filter(|_| rest.is_empty()).map_or(place, |entry| entry.key_span.clone())
    }

    /// Returns the position of a key in the mapping at a path, if it exists. The path may end with the key itself, as
    /// serde's path of an unknown field does.
    pub(super) fn place_of_key(&self, path: &str, key: &str) -> Option<Range<usize>> {
        let above = path.strip_suffix(key).map(|above| above.trim_end_matches('.'));
        let walks = [Some(path), above].into_iter().flatten().map(|path| self.walk(path));
        let mut entries = walks.filter(|walk| walk.rest.is_empty()).filter_map(|walk| walk.node.entry(key));
        entries.next().map(|entry| entry.key_span.clone())
    }

    /// Returns the position of some bytes of a field's value. The value may be quoted, escaped or folded, so the bytes
    /// are searched for. If they are not found literally, returns the position of the whole field.
    pub(super) fn place_of_part(&self, text: &str, path: &str, part: &Range<usize>) -> Range<usize> {
        let Walk { node, place, rest, .. } = self.walk(path);
        let value = match &node.content {
            Content::Scalar(Value::String(value)) if rest.is_empty() => value,
            _ => return place,
        };
        place_in_value(text, value, part, &place).unwrap_or(place)
    }

    /// Follows the existing part of a path.
    fn walk<'n, 'p>(&'n self, path: &'p str) -> Walk<'n, 'p> {
        let rest = path.trim_start_matches(['.', '$']);
        let mut walk = Walk { node: self, key: None, place: self.span.clone(), rest };
        // Every step consumes at least one character of the path.
        while !walk.rest.is_empty() {
            let Some(next) = walk.node.step(walk.rest) else { break };
            walk = next;
        }
        walk
    }

    /// Takes one step down a path. `None` if the first part of the path does not exist.
    fn step<'n, 'p>(&'n self, path: &'p str) -> Option<Walk<'n, 'p>> {
        match &self.content {
            Content::Scalar(_) => None,
            Content::Sequence(items) => {
                let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
                let node = items.get(index.parse::<usize>().ok()?)?;
                let rest = rest.strip_prefix('.').unwrap_or(rest);
                Some(Walk { node, key: None, place: node.span.clone(), rest })
            }
            Content::Mapping(entries) => {
                let matching = entries.iter().filter_map(|entry| Some((entry, after_key(path, &entry.key)?)));
                let (entry, rest) = matching.min_by_key(|(_, rest)| rest.len())?;
                // For a scalar, the position is the value's. For a sequence or mapping, it is the key's.
                let place = match entry.value.content {
                    Content::Scalar(_) if !entry.value.span.is_empty() => entry.value.span.clone(),
                    _ => entry.key_span.clone(),
                };
                let rest = rest.strip_prefix('.').unwrap_or(rest);
                Some(Walk { node: &entry.value, key: Some(entry), place, rest })
            }
        }
    }
}

/// The result of following a path through a tree, as far as it exists.
struct Walk<'n, 'p> {
    node: &'n Node,
    /// The entry that has the node as its value.
    key: Option<&'n Entry>,
    place: Range<usize>,
    /// The part of the path that does not exist.
    rest: &'p str,
}

/// Returns the part of a path after this key; `None` if the path does not begin with the key.
fn after_key<'p>(path: &'p str, key: &str) -> Option<&'p str> {
    let plain = path.strip_prefix(key).filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
    plain.or_else(|| {
        let inner = path.strip_prefix('[')?;
        ["", "\"", "'"]
            .into_iter()
            .find_map(|quote| inner.strip_prefix(quote)?.strip_prefix(key)?.strip_prefix(quote)?.strip_prefix(']'))
    })
}

/// Returns the position of some bytes of a string value, which is written at `place`.
fn place_in_value(text: &str, value: &str, part: &Range<usize>, place: &Range<usize>) -> Option<Range<usize>> {
    let written = text.get(place.clone())?;
    // For an empty piece, the text before it is searched for.
    let (piece, is_end) = match value.get(part.clone())? {
        "" => (value.get(..part.start)?.rsplit('\n').next()?.trim_start(), true),
        piece => (piece.lines().next()?.trim_end(), false),
    };
    if piece.is_empty() {
        return None;
    }
    let before = if is_end { part.start - piece.len() } else { part.start };
    let nth = value.get(..before)?.matches(piece).count();
    let (offset, _) = written.match_indices(piece).nth(nth)?;
    let start = place.start + offset;
    let end = start + piece.len();
    Some(if is_end { end..end } else { start..end })
}

fn options() -> Options {
    serde_saphyr::options! {
        legacy_octal_numbers: true,
        with_snippet: false,
        // Large enough for all pods of a large cluster in one list, but not for endless nesting or repetition.
        budget: serde_saphyr::budget! {
            max_documents: MAX_DOCUMENTS,
            max_events: 20_000_000,
            max_nodes: 10_000_000,
            max_depth: MAX_DEPTH,
            max_recorded_anchor_events: 100_000,
        },
    }
}

/// A node from the parser, before its keys become strings, and before some booleans become strings.
struct Raw {
    referenced: Location,
    defined: Location,
    content: RawContent,
}

enum RawContent {
    Scalar(Value),
    Sequence(Vec<Raw>),
    Mapping(Vec<(Raw, Raw)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, referenced, defined, .. } = Spanned::<RawContent>::deserialize(deserializer)?;
        Ok(Self { referenced, defined, content: value })
    }
}

impl<'de> Deserialize<'de> for RawContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = RawContent;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value that JSON can represent")
    }

    fn visit_unit<E>(self) -> Result<RawContent, E> {
        Ok(RawContent::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<RawContent, E> {
        Ok(RawContent::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<RawContent, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<RawContent, E> {
        Ok(RawContent::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<RawContent, E> {
        Ok(RawContent::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<RawContent, E> {
        Ok(RawContent::Scalar(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<RawContent, E> {
        let number = whole(value).map(Number::from).or_else(|| Number::from_f64(value));
        number
            .map(|number| RawContent::Scalar(Value::Number(number)))
            .ok_or_else(|| E::custom("JSON cannot represent this number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<RawContent, E> {
        Ok(RawContent::Scalar(Value::String(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<RawContent, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(RawContent::Sequence(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<RawContent, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(RawContent::Mapping(entries))
    }

    fn visit_bytes<E: serde::de::Error>(self, value: &[u8]) -> Result<RawContent, E> {
        let text = std::str::from_utf8(value).map_err(E::custom)?;
        self.visit_str(text)
    }
}

/// Returns the integer that equals a float, since Go's JSON encoder writes `1.0` as `1`. Floats beyond 2^53 are
/// inexact, so they are not converted.
fn whole(value: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    #[expect(clippy::cast_possible_truncation, reason = "it has no fraction and is within the range of i64")]
    (value.fract() == 0.0 && value.abs() <= EXACT).then_some(value as i64)
}

fn finish(text: &str, raw: Raw) -> Result<Node, SyntaxError> {
    let mut span = span(text, raw.referenced);
    let content = match raw.content {
        RawContent::Scalar(value) => Content::Scalar(kubectl_boolean(text, raw.defined, value)),
        RawContent::Sequence(items) => {
            Content::Sequence(items.into_iter().map(|item| finish(text, item)).collect::<Result<_, _>>()?)
        }
        RawContent::Mapping(entries) => Content::Mapping(finish_mapping(text, entries)?),
    };
    if let Content::Mapping(entries) = &content
        && let Some(first) = entries.first()
    {
        span = first.key_span.clone();
    }
    Ok(Node { span, content })
}

fn finish_mapping(text: &str, entries: Vec<(Raw, Raw)>) -> Result<Vec<Entry>, SyntaxError> {
    let mut seen = HashSet::new();
    let mut finished = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let Node { span: key_span, content } = finish(text, key)?;
        let key = match content {
            Content::Scalar(Value::String(key)) => key,
            Content::Scalar(value @ (Value::Bool(_) | Value::Number(_))) => value.to_string(),
            _ => {
                return Err(SyntaxError {
                    span: Some(key_span),
                    message: "a key must be a string".to_owned(),
                    help: Some("it is a mapping, a list or null: put it in quotes".to_owned()),
                });
            }
        };
        if !seen.insert(key.clone()) {
            return Err(duplicate(&key, Some(key_span)));
        }
        finished.push(Entry { key, key_span, value: finish(text, value)? });
    }
    Ok(finished)
}

/// Restricts booleans to kubectl's spellings: `yes`, `Yes` and `YES` are booleans, but `yEs` is a string. The parser
/// accepts any case.
fn kubectl_boolean(text: &str, at: Location, value: Value) -> Value {
    if !value.is_boolean() {
        return value;
    }
    let written = text.get(span(text, at)).unwrap_or_default();
    let tail = written.get(1..).unwrap_or_default();
    let one_case = tail.chars().all(|c| c.is_ascii_lowercase())
        || (tail.chars().all(|c| c.is_ascii_uppercase()) && written.starts_with(|c: char| c.is_ascii_uppercase()));
    if one_case { value } else { Value::String(written.to_owned()) }
}

/// Returns the position in bytes, within the source and on character boundaries.
fn span(text: &str, location: Location) -> Range<usize> {
    let span = location.span();
    let number = |value: Option<u64>| value.and_then(|value| usize::try_from(value).ok()).unwrap_or_default();
    let start = text.floor_char_boundary(number(span.byte_offset()).min(text.len()));
    let end = text.ceil_char_boundary(start.saturating_add(number(span.byte_len())).min(text.len()));
    start..end
}

fn syntax_error(text: &str, error: &Error) -> SyntaxError {
    let error = error.without_snippet();
    let at = error.location().map(|location| {
        let mut at = span(text, location);
        if at.start == 0 && location.line() > 1 {
            // The parser's own errors have a line and a column, but no byte offset.
            at.start = offset(text, location.line(), location.column());
            at.end = at.start;
        }
        at
    });
    if let Error::DuplicateMappingKey { key, .. } = error {
        return duplicate(key.as_deref().unwrap_or("?"), at);
    }
    if let Error::Budget { breach, .. } = &error {
        return SyntaxError { span: at, message: too_much(breach), help: None };
    }
    let message = UserMessageFormatter.format_message(error).into_owned();
    if message.starts_with("YAML document too large or too complex") {
        // For exceeded limits of anchors, the parser returns a different error than for other limits.
        let message = "the text is too large, or its anchors and aliases repeat too much".to_owned();
        return SyntaxError { span: at, message, help: None };
    }
    let line = at.as_ref().map_or("", |at| line_at(text, at.start));
    let help =
        line.contains("${").then(|| "inside {} and [], a value with ${...} must be quoted: \"${...}\"".to_owned());
    SyntaxError { message, span: at, help }
}

/// Describes the limit that a source exceeds.
fn too_much(breach: &BudgetBreach) -> String {
    match breach {
        BudgetBreach::Depth { .. } => format!("the text is nested more than {MAX_DEPTH} levels deep"),
        BudgetBreach::Documents { .. } => format!("the text has more than {MAX_DOCUMENTS} documents"),
        _ => "the text is too large, or its anchors and aliases repeat too much".to_owned(),
    }
}

fn duplicate(key: &str, span: Option<Range<usize>>) -> SyntaxError {
    SyntaxError { span, message: format!("the key `{key}` occurs twice"), help: Some("remove one of them".to_owned()) }
}

/// Returns the byte offset of a line and a column, both from 1; the column counts characters.
fn offset(text: &str, line: u64, column: u64) -> usize {
    let count = |number: u64| usize::try_from(number.saturating_sub(1)).unwrap_or(usize::MAX);
    let start: usize = text.split_inclusive('\n').take(count(line)).map(str::len).sum();
    let rest = text.get(start..).unwrap_or_default();
    start + rest.char_indices().nth(count(column)).map_or(rest.len(), |(index, _)| index)
}

fn line_at(text: &str, offset: usize) -> &str {
    let before = text.get(..offset).unwrap_or_default();
    let start = before.rfind('\n').map_or(0, |index| index + 1);
    text.get(start..).and_then(|rest| rest.lines().next()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fmt::Write;

    fn read(text: &str) -> Value {
        let documents = documents(text).unwrap();
        assert_eq!(documents.len(), 1, "{text}");
        documents[0].to_value()
    }

    fn syntax_error_of(text: &str) -> SyntaxError {
        documents(text).expect_err(text)
    }

    /// The expected values were produced with `sigs.k8s.io/yaml` 1.6, which kubectl uses.
    #[test]
    fn scalars_have_kubectls_types() {
        for (text, expected) in [
            ("0644", json!(420)),
            ("-0644", json!(-420)),
            ("0o17", json!(15)),
            ("-0o17", json!(-15)),
            ("089", json!(89)),
            ("0x1F", json!(31)),
            ("0b101", json!(5)),
            ("0b12", json!("0b12")),
            ("1_000", json!(1000)),
            ("+5", json!(5)),
            ("1e3", json!(1000)),
            ("1.5e+3", json!(1500)),
            ("1.0", json!(1)),
            ("1.50", json!(1.5)),
            (".5", json!(0.5)),
            ("5.", json!(5)),
            ("1.10", json!(1.1)),
            ("18446744073709551615", json!(18_446_744_073_709_551_615_u64)),
            ("y", json!(true)),
            ("Y", json!(true)),
            ("yes", json!(true)),
            ("On", json!(true)),
            ("TRUE", json!(true)),
            ("n", json!(false)),
            ("No", json!(false)),
            ("OFF", json!(false)),
            ("yEs", json!("yEs")),
            ("tRUE", json!("tRUE")),
            ("~", json!(null)),
            ("Null", json!(null)),
            ("2001-01-01", json!("2001-01-01")),
            ("1:30", json!("1:30")),
            ("500m", json!("500m")),
            ("\"0644\"", json!("0644")),
            ("'yes'", json!("yes")),
            ("!!str 0644", json!("0644")),
            ("!!binary aGVsbG8=", json!("hello")),
            ("=", json!("=")),
        ] {
            assert_eq!(read(&format!("a: {text}")), json!({ "a": expected }), "{text}");
        }
    }

    #[test]
    fn keys_become_text_as_in_kubectl() {
        assert_eq!(read("1: a\n1.5: b\non: c\n"), json!({"1": "a", "1.5": "b", "true": "c"}));
        assert_eq!(syntax_error_of("yes: 1\n\"true\": 2\n").message, "the key `true` occurs twice");
        assert_eq!(syntax_error_of("a: 1\n~: 2\n").span, Some(5..6));
        assert!(syntax_error_of("? [1]\n: 2\n").message.contains("must be a string"));
    }

    #[test]
    fn key_order_anchors_and_merges_are_kept() {
        let value = read("b: &x {z: 1, a: 2}\na: *x\nc:\n  <<: *x\n  z: 3\n");
        assert_eq!(value, json!({"b": {"z": 1, "a": 2}, "a": {"z": 1, "a": 2}, "c": {"z": 3, "a": 2}}));
        let keys: Vec<_> = value.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["b", "a", "c"]);
    }

    #[test]
    fn empty_documents_are_omitted_and_json_parsed() {
        assert_eq!(documents("# nothing\n---\na: 1\n---\n---\n# more\n").unwrap().len(), 1);
        assert_eq!(documents("").unwrap().len(), 0);
        assert_eq!(read("{\"a\":\t1,\n\t\"b\": [\n\t\t2]}\n"), json!({"a": 1, "b": [2]}));
    }

    #[test]
    fn nodes_have_positions() {
        let text = "é: ü\nspec:\n  image: nginx\n";
        let documents = documents(text).unwrap();
        let entry = documents[0].get("spec").unwrap().entry("image").unwrap();
        assert_eq!(&text[entry.key_span.clone()], "image");
        assert_eq!(&text[entry.value.span.clone()], "nginx");
    }

    #[test]
    fn syntax_errors_have_positions() {
        for (text, at) in [
            ("a: 1\nb:\n  - x\n c: 2\n", "c: 2"),
            ("a: 1\na: 2\n", "a: 2"),
            ("a:\n\tb: 2\n", "\tb"),
            ("a: 1\nb: *nobody\n", "*nobody"),
            ("a: .inf\n", ".inf"),
        ] {
            let error = syntax_error_of(text);
            let start = error.span.clone().unwrap().start;
            let wanted = text.find(at).unwrap();
            assert!((wanted..=wanted + 1).contains(&start), "{text:?}: {error:?}, wanted {wanted}");
        }
    }

    #[test]
    fn unquoted_expression_in_braces_is_explained() {
        let error = syntax_error_of("a: {b: ${x}}\n");
        assert!(error.help.unwrap().contains("quoted"), "{}", error.message);
    }

    #[test]
    fn nesting_and_repetition_are_limited() {
        assert!(documents(&format!("a: {}", "[".repeat(100_000))).is_err());
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..12 {
            let before = format!("*a{},", level - 1).repeat(10);
            writeln!(bomb, "a{level}: &a{level} [{before}]").unwrap();
        }
        assert!(documents(&bomb).is_err());
    }

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

    fn marked(path: &str) -> &'static str {
        let documents = documents(TEXT).unwrap();
        &TEXT[documents[0].place(path)]
    }

    #[test]
    fn scalars_are_marked_others_by_key() {
        assert_eq!(marked("spec.containers[0].image"), "one");
        assert_eq!(marked(".spec.containers[1].image"), "two");
        assert_eq!(marked("spec.containers"), "containers");
        assert_eq!(marked("spec.containers[0]"), "name");
        assert_eq!(marked("spec.volumes"), "volumes");
    }

    #[test]
    fn missing_fields_are_marked_at_nearest_ancestor() {
        assert_eq!(marked("spec.containers[0].command"), "name");
        assert_eq!(marked("spec.containers[7].command"), "containers");
        assert_eq!(marked("spec.hostNetwork"), "spec");
        assert_eq!(marked(""), "metadata");
    }

    #[test]
    fn keys_with_dots_are_found_in_every_notation() {
        for path in ["example.com/a.b", "[example.com/a.b]"] {
            assert_eq!(marked(&format!("metadata.annotations.{path}").replace(".[", "[")), "first");
        }
        assert_eq!(marked("metadata.annotations[\"example.com/a.b\"]"), "first");
        assert_eq!(marked("metadata.annotations['example.com/a.b']"), "first");
        assert_eq!(marked("metadata.annotations.example.com/a"), "second");
    }

    #[test]
    fn names_have_positions() {
        let documents = documents(TEXT).unwrap();
        let name = |path| &TEXT[documents[0].place_of_name(path)];
        assert_eq!(name("spec.containers[0].image"), "image");
        assert_eq!(name("metadata.annotations[\"example.com/a.b\"]"), "example.com/a.b");
        assert_eq!(name("spec.containers[0]"), "name");
        assert_eq!(name("spec.nothing"), "spec");
    }

    #[test]
    fn parts_are_found_in_every_scalar_style() {
        let text = "a: x + yy + x\nb: \"x \\\"q\\\" + yy\"\nc: 'it''s yy'\nd: >-\n  x +\n  yy + x\ne: |\n  x\n  yy\n";
        let documents = documents(text).unwrap();
        let shown = |path: &str, part: Range<usize>| {
            let place = documents[0].place_of_part(text, path, &part);
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
    fn keys_are_found_with_or_without_path() {
        let documents = documents(TEXT).unwrap();
        for path in ["spec.containers[0]", "spec.containers[0].image"] {
            let place = documents[0].place_of_key(path, "image").unwrap();
            assert_eq!((&TEXT[place.clone()], place.start), ("image", TEXT.find("image").unwrap()));
        }
        assert_eq!(documents[0].place_of_key("spec", "spec").map(|place| &TEXT[place]), Some("spec"));
        assert_eq!(documents[0].place_of_key("spec", "nothing"), None);
    }
}
