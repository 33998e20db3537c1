//! `pillion rollout`: lists workloads whose pods lack a profile or have an older revision, and restarts them on
//! request.
//!
//! * [`plan`]: groups the audit's findings by workload, and decides whether a workload can be restarted now.
//! * [`restart`]: restarts a workload and waits until its pods are new, available and injected as expected.

mod plan;
mod restart;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use futures::{StreamExt, stream};
use kube::Client;
use pillion_control::Lookups;
use pillion_control::audit::{self, AuditSettings, OnceError, PodScope, Reads, State};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use self::plan::{Plan, Stale};
use self::restart::OngoingRestarts;
use crate::args::block_on;
use crate::args::{ClusterArgs, NamespaceArgs};
use crate::config::Time;
use crate::exit::Exit;
use crate::output::{self, ListForm, Progress};

/// Arguments of `pillion rollout`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RolloutArgs {
    #[command(flatten)]
    namespaces: NamespaceArgs,
    /// Consider only pods with these labels, as in app=web,tier!=cache.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// Restart the workloads. Without --apply nothing is changed.
    #[arg(long)]
    apply: bool,
    /// Which pods are a reason to restart: those that lack a profile, have an older revision, or have a profile that
    /// no longer matches them. May be given several times.
    #[arg(long = "only", value_enum, value_name = "STATE", default_values_t = [StaleState::Missing, StaleState::Outdated])]
    states: Vec<StaleState>,
    /// The maximum number of concurrent restarts.
    #[arg(long, value_name = "COUNT", default_value = "1")]
    max_unavailable_workloads: NonZeroUsize,
    /// The timeout for one workload: until its disruption budgets allow the restart, and until its new pods are
    /// available. After a timeout, no further restart begins.
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    timeout: Time,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = ListForm::Text, value_name = "FORMAT")]
    output: ListForm,
    #[command(flatten)]
    at: ClusterArgs,
}

/// A difference between pods and their profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StaleState {
    /// Pods lack a profile.
    Missing,
    /// Pods have an older revision.
    Outdated,
    /// Pods have a profile that no longer matches them.
    Orphaned,
}

impl StaleState {
    const fn state(self) -> State {
        match self {
            Self::Missing => State::Missing,
            Self::Outdated => State::Outdated,
            Self::Orphaned => State::Orphaned,
        }
    }
}

/// Prints stale workloads and the results of restarts. Workloads that are still stale are findings.
pub(crate) fn run(args: RolloutArgs) -> anyhow::Result<Exit> {
    let (output, applies) = (args.output, args.apply);
    let lines = block_on(rollout(args))?;
    output.print(|is_wide| table(&lines, is_wide), || value(&lines, applies))?;
    if output.is_text() {
        output::report(&summary(&lines, applies))?;
    }
    let is_done = lines.iter().all(|line| line.outcome == Some(RestartOutcome::Restarted));
    Ok(Exit::findings(!is_done))
}

async fn rollout(args: RolloutArgs) -> anyhow::Result<Vec<Line>> {
    let RolloutArgs { namespaces, selector, apply, states, max_unavailable_workloads, timeout, at, output: _ } = args;
    let (client, release) = at.connect().await?;
    let lookups =
        Lookups::new(client.clone(), pillion_control::informer::lookups::Metrics::register(&mut Registry::default()));
    let reads = Reads { lookups: Some(lookups), cluster: None };
    let settings = AuditSettings { max_findings: usize::MAX, ..AuditSettings::default() };
    let namespace = namespaces.selected(&client);
    let scope = PodScope { namespace: namespace.as_deref(), selector: selector.as_deref() };
    let mut progress = Progress::new();
    let report = audit::once(&client, &release, scope, &reads, &settings, |name, number, of| {
        progress.show_step("namespaces", number, of, name);
    });
    let report = report.await.map_err(|error| match error {
        OnceError::NotOptedIn(_) => anyhow!("{error}; select a namespace with -n, or all with -A"),
        error => error.into(),
    })?;
    let states: Vec<_> = states.into_iter().map(StaleState::state).collect();
    let findings = report.findings.into_iter().filter(|finding| states.contains(&finding.state));
    let stale = plan::by_workload(&client, findings).await?;
    let mut lines = Vec::with_capacity(stale.len());
    for stale in stale {
        progress.show(&format!("planning {}", stale.workload));
        let plan = plan_of(&client, &stale).await?;
        lines.push(Line { stale, plan, outcome: None });
    }
    if apply {
        restart_all(&client, &mut lines, max_unavailable_workloads, timeout.0, &RefCell::new(progress)).await?;
    }
    Ok(lines)
}

async fn plan_of(client: &Client, stale: &Stale) -> anyhow::Result<Plan> {
    if let Some(why) = stale.reason_not_to_restart() {
        return Ok(Plan::Skip(why.to_owned()));
    }
    restart::plan(client, &stale.workload).await
}

