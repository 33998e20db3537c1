//! Pulls an image to a node before a container there is changed to it. Otherwise the kubelet would stop the running
//! container before it pulls the new image.
//!
//! A pod with this image is created on the node. No program of the image may run, so the pod has a command that cannot
//! be started. If the kubelet fails to start the container, it has pulled the image. If it fails to pull the image, the
//! pod's status has the reason. The name of the pod depends only on the node, the image, the pull policy and the
//! credentials, so another controller finds the same pod. The pod is kept for a while, because it shows that the image
//! is on the node.

use std::collections::HashMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::{Api, Client};
use pillion_api::names::INJECT_LABEL;
use pillion_engine::in_place::ContainerChange;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::client::lists;

/// A command that cannot be started: it is a directory in every image. So no program of the image runs.
const NO_COMMAND: &str = "/";
/// The name of the container in the pod that pulls an image.
const CONTAINER: &str = "pull";
/// The label of the pods that pull images.
const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
/// The value of the label.
const COMPONENT: &str = "image-pull";
/// The waiting reasons that mean that an image cannot be pulled.
pub(super) const PULL_FAILURES: [&str; 4] =
    ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"];
/// The waiting reasons that mean that the image is on the node, and the command cannot be started.
const START_FAILURES: [&str; 3] = ["RunContainerError", "CreateContainerError", "StartError"];
/// How long a pull may take.
pub(super) const PULL_LIMIT: Duration = Duration::from_mins(10);
/// How long an image counts as present on a node. The kubelet may delete unused images.
pub(super) const FRESH_FOR: Duration = Duration::from_mins(5);
/// The pause before a failed pull is tried again.
const RETRY_AFTER: Duration = Duration::from_mins(1);

/// The namespace of the pods that pull images, and the credentials for registries.
#[derive(Clone, Debug)]
pub struct PullSite {
    /// The namespace.
    pub namespace: String,
    /// The value of `spec.imagePullSecrets`.
    pub secrets: Value,
    /// The service account. `None`: the default one of the namespace. If `secrets` is empty, the API server adds the
    /// `imagePullSecrets` of the service account.
    pub service_account: Option<String>,
}

/// The state of an image on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageState {
    /// The image is on the node.
    Present,
    /// The image is being pulled, or other pulls come first.
    Waiting,
    /// The image cannot be pulled, for this reason.
    Failed(String),
}

/// How long a pull counts as concurrent. A registry that does not end its response delays other pulls for this time.
const SLOT_TIME: Duration = Duration::from_mins(2);

/// The maximum numbers of concurrent pulls.
#[derive(Clone, Copy, Debug)]
pub struct PullLimits {
    /// For the pods of all namespaces.
    pub total: usize,
    /// For the pods of one namespace.
    pub per_namespace: usize,
}

impl Default for PullLimits {
    fn default() -> Self {
        Self { total: 4, per_namespace: 4 }
    }
}

/// The images that are or were pulled, by the name of the pod that pulls them.
#[derive(Debug, Default)]
pub struct Puller {
    limits: PullLimits,
    known: HashMap<String, Pull>,
}

/// A pull of an image to a node.
#[derive(Debug)]
struct Pull {
    /// The namespace of the pod that needs the image.
    namespace: Box<str>,
    /// When the pull began or, if it is over, when it ended.
    since: Instant,
    /// When the caller last needed the image.
    asked: Instant,
    state: ImageState,
}

impl Puller {
    /// Creates a puller with these limits.
    #[must_use]
    pub fn new(limits: PullLimits) -> Self {
        Self { limits, known: HashMap::new() }
    }

