//! `held` namespaces: with every replica dead no pod is refused, and none can be scheduled without its sidecar; once they are
//! back, all are injected. Pods are made by the real controllers.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use pillion_api::held;
use pillion_api::names::{INJECTION_GATE, InjectionLevel};
use pillion_api::webhook_configuration::{self, Settings};
use pillion_control::Leading;
use pillion_control::held::{HeldMetrics, Injection, PolicySettings, ReleaseSettings, policies, release};
use pillion_control::release::{DEFAULT_CLUSTER_DOMAIN, Release};
use pillion_testkit::control_plane::client_of;
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, ControllerManager, Isolation, Replica, eventually, register_webhook, tools};
use prometheus_client::registry::Registry;
use serde_json::{Value as Json, json};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::rig::{ASK, Rig, SOON, bare_pod, names};

/// Pods that were created while nobody answered are injected so soon after somebody does.
const RECOVERY: Duration = Duration::from_secs(30);

/// The page that people read, whose commands are run.
const PAGE: &str = include_str!("../../../../docs/held.md");

/// What the controller may do, and no more than it needs here.
const ROLE: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: held}
rules:
- {apiGroups: [""], resources: [pods], verbs: [list, watch, patch, delete]}
- {apiGroups: [""], resources: [namespaces], verbs: [get]}
- {apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch]}
- apiGroups: [admissionregistration.k8s.io]
  resources:
  - mutatingadmissionpolicies
  - mutatingadmissionpolicybindings
  - validatingadmissionpolicies
  - validatingadmissionpolicybindings
  verbs: [get, list, watch, create, update, patch, delete]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: held}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: held}
subjects: [{kind: ServiceAccount, name: pillion-controller, namespace: pillion-system}]
"#;

/// A cluster with the namespace `till`, which is held, and the controller's tasks.
struct Cluster {
    rig: Rig,
    injection: watch::Sender<Injection>,
    policies: watch::Sender<Option<bool>>,
    metrics: Registry,
    _running: DropGuard,
}

impl Cluster {
    async fn start(replicas: u8) -> Result<Self> {
        let rig = Rig::start_with(ControlPlane::builder(), &[], replicas).await?;
        rig.namespace("till", Some("held")).await?;
        rig.control_plane.apply_yaml(ROLE).await?;

        let kubeconfig = rig.control_plane.kubeconfig_for_service_account(NAMESPACE, "pillion-controller").await?;
        let stop = CancellationToken::new();
        let release = Arc::new(Release::new("pillion", NAMESPACE, DEFAULT_CLUSTER_DOMAIN)?);
        let leading = Leading { client: client_of(&kubeconfig).await?, release, stop: stop.clone() };
        let mut registry = Registry::default();
        let metrics = HeldMetrics::register(&mut registry);
        let (injection, injecting) = watch::channel(Injection::Answering);
        let (policies, wanted) = watch::channel(Some(true));
        let policy = PolicySettings::new(held::Settings::new("pillion", NAMESPACE));
        tokio::spawn(policies::run(leading.clone(), policy, wanted, metrics.clone()));
        let settings = ReleaseSettings { recheck: Duration::from_secs(1), ..ReleaseSettings::default() };
        tokio::spawn(release::run(leading, settings, injecting, metrics));
        let cluster = Self { rig, injection, policies, metrics: registry, _running: stop.drop_guard() };
        // Before anybody takes gates away, to see that they are added.
        cluster.gates_pods().await?;
        let client = cluster.rig.control_plane.client();
        let levels = InjectionLevel::ALL.to_vec();
        let settings = Settings { levels, ..Settings::new(NAMESPACE, cluster.rig.serving_authority.clone()) };
        register_webhook(&client, &webhook_configuration::mutating(&settings)).await?;
        cluster.rig.is_called("till").await?;
        Ok(cluster)
    }