/// Restarts up to `at_once` workloads concurrently. After a failure, no further restart begins.
async fn restart_all(
    client: &Client,
    lines: &mut [Line],
    at_once: NonZeroUsize,
    limit: Duration,
    progress: &RefCell<Progress>,
) -> anyhow::Result<()> {
    let has_failed = AtomicBool::new(false);
    let ongoing = OngoingRestarts::default();
    let all = lines.iter().filter(|line| !matches!(line.plan, Plan::Skip(_))).count();
    let restarts = lines.iter_mut().filter(|line| !matches!(line.plan, Plan::Skip(_))).enumerate();
    let restarts = restarts.map(|(place, line)| {
        let (has_failed, ongoing) = (&has_failed, &ongoing);
        async move {
            if has_failed.load(Ordering::Relaxed) {
                line.outcome = Some(RestartOutcome::NotBegun);
                return Ok(());
            }
            let name = line.stale.workload.to_string();
            progress.borrow_mut().report(&format!("{name}: restarting, {} of {all}", place + 1))?;
            let show = |waits: &str| progress.borrow_mut().show(&format!("{name}: {waits}"));
            let outcome = match tokio::time::timeout(limit, restart::run(client, &line.stale, ongoing, &show)).await {
                Ok(Ok(())) => RestartOutcome::Restarted,
                Ok(Err(error)) => RestartOutcome::Failed(output::causes(&error)),
                Err(_) => RestartOutcome::Failed(restart::explain_timeout(client, &line.stale, ongoing, limit).await),
            };
            if outcome != RestartOutcome::Restarted {
                has_failed.store(true, Ordering::Relaxed);
            }
            progress.borrow_mut().report(&format!("{name}: {outcome}"))?;
            line.outcome = Some(outcome);
            anyhow::Ok(())
        }
    });
    let mut running = stream::iter(restarts).buffer_unordered(at_once.get());
    while let Some(done) = running.next().await {
        done?;
    }
    Ok(())
}

/// A workload, its plan, and the result.
#[derive(Clone, Debug)]
struct Line {
    /// The workload, and how its pods differ from their profiles.
    stale: Stale,
    /// The planned action.
    plan: Plan,
    /// The result; `None` if the workload was not restarted.
    outcome: Option<RestartOutcome>,
}

/// The result of a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RestartOutcome {
    /// All pods are new, available and injected as expected.
    Restarted,
    /// The restart failed, for this reason.
    Failed(String),
    /// Not started, because an earlier restart failed.
    NotBegun,
}

impl fmt::Display for RestartOutcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restarted => formatter.write_str("restarted"),
            Self::Failed(why) => write!(formatter, "failed: {why}"),
            Self::NotBegun => formatter.write_str("not started, because another restart failed"),
        }
    }
}

impl Line {
    fn describe(&self) -> String {
        match (&self.outcome, &self.plan) {
            (Some(outcome), _) => outcome.to_string(),
            (None, Plan::Restart) => "would be restarted".to_owned(),
            (None, Plan::Wait(why)) => format!("would wait: {why}"),
            (None, Plan::Skip(why)) => format!("skipped: {why}"),
        }
    }

