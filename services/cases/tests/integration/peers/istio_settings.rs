//! Settings of an Istio installation, by their names in its chart and its mesh configuration, and the corresponding
//! parameters of our profiles. A setting that is not in these tables is an error, because ignoring it would change
//! the case.

use pillion_cases::Case;
use serde_json::{Map, Value as Json, json};

use crate::peers::files::without_nulls;
use crate::peers::runner::{ShippedProfiles, set_all};

/// The prefix of the folders with the profiles.
const FOLDERS: &str = "istio";

/// Parameters that all of the peer's cases set.
const COMMON: [(&str, &str); 2] = [("image", "registry.istio.io/testing/proxyv2:latest"), ("reinject", "true")];

/// The default parts of an image's name, for settings that contain only some parts.
const IMAGE: [&str; 3] = ["registry.istio.io/testing", "proxyv2", "latest"];

/// The default of the status port in the mesh configuration.
const DEFAULT_STATUS_PORT: u16 = 15020;

/// Fields of an installation outside of the chart's values, and the equivalent value of the chart.
const OUTSIDE_VALUES: [(&str, &str); 5] = [
    ("/namespace", "/global/istioNamespace"),
    ("/hub", "/global/hub"),
    ("/tag", "/global/tag"),
    ("/revision", "/revision"),
    ("/components/cni/enabled", "/pilot/cni/enabled"),
];

/// Settings with one corresponding parameter. The value is converted to the parameter's type if necessary.
const DIRECT: [(&str, &str); 60] = [
    ("/revision", "revision"),
    ("/revisionTags", "revisionTags"),
    ("/global/proxy/autoInject", "policy"),
    ("/sidecarInjectorWebhook/neverInjectSelector", "neverInject"),
    ("/sidecarInjectorWebhook/alwaysInjectSelector", "alwaysInject"),
    ("/sidecarInjectorWebhook/defaultTemplates", "defaultTemplates"),
    ("/sidecarInjectorWebhook/rewriteAppHTTPProbe", "rewrite"),
    ("/sidecarInjectorWebhook/injectedAnnotations", "annotations"),
    ("/gateways/securityContext", "gatewaySecurityContext"),
    ("/global/imagePullPolicy", "imagePullPolicy"),
    ("/global/imagePullSecrets", "imagePullSecrets"),
    ("/global/istioNamespace", "istioNamespace"),
    ("/global/caAddress", "caAddress"),
    ("/global/caName", "caName"),
    ("/global/pilotCertProvider", "certProvider"),
    ("/global/trustBundleName", "trustBundle"),
    ("/pilot/env/ENABLE_CLUSTER_TRUST_BUNDLE_API", "clusterTrustBundle"),
    ("/global/sds/token/aud", "tokenAudience"),
    ("/global/mountMtlsCerts", "mountMtlsCerts"),
    ("/global/proxy/clusterDomain", "clusterDomain"),
    ("/global/multiCluster/clusterName", "clusterId"),
    ("/global/network", "network"),
    ("/meshConfig/trustDomain", "trustDomain"),
    ("/global/meshID", "meshId"),
    ("/meshConfig/defaultConfig", "meshConfig"),
    ("/meshConfig/inboundTrafficPolicy/mode", "inboundTrafficPolicy"),
    ("/meshConfig/enablePrometheusMerge", "mergeMetrics"),
    ("/meshConfig/proxyListenPort", "listenPort"),
    ("/meshConfig/proxyInboundListenPort", "inboundListenPort"),
    ("/pilot/env/COMPLIANCE_POLICY", "compliancePolicy"),
    ("/pilot/env/ENABLE_NATIVE_SIDECARS", "native"),
    ("/pilot/env/REWRITE_TCP_PROBES", "rewriteTcp"),
    ("/global/proxy/tracer", "tracer"),
    ("/global/proxy/holdApplicationUntilProxyStarts", "hold"),
    ("/global/proxy/lifecycle", "lifecycle"),
    ("/global/proxy/privileged", "privileged"),
    ("/global/proxy/capNetBindService", "capNetBindService"),
    ("/global/proxy/seccompProfile", "seccompProfile"),
    ("/global/proxy/logLevel", "logLevel"),
    ("/global/proxy/componentLogLevel", "componentLogLevel"),
    ("/global/logging/level", "agentLogLevel"),
    ("/global/logAsJson", "logAsJson"),
    ("/global/sts/servicePort", "stsPort"),
    ("/global/proxy/outlierLogPath", "outlierLogPath"),
    ("/global/proxy/startupProbe/enabled", "startupProbe"),
    ("/global/proxy/startupProbe/failureThreshold", "startupFailures"),
    ("/global/proxy/readinessInitialDelaySeconds", "initialDelay"),
    ("/global/proxy/readinessPeriodSeconds", "period"),
    ("/global/proxy/readinessFailureThreshold", "failures"),
    ("/global/proxy/includeIPRanges", "includeOutbound"),
    ("/global/proxy/excludeIPRanges", "excludeOutbound"),
    ("/global/proxy/includeInboundPorts", "includeInboundPorts"),
    ("/global/proxy/excludeInboundPorts", "excludeInboundPorts"),
    ("/global/proxy/includeOutboundPorts", "includeOutboundPorts"),
    ("/global/proxy/excludeOutboundPorts", "excludeOutboundPorts"),
    ("/pilot/cni/enabled", "cni"),
    ("/pilot/cni/provider", "cniProvider"),
    ("/cni/provider", "cniProvider"),
    ("/global/proxy_init/forceApplyIptables", "forceApplyIptables"),
    ("/global/nativeNftables", "nativeNftables"),
];

