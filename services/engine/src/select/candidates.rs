//! The profiles that may act in one namespace, arranged so that a request looks only at those that it asks for.
//!
//! A cluster may have thousands of profiles of which a pod gets two. Profiles that apply to everybody are a list; all
//! others are found by hashing: the labels and annotations that the pod has, and the words in them.

use std::collections::HashMap;
use std::sync::Arc;

use pillion_api::names::PROFILES_ANNOTATION;
use pillion_api::profile::{Activation, OnUnknown};

use crate::profile::{CompiledProfile, ProfileSet};
use crate::snapshot::Namespace;

/// Place of a profile among the candidates. A lower place is applied first.
pub(crate) type Place = usize;

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

/// The profiles that may act in one namespace.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    profiles: Vec<Arc<CompiledProfile>>,
    pub(crate) always: Vec<Place>,
    names: HashMap<Box<str>, Place>,
    labels: HashMap<Box<str>, KeyGroup>,
    annotations: HashMap<Box<str>, KeyGroup>,
    /// What the namespace itself asks for: the keys that some profile knows.
    pub(crate) namespace_values: Vec<(KeyKind, Box<str>, Box<str>)>,
    /// What the namespace asks for by name.
    pub(crate) namespace_names: Box<str>,
}

impl Candidates {
    /// Finds them.
    pub(crate) fn find(set: &ProfileSet, name: &str, namespace: &Namespace) -> Self {
        let mut candidates = Self::default();
        let may_act = set.of_namespace(name).filter(|profile| {
            profile.activation != Activation::Never
                && profile
                    .namespace_selector
                    .as_ref()
                    .is_none_or(|selector| selector.matches(|key| namespace.label(key)))
        });
        for profile in may_act {
            candidates.add(profile);
        }
        let known = |kind: KeyKind, pairs: &[(Box<str>, Box<str>)]| -> Vec<_> {
            let known = pairs.iter().filter(|(key, _)| candidates.group(kind, key).is_some());
            known.map(|(key, value)| (kind, key.clone(), value.clone())).collect()
        };
        let mut values = known(KeyKind::Label, &namespace.labels);
        values.extend(known(KeyKind::Annotation, &namespace.annotations));
        candidates.namespace_values = values;
        candidates.namespace_names = namespace.annotation(PROFILES_ANNOTATION).unwrap_or_default().into();
        candidates
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.profiles.is_empty()
    }

    pub(crate) fn profile(&self, place: Place) -> Option<&Arc<CompiledProfile>> {
        self.profiles.get(place)
    }

    /// A profile by its name, or by its namespace and name. A tenant's own stands before the platform's.
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
        if profile.activation == Activation::Always {
            self.always.push(place);
        }
        // Namespaced profiles come later, and take the name over.
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

    /// Of profiles that one word means: the namespace's own, if there are any, else the platform's.
    pub(crate) fn nearest<'p>(&'p self, places: &'p [Place]) -> impl Iterator<Item = Place> + 'p {
        let is_namespaced =
            |place: &Place| self.profile(*place).is_some_and(|profile| profile.name().namespace.is_some());
        let namespaced = places.iter().any(is_namespaced);
        places.iter().copied().filter(move |place| is_namespaced(place) == namespaced)
    }
}
