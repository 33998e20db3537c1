//! The controller accepts profiles and publishes revisions, and replicas serve the published revisions.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::Client;
use pillion_api::webhook_configuration;
use pillion_control::informer::share;
use pillion_control::leader::LeaderContext;
use pillion_control::release::Release;
use pillion_control::revisions::{self, Metrics, Settings};
use pillion_testkit::control_plane::client_of;
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, Replica, eventually, isolated_with_crds};
use serde_json::{Value as Json, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::rbac::{CONTROLLER, kubeconfig};
use crate::rig::{NGINX, REJECTED, REQUEST_ANNOTATION, Rig, SOON, annotation, bare_pod, install_crds};

/// A leadership term in the test process.
struct Leader {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Leader {
    fn begin(control_plane: &ControlPlane) -> Result<Self> {
        Self::begin_with(control_plane.client(), share::Limits::default())
    }

    fn begin_with(client: Client, memory: share::Limits) -> Result<Self> {
        let stop = CancellationToken::new();
        let leading = LeaderContext {
            client,
            release: Arc::new(Release::new("pillion", "pillion-system", "cluster.local")?),
            stop: stop.clone(),
        };
        let (publisher, _) = pillion_control::Publisher::new(Arc::default());
        let settings = Settings { count_every: Duration::from_millis(200), memory, ..Settings::default() };
        let task = tokio::spawn(revisions::run(leading, settings, Metrics::default(), publisher));
        Ok(Self { stop, task })
    }

    async fn end(self) -> Result<()> {
        self.stop.cancel();
        self.task.await.context("the leader's task failed")
    }
}

/// Starts a cluster in which a leader accepts profiles, and replicas serve the published revisions.
async fn start(replicas: u8) -> Result<(Rig, Leader)> {
    let rig = Rig::start_with(ControlPlane::builder(), &["--profiles-from", "revisions"], replicas).await?;
    let leader = Leader::begin(&rig.control_plane)?;
    rig.namespace("team-a", Some("enabled")).await?;
    rig.wait_until_called("team-a").await?;
    Ok((rig, leader))
}

/// Returns the shipped profile with this image.
fn with_image(image: &str) -> String {
    NGINX.replace("nginx:1.29", image)
}

/// Returns the shipped profile with an error: its container has no image, so it does not compile.
fn broken() -> String {
    NGINX.replace("        image: nginx:1.29\n", "").replace("1.29", "1.31")
}

fn image_of(pod: &Json) -> Option<String> {
    let mut containers = pod["spec"]["containers"].as_array()?.iter();
    let sidecar = containers.find(|container| container["name"] == "sidecar-nginx")?;
    sidecar["image"].as_str().map(str::to_owned)
}

async fn image(rig: &Rig) -> Result<Option<String>> {
    Ok(image_of(&rig.dry_run("team-a", &bare_pod("probe")).await?))
}

/// Waits until every replica injects this image. Sends several dry runs, because the API server chooses a replica for
/// each.
async fn wait_for_image(rig: &Rig, expected: &str) -> Result<()> {
    eventually(SOON, &format!("pods get the image {expected}"), async || {
        for _ in 0..4 * rig.replicas.len() {
            let image = image(rig).await?;
            ensure!(image.as_deref() == Some(expected), "still {image:?}");
        }
        Ok(())
    })
    .await
}

async fn get(rig: &Rig, what: &[&str]) -> Result<Json> {
    let arguments: Vec<_> = ["get", "-o", "json"].iter().chain(what).copied().collect();
    Ok(serde_json::from_str(&rig.control_plane.kubectl_ok(&arguments).await?)?)
}

async fn status(rig: &Rig) -> Result<Json> {
    Ok(get(rig, &["ciprof", "nginx"]).await?["status"].clone())
}

fn condition<'s>(status: &'s Json, type_: &str) -> &'s Json {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == type_).unwrap_or(&Json::Null)
}