/// Settings that [`convert_settings`] converts to parameters.
const CONVERTED: [&str; 11] = [
    "/global/hub",
    "/global/variant",
    "/global/proxy/variant",
    "/global/proxy/resources",
    "/global/tracer",
    "/global/tag",
    "/global/proxy/image",
    "/global/proxy_init/image",
    "/global/proxy/statusPort",
    "/global/platform",
    "/sidecarInjectorWebhook/templates",
];

/// Settings that do not affect an injected pod. They determine for which pods the API server calls the injector,
/// install other components, or affect only later actions of the control plane. The exception is one field of
/// `/meshConfig/extensionProviders`, which [`convert_settings`] reads.
const IRRELEVANT: [&str; 47] = [
    "/gateways/seccompProfile",
    "/sidecarInjectorWebhook/enableNamespacesByDefault",
    "/sidecarInjectorWebhook/reinvocationPolicy",
    "/base",
    "/cni",
    "/defaultRevision",
    "/experimental",
    "/gateways/istio-egressgateway",
    "/gateways/istio-ingressgateway",
    "/istiodRemote",
    "/ownerName",
    "/telemetry",
    "/ztunnel",
    "/pilot/autoscaleEnabled",
    "/pilot/autoscaleMax",
    "/pilot/autoscaleMin",
    "/pilot/enabled",
    "/pilot/image",
    "/pilot/hub",
    "/pilot/nodeSelector",
    "/pilot/podAnnotations",
    "/pilot/replicaCount",
    "/pilot/resources",
    "/pilot/tag",
    "/pilot/tolerations",
    "/pilot/traceSampling",
    "/global/certSigners",
    "/global/configValidation",
    "/global/defaultNodeSelector",
    "/global/defaultPodDisruptionBudget",
    "/global/defaultResources",
    "/global/defaultTolerations",
    "/global/istiod",
    "/global/meshNetworks",
    "/global/multiCluster/enabled",
    "/global/operatorManageWebhooks",
    "/global/priorityClassName",
    "/global/waypoint",
    "/meshConfig/accessLogEncoding",
    "/meshConfig/accessLogFile",
    "/meshConfig/accessLogFormat",
    "/meshConfig/defaultProviders",
    "/meshConfig/discoverySelectors",
    "/meshConfig/enableAutoMtls",
    "/meshConfig/extensionProviders",
    "/meshConfig/outboundTrafficPolicy",
    "/meshConfig/rootNamespace",
];

/// Components of an installation that do not affect an injected pod.
const IRRELEVANT_COMPONENTS: [&str; 5] = ["base", "egressGateways", "ingressGateways", "ztunnel", "istiodRemote"];