    /// Waits until pods that nobody decides about are gated.
    async fn gates_pods(&self) -> Result<()> {
        eventually(SOON, "the API server gates pods", async || {
            let pod = self.rig.dry_run("till", &bare_pod("probe")).await?;
            ensure!(is_gated(&pod), "not gated: {pod}");
            Ok(())
        })
        .await
    }

    /// Kills every replica. From then on nothing answers.
    async fn lose_every_replica(&mut self) -> Result<()> {
        self.injection.send_replace(Injection::Silent);
        for replica in &mut self.rig.replicas {
            replica.kill()?;
        }
        self.gates_pods().await
    }

    async fn start_replicas_again(&mut self) -> Result<()> {
        let count = u8::try_from(self.rig.replicas.len())?;
        self.rig.replicas = Replica::start_many(&self.rig.spec, count).await?;
        self.injection.send_replace(Injection::Answering);
        Ok(())
    }

    async fn pods(&self) -> Result<Vec<Json>> {
        let pods = self.rig.pods("till").list(&ListParams::default()).await?;
        pods.items.into_iter().map(|pod| Ok(serde_json::to_value(pod)?)).collect()
    }

    /// A line of the metrics.
    fn metric(&self, line: &str) -> Result<u64> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics)?;
        let found =
            text.lines().find_map(|each| each.strip_prefix(line)).with_context(|| format!("{line} in {text}"))?;
        Ok(found.trim().parse()?)
    }

    /// Runs a command of the page as a person does, in a shell.
    async fn shell(&self, line: &str) -> Result<String> {
        let kubectl = tools::program("kubectl")?;
        let path = format!("{}:{}", kubectl.parent().context("a folder")?.display(), std::env::var("PATH")?);
        let kubeconfig = self.rig.control_plane.kubeconfig();
        let line = line.to_owned();
        let output = tokio::task::spawn_blocking(move || {
            let mut command = Command::new("bash");
            command.args(["-euo", "pipefail", "-c", &line]).env("PATH", path).env("KUBECONFIG", kubeconfig);
            command.env("KUBERC", "off").output()
        })
        .await??;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs the commands of the page's block that begins with a comment.
    async fn page(&self, comment: &str) -> Result<String> {
        let mut blocks = PAGE.split("```").skip(1).step_by(2);
        let block = blocks.find_map(|block| block.strip_prefix("sh\n").filter(|block| block.starts_with(comment)));
        self.shell(block.with_context(|| format!("a block that begins with {comment:?} in docs/held.md"))?).await
    }
}

fn gates(pod: &Json) -> Vec<&str> {
    let gates = pod["spec"]["schedulingGates"].as_array();
    gates.into_iter().flatten().map(|gate| gate["name"].as_str().unwrap()).collect()
}

/// Whether it waits: with the gate, the scheduler leaves it alone, and nobody else can bind it.
fn is_gated(pod: &Json) -> bool {
    gates(pod).contains(&INJECTION_GATE) && pod["spec"].get("nodeName").is_none()
}

fn is_injected(pod: &Json) -> bool {
    names(pod).contains(&"sidecar-nginx".to_owned()) && gates(pod).is_empty()
}

fn owner(pod: &Json) -> String {
    let owner = &pod["metadata"]["ownerReferences"][0];
    let name = owner["name"].as_str().unwrap_or("nobody");
    // A ReplicaSet is called after its Deployment.
    name.split_once('-').map_or(name, |(name, _)| name).to_owned()
}

fn count_by_owner<'p>(pods: impl IntoIterator<Item = &'p Json>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for pod in pods {
        *counts.entry(owner(pod)).or_default() += 1;
    }
    counts
}

