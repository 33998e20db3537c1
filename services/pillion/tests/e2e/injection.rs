//! Tests which pods get the sidecar and which pods remain unchanged, with and without replicas. The tests create the
//! pods through the API server.

use anyhow::{Result, ensure};
use pillion_testkit::{eventually, isolated_with_crds};
use serde_json::{Value as Json, json};

use crate::rig::{
    REQUEST_ANNOTATION, Rig, SOON, STATUS_ANNOTATION, annotation, bare_pod, deployment_pod, is_untouched, job_pod,
    names,
};
use crate::rolling::injected_by;

/// Asserts that a pod contains all parts of the profile. The sidecar must come after the pod author's containers, which
/// have the names `own`.
fn assert_injected(pod: &Json, own: &[&str]) {
    let mut expected: Vec<_> = own.iter().map(|name| (*name).to_owned()).collect();
    expected.push("sidecar-nginx".to_owned());
    assert_eq!(names(pod), expected);
    let sidecar = pod["spec"]["containers"].as_array().unwrap().last().unwrap();
    assert_eq!(sidecar["image"], "nginx:1.29");
    assert_eq!(sidecar["ports"][0]["containerPort"], 80);
    assert_eq!(sidecar["volumeMounts"][0], json!({"name": "nginx-conf", "mountPath": "/etc/nginx"}));
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|volume| volume["name"] == "nginx-conf").unwrap();
    assert_eq!(volume["configMap"]["name"], "nginx-configmap");
    assert_eq!(annotation(pod, STATUS_ANNOTATION), Some("injected"));
    let record: Json = serde_json::from_str(annotation(pod, "pillion.dev/injected").unwrap()).unwrap();
    assert_eq!(record["profiles"][0]["profile"], "nginx");
}

#[test]
fn pods_of_every_origin_get_their_sidecar() {
    isolated_with_crds(|| async {
        let rig = Rig::start(1).await?;
        assert_injected(&rig.create("team-a", &deployment_pod()).await?, &["web", "exporter"]);
        assert_injected(&rig.create("team-a", &job_pod()).await?, &["backup"]);
        let bare = rig.create("team-a", &bare_pod("bare")).await?;
        assert_injected(&bare, &["app"]);
        assert_eq!(annotation(&bare, "example.com/kept"), Some("as it is"));

        // The API server calls no webhook for an update. So an update changes only its own fields, both in injected
        // pods and in other pods.
        let mut unasked = bare_pod("unasked");
        unasked["metadata"]["annotations"] = json!({});
        let plain = rig.create("team-a", &unasked).await?;
        ensure!(is_untouched(&plain), "{plain}");
        for (name, before) in [("bare", &bare), ("unasked", &plain)] {
            let label = json!({"metadata": {"labels": {"new": "label"}, "annotations": {REQUEST_ANNOTATION: "yes"}}});
            let after = rig.patch("team-a", name, &label).await?;
            assert_eq!(after["metadata"]["labels"]["new"], "label");
            assert_eq!(after["spec"], before["spec"], "{name}");
            assert_eq!(
                annotation(&after, "pillion.dev/injected"),
                annotation(before, "pillion.dev/injected"),
                "{name}"
            );
        }
        Ok(())
    });
}

#[test]
fn pods_without_opt_in_stay_unchanged() {
    isolated_with_crds(|| async {
        let rig = Rig::start(1).await?;
        rig.namespace("plain", None).await?;
        // System namespaces are excluded by name, even if they opt in by mistake.
        rig.label_namespace("kube-system", "pillion.dev/injection", "enabled").await?;
        rig.label_namespace("kube-public", "pillion.dev/injection", "required").await?;
        for pod in [bare_pod("bare"), deployment_pod(), job_pod()] {
            for namespace in ["plain", "kube-system", "kube-public"] {
                let created = rig.create(namespace, &pod).await?;
                ensure!(is_untouched(&created), "{namespace}: {created}");
            }
            let mut opted_out = pod;
            let labels = json!({"pillion.dev/inject": "false"});
            opted_out["metadata"]["labels"] = labels;
            if opted_out["metadata"].get("name").is_some() {
                opted_out["metadata"]["name"] = "opted-out".into();
            }
            let created = rig.create("team-a", &opted_out).await?;
            ensure!(is_untouched(&created), "opted out: {created}");
        }
        Ok(())
    });
}

#[test]
fn dry_run_shows_sidecar_and_stores_nothing() {
    isolated_with_crds(|| async {
        let rig = Rig::start(1).await?;
        let shown = rig.dry_run("team-a", &bare_pod("dry")).await?;
        assert_injected(&shown, &["app"]);
        ensure!(rig.pods("team-a").list(&kube::api::ListParams::default()).await?.items.is_empty());
        Ok(())
    });
}

#[test]
fn new_namespace_is_known_at_once() {
    isolated_with_crds(|| async {
        let rig = Rig::start(2).await?;
        for number in 0..10 {
            // The API server receives changes of labels through its watch, but reads a new namespace directly.
            let name = format!("fresh-{number}");
            rig.namespace(&name, Some("required")).await?;
            assert_injected(&rig.dry_run(&name, &bare_pod("first")).await?, &["app"]);
        }
        Ok(())
    });
}

