//! Builds computed values. Only this module can create them, and it charges the meter before it creates a part. It also
//! converts JSON from a tape or from `serde_json` to values. Integers that fit into `i64` become ints.

use std::borrow::Cow;
use std::fmt;
use std::mem::size_of;
use std::sync::Arc;

use super::{Extended, Key, List, Map, Mapping, Present, SharedBytes, SharedText, Text, Value};
use crate::error::EvaluationError;
use crate::meter::Meter;
use pillion_json as json;

/// Builds a list, item by item.
#[derive(Debug, Default)]
pub struct ListBuilder<'v> {
    items: Vec<Value<'v>>,
    depth: u8,
}

/// Builds a map, entry by entry.
#[derive(Debug, Default)]
pub struct MapBuilder<'v> {
    entries: Map<'v>,
    depth: u8,
}

/// Builds a string. With [`fmt::Write`], writing more bytes than were charged is a [`fmt::Error`].
#[derive(Debug)]
pub(crate) struct TextBuilder {
    text: String,
    granted: usize,
}

/// The number of steps that are charged for one entry of a map, including hashing the key.
const ENTRY: usize = 3;

/// The memory that is charged for one entry of a map, in bytes, without its key and value.
const ENTRY_BYTES: usize = 16;

impl<'v> ListBuilder<'v> {
    /// Creates an empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self { items: Vec::new(), depth: 0 }
    }

    /// Creates an empty list with memory for this number of items.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the memory.
    pub fn with_capacity(count: usize, meter: &mut Meter) -> Result<Self, EvaluationError> {
        meter.charge_items(count)?;
        Ok(Self { items: Vec::with_capacity(count), depth: 0 })
    }

    /// Adds an item.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the memory.
    pub fn push(&mut self, item: Value<'v>, meter: &mut Meter) -> Result<(), EvaluationError> {
        if self.items.len() == self.items.capacity() {
            // The vector first grows to four items, and then doubles.
            meter.charge_items(self.items.len().max(4))?;
        }
        self.depth = self.depth.max(item.depth());
        self.items.push(item);
        Ok(())
    }

    /// Returns the list as a value.
    ///
    /// # Errors
    /// Fails if the list is nested too deeply.
    pub fn finish(self, meter: &mut Meter) -> Result<Value<'v>, EvaluationError> {
        let depth = meter.charge_depth(self.depth)?;
        Ok(Value::List(Arc::new(List { items: self.items, depth })))
    }
}

impl<'v> MapBuilder<'v> {
    /// Creates an empty map.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets an entry. Returns the previous value for the key, if there was one.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the entry.
    pub fn insert(
        &mut self,
        key: Key<'v>,
        value: Value<'v>,
        meter: &mut Meter,
    ) -> Result<Option<Value<'v>>, EvaluationError> {
        self.charge(&key, &value, meter)?;
        Ok(self.entries.insert(key, value))
    }

    /// Sets an entry, unless the map already has the key.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the entry.
    pub(crate) fn insert_if_absent(
        &mut self,
        key: Key<'v>,
        value: Value<'v>,
        meter: &mut Meter,
    ) -> Result<(), EvaluationError> {
        self.charge(&key, &value, meter)?;
        self.entries.entry(key).or_insert(value);
        Ok(())
    }

    fn charge(&mut self, key: &Key<'v>, value: &Value<'v>, meter: &mut Meter) -> Result<(), EvaluationError> {
        meter.charge(ENTRY)?;
        meter.charge_bytes(key.length())?;
        if self.entries.len() == self.entries.capacity() {
            let entry = size_of::<(Key<'_>, Value<'_>)>() + ENTRY_BYTES;
            meter.take_memory(self.entries.len().max(4).saturating_mul(entry))?;
        }
        self.depth = self.depth.max(value.depth());
        Ok(())
    }

    /// Returns the map as a value.
    ///
    /// # Errors
    /// Fails if the map is nested too deeply.
    pub fn finish(self, meter: &mut Meter) -> Result<Value<'v>, EvaluationError> {
        let depth = meter.charge_depth(self.depth)?;
        Ok(Value::Map(Arc::new(Mapping { entries: self.entries, depth })))
    }
}

impl TextBuilder {
    /// Creates an empty string with memory for this number of bytes.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the memory, or if the number exceeds
    /// [`MAXIMUM_RESULT`](crate::MAXIMUM_RESULT).
    pub(crate) fn with_capacity(bytes: usize, meter: &mut Meter) -> Result<Self, EvaluationError> {
        meter.charge_text(bytes)?;
        Ok(Self { text: String::with_capacity(bytes), granted: bytes })
    }

