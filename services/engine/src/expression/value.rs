//! What an expression computes with.
//!
//! Values borrow: an object of a request stays a place in its tape, and only what an expression reaches becomes a value
//! of its own. Cloning a value is cheap, whatever is in it.

mod from_json;

use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use indexmap::{Equivalent, IndexMap};

use super::functions::quantity::Quantity;
use crate::json;

/// A value of an expression. `'v` is how long what it borrows from lives: the request, the snapshot, the program.
#[derive(Clone, Debug)]
pub enum Value<'v> {
    /// `null`.
    Null,
    /// `true`, `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A whole number that has no sign.
    UInt(u64),
    /// A floating-point number.
    Double(f64),
    /// Text.
    String(Text<'v>),
    /// Bytes.
    Bytes(Arc<[u8]>),
    /// A list that was computed.
    List(Arc<Vec<Self>>),
    /// A map that was computed, in the order in which it was written.
    Map(Arc<Map<'v>>),
    /// An object or list in a tape; scalars of a tape are values of their own.
    Tape(json::Value<'v>),
    /// An object or list of `serde_json`; its scalars are values of their own.
    Json(&'v serde_json::Value),
    /// An object with members laid over it.
    Extended(Arc<Extended<'v>>),
    /// A span of time, in nanoseconds.
    Duration(i64),
    /// A quantity of Kubernetes.
    Quantity(Quantity),
    /// An optional value, present or absent.
    Optional(Option<Arc<Self>>),
    /// The type of a value, by its name.
    Type(&'static str),
}

/// Text that is borrowed or shared.
#[derive(Clone, Debug)]
pub enum Text<'v> {
    /// It stands somewhere else.
    Borrowed(&'v str),
    /// It was computed.
    Shared(Arc<str>),
}

/// The entries of a map in the order in which they were added.
pub type Map<'v> = IndexMap<Key<'v>, Value<'v>>;

/// The key of a map. Whole numbers are one key, whatever their type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key<'v> {
    /// Text.
    String(Text<'v>),
    /// A whole number that fits.
    Int(i64),
    /// A whole number that does not fit into `Int`.
    UInt(u64),
    /// `true`, `false`.
    Bool(bool),
}

/// An object with members laid over it, which is how a container of the pod gets its `type`.
#[derive(Clone, Debug)]
pub struct Extended<'v> {
    base: Value<'v>,
    members: [Option<(&'static str, Value<'v>)>; 2],
}

/// The items of a list.
pub(super) enum Items<'v> {
    Shared(Arc<Vec<Value<'v>>>),
    Own(Vec<Value<'v>>),
}

/// Bytes of an object or list in which there cannot be much.
const SHORT: usize = 2048;

/// A text that is looked for among keys.
#[derive(Hash)]
struct Name<'k>(&'k str);

impl<'v> Value<'v> {
    /// Text that stands somewhere else.
    #[must_use]
    pub fn text(text: &'v str) -> Self {
        Self::String(Text::Borrowed(text))
    }

    /// Text that was computed.
    #[must_use]
    pub fn owned(text: impl Into<Arc<str>>) -> Self {
        Self::String(Text::Shared(text.into()))
    }

    /// A list.
    #[must_use]
    pub fn list(items: Vec<Self>) -> Self {
        Self::List(Arc::new(items))
    }

    /// A map.
    #[must_use]
    pub fn map(entries: Map<'v>) -> Self {
        Self::Map(Arc::new(entries))
    }

    /// An optional that holds a value.
    #[must_use]
    pub fn some(value: Self) -> Self {
        Self::Optional(Some(Arc::new(value)))
    }

    /// An optional that holds none.
    #[must_use]
    pub const fn none() -> Self {
        Self::Optional(None)
    }

    /// An object with members laid over it; a member of the object that has the same name is hidden.
    #[must_use]
    pub fn extended(base: Self, members: [Option<(&'static str, Self)>; 2]) -> Self {
        Self::Extended(Arc::new(Extended { base, members }))
    }

    /// What it is, as `type(x)` tells it.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::UInt(_) => "uint",
            Self::Double(_) => "double",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::List(_) | Self::Json(serde_json::Value::Array(_)) => "list",
            Self::Tape(value) if value.kind() == json::Kind::Array => "list",
            Self::Map(_) | Self::Extended(_) | Self::Tape(_) | Self::Json(_) => "map",
            Self::Duration(_) => "duration",
            Self::Quantity(_) => "quantity",
            Self::Optional(_) => "optional",
            Self::Type(_) => "type",
        }
    }

    /// What it is, for a sentence.
    pub(super) fn described(&self) -> &'static str {
        match self {
            Self::Optional(None) => "an empty optional",
            Self::Optional(Some(_)) => "an optional",
            Self::Null => "null",
            _ => match self.type_name() {
                "bool" => "a bool",
                "int" => "an int",
                "uint" => "a uint",
                "double" => "a double",
                "string" => "a string",
                "bytes" => "bytes",
                "list" => "a list",
                "duration" => "a duration",
                "quantity" => "a quantity",
                "type" => "a type",
                _ => "a map",
            },
        }
    }

    /// The text of a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn is_map(&self) -> bool {
        self.type_name() == "map"
    }

    pub(super) fn is_list(&self) -> bool {
        self.type_name() == "list"
    }

    /// The member of a map by a name; `None` if it has no such member, or is no map.
    pub(super) fn member(&self, name: &str) -> Option<Self> {
        match self {
            Self::Map(map) => map.get(&Name(name)).cloned(),
            Self::Tape(value) => value.get(name).map(Self::from),
            Self::Json(value) => value.get(name).map(Self::from),
            Self::Extended(extended) => match extended.members.iter().flatten().find(|(member, _)| *member == name) {
                Some((_, value)) => Some(value.clone()),
                None => extended.base.member(name),
            },
            _ => None,
        }
    }

    /// The value of a map by any key.
    pub(super) fn entry(&self, key: &Key<'_>) -> Option<Self> {
        match (self, key) {
            (_, Key::String(name)) => self.member(name),
            // Keys of other kinds are never found in objects.
            (Self::Map(map), _) => map.iter().find(|(candidate, _)| *candidate == key).map(|(_, value)| value.clone()),
            _ => None,
        }
    }

    /// The item of a list by its place.
    pub(super) fn item(&self, place: usize) -> Option<Self> {
        match self {
            Self::List(items) => items.get(place).cloned(),
            Self::Tape(value) => value.items().nth(place).map(Self::from),
            Self::Json(value) => value.get(place).map(Self::from),
            _ => None,
        }
    }

    /// The items of a list.
    pub(super) fn items(&self) -> Option<Items<'v>> {
        match self {
            Self::List(items) => Some(Items::Shared(Arc::clone(items))),
            Self::Tape(value) if value.kind() == json::Kind::Array => {
                Some(Items::Own(value.items().map(Self::from).collect()))
            }
            Self::Json(serde_json::Value::Array(items)) => Some(Items::Own(items.iter().map(Self::from).collect())),
            _ => None,
        }
    }

    /// Whether it is null or an empty optional: a result that leaves out what it stands for.
    pub(crate) fn is_absent(&self) -> bool {
        match self {
            Self::Null | Self::Optional(None) => true,
            Self::Optional(Some(value)) => value.is_absent(),
            Self::Tape(value) => value.is_null(),
            _ => false,
        }
    }

    /// The items of a list; `None` if it is none.
    pub(crate) fn list_items(&self) -> Option<Vec<Self>> {
        self.items().map(|items| items.to_vec())
    }

    /// The entries of a map in the order of their keys; `None` if it is none.
    pub(crate) fn map_entries(&self) -> Option<Vec<(Self, Self)>> {
        let mut entries = self.entries()?;
        entries.sort_by(|(left, _), (right, _)| left.to_text().cmp(&right.to_text()));
        Some(entries.into_iter().map(|(key, value)| (key.to_value(), value)).collect())
    }

    /// The entries of a map.
    pub(super) fn entries(&self) -> Option<Vec<(Key<'v>, Self)>> {
        match self {
            Self::Map(map) => Some(map.iter().map(|(key, value)| (key.clone(), value.clone())).collect()),
            Self::Tape(value) if value.kind() == json::Kind::Object => {
                let mut entries: Map<'v> = Map::new();
                // Of two with the same key the last one counts, as everywhere in Kubernetes.
                for (key, value) in value.members() {
                    entries.insert(Key::String(Text::from(key.text())), Self::from(value));
                }
                Some(entries.into_iter().collect())
            }
            Self::Json(serde_json::Value::Object(members)) => {
                Some(members.iter().map(|(key, value)| (Key::String(Text::Borrowed(key)), Self::from(value))).collect())
            }
            Self::Extended(extended) => {
                let mut entries = extended.base.entries()?;
                let laid_over = |key: &Key<'_>| extended.members.iter().flatten().any(|(name, _)| key.is(name));
                entries.retain(|(key, _)| !laid_over(key));
                let members = extended.members.iter().flatten();
                entries.extend(members.map(|(name, value)| (Key::String(Text::Borrowed(name)), value.clone())));
                Some(entries)
            }
            _ => None,
        }
    }

    /// The same map in a form in which finding an entry does not mean to go through all.
    pub(super) fn searchable(&self) -> Self {
        match self {
            Self::Tape(_) | Self::Extended(_) if self.lookup_cost() > 0 => {
                self.entries().map_or(Self::Null, |entries| Self::map(entries.into_iter().collect()))
            }
            _ => self.clone(),
        }
    }

    /// How many items or entries there are.
    pub(super) fn count(&self) -> Option<usize> {
        match self {
            Self::List(items) => Some(items.len()),
            Self::Map(map) => Some(map.len()),
            Self::Json(serde_json::Value::Array(items)) => Some(items.len()),
            Self::Json(serde_json::Value::Object(members)) => Some(members.len()),
            Self::Tape(value) if value.kind() == json::Kind::Array => Some(value.items().count()),
            Self::Tape(_) | Self::Extended(_) => self.entries().map(|entries| entries.len()),
            _ => None,
        }
    }

    /// Whether it is null, an empty optional, or a text, list or map that has nothing in it.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Null | Self::Optional(None) => true,
            Self::Optional(Some(value)) => value.is_empty(),
            Self::String(text) => text.is_empty(),
            Self::Bytes(bytes) => bytes.is_empty(),
            Self::Tape(value) => value.items().next().is_none() && value.members().next().is_none(),
            _ => self.count() == Some(0),
        }
    }

    /// What it costs to look for something directly in it: objects and lists of a tape are gone through one by one.
    pub(super) fn lookup_cost(&self) -> usize {
        const LOOKED_AT_FOR_ONE_UNIT: usize = 16;
        match self {
            // The text is a bound of how many there are, which nobody has to count.
            Self::Tape(value) if value.raw().len() < SHORT => 0,
            Self::Tape(value) => (value.items().count() + value.members().count()) / LOOKED_AT_FOR_ONE_UNIT,
            Self::Extended(extended) => extended.base.lookup_cost(),
            Self::Optional(Some(value)) => value.lookup_cost(),
            _ => 0,
        }
    }

    /// What an optional holds, or else the value itself; `None` for an empty optional.
    pub(super) fn unwrapped(self) -> Option<Self> {
        match self {
            Self::Optional(value) => value.map(|value| (*value).clone()),
            value => Some(value),
        }
    }

    /// The value as a key of a map; `None` if it cannot be one.
    pub(super) fn to_key(&self) -> Option<Key<'v>> {
        match self {
            Self::String(text) => Some(Key::String(text.clone())),
            Self::Int(number) => Some(Key::Int(*number)),
            Self::UInt(number) => Some(i64::try_from(*number).map_or(Key::UInt(*number), Key::Int)),
            Self::Double(number) => super::operators::whole(*number).map(Key::Int),
            Self::Bool(value) => Some(Key::Bool(*value)),
            _ => None,
        }
    }
}

