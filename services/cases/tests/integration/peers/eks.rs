//! Adapter for the test cases of EKS' pod identity webhook (the peer), which gives pods the credentials of their
//! service accounts. Each file is a pod. Its annotations contain the settings of the peer's test and the patch that the
//! test expects.

use std::path::Path;

use pillion_cases::Metadata;
use serde_json::{Map, Value as Json, json};

use crate::peers::files::{documents, ending, patch, remove_omitted, string};
use crate::peers::runner::{Expected, PeerCase, RunnableCase, ShippedProfiles, case, set, set_typed};

const TESTING: &str = "testing.eks.amazonaws.com/";

const PROFILES: [&str; 2] = ["eks-web-identity", "eks-pod-identity"];

/// Annotations of the service account: their names in the peer's tests, and their names after `eks.amazonaws.com/`.
const ACCOUNT: [(&str, &str); 4] = [
    ("roleArn", "role-arn"),
    ("audience", "audience"),
    ("sts-regional-endpoints", "sts-regional-endpoints"),
    ("token-expiration", "token-expiration"),
];

/// Flags of the handler in the peer's tests, and the corresponding parameters of our profiles.
const HANDLER: [(&str, &str); 8] = [
    ("injectSTS", "regional"),
    ("expiration", "expiration"),
    ("audience", "audience"),
    ("mountPath", "mountPath"),
    ("volumeName", "volumeName"),
    ("volName", "volumeName"),
    ("tokenPath", "tokenPath"),
    ("tokenName", "tokenPath"),
];

/// Settings of the peer's tests that are not parameters: facts about the cluster, and instructions for the peer's
/// test.
const OTHER: [&str; 4] = ["handler/region", "handler/baseArn", "expectedPatch", "skip"];

/// Settings of the container credentials endpoint in the peer's tests, each with our parameter for it.
const ENDPOINT: [(&str, &str); 5] = [
    ("uri", "endpoint"),
    ("audience", "audience"),
    ("mountPath", "mountPath"),
    ("volumeName", "volumeName"),
    ("tokenPath", "tokenPath"),
];

/// The range of a token's lifetime in seconds, if the lifetime is randomized. The peer's tests use fixed random
/// numbers, so they expect the minimum. In our profiles, the lifetime depends on the request. All lifetimes in the
/// range are equivalent, except for its end: this is the lifetime without randomization.
const SPREAD_LIFETIME: std::ops::RangeInclusive<i64> = 79200..=86400;

pub(crate) fn cases(folder: &Path, shipped: &ShippedProfiles) -> Vec<PeerCase> {
    // The peer's own test skips some pods.
    let is_skipped = |file: &Path| {
        let pod = documents(file).ok().and_then(|documents| documents.into_iter().next()).unwrap_or_default();
        pod["metadata"]["annotations"].get(format!("{TESTING}skip")).is_some_and(|skip| skip == "true")
    };
    let files = ending(folder, ".pod.yaml").into_iter().filter(|(_, file)| !is_skipped(file));
    files.map(|(name, file)| PeerCase::read(name, || read(&file, shipped))).collect()
}

fn normalize_spread(object: &mut Json) {
    for volume in object["spec"]["volumes"].as_array_mut().into_iter().flatten() {
        for source in volume.pointer_mut("/projected/sources").and_then(Json::as_array_mut).into_iter().flatten() {
            let Some(seconds) = source.pointer_mut("/serviceAccountToken/expirationSeconds") else { continue };
            if seconds.as_i64().is_some_and(|seconds| seconds != 86400 && SPREAD_LIFETIME.contains(&seconds)) {
                *seconds = json!("spread");
            }
        }
    }
}

/// Checks that all settings of the peer's test are known. Ignoring an unknown setting would change the case.
fn check_known(annotations: &Map<String, Json>) -> Result<(), String> {
    let is_of = |name: &str, group: &str, table: &[(&str, &str)]| {
        name.strip_prefix(group).is_some_and(|name| table.iter().any(|(peer_name, _)| *peer_name == name))
    };
    let is_known = |name: &str| {
        OTHER.contains(&name)
            || is_of(name, "handler/", &HANDLER)
            || is_of(name, "serviceAccount/", &ACCOUNT)
            || is_of(name, "containercredentials/", &ENDPOINT)
    };
    let mut settings = annotations.keys().filter_map(|key| key.strip_prefix(TESTING));
    settings.find(|name| !is_known(name)).map_or(Ok(()), |name| Err(format!("setting {TESTING}{name} is not known")))
}

fn read(file: &Path, shipped: &ShippedProfiles) -> Result<RunnableCase, String> {
    let pod = documents(file)?.into_iter().next().filter(Json::is_object).ok_or("there is no pod in it")?;
    let annotations = pod["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    let setting = |name: &str| annotations.get(&format!("{TESTING}{name}")).and_then(Json::as_str);
    let mut expected = pod.clone();
    let operations = setting("expectedPatch").filter(|text| !text.trim().is_empty());
    let operations: Json = operations.map_or(Ok(Json::Null), |text| {
        serde_json::from_str(text).map_err(|error| format!("{TESTING}expectedPatch: {error}"))
    })?;
    patch(&mut expected, &operations)?;
    check_known(&annotations)?;

    let mut account = Metadata::default();
    for (peer_name, key) in ACCOUNT {
        if let Some(value) = setting(&format!("serviceAccount/{peer_name}")) {
            account.annotations.insert(format!("eks.amazonaws.com/{key}"), value.to_owned());
        }
    }
    let mut case = case(&PROFILES.map(str::to_owned), pod.clone());
    case.service_account = Some(account);
    for profile in PROFILES {
        for (peer_name, parameter) in HANDLER {
            let Some(value) = setting(&format!("handler/{peer_name}")) else { continue };
            // For container credentials, the paths and the audience are settings of the endpoint (see below).
            if profile == "eks-web-identity" || ["regional", "expiration"].contains(&parameter) {
                set_typed(&mut case, shipped, profile, parameter, &value.into());
            }
        }
    }
    if setting("containercredentials/uri").is_some() {
        let name = string(&pod, "/spec/serviceAccountName").unwrap_or("default");
        let identity = format!("{}/{name}", string(&pod, "/metadata/namespace").unwrap_or("default"));
        set(&mut case, shipped, "eks-pod-identity", "identities", json!([identity]));
    }
    for (peer_name, parameter) in ENDPOINT {
        if let Some(value) = setting(&format!("containercredentials/{peer_name}")) {
            set(&mut case, shipped, "eks-pod-identity", parameter, value.into());
        }
    }
    let arn: Vec<&str> = setting("handler/baseArn").map(|arn| arn.split(':').collect()).unwrap_or_default();
    let facts =
        [("region", setting("handler/region")), ("partition", arn.get(1).copied()), ("account", arn.get(4).copied())];
    case.cluster = facts.iter().filter_map(|(fact, value)| Some(((*fact).to_owned(), (*value)?.into()))).collect();
    Ok(RunnableCase::new(shipped.all(), case, Expected::Object(expected)).normalized_by(|pod| {
        normalize_spread(pod);
        remove_omitted(pod);
    }))
}
