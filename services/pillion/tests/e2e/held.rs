//! Tests `held` namespaces with an installation of Pillion. While every replica is down, no pod is rejected, and no pod
//! is scheduled without its sidecar. After the replicas return, the controller has all waiting pods with an owner
//! recreated, even if its leader is killed in the meantime. The real Kubernetes controllers create the pods. Pillion's
//! processes have only the permissions of their service accounts.

mod cluster;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use pillion_api::names::INJECTION_GATE;
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControllerManager, Isolation, eventually};
use serde_json::{Value as Json, json};

use self::cluster::{Cluster, Creations, HELD_NAMESPACE, Scheduler, bind, gates, is_gated, is_injected};
use crate::load::print_figures;
use crate::managed::RELEASE;
use crate::rig::{PATIENCE, REQUEST_ANNOTATION, SOON, bare_pod, names};

/// Maximum time from the return of the replicas until all pods with an owner that were created without replicas are
/// injected.
const RECOVERY: Duration = Duration::from_secs(30);

fn owner(pod: &Json) -> String {
    let owner = &pod["metadata"]["ownerReferences"][0];
    let name = owner["name"].as_str().unwrap_or("nobody");
    // The name of a ReplicaSet starts with the name of its Deployment.
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
    json!({"metadata": {"labels": {"app": "x"}, "annotations": {REQUEST_ANNOTATION: "yes"}}, "spec": spec})
}

