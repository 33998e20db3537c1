//! Guardrails: the configurable limits for tenants' profiles.
//!
//! An image is allowed if one of the configured prefixes matches it. Short names are completed first, as container
//! runtimes do (`nginx` is `docker.io/library/nginx`). Prefixes match whole path components: `ghcr.io/team` matches
//! `ghcr.io/team/tool` but not `ghcr.io/teammate/tool`. Strings that runtimes reject never match, so unusual spellings
//! cannot bypass the check.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use super::pod_security::PodSecurityLevel;

/// Domains of labels and annotations that Kubernetes or Pillion uses. Their subdomains are included.
const RESERVED_DOMAINS: [&str; 3] = ["pillion.dev", "kubernetes.io", "k8s.io"];

/// Kinds of volumes that the platform can allow. `hostPath` is never allowed.
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

/// Kinds of volumes that tenants may add by default. `projected` is not one of them, but a `projected` volume is
/// allowed if all its sources are of these kinds: see [`Guardrails::volume_kinds`].
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
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Guardrails {
    /// Registries for the images of containers that a namespaced profile adds or changes. Default: all registries.
    #[schemars(with = "Option<Vec<String>>", extend("expected" = "`HOST` or `HOST/PATH`; null allows all registries"))]
    pub registries: Option<Vec<ImagePrefix>>,
    /// Kinds of volumes that a namespaced profile may add or change, each named after the volume's source field in
    /// Kubernetes. A `projected` volume is permitted if each of its `configMap`, `secret` and `downwardAPI` sources is
    /// in this list. The sources `podCertificate` and `clusterTrustBundle` are permitted only if the list contains
    /// `projected`. The source `serviceAccountToken` is never permitted.
    #[schemars(with = "Vec<String>", extend("expected" = "names of volume sources, except `hostPath`"))]
    pub volume_kinds: Vec<VolumeKind>,
    /// The minimum Pod Security level that namespaced profiles must comply with, even if the namespace enforces a lower
    /// one or none.
    #[schemars(with = "String", extend("expected" = "`baseline` or `restricted`"))]
    pub minimum_pod_security: PodSecurityLevel,
    /// Domains whose labels and annotations a namespaced profile may not change, including their subdomains.
    /// pillion.dev, kubernetes.io and k8s.io are always reserved.
    #[schemars(with = "Vec<String>", extend("expected" = "domains, as in `example.com`"))]
    pub reserved_domains: Vec<Domain>,
    /// Keys of labels and annotations that a namespaced profile may not change, such as `app`, which Services often use
    /// to select pods.
    #[schemars(extend("expected" = "whole keys"))]
    pub reserved_keys: Vec<String>,
    /// The maximum number of containers that a namespaced profile adds to a pod.
    #[schemars(extend("range" = [0, 1_000]))]
    pub max_containers: usize,
    /// The maximum number of volumes that a namespaced profile adds to a pod.
    #[schemars(extend("range" = [0, 1_000]))]
    pub max_volumes: usize,
    /// The maximum number of environment variables that a namespaced profile adds to all containers of a pod together.
    #[schemars(extend("range" = [0, 100_000]))]
    pub max_env: usize,
    /// The maximum number of mounts that a namespaced profile adds to all containers of a pod together.
    #[schemars(extend("range" = [0, 100_000]))]
    pub max_mounts: usize,
    /// The maximum number of labels and annotations that a namespaced profile adds to a pod.
    #[schemars(extend("range" = [0, 10_000]))]
    pub max_keys: usize,
    /// The maximum number of bytes that a namespaced profile adds to the pod's JSON.
    #[schemars(extend("range" = [0, 1_048_576]))]
    pub max_bytes: usize,
    /// Whether pods of `required` namespaces get an empty injection record even if nothing is injected. The API server
    /// can then distinguish them from pods that were created without a call to the webhook.
    pub record_decisions: bool,
}

/// The registry for image names without a registry.
const DEFAULT_REGISTRY: &str = "docker.io";

/// The other name of the default registry.
const DEFAULT_REGISTRY_ALIAS: &str = "index.docker.io";

/// The folder for image names without a folder in the default registry.
const DEFAULT_FOLDER: &str = "library";

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

    /// Whether an image comes from an allowed registry.
    pub(super) fn allows_image(&self, image: &str) -> bool {
        self.registries.as_ref().is_none_or(|registries| registries.iter().any(|registry| registry.holds(image)))
    }

    /// Whether tenants may use this kind of volume.
    pub(super) fn allows_volume(&self, kind: &str) -> bool {
        self.volume_kinds.iter().any(|allowed| &*allowed.0 == kind)
    }
}

/// The kind of a volume: the name of its source, such as `configMap`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String")]
pub struct VolumeKind(Box<str>);

impl VolumeKind {
    /// Returns the name of the volume's source.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for VolumeKind {
    type Error = String;