    fn causes(&self) -> String {
        let causes: BTreeSet<_> = self.stale.profiles.values().flat_map(|wrong| &wrong.causes).collect();
        causes.into_iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    fn profiles(&self) -> String {
        let profiles = self.stale.profiles.iter().map(|(name, wrong)| {
            let list =
                |revisions: &BTreeSet<Box<str>>| revisions.iter().map(|one| &**one).collect::<Vec<_>>().join("|");
            let state = wrong.state.as_str();
            match (wrong.has.is_empty(), wrong.want.is_empty()) {
                (true, _) => format!("{name} {state}"),
                (false, true) => format!("{name} {state} ({})", list(&wrong.has)),
                (false, false) => format!("{name} {state} ({} -> {})", list(&wrong.has), list(&wrong.want)),
            }
        });
        profiles.collect::<Vec<_>>().join(", ")
    }
}

/// Formats a table in the style of kubectl; empty if there are no lines. A wide table also shows the causes.
fn table(lines: &[Line], is_wide: bool) -> String {
    let row = |line: &Line| {
        let workload = &line.stale.workload;
        [
            workload.namespace.to_string(),
            format!("{}/{}", workload.kind, workload.name),
            line.stale.pods.to_string(),
            line.profiles(),
            line.describe(),
        ]
    };
    if !is_wide {
        return output::columns(["NAMESPACE", "WORKLOAD", "PODS", "PROFILES", "RESULT"], lines.iter().map(row));
    }
    let rows = lines.iter().map(|line| {
        let [namespace, workload, pods, profiles, result] = row(line);
        [namespace, workload, pods, profiles, line.causes(), result]
    });
    output::columns(["NAMESPACE", "WORKLOAD", "PODS", "PROFILES", "CAUSES", "RESULT"], rows)
}

/// Formats one line with the number of workloads, and the number of each result.
fn summary(lines: &[Line], applies: bool) -> String {
    let count = |is: fn(&Line) -> bool| lines.iter().filter(|line| is(line)).count();
    if lines.is_empty() {
        return "no workload is stale".to_owned();
    }
    let left = count(|line| matches!(line.plan, Plan::Skip(_)));
    let all = match lines.len() {
        1 => "1 workload is stale".to_owned(),
        all => format!("{all} workloads are stale"),
    };
    if applies {
        let restarted = count(|line| line.outcome == Some(RestartOutcome::Restarted));
        let failed = count(|line| matches!(line.outcome, Some(RestartOutcome::Failed(_))));
        let not_begun = count(|line| line.outcome == Some(RestartOutcome::NotBegun));
        return format!("{all}: {restarted} restarted, {failed} failed, {not_begun} not started, {left} skipped");
    }
    let restart = lines.len() - left;
    format!("{all}: {restart} would be restarted by --apply, {left} skipped")
}

/// Returns the lines as JSON.
fn value(lines: &[Line], applies: bool) -> Value {
    let workloads = lines.iter().map(|line| {
        let Line { stale: Stale { workload, pods, profiles }, plan, outcome } = line;
        let profiles = profiles.iter().map(|(name, wrong)| {
            json!({
                "profile": name, "state": wrong.state.as_str(), "want": wrong.want, "has": wrong.has,
                "causes": wrong.causes.iter().map(|cause| cause.as_str()).collect::<Vec<_>>(),
            })
        });
        let (action, why) = match plan {
            Plan::Restart => ("restart", None),
            Plan::Wait(why) => ("wait", Some(why)),
            Plan::Skip(why) => ("leave", Some(why)),
        };
        let (outcome, error) = match outcome {
            None => (None, None),
            Some(RestartOutcome::Restarted) => (Some("restarted"), None),
            Some(RestartOutcome::Failed(why)) => (Some("failed"), Some(why)),
            Some(RestartOutcome::NotBegun) => (Some("notBegun"), None),
        };
        json!({
            "namespace": workload.namespace, "kind": workload.kind, "name": workload.name, "pods": pods,
            "profiles": profiles.collect::<Vec<_>>(), "action": action, "why": why, "outcome": outcome, "error": error,
        })
    });
    json!({"applied": applies, "workloads": workloads.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pillion_control::audit::{Cause, State};

    use super::plan::ProfileDifference;
    use super::*;
    use crate::workload::Workload;

    fn line(plan: Plan, outcome: Option<RestartOutcome>) -> Line {
        let wrong = ProfileDifference {
            state: State::Outdated,
            causes: [Cause::ProfileChanged].into(),
            want: ["b2".into()].into(),
            has: ["a1".into()].into(),
        };
        let workload = Workload::new("shop", "Deployment", "web");
        let profiles = BTreeMap::from([("nginx".into(), wrong)]);
        Line { stale: Stale { workload, pods: 3, profiles }, plan, outcome }
    }

    #[test]
    fn rollout_line_has_problem_and_plan() {
        assert_eq!(
            table(&[line(Plan::Restart, None)], false),
            "NAMESPACE   WORKLOAD         PODS   PROFILES                    RESULT\n\
             shop        Deployment/web   3      nginx outdated (a1 -> b2)   would be restarted\n"
        );
        assert!(
            table(&[line(Plan::Restart, None)], true)
                .contains("nginx outdated (a1 -> b2)   the profile changed after the pod was created")
        );
        let lines = [line(Plan::Skip("it is paused".to_owned()), None), line(Plan::Restart, None)];
        assert!(table(&lines, false).contains("skipped: it is paused"));
        assert_eq!(summary(&lines, false), "2 workloads are stale: 1 would be restarted by --apply, 1 skipped");
        let lines = [
            line(Plan::Restart, Some(RestartOutcome::Restarted)),
            line(Plan::Restart, Some(RestartOutcome::Failed("x".to_owned()))),
        ];
        assert_eq!(summary(&lines, true), "2 workloads are stale: 1 restarted, 1 failed, 0 not started, 0 skipped");
        let found = value(&lines, true);
        assert_eq!(found["workloads"][1]["error"], "x");
        assert_eq!(found["workloads"][0]["profiles"][0]["causes"], json!(["profile_changed"]));
        assert_eq!((table(&[], true).as_str(), summary(&[], false).as_str()), ("", "no workload is stale"));
    }
}
