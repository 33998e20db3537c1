//! The routes of the admission port: a request becomes a review, the engine decides it, and the decision becomes a
//! response, a log line and counters.
//!
//! Deciding a small pod takes some 30 us, less than a handover to another thread. So it runs on the thread that read
//! the request, once it holds a permit. A large object is decided on a separate thread.

mod canary;
mod profiles;

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::routing::post;
use bytes::Bytes;
use futures::FutureExt;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use pillion_api::names::VALIDATE_PROFILES_PATH;
use pillion_engine::review::{Endpoint, Review};
use tokio::time::Instant;
use tracing::{Instrument, Span};

use crate::admission::{Admission, Answered, Case, Known, LookUpTerms};
use crate::body::{self, BufferedBody, Limits, Sender, Shared};
use crate::budget::Budget;
use crate::client_text::{Bounded, LOGGED_BYTES};
use crate::metrics::Tenant;
use crate::overload::{self, Deadline, Overload, Permit, RequestPermit, Shed, UnfinishedBodies, UnfinishedBounds};
use crate::refusal::{ANSWERED_BYTES, Refusal};
use crate::trace::RequestSpan;
use crate::transport::client_address;

/// [`Admission`], and the limits that all requests share.
pub(crate) struct Service {
    admission: Admission,
    bodies: Shared,
    overload: Overload,
}

/// Returns the routes: POST to `/mutate`, `/validate` and their paths for each failure mode, and to the paths for
/// profiles and connectivity checks.
pub fn router(admission: Admission) -> Router {
    let metrics = &admission.metrics;
    let settings = &admission.settings;
    let bounds = UnfinishedBounds {
        total: settings.overload.max_unfinished,
        per_address: settings.overload.max_unfinished_per_address,
    };
    let bodies = Shared {
        budget: Budget::new(settings.body_budget, metrics.body_bytes.clone()),
        unfinished: UnfinishedBodies::new(bounds, metrics.unfinished_bodies.clone()),
    };
    let overload = Overload::new(settings.overload.clone(), metrics.inflight.clone(), metrics.overload.clone());
    let mut router = Router::new();
    for endpoint in Endpoint::ALL {
        let answer = move |State(service): State<Arc<Service>>, request: Request| async move {
            service.answer(endpoint, request).await
        };
        router = router.route(endpoint.path(), post(answer));
    }
    let profile = async |State(service): State<Arc<Service>>, request: Request| service.answer_profile(request).await;
    let canary = async |State(service): State<Arc<Service>>, request: Request| service.answer_canary(request).await;
    router
        .route(VALIDATE_PROFILES_PATH, post(profile))
        // The path ends with the caller's epoch, which a replica ignores.
        .route(&format!("{}/{{epoch}}", pillion_api::canary::PATH), post(canary))
        .fallback(async || {
            (
                StatusCode::NOT_FOUND,
                "nothing is served here: expected /mutate, /mutate/LEVEL, /validate, /validate/LEVEL or /validate-profiles\n",
            )
        })
        .method_not_allowed_fallback(async || {
            (StatusCode::METHOD_NOT_ALLOWED, "expected a POST of an AdmissionReview\n")
        })
        .with_state(Arc::new(Service { admission, bodies, overload }))
}

/// The context of a request, without its body.
#[derive(Clone, Copy)]
struct Asked<'r> {
    endpoint: Endpoint,
    span: &'r RequestSpan,
    tenant: &'r Tenant,
    terms: LookUpTerms,
}

impl Service {
    async fn answer(self: Arc<Self>, endpoint: Endpoint, request: Request) -> Response<Body> {
        let began = Instant::now();
        let version = request.version();
        let span = RequestSpan::begin(endpoint, request.headers());
        let tenant = self.admission.metrics.tenants.request();
        // Unwind-safe: a panic leaves only counters and an immutable snapshot.
        let result = AssertUnwindSafe(self.decide(endpoint, request, &span, &tenant)).catch_unwind().await;
        let result = result.unwrap_or_else(|panic| Err(Refusal::from_panic(&*panic)));
        let (outcome, response) = match result {
            Ok(Answered { outcome, body }) => (outcome, review_answer(body)),
            Err(refusal) => {
                span.refused(&refusal);
                self.report(endpoint, &refusal);
                (refusal.outcome(), refusal.answer(version))
            }
        };
        span.answered(outcome, response.status());
        self.admission.metrics.answered(endpoint, outcome, began.elapsed(), span.sampled_trace(), &tenant);
        response
    }

