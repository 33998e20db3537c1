//! The audit's requests to the API server. The audit watches the metadata of pods, and reads the whole pods of each
//! [`PodFetch`]. It also reads the webhook's availability, the kill switch, the excluded namespaces, and the ages of
//! namespaces and profiles.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::{StreamExt, stream};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, PartialObjectMeta};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use pillion_api::names::NAMESPACE_NAME_LABEL;
use pillion_api::opt_in::OptIn;
use pillion_api::webhook_configuration::opt_in_of;
use pillion_api::{ClusterInjectionProfile, InjectionProfile, trust_probe};
use pillion_engine::profile::ProfileName;
use pillion_json::OwnedTape;
use tracing::{debug, warn};

use super::auditor::{Auditor, PodFetch};
use super::facts::{self, ClusterFacts, NamespaceAge, ProfileAge};
use super::pod::{AuditedPod, PodChange, read};
use super::report::Report;
use crate::client::{WATCH_DURATION, chain, error_message, with_pauses};
use crate::guard::guarded;
use crate::informer::objects::Change;
use crate::release::Release;

/// The field selector of pods that have neither succeeded nor failed. Other pods are not audited.
pub const NOT_ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// Pods per page of the watch's list, which has only their metadata.
const METADATA_PER_PAGE: u32 = 500;
/// Whole pods per page. A pod may have a million bytes, and three copies of it are in memory while it is read.
const PODS_PER_PAGE: u32 = 20;

type UntypedPod = kube::api::DynamicObject;

/// The state of the webhook, which the audit reads at regular intervals.
#[derive(Debug)]
pub(super) struct WebhookState {
    /// When the webhook configuration was created, in seconds since 1970. `None` if it does not exist or has no
    /// entries.
    pub(super) registered: Option<i64>,
    /// Whether a replica is ready.
    pub(super) has_endpoint: bool,
    /// Whether injection is disabled.
    pub(super) is_off: bool,
    /// The release's namespace, and the namespaces excluded by name. `None` if the webhook configuration does not
    /// exist, or has no entry besides that of the trust probe.
    pub(super) excluded: Option<BTreeSet<Box<str>>>,
    /// The labels that opt a namespace in; `None` if the webhook configuration does not exist or does not show them.
    pub(super) opt_in: Option<OptIn>,
}

/// The parameters of [`request_ages`].
#[derive(Clone, Copy)]
pub(super) struct AgeRequests<'a> {
    pub(super) client: &'a Client,
    pub(super) opt_in: &'a OptIn,
    /// Maximum number of requests for each kind: namespaces and profiles.
    pub(super) most: usize,
}

/// The pods of a fetch, and the continue token of the next page.
pub(super) type Page = (Vec<OwnedTape>, Option<String>);

/// Reads one pod, or one page of a namespace's pods, as `pod_fetch` says. Returns an empty page if the one pod does not
/// exist.
pub(super) async fn fetch(client: &Client, pod_fetch: &PodFetch) -> kube::Result<Page> {
    match pod_fetch {
        PodFetch::Get { namespace, name } => {
            let found = pods(client, namespace).get_opt(name).await?;
            Ok((found.as_ref().and_then(whole).into_iter().collect(), None))
        }
        PodFetch::List { namespace, from } => list_pods(client, namespace, None, from.as_deref()).await,
    }
}

/// Reads a page of the pods of a namespace that match the label selector, or of all its pods if `selector` is `None`.
/// Completed pods are left out. `from` is the page's continue token; `None` reads the first page.
pub(super) async fn list_pods(
    client: &Client,
    namespace: &str,
    selector: Option<&str>,
    from: Option<&str>,
) -> kube::Result<Page> {
    let parameters = ListParams {
        label_selector: selector.map(str::to_owned),
        continue_token: from.map(str::to_owned),
        ..ListParams::default().fields(NOT_ENDED).limit(PODS_PER_PAGE)
    };
    let list = pods(client, namespace).list(&parameters).await?;
    let next = list.metadata.continue_.filter(|token| !token.is_empty());
    Ok((list.items.iter().filter_map(whole).collect(), next))
}

