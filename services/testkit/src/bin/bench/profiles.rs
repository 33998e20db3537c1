//! The profiles of the measurements. Each workload is a list of cluster profiles, as `kubectl` would apply them.

use serde_json::{Value, json};

/// The name and the source of a profile.
pub(crate) type ProfileText = (&'static str, &'static str);

/// Expands to the name and the source of a profile of the engine's own benchmark.
macro_rules! profile {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../engine/benches/profiles/", $name, ".json")))
    };
}

/// One profile: a sidecar, its volume and an annotation.
pub(crate) const ONE: &[ProfileText] = &[profile!("log-shipper")];
/// Three profiles with ten expressions, parameters, and environment variables for each container.
pub(crate) const THREE: &[ProfileText] =
    &[profile!("log-collector"), profile!("trace-agent"), profile!("secret-agent")];

/// The namespace of [`crate::REVIEW`].
pub(crate) const NAMESPACE: &str = "team-a";

/// The size of a cluster full of tenants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Full {
    pub(crate) namespaces: u32,
    /// The number of profiles: one cluster profile, and tenants' profiles in namespaces of their own.
    pub(crate) profiles: u32,
}

impl Full {
    /// Returns the name of the tenant namespace with this number.
    pub(crate) fn namespace(number: u32) -> String {
        format!("tenant-{number:05}")
    }

    /// Returns a JSON object with the metadata of all namespaces by name: typical labels and annotations.
    pub(crate) fn namespaces_file(self) -> String {
        let entries = (0..self.namespaces).map(|number| {
            let name = Self::namespace(number);
            let metadata = json!({
                "labels": {
                    "kubernetes.io/metadata.name": name,
                    "pillion.dev/injection": "enabled",
                    "pod-security.kubernetes.io/enforce": "baseline",
                    "team": format!("team-{}", number % 200),
                },
                "annotations": {"example.com/cost-center": format!("{:06}", number % 1_000)},
            });
            (name, metadata)
        });
        Value::Object(entries.collect()).to_string()
    }

    /// Returns the tenants' profiles as JSON, without the cluster profile.
    pub(crate) fn tenants_profiles(self) -> impl Iterator<Item = String> {
        (1..self.profiles).map(|number| tenants_profile(number - 1).to_string())
    }
}

/// Returns a typical tenant's profile of 1.5 KB with three expressions: a sidecar with its environment, a volume and an
/// annotation.
fn tenants_profile(number: u32) -> Value {
    let settings =
        (0..7).map(|index| json!({"name": format!("PROXY_SETTING_{index}"), "value": format!("{number}-{index}")}));
    let service = "${object.metadata.?labels[?'app.kubernetes.io/name'].orValue(primary.name)}";
    let env: Vec<_> = settings.chain([json!({"name": "PROXY_SERVICE", "value": service})]).collect();
    json!({
        "apiVersion": "pillion.dev/v1alpha1",
        "kind": "InjectionProfile",
        "metadata": {"name": "proxy", "namespace": Full::namespace(number)},
        "spec": {
            "description": format!("The proxy of tenant {number}, in front of every pod of its own"),
            "preconditions": [
                {"name": "pod-network", "expression": "!object.spec.?hostNetwork.orValue(false)"},
            ],
            "template": {
                "metadata": {"annotations": {"proxy.example.com/status": "injected into ${primary.name}"}},
                "spec": {
                    "containers": [{
                        "name": "proxy",
                        "image": format!("registry.example.com/tenant-{number}/proxy:2.{}.0", number % 40),
                        "imagePullPolicy": "IfNotPresent",
                        "args": ["--config=/etc/proxy/config.yaml", "--admin=127.0.0.1:9901", "--log-level=warn"],
                        "env": env,
                        "ports": [{"name": "proxy", "containerPort": 15_001}],
                        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
                        "readinessProbe": {"httpGet": {"path": "/ready", "port": 15_021}, "periodSeconds": 5},
                        "securityContext": {
                            "allowPrivilegeEscalation": false,
                            "readOnlyRootFilesystem": true,
                            "capabilities": {"drop": ["ALL"]},
                        },
                        "volumeMounts": [{"name": "proxy-config", "mountPath": "/etc/proxy", "readOnly": true}],
                    }],
                    "volumes": [{"name": "proxy-config", "configMap": {"name": "proxy-config"}}],
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_have_documented_size() {
        let full = Full { namespaces: 3, profiles: 3 };
        let texts: Vec<_> = full.tenants_profiles().collect();
        assert_eq!(texts.len(), 2);
        for text in &texts {
            assert!((1_400..1_600).contains(&text.len()), "{} bytes: {text}", text.len());
            assert_eq!(text.matches("${").count() + text.matches("\"expression\"").count(), 3, "{text}");
        }
        assert_ne!(texts[0], texts[1]);
    }

    #[test]
    fn profile_names_match_their_sources() {
        for (name, text) in ONE.iter().chain(THREE) {
            let profile: Value = serde_json::from_str(text).unwrap();
            assert_eq!(profile["metadata"]["name"], *name);
            assert_eq!(profile["spec"]["template"]["spec"]["containers"][0]["name"], *name);
        }
    }

    #[test]
    fn review_is_from_the_namespace() {
        let review: Value = serde_json::from_str(crate::REVIEW).unwrap();
        assert_eq!(review["request"]["namespace"], NAMESPACE);
    }
}
