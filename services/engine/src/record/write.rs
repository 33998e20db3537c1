//! Writes the record of a pass (one call of the webhook for an object), including the entries of earlier passes.

use crate::json::{OwnedTape, Value, is_plain, write_escaped, write_string};

use super::{EXTENDS, MAX_MOVE_BYTES, MAX_RECORD_BYTES, Move, Record, VERSION};

/// Writes the record of this pass, one profile after the other. It directly writes the JSON string for the annotation's
/// value, so that nothing is escaped twice.
#[derive(Debug)]
pub(crate) struct RecordWriter {
    /// The JSON string, without [`Self::CLOSE`].
    out: String,
    /// The number of bytes in `out` that JSON escapes add.
    escapes: usize,
    /// Whether any profile has an entry.
    has_entries: bool,
    /// Whether the record contains entries of profiles that this pass does not apply.
    has_kept: bool,
    /// Whether the current entry contains an addition.
    has_elements: bool,
    /// The name of the parent, if the current profile is a namespaced profile that only extends a cluster profile.
    extends: Option<Box<str>>,
    /// The replacements of the current profile, as lists of a pointer, the original and, for a removed element, the key
    /// of the preceding element, or an empty string if it was the first. `replaced_escapes` is the number of bytes in
    /// `replaced` that escapes add.
    replaced: String,
    replaced_escapes: usize,
    /// The number of replacements of the current profile.
    replaced_places: usize,
    /// The moves of the current profile. `moves_escapes` is the number of bytes in `moves` that escapes add.
    moves: String,
    moves_escapes: usize,
    /// The size of all moves in `out`, in bytes, without escapes.
    move_bytes: usize,
}

/// A position in the record to which the writer can return.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    length: usize,
    escapes: usize,
    move_bytes: usize,
    has_entries: bool,
}

impl RecordWriter {
    /// The start of the record: the text before the version, the version, and the text after it.
    const OPEN: [&str; 3] = ["\"{\\\"version\\\":", VERSION, ",\\\"profiles\\\":["];
    /// The end of the record.
    const CLOSE: &str = "]}\"";
    /// The number of bytes for escapes in the opening text, including the first quote.
    const OPEN_ESCAPES: usize = 5;
    /// The text before the moves of an entry.
    const MOVES: &str = "],\\\"order\\\":[";
    /// The number of bytes before and after the moves of an entry, without escapes.
    const MOVES_AROUND: usize = 11;

    /// Returns an empty record, as a JSON string.
    pub(crate) fn empty() -> String {
        Self::OPEN.concat() + Self::CLOSE
    }

    pub(crate) fn new() -> Self {
        let mut out = String::with_capacity(2048);
        out.extend(Self::OPEN);
        Self {
            out,
            escapes: Self::OPEN_ESCAPES,
            has_entries: false,
            has_kept: false,
            has_elements: false,
            extends: None,
            replaced: String::new(),
            replaced_escapes: 0,
            replaced_places: 0,
            moves: String::new(),
            moves_escapes: 0,
            move_bytes: 0,
        }
    }

    /// Begins the entry of a profile with its changes from an earlier pass. Returns a mark at the start of the entry.
    pub(crate) fn begin(&mut self, profile: &str, revision: &str, earlier: Option<&Record>) -> Mark {
        let mark = self.mark();
        self.separate();
        self.out.push_str("{\\\"profile\\\":");
        self.escapes += 2 + push_text(&mut self.out, profile);
        self.out.push_str(",\\\"revision\\\":");
        self.escapes += 2 + push_text(&mut self.out, revision);
        self.out.push_str(",\\\"added\\\":[");
        self.escapes += 2;
        self.has_elements = false;
        self.extends = None;
        self.forget_replaced();
        let entry = earlier.and_then(|record| record.entry(profile));
        for pointer in entry.into_iter().flat_map(Record::added) {
            self.add(&pointer);
        }
        for (pointer, original, behind) in entry.into_iter().flat_map(Record::replacements) {
            self.replace(&pointer, original.raw(), behind.as_deref());
        }
        for (at, moved) in entry.into_iter().flat_map(Record::moves) {
            self.push_move(&moved, at);
        }
        mark
    }

    /// Marks the current profile as one that only extends a cluster profile. An entry from an earlier pass without this
    /// mark does not get it, because it may contain the profile's own changes.
    pub(crate) fn extends(&mut self, profile: &str, parent: &str, earlier: Option<&Record>) {
        let entry = earlier.and_then(|record| record.entry(profile));
        self.extends = entry.as_ref().is_none_or(Record::is_of_platform).then(|| parent.into());
    }

