//! Keeps the policy of the safety net and its binding in their desired state, or removes them.
//!
//! The policy follows the published revisions. Drift is corrected at once. If another client keeps changing the policy,
//! the pauses between corrections grow.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::stream::{self, BoxStream, StreamExt};
use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding};
use kube::Client;
use pillion_api::safety_net::{self as api, Settings};
use pillion_engine::native::safety_net::Covered;
use pillion_engine::snapshot::Snapshot;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use super::content::{Content, rejected};
use super::metrics::{NetState, SafetyNetMetrics};
use crate::admission_policy::{API_GROUP, PolicyObject, PolicyState, changes_of, is_supported};
use crate::client::{chain, owner_reference};
use crate::leader::LeaderContext;
use crate::revisions::{Coverage, OptedIn};
use crate::webhook_config::Live;

/// The resources of [`API_GROUP`] that the safety net needs.
const RESOURCES: [&str; 2] = ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"];

/// Maximum number of attempts to write the policy in one pass. Each attempt leaves out the profiles that the API server
/// has rejected.
const ATTEMPTS: usize = 8;

/// The pause after a failed deletion of the policy, while the safety net is disabled.
const RETRY: Duration = Duration::from_secs(30);

/// The settings of the safety net.
#[derive(Clone, Debug)]
pub struct NetSettings {
    /// The settings of the policy.
    pub policy: Settings,
    /// Time between two checks if nothing reports a change.
    pub recheck: Duration,
    /// Time between two checks for changes of the published profiles.
    pub poll: Duration,
    /// Minimum time between two corrections. The time doubles while corrections follow one another.
    pub first_pause: Duration,
    /// The longest time between two corrections.
    pub longest_pause: Duration,
}

impl NetSettings {
    /// Creates settings for this policy, with default times.
    #[must_use]
    pub const fn new(policy: Settings) -> Self {
        Self {
            policy,
            recheck: Duration::from_mins(1),
            poll: Duration::from_millis(500),
            first_pause: Duration::from_millis(200),
            longest_pause: Duration::from_secs(30),
        }
    }
}

/// Inputs from the leader's other tasks, and the output for the status of profiles.
#[derive(Debug)]
pub struct NetInputs {
    /// The published profiles.
    pub published: Arc<ArcSwap<Snapshot>>,
    /// The profiles that opt in; `None` until all profiles are known.
    pub opted_in: watch::Receiver<Option<Vec<OptedIn>>>,
    /// The webhook configurations.
    pub live: watch::Receiver<Option<Live>>,
    /// Whether the kill switch has disabled injection; `None` until that is known.
    pub off: watch::Receiver<Option<bool>>,
    /// Sends the coverage of the profiles that opt in.
    pub coverage: watch::Sender<Coverage>,
}

impl NetInputs {
    /// Returns whether the policy may inject: an administrator has disabled neither injection nor the webhooks. `None`
    /// until that is known.
    fn is_wanted(&mut self) -> Option<bool> {
        let off = *self.off.borrow_and_update();
        let is_disabled = self.live.borrow_and_update().as_ref().map(|live| live.disabled);
        match (off, is_disabled) {
            (Some(true), _) | (_, Some(true)) => Some(false),
            (Some(false), Some(false)) => Some(true),
            _ => None,
        }
    }

