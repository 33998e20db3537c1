//! Reduces pods to the data that the audit stores: about a hundred bytes each. A whole pod has about ten thousand
//! bytes.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use jiff::Timestamp;
use pillion_api::names::MIRROR_ANNOTATION;
use pillion_engine::audit::{self, Injected, MatchState};
use pillion_json::{OwnedTape, Value};

use crate::informer::namespaces::{ANNOTATION_BYTES, ANNOTATIONS_BYTES, LAST_APPLIED};
use crate::informer::objects::Change;

/// Namespace and name of a pod.
pub type PodKey = (Box<str>, Box<str>);
/// A change from a watch of pods.
pub type PodChange = Change<PodKey, AuditedPod>;

/// The data of a pod, read from the whole pod or from its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditedPod {
    /// The namespace of the pod.
    pub namespace: Box<str>,
    /// The name of the pod.
    pub name: Box<str>,
    /// The UID of the pod as a number; 0 if it is missing or invalid.
    pub uid: u128,
    /// When the pod was created, in seconds since 1970; 0 if unknown.
    pub created: i64,
    /// The pod's controller, such as `ReplicaSet/web-7c9d6f5b8`, with the kind from [`kind_with_group`]. `None` without
    /// a controller.
    pub owner: Option<Box<str>>,
    /// A JSON object with the pod's `metadata` before injection: labels, annotations except large ones, and the
    /// controlling owner. Without an owner, it has the pod's `generateName` or `name`.
    pub metadata: Box<str>,
    /// The pod's injection record.
    pub has: RecordedProfiles,
    /// Whether the pod is not audited: the webhook never injects into it, it is terminating, or it has succeeded or
    /// failed.
    pub is_exempt: bool,
}

/// The profiles in a pod's injection record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RecordedProfiles {
    /// Whether the pod has an injection record that Pillion wrote.
    pub is_recorded: bool,
    /// Display names of profiles, with their revisions.
    pub profiles: Vec<(Box<str>, Box<str>)>,
}

/// The data that the audit stores for a pod.
#[derive(Debug)]
pub(super) struct PodEntry {
    pub(super) uid: u128,
    pub(super) created: i64,
    /// The auditor's epoch (the number of the watch's last list) when the watch last reported the pod or the audit last
    /// read it.
    pub(super) epoch: u32,
    pub(super) owner: Option<Arc<Box<str>>>,
    pub(super) metadata: Arc<Box<str>>,
    pub(super) has: Arc<RecordedProfiles>,
    pub(super) verdict: Arc<Vec<ProfileVerdict>>,
}

/// The result for one requested profile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ProfileVerdict {
    pub(super) profile: Arc<Box<str>>,
    pub(super) revision: Arc<Box<str>>,
    pub(super) match_state: MatchState,
    /// Whether the result is from the whole pod. Such a result remains valid until the profile, the namespace or the
    /// pod's metadata changes.
    pub(super) from_whole: bool,
}

impl RecordedProfiles {
    /// Returns the recorded revision of a profile; `None` if the record does not list the profile.
    #[must_use]
    pub fn revision(&self, profile: &str) -> Option<&str> {
        self.profiles.iter().find(|(name, _)| **name == *profile).map(|(_, revision)| &**revision)
    }
}

/// Reads a pod or its metadata. Returns `None` if it has no name or no namespace.
#[must_use]
pub fn read(pod: Value<'_>) -> Option<AuditedPod> {
    let metadata = pod.get("metadata")?;
    let text = |key| metadata.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let record = audit::read(pod);
    let authors = record.original_object.as_ref().map_or(pod, OwnedTape::root);
    let has = match record.injected {
        Injected::Profiles(profiles) => RecordedProfiles { is_recorded: true, profiles },
        Injected::Nothing | Injected::Foreign => RecordedProfiles::default(),
    };
    let created = text("creationTimestamp").and_then(|time| time.parse::<Timestamp>().ok());
    let ended = |phase: Value<'_>| phase.is("Succeeded") || phase.is("Failed");
    Some(AuditedPod {
        namespace: text("namespace")?.into(),
        name: text("name")?.into(),
        uid: text("uid").map(|uid| uid_number(&uid)).unwrap_or_default(),
        created: created.map_or(0, Timestamp::as_second),
        owner: owner(metadata),
        metadata: original_metadata(authors),
        has,
        is_exempt: metadata.get("deletionTimestamp").is_some_and(|time| !time.is_null())
            || pod.at(&["metadata", "annotations", MIRROR_ANNOTATION]).is_some()
            || pod.at(&["status", "phase"]).is_some_and(ended),
    })
}

/// Converts a UID to a number, without its hyphens. Returns 0 if it is not a hexadecimal number of at most 128 bits.
pub(crate) fn uid_number(uid: &str) -> u128 {
    let digits: String = uid.chars().filter(|c| *c != '-').collect();
    u128::from_str_radix(&digits, 16).unwrap_or_default()
}

