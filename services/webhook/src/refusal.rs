//! The reasons why a request is answered without a review. Each has an HTTP status, a text and a metric.
//!
//! The API server shows the text to the pod's author or logs it, so the text names the mistake and the expected value.
//! The status is 4xx for an error of the client. It is 5xx if the webhook failed or shed the request. `failurePolicy`
//! applies to both.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use axum::body::Body;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode, Version};
use pillion_engine::review::{InternalError, ReviewError};

use crate::body::BodyError;
use crate::client_text::{Bounded, LOGGED_BYTES};
use crate::metrics::RequestOutcome;
use crate::overload::Shed;

/// The number of bytes to which a message in a plain-text response is truncated.
pub(crate) const RESPONSE_BYTES: usize = 1024;

/// Why a request is answered without a review.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The request's content type is not JSON. The value is the content type, if any.
    ContentType(Option<HeaderValue>),
    /// The request's content is encoded. The value is the encoding.
    ContentEncoding(HeaderValue),
    /// The body is larger than this many bytes.
    TooLarge(usize),
    /// The body did not arrive within this time.
    TooSlow(Duration),
    /// Reading the body failed.
    Broken(axum::Error),
    /// The replica shed the request for this reason.
    Shed(Shed),
    /// The body is not a valid review.
    Review(ReviewError),
    /// The engine failed.
    Internal(InternalError),
    /// The code panicked with this message.
    Panic(Box<str>),
}

impl Refusal {
    pub(crate) fn from_body(error: BodyError, limits: crate::body::Limits) -> Self {
        match error {
            BodyError::TooLarge => Self::TooLarge(limits.bytes),
            BodyError::TooSlow => Self::TooSlow(limits.time),
            BodyError::Broken(error) => Self::Broken(error),
            BodyError::Shed(shed) => Self::Shed(shed),
        }
    }

    pub(crate) fn from_panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self::Panic(text.unwrap_or("no message").into())
    }

    pub(crate) const fn status(&self) -> StatusCode {
        match self {
            Self::ContentType(_) | Self::ContentEncoding(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow(_) => StatusCode::REQUEST_TIMEOUT,
            Self::Broken(_) | Self::Review(_) => StatusCode::BAD_REQUEST,
            Self::Shed(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal(_) | Self::Panic(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    pub(crate) const fn outcome(&self) -> RequestOutcome {
        match self {
            Self::Shed(_) => RequestOutcome::Shed,
            Self::Internal(_) | Self::Panic(_) => RequestOutcome::Error,
            _ => RequestOutcome::BadRequest,
        }
    }

    /// Returns the reason as it appears in traces.
    pub(crate) const fn reason(&self) -> &'static str {
        match self {
            Self::ContentType(_) => "content_type",
            Self::ContentEncoding(_) => "content_encoding",
            Self::TooLarge(_) => "body_too_large",
            Self::TooSlow(_) => "body_too_slow",
            Self::Broken(_) => "body_broken",
            Self::Shed(shed) => shed.as_str(),
            Self::Review(_) => "no_review",
            Self::Internal(_) => "fault",
            Self::Panic(_) => "panic",
        }
    }

    /// Returns the response. `version` is the HTTP version of the request.
    pub(crate) fn response(&self, version: Version) -> Response<Body> {
        let text = format!("{}\n", Bounded(&self.to_string(), RESPONSE_BYTES));
        let mut response = Response::new(Body::from(text));
        *response.status_mut() = self.status();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        // The unread rest of the body would block the next request on this connection. Also, the client of a shed
        // request may reach another replica on a new connection. HTTP/2 has no `Connection` header. It does not need
        // one, because each request has its own stream.
        let is_unread = matches!(self, Self::TooLarge(_) | Self::TooSlow(_) | Self::Broken(_) | Self::Shed(_));
        if is_unread && version < Version::HTTP_2 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if matches!(self, Self::Shed(shed) if shed.sends_retry_after()) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ContentType(None) => {
                formatter.write_str("the request has no Content-Type: expected application/json")
            }
            Self::ContentType(Some(found)) => {
                write!(formatter, "the request's Content-Type is {}: expected application/json", Header(found))
            }
            Self::ContentEncoding(found) => {
                write!(formatter, "the request's Content-Encoding is {}: expected none", Header(found))
            }
            Self::TooLarge(limit) => write!(formatter, "the request's body is larger than {limit} bytes"),
            Self::TooSlow(limit) => {
                write!(formatter, "the request's body was not complete after {} ms", limit.as_millis())
            }
            Self::Broken(error) => write!(formatter, "the request's body could not be read: {error}"),
            Self::Shed(shed) => write!(formatter, "{shed}"),
            Self::Review(error) => write!(formatter, "not a valid AdmissionReview: {error}"),
            Self::Internal(error) => write!(formatter, "Pillion failed: {error}"),
            // The panic's message is only logged.
            Self::Panic(_) => formatter.write_str("Pillion failed: a bug in Pillion, see its log"),
        }
    }
}

/// Displays a header's value in quotes.
struct Header<'h>(&'h HeaderValue);

impl fmt::Display for Header<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "\"{}\"", Bounded(&String::from_utf8_lossy(self.0.as_bytes()), LOGGED_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_message_is_not_sent() {
        for panic in [Box::new("the secret") as Box<dyn Any + Send>, Box::new(String::from("the secret"))] {
            let refusal = Refusal::from_panic(&*panic);
            assert!(matches!(&refusal, Refusal::Panic(text) if &**text == "the secret"));
            assert!(!refusal.to_string().contains("secret"));
        }
    }

    #[test]
    fn shed_requests_get_retry_after_unless_late() {
        for shed in Shed::ALL {
            for (version, closes) in [(Version::HTTP_11, true), (Version::HTTP_10, true), (Version::HTTP_2, false)] {
                let response = Refusal::Shed(shed).response(version);
                assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
                assert_eq!(
                    response.headers().get(CONNECTION).is_some_and(|value| value == "close"),
                    closes,
                    "{shed:?}"
                );
                let retries = response.headers().get(RETRY_AFTER).is_some_and(|value| value == "1");
                assert_eq!(retries, shed != Shed::Deadline, "{shed:?}");
            }
        }
    }
}