    /// Appends a string.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the memory, or if the result would be longer than
    /// [`MAXIMUM_RESULT`](crate::MAXIMUM_RESULT).
    pub(crate) fn push(&mut self, text: &str, meter: &mut Meter) -> Result<(), EvaluationError> {
        let length = self.text.len() + text.len();
        if length > self.granted {
            // The capacity of the string doubles when it grows.
            let granted = length.max(self.granted.saturating_mul(2)).min(length.max(crate::MAXIMUM_RESULT));
            meter.charge_text(granted)?;
            self.granted = granted;
        }
        self.text.push_str(text);
        Ok(())
    }

    /// Returns the string so far.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Appends characters. Much faster than `write_char` for each of them.
    ///
    /// # Errors
    /// The string would be longer than the memory that was charged.
    pub(crate) fn extend(&mut self, letters: impl Iterator<Item = char>) -> fmt::Result {
        for letter in letters {
            if self.text.len() + letter.len_utf8() > self.granted {
                return Err(fmt::Error);
            }
            self.text.push(letter);
        }
        Ok(())
    }

    /// Returns the string so far, to change it in place.
    pub(crate) fn as_mut_str(&mut self) -> &mut str {
        &mut self.text
    }

    /// Returns the string as a value.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the shared copy.
    pub(crate) fn finish<'v>(self, meter: &mut Meter) -> Result<Value<'v>, EvaluationError> {
        meter.charge_memory(self.text.len())?;
        Ok(Value::String(Text::Shared(SharedText(self.text.into()))))
    }
}

impl fmt::Write for TextBuilder {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.text.len() + text.len() > self.granted {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

impl<'v> Value<'v> {
    /// Creates a computed string by copying.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the copy, or if the string is longer than
    /// [`MAXIMUM_RESULT`](crate::MAXIMUM_RESULT).
    pub fn owned(text: &str, meter: &mut Meter) -> Result<Self, EvaluationError> {
        Ok(Self::String(Text::owned(text, meter)?))
    }

    /// Creates computed bytes by copying.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the copy, or if there are more than
    /// [`MAXIMUM_RESULT`](crate::MAXIMUM_RESULT) bytes.
    pub fn bytes(bytes: &[u8], meter: &mut Meter) -> Result<Self, EvaluationError> {
        meter.charge_text(bytes.len())?;
        Ok(Self::Bytes(SharedBytes(Arc::from(bytes))))
    }

    /// Creates a list from items.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the value, or if the value is nested too deeply.
    pub fn list(items: impl IntoIterator<Item = Self>, meter: &mut Meter) -> Result<Self, EvaluationError> {
        let mut list = ListBuilder::new();
        for item in items {
            list.push(item, meter)?;
        }
        list.finish(meter)
    }

