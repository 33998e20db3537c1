//! Checks the template of a tenant's profile. Its author may create pods in the namespace, but the profile also acts on
//! pods of other authors there. So it may only add to a pod, and grants nothing that the namespace's pods could not
//! have had.

use serde_json::{Map, Value as Json};

use super::Diagnostic;

/// Fields of a pod's spec that a tenant's template may set.
const SPEC_FIELDS: [&str; 3] = ["containers", "initContainers", "volumes"];

/// Sources of volumes that a tenant's template may use.
const VOLUME_SOURCES: [&str; 6] =
    ["configMap", "secret", "emptyDir", "downwardAPI", "ephemeral", "persistentVolumeClaim"];

/// Domains of labels and annotations that Kubernetes interprets.
const RESERVED_DOMAINS: [&str; 2] = ["kubernetes.io", "k8s.io"];

/// Checks a tenant's template, from which the directives were removed.
pub(super) fn check_tenant(template: &Json, diagnostics: &mut Vec<Diagnostic>) {
    for (map, key) in ["labels", "annotations"].into_iter().flat_map(|map| {
        let entries = template.pointer(&format!("/metadata/{map}")).and_then(Json::as_object);
        entries.into_iter().flat_map(Map::keys).map(move |key| (map, key))
    }) {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        let reserved = RESERVED_DOMAINS
            .iter()
            .any(|reserved| domain.strip_suffix(reserved).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')));
        if reserved || key == "app" {
            let path = format!("spec.template.metadata.{map}[{key:?}]");
            diagnostics.push(Diagnostic::new(path, "a namespaced profile cannot set a key that others rely on"));
        }
    }
    let Some(spec) = template.get("spec").and_then(Json::as_object) else { return };
    for field in spec.keys().filter(|field| !SPEC_FIELDS.contains(&field.as_str())) {
        let path = format!("spec.template.spec.{field}");
        let diagnostic = Diagnostic::new(path, format!("a namespaced profile cannot set {field}"));
        diagnostics.push(
            diagnostic
                .with_help("it can add containers, initContainers and volumes; a cluster profile can set the rest"),
        );
    }
    for (path, volume) in elements(spec, "volumes") {
        for source in volume.keys().filter(|field| *field != "name" && !VOLUME_SOURCES.contains(&field.as_str())) {
            let diagnostic =
                Diagnostic::new(format!("{path}.{source}"), format!("a namespaced profile cannot use {source}"));
            diagnostics.push(diagnostic.with_help(format!("it can use {}", VOLUME_SOURCES.join(", "))));
        }
    }
    for list in ["containers", "initContainers"] {
        for (path, container) in elements(spec, list) {
            check_container(&path, container, diagnostics);
        }
    }
}

fn check_container(path: &str, container: &Map<String, Json>, diagnostics: &mut Vec<Diagnostic>) {
    let mut refuse = |field: &str, why: &str| {
        diagnostics.push(Diagnostic::new(format!("{path}.{field}"), format!("a namespaced profile cannot {why}")));
    };
    let at = |pointer: &str| container.get("securityContext").and_then(|context| context.pointer(pointer));
    let is = |pointer: &str, value: Json| at(pointer) == Some(&value);
    if is("/privileged", Json::Bool(true)) {
        refuse("securityContext.privileged", "add a privileged container");
    }
    if is("/allowPrivilegeEscalation", Json::Bool(true)) {
        refuse("securityContext.allowPrivilegeEscalation", "allow privilege escalation");
    }
    if is("/runAsUser", Json::from(0)) || is("/runAsNonRoot", Json::Bool(false)) {
        refuse("securityContext.runAsUser", "run as root");
    }
    if at("/capabilities/add").and_then(Json::as_array).is_some_and(|added| !added.is_empty()) {
        refuse("securityContext.capabilities.add", "add capabilities");
    }
    if at("/procMount").is_some_and(|mount| mount != "Default") {
        refuse("securityContext.procMount", "unmask /proc");
    }
    if is("/seccompProfile/type", Json::from("Unconfined")) || is("/appArmorProfile/type", Json::from("Unconfined")) {
        refuse("securityContext", "take a confinement away");
    }
    if at("/windowsOptions/hostProcess") == Some(&Json::Bool(true)) {
        refuse("securityContext.windowsOptions.hostProcess", "run on the host");
    }
    let ports = container.get("ports").and_then(Json::as_array);
    if ports.into_iter().flatten().any(|port| port.get("hostPort").is_some_and(|port| *port != 0)) {
        refuse("ports", "use a port of the host");
    }
    if container.get("volumeDevices").is_some() {
        refuse("volumeDevices", "use raw devices");
    }
}

fn elements<'s>(spec: &'s Map<String, Json>, list: &str) -> Vec<(String, &'s Map<String, Json>)> {
    let items = spec.get(list).and_then(Json::as_array).into_iter().flatten().enumerate();
    items.filter_map(|(index, item)| Some((format!("spec.template.spec.{list}[{index}]"), item.as_object()?))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn diagnostics(template: &Json) -> Vec<String> {
        let mut diagnostics = Vec::new();
        check_tenant(template, &mut diagnostics);
        diagnostics.into_iter().map(|diagnostic| diagnostic.path).collect()
    }

    #[test]
    fn what_reaches_beyond_the_namespaces_own_pods_is_refused() {
        let container = |context: Json| json!({"spec": {"containers": [{"name": "a", "securityContext": context}]}});
        for template in [
            json!({"spec": {"hostNetwork": true}}),
            json!({"spec": {"hostPID": true}}),
            json!({"spec": {"serviceAccountName": "admin"}}),
            json!({"spec": {"nodeName": "n"}}),
            json!({"spec": {"tolerations": []}}),
            json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}),
            json!({"spec": {"volumes": [{"name": "v", "projected": {"sources": []}}]}}),
            container(json!({"privileged": true})),
            container(json!({"allowPrivilegeEscalation": true})),
            container(json!({"runAsUser": 0})),
            container(json!({"capabilities": {"add": ["NET_ADMIN"]}})),
            container(json!({"procMount": "Unmasked"})),
            container(json!({"seccompProfile": {"type": "Unconfined"}})),
            container(json!({"windowsOptions": {"hostProcess": true}})),
            json!({"spec": {"initContainers": [{"name": "a", "ports": [{"containerPort": 1, "hostPort": 1}]}]}}),
            json!({"metadata": {"labels": {"app": "payments"}}}),
            json!({"metadata": {"labels": {"app.kubernetes.io/name": "x"}}}),
            json!({"metadata": {"annotations": {"k8s.io/x": "y"}}}),
        ] {
            assert_eq!(diagnostics(&template).len(), 1, "{template}: {:?}", diagnostics(&template));
        }
    }

    #[test]
    fn containers_volumes_and_keys_of_ones_own_are_allowed() {
        let template = json!({
            "metadata": {"labels": {"team.example.com/x": "y", "notkubernetes.io/x": "y"}},
            "spec": {
                "containers": [{"name": "a", "securityContext": {
                    "runAsUser": 1000, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
                }}],
                "volumes": [{"name": "v", "secret": {"secretName": "s"}}],
            },
        });
        assert_eq!(diagnostics(&template), Vec::<String>::new());
    }
}
