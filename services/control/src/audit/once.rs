//! Runs the audit once, for commands. It uses lists instead of watches, and needs no controller.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use kube::Client;
use pillion_api::opt_in::OptIn;
use pillion_engine::snapshot::Snapshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::auditor::Auditor;
use super::facts::ClusterFacts;
use super::report::Report;
use super::requests::{AgeRequests, WebhookState, list_pods, read_webhook_state, request_ages};
use super::task::{AuditSettings, JUDGE_BATCH, Reads, judge_whole, now};
use crate::informer::watch::Publisher;
use crate::release::Release;

/// Timeout of one listing of profiles and namespaces.
const LIST_LIMIT: Duration = Duration::from_secs(30);

/// Why the audit failed.
#[derive(Debug, thiserror::Error)]
pub enum OnceError {
    /// Profiles or namespaces could not be listed. The log contains the cause.
    #[error("profiles and namespaces could not be listed within {} seconds", LIST_LIMIT.as_secs())]
    Cluster,
    /// Pods could not be listed.
    #[error("the pods of namespace {namespace} could not be listed")]
    Pods {
        /// The namespace.
        namespace: Box<str>,
        /// The cause.
        #[source]
        source: Box<kube::Error>,
    },
    /// The namespace does not exist or is not opted in.
    #[error("namespace {0} is not opted in: it does not exist, or has no label such as pillion.dev/injection=enabled")]
    NotOptedIn(Box<str>),
    /// The webhook is not called for the namespace.
    #[error("namespace {0} is excluded by the webhook configuration, or is the release's own namespace")]
    Excluded(Box<str>),
}

/// The pods that [`once`] audits.
#[derive(Clone, Copy, Debug, Default)]
pub struct PodScope<'s> {
    /// The namespace; `None` for all opted-in namespaces.
    pub namespace: Option<&'s str>,
    /// A label selector, such as `app=web`; `None` for all pods.
    pub selector: Option<&'s str>,
}

/// Audits the pods of `scope`. Before each namespace, calls `progress` with the namespace, its position (from 1), and
/// the total number of namespaces.
pub async fn once(
    client: &Client,
    release: &Release,
    scope: PodScope<'_>,
    reads: &Reads,
    settings: &AuditSettings,
    mut progress: impl FnMut(&str, usize, usize),
) -> Result<Report, OnceError> {
    let PodScope { namespace, selector } = scope;
    let Served { snapshot, excluded, opt_in, webhook_state } = serving(client, release, &settings.opt_in).await?;
    let opted_in: Vec<Box<str>> = snapshot
        .namespaces()
        .filter(|(name, found)| found.failure_mode().is_some() && namespace.is_none_or(|only| only == *name))
        .map(|(name, _)| name.into())
        .collect();
    if let Some(name) = namespace.filter(|_| opted_in.is_empty()) {
        return Err(OnceError::NotOptedIn(name.into()));
    }
    let mut auditor = Auditor::new(snapshot, now());
    auditor.set_excluded(excluded, now());
    if let Some(name) = namespace.filter(|name| auditor.excluded().contains(*name)) {
        return Err(OnceError::Excluded(name.into()));
    }
    let audited: Vec<_> = opted_in.into_iter().filter(|name| !auditor.excluded().contains(name)).collect();
    for (index, namespace) in audited.iter().enumerate() {
        progress(namespace, index + 1, audited.len());
        let mut from = None;
        loop {
            let fetched =
                timeout(settings.request_limit, list_pods(client, namespace, selector, from.as_deref())).await;
            let fetched = fetched.unwrap_or_else(|_| Err(kube::Error::Service("no response in time".into())));
            let pods = |source| OnceError::Pods { namespace: namespace.clone(), source: Box::new(source) };
            let (pods, next) = fetched.map_err(pods)?;
            for pod in &pods {
                judge_whole(&mut auditor, reads, pod).await;
            }
            from = next;
            if from.is_none() {
                break;
            }
        }
    }
    auditor.set_listed();
    while auditor.judge(JUDGE_BATCH) {}
    let mut facts = ClusterFacts::default();
    if let Some(WebhookState { registered, has_endpoint, is_off, .. }) = webhook_state {
        let now = now();
        facts.unavailable.add_sample(now, registered.is_none() || !has_endpoint);
        facts.disabled.add_sample(now, is_off);
        facts.registered = Some(registered.unwrap_or(i64::MAX));
    }
    let mut report = auditor.report(&facts, settings.max_findings);
    // Each round may request more ages, which may explain more findings.
    let requests = AgeRequests { client, opt_in: &opt_in, most: usize::MAX };
    while request_ages(requests, &auditor, &mut facts, &report).await {
        report = auditor.report(&facts, settings.max_findings);
    }
    Ok(report)
}

/// The profiles and namespaces that replicas use now.
#[derive(Debug)]
pub struct Served {
    /// Profiles and namespaces, with this release's opt-in labels.
    pub snapshot: Arc<Snapshot>,
    /// The namespaces for which the webhook is not called.
    pub excluded: BTreeSet<Box<str>>,
    /// The labels that opt a namespace in.
    opt_in: OptIn,
    webhook_state: Option<WebhookState>,
}

/// Lists the namespaces and the published revisions, which the replicas use. If no controller has published any
/// revision, lists the profiles instead.
pub async fn served(client: &Client, release: &Release) -> Result<Served, OnceError> {
    serving(client, release, &OptIn::default()).await
}

async fn serving(client: &Client, release: &Release, opt_in: &OptIn) -> Result<Served, OnceError> {
    // If the webhook's state cannot be read, the report explains fewer findings. The audit then uses the given opt-in
    // labels, and assumes that only the release's namespace is excluded.
    let webhook_state = read_webhook_state(client, release).await.ok();
    let opt_in = webhook_state.as_ref().and_then(|state| state.opt_in.as_ref()).unwrap_or(opt_in).clone();
    let mut snapshot = listed(client, true, &opt_in).await?;
    if snapshot.profiles().iter().next().is_none() {
        snapshot = listed(client, false, &opt_in).await?;
    }
    let excluded = webhook_state.as_ref().and_then(|state| state.excluded.clone());
    let excluded = excluded.unwrap_or_else(|| BTreeSet::from([release.namespace().into()]));
    Ok(Served { snapshot, excluded, opt_in, webhook_state })
}

/// Lists the namespaces and, if `serves_revisions`, the published revisions, or else the profiles.
async fn listed(client: &Client, serves_revisions: bool, opt_in: &OptIn) -> Result<Arc<Snapshot>, OnceError> {
    let published = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
    let (watches, mut status) = Publisher::new(Arc::clone(&published));
    let watches = watches.opting_in_by(opt_in.clone());
    let watches = if serves_revisions { watches.serves_revisions() } else { watches };
    let stop = CancellationToken::new();
    let guard = stop.clone().drop_guard();
    let publishing = tokio::spawn(watches.run(client.clone(), stop));
    let synced = timeout(LIST_LIMIT, status.wait_for(|status| status.synced)).await;
    let is_synced = matches!(synced, Ok(Ok(_)));
    drop(guard);
    let ended = publishing.await;
    if is_synced && ended.is_ok() { Ok(published.load_full()) } else { Err(OnceError::Cluster) }
}