async fn wait_for_accepted(rig: &Rig, expected: &str) -> Result<Json> {
    eventually(SOON, &format!("Accepted becomes {expected}"), async || {
        let profile = get(rig, &["ciprof", "nginx"]).await?;
        let status = profile["status"].clone();
        let accepted = condition(&status, "Accepted");
        ensure!(accepted["status"] == expected, "{status}");
        ensure!(accepted["observedGeneration"] == profile["metadata"]["generation"], "{status}");
        Ok(status)
    })
    .await
}

async fn restart_all(rig: &mut Rig) -> Result<()> {
    let addresses: Vec<_> = rig.replicas.iter().map(Replica::address).collect();
    rig.replicas.clear();
    for address in addresses {
        let replica = Replica::start(&rig.spec, address).await?;
        rig.replicas.push(replica);
    }
    Ok(())
}

#[test]
fn broken_profile_changes_nothing_after_restarts() {
    isolated_with_crds(|| async {
        let (mut rig, leader) = start(2).await?;
        wait_for_image(&rig, "nginx:1.29").await?;
        let first = wait_for_accepted(&rig, "True").await?;
        ensure!(first["revision"] == first["promotedRevision"], "{first}");

        rig.control_plane.apply_yaml(&broken()).await?;
        let status = wait_for_accepted(&rig, "False").await?;
        ensure!(status["revision"] == first["revision"], "the published revision stays: {status}");
        let message = condition(&status, "Accepted")["message"].as_str().unwrap_or_default().to_owned();
        ensure!(message.contains("spec.template.spec.containers[0]") && message.contains("image"), "{message}");
        ensure!(condition(&status, "Ready")["reason"] == "LastAccepted", "{status}");
        wait_for_image(&rig, "nginx:1.29").await?;

        restart_all(&mut rig).await?;
        wait_for_image(&rig, "nginx:1.29").await?;
        leader.end().await?;
        restart_all(&mut rig).await?;
        wait_for_image(&rig, "nginx:1.29").await?;
        let leader = Leader::begin(&rig.control_plane)?;
        // Once the new leader has processed another profile, it has also processed the broken one.
        rig.control_plane.apply_yaml(&NGINX.replace("name: nginx\n", "name: other\n")).await?;
        eventually(SOON, "the new leader is active", async || {
            let other = get(&rig, &["ciprof", "other"]).await?;
            ensure!(other["status"]["revision"].is_string(), "{other}");
            Ok(())
        })
        .await?;
        rig.control_plane.kubectl_ok(&["delete", "ciprof", "other"]).await?;
        let status = wait_for_accepted(&rig, "False").await?;
        ensure!(status["revision"] == first["revision"], "{status}");
        wait_for_image(&rig, "nginx:1.29").await?;

        rig.control_plane.apply_yaml(&with_image("nginx:1.32")).await?;
        wait_for_image(&rig, "nginx:1.32").await?;
        let status = wait_for_accepted(&rig, "True").await?;
        ensure!(status["revision"] != first["revision"], "{status}");
        restart_all(&mut rig).await?;
        wait_for_image(&rig, "nginx:1.32").await?;
        leader.end().await
    });
}

#[test]
fn revisions_are_immutable_and_recreated() {
    isolated_with_crds(|| async {
        let (mut rig, leader) = start(1).await?;
        let status = wait_for_accepted(&rig, "True").await?;
        let object = format!("nginx-{}", status["revision"].as_str().unwrap_or_default());
        let revision = get(&rig, &["ciprev", &object]).await?;
        ensure!(revision["metadata"]["ownerReferences"][0]["name"] == "nginx", "{revision}");
        ensure!(revision["metadata"]["labels"]["pillion.dev/profile"] == "nginx", "{revision}");
        let text: Json = serde_json::from_str(revision["spec"]["text"].as_str().unwrap_or_default())?;
        ensure!(text["template"]["spec"]["containers"][0]["name"] == "sidecar-nginx", "{text}");

        for patch in [r#"{"spec":{"text":"{}"}}"#, r#"{"spec":{"bounds":"Tenant"}}"#, r#"{"spec":{"source":"{}"}}"#] {
            let patched = rig.control_plane.kubectl(&["patch", "ciprev", &object, "--type=merge", "-p", patch]).await?;
            let message = String::from_utf8_lossy(&patched.stderr).into_owned();
            ensure!(!patched.status.success() && message.contains("revisions are immutable"), "{patch}: {message}");
        }
        rig.control_plane.kubectl_ok(&["delete", "ciprev", &object]).await?;
        eventually(SOON, "the revision is recreated", async || get(&rig, &["ciprev", &object]).await.map(drop)).await?;

        // A replica that starts while the revision is missing serves the revision once it exists again.
        leader.end().await?;
        rig.control_plane.kubectl_ok(&["delete", "ciprev", &object]).await?;
        restart_all(&mut rig).await?;
        ensure!(image(&rig).await?.is_none());
        rig.wait_for_broken_profiles(1).await?;
        let leader = Leader::begin(&rig.control_plane)?;
        wait_for_image(&rig, "nginx:1.29").await?;
        rig.wait_for_broken_profiles(0).await?;
        leader.end().await
    });
}

