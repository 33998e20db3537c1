//! "Why was my pod not injected?" The tests cause each reason on a real API server. `pillion explain` or `pillion
//! doctor` must report it by its code, with a remedy.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{Api, Patch, PatchParams};
use pillion_testkit::namespace::replica_address;
use pillion_testkit::{ControlPlane, TestCa, eventually, https, isolated, register_webhook};
use serde_json::{Value as Json, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::rig::{ASK, Rig, SOON, bare_pod, base64, is_untouched, names};

/// Profiles that each exclude some pods.
pub(crate) const PROFILES: &str = r#"
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: guarded}
spec:
  matchConditions:
  - {name: host-network, otherwise: Skip, message: uses the host's network, expression: "!object.spec.?hostNetwork.orValue(false)"}
  template: {metadata: {annotations: {example.com/guarded: "1"}}}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: single}
spec:
  matchConditions: [{name: one-container, expression: "object.spec.containers.size() == 1"}]
  template: {metadata: {annotations: {example.com/single: "1"}}}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: failing}
spec:
  matchConditions: [{name: team, expression: "object.metadata.labels['team'] == 'a'"}]
  template: {metadata: {annotations: {example.com/failing: "1"}}}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: limited}
spec:
  parameters:
  - {name: port, type: integer, minimum: 1024, default: 9000, annotation: example.com/port, sources: [Pod]}
  template: {metadata: {annotations: {example.com/limited: "${string(params.port)}"}}}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: selective}
spec:
  objectSelector: {matchLabels: {tier: web}}
  template: {metadata: {annotations: {example.com/selective: "1"}}}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: regional}
spec:
  namespaceSelector: {matchLabels: {region: eu}}
  template: {metadata: {annotations: {example.com/regional: "1"}}}
"#;

/// A profile that does not compile.
pub(crate) const BROKEN: &str = r#"
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: broken}
spec:
  matchConditions: [{name: wrong, expression: "object.spec.containers.size( == 1"}]
  template: {metadata: {annotations: {example.com/broken: "1"}}}
"#;

/// The output and exit code of a command.
pub(crate) struct Answer {
    pub(crate) code: Option<i32>,
    pub(crate) json: Json,
}

impl Answer {
    /// Returns the finding with this code. Fails unless it exists and has a message and a remedy.
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

    /// Fails unless there is a finding with this code, and its message contains this text.
    pub(crate) fn says(&self, code: &str, text: &str) -> Result<()> {
        let found = self.names(code)?;
        ensure!(found["message"].as_str().is_some_and(|message| message.contains(text)), "no {text:?} in {found}");
        Ok(())
    }

    pub(crate) fn codes(&self) -> Vec<&str> {
        self.json["findings"].as_array().into_iter().flatten().filter_map(|finding| finding["code"].as_str()).collect()
    }

    /// Returns the codes of the errors, without repetition.
    fn errors(&self) -> BTreeSet<&str> {
        let findings = self.json["findings"].as_array().into_iter().flatten();
        let errors = findings.filter(|finding| finding["severity"] == "error");
        errors.filter_map(|finding| finding["code"].as_str()).collect()
    }
}

/// Runs a command of the program that prints JSON.
pub(crate) async fn pillion(control_plane: &ControlPlane, arguments: &[&str]) -> Result<Answer> {
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_pillion"))
        .args(arguments)
        .args(["-o", "json", "--kubeconfig"])
        .arg(control_plane.kubeconfig())
        .output()
        .await?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let json = serde_json::from_str(&stdout).with_context(|| format!("{arguments:?}: {stdout}{stderr}"))?;
    Ok(Answer { code: output.status.code(), json })
}

async fn explain(rig: &Rig, namespace: &str, object: &str) -> Result<Answer> {
    pillion(&rig.control_plane, &["explain", object, "-n", namespace]).await
}

/// Fails unless the explanation of an object reports this reason with a remedy, and no other error.
pub(crate) async fn finds(rig: &Rig, namespace: &str, object: &str, code: &str) -> Result<Answer> {
    finds_beside(rig, namespace, object, code, &[]).await
}