    /// Returns the state of the new images on the node of a pod: the first state that is not [`ImageState::Present`].
    /// Begins to pull the images if necessary. For an image that is not present, the text names the image and the node.
    ///
    /// # Errors
    /// The API server is unavailable or rejects a request.
    pub async fn images(
        &mut self,
        client: &Client,
        pod: &DynamicObject,
        changes: &[ContainerChange],
        site: &PullSite,
    ) -> kube::Result<(ImageState, String)> {
        let Some(node) = pod.data.pointer("/spec/nodeName").and_then(Value::as_str) else {
            return Ok((ImageState::Waiting, "the pod is not scheduled yet".to_owned()));
        };
        for (change, image) in changes.iter().filter_map(|change| Some((change, &change.image.as_ref()?.1))) {
            let policy = pull_policy(pod, change);
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let text = match self.state(client, namespace, (node, image, policy), site).await? {
                ImageState::Present => continue,
                ImageState::Waiting => (ImageState::Waiting, format!("pulling {image} on node {node}")),
                ImageState::Failed(why) => {
                    let text = format!("{image} cannot be pulled on node {node}: {why}");
                    (ImageState::Failed(why), text)
                }
            };
            return Ok(text);
        }
        Ok((ImageState::Present, String::new()))
    }

    /// Whether another pull may begin for a pod of this namespace.
    fn may_begin(&self, namespace: &str) -> bool {
        let is_waiting = |pull: &&Pull| pull.state == ImageState::Waiting && pull.since.elapsed() < SLOT_TIME;
        let waiting = || self.known.values().filter(is_waiting);
        waiting().count() < self.limits.total
            && waiting().filter(|pull| *pull.namespace == *namespace).count() < self.limits.per_namespace
    }

    async fn state(
        &mut self,
        client: &Client,
        namespace: &str,
        (node, image, policy): (&str, &str, &str),
        site: &PullSite,
    ) -> kube::Result<ImageState> {
        let now = Instant::now();
        self.known.retain(|_, pull| match pull.state {
            ImageState::Present => now.duration_since(pull.since) < FRESH_FOR,
            ImageState::Failed(_) => now.duration_since(pull.since) < RETRY_AFTER,
            // A pull that is no longer needed must not delay others.
            ImageState::Waiting => now.duration_since(pull.asked) < RETRY_AFTER,
        });
        let pods = Api::<Pod>::namespaced(client.clone(), &site.namespace);
        let name = name(node, image, policy, site);
        let pull = |state| Pull { namespace: namespace.into(), since: now, asked: now, state };
        let since = match self.known.get_mut(&name) {
            Some(known) if known.state != ImageState::Waiting => return Ok(known.state.clone()),
            Some(known) => {
                known.asked = now;
                known.since
            }
            None => {
                if !self.may_begin(namespace) {
                    return Ok(ImageState::Waiting);
                }
                if policy != "Always" && is_listed(client, node, image).await {
                    self.known.insert(name, pull(ImageState::Present));
                    return Ok(ImageState::Present);
                }
                match create(&pods, node, image, policy, site).await {
                    Ok(()) => {}
                    // For example, a quota or a policy of the namespace does not allow the pod.
                    Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) => {
                        let state =
                            ImageState::Failed(format!("the pod that pulls it is rejected: {}", status.message));
                        self.known.insert(name, pull(state.clone()));
                        return Ok(state);
                    }
                    Err(error) => return Err(error),
                }
                self.known.insert(name.clone(), pull(ImageState::Waiting));
                now
            }
        };
        let Some(pod) = pods.get_opt(&name).await? else {
            // The pod was deleted, for example because its node was drained.
            self.known.remove(&name);
            return Ok(ImageState::Waiting);
        };
        let mut state = progress(&serde_json::to_value(pod.status).unwrap_or_default());
        if state == ImageState::Waiting && now.duration_since(since) > PULL_LIMIT {
            state = ImageState::Failed(format!("not within {} minutes", PULL_LIMIT.as_secs() / 60));
        }
        if matches!(state, ImageState::Failed(_)) {
            // The next attempt needs a new pod.
            delete(&pods, &name).await?;
        }
        if state != ImageState::Waiting {
            self.known.insert(name, pull(state.clone()));
        }
        Ok(state)
    }
}

/// Deletes the pods in a namespace that pulled images and have at least this age.
///
/// # Errors
/// The API server is unavailable or rejects a request.
pub async fn delete_pods(client: &Client, namespace: &str, age: Duration) -> kube::Result<()> {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let selector = format!("{COMPONENT_LABEL}={COMPONENT}");
    let now = Timestamp::now();
    for pod in lists::all(&pods, &ListParams::default().labels(&selector)).await? {
        let created = pod.metadata.creation_timestamp.map_or(now, |created| created.0);
        let is_old = now.duration_since(created) >= SignedDuration::try_from(age).unwrap_or(SignedDuration::MAX);
        if let Some(name) = pod.metadata.name.filter(|_| is_old) {
            delete(&pods, &name).await?;
        }
    }
    Ok(())
}

