//! `pillion rollout`: lists workloads whose pods differ from their profiles. By default, these are pods that lack a
//! profile or have an older revision. On request, upgrades their pods in place or restarts the workloads.
//!
//! * [`plan`]: groups the audit's findings by workload, and decides whether a workload can be restarted now.
//! * [`restart`]: restarts a workload and waits until its pods are new, available and injected as expected.
//! * [`in_place`]: changes the images and resources of injected containers in running pods.
//!
//! [`preview`] shows what the newest revisions would change in running pods.
//!
//! The other subcommands are for the controller's rollouts of profiles with the strategy `InPlace` or `Restart`:
//!
//! * [`status`]: shows the rollouts.
//! * [`steer`]: pauses, resumes or undoes a rollout.

mod plan;
mod restart;
mod in_place;
mod preview;
mod status;
mod steer;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use futures::{StreamExt, stream};
use kube::Client;
use pillion_control::Lookups;
use pillion_control::audit::{self, AuditSettings, OnceError, PodScope, Reads, State};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use self::in_place::{Possibility, Upgrader};
use self::plan::{Plan, Stale};
use self::restart::OngoingRestarts;
use self::steer::{SteerAction, SteerArgs};
use crate::args::block_on;
use crate::args::{ClusterArgs, NamespaceArgs};
use crate::config::Time;
use crate::exit::Exit;
use crate::output::{self, ListForm, Progress};

/// Arguments of `pillion rollout`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct RolloutArgs {
    #[command(subcommand)]
    command: Option<RolloutCommand>,
    #[command(flatten)]
    namespaces: NamespaceArgs,
    /// Consider only pods with these labels, as in app=web,tier!=cache.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// Restart the workloads, or upgrade their pods. Without --apply nothing is changed.
    #[arg(long)]
    apply: bool,
    /// Upgrade pods in place where possible, instead of restarting their workloads. This is possible if revisions
    /// differ only in the images, the CPU and the memory of injected containers. Pods are changed one after the other,
    /// and a pod whose containers do not become ready is changed back.
    #[arg(long)]
    in_place: bool,
    /// Select workloads with pods in this state: `missing` (they lack a profile), `outdated` (they have an older
    /// revision) or `orphaned` (they have a profile that no longer matches them). May be given several times.
    #[arg(long = "only", value_enum, value_name = "STATE", default_values_t = [StaleState::Missing, StaleState::Outdated])]
    states: Vec<StaleState>,
    /// The maximum number of workloads that are restarted or upgraded at the same time.
    #[arg(long, value_name = "COUNT", default_value = "1")]
    max_unavailable_workloads: NonZeroUsize,
    /// How long to wait for one workload: until its disruption budgets allow the restart, and its new pods are
    /// available. With --in-place, the timeout applies to each pod. After a timeout, no restart of another workload
    /// begins.
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    timeout: Time,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = ListForm::Text, value_name = "FORMAT")]
    output: ListForm,
    #[command(flatten)]
    at: ClusterArgs,
}

