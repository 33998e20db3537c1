//! Restarts a workload as `kubectl rollout restart` does, and waits for the result. Directly before the restart,
//! creates a pod from the template in a dry run, because a restart must not remove injected parts from the pods.

use std::time::Duration;

use anyhow::{Context, bail};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use pillion_control::audit::NOT_ENDED;
use pillion_control::client::lists;
use pillion_control::rollout::budgets::Disruption;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::plan::{self, Plan, Stale};
use crate::explain::sidecar;
use crate::workload::{Owners, Workload, controller};

/// The annotation of a pod template that kubectl sets to restart a workload.
const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";

/// The field manager of the annotation.
const MANAGER: &str = "pillion-rollout";

/// How often to check the progress.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The disruptions of restarts in progress, by workload. A task holds the lock while it begins a restart, so that only
/// one restart at a time is compared with the budgets.
pub(super) type OngoingRestarts = Mutex<Vec<(Workload, Disruption)>>;

/// A workload with its plan.
struct Considered {
    plan: Plan,
    /// The stored workload; null if its kind cannot be restarted, or it was deleted.
    object: Value,
}

/// Plans the restart of a workload. Restarts of other workloads that are in progress are not considered.
pub(super) async fn plan(client: &Client, workload: &Workload) -> anyhow::Result<Plan> {
    Ok(consider(client, workload, &[]).await?.plan)
}

/// Plans a restart. `begun` contains the restarts in progress, whose disruptions are subtracted from the budgets.
async fn consider(
    client: &Client,
    workload: &Workload,
    begun: &[(Workload, Disruption)],
) -> anyhow::Result<Considered> {
    let leave = |why: &str| Considered { plan: Plan::Skip(why.to_owned()), object: Value::Null };
    let Some(api) = api(client, workload) else {
        return Ok(leave(plan::of_kind(&workload.kind).unwrap_or_default()));
    };
    let Some(object) = read(&api, workload).await? else { return Ok(leave("it does not exist any more")) };
    let budgets = Api::<PodDisruptionBudget>::namespaced(client.clone(), &workload.namespace);
    let budgets = budgets.list(&ListParams::default()).await;
    let budgets =
        budgets.with_context(|| format!("the budgets of namespace {} cannot be listed", workload.namespace))?;
    let is_beside = |(other, _): &&(Workload, Disruption)| other.namespace == workload.namespace && other != workload;
    let beside: Vec<_> = begun.iter().filter(is_beside).map(|(_, taken)| taken).collect();
    Ok(Considered { plan: plan::of(&workload.kind, &object, &budgets.items, &beside), object })
}