/// Since Kubernetes 1.37, the API server chooses a replica for each request (`WebhookRoundTripLoadBalancing`). Older
/// versions keep their connection to one replica.
#[test]
fn api_server_spreads_requests_over_replicas() {
    isolated_with_crds(|| async {
        let rig = Rig::start(3).await?;
        let before = injected_by_each(&rig).await?;
        for _ in 0..60 {
            rig.dry_run("team-a", &bare_pod("spread")).await?;
        }
        let after = injected_by_each(&rig).await?;
        let answered: Vec<_> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
        ensure!(answered.iter().sum::<u64>() == 60 && answered.iter().all(|count| *count >= 5), "{answered:?}");
        Ok(())
    });
}

async fn injected_by_each(rig: &Rig) -> Result<Vec<u64>> {
    let mut counts = Vec::new();
    for replica in &rig.replicas {
        counts.push(injected_by(replica).await?);
    }
    Ok(counts)
}

/// `managedFields` must not contain injected parts, since the protection of records depends on that. The test covers a
/// stored pod, and the review of its copy.
#[test]
fn managed_fields_exclude_injected_parts() {
    isolated_with_crds(|| async {
        let rig = Rig::start(1).await?;
        let pod = rig.create("team-a", &bare_pod("bare")).await?;
        let managed = pod["metadata"]["managedFields"].to_string();
        ensure!(managed.contains("example.com/kept"), "{managed}");
        ensure!(!managed.contains("pillion.dev/injected") && !managed.contains("sidecar-nginx"), "{managed}");

        // A copied pod contains the record of the original, which the webhook does not trust.
        let mut copy = bare_pod("copy");
        let record = &pod["metadata"]["annotations"]["pillion.dev/injected"];
        copy["metadata"]["annotations"]["pillion.dev/injected"] = record.clone();
        let copied = rig.create("team-a", &copy).await?;
        assert_injected(&copied, &["app"]);
        Ok(())
    });
}

const SIDECAR_WITH_RESOURCES: &str = "
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: agent}
spec:
  activation: Always
  namespaceSelector: {matchLabels: {agent: 'yes'}}
  template:
    spec:
      initContainers:
      - {name: agent, image: 'agent:1', restartPolicy: Always, resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: '3', memory: 128Mi}}}
";

/// The API server rejects a pod whose containers together request more than `spec.resources`, or of which a container
/// has a higher limit than the pod.
#[test]
fn pod_with_pod_level_resources_is_accepted() {
    isolated_with_crds(|| async {
        let rig = Rig::start(1).await?;
        let resources = json!({"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "64Mi"}});
        rig.control_plane.apply_yaml(SIDECAR_WITH_RESOURCES).await?;
        for failure_mode in ["enabled", "required"] {
            rig.namespace(failure_mode, Some(failure_mode)).await?;
            rig.label_namespace(failure_mode, "agent", "yes").await?;
            let mut pod = bare_pod("whole");
            pod["spec"]["resources"] = resources.clone();
            pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1", "memory": "64Mi"}});
            let made = eventually(SOON, "the sidecar is injected", async || {
                let made = rig.dry_run(failure_mode, &pod).await?;
                ensure!(made["spec"]["initContainers"][0]["name"] == "agent", "{made}");
                Ok(made)
            })
            .await?;
            let grown =
                json!({"requests": {"cpu": "1100m", "memory": "128Mi"}, "limits": {"cpu": "5", "memory": "192Mi"}});
            assert_eq!(made["spec"]["resources"], grown, "{failure_mode}");
        }
        Ok(())
    });
}

#[test]
fn failure_modes_hold_without_replicas() {
    isolated_with_crds(|| async {
        let mut rig = Rig::start(1).await?;
        rig.namespace("strict", Some("required")).await?;
        rig.wait_until_called("strict").await?;
        let injected = rig.create("strict", &bare_pod("before")).await?;
        ensure!(names(&injected).contains(&"sidecar-nginx".to_owned()));

        rig.replicas[0].kill()?;
        let created = rig.create("team-a", &bare_pod("without")).await?;
        ensure!(is_untouched(&created), "{created}");
        let refused = rig.create("strict", &bare_pod("refused")).await.unwrap_err().to_string();
        ensure!(refused.contains("required.pillion.dev"), "{refused}");
        // The owner of the namespace can recover without an administrator: with the label value `off`, the API server
        // no longer calls the webhook, even if every replica is down.
        rig.label_namespace("strict", "pillion.dev/injection", "off").await?;
        eventually(SOON, "the namespace is no longer opted in", async || {
            rig.create("strict", &bare_pod("after")).await.map(drop)
        })
        .await
    });
}

#[test]
fn responses_survive_api_server_restart() {
    isolated_with_crds(|| async {
        let mut rig = Rig::start(1).await?;
        rig.control_plane.restart_api_server().await?;
        eventually(SOON, "pods are injected again", async || {
            let names = names(&rig.dry_run("team-a", &bare_pod("probe")).await?);
            ensure!(names.contains(&"sidecar-nginx".to_owned()), "{names:?}");
            Ok(())
        })
        .await?;
        ensure!(rig.replicas[0].get("/readyz").await?.0.is_success());
        Ok(())
    });
}