#[test]
fn status_and_events_inform_profile_owner() {
    isolated_with_crds(|| async {
        let (rig, leader) = start(1).await?;
        rig.namespace("team-b", Some("required")).await?;
        rig.namespace("team-c", None).await?;
        wait_for_accepted(&rig, "True").await?;
        eventually(SOON, "the namespaces are counted", async || {
            let status = status(&rig).await?;
            ensure!(status["namespacesMatched"] == 2, "{status}");
            Ok(())
        })
        .await?;
        let table = rig.control_plane.kubectl_ok(&["get", "ciprof"]).await?;
        ensure!(table.contains("STATE") && table.contains("Published"), "{table}");
        // The profile does not set `activation`, so the table shows the default.
        ensure!(table.contains("ACTIVATION") && table.contains("Requested"), "{table}");

        // Another profile with the same request key causes a conflict as long as it exists.
        let conflicted = async |expected: &str| {
            eventually(SOON, "the conflict is reported", async || {
                let status = status(&rig).await?;
                let conditions = status["conditions"].as_array().context("conditions")?;
                let found = conditions.iter().find(|condition| condition["type"] == "Conflicted").context("none")?;
                ensure!(found["reason"] == expected, "{found}");
                Ok(found["message"].to_string())
            })
            .await
        };
        conflicted("NoConflict").await?;
        rig.control_plane
            .apply_yaml(&NGINX.replace("metadata:\n  name: nginx\n", "metadata:\n  name: apache\n"))
            .await?;
        let message = conflicted("AmbiguousRequest").await?;
        ensure!(message.contains("this profile or apache") && message.contains(REQUEST_ANNOTATION), "{message}");
        rig.control_plane.kubectl_ok(&["delete", "ciprof", "apache"]).await?;
        conflicted("NoConflict").await?;

        rig.control_plane.apply_yaml(&broken()).await?;
        wait_for_accepted(&rig, "False").await?;
        let described = eventually(SOON, "the Event exists", async || {
            let events = rig.control_plane.kubectl_ok(&["get", "events", "-A"]).await?;
            ensure!(events.contains("Rejected") && events.contains("needs an image"), "{events}");
            Ok(events)
        })
        .await?;
        ensure!(described.contains("clusterinjectionprofile/nginx"), "{described}");
        ensure!(described.matches("Rejected").count() == 1, "one Event per generation: {described}");

        // The controller does not rewrite a correct status. Its last change may still be in progress, so the test
        // retries.
        let mut number = 0;
        eventually(SOON, "a correct status is not rewritten", async || {
            number += 1;
            let version = get(&rig, &["ciprof", "nginx"]).await?["metadata"]["resourceVersion"].clone();
            rig.namespace(&format!("team-d-{number}"), None).await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
            ensure!(get(&rig, &["ciprof", "nginx"]).await?["metadata"]["resourceVersion"] == version, "rewritten");
            Ok(())
        })
        .await?;
        leader.end().await
    });
}

