//! Tests that `pillion explain` or `pillion doctor` reports why a pod is not injected, with the code of the cause and a
//! remedy. The tests set up each cause on the real API server.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{Api, Patch, PatchParams};
use pillion_testkit::namespace::replica_address;
use pillion_testkit::{ControlPlane, TestCa, eventually, https, isolated_with_crds, register_webhook};
use serde_json::{Value as Json, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::rig::{REQUEST_ANNOTATION, Rig, SOON, bare_pod, base64, is_untouched, names};

/// Profiles that each exclude some pods.
pub(crate) const PROFILES: &str = r#"
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: guarded}
spec:
  activation: Requested
  preconditions:
  - {name: host-network, message: uses the host's network, expression: "!object.spec.?hostNetwork.orValue(false)"}
  template: {metadata: {annotations: {example.com/guarded: "1"}}}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: single}
spec:
  activation: Requested
  matchConditions: [{name: one-container, expression: "object.spec.containers.size() == 1"}]
  template: {metadata: {annotations: {example.com/single: "1"}}}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: failing}
spec:
  activation: Requested
  matchConditions: [{name: team, expression: "object.metadata.labels['team'] == 'a'"}]
  template: {metadata: {annotations: {example.com/failing: "1"}}}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: limited}
spec:
  activation: Requested
  parameters:
  - {name: port, type: integer, minimum: 1024, default: 9000, annotation: example.com/port, sources: [Pod]}
  template: {metadata: {annotations: {example.com/limited: "${string(params.port)}"}}}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: selective}
spec:
  activation: Requested
  objectSelector: {matchLabels: {tier: web}}
  template: {metadata: {annotations: {example.com/selective: "1"}}}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: regional}
spec:
  activation: Requested
  namespaceSelector: {matchLabels: {region: eu}}
  template: {metadata: {annotations: {example.com/regional: "1"}}}
"#;

/// A profile that does not compile.
pub(crate) const BROKEN: &str = r#"
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: broken}
spec:
  activation: Requested
  matchConditions: [{name: wrong, expression: "object.spec.containers.size( == 1"}]
  template: {metadata: {annotations: {example.com/broken: "1"}}}
"#;

/// The exit code of a command, and the JSON that it printed.
pub(crate) struct CommandResult {
    pub(crate) code: Option<i32>,
    pub(crate) json: Json,
}

impl CommandResult {
    /// Returns the finding with this code. Fails if there is none, or if it lacks a message or a remedy.
    pub(crate) fn names(&self, code: &str) -> Result<&Json> {
        let findings = self.json["findings"].as_array().context("findings")?;
        let found = findings.iter().find(|finding| finding["code"] == code);
        let found = found.with_context(|| format!("no finding {code} in {:#}", self.json))?;
        for field in ["message", "remedy"] {
            ensure!(found[field].as_str().is_some_and(|text| text.len() > 10), "{field} of {found}");
        }
        ensure!(found["object"]["name"].is_string(), "{found}");
        Ok(found)
    }

    /// Fails unless the finding with this code has a message that contains `text`.
    pub(crate) fn says(&self, code: &str, text: &str) -> Result<()> {
        let found = self.names(code)?;
        ensure!(found["message"].as_str().is_some_and(|message| message.contains(text)), "no {text:?} in {found}");
        Ok(())
    }

    pub(crate) fn codes(&self) -> Vec<&str> {
        self.json["findings"].as_array().into_iter().flatten().filter_map(|finding| finding["code"].as_str()).collect()
    }

    /// Returns the distinct codes of findings that are errors.
    fn errors(&self) -> BTreeSet<&str> {
        let findings = self.json["findings"].as_array().into_iter().flatten();
        let errors = findings.filter(|finding| finding["severity"] == "error");
        errors.filter_map(|finding| finding["code"].as_str()).collect()
    }
}

