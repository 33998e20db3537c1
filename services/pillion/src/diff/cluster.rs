//! Compares how the active and the changed profiles affect running pods. It writes nothing to the cluster.
//!
//! The comparison uses one pod of each workload. It reconstructs the pod's original form from the injection record, and
//! runs the engine on this form with both sets of profiles.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};
use pillion_api::names::SYSTEM_NAMESPACES;
use pillion_api::{ClusterInjectionProfile, InjectionProfile, ProfileSpec};
use pillion_control::Lookups;
use pillion_control::audit;
use pillion_control::audit::NOT_ENDED;
use pillion_control::client::lists;
use pillion_control::simulation::{as_written, created};
use pillion_engine::lookup::LookedUp;
use pillion_engine::profile::{CompiledProfile, Parent, Parents, ProfileName, ProfileSource};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use pillion_json::OwnedTape;
use prometheus_client::registry::Registry;
use serde_json::Value;

use super::{Compared, DiffArgs, Rendered};
use crate::config::{Overrides, WebhookPolicy};
use crate::load::{self, LoadError, Written};
use crate::output::Progress;
use crate::workload::{Owners, Workload, controller};

/// The inputs of the decisions that are the same for all pods.
struct DiffInputs {
    before: Snapshot,
    after: Snapshot,
    lookups: Lookups,
    cluster: Option<Arc<OwnedTape>>,
}

/// Compares a pod of each workload.
pub(super) async fn compare(args: DiffArgs) -> Result<Vec<Compared>, LoadError> {
    let (client, release) = args.at.connect().await?;
    let policy = args.config.load::<WebhookPolicy>(&Overrides::default()).map_err(LoadError::Problems)?;
    let served = audit::served(&client, &release).await?;
    let before = served.snapshot.as_ref().clone().with_guardrails(policy.guardrails.clone());
    let after = changed(&client, &before, &args.profiles).await?;
    let inputs = DiffInputs {
        after: before.with_profiles(after),
        before,
        lookups: Lookups::new(
            client.clone(),
            pillion_control::informer::lookups::Metrics::register(&mut Registry::default()),
        ),
        cluster: policy.cluster_facts()?.or_else(LookedUp::unknown_cluster),
    };
    let only = args.namespaces.selected(&client);
    let is_meant = |name: &str| {
        only.as_deref().is_none_or(|only| only == name)
            && !served.excluded.contains(name)
            && !SYSTEM_NAMESPACES.contains(&name)
    };
    let namespaces =
        inputs.before.namespaces().filter(|(name, known)| known.failure_mode().is_some() && is_meant(name));
    let namespaces: BTreeMap<Box<str>, Arc<Namespace>> =
        namespaces.map(|(name, known)| (name.into(), Arc::clone(known))).collect();
    if let Some(name) = only.filter(|_| namespaces.is_empty()) {
        return Err(anyhow!(
            "namespace {name} is not opted in, is excluded, or does not exist; -A compares the pods of all namespaces"
        )
        .into());
    }
    let mut progress = Progress::new();
    let mut owners = Owners::new(client.clone());
    let mut compared = Vec::new();
    for (index, (name, namespace)) in namespaces.iter().enumerate() {
        progress.show_step("namespaces", index + 1, namespaces.len(), name);
        for (workload, (pod, pods)) in pods(&client, name, args.selector.as_deref(), &mut owners).await? {
            let render = async |snapshot| rendered(&pod, name, namespace, snapshot, &inputs).await;
            let about = || format!("cannot compare {workload}");
            let before = Some(render(&inputs.before).await.with_context(about)?);
            let after = Some(render(&inputs.after).await.with_context(about)?);
            compared.push(Compared { name: workload.to_string(), pods, before, after, at: None });
        }
    }
    Ok(compared)
}

/// Returns the active profiles, in which profiles from files replace the stored ones of the same name. Profiles that
/// extend a profile from a file are recompiled.
async fn changed(client: &Client, before: &Snapshot, paths: &[PathBuf]) -> Result<ProfileSet, LoadError> {
    let stored = stored(client).await?;
    let cluster = stored.iter().filter(|(name, _)| name.namespace.is_none());
    let others: BTreeMap<Box<str>, ProfileSpec> =
        cluster.map(|(name, spec)| (name.name.clone(), spec.clone())).collect();
    let loaded = load::profiles_among(paths, &others);
    if !loaded.problems.is_empty() {
        return Err(LoadError::Problems(loaded.problems));
    }
    let mut library = Library(others);
    for Written { name, spec, .. } in loaded.texts.into_iter().filter(|text| text.name.namespace.is_none()) {
        library.0.insert(name.name, spec);
    }
    let changed: BTreeSet<&ProfileName> = loaded.profiles.iter().map(|profile| profile.name()).collect();
    let is_child = |profile: &CompiledProfile| {
        profile.ancestors().any(|name| changed.iter().any(|other| other.namespace.is_none() && *other.name == *name))
    };
    let mut all: Vec<Arc<CompiledProfile>> = Vec::new();
    for profile in before.profiles().iter().filter(|profile| !changed.contains(profile.name())) {
        if !is_child(profile) {
            all.push(Arc::clone(profile));
            continue;
        }
        let name = profile.name();
        let spec = stored.get(name).with_context(|| format!("cannot read the spec of the active profile {name}"))?;
        let compiled = ProfileSource::Author(spec, &library).compile(name).map_err(|faults| {
            let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
            anyhow!("profile {name} extends a changed profile, and does not compile with it: {}", faults.join("; "))
        })?;
        all.push(Arc::new(compiled));
    }
    all.extend(loaded.profiles.iter().cloned());
    Ok(ProfileSet::after(before.profiles(), all))
}

