//! Creates the spans of admission requests: one for the request, and one for each step. The request's span belongs to
//! the API server's trace if the request's headers name one.
//!
//! The spans have a target of their own, so that a subscriber can send them only to traces. Without a subscriber for
//! the target, creating a span only reads a flag. Sampling is decided once, at the request's head; an unsampled request
//! creates no further spans. If such a request fails or is denied, one span without steps is created for it afterwards.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span as _, SpanBuilder, SpanKind, Status, TraceContextExt, TraceId, Tracer};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value, global};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use pillion_engine::decision::{Decision, Outcome};
use pillion_engine::review::{Endpoint, Observer, Review, Step};
use tracing::field::{Empty, display};
use tracing::{Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::client_text::{Bounded, LOGGED_BYTES};
use crate::metrics::RequestOutcome;
use crate::refusal::Refusal;

/// The target of all request spans. No other span has this target.
pub const TARGET: &str = "pillion_trace";

/// The attribute of a span that was created only when the response was ready, because its request failed or was denied.
/// It shows samplers that the request was not sampled at its head.
pub const SAMPLED_FOR: &str = "sampled_for";

/// The name of the instrumentation scope of the spans.
const SCOPE: &str = "pillion";

/// The name of a request's span.
const ADMISSION: &str = "admission";

/// The maximum number of profile names in a span.
const MAX_PROFILES: usize = 16;

/// The maximum length of `traceparent` in bytes. The current version has 55 bytes; later ones may have more.
const TRACEPARENT_BYTES: usize = 128;
/// The maximum length of `tracestate` in bytes. The standard recommends to propagate at least this many. A longer
/// header is dropped.
const TRACESTATE_BYTES: usize = 512;

/// The span of a request, from its head to its response. Clones share one span, which ends when the last clone is
/// dropped.
#[derive(Clone, Debug)]
pub(crate) struct RequestSpan {
    /// A disabled span if the request is not sampled.
    span: Span,
    unsampled: Option<Arc<UnsampledRequest>>,
}

/// The data of an unsampled request. If the request fails or is denied, its span is created from this data afterwards.
#[derive(Debug)]
struct UnsampledRequest {
    endpoint: Endpoint,
    parent: Context,
    began: SystemTime,
    attributes: Mutex<Vec<KeyValue>>,
}

/// Creates one span for each step of a decision.
#[derive(Debug)]
pub(crate) struct StepSpans<'r> {
    request: &'r RequestSpan,
    current: Span,
}

/// The two headers of W3C Trace Context. A repeated or overlong header is ignored.
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
    /// Begins a request's span. If the headers name a trace, the span belongs to it.
    pub(crate) fn begin(endpoint: Endpoint, headers: &HeaderMap) -> Self {
        let span = info_span!(
            target: TARGET,
            ADMISSION,
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
        if span.is_disabled() {
            return Self { span, unsampled: None };
        }
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
        if parent.span().span_context().is_valid() {
            // An error means that no subscriber creates traces from spans of this target.
            let _ = span.set_parent(parent.clone());
        }
        if span.context().span().span_context().is_sampled() {
            return Self { span, unsampled: None };
        }
        let unsampled = UnsampledRequest { endpoint, parent, began: SystemTime::now(), attributes: Mutex::default() };
        Self { span: Span::none(), unsampled: Some(Arc::new(unsampled)) }
    }

    /// Records the namespace and the UID of the review, and whether it is a dry run.
    pub(crate) fn review(&self, review: &Review<'_>) {
        let (namespace, uid) = (Bounded(review.namespace(), LOGGED_BYTES), Bounded(review.uid(), LOGGED_BYTES));
        if !self.span.is_disabled() {
            self.span.record("namespace", display(namespace));
            self.span.record("uid", display(uid));
            self.span.record("dry_run", review.dry_run());
        } else if let Some(unsampled) = &self.unsampled {
            unsampled.add_attributes([
                KeyValue::new("namespace", namespace.to_string()),
                KeyValue::new("uid", uid.to_string()),
                KeyValue::new("dry_run", review.dry_run()),
            ]);
        }
    }

    /// Records the reason for the decision, and the first profiles that were considered. For an unsampled request, does
    /// so only if the request was denied.
    pub(crate) fn decided(&self, decision: &Decision) {
        if !self.span.is_disabled() {
            self.span.record("reason", decision.reason.as_str());
            if !decision.profiles.is_empty() {
                self.span.set_attribute("profiles", profiles(decision));
            }
        } else if let Some(unsampled) = self.unsampled.as_ref().filter(|_| decision.outcome == Outcome::Denied) {
            let reason = KeyValue::new("reason", decision.reason.as_str());
            unsampled.add_attributes([reason, KeyValue::new("profiles", profiles(decision))]);
        }
    }

    /// Records why the request was not decided. For an unsampled request, does so only if the status is 5xx.
    pub(crate) fn refused(&self, refusal: &Refusal) {
        self.span.record("reason", refusal.reason());
        if refusal.status().is_server_error() {
            self.span.record("otel.status_code", "ERROR");
            if let Some(unsampled) = &self.unsampled {
                unsampled.add_attributes([KeyValue::new("reason", refusal.reason())]);
            }
        }
    }

    /// Records the response. If an unsampled request failed or was denied, creates its span now.
    pub(crate) fn answered(&self, outcome: RequestOutcome, status: http::StatusCode) {
        self.span.record("outcome", outcome.as_str());
        self.span.record("http.response.status_code", status.as_u16());
        if let Some(unsampled) = &self.unsampled
            && (status.is_server_error() || outcome == RequestOutcome::Decided(Outcome::Denied))
        {
            unsampled.create_span(outcome, status);
        }
    }

    /// Returns the id of the request's trace. `None`: the request is not sampled.
    pub(crate) fn sampled_trace(&self) -> Option<TraceId> {
        if self.span.is_disabled() {
            return None;
        }
        let context = self.span.context();
        let span = context.span();
        let found = span.span_context();
        (found.is_valid() && found.is_sampled()).then(|| found.trace_id())
    }

    /// Creates the span of reading the body. For a small body, it also covers the wait for a permit and the parsing.
    pub(crate) fn receive(&self) -> Span {
        self.child(|parent| info_span!(target: TARGET, parent: parent, "receive"))
    }

    /// Creates the span of looking up the namespace and the objects that the review needs. It also covers the wait for
    /// another permit after a lookup. For a large body, it covers every wait for a permit, and the parsing.
    pub(crate) fn resolve(&self) -> Span {
        self.child(|parent| info_span!(target: TARGET, parent: parent, "resolve"))
    }

    /// Returns the observer that creates the spans of the decision's steps.
    pub(crate) const fn steps(&self) -> StepSpans<'_> {
        StepSpans { request: self, current: Span::none() }
    }

    /// Creates the span of serialising the response.
    pub(crate) fn serialise(&self) -> Span {
        self.child(|parent| info_span!(target: TARGET, parent: parent, "serialise"))
    }

    fn child(&self, span: impl FnOnce(&Span) -> Span) -> Span {
        if self.span.is_disabled() { Span::none() } else { span(&self.span) }
    }
}

