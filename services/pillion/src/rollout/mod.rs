//! `pillion rollout`: lists workloads whose pods lack what their profiles say or carry an older revision, and restarts
//! them on request.
//!
//! * [`stale`]: the audit's findings by workload.
//! * [`plan`]: whether a workload can be restarted, and within which budget; pure.
//! * [`template`]: the pod for a dry run before the restart.
//! * [`restart`]: restarts a workload and waits until its pods are new, available and as their profiles say.
//! * [`report`]: prints findings and actions.

mod plan;
mod report;
mod restart;
mod stale;
mod template;

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use futures::{StreamExt, stream};
use kube::Client;
use pillion_control::Lookups;
use pillion_control::audit::{self, AuditSettings, Reads, State};
use prometheus_client::registry::Registry;

use self::plan::Plan;
use self::report::{Line, Outcome};
use self::restart::UnderWay;
use self::stale::Stale;
use crate::args::ClusterArgs;
use crate::args::block_on;
use crate::output::{self, Form};

/// Arguments of `pillion rollout`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RolloutArgs {
    /// The workloads of this namespace. Default: of all that are opted in.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Restart them. Without it nothing is changed.
    #[arg(long)]
    apply: bool,
    /// Which pods are a reason to restart: those that lack a profile, carry an older revision, or carry one that is not for
    /// them any more. May be given several times.
    #[arg(long = "only", value_enum, value_name = "STATE", default_values_t = [Stand::Missing, Stand::Outdated])]
    states: Vec<Stand>,
    /// How many workloads are restarted at one time.
    #[arg(long, value_name = "COUNT", default_value = "1")]
    max_unavailable_workloads: NonZeroUsize,
    /// How long one workload may take: until its budget allows it, and until its new pods are available. Then no other one
    /// is begun.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// How the result is printed.
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORMAT")]
    output: Form,
    #[command(flatten)]
    at: ClusterArgs,
}

/// What is wrong with pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Stand {
    /// They lack a profile.
    Missing,
    /// They carry an older revision.
    Outdated,
    /// They carry a profile that is not for them any more.
    Surplus,
}

impl Stand {
    const fn state(self) -> State {
        match self {
            Self::Missing => State::Missing,
            Self::Outdated => State::Outdated,
            Self::Surplus => State::Surplus,
        }
    }
}

/// Prints stale workloads and the results of restarts. Exit code 1: some are still stale.
pub(crate) fn run(args: RolloutArgs) -> anyhow::Result<ExitCode> {
    let (output, applies) = (args.output, args.apply);
    let lines = block_on(rollout(args))?;
    output.print(|| Ok(report::table(&lines)), || Ok(report::value(&lines, applies)))?;
    if output == Form::Text {
        output::tell(&report::summary(&lines, applies))?;
    }
    let is_done = lines.iter().all(|line| line.outcome == Some(Outcome::Restarted));
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn rollout(args: RolloutArgs) -> anyhow::Result<Vec<Line>> {
    let RolloutArgs { namespace, apply, states, max_unavailable_workloads, timeout, at, output: _ } = args;
    let (client, release) = at.connect().await?;
    let lookups =
        Lookups::new(client.clone(), pillion_control::informer::lookups::Metrics::register(&mut Registry::default()));
    let reads = Reads { lookups: Some(lookups), cluster: None };
    let settings = AuditSettings { most_findings: usize::MAX, ..AuditSettings::default() };
    let report = audit::once(&client, &release, namespace.as_deref(), &reads, &settings).await?;
    let states: Vec<_> = states.into_iter().map(Stand::state).collect();
    let findings = report.findings.into_iter().filter(|finding| states.contains(&finding.state));
    let stale = stale::by_workload(&client, findings).await?;
    let mut lines = Vec::with_capacity(stale.len());
    for stale in stale {
        let plan = plan_of(&client, &stale).await?;
        lines.push(Line { stale, plan, outcome: None });
    }
    if apply {
        restart_all(&client, &mut lines, max_unavailable_workloads, Duration::from_secs(timeout)).await?;
    }
    Ok(lines)
}

async fn plan_of(client: &Client, stale: &Stale) -> anyhow::Result<Plan> {
    if let Some(why) = stale.is_in_vain() {
        return Ok(Plan::Leave(why.to_owned()));
    }
    restart::plan(client, &stale.workload).await
}

/// Restarts up to `at_once` workloads concurrently. After a failure, no further restart begins.
async fn restart_all(
    client: &Client,
    lines: &mut [Line],
    at_once: NonZeroUsize,
    limit: Duration,
) -> anyhow::Result<()> {
    let has_failed = AtomicBool::new(false);
    let under_way = UnderWay::default();
    let all = lines.iter().filter(|line| !matches!(line.plan, Plan::Leave(_))).count();
    let restarts = lines.iter_mut().filter(|line| !matches!(line.plan, Plan::Leave(_))).enumerate();
    let restarts = restarts.map(|(place, line)| {
        let (has_failed, under_way) = (&has_failed, &under_way);
        async move {
            if has_failed.load(Ordering::Relaxed) {
                line.outcome = Some(Outcome::NotBegun);
                return Ok(());
            }
            output::tell(&format!("{}: begins, {} of {all}", line.stale.workload, place + 1))?;
            let outcome = match tokio::time::timeout(limit, restart::run(client, &line.stale, under_way)).await {
                Ok(Ok(())) => Outcome::Restarted,
                Ok(Err(error)) => Outcome::Failed(output::causes(&error)),
                Err(_) => Outcome::Failed(restart::still_waits_for(client, &line.stale, under_way, limit).await),
            };
            if outcome != Outcome::Restarted {
                has_failed.store(true, Ordering::Relaxed);
            }
            output::tell(&format!("{}: {outcome}", line.stale.workload))?;
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