/// Returns the API of a namespace's pods. They are read as arbitrary JSON, since an expression may read a field that
/// this build does not know.
fn pods(client: &Client, namespace: &str) -> Api<UntypedPod> {
    Api::namespaced_with(client.clone(), namespace, &kube::api::ApiResource::erase::<Pod>(&()))
}

fn whole(pod: &UntypedPod) -> Option<OwnedTape> {
    guarded(&pod_name(&pod.metadata), || OwnedTape::parse(serde_json::to_string(pod).ok()?).ok()).ok()?
}

fn read_metadata(pod: &PartialObjectMeta<Pod>) -> Option<AuditedPod> {
    let take = || read(OwnedTape::parse(serde_json::to_string(pod).ok()?).ok()?.root());
    guarded(&pod_name(&pod.metadata), take).ok()?
}

/// Returns the name of a pod for log lines.
fn pod_name(metadata: &ObjectMeta) -> String {
    let part = |text: &Option<String>| text.clone().unwrap_or_default();
    format!("pod {}/{}", part(&metadata.namespace), part(&metadata.name))
}

/// Watches the metadata of all pods, and reduces it to the data that the audit needs. One watch of all pods costs the
/// API server less than a watch for each opted-in namespace, and the set of these namespaces changes.
pub(super) fn watch_pods(client: &Client) -> impl futures::Stream<Item = PodChange> + Send + 'static {
    let api = Api::<PartialObjectMeta<Pod>>::all(client.clone());
    let seconds = u32::try_from(WATCH_DURATION.as_secs()).unwrap_or(u32::MAX);
    let config = watcher::Config::default().timeout(seconds).page_size(METADATA_PER_PAGE).fields(NOT_ENDED);
    // `with_pauses` removes `Init` events. So the beginning of a list is reported with its first object, or with its
    // end if it has no objects.
    let begins = Arc::new(AtomicBool::new(false));
    let announced = Arc::clone(&begins);
    let events = with_pauses(watcher(api, config), move || announced.store(true, Ordering::Relaxed));
    events.flat_map(move |event| {
        let (restarted, change) = match event {
            Ok(Event::Init) => (true, None),
            Ok(Event::InitApply(pod)) => {
                (begins.swap(false, Ordering::Relaxed), read_metadata(&pod).map(Change::Listed))
            }
            Ok(Event::InitDone) => (begins.swap(false, Ordering::Relaxed), Some(Change::ListComplete)),
            Ok(Event::Apply(pod)) => (false, read_metadata(&pod).map(Change::Applied)),
            Ok(Event::Delete(pod)) => {
                let key = pod.metadata.namespace.zip(pod.metadata.name);
                (false, key.map(|(namespace, name)| Change::Deleted((namespace.into(), name.into()))))
            }
            Err(error) => {
                let error = error_message(&error);
                warn!(error, "the watch of pods failed; the last known pods remain in use while it is retried");
                (false, None)
            }
        };
        stream::iter(restarted.then_some(Change::Restarted).into_iter().chain(change))
    })
}

/// Returns the release's namespace, and the namespaces that every entry except the trust probe's excludes by name.
/// `None` if the configuration has no entry besides that of the trust probe.
fn excluded(configuration: &MutatingWebhookConfiguration, release: &Release) -> Option<BTreeSet<Box<str>>> {
    let entries = configuration.webhooks.iter().flatten().filter(|entry| entry.name != trust_probe::WEBHOOK);
    let by_entry = entries.map(|entry| {
        let requirements =
            entry.namespace_selector.iter().flat_map(|selector| selector.match_expressions.iter().flatten());
        let names = requirements.filter(|one| one.key == NAMESPACE_NAME_LABEL && one.operator == "NotIn");
        names
            .flat_map(|one| one.values.iter().flatten())
            .map(|name| name.as_str().into())
            .collect::<BTreeSet<Box<str>>>()
    });
    let mut excluded = by_entry.reduce(|all, of_entry| all.intersection(&of_entry).cloned().collect())?;
    excluded.insert(release.namespace().into());
    Some(excluded)
}

