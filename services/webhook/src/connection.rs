//! One connection, from its first byte to its last: served by hyper, watched by a clock of its own.
//!
//! hyper's own `header_read_timeout` runs between requests too, so that it would close idle connections after ten
//! seconds; but the API server pools them for ninety, and does not repeat a POST that met a closing one. So the clock here
//! tells an idle connection, which may wait long, from one on which a request's head has begun, which may not.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until};
use tower::Service;

use crate::serve::{Retire, ServerSettings};

/// Which HTTP is spoken. It is known before the first byte: by ALPN, or because a port speaks one only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// By the rules of HTTP.
    Closed,
    /// By an error on it.
    Failed(Box<dyn std::error::Error + Send + Sync>),
    /// Too slow, or idle for too long.
    TimedOut(Waiting),
}

/// What a connection is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// For a request.
    Idle,
    /// For the rest of a request's head.
    Head,
    /// For an answer, or for the body that it needs.
    Answer,
}

/// hyper's builders, with their limits set; made once for a server.
#[derive(Clone, Debug)]
pub(crate) struct Builders {
    http1: auto::Builder<TokioExecutor>,
    http2: auto::Builder<TokioExecutor>,
}

impl Builders {
    pub(crate) fn new(settings: &ServerSettings) -> Self {
        let mut http1 = auto::Builder::new(TokioExecutor::new());
        // The clock is ours: see the module's first paragraph.
        http1.http1().header_read_timeout(None).max_buf_size(settings.max_buffer_bytes);
        let mut http2 = auto::Builder::new(TokioExecutor::new());
        http2
            .http2()
            .max_concurrent_streams(settings.max_streams)
            .max_header_list_size(settings.max_header_bytes)
            .max_send_buf_size(settings.max_buffer_bytes);
        Self { http1: http1.http1_only(), http2: http2.http2_only() }
    }

    const fn of(&self, protocol: Protocol) -> &auto::Builder<TokioExecutor> {
        match protocol {
            Protocol::Http1 => &self.http1,
            Protocol::Http2 => &self.http2,
        }
    }
}

/// What happens on a connection, written by its socket and its requests and read by its clock.
#[derive(Debug)]
struct Activity {
    opened: Instant,
    /// Requests whose answer hyper does not have yet.
    in_flight: AtomicU32,
    /// Whether bytes have come since the last request: the head of the next one has begun.
    head_begun: AtomicBool,
    /// Milliseconds from `opened` to the last change of the two above.
    since: AtomicU64,
}

impl Activity {
    fn new() -> Self {
        Self {
            opened: Instant::now(),
            in_flight: AtomicU32::new(0),
            head_begun: AtomicBool::new(false),
            since: AtomicU64::new(0),
        }
    }

    fn touch(&self) {
        let since = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.since.store(since, Ordering::Relaxed);
    }

    fn bytes_came(&self) {
        if self.in_flight.load(Ordering::Relaxed) == 0 && !self.head_begun.swap(true, Ordering::Relaxed) {
            self.touch();
        }
    }

    fn request_begins(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.head_begun.store(false, Ordering::Relaxed);
        self.touch();
        InFlight(Arc::clone(self))
    }

    fn waiting(&self) -> Waiting {
        if self.in_flight.load(Ordering::Relaxed) > 0 {
            Waiting::Answer
        } else if self.head_begun.load(Ordering::Relaxed) {
            Waiting::Head
        } else {
            Waiting::Idle
        }
    }

    fn deadline(&self, settings: &ServerSettings) -> Instant {
        let allowed = match self.waiting() {
            Waiting::Idle => settings.idle_timeout,
            Waiting::Head => settings.header_timeout,
            Waiting::Answer => settings.request_timeout,
        };
        self.opened + Duration::from_millis(self.since.load(Ordering::Relaxed)) + allowed
    }
}

/// A request that is being answered. Dropped with the answer, or when the client goes away.
struct InFlight(Arc<Activity>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.0.touch();
    }
}

/// A socket that says when bytes came.
struct Watched<S> {
    socket: S,
    activity: Option<Arc<Activity>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.socket).poll_read(cx, buffer);
        if let Some(activity) = &self.activity
            && buffer.filled().len() > before
        {
            activity.bytes_came();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

/// Serves a connection to its end.
pub(crate) async fn serve<S>(
    socket: S,
    protocol: Protocol,
    builders: &Builders,
    app: Router,
    settings: &ServerSettings,
    retire: Retire,
) -> Ended
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let activity = Arc::new(Activity::new());
    // On HTTP/2, bytes between requests are pings and windows, not the head of a request that might stall.
    let watches_heads = protocol == Protocol::Http1;
    let socket = Watched { socket, activity: watches_heads.then(|| Arc::clone(&activity)) };
    let retire = Arc::new(retire);
    let service = service_fn({
        let (activity, retire) = (Arc::clone(&activity), Arc::clone(&retire));
        move |request| {
            let in_flight = activity.request_begins();
            let close = (protocol == Protocol::Http1).then(|| Arc::clone(&retire));
            answer(app.clone(), request, in_flight, close)
        }
    });
    let mut connection = pin!(builders.of(protocol).serve_connection(TokioIo::new(socket), service));
    let mut timer = pin!(sleep_until(activity.deadline(settings)));
    // HTTP/2 has a frame for it, which loses no request. On HTTP/1.1 an answer has to say it: hyper's graceful shutdown
    // would close an idle connection at once, into the arms of a request that is on its way.
    let mut retired = pin!(async move {
        match protocol {
            Protocol::Http1 => std::future::pending().await,
            Protocol::Http2 => retire.due().await,
        }
    });
    let mut retiring = false;
    poll_fn(move |cx| {
        if !retiring && retired.as_mut().poll(cx).is_ready() {
            retiring = true;
            connection.as_mut().graceful_shutdown();
        }
        if let Poll::Ready(result) = connection.as_mut().poll(cx) {
            return Poll::Ready(result.map_or_else(Ended::Failed, |()| Ended::Closed));
        }
        // The timer is set anew only when it is too late or has fired, not for each request.
        let deadline = activity.deadline(settings);
        if deadline < timer.deadline() {
            timer.as_mut().reset(deadline);
        }
        while timer.as_mut().poll(cx).is_ready() {
            let deadline = activity.deadline(settings);
            if deadline <= Instant::now() {
                return Poll::Ready(Ended::TimedOut(activity.waiting()));
            }
            timer.as_mut().reset(deadline);
        }
        Poll::Pending
    })
    .await
}

/// Answers a request; the last one on this connection, if `close` says so when the answer is there.
async fn answer(
    mut app: Router,
    request: Request<Incoming>,
    in_flight: InFlight,
    close: Option<Arc<Retire>>,
) -> Result<Response<Body>, Infallible> {
    let mut response = Service::call(&mut app, request).await?;
    if close.is_some_and(|retire| retire.is_due()) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    drop(in_flight);
    Ok(response)
}