async fn delete(pods: &Api<Pod>, name: &str) -> kube::Result<()> {
    match pods.delete(name, &DeleteParams::default().grace_period(0)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the pull policy for the pod that pulls the image of the changed container. It is never `Never`, because that
/// pod must pull an image that the node lacks.
fn pull_policy(pod: &DynamicObject, change: &ContainerChange) -> &'static str {
    let containers = pod.data.pointer("/spec").and_then(|spec| spec.get(change.list.field())?.as_array());
    let mut found =
        containers.into_iter().flatten().filter(|one| one.get("name").is_some_and(|name| *name == change.name));
    let policy = found.next().and_then(|container| container.get("imagePullPolicy")?.as_str());
    if policy == Some("Always") { "Always" } else { "IfNotPresent" }
}

/// Whether the node reports the image. A node reports only its largest images, and not every user may read nodes.
async fn is_listed(client: &Client, node: &str, image: &str) -> bool {
    let Ok(node) = Api::<Node>::all(client.clone()).get(node).await else { return false };
    let images = node.status.and_then(|status| status.images).unwrap_or_default();
    images.iter().flat_map(|listed| listed.names.iter().flatten()).any(|name| name == image)
}

async fn create(pods: &Api<Pod>, node: &str, image: &str, policy: &str, site: &PullSite) -> kube::Result<()> {
    let pod = serde_json::from_value(puller(node, image, policy, site)).map_err(kube::Error::SerdeError)?;
    match pods.create(&PostParams::default(), &pod).await {
        Ok(_) => Ok(()),
        // Another controller has created it.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the name of the pod that pulls an image to a node. A different pull policy or different credentials give a
/// different name.
fn name(node: &str, image: &str, policy: &str, site: &PullSite) -> String {
    let digest = Sha256::digest(format!("{node} {image} {policy} {}", site.secrets));
    let number = digest.iter().take(10).fold(0_u128, |number, byte| (number << 8) | u128::from(*byte));
    format!("pillion-pull-{number:020x}")
}

/// Returns the pod that pulls an image. It complies with the `restricted` Pod Security Standard.
fn puller(node: &str, image: &str, policy: &str, site: &PullSite) -> Value {
    json!({
        "metadata": {
            "name": name(node, image, policy, site),
            "labels": {"app.kubernetes.io/managed-by": "pillion", COMPONENT_LABEL: COMPONENT, INJECT_LABEL: "false"},
        },
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            // Terminates the pod even if the controller that created it stops.
            "activeDeadlineSeconds": 900,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 0,
            "imagePullSecrets": site.secrets,
            "serviceAccountName": site.service_account,
            "tolerations": [{"operator": "Exists"}],
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": CONTAINER, "image": image, "imagePullPolicy": policy, "command": [NO_COMMAND],
                "resources": {"requests": {"cpu": "1m", "memory": "4Mi"}, "limits": {"cpu": "10m", "memory": "16Mi"}},
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    })
}

fn progress(status: &Value) -> ImageState {
    // In some namespaces, profiles add containers to this pod too.
    let mut statuses = status.get("containerStatuses").and_then(Value::as_array).into_iter().flatten();
    let of_container = statuses.find(|status| status.get("name").is_some_and(|name| name == CONTAINER));
    let text = |pointer: &str| of_container.and_then(|found| found.pointer(pointer)?.as_str()).unwrap_or_default();
    let waiting = text("/state/waiting/reason");
    if PULL_FAILURES.contains(&waiting) {
        return ImageState::Failed(format!("{waiting}: {}", text("/state/waiting/message")));
    }
    // The kubelet creates a container only if the image is on the node.
    let is_terminated = of_container.is_some_and(|found| found.pointer("/state/terminated").is_some());
    if is_terminated || START_FAILURES.contains(&waiting) {
        return ImageState::Present;
    }
    // The kubelet has rejected the pod: for example, the node has no room for it.
    let field = |name: &str| status.get(name).and_then(Value::as_str).unwrap_or_default();
    if field("phase") == "Failed" {
        return ImageState::Failed(format!("{}: {}", field("reason"), field("message")));
    }
    ImageState::Waiting
}

#[cfg(test)]
mod tests {
    use pillion_engine::in_place::ContainerList;

    use super::*;

    #[test]
    fn failed_start_shows_pulled_image() {
        let of = |state: Value| {
            let sidecar = json!({"name": "other", "state": {"waiting": {"reason": "ImagePullBackOff"}}});
            progress(&json!({"phase": "Pending", "containerStatuses": [sidecar, {"name": CONTAINER, "state": state}]}))
        };
        assert_eq!(of(json!({"waiting": {"reason": "ContainerCreating"}})), ImageState::Waiting);
        assert_eq!(of(json!({"terminated": {"reason": "StartError", "exitCode": 128}})), ImageState::Present);
        assert_eq!(of(json!({"waiting": {"reason": "RunContainerError"}})), ImageState::Present);
        let failed = of(json!({"waiting": {"reason": "ErrImagePull", "message": "not found"}}));
        assert_eq!(failed, ImageState::Failed("ErrImagePull: not found".to_owned()));
        assert_eq!(progress(&Value::Null), ImageState::Waiting);
        let full = json!({"phase": "Failed", "reason": "OutOfpods", "message": "no room"});
        assert_eq!(progress(&full), ImageState::Failed("OutOfpods: no room".to_owned()));
    }

    #[test]
    fn slow_pulls_of_one_namespace_do_not_delay_others() {
        let mut puller = Puller::new(PullLimits { total: 3, per_namespace: 1 });
        let mut begin = |namespace: &str, state| {
            let may = puller.may_begin(namespace);
            let pull = Pull { namespace: namespace.into(), since: Instant::now(), asked: Instant::now(), state };
            if may {
                puller.known.insert(format!("{namespace} {}", puller.known.len()), pull);
            }
            may
        };
        assert!(begin("slow", ImageState::Waiting) && !begin("slow", ImageState::Waiting));
        assert!(begin("done", ImageState::Present) && begin("done", ImageState::Waiting));
        assert!(
            begin("third", ImageState::Waiting) && !begin("fourth", ImageState::Waiting),
            "the limit of all namespaces"
        );
    }

    #[test]
    fn pulls_even_if_container_never_pulls() {
        let site = PullSite { namespace: "pillion-system".to_owned(), secrets: json!([]), service_account: None };
        let change = ContainerChange {
            list: ContainerList::InitContainers,
            name: "proxy".to_owned(),
            image: None,
            resources: None,
        };
        for (of_container, expected) in
            [(json!("Never"), "IfNotPresent"), (Value::Null, "IfNotPresent"), (json!("Always"), "Always")]
        {
            let pod = json!({
                "metadata": {"name": "web"},
                "spec": {"initContainers": [{"name": "proxy", "imagePullPolicy": of_container}]},
            });
            let policy = pull_policy(&serde_json::from_value(pod).unwrap(), &change);
            let puller = puller("one", "a:1", policy, &site);
            assert_eq!((policy, &puller["spec"]["containers"][0]["imagePullPolicy"]), (expected, &json!(expected)));
            assert_eq!(puller["metadata"]["name"], json!(name("one", "a:1", policy, &site)));
        }
    }

    #[test]
    fn name_depends_on_node_image_policy_and_credentials() {
        let site = |secrets| PullSite { namespace: "pillion-system".to_owned(), secrets, service_account: None };
        let (plain, with_secret) = (site(json!([])), site(json!([{"name": "registry"}])));
        let of = |node: &str, image: &str| name(node, image, "Always", &plain);
        assert_eq!(of("one", "a:1"), of("one", "a:1"));
        assert_ne!(of("one", "a:1"), of("two", "a:1"));
        assert_ne!(of("one", "a:1"), of("one", "a:2"));
        assert_ne!(of("one", "a:1"), name("one", "a:1", "IfNotPresent", &plain));
        assert_ne!(of("one", "a:1"), name("one", "a:1", "Always", &with_secret));
        assert!(of(&"n".repeat(253), &"i".repeat(500)).len() < 63);
    }
}
