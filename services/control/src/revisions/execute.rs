//! Executes the plans for profiles: writes revisions and status, and runs dry runs.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodTemplate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::api::{ApiResource, DeleteParams, DynamicObject, PostParams, Preconditions};
use kube::runtime::events::EventType;
use kube::{Api, Client};
use pillion_api::kinds::ProfileStatus;
use pillion_api::names::{API_VERSION, PROFILE_LABEL};
use pillion_api::revision::{RevisionBounds, RevisionSpec, label_value, object_name};
use pillion_api::{ClusterProfileRevision, ProfileRevision};
use pillion_engine::profile::ProfileName;
use serde_json::json;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::dry_run::{Verdict, pod_template, verdict};
use super::dry_runs::DryRunRequest;
use super::observe::{self, RevisionStore};
use super::opted_in::Coverage;
use super::plan::{Plan, PlanSettings, ProfileEvent, plan};
use super::schedule::{Budget, PassResult, Schedule};
use super::{BOUNDED_BY_PARENT, BOUNDS_LABEL, Metrics, Settings};
use crate::client::chain;
use crate::guard::guarded;
use crate::informer::index::Update;
use crate::informer::objects::{Change, StoredProfile};
use crate::informer::watch::{Publisher, read_profile};
use crate::leader::{FIELD_MANAGER, LeaderContext};
use crate::revisions::profile_event;
use crate::revisions::profile_status::{self, kind};

/// Maximum number of changes of revisions that are handled at once.
const BATCH: usize = 1024;
/// Maximum number of profiles that are read again in one pass.
const MAX_READS: usize = 256;
/// Maximum number of profiles that are written concurrently, and of profiles that are read again concurrently.
const CONCURRENT_WRITES: usize = 8;
/// Maximum number of consecutive rounds in one pass. For example, the first round creates a revision, and the second
/// one publishes it in the status.
const ROUNDS: usize = 3;
/// Maximum number of concurrent dry runs.
const DRY_RUNS: usize = 4;
/// Timeout of a dry run, during which the API server may call other webhooks.
const DRY_RUN_TIMEOUT: Duration = Duration::from_secs(10);

/// Result of the actions for a profile.
enum ActionResult {
    Created(Box<ObjectMeta>),
    Written {
        metadata: Box<ObjectMeta>,
        status: Box<ProfileStatus>,
        /// The deleted revisions.
        deleted: Vec<Box<str>>,
        /// Whether some revision could not be deleted.
        failed: bool,
    },
    /// The profile has changed since it was observed. The watch will deliver the change.
    Outdated,
    /// The action failed and must be retried.
    Failed,
    Nothing,
}

/// Accepts and publishes profiles while this controller leads. `publisher` publishes snapshots of the served revisions,
/// and shares its watches with this task.
pub async fn run(leading: LeaderContext, settings: Settings, metrics: Metrics, publisher: Publisher) {
    let stop = leading.stop.clone();
    tokio::select! {
        () = stop.cancelled() => {}
        () = lead(leading.client, leading.release.namespace(), settings, metrics, publisher) => {}
    }
}

