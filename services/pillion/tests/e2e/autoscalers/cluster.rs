//! A cluster with Pillion and the autoscalers of Kubernetes, and the workloads that they scale.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use pillion_testkit::control_plane::Builder;
use pillion_testkit::metrics_server::aggregation;
use pillion_testkit::namespace::replica_address;
use pillion_testkit::vpa::{UPDATER, VerticalPodAutoscaler};
use pillion_testkit::{ControlPlane, ControllerManager, Kwok, MetricsServer, eventually, namespace, tools};
use serde_json::{Value as Json, json};

use crate::explain::pillion;
use crate::rig::{PATIENCE, Rig};

/// How often the updater looks for pods to evict. The default is a minute.
const INTERVAL: Duration = Duration::from_secs(2);
/// The number of the updater's loops in which no pod may be evicted.
pub(super) const LOOPS: u64 = 10;
/// Maximum time until the updater has evicted the pods, or until metrics of new pods lead to a scale.
pub(super) const SLOW: Duration = Duration::from_mins(3);

/// The number of replicas of each Deployment. The updater evicts no pod of a smaller Deployment.
pub(super) const REPLICAS: usize = 2;
/// The controllers that run.
const CONTROLLERS: &str = "deployment-controller,replicaset-controller,horizontal-pod-autoscaler-controller";

/// The prefix of the audit annotations with the calls of mutating webhooks.
const CALLS: &str = "mutation.webhook.admission.k8s.io/";
/// The name of the audit log in the folder of the test.
const AUDIT_LOG: &str = "audit.log";
const AUDIT_POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, verbs: [create], resources: [{group: '', resources: [pods, pods/eviction]}]}
- {level: None}
";

/// A profile whose sidecar has requests of its own.
pub(super) const SHIPPER: &str = "
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: shipper}
spec:
  activation: Requested
  template:
    spec:
      containers:
      - {name: shipper, image: 'shipper:1', resources: {requests: {cpu: 20m, memory: 32Mi}, limits: {memory: 64Mi}}}
";

/// The shipped profile that can scale the requests of a namespace's pods.
const RESOURCE_DEFAULTS: &str = include_str!("../../../../../profiles/resource-defaults/profile.yaml");
/// The annotation of a namespace with the scale.
const SCALE: &str = "resources.pillion.dev/scale";

/// The namespaces of the tests with a Vertical Pod Autoscaler. In `half`, the profile `resource-defaults` halves the
/// requests of pod authors.
const NAMESPACES: [&str; 2] = ["shop", "half"];

/// The folders with the sources of projects, which contain their manifests.
pub(super) struct Modules {
    kwok: PathBuf,
    metrics_server: PathBuf,
    vpa: PathBuf,
}

impl Modules {
    /// Finds the sources. Must be called before the test enters its own network.
    pub(super) fn find() -> Result<Self> {
        Ok(Self {
            kwok: tools::go_module("kwok", "sigs.k8s.io/kwok")?,
            metrics_server: tools::go_module("metrics-server", "sigs.k8s.io/metrics-server")?,
            vpa: tools::go_module("vpa", "k8s.io/autoscaler/vertical-pod-autoscaler")?,
        })
    }
}

/// A cluster with Pillion, metrics, and the controllers of Deployments and horizontal autoscalers.
pub(super) struct Cluster {
    pub(super) rig: Rig,
    audit_log: PathBuf,
    _kwok: Kwok,
    _metrics_server: MetricsServer,
    _controllers: ControllerManager,
}

/// A cluster that also has a Vertical Pod Autoscaler.
pub(super) struct VpaCluster {
    pub(super) cluster: Cluster,
    vpa: VerticalPodAutoscaler,
    /// The namespaces of the Deployments.
    pub(super) namespaces: &'static [&'static str],
}

/// Returns the builder of a control plane that writes an audit log and passes requests on to metrics-server.
pub(super) fn control_plane() -> Result<Builder> {
    let folder = namespace::directory()?;
    let policy = folder.join("audit-policy.yaml");
    std::fs::write(&policy, AUDIT_POLICY)?;
    let builder = ControlPlane::builder()
        .api_server_arg(format!("--audit-policy-file={}", policy.display()))
        .api_server_arg(format!("--audit-log-path={}", folder.join(AUDIT_LOG).display()));
    Ok(aggregation(&folder)?.into_iter().fold(builder, Builder::api_server_arg))
}

