//! The requests on a connection at this moment: how many there are, and how many are still arriving.
//!
//! A connection may have to close in favour of another client's. It must not take a request with it that is being
//! answered, since the API server does not send a POST twice. A request whose body has not arrived may be lost, since
//! its body may never come.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// The requests of a connection.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Those whose answer hyper does not have yet.
    unanswered: AtomicU32,
    /// Those whose body is still coming, and read.
    coming: AtomicU32,
    /// Answers that hyper has and the client does not.
    untaken: AtomicU32,
    /// The connection has to end as soon as none of them is being answered.
    are_last: AtomicBool,
}

impl Requests {
    /// Whether there is none.
    pub(crate) fn are_none(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) == 0
    }

    /// Whether one is there as a whole, and its client does not have the answer.
    pub(crate) fn is_one_being_answered(&self) -> bool {
        self.untaken.load(Ordering::Relaxed) > 0
            || self.unanswered.load(Ordering::Relaxed) > self.coming.load(Ordering::Relaxed)
    }

    /// Whether the client is to be told to send no more.
    pub(crate) fn are_last(&self) -> bool {
        self.are_last.load(Ordering::Relaxed)
    }

    /// From now on they are.
    pub(crate) fn end(&self) {
        self.are_last.store(true, Ordering::Relaxed);
    }

    /// The head of one is there.
    pub(crate) fn begin(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    /// It has a body that is not.
    pub(crate) fn body_is_coming(&self) {
        self.coming.fetch_add(1, Ordering::Relaxed);
    }

    /// Now it is, or nobody reads it.
    pub(crate) fn body_is_there(&self) {
        self.coming.fetch_sub(1, Ordering::Relaxed);
    }

    /// Nothing more is done for one.
    pub(crate) fn answered(&self) {
        self.unanswered.fetch_sub(1, Ordering::Relaxed);
    }

    /// hyper has an answer.
    pub(crate) fn answer_is_given(&self) {
        self.untaken.fetch_add(1, Ordering::Relaxed);
    }

    /// Now the client has it, or hyper its bytes among those that it writes.
    pub(crate) fn answer_is_taken(&self) {
        self.untaken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of a request, which tells when it is there.
pub(super) struct Coming {
    body: Incoming,
    /// Until it is.
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
