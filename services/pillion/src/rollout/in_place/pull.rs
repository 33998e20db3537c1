//! Pulls an image to a node before a container there is changed to it.
//!
//! A pod with this image is created on the node. Nothing is known about the programs in the image, so the pod's command
//! does not exist. The kubelet pulls the image, and fails to start the container. Which of both fails shows whether the
//! image is on the node.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, DynamicObject, PostParams};
use kube::{Api, Client};
use pillion_api::names::INJECT_LABEL;
use pillion_engine::in_place::ContainerChange;
use serde_json::{Value, json};
use tokio::sync::Mutex;

/// How long a pull may take.
const PULL_LIMIT: Duration = Duration::from_mins(10);
/// How often to check the progress.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The name of the container in the pod that pulls an image.
const CONTAINER: &str = "pull";
/// The command that no image contains.
const NO_COMMAND: &str = "/pillion-pulls-only-the-image";
/// The waiting reasons that mean that the image cannot be pulled.
pub(super) const PULL_FAILURES: [&str; 4] =
    ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"];

/// The images that are known to be on a node, each as a pair of node and image.
#[derive(Debug, Default)]
pub(super) struct Pulled(Mutex<BTreeSet<(String, String)>>);

/// The progress of a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pull {
    Waiting,
    Done,
    Failed(String),
}

impl Pulled {
    /// Pulls the new images of the changes to the node of a pod. Calls `show` with what it waits for.
    ///
    /// # Errors
    /// An image cannot be pulled, or the pod that pulls it cannot be created.
    pub(super) async fn pull(
        &self,
        client: &Client,
        pod: &DynamicObject,
        changes: &[ContainerChange],
        show: &dyn Fn(&str),
    ) -> anyhow::Result<()> {
        let node = pod.data.pointer("/spec/nodeName").and_then(Value::as_str).context("it has no node yet")?;
        for (_, image) in changes.iter().filter_map(|change| change.image.as_ref()) {
            // The lock is held during the pull, so that an image is pulled only once for many pods of a node.
            let mut known = self.0.lock().await;
            let key = (node.to_owned(), image.clone());
            if known.contains(&key) {
                continue;
            }
            if !is_on_node(client, node, image).await {
                show(&format!("pulling {image} on node {node}"));
                pull(client, pod, node, image)
                    .await
                    .with_context(|| format!("{image} cannot be pulled on node {node}"))?;
            }
            known.insert(key);
        }
        Ok(())
    }
}

/// Whether the node reports the image. A node reports only its largest images, and not every user may read nodes.
async fn is_on_node(client: &Client, node: &str, image: &str) -> bool {
    let Ok(node) = Api::<Node>::all(client.clone()).get(node).await else { return false };
    let images = node.status.and_then(|status| status.images).unwrap_or_default();
    images.iter().flat_map(|image| image.names.iter().flatten()).any(|name| name == image)
}

async fn pull(client: &Client, pod: &DynamicObject, node: &str, image: &str) -> anyhow::Result<()> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let puller: Pod = serde_json::from_value(puller(pod, node, image)).context("its pull secrets cannot be read")?;
    let created = pods.create(&PostParams::default(), &puller).await.context("the pod that pulls it is rejected")?;
    let name = created.metadata.name.unwrap_or_default();
    let waiting = async {
        loop {
            let now = pods.get(&name).await.context("the pod that pulls it cannot be read")?;
            match progress(&serde_json::to_value(now.status).unwrap_or_default()) {
                Pull::Waiting => tokio::time::sleep(LOOK_EVERY).await,
                Pull::Done => return Ok(()),
                Pull::Failed(why) => bail!("{why}"),
            }
        }
    };
    let outcome = tokio::time::timeout(PULL_LIMIT, waiting).await;
    // If the deletion fails, a pod that has ended remains.
    let _ = pods.delete(&name, &DeleteParams::default().grace_period(0)).await;
    outcome.unwrap_or_else(|_| bail!("not within {} minutes", PULL_LIMIT.as_secs() / 60))
}

/// Returns the pod that pulls an image. It complies with the `restricted` Pod Security Standard.
fn puller(pod: &DynamicObject, node: &str, image: &str) -> Value {
    json!({
        "metadata": {
            "generateName": "pillion-pull-",
            "labels": {"app.kubernetes.io/managed-by": "pillion", INJECT_LABEL: "false"},
        },
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 0,
            "imagePullSecrets": pod.data.pointer("/spec/imagePullSecrets").cloned().unwrap_or_else(|| json!([])),
            "tolerations": [{"operator": "Exists"}],
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": CONTAINER, "image": image, "imagePullPolicy": "IfNotPresent", "command": [NO_COMMAND],
                "resources": {"requests": {"cpu": "1m", "memory": "4Mi"}, "limits": {"cpu": "10m", "memory": "16Mi"}},
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    })
}

fn progress(status: &Value) -> Pull {
    let text = |pointer: &str| status.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    // In some namespaces, profiles add containers to this pod too.
    let statuses = status.get("containerStatuses").and_then(Value::as_array).into_iter().flatten();
    let of_image = statuses.into_iter().find(|status| status.get("name").is_some_and(|name| name == CONTAINER));
    let state = of_image.and_then(|status| status.get("state")).unwrap_or(&Value::Null);
    let of_state = |pointer: &str| state.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    if let reason @ ("UnexpectedAdmissionError" | "OutOfcpu" | "OutOfmemory" | "OutOfpods") = text("/reason") {
        return Pull::Failed(format!("{reason}: {}", text("/message")));
    }
    let waiting = of_state("/waiting/reason");
    if PULL_FAILURES.contains(&waiting) {
        return Pull::Failed(format!("{waiting}: {}", of_state("/waiting/message")));
    }
    // The kubelet creates a container only if the image is on the node.
    let has_tried =
        state.get("terminated").is_some() || ["RunContainerError", "CreateContainerError"].contains(&waiting);
    if has_tried { Pull::Done } else { Pull::Waiting }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_start_shows_pulled_image() {
        let added = json!({"name": "added", "state": {"terminated": {"reason": "Error"}}});
        let of = |state: Value| progress(&json!({"containerStatuses": [added, {"name": CONTAINER, "state": state}]}));
        assert_eq!(of(json!({"waiting": {"reason": "ContainerCreating"}})), Pull::Waiting);
        assert_eq!(of(json!({"terminated": {"reason": "StartError", "exitCode": 128}})), Pull::Done);
        assert_eq!(of(json!({"waiting": {"reason": "RunContainerError"}})), Pull::Done);
        let failed = of(json!({"waiting": {"reason": "ErrImagePull", "message": "not found"}}));
        assert_eq!(failed, Pull::Failed("ErrImagePull: not found".to_owned()));
        assert_eq!(progress(&Value::Null), Pull::Waiting);
        let full = json!({"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough resource"});
        assert!(matches!(progress(&full), Pull::Failed(_)));
    }
}
