//! Infers the settings of an Istio installation from a result. Some results have no settings file, because the peer's
//! tests have the settings in their code. Only values that a setting writes to the result, such as an image or an
//! argument, are inferred. Values that an annotation of the pod's author sets are ignored. A case that is equal only
//! with inferred settings is loose.

use serde_json::{Map, Value as Json, json};

use crate::peers::files::string;
use crate::peers::results::{Given, behind, container, listed, texts};

/// Arguments of the init container: the argument, the annotation that overrides it, and the parameter.
const OF_INIT: [(&str, &str, &str); 7] = [
    ("-p", "", "listenPort"),
    ("-z", "", "inboundListenPort"),
    ("-i", "traffic.sidecar.istio.io/includeOutboundIPRanges", "includeOutbound"),
    ("-x", "traffic.sidecar.istio.io/excludeOutboundIPRanges", "excludeOutbound"),
    ("-b", "traffic.sidecar.istio.io/includeInboundPorts", "includeInboundPorts"),
    ("-q", "traffic.sidecar.istio.io/includeOutboundPorts", "includeOutboundPorts"),
    ("-o", "traffic.sidecar.istio.io/excludeOutboundPorts", "excludeOutboundPorts"),
];

/// Arguments of the proxy that contain their value: the prefix, the annotation that overrides it, and the parameter.
const OF_PROXY: [(&str, &str, &str); 5] = [
    ("--proxyLogLevel=", "sidecar.istio.io/logLevel", "logLevel"),
    ("--proxyComponentLogLevel=", "sidecar.istio.io/componentLogLevel", "componentLogLevel"),
    ("--log_output_level=", "sidecar.istio.io/agentLogLevel", "agentLogLevel"),
    ("--stsPort=", "", "stsPort"),
    ("--outlierLogPath=", "", "outlierLogPath"),
];

/// Variables of the proxy, and their parameters.
const OF_ENV: [(&str, &str); 6] = [
    ("CA_ADDR", "caAddress"),
    ("PILOT_CERT_PROVIDER", "certProvider"),
    ("ISTIO_META_MESH_ID", "meshId"),
    ("TRUST_DOMAIN", "trustDomain"),
    ("COMPLIANCE_POLICY", "compliancePolicy"),
    ("ISTIO_META_INTERCEPTION_MODE", "mode"),
];

/// Fields of the proxy's readiness probe: the field, the annotation that overrides it, and the parameter.
const OF_PROBE: [(&str, &str, &str); 3] = [
    ("initialDelaySeconds", "readiness.status.sidecar.istio.io/initialDelaySeconds", "initialDelay"),
    ("periodSeconds", "readiness.status.sidecar.istio.io/periodSeconds", "period"),
    ("failureThreshold", "readiness.status.sidecar.istio.io/failureThreshold", "failures"),
];

/// Annotations of a pod that set resources. Any of them replaces all default resources.
const RESOURCES: [&str; 4] = ["proxyCPU", "proxyCPULimit", "proxyMemory", "proxyMemoryLimit"];

/// Parts of the keys of annotations that only the peer's templates write.
const OF_TEMPLATES: [&str; 4] = ["istio.io/", "prometheus", "kubectl.kubernetes.io/", "k8s.v1.cni.cncf.io/"];

/// The default port of the agent.
const STATUS_PORT: &str = "15020";

/// Returns the inferred parameters, and whether the proxy is a native sidecar. `None` means that the result has no
/// proxy.
pub(crate) fn given_by(result: &Json, before: &Json) -> Option<(Given, bool)> {
    let proxy = container(result, "istio-proxy")?;
    let is_native = listed(result, "initContainers", "istio-proxy").is_some();
    let init = ["istio-init", "istio-validation"].iter().find_map(|name| container(result, name));
    let is_said = |key: &str| !key.is_empty() && before["metadata"]["annotations"].get(key).is_some();
    let own = container(before, "istio-proxy").cloned().unwrap_or_default();
    let mut given = Given::new();

    if !is_said("sidecar.istio.io/proxyImage") && !is_said("sidecar.istio.io/proxyImageType") {
        given.extend(
            proxy.get("image").filter(|image| own.get("image") != Some(*image)).map(|image| ("image", image.clone())),
        );
    }
    let policy = proxy.get("imagePullPolicy").filter(|_| own.get("imagePullPolicy").is_none());
    given.extend(policy.map(|policy| ("imagePullPolicy", policy.clone())));
    let names = |pod: &Json| -> Vec<Json> {
        pod["spec"]["imagePullSecrets"].as_array().into_iter().flatten().map(|secret| secret["name"].clone()).collect()
    };
    let secrets: Vec<Json> = names(result).into_iter().filter(|name| !names(before).contains(name)).collect();
    given.push(("imagePullSecrets", secrets.into()));
    given.push(("cni", container(result, "istio-validation").is_some().into()));
    let networks = "/metadata/annotations/k8s.v1.cni.cncf.io~1networks";
    if result.pointer(networks) != before.pointer(networks) {
        given.push(("cni", true.into()));
        given.push(("cniProvider", "multus".into()));
    }
    let status_port = debug_port(proxy).filter(|_| !is_said("status.sidecar.istio.io/port"));
    given.extend(status_port.map(|port| ("meshStatusPort", port.into())));
    if let Some(init) = init {
        of_init(init, status_port.unwrap_or(STATUS_PORT), &is_said, &mut given);
    }
    of_proxy(proxy, &own, before, &is_said, &mut given);
    of_pod(result, before, &is_said, &mut given);
    if !is_said("sidecar.istio.io/rewriteAppHTTPProbers") && variable(proxy, "ISTIO_KUBE_APP_PROBERS").is_none() {
        given.push(("rewrite", false.into()));
    }
    of_volumes(result, &mut given);
    let still_tcp = ["startupProbe", "livenessProbe", "readinessProbe"].iter().any(|probe| {
        let lists = ["containers", "initContainers"].iter().filter_map(|list| result["spec"][list].as_array());
        lists.flatten().any(|container| container[probe].get("tcpSocket").is_some())
    });
    given.push(("rewriteTcp", (!still_tcp).into()));
    let first = string(result, "/spec/containers/0/name");
    given.push(("hold", (!is_native && first == Some("istio-proxy")).into()));
    Some((given, is_native))
}

