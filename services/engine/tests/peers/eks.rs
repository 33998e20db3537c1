//! EKS: credentials by the identity of the service account. Inputs and results stand in annotations of the peer's pods.

use std::path::Path;

use serde_json::{Map, Value as Json, json};

use crate::compare::assert_same;
use crate::harness::{Input, Pinned, Profiles, documents, files, fixtures, own_cases, run_own, tally, text};

const TESTING: &str = "testing.eks.amazonaws.com/";

/// What the peer reads from the service account, by the names that its cases give it.
const OF_ACCOUNT: [(&str, &str); 4] = [
    ("roleArn", "role-arn"),
    ("audience", "audience"),
    ("sts-regional-endpoints", "sts-regional-endpoints"),
    ("token-expiration", "token-expiration"),
];

/// What its cases say of the endpoint of container credentials, and our parameters.
const OF_ENDPOINT: [(&str, &str); 5] = [
    ("uri", "endpoint"),
    ("audience", "audience"),
    ("mountPath", "mountPath"),
    ("volumeName", "volumeName"),
    ("tokenPath", "tokenPath"),
];

const PINNED: &[Pinned] = &[];

/// How many of the peer's cases are as the peer has them.
const PASSING: usize = 12;

/// How long a token is valid whose time is spread out, in seconds. The peer's tests fix their random numbers, so that they
/// see the least; ours depends on the request. Any time of the range is as good as any other.
const SPREAD: std::ops::RangeInclusive<i64> = 79200..=86400;

fn level_spread(object: &mut Json) {
    for volume in object["spec"]["volumes"].as_array_mut().into_iter().flatten() {
        let Some(token) = volume.pointer_mut("/projected/sources/0/serviceAccountToken") else { continue };
        if token["expirationSeconds"].as_i64().is_some_and(|seconds| seconds != 86400 && SPREAD.contains(&seconds)) {
            token["expirationSeconds"] = json!("spread");
        }
    }
}

fn check(file: &Path) {
    let pod = documents(file).remove(0);
    let annotations = pod["metadata"]["annotations"].as_object().unwrap().clone();
    let given = |name: &str| annotations.get(&format!("{TESTING}{name}")).map(text);
    let mut account = Map::new();
    for (theirs, key) in OF_ACCOUNT {
        if let Some(value) = given(&format!("serviceAccount/{theirs}")) {
            account.insert(format!("eks.amazonaws.com/{key}"), value.into());
        }
    }
    let mut profiles = Profiles::of("eks");
    for profile in ["eks-web-identity", "eks-pod-identity"] {
        if given("handler/injectSTS").is_some_and(|value| value == "true") {
            profiles = profiles.with_default(profile, "regional", json!(true));
        }
        if let Some(seconds) = given("handler/expiration") {
            profiles = profiles.with_default(profile, "expiration", json!(seconds.parse::<i64>().unwrap()));
        }
    }
    if given("containercredentials/uri").is_some() {
        profiles = profiles.with_default("eks-pod-identity", "identities", json!(["default/default"]));
    }
    for (theirs, parameter) in OF_ENDPOINT {
        if let Some(value) = given(&format!("containercredentials/{theirs}")) {
            profiles = profiles.with_default("eks-pod-identity", parameter, value.into());
        }
    }
    let mut input = Input::new(pod.clone());
    input.service_account = Some(account);
    if let Some(region) = given("handler/region") {
        input.cluster = json!({ "region": region });
    }
    let mut expected = pod;
    let patch: json_patch::Patch = serde_json::from_str(&given("expectedPatch").unwrap()).unwrap();
    json_patch::patch(&mut expected, &patch).unwrap();
    let mut outcome = profiles.inject(&input);
    level_spread(&mut outcome.object);
    level_spread(&mut expected);
    assert_same(&outcome.object, &expected, &format!("{}: {}", file.display(), outcome.told));
}

#[test]
fn the_cases_of_eks() {
    let Some(folder) = fixtures("eks") else { return };
    let cases = files(&folder, ".pod.yaml").into_iter().map(|path| {
        let name = path.strip_prefix(&folder).unwrap().to_string_lossy().trim_end_matches(".pod.yaml").to_owned();
        let case: Box<dyn Fn()> = Box::new(move || check(&path));
        (name, case)
    });
    tally("eks", &cases.collect::<Vec<_>>(), PINNED, PASSING);
}

#[test]
fn cases_of_our_own() {
    let cases = own_cases("eks");
    assert!(cases.len() >= 8, "only {} cases were found", cases.len());
    run_own(&Profiles::of("eks"), &cases, "app", level_spread);
}
