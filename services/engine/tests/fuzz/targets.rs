//! Fuzz targets: functions that accept any bytes, and panic if an invariant is violated.
//!
//! Both the binaries in `fuzz/` and the test that replays the corpus call these functions, so the tests detect
//! regressions.

use std::sync::{Arc, LazyLock};

use pillion_api::names::{FailureMode, INJECTED_ANNOTATION};
use pillion_api::profile::ProfileSpec;
use pillion_engine::decision::Notice;
use pillion_engine::profile::{CompiledProfile, ProfileName, compile, warnings};
use pillion_engine::review::{Decided, Endpoint, Facts, RecordTrust, Review};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use pillion_expression::{Bindings, EvaluationError, Expression, Meter, Scope, Text, Value};
use serde_json::{Value as Json, json};

/// The name of a target, which is also the name of its corpus folder, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 5] = [
    ("review_bytes", review_bytes),
    ("profile_yaml", profile_yaml),
    ("profile_and_pod", profile_and_pod),
    ("expression", expression),
    ("record", record),
];

/// The separator between the two parts of an input.
pub const SEPARATOR: &str = "\n---\n";

/// Tests arbitrary bytes as the body of a review, with the profiles of [`realistic`].
///
/// # Panics
/// Panics if the API server would reject the response, or if a second pass changes the object.
pub fn review_bytes(bytes: &[u8]) {
    static SNAPSHOT: LazyLock<Snapshot> = LazyLock::new(realistic);
    let ways = [
        (Endpoint::Any, RecordTrust::ManagedFields),
        (Endpoint::FailureMode(FailureMode::Required), RecordTrust::AsFound),
    ];
    for (endpoint, trust) in ways {
        if let Some((decided, answer)) = decide(bytes, &SNAPSHOT, endpoint, trust) {
            let answer: Json = serde_json::from_slice(&answer).expect("the response is JSON");
            assert!(answer["response"]["allowed"].is_boolean(), "{answer}");
            let Ok(review) = serde_json::from_slice::<Json>(bytes) else { continue };
            let _ = patched(&review["request"]["object"], &decided);
        }
    }
    if let Ok(review) = serde_json::from_slice::<Json>(bytes) {
        assert_settles(&review["request"]["object"], &SNAPSHOT);
    }
}

/// Tests arbitrary YAML as the spec of a profile.
///
/// # Panics
/// Panics if the profile is rejected without a diagnostic, or if its patch cannot be applied.
pub fn profile_yaml(bytes: &[u8]) {
    static POD: LazyLock<Json> = LazyLock::new(sample_pod);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(spec) = serde_saphyr::from_str::<ProfileSpec>(text) else { return };
    for name in [ProfileName::cluster("fuzzed"), ProfileName::namespaced("team-a", "fuzzed")] {
        let Some(profile) = compiled(&name, &spec) else { continue };
        let snapshot = snapshot([profile]);
        for trust in [RecordTrust::ManagedFields, RecordTrust::AsFound] {
            let (decided, _) = decide(&review(&POD), &snapshot, Endpoint::Any, trust).expect("the review is valid");
            let _ = patched(&POD, &decided);
        }
    }
}

/// Tests the spec of a profile together with a pod, both as JSON.
///
/// # Panics
/// Panics if the patch cannot be applied. Also panics if a second pass changes the object, unless the profile has
/// container patches, or expressions or directives that may contradict each other.
pub fn profile_and_pod(bytes: &[u8]) {
    let Some((spec, pod)) = std::str::from_utf8(bytes).ok().and_then(|text| text.split_once(SEPARATOR)) else { return };
    let (Ok(mut spec), Ok(pod)) = (serde_json::from_str::<Json>(spec), serde_json::from_str::<Json>(pod)) else {
        return;
    };
    let may_contradict_itself =
        ["$prune", "$forEach", "$value", "jitter", "Injected", "existing", "${", "\"containers\":[{\"name\":\"r\""]
            .iter()
            .any(|word| spec.to_string().contains(word));
    if let Some(spec) = spec.as_object_mut() {
        spec.insert("activation".into(), json!("Always"));
    }
    let Ok(spec) = serde_json::from_value::<ProfileSpec>(spec) else { return };
    for name in [ProfileName::cluster("fuzzed"), ProfileName::namespaced("team-a", "fuzzed")] {
        let Some(profile) = compiled(&name, &spec) else { continue };
        let snapshot = snapshot([profile]);
        for trust in [RecordTrust::ManagedFields, RecordTrust::AsFound] {
            if let Some((decided, _)) = decide(&review(&pod), &snapshot, Endpoint::Any, trust) {
                let after = patched(&pod, &decided);
                let (second, _) =
                    decide(&review(&after), &snapshot, Endpoint::Any, trust).expect("the review is still valid");
                let _ = patched(&after, &second);
            }
        }
        if !may_contradict_itself && spec.container_patches.is_empty() {
            assert_settles(&pod, &snapshot);
        }
    }
}

