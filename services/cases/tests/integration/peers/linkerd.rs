//! Adapter for the test cases of Linkerd (the peer). `webhook/` has pods and namespaces with the patches of its
//! webhook, and `cli/` has workloads with the results of its command line.
//!
//! The names of files determine which patch belongs to a pod and a namespace. A patch matches a pod whose name contains
//! all parts of the patch's name. If the namespace has settings, the parts of its name count, too. If several match,
//! the patch with the most parts is chosen. Some patches change only annotations. The peer's tests never inject into a
//! pod whose name shares a part with such a patch or with a namespace that has settings. Such a pod tests only the
//! annotations.
//!
//! `inject_X.golden.yml` is the result of `inject_X.input.yml`, or of the input whose name is a prefix of the result's
//! name. In the latter case, no file contains the flags of the command. `inject_X.values.yml` has settings of `X`, by
//! their names in the peer's chart.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pillion_api::names::SYSTEM_NAMESPACES;
use pillion_cases::Case;
use serde_json::{Map, Value as Json, json};

use crate::peers::files::{
    documents, ending, longest_prefix, name, normalize_quantities, parse, patch, remove_omitted, string, text,
};
use crate::peers::linkerd_results::infer_parameters;
use crate::peers::linkerd_settings::apply_values;
use crate::peers::runner::{
    Expected, PeerCase, RunnableCase, ShippedProfiles, annotations, case, set, set_all, set_typed,
};
use crate::peers::workloads::{Workload, container};

const PROFILE: &str = "linkerd-proxy";

/// The annotation that requests injection.
const INJECT: &str = "linkerd.io/inject";

/// The values of the annotation that request injection.
const REQUESTING: [&str; 2] = ["enabled", "ingress"];

/// Parameters that the tests of the webhook set.
const WEBHOOK_PARAMETERS: [(&str, &str); 3] =
    [("version", "dev-undefined"), ("debugVersion", "dev-undefined"), ("trustAnchors", "IdentityTrustAnchorsPEM")];

/// Parameters that the tests of the command line set. The trust anchors come from the installation. The command also
/// injects into pods that are already injected.
const COMMAND_LINE_PARAMETERS: [(&str, &str); 4] = [
    ("version", "test-inject-proxy-version"),
    ("debugVersion", "test-inject-debug-version"),
    ("createdBy", "linkerd/cli dev-undefined"),
    ("reinject", "true"),
];

/// The container and the init container of the proxy.
const PROXIES: [&str; 2] = ["linkerd-proxy", "linkerd-init"];

/// The annotation with the opaque ports, which the peer writes to each pod.
const OPAQUE_PORTS: &str = "config.linkerd.io/opaque-ports";
/// The label with the name of the namespace, which the peer writes to each pod.
const WORKLOAD_NAMESPACE: &str = "linkerd.io/workload-ns";

/// Further parameters that the peer's tests set in code: a part of the file name, the parameter, and its value.
const NAME_PARAMETERS: [(&str, &str, bool); 2] =
    [("no_init_container", "cni", true), ("volumeProjection_disabled", "tokenProjection", false)];

/// The variable with the trust anchors.
const ANCHORS: &str = "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS";

/// A namespace that replaces system namespaces, because the engine never injects into those.
const RENAMED_NAMESPACE: &str = "kube-somewhere";

pub(crate) fn cases(folder: &Path, shipped: &ShippedProfiles) -> Vec<PeerCase> {
    let mut cases = webhook(&folder.join("webhook"), shipped);
    cases.extend(command_line(&folder.join("cli"), shipped));
    cases
}

/// A document of a file in `webhook/`.
struct WebhookDocument {
    name: String,
    object: Json,
}

/// A patch, with the parts of its name.
struct Patch {
    name_parts: BTreeSet<String>,
    operations: Result<Json, String>,
}

fn name_parts(name: &str) -> BTreeSet<String> {
    name.split(['-', '.', '_']).filter(|part| *part != "patch").map(str::to_owned).collect()
}

