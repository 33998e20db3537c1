//! Another webhook changes the pod after Pillion. The API server then calls Pillion again, and the pod must contain
//! each injected part only once.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pillion_testkit::namespace::replica_address;
use pillion_testkit::{TestCa, eventually, https, isolated_with_crds, register_webhook};
use serde_json::{Value as Json, json};
use tokio::net::TcpListener;

use crate::rig::{Rig, SOON, annotation, bare_pod, names};

/// Returns the patch of the other webhook, which adds its own container. If Pillion has already injected, the patch
/// also changes Pillion's container and removes Pillion's volume.
fn change_pod(pod: &Json) -> Json {
    let ours = pod["spec"]["containers"].as_array().unwrap().iter().position(|c| c["name"] == "sidecar-nginx");
    let volume = pod["spec"]["volumes"].as_array().unwrap().iter().position(|v| v["name"] == "nginx-conf");
    let mut operations =
        vec![json!({"op": "add", "path": "/spec/containers/0", "value": {"name": "other", "image": "other:1"}})];
    if let (Some(ours), Some(volume)) = (ours, volume) {
        let path = format!("/spec/containers/{}/imagePullPolicy", ours + 1);
        operations.push(json!({"op": "replace", "path": path, "value": "Never"}));
        operations.push(json!({"op": "remove", "path": format!("/spec/volumes/{volume}")}));
    }
    json!(operations)
}

async fn serve_meddler(rig: &Rig, address: IpAddr) -> Result<()> {
    let ca = TestCa::new()?;
    let (cert, key) = ca.serving(&[&address.to_string()])?;
    let tls = https::server_config(cert.as_bytes(), key.as_bytes())?;
    let answer = async |body: Bytes| {
        let review: Json = serde_json::from_slice(&body).unwrap();
        let pod = &review["request"]["object"];
        let done = names(pod).contains(&"other".to_owned());
        let patch = if done { json!([]) } else { change_pod(pod) };
        let answer = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "response": {
                "uid": review["request"]["uid"], "allowed": true,
                "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string()),
            },
        });
        answer.to_string()
    };
    let listener = TcpListener::bind((address, 8443)).await?;
    tokio::spawn(https::serve(listener, tls, Router::new().route("/", post(answer))));
    let configuration = json!({
        // The API server calls webhook configurations in the order of their names, so it calls Pillion's configuration
        // first.
        "metadata": {"name": "zz-meddler"},
        "webhooks": [{
            "name": "meddler.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": "Fail", "reinvocationPolicy": "IfNeeded",
            "clientConfig": {"url": format!("https://{address}:8443/"), "caBundle": STANDARD.encode(ca.bundle_pem())},
            "namespaceSelector": {"matchLabels": {"meddled": "yes"}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        }],
    });
    register_webhook(&rig.control_plane.client(), &serde_json::from_value(configuration)?).await
}

#[test]
fn reinvocation_changes_nothing() {
    isolated_with_crds(|| async {
        let rig = Rig::start(1).await?;
        rig.label_namespace("team-a", "meddled", "yes").await?;
        serve_meddler(&rig, replica_address(9)).await?;
        let pod = eventually(SOON, "both webhooks are called", async || {
            let pod = rig.dry_run("team-a", &bare_pod("probe")).await?;
            ensure!(names(&pod).contains(&"other".to_owned()), "the other webhook changed nothing: {:?}", names(&pod));
            Ok(pod)
        })
        .await?;
        assert_eq!(names(&pod), ["other", "app", "sidecar-nginx"]);
        let ours = &pod["spec"]["containers"][2];
        assert_eq!(ours["imagePullPolicy"], "Never", "changes by the other webhook stay");
        let volumes = pod["spec"]["volumes"].as_array().context("volumes")?;
        assert_eq!(volumes.len(), 1, "the removed volume is added again, once: {volumes:?}");
        let record = annotation(&pod, "pillion.dev/injected").context("the record")?;
        assert_eq!(record.matches("/spec/volumes/nginx-conf").count(), 1, "{record}");

        // The last call restored the removed volume, so the replica logs this call as an injection.
        eventually(SOON, "all calls are in the log", async || {
            let log = rig.replicas[0].log_text()?;
            let calls = log.lines().filter(|line| line.contains("decided") && line.contains("name=probe"));
            ensure!(calls.clone().next_back().is_some_and(|line| line.contains("injected")), "{log}");
            ensure!(calls.count() >= 3, "{log}");
            Ok(())
        })
        .await
    });
}
