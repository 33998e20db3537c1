//! `pillion dev`: the webhook without a cluster, for authors of profiles. It loads profiles from files and reloads
//! them, creates a certificate, and prints commands that send a sample request. A web page shows the effect of a
//! profile while it is edited.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use arc_swap::ArcSwap;
use axum::Router;
use clap::Args;
use pillion_api::opt_in::OptIn;
use pillion_engine::snapshot::{Namespace, Snapshot};
use pillion_webhook::health::Readiness;
use pillion_webhook::switch::Switch;
use pillion_webhook::tls::{PemText, ServingCertificate};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::Signals;
use super::announce::{self, Service};
use super::certificate::self_signed_certificate;
use super::namespaces::{self, FailureModes, NamespaceArg, Namespaces};
use super::playground::Playground;
use super::profile_files::{Loaded, ProfileFiles};
use super::sample::{Folder, Sample};
use super::servers::{Parts, Servers};
use crate::config::follow::{self, ConfigFile};
use crate::config::{ConfigArg, Overrides, Time, WebhookPolicy};
use crate::exit::Exit;
use crate::output;
use crate::telemetry::Controls;
use crate::telemetry::logs::{LogArgs, LogLevel};
use crate::telemetry::traces::TraceArgs;

/// The default folder of profiles.
const DEFAULT_FOLDER: &str = "profiles";
/// The profile that is served by default if [`DEFAULT_FOLDER`] contains it. Such a folder is a library, like `profiles`
/// in this repository. Its other profiles are not served by default, because some of them apply to every pod.
const SHOWN: &str = "nginx";
/// The profile that is served without `--profile` if [`DEFAULT_FOLDER`] does not exist.
const EMBEDDED: &str = include_str!("../../../../profiles/nginx/profile.yaml");
/// How often to read the files.
const POLL: Duration = Duration::from_secs(1);
/// The maximum duration of the drain.
const DRAIN_DEADLINE: Duration = Duration::from_secs(2);
/// The default log level, which shows each decision.
const LOG_LEVEL: &str = "info,pillion_webhook=debug";

/// Arguments of `pillion dev`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DevArgs {
    /// Files with profiles, or folders of such files; may be given several times. Default: profiles/nginx if it exists,
    /// else the folder profiles, else a sample profile that adds an nginx sidecar.
    #[arg(short, long = "profile", value_name = "PATH")]
    pub(crate) profiles: Vec<PathBuf>,
    /// The address and port for admission reviews, over TLS. With port 0, the system chooses a port.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8443")]
    pub(crate) listen: SocketAddr,
    /// The address and port for /livez, /readyz and /metrics, over plain HTTP. On a loopback address, / serves the
    /// playground.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9090")]
    pub(crate) metrics_listen: SocketAddr,
    /// A namespace and its failure mode: enabled, required or held. May be given several times. Default:
    /// default=enabled.
    #[arg(long = "namespace", value_name = "NAME=MODE")]
    pub(crate) namespaces: Vec<NamespaceArg>,
    /// A file with more namespaces: Namespace objects with labels and annotations, or a map such as {shop: required}.
    #[arg(long, value_name = "FILE")]
    pub(crate) namespace_file: Option<PathBuf>,
    /// The folder for the CA certificate and the samples. Default: a temporary folder, which the command removes when
    /// it ends.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) config: ConfigArg,
    #[command(flatten)]
    pub(crate) traces: TraceArgs,
}

/// Serves until a signal or a failure ends it.
pub(crate) fn run(args: DevArgs, logs: &LogArgs) -> anyhow::Result<Exit> {
    // The log level and the drain times differ from production, and override the policy file.
    let overrides = Overrides {
        log_level: Some(logs.log_level.clone().unwrap_or_else(|| LOG_LEVEL.to_owned())),
        trace_ratio: args.traces.trace_ratio,
        drain_minimum: Some(Time(Duration::ZERO)),
        drain_deadline: Some(Time(DRAIN_DEADLINE)),
    };
    let policy: WebhookPolicy = args.config.required(&overrides)?;
    let (traces, start) = (args.traces.clone(), policy.clone());
    super::run_service(logs, &traces, &policy, |controls| serve(args, overrides, start, controls))
}

