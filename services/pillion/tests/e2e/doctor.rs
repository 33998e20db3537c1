//! Tests `pillion doctor` on an installation: it reports no problem if the installation is healthy, and reports each
//! fault with its code.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::ensure;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DeleteParams, ListParams};
use pillion_api::webhook_configuration::{self, Settings};
use pillion_testkit::namespace::replica_address;
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, TestCa, eventually, isolated, isolated_with_crds, register_webhook};

use crate::explain::{BROKEN, CommandResult, expect_finding, pillion, requesting_pod};
use crate::managed::{Managed, QUICK};
use crate::rig::{PATIENCE, Rig};

#[test]
fn doctor_reports_only_real_problems() {
    isolated_with_crds(|| async {
        let managed = Managed::start(ControlPlane::builder(), QUICK, 2, 1).await?;
        let control_plane = &managed.rig.control_plane;
        let well = eventually(PATIENCE, "the doctor reports no problem", async || {
            let result = pillion(control_plane, &["doctor"]).await?;
            ensure!(result.code == Some(0), "{:#}", result.json);
            Ok(result)
        })
        .await?;
        ensure!(well.codes().is_empty(), "{:#}", well.json);
        // A rotation may still be in progress in a healthy installation.
        eventually(PATIENCE, "the status is complete", async || {
            let status = pillion(control_plane, &["status"]).await?;
            let lines: BTreeMap<_, _> = status.json["installation"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|line| Some((line["part"].as_str()?, line["text"].as_str()?)))
                .collect();
            let said = |what: &str| lines.get(what).map_or_else(String::new, |text| (*text).to_owned());
            ensure!(said("replicas") == "2 of 2 ready" && said("profiles") == "1 stored, 1 served", "{lines:?}");
            ensure!(said("switch") == "injection enabled, webhooks enabled", "{lines:?}");
            ensure!(said("rotation").starts_with("stable") && said("leader").contains("renewed"), "{lines:?}");
            ensure!(said("certificate").starts_with("signed by CA"), "{lines:?}");
            ensure!(status.code == Some(0) && status.json["pods"]["missing"] == 0, "{:#}", status.json);
            ensure!(status.json["works"] == true, "{:#}", status.json);
            Ok(())
        })
        .await?;
        // The controller reports that the profile `broken` is not accepted.
        control_plane.apply_yaml(BROKEN).await?;
        eventually(PATIENCE, "the profile is not ready", async || {
            let result = pillion(control_plane, &["doctor"]).await?;
            ensure!(result.names("profile_not_ready")?["object"]["name"] == "broken", "{:#}", result.json);
            result.says("profile_not_ready", "the profile is invalid")
        })
        .await?;
        managed.rig.create("team-a", &requesting_pod("hopeful", "broken")).await?;
        expect_finding(&managed.rig, "team-a", "hopeful", "profile_not_ready").await?;
        control_plane.kubectl_ok(&["delete", "ciprof", "broken"]).await?;
        // Add a label that resembles the opt-in label, and an opt-in label with an unknown value.
        managed.rig.namespace("typo", None).await?;
        managed.rig.label_namespace("typo", "pillion.dev/injecion", "enabled").await?;
        managed.rig.namespace("wordy", Some("yes")).await?;
        // Delete an RBAC binding.
        control_plane.kubectl_ok(&["delete", "clusterrolebinding", "pillion-webhook"]).await?;
        // `doctor` asks the API server about permissions. The API server receives the deletion through its watch.
        eventually(PATIENCE, "all three faults are reported", async || {
            let result = pillion(control_plane, &["doctor"]).await?;
            for code in ["opt_in_label_misspelt", "opt_in_value_unknown", "permission_missing"] {
                result.names(code)?;
            }
            ensure!(result.code == Some(1), "{:?}", result.code);
            Ok(())
        })
        .await
    });
}