fn counts(expected: &[(&str, usize)]) -> BTreeMap<String, usize> {
    expected.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

fn template(extra: &Json) -> Json {
    let mut spec = json!({"containers": [{"name": "app", "image": "app:1"}], "tolerations": [{"operator": "Exists"}]});
    for (key, value) in extra.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({"metadata": {"labels": {"app": "x"}, "annotations": {ASK: "yes"}}, "spec": spec})
}

/// One of each owner that makes pods. The Job `once` fails for good if one of its pods is counted as failed.
fn workloads() -> String {
    let selector = json!({"matchLabels": {"app": "x"}});
    let plain = template(&json!({}));
    let never = template(&json!({"restartPolicy": "Never"}));
    let object = |api: &str, kind: &str, name: &str, spec: Json| json!({"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": "till"}, "spec": spec});
    let with = |name: &str, mut spec: Json| {
        // Each with labels of its own, as owners by label must have.
        if spec["selector"].is_object() {
            spec["selector"]["matchLabels"]["app"] = json!(name);
        }
        spec["template"]["metadata"]["labels"]["app"] = json!(name);
        spec
    };
    let job = |extra: Json| {
        let mut spec = json!({"backoffLimit": 0, "template": never});
        for (key, value) in extra.as_object().unwrap() {
            spec[key] = value.clone();
        }
        spec
    };
    let policy = json!({"rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}]});
    let objects = [
        object(
            "apps/v1",
            "Deployment",
            "web",
            with("web", json!({"replicas": WEB, "selector": selector, "template": plain})),
        ),
        object(
            "apps/v1",
            "StatefulSet",
            "db",
            with(
                "db",
                json!({"replicas": 2, "serviceName": "db", "podManagementPolicy": "Parallel",
                              "selector": selector, "template": plain}),
            ),
        ),
        object("apps/v1", "DaemonSet", "agent", with("agent", json!({"selector": selector, "template": plain}))),
        object("batch/v1", "Job", "once", with("once", job(json!({})))),
        object(
            "batch/v1",
            "Job",
            "indexed",
            with("indexed", job(json!({"completionMode": "Indexed", "completions": 2, "parallelism": 2}))),
        ),
        object("batch/v1", "Job", "strict", with("strict", job(json!({"podFailurePolicy": policy})))),
        object("batch/v1", "Job", "later", with("later", job(json!({"suspend": true})))),
    ];
    objects.map(|object| object.to_string()).join("\n---\n")
}

/// Replicas of the Deployment: more than are released at once.
const WEB: usize = 60;

/// What there is to be of each owner's.
const EXPECTED: [(&str, usize); 8] =
    [("agent", 2), ("db", 2), ("indexed", 2), ("later", 1), ("nobody", 1), ("once", 1), ("strict", 1), ("web", WEB)];

#[test]
fn with_every_replica_dead_pods_wait_and_after_recovery_all_are_injected() {
    Isolation::new().time_limit(Duration::from_mins(6)).run(|| async {
        let mut cluster = Cluster::start(2).await?;
        let _controllers = ControllerManager::start(&cluster.rig.control_plane).await?;
        for node in ["one", "two"] {
            cluster
                .rig
                .control_plane
                .apply_yaml(&format!("{{apiVersion: v1, kind: Node, metadata: {{name: {node}}}}}"))
                .await?;
        }
        cluster.lose_every_replica().await?;

        // Everything is created, and everything waits.
        cluster.rig.control_plane.apply_yaml(&workloads()).await?;
        cluster.rig.create("till", &bare_pod("bare")).await?;
        let jobs: Api<Job> = Api::namespaced(cluster.rig.control_plane.client(), "till");
        let resume = Patch::Merge(json!({"spec": {"suspend": false}}));
        jobs.patch("later", &PatchParams::default(), &resume).await?;
        let waiting = eventually(SOON, "all pods are there", async || {
            let pods = cluster.pods().await?;
            let found = count_by_owner(&pods);
            ensure!(found == counts(&EXPECTED), "{found:?}");
            Ok(pods)
        })
        .await?;
        let ungated: Vec<_> = waiting.iter().filter(|pod| !is_gated(pod)).collect();
        ensure!(ungated.is_empty(), "pods that could run without their sidecar: {ungated:?}");
        ensure!(waiting.iter().all(|pod| names(pod) == ["app"]), "nobody was there to inject");
        let events: Api<Event> = Api::namespaced(cluster.rig.control_plane.client(), "till");
        let refused = events.list(&ListParams::default().fields("reason=FailedCreate")).await?;
        ensure!(refused.items.is_empty(), "creations that were refused: {:?}", refused.items);

        // Not even somebody who binds it by hand makes it run.
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "bare"},
                             "target": {"apiVersion": "v1", "kind": "Node", "name": "one"}});
        let request =
            http::Request::post("/api/v1/namespaces/till/pods/bare/binding").body(serde_json::to_vec(&binding)?)?;
        let bound = cluster.rig.control_plane.client().request_text(request).await;
        ensure!(bound.as_ref().is_err_and(|error| error.to_string().contains("schedulingGates")), "{bound:?}");
        // Nothing is touched while nobody answers.
        let uids = |pods: &[Json]| pods.iter().map(|pod| pod["metadata"]["uid"].to_string()).collect::<Vec<_>>();
        ensure!(uids(&cluster.pods().await?) == uids(&waiting), "pods were replaced while nobody answered");
        eventually(SOON, "the controller knows of them", async || {
            ensure!(cluster.metric("pillion_controller_held_pods{owner=\"job\"}")? == 5, "not yet");
            Ok(())
        })
        .await?;

        // As a controller leaves a Job's pod that ends between its two steps.
        let indexed = waiting.iter().find(|pod| owner(pod) == "indexed").context("a pod of the Job")?;
        let name = indexed["metadata"]["name"].as_str().context("a name")?;
        cluster.rig.patch("till", name, &json!({"metadata": {"finalizers": null}})).await?;

        cluster.start_replicas_again().await?;
        let began = Instant::now();
        eventually(RECOVERY, "all pods with an owner are injected", async || {
            let pods = cluster.pods().await?;
            let found = count_by_owner(&pods);
            ensure!(found == counts(&EXPECTED), "{found:?}");
            let without: Vec<_> = pods.iter().filter(|pod| owner(pod) != "nobody" && !is_injected(pod)).collect();
            ensure!(without.is_empty(), "{:?}", count_by_owner(without));
            Ok(())
        })
        .await?;
        eprintln!("all were injected after {:?}", began.elapsed());
        ensure!(cluster.metric("pillion_controller_held_pods_released_total{result=\"recreated\"}")? == WEB as u64 + 9);

        // No Job counts what was never run, and each goes on to its end.
        for name in ["once", "indexed", "strict", "later"] {
            let status = jobs.get(name).await?.status.unwrap_or_default();
            ensure!(status.failed.unwrap_or(0) == 0, "{name}: {status:?}");
            let conditions = status.conditions.unwrap_or_default();
            ensure!(conditions.iter().all(|each| !each.type_.starts_with("Fail")), "{name}: {conditions:?}");
        }
        finish_jobs(&cluster).await?;
        eventually(SOON, "all Jobs are complete", async || {
            for job in jobs.list(&ListParams::default()).await? {
                let name = job.metadata.name.unwrap_or_default();
                let conditions = job.status.and_then(|status| status.conditions).unwrap_or_default();
                let complete = conditions.iter().any(|each| each.type_ == "Complete" && each.status == "True");
                ensure!(complete, "{name}: {conditions:?}");
            }
            Ok(())
        })
        .await?;

        // What nobody makes again is told of, waits, and is injected when a person does as the page says.
        let bare = serde_json::to_value(cluster.rig.pods("till").get("bare").await?)?;
        ensure!(is_gated(&bare), "{bare}");
        eventually(SOON, "the bare pod is told of", async || {
            let told = events.list(&ListParams::default().fields("reason=InjectionHeld")).await?;
            ensure!(told.items.iter().any(|event| event.involved_object.name.as_deref() == Some("bare")), "not yet");
            Ok(())
        })
        .await?;
        let listed = cluster.page("# Which pods wait").await?;
        ensure!(listed.contains("bare") && !listed.contains("web-"), "{listed}");
        cluster.page("# A pod without an owner").await?;
        let bare = serde_json::to_value(cluster.rig.pods("till").get("bare").await?)?;
        ensure!(is_injected(&bare), "{bare}");
        Ok(())
    });
}