/// A subcommand of `pillion rollout`.
#[derive(Clone, Debug, Subcommand)]
enum RolloutCommand {
    /// Show how many running pods the newest revisions would change in place or restart, per namespace, and why.
    Plan(preview::PreviewArgs),
    /// Show the controller's rollouts to running pods: of all profiles, or of one.
    Status(status::StatusArgs),
    /// Pause the controller's rollout of a profile: no further pod is upgraded.
    Pause(SteerArgs),
    /// Continue the controller's rollout of a profile, after a pause or a failure.
    Resume(SteerArgs),
    /// Return the pods of an incomplete rollout of a profile to the previous revision.
    Undo(SteerArgs),
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

/// Runs the subcommand. Without one, lists stale workloads, or restarts or upgrades them.
pub(crate) fn run(mut args: RolloutArgs) -> anyhow::Result<Exit> {
    match args.command.take() {
        None => run_on_workloads(args),
        Some(RolloutCommand::Plan(args)) => block_on(preview::run(args)),
        Some(RolloutCommand::Status(args)) => block_on(status::run(args)),
        Some(RolloutCommand::Pause(args)) => block_on(steer::run(SteerAction::Pause, args)),
        Some(RolloutCommand::Resume(args)) => block_on(steer::run(SteerAction::Resume, args)),
        Some(RolloutCommand::Undo(args)) => block_on(steer::run(SteerAction::Undo, args)),
    }
}

/// Prints stale workloads, and the results of restarts and upgrades. Workloads that are still stale are findings.
fn run_on_workloads(args: RolloutArgs) -> anyhow::Result<Exit> {
    let (output, applies) = (args.output, args.apply);
    let lines = block_on(rollout(args))?;
    output.print(|is_wide| table(&lines, is_wide), || value(&lines, applies))?;
    if output.is_text() {
        output::report(&summary(&lines, applies))?;
    }
    let is_done = |line: &Line| matches!(line.outcome, Some(WorkloadOutcome::Restarted | WorkloadOutcome::Upgraded));
    let is_done = lines.iter().all(is_done);
    Ok(Exit::findings(!is_done))
}

async fn rollout(args: RolloutArgs) -> anyhow::Result<Vec<Line>> {
    let RolloutArgs {
        command: _,
        namespaces,
        selector,
        apply,
        in_place,
        states,
        max_unavailable_workloads,
        timeout,
        at,
        output: _,
    } = args;
    let (client, release) = at.connect().await?;
    let lookups = lookups(&client);
    let reads = Reads { lookups: Some(lookups.clone()), cluster: None };
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
    if stale.is_empty() {
        return Ok(Vec::new());
    }
    let upgrader = Upgrader::new(client.clone(), &release, lookups).await?;
    let mut lines = Vec::with_capacity(stale.len());
    for stale in stale {
        progress.show(&format!("planning {}", stale.workload));
        let upgrade = upgrader.possibility(&stale).await.with_context(|| format!("cannot plan {}", stale.workload))?;
        let action = match upgrade {
            Possibility::All if in_place => Action::UpgradeInPlace,
            _ => Action::Restart(plan_of(&client, &stale).await?),
        };
        lines.push(Line { stale, action, upgrade, outcome: None });
    }
    if apply {
        let rollout = Applying { client: &client, upgrader: &upgrader, limit: timeout.0 };
        rollout.apply_all(&mut lines, max_unavailable_workloads, &RefCell::new(progress)).await?;
    }
    Ok(lines)
}

/// Creates the lookups of objects. Their metrics are not exported.
fn lookups(client: &Client) -> Lookups {
    let metrics = pillion_control::informer::lookups::Metrics::register(&mut Registry::default());
    Lookups::new(client.clone(), metrics)
}

async fn plan_of(client: &Client, stale: &Stale) -> anyhow::Result<Plan> {
    if let Some(why) = stale.reason_not_to_restart() {
        return Ok(Plan::Skip(why.to_owned()));
    }
    restart::plan(client, &stale.workload).await
}

/// The inputs for applying the plans.
struct Applying<'a> {
    client: &'a Client,
    upgrader: &'a Upgrader,
    /// The timeout for a workload, or for a pod that is upgraded in place.
    limit: Duration,
}

impl Applying<'_> {
    /// Restarts or upgrades up to `at_once` workloads concurrently. After a failure, no restart or upgrade of another
    /// workload begins.
    async fn apply_all(
        &self,
        lines: &mut [Line],
        at_once: NonZeroUsize,
        progress: &RefCell<Progress>,
    ) -> anyhow::Result<()> {
        let has_failed = AtomicBool::new(false);
        let ongoing = OngoingRestarts::default();
        let all = lines.iter().filter(|line| !line.is_skipped()).count();
        let work = lines.iter_mut().filter(|line| !line.is_skipped()).enumerate();
        let work = work.map(|(place, line)| {
            let (has_failed, ongoing) = (&has_failed, &ongoing);
            async move {
                if has_failed.load(Ordering::Relaxed) {
                    line.outcome = Some(WorkloadOutcome::NotBegun);
                    return Ok(());
                }
                let name = line.stale.workload.to_string();
                let verb = if line.action == Action::UpgradeInPlace { "upgrading in place" } else { "restarting" };
                progress.borrow_mut().report(&format!("{name}: {verb}, {} of {all}", place + 1))?;
                let show = |waits: &str| progress.borrow_mut().show(&format!("{name}: {waits}"));
                let outcome = self.apply(line, ongoing, &show).await;
                if matches!(outcome, WorkloadOutcome::Failed(_)) {
                    has_failed.store(true, Ordering::Relaxed);
                }
                progress.borrow_mut().report(&format!("{name}: {outcome}"))?;
                line.outcome = Some(outcome);
                anyhow::Ok(())
            }
        });
        let mut running = stream::iter(work).buffer_unordered(at_once.get());
        while let Some(done) = running.next().await {
            done?;
        }
        Ok(())
    }

    async fn apply(&self, line: &Line, ongoing: &OngoingRestarts, show: &dyn Fn(&str)) -> WorkloadOutcome {
        let Self { client, upgrader, limit } = self;
        if line.action == Action::UpgradeInPlace {
            return match upgrader.run(&line.stale, *limit, show).await {
                Ok(()) => WorkloadOutcome::Upgraded,
                Err(error) => WorkloadOutcome::Failed(output::causes(&error)),
            };
        }
        match tokio::time::timeout(*limit, restart::run(client, &line.stale, ongoing, show)).await {
            Ok(Ok(())) => WorkloadOutcome::Restarted,
            Ok(Err(error)) => WorkloadOutcome::Failed(output::causes(&error)),
            Err(_) => WorkloadOutcome::Failed(restart::explain_timeout(client, &line.stale, ongoing, *limit).await),
        }
    }
}

