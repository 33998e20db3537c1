//! Settings of a Linkerd installation, by their names in its chart, and the corresponding parameters of our profiles. A
//! setting that is not in the table is an error, because ignoring it would change the case.

use pillion_cases::Case;
use serde_json::{Value as Json, json};

use crate::peers::files::without_nulls;
use crate::peers::runner::{ShippedProfiles, set_all};

/// The prefix of the folders with the profiles.
const FOLDERS: &str = "linkerd";

/// Settings with one corresponding parameter. The value is converted to the parameter's type if necessary.
const DIRECT: [(&str, &str); 44] = [
    ("/clusterDomain", "clusterDomain"),
    ("/clusterNetworks", "networks"),
    ("/cniEnabled", "cni"),
    ("/debugContainer/image/name", "debugImage"),
    ("/debugContainer/image/pullPolicy", "debugPullPolicy"),
    ("/debugContainer/image/version", "debugVersion"),
    ("/identity/serviceAccountTokenProjection", "tokenProjection"),
    ("/identityTrustAnchorsPEM", "trustAnchors"),
    ("/identityTrustDomain", "trustDomain"),
    ("/linkerdNamespace", "controlPlane"),
    ("/networkValidator", "validator"),
    ("/proxy/accessLog", "accessLog"),
    ("/proxy/additionalEnv", "platformEnv"),
    ("/proxy/await", "await"),
    ("/proxy/defaultInboundPolicy", "policy"),
    ("/proxy/enableExternalProfiles", "externalProfiles"),
    ("/proxy/gid", "gid"),
    ("/proxy/image/name", "image"),
    ("/proxy/image/pullPolicy", "pullPolicy"),
    ("/proxy/image/version", "version"),
    ("/proxy/inbound", "inbound"),
    ("/proxy/inboundConnectTimeout", "inboundConnectTimeout"),
    ("/proxy/logFormat", "logFormat"),
    ("/proxy/logLevel", "log"),
    ("/proxy/nativeSidecar", "native"),
    ("/proxy/opaquePorts", "opaquePorts"),
    ("/proxy/outbound", "outbound"),
    ("/proxy/outboundConnectTimeout", "outboundConnectTimeout"),
    ("/proxy/ports/admin", "adminPort"),
    ("/proxy/ports/control", "controlPort"),
    ("/proxy/ports/inbound", "inboundPort"),
    ("/proxy/ports/outbound", "outboundPort"),
    ("/proxy/resources/cpu/limit", "cpuLimit"),
    ("/proxy/resources/cpu/request", "cpuRequest"),
    ("/proxy/resources/memory/limit", "memoryLimit"),
    ("/proxy/resources/memory/request", "memoryRequest"),
    ("/proxy/resources/ephemeral-storage/limit", "storageLimit"),
    ("/proxy/resources/ephemeral-storage/request", "storageRequest"),
    ("/proxy/uid", "uid"),
    ("/proxy/waitBeforeExitSeconds", "waitBeforeExit"),
    ("/proxyInit/ignoreInboundPorts", "skipInbound"),
    ("/proxyInit/ignoreOutboundPorts", "skipOutbound"),
    ("/proxyInit/iptablesMode", "iptablesMode"),
    ("/proxyInit/runAsRoot", "initRunAsRoot"),
];

/// Settings that the peer's command writes as annotations: the setting, the annotation, and its value.
const ANNOTATIONS: [(&str, &str, &str); 2] = [
    ("/enableDebugSidecar", "config.linkerd.io/enable-debug-sidecar", "true"),
    ("/proxy/isIngress", "linkerd.io/inject", "ingress"),
];

/// Settings that do not affect an injected pod.
const IRRELEVANT: [&str; 3] = ["/linkerdVersion", "/controllerLogLevel", "/controllerReplicas"];

/// Applies the settings in the documents of a file.
///
/// # Errors
///
/// Fails if a setting is unknown.
pub(crate) fn apply_values(case: &mut Case, shipped: &ShippedProfiles, documents: &[Json]) -> Result<(), String> {
    for values in documents.iter().cloned().map(without_nulls) {
        check_known(&values, "")?;
        for (path, parameter) in DIRECT {
            let Some(value) = values.pointer(path) else { continue };
            // The setting `await` may be a boolean, but the parameter and the annotation are `enabled` or `disabled`.
            let word = value.as_bool().map(|is_on| if is_on { "enabled" } else { "disabled" });
            let word = word.filter(|_| parameter == "await").map(Json::from);
            set_all(case, shipped, FOLDERS, parameter, word.as_ref().unwrap_or(value))?;
        }
        for (path, annotation, value) in ANNOTATIONS {
            if values.pointer(path) == Some(&json!(true)) {
                let metadata = case.object.entry("metadata").or_insert_with(|| json!({}));
                metadata["annotations"][annotation] = value.into();
            }
        }
    }
    Ok(())
}

/// Checks that every setting is in one of the tables.
fn check_known(values: &Json, path: &str) -> Result<(), String> {
    let flags = ANNOTATIONS.iter().map(|(path, ..)| *path);
    let mut tables = DIRECT.iter().map(|(path, _)| *path).chain(flags).chain(IRRELEVANT);
    match values {
        _ if tables.any(|known| known == path) => Ok(()),
        Json::Object(members) => {
            members.iter().try_for_each(|(key, value)| check_known(value, &format!("{path}/{key}")))
        }
        _ => Err(format!("setting {} is not known", path.trim_start_matches('/').replace('/', "."))),
    }
}

#[test]
fn profiles_have_parameters_of_settings() {
    let shipped = ShippedProfiles::load();
    for (_, parameter) in DIRECT {
        assert!(shipped.parameter("linkerd-proxy", parameter).is_some(), "{parameter}");
    }
}

#[test]
fn values_become_parameters_and_annotations() {
    let shipped = ShippedProfiles::load();
    let mut case = Case::default();
    let values = json!({"proxy": {"await": false, "isIngress": true, "opaquePorts": "25,3000-3010", "resources": {"cpu": {"limit": "1"}}}});
    apply_values(&mut case, &shipped, &[values]).unwrap();
    let parameters = &case.parameters["linkerd-proxy"];
    assert_eq!((&parameters["await"], &parameters["cpuLimit"]), (&json!("disabled"), &json!("1")));
    assert_eq!(case.parameters["linkerd-opaque-ports"]["opaquePorts"], json!(["25", "3000-3010"]));
    assert_eq!(case.object["metadata"]["annotations"]["linkerd.io/inject"], "ingress");
    let unknown = apply_values(&mut case, &shipped, &[json!({"proxy": {"odd": 1}})]);
    assert_eq!(unknown, Err("setting proxy.odd is not known".to_owned()));
}
