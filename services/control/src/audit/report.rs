//! Collects the findings of the audit, for the metrics, the table of `pillion status` and the condition of each
//! profile.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use pillion_engine::audit::MatchState;
use pillion_engine::profile::CompiledProfile;
use pillion_engine::snapshot::{Namespace, Snapshot};

use super::cause::{Cause, Circumstances, State, cause};
use super::facts::ClusterFacts;
use super::pod::{PodEntry, ProfileVerdict, RecordedProfiles};

/// Maximum number of namespaces, and of profiles, whose ages a report requests.
const MAX_AGES: usize = 64;

/// Number of pods by result. Each pod is counted once, in the first field that applies to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodCounts {
    /// A profile is missing.
    pub missing: u64,
    /// The record lists an outdated revision of a profile.
    pub outdated: u64,
    /// A profile is orphaned.
    pub orphaned: u64,
    /// The whole pod was not read yet.
    pub pending: u64,
    /// It is unknown whether a profile matches: for example, the pod lacks data that the profile reads, or a lookup
    /// failed.
    pub undecided: u64,
    /// All matching profiles are injected.
    pub injected: u64,
    /// The pod author opted out.
    pub opted_out: u64,
    /// No profile matches.
    pub not_requested: u64,
}

/// Number of pods of one profile, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProfileAudit {
    /// The expected revision is injected or, during a rollout, the newest one.
    pub injected: u64,
    /// The profile matches but is missing.
    pub missing: u64,
    /// A revision other than the expected one is injected.
    pub outdated: u64,
    /// The record lists the profile, but the profile was deleted or does not match. Pods with its newest revision are
    /// not counted.
    pub orphaned: u64,
    /// It is unknown whether the profile matches: for example, the whole pod was not read yet, or a lookup failed.
    pub undecided: u64,
}

/// The results of a namespace's pods. Each result is about one pod and one profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceAudit {
    /// Number of findings by state, in the order of [`State::ALL`].
    pub findings: [u64; State::ALL.len()],
    /// The expected revision is injected or, during a rollout, the newest one.
    pub injected: u64,
    /// The pod author opted out, or it is unknown whether the profile matches: for example, the whole pod was not read
    /// yet.
    pub skipped: u64,
    /// A hash of all findings. If it is the same in two reports of this process, the findings are the same.
    pub digest: u64,
}

impl NamespaceAudit {
    /// Number of findings.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.findings.iter().sum()
    }
}

/// A pod that differs from a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Namespace of the pod.
    pub namespace: Box<str>,
    /// Name of the pod.
    pub pod: Box<str>,
    /// The pod's controller, such as `ReplicaSet/web-7c9d6f5b8`; `None` without one.
    pub owner: Option<Box<str>>,
    /// The profile's display name.
    pub profile: Box<str>,
    /// The kind of difference.
    pub state: State,
    /// The most likely cause.
    pub cause: Cause,
    /// The expected revision; `None` if the profile is orphaned.
    pub want: Option<Box<str>>,
    /// The recorded revision; `None` if the profile is missing.
    pub has: Option<Box<str>>,
}

/// The result of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Whether all pods were listed. Some may not be judged yet.
    pub is_listed: bool,
    /// Whether all pods were listed and judged.
    pub is_complete: bool,
    /// Number of pods of opted-in namespaces, by result.
    pub pods: PodCounts,
    /// Number of findings by state and cause, in the order of [`State::ALL`] and [`Cause::ALL`].
    pub counts: [[u64; Cause::ALL.len()]; State::ALL.len()],
    /// The results by namespace. A namespace whose pods have no results is left out.
    pub namespaces: BTreeMap<Box<str>, NamespaceAudit>,
    /// Number of pods by profile, for all active profiles and all profiles in findings.
    pub profiles: BTreeMap<Box<str>, ProfileAudit>,
    /// The first findings, sorted by namespace and pod.
    pub findings: Vec<Finding>,
    /// Namespaces whose ages are needed to explain findings.
    pub asked_namespaces: BTreeSet<Box<str>>,
    /// Profiles whose ages are needed to explain findings.
    pub asked_profiles: BTreeSet<Box<str>>,
}

impl Report {
    /// Number of findings.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().flatten().sum()
    }

    /// Number of findings with this state and cause.
    #[must_use]
    pub fn count(&self, state: State, cause: Cause) -> u64 {
        self.counts.get(state as usize).and_then(|counts| counts.get(cause as usize)).copied().unwrap_or_default()
    }
}

/// A profile's display name, the difference, the expected revision, and the recorded revision.
type Wrong = (Box<str>, State, Option<Box<str>>, Option<Box<str>>);