/// Returns the specs of all profiles in the cluster, except specs that cannot be parsed.
async fn stored(client: &Client) -> anyhow::Result<BTreeMap<ProfileName, ProfileSpec>> {
    let mut stored = BTreeMap::new();
    for resource in [ApiResource::erase::<ClusterInjectionProfile>(&()), ApiResource::erase::<InjectionProfile>(&())] {
        let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
        for object in lists::all(&api, &ListParams::default()).await.context("profiles cannot be listed")? {
            let spec = object.data.get("spec").cloned().unwrap_or_default();
            let (Some(name), Ok(spec)) = (object.metadata.name, serde_json::from_value(spec)) else { continue };
            let name = ProfileName { namespace: object.metadata.namespace.map(Into::into), name: name.into() };
            stored.insert(name, spec);
        }
    }
    Ok(stored)
}

/// The specs of the cluster profiles, used to look up parents.
struct Library(BTreeMap<Box<str>, ProfileSpec>);

impl Parents for Library {
    fn parent(&self, name: &str) -> Parent<'_> {
        self.0.get(name).map_or(Parent::Unknown, |spec| Parent::Accepted(Cow::Borrowed(spec)))
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().map(|name| &**name).collect()
    }
}

/// Returns one selected pod of each workload in its original form, and the number of the workload's selected pods.
/// Ignores terminated pods and pods that are being deleted.
async fn pods(
    client: &Client,
    namespace: &str,
    selector: Option<&str>,
    owners: &mut Owners,
) -> anyhow::Result<BTreeMap<Workload, (Value, usize)>> {
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &ApiResource::erase::<Pod>(&()));
    let parameters =
        ListParams { label_selector: selector.map(str::to_owned), ..ListParams::default().fields(NOT_ENDED) };
    let pods = lists::all(&api, &parameters).await;
    let mut workloads: BTreeMap<Workload, (Value, usize)> = BTreeMap::new();
    for pod in pods.with_context(|| format!("the pods of namespace {namespace} cannot be listed"))? {
        if pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let owner = controller(&pod.metadata);
        let owner = owner.as_ref().map(|(kind, name)| (kind.as_str(), *name));
        let workload = owners.workload(namespace, name, owner).await;
        let workload = workload.with_context(|| format!("cannot determine the workload of pod {namespace}/{name}"))?;
        if let Some((_, count)) = workloads.get_mut(&workload) {
            *count += 1;
        } else {
            let value =
                serde_json::to_value(&pod).with_context(|| format!("pod {namespace}/{name} is not valid JSON"))?;
            let written = as_written(&value);
            workloads.insert(workload, (written, 1));
        }
    }
    Ok(workloads)
}

/// Runs the engine on a pod with the profiles of `snapshot`. Returns the patched pod, and the result of each profile.
async fn rendered(
    pod: &Value,
    name: &str,
    namespace: &Arc<Namespace>,
    snapshot: &Snapshot,
    inputs: &DiffInputs,
) -> anyhow::Result<Rendered> {
    let (decision, changed) =
        created(pod, (name, namespace), snapshot, &inputs.lookups, inputs.cluster.as_ref()).await?;
    Ok(Rendered::new(&decision, changed))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_of_copied_record_belong_to_author() {
        let record =
            json!({"version": 1, "profiles": [{"profile": "a", "revision": "r", "added": ["/spec/containers/proxy"]}]});
        let fields = json!({"f:metadata": {"f:annotations": {"f:pillion.dev/injected": {}}}});
        let pod: DynamicObject = serde_json::from_value(json!({
            "metadata": {
                "name": "web", "annotations": {"pillion.dev/injected": record.to_string()},
                "managedFields": [{"manager": "kubectl", "operation": "Update", "fieldsV1": fields}],
            },
            "spec": {"containers": [{"name": "app"}, {"name": "proxy"}]},
        }))
        .unwrap();
        let written = as_written(&serde_json::to_value(pod).unwrap());
        assert_eq!(written["spec"]["containers"], json!([{"name": "app"}, {"name": "proxy"}]));
        assert_eq!(written["metadata"]["annotations"], json!({}));
    }
}
