//! Guardrails: the limits that the platform configures for tenants' profiles, besides the fixed ones.

use serde::{Deserialize, Serialize};

use super::control::PodSecurityLevel;
use super::image::ImagePrefix;

/// Domains of labels and annotations that Kubernetes or Pillion interprets. Their subdomains are included.
const RESERVED_DOMAINS: [&str; 3] = ["pillion.dev", "kubernetes.io", "k8s.io"];

/// Kinds of volumes that do not come from the host.
const VOLUME_KINDS: [&str; 28] = [
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "glusterfs",
    "image",
    "iscsi",
    "nfs",
    "persistentVolumeClaim",
    "photonPersistentDisk",
    "portworxVolume",
    "projected",
    "quobyte",
    "rbd",
    "scaleIO",
    "secret",
    "storageos",
    "vsphereVolume",
];

/// Kinds of volumes that tenants may add by default. A `projected` volume is not among them, and may still be added if
/// all its sources are of these kinds: see [`Guardrails::volume_kinds`].
const DEFAULT_VOLUME_KINDS: [&str; 6] =
    ["configMap", "secret", "emptyDir", "downwardAPI", "ephemeral", "persistentVolumeClaim"];

/// The limits of tenants' profiles. Numbers apply to one profile and one pod.
///
/// In YAML, all fields are in camelCase and optional:
///
/// ```yaml
/// registries: [ghcr.io/team, docker.io/library]
/// volumeKinds: [configMap, secret, emptyDir]
/// minimumPodSecurity: restricted
/// reservedDomains: [example.com]
/// maxContainers: 2
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Guardrails {
    /// Registries for the images of containers that a profile adds or changes. Default: all registries.
    pub registries: Option<Vec<ImagePrefix>>,
    /// Kinds of volumes that a profile may add or change: the names of a volume's sources in Kubernetes. A `projected`
    /// volume is permitted if each of its sources is one of these kinds. Its other sources are identities (a service
    /// account's token for any audience, a pod's certificate) that the pod's author did not request. They require
    /// `projected` itself in this list; tokens are rejected even then.
    pub volume_kinds: Vec<VolumeKind>,
    /// The minimum Pod Security level, even if the namespace enforces a lower one.
    pub minimum_pod_security: PodSecurityLevel,
    /// Domains whose labels and annotations a profile may not change, including their subdomains. pillion.dev,
    /// kubernetes.io and k8s.io are always reserved.
    pub reserved_domains: Vec<Domain>,
    /// Keys of labels and annotations that a profile may not change, such as `app`, by which services select pods.
    pub reserved_keys: Vec<String>,
    /// The maximum number of containers that a profile adds.
    pub max_containers: usize,
    /// The maximum number of volumes that a profile adds.
    pub max_volumes: usize,
    /// The maximum number of environment variables that a profile adds to all containers together.
    pub max_env: usize,
    /// The maximum number of mounts that a profile adds to all containers together.
    pub max_mounts: usize,
    /// The maximum number of labels and annotations that a profile adds.
    pub max_keys: usize,
    /// The maximum number of bytes by which a profile grows the pod, as JSON.
    pub max_bytes: usize,
    /// Whether pods of `required` namespaces get an empty record even if nothing is injected. The API server can then
    /// distinguish them from pods that were created without a call of the webhook.
    pub record_decisions: bool,
}

impl Default for Guardrails {
    fn default() -> Self {
        Self {
            registries: None,
            volume_kinds: DEFAULT_VOLUME_KINDS.map(|kind| VolumeKind(kind.into())).into(),
            minimum_pod_security: PodSecurityLevel::Baseline,
            reserved_domains: Vec::new(),
            reserved_keys: vec!["app".to_owned()],
            max_containers: 10,
            max_volumes: 20,
            max_env: 250,
            max_mounts: 100,
            max_keys: 50,
            max_bytes: 64 * 1024,
            record_decisions: false,
        }
    }
}

