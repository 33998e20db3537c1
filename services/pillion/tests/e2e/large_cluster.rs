//! Measures an installation in a large cluster, which grows in stages: memory and processor time of each process, the
//! time until a replica is ready, the time until the audit finds a missed injection, and what a leader change costs.
//! kwok simulates the nodes. docs/benchmarks.md explains the figures.
//!
//! `PILLION_PODS` lists the number of pods of each stage. `PILLION_NAMESPACES`, `PILLION_PROFILES` and `PILLION_NODES`
//! set the other sizes, and `PILLION_PROGRAM` names the build to measure.

mod budget;
mod measure;
mod report;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use axum::http::Request;
use futures::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PostParams};
use pillion_api::ClusterInjectionProfile;
use pillion_testkit::namespace::replica_address;
use pillion_testkit::{ControlPlane, Isolation, Kwok, Replica, eventually};
use serde_json::{Value as Json, json};

use self::measure::{ApiServerMetrics, Traffic, Usage};
use self::report::{Report, Stage};
use crate::direct::metric;
use crate::load::{count_from, print_figures};
use crate::managed::{Managed, controller};
use crate::writers::{PodRequest, Writers};

const REPLICAS: u8 = 2;
const CONTROLLERS: u8 = 2;
/// The number of writers that create pods and other objects at the same time.
const WRITERS: usize = 32;
/// The number of pods of each stage that are created while no replica runs.
const MISSED: usize = 10;
/// How long the processor time of idle processes is measured.
const IDLE: Duration = Duration::from_secs(10);
/// Time limit for a step that has no budget, such as the creation of the pods of a stage.
const PATIENCE: Duration = Duration::from_mins(40);
const LIMIT: Duration = Duration::from_mins(58);

/// The policy of the controllers. The Lease, the certificates and the log have their default settings.
const POLICY: &str = "\
apiVersion: config.pillion.dev/v1alpha1
kind: ControllerPolicy
";

/// The sizes of the cluster.
#[derive(Clone, Debug)]
struct Sizes {
    namespaces: usize,
    profiles: usize,
    nodes: usize,
    /// The total number of pods at the end of each stage.
    pods: Vec<usize>,
}

impl Sizes {
    fn from_environment() -> Result<Self> {
        let text = std::env::var("PILLION_PODS").unwrap_or_else(|_| "1000".to_owned());
        let pods = text.split(',').map(|part| part.trim().parse().ok()).collect::<Option<Vec<usize>>>();
        let is_growing = |pods: &Vec<usize>| [0].iter().chain(pods).is_sorted_by(|before, after| before < after);
        let pods = pods.filter(is_growing).with_context(|| {
            format!("PILLION_PODS={text}: expected increasing numbers of pods, separated by commas, as in 1000,10000")
        })?;
        let count = |variable, default, most| anyhow::Ok(usize::try_from(count_from(variable, default, 1..=most)?)?);
        Ok(Self {
            namespaces: count("PILLION_NAMESPACES", 100, 99_999)?,
            profiles: count("PILLION_PROFILES", 50, 9_999)?,
            nodes: count("PILLION_NODES", 50, 99_999)?,
            pods,
        })
    }

    /// Returns whether a namespace opts in. About half of the namespaces do. Each profile is for the namespaces of one
    /// team. If the number of profiles is even, every second namespace of each team opts in.
    fn is_opted_in(&self, namespace: usize) -> bool {
        (namespace + namespace / self.profiles).is_multiple_of(2)
    }

    fn team(&self, namespace: usize) -> usize {
        namespace % self.profiles
    }

    fn namespace(&self, number: usize) -> Result<Namespace> {
        let mut namespace = crate::cold_start::namespace(number)?;
        let labels = namespace.metadata.labels.as_mut().context("labels")?;
        labels.insert("platform.example.com/team".to_owned(), team_name(self.team(number)));
        if !self.is_opted_in(number) {
            labels.remove("pillion.dev/injection");
        }
        Ok(namespace)
    }

