//! The accept loop for TCP, TLS, HTTP/1.1 and HTTP/2, with limits on all resources, and a drain that loses no request.
//!
//! The API server pools connections for 90 seconds, and does not retry a POST that it sent on a closing connection. So
//! a draining server continues to accept connections and to answer requests. It asks each client by `Connection: close`
//! (HTTP/2: GOAWAY) to connect elsewhere. It ends when a minimum time has passed and no connection is left, or at the
//! deadline of the drain.

mod connection;
mod connection_permits;

use std::convert::Infallible;
use std::future::pending;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use prometheus_client::registry::Registry;
use rustls::ServerConfig;
use rustls::server::{Acceptor, NoServerSessionStorage};
use rustls_pki_types::CertificateDer;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::connection::{Builders, ConnectionContext, Ended, Protocol};
use self::connection_permits::{Authentication, ConnectionPermit, ConnectionPermits};
use crate::clients::{Caller, ClientCertificates};
use crate::metrics::{ConnectionMetrics, HandshakeResult};
use crate::tls::{ServingCertificate, provider};

/// How long to wait after `accept` failed. The usual cause is a lack of file descriptors.
const ACCEPT_BACK_OFF: Duration = Duration::from_millis(50);
/// The minimum time between log lines about failed accepts.
const ACCEPT_QUIET: Duration = Duration::from_secs(5);
/// The maximum number of connections that are accepted in a row during the drain, which is about the length of the
/// kernel's queue.
const BACKLOG: usize = 1024;
/// How long before the end of a drain the server closes idle connections. Requests in flight then have this time to be
/// answered. The time is at most a tenth of the drain's maximum duration.
const LAST_RESPONSES: Duration = Duration::from_secs(1);
/// The random variation of a connection's maximum age, as a fraction. It prevents all clients from reconnecting at
/// once.
const AGE_JITTER: f64 = 0.2;

/// The limits of a server, which bound every resource that a client can use.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerSettings {
    /// Maximum time from the TCP connection to the end of the TLS handshake.
    pub handshake_timeout: Duration,
    /// Maximum number of concurrent handshakes in which the client has sent data. Further handshakes wait, within their
    /// own timeout.
    pub max_handshakes: usize,
    /// Maximum time from the first to the last byte of a request's head (HTTP/1.1).
    pub header_timeout: Duration,
    /// How long a connection may be open without a request. It must exceed the API server's 90 s, so that the client
    /// closes the connection first: if the server did, the client might be sending a request at that moment. If a
    /// required certificate of the client is missing or not accepted, the handshake timeout applies instead.
    pub idle_timeout: Duration,
    /// Maximum time from a request's head to its response. On HTTP/2, the time starts again whenever a request on the
    /// connection begins or is answered. The routes have shorter limits, so this one is only a safeguard.
    pub request_timeout: Duration,
    /// How long a response may wait until its client reads it. For each 256 KiB of the response, the client has one
    /// second more.
    pub response_timeout: Duration,
    /// Maximum number of bytes of all pending responses on one connection. A single pending response may have any size.
    pub max_pending_response_bytes: usize,
    /// Maximum number of concurrent connections. If it is reached, a new connection replaces one of the address with
    /// the most connections, if that address has at least two more than the new connection's address. If this is not
    /// possible and the new connection's address has no other, the new connection replaces one whose handshake or
    /// request is incomplete. Otherwise, the new connection is closed. A connection with an accepted client certificate
    /// is never replaced.
    pub max_connections: usize,
    /// The age at which the server asks the client to reconnect, so that new replicas get their share of load. The
    /// actual age varies by up to 20 per cent. `None`: no maximum age.
    pub max_age: Option<Duration>,
    /// The minimum time for which a draining server still accepts connections, because clients still route requests to
    /// it.
    pub drain_minimum: Duration,
    /// How long the drain may take before the remaining connections are cut.
    pub drain_deadline: Duration,
    /// The size of the operating system's send buffer for a connection, in bytes. Linux allocates twice this size.
    /// Without this setting, the buffer grows up to some MiB, although a response has a few KiB.
    pub send_buffer_bytes: usize,
    /// On HTTP/1.1, the maximum size, in bytes, of a connection's buffer in each direction. The head of a request must
    /// fit into it. On HTTP/2, the maximum size of the send buffer of each stream.
    pub max_buffer_bytes: usize,
    /// Maximum number of concurrent requests on one HTTP/2 connection.
    pub max_streams: u32,
    /// Maximum size of a request's head on HTTP/2, in bytes.
    pub max_header_bytes: u32,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(5),
            max_handshakes: 256,
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_mins(2),
            request_timeout: Duration::from_secs(40),
            response_timeout: Duration::from_secs(10),
            max_pending_response_bytes: 1024 * 1024,
            max_connections: 4096,
            max_age: Some(Duration::from_mins(5)),
            drain_minimum: Duration::from_secs(10),
            drain_deadline: Duration::from_secs(100),
            send_buffer_bytes: 256 * 1024,
            max_buffer_bytes: 64 * 1024,
            max_streams: 128,
            max_header_bytes: 32 * 1024,
        }
    }
}

