//! Infers the settings of a Linkerd installation from a result of its command line. Flags are annotations in the
//! result, but other settings are in no file. Only values that a setting writes to the result are inferred. A case
//! that is equal only with inferred settings is loose.

use serde_json::{Map, Value as Json, json};

use crate::peers::results::{Given, behind, container, listed, texts};

/// Variables of the proxy: the variable, the annotation that overrides it, and the parameter.
const OF_ENV: [(&str, &str, &str); 16] = [
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
const OF_PORTS: [(&str, &str, &str); 4] = [
    ("LINKERD2_PROXY_CONTROL_LISTEN_ADDR", "control-port", "controlPort"),
    ("LINKERD2_PROXY_ADMIN_LISTEN_ADDR", "admin-port", "adminPort"),
    ("LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "inbound-port", "inboundPort"),
    ("LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR", "outbound-port", "outboundPort"),
];

/// Arguments of the init container that precede their value: the argument, the annotation that overrides it, and the
/// parameter.
const OF_INIT: [(&str, &str, &str); 4] = [
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

/// The scopes that the chart has. Variables with one of these scopes have no other origin.
const SCOPES: [&str; 2] = ["SERVER_", "CLIENT_"];

/// Returns the inferred parameters; none if the result has no proxy.
pub(crate) fn given_by(result: &Json, before: &Json) -> Given {
    let Some(proxy) = container(result, "linkerd-proxy") else { return Vec::new() };
    let is_said = |key: &str| {
        !key.is_empty() && before["metadata"]["annotations"].get(format!("config.linkerd.io/{key}")).is_some()
    };
    let mut given = Given::new();
    for (parameter, annotation) in [("createdBy", "linkerd.io/created-by"), ("version", "linkerd.io/proxy-version")] {
        given.extend(result["metadata"]["annotations"].get(annotation).map(|value| (parameter, value.clone())));
    }
    if let Some((image, version)) = proxy["image"].as_str().and_then(|image| image.rsplit_once(':')) {
        given.extend((!is_said("proxy-image")).then(|| ("image", image.into())));
        given.retain(|(parameter, _)| *parameter != "version");
        given.extend((!is_said("proxy-version")).then(|| ("version", version.into())));
    }
    given.extend(
        proxy
            .get("imagePullPolicy")
            .filter(|_| !is_said("image-pull-policy"))
            .map(|policy| ("pullPolicy", policy.clone())),
    );
    let is_native = listed(result, "initContainers", "linkerd-proxy").is_some();
    given.push(("native", is_native.into()));
    if !is_said("proxy-await") {
        let awaits = proxy.get("startupProbe").is_some() || proxy["lifecycle"].get("postStart").is_some();
        given.push(("await", if awaits { "enabled" } else { "disabled" }.into()));
    }
    let tokens = proxy["volumeMounts"].as_array().into_iter().flatten();
    let has_own_token = tokens.into_iter().any(|mount| mount["mountPath"] == "/var/run/secrets/tokens");
    given.push(("tokenProjection", has_own_token.into()));
    for (kind, name, annotation, parameter) in RESOURCES {
        let value = proxy["resources"][kind].get(name).filter(|_| !is_said(annotation));
        given.extend(value.map(|value| (parameter, value.clone())));
    }
    for (parameter, field) in
        [("livenessProbe", "livenessProbe"), ("readinessProbe", "readinessProbe"), ("startupProbe", "startupProbe")]
    {
        let probe = proxy.get(field).and_then(Json::as_object).cloned();
        given.extend(probe.map(|mut probe| {
            probe.remove("httpGet");
            (parameter, probe.into())
        }));
    }
    of_env(proxy, &is_said, &mut given);
    let validator = container(result, "linkerd-network-validator");
    given.push(("cni", validator.is_some().into()));
    if let Some(validator) = validator {
        let args = texts(&validator["args"]);
        let names = [
            ("--log-format", "logFormat"),
            ("--log-level", "logLevel"),
            ("--connect-addr", "connectAddr"),
            ("--listen-addr", "listenAddr"),
            ("--timeout", "timeout"),
        ];
        let said = names.iter().filter_map(|(flag, name)| Some(((*name).to_owned(), behind(&args, flag)?.into())));
        given.push(("validator", said.collect::<Map<_, _>>().into()));
    }
    if let Some(init) = container(result, "linkerd-init") {
        of_init(init, &is_said, &mut given);
    }
    given
}

fn of_env(proxy: &Json, is_said: &dyn Fn(&str) -> bool, given: &mut Given) {
    let env: Vec<(&str, &str)> = proxy["env"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|variable| Some((variable["name"].as_str()?, variable["value"].as_str()?)))
        .collect();
    let value = |name: &str| env.iter().find(|(other, _)| *other == name).map(|(_, value)| *value);
    for (name, annotation, parameter) in OF_ENV {
        given.extend(value(name).filter(|_| !is_said(annotation)).map(|value| (parameter, value.into())));
    }
    for (name, annotation, parameter) in OF_PORTS {
        let port = value(name).and_then(|address| address.rsplit_once(':')).map(|(_, port)| port);
        given.extend(port.filter(|_| !is_said(annotation)).map(|port| (parameter, port.into())));
    }
    given.push((
        "ipv6",
        value("LINKERD2_PROXY_ADMIN_LISTEN_ADDR").is_some_and(|address| address.starts_with('[')).into(),
    ));
    if let Some(log) = value("LINKERD2_PROXY_LOG").filter(|_| !is_said("proxy-log-level")) {
        given.push(("log", log.trim_end_matches(",[{headers}]=off,[{request}]=off").into()));
    }
    let domain = value("LINKERD2_PROXY_DESTINATION_PROFILE_SUFFIXES").and_then(|suffix| suffix.strip_prefix("svc."));
    given.extend(domain.map(|domain| ("clusterDomain", domain.trim_end_matches('.').into())));
    for (prefix, parameter) in TUNED {
        let mut scopes = json!({});
        for (name, value) in &env {
            let Some(path) =
                name.strip_prefix(prefix).filter(|path| SCOPES.iter().any(|scope| path.starts_with(scope)))
            else {
                continue;
            };
            let mut words = path.splitn(3, '_').map(str::to_lowercase);
            if let (Some(scope), Some(protocol), Some(rest)) = (words.next(), words.next(), words.next()) {
                scopes[scope][protocol][camel(&rest)] = (*value).into();
            }
        }
        given.push((parameter, scopes));
    }
    let others = env.iter().filter(|(name, _)| !name.starts_with("LINKERD2_PROXY_") && !name.starts_with('_'));
    let others = others.map(|(name, value)| json!({"name": name, "value": value}));
    given.extend((!is_said("proxy-additional-env")).then(|| ("platformEnv", others.collect())));
}

fn of_init(init: &Json, is_said: &dyn Fn(&str) -> bool, given: &mut Given) {
    let args = texts(&init["args"]);
    for (flag, annotation, parameter) in OF_INIT {
        let value = behind(&args, flag).unwrap_or_default();
        given.extend((!is_said(annotation)).then(|| (parameter, value.into())));
    }
    if let Some(ports) = behind(&args, "--inbound-ports-to-ignore").filter(|_| !is_said("skip-inbound-ports")) {
        // The first two ports are the proxy's own.
        given.push(("skipInbound", ports.splitn(3, ',').nth(2).unwrap_or_default().into()));
    }
    let mode = match behind(&args, "--firewall-bin-path") {
        Some("iptables-nft") => "nft",
        Some(_) => "plain",
        None => "legacy",
    };
    given.push(("iptablesMode", mode.into()));
    for (flag, annotation, parameter) in [("--proxy-uid", "proxy-uid", "uid"), ("--proxy-gid", "proxy-gid", "gid")] {
        given.extend(behind(&args, flag).filter(|_| !is_said(annotation)).map(|value| (parameter, value.into())));
    }
    let context = &init["securityContext"];
    given.push(("initRunAsRoot", (context["runAsUser"] == 0).into()));
    given.push(("initPrivileged", (context["privileged"] == true).into()));
    for (field, parameter) in [("runAsUser", "initUser"), ("runAsGroup", "initGroup")] {
        given.extend(context.get(field).filter(|id| **id != 0).map(|id| (parameter, id.clone())));
    }
}

/// Converts `keep_alive_interval` to the chart's spelling `keepAliveInterval`.
fn camel(name: &str) -> String {
    let capital = |word: &str| word.get(..1).unwrap_or_default().to_uppercase() + word.get(1..).unwrap_or_default();
    let words = name.split('_').enumerate();
    words.map(|(place, word)| if place == 0 { word.to_owned() } else { capital(word) }).collect()
}
