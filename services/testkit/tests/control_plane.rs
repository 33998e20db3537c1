//! Tests the harness itself, with the real etcd, kube-apiserver and kubectl.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams};
use pillion_testkit::control_plane::client_of;
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, Isolation, eventually, isolated};
use serde_json::json;

const SOON: Duration = Duration::from_mins(1);

/// Starts a control plane beside the leased one. The test fails unless the two are isolated from each other.
#[test]
fn starts_and_serves_isolated() {
    isolated(|| async {
        let beside = |number| ControlPlane::builder().address(IpAddr::V4(Ipv4Addr::new(10, 111, 0, number)));
        let started = Instant::now();
        let control_plane = beside(2).start().await?;
        let mut took = started.elapsed();
        println!("ready after {took:?}");
        if took > Duration::from_mins(1) {
            // A start may be slow on a busy machine, so one fast start of several is enough.
            let started = Instant::now();
            drop(beside(3).start().await?);
            took = started.elapsed();
        }
        ensure!(took < Duration::from_mins(1), "ready only after {took:?}");

        let version = control_plane.client().apiserver_version().await?;
        ensure!(version.major == "1", "{version:?}");
        control_plane.create_namespace("tenant", &[("pillion.dev/injection", "enabled")]).await?;
        let namespaces: Api<Namespace> = Api::all(control_plane.client());
        let tenants = namespaces.list(&ListParams::default().labels("pillion.dev/injection=enabled")).await?;
        ensure!(tenants.items.len() == 1, "{tenants:?}");

        let leased = ControlPlane::start().await?;
        ensure!(leased.url() != control_plane.url());
        let not_there: Api<Namespace> = Api::all(leased.client());
        ensure!(namespaces.get_opt("tenant").await?.is_some());
        ensure!(not_there.get_opt("tenant").await?.is_none());
        Ok(())
    });
}

#[test]
fn kubectl_applies_crds_and_reads_what_it_wrote() {
    isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        control_plane.apply_crds(&[widgets()?]).await?;
        let widget =
            "apiVersion: example.test/v1\nkind: Widget\nmetadata: {name: w, namespace: default}\nspec: {size: 7}\n";
        let output = control_plane.kubectl_with_input(&["apply", "--server-side", "-f", "-"], widget).await?;
        let output = String::from_utf8(output.stdout)?;
        ensure!(output.contains("widget.example.test/w serverside-applied"), "{output}");
        let size = control_plane.kubectl_ok(&["get", "widget", "w", "-o", "jsonpath={.spec.size}"]).await?;
        ensure!(size == "7", "{size}");

        // Objects can also be applied without kubectl: documents, lists, and objects without a namespace.
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "example.test/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {"size": 8}},
        ]});
        let space = "apiVersion: v1\nkind: Namespace\nmetadata: {name: applied}\n";
        control_plane.apply_yaml(&format!("---\n{list}\n---\n{space}---\n")).await?;
        let size = control_plane.kubectl_ok(&["get", "widget", "a", "-o", "jsonpath={.spec.size}"]).await?;
        ensure!(size == "8", "{size}");
        control_plane.kubectl_ok(&["get", "namespace", "applied"]).await?;
        for (wrong, expected) in [
            (widget.replace("size: 7", "sizes: 7"), "field not declared in schema"),
            (widget.replace("Widget", "Gadget"), "does not know"),
            (widget.replace("size: 7", "size: large"), "the API server rejects the Widget w"),
        ] {
            let error = format!("{:#}", control_plane.apply_yaml(&wrong).await.err().context("it was applied")?);
            ensure!(error.contains(expected), "{error}");
        }

        let failed = control_plane.kubectl(&["get", "widget", "nobody"]).await?;
        ensure!(!failed.status.success() && String::from_utf8_lossy(&failed.stderr).contains("NotFound"));
        let error = control_plane.kubectl_ok(&["get", "nonsense"]).await.unwrap_err().to_string();
        ensure!(error.contains("kubectl get nonsense failed") && error.contains("resource type"), "{error}");
        Ok(())
    });
}

