//! Compiles the directives of a template: the keys of a map that begin with `$`.

use serde_json::{Map, Value as Json};

use super::compile::{Compiler, Place};
use super::{Choice, ConflictRule, End, ForEach, Join, JoinFormat, JoinReference, Position, Rules};
use crate::context::EXISTING;
use crate::expression::{self, Expression};
use crate::profile::typed::unknown_directive;

/// The default name of an item, which `$as` overrides.
const ITEM: &str = "item";

/// Names that come into scope together with an item.
const BESIDE_ITEM: [&str; 2] = ["index", "key"];

impl Compiler<'_> {
    /// Compiles the directives of a map; `None` if one is invalid. The names that they bind are in scope afterwards.
    pub(super) fn rules(&mut self, fields: &Map<String, Json>, place: Place) -> Option<Rules> {
        let before = self.diagnostics.len();
        let mut rules = Rules::default();
        if let Some(list) = fields.get("$forEach") {
            rules.for_each = self.below(".$forEach", |compiler| compiler.for_each(list, fields.get("$as"), place));
        }
        for name in ["$each", "$prune"] {
            if fields.contains_key(name) {
                self.bring(ITEM);
            }
        }
        for (name, value) in fields.iter().filter(|(name, _)| name.starts_with('$')) {
            self.below(&format!(".{name}"), |compiler| compiler.rule(&mut rules, name, value, fields, place));
        }
        if rules.join.is_some() && rules.conflict.is_some() {
            self.report("$join and $conflict exclude one another", "$join keeps the object's value and adds to it");
        }
        if rules.each.is_some() && (rules.for_each.is_some() || rules.prune.is_some()) {
            let help = "$each changes elements that are there, $forEach adds new ones, $prune removes some";
            self.report("$each stands alone, without $forEach and $prune", help);
        }
        (self.diagnostics.len() == before).then_some(rules)
    }

    fn rule(&mut self, rules: &mut Rules, name: &str, value: &Json, fields: &Map<String, Json>, place: Place) {
        match name {
            "$value" | "$forEach" => {}
            "$when" => rules.when = self.source(value),
            "$as" => {
                if !fields.contains_key("$forEach") {
                    self.report("$as names the item of $forEach, and there is none", "add $forEach, or leave $as out");
                }
            }
            "$conflict" => rules.conflict = self.choice(value, ConflictRule::from_word, ConflictRule::WORDS),
            "$position" if place == Place::Field => {
                self.report("$position stands on an element of a list", "move it there");
            }
            "$position" => rules.position = self.position(value),
            "$join" => rules.join = self.join(value),
            "$each" if place == Place::Field => {
                self.report("$each stands in an element of a list", "write it as [{$each: \"...\", ...}]");
            }
            "$each" => rules.each = self.source(value).and_then(|each| self.without_existing(each)),
            "$prune" => rules.prune = self.source(value).and_then(|prune| self.without_existing(prune)),
            "$sidecar" if place == Place::InitContainer => rules.sidecar = self.source(value),
            "$sidecar" => {
                self.report("$sidecar stands on a container in initContainers", "move the container there");
            }
            _ => self.diagnostics.push(unknown_directive(&self.path, name)),
        }
    }

    fn for_each(&mut self, list: &Json, name: Option<&Json>, place: Place) -> Option<ForEach> {
        if place == Place::Field {
            self.report("$forEach stands on an element of a list", "move it there");
            return None;
        }
        let list = self.source(list).and_then(|list| self.without_existing(list));
        let item = match name {
            Some(Json::String(name)) if self.is_taken(name) => {
                let message = format!("{name} has a meaning of its own, so it cannot be the name of the item");
                self.report(&message, "take another word");
                return None;
            }
            None => ITEM,
            Some(Json::String(name)) if is_name(name) => name,
            Some(other) => {
                let message = format!("$as is the name of the item, not {other}");
                self.report(&message, "write a word of letters, digits and '_'");
                return None;
            }
        };
        self.bring(item);
        list.map(|list| ForEach { list, item: item.into() })
    }

    /// Whether a name already has a meaning in expressions, so that it cannot name an item.
    fn is_taken(&self, name: &str) -> bool {
        let is_namespace = matches!(name, "params" | "variables" | "lookups" | "cluster" | EXISTING);
        let is_local = self.locals.iter().any(|local| local == name);
        is_namespace || (!is_local && Expression::compile(name, &self.scope).is_ok())
    }

    /// Returns an expression that does not read `existing`. It is evaluated for several elements, not at one path.
    fn without_existing(&mut self, expression: Expression) -> Option<Expression> {
        if expression.uses(EXISTING) {
            self.report("`existing` is not known here", "`item` is the element at hand, `object` the object as it was");
            return None;
        }
        Some(expression)
    }

    /// Adds the name of an item, and the names in [`BESIDE_ITEM`], to the scope.
    fn bring(&mut self, item: &str) {
        for name in BESIDE_ITEM.into_iter().chain([item]) {
            self.scope = std::mem::take(&mut self.scope).with(name);
            self.locals.push(name.to_owned());
        }
    }

    /// Compiles a directive whose value is an expression.
    fn source(&mut self, value: &Json) -> Option<Expression> {
        match value {
            Json::String(source) if !source.contains("${") => self.expression(source),
            Json::Bool(value) => self.expression(if *value { "true" } else { "false" }),
            Json::String(_) => {
                self.report("the text of this directive is an expression itself", "write it without ${ and }");
                None
            }
            _ => {
                self.report(&format!("expected an expression, found {value}"), "quote it");
                None
            }
        }
    }

    fn position(&mut self, value: &Json) -> Option<Position> {
        let Json::Object(fields) = value else {
            return self.choice(value, End::from_word, End::WORDS).map(Position::End);
        };
        let mut fields = fields.iter();
        let name = |text: &str| Some(Box::from(text));
        match (fields.next(), fields.next()) {
            (Some((side, key)), None) if side == "before" => self.choice(key, name, "a name").map(Position::Before),
            (Some((side, key)), None) if side == "after" => self.choice(key, name, "a name").map(Position::After),
            _ => {
                let help = "a name is that of another element of the list";
                self.report(&format!("expected {}, found {value}", End::WORDS), help);
                None
            }
        }
    }

    fn join(&mut self, value: &Json) -> Option<Join> {
        let Json::Object(fields) = value else {
            let help = "for instance {separator: \",\"}, or {} for a list";
            self.report(&format!("expected an object, found {value}"), help);
            return None;
        };
        let mut join = Join::default();
        for (name, value) in fields {
            match (name.as_str(), value.as_str()) {
                ("separator", Some(text)) => join.separator = text.into(),
                ("key", Some(text)) if !text.is_empty() => join.key = Some(text.into()),
                ("prepend", Some(_)) => {
                    join.prepend = self
                        .below(".prepend", |compiler| compiler.choice(value, |text| Some(Box::from(text)), "a text"));
                }
                ("format", Some("Text")) => join.format = JoinFormat::Text,
                ("format", Some("JSON")) => join.format = JoinFormat::Json,
                ("format", Some("Auto")) => join.format = JoinFormat::Auto,
                ("valueFrom", Some("Skip")) => join.value_from = JoinReference::Skip,
                ("valueFrom", Some("Compose")) => join.value_from = JoinReference::Compose,
                _ => {
                    let known =
                        "it has separator, key, prepend, format (Text, JSON or Auto) and valueFrom (Skip or Compose)";
                    self.report(&format!("$join has no {name} that is {value}"), known);
                }
            }
        }
        Some(join)
    }

    fn choice<T>(&mut self, value: &Json, known: impl Fn(&str) -> Option<T>, expected: &str) -> Option<Choice<T>> {
        if let Json::String(text) = value {
            if text.contains("${") {
                match expression::Text::parse(text) {
                    Ok(parsed) => return self.text(text, parsed).map(Choice::Found),
                    Err(error) => {
                        self.wrong(text, &error);
                        return None;
                    }
                }
            }
            if let Some(known) = known(text) {
                return Some(Choice::Known(known));
            }
        }
        self.report(
            &format!("expected {expected}, found {value}"),
            "a word is written as it stands, or found by ${...}",
        );
        None
    }
}

