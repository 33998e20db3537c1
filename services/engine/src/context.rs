//! The context of expressions: the object, the request, the namespace, lookups, parameters, and the variables of a
//! profile.
//!
//! Expressions read only the values that they use, without copying. A variable is evaluated once per object, when it is
//! first used. A variable that reads a container or an item is evaluated once for each container or item.

use std::cell::{OnceCell, RefCell};

use crate::expression::{
    Allowances, Bindings, EvaluationError, Expression, Key, ListBuilder, MapBuilder, Meter, Owner, Purpose, Scope,
    TextValue, Value,
};
use crate::json::{self, OwnedTape};
use crate::lookup::{self, Answer, LookedUp, OwnerChain};
use crate::namespace::NamespaceMetadata;

/// Names that every expression of a profile may use, in addition to its parameters, variables and lookups. Those in
/// [`POD_NAMES`] are available only if the profile targets pods.
const NAMES: [&str; 7] = ["object", "oldObject", "request", "namespaceObject", "containers", "primary", "overlays"];

/// Names that are bound only in parts of a profile. A variable that reads one of them can be used only in those parts.
pub(crate) const LOCALS: [&str; 4] = ["container", "item", "index", "key"];

/// The name with which an expression in a template reads the object's existing value of the field that the template
/// sets. The expressions of a profile's `variables` cannot use this name.
pub(crate) const EXISTING: &str = "existing";

/// Names of lookup results.
const LOOKED_UP_NAMES: [&str; 4] = ["serviceAccount", "owner", "owners", "cluster"];

/// Names that are defined for pods only.
const POD_NAMES: [&str; 3] = ["containers", "primary", "overlays"];

/// The annotation that names the main container of a pod.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// The lists of a pod's containers.
const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The number of bytes charged to the budget for reading one container.
const CONTAINER_COST: usize = 16;

/// A variable of a profile: a named expression.
#[derive(Debug)]
pub(crate) struct Variable {
    pub(crate) name: Box<str>,
    pub(crate) expression: Expression,
    /// Whether the variable reads one of [`LOCALS`], directly or through another variable.
    pub(crate) is_local: bool,
}

/// The part of the context that all profiles of one request share.
#[derive(Clone, Copy)]
pub(crate) struct EvalContext<'v> {
    /// The value of `object`: the original object without injected changes. For the expressions of validations, the
    /// object as it will be stored. For a deletion, null.
    pub(crate) object: json::Value<'v>,
    pub(crate) request: json::Value<'v>,
    pub(crate) namespace_name: &'v str,
    pub(crate) namespace: &'v NamespaceMetadata,
    pub(crate) uid: &'v str,
    pub(crate) looked_up: &'v LookedUp,
    /// The evaluation budgets that all profiles of the request share.
    pub(crate) allowances: &'v Allowances,
}

/// The definitions that a profile provides to its expressions.
#[derive(Clone, Copy)]
pub(crate) struct Definitions<'v> {
    /// The owner whose budget is charged for the expressions.
    pub(crate) owner: Owner,
    pub(crate) variables: &'v [Variable],
    /// The names of the containers that the profile adds.
    pub(crate) own_containers: &'v [Box<str>],
}

/// Owns values that are created during a decision, so that they can be borrowed until its end.
pub(crate) struct Arena {
    // Created on first use: most requests need neither arena, and creating one allocates memory.
    tapes: OnceCell<typed_arena::Arena<OwnedTape>>,
    parameters: OnceCell<typed_arena::Arena<Parameters>>,
}

/// The values of a profile's parameters, and the results of its declared lookups.
pub(crate) use crate::parameter::Values as Parameters;

/// The bindings of one profile: resolves the names in its expressions.
pub(crate) struct ProfileBindings<'v> {
    context: EvalContext<'v>,
    parameters: &'v Parameters,
    definitions: Definitions<'v>,
    /// Names of the injected containers. `None` if the object is the original, without injected containers.
    ours: Option<&'v [Box<str>]>,
    values: RefCell<Vec<Option<Result<Value<'v>, EvaluationError>>>>,
    /// The pod's lists of containers, in the order of [`LISTS`]. Set on first use.
    lists: OnceCell<[Option<json::Value<'v>>; LISTS.len()]>,
    /// The value of `containers`. Set on first use.
    containers: OnceCell<Value<'v>>,
    /// Names that are bound at the current path, the innermost last.
    locals: RefCell<Vec<(&'v str, Value<'v>)>>,
}

/// Builds the scope for compiling a profile's expressions.
pub(crate) fn scope<'n>(
    parameters: impl IntoIterator<Item = &'n str>,
    variables: impl IntoIterator<Item = &'n str>,
) -> Scope {
    let scope = NAMES.into_iter().chain(LOOKED_UP_NAMES).fold(Scope::new(), Scope::with);
    scope.with_members("params", parameters).with_members("variables", variables)
}

