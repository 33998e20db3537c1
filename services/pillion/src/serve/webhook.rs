//! `pillion webhook`: a replica as it runs in a cluster.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use arc_swap::ArcSwap;
use axum::Router;
use clap::{Args, ValueEnum};
use futures::FutureExt;
use kube::config::Kubeconfig;
use opentelemetry_sdk::Resource;
use pillion_control::CacheMetrics;
use pillion_control::LiveNamespaces;
use pillion_control::Lookups;
use pillion_control::Publisher;
use pillion_control::Status;
use pillion_control::informer::live::LookupMetrics;
use pillion_control::release::Release;
use pillion_control::webhook_config::switch::KillSwitch;
use pillion_engine::snapshot::Snapshot;
use pillion_webhook::admission::{LiveNamespace, NamespaceLookup, ReviewLookups};
use pillion_webhook::health::{Component, Readiness};
use pillion_webhook::metrics::{PREFIX, ReloadMetrics};
use pillion_webhook::switch::Switch;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::Signals;
use super::certificate::{self, CertificateArgs, ClientArgs, ClientCaFile};
use super::servers::{Parts, Servers};
use crate::args;
use crate::config::follow::{self, ConfigFile};
use crate::config::{ConfigArg, Overrides, PolicyFile, Time, WebhookPolicy};
use crate::exit::Exit;
use crate::output;
use crate::telemetry::Controls;
use crate::telemetry::logs::{LogArgs, LogLevel};
use crate::telemetry::traces::TraceArgs;

/// Arguments of `pillion webhook`.
#[derive(Clone, Debug, Args)]
pub(crate) struct WebhookArgs {
    /// Kubeconfig file for the API server. Default: the service account of this pod.
    #[arg(long, value_name = "FILE", env = "PILLION_KUBECONFIG")]
    pub(crate) kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) certificate: CertificateArgs,
    /// The address and port for admission reviews, over TLS. With port 0, the system chooses a port.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:8443", env = "PILLION_LISTEN")]
    pub(crate) listen: SocketAddr,
    /// The address and port for /livez, /readyz and /metrics, over plain HTTP.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:9090", env = "PILLION_METRICS_LISTEN")]
    pub(crate) metrics_listen: SocketAddr,
    /// Namespace and name of this replica's release. The release's ConfigMap is the kill switch. Without this flag,
    /// there is no kill switch.
    #[arg(long, value_name = "NAMESPACE/NAME", env = "PILLION_RELEASE", value_parser = args::release)]
    pub(crate) release: Option<Release>,
    /// The source of profiles. revisions: the revisions that the controller publishes. profiles: the stored profiles,
    /// for installations without a controller.
    #[arg(long, value_enum, default_value_t = ProfileSource::Profiles, value_name = "SOURCE", env = "PILLION_PROFILES_FROM")]
    pub(crate) profiles_from: ProfileSource,
    #[command(flatten)]
    pub(crate) config: ConfigArg,
    /// After SIGTERM, keep accepting connections for at least this time, until clients know that this replica is
    /// terminating. Default: the value in the policy file, else 10s.
    #[arg(long, value_name = "DURATION", env = "PILLION_DRAIN_MINIMUM")]
    pub(crate) drain_minimum: Option<Time>,
    /// After SIGTERM, wait at most this time for connections to close. The API server keeps idle connections for 90 s.
    /// Default: the value in the policy file, else 100s.
    #[arg(long, value_name = "DURATION", env = "PILLION_DRAIN_DEADLINE")]
    pub(crate) drain_deadline: Option<Time>,
    /// Check the given flags, policy file, certificates and kubeconfig, print the policy with all its defaults, and
    /// exit. Opens no ports and no connections. Exit code 1: a check failed.
    #[arg(long)]
    pub(crate) check_config: bool,
    #[command(flatten)]
    pub(crate) clients: ClientArgs,
    #[command(flatten)]
    pub(crate) traces: TraceArgs,
}

/// The source of profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileSource {
    /// The revisions that the controller publishes.
    Revisions,
    /// The stored profiles, which each replica compiles itself.
    Profiles,
}

