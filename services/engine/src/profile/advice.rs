//! Warnings about valid profiles: suspicious parts that take effect all the same.

use std::collections::HashSet;

use pillion_api::profile::ProfileSpec;
use serde_json::{Map, Value as Json};

use super::Diagnostic;
use super::elements::{elements, is_computed, literal, value_of};
use crate::expression::closest;

/// Returns warnings about a valid profile.
#[must_use]
pub fn advise(spec: &ProfileSpec) -> Vec<Diagnostic> {
    let mut advice = Vec::new();
    let template = spec.template.as_ref().map(value_of).and_then(|template| template.get("spec"));
    let pod = template.map(value_of).and_then(Json::as_object);
    let Some(volumes) = volumes(pod) else { return advice };
    for list in ["initContainers", "containers"] {
        for container in pod.into_iter().flat_map(|pod| elements("spec.template.spec", pod, list)) {
            mounts(&container.path, container.fields, &volumes, &mut advice);
        }
    }
    for (index, rule) in spec.containers.iter().enumerate() {
        if let Some(container) = value_of(&rule.template).as_object() {
            mounts(&format!("spec.containers[{index}].template"), container, &volumes, &mut advice);
        }
    }
    advice
}

/// Returns the names of the volumes that a template adds; `None` if some names come from expressions.
fn volumes(pod: Option<&Map<String, Json>>) -> Option<HashSet<String>> {
    let Some(field) = pod.and_then(|pod| pod.get("volumes")) else { return Some(HashSet::new()) };
    let known = value_of(field).as_array()?.iter().all(|item| !is_computed(item));
    let volumes = pod.into_iter().flat_map(|pod| elements("", pod, "volumes"));
    let names = volumes.map(|volume| volume.fields.get("name").map(value_of).and_then(literal));
    let names: Option<HashSet<_>> = names.collect();
    names.filter(|_| known)
}

fn mounts(path: &str, container: &Map<String, Json>, volumes: &HashSet<String>, advice: &mut Vec<Diagnostic>) {
    for mount in elements(path, container, "volumeMounts") {
        let Some(name) = mount.fields.get("name").map(value_of).and_then(literal) else { continue };
        if !volumes.contains(&name) {
            let message =
                format!("no volume of this profile is called {name:?}: a pod without one of its own is left as it is");
            let help = match closest(&name, volumes.iter().map(String::as_str)) {
                Some(meant) => format!("did you mean {meant}?"),
                None => "add it to spec.template.spec.volumes, unless the pods have it".to_owned(),
            };
            advice.push(Diagnostic::new(format!("{}.name", mount.path), message).with_help(help));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn advice(template: &Json) -> Vec<String> {
        let spec = serde_json::from_value(json!({"template": {"spec": template}})).unwrap();
        advise(&spec).iter().map(ToString::to_string).collect()
    }

    fn mounting(name: &str, volumes: &Json) -> Json {
        json!({"containers": [{"name": "a", "volumeMounts": [{"name": name, "mountPath": "/a"}]}], "volumes": volumes})
    }

    #[test]
    fn a_mount_without_a_volume_is_told() {
        let told = advice(&mounting("cache", &json!([{"name": "cahce", "emptyDir": {}}])));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].starts_with("spec.template.spec.containers[0].volumeMounts[0].name: no volume of this profile")
        );
        assert!(told[0].ends_with("(help: did you mean cahce?)"), "{told:?}");
        assert!(advice(&mounting("cache", &json!([])))[0].contains("unless the pods have it"));
        let rule =
            json!({"containers": [{"name": "r", "template": {"volumeMounts": [{"name": "x", "mountPath": "/x"}]}}]});
        let told = advise(&serde_json::from_value(rule).unwrap());
        assert_eq!(told[0].path, "spec.containers[0].template.volumeMounts[0].name");
    }

    #[test]
    fn nothing_is_told_where_the_volume_is_there_or_may_be() {
        for volumes in [
            json!([{"name": "cache", "emptyDir": {}}]),
            json!([{"$when": "x", "$value": [{"name": "cache", "emptyDir": {}}]}]),
            json!([{"name": "${params.volume}", "emptyDir": {}}]),
            json!(["${variables.volume}"]),
            json!("${variables.volumes}"),
        ] {
            assert_eq!(advice(&mounting("cache", &volumes)), Vec::<String>::new(), "{volumes}");
        }
        assert_eq!(advice(&mounting("${params.volume}", &json!([]))), Vec::<String>::new());
    }
}