fn webhook(folder: &Path, shipped: &ShippedProfiles) -> Vec<PeerCase> {
    let read = |path: &Path| {
        let renamed =
            SYSTEM_NAMESPACES.iter().fold(text(path)?, |text, system| text.replace(system, RENAMED_NAMESPACE));
        Ok::<_, String>(renamed)
    };
    let patches: Vec<Patch> = ending(folder, ".json")
        .into_iter()
        .map(|(name, path)| Patch {
            name_parts: name_parts(&name),
            operations: read(&path).and_then(|text| {
                serde_json::from_str(&text).map_err(|error| format!("{}: {error}", crate::peers::files::name(&path)))
            }),
        })
        .collect();
    let (mut pods, mut namespaces, mut cases) = (Vec::new(), Vec::new(), Vec::new());
    for (name, path) in ending(folder, ".yaml") {
        match read(&path).and_then(|text| parse(&text)) {
            Err(error) => cases.push(PeerCase::read(format!("webhook/{name}"), || Err(error))),
            Ok(documents) => {
                for object in documents {
                    let found = WebhookDocument { name: name.clone(), object };
                    if found.object["kind"] == "Namespace" {
                        namespaces.push(found);
                    } else if Workload::of(&found.object).is_some() || found.object["kind"] == "Service" {
                        pods.push(found);
                    }
                }
            }
        }
    }
    let of_annotations = name_parts_of_annotations(&patches, &namespaces);
    for pod in &pods {
        let annotates = !name_parts(&pod.name).is_disjoint(&of_annotations);
        for namespace in &namespaces {
            let injects = !annotates && requests_injection(pod, namespace);
            if !annotates && !is_tested_pair(pod, namespace, &patches) {
                continue;
            }
            let name = format!("webhook/{}/{}", pod.name, namespace.name);
            cases.push(PeerCase::read(name, || webhook_case(pod, namespace, injects, &patches, shipped)));
        }
    }
    cases
}

/// Returns the name parts that identify cases that test only annotations. These are the parts of patches that change
/// only annotations, and of namespaces with settings. Parts that other patches or namespaces have, too, are left out.
fn name_parts_of_annotations(patches: &[Patch], namespaces: &[WebhookDocument]) -> BTreeSet<String> {
    let (mut of_annotations, mut of_others) = (BTreeSet::new(), BTreeSet::from(["with", "without"].map(str::to_owned)));
    for patch in patches {
        let only_annotates = patch.operations.as_ref().is_ok_and(annotates);
        let names = if only_annotates { &mut of_annotations } else { &mut of_others };
        names.extend(patch.name_parts.iter().cloned());
    }
    for namespace in namespaces {
        let settings = namespace.object["metadata"]["annotations"].as_object();
        let has_settings = settings.is_some_and(|all| all.keys().any(|key| key != INJECT));
        let names = if has_settings { &mut of_annotations } else { &mut of_others };
        names.extend(name_parts(&namespace.name));
    }
    &of_annotations - &of_others
}

