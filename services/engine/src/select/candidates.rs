//! The profiles that are available in one namespace, indexed so that a review only reads the requested ones.
//!
//! A cluster may have thousands of profiles, but a pod gets only a few. Profiles that apply to all objects are in a
//! list. All others are found by hash lookups with the labels and annotations of the pod, and their values. There is
//! one index of cluster profiles, which all namespaces share, and one index for each namespace that has profiles.
//! [`Candidates`] also stores which profiles have selectors that exclude the namespace.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use pillion_api::names::PROFILES_ANNOTATION;
use pillion_api::profile::{Activation, OnUnknown, OptOut};
use pillion_api::selector::LabelSelector;

use crate::decision::Notice;
use crate::namespace::{NamespaceMetadata, Pairs};
use crate::profile::CompiledProfile;
use crate::profile::target::{Action, Phase};

/// The position of a profile among the candidates: first all cluster profiles, then the namespace's own profiles. Both
/// groups are sorted by `order`, then by name.
pub(crate) type Place = usize;

/// An incomplete rollout of a profile.
#[derive(Debug, PartialEq)]
pub(crate) struct Staging {
    /// The display name of the profile.
    pub(crate) profile: Box<str>,
    pub(crate) percent: u8,
    pub(crate) namespaces: Option<LabelSelector>,
}

/// An active revision, with the rollout and the stored revisions of its profile.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) profile: Arc<CompiledProfile>,
    /// The rollout, which both active revisions of the profile share. `None` if the profile is not in a rollout.
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

/// The profiles that one request key can request. They are found by the lower-case value of the key.
#[derive(Debug, Default)]
pub(crate) struct KeyGroup {
    /// Values that request a profile: its name, its name with the namespace, and its `values`.
    pub(crate) words: HashMap<Box<str>, Vec<Place>>,
    /// Values that request the default profile.
    pub(crate) truthy: HashMap<Box<str>, Vec<Place>>,
    /// Values that request no profile.
    pub(crate) falsy: Vec<Box<str>>,
    /// Whether an unknown value denies the object.
    pub(crate) deny_unknown: bool,
}

/// The profiles for resources with the same name, in any API group.
#[derive(Debug, Default)]
struct ActingProfiles {
    /// The API groups that the profiles target.
    groups: Vec<Box<str>>,
    /// Profiles with `activation: Always`: they apply even if the object does not request them.
    always: Vec<Place>,
}

/// The positions of the active revisions of a profile in a rollout. There is no position for a missing revision, or for
/// one with `activation: Never`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StagePlaces {
    pub(crate) newest: Option<Place>,
    pub(crate) promoted: Option<Place>,
}

impl Entry {
    /// Whether two entries have the same revision, rollout and stored revisions.
    pub(crate) fn is_same_entry(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.profile, &other.profile)
            && self.staging == other.staging
            && self.is_promoted == other.is_promoted
            && self.kept == other.kept
    }
}

impl StagePlaces {
    /// Returns the positions, increased by the number of preceding candidates.
    pub(crate) fn behind(self, others: usize) -> Self {
        Self { newest: self.newest.map(|place| place + others), promoted: self.promoted.map(|place| place + others) }
    }
}

/// Profiles sorted by `order`, then by name, with indexes by name, by request key and by resource. Profiles with
/// `activation: Never` are left out.
#[derive(Debug, Default)]
pub(crate) struct Index {
    profiles: Vec<Entry>,
    /// Profiles that apply to new pods without a request.
    always: Vec<Place>,
    /// Profiles with templates, by resource.
    templates: HashMap<Box<str>, ActingProfiles>,
    /// Profiles with validations, by resource.
    validations: HashMap<Box<str>, ActingProfiles>,
    selective: Vec<Place>,
    names: HashMap<Box<str>, Place>,
    /// The promoted revisions of profiles in a rollout.
    promoted: HashMap<Box<str>, Place>,
    stages: Vec<(Arc<Staging>, StagePlaces)>,
    labels: HashMap<Box<str>, KeyGroup>,
    annotations: HashMap<Box<str>, KeyGroup>,
    wants_lookups: bool,
}

impl Index {
    /// Creates an index. The profiles must be sorted by `order`, then by name.
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
    pub(crate) const fn wants_lookups(&self) -> bool {
        self.wants_lookups
    }

