//! Tests shipped profiles that inject no sidecar, on a real API server. The controller derives the webhook
//! configurations from the profiles. Custom resources and volume claims get defaults, pods get the resources that
//! quotas require, and forbidden values are rejected.

#![allow(clippy::panic, reason = "helpers of tests fail by panicking")]

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use axum::http::Request;
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use pillion_testkit::{ControlPlane, eventually, isolated, isolated_with_crds};
use serde_json::{Value as Json, json};

use crate::managed::{Managed, QUICK};
use crate::rig::{SOON, refusal};

/// The CRD of game servers from the Agones chart, reduced to the fields that the test needs.
const GAME_SERVERS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gameservers.agones.dev}
spec:
  group: agones.dev
  scope: Namespaced
  names: {kind: GameServer, plural: gameservers, singular: gameserver}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
";

/// The additional permissions that replicas need for the profile `resource-defaults`.
const QUOTA_READERS: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: pillion-reads-quotas}
rules: [{apiGroups: [''], resources: [resourcequotas], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: pillion-reads-quotas}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: pillion-reads-quotas}
subjects: [{kind: ServiceAccount, name: pillion-webhook, namespace: pillion-system}]
";

/// Returns the content of a file of a shipped profile.
fn shipped(folder: &str, file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles").join(folder).join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn objects(control_plane: &ControlPlane, kind: &Json, namespace: &str) -> Api<DynamicObject> {
    let text = |field: &str| kind[field].as_str().unwrap_or_default();
    let gvk = GroupVersionKind::gvk(text("group"), text("version"), text("kind"));
    let resource = ApiResource::from_gvk_with_plural(&gvk, text("plural"));
    Api::namespaced_with(control_plane.client(), namespace, &resource)
}

async fn create(api: &Api<DynamicObject>, object: &Json) -> Result<Json> {
    let created = api.create(&PostParams::default(), &serde_json::from_value(object.clone())?).await?;
    Ok(serde_json::to_value(created)?)
}

fn pod(name: &str, more: &Json) -> Json {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "app", "image": "registry.example.com/app:1"}]},
    });
    pod["spec"]["containers"][0].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    pod
}

#[test]
fn custom_resources_are_defaulted_and_validated() {
    isolated_with_crds(|| async {
        let managed = Managed::start(ControlPlane::builder(), QUICK, 1, 1).await?;
        let control_plane = &managed.rig.control_plane;
        control_plane.apply_yaml(GAME_SERVERS).await?;
        control_plane.wait_for_crds(&["gameservers.agones.dev"]).await?;
        control_plane.apply_yaml(&shipped("agones-defaults", "profile.yaml")).await?;
        let kind = json!({"group": "agones.dev", "version": "v1", "kind": "GameServer", "plural": "gameservers"});
        let servers = objects(control_plane, &kind, "team-a");
        let server = |name: &str, ports: Json| {
            json!({
                "apiVersion": "agones.dev/v1", "kind": "GameServer", "metadata": {"name": name},
                "spec": {"ports": ports, "template": {"spec": {"containers": [{"name": "game", "image": "game:1"}]}}},
            })
        };
        // Once the controller accepts the profile, the webhook rules include game servers.
        let mut attempt = 0;
        let made = eventually(SOON, "a game server gets its defaults", async || {
            attempt += 1;
            let ports = json!([{"containerPort": 7000}, {"name": "tcp", "containerPort": 7001, "protocol": "TCP"}]);
            let made = create(&servers, &server(&format!("gs-{attempt}"), ports)).await?;
            ensure!(made["spec"]["scheduling"] == "Packed", "{made}");
            Ok(made)
        })
        .await?;
        let expected = json!([
            {"name": "default", "containerPort": 7000, "portPolicy": "Dynamic", "range": "default", "protocol": "UDP", "container": "game"},
            {"name": "tcp", "containerPort": 7001, "protocol": "TCP", "portPolicy": "Dynamic", "range": "default", "container": "game"},
        ]);
        ensure!(made["spec"]["ports"] == expected, "{made}");
        ensure!(made["metadata"]["finalizers"] == json!(["agones.dev/controller"]), "{made}");

        let wrong = server("wrong", json!([{"portPolicy": "Static", "containerPort": 1}]));
        let status = eventually(SOON, "an invalid port is rejected", async || {
            let mut wrong = wrong.clone();
            attempt += 1;
            wrong["metadata"]["name"] = json!(format!("wrong-{attempt}"));
            refusal(create(&servers, &wrong).await)
        })
        .await?;
        ensure!(status["message"].as_str().unwrap().contains("a Static port needs hostPort"), "{status}");
        ensure!(status["details"]["causes"][0]["field"] == "spec.ports", "{status}");
        Ok(())
    });
}