/// What a kubelet says of pods whose containers have ended well.
async fn finish_jobs(cluster: &Cluster) -> Result<()> {
    for pod in cluster.pods().await? {
        if pod["metadata"]["ownerReferences"][0]["kind"] == "Job" {
            let name = pod["metadata"]["name"].as_str().context("a name")?;
            let status = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
            cluster.rig.pods("till").patch_status(name, &PatchParams::default(), &status).await?;
        }
    }
    Ok(())
}

#[test]
fn nobody_takes_the_gate_away_until_the_label_is_off() {
    Isolation::new().time_limit(Duration::from_mins(4)).run(|| async {
        let mut cluster = Cluster::start(1).await?;
        let client = cluster.rig.control_plane.client();
        let pods: Api<Pod> = cluster.rig.pods("till");

        // While replicas answer, gates of others stay, and a pod that names its node is injected.
        let mut pod = bare_pod("others");
        pod["spec"]["schedulingGates"] = json!([{"name": "a"}, {"name": INJECTION_GATE}, {"name": "b"}]);
        let created = cluster.rig.create("till", &pod).await?;
        ensure!(gates(&created) == ["a", "b"] && names(&created).len() == 2, "{created}");
        let mut bound = bare_pod("bound");
        bound["spec"]["nodeName"] = json!("one");
        ensure!(is_injected(&cluster.rig.create("till", &bound).await?));
        let unasked = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "unasked"},
                             "spec": {"containers": [{"name": "app", "image": "app:1"}]}});
        let unasked = cluster.rig.create("till", &unasked).await?;
        ensure!(gates(&unasked).is_empty() && names(&unasked) == ["app"], "nothing asks for it: {unasked}");

        cluster.lose_every_replica().await?;
        let mut forged = bare_pod("forged");
        forged["metadata"]["annotations"]["pillion.dev/injected"] = json!("{\"version\":1,\"profiles\":[]}");
        ensure!(is_gated(&cluster.rig.create("till", &forged).await?), "whatever its author writes into it");
        cluster.rig.create("till", &bare_pod("bare")).await?;
        bound["metadata"]["name"] = json!("bound-too");
        let refused = cluster.rig.create("till", &bound).await;
        ensure!(refused.as_ref().is_err_and(|error| error.to_string().contains("schedulingGates")), "{refused:?}");

        // A kubelet's mirror of a pod that runs already; and anybody else who calls a pod so.
        let mut mirror = bound.clone();
        mirror["metadata"] = json!({"name": "mirror", "annotations": {"kubernetes.io/config.mirror": "hash"}});
        let kubelet = cluster.rig.control_plane.client_as("system:node:one", &["system:masters"]).await?;
        let create = |client, pod: &Json| {
            let (pod, parameters) = (serde_json::from_value::<Pod>(pod.clone()), PostParams::default());
            async move { anyhow::Ok(Api::<Pod>::namespaced(client, "till").create(&parameters, &pod?).await?) }
        };
        ensure!(create(client.clone(), &mirror).await.is_err(), "anybody gets by with the annotation");
        let mirror = serde_json::to_value(create(kubelet, &mirror).await?)?;
        ensure!(gates(&mirror).is_empty(), "{mirror}");

        // Nobody takes it away, not even an administrator; anything else may be changed.
        let without = Patch::Merge(json!({"spec": {"schedulingGates": []}}));
        let error = pods.patch("bare", &PatchParams::default(), &without).await.err().context("it was taken away")?;
        ensure!(matches!(&error, kube::Error::Api(status) if status.code == 403), "{error}");
        ensure!(error.to_string().contains("is taken away by Pillion alone"), "{error}");
        cluster.rig.patch("till", "bare", &json!({"metadata": {"labels": {"a": "b"}}})).await?;

        // What others make of the policies does not last.
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
        bindings.delete("pillion-held", &DeleteParams::default()).await?;
        let policies: Api<MutatingAdmissionPolicy> = Api::all(client.clone());
        let never = json!({"spec": {"matchConditions": [{"name": "never", "expression": "false"}]}});
        let strategic = Patch::Strategic(never);
        policies.patch("pillion-held", &PatchParams::apply("somebody"), &strategic).await?;
        let began = Instant::now();
        eventually(Duration::from_secs(5), "the policies are as they were", async || {
            bindings.get("pillion-held").await?;
            let conditions = policies.get("pillion-held").await?.spec.unwrap_or_default().match_conditions;
            let names: Vec<_> = conditions.into_iter().flatten().map(|condition| condition.name).collect();
            ensure!(names == ["not-a-mirror-pod", "not-gated-yet"], "{names:?}");
            Ok(())
        })
        .await?;
        eprintln!("the policies were repaired after {:?}", began.elapsed());

        // The label off, with every replica dead: pods run without, at once.
        cluster.page("# Free a namespace").await?;
        eventually(SOON, "the pods are let go", async || {
            for name in ["bare", "forged"] {
                let pod = serde_json::to_value(pods.get(name).await?)?;
                ensure!(gates(&pod).is_empty(), "{name} waits");
            }
            Ok(())
        })
        .await?;

        // The same without a controller.
        cluster.rig.label_namespace("till", "pillion.dev/injection", "held").await?;
        cluster.gates_pods().await?;
        let Cluster { _running: running, rig, .. } = cluster;
        drop(running);
        rig.create("till", &bare_pod("stuck")).await?;
        let (injection, policies_wanted) = (watch::channel(Injection::Silent).0, watch::channel(Some(true)).0);
        let cluster = Cluster {
            rig,
            injection,
            policies: policies_wanted,
            metrics: Registry::default(),
            _running: CancellationToken::new().drop_guard(),
        };
        cluster.page("# Free a namespace").await?;
        eventually(SOON, "the page's command frees them", async || {
            cluster.page("# Take the gate off").await?;
            let pod = serde_json::to_value(cluster.rig.pods("till").get("stuck").await?)?;
            ensure!(gates(&pod).is_empty(), "it waits");
            Ok(())
        })
        .await?;
        Ok(())
    });
}