/// Istio's own installation profiles (`spec.profile`) that do not affect an injected pod.
const IRRELEVANT_PROFILES: [&str; 4] = ["", "default", "empty", "minimal"];

/// A part of a result's name, and the parameters that it sets.
type Variant = (&'static str, &'static [(&'static str, &'static str)]);

/// Suffixes of result names, and the parameters that they set. Only suffixes that determine all settings are listed.
const VARIANTS: [Variant; 4] = [
    ("tproxy", &[("mode", "\"TPROXY\"")]),
    ("cni", &[("cni", "true")]),
    ("multus", &[("cni", "true"), ("cniProvider", "\"multus\"")]),
    (NOT_NATIVE, &[]),
];

/// The suffix of results for nodes without native sidecars.
const NOT_NATIVE: &str = "old-version";

/// Applies the settings that the name of a result and the documents of a file contain.
///
/// # Errors
///
/// Fails if a variant or a setting is unknown.
pub(crate) fn apply_settings(
    case: &mut Case,
    shipped: &ShippedProfiles,
    variant: &str,
    documents: &[Json],
) -> Result<(), String> {
    let mut parameters: Vec<(&str, Json)> =
        COMMON.iter().map(|(parameter, value)| (*parameter, (*value).into())).collect();
    for document in documents {
        read_document(document, shipped, &mut parameters)?;
    }
    let variants = variants(variant).ok_or_else(|| format!("variant {variant} is not known"))?;
    for (_, settings) in &variants {
        for (parameter, value) in *settings {
            parameters.push((parameter, serde_json::from_str(value).map_err(|error| error.to_string())?));
        }
    }
    let is_native = !variants.iter().any(|(name, _)| *name == NOT_NATIVE);
    case.cluster = Map::from_iter([("nativeSidecars".to_owned(), json!(is_native))]);
    parameters.into_iter().try_for_each(|(parameter, value)| set_all(case, shipped, FOLDERS, parameter, &value))
}

