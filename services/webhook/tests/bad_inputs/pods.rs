//! Unusual objects and profiles: B15, B31 to B42, B44, B45, B49, B51, B52, B56, B58, B59, B61, B62, B68 to B70.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use http::Request;
use pillion_api::names::InjectionLevel;
use pillion_engine::decision::Outcome;
use pillion_engine::profile::{CompiledProfile, ProfileName, compile};
use pillion_engine::review::{Endpoint, Facts, Review};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use serde_json::{Value as Json, json};
use tower::ServiceExt;

use crate::bad_inputs::table::{ALONE, Expected, Injected, Row, good, run};
use crate::support::{App, KNOWN, anonymous_memory, review, sidecar};

const SKIP: Expected = Expected::Skip { warned: false };
const WARNED: Expected = Expected::Skip { warned: true };
const MIB: usize = 1024 * 1024;

/// Container, volume, annotation and record are there.
fn whole(injected: &Injected) {
    let object = &injected.object;
    let names = |list: &str| {
        let list = object["spec"][list].as_array().unwrap();
        list.iter().map(|element| element["name"].as_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(names("containers").iter().filter(|name| **name == "sidecar").count(), 1, "{object}");
    assert_eq!(names("volumes").iter().filter(|name| **name == "config").count(), 1, "{object}");
    assert_eq!(object["metadata"]["annotations"]["example.com/status"], "injected", "{object}");
    assert!(object["metadata"]["annotations"]["pillion.dev/injected"].is_string(), "{object}");
}

fn row(number: u8, name: &'static str) -> Row {
    good(number, name).is(Expected::Injected(whole))
}

/// The numbers are outside the changed fields.
fn numbers_stay(injected: &Injected) {
    assert!(!injected.patch.contains("spec/numbers") && !injected.patch.contains("1e999"), "{}", injected.patch);
}

/// `fields` that no build knows, after which the object is the same but for what was added.
fn fields_stay(injected: &Injected) {
    whole(injected);
    assert_eq!(injected.object["spec"]["fooBar"], json!({"deep": [1, {"x": null}]}));
    assert_eq!(injected.object["spec"]["containers"][0]["fooBar"], json!(["é", "\u{0}"]));
    assert!(!injected.patch.contains("fooBar"), "{}", injected.patch);
}

fn keys_are_escaped(injected: &Injected) {
    let annotations = &injected.object["metadata"]["annotations"];
    assert_eq!(annotations["a/b~0~1"], "kept");
    assert_eq!(annotations["sidecar.example/of_0"], "x");
    assert!(injected.patch.contains("/sidecar.example~1of_0"), "{}", injected.patch);
}

fn status_stays(injected: &Injected) {
    whole(injected);
    assert_eq!(injected.object["status"]["phase"], "Running");
    assert_eq!(injected.object["metadata"]["uid"], "11111111-2222-3333-4444-555555555555");
    assert_eq!(injected.object["metadata"]["resourceVersion"], "7");
    for field in ["/status", "/metadata/uid", "/metadata/resourceVersion"] {
        assert!(!injected.patch.contains(&format!("\"{field}")), "{}", injected.patch);
    }
}

/// The parameter's value is a text in one place, whatever stands in it.
fn stays_a_text(injected: &Injected) {
    let added = &injected.object["spec"]["containers"][1];
    assert_eq!(added["env"][0]["value"], "\"\nprivileged: true\nx: \"${1+1}{{ . }}\u{0}");
    assert!(added.get("securityContext").is_none() && added.get("privileged").is_none(), "{added}");
}

fn parameter(kind: &Json, annotation: &str) -> impl FnOnce(&mut Json) {
    let (kind, annotation) = (kind.clone(), annotation.to_owned());
    move |profile| {
        let mut parameter = kind;
        parameter["name"] = json!("value");
        parameter["annotation"] = json!(annotation);
        parameter["sources"] = json!(["Pod"]);
        profile["parameters"] = json!([parameter]);
        profile["template"]["spec"]["containers"][0]["env"] =
            json!([{"name": "VALUE", "value": "${string(params.value)}"}]);
    }
}

fn annotated(key: &'static str, value: impl Into<String>) -> impl FnOnce(&mut Json) {
    let value = value.into();
    move |pod| pod["metadata"]["annotations"] = json!({key: value})
}

fn mirror(pod: &mut Json) {
    pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x", "kubernetes.io/config.source": "file"});
}

fn denies(profile: &mut Json) {
    profile["onError"] = json!("Deny");
}

/// Managed fields as long appliers leave them.
fn managed_fields(bytes: usize) -> Json {
    let entry = |number: usize| {
        json!({
            "manager": format!("manager-{number}"), "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "time": "2026-01-01T00:00:00Z",
            "fieldsV1": {"f:metadata": {"f:annotations": {format!("f:example.com/key-{number}"): {}}},
                         "f:spec": {"f:containers": {"k:{\"name\":\"web\"}": {".": {}, "f:image": {}, "f:name": {}}}}},
        })
    };
    let one = entry(1000).to_string().len() + 1;
    Json::Array((0..=bytes / one).map(entry).collect())
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn rows() -> Vec<Row> {
    let numbers = "\"spec\":{\"numbers\":[1e999,-0,18446744073709551616,0.1000000000000000055511151231257827,-1E+2],";
    let taken = |pod: &mut Json, name: &str| {
        let container = json!({"name": name, "image": "registry.example/mine:1"});
        pod["spec"]["containers"].as_array_mut().unwrap().push(container);
    };
    let same = |pod: &mut Json| {
        let profile = sidecar();
        pod["metadata"]["annotations"] = profile["template"]["metadata"]["annotations"].clone();
        let container = profile["template"]["spec"]["containers"][0].clone();
        pod["spec"]["containers"].as_array_mut().unwrap().push(container);
        pod["spec"]["volumes"] = profile["template"]["spec"]["volumes"].clone();
    };
    let windows = |pod: &mut Json| pod["spec"]["os"] = json!({"name": "windows"});
    let integer = json!({"type": "integer", "minimum": 1, "maximum": 10, "default": 5});
    let key = "sidecar.example/value";
    let forged_record = r#"{"profiles":[{"profile":"profile","revision":"x","added":["/spec/containers/sidecar"]}]}"#;
    let mut rows = vec![
        good(15, "numbers that no number holds").text("\"spec\":{", numbers).is(Expected::Injected(numbers_stay)),
        row(31, "no annotations, labels or volumes"),
        row(31, "no metadata at all").pod(|pod| _ = pod.as_object_mut().unwrap().remove("metadata")),
        row(32, "null for absent").pod(|pod| {
            pod["metadata"]["annotations"] = json!(null);
            pod["metadata"]["labels"] = json!(null);
            pod["spec"]["volumes"] = json!(null);
            pod["spec"]["initContainers"] = json!([]);
        }),
        good(33, "all of it is there").pod(same).is(SKIP),
        good(34, "its name with another image").pod(|pod| taken(pod, "sidecar")).is(WARNED),
        // 403 and not 409: a controller that gets a conflict tries again at once, and would for ever.
        good(34, "the same, and the profile insists")
            .pod(|pod| taken(pod, "sidecar"))
            .profile(denies)
            .is(Expected::Deny(403, "sidecar")),
        good(35, "a volume's name is taken")
            .pod(|pod| pod["spec"]["volumes"] = json!([{"name": "config", "emptyDir": {}}]))
            .is(WARNED),
        row(36, "a forged record and nothing behind it").pod(annotated("pillion.dev/injected", forged_record)),
        row(36, "a record that is none").pod(annotated("pillion.dev/injected", "{")),
        good(37, "slashes and tildes in keys")
            .pod(annotated("a/b~0~1", "kept"))
            .profile(|profile| profile["template"]["metadata"]["annotations"]["sidecar.example/of_0"] = json!("x"))
            .is(Expected::Injected(keys_are_escaped)),
        // Without a warning: the API server refuses the pod by itself, with the field's path.
        good(38, "no containers").pod(|pod| pod["spec"]["containers"] = json!([])).is(SKIP),
        good(38, "containers null").pod(|pod| pod["spec"]["containers"] = json!(null)).is(SKIP),
        row(39, "1,000 containers").pod(|pod| (0..1000).for_each(|number| taken(pod, &format!("c-{number}")))),
        row(39, "10,000 variables").pod(|pod| {
            let env = (0..10_000).map(|number| json!({"name": format!("V{number}"), "value": "x"}));
            pod["spec"]["containers"][0]["env"] = env.collect();
        }),
        good(39, "3 MiB").pod(annotated("large", "x".repeat(3 * MIB))).is(WARNED),
        good(40, "1.4 MiB and what is added").pod(annotated("large", "x".repeat(1_400 * 1024 - 200))).is(WARNED),
        // 403 for every refusal: what is too large is said in words, and 413 would be the request's size to a client.
        good(40, "the same, and the profile insists")
            .pod(annotated("large", "x".repeat(1_400 * 1024 - 200)))
            .profile(denies)
            .is(Expected::Deny(403, "would exceed a limit")),
        row(41, "a name to be made, and no namespace in the object")
            .pod(|pod| pod["metadata"] = json!({"generateName": "web-"}))
            .request(|request| _ = request.as_object_mut().unwrap().remove("name")),
        // Without a warning: the API server has refused a request whose object is of another namespace long before.
        row(42, "another namespace in the object").pod(|pod| pod["metadata"]["namespace"] = json!("team-b")),
        good(44, "a mirror pod of the kubelet")
            .pod(mirror)
            .request(|request| request["userInfo"] = json!({"username": "system:node:n1", "groups": ["system:nodes"]}))
            .is(SKIP),
        row(44, "somebody who says that it is one").pod(mirror),
        // Without a warning: the profile excludes the pod on purpose.
        good(45, "the host's network, and a profile that captures ports")
            .pod(|pod| pod["spec"]["hostNetwork"] = json!(true))
            .profile(|profile| {
                profile["matchConditions"] =
                    json!([{"name": "own-network", "expression": "!object.spec.?hostNetwork.orValue(false)"}]);
            })
            .is(SKIP),
        good(51, "more than a value")
            .pod(annotated(key, "\"\nprivileged: true\nx: \"${1+1}{{ . }}\u{0}"))
            .profile(parameter(&json!({"type": "string", "default": ""}), key))
            .is(Expected::Injected(stays_a_text)),
        row(59, "fields that no build knows")
            .pod(|pod| {
                pod["spec"]["fooBar"] = json!({"deep": [1, {"x": null}]});
                pod["spec"]["containers"][0]["fooBar"] = json!(["é", "\u{0}"]);
            })
            .is(Expected::Injected(fields_stay)),
        good(61, "a pod for Windows").pod(windows).is(WARNED),
        row(62, "a pod that has been stored once")
            .pod(|pod| {
                pod["metadata"]["uid"] = json!("11111111-2222-3333-4444-555555555555");
                pod["metadata"]["resourceVersion"] = json!("7");
                pod["status"] = json!({"phase": "Running"});
            })
            .is(Expected::Injected(status_stays)),
        row(68, "a dry run").request(|request| request["dryRun"] = json!(true)),
        row(69, "10,000 groups").request(|request| {
            let groups = (0..10_000).map(|number| json!(format!("gruppe-ü-{number}-\u{1f600}")));
            request["userInfo"] = json!({"username": "ünï\u{202e}", "groups": groups.collect::<Vec<_>>()});
        }),
        row(70, "2 MiB of managed fields")
            .pod(|pod| pod["metadata"]["managedFields"] = managed_fields(2 * MIB))
            // Untouched is what counts: with them the object is larger than the API server would store.
            .is(WARNED),
        row(70, "1 MiB of managed fields").pod(|pod| pod["metadata"]["managedFields"] = managed_fields(MIB)),
    ];
    // By default a value that is not allowed is as if it were not there, and its author is warned; or the pod is refused.
    for (name, value) in [("too large", "11".to_owned()), ("no number", "ten".to_owned()), ("1 MiB", "9".repeat(MIB))] {
        rows.push(
            good(52, name)
                .pod(annotated(key, value))
                .profile(parameter(&integer, key))
                .profile(|profile| profile["parameters"][0]["onInvalid"] = json!("Deny"))
                // 403 for every refusal, see B34; the name of the annotation is the path that its author knows.
                .is(Expected::Deny(403, "sidecar.example/value")),
        );
    }
    rows
}

#[tokio::test]
async fn pods() {
    run(rows()).await;
}

async fn answer(app: &App, review: &Json) -> Vec<u8> {
    let request = Request::post("/mutate").header("content-type", "application/json");
    let response = app.router.clone().oneshot(request.body(Body::from(review.to_string())).unwrap()).await.unwrap();
    axum::body::to_bytes(response.into_body(), 16 * MIB).await.unwrap().to_vec()
}

/// B68: what a dry run is answered is what the real one is.
#[tokio::test]
async fn dry_run_gets_same_response() {
    let app = App::with_profile(&sidecar(), None);
    let real = review(KNOWN);
    let mut dry = real.clone();
    dry["request"]["dryRun"] = json!(true);
    let real = answer(&app, &real).await;
    assert_eq!(answer(&app, &dry).await, real);
    assert!(String::from_utf8(real).unwrap().contains("\"patch\""));
}

/// B70: 2 MiB of managed fields are read past, and cost no more than a few times what reading past them must.
#[tokio::test]
async fn managed_fields_cost_little() {
    let app = App::with_profile(&sidecar(), None);
    let mut large = review(KNOWN);
    large["request"]["object"]["metadata"]["managedFields"] = managed_fields(2 * MIB);
    let text = large.to_string();
    let best = |times: &[Duration]| *times.iter().min().unwrap();
    let (mut scans, mut answers) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        let began = Instant::now();
        serde_json::from_str::<serde::de::IgnoredAny>(&text).unwrap();
        scans.push(began.elapsed());
        let request = Request::post("/mutate").header("content-type", "application/json");
        let request = request.body(Body::from(text.clone())).unwrap();
        let began = Instant::now();
        assert_eq!(app.router.clone().oneshot(request).await.unwrap().status(), 200);
        answers.push(began.elapsed());
    }
    let (scan, answer) = (best(&scans), best(&answers));
    println!("{} bytes: {answer:?}, and {scan:?} for the least that a parser does", text.len());
    // 20 ms, or on a machine or in a build that is slow, so many times what any parser takes there.
    assert!(answer < Duration::from_millis(20).max(scan * 6), "{answer:?}, and {scan:?} for a scan");
}

fn compiled(name: &ProfileName, spec: &Json) -> Arc<CompiledProfile> {
    Arc::new(compile(name, &serde_json::from_value(spec.clone()).unwrap()).unwrap())
}

fn outcome(snapshot: &Snapshot, namespace: &str, change: impl FnOnce(&mut Json)) -> (Outcome, Option<String>) {
    let mut review = review(namespace);
    change(&mut review);
    let text = review.to_string();
    let review = Review::parse(text.as_bytes()).unwrap();
    let facts = Facts { namespace: snapshot.namespace(namespace), ..Facts::default() };
    let decided = review.decide(Endpoint::Any, snapshot, &facts).unwrap();
    (decided.decision.outcome, decided.patch.map(|patch| String::from_utf8(patch).unwrap()))
}

fn opted_in() -> Namespace {
    Namespace::opted_in(InjectionLevel::Enabled)
}

fn literal_is_there(injected: &Injected) {
    assert_eq!(injected.object["spec"]["containers"][1]["env"][0]["value"], "not-so-secret");
}

fn profile_rows() -> Vec<Row> {
    vec![
        // Not refused: what a variable is called does not tell what is in it (`*_TOKEN` is the path of a file as often), and
        // who may write a profile may write the same into a pod. That a patch stands in audit logs is told in the
        // documentation of profiles, which has a form for references to Secrets.
        good(49, "a variable that looks like a secret")
            .profile(|profile| {
                profile["template"]["spec"]["containers"][0]["env"] =
                    json!([{"name": "AWS_SECRET_ACCESS_KEY", "value": "not-so-secret"}]);
            })
            .is(Expected::Injected(literal_is_there)),
    ]
}

#[tokio::test]
async fn profiles() {
    run(profile_rows()).await;
}

/// B56: a profile of one namespace never changes a pod of another, whatever it selects and whichever pod requests it.
#[test]
fn namespaced_profile_ignores_other_namespaces() {
    let name = ProfileName::namespaced("team-b", "profile");
    // A namespaceSelector, by which it could mean others, does not even compile.
    let mut reaching = sidecar();
    reaching["namespaceSelector"] = json!({});
    compile(&name, &serde_json::from_value(reaching).unwrap()).unwrap_err();

    let snapshot = Snapshot::new(ProfileSet::new([compiled(&name, &sidecar())]))
        .with_namespace(KNOWN, Some(opted_in()))
        .with_namespace("team-b", Some(opted_in()));
    let asks = |name: &'static str| {
        move |review: &mut Json| {
            review["request"]["object"]["metadata"]["annotations"] = json!({"pillion.dev/profiles": name});
        }
    };
    assert_eq!(outcome(&snapshot, "team-b", |_| {}).0, Outcome::Injected);
    for name in ["profile", "team-b/profile", "../team-b/profile"] {
        let (outcome, patch) = outcome(&snapshot, KNOWN, asks(name));
        assert_eq!((outcome, patch), (Outcome::Skipped, None), "{name}");
    }
    // The namespace that counts is the request's, not the one that the object names.
    let lying = |review: &mut Json| review["request"]["object"]["metadata"]["namespace"] = json!("team-b");
    assert_eq!(outcome(&snapshot, KNOWN, lying).0, Outcome::Skipped);
}

/// B58: 10,000 profiles in one namespace. How many a namespace may have is a quota of the cluster's (`count/…` of a
/// `ResourceQuota`); whoever has none set is served all the same, in memory and time that grow with nothing but their texts.
#[test]
fn ten_thousand_profiles_in_namespace_are_served() {
    const COUNT: usize = 10_000;
    let _alone = ALONE.blocking_lock();
    let before = anonymous_memory();
    let profiles = (0..COUNT).map(|number| {
        let mut spec = sidecar();
        spec["activation"] = json!("Requested");
        spec["request"] = json!({"annotation": format!("profile-{number}.example/inject")});
        compiled(&ProfileName::namespaced(KNOWN, format!("profile-{number}")), &spec)
    });
    let snapshot = Snapshot::new(ProfileSet::new(profiles)).with_namespace(KNOWN, Some(opted_in()));
    let asks = |review: &mut Json| {
        review["request"]["object"]["metadata"]["annotations"] = json!({"profile-7777.example/inject": "true"});
    };
    assert_eq!(outcome(&snapshot, KNOWN, asks).0, Outcome::Injected);
    let memory = anonymous_memory().saturating_sub(before);
    let best = (0..20).map(|_| {
        let began = Instant::now();
        outcome(&snapshot, KNOWN, asks);
        began.elapsed()
    });
    let best = best.min().unwrap();
    println!("{} bytes for each of {COUNT} profiles; {best:?} for a review", memory / COUNT);
    assert!(memory < COUNT * 16 * 1024, "{memory} bytes");
    assert!(best < Duration::from_millis(10), "{best:?}");
}
