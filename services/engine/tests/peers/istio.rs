//! Istio: workloads, and what its injector makes of them. `X.yaml` goes in, `X.yaml.injected` comes out.

use std::path::Path;

use serde_json::{Value as Json, json};

use crate::compare::assert_same;
use crate::harness::{Case, Input, Pinned, Profiles, documents, files, fixtures, own_cases, run_own, tally};

const PINNED: &[Pinned] = &[];

/// How many of the peer's cases are as the peer has them.
const PASSING: usize = 15;

/// Cases whose pod is compared without its metadata: the peer's command line does not write to the template of a
/// CronJob's pods what its webhook writes to the pods themselves.
const WITHOUT_METADATA: [&str; 1] = ["cronjob"];

/// Variables whose value is JSON. It is compared as such: blanks and the order of keys are nothing.
const JSON_ENV: [&str; 3] = ["PROXY_CONFIG", "ISTIO_META_POD_PORTS", "ISTIO_KUBE_APP_PROBERS"];

fn profiles() -> Profiles {
    Profiles::of("istio").with_default("istio-sidecar", "image", json!("registry.istio.io/testing/proxyv2:latest"))
}

/// The pod of a workload, with a controller that is known without looking anything up.
fn pod_of(object: &Json) -> Json {
    let spec = &object["spec"];
    let mut pod = match object["kind"].as_str() {
        Some("Pod") => object.clone(),
        Some("CronJob") => spec["jobTemplate"]["spec"]["template"].clone(),
        _ => spec["template"].clone(),
    };
    if object["kind"] != "Pod" {
        if !pod["metadata"].is_object() {
            pod["metadata"] = json!({});
        }
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": object["apiVersion"], "kind": object["kind"], "name": object["metadata"]["name"], "uid": "1",
            "controller": true,
        }]);
    }
    pod
}

/// Without the peer's own bookkeeping, with JSON as JSON, and with quantities as the API server writes them.
fn level(value: &mut Json) {
    match value {
        Json::Object(members) => {
            members.remove("sidecar.istio.io/status");
            let is_json = members.get("name").and_then(Json::as_str).is_some_and(|name| JSON_ENV.contains(&name));
            let json = members.get("value").and_then(Json::as_str).filter(|_| is_json).map(serde_json::from_str);
            if let Some(json) = json {
                members.insert("value".to_owned(), json.unwrap());
            }
            if let Some(cpu) = members.get_mut("cpu") {
                let whole = cpu.as_str().and_then(|cpu| cpu.strip_suffix("000m")).map(str::to_owned);
                if let Some(whole) = whole {
                    *cpu = whole.into();
                }
            }
            members.values_mut().for_each(level);
        }
        Json::Array(items) => items.iter_mut().for_each(level),
        _ => {}
    }
}

fn check(workload: &Path, golden: Option<&Path>, native: bool, spec_only: bool) {
    let object = documents(workload).remove(0);
    let mut input = Input::new(pod_of(&object));
    object["metadata"]["namespace"].as_str().unwrap_or("default").clone_into(&mut input.namespace);
    input.cluster = json!({"nativeSidecars": native});
    let mut outcome = profiles().inject(&input);
    let at = format!("{}: {}", workload.display(), outcome.told);
    let Some(golden) = golden else {
        assert!(outcome.told.contains("denied: "), "{at}");
        return;
    };
    let mut expected = pod_of(&documents(golden).remove(0));
    for object in [&mut outcome.object, &mut expected] {
        level(object);
        if spec_only {
            object["metadata"] = json!({});
        }
    }
    assert_same(&outcome.object, &expected, &at);
}

#[test]
fn the_cases_of_istio() {
    let Some(folder) = fixtures("istio") else { return };
    let mut cases: Vec<Case<'_>> = Vec::new();
    for workload in files(&folder, ".yaml") {
        let name = workload.file_stem().unwrap().to_string_lossy().into_owned();
        let golden = Some(folder.join(format!("{name}.yaml.injected"))).filter(|golden| golden.exists());
        let spec_only = WITHOUT_METADATA.contains(&name.as_str());
        cases.push((name, Box::new(move || check(&workload, golden.as_deref(), true, spec_only))));
    }
    // The same workload on nodes that do not know native sidecars.
    let (hello, old) = (folder.join("hello.yaml"), folder.join("hello-old-version.yaml.injected"));
    cases.push(("hello-old-version".to_owned(), Box::new(move || check(&hello, Some(&old), false, false))));
    tally("istio", &cases, PINNED, PASSING);
}

#[test]
fn cases_of_our_own() {
    let cases = own_cases("istio");
    assert!(cases.len() >= 6, "only {} cases were found", cases.len());
    run_own(&profiles(), &cases, "istio-proxy", level);
}
