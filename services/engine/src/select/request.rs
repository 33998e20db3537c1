//! Finds the profiles that a pod and its namespace request, by name or by the request key of the profile.
//!
//! See [`crate::profile::request`] for the values of a key. The first value that is present determines whether a
//! profile is requested: the pod's label, the pod's annotation, the namespace's label, or the namespace's annotation. A
//! profile that forbids opting out is requested if any of these values requests it. Profiles with `empty: Absent`
//! ignore empty values.

use std::borrow::Cow;

use pillion_api::names::{FailureMode, PROFILES_ANNOTATION};

use crate::context::EvalContext;
use crate::decision::{Notice, Reason};
use crate::json::{Key, Value};
use crate::profile::request::{names, words};
use crate::profile::target::Action;

use super::candidates::{Candidates, Groups, KeyKind, Meaning, Place};

/// The labels and annotations of an object.
#[derive(Clone, Copy)]
pub(crate) struct Pod<'p> {
    labels: Option<Value<'p>>,
    annotations: Option<Value<'p>>,
}

impl<'p> Pod<'p> {
    pub(crate) fn new(object: Value<'p>) -> Self {
        let metadata = object.get("metadata");
        let part = |name| metadata.and_then(|metadata| metadata.get(name));
        Self { labels: part("labels"), annotations: part("annotations") }
    }

    /// Returns the metadata of the object. For a deletion, that of the old object.
    pub(crate) fn of(context: EvalContext<'p>) -> Self {
        let old = || context.request.get("oldObject").unwrap_or(context.object);
        Self::new(if context.object.is_null() { old() } else { context.object })
    }

    pub(crate) fn label(self, key: &str) -> Option<Cow<'p, str>> {
        self.labels?.get(key)?.as_str()
    }

    pub(crate) fn annotation(self, key: &str) -> Option<Cow<'p, str>> {
        self.annotations?.get(key)?.as_str()
    }

    /// Returns the number of labels and annotations, in constant time.
    pub(crate) fn entries(self) -> usize {
        // Each has a key and a value.
        [self.labels, self.annotations].into_iter().flatten().map(|part| part.node_count() / 2).sum()
    }

    pub(crate) fn labels(self) -> impl Iterator<Item = (Key<'p>, Value<'p>)> {
        self.labels.into_iter().flat_map(Value::members)
    }

    pub(crate) fn annotations(self) -> impl Iterator<Item = (Key<'p>, Value<'p>)> {
        self.annotations.into_iter().flat_map(Value::members)
    }
}

/// The requested profiles.
pub(super) struct RequestedProfiles {
    /// The positions of the profiles, in the order in which they are applied, except that [`super::select`] moves
    /// stand-ins.
    pub(super) places: Vec<Place>,
    /// The positions of requested profiles that the pod opts out of.
    pub(super) dropped: Vec<Place>,
    pub(super) notices: Vec<Notice>,
    pub(super) denied: Option<(Reason, Box<str>)>,
}

/// The object that has the requesting label or annotation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestSource {
    Pod,
    Namespace,
}

/// Finds the profiles that a pod and its namespace request, and those with `activation: Always`.
///
/// A value that is the name of both a cluster profile and a namespaced profile requests both. So a namespace cannot
/// hide a cluster profile behind its own profile with the same name.
pub(super) fn requested_profiles(
    candidates: &Candidates,
    action: Action<'_>,
    failure_mode: FailureMode,
    pod: Pod<'_>,
) -> RequestedProfiles {
    let mut requested = read(candidates, action, failure_mode, pod);
    if let Some(platform) = candidates.of_platform() {
        let alone = read(&platform, action, failure_mode, pod);
        requested.places.extend(alone.places);
        requested.dropped.extend(alone.dropped);
    }
    // Profiles whose specs come from the platform precede those whose specs come from the namespace.
    let is_limited = |place: Place| candidates.profile(place).is_some_and(|profile| profile.is_limited());
    requested.places.sort_unstable_by_key(|place| (is_limited(*place), *place));
    requested.places.dedup();
    requested
}

