//! Translates the selection of a profile to conditions for the API server: the opt-in of the namespace, the opt-out of
//! the object, selectors, and requests. Also checks which expressions the API server can evaluate.

use std::collections::BTreeSet;

use pillion_api::ProfileSpec;
use pillion_api::names::{FailureMode, INJECT_LABEL, NAMESPACE_NAME_LABEL, PROFILES_ANNOTATION, SYSTEM_NAMESPACES};
use pillion_api::opt_in::OptIn;
use pillion_api::profile::{Activation, EmptyValue, OnUnknown, Operation, OptOut, RequestKey, Variable};
use serde_json::{Value, json};

use super::{NotExported, PolicyScope, Profile};
use crate::expression::{Expression, Part, Scope, Source, Text};

/// A condition of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The name of the condition in the policy.
    pub name: String,
    /// The CEL expression, which the API server evaluates.
    pub expression: String,
}

/// The default values that request the default profile (truthy), or no profile (falsy).
const TRUTHY: [&str; 6] = ["true", "yes", "y", "on", "enabled", "1"];
const FALSY: [&str; 6] = ["false", "no", "n", "off", "disabled", "0"];

/// Returns the conditions under which a profile applies to an object, except the match conditions in its spec.
pub(super) fn conditions(profile: Profile<'_>) -> Result<Vec<Condition>, NotExported> {
    let Profile { compiled, spec, rival, .. } = profile;
    let place = Place::of(spec.target.as_ref().map_or(&[][..], |target| &target.operations));
    let is_forced = spec.opt_out == Some(OptOut::Forbidden);
    let mut conditions = Vec::new();
    let mut add = |name: &str, expression: String| {
        conditions.push(Condition { name: format!("pillion-{name}"), expression });
    };
    if profile.scope == PolicyScope::Profile
        && let [_, _, ..] = profile.opt_in.labels()
    {
        add("opted-in", opted_in(profile.opt_in));
    }
    let own = &compiled.name().name;
    let names: Vec<String> = match &compiled.name().namespace {
        Some(_) => vec![own.to_string(), compiled.display_name().to_owned()],
        None => vec![own.to_string()],
    };
    if !is_forced {
        add("opt-out", format!("{}.orValue('') != 'false'", place.label(INJECT_LABEL)));
        let taken: Vec<_> = names.iter().map(|name| format!("-{name}")).collect();
        let words = format!("{}.orValue('').split(',')", place.annotation(PROFILES_ANNOTATION));
        add("not-opted-out", format!("!{words}.exists(w, w.trim() in {})", list(&taken)));
    }
    let by_name = [place.annotation(PROFILES_ANNOTATION), namespace("annotations", PROFILES_ANNOTATION)]
        .map(|value| format!("{value}.orValue('').split(',').exists(w, w.trim() in {})", list(&names)));
    let mut ways = by_name.to_vec();
    match compiled.activation() {
        Activation::Never => {
            return Err(NotExported::new("spec.activation", "the profile is never applied itself, only extended"));
        }
        Activation::Always => {
            if let Some(key) = spec.requested_by.as_ref().filter(|_| !is_forced) {
                add("not-declined", not_declined(key, &first_of(values(key, place))));
            }
        }
        Activation::Requested => {
            if let Some(key) = &spec.requested_by {
                check_key(key, rival)?;
                ways.extend(by_key(key, place, &names, is_forced));
                if !is_forced {
                    // A falsy value on the namespace does not decline a profile that is requested by name, so only the
                    // values on the object are checked.
                    add("not-declined", not_declined(key, &first_of(values_on_object(key, place))));
                }
            }
            add("asked-for", ways.join(" || "));
        }
    }
    Ok(conditions)
}

fn check_key(key: &RequestKey, rival: Option<&str>) -> Result<(), NotExported> {
    if let Some(rival) = rival {
        let why = format!("{rival} has the same key, so the profile that a truthy value requests depends on both");
        return Err(NotExported::new("spec.requestedBy", why));
    }
    if key.on_unknown == Some(OnUnknown::Deny) {
        return Err(NotExported::new("spec.requestedBy.onUnknown", "the unknown values depend on all profiles"));
    }
    let words = key.values.iter().chain(key.truthy.iter().flatten()).chain(key.falsy.iter().flatten());
    if let Some(word) = words.into_iter().find(|word| !word.is_ascii()) {
        return Err(NotExported::new(
            "spec.requestedBy",
            format!("the API server cannot compare {word:?} without regard to case"),
        ));
    }
    Ok(())
}

