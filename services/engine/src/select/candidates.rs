//! The profiles that may act in one namespace, arranged so that a request looks only at those that it asks for.
//!
//! A cluster may have thousands of profiles of which a pod gets two. Profiles that apply to everybody are a list; all
//! others are found by hashing: the labels and annotations that the pod has, and the words in them. The index of the
//! platform's profiles is shared by all namespaces; a namespace has one of its own profiles, and a note of the platform's
//! that its labels exclude.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use pillion_api::names::PROFILES_ANNOTATION;
use pillion_api::profile::OptOut;

use super::index::{Index, KeyGroup, KeyKind, Place, StagePlaces, Staging};
use crate::decision::Notice;
use crate::namespace::{NamespaceMetadata, Pairs};
use crate::profile::CompiledProfile;
use crate::profile::target::Action;

/// The profiles that may act in one namespace.
#[derive(Debug)]
pub(crate) struct Candidates {
    cluster: Arc<Index>,
    own: Option<Arc<Index>>,
    /// PlaceSet of the profiles whose selectors exclude the namespace. One of the namespace's own has a selector if it
    /// extends one of the platform's that has.
    excluded: PlaceSet,
    /// What the namespace itself asks for: the keys that some profile knows.
    pub(crate) namespace_values: Vec<(KeyKind, Box<str>, Box<str>)>,
    /// What the namespace asks for by name.
    pub(crate) namespace_names: Box<str>,
    /// Which revisions one object gets.
    pub(crate) choice: Choice,
}

/// Which revisions one object gets, where there is a choice.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    /// PlaceSet of revisions that others get.
    pub(crate) unchosen: Vec<Place>,
    /// Revisions that are not at work, and the places that they take.
    pub(crate) pinned: Vec<(Place, Arc<CompiledProfile>)>,
    /// Words that pin a revision which is not there.
    pub(crate) unknown: Vec<Box<str>>,
    pub(crate) notices: Vec<Notice>,
}

/// A set of places: a bit each, as there may be thousands, of which a namespace is excluded from nearly all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct PlaceSet {
    bits: Vec<u64>,
    count: usize,
}

/// The profiles that one key asks for: the platform's, and the namespace's own.
#[derive(Clone, Copy)]
pub(crate) struct Groups<'c> {
    candidates: &'c Candidates,
    action: Action<'c>,
    cluster: Option<&'c KeyGroup>,
    own: Option<&'c KeyGroup>,
}

