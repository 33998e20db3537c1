//! The two ports of a replica: admission over TLS, and operations (probes and metrics) over plain HTTP.
//!
//! The operations port has its own thread, so that probes do not wait while the process is busy.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use arc_swap::ArcSwap;
use axum::Router;
use pillion_engine::snapshot::Snapshot;
use pillion_webhook::admission::{Admission, LiveNamespace, RequestSettings, ReviewLookups};
use pillion_webhook::clients::ClientCertificates;
use pillion_webhook::health::{self, Readiness, once_ready};
use pillion_webhook::metrics::{self, Exposition, Metrics, MetricsSettings};
use pillion_webhook::policy::Policy;
use pillion_webhook::router;
use pillion_webhook::serve::{Server, ServerSettings, Tls};
use pillion_webhook::switch::Switch;
use pillion_webhook::tls::ServingCertificate;
use prometheus_client::registry::Registry;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// Inputs of [`Servers::bind`].
pub(crate) struct Parts {
    pub(crate) listen: SocketAddr,
    pub(crate) metrics_listen: SocketAddr,
    pub(crate) certificate: Arc<ServingCertificate>,
    /// Client authentication for admission. `None`: all clients are accepted.
    pub(crate) clients: Option<Arc<ClientCertificates>>,
    pub(crate) snapshot: Arc<ArcSwap<Snapshot>>,
    pub(crate) live_namespace: Option<LiveNamespace>,
    pub(crate) lookups: Option<ReviewLookups>,
    pub(crate) policy: Arc<ArcSwap<Policy>>,
    /// The kill switch. While it disables decisions, objects are allowed without any injection.
    pub(crate) switch: Switch,
    pub(crate) readiness: Readiness,
    pub(crate) registry: Registry,
    /// Additional routes of the operations port.
    pub(crate) pages: Router,
    pub(crate) limits: MetricsSettings,
    pub(crate) settings: ServerSettings,
    pub(crate) requests: RequestSettings,
}

/// Both servers, bound but not running yet.
#[must_use = "servers do nothing until they are run"]
#[derive(Debug)]
pub(crate) struct Servers {
    admission: Server,
    operations: Operations,
    /// The address for admission reviews, with the actual port if 0 was given.
    pub(crate) address: SocketAddr,
    /// The address of probes and metrics.
    pub(crate) metrics_address: SocketAddr,
}

impl Servers {
    /// Sets up TLS, and binds both ports. Call it after all other checks.
    ///
    /// # Errors
    /// TLS cannot be set up, or a port cannot be bound.
    pub(crate) async fn bind(parts: Parts) -> anyhow::Result<Self> {
        let Parts { listen, metrics_listen, certificate, snapshot, live_namespace, readiness, .. } = parts;
        let Parts { clients, lookups, policy, switch, mut registry, pages, limits, settings, requests, .. } = parts;
        let tls = Tls::new(Arc::clone(&certificate), clients).context("TLS cannot be set up")?;
        raise_descriptor_limit(settings.max_connections);
        let metrics = Arc::new(Metrics::register_with(&mut registry, &limits));
        metrics.register_snapshot(&mut registry, Arc::clone(&snapshot));
        metrics::register_certificate(&mut registry, certificate);
        readiness.register(&mut registry, metrics::PREFIX);
        let exposition = Exposition::from(registry);
        let connections = metrics.connections.clone();
        let counted = Arc::clone(&metrics);
        let admission = Admission { snapshot, live_namespace, lookups, policy, switch, metrics, settings: requests };

        let admission_port = bind("--listen", listen).await?;
        let app = once_ready(router::router(admission), readiness.clone(), counted);
        let operations = Operations::bind(metrics_listen, readiness, exposition).await?.with(pages);
        let admission = Server::tls(admission_port, tls, app, settings, connections);
        let (address, metrics_address) = (admission.local_addr()?, operations.address()?);
        Ok(Self { admission, operations, address, metrics_address })
    }

    /// Serves until `drain` is cancelled and admission has drained. The operations port ends last, since `/readyz`
    /// reports why the process is not ready.
    ///
    /// # Errors
    /// The operations port fails: without it, the process cannot be monitored.
    pub(crate) async fn run(self, drain: CancellationToken) -> anyhow::Result<()> {
        let drained = CancellationToken::new();
        let mut operations = self.operations.start(drained.clone())?;
        let failed = "the operations port cannot be served";
        let ended = tokio::select! {
            ended = self.admission.run(drain) => ended,
            early = &mut operations => return early?.context(failed),
        };
        if ended.cut > 0 {
            tracing::warn!(connections = ended.cut, "connections were closed, because they did not end in time");
        }
        drained.cancel();
        operations.await?.context(failed)
    }
}

/// The operations port, bound but not served yet.
#[must_use = "nothing is served until it is started"]
#[derive(Debug)]
pub(crate) struct Operations {
    listener: std::net::TcpListener,
    app: Router,
}

impl Operations {
    /// Binds the operations port, for probes and metrics.
    ///
    /// # Errors
    /// The port cannot be bound.
    pub(crate) async fn bind(listen: SocketAddr, readiness: Readiness, exposition: Exposition) -> anyhow::Result<Self> {
        // Converted to a listener of the standard library, because the runtime of another thread will serve it.
        let listener = bind("--metrics-listen", listen).await?.into_std()?;
        Ok(Self { listener, app: health::router(readiness, Arc::new(exposition)) })
    }