/// Like [`finds`], but permits further errors: of another mistake, or of the namespace's other pods.
pub(crate) async fn finds_beside(
    rig: &Rig,
    namespace: &str,
    object: &str,
    code: &str,
    others: &[&str],
) -> Result<Answer> {
    let answer = explain(rig, namespace, object).await?;
    answer.names(code).with_context(|| format!("{namespace} {object}"))?;
    let mut errors = answer.errors();
    errors.remove(code);
    ensure!(errors == others.iter().copied().collect(), "{namespace} {object}: {errors:?} in {:#}", answer.json);
    Ok(answer)
}

/// Waits until a profile is served that adds this annotation to pods.
async fn is_served(rig: &Rig, profile: &str, key: &str, value: &str) -> Result<()> {
    eventually(SOON, "the profile is served", async || {
        let pod = rig.dry_run("team-a", &asking("probe", profile)).await?;
        ensure!(pod["metadata"]["annotations"][key] == value, "{pod}");
        Ok(())
    })
    .await
}

/// Returns a pod that requests a profile by name.
pub(crate) fn asking(name: &str, profile: &str) -> Json {
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
    isolated(|| async {
        let rig = Rig::start(1).await?;
        let control_plane = &rig.control_plane;
        control_plane.apply_yaml(PROFILES).await?;
        is_served(&rig, "limited", "example.com/limited", "9000").await?;

        // A correctly injected pod: the explanation lists the changes, their profiles, and the values with their
        // sources.
        let set =
            with(asking("fine", "limited"), |pod| pod["metadata"]["annotations"]["example.com/port"] = json!("8080"));
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

        // 1: the namespace has no label.
        rig.namespace("plain", None).await?;
        rig.create("plain", &bare_pod("web")).await?;
        let answer = finds(&rig, "plain", "web", "not_opted_in").await?;
        ensure!(answer.code == Some(1) && answer.json["verdict"] == "notInjected", "{:#}", answer.json);
        ensure!(answer.codes() == ["not_opted_in"], "{:#}", answer.json);
        // Served profiles are not reported as not served.
        let profiles = answer.json["profiles"].as_array().context("profiles")?;
        let is_right = |profile: &Json| profile["outcome"] == "not_matched" && profile["reason"] == "not_opted_in";
        ensure!(profiles.len() > 1 && profiles.iter().all(is_right), "{:#}", answer.json);
        finds(&rig, "plain", "namespace/plain", "not_opted_in").await?;
        // ... or a label that only resembles it.
        rig.label_namespace("plain", "pillion.dev/injecton", "enabled").await?;
        finds(&rig, "plain", "web", "opt_in_label_misspelt").await?;
        rig.namespace("wordy", Some("true")).await?;
        finds(&rig, "wordy", "namespace/wordy", "opt_in_value_unknown").await?;

        // 2: the pod opts out.
        let out = with(bare_pod("out"), |pod| pod["metadata"]["labels"] = json!({"pillion.dev/inject": "false"}));
        rig.create("team-a", &out).await?;
        finds(&rig, "team-a", "pod/out", "opted_out").await?;

        // 3: the annotation is on the Deployment.
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "team-a", "annotations": {ASK: "yes"}},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"serviceAccountName": "nobody", "containers": [{"name": "web", "image": "web:1"}]}}}});
        control_plane.apply_yaml(&deployment.to_string()).await?;
        let answer =
            finds_beside(&rig, "team-a", "deployment/web", "annotation_on_workload", &["service_account_missing"])
                .await?;
        ensure!(answer.json["verdict"] == "wouldNotBeInjected", "{:#}", answer.json);
        // ... also for one of its pods.
        let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web-1", "namespace": "team-a",
            "ownerReferences": [owner(control_plane, "deployment", "web").await?]}, "spec": deployment["spec"]});
        control_plane.apply_yaml(&set.to_string()).await?;
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-1-a", "labels": {"app": "web"},
            "ownerReferences": [owner(control_plane, "replicaset", "web-1").await?]},
            "spec": {"containers": [{"name": "web", "image": "web:1"}]}});
        rig.create("team-a", &pod).await?;
        finds(&rig, "team-a", "pod/web-1-a", "annotation_on_workload").await?;
        let answer = explain(&rig, "team-a", "deploy/web").await?;
        ensure!(answer.json["pods"][0]["object"]["name"] == "web-1-a", "{:#}", answer.json["pods"]);

        // 16: the service account is missing.
        let account = answer.names("service_account_missing")?;
        ensure!(account["object"]["name"] == "nobody", "{account}");

        // 4: a system namespace.
        rig.create("kube-system", &bare_pod("web")).await?;
        finds(&rig, "kube-system", "web", "system_namespace").await?;

        what_profiles_say(&rig).await?;
        let answer = finds(&rig, "team-a", "pod/gone", "not_found").await?;
        ensure!(answer.code == Some(1), "{:?}", answer.code);
        Ok(())
    });
}

