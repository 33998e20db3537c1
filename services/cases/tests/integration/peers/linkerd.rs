//! Linkerd: `webhook/` has pods and namespaces with the patches of its webhook, and `cli/` has workloads with the
//! results of its command line.
//!
//! The names of files determine which patch belongs to a pod and a namespace. A patch matches a pod whose name
//! contains all parts of the patch's name. If several match, the patch with the most parts is chosen.
//! `inject_X.golden.yml` is the result of `inject_X.input.yml`, or of the input whose name is a prefix of its own. In
//! the latter case, the files do not contain the flags.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pillion_api::names::SYSTEM_NAMESPACES;
use pillion_cases::Case;
use serde_json::{Map, Value as Json, json};

use crate::peers::files::{documents, ending, level_quantities, longest_prefix, name, parse, patch, string, text};
use crate::peers::linkerd_results::given_by;
use crate::peers::runner::{Expected, PeerCase, Ready, Shipped, annotations, case, set, set_all};
use crate::peers::workloads::Workload;

const PROFILE: &str = "linkerd-proxy";

/// The annotation that requests injection.
const INJECT: &str = "linkerd.io/inject";

/// The values of the annotation that request injection.
const ASKING: [&str; 2] = ["enabled", "ingress"];

/// Parameters that the tests of the webhook set.
const OF_WEBHOOK: [(&str, &str); 3] =
    [("version", "dev-undefined"), ("debugVersion", "dev-undefined"), ("trustAnchors", "IdentityTrustAnchorsPEM")];

/// Parameters that the tests of the command line set. The trust anchors come from the installation.
const OF_COMMAND_LINE: [(&str, &str); 2] =
    [("version", "test-inject-proxy-version"), ("createdBy", "linkerd/cli dev-undefined")];

/// Further parameters that the peer's tests set in code: a part of the file name, the parameter, and its value.
const OF_NAMES: [(&str, &str, bool); 2] =
    [("no_init_container", "cni", true), ("volumeProjection_disabled", "tokenProjection", false)];

/// The variable with the trust anchors.
const ANCHORS: &str = "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS";

/// A namespace that replaces a system namespace, because the engine never injects there.
const SOMEWHERE: &str = "kube-somewhere";

pub(crate) fn cases(folder: &Path, shipped: &Shipped) -> Vec<PeerCase> {
    let mut cases = webhook(&folder.join("webhook"), shipped);
    cases.extend(command_line(&folder.join("cli"), shipped));
    cases
}

/// A document of a file in `webhook/`.
struct Found {
    name: String,
    object: Json,
}

/// A patch, with the parts of its name.
struct Patch {
    words: BTreeSet<String>,
    operations: Result<Json, String>,
}

fn words(name: &str) -> BTreeSet<String> {
    name.split(['-', '.', '_']).filter(|word| *word != "patch").map(str::to_owned).collect()
}

fn webhook(folder: &Path, shipped: &Shipped) -> Vec<PeerCase> {
    let read = |path: &Path| {
        let somewhere = SYSTEM_NAMESPACES.iter().fold(text(path)?, |text, system| text.replace(system, SOMEWHERE));
        Ok::<_, String>(somewhere)
    };
    let patches: Vec<Patch> = ending(folder, ".json")
        .into_iter()
        .map(|(name, path)| Patch {
            words: words(&name),
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
                    let found = Found { name: name.clone(), object };
                    if found.object["kind"] == "Namespace" {
                        namespaces.push(found);
                    } else if Workload::of(&found.object).is_some() || found.object["kind"] == "Service" {
                        pods.push(found);
                    }
                }
            }
        }
    }
    for pod in &pods {
        for namespace in &namespaces {
            if asks(pod, namespace) && !is_a_pair(pod, namespace, &patches) {
                continue;
            }
            let name = format!("webhook/{}/{}", pod.name, namespace.name);
            cases.push(PeerCase::read(name, || webhook_case(pod, namespace, &patches, shipped)));
        }
    }
    cases
}

