//! Adapter for the test cases of Istio (the peer): workloads, and the results of its injector. `X.yaml` is a workload,
//! and `X.yaml.injected` is its result. The injector rejects a workload that has no result. If no workload has the name
//! of a result, the result belongs to the workload whose name is its longest prefix. The rest of the name then
//! specifies settings, as in `X-cni.yaml.injected` and `X.yaml.cni.injected`. `X.iop.yaml` contains the settings of
//! `X`. A `Namespace` in one of the files is the namespace of the workloads.

use std::path::{Path, PathBuf};

use pillion_cases::Case;
use serde_json::Value as Json;

use crate::peers::files::{documents, ending, longest_prefix, normalize_quantities, remove_omitted, string};
use crate::peers::istio_results::infer_parameters;
use crate::peers::istio_settings::{apply_parameters, apply_settings};
use crate::peers::runner::{Expected, PeerCase, RunnableCase, ShippedProfiles, annotations, case};
use crate::peers::workloads::Workload;

/// Variables whose value is JSON. They are compared as JSON, because white space and the order of keys have no
/// meaning.
const JSON_ENV: [&str; 3] = ["PROXY_CONFIG", "ISTIO_META_POD_PORTS", "ISTIO_KUBE_APP_PROBERS"];

/// The annotation with the peer's injection record: JSON with lists of names.
const STATUS: &str = "sidecar.istio.io/status";

pub(crate) fn cases(folder: &Path, shipped: &ShippedProfiles) -> Vec<PeerCase> {
    let inputs: Vec<_> = ending(folder, ".yaml").into_iter().filter(|(_, path)| !is_settings(path)).collect();
    let without_ending = |(name, path): (String, PathBuf)| (name.replacen(".yaml", "", 1), path);
    let goldens: Vec<_> = ending(folder, ".injected").into_iter().map(without_ending).collect();
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
                // A settings file takes precedence over the name of a result.
                let (own_settings, workload_settings) = (installation(name), installation(workload));
                let has_settings = variant.is_empty() || matches!(own_settings, Ok(Some(_)) | Err(_));
                let conditions = Conditions {
                    variant: if has_settings { "" } else { variant },
                    installation: if has_settings { own_settings } else { workload_settings },
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

/// The sources of the settings with which the peer computed a result.
struct Conditions<'c> {
    /// The rest of a result's name after the name of its workload. Empty if the result has its own settings file.
    variant: &'c str,
    /// The settings of the installation, if a file contains them.
    installation: Result<Option<Vec<Json>>, String>,
}

/// Whether a file is a settings file: `X.iop.yaml` contains the settings of the installation for `X`.
fn is_settings(path: &Path) -> bool {
    path.file_stem().is_some_and(|stem| Path::new(stem).extension().is_some_and(|extension| extension == "iop"))
}

/// Creates a case for each workload of a file. If a file cannot be read, or the result has a different number of
/// workloads or none, creates one failed case.
fn pairs(
    name: &str,
    workload: &Path,
    golden: Option<&Path>,
    conditions: &Conditions<'_>,
    shipped: &ShippedProfiles,
) -> Vec<PeerCase> {
    let workloads = |documents: &[Json]| documents.iter().filter_map(Workload::of).collect::<Vec<_>>();
    let (objects, results) = match (documents(workload), golden.map(documents).transpose()) {
        (Ok(objects), Ok(results)) => (objects, results),
        (Err(error), _) | (_, Err(error)) => return vec![PeerCase::read(name, || Err(error))],
    };
    let (before, after) = (workloads(&objects), results.as_deref().map(workloads));
    let settings = conditions.installation.as_ref().ok().and_then(Option::as_deref).unwrap_or_default();
    let namespace = objects.iter().chain(settings).find(|object| is_namespace(object));
    if let Some(after) = after.as_ref().filter(|after| after.len() != before.len() || after.is_empty()) {
        let error = format!("there are {} workloads before the injection, and {} after it", before.len(), after.len());
        return vec![PeerCase::read(name, || Err(error))];
    }
    let cases = before.iter().enumerate().map(|(index, before)| {
        let name = if index == 0 { name.to_owned() } else { format!("{name}#{}", index + 1) };
        let after = after.as_ref().map(|after| &after[index]);
        PeerCase::read(name, || read_one(before, after, namespace, conditions, shipped))
    });
    cases.collect()
}

fn is_namespace(object: &Json) -> bool {
    string(object, "/kind") == Some("Namespace")
}

fn read_one(
    before: &Workload,
    after: Option<&Workload>,
    namespace: Option<&Json>,
    conditions: &Conditions<'_>,
    shipped: &ShippedProfiles,
) -> Result<RunnableCase, String> {
    let mut case: Case = case(&shipped.names("istio"), pod(before));
    case.namespace.name = Some(before.namespace().to_owned());
    if let Some(namespace) = namespace {
        case.namespace.labels = annotations(namespace.pointer("/metadata/labels").and_then(Json::as_object));
        case.namespace.annotations = annotations(namespace.pointer("/metadata/annotations").and_then(Json::as_object));
    }
    let installation = conditions.installation.clone()?;
    let is_in_file = installation.is_some();
    let mut settings = installation.unwrap_or_default();
    settings.retain(|object| !is_namespace(object));
    let applied = apply_settings(&mut case, shipped, conditions.variant, &settings);
    let after = after.map(pod);
    // The peer's tests set many settings in their own code. If there is no settings file, the settings are inferred
    // from the result.
    let mut with_inferred_settings = None;
    let inferred =
        after.as_ref().filter(|_| !is_in_file).and_then(|after| infer_parameters(after, &case_object(&case)));
    if let Some((parameters, is_native)) = inferred {
        let mut other = case.clone();
        other.parameters.clear();
        apply_parameters(&mut other, shipped, &parameters, is_native)?;
        with_inferred_settings = Some(other);
    }
    let expected = after.map_or(Expected::Denied, Expected::Object);
    let mut ready = RunnableCase::new(shipped.all(), case, expected).normalized_by(|pod| {
        normalize(pod);
        normalize_quantities(pod);
        remove_omitted(pod);
    });
    if let Err(error) = applied {
        // The adapter does not know the suffix of the result's name, but the settings may be inferred from the result.
        let case = with_inferred_settings.take().filter(|_| !is_in_file).ok_or(error)?;
        ready.cases = vec![case];
        ready.has_inferred_settings = true;
    }
    ready.with_inferred_settings = with_inferred_settings;
    Ok(ready)
}

/// Returns the pod of a case as an object.
fn case_object(case: &Case) -> Json {
    Json::Object(case.object.clone())
}

/// Returns the pod of a workload. For a CronJob, it also has the labels and annotations of the jobs, because the peer's
/// command line uses them. The peer's webhook uses only those of the pods.
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

/// Removes the peer's record of the original pod and all creation times. Parses the JSON in the peer's injection record
/// and in variables, and sorts the lists of names in the record.
fn normalize(value: &mut Json) {
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
            members.values_mut().for_each(normalize);
        }
        Json::Array(items) => items.iter_mut().for_each(normalize),
        _ => {}
    }
}

/// Converts lists of names to sets. Null becomes an empty set.
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
