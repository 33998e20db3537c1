//! Profiles by everything that they can be asked for by: made once for the platform's profiles, and once for those of
//! each namespace that has some.

use std::collections::HashMap;
use std::sync::Arc;

use pillion_api::profile::{Activation, OnUnknown};

use super::candidates::Place;
use crate::profile::CompiledProfile;
use crate::profile::target::{Action, Phase};

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

/// The profiles that act on objects of one resource.
#[derive(Debug, Default)]
struct Acting {
    /// The groups of which there is a resource of this name.
    groups: Vec<Box<str>>,
    /// Those that act on all of them.
    always: Vec<Place>,
}

/// Profiles in the order in which they apply; those that are only there to be extended are left out.
#[derive(Debug, Default)]
pub(crate) struct Index {
    profiles: Vec<Arc<CompiledProfile>>,
    /// Those that are laid over every new pod.
    always: Vec<Place>,
    /// Those that are laid over objects, by resource.
    templates: HashMap<Box<str>, Acting>,
    /// Those that validate objects, by resource.
    validations: HashMap<Box<str>, Acting>,
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

    /// Those that act on what a request is about without being asked for.
    pub(crate) fn always(&self, action: Action<'_>) -> impl Iterator<Item = Place> {
        let is_pod = action.creates_pod();
        let places =
            if is_pod { &*self.always } else { self.by_resource(action).map_or(&[][..], |acting| &acting.always) };
        // By resource alone they may be of another group, or for another operation.
        let acts = move |place: &Place| self.profile(*place).is_some_and(|profile| profile.acts_on(action));
        places.iter().copied().filter(move |place| is_pod || acts(place))
    }

    /// Whether any profile may act on objects of the resource that a request is about.
    pub(crate) fn has_resource(&self, action: Action<'_>) -> bool {
        self.by_resource(action).is_some_and(|acting| acting.groups.iter().any(|group| **group == *action.group))
    }

    fn by_resource(&self, action: Action<'_>) -> Option<&Acting> {
        match action.phase {
            Phase::Mutate => self.templates.get(action.resource),
            Phase::Validate => self.validations.get(action.resource),
        }
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

    fn add_always(&mut self, place: Place, profile: &CompiledProfile) {
        let is_always = profile.activation == Activation::Always;
        if is_always && profile.acts_on(Action::CREATE_POD) {
            self.always.push(place);
        }
        for (acts, by_resource) in
            [(profile.has_template, &mut self.templates), (!profile.validations.is_empty(), &mut self.validations)]
        {
            for resource in profile.target.resources.iter().filter(|_| acts) {
                let acting: &mut Acting = by_resource.entry(resource.clone()).or_default();
                if !acting.groups.contains(&profile.target.group) {
                    acting.groups.push(profile.target.group.clone());
                }
                if is_always {
                    acting.always.push(place);
                }
            }
        }
    }

    fn add(&mut self, profile: &Arc<CompiledProfile>) {
        let place = self.profiles.len();
        self.profiles.push(Arc::clone(profile));
        self.wants_look_ups |= !profile.needs().is_empty();
        self.add_always(place, profile);
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
