//! Compares items of lists without keys by their value, to recognize what an earlier pass of the same profile left.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::expression::Meter;
use crate::json::{Document, Kind, SlotId, Value, write_string};

use super::state::{Merge, MergeError, MergeMode, OriginalValue, Part};

/// The charge for each byte of an item that is searched or stored, in bytes.
const ITEM_BYTE_COST: usize = 4;

/// A set of items by value.
#[derive(Default)]
pub(super) struct Items<'a>(HashSet<Cow<'a, str>>);

/// The part of a list that an earlier pass left.
pub(super) enum Settled<'a> {
    /// All items: the list is part of an addition of this profile.
    All,
    /// These items.
    These(Items<'a>),
}

impl<'a> Items<'a> {
    pub(super) fn has(&self, item: Value<'a>) -> bool {
        self.0.contains(&normal(item))
    }

    /// Adds an item. Returns false if the set has it already.
    pub(super) fn add(&mut self, item: Value<'a>) -> bool {
        self.0.insert(normal(item))
    }
}

impl<'a> Merge<'_, 'a> {
    /// Recomputes a list without keys as an earlier pass of this profile left it: from the original in the record by
    /// the same work, or from this part if there was none.
    pub(super) fn left_by_us(
        &mut self,
        part: Option<Part<'a>>,
        work: impl FnOnce(&mut Merge<'_, 'a>) -> Result<(), MergeError>,
    ) -> Result<Option<Settled<'a>>, MergeError> {
        // It uses a meter of its own. Otherwise a profile that could be applied once might exceed its budget in a
        // second pass.
        std::mem::swap(&mut self.meter, &mut self.again);
        let left = self.find_left(part, work);
        std::mem::swap(&mut self.meter, &mut self.again);
        left
    }

    fn find_left(
        &mut self,
        part: Option<Part<'a>>,
        work: impl FnOnce(&mut Merge<'_, 'a>) -> Result<(), MergeError>,
    ) -> Result<Option<Settled<'a>>, MergeError> {
        let left = match self.original() {
            OriginalValue::Was(list) if list.kind() == Kind::Array && (self.is_known() || self.is_below_ours()) => {
                let mode = MergeMode { settled: false, within_added: true, ..self.mode };
                let left = self.on_copy(list, |merge| {
                    merge.mode = mode;
                    merge.document.open(Document::ROOT)?;
                    work(merge)
                });
                Some(left?)
            }
            OriginalValue::Nothing if self.is_ours() => match part {
                Some(part) => self.value_of(part)?,
                None => None,
            },
            OriginalValue::Nothing if self.is_below_ours() => return Ok(Some(Settled::All)),
            OriginalValue::Was(_) | OriginalValue::Nothing | OriginalValue::Unchanged => None,
        };
        let Some(left) = left else { return Ok(None) };
        let mut items = Items::default();
        for item in left.items() {
            self.charge_item(item)?;
            items.add(item);
        }
        Ok(Some(Settled::These(items)))
    }

    /// Whether an earlier pass left an item.
    pub(super) fn is_left(&mut self, settled: Option<&Settled<'a>>, item: Value<'a>) -> Result<bool, MergeError> {
        match settled {
            None => Ok(false),
            Some(Settled::All) => Ok(true),
            Some(Settled::These(items)) => {
                self.charge_item(item)?;
                Ok(items.has(item))
            }
        }
    }

    /// The current items of a list.
    pub(super) fn items_of(&mut self, list: SlotId) -> Result<Items<'a>, MergeError> {
        let slots: Vec<_> = self.document.children(list).collect();
        self.charge_looks(slots.len())?;
        let mut items = Items::default();
        for slot in slots {
            let item = self.current(slot)?;
            self.charge_item(item)?;
            items.add(item);
        }
        Ok(items)
    }

    /// Charges searching or storing an item.
    pub(super) fn charge_item(&mut self, item: Value<'a>) -> Result<(), MergeError> {
        self.charge(Meter::BYTES + item.raw().len().saturating_mul(ITEM_BYTE_COST))
    }
}

/// The canonical form of a value: equal values have the same form.
fn normal(value: Value<'_>) -> Cow<'_, str> {
    match value.kind() {
        Kind::EscapedString | Kind::Object | Kind::Array => {
            let mut out = String::with_capacity(value.raw().len());
            write_normal(value, &mut out);
            Cow::Owned(out)
        }
        _ => Cow::Borrowed(value.raw()),
    }
}

fn write_normal(value: Value<'_>, out: &mut String) {
    match value.kind() {
        Kind::EscapedString => write_string(out, &value.as_str().unwrap_or_default()),
        Kind::Object => {
            let mut members: Vec<_> = value.members().map(|(key, value)| (key.text(), value)).collect();
            members.sort_by(|(key, _), (other, _)| key.cmp(other));
            out.push('{');
            for (key, value) in members {
                write_string(out, &key);
                out.push(':');
                write_normal(value, out);
                out.push(',');
            }
            out.push('}');
        }
        Kind::Array => {
            out.push('[');
            for item in value.items() {
                write_normal(item, out);
                out.push(',');
            }
            out.push(']');
        }
        _ => out.push_str(value.raw()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::OwnedTape;

    #[test]
    fn what_means_the_same_has_one_form() {
        let texts = [
            r#"{"a":1,"b":[{"x":"y","z":null}]}"#,
            r#"{ "b" : [ {"z":null,"\u0078":"\u0079"} ], "a" : 1 }"#,
            r#"{"a":1,"b":[{"x":"y"}]}"#,
            r#"{"a":1.0,"b":[{"x":"y","z":null}]}"#,
            r#""a\u007f/\"""#,
            "\"a\u{7f}\\/\\u0022\"",
            "\"a\u{7f}\"",
            r#""a\u007f""#,
            r#""1""#,
            "1",
            "[1]",
            "[[1]]",
            r#"["1"]"#,
        ];
        let tapes = texts.map(|text| OwnedTape::parse(text).unwrap());
        for left in &tapes {
            for right in &tapes {
                let (left, right) = (left.root(), right.root());
                assert_eq!(normal(left) == normal(right), left.means(right), "{} {}", left.raw(), right.raw());
            }
        }
    }
}