    /// Creates a map from entries. If a key is repeated, its last entry is used.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the value, or if the value is nested too deeply.
    pub fn map(entries: impl IntoIterator<Item = (Key<'v>, Self)>, meter: &mut Meter) -> Result<Self, EvaluationError> {
        let mut map = MapBuilder::new();
        for (key, value) in entries {
            map.insert(key, value, meter)?;
        }
        map.finish(meter)
    }

    /// Creates an optional with a value.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the value, or if the value is nested too deeply.
    pub fn some(value: Self, meter: &mut Meter) -> Result<Self, EvaluationError> {
        meter.charge_items(1)?;
        let depth = meter.charge_depth(value.depth())?;
        Ok(Self::Optional(Some(Arc::new(Present { value, depth }))))
    }

    /// Creates an optional. It is empty for `None`.
    ///
    /// # Errors
    /// Like [`Value::some`].
    pub fn optional(value: Option<Self>, meter: &mut Meter) -> Result<Self, EvaluationError> {
        value.map_or(Ok(Self::none()), |value| Self::some(value, meter))
    }

    /// Creates an object with added members. They hide members of the object with the same names.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the value, or if the value is nested too deeply.
    pub fn extended(
        base: Self,
        members: [Option<(&'static str, Self)>; 2],
        meter: &mut Meter,
    ) -> Result<Self, EvaluationError> {
        meter.charge_items(1 + members.len())?;
        let depth = members.iter().flatten().map(|(_, value)| value.depth()).max().unwrap_or(0);
        let depth = meter.charge_depth(depth.max(base.depth()))?;
        Ok(Self::Extended(Arc::new(Extended { base, members, depth })))
    }
}

impl Text<'_> {
    /// Creates a computed string by copying.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the copy, or if the string is longer than
    /// [`MAXIMUM_RESULT`](crate::MAXIMUM_RESULT).
    pub fn owned(text: &str, meter: &mut Meter) -> Result<Self, EvaluationError> {
        meter.charge_text(text.len())?;
        Ok(Self::Shared(SharedText(text.into())))
    }
}

impl<'v> Value<'v> {
    /// Converts a value in a tape. Objects, lists and strings without escapes are borrowed.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for copying a string with escapes, or for parsing a long number.
    #[inline]
    pub fn read(value: json::Value<'v>, meter: &mut Meter) -> Result<Self, EvaluationError> {
        Ok(match value.kind() {
            json::Kind::Null => Self::Null,
            json::Kind::False => Self::Bool(false),
            json::Kind::True => Self::Bool(true),
            json::Kind::String | json::Kind::EscapedString => Self::String(Text::read(value, meter)?),
            json::Kind::Number => {
                meter.charge_bytes(value.raw().len())?;
                number(value.raw())
            }
            json::Kind::Array | json::Kind::Object => Self::Tape(value),
        })
    }

    /// Converts parsed JSON to a computed value.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the value, or if the value is nested too deeply.
    pub(crate) fn from_json(value: serde_json::Value, meter: &mut Meter) -> Result<Self, EvaluationError> {
        meter.charge(1)?;
        Ok(match value {
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Bool(value) => Self::Bool(value),
            serde_json::Value::Number(value) => json_number(&value),
            serde_json::Value::String(text) => Self::owned(&text, meter)?,
            serde_json::Value::Array(items) => {
                let mut list = ListBuilder::with_capacity(items.len(), meter)?;
                for item in items {
                    list.push(Self::from_json(item, meter)?, meter)?;
                }
                list.finish(meter)?
            }
            serde_json::Value::Object(members) => {
                let mut map = MapBuilder::new();
                for (key, value) in members {
                    let key = Key::String(Text::owned(&key, meter)?);
                    map.insert(key, Self::from_json(value, meter)?, meter)?;
                }
                map.finish(meter)?
            }
        })
    }
}

impl<'v> Text<'v> {
    /// Converts a string in a tape. Other values become an empty string.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the copy of a string with escapes.
    #[inline]
    pub fn read(value: json::Value<'v>, meter: &mut Meter) -> Result<Self, EvaluationError> {
        if value.kind() == json::Kind::EscapedString {
            meter.charge_memory(2 * value.raw().len())?;
        }
        Ok(Self::of(value.as_str().unwrap_or_default()))
    }

    /// Converts a key of an object in a tape.
    ///
    /// # Errors
    /// Fails if the meter's budget is too small for the copy of a key with escapes.
    #[inline]
    pub fn read_key(key: json::Key<'v>, meter: &mut Meter) -> Result<Self, EvaluationError> {
        if key.has_escapes() {
            meter.charge_memory(2 * key.escaped().len())?;
        }
        Ok(Self::of(key.text()))
    }

    #[inline]
    fn of(text: Cow<'v, str>) -> Self {
        match text {
            Cow::Borrowed(text) => Self::Borrowed(text),
            Cow::Owned(text) => Self::Shared(SharedText(text.into())),
        }
    }
}

impl<'v> From<&'v serde_json::Value> for Value<'v> {
    #[inline]
    fn from(value: &'v serde_json::Value) -> Self {
        match value {
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Bool(value) => Self::Bool(*value),
            serde_json::Value::Number(value) => json_number(value),
            serde_json::Value::String(text) => Self::text(text),
            serde_json::Value::Array(_) | serde_json::Value::Object(_) => Self::Json(value),
        }
    }
}

/// Converts a JSON number. As in Kubernetes, an integer that fits into `i64` becomes an int, and any other number a
/// double.
fn number<'v>(text: &str) -> Value<'v> {
    match text.parse() {
        Ok(number) => Value::Int(number),
        Err(_) => text.parse().map_or(Value::Null, Value::Double),
    }
}

fn json_number<'v>(number: &serde_json::Number) -> Value<'v> {
    match number.as_i64() {
        Some(number) => Value::Int(number),
        None => number.as_f64().map_or(Value::Null, Value::Double),
    }
}
