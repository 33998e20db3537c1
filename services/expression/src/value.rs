//! The values of expressions.
//!
//! Values borrow their data: an object of a request remains a reference into its tape, and only the parts that are read
//! become separate values. Cloning a value is cheap.
//!
//! Computed lists, maps, strings and optionals have private fields. Only the builders in [`build`] create them, and
//! these charge the [`Meter`] for every part. Each value records its nesting depth, so that recursion never exhausts
//! the stack.

mod build;

use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use indexmap::{Equivalent, IndexMap};

pub(crate) use self::build::TextBuilder;
pub use self::build::{ListBuilder, MapBuilder};
use super::error::EvaluationError;
use super::meter::Meter;
use super::quantity::Quantity;
use pillion_json as json;

/// A value in an expression. `'v` is the lifetime of the data from which it borrows: the request, the snapshot and the
/// compiled expression.
#[derive(Clone, Debug)]
pub enum Value<'v> {
    /// `null`.
    Null,
    /// `true`, `false`.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    UInt(u64),
    /// A floating-point number.
    Double(f64),
    /// A string.
    String(Text<'v>),
    /// Bytes.
    Bytes(SharedBytes),
    /// A computed list.
    List(Arc<List<'v>>),
    /// A computed map, in insertion order.
    Map(Arc<Mapping<'v>>),
    /// An object or list in a tape. Scalars in tapes become other variants.
    Tape(json::Value<'v>),
    /// An object or list from `serde_json`. Scalars from `serde_json` become other variants.
    Json(&'v serde_json::Value),
    /// An object with added or overridden members.
    Extended(Arc<Extended<'v>>),
    /// A duration in nanoseconds.
    Duration(i64),
    /// A Kubernetes quantity.
    Quantity(Quantity),
    /// An optional value, present or absent.
    Optional(Option<Arc<Present<'v>>>),
    /// The type of a value, by its name.
    Type(&'static str),
}

/// A string that is borrowed or shared.
#[derive(Clone, Debug)]
pub enum Text<'v> {
    /// A borrowed string.
    Borrowed(&'v str),
    /// A computed string.
    Shared(SharedText),
}

/// A computed string.
#[derive(Clone, Debug)]
pub struct SharedText(Arc<str>);

/// Computed bytes.
#[derive(Clone, Debug)]
pub struct SharedBytes(Arc<[u8]>);

/// A computed list.
#[derive(Debug)]
pub struct List<'v> {
    items: Vec<Value<'v>>,
    depth: u8,
}

/// A computed map.
#[derive(Debug)]
pub struct Mapping<'v> {
    entries: Map<'v>,
    depth: u8,
}

/// The value of a present optional.
#[derive(Debug)]
pub struct Present<'v> {
    value: Value<'v>,
    depth: u8,
}

/// The entries of a map in insertion order.
type Map<'v> = IndexMap<Key<'v>, Value<'v>>;

/// The key of a map. Equal integers are the same key, regardless of their type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key<'v> {
    /// A string.
    String(Text<'v>),
    /// An integer that fits into `i64`.
    Int(i64),
    /// An integer that fits only into `u64`.
    UInt(u64),
    /// `true`, `false`.
    Bool(bool),
}

/// An object with added or overridden members, such as a container of the pod with the added member `type`.
#[derive(Clone, Debug)]
pub struct Extended<'v> {
    base: Value<'v>,
    members: [Option<(&'static str, Value<'v>)>; 2],
    depth: u8,
}

/// The items of a list.
pub enum Items<'v> {
    /// The items of a computed list.
    Shared(Arc<List<'v>>),
    /// Items that were converted from JSON.
    Own(Vec<Value<'v>>),
}

/// The minimum length, in bytes, of the JSON text of an object or list whose lookups are charged by the number of
/// entries. Lookups in shorter texts are charged by the length of the text.
const SHORT: usize = 2048;

/// The number of items or members in a tape that are visited in one step. A lookup in a large object visits them twice:
/// to count them, and to find the member.
const VISITED_IN_A_STEP: usize = 4;

/// A string for looking up a [`Key::String`] in a map without copying.
#[derive(Hash)]
struct Name<'k>(&'k str);

/// Returns the integer that equals a double. `None` if it has a fraction or is too large to be exact.
#[expect(
    clippy::cast_possible_truncation,
    clippy::float_cmp,
    reason = "the range is checked first, and the comparison must be exact"
)]
pub(crate) fn whole(number: f64) -> Option<i64> {
    (number.abs() < 9.0e18 && number.trunc() == number).then_some(number as i64)
}

impl<'v> Value<'v> {
    /// Creates a borrowed string.
    #[must_use]
    #[inline]
    pub fn text(text: &'v str) -> Self {
        Self::String(Text::Borrowed(text))
    }

    /// Creates an empty optional.
    #[must_use]
    #[inline]
    pub const fn none() -> Self {
        Self::Optional(None)
    }

    /// Returns the nesting depth. Values from JSON are treated as flat, because the parsers limit their depth.
    fn depth(&self) -> u8 {
        match self {
            Self::List(list) => list.depth,
            Self::Map(map) => map.depth,
            Self::Optional(Some(present)) => present.depth,
            Self::Extended(extended) => extended.depth,
            _ => 0,
        }
    }

    /// Returns the name of the type, as `type(x)` does.
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

    /// Returns a description of the type, for messages.
    pub(crate) fn describe(&self) -> &'static str {
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

    /// Returns the content of a string. `None` for other types.
    #[must_use]
    #[inline]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the length of a string or of bytes. 0 for other types.
    pub(crate) fn length(&self) -> usize {
        match self {
            Self::String(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            _ => 0,
        }
    }

    pub(crate) fn is_map(&self) -> bool {
        self.type_name() == "map"
    }

    pub(crate) fn is_list(&self) -> bool {
        self.type_name() == "list"
    }

    /// Returns the member of a map with this name. `None` if it is absent or the value is not a map.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the search.
    pub(crate) fn member(&self, name: &str, meter: &mut Meter) -> Result<Option<Self>, EvaluationError> {
        match self {
            Self::Map(map) => {
                meter.charge_bytes(name.len())?;
                Ok(map.entries.get(&Name(name)).cloned())
            }
            Self::Tape(value) => {
                meter.charge(self.lookup_cost())?;
                value.get(name).map(|value| Self::read(value, meter)).transpose()
            }
            Self::Json(value) => {
                meter.charge_bytes(name.len())?;
                Ok(value.get(name).map(Self::from))
            }
            Self::Extended(extended) => match extended.members.iter().flatten().find(|(member, _)| *member == name) {
                Some((_, value)) => Ok(Some(value.clone())),
                None => extended.base.member(name, meter),
            },
            _ => Ok(None),
        }
    }

    /// Returns the value for a key in a map. `None` if it is absent or the value is not a map.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the search.
    pub(crate) fn entry(&self, key: &Key<'_>, meter: &mut Meter) -> Result<Option<Self>, EvaluationError> {
        match (self, key) {
            (_, Key::String(name)) => self.member(name, meter),
            // Keys of other types never exist in JSON objects.
            (Self::Map(map), _) => {
                let found = index_of_key(&map.entries, key).and_then(|index| map.entries.get_index(index));
                Ok(found.map(|(_, value)| value.clone()))
            }
            _ => Ok(None),
        }
    }

    /// Returns the item of a list at an index. `None` if it is absent or the value is not a list.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the search.
    pub(crate) fn item(&self, index: usize, meter: &mut Meter) -> Result<Option<Self>, EvaluationError> {
        match self {
            Self::List(list) => Ok(list.items.get(index).cloned()),
            Self::Tape(value) => {
                meter.charge(self.lookup_cost())?;
                value.items().nth(index).map(|value| Self::read(value, meter)).transpose()
            }
            Self::Json(value) => Ok(value.get(index).map(Self::from)),
            _ => Ok(None),
        }
    }

    /// Returns the items of a list. `None` if the value is not a list.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the items.
    pub fn items(&self, meter: &mut Meter) -> Result<Option<Items<'v>>, EvaluationError> {
        let mut own = Vec::new();
        match self {
            Self::List(list) => {
                meter.charge(list.items.len())?;
                return Ok(Some(Items::Shared(Arc::clone(list))));
            }
            Self::Tape(value) if value.kind() == json::Kind::Array => {
                for item in value.items() {
                    meter.charge_items(1)?;
                    own.push(Self::read(item, meter)?);
                }
            }
            Self::Json(serde_json::Value::Array(items)) => {
                meter.charge_items(items.len())?;
                own.extend(items.iter().map(Self::from));
            }
            _ => return Ok(None),
        }
        Ok(Some(Items::Own(own)))
    }

    /// Whether the value is null or an empty optional, so that its field or element is left out.
    #[inline]
    #[must_use]
    pub fn is_absent(&self) -> bool {
        match self {
            Self::Null | Self::Optional(None) => true,
            Self::Optional(Some(present)) => present.value.is_absent(),
            Self::Tape(value) => value.is_null(),
            _ => false,
        }
    }

    /// Returns the entries of a map, sorted by key. `None` if the value is not a map.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the entries.
    pub fn sorted_entries(&self, meter: &mut Meter) -> Result<Option<Vec<(Self, Self)>>, EvaluationError> {
        let Some(mut entries) = self.entries(meter)? else { return Ok(None) };
        let longest = entries.iter().map(|(key, _)| key.length()).max().unwrap_or(0);
        meter.charge_sort(entries.len(), longest)?;
        entries.sort_by(|(left, _), (right, _)| left.to_text().cmp(&right.to_text()));
        Ok(Some(entries.into_iter().map(|(key, value)| (key.to_value(), value)).collect()))
    }

    /// Returns the entries of a map. `None` if the value is not a map.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the entries.
    pub(crate) fn entries(&self, meter: &mut Meter) -> Result<Option<Vec<(Key<'v>, Self)>>, EvaluationError> {
        let grant = |count: usize, meter: &mut Meter| meter.charge_items(count.saturating_mul(2));
        match self {
            Self::Map(map) => {
                grant(map.entries.len(), meter)?;
                Ok(Some(map.entries.iter().map(|(key, value)| (key.clone(), value.clone())).collect()))
            }
            Self::Tape(value) if value.kind() == json::Kind::Object => {
                let mut entries: Map<'v> = Map::new();
                // If a key is repeated, its last member is used, as everywhere in Kubernetes.
                for (key, value) in value.members() {
                    meter.charge(1)?;
                    grant(1, meter)?;
                    let key = Key::String(Text::read_key(key, meter)?);
                    entries.insert(key, Self::read(value, meter)?);
                }
                Ok(Some(entries.into_iter().collect()))
            }
            Self::Json(serde_json::Value::Object(members)) => {
                grant(members.len(), meter)?;
                let entry = |(key, value): (&'v String, &'v serde_json::Value)| {
                    (Key::String(Text::Borrowed(key)), Self::from(value))
                };
                Ok(Some(members.iter().map(entry).collect()))
            }
            Self::Extended(extended) => {
                let Some(mut entries) = extended.base.entries(meter)? else { return Ok(None) };
                let is_overridden = |key: &Key<'_>| extended.members.iter().flatten().any(|(name, _)| key.is(name));
                entries.retain(|(key, _)| !is_overridden(key));
                let members = extended.members.iter().flatten();
                entries.extend(members.map(|(name, value)| (Key::String(Text::Borrowed(name)), value.clone())));
                Ok(Some(entries))
            }
            _ => Ok(None),
        }
    }

    /// Returns the same map in a form with fast lookups: converts it to a computed map if each lookup would take more
    /// than one step.
    pub(crate) fn searchable(&self, meter: &mut Meter) -> Result<Self, EvaluationError> {
        match self {
            Self::Tape(_) | Self::Extended(_) if self.lookup_cost() > 1 => match self.entries(meter)? {
                Some(entries) => Self::map(entries, meter),
                None => Ok(Self::Null),
            },
            _ => Ok(self.clone()),
        }
    }

    /// Returns the number of items or entries. `None` for other types.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the counting.
    pub(crate) fn count(&self, meter: &mut Meter) -> Result<Option<usize>, EvaluationError> {
        Ok(match self {
            Self::List(list) => Some(list.items.len()),
            Self::Map(map) => Some(map.entries.len()),
            Self::Json(serde_json::Value::Array(items)) => Some(items.len()),
            Self::Json(serde_json::Value::Object(members)) => Some(members.len()),
            Self::Tape(value) if value.kind() == json::Kind::Array => {
                let count = value.items().count();
                meter.charge(count / VISITED_IN_A_STEP)?;
                Some(count)
            }
            Self::Tape(_) | Self::Extended(_) => self.entries(meter)?.map(|entries| entries.len()),
            _ => None,
        })
    }

    /// Whether the value is null, an empty optional, or an empty string, bytes, list or map.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Null | Self::Optional(None) => true,
            Self::Optional(Some(present)) => present.value.is_empty(),
            Self::String(text) => text.is_empty(),
            Self::Bytes(bytes) => bytes.is_empty(),
            Self::List(list) => list.items.is_empty(),
            Self::Map(map) => map.entries.is_empty(),
            Self::Tape(value) => value.items().next().is_none() && value.members().next().is_none(),
            Self::Json(serde_json::Value::Array(items)) => items.is_empty(),
            Self::Json(serde_json::Value::Object(members)) => members.is_empty(),
            // An extended object always has members. Numbers and bools are never empty.
            _ => false,
        }
    }

    /// Returns the number of steps for looking up an entry. Objects and lists in a tape are searched linearly.
    pub(crate) fn lookup_cost(&self) -> usize {
        match self {
            // The length of the JSON text limits the number of entries, so they need not be counted.
            Self::Tape(value) if value.raw().len() < SHORT => value.raw().len() / 128,
            Self::Tape(value) => (value.items().count() + value.members().count()) / VISITED_IN_A_STEP,
            Self::Extended(extended) => extended.base.lookup_cost(),
            _ => 0,
        }
    }

    /// Returns the value in an optional, or the value itself if it is not an optional. `None` for an empty optional.
    pub(crate) fn unwrapped(self) -> Option<Self> {
        match self {
            Self::Optional(present) => present.map(|present| present.value.clone()),
            value => Some(value),
        }
    }

    /// Converts the value to a map key. `None` if it cannot be a key.
    pub(crate) fn to_key(&self) -> Option<Key<'v>> {
        match self {
            Self::String(text) => Some(Key::String(text.clone())),
            Self::Int(number) => Some(Key::Int(*number)),
            Self::UInt(number) => Some(i64::try_from(*number).map_or(Key::UInt(*number), Key::Int)),
            Self::Double(number) => whole(*number).map(Key::Int),
            Self::Bool(value) => Some(Key::Bool(*value)),
            _ => None,
        }
    }
}