/// Tests the reasons from profiles and their readiness, for pods that request them.
async fn what_profiles_say(rig: &Rig) -> Result<()> {
    let control_plane = &rig.control_plane;
    // 5: selectors for the pod and for the namespace.
    rig.create("team-a", &asking("untiered", "selective")).await?;
    finds(rig, "team-a", "untiered", "object_selector").await?;
    rig.create("team-a", &asking("abroad", "regional")).await?;
    let answer = finds(rig, "team-a", "abroad", "namespace_selector").await?;
    ensure!(answer.names("namespace_selector")?["profile"] == "regional", "{:#}", answer.json);

    // 6: a condition is false, or cannot be evaluated.
    let two = with(asking("two", "single"), |pod| {
        pod["spec"]["containers"] = json!([{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}]);
    });
    rig.create("team-a", &two).await?;
    let answer = finds(rig, "team-a", "two", "match_condition").await?;
    answer.says("match_condition", "one-container")?;
    rig.create("team-a", &asking("teamless", "failing")).await?;
    finds(rig, "team-a", "teamless", "expression_failed").await?;

    // 8: a parameter is wrong.
    let low = with(asking("low", "limited"), |pod| pod["metadata"]["annotations"]["example.com/port"] = json!("80"));
    rig.create("team-a", &low).await?;
    let answer = finds(rig, "team-a", "low", "invalid_parameter").await?;
    answer.says("invalid_parameter", "example.com/port")?;

    // 13: a guard against the host's network.
    let host = with(asking("host", "guarded"), |pod| pod["spec"]["hostNetwork"] = json!(true));
    rig.create("team-a", &host).await?;
    finds(rig, "team-a", "host", "host_network").await?;

    // 18: a name is taken.
    let taken = with(bare_pod("taken"), |pod| {
        pod["spec"]["containers"] = json!([{"name": "sidecar-nginx", "image": "mine:1"}]);
    });
    rig.create("team-a", &taken).await?;
    let answer = finds(rig, "team-a", "taken", "name_taken").await?;
    answer.says("name_taken", "sidecar-nginx")?;

    // 12: a mirror pod.
    let mirror = with(bare_pod("static-node-1"), |pod| {
        pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("0123");
        pod["spec"]["nodeName"] = json!("node-1");
    });
    rig.create("plain", &mirror).await?;
    rig.label_namespace("plain", "pillion.dev/injection", "enabled").await?;
    finds(rig, "plain", "static-node-1", "mirror_pod").await?;

    // 7: the profile is not ready. Without a controller the profile has no conditions, but its text shows the problem.
    control_plane.apply_yaml(BROKEN).await?;
    rig.create("team-a", &asking("hopeful", "broken")).await?;
    let answer = finds(rig, "team-a", "hopeful", "profile_not_ready").await?;
    ensure!(!answer.codes().contains(&"unknown_profile"), "{:?}", answer.codes());
    rig.create("team-a", &asking("misled", "no-such")).await?;
    finds(rig, "team-a", "misled", "unknown_profile").await?;
    rig.create("team-a", &asking("silent", "-nginx")).await?;
    finds(rig, "team-a", "silent", "not_requested").await?;
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
    isolated(|| async {
        let rig = Rig::start(1).await?;
        let control_plane = &rig.control_plane;
        control_plane.apply_yaml(OWN).await?;
        is_served(&rig, "ours", "example.com/ours", "1").await?;
        let role = ["-n", "team-a", "create", "role", "reader", "--verb=get,list"];
        let resources = "--resource=pods,serviceaccounts,injectionprofiles.pillion.dev";
        control_plane.kubectl_ok(&[&role[..], &[resources]].concat()).await?;
        control_plane
            .kubectl_ok(&["-n", "team-a", "create", "rolebinding", "reader", "--role=reader", "--user=tenant"])
            .await?;
        let look = ["get", "pods", "-n", "team-a", "--as=tenant"];
        eventually(SOON, "the role is active", async || control_plane.kubectl_ok(&look).await).await?;
        let both = with(asking("both", "ours,nginx"), |pod| pod["metadata"]["labels"] = json!({"app": "web"}));
        rig.create("team-a", &both).await?;
        rig.create("team-a", &asking("misled", "our")).await?;
        let kubeconfig = control_plane.kubeconfig_as("tenant", &[])?;
        for (pod, expected) in [("both", None), ("misled", Some("our"))] {
            let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_pillion"))
                .args(["explain", pod, "-n", "team-a", "-o", "json", "--kubeconfig"])
                .arg(&kubeconfig)
                .output()
                .await?;
            let answer = Answer { code: output.status.code(), json: serde_json::from_slice(&output.stdout)? };
            answer.says("unreadable", "forbidden")?;
            // Unknown facts are not reported.
            ensure!(!answer.codes().contains(&"surplus_profile"), "{:#}", answer.json);
            if expected.is_none() {
                ensure!(answer.json["verdict"] == "injected", "{:#}", answer.json);
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

/// Another webhook, which removes Pillion's container and stores the last review of a dry run.
struct Other {
    seen: Arc<Mutex<Option<Json>>>,
    serving: JoinHandle<()>,
}

impl Drop for Other {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Other {
    async fn start(control_plane: &ControlPlane) -> Result<Self> {
        let address = replica_address(90);
        let ca = TestCa::new()?;
        let (certificate, key) = ca.serving(&[&address.to_string()])?;
        let tls = https::server_config(certificate.as_bytes(), key.as_bytes())?;
        let listener = TcpListener::bind((address, 9443)).await?;
        let seen: Arc<Mutex<Option<Json>>> = Arc::default();
        let keep = Arc::clone(&seen);
        let answer = async move |body: Bytes| {
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
            let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
            ([("content-type", "application/json")], answer.to_string())
        };
        let serving = tokio::spawn(https::serve(listener, tls, Router::new().route("/remove", post(answer))));
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
    isolated(|| async {
        let rig = Rig::start(1).await?;
        let control_plane = &rig.control_plane;
        // 15: the pod has an older revision.
        let old = rig.create("team-a", &bare_pod("old")).await?;
        ensure!(names(&old).contains(&"sidecar-nginx".to_owned()), "{old}");
        control_plane.apply_yaml(&crate::rig::NGINX.replace("nginx:1.29", "nginx:1.30")).await?;
        let answer = finds(&rig, "team-a", "old", "outdated_revision").await?;
        ensure!(answer.json["verdict"] == "injected" && answer.code == Some(1), "{:#}", answer.json);

        // 9: another webhook removes the injected container.
        let other = Other::start(control_plane).await?;
        eventually(SOON, "the other webhook is called", async || {
            let pod = rig.dry_run("team-a", &bare_pod("probe")).await?;
            ensure!(!names(&pod).contains(&"sidecar-nginx".to_owned()), "{pod}");
            Ok(())
        })
        .await?;
        let robbed = rig.create("team-a", &bare_pod("robbed")).await?;
        ensure!(!names(&robbed).contains(&"sidecar-nginx".to_owned()), "{robbed}");
        let answer = finds(&rig, "team-a", "robbed", "removed_after_injection").await?;
        answer.says("removed_after_injection", "zealous.example.test")?;
        answer.says("removed_after_injection", "/spec/containers/sidecar-nginx")?;
        ensure!(answer.json["verdict"] == "partlyInjected", "{:#}", answer.json);

        // 14: a dry run, with the API server's own review.
        let review = other.seen.lock().unwrap().clone().context("a review")?;
        let file = control_plane.directory().join("review.json");
        std::fs::write(&file, review.to_string())?;
        let file = file.to_str().context("a path")?;
        let answer = pillion(control_plane, &["explain", "--review", file]).await?;
        answer.names("dry_run")?;
        let profile = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/nginx");
        let answer = pillion(control_plane, &["explain", "--review", file, "-p", profile]).await?;
        answer.names("dry_run")?;
        ensure!(answer.json["object"]["namespace"] == "team-a", "{:#}", answer.json);
        let answer = pillion(control_plane, &["doctor"]).await?;
        answer.names("other_injector")?;
        answer.names("canary_failed")?;

        // Another writer has added a condition to Pillion's entry.
        drop(other);
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
            finds(&rig, "team-a", "left", code).await?;
        }
        Ok(())
    });
}
