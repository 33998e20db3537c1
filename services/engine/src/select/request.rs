//! How a pod and its namespace ask for profiles: by name, or by a label or annotation of the profile's own.
//!
//! A value is a comma-separated list of words, case ignored. A truthy word asks for the default profile of the key, a
//! falsy one for none, any other names a profile or one of its values. Label before annotation, pod before namespace:
//! the first of the four that is there decides for a profile.

use std::borrow::Cow;

use pillion_api::names::{InjectionLevel, PROFILES_ANNOTATION};
use pillion_api::profile::OptOut;

use super::candidates::{Candidates, KeyGroup, KeyKind, Place};
use super::pod::Pod;
use crate::report::{Notice, Reason};

/// How many words of one value are read. More are ignored: nobody asks for so many profiles.
const MAX_WORDS: usize = 64;

/// What is asked for.
pub(super) struct Asked {
    /// The profiles, in the order in which they are applied.
    pub(super) places: Vec<Place>,
    /// Those among them that are asked not to be applied.
    pub(super) dropped: Vec<Place>,
    pub(super) notices: Vec<Notice>,
    pub(super) denied: Option<(Reason, Box<str>)>,
}

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asker {
    Pod,
    Namespace,
}

/// Finds what a pod and its namespace ask for.
pub(super) fn asked(candidates: &Candidates, level: InjectionLevel, pod: Pod<'_>) -> Asked {
    let mut reader = Reader {
        candidates,
        level,
        pod,
        asked: Asked { places: candidates.always.clone(), dropped: Vec::new(), notices: Vec::new(), denied: None },
    };
    reader.by_key();
    reader.by_name();
    reader.falsy_for_always();
    let mut asked = reader.asked;
    asked.places.sort_unstable();
    asked.places.dedup();
    asked
}

struct Reader<'c, 'p> {
    candidates: &'c Candidates,
    level: InjectionLevel,
    pod: Pod<'p>,
    asked: Asked,
}

impl Reader<'_, '_> {
    fn by_key(&mut self) {
        let pod = self.pod;
        for (key, value) in pod.labels() {
            if let Some(value) = value.as_str() {
                self.value(Asker::Pod, KeyKind::Label, &key.text(), &value);
            }
        }
        for (key, value) in pod.annotations() {
            if let Some(value) = value.as_str() {
                self.value(Asker::Pod, KeyKind::Annotation, &key.text(), &value);
            }
        }
        for (kind, key, value) in &self.candidates.namespace_values {
            self.value(Asker::Namespace, *kind, key, value);
        }
    }

    /// One value of a key that some profile may know.
    fn value(&mut self, asker: Asker, kind: KeyKind, key: &str, value: &str) {
        let Some(group) = self.candidates.group(kind, key) else { return };
        for word in words(value) {
            if let Some(places) = group.truthy.get(&*word) {
                self.truthy(asker, kind, key, group, places);
            } else if let Some(places) = group.words.get(&*word) {
                for place in self.candidates.nearest(places) {
                    self.ask(asker, kind, place);
                }
            } else if !group.falsy.iter().any(|falsy| **falsy == *word) {
                self.unknown(key, &word, group.deny_unknown);
            }
        }
    }

    /// A truthy word asks for the default; on a pod, for what the namespace names by the same key, if it names any.
    fn truthy(&mut self, asker: Asker, kind: KeyKind, key: &str, group: &KeyGroup, places: &[Place]) {
        if asker == Asker::Pod {
            let named = self.named_by_namespace(kind, key, group);
            if !named.is_empty() {
                for place in named {
                    self.ask(asker, kind, place);
                }
                return;
            }
        }
        let mut nearest = self.candidates.nearest(places);
        match (nearest.next(), nearest.next()) {
            (Some(place), None) => self.ask(asker, kind, place),
            (Some(_), Some(_)) => self.asked.notices.push(Notice::AmbiguousWord { key: key.into() }),
            (None, _) => {}
        }
    }

