//! Reviews, from their bytes to the bytes of the answer.

use std::sync::Arc;

use base64::Engine;
use pillion_api::names::InjectionLevel;
use serde_json::{Value as Json, json};

use super::*;
use crate::profile::{ProfileName, ProfileSet, compile};
use crate::report::{Notice, Outcome, ProfileOutcome, Reason};

mod held;

const ENABLED: Endpoint = Endpoint::Level(InjectionLevel::Enabled);

fn snapshot(profiles: &[(&str, Json)]) -> Snapshot {
    let compiled = profiles.iter().map(|(name, spec)| {
        let spec = serde_json::from_value(spec.clone()).unwrap();
        Arc::new(compile(&ProfileName::cluster(*name), &spec).unwrap())
    });
    Snapshot::new(ProfileSet::new(compiled))
}

fn sidecar() -> Json {
    json!({
        "activation": "Always",
        "template": {
            "metadata": {"annotations": {"example.com/status": "injected"}},
            "spec": {
                "containers": [{"name": "sidecar", "image": "sidecar:1"}],
                "volumes": [{"name": "config", "configMap": {"name": "sidecar"}}],
            },
        },
    })
}

fn pod() -> Json {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "app", "image": "app:1"}]},
    })
}

fn review_of(object: &Json) -> Json {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "the-uid",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "team-a", "operation": "CREATE", "object": object,
            "userInfo": {"username": "somebody"},
        },
    })
}

/// What is decided about a review, the answer, and the patched object.
struct Result {
    decided: Decided,
    answer: Json,
    object: Json,
}

fn answer(review: &Json, endpoint: Endpoint, snapshot: &Snapshot, facts: &Facts) -> Result {
    let body = review.to_string();
    let parsed = Review::parse(body.as_bytes()).unwrap();
    let decided = parsed.decide(endpoint, snapshot, facts).unwrap();
    let answer: Json = serde_json::from_slice(&parsed.respond(&decided)).unwrap();
    let mut object = review["request"]["object"].clone();
    if let Some(patch) = answer["response"]["patch"].as_str() {
        let patch = base64::engine::general_purpose::STANDARD.decode(patch).unwrap();
        json_patch::patch(&mut object, &serde_json::from_slice::<json_patch::Patch>(&patch).unwrap()).unwrap();
    }
    Result { decided, answer, object }
}

fn inject(object: &Json, profiles: &[(&str, Json)]) -> Result {
    answer(&review_of(object), ENABLED, &snapshot(profiles), &Facts::default())
}