#[expect(clippy::too_many_lines, reason = "one loop, with one arm for each kind of event")]
async fn lead(client: Client, home: &str, settings: Settings, metrics: Metrics, publisher: Publisher) {
    let mut store = RevisionStore::new(publisher, settings.memory);
    while let Err(error) = store.read_accepted(&client).await {
        let error = chain(&error);
        warn!(error, "the accepted revisions of profiles cannot be read; trying again");
        tokio::time::sleep(settings.retry).await;
    }
    let writer =
        Writer { client: client.clone(), metrics: metrics.clone(), events: Arc::new(EventRecorder::new(&client)) };
    let mut watches = store.watch(client.clone());
    let mut revisions = observe::watch_revisions(&client).ready_chunks(BATCH);
    let mut schedule = Schedule::new(settings.clone());
    // No other work waits for a dry run, or for a profile that is read again.
    let (dry_runs, requested) = unbounded();
    let pod_templates = Api::namespaced_with(client.clone(), home, &ApiResource::erase::<PodTemplate>(&()));
    let mut answers = requested.map(|dry_run| send_dry_run(&pod_templates, dry_run)).buffer_unordered(DRY_RUNS);
    let (to_read, reading) = unbounded();
    let mut reads = reading.map(|profile| read_again(&client, profile)).buffer_unordered(CONCURRENT_WRITES);
    let mut round: Option<(Pass, Writes)> = None;
    let mut coverage = settings.safety_net.as_ref().ok().map(|channels| channels.coverage.clone());
    store.coverage = settings.safety_net.as_ref().map(|_| Coverage::default()).map_err(|why| *why);
    loop {
        let next = schedule.next_pass();
        let is_writing = round.is_some();
        let pass_due = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let written = async {
            match &mut round {
                Some((_, pending)) => pending.await,
                None => std::future::pending().await,
            }
        };
        // All branches are cancel-safe: unfinished items remain in their streams, and writes continue.
        let pass = tokio::select! {
            updates = watches.next(store.index_mut()) => {
                let Some(updates) = updates else { return };
                for update in updates {
                    store.update(update);
                    tokio::task::coop::consume_budget().await;
                }
                store.publish(&mut watches);
                // Nothing is planned before all first lists are complete.
                if store.is_complete() {
                    schedule.changed(Instant::now());
                }
                continue;
            }
            batch = revisions.next() => {
                let Some(batch) = batch else { return };
                for (change, is_cluster) in batch {
                    store.update_revisions(change, is_cluster);
                }
                if store.is_complete() {
                    schedule.changed(Instant::now());
                }
                continue;
            }
            Some((dry_run, verdict)) = answers.next() => {
                let now = Instant::now();
                store.dry_runs.record_verdict(&dry_run.name, &dry_run.revision, verdict, now);
                schedule.changed(now);
                continue;
            }
            Some((profile, read)) = reads.next() => {
                let now = Instant::now();
                match store.apply_read(&profile, read) {
                    Ok(true) => {
                        store.publish(&mut watches);
                        schedule.changed(now);
                    }
                    Ok(false) => {}
                    Err(error) => {
                        let error = chain(&error);
                        warn!(profile = %profile.name, error, "the profile could not be read again; trying again");
                        schedule.failed(now);
                    }
                }
                continue;
            }
            covered = next_coverage(&mut coverage) => {
                store.coverage = Ok(covered);
                if store.is_complete() {
                    schedule.changed(Instant::now());
                }
                continue;
            }
            () = pass_due, if !is_writing => {
                let start = Instant::now();
                if schedule.start_pass(store.namespaces_changed(), start) {
                    store.reset_counts();
                }
                for profile in store.take_readable(MAX_READS) {
                    // Sending cannot fail, since this task owns the receiver.
                    let _ = to_read.unbounded_send(profile);
                }
                Pass { start, planning: Duration::ZERO, rounds: 0, failed: HashSet::new(), is_outdated: false }
            }
            result = written, if is_writing => {
                let Some((mut pass, _)) = round.take() else { continue };
                for (profile, result) in result {
                    pass.apply(&mut store, &profile, result);
                }
                pass
            }
        };
        match pass.next_round(&mut store, &writer, &dry_runs, settings.planning()) {
            Ok(next) => round = Some(next),
            Err((pass, result)) => {
                schedule.end_pass(result, pass.planning, Instant::now());
                if let Some(at) = store.dry_runs.next_after(pass.start) {
                    schedule.schedule_by(at);
                }
                metrics.rejected.set(i64::try_from(store.rejected()).unwrap_or(i64::MAX));
                if let Some(followed) = &settings.followed {
                    send_if_new(followed, Some(store.followed(settings.limits)));
                }
                if let Ok(channels) = &settings.safety_net {
                    send_if_new(&channels.opted_in, Some(store.opted_in()));
                }
            }
        }
    }
}