/// Removes the names that only exist for pods.
pub(crate) fn without_pod(scope: Scope) -> Scope {
    POD_NAMES
        .into_iter()
        .fold(scope, |scope, name| scope.without(name, "only pods have it, and the profile does not target pods"))
}

/// Returns a container as a value: its fields, and the additional field `type` with the value `kind`.
pub(crate) fn container<'v>(
    container: json::Value<'v>,
    kind: &'static str,
    meter: &mut Meter,
) -> Result<Value<'v>, EvaluationError> {
    Value::extended(Value::read(container, meter)?, [Some(("type", Value::text(kind))), None], meter)
}

/// Returns the type of an init container: `Sidecar` if its `restartPolicy` is `Always`, otherwise `Init`.
pub(crate) fn init_kind(container: json::Value<'_>) -> &'static str {
    if container.get("restartPolicy").is_some_and(|policy| policy.is("Always")) { "Sidecar" } else { "Init" }
}

impl EvalContext<'_> {
    /// Returns a meter that is limited to the owner's remaining budget.
    pub(crate) fn meter(&self, owner: Owner, purpose: Purpose, steps: usize) -> Meter {
        self.allowances.meter(owner, purpose, steps)
    }
}

impl Arena {
    pub(crate) fn new() -> Self {
        Self { tapes: OnceCell::new(), parameters: OnceCell::new() }
    }

    /// Stores a parsed JSON document and returns its root value.
    pub(crate) fn keep(&self, tape: OwnedTape) -> json::Value<'_> {
        let kept: &OwnedTape = self.tapes.get_or_init(typed_arena::Arena::new).alloc(tape);
        kept.root()
    }

    /// Stores the values of a profile's parameters and returns a reference to them.
    pub(crate) fn keep_parameters(&self, parameters: Parameters) -> &Parameters {
        self.parameters.get_or_init(typed_arena::Arena::new).alloc(parameters)
    }
}

impl<'v> ProfileBindings<'v> {
    pub(crate) fn new(context: EvalContext<'v>, parameters: &'v Parameters, definitions: Definitions<'v>) -> Self {
        let values = RefCell::new(vec![None; definitions.variables.len()]);
        let (lists, containers) = (OnceCell::new(), OnceCell::new());
        Self { context, parameters, definitions, ours: None, values, lists, containers, locals: RefCell::default() }
    }

    /// Sets the names of the injected containers that the object still contains. Each item of `containers` then has the
    /// field `ours`.
    pub(crate) fn with_ours(mut self, names: &'v [Box<str>]) -> Self {
        self.ours = Some(names);
        self
    }

    /// Returns a meter for the profile's owner.
    pub(crate) fn meter(&self, purpose: Purpose, steps: usize) -> Meter {
        self.context.meter(self.definitions.owner, purpose, steps)
    }

