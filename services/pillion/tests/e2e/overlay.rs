//! A pod author changes the proxy of a mesh, in a namespace whose `LimitRange` also changes it. The author's values
//! take precedence over the profile, but defaults set by admission plugins do not.

use anyhow::{Context, ensure};
use pillion_testkit::{eventually, isolated_with_crds};
use serde_json::{Value as Json, json};

use crate::rig::{Rig, SOON};

const PROXY: &str = "
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: mesh}
spec:
  activation: Always
  namespaceSelector: {matchLabels: {mesh: 'yes'}}
  parameters:
  - {name: native, type: boolean, default: true, annotation: example.com/native, sources: [Pod]}
  template:
    spec:
      initContainers:
      - name: proxy
        restartPolicy: \"${params.native ? 'Always' : null}\"
        $position: First
        $conflict: Merge
        image: {$value: 'proxy:1', $conflict: \"${existing.orValue('') == 'auto' ? 'Replace' : 'Keep'}\"}
        args: [proxy, sidecar]
        env:
        - {name: APPS, value: \"${containers.map(c, c.name).join(',')}\", $join: {separator: ','}}
        resources: {limits: {cpu: '2', memory: 1Gi}, requests: {cpu: 100m, memory: 64Mi}}
  containerPatches:
  - name: probes
    match: {types: [App]}
    template:
      livenessProbe:
        $when: existing.?httpGet.hasValue()
        $conflict: Replace
        httpGet: {path: \"/health/${container.name}\", port: 15020}
";

const LIMITS: &str = "
apiVersion: v1
kind: LimitRange
metadata: {name: limits, namespace: meshed}
spec:
  limits:
  - {type: Container, default: {cpu: 300m, memory: 256Mi}, defaultRequest: {cpu: 50m, memory: 32Mi}}
";

fn pod(name: &str, native: bool) -> Json {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {"example.com/native": native.to_string()}},
        "spec": {"containers": [
            {"name": "app", "image": "app:1", "livenessProbe": {"httpGet": {"path": "/live", "port": 80}, "periodSeconds": 3}},
            {"name": "proxy", "image": "auto", "args": ["mine"], "resources": {"limits": {"memory": "2Gi"}}},
        ]},
    })
}

#[test]
fn overlay_survives_defaults_of_limit_range() {
    isolated_with_crds(|| async {
        let rig = Rig::start(1).await?;
        rig.namespace("meshed", Some("enabled")).await?;
        rig.label_namespace("meshed", "mesh", "yes").await?;
        rig.control_plane.apply_yaml(LIMITS).await?;
        rig.control_plane.apply_yaml(PROXY).await?;
        let native = eventually(SOON, "the profile and the LimitRange are active", async || {
            let made = rig.dry_run("meshed", &pod("native", true)).await?;
            let init = made["spec"]["initContainers"].as_array().context("no proxy yet")?;
            ensure!(made["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "300m", "no LimitRange yet: {made}");
            ensure!(init.len() == 1, "{made}");
            Ok(made)
        })
        .await?;
        let proxy = &native["spec"]["initContainers"][0];
        assert_eq!(proxy["restartPolicy"], "Always");
        assert_eq!(proxy["image"], "proxy:1", "auto requests Pillion's container");
        assert_eq!(proxy["args"], json!(["mine"]), "the author's value");
        assert_eq!(proxy["resources"]["limits"]["memory"], "2Gi", "the author's value");
        assert_eq!(proxy["resources"]["limits"]["cpu"], "2", "the LimitRange's value has no precedence");
        // The API server derives requests from the author's limits before it calls webhooks. So these requests are
        // treated as the author's.
        assert_eq!(proxy["resources"]["requests"], json!({"cpu": "100m", "memory": "2Gi"}));
        assert_eq!(proxy["env"], json!([{"name": "APPS", "value": "app"}]));
        let app = &native["spec"]["containers"][0];
        assert_eq!(app["name"], "app");
        assert_eq!(app["livenessProbe"]["httpGet"]["path"], "/health/app");
        assert_eq!(app["livenessProbe"]["httpGet"]["port"], 15020);
        assert_eq!(app["livenessProbe"]["periodSeconds"], 3);
        assert_eq!(native["spec"]["containers"].as_array().unwrap().len(), 1, "the proxy is not among the containers");

        let other = rig.dry_run("meshed", &pod("other", false)).await?;
        let names: Vec<_> =
            other["spec"]["containers"].as_array().unwrap().iter().map(|container| container["name"].clone()).collect();
        assert_eq!(names, [json!("proxy"), json!("app")], "the overlay is at the position of the profile's container");
        let proxy = &other["spec"]["containers"][0];
        assert_eq!(proxy["resources"]["limits"], json!({"cpu": "2", "memory": "2Gi"}));
        assert_eq!(proxy["image"], "proxy:1");
        assert!(other["spec"]["initContainers"].is_null(), "{other}");
        Ok(())
    });
}