/// The requests and limits of each container, by its name.
pub(super) type Resources = BTreeMap<String, Json>;

impl Cluster {
    /// Starts a cluster with the namespace `shop` and the profiles `shipper` and `resource-defaults`.
    pub(super) async fn start(modules: &Modules) -> Result<Self> {
        let rig = Rig::start_with(control_plane()?, &[], 1).await?;
        rig.namespace("shop", Some("enabled")).await?;
        rig.wait_until_called("shop").await?;
        rig.control_plane.apply_yaml(SHIPPER).await?;
        rig.control_plane.apply_yaml(RESOURCE_DEFAULTS).await?;
        // With the shipped profile of the rig.
        rig.wait_until_served(3).await?;
        Self::with(rig, modules).await
    }

    /// Adds metrics and controllers to a cluster, whose control plane [`control_plane`] configures.
    pub(super) async fn with(rig: Rig, modules: &Modules) -> Result<Self> {
        let control_plane = &rig.control_plane;
        let kwok = SocketAddr::new(replica_address(20), 10250);
        let kwok = Kwok::with_metrics(control_plane, 1, &modules.kwok, kwok).await?;
        let metrics_server = MetricsServer::start(control_plane, &modules.metrics_server, replica_address(21)).await?;
        let arguments = ["--horizontal-pod-autoscaler-sync-period=2s"];
        let controllers = ControllerManager::with_arguments(control_plane, CONTROLLERS, &arguments).await?;
        let audit_log = namespace::directory()?.join(AUDIT_LOG);
        Ok(Self { rig, audit_log, _kwok: kwok, _metrics_server: metrics_server, _controllers: controllers })
    }

    /// Returns the requests in the audit log that create pods, or that evict them.
    fn audited(&self, subresource: Option<&str>) -> Result<Vec<Json>> {
        let log = std::fs::read_to_string(&self.audit_log)?;
        // The API server may be writing the last line.
        let complete = log.rsplit_once('\n').map_or("", |(complete, _)| complete);
        let events = complete.lines().map(serde_json::from_str).collect::<Result<Vec<Json>, _>>()?;
        let is_wanted = |event: &Json| {
            event["objectRef"]["subresource"].as_str() == subresource
                && event["responseStatus"]["code"] == 201
                && !event["requestURI"].as_str().unwrap_or_default().contains("dryRun")
        };
        Ok(events.into_iter().filter(is_wanted).collect())
    }

    /// Returns how often each pod of a namespace was evicted.
    pub(super) fn evictions(&self, namespace: &str) -> Result<BTreeMap<String, usize>> {
        let mut evictions = BTreeMap::new();
        for event in self.audited(Some("eviction"))? {
            ensure!(event["user"]["username"] == UPDATER, "evicted by another client: {event}");
            if event["objectRef"]["namespace"] == namespace {
                let pod = event["objectRef"]["name"].as_str().context("the name of the pod")?;
                *evictions.entry(pod.to_owned()).or_default() += 1;
            }
        }
        Ok(evictions)
    }

    /// Returns the webhook calls of the last creation of a pod in a namespace, in their order: the round, the name of
    /// the webhook configuration, and whether the call changed the pod.
    pub(super) fn last_calls(&self, namespace: &str) -> Result<Vec<String>> {
        let created = self.audited(None)?;
        let last = created.iter().rev().find(|event| event["objectRef"]["namespace"] == namespace);
        let annotations = last.context("no pod was created")?["annotations"].as_object().context("annotations")?;
        let mut calls = BTreeMap::new();
        for (key, value) in annotations {
            let Some(place) = key.strip_prefix(CALLS) else { continue };
            let numbers: Vec<u32> = place.split('_').filter_map(|part| part.parse().ok()).collect();
            let call: Json = serde_json::from_str(value.as_str().context("text")?)?;
            let changed = if call["mutated"] == true { "changed" } else { "unchanged" };
            let [round, _] = numbers[..] else { bail!("{key}") };
            calls.insert(numbers, format!("{round} {} {changed}", call["configuration"].as_str().context("a name")?));
        }
        Ok(calls.into_values().collect())
    }