/// Returns a Deployment, a StatefulSet, a DaemonSet and several Jobs. Each Job fails permanently if one of its pods is
/// counted as failed.
fn workloads() -> String {
    let selector = json!({"matchLabels": {"app": "x"}});
    let plain = template(&json!({}));
    let never = template(&json!({"restartPolicy": "Never"}));
    let object = |api: &str, kind: &str, name: &str, spec: Json| json!({"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": HELD_NAMESPACE}, "spec": spec});
    let with = |name: &str, mut spec: Json| {
        // Each workload needs a different label, since most kinds select their pods by label.
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
        deployment("web"),
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

/// Number of replicas of each Deployment. The controller releases at most 20 pods per second, so a release takes
/// several seconds.
const WEB: usize = 60;

/// The expected number of pods of each workload.
const EXPECTED: [(&str, usize); 9] = [
    ("agent", 2),
    ("db", 2),
    ("early", WEB),
    ("indexed", 2),
    ("later", 1),
    ("nobody", 1),
    ("once", 1),
    ("strict", 1),
    ("web", WEB),
];

/// Returns a Deployment with [`WEB`] replicas.
fn deployment(name: &str) -> Json {
    let mut template = template(&json!({}));
    template["metadata"]["labels"]["app"] = json!(name);
    let spec = json!({"replicas": WEB, "selector": {"matchLabels": {"app": name}}, "template": template});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": HELD_NAMESPACE}, "spec": spec})
}

#[test]
fn held_pods_wait_until_replicas_recover() {
    Isolation::new().with_crds().time_limit(Duration::from_mins(12)).run(|| async {
        let mut cluster = Cluster::start(3, 2).await?;
        let client = cluster.rig().control_plane.client();
        let _owners = ControllerManager::start(&cluster.rig().control_plane).await?;
        for node in ["one", "two"] {
            let node = format!("{{apiVersion: v1, kind: Node, metadata: {{name: {node}}}}}");
            cluster.rig().control_plane.apply_yaml(&node).await?;
        }
        let (scheduler, creations) = (Scheduler::start(cluster.rig()), Creations::start(cluster.rig()));

        // All replicas die while pods are being created.
        cluster.rig().control_plane.apply_yaml(&deployment("early").to_string()).await?;
        eventually(PATIENCE, "the first pods are injected", async || {
            // The pods are read from the API server, because the test's `Scheduler` observes pods late while it binds
            // others. Some pods must still be missing.
            let injected = cluster.pods().await?.iter().filter(|pod| is_injected(pod)).count();
            ensure!(injected >= 10, "{injected} so far");
            Ok(())
        })
        .await?;
        cluster.kill_replicas().await?;

        // The API server creates all further pods, and each of them gets the scheduling gate.
        cluster.rig().control_plane.apply_yaml(&workloads()).await?;
        cluster.rig().create(HELD_NAMESPACE, &bare_pod("bare")).await?;
        let jobs: Api<Job> = Api::namespaced(client.clone(), HELD_NAMESPACE);
        let resume = Patch::Merge(json!({"spec": {"suspend": false}}));
        jobs.patch("later", &PatchParams::default(), &resume).await?;
        let all = eventually(PATIENCE, "all pods exist", async || {
            let pods = cluster.pods().await?;
            let found = count_by_owner(&pods);
            ensure!(found == counts(&EXPECTED), "{found:?}");
            Ok(pods)
        })
        .await?;
        let (waiting, before): (Vec<Json>, Vec<Json>) = all.into_iter().partition(is_gated);
        ensure!(before.iter().all(|pod| is_injected(pod) && owner(pod) == "early"), "{:?}", count_by_owner(&before));
        ensure!(before.len() < WEB, "the replicas stopped after all pods were created");
        ensure!(waiting.iter().all(|pod| names(pod) == ["app"]), "no replica injected");

        // A gated pod does not run, even if a client tries to bind it to a node.
        let bound = bind(&client, "bare", "one").await;
        ensure!(bound.as_ref().is_err_and(|error| error.to_string().contains("schedulingGates")), "{bound:?}");
        eventually(SOON, "the metric counts the waiting pods of Jobs", async || {
            ensure!(cluster.metric("pillion_controller_held_pods{owner=\"job\"}").await? == 5, "not yet");
            Ok(())
        })
        .await?;
        // The controller changes no pod while no replica responds.
        let still = cluster.pods().await?.into_iter().filter(is_gated).collect::<Vec<_>>();
        ensure!(ids(&still) == ids(&waiting), "pods were replaced while no replica responded");

        // Simulates a Job controller that stopped after it had removed its finalizer from a pod.
        let indexed = waiting.iter().find(|pod| owner(pod) == "indexed").context("a pod of the Job")?;
        let name = indexed["metadata"]["name"].as_str().context("a name")?;
        cluster.rig().patch(HELD_NAMESPACE, name, &json!({"metadata": {"finalizers": null}})).await?;

        cluster.start_replicas_again().await?;
        let began = Instant::now();
        let release = kill_leader_during_release(&mut cluster, began).await?;

        // No pod was rejected, and no injected pod was replaced.
        let events: Api<Event> = Api::namespaced(client.clone(), HELD_NAMESPACE);
        let refused = events.list(&ListParams::default().fields("reason=FailedCreate")).await?;
        ensure!(refused.items.is_empty(), "rejected creations: {:?}", refused.items);
        let now = ids(&cluster.pods().await?);
        ensure!(ids(&before).iter().all(|id| now.contains(id)), "a pod with its sidecar was replaced");
        print_figures(&format!(
            "{} pods: {} injected before all three replicas died, {} waited. {release}",
            before.len() + waiting.len(),
            before.len(),
            waiting.len(),
        ));

        expect_jobs_complete(&cluster).await?;
        expect_pod_without_owner_waits(&cluster).await?;

        // No stored pod could run without its sidecar, and no creation failed in the meantime.
        let (stored, dry) = (scheduler.stop().await?, creations.stop().await?);
        print_figures(&format!("stored pods: {stored}. Pods without an owner, as dry runs: {dry}"));
        stored.expect_no_loss()?;
        dry.expect_no_loss()?;
        ensure!(!dry.injected.is_empty() && !dry.waited.is_empty(), "{dry}");
        cluster.expect_no_forbidden_requests()
    });
}

/// Kills the leader while it releases waiting pods. Waits until all pods with an owner are injected. Returns a summary
/// of the release.
async fn kill_leader_during_release(cluster: &mut Cluster, began: Instant) -> Result<String> {
    let released = "pillion_controller_held_pods_handled_total{result=\"recreated\"}";
    let by_the_first = eventually(RECOVERY, "the release has started", async || {
        let count = cluster.metric(released).await?;
        ensure!(count >= 20, "{count} so far");
        Ok(count)
    })
    .await?;
    let (began_after, leader) = (began.elapsed(), cluster.managed.leader().await?);
    cluster.kill_leader().await?;
    let left = cluster.pods().await?.iter().filter(|pod| is_gated(pod)).count();
    ensure!(left > 10, "the leader stopped after the release: {left} wait");
    eventually(RECOVERY.saturating_sub(began.elapsed()), "all pods with an owner are injected", async || {
        let pods = cluster.pods().await?;
        cluster.delete_terminating_pods(&pods).await?;
        let found = count_by_owner(&pods);
        ensure!(found == counts(&EXPECTED), "{found:?}");
        let without: Vec<_> = pods.iter().filter(|pod| owner(pod) != "nobody" && !is_injected(pod)).collect();
        ensure!(without.is_empty(), "{:?}", count_by_owner(without));
        Ok(())
    })
    .await?;
    let through = began.elapsed();
    let next = cluster.managed.leader().await?;
    ensure!(next != leader, "{leader} still leads");
    let by_the_next = cluster.metric(released).await?;
    ensure!(by_the_next > 0, "the next leader recreated no pod");
    Ok(format!(
        "The release began {began_after:.1?} after recovery, its leader died after {by_the_first} pods with {left} still \
         waiting, the next made {by_the_next} anew, and all were injected {through:.1?} after recovery"
    ))
}

/// Checks that the Jobs do not count pods that never ran as failed, and that each Job completes.
async fn expect_jobs_complete(cluster: &Cluster) -> Result<()> {
    let jobs: Api<Job> = Api::namespaced(cluster.rig().control_plane.client(), HELD_NAMESPACE);
    for name in ["once", "indexed", "strict", "later"] {
        let status = jobs.get(name).await?.status.unwrap_or_default();
        ensure!(status.failed.unwrap_or(0) == 0, "{name}: {status:?}");
        let conditions = status.conditions.unwrap_or_default();
        ensure!(conditions.iter().all(|each| !each.type_.starts_with("Fail")), "{name}: {conditions:?}");
    }
    finish_jobs(cluster).await?;
    eventually(PATIENCE, "all Jobs are complete", async || {
        for job in jobs.list(&ListParams::default()).await? {
            let name = job.metadata.name.unwrap_or_default();
            let conditions = job.status.and_then(|status| status.conditions).unwrap_or_default();
            let complete = conditions.iter().any(|each| each.type_ == "Complete" && each.status == "True");
            ensure!(complete, "{name}: {conditions:?}");
        }
        Ok(())
    })
    .await
}

/// Checks that a pod without an owner is reported and keeps waiting, and that it is injected once an administrator
/// follows `docs/held.md`.
async fn expect_pod_without_owner_waits(cluster: &Cluster) -> Result<()> {
    let events: Api<Event> = Api::namespaced(cluster.rig().control_plane.client(), HELD_NAMESPACE);
    let bare = serde_json::to_value(cluster.rig().pods(HELD_NAMESPACE).get("bare").await?)?;
    ensure!(is_gated(&bare), "{bare}");
    eventually(SOON, "the pod without an owner is reported", async || {
        let found = events.list(&ListParams::default().fields("reason=InjectionHeld")).await?;
        ensure!(found.items.iter().any(|event| event.involved_object.name.as_deref() == Some("bare")), "not yet");
        Ok(())
    })
    .await?;
    let listed = cluster.page("# Which pods wait").await?;
    ensure!(listed.contains("bare") && !listed.contains("web-"), "{listed}");
    cluster.page("# A pod without an owner").await?;
    let bare = serde_json::to_value(cluster.rig().pods(HELD_NAMESPACE).get("bare").await?)?;
    ensure!(is_injected(&bare), "{bare}");
    Ok(())
}

fn ids(pods: &[Json]) -> Vec<String> {
    pods.iter().map(|pod| pod["metadata"]["uid"].to_string()).collect()
}

/// Marks the pods of the Jobs as succeeded, like a kubelet.
async fn finish_jobs(cluster: &Cluster) -> Result<()> {
    for pod in cluster.pods().await? {
        if pod["metadata"]["ownerReferences"][0]["kind"] == "Job" {
            let name = pod["metadata"]["name"].as_str().context("a name")?;
            let status = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
            cluster.rig().pods(HELD_NAMESPACE).patch_status(name, &PatchParams::default(), &status).await?;
        }
    }
    Ok(())
}

#[test]
fn gate_stays_until_label_is_removed() {
    Isolation::new().with_crds().run(|| async {
        let mut cluster = Cluster::start(1, 1).await?;
        let client = cluster.rig().control_plane.client();
        let pods: Api<Pod> = cluster.rig().pods(HELD_NAMESPACE);

        // While replicas respond, gates of other controllers are kept, and a pod with a `nodeName` is injected.
        let mut pod = bare_pod("others");
        pod["spec"]["schedulingGates"] = json!([{"name": "a"}, {"name": INJECTION_GATE}, {"name": "b"}]);
        let created = cluster.rig().create(HELD_NAMESPACE, &pod).await?;
        ensure!(gates(&created) == ["a", "b"] && names(&created).len() == 2, "{created}");
        let mut bound = bare_pod("bound");
        bound["spec"]["nodeName"] = json!("one");
        ensure!(is_injected(&cluster.rig().create(HELD_NAMESPACE, &bound).await?));
        let unasked = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "unasked"},
                             "spec": {"containers": [{"name": "app", "image": "app:1"}]}});
        let unasked = cluster.rig().create(HELD_NAMESPACE, &unasked).await?;
        ensure!(gates(&unasked).is_empty() && names(&unasked) == ["app"], "no profile is requested: {unasked}");

        cluster.kill_replicas().await?;
        let mut forged = bare_pod("forged");
        forged["metadata"]["annotations"]["pillion.dev/injected"] = json!("{\"version\":1,\"profiles\":[]}");
        ensure!(is_gated(&cluster.rig().create(HELD_NAMESPACE, &forged).await?), "a forged record bypasses the gate");
        cluster.rig().create(HELD_NAMESPACE, &bare_pod("bare")).await?;
        bound["metadata"]["name"] = json!("bound-too");
        let refused = cluster.rig().create(HELD_NAMESPACE, &bound).await;
        ensure!(refused.as_ref().is_err_and(|error| error.to_string().contains("schedulingGates")), "{refused:?}");

        // A mirror pod that a kubelet creates for a static pod does not get the gate. A pod with the same annotation
        // from another client does.
        let mut mirror = bound.clone();
        mirror["metadata"] = json!({"name": "mirror", "annotations": {"kubernetes.io/config.mirror": "hash"}});
        let kubelet = cluster.rig().control_plane.client_as("system:node:one", &["system:masters"]).await?;
        let create = |client, pod: &Json| {
            let (pod, parameters) = (serde_json::from_value::<Pod>(pod.clone()), PostParams::default());
            async move { anyhow::Ok(Api::<Pod>::namespaced(client, HELD_NAMESPACE).create(&parameters, &pod?).await?) }
        };
        ensure!(create(client.clone(), &mirror).await.is_err(), "the annotation bypasses the gate");
        let mirror = serde_json::to_value(create(kubelet, &mirror).await?)?;
        ensure!(gates(&mirror).is_empty(), "{mirror}");

        // Only the controller may remove the gate: even the request of an administrator is rejected. Other fields may
        // change.
        let without = Patch::Merge(json!({"spec": {"schedulingGates": []}}));
        // A separate policy protects the gate. It may become active later than the policy that adds the gate.
        eventually(SOON, "the gate is protected", async || {
            let tried = pods.patch("bare", &PatchParams { dry_run: true, ..PatchParams::default() }, &without).await;
            tried.err().context("the gate was removed").map(drop)
        })
        .await?;
        let error =
            pods.patch("bare", &PatchParams::default(), &without).await.err().context("the gate was removed")?;
        ensure!(matches!(&error, kube::Error::Api(status) if status.code == 403), "{error}");
        ensure!(error.to_string().contains("only Pillion removes the scheduling gate"), "{error}");
        cluster.rig().patch(HELD_NAMESPACE, "bare", &json!({"metadata": {"labels": {"a": "b"}}})).await?;

        // The controller reverts changes to the policies.
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
        bindings.delete("pillion-held", &DeleteParams::default()).await?;
        let policies: Api<MutatingAdmissionPolicy> = Api::all(client.clone());
        let never = json!({"spec": {"matchConditions": [{"name": "never", "expression": "false"}]}});
        let strategic = Patch::Strategic(never);
        policies.patch("pillion-held", &PatchParams::apply("somebody"), &strategic).await?;
        let began = Instant::now();
        eventually(SOON, "the policies are restored", async || {
            bindings.get("pillion-held").await?;
            let conditions = policies.get("pillion-held").await?.spec.unwrap_or_default().match_conditions;
            let names: Vec<_> = conditions.into_iter().flatten().map(|condition| condition.name).collect();
            ensure!(names == ["not-a-mirror-pod", "not-gated-yet"], "{names:?}");
            Ok(())
        })
        .await?;
        eprintln!("the policies were restored after {:?}", began.elapsed());

        // If the label is removed while every replica is down, pods run without the sidecar at once.
        cluster.page("# Free a namespace").await?;
        eventually(PATIENCE, "the pods are released", async || {
            for name in ["bare", "forged"] {
                let pod = serde_json::to_value(pods.get(name).await?)?;
                ensure!(gates(&pod).is_empty(), "{name} waits");
            }
            Ok(())
        })
        .await?;

        // Without a controller, another command of the page removes the gate.
        cluster.rig().label_namespace(HELD_NAMESPACE, "pillion.dev/injection", "held").await?;
        cluster.wait_until_pods_gated().await?;
        cluster.kill_leader().await?;
        cluster.rig().create(HELD_NAMESPACE, &bare_pod("stuck")).await?;
        cluster.page("# Free a namespace").await?;
        eventually(PATIENCE, "the page's command releases the pods", async || {
            cluster.page("# Remove the gate").await?;
            let pod = serde_json::to_value(cluster.rig().pods(HELD_NAMESPACE).get("stuck").await?)?;
            ensure!(gates(&pod).is_empty(), "the pod waits");
            Ok(())
        })
        .await?;
        Ok(())
    });
}