/// The comparison of a pod's verdict with its record.
#[derive(Clone, Debug, Default)]
struct Comparison {
    wrong: Vec<Wrong>,
    right: Vec<Box<str>>,
    undecided: Vec<Box<str>>,
    is_pending: bool,
    opted_out: u64,
}

impl Comparison {
    /// Adds the results of a pod to those of its namespace.
    fn add_to(&self, namespace: &mut NamespaceAudit) {
        let count = |results: &[Box<str>]| u64::try_from(results.len()).unwrap_or(u64::MAX);
        namespace.injected += count(&self.right);
        namespace.skipped += count(&self.undecided) + self.opted_out;
        for (_, state, ..) in &self.wrong {
            if let Some(count) = namespace.findings.get_mut(*state as usize) {
                *count += 1;
            }
        }
    }

    /// Whether the comparison has no result for any profile.
    fn is_empty(&self) -> bool {
        self.wrong.is_empty() && self.right.is_empty() && self.undecided.is_empty() && self.opted_out == 0
    }
}

/// Builds a report, pod by pod.
pub(super) struct Reporter<'a> {
    facts: &'a ClusterFacts,
    /// The newest revision of each profile, by display name.
    active: HashMap<&'a str, &'a Arc<CompiledProfile>>,
    /// The promoted revisions of profiles in a rollout, by display name.
    promoted: HashMap<&'a str, &'a str>,
    /// The comparison for each pair of verdict and record, and the number of pods that share the pair.
    compared: HashMap<(*const Vec<ProfileVerdict>, *const RecordedProfiles), (Comparison, u64)>,
    most: usize,
    report: Report,
}

impl<'a> Reporter<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, facts: &'a ClusterFacts, most: usize) -> Self {
        let active: HashMap<_, _> =
            snapshot.profiles().iter().map(|profile| (profile.display_name(), profile)).collect();
        let is_promoted = |profile: &&Arc<CompiledProfile>| {
            active.get(profile.display_name()).is_some_and(|newest| newest.revision() != profile.revision())
        };
        let promoted = snapshot.profiles().active().filter(is_promoted);
        let promoted = promoted.map(|profile| (profile.display_name(), profile.revision())).collect();
        let profiles = active.keys().map(|name| ((*name).into(), ProfileAudit::default())).collect();
        let report = Report { profiles, ..Report::default() };
        Self { facts, active, promoted, compared: HashMap::new(), most, report }
    }

    /// Adds a pod of a namespace that was opted in at `since` or earlier.
    pub(super) fn add(&mut self, namespace: (&str, &Arc<Namespace>), since: i64, name: &str, pod: &PodEntry) {
        let key = (Arc::as_ptr(&pod.verdict), Arc::as_ptr(&pod.has));
        let (comparison, count) = self
            .compared
            .entry(key)
            .or_insert_with(|| (compare(&pod.verdict, &pod.has, &self.active, &self.promoted), 0));
        *count += 1;
        let pods = &mut self.report.pods;
        let has = |state| comparison.wrong.iter().any(|(_, found, ..)| *found == state);
        let count = match () {
            () if has(State::Missing) => &mut pods.missing,
            () if has(State::Outdated) => &mut pods.outdated,
            () if has(State::Orphaned) => &mut pods.orphaned,
            () if comparison.is_pending => &mut pods.pending,
            () if !comparison.undecided.is_empty() => &mut pods.undecided,
            () if !comparison.right.is_empty() => &mut pods.injected,
            () if comparison.opted_out > 0 => &mut pods.opted_out,
            () => &mut pods.not_requested,
        };
        *count += 1;
        if comparison.is_empty() {
            return;
        }
        if !self.report.namespaces.contains_key(namespace.0) {
            self.report.namespaces.insert(namespace.0.into(), NamespaceAudit::default());
        }
        if let Some(of_namespace) = self.report.namespaces.get_mut(namespace.0) {
            comparison.add_to(of_namespace);
        }
        let wrong = comparison.wrong.clone();
        if wrong.is_empty() {
            return;
        }
        let mut digest = DefaultHasher::new();
        for (profile, state, want, has) in wrong {
            let circumstances = self.circumstances(namespace, since, pod, &profile, state);
            let cause = cause(state, &circumstances);
            if let Some(count) =
                self.report.counts.get_mut(state as usize).and_then(|counts| counts.get_mut(cause as usize))
            {
                *count += 1;
            }
            (name, &pod.owner, &profile, state, cause, &want, &has).hash(&mut digest);
            if self.report.findings.len() < self.most {
                let owner = pod.owner.as_ref().map(|owner| owner.as_ref().clone());
                let (namespace, pod) = (namespace.0.into(), name.into());
                self.report.findings.push(Finding { namespace, pod, owner, profile, state, cause, want, has });
            }
        }
        if let Some(of_namespace) = self.report.namespaces.get_mut(namespace.0) {
            of_namespace.digest.hash(&mut digest);
            of_namespace.digest = digest.finish();
        }
    }

    fn circumstances(
        &mut self,
        (name, namespace): (&str, &Arc<Namespace>),
        since: i64,
        pod: &PodEntry,
        profile: &str,
        state: State,
    ) -> Circumstances {
        let active = self.active.get(profile);
        let mut circumstances = Circumstances {
            created: pod.created,
            is_recorded: pod.has.is_recorded,
            profile_gone: active.is_none(),
            not_called: self.facts.not_called(pod.created),
            ..Circumstances::default()
        };
        if state != State::Missing {
            return circumstances;
        }
        match self.facts.namespace(name, namespace) {
            Some(age) => {
                circumstances.opted_in = age.opted_in.map(|opted_in| opted_in.min(since));
                circumstances.namespace_changed = age.changed;
            }
            None if self.report.asked_namespaces.len() < MAX_AGES => {
                self.report.asked_namespaces.insert(name.into());
            }
            None => {}
        }
        match active.and_then(|active| self.facts.profile(profile, active.revision())) {
            Some(age) => {
                circumstances.profile_created = age.created;
                circumstances.profile_changed = age.changed;
            }
            None if self.report.asked_profiles.len() < MAX_AGES => {
                self.report.asked_profiles.insert(profile.into());
            }
            None => {}
        }
        circumstances
    }

    pub(super) fn finish(mut self, is_listed: bool, is_idle: bool) -> Report {
        for (comparison, count) in self.compared.into_values() {
            let profiles = &mut self.report.profiles;
            for profile in comparison.right {
                profiles.entry(profile).or_default().injected += count;
            }
            for profile in comparison.undecided {
                profiles.entry(profile).or_default().undecided += count;
            }
            for (profile, state, ..) in comparison.wrong {
                let of_profile = profiles.entry(profile).or_default();
                match state {
                    State::Missing => of_profile.missing += count,
                    State::Outdated => of_profile.outdated += count,
                    State::Orphaned => of_profile.orphaned += count,
                }
            }
        }
        Report { is_listed, is_complete: is_listed && is_idle, ..self.report }
    }
}

