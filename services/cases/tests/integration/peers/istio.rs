//! Istio: workloads, and what its injector makes of them. `X.yaml` goes in, `X.yaml.injected` comes out; of a workload without
//! a result the injector wants nothing to know. A result that has no workload of its own name is that of the workload with
//! whose name its own begins, under the settings that the rest of its name says. `X.iop.yaml` says the settings of `X`.

use std::path::Path;

use pillion_cases::Case;
use serde_json::Value as Json;

use crate::peers::files::{documents, ending, level_quantities, longest_prefix};
use crate::peers::istio_results::given_by;
use crate::peers::istio_settings::{give, give_parameters};
use crate::peers::runner::{Expected, PeerCase, Ready, Shipped, case};
use crate::peers::workloads::Workload;

/// Variables whose value is JSON. It is compared as such: blanks and the order of keys are nothing.
const JSON_ENV: [&str; 3] = ["PROXY_CONFIG", "ISTIO_META_POD_PORTS", "ISTIO_KUBE_APP_PROBERS"];

/// The annotation that says what was injected, as JSON with lists of names.
const STATUS: &str = "sidecar.istio.io/status";

pub(crate) fn cases(folder: &Path, shipped: &Shipped) -> Vec<PeerCase> {
    let inputs: Vec<_> = ending(folder, ".yaml").into_iter().filter(|(_, path)| !is_settings(path)).collect();
    let goldens = ending(folder, ".yaml.injected");
    let settings = ending(folder, ".iop.yaml");
    let names: Vec<String> = inputs.iter().map(|(name, _)| name.clone()).collect();
    let input = |name: &str| inputs.iter().find(|(other, _)| other == name).map(|(_, path)| path.as_path());
    let installation = |name: &str| {
        settings
            .iter()
            .find(|(other, _)| other == name)
            .map(|(_, path)| crate::peers::files::settings(path))
            .transpose()
    };
    let mut cases = Vec::new();
    for (name, golden) in &goldens {
        match longest_prefix(&names, name) {
            Some((workload, variant)) => {
                // What a file says is more than what a name says.
                let (own, of_workload) = (installation(name), installation(workload));
                let is_said = variant.is_empty() || matches!(own, Ok(Some(_)) | Err(_));
                let conditions = Conditions {
                    variant: if is_said { "" } else { variant },
                    installation: if is_said { own } else { of_workload },
                };
                let workload = input(workload).unwrap_or(golden);
                cases.extend(pairs(name, workload, Some(golden), &conditions, shipped));
            }
            None => cases.push(PeerCase::read(name, || {
                Err(format!("there is no workload for {}", crate::peers::files::name(golden)))
            })),
        }
    }
    let has_golden =
        |name: &str| goldens.iter().any(|(golden, _)| longest_prefix(&names, golden).is_some_and(|(of, _)| of == name));
    for (name, workload) in inputs.iter().filter(|(name, _)| !has_golden(name)) {
        let conditions = Conditions { variant: "", installation: installation(name) };
        cases.extend(pairs(name, workload, None, &conditions, shipped));
    }
    for (name, path) in &settings {
        if !names.contains(name) && !goldens.iter().any(|(golden, _)| golden == name) {
            let error = format!("there is no workload for {}", crate::peers::files::name(path));
            cases.push(PeerCase::read(format!("{name}.iop"), || Err(error)));
        }
    }
    cases
}

/// Under what a workload is injected.
struct Conditions<'c> {
    /// What the name of a result has behind that of its workload.
    variant: &'c str,
    /// What a file says that the installation sets.
    installation: Result<Option<Vec<Json>>, String>,
}

/// Whether a file is of settings for another one: `X.iop.yaml`.
fn is_settings(path: &Path) -> bool {
    path.file_stem().is_some_and(|stem| Path::new(stem).extension().is_some_and(|extension| extension == "iop"))
}