/// Serves until a signal or a failure ends it. With `--check-config`, only checks the configuration.
pub(crate) fn run(args: WebhookArgs, logs: &LogArgs) -> anyhow::Result<Exit> {
    if args.check_config {
        return check(&args, logs);
    }
    let policy: WebhookPolicy = args.config.required(&args.overrides(logs))?;
    let (traces, overrides) = (args.traces.clone(), args.overrides(logs));
    let start = policy.clone();
    super::run_service(logs, &traces, &policy, |controls| serve(args, overrides, start, controls))
}

impl WebhookArgs {
    /// Returns the values that take precedence over the policy file.
    pub(crate) fn overrides(&self, logs: &LogArgs) -> Overrides {
        Overrides {
            log_level: logs.log_level.clone(),
            trace_ratio: self.traces.trace_ratio,
            drain_minimum: self.drain_minimum,
            drain_deadline: self.drain_deadline,
        }
    }
}

async fn serve(
    args: WebhookArgs,
    overrides: Overrides,
    start: WebhookPolicy,
    controls: Controls,
) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let detail = LogLevel::signal()?;
    let clients = args.clients.load().await?;
    let client = pillion_control::client::connect(args.kubeconfig.as_deref()).await?;
    let certificate = args.certificate.load(client.default_namespace()).await?;
    let certificate = certificate.context("--serving-secret is missing, or --tls-cert and --tls-key")?;

    let snapshot = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
    let policy = Arc::new(ArcSwap::from_pointee(start.decision_policy()?));
    let (publisher, status) = Publisher::new(Arc::clone(&snapshot));
    let readiness = Readiness::default();
    let has_certificate = readiness.component("serving certificate");
    let known = readiness.component("the first lists of profiles and namespaces");
    let release = args.release.map(|release| (release, readiness.component("the state of the kill switch")));
    let mut registry = Registry::default();
    let publisher = publisher.with_metrics(CacheMetrics::register(&mut registry)).opting_in_by(start.opt_in());
    let publisher = match args.profiles_from {
        ProfileSource::Revisions => publisher.serves_revisions(),
        ProfileSource::Profiles => publisher,
    };
    let broken = broken_profiles(&mut registry);
    let reloads = ReloadMetrics::register(&mut registry);
    let (switch, disabled) = (Switch::default(), pillion_control::webhook_config::switch::register(&mut registry));
    let remembered = start.lookup_settings();
    let asked = LookupMetrics::register(&mut registry);
    let live = LiveNamespaces::new(client.clone(), asked, remembered.answer_limit, start.opt_in());
    let lookups = Lookups::with_settings(
        client.clone(),
        pillion_control::informer::lookups::Metrics::register(&mut registry),
        remembered,
    );
    controls.register(&mut registry);
    let (settings, requests) = (start.server_settings(), start.request_settings());
    let targets = follow::ReloadTargets { policy: Arc::clone(&policy), controls: controls.clone() };
    let config = args.config.config.map(|file| ConfigFile::new(file, overrides, &start, targets));
    follow::register(&mut registry, config.as_ref());
    let servers = Servers::bind(Parts {
        listen: args.listen,
        metrics_listen: args.metrics_listen,
        certificate: certificate.serving(),
        clients: clients.as_ref().map(ClientCaFile::clients),
        snapshot,
        live_namespace: Some(live_namespace(live)),
        lookups: Some(review_lookups(lookups)),
        policy,
        switch: switch.clone(),
        readiness: readiness.clone(),
        registry,
        pages: Router::new(),
        limits: start.metrics.settings(),
        settings,
        requests,
    })
    .await?;
    info!(address = %servers.address, metrics_address = %servers.metrics_address, "listening");

    let (stop, drain) = (CancellationToken::new(), CancellationToken::new());
    let mut tasks = JoinSet::new();
    if let Some((release, known)) = release {
        let tell = Arc::new(move |off| switch.set_off(off));
        let switch = KillSwitch::new(client.clone(), release, disabled, tell, move || known.set_ready(true));
        tasks.spawn(switch.follow(stop.clone()).map(Ok));
    }
    let watching = publisher.run(client.clone(), stop.clone());
    tasks.spawn(async move { watching.await.context("the watches of the cluster have ended") });
    let following = certificate.follow(client, reloads, has_certificate, stop.clone());
    tasks.spawn(following.map(Ok));
    if let Some(config) = config {
        tasks.spawn(config.follow(follow::POLL, stop.clone()).map(Ok));
    }
    tasks.spawn(controls.level.follow(detail, stop.clone()).map(Ok));
    if let Some(clients) = clients {
        tasks.spawn(clients.follow(certificate::POLL, stop.clone()).map(Ok));
    }
    tokio::spawn(show(status, known, broken));
    let mut serving = tokio::spawn(servers.run(drain.clone()));

    let ended = tokio::select! {
        signal = signals.next() => {
            info!(signal, "stopping: no longer ready, draining");
            Ok(())
        }
        // If a task ended unexpectedly, the process stops, because a replica that misses changes of the cluster must
        // not appear healthy.
        ended = tasks.join_next() => Err(early_end(ended)),
        ended = &mut serving => return ended.context("the servers failed")?,
    };
    signals.abort_at_next();
    readiness.drain();
    drain.cancel();
    let drained = serving.await.context("the servers failed").flatten();
    stop.cancel();
    info!("ended");
    ended.and(drained)
}