    /// Returns the size of the record so far as a JSON string, in bytes. The replacements and moves of the current
    /// entry are not included.
    pub(crate) const fn len(&self) -> usize {
        self.out.len() + Self::CLOSE.len()
    }

    /// Records an addition in the current entry.
    pub(crate) fn add(&mut self, pointer: &str) {
        if self.has_elements {
            self.out.push(',');
        }
        self.has_elements = true;
        self.escapes += push_text(&mut self.out, pointer);
    }

    /// Records a replaced value and its original as JSON. For a removed element, `behind` is the key of the preceding
    /// element.
    pub(crate) fn replace(&mut self, pointer: &str, original: &str, behind: Option<&str>) {
        self.replaced.reserve(pointer.len() + original.len() + 32);
        self.replaced.push_str(if self.replaced.is_empty() { "[" } else { ",[" });
        self.replaced_escapes += push_text(&mut self.replaced, pointer);
        self.replaced.push(',');
        self.replaced_escapes += push_json(&mut self.replaced, original);
        if let Some(behind) = behind {
            self.replaced.push(',');
            self.replaced_escapes += push_text(&mut self.replaced, behind);
        }
        self.replaced.push(']');
        self.replaced_places += 1;
    }

    /// Records the current position of an element that is about to be moved within its list.
    pub(crate) fn moves(&mut self, moved: &Move<'_>) {
        self.push_move(moved, self.replaced_places);
    }

    /// Whether the record may have room for another move. If it has none, the caller does not compute the move.
    pub(crate) fn has_room_for_moves(&self) -> bool {
        /// The size of the smallest move.
        const LEAST: usize = 16;
        self.move_bytes + Self::MOVES_AROUND + self.moves.len() + LEAST <= MAX_MOVE_BYTES + self.moves_escapes
    }

    /// Records a move that was made after `at` replacements, if there is room for it.
    fn push_move(&mut self, Move { pointer, behind, same }: &Move<'_>, at: usize) {
        let (length, escapes) = (self.moves.len(), self.moves_escapes);
        self.moves.push_str(if length == 0 { "[" } else { ",[" });
        self.moves_escapes += push_text(&mut self.moves, pointer);
        self.moves.push(',');
        self.moves_escapes += push_text(&mut self.moves, behind);
        self.moves.push(',');
        self.moves.push_str(&at.to_string());
        if *same > 0 {
            self.moves.push(',');
            self.moves.push_str(&same.to_string());
        }
        self.moves.push(']');
        if self.move_bytes + Self::MOVES_AROUND + self.moves.len() > MAX_MOVE_BYTES + self.moves_escapes {
            self.moves.truncate(length);
            self.moves_escapes = escapes;
        }
    }

    /// Whether the record exceeds its maximum size.
    pub(crate) fn is_full(&self) -> bool {
        let most = MAX_RECORD_BYTES + self.escapes + self.replaced_escapes + self.move_bytes;
        self.out.len() + self.replaced.len() > most
    }

    /// Ends the current entry. Returns false if the record is too large.
    pub(crate) fn end(&mut self) -> bool {
        if !self.replaced.is_empty() {
            self.out.push_str("],\\\"replaced\\\":[");
            self.out.push_str(&self.replaced);
            self.escapes += 2 + self.replaced_escapes;
        }
        if !self.moves.is_empty() {
            self.out.push_str(Self::MOVES);
            self.out.push_str(&self.moves);
            self.escapes += 2 + self.moves_escapes;
            self.move_bytes += Self::MOVES_AROUND + self.moves.len() - self.moves_escapes;
        }
        self.forget_replaced();
        self.out.push(']');
        if let Some(parent) = self.extends.take() {
            self.out.extend([",\\\"", EXTENDS, "\\\":\\\"", &parent, "\\\""]);
            self.escapes += 4;
        }
        self.out.push('}');
        self.has_entries = true;
        self.out.len() + 2 <= MAX_RECORD_BYTES + self.escapes + self.move_bytes
    }

    /// Returns the record with the entries so far. `None` within an entry, or if the record is too large.
    pub(crate) fn finished_entries(&self) -> Option<Record> {
        self.at(self.mark())
    }

    /// Returns the record up to a mark.
    fn at(&self, mark: Mark) -> Option<Record> {
        let quoted = format!("{}{}", self.out.get(..mark.length)?, Self::CLOSE);
        Record::read(&OwnedTape::parse(quoted).ok()?.root().as_str()?)
    }

