//! Builds the pod that a workload's controller would create next, for a dry run.

use serde_json::{Value, json};

/// Returns a pod of a workload's template, owned by the workload, since a rollout assigns revisions by owner. `None` if
/// it has no template.
pub(super) fn pod(kind: &str, workload: &Value) -> Option<Value> {
    let text = |pointer: &str| workload.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let template = workload.pointer("/spec/template")?;
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": template.get("metadata")?, "spec": template.get("spec")?});
    let name = text("/metadata/name");
    let owner = json!({
        "apiVersion": "apps/v1", "kind": kind, "name": name, "uid": text("/metadata/uid"), "controller": true,
    });
    let metadata = pod.get_mut("metadata").and_then(Value::as_object_mut)?;
    // The API server would reject a name that is taken.
    metadata.shift_remove("name");
    metadata.insert("generateName".to_owned(), format!("{name}-").into());
    metadata.insert("ownerReferences".to_owned(), json!([owner]));
    if kind == "StatefulSet" {
        claims(workload, name, &mut pod);
    }
    Some(pod)
}

/// Adds the volumes that a `StatefulSet` gives its pods for its claims, since containers mount them.
fn claims(workload: &Value, name: &str, pod: &mut Value) {
    let claims = workload.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
    let names: Vec<&str> =
        claims.into_iter().flatten().filter_map(|claim| claim.pointer("/metadata/name")?.as_str()).collect();
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut).filter(|_| !names.is_empty()) else { return };
    let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
    let Some(volumes) = volumes.as_array_mut() else { return };
    // A claim replaces a volume of the same name.
    volumes.retain(|volume| volume.get("name").and_then(Value::as_str).is_none_or(|name| !names.contains(&name)));
    let of_claim =
        |claim: &str| json!({"name": claim, "persistentVolumeClaim": {"claimName": format!("{claim}-{name}-0")}});
    volumes.extend(names.into_iter().map(of_claim));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_the_workloads_own() {
        let template = json!({
            "metadata": {"labels": {"app": "web"}, "creationTimestamp": null},
            "spec": {"containers": [{"name": "app"}]},
        });
        let workload = json!({"metadata": {"name": "web", "uid": "u"}, "spec": {"template": template}});
        let expected = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "labels": {"app": "web"}, "creationTimestamp": null, "generateName": "web-",
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u", "controller": true}],
            },
            "spec": {"containers": [{"name": "app"}]},
        });
        assert_eq!(pod("Deployment", &workload), Some(expected));
        assert_eq!(pod("Deployment", &json!({"spec": {}})), None);
    }

    #[test]
    fn what_a_stateful_set_claims_is_there_to_be_mounted() {
        let template = json!({
            "metadata": {"labels": {"app": "db"}},
            "spec": {"containers": [{"name": "app"}], "volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]},
        });
        let claims = json!([{"metadata": {"name": "data"}, "spec": {}}]);
        let workload = json!({"metadata": {"name": "db", "uid": "u"}, "spec": {"template": template, "volumeClaimTemplates": claims}});
        let expected = json!([
            {"name": "tmp", "emptyDir": {}}, {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}},
        ]);
        assert_eq!(pod("StatefulSet", &workload).unwrap()["spec"]["volumes"], expected);
    }
}
