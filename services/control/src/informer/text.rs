//! The stored spec of a profile, and the last version that compiled. A *text* is a spec as JSON.
//!
//! This build may be unable to read a stored profile (a field of a newer version), or the profile may not compile. Then
//! the last valid version remains active, and the errors are reported once for each generation. A mistake in one
//! profile must not remove an active version. Nor may it stop the watch that would deliver the correction.
//!
//! A profile that extends another one is compiled when its parent is known, and again when the parent changes. If the
//! stored spec is broken by then, the last valid spec is compiled. If that fails too, or if the parent is deleted, the
//! last valid version remains active. The exception is a namespaced profile that only its parent limits: it becomes
//! inactive, since it would otherwise keep permissions that the platform has withdrawn.

use std::sync::Arc;

use pillion_api::ProfileSpec;
use pillion_engine::profile::{CompiledProfile, Diagnostic, Limits, Part, ProfileName, compile};
use serde_json::Value;

use crate::guard;
use crate::informer::objects::StoredProfile;
use crate::informer::share::{Grant, Shares};

/// A profile whose stored version or published revision is not active.
#[derive(Clone, Debug)]
pub struct Broken {
    /// The profile's name.
    pub name: ProfileName,
    /// The generation of the stored version; `None` for a published revision.
    pub generation: Option<i64>,
    /// The revision that remains active; `None` if there is none.
    pub serving: Option<Box<str>>,
    /// The errors, at least one.
    pub diagnostics: Vec<Diagnostic>,
}

/// The spec of a profile as JSON.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Text {
    pub(crate) json: Arc<str>,
    /// The name of the profile that `json` extends.
    pub(crate) parent: Option<Box<str>>,
}

/// The state of a profile's stored spec.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextState {
    pub(crate) generation: Option<i64>,
    /// The last version that compiled.
    pub(crate) good: Option<Arc<CompiledProfile>>,
    /// The spec of the last valid version. It is kept only if it may be needed again: this profile extends another one,
    /// other profiles may extend it, or the controller creates revisions from it.
    pub(crate) accepted: Option<Text>,
    pub(crate) broken: bool,
    /// The stored spec, if it extends another profile.
    pub(crate) extending: Option<Text>,
    /// Whether the spec must be compiled, since the profile or its parent has changed.
    pub(crate) due: bool,
    /// The memory grant of a namespaced profile.
    pub(crate) grant: Option<Grant>,
    /// If there was no memory for the stored spec, the bytes that it needs; 0 if they are not known yet. The spec is
    /// not kept.
    pub(crate) lacking_bytes: Option<usize>,
    /// The parent of a spec that was not kept for lack of memory.
    pub(crate) lacking_parent: Option<Box<str>>,
}

/// The error for a profile that lacks memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryLack {
    /// Bytes that the profile needs.
    pub(crate) bytes: usize,
    /// Maximum bytes of all profiles of the namespace.
    limit: usize,
}

impl MemoryLack {
    pub(crate) fn diagnostic(self, name: &ProfileName) -> Diagnostic {
        let mib = |bytes: usize| format!("{}.{} MiB", bytes >> 20, ((bytes & 0xf_ffff) * 10) >> 20);
        let message = format!(
            "the profiles of namespace {} may take {} of memory, and this profile's {} would exceed that",
            name.namespace.as_deref().unwrap_or_default(),
            mib(self.limit),
            mib(self.bytes),
        );
        let help = "make it smaller, or delete other profiles: it is checked again when memory is free. Literals and \
                    regular expressions take most. The limits are `profiles` in the controller's policy; a namespace \
                    gets at most half of the memory that the others leave";
        Diagnostic { path: "spec".to_owned(), message, help: Some(help.to_owned()), part: Part::Value }
    }
}

/// Checks that the namespace has memory for a profile of this size, which replaces the grant `instead_of`. Cluster
/// profiles always pass.
pub(crate) fn check_memory(
    name: &ProfileName,
    bytes: usize,
    instead_of: Option<&Grant>,
    shares: &Shares,
) -> Result<(), MemoryLack> {
    let Some(namespace) = &name.namespace else { return Ok(()) };
    shares.fits(namespace, bytes, instead_of).map_err(|limit| MemoryLack { bytes, limit })
}

impl TextState {
    pub(crate) fn of_generation(generation: Option<i64>) -> Self {
        Self { generation, ..Self::default() }
    }

    /// Returns the state after `stored` was read, and the errors of its spec if they are new. `known` is the earlier
    /// state of the same object. `seed` is a spec that an earlier leader accepted. If `keeps_text`, the accepted spec
    /// is always kept.
    pub(crate) fn next(
        known: Option<&Self>,
        stored: &StoredProfile,
        seed: Option<Text>,
        keeps_text: bool,
    ) -> (Self, Option<Broken>) {
        let StoredProfile { name, generation, spec, .. } = stored;
        if let Some(known) = known.filter(|known| known.is_generation(*generation) && known.lacking_bytes.is_none()) {
            return (known.clone(), None);
        }
        let good = known.and_then(|known| known.good.clone());
        let accepted = known.and_then(|known| known.accepted.clone()).or(seed);
        let mut state = Self { good, accepted, ..Self::of_generation(*generation) };
        let text = |parent| Text { json: spec.to_string().into(), parent };
        let compiled = match guard::compiled(name, || from_value(spec)) {
            Ok(ProfileSpec { extends: Some(parent), .. }) => {
                state.extending = Some(text(Some(parent.name.into())));
                state.due = true;
                return (state, None);
            }
            Ok(spec) => guard::compiled(name, || compile(name, &spec)),
            Err(diagnostics) => Err(diagnostics),
        };
        match compiled {
            Ok(compiled) => {
                state.good = Some(Arc::new(compiled));
                state.accepted = (keeps_text || name.namespace.is_none()).then(|| text(None));
                (state, None)
            }
            Err(diagnostics) => {
                state.broken = true;
                // A seed was accepted before this index was created, and is not compiled yet.
                state.due = state.good.is_none() && state.accepted.is_some();
                let broken = state.to_broken(name, diagnostics);
                (state, Some(broken))
            }
        }
    }