#[test]
fn quota_profile_sets_missing_requests() {
    isolated_with_crds(|| async {
        let managed = Managed::start(ControlPlane::builder(), QUICK, 1, 1).await?;
        let control_plane = &managed.rig.control_plane;
        control_plane.apply_yaml(QUOTA_READERS).await?;
        let quota = "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q, namespace: team-a}\nspec: {hard: {requests.cpu: '1', limits.memory: 2Gi}}\n";
        control_plane.apply_yaml(quota).await?;
        // No quota controller runs here, so the test writes the status.
        let status = r#"{"status":{"hard":{"requests.cpu":"1","limits.memory":"2Gi"},"used":{"requests.cpu":"0","limits.memory":"0"}}}"#;
        let patch = ["patch", "quota", "q", "-n", "team-a", "--subresource=status", "--type=merge", "-p", status];
        control_plane.kubectl_ok(&patch).await?;
        let pods = objects(control_plane, &json!({"version": "v1", "kind": "Pod", "plural": "pods"}), "team-a");
        let refused = eventually(SOON, "a pod without resources is rejected", async || {
            refusal(create(&pods, &pod("before", &json!({}))).await)
        });
        let message = refused.await?;
        ensure!(message["message"].as_str().unwrap().contains("must specify"), "{message}");

        control_plane.apply_yaml(&shipped("resource-defaults", "profile.yaml")).await?;
        let made =
            eventually(SOON, "the completed pod is accepted", async || create(&pods, &pod("with", &json!({}))).await)
                .await?;
        let resources = &made["spec"]["containers"][0]["resources"];
        // If a container has a limit but no request, the API server uses the limit as the request.
        ensure!(
            resources == &json!({"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "512Mi"}}),
            "{made}"
        );
        let own = json!({"resources": {"requests": {"cpu": "50m"}, "limits": {"memory": "64Mi"}}});
        let made = create(&pods, &pod("own", &own)).await?;
        ensure!(made["spec"]["containers"][0]["resources"]["limits"] == json!({"memory": "64Mi"}), "{made}");
        Ok(())
    });
}

#[test]
fn claims_get_storage_class_of_namespace() {
    isolated_with_crds(|| async {
        let managed = Managed::start(ControlPlane::builder(), QUICK, 1, 1).await?;
        let control_plane = &managed.rig.control_plane;
        // A built-in admission plugin sets the default storage class before the API server calls webhooks.
        let standard = "apiVersion: storage.k8s.io/v1\nkind: StorageClass\n\
            metadata: {name: standard, annotations: {storageclass.kubernetes.io/is-default-class: 'true'}}\nprovisioner: example.com/none\n";
        control_plane.apply_yaml(standard).await?;
        control_plane.apply_yaml(&shipped("storage-class", "profile.yaml")).await?;
        managed.rig.label_namespace("team-a", "pillion.dev/storage-class", "fast").await?;
        let kind = json!({"version": "v1", "kind": "PersistentVolumeClaim", "plural": "persistentvolumeclaims"});
        let claims = objects(control_plane, &kind, "team-a");
        let claim = |name: &str, class: Option<&str>| {
            let mut spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
            if let Some(class) = class {
                spec["storageClassName"] = json!(class);
            }
            json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec})
        };
        let mut attempt = 0;
        eventually(SOON, "a claim without a class gets the namespace's", async || {
            attempt += 1;
            let made = create(&claims, &claim(&format!("data-{attempt}"), None)).await?;
            ensure!(made["spec"]["storageClassName"] == "fast", "{made}");
            Ok(())
        })
        .await?;
        for class in ["slow", "", "standard"] {
            let made = create(&claims, &claim(&format!("own-{class}x"), Some(class))).await?;
            ensure!(made["spec"]["storageClassName"] == class, "the author's value stays: {made}");
        }
        Ok(())
    });
}

