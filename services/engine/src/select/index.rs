//! Profiles by everything that they can be asked for by: made once for the platform's profiles, and once for those of
//! each namespace that has some.

use std::collections::HashMap;
use std::sync::Arc;

use pillion_api::profile::{Activation, OnUnknown};

use super::candidates::Place;
use crate::profile::CompiledProfile;

/// Whether a key is a label's or an annotation's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum KeyKind {
    Label,
    Annotation,
}

/// The profiles that one key asks for, by the words in its value. All words are in lower case.
#[derive(Debug, Default)]
pub(crate) struct KeyGroup {
    /// Names, names with their namespace, and further values.
    pub(crate) words: HashMap<Box<str>, Vec<Place>>,
    /// Words that ask for the default.
    pub(crate) truthy: HashMap<Box<str>, Vec<Place>>,
    /// Words that ask for none.
    pub(crate) falsy: Vec<Box<str>>,
    /// Whether a word that nobody knows is a refusal.
    pub(crate) deny_unknown: bool,
}

/// Profiles in the order in which they apply; those that are only there to be extended are left out.
#[derive(Debug, Default)]
pub(crate) struct Index {
    profiles: Vec<Arc<CompiledProfile>>,
    always: Vec<Place>,
    selective: Vec<Place>,
    names: HashMap<Box<str>, Place>,
    labels: HashMap<Box<str>, KeyGroup>,
    annotations: HashMap<Box<str>, KeyGroup>,
    wants_look_ups: bool,
}

impl Index {
    /// From profiles in their order.
    pub(crate) fn new<'p>(profiles: impl IntoIterator<Item = &'p Arc<CompiledProfile>>) -> Self {
        let mut index = Self::default();
        for profile in profiles.into_iter().filter(|profile| profile.activation != Activation::Never) {
            index.add(profile);
        }
        index
    }

    pub(crate) fn len(&self) -> usize {
        self.profiles.len()
    }

    /// Whether any of them wants something looked up.
    pub(crate) const fn wants_look_ups(&self) -> bool {
        self.wants_look_ups
    }

    pub(crate) fn profile(&self, place: Place) -> Option<&Arc<CompiledProfile>> {
        self.profiles.get(place)
    }

    /// Those that apply to everybody.
    pub(crate) fn always(&self) -> impl Iterator<Item = Place> + '_ {
        self.always.iter().copied()
    }

    /// Those that are for some namespaces only.
    pub(crate) fn selective(&self) -> impl Iterator<Item = Place> + '_ {
        self.selective.iter().copied()
    }

    /// By name, or by namespace and name.
    pub(crate) fn by_name(&self, name: &str) -> Option<Place> {
        self.names.get(name).copied()
    }

    pub(crate) fn group(&self, kind: KeyKind, key: &str) -> Option<&KeyGroup> {
        match kind {
            KeyKind::Label => self.labels.get(key),
            KeyKind::Annotation => self.annotations.get(key),
        }
    }

    fn add(&mut self, profile: &Arc<CompiledProfile>) {
        let place = self.profiles.len();
        self.profiles.push(Arc::clone(profile));
        self.wants_look_ups |= !profile.needs().is_empty();
        if profile.activation == Activation::Always {
            self.always.push(place);
        }
        if profile.namespace_selector.is_some() {
            self.selective.push(place);
        }
        self.names.insert(profile.name().name.clone(), place);
        self.names.insert(profile.display_name().into(), place);

        let Some(request) = &profile.request else { return };
        let keys = [(&mut self.labels, &request.label), (&mut self.annotations, &request.annotation)];
        for (groups, key) in keys {
            let Some(key) = key else { continue };
            let group = groups.entry(key.clone()).or_default();
            let named = [profile.name().name.to_lowercase().into(), profile.display_name().to_lowercase().into()];
            for word in named.into_iter().chain(request.values.iter().cloned()) {
                let places: &mut Vec<Place> = group.words.entry(word).or_default();
                if places.last() != Some(&place) {
                    places.push(place);
                }
            }
            for word in &request.truthy {
                group.truthy.entry(word.clone()).or_default().push(place);
            }
            for word in &request.falsy {
                if !group.falsy.contains(word) {
                    group.falsy.push(word.clone());
                }
            }
            group.deny_unknown |= request.on_unknown == OnUnknown::Deny;
        }
    }
}