/// Returns the agent's port from the preStop hook of a native sidecar.
fn debug_port(proxy: &Json) -> Option<&str> {
    let command = texts(&proxy["lifecycle"]["preStop"]["exec"]["command"]);
    command.into_iter().find_map(|part| part.strip_prefix("--debug-port="))
}

fn of_init(init: &Json, status_port: &str, is_said: &dyn Fn(&str) -> bool, given: &mut Given) {
    let args = texts(&init["args"]);
    for (flag, annotation, parameter) in OF_INIT {
        given.extend(behind(&args, flag).filter(|_| !is_said(annotation)).map(|value| (parameter, value.into())));
    }
    if let Some(ports) = behind(&args, "-d").filter(|_| !is_said("traffic.sidecar.istio.io/excludeInboundPorts")) {
        let own = ports.split(',').filter(|port| !["15090", "15021", status_port].contains(port));
        given.push(("excludeInboundPorts", own.collect::<Vec<_>>().join(",").into()));
    }
    given.push(("nativeNftables", args.contains(&"--native-nftables").into()));
    given.push(("forceApplyIptables", args.contains(&"--force-apply").into()));
    given.push(("privileged", init["securityContext"]["privileged"].clone()));
    given.extend(init["securityContext"].get("seccompProfile").map(|profile| ("seccompProfile", profile.clone())));
}

fn of_proxy(proxy: &Json, own: &Json, before: &Json, is_said: &dyn Fn(&str) -> bool, given: &mut Given) {
    for arg in texts(&proxy["args"]) {
        for (flag, annotation, parameter) in OF_PROXY {
            given
                .extend(arg.strip_prefix(flag).filter(|_| !is_said(annotation)).map(|value| (parameter, value.into())));
        }
        given.extend(arg.strip_prefix("$(POD_NAMESPACE).svc.").map(|domain| ("clusterDomain", domain.into())));
        if arg == "--log_as_json" {
            given.push(("logAsJson", true.into()));
        }
    }
    for (name, parameter) in OF_ENV {
        let value =
            variable(proxy, name).filter(|_| !(name.ends_with("MODE") && is_said("sidecar.istio.io/interceptionMode")));
        given.extend(value.map(|value| (parameter, value.into())));
    }
    given.extend(
        variable(proxy, "ISTIO_META_CLUSTER_ID").filter(|id| *id != "Kubernetes").map(|id| ("clusterId", id.into())),
    );
    let is_labelled = before["metadata"]["labels"].get("topology.istio.io/network").is_some();
    given.extend(variable(proxy, "ISTIO_META_NETWORK").filter(|_| !is_labelled).map(|name| ("network", name.into())));
    if variable(proxy, "REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION").is_some() {
        given.push(("inboundTrafficPolicy", "LOCALHOST".into()));
    }
    of_configuration(proxy, before, given);
    if !RESOURCES.iter().any(|key| is_said(&format!("sidecar.istio.io/{key}"))) && own.get("resources").is_none() {
        given.push(("resources", proxy.get("resources").cloned().unwrap_or_else(|| json!({}))));
    }
    match proxy.get("readinessProbe") {
        Some(probe) => {
            for (field, annotation, parameter) in OF_PROBE {
                if !is_said(annotation) && own.get("readinessProbe").is_none() {
                    given.push((parameter, probe.get(field).cloned().unwrap_or_else(|| 0.into())));
                }
            }
        }
        None if !is_said("status.sidecar.istio.io/port") => given.push(("statusPort", 0.into())),
        None => {}
    }
    if own.get("startupProbe").is_none() {
        let probe = proxy.get("startupProbe");
        given.push(("startupProbe", probe.is_some().into()));
        given.extend(
            probe.and_then(|probe| probe.get("failureThreshold")).map(|times| ("startupFailures", times.clone())),
        );
    }
    of_user(proxy, own, given);
    let is_standard = |hook: &str| proxy["lifecycle"][hook]["exec"]["command"][0] == "pilot-agent";
    let lifecycle = proxy.get("lifecycle").filter(|_| own.get("lifecycle").is_none());
    let lifecycle = lifecycle.filter(|_| !is_standard("preStop") && !is_standard("postStart"));
    given.extend(lifecycle.map(|hooks| ("lifecycle", hooks.clone())));
    let traced = string(before, "/metadata/annotations/apm.datadoghq.com~1env");
    let traced: Option<Map<String, Json>> = traced.and_then(|text| serde_json::from_str(text).ok());
    if traced.is_some_and(|traced| traced.keys().all(|name| variable(proxy, name).is_some())) {
        given.push(("tracer", "datadog".into()));
    }
}

