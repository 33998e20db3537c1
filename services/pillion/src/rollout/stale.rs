//! Groups the audit's findings by workload.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use kube::Client;
use kube::api::DynamicObject;
use pillion_control::audit::{Cause, Finding, State};
use pillion_engine::audit::{self, Injected};
use pillion_json::OwnedTape;

use crate::workload::{Owners, Workload};

/// A workload whose pods differ from their profiles.
#[derive(Clone, Debug)]
pub(super) struct Stale {
    /// The workload.
    pub(super) workload: Workload,
    /// The number of pods.
    pub(super) pods: usize,
    /// The differences, by profile.
    pub(super) profiles: BTreeMap<Box<str>, Wrong>,
}

/// The difference between pods and a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    /// The first state that was found.
    pub(super) state: State,
    /// The causes.
    pub(super) causes: BTreeSet<Cause>,
    /// The expected revisions; empty if the profile should not be there.
    pub(super) want: BTreeSet<Box<str>>,
    /// The revisions of the pods.
    pub(super) has: BTreeSet<Box<str>>,
}

impl Stale {
    /// Returns the reason if new pods would have the same differences.
    pub(super) fn is_in_vain(&self) -> Option<&'static str> {
        self.profiles.values().all(Wrong::is_left_out).then_some(
            "the webhook has seen its pods and left the profile out, and would again: pillion explain says why",
        )
    }

    /// Returns the remaining difference of a new pod, such as `as profile nginx says: it does not have it`.
    ///
    /// # Errors
    /// The pod cannot be read.
    pub(super) fn is_wrong_with(&self, pod: &DynamicObject) -> anyhow::Result<Option<String>> {
        let text = serde_json::to_string(pod).context("a pod cannot be written")?;
        let tape = OwnedTape::parse(text).context("a pod cannot be read")?;
        Ok(self.is_wrong(&audit::read(tape.root()).injected))
    }

    fn is_wrong(&self, injected: &Injected) -> Option<String> {
        // The webhook would skip the profile again, so this is no reason for a restart.
        self.profiles.iter().filter(|(_, wrong)| !wrong.is_left_out()).find_map(|(profile, wrong)| {
            let has = match injected {
                Injected::Profiles(all) => all.iter().find(|(name, _)| name == profile).map(|(_, revision)| revision),
                Injected::Nothing | Injected::Foreign => None,
            };
            let is_right = match has {
                Some(revision) => wrong.want.contains(revision),
                None => wrong.want.is_empty(),
            };
            (!is_right).then(|| {
                let has = has.map_or_else(|| "does not have it".to_owned(), |revision| format!("has it at {revision}"));
                format!("as profile {profile} says: it {has}")
            })
        })
    }
}

impl Wrong {
    /// Whether the webhook decided about the pods and skipped the profile.
    fn is_left_out(&self) -> bool {
        self.causes.iter().all(|cause| *cause == Cause::LeftOut)
    }
}

/// Groups findings by workload, in the order of namespaces and names.
pub(super) async fn by_workload(
    client: &Client,
    findings: impl Iterator<Item = Finding>,
) -> anyhow::Result<Vec<Stale>> {
    let mut owners = Owners::new(client.clone());
    let mut grouped: BTreeMap<Workload, Vec<Finding>> = BTreeMap::new();
    for finding in findings {
        let owner = finding.owner.as_deref().and_then(|owner| owner.split_once('/'));
        let workload = owners.workload(&finding.namespace, &finding.pod, owner).await;
        let about = || format!("cannot tell whose pod {}/{} is", finding.namespace, finding.pod);
        grouped.entry(workload.with_context(about)?).or_default().push(finding);
    }
    Ok(grouped.into_iter().map(|(workload, findings)| of(workload, findings)).collect())
}

fn of(workload: Workload, findings: Vec<Finding>) -> Stale {
    let pods: BTreeSet<_> = findings.iter().map(|finding| finding.pod.clone()).collect();
    let mut profiles: BTreeMap<Box<str>, Wrong> = BTreeMap::new();
    for Finding { profile, state, cause, want, has, .. } in findings {
        let empty = || Wrong { state, causes: BTreeSet::new(), want: BTreeSet::new(), has: BTreeSet::new() };
        let wrong = profiles.entry(profile).or_insert_with(empty);
        wrong.causes.insert(cause);
        wrong.want.extend(want);
        wrong.has.extend(has);
    }
    Stale { workload, pods: pods.len(), profiles }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(pod: &str, profile: &str, state: State, cause: Cause) -> Finding {
        Finding {
            namespace: "shop".into(),
            pod: pod.into(),
            owner: None,
            profile: profile.into(),
            state,
            cause,
            want: (state != State::Surplus).then(|| "new".into()),
            has: (state != State::Missing).then(|| "old".into()),
        }
    }

    fn stale(findings: Vec<Finding>) -> Stale {
        of(Workload::new("shop", "Deployment", "web"), findings)
    }

    #[test]
    fn pods_are_counted_once_and_profiles_told_each() {
        let stale = stale(vec![
            finding("a", "nginx", State::Outdated, Cause::ProfileChanged),
            finding("a", "otel", State::Missing, Cause::WebhookAway),
            finding("b", "nginx", State::Outdated, Cause::ProfileChanged),
        ]);
        assert_eq!(stale.pods, 2);
        assert_eq!(stale.profiles.keys().map(|name| &**name).collect::<Vec<_>>(), ["nginx", "otel"]);
        let nginx = &stale.profiles["nginx"];
        assert_eq!(
            (nginx.state, &nginx.want, &nginx.has),
            (State::Outdated, &["new".into()].into(), &["old".into()].into())
        );
        assert_eq!(stale.is_in_vain(), None);
    }

    #[test]
    fn a_new_pod_is_measured_by_what_a_restart_can_mend() {
        let stale = stale(vec![
            finding("a", "nginx", State::Outdated, Cause::ProfileChanged),
            finding("a", "otel", State::Missing, Cause::LeftOut),
            finding("a", "old", State::Surplus, Cause::ProfileChanged),
        ]);
        let profiles = |all: &[(&str, &str)]| {
            Injected::Profiles(all.iter().map(|(name, revision)| ((*name).into(), (*revision).into())).collect())
        };
        assert_eq!(stale.is_wrong(&profiles(&[("nginx", "new")])), None);
        for (has, told) in [
            (Injected::Nothing, "as profile nginx says: it does not have it"),
            (Injected::Foreign, "as profile nginx says: it does not have it"),
            (profiles(&[("nginx", "old")]), "as profile nginx says: it has it at old"),
            (profiles(&[("nginx", "new"), ("old", "r")]), "as profile old says: it has it at r"),
        ] {
            assert_eq!(stale.is_wrong(&has).as_deref(), Some(told), "{has:?}");
        }
    }

    #[test]
    fn what_the_webhook_left_out_it_leaves_out_again() {
        let left_out = || finding("a", "nginx", State::Missing, Cause::LeftOut);
        assert!(stale(vec![left_out()]).is_in_vain().is_some());
        let also = finding("b", "nginx", State::Missing, Cause::WebhookAway);
        assert!(stale(vec![left_out(), also]).is_in_vain().is_none());
    }
}