impl<'v> From<Cow<'v, str>> for Text<'v> {
    fn from(text: Cow<'v, str>) -> Self {
        match text {
            Cow::Borrowed(text) => Self::Borrowed(text),
            Cow::Owned(text) => Self::Shared(text.into()),
        }
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Shared(text) => text,
        }
    }
}

impl PartialEq for Text<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Text<'_> {}

impl<'v> Key<'v> {
    pub(super) fn is(&self, name: &str) -> bool {
        matches!(self, Self::String(text) if **text == *name)
    }

    pub(super) fn to_value(&self) -> Value<'v> {
        match self {
            Self::String(text) => Value::String(text.clone()),
            Self::Int(number) => Value::Int(*number),
            Self::UInt(number) => Value::UInt(*number),
            Self::Bool(value) => Value::Bool(*value),
        }
    }

    /// The key as that of a JSON object.
    pub(super) fn to_text(&self) -> Cow<'_, str> {
        match self {
            Self::String(text) => Cow::Borrowed(text),
            Self::Int(number) => Cow::Owned(number.to_string()),
            Self::UInt(number) => Cow::Owned(number.to_string()),
            Self::Bool(value) => Cow::Borrowed(if *value { "true" } else { "false" }),
        }
    }
}

impl Hash for Key<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            // As `Name` is hashed, so that a key is found by a text that nobody has to copy.
            Self::String(text) => (**text).hash(state),
            Self::Int(number) => number.hash(state),
            Self::UInt(number) => number.hash(state),
            Self::Bool(value) => value.hash(state),
        }
    }
}

impl Equivalent<Key<'_>> for Name<'_> {
    fn equivalent(&self, key: &Key<'_>) -> bool {
        key.is(self.0)
    }
}

impl<'v> Deref for Items<'v> {
    type Target = [Value<'v>];

    fn deref(&self) -> &[Value<'v>] {
        match self {
            Self::Shared(items) => items,
            Self::Own(items) => items,
        }
    }
}
