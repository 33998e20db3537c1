//! A release of Pillion in a cluster, and the names of all its objects.
//!
//! Every name derives from the release's name, so that releases do not write the same objects. The names must not
//! change: RBAC rules refer to them, and users type them.

use pillion_api::names::{is_dns_label, is_dns_name};

/// The default domain of cluster-internal names.
pub const DEFAULT_CLUSTER_DOMAIN: &str = "cluster.local";

/// Length of the longest suffix of an object name, `-trust-probe`, in bytes. A name with its suffix must be a DNS
/// label.
const SUFFIX_BYTES: usize = 12;

/// A release: its name, its namespace and the cluster's domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    name: String,
    namespace: String,
    cluster_domain: String,
}

/// The name, namespace or domain is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// The name or the namespace is not a DNS label, or too long.
    #[error(
        "the {what} {value:?} of the release is not a DNS label of at most {limit} bytes: lower-case letters, digits, -"
    )]
    NotALabel {
        /// `name` or `namespace`.
        what: &'static str,
        /// The invalid value.
        value: String,
        /// Maximum number of bytes.
        limit: usize,
    },
    /// The domain is not a DNS name.
    #[error("the cluster's domain {0:?} is not a DNS name, such as {DEFAULT_CLUSTER_DOMAIN}")]
    NotADomain(String),
}

impl Release {
    /// Maximum bytes of a release's name.
    pub(crate) const MAX_NAME: usize = 63 - SUFFIX_BYTES;

    /// Creates a release with this name, namespace and cluster domain.
    ///
    /// # Errors
    /// The name, the namespace or the domain is invalid.
    pub fn new(
        name: impl Into<String>,
        namespace: impl Into<String>,
        cluster_domain: impl Into<String>,
    ) -> Result<Self, ReleaseError> {
        let (name, namespace, cluster_domain) = (name.into(), namespace.into(), cluster_domain.into());
        for (what, value, limit) in [("name", &name, Self::MAX_NAME), ("namespace", &namespace, 63)] {
            if value.len() > limit || !is_dns_label(value) {
                return Err(ReleaseError::NotALabel { what, value: value.clone(), limit });
            }
        }
        if !is_dns_name(&cluster_domain) {
            return Err(ReleaseError::NotADomain(cluster_domain));
        }
        Ok(Self { name, namespace, cluster_domain })
    }

    /// Returns the release's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the namespace of all namespaced objects of the release.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the name of the Service in front of the webhook's replicas.
    #[must_use]
    pub fn service(&self) -> &str {
        &self.name
    }

    /// Returns the name of the Service of the controller's trust probe.
    #[must_use]
    pub fn trust_probe_service(&self) -> String {
        format!("{}-trust-probe", self.name)
    }

    /// Returns the name of the Secret with the CAs, their keys and the record of the rotation. Replicas cannot read the
    /// Secret.
    #[must_use]
    pub fn ca_secret(&self) -> String {
        format!("{}-ca", self.name)
    }

    /// Returns the name of the Secret with the serving certificate of the replicas.
    #[must_use]
    pub fn serving_secret(&self) -> String {
        format!("{}-serving", self.name)
    }

    /// Returns the name of the Lease of the controllers' leader election.
    #[must_use]
    pub fn lease(&self) -> String {
        format!("{}-controller", self.name)
    }

    /// Returns the name of the controllers' service account.
    #[must_use]
    pub fn controller(&self) -> String {
        format!("{}-controller", self.name)
    }

    /// Returns the name of the `MutatingWebhookConfiguration` and of the `ValidatingWebhookConfiguration`.
    #[must_use]
    pub fn configuration(&self) -> &str {
        &self.name
    }

    /// Returns the name of the `ConfigMap` with the kill switch.
    #[must_use]
    pub fn switch(&self) -> &str {
        &self.name
    }

    /// Returns the names in a replica's certificate: first the name that the API server uses, then the full name for
    /// other clients in the cluster.
    #[must_use]
    pub fn server_names(&self) -> [String; 2] {
        self.names_of(self.service())
    }

    /// Returns the names in the trust probe's certificate, in the order of [`Self::server_names`].
    #[must_use]
    pub fn trust_probe_names(&self) -> [String; 2] {
        self.names_of(&self.trust_probe_service())
    }

    fn names_of(&self, service: &str) -> [String; 2] {
        let short = format!("{service}.{}.svc", self.namespace);
        let long = format!("{short}.{}", self.cluster_domain);
        [short, long]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_release_are_valid() {
        let longest = "p".repeat(Release::MAX_NAME);
        for name in ["pillion", &longest] {
            let release = Release::new(name, "pillion-system", DEFAULT_CLUSTER_DOMAIN).unwrap();
            let derived =
                [release.trust_probe_service(), release.ca_secret(), release.serving_secret(), release.lease()];
            let mut distinct = derived.to_vec();
            distinct.sort();
            distinct.dedup();
            assert_eq!(distinct.len(), derived.len());
            assert!(derived.iter().all(|derived| is_dns_label(derived) && derived.starts_with(name)), "{derived:?}");
        }
    }

    #[test]
    fn replicas_and_trust_probe_have_different_names() {
        let release = Release::new("pillion", "pillion-system", "example.org").unwrap();
        assert_eq!(release.server_names(), ["pillion.pillion-system.svc", "pillion.pillion-system.svc.example.org"]);
        assert_eq!(release.trust_probe_names()[0], "pillion-trust-probe.pillion-system.svc");
    }

    #[test]
    fn invalid_names_are_rejected_with_reason() {
        let too_long = "p".repeat(Release::MAX_NAME + 1);
        for (name, namespace, domain, wrong) in [
            ("Pillion", "a", "cluster.local", "the name \"Pillion\""),
            (too_long.as_str(), "a", "cluster.local", "the name \"ppp"),
            ("pillion", "", "cluster.local", "the namespace \"\""),
            ("pillion", "a", "cluster..local", "cluster..local"),
        ] {
            let error = Release::new(name, namespace, domain).unwrap_err().to_string();
            assert!(error.contains(wrong), "{error}");
        }
    }
}