/// The object as the API server hands it out again: managedFields name what the author wrote.
fn as_stored(mut object: Json) -> Json {
    object["metadata"]["managedFields"] = json!([{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]);
    object
}

#[test]
fn a_pod_gets_container_volume_annotation_and_record() {
    let result = inject(&pod(), &[("nginx", sidecar())]);
    assert_eq!(result.decided.decision.outcome, Outcome::Injected);
    assert_eq!(result.object["spec"]["containers"][1], json!({"name": "sidecar", "image": "sidecar:1"}));
    assert_eq!(result.object["spec"]["volumes"], json!([{"name": "config", "configMap": {"name": "sidecar"}}]));
    let annotations = &result.object["metadata"]["annotations"];
    assert_eq!(annotations["example.com/status"], "injected");
    let record: Json = serde_json::from_str(annotations["pillion.dev/injected"].as_str().unwrap()).unwrap();
    assert_eq!(record["profiles"][0]["profile"], "nginx");
    let added = ["/metadata/annotations/example.com~1status", "/spec/containers/sidecar", "/spec/volumes/config"];
    assert_eq!(record["profiles"][0]["added"], json!(added));
    assert_eq!(result.answer["response"]["uid"], "the-uid");
    assert_eq!(result.answer["response"]["allowed"], true);
    assert_eq!(result.answer["response"]["patchType"], "JSONPatch");
}

#[test]
fn v1beta1_is_answered_in_kind() {
    let mut review = review_of(&pod());
    review["apiVersion"] = json!("admission.k8s.io/v1beta1");
    let result = answer(&review, ENABLED, &snapshot(&[("nginx", sidecar())]), &Facts::default());
    assert_eq!(result.answer["apiVersion"], "admission.k8s.io/v1beta1");
    assert_eq!(result.answer["kind"], "AdmissionReview");
    assert!(result.answer["response"]["patch"].is_string());
}

#[test]
fn a_second_pass_changes_nothing() {
    let first = inject(&as_stored(pod()), &[("nginx", sidecar())]);
    let second = inject(&first.object, &[("nginx", sidecar())]);
    assert_eq!(second.decided.patch, None);
    assert_eq!(second.decided.decision.outcome, Outcome::Unchanged);
    assert_eq!(second.decided.decision.reason, Reason::AlreadyInjected);
}

#[test]
fn a_second_pass_leaves_alone_what_others_made_of_ours_and_adds_what_is_missing() {
    let mut object = inject(&as_stored(pod()), &[("nginx", sidecar())]).object;
    object["spec"]["containers"][1]["resources"] = json!({"limits": {"cpu": "1"}});
    object["spec"].as_object_mut().unwrap().remove("volumes");
    let record = object["metadata"]["annotations"]["pillion.dev/injected"].clone();
    let second = inject(&object, &[("nginx", sidecar())]);
    assert_eq!(second.object["spec"]["containers"], object["spec"]["containers"]);
    assert_eq!(second.object["spec"]["volumes"][0]["name"], "config");
    assert_eq!(second.object["metadata"]["annotations"]["pillion.dev/injected"], record);
}

#[test]
fn a_second_pass_decides_by_what_the_author_wrote() {
    let mut marking = sidecar();
    marking["template"]["metadata"]["labels"] = json!({"mesh": "on"});
    marking["objectSelector"] = json!({"matchExpressions": [{"key": "mesh", "operator": "DoesNotExist"}]});
    let first = inject(&as_stored(pod()), &[("nginx", marking.clone())]);
    assert_eq!(first.object["metadata"]["labels"]["mesh"], "on");
    let second = inject(&first.object, &[("nginx", marking)]);
    assert_eq!(second.decided.decision.reason, Reason::AlreadyInjected);
    assert_eq!(second.decided.patch, None);
}

#[test]
fn conditions_see_the_object_as_its_author_wrote_it() {
    let mut profile = sidecar();
    profile["template"]["metadata"]["labels"] = json!({"tier": {"$value": "gold", "$conflict": "Replace"}});
    profile["matchConditions"] = json!([
        {"name": "alone", "expression": "containers.size() == 1 && primary.name == 'app'"},
        {"name": "tier", "expression": "object.metadata.labels.tier == 'silver'"},
        {"name": "fresh", "expression": "!has(object.spec.volumes) && !has(object.metadata.annotations)"},
        {"name": "user", "expression": "request.userInfo.username == 'somebody' && request.operation == 'CREATE'"},
    ]);
    let mut object = as_stored(pod());
    object["metadata"]["labels"] = json!({"tier": "silver"});
    let first = inject(&object, &[("p", profile.clone())]);
    assert_eq!(first.decided.decision.outcome, Outcome::Injected, "{:?}", first.decided.decision.profiles[0].detail);
    let second = inject(&first.object, &[("p", profile)]);
    assert_eq!(second.decided.decision.reason, Reason::AlreadyInjected, "{:?}", second.decided.decision.profiles[0]);
    assert_eq!(second.decided.patch, None);
}

#[test]
fn a_refusal_by_a_condition_says_why() {
    let mut profile = sidecar();
    profile["matchConditions"] =
        json!([{"name": "c", "expression": "false", "otherwise": "Deny", "message": "ask the platform team"}]);
    let refused = inject(&pod(), &[("p", profile)]);
    assert_eq!(refused.answer["response"]["allowed"], false);
    assert!(refused.answer["response"]["status"]["message"].as_str().unwrap().contains("ask the platform team"));
}

#[test]
fn a_profile_that_was_not_applied_again_keeps_its_entry() {
    let first = inject(&as_stored(pod()), &[("nginx", sidecar())]);
    let other = json!({"activation": "Always", "template": {"metadata": {"labels": {"x": "y"}}}});
    let second = inject(&first.object, &[("other", other)]);
    let record = second.object["metadata"]["annotations"]["pillion.dev/injected"].as_str().unwrap().to_owned();
    let record: Json = serde_json::from_str(&record).unwrap();
    let names: Vec<_> = record["profiles"].as_array().unwrap().iter().map(|entry| entry["profile"].clone()).collect();
    assert_eq!(names, ["nginx", "other"]);
}

#[test]
fn a_record_that_is_not_genuine_is_dropped_and_its_names_are_taken() {
    let copied = inject(&pod(), &[("nginx", sidecar())]).object;
    let again = inject(&copied, &[("nginx", sidecar())]);
    assert_eq!(again.decided.decision.notices, [Notice::RecordDropped]);
    let profile = &again.decided.decision.profiles[0];
    // Container and volume are equal to ours to the letter; in a cluster, defaults would have made them differ.
    assert_eq!(profile.outcome, ProfileOutcome::Unchanged);
    let mut other = copied;
    other["spec"]["containers"][1]["imagePullPolicy"] = json!("IfNotPresent");
    let refused = inject(&other, &[("nginx", sidecar())]);
    let profile = &refused.decided.decision.profiles[0];
    assert_eq!((profile.outcome, profile.reason), (ProfileOutcome::Skipped, Reason::NameTaken));
    assert_eq!(refused.object["metadata"]["annotations"].get("pillion.dev/injected"), None);
    assert_eq!(refused.answer["response"]["warnings"].as_array().unwrap().len(), 2);
}

#[test]
fn the_command_line_believes_a_record_without_managed_fields() {
    let object = inject(&pod(), &[("nginx", sidecar())]).object;
    let facts = Facts { record_trust: RecordTrust::AsFound, ..Facts::default() };
    let again = answer(&review_of(&object), ENABLED, &snapshot(&[("nginx", sidecar())]), &facts);
    assert_eq!(again.decided.patch, None);
}

#[test]
fn a_name_that_is_taken_keeps_the_whole_profile_out() {
    for (field, element) in [
        ("containers", json!({"name": "sidecar", "image": "mine:1"})),
        ("initContainers", json!({"name": "sidecar", "image": "mine:1"})),
        ("volumes", json!({"name": "config", "emptyDir": {}})),
    ] {
        let mut object = pod();
        let list = object["spec"].as_object_mut().unwrap().entry(field).or_insert_with(|| json!([]));
        list.as_array_mut().unwrap().push(element);
        let skipped = inject(&object, &[("nginx", sidecar())]);
        assert_eq!(skipped.object, object, "{field}");
        assert_eq!(skipped.decided.decision.profiles[0].reason, Reason::NameTaken, "{field}");
        assert!(skipped.answer["response"]["warnings"][0].as_str().unwrap().contains("nginx"), "{field}");

        let mut strict = sidecar();
        strict["onError"] = json!("Deny");
        let denied = inject(&object, &[("nginx", strict)]);
        assert_eq!(denied.answer["response"]["allowed"], false, "{field}");
        assert_eq!(denied.answer["response"]["status"]["code"], 403, "{field}");
    }
}

#[test]
fn one_profiles_conflict_leaves_the_others_in_force() {
    let clash = json!({"activation": "Always", "order": 200, "template": {
        "metadata": {"labels": {"clash": "yes"}},
        "spec": {"containers": [{"name": "sidecar", "image": "other:1"}]},
    }});
    let result = inject(&pod(), &[("nginx", sidecar()), ("clash", clash)]);
    assert_eq!(result.decided.decision.outcome, Outcome::Injected);
    assert_eq!(result.object["spec"]["containers"].as_array().unwrap().len(), 2);
    assert_eq!(result.object["metadata"].get("labels"), None);
}

#[test]
fn the_authors_values_win() {
    let mut object = pod();
    object["metadata"]["annotations"] = json!({"example.com/status": "mine"});
    object["spec"]["terminationGracePeriodSeconds"] = json!(7);
    let mut profile = sidecar();
    profile["template"]["spec"]["terminationGracePeriodSeconds"] = json!(60);
    profile["template"]["spec"]["securityContext"] = json!({"fsGroup": 2000});
    let result = inject(&object, &[("nginx", profile)]);
    assert_eq!(result.object["metadata"]["annotations"]["example.com/status"], "mine");
    assert_eq!(result.object["spec"]["terminationGracePeriodSeconds"], 7);
    assert_eq!(result.object["spec"]["securityContext"]["fsGroup"], 2000);
}

#[test]
fn null_stands_for_absent() {
    let mut object = pod();
    object["metadata"]["annotations"] = Json::Null;
    object["spec"]["volumes"] = Json::Null;
    object["spec"]["initContainers"] = json!([]);
    let result = inject(&object, &[("nginx", sidecar())]);
    assert_eq!(result.object["metadata"]["annotations"]["example.com/status"], "injected");
    assert_eq!(result.object["spec"]["volumes"][0]["name"], "config");
}

#[test]
fn fields_that_nobody_knows_stay_as_they_are() {
    let text = review_of(&pod()).to_string().replace(
        r#""spec":{"#,
        r#""spec":{"fooBar":{"n":1e999,"big":18446744073709551616,"precise":0.10000000000000000055,"z":-0},"#,
    );
    let review = Review::parse(text.as_bytes()).unwrap();
    let decided = review.decide(ENABLED, &snapshot(&[("nginx", sidecar())]), &Facts::default()).unwrap();
    let patch = String::from_utf8(decided.patch.unwrap()).unwrap();
    assert!(!patch.contains("fooBar"), "{patch}");
}

#[test]
fn what_is_not_to_be_injected_says_why() {
    let snapshot = snapshot(&[("nginx", sidecar())]);
    let reason = |change: &dyn Fn(&mut Json), endpoint| {
        let mut review = review_of(&pod());
        change(&mut review["request"]);
        let result = answer(&review, endpoint, &snapshot, &Facts::default());
        assert_eq!(result.decided.patch, None);
        assert_eq!(result.answer["response"]["allowed"], true);
        result.decided.decision.reason
    };
    let set = |field: &'static str, value: Json| move |request: &mut Json| request[field] = value.clone();
    assert_eq!(reason(&set("operation", json!("UPDATE")), ENABLED), Reason::OtherOperation);
    assert_eq!(reason(&set("operation", json!("CONNECT")), ENABLED), Reason::OtherOperation);
    assert_eq!(reason(&set("subResource", json!("ephemeralcontainers")), ENABLED), Reason::OtherResource);
    assert_eq!(reason(&|request| request["resource"]["group"] = json!("foo"), ENABLED), Reason::OtherResource);
    assert_eq!(reason(&|request| request["resource"]["resource"] = json!("secrets"), ENABLED), Reason::OtherResource);
    for namespace in ["kube-system", "kube-public", "kube-node-lease"] {
        assert_eq!(reason(&set("namespace", json!(namespace)), ENABLED), Reason::SystemNamespace);
    }
    assert_eq!(reason(&|_| {}, Endpoint::Any), Reason::NotOptedIn);
    assert_eq!(reason(&|request| request["object"]["spec"]["containers"] = json!([]), ENABLED), Reason::NoContainers);
    let mirror = |user: &'static str| {
        move |request: &mut Json| {
            request["object"]["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
            request["userInfo"]["username"] = json!(user);
        }
    };
    assert_eq!(reason(&mirror("system:node:n1"), ENABLED), Reason::MirrorPod);
}

#[test]
fn a_mirror_annotation_of_somebody_else_hides_nothing() {
    let mut object = pod();
    object["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    assert_eq!(inject(&object, &[("nginx", sidecar())]).decided.decision.outcome, Outcome::Injected);
}

#[test]
fn any_endpoint_goes_by_the_namespaces_label() {
    let snapshot = snapshot(&[("nginx", sidecar())]);
    for level in InjectionLevel::ALL {
        let facts = Facts { namespace: Some(Arc::new(Namespace::opted_in(level))), ..Facts::default() };
        let result = answer(&review_of(&pod()), Endpoint::Any, &snapshot, &facts);
        assert_eq!(result.decided.decision.outcome, Outcome::Injected, "{level:?}");
    }
}

#[test]
fn an_object_that_would_grow_too_large_is_left_alone_or_refused() {
    let mut object = pod();
    object["metadata"]["annotations"] = json!({"large": "x".repeat(1_400 * 1024)});
    let skipped = inject(&object, &[("nginx", sidecar())]);
    assert_eq!(skipped.object, object);
    assert_eq!(skipped.decided.decision.reason, Reason::LimitExceeded);
    assert_eq!(skipped.answer["response"]["allowed"], true);
    let mut strict = sidecar();
    strict["optOut"] = json!("Forbidden");
    assert_eq!(inject(&object, &[("nginx", strict)]).answer["response"]["allowed"], false);
}

#[test]
fn bodies_that_are_no_reviews_are_refused_with_the_reason() {
    let good = review_of(&pod()).to_string();
    let with = |from: &str, to: &str| good.replacen(from, to, 1);
    for (body, told) in [
        (String::new(), "empty"),
        ("null".into(), "the body is null"),
        ("[]".into(), "the body is []"),
        ("\"x\"".into(), "the body is \"x\""),
        ("{}".into(), "apiVersion is absent"),
        (good[..good.len() - 3].into(), "not JSON"),
        (format!("\u{feff}{good}"), "not JSON"),
        (with("admission.k8s.io/v1", "admission.k8s.io/v2"), "admission.k8s.io/v2"),
        (with("\"AdmissionReview\"", "\"Pod\""), "kind is \"Pod\""),
        (with("\"the-uid\"", "\"\""), "request.uid"),
        (with("\"the-uid\"", &format!("{:?}", "u".repeat(10_240))), "request.uid"),
        (with("\"uid\":\"the-uid\",", ""), "request.uid is absent"),
        (with("\"uid\":", "\"uid\":\"other\",\"uid\":"), "\"uid\" stands twice"),
        (with("\"request\":", "\"request\":{},\"request\":"), "\"request\" stands twice"),
        (
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": null}).to_string(),
            "request is null",
        ),
        (with("\"object\":", "\"object\":null,\"x\":"), "request.object is null"),
        (with("\"object\":", "\"object\":[],\"x\":"), "request.object is []"),
        (with("\"spec\":", &format!("\"x\":{}{},\"spec\":", "[".repeat(200), "]".repeat(200))), "too deeply"),
        (with("\"web\"", "\"\\ud800\""), "surrogate"),
    ] {
        let error = Review::parse(body.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(told), "{error:?} does not say {told:?}");
        assert!(error.len() < 300, "{error}");
    }
    assert!(matches!(Review::parse(b"\"\xff\""), Err(ReviewError::Encoding(1))));
}

#[test]
fn a_key_that_stands_twice_in_the_object_is_refused_not_guessed() {
    let body = review_of(&pod()).to_string().replacen("\"spec\":", "\"spec\":{\"containers\":[{}]},\"spec\":", 1);
    let review = Review::parse(body.as_bytes()).unwrap();
    let decided = review.decide(ENABLED, &snapshot(&[("nginx", sidecar())]), &Facts::default()).unwrap();
    assert_eq!(decided.decision.outcome, Outcome::Denied);
}

#[test]
fn a_changed_profile_does_not_claim_what_an_earlier_revision_did() {
    let first = inject(&as_stored(pod()), &[("nginx", sidecar())]);
    let mut edited = sidecar();
    edited["template"]["spec"]["containers"][0]["image"] = json!("sidecar:2");
    let second = inject(&first.object, &[("nginx", edited)]);
    // What is there is of the earlier revision, and the record goes on saying so.
    assert_eq!(second.decided.patch, None);
    assert_eq!(second.decided.decision.outcome, Outcome::Unchanged);
}

#[test]
fn a_volume_that_is_nowhere_keeps_the_profile_out() {
    let mut profile = sidecar();
    profile["template"]["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "logs", "mountPath": "/logs"}]);
    let without = inject(&pod(), &[("nginx", profile.clone())]);
    assert_eq!(without.decided.decision.profiles[0].reason, Reason::MissingVolume);
    assert_eq!(without.object, pod());
    let mut object = pod();
    object["spec"]["volumes"] = json!([{"name": "logs", "emptyDir": {}}]);
    assert_eq!(inject(&object, &[("nginx", profile)]).decided.decision.outcome, Outcome::Injected);
}

#[test]
fn a_pod_for_windows_gets_no_linux_container() {
    let labels = json!({"activation": "Always", "template": {"metadata": {"labels": {"x": "y"}}}});
    for (field, value) in [("os", json!({"name": "windows"})), ("nodeSelector", json!({"kubernetes.io/os": "windows"}))]
    {
        let mut object = pod();
        object["spec"][field] = value;
        let result = inject(&object, &[("nginx", sidecar()), ("labels", labels.clone())]);
        let outcomes: Vec<_> = result.decided.decision.profiles.iter().map(|p| (p.outcome, p.reason)).collect();
        let expected =
            [(ProfileOutcome::Applied, Reason::Injected), (ProfileOutcome::Skipped, Reason::OperatingSystem)];
        assert_eq!(outcomes, expected, "{field}");
    }
}

#[test]
fn a_pod_without_metadata_gets_its_record_all_the_same() {
    let containers =
        json!({"activation": "Always", "template": {"spec": {"containers": [{"name": "s", "image": "s:1"}]}}});
    for metadata in [None, Some(Json::Null)] {
        let mut object = pod();
        object.as_object_mut().unwrap().remove("metadata");
        if let Some(metadata) = metadata {
            object["metadata"] = metadata;
        }
        let result = inject(&object, &[("nginx", containers.clone())]);
        assert!(result.object["metadata"]["annotations"]["pillion.dev/injected"].is_string(), "{}", result.object);
    }
}

/// A profile that speaks of what the object has already.
fn overriding(rule: &str) -> Json {
    json!({"activation": "Always", "template": {
        "metadata": {"labels": {"tier": {"$value": "gold", "$conflict": rule}}},
        "spec": {"terminationGracePeriodSeconds": {"$value": 90, "$conflict": rule}},
    }})
}

#[test]
fn a_conflict_is_decided_as_the_template_says() {
    let mut object = as_stored(pod());
    object["metadata"]["labels"] = json!({"tier": "mine"});
    object["spec"]["terminationGracePeriodSeconds"] = json!(5);
    for rule in ["Merge", "Keep"] {
        let result = inject(&object, &[("p", overriding(rule))]);
        assert_eq!(result.object, object, "{rule}");
    }
    let failed = inject(&object, &[("p", overriding("Fail"))]);
    assert_eq!(failed.decided.decision.profiles[0].reason, Reason::NameTaken);
    assert_eq!(failed.object, object);

    let replaced = inject(&object, &[("p", overriding("Replace"))]);
    assert_eq!(replaced.object["metadata"]["labels"]["tier"], "gold");
    assert_eq!(replaced.object["spec"]["terminationGracePeriodSeconds"], 90);
    let record: Json =
        serde_json::from_str(replaced.object["metadata"]["annotations"]["pillion.dev/injected"].as_str().unwrap())
            .unwrap();
    let originals = json!([["/metadata/labels/tier", "mine"], ["/spec/terminationGracePeriodSeconds", 5]]);
    assert_eq!(record["profiles"][0]["replaced"], originals);

    // A second pass is empty, also for a profile that goes by the label that was replaced; and it replaces again what
    // others set in between.
    let mut selective = overriding("Replace");
    selective["objectSelector"] = json!({"matchLabels": {"tier": "mine"}});
    let first = inject(&object, &[("p", selective.clone())]);
    let second = inject(&first.object, &[("p", selective.clone())]);
    assert_eq!((second.decided.patch.clone(), second.decided.decision.reason), (None, Reason::AlreadyInjected));
    let mut meddled = first.object.clone();
    meddled["spec"]["terminationGracePeriodSeconds"] = json!(1);
    let third = inject(&meddled, &[("p", selective)]);
    assert_eq!(third.object["spec"], first.object["spec"]);
}

#[test]
fn an_overlay_is_merged_and_its_author_wins() {
    let mut object = pod();
    object["spec"]["containers"].as_array_mut().unwrap().push(json!({
        "name": "sidecar", "image": "auto", "env": [{"name": "LEVEL", "value": "debug"}],
    }));
    let profile = json!({"activation": "Always", "template": {"spec": {"containers": [{
        "name": "sidecar", "$conflict": "Merge",
        "image": {"$value": "sidecar:1", "$conflict": "Replace"},
        "args": ["run"],
        "env": [{"name": "LEVEL", "value": "info"}, {"name": "MODE", "value": "x"}],
    }]}}});
    let result = inject(&object, &[("p", profile)]);
    let expected = json!({
        "name": "sidecar", "image": "sidecar:1", "args": ["run"],
        "env": [{"name": "LEVEL", "value": "debug"}, {"name": "MODE", "value": "x"}],
    });
    assert_eq!(result.object["spec"]["containers"][1], expected);
}

#[test]
fn one_choice_among_several_is_the_authors_or_replaced_whole() {
    let mut object = pod();
    object["spec"]["containers"][0]["livenessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 3});
    let profile = |rule: &str| {
        json!({"activation": "Always", "template": {"spec": {"containers": [{
            "name": "app", "image": "app:1", "$conflict": "Merge",
            "livenessProbe": {"httpGet": {"port": 1}, "timeoutSeconds": 2, "$conflict": rule},
        }]}}})
    };
    let probe =
        |rule| inject(&object, &[("p", profile(rule))]).object["spec"]["containers"][0]["livenessProbe"].clone();
    assert_eq!(probe("Merge"), json!({"exec": {"command": ["true"]}, "periodSeconds": 3, "timeoutSeconds": 2}));
    assert_eq!(probe("Replace"), json!({"httpGet": {"port": 1}, "periodSeconds": 3, "timeoutSeconds": 2}));
}

#[test]
fn new_elements_go_where_the_template_says() {
    let mut object = pod();
    object["spec"]["initContainers"] = json!([{"name": "one", "image": "i"}, {"name": "two", "image": "i"}]);
    let init = |name: &str, position: Json| json!({"name": name, "image": "i", "$position": position});
    let first = json!({"activation": "Always", "order": 1, "template": {"spec": {"initContainers": [
        init("f1", json!("First")), init("f2", json!("First")), init("l1", json!("Last")),
        init("b1", json!({"before": "two"})), init("b2", json!({"before": "two"})),
        init("a1", json!({"after": "one"})), init("a2", json!({"after": "one"})),
        init("x", json!({"before": "nobody"})),
    ]}}});
    let second = json!({"activation": "Always", "order": 2, "template": {"spec": {"initContainers": [
        init("f3", json!("First")), init("a3", json!({"after": "one"})), init("l2", json!("Last")),
    ]}}});
    let result = inject(&object, &[("p", first), ("q", second)]);
    let names: Vec<_> =
        result.object["spec"]["initContainers"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
    assert_eq!(names, ["f1", "f2", "f3", "one", "a1", "a2", "a3", "b1", "b2", "two", "l1", "x", "l2"]);
}

#[test]
fn what_is_joined_is_added_once() {
    let mut object = as_stored(pod());
    object["metadata"]["annotations"] = json!({"features": "a,b"});
    object["spec"]["containers"][0]["args"] = json!(["--x"]);
    object["spec"]["containers"][0]["env"] =
        json!([{"name": "OPTS", "value": "-Xmx1g"}, {"name": "REF", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]);
    let profile = json!({"activation": "Always", "template": {
        "metadata": {"annotations": {"features": {"$value": "b,c", "$join": {"separator": ","}}}},
        "spec": {"containers": [{
            "name": "app", "image": "app:1", "$conflict": "Merge",
            "args": {"$value": ["--x", "--y"], "$join": {}},
            "env": [
                {"name": "OPTS", "value": " -agent", "$join": {"separator": ""}},
                {"name": "REF", "value": "v", "$join": {"separator": ","}},
                {"name": "NEW", "value": "v", "$join": {"separator": ","}},
            ],
        }]},
    }});
    let first = inject(&object, &[("p", profile.clone())]);
    assert_eq!(first.object["metadata"]["annotations"]["features"], "a,b,c");
    let app = &first.object["spec"]["containers"][0];
    assert_eq!(app["args"], json!(["--x", "--y"]));
    assert_eq!(app["env"][0]["value"], "-Xmx1g -agent");
    assert_eq!(app["env"][1], object["spec"]["containers"][0]["env"][1], "a reference stays");
    assert_eq!(app["env"][2], json!({"name": "NEW", "value": "v"}));
    let second = inject(&first.object, &[("p", profile)]);
    assert_eq!(second.decided.patch.map(|patch| String::from_utf8(patch).unwrap()), None);
}

#[test]
fn warnings_are_short_and_few() {
    let profiles: Vec<_> = ["a", "b", "c"].map(|name| (name, sidecar())).into();
    let mut object = pod();
    object["spec"]["containers"][0]["name"] = json!("sidecar");
    let result = inject(&object, &profiles);
    let warnings = result.answer["response"]["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 2);
    assert!(warnings.iter().all(|warning| warning.as_str().unwrap().chars().count() <= 200));
}

#[test]
fn a_fault_says_where_the_check_failed() {
    let stages = [
        (CheckFault::Operation(1), "read"),
        (CheckFault::Path { index: 0, path: "/a".into() }, "apply"),
        (CheckFault::Result, "compare"),
    ];
    for (place, (fault, stage)) in stages.into_iter().enumerate() {
        let found = Fault(fault).stage();
        assert_eq!((found.as_str(), found as usize, CheckStage::ALL[place]), (stage, place, found));
    }
}
