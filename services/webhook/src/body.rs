//! Reads a request's body into one buffer. Limits its bytes, its time, and the memory of all bodies together.
//!
//! Memory is reserved for bytes that have arrived, never only because of a `Content-Length`. A body that has not fully
//! arrived is registered as unfinished. If there are too many unfinished bodies, some are evicted
//! ([`crate::overload::UnfinishedBodies`]).

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use bytes::Bytes;
use futures::FutureExt;
use http::Version;
use http::header::EXPECT;
use http_body_util::BodyExt;
use hyper::body::Frame;
use prometheus_client::metrics::gauge::Gauge;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout, timeout_at};

use crate::clients::client_address;
use crate::overload::{Eviction, SMALL, Shed, Unfinished, UnfinishedBodies};

/// The smallest buffer, in bytes, for a body that arrives in more than one piece. A body that cannot become this large
/// gets a smaller buffer.
const MIN_RESERVATION: usize = 16 * 1024;
/// The maximum time for which the rest of a body is read and discarded after its request was shed.
const LINGER: Duration = Duration::from_secs(1);

/// The memory budget of all request bodies together, over all connections.
///
/// The size of each body and the number of connections are limited, but their product far exceeds a replica's memory.
/// So a body takes its share of one budget only as its bytes arrive. It returns the share when the request is answered.
/// Large bodies leave a part of the budget to small ones. Most reviews have a few kilobytes, and must be answered even
/// while another client slowly sends large ones.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: usize,
    /// When a body larger than [`SMALL`] grows, all bodies together may use at most this number of bytes.
    large_limit: usize,
    taken: AtomicUsize,
    /// Exports `taken` as a metric.
    gauge: Gauge,
}

/// The part of the budget that one body uses. Dropping the share returns its bytes to the budget.
#[derive(Debug)]
struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

/// The error if the budget has too few bytes left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Exhausted {
    /// The number of bytes that other bodies would have to return first.
    missing: usize,
}

impl Budget {
    pub(crate) fn new(limit: usize, gauge: Gauge) -> Arc<Self> {
        Arc::new(Self { limit, large_limit: limit / 4 * 3, taken: AtomicUsize::new(0), gauge })
    }

    /// Returns an empty share.
    fn share(self: &Arc<Self>) -> Share {
        Share { budget: Arc::clone(self), bytes: 0 }
    }
}

impl Share {
    /// Grows the share to `bytes` if it is smaller. On an error, the share is unchanged.
    fn grow_to(&mut self, bytes: usize) -> Result<(), Exhausted> {
        let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) else { return Ok(()) };
        let Budget { limit, large_limit, taken, gauge } = &*self.budget;
        let limit = if bytes <= SMALL { *limit } else { *large_limit };
        let fits = |taken: usize| taken.checked_add(more).filter(|taken| *taken <= limit);
        let grown = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        grown.map_err(|taken| Exhausted { missing: taken.saturating_add(more).saturating_sub(limit) })?;
        gauge.inc_by(i64::try_from(more).unwrap_or(i64::MAX));
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.bytes, Ordering::Relaxed);
        self.budget.gauge.dec_by(i64::try_from(self.bytes).unwrap_or(i64::MAX));
    }
}

/// A complete body, and its share of the memory budget.
#[derive(Debug)]
pub(crate) struct BufferedBody {
    pub(crate) bytes: Bytes,
    /// Returns its bytes to the budget when the body is dropped.
    _share: Share,
}

/// Why a body could not be read.
#[derive(Debug)]
pub(crate) enum BodyError {
    /// The size of the body, or its `Content-Length`, exceeds the limit.
    TooLarge,
    /// The body did not arrive in time.
    TooSlow,
    /// Reading from the connection failed.
    Broken(axum::Error),
    /// The request was shed for this reason: there was no memory for its body, or the body was evicted.
    Shed(Shed),
}

/// The maximum size of one body, and the maximum time until it is complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) bytes: usize,
    pub(crate) time: Duration,
}

/// The limits that all bodies share.
#[derive(Clone, Debug)]
pub(crate) struct SharedLimits {
    pub(crate) budget: Arc<Budget>,
    pub(crate) unfinished: Arc<UnfinishedBodies>,
}

