//! Tests profiles that change in the cluster. The next pod must get the changed profile. A profile that does not
//! compile must change nothing.

use anyhow::{Result, ensure};
use pillion_testkit::{eventually, isolated, isolated_with_crds};
use serde_json::Value as Json;

use crate::rig::{NGINX, PATIENCE, Rig, SOON, bare_pod, names};

/// Returns the image of the sidecar that a new pod would get, or null if it would get no sidecar.
async fn image(rig: &Rig) -> Result<Json> {
    let pod = rig.dry_run("team-a", &bare_pod("probe")).await?;
    let sidecar = pod["spec"]["containers"].as_array().unwrap().iter().find(|c| c["name"] == "sidecar-nginx");
    Ok(sidecar.map_or(Json::Null, |sidecar| sidecar["image"].clone()))
}

async fn image_becomes(rig: &Rig, expected: &str) -> Result<()> {
    eventually(SOON, &format!("pods get the image {expected}"), async || {
        let image = image(rig).await?;
        ensure!(image == expected, "still {image}");
        Ok(())
    })
    .await
}

#[test]
fn profile_edits_reach_pods_and_mistakes_do_not() {
    isolated_with_crds(|| async {
        let rig = Rig::start(1).await?;
        rig.control_plane.apply_yaml(&NGINX.replace("nginx:1.29", "nginx:1.30")).await?;
        image_becomes(&rig, "nginx:1.30").await?;

        // The CRD does not check templates, so the profile is stored. It does not compile, so it is not served.
        let broken = NGINX.replace("        image: nginx:1.29\n", "").replace("1.29", "1.31");
        rig.control_plane.apply_yaml(&broken).await?;
        let message = eventually(SOON, "the log says where and why the profile is broken", async || {
            let log = rig.replicas[0].log_text()?;
            let line = log.lines().find(|line| line.contains("spec.template.spec.containers[0]"));
            line.map(str::to_owned).ok_or_else(|| anyhow::anyhow!("not in the log yet"))
        })
        .await?;
        ensure!(message.contains("nginx") && message.contains("needs an image"), "{message}");
        ensure!(image(&rig).await? == "nginx:1.30", "the last valid version stays active");
        rig.wait_for_broken_profiles(1).await?;

        rig.control_plane.apply_yaml(&NGINX.replace("nginx:1.29", "nginx:1.32")).await?;
        image_becomes(&rig, "nginx:1.32").await?;
        rig.wait_for_broken_profiles(0).await?;

        rig.control_plane.kubectl_ok(&["delete", "ciprof", "nginx"]).await?;
        eventually(SOON, "a deleted profile is no longer applied", async || {
            let names = names(&rig.dry_run("team-a", &bare_pod("probe")).await?);
            ensure!(names == ["app"], "{names:?}");
            Ok(())
        })
        .await
    });
}

#[test]
fn namespaced_profile_applies_in_its_namespace_only() {
    isolated_with_crds(|| async {
        let rig = Rig::start(1).await?;
        rig.namespace("team-b", Some("enabled")).await?;
        let profile = "apiVersion: pillion.dev/v1alpha1\nkind: InjectionProfile\n\
                       metadata: {name: logger, namespace: team-b}\n\
                       spec: {template: {spec: {containers: [{name: logger, image: 'logger:1'}]}}}\n";
        rig.control_plane.apply_yaml(profile).await?;
        eventually(SOON, "pods of the namespace get its profile", async || {
            let names = names(&rig.dry_run("team-b", &bare_pod("probe")).await?);
            ensure!(names == ["app", "sidecar-nginx", "logger"], "{names:?}");
            Ok(())
        })
        .await?;
        ensure!(names(&rig.dry_run("team-a", &bare_pod("probe")).await?) == ["app", "sidecar-nginx"]);
        Ok(())
    });
}

#[test]
fn crds_describe_fields_and_reject_invalid_ones() {
    isolated(|| async {
        let rig = Rig::start(1).await?;
        // The API server updates discovery and the schema shortly after it stores the CRDs.
        eventually(PATIENCE, "kubectl shows and explains the CRDs", async || {
            let table = rig.control_plane.kubectl_ok(&["get", "ciprof"]).await?;
            ensure!(table.contains("ACTIVATION"), "{table}");
            let all = rig.control_plane.kubectl_ok(&["get", "pillion", "-A"]).await?;
            ensure!(all.contains("clusterinjectionprofile.pillion.dev/nginx"), "{all}");
            ensure!(rig.control_plane.kubectl_ok(&["get", "iprof", "-A"]).await?.is_empty());
            let explained = rig.control_plane.kubectl_ok(&["explain", "ciprof.spec.requestedBy.truthy"]).await?;
            ensure!(explained.contains("Values that request the default profile"), "{explained}");
            Ok(())
        })
        .await?;

        let refused = |kind: &str, spec: &str| {
            let yaml = format!(
                "apiVersion: pillion.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: x, namespace: team-a}}\nspec: {spec}\n"
            );
            let control_plane = &rig.control_plane;
            async move {
                let output = control_plane.kubectl_with_input(&["create", "-f", "-"], &yaml).await?;
                ensure!(!output.status.success(), "accepted: {yaml}");
                anyhow::Ok(String::from_utf8_lossy(&output.stderr).into_owned())
            }
        };
        let tenant = "InjectionProfile";
        let template = "template: {metadata: {labels: {a: b}}}";
        for (kind, spec, expected) in [
            (tenant, format!("{{namespaceSelector: {{}}, {template}}}"), "only to its own namespace"),
            (tenant, format!("{{optOut: Forbidden, {template}}}"), "optOut Forbidden is for"),
            (tenant, "{order: 1}".to_owned(), "otherwise it does nothing"),
            (tenant, format!("{{requestedBy: {{values: [a]}}, {template}}}"), "needs an annotation or a label"),
            (tenant, format!("{{activation: Sometimes, {template}}}"), "Sometimes"),
            (tenant, format!("{{ordr: 1, {template}}}"), "ordr"),
        ] {
            let message = refused(kind, &spec).await?;
            ensure!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
        Ok(())
    });
}
