//! Revisions that are not at work and that somebody asked for, compiled once for all who do.
//!
//! A revision never changes, so what was compiled stays right; few are asked for, so there is room for few.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use pillion_api::revision::RevisionSpec;
use serde::Deserialize;

use crate::json::OwnedTape;
use crate::profile::{CompiledProfile, ProfileName, compile_revision};

/// How many are kept. With one more, all others are forgotten.
const ROOM: usize = 64;

/// By profile and revision.
type Compiled = HashMap<(ProfileName, Box<str>), Arc<CompiledProfile>>;

/// What was compiled. Copies of a snapshot share it.
#[derive(Debug, Default)]
pub(super) struct Kept {
    known: Mutex<Compiled>,
}

/// The part of the object that is read.
#[derive(Deserialize)]
struct Object {
    spec: RevisionSpec,
}

impl Kept {
    pub(super) fn get(&self, profile: &ProfileName, revision: &str) -> Option<Arc<CompiledProfile>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&(profile.clone(), revision.into())).cloned()
    }

    /// Compiles the object that holds a revision; `None` if it is not that revision, or does not compile.
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
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= ROOM {
            known.clear();
        }
        known.insert((profile.clone(), revision.into()), Arc::clone(&compiled));
        Some(compiled)
    }
}