/// Tests arbitrary text as the source of an expression.
///
/// # Panics
/// Panics if two evaluations of the expression differ, or if the remaining budget exceeds the initial one.
pub fn expression(bytes: &[u8]) {
    static WORLD: LazyLock<Json> = LazyLock::new(world);
    static SCOPE: LazyLock<Scope> = LazyLock::new(|| {
        let names = WORLD.as_object().into_iter().flat_map(|world| world.keys());
        names.fold(Scope::new(), |scope, name| match &**name {
            "params" => scope.with_any_members("params"),
            name => scope.with(name),
        })
    });
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let _ = Text::parse(source);
    let Ok(expression) = Expression::compile(source, &SCOPE) else { return };
    let mut meter = Meter::new();
    let first = expression.evaluate_outcome(&Borrowed(&WORLD), &mut meter);
    assert!(meter.left() <= Meter::EXPRESSION);
    let second = expression.evaluate_outcome(&Borrowed(&WORLD), &mut Meter::new());
    assert_eq!(format!("{first:?}"), format!("{second:?}"), "the expression has two results");
    let _ = expression.evaluate_text(&Borrowed(&WORLD), &mut Meter::new());
    let _ = expression.evaluate_bool(&Borrowed(&WORLD), &mut Meter::new());
}

/// Tests an arbitrary string as an injection record. A second part of the input is used as managedFields.
///
/// # Panics
/// Panics if a patch cannot be applied, or if an untrusted injection record changes the result.
pub fn record(bytes: &[u8]) {
    static SNAPSHOT: LazyLock<Snapshot> = LazyLock::new(realistic);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (record, managed) = text.split_once(SEPARATOR).unwrap_or((text, ""));
    let mut pod = sample_pod();
    if let Ok(managed) = serde_json::from_str::<Json>(managed) {
        pod["metadata"]["managedFields"] = managed;
    }
    let plain = pod.clone();
    pod["metadata"]["annotations"][INJECTED_ANNOTATION] = json!(record);
    for trust in [RecordTrust::ManagedFields, RecordTrust::AsFound] {
        let (decided, _) = decide(&review(&pod), &SNAPSHOT, Endpoint::Any, trust).expect("the review is valid");
        let mut after = patched(&pod, &decided);
        let (second, _) = decide(&review(&after), &SNAPSHOT, Endpoint::Any, trust).expect("the review is still valid");
        let _ = patched(&after, &second);
        if !decided.decision.notices.contains(&Notice::RecordDropped) {
            continue;
        }
        let (without, _) = decide(&review(&plain), &SNAPSHOT, Endpoint::Any, trust).expect("the review is still valid");
        let mut expected = patched(&plain, &without);
        for object in [&mut after, &mut expected] {
            if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
                annotations.remove(INJECTED_ANNOTATION);
            }
        }
        assert_eq!(after, expected, "an untrusted record changes the result");
    }
}

/// Returns a snapshot with two realistic profiles: `mesh` and `vault`.
#[must_use]
pub fn realistic() -> Snapshot {
    let files = [include_str!("../cases/mesh.yaml"), include_str!("../cases/vault.yaml")];
    let profiles = files.into_iter().flat_map(|file| {
        let file: Json = serde_saphyr::from_str(file).expect("the file is valid YAML");
        let profiles = file["profiles"].as_object().cloned().unwrap_or_default();
        profiles.into_iter().map(|(name, spec)| {
            let spec = serde_json::from_value(spec).expect("the profile has the form of a spec");
            Arc::new(compile(&ProfileName::cluster(&*name), &spec).expect("the profile compiles"))
        })
    });
    snapshot(profiles.collect::<Vec<_>>())
}

fn snapshot(profiles: impl IntoIterator<Item = Arc<CompiledProfile>>) -> Snapshot {
    let namespace = Namespace::new([("pillion.dev/injection", "enabled")], [("example.com/team", "a")]);
    Snapshot::new(ProfileSet::new(profiles)).with_namespace("team-a", Some(namespace))
}

fn compiled(name: &ProfileName, spec: &ProfileSpec) -> Option<Arc<CompiledProfile>> {
    let _ = warnings(spec);
    match compile(name, spec) {
        Ok(profile) => Some(Arc::new(profile)),
        Err(reasons) => {
            assert!(!reasons.is_empty(), "rejected without a reason");
            let _ = reasons.iter().map(ToString::to_string).collect::<String>();
            None
        }
    }
}

