//! Serves one connection with hyper, and watches it with a timer.
//!
//! hyper's `header_read_timeout` also runs between requests, so it would close idle connections after ten seconds. But
//! the API server pools them for ninety seconds, and does not retry a POST that it sent on a closing connection. So
//! this timer distinguishes an idle connection, which may wait long, from one on which a request's head has begun,
//! which may not.
//!
//! The same timer watches responses. A client that does not read keeps its responses in memory: in the socket's buffer
//! on HTTP/1.1, behind its flow-control window on HTTP/2. If a client does not read a response in time, its connection
//! is closed.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http::header::{CONNECTION, TRANSFER_ENCODING};
use http::{HeaderValue, Request, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};
use tower::Service;

use super::{Retire, ServerSettings};
use crate::clients::{Caller, ClientAddress};
use crate::metrics::Waiting;

/// The minimum read rate of a client with pending data, in bytes per second.
const MIN_RATE: u64 = 256 * 1024;
/// The value of [`Activity::blocked_since`] while the socket accepts all data.
const NOT_BLOCKED: u64 = u64::MAX;
/// How many bytes a connection reads before other connections get their turn. Decrypting them takes about 50 µs.
const BYTES_PER_TURN: usize = 64 * 1024;
/// Streams on HTTP/2 that the client may open and reset before the server accepts them.
const RESET_STREAMS: usize = 20;
/// Streams on HTTP/2 that may be reset for errors of the client.
const ERROR_STREAMS: usize = 1024;

/// The HTTP version of a connection. It is known before the first byte, by ALPN or by the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The connection was closed according to HTTP.
    Closed,
    /// The connection failed with an error.
    Failed(Box<dyn std::error::Error + Send + Sync>),
    /// The client was too slow, or idle for too long. Holds the event that the connection waited for.
    TimedOut(Waiting),
}

/// The properties of a connection that differ between connections of one server.
pub(crate) struct ConnectionContext {
    /// The client's address.
    pub(crate) address: IpAddr,
    pub(crate) protocol: Protocol,
    pub(crate) retire: Retire,
    pub(crate) caller: Caller,
    pub(crate) requests: Arc<Requests>,
}

/// hyper's builders with their limits, created once for a server.
#[derive(Clone, Debug)]
pub(crate) struct Builders {
    http1: auto::Builder<TokioExecutor>,
    http2: auto::Builder<TokioExecutor>,
}

impl Builders {
    pub(crate) fn new(settings: &ServerSettings) -> Self {
        let mut http1 = auto::Builder::new(TokioExecutor::new());
        // [`Activity`] has its own timer instead, as the module documentation explains.
        http1.http1().header_read_timeout(None).max_buf_size(settings.max_buffer_bytes);
        let mut http2 = auto::Builder::new(TokioExecutor::new());
        http2
            .http2()
            .max_concurrent_streams(settings.max_streams)
            .max_header_list_size(settings.max_header_bytes)
            // Limits on reset streams: exceeding either closes the connection. The values are the libraries' defaults,
            // stated here because they bound a rapid-reset attack.
            .max_pending_accept_reset_streams(RESET_STREAMS)
            .max_local_error_reset_streams(ERROR_STREAMS)
            .max_send_buf_size(settings.max_buffer_bytes);
        Self { http1: http1.http1_only(), http2: http2.http2_only() }
    }

    pub(super) const fn of(&self, protocol: Protocol) -> &auto::Builder<TokioExecutor> {
        match protocol {
            Protocol::Http1 => &self.http1,
            Protocol::Http2 => &self.http2,
        }
    }
}

/// The requests of one connection.
///
/// A connection may have to close in favour of another client's. It must not lose a request that is being answered, since
/// the API server does not send a POST twice. A request with an incomplete body may be lost, since the rest may never
/// arrive.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Requests whose response hyper does not have yet.
    unanswered: AtomicU32,
    /// Requests whose body is still being read.
    arriving: AtomicU32,
    /// Responses that hyper has and the client has not read.
    unread: AtomicU32,
    /// Whether the connection has to end once no request is being answered.
    are_last: AtomicBool,
}

