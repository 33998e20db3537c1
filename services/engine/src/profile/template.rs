//! A template as it is run: the author's partial object with its directives taken apart.
//!
//! Most of a template has no directive below it. Such a part stays the JSON that it is, read once when the profile is
//! compiled, and costs a request nothing but its being written.

use serde_json::{Map, Value as Json};

use super::Diagnostic;
use super::typed::unknown_directive;
use crate::json::{OwnedTape, write_escaped};

/// A part of a template.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    /// The directives that stand beside its fields.
    pub(crate) rules: Rules,
    /// The whole of it as JSON without its directives: what is added where the object has nothing.
    pub(crate) whole: OwnedTape,
}

/// What a part of a template is.
#[derive(Debug)]
pub(crate) enum Kind {
    /// No directive below.
    Plain,
    /// An object. Keys are escaped for JSON.
    Map(Vec<(Box<str>, Node)>),
    /// A list.
    List(Vec<Node>),
}

/// The directives of a part of a template.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(crate) conflict: Option<ConflictRule>,
    pub(crate) position: Option<Position>,
    pub(crate) join: Option<Join>,
}

/// What happens where the object has a value that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConflictRule {
    /// Maps go deeper, the object's leaves win.
    Merge,
    /// The object's value stays whole.
    Keep,
    /// Maps go deeper, ours wins.
    Replace,
    /// The profile is not applied.
    Fail,
}

/// Where a new element goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    First,
    Last,
    /// Before the element with this name; last if there is none.
    Before(Box<str>),
    /// Behind the element with this name; last if there is none.
    After(Box<str>),
}

/// What is joined to the object's value.
#[derive(Debug, Default)]
pub(crate) struct Join {
    /// Between the pieces of a text.
    pub(crate) separator: Box<str>,
    /// A piece with the same part before this counts as there.
    pub(crate) key: Option<Box<str>>,
    /// Goes in front of the object's value.
    pub(crate) prepend: Option<Box<str>>,
}

/// Compiles a template that stands at a field path. What is wrong goes to `faults`.
pub(super) fn compile(path: &str, template: &Json, faults: &mut Vec<Diagnostic>) -> Option<Node> {
    let before = faults.len();
    let mut compiler = Compiler { faults, path: path.to_owned() };
    let node = compiler.node(template, false);
    if faults.len() == before { node } else { None }
}

/// A template without its directives, each `$value` in the place of the map that it stands in.
pub(super) fn without_directives(template: &Json) -> Json {
    match template {
        Json::Object(fields) => {
            if let Some(value) = fields.get("$value") {
                return without_directives(value);
            }
            let fields = fields.iter().filter(|(name, _)| !name.starts_with('$'));
            Json::Object(fields.map(|(name, value)| (name.clone(), without_directives(value))).collect())
        }
        Json::Array(items) => Json::Array(items.iter().map(without_directives).collect()),
        other => other.clone(),
    }
}

struct Compiler<'f> {
    faults: &'f mut Vec<Diagnostic>,
    path: String,
}

