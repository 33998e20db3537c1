//! Runs the watches and publishes snapshots.
//!
//! One task takes the events of all watches, as many at a time as have arrived, and is the only writer of the snapshot.
//! So a burst costs one publication, and writers never race. A watch that is cut off restarts after a growing pause;
//! until then the last snapshot stays.
//!
//! A watch ends after three quarters of a minute and continues with the next one. So the API server is heard of at
//! least that often, and a lost connection is noticed soon. Lists come in pages, and only one page is in memory at a
//! time. Each object is reduced to what is kept.

use std::fmt::Debug;
use std::sync::Arc;

use arc_swap::ArcSwap;
use futures::stream::{self, BoxStream, Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use pillion_api::opt_in::OptIn;
use pillion_api::{ClusterInjectionProfile, InjectionProfile};
use pillion_engine::snapshot::Snapshot;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::client::{chain, config, described, help, pauses};
use crate::guard::guarded;
use crate::informer::cache_metrics::{CacheMetrics, Kind, Reason};
use crate::informer::change::Change;
use crate::informer::fetch::{self, Fetches};
use crate::informer::index::{Index, Status, Update};
use crate::informer::last_contact::noting;
use crate::informer::namespaces;
use crate::informer::profiles::{self, Broken, News, ProfileChange, StoredProfile};
use crate::informer::served::{Fetched, Pointer, PointerChange, read_status};

/// Maximum number of changes in one publication, so that publications continue during a constant stream of changes.
const BATCH: usize = 1024;

/// Namespaces per page of a list. A page is in memory with complete objects.
const NAMESPACES_A_PAGE: u32 = 250;
/// Profiles per page: they are larger.
pub(crate) const PROFILES_A_PAGE: u32 = 100;

/// Maximum number of changed profiles that one publication logs, one line each: a first list may have thousands.
const TOLD: usize = 100;

/// The watches ended without a shutdown: a bug in this program. The caller should exit too.
#[derive(Debug, thiserror::Error)]
#[error("the watches of the API server ended by themselves")]
pub struct WatchesEnded;

/// Publishes snapshots of the cluster.
#[must_use = "nothing is watched until it is run"]
#[derive(Debug)]
pub struct Publisher {
    published: Arc<ArcSwap<Snapshot>>,
    status: watch::Sender<Status>,
    index: Index,
    metrics: CacheMetrics,
    serves_revisions: bool,
    opt_in: OptIn,
}

impl Publisher {
    /// Publishes into `published` as its only writer; its guardrails stay. The status reports the first snapshot.
    pub fn new(published: Arc<ArcSwap<Snapshot>>) -> (Self, watch::Receiver<Status>) {
        let (status, seen) = watch::channel(Status::default());
        let index = Index::from_snapshot(published.load().as_ref().clone());
        let (metrics, opt_in) = (CacheMetrics::default(), OptIn::default());
        (Self { published, status, index, metrics, serves_revisions: false, opt_in }, seen)
    }

    /// Records into these metrics.
    pub fn with_metrics(self, metrics: CacheMetrics) -> Self {
        Self { metrics, ..self }
    }

    /// Serves the revisions that the controller publishes instead of the stored profiles.
    pub fn of_revisions(self) -> Self {
        Self { index: self.index.of_revisions(), serves_revisions: true, ..self }
    }

    /// Sets the labels by which namespaces opt in. Default: Pillion's own.
    pub fn opting_in_by(self, opt_in: OptIn) -> Self {
        Self { opt_in, ..self }
    }

    /// Watches until `shutdown`.
    ///
    /// # Errors
    /// The watches ended by themselves.
    pub async fn run(self, client: Client, shutdown: CancellationToken) -> Result<(), WatchesEnded> {
        let (cluster, namespaced) = (Kind::ClusterProfiles, Kind::Profiles);
        let metrics = &self.metrics;
        let [cluster, namespaced] = if self.serves_revisions {
            [
                pointers_of::<ClusterInjectionProfile>(&client, cluster, metrics, Update::PublishedCluster),
                pointers_of::<InjectionProfile>(&client, namespaced, metrics, Update::PublishedNamespaced),
            ]
        } else {
            [
                profiles_of::<ClusterInjectionProfile>(&client, cluster, metrics, Update::Cluster),
                profiles_of::<InjectionProfile>(&client, namespaced, metrics, Update::Namespaced),
            ]
        };
        let updates = stream::select_all([cluster, namespaced, namespaces_of(&client, metrics, &self.opt_in)]);
        self.follow(updates, Fetches::new(Some(client)), shutdown).await
    }

    /// Runs [`Publisher::run`] on given streams of changes.
    async fn follow(
        mut self,
        updates: impl Stream<Item = Update> + Send + Unpin,
        mut fetches: Fetches,
        shutdown: CancellationToken,
    ) -> Result<(), WatchesEnded> {
        let mut batches = updates.ready_chunks(BATCH);
        loop {
            let batch = tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                // Cancel-safe: changes outside a batch stay in their stream.
                batch = batches.next() => batch.ok_or(WatchesEnded)?,
                // Cancel-safe: unfinished fetches keep running.
                (key, paused, outcome) = fetches.next() => match outcome {
                    Ok(came) => {
                        if matches!(came, Fetched::Missing(_)) && self.index.still_wants(&key) {
                            fetches.ask_again(key.clone(), paused);
                        }
                        vec![Update::Fetched(key, came)]
                    }
                    Err(error) => {
                        warn!(
                            profile = %key.profile,
                            revision = %key.revision,
                            error = %chain(&error),
                            "a published revision could not be read, what was last known stays; trying again"
                        );
                        let mut updates = Vec::new();
                        if self.index.still_wants(&key) {
                            fetches.ask_again(key.clone(), paused);
                            if fetch::is_out_of_patience(paused) {
                                let missing = fetch::not_to_be_had(&key, &chain(&error));
                                updates.push(Update::Fetched(key, missing));
                            }
                        }
                        updates
                    }
                },
            };
            for update in batch {
                for broken in self.index.update(update) {
                    report(&broken);
                }
                // Compiling takes time, and the same threads serve requests.
                tokio::task::coop::consume_budget().await;
            }
            fetches.ask(self.index.due());
            self.publish();
        }
    }

    fn publish(&mut self) {
        let first = !self.status.borrow().synced;
        // The last snapshot and status stay: a replica that has just started must not appear ready.
        let publication = guarded(&"the snapshot", || self.index.publish());
        let Ok(publication) = publication else { return };
        if let Some(snapshot) = publication {
            let before = self.published.swap(Arc::clone(&snapshot));
            self.metrics.published();
            tell(&profiles::news(before.profiles(), snapshot.profiles()));
        }
        for kind in Kind::ALL {
            let (synced, objects) = self.index.known(kind);
            self.metrics.known(kind, synced, objects);
        }
        let status = self.index.status();
        let changed = self.status.send_if_modified(|known| std::mem::replace(known, status) != status);
        if first && status.synced {
            let Status { profiles, broken_profiles, namespaces, .. } = status;
            info!(profiles, broken_profiles, namespaces, "the cluster is known");
        } else if changed {
            debug!(?status, "changes taken");
        }
    }
}