/// The client that sends a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    pub(crate) address: IpAddr,
    /// Whether the client may still be writing its body when the response is sent. The server must then read the rest
    /// of the body, or the client may not receive the response.
    pub(crate) needs_draining: bool,
}

impl Sender {
    /// Returns the sender of this request. Draining is not needed if the client waits for `100 Continue`. It is not
    /// needed on HTTP/2 either, where the server can end a request without closing the connection.
    pub(crate) fn of(request: &Request) -> Self {
        let waits = request.headers().contains_key(EXPECT);
        let needs_draining = !waits && request.version() < Version::HTTP_2;
        Self { address: client_address(request.extensions()), needs_draining }
    }
}

/// Reads the body. A body that arrives in a single piece is not copied.
///
/// If the body is too large or its request is shed, and the sender needs draining, reads and discards the rest. The
/// client then finishes writing and reads the response. Draining stops after twice the body limit, or when the time
/// limit ends. After shedding, it stops after [`LINGER`] at the latest.
pub(crate) async fn read(
    mut body: Body,
    limits: Limits,
    shared: &SharedLimits,
    sender: Sender,
) -> Result<BufferedBody, BodyError> {
    let deadline = Instant::now() + limits.time;
    let mut reader = BodyReader::new(shared, sender.address);
    let collected = timeout_at(deadline, reader.collect(&mut body, limits.bytes)).await;
    let error = match collected.unwrap_or(Err(BodyError::TooSlow)) {
        Ok(bytes) => return Ok(BufferedBody { bytes, _share: reader.share }),
        Err(error) => error,
    };
    drop(reader);
    let drain_until = match error {
        BodyError::TooLarge => deadline,
        BodyError::Shed(_) => deadline.min(Instant::now() + LINGER),
        BodyError::TooSlow | BodyError::Broken(_) => return Err(error),
    };
    if sender.needs_draining {
        let _ = timeout_at(drain_until, discard(&mut body, limits.bytes.saturating_mul(2))).await;
    }
    Err(error)
}

/// Reads and discards the body of a shed request if its sender needs draining: up to `limit` bytes and for at most
/// [`LINGER`]. The client then finishes writing and reads the response.
pub(crate) async fn discard_rejected(request: Request, limit: usize) {
    if Sender::of(&request).needs_draining {
        let _ = timeout(LINGER, discard(&mut request.into_body(), limit)).await;
    }
}

/// Reads one body and reserves memory for its bytes. Stops if the body is evicted.
struct BodyReader<'s> {
    shared: &'s SharedLimits,
    address: IpAddr,
    share: Share,
    /// Set when the reader first has to wait for more of the body.
    unfinished: Option<Unfinished>,
    /// Dropping it signals that the memory is released, so it must be dropped after the share.
    eviction: Option<Eviction>,
}

impl<'s> BodyReader<'s> {
    fn new(shared: &'s SharedLimits, address: IpAddr) -> Self {
        Self { shared, address, share: shared.budget.share(), unfinished: None, eviction: None }
    }

    async fn collect(&mut self, body: &mut Body, limit: usize) -> Result<Bytes, BodyError> {
        let fits = |bytes: usize| if bytes <= limit { Ok(()) } else { Err(BodyError::TooLarge) };
        fits(lower_bound(body))?;
        let Some(first) = self.next(body).await? else { return Ok(Bytes::new()) };
        fits(first.len())?;
        self.grow_to(first.len()).await?;
        if body.is_end_stream() {
            return Ok(first);
        }
        let Some(second) = self.next(body).await? else { return Ok(first) };
        let mut buffer = Vec::new();
        self.append(&mut buffer, &first, upper_bound(body), limit).await?;
        drop(first);
        let mut piece = Some(second);
        while let Some(bytes) = piece {
            self.append(&mut buffer, &bytes, upper_bound(body), limit).await?;
            // Reading a large body takes as long as answering several small requests, so other tasks may run in
            // between.
            if buffer.len() > SMALL {
                yield_now().await;
            }
            piece = if body.is_end_stream() { None } else { self.next(body).await? };
        }
        Ok(buffer.into())
    }

