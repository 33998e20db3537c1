//! The shipped profiles, embedded in this program, so that they are available without a checkout.

/// A profile with its test cases, as text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shipped {
    pub(super) name: &'static str,
    pub(super) profile: &'static str,
    /// The file of the test cases, below `tests`.
    pub(super) file: &'static str,
    pub(super) cases: &'static str,
}

macro_rules! shipped {
    ($($name:literal: $cases:literal,)+) => {
        &[$(Shipped {
            name: $name,
            profile: include_str!(concat!("../../../../../profiles/", $name, "/profile.yaml")),
            file: $cases,
            cases: include_str!(concat!("../../../../../profiles/", $name, "/tests/", $cases)),
        },)+]
    };
}

/// All shipped profiles for pods, each with one file of its test cases.
pub(super) const ALL: &[Shipped] = shipped! {
    "agones-sdk": "cases.yaml",
    "annotate": "cases.yaml",
    "cloud-sql-proxy": "cases.yaml",
    "dapr": "containers.yaml",
    "deny-env": "cases.yaml",
    "eks-pod-identity": "cases.yaml",
    "istio": "cases.yaml",
    "linkerd": "whole.yaml",
    "log-shipper": "cases.yaml",
    "nginx": "cases.yaml",
    "otel-apache-httpd": "apache-httpd.yaml",
    "otel-collector-sidecar": "collector.yaml",
    "otel-dotnet": "dotnet.yaml",
    "otel-go": "go.yaml",
    "otel-java": "java.yaml",
    "otel-nginx": "nginx.yaml",
    "otel-nodejs": "nodejs.yaml",
    "otel-python": "python.yaml",
    "otel-sdk": "variables.yaml",
    "resource-defaults": "cases.yaml",
    "tumblr": "cases.yaml",
    "vault-agent": "cases.yaml",
    "wireguard": "cases.yaml",
};