#[test]
fn pods_follow_rollout_pin_and_rollback() {
    isolated_with_crds(|| async {
        let (rig, leader) = start(1).await?;
        let old = wait_for_accepted(&rig, "True").await?["revision"].as_str().unwrap_or_default().to_owned();
        let staged = {
            let mut profile: Json = serde_saphyr::from_str(&with_image("nginx:1.30"))?;
            profile["spec"]["rollout"] = json!({"percent": 50});
            profile
        };
        rig.control_plane.apply_yaml(&staged.to_string()).await?;
        let seen = eventually(SOON, "both revisions are active", async || {
            let mut seen = std::collections::BTreeMap::new();
            for number in 0..20 {
                let pod = rig.dry_run("team-a", &bare_pod(&format!("web-{number}"))).await?;
                seen.insert(number, image_of(&pod).context("no sidecar")?);
            }
            let images: std::collections::BTreeSet<_> = seen.values().cloned().collect();
            ensure!(images.len() == 2, "{images:?}");
            Ok(seen)
        })
        .await?;
        // At 100 percent all pods get the new revision, and pods that had the new revision before keep it.
        let mut all = staged.clone();
        all["spec"]["rollout"] = json!({"percent": 100});
        rig.control_plane.apply_yaml(&all.to_string()).await?;
        wait_for_image(&rig, "nginx:1.30").await?;
        ensure!(seen.values().any(|image| image == "nginx:1.29"));
        eventually(SOON, "the status reports a complete rollout", async || {
            let status = status(&rig).await?;
            ensure!(status["promotedRevision"] == status["revision"] && status["rollout"].is_null(), "{status}");
            ensure!(status["revisions"].as_array().is_some_and(|kept| kept.len() == 2), "{status}");
            Ok(())
        })
        .await?;

        // The old revision is no longer active, but replicas fetch it for a pod that pins it.
        let mut pinned = bare_pod("pinned");
        pinned["metadata"]["annotations"]["pillion.dev/profiles"] = json!(format!("nginx@{}", &old[..6]));
        eventually(SOON, "the old revision is fetched, with a short limit for each pod", async || {
            let pod = rig.dry_run("team-a", &pinned).await?;
            ensure!(image_of(&pod).as_deref() == Some("nginx:1.29"), "{pod}");
            let record = annotation(&pod, "pillion.dev/injected").unwrap_or_default();
            ensure!(record.contains(&old), "{record}");
            Ok(())
        })
        .await?;

        rig.control_plane
            .kubectl_ok(&["annotate", "ciprof", "nginx", &format!("pillion.dev/rollback-to={old}")])
            .await?;
        wait_for_image(&rig, "nginx:1.29").await?;
        eventually(SOON, "the rollback is reported", async || {
            let events = rig.control_plane.kubectl_ok(&["get", "events", "-A"]).await?;
            ensure!(events.contains("RolledBack"), "{events}");
            Ok(())
        })
        .await?;
        rig.control_plane.kubectl_ok(&["annotate", "ciprof", "nginx", "pillion.dev/rollback-to-"]).await?;
        wait_for_image(&rig, "nginx:1.30").await?;
        leader.end().await
    });
}

/// Registers the webhook that validates profiles when they are stored.
async fn register_profiles(rig: &Rig) -> Result<()> {
    let settings = webhook_configuration::Settings::new(NAMESPACE, rig.serving_ca.clone());
    let mutating = webhook_configuration::mutating(&settings);
    let mut client = mutating.webhooks.unwrap_or_default().remove(0).client_config;
    let service = client.service.as_mut().context("a service")?;
    service.path = Some("/validate-profiles".to_owned());
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "pillion-profiles"},
        "webhooks": [{
            "name": "profiles.pillion.dev",
            "clientConfig": client,
            "rules": [{
                "apiGroups": ["pillion.dev"], "apiVersions": ["v1alpha1"], "operations": ["CREATE", "UPDATE"],
                "resources": ["clusterinjectionprofiles", "injectionprofiles"],
            }],
            "failurePolicy": "Ignore", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
        }],
    });
    rig.control_plane.apply_yaml(&configuration.to_string()).await
}