fn webhook_case(pod: &Found, namespace: &Found, patches: &[Patch], shipped: &Shipped) -> Result<Ready, String> {
    let mut object = Workload::of(&pod.object).map_or_else(|| pod.object.clone(), |workload| workload.template());
    if object["kind"] != "Service" {
        // The peer's test sets a Deployment as the owner of the pod.
        object["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "owner-deployment", "uid": "1", "controller": true}]);
    }
    let mut case = case(&shipped.names("linkerd"), object.clone());
    case.namespace.name = Some(string(&namespace.object, "/metadata/name").unwrap_or(SOMEWHERE).to_owned());
    if let Some(own) = string(&pod.object, "/metadata/namespace") {
        case.namespace.name = Some(own.to_owned());
    }
    case.namespace.annotations = annotations(namespace.object["metadata"]["annotations"].as_object());
    for (parameter, value) in OF_WEBHOOK {
        set(&mut case, shipped, PROFILE, parameter, value.into());
    }
    let mut is_guess = false;
    let expected = if asks(pod, namespace) {
        let (chosen, by_name) = of_names(&words(&pod.name), &words(&namespace.name), patches, says_more(&case));
        is_guess = !by_name;
        let mut expected = Vec::new();
        for chosen in chosen {
            let mut result = object.clone();
            patch(&mut result, &chosen.operations.clone()?)?;
            expected.push(Expected::Object(result));
        }
        if expected.is_empty() {
            return Err("no patch is for it".to_owned());
        }
        expected
    } else {
        // Some pods get annotations without a request. No file says which pods these are.
        let mut expected = vec![Expected::Object(object.clone())];
        for operations in patches.iter().filter_map(|patch| patch.operations.as_ref().ok()).filter(|all| annotates(all))
        {
            let mut result = object.clone();
            patch(&mut result, operations)?;
            expected.push(Expected::Object(result));
        }
        expected
    };
    let mut ready = Ready::new(shipped.all(), case, Expected::LeftAlone(None)).levelled(|object| level(object, true));
    ready.expected = expected;
    ready.is_given_by_result = is_guess;
    Ok(ready)
}

/// Whether a pod gets the proxy. The annotation of the pod takes precedence over the annotation of its namespace.
fn asks(pod: &Found, namespace: &Found) -> bool {
    let template = Workload::of(&pod.object).map(|workload| workload.template());
    let word = |object: &Json| object["metadata"]["annotations"][INJECT].as_str().map(str::to_owned);
    let word = template.and_then(|template| word(&template).or_else(|| word(&namespace.object)));
    word.is_some_and(|word| ASKING.contains(&word.as_str()))
}

/// Whether a pod with a request is tested in a namespace. If the namespace has other annotations, some patch must
/// have a part of the namespace's name.
fn is_a_pair(pod: &Found, namespace: &Found, patches: &[Patch]) -> bool {
    let said = namespace.object["metadata"]["annotations"].as_object();
    let (of_pod, of_namespace) = (words(&pod.name), words(&namespace.name));
    let both: BTreeSet<_> = of_pod.union(&of_namespace).cloned().collect();
    said.is_none_or(|said| said.keys().all(|key| key == INJECT))
        || patches.iter().any(|patch| patch.words.is_subset(&both) && !patch.words.is_subset(&of_pod))
}

/// Whether operations change only annotations.
fn annotates(operations: &Json) -> bool {
    let is_below = |operation: &Json| {
        operation["path"].as_str().is_some_and(|pointer| pointer.starts_with("/metadata/annotations"))
    };
    operations.as_array().is_some_and(|all| all.iter().all(is_below))
}

/// Whether a namespace has annotations other than the request.
fn says_more(case: &Case) -> bool {
    case.namespace.annotations.keys().any(|key| key != INJECT)
}

/// Returns the patches for a pod and a namespace with these names, and whether the names determine the patch. If they
/// do not, any of the returned patches is accepted.
fn of_names<'p>(
    pod: &BTreeSet<String>,
    namespace: &BTreeSet<String>,
    patches: &'p [Patch],
    says_more: bool,
) -> (Vec<&'p Patch>, bool) {
    let both: BTreeSet<_> = pod.union(namespace).cloned().collect();
    let most = |known: &BTreeSet<String>| -> Vec<&Patch> {
        let known = patches.iter().filter(|patch| patch.words.is_subset(known));
        let words = known.clone().map(|patch| patch.words.len()).max();
        known.filter(|patch| Some(patch.words.len()) == words).collect()
    };
    let is_of_namespace = |patch: &&&Patch| !patch.words.is_subset(pod);
    let chosen = if says_more { most(&both) } else { most(pod) };
    if chosen.is_empty() || (says_more && chosen.iter().find(is_of_namespace).is_none()) {
        return (patches.iter().collect(), false);
    }
    (chosen, true)
}