fn send_if_new<T: PartialEq>(sender: &watch::Sender<T>, now: T) {
    sender.send_if_modified(|known| {
        let differs = *known != now;
        *known = now;
        differs
    });
}

/// Waits for the next coverage of the safety net. Waits forever if there is no safety net.
async fn next_coverage(coverage: &mut Option<watch::Receiver<Coverage>>) -> Coverage {
    if let Some(receiver) = coverage
        && receiver.changed().await.is_ok()
    {
        return receiver.borrow_and_update().clone();
    }
    std::future::pending().await
}

impl RevisionStore {
    /// Applies a profile that was read again. Returns false if the profile was deleted or changed meanwhile: the watch
    /// delivers the deletion or the change.
    fn apply_read(
        &mut self,
        profile: &Arc<StoredProfile>,
        read: kube::Result<Option<StoredProfile>>,
    ) -> kube::Result<bool> {
        match read {
            Ok(Some(stored)) if self.index().is_latest(profile) => {
                self.update(Update::Namespaced(Change::Applied(stored)));
                Ok(true)
            }
            Ok(_) => Ok(false),
            Err(error) => {
                self.index_mut().not_read(profile.name.clone());
                Err(error)
            }
        }
    }
}

/// Reads again a namespaced profile that waited for memory. Returns the profile as it was observed, and the result:
/// `None` if it was deleted meanwhile.
async fn read_again(
    client: &Client,
    profile: Arc<StoredProfile>,
) -> (Arc<StoredProfile>, kube::Result<Option<StoredProfile>>) {
    let read = profile_status::api(client, &profile.name).get_opt(&profile.name.name).await;
    (profile, read.map(|found| found.map(|object| read_profile(object, true))))
}

/// The running writes of one round. They return each observed profile with its result.
type Writes = BoxFuture<'static, Vec<(Arc<StoredProfile>, ActionResult)>>;

/// A pass over all profiles: a few rounds of plans and their writes. A failure for one profile is not retried in the
/// same pass, and does not block others.
struct Pass {
    start: Instant,
    /// How long the plans of all rounds took.
    planning: Duration,
    rounds: usize,
    failed: HashSet<ProfileName>,
    /// Whether some profile had changed before it was written.
    is_outdated: bool,
}

impl Pass {
    /// Plans all profiles and starts the writes.
    ///
    /// # Errors
    /// The pass is over. Returns the pass and its result.
    fn next_round(
        mut self,
        store: &mut RevisionStore,
        writer: &Writer,
        dry_runs: &UnboundedSender<DryRunRequest>,
        settings: PlanSettings,
    ) -> Result<(Self, Writes), (Self, PassResult)> {
        let result = if self.failed.is_empty() { PassResult::Complete } else { PassResult::Failed };
        if self.is_outdated || self.rounds == ROUNDS {
            // The next pass does the remaining work.
            return Err((self, result.max(PassResult::Incomplete)));
        }
        self.rounds += 1;
        let start = Instant::now();
        store.remove_stale();
        let all: Vec<_> =
            store.index().stored().filter(|stored| !self.failed.contains(&stored.name)).cloned().collect();
        let mut work = Vec::new();
        for profile in all {
            // Isolate a panic over one profile. It would end leadership, and the next leader would read the same
            // profile.
            let decided = guarded(&format_args!("the plan of {}", profile.name), || decide(store, &profile, settings));
            if let Ok(Some((plan, revision))) = decided {
                work.push((profile, plan, revision));
            }
        }
        store.end_counting();
        self.planning += start.elapsed();
        for dry_run in store.due_dry_runs.drain(..) {
            // Sending cannot fail, since this task owns the receiver.
            let _ = dry_runs.unbounded_send(dry_run);
        }
        if work.is_empty() {
            return Err((self, result));
        }
        store.start_writes();
        let writer = writer.clone();
        let results = stream::iter(work).map(move |(profile, plan, revision)| {
            let writer = writer.clone();
            async move {
                let result = writer.act(&profile, plan, revision).await;
                (profile, result)
            }
        });
        Ok((self, results.buffer_unordered(CONCURRENT_WRITES).collect().boxed()))
    }