    /// Returns the pods of the Deployment that are not being deleted.
    pub(super) async fn pods(&self, namespace: &str) -> Result<Vec<Json>> {
        let list = self.rig.pods(namespace).list(&ListParams::default().labels("app=web")).await?;
        let pods = list.items.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(pods.map(serde_json::to_value).collect::<Result<_, _>>()?)
    }

    /// Waits until the Deployment has this many pods, and all of them run and have these resources. Returns the pods.
    async fn wait_for_pods(&self, namespace: &str, count: usize, expected: &Resources) -> Result<Vec<Json>> {
        eventually(SLOW, &format!("{count} pods in {namespace} have {expected:?}"), async || {
            let pods = self.pods(namespace).await?;
            let found: Vec<_> = pods.iter().map(|pod| (pod["status"]["phase"].clone(), resources(pod))).collect();
            let is_expected = |(phase, found): &(Json, Resources)| phase == "Running" && found == expected;
            ensure!(found.len() == count && found.iter().all(is_expected), "{found:?}");
            Ok(pods)
        })
        .await
    }

    /// Creates a horizontal autoscaler for the CPU of the Deployment, with two or three replicas.
    pub(super) async fn autoscale(&self, namespace: &str) -> Result<()> {
        let autoscaler = json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "web", "namespace": namespace},
            "spec": {
                "minReplicas": REPLICAS, "maxReplicas": REPLICAS + 1,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "metrics": [{
                    "type": "Resource",
                    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
                }],
            },
        });
        self.rig.control_plane.apply_yaml(&autoscaler.to_string()).await
    }

    /// Waits until the autoscaler has computed a scale, or has failed to, as `check` expects it from the autoscaler's
    /// condition `ScalingActive` and its status.
    pub(super) async fn wait_for_scaling(
        &self,
        namespace: &str,
        check: impl Fn(&Json, &Json) -> Result<()>,
    ) -> Result<()> {
        let autoscalers: Api<HorizontalPodAutoscaler> = Api::namespaced(self.rig.control_plane.client(), namespace);
        eventually(SLOW, &format!("the horizontal autoscaler of {namespace}"), async || {
            let status = serde_json::to_value(autoscalers.get("web").await?.status)?;
            let mut conditions = status["conditions"].as_array().into_iter().flatten();
            let active = conditions.find(|condition| condition["type"] == "ScalingActive").context("no condition")?;
            check(active, &status)
        })
        .await
    }

    /// Fails unless the autoscaler computes this utilization of the CPU, and scales to one more pod, which has the same
    /// resources as the others.
    pub(super) async fn expect_scale(&self, namespace: &str, utilization: u64, expected: &Resources) -> Result<()> {
        self.wait_for_scaling(namespace, |active, status| {
            ensure!(active["status"] == "True" && active["reason"] == "ValidMetricFound", "{active}");
            let current = &status["currentMetrics"][0]["resource"]["current"]["averageUtilization"];
            let found = current.as_u64().context("no utilization")?;
            // kwok and metrics-server read the clock at different times.
            ensure!(found.abs_diff(utilization) <= 5, "{found} % instead of {utilization} %");
            ensure!(status["desiredReplicas"] == REPLICAS + 1, "{status}");
            Ok(())
        })
        .await?;
        self.wait_for_pods(namespace, REPLICAS + 1, expected).await.map(drop)
    }

    /// Returns the messages of `pillion doctor` about missing requests.
    pub(super) async fn missing_requests(&self) -> Result<Vec<String>> {
        let result = pillion(&self.rig.control_plane, &["doctor"]).await?;
        let findings = result.json["findings"].as_array().context("findings")?.iter();
        let found = findings.filter(|finding| finding["code"] == "requests_missing");
        Ok(found.filter_map(|finding| Some(finding["message"].as_str()?.to_owned())).collect())
    }

    /// Deletes the pods until their successors have these resources. The API server and the replicas receive changed
    /// configurations and profiles a little later.
    pub(super) async fn recreate(&self, namespace: &str, expected: &Resources) -> Result<()> {
        eventually(SLOW, &format!("new pods in {namespace} have {expected:?}"), async || {
            let before = uids(&self.pods(namespace).await?);
            let parameters = ListParams::default().labels("app=web");
            self.rig.pods(namespace).delete_collection(&DeleteParams::default(), &parameters).await?;
            let pods = eventually(PATIENCE, "new pods run", async || {
                let pods = self.pods(namespace).await?;
                let is_new = |pod: &Json| pod["status"]["phase"] == "Running" && !before.contains(&uid(pod));
                ensure!(pods.len() == REPLICAS && pods.iter().all(is_new), "{pods:?}");
                Ok(pods)
            })
            .await?;
            let found: Vec<_> = pods.iter().map(resources).collect();
            ensure!(found.iter().all(|found| found == expected), "{found:?}");
            Ok(())
        })
        .await
    }
}

