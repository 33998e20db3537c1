//! Facts that explain findings: when namespaces and profiles last changed, and when the webhook was unavailable or
//! disabled.
//!
//! The ages come from `managedFields`, which has the time of each field manager's last change. The times when the
//! webhook was unavailable or disabled come from samples, so they are only as exact as the sampling interval.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, Time};
use pillion_api::opt_in::OptIn;
use pillion_engine::snapshot::Namespace;
use serde_json::Value;

use super::cause::WhyNotCalled;

/// Facts that explain findings. They include ages: when namespaces and profiles last changed. The audit requests the
/// age of an object when a finding needs it. Once the object has changed, its stored age is ignored.
#[derive(Clone, Debug, Default)]
pub struct ClusterFacts {
    /// When the webhook was unavailable.
    pub unavailable: Spans,
    /// When injection was disabled.
    pub disabled: Spans,
    /// When the webhook configuration was created, in seconds since 1970. Before that, the API server did not call the
    /// webhook. `None` if this time is unknown.
    pub registered: Option<i64>,
    namespaces: BTreeMap<Box<str>, (Arc<Namespace>, NamespaceAge)>,
    profiles: BTreeMap<Box<str>, (Box<str>, ProfileAge)>,
}

impl ClusterFacts {
    /// Stores the age of a namespace.
    pub(crate) fn set_namespace(&mut self, name: &str, namespace: &Arc<Namespace>, age: NamespaceAge) {
        self.namespaces.insert(name.into(), (Arc::clone(namespace), age));
    }

    /// Stores the age of a profile at a revision.
    pub(crate) fn set_profile(&mut self, name: &str, revision: &str, age: ProfileAge) {
        self.profiles.insert(name.into(), (revision.into(), age));
    }

    /// Returns the age of the namespace; `None` if it is unknown, or if the namespace has changed since the age was
    /// stored.
    #[must_use]
    pub fn namespace(&self, name: &str, namespace: &Arc<Namespace>) -> Option<NamespaceAge> {
        let (known, age) = self.namespaces.get(name)?;
        (Arc::ptr_eq(known, namespace) || known == namespace).then_some(*age)
    }

    /// Returns the age of a profile; `None` if it is unknown for this revision.
    #[must_use]
    pub fn profile(&self, name: &str, revision: &str) -> Option<ProfileAge> {
        let (known, age) = self.profiles.get(name)?;
        (**known == *revision).then_some(*age)
    }

    /// Keeps only the ages of namespaces and profiles for which `namespaces` and `profiles` return `true`.
    pub(super) fn keep(&mut self, namespaces: impl Fn(&str) -> bool, profiles: impl Fn(&str) -> bool) {
        self.namespaces.retain(|name, _| namespaces(name));
        self.profiles.retain(|name, _| profiles(name));
    }

    /// Returns why the webhook may not have injected at `time`, in seconds since 1970. `None` if no reason is known.
    #[must_use]
    pub fn not_called(&self, time: i64) -> Option<WhyNotCalled> {
        let is_unavailable =
            || self.unavailable.contains(time) || self.registered.is_some_and(|registered| time < registered);
        if self.disabled.contains(time) {
            Some(WhyNotCalled::SwitchedOff)
        } else {
            is_unavailable().then_some(WhyNotCalled::Unavailable)
        }
    }
}

/// Times of changes of a namespace, in seconds since 1970; `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceAge {
    /// The latest time at which the opt-in label can have been set.
    pub opted_in: Option<i64>,
    /// When another label or annotation last changed.
    pub changed: Option<i64>,
}

/// Times of changes of a profile, in seconds since 1970; `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProfileAge {
    /// When the profile was created.
    pub created: Option<i64>,
    /// When its spec last changed.
    pub changed: Option<i64>,
}

impl NamespaceAge {
    /// Reads the metadata of a namespace; `opt_in` has the labels that opt a namespace in.
    #[must_use]
    pub fn of(metadata: &ObjectMeta, opt_in: &OptIn) -> Self {
        let is_opt_in_label =
            |field: &str| opt_in.labels().iter().any(|label| field.strip_prefix("f:") == Some(&*label.key));
        let fields = |entry: &ManagedFieldsEntry, part: &str| {
            let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
            fields.and_then(|fields| fields.get("f:metadata")?.get(part)).cloned()
        };
        let sets = |entry: &ManagedFieldsEntry| {
            let labels = fields(entry, "f:labels");
            labels.iter().filter_map(Value::as_object).any(|labels| labels.keys().any(|field| is_opt_in_label(field)))
        };
        let others = |entry: &ManagedFieldsEntry| {
            let names = ["f:labels", "f:annotations"].map(|part| fields(entry, part));
            let is_other = |name: &String| name.starts_with("f:") && !is_opt_in_label(name);
            names.iter().flatten().filter_map(Value::as_object).any(|fields| fields.keys().any(is_other))
        };
        Self { opted_in: latest(metadata, sets), changed: latest(metadata, others) }
    }
}

