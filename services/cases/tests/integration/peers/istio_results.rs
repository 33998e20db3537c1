//! Infers the settings of an Istio installation from a result. Some results have no settings file, because the peer's
//! tests have the settings in their code. Only values that a setting writes to the result, such as an image or an
//! argument, are inferred. Values that an annotation of the pod's author sets are ignored. A case that is equal only
//! with inferred settings is loose.

use serde_json::{Map, Value as Json, json};

use crate::peers::files::string;
use crate::peers::workloads::{Parameters, argument_after, container, container_in, strings};

/// Arguments of the init container: the argument, the annotation that overrides it, and the parameter.
const INIT_ARGUMENTS: [(&str, &str, &str); 7] = [
    ("-p", "", "listenPort"),
    ("-z", "", "inboundListenPort"),
    ("-i", "traffic.sidecar.istio.io/includeOutboundIPRanges", "includeOutbound"),
    ("-x", "traffic.sidecar.istio.io/excludeOutboundIPRanges", "excludeOutbound"),
    ("-b", "traffic.sidecar.istio.io/includeInboundPorts", "includeInboundPorts"),
    ("-q", "traffic.sidecar.istio.io/includeOutboundPorts", "includeOutboundPorts"),
    ("-o", "traffic.sidecar.istio.io/excludeOutboundPorts", "excludeOutboundPorts"),
];

/// Arguments of the proxy that contain their value: the prefix, the annotation that overrides it, and the parameter.
const PROXY_ARGUMENTS: [(&str, &str, &str); 5] = [
    ("--proxyLogLevel=", "sidecar.istio.io/logLevel", "logLevel"),
    ("--proxyComponentLogLevel=", "sidecar.istio.io/componentLogLevel", "componentLogLevel"),
    ("--log_output_level=", "sidecar.istio.io/agentLogLevel", "agentLogLevel"),
    ("--stsPort=", "", "stsPort"),
    ("--outlierLogPath=", "", "outlierLogPath"),
];

/// Variables of the proxy, and their parameters.
const PROXY_ENV: [(&str, &str); 6] = [
    ("CA_ADDR", "caAddress"),
    ("PILOT_CERT_PROVIDER", "certProvider"),
    ("ISTIO_META_MESH_ID", "meshId"),
    ("TRUST_DOMAIN", "trustDomain"),
    ("COMPLIANCE_POLICY", "compliancePolicy"),
    ("ISTIO_META_INTERCEPTION_MODE", "mode"),
];

/// Fields of the proxy's readiness probe: the field, the annotation that overrides it, and the parameter.
const PROBE_FIELDS: [(&str, &str, &str); 3] = [
    ("initialDelaySeconds", "readiness.status.sidecar.istio.io/initialDelaySeconds", "initialDelay"),
    ("periodSeconds", "readiness.status.sidecar.istio.io/periodSeconds", "period"),
    ("failureThreshold", "readiness.status.sidecar.istio.io/failureThreshold", "failures"),
];

/// Annotations of a pod that set resources. Any of them replaces all default resources.
const RESOURCES: [&str; 4] = ["proxyCPU", "proxyCPULimit", "proxyMemory", "proxyMemoryLimit"];

/// Substrings of the keys of annotations that only the peer's templates write.
const TEMPLATE_KEYS: [&str; 4] = ["istio.io/", "prometheus", "kubectl.kubernetes.io/", "k8s.v1.cni.cncf.io/"];

/// The default port of the agent.
const STATUS_PORT: &str = "15020";

