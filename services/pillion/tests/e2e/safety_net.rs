//! Tests the safety net on a real API server: pods that only its admission policy changed must be equal to pods that a
//! replica injected, and a replica undoes the changes of the policy. The controller updates the policy when profiles
//! change.

mod cases;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use axum::http::Request;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, Isolation, eventually};
use serde_json::{Value as Json, json};

use self::cases::{COVERED_PROFILES, Generator, limited, namespaces, ordinary, profiles};
use crate::load::print_figures;
use crate::managed::{Managed, QUICK, RELEASE, controller};
use crate::rig::{PATIENCE, Rig, SOON};

/// The name of the policy and of its binding.
pub(crate) const POLICY: &str = "pillion-safety-net";

/// The number of generated pods to which only covered profiles apply, and the number of other pods.
const PODS: usize = 1_000;
const OTHERS: usize = 400;

/// The name of the role with the permissions that the chart adds for `safetyNet.enabled`.
const ROLE: &str = "pillion-controller-safety-net";

/// The permissions that the chart adds for `safetyNet.enabled`; `tests/chart.rs` checks them.
pub(crate) fn role() -> Json {
    let rule = json!({
        "apiGroups": ["admissionregistration.k8s.io"], "resourceNames": [POLICY],
        "resources": ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"],
        "verbs": ["list", "watch", "create", "update", "patch"],
    });
    let name = json!({"name": ROLE});
    let subject = json!({"kind": "ServiceAccount", "name": "pillion-controller", "namespace": NAMESPACE});
    let reference = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name["name"]});
    let version = "rbac.authorization.k8s.io/v1";
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": version, "kind": "ClusterRole", "metadata": name, "rules": [rule]},
        {"apiVersion": version, "kind": "ClusterRoleBinding", "metadata": name, "roleRef": reference, "subjects": [subject]},
    ]})
}

/// Creates a pod as a dry run. Returns the pod that would be stored, or the status of the rejection.
async fn send(rig: &Rig, namespace: &str, pod: &Json) -> Result<Json> {
    let path = format!("/api/v1/namespaces/{namespace}/pods?dryRun=All");
    let request = Request::post(path).header("content-type", "application/json").body(pod.to_string().into_bytes())?;
    match rig.control_plane.client().request_text(request).await {
        Ok(text) => Ok(comparable(serde_json::from_str(&text)?)),
        Err(kube::Error::Api(status)) => Ok(json!({"code": status.code, "message": status.message})),
        Err(error) => Err(error).context("the API server does not answer"),
    }
}