#[test]
fn broken_profile_is_stored_with_warning() {
    isolated_with_crds(|| async {
        let rig = Rig::start(1).await?;
        register_profiles(&rig).await?;
        let apply = async |yaml: &str| {
            let output = rig.control_plane.kubectl_with_input(&["apply", "-f", "-"], yaml).await?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            anyhow::Ok(String::from_utf8(output.stderr)?)
        };
        let mut number = 0;
        let message = eventually(SOON, "kubectl shows the warning", async || {
            // The API server calls webhooks only if the object changes.
            number += 1;
            let message = apply(&broken().replace("\nspec:\n", &format!("\nspec:\n  order: {number}\n"))).await?;
            ensure!(message.contains("Warning: spec.template.spec.containers[0]"), "{message}");
            Ok(message)
        })
        .await?;
        ensure!(
            message.contains("needs an image") && message.contains("pods still get its last accepted revision"),
            "{message}"
        );
        ensure!(!apply(&with_image("nginx:1.30")).await?.contains("Warning: spec"));

        // A profile is validated together with the profile that it extends.
        let child = |name: &str| {
            format!(
                "apiVersion: pillion.dev/v1alpha1\nkind: InjectionProfile\nmetadata: {{name: own, namespace: team-a}}\n\
                 spec: {{extends: {{name: {name}}}, parameters: [{{name: nothing, default: 1}}]}}\n"
            )
        };
        let message = apply(&child("nginx")).await?;
        ensure!(message.contains("Warning: spec.parameters[0]"), "{message}");
        let message = apply(&child("ngnix")).await?;
        ensure!(message.contains("there is no cluster profile") && message.contains("did you mean"), "{message}");
        Ok(())
    });
}