/// Reads profiles as any JSON: one that this build cannot read must not break the stream.
fn profiles_of<K>(
    client: &Client,
    kind: Kind,
    metrics: &CacheMetrics,
    update: fn(ProfileChange) -> Update,
) -> BoxStream<'static, Update>
where
    K: Resource<DynamicType = ()>,
{
    let resource = ApiResource::erase::<K>(&());
    let read = |mut object: DynamicObject| {
        let spec = object.data.get_mut("spec").map_or(Value::Null, Value::take);
        StoredProfile::new(object.metadata, spec)
    };
    let key = |object: DynamicObject| profiles::name(object.metadata);
    let client = noting(client.clone(), metrics.heard(kind).clone());
    let events = watcher(Api::<DynamicObject>::all_with(client, &resource), config(PROFILES_A_PAGE));
    changes(events, kind, metrics.clone(), read, key).map(update).boxed()
}

/// Reads only the published revisions of profiles, from their status.
fn pointers_of<K>(
    client: &Client,
    kind: Kind,
    metrics: &CacheMetrics,
    update: fn(PointerChange) -> Update,
) -> BoxStream<'static, Update>
where
    K: Resource<DynamicType = ()>,
{
    let resource = ApiResource::erase::<K>(&());
    let read = |mut object: DynamicObject| {
        let status = object.data.get_mut("status").map_or(Value::Null, Value::take);
        Pointer::new(object.metadata, read_status(status))
    };
    let key = |object: DynamicObject| profiles::name(object.metadata);
    let client = noting(client.clone(), metrics.heard(kind).clone());
    let events = watcher(Api::<DynamicObject>::all_with(client, &resource), config(PROFILES_A_PAGE));
    changes(events, kind, metrics.clone(), read, key).map(update).boxed()
}

