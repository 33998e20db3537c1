//! Keeps the policies of `held` namespaces in their desired state, or removes them.
//!
//! Stored policies are compared field by field, since server-side apply would keep the additions of other clients.
//! Drift is corrected at once. If another client keeps changing a policy, the pauses between corrections grow.

use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use pillion_api::held;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use super::metrics::{HeldMetrics, Policies};
use crate::admission_policy::{API_GROUP, PolicyObject, PolicyState, changes_of, is_supported};
use crate::client::chain;
use crate::client::owner_reference;
use crate::leader::LeaderContext;

/// The resources of [`API_GROUP`] that the policies need.
const RESOURCES: [&str; 4] = [
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
];

/// The policies, and how often they are checked and corrected.
#[derive(Clone, Debug)]
pub struct PolicySettings {
    /// The settings of the policies.
    pub policies: held::Settings,
    /// Time between two checks if the watches report no change. After a failure, the next check is earlier.
    pub recheck: Duration,
    /// Minimum time between two corrections. The time doubles while corrections follow one another.
    pub first_pause: Duration,
    /// The maximum of the doubled `first_pause`.
    pub longest_pause: Duration,
}

impl PolicySettings {
    /// Creates settings for these policies, with default times.
    #[must_use]
    pub const fn new(policies: held::Settings) -> Self {
        Self {
            policies,
            recheck: Duration::from_mins(1),
            first_pause: Duration::from_millis(200),
            longest_pause: Duration::from_secs(30),
        }
    }
}

/// While this controller leads, creates and corrects the policies if `wanted` is true, and removes them if it is false.
/// If it is `None`, the policies are not changed. If the API server does not support the policies, this is only
/// reported.
pub async fn run(
    leading: LeaderContext,
    settings: PolicySettings,
    mut wanted: watch::Receiver<Option<bool>>,
    metrics: HeldMetrics,
) {
    let LeaderContext { client, stop, release } = leading;
    let all = match all(&client, &settings) {
        Ok(all) => all,
        Err(error) => {
            // The objects are of Pillion's own types, so an error here is a bug.
            warn!(%error, "the policies of held namespaces cannot be serialized");
            return;
        }
    };
    let mut watched = changes(&client, &settings.policies.name);
    let mut was_supported = None;
    let mut pause = settings.first_pause;
    let mut last_repair: Option<Instant> = None;
    let mut may_change = true;
    loop {
        let state = *wanted.borrow_and_update();
        let Some(is_wanted) = state else {
            tokio::select! {
                () = stop.cancelled() => return,
                changed = wanted.changed() => if changed.is_err() { return },
            }
            continue;
        };
        let (state, repaired) = match is_supported(&client, &RESOURCES).await {
            Ok(true) => {
                let owner = if is_wanted { owner_reference::for_namespace(&client, &release).await } else { None };
                keep(&all, is_wanted, owner.as_ref(), &metrics).await
            }
            Ok(false) => {
                if was_supported != Some(false) {
                    warn!(
                        group = API_GROUP,
                        "this API server does not serve MutatingAdmissionPolicy v1, which Kubernetes has since 1.36: \
                         namespaces with the label value held behave like those with enabled, so pods run without \
                         their sidecar while Pillion is unavailable; use required there, or upgrade Kubernetes"
                    );
                }
                was_supported = Some(false);
                (Policies::Unsupported, false)
            }
            Err(error) => {
                warn!(error = chain(&error), "cannot find out whether the API server supports mutating policies");
                (Policies::Failing, false)
            }
        };
        if state != Policies::Unsupported && state != Policies::Failing {
            was_supported = Some(true);
        }
        metrics.policies(state);
        let now = Instant::now();
        if repaired {
            pause = (pause * 2).min(settings.longest_pause);
            last_repair = Some(now);
        } else if last_repair.is_none_or(|repair| now.duration_since(repair) > settings.longest_pause) {
            // Reset the pause only after a quiet time. The watch also delivers the controller's own write, so an event
            // without drift does not mean that the other client has stopped.
            pause = settings.first_pause;
        }
        let not_before = now + pause;
        let recheck = if state == Policies::Failing { pause.max(Duration::from_secs(1)) } else { settings.recheck };
        tokio::select! {
            () = stop.cancelled() => return,
            changed = wanted.changed(), if may_change => may_change = changed.is_ok(),
            event = watched.next() => if event.is_none() { return },
            () = tokio::time::sleep(recheck) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep_until(not_before) => {}
        }
    }
}

/// Returns the four objects in the order of creation: first the policy that prevents the removal of the gate, and its
/// binding, then the policy that adds the gate, and its binding.
fn all(client: &Client, settings: &PolicySettings) -> serde_json::Result<[PolicyObject; 4]> {
    let policies = &settings.policies;
    Ok([
        PolicyObject::new(client, &held::guarding(policies), "ValidatingAdmissionPolicy")?,
        PolicyObject::new(client, &held::guarding_binding(policies), "ValidatingAdmissionPolicyBinding")?,
        PolicyObject::new(client, &held::gating(policies), "MutatingAdmissionPolicy")?,
        PolicyObject::new(client, &held::gating_binding(policies), "MutatingAdmissionPolicyBinding")?,
    ])
}