#[test]
fn documented_history_and_rollback_commands_work() {
    isolated_with_crds(|| async {
        let (rig, leader) = start(1).await?;
        let first = wait_for_accepted(&rig, "True").await?["revision"].as_str().unwrap_or_default().to_owned();
        rig.control_plane.apply_yaml(&with_image("nginx:1.30")).await?;
        wait_for_image(&rig, "nginx:1.30").await?;
        let second = wait_for_accepted(&rig, "True").await?["revision"].as_str().unwrap_or_default().to_owned();

        // Each publication has its own Event with its own note.
        eventually(SOON, "both publications are reported", async || {
            let events = get(&rig, &["events", "-A", "--field-selector=reason=Published"]).await?;
            let notes: Vec<_> =
                events["items"].as_array().into_iter().flatten().map(|event| &event["message"]).collect();
            for (revision, before) in [(first.as_str(), "none"), (second.as_str(), first.as_str())] {
                let note = json!(format!("revision {revision} is published instead of {before}"));
                ensure!(notes.contains(&&note), "{note} is not in {notes:?}");
            }
            Ok(())
        })
        .await?;

        let document = include_str!("../../../../docs/revisions.md");
        let history = pillion(&rig, document, "pillion profiles history nginx")?;
        ensure!(history.starts_with("REVISION"), "{history}");
        let lines: Vec<_> = history.lines().skip(1).collect();
        ensure!(lines.len() == 2 && lines[0].starts_with(&second) && lines[0].contains("all workloads"), "{history}");
        ensure!(lines[1].starts_with(&first), "{history}");
        let history = run(&rig, "pillion profiles history nginx -o json")?;
        let history: serde_json::Value = serde_json::from_slice(&history.stdout)?;
        let revisions = &history["revisions"];
        ensure!(revisions[0]["revision"] == *second && revisions[0]["servedTo"] == "all workloads", "{history:#}");
        ensure!(revisions[1]["revision"] == *first && revisions[1]["generation"].is_i64(), "{history:#}");

        // A rollback of a profile does not roll back the profiles that extend it, but the command lists them.
        let child = "apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {name: nginx-child}\n\
                     spec: {extends: {name: nginx}, activation: Never}\n";
        rig.control_plane.apply_yaml(child).await?;
        let message = run(&rig, "pillion profiles rollback nginx")?;
        let aside = String::from_utf8_lossy(&message.stderr).into_owned();
        ensure!(
            aside.contains("does not affect the profiles that extend it")
                && aside.contains("ClusterInjectionProfile nginx-child"),
            "{aside}"
        );
        let message = String::from_utf8(message.stdout)?;
        ensure!(message.contains(&format!("revision {first} is published instead of {second}")), "{message}");
        wait_for_image(&rig, "nginx:1.29").await?;
        let history = pillion(&rig, document, "pillion profiles history nginx")?;
        ensure!(history.contains("rolled back"), "{history}");
        let list = run(&rig, "pillion profiles list -o json")?;
        let list: serde_json::Value = serde_json::from_slice(&list.stdout)?;
        let (nginx, child) = (&list["profiles"][0], &list["profiles"][1]);
        ensure!(nginx["name"] == "nginx" && nginx["activation"] == "Requested" && nginx["ready"] == true, "{list:#}");
        ensure!(nginx["revision"] == *first && nginx["rolledBackFrom"] == *second, "{list:#}");
        ensure!(child["extends"] == "nginx" && child["activation"] == "Never", "{list:#}");
        let selected = run(&rig, "pillion profiles list -l no=such")?;
        ensure!(selected.status.success() && selected.stdout.is_empty(), "{selected:?}");
        let table = rig.control_plane.kubectl_ok(&["get", "ciprof", "nginx"]).await?;
        ensure!(table.contains("STATE") && table.contains("RolledBack"), "{table}");
        let explained = crate::explain::pillion(&rig.control_plane, &["explain", "namespace/team-a"]).await?;
        explained.says("rolled_back", &format!("pods get revision {first} instead of {second}"))?;
        let spec = get(&rig, &["ciprof", "nginx"]).await?["spec"].to_string();
        ensure!(spec.contains("nginx:1.30"), "the spec is that of the repository");

        // A new spec ends the rollback. The rollback does not start again if the spec that was rolled back is applied
        // later.
        rig.control_plane.apply_yaml(&with_image("nginx:1.31")).await?;
        wait_for_image(&rig, "nginx:1.31").await?;
        let third = status(&rig).await?["revision"].as_str().unwrap_or_default().to_owned();
        rig.control_plane.apply_yaml(&with_image("nginx:1.30")).await?;
        wait_for_image(&rig, "nginx:1.30").await?;
        // By default, a rollback publishes the revision that was published before the current one, even if it was created
        // later than the current one.
        let message = pillion(&rig, document, "pillion profiles rollback nginx")?;
        ensure!(message.contains(&format!("revision {third} is published instead of {second}")), "{message}");
        pillion(&rig, document, "pillion profiles rollback nginx --undo")?;
        wait_for_image(&rig, "nginx:1.30").await?;
        rig.control_plane.apply_yaml(&with_image("nginx:1.31")).await?;
        wait_for_image(&rig, "nginx:1.31").await?;
        let message = pillion(&rig, document, &format!("pillion profiles rollback nginx --to {}", &second[..6]));
        ensure!(message?.contains(&second));
        wait_for_image(&rig, "nginx:1.30").await?;
        pillion(&rig, document, "pillion profiles rollback nginx --undo")?;
        wait_for_image(&rig, "nginx:1.31").await?;
        let unknown = run(&rig, "pillion profiles rollback nginx --to zz")?;
        ensure!(!unknown.status.success());
        ensure!(String::from_utf8_lossy(&unknown.stderr).contains("no stored revision begins with"));
        leader.end().await
    });
}