/// Runs a command that prints JSON.
pub(crate) async fn pillion(control_plane: &ControlPlane, arguments: &[&str]) -> Result<CommandResult> {
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_pillion"))
        .args(arguments)
        .args(["-o", "json", "--kubeconfig"])
        .arg(control_plane.kubeconfig())
        .output()
        .await?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let json = serde_json::from_str(&stdout).with_context(|| format!("{arguments:?}: {stdout}{stderr}"))?;
    Ok(CommandResult { code: output.status.code(), json })
}

async fn explain(rig: &Rig, namespace: &str, object: &str) -> Result<CommandResult> {
    pillion(&rig.control_plane, &["explain", object, "-n", namespace]).await
}

/// Fails unless `explain` reports this code for the object, with a remedy, and no other error.
pub(crate) async fn expect_finding(rig: &Rig, namespace: &str, object: &str, code: &str) -> Result<CommandResult> {
    expect_finding_among(rig, namespace, object, code, &[]).await
}

/// Like [`expect_finding`], but `explain` must also report exactly the errors `others`, which have other causes or
/// concern other pods.
pub(crate) async fn expect_finding_among(
    rig: &Rig,
    namespace: &str,
    object: &str,
    code: &str,
    others: &[&str],
) -> Result<CommandResult> {
    let result = explain(rig, namespace, object).await?;
    result.names(code).with_context(|| format!("{namespace} {object}"))?;
    let mut errors = result.errors();
    errors.remove(code);
    ensure!(errors == others.iter().copied().collect(), "{namespace} {object}: {errors:?} in {:#}", result.json);
    Ok(result)
}

/// Waits until the replica serves a profile that adds this annotation to pods.
async fn wait_until_annotation_added(rig: &Rig, profile: &str, key: &str, value: &str) -> Result<()> {
    eventually(SOON, "the profile is served", async || {
        let pod = rig.dry_run("team-a", &requesting_pod("probe", profile)).await?;
        ensure!(pod["metadata"]["annotations"][key] == value, "{pod}");
        Ok(())
    })
    .await
}

/// Returns a pod that requests a profile by name.
pub(crate) fn requesting_pod(name: &str, profile: &str) -> Json {
    let mut pod = bare_pod(name);
    pod["metadata"]["annotations"] = json!({"pillion.dev/profiles": profile});
    pod
}

fn with(mut pod: Json, change: impl FnOnce(&mut Json)) -> Json {
    change(&mut pod);
    pod
}

