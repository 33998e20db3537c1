//! Follows the tutorial of the injector that the nginx profile replaces, with the namespace label of that tutorial. The
//! test labels a namespace, and creates a pod that requests the sidecar with an annotation.

use anyhow::ensure;
use pillion_testkit::{eventually, isolated_with_crds};
use serde_json::Value as Json;

use crate::direct::{Direct, review};
use crate::managed::Managed;
use crate::rig::{REQUEST_ANNOTATION, SOON, STATUS_ANNOTATION, annotation, bare_pod, names};

/// The namespace's label in the tutorial.
const LABEL: &str = "sidecar-injection=enabled";

/// The annotations of the pod: the request, and an annotation that injection must keep.
const OVERRIDES: &str = r#"{"apiVersion": "v1", "metadata": {"annotations": {
    "sidecar-injector-webhook.morven.me/inject": "yes", "kubernetes.io/psp": "restricted"}}}"#;

#[test]
fn replaced_injectors_tutorial_works() {
    isolated_with_crds(|| async {
        let managed = Managed::start_with_opt_in_label(LABEL).await?;
        let kubectl = &managed.rig.control_plane;
        kubectl.kubectl_ok(&["create", "namespace", "injection"]).await?;
        kubectl.kubectl_ok(&["label", "namespace", "injection", LABEL]).await?;
        let shown = kubectl.kubectl_ok(&["get", "namespace", "-L", "sidecar-injection"]).await?;
        ensure!(shown.lines().any(|line| line.starts_with("injection ") && line.ends_with("enabled")), "{shown}");

        let overrides = format!("--overrides={OVERRIDES}");
        let run = |name: &'static str| {
            let arguments = ["run", name, "--image=alpine", "-n", "injection", "--restart=Never", &overrides];
            [&arguments[..], &["--command", "--", "sleep", "infinity"]]
                .concat()
                .into_iter()
                .map(str::to_owned)
                .collect()
        };
        // The API server receives the label a moment later.
        managed.rig.wait_until_called("injection").await?;
        let arguments: Vec<String> = run("alpine");
        kubectl.kubectl_ok(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await?;
        let pod: Json = serde_json::from_str(
            &kubectl.kubectl_ok(&["get", "pod", "alpine", "-n", "injection", "-o", "json"]).await?,
        )?;
        ensure!(names(&pod) == ["alpine", "sidecar-nginx"], "{pod}");
        ensure!(annotation(&pod, STATUS_ANNOTATION) == Some("injected"), "{pod}");
        ensure!(
            annotation(&pod, REQUEST_ANNOTATION) == Some("yes")
                && annotation(&pod, "kubernetes.io/psp") == Some("restricted"),
            "{pod}"
        );

        // Creates a pod in a namespace without the label, and a pod without the annotation.
        let plain: Vec<String> = run("plain")
            .into_iter()
            .map(|word: String| if word == "injection" { "default".to_owned() } else { word })
            .collect();
        kubectl.kubectl_ok(&plain.iter().map(String::as_str).collect::<Vec<_>>()).await?;
        kubectl.kubectl_ok(&["run", "unasked", "--image=alpine", "-n", "injection", "--restart=Never"]).await?;
        for (name, namespace) in [("plain", "default"), ("unasked", "injection")] {
            let pod = kubectl.kubectl_ok(&["get", "pod", name, "-n", namespace, "-o", "json"]).await?;
            ensure!(names(&serde_json::from_str(&pod)?).len() == 1, "{pod}");
        }

        // The API server of the replaced injector's tutorial sent v1beta1 reviews, which must get v1beta1 responses.
        let direct = Direct::to(&managed.rig.replicas[0])?;
        let old = review("u", "injection", &bare_pod("old"));
        let old: Json =
            serde_json::from_str(&old.to_string().replace("admission.k8s.io/v1", "admission.k8s.io/v1beta1"))?;
        eventually(SOON, "v1beta1 reviews get v1beta1 responses", async || {
            let answer: Json = serde_json::from_str(&direct.answer("/mutate/enabled", &old).await?)?;
            ensure!(answer["apiVersion"] == "admission.k8s.io/v1beta1", "{answer}");
            ensure!(answer["response"]["patchType"] == "JSONPatch", "{answer}");
            Ok(())
        })
        .await
    });
}
