//! The metadata of a namespace: its labels, its annotations and its failure mode.
//!
//! A cluster has thousands of namespaces, each with a few labels and annotations of a few dozen bytes. Maps of strings
//! would take more memory than the strings. Therefore [`NamespaceMetadata`] stores all strings of a namespace in one
//! buffer, each after its length. Lookups scan the buffer from the start, because there are few strings.

use std::collections::BTreeMap;
use std::fmt;

use pillion_api::names::{FailureMode, INJECTION_LABEL};
use pillion_api::opt_in::OptIn;

/// The metadata of a namespace for selectors, profile requests and expressions.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct NamespaceMetadata {
    /// The labels, then the annotations, each sorted by key.
    text: Box<str>,
    /// The offset of the annotations in `text`.
    annotations_at: u32,
    /// The number of labels and annotations.
    entries: u32,
    /// The failure mode. `None` if the namespace is not opted in.
    failure_mode: Option<FailureMode>,
}

/// An iterator over labels or annotations, in the order of their keys.
#[derive(Clone, Debug)]
pub struct Pairs<'n> {
    rest: &'n str,
}

impl NamespaceMetadata {
    /// Creates the metadata from labels and annotations in any order. If a key is repeated, its last value is used.
    /// Pillion's own label sets the failure mode, unless [`NamespaceMetadata::opting_in_by`] sets it from other labels.
    #[must_use]
    pub fn new<K: Into<Box<str>>, V: Into<Box<str>>>(
        labels: impl IntoIterator<Item = (K, V)>,
        annotations: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let mut text = String::new();
        let labels = write_pairs(&mut text, labels);
        // The offset fits, because the size of an object is limited to a few megabytes.
        let annotations_at = u32::try_from(text.len()).unwrap_or(u32::MAX);
        let annotations = write_pairs(&mut text, annotations);
        let entries = u32::try_from(labels + annotations).unwrap_or(u32::MAX);
        let mut namespace = Self { text: text.into(), annotations_at, entries, failure_mode: None };
        namespace.failure_mode = namespace.label(INJECTION_LABEL).and_then(FailureMode::from_label_value);
        namespace
    }

    /// Sets the failure mode from the opt-in labels of a release.
    #[must_use]
    pub fn opting_in_by(mut self, opt_in: &OptIn) -> Self {
        self.failure_mode = opt_in.failure_mode(|key| self.label(key));
        self
    }

    /// Creates the metadata of a namespace that has only the opt-in label.
    #[must_use]
    pub fn opted_in(failure_mode: FailureMode) -> Self {
        Self::new([(INJECTION_LABEL, failure_mode.label_value())], [])
    }

    /// Returns the labels.
    #[must_use]
    pub fn labels(&self) -> Pairs<'_> {
        Pairs { rest: self.parts().0 }
    }

    /// Returns the annotations.
    #[must_use]
    pub fn annotations(&self) -> Pairs<'_> {
        Pairs { rest: self.parts().1 }
    }

    /// Returns the value of a label, if the namespace has the label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        find(self.labels(), key)
    }

    /// Returns the value of an annotation, if the namespace has the annotation.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        find(self.annotations(), key)
    }

    /// Returns the failure mode. `None` if the namespace is not opted in.
    #[must_use]
    pub const fn failure_mode(&self) -> Option<FailureMode> {
        self.failure_mode
    }

    /// Returns the size of all labels and annotations with their length prefixes, in bytes.
    pub(crate) const fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// Returns the number of labels and annotations.
    pub(crate) fn entries(&self) -> usize {
        usize::try_from(self.entries).unwrap_or(usize::MAX)
    }

    fn parts(&self) -> (&str, &str) {
        let middle = usize::try_from(self.annotations_at).unwrap_or(usize::MAX);
        self.text.split_at_checked(middle).unwrap_or((&self.text, ""))
    }
}

impl fmt::Debug for NamespaceMetadata {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Namespace")
            .field("labels", &self.labels().collect::<BTreeMap<_, _>>())
            .field("annotations", &self.annotations().collect::<BTreeMap<_, _>>())
            .finish_non_exhaustive()
    }
}

impl<'n> Iterator for Pairs<'n> {
    type Item = (&'n str, &'n str);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, rest) = read_text(self.rest)?;
        let (value, rest) = read_text(rest)?;
        self.rest = rest;
        Some((key, value))
    }
}

