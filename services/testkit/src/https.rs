//! An HTTPS server stack like the webhook's, but independent of its code: TCP, rustls, hyper's HTTP version detection,
//! axum.
//!
//! Tests use it for their own webhooks. The `floor` binary uses it to measure the lowest possible cost of such a
//! server.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::server::NoServerSessionStorage;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Returns a TLS configuration like the webhook's: HTTP/2 and HTTP/1.1, without session resumption.
///
/// # Errors
/// The PEM inputs have no certificate or no key, or the certificate and the key do not match.
pub fn server_config(cert_pem: &[u8], key_pem: &[u8]) -> anyhow::Result<Arc<ServerConfig>> {
    crate::certificates::install_crypto_provider();
    let chain = CertificateDer::pem_slice_iter(cert_pem)
        .collect::<Result<Vec<_>, _>>()
        .context("the certificate is not valid PEM")?;
    let key = PrivateKeyDer::from_pem_slice(key_pem).context("the key is not valid PEM")?;
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .context("the certificate and the key do not match")?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Serves `app` on `listener` until the future is dropped, which also ends its connections. Ignores failed connections.
pub async fn serve(listener: TcpListener, tls: Arc<ServerConfig>, app: Router) {
    let acceptor = TlsAcceptor::from(tls);
    let builder = auto::Builder::new(TokioExecutor::new());
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // Reaps ended connections.
            Some(_) = connections.join_next() => continue,
        };
        let Ok((stream, _)) = accepted else {
            // The usual cause is a lack of file descriptors, so an immediate retry would fail too.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let (acceptor, builder, app) = (acceptor.clone(), builder.clone(), app.clone());
        connections.spawn(async move {
            let _ = stream.set_nodelay(true);
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = TowerToHyperService::new(app);
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