impl ServerSettings {
    /// Returns the settings for the operations port, which has few clients and needs no long drain.
    #[must_use]
    pub fn ops() -> Self {
        Self {
            max_connections: 256,
            // If idle connections took all permits, the kubelet's probes would fail, and the kubelet would restart the
            // container.
            idle_timeout: Duration::from_secs(10),
            max_age: None,
            drain_minimum: Duration::ZERO,
            drain_deadline: Duration::from_secs(1),
            ..Self::default()
        }
    }
}

/// The TLS configuration of a server: its certificate, and the authentication of its clients.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ServerConfig>,
    clients: Option<Arc<ClientCertificates>>,
}

impl Tls {
    /// Creates a configuration for TLS 1.2 and 1.3 that offers HTTP/2 and HTTP/1.1. Each handshake uses the current
    /// certificate. With `clients`, requests require a client certificate that was issued by one of the CAs that are
    /// current at the handshake.
    ///
    /// # Errors
    /// The cryptography library does not support these versions of TLS, because the program was built incorrectly.
    pub fn new(
        certificate: Arc<ServingCertificate>,
        clients: Option<Arc<ClientCertificates>>,
    ) -> Result<Self, rustls::Error> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?;
        let builder = match &clients {
            Some(clients) => builder.with_client_cert_verifier(Arc::<ClientCertificates>::clone(clients)),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(certificate);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // The API server keeps no TLS sessions. Without resumption, every handshake uses the current certificate and
        // verifies the client's certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self { config: Arc::new(config), clients })
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Returns the result of authenticating a client with these verified certificates.
    pub(crate) fn caller(&self, certificates: Option<&[CertificateDer<'_>]>, metrics: &ConnectionMetrics) -> Caller {
        self.clients.as_ref().map_or_else(Caller::unauthenticated, |clients| clients.caller(certificates, metrics))
    }
}

/// A server that is bound to an address but not running yet.
#[derive(Debug)]
#[must_use = "a server does nothing until it is run"]
pub struct Server {
    listener: TcpListener,
    app: Router,
    settings: ServerSettings,
    tls: Option<Tls>,
    metrics: ConnectionMetrics,
}

/// The result of a server's drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// The number of connections that were cut at the deadline.
    pub cut: usize,
}

impl Server {
    /// Creates a server that serves `app` over TLS.
    pub fn tls(
        listener: TcpListener,
        tls: Tls,
        app: Router,
        settings: ServerSettings,
        metrics: ConnectionMetrics,
    ) -> Self {
        limit_send_buffer(&listener, &settings);
        Self { listener, app, settings, tls: Some(tls), metrics }
    }

    /// Creates a server that serves `app` over HTTP/1.1 without TLS. Metrics of its connections are not exported.
    pub fn plain(listener: TcpListener, app: Router, settings: ServerSettings) -> Self {
        limit_send_buffer(&listener, &settings);
        let metrics = ConnectionMetrics::register(&mut Registry::default());
        Self { listener, app, settings, tls: None, metrics }
    }

