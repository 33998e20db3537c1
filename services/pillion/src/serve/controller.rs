//! `pillion controller`: manages certificates, webhook configurations, and the revisions and status of profiles, and
//! runs the audit. Several replicas may run, but only the leader performs these tasks.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use clap::Args;
use futures::FutureExt;
use pillion_control::Release;
use pillion_control::lease::{Elector, LeaseMetrics};
use pillion_control::trust_probe::{self, TrustProbe};
use pillion_webhook::health::Readiness;
use pillion_webhook::metrics::{Exposition, register_process};
use prometheus_client::registry::Registry;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::Signals;
use super::servers::{self, Operations};
use super::term::{Failures, LeaderMetrics, Term};
use crate::args::ReleaseArgs;
use crate::config::{ConfigArg, ControllerPolicy, Overrides, PolicyFile};
use crate::exit::Exit;
use crate::output;
use crate::telemetry::Telemetry;
use crate::telemetry::logs::{LogArgs, LogLevel};

/// The help of `--config`. It differs from the webhook's, because the controller reads a different file.
const CONFIG_HELP: &str = "The policy file, YAML: leadership, certificates, webhook configurations, log level. Read once. \
                           Omitted keys have their defaults";

/// Arguments of `pillion controller`.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("config", |argument| argument.help(CONFIG_HELP).long_help(CONFIG_HELP)))]
pub(crate) struct ControllerArgs {
    /// Kubeconfig file for the API server. Default: the service account of this pod.
    #[arg(long, value_name = "FILE", env = "PILLION_KUBECONFIG")]
    pub(crate) kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) release: ReleaseArgs,
    /// The identity of this process in the Lease, such as the pod's name. Default: the host name, which differs for
    /// each pod.
    #[arg(long, value_name = "NAME", env = "PILLION_IDENTITY")]
    pub(crate) identity: Option<String>,
    /// The address and port of the trust probe, over TLS. API servers call it to prove that they trust the newest CA.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:8443", env = "PILLION_TRUST_PROBE_LISTEN")]
    pub(crate) trust_probe_listen: SocketAddr,
    /// IP address at which API servers reach this process, such as the pod's. Default: the address of
    /// --trust-probe-listen.
    #[arg(long, value_name = "ADDRESS", env = "PILLION_POD_IP")]
    pub(crate) pod_ip: Option<IpAddr>,
    /// The address and port for /livez, /readyz and /metrics, over plain HTTP.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:9090", env = "PILLION_METRICS_LISTEN")]
    pub(crate) metrics_listen: SocketAddr,
    #[command(flatten)]
    pub(crate) config: ConfigArg,
    /// Check flags and policy file, print the policy with all its defaults, and exit. Exit code 1: a check failed.
    #[arg(long)]
    pub(crate) check_config: bool,
}

/// Runs the controller until a signal or a failure ends it. With `--check-config`, only checks the configuration.
pub(crate) fn run(args: ControllerArgs, logs: &LogArgs) -> anyhow::Result<Exit> {
    let overrides = Overrides { log_level: logs.log_level.clone(), ..Overrides::default() };
    if args.check_config {
        return check(&args, &overrides);
    }
    let release = args.release.release()?;
    let policy: ControllerPolicy = args.config.required(&overrides)?;
    let level = Telemetry::changing_logs(logs, &policy.logs.level)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    runtime.block_on(control(args, Arc::new(release), policy, level)).map(|()| Exit::Success)
}

fn check(args: &ControllerArgs, overrides: &Overrides) -> anyhow::Result<Exit> {
    args.release.release()?;
    match args.config.load::<ControllerPolicy>(overrides) {
        Ok(policy) => {
            output::print(&output::yaml(&policy.to_value())?)?;
            Ok(Exit::Success)
        }
        Err(problems) => {
            output::problems(&problems)?;
            Ok(Exit::Findings)
        }
    }
}

async fn control(
    args: ControllerArgs,
    release: Arc<Release>,
    policy: ControllerPolicy,
    level: LogLevel,
) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let detail = LogLevel::signal()?;
    let config = pillion_control::client::configuration(args.kubeconfig.as_deref()).await?;
    let client = kube::Client::try_from(config.clone()).context("cannot create a client from the configuration")?;
    let identity = args.identity.map_or_else(host_name, Ok)?;

    let mut registry = Registry::default();
    let readiness = Readiness::default();
    register_process(&mut registry, "controller");
    readiness.register(&mut registry, "pillion_controller");
    let lease = LeaseMetrics::register(&mut registry);
    let metrics = LeaderMetrics::register(&mut registry, &policy.metrics);
    let trust_probe = TrustProbe::new(metrics.trust_probe.clone());
    let trust_probe_listener = servers::bind("--trust-probe-listen", args.trust_probe_listen).await?;
    let trust_probe_address = reached_at(trust_probe_listener.local_addr()?, args.pod_ip)?;
    let elector = Elector::new(client.clone(), &release, &identity, policy.leadership.election(), lease)?;
    let operations = Operations::bind(args.metrics_listen, readiness.clone(), Exposition::from(registry)).await?;
    info!(identity = elector.identity(), metrics_address = %operations.address()?, "taking part in the election");

    let (stop, end) = (CancellationToken::new(), CancellationToken::new());
    let mut operations = operations.start(end.clone())?;
    let mut tasks = JoinSet::new();
    tasks.spawn(level.follow(detail, stop.clone()).map(|()| "the control of the log level"));
    let serving = trust_probe.clone();
    let until = stop.clone();
    tasks.spawn(async move {
        serving.serve(trust_probe_listener, &trust_probe::Settings::default(), until).await;
        "the trust probe"
    });
    let (policy, failures) = (Arc::new(policy), Failures::default());
    let term = Term { client, config, release, policy, metrics, trust_probe, trust_probe_address, failures };
    let electing = elector.run(stop.clone(), move |claim| term.clone().lead(claim));
    tasks.spawn(electing.map(|()| "the election"));

    let ended = tokio::select! {
        signal = signals.next() => {
            info!(signal, "stopping: releasing the Lease");
            Ok(())
        }
        ended = tasks.join_next() => Err(match ended {
            Some(Ok(what)) => anyhow!("{what} ended unexpectedly"),
            Some(Err(error)) => anyhow!(error).context("a task failed"),
            None => anyhow!("no task is running"),
        }),
        early = &mut operations => return early?.context("the operations port cannot be served"),
    };
    signals.abort_at_next();
    readiness.drain();
    stop.cancel();
    while tasks.join_next().await.is_some() {}
    end.cancel();
    operations.await?.context("the operations port cannot be served")?;
    info!("ended");
    ended
}

/// Returns the address at which API servers reach this process.
fn reached_at(listens: SocketAddr, pod: Option<IpAddr>) -> anyhow::Result<SocketAddr> {
    let address = pod.unwrap_or_else(|| listens.ip());
    if address.is_unspecified() {
        return Err(anyhow!(
            "--trust-probe-listen {listens} is not an address that API servers can reach: also set --pod-ip"
        ));
    }
    Ok(SocketAddr::new(address, listens.port()))
}

fn host_name() -> anyhow::Result<String> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { Err(anyhow!("this host has no name: set --identity")) } else { Ok(name) }
}