async fn send_all(rig: &Rig, pods: &[(&'static str, Json)]) -> Result<Vec<Json>> {
    futures::stream::iter(pods.iter().map(|(namespace, pod)| send(rig, namespace, pod))).buffered(8).try_collect().await
}

/// Removes the fields that differ between two creations of the same pod.
fn comparable(mut pod: Json) -> Json {
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        if metadata.contains_key("generateName") {
            metadata.remove("name");
        }
        for field in ["uid", "creationTimestamp", "managedFields", "resourceVersion"] {
            metadata.remove(field);
        }
    }
    pod
}

/// Returns a pod without the mark of the policy in its record.
fn without_mark(pod: &Json) -> Json {
    let mut pod = pod.clone();
    if let Some(Json::String(record)) = pod.pointer_mut("/metadata/annotations/pillion.dev~1injected") {
        *record = record.replace(",\"by\":\"policy\"", "");
    }
    pod
}

/// Creates a pod in the namespace `asking` as a dry run. Returns its injection record.
async fn record_of(rig: &Rig, pod: &Json) -> Result<String> {
    let pod = send(rig, "asking", pod).await?;
    ensure!(pod["spec"].is_object(), "{pod}");
    Ok(pod["metadata"]["annotations"]["pillion.dev/injected"].as_str().unwrap_or_default().to_owned())
}

/// Returns an error with the first three differences unless the results are equal.
fn expect_equal(what: &str, pods: &[(&str, Json)], expected: &[Json], found: &[Json]) -> Result<()> {
    let all = pods.iter().zip(expected.iter().zip(found));
    let different: Vec<_> = all.filter(|(_, (expected, found))| expected != found).collect();
    let first: Vec<_> = different
        .iter()
        .take(3)
        .map(|((namespace, pod), (expected, found))| format!("{namespace}: {pod}\n  alone {expected}\n  here  {found}"))
        .collect();
    ensure!(different.is_empty(), "{what}: {} of {} differ:\n{}", different.len(), pods.len(), first.join("\n"));
    Ok(())
}

/// Returns how often the API server has evaluated the policy.
async fn evaluations(rig: &Rig) -> Result<u64> {
    let text = rig.control_plane.client().request_text(Request::get("/metrics").body(Vec::new())?).await?;
    let counts = text
        .lines()
        .filter(|line| line.starts_with("apiserver_mutating_admission_policy_check_total") && line.contains(POLICY));
    let counts = counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the counts are small")]
    Ok(counts.sum::<f64>() as u64)
}

struct Net {
    managed: Managed,
    policies: Api<MutatingAdmissionPolicy>,
    bindings: Api<MutatingAdmissionPolicyBinding>,
}

impl Net {
    /// Starts an installation whose controller has no permission for the policy yet.
    async fn start() -> Result<Self> {
        let policy = format!("{QUICK}safetyNet: {{enabled: true}}\n");
        let managed = Managed::start_without_namespace(ControlPlane::builder(), &policy, 2, 1).await?;
        let rig = &managed.rig;
        rig.control_plane.apply_yaml(&namespaces().to_string()).await?;
        rig.control_plane.apply_yaml(&profiles().to_string()).await?;
        rig.wait_until_called("shop").await?;
        // The shipped profile of the rig, eight cluster profiles and one namespaced profile.
        rig.wait_until_served(10).await?;
        let client = rig.control_plane.client();
        Ok(Self { policies: Api::all(client.clone()), bindings: Api::all(client), managed })
    }

    const fn rig(&self) -> &Rig {
        &self.managed.rig
    }

    /// Waits until the policy covers this many profiles, or does not exist if it is 0.
    async fn wait_for(&self, profiles: u64) -> Result<()> {
        eventually(PATIENCE, "the policy is in step", async || {
            let policy = self.policies.get_opt(POLICY).await?;
            let mutations = policy.and_then(|policy| policy.spec?.mutations).map_or(0, |mutations| mutations.len());
            let binding = self.bindings.get_opt(POLICY).await?;
            ensure!(mutations as u64 == profiles, "{mutations} mutations");
            ensure!(binding.is_some() == (profiles > 0), "{binding:?}");
            Ok(())
        })
        .await
    }

    async fn ready(&self, profile: &str) -> Result<String> {
        let path = format!("/apis/pillion.dev/v1alpha1/clusterinjectionprofiles/{profile}");
        let request = Request::get(path).body(Vec::new())?;
        let stored: Json = serde_json::from_str(&self.rig().control_plane.client().request_text(request).await?)?;
        let conditions = stored["status"]["conditions"].as_array().context("conditions")?;
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready").context("the condition Ready")?;
        Ok(ready["message"].as_str().unwrap_or_default().to_owned())
    }

    async fn patch_profile(&self, name: &str, spec: &Json) -> Result<()> {
        let patch = json!({"spec": spec}).to_string();
        self.rig().control_plane.kubectl_ok(&["patch", "ciprof", name, "--type=merge", "--patch", &patch]).await?;
        Ok(())
    }

    /// Kills the leader, changes a profile while nobody leads, and starts another controller. The policy must stay in
    /// place, and the new leader must write it only once, for the changed profile. It must not write the binding, for
    /// which nothing changed.
    async fn change_leader(&mut self) -> Result<()> {
        let before = self.policies.get(POLICY).await?.metadata;
        let binding = self.bindings.get(POLICY).await?.metadata.resource_version;
        let address = self.managed.leader().await?;
        self.managed.controllers.remove(0).kill()?;
        self.patch_profile("asked", &json!({"template": {"metadata": {"annotations": {"asked": "meanwhile"}}}}))
            .await?;
        let unchanged = self.policies.get(POLICY).await?.metadata;
        ensure!(unchanged.resource_version == before.resource_version, "nobody leads, but the policy has changed");
        self.managed.controllers.push(controller(&self.managed.spec, address).await?);
        let after = eventually(PATIENCE, "the new leader updates the policy", async || {
            let policy = self.policies.get(POLICY).await?;
            ensure!(serde_json::to_string(&policy.spec)?.contains("'meanwhile'"), "not yet");
            Ok(policy.metadata)
        })
        .await?;
        ensure!(after.uid == before.uid, "the policy was created again");
        let generations = (before.generation.unwrap_or_default(), after.generation.unwrap_or_default());
        ensure!(generations.1 == generations.0 + 1, "the policy was written several times: {generations:?}");
        let unchanged = self.bindings.get(POLICY).await?.metadata.resource_version;
        ensure!(unchanged == binding, "the binding was written");
        Ok(())
    }

    /// Disables the safety net as an upgrade of the chart does: removes the permissions, and restarts the controller
    /// with the new policy file.
    async fn disable(&mut self) -> Result<()> {
        let address = self.managed.leader().await?;
        self.managed.controllers.remove(0).kill()?;
        let control_plane = &self.managed.rig.control_plane;
        control_plane.kubectl_ok(&["delete", "clusterrole,clusterrolebinding", ROLE]).await?;
        std::fs::write(control_plane.directory().join("controller.yaml"), QUICK)?;
        self.managed.controllers.push(controller(&self.managed.spec, address).await?);
        Ok(())
    }

    async fn kill_replicas(&mut self) -> Result<()> {
        for replica in &mut self.managed.rig.replicas {
            replica.kill()?;
        }
        for replica in &self.managed.rig.replicas {
            self.managed.rig.service.set_ready(replica.address(), false).await?;
        }
        Ok(())
    }
}

#[test]
fn policy_serves_pods_as_replicas_do() {
    Isolation::new().with_crds().time_limit(Duration::from_mins(12)).run(|| async {
        let mut net = Net::start().await?;
        let mut generator = Generator::new(7);
        let covered: Vec<_> = (0..PODS).map(|number| generator.pod(number, true)).collect();
        let others: Vec<_> = (0..OTHERS).map(|number| generator.pod(number, false)).collect();

        // Only the webhook changes the pods.
        ensure!(net.policies.get_opt(POLICY).await?.is_none(), "the controller has no permission yet");
        let alone = send_all(net.rig(), &covered).await?;
        let others_alone = send_all(net.rig(), &others).await?;
        let injected = alone.iter().filter(|pod| pod.to_string().contains("pillion.dev/injected")).count();
        ensure!(injected > PODS / 2 && injected < PODS, "{injected} of {PODS} pods are injected");

        // The policy and the webhook change the pods.
        net.rig().control_plane.apply_yaml(&role().to_string()).await?;
        net.wait_for(COVERED_PROFILES).await?;
        eventually(SOON, "the API server evaluates the policy", async || {
            send(net.rig(), "shop", &covered[0].1).await?;
            ensure!(evaluations(net.rig()).await? > 0, "not yet");
            Ok(())
        })
        .await?;
        let before = evaluations(net.rig()).await?;
        let begun = Instant::now();
        let both = send_all(net.rig(), &covered).await?;
        let took = begun.elapsed();
        let others_both = send_all(net.rig(), &others).await?;
        let evaluated = evaluations(net.rig()).await? - before;
        ensure!(evaluated > PODS as u64, "the policy was evaluated {evaluated} times");
        expect_equal("policy and webhook", &covered, &alone, &both)?;
        expect_equal("policy and webhook, with other profiles", &others, &others_alone, &others_both)?;

        // Only the policy changes the pods.
        net.kill_replicas().await?;
        let net_alone = send_all(net.rig(), &covered).await?;
        let marked = net_alone.iter().filter(|pod| without_mark(pod) != **pod).count();
        ensure!(marked == injected, "{marked} of {injected} pods have the mark of the policy");
        let unmarked: Vec<_> = net_alone.iter().map(without_mark).collect();
        expect_equal("policy alone", &covered, &alone, &unmarked)?;

        // The policy leaves out profiles that it cannot apply as a replica would.
        let complete = record_of(net.rig(), &ordinary()).await?;
        for (pod, profile) in limited() {
            let (entry, record) = (format!("\"profile\":{profile:?}"), record_of(net.rig(), &pod).await?);
            ensure!(complete.contains(&entry) && !record.contains(&entry), "{profile}: {complete}, {record}");
        }
        print_figures(&format!(
            "{PODS} pods, {injected} injected: 0 differences with policy and webhook ({took:.1?}), and 0 without replicas; \
             {OTHERS} pods with other profiles: 0 differences with policy and webhook"
        ));

        let why = net.ready("patches").await?;
        ensure!(why.contains("the safety net does not cover it: spec.containerPatches"), "{why}");
        ensure!(!net.ready("labels").await?.contains("safety net"), "{}", net.ready("labels").await?);

        // While the safety net is disabled, the controller may still delete the policy.
        net.wait_for(COVERED_PROFILES).await?;
        net.disable().await?;
        net.wait_for(0).await
    });
}

#[test]
fn controller_keeps_policy_in_step() {
    Isolation::new().with_crds().time_limit(Duration::from_mins(6)).run(|| async {
        let mut net = Net::start().await?;
        net.rig().control_plane.apply_yaml(&role().to_string()).await?;
        net.wait_for(COVERED_PROFILES).await?;
        let spec = net.policies.get(POLICY).await?.spec;

        // A changed policy and a deleted binding are restored.
        let patch = Patch::Merge(json!({"spec": {"failurePolicy": "Fail", "reinvocationPolicy": "IfNeeded"}}));
        net.policies.patch(POLICY, &PatchParams::default(), &patch).await?;
        net.bindings.delete(POLICY, &DeleteParams::default()).await?;
        eventually(PATIENCE, "the policy is restored", async || {
            ensure!(net.policies.get(POLICY).await?.spec == spec, "not yet");
            net.bindings.get(POLICY).await?;
            Ok(())
        })
        .await?;

        net.change_leader().await?;

        // A new revision changes the policy, and a profile with `safetyNet: false` is removed from the policy.
        net.patch_profile("asked", &json!({"template": {"metadata": {"annotations": {"asked": "again"}}}})).await?;
        eventually(PATIENCE, "the policy has the new revision", async || {
            let now = serde_json::to_string(&net.policies.get(POLICY).await?.spec)?;
            ensure!(now.contains("'again'"), "not yet");
            Ok(())
        })
        .await?;
        net.patch_profile("asked", &json!({"safetyNet": false})).await?;
        net.wait_for(COVERED_PROFILES - 1).await?;

        // The API server rejects the expression of one profile. The others stay covered.
        net.patch_profile("asked", &json!({"safetyNet": true, "matchConditions": [{"name": "m", "expression": "request.userInfo.nothing == 'a'"}]})).await?;
        eventually(PATIENCE, "the status has the API server's reason", async || {
            let ready = net.ready("asked").await?;
            ensure!(ready.contains("the API server rejects it"), "{ready}");
            Ok(())
        })
        .await?;
        net.wait_for(COVERED_PROFILES - 1).await?;

        // The API server would reject pods with the profile's container.
        let probe = json!({"tcpSocket": {"port": 1}, "successThreshold": 2});
        let container = json!({"name": "broken", "image": "i:1", "livenessProbe": probe});
        let spec = json!({"safetyNet": true, "matchConditions": null, "template": {"spec": {"containers": [container]}}});
        net.patch_profile("asked", &spec).await?;
        eventually(PATIENCE, "the status has the reason of the dry run", async || {
            let ready = net.ready("asked").await?;
            ensure!(ready.contains("the API server rejects it") && ready.contains("successThreshold"), "{ready}");
            Ok(())
        })
        .await?;
        net.wait_for(COVERED_PROFILES - 1).await?;

        // The controller deletes the policy when the kill switch disables injection, and when the last profile is
        // deleted.
        let maps: Api<ConfigMap> = Api::namespaced(net.rig().control_plane.client(), NAMESPACE);
        for (word, profiles) in [("disabled", 0), ("enabled", COVERED_PROFILES - 1)] {
            let patch = Patch::Merge(json!({"data": {"injection": word}}));
            maps.patch(RELEASE, &PatchParams::default(), &patch).await?;
            net.wait_for(profiles).await?;
        }
        net.rig().control_plane.kubectl_ok(&["delete", "ciprof", "--all"]).await?;
        net.wait_for(0).await
    });
}
