//! k8s-sidecar-injector: whole sidecars from files, one for each pod, asked for by name.

use std::path::Path;

use serde_json::{Map, Value as Json, json};

use crate::compare::assert_same;
use crate::harness::{Input, Pinned, Profiles, documents, files, fixtures, own_cases, run_own, tally, text};

const PREFIX: &str = "injector.unittest.com";

const PINNED: &[Pinned] = &[];

/// How many of the peer's cases are as the peer has them.
const PASSING: usize = 5;

/// A container for pods that the peer's cases give none: the engine leaves a pod without containers alone, as the API
/// server refuses it. It is taken out of the result again.
const BYSTANDER: &str = "bystander";

/// Keys of a configuration whose elements are united by name where one configuration inherits from another.
const BY_NAME: [&str; 5] = ["containers", "initContainers", "volumes", "volumeMounts", "env"];

/// A configuration with what it inherits. What the child has of one name replaces what its parent has.
fn with_inherited(config: &Map<String, Json>, read: &dyn Fn(&str) -> Json) -> Map<String, Json> {
    let Some(parent) = config.get("inherits").map(text) else { return config.clone() };
    let mut whole = with_inherited(read(&parent).as_object().unwrap(), read);
    for (key, value) in config.iter().filter(|(key, _)| *key != "inherits") {
        let items = value.as_array().cloned().unwrap_or_default();
        let list = whole.entry(key.clone()).or_insert_with(|| json!([]));
        match key.as_str() {
            key if BY_NAME.contains(&key) => {
                let list = list.as_array_mut().unwrap();
                for item in items {
                    match list.iter_mut().find(|found| found["name"] == item["name"]) {
                        Some(found) => *found = item,
                        None => list.push(item),
                    }
                }
            }
            "hostAliases" => list.as_array_mut().unwrap().extend(items),
            _ => *list = value.clone(),
        }
    }
    whole
}

/// The profile of a configuration. It is asked for as `name` or `name:version`; `latest` may be left out.
fn profile(config: &Map<String, Json>, prefix: &str) -> (String, Json) {
    let name = text(&config["name"]).to_lowercase();
    let values = match name.split_once(':') {
        None => vec![name.clone(), format!("{name}:latest")],
        Some((short, "latest")) => vec![short.to_owned(), name.clone()],
        Some(_) => vec![name.clone()],
    };
    let spec = json!({
        "extends": {"name": "sidecar-config"},
        "request": {"annotation": format!("{prefix}/request"), "values": values},
        "parameters": [
            {"name": "config", "default": config},
            {"name": "status", "default": format!("{prefix}/status")},
        ],
    });
    (name.replace([':', '.'], "-"), spec)
}

fn profiles(folder: &Path) -> Profiles {
    let read = |name: &str| documents(&folder.join(name)).remove(0);
    files(folder, ".yaml").iter().fold(Profiles::of("tumblr"), |profiles, path| {
        let config = documents(path).remove(0);
        let (name, spec) = profile(&with_inherited(config.as_object().unwrap(), &read), PREFIX);
        profiles.with(&name, spec)
    })
}

fn check(request: &Path, patch_file: &Path, profiles: &Profiles) {
    let pod = documents(request).remove(0)["object"].clone();
    let mut expected = pod.clone();
    // The peer adds to lists that are not there; it takes them for empty.
    for list in ["containers", "initContainers", "volumes"] {
        expected["spec"].as_object_mut().unwrap().entry(list).or_insert_with(|| json!([]));
    }
    for container in expected["spec"]["containers"].as_array_mut().unwrap() {
        container.as_object_mut().unwrap().entry("env").or_insert_with(|| json!([]));
    }
    if patch_file.exists() {
        let text = std::fs::read_to_string(patch_file).unwrap();
        // Its account is replaced where there is none.
        let text = text.replace("\"replace\"", "\"add\"");
        let patch: json_patch::Patch = serde_json::from_str(&text).unwrap();
        json_patch::patch(&mut expected, &patch).unwrap();
    }
    let mut input = Input::new(pod);
    let is_empty = input.pod["spec"]["containers"].as_array().is_some_and(Vec::is_empty);
    if is_empty {
        input.pod["spec"]["containers"] = json!([{"name": BYSTANDER}]);
    }
    let mut outcome = profiles.inject(&input);
    if is_empty {
        let containers = outcome.object["spec"]["containers"].as_array_mut().unwrap();
        containers.retain(|container| container["name"] != BYSTANDER);
    }
    assert_same(&outcome.object, &expected, &format!("{}: {}", request.display(), outcome.told));
}

#[test]
fn the_cases_of_k8s_sidecar_injector() {
    let Some(folder) = fixtures("tumblr") else { return };
    let profiles = profiles(&folder.join("sidecars"));
    let cases = files(&folder.join("request"), ".yaml").into_iter().map(|path| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let patch = folder.join("patch").join(format!("{name}.json"));
        let profiles = &profiles;
        let case: Box<dyn Fn()> = Box::new(move || check(&path, &patch, profiles));
        (name, case)
    });
    tally("tumblr", &cases.collect::<Vec<_>>(), PINNED, PASSING);
}

#[test]
fn cases_of_our_own() {
    let mut cases = own_cases("tumblr");
    let configs = cases.remove(0);
    let configs = configs.as_object().unwrap();
    let read = |name: &str| configs[name].clone();
    let profiles = configs.values().fold(Profiles::of("tumblr"), |profiles, config| {
        let (name, spec) = profile(&with_inherited(config.as_object().unwrap(), &read), "injector.tumblr.com");
        profiles.with(&name, spec)
    });
    assert!(cases.len() >= 7, "only {} cases were found", cases.len());
    run_own(&profiles, &cases, "app", |_| {});
}