/// Deletes the policies of a release: first the one that adds the gate, then the one that prevents its removal. Returns
/// whether any existed.
///
/// # Errors
/// The API server is unavailable or denies the request, or a policy cannot be serialized.
pub async fn remove(client: &Client, settings: &PolicySettings) -> Result<bool, RemoveError> {
    if !is_supported(client, &RESOURCES).await? {
        return Ok(false);
    }
    let mut removed = false;
    for object in all(client, settings)?.iter().rev() {
        removed |= object.delete().await? != PolicyState::InDesiredState;
    }
    Ok(removed)
}

/// Why not all policies were deleted.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// The API server is unavailable or rejected the request.
    #[error(transparent)]
    Client(#[from] kube::Error),
    /// The objects could not be serialized, which is a bug in Pillion.
    #[error(transparent)]
    Text(#[from] serde_json::Error),
}

/// Creates, updates or deletes the objects. Returns the state, and whether a write was needed.
async fn keep(
    all: &[PolicyObject; 4],
    is_wanted: bool,
    owner: Option<&OwnerReference>,
    metrics: &HeldMetrics,
) -> (Policies, bool) {
    let mut repaired = false;
    // Delete in reverse order: first the policy that adds the gate, then the one that prevents its removal.
    let order: Vec<&PolicyObject> = if is_wanted { all.iter().collect() } else { all.iter().rev().collect() };
    for object in order {
        let done = if is_wanted { object.put(owner).await } else { object.delete().await };
        match done {
            Ok(PolicyState::InDesiredState) => {}
            Ok(found) => {
                repaired = true;
                if is_wanted && found == PolicyState::Different {
                    metrics.repaired();
                }
                info!(
                    kind = object.kind,
                    name = object.name,
                    ?found,
                    is_wanted,
                    "a policy of held namespaces was written"
                );
            }
            Err(error) => {
                let error = chain(&error);
                warn!(
                    kind = object.kind,
                    name = object.name,
                    error,
                    "a policy of held namespaces could not be written"
                );
                return (Policies::Failing, true);
            }
        }
    }
    (if is_wanted { Policies::InPlace } else { Policies::Off }, repaired)
}

/// Returns a stream with an item for each change of one of the objects.
fn changes(client: &Client, name: &str) -> BoxStream<'static, ()> {
    stream::select_all([
        changes_of::<MutatingAdmissionPolicy>(client, name),
        changes_of::<MutatingAdmissionPolicyBinding>(client, name),
        changes_of::<ValidatingAdmissionPolicy>(client, name),
        changes_of::<ValidatingAdmissionPolicyBinding>(client, name),
    ])
    .boxed()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response, StatusCode};
    use http_body_util::Full;
    use kube::client::Body;
    use prometheus_client::registry::Registry;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::release::{DEFAULT_CLUSTER_DOMAIN, Release};

    type Asked = Arc<Mutex<Vec<(Method, String)>>>;

    /// Starts a fake API server that has only these resources of the group. Returns a client and the received requests.
    fn api_server(resources: &[&str]) -> (Client, Asked) {
        let resources: Vec<_> = resources
            .iter()
            .map(|name| json!({"name": name, "singularName": "", "namespaced": false, "kind": "K", "verbs": ["get"]}))
            .collect();
        let group = json!({"kind": "APIResourceList", "groupVersion": API_GROUP, "resources": resources}).to_string();
        let asked = Asked::default();
        let seen = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let (status, body) = if path == format!("/apis/{API_GROUP}") {
                (StatusCode::OK, group.clone())
            } else {
                let status =
                    json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": ""});
                (StatusCode::NOT_FOUND, status.to_string())
            };
            seen.lock().unwrap().push((request.method().clone(), path));
            let response = Response::builder().status(status).body(Full::new(bytes::Bytes::from(body)));
            std::future::ready(response)
        });
        (Client::new(service, "default"), asked)
    }

    async fn state_with(resources: &[&str]) -> (String, bool) {
        let (client, asked) = api_server(resources);
        let release = Release::new("pillion", "pillion-system", DEFAULT_CLUSTER_DOMAIN).unwrap();
        let stop = CancellationToken::new();
        let leading = LeaderContext { client, release: Arc::new(release), stop: stop.clone() };
        let mut registry = Registry::default();
        let metrics = HeldMetrics::register(&mut registry);
        let settings = PolicySettings::new(held::Settings::new("pillion", "pillion-system"));
        let (_wanted, wanted) = watch::channel(Some(true));
        let running = tokio::spawn(run(leading, settings, wanted, metrics));
        let mut state = None;
        for _ in 0..1000 {
            let text = crate::labels::exposition(&registry);
            let is_set = |object: &Policies| {
                text.contains(&format!("pillion_controller_held_policies{{state=\"{}\"}} 1", object.as_str()))
            };
            state = Policies::ALL.into_iter().find(is_set);
            if state.is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        stop.cancel();
        running.await.unwrap();
        let wrote = asked.lock().unwrap().iter().any(|(method, _)| *method != Method::GET);
        (state.map_or("none", Policies::as_str).to_owned(), wrote)
    }

    #[tokio::test(start_paused = true)]
    async fn missing_policy_api_is_reported_without_writes() {
        let old = ["validatingadmissionpolicies", "validatingadmissionpolicybindings", "mutatingwebhookconfigurations"];
        assert_eq!(state_with(&old).await, ("unsupported".to_owned(), false));
        // With all resources, the controller writes the policies, and the fake API server rejects that.
        assert_eq!(state_with(&RESOURCES).await, ("failing".to_owned(), true));
    }
}