fn command_line(folder: &Path, shipped: &Shipped) -> Vec<PeerCase> {
    let inputs = ending(folder, ".input.yml");
    let names: Vec<String> = inputs.iter().map(|(name, _)| name.clone()).collect();
    let input = |name: &str| inputs.iter().find(|(other, _)| other == name).map(|(_, path)| path.clone());
    let goldens = ending(folder, ".golden.yml");
    let installation = installation(goldens.iter().map(|(_, golden)| golden.as_path()));
    let mut cases = Vec::new();
    for (name, golden) in goldens {
        let label = format!("cli/{name}");
        match longest_prefix(&names, &name).and_then(|(input_name, _)| input(input_name)) {
            Some(workload) => {
                cases.extend(command_line_cases(&label, &workload, &golden, installation.as_deref(), shipped));
            }
            None => cases.push(PeerCase::read(label, || Err("there is no input for it".to_owned()))),
        }
    }
    cases
}

/// Creates a case for each workload of a file.
fn command_line_cases(
    label: &str,
    input: &Path,
    golden: &Path,
    installation: Option<&str>,
    shipped: &Shipped,
) -> Vec<PeerCase> {
    let read =
        |path: &Path| documents(path).map(|documents| documents.iter().filter_map(Workload::of).collect::<Vec<_>>());
    let (before, after) = match (read(input), read(golden)) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(error), _) | (_, Err(error)) => return vec![PeerCase::read(label, || Err(error))],
    };
    let error = golden_error(golden);
    if after.len() != before.len() && !after.is_empty() || before.is_empty() {
        let error = format!("{} workloads go in, and {} come out", before.len(), after.len());
        return vec![PeerCase::read(label, || Err(error))];
    }
    let cases = before.iter().enumerate().map(|(place, before)| {
        let name = if place == 0 { label.to_owned() } else { format!("{label}#{}", place + 1) };
        let after = after.get(place);
        PeerCase::read(name, || {
            let expected =
                after.map_or(Expected::LeftAlone(error.clone()), |after| Expected::Object(after.controlled()));
            Ok(command_line_case(label, before, expected, installation, shipped))
        })
    });
    cases.collect()
}

/// Returns the error message of the peer's command line, if there is one.
fn golden_error(golden: &Path) -> Option<String> {
    let stderr: PathBuf = golden.with_file_name(name(golden).replace(".golden.yml", ".golden.stderr"));
    let said = text(&stderr).ok()?;
    said.lines().last()?.rsplit(": ").next().map(|why| why.trim().to_owned())
}