    /// Waits until an administrator disables injection or the webhooks.
    async fn switched_off(&mut self) {
        let mut off = (self.off.clone(), self.live.clone());
        while self.is_wanted() != Some(false) {
            let changed = tokio::select! {
                changed = off.0.changed() => changed,
                changed = off.1.changed() => changed,
            };
            if changed.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Waits until an input other than `published` changes. Returns false if a sender was dropped.
    async fn changed(&mut self) -> bool {
        let changed = tokio::select! {
            changed = self.opted_in.changed() => changed,
            changed = self.live.changed() => changed,
            changed = self.off.changed() => changed,
        };
        changed.is_ok()
    }
}

/// Waits until the published profiles differ from `seen`.
async fn republished(published: &ArcSwap<Snapshot>, seen: &Arc<Snapshot>, poll: Duration) {
    loop {
        tokio::time::sleep(poll).await;
        if !Arc::ptr_eq(seen, &published.load()) {
            return;
        }
    }
}

/// While this controller leads, keeps the policy in step with the published profiles. Removes it while it covers no
/// profile, or while injection or the webhooks are disabled.
pub async fn run(leading: LeaderContext, settings: NetSettings, inputs: NetInputs, metrics: SafetyNetMetrics) {
    let stop = leading.stop.clone();
    let keeper =
        Keeper { leading, settings, metrics, content: Content::default(), was_supported: None, written: Vec::new() };
    stop.run_until_cancelled(keeper.keep(inputs)).await;
}

struct Keeper {
    leading: LeaderContext,
    settings: NetSettings,
    metrics: SafetyNetMetrics,
    content: Content,
    was_supported: Option<bool>,
    /// The profiles in the policy as it was last written.
    written: Vec<Covered>,
}

impl Keeper {
    async fn keep(mut self, mut inputs: NetInputs) {
        let mut watched = changes(&self.leading.client, &self.settings.policy.name);
        let mut pause = self.settings.first_pause;
        let mut last_repair: Option<Instant> = None;
        loop {
            let published = inputs.published.load_full();
            let wanted = inputs.is_wanted();
            let opted_in = inputs.opted_in.borrow_and_update().clone();
            // The removal needs no profiles, so it is possible even if they cannot be read.
            let (state, repaired, coverage) = match (wanted, opted_in) {
                (Some(false), opted_in) => self.withdraw(&opted_in.unwrap_or_default()).await,
                (Some(true), Some(opted_in)) => self.pass(&mut inputs, &opted_in, &published).await,
                _ if inputs.changed().await => continue,
                _ => return,
            };
            let covered = coverage.values().filter(|covered| covered.is_ok()).count();
            self.metrics.state(state);
            self.metrics.profiles(covered, coverage.len() - covered);
            inputs.coverage.send_if_modified(|sent| {
                let differs = *sent != coverage;
                *sent = coverage;
                differs
            });
            let now = Instant::now();
            if repaired {
                pause = (pause * 2).min(self.settings.longest_pause);
                last_repair = Some(now);
            } else if last_repair.is_none_or(|repair| now.duration_since(repair) > self.settings.longest_pause) {
                pause = self.settings.first_pause;
            }
            let not_before = now + pause;
            let recheck =
                if state == NetState::Failing { pause.max(Duration::from_secs(1)) } else { self.settings.recheck };
            let profiles = Arc::clone(&inputs.published);
            tokio::select! {
                event = watched.next() => if event.is_none() { return },
                () = tokio::time::sleep(recheck) => {}
                () = republished(&profiles, &published, self.settings.poll) => {}
                is_open = inputs.changed() => if !is_open { return },
            }
            // If an administrator disables injection or the webhooks, the policy is deleted without this pause.
            tokio::select! {
                () = tokio::time::sleep_until(not_before) => {}
                () = inputs.switched_off(), if wanted != Some(false) => {}
            }
        }
    }

    /// Deletes the policy, because injection or the webhooks are disabled.
    async fn withdraw(&mut self, opted_in: &[OptedIn]) -> (NetState, bool, Coverage) {
        let coverage =
            opted_in.iter().map(|profile| (profile.name.clone(), Err("injection is disabled".to_owned()))).collect();
        match self.delete().await {
            Ok(deleted) => (NetState::Off, deleted, coverage),
            Err(error) => {
                warn!(error = chain(&error), "the policy of the safety net could not be deleted; trying again");
                (NetState::Failing, false, coverage)
            }
        }
    }

    /// Brings the policy into its desired state. Returns the state, whether a write was needed, and the coverage.
    async fn pass(
        &mut self,
        inputs: &mut NetInputs,
        opted_in: &[OptedIn],
        published: &Snapshot,
    ) -> (NetState, bool, Coverage) {
        let client = self.leading.client.clone();
        let everywhere = |why: &str| -> Coverage {
            opted_in.iter().map(|profile| (profile.name.clone(), Err(why.to_owned()))).collect()
        };
        match is_supported(&client, &RESOURCES).await {
            Ok(true) => self.was_supported = Some(true),
            Ok(false) => {
                if self.was_supported != Some(false) && !opted_in.is_empty() {
                    warn!(
                        group = API_GROUP,
                        "this API server does not serve MutatingAdmissionPolicy v1, which Kubernetes has since 1.36: \
                         the safety net covers no profile, so pods of enabled namespaces run without their sidecar \
                         while Pillion is unavailable"
                    );
                    self.was_supported = Some(false);
                }
                let why = "the API server does not support MutatingAdmissionPolicy v1, which Kubernetes has since 1.36";
                return (NetState::Unsupported, false, everywhere(why));
            }
            Err(error) => {
                warn!(error = chain(&error), "cannot find out whether the API server supports mutating policies");
                return (NetState::Failing, false, everywhere("the API server is unavailable"));
            }
        }
        // A profile whose revision cannot be read is left out, so that its earlier revision is not added any longer.
        let updated = self.content.update(&client, opted_in).await;
        if let Err(error) = &updated {
            warn!(error = chain(error), "a revision for the safety net could not be read; trying again");
        }
        let mut repaired = false;
        for _ in 0..ATTEMPTS {
            let (covered, coverage) = self.content.convert(published.profiles(), &self.settings.policy.opt_in);
            match self.content.check(&client, self.leading.release.namespace(), &covered).await {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    warn!(error = chain(&error), "the additions of the safety net could not be checked");
                    return (NetState::Failing, repaired, everywhere("its additions could not be checked"));
                }
            }
            // The kill switch may have been set, or the release uninstalled, since this pass began.
            if inputs.is_wanted() != Some(true) {
                return self.withdraw(opted_in).await;
            }
            let written = if covered.is_empty() { self.delete().await } else { self.write(&covered).await };
            match written {
                Ok(wrote) => {
                    let state = match (&updated, covered.is_empty()) {
                        (Err(_), _) => NetState::Failing,
                        (Ok(()), false) => NetState::InPlace,
                        (Ok(()), true) => NetState::Off,
                    };
                    return (state, repaired || wrote, coverage);
                }
                Err(kube::Error::Api(status)) if !rejected(&covered, &status).is_empty() => {
                    repaired = true;
                    for (profile, why) in rejected(&covered, &status) {
                        warn!(profile = %profile.name, error = why, "the API server rejects the profile's policy");
                        self.content.reject(profile, why);
                    }
                }
                Err(error) => {
                    warn!(error = chain(&error), "the policy of the safety net could not be written");
                    return (NetState::Failing, true, everywhere("the policy could not be written"));
                }
            }
        }
        (NetState::Failing, true, everywhere("the policy could not be written"))
    }

    /// Writes the policy, then its binding. Returns whether a write was needed.
    async fn write(&mut self, covered: &[Covered]) -> kube::Result<bool> {
        let LeaderContext { client, release, .. } = &self.leading;
        let owner = owner_reference::for_namespace(client, release).await;
        let mut wrote = false;
        // A binding without its policy has no effect, and neither has a policy without its binding.
        for object in objects(client, &self.settings.policy, covered)? {
            let found = object.put(owner.as_ref()).await?;
            if found != PolicyState::InDesiredState {
                wrote = true;
                if found == PolicyState::Different && self.written == covered {
                    self.metrics.repaired();
                }
                let (kind, name) = (object.kind, &object.name);
                info!(kind, name, ?found, profiles = covered.len(), "the safety net was written");
            }
        }
        self.written = covered.to_vec();
        Ok(wrote)
    }

    /// Deletes the binding and the policy. Returns whether any existed.
    async fn delete(&mut self) -> kube::Result<bool> {
        self.written = Vec::new();
        let deleted = remove(&self.leading.client, &self.settings.policy).await?;
        if deleted {
            info!(name = self.settings.policy.name, "the policy of the safety net was deleted");
        }
        Ok(deleted)
    }
}

/// Returns the policy and its binding.
fn objects(client: &Client, settings: &Settings, covered: &[Covered]) -> kube::Result<[PolicyObject; 2]> {
    let variables = covered.iter().flat_map(|profile| profile.variables.iter().cloned());
    let mutations = covered.iter().map(|profile| profile.mutation.clone());
    let policy = api::policy(settings, variables, mutations);
    let serialized = |error| kube::Error::SerdeError(error);
    Ok([
        PolicyObject::new(client, &policy, "MutatingAdmissionPolicy").map_err(serialized)?,
        PolicyObject::new(client, &api::binding(settings), "MutatingAdmissionPolicyBinding").map_err(serialized)?,
    ])
}

/// Deletes the policy of a release and its binding. Returns whether any existed.
///
/// # Errors
/// The API server is unavailable or denies the request.
pub async fn remove(client: &Client, settings: &Settings) -> kube::Result<bool> {
    if !is_supported(client, &RESOURCES).await? {
        return Ok(false);
    }
    let mut removed = false;
    for object in objects(client, settings, &[])?.iter().rev() {
        removed |= object.delete().await? != PolicyState::InDesiredState;
    }
    Ok(removed)
}

/// While the safety net is disabled and this controller leads: deletes a policy that was created while the safety net
/// was enabled.
pub async fn run_disabled(leading: LeaderContext, settings: Settings) {
    let LeaderContext { client, stop, .. } = leading;
    let removal = async {
        loop {
            match remove(&client, &settings).await {
                Ok(false) => return,
                Ok(true) => {
                    info!(name = settings.name, "the policy of the safety net was deleted, because it is disabled");
                    return;
                }
                Err(error) => {
                    warn!(error = chain(&error), "the policy of the disabled safety net could not be deleted");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    };
    stop.run_until_cancelled(removal).await;
    stop.cancelled().await;
}

fn changes(client: &Client, name: &str) -> BoxStream<'static, ()> {
    stream::select_all([
        changes_of::<MutatingAdmissionPolicy>(client, name),
        changes_of::<MutatingAdmissionPolicyBinding>(client, name),
    ])
    .boxed()
}
