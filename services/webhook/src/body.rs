//! Reads a request's body into one piece, within a limit of bytes, of time, and of what all bodies may take together.
//!
//! Memory is taken for what has arrived, never on the word of a `Content-Length`.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use bytes::Bytes;
use http::header::EXPECT;
use http_body_util::BodyExt;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout, timeout_at};

use crate::budget::{Budget, Exhausted, SMALL, Share};

/// The least that is taken for a body of more than one piece.
const FIRST_STEP: usize = 16 * 1024;
/// How long a client is listened to after its body was refused for want of memory or of a place.
const LINGER: Duration = Duration::from_secs(1);

/// A body, and the memory that it takes of the budget.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) bytes: Bytes,
    /// Given back when it is dropped, with the bytes.
    _share: Share,
}

/// Why a body is not there.
#[derive(Debug)]
pub(crate) enum BodyError {
    /// It is larger than the limit, or says that it will be.
    TooLarge,
    /// It was not there in time.
    TooSlow,
    /// It broke off, or was malformed.
    Broken(axum::Error),
    /// All bodies together take as much memory as they may.
    Exhausted,
}

/// Limits of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) bytes: usize,
    pub(crate) time: Duration,
}

impl From<Exhausted> for BodyError {
    fn from(Exhausted: Exhausted) -> Self {
        Self::Exhausted
    }
}

/// Reads a body. One that came in a single piece is not copied.
///
/// Of one that is refused the rest is read and thrown away, within twice the limits' bytes and the same time (or a short
/// one, if there is no memory), so that the client has written what it wanted to and reads the answer. It `waits` if it
/// sends a body only when told to.
pub(crate) async fn read(
    mut body: Body,
    limits: Limits,
    budget: &std::sync::Arc<Budget>,
    waits: bool,
) -> Result<Whole, BodyError> {
    let began = Instant::now();
    let deadline = began + limits.time;
    // What was collected is given back here if it is not whole.
    let collected = timeout_at(deadline, collect(&mut body, limits.bytes, budget.share())).await;
    let collected = collected.unwrap_or(Err(BodyError::TooSlow));
    let listen_until = match collected {
        Err(BodyError::TooLarge) => deadline,
        Err(BodyError::Exhausted) => deadline.min(Instant::now() + LINGER),
        _ => return collected,
    };
    if !waits {
        let _ = timeout_at(listen_until, discard(&mut body, limits.bytes.saturating_mul(2))).await;
    }
    collected
}

/// Reads the body of a request that is turned away and throws it away, within so many bytes and a short time: a client that
/// has written what it wanted to reads the answer. One that sends a body only when told to is not told to.
pub(crate) async fn pass_over(request: Request, limit: usize) {
    if !waits(&request) {
        let _ = timeout(LINGER, discard(&mut request.into_body(), limit)).await;
    }
}

/// Whether the client sends the request's body only when told to.
pub(crate) fn waits(request: &Request) -> bool {
    request.headers().contains_key(EXPECT)
}

async fn collect(body: &mut Body, limit: usize, mut share: Share) -> Result<Whole, BodyError> {
    let fits = |bytes: usize| if bytes <= limit { Ok(()) } else { Err(BodyError::TooLarge) };
    fits(lower_bound(body))?;
    let Some(first) = next(body).await? else { return Ok(Whole { bytes: Bytes::new(), _share: share }) };
    fits(first.len())?;
    share.grow_to(first.len())?;
    if body.is_end_stream() {
        return Ok(Whole { bytes: first, _share: share });
    }
    let Some(second) = next(body).await? else { return Ok(Whole { bytes: first, _share: share }) };
    let mut whole = Vec::new();
    append(&mut whole, &first, body, limit, &mut share)?;
    drop(first);
    let mut piece = Some(second);
    while let Some(bytes) = piece {
        append(&mut whole, &bytes, body, limit, &mut share)?;
        // One that is large lets the others go first: to read it takes as long as to answer several of them.
        if whole.len() > SMALL {
            yield_now().await;
        }
        piece = if body.is_end_stream() { None } else { next(body).await? };
    }
    Ok(Whole { bytes: whole.into(), _share: share })
}

/// Appends a piece. Where there is no room for it, half as much again is taken, but no more than the body can need.
fn append(whole: &mut Vec<u8>, piece: &[u8], body: &Body, limit: usize, share: &mut Share) -> Result<(), BodyError> {
    let needed = whole.len().saturating_add(piece.len());
    if needed > limit {
        return Err(BodyError::TooLarge);
    }
    if needed > whole.capacity() {
        let rest = body.size_hint().upper().and_then(|rest| usize::try_from(rest).ok());
        let most = rest.map_or(limit, |rest| needed.saturating_add(rest).min(limit));
        let step = whole.capacity() + whole.capacity() / 2;
        let room = needed.max(step).max(FIRST_STEP).min(most).max(needed);
        share.grow_to(room)?;
        whole.reserve_exact(room - whole.len());
    }
    whole.extend_from_slice(piece);
    Ok(())
}

