//! Runs the watches and publishes snapshots.
//!
//! One task receives the events of all watches, as many at a time as have arrived, and is the only writer of the
//! snapshot. So a burst of events costs one publication, and writers never race. A watch that is interrupted restarts
//! after a growing pause. Until then, the last snapshot remains in use.
//!
//! A watch ends after 45 seconds, and the next one continues. So the API server responds at least that often, and a
//! lost connection is detected soon. Lists are read in pages, and only one page is in memory at a time. Each object is
//! reduced to the parts that are kept. kube's `reflector` is not used, since its store keeps whole objects.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::stream::{self, BoxStream, ReadyChunks, Stream, StreamExt};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use pillion_api::opt_in::OptIn;
use pillion_api::{ClusterInjectionProfile, InjectionProfile};
use pillion_engine::profile::ProfileName;
use pillion_engine::snapshot::{ProfileSet, Snapshot};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::client::{chain, config, error_message, help, with_pauses};
use crate::guard::guarded;
use crate::informer::cache_metrics::{CacheMetrics, InterruptionReason, WatchedKind, recording};
use crate::informer::fetch::{self, Fetches};
use crate::informer::index::{Index, Status, Update};
use crate::informer::namespaces;
use crate::informer::objects::{self, Change, StoredProfile, read_status};
use crate::informer::published::{Fetched, RevisionKey};
use crate::informer::share;
use crate::informer::text::Broken;

/// Maximum number of changes in one publication, so that a constant stream of changes does not delay publications.
const BATCH: usize = 1024;

/// Namespaces per page of a list. While a page is read, its whole objects are in memory.
const NAMESPACES_PER_PAGE: u32 = 250;
/// Profiles per page of a list. Profiles are larger than namespaces.
pub(crate) const PROFILES_PER_PAGE: u32 = 100;

/// Maximum number of changed profiles that one publication logs, one line each. A first list may have thousands.
const MAX_LOGGED: usize = 100;

/// The watches ended without a shutdown, which is a bug in Pillion. The caller should exit too.
#[derive(Debug, thiserror::Error)]
#[error("the watches of the API server ended without a shutdown")]
pub struct WatchesEnded;

/// Publishes snapshots of the cluster.
#[must_use = "nothing is watched until it is run"]
#[derive(Debug)]
pub struct Publisher {
    published: Arc<ArcSwap<Snapshot>>,
    status: watch::Sender<Status>,
    index: Index,
    metrics: CacheMetrics,
    opt_in: OptIn,
}

impl Publisher {
    /// Creates the only writer of `published`, and a receiver of its status. The guardrails in `published` are kept.
    pub fn new(published: Arc<ArcSwap<Snapshot>>) -> (Self, watch::Receiver<Status>) {
        let (status, seen) = watch::channel(Status::default());
        let index = Index::from_snapshot(published.load().as_ref().clone());
        let (metrics, opt_in) = (CacheMetrics::default(), OptIn::default());
        (Self { published, status, index, metrics, opt_in }, seen)
    }

    /// Sets the metrics of the watches and of publications.
    pub fn with_metrics(self, metrics: CacheMetrics) -> Self {
        Self { metrics, ..self }
    }

    /// Serves the revisions that the controller publishes, and does not compile the stored profiles.
    pub fn serves_revisions(self) -> Self {
        Self { index: self.index.serves_revisions(), ..self }
    }

    /// Also compiles and keeps the stored specs, because the leader creates revisions from them. `memory` limits the
    /// memory of namespaced profiles.
    pub(crate) fn accepting_texts(self, memory: share::Limits) -> Self {
        Self { index: self.index.serves_revisions().keeping_texts().bounded_by(memory), ..self }
    }

    /// Sets the labels by which namespaces opt in. Default: Pillion's own.
    pub fn opting_in_by(self, opt_in: OptIn) -> Self {
        Self { opt_in, ..self }
    }

    /// Watches until `shutdown`.
    ///
    /// # Errors
    /// The watches ended without a shutdown.
    pub async fn run(self, client: Client, shutdown: CancellationToken) -> Result<(), WatchesEnded> {
        let watches = self.watch(client);
        self.follow(watches, shutdown).await
    }

    /// Starts the watches.
    pub(crate) fn watch(&self, client: Client) -> Watches {
        let (metrics, reads_texts) = (&self.metrics, self.index.reads_texts());
        let updates = stream::select_all([
            profiles_of::<ClusterInjectionProfile>(&client, WatchedKind::ClusterProfiles, metrics, reads_texts),
            profiles_of::<InjectionProfile>(&client, WatchedKind::Profiles, metrics, reads_texts),
            namespaces_of(&client, metrics, &self.opt_in),
        ]);
        Watches { batches: updates.boxed().ready_chunks(BATCH), fetches: Fetches::new(Some(client)) }
    }

