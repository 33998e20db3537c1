//! What expressions compute with: the object, the request, the namespace, and a profile's variables.
//!
//! Everything is given as a place in what is there already and read only as far as an expression reaches. Variables are
//! evaluated when they are first used, once for an object.

use std::cell::RefCell;

use crate::expression::{Bindings, Budget, EvaluationError, Expression, Key, Map, Scope, TextValue, Value};
use crate::json;
use crate::snapshot::Namespace;

/// The names that every expression of a profile may use, beside its variables.
const NAMES: [&str; 6] = ["object", "oldObject", "request", "namespaceObject", "containers", "primary"];

/// Those that only a pod has.
const POD_NAMES: [&str; 2] = ["containers", "primary"];

/// The annotation that says which container people mean when they mean the pod.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// An expression with a name.
#[derive(Debug)]
pub(crate) struct Variable {
    pub(crate) name: Box<str>,
    pub(crate) expression: Expression,
}

/// What is the same for all profiles of one request.
#[derive(Clone, Copy)]
pub(crate) struct World<'v> {
    /// The object as its author wrote it.
    pub(crate) object: json::Value<'v>,
    pub(crate) request: json::Value<'v>,
    pub(crate) namespace_name: &'v str,
    pub(crate) namespace: &'v Namespace,
    pub(crate) uid: &'v str,
}

/// The values of a profile's parameters by their names; those that nobody set and that have no default are absent.
pub(crate) type Parameters = Vec<(Box<str>, serde_json::Value)>;

/// What the names in one profile's expressions stand for.
pub(crate) struct Computation<'v> {
    world: World<'v>,
    parameters: &'v Parameters,
    variables: &'v [Variable],
    /// Names of the containers that were injected; `None` where the object is without them.
    ours: Option<&'v [Box<str>]>,
    values: RefCell<Vec<Option<Result<Value<'v>, EvaluationError>>>>,
}

/// The scope of a profile's expressions.
pub(crate) fn scope<'n>(
    parameters: impl IntoIterator<Item = &'n str>,
    variables: impl IntoIterator<Item = &'n str>,
) -> Scope {
    let scope = NAMES.into_iter().fold(Scope::new(), Scope::with);
    scope.with_members("params", parameters).with_members("variables", variables)
}

/// The scope without what only a pod has.
pub(crate) fn without_pod(scope: Scope) -> Scope {
    POD_NAMES
        .into_iter()
        .fold(scope, |scope, name| scope.without(name, "only a pod has it, and the target is not pods"))
}

impl<'v> Computation<'v> {
    pub(crate) fn new(world: World<'v>, parameters: &'v Parameters, variables: &'v [Variable]) -> Self {
        Self { world, parameters, variables, ours: None, values: RefCell::new(vec![None; variables.len()]) }
    }

    /// The same for an object as it is, in which these containers were injected.
    pub(crate) fn with_ours(mut self, names: &'v [Box<str>]) -> Self {
        self.ours = Some(names);
        self
    }

    fn containers(&self) -> impl Iterator<Item = Value<'v>> {
        let list = |field: &'static str| {
            let spec = self.world.object.get("spec");
            spec.and_then(|spec| spec.get(field)).into_iter().flat_map(json::Value::items)
        };
        let init = list("initContainers").map(|container| {
            let is_sidecar = container.get("restartPolicy").is_some_and(|policy| policy.is("Always"));
            (container, if is_sidecar { "Sidecar" } else { "Init" })
        });
        let app = list("containers").map(|container| (container, "App"));
        let ephemeral = list("ephemeralContainers").map(|container| (container, "Ephemeral"));
        let all = init.chain(app).chain(ephemeral);
        all.map(|(container, kind)| {
            let mut members = vec![("type", Value::text(kind))];
            if let Some(ours) = self.ours {
                // Nobody injects an ephemeral container, whatever it is called.
                let is_ours = kind != "Ephemeral"
                    && container.get("name").is_some_and(|name| ours.iter().any(|injected| name.is(injected)));
                members.push(("ours", Value::Bool(is_ours)));
            }
            Value::extended(Value::from(container), members)
        })
    }

    /// The container that people mean: the one that the pod names, else the first.
    fn primary(&self) -> Result<Value<'v>, EvaluationError> {
        let annotation = self.world.object.at(&["metadata", "annotations", DEFAULT_CONTAINER]);
        let named = annotation.and_then(json::Value::as_str);
        let containers = self.world.object.at(&["spec", "containers"]);
        let items = || containers.into_iter().flat_map(json::Value::items);
        let is_named = |container: &json::Value<'v>| {
            named.as_ref().is_some_and(|named| container.get("name").is_some_and(|name| name.is(named)))
        };
        let primary = items().find(is_named).or_else(|| items().next());
        let primary = primary.ok_or_else(|| EvaluationError::new("the pod has no containers"))?;
        Ok(Value::extended(Value::from(primary), vec![("type", Value::text("App"))]))
    }

    fn namespace(&self) -> Value<'v> {
        let text = |text: &'v str| Key::String(TextValue::Borrowed(text));
        let pairs = |pairs: &'v [(Box<str>, Box<str>)]| {
            Value::map(pairs.iter().map(|(key, value)| (text(key), Value::text(value))).collect())
        };
        let metadata: Map<'v> = [
            (text("name"), Value::text(self.world.namespace_name)),
            (text("labels"), pairs(&self.world.namespace.labels)),
            (text("annotations"), pairs(&self.world.namespace.annotations)),
        ]
        .into_iter()
        .collect();
        Value::map([(text("metadata"), Value::map(metadata))].into_iter().collect())
    }
}

impl<'v> Bindings<'v> for Computation<'v> {
    fn value(&self, name: &str, _: &mut Budget) -> Result<Value<'v>, EvaluationError> {
        match name {
            "object" => Ok(Value::from(self.world.object)),
            "oldObject" => Ok(self.world.request.get("oldObject").map_or(Value::Null, Value::from)),
            "request" => Ok(Value::from(self.world.request)),
            "namespaceObject" => Ok(self.namespace()),
            "containers" => Ok(Value::list(self.containers().collect())),
            "primary" => self.primary(),
            _ => Err(EvaluationError::new(format!("{name} is not known here"))),
        }
    }

    fn member(&self, name: &str, member: &str, budget: &mut Budget) -> Result<Option<Value<'v>>, EvaluationError> {
        if name == "params" {
            let parameter = self.parameters.iter().find(|(name, _)| **name == *member);
            return Ok(parameter.map(|(_, value)| Value::from(value)));
        }
        let Some(place) = self.variables.iter().position(|variable| *variable.name == *member) else { return Ok(None) };
        if let Some(value) = self.values.borrow().get(place).cloned().flatten() {
            return value.map(Some);
        }
        let Some(variable) = self.variables.get(place) else { return Ok(None) };
        let value = variable.expression.evaluate(self, budget);
        if let Some(slot) = self.values.borrow_mut().get_mut(place) {
            *slot = Some(value.clone());
        }
        value.map(Some)
    }

    fn seed(&self) -> &str {
        self.world.uid
    }
}
