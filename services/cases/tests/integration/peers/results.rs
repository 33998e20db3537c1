//! Common functions to infer settings from a peer's results.

use serde_json::Value as Json;

/// Inferred parameters.
pub(crate) type Given = Vec<(&'static str, Json)>;

/// Returns a container from one list of a pod.
pub(crate) fn listed<'j>(pod: &'j Json, list: &str, name: &str) -> Option<&'j Json> {
    pod["spec"][list].as_array()?.iter().find(|container| container["name"] == name)
}

/// Returns a container of a pod, from any list.
pub(crate) fn container<'j>(pod: &'j Json, name: &str) -> Option<&'j Json> {
    listed(pod, "containers", name).or_else(|| listed(pod, "initContainers", name))
}

/// Returns the strings of a list.
pub(crate) fn texts(list: &Json) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Json::as_str).collect()
}

/// Returns the argument that follows a flag.
pub(crate) fn behind<'j>(args: &[&'j str], flag: &str) -> Option<&'j str> {
    let place = args.iter().position(|arg| *arg == flag)?;
    args.get(place + 1).copied()
}