fn webhook_case(
    pod: &WebhookDocument,
    namespace: &WebhookDocument,
    injects: bool,
    patches: &[Patch],
    shipped: &ShippedProfiles,
) -> Result<RunnableCase, String> {
    let mut object = Workload::of(&pod.object).map_or_else(|| pod.object.clone(), |workload| workload.template());
    if object["kind"] != "Service" {
        // The peer's test sets a Deployment as the owner of the pod.
        object["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "owner-deployment", "uid": "1", "controller": true}]);
    }
    let mut case = case(&shipped.names("linkerd"), object.clone());
    case.namespace.name = Some(string(&namespace.object, "/metadata/name").unwrap_or(RENAMED_NAMESPACE).to_owned());
    if let Some(own) = string(&pod.object, "/metadata/namespace") {
        case.namespace.name = Some(own.to_owned());
    }
    case.namespace.annotations = annotations(namespace.object["metadata"]["annotations"].as_object());
    for (parameter, value) in WEBHOOK_PARAMETERS {
        set(&mut case, shipped, PROFILE, parameter, value.into());
    }
    if !injects && requests_injection(pod, namespace) {
        // The peer's test never injects into this pod: it tests only other annotations. So the case does not request
        // injection.
        case.namespace.annotations.remove(INJECT);
        if let Some(annotations) =
            case.object.get_mut("metadata").and_then(|metadata| metadata["annotations"].as_object_mut())
        {
            annotations.remove(INJECT);
        }
    }
    let mut is_guess = false;
    let expected = if injects {
        let (chosen, by_name) =
            patches_by_name(&name_parts(&pod.name), &name_parts(&namespace.name), patches, has_settings(&case));
        is_guess = !by_name;
        let mut expected = Vec::new();
        for chosen in chosen {
            let mut result = object.clone();
            patch(&mut result, &chosen.operations.clone()?)?;
            fill_workload_namespace(&mut result, case.namespace.name.as_deref().unwrap_or_default());
            expected.push(Expected::Object(result));
        }
        if expected.is_empty() {
            return Err("no patch is for this pod and namespace".to_owned());
        }
        expected
    } else {
        // Some pods get annotations although they do not request injection. The files do not show which pods these are,
        // so the patches for annotations are also accepted.
        let mut expected = vec![Expected::Object(object.clone())];
        for operations in patches.iter().filter_map(|patch| patch.operations.as_ref().ok()).filter(|all| annotates(all))
        {
            let mut result = object.clone();
            patch(&mut result, operations)?;
            expected.push(Expected::Object(result));
        }
        expected
    };
    let mut ready = RunnableCase::new(shipped.all(), case, Expected::LeftAlone(None))
        .normalized_by(|object| normalize(object, true));
    ready.expected = expected;
    ready.has_inferred_settings = is_guess;
    Ok(ready)
}

/// Whether a pod gets the proxy. The annotation of the pod takes precedence over the annotation of its namespace. A pod
/// that already has the proxy does not get it again.
fn requests_injection(pod: &WebhookDocument, namespace: &WebhookDocument) -> bool {
    let template = Workload::of(&pod.object).map(|workload| workload.template());
    let template = template.filter(|template| PROXIES.iter().all(|name| container(template, name).is_none()));
    let value = |object: &Json| object["metadata"]["annotations"][INJECT].as_str().map(str::to_owned);
    let value = template.and_then(|template| value(&template).or_else(|| value(&namespace.object)));
    value.is_some_and(|value| REQUESTING.contains(&value.as_str()))
}

/// Whether a pod is tested in a namespace. If the namespace has annotations besides the request, at least one patch
/// must fit the pair. Such a patch matches the names of both together, but not the name of the pod alone.
fn is_tested_pair(pod: &WebhookDocument, namespace: &WebhookDocument, patches: &[Patch]) -> bool {
    let annotations = namespace.object["metadata"]["annotations"].as_object();
    let (of_pod, of_namespace) = (name_parts(&pod.name), name_parts(&namespace.name));
    let both: BTreeSet<_> = of_pod.union(&of_namespace).cloned().collect();
    annotations.is_none_or(|all| all.keys().all(|key| key == INJECT))
        || patches.iter().any(|patch| patch.name_parts.is_subset(&both) && !patch.name_parts.is_subset(&of_pod))
}

/// Whether operations change only annotations.
fn annotates(operations: &Json) -> bool {
    let is_below = |operation: &Json| {
        operation["path"].as_str().is_some_and(|pointer| pointer.starts_with("/metadata/annotations"))
    };
    operations.as_array().is_some_and(|all| all.iter().all(is_below))
}

/// Whether a namespace has annotations other than the request.
fn has_settings(case: &Case) -> bool {
    case.namespace.annotations.keys().any(|key| key != INJECT)
}

/// Chooses the expected patches of a pod and a namespace by the parts of their file names. Also returns whether the
/// choice was possible. If it was not, returns all patches. Any returned patch is an accepted result.
fn patches_by_name<'p>(
    pod: &BTreeSet<String>,
    namespace: &BTreeSet<String>,
    patches: &'p [Patch],
    has_settings: bool,
) -> (Vec<&'p Patch>, bool) {
    let both: BTreeSet<_> = pod.union(namespace).cloned().collect();
    let most = |known: &BTreeSet<String>| -> Vec<&Patch> {
        let known = patches.iter().filter(|patch| patch.name_parts.is_subset(known));
        let name_parts = known.clone().map(|patch| patch.name_parts.len()).max();
        known.filter(|patch| Some(patch.name_parts.len()) == name_parts).collect()
    };
    let is_of_namespace = |patch: &&&Patch| !patch.name_parts.is_subset(pod);
    let chosen = if has_settings { most(&both) } else { most(pod) };
    if chosen.is_empty() || (has_settings && chosen.iter().find(is_of_namespace).is_none()) {
        return (patches.iter().collect(), false);
    }
    (chosen, true)
}