impl Observer for StepSpans<'_> {
    fn begins(&mut self, step: Step) {
        // The previous step ends before the next one begins.
        self.current = Span::none();
        self.current = self.request.child(|parent| match step {
            Step::Match => info_span!(target: TARGET, parent: parent, "match"),
            Step::Merge => info_span!(target: TARGET, parent: parent, "merge"),
            Step::SelfCheck => info_span!(target: TARGET, parent: parent, "self-check"),
            Step::Validate => info_span!(target: TARGET, parent: parent, "validate"),
        });
    }
}

impl UnsampledRequest {
    fn add_attributes(&self, more: impl IntoIterator<Item = KeyValue>) {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner).extend(more);
    }

    /// Creates the span of an unsampled request, if the sampler now accepts it.
    fn create_span(&self, outcome: RequestOutcome, status: http::StatusCode) {
        let mut attributes = std::mem::take(&mut *self.attributes.lock().unwrap_or_else(PoisonError::into_inner));
        attributes.extend([
            KeyValue::new(SAMPLED_FOR, "error"),
            KeyValue::new("endpoint", self.endpoint.as_str()),
            KeyValue::new("outcome", outcome.as_str()),
            KeyValue::new("http.response.status_code", i64::from(status.as_u16())),
        ]);
        let is_error = status.is_server_error();
        let builder = SpanBuilder::from_name(ADMISSION)
            .with_kind(SpanKind::Server)
            .with_start_time(self.began)
            .with_attributes(attributes);
        let mut span = global::tracer(SCOPE).build_with_context(builder, &self.parent);
        if is_error {
            span.set_status(Status::error(""));
        }
        span.end();
    }
}

/// Returns the names of the first profiles that the decision considered.
fn profiles(decision: &Decision) -> Value {
    let names = decision.profiles.iter().take(MAX_PROFILES);
    let names = names.map(|decided| StringValue::from(decided.profile.display_name().to_owned()));
    Value::Array(Array::String(names.collect()))
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(values: &[(&'static str, &[u8])]) -> HeaderMap {
        values
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap()))
            .collect()
    }

    fn trace_id(headers: &HeaderMap) -> Option<String> {
        let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
        let span = context.span();
        let found = span.span_context();
        found.is_valid().then(|| found.trace_id().to_string())
    }

    #[test]
    fn valid_trace_headers_are_followed_others_ignored() {
        let trace = "0af7651916cd43dd8448eb211c80319c";
        assert_eq!(trace_id(&headers(&[("traceparent", VALID.as_bytes())])).as_deref(), Some(trace));
        let long_state = [b"a=".as_slice(), &b"x".repeat(TRACESTATE_BYTES)].concat();
        for state in [&b"a=b"[..], b"=,,=", b"\xff\xfe", &long_state] {
            let both = headers(&[("traceparent", VALID.as_bytes()), ("tracestate", state)]);
            assert_eq!(trace_id(&both).as_deref(), Some(trace), "an invalid tracestate does not drop the trace");
            assert!(Headers(&both).get("tracestate").is_none_or(|state| state.len() <= TRACESTATE_BYTES));
        }
        let long = format!("01-{}-{}", &VALID[3..], "x".repeat(TRACEPARENT_BYTES));
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
        let twice = headers(&[("traceparent", VALID.as_bytes()), ("traceparent", VALID.as_bytes())]);
        assert_eq!(trace_id(&twice), None, "a repeated header is ignored");
    }
}