/// Returns the inferred parameters, and whether the proxy is a native sidecar. `None` means that the result has no
/// proxy.
pub(crate) fn infer_parameters(result: &Json, before: &Json) -> Option<(Parameters, bool)> {
    let proxy = container(result, "istio-proxy")?;
    let is_native = container_in(result, "initContainers", "istio-proxy").is_some();
    let init = ["istio-init", "istio-validation"].iter().find_map(|name| container(result, name));
    let is_set = |key: &str| !key.is_empty() && before["metadata"]["annotations"].get(key).is_some();
    let author = container(before, "istio-proxy").cloned().unwrap_or_default();
    let mut found = Parameters::new();

    if !is_set("sidecar.istio.io/proxyImage") && !is_set("sidecar.istio.io/proxyImageType") {
        found.extend(
            proxy
                .get("image")
                .filter(|image| author.get("image") != Some(*image))
                .map(|image| ("image", image.clone())),
        );
    }
    let policy = proxy.get("imagePullPolicy").filter(|_| author.get("imagePullPolicy").is_none());
    found.extend(policy.map(|policy| ("imagePullPolicy", policy.clone())));
    let names = |pod: &Json| -> Vec<Json> {
        pod["spec"]["imagePullSecrets"].as_array().into_iter().flatten().map(|secret| secret["name"].clone()).collect()
    };
    let secrets: Vec<Json> = names(result).into_iter().filter(|name| !names(before).contains(name)).collect();
    found.push(("imagePullSecrets", secrets.into()));
    found.push(("cni", container(result, "istio-validation").is_some().into()));
    let networks = "/metadata/annotations/k8s.v1.cni.cncf.io~1networks";
    if result.pointer(networks) != before.pointer(networks) {
        found.push(("cni", true.into()));
        found.push(("cniProvider", "multus".into()));
    }
    let status_port = debug_port(proxy).filter(|_| !is_set("status.sidecar.istio.io/port"));
    found.extend(status_port.map(|port| ("meshStatusPort", port.into())));
    if let Some(init) = init {
        infer_init(init, status_port.unwrap_or(STATUS_PORT), &is_set, &mut found);
    }
    infer_proxy(proxy, &author, before, &is_set, &mut found);
    infer_pod(result, before, &is_set, &mut found);
    if !is_set("sidecar.istio.io/rewriteAppHTTPProbers") && variable(proxy, "ISTIO_KUBE_APP_PROBERS").is_none() {
        found.push(("rewrite", false.into()));
    }
    infer_volumes(result, &mut found);
    let still_tcp = ["startupProbe", "livenessProbe", "readinessProbe"].iter().any(|probe| {
        let lists = ["containers", "initContainers"].iter().filter_map(|list| result["spec"][list].as_array());
        lists.flatten().any(|container| container[probe].get("tcpSocket").is_some())
    });
    found.push(("rewriteTcp", (!still_tcp).into()));
    let first = string(result, "/spec/containers/0/name");
    found.push(("hold", (!is_native && first == Some("istio-proxy")).into()));
    Some((found, is_native))
}

/// Returns the agent's port from the preStop hook of a native sidecar.
fn debug_port(proxy: &Json) -> Option<&str> {
    let command = strings(&proxy["lifecycle"]["preStop"]["exec"]["command"]);
    command.into_iter().find_map(|part| part.strip_prefix("--debug-port="))
}

fn infer_init(init: &Json, status_port: &str, is_set: &dyn Fn(&str) -> bool, found: &mut Parameters) {
    let args = strings(&init["args"]);
    for (flag, annotation, parameter) in INIT_ARGUMENTS {
        found
            .extend(argument_after(&args, flag).filter(|_| !is_set(annotation)).map(|value| (parameter, value.into())));
    }
    if let Some(ports) = argument_after(&args, "-d").filter(|_| !is_set("traffic.sidecar.istio.io/excludeInboundPorts"))
    {
        let ports = ports.split(',').filter(|port| !["15090", "15021", status_port].contains(port));
        found.push(("excludeInboundPorts", ports.collect::<Vec<_>>().join(",").into()));
    }
    found.push(("nativeNftables", args.contains(&"--native-nftables").into()));
    found.push(("forceApplyIptables", args.contains(&"--force-apply").into()));
    found.push(("privileged", init["securityContext"]["privileged"].clone()));
    found.extend(init["securityContext"].get("seccompProfile").map(|profile| ("seccompProfile", profile.clone())));
}