fn command_line(folder: &Path, shipped: &ShippedProfiles) -> Vec<PeerCase> {
    let inputs = ending(folder, ".input.yml");
    let values = ending(folder, ".values.yml");
    let names: Vec<String> = inputs.iter().map(|(name, _)| name.clone()).collect();
    let input = |name: &str| inputs.iter().find(|(other, _)| other == name).map(|(_, path)| path.clone());
    let goldens = ending(folder, ".golden.yml");
    let installed_anchors = installed_anchors(goldens.iter().map(|(_, golden)| golden.as_path()));
    let mut cases = Vec::new();
    for (name, golden) in goldens {
        let label = format!("cli/{name}");
        let values = values.iter().find(|(other, _)| *other == name).map(|(_, path)| path.as_path());
        match longest_prefix(&names, &name).and_then(|(input_name, _)| input(input_name)) {
            Some(workload) => {
                let files = CommandLineFiles { input: &workload, golden: &golden, values };
                cases.extend(command_line_cases(&label, &files, installed_anchors.as_deref(), shipped));
            }
            None => cases.push(PeerCase::read(label, || Err("there is no input for this result".to_owned()))),
        }
    }
    cases
}

/// The files of a case of the command line.
struct CommandLineFiles<'f> {
    input: &'f Path,
    golden: &'f Path,
    /// The settings, if a file has them.
    values: Option<&'f Path>,
}

/// Creates a case for each workload of a file. A file without workloads results in no case. If a file cannot be read,
/// or the result has workloads, but a different number of them, creates one failed case.
fn command_line_cases(
    label: &str,
    files: &CommandLineFiles<'_>,
    installed_anchors: Option<&str>,
    shipped: &ShippedProfiles,
) -> Vec<PeerCase> {
    let CommandLineFiles { input, golden, values } = *files;
    let read =
        |path: &Path| documents(path).map(|documents| documents.iter().filter_map(Workload::of).collect::<Vec<_>>());
    let (before, after) = match (read(input), read(golden)) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(error), _) | (_, Err(error)) => return vec![PeerCase::read(label, || Err(error))],
    };
    let error = golden_error(golden);
    if after.len() != before.len() && !after.is_empty() {
        let error = format!("there are {} workloads before the injection, and {} after it", before.len(), after.len());
        return vec![PeerCase::read(label, || Err(error))];
    }
    let cases = before.iter().enumerate().map(|(index, before)| {
        let name = if index == 0 { label.to_owned() } else { format!("{label}#{}", index + 1) };
        let after = after.get(index);
        PeerCase::read(name, || {
            let (before, expected) = match after {
                Some(after) if only_requests(before, after) => (after, Expected::Part(json!({"proxy": PROXIES[0]}))),
                Some(after) => {
                    let mut pod = after.controlled();
                    fill_workload_namespace(&mut pod, before.namespace());
                    (before, Expected::Object(pod))
                }
                None => (before, Expected::LeftAlone(error.clone())),
            };
            command_line_case(label, before, expected, values, installed_anchors, shipped)
        })
    });
    cases.collect()
}

/// Whether the peer's command only added the annotation that requests injection. Our profiles must then inject the
/// proxy into the annotated pod.
fn only_requests(before: &Workload, after: &Workload) -> bool {
    let (before, after) = (before.template(), after.template());
    let is_requested = |pod: &Json| pod["metadata"]["annotations"].get(INJECT).is_some();
    is_requested(&after) && !is_requested(&before) && container(&after, PROXIES[0]).is_none()
}