async fn serve(args: DevArgs, overrides: Overrides, start: WebhookPolicy, controls: Controls) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let detail = LogLevel::signal()?;
    let folder = Folder::open(args.folder)?;
    let namespaces = all_namespaces(&args.namespaces, args.namespace_file.as_deref(), &start.opt_in())?;
    let is_given = !args.profiles.is_empty();
    let paths = profile_paths(args.profiles, &folder)?;
    let library = paths.contains(&shown()).then_some(Path::new(DEFAULT_FOLDER)).filter(|_| !is_given);
    // The playground reads and compiles profiles on this machine, so only clients on this machine may reach it.
    let playground = args.metrics_listen.ip().is_loopback().then(|| {
        let own = if is_given || paths == [Path::new(DEFAULT_FOLDER)] { paths.clone() } else { Vec::new() };
        Playground::new(start.clone(), library.map_or(own, |library| vec![library.to_owned()]))
    });
    let playground = playground.transpose()?;
    let has_playground = playground.is_some();
    let mut profiles = ProfileFiles::new(paths);
    if let Some(loaded) = profiles.load_if_changed() {
        output::problems(&loaded.problems)?;
    }
    let failure_modes = namespaces::failure_modes(&namespaces);
    let snapshot = Snapshot::new(profiles.active()).with_namespaces(namespaces);
    let snapshot = snapshot.with_guardrails(start.guardrails.clone());
    let sample = Sample::find(&snapshot, &opted_in(&failure_modes));
    folder.write_sample(&sample)?;

    let snapshot = Arc::new(ArcSwap::from_pointee(snapshot));
    let readiness = Readiness::default();
    let policy = Arc::new(ArcSwap::from_pointee(start.decision_policy()?));
    let mut registry = Registry::default();
    controls.register(&mut registry);
    let (settings, requests) = (start.server_settings(), start.request_settings());
    let targets = follow::ReloadTargets { policy: Arc::clone(&policy), controls: controls.clone() };
    let config = args.config.config.map(|file| ConfigFile::new(file, overrides, &start, targets));
    follow::register(&mut registry, config.as_ref());
    let servers = Servers::bind(Parts {
        listen: args.listen,
        metrics_listen: args.metrics_listen,
        certificate: certificate(args.listen, &folder)?,
        clients: None,
        snapshot: Arc::clone(&snapshot),
        live_namespace: None,
        lookups: None,
        policy,
        switch: Switch::default(),
        readiness: readiness.clone(),
        registry,
        pages: playground.map_or_else(Router::new, Playground::router),
        limits: start.metrics.settings(),
        settings,
        requests,
    })
    .await?;
    let announcement = Service {
        address: servers.address,
        metrics_address: servers.metrics_address,
        has_playground,
        profiles: snapshot.load().profiles(),
        paths: profiles.paths(),
        library,
        namespaces: &failure_modes,
        folder: &folder,
        sample: &sample,
        program: &announce::own_program(),
    }
    .text();
    output::print(&announcement)?;

    let (stop, drain) = (CancellationToken::new(), CancellationToken::new());
    tokio::spawn(controls.level.follow(detail, stop.clone()));
    if let Some(config) = config {
        tokio::spawn(config.follow(POLL, stop.clone()));
    }
    let _ends = stop.drop_guard();
    let mut serving = tokio::spawn(servers.run(drain.clone()));
    let follow = Follow { profiles, snapshot, namespaces: &failure_modes, folder: &folder };
    tokio::select! {
        signal = signals.next() => info!(signal, "stopping"),
        ended = follow.run() => match ended {},
        ended = &mut serving => return ended.context("the servers failed")?,
    }
    signals.abort_at_next();
    readiness.drain();
    drain.cancel();
    serving.await.context("the servers failed")?
}

/// Polls the profile files, and publishes changes.
struct Follow<'f> {
    profiles: ProfileFiles,
    snapshot: Arc<ArcSwap<Snapshot>>,
    namespaces: &'f FailureModes,
    folder: &'f Folder,
}

impl Follow<'_> {
    /// Polls the files forever.
    async fn run(mut self) -> std::convert::Infallible {
        let mut ticks = tokio::time::interval(POLL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // The files are small, so they are read on this worker thread.
            let loaded = tokio::task::block_in_place(|| self.profiles.load_if_changed());
            if let Some(loaded) = loaded
                && let Err(error) = self.publish(&loaded)
            {
                error!("{}", output::causes(&error));
            }
        }
    }

    fn publish(&self, loaded: &Loaded) -> anyhow::Result<()> {
        let snapshot = self.snapshot.load().with_profiles(self.profiles.active());
        let sample = Sample::find(&snapshot, &opted_in(self.namespaces));
        self.snapshot.store(Arc::new(snapshot));
        output::problems(&loaded.problems)?;
        output::print(&announce::change(loaded))?;
        self.folder.write_sample(&sample)
    }
}

fn profile_paths(given: Vec<PathBuf>, folder: &Folder) -> anyhow::Result<Vec<PathBuf>> {
    if let Some(missing) = given.iter().find(|path| !path.exists()) {
        bail!("--profile {}: there is no such file or folder", missing.display());
    }
    if !given.is_empty() {
        return Ok(given);
    }
    if shown().join("profile.yaml").is_file() {
        return Ok(vec![shown()]);
    }
    let default = PathBuf::from(DEFAULT_FOLDER);
    if default.is_dir() { Ok(vec![default]) } else { Ok(vec![folder.write("nginx.yaml", EMBEDDED)?]) }
}

/// Returns the path of the profile that is served by default if the folder is a library.
fn shown() -> PathBuf {
    Path::new(DEFAULT_FOLDER).join(SHOWN)
}

fn all_namespaces(given: &[NamespaceArg], file: Option<&Path>, opt_in: &OptIn) -> anyhow::Result<Namespaces> {
    let read = file.map(namespaces::from_file).transpose()?.unwrap_or_default();
    let mut all: Namespaces =
        read.into_iter().map(|(name, namespace)| (name, namespace.opting_in_by(opt_in))).collect();
    all.extend(given.iter().map(|given| (given.name.clone(), Namespace::opted_in(given.failure_mode))));
    if given.is_empty() && file.is_none() {
        let failure_mode = pillion_api::names::FailureMode::Enabled;
        all.insert("default".into(), Namespace::opted_in(failure_mode));
    }
    Ok(all)
}

fn opted_in(namespaces: &FailureModes) -> impl Iterator<Item = &str> + Clone {
    namespaces.iter().filter(|(_, failure_mode)| failure_mode.is_some()).map(|(name, _)| &**name)
}

fn certificate(listen: SocketAddr, folder: &Folder) -> anyhow::Result<Arc<ServingCertificate>> {
    let made = self_signed_certificate(listen.ip())?;
    folder.write_ca(&made.ca)?;
    let certificate = PemText { source: "the generated certificate", text: made.certificate.as_bytes() };
    let key = PemText { source: "the generated key", text: made.key.as_bytes() };
    Ok(ServingCertificate::new(certificate, key)?)
}