/// A case for each workload of a file.
fn pairs(
    name: &str,
    workload: &Path,
    golden: Option<&Path>,
    conditions: &Conditions<'_>,
    shipped: &Shipped,
) -> Vec<PeerCase> {
    let read =
        |path: &Path| documents(path).map(|documents| documents.iter().filter_map(Workload::of).collect::<Vec<_>>());
    let (before, after) = match (read(workload), golden.map(read).transpose()) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(error), _) | (_, Err(error)) => return vec![PeerCase::read(name, || Err(error))],
    };
    if let Some(after) = after.as_ref().filter(|after| after.len() != before.len() || after.is_empty()) {
        let error = format!("{} workloads go in, and {} come out", before.len(), after.len());
        return vec![PeerCase::read(name, || Err(error))];
    }
    let cases = before.iter().enumerate().map(|(place, before)| {
        let name = if place == 0 { name.to_owned() } else { format!("{name}#{}", place + 1) };
        let after = after.as_ref().map(|after| &after[place]);
        PeerCase::read(name, || read_one(before, after, conditions, shipped))
    });
    cases.collect()
}

fn read_one(
    before: &Workload,
    after: Option<&Workload>,
    conditions: &Conditions<'_>,
    shipped: &Shipped,
) -> Result<Ready, String> {
    let mut case: Case = case(&shipped.names("istio"), pod(before));
    case.namespace.name = Some(before.namespace().to_owned());
    let installation = conditions.installation.clone()?;
    let is_in_file = installation.is_some();
    let given = give(&mut case, shipped, conditions.variant, &installation.unwrap_or_default());
    let after = after.map(pod);
    // The peer's tests set much in their own code. Where no file says it, the result does.
    let mut by_result = None;
    let of_result = after.as_ref().filter(|_| !is_in_file).and_then(|after| given_by(after, &case_object(&case)));
    if let Some((parameters, is_native)) = of_result {
        let mut other = case.clone();
        other.parameters.clear();
        give_parameters(&mut other, shipped, &parameters, is_native)?;
        by_result = Some(other);
    }
    let expected = after.map_or(Expected::Denied, Expected::Object);
    let mut ready = Ready::new(shipped.all(), case, expected).levelled(|pod| {
        level(pod);
        level_quantities(pod);
    });
    if let Err(error) = given {
        // What the name of a result says is known to nobody, but the result may say it.
        let case = by_result.take().filter(|_| !is_in_file).ok_or(error)?;
        ready.cases = vec![case];
        ready.is_given_by_result = true;
    }
    ready.by_result = by_result;
    Ok(ready)
}

/// The pod of a case, as an object.
fn case_object(case: &Case) -> Json {
    Json::Object(case.object.clone())
}

/// The pod of a workload. The peer's command line reads and writes the metadata of a CronJob's jobs where its webhook reads
/// and writes that of their pods.
fn pod(workload: &Workload) -> Json {
    let mut pod = workload.controlled();
    for map in ["labels", "annotations"] {
        let of_jobs = workload.object.pointer(&format!("/spec/jobTemplate/metadata/{map}")).and_then(Json::as_object);
        for (key, value) in of_jobs.into_iter().flatten() {
            pod["metadata"][map][key] = value.as_str().map_or_else(|| value.to_string(), str::to_owned).into();
        }
    }
    pod
}

/// Without the peer's record of what was there before, with JSON as JSON, and with quantities as the API server writes them.
fn level(value: &mut Json) {
    match value {
        Json::Object(members) => {
            if let Some(status) = members.get_mut(STATUS) {
                let text = status.as_str().unwrap_or_default();
                *status = serde_json::from_str(text).map_or_else(|_| text.into(), sets);
            }
            members.remove("proxy.istio.io/overrides");
            members.remove("creationTimestamp");
            let is_json = members.get("name").and_then(Json::as_str).is_some_and(|name| JSON_ENV.contains(&name));
            let json = members.get("value").and_then(Json::as_str).filter(|_| is_json);
            if let Some(json) = json.and_then(|text| serde_json::from_str(text).ok()) {
                members.insert("value".to_owned(), json);
            }
            members.values_mut().for_each(level);
        }
        Json::Array(items) => items.iter_mut().for_each(level),
        _ => {}
    }
}

/// Lists of names as sets; none is an empty one.
fn sets(status: Json) -> Json {
    let Json::Object(members) = status else { return status };
    let set = |(key, value)| match value {
        Json::Null => (key, Json::Array(Vec::new())),
        Json::Array(mut names) => {
            names.sort_by_key(Json::to_string);
            names.dedup();
            (key, names.into())
        }
        other => (key, other),
    };
    members.into_iter().map(set).collect()
}
