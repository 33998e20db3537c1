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

/// How many changes one publication takes at most, so that a publication comes also if changes never stop.
const BATCH: usize = 1024;

/// Namespaces of one page of a list. A page is in memory with all that its objects have.
const NAMESPACES_A_PAGE: u32 = 250;
/// Profiles of one page: they are larger.
pub(crate) const PROFILES_A_PAGE: u32 = 100;

/// Of how many profiles one publication tells in the log, each on a line: a first list may have thousands.
const TOLD: usize = 100;

/// The watches ended, though nobody asked them to: a mistake in this program. Who runs them should end too.
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
    /// Publishes into `published`, as its only writer; the guardrails that are there stay. The status says when the first snapshot is there.
    pub fn new(published: Arc<ArcSwap<Snapshot>>) -> (Self, watch::Receiver<Status>) {
        let (status, seen) = watch::channel(Status::default());
        let index = Index::from_snapshot(published.load().as_ref().clone());
        let (metrics, opt_in) = (CacheMetrics::default(), OptIn::default());
        (Self { published, status, index, metrics, serves_revisions: false, opt_in }, seen)
    }

    /// Tells these what it knows.
    pub fn with_metrics(self, metrics: CacheMetrics) -> Self {
        Self { metrics, ..self }
    }

    /// Serves the revisions that the controller publishes, and not the texts of profiles as they stand.
    pub fn of_revisions(self) -> Self {
        Self { index: self.index.of_revisions(), serves_revisions: true, ..self }
    }

    /// Namespaces opt in by these labels. Without it: by Pillion's own.
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

    /// [`Publisher::run`] with what the watches say given.
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
                // Cancel-safe: what is not in a batch stays in its stream.
                batch = batches.next() => batch.ok_or(WatchesEnded)?,
                // Cancel-safe: what is not done stays among what is running.
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
                // Compiling takes time; requests are served by the same threads.
                tokio::task::coop::consume_budget().await;
            }
            fetches.ask(self.index.due());
            self.publish();
        }
    }

    fn publish(&mut self) {
        let first = !self.status.borrow().synced;
        // What was published last stays. Nobody is told more than that: who has just started is not to look ready.
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

/// Profiles are read as whatever JSON they are: one that this build cannot read must not break the stream.
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

/// Of profiles only what their status publishes is kept.
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

/// Only the metadata of namespaces are asked for, and made small at once.
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
    // One that cannot be read is as it was, or unknown: a review of its pods looks it up then.
    changes.filter_map(|change| std::future::ready(change.known())).map(Update::Namespace).boxed()
}

/// What the events say. After an error, which is logged, the stream begins anew by itself, after a pause that grows.
///
/// The event that announces a list is taken out: it comes before each attempt, and any event resets the pause. That a list
/// was cut off is told by the error instead.
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

/// Tells which profiles are at work from now on: nobody has to ask a replica for it.
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