    pub(crate) fn profile(&self, place: Place) -> Option<&Arc<CompiledProfile>> {
        self.profiles.get(place).map(|entry| &entry.profile)
    }

    /// Returns the stored revisions of a profile.
    pub(crate) fn kept(&self, place: Place) -> &[Box<str>] {
        self.profiles.get(place).map_or(&[], |entry| &entry.kept)
    }

    /// Whether any profile is in a rollout.
    pub(crate) const fn has_stages(&self) -> bool {
        !self.stages.is_empty()
    }

    /// Returns the incomplete rollouts, each with the positions of the profile's active revisions.
    pub(crate) fn stages(&self) -> impl Iterator<Item = (&Staging, StagePlaces)> {
        self.stages.iter().map(|(staging, places)| (&**staging, *places))
    }

    /// Returns the profiles that apply to the object without a request.
    pub(crate) fn always(&self, action: Action<'_>) -> impl Iterator<Item = Place> {
        let is_pod = action.creates_pod();
        let places =
            if is_pod { &*self.always } else { self.by_resource(action).map_or(&[][..], |acting| &acting.always) };
        // The positions may include profiles for another API group or operation.
        let acts = move |place: &Place| self.profile(*place).is_some_and(|profile| profile.acts_on(action));
        places.iter().copied().filter(move |place| is_pod || acts(place))
    }

    /// Whether any profile may apply to the resource of a request.
    pub(crate) fn has_resource(&self, action: Action<'_>) -> bool {
        self.by_resource(action).is_some_and(|acting| acting.groups.iter().any(|group| **group == *action.group))
    }

    fn by_resource(&self, action: Action<'_>) -> Option<&ActingProfiles> {
        match action.phase {
            Phase::Mutate => self.templates.get(action.resource),
            Phase::Validate => self.validations.get(action.resource),
        }
    }

    /// Returns the profiles that have a namespace selector.
    pub(crate) fn selective(&self) -> impl Iterator<Item = Place> + '_ {
        self.selective.iter().copied()
    }

    /// Finds a profile by its name, or by namespace and name. Returns the newest active revision, and the promoted one
    /// if it is a different revision.
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
                let acting: &mut ActingProfiles = by_resource.entry(resource.clone()).or_default();
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
            let stage = self.stages.iter().position(|(other, _)| Arc::ptr_eq(other, staging));
            let stage = stage.unwrap_or_else(|| {
                self.stages.push((Arc::clone(staging), StagePlaces::default()));
                self.stages.len() - 1
            });
            if let Some((_, places)) = self.stages.get_mut(stage) {
                *if entry.is_promoted { &mut places.promoted } else { &mut places.newest } = Some(place);
            }
        }
        self.wants_lookups |= !profile.needs().is_empty();
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

/// The profiles that are available in one namespace.
#[derive(Debug)]
pub(crate) struct Candidates {
    cluster: Arc<Index>,
    own: Option<Arc<Index>>,
    /// Positions of the profiles whose selectors exclude the namespace. A namespaced profile has such a selector if it
    /// extends a cluster profile with a selector.
    excluded: PlaceSet,
    /// The labels and annotations of the namespace that are request keys of profiles: kind, key and value.
    pub(crate) namespace_values: Vec<(KeyKind, Box<str>, Box<str>)>,
    /// The value of the namespace's annotation `pillion.dev/profiles`.
    pub(crate) namespace_names: Box<str>,
    /// The choice of revisions for one object.
    pub(crate) choice: Choice,
}

/// The revisions chosen for one object.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    /// Positions of active revisions that are not used for this object.
    pub(crate) unchosen: Vec<Place>,
    /// Pinned revisions that are not active, and the position that each of them takes.
    pub(crate) pinned: Vec<(Place, Arc<CompiledProfile>)>,
    /// Values `name@digits` that do not identify exactly one available revision.
    pub(crate) unknown: Vec<Box<str>>,
    pub(crate) notices: Vec<Notice>,
}

/// A bit set of positions. There may be thousands of profiles, and most of them may exclude the namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct PlaceSet {
    bits: Vec<u64>,
    count: usize,
}

/// The profiles that one request key can request: cluster profiles, and the namespace's own profiles.
#[derive(Clone, Copy)]
pub(crate) struct Groups<'c> {
    candidates: &'c Candidates,
    action: Action<'c>,
    cluster: Option<&'c KeyGroup>,
    own: Option<&'c KeyGroup>,
}