/// Returns the review of the creation of a pod.
#[must_use]
pub fn review(pod: &Json) -> Vec<u8> {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "11111111-2222-3333-4444-555555555555", "operation": "CREATE", "namespace": "team-a",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "userInfo": {"username": "someone"}, "object": pod, "oldObject": null, "dryRun": false,
        },
    });
    review.to_string().into_bytes()
}

/// Returns the decision for the review in `body`, and the response. `None` if `body` is not a review.
fn decide(
    body: &[u8],
    snapshot: &Snapshot,
    endpoint: Endpoint,
    record_trust: RecordTrust,
) -> Option<(Decided, Vec<u8>)> {
    let review = Review::parse(body).ok()?;
    let _ = (review.dry_run(), review.object_name());
    let facts = Facts { namespace: snapshot.namespace(review.namespace()), record_trust, ..Facts::default() };
    let _ = review.needs(endpoint, snapshot, &facts);
    let decided = review.decide(endpoint, snapshot, &facts).expect("the patch passes its check");
    let answer = review.respond(&decided);
    Some((decided, answer))
}

fn patched(object: &Json, decided: &Decided) -> Json {
    let mut object = object.clone();
    if let Some(patch) = &decided.patch {
        let patch: json_patch::Patch = serde_json::from_slice(patch).expect("the patch is a JSON patch");
        json_patch::patch(&mut object, &patch).expect("the patch applies");
    }
    object
}

/// Asserts that a second pass does not change the object. Removes the injection record first, because it may be forged.
fn assert_settles(pod: &Json, snapshot: &Snapshot) {
    let mut pod = pod.clone();
    if let Some(annotations) = pod.pointer_mut("/metadata/annotations").and_then(Json::as_object_mut) {
        annotations.remove(INJECTED_ANNOTATION);
    }
    let Some((first, _)) = decide(&review(&pod), snapshot, Endpoint::Any, RecordTrust::AsFound) else { return };
    let after = patched(&pod, &first);
    let (second, _) =
        decide(&review(&after), snapshot, Endpoint::Any, RecordTrust::AsFound).expect("the review is still valid");
    let patch = second.patch.as_deref().map(String::from_utf8_lossy);
    assert!(patch.is_none(), "the second pass changes something: {pod}\n-> {after}\n-> {patch:?}");
}

/// Returns a pod with most kinds of fields that profiles read.
#[must_use]
pub fn sample_pod() -> Json {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "generateName": "web-", "labels": {"app": "web"},
            "annotations": {"sidecar.istio.io/inject": "true", "example.com/list": "a,b"},
        },
        "spec": {
            "serviceAccountName": "default",
            "volumes": [{"name": "data", "emptyDir": {}}],
            "initContainers": [{"name": "setup", "image": "setup:1", "env": [{"name": "A", "value": "1"}]}],
            "containers": [
                {
                    "name": "app", "image": "registry.example.com/team/app:1.2@sha256:abc",
                    "env": [{"name": "A", "value": "x,y"}, {"name": "B", "value": "$(A)"},
                            {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                    "ports": [{"name": "http", "containerPort": 8080}],
                    "livenessProbe": {"httpGet": {"path": "/live", "port": "http"}},
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                },
                {"name": "istio-proxy", "image": "auto", "resources": {"limits": {"cpu": "1"}}},
            ],
        },
    })
}

fn world() -> Json {
    let pod = sample_pod();
    json!({
        "containers": pod["spec"]["containers"], "primary": pod["spec"]["containers"][0],
        "container": pod["spec"]["containers"][0], "overlays": {}, "object": pod,
        "request": {"namespace": "team-a", "uid": "u"},
        "namespaceObject": {"metadata": {"name": "team-a", "labels": {}, "annotations": {}}},
        "params": {"a": "text", "b": 7, "c": true, "d": ["x", "y"], "e": {"k": "v"}, "f": 1.5},
        "item": {"name": "A", "value": "x"}, "index": 0, "key": "k", "cluster": {"region": "r"},
        "owners": [], "variables": {},
    })
}

struct Borrowed<'w>(&'w Json);

impl<'w> Bindings<'w> for Borrowed<'w> {
    fn value(&self, name: &str, _: &mut Meter) -> Result<Value<'w>, EvaluationError> {
        let value = self.0.get(name).ok_or_else(|| EvaluationError::new(format!("{name} does not exist")))?;
        Ok(value.into())
    }

    fn member(&self, name: &str, member: &str, _: &mut Meter) -> Result<Option<Value<'w>>, EvaluationError> {
        Ok(self.0[name].get(member).map(Value::from))
    }

    fn seed(&self) -> &'static str {
        "11111111-2222-3333-4444-555555555555"
    }
}