    /// Applies the result of a write before the watch delivers it.
    fn apply(&mut self, store: &mut RevisionStore, profile: &Arc<StoredProfile>, result: ActionResult) {
        match result {
            ActionResult::Created(metadata) => store.add_created(*metadata),
            ActionResult::Written { metadata, status, deleted, failed } => {
                for revision in deleted {
                    store.remove_revision(&profile.name, &revision);
                }
                if failed {
                    self.failed.insert(profile.name.clone());
                }
                store.index_mut().set_status(profile, metadata.resource_version, *status);
            }
            ActionResult::Outdated => self.is_outdated = true,
            ActionResult::Failed => {
                self.failed.insert(profile.name.clone());
            }
            ActionResult::Nothing => {}
        }
    }
}

/// Returns the plan for a profile, with the revision to create, and adds a due dry run to the store. Returns `None` if
/// there is nothing to write, or if the current generation is not compiled yet.
pub(super) fn decide(
    store: &mut RevisionStore,
    profile: &StoredProfile,
    settings: PlanSettings,
) -> Option<(Plan, Option<RevisionSpec>)> {
    let name = &profile.name;
    let namespaces = store.count(name);
    let existing = store.existing(name, &profile.uid);
    let observed = store.observe(profile, &existing, namespaces)?;
    let plan = plan(&observed, settings);
    let accepted = observed.accepted.as_ref().filter(|_| plan.create).map(|accepted| accepted.revision.clone());
    let revision = match accepted {
        None => None,
        Some(accepted) => {
            let kept = guarded(&format_args!("the revision of {name}"), || {
                let whole = store.index().accepted_text(name);
                whole.map(|(whole, source)| whole.to_revision(name, profile.generation, Some(&source)))
            });
            match kept.unwrap_or_else(|panicked| Some(Err(panicked.diagnostic())))? {
                Ok(kept) if *kept.revision != *accepted => {
                    // The accepted hash is from another build, which serializes the spec differently, and that revision
                    // no longer exists. Use this build's hash instead.
                    store.forget_alias(name);
                    return decide(store, profile, settings);
                }
                Ok(kept) => Some(kept),
                Err(fault) => {
                    store.set_unstorable(name.clone(), accepted, fault);
                    // The status reports the error, without a new revision.
                    return decide(store, profile, settings);
                }
            }
        }
    };
    if let Some(accepted) = observed.accepted.as_ref().filter(|_| plan.dry_run)
        && let Some(good) = store.index().state(name).and_then(|state| state.good).cloned()
        && let Some(dry_run) = store.dry_runs.begin(name, &accepted.revision, &good, Instant::now())
    {
        store.due_dry_runs.push(dry_run);
    }
    let is_idle = plan.status.is_none() && plan.delete.is_empty() && revision.is_none();
    (!is_idle).then_some((plan, revision))
}