#[test]
fn explain_names_author_namespace_and_profile_causes() {
    isolated_with_crds(|| async {
        let rig = Rig::start(1).await?;
        let control_plane = &rig.control_plane;
        control_plane.apply_yaml(PROFILES).await?;
        wait_until_annotation_added(&rig, "limited", "example.com/limited", "9000").await?;

        // For a correct pod, the explanation lists the pod's profiles, and the values of their parameters with their
        // sources.
        let set = with(requesting_pod("fine", "limited"), |pod| {
            pod["metadata"]["annotations"]["example.com/port"] = json!("8080");
        });
        rig.create("team-a", &set).await?;
        let fine = explain(&rig, "team-a", "pod/fine").await?;
        ensure!(fine.code == Some(0) && fine.json["verdict"] == "injected", "{:#}", fine.json);
        let limited = &fine.json["profiles"][0];
        ensure!(limited["profile"] == "limited" && limited["outcome"] == "applied", "{limited}");
        let port = &limited["parameters"][0];
        ensure!(
            port["value"] == 8080 && port["from"] == json!([{"source": "object", "key": "example.com/port"}]),
            "{port}"
        );
        let change = &fine.json["changes"][0];
        ensure!(
            change["by"] == "limited" && change["path"] == "/metadata/annotations/example.com~1limited",
            "{change}"
        );
        let called: Vec<_> =
            fine.json["webhooks"].as_array().into_iter().flatten().map(|entry| &entry["outcome"]).collect();
        ensure!(called == ["called", "namespaceSelector"], "{called:?}");

        // The namespace has no label.
        rig.namespace("plain", None).await?;
        rig.create("plain", &bare_pod("web")).await?;
        let result = expect_finding(&rig, "plain", "web", "not_opted_in").await?;
        ensure!(result.code == Some(1) && result.json["verdict"] == "notInjected", "{:#}", result.json);
        ensure!(result.codes() == ["not_opted_in"], "{:#}", result.json);
        // The explanation does not report served profiles as not ready.
        let profiles = result.json["profiles"].as_array().context("profiles")?;
        let is_right = |profile: &Json| profile["outcome"] == "not_matched" && profile["reason"] == "not_opted_in";
        ensure!(profiles.len() > 1 && profiles.iter().all(is_right), "{:#}", result.json);
        expect_finding(&rig, "plain", "namespace/plain", "not_opted_in").await?;
        // A label resembles the opt-in label.
        rig.label_namespace("plain", "pillion.dev/injecton", "enabled").await?;
        expect_finding(&rig, "plain", "web", "opt_in_label_misspelt").await?;
        rig.namespace("wordy", Some("true")).await?;
        expect_finding(&rig, "wordy", "namespace/wordy", "opt_in_value_unknown").await?;

        // The pod opts out.
        let out = with(bare_pod("out"), |pod| pod["metadata"]["labels"] = json!({"pillion.dev/inject": "false"}));
        rig.create("team-a", &out).await?;
        expect_finding(&rig, "team-a", "pod/out", "opted_out").await?;

        // The annotation is on the Deployment instead of its pod template.
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "team-a", "annotations": {REQUEST_ANNOTATION: "yes"}},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"serviceAccountName": "nobody", "containers": [{"name": "web", "image": "web:1"}]}}}});
        control_plane.apply_yaml(&deployment.to_string()).await?;
        let result = expect_finding_among(
            &rig,
            "team-a",
            "deployment/web",
            "annotation_on_workload",
            &["service_account_missing"],
        )
        .await?;
        ensure!(result.json["verdict"] == "wouldNotBeInjected", "{:#}", result.json);
        // `explain` must also report this cause for a pod of the Deployment.
        let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web-1", "namespace": "team-a",
            "ownerReferences": [owner(control_plane, "deployment", "web").await?]}, "spec": deployment["spec"]});
        control_plane.apply_yaml(&set.to_string()).await?;
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-1-a", "labels": {"app": "web"},
            "ownerReferences": [owner(control_plane, "replicaset", "web-1").await?]},
            "spec": {"containers": [{"name": "web", "image": "web:1"}]}});
        rig.create("team-a", &pod).await?;
        expect_finding(&rig, "team-a", "pod/web-1-a", "annotation_on_workload").await?;
        let result = explain(&rig, "team-a", "deploy/web").await?;
        ensure!(result.json["pods"][0]["object"]["name"] == "web-1-a", "{:#}", result.json["pods"]);

        // A name without a kind means a pod. If a workload has that name, `explain` suggests the workload.
        let named = explain(&rig, "team-a", "web").await?;
        let remedy = &named.names("not_found")?["remedy"];
        ensure!(remedy == "pillion explain deployment/web -n team-a", "{remedy}");

        // The service account is missing.
        let account = result.names("service_account_missing")?;
        ensure!(account["object"]["name"] == "nobody", "{account}");

        // The pod is in a system namespace.
        rig.create("kube-system", &bare_pod("web")).await?;
        expect_finding(&rig, "kube-system", "web", "system_namespace").await?;

        check_profile_causes(&rig).await?;
        let result = expect_finding(&rig, "team-a", "pod/gone", "not_found").await?;
        ensure!(result.code == Some(1), "{:?}", result.code);
        Ok(())
    });
}

