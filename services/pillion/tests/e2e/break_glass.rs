//! Runs every command of `docs/break-glass.md`: the commands for the kill switch with running replicas, and all others
//! without any running replica.

#![allow(clippy::print_stdout, reason = "the test prints its measurements")]

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use pillion_api::held;
use pillion_api::names::INJECTION_GATE;
use pillion_api::safety_net;
use pillion_control::release::Release;
use pillion_control::webhook_config::switch;
use pillion_testkit::namespace::replica_address;
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, Replica, eventually, isolated_with_crds, tools};
use serde_json::json;

use crate::direct::{Direct, metric, review};
use crate::rig::{Rig, SOON, bare_pod, is_untouched, names};

/// Time limit for every replica to apply a state of the kill switch.
const KNOWN_WITHIN: Duration = Duration::from_secs(2);
/// A namespace whose pods are rejected while no replica responds.
const SHOP: &str = "shop";

/// The commands of `docs/break-glass.md`, each with the heading above it, and the number of blocks already run.
struct Page {
    blocks: Vec<(String, String)>,
    run: usize,
}

impl Page {
    fn read() -> Result<Self> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/break-glass.md");
        let text = std::fs::read_to_string(path)?;
        let (mut heading, mut blocks, mut block) = (String::new(), Vec::new(), None::<String>);
        for line in text.lines() {
            match (&mut block, line) {
                (Some(_), "```") => blocks.extend(block.take().map(|text| (heading.clone(), text))),
                (Some(text), line) => text.extend([line, "\n"]),
                (None, "```sh") => block = Some(String::new()),
                (None, line) => {
                    if let Some(text) = line.strip_prefix("## ") {
                        text.clone_into(&mut heading);
                    }
                }
            }
        }
        Ok(Self { blocks, run: 0 })
    }

    /// Runs the next block in a shell, and checks that it is below this heading. Returns its output.
    async fn run(&mut self, control_plane: &ControlPlane, heading: &str) -> Result<String> {
        let (under, block) = self.blocks.get(self.run).context("the page has no more commands")?;
        ensure!(under == heading, "the next commands of the page are those of {under:?}, not of {heading:?}:\n{block}");
        self.run += 1;
        let kubectl = tools::program("kubectl")?;
        let folder = kubectl.parent().context("a folder")?;
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
        let mut command = tokio::process::Command::new("sh");
        command.args(["-ec", block]).env("PATH", path).env("KUBECONFIG", control_plane.kubeconfig());
        let output = command.output().await?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{block}\n{out}{err}");
        Ok(out.into_owned())
    }

    /// Skips the next blocks that are below this heading.
    fn skip(&mut self, heading: &str) {
        while self.blocks.get(self.run).is_some_and(|(under, _)| under == heading) {
            self.run += 1;
        }
    }
}

async fn ensure_switch(rig: &Rig) -> Result<()> {
    let release = Release::new("pillion", NAMESPACE, "cluster.local")?;
    Ok(switch::ensure(&rig.control_plane.client(), &release).await.map(drop)?)
}

/// Waits until every replica reports this state of the kill switch. Returns how long that took.
async fn wait_for_switch_state(replicas: &[Replica], disabled: bool) -> Result<Duration> {
    let began = Instant::now();
    for replica in replicas {
        eventually(SOON, "the replica knows the state", async || {
            ensure!((metric(replica, "pillion_injection_disabled").await? > 0.5) == disabled);
            Ok(())
        })
        .await?;
    }
    Ok(began.elapsed())
}

/// Fails unless every replica applied the state within [`KNOWN_WITHIN`]. Repeats a slow measurement up to two times,
/// since a busy machine can cause a single delay.
async fn expect_in_time(rig: &Rig, disabled: bool, mut took: Duration) -> Result<Duration> {
    let (before, after) = if disabled { ("enabled", "disabled") } else { ("disabled", "enabled") };
    for _ in 0..2 {
        if took < KNOWN_WITHIN {
            break;
        }
        println!("known after {took:?}; trying again");
        set_switch(rig, before).await?;
        wait_for_switch_state(&rig.replicas, !disabled).await?;
        set_switch(rig, after).await?;
        took = took.min(wait_for_switch_state(&rig.replicas, disabled).await?);
    }
    ensure!(took < KNOWN_WITHIN, "{took:?}");
    Ok(took)
}