    fn named_by_namespace(&self, kind: KeyKind, key: &str, group: &KeyGroup) -> Vec<Place> {
        let value = self.candidates.namespace_values.iter().find(|(k, name, _)| *k == kind && **name == *key);
        let words = value.into_iter().flat_map(|(_, _, value)| words(value));
        words.filter_map(|word| group.words.get(&*word)).flat_map(|places| self.candidates.nearest(places)).collect()
    }

    /// Asks for a profile, unless a place that comes before this one decides for it.
    fn ask(&mut self, asker: Asker, kind: KeyKind, place: Place) {
        if self.decider(place).is_some_and(|(first, first_kind, _)| (first, first_kind) == (asker, kind)) {
            self.asked.places.push(place);
        }
    }

    /// The value that decides for a profile: who says it, where, and what.
    fn decider(&self, place: Place) -> Option<(Asker, KeyKind, Cow<'_, str>)> {
        let request = self.candidates.profile(place)?.request.as_ref()?;
        let keys = [(KeyKind::Label, &request.label), (KeyKind::Annotation, &request.annotation)];
        let keys = || keys.iter().filter_map(|(kind, key)| Some((*kind, key.as_deref()?)));
        let on_pod = keys().find_map(|(kind, key)| {
            let value = match kind {
                KeyKind::Label => self.pod.label(key),
                KeyKind::Annotation => self.pod.annotation(key),
            };
            Some((Asker::Pod, kind, value?))
        });
        on_pod.or_else(|| {
            keys().find_map(|(kind, key)| {
                let values = &self.candidates.namespace_values;
                let (_, _, value) = values.iter().find(|(k, name, _)| *k == kind && **name == *key)?;
                Some((Asker::Namespace, kind, Cow::Borrowed(&**value)))
            })
        })
    }

    /// By the annotation `pillion.dev/profiles`, on namespace and pod; on a pod, `-name` takes one away.
    fn by_name(&mut self) {
        let candidates = self.candidates;
        for name in names(&candidates.namespace_names) {
            self.name(name);
        }
        let Some(on_pod) = self.pod.annotation(PROFILES_ANNOTATION) else { return };
        for name in names(&on_pod) {
            match name.strip_prefix('-') {
                Some(name) => {
                    let place = candidates.by_name(name);
                    self.asked.dropped.extend(place);
                }
                None => self.name(name),
            }
        }
    }

    fn name(&mut self, name: &str) {
        match self.candidates.by_name(name) {
            Some(place) => self.asked.places.push(place),
            None => self.unknown(PROFILES_ANNOTATION, name, false),
        }
    }

    fn unknown(&mut self, key: &str, word: &str, deny: bool) {
        if deny || self.level == InjectionLevel::Required {
            let detail = format!("{key} asks for {:?}", Shortened(word));
            self.asked.denied.get_or_insert_with(|| (Reason::UnknownProfile, detail.into()));
        } else {
            self.asked.notices.push(Notice::UnknownWord { key: key.into(), word: Shortened(word).text().into() });
        }
    }

    /// A profile that applies to all is dropped by a falsy word, or an empty value, where its key decides.
    fn falsy_for_always(&mut self) {
        for place in &self.candidates.always {
            let Some(request) = self.candidates.profile(*place).and_then(|profile| profile.request.as_ref()) else {
                continue;
            };
            let declined = self.decider(*place).is_some_and(|(_, _, value)| {
                let mut words = words(&value).peekable();
                words.peek().is_none() || words.all(|word| request.falsy.iter().any(|falsy| **falsy == *word))
            });
            let droppable = self.candidates.profile(*place).is_some_and(|profile| profile.opt_out == OptOut::Allowed);
            if declined && droppable {
                self.asked.dropped.push(*place);
            }
        }
    }
}

/// A word of somebody else's, cut to a length that messages can bear.
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

/// The words of a value, in lower case.
fn words(value: &str) -> impl Iterator<Item = Cow<'_, str>> {
    names(value).map(|word| {
        let is_lower = !word.chars().any(char::is_uppercase);
        if is_lower { Cow::Borrowed(word) } else { Cow::Owned(word.to_lowercase()) }
    })
}

fn names(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|word| !word.is_empty()).take(MAX_WORDS)
}