fn infer_proxy(proxy: &Json, author: &Json, before: &Json, is_set: &dyn Fn(&str) -> bool, found: &mut Parameters) {
    for arg in strings(&proxy["args"]) {
        for (flag, annotation, parameter) in PROXY_ARGUMENTS {
            found.extend(arg.strip_prefix(flag).filter(|_| !is_set(annotation)).map(|value| (parameter, value.into())));
        }
        found.extend(arg.strip_prefix("$(POD_NAMESPACE).svc.").map(|domain| ("clusterDomain", domain.into())));
        if arg == "--log_as_json" {
            found.push(("logAsJson", true.into()));
        }
    }
    for (name, parameter) in PROXY_ENV {
        let value =
            variable(proxy, name).filter(|_| !(name.ends_with("MODE") && is_set("sidecar.istio.io/interceptionMode")));
        found.extend(value.map(|value| (parameter, value.into())));
    }
    found.extend(
        variable(proxy, "ISTIO_META_CLUSTER_ID").filter(|id| *id != "Kubernetes").map(|id| ("clusterId", id.into())),
    );
    let is_labelled = before["metadata"]["labels"].get("topology.istio.io/network").is_some();
    found.extend(variable(proxy, "ISTIO_META_NETWORK").filter(|_| !is_labelled).map(|name| ("network", name.into())));
    if variable(proxy, "REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION").is_some() {
        found.push(("inboundTrafficPolicy", "LOCALHOST".into()));
    }
    let attributes = "OTEL_RESOURCE_ATTRIBUTES";
    found.push((
        "otelServiceAttributes",
        (variable(proxy, attributes).is_some() && variable(author, attributes).is_none()).into(),
    ));
    infer_configuration(proxy, before, found);
    if !RESOURCES.iter().any(|key| is_set(&format!("sidecar.istio.io/{key}"))) && author.get("resources").is_none() {
        found.push(("resources", proxy.get("resources").cloned().unwrap_or_else(|| json!({}))));
    }
    match proxy.get("readinessProbe") {
        Some(probe) => {
            for (field, annotation, parameter) in PROBE_FIELDS {
                if !is_set(annotation) && author.get("readinessProbe").is_none() {
                    found.push((parameter, probe.get(field).cloned().unwrap_or_else(|| 0.into())));
                }
            }
        }
        None if !is_set("status.sidecar.istio.io/port") => found.push(("statusPort", 0.into())),
        None => {}
    }
    if author.get("startupProbe").is_none() {
        let probe = proxy.get("startupProbe");
        found.push(("startupProbe", probe.is_some().into()));
        found.extend(
            probe.and_then(|probe| probe.get("failureThreshold")).map(|times| ("startupFailures", times.clone())),
        );
    }
    infer_user(proxy, author, found);
    let is_standard = |hook: &str| proxy["lifecycle"][hook]["exec"]["command"][0] == "pilot-agent";
    let lifecycle = proxy.get("lifecycle").filter(|_| author.get("lifecycle").is_none());
    let lifecycle = lifecycle.filter(|_| !is_standard("preStop") && !is_standard("postStart"));
    found.extend(lifecycle.map(|hooks| ("lifecycle", hooks.clone())));
    let traced = string(before, "/metadata/annotations/apm.datadoghq.com~1env");
    let traced: Option<Map<String, Json>> = traced.and_then(|text| serde_json::from_str(text).ok());
    if traced.is_some_and(|traced| traced.keys().all(|name| variable(proxy, name).is_some())) {
        found.push(("tracer", "datadog".into()));
    }
}

/// Infers the user and group of the proxy.
fn infer_user(proxy: &Json, author: &Json, found: &mut Parameters) {
    let user = |of: &Json, field: &str| of["securityContext"][field].as_i64().filter(|id| *id != 0);
    let (proxy_user, own_user) = (user(proxy, "runAsUser"), user(author, "runAsUser"));
    // If the platform sets the user of all containers, the user of the author's container is not the author's choice.
    let is_given_to_all = own_user.is_some() && proxy_user.is_some() && proxy_user != own_user;
    found.push(("openshift", is_given_to_all.into()));
    found.extend(proxy_user.filter(|_| own_user.is_none() || is_given_to_all).map(|id| ("uid", id.into())));
    let group = user(proxy, "runAsGroup").filter(|_| user(author, "runAsGroup").is_none() || is_given_to_all);
    found.extend(group.map(|id| ("gid", id.into())));
}