fn command_line_case(
    label: &str,
    before: &Workload,
    expected: Expected,
    installation: Option<&str>,
    shipped: &Shipped,
) -> Ready {
    let mut object = before.controlled();
    let (mut asks, mut own_anchors, mut has_flags) = (true, None, false);
    if let Expected::Object(expected) = &expected {
        has_flags = give_flags(&mut object, expected);
        own_anchors = anchors(expected);
        asks = expected["metadata"]["annotations"].get(INJECT).is_some();
    }
    let mut case: Case = case(&shipped.names("linkerd"), object);
    case.namespace.name = Some(before.namespace().to_owned());
    // The command injects every workload, which corresponds to a request by the namespace.
    case.namespace.annotations.insert(INJECT.to_owned(), ASKING[0].to_owned());
    for (parameter, value) in OF_COMMAND_LINE {
        set(&mut case, shipped, PROFILE, parameter, value.into());
    }
    for (_, parameter, value) in OF_NAMES.into_iter().filter(|(part, ..)| label.contains(part)) {
        set(&mut case, shipped, PROFILE, parameter, value.into());
    }
    let has_own_anchors = own_anchors.is_some() && installation.is_none();
    if let Some(anchors) = installation.map(str::to_owned).or(own_anchors) {
        set(&mut case, shipped, PROFILE, "trustAnchors", anchors.into());
    }
    // Settings in the peer's test code are inferred from the result.
    let mut other = case.clone();
    let given = match &expected {
        Expected::Object(expected) => given_by(expected, &Json::Object(case.object.clone())),
        _ => Vec::new(),
    };
    let is_known =
        given.iter().all(|(parameter, value)| set_all(&mut other, shipped, "linkerd", parameter, value).is_ok());
    let mut ready = Ready::new(shipped.all(), case, expected).levelled(move |object| level(object, !asks));
    ready.is_given_by_result = has_flags || has_own_anchors;
    ready.by_result = (is_known && !given.is_empty()).then_some(other);
    ready
}

/// Copies the flags of the command to the pod. The command writes its flags as annotations, so annotations that only
/// the result has are flags. Returns whether there are any. The list of opaque ports is not a flag, because the
/// injector computes it.
fn give_flags(object: &mut Json, expected: &Json) -> bool {
    let is_flag = |key: &str| {
        let mut parts = key.split('/');
        let is_config =
            parts.next().is_some_and(|domain| domain.starts_with("config.") && domain.ends_with("linkerd.io"));
        is_config && parts.next() != Some("opaque-ports")
    };
    let given = expected["metadata"]["annotations"].as_object().into_iter().flatten().filter(|(key, _)| is_flag(key));
    let mut any = false;
    for (key, value) in given {
        let annotations = &mut object["metadata"]["annotations"];
        if annotations.get(key).is_none() {
            annotations[key] = value.clone();
            any = true;
        }
    }
    any
}

/// Returns the trust anchors of the installation that the command's tests use, if all results have the same.
fn installation<'p>(goldens: impl Iterator<Item = &'p Path>) -> Option<String> {
    let documents = goldens.filter_map(|golden| documents(golden).ok()).flatten();
    let pods = documents.filter_map(|document| Workload::of(&document)).map(|workload| workload.template());
    let mut found: BTreeSet<String> = pods.filter_map(|pod| anchors(&pod)).collect();
    let first = found.pop_first();
    first.filter(|_| found.is_empty())
}

/// Returns the trust anchors of a result.
fn anchors(pod: &Json) -> Option<String> {
    let lists = ["initContainers", "containers"].iter().filter_map(|list| pod["spec"][list].as_array());
    let mut env = lists.flatten().filter_map(|container| container["env"].as_array()).flatten();
    env.find(|variable| variable["name"] == ANCHORS).and_then(|variable| variable["value"].as_str().map(str::to_owned))
}

/// Removes fields of the peer's test, and fields that the API server's types omit when they are written. With
/// `without_asking`, it also removes the annotation that requests injection. A function of the peer copies that
/// annotation from the namespace, and its tests do not always call this function.
fn level(object: &mut Json, without_asking: bool) {
    level_quantities(object);
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("ownerReferences");
        metadata.remove("creationTimestamp");
        let annotations = metadata.get_mut("annotations").and_then(Json::as_object_mut).filter(|_| without_asking);
        annotations.map(|annotations: &mut Map<String, Json>| annotations.remove(INJECT));
    }
    for list in ["initContainers", "containers"] {
        for container in object["spec"][list].as_array_mut().into_iter().flatten() {
            for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
                if let Some(probe) = container.get_mut(probe).and_then(Json::as_object_mut) {
                    probe.retain(|key, value| key != "initialDelaySeconds" || value != 0);
                }
            }
        }
    }
}