/// Runs the dry run of a revision.
async fn send_dry_run(pod_templates: &Api<DynamicObject>, dry_run: DryRunRequest) -> (DryRunRequest, Verdict) {
    let name = &dry_run.name;
    let applied = guarded(&format_args!("the dry run of {name}"), || pod_template(&dry_run.profile));
    let answer = match applied {
        Err(panicked) => Verdict::NotApplicable(panicked.to_string()),
        Ok(Err(answer)) => answer,
        Ok(Ok(object)) => {
            let parameters = PostParams { dry_run: true, field_manager: Some(FIELD_MANAGER.to_owned()) };
            match timeout(DRY_RUN_TIMEOUT, pod_templates.create(&parameters, &object)).await {
                Ok(answer) => verdict(answer.map(drop)),
                Err(_) => Verdict::NotRequested(format!("no response within {} s", DRY_RUN_TIMEOUT.as_secs())),
            }
        }
    };
    if let Verdict::NotRequested(error) = &answer {
        warn!(profile = %name, revision = %dry_run.revision, error, "the dry run of a revision got no response; trying again");
    }
    (dry_run, answer)
}

/// Writes revisions and the status of profiles, and records Events.
#[derive(Clone)]
struct Writer {
    client: Client,
    metrics: Metrics,
    events: Arc<EventRecorder>,
}

impl Writer {
    async fn act(&self, profile: &StoredProfile, plan: Plan, revision: Option<RevisionSpec>) -> ActionResult {
        let name = &profile.name;
        if let Some(revision) = revision {
            return match self.create(profile, revision).await {
                Ok(Some(metadata)) => ActionResult::Created(Box::new(metadata)),
                Ok(None) => ActionResult::Failed,
                Err(error) => {
                    let error = chain(&error);
                    warn!(profile = %name, error, "the revision could not be created; trying again");
                    ActionResult::Failed
                }
            };
        }
        let Plan { status, events, delete, .. } = plan;
        let (metadata, status) = match status {
            None => (
                ObjectMeta { resource_version: profile.resource_version.clone(), ..ObjectMeta::default() },
                profile.status.clone(),
            ),
            Some(status) => match self.publish(profile, status).await {
                Ok((metadata, status)) => {
                    self.metrics.write("written").inc();
                    (metadata, status)
                }
                Err(kube::Error::Api(answer)) if answer.code == 404 => return ActionResult::Nothing,
                Err(kube::Error::Api(answer)) if answer.code == 409 => {
                    self.metrics.write("conflict").inc();
                    return ActionResult::Outdated;
                }
                Err(error) => {
                    self.metrics.write("failed").inc();
                    let error = chain(&error);
                    warn!(profile = %name, error, "the status of the profile could not be written; trying again");
                    return ActionResult::Failed;
                }
            },
        };
        for event in events {
            let (_, reason, _, note) = event.parts();
            info!(profile = %name, reason, note, "recording an event");
            if !self.events.record(name, &profile.uid, event).await {
                self.metrics.events_dropped.inc();
            }
        }
        let (mut deleted, mut failed) = (Vec::new(), false);
        for revision in delete {
            match self.delete(name, &revision).await {
                Ok(()) => {
                    self.metrics.deleted.inc();
                    deleted.push(revision);
                }
                Err(error) => {
                    failed = true;
                    let error = chain(&error);
                    warn!(profile = %name, %revision, error, "an expired revision could not be deleted");
                }
            }
        }
        ActionResult::Written { metadata: Box::new(metadata), status: Box::new(status), deleted, failed }
    }