#[test]
fn rbac_applies_to_accounts_and_impersonation() {
    isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        control_plane.create_namespace(NAMESPACE, &[]).await?;
        let kubeconfig = control_plane.kubeconfig_for_service_account(NAMESPACE, "webhook").await?;
        let account = client_of(&kubeconfig).await?;
        let tenant = control_plane.client_as("alice@example.test", &["tenants"]).await?;

        let list = ListParams::default();
        for client in [&account, &tenant] {
            match Api::<ConfigMap>::default_namespaced(client.clone()).list(&list).await {
                Err(kube::Error::Api(status)) if status.is_forbidden() => {}
                other => bail!("without a role it should be forbidden: {other:?}"),
            }
        }
        // Built-in roles such as `view` are empty here, because only the controller manager aggregates them, and it
        // does not run.
        let role = ["create", "clusterrole", "reader", "--verb=list", "--resource=configmaps"];
        control_plane.kubectl_ok(&role).await?;
        let binding = [
            "create",
            "clusterrolebinding",
            "readers",
            "--clusterrole=reader",
            "--serviceaccount=pillion-system:webhook",
            "--group=tenants",
        ];
        control_plane.kubectl_ok(&binding).await?;
        for client in [account, tenant] {
            let maps: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
            eventually(SOON, "the role is granted", async || Ok(maps.list(&list).await?)).await?;
        }
        Ok(())
    });
}

#[test]
fn second_api_server_shares_state_and_pauses() {
    isolated(|| async {
        let first = ControlPlane::start().await?;
        let mut second = first.second_api_server().await?;
        first.create_namespace("shared", &[]).await?;
        let there: Api<Namespace> = Api::all(second.client());
        ensure!(there.get_opt("shared").await?.is_some());

        second.process().pause()?;
        let answer = tokio::time::timeout(Duration::from_millis(500), there.get_opt("shared")).await;
        ensure!(answer.is_err(), "a stopped API server responds: {answer:?}");
        first.create_namespace("meanwhile", &[]).await?;
        second.process().resume()?;
        eventually(SOON, "it responds again", async || {
            there.get_opt("meanwhile").await?.context("the object is not visible yet")
        })
        .await?;
        Ok(())
    });
}

#[test]
fn restarted_api_server_keeps_objects() {
    isolated(|| async {
        let mut control_plane = ControlPlane::start().await?;
        control_plane.create_namespace("kept", &[]).await?;
        let before: Api<Namespace> = Api::all(control_plane.client());
        let uid = before.get("kept").await?.metadata.uid;

        control_plane.stop_api_server()?;
        ensure!(before.get("kept").await.is_err(), "a killed API server responds");
        ensure!(control_plane.stop_api_server().is_err());
        control_plane.start_api_server().await?;

        ensure!(Api::<Namespace>::all(control_plane.client()).get("kept").await?.metadata.uid == uid);
        ensure!(control_plane.start_api_server().await.is_err(), "the API server was started twice");
        // A client that was created before the restart reconnects.
        let again = eventually(SOON, "the old client is served", async || Ok(before.get("kept").await?)).await?;
        ensure!(again.metadata.uid == uid);
        Ok(())
    });
}

#[test]
fn next_test_gets_running_api_server() {
    isolated(|| async { ControlPlane::start().await?.pause_api_server() });
    isolated(|| async {
        ControlPlane::start().await?.client().apiserver_version().await?;
        Ok(())
    });
}

#[test]
fn start_failure_shows_api_server_output() {
    Isolation::new().own_network("tests the control plane itself").run(|| async {
        let started = Instant::now();
        let start = ControlPlane::builder().api_server_arg("--no-such-flag").start().await;
        let error = format!("{:#}", start.err().context("it started")?);
        ensure!(error.contains("unknown flag: --no-such-flag"), "{error}");
        ensure!(started.elapsed() < Duration::from_mins(1), "the wait continued after the failure");
        Ok(())
    });
}

fn widgets() -> anyhow::Result<CustomResourceDefinition> {
    Ok(serde_json::from_value(json!({
        "metadata": { "name": "widgets.example.test" },
        "spec": {
            "group": "example.test",
            "scope": "Namespaced",
            "names": { "plural": "widgets", "singular": "widget", "kind": "Widget" },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "properties": { "spec": { "type": "object", "properties": { "size": { "type": "integer" } } } },
                } },
            }],
        },
    }))?)
}
