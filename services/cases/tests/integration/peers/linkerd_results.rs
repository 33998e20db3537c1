//! Infers the settings of a Linkerd installation from a result of its command line. The command writes its flags to the
//! result as annotations, but no file contains the other settings. Only values that a setting writes to the result are
//! inferred. A case that is equal only with inferred settings is loose.

use serde_json::{Map, Value as Json, json};

use crate::peers::workloads::{Parameters, argument_after, container, container_in, strings};

/// Variables of the proxy: the variable, the annotation that overrides it (without its domain; empty if there is none),
/// and the parameter.
const PROXY_ENV: [(&str, &str, &str); 16] = [
    ("_l5d_ns", "", "controlPlane"),
    ("_l5d_trustdomain", "", "trustDomain"),
    ("LINKERD2_PROXY_CORES_MIN", "proxy-cpu-request", "workersMinimum"),
    ("LINKERD2_PROXY_CORES_MAX_RATIO", "proxy-cpu-ratio-limit", "cpuRatio"),
    ("LINKERD2_PROXY_INBOUND_PORTS_REQUIRE_IDENTITY", "proxy-require-identity-inbound-ports", "requireIdentity"),
    ("LINKERD2_PROXY_INBOUND_PORTS_REQUIRE_TLS", "proxy-require-tls-inbound-ports", "requireTls"),
    ("LINKERD2_PROXY_LOG_FORMAT", "proxy-log-format", "logFormat"),
    ("LINKERD2_PROXY_DESTINATION_PROFILE_NETWORKS", "", "networks"),
    ("LINKERD2_PROXY_INBOUND_DEFAULT_POLICY", "default-inbound-policy", "policy"),
    ("LINKERD2_PROXY_INBOUND_CONNECT_TIMEOUT", "proxy-inbound-connect-timeout", "inboundConnectTimeout"),
    ("LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT", "proxy-outbound-connect-timeout", "outboundConnectTimeout"),
    (
        "LINKERD2_PROXY_OUTBOUND_DISCOVERY_IDLE_TIMEOUT",
        "proxy-outbound-discovery-cache-unused-timeout",
        "outboundDiscoveryTimeout",
    ),
    (
        "LINKERD2_PROXY_INBOUND_DISCOVERY_IDLE_TIMEOUT",
        "proxy-inbound-discovery-cache-unused-timeout",
        "inboundDiscoveryTimeout",
    ),
    ("LINKERD2_PROXY_ACCESS_LOG", "access-log", "accessLog"),
    ("LINKERD2_PROXY_SHUTDOWN_GRACE_PERIOD", "shutdown-grace-period", "shutdownGrace"),
    ("LINKERD2_PROXY_OUTBOUND_METRICS_HOSTNAME_LABELS", "", "hostnameLabels"),
];