impl Requests {
    /// Whether there are no unanswered requests.
    pub(crate) fn all_answered(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) == 0
    }

    /// Whether a request has arrived completely, and its client does not have the response.
    pub(crate) fn has_pending_response(&self) -> bool {
        self.unread.load(Ordering::Relaxed) > 0
            || self.unanswered.load(Ordering::Relaxed) > self.arriving.load(Ordering::Relaxed)
    }

    /// Whether the client is asked to send no more requests.
    pub(crate) fn are_last(&self) -> bool {
        self.are_last.load(Ordering::Relaxed)
    }

    /// Marks the current requests as the last.
    pub(crate) fn set_last(&self) {
        self.are_last.store(true, Ordering::Relaxed);
    }

    /// Counts a request whose head has arrived.
    pub(crate) fn begin(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a body that is still arriving.
    pub(crate) fn body_arriving(&self) {
        self.arriving.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a body is complete, or is no longer read.
    pub(crate) fn body_arrived(&self) {
        self.arriving.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records that a request has ended.
    pub(crate) fn answered(&self) {
        self.unanswered.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a response that hyper has taken.
    pub(crate) fn response_taken(&self) {
        self.unread.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the client has read a response, or that hyper has copied it to its write buffer.
    pub(crate) fn response_read(&self) {
        self.unread.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The activity on a connection, written by its socket and its requests and read by its timer. Times are milliseconds
/// since `opened`.
#[derive(Debug)]
struct Activity {
    opened: Instant,
    /// The maximum idle time.
    idle_timeout: Duration,
    requests: Arc<Requests>,
    /// Whether bytes have arrived since the last request: the head of the next one has begun.
    head_begun: AtomicBool,
    /// When `requests` or `head_begun` last changed.
    since: AtomicU64,
    /// Since when the socket has not accepted all data, or [`NOT_BLOCKED`].
    blocked_since: AtomicU64,
    /// Bytes that the socket has accepted since `blocked_since`.
    accepted: AtomicU64,
    pending: Mutex<PendingResponses>,
}

/// Responses that hyper has taken and the client has not read: their bytes are still in memory.
#[derive(Debug, Default)]
struct PendingResponses {
    next: u64,
    bytes: usize,
    /// The oldest first.
    responses: VecDeque<PendingResponse>,
}

/// A pending response: its number, when hyper took it, and its bytes.
#[derive(Debug)]
struct PendingResponse {
    number: u64,
    since: u64,
    bytes: usize,
}

impl Activity {
    fn new(idle_timeout: Duration, requests: Arc<Requests>) -> Self {
        Self {
            opened: Instant::now(),
            idle_timeout,
            requests,
            head_begun: AtomicBool::new(false),
            since: AtomicU64::new(0),
            blocked_since: AtomicU64::new(NOT_BLOCKED),
            accepted: AtomicU64::new(0),
            pending: Mutex::default(),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn touch(&self) {
        self.since.store(self.now(), Ordering::Relaxed);
    }

    fn bytes_received(&self) {
        if self.requests.all_answered() && !self.head_begun.swap(true, Ordering::Relaxed) {
            self.touch();
        }
    }

    fn begin_request(self: &Arc<Self>) -> RequestGuard {
        self.requests.begin();
        self.head_begun.store(false, Ordering::Relaxed);
        self.touch();
        RequestGuard(Arc::clone(self))
    }

    /// Records the result of a write to the socket.
    fn record_write(&self, polled: &Poll<io::Result<usize>>) {
        match polled {
            Poll::Pending => self.block(),
            Poll::Ready(Ok(bytes)) if self.blocked_since.load(Ordering::Relaxed) != NOT_BLOCKED => {
                self.accepted.fetch_add(u64::try_from(*bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
            Poll::Ready(_) => {}
        }
    }

    /// Records the result of a flush of the socket.
    fn record_flush(&self, polled: &Poll<io::Result<()>>) {
        match polled {
            Poll::Pending => self.block(),
            Poll::Ready(_) => self.blocked_since.store(NOT_BLOCKED, Ordering::Relaxed),
        }
    }

    fn block(&self) {
        if self.blocked_since.load(Ordering::Relaxed) == NOT_BLOCKED {
            self.accepted.store(0, Ordering::Relaxed);
            self.blocked_since.store(self.now(), Ordering::Relaxed);
        }
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, PendingResponses> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that hyper took a response of this many bytes.
    fn take_response(self: &Arc<Self>, bytes: usize) -> PendingResponseGuard {
        let now = self.now();
        let mut pending = self.pending();
        let number = pending.next;
        pending.next += 1;
        pending.bytes = pending.bytes.saturating_add(bytes);
        pending.responses.push_back(PendingResponse { number, since: now, bytes });
        drop(pending);
        self.requests.response_taken();
        PendingResponseGuard { activity: Arc::clone(self), number, bytes }
    }

    fn state(&self) -> Waiting {
        if !self.requests.all_answered() {
            Waiting::Answer
        } else if self.head_begun.load(Ordering::Relaxed) {
            Waiting::Head
        } else {
            Waiting::Idle
        }
    }

    /// Returns the time by which the client has to read its pending responses. `None` if no response is pending. The
    /// time has passed if the responses exceed their limit in bytes.
    fn reader_deadline(&self, settings: &ServerSettings) -> Option<Instant> {
        let at = |since: u64, bytes: u64| {
            let transfer_time = bytes.saturating_mul(1000) / MIN_RATE;
            self.opened + Duration::from_millis(since.saturating_add(transfer_time)) + settings.response_timeout
        };
        let blocked = match self.blocked_since.load(Ordering::Relaxed) {
            NOT_BLOCKED => None,
            since => Some(at(since, self.accepted.load(Ordering::Relaxed))),
        };
        let pending = self.pending();
        if pending.bytes > settings.max_pending_response_bytes && pending.responses.len() > 1 {
            return Some(self.opened);
        }
        let oldest = pending
            .responses
            .front()
            .map(|response| at(response.since, u64::try_from(response.bytes).unwrap_or(u64::MAX)));
        blocked.into_iter().chain(oldest).min()
    }

    /// Returns the next deadline, and the event that has to happen before it.
    fn deadline(&self, settings: &ServerSettings) -> (Instant, Waiting) {
        let state = self.state();
        let allowed = match state {
            Waiting::Idle => self.idle_timeout,
            Waiting::Head => settings.header_timeout,
            Waiting::Answer | Waiting::Reader => settings.request_timeout,
        };
        let at = self.opened + Duration::from_millis(self.since.load(Ordering::Relaxed)) + allowed;
        match self.reader_deadline(settings) {
            Some(reader) if reader < at => (reader, Waiting::Reader),
            _ => (at, state),
        }
    }
}

/// A request that is being answered. Dropped with the response, or when the client disconnects.
struct RequestGuard(Arc<Activity>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.requests.answered();
        self.0.touch();
    }
}

/// Keeps a response counted as pending until it is dropped with the response's bytes.
struct PendingResponseGuard {
    activity: Arc<Activity>,
    number: u64,
    bytes: usize,
}

impl Drop for PendingResponseGuard {
    fn drop(&mut self) {
        let mut pending = self.activity.pending();
        pending.bytes = pending.bytes.saturating_sub(self.bytes);
        if let Some(index) = pending.responses.iter().position(|response| response.number == self.number) {
            pending.responses.remove(index);
        }
        drop(pending);
        self.activity.requests.response_read();
    }
}

/// The body of a request. Records when it is complete.
struct RequestBody {
    body: Incoming,
    /// Set until the body is complete.
    arriving: Option<Arc<Requests>>,
}

impl RequestBody {
    fn new(body: Incoming, requests: &Arc<Requests>) -> Self {
        let arriving = (!body.is_end_stream()).then(|| {
            requests.body_arriving();
            Arc::clone(requests)
        });
        Self { body, arriving }
    }

    fn complete(&mut self) {
        if let Some(requests) = self.arriving.take() {
            requests.body_arrived();
        }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.complete();
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_ready() && self.body.is_end_stream() {
            self.complete();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a response. Its bytes carry the [`PendingResponseGuard`] wherever they wait for the client.
struct ResponseBody {
    body: Body,
    pending: Option<PendingResponseGuard>,
}

/// The bytes of a response, and the guard that counts it as pending until they are dropped.
struct PendingResponseBytes {
    bytes: Bytes,
    _pending: PendingResponseGuard,
}

impl AsRef<[u8]> for PendingResponseBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        // Our responses have one piece. If there are more, hyper itself waits for each piece but the last.
        if !self.body.is_end_stream() {
            return polled;
        }
        polled.map_ok(|frame| {
            frame.map_data(|bytes| match self.pending.take() {
                Some(pending) => Bytes::from_owner(PendingResponseBytes { bytes, _pending: pending }),
                None => bytes,
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A socket that records when bytes arrive, and when writes block.
struct WatchedSocket<S> {
    socket: S,
    activity: Arc<Activity>,
    /// False on HTTP/2, where bytes between requests are pings and window updates, not a request's head that might
    /// stall.
    watches_heads: bool,
    /// The number of bytes read since the connection last waited for its client or for its turn.
    read_in_turn: usize,
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedSocket<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.read_in_turn >= BYTES_PER_TURN {
            self.read_in_turn = 0;
            // The runtime wakes this task after it has polled the other connections for data.
            let _ = pin!(yield_now()).poll(cx);
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.socket).poll_read(cx, buffer);
        let read = buffer.filled().len() - before;
        self.read_in_turn = if polled.is_ready() { self.read_in_turn + read } else { 0 };
        if self.watches_heads && read > 0 {
            self.activity.bytes_received();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedSocket<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.activity.record_write(&polled);
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.socket).poll_flush(cx);
        self.activity.record_flush(&polled);
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.activity.record_flush(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write_vectored(cx, slices);
        self.activity.record_write(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

/// Serves a connection until it ends.
pub(crate) async fn serve<S>(
    socket: S,
    builders: &Builders,
    app: Router,
    settings: &ServerSettings,
    context: ConnectionContext,
) -> Ended
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let ConnectionContext { address, protocol, retire, caller, requests } = context;
    let address = ClientAddress(address.to_canonical());
    // A client whose requests will be rejected must not hold a permit that others need.
    let idle_timeout = if caller.is_rejected() { settings.handshake_timeout } else { settings.idle_timeout };
    let activity = Arc::new(Activity::new(idle_timeout, requests));
    let watches_heads = protocol == Protocol::Http1;
    let socket = WatchedSocket { socket, activity: Arc::clone(&activity), watches_heads, read_in_turn: 0 };
    let retire = Arc::new(retire);
    let service = service_fn({
        let (activity, retire) = (Arc::clone(&activity), Arc::clone(&retire));
        move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(address);
            let in_flight = activity.begin_request();
            let close = (protocol == Protocol::Http1).then(|| Arc::clone(&retire));
            answer(app.clone(), request, in_flight, close, caller.clone())
        }
    });
    let mut connection = pin!(builders.of(protocol).serve_connection(TokioIo::new(socket), service));
    let mut timer = pin!(sleep_until(activity.deadline(settings).0));
    // HTTP/2 has a GOAWAY frame, which loses no request. On HTTP/1.1 a response has to announce the end: hyper's
    // graceful shutdown closes an idle connection at once, even if a request is on its way. So a graceful shutdown is
    // used only at the end of the drain.
    let mut shutdown_due = pin!(async move {
        match protocol {
            Protocol::Http1 => retire.closes_idle().await,
            Protocol::Http2 => retire.wait().await,
        }
    });
    let mut is_shutting_down = false;
    poll_fn(move |cx| {
        if !is_shutting_down && shutdown_due.as_mut().poll(cx).is_ready() {
            is_shutting_down = true;
            connection.as_mut().graceful_shutdown();
        }
        if let Poll::Ready(result) = connection.as_mut().poll(cx) {
            return Poll::Ready(result.map_or_else(Ended::Failed, |()| Ended::Closed));
        }
        // The timer is reset only when it is too late or has fired, not for each request.
        let (deadline, _) = activity.deadline(settings);
        if deadline < timer.deadline() {
            timer.as_mut().reset(deadline);
        }
        while timer.as_mut().poll(cx).is_ready() {
            let (deadline, waiting) = activity.deadline(settings);
            if deadline <= Instant::now() {
                return Poll::Ready(Ended::TimedOut(waiting));
            }
            timer.as_mut().reset(deadline);
        }
        Poll::Pending
    })
    .await
}

/// Answers a request. It is the last one on its connection if `close` is due when the response is ready.
async fn answer(
    mut app: Router,
    request: Request<Incoming>,
    in_flight: RequestGuard,
    close: Option<Arc<Retire>>,
    caller: Caller,
) -> Result<Response<ResponseBody>, Infallible> {
    // A client that sends a length as well as chunks may disagree with the server about the end of the body (RFC 9112,
    // section 6.1). So no request is accepted after a chunked body. The API server sends no chunks.
    let is_chunked = close.is_some() && request.headers().contains_key(TRANSFER_ENCODING);
    let mut response = match caller.admit(request) {
        ControlFlow::Continue(request) => {
            Service::call(&mut app, request.map(|body| RequestBody::new(body, &in_flight.0.requests))).await?
        }
        ControlFlow::Break(rejection) => rejection,
    };
    if is_chunked || close.is_some_and(|retire| retire.is_due() || in_flight.0.requests.are_last()) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let response = response.map(|body| {
        let bytes = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
        ResponseBody { pending: Some(in_flight.0.take_response(bytes)), body }
    });
    drop(in_flight);
    Ok(response)
}