async fn set_switch(rig: &Rig, word: &str) -> Result<()> {
    let maps = Api::<ConfigMap>::namespaced(rig.control_plane.client(), NAMESPACE);
    let patch = json!({"data": {"injection": word}});
    maps.patch("pillion", &PatchParams::default(), &Patch::Merge(&patch)).await?;
    Ok(())
}

#[test]
fn kill_switch_stops_replicas_within_two_seconds() {
    isolated_with_crds(|| async {
        let release = ["--release", "pillion-system/pillion"];
        let mut rig = Rig::start_with(ControlPlane::builder(), &release, 3).await?;
        rig.namespace(SHOP, Some("required")).await?;
        rig.wait_until_called(SHOP).await?;
        ensure_switch(&rig).await?;
        let mut page = Page::read()?;

        page.run(&rig.control_plane, "The kill switch").await?;
        let known = expect_in_time(&rig, true, wait_for_switch_state(&rig.replicas, true).await?).await?;
        println!("disabled: known to three replicas after {known:?}");
        for number in 0..20 {
            let pod = rig.dry_run(SHOP, &bare_pod(&format!("p-{number}"))).await?;
            ensure!(is_untouched(&pod), "{pod}");
        }
        eventually(SOON, "the replica logs that injection is disabled", async || {
            let log = rig.replicas[0].log_text()?;
            ensure!(log.contains("injection is disabled") && log.contains("by=\"kubectl-patch\""), "{log}");
            Ok(())
        })
        .await?;

        // Neither an unknown value nor the loss of the API server changes the state.
        set_switch(&rig, "off").await?;
        eventually(SOON, "the replica logs a warning about the unknown value", async || {
            ensure!(rig.replicas[0].log_text()?.contains("neither enabled nor disabled"));
            Ok(())
        })
        .await?;
        rig.control_plane.stop_api_server()?;
        let answer =
            Direct::to(&rig.replicas[0])?.answer("/mutate/required", &review("u-1", SHOP, &bare_pod("direct"))).await?;
        ensure!(answer.contains("\"allowed\":true") && !answer.contains("patch"), "{answer}");
        rig.control_plane.start_api_server().await?;
        wait_for_switch_state(&rig.replicas, true).await?;
        // A disconnected replica waits some seconds before it watches again. The delay of changes is measured only
        // after all replicas watch again.
        for (word, disabled) in [("enabled", false), ("disabled", true)] {
            set_switch(&rig, word).await?;
            wait_for_switch_state(&rig.replicas, disabled).await?;
        }

        // A replica that starts now applies the state before it serves requests.
        let late = Replica::start(&rig.spec, replica_address(9)).await?;
        ensure!(metric(&late, "pillion_injection_disabled").await? > 0.5);
        let counted = metric(
            &rig.replicas[0],
            "pillion_webhook_decisions_total{profile=\"_none\",outcome=\"skipped\",reason=\"switched_off\"}",
        );
        ensure!(counted.await? >= 1.0);

        page.run(&rig.control_plane, "The kill switch").await?;
        let known = expect_in_time(&rig, false, wait_for_switch_state(&rig.replicas, false).await?).await?;
        println!("enabled: known to three replicas after {known:?}");
        eventually(SOON, "pods are injected again", async || {
            let names = names(&rig.dry_run(SHOP, &bare_pod("again")).await?);
            ensure!(names.contains(&"sidecar-nginx".to_owned()), "{names:?}");
            Ok(())
        })
        .await?;

        // Deleting the ConfigMap enables injection again.
        set_switch(&rig, "disabled").await?;
        wait_for_switch_state(&rig.replicas, true).await?;
        let maps = Api::<ConfigMap>::namespaced(rig.control_plane.client(), NAMESPACE);
        maps.delete("pillion", &DeleteParams::default()).await?;
        wait_for_switch_state(&rig.replicas, false).await?;
        Ok(())
    });
}