pub(super) async fn read_webhook_state(client: &Client, release: &Release) -> kube::Result<WebhookState> {
    let configuration =
        Api::<MutatingWebhookConfiguration>::all(client.clone()).get_opt(release.configuration()).await?;
    let excluded = configuration.as_ref().and_then(|configuration| excluded(configuration, release));
    let opt_in = configuration.as_ref().and_then(opt_in_of);
    let registered = configuration
        .filter(|configuration| configuration.webhooks.as_ref().is_some_and(|entries| !entries.is_empty()))
        .map(|configuration| configuration.metadata.creation_timestamp.as_ref().map_or(0, facts::seconds));
    let slices = ListParams::default().labels(&format!("kubernetes.io/service-name={}", release.service()));
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), release.namespace()).list(&slices).await?;
    let has_endpoint = slices
        .items
        .iter()
        .flat_map(|slice| slice.endpoints.iter().flatten())
        .any(|endpoint| endpoint.conditions.as_ref().is_none_or(|conditions| conditions.ready.unwrap_or(true)));
    let switch = Api::<ConfigMap>::namespaced(client.clone(), release.namespace()).get_opt(release.switch()).await?;
    let is_off = switch
        .and_then(|switch| switch.data?.get("injection").cloned())
        .is_some_and(|value| value.trim().eq_ignore_ascii_case("disabled"));
    Ok(WebhookState { registered, has_endpoint, is_off, excluded, opt_in })
}

/// Requests the ages that the findings of `report` need. Returns whether any age was added to `facts`.
pub(super) async fn request_ages(
    requests: AgeRequests<'_>,
    auditor: &Auditor,
    facts: &mut ClusterFacts,
    report: &Report,
) -> bool {
    let AgeRequests { client, opt_in, most } = requests;
    let active: BTreeMap<_, _> =
        auditor.snapshot().profiles().iter().map(|profile| (profile.display_name(), profile)).collect();
    facts.keep(|name| auditor.namespace(name).is_some(), |name| active.contains_key(name));
    let mut is_new = false;
    for name in report.asked_namespaces.iter().take(most) {
        let Some(namespace) = auditor.namespace(name) else { continue };
        let api = Api::<PartialObjectMeta<Namespace>>::all(client.clone());
        match api.get_metadata_opt(name).await {
            Ok(found) => {
                let age = found.map(|found| NamespaceAge::of(&found.metadata, opt_in)).unwrap_or_default();
                facts.set_namespace(name, namespace, age);
                is_new = true;
            }
            Err(error) => {
                debug!(namespace = %name, error = chain(&error), "the age of the namespace could not be read");
            }
        }
    }
    for name in report.asked_profiles.iter().take(most) {
        let Some(profile) = active.get(&**name) else { continue };
        let ProfileName { namespace, name: short } = profile.name();
        let found = if let Some(namespace) = namespace {
            let api = Api::<InjectionProfile>::namespaced(client.clone(), namespace);
            api.get_metadata_opt(short).await.map(|found| found.map(|found| found.metadata))
        } else {
            let api = Api::<ClusterInjectionProfile>::all(client.clone());
            api.get_metadata_opt(short).await.map(|found| found.map(|found| found.metadata))
        };
        match found {
            Ok(found) => {
                let age = found.map(|metadata| ProfileAge::of(&metadata)).unwrap_or_default();
                facts.set_profile(name, profile.revision(), age);
                is_new = true;
            }
            Err(error) => debug!(profile = %name, error = chain(&error), "the age of the profile could not be read"),
        }
    }
    is_new
}
