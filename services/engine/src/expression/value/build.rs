//! Builds computed values. Only this module can create them, and it charges the meter for every part first.

use std::fmt;
use std::mem::size_of;
use std::sync::Arc;

use super::{Extended, Key, List, Map, Mapping, Present, SharedBytes, SharedText, Text, Value};
use crate::expression::error::EvaluationError;
use crate::expression::meter::Meter;

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

/// Builds a text. What is written beyond what the meter granted is an error of [`fmt::Write`].
#[derive(Debug)]
pub struct TextBuilder {
    text: String,
    granted: usize,
}

/// Steps for one entry of a map: its key is hashed.
const ENTRY: usize = 3;

/// Bytes for one entry of a map, besides its key and value: the hash, and its place in the table.
const ENTRY_BYTES: usize = 16;

impl<'v> ListBuilder<'v> {
    /// An empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self { items: Vec::new(), depth: 0 }
    }

    /// An empty list with memory for this number of items.
    ///
    /// # Errors
    /// The meter does not grant them.
    pub fn with_capacity(count: usize, meter: &mut Meter) -> Result<Self, EvaluationError> {
        meter.charge_items(count)?;
        Ok(Self { items: Vec::with_capacity(count), depth: 0 })
    }

    /// Adds an item.
    ///
    /// # Errors
    /// The meter does not grant it, or the item nests too deep.
    pub fn push(&mut self, item: Value<'v>, meter: &mut Meter) -> Result<(), EvaluationError> {
        if self.items.len() == self.items.capacity() {
            // As the vector grows: to four, and then to twice as many.
            meter.charge_items(self.items.len().max(4))?;
        }
        self.depth = self.depth.max(item.depth());
        self.items.push(item);
        Ok(())
    }

    /// The list.
    ///
    /// # Errors
    /// It nests too deep.
    pub fn finish(self, meter: &mut Meter) -> Result<Value<'v>, EvaluationError> {
        let depth = meter.charge_depth(self.depth)?;
        Ok(Value::List(Arc::new(List { items: self.items, depth })))
    }
}

impl<'v> MapBuilder<'v> {
    /// An empty map.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets an entry; returns the value that it had.
    ///
    /// # Errors
    /// The meter does not grant it.
    pub fn insert(
        &mut self,
        key: Key<'v>,
        value: Value<'v>,
        meter: &mut Meter,
    ) -> Result<Option<Value<'v>>, EvaluationError> {
        self.charge(&key, &value, meter)?;
        Ok(self.entries.insert(key, value))
    }

    /// Sets an entry, unless the map has one with this key.
    ///
    /// # Errors
    /// The meter does not grant it.
    pub fn insert_if_absent(
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

    /// The map.
    ///
    /// # Errors
    /// It nests too deep.
    pub fn finish(self, meter: &mut Meter) -> Result<Value<'v>, EvaluationError> {
        let depth = meter.charge_depth(self.depth)?;
        Ok(Value::Map(Arc::new(Mapping { entries: self.entries, depth })))
    }
}

impl TextBuilder {
    /// An empty text that may become this number of bytes long without asking again.
    ///
    /// # Errors
    /// The meter does not grant them.
    pub fn with_capacity(bytes: usize, meter: &mut Meter) -> Result<Self, EvaluationError> {
        meter.charge_text(bytes)?;
        Ok(Self { text: String::with_capacity(bytes), granted: bytes })
    }

    /// Adds a text, which the meter has to grant.
    ///
    /// # Errors
    /// It does not.
    pub fn push(&mut self, text: &str, meter: &mut Meter) -> Result<(), EvaluationError> {
        let length = self.text.len() + text.len();
        if length > self.granted {
            // As the string grows, to twice as much.
            let granted = length.max(self.granted.saturating_mul(2)).min(length.max(crate::expression::MAXIMUM_RESULT));
            meter.charge_text(granted)?;
            self.granted = granted;
        }
        self.text.push_str(text);
        Ok(())
    }

    /// The text so far.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The text as a value.
    ///
    /// # Errors
    /// The meter does not grant the copy that is shared.
    pub fn finish<'v>(self, meter: &mut Meter) -> Result<Value<'v>, EvaluationError> {
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
    /// Text that was computed; it is copied.
    ///
    /// # Errors
    /// The meter does not grant it.
    pub fn owned(text: &str, meter: &mut Meter) -> Result<Self, EvaluationError> {
        Ok(Self::String(Text::owned(text, meter)?))
    }

    /// Bytes that were computed.
    ///
    /// # Errors
    /// The meter does not grant them.
    pub fn bytes(bytes: &[u8], meter: &mut Meter) -> Result<Self, EvaluationError> {
        meter.charge_text(bytes.len())?;
        Ok(Self::Bytes(SharedBytes(Arc::from(bytes))))
    }

    /// A list.
    ///
    /// # Errors
    /// The meter does not grant it, or it nests too deep.
    pub fn list(items: impl IntoIterator<Item = Self>, meter: &mut Meter) -> Result<Self, EvaluationError> {
        let mut list = ListBuilder::new();
        for item in items {
            list.push(item, meter)?;
        }
        list.finish(meter)
    }

    /// A map.
    ///
    /// # Errors
    /// The meter does not grant it, or it nests too deep.
    pub fn map(entries: impl IntoIterator<Item = (Key<'v>, Self)>, meter: &mut Meter) -> Result<Self, EvaluationError> {
        let mut map = MapBuilder::new();
        for (key, value) in entries {
            map.insert(key, value, meter)?;
        }
        map.finish(meter)
    }

    /// An optional that holds a value.
    ///
    /// # Errors
    /// The meter does not grant it, or it nests too deep.
    pub fn some(value: Self, meter: &mut Meter) -> Result<Self, EvaluationError> {
        meter.charge_items(1)?;
        let depth = meter.charge_depth(value.depth())?;
        Ok(Self::Optional(Some(Arc::new(Present { value, depth }))))
    }

    /// An optional: an empty one for `None`.
    ///
    /// # Errors
    /// As [`Value::some`].
    pub fn optional(value: Option<Self>, meter: &mut Meter) -> Result<Self, EvaluationError> {
        value.map_or(Ok(Self::none()), |value| Self::some(value, meter))
    }

    /// An object with members laid over it; a member of the object that has the same name is hidden.
    ///
    /// # Errors
    /// The meter does not grant it, or it nests too deep.
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
    /// Text that was computed; it is copied.
    ///
    /// # Errors
    /// The meter does not grant it.
    pub fn owned(text: &str, meter: &mut Meter) -> Result<Self, EvaluationError> {
        meter.charge_text(text.len())?;
        Ok(Self::Shared(SharedText(text.into())))
    }
}