    async fn decide(
        self: &Arc<Self>,
        endpoint: Endpoint,
        request: Request,
        span: &RequestSpan,
        tenant: &Tenant,
    ) -> Result<Answered, Refusal> {
        let deadline = self.overload.deadline(request.uri().query());
        let terms = LookUpTerms { client: client_address(request.extensions()), deadline };
        let receive = span.receive();
        let body = self.receive(request, deadline).instrument(receive.clone()).await?;
        // Taken only now, so that a client with an unfinished body takes no permit.
        let _request_permit = self.request_permit()?;
        let asked = Asked { endpoint, span, tenant, terms };
        if overload::is_large(&body.bytes) {
            drop(receive);
            // Boxed: the future of each request is as large as its largest state.
            Box::pin(self.decide_offloaded(asked, body)).await
        } else {
            self.decide_here(asked, &body.bytes, receive).await
        }
    }

    /// Waits for a permit to compute. A rejected request is attributed to the namespace peeked from its body, if that
    /// exists.
    async fn permit(&self, asked: Asked<'_>, body: &Bytes) -> Result<Permit, Refusal> {
        self.overload.permit(body, asked.terms.deadline).await.map_err(|shed| {
            if let Some(name) = overload::namespace(body) {
                asked.tenant.found(name, self.admission.snapshot.load().namespace(name).is_some());
            }
            Refusal::Shed(shed)
        })
    }

    /// Decides on the current thread.
    async fn decide_here(&self, asked: Asked<'_>, body: &Bytes, receive: Span) -> Result<Answered, Refusal> {
        let Asked { endpoint, span, tenant, terms } = asked;
        let mut permit = self.permit(asked, body).instrument(receive.clone()).await?;
        let review = receive.in_scope(|| Review::parse(body)).map_err(Refusal::Review)?;
        drop(receive);
        span.review(&review);
        let snapshot = &self.admission.snapshot.load();
        let mut known = Known::default();
        loop {
            let mut resolve = span.resolve();
            let next = self.admission.next(
                &Case { endpoint, snapshot, span, tenant, deadline: terms.deadline },
                &review,
                &mut known,
                &mut resolve,
            )?;
            // Releases the permit while this request waits for a lookup.
            drop(permit);
            let answered = self.admission.fetch(next, &mut known, terms).instrument(resolve.clone()).await;
            if let Some(answered) = answered {
                return Ok(answered);
            }
            permit = self.permit(asked, body).instrument(resolve).await?;
        }
    }

    /// Decides on a thread for large bodies. The body is parsed again after a lookup, so that no such thread waits for one.
    async fn decide_offloaded(self: &Arc<Self>, asked: Asked<'_>, mut body: BufferedBody) -> Result<Answered, Refusal> {
        let Asked { endpoint, terms, .. } = asked;
        let snapshot = self.admission.snapshot.load_full();
        let mut known = Known::default();
        loop {
            let mut resolve = asked.span.resolve();
            let permit = self.permit(asked, &body.bytes).instrument(resolve.clone()).await?;
            let (service, snapshot) = (Arc::clone(self), Arc::clone(&snapshot));
            let (span, tenant) = (asked.span.clone(), asked.tenant.clone());
            let work = move || {
                // Released when the work is done, like the body's bytes, even if the caller no longer waits.
                let _permit = permit;
                let review = resolve.in_scope(|| Review::parse(&body.bytes)).map_err(Refusal::Review);
                let next = review.and_then(|review| {
                    span.review(&review);
                    let case =
                        Case { endpoint, snapshot: &snapshot, span: &span, tenant: &tenant, deadline: terms.deadline };
                    service.admission.next(&case, &review, &mut known, &mut resolve)
                });
                (body, known, next, resolve)
            };
            let (read, so_far, next, resolve) =
                self.overload.offload(work).await.map_err(|panic| Refusal::from_panic(&*panic))?;
            (body, known) = (read, so_far);
            let answered = self.admission.fetch(next?, &mut known, terms).instrument(resolve).await;
            if let Some(answered) = answered {
                return Ok(answered);
            }
        }
    }

