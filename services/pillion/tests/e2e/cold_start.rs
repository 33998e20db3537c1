//! Measures how long a replica takes to become ready, and how much memory it then uses, with an empty and with a full
//! cluster.

#![allow(clippy::print_stdout, reason = "the test prints its measurements")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use pillion_api::ClusterInjectionProfile;
use pillion_testkit::namespace::replica_address;
use pillion_testkit::registration::SERVER_NAME;
use pillion_testkit::{ControlPlane, Isolation, Replica, ReplicaSpec, TestCa, eventually};
use serde_json::{Value as Json, json};

use crate::direct::{memory, metric, processor_time};
use crate::rig::{TRIES, install_crds, quickest};

/// Number of namespaces. `PILLION_TEST_NAMESPACES` overrides it. `just nightly` uses 10,000, the number for which the
/// docs state figures.
const NAMESPACES: usize = 2_000;

/// Number of profiles.
const PROFILES: usize = 2_000;

/// Time limits on a busy machine: to start with an empty cluster, to start with a full one, and to publish a change. On
/// an idle machine, the docs promise 1 and 3 seconds for the starts.
const EMPTY_LIMIT: Duration = Duration::from_secs(5);
const FULL_LIMIT: Duration = Duration::from_secs(15);
const CHANGE_LIMIT: Duration = Duration::from_secs(5);

/// Returns an opted-in namespace with the labels and annotations of a large platform.
pub(crate) fn namespace(number: usize) -> Result<Namespace> {
    let team = number % 400;
    Ok(serde_json::from_value(json!({"metadata": {
        "name": format!("team-{team:03}-service-{number:05}"),
        "labels": {
            "pillion.dev/injection": "enabled", "app.kubernetes.io/managed-by": "platform-provisioner",
            "platform.example.com/team": format!("team-{team:03}"), "pod-security.kubernetes.io/enforce": "baseline",
        },
        "annotations": {
            "platform.example.com/owner": format!("owners-of-team-{team:03}@example.com"),
            "platform.example.com/description": format!("The service number {number} of team {team}, in production"),
            "kubectl.kubernetes.io/last-applied-configuration": "x".repeat(900),
        },
    }}))?)
}

async fn make(control_plane: &ControlPlane, count: usize) -> Result<()> {
    let api: Api<Namespace> = Api::all(control_plane.client());
    let parameters = PostParams::default();
    let create = async |number| {
        api.create(&parameters, &namespace(number)?).await.with_context(|| format!("namespace {number}"))?;
        anyhow::Ok(())
    };
    stream::iter(0..count).map(create).buffer_unordered(32).try_collect().await
}