impl ProfileAge {
    /// Reads the metadata of a profile.
    #[must_use]
    pub fn of(metadata: &ObjectMeta) -> Self {
        let created = metadata.creation_timestamp.as_ref().map(seconds);
        let text = |entry: &ManagedFieldsEntry| {
            entry.subresource.as_deref().unwrap_or_default().is_empty()
                && entry.fields_v1.as_ref().is_some_and(|fields| fields.0.get("f:spec").is_some())
        };
        Self { created, changed: latest(metadata, text) }
    }
}

/// Returns a time in seconds since 1970.
pub(super) fn seconds(time: &Time) -> i64 {
    time.0.as_second()
}

fn latest(metadata: &ObjectMeta, selects: impl Fn(&ManagedFieldsEntry) -> bool) -> Option<i64> {
    let entries = metadata.managed_fields.iter().flatten().filter(|entry| selects(entry));
    entries.filter_map(|entry| entry.time.as_ref()).map(seconds).max()
}

/// Maximum number of ended time spans. The oldest ones are dropped, since pods of that age are rare.
const MAX_SPANS: usize = 64;

/// If the condition holds in the first sample, its span begins this many seconds earlier, to include the election,
/// during which no controller takes samples.
const BEFORE_FIRST: i64 = 60;

/// The time spans in which a condition may have held, in seconds since 1970. A span begins and ends at samples in which
/// the condition did not hold, since it may have held at any time between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    ended: VecDeque<(i64, i64)>,
    began: Option<i64>,
    /// Time of the last sample in which the condition did not hold.
    last_false: Option<i64>,
}

impl Spans {
    /// Adds a sample. If the condition holds in the first sample, the span also covers the election before it.
    pub fn add_sample(&mut self, now: i64, holds: bool) {
        if holds {
            let began = self.last_false.unwrap_or_else(|| now.saturating_sub(BEFORE_FIRST));
            self.began.get_or_insert(began);
            return;
        }
        if let Some(began) = self.began.take() {
            if self.ended.len() == MAX_SPANS {
                self.ended.pop_front();
            }
            self.ended.push_back((began, now));
        }
        self.last_false = Some(now);
    }

    /// Whether the condition may have held at this time.
    #[must_use]
    pub fn contains(&self, time: i64) -> bool {
        self.began.is_some_and(|began| began <= time)
            || self.ended.iter().any(|(began, ended)| (*began..=*ended).contains(&time))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metadata(managed: &Value) -> ObjectMeta {
        let metadata = json!({"creationTimestamp": "1970-01-01T00:00:10Z", "managedFields": managed});
        serde_json::from_value(metadata).unwrap()
    }

    #[test]
    fn label_has_the_age_of_its_manager() {
        let namespace = metadata(&json!([
            {"time": "1970-01-01T00:00:10Z",
             "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:kubernetes.io/metadata.name": {}}}}},
            {"time": "1970-01-01T00:01:00Z", "fieldsV1": {"f:metadata": {"f:labels": {"f:pillion.dev/injection": {}}}}},
            {"time": "1970-01-01T00:02:00Z", "subresource": "status", "fieldsV1": {"f:status": {"f:phase": {}}}},
        ]));
        let (own, both) = (OptIn::default(), OptIn::with(["istio-injection=enabled"]).unwrap());
        for opt_in in [&own, &both] {
            assert_eq!(NamespaceAge::of(&namespace, opt_in), NamespaceAge { opted_in: Some(60), changed: Some(10) });
            assert_eq!(NamespaceAge::of(&ObjectMeta::default(), opt_in), NamespaceAge::default());
        }
        let kept = metadata(&json!([
            {"time": "1970-01-01T00:01:00Z", "fieldsV1": {"f:metadata": {"f:labels": {"f:istio-injection": {}}}}},
        ]));
        assert_eq!(NamespaceAge::of(&kept, &own), NamespaceAge { opted_in: None, changed: Some(60) });
        assert_eq!(NamespaceAge::of(&kept, &both), NamespaceAge { opted_in: Some(60), changed: None });
    }

    #[test]
    fn profile_age_ignores_changes_of_the_status() {
        let profile = metadata(&json!([
            {"time": "1970-01-01T00:00:30Z", "fieldsV1": {"f:spec": {"f:template": {}}}},
            {"time": "1970-01-01T00:01:00Z", "subresource": "status", "fieldsV1": {"f:status": {}, "f:spec": {}}},
        ]));
        assert_eq!(ProfileAge::of(&profile), ProfileAge { created: Some(10), changed: Some(30) });
    }

    #[test]
    fn span_reaches_from_sample_to_sample() {
        let mut spans = Spans::default();
        spans.add_sample(10, false);
        assert!(!spans.contains(10));
        spans.add_sample(20, true);
        spans.add_sample(30, true);
        assert!(!spans.contains(9) && spans.contains(10) && spans.contains(25) && spans.contains(1_000));
        spans.add_sample(40, false);
        assert!(spans.contains(40) && !spans.contains(41));
        let mut from_the_first = Spans::default();
        from_the_first.add_sample(1_000, true);
        assert!(from_the_first.contains(1_000 - BEFORE_FIRST) && !from_the_first.contains(999 - BEFORE_FIRST));
        for time in 0..1_000 {
            spans.add_sample(100 + time, time % 2 == 0);
        }
        assert_eq!(spans.ended.len(), MAX_SPANS);
    }
}
