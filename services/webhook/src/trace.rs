//! Spans of admission requests: one for the request, joined to the trace of whoever sent it, and one for each of its
//! parts.
//!
//! They have a target of their own, so that whoever sets up a subscriber can give them to its traces and to nobody else.
//! Where nobody listens to the target, a span is one look at a flag.

use http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{TraceContextExt, TraceId};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use pillion_engine::report::Decision;
use pillion_engine::review::{Endpoint, Review};
use tracing::field::{Empty, display};
use tracing::{Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::metrics::RequestOutcome;
use crate::refusal::{Bounded, LOGGED_BYTES, Refusal};

/// The target of all spans of requests, and of nothing else.
pub const TARGET: &str = "pillion_trace";

/// Bytes of a `traceparent`. The version in use has 55; later ones may be longer.
const TRACEPARENT_BYTES: usize = 128;
/// Bytes of a `tracestate` that have to be passed on, by the standard; of a longer one nothing is.
const TRACESTATE_BYTES: usize = 512;

/// The span of a request, from its head to its answer.
#[derive(Clone, Debug)]
pub(crate) struct RequestSpan(pub(crate) Span);

/// The two headers of W3C Trace Context, as far as they can be trusted to be such: once each, and short.
struct Headers<'h>(&'h HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let limit = match key {
            "traceparent" => TRACEPARENT_BYTES,
            "tracestate" => TRACESTATE_BYTES,
            _ => return None,
        };
        let mut values = self.0.get_all(key).iter();
        let value = values.next()?;
        if values.next().is_some() || value.len() > limit { None } else { value.to_str().ok() }
    }

    fn keys(&self) -> Vec<&str> {
        ["traceparent", "tracestate"].into_iter().filter(|key| self.get(key).is_some()).collect()
    }
}

impl RequestSpan {
    /// Begins a request's span, in the sender's trace if its headers name one.
    pub(crate) fn begin(endpoint: Endpoint, headers: &HeaderMap) -> Self {
        let span = info_span!(
            target: TARGET,
            "admission",
            otel.kind = "server",
            otel.status_code = Empty,
            http.response.status_code = Empty,
            endpoint = endpoint.as_str(),
            namespace = Empty,
            uid = Empty,
            dry_run = Empty,
            outcome = Empty,
            reason = Empty,
        );
        if !span.is_disabled() {
            let parent =
                TraceContextPropagator::new().extract_with_context(&opentelemetry::Context::new(), &Headers(headers));
            if parent.span().span_context().is_valid() {
                // Err: nobody makes traces of the target's spans, so there is nothing to join.
                let _ = span.set_parent(parent);
            }
        }
        Self(span)
    }

    /// What the request is about.
    pub(crate) fn review(&self, review: &Review<'_>) {
        if !self.0.is_disabled() {
            self.0.record("namespace", display(Bounded(review.namespace(), LOGGED_BYTES)));
            self.0.record("uid", display(Bounded(review.uid(), LOGGED_BYTES)));
            self.0.record("dry_run", review.dry_run());
        }
    }

    /// What was decided.
    pub(crate) fn decided(&self, decision: &Decision) {
        self.0.record("reason", decision.reason.as_str());
    }

    /// Why there was nothing to decide.
    pub(crate) fn refused(&self, refusal: &Refusal) {
        self.0.record("reason", refusal.reason());
        if refusal.status().is_server_error() {
            self.0.record("otel.status_code", "ERROR");
        }
    }

    /// How the request was answered.
    pub(crate) fn answered(&self, outcome: RequestOutcome, status: http::StatusCode) {
        self.0.record("outcome", outcome.as_str());
        self.0.record("http.response.status_code", status.as_u16());
    }

    /// The trace that the request belongs to, if what is told of it is kept.
    pub(crate) fn sampled_trace(&self) -> Option<TraceId> {
        if self.0.is_disabled() {
            return None;
        }
        let context = self.0.context();
        let span = context.span();
        let found = span.span_context();
        (found.is_valid() && found.is_sampled()).then(|| found.trace_id())
    }

    /// The span of reading the body and the envelope.
    pub(crate) fn receive(&self) -> Span {
        info_span!(target: TARGET, parent: &self.0, "receive")
    }

    /// The span of the decision.
    pub(crate) fn decide(&self) -> Span {
        info_span!(target: TARGET, parent: &self.0, "decide")
    }

    /// The span of writing the answer.
    pub(crate) fn respond(&self) -> Span {
        info_span!(target: TARGET, parent: &self.0, "respond")
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(values: &[(&'static str, &[u8])]) -> HeaderMap {
        values
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap()))
            .collect()
    }

    fn trace_id(headers: &HeaderMap) -> Option<String> {
        let context =
            TraceContextPropagator::new().extract_with_context(&opentelemetry::Context::new(), &Headers(headers));
        let span = context.span();
        let found = span.span_context();
        found.is_valid().then(|| found.trace_id().to_string())
    }

    #[test]
    fn a_good_header_is_followed_and_anything_else_is_ignored() {
        let trace = "0af7651916cd43dd8448eb211c80319c";
        assert_eq!(trace_id(&headers(&[("traceparent", GOOD.as_bytes())])).as_deref(), Some(trace));
        let long_state = [b"a=".as_slice(), &b"x".repeat(TRACESTATE_BYTES)].concat();
        for state in [&b"a=b"[..], b"=,,=", b"\xff\xfe", &long_state] {
            let both = headers(&[("traceparent", GOOD.as_bytes()), ("tracestate", state)]);
            assert_eq!(trace_id(&both).as_deref(), Some(trace), "a bad tracestate takes no trace away");
            assert!(Headers(&both).get("tracestate").is_none_or(|state| state.len() <= TRACESTATE_BYTES));
        }
        let long = format!("01-{}-{}", &GOOD[3..], "x".repeat(TRACEPARENT_BYTES));
        for bad in [
            "",
            "-",
            "---",
            "00-0-0-0",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            &long,
        ] {
            assert_eq!(trace_id(&headers(&[("traceparent", bad.as_bytes())])), None, "{bad:?}");
        }
        assert_eq!(trace_id(&headers(&[("traceparent", b"\xff\xfe")])), None);
        assert_eq!(trace_id(&headers(&[("tracestate", b"a=b")])), None);
        let twice = headers(&[("traceparent", GOOD.as_bytes()), ("traceparent", GOOD.as_bytes())]);
        assert_eq!(trace_id(&twice), None, "two are none");
    }
}
