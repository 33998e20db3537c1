//! The names that an expression may use, and the suggestion for a misspelt name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use super::pattern::Pattern;

/// What is in scope where an expression stands, and what the expressions of its profile may take together.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    names: BTreeMap<String, Contents>,
    /// Shared by all scopes of a profile.
    compiled: Arc<Mutex<Compiled>>,
    /// Names that are in scope elsewhere, and why not here.
    absent: BTreeMap<&'static str, &'static str>,
}

/// What is below a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Contents {
    /// A value like any other.
    Value,
    /// Members that are asked for one by one, such as variables: these, or any if it is not known which there are.
    Members(Option<BTreeSet<String>>),
}

/// What was compiled for one profile.
#[derive(Debug, Default)]
struct Compiled {
    nodes: usize,
    /// Bytes of memory of the patterns.
    memory: usize,
    /// Equal patterns are compiled once.
    patterns: HashMap<Box<str>, Pattern>,
}

/// Parts that the expressions of one profile may have together.
pub const MAXIMUM_PROFILE_NODES: usize = 16 * 1024;

/// Bytes of memory that the regular expressions of one profile may take together, with what searches keep.
pub const MAXIMUM_PATTERN_MEMORY: usize = 4 << 20;

/// Bytes that a part of an expression takes at most, besides its text.
const NODE_BYTES: usize = 128;

impl Scope {
    /// A scope with no names.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts what it compiles with what another scope has compiled: both are of one profile.
    #[must_use]
    pub fn of_the_profile_of(mut self, other: &Self) -> Self {
        self.compiled = Arc::clone(&other.compiled);
        self
    }

    /// Counts the parts of an expression.
    ///
    /// # Errors
    /// All expressions of the profile together have too many.
    pub(super) fn add_nodes(&self, count: usize) -> Result<(), String> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        compiled.nodes += count;
        if compiled.nodes > MAXIMUM_PROFILE_NODES {
            return Err(format!(
                "the expressions of this profile have more than {MAXIMUM_PROFILE_NODES} parts together; \
                 divide it into several profiles"
            ));
        }
        Ok(())
    }

    /// Bytes that what was compiled for the profile may take: no less than it does.
    pub(crate) fn memory(&self) -> usize {
        let compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        compiled.nodes * NODE_BYTES + compiled.memory
    }

    /// Compiles a pattern, or shares one that was compiled for the same profile.
    ///
    /// # Errors
    /// What is wrong with it, or all patterns of the profile together take too much memory.
    pub(super) fn pattern(&self, text: &str) -> Result<Pattern, String> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pattern) = compiled.patterns.get(text) {
            return Ok(pattern.clone());
        }
        if compiled.memory > MAXIMUM_PATTERN_MEMORY {
            return Err(too_many_patterns());
        }
        let pattern = Pattern::compile(text)?;
        compiled.memory += pattern.memory();
        if compiled.memory > MAXIMUM_PATTERN_MEMORY {
            return Err(too_many_patterns());
        }
        compiled.patterns.insert(text.into(), pattern.clone());
        Ok(pattern)
    }

    /// Adds a name for a value, such as `object`.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>) -> Self {
        self.names.insert(name.into(), Contents::Value);
        self
    }

    /// Adds a name whose members are asked for one by one, such as `variables`, with all the members that there are.
    #[must_use]
    pub fn with_members<M: Into<String>>(
        mut self,
        name: impl Into<String>,
        members: impl IntoIterator<Item = M>,
    ) -> Self {
        let members = members.into_iter().map(Into::into).collect();
        self.names.insert(name.into(), Contents::Members(Some(members)));
        self
    }

    /// Adds a name whose members are asked for one by one and are not known yet.
    #[must_use]
    pub fn with_any_members(mut self, name: impl Into<String>) -> Self {
        self.names.insert(name.into(), Contents::Members(None));
        self
    }

    /// Takes a name away that is in scope elsewhere, and says why it is not here.
    #[must_use]
    pub fn without(mut self, name: &'static str, why: &'static str) -> Self {
        self.names.remove(name);
        self.absent.insert(name, why);
        self
    }

    /// Why a name is not in scope here, if it is elsewhere.
    pub(super) fn absence(&self, name: &str) -> Option<&'static str> {
        self.absent.get(name).copied()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    pub(super) fn has_members(&self, name: &str) -> bool {
        matches!(self.names.get(name), Some(Contents::Members(_)))
    }

    /// Whether a name may have this member; if not, those that it has.
    pub(super) fn check_member(&self, name: &str, member: &str) -> Result<(), &BTreeSet<String>> {
        match self.names.get(name) {
            Some(Contents::Members(Some(members))) if !members.contains(member) => Err(members),
            _ => Ok(()),
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }
}

fn too_many_patterns() -> String {
    format!(
        "the regular expressions of this profile take more than {} MiB of memory together; use fewer or simpler ones: \
         classes such as \\pL and large repetitions take most",
        MAXIMUM_PATTERN_MEMORY >> 20
    )
}

/// How long names may be that are compared, in bytes: the work grows with their length.
pub(super) const LONGEST_NAME: usize = 100;

/// The candidate that is most like a name, if one is like it at all.
pub(crate) fn closest<'c>(name: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    if name.len() > LONGEST_NAME {
        return None;
    }
    let allowed = (name.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .filter(|candidate| candidate.len() <= LONGEST_NAME)
        .map(|candidate| (distance(&name.to_ascii_lowercase(), &candidate.to_ascii_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, candidate)| candidate)
}

/// How many letters have to be added, removed, changed or swapped with their neighbour.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<_> = right.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=right.len()).collect();
    let mut last = None;
    for (row, letter) in left.chars().enumerate() {
        let mut current = vec![row + 1];
        for (column, other) in right.iter().enumerate() {
            let at = |cells: &[usize], index: usize| cells.get(index).copied().unwrap_or(usize::MAX / 2);
            let mut best = (at(&above, column) + usize::from(letter != *other))
                .min(at(&above, column + 1) + 1)
                .min(at(&current, column) + 1);
            let previous = column.checked_sub(1).and_then(|previous| right.get(previous));
            if last == Some(*other) && previous == Some(&letter) {
                best = best.min(at(&before, column.wrapping_sub(1)) + 1);
            }
            current.push(best);
        }
        before = std::mem::replace(&mut above, current);
        last = Some(letter);
    }
    above.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_name_is_found_if_one_is_close() {
        let names = ["object", "oldObject", "params", "namespaceObject"];
        assert_eq!(closest("objekt", names), Some("object"));
        assert_eq!(closest("Params", names), Some("params"));
        assert_eq!(closest("parmas", names), Some("params"));
        assert_eq!(closest("zzz", names), None);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("ab", "ba"), 1);
    }
}
