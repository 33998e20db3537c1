//! Test cases with unusual objects and profiles.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pillion_api::names::FailureMode;
use pillion_engine::decision::Outcome;
use pillion_engine::profile::{CompiledProfile, ProfileName, compile};
use pillion_engine::review::{Endpoint, Facts, Review};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use serde_json::{Value as Json, json};

use crate::bad_inputs::table::{ALONE, Expected, Injected, Row, good, run};
use crate::support::{App, KNOWN, anonymous_memory, review, review_response, send, sidecar};

const SKIP: Expected = Expected::Skip { warned: false };
const WARNED: Expected = Expected::Skip { warned: true };
const MIB: usize = 1024 * 1024;

/// Asserts that the container, the volume, the annotation and the record are present.
fn check_sidecar(injected: &Injected) {
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
    good(number, name).is(Expected::Injected(check_sidecar))
}

/// Asserts that the patch does not touch the unusual numbers, which are in a field that no profile changes.
fn numbers_stay(injected: &Injected) {
    assert!(!injected.patch.contains("spec/numbers") && !injected.patch.contains("1e999"), "{}", injected.patch);
}

/// Asserts that unknown fields are preserved, and that the patch does not touch them.
fn fields_stay(injected: &Injected) {
    check_sidecar(injected);
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
    check_sidecar(injected);
    assert_eq!(injected.object["status"]["phase"], "Running");
    assert_eq!(injected.object["metadata"]["uid"], "11111111-2222-3333-4444-555555555555");
    assert_eq!(injected.object["metadata"]["resourceVersion"], "7");
    for field in ["/status", "/metadata/uid", "/metadata/resourceVersion"] {
        assert!(!injected.patch.contains(&format!("\"{field}")), "{}", injected.patch);
    }
}

/// Asserts that the parameter's value is inserted as one string, whatever it contains.
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
    profile["failurePolicy"] = json!("Fail");
}

/// Returns managed fields with about this many bytes, in the form that server-side apply writes.
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