impl Meter {
    /// Charges one step and the memory for each of `count` values.
    pub(crate) fn charge_items(&mut self, count: usize) -> Result<(), EvaluationError> {
        self.charge(count)?;
        self.take_memory(count.saturating_mul(size_of::<Value<'_>>()))
    }
}

impl<'v> Present<'v> {
    /// Returns the value of the optional.
    #[must_use]
    pub const fn value(&self) -> &Value<'v> {
        &self.value
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Returns the index of a key among the entries of a map.
fn index_of_key<'s>(map: &Map<'s>, key: &Key<'s>) -> Option<usize> {
    map.get_index_of(key)
}

impl Deref for Text<'_> {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Shared(text) => &text.0,
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
    pub(crate) fn is(&self, name: &str) -> bool {
        matches!(self, Self::String(text) if **text == *name)
    }

    pub(crate) fn to_value(&self) -> Value<'v> {
        match self {
            Self::String(text) => Value::String(text.clone()),
            Self::Int(number) => Value::Int(*number),
            Self::UInt(number) => Value::UInt(*number),
            Self::Bool(value) => Value::Bool(*value),
        }
    }

    /// Returns the length of a string key, in bytes. 0 for other keys.
    fn length(&self) -> usize {
        match self {
            Self::String(text) => text.len(),
            _ => 0,
        }
    }

    /// Converts the key to a key of a JSON object.
    pub(crate) fn to_text(&self) -> Cow<'_, str> {
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
            // The hash must equal that of `Name`, so that a lookup by string needs no copy.
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

    #[inline]
    fn deref(&self) -> &[Value<'v>] {
        match self {
            Self::Shared(list) => &list.items,
            Self::Own(items) => items,
        }
    }
}