    /// Returns the values of the profile's parameters.
    pub(crate) const fn parameters(&self) -> &'v Parameters {
        self.parameters
    }

    /// Whether the profile adds a container with this name.
    pub(crate) fn adds(&self, container: &str) -> bool {
        self.definitions.own_containers.iter().any(|own| **own == *container)
    }

    /// Binds a name until [`ProfileBindings::unbind_to`].
    pub(crate) fn bind(&self, name: &'v str, value: Value<'v>) {
        self.locals.borrow_mut().push((name, value));
        if name != EXISTING {
            self.forget_local_values();
        }
    }

    /// Returns the number of bound names.
    pub(crate) fn bound_count(&self) -> usize {
        self.locals.borrow().len()
    }

    /// Unbinds all names except the first `count`. Usually there is nothing to unbind.
    #[inline]
    pub(crate) fn unbind_to(&self, count: usize) {
        if self.bound_count() > count {
            self.truncate_locals(count);
        }
    }

    fn truncate_locals(&self, count: usize) {
        let mut locals = self.locals.borrow_mut();
        let forgotten = locals.get(count..).unwrap_or_default();
        let matter = forgotten.iter().any(|(name, _)| *name != EXISTING);
        locals.truncate(count);
        if matter {
            self.forget_local_values();
        }
    }

    fn forget_local_values(&self) {
        let mut values = self.values.borrow_mut();
        for (variable, value) in self.definitions.variables.iter().zip(values.iter_mut()) {
            if variable.is_local {
                *value = None;
            }
        }
    }

    /// Returns the containers of each list in [`LISTS`].
    fn lists(&self) -> [impl Iterator<Item = json::Value<'v>> + use<'v>; LISTS.len()] {
        let lists = self.lists.get_or_init(|| {
            let spec = self.context.object.get("spec");
            LISTS.map(|list| spec.and_then(|spec| spec.get(list)))
        });
        lists.map(|list| list.into_iter().flat_map(json::Value::items))
    }

    /// Whether a container of the original pod has the name of a container that the profile adds. Such an overlay
    /// configures the added container. Returns false if the object contains injected containers.
    fn is_overlay(&self, container: json::Value<'_>) -> bool {
        let own = self.definitions.own_containers;
        self.ours.is_none()
            && !own.is_empty()
            && container.get("name").is_some_and(|name| own.iter().any(|own| name.is(own)))
    }

    fn containers(&self, meter: &mut Meter) -> Result<Value<'v>, EvaluationError> {
        let [init, app, ephemeral] = self.lists();
        let init = init.map(|container| (container, init_kind(container)));
        let app = app.map(|container| (container, "App"));
        let ephemeral = ephemeral.map(|container| (container, "Ephemeral"));
        let mut containers = ListBuilder::new();
        for (value, kind) in init.chain(app).chain(ephemeral).filter(|(container, _)| !self.is_overlay(*container)) {
            let ours = self.ours.map(|ours| {
                // Ephemeral containers are never injected, even if they have the name of an injected container.
                let is_ours = kind != "Ephemeral"
                    && value.get("name").is_some_and(|name| ours.iter().any(|injected| name.is(injected)));
                ("ours", Value::Bool(is_ours))
            });
            let value = Value::read(value, meter)?;
            containers.push(Value::extended(value, [Some(("type", Value::text(kind))), ours], meter)?, meter)?;
        }
        containers.finish(meter)
    }

    fn overlays(&self, meter: &mut Meter) -> Result<Value<'v>, EvaluationError> {
        let [init, app, _] = self.lists();
        let mut overlays = MapBuilder::new();
        for container in init.chain(app).filter(|container| self.is_overlay(*container)) {
            if let Some(name) = container.get("name").filter(|name| name.as_str().is_some()) {
                let key = Key::String(TextValue::read(name, meter)?);
                overlays.insert(key, Value::read(container, meter)?, meter)?;
            }
        }
        overlays.finish(meter)
    }

    /// Returns the main container of `spec.containers`: the one named by the annotation [`DEFAULT_CONTAINER`],
    /// otherwise the first. Overlays are ignored.
    fn primary(&self, meter: &mut Meter) -> Result<Value<'v>, EvaluationError> {
        let annotation = self.context.object.at(&["metadata", "annotations", DEFAULT_CONTAINER]);
        let named = annotation.and_then(json::Value::as_str);
        let items = || {
            let [_, app, _] = self.lists();
            app.filter(|container| !self.is_overlay(*container))
        };
        let is_named = |container: &json::Value<'v>| {
            named.as_ref().is_some_and(|named| container.get("name").is_some_and(|name| name.is(named)))
        };
        let primary = items().find(is_named).or_else(|| items().next());
        let primary = primary.ok_or_else(|| EvaluationError::new("the pod has no containers"))?;
        container(primary, "App", meter)
    }

    fn namespace(&self, meter: &mut Meter) -> Result<Value<'v>, EvaluationError> {
        let text = |text: &'v str| Key::String(TextValue::Borrowed(text));
        let entry = |(key, value): (&'v str, &'v str)| (text(key), Value::text(value));
        let labels = Value::map(self.context.namespace.labels().map(entry), meter)?;
        let annotations = Value::map(self.context.namespace.annotations().map(entry), meter)?;
        let name = Value::text(self.context.namespace_name);
        let metadata = [(text("name"), name), (text("labels"), labels), (text("annotations"), annotations)];
        let metadata = Value::map(metadata, meter)?;
        Value::map([(text("metadata"), metadata)], meter)
    }

    fn local(&self, name: &str) -> Option<Value<'v>> {
        self.locals.borrow().iter().rev().find(|(local, _)| *local == name).map(|(_, value)| value.clone())
    }
}