impl Guardrails {
    /// Whether a label or annotation is reserved, so that tenants may not change it.
    pub(super) fn is_reserved(&self, key: &str) -> bool {
        if self.reserved_keys.iter().any(|reserved| reserved == key) {
            return true;
        }
        let Some((domain, _)) = key.split_once('/') else { return false };
        let domain = domain.to_ascii_lowercase();
        let own = self.reserved_domains.iter().map(|domain| &*domain.0);
        RESERVED_DOMAINS
            .into_iter()
            .chain(own)
            .any(|reserved| domain.strip_suffix(reserved).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
    }

    /// Whether an image is allowed.
    pub(super) fn allows_image(&self, image: &str) -> bool {
        self.registries.as_ref().is_none_or(|registries| registries.iter().any(|registry| registry.holds(image)))
    }

    /// Whether a kind of volume is allowed.
    pub(super) fn allows_volume(&self, kind: &str) -> bool {
        self.volume_kinds.iter().any(|allowed| &*allowed.0 == kind)
    }
}

/// The kind of a volume: the name of its source, such as `configMap`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String")]
pub struct VolumeKind(Box<str>);

impl VolumeKind {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for VolumeKind {
    type Error = String;

    fn try_from(kind: String) -> Result<Self, String> {
        if kind == "hostPath" {
            let why = "the Pod Security Standards forbid it at every level that a tenant's profile is held to";
            return Err(format!("hostPath cannot be allowed to tenants: {why}; let a cluster profile add the volume"));
        }
        if !VOLUME_KINDS.contains(&&*kind) {
            return Err(format!("{kind:?} is no kind of volume: expected one of {}", VOLUME_KINDS.join(", ")));
        }
        Ok(Self(kind.into()))
    }
}

/// A domain of labels and annotations, such as `example.com`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String")]
pub struct Domain(Box<str>);

impl TryFrom<String> for Domain {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let domain = text.strip_suffix('/').unwrap_or(&text);
        let is_part = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        };
        if !domain.split('.').all(is_part) {
            return Err(format!(
                "{text:?} is no domain: expected small letters, digits, - and dots, as in example.com"
            ));
        }
        Ok(Self(domain.into()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reserved_are_domains_with_those_below_them_and_whole_keys() {
        let own = json!({"reservedDomains": ["example.com", "platform/"], "reservedKeys": ["team"]});
        let own: Guardrails = serde_json::from_value(own).unwrap();
        let default = Guardrails::default();
        for (key, by_default, by_own) in [
            ("pillion.dev/profiles", true, true),
            ("x.pillion.dev/y", true, true),
            ("kubernetes.io/x", true, true),
            ("app.kubernetes.io/name", true, true),
            ("x.kubernetes.io/", true, true),
            ("X.Kubernetes.IO/y", true, true),
            ("k8s.io/x", true, true),
            ("notkubernetes.io/x", false, false),
            ("kubernetes.io.example.org/x", false, false),
            ("kubernetes.io", false, false),
            ("example.com/x", false, true),
            ("a.example.com/x", false, true),
            ("anexample.com/x", false, false),
            ("platform/x", false, true),
            ("app", true, false),
            ("team", false, true),
            ("team.example.org/app", false, false),
        ] {
            assert_eq!(default.is_reserved(key), by_default, "{key}");
            assert_eq!(own.is_reserved(key), by_own, "{key} with own domains");
        }
    }

    #[test]
    fn everything_may_be_left_out_and_nothing_misspelt() {
        assert_eq!(serde_json::from_value::<Guardrails>(json!({})).unwrap(), Guardrails::default());
        for (text, expected) in [
            (json!({"registry": []}), "unknown field `registry`"),
            (json!({"registries": ["nginx"]}), "expected HOST or HOST/PATH"),
            (json!({"volumeKinds": ["hostPath"]}), "cannot be allowed to tenants"),
            (json!({"volumeKinds": ["configmap"]}), "no kind of volume"),
            (json!({"minimumPodSecurity": "privileged"}), "unknown variant `privileged`"),
            (json!({"reservedDomains": ["Example.com"]}), "no domain"),
            (json!({"reservedDomains": ["*.example.com"]}), "no domain"),
            (json!({"maxContainers": -1}), "invalid value"),
        ] {
            let error = serde_json::from_value::<Guardrails>(text.clone()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
