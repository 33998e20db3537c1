//! Caches compiled revisions that are not active but were requested.
//!
//! A revision never changes, so entries never become stale. Few revisions are requested, so the cache is small. The
//! least recently used entry is replaced.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use pillion_api::revision::RevisionSpec;
use serde::Deserialize;

use crate::json::OwnedTape;
use crate::profile::{CompiledProfile, ProfileName, compile_revision};

/// The capacity of the cache.
const MAX_REVISIONS: usize = 64;

/// The profile and the revision.
type Key = (ProfileName, Box<str>);

/// The cache. Clones of a snapshot share it.
#[derive(Debug, Default)]
pub(super) struct RevisionCache {
    known: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    compiled: HashMap<Key, (Arc<CompiledProfile>, u64)>,
    /// Counts the requests, as the clock of the cache.
    asked: u64,
}

/// The part of the revision object that is read.
#[derive(Deserialize)]
struct Object {
    spec: RevisionSpec,
}

impl RevisionCache {
    pub(super) fn get(&self, profile: &ProfileName, revision: &str) -> Option<Arc<CompiledProfile>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.asked += 1;
        let asked = known.asked;
        let (compiled, last_asked) = known.compiled.get_mut(&(profile.clone(), revision.into()))?;
        *last_asked = asked;
        Some(Arc::clone(compiled))
    }

    /// Compiles a revision object and caches the result; `None` if it is another revision or does not compile.
    pub(super) fn compile(
        &self,
        profile: &ProfileName,
        revision: &str,
        object: &OwnedTape,
    ) -> Option<Arc<CompiledProfile>> {
        let Object { spec } = serde_json::from_str(object.root().raw()).ok()?;
        if *spec.revision != *revision {
            return None;
        }
        let compiled = Arc::new(compile_revision(profile, &spec).ok()?);
        self.known.lock().unwrap_or_else(PoisonError::into_inner).keep((profile.clone(), revision.into()), &compiled);
        Some(compiled)
    }
}

impl Entries {
    fn keep(&mut self, key: Key, compiled: &Arc<CompiledProfile>) {
        self.asked += 1;
        if self.compiled.len() >= MAX_REVISIONS && !self.compiled.contains_key(&key) {
            let longest_ago = self.compiled.iter().min_by_key(|(_, (_, asked))| *asked).map(|(key, _)| key.clone());
            if let Some(longest_ago) = longest_ago {
                self.compiled.remove(&longest_ago);
            }
        }
        self.compiled.insert(key, (Arc::clone(compiled), self.asked));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::profile::{FlattenedProfile, Library};

    #[test]
    fn who_comes_takes_the_place_of_what_nobody_has_asked_for_the_longest() {
        let (cache, name) = (RevisionCache::default(), ProfileName::cluster("proxy"));
        let spec = |number: usize| {
            let spec = json!({"template": {"metadata": {"labels": {"a": number.to_string()}}}});
            let whole =
                FlattenedProfile::new(&name, &serde_json::from_value(spec).unwrap(), &Library::new([])).unwrap();
            whole.to_revision(&name, Some(1), None).unwrap()
        };
        let revision = |number: usize| spec(number).revision;
        let add = |number: usize| {
            let object = OwnedTape::parse(json!({"spec": spec(number)}).to_string()).unwrap();
            assert!(cache.compile(&name, &revision(number), &object).is_some());
        };
        let is_kept = |number: usize| cache.get(&name, &revision(number)).is_some();
        (0..MAX_REVISIONS).for_each(add);
        assert!(is_kept(0), "and it was asked for just now");
        add(MAX_REVISIONS);
        assert!(!is_kept(1));
        // All others stay.
        assert!((2..=MAX_REVISIONS).chain([0]).all(is_kept));
        // One that is there takes nobody's place.
        add(MAX_REVISIONS);
        assert!((2..=MAX_REVISIONS).chain([0]).all(is_kept));
    }
}