impl VpaCluster {
    /// Starts a cluster with two namespaces and this profile `shipper`.
    pub(super) async fn start(modules: &Modules, profile: &str) -> Result<Self> {
        let cluster = Cluster::start(modules).await?;
        let control_plane = &cluster.rig.control_plane;
        control_plane.apply_yaml(profile).await?;
        cluster.rig.namespace("half", Some("enabled")).await?;
        control_plane.kubectl_ok(&["annotate", "namespace", "half", &format!("{SCALE}=0.5")]).await?;
        cluster.rig.wait_until_called("half").await?;
        Self::with(cluster, modules, &NAMESPACES).await
    }

    /// Adds a Vertical Pod Autoscaler to a cluster.
    pub(super) async fn with(cluster: Cluster, modules: &Modules, namespaces: &'static [&'static str]) -> Result<Self> {
        let control_plane = &cluster.rig.control_plane;
        let vpa = VerticalPodAutoscaler::start(control_plane, &modules.vpa, replica_address(9), INTERVAL).await?;
        Ok(Self { cluster, vpa, namespaces })
    }

    /// Replaces the webhook configuration of the Vertical Pod Autoscaler with one of this name. The API server calls
    /// webhooks in the order of these names.
    pub(super) async fn rename_webhook(&self, name: &str, reinvocation: &str) -> Result<()> {
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(self.cluster.rig.control_plane.client());
        let all = configurations.list(&ListParams::default()).await?;
        let is_of_vpa = |one: &&MutatingWebhookConfiguration| {
            one.webhooks.iter().flatten().any(|webhook| webhook.name == "vpa.k8s.io")
        };
        let mut configuration = all.items.iter().find(is_of_vpa).context("no configuration")?.clone();
        let before = configuration.metadata.name.clone().context("a name")?;
        configurations.delete(&before, &DeleteParams::default()).await?;
        configuration.metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        for webhook in configuration.webhooks.iter_mut().flatten() {
            webhook.reinvocation_policy = Some(reinvocation.to_owned());
        }
        configurations.create(&PostParams::default(), &configuration).await?;
        Ok(())
    }

    /// Creates a Deployment and its autoscaler in each namespace, and waits until the pods run. Their requests are not
    /// those of the recommendation.
    pub(super) async fn create_workloads(&self) -> Result<()> {
        for namespace in self.namespaces {
            let (cpu, memory) = if *namespace == "half" { ("50m", "64Mi") } else { ("100m", "128Mi") };
            self.cluster.rig.control_plane.apply_yaml(&deployment(namespace, "shipper").to_string()).await?;
            let expected = resources_of(&requests(cpu, memory), &profiles_own());
            self.cluster.wait_for_pods(namespace, REPLICAS, &expected).await?;
            self.cluster.rig.control_plane.apply_yaml(&autoscaler(namespace).to_string()).await?;
        }
        Ok(())
    }

    /// Writes the recommendations, as a recommender does.
    pub(super) async fn recommend(&self) -> Result<()> {
        let kind = GroupVersionKind::gvk("autoscaling.k8s.io", "v1", "VerticalPodAutoscaler");
        for namespace in self.namespaces {
            let autoscalers: Api<DynamicObject> =
                Api::namespaced_with(self.cluster.rig.control_plane.client(), namespace, &ApiResource::from_gvk(&kind));
            autoscalers.patch_status("web", &PatchParams::default(), &Patch::Merge(recommendation())).await?;
        }
        Ok(())
    }

    /// Waits until the pods have these resources. Then fails if the updater evicts a pod in further loops, or if a pod
    /// is replaced.
    pub(super) async fn expect_quiet(&self, expected: &Resources) -> Result<()> {
        let mut before = Vec::new();
        for namespace in self.namespaces {
            let pods = self.cluster.wait_for_pods(namespace, REPLICAS, expected).await?;
            before.push((uids(&pods), self.cluster.evictions(namespace)?));
        }
        let first = self.vpa.loops().await?;
        eventually(SLOW, "the updater has looked for pods again", async || {
            let loops = self.vpa.loops().await? - first;
            ensure!(loops >= LOOPS, "{loops} of {LOOPS} loops");
            Ok(())
        })
        .await?;
        for (namespace, before) in self.namespaces.iter().zip(before) {
            let after = (uids(&self.cluster.pods(namespace).await?), self.cluster.evictions(namespace)?);
            ensure!(after == before, "pods and evictions in {namespace}: before {before:?}, after {after:?}");
        }
        Ok(())
    }

    /// Fails unless the updater has evicted as many pods as each Deployment has, each of them once.
    pub(super) fn expect_evicted_once(&self) -> Result<()> {
        for namespace in self.namespaces {
            let evictions = self.cluster.evictions(namespace)?;
            let is_once = evictions.len() == REPLICAS && evictions.values().all(|count| *count == 1);
            ensure!(is_once, "evictions in {namespace}: {evictions:?}");
        }
        Ok(())
    }

    /// Waits until the updater has evicted far more pods than the Deployment in `shop` has.
    pub(super) async fn wait_for_eviction_loop(&self) -> Result<usize> {
        eventually(SLOW, "the updater evicts pods again and again", async || {
            let evicted = self.cluster.evictions("shop")?.len();
            ensure!(evicted > 2 * REPLICAS, "{evicted} evictions");
            Ok(evicted)
        })
        .await
    }
}