/// Tests further causes, most of which concern profiles.
async fn check_profile_causes(rig: &Rig) -> Result<()> {
    let control_plane = &rig.control_plane;
    // The selectors for pods and for namespaces do not match.
    rig.create("team-a", &requesting_pod("untiered", "selective")).await?;
    expect_finding(rig, "team-a", "untiered", "object_selector").await?;
    rig.create("team-a", &requesting_pod("abroad", "regional")).await?;
    let result = expect_finding(rig, "team-a", "abroad", "namespace_selector").await?;
    ensure!(result.names("namespace_selector")?["profile"] == "regional", "{:#}", result.json);

    // A condition is false, or cannot be evaluated.
    let two = with(requesting_pod("two", "single"), |pod| {
        pod["spec"]["containers"] = json!([{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}]);
    });
    rig.create("team-a", &two).await?;
    let result = expect_finding(rig, "team-a", "two", "match_condition").await?;
    result.says("match_condition", "one-container")?;
    rig.create("team-a", &requesting_pod("teamless", "failing")).await?;
    expect_finding(rig, "team-a", "teamless", "expression_failed").await?;

    // A parameter has a value that the profile does not allow.
    let low =
        with(requesting_pod("low", "limited"), |pod| pod["metadata"]["annotations"]["example.com/port"] = json!("80"));
    rig.create("team-a", &low).await?;
    let result = expect_finding(rig, "team-a", "low", "invalid_parameter").await?;
    result.says("invalid_parameter", "example.com/port")?;

    // The pod uses the host network, which a precondition of the profile excludes.
    let host = with(requesting_pod("host", "guarded"), |pod| pod["spec"]["hostNetwork"] = json!(true));
    rig.create("team-a", &host).await?;
    expect_finding(rig, "team-a", "host", "host_network").await?;

    // The pod already has a container with the name of the injected one.
    let taken = with(bare_pod("taken"), |pod| {
        pod["spec"]["containers"] = json!([{"name": "sidecar-nginx", "image": "mine:1"}]);
    });
    rig.create("team-a", &taken).await?;
    let result = expect_finding(rig, "team-a", "taken", "name_taken").await?;
    result.says("name_taken", "sidecar-nginx")?;

    // The pod is a mirror pod.
    let mirror = with(bare_pod("static-node-1"), |pod| {
        pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("0123");
        pod["spec"]["nodeName"] = json!("node-1");
    });
    rig.create("plain", &mirror).await?;
    rig.label_namespace("plain", "pillion.dev/injection", "enabled").await?;
    expect_finding(rig, "plain", "static-node-1", "mirror_pod").await?;

    // The profile is not ready. Without a controller, it has no conditions in its status, but `explain` compiles its
    // spec.
    control_plane.apply_yaml(BROKEN).await?;
    rig.create("team-a", &requesting_pod("hopeful", "broken")).await?;
    let result = expect_finding(rig, "team-a", "hopeful", "profile_not_ready").await?;
    ensure!(!result.codes().contains(&"unknown_profile"), "{:?}", result.codes());
    rig.create("team-a", &requesting_pod("misled", "no-such")).await?;
    expect_finding(rig, "team-a", "misled", "unknown_profile").await?;
    rig.create("team-a", &requesting_pod("silent", "-nginx")).await?;
    expect_finding(rig, "team-a", "silent", "not_requested").await?;
    Ok(())
}

/// A tenant's own profile.
const OWN: &str = r#"
apiVersion: pillion.dev/v1alpha1
kind: InjectionProfile
metadata: {name: ours, namespace: team-a}
spec: {template: {metadata: {annotations: {example.com/ours: "1"}}}}
"#;