    /// Creates a revision. Returns `None` if the creation must be retried.
    async fn create(&self, profile: &StoredProfile, spec: RevisionSpec) -> kube::Result<Option<ObjectMeta>> {
        let name = &profile.name;
        let object = object_name(&name.name, &spec.revision);
        let mut labels = BTreeMap::from([(PROFILE_LABEL.to_owned(), label_value(&name.name))]);
        if spec.bounds == RevisionBounds::Parent {
            labels.insert(BOUNDS_LABEL.to_owned(), BOUNDED_BY_PARENT.to_owned());
        }
        let metadata = ObjectMeta {
            name: Some(object.clone()),
            namespace: name.namespace.as_deref().map(str::to_owned),
            labels: Some(labels),
            owner_references: Some(vec![OwnerReference {
                api_version: API_VERSION.to_owned(),
                kind: kind(name).to_owned(),
                name: name.name.to_string(),
                uid: profile.uid.to_string(),
                controller: Some(true),
                block_owner_deletion: None,
            }]),
            ..ObjectMeta::default()
        };
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let (api, resource) = self.revisions(name);
        let body = DynamicObject::new(&object, &resource).data(json!({"spec": spec}));
        let body = DynamicObject { metadata, ..body };
        match api.create(&parameters, &body).await {
            Ok(created) => {
                self.metrics.created.inc();
                info!(profile = %name, revision = %spec.revision, "a generation is accepted");
                Ok(Some(created.metadata))
            }
            Err(kube::Error::Api(answer)) if answer.code == 409 => {
                let Some(there) = api.get_metadata_opt(&object).await? else { return Ok(None) };
                let owners = there.metadata.owner_references.iter().flatten();
                if owners.into_iter().any(|owner| *owner.uid == *profile.uid) {
                    // The name contains the hash of the spec, so the existing object is the same revision.
                    return Ok(Some(there.metadata));
                }
                // The revision belongs to a deleted profile of this name, and Kubernetes would delete it anyway.
                let preconditions = Preconditions { uid: there.metadata.uid, resource_version: None };
                let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                let _ = api.delete(&object, &parameters).await?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the status, and returns the new metadata and status. Fails with a conflict if the profile has changed
    /// since it was observed.
    async fn publish(
        &self,
        profile: &StoredProfile,
        mut status: ProfileStatus,
    ) -> kube::Result<(ObjectMeta, ProfileStatus)> {
        let now = Timestamp::now();
        for condition in &mut status.conditions {
            if condition.last_transition_time.0 == Timestamp::UNIX_EPOCH {
                condition.last_transition_time = Time(now);
            }
        }
        let guard = ("resourceVersion", profile.resource_version.as_deref());
        let mut written =
            profile_status::apply(&self.client, &profile.name, FIELD_MANAGER, guard, json!(status)).await?;
        let status = written.data.get_mut("status").map_or(serde_json::Value::Null, serde_json::Value::take);
        Ok((written.metadata, serde_json::from_value(status).unwrap_or_default()))
    }

    async fn delete(&self, name: &ProfileName, revision: &str) -> kube::Result<()> {
        let (api, _) = self.revisions(name);
        match api.delete(&object_name(&name.name, revision), &DeleteParams::default()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn revisions(&self, name: &ProfileName) -> (Api<DynamicObject>, ApiResource) {
        profile_status::by_scope::<ClusterProfileRevision, ProfileRevision>(&self.client, name)
    }
}

impl ProfileEvent {
    /// Returns the type, the reason, the action and the note of the Event.
    fn parts(&self) -> profile_event::Parts<'_> {
        match self {
            Self::Rejected(note) => (EventType::Warning, "Rejected", "Accept", note),
            Self::Published(note) => (EventType::Normal, "Published", "Publish", note),
            Self::RolledBack(note) => (EventType::Normal, "RolledBack", "Publish", note),
            Self::Invalid(note) => (EventType::Warning, "Invalid", "DryRun", note),
        }
    }
}

/// Records Events within a budget.
struct EventRecorder {
    client: Client,
    budget: Mutex<Budget>,
}

impl EventRecorder {
    fn new(client: &Client) -> Self {
        Self { client: client.clone(), budget: Mutex::default() }
    }

    /// Records an Event if the budget permits. Returns whether it was recorded.
    async fn record(&self, name: &ProfileName, uid: &str, event: ProfileEvent) -> bool {
        if !self.budget.lock().await.take(name.namespace.as_deref(), Instant::now()) {
            return false;
        }
        match profile_event::record(&self.client, name, Some(uid.to_owned()), event.parts()).await {
            Ok(()) => true,
            Err(error) => {
                let error = chain(&error);
                warn!(profile = %name, error, "an event could not be recorded");
                false
            }
        }
    }
}
