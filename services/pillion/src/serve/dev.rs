//! `pillion dev`: the webhook without a cluster, for who writes profiles. Profiles come from files and are loaded again
//! when they change; the certificate is made here; what is served is told, with commands to try it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use arc_swap::ArcSwap;
use clap::Args;
use pillion_engine::snapshot::{Namespace, Snapshot};
use pillion_webhook::health::Readiness;
use pillion_webhook::switch::Switch;
use pillion_webhook::tls::{PemText, ServingCertificate};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::announce::{self, Service};
use super::folder::Folder;
use super::namespaces::{self, NamespaceArg, Namespaces};
use super::own_path;
use super::profile_files::{Loaded, ProfileFiles};
use super::sample::Sample;
use super::self_made;
use super::servers::{Parts, Servers};
use super::signals::Signals;
use crate::args::{LogArgs, TraceArgs};
use crate::config::follow::{self, ConfigFile};
use crate::config::{ConfigArg, Overrides, WebhookPolicy};
use crate::telemetry::Controls;
use crate::telemetry::logs::LogLevel;
use crate::{causes, output};

/// Where profiles are if nobody says where.
const DEFAULT_FOLDER: &str = "profiles";
/// What is served if there are none.
const EMBEDDED: &str = include_str!("../../../../profiles/nginx/profile.yaml");
/// How often the files are read.
const POLL: Duration = Duration::from_secs(1);
/// How long connections may take to end.
const DRAIN_DEADLINE_SECONDS: u64 = 2;
/// What is logged unless somebody says otherwise: here one wants to see each decision.
const LOG_LEVEL: &str = "info,pillion_webhook=debug";

/// Arguments of `pillion dev`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DevArgs {
    /// Files with profiles, or folders of such files; may be given several times. Default: the folder profiles if there is
    /// one here, else a sample profile that adds an nginx sidecar.
    #[arg(short, long, alias = "profile", value_name = "PATH")]
    pub(crate) profiles: Vec<PathBuf>,
    /// Where admission reviews are taken, over TLS. Port 0 lets the system choose.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8443")]
    pub(crate) listen: SocketAddr,
    /// Where /livez, /readyz and /metrics are served, in clear text.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9090")]
    pub(crate) metrics_listen: SocketAddr,
    /// A namespace and how firmly it is opted in: enabled, required or held. May be given several times. Default:
    /// default=enabled.
    #[arg(long = "namespace", value_name = "NAME=LEVEL")]
    pub(crate) namespaces: Vec<NamespaceArg>,
    /// More namespaces, with their labels and annotations: Namespace objects, or a map such as {shop: required}.
    #[arg(long, alias = "namespace-file", value_name = "FILE")]
    pub(crate) namespaces_file: Option<PathBuf>,
    /// Folder for the certificate to trust and the samples. Default: a new one, which is removed at the end.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) config: ConfigArg,
    #[command(flatten)]
    pub(crate) traces: TraceArgs,
}

/// Serves until it is asked to end.
pub(crate) fn run(args: DevArgs, logs: &LogArgs) -> anyhow::Result<ExitCode> {
    // What is logged and how it ends is its own, whatever the file says for production.
    let overrides = Overrides {
        log_level: Some(logs.log_level.clone().unwrap_or_else(|| LOG_LEVEL.to_owned())),
        trace_ratio: args.traces.trace_ratio,
        drain_minimum: Some(0),
        drain_deadline: Some(DRAIN_DEADLINE_SECONDS),
    };
    let policy: WebhookPolicy = args.config.required(&overrides)?;
    let (traces, start) = (args.traces.clone(), policy.clone());
    super::run_service(logs, &traces, &policy, |controls| serve(args, overrides, start, controls))
}