/// Fills the peer's label with the namespace. The label is empty if the input has no namespace. The API server sets the
/// default namespace before it calls a webhook.
fn fill_workload_namespace(pod: &mut Json, namespace: &str) {
    let label = pod["metadata"]["labels"].get_mut(WORKLOAD_NAMESPACE);
    if let Some(label) = label.filter(|label| label.as_str() == Some("")) {
        *label = namespace.into();
    }
}

/// Returns the last error message of the peer's command line. `None` if there is no `.golden.stderr` file, or if it is
/// empty.
fn golden_error(golden: &Path) -> Option<String> {
    let stderr: PathBuf = golden.with_file_name(name(golden).replace(".golden.yml", ".golden.stderr"));
    let messages = text(&stderr).ok()?;
    messages.lines().last()?.rsplit(": ").next().map(|why| why.trim().to_owned())
}

fn command_line_case(
    label: &str,
    before: &Workload,
    expected: Expected,
    values: Option<&Path>,
    installed_anchors: Option<&str>,
    shipped: &ShippedProfiles,
) -> Result<RunnableCase, String> {
    let mut object = before.controlled();
    let (mut requests_injection, mut own_anchors, mut has_flags) = (true, None, false);
    if let Expected::Object(expected) = &expected {
        has_flags = copy_flags(&mut object, expected);
        own_anchors = trust_anchors(expected);
        requests_injection = expected["metadata"]["annotations"].get(INJECT).is_some();
    }
    let mut case: Case = case(&shipped.names("linkerd"), object);
    case.namespace.name = Some(before.namespace().to_owned());
    // The command injects every workload, which corresponds to a request by the namespace.
    case.namespace.annotations.insert(INJECT.to_owned(), REQUESTING[0].to_owned());
    for (parameter, value) in COMMAND_LINE_PARAMETERS {
        set_typed(&mut case, shipped, PROFILE, parameter, &value.into());
    }
    for (_, parameter, value) in NAME_PARAMETERS.into_iter().filter(|(part, ..)| label.contains(part)) {
        set(&mut case, shipped, PROFILE, parameter, value.into());
    }
    let has_own_anchors = own_anchors.is_some() && installed_anchors.is_none();
    let must_inject = matches!(&expected, Expected::Part(_));
    let any_anchors = must_inject.then(|| "any".to_owned());
    if let Some(trust_anchors) = installed_anchors.map(str::to_owned).or(own_anchors).or(any_anchors) {
        set(&mut case, shipped, PROFILE, "trustAnchors", trust_anchors.into());
    }
    if let Some(values) = values {
        apply_values(&mut case, shipped, &documents(values)?)?;
    }
    // The peer's tests set many settings in their own code. If there is no settings file, the settings are inferred
    // from the result.
    let mut other = case.clone();
    let inferred = match &expected {
        Expected::Object(expected) if values.is_none() => {
            infer_parameters(expected, &Json::Object(case.object.clone()))
        }
        _ => Vec::new(),
    };
    let is_known =
        inferred.iter().all(|(parameter, value)| set_all(&mut other, shipped, "linkerd", parameter, value).is_ok());
    let mut ready = RunnableCase::new(shipped.all(), case, expected).normalized_by(move |object| {
        if must_inject {
            // Only whether the pod gets the proxy is compared.
            if let Some(proxy) = container(object, PROXIES[0]) {
                *object = json!({"proxy": proxy["name"]});
            }
            return;
        }
        normalize(object, !requests_injection);
    });
    ready.has_inferred_settings = has_flags || has_own_anchors || must_inject;
    ready.with_inferred_settings = (is_known && !inferred.is_empty()).then_some(other);
    Ok(ready)
}