impl Candidates {
    /// Finds the candidates for a namespace among the cluster profiles and the namespace's own profiles.
    pub(crate) fn find(cluster: &Arc<Index>, own: Option<&Arc<Index>>, namespace: &NamespaceMetadata) -> Self {
        let (cluster, own) = (Arc::clone(cluster), own.cloned());
        let mut excluded = PlaceSet::default();
        let mut exclude = |index: &Index, offset: Place| {
            for place in index.selective() {
                let selector = index.profile(place).and_then(|profile| profile.namespace_selector.as_ref());
                if selector.is_some_and(|selector| !selector.matches(|key| namespace.label(key))) {
                    excluded.add(place + offset);
                }
            }
        };
        exclude(&cluster, 0);
        if let Some(own) = &own {
            exclude(own, cluster.len());
        }
        excluded.bits.shrink_to_fit();
        let mut candidates = Self {
            excluded,
            own,
            cluster,
            namespace_values: Vec::new(),
            namespace_names: namespace.annotation(PROFILES_ANNOTATION).unwrap_or_default().into(),
            choice: Choice::default(),
        };
        let requests = |kind: KeyKind, pairs: Pairs<'_>| -> Vec<_> {
            let requests = pairs.filter(|(key, _)| candidates.knows(kind, key));
            requests.map(|(key, value)| (kind, key.into(), value.into())).collect()
        };
        let mut values = requests(KeyKind::Label, namespace.labels());
        values.extend(requests(KeyKind::Annotation, namespace.annotations()));
        candidates.namespace_values = values;
        candidates
    }

    /// Whether the candidates were computed from these indexes.
    pub(crate) fn is_of(&self, cluster: &Arc<Index>, own: Option<&Arc<Index>>) -> bool {
        Arc::ptr_eq(&self.cluster, cluster) && self.own.as_ref().map(Arc::as_ptr) == own.map(Arc::as_ptr)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.cluster.len() + self.own.as_ref().map_or(0, |own| own.len()) == self.excluded.count
    }

    /// Whether any cluster profile, or any profile of the namespace, needs lookups. This includes profiles that exclude
    /// the namespace. In most clusters no profile needs lookups.
    pub(crate) fn wants_lookups(&self) -> bool {
        self.cluster.wants_lookups() || self.own.as_ref().is_some_and(|own| own.wants_lookups())
    }

    pub(crate) fn profile(&self, place: Place) -> Option<&Arc<CompiledProfile>> {
        if let Some((_, pinned)) = self.choice.pinned.iter().find(|(other, _)| *other == place) {
            return Some(pinned);
        }
        match place.checked_sub(self.cluster.len()) {
            None => self.cluster.profile(place),
            Some(place) => self.own.as_ref().and_then(|own| own.profile(place)),
        }
    }

    /// Returns the pinned revisions that are not active.
    pub(crate) fn pinned(&self) -> impl Iterator<Item = &Arc<CompiledProfile>> {
        self.choice.pinned.iter().map(|(_, pinned)| pinned)
    }

    /// Returns the same candidates with a different choice of revisions.
    pub(crate) fn with_choice(&self, choice: Choice) -> Self {
        Self {
            cluster: Arc::clone(&self.cluster),
            own: self.own.clone(),
            excluded: self.excluded.clone(),
            namespace_values: self.namespace_values.clone(),
            namespace_names: self.namespace_names.clone(),
            choice,
        }
    }

    /// Returns only the cluster profiles. `None` if the namespace has no profiles of its own.
    pub(crate) fn of_platform(&self) -> Option<Self> {
        self.own.as_ref()?;
        Some(Self { own: None, ..self.with_choice(self.choice.clone()) })
    }

    /// Whether any profile is in a rollout.
    pub(crate) fn has_stages(&self) -> bool {
        self.cluster.has_stages() || self.own.as_ref().is_some_and(|own| own.has_stages())
    }

    /// Returns the incomplete rollouts, each with the positions of the profile's active revisions.
    pub(crate) fn stages(&self) -> impl Iterator<Item = (&Staging, StagePlaces)> {
        let offset = self.cluster.len();
        let own = self.own.iter().flat_map(|own| own.stages());
        self.cluster.stages().chain(own.map(move |(staging, places)| (staging, places.behind(offset))))
    }

    /// Returns the active revisions of the profile with this name. The namespace's own profiles hide cluster profiles.
    pub(crate) fn places_of(&self, name: &str) -> impl Iterator<Item = Place> {
        let [cluster, own] = self.places_by_name(name);
        let own: Vec<_> = own.into_iter().flatten().collect();
        let cluster: Vec<_> = if own.is_empty() { cluster.into_iter().flatten().collect() } else { Vec::new() };
        own.into_iter().chain(cluster)
    }

    /// Returns the active revisions of the profile with this display name. Injection records contain display names.
    pub(crate) fn active_places_of(&self, display_name: &str) -> impl Iterator<Item = Place> {
        let is_own = display_name.contains('/');
        let [cluster, own] = self.places_by_name(display_name);
        let places = if is_own { own } else { cluster };
        places.into_iter().flatten()
    }

    /// Returns the revisions of a profile: the active one at `place`, and the stored ones.
    pub(crate) fn revisions_at(&self, place: Place) -> impl Iterator<Item = &str> {
        let kept = match place.checked_sub(self.cluster.len()) {
            None => self.cluster.kept(place),
            Some(place) => self.own.as_ref().map_or(&[][..], |own| own.kept(place)),
        };
        self.profile(place).map(|profile| profile.revision()).into_iter().chain(kept.iter().map(|kept| &**kept))
    }

    /// Returns the positions of the cluster profile and of the namespace's own profile with this name. Leaves out
    /// profiles that exclude the namespace.
    fn places_by_name(&self, name: &str) -> [[Option<Place>; 2]; 2] {
        let here = |place: Option<Place>| place.filter(|place| !self.excluded.contains(*place));
        let own = self.own.as_ref().map_or([None, None], |own| own.by_name(name));
        let own = own.map(|place| here(place.map(|place| place + self.cluster.len())));
        [self.cluster.by_name(name).map(here), own]
    }

    /// Returns the profiles that apply to the object without a request: first cluster profiles, then the namespace's
    /// own.
    pub(crate) fn always(&self, action: Action<'_>) -> impl Iterator<Item = Place> {
        let cluster = self.cluster.always(action).filter(|place| self.is_candidate(*place));
        let own = self.own.iter().flat_map(move |own| own.always(action)).map(|place| place + self.cluster.len());
        cluster.chain(own.filter(|place| self.is_candidate(*place)))
    }

    /// Returns the profiles with this name that apply to the object. `None` if no profile has this name. The
    /// namespace's own profiles hide cluster profiles, except those with `optOut: Forbidden`.
    pub(crate) fn by_name(&self, name: &str, action: Action<'_>) -> Option<impl Iterator<Item = Place>> {
        let [cluster, own] = self.places_by_name(name);
        if own.iter().chain(&cluster).all(Option::is_none) {
            return None;
        }
        // If the rollout of a profile has not reached this workload yet, the result is empty instead of `None`, so that
        // the profile's name is not reported as unknown.
        let acts = |place: &Place| self.is_candidate(*place) && self.acts(*place, action);
        let own = own.map(|place| place.filter(acts));
        let is_free = own.iter().all(Option::is_none);
        let cluster = cluster.map(|place| place.filter(|place| acts(place) && (is_free || self.is_forced(*place))));
        Some(cluster.into_iter().chain(own).flatten())
    }

    /// Returns the profiles that a request key can request. `None` if no profile has this key.
    pub(crate) fn groups<'c>(&'c self, kind: KeyKind, key: &str, action: Action<'c>) -> Option<Groups<'c>> {
        let cluster = self.cluster.group(kind, key);
        let own = self.own.as_ref().and_then(|own| own.group(kind, key));
        (cluster.is_some() || own.is_some()).then_some(Groups { candidates: self, action, cluster, own })
    }

    fn knows(&self, kind: KeyKind, key: &str) -> bool {
        self.cluster.group(kind, key).is_some() || self.own.as_ref().is_some_and(|own| own.group(kind, key).is_some())
    }

    fn acts(&self, place: Place, action: Action<'_>) -> bool {
        self.profile(place).is_some_and(|profile| profile.acts_on(action))
    }

    /// Whether a profile forbids opting out.
    pub(crate) fn is_forced(&self, place: Place) -> bool {
        self.profile(place).is_some_and(|profile| profile.opt_out == OptOut::Forbidden)
    }

    fn is_candidate(&self, place: Place) -> bool {
        !self.excluded.contains(place) && !self.choice.unchosen.contains(&place)
    }
}

