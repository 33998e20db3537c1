//! Tests `pillion profiles export`: with the exported revisions, commands without a cluster make the same decisions as
//! the webhook in the cluster.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use pillion_testkit::{ControlPlane, eventually, isolated_with_crds};
use serde_json::{Value as Json, json};

use crate::audit::Audit;
use crate::rig::{NGINX, PATIENCE, Rig, SOON, annotation, bare_pod, names};

/// A cluster profile that does nothing by itself, and a namespace's profile that extends it.
const CHILD: &str = "
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: base}
spec:
  activation: Never
  parameters: [{name: level, type: string, default: info, annotation: example.com/level, sources: [Namespace]}]
  template: {spec: {containers: [{name: logger, image: 'logger:1', args: ['${params.level}']}]}}
---
apiVersion: pillion.dev/v1alpha1
kind: InjectionProfile
metadata: {name: logger, namespace: team-a}
spec:
  extends: {name: base}
  activation: Always
  parameters: [{name: level, default: debug}]
";

/// Runs `pillion`. Returns its exit code, standard output and standard error.
async fn run(arguments: &[&str]) -> Result<(Option<i32>, String, String)> {
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_pillion")).args(arguments).output().await?;
    Ok((output.status.code(), String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
}

async fn export(control_plane: &ControlPlane, arguments: &[&str]) -> Result<(Option<i32>, String, String)> {
    let kubeconfig = control_plane.kubeconfig();
    let connection = ["--kubeconfig", kubeconfig.to_str().context("a path")?];
    run(&[&["profiles", "export"], arguments, &connection].concat()).await
}

/// Writes a file to the control plane's folder.
fn file(control_plane: &ControlPlane, name: &str, text: &str) -> Result<PathBuf> {
    let file = control_plane.directory().join(name);
    std::fs::write(&file, text)?;
    Ok(file)
}

/// Injects into a pod of `team-a` without the cluster.
async fn inject(control_plane: &ControlPlane, bundle: &str, pod: &Json) -> Result<Json> {
    let bundle = file(control_plane, "bundle.yaml", bundle)?;
    let pod = file(control_plane, "pod.json", &pod.to_string())?;
    let [bundle, pod] = [&bundle, &pod].map(|path| path.to_str().unwrap_or_default());
    let (code, injected, error) = run(&["inject", "-p", bundle, "-f", pod, "-n", "team-a", "-o", "json"]).await?;
    ensure!(code == Some(0), "{error}");
    Ok(serde_json::from_str(&injected)?)
}

#[test]
fn exported_profiles_decide_as_the_cluster() {
    isolated_with_crds(|| async {
        let rig = Rig::start_with(ControlPlane::builder(), &["--profiles-from", "revisions"], 1).await?;
        let control_plane = &rig.control_plane;
        let _controller = Audit::start(control_plane.client())?;
        rig.namespace("team-a", Some("enabled")).await?;
        control_plane.apply_yaml(CHILD).await?;
        let stored = eventually(PATIENCE, "both profiles are served", async || {
            let pod = rig.dry_run("team-a", &bare_pod("web")).await?;
            ensure!(names(&pod) == ["app", "sidecar-nginx", "logger"], "{pod}");
            Ok(pod)
        })
        .await?;

        // A later spec of a profile has no effect if it is not accepted, neither in the cluster nor in the export.
        control_plane.apply_yaml(&NGINX.replace("        image: nginx:1.29\n", "")).await?;
        let (code, bundle, error) = export(control_plane, &["-n", "team-a"]).await?;
        ensure!(code == Some(0) && error.is_empty(), "{error}");
        ensure!(export(control_plane, &["-A"]).await?.1 == bundle, "the output depends on the call");
        for part in ["managedFields", "\nstatus:", "uid:", "resourceVersion", "ownerReferences", "\n  source:"] {
            ensure!(!bundle.contains(part), "{part}: {bundle}");
        }
        let order: Vec<_> = bundle.lines().filter_map(|line| line.strip_prefix("  profile: ")).collect();
        ensure!(order == ["base", "nginx", "logger"], "{order:?}");

        // The injection record has the revisions of the profiles, and everything that was added.
        let offline = inject(control_plane, &bundle, &bare_pod("web")).await?;
        let record = |pod| annotation(pod, "pillion.dev/injected").map(serde_json::from_str::<Json>);
        let (cluster, local) = (record(&stored).context("a record")??, record(&offline).context("a record")??);
        ensure!(cluster["profiles"] == local["profiles"], "{cluster}\n{local}");
        ensure!(names(&offline) == names(&stored), "{offline}");
        let path = file(control_plane, "bundle.yaml", &bundle)?;
        let path = path.to_str().context("a path")?;
        let (code, _, error) = run(&["lint", path]).await?;
        ensure!(code == Some(0), "{error}");
        rig.create("team-a", &bare_pod("web")).await?;
        let kubeconfig = control_plane.kubeconfig();
        let connection = ["--kubeconfig", kubeconfig.to_str().context("a path")?];
        let (code, text, error) = run(&[&["diff", "-p", path, "-n", "team-a"][..], &connection].concat()).await?;
        ensure!(code == Some(0), "the running pod has the exported revisions: {text}{error}");

        let (code, list, _) = export(control_plane, &["logger", "-n", "team-a", "-o", "json"]).await?;
        let list: Json = serde_json::from_str(&list)?;
        ensure!(code == Some(0) && list["metadata"]["namespace"] == "team-a", "{list}");
        ensure!(list["spec"]["bounds"] == "Parent" && list["spec"]["ancestors"] == json!(["base"]), "{list}");
        let (code, _, error) = export(control_plane, &["longer", "-n", "team-a"]).await?;
        ensure!(code == Some(2) && error.contains("there is no profile longer"), "{error}");
        Ok(())
    });
}

#[test]
fn export_selects_revision_of_rollout() {
    isolated_with_crds(|| async {
        let rig = Rig::start_with(ControlPlane::builder(), &["--profiles-from", "revisions"], 1).await?;
        let control_plane = &rig.control_plane;
        let _controller = Audit::start(control_plane.client())?;
        eventually(SOON, "a revision is published", async || {
            let (code, text, _) = export(control_plane, &[]).await?;
            ensure!(code == Some(0) && text.contains("nginx:1.29"), "{text}");
            Ok(())
        })
        .await?;
        let rollout = NGINX.replace("nginx:1.29", "nginx:1.30").replacen("spec:", "spec:\n  rollout: {percent: 10}", 1);
        control_plane.apply_yaml(&rollout).await?;
        let newest = eventually(SOON, "the rollout has begun", async || {
            let (_, text, _) = export(control_plane, &["nginx", "--revision", "newest"]).await?;
            ensure!(text.contains("nginx:1.30"), "{text}");
            Ok(text)
        })
        .await?;
        let (_, promoted, _) = export(control_plane, &["nginx"]).await?;
        ensure!(promoted.contains("nginx:1.29") && !promoted.contains("nginx:1.30"), "{promoted}");
        let hash = newest.lines().find_map(|line| line.strip_prefix("  revision: ")).context("a revision")?;
        let (_, by_hash, _) = export(control_plane, &["nginx", "--revision", hash.trim_matches('"')]).await?;
        ensure!(by_hash == newest, "{by_hash}");

        // A profile whose spec was never accepted is left out.
        let broken = NGINX.replace("name: nginx\n", "name: broken\n").replace("        image: nginx:1.29\n", "");
        control_plane.apply_yaml(&broken).await?;
        let (code, text, error) = export(control_plane, &[]).await?;
        ensure!(code == Some(1) && text == promoted, "{text}");
        ensure!(error.contains("profile broken is left out: no revision of it is published"), "{error}");
        Ok(())
    });
}