fn find<'n>(mut pairs: Pairs<'n>, key: &str) -> Option<&'n str> {
    pairs.find_map(|(candidate, value)| (candidate == key).then_some(value))
}

/// Writes labels or annotations, sorted by key, and returns their number.
fn write_pairs<K: Into<Box<str>>, V: Into<Box<str>>>(
    text: &mut String,
    pairs: impl IntoIterator<Item = (K, V)>,
) -> usize {
    let sorted: BTreeMap<Box<str>, Box<str>> =
        pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
    for part in sorted.iter().flat_map(|(key, value)| [key, value]) {
        write_length(text, part.len());
        text.push_str(part);
    }
    sorted.len()
}

/// Encodes a length with six bits per byte, the lowest first. Bit 6 is set if another byte follows, so all bytes are
/// ASCII characters.
fn write_length(text: &mut String, mut length: usize) {
    while length >= 64 {
        text.push(char::from(u8::try_from(length % 64).unwrap_or_default() | 64));
        length /= 64;
    }
    text.push(char::from(u8::try_from(length).unwrap_or_default()));
}

/// Splits the first string off the buffer. `None` at the end.
fn read_text(text: &str) -> Option<(&str, &str)> {
    let (mut length, mut shift) = (0_usize, 0_u32);
    for (index, byte) in text.bytes().enumerate() {
        length |= usize::from(byte & 63).checked_shl(shift)?;
        shift += 6;
        if byte & 64 == 0 {
            return text.get(index + 1..)?.split_at_checked(length);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_labels_in_any_order() {
        let namespace = NamespaceMetadata::new([("b", "2"), ("a", "1"), ("c", "3")], [("x", "y")]);
        assert_eq!(namespace.label("a"), Some("1"));
        assert_eq!(namespace.label("c"), Some("3"));
        assert_eq!(namespace.label("d"), None);
        assert_eq!(namespace.label("x"), None, "an annotation is not a label");
        assert_eq!(namespace.annotation("x"), Some("y"));
        assert_eq!(namespace.labels().collect::<Vec<_>>(), [("a", "1"), ("b", "2"), ("c", "3")]);
        assert_eq!(namespace, NamespaceMetadata::new([("c", "3"), ("b", "2"), ("a", "0"), ("a", "1")], [("x", "y")]));
        assert_ne!(namespace, NamespaceMetadata::new([("a", "1"), ("b", "2"), ("c", "3"), ("x", "y")], []));
        assert_eq!(NamespaceMetadata::default(), NamespaceMetadata::new::<&str, &str>([], []));
    }

    #[test]
    fn opts_in_by_labels_of_release() {
        let opt_in = OptIn::with(["istio-injection=enabled", "istio-injection=strict:required"]).unwrap();
        let failure_mode = |labels: &[(&'static str, &'static str)]| {
            let namespace = NamespaceMetadata::new(labels.iter().copied(), []);
            (namespace.failure_mode(), namespace.opting_in_by(&opt_in).failure_mode())
        };
        let (enabled, required) = (Some(FailureMode::Enabled), Some(FailureMode::Required));
        for (labels, own_alone, by_both) in [
            (&[][..], None, None),
            (&[(INJECTION_LABEL, "required")], required, required),
            (&[("istio-injection", "enabled")], None, enabled),
            (&[("istio-injection", "strict")], None, required),
            (&[("istio-injection", "disabled")], None, None),
            (&[("istio-injection", "enabled"), (INJECTION_LABEL, "disabled")], None, None),
        ] {
            assert_eq!(failure_mode(labels), (own_alone, by_both), "{labels:?}");
        }
        assert_eq!(NamespaceMetadata::opted_in(FailureMode::Held).clone().failure_mode(), Some(FailureMode::Held));
    }

    #[test]
    fn keeps_strings_of_all_lengths() {
        for length in [0, 1, 63, 64, 65, 4095, 4096, 4097, 262_144] {
            let value = "é@\u{0}"[..3].repeat(length).chars().take(length).collect::<String>();
            let namespace = NamespaceMetadata::new([("k", &*value), ("after", "é")], [(&*value, ""), ("", "v")]);
            assert_eq!(namespace.label("k"), Some(&*value), "{length}");
            assert_eq!(namespace.label("after"), Some("é"));
            assert_eq!(namespace.annotation(&value), Some(if length == 0 { "v" } else { "" }));
            assert_eq!(namespace.annotation(""), Some("v"));
        }
    }
}