    /// Appends a piece to the buffer. `rest` is the maximum number of bytes that `body` will still deliver (`None`:
    /// unknown). If the piece does not fit, the buffer grows by half, to the needed size or to [`MIN_RESERVATION`],
    /// whichever is the most. It never grows beyond `limit`, nor by more than `rest` bytes beyond the needed size.
    /// Returns an error if the body exceeds `limit`, or if there is no memory.
    async fn append(
        &mut self,
        buffer: &mut Vec<u8>,
        piece: &[u8],
        rest: Option<usize>,
        limit: usize,
    ) -> Result<(), BodyError> {
        let needed = buffer.len().saturating_add(piece.len());
        if needed > limit {
            return Err(BodyError::TooLarge);
        }
        if needed > buffer.capacity() {
            let max = rest.map_or(limit, |rest| needed.saturating_add(rest).min(limit));
            let step = buffer.capacity() + buffer.capacity() / 2;
            let capacity = needed.max(step).max(MIN_RESERVATION).min(max).max(needed);
            self.grow_to(capacity).await?;
            buffer.reserve_exact(capacity - buffer.len());
        }
        buffer.extend_from_slice(piece);
        Ok(())
    }

    /// Grows the body's share of the memory budget to `bytes`. If necessary, evicts older unfinished bodies, provided
    /// that this frees enough memory.
    async fn grow_to(&mut self, bytes: usize) -> Result<(), BodyError> {
        while let Err(Exhausted { missing }) = self.share.grow_to(bytes) {
            let evicted = self.shared.unfinished.evict_older(self.unfinished.as_ref(), missing);
            evicted.ok_or(BodyError::Shed(Shed::NoMemory))?.wait().await;
        }
        if let Some(unfinished) = &self.unfinished {
            unfinished.set_bytes(self.share.bytes);
        }
        Ok(())
    }