    /// Returns the address that the server listens on.
    ///
    /// # Errors
    /// The operating system does not return the address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `drain` is cancelled. Then drains for at least the minimum time, and returns once all connections
    /// have ended or the deadline has passed.
    pub async fn run(self, drain: CancellationToken) -> Drained {
        let Self { listener, app, settings, tls, metrics } = self;
        let drain = Drain::when(drain);
        let tracker = TaskTracker::new();
        let cut = CancellationToken::new();
        let acceptor = Connections {
            permits: ConnectionPermits::new(settings.max_connections, cut.clone()),
            tracker: tracker.clone(),
            context: Arc::new(ServerContext {
                builders: Builders::new(&settings),
                handshakes: Semaphore::new(settings.max_handshakes),
                app,
                tls,
                metrics: metrics.clone(),
                drain: drain.clone(),
                settings: settings.clone(),
            }),
        };
        let deadline = tokio::select! {
            never = acceptor.accept(&listener) => match never {},
            deadline = drain.run(&tracker, &settings, &metrics) => deadline,
        };
        acceptor.accept_until_drained(&listener, deadline).await;
        drop(listener);
        let cut_connections = tracker.len();
        cut.cancel();
        tracker.close();
        tracker.wait().await;
        Drained { cut: cut_connections }
    }
}

/// Sets the size of the send buffer on the listener, from which accepted connections inherit it.
fn limit_send_buffer(listener: &TcpListener, settings: &ServerSettings) {
    if let Err(error) = SockRef::from(listener).set_send_buffer_size(settings.send_buffer_bytes) {
        tracing::debug!(%error, "cannot limit the send buffers of connections");
    }
}

/// The state that all connections of a server share.
struct ServerContext {
    builders: Builders,
    handshakes: Semaphore,
    app: Router,
    tls: Option<Tls>,
    metrics: ConnectionMetrics,
    drain: Drain,
    settings: ServerSettings,
}

struct Connections {
    permits: ConnectionPermits,
    tracker: TaskTracker,
    context: Arc<ServerContext>,
}

impl Connections {
    /// Accepts connections until the future is dropped.
    async fn accept(&self, listener: &TcpListener) -> Infallible {
        let mut last_logged: Option<Instant> = None;
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.spawn(stream, peer),
                // The error concerns only one connection, so the server accepts the next one at once.
                Err(error) if affects_one_connection(&error) => {
                    tracing::debug!(%error, "a connection could not be accepted");
                }
                Err(error) => {
                    self.context.metrics.accept_errors.inc();
                    if last_logged.is_none_or(|at| at.elapsed() >= ACCEPT_QUIET) {
                        last_logged = Some(Instant::now());
                        tracing::error!(
                            %error,
                            "no connection can be accepted, retrying 20 times a second; if there are no free file \
                             descriptors, raise their limit (ulimit -n)"
                        );
                    }
                    sleep(ACCEPT_BACK_OFF).await;
                }
            }
        }
    }

    /// Accepts connections until none is open and none waits in the kernel's queue, or until the deadline. Closes idle
    /// connections shortly before the deadline. The kernel establishes connections before the process accepts them. If
    /// the listener were closed while connections are in the queue, the kernel would reset them.
    async fn accept_until_drained(&self, listener: &TcpListener, deadline: Instant) {
        let ServerContext { drain, settings, .. } = &*self.context;
        let mut close_idle = pin!(drain.close_idle(deadline, settings));
        while Instant::now() < deadline {
            self.accept_pending(listener);
            if self.tracker.is_empty() {
                return;
            }
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => self.spawn(stream, peer),
                    Err(error) => {
                        tracing::debug!(%error, "a connection could not be accepted");
                        sleep(ACCEPT_BACK_OFF).await;
                    }
                },
                () = self.tracker.wait() => {}
                () = sleep_until(deadline) => {}
                never = &mut close_idle => match never {},
            }
        }
    }

    /// Accepts the connections that wait in the kernel's queue. Calls `accept` directly, because the runtime may not
    /// have been notified of recent connections yet.
    fn accept_pending(&self, listener: &TcpListener) {
        for _ in 0..BACKLOG {
            let accepted = SockRef::from(listener).accept().and_then(|(socket, peer)| {
                socket.set_nonblocking(true)?;
                let peer = peer.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
                Ok((TcpStream::from_std(socket.into())?, peer))
            });
            match accepted {
                Ok((stream, peer)) => self.spawn(stream, peer),
                Err(error) if affects_one_connection(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => return tracing::debug!(%error, "a connection could not be accepted"),
            }
        }
    }

    fn spawn(&self, stream: TcpStream, peer: SocketAddr) {
        let Some(permit) = self.permits.take(peer.ip()) else {
            self.context.metrics.handshake(HandshakeResult::Refused);
            tracing::debug!(%peer, limit = self.context.settings.max_connections, "too many connections: one is rejected");
            return;
        };
        let context = Arc::clone(&self.context);
        self.tracker.spawn(async move {
            if permit.run(context.serve(stream, peer, &permit)).await {
                context.count_revoked(peer);
            }
        });
    }
}

