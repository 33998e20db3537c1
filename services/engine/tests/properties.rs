//! Tests properties of generated pods and profiles.

#![allow(clippy::indexing_slicing, reason = "test helpers fail by panicking")]

use std::sync::Arc;

use crate::common::{patched, respond, review, snapshot};
use pillion_engine::decision::Outcome;
use pillion_engine::profile::{ProfileName, compile};
use pillion_engine::review::Review;
use pillion_engine::snapshot::{ProfileSet, Snapshot};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

/// Generates one of a few names, so that pods and profiles often use the same name.
fn name() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("app"), Just("logger"), Just("proxy"), Just("data")]
}

fn container() -> impl Strategy<Value = Json> {
    (name(), prop::option::of("[a-z]{1,3}:[0-9]"), prop::option::of(any::<u16>()), any::<bool>()).prop_map(
        |(name, image, port, odd)| {
            let mut container = json!({"name": name, "image": image.unwrap_or_else(|| "i:1".into())});
            if let Some(port) = port {
                container["ports"] = json!([{"containerPort": port}]);
            }
            if odd {
                container["x-unknown"] = json!({"deep": [1, {"er": null}]});
            }
            container
        },
    )
}

/// Generates a list whose elements have different names.
fn named(element: impl Strategy<Value = Json>, size: std::ops::Range<usize>) -> impl Strategy<Value = Json> {
    prop::collection::vec(element, size).prop_map(|mut list| {
        let mut seen = std::collections::HashSet::new();
        list.retain(|element| seen.insert(element["name"].to_string()));
        Json::Array(list)
    })
}

fn volume() -> impl Strategy<Value = Json> {
    (name(), any::<bool>()).prop_map(|(name, claim)| {
        if claim { json!({"name": name, "emptyDir": {}}) } else { json!({"name": name, "configMap": {"name": "c"}}) }
    })
}

fn entries() -> impl Strategy<Value = Json> {
    prop::collection::btree_map("(example.com/)?[a-z]{1,2}", "[ -~é\"\\\\]{0,6}", 0..4).prop_map(|map| json!(map))
}

/// Generates a value of `strategy`, null, or `None`, which means that the field is absent.
fn maybe(strategy: impl Strategy<Value = Json>) -> impl Strategy<Value = Option<Json>> {
    prop_oneof![4 => strategy.prop_map(Some), 1 => Just(Some(Json::Null)), 2 => Just(None)]
}

