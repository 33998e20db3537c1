//! Writing the record of a pass, with what earlier ones left of it.

use crate::json::{OwnedTape, Value, is_plain, write_escaped, write_string};

use super::{EXTENDS, MAX_MOVE_BYTES, MAX_RECORD_BYTES, Move, Record, VERSION};

/// Writes the record of this pass, profile by profile: at once as the string of JSON that the annotation's value is, so
/// that nothing is escaped twice.
#[derive(Debug)]
pub(crate) struct RecordWriter {
    /// From the first quote on.
    out: String,
    /// How many bytes of it are there only because it is a string in JSON.
    escapes: usize,
    /// Whether a profile has an entry.
    has_entries: bool,
    /// Whether it has entries of profiles that are not applied this time.
    has_kept: bool,
    /// Whether the profile at hand has an element.
    has_elements: bool,
    /// The cluster profile that the namespaced profile at hand only extends, if it does.
    extends: Option<Box<str>>,
    /// What the profile at hand replaced, as lists of a pointer and what stood there, and how much of that is escapes.
    replaced: String,
    replaced_escapes: usize,
    /// How many places those are.
    replaced_places: usize,
    /// What the profile at hand moved, and how much of that is escapes.
    moves: String,
    moves_escapes: usize,
    /// How many bytes of the entries before say what was moved. Escapes do not count.
    move_bytes: usize,
}

/// A moment of a record that it may go back to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    length: usize,
    escapes: usize,
    move_bytes: usize,
    has_entries: bool,
}

impl RecordWriter {
    /// What it begins with, around the version, and what it ends with.
    const OPEN: [&str; 3] = ["\"{\\\"version\\\":", VERSION, ",\\\"profiles\\\":["];
    const CLOSE: &str = "]}\"";
    /// The escapes in it, and the quote that it begins with.
    const OPEN_ESCAPES: usize = 5;
    /// What moves are called in an entry, and the bytes around them that are no escapes.
    const MOVES: &str = "],\\\"order\\\":[";
    const MOVES_AROUND: usize = 11;

    /// The record of a pass in which nothing was done, as a JSON string.
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

    /// Begins the entry of a profile, with what it added in an earlier pass. Gives a mark to come back to.
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

    /// Notes that the namespaced profile at hand only extends one of the platform's. What it did in an earlier pass, when it was
    /// another text, stays the namespace's.
    pub(crate) fn extends(&mut self, profile: &str, parent: &str, earlier: Option<&Record>) {
        let entry = earlier.and_then(|record| record.entry(profile));
        self.extends = entry.as_ref().is_none_or(Record::is_of_platform).then(|| parent.into());
    }

    /// How many bytes the record has so far, as it stands in JSON.
    pub(crate) const fn len(&self) -> usize {
        self.out.len() + Self::CLOSE.len()
    }

    /// Notes an element that was added.
    pub(crate) fn add(&mut self, pointer: &str) {
        if self.has_elements {
            self.out.push(',');
        }
        self.has_elements = true;
        self.escapes += push_text(&mut self.out, pointer);
    }

    /// Notes a place whose value was replaced, and what stood there as JSON; of an element that was removed, also the key
    /// of the one that it stood behind.
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

    /// Notes an element that is about to be moved within its list.
    pub(crate) fn moves(&mut self, moved: &Move<'_>) {
        self.push_move(moved, self.replaced_places);
    }

    /// Whether there may be room for another move, so that it is worth while to find out about it.
    pub(crate) fn has_room_for_moves(&self) -> bool {
        /// A move with nearly nothing in it.
        const LEAST: usize = 16;
        self.move_bytes + Self::MOVES_AROUND + self.moves.len() + LEAST <= MAX_MOVE_BYTES + self.moves_escapes
    }

    /// Notes a move before which so many places had been replaced, if there is room for it.
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

    /// Whether there is more in it already than it may have.
    pub(crate) fn is_full(&self) -> bool {
        let most = MAX_RECORD_BYTES + self.escapes + self.replaced_escapes + self.move_bytes;
        self.out.len() + self.replaced.len() > most
    }

    /// Ends the entry. Whether the record is not too large.
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

    /// The record of the entries that have ended.
    pub(crate) fn so_far(&self) -> Option<Record> {
        self.at(self.mark())
    }

    /// The record as it was at the mark.
    fn at(&self, mark: Mark) -> Option<Record> {
        let quoted = format!("{}{}", self.out.get(..mark.length)?, Self::CLOSE);
        Record::read(&OwnedTape::parse(quoted).ok()?.root().as_str()?)
    }

    /// Forgets all since the mark.
    pub(crate) fn take_back(&mut self, mark: Mark) {
        self.out.truncate(mark.length);
        (self.escapes, self.move_bytes, self.has_entries) = (mark.escapes, mark.move_bytes, mark.has_entries);
        self.forget_replaced();
    }

    /// Forgets all since the mark, and keeps the entry that a profile had before, with its revision: this pass changed
    /// nothing.
    pub(crate) fn keep(&mut self, mark: Mark, earlier: Option<&Record>, profile: &str) {
        self.take_back(mark);
        self.keep_of(earlier, profile);
    }

    /// Keeps the entries of an earlier record whose profiles were not applied this time: what they added is there still.
    /// They come first, until the record ends, so that a new profile for which there is no room any more is the one that is left out.
    pub(crate) fn keep_others<'p>(&mut self, earlier: &Record, mut is_applied: impl FnMut(&str) -> bool + 'p) {
        for entry in earlier.profiles() {
            if entry.get("profile").and_then(Value::as_str).is_some_and(|name| !is_applied(&name)) {
                self.keep_entry(entry);
                self.has_kept = true;
            }
        }
    }

    /// The record as a JSON string, ready to be the annotation's value; `None` if nothing was ever added. What was kept of an
    /// earlier record goes back to its place among those that are in both, as what was done is undone from the last.
    pub(crate) fn finish(mut self, earlier: Option<&Record>) -> Option<String> {
        if !self.has_entries {
            return None;
        }
        self.out.push_str(Self::CLOSE);
        let ordered = if self.has_kept { earlier.and_then(|earlier| Self::in_order(&self.out, earlier)) } else { None };
        Some(ordered.unwrap_or(self.out))
    }

    /// A record with its entries in the order of an earlier one, and new ones behind what was kept: it was there before.
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

    /// Where it is now.
    fn mark(&self) -> Mark {
        let Self { escapes, move_bytes, has_entries, .. } = *self;
        Mark { length: self.out.len(), escapes, move_bytes, has_entries }
    }

    /// Keeps the entry that a profile had before.
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

/// Writes a text as a string of JSON that stands within a string of JSON. Gives how many bytes the outer string adds.
fn push_text(out: &mut String, text: &str) -> usize {
    // No name and nearly no pointer needs an escape.
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

/// Writes JSON as it stands within a string of JSON. Gives how many bytes that adds.
fn push_json(out: &mut String, json: &str) -> usize {
    let before = out.len();
    write_escaped(out, json);
    (out.len() - before).saturating_sub(json.len())
}

#[cfg(test)]
mod tests;
