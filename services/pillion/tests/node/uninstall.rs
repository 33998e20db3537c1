//! Tests that pods can be created after `helm uninstall`, even if parts of the release were lost before.

use std::time::Instant;

use anyhow::{Result, ensure};
use pillion_testkit::eventually;

use crate::platform::{NAMESPACE, Platform, SOON, is_injected, on_a_node};

/// The losses before the release is deleted, each with the arguments of kubectl that cause it.
const LOSSES: [(&str, &[&str]); 5] = [
    ("nothing", &[]),
    ("the replicas", &["delete", "deployment/pillion-webhook", "--namespace", NAMESPACE]),
    ("the controllers", &["delete", "deployment/pillion-controller", "--namespace", NAMESPACE]),
    ("the certificate", &["delete", "secret/pillion-serving", "--namespace", NAMESPACE]),
    (
        "both Deployments and the CRDs",
        &["delete", "deployments,customresourcedefinitions.apiextensions.k8s.io", "--all", "--namespace", NAMESPACE],
    ),
];

async fn expect_no_remains(platform: &Platform, lost: &str) -> Result<()> {
    eventually(SOON, "pods are created", async || {
        let pod = platform.dry_run("pay").await?;
        ensure!(!is_injected(&pod), "a webhook still injects");
        Ok(())
    })
    .await?;
    // Nothing may remain, neither cluster-scoped objects nor roles in other namespaces.
    let everywhere = "mutatingwebhookconfigurations,validatingwebhookconfigurations,clusterroles,clusterrolebindings,\
                      mutatingadmissionpolicies,mutatingadmissionpolicybindings,\
                      validatingadmissionpolicies,validatingadmissionpolicybindings";
    let mut places = vec![vec!["get", everywhere, "--output=name"]];
    for namespace in ["default", "kube-system"] {
        places.push(vec!["get", "roles,rolebindings", "--namespace", namespace, "--output=name"]);
    }
    for arguments in places {
        let left = platform.kubectl(&arguments).await?;
        let left: Vec<_> = left.lines().filter(|name| name.contains("pillion")).collect();
        ensure!(left.is_empty(), "after the loss of {lost}: {left:?}");
    }
    Ok(())
}

#[test]
#[ignore = "needs a real node: just node"]
fn pods_are_created_after_damaged_uninstall() {
    on_a_node(async |platform| {
        platform.namespace("pay", "required").await?;
        for (lost, command) in LOSSES {
            platform.install("pay").await?;
            if !command.is_empty() {
                platform.kubectl(command).await?;
            }
            let begun = Instant::now();
            platform.helm("uninstall", None, &["--wait", "--timeout=3m"]).await?;
            println!("without {lost}: deleted after {:.1?}", begun.elapsed());
            expect_no_remains(platform, lost).await?;
        }
        Ok(())
    });
}