impl ServerContext {
    async fn serve(&self, stream: TcpStream, peer: SocketAddr, permit: &ConnectionPermit) {
        // A response is one small write. Waiting to combine it with more data would only delay it.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "cannot set TCP_NODELAY");
        }
        let _open = OpenConnection::new(&self.metrics);
        let ended = match &self.tls {
            None => {
                permit.set_authentication(Authentication::Anonymous);
                self.http(stream, (peer, Protocol::Http1), Caller::unauthenticated(), permit).await
            }
            Some(tls) => {
                let Some(stream) = self.handshake(stream, peer, tls).await else { return };
                let caller = tls.caller(stream.get_ref().1.peer_certificates(), &self.metrics);
                let is_accepted = caller.has_certificate();
                permit.set_authentication(if is_accepted {
                    Authentication::Certificate
                } else {
                    Authentication::Anonymous
                });
                let protocol = match stream.get_ref().1.alpn_protocol() {
                    Some(b"h2") => Protocol::Http2,
                    _ => Protocol::Http1,
                };
                self.http(stream, (peer, protocol), caller, permit).await
            }
        };
        match ended {
            Ended::Closed => {}
            Ended::Failed(error) => tracing::debug!(%peer, error = %Causes(&*error), "a connection failed"),
            Ended::TimedOut(waiting) => {
                self.metrics.timed_out(waiting);
                tracing::debug!(%peer, ?waiting, "a connection was too slow and is closed");
            }
        }
    }

    async fn handshake(&self, stream: TcpStream, peer: SocketAddr, tls: &Tls) -> Option<TlsStream<TcpStream>> {
        let began = Instant::now();
        let handshake = async {
            let start = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
            // The permit is acquired only once the client has sent data, so that silent clients do not block others.
            let _permit = self.handshakes.acquire().await.map_err(io::Error::other)?;
            start.into_stream(tls.config()).await
        };
        let (result, stream) = match timeout(self.settings.handshake_timeout, handshake).await {
            Ok(Ok(stream)) => (HandshakeResult::Ok, Some(stream)),
            Ok(Err(error)) => {
                tracing::debug!(%peer, %error, "a TLS handshake failed");
                let is_certificate = is_client_certificate_error(&error);
                (if is_certificate { HandshakeResult::ClientCertificate } else { HandshakeResult::Failed }, None)
            }
            Err(_) => {
                tracing::debug!(%peer, "a TLS handshake took too long");
                (HandshakeResult::TimedOut, None)
            }
        };
        self.metrics.handshake_ended(result, began.elapsed());
        stream
    }

    /// Counts and logs a connection that was closed to make room for a client with fewer connections.
    fn count_revoked(&self, peer: SocketAddr) {
        self.metrics.evicted();
        let limit = self.settings.max_connections;
        tracing::debug!(%peer, limit, "too many connections: one is closed for a client that has fewer");
    }

    async fn http<S>(
        &self,
        stream: S,
        (peer, protocol): (SocketAddr, Protocol),
        caller: Caller,
        permit: &ConnectionPermit,
    ) -> Ended
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let at = self.settings.max_age.map(|age| Instant::now() + jittered(age, RandomState::new().hash_one(0_u8)));
        let retire = Retire::new(at, self.drain.clone());
        let context = ConnectionContext { address: peer.ip(), protocol, retire, caller, requests: permit.requests() };
        connection::serve(stream, &self.builders, self.app.clone(), &self.settings, context).await
    }
}

/// Determines when the server asks a client to end a connection: at the connection's maximum age, or when the server
/// drains.
#[derive(Clone, Debug)]
pub(crate) struct Retire {
    at: Option<Instant>,
    drain: Drain,
}

/// Whether the server is draining. Each HTTP/1.1 response reads the flag, and tasks wait for the token.
#[derive(Clone, Debug)]
struct Drain {
    flag: Arc<AtomicBool>,
    token: CancellationToken,
    /// Cancelled shortly before the drain ends, to close idle connections.
    idle: CancellationToken,
}

