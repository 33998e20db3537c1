//! What the results of peers have in common: where in a pod it stands what was set.

use serde_json::Value as Json;

/// What was set, as parameters.
pub(crate) type Given = Vec<(&'static str, Json)>;

/// A container of one of a pod's lists.
pub(crate) fn listed<'j>(pod: &'j Json, list: &str, name: &str) -> Option<&'j Json> {
    pod["spec"][list].as_array()?.iter().find(|container| container["name"] == name)
}

/// A container of a pod, in whichever list it is.
pub(crate) fn container<'j>(pod: &'j Json, name: &str) -> Option<&'j Json> {
    listed(pod, "containers", name).or_else(|| listed(pod, "initContainers", name))
}

/// The texts of a list.
pub(crate) fn texts(list: &Json) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Json::as_str).collect()
}

/// The argument that stands behind another.
pub(crate) fn behind<'j>(args: &[&'j str], flag: &str) -> Option<&'j str> {
    let place = args.iter().position(|arg| *arg == flag)?;
    args.get(place + 1).copied()
}