/// Runs a command that `document` contains, except for the value of `--to`, which differs in this cluster. Returns the
/// command's output.
fn pillion(rig: &Rig, document: &str, command: &str) -> Result<String> {
    let general = command.split(" --to ").next().unwrap_or(command);
    ensure!(document.contains(general), "docs/revisions.md does not have: {general}");
    let output = run(rig, command)?;
    ensure!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

fn run(rig: &Rig, command: &str) -> Result<std::process::Output> {
    let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_pillion"));
    let program = program.args(command.split(' ').skip(1)).env("PILLION_KUBECONFIG", rig.control_plane.kubeconfig());
    Ok(program.output()?)
}

#[test]
fn profiles_of_namespace_have_memory_limit() {
    isolated_with_crds(|| async {
        let (rig, leader) = start(1).await?;
        leader.end().await?;
        let memory = share::Limits { of_namespace: 192 << 10, ..share::Limits::default() };
        let leader = Leader::begin_with(rig.control_plane.client(), memory)?;
        let profile = |name: &str, size: usize| {
            let text = name.repeat(size);
            format!(
                "apiVersion: pillion.dev/v1alpha1\nkind: InjectionProfile\n\
                 metadata: {{name: {name}, namespace: team-a}}\n\
                 spec: {{template: {{metadata: {{annotations: {{{name}.example.com/text: {text}}}}}}}}}\n"
            )
        };
        let is_accepted = async |name: &str, expected: &str| {
            eventually(SOON, &format!("{name} is accepted: {expected}"), async || {
                let profile = get(&rig, &["iprof", name, "-n", "team-a"]).await?;
                let accepted = condition(&profile["status"], "Accepted").clone();
                ensure!(accepted["status"] == expected, "{profile}");
                Ok(accepted["message"].as_str().unwrap_or_default().to_owned())
            })
            .await
        };
        rig.control_plane.apply_yaml(&profile("bb", 20_000)).await?;
        is_accepted("bb", "True").await?;
        rig.control_plane.apply_yaml(&profile("aa", 20_000)).await?;
        let message = is_accepted("aa", "False").await?;
        ensure!(message.contains("the profiles of namespace team-a may take 0.1 MiB"), "{message}");
        leader.end().await?;

        // The next leader accepts the same profile as the last leader, although the name of the other profile comes
        // first. It accepts the other profile once memory is free.
        rig.control_plane.apply_yaml(&profile("a", 100)).await?;
        let leader = Leader::begin_with(rig.control_plane.client(), memory)?;
        is_accepted("a", "True").await?;
        is_accepted("bb", "True").await?;
        is_accepted("aa", "False").await?;
        rig.control_plane.kubectl_ok(&["delete", "iprof", "bb", "-n", "team-a"]).await?;
        is_accepted("aa", "True").await?;
        leader.end().await
    });
}

/// Additional profiles that compile. The API server would reject the pods of the first one.
const DRY_RUN_PROFILES: &str = "
---
apiVersion: pillion.dev/v1alpha1
kind: InjectionProfile
metadata: {name: hungry, namespace: team-a}
spec:
  parameters: [{name: limit, type: quantity, default: 1Gi}]
  template:
    spec:
      containers:
      - {name: hungry, image: 'hungry:1', resources: {requests: {memory: 2Gi}, limits: {memory: '${params.limit}'}}}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: good}
spec:
  activation: Requested
  namespaceSelector: {matchLabels: {stage: prod}}
  objectSelector: {matchExpressions: [{key: app, operator: Exists}]}
  template: {spec: {containers: [{name: good, image: 'good:1'}]}}
---
apiVersion: pillion.dev/v1alpha1
kind: InjectionProfile
metadata: {name: good, namespace: team-a}
spec: {template: {spec: {containers: [{name: own, image: 'own:1'}]}}}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: picky}
spec:
  activation: Requested
  matchConditions: [{name: two, expression: object.spec.containers.size() > 1}]
  template: {metadata: {labels: {a: b}}}
";

/// The expected status of the condition `Valid` for each profile, and a part of the condition's message.
const VERDICTS: [(&[&str], &str, &str); 5] = [
    (&["ciprof", "rejected"], "False", "spec.containers[1].livenessProbe.successThreshold: Invalid value: 2"),
    (&["iprof", "hungry", "-n", "team-a"], "False", "would reject a pod with revision"),
    (&["ciprof", "good"], "True", "the API server accepts a pod with revision"),
    (&["iprof", "good", "-n", "team-a"], "True", "the API server accepts a pod with revision"),
    (&["ciprof", "picky"], "Unknown", "a match condition of the profile is false"),
];

async fn json_of(control_plane: &ControlPlane, what: &[&str]) -> Result<Json> {
    let arguments: Vec<_> = ["get", "-o", "json"].iter().chain(what).copied().collect();
    Ok(serde_json::from_str(&control_plane.kubectl_ok(&arguments).await?)?)
}