#[expect(clippy::too_many_lines, reason = "the function is a table of test cases")]
fn rows() -> Vec<Row> {
    let numbers = "\"spec\":{\"numbers\":[1e999,-0,18446744073709551616,0.1000000000000000055511151231257827,-1E+2],";
    let add_container = |pod: &mut Json, name: &str| {
        let container = json!({"name": name, "image": "registry.example/mine:1"});
        pod["spec"]["containers"].as_array_mut().unwrap().push(container);
    };
    let with_sidecar = |pod: &mut Json| {
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
        good(15, "numbers that a parser may change").text("\"spec\":{", numbers).is(Expected::Injected(numbers_stay)),
        row(31, "no annotations, labels or volumes"),
        row(31, "no metadata").pod(|pod| _ = pod.as_object_mut().unwrap().remove("metadata")),
        row(32, "null and empty fields").pod(|pod| {
            pod["metadata"]["annotations"] = json!(null);
            pod["metadata"]["labels"] = json!(null);
            pod["spec"]["volumes"] = json!(null);
            pod["spec"]["initContainers"] = json!([]);
        }),
        good(33, "everything is already present").pod(with_sidecar).is(SKIP),
        good(34, "a container of the same name with another image").pod(|pod| add_container(pod, "sidecar")).is(WARNED),
        // The code is 403 and not 409, because a controller that gets a conflict retries at once, and would retry
        // forever.
        good(34, "a container name conflict with failurePolicy: Fail")
            .pod(|pod| add_container(pod, "sidecar"))
            .profile(denies)
            .is(Expected::Deny(403, "sidecar")),
        good(35, "a volume of the same name")
            .pod(|pod| pod["spec"]["volumes"] = json!([{"name": "config", "emptyDir": {}}]))
            .is(WARNED),
        row(36, "a forged record without injected parts").pod(annotated("pillion.dev/injected", forged_record)),
        row(36, "an invalid record").pod(annotated("pillion.dev/injected", "{")),
        good(37, "slashes and tildes in keys")
            .pod(annotated("a/b~0~1", "kept"))
            .profile(|profile| profile["template"]["metadata"]["annotations"]["sidecar.example/of_0"] = json!("x"))
            .is(Expected::Injected(keys_are_escaped)),
        // The webhook does not warn, because the API server itself rejects the pod and names the field.
        good(38, "no containers").pod(|pod| pod["spec"]["containers"] = json!([])).is(SKIP),
        good(38, "containers null").pod(|pod| pod["spec"]["containers"] = json!(null)).is(SKIP),
        row(39, "1,000 containers").pod(|pod| (0..1000).for_each(|number| add_container(pod, &format!("c-{number}")))),
        row(39, "10,000 variables").pod(|pod| {
            let env = (0..10_000).map(|number| json!({"name": format!("V{number}"), "value": "x"}));
            pod["spec"]["containers"][0]["env"] = env.collect();
        }),
        good(39, "3 MiB").pod(annotated("large", "x".repeat(3 * MIB))).is(WARNED),
        good(40, "1.4 MiB, so that the additions exceed the limit")
            .pod(annotated("large", "x".repeat(1_400 * 1024 - 200)))
            .is(WARNED),
        // The code is 403. With 413, a client would conclude that its own request is too large.
        good(40, "the size limit with failurePolicy: Fail")
            .pod(annotated("large", "x".repeat(1_400 * 1024 - 200)))
            .profile(denies)
            .is(Expected::Deny(403, "would exceed a limit")),
        row(41, "generateName, and no namespace in the object")
            .pod(|pod| pod["metadata"] = json!({"generateName": "web-"}))
            .request(|request| _ = request.as_object_mut().unwrap().remove("name")),
        // The webhook does not warn. If an object names a different namespace than its request, the API server rejects
        // the request before it calls the webhook.
        row(42, "another namespace in the object").pod(|pod| pod["metadata"]["namespace"] = json!("team-b")),
        good(44, "a mirror pod of the kubelet")
            .pod(mirror)
            .request(|request| request["userInfo"] = json!({"username": "system:node:n1", "groups": ["system:nodes"]}))
            .is(SKIP),
        row(44, "a mirror pod annotation from another user").pod(mirror),
        // The webhook does not warn, because the profile excludes the pod on purpose.
        good(45, "the host network, and a profile that excludes it")
            .pod(|pod| pod["spec"]["hostNetwork"] = json!(true))
            .profile(|profile| {
                profile["matchConditions"] =
                    json!([{"name": "own-network", "expression": "!object.spec.?hostNetwork.orValue(false)"}]);
            })
            .is(SKIP),
        good(51, "a value with YAML, template and expression syntax")
            .pod(annotated(key, "\"\nprivileged: true\nx: \"${1+1}{{ . }}\u{0}"))
            .profile(parameter(&json!({"type": "string", "default": ""}), key))
            .is(Expected::Injected(stays_a_text)),
        row(59, "unknown fields")
            .pod(|pod| {
                pod["spec"]["fooBar"] = json!({"deep": [1, {"x": null}]});
                pod["spec"]["containers"][0]["fooBar"] = json!(["é", "\u{0}"]);
            })
            .is(Expected::Injected(fields_stay)),
        good(61, "a pod for Windows").pod(windows).is(WARNED),
        row(62, "a pod with fields of a stored object")
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
            // The profile is skipped, because the object with its managed fields exceeds the API server's size limit.
            .is(WARNED),
        row(70, "1 MiB of managed fields").pod(|pod| pod["metadata"]["managedFields"] = managed_fields(MIB)),
    ];
    // By default, a profile with an invalid parameter value is skipped with a warning. Here the profile denies the pod
    // instead.
    for (name, value) in
        [("too large", "11".to_owned()), ("not a number", "ten".to_owned()), ("1 MiB", "9".repeat(MIB))]
    {
        rows.push(
            good(52, name)
                .pod(annotated(key, value))
                .profile(parameter(&integer, key))
                .profile(|profile| profile["parameters"][0]["onInvalid"] = json!("Deny"))
                // The message names the annotation, so that the pod's author finds the value.
                .is(Expected::Deny(403, "sidecar.example/value")),
        );
    }
    rows
}

#[tokio::test]
async fn pods() {
    run(rows()).await;
}

/// A dry run gets the same response as a real request.
#[tokio::test]
async fn dry_run_gets_same_response() {
    let app = App::with_profile(&sidecar(), None);
    let real = review(KNOWN);
    let mut dry = real.clone();
    dry["request"]["dryRun"] = json!(true);
    let real = review_response(send(&app.router, "/mutate", real.to_string()).await).await;
    assert_eq!(review_response(send(&app.router, "/mutate", dry.to_string()).await).await, real);
    assert!(real["patch"].is_string());
}