fn read(candidates: &Candidates, action: Action<'_>, failure_mode: FailureMode, pod: Pod<'_>) -> RequestedProfiles {
    let places: Vec<_> = candidates.always(action).collect();
    let mut reader = Reader {
        candidates,
        always: places.len(),
        action,
        failure_mode,
        pod,
        requested: RequestedProfiles { places, dropped: Vec::new(), notices: Vec::new(), denied: None },
    };
    reader.read_keys();
    reader.read_names();
    reader.drop_declined();
    reader.requested
}

struct Reader<'c, 'p> {
    candidates: &'c Candidates,
    /// The number of profiles with `activation: Always`. They are the first ones in the list of requested profiles.
    always: usize,
    action: Action<'c>,
    failure_mode: FailureMode,
    pod: Pod<'p>,
    requested: RequestedProfiles,
}

impl Reader<'_, '_> {
    fn read_keys(&mut self) {
        let pod = self.pod;
        for (key, value) in pod.labels() {
            if let Some(value) = value.as_str() {
                self.read_value(RequestSource::Pod, KeyKind::Label, &key.text(), &value);
            }
        }
        for (key, value) in pod.annotations() {
            if let Some(value) = value.as_str() {
                self.read_value(RequestSource::Pod, KeyKind::Annotation, &key.text(), &value);
            }
        }
        for (kind, key, value) in &self.candidates.namespace_values {
            self.read_value(RequestSource::Namespace, *kind, key, value);
        }
    }

    /// Requests the profiles for the value of one label or annotation.
    fn read_value(&mut self, source: RequestSource, kind: KeyKind, key: &str, value: &str) {
        let Some(groups) = self.candidates.groups(kind, key, self.action) else { return };
        for word in words(value) {
            match groups.meaning(&word) {
                Meaning::Truthy(places) => self.request_default(source, kind, key, groups, &places),
                Meaning::Named(places) => places.into_iter().for_each(|place| self.request(source, kind, place)),
                Meaning::Falsy => {}
                Meaning::Unknown => self.unknown(key, &word, groups.deny_unknown()),
            }
        }
    }

    /// Handles a truthy value. If the value is on the pod, and the namespace's value of the same key contains names of
    /// profiles, requests those profiles. Otherwise requests the default profile.
    fn request_default(
        &mut self,
        source: RequestSource,
        kind: KeyKind,
        key: &str,
        groups: Groups<'_>,
        places: &[Place],
    ) {
        if source == RequestSource::Pod {
            let named = self.named_by_namespace(kind, key, groups);
            if !named.is_empty() {
                for place in named {
                    self.request(source, kind, place);
                }
                return;
            }
        }
        // Profiles that forbid opting out are all requested. If several others have this key, the value is ambiguous.
        let (forced, free): (Vec<_>, Vec<_>) =
            places.iter().copied().partition(|place| self.candidates.is_forced(*place));
        for place in forced {
            self.request(source, kind, place);
        }
        match free.as_slice() {
            [place] => self.request(source, kind, *place),
            [] => {}
            _ => self.requested.notices.push(Notice::AmbiguousRequest { key: key.into() }),
        }
    }

    fn named_by_namespace(&self, kind: KeyKind, key: &str, groups: Groups<'_>) -> Vec<Place> {
        let value = self.candidates.namespace_values.iter().find(|(k, name, _)| *k == kind && **name == *key);
        let words = value.into_iter().flat_map(|(_, _, value)| words(value));
        words.flat_map(|word| groups.named(&word)).collect()
    }

    /// Requests a profile if `source` and `kind` are those of its deciding value. Profiles that forbid opting out are
    /// always requested.
    fn request(&mut self, source: RequestSource, kind: KeyKind, place: Place) {
        let decides =
            self.deciding_value(place).is_some_and(|(first, first_kind, _)| (first, first_kind) == (source, kind));
        if decides || self.candidates.is_forced(place) {
            self.requested.places.push(place);
        }
    }