/// Returns whether a new pod in the held namespace gets a scheduling gate.
async fn is_gated(rig: &Rig) -> Result<bool> {
    let pod = rig.dry_run("till", &bare_pod("now")).await?;
    Ok(pod.pointer("/spec/schedulingGates/0/name").is_some_and(|name| name == INJECTION_GATE))
}

/// Installs the policies of held namespaces, as if the controller had created them before it was stopped.
async fn install_held_policies(rig: &Rig) -> Result<()> {
    rig.namespace("till", Some("held")).await?;
    let settings = held::Settings::new("pillion", NAMESPACE);
    let policies = [
        json!(held::guarding(&settings)),
        json!(held::guarding_binding(&settings)),
        json!(held::gating(&settings)),
        json!(held::gating_binding(&settings)),
    ];
    for policy in policies {
        rig.control_plane.apply_yaml(&policy.to_string()).await?;
    }
    eventually(SOON, "pods wait", async || {
        ensure!(is_gated(rig).await?, "not gated");
        Ok(())
    })
    .await
}

/// Returns whether a new pod in an `enabled` namespace gets the label that the safety net adds.
async fn has_addition(rig: &Rig) -> Result<bool> {
    Ok(rig.dry_run("team-a", &bare_pod("now")).await?["metadata"]["labels"]["net"] == "yes")
}

/// Installs a policy of the safety net, as if the controller had created it before it was stopped.
async fn install_safety_net(rig: &Rig) -> Result<()> {
    let settings = safety_net::Settings::new("pillion", NAMESPACE);
    let mutation = r#"[JSONPatch{op: "add", path: "/metadata/labels", value: {"net": "yes"}}]"#.to_owned();
    for object in [json!(safety_net::policy(&settings, [], [mutation])), json!(safety_net::binding(&settings))] {
        rig.control_plane.apply_yaml(&object.to_string()).await?;
    }
    eventually(SOON, "the API server adds the label", async || {
        ensure!(has_addition(rig).await?, "not added");
        Ok(())
    })
    .await
}

/// Creates a Deployment that stands for the controller, and a validating webhook configuration with the failure policy
/// `Fail`.
async fn install_controller_and_validation(rig: &Rig) -> Result<()> {
    let controller = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "pillion-controller", "namespace": NAMESPACE},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "controller"}},
            "template": {
                "metadata": {"labels": {"app": "controller"}},
                "spec": {"containers": [{"name": "controller", "image": "registry.example.com/controller:1"}]},
            },
        },
    });
    let validating = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "pillion"},
        "webhooks": [{
            "name": "validate-required.pillion.dev",
            "clientConfig": {"url": "https://127.0.0.1:1/validate/required"},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"pillion.dev/injection": "required"}},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }],
    });
    for object in [controller, validating] {
        rig.control_plane.apply_yaml(&object.to_string()).await?;
    }
    Ok(())
}

/// Returns the desired number of the controller's replicas.
async fn controller_replicas(rig: &Rig) -> Result<String> {
    let arguments = ["-n", NAMESPACE, "get", "deployment", "pillion-controller", "-o", "jsonpath={.spec.replicas}"];
    rig.control_plane.kubectl_ok(&arguments).await
}