/// Infers the user and group of the proxy.
fn of_user(proxy: &Json, own: &Json, given: &mut Given) {
    let user = |of: &Json, field: &str| of["securityContext"][field].as_i64().filter(|id| *id != 0);
    let (whose, own_user) = (user(proxy, "runAsUser"), user(own, "runAsUser"));
    // If the platform sets the user of all containers, the user of the author's container is not the author's choice.
    let is_given_to_all = own_user.is_some() && whose.is_some() && whose != own_user;
    given.push(("openshift", is_given_to_all.into()));
    given.extend(whose.filter(|_| own_user.is_none() || is_given_to_all).map(|id| ("uid", id.into())));
    let group = user(proxy, "runAsGroup").filter(|_| user(own, "runAsGroup").is_none() || is_given_to_all);
    given.extend(group.map(|id| ("gid", id.into())));
}

fn of_volumes(result: &Json, given: &mut Given) {
    let volume = |name: &str| {
        result["spec"]["volumes"].as_array().and_then(|volumes| volumes.iter().find(|volume| volume["name"] == name))
    };
    given.push(("mountMtlsCerts", volume("istio-certs").is_some().into()));
    let token =
        volume("istio-token").map(|volume| &volume["projected"]["sources"][0]["serviceAccountToken"]["audience"]);
    given.extend(token.filter(|audience| audience.is_string()).map(|audience| ("tokenAudience", audience.clone())));
    let bundle = volume("istiod-ca-cert").map(|volume| &volume["configMap"]["name"]);
    given.extend(bundle.filter(|name| name.is_string()).map(|name| ("trustBundle", name.clone())));
    if volume("gke-workload-certificate").is_some() {
        given.push(("caName", "GkeWorkloadCertificate".into()));
    }
    if volume("lightstep-certs").is_some() {
        given.push(("tracer", "lightstep".into()));
    }
}

/// Infers the mesh configuration of the proxy, without the parts that the pod sets.
fn of_configuration(proxy: &Json, before: &Json, given: &mut Given) {
    let shown = variable(proxy, "PROXY_CONFIG").and_then(|text| serde_json::from_str::<Map<String, Json>>(text).ok());
    let asked = string(before, "/metadata/annotations/proxy.istio.io~1config")
        .and_then(|text| crate::peers::files::parse(text).ok());
    let asked = asked.and_then(|documents| documents.into_iter().next()).unwrap_or_default();
    let Some(mut shown) = shown else { return };
    given.extend(
        shown
            .remove("discoveryAddress")
            .filter(|_| asked.get("discoveryAddress").is_none())
            .map(|at| ("controlPlane", at)),
    );
    if let Some(metadata) = shown.get_mut("proxyMetadata").and_then(Json::as_object_mut) {
        metadata.retain(|key, _| asked["proxyMetadata"].get(key).is_none());
    }
    shown.retain(|key, _| key == "proxyMetadata" || asked.get(key).is_none());
    given.push(("meshConfig", shown.into()));
}

fn of_pod(result: &Json, before: &Json, is_said: &dyn Fn(&str) -> bool, given: &mut Given) {
    let after = result["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    if let Some(revision) = after.get("istio.io/rev").filter(|_| !is_said("istio.io/rev")) {
        given.push(("revision", revision.clone()));
        given.push(("defaultRevision", true.into()));
    }
    let merges = after.get("prometheus.io/path").is_some_and(|path| path == "/stats/prometheus");
    if !is_said("prometheus.istio.io/merge-metrics") {
        given.push(("mergeMetrics", merges.into()));
    }
    given.extend(after.get("prometheus.io/port").filter(|_| merges).map(|port| ("metricsPort", port.clone())));
    let is_added = |key: &str| !is_said(key) && !OF_TEMPLATES.iter().any(|part| key.contains(part));
    let added: Map<String, Json> = after.into_iter().filter(|(key, _)| is_added(key)).collect();
    let is_other = before["metadata"]["annotations"] == result["metadata"]["annotations"];
    given.extend(
        Some(added).filter(|added| !added.is_empty() && !is_other).map(|added| ("injectedAnnotations", added.into())),
    );
}

fn variable<'j>(container: &'j Json, name: &str) -> Option<&'j str> {
    let mut env = container["env"].as_array()?.iter();
    env.find(|variable| variable["name"] == name)?["value"].as_str()
}
