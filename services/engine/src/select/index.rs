//! Indexes profiles by everything that can request them. There is one index of the cluster profiles, and one for each
//! namespace that has profiles.

use std::collections::HashMap;
use std::sync::Arc;

use pillion_api::profile::{Activation, OnUnknown};
use pillion_api::selector::LabelSelector;

use crate::profile::CompiledProfile;
use crate::profile::target::{Action, Phase};

/// The place of a profile among the candidates. Lower places are applied first: all of the platform's before the
/// namespace's own.
pub(crate) type Place = usize;

/// The rollout of a profile with two active revisions.
#[derive(Debug, PartialEq)]
pub(crate) struct Staging {
    /// The display name of the profile.
    pub(crate) profile: Box<str>,
    pub(crate) percent: u8,
    pub(crate) namespaces: Option<LabelSelector>,
}

/// An active revision.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) profile: Arc<CompiledProfile>,
    /// Shared by both revisions of a profile in a rollout.
    pub(crate) staging: Option<Arc<Staging>>,
    pub(crate) is_promoted: bool,
    pub(crate) kept: Arc<[Box<str>]>,
}

/// Whether a request key is a label or an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum KeyKind {
    Label,
    Annotation,
}

/// The profiles that one request key asks for, by the values of the key in lower case.
#[derive(Debug, Default)]
pub(crate) struct KeyGroup {
    /// Names, names with their namespace, and further values.
    pub(crate) words: HashMap<Box<str>, Vec<Place>>,
    /// Values that request the default profile.
    pub(crate) truthy: HashMap<Box<str>, Vec<Place>>,
    /// Values that request no profile.
    pub(crate) falsy: Vec<Box<str>>,
    /// Whether an unknown value denies the object.
    pub(crate) deny_unknown: bool,
}

/// The profiles that act on objects of one resource.
#[derive(Debug, Default)]
struct Acting {
    /// The API groups that have a resource of this name.
    groups: Vec<Box<str>>,
    /// The profiles that act on all of them.
    always: Vec<Place>,
}

/// The places of the two active revisions of a profile. A profile that is only extended has none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StagePlaces {
    pub(crate) newest: Option<Place>,
    pub(crate) promoted: Option<Place>,
}

impl Entry {
    /// Whether it is equal for lookups.
    pub(crate) fn is_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.profile, &other.profile)
            && self.staging == other.staging
            && self.is_promoted == other.is_promoted
            && self.kept == other.kept
    }
}

impl StagePlaces {
    /// The places after this number of other candidates.
    pub(crate) fn behind(self, others: usize) -> Self {
        Self { newest: self.newest.map(|place| place + others), promoted: self.promoted.map(|place| place + others) }
    }
}

/// Profiles in the order in which they apply, by everything that can request them. Profiles that are only extended are
/// left out.
#[derive(Debug, Default)]
pub(crate) struct Index {
    profiles: Vec<Entry>,
    /// Profiles that are applied to every new pod.
    always: Vec<Place>,
    /// Profiles with templates, by resource.
    templates: HashMap<Box<str>, Acting>,
    /// Profiles with validations, by resource.
    validations: HashMap<Box<str>, Acting>,
    selective: Vec<Place>,
    names: HashMap<Box<str>, Place>,
    /// The promoted revisions of profiles in a rollout.
    promoted: HashMap<Box<str>, Place>,
    stages: Vec<(Arc<Staging>, StagePlaces)>,
    labels: HashMap<Box<str>, KeyGroup>,
    annotations: HashMap<Box<str>, KeyGroup>,
    wants_look_ups: bool,
}

impl Index {
    /// Creates an index of profiles in their order.
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

    /// Whether any profile needs lookups.
    pub(crate) const fn wants_look_ups(&self) -> bool {
        self.wants_look_ups
    }

    pub(crate) fn profile(&self, place: Place) -> Option<&Arc<CompiledProfile>> {
        self.profiles.get(place).map(|entry| &entry.profile)
    }

    /// The stored revisions of a profile.
    pub(crate) fn kept(&self, place: Place) -> &[Box<str>] {
        self.profiles.get(place).map_or(&[], |entry| &entry.kept)
    }

    /// Whether any profile has two active revisions.
    pub(crate) const fn has_stages(&self) -> bool {
        !self.stages.is_empty()
    }

    /// The profiles that have two active revisions.
    pub(crate) fn stages(&self) -> impl Iterator<Item = (&Staging, StagePlaces)> {
        self.stages.iter().map(|(staging, places)| (&**staging, *places))
    }

    /// The profiles that act on the object without a request.
    pub(crate) fn always(&self, action: Action<'_>) -> impl Iterator<Item = Place> {
        let is_pod = action.creates_pod();
        let places =
            if is_pod { &*self.always } else { self.by_resource(action).map_or(&[][..], |acting| &acting.always) };
        // The resource may belong to another group, or the operation may differ.
        let acts = move |place: &Place| self.profile(*place).is_some_and(|profile| profile.acts_on(action));
        places.iter().copied().filter(move |place| is_pod || acts(place))
    }

    /// Whether any profile may act on the resource of a request.
    pub(crate) fn has_resource(&self, action: Action<'_>) -> bool {
        self.by_resource(action).is_some_and(|acting| acting.groups.iter().any(|group| **group == *action.group))
    }

    fn by_resource(&self, action: Action<'_>) -> Option<&Acting> {
        match action.phase {
            Phase::Mutate => self.templates.get(action.resource),
            Phase::Validate => self.validations.get(action.resource),
        }
    }

    /// The profiles that are limited to some namespaces.
    pub(crate) fn selective(&self) -> impl Iterator<Item = Place> + '_ {
        self.selective.iter().copied()
    }

    /// Finds a profile by name, or by namespace and name: the newest active revision, and the promoted one if it
    /// differs.
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