#[test]
fn switched_off_no_policy_is_left_and_nobody_waits() {
    Isolation::new().time_limit(Duration::from_mins(4)).run(|| async {
        let mut cluster = Cluster::start(1).await?;
        cluster.lose_every_replica().await?;
        cluster.rig.create("till", &bare_pod("bare")).await?;
        cluster.injection.send_replace(Injection::SwitchedOff);
        cluster.policies.send_replace(Some(false));
        eventually(SOON, "nobody waits and nothing is left", async || {
            let bare = serde_json::to_value(cluster.rig.pods("till").get("bare").await?)?;
            ensure!(gates(&bare).is_empty(), "it waits");
            let kinds = "mutatingadmissionpolicies,mutatingadmissionpolicybindings,validatingadmissionpolicies,\
                         validatingadmissionpolicybindings";
            let left = cluster.rig.control_plane.kubectl_ok(&["get", kinds, "-o", "name"]).await?;
            if left.contains("pillion") {
                bail!("{left}");
            }
            let fresh = cluster.rig.dry_run("till", &bare_pod("fresh")).await?;
            ensure!(gates(&fresh).is_empty(), "the API server adds the gate still");
            ensure!(cluster.metric("pillion_controller_held_policies{state=\"off\"}")? == 1);
            Ok(())
        })
        .await
    });
}