/// Returns conditions that are true if a request value names the profile or asks for the default one. Usually only the
/// value with the highest precedence takes effect. If opting out is forbidden, any value may request the profile, so
/// there is a condition for each.
fn by_key(key: &RequestKey, place: Place, names: &[String], is_forced: bool) -> Vec<String> {
    let truthy = key.truthy.clone().unwrap_or_else(|| TRUTHY.map(str::to_owned).to_vec());
    let words = names.iter().chain(&key.values).chain(&truthy).map(|word| word.trim().to_lowercase());
    let words = list(&words.collect::<Vec<_>>());
    let asks = |value: &str| format!("{value}.orValue('').split(',').exists(w, w.trim().lowerAscii() in {words})");
    if is_forced {
        values(key, place).iter().map(|value| asks(value)).collect()
    } else {
        vec![asks(&first_of(values(key, place)))]
    }
}

/// Returns an expression that is true unless all comma-separated words of the request value are falsy or empty.
fn not_declined(key: &RequestKey, value: &str) -> String {
    let falsy = key.falsy.clone().unwrap_or_else(|| FALSY.map(str::to_owned).to_vec());
    let falsy: Vec<_> = falsy.iter().map(|word| word.trim().to_lowercase()).chain([String::new()]).collect();
    // An absent value becomes `-`, which is not falsy.
    format!("!{value}.orValue('-').split(',').all(w, w.trim().lowerAscii() in {})", list(&falsy))
}

/// Returns an expression for the first value that is present.
fn first_of(values: Vec<String>) -> String {
    let mut values = values.into_iter();
    let first = values.next().unwrap_or_default();
    values.fold(first, |first, next| format!("{first}.or({next})"))
}

/// Returns expressions for all labels and annotations that may contain the request value, by precedence: labels before
/// annotations, and the object before the namespace. Each yields an optional.
fn values(key: &RequestKey, place: Place) -> Vec<String> {
    let on_namespace = [
        key.label.as_deref().map(|key| namespace("labels", key)),
        key.annotation.as_deref().map(|key| namespace("annotations", key)),
    ];
    let on_namespace = on_namespace.into_iter().flatten().map(|value| if_present(key, value));
    values_on_object(key, place).into_iter().chain(on_namespace).collect()
}

/// Like [`values`], but only for labels and annotations of the object.
fn values_on_object(key: &RequestKey, place: Place) -> Vec<String> {
    let on_object =
        [key.label.as_deref().map(|key| place.label(key)), key.annotation.as_deref().map(|key| place.annotation(key))];
    on_object.into_iter().flatten().map(|value| if_present(key, value)).collect()
}

/// Returns an expression that yields no value if `value` is empty and the key treats an empty value as absent.
fn if_present(key: &RequestKey, value: String) -> String {
    match key.empty.unwrap_or_default() {
        EmptyValue::Counts => value,
        EmptyValue::Absent => format!("optional.ofNonZeroValue({value}.orValue('').trim())"),
    }
}

/// The variable that contains the object whose labels and annotations request profiles. For DELETE, only `oldObject`
/// exists.
#[derive(Clone, Copy)]
struct Place(&'static str);

impl Place {
    fn of(operations: &[Operation]) -> Self {
        let deletes = operations.contains(&Operation::Delete);
        Self(match (deletes, operations.len()) {
            (false, _) => "object",
            (true, 1) => "oldObject",
            (true, _) => "(request.operation == 'DELETE' ? oldObject : object)",
        })
    }

    fn label(self, key: &str) -> String {
        format!("{}.metadata.?labels[?{}]", self.0, quoted(key))
    }

    fn annotation(self, key: &str) -> String {
        format!("{}.metadata.?annotations[?{}]", self.0, quoted(key))
    }
}

fn namespace(map: &str, key: &str) -> String {
    format!("namespaceObject.metadata.?{map}[?{}]", quoted(key))
}

/// Returns a string as a CEL literal.
#[must_use]
pub fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n").replace('\r', "\\r");
    format!("'{escaped}'")
}

/// Returns strings as a CEL list literal.
pub(super) fn list(words: &[String]) -> String {
    let words: Vec<_> = words.iter().map(|word| quoted(word)).collect();
    format!("[{}]", words.join(", "))
}