    /// Creates the report of these errors for the stored generation.
    pub(crate) fn to_broken(&self, name: &ProfileName, diagnostics: Vec<Diagnostic>) -> Broken {
        let serving = self.good.as_ref().map(|profile| profile.revision().into());
        Broken { name: name.clone(), generation: self.generation, serving, diagnostics }
    }

    pub(crate) fn is_generation(&self, generation: Option<i64>) -> bool {
        generation.is_some() && self.generation == generation
    }

    /// Charges the kept data to the namespace's share, in place of the grant `before`. If `is_accepted`, the limits are
    /// not checked.
    ///
    /// A rollout or a rollback may also serve older revisions of a profile. So if `is_same_profile`, the new grant is
    /// at least as large as `before`.
    ///
    /// # Errors
    /// The share lacks memory for new data.
    pub(crate) fn charge(
        &mut self,
        name: &ProfileName,
        before: Option<&Grant>,
        is_same_profile: bool,
        is_accepted: bool,
        shares: &mut Shares,
    ) -> Result<(), MemoryLack> {
        let earlier = before.filter(|_| is_same_profile).map_or(0, Grant::bytes);
        if !is_accepted {
            check_memory(name, self.bytes().max(earlier), before, shares)?;
        }
        self.take_memory(name, earlier, shares);
        Ok(())
    }

    pub(crate) fn take_memory(&mut self, name: &ProfileName, least: usize, shares: &mut Shares) {
        let Some(namespace) = &name.namespace else { return };
        let granted = self.grant.as_ref().map_or(0, Grant::bytes);
        let bytes = self.bytes().max(least).max(granted);
        if bytes != granted {
            self.grant = Some(shares.grant(namespace, bytes));
        }
    }

    /// Returns the bytes of the kept data. The active version is not included while a spec must be compiled.
    fn bytes(&self) -> usize {
        let texts = self.accepted.iter().chain(&self.extending).map(|text| text.json.len());
        let good = self.good.as_ref().filter(|_| !self.due).map_or(0, |good| good.memory());
        texts.sum::<usize>() + good
    }

    /// Returns the names of the parents in the stored spec and in the accepted one.
    pub(crate) fn parents(&self) -> impl Iterator<Item = &str> {
        let of_texts = self.extending.iter().chain(&self.accepted).filter_map(|text| text.parent.as_deref());
        of_texts.chain(self.lacking_parent.as_deref())
    }

    /// Replaces the active version. `None` removes the active version only if the parent's limits are its only limits.
    /// Returns whether the active version changed.
    pub(crate) fn activate(&mut self, now: Option<CompiledProfile>) -> bool {
        let keep = match (&self.good, &now) {
            (Some(good), Some(now)) => is_same_profile(good, now),
            (Some(good), None) => good.limits() != Limits::Parent,
            (None, now) => now.is_none(),
        };
        if !keep {
            self.good = now.map(Arc::new);
        }
        !keep
    }
}

impl Text {
    /// Whether this spec equals the stored one, apart from `rollout`.
    pub(crate) fn is_text_of(&self, stored: &Value) -> bool {
        let plain = |spec: Result<ProfileSpec, _>| Some(ProfileSpec { rollout: None, ..spec.ok()? });
        let own = plain(read(&self.json));
        own.is_some() && own == plain(from_value(stored))
    }
}

pub(crate) fn read(text: &str) -> Result<ProfileSpec, Vec<Diagnostic>> {
    let mut reader = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut reader).map_err(|error| vec![unreadable(&error)])
}

fn from_value(spec: &Value) -> Result<ProfileSpec, Vec<Diagnostic>> {
    serde_path_to_error::deserialize(spec).map_err(|error| vec![unreadable(&error)])
}

fn unreadable(error: &serde_path_to_error::Error<serde_json::Error>) -> Diagnostic {
    let path = error.path().to_string();
    Diagnostic {
        path: if path == "." { "spec".to_owned() } else { format!("spec.{path}") },
        message: error.inner().to_string(),
        help: Some(
            "this build does not know the field or its type: correct it, or upgrade Pillion if the profile is written \
             for a newer version"
                .to_owned(),
        ),
        part: Part::Value,
    }
}

fn is_same_profile(a: &CompiledProfile, b: &CompiledProfile) -> bool {
    a.revision() == b.revision()
        && a.limits() == b.limits()
        && a.ancestors().eq(b.ancestors())
        && a.rollout() == b.rollout()
        && a.has_safety_net() == b.has_safety_net()
}

/// Whether both are the same compiled version, or both are `None`.
pub(crate) fn is_same_version(a: Option<&Arc<CompiledProfile>>, b: Option<&Arc<CompiledProfile>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (None, None) => true,
        _ => false,
    }
}