/// Variables with addresses on which the proxy listens: the variable, the annotation that overrides it, and the
/// parameter of the port.
const LISTEN_ADDRESSES: [(&str, &str, &str); 4] = [
    ("LINKERD2_PROXY_CONTROL_LISTEN_ADDR", "control-port", "controlPort"),
    ("LINKERD2_PROXY_ADMIN_LISTEN_ADDR", "admin-port", "adminPort"),
    ("LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "inbound-port", "inboundPort"),
    ("LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR", "outbound-port", "outboundPort"),
];

/// Arguments of the init container that precede their value: the argument, the annotation that overrides it, and the
/// parameter.
const INIT_ARGUMENTS: [(&str, &str, &str); 4] = [
    ("--outbound-ports-to-ignore", "skip-outbound-ports", "skipOutbound"),
    ("--subnets-to-ignore", "skip-subnets", "skipSubnets"),
    ("--log-format", "", "initLogFormat"),
    ("--log-level", "", "initLogLevel"),
];

/// Resources: the kind, the resource, the annotation that overrides it, and the parameter.
const RESOURCES: [(&str, &str, &str, &str); 6] = [
    ("requests", "cpu", "proxy-cpu-request", "cpuRequest"),
    ("limits", "cpu", "proxy-cpu-limit", "cpuLimit"),
    ("requests", "memory", "proxy-memory-request", "memoryRequest"),
    ("limits", "memory", "proxy-memory-limit", "memoryLimit"),
    ("requests", "ephemeral-storage", "proxy-ephemeral-storage-request", "storageRequest"),
    ("limits", "ephemeral-storage", "proxy-ephemeral-storage-limit", "storageLimit"),
];

/// Prefixes of the variables that the chart's inbound and outbound settings create, and their parameters.
const TUNED: [(&str, &str); 2] = [("LINKERD2_PROXY_INBOUND_", "inbound"), ("LINKERD2_PROXY_OUTBOUND_", "outbound")];

/// The scopes of the chart's settings. Variables with one of these scopes come only from the chart.
const SCOPES: [&str; 2] = ["SERVER_", "CLIENT_"];

/// Returns the inferred parameters; empty if the result has no proxy.
pub(crate) fn infer_parameters(result: &Json, before: &Json) -> Parameters {
    let Some(proxy) = container(result, "linkerd-proxy") else { return Vec::new() };
    let is_set = |key: &str| {
        !key.is_empty() && before["metadata"]["annotations"].get(format!("config.linkerd.io/{key}")).is_some()
    };
    let mut found = Parameters::new();
    for (parameter, annotation) in [("createdBy", "linkerd.io/created-by"), ("version", "linkerd.io/proxy-version")] {
        found.extend(result["metadata"]["annotations"].get(annotation).map(|value| (parameter, value.clone())));
    }
    if let Some((image, version)) = proxy["image"].as_str().and_then(|image| image.rsplit_once(':')) {
        found.extend((!is_set("proxy-image")).then(|| ("image", image.into())));
        found.retain(|(parameter, _)| *parameter != "version");
        found.extend((!is_set("proxy-version")).then(|| ("version", version.into())));
    }
    found.extend(
        proxy
            .get("imagePullPolicy")
            .filter(|_| !is_set("image-pull-policy"))
            .map(|policy| ("pullPolicy", policy.clone())),
    );
    let is_native = container_in(result, "initContainers", "linkerd-proxy").is_some();
    found.push(("native", is_native.into()));
    if !is_set("proxy-await") {
        let awaits = proxy.get("startupProbe").is_some() || proxy["lifecycle"].get("postStart").is_some();
        found.push(("await", if awaits { "enabled" } else { "disabled" }.into()));
    }
    let tokens = proxy["volumeMounts"].as_array().into_iter().flatten();
    let has_own_token = tokens.into_iter().any(|mount| mount["mountPath"] == "/var/run/secrets/tokens");
    found.push(("tokenProjection", has_own_token.into()));
    for (kind, name, annotation, parameter) in RESOURCES {
        let value = proxy["resources"][kind].get(name).filter(|_| !is_set(annotation));
        found.extend(value.map(|value| (parameter, value.clone())));
    }
    for (parameter, field) in
        [("livenessProbe", "livenessProbe"), ("readinessProbe", "readinessProbe"), ("startupProbe", "startupProbe")]
    {
        let probe = proxy.get(field).and_then(Json::as_object).cloned();
        found.extend(probe.map(|mut probe| {
            probe.remove("httpGet");
            (parameter, probe.into())
        }));
    }
    let debug = container(result, "linkerd-debug").and_then(|debug| debug["image"].as_str()?.rsplit_once(':'));
    if let Some((image, version)) = debug {
        found.extend((!is_set("debug-image")).then(|| ("debugImage", image.into())));
        found.extend((!is_set("debug-image-version")).then(|| ("debugVersion", version.into())));
    }
    infer_env(proxy, &is_set, &mut found);
    let validator = container(result, "linkerd-network-validator");
    found.push(("cni", validator.is_some().into()));
    if let Some(validator) = validator {
        let args = strings(&validator["args"]);
        let names = [
            ("--log-format", "logFormat"),
            ("--log-level", "logLevel"),
            ("--connect-addr", "connectAddr"),
            ("--listen-addr", "listenAddr"),
            ("--timeout", "timeout"),
        ];
        let arguments =
            names.iter().filter_map(|(flag, name)| Some(((*name).to_owned(), argument_after(&args, flag)?.into())));
        found.push(("validator", arguments.collect::<Map<_, _>>().into()));
    }
    if let Some(init) = container(result, "linkerd-init") {
        infer_init(init, &is_set, &mut found);
    }
    found
}

fn infer_env(proxy: &Json, is_set: &dyn Fn(&str) -> bool, found: &mut Parameters) {
    let env: Vec<(&str, &str)> = proxy["env"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|variable| Some((variable["name"].as_str()?, variable["value"].as_str()?)))
        .collect();
    let value = |name: &str| env.iter().find(|(other, _)| *other == name).map(|(_, value)| *value);
    for (name, annotation, parameter) in PROXY_ENV {
        found.extend(value(name).filter(|_| !is_set(annotation)).map(|value| (parameter, value.into())));
    }
    for (name, annotation, parameter) in LISTEN_ADDRESSES {
        let port = value(name).and_then(|address| address.rsplit_once(':')).map(|(_, port)| port);
        found.extend(port.filter(|_| !is_set(annotation)).map(|port| (parameter, port.into())));
    }
    found.push((
        "ipv6",
        value("LINKERD2_PROXY_ADMIN_LISTEN_ADDR").is_some_and(|address| address.starts_with('[')).into(),
    ));
    if let Some(log) = value("LINKERD2_PROXY_LOG").filter(|_| !is_set("proxy-log-level")) {
        found.push(("log", log.trim_end_matches(",[{headers}]=off,[{request}]=off").into()));
    }
    let domain = value("LINKERD2_PROXY_DESTINATION_PROFILE_SUFFIXES").and_then(|suffix| suffix.strip_prefix("svc."));
    found.extend(domain.map(|domain| ("clusterDomain", domain.trim_end_matches('.').into())));
    for (prefix, parameter) in TUNED {
        let mut scopes = json!({});
        for (name, value) in &env {
            let Some(path) =
                name.strip_prefix(prefix).filter(|path| SCOPES.iter().any(|scope| path.starts_with(scope)))
            else {
                continue;
            };
            let mut parts = path.splitn(3, '_').map(str::to_lowercase);
            if let (Some(scope), Some(protocol), Some(rest)) = (parts.next(), parts.next(), parts.next()) {
                scopes[scope][protocol][camel(&rest)] = (*value).into();
            }
        }
        found.push((parameter, scopes));
    }
    let other_variables = env.iter().filter(|(name, _)| !name.starts_with("LINKERD2_PROXY_") && !name.starts_with('_'));
    let other_variables = other_variables.map(|(name, value)| json!({"name": name, "value": value}));
    found.extend((!is_set("proxy-additional-env")).then(|| ("platformEnv", other_variables.collect())));
}

fn infer_init(init: &Json, is_set: &dyn Fn(&str) -> bool, found: &mut Parameters) {
    let args = strings(&init["args"]);
    for (flag, annotation, parameter) in INIT_ARGUMENTS {
        let value = argument_after(&args, flag).unwrap_or_default();
        found.extend((!is_set(annotation)).then(|| (parameter, value.into())));
    }
    if let Some(ports) = argument_after(&args, "--inbound-ports-to-ignore").filter(|_| !is_set("skip-inbound-ports")) {
        // The first two ports belong to the proxy.
        found.push(("skipInbound", ports.splitn(3, ',').nth(2).unwrap_or_default().into()));
    }
    let mode = match argument_after(&args, "--firewall-bin-path") {
        Some("iptables-nft") => "nft",
        Some(_) => "plain",
        None => "legacy",
    };
    found.push(("iptablesMode", mode.into()));
    for (flag, annotation, parameter) in [("--proxy-uid", "proxy-uid", "uid"), ("--proxy-gid", "proxy-gid", "gid")] {
        found
            .extend(argument_after(&args, flag).filter(|_| !is_set(annotation)).map(|value| (parameter, value.into())));
    }
    let context = &init["securityContext"];
    found.push(("initRunAsRoot", (context["runAsUser"] == 0).into()));
    found.push(("initPrivileged", (context["privileged"] == true).into()));
    for (field, parameter) in [("runAsUser", "initUser"), ("runAsGroup", "initGroup")] {
        found.extend(context.get(field).filter(|id| **id != 0).map(|id| (parameter, id.clone())));
    }
}

/// Converts `keep_alive_interval` to the chart's spelling `keepAliveInterval`.
fn camel(name: &str) -> String {
    let capital = |part: &str| part.get(..1).unwrap_or_default().to_uppercase() + part.get(1..).unwrap_or_default();
    let parts = name.split('_').enumerate();
    parts.map(|(index, part)| if index == 0 { part.to_owned() } else { capital(part) }).collect()
}