/// Requests only the metadata of namespaces, and reduces it at once.
pub(crate) fn namespaces_of(client: &Client, metrics: &CacheMetrics, opt_in: &OptIn) -> BoxStream<'static, Update> {
    let opt_in = opt_in.clone();
    let client = noting(client.clone(), metrics.heard(Kind::Namespaces).clone());
    let api = Api::<PartialObjectMeta<Namespace>>::all(client);
    let read = move |object: PartialObjectMeta<Namespace>| {
        let name = object.metadata.name.clone().unwrap_or_default();
        guarded(&format_args!("namespace {name}"), || namespaces::read(object.metadata, &opt_in)).ok()
    };
    let key = |object: PartialObjectMeta<Namespace>| -> Box<str> { object.metadata.name.unwrap_or_default().into() };
    let events = watcher(api, config(NAMESPACES_A_PAGE));
    let changes = changes(events, Kind::Namespaces, metrics.clone(), read, key);
    // An unreadable namespace keeps its last state, or stays unknown: a review of its pods then looks it up.
    changes.filter_map(|change| std::future::ready(change.known())).map(Update::Namespace).boxed()
}

/// The changes from a watch. After an error, which is logged, the stream restarts after a growing pause.
///
/// The event that announces a list is removed: it precedes each attempt, and any event resets the pause. The error
/// reports an interrupted list instead.
pub(crate) fn changes<O, K, T>(
    events: impl Stream<Item = watcher::Result<Event<O>>> + Send + 'static,
    kind: Kind,
    metrics: CacheMetrics,
    read: impl Fn(O) -> T + Send + 'static,
    key: impl Fn(O) -> K + Send + 'static,
) -> impl Stream<Item = Change<K, T>> + Send
where
    O: Send + Debug + 'static,
{
    let lists = metrics.clone();
    let events = events.try_filter(move |event| {
        let announces = matches!(event, Event::Init);
        if announces {
            lists.list_begins(kind);
        }
        std::future::ready(!announces)
    });
    events.backoff(pauses()).map(move |event| match event {
        Ok(event) => Change::from_event(event, &read, &key),
        Err(error) => {
            metrics.restarted(kind, Reason::of(&error));
            let help = help(&error);
            let error = described(&error);
            warn!(kind = kind.as_str(), error, help, "not watched at present, what was last known stays; trying again");
            Change::Restarted
        }
    })
}

/// Logs which profiles became active, so that operators need not ask a replica.
fn tell(news: &[News]) {
    for News { name, before, now } in news.iter().take(TOLD) {
        let (old_revision, revision) = (before.as_deref(), now.as_deref());
        if revision.is_some() {
            info!(profile = %name, old_revision, revision, "the profile is at work");
        } else {
            info!(profile = %name, old_revision, "the profile is gone");
        }
    }
    if let Some(more) = news.len().checked_sub(TOLD).filter(|more| *more > 0) {
        info!(more, "more profiles are at work or gone");
    }
}

pub(crate) fn report(broken: &Broken) {
    let Broken { name, generation, serving, diagnostics } = broken;
    let serving = serving.as_deref().unwrap_or("none");
    for diagnostic in diagnostics {
        warn!(
            profile = %name,
            generation,
            serving,
            path = diagnostic.path,
            help = diagnostic.help,
            "the profile does not take effect, the last good revision stays at work: {}",
            diagnostic.message,
        );
    }
}

#[cfg(test)]
mod tests;