/// Copies the flags of the command to the pod. The command writes its flags as annotations, so annotations that only
/// the result has are flags. Returns whether a flag was copied. The injector computes a list of opaque ports from the
/// ports of the pod, so the list is a flag only if it contains something else.
fn copy_flags(object: &mut Json, expected: &Json) -> bool {
    let lists =
        ["initContainers", "containers"].map(|list| object["spec"][list].as_array().cloned().unwrap_or_default());
    let ports = lists.concat().into_iter().filter_map(|container| container["ports"].as_array().cloned()).flatten();
    let ports: Vec<String> = ports.map(|port| port["containerPort"].to_string()).collect();
    let is_flag = |key: &str, value: &Json| {
        let domain = key.split('/').next().unwrap_or_default();
        let value = value.as_str().unwrap_or_default();
        match key {
            OPAQUE_PORTS => !value.split(',').all(|port| ports.iter().any(|other| other == port)),
            INJECT => value == REQUESTING[1],
            _ => domain.starts_with("config.") && domain.ends_with("linkerd.io"),
        }
    };
    let flags = expected["metadata"]["annotations"].as_object().into_iter().flatten();
    let flags = flags.filter(|(key, value)| is_flag(key, value));
    let mut any = false;
    for (key, value) in flags {
        let annotations = &mut object["metadata"]["annotations"];
        if annotations.get(key).is_none() {
            annotations[key] = value.clone();
            any = true;
        }
    }
    any
}

/// Returns the trust anchors of the installation that the command's tests use, if all results have the same.
fn installed_anchors<'p>(goldens: impl Iterator<Item = &'p Path>) -> Option<String> {
    let documents = goldens.filter_map(|golden| documents(golden).ok()).flatten();
    let pods = documents.filter_map(|document| Workload::of(&document)).map(|workload| workload.template());
    let mut found: BTreeSet<String> = pods.filter_map(|pod| trust_anchors(&pod)).collect();
    let first = found.pop_first();
    first.filter(|_| found.is_empty())
}

/// Returns the trust anchors of a result.
fn trust_anchors(pod: &Json) -> Option<String> {
    let lists = ["initContainers", "containers"].iter().filter_map(|list| pod["spec"][list].as_array());
    let mut env = lists.flatten().filter_map(|container| container["env"].as_array()).flatten();
    env.find(|variable| variable["name"] == ANCHORS).and_then(|variable| variable["value"].as_str().map(str::to_owned))
}

/// Normalizes quantities. Removes owners and creation times, which only the peer's tests set, and fields that the API
/// server's types omit when they are written. With `without_asking`, it also removes the annotation that requests
/// injection. A function of the peer copies that annotation from the namespace, and its tests do not always call this
/// function.
fn normalize(object: &mut Json, without_asking: bool) {
    normalize_quantities(object);
    remove_omitted(object);
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("ownerReferences");
        metadata.remove("creationTimestamp");
        let annotations = metadata.get_mut("annotations").and_then(Json::as_object_mut).filter(|_| without_asking);
        annotations.map(|annotations: &mut Map<String, Json>| annotations.remove(INJECT));
    }
}

#[test]
fn name_parts_tell_cases_of_annotations() {
    let patch = |name: &str, path: &str| Patch {
        name_parts: name_parts(name),
        operations: Ok(json!([{"op": "add", "path": path, "value": {}}])),
    };
    let namespace = |name: &str, annotation: &str| WebhookDocument {
        name: name.to_owned(),
        object: json!({"kind": "Namespace", "metadata": {"annotations": {annotation: "1"}}}),
    };
    let patches = [patch("pod.patch", "/spec/volumes"), patch("filtered-pod-opaque", "/metadata/annotations")];
    let namespaces = [namespace("namespace-inject-enabled", INJECT), namespace("namespace-with-ports", OPAQUE_PORTS)];
    let found = name_parts_of_annotations(&patches, &namespaces);
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["filtered", "opaque", "ports"]);
    let pod = |name: &str| WebhookDocument { name: name.to_owned(), object: json!({"kind": "Pod", "spec": {}}) };
    assert!(is_tested_pair(&pod("pod-inject-empty"), &namespaces[0], &patches));
    assert!(!is_tested_pair(&pod("pod-inject-empty"), &namespaces[1], &patches));
}
