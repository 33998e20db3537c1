//! Profiles by everything that they can be asked for by: made once for the platform's profiles, and once for those of
//! each namespace that has some.

use std::collections::HashMap;
use std::sync::Arc;

use pillion_api::profile::{Activation, OnUnknown};
use pillion_api::selector::LabelSelector;

use crate::profile::CompiledProfile;
use crate::profile::target::{Action, Phase};

/// Place of a profile among the candidates. A lower place is applied first: all of the platform's come before all of the
/// namespace's own.
pub(crate) type Place = usize;

/// Who gets the newest revision of a profile that has two at work.
#[derive(Debug, PartialEq)]
pub(crate) struct Staging {
    /// The profile, as it is displayed.
    pub(crate) profile: Box<str>,
    pub(crate) percent: u8,
    pub(crate) namespaces: Option<LabelSelector>,
}

/// A revision that is at work.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) profile: Arc<CompiledProfile>,
    /// One for both revisions of a profile that has two.
    pub(crate) staging: Option<Arc<Staging>>,
    pub(crate) is_promoted: bool,
    pub(crate) kept: Arc<[Box<str>]>,
}

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

/// Where the two revisions of a profile stand. One that is only there to be extended stands nowhere.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StagePlaces {
    pub(crate) newest: Option<Place>,
    pub(crate) promoted: Option<Place>,
}

impl Entry {
    /// Whether it is the same for those who look it up.
    pub(crate) fn is_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.profile, &other.profile)
            && self.staging == other.staging
            && self.is_promoted == other.is_promoted
            && self.kept == other.kept
    }
}

impl StagePlaces {
    /// The same among candidates, behind so many others.
    pub(crate) fn behind(self, others: usize) -> Self {
        Self { newest: self.newest.map(|place| place + others), promoted: self.promoted.map(|place| place + others) }
    }
}

/// Profiles in the order in which they apply; those that are only there to be extended are left out.
#[derive(Debug, Default)]
pub(crate) struct Index {
    profiles: Vec<Entry>,
    /// Those that are laid over every new pod.
    always: Vec<Place>,
    /// Those that are laid over objects, by resource.
    templates: HashMap<Box<str>, Acting>,
    /// Those that validate objects, by resource.
    validations: HashMap<Box<str>, Acting>,
    selective: Vec<Place>,
    names: HashMap<Box<str>, Place>,
    /// The promoted revisions of those that have two at work.
    promoted: HashMap<Box<str>, Place>,
    stages: Vec<(Arc<Staging>, StagePlaces)>,
    labels: HashMap<Box<str>, KeyGroup>,
    annotations: HashMap<Box<str>, KeyGroup>,
    wants_look_ups: bool,
}

impl Index {
    /// From profiles in their order.
    pub(crate) fn new<'p>(entries: impl IntoIterator<Item = &'p Entry>) -> Self {
        let mut index = Self::default();
        for entry in entries.into_iter().filter(|entry| entry.profile.activation != Activation::Never) {
            index.add(entry);
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
        self.profiles.get(place).map(|entry| &entry.profile)
    }

    /// The revisions of a profile that are kept.
    pub(crate) fn kept(&self, place: Place) -> &[Box<str>] {
        self.profiles.get(place).map_or(&[], |entry| &entry.kept)
    }

    /// Whether any has two revisions at work.
    pub(crate) const fn has_stages(&self) -> bool {
        !self.stages.is_empty()
    }

    /// Those that have two revisions at work.
    pub(crate) fn stages(&self) -> impl Iterator<Item = (&Staging, StagePlaces)> {
        self.stages.iter().map(|(staging, places)| (&**staging, *places))
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

    /// By name, or by namespace and name: the newest revision that is at work, and the promoted one if that is another.
    pub(crate) fn by_name(&self, name: &str) -> [Option<Place>; 2] {
        let promoted = if self.promoted.is_empty() { None } else { self.promoted.get(name) };
        [self.names.get(name).copied(), promoted.copied()]
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

    fn add(&mut self, entry: &Entry) {
        let place = self.profiles.len();
        self.profiles.push(entry.clone());
        let profile = &entry.profile;
        if let Some(staging) = &entry.staging {
            let known = self.stages.iter().position(|(known, _)| Arc::ptr_eq(known, staging));
            let known = known.unwrap_or_else(|| {
                self.stages.push((Arc::clone(staging), StagePlaces::default()));
                self.stages.len() - 1
            });
            if let Some((_, places)) = self.stages.get_mut(known) {
                *if entry.is_promoted { &mut places.promoted } else { &mut places.newest } = Some(place);
            }
        }
        self.wants_look_ups |= !profile.needs().is_empty();
        self.add_always(place, profile);
        if profile.namespace_selector.is_some() {
            self.selective.push(place);
        }
        let by_name = if entry.is_promoted { &mut self.promoted } else { &mut self.names };
        by_name.insert(profile.name().name.clone(), place);
        by_name.insert(profile.display_name().into(), place);

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
