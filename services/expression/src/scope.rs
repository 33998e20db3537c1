//! The names that an expression may use, and suggestions for misspelled names.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use super::pattern::Pattern;

/// The names that an expression may use, and the limits that all expressions of its profile share.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    names: BTreeMap<String, Contents>,
    /// The number of parts and the patterns of the profile's expressions. All scopes of a profile share them.
    compiled: Arc<Mutex<Compiled>>,
    /// Names that are in scope in other places, with the reason why they are not in scope here.
    absent: BTreeMap<&'static str, &'static str>,
}

/// The kind of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Contents {
    /// A plain value.
    Value,
    /// A name with members, such as `variables`. `None` if any member is allowed.
    Members(Option<BTreeSet<String>>),
}

/// The number of parts and the patterns of all expressions and parameters that were compiled for one profile.
#[derive(Debug, Default)]
struct Compiled {
    nodes: usize,
    /// The memory of all patterns, in bytes.
    memory: usize,
    /// Compiled patterns by source, so that equal patterns are compiled once.
    patterns: HashMap<Box<str>, Pattern>,
}

/// The maximum number of parts in all expressions of one profile.
const MAXIMUM_PROFILE_NODES: usize = 16 * 1024;

/// The maximum memory of all regular expressions of one profile, in bytes, including the caches for searches.
const MAXIMUM_PATTERN_MEMORY: usize = 4 << 20;

/// The maximum memory of one part of an expression, in bytes, without the string of a literal.
const NODE_BYTES: usize = 128;

impl Scope {
    /// Creates an empty scope.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Shares the limits with another scope of the same profile, so that each limit applies to the expressions of both
    /// scopes together.
    #[must_use]
    pub fn of_the_profile_of(mut self, other: &Self) -> Self {
        self.compiled = Arc::clone(&other.compiled);
        self
    }

    /// Adds the number of parts of an expression to the profile's total.
    ///
    /// # Errors
    /// The expressions of the profile have too many parts in total.
    pub(crate) fn add_nodes(&self, count: usize) -> Result<(), String> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        compiled.nodes += count;
        if compiled.nodes > MAXIMUM_PROFILE_NODES {
            return Err(format!(
                "the expressions of this profile have more than {MAXIMUM_PROFILE_NODES} parts in total; \
                 divide it into several profiles"
            ));
        }
        Ok(())
    }

    /// Returns an upper bound for the memory of all compiled expressions and patterns of the profile, in bytes. The
    /// strings of literals are not included.
    pub fn memory(&self) -> usize {
        let compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        compiled.nodes * NODE_BYTES + compiled.memory
    }

    /// Compiles a pattern. If the profile already has an equal pattern, returns that one.
    ///
    /// # Errors
    /// The pattern is invalid, or all patterns of the profile together need too much memory.
    pub fn pattern(&self, text: &str) -> Result<Pattern, String> {
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

    /// Adds a name that has a value, such as `object`.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>) -> Self {
        self.names.insert(name.into(), Contents::Value);
        self
    }

    /// Adds a name with a fixed set of members, such as `variables`. An expression can read single members
    /// (`variables.x`). Unknown members are errors.
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

    /// Adds a name with members. Any member is allowed, because the members are not known yet.
    #[must_use]
    pub fn with_any_members(mut self, name: impl Into<String>) -> Self {
        self.names.insert(name.into(), Contents::Members(None));
        self
    }

    /// Removes a name that is in scope in other places. Errors about the name contain the reason `why`.
    #[must_use]
    pub fn without(mut self, name: &'static str, why: &'static str) -> Self {
        self.names.remove(name);
        self.absent.insert(name, why);
        self
    }

    /// Returns the reason why a name was removed from the scope. `None` if it was not removed.
    pub(crate) fn absence(&self, name: &str) -> Option<&'static str> {
        self.absent.get(name).copied()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    pub(crate) fn has_members(&self, name: &str) -> bool {
        matches!(self.names.get(name), Some(Contents::Members(_)))
    }

    /// Checks that a name may have this member. The error contains the valid members.
    pub(crate) fn check_member(&self, name: &str, member: &str) -> Result<(), &BTreeSet<String>> {
        match self.names.get(name) {
            Some(Contents::Members(Some(members))) if !members.contains(member) => Err(members),
            _ => Ok(()),
        }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
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

/// The maximum length of names that [`closest`] compares, in bytes. The time grows with the lengths of both names.
pub(crate) const LONGEST_NAME: usize = 100;

/// Returns the candidate that is most similar to a name. `None` if no candidate is similar enough.
pub fn closest<'c>(name: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
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

/// Returns the edit distance: the number of characters to add, remove, change, or swap with a neighbor.
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
    fn finds_similar_name() {
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