fn compare(
    verdict: &[ProfileVerdict],
    has: &RecordedProfiles,
    active: &HashMap<&str, &Arc<CompiledProfile>>,
    promoted: &HashMap<&str, &str>,
) -> Comparison {
    let mut comparison = Comparison::default();
    let is_newest =
        |profile: &str, revision: &str| active.get(profile).is_some_and(|active| active.revision() == revision);
    let is_promoted = |profile: &str, revision: &str| promoted.get(profile).is_some_and(|found| *found == revision);
    for ProfileVerdict { profile, revision, match_state, .. } in verdict {
        let profile = || profile.as_ref().clone();
        let revision: &str = revision;
        match (match_state, has.revision(&profile())) {
            (MatchState::Wanted, None) => {
                comparison.wrong.push((profile(), State::Missing, Some(revision.into()), None));
            }
            // During a rollout, a pod with the newest revision is not outdated, even if a new pod would get the
            // promoted one.
            (MatchState::Wanted, Some(there))
                if there != revision && !(is_newest(&profile(), there) && is_promoted(&profile(), revision)) =>
            {
                comparison.wrong.push((profile(), State::Outdated, Some(revision.into()), Some(there.into())));
            }
            (MatchState::Wanted, Some(_)) => comparison.right.push(profile()),
            (MatchState::Open | MatchState::Undecided | MatchState::NotLookedUp, _) => {
                comparison.is_pending |= *match_state == MatchState::Open;
                comparison.undecided.push(profile());
            }
            (MatchState::OptedOut, _) => comparison.opted_out += 1,
            (MatchState::NotWanted, _) => {}
        }
    }
    for (profile, there) in &has.profiles {
        let is_for = |judged: &&ProfileVerdict| {
            *judged.profile == *profile && !matches!(judged.match_state, MatchState::NotWanted | MatchState::OptedOut)
        };
        if verdict.iter().any(|judged| is_for(&judged)) {
            continue;
        }
        // A recorded profile with the newest revision is not orphaned: the webhook matched it, even if the stored pod
        // has changed since.
        if !is_newest(profile, there) {
            comparison.wrong.push((profile.clone(), State::Orphaned, None, Some(there.clone())));
        }
    }
    comparison
}