fn object(fields: Vec<(&'static str, Option<Json>)>) -> Json {
    let present = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Json::Object(present.collect())
}

prop_compose! {
    fn pod()(
        containers in named(container(), 1..4),
        init in maybe(named(container(), 0..3)),
        volumes in maybe(named(volume(), 0..3)),
        labels in maybe(entries()),
        annotations in maybe(entries()),
        managed in any::<bool>(),
    ) -> Json {
        let mut metadata = object(vec![("labels", labels), ("annotations", annotations)]);
        if managed {
            metadata["managedFields"] = json!([{"manager": "m", "fieldsV1": {"f:metadata": {"f:annotations": {}}}}]);
        }
        let spec = object(vec![("initContainers", init), ("containers", Some(containers)), ("volumes", volumes)]);
        json!({"metadata": metadata, "spec": spec})
    }
}

prop_compose! {
    fn profile()(
        containers in prop::option::of(named(container(), 1..3)),
        init in prop::option::of(named(container(), 1..3)),
        volumes in prop::option::of(named(volume(), 1..3)),
        labels in prop::option::of(entries()),
        annotations in prop::option::of(entries()),
        deny in any::<bool>(),
    ) -> Json {
        let metadata = object(vec![("labels", labels), ("annotations", annotations)]);
        let spec = object(vec![("initContainers", init), ("containers", containers), ("volumes", volumes)]);
        json!({
            "activation": "Always",
            "failurePolicy": if deny { "Fail" } else { "Ignore" },
            "template": {"metadata": metadata, "spec": spec},
        })
    }
}

/// Returns the valid profiles, with names. For example, a profile with two containers of the same name is invalid.
fn usable(profiles: Vec<Json>) -> Vec<(&'static str, Json)> {
    let named = ["a", "b", "c"].into_iter().zip(profiles);
    let compiles = |spec: &Json| {
        serde_json::from_value(spec.clone()).is_ok_and(|spec| compile(&ProfileName::cluster("p"), &spec).is_ok())
    };
    named.filter(|(_, spec)| compiles(spec)).collect()
}

/// Whether every value in `before` has the same path in `after`. A null in `before` matches any value. Templates only
/// append to lists, so list indices do not change.
fn contains(before: &Json, after: &Json) -> bool {
    match (before, after) {
        (Json::Object(before), Json::Object(after)) => {
            before.iter().all(|(key, value)| after.get(key).is_some_and(|other| contains(value, other)))
        }
        (Json::Array(before), Json::Array(after)) => {
            before.len() <= after.len() && before.iter().zip(after).all(|(before, after)| contains(before, after))
        }
        (Json::Null, _) => true,
        _ => before == after,
    }
}

fn names_of(object: &Json, lists: &[&str]) -> Vec<String> {
    let lists = lists.iter().filter_map(|list| object["spec"][*list].as_array());
    lists.flatten().map(|element| element["name"].to_string()).collect()
}

fn is_unique(mut names: Vec<String>) -> bool {
    let count = names.len();
    names.sort();
    names.dedup();
    names.len() == count
}

/// Returns a snapshot with cluster profiles, and with a namespaced profile if `own` is valid.
fn with_own(profiles: &[(&'static str, Json)], own: Option<&Json>) -> Snapshot {
    let name = ProfileName::namespaced("team-a", "own");
    let compiled = own.and_then(|own| compile(&name, &serde_json::from_value(own.clone()).ok()?).ok());
    let before = snapshot(profiles);
    let all = before.profiles().iter().cloned().chain(compiled.map(Arc::new));
    before.with_profiles(ProfileSet::new(all))
}

/// Marks the entries of the record, as the policy of the safety net does.
fn marked(mut pod: Json) -> Json {
    if let Some(Json::String(text)) = pod["metadata"].pointer_mut("/annotations/pillion.dev~1injected") {
        let mut record: Json = serde_json::from_str(text).unwrap_or_default();
        for entry in record["profiles"].as_array_mut().into_iter().flatten() {
            entry["by"] = json!("policy");
        }
        *text = record.to_string();
    }
    pod
}

/// Removes the fields of `metadata` and `spec` that are null or empty maps or lists, since API servers drop these.
fn without_empty(object: &Json) -> Json {
    let is_kept = |value: &Json| match value {
        Json::Null => false,
        Json::Object(fields) => !fields.is_empty(),
        Json::Array(items) => !items.is_empty(),
        _ => true,
    };
    let mut object = object.clone();
    for part in ["metadata", "spec"] {
        if let Some(fields) = object[part].as_object_mut() {
            fields.retain(|_, value| is_kept(value));
        }
    }
    object
}

/// A pod author cannot make Pillion remove parts of the pod by marking them as additions of the safety net's policy.
#[test]
fn forged_mark_of_policy_has_no_effect() {
    let pod = |by: &str| {
        let added = ["/spec/containers/extra", "/metadata/labels/x"];
        let record = json!({"version": 1, "profiles": [{"profile": "a", "revision": "0", "added": added, "by": by}]});
        json!({
            "metadata": {
                "labels": {"x": "y"}, "annotations": {"pillion.dev/injected": record.to_string()},
                "managedFields": [{"manager": "m", "fieldsV1": {"f:metadata": {"f:annotations": {"f:pillion.dev/injected": {}}}}}],
            },
            "spec": {"containers": [{"name": "web"}, {"name": "extra"}]},
        })
    };
    let snapshot = snapshot(&[("a", crate::common::sidecar("logger"))]);
    let after = ["policy", "webhook"].map(|by| {
        let body = review(&pod(by));
        patched(&body, &respond(&body, &snapshot).0)
    });
    assert_eq!(after[0], after[1]);
    assert_eq!(names_of(&after[0], &["containers"]), ["\"web\"", "\"extra\"", "\"logger\""]);
    assert_eq!(after[0]["metadata"]["labels"]["x"], "y");
}

/// A part of a review, a number of bytes that is too large for it, and the pod and the profiles with a number of bytes.
type SizeCase<'c> = (&'c str, usize, &'c dyn Fn(usize) -> (Json, Snapshot));

/// The limits on the sizes of the patch and of the patched pod are for what profiles change in the author's pod. So the
/// result does not depend on the safety net's policy, even for a pod that just fits or is one byte too large.
#[test]
fn size_limits_do_not_depend_on_policy() {
    let adding = |names: &[&str], bytes: usize| {
        let container = |name: &&str| json!({"name": name, "image": "i:1", "args": ["a".repeat(bytes)]});
        let containers: Vec<_> = names.iter().map(container).collect();
        json!({"activation": "Always", "template": {"spec": {"containers": containers}}})
    };
    let pod = |bytes: usize| {
        json!({
            "metadata": {
                "annotations": {"large": "a".repeat(bytes)}, "managedFields": [{"manager": "m", "fieldsV1": {"f:metadata": {}}}],
            },
            "spec": {"containers": [{"name": "web"}]},
        })
    };
    let mut covered = adding(&["one", "two"], 1);
    covered["template"]["metadata"] = json!({"labels": {"added": "yes"}, "annotations": {"added": "yes"}});
    let covered = [("covered", covered)];
    let net = snapshot(&covered);
    // A template may have at most 64 KiB, so the patch needs several profiles to become too large.
    let large = ["a", "b", "c", "d"].map(|name| (name, adding(&[name], 55_000)));
    let profiles = [&covered[..], &large].concat();
    let with_last = |bytes| snapshot(&[&profiles[..], &[("last", adding(&["last"], bytes))]].concat());
    let in_profile = |bytes| (pod(0), with_last(bytes));
    let in_own_profile = |bytes| (pod(0), with_own(&profiles, Some(&adding(&["last"], bytes))));
    let in_pod = |bytes| (pod(bytes), with_last(0));
    let cases: [SizeCase<'_>; 3] =
        [("profile", 65_000, &in_profile), ("own profile", 65_000, &in_own_profile), ("pod", 1_400 * 1024, &in_pod)];
    for (what, mut too_large, case) in cases {
        let alone = |bytes| {
            let (pod, every) = case(bytes);
            let body = review(&pod);
            patched(&body, &respond(&body, &every).0)
        };
        let is_injected = |pod: &Json| names_of(pod, &["containers"]).contains(&"\"last\"".to_owned());
        let mut fits = 0_usize;
        while fits + 1 < too_large {
            let middle = fits.midpoint(too_large);
            if is_injected(&alone(middle)) {
                fits = middle;
            } else {
                too_large = middle;
            }
        }
        for (bytes, injected) in [(fits, true), (too_large, false)] {
            let (pod, every) = case(bytes);
            let body = review(&pod);
            let body = review(&marked(patched(&body, &respond(&body, &net).0)));
            let both = patched(&body, &respond(&body, &every).0);
            assert_eq!(is_injected(&both), injected, "{bytes} bytes in the {what}");
            assert!(without_empty(&both) == without_empty(&alone(bytes)), "{bytes} bytes in the {what}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    /// A patch can be applied, preserves existing values, and adds no name twice. If the pod has managedFields, a
    /// second pass changes nothing.
    #[test]
    fn injection_adds_once_and_only_adds(pod in pod(), profiles in prop::collection::vec(profile(), 0..3)) {
        let profiles = usable(profiles);
        let snapshot = snapshot(&profiles);
        let body = review(&pod);
        let (first, _) = respond(&body, &snapshot);
        let after = patched(&body, &first);
        prop_assert!(contains(&pod, &after), "{pod} -> {after}");

        let before_unique = is_unique(names_of(&pod, &["containers", "initContainers"]));
        if before_unique {
            prop_assert!(is_unique(names_of(&after, &["containers", "initContainers"])), "{after}");
        }
        prop_assert!(is_unique(names_of(&after, &["volumes"])), "{after}");

        if first.decision.outcome == Outcome::Denied {
            prop_assert_eq!(first.patch, None);
        } else if pod["metadata"].get("managedFields").is_some() {
            let (second, _) = respond(&review(&after), &snapshot);
            prop_assert_eq!(second.patch.map(|patch| String::from_utf8(patch).unwrap()), None, "{}", after);
        }
    }

    /// The result does not depend on the order of the given profiles.
    #[test]
    fn result_does_not_depend_on_given_order(pod in pod(), profiles in prop::collection::vec(profile(), 2..4)) {
        let mut profiles = usable(profiles);
        let (one, _) = respond(&review(&pod), &snapshot(&profiles));
        profiles.reverse();
        let (other, _) = respond(&review(&pod), &snapshot(&profiles));
        prop_assert_eq!(one.patch, other.patch);
    }

    /// The webhook undoes what the safety net's policy added before it, whatever profiles the policy covers. The result
    /// is that of the webhook alone, and a second pass changes nothing.
    #[test]
    fn webhook_after_policy_equals_webhook_alone(
        pod in pod(), profiles in prop::collection::vec((profile(), any::<bool>()), 1..4), own in prop::option::of(profile()),
    ) {
        let mut pod = pod;
        pod["metadata"]["managedFields"] = json!([{"manager": "m", "fieldsV1": {"f:metadata": {}}}]);
        prop_assume!(is_unique(names_of(&pod, &["containers", "initContainers"])));
        let covered: Vec<_> = profiles.iter().map(|(_, covered)| *covered).collect();
        let profiles = usable(profiles.into_iter().map(|(profile, _)| profile).collect());
        let net = profiles.iter().zip(&covered).filter(|(_, covered)| **covered);
        let net: Vec<_> = net.map(|(profile, _)| profile.clone()).collect();
        let (every, net) = (with_own(&profiles, own.as_ref()), snapshot(&net));

        let body = review(&pod);
        let alone = respond(&body, &every).0;
        prop_assume!(alone.decision.outcome != Outcome::Denied);
        let alone = patched(&body, &alone);

        let by_policy = marked(patched(&body, &respond(&body, &net).0));
        let body = review(&by_policy);
        let both = patched(&body, &respond(&body, &every).0);
        prop_assert_eq!(without_empty(&both), without_empty(&alone), "{} -> {}", pod, by_policy);
        let (second, _) = respond(&review(&both), &every);
        prop_assert_eq!(second.patch.map(|patch| String::from_utf8(patch).unwrap()), None, "{}", both);
    }

    /// Parsing arbitrary bytes returns a review or an error, but does not panic.
    #[test]
    fn arbitrary_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let _ = Review::parse(&bytes);
    }

    /// A captured review in which a part was moved results in a decision or an error, but not in a panic.
    #[test]
    fn damaged_reviews_cause_no_panic(from in 0usize..3_000, length in 0usize..40, to in 0usize..3_000) {
        let mut body = crate::common::captured_by_name("create-bare-pod.json");
        let from = from.min(body.len());
        let piece: Vec<u8> = body.drain(from..(from + length).min(body.len())).collect();
        let to = to.min(body.len());
        body.splice(to..to, piece);
        if Review::parse(&body).is_ok() {
            let _ = respond(&body, &snapshot(&[("logger", crate::common::sidecar("logger"))]));
        }
    }

    /// An arbitrary template compiles or is rejected with diagnostics.
    #[test]
    fn arbitrary_templates_compile_or_have_reasons(template in any_json()) {
        let spec = json!({"template": template});
        if let Ok(spec) = serde_json::from_value(spec)
            && let Err(diagnostics) = compile(&ProfileName::cluster("p"), &spec) {
            prop_assert!(!diagnostics.is_empty());
        }
    }
}

fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        "[a-z${}]{0,6}".prop_map(Json::from),
    ];
    let key = prop_oneof![
        Just("metadata"),
        Just("spec"),
        Just("containers"),
        Just("volumes"),
        Just("name"),
        Just("labels"),
        Just("$when"),
    ];
    leaf.prop_recursive(5, 48, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
            prop::collection::vec((key.clone(), inner), 0..4).prop_map(|pairs| Json::Object(
                pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
            )),
        ]
    })
}