impl Rules {
    /// Whether one of its expressions reads `existing`, the object's value at this path.
    pub(super) fn use_existing(&self) -> bool {
        let found = |text: &super::Text| text.uses(EXISTING);
        let in_conflict = matches!(&self.conflict, Some(Choice::Found(text)) if found(text));
        let in_position = match &self.position {
            Some(
                Position::End(Choice::Found(text))
                | Position::Before(Choice::Found(text))
                | Position::After(Choice::Found(text)),
            ) => found(text),
            _ => false,
        };
        let in_join = self.join.as_ref().and_then(|join| join.prepend.as_ref());
        let in_join = matches!(in_join, Some(Choice::Found(text)) if found(text));
        let expressions = [&self.when, &self.sidecar];
        in_conflict
            || in_position
            || in_join
            || expressions.into_iter().flatten().any(|expression| expression.uses(EXISTING))
    }

    /// Whether it changes or removes what an earlier pass added.
    pub(super) const fn acts_again(&self) -> bool {
        let replaces = match &self.conflict {
            Some(Choice::Known(rule)) => matches!(rule, ConflictRule::Replace),
            Some(Choice::Found(_)) => true,
            None => false,
        };
        replaces || self.join.is_some() || self.each.is_some() || self.prune.is_some()
    }
}

fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && text.len() <= 63
}