impl Candidates {
    /// Finds the candidates for a namespace among the cluster profiles and the namespace's own.
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
        let known = |kind: KeyKind, pairs: Pairs<'_>| -> Vec<_> {
            let known = pairs.filter(|(key, _)| candidates.knows(kind, key));
            known.map(|(key, value)| (kind, key.into(), value.into())).collect()
        };
        let mut values = known(KeyKind::Label, namespace.labels());
        values.extend(known(KeyKind::Annotation, namespace.annotations()));
        candidates.namespace_values = values;
        candidates
    }

    /// Whether they were found in these indexes.
    pub(crate) fn is_of(&self, cluster: &Arc<Index>, own: Option<&Arc<Index>>) -> bool {
        Arc::ptr_eq(&self.cluster, cluster) && self.own.as_ref().map(Arc::as_ptr) == own.map(Arc::as_ptr)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.cluster.len() + self.own.as_ref().map_or(0, |own| own.len()) == self.excluded.count
    }

    /// Whether any of them wants something looked up. Most clusters have no such profile, and no request pays for it.
    pub(crate) fn want_look_ups(&self) -> bool {
        self.cluster.wants_look_ups() || self.own.as_ref().is_some_and(|own| own.wants_look_ups())
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

    /// The revisions of one object's that are not at work.
    pub(crate) fn pinned(&self) -> impl Iterator<Item = &Arc<CompiledProfile>> {
        self.choice.pinned.iter().map(|(_, pinned)| pinned)
    }

    /// The same with the revisions that one object gets.
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

    /// The platform's profiles alone; `None` if the namespace has none of its own.
    pub(crate) fn of_platform(&self) -> Option<Self> {
        self.own.as_ref()?;
        Some(Self { own: None, ..self.with_choice(self.choice.clone()) })
    }

    /// Whether any profile has two revisions at work.
    pub(crate) fn has_stages(&self) -> bool {
        self.cluster.has_stages() || self.own.as_ref().is_some_and(|own| own.has_stages())
    }

    /// The profiles that have two revisions at work, and where they stand.
    pub(crate) fn stages(&self) -> impl Iterator<Item = (&Staging, StagePlaces)> {
        let offset = self.cluster.len();
        let own = self.own.iter().flat_map(|own| own.stages());
        self.cluster.stages().chain(own.map(move |(staging, places)| (staging, places.behind(offset))))
    }

    /// The revisions that are at work of the profile that a name means, which is the namespace's own if it has one.
    pub(crate) fn places_of(&self, name: &str) -> impl Iterator<Item = Place> {
        let [cluster, own] = self.places_by_name(name);
        let own: Vec<_> = own.into_iter().flatten().collect();
        let cluster: Vec<_> = if own.is_empty() { cluster.into_iter().flatten().collect() } else { Vec::new() };
        own.into_iter().chain(cluster)
    }

    /// The revisions that are at work of a profile, by the name that records call it.
    pub(crate) fn places_called(&self, display_name: &str) -> impl Iterator<Item = Place> {
        let is_own = display_name.contains('/');
        let [cluster, own] = self.places_by_name(display_name);
        let places = if is_own { own } else { cluster };
        places.into_iter().flatten()
    }

    /// The revisions of a profile that there are: the one at a place, and those that are kept.
    pub(crate) fn revisions_at(&self, place: Place) -> impl Iterator<Item = &str> {
        let kept = match place.checked_sub(self.cluster.len()) {
            None => self.cluster.kept(place),
            Some(place) => self.own.as_ref().map_or(&[][..], |own| own.kept(place)),
        };
        self.profile(place).map(|profile| profile.revision()).into_iter().chain(kept.iter().map(|kept| &**kept))
    }

    /// The places of the platform's profile of a name and of the namespace's own, whose selectors have the namespace.
    fn places_by_name(&self, name: &str) -> [[Option<Place>; 2]; 2] {
        let here = |place: Option<Place>| place.filter(|place| !self.excluded.contains(*place));
        let own = self.own.as_ref().map_or([None, None], |own| own.by_name(name));
        let own = own.map(|place| here(place.map(|place| place + self.cluster.len())));
        [self.cluster.by_name(name).map(here), own]
    }

    /// The profiles that act on what a request is about without being asked for, in their order.
    pub(crate) fn always(&self, action: Action<'_>) -> impl Iterator<Item = Place> {
        let cluster = self.cluster.always(action).filter(|place| self.is_here(*place));
        let own = self.own.iter().flat_map(move |own| own.always(action)).map(|place| place + self.cluster.len());
        cluster.chain(own.filter(|place| self.is_here(*place)))
    }

    /// The profiles that a name means, of those that act on what a request is about; `None` if no profile at all is called
    /// so. A tenant's own stands before the platform's, except that it cannot take the place of one which a pod's author
    /// cannot drop.
    pub(crate) fn by_name(&self, name: &str, action: Action<'_>) -> Option<impl Iterator<Item = Place>> {
        let [cluster, own] = self.places_by_name(name);
        if own.iter().chain(&cluster).all(Option::is_none) {
            return None;
        }
        // Of a profile that is rolled out, those who do not get it yet know its name all the same.
        let acts = |place: &Place| self.is_here(*place) && self.acts(*place, action);
        let own = own.map(|place| place.filter(acts));
        let is_free = own.iter().all(Option::is_none);
        let cluster = cluster.map(|place| place.filter(|place| acts(place) && (is_free || self.is_forced(*place))));
        Some(cluster.into_iter().chain(own).flatten())
    }

    /// The profiles that a key asks for; `None` if no profile knows it.
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

    /// Whether the pod's author cannot drop a profile.
    pub(crate) fn is_forced(&self, place: Place) -> bool {
        self.profile(place).is_some_and(|profile| profile.opt_out == OptOut::Forbidden)
    }

    fn is_here(&self, place: Place) -> bool {
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

/// Those of the same profiles are the same if a request would find the same in them.
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

/// What a word means.
pub(crate) enum Meaning {
    /// A profile's name or value: these.
    Named(Vec<Place>),
    /// The default: these, of which there should be one.
    Truthy(Vec<Place>),
    /// None, or only such as do not act on what the request is about.
    Falsy,
    /// Nobody knows it.
    Unknown,
}

impl Groups<'_> {
    /// What a word means, in lower case.
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

    /// The profiles that a word names.
    pub(crate) fn named(&self, word: &str) -> Vec<Place> {
        self.places(|group| group.words.get(word))
    }

    /// Whether a word that nobody knows is a refusal.
    pub(crate) fn deny_unknown(&self) -> bool {
        self.both().any(|group| group.deny_unknown)
    }

    /// Of the profiles that act on what the request is about: the namespace's own, if there are any, else the platform's;
    /// those that cannot be dropped in any case.
    fn places(&self, find: impl Fn(&KeyGroup) -> Option<&Vec<Place>>) -> Vec<Place> {
        let offset = self.candidates.cluster.len();
        let acts = |place: &Place| self.candidates.acts(*place, self.action);
        let own = self.own.and_then(&find).into_iter().flatten().map(|place| place + offset);
        let own: Vec<_> = own.filter(|place| acts(place) && self.candidates.is_here(*place)).collect();
        let cluster = self.cluster.and_then(&find).into_iter().flatten().copied();
        let cluster = cluster
            .filter(|place| self.candidates.is_here(*place) && (own.is_empty() || self.candidates.is_forced(*place)));
        cluster.filter(acts).chain(own.iter().copied()).collect()
    }

    fn both(&self) -> impl Iterator<Item = &KeyGroup> {
        self.cluster.into_iter().chain(self.own)
    }
}
