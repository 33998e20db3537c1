//! Serves one connection with hyper, and limits its waits with a timer.
//!
//! hyper's `header_read_timeout` also runs between requests, so it would close idle connections after ten seconds. But
//! the API server pools connections for 90 seconds, and does not retry a POST that it sent on a closing connection. So
//! this module uses its own timer, with a long limit for idle connections and a short limit once a request's head has
//! begun.
//!
//! The same timer limits how long responses wait. A client that does not read keeps its responses in memory: in the
//! socket's buffer on HTTP/1.1, behind its flow-control window on HTTP/2. If a client does not read a response in time,
//! its connection is closed.

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

/// The minimum rate at which a client must read pending responses, in bytes per second.
const MIN_RATE: u64 = 256 * 1024;
/// The value of [`Activity::blocked_since`] while the socket accepts all data.
const NOT_BLOCKED: u64 = u64::MAX;
/// The number of bytes that a connection reads before it yields to other connections. Decrypting them takes about 50
/// µs.
const BYTES_PER_TURN: usize = 64 * 1024;
/// The number of HTTP/2 streams that a client may open and reset before the server accepts them.
const RESET_STREAMS: usize = 20;
/// The number of HTTP/2 streams that the server may reset because of errors of the client.
const ERROR_STREAMS: usize = 1024;

/// The HTTP version of a connection, which ALPN or the port determines before the first byte of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The connection was closed as HTTP specifies.
    Closed,
    /// The connection failed with an error.
    Failed(Box<dyn std::error::Error + Send + Sync>),
    /// The server waited for too long. The value is what it waited for.
    TimedOut(Waiting),
}

/// The values that differ between the connections of one server.
pub(crate) struct ConnectionContext {
    /// The client's address.
    pub(crate) address: IpAddr,
    pub(crate) protocol: Protocol,
    pub(crate) retire: Retire,
    pub(crate) caller: Caller,
    pub(crate) requests: Arc<Requests>,
}

/// hyper's builders with their limits. A server creates them once.
#[derive(Clone, Debug)]
pub(crate) struct Builders {
    http1: auto::Builder<TokioExecutor>,
    http2: auto::Builder<TokioExecutor>,
}

impl Builders {
    pub(crate) fn new(settings: &ServerSettings) -> Self {
        let mut http1 = auto::Builder::new(TokioExecutor::new());
        // [`Activity`] replaces this timeout, as the module documentation explains.
        http1.http1().header_read_timeout(None).max_buf_size(settings.max_buffer_bytes);
        let mut http2 = auto::Builder::new(TokioExecutor::new());
        http2
            .http2()
            .max_concurrent_streams(settings.max_streams)
            .max_header_list_size(settings.max_header_bytes)
            // If a client exceeds a limit on reset streams, its connection is closed. The values are the libraries'
            // defaults. They are set explicitly, because they limit a rapid-reset attack.
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

/// Counts the requests of one connection.
///
/// At the connection limit, the server may close a connection to make room for another client. A request that is being
/// answered must not be lost, because the API server does not send a POST twice. A request with an incomplete body may
/// be lost, because the rest of the body may never arrive.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Requests for which hyper has not received the response yet.
    unanswered: AtomicU32,
    /// Requests whose body is still being read.
    arriving: AtomicU32,
    /// Responses that hyper has received but the client has not read.
    unread: AtomicU32,
    /// Whether the connection must end as soon as all requests are answered.
    are_last: AtomicBool,
}

impl Requests {
    /// Returns whether all requests are answered.
    pub(crate) fn all_answered(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) == 0
    }

    /// Returns whether a complete request has arrived whose response the client has not read.
    pub(crate) fn has_pending_response(&self) -> bool {
        self.unread.load(Ordering::Relaxed) > 0
            || self.unanswered.load(Ordering::Relaxed) > self.arriving.load(Ordering::Relaxed)
    }

    /// Returns whether the server asks the client to send no further requests on this connection.
    pub(crate) fn are_last(&self) -> bool {
        self.are_last.load(Ordering::Relaxed)
    }

    /// Marks the current requests as the last ones of this connection.
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