/// Returns an expression that is true if the namespace is opted in. Only the first opt-in label that the namespace has
/// is considered, which a selector cannot express.
fn opted_in(opt_in: &OptIn) -> String {
    opted_in_as(opt_in, |_| true)
}

/// Like [`opted_in`], but only for some failure modes.
pub(super) fn opted_in_as(opt_in: &OptIn, is_wanted: impl Fn(FailureMode) -> bool) -> String {
    opt_in.labels().iter().rev().fold("false".to_owned(), |otherwise, label| {
        let value = namespace("labels", &label.key);
        let values = label.values.iter().filter(|(_, failure_mode)| is_wanted(*failure_mode));
        let values: Vec<_> = values.map(|(value, _)| value.clone()).collect();
        format!("({value}.hasValue() ? {value}.value() in {} : {otherwise})", list(&values))
    })
}

/// Returns the selector for the profile's namespaces. With [`PolicyScope::Profile`], it also excludes the system
/// namespaces, and requires the opt-in label if there is only one.
///
/// # Errors
/// The selector cannot be serialized.
pub fn namespace_selector(profile: Profile<'_>) -> Result<Value, serde_json::Error> {
    let mut selector = serde_json::to_value(profile.spec.namespace_selector.clone().unwrap_or_default())?;
    let mut expressions = Vec::new();
    if profile.scope == PolicyScope::Profile {
        // If there are several opt-in labels, a condition checks which one takes effect.
        if let [only] = profile.opt_in.labels() {
            let values: Vec<_> = only.values.iter().map(|(value, _)| value).collect();
            expressions.push(json!({"key": only.key, "operator": "In", "values": values}));
        }
        expressions.push(json!({"key": NAMESPACE_NAME_LABEL, "operator": "NotIn", "values": SYSTEM_NAMESPACES}));
    }
    if let Some(namespace) = &profile.compiled.name().namespace {
        expressions.push(json!({"key": NAMESPACE_NAME_LABEL, "operator": "In", "values": [namespace]}));
    }
    if let Some(own) = selector.get_mut("matchExpressions").and_then(Value::as_array_mut) {
        expressions.append(own);
    }
    if let Some(selector) = selector.as_object_mut() {
        selector.insert("matchExpressions".to_owned(), expressions.into());
    }
    Ok(selector)
}

/// The names that the compiler of exported expressions knows, in addition to `params`, `variables` and `lookups`.
const NAMES: [&str; 6] = ["object", "oldObject", "request", "namespaceObject", "containers", "primary"];

/// The names that the API server defines in its own policies.
const NATIVE: [&str; 5] = ["object", "oldObject", "request", "namespaceObject", "variables"];

/// The fields that `request` has in the API server's policies. A webhook receives more fields, because it receives the
/// whole review.
const REQUEST: [&str; 12] = [
    "kind",
    "resource",
    "subResource",
    "requestKind",
    "requestResource",
    "requestSubResource",
    "name",
    "namespace",
    "operation",
    "userInfo",
    "dryRun",
    "options",
];

/// Compiles the expressions of a profile, and checks whether the API server can evaluate them.
#[derive(Debug)]
pub struct Expressions<'p> {
    spec: &'p ProfileSpec,
    scope: Scope,
}

/// Variables that are used, directly or through other variables.
pub type Used = BTreeSet<String>;

impl<'p> Expressions<'p> {
    /// Creates the compiler for a profile's expressions.
    #[must_use]
    pub fn new(spec: &'p ProfileSpec) -> Self {
        let scope = NAMES.into_iter().fold(Scope::new(), Scope::with);
        let scope = ["params", "variables", "lookups"].into_iter().fold(scope, Scope::with_any_members);
        Self { spec, scope }
    }

    /// Returns the variables that an expression uses.
    ///
    /// # Errors
    /// Returns the reason why the API server cannot evaluate the expression.
    pub fn check(&self, source: &str) -> Result<Used, String> {
        let mut used = Used::new();
        self.collect(source, &mut used)?;
        Ok(used)
    }