    /// Reads the body of a request that claims to be a review.
    pub(crate) async fn receive(&self, request: Request, deadline: Deadline) -> Result<BufferedBody, Refusal> {
        self.receive_at_most(self.admission.settings.body_limit, request, deadline).await
    }

    /// Like `receive`, with this limit on the body's size.
    pub(crate) async fn receive_at_most(
        &self,
        bytes: usize,
        request: Request,
        deadline: Deadline,
    ) -> Result<BufferedBody, Refusal> {
        let Admission { metrics, settings, .. } = &self.admission;
        if deadline.has_passed() {
            return Err(Refusal::Shed(Shed::Deadline));
        }
        check_content(request.headers())?;
        let sender = Sender::of(&request);
        let limits = Limits { bytes: bytes.min(settings.body_limit), time: settings.body_timeout.min(deadline.left()) };
        let body = body::read(request.into_body(), limits, &self.bodies, sender).await;
        let body = body.map_err(|error| Refusal::from_body(error, limits))?;
        metrics.request_bytes.observe_bytes(body.bytes.len());
        Ok(body)
    }

    pub(crate) const fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Returns a permit for a request whose body has arrived. The caller holds it until there is a response.
    pub(crate) fn request_permit(&self) -> Result<RequestPermit<'_>, Refusal> {
        self.overload.request_permit().ok_or(Refusal::Shed(Shed::InFlight))
    }

    pub(crate) fn deadline(&self, query: Option<&str>) -> Deadline {
        self.overload.deadline(query)
    }

    /// Returns the overload limits, which reviews of profiles share.
    pub(crate) const fn overload(&self) -> &Overload {
        &self.overload
    }

    fn report(&self, endpoint: Endpoint, refusal: &Refusal) {
        let endpoint = endpoint.as_str();
        match refusal {
            Refusal::Panic(text) => {
                self.admission.metrics.panics.inc();
                tracing::error!(endpoint, panic = %Bounded(text, LOGGED_BYTES), "a request was answered with 500: a panic");
            }
            Refusal::Fault(fault) => {
                self.admission.metrics.failed(fault);
                let fault = fault.to_string();
                tracing::error!(endpoint, fault = %Bounded(&fault, 4 * LOGGED_BYTES), "a request was answered with 500");
            }
            refusal => {
                if let Refusal::Shed(shed) = refusal {
                    self.overload.count(*shed);
                }
                if tracing::enabled!(tracing::Level::DEBUG) {
                    let (status, text) = (refusal.status().as_u16(), refusal.to_string());
                    tracing::debug!(endpoint, status, reason = %Bounded(&text, LOGGED_BYTES), "a request was refused");
                }
            }
        }
    }
}

/// Requires plain JSON, as Kubernetes sends it. Encoded content is rejected before it is decoded.
fn check_content(headers: &HeaderMap) -> Result<(), Refusal> {
    for encoding in headers.get_all(CONTENT_ENCODING) {
        if !encoding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity") {
            return Err(Refusal::ContentEncoding(encoding.clone()));
        }
    }
    let content_type = headers.get(CONTENT_TYPE);
    let is_json = content_type.is_some_and(|value| {
        let media_type = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
        media_type.trim_ascii().eq_ignore_ascii_case(b"application/json")
    });
    if is_json { Ok(()) } else { Err(Refusal::ContentType(content_type.cloned())) }
}

/// Returns the HTTP response for a review, as JSON.
pub(crate) fn review_answer(body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Returns a 400 response for a body that is not a review of this kind. The reason is truncated.
pub(crate) fn no_review_of(kind: &str, why: &dyn fmt::Display) -> Response<Body> {
    let why = why.to_string();
    let text = format!("not a review of a {kind}: {}\n", Bounded(&why, ANSWERED_BYTES));
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response
}