    /// Records that a body is complete, or that the server has stopped reading it.
    pub(crate) fn body_arrived(&self) {
        self.arriving.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records that a request has ended.
    pub(crate) fn answered(&self) {
        self.unanswered.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a response that was handed to hyper.
    pub(crate) fn response_taken(&self) {
        self.unread.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the client has read a response, or that hyper has copied it to its write buffer.
    pub(crate) fn response_read(&self) {
        self.unread.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The activity on a connection. The socket and the requests write it, and the timer reads it. Times are milliseconds
/// since `opened`.
#[derive(Debug)]
struct Activity {
    opened: Instant,
    /// The maximum idle time.
    idle_timeout: Duration,
    requests: Arc<Requests>,
    /// Whether bytes have arrived since the last request, so that the head of the next one has begun.
    head_begun: AtomicBool,
    /// The time when a request last began or was answered, or when the head of the next one began.
    since: AtomicU64,
    /// The time since which the socket does not accept all data, or [`NOT_BLOCKED`].
    blocked_since: AtomicU64,
    /// Bytes that the socket has accepted since `blocked_since`.
    accepted: AtomicU64,
    pending: Mutex<PendingResponses>,
}

/// Responses that were handed to hyper but that the client has not read. Their bytes are still in memory.
#[derive(Debug, Default)]
struct PendingResponses {
    next: u64,
    bytes: usize,
    /// The pending responses, oldest first.
    responses: VecDeque<PendingResponse>,
}

/// A pending response: its number, the time when it was handed to hyper, and its size.
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

    /// Records that a response of this many bytes was handed to hyper.
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

    /// Returns the time by which the client must have read its oldest pending response, or the time by which the socket
    /// must accept all data, whichever is earlier. `None`: no response is pending, and the socket accepts all data. If
    /// several responses are pending and exceed the limit in bytes, the returned time has already passed.
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

    /// Returns the next deadline, and what the server waits for until then.
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

/// A request that is being answered. It is dropped when the response is ready, or when the client disconnects.
struct RequestGuard(Arc<Activity>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.requests.answered();
        self.0.touch();
    }
}

/// Marks a response as pending. This guard is dropped together with the response's bytes.
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

/// The body of a request. Records when the body is complete.
struct RequestBody {
    body: Incoming,
    /// `None` once the body is complete.
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

/// The body of a response. When hyper takes the bytes, they own the [`PendingResponseGuard`], so the response counts as
/// pending as long as any buffer holds the bytes.
struct ResponseBody {
    body: Body,
    pending: Option<PendingResponseGuard>,
}

/// The bytes of a response. The response counts as pending until they are dropped.
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
        // Only the last piece gets the guard. Pillion's responses have one piece. If a response has several, this body
        // keeps the guard until hyper takes the last piece.
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
    /// False on HTTP/2. There, bytes between requests are pings and window updates, and not the start of a request's
    /// head.
    watches_heads: bool,
    /// The number of bytes read since the connection last waited for data or yielded to other connections.
    read_in_turn: usize,
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedSocket<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.read_in_turn >= BYTES_PER_TURN {
            self.read_in_turn = 0;
            // The runtime polls this task again after it has polled the other connections for data.
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
    // The requests of a rejected client fail anyway, so its idle connection must not hold a permit that others need.
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
    // On HTTP/2, the GOAWAY frame ends a connection without losing a request. On HTTP/1.1, a response must announce the
    // end: hyper's graceful shutdown closes an idle connection at once, even if a request is already on its way. So
    // HTTP/1.1 connections are shut down only shortly before the end of the drain.
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
        // Resetting the timer for each request would be costly. So it is reset only if it would fire too late, or if it
        // has fired before the deadline.
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

/// Answers a request. The response announces the end of an HTTP/1.1 connection if `close` is due, if the request must
/// be the connection's last, or if its body is chunked. On HTTP/2, `close` is `None`.
async fn answer(
    mut app: Router,
    request: Request<Incoming>,
    in_flight: RequestGuard,
    close: Option<Arc<Retire>>,
    caller: Caller,
) -> Result<Response<ResponseBody>, Infallible> {
    // If a client sends a length as well as chunks, it may disagree with the server about the end of the body (RFC
    // 9112, section 6.1). So the server closes the connection after a chunked body. The API server never sends chunks.
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