fn owner(metadata: Value<'_>) -> Option<Box<str>> {
    let owner = controller(metadata.get("ownerReferences")?)?;
    let version = owner.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    let kind = owner.get("kind")?.as_str()?;
    Some(format!("{}/{}", kind_with_group(&version, &kind), owner.get("name")?.as_str()?).into())
}

/// Returns the display name of a kind, such as `ReplicaSet`. A kind outside of Kubernetes' own workload groups includes
/// the group, such as `StatefulSet.apps.kruise.io`.
#[must_use]
pub fn kind_with_group<'k>(api_version: &str, kind: &'k str) -> Cow<'k, str> {
    match api_version.split_once('/') {
        None | Some(("apps" | "batch", _)) => Cow::Borrowed(kind),
        Some((group, _)) => Cow::Owned(format!("{kind}.{group}")),
    }
}

/// Returns a JSON object with the pod's `metadata` before injection: labels, annotations and the controlling owner.
/// Rollouts need the owner, since they select whole workloads. Without an owner, adds the pod's `generateName` or
/// `name`. Drops the annotation of `kubectl apply` and the annotations that are larger than [`largest_kept`] allows.
fn original_metadata(pod: Value<'_>) -> Box<str> {
    let mut out = String::from(r#"{"metadata":{"labels":{"#);
    write(&mut out, pod.at(&["metadata", "labels"]), |_, _| true);
    out.push_str(r#"},"annotations":{"#);
    let annotations = pod.at(&["metadata", "annotations"]);
    let most = largest_kept(annotations);
    write(&mut out, annotations, |key, value| key != LAST_APPLIED && key.len() + value.len() <= most);
    out.push('}');
    let metadata = |field| pod.at(&["metadata", field]);
    if let Some(owner) = metadata("ownerReferences").and_then(controller) {
        out.push_str(r#","ownerReferences":["#);
        out.push_str(owner.raw());
        out.push(']');
    } else {
        let is_there = |value: &Value<'_>| value.as_str().is_some_and(|text| !text.is_empty());
        let named = ["generateName", "name"].into_iter();
        if let Some((field, value)) =
            named.filter_map(|field| Some((field, metadata(field)?))).find(|(_, v)| is_there(v))
        {
            out.extend([",\"", field, "\":", value.raw()]);
        }
    }
    out.push_str("}}");
    out.into()
}

/// Returns the maximum size of annotations to keep, in bytes of key and value. The smallest annotations are kept, up to
/// a total size. If not all annotations of one size fit, none of this size is kept.
fn largest_kept(annotations: Option<Value<'_>>) -> usize {
    let sizes = annotations.into_iter().flat_map(Value::members).filter_map(|(key, value)| {
        let key = key.text();
        (*key != *LAST_APPLIED).then(|| key.len() + value.raw().len())
    });
    let mut sizes: Vec<_> = sizes.filter(|size| *size <= ANNOTATION_BYTES).collect();
    if sizes.iter().sum::<usize>() <= ANNOTATIONS_BYTES {
        return ANNOTATION_BYTES;
    }
    sizes.sort_unstable();
    let mut sum = 0;
    let too_much = sizes.iter().find(|size| {
        sum += **size;
        sum > ANNOTATIONS_BYTES
    });
    too_much.map_or(ANNOTATION_BYTES, |size| size.saturating_sub(1))
}

fn controller(owners: Value<'_>) -> Option<Value<'_>> {
    owners.items().find(|owner| owner.get("controller").and_then(Value::as_bool) == Some(true))
}

fn write(out: &mut String, pairs: Option<Value<'_>>, is_kept: impl Fn(&str, &str) -> bool) {
    let mut is_first = true;
    for (key, value) in pairs.into_iter().flat_map(Value::members) {
        let key = key.text();
        if !is_kept(&key, value.raw()) {
            continue;
        }
        if !std::mem::replace(&mut is_first, false) {
            out.push(',');
        }
        out.push_str(&serde_json::Value::from(&*key).to_string());
        out.push(':');
        out.push_str(value.raw());
    }
}

/// Number of values at which a pool is first searched for unused ones.
const MIN_SWEEP: usize = 256;

/// A pool of interned values. Unused values are removed from time to time.
#[derive(Debug)]
pub(super) struct Pool<T> {
    known: HashSet<Arc<T>>,
    sweep_at: usize,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { known: HashSet::new(), sweep_at: MIN_SWEEP }
    }
}

impl<T: Hash + Eq> Pool<T> {
    /// Returns the interned value that equals `value`. If no interned value equals it, interns `value`.
    pub(super) fn share(&mut self, value: T) -> Arc<T> {
        if let Some(known) = self.known.get(&value) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.sweep_at {
            self.known.retain(|known| Arc::strong_count(known) > 1);
            self.known.shrink_to(self.known.len() * 2);
            self.sweep_at = MIN_SWEEP.max(self.known.len() * 2);
        }
        let value = Arc::new(value);
        self.known.insert(Arc::clone(&value));
        value
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn audited(pod: &serde_json::Value) -> Option<AuditedPod> {
        read(OwnedTape::parse(pod.to_string()).unwrap().root())
    }

    #[test]
    fn keeps_original_metadata_and_record_of_pod() {
        let pod = json!({
            "metadata": {
                "namespace": "shop", "name": "web-1", "uid": "029dc23e-3de8-41af-ab3c-a95b34b82bf3",
                "creationTimestamp": "2026-11-21T20:00:00Z", "labels": {"app": "we\"b"},
                "annotations": {
                    "example.com/ask": "yes", LAST_APPLIED: "{}", "example.com/large": "x".repeat(ANNOTATION_BYTES),
                    "pillion.dev/injected":
                        r#"{"version":1,"profiles":[{"profile":"nginx","revision":"r1","added":["/metadata/labels/ours"]}]}"#,
                },
                "managedFields": [{"fieldsV1": {}}],
                "ownerReferences": [{"kind": "ReplicaSet", "name": "web", "controller": true}],
            },
            "spec": {"containers": [{"name": "app"}]},
        });
        let audited_pod = audited(&pod).unwrap();
        assert_eq!(
            (&*audited_pod.namespace, &*audited_pod.name, audited_pod.created),
            ("shop", "web-1", 1_795_291_200)
        );
        assert_eq!(audited_pod.uid, 0x029d_c23e_3de8_41af_ab3c_a95b_34b8_2bf3);
        assert_eq!(audited_pod.owner.as_deref(), Some("ReplicaSet/web"));
        assert_eq!(
            &*audited_pod.metadata,
            concat!(
                r#"{"metadata":{"labels":{"app":"we\"b"},"annotations":{"example.com/ask":"yes"},"#,
                r#""ownerReferences":[{"kind":"ReplicaSet","name":"web","controller":true}]}}"#
            )
        );
        assert!(audited_pod.has.is_recorded && !audited_pod.is_exempt);
        assert_eq!(audited_pod.has.revision("nginx"), Some("r1"));
        let bare = audited(&json!({"metadata": {"namespace": "shop", "generateName": "", "name": "bare"}})).unwrap();
        assert_eq!(&*bare.metadata, r#"{"metadata":{"labels":{},"annotations":{},"name":"bare"}}"#);
    }

    #[test]
    fn owner_kind_includes_foreign_group() {
        let owner = |version: &str| {
            let owner = json!({"apiVersion": version, "kind": "StatefulSet", "name": "db", "controller": true});
            let pod = json!({"metadata": {"namespace": "shop", "name": "db-0", "ownerReferences": [owner]}});
            audited(&pod).unwrap().owner
        };
        assert_eq!(owner("apps/v1").as_deref(), Some("StatefulSet/db"));
        assert_eq!(owner("apps.kruise.io/v1beta1").as_deref(), Some("StatefulSet.apps.kruise.io/db"));
    }

    #[test]
    fn kept_annotations_are_bounded() {
        let large = |number: usize| (format!("example.com/{number:03}"), "x".repeat(4_000).into());
        let mut annotations: serde_json::Map<_, _> = (0..60).map(large).collect();
        annotations.insert("example.com/ask".to_owned(), "yes".into());
        let many = |annotations| json!({"metadata": {"namespace": "shop", "name": "p", "annotations": annotations}});
        let kept = audited(&many(annotations.clone())).unwrap().metadata;
        assert!(kept.contains("example.com/ask") && kept.len() < ANNOTATIONS_BYTES + 1_000, "{} bytes", kept.len());
        let few: serde_json::Map<_, _> = annotations.into_iter().skip(57).collect();
        let kept = audited(&many(few)).unwrap().metadata;
        assert!(kept.contains("example.com/059") && kept.contains("example.com/ask"));
    }

    #[test]
    fn mirror_and_ended_pods_are_exempt() {
        let with = |what: serde_json::Value| {
            let mut pod = json!({"metadata": {"namespace": "a", "name": "b"}});
            json_patch(&mut pod, &what);
            audited(&pod).unwrap().is_exempt
        };
        assert!(!with(json!({"status": {"phase": "Running"}})));
        assert!(with(json!({"status": {"phase": "Failed"}})));
        assert!(with(json!({"metadata": {"namespace": "a", "name": "b", "annotations": {MIRROR_ANNOTATION: "x"}}})));
        assert!(with(
            json!({"metadata": {"namespace": "a", "name": "b", "deletionTimestamp": "2026-11-21T20:00:00Z"}})
        ));
        assert_eq!(audited(&json!({"metadata": {"name": "b"}})), None);
    }

    fn json_patch(pod: &mut serde_json::Value, what: &serde_json::Value) {
        for (key, value) in what.as_object().unwrap() {
            pod[key] = value.clone();
        }
    }

    #[test]
    fn pool_shares_equal_values_and_drops_unused() {
        let mut pool = Pool::default();
        let first = pool.share("a".to_owned());
        assert!(Arc::ptr_eq(&first, &pool.share("a".to_owned())));
        for number in 0..10_000 {
            pool.share(number.to_string());
        }
        assert!(pool.len() <= MIN_SWEEP + 1, "{}", pool.len());
        assert!(Arc::ptr_eq(&first, &pool.share("a".to_owned())));
    }
}