/// Applies the settings that were inferred from a result.
///
/// # Errors
///
/// Fails if one of the parameters is in no profile.
pub(crate) fn apply_parameters(
    case: &mut Case,
    shipped: &ShippedProfiles,
    parameters: &[(&'static str, Json)],
    is_native: bool,
) -> Result<(), String> {
    case.cluster = Map::from_iter([("nativeSidecars".to_owned(), json!(is_native))]);
    let common = COMMON.iter().map(|(parameter, value)| (*parameter, Json::from(*value)));
    let mut all = common.chain(parameters.iter().cloned());
    all.try_for_each(|(parameter, value)| set_all(case, shipped, FOLDERS, parameter, &value))
}

/// Splits the suffix of a result's name into variants; `None` if a part is not a variant.
fn variants(name: &str) -> Option<Vec<Variant>> {
    let (mut rest, mut found) = (name, Vec::new());
    while !rest.is_empty() {
        let (variant, suffix) = VARIANTS.iter().find_map(|variant| {
            let suffix = rest.strip_prefix(variant.0)?;
            if suffix.is_empty() { Some((variant, "")) } else { Some((variant, suffix.strip_prefix(['-', '.', '_'])?)) }
        })?;
        found.push(*variant);
        rest = suffix;
    }
    Some(found)
}

/// Reads the settings in the spec of a resource of the peer, and appends the corresponding profile parameters to
/// `parameters`. An unknown setting is an error.
fn read_document(
    document: &Json,
    shipped: &ShippedProfiles,
    parameters: &mut Vec<(&'static str, Json)>,
) -> Result<(), String> {
    let Some(spec) = document.get("spec").filter(|_| document.get("kind").is_some()) else {
        return Err("the settings are not a resource with a spec".to_owned());
    };
    let mut values = spec["values"].clone();
    if values.is_null() {
        values = json!({});
    }
    for (field, same) in OUTSIDE_VALUES {
        if let Some(value) = spec.pointer(field) {
            set_at(&mut values, same, value.clone());
        }
    }
    if let Some(mesh) = spec.get("meshConfig") {
        merge(&mut values["meshConfig"], mesh);
    }
    read_components(&spec["components"], &mut values)?;
    for (key, value) in spec.as_object().into_iter().flatten() {
        let is_plain = key == "profile" && value.as_str().is_some_and(|profile| IRRELEVANT_PROFILES.contains(&profile));
        if !["values", "meshConfig", "components"].contains(&key.as_str()) && !is_plain {
            let known = |path: &str| OUTSIDE_VALUES.iter().any(|(field, _)| *field == path);
            find_unknown(value, &mut format!("/{key}"), &known)?;
        }
    }
    let known = |path: &str| {
        let all = DIRECT.iter().map(|(known, _)| *known).chain(CONVERTED).chain(IRRELEVANT);
        all.into_iter()
            .any(|known| path.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    };
    find_unknown(&values, &mut String::new(), &known)?;

    for (path, parameter) in DIRECT {
        parameters
            .extend(values.pointer(path).filter(|value| !is_unset(value)).map(|value| (parameter, value.clone())));
    }
    convert_settings(&values, shipped, parameters)
}

/// Reads the settings of components. The control plane's environment becomes values of the chart. Its other settings
/// do not affect an injected pod.
fn read_components(components: &Json, values: &mut Json) -> Result<(), String> {
    for (name, component) in components.as_object().into_iter().flatten() {
        for (key, value) in component.as_object().into_iter().flatten() {
            match (name.as_str(), key.as_str()) {
                ("cni", _) | (_, "enabled" | "namespace") => {}
                ("pilot", "k8s") => {
                    for variable in value["env"].as_array().into_iter().flatten() {
                        let Some(name) = variable["name"].as_str() else { continue };
                        set_at(values, &format!("/pilot/env/{name}"), variable["value"].clone());
                    }
                }
                _ if IRRELEVANT_COMPONENTS.contains(&name.as_str()) => {}
                _ => return Err(format!("setting components.{name}.{key} is not known")),
            }
        }
        if component.is_array() && !IRRELEVANT_COMPONENTS.contains(&name.as_str()) {
            return Err(format!("setting components.{name} is not known"));
        }
    }
    Ok(())
}

/// Computes the parameters for the settings in [`CONVERTED`] and for a few others, and appends them to `parameters`. An
/// unknown platform is an error.
fn convert_settings(
    values: &Json,
    shipped: &ShippedProfiles,
    parameters: &mut Vec<(&'static str, Json)>,
) -> Result<(), String> {
    let text =
        |path: &str| values.pointer(path).map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    let image = |name: &str| {
        let hub = text("/global/hub").unwrap_or_else(|| IMAGE[0].to_owned());
        let tag = text("/global/tag").unwrap_or_else(|| IMAGE[2].to_owned());
        if name.contains('/') { name.to_owned() } else { format!("{hub}/{name}:{tag}") }
    };
    if ["/global/hub", "/global/tag", "/global/proxy/image"].iter().any(|path| values.pointer(path).is_some()) {
        parameters.push(("image", image(&text("/global/proxy/image").unwrap_or_else(|| IMAGE[1].to_owned())).into()));
    }
    // A name without a slash means that the init container uses the image of the proxy.
    if let Some(name) = text("/global/proxy_init/image").filter(|name| name.contains('/')) {
        parameters.push(("initImage", name.into()));
    }
    if let Some(port) = text("/global/proxy/statusPort") {
        // Prometheus uses the port of the mesh configuration. With port 0, the agent has no status port.
        parameters.push(("metricsPort", DEFAULT_STATUS_PORT.into()));
        parameters.push((if port == "0" { "statusPort" } else { "meshStatusPort" }, port.into()));
    }
    let mut providers = values.pointer("/meshConfig/extensionProviders").and_then(Json::as_array).into_iter().flatten();
    let enriches = |provider: &Json| {
        provider
            .pointer("/opentelemetry/serviceAttributeEnrichment")
            .is_some_and(|kind| kind == "OTEL_SEMANTIC_CONVENTIONS")
    };
    parameters.push(("otelServiceAttributes", providers.any(enriches).into()));
    // Istio's injector does not check the revision of a pod: the selectors of its webhooks do. So these cases may also
    // inject pods that name no revision. The profile does so only with `defaultRevision`.
    if values.get("revision").is_some_and(|revision| !is_unset(revision)) {
        parameters.push(("defaultRevision", true.into()));
    }
    match text("/global/platform").as_deref() {
        None | Some("") => {}
        Some("openshift") => parameters.push(("openshift", true.into())),
        Some(other) => return Err(format!("setting global.platform is not known as {other}")),
    }
    if let Some(variant) =
        text("/global/proxy/variant").filter(|name| !name.is_empty()).or_else(|| text("/global/variant"))
    {
        parameters.push(("variant", variant.into()));
    }
    if let Some(settings) =
        text("/global/proxy/tracer").and_then(|tracer| values.pointer(&format!("/global/tracer/{tracer}")))
    {
        parameters.push(("tracerSettings", settings.clone()));
    }
    // A value is merged into the default of the chart, and a null removes a default.
    if let Some(resources) = values.pointer("/global/proxy/resources") {
        let declared = shipped.parameter("istio-sidecar", "resources").cloned().unwrap_or_default();
        let mut whole = declared["default"].clone();
        merge(&mut whole, resources);
        parameters.push(("resources", without_nulls(if whole.is_object() { whole } else { json!({}) })));
    }
    // Besides the proxy, Prometheus and the kubelet use this field of the configuration.
    if let Some(port) = values.pointer("/meshConfig/defaultConfig/statusPort") {
        parameters.push(("metricsPort", port.clone()));
    }
    if let Some(templates) = values.pointer("/sidecarInjectorWebhook/templates").and_then(Json::as_object) {
        let own = ["sidecar", "gateway", "grpc-agent", "grpc-simple"].map(str::to_owned);
        parameters.push(("knownTemplates", own.into_iter().chain(templates.keys().cloned()).collect()));
    }
    Ok(())
}

/// Returns an error for the first unknown setting of a value.
fn find_unknown(value: &Json, path: &mut String, known: &dyn Fn(&str) -> bool) -> Result<(), String> {
    match value {
        _ if known(path) => Ok(()),
        Json::Object(members) => members.iter().try_for_each(|(key, value)| {
            let length = path.len();
            path.push('/');
            path.push_str(key);
            find_unknown(value, path, known)?;
            path.truncate(length);
            Ok(())
        }),
        _ => Err(format!("setting {} is not known", path.trim_start_matches('/').replace('/', "."))),
    }
}

/// Whether a chart treats a value as absent.
fn is_unset(value: &Json) -> bool {
    value.as_str() == Some("")
}

/// Sets the value at a path, and creates missing parents.
fn set_at(values: &mut Json, path: &str, value: Json) {
    let target = path.split('/').skip(1).fold(values, |node, key| &mut node[key]);
    *target = value;
}

/// Merges one value into another. Maps are merged by key.
fn merge(target: &mut Json, source: &Json) {
    match (target, source) {
        (Json::Object(target), Json::Object(source)) => {
            for (key, value) in source {
                merge(target.entry(key.clone()).or_insert(Json::Null), value);
            }
        }
        (target, source) => *target = source.clone(),
    }
}

#[test]
fn all_profiles_have_parameters_of_settings() {
    let shipped = ShippedProfiles::load();
    let variant_settings = VARIANTS.iter().flat_map(|(_, settings)| settings.iter());
    let all = DIRECT.iter().map(|(_, parameter)| *parameter).chain(variant_settings.map(|(parameter, _)| *parameter));
    for parameter in all.chain([
        "image",
        "initImage",
        "statusPort",
        "meshStatusPort",
        "defaultRevision",
        "variant",
        "tracerSettings",
        "resources",
        "metricsPort",
        "gatewaySysctls",
        "otelServiceAttributes",
        "openshift",
        "knownTemplates",
    ]) {
        for profile in shipped.names(FOLDERS).iter().filter(|_| parameter != "annotations") {
            assert!(shipped.parameter(profile, parameter).is_some(), "{profile}: {parameter}");
        }
    }
    assert!(shipped.parameter("istio-annotations", "annotations").is_some());
}