impl<'v> Bindings<'v> for ProfileBindings<'v> {
    fn value(&self, name: &str, meter: &mut Meter) -> Result<Value<'v>, EvaluationError> {
        if let "containers" | "primary" | "overlays" = name {
            // Building these values takes time in proportion to the size of the pod, and most of them are rebuilt on
            // each use.
            meter.charge_bytes(CONTAINER_COST * self.lists().map(Iterator::count).iter().sum::<usize>())?;
        }
        match name {
            "object" => Value::read(self.context.object, meter),
            "oldObject" => {
                self.context.request.get("oldObject").map_or(Ok(Value::Null), |object| Value::read(object, meter))
            }
            "request" => Value::read(self.context.request, meter),
            "namespaceObject" => self.namespace(meter),
            "containers" => {
                if let Some(containers) = self.containers.get() {
                    return Ok(containers.clone());
                }
                let containers = self.containers(meter)?;
                Ok(self.containers.get_or_init(|| containers).clone())
            }
            "primary" => self.primary(meter),
            "overlays" => self.overlays(meter),
            _ => match self.local(name) {
                Some(value) => Ok(value),
                None => looked_up_value(&self.context, name, meter)
                    .unwrap_or_else(|| Err(EvaluationError::new(format!("{name} is not available here")))),
            },
        }
    }

    fn member(&self, name: &str, member: &str, meter: &mut Meter) -> Result<Option<Value<'v>>, EvaluationError> {
        if let Some(found) = self.parameters.member(name, member, meter) {
            return found;
        }
        let variables = self.definitions.variables;
        let Some(place) = variables.iter().position(|variable| *variable.name == *member) else { return Ok(None) };
        if let Some(value) = self.values.borrow().get(place).cloned().flatten() {
            return value.map(Some);
        }
        let Some(variable) = variables.get(place) else { return Ok(None) };
        let value = variable.expression.evaluate(self, meter);
        if let Some(slot) = self.values.borrow_mut().get_mut(place) {
            *slot = Some(value.clone());
        }
        value.map(Some)
    }

    fn seed(&self) -> &str {
        self.context.uid
    }
}

/// Returns the value of one of [`LOOKED_UP_NAMES`]. `None` for any other name.
fn looked_up_value<'v>(
    context: &EvalContext<'v>,
    name: &str,
    meter: &mut Meter,
) -> Option<Result<Value<'v>, EvaluationError>> {
    Some(match name {
        "serviceAccount" => service_account(context, meter),
        "owner" => owners(context, meter).and_then(|mut owners| Value::optional(owners.pop(), meter)),
        "owners" => owners(context, meter).and_then(|owners| Value::list(owners, meter)),
        "cluster" => match &context.looked_up.cluster {
            Some(facts) if facts.root().is_null() => {
                return Some(Err(EvaluationError::new("the platform's facts about the cluster are not known here")));
            }
            Some(facts) => Value::read(facts.root(), meter),
            None => Value::map([], meter),
        },
        _ => return None,
    })
}

/// Returns the service account's metadata, or an empty optional if the account does not exist.
fn service_account<'v>(context: &EvalContext<'v>, meter: &mut Meter) -> Result<Value<'v>, EvaluationError> {
    let object = context.looked_up.service_account.known("the service account")?;
    let metadata = object.and_then(|object| object.root().get("metadata"));
    let metadata = metadata.map(|metadata| Value::read(metadata, meter)).transpose()?;
    Value::optional(metadata, meter)
}

/// Returns the owners of the object, the nearest first. No lookup is needed if the pod itself names all of them.
fn owners<'v>(context: &EvalContext<'v>, meter: &mut Meter) -> Result<Vec<Value<'v>>, EvaluationError> {
    if let Some(chain) = known_from_pod(context) {
        // The chain contains no looked-up objects, so the values do not borrow from it.
        return chain.owners().iter().map(|owner| owner_value(owner, None, meter)).collect();
    }
    let chain = context.looked_up.owners.known("the owner")?;
    let owners = chain.map(OwnerChain::owners).unwrap_or_default();
    owners.iter().map(|owner| owner_value(owner, owner.object.as_ref().map(|object| object.root()), meter)).collect()
}

/// Returns the owners if the pod itself names all of them. `None` if the owners were looked up or a lookup is needed.
fn known_from_pod(context: &EvalContext<'_>) -> Option<OwnerChain> {
    if !matches!(context.looked_up.owners, Answer::NotRequested) {
        return None;
    }
    Some(OwnerChain::of_pod(context.object, false)).filter(|chain| !chain.is_open())
}

/// Returns an owner as `{apiVersion, kind, name}`, and with `uid`, `labels` and `annotations` if known.
fn owner_value<'v>(
    owner: &lookup::Owner,
    object: Option<json::Value<'v>>,
    meter: &mut Meter,
) -> Result<Value<'v>, EvaluationError> {
    let key = |name: &'static str| Key::String(TextValue::Borrowed(name));
    let reference = &owner.reference;
    let texts = [
        ("apiVersion", Some(&*reference.api_version)),
        ("kind", Some(&*reference.kind)),
        ("name", Some(&*reference.name)),
        ("uid", reference.uid.as_deref()),
    ];
    let mut fields = MapBuilder::new();
    for (name, text) in texts {
        if let Some(text) = text {
            fields.insert(key(name), Value::owned(text, meter)?, meter)?;
        }
    }
    for name in ["labels", "annotations"] {
        let part = object.map(|object| object.at(&["metadata", name]));
        // A looked-up object without labels or annotations has empty maps.
        if let Some(part) = part {
            let part = match part {
                Some(part) => Value::read(part, meter)?,
                None => Value::map([], meter)?,
            };
            fields.insert(key(name), part, meter)?;
        }
    }
    fields.finish(meter)
}