/// Returns a Deployment whose pods request this profile. Each container uses 100m of CPU.
pub(super) fn deployment(namespace: &str, profile: &str) -> Json {
    let annotations = json!({
        "pillion.dev/profiles": profile, "kwok.x-k8s.io/usage-cpu": "100m", "kwok.x-k8s.io/usage-memory": "32Mi",
    });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}, "annotations": annotations},
                "spec": {
                    // There is no scheduler.
                    "nodeName": "node-0",
                    "containers": [{"name": "web", "image": "web:1", "resources": requests("100m", "128Mi")}],
                },
            },
        },
    })
}

fn autoscaler(namespace: &str) -> Json {
    json!({
        "apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "updatePolicy": {"updateMode": "Recreate"},
        },
    })
}

/// Returns a recommendation for the application and the sidecar. The requests of the Deployment and of the profile are
/// outside the bounds.
fn recommendation() -> Json {
    let values = |cpu: &str, memory: &str| json!({"cpu": cpu, "memory": memory});
    json!({"status": {"recommendation": {"containerRecommendations": [
        {"containerName": "web", "target": values("250m", "256Mi"),
         "lowerBound": values("200m", "200Mi"), "upperBound": values("300m", "300Mi")},
        {"containerName": "shipper", "target": values("50m", "48Mi"),
         "lowerBound": values("40m", "40Mi"), "upperBound": values("60m", "60Mi")},
    ]}}})
}

pub(super) fn requests(cpu: &str, memory: &str) -> Json {
    json!({"requests": {"cpu": cpu, "memory": memory}})
}

/// Returns the resources of the profile's sidecar.
pub(super) fn profiles_own() -> Json {
    json!({"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}})
}

/// Returns the recommended resources of the sidecar. The Vertical Pod Autoscaler raises limits in proportion.
pub(super) fn recommended_sidecar() -> Json {
    json!({"requests": {"cpu": "50m", "memory": "48Mi"}, "limits": {"memory": "96Mi"}})
}

pub(super) fn recommended_application() -> Json {
    requests("250m", "256Mi")
}

pub(super) fn resources_of(application: &Json, sidecar: &Json) -> Resources {
    [("web".to_owned(), application.clone()), ("shipper".to_owned(), sidecar.clone())].into()
}

fn resources(pod: &Json) -> Resources {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    containers.map(|one| (one["name"].as_str().unwrap_or_default().to_owned(), one["resources"].clone())).collect()
}

fn uid(pod: &Json) -> String {
    pod["metadata"]["uid"].to_string()
}

fn uids(pods: &[Json]) -> Vec<String> {
    let mut uids: Vec<_> = pods.iter().map(uid).collect();
    uids.sort();
    uids
}
