//! The merge schema of pods: the keys of keyed lists, and the fields that are mutually exclusive.
//!
//! The keys are those of server-side apply (`x-kubernetes-list-map-keys` in the schema of the API server). Fields that
//! are not listed here merge by the general rules: objects by key, and other lists and scalars as one value.

/// The known fields of an object.
#[derive(Debug)]
pub struct Type {
    /// The objects and keyed lists that have a schema. All other fields merge by the general rules.
    pub fields: &'static [(&'static str, Field)],
    /// The fields that are mutually exclusive.
    pub one_of: OneOf,
    /// Whether the record contains each added field separately, instead of the object as one addition.
    pub records_by_field: bool,
}

/// The schema of a field that is an object or a keyed list.
#[derive(Clone, Copy, Debug)]
pub enum Field {
    /// An object.
    Object(&'static Type),
    /// A list whose elements are identified by keys.
    Keyed(&'static KeyedList),
}

/// A list whose elements are identified by some of their fields.
#[derive(Debug)]
pub struct KeyedList {
    /// The fields that together form the key.
    pub keys: &'static [&'static str],
    /// The defaults of absent key fields.
    pub defaults: &'static [(&'static str, &'static str)],
    /// The schema of the elements.
    pub element: &'static Type,
    /// Whether an existing element with the same key is a name conflict, instead of an element to merge into.
    pub names: bool,
    /// The lists, including this one, that together must contain each name only once. Empty if only this list matters.
    pub siblings: &'static [&'static str],
}

/// Mutually exclusive fields: an object may have at most one of them.
#[derive(Debug)]
pub enum OneOf {
    /// No fields are mutually exclusive.
    Nothing,
    /// At most one of these fields is allowed.
    Among(&'static [&'static str]),
    /// At most one of all fields except these is allowed.
    AllBut(&'static [&'static str]),
}

impl Type {
    /// Whether this is the schema of a pod.
    pub(crate) fn is_pod(&self) -> bool {
        std::ptr::eq(self, &raw const POD)
    }

    /// Returns the schema of a field. `None` if the field merges by the general rules.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|(field, _)| *field == name).map(|(_, field)| field)
    }
}

/// Whether a list is a container's environment.
pub(crate) fn is_env(list: &KeyedList) -> bool {
    std::ptr::eq(list.element, &raw const ENV_VAR)
}

impl OneOf {
    /// Whether a field is one of the mutually exclusive fields.
    #[must_use]
    pub fn holds(&self, field: &str) -> bool {
        match self {
            Self::Nothing => false,
            Self::Among(fields) => fields.contains(&field),
            Self::AllBut(fields) => !fields.contains(&field),
        }
    }
}

/// The schema of an object without known fields.
pub static ANY: Type = plain(&[]);

/// The schema of labels and annotations: a map whose entries are separate additions in the record.
static ENTRIES: Type = Type { fields: &[], one_of: OneOf::Nothing, records_by_field: true };

/// Returns the schema for the objects of a resource. Apart from the metadata, only the fields of pods are known. In
/// other objects, maps merge by key, and each list outside the metadata is one value.
#[must_use]
pub fn of(group: &str, resource: &str) -> &'static Type {
    let main = resource.split('/').next().unwrap_or_default();
    if group.is_empty() && main == "pods" { &POD } else { &OBJECT }
}

/// The schema of objects other than pods. The metadata is the same for all kinds.
pub static OBJECT: Type =
    recorded_by_field(&[("metadata", Field::Object(&OBJECT_META)), ("spec", Field::Object(&SPREAD))]);

/// The schema of an object without known fields, whose fields are separate additions in the record.
static SPREAD: Type = recorded_by_field(&[]);

/// The schema of a pod.
pub static POD: Type =
    recorded_by_field(&[("metadata", Field::Object(&OBJECT_META)), ("spec", Field::Object(&POD_SPEC))]);

/// The schema of any object's metadata.
pub static OBJECT_META: Type = recorded_by_field(&[
    ("labels", Field::Object(&ENTRIES)),
    ("annotations", Field::Object(&ENTRIES)),
    ("ownerReferences", Field::Keyed(&KeyedList { keys: &["uid"], ..by_name(&ANY) })),
]);