    async fn follow(mut self, mut watches: Watches, shutdown: CancellationToken) -> Result<(), WatchesEnded> {
        loop {
            let updates = tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                updates = watches.next(&mut self.index) => updates.ok_or(WatchesEnded)?,
            };
            for update in updates {
                for broken in self.index.update(update) {
                    report(&broken);
                }
                // Yield from time to time: compiling takes long, and the same threads also serve requests.
                tokio::task::coop::consume_budget().await;
            }
            self.publish(&mut watches);
        }
    }

    /// Returns the index.
    pub(crate) const fn index(&self) -> &Index {
        &self.index
    }

    /// Returns the index, for applying updates.
    pub(crate) const fn index_mut(&mut self) -> &mut Index {
        &mut self.index
    }

    /// Fetches the revisions that the index needs, and publishes the next snapshot and the status if they changed.
    pub(crate) fn publish(&mut self, watches: &mut Watches) {
        watches.fetches.queue(self.index.take_unfetched());
        let first = !self.status.borrow().synced;
        // After a panic, keep the last snapshot and status. A replica that has not published a snapshot yet must not
        // become ready.
        let publication = guarded(&"the snapshot", || self.index.publish());
        let Ok(publication) = publication else { return };
        if let Some(snapshot) = publication {
            let before = self.published.swap(Arc::clone(&snapshot));
            self.metrics.published();
            log_activations(&activation_changes(before.profiles(), snapshot.profiles()));
        }
        for kind in WatchedKind::ALL {
            let (synced, objects) = self.index.known(kind);
            self.metrics.set_objects(kind, synced, objects);
        }
        let status = self.index.status();
        let changed = self.status.send_if_modified(|known| std::mem::replace(known, status) != status);
        if first && status.synced {
            let Status { profiles, broken_profiles, namespaces, .. } = status;
            info!(profiles, broken_profiles, namespaces, "all profiles and namespaces are listed");
        } else if changed {
            debug!(?status, "changes were applied");
        }
    }
}

/// The running watches, and fetches of revisions.
pub(crate) struct Watches {
    batches: ReadyChunks<BoxStream<'static, Update>>,
    fetches: Fetches,
}

impl Watches {
    /// Returns the next updates for the index, or `None` if the watches ended. Cancel-safe.
    pub(crate) async fn next(&mut self, index: &mut Index) -> Option<Vec<Update>> {
        tokio::select! {
            biased;
            // Cancel-safe: changes that are not in a batch yet remain in their stream.
            batch = self.batches.next() => batch,
            // Cancel-safe: unfinished fetches continue.
            (key, paused, outcome) = self.fetches.next() => {
                Some(self.fetched(index, key, paused, outcome).into_iter().collect())
            }
        }
    }

    /// Returns the update for a finished fetch, if the index needs one. Queues a retry of a fetch that may succeed
    /// later.
    fn fetched(
        &mut self,
        index: &mut Index,
        key: RevisionKey,
        paused: Duration,
        outcome: fetch::FetchResult,
    ) -> Option<Update> {
        match outcome {
            Ok(fetched) => {
                if matches!(fetched, Fetched::Missing(_)) && index.still_needs(&key) {
                    self.fetches.queue_retry(key.clone(), paused);
                }
                Some(Update::Fetched(key, fetched))
            }
            Err(error) => {
                let error = chain(&error);
                warn!(
                    profile = %key.profile,
                    revision = %key.revision,
                    error,
                    "a published revision could not be read; the last known one remains active during retries"
                );
                if !index.still_needs(&key) {
                    return None;
                }
                self.fetches.queue_retry(key.clone(), paused);
                fetch::exceeds_wait(paused).then(|| {
                    let missing = fetch::unavailable_revision(&key, &error);
                    Update::Fetched(key, missing)
                })
            }
        }
    }
}

/// Watches profiles, and reads only the parts that the index needs, including the spec if `reads_texts`. Profiles are
/// read as arbitrary JSON: a profile that this build cannot parse must not break the stream.
fn profiles_of<K>(
    client: &Client,
    kind: WatchedKind,
    metrics: &CacheMetrics,
    reads_texts: bool,
) -> BoxStream<'static, Update>
where
    K: Resource<DynamicType = ()>,
{
    let read = move |object| read_profile(object, reads_texts);
    let key = |object: DynamicObject| objects::name(object.metadata);
    let client = recording(client.clone(), metrics.last_response(kind).clone());
    let events =
        watcher(Api::<DynamicObject>::all_with(client, &ApiResource::erase::<K>(&())), config(PROFILES_PER_PAGE));
    let changes = changes(events, kind, metrics.clone(), read, key);
    changes.map(move |change| Update::of_profiles(change, matches!(kind, WatchedKind::ClusterProfiles))).boxed()
}