impl Compiler<'_> {
    fn node(&mut self, template: &Json, is_element: bool) -> Option<Node> {
        let whole = self.whole(template)?;
        if is_plain(template) {
            return Some(Node { kind: Kind::Plain, rules: Rules::default(), whole });
        }
        match template {
            Json::Array(items) => {
                let nodes: Vec<_> = items
                    .iter()
                    .enumerate()
                    .map(|(index, item)| self.below(&format!("[{index}]"), |compiler| compiler.node(item, true)))
                    .collect();
                let nodes = nodes.into_iter().collect::<Option<_>>()?;
                Some(Node { kind: Kind::List(nodes), rules: Rules::default(), whole })
            }
            Json::Object(fields) => {
                let rules = self.rules(fields, is_element);
                if let Some(value) = fields.get("$value") {
                    let node = self.below(".$value", |compiler| compiler.node(value, is_element))?;
                    return Some(Node { rules, ..node });
                }
                let mut nodes = Vec::new();
                for (name, value) in fields.iter().filter(|(name, _)| !name.starts_with('$')) {
                    let node = self.below(&format!(".{name}"), |compiler| compiler.node(value, false));
                    nodes.push((escaped(name), node?));
                }
                Some(Node { kind: Kind::Map(nodes), rules, whole })
            }
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {
                Some(Node { kind: Kind::Plain, rules: Rules::default(), whole })
            }
        }
    }

    fn rules(&mut self, fields: &Map<String, Json>, is_element: bool) -> Rules {
        let mut rules = Rules::default();
        for (name, value) in fields.iter().filter(|(name, _)| name.starts_with('$')) {
            self.below(&format!(".{name}"), |compiler| match name.as_str() {
                "$value" => {
                    if fields.keys().any(|field| !field.starts_with('$')) {
                        let help = "write the fields into $value";
                        compiler.fault("fields beside $value are not supported by this build", help);
                    }
                }
                "$conflict" => rules.conflict = compiler.conflict(value),
                "$position" if is_element => rules.position = compiler.position(value),
                "$position" => compiler.fault("$position stands on an element of a list", "move it there"),
                "$join" => rules.join = compiler.join(value),
                "$when" | "$forEach" | "$as" | "$each" | "$prune" | "$sidecar" => {
                    let message = format!("the directive {name} is not supported by this build");
                    compiler.fault(&message, "use a build that supports it, or leave it out");
                }
                _ => compiler.faults.push(unknown_directive(&compiler.path, name)),
            });
        }
        if rules.join.is_some() && rules.conflict.is_some() {
            self.fault("$join and $conflict exclude one another", "$join keeps the object's value and adds to it");
        }
        rules
    }

    fn conflict(&mut self, value: &Json) -> Option<ConflictRule> {
        let rule = match value.as_str() {
            Some("Merge") => Some(ConflictRule::Merge),
            Some("Keep") => Some(ConflictRule::Keep),
            Some("Replace") => Some(ConflictRule::Replace),
            Some("Fail") => Some(ConflictRule::Fail),
            _ => None,
        };
        if rule.is_none() {
            self.fault(&format!("expected Merge, Keep, Replace or Fail, found {value}"), "write one of these words");
        }
        rule
    }

    fn position(&mut self, value: &Json) -> Option<Position> {
        let position = match value {
            Json::String(word) if word == "First" => Some(Position::First),
            Json::String(word) if word == "Last" => Some(Position::Last),
            Json::Object(fields) if fields.len() == 1 => match fields.iter().next() {
                Some((side, Json::String(name))) if side == "before" => Some(Position::Before(name.as_str().into())),
                Some((side, Json::String(name))) if side == "after" => Some(Position::After(name.as_str().into())),
                _ => None,
            },
            _ => None,
        };
        if position.is_none() {
            let message = format!("expected First, Last, {{before: name}} or {{after: name}}, found {value}");
            self.fault(&message, "a name is that of another element of the list");
        }
        position
    }

    fn join(&mut self, value: &Json) -> Option<Join> {
        let Json::Object(fields) = value else {
            self.fault(
                &format!("expected an object, found {value}"),
                "for instance {separator: \",\"}, or {} for a list",
            );
            return None;
        };
        let mut join = Join::default();
        for (name, value) in fields {
            match (name.as_str(), value.as_str()) {
                ("separator", Some(text)) => join.separator = text.into(),
                ("key", Some(text)) if !text.is_empty() => join.key = Some(text.into()),
                ("prepend", Some(text)) => join.prepend = Some(text.into()),
                _ => self.fault(
                    &format!("$join has no {name} that is {value}"),
                    "this build has separator, key and prepend, each a string",
                ),
            }
        }
        Some(join)
    }

    fn whole(&mut self, template: &Json) -> Option<OwnedTape> {
        match OwnedTape::parse(without_directives(template).to_string()) {
            Ok(tape) => Some(tape),
            Err(error) => {
                self.fault(&format!("the template cannot be used: {error}"), "make it smaller");
                None
            }
        }
    }

    fn fault(&mut self, message: &str, help: &str) {
        self.faults.push(Diagnostic::new(self.path.clone(), message).with_help(help));
    }

    fn below<T>(&mut self, part: &str, work: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        self.path.push_str(part);
        let result = work(self);
        self.path.truncate(length);
        result
    }
}

/// Whether there is no directive in a value.
fn is_plain(value: &Json) -> bool {
    match value {
        Json::Array(items) => items.iter().all(is_plain),
        Json::Object(fields) => fields.iter().all(|(name, value)| !name.starts_with('$') && is_plain(value)),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => true,
    }
}

fn escaped(name: &str) -> Box<str> {
    let mut out = Vec::with_capacity(name.len());
    write_escaped(&mut out, name);
    String::from_utf8(out).unwrap_or_default().into()
}