    /// Returns a pod as a Deployment's ReplicaSet creates it. It requests the profile of the namespace's team.
    fn pod(&self, name: &str, namespace: usize, node: usize) -> Json {
        let app = format!("service-{namespace:05}");
        let probe = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10});
        json!({
            "metadata": {
                "name": name,
                "labels": {"app": app, "pod-template-hash": "7c9d6f5b8"},
                "annotations": {format!("sidecars.example.com/{}", profile_name(self.team(namespace))): "yes"},
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{app}-7c9d6f5b8"),
                    "controller": true, "blockOwnerDeletion": true, "uid": "029dc23e-3de8-41af-ab3c-a95b34b82bf3",
                }],
            },
            "spec": {
                "nodeName": format!("node-{}", node % self.nodes),
                "containers": [{
                    "name": "app", "image": format!("registry.example.com/platform/{app}:1.4.2"),
                    "ports": [{"name": "http", "containerPort": 8080}],
                    "env": [
                        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                        {"name": "DATABASE_URL", "value": format!("postgres://database.{app}.svc.cluster.local:5432/app")},
                        {"name": "LOG_LEVEL", "value": "info"},
                    ],
                    "resources": {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}},
                    "readinessProbe": probe, "livenessProbe": probe,
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }],
                "volumes": [{"name": "data", "emptyDir": {}}],
            },
        })
    }

    /// Returns the request that creates the pod with this number.
    fn request(&self, number: usize) -> PodRequest {
        let namespace = number % self.namespaces;
        PodRequest {
            path: format!("/api/v1/namespaces/{}/pods", namespace_name(namespace)),
            body: self.pod(&format!("web-{number}"), namespace, number).to_string().into_bytes(),
            injected: self
                .is_opted_in(namespace)
                .then(|| format!("\"name\":\"{}\"", profile_name(self.team(namespace)))),
        }
    }

    fn profile(number: usize) -> Json {
        let mut profile = crate::cold_start::profile(number);
        profile["spec"]["namespaceSelector"] = json!({"matchLabels": {"platform.example.com/team": team_name(number)}});
        profile
    }
}

#[expect(clippy::cast_precision_loss, reason = "the values are far below 2^53")]
fn exact(value: usize) -> f64 {
    value as f64
}

fn team_name(number: usize) -> String {
    format!("team-{number:04}")
}

/// Returns the name that [`crate::cold_start::namespace`] gives to a namespace.
fn namespace_name(number: usize) -> String {
    format!("team-{:03}-service-{number:05}", number % 400)
}

/// Returns the name that [`crate::cold_start::profile`] gives to a profile.
fn profile_name(number: usize) -> String {
    format!("agent-{number:04}")
}

/// The cluster, and what its audit must report.
struct LargeCluster {
    sizes: Sizes,
    managed: Managed,
    writers: Writers,
    traffic: Traffic,
    leader: IpAddr,
    /// The number of injected pods, and of pods that lack their profile.
    injected: usize,
    missing: usize,
    _kwok: Kwok,
}

impl LargeCluster {
    async fn start(sizes: Sizes) -> Result<Self> {
        let builder = ControlPlane::builder().default_garbage_collection();
        let managed = Managed::start_without_namespace(builder, POLICY, REPLICAS, CONTROLLERS).await?;
        let control_plane = &managed.rig.control_plane;
        let client = control_plane.client();
        let kwok = Kwok::start(control_plane, sizes.nodes).await?;
        let begun = Instant::now();
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let create = async |number| {
            namespaces.create(&PostParams::default(), &sizes.namespace(number)?).await?;
            anyhow::Ok(())
        };
        stream::iter(0..sizes.namespaces).map(create).buffer_unordered(WRITERS).try_collect::<()>().await?;
        let profiles: Api<DynamicObject> = Api::all_with(client, &ApiResource::erase::<ClusterInjectionProfile>(&()));
        let create = async |number| {
            profiles.create(&PostParams::default(), &serde_json::from_value(Sizes::profile(number))?).await?;
            anyhow::Ok(())
        };
        stream::iter(0..sizes.profiles).map(create).buffer_unordered(WRITERS).try_collect::<()>().await?;
        let created = begun.elapsed();
        eventually(PATIENCE, "each replica serves all profiles", async || {
            for replica in &managed.rig.replicas {
                let served = metric(replica, "pillion_webhook_profiles ").await?;
                ensure!(served > f64::from(u32::try_from(sizes.profiles)?), "{}: {served}", replica.address());
            }
            Ok(())
        })
        .await?;
        managed.rig.wait_until_called(&namespace_name(0)).await?;
        print_figures(&format!(
            "{} namespaces and {} profiles were created in {created:.1?}, and served after {:.1?}",
            sizes.namespaces,
            sizes.profiles,
            begun.elapsed()
        ));
        let (leader, writers) = (managed.leader().await?, Writers::new(control_plane, WRITERS)?);
        let traffic = Traffic::follow(control_plane)?;
        Ok(Self { sizes, managed, writers, traffic, leader, injected: 0, missing: 0, _kwok: kwok })
    }