async fn serve(args: DevArgs, overrides: Overrides, start: WebhookPolicy, controls: Controls) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let detail = LogLevel::signal()?;
    let folder = Folder::open(args.folder)?;
    let namespaces = all_namespaces(&args.namespaces, args.namespaces_file.as_deref())?;
    let mut profiles = ProfileFiles::new(profile_paths(args.profiles, &folder)?);
    if let Some(loaded) = profiles.load_if_changed() {
        output::problems(&loaded.problems)?;
    }
    let known = namespaces.iter().map(|(name, namespace)| (name.clone(), namespace.clone()));
    let snapshot = Snapshot::new(profiles.at_work()).with_namespaces(known).with_guardrails(start.guardrails.clone());
    let sample = Sample::find(&snapshot, &opted_in(&namespaces));
    folder.write_sample(&sample)?;

    let snapshot = Arc::new(ArcSwap::from_pointee(snapshot));
    let readiness = Readiness::default();
    let policy = Arc::new(ArcSwap::from_pointee(start.decided_by()?));
    let mut registry = Registry::default();
    controls.register(&mut registry);
    let (settings, requests) = (start.server_settings(), start.request_settings());
    let takers = follow::Takers { policy: Arc::clone(&policy), controls: controls.clone() };
    let config = args.config.config.map(|file| ConfigFile::new(file, overrides, &start, takers));
    follow::register(&mut registry, config.as_ref());
    let servers = Servers::bind(Parts {
        listen: args.listen,
        metrics_listen: args.metrics_listen,
        certificate: certificate(args.listen, &folder)?,
        clients: None,
        snapshot: Arc::clone(&snapshot),
        live_namespace: None,
        look_ups: None,
        policy,
        switch: Switch::default(),
        readiness: readiness.clone(),
        registry,
        measure: start.metrics_settings(),
        settings,
        requests,
    })
    .await?;
    let at_work = profiles.at_work();
    let service = Service {
        address: servers.address,
        metrics_address: servers.metrics_address,
        profiles: &at_work,
        paths: profiles.paths(),
        namespaces: &namespaces,
        folder: &folder,
        sample: &sample,
        program: &own_path::own(),
    };
    output::print(&service.text())?;

    let (stop, drain) = (CancellationToken::new(), CancellationToken::new());
    tokio::spawn(controls.level.follow(detail, stop.clone()));
    if let Some(config) = config {
        tokio::spawn(config.follow(POLL, stop.clone()));
    }
    let _ends = stop.drop_guard();
    let mut serving = tokio::spawn(servers.run(drain.clone()));
    let follow = Follow { profiles, snapshot, namespaces: &namespaces, folder: &folder };
    tokio::select! {
        signal = signals.next() => info!(signal, "asked to end"),
        ended = follow.run() => match ended {},
        ended = &mut serving => return ended.context("the servers failed")?,
    }
    signals.abort_at_next();
    readiness.drain();
    drain.cancel();
    serving.await.context("the servers failed")?
}

/// Follows the files of the profiles.
struct Follow<'f> {
    profiles: ProfileFiles,
    snapshot: Arc<ArcSwap<Snapshot>>,
    namespaces: &'f Namespaces,
    folder: &'f Folder,
}

impl Follow<'_> {
    /// For ever.
    async fn run(mut self) -> std::convert::Infallible {
        let mut ticks = tokio::time::interval(POLL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // A few small files: read where we are, while the other threads serve.
            let loaded = tokio::task::block_in_place(|| self.profiles.load_if_changed());
            if let Some(loaded) = loaded
                && let Err(error) = self.publish(&loaded)
            {
                error!("{}", causes::told(&error));
            }
        }
    }

    fn publish(&self, loaded: &Loaded) -> anyhow::Result<()> {
        let snapshot = self.snapshot.load().with_profiles(self.profiles.at_work());
        let sample = Sample::find(&snapshot, &opted_in(self.namespaces));
        self.snapshot.store(Arc::new(snapshot));
        output::problems(&loaded.problems)?;
        output::print(&announce::change(loaded))?;
        self.folder.write_sample(&sample)
    }
}

fn profile_paths(given: Vec<PathBuf>, folder: &Folder) -> anyhow::Result<Vec<PathBuf>> {
    if let Some(missing) = given.iter().find(|path| !path.exists()) {
        bail!("--profiles {}: there is no such file or folder", missing.display());
    }
    if !given.is_empty() {
        return Ok(given);
    }
    let default = PathBuf::from(DEFAULT_FOLDER);
    if default.is_dir() { Ok(vec![default]) } else { Ok(vec![folder.write("nginx.yaml", EMBEDDED)?]) }
}

fn all_namespaces(given: &[NamespaceArg], file: Option<&Path>) -> anyhow::Result<Namespaces> {
    let mut all = file.map(namespaces::from_file).transpose()?.unwrap_or_default();
    all.extend(given.iter().map(|given| (given.name.clone(), Namespace::opted_in(given.level))));
    if given.is_empty() && file.is_none() {
        let level = pillion_api::names::InjectionLevel::Enabled;
        all.insert("default".into(), Namespace::opted_in(level));
    }
    Ok(all)
}

fn opted_in(namespaces: &Namespaces) -> impl Iterator<Item = &str> + Clone {
    namespaces.iter().filter(|(_, namespace)| namespace.level().is_some()).map(|(name, _)| &**name)
}

fn certificate(listen: SocketAddr, folder: &Folder) -> anyhow::Result<Arc<ServingCertificate>> {
    let made = self_made::certificate(listen.ip())?;
    folder.write_authority(&made.authority)?;
    let certificate = PemText { source: "the certificate made here", text: made.certificate.as_bytes() };
    let key = PemText { source: "the key made here", text: made.key.as_bytes() };
    Ok(ServingCertificate::new(certificate, key)?)
}
