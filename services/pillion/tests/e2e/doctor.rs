//! Tests `pillion doctor` on an installation: it reports nothing on a healthy one, and each problem by its code.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::ensure;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DeleteParams, ListParams};
use pillion_api::webhook_configuration::{self, Settings};
use pillion_testkit::namespace::replica_address;
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, TestCa, eventually, isolated, register_webhook};

use crate::explain::{Answer, BROKEN, asking, finds, pillion};
use crate::managed::{Managed, QUICK};
use crate::rig::{PATIENCE, Rig};

#[test]
fn doctor_reports_only_real_problems() {
    isolated(|| async {
        let managed = Managed::start(ControlPlane::builder(), QUICK, 2, 1).await?;
        let control_plane = &managed.rig.control_plane;
        let well = eventually(PATIENCE, "there is no finding", async || {
            let answer = pillion(control_plane, &["doctor"]).await?;
            ensure!(answer.code == Some(0), "{:#}", answer.json);
            Ok(answer)
        })
        .await?;
        ensure!(well.codes().is_empty(), "{:#}", well.json);
        // A healthy status does not mean that the rotation is complete.
        eventually(PATIENCE, "the status is complete", async || {
            let status = pillion(control_plane, &["status"]).await?;
            let lines: BTreeMap<_, _> = status.json["installation"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|line| Some((line["what"].as_str()?, line["said"].as_str()?)))
                .collect();
            let said = |what: &str| lines.get(what).map_or_else(String::new, |text| (*text).to_owned());
            ensure!(said("replicas") == "2 of 2 ready" && said("profiles") == "1 stored, 1 served", "{lines:?}");
            ensure!(said("switch") == "injection enabled, webhooks armed", "{lines:?}");
            ensure!(said("rotation").starts_with("stable") && said("leader").contains("renewed"), "{lines:?}");
            ensure!(said("certificate").starts_with("of authority"), "{lines:?}");
            ensure!(status.code == Some(0) && status.json["pods"]["missing"] == 0, "{:#}", status.json);
            Ok(())
        })
        .await?;
        // The controller rejects this profile and reports that in its status.
        control_plane.apply_yaml(BROKEN).await?;
        eventually(PATIENCE, "the profile is not ready", async || {
            let answer = pillion(control_plane, &["doctor"]).await?;
            ensure!(answer.names("profile_not_ready")?["object"]["name"] == "broken", "{:#}", answer.json);
            answer.says("profile_not_ready", "Accepted")
        })
        .await?;
        managed.rig.create("team-a", &asking("hopeful", "broken")).await?;
        finds(&managed.rig, "team-a", "hopeful", "profile_not_ready").await?;
        control_plane.kubectl_ok(&["delete", "ciprof", "broken"]).await?;
        // Adds labels that resemble the opt-in label.
        managed.rig.namespace("typo", None).await?;
        managed.rig.label_namespace("typo", "pillion.dev/injecion", "enabled").await?;
        managed.rig.namespace("wordy", Some("yes")).await?;
        // Removes a role binding.
        control_plane.kubectl_ok(&["delete", "clusterrolebinding", "pillion-webhook"]).await?;
        // The API server evaluates permissions, and notices the change a moment later.
        eventually(PATIENCE, "all three findings are reported", async || {
            let answer = pillion(control_plane, &["doctor"]).await?;
            for code in ["opt_in_label_misspelt", "opt_in_value_unknown", "right_missing"] {
                answer.names(code)?;
            }
            ensure!(answer.code == Some(1), "{:?}", answer.code);
            Ok(())
        })
        .await
    });
}

#[test]
fn doctor_finds_wrong_bundles_and_unreachable_replicas() {
    isolated(|| async {
        let rig = Rig::start(2).await?;
        let control_plane = &rig.control_plane;
        let register = async |settings: &Settings| {
            register_webhook(&control_plane.client(), &webhook_configuration::mutating(settings)).await
        };
        let right = Settings::new(NAMESPACE, rig.serving_authority.clone());
        // 20: a listed replica that is unreachable.
        let nobody = replica_address(77);
        rig.service.set_ready(nobody, true).await?;
        let answer = pillion(control_plane, &["doctor"]).await?;
        answer.says("replica_unreachable", "10.111.1.77:8443")?;
        rig.service.remove(nobody).await?;
        // The other replicas must respond within a time that a busy machine may exceed.
        eventually(PATIENCE, "all replicas are reached", async || {
            let answer = pillion(control_plane, &["doctor"]).await?;
            ensure!(!answer.codes().contains(&"replica_unreachable"), "{:#}", answer.json);
            Ok(())
        })
        .await?;

        // 19: the bundle belongs to another CA.
        rig.namespace("team-b", Some("required")).await?;
        register(&Settings::new(NAMESPACE, TestCa::new()?.bundle_pem())).await?;
        eventually(PATIENCE, "the doctor reports the bundle", async || {
            let answer = pillion(control_plane, &["doctor"]).await?;
            answer.names("ca_bundle_mismatch")?;
            answer.says("canary_failed", "x509")
        })
        .await?;
        register(&right).await?;
        eventually(PATIENCE, "the configuration is repaired", async || {
            let answer = pillion(control_plane, &["doctor"]).await?;
            ensure!(
                !answer.codes().iter().any(|code| code.starts_with("ca") || code.starts_with("replica")),
                "{:#}",
                answer.json
            );
            Ok(())
        })
        .await?;
        // No webhook is called at all.
        Api::<MutatingWebhookConfiguration>::all(control_plane.client())
            .delete("pillion", &DeleteParams::default())
            .await?;
        let answer = pillion(control_plane, &["doctor"]).await?;
        answer.names("not_registered")?;
        finds(&rig, "team-a", "namespace/team-a", "not_registered").await?;
        let slices = Api::<EndpointSlice>::namespaced(control_plane.client(), NAMESPACE);
        slices.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        pillion(control_plane, &["doctor"]).await?.names("no_ready_replica")?;
        Ok(())
    });
}

#[test]
fn doctor_runs_as_plugin_and_reports_failure() {
    isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        let folder: PathBuf = control_plane.directory().join("plugins");
        std::fs::create_dir_all(&folder)?;
        let plugin = folder.join("kubectl-pillion");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_pillion"), &plugin)?;
        let run = async |arguments: &[&str]| {
            let mut command = tokio::process::Command::new(&plugin);
            command.args(arguments).env("KUBECONFIG", control_plane.kubeconfig()).output().await
        };
        let output = run(&["explain", "pod/web", "-n", "default"]).await?;
        let text = String::from_utf8(output.stdout)?;
        ensure!(output.status.code() == Some(1) && text.contains("error not_found: Pod default/web"), "{text}");
        ensure!(!text.contains('\u{1b}'), "colours are for terminals: {text:?}");
        let output = run(&["explain", "service/web"]).await?;
        ensure!(output.status.code() == Some(2), "{output:?}");
        // The CRDs are missing, and the doctor reports that.
        let output = run(&["doctor", "-o", "json"]).await?;
        let answer = Answer { code: output.status.code(), json: serde_json::from_slice(&output.stdout)? };
        answer.names("definition_missing")?;
        let output = run(&["explain", "namespace/default", "--kubeconfig", "/nowhere"]).await?;
        ensure!(output.status.code() == Some(2), "{output:?}");
        Ok(())
    });
}