    /// Adds routes.
    pub(crate) fn with(self, pages: Router) -> Self {
        Self { app: self.app.merge(pages), ..self }
    }

    /// Returns the address, with the actual port if 0 was given.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves on a new thread until `end` is cancelled. The receiver gets the result.
    pub(crate) fn start(self, end: CancellationToken) -> anyhow::Result<oneshot::Receiver<io::Result<()>>> {
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let ended = runtime.block_on(async {
                let listener = TcpListener::from_std(self.listener)?;
                Server::plain(listener, self.app, ServerSettings::ops()).run(end).await;
                Ok(())
            });
            // Dropping the runtime would wait for computations whose results are no longer needed.
            runtime.shutdown_background();
            ended
        };
        let (ended, end) = oneshot::channel();
        let thread = std::thread::Builder::new().name("operations".to_owned());
        // An error means that the receiver was dropped, because the process is ending.
        let serve = move || drop(ended.send(serve()));
        thread.spawn(serve).context("cannot start the thread of the operations port")?;
        Ok(end)
    }
}

/// Binds a port; `argument` is its flag, for errors.
pub(crate) async fn bind(argument: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen at {address} ({argument})"))
}

/// The number of file descriptors that the process needs besides connections, such as for files, pipes and the API
/// server.
const RESERVED_DESCRIPTORS: u64 = 128;

/// Raises the soft limit of file descriptors to the hard limit, since each connection takes one descriptor. Warns if
/// the limit is too low for `connections`. The default soft limit is low only for the sake of programs that use
/// `select`. Go programs raise it in the same way.
fn raise_descriptor_limit(connections: usize) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    if let Err(error) = raised {
        debug!(%error, "the limit of file descriptors cannot be raised");
    }
    // `None` means that there is no limit.
    let limit = if raised.is_ok() { maximum } else { current };
    let needed = RESERVED_DESCRIPTORS.saturating_add(u64::try_from(connections).unwrap_or(u64::MAX));
    if let Some(limit) = limit.filter(|limit| *limit < needed) {
        warn!(
            limit,
            needed,
            "the limit of file descriptors is lower than that of connections: raise it (ulimit -n), or new connections wait \
             when it is reached"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read, Write};
    use std::net::TcpStream;
    use std::sync::mpsc;
    use std::time::Duration;

    use pillion_webhook::tls::PemText;

    use super::super::certificate::self_signed_certificate;
    use super::*;

    const LIMIT: Duration = Duration::from_mins(1);

    async fn servers() -> Servers {
        let any = "127.0.0.1:0".parse::<SocketAddr>().unwrap();
        let made = self_signed_certificate(any.ip()).unwrap();
        let pem = |text| PemText { source: "made for a test", text };
        let certificate = ServingCertificate::new(pem(made.certificate.as_bytes()), pem(made.key.as_bytes())).unwrap();
        let mut settings = ServerSettings::default();
        settings.drain_minimum = Duration::ZERO;
        Servers::bind(Parts {
            listen: any,
            metrics_listen: any,
            certificate,
            clients: None,
            snapshot: Arc::default(),
            live_namespace: None,
            lookups: None,
            policy: Arc::default(),
            switch: Switch::default(),
            readiness: Readiness::default(),
            registry: Registry::default(),
            pages: Router::new(),
            limits: MetricsSettings::default(),
            settings,
            requests: RequestSettings::default(),
        })
        .await
        .unwrap()
    }

    /// Requests `/livez`. Returns the first line of the response, or the error.
    fn probe(address: SocketAddr) -> io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text.lines().next().unwrap_or_default().to_owned())
    }

    #[test]
    fn probes_succeed_while_request_threads_are_busy() {
        const THREADS: usize = 2;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build().unwrap();
        let servers = runtime.block_on(servers());
        let address = servers.metrics_address;
        let drain = CancellationToken::new();
        let serving = runtime.spawn(servers.run(drain.clone()));
        assert_eq!(probe(address).unwrap(), "HTTP/1.1 200 OK");

        let (busy, is_busy) = mpsc::channel();
        let mut holds = Vec::new();
        for _ in 0..THREADS {
            let (hold, until) = mpsc::channel::<()>();
            let busy = busy.clone();
            // Blocks its thread until `hold` is dropped.
            runtime.spawn(async move {
                busy.send(()).unwrap();
                let _ = until.recv();
            });
            holds.push(hold);
        }
        for _ in 0..THREADS {
            is_busy.recv_timeout(LIMIT).unwrap();
        }
        let answer = probe(address);
        drop(holds);
        assert_eq!(answer.unwrap(), "HTTP/1.1 200 OK");

        drain.cancel();
        runtime.block_on(async { tokio::time::timeout(LIMIT, serving).await.unwrap().unwrap().unwrap() });
        assert!(probe(address).is_err(), "the operations port ends with admission");
    }

    #[test]
    fn soft_limit_becomes_hard_limit() {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let less = current.or(maximum).map_or(256, |limit| limit.min(256));
        setrlimit(Resource::Nofile, Rlimit { current: Some(less), maximum }).unwrap();
        raise_descriptor_limit(4096);
        assert_eq!(getrlimit(Resource::Nofile), Rlimit { current: maximum, maximum });
    }
}