/// Returns why a task ended unexpectedly.
fn early_end(ended: Option<Result<anyhow::Result<()>, tokio::task::JoinError>>) -> anyhow::Error {
    match ended {
        Some(Ok(Err(error))) => error,
        Some(Err(error)) => anyhow!(error).context("a task failed"),
        Some(Ok(Ok(()))) | None => anyhow!("a task ended unexpectedly"),
    }
}

fn live_namespace(live: LiveNamespaces) -> LiveNamespace {
    Arc::new(move |NamespaceLookup { name, client, after }| {
        let (live, name) = (live.clone(), Box::<str>::from(name));
        async move { live.get_for(&name, client, after).await }.boxed()
    })
}

fn review_lookups(lookups: Lookups) -> ReviewLookups {
    Arc::new(move |wanted, client| {
        let lookups = lookups.clone();
        async move { lookups.get_for(wanted, client).await }.boxed()
    })
}

fn broken_profiles(registry: &mut Registry) -> Gauge {
    let gauge = Gauge::default();
    registry.sub_registry_with_prefix(PREFIX).register(
        "broken_profiles",
        "Profiles whose stored version is not active. Their last valid revision is active, or no revision",
        gauge.clone(),
    );
    gauge
}

/// Reports the state of the watches to the readiness and the metrics, until the watches end.
async fn show(mut status: watch::Receiver<Status>, known: Component, broken: Gauge) {
    while status.changed().await.is_ok() {
        let Status { synced, broken_profiles, .. } = *status.borrow_and_update();
        known.set_ready(synced);
        broken.set(i64::try_from(broken_profiles).unwrap_or(i64::MAX));
    }
}

/// A placeholder for the namespace of the process, which `--check-config` does not look up.
const ANY_NAMESPACE: &str = "default";

/// `--check-config`: checks the arguments and the policy file. Prints the policy if all are valid, else the errors.
/// Opens no ports and no connections.
fn check(args: &WebhookArgs, logs: &LogArgs) -> anyhow::Result<Exit> {
    let mut wrong = Vec::new();
    let policy = args.config.load::<WebhookPolicy>(&args.overrides(logs));
    if let Err(problems) = &policy {
        output::problems(problems)?;
    }
    // The exporter needs a runtime, and connects only when there are spans.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    wrong.extend(runtime.block_on(args.certificate.load(ANY_NAMESPACE)).err());
    wrong.extend(runtime.block_on(args.clients.clone().load()).err());
    wrong.extend(runtime.block_on(async { collector(args) }).err());
    wrong.extend(args.kubeconfig.as_deref().map(kubeconfig).and_then(Result::err));
    for error in &wrong {
        output::report(&format!("error: {}\n", output::causes(error)))?;
    }
    let (Ok(policy), true) = (policy, wrong.is_empty()) else { return Ok(Exit::Findings) };
    output::print(&output::yaml(&policy.to_value())?)?;
    Ok(Exit::Success)
}

fn collector(args: &WebhookArgs) -> anyhow::Result<()> {
    if let Some(collector) = args.traces.collector()? {
        collector.exporter(&Resource::builder_empty().build())?;
    }
    Ok(())
}

fn kubeconfig(file: &Path) -> anyhow::Result<()> {
    Kubeconfig::read_from(file).with_context(|| format!("--kubeconfig {} cannot be used", file.display()))?;
    Ok(())
}
