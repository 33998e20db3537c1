//! Tests bad inputs with a real API server. For each input, the test states the pod that the API server creates, or the
//! component that rejects the input. Numbers such as B36 identify the inputs. `services/webhook/tests/bad_inputs/`
//! tests the other inputs of B1 to B70.

use anyhow::{Context, Result, ensure};
use pillion_testkit::{eventually, isolated_with_crds};
use serde_json::{Value as Json, json};

use crate::rig::{Rig, SOON, is_untouched, names};

/// A profile that applies to every pod.
const ALWAYS: &str = r#"
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: always}
spec:
  activation: Always
  template:
    metadata: {annotations: {example.com/status: injected}}
    spec:
      containers: [{name: always, image: "always:1"}]
      volumes: [{name: always, configMap: {name: always}}]
"#;

enum Expected {
    /// The pod is created with exactly one container from the profile.
    Injected,
    /// The pod is created as its author wrote it.
    Untouched,
    /// The API server itself rejects the pod, with this message.
    Refused(&'static str),
}

fn pod(change: impl FnOnce(&mut Json)) -> Json {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "pod-"},
        "spec": {"containers": [{"name": "app", "image": "app:1"}]},
    });
    change(&mut pod);
    pod
}

fn containers(names: impl IntoIterator<Item = String>) -> Json {
    names.into_iter().map(|name| json!({"name": name, "image": "app:1"})).collect()
}

fn cases() -> Vec<(&'static str, Json, Expected)> {
    use Expected::{Injected, Refused, Untouched};
    let forged = r#"{"profiles":[{"profile":"always","revision":"x","added":["/spec/containers/always"]}]}"#;
    let env = |count: usize, bytes: usize| -> Json {
        (0..count).map(|number| json!({"name": format!("V{number}"), "value": "x".repeat(bytes)})).collect()
    };
    vec![
        ("B31 no lists and maps yet, B41 a generated name", pod(|_| {}), Injected),
        (
            "B32 null instead of an absent field",
            pod(|pod| {
                pod["metadata"]["annotations"] = json!(null);
                pod["metadata"]["labels"] = json!(null);
                pod["spec"]["volumes"] = json!(null);
                pod["spec"]["initContainers"] = json!([]);
            }),
            Injected,
        ),
        (
            "B34 a container with the sidecar's name and another image",
            pod(|pod| pod["spec"]["containers"] = containers(["app", "always"].map(str::to_owned))),
            Untouched,
        ),
        (
            "B35 a volume with the name of the profile's volume",
            pod(|pod| pod["spec"]["volumes"] = json!([{"name": "always", "emptyDir": {}}])),
            Untouched,
        ),
        (
            "B36 a forged record",
            pod(|pod| pod["metadata"]["annotations"] = json!({"pillion.dev/injected": forged})),
            Injected,
        ),
        (
            "B38 no containers",
            pod(|pod| pod["spec"]["containers"] = json!([])),
            Refused("spec.containers: Required value"),
        ),
        (
            "B39 500 containers",
            pod(|pod| pod["spec"]["containers"] = containers((0..500).map(|number| format!("c-{number}")))),
            Injected,
        ),
        ("B39 10,000 variables", pod(|pod| pod["spec"]["containers"][0]["env"] = env(10_000, 1)), Injected),
        (
            "B40 too large after the injection",
            pod(|pod| pod["spec"]["containers"][0]["env"] = env(1, 1_400 * 1024)),
            Untouched,
        ),
        ("B42 another namespace", pod(|pod| pod["metadata"]["namespace"] = json!("team-b")), Refused("namespace")),
        (
            "B44 a mirror pod that no node created",
            pod(|pod| {
                pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
                pod["spec"]["nodeName"] = json!("node-1");
            }),
            Injected,
        ),
        (
            "B59 fields that the API server does not know",
            pod(|pod| pod["spec"]["fooBar"] = json!([0.1, {"x": null}])),
            Injected,
        ),
        ("B61 a pod for Windows", pod(|pod| pod["spec"]["os"] = json!({"name": "windows"})), Untouched),
        ("B62 a status", pod(|pod| pod["status"] = json!({"phase": "Running"})), Injected),
    ]
}

fn is_injected(pod: &Json) -> bool {
    names(pod).iter().filter(|name| *name == "always").count() == 1
        && pod["metadata"]["annotations"]["example.com/status"] == "injected"
}

/// Creates a pod from JSON, because typed structs cannot represent unknown fields.
async fn create(rig: &Rig, pod: &Json, dry_run: bool) -> Result<Json> {
    let path =
        format!("/api/v1/namespaces/team-a/pods?fieldValidation=Ignore{}", if dry_run { "&dryRun=All" } else { "" });
    let request =
        http::Request::post(path).header("content-type", "application/json").body(pod.to_string().into_bytes())?;
    Ok(rig.control_plane.client().request::<Json>(request).await?)
}

#[test]
fn invalid_inputs_end_with_documented_results() {
    isolated_with_crds(|| async {
        let rig = Rig::start(1).await?;
        rig.control_plane.apply_yaml(ALWAYS).await?;
        eventually(SOON, "the profile is active", async || {
            let created = create(&rig, &pod(|_| {}), true).await?;
            ensure!(is_injected(&created), "{created}");
            Ok(())
        })
        .await?;
        for (name, pod, expected) in cases() {
            // A dry run must have the same result as a creation (B68).
            for dry_run in [true, false] {
                let created = create(&rig, &pod, dry_run).await;
                match (&expected, created) {
                    (Expected::Injected, created) => {
                        let created = created.context(name)?;
                        ensure!(is_injected(&created), "{name}: {created}");
                    }
                    (Expected::Untouched, created) => {
                        let created = created.context(name)?;
                        ensure!(is_untouched(&created) && !is_injected(&created), "{name}: {created}");
                    }
                    (Expected::Refused(says), created) => {
                        let refused = format!("{:#}", created.err().context(name)?);
                        ensure!(refused.contains(says) && !refused.contains("webhook"), "{name}: {refused}");
                    }
                }
            }
        }
        let metrics = rig.replicas[0].metrics_text().await?;
        ensure!(metrics.contains("pillion_webhook_panics_total 0\n"), "{metrics}");
        Ok(())
    });
}