/// The schema of a pod's spec.
pub static POD_SPEC: Type = recorded_by_field(&[
    ("containers", Field::Keyed(&CONTAINERS)),
    ("initContainers", Field::Keyed(&CONTAINERS)),
    ("volumes", Field::Keyed(&KeyedList { names: true, ..by_name(&VOLUME) })),
    ("imagePullSecrets", Field::Keyed(&by_name(&ANY))),
    ("schedulingGates", Field::Keyed(&by_name(&ANY))),
    ("resourceClaims", Field::Keyed(&by_name(&RESOURCE_CLAIM))),
    ("evictionResponders", Field::Keyed(&by_name(&ANY))),
    ("hostAliases", Field::Keyed(&KeyedList { keys: &["ip"], ..by_name(&ANY) })),
    (
        "topologySpreadConstraints",
        Field::Keyed(&KeyedList { keys: &["topologyKey", "whenUnsatisfiable"], ..by_name(&ANY) }),
    ),
]);

/// The schema of a container.
pub static CONTAINER: Type = plain(&[
    ("env", Field::Keyed(&by_name(&ENV_VAR))),
    (
        "ports",
        Field::Keyed(&KeyedList {
            keys: &["containerPort", "protocol"],
            defaults: &[("protocol", "\"TCP\"")],
            ..by_name(&ANY)
        }),
    ),
    ("volumeMounts", Field::Keyed(&KeyedList { keys: &["mountPath"], ..by_name(&ANY) })),
    ("volumeDevices", Field::Keyed(&KeyedList { keys: &["devicePath"], ..by_name(&ANY) })),
    ("livenessProbe", Field::Object(&PROBE)),
    ("readinessProbe", Field::Object(&PROBE)),
    ("startupProbe", Field::Object(&PROBE)),
    ("lifecycle", Field::Object(&LIFECYCLE)),
    ("resources", Field::Object(&RESOURCES)),
]);

static CONTAINERS: KeyedList = KeyedList {
    names: true,
    siblings: &["containers", "initContainers", "ephemeralContainers"],
    ..by_name(&CONTAINER)
};

static VOLUME: Type = Type { one_of: OneOf::AllBut(&["name"]), ..plain(&[]) };

static RESOURCE_CLAIM: Type = Type { one_of: OneOf::AllBut(&["name"]), ..plain(&[]) };

static ENV_VAR: Type =
    Type { one_of: OneOf::Among(&["value", "valueFrom"]), ..plain(&[("valueFrom", Field::Object(&ENV_VAR_SOURCE))]) };

static ENV_VAR_SOURCE: Type = Type { one_of: OneOf::AllBut(&[]), ..plain(&[]) };

/// The handlers of a probe.
pub(crate) const PROBE_HANDLERS: [&str; 4] = ["exec", "grpc", "httpGet", "tcpSocket"];

/// The handlers of a lifecycle hook.
pub(crate) const HOOK_HANDLERS: [&str; 4] = ["exec", "httpGet", "sleep", "tcpSocket"];

static PROBE: Type = Type { one_of: OneOf::Among(&PROBE_HANDLERS), ..plain(&[]) };

static LIFECYCLE: Type =
    plain(&[("postStart", Field::Object(&LIFECYCLE_HANDLER)), ("preStop", Field::Object(&LIFECYCLE_HANDLER))]);

static LIFECYCLE_HANDLER: Type = Type { one_of: OneOf::Among(&HOOK_HANDLERS), ..plain(&[]) };

static RESOURCES: Type = plain(&[("claims", Field::Keyed(&by_name(&ANY)))]);

const fn plain(fields: &'static [(&'static str, Field)]) -> Type {
    Type { fields, one_of: OneOf::Nothing, records_by_field: false }
}

const fn recorded_by_field(fields: &'static [(&'static str, Field)]) -> Type {
    Type { fields, one_of: OneOf::Nothing, records_by_field: true }
}

const fn by_name(element: &'static Type) -> KeyedList {
    KeyedList { keys: &["name"], defaults: &[], element, names: false, siblings: &[] }
}
