//! A policy that makes an API server watch all `ConfigMap` objects as parameters of policies, for as long as the API
//! server runs.
//!
//! After the last policy with a ConfigMap as its parameter is deleted, an API server reads no ConfigMap again until it
//! restarts ([kubernetes#130887](https://github.com/kubernetes/kubernetes/issues/130887), docs/guardrails.md). So the
//! policies of one test would not work in an API server that had policies of another test. This policy is never
//! deleted.

use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::eventually::eventually;

/// The name of the policy and of its binding.
pub(super) const NAME: &str = "testkit-watches-config-maps";
/// The only namespace to which the policy applies. No test creates objects in it.
const NAMESPACE: &str = "kube-node-lease";

/// How long the API server may take to apply the policy.
const LIMIT: Duration = Duration::from_mins(1);

/// Creates the policy and its binding, and waits until the API server applies them.
///
/// # Errors
/// The API server rejects an object, or does not apply the policy.
pub(super) async fn watch(client: &Client) -> anyhow::Result<()> {
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": {"name": NAME},
        "spec": {
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]},
                ],
            },
            "validations": [{"expression": "false"}],
        },
    }))?;
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
        "metadata": {"name": NAME},
        "spec": {
            "policyName": NAME,
            "paramRef": {"name": "none", "namespace": NAMESPACE, "parameterNotFoundAction": "Deny"},
            "validationActions": ["Deny"],
        },
    }))?;
    let create = PostParams::default();
    Api::all(client.clone()).create(&create, &policy).await.context("the API server rejects the policy")?;
    Api::all(client.clone()).create(&create, &binding).await.context("the API server rejects the binding")?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "probe"}}))?;
    eventually(LIMIT, "the policy applies", async || {
        let created = maps.create(&PostParams { dry_run: true, ..PostParams::default() }, &map).await;
        ensure!(created.is_err_and(|error| error.to_string().contains(NAME)), "it does not");
        Ok(())
    })
    .await
}