/// A workload, its plan, and the result.
#[derive(Clone, Debug)]
struct Line {
    /// The workload, and how its pods differ from their profiles.
    stale: Stale,
    /// The planned action.
    action: Action,
    /// Whether its pods can be upgraded in place.
    upgrade: Possibility,
    /// The result. `None` without `--apply`, and for skipped workloads.
    outcome: Option<WorkloadOutcome>,
}

/// The planned action for a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    /// Upgrade the pods in place.
    UpgradeInPlace,
    /// Restart the workload as planned.
    Restart(Plan),
}

/// The result for one workload.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WorkloadOutcome {
    /// All pods are new, available and injected as expected.
    Restarted,
    /// All stale pods that still exist were upgraded in place, and each is ready if it was ready before.
    Upgraded,
    /// The restart or the upgrade failed, for this reason.
    Failed(String),
    /// Not started, because another workload failed.
    NotBegun,
}

impl fmt::Display for WorkloadOutcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restarted => formatter.write_str("restarted"),
            Self::Upgraded => formatter.write_str("upgraded in place"),
            Self::Failed(why) => write!(formatter, "failed: {why}"),
            Self::NotBegun => formatter.write_str("not started, because another workload failed"),
        }
    }
}

impl Line {
    fn is_skipped(&self) -> bool {
        matches!(self.action, Action::Restart(Plan::Skip(_)))
    }

    fn describe(&self) -> String {
        let hint = self.hint();
        match (&self.outcome, &self.action) {
            (Some(outcome), _) => outcome.to_string(),
            (None, Action::UpgradeInPlace) => "would be upgraded in place".to_owned(),
            (None, Action::Restart(Plan::Restart)) => format!("would be restarted{hint}"),
            (None, Action::Restart(Plan::Wait(why))) => format!("would wait: {why}{hint}"),
            (None, Action::Restart(Plan::Skip(why))) => format!("skipped: {why}{hint}"),
        }
    }