    fn control_plane(&self) -> &ControlPlane {
        &self.managed.rig.control_plane
    }

    fn leader(&mut self) -> Result<&mut Replica> {
        let leader = self.leader;
        self.managed.controllers.iter_mut().find(|one| one.address() == leader).context("the leader")
    }

    /// Returns the memory and the processor time of each process.
    fn usages(&mut self) -> Result<BTreeMap<&'static str, Usage>> {
        let leader = self.leader;
        let rig = &mut self.managed.rig;
        let mut pids = vec![
            ("api_server", rig.control_plane.api_server().context("the API server")?.pid()),
            ("etcd", rig.control_plane.etcd().context("etcd")?.pid()),
        ];
        for (replica, name) in rig.replicas.iter_mut().zip(["replica_1", "replica_2"]) {
            pids.push((name, replica.process().pid()));
        }
        for controller in &mut self.managed.controllers {
            let name = if controller.address() == leader { "leader" } else { "standby" };
            pids.push((name, controller.process().pid()));
        }
        pids.into_iter().map(|(name, pid)| Ok((name, Usage::of(pid)?))).collect()
    }

    /// Adds the pods with these numbers to the cluster, and measures it.
    async fn stage(&mut self, pods: Range<usize>) -> Result<Stage> {
        let mut stage = Stage::new(pods.end, &self.sizes);
        self.create(pods, &mut stage).await?;
        self.miss(&mut stage).await?;
        self.idle(&mut stage).await?;
        self.change_leader(&mut stage).await?;
        Ok(stage)
    }

    /// Creates pods through the webhook, and measures what that costs.
    async fn create(&mut self, pods: Range<usize>, stage: &mut Stage) -> Result<()> {
        let (leader, replica) = (self.leader()?.process().pid(), self.managed.rig.replicas[0].process().pid());
        let before = self.usages()?;
        let received = [self.traffic.received(leader).await?, self.traffic.received(replica).await?];
        let sizes = self.sizes.clone();
        let begun = Instant::now();
        let created =
            self.writers.create_each(pods.clone(), PATIENCE, None, move |number| sizes.request(number)).await?;
        ensure!(created.took.len() == pods.len(), "{} of {} pods within {PATIENCE:?}", created.took.len(), pods.len());
        self.wait_until_running().await?;
        stage.created(&created, begun.elapsed());
        let opted_in = pods.filter(|number| self.sizes.is_opted_in(number % self.sizes.namespaces)).count();
        self.injected += opted_in - created.not_injected;
        self.missing += created.not_injected;
        ensure!(created.failed.is_empty(), "pods were not created: {:?}", created.failed);
        self.wait_until_audited().await?;
        stage.used(&before, &self.usages()?, opted_in);
        stage.watched(
            self.traffic.received(leader).await? - received[0],
            self.traffic.received(replica).await? - received[1],
        );
        Ok(())
    }

    /// Waits until kwok has started all pods.
    async fn wait_until_running(&self) -> Result<()> {
        let pods: Api<Pod> = Api::all(self.control_plane().client());
        let pending = ListParams::default().fields("status.phase=Pending").limit(1);
        eventually(PATIENCE, "all pods are running", async || {
            // Each list makes the API server search all pods.
            tokio::time::sleep(Duration::from_secs(1)).await;
            ensure!(pods.list_metadata(&pending).await?.items.is_empty(), "some pods are pending");
            Ok(())
        })
        .await
    }

    /// Waits until the leader's audit is complete and reports each pod of the opted-in namespaces correctly.
    async fn wait_until_audited(&mut self) -> Result<()> {
        let expected = [self.injected, self.missing, 1].map(u32::try_from);
        let leader = self.leader()?;
        eventually(PATIENCE, "the audit reports all pods", async || {
            let series = ["audit_pods{state=\"injected\"}", "audit_pods{state=\"missing\"}", "audit_complete"];
            for (series, expected) in series.iter().zip(expected) {
                let value = metric(leader, &format!("pillion_controller_{series}")).await?;
                ensure!((value - f64::from(expected?)).abs() < 0.5, "{series}: {value}, and not {expected:?}");
            }
            Ok(())
        })
        .await
    }

    /// Creates pods in opted-in namespaces while no replica runs, and measures the time until the audit reports them.
    /// Then starts fresh replicas.
    async fn miss(&mut self, stage: &mut Stage) -> Result<()> {
        for replica in &mut self.managed.rig.replicas {
            replica.kill()?;
        }
        let client = self.control_plane().client();
        let begun = Instant::now();
        let step = (self.sizes.namespaces / MISSED).max(1);
        let opted_in = (0..MISSED).filter_map(|number| {
            (number * step % self.sizes.namespaces..self.sizes.namespaces).find(|one| self.sizes.is_opted_in(*one))
        });
        for (number, namespace) in opted_in.enumerate() {
            let pod = self.sizes.pod(&format!("missed-{}-{number}", stage.pods), namespace, number);
            let path = format!("/api/v1/namespaces/{}/pods", namespace_name(namespace));
            let request = Request::post(path).header("content-type", "application/json");
            let stored = client.request_text(request.body(pod.to_string().into_bytes())?).await?;
            ensure!(!stored.contains("pillion.dev/injected"), "the pod was injected without a replica: {stored}");
            self.missing += 1;
        }
        self.wait_until_audited().await?;
        stage.found(begun.elapsed());

        self.managed.rig.replicas.clear();
        // A busy machine can delay one of the replicas, so only the quickest start counts.
        let mut quickest = Duration::MAX;
        for number in 1..=REPLICAS {
            let begun = Instant::now();
            let replica = Replica::start(&self.managed.rig.spec, replica_address(number)).await?;
            quickest = quickest.min(begun.elapsed());
            self.managed.rig.replicas.push(replica);
        }
        stage.ready(quickest, self.usages()?["replica_1"]);
        self.managed.rig.wait_until_called(&namespace_name(0)).await
    }

    /// Measures the processor time of processes that have nothing to do.
    async fn idle(&mut self, stage: &mut Stage) -> Result<()> {
        let before = self.usages()?;
        tokio::time::sleep(IDLE).await;
        stage.idle(&before, &self.usages()?, IDLE);
        Ok(())
    }

    /// Kills the leader, and measures the resources that the next leader uses until its audit is complete. Then starts
    /// another controller.
    async fn change_leader(&mut self, stage: &mut Stage) -> Result<()> {
        let old = self.leader;
        let standby = self.managed.controllers.iter_mut().find(|one| one.address() != old).context("the standby")?;
        let pid = standby.process().pid();
        let (before, received) = (self.usages()?["standby"], self.traffic.received(pid).await?);
        let metrics = ApiServerMetrics::read(self.control_plane()).await?;
        let begun = Instant::now();
        self.leader()?.kill()?;
        self.managed.controllers.retain(|one| one.address() != old);
        self.leader = eventually(PATIENCE, "another controller leads", async || {
            let leader = self.managed.leader().await?;
            ensure!(leader != old, "the Lease of the old leader has not expired");
            Ok(leader)
        })
        .await?;
        let elected = begun.elapsed();
        self.wait_until_audited().await?;
        stage.audited(elected, begun.elapsed().saturating_sub(elected));
        let lists = ApiServerMetrics::read(self.control_plane()).await?.lists_since(&metrics);
        let received = self.traffic.received(pid).await? - received;
        self.managed.controllers.push(controller(&self.managed.spec, old).await?);
        stage.changed_leader(before, self.usages()?["leader"], &lists, received);
        Ok(())
    }
}

#[test]
#[ignore = "takes up to an hour of all processors: just nightly large-cluster"]
fn large_cluster_is_within_budgets() {
    Isolation::new().own_network("measures the API server").time_limit(LIMIT).run(|| async {
        let sizes = Sizes::from_environment()?;
        let mut cluster = LargeCluster::start(sizes.clone()).await?;
        let version = cluster.control_plane().client().apiserver_version().await?.git_version;
        let mut report = Report::new(version, &sizes);
        let mut from = 0;
        for to in sizes.pods {
            let begun = Instant::now();
            report.stages.push(cluster.stage(from..to).await?);
            print_figures(&format!("the stage with {to} pods took {:.0?}", begun.elapsed()));
            // Prints the report after each stage, since a later stage may fail, for instance because the machine has
            // too little memory.
            report.print()?;
            from = to;
        }
        report.check()
    });
}