impl PartialEq for Choice {
    fn eq(&self, other: &Self) -> bool {
        let pinned = |choice: &Self| {
            let pinned = choice.pinned.iter();
            pinned.map(|(place, profile)| (*place, Arc::as_ptr(profile))).collect::<Vec<_>>()
        };
        self.unchosen == other.unchosen
            && self.unknown == other.unknown
            && self.notices == other.notices
            && pinned(self) == pinned(other)
    }
}

/// If two sets of candidates are equal, every request gets the same profiles from them.
impl PartialEq for Candidates {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cluster, &other.cluster)
            && self.own.as_ref().map(Arc::as_ptr) == other.own.as_ref().map(Arc::as_ptr)
            && self.excluded == other.excluded
            && self.namespace_values == other.namespace_values
            && self.namespace_names == other.namespace_names
            && self.choice == other.choice
    }
}

impl Eq for Candidates {}

impl Hash for Candidates {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.own.as_ref().map(Arc::as_ptr).hash(hasher);
        self.excluded.hash(hasher);
        self.namespace_values.hash(hasher);
        self.namespace_names.hash(hasher);
    }
}

impl PlaceSet {
    fn add(&mut self, place: Place) {
        if self.contains(place) {
            return;
        }
        let (word, bit) = (place / 64, place % 64);
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        if let Some(word) = self.bits.get_mut(word) {
            *word |= 1 << bit;
            self.count += 1;
        }
    }