    /// Returns a hint at the alternative to a restart; empty if there is none.
    fn hint(&self) -> &'static str {
        if self.upgrade == Possibility::All { "; possible with --in-place" } else { "" }
    }

    /// Returns why the pods cannot be upgraded in place; `-` if they can.
    fn obstacles(&self) -> String {
        match &self.upgrade {
            Possibility::All => "-".to_owned(),
            Possibility::No(why) => why.join("; "),
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

/// Formats a table in the style of kubectl; empty if there are no lines. A wide table also shows the causes, and why
/// pods cannot be upgraded in place.
fn table(lines: &[Line], is_wide: bool) -> String {
    let row = |line: &Line| {
        let workload = &line.stale.workload;
        [
            workload.namespace.to_string(),
            format!("{}/{}", workload.kind, workload.name),
            line.stale.pods.len().to_string(),
            line.profiles(),
            line.describe(),
        ]
    };
    if !is_wide {
        return output::columns(["NAMESPACE", "WORKLOAD", "PODS", "PROFILES", "RESULT"], lines.iter().map(row));
    }
    let rows = lines.iter().map(|line| {
        let [namespace, workload, pods, profiles, result] = row(line);
        [namespace, workload, pods, profiles, line.causes(), line.obstacles(), result]
    });
    output::columns(["NAMESPACE", "WORKLOAD", "PODS", "PROFILES", "CAUSES", "NOT IN PLACE", "RESULT"], rows)
}

/// Formats one line with the number of workloads, and the number of each result or, without `--apply`, of each plan.
fn summary(lines: &[Line], applies: bool) -> String {
    let count = |is: fn(&Line) -> bool| lines.iter().filter(|line| is(line)).count();
    if lines.is_empty() {
        return "no workload is stale".to_owned();
    }
    let left = count(Line::is_skipped);
    let all = match lines.len() {
        1 => "1 workload is stale".to_owned(),
        all => format!("{all} workloads are stale"),
    };
    if applies {
        let restarted = count(|line| line.outcome == Some(WorkloadOutcome::Restarted));
        let upgraded = count(|line| line.outcome == Some(WorkloadOutcome::Upgraded));
        let failed = count(|line| matches!(line.outcome, Some(WorkloadOutcome::Failed(_))));
        let not_begun = count(|line| line.outcome == Some(WorkloadOutcome::NotBegun));
        let upgraded = if upgraded == 0 { String::new() } else { format!("{upgraded} upgraded in place, ") };
        return format!(
            "{all}: {upgraded}{restarted} restarted, {failed} failed, {not_begun} not started, {left} skipped"
        );
    }
    let upgrade = count(|line| line.action == Action::UpgradeInPlace);
    let restart = lines.len() - left - upgrade;
    let upgrade = if upgrade == 0 { String::new() } else { format!("{upgrade} would be upgraded in place, ") };
    format!("{all}: {upgrade}{restart} would be restarted by --apply, {left} skipped")
}

/// Returns the lines as JSON.
fn value(lines: &[Line], applies: bool) -> Value {
    let workloads = lines.iter().map(|line| {
        let Line { stale: Stale { workload, pods, profiles }, action, upgrade, outcome } = line;
        let profiles = profiles.iter().map(|(name, wrong)| {
            json!({
                "profile": name, "state": wrong.state.as_str(), "want": wrong.want, "has": wrong.has,
                "causes": wrong.causes.iter().map(|cause| cause.as_str()).collect::<Vec<_>>(),
            })
        });
        let (action, why) = match action {
            Action::UpgradeInPlace => ("upgradeInPlace", None),
            Action::Restart(Plan::Restart) => ("restart", None),
            Action::Restart(Plan::Wait(why)) => ("wait", Some(why)),
            Action::Restart(Plan::Skip(why)) => ("leave", Some(why)),
        };
        let (outcome, error) = match outcome {
            None => (None, None),
            Some(WorkloadOutcome::Restarted) => (Some("restarted"), None),
            Some(WorkloadOutcome::Upgraded) => (Some("upgradedInPlace"), None),
            Some(WorkloadOutcome::Failed(why)) => (Some("failed"), Some(why)),
            Some(WorkloadOutcome::NotBegun) => (Some("notBegun"), None),
        };
        let obstacles = match upgrade {
            Possibility::All => Vec::new(),
            Possibility::No(why) => why.clone(),
        };
        json!({
            "namespace": workload.namespace, "kind": workload.kind, "name": workload.name, "pods": pods.len(),
            "profiles": profiles.collect::<Vec<_>>(), "action": action, "why": why, "outcome": outcome, "error": error,
            "inPlace": {"possible": *upgrade == Possibility::All, "obstacles": obstacles},
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

    fn line(plan: Plan, outcome: Option<WorkloadOutcome>) -> Line {
        let wrong = ProfileDifference {
            state: State::Outdated,
            causes: [Cause::ProfileChanged].into(),
            want: ["b2".into()].into(),
            has: ["a1".into()].into(),
        };
        let workload = Workload::new("shop", "Deployment", "web");
        let profiles = BTreeMap::from([("nginx".into(), wrong)]);
        let pods = ["a", "b", "c"].map(Into::into).into();
        let upgrade = Possibility::No(vec!["spec.volumes changes".to_owned()]);
        Line { stale: Stale { workload, pods, profiles }, action: Action::Restart(plan), upgrade, outcome }
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
            line(Plan::Restart, Some(WorkloadOutcome::Restarted)),
            line(Plan::Restart, Some(WorkloadOutcome::Failed("x".to_owned()))),
        ];
        assert_eq!(summary(&lines, true), "2 workloads are stale: 1 restarted, 1 failed, 0 not started, 0 skipped");
        let found = value(&lines, true);
        assert_eq!(found["workloads"][1]["error"], "x");
        assert_eq!(found["workloads"][0]["profiles"][0]["causes"], json!(["profile_changed"]));
        assert_eq!((table(&[], true).as_str(), summary(&[], false).as_str()), ("", "no workload is stale"));
    }
}
