//! Tests validations through the API server: of final objects, of updates, and of subresources. The webhook
//! distinguishes injected parts from those of the author.

use anyhow::{Context, Result, ensure};
use axum::http::Request;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::api::{Api, PostParams};
use pillion_api::ProfileSpec;
use pillion_api::webhook_configuration::{Settings, Validated, validating, validating_rules};
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{eventually, isolated_with_crds};
use serde_json::{Value as Json, json};

use crate::rig::{Rig, SOON, bare_pod, names, refusal};

/// Returns a profile that rejects environment variables, except in injected containers.
fn deny_env() -> Json {
    json!({
        "target": {"version": "v1", "resources": ["pods", "pods/ephemeralcontainers"], "operations": ["CREATE", "UPDATE"]},
        "activation": "Always",
        "optOut": "Forbidden",
        "validations": [
            {"expression": "containers.all(c, c.ours || (!has(c.env) && !has(c.envFrom)))",
             "message": "containers may not set env or envFrom", "code": 402, "fieldPath": ".spec.containers"},
            {"expression": "containers.all(c, c.?env.orValue([]).size() == 0)", "message": "env of ${object.metadata.name}", "action": "Audit"},
        ],
    })
}

/// Returns a profile whose sidecar has an environment variable.
fn logger() -> Json {
    let container = json!({"name": "logger", "image": "logger:1", "env": [{"name": "A", "value": "b"}]});
    json!({"activation": "Always", "template": {"spec": {"containers": [container]}}})
}

/// Starts a cluster with both profiles. The API server also calls the webhook for validation.
async fn start() -> Result<Rig> {
    let rig = Rig::start(1).await?;
    for (name, spec) in [("deny-env", deny_env()), ("logger", logger())] {
        let profile = json!({"apiVersion": "pillion.dev/v1alpha1", "kind": "ClusterInjectionProfile", "metadata": {"name": name}, "spec": spec});
        rig.control_plane.apply_yaml(&profile.to_string()).await?;
    }
    let client = rig.control_plane.client();
    let there = Api::<MutatingWebhookConfiguration>::all(client.clone()).get("pillion").await?;
    let first = there.webhooks.into_iter().flatten().next().context("an entry")?;
    let bundle = first.client_config.ca_bundle.context("a bundle")?.0;
    let specs: [ProfileSpec; 2] = [serde_json::from_value(deny_env())?, serde_json::from_value(logger())?];
    let validated = Validated { everywhere: validating_rules(&specs), ..Validated::default() };
    let configuration = validating(&Settings::new(NAMESPACE, bundle), &validated).context("rules")?;
    Api::<ValidatingWebhookConfiguration>::all(client).create(&PostParams::default(), &configuration).await?;
    eventually(SOON, "the API server calls the webhook, and the sidecar is injected", async || {
        ensure!(
            names(&rig.dry_run("team-a", &bare_pod("probe")).await?).contains(&"logger".to_owned()),
            "no sidecar yet"
        );
        refusal(rig.dry_run("team-a", &with_env("probe")).await).map(|_| ())
    })
    .await?;
    Ok(rig)
}

fn with_env(name: &str) -> Json {
    let mut pod = bare_pod(name);
    pod["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "b"}]);
    pod
}

#[test]
fn validation_distinguishes_injected_containers() {
    isolated_with_crds(|| async {
        let rig = start().await?;
        let pod = rig.create("team-a", &bare_pod("web")).await?;
        ensure!(names(&pod) == ["app", "logger", "sidecar-nginx"], "{pod}");

        let status = refusal(rig.create("team-a", &with_env("other")).await)?;
        ensure!(status["code"] == 402, "{status}");
        let message = "denied the request: the object does not pass a validation: profile deny-env: containers may not set env or envFrom";
        ensure!(status["message"].as_str().unwrap().ends_with(message), "{status}");
        ensure!(status["details"]["causes"][0]["field"] == "spec.containers", "{status}");

        // A container is not treated as injected because of a copied record.
        let mut copied = with_env("copied");
        let record = pod["metadata"]["annotations"]["pillion.dev/injected"].as_str().context("a record")?;
        copied["metadata"]["annotations"]["pillion.dev/injected"] = json!(record.replace("/logger", "/app"));
        ensure!(refusal(rig.create("team-a", &copied).await)?["code"] == 402);
        // A pod cannot skip the validations of a profile by opting out, or by excluding the profile by name.
        let mut out = with_env("out");
        out["metadata"]["labels"] = json!({"pillion.dev/inject": "false"});
        out["metadata"]["annotations"]["pillion.dev/profiles"] = json!("-deny-env");
        ensure!(refusal(rig.create("team-a", &out).await)?["code"] == 402);

        // In an update, the sidecar is still treated as injected, unless the update changes the record.
        rig.patch("team-a", "web", &json!({"metadata": {"labels": {"a": "b"}}})).await?;
        let forged = json!({"metadata": {"annotations": {"pillion.dev/injected": record.replace("/logger", "/x")}}});
        ensure!(refusal(rig.patch("team-a", "web", &forged).await)?["code"] == 402);

        for (name, env, passes) in
            [("debug", json!(null), true), ("logger-2", json!([{"name": "A", "value": "b"}]), false)]
        {
            let mut container = json!({"name": name, "image": "debug:1"});
            if !env.is_null() {
                container["env"] = env;
            }
            let patch = json!({"spec": {"ephemeralContainers": [container]}}).to_string();
            let request = Request::patch("/api/v1/namespaces/team-a/pods/web/ephemeralcontainers")
                .header("content-type", "application/strategic-merge-patch+json")
                .body(patch.into_bytes())?;
            let result = rig.control_plane.client().request_text(request).await;
            ensure!(result.is_ok() == passes, "{name}: {result:?}");
        }
        let metrics = rig.replicas[0].metrics_text().await?;
        ensure!(
            metrics.contains("pillion_webhook_requests_total{endpoint=\"validate_enabled\",outcome=\"validated\"}")
        );
        ensure!(
            metrics.contains(
                "pillion_webhook_decisions_total{profile=\"deny-env\",outcome=\"denied\",reason=\"validation_failed\"}"
            ),
            "{metrics}"
        );
        Ok(())
    });
}