    fn contains(&self, place: Place) -> bool {
        self.bits.get(place / 64).is_some_and(|word| word & (1 << (place % 64)) != 0)
    }
}

/// The meaning of a value of a request key.
pub(crate) enum Meaning {
    /// The value is the name or another value of these profiles.
    Named(Vec<Place>),
    /// The value is a truthy word of these profiles, and requests the default profile. If several of them allow opting
    /// out, the request is ambiguous.
    Truthy(Vec<Place>),
    /// The value requests no profile, or only profiles that do not apply to the object.
    Falsy,
    /// No profile has this value.
    Unknown,
}

impl Groups<'_> {
    /// Returns the meaning of a value. The value must be in lower case.
    pub(crate) fn meaning(&self, word: &str) -> Meaning {
        let truthy = self.places(|group| group.truthy.get(word));
        if !truthy.is_empty() {
            return Meaning::Truthy(truthy);
        }
        let named = self.named(word);
        if !named.is_empty() {
            return Meaning::Named(named);
        }
        let is_falsy = |group: &KeyGroup| group.falsy.iter().any(|falsy| **falsy == *word);
        let means_others = |group: &KeyGroup| group.words.contains_key(word) || group.truthy.contains_key(word);
        if self.both().any(|group| is_falsy(group) || means_others(group)) { Meaning::Falsy } else { Meaning::Unknown }
    }

    /// Returns the profiles that have this value.
    pub(crate) fn named(&self, word: &str) -> Vec<Place> {
        self.places(|group| group.words.get(word))
    }

    /// Whether an unknown value denies the object.
    pub(crate) fn deny_unknown(&self) -> bool {
        self.both().any(|group| group.deny_unknown)
    }

    /// Returns the profiles that apply to the object: the namespace's own profiles or, if there are none, the cluster
    /// profiles. Also returns all cluster profiles with `optOut: Forbidden`.
    fn places(&self, find: impl Fn(&KeyGroup) -> Option<&Vec<Place>>) -> Vec<Place> {
        let offset = self.candidates.cluster.len();
        let acts = |place: &Place| self.candidates.acts(*place, self.action);
        let own = self.own.and_then(&find).into_iter().flatten().map(|place| place + offset);
        let own: Vec<_> = own.filter(|place| acts(place) && self.candidates.is_candidate(*place)).collect();
        let cluster = self.cluster.and_then(&find).into_iter().flatten().copied();
        let cluster = cluster.filter(|place| {
            self.candidates.is_candidate(*place) && (own.is_empty() || self.candidates.is_forced(*place))
        });
        cluster.filter(acts).chain(own.iter().copied()).collect()
    }

    fn both(&self) -> impl Iterator<Item = &KeyGroup> {
        self.cluster.into_iter().chain(self.own)
    }
}