fn infer_volumes(result: &Json, found: &mut Parameters) {
    let volume = |name: &str| {
        result["spec"]["volumes"].as_array().and_then(|volumes| volumes.iter().find(|volume| volume["name"] == name))
    };
    found.push(("mountMtlsCerts", volume("istio-certs").is_some().into()));
    let token =
        volume("istio-token").map(|volume| &volume["projected"]["sources"][0]["serviceAccountToken"]["audience"]);
    found.extend(token.filter(|audience| audience.is_string()).map(|audience| ("tokenAudience", audience.clone())));
    let bundle = volume("istiod-ca-cert").map(|volume| &volume["configMap"]["name"]);
    found.extend(bundle.filter(|name| name.is_string()).map(|name| ("trustBundle", name.clone())));
    if volume("gke-workload-certificate").is_some() {
        found.push(("caName", "GkeWorkloadCertificate".into()));
    }
    if volume("lightstep-certs").is_some() {
        found.push(("tracer", "lightstep".into()));
    }
}

/// Infers the mesh configuration of the proxy, without the parts that the pod sets.
fn infer_configuration(proxy: &Json, before: &Json, found: &mut Parameters) {
    let configuration =
        variable(proxy, "PROXY_CONFIG").and_then(|text| serde_json::from_str::<Map<String, Json>>(text).ok());
    let pod_configuration = string(before, "/metadata/annotations/proxy.istio.io~1config")
        .and_then(|text| crate::peers::files::parse(text).ok());
    let pod_configuration = pod_configuration.and_then(|documents| documents.into_iter().next()).unwrap_or_default();
    let Some(mut configuration) = configuration else { return };
    found.extend(
        configuration
            .remove("discoveryAddress")
            .filter(|_| pod_configuration.get("discoveryAddress").is_none())
            .map(|at| ("controlPlane", at)),
    );
    if let Some(metadata) = configuration.get_mut("proxyMetadata").and_then(Json::as_object_mut) {
        metadata.retain(|key, _| pod_configuration["proxyMetadata"].get(key).is_none());
    }
    configuration.retain(|key, _| key == "proxyMetadata" || pod_configuration.get(key).is_none());
    found.push(("meshConfig", configuration.into()));
}

fn infer_pod(result: &Json, before: &Json, is_set: &dyn Fn(&str) -> bool, found: &mut Parameters) {
    let after = result["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    if let Some(revision) = after.get("istio.io/rev").filter(|_| !is_set("istio.io/rev")) {
        found.push(("revision", revision.clone()));
        found.push(("defaultRevision", true.into()));
    }
    let merges = after.get("prometheus.io/path").is_some_and(|path| path == "/stats/prometheus");
    if !is_set("prometheus.istio.io/merge-metrics") {
        found.push(("mergeMetrics", merges.into()));
    }
    found.extend(after.get("prometheus.io/port").filter(|_| merges).map(|port| ("metricsPort", port.clone())));
    let is_added = |key: &str| !is_set(key) && !TEMPLATE_KEYS.iter().any(|part| key.contains(part));
    let added: Map<String, Json> = after.into_iter().filter(|(key, _)| is_added(key)).collect();
    let is_other = before["metadata"]["annotations"] == result["metadata"]["annotations"];
    found.extend(Some(added).filter(|added| !added.is_empty() && !is_other).map(|added| ("annotations", added.into())));
}

fn variable<'j>(container: &'j Json, name: &str) -> Option<&'j str> {
    let mut env = container["env"].as_array()?.iter();
    env.find(|variable| variable["name"] == name)?["value"].as_str()
}
