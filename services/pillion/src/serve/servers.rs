//! The two ports and what stands behind them: admission over TLS, and operations (probes and metrics) in clear text.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use arc_swap::ArcSwap;
use pillion_engine::snapshot::Snapshot;
use pillion_webhook::health::{self, Readiness};
use pillion_webhook::metrics::Metrics;
use pillion_webhook::router::{self, Admission, LiveNamespace, RequestSettings};
use pillion_webhook::serve::{Server, ServerSettings};
use pillion_webhook::tls::ServingCertificate;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// What the servers need.
pub(crate) struct Parts {
    pub(crate) listen: SocketAddr,
    pub(crate) metrics_listen: SocketAddr,
    pub(crate) certificate: Arc<ServingCertificate>,
    pub(crate) snapshot: Arc<ArcSwap<Snapshot>>,
    pub(crate) live_namespace: Option<LiveNamespace>,
    pub(crate) readiness: Readiness,
    pub(crate) registry: Registry,
    pub(crate) settings: ServerSettings,
}

/// Both servers, bound and not yet running.
#[must_use = "servers do nothing until they are run"]
#[derive(Debug)]
pub(crate) struct Servers {
    admission: Server,
    operations: Server,
    /// Where admission reviews are taken: the port that was given, or the one that the system chose for port 0.
    pub(crate) address: SocketAddr,
    /// Where probes and metrics are.
    pub(crate) metrics_address: SocketAddr,
}

impl Servers {
    /// Binds both ports. Everything else should be known to be right by now.
    ///
    /// # Errors
    /// A port cannot be bound.
    pub(crate) async fn bind(parts: Parts) -> anyhow::Result<Self> {
        let Parts { listen, metrics_listen, certificate, snapshot, live_namespace, readiness, mut registry, settings } =
            parts;
        let tls = certificate.server_config().context("TLS cannot be set up")?;
        let metrics = Arc::new(Metrics::register(&mut registry));
        Metrics::register_snapshot(&mut registry, Arc::clone(&snapshot));
        let connections = metrics.connections.clone();
        let admission = Admission { snapshot, live_namespace, metrics, settings: RequestSettings::default() };

        let admission_port = bind("--listen", listen).await?;
        let operations_port = bind("--metrics-listen", metrics_listen).await?;
        let operations = health::router(readiness, Arc::new(registry));
        let admission = Server::tls(admission_port, tls, router::router(admission), settings, connections);
        let operations = Server::plain(operations_port, operations, ServerSettings::ops());
        let (address, metrics_address) = (admission.local_addr()?, operations.local_addr()?);
        Ok(Self { admission, operations, address, metrics_address })
    }

    /// Serves until `drain` is cancelled and admission has drained. The operations port ends last: it says why the
    /// process is not ready.
    pub(crate) async fn run(self, drain: CancellationToken) {
        let drained = CancellationToken::new();
        let admission = async {
            let ended = self.admission.run(drain).await;
            if ended.cut > 0 {
                tracing::warn!(connections = ended.cut, "connections were cut, as they did not end in time");
            }
            drained.cancel();
        };
        tokio::join!(admission, self.operations.run(drained.clone()));
    }
}

async fn bind(argument: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen at {address} ({argument})"))
}