/// The engine skips managed fields, so 2 MiB of them must not make the response slow.
#[tokio::test]
async fn managed_fields_cost_little() {
    let app = App::with_profile(&sidecar(), None);
    let mut large = review(KNOWN);
    large["request"]["object"]["metadata"]["managedFields"] = managed_fields(2 * MIB);
    let text = large.to_string();
    // The limit is 20 ms. On a slow machine or in a slow build, it is six times the time that `serde_json` needs to
    // parse the review. Other work of the machine only makes single responses slower, so the best ones count.
    let (mut scan, mut answer) = (Duration::MAX, Duration::MAX);
    let is_fast = |scan: Duration, answer: Duration| answer < Duration::from_millis(20).max(scan.saturating_mul(6));
    for attempt in 0..60 {
        let began = Instant::now();
        serde_json::from_str::<serde::de::IgnoredAny>(&text).unwrap();
        scan = scan.min(began.elapsed());
        let body = text.clone();
        let began = Instant::now();
        assert_eq!(send(&app.router, "/mutate", body).await.status(), 200);
        answer = answer.min(began.elapsed());
        if attempt >= 10 && is_fast(scan, answer) {
            break;
        }
    }
    println!("{} bytes: {answer:?}, and {scan:?} for a scan by serde_json", text.len());
    assert!(is_fast(scan, answer), "{answer:?}, and {scan:?} for a scan");
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
    Namespace::opted_in(FailureMode::Enabled)
}

fn literal_is_there(injected: &Injected) {
    assert_eq!(injected.object["spec"]["containers"][1]["env"][0]["value"], "not-so-secret");
}

fn profile_rows() -> Vec<Row> {
    vec![
        // The webhook does not reject the variable, because the name does not show whether the value is secret: the
        // value of a `*_TOKEN` variable is often the path of a file. A separate policy (`guardrails.inlineSecrets` of
        // the chart) rejects tenants' profiles with such variables when they are stored.
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

/// A namespaced profile never changes a pod in another namespace, whatever the profile selects and whatever the pod
/// requests.
#[test]
fn namespaced_profile_ignores_other_namespaces() {
    let name = ProfileName::namespaced("team-b", "profile");
    // A namespaced profile with a namespaceSelector does not compile.
    let mut reaching = sidecar();
    reaching["namespaceSelector"] = json!({});
    compile(&name, &serde_json::from_value(reaching).unwrap()).unwrap_err();

    let snapshot = Snapshot::new(ProfileSet::new([compiled(&name, &sidecar())]))
        .with_namespace(KNOWN, Some(opted_in()))
        .with_namespace("team-b", Some(opted_in()));
    let request = |name: &'static str| {
        move |review: &mut Json| {
            review["request"]["object"]["metadata"]["annotations"] = json!({"pillion.dev/profiles": name});
        }
    };
    assert_eq!(outcome(&snapshot, "team-b", |_| {}).0, Outcome::Injected);
    for name in ["profile", "team-b/profile", "../team-b/profile"] {
        let (outcome, patch) = outcome(&snapshot, KNOWN, request(name));
        assert_eq!((outcome, patch), (Outcome::Skipped, None), "{name}");
    }
    // The engine uses the namespace of the request and not the one in the object.
    let foreign = |review: &mut Json| review["request"]["object"]["metadata"]["namespace"] = json!("team-b");
    assert_eq!(outcome(&snapshot, KNOWN, foreign).0, Outcome::Skipped);
}

/// A `ResourceQuota` (`count/…`) can limit the number of profiles in a namespace. Without a quota, 10,000 profiles are
/// served, with limited memory for each of them and a short time for a review.
#[test]
fn ten_thousand_profiles_in_namespace_are_served() {
    const COUNT: usize = 10_000;
    let _alone = ALONE.blocking_lock();
    let before = anonymous_memory();
    let profiles = (0..COUNT).map(|number| {
        let mut spec = sidecar();
        spec["activation"] = json!("Requested");
        spec["requestedBy"] = json!({"annotation": format!("profile-{number}.example/inject")});
        compiled(&ProfileName::namespaced(KNOWN, format!("profile-{number}")), &spec)
    });
    let snapshot = Snapshot::new(ProfileSet::new(profiles)).with_namespace(KNOWN, Some(opted_in()));
    let request = |review: &mut Json| {
        review["request"]["object"]["metadata"]["annotations"] = json!({"profile-7777.example/inject": "true"});
    };
    assert_eq!(outcome(&snapshot, KNOWN, request).0, Outcome::Injected);
    let memory = anonymous_memory().saturating_sub(before);
    let best = (0..20).map(|_| {
        let began = Instant::now();
        outcome(&snapshot, KNOWN, request);
        began.elapsed()
    });
    let best = best.min().unwrap();
    println!("{} bytes for each of {COUNT} profiles; {best:?} for a review", memory / COUNT);
    assert!(memory < COUNT * 16 * 1024, "{memory} bytes");
    assert!(best < Duration::from_millis(10), "{best:?}");
}
