//! Reads a request's body into one piece, within a limit of bytes and of time.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

/// No more is reserved on the word of a `Content-Length`; the rest grows as it comes.
const RESERVE: usize = 256 * 1024;

/// Why a body is not there.
#[derive(Debug)]
pub(crate) enum BodyError {
    /// It is larger than the limit, or says that it will be.
    TooLarge,
    /// It was not there in time.
    TooSlow,
    /// It broke off, or was malformed.
    Broken(axum::Error),
}

/// Limits of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) bytes: usize,
    pub(crate) time: Duration,
}

/// Reads a body. One that came in a single piece is not copied.
///
/// Of one that is too large the rest is read and thrown away, within twice the limits' bytes and the same time, so that
/// the client has written what it wanted to and reads the answer. It `waits` if it sends a body only when told to.
pub(crate) async fn read(mut body: Body, limits: Limits, waits: bool) -> Result<Bytes, BodyError> {
    let deadline = Instant::now() + limits.time;
    let collected = timeout_at(deadline, collect(&mut body, limits.bytes)).await.unwrap_or(Err(BodyError::TooSlow));
    if matches!(collected, Err(BodyError::TooLarge)) && !waits {
        let _ = timeout_at(deadline, discard(&mut body, limits.bytes.saturating_mul(2))).await;
    }
    collected
}

async fn collect(body: &mut Body, limit: usize) -> Result<Bytes, BodyError> {
    let fits = |bytes: usize| if bytes <= limit { Ok(()) } else { Err(BodyError::TooLarge) };
    fits(lower_bound(body))?;
    let Some(first) = next(body).await? else { return Ok(Bytes::new()) };
    fits(first.len())?;
    if body.is_end_stream() {
        return Ok(first);
    }
    let rest = lower_bound(body);
    let Some(second) = next(body).await? else { return Ok(first) };
    let mut whole = BytesMut::with_capacity(first.len() + second.len().max(rest.min(RESERVE)));
    whole.extend_from_slice(&first);
    let mut piece = Some(second);
    while let Some(bytes) = piece {
        fits(whole.len() + bytes.len())?;
        whole.extend_from_slice(&bytes);
        piece = if body.is_end_stream() { None } else { next(body).await? };
    }
    Ok(whole.freeze())
}

async fn discard(body: &mut Body, limit: usize) {
    let mut left = limit;
    while let Ok(Some(bytes)) = next(body).await {
        match left.checked_sub(bytes.len()) {
            Some(rest) => left = rest,
            None => return,
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

    use super::*;

    const LIMITS: Limits = Limits { bytes: 10, time: Duration::from_secs(5) };

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
}