#[test]
fn break_glass_commands_work_without_replicas() {
    isolated_with_crds(|| async {
        let mut rig = Rig::start(1).await?;
        rig.namespace(SHOP, Some("required")).await?;
        rig.wait_until_called(SHOP).await?;
        ensure_switch(&rig).await?;
        for replica in &mut rig.replicas {
            replica.kill()?;
        }
        let created = async |what: &str| {
            let began = Instant::now();
            eventually(SOON, what, async || {
                let pod = rig.dry_run(SHOP, &bare_pod("now")).await?;
                ensure!(is_untouched(&pod), "{pod}");
                Ok(())
            })
            .await?;
            println!("{what}: pods are created again after {:?}", began.elapsed());
            anyhow::Ok(())
        };
        let refused = async || {
            eventually(SOON, "pods are rejected", async || {
                let refused = rig.dry_run(SHOP, &bare_pod("now")).await;
                ensure!(refused.is_err_and(|error| error.to_string().contains("required.pillion.dev")));
                Ok(())
            })
            .await
        };
        let (mut page, cluster) = (Page::read()?, &rig.control_plane);
        page.skip("The kill switch");
        refused().await?;

        page.run(cluster, "One namespace").await?;
        created("the label is removed").await?;
        rig.label_namespace(SHOP, "pillion.dev/injection", "required").await?;
        refused().await?;
        page.run(cluster, "One namespace").await?;
        created("the label's value is changed").await?;
        page.run(cluster, "One namespace").await?;
        refused().await?;

        page.run(cluster, "All webhooks").await?;
        created("disabled").await?;
        let all = "mutatingwebhookconfigurations,validatingwebhookconfigurations";
        ensure!(cluster.kubectl_ok(&["get", all, "-o", "name"]).await?.is_empty());
        install_held_policies(&rig).await?;
        page.run(cluster, "All webhooks").await?;
        eventually(SOON, "no pod waits any more", async || {
            ensure!(is_untouched(&rig.dry_run("till", &bare_pod("now")).await?) && !is_gated(&rig).await?);
            Ok(())
        })
        .await?;
        install_safety_net(&rig).await?;
        page.run(cluster, "All webhooks").await?;
        eventually(SOON, "the API server adds nothing any more", async || {
            ensure!(!has_addition(&rig).await?, "the policy is still active");
            Ok(())
        })
        .await?;
        cluster.kubectl_ok(&["-n", NAMESPACE, "delete", "configmap", "pillion"]).await?;
        page.run(cluster, "All webhooks").await?;
        let data =
            async || cluster.kubectl_ok(&["-n", NAMESPACE, "get", "cm", "pillion", "-o", "jsonpath={.data}"]).await;
        ensure!(data().await? == r#"{"webhooks":"disabled"}"#);
        page.run(cluster, "All webhooks").await?;
        ensure!(data().await? == r#"{"records":"ignored","webhooks":"enabled"}"#, "records are not ignored");

        let settings = pillion_api::webhook_configuration::Settings::new(NAMESPACE, rig.serving_ca.clone());
        let configuration = pillion_api::webhook_configuration::mutating(&settings);
        pillion_testkit::register_webhook(&cluster.client(), &configuration).await?;
        refused().await?;
        let output = page.run(cluster, "All webhooks").await?;
        ensure!(output == "Fail", "{output}");
        page.run(cluster, "All webhooks").await?;
        ensure!(data().await? == r#"{"records":"enforced","webhooks":"enabled"}"#);
        install_controller_and_validation(&rig).await?;
        page.run(cluster, "Stop the rejections").await?;
        ensure!(controller_replicas(&rig).await? == "0", "the controller is not stopped");
        page.run(cluster, "Stop the rejections").await?;
        created("no pod is rejected any more").await?;
        let policies = ["get", all, "-o", "jsonpath={.items[*].webhooks[*].failurePolicy}"];
        let policies = cluster.kubectl_ok(&policies).await?;
        ensure!(!policies.is_empty() && !policies.contains("Fail"), "failure policies: {policies}");
        // The test in guardrails.rs checks the effect of `records: ignored`.
        page.run(cluster, "Stop the rejections").await?;
        ensure!(data().await? == r#"{"records":"ignored","webhooks":"enabled"}"#);
        page.run(cluster, "Stop the rejections").await?;
        ensure!(controller_replicas(&rig).await? == "2", "the controller is not started again");
        page.run(cluster, "Stop the rejections").await?;

        ensure!(page.run(cluster, "Afterwards").await? == r#"{"records":"enforced","webhooks":"enabled"}"#);
        ensure!(page.run == page.blocks.len(), "a command of the page is not tested");
        Ok(())
    });
}
