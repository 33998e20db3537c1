//! Configures hyper for HTTP/1.1 and HTTP/2, with the limits that hyper enforces itself.

use hyper_util::rt::TokioExecutor;
use hyper_util::server::conn::auto;

use super::Protocol;
use crate::serve::ServerSettings;

/// Streams on HTTP/2 that the client may open and reset before the server accepts them.
const RESET_STREAMS: usize = 20;
/// Streams on HTTP/2 that may be reset for errors of the client.
const ERROR_STREAMS: usize = 1024;

/// hyper's builders with their limits, created once for a server.
#[derive(Clone, Debug)]
pub(crate) struct Builders {
    http1: auto::Builder<TokioExecutor>,
    http2: auto::Builder<TokioExecutor>,
}

impl Builders {
    pub(crate) fn new(settings: &ServerSettings) -> Self {
        let mut http1 = auto::Builder::new(TokioExecutor::new());
        // `Activity` has its own timer instead, as the parent module explains.
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