    /// Returns the value that determines whether a profile is requested, with its object and the kind of its key.
    /// `None` if there is no such value.
    fn deciding_value(&self, place: Place) -> Option<(RequestSource, KeyKind, Cow<'_, str>)> {
        let request = self.candidates.profile(place)?.request.as_ref()?;
        let keys = [(KeyKind::Label, &request.label), (KeyKind::Annotation, &request.annotation)];
        let keys = || keys.iter().filter_map(|(kind, key)| Some((*kind, key.as_deref()?)));
        let on_pod = keys().find_map(|(kind, key)| {
            let value = match kind {
                KeyKind::Label => self.pod.label(key),
                KeyKind::Annotation => self.pod.annotation(key),
            };
            Some((RequestSource::Pod, kind, value.filter(|value| request.empty.says(value))?))
        });
        on_pod.or_else(|| {
            keys().find_map(|(kind, key)| {
                let values = &self.candidates.namespace_values;
                let (_, _, value) = values.iter().find(|(k, name, _)| *k == kind && **name == *key)?;
                let value = Some(value).filter(|value| request.empty.says(value))?;
                Some((RequestSource::Namespace, kind, Cow::Borrowed(&**value)))
            })
        })
    }

    /// Reads the annotation `pillion.dev/profiles` of the namespace and the pod. On a pod, `-name` opts out of a
    /// profile.
    fn read_names(&mut self) {
        let candidates = self.candidates;
        for name in names(&candidates.namespace_names) {
            self.request_by_name(name);
        }
        let Some(on_pod) = self.pod.annotation(PROFILES_ANNOTATION) else { return };
        for name in names(&on_pod) {
            match name.strip_prefix('-') {
                Some(name) => match candidates.by_name(without_pin(name), self.action) {
                    Some(places) => self.requested.dropped.extend(places),
                    None => self.unknown(PROFILES_ANNOTATION, name, false),
                },
                None => self.request_by_name(name),
            }
        }
    }

    /// Requests a profile by name. If the profile can be pinned, a pin (`name@hash`) that does not identify exactly one
    /// available revision is treated like an unknown name.
    fn request_by_name(&mut self, name: &str) {
        let is_known = !self.candidates.choice.unknown.iter().any(|word| **word == *name);
        match self.candidates.by_name(without_pin(name), self.action).filter(|_| is_known) {
            Some(places) => self.requested.places.extend(places),
            None => self.unknown(PROFILES_ANNOTATION, name, false),
        }
    }

    fn unknown(&mut self, key: &str, word: &str, deny: bool) {
        if deny || self.failure_mode == FailureMode::Required {
            let detail = format!("{key} requests {:?}", Shortened(word));
            self.requested.denied.get_or_insert_with(|| (Reason::UnknownProfile, detail.into()));
        } else {
            self.requested
                .notices
                .push(Notice::UnknownProfile { key: key.into(), word: Shortened(word).text().into() });
        }
    }

    /// Opts out of the profiles that the deciding value of their key declines because it is falsy or empty. A value on
    /// the namespace declines only profiles with `activation: Always`: a pod can still request the others by name.
    fn drop_declined(&mut self) {
        for (index, place) in self.requested.places.iter().copied().enumerate() {
            let Some(request) = self.candidates.profile(place).and_then(|profile| profile.request.as_ref()) else {
                continue;
            };
            let is_always = index < self.always;
            let declines = |source, value: &str| (is_always || source == RequestSource::Pod) && request.declines(value);
            if self.deciding_value(place).is_some_and(|(source, _, value)| declines(source, &value)) {
                self.requested.dropped.push(place);
            }
        }
    }
}

/// An untrusted value that is truncated in messages.
struct Shortened<'w>(&'w str);

impl Shortened<'_> {
    const LENGTH: usize = 64;

    fn text(&self) -> &str {
        self.0.char_indices().nth(Self::LENGTH).and_then(|(end, _)| self.0.get(..end)).unwrap_or(self.0)
    }
}

impl std::fmt::Debug for Shortened<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self.text(), formatter)
    }
}

/// Returns a name without its pinned revision.
fn without_pin(name: &str) -> &str {
    name.split_once('@').map_or(name, |(name, _)| name)
}