    fn try_from(kind: String) -> Result<Self, String> {
        if kind == "hostPath" {
            let why = "the Pod Security Standards forbid it at every level that applies to tenants' profiles";
            return Err(format!("hostPath cannot be allowed for tenants: {why}; let a cluster profile add the volume"));
        }
        if !VOLUME_KINDS.contains(&&*kind) {
            return Err(format!("{kind:?} is not a kind of volume: expected one of {}", VOLUME_KINDS.join(", ")));
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
                "{text:?} is not a domain: expected lower-case letters, digits, - and dots, as in example.com"
            ));
        }
        Ok(Self(domain.into()))
    }
}

/// The completed name of an image without tag and digest: its registry, and the components of its path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    registry: String,
    path: Vec<String>,
}

/// A registry with an optional path, such as `ghcr.io` or `registry.example.com:5000/team`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ImagePrefix(Name);

impl ImagePrefix {
    /// Whether the prefix matches an image. False for an invalid reference.
    #[must_use]
    pub fn holds(&self, image: &str) -> bool {
        let Self(Name { registry, path }) = self;
        Name::of_image(image).is_some_and(|name| name.registry == *registry && name.path.starts_with(path))
    }
}

impl TryFrom<String> for ImagePrefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let expected =
            || format!("{text:?} is not a registry: expected HOST or HOST/PATH without a tag, as in ghcr.io/team");
        let (registry, path) = match text.split_once('/') {
            Some((registry, path)) => (registry, path.strip_suffix('/').unwrap_or(path)),
            None => (text.as_str(), ""),
        };
        if !is_registry(registry) {
            return Err(expected());
        }
        let path: Vec<_> = if path.is_empty() { Vec::new() } else { path.split('/').map(str::to_owned).collect() };
        let registry = canonical(registry).filter(|_| path.iter().all(|part| is_part(part))).ok_or_else(expected)?;
        Ok(Self(Name { registry, path }))
    }
}

/// Writes the prefix as a string that `TryFrom` parses.
impl Serialize for ImagePrefix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for ImagePrefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.registry)?;
        self.0.path.iter().try_for_each(|part| write!(formatter, "/{part}"))
    }
}

impl Name {
    /// Parses and completes an image reference. `None` if it is invalid.
    fn of_image(image: &str) -> Option<Self> {
        let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
        if digest.is_some_and(|digest| !is_digest(digest)) {
            return None;
        }
        // Only a colon after the last slash precedes a tag; earlier ones precede a port.
        let last = name.rfind('/').map_or(0, |slash| slash + 1);
        let (name, tag) = match name.get(last..)?.split_once(':') {
            Some((base, tag)) => (name.get(..last + base.len())?, Some(tag)),
            None => (name, None),
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return None;
        }
        let (registry, path) = match name.split_once('/') {
            Some((registry, path)) if is_registry(registry) => (canonical(registry)?, path),
            _ => (DEFAULT_REGISTRY.to_owned(), name),
        };
        let mut path: Vec<_> = path.split('/').map(str::to_owned).collect();
        if registry == DEFAULT_REGISTRY && path.len() == 1 {
            path.insert(0, DEFAULT_FOLDER.to_owned());
        }
        path.iter().all(|part| is_part(part)).then_some(Self { registry, path })
    }
}

/// Whether the first part of a name is a registry: it contains a dot, a colon or a capital letter, or is `localhost`.
/// Otherwise, the part is the first path component of a repository in the default registry.
fn is_registry(part: &str) -> bool {
    part.contains(['.', ':']) || part == "localhost" || part.bytes().any(|byte| byte.is_ascii_uppercase())
}

/// Returns a registry in lower case, with aliases resolved. `None` if it is not a valid host name.
fn canonical(registry: &str) -> Option<String> {
    let lower = registry.to_ascii_lowercase();
    let (host, port) = lower.split_once(':').map_or((lower.as_str(), None), |(host, port)| (host, Some(port)));
    let is_label = |label: &str| {
        let inner = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        !label.is_empty() && inner && !label.starts_with('-') && !label.ends_with('-')
    };
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if !host.split('.').all(is_label) || port.is_some_and(|port| !is_port(port)) {
        return None;
    }
    Some(if lower == DEFAULT_REGISTRY_ALIAS { DEFAULT_REGISTRY.to_owned() } else { lower })
}

/// Whether a path component is valid: lower-case letters and digits, with separators only between them.
fn is_part(part: &str) -> bool {
    let is_separator = |byte: u8| matches!(byte, b'.' | b'_' | b'-');
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = (part.bytes().next(), part.bytes().last());
    matches!(ends, (Some(first), Some(last)) if is_word(first) && is_word(last))
        && part.bytes().all(|byte| is_word(byte) || is_separator(byte))
        && !part.contains("..")
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
        && tag.len() <= 128
}

fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, hex)| {
        !algorithm.is_empty()
            && algorithm.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'.' | b'-' | b'_'))
            && hex.len() >= 32
            && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reserves_domains_subdomains_and_keys() {
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
    fn guardrails_are_optional_and_strict() {
        assert_eq!(serde_json::from_value::<Guardrails>(json!({})).unwrap(), Guardrails::default());
        for (text, expected) in [
            (json!({"registry": []}), "unknown field `registry`"),
            (json!({"registries": ["nginx"]}), "expected HOST or HOST/PATH"),
            (json!({"volumeKinds": ["hostPath"]}), "cannot be allowed for tenants"),
            (json!({"volumeKinds": ["configmap"]}), "not a kind of volume"),
            (json!({"minimumPodSecurity": "privileged"}), "unknown variant `privileged`"),
            (json!({"reservedDomains": ["Example.com"]}), "not a domain"),
            (json!({"reservedDomains": ["*.example.com"]}), "not a domain"),
            (json!({"maxContainers": -1}), "invalid value"),
        ] {
            let error = serde_json::from_value::<Guardrails>(text.clone()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    fn prefix(text: &str) -> ImagePrefix {
        ImagePrefix::try_from(text.to_owned()).unwrap()
    }

    #[test]
    fn image_prefix_matches_whole_path_parts() {
        let digest = format!("sha256:{}", "a1".repeat(32));
        for (text, image, expected) in [
            ("docker.io", "nginx", true),
            ("docker.io", "nginx:1.27", true),
            ("docker.io/library", "nginx", true),
            ("docker.io/library", "docker.io/nginx", true),
            ("index.docker.io/library", "nginx", true),
            ("docker.io/library", "index.docker.io/library/nginx", true),
            ("docker.io/library/nginx", "nginx", true),
            ("docker.io/library", "team/nginx", false),
            ("docker.io/team", "team/nginx", true),
            ("docker.io", "docker.io.evil.example/x", false),
            ("docker.io", "docker.io:5000/x", false),
            ("docker.io", "evil.example/docker.io/x", false),
            ("docker.io", "localhost/x", false),
            ("ghcr.io/team", "ghcr.io/team/tool:1", true),
            ("ghcr.io/team/", "ghcr.io/team/tool", true),
            ("ghcr.io/team", "ghcr.io/team", true),
            ("ghcr.io/team", "ghcr.io/teammate/tool", false),
            ("ghcr.io/team", "ghcr.io/Team/tool", false),
            ("ghcr.io/team", "GHCR.IO/team/tool", true),
            ("GHCR.io/team", "ghcr.io/team/tool", true),
            ("ghcr.io", "ghcr.io./team/tool", false),
            ("MYHOST/team", "MyHost/team/tool", true),
            ("MYHOST/team", "myhost/team/tool", false),
            ("ghcr.io", "ghcr.io:443/team/tool", false),
            ("registry.example.com:5000/team", "registry.example.com:5000/team/a:1", true),
            ("registry.example.com:5000/team", "registry.example.com/team/a:5000", false),
            ("localhost:5000", "localhost:5000/a", true),
            ("ghcr.io/team", "ghcr.io/team/../evil/tool", false),
            ("ghcr.io/team", "ghcr.io/team//tool", false),
            ("ghcr.io/team", "ghcr.io/team/tool ", false),
            ("ghcr.io/team", " ghcr.io/team/tool", false),
            ("ghcr.io/team", "ghcr.io/team/tool@evil.example/x", false),
            ("ghcr.io/team", "user@ghcr.io/team/tool", false),
            ("ghcr.io/team", "https://ghcr.io/team/tool", false),
            ("ghcr.io/team", "ghcr.io\\team/tool", false),
            ("ghcr.io/team", "ɢhcr.io/team/tool", false),
            ("docker.io", "", false),
            ("docker.io", ":tag", false),
            ("docker.io", "nginx:", false),
        ] {
            assert_eq!(prefix(text).holds(image), expected, "{text} {image:?}");
        }
        for image in [format!("ghcr.io/team/tool@{digest}"), format!("ghcr.io/team/tool:1@{digest}")] {
            assert!(prefix("ghcr.io/team").holds(&image), "{image}");
            assert!(!prefix("ghcr.io/other").holds(&image), "{image}");
        }
    }

    #[test]
    fn rejects_image_prefix_without_registry() {
        for text in
            ["", "nginx", "team/nginx", "ghcr.io/team:1", "ghcr.io/*", "https://ghcr.io", "ghcr.io//a", ".", "a.b/C"]
        {
            let error = ImagePrefix::try_from(text.to_owned()).unwrap_err();
            assert!(error.contains("expected HOST or HOST/PATH"), "{text:?}: {error}");
        }
        assert_eq!(prefix("index.docker.io/team/").to_string(), "docker.io/team");
    }
}