#[test]
fn explain_names_missing_permissions_and_still_answers() {
    isolated_with_crds(|| async {
        let rig = Rig::start(1).await?;
        let control_plane = &rig.control_plane;
        control_plane.apply_yaml(OWN).await?;
        wait_until_annotation_added(&rig, "ours", "example.com/ours", "1").await?;
        let role = ["-n", "team-a", "create", "role", "reader", "--verb=get,list"];
        let resources = "--resource=pods,serviceaccounts,injectionprofiles.pillion.dev";
        control_plane.kubectl_ok(&[&role[..], &[resources]].concat()).await?;
        control_plane
            .kubectl_ok(&["-n", "team-a", "create", "rolebinding", "reader", "--role=reader", "--user=tenant"])
            .await?;
        let look = ["get", "pods", "-n", "team-a", "--as=tenant"];
        eventually(SOON, "the role is active", async || control_plane.kubectl_ok(&look).await).await?;
        let both = with(requesting_pod("both", "ours,nginx"), |pod| pod["metadata"]["labels"] = json!({"app": "web"}));
        rig.create("team-a", &both).await?;
        rig.create("team-a", &requesting_pod("misled", "our")).await?;
        let kubeconfig = control_plane.kubeconfig_as("tenant", &[])?;
        for (pod, expected) in [("both", None), ("misled", Some("our"))] {
            let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_pillion"))
                .args(["explain", pod, "-n", "team-a", "-o", "json", "--kubeconfig"])
                .arg(&kubeconfig)
                .output()
                .await?;
            let result = CommandResult { code: output.status.code(), json: serde_json::from_slice(&output.stdout)? };
            result.says("unreadable", "forbidden")?;
            // Without evidence, `explain` does not report an orphaned profile.
            ensure!(!result.codes().contains(&"orphaned_profile"), "{:#}", result.json);
            if expected.is_none() {
                ensure!(result.json["verdict"] == "injected", "{:#}", result.json);
            }
        }
        Ok(())
    });
}

async fn owner(control_plane: &ControlPlane, kind: &str, name: &str) -> Result<Json> {
    let uid = control_plane.kubectl_ok(&["-n", "team-a", "get", kind, name, "-o", "jsonpath={.metadata.uid}"]).await?;
    let kind = if kind == "deployment" { "Deployment" } else { "ReplicaSet" };
    Ok(json!({"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": true}))
}

/// A webhook of another project. It removes Pillion's container, and stores the last review of a dry run.
struct ForeignWebhook {
    seen: Arc<Mutex<Option<Json>>>,
    serving: JoinHandle<()>,
}