async fn discard(body: &mut Body, limit: usize) {
    let mut left = limit;
    while let Ok(Some(bytes)) = next(body).await {
        match left.checked_sub(bytes.len()) {
            Some(rest) => left = rest,
            None => return,
        }
        if limit - left > SMALL {
            yield_now().await;
        }
    }
}

/// The next piece of data; trailers are passed over.
async fn next(body: &mut Body) -> Result<Option<Bytes>, BodyError> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(BodyError::Broken)?.into_data()
            && !data.is_empty()
        {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

fn lower_bound(body: &Body) -> usize {
    usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::stream::{self, StreamExt};

    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    const LIMITS: Limits = Limits { bytes: 10, time: Duration::from_secs(5) };

    /// [`super::read`] with plenty of memory.
    async fn read(body: Body, limits: Limits, waits: bool) -> Result<Bytes, BodyError> {
        let budget = Budget::new(64 * SMALL, Gauge::default());
        super::read(body, limits, &budget, waits).await.map(|whole| whole.bytes)
    }

    /// A body of unknown length, piece by piece.
    fn pieces(pieces: &[&'static str]) -> Body {
        let pieces: Vec<_> =
            pieces.iter().map(|piece| Ok::<_, Infallible>(Bytes::from_static(piece.as_bytes()))).collect();
        Body::from_stream(stream::iter(pieces))
    }

    #[tokio::test]
    async fn pieces_are_put_together_and_a_single_one_is_not_copied() {
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
    async fn one_byte_too_many_is_too_large_however_it_comes() {
        for body in [Body::from("0123456789a"), pieces(&["0123456789a"]), pieces(&["01234", "56789", "a"])] {
            assert!(matches!(read(body, LIMITS, false).await, Err(BodyError::TooLarge)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_or_drips_is_too_slow() {
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
    async fn what_is_too_large_is_read_on_within_bounds_unless_the_client_waits() {
        async fn pulled(waits: bool) -> usize {
            let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
            let counter = std::sync::Arc::clone(&count);
            let endless = stream::repeat_with(move || {
                counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                Ok::<_, Infallible>(Bytes::from_static(b"x"))
            });
            assert!(matches!(read(Body::from_stream(endless), LIMITS, waits).await, Err(BodyError::TooLarge)));
            count.load(std::sync::atomic::Ordering::Relaxed)
        }
        assert_eq!(pulled(true).await, 11);
        assert_eq!(pulled(false).await, 11 + 21);
    }

    /// Takes a body piece by piece, and what is taken of the budget after each.
    async fn taken(length: usize, pieces: usize) -> Vec<usize> {
        let gauge = Gauge::default();
        let budget = Budget::new(64 * SMALL, gauge.clone());
        let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let seeing = std::sync::Arc::clone(&seen);
        let piece = Bytes::from(vec![b'x'; length / pieces]);
        let pieces = stream::iter(0..pieces).map(move |_| {
            seeing.lock().unwrap().push(usize::try_from(gauge.get()).unwrap());
            Ok::<_, Infallible>(piece.clone())
        });
        let limits = Limits { bytes: length, time: Duration::from_secs(5) };
        let whole = super::read(Body::from_stream(pieces), limits, &budget, false).await.unwrap();
        assert_eq!(whole.bytes.len(), length);
        seen.lock().unwrap().clone()
    }

    #[tokio::test]
    async fn memory_is_taken_for_what_has_arrived_and_half_as_much_at_most() {
        let (length, pieces) = (4 * SMALL, 64);
        for (arrived, taken) in taken(length, pieces).await.into_iter().enumerate() {
            let arrived = arrived * length / pieces;
            let bound = (arrived + arrived / 2).max(FIRST_STEP);
            assert!(taken <= bound && taken + length / pieces >= arrived, "{taken} for {arrived}");
        }
    }

    #[tokio::test]
    async fn without_memory_a_body_is_refused_and_what_it_had_is_given_back() {
        let gauge = Gauge::default();
        let budget = Budget::new(SMALL, gauge.clone());
        let limits = Limits { bytes: 2 * SMALL, time: Duration::from_secs(5) };
        let piece = Bytes::from(vec![b'x'; SMALL / 4]);
        let body = Body::from_stream(stream::iter(vec![Ok::<_, Infallible>(piece); 8]));
        assert!(matches!(super::read(body, limits, &budget, false).await, Err(BodyError::Exhausted)));
        assert_eq!(gauge.get(), 0);
        let whole = super::read(Body::from("abc"), limits, &budget, false).await.unwrap();
        assert_eq!(gauge.get(), 3);
        drop(whole);
        assert_eq!(gauge.get(), 0);
    }
}