#[test]
fn doctor_finds_wrong_bundles_and_unreachable_replicas() {
    isolated_with_crds(|| async {
        let rig = Rig::start(2).await?;
        let control_plane = &rig.control_plane;
        let register = async |settings: &Settings| {
            register_webhook(&control_plane.client(), &webhook_configuration::mutating(settings)).await
        };
        let right = Settings::new(NAMESPACE, rig.serving_ca.clone());
        // The Service lists a replica that cannot be reached.
        let nobody = replica_address(77);
        rig.service.set_ready(nobody, true).await?;
        let result = pillion(control_plane, &["doctor"]).await?;
        result.says("replica_unreachable", "10.111.1.77:8443")?;
        rig.service.remove(nobody).await?;
        // The other replicas must respond in time, but a busy machine may delay them.
        eventually(PATIENCE, "all replicas are reached", async || {
            let result = pillion(control_plane, &["doctor"]).await?;
            ensure!(!result.codes().contains(&"replica_unreachable"), "{:#}", result.json);
            Ok(())
        })
        .await?;

        // The CA bundle contains a different CA.
        rig.namespace("team-b", Some("required")).await?;
        register(&Settings::new(NAMESPACE, TestCa::new()?.bundle_pem())).await?;
        eventually(PATIENCE, "the doctor reports the CA bundle", async || {
            let result = pillion(control_plane, &["doctor"]).await?;
            result.names("ca_bundle_mismatch")?;
            result.says("dry_run_failed", "x509")
        })
        .await?;
        register(&right).await?;
        eventually(PATIENCE, "the API server trusts the replicas again", async || {
            let result = pillion(control_plane, &["doctor"]).await?;
            ensure!(
                !result.codes().iter().any(|code| code.starts_with("ca") || code.starts_with("replica")),
                "{:#}",
                result.json
            );
            Ok(())
        })
        .await?;
        // Without webhook configurations, the API server calls no webhook.
        Api::<MutatingWebhookConfiguration>::all(control_plane.client())
            .delete("pillion", &DeleteParams::default())
            .await?;
        let result = pillion(control_plane, &["doctor"]).await?;
        result.names("not_registered")?;
        expect_finding(&rig, "team-a", "namespace/team-a", "not_registered").await?;
        let slices = Api::<EndpointSlice>::namespaced(control_plane.client(), NAMESPACE);
        slices.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        pillion(control_plane, &["doctor"]).await?.names("no_ready_replica")?;
        let status = pillion(control_plane, &["status"]).await?;
        ensure!(status.code == Some(1) && status.json["works"] == false, "{:#}", status.json);
        ensure!(status.json["installation"][0]["problem"] == "no webhook replica is ready", "{:#}", status.json);
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
        ensure!(!text.contains('\u{1b}'), "the output of a pipe has colours: {text:?}");
        let output = run(&["explain", "service/web"]).await?;
        ensure!(output.status.code() == Some(2), "{output:?}");
        // If the CRDs are missing, `doctor` reports that.
        let output = run(&["doctor", "-o", "json"]).await?;
        let result = CommandResult { code: output.status.code(), json: serde_json::from_slice(&output.stdout)? };
        result.names("crd_missing")?;
        let output = run(&["explain", "namespace/default", "--kubeconfig", "/nowhere"]).await?;
        ensure!(output.status.code() == Some(2), "{output:?}");

        // Flags with kubectl's names select a context, or a user to impersonate.
        for (arguments, expected) in [
            (&["status", "--context", "elsewhere"][..], "the context \"elsewhere\" of the kubeconfig cannot be used"),
            (&["status", "--as", "jane"], "User \"jane\" cannot list resource \"clusterinjectionprofiles\""),
            (&["status", "--as", "jane", "--as-group", "system:masters"], "the CRDs of Pillion are missing"),
        ] {
            let output = run(arguments).await?;
            let stderr = String::from_utf8(output.stderr)?;
            ensure!(output.status.code() == Some(2) && stderr.contains(expected), "{arguments:?}: {stderr}");
        }
        let output = run(&["status"]).await?;
        let text = String::from_utf8(output.stdout)?;
        ensure!(text.starts_with("Pillion does not work: no webhook replica is ready; no controller leads"), "{text}");
        let output = run(&["version", "-o", "json"]).await?;
        let versions: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let kubernetes = versions["server"]["kubernetes"].as_str().unwrap_or_default();
        ensure!(output.status.success() && kubernetes.starts_with("v1."), "{versions:#}");
        ensure!(versions["client"]["version"] == env!("CARGO_PKG_VERSION") && versions["server"]["webhook"].is_null());
        Ok(())
    });
}