    fn collect(&self, source: &str, used: &mut Used) -> Result<(), String> {
        let expression = Expression::compile(source, &self.scope)
            .map_err(|error| format!("the API server cannot evaluate it: {error}"))?;
        for path in expression.paths() {
            if !NATIVE.contains(&path.name.as_str()) {
                return Err(not_native(&path.name));
            }
            if path.name == "request" && path.fields.first().is_none_or(|field| !REQUEST.contains(&field.as_str())) {
                let field = path.fields.first().map_or("as a whole", String::as_str);
                return Err(format!("Kubernetes' own policies do not provide request {field}"));
            }
            let whole = path.fields.first().is_none_or(|field| field != "metadata");
            if path.name == "namespaceObject" && whole {
                return Err(
                    "namespaceObject has only metadata in a profile, but is the whole namespace in a policy".to_owned()
                );
            }
        }
        let foreign = expression.not_native();
        if !foreign.is_empty() {
            return Err(format!("Kubernetes' own policies do not have {}", foreign.join(", ")));
        }
        for name in expression.members("variables") {
            if used.insert(name.to_owned())
                && let Some(variable) = self.variable(name)
            {
                self.collect(&variable.expression, used).map_err(|why| format!("its variable {name}: {why}"))?;
            }
        }
        Ok(())
    }

    /// Whether an expression reads the namespace directly.
    #[must_use]
    pub fn reads_namespace(&self, source: &str) -> bool {
        Expression::compile(source, &self.scope).is_ok_and(|expression| expression.uses("namespaceObject"))
    }

    /// Whether the result of an expression depends only on parameters, and not on the object or the request.
    #[must_use]
    pub fn reads_only_parameters(&self, source: &str) -> bool {
        let Ok(expression) = Expression::compile(source, &self.scope) else { return false };
        // The result of `jitter` depends on the request.
        let is_fixed = !source.contains("jitter");
        is_fixed
            && expression.paths().iter().all(|path| match (path.name.as_str(), path.fields.first()) {
                ("params", _) => true,
                ("variables", Some(name)) => {
                    self.variable(name).is_some_and(|variable| self.reads_only_parameters(&variable.expression))
                }
                _ => false,
            })
    }

    /// Returns the paths in the object that an expression reads directly.
    #[must_use]
    pub fn object_paths(&self, source: &str) -> Vec<Vec<String>> {
        let Ok(expression) = Expression::compile(source, &self.scope) else { return Vec::new() };
        let paths = expression.paths().iter().filter(|path| path.name == "object");
        paths.map(|path| path.fields.clone()).collect()
    }

    fn variable(&self, name: &str) -> Option<&'p Variable> {
        self.spec.variables.iter().find(|variable| variable.name == name)
    }

    /// Returns the used variables in dependency order, as the API server requires.
    #[must_use]
    pub fn in_order(&self, used: &Used) -> Vec<&'p Variable> {
        let mut ordered: Vec<&Variable> = Vec::new();
        // There are no cycles, so each round places at least one variable.
        for _ in 0..used.len() {
            for variable in used.iter().filter_map(|name| self.variable(name)) {
                let is_placed = |name: &str| ordered.iter().any(|placed| placed.name == name);
                let needs = Expression::compile(&variable.expression, &self.scope);
                let ready = needs.is_ok_and(|expression| expression.members("variables").all(is_placed));
                if ready && !is_placed(&variable.name) {
                    ordered.push(variable);
                }
            }
        }
        ordered
    }

    /// Converts a message for the API server: a string, or an expression with the variables that it uses.
    ///
    /// # Errors
    /// Returns the reason why the API server cannot evaluate an expression of the message.
    pub fn message(&self, text: &str) -> Result<(Message, Used), String> {
        let mut used = Used::new();
        let mut piece =
            |source: &Source| self.collect(&source.text, &mut used).map(|()| format!("string({})", source.text.trim()));
        let pieces = match Text::parse(text).map_err(|error| error.to_string())? {
            Text::Literal(text) => return Ok((Message::Plain(text), used)),
            Text::Whole(source) => vec![piece(&source)?],
            Text::Mixed(parts) => {
                let pieces = parts.iter().map(|part| match part {
                    Part::Text(text) => Ok(quoted(text)),
                    Part::Expression(source) => piece(source),
                });
                pieces.collect::<Result<_, _>>()?
            }
        };
        Ok((Message::Computed(pieces.join(" + ")), used))
    }
}

/// A message of a validation, as a string or as an expression of the API server.
#[derive(Clone, Debug)]
pub enum Message {
    /// A string.
    Plain(String),
    /// An expression.
    Computed(String),
}

fn not_native(name: &str) -> String {
    let why = match name {
        "containers" | "primary" => "; read the lists in object.spec instead",
        "params" => ": the API server does not read parameters from annotations",
        "lookups" => ": the API server does not support lookups",
        _ => "",
    };
    format!("Kubernetes' own policies do not have the variable `{name}`{why}")
}
