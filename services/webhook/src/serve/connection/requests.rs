//! Counts the requests on a connection, and those that are still arriving.
//!
//! A connection may have to close in favour of another client's. It must not lose a request that is being answered,
//! since the API server does not send a POST twice. A request with an incomplete body may be lost, since the rest may
//! never arrive.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// The requests of one connection.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Requests whose response hyper does not have yet.
    unanswered: AtomicU32,
    /// Requests whose body is still being read.
    coming: AtomicU32,
    /// Responses that hyper has and the client has not read.
    untaken: AtomicU32,
    /// Whether the connection has to end once no request is being answered.
    are_last: AtomicBool,
}

impl Requests {
    /// Whether there are no unanswered requests.
    pub(crate) fn are_none(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) == 0
    }

    /// Whether a request has arrived completely, and its client does not have the response.
    pub(crate) fn is_one_being_answered(&self) -> bool {
        self.untaken.load(Ordering::Relaxed) > 0
            || self.unanswered.load(Ordering::Relaxed) > self.coming.load(Ordering::Relaxed)
    }

    /// Whether the client is asked to send no more requests.
    pub(crate) fn are_last(&self) -> bool {
        self.are_last.load(Ordering::Relaxed)
    }

    /// Marks the current requests as the last.
    pub(crate) fn end(&self) {
        self.are_last.store(true, Ordering::Relaxed);
    }

    /// Counts a request whose head has arrived.
    pub(crate) fn begin(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a body that is still arriving.
    pub(crate) fn body_is_coming(&self) {
        self.coming.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a body is complete, or is no longer read.
    pub(crate) fn body_is_there(&self) {
        self.coming.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records that a request has ended.
    pub(crate) fn answered(&self) {
        self.unanswered.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a response that hyper has taken.
    pub(crate) fn answer_is_given(&self) {
        self.untaken.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the client has read a response, or that hyper has copied it to its write buffer.
    pub(crate) fn answer_is_taken(&self) {
        self.untaken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of a request. Records when it is complete.
pub(super) struct Coming {
    body: Incoming,
    /// Set until the body is complete.
    of: Option<Arc<Requests>>,
}

impl Coming {
    pub(super) fn new(body: Incoming, requests: &Arc<Requests>) -> Self {
        let of = (!body.is_end_stream()).then(|| {
            requests.body_is_coming();
            Arc::clone(requests)
        });
        Self { body, of }
    }

    fn is_there(&mut self) {
        if let Some(requests) = self.of.take() {
            requests.body_is_there();
        }
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        self.is_there();
    }
}

impl Body for Coming {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_ready() && self.body.is_end_stream() {
            self.is_there();
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
