//! The audit by lists, once: for `pillion status`, which works with the controller dead.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use kube::Client;
use pillion_engine::snapshot::Snapshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::auditor::{Auditor, Errand};
use super::report::Report;
use super::surroundings::Surroundings;
use super::task::{AuditSettings, JUDGED_AT_ONCE, Look, Reads, ask_ages, fetch, look, now, take_whole};
use crate::release::Release;
use crate::watch::Publisher;

/// How long profiles and namespaces may take to be listed.
const LISTED_WITHIN: Duration = Duration::from_secs(30);

/// The audit could not be made.
#[derive(Debug, thiserror::Error)]
pub enum OnceError {
    /// Profiles or namespaces were not listed; the log says why.
    #[error("profiles and namespaces could not be listed within {} seconds", LISTED_WITHIN.as_secs())]
    Cluster,
    /// Pods were not listed.
    #[error("the pods of namespace {namespace} could not be listed")]
    Pods {
        /// The namespace.
        namespace: Box<str>,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// The namespace is not there, or not opted in.
    #[error("namespace {0} is not opted in: it has no label pillion.dev/injection, or is not there")]
    NotOptedIn(Box<str>),
    /// The webhook is not called for the namespace.
    #[error("namespace {0} is left alone: the webhook configuration excludes it, or it is the release's")]
    Excluded(Box<str>),
}

/// Audits the pods of one namespace, or of all that are opted in.
///
/// # Errors
/// Profiles, namespaces or pods could not be listed, or the namespace is not opted in.
pub async fn once(
    client: &Client,
    release: &Release,
    namespace: Option<&str>,
    reads: &Reads,
    settings: &AuditSettings,
) -> Result<Report, OnceError> {
    // As replicas serve them. Where no controller has published any, replicas serve profiles as they stand.
    let mut snapshot = listed(client, true).await?;
    if snapshot.profiles().iter().next().is_none() {
        snapshot = listed(client, false).await?;
    }
    let opted_in: Vec<Box<str>> = snapshot
        .namespaces()
        .filter(|(name, found)| found.level().is_some() && namespace.is_none_or(|only| only == *name))
        .map(|(name, _)| name.into())
        .collect();
    if let Some(name) = namespace.filter(|_| opted_in.is_empty()) {
        return Err(OnceError::NotOptedIn(name.into()));
    }
    // Who may not read it is told less about causes, and of namespaces that are left alone.
    let looked = look(client, release).await.ok();
    let mut auditor = Auditor::new(snapshot, now());
    let excluded = looked.as_ref().and_then(|look| look.excluded.clone());
    auditor.set_excluded(excluded.unwrap_or_else(|| BTreeSet::from([release.namespace().into()])), now());
    if let Some(name) = namespace.filter(|name| auditor.excluded().contains(*name)) {
        return Err(OnceError::Excluded(name.into()));
    }
    for namespace in opted_in.into_iter().filter(|name| !auditor.excluded().contains(name)).collect::<Vec<_>>() {
        let mut from = None;
        loop {
            let errand = Errand::List { namespace: namespace.clone(), from };
            let fetched = timeout(settings.request_limit, fetch(client, &errand)).await;
            let fetched = fetched.unwrap_or_else(|_| Err(kube::Error::Service("no answer in time".into())));
            let pods = |source| OnceError::Pods { namespace: namespace.clone(), source: Box::new(source) };
            let (pods, next) = fetched.map_err(pods)?;
            for pod in &pods {
                take_whole(&mut auditor, reads, pod).await;
            }
            from = next;
            if from.is_none() {
                break;
            }
        }
    }
    auditor.set_listed();
    while auditor.judge(JUDGED_AT_ONCE) {}
    let mut surroundings = Surroundings::default();
    if let Some(Look { registered, has_endpoint, is_off, .. }) = looked {
        let now = now();
        surroundings.away.look(now, registered.is_none() || !has_endpoint);
        surroundings.off.look(now, is_off);
        surroundings.registered = Some(registered.unwrap_or(i64::MAX));
    }
    let mut report = auditor.report(&surroundings, settings.most_findings);
    // Each round knows some ages more.
    while ask_ages(client, &auditor, &mut surroundings, &report, usize::MAX).await {
        report = auditor.report(&surroundings, settings.most_findings);
    }
    Ok(report)
}

/// Profiles and namespaces as a replica would know them, at this moment.
async fn listed(client: &Client, of_revisions: bool) -> Result<Arc<Snapshot>, OnceError> {
    let published = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
    let (watches, mut status) = Publisher::new(Arc::clone(&published));
    let watches = if of_revisions { watches.of_revisions() } else { watches };
    let stop = CancellationToken::new();
    let guard = stop.clone().drop_guard();
    let publishing = tokio::spawn(watches.run(client.clone(), stop));
    let synced = timeout(LISTED_WITHIN, status.wait_for(|status| status.synced)).await;
    let is_synced = matches!(synced, Ok(Ok(_)));
    drop(guard);
    let ended = publishing.await;
    if is_synced && ended.is_ok() { Ok(published.load_full()) } else { Err(OnceError::Cluster) }
}