impl Drain {
    /// Returns a drain that begins when the token is cancelled.
    fn when(token: CancellationToken) -> Self {
        Self { flag: Arc::default(), token, idle: CancellationToken::new() }
    }

    /// Waits for the drain to begin. Then waits for the minimum time, and until no connection is left or the deadline
    /// has passed. Returns the deadline.
    async fn run(&self, tracker: &TaskTracker, settings: &ServerSettings, metrics: &ConnectionMetrics) -> Instant {
        self.token.cancelled().await;
        self.flag.store(true, Ordering::Relaxed);
        metrics.draining.set(1);
        let deadline = Instant::now() + settings.drain_deadline;
        sleep(settings.drain_minimum.min(settings.drain_deadline)).await;
        // A closed tracker still accepts new tasks. It must be closed, because `wait` returns only on a closed tracker.
        tracker.close();
        tokio::select! {
            () = tracker.wait() => {}
            () = sleep_until(deadline) => {}
            never = self.close_idle(deadline, settings) => match never {},
        }
        deadline
    }

    /// Closes idle HTTP/1.1 connections shortly before the deadline. Requests in flight get the remaining time before
    /// their connections are cut. Never returns.
    async fn close_idle(&self, deadline: Instant, settings: &ServerSettings) -> Infallible {
        sleep_until(deadline - LAST_RESPONSES.min(settings.drain_deadline / 10)).await;
        self.idle.cancel();
        pending().await
    }
}

impl Retire {
    /// Creates a value that is due at this time (`None`: never), or when the server drains.
    const fn new(at: Option<Instant>, drain: Drain) -> Self {
        Self { at, drain }
    }

    pub(crate) fn is_due(&self) -> bool {
        self.drain.flag.load(Ordering::Relaxed) || self.at.is_some_and(|at| at <= Instant::now())
    }

    /// Waits until the connection is due to end: at its maximum age, or when the drain begins.
    pub(crate) async fn wait(&self) {
        match self.at {
            Some(at) => tokio::select! {
                () = self.drain.token.cancelled() => {}
                () = sleep_until(at) => {}
            },
            None => self.drain.token.cancelled().await,
        }
    }

    /// Waits until the drain closes idle connections.
    pub(crate) async fn closes_idle(&self) {
        self.drain.idle.cancelled().await;
    }
}

/// Counts a connection as open until this value is dropped.
struct OpenConnection<'m>(&'m ConnectionMetrics);

impl<'m> OpenConnection<'m> {
    fn new(metrics: &'m ConnectionMetrics) -> Self {
        metrics.connections.inc();
        Self(metrics)
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}

/// Displays an error and its causes on one line.
struct Causes<'e>(&'e (dyn std::error::Error + Send + Sync));

impl std::fmt::Display for Causes<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(formatter, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

fn affects_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// Returns whether a handshake failed because of the client's certificate. A server verifies no other certificate.
fn is_client_certificate_error(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidCertificate(_)))
}

/// Returns `age`, made shorter or longer by up to [`AGE_JITTER`], depending on `random`.
fn jittered(age: Duration, random: u64) -> Duration {
    #[expect(clippy::cast_precision_loss, reason = "any number between 0 and 1 will do")]
    let fraction = random as f64 / u64::MAX as f64;
    age.mul_f64(1.0 - AGE_JITTER + 2.0 * AGE_JITTER * fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_at_most_a_fifth() {
        let age = Duration::from_mins(5);
        assert_eq!(jittered(age, 0), Duration::from_mins(4));
        assert_eq!(jittered(age, u64::MAX).as_secs(), 360);
        let half = jittered(age, u64::MAX / 2);
        assert!(half.abs_diff(age) < Duration::from_millis(1), "{half:?}");
    }

    #[test]
    fn idle_timeout_exceeds_api_servers() {
        assert!(ServerSettings::default().idle_timeout > Duration::from_secs(90));
    }

    #[test]
    fn only_general_accept_errors_pause_the_loop() {
        assert!(affects_one_connection(&io::ErrorKind::ConnectionAborted.into()));
        // Error 24 is EMFILE: the process has no file descriptor left.
        assert!(!affects_one_connection(&io::Error::from_raw_os_error(24)));
    }
}