/// Sets the kill switch, like an administrator.
async fn switch(cluster: &Cluster, word: &str) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.rig().control_plane.client(), NAMESPACE);
    // The controller creates the ConfigMap once API servers can reach replicas, or after 30 seconds.
    eventually(Duration::from_mins(1), "the ConfigMap exists", async || Ok(maps.get(RELEASE).await.map(drop)?)).await?;
    let patch = Patch::Merge(json!({"data": {"injection": word}}));
    maps.patch(RELEASE, &PatchParams::default(), &patch).await?;
    Ok(())
}

#[test]
fn disabling_held_removes_policies_and_gates() {
    Isolation::new().with_crds().run(|| async {
        let mut cluster = Cluster::start(1, 1).await?;
        cluster.kill_replicas().await?;
        cluster.rig().create(HELD_NAMESPACE, &bare_pod("bare")).await?;
        switch(&cluster, "disabled").await?;
        eventually(PATIENCE, "no pod waits and no policy is left", async || {
            let bare = serde_json::to_value(cluster.rig().pods(HELD_NAMESPACE).get("bare").await?)?;
            ensure!(gates(&bare).is_empty(), "the pod waits");
            let kinds = "mutatingadmissionpolicies,mutatingadmissionpolicybindings,validatingadmissionpolicies,\
                         validatingadmissionpolicybindings";
            let left = cluster.rig().control_plane.kubectl_ok(&["get", kinds, "-o", "name"]).await?;
            ensure!(!left.contains(RELEASE), "{left}");
            let fresh = cluster.rig().dry_run(HELD_NAMESPACE, &bare_pod("fresh")).await?;
            ensure!(gates(&fresh).is_empty(), "the API server still adds the gate");
            ensure!(cluster.metric("pillion_controller_held_policies{state=\"off\"}").await? == 1);
            Ok(())
        })
        .await?;
        // After injection is enabled again, new pods wait, since still no replica responds.
        switch(&cluster, "enabled").await?;
        cluster.wait_until_pods_gated().await?;
        cluster.expect_no_forbidden_requests()
    });
}
