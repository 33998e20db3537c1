//! Tests profiles that read a pod's service account and owners, which replicas look up in the real API server.

use anyhow::{Result, ensure};
use pillion_testkit::{eventually, isolated_with_crds};
use serde_json::{Value as Json, json};

use crate::rig::{Rig, SOON, annotation};

/// A profile like those for web identity. An annotation of the service account enables it, and sets its parameter.
const IDENTITY: &str = "
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: identity}
spec:
  activation: Always
  matchConditions:
  - {name: role, expression: \"params.role != '' && params.expiration == 600\"}
  parameters:
  - {name: role, type: string, default: '', annotation: eks.amazonaws.com/role-arn, sources: [ServiceAccount]}
  - {name: expiration, type: integer, minimum: 600, clamp: true, default: 86400, onInvalid: Default,
     annotation: eks.amazonaws.com/token-expiration, sources: [Pod, ServiceAccount]}
  template: {metadata: {annotations: {example.com/identity: given}}}
";

/// A profile that selects pods of a CronJob. The pods themselves do not contain the CronJob's name.
const NIGHTLY: &str = "
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: nightly}
spec:
  activation: Always
  matchConditions:
  - {name: nightly, expression: \"owner.?kind.orValue('') == 'CronJob' && owner.?name.orValue('') == 'nightly'\"}
  template: {metadata: {annotations: {example.com/nightly: 'yes'}}}
";

/// A profile that selects pods of a Deployment by the Deployment's name.
const WEB: &str = "
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: web}
spec:
  activation: Always
  matchConditions:
  - {name: web, expression: \"owners.map(o, o.kind + '/' + o.name) == ['ReplicaSet/web-7c9d6f5b8', 'Deployment/web']\"}
  template: {metadata: {annotations: {example.com/web: 'yes'}}}
";

const OBJECTS: &str = "
apiVersion: v1
kind: ServiceAccount
metadata:
  name: builder
  namespace: team-a
  annotations: {eks.amazonaws.com/role-arn: 'arn:aws:iam::1:role/x', eks.amazonaws.com/token-expiration: '10'}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: plain, namespace: team-a}
";

fn pod(name: &str, account: &str, labels: &Json, owners: &Json) -> Json {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": labels, "ownerReferences": owners},
        "spec": {"serviceAccountName": account, "containers": [{"name": "app", "image": "app:1"}]},
    })
}

fn owner(api_version: &str, kind: &str, name: &str, uid: &str) -> Json {
    json!([{"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true}])
}

#[test]
fn lookups_of_owners_and_accounts_decide() {
    isolated_with_crds(|| async {
        let rig = Rig::start(1).await?;
        for yaml in [OBJECTS, IDENTITY, NIGHTLY, WEB] {
            rig.control_plane.apply_yaml(yaml).await?;
        }
        // Replicas receive each profile separately. Together with the shipped profile, there are four.
        rig.wait_until_served(4).await?;
        let nobody = json!([]);
        eventually(SOON, "the account's pods get its identity", async || {
            let given = rig.dry_run("team-a", &pod("a", "builder", &json!({}), &nobody)).await?;
            ensure!(annotation(&given, "example.com/identity") == Some("given"), "{given}");
            Ok(())
        })
        .await?;
        let plain = rig.create("team-a", &pod("plain", "plain", &json!({}), &nobody)).await?;
        ensure!(annotation(&plain, "example.com/identity").is_none(), "{plain}");

        let job = nightly_job(&rig).await?;
        let uid = job["metadata"]["uid"].as_str().unwrap();
        let owners = owner("batch/v1", "Job", "nightly-1", uid);
        // A lookup may take up to 250 ms. If it takes longer, the profile is not applied, and the lookup is repeated
        // for the next pod.
        eventually(SOON, "the CronJob's pods are recognised", async || {
            let nightly = rig.dry_run("team-a", &pod("n", "plain", &json!({}), &owners)).await?;
            ensure!(annotation(&nightly, "example.com/nightly") == Some("yes"), "{nightly}");
            ensure!(annotation(&nightly, "example.com/web").is_none(), "{nightly}");
            Ok(())
        })
        .await?;
        let unknown = pod("o", "plain", &json!({}), &owner("batch/v1", "Job", "nightly-2", uid));
        let other = rig.dry_run("team-a", &unknown).await?;
        ensure!(annotation(&other, "example.com/nightly").is_none(), "a missing Job: {other}");

        let owners = owner("apps/v1", "ReplicaSet", "web-7c9d6f5b8", "029dc23e-3de8-41af-ab3c-a95b34b82bf3");
        let labels = json!({"pod-template-hash": "7c9d6f5b8"});
        let web = rig.create("team-a", &pod("w", "plain", &labels, &owners)).await?;
        ensure!(annotation(&web, "example.com/web") == Some("yes"), "{web}");

        eventually(SOON, "each object was looked up once", async || {
            let metrics = rig.replicas[0].metrics_text().await?;
            for (series, count) in [
                ("kind=\"service_account\",result=\"found\"", Some(2.0)),
                ("kind=\"owner\",result=\"found\"", Some(1.0)),
                ("kind=\"owner\",result=\"missing\"", Some(1.0)),
            ] {
                let line = format!("pillion_lookups_total{{{series}}} ");
                let found = metrics.lines().find_map(|text| text.strip_prefix(&line)?.parse::<f64>().ok());
                if found < count {
                    // The lookup may have timed out, so the test tries again.
                    rig.dry_run("team-a", &unknown).await?;
                }
                ensure!(found == count, "{series}: {found:?}");
            }
            Ok(())
        })
        .await
    });
}

/// Creates a Job, like the CronJob controller, since no controllers run here.
async fn nightly_job(rig: &Rig) -> Result<Json> {
    let owners = owner("batch/v1", "CronJob", "nightly", "029dc23e-3de8-41af-ab3c-a95b34b82bf4");
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "app", "image": "app:1"}]}});
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "nightly-1", "namespace": "team-a", "ownerReferences": owners},
        "spec": {"template": template},
    });
    rig.control_plane.apply_yaml(&job.to_string()).await?;
    let found = rig.control_plane.kubectl_ok(&["get", "job", "nightly-1", "-n", "team-a", "-o", "json"]).await?;
    Ok(serde_json::from_str(&found)?)
}