    /// Returns the next piece of data, or `None` at the end of the body. Skips trailers and empty pieces.
    async fn next(&mut self, body: &mut Body) -> Result<Option<Bytes>, BodyError> {
        while let Some(frame) = self.frame(body).await? {
            if let Ok(data) = frame.into_data()
                && !data.is_empty()
            {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// Returns the next frame, or `None` at the end of the body. If no frame is available, yields once, because the
    /// connection's task may have to run before it delivers a frame that has arrived. If there is still none, registers
    /// the body as unfinished and waits. Returns an error if the body is evicted meanwhile.
    async fn frame(&mut self, body: &mut Body) -> Result<Option<Frame<Bytes>>, BodyError> {
        let delivered = |frame: Option<Result<_, _>>| frame.transpose().map_err(BodyError::Broken);
        if self.unfinished.is_none() {
            if let Some(frame) = body.frame().now_or_never() {
                return delivered(frame);
            }
            yield_now().await;
            if let Some(frame) = body.frame().now_or_never() {
                return delivered(frame);
            }
        }
        let (bodies, address, bytes) = (&self.shared.unfinished, self.address, self.share.bytes);
        let unfinished = self.unfinished.get_or_insert_with(|| bodies.register(address, bytes));
        tokio::select! {
            biased;
            eviction = unfinished.evicted() => Err(BodyError::Shed(self.eviction.insert(eviction).reason)),
            frame = body.frame() => delivered(frame),
        }
    }
}

async fn discard(body: &mut Body, limit: usize) {
    let mut remaining = limit;
    while let Some(Ok(frame)) = body.frame().await {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        match remaining.checked_sub(bytes) {
            Some(rest) => remaining = rest,
            None => return,
        }
        if limit - remaining > SMALL {
            yield_now().await;
        }
    }
}

fn lower_bound(body: &Body) -> usize {
    usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX)
}

fn upper_bound(body: &Body) -> Option<usize> {
    body.size_hint().upper().and_then(|rest| usize::try_from(rest).ok())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::stream::{self, StreamExt};

    use super::*;
    use crate::overload::UnfinishedBounds;

    const LIMITS: Limits = Limits { bytes: 10, time: Duration::from_secs(5) };

    const SENDER: Sender = Sender { address: IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), needs_draining: true };

    fn shared(memory: usize, gauge: Gauge, total: usize) -> SharedLimits {
        let unfinished = UnfinishedBodies::new(UnfinishedBounds { total, per_address: total }, Gauge::default());
        SharedLimits { budget: Budget::new(memory, gauge), unfinished }
    }

    /// Calls [`super::read`] with ample memory.
    async fn read(body: Body, limits: Limits, waits: bool) -> Result<Bytes, BodyError> {
        let shared = shared(64 * SMALL, Gauge::default(), 8);
        let sender = Sender { needs_draining: !waits, ..SENDER };
        super::read(body, limits, &shared, sender).await.map(|buffer| buffer.bytes)
    }

    /// Returns a body that sends `pieces` pieces of `bytes` bytes each, and then nothing more, without ending.
    fn stalled(pieces: usize, bytes: usize) -> Body {
        let piece = Bytes::from(vec![b'x'; bytes]);
        let pieces = stream::iter(0..pieces).map(move |_| Ok::<_, Infallible>(piece.clone()));
        Body::from_stream(pieces.chain(stream::pending()))
    }

    /// Returns a body of unknown length with these pieces.
    fn pieces(pieces: &[&'static str]) -> Body {
        let pieces: Vec<_> =
            pieces.iter().map(|piece| Ok::<_, Infallible>(Bytes::from_static(piece.as_bytes()))).collect();
        Body::from_stream(stream::iter(pieces))
    }

    #[tokio::test]
    async fn pieces_are_joined_and_single_one_not_copied() {
        for (body, expected) in [
            (Body::empty(), ""),
            (pieces(&[]), ""),
            (pieces(&["", "abc", ""]), "abc"),
            (pieces(&["abc", "def", "ghi", "j"]), "abcdefghij"),
        ] {
            assert_eq!(read(body, LIMITS, false).await.unwrap(), expected);
        }
        let text = Bytes::from_static(b"abc");
        for body in [Body::from(text.clone()), pieces_of(text.clone())] {
            assert_eq!(read(body, LIMITS, false).await.unwrap().as_ptr(), text.as_ptr());
        }
    }

    fn pieces_of(bytes: Bytes) -> Body {
        Body::from_stream(stream::iter([Ok::<_, Infallible>(bytes)]))
    }

    #[tokio::test]
    async fn body_above_limit_is_too_large() {
        for body in [Body::from("0123456789a"), pieces(&["0123456789a"]), pieces(&["01234", "56789", "a"])] {
            assert!(matches!(read(body, LIMITS, false).await, Err(BodyError::TooLarge)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_or_dripping_body_is_too_slow() {
        let stalled = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
        assert!(matches!(read(stalled, LIMITS, false).await, Err(BodyError::TooSlow)));

        let drip = stream::repeat(Bytes::from_static(b"x")).then(async |byte| {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok::<_, Infallible>(byte)
        });
        let began = Instant::now();
        assert!(matches!(read(Body::from_stream(drip), LIMITS, false).await, Err(BodyError::TooSlow)));
        assert_eq!(began.elapsed(), LIMITS.time);
    }

    #[tokio::test]
    async fn rest_of_large_body_is_drained_within_bounds() {
        async fn pulled(waits: bool) -> usize {
            let count = Arc::new(AtomicUsize::new(0));
            let counter = Arc::clone(&count);
            let endless = stream::repeat_with(move || {
                counter.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Infallible>(Bytes::from_static(b"x"))
            });
            assert!(matches!(read(Body::from_stream(endless), LIMITS, waits).await, Err(BodyError::TooLarge)));
            count.load(Ordering::Relaxed)
        }
        assert_eq!(pulled(true).await, 11);
        assert_eq!(pulled(false).await, 11 + 21);
    }

    /// Reads a body in pieces, and returns the memory in use just before each piece arrives.
    async fn taken(length: usize, pieces: usize) -> Vec<usize> {
        let gauge = Gauge::default();
        let shared = shared(64 * SMALL, gauge.clone(), 8);
        let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seeing = Arc::clone(&seen);
        let piece = Bytes::from(vec![b'x'; length / pieces]);
        let pieces = stream::iter(0..pieces).map(move |_| {
            seeing.lock().unwrap().push(usize::try_from(gauge.get()).unwrap());
            Ok::<_, Infallible>(piece.clone())
        });
        let limits = Limits { bytes: length, time: Duration::from_secs(5) };
        let buffer = super::read(Body::from_stream(pieces), limits, &shared, SENDER).await.unwrap();
        assert_eq!(buffer.bytes.len(), length);
        seen.lock().unwrap().clone()
    }

    #[tokio::test]
    async fn memory_follows_arrived_bytes() {
        let (length, pieces) = (4 * SMALL, 64);
        for (arrived, taken) in taken(length, pieces).await.into_iter().enumerate() {
            let arrived = arrived * length / pieces;
            let bound = (arrived + arrived / 2).max(MIN_RESERVATION);
            assert!(taken <= bound && taken + length / pieces >= arrived, "{taken} for {arrived}");
        }
    }

    #[tokio::test]
    async fn body_without_memory_is_shed_and_releases_share() {
        let gauge = Gauge::default();
        let shared = shared(SMALL, gauge.clone(), 8);
        let limits = Limits { bytes: 2 * SMALL, time: Duration::from_secs(5) };
        let piece = Bytes::from(vec![b'x'; SMALL / 4]);
        let body = Body::from_stream(stream::iter(vec![Ok::<_, Infallible>(piece); 8]));
        let error = super::read(body, limits, &shared, SENDER).await.unwrap_err();
        assert!(matches!(error, BodyError::Shed(Shed::NoMemory)));
        assert_eq!(gauge.get(), 0);
        let buffer = super::read(Body::from("abc"), limits, &shared, SENDER).await.unwrap();
        assert_eq!(gauge.get(), 3);
        drop(buffer);
        assert_eq!(gauge.get(), 0);
    }

    #[tokio::test]
    async fn arrived_body_is_never_registered() {
        let shared = shared(SMALL, Gauge::default(), 0);
        let late = stream::once(async {
            yield_now().await;
            Ok::<_, Infallible>(Bytes::from_static(b"abc"))
        });
        for body in [Body::from("abc"), pieces(&["a", "b", "c"]), Body::from_stream(late)] {
            assert_eq!(super::read(body, LIMITS, &shared, SENDER).await.unwrap().bytes, "abc");
        }
        let error = super::read(stalled(1, 1), LIMITS, &shared, SENDER).await.unwrap_err();
        assert!(matches!(error, BodyError::Shed(Shed::Unfinished)), "a stalled body exceeds the bound");
    }

    #[tokio::test]
    async fn complete_body_takes_memory_of_stalled_ones() {
        let gauge = Gauge::default();
        let shared = shared(SMALL, gauge.clone(), 100);
        let limits = Limits { bytes: SMALL, time: Duration::from_mins(1) };
        let sender = Sender { needs_draining: false, ..SENDER };
        let mut reading: Vec<_> =
            (0..4).map(|_| Box::pin(super::read(stalled(1, SMALL / 4), limits, &shared, sender))).collect();
        // A body is registered as unfinished only after several polls.
        for _ in 0..10 {
            for body in &mut reading {
                assert!(futures::poll!(body.as_mut()).is_pending());
            }
            yield_now().await;
        }
        assert_eq!(gauge.get(), i64::try_from(SMALL).unwrap());
        let mut reading = futures::future::join_all(reading);
        let buffer = super::read(Body::from(vec![b'x'; SMALL / 2]), limits, &shared, sender);
        let buffer = tokio::select! {
            _ = &mut reading => panic!("only two bodies may be evicted"),
            buffer = buffer => buffer,
        };
        assert_eq!(buffer.unwrap().bytes.len(), SMALL / 2);
        assert!(reading.now_or_never().is_none());
    }

    #[test]
    fn shares_stay_within_limit_and_are_returned() {
        let gauge = Gauge::default();
        let budget = Budget::new(4 * SMALL, gauge.clone());
        let (mut first, mut other, mut small) = (budget.share(), budget.share(), budget.share());
        first.grow_to(2 * SMALL).unwrap();
        other.grow_to(SMALL).unwrap();
        assert_eq!(
            other.grow_to(SMALL + 1),
            Err(Exhausted { missing: 1 }),
            "a large body leaves a quarter of the budget"
        );
        assert_eq!(gauge.get(), i64::try_from(3 * SMALL).unwrap(), "a refused reservation takes no memory");
        small.grow_to(SMALL).unwrap();
        assert_eq!(budget.share().grow_to(1), Err(Exhausted { missing: 1 }));
        small.grow_to(1).unwrap();
        drop(first);
        other.grow_to(2 * SMALL).unwrap();
        drop((other, small));
        assert_eq!(gauge.get(), 0);
    }

    #[test]
    fn budget_handles_any_size() {
        let budget = Budget::new(usize::MAX, Gauge::default());
        let mut first = budget.share();
        first.grow_to(1).unwrap();
        assert!(budget.share().grow_to(usize::MAX).is_err());
    }
}