/// Returns a profile of 1.5 KB with three expressions.
pub(crate) fn profile(number: usize) -> Json {
    let name = format!("agent-{number:04}");
    json!({
        "apiVersion": "pillion.dev/v1alpha1", "kind": "ClusterInjectionProfile", "metadata": {"name": name},
        "spec": {
            "requestedBy": {"annotation": format!("sidecars.example.com/{name}")},
            "namespaceSelector": {"matchLabels": {"platform.example.com/team": format!("team-{:03}", number % 400)}},
            "matchConditions": [{"name": "not-a-job", "expression":
                "!object.metadata.?ownerReferences.orValue([]).exists(o, o.kind == 'Job')"}],
            "template": {
                "metadata": {"annotations": {format!("example.com/{name}"): "on"}},
                "spec": {
                    "containers": [{
                        "name": name, "image": format!("registry.example.com/platform/agents/{name}:1.0"),
                        "args": ["--listen", ":15020", "--log-format", "json", "--config", "/etc/agent/agent.yaml",
                                 "--service", "${object.metadata.?labels['app'].orValue('unknown')}"],
                        "env": [
                            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                            {"name": "TEAM", "value": "${namespaceObject.metadata.labels[?'team'].orValue('none')}"},
                            {"name": "ENDPOINT", "value": "https://collector.observability.svc.example.com:4317"},
                        ],
                        "ports": [{"name": "agent", "containerPort": 15_020}],
                        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
                        "readinessProbe": {"httpGet": {"path": "/ready", "port": 15_020}, "periodSeconds": 5},
                        "securityContext": {"runAsNonRoot": true, "runAsUser": 1337, "readOnlyRootFilesystem": true,
                            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                        "volumeMounts": [{"name": "agent-config", "mountPath": "/etc/agent", "readOnly": true}],
                    }],
                    "volumes": [{"name": "agent-config", "configMap": {"name": "agent-config", "optional": true}}],
                },
            },
        },
    })
}

async fn make_profiles(control_plane: &ControlPlane, count: usize) -> Result<()> {
    let api: Api<DynamicObject> =
        Api::all_with(control_plane.client(), &ApiResource::erase::<ClusterInjectionProfile>(&()));
    let parameters = PostParams::default();
    let create = async |number| {
        let profile = serde_json::from_value(profile(number))?;
        api.create(&parameters, &profile).await.with_context(|| format!("profile {number}"))?;
        anyhow::Ok(())
    };
    stream::iter(0..count).map(create).buffer_unordered(32).try_collect().await
}

/// Changes the order of one profile. Returns how long the replica took to publish the change. The result may be up to
/// about 100 ms too long, because the metric is polled.
async fn change_one(control_plane: &ControlPlane, replica: &Replica, order: i32) -> Result<Duration> {
    let api: Api<DynamicObject> =
        Api::all_with(control_plane.client(), &ApiResource::erase::<ClusterInjectionProfile>(&()));
    let generation = metric(replica, "pillion_webhook_snapshots_total").await?;
    let patch = Patch::Merge(json!({"spec": {"order": order}}));
    api.patch("agent-0007", &PatchParams::default(), &patch).await?;
    let began = Instant::now();
    eventually(Duration::from_mins(1), "the change is served", async || {
        ensure!(metric(replica, "pillion_webhook_snapshots_total").await? > generation, "not yet");
        Ok(began.elapsed())
    })
    .await
}

/// Starts a replica. Returns the replica, and how long it took to become ready.
async fn start(what: &str, spec: &ReplicaSpec, number: u8) -> Result<(Replica, Duration)> {
    let began = Instant::now();
    let mut replica = Replica::start(spec, replica_address(number)).await?;
    let took = began.elapsed();
    let pid = replica.process().pid();
    println!(
        "{what}: ready after {took:?}, processor {:?}, RssAnon {} KiB, its peak of all memory {} KiB",
        processor_time(pid)?,
        memory(pid, "RssAnon")?,
        memory(pid, "VmHWM")?
    );
    Ok((replica, took))
}

/// Starts a replica that becomes ready within `limit`. Retries if it takes longer, since a busy machine can cause a
/// single delay.
async fn start_within(limit: Duration, what: &str, spec: &ReplicaSpec, number: u8) -> Result<Replica> {
    let mut shortest = Duration::MAX;
    for _ in 0..TRIES {
        let (replica, took) = start(what, spec, number).await?;
        if took < limit {
            return Ok(replica);
        }
        shortest = shortest.min(took);
    }
    bail!("{what}: ready after {shortest:?}")
}

#[test]
fn replica_starts_quickly_with_many_namespaces() {
    let count = std::env::var("PILLION_TEST_NAMESPACES").ok().and_then(|count| count.parse().ok());
    let count = count.unwrap_or(NAMESPACES);
    Isolation::new().with_crds().time_limit(Duration::from_mins(15)).run(|| async move {
        let control_plane = ControlPlane::start().await?;
        install_crds(&control_plane).await?;
        let ca = TestCa::new()?;
        let tls = ca.serving_files(control_plane.directory(), "serving", &[SERVER_NAME])?;
        let mut spec = ReplicaSpec::new(env!("CARGO_BIN_EXE_pillion"), control_plane.kubeconfig(), tls);
        spec.args = ["--drain-minimum", "0"].map(str::to_owned).into();

        drop(start_within(EMPTY_LIMIT, "an empty cluster", &spec, 1).await?);
        let began = Instant::now();
        make(&control_plane, count).await?;
        println!("{count} namespaces were created in {:?}", began.elapsed());
        let replica = start_within(FULL_LIMIT, &format!("{count} namespaces"), &spec, 2).await?;
        let known = metric(&replica, "pillion_webhook_cache_objects{kind=\"namespaces\"}").await?;
        ensure!(known >= f64::from(u32::try_from(count)?), "{known} namespaces are known");
        drop(replica);
        make_profiles(&control_plane, PROFILES).await?;
        let (mut replica, _) = start(&format!("{count} namespaces and {PROFILES} profiles"), &spec, 3).await?;
        let known = metric(&replica, "pillion_webhook_cache_objects{kind=\"clusterinjectionprofiles\"}").await?;
        ensure!(known >= f64::from(u32::try_from(PROFILES)?), "{known} profiles are known");
        let broken = metric(&replica, "pillion_webhook_broken_profiles").await?;
        ensure!(broken < 1.0, "{broken} profiles are broken");
        let mut order = 6;
        quickest(CHANGE_LIMIT, "a changed profile is served", async || {
            order += 1;
            change_one(&control_plane, &replica, order).await
        })
        .await?;
        let anonymous = memory(replica.process().pid(), "RssAnon")?;
        ensure!(anonymous <= 48 * 1024, "{anonymous} KiB of anonymous memory");
        Ok(())
    });
}
