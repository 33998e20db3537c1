//! Whether a template is of Kubernetes' types: found by reading it as the pod that Kubernetes would read.
//!
//! The API server drops a field that it does not know, and refuses every pod whose patch has a value of the wrong type,
//! also where it is told to ignore failures. Both have to be found before a profile takes effect.

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value as Json;

use super::Diagnostic;

/// Fields of a pod's spec that cannot be set when a pod is created.
const NOT_ON_CREATE: [&str; 1] = ["ephemeralContainers"];

/// Reads a template, without its directives, as a pod.
pub(super) fn check_types(template: &Json, faults: &mut Vec<Diagnostic>) {
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let reader = serde_path_to_error::Deserializer::new(template, &mut track);
    let read: Result<Pod, _> = serde_ignored::deserialize(reader, |path| unknown.push(path_of(&path.to_string())));
    if let Err(error) = read {
        let message = error.to_string();
        let fault = Diagnostic::new(format!("spec.template.{}", track.path()), &message);
        faults.push(if message.contains("expected a string") { fault.with_help("quote it") } else { fault });
    }
    for path in unknown {
        let field = path.rsplit('.').next().unwrap_or_default();
        let fault = Diagnostic::new(format!("spec.template.{path}"), format!("Kubernetes has no field {field:?} here"));
        faults.push(fault.with_help("the API server would drop it; is it misspelled, or does it stand elsewhere?"));
    }
    for field in NOT_ON_CREATE {
        if template.pointer(&format!("/spec/{field}")).is_some() {
            let message = format!("{field} cannot be set when a pod is created");
            faults.push(Diagnostic::new(format!("spec.template.spec.{field}"), message));
        }
    }
}

/// `spec.containers.0.image` as `spec.containers[0].image`.
fn path_of(path: &str) -> String {
    let mut readable = String::with_capacity(path.len());
    for part in path.split('.').filter(|part| *part != "?") {
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            readable.push('[');
            readable.push_str(part);
            readable.push(']');
        } else {
            if !readable.is_empty() {
                readable.push('.');
            }
            readable.push_str(part);
        }
    }
    readable
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(spec: &Json) -> Vec<String> {
        let mut faults = Vec::new();
        check_types(&json!({"spec": spec}), &mut faults);
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_the_api_server_would_refuse_or_drop_is_found() {
        for (spec, path, told) in [
            (
                json!({"containers": [{"name": "a", "env": [{"name": "PORT", "value": 8080}]}]}),
                "spec.template.spec.containers[0].env[0].value",
                "expected a string",
            ),
            (json!({"containers": [{"name": "a", "command": "sh"}]}), "spec.template.spec.containers[0].command", "sh"),
            (
                json!({"containers": [{"name": "a", "ports": [{"containerPort": "80"}]}]}),
                "spec.template.spec.containers[0].ports[0].containerPort",
                "80",
            ),
            (json!({"hostNetwork": "yes"}), "spec.template.spec.hostNetwork", "boolean"),
            (json!({"contaners": []}), "spec.template.spec.contaners", "no field \"contaners\""),
            (
                json!({"containers": [{"name": "a", "imagePullpolicy": "Always"}]}),
                "spec.template.spec.containers[0].imagePullpolicy",
                "no field",
            ),
            (json!({"ephemeralContainers": []}), "spec.template.spec.ephemeralContainers", "cannot be set"),
        ] {
            let faults = faults(&spec);
            let found = faults.iter().any(|fault| fault.starts_with(&format!("{path}: ")) && fault.contains(told));
            assert!(found, "{faults:?} do not say {told:?} of {path}");
        }
    }

    #[test]
    fn what_kubernetes_takes_is_right() {
        let spec = json!({
            "containers": [{
                "name": "a", "image": "i", "ports": [{"containerPort": 80, "protocol": "UDP"}],
                "livenessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 5},
                "resources": {"limits": {"cpu": 1, "memory": "1Gi"}, "requests": {"cpu": "100m"}},
                "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            }],
            "volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}],
        });
        assert_eq!(faults(&spec), Vec::<String>::new());
    }
}