impl Drop for ForeignWebhook {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl ForeignWebhook {
    async fn start(control_plane: &ControlPlane) -> Result<Self> {
        let address = replica_address(90);
        let ca = TestCa::new()?;
        let (certificate, key) = ca.serving(&[&address.to_string()])?;
        let tls = https::server_config(certificate.as_bytes(), key.as_bytes())?;
        let listener = TcpListener::bind((address, 9443)).await?;
        let seen: Arc<Mutex<Option<Json>>> = Arc::default();
        let keep = Arc::clone(&seen);
        let respond = async move |body: Bytes| {
            let review: Json = serde_json::from_slice(&body).unwrap();
            let containers = review["request"]["object"]["spec"]["containers"].as_array().cloned().unwrap_or_default();
            let place = containers.iter().position(|container| container["name"] == "sidecar-nginx");
            let patch: Vec<_> = place
                .map(|place| json!({"op": "remove", "path": format!("/spec/containers/{place}")}))
                .into_iter()
                .collect();
            if review["request"]["dryRun"] == true {
                *keep.lock().unwrap() = Some(review.clone());
            }
            let response = json!({"uid": review["request"]["uid"], "allowed": true,
                "patchType": "JSONPatch", "patch": base64(json!(patch).to_string())});
            let result = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
            ([("content-type", "application/json")], result.to_string())
        };
        let serving = tokio::spawn(https::serve(listener, tls, Router::new().route("/remove", post(respond))));
        let configuration: MutatingWebhookConfiguration = serde_json::from_value(json!({
            "metadata": {"name": "zealous"},
            "webhooks": [{
                "name": "zealous.example.test", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "failurePolicy": "Fail", "timeoutSeconds": 3, "reinvocationPolicy": "IfNeeded",
                "clientConfig": {"url": format!("https://{address}:9443/remove"), "caBundle": base64(ca.bundle_pem())},
                "namespaceSelector": {"matchLabels": {"pillion.dev/injection": "enabled"}},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            }],
        }))?;
        register_webhook(&control_plane.client(), &configuration).await?;
        Ok(Self { seen, serving })
    }
}

#[test]
fn explain_names_foreign_changes_and_rejections() {
    isolated_with_crds(|| async {
        let rig = Rig::start(1).await?;
        let control_plane = &rig.control_plane;
        // The pod has an older revision of the profile.
        let old = rig.create("team-a", &bare_pod("old")).await?;
        ensure!(names(&old).contains(&"sidecar-nginx".to_owned()), "{old}");
        control_plane.apply_yaml(&crate::rig::NGINX.replace("nginx:1.29", "nginx:1.30")).await?;
        let result = expect_finding(&rig, "team-a", "old", "outdated_revision").await?;
        ensure!(result.json["verdict"] == "injected" && result.code == Some(1), "{:#}", result.json);

        // Another webhook removes the injected container.
        let foreign = ForeignWebhook::start(control_plane).await?;
        eventually(SOON, "the other webhook is called", async || {
            let pod = rig.dry_run("team-a", &bare_pod("probe")).await?;
            ensure!(!names(&pod).contains(&"sidecar-nginx".to_owned()), "{pod}");
            Ok(())
        })
        .await?;
        let robbed = rig.create("team-a", &bare_pod("robbed")).await?;
        ensure!(!names(&robbed).contains(&"sidecar-nginx".to_owned()), "{robbed}");
        let result = expect_finding(&rig, "team-a", "robbed", "removed_after_injection").await?;
        result.says("removed_after_injection", "zealous.example.test")?;
        result.says("removed_after_injection", "/spec/containers/sidecar-nginx")?;
        ensure!(result.json["verdict"] == "partlyInjected", "{:#}", result.json);

        // The API server sent the stored review for a dry run.
        let review = foreign.seen.lock().unwrap().clone().context("a review")?;
        let file = control_plane.directory().join("review.json");
        std::fs::write(&file, review.to_string())?;
        let file = file.to_str().context("a path")?;
        let result = pillion(control_plane, &["explain", "--review", file]).await?;
        result.names("dry_run")?;
        let profile = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/nginx");
        let result = pillion(control_plane, &["explain", "--review", file, "-p", profile]).await?;
        result.names("dry_run")?;
        ensure!(result.json["object"]["namespace"] == "team-a", "{:#}", result.json);
        let result = pillion(control_plane, &["doctor"]).await?;
        result.names("other_injector")?;
        result.names("dry_run_failed")?;

        // Another client adds a match condition to Pillion's entry.
        drop(foreign);
        Api::<MutatingWebhookConfiguration>::all(control_plane.client())
            .delete("zealous", &kube::api::DeleteParams::default())
            .await?;
        let conditional = |expression: &str| json!([{"op": "add", "path": "/webhooks/0/matchConditions", "value": [{"name": "mine", "expression": expression}]}]);
        for (expression, code) in [
            ("object.metadata.name != 'left'", "webhook_condition"),
            ("object.metadata.labels['none'] == 'x'", "webhook_condition_failed"),
        ] {
            let patch: json_patch::Patch = serde_json::from_value(conditional(expression))?;
            let api = Api::<MutatingWebhookConfiguration>::all(control_plane.client());
            api.patch("pillion", &PatchParams::default(), &Patch::<()>::Json(patch)).await?;
            if code == "webhook_condition" {
                eventually(SOON, "the API server does not call", async || {
                    let pod = rig.dry_run("team-a", &bare_pod("left")).await?;
                    ensure!(is_untouched(&pod), "{pod}");
                    Ok(())
                })
                .await?;
                rig.create("team-a", &bare_pod("left")).await?;
            }
            expect_finding(&rig, "team-a", "left", code).await?;
        }
        Ok(())
    });
}
