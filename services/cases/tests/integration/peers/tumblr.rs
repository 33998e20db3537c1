//! Adapter for the test cases of k8s-sidecar-injector (the peer), which adds sidecars from configuration files. A pod
//! requests a configuration by its name. `sidecars/` has the configurations, `request/X.yaml` has the object of a
//! request, and `patch/X.json` has the expected patch. Without a patch, the object must not change.

use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use self::convert::Document;
use self::convert::tumblr::Options;
use crate::peers::files::{documents, ending, patch, string, text};
use crate::peers::runner::{Expected, PeerCase, RunnableCase, ShippedProfiles, case, profile_from};

/// The annotation prefix of the peer's tests, unless a pod uses a different one.
const PREFIX: &str = "injector.unittest.com";

/// A container for pods of the peer's cases that have none. The engine skips a pod without containers, because the
/// API server rejects it. The container is removed from the result.
const BYSTANDER: &str = "bystander";

/// The converter of `pillion convert`. It has no dependencies except JSON, so this test can include it.
#[path = "../../../../pillion/src/convert/from/mod.rs"]
#[allow(dead_code, reason = "only the program uses all of the module")]
mod convert;

pub(crate) fn cases(folder: &Path, shipped: &ShippedProfiles) -> Vec<PeerCase> {
    let configurations = configurations(&folder.join("sidecars"));
    let requests = ending(&folder.join("request"), ".yaml").into_iter();
    let read_one = |(name, file): (String, PathBuf)| {
        let patch = folder.join("patch").join(format!("{name}.json"));
        PeerCase::read(name, || read(&file, &patch, &configurations, shipped))
    };
    requests.map(read_one).collect()
}

/// Returns all configurations that can be read. Neither injector can apply the others.
fn configurations(folder: &Path) -> Vec<Document> {
    let read = |(_, file): (String, PathBuf)| {
        let value = documents(&file).inspect_err(|error| eprintln!("{error}")).ok()?.into_iter().next()?;
        let file = file.strip_prefix(folder).ok()?.display().to_string();
        Some(Document { file, value })
    };
    ending(folder, ".yaml").into_iter().filter_map(read).collect()
}

/// Returns the profiles that `pillion convert tumblr` creates from the configurations. Configurations that it rejects
/// are removed, and the conversion is repeated.
fn converted(configurations: &[Document], prefix: &str) -> Vec<Json> {
    let options = Options { prefix: prefix.to_owned() };
    let mut rest = configurations.to_vec();
    for _ in 0..=configurations.len() {
        match convert::tumblr::convert(&rest, &options) {
            Ok(converted) => return converted.profiles,
            Err(remarks) => {
                let Some(remark) = remarks.first() else { break };
                eprintln!("{}: {}: {}", rest[remark.document].file, remark.path, remark.message);
                rest.remove(remark.document);
            }
        }
    }
    Vec::new()
}

fn read(
    request: &Path,
    patch_file: &Path,
    configurations: &[Document],
    shipped: &ShippedProfiles,
) -> Result<RunnableCase, String> {
    let request = documents(request)?.into_iter().next().ok_or("there is no request in it")?;
    let pod = request.get("object").or_else(|| request.pointer("/request/object")).cloned();
    let mut pod = pod.filter(|pod| pod["spec"].is_object()).ok_or("the request has no object with a spec")?;
    let mut keys = pod["metadata"]["annotations"].as_object().into_iter().flatten().map(|(key, _)| key);
    let prefix = keys.find_map(|key| key.strip_suffix("/request")).unwrap_or(PREFIX).to_owned();
    let mut expected = pod.clone();
    if patch_file.exists() {
        let operations: Json = serde_json::from_str(&text(patch_file)?)
            .map_err(|error| format!("{}: {error}", crate::peers::files::name(patch_file)))?;
        patch(&mut expected, &operations)?;
    }

    let requested = string(&pod["metadata"]["annotations"], &format!("/{}~1request", prefix.replace('/', "~1")));
    let requested = json!(requested.unwrap_or_default().to_lowercase());
    // Only requested profiles are added, because some of the others do not compile. For example, some would add two
    // containers with the same name, which the API server would reject, too.
    let is_requested = |profile: &&Json| {
        let values = profile["spec"]["requestedBy"]["values"].as_array();
        values.is_some_and(|values| values.contains(&requested))
    };
    let (mut profiles, mut names) = (shipped.all(), shipped.names("tumblr"));
    for profile in converted(configurations, &prefix).iter().filter(is_requested) {
        let (name, spec) = profile_from(string(profile, "/metadata/name").unwrap_or_default(), &profile["spec"]);
        names.push(name.to_string());
        profiles = profiles.with(name, spec);
    }
    if pod["spec"]["containers"].as_array().is_none_or(Vec::is_empty) {
        pod["spec"]["containers"] = json!([{"name": BYSTANDER}]);
    }
    let normalize = |object: &mut Json| {
        if let Some(containers) = object["spec"]["containers"].as_array_mut() {
            containers.retain(|container| container["name"] != BYSTANDER);
        }
    };
    Ok(RunnableCase::new(profiles, case(&names, pod), Expected::Object(expected)).normalized_by(normalize))
}