#[test]
fn annotations_are_added_without_environment_variables() {
    isolated_with_crds(|| async {
        let managed = Managed::start(ControlPlane::builder(), QUICK, 1, 1).await?;
        let control_plane = &managed.rig.control_plane;
        for folder in ["annotate", "deny-env"] {
            control_plane.apply_yaml(&shipped(folder, "profile.yaml")).await?;
        }
        let pods = objects(control_plane, &json!({"version": "v1", "kind": "Pod", "plural": "pods"}), "team-a");
        let mut attempt = 0;
        eventually(SOON, "a pod without annotations is annotated", async || {
            attempt += 1;
            let made = create(&pods, &pod(&format!("bare-{attempt}"), &json!({}))).await?;
            ensure!(made["metadata"]["annotations"]["injected-by"] == "pillion", "{made}");
            Ok(())
        })
        .await?;
        let mut annotated = pod("annotated", &json!({}));
        annotated["metadata"]["annotations"] = json!({"example.com/kept": "as it is", "injected-by": "somebody"});
        let made = create(&pods, &annotated).await?;
        ensure!(made["metadata"]["annotations"]["injected-by"] == "pillion", "{made}");
        ensure!(made["metadata"]["annotations"]["example.com/kept"] == "as it is", "{made}");

        for (number, more) in
            [json!({"env": [{"name": "A", "value": "b"}]}), json!({"envFrom": [{"configMapRef": {"name": "c"}}]})]
                .iter()
                .enumerate()
        {
            let status = eventually(SOON, "environment variables are rejected", async || {
                attempt += 1;
                refusal(create(&pods, &pod(&format!("env-{number}-{attempt}"), more)).await)
            })
            .await?;
            ensure!(status["code"] == 402 && status["details"]["causes"][0]["field"] == "spec.containers", "{status}");
        }
        // Init containers and ephemeral containers are also checked.
        let mut first = pod("first", &json!({}));
        first["spec"]["initContainers"] =
            json!([{"name": "first", "image": "first:1", "env": [{"name": "A", "value": "b"}]}]);
        ensure!(refusal(create(&pods, &first).await)?["code"] == 402);
        let look_into = async |name: &str, env: Json| {
            let container = json!({"name": name, "image": "debug:1", "env": env});
            let patch = json!({"spec": {"ephemeralContainers": [container]}}).to_string();
            let request = Request::patch("/api/v1/namespaces/team-a/pods/annotated/ephemeralcontainers")
                .header("content-type", "application/strategic-merge-patch+json")
                .body(patch.into_bytes())?;
            Ok::<_, anyhow::Error>(control_plane.client().request_text(request).await?)
        };
        // Another profile checks ephemeral containers. It may become active later than the first one.
        let message = eventually(SOON, "an ephemeral container with a variable is rejected", async || {
            attempt += 1;
            let answer = look_into(&format!("sneak-{attempt}"), json!([{"name": "A", "value": "b"}])).await;
            answer
                .err()
                .map(|error| format!("{error:#}"))
                .context("an ephemeral container with a variable was accepted")
        })
        .await?;
        ensure!(message.contains("ephemeral containers may not set env"), "{message}");
        look_into("look", json!([])).await.context("an ephemeral container without variables")?;
        Ok(())
    });
}

#[test]
fn reserved_namespaces_reject_other_creators() {
    isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        control_plane.apply_yaml(&shipped("reserved-namespaces", "policy.yaml")).await?;
        control_plane.create_namespace("platform", &[("pillion.dev/reserved", "true")]).await?;
        control_plane.create_namespace("free", &[]).await?;
        // RBAC permits every request of every user, so only the policy can reject a request.
        let everybody = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: everybody}\n\
            roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}\n\
            subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: 'system:authenticated'}]\n";
        control_plane.apply_yaml(everybody).await?;
        let kinds = [
            ("ConfigMap", "v1", "configmaps", "", json!({})),
            ("Deployment", "v1", "deployments", "apps", deployment()),
        ];
        for (user, groups, may) in [("jane", &["team-a"][..], false), ("joe", &["platform-team"][..], true)] {
            let client = control_plane.client_as(user, groups).await?;
            for (kind, version, plural, group, spec) in &kinds {
                let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
                for (namespace, may) in [("platform", may), ("free", true)] {
                    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
                    let mut object = json!({"apiVersion": resource.api_version, "kind": kind});
                    object.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
                    let mut attempt = 0;
                    // Policies and permissions become active shortly after their creation.
                    eventually(SOON, &format!("{user} and a {kind} in {namespace}"), async || {
                        attempt += 1;
                        object["metadata"] = json!({"name": format!("{user}-{attempt}")});
                        let created = create(&api, &object).await;
                        if may {
                            return created.map(drop);
                        }
                        let status = refusal(created)?;
                        let message = status["message"].as_str().context("a message")?;
                        ensure!(message.contains("namespace platform is reserved for the platform"), "{message}");
                        ensure!(status["code"] == 403, "{status}");
                        Ok(())
                    })
                    .await?;
                }
            }
        }
        Ok(())
    });
}

fn deployment() -> Json {
    json!({"spec": {
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "web:1"}]}},
    }})
}