/// Reduces a profile to the parts that are kept. If `reads_text`, keeps the spec too.
pub(crate) fn read_profile(mut object: DynamicObject, reads_text: bool) -> StoredProfile {
    let mut part = |name: &str| object.data.get_mut(name).map_or(Value::Null, Value::take);
    let spec = if reads_text { part("spec") } else { Value::Null };
    let status = read_status(part("status"));
    StoredProfile::new(object.metadata, spec).with_status(status)
}

/// Watches the metadata of namespaces, and keeps only labels and annotations.
fn namespaces_of(client: &Client, metrics: &CacheMetrics, opt_in: &OptIn) -> BoxStream<'static, Update> {
    let opt_in = opt_in.clone();
    let client = recording(client.clone(), metrics.last_response(WatchedKind::Namespaces).clone());
    let api = Api::<PartialObjectMeta<Namespace>>::all(client);
    let read = move |object: PartialObjectMeta<Namespace>| {
        let name = object.metadata.name.clone().unwrap_or_default();
        guarded(&format_args!("namespace {name}"), || namespaces::read(object.metadata, &opt_in)).ok()
    };
    let key = |object: PartialObjectMeta<Namespace>| -> Box<str> { object.metadata.name.unwrap_or_default().into() };
    let events = watcher(api, config(NAMESPACES_PER_PAGE));
    let changes = changes(events, WatchedKind::Namespaces, metrics.clone(), read, key);
    // An unreadable namespace keeps its last state. If it has none, the reviews of its pods look it up.
    changes.filter_map(|change| std::future::ready(change.known())).map(Update::Namespace).boxed()
}

/// Converts the events of a watch to changes. Logs each error and converts it to [`Change::Restarted`], since the error
/// may have interrupted a list. The watch continues after a pause that grows with each error.
pub(crate) fn changes<O, K, T>(
    events: impl Stream<Item = watcher::Result<Event<O>>> + Send + 'static,
    kind: WatchedKind,
    metrics: CacheMetrics,
    read: impl Fn(O) -> T + Send + 'static,
    key: impl Fn(O) -> K + Send + 'static,
) -> impl Stream<Item = Change<K, T>> + Send
where
    O: Send + Debug + 'static,
{
    let lists = metrics.clone();
    with_pauses(events, move || lists.list_begins(kind)).map(move |event| match event {
        Ok(event) => Change::from_event(event, &read, &key),
        Err(error) => {
            metrics.restarted(kind, InterruptionReason::of(&error));
            let help = help(&error);
            let error = error_message(&error);
            warn!(
                kind = kind.as_str(),
                error, help, "the watch failed; the last known objects remain in use; trying again"
            );
            Change::Restarted
        }
    })
}

/// A profile whose active revision changed, or that is no longer active.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ActivationChange {
    /// The profile's name.
    name: ProfileName,
    /// The earlier active revision; `None` if none was active.
    before: Option<Box<str>>,
    /// The active revision; `None` if the profile is no longer active.
    now: Option<Box<str>>,
}

/// Returns the profiles whose active revision differs between the two sets, ordered by name.
fn activation_changes(before: &ProfileSet, now: &ProfileSet) -> Vec<ActivationChange> {
    if std::ptr::eq(before, now) {
        return Vec::new();
    }
    let mut all: BTreeMap<&ProfileName, (Option<&str>, Option<&str>)> =
        before.iter().map(|profile| (profile.name(), (Some(profile.revision()), None))).collect();
    for profile in now.iter() {
        all.entry(profile.name()).or_default().1 = Some(profile.revision());
    }
    let changed = all.into_iter().filter(|(_, (before, now))| before != now);
    changed
        .map(|(name, (before, now))| ActivationChange {
            name: name.clone(),
            before: before.map(Into::into),
            now: now.map(Into::into),
        })
        .collect()
}

/// Logs which profiles became active, changed their active revision, or are no longer active. So administrators need
/// not query a replica.
fn log_activations(changes: &[ActivationChange]) {
    for ActivationChange { name, before, now } in changes.iter().take(MAX_LOGGED) {
        let (old_revision, revision) = (before.as_deref(), now.as_deref());
        if revision.is_some() {
            info!(profile = %name, old_revision, revision, "the profile is active");
        } else {
            info!(profile = %name, old_revision, "the profile is no longer active");
        }
    }
    if let Some(more) = changes.len().checked_sub(MAX_LOGGED).filter(|more| *more > 0) {
        info!(more, "more profiles have changed");
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
            "the profile is invalid; the last valid revision remains active: {}",
            diagnostic.message,
        );
    }
}

#[cfg(test)]
mod tests;