/// Restarts the workload once its budgets allow it, and waits until its pods are new, available and injected as
/// expected. While it waits, it calls `show` with the reason.
pub(super) async fn run(
    client: &Client,
    stale: &Stale,
    ongoing: &OngoingRestarts,
    show: &dyn Fn(&str),
) -> anyhow::Result<()> {
    let workload = &stale.workload;
    let api = api(client, workload).context("this kind cannot be restarted")?;
    loop {
        let mut begun = ongoing.lock().await;
        let Considered { plan, object } = consider(client, workload, &begun).await?;
        match plan {
            Plan::Restart => {
                try_pod(client, stale, &object).await?;
                // Recorded before the patch, because the restart may have begun even if the patch returns an error.
                begun.push((workload.clone(), plan::disruption(&workload.kind, &object)));
                patch(&api, workload).await?;
                break;
            }
            Plan::Wait(why) => {
                drop(begun);
                show(&why);
            }
            Plan::Skip(why) => bail!("{why}"),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    is_done(client, &api, stale, show).await?;
    // The disruption of a failed restart remains recorded, since its pods may still be unavailable.
    ongoing.lock().await.retain(|(other, _)| other != workload);
    Ok(())
}

/// Creates a pod with a dry run, and fails unless it is injected as the stale pods should be.
async fn try_pod(client: &Client, stale: &Stale, object: &Value) -> anyhow::Result<()> {
    let Stale { workload, .. } = stale;
    let pod = pod(&workload.kind, object).context("it has no pod template")?;
    let pod = serde_json::from_value(pod).context("its pod template cannot be read")?;
    let pods =
        Api::<DynamicObject>::namespaced_with(client.clone(), &workload.namespace, &ApiResource::erase::<Pod>(&()));
    let parameters = PostParams { dry_run: true, ..PostParams::default() };
    let made = pods.create(&parameters, &pod).await;
    let made = made.context("the API server rejects a test pod of its template, so nothing was restarted")?;
    match stale.remaining_difference(&made)? {
        None => Ok(()),
        Some(wrong) => {
            bail!("a dry-run pod was created {wrong}, so nothing was restarted; check the webhook with pillion doctor")
        }
    }
}

async fn patch(api: &Api<DynamicObject>, workload: &Workload) -> anyhow::Result<()> {
    let annotations = json!({RESTARTED_AT: Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()});
    let patch = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
    let parameters = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    api.patch(&workload.name, &parameters, &Patch::Merge(&patch)).await.context("it cannot be restarted")?;
    Ok(())
}

/// Waits until all pods of a restarted workload are new, available and injected as expected.
async fn is_done(client: &Client, api: &Api<DynamicObject>, stale: &Stale, show: &dyn Fn(&str)) -> anyhow::Result<()> {
    let Stale { workload, .. } = stale;
    loop {
        let object = read(api, workload).await?.context("it was deleted")?;
        match unfinished_restart(&workload.kind, &object) {
            Some(UnfinishedRestart::Never(why)) => bail!("{why}"),
            Some(UnfinishedRestart::For(what)) => {
                show(&what);
                if let Some(why) = stuck_sidecar(client, workload, &object).await? {
                    bail!("{why}");
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
            None => {
                return check_new_pods(client, stale, &object).await;
            }
        }
    }
}

/// Returns why a new pod does not become available, if a container that Pillion added to it cannot start or has failed
/// more than once. `None` if there is no such pod.
async fn stuck_sidecar(client: &Client, workload: &Workload, object: &Value) -> anyhow::Result<Option<String>> {
    let Some(restarted) = restarted_at(object.pointer("/spec/template")) else { return Ok(None) };
    let pods = pods(client, workload, object).await?;
    let of_pod = |pod: DynamicObject| -> anyhow::Result<Option<String>> {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let pod = serde_json::to_value(pod).context("cannot serialize a pod as JSON")?;
        if restarted_at(Some(&pod)) != Some(restarted) {
            return Ok(None);
        }
        let stuck = sidecar::failing(&pod, Timestamp::now().as_second()).into_iter().find(|sidecar| sidecar.is_stuck);
        Ok(stuck.map(|sidecar| format!("new pod {name} does not become available: {}", sidecar.message())))
    };
    for pod in pods {
        if let Some(why) = of_pod(pod)? {
            return Ok(Some(why));
        }
    }
    Ok(None)
}

/// Returns the time of the last restart, from a pod or a pod template.
fn restarted_at(object: Option<&Value>) -> Option<&str> {
    object?.pointer("/metadata/annotations")?.get(RESTARTED_AT)?.as_str()
}

/// Lists the pods that a workload selects, except completed and failed ones.
async fn pods(client: &Client, workload: &Workload, object: &Value) -> anyhow::Result<Vec<DynamicObject>> {
    let api =
        Api::<DynamicObject>::namespaced_with(client.clone(), &workload.namespace, &ApiResource::erase::<Pod>(&()));
    let selector = object.pointer("/spec/selector").cloned().unwrap_or_default();
    let selector: kube::core::Selector =
        serde_json::from_value::<k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector>(selector)
            .ok()
            .and_then(|selector| selector.try_into().ok())
            .context("its selector cannot be read")?;
    let parameters = ListParams::default().labels_from(&selector).fields(NOT_ENDED);
    lists::all(&api, &parameters).await.context("its pods cannot be listed")
}

/// Explains why a restart timed out.
pub(super) async fn explain_timeout(
    client: &Client,
    stale: &Stale,
    ongoing: &OngoingRestarts,
    limit: Duration,
) -> String {
    let Stale { workload, .. } = stale;
    let waits = async {
        if let Plan::Wait(why) = consider(client, workload, &ongoing.lock().await).await?.plan {
            return Ok(why);
        }
        let api = api(client, workload).context("this kind cannot be restarted")?;
        let object = read(&api, workload).await?.context("it was deleted")?;
        anyhow::Ok(match unfinished_restart(&workload.kind, &object) {
            Some(UnfinishedRestart::For(what) | UnfinishedRestart::Never(what)) => what,
            None => "it has finished now".to_owned(),
        })
    };
    let why = waits.await.unwrap_or_else(|error| format!("{error:#}"));
    format!("not finished within {} seconds: {why}", limit.as_secs())
}

/// The state of an unfinished restart.
#[derive(Clone, Debug, PartialEq, Eq)]
enum UnfinishedRestart {
    /// The restart is still in progress, for this reason.
    For(String),
    /// The restart failed, for this reason.
    Never(String),
}

/// Returns why the restart of a workload is not finished; `None` once all of its pods are new and available, and no old
/// pod exists.
fn unfinished_restart(kind: &str, object: &Value) -> Option<UnfinishedRestart> {
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default();
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    if number("/status/observedGeneration") < number("/metadata/generation") {
        return Some(UnfinishedRestart::For("its controller has not observed the restart yet".to_owned()));
    }
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let is_late =
        |condition: &Value| condition.get("reason").is_some_and(|reason| reason == "ProgressDeadlineExceeded");
    if conditions.into_iter().flatten().any(is_late) {
        return Some(UnfinishedRestart::Never(
            "its new pods were not available within its progressDeadlineSeconds".to_owned(),
        ));
    }
    let (wanted, new, available, all) = if kind == "DaemonSet" {
        let wanted = number("/status/desiredNumberScheduled");
        (wanted, number("/status/updatedNumberScheduled"), number("/status/numberAvailable"), wanted)
    } else {
        let wanted = object.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
        (wanted, number("/status/updatedReplicas"), number("/status/availableReplicas"), number("/status/replicas"))
    };
    // After an update, the controller of a `StatefulSet` may report all pods as current, and none as updated.
    let is_settled = kind == "StatefulSet" && text("/status/currentRevision") == text("/status/updateRevision");
    let new = if is_settled { wanted } else { new };
    let counts = [(new, "new"), (available, "available")];
    for (count, what) in counts {
        if count < wanted {
            return Some(UnfinishedRestart::For(format!("{count} of {wanted} pods are {what}")));
        }
    }
    match all - wanted {
        ..=0 => None,
        1 => Some(UnfinishedRestart::For("1 old pod still exists".to_owned())),
        old => Some(UnfinishedRestart::For(format!("{old} old pods still exist"))),
    }
}

/// Returns an error if a new pod is not injected as expected, since another restart would have the same result. Ignores
/// completed, failed and terminating pods, and pods of other owners with the same labels.
async fn check_new_pods(client: &Client, stale: &Stale, object: &Value) -> anyhow::Result<()> {
    let workload = &stale.workload;
    let pods = pods(client, workload, object).await?;
    let mut owners = Owners::new(client.clone());
    for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let owner = controller(&pod.metadata);
        let owner = owner.as_ref().map(|(kind, name)| (kind.as_str(), *name));
        let whose = owners.workload(&workload.namespace, name, owner).await;
        if whose.with_context(|| format!("cannot determine the workload of pod {name}"))? != *workload {
            continue;
        }
        if let Some(wrong) = stale.remaining_difference(pod)? {
            bail!("its new pod {name} was created {wrong}; check the webhook with pillion doctor");
        }
    }
    Ok(())
}

fn api(client: &Client, workload: &Workload) -> Option<Api<DynamicObject>> {
    let resource = match &*workload.kind {
        "Deployment" => ApiResource::erase::<Deployment>(&()),
        "StatefulSet" => ApiResource::erase::<StatefulSet>(&()),
        "DaemonSet" => ApiResource::erase::<DaemonSet>(&()),
        _ => return None,
    };
    Some(Api::namespaced_with(client.clone(), &workload.namespace, &resource))
}

async fn read(api: &Api<DynamicObject>, workload: &Workload) -> anyhow::Result<Option<Value>> {
    let found = api.get_opt(&workload.name).await.with_context(|| format!("{workload} cannot be read"))?;
    found.map(|object| serde_json::to_value(object).context("cannot serialize it as JSON")).transpose()
}

/// Returns a pod of a workload's template, or `None` if the workload has no template. The workload is the pod's owner,
/// since a rollout assigns revisions by owner.
pub(super) fn pod(kind: &str, workload: &Value) -> Option<Value> {
    let text = |pointer: &str| workload.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let template = workload.pointer("/spec/template")?;
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": template.get("metadata")?, "spec": template.get("spec")?});
    let name = text("/metadata/name");
    let owner = json!({
        "apiVersion": "apps/v1", "kind": kind, "name": name, "uid": text("/metadata/uid"), "controller": true,
    });
    let metadata = pod.get_mut("metadata").and_then(Value::as_object_mut)?;
    // The name is removed, because the API server would reject a name that is in use.
    metadata.shift_remove("name");
    metadata.insert("generateName".to_owned(), format!("{name}-").into());
    metadata.insert("ownerReferences".to_owned(), json!([owner]));
    if kind == "StatefulSet" {
        claims(workload, name, &mut pod);
    }
    Some(pod)
}

/// Adds the volumes that a `StatefulSet` adds to its pods for its volume claims, since containers mount them.
fn claims(workload: &Value, name: &str, pod: &mut Value) {
    let claims = workload.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
    let names: Vec<&str> =
        claims.into_iter().flatten().filter_map(|claim| claim.pointer("/metadata/name")?.as_str()).collect();
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut).filter(|_| !names.is_empty()) else { return };
    let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
    let Some(volumes) = volumes.as_array_mut() else { return };
    // A claim replaces a volume of the same name.
    volumes.retain(|volume| volume.get("name").and_then(Value::as_str).is_none_or(|name| !names.contains(&name)));
    let of_claim =
        |claim: &str| json!({"name": claim, "persistentVolumeClaim": {"claimName": format!("{claim}-{name}-0")}});
    volumes.extend(names.into_iter().map(of_claim));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits_for_text(kind: &str, object: &Value) -> Option<String> {
        unfinished_restart(kind, object).map(|(UnfinishedRestart::For(what) | UnfinishedRestart::Never(what))| what)
    }

    #[test]
    fn rollout_waits_for_new_and_available_pods() {
        let deployment =
            |status: Value| json!({"metadata": {"generation": 2}, "spec": {"replicas": 3}, "status": status});
        let of = |observed: i64, updated: i64, available: i64, all: i64| {
            let status = json!({"observedGeneration": observed, "updatedReplicas": updated,
                                "availableReplicas": available, "replicas": all});
            waits_for_text("Deployment", &deployment(status))
        };
        assert_eq!(of(1, 3, 3, 3).unwrap(), "its controller has not observed the restart yet");
        assert_eq!(of(2, 1, 3, 4).unwrap(), "1 of 3 pods are new");
        assert_eq!(of(2, 3, 2, 3).unwrap(), "2 of 3 pods are available");
        assert_eq!(of(2, 3, 3, 4).unwrap(), "1 old pod still exists");
        assert_eq!(of(2, 3, 3, 3), None);
        let late = json!({"observedGeneration": 2, "conditions": [{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}]});
        assert!(matches!(unfinished_restart("Deployment", &deployment(late)), Some(UnfinishedRestart::Never(_))));
    }

    #[test]
    fn sets_are_done_by_their_own_counts() {
        let set = |current: &str, updated: i64| {
            json!({"metadata": {"generation": 1}, "spec": {"replicas": 2}, "status": {
                "observedGeneration": 1, "replicas": 2, "availableReplicas": 2, "updatedReplicas": updated,
                "currentRevision": current, "updateRevision": "b"}})
        };
        assert_eq!(waits_for_text("StatefulSet", &set("a", 1)).unwrap(), "1 of 2 pods are new");
        assert_eq!(waits_for_text("StatefulSet", &set("b", 0)), None);
        let daemons = |updated: i64| {
            json!({"metadata": {"generation": 1}, "status": {"observedGeneration": 1, "desiredNumberScheduled": 2,
                   "updatedNumberScheduled": updated, "numberAvailable": 2}})
        };
        assert_eq!(waits_for_text("DaemonSet", &daemons(1)).unwrap(), "1 of 2 pods are new");
        assert_eq!(waits_for_text("DaemonSet", &daemons(2)), None);
    }

    #[test]
    fn workload_pod_has_template_and_owner() {
        let template = json!({
            "metadata": {"labels": {"app": "web"}, "creationTimestamp": null},
            "spec": {"containers": [{"name": "app"}]},
        });
        let workload = json!({"metadata": {"name": "web", "uid": "u"}, "spec": {"template": template}});
        let expected = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "labels": {"app": "web"}, "creationTimestamp": null, "generateName": "web-",
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u", "controller": true}],
            },
            "spec": {"containers": [{"name": "app"}]},
        });
        assert_eq!(pod("Deployment", &workload), Some(expected));
        assert_eq!(pod("Deployment", &json!({"spec": {}})), None);
    }

    #[test]
    fn stateful_set_claims_become_volumes() {
        let template = json!({
            "metadata": {"labels": {"app": "db"}},
            "spec": {"containers": [{"name": "app"}], "volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]},
        });
        let claims = json!([{"metadata": {"name": "data"}, "spec": {}}]);
        let workload = json!({"metadata": {"name": "db", "uid": "u"}, "spec": {"template": template, "volumeClaimTemplates": claims}});
        let expected = json!([
            {"name": "tmp", "emptyDir": {}}, {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}},
        ]);
        assert_eq!(pod("StatefulSet", &workload).unwrap()["spec"]["volumes"], expected);
    }
}
