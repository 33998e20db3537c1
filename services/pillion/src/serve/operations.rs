//! The operations port: probes and metrics in clear text, on a thread of its own. A busy process must not appear dead
//! to a probe that waits behind its work.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use pillion_webhook::health::{self, Readiness};
use pillion_webhook::metrics::Exposition;
use pillion_webhook::serve::{Server, ServerSettings};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// The bound port, before it is served.
#[must_use = "nothing is served until it is started"]
#[derive(Debug)]
pub(crate) struct Operations {
    listener: std::net::TcpListener,
    app: Router,
}

impl Operations {
    /// Binds the port.
    ///
    /// # Errors
    /// The port cannot be bound.
    pub(crate) async fn bind(listen: SocketAddr, readiness: Readiness, exposition: Exposition) -> anyhow::Result<Self> {
        // Converted, because another thread's runtime will serve it.
        let listener = bind("--metrics-listen", listen).await?.into_std()?;
        Ok(Self { listener, app: health::router(readiness, Arc::new(exposition)) })
    }

    /// Adds further routes.
    pub(crate) fn with(self, pages: Router) -> Self {
        Self { app: self.app.merge(pages), ..self }
    }

    /// Returns the address, with the actual port if 0 was given.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `end` is cancelled. The receiver gets the result.
    pub(crate) fn start(self, end: CancellationToken) -> anyhow::Result<oneshot::Receiver<io::Result<()>>> {
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let ended = runtime.block_on(async {
                let listener = TcpListener::from_std(self.listener)?;
                Server::plain(listener, self.app, ServerSettings::ops()).run(end).await;
                Ok(())
            });
            // Dropping the runtime would wait for computations whose response is no longer needed.
            runtime.shutdown_background();
            ended
        };
        let (ended, end) = oneshot::channel();
        let thread = std::thread::Builder::new().name("operations".to_owned());
        // Err: the receiver is gone, because the process is ending.
        let serve = move || drop(ended.send(serve()));
        thread.spawn(serve).context("cannot start the thread of the operations port")?;
        Ok(end)
    }
}

/// Binds a port; `argument` is its flag, for errors.
pub(crate) async fn bind(argument: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen at {address} ({argument})"))
}