/// Waits until a profile's condition `Valid` has this status and message, and its accepted revision is published.
async fn wait_for_valid(control_plane: &ControlPlane, profile: &[&str], state: &str, words: &str) -> Result<()> {
    eventually(SOON, &format!("{profile:?} becomes {state}: {words}"), async || {
        let profile = json_of(control_plane, profile).await?;
        let (status, valid) = (&profile["status"], condition(&profile["status"], "Valid"));
        ensure!(
            valid["status"] == state && valid["message"].as_str().is_some_and(|message| message.contains(words)),
            "{status}"
        );
        ensure!(valid["observedGeneration"] == profile["metadata"]["generation"], "{status}");
        ensure!(status["revision"].is_string() && status["revision"] == status["acceptedRevision"], "{status}");
        Ok(())
    })
    .await
}

/// Runs with the permissions of the controller, in a namespace with the *restricted* Pod Security level.
#[test]
fn status_has_verdict_of_dry_run() {
    isolated_with_crds(|| async {
        let control_plane = ControlPlane::start().await?;
        install_crds(&control_plane).await?;
        control_plane.create_namespace(NAMESPACE, &[("pod-security.kubernetes.io/enforce", "restricted")]).await?;
        control_plane.create_namespace("team-a", &[]).await?;
        control_plane.apply_yaml(CONTROLLER).await?;
        let controller = kubeconfig(&control_plane, "controller").await?;
        control_plane.kubectl_ok(&["delete", "role", "pillion-controller", "-n", NAMESPACE]).await?;
        let account = format!("--as=system:serviceaccount:{NAMESPACE}:pillion-controller");
        eventually(SOON, "the permission is removed", async || {
            let may =
                control_plane.kubectl(&["auth", "can-i", "create", "podtemplates", "-n", NAMESPACE, &account]).await?;
            ensure!(!may.status.success());
            Ok(())
        })
        .await?;
        let tried = format!("{REJECTED}{DRY_RUN_PROFILES}");
        control_plane.apply_yaml(&tried).await?;
        let leader = Leader::begin_with(client_of(&controller).await?, share::Limits::default())?;
        let (rejected, ..) = VERDICTS[0];
        wait_for_valid(&control_plane, rejected, "Unknown", "podtemplates is forbidden").await?;

        // Once the controller has the permission, it repeats the dry run.
        control_plane.apply_yaml(CONTROLLER).await?;
        for (profile, state, words) in VERDICTS {
            wait_for_valid(&control_plane, profile, state, words).await?;
        }
        let events = eventually(SOON, "the Events exist", async || {
            let events = control_plane.kubectl_ok(&["get", "events", "-A"]).await?;
            ensure!(events.matches("Invalid").count() >= 2, "{events}");
            Ok(events)
        })
        .await?;
        ensure!(
            events.contains("clusterinjectionprofile/rejected") && events.contains("injectionprofile/hungry"),
            "{events}"
        );
        let stored = control_plane.kubectl_ok(&["get", "podtemplates", "-A"]).await?;
        ensure!(stored.is_empty(), "{stored}");
        let table = control_plane.kubectl_ok(&["get", "ciprof", "-o", "wide"]).await?;
        ensure!(table.contains("VALID") && table.contains("False"), "{table}");
        leader.end().await?;

        // The next leader reuses the verdicts of the last leader. It makes dry runs only for changed specs.
        control_plane.kubectl_ok(&["delete", "role", "pillion-controller", "-n", NAMESPACE]).await?;
        let leader = Leader::begin_with(client_of(&controller).await?, share::Limits::default())?;
        control_plane
            .apply_yaml(&tried.replace("default: 2}", "default: 1}").replace("default: 1Gi", "default: 2Gi"))
            .await?;
        wait_for_valid(&control_plane, rejected, "Unknown", "podtemplates is forbidden").await?;
        for (profile, state, words) in &VERDICTS[2..] {
            wait_for_valid(&control_plane, profile, state, words).await?;
        }
        control_plane.apply_yaml(CONTROLLER).await?;
        for (profile, ..) in &VERDICTS[..2] {
            wait_for_valid(&control_plane, profile, "True", "accepts").await?;
        }
        leader.end().await
    });
}