    /// Drops everything after the mark.
    pub(crate) fn take_back(&mut self, mark: Mark) {
        self.out.truncate(mark.length);
        (self.escapes, self.move_bytes, self.has_entries) = (mark.escapes, mark.move_bytes, mark.has_entries);
        self.forget_replaced();
    }

    /// Drops everything after the mark, because this pass changed nothing for the profile. Keeps its entry from an
    /// earlier pass, with the revision that was applied then.
    pub(crate) fn keep(&mut self, mark: Mark, earlier: Option<&Record>, profile: &str) {
        self.take_back(mark);
        self.keep_of(earlier, profile);
    }

    /// Keeps the entries of profiles that this pass does not apply, because their additions still exist. They are
    /// written first. If the record then has no room for a new profile, the new profile is left out.
    pub(crate) fn keep_others<'p>(&mut self, earlier: &Record, mut is_applied: impl FnMut(&str) -> bool + 'p) {
        for entry in earlier.profiles() {
            if entry.get("profile").and_then(Value::as_str).is_some_and(|name| !is_applied(&name)) {
                self.keep_entry(entry);
                self.has_kept = true;
            }
        }
    }

    /// Returns the record as a JSON string. `None` if it has no entries. Kept entries return to their positions in the
    /// earlier record, because changes are undone in reverse order.
    pub(crate) fn finish(mut self, earlier: Option<&Record>) -> Option<String> {
        if !self.has_entries {
            return None;
        }
        self.out.push_str(Self::CLOSE);
        let ordered = if self.has_kept { earlier.and_then(|earlier| Self::in_order(&self.out, earlier)) } else { None };
        Some(ordered.unwrap_or(self.out))
    }

    /// Sorts the entries by their order in an earlier record. A new entry remains after all entries that precede it in
    /// `quoted`.
    fn in_order(quoted: &str, earlier: &Record) -> Option<String> {
        let tape = OwnedTape::parse(quoted.to_owned()).ok()?;
        let record = Record::read(&tape.root().as_str()?)?;
        let place = |entry: Value<'_>| {
            let name = entry.get("profile").and_then(Value::as_str)?;
            earlier.profiles().position(|other| other.get("profile").is_some_and(|other| other.is(&name)))
        };
        let mut entries: Vec<_> = record.profiles().map(|entry| (place(entry), entry)).collect();
        let mut last = None;
        for (place, _) in &mut entries {
            last = last.max(*place);
            *place = place.or(last);
        }
        entries.sort_by_key(|(place, _)| *place);
        let mut ordered = Self::new();
        for (_, entry) in entries {
            ordered.keep_entry(entry);
        }
        ordered.out.push_str(Self::CLOSE);
        Some(ordered.out)
    }

    /// Returns a mark at the current position.
    fn mark(&self) -> Mark {
        let Self { escapes, move_bytes, has_entries, .. } = *self;
        Mark { length: self.out.len(), escapes, move_bytes, has_entries }
    }

    /// Keeps the entry of a profile from an earlier pass, if there is one.
    pub(crate) fn keep_of(&mut self, earlier: Option<&Record>, profile: &str) {
        if let Some(entry) = earlier.and_then(|record| record.entry(profile)) {
            self.keep_entry(entry);
        }
    }

    fn keep_entry(&mut self, entry: Value<'_>) {
        self.separate();
        self.escapes += push_json(&mut self.out, entry.raw());
        self.move_bytes += entry.get("order").map_or(0, |moves| r#","order":"#.len() + moves.raw().len());
        self.has_entries = true;
    }

    fn separate(&mut self) {
        if self.has_entries {
            self.out.push(',');
        }
    }

    fn forget_replaced(&mut self) {
        self.replaced.clear();
        (self.replaced_escapes, self.replaced_places) = (0, 0);
        self.moves.clear();
        self.moves_escapes = 0;
    }
}

/// Writes a string as a JSON string within a JSON string. Returns the number of bytes that escaping for the outer
/// string adds.
fn push_text(out: &mut String, text: &str) -> usize {
    // Names and most pointers need no escapes.
    if is_plain(text) {
        out.push_str("\\\"");
        out.push_str(text);
        out.push_str("\\\"");
        return 2;
    }
    let mut quoted = String::with_capacity(text.len() + 8);
    write_string(&mut quoted, text);
    push_json(out, &quoted)
}

/// Writes JSON within a JSON string. Returns the number of bytes that escaping for the outer string adds.
fn push_json(out: &mut String, json: &str) -> usize {
    let before = out.len();
    write_escaped(out, json);
    (out.len() - before).saturating_sub(json.len())
}

#[cfg(test)]
mod tests;
