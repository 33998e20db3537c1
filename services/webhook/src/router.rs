//! The routes of the admission port. A request is parsed as a review, the engine decides it, and the decision becomes a
//! response, a log line and metrics.
//!
//! The decision on a small pod takes some 30 µs, which is less than the time to pass the request to another thread. So
//! the thread that read the request also decides it, once the request holds a permit. The decision on a large object is
//! computed on a separate thread.

use std::fmt;
use std::net::IpAddr;
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
use pillion_api::trust_probe;
use pillion_engine::lookup::{Answer, LookedUp, Wanted};
use pillion_engine::profile::{KnownParents, MAX_CHAIN, ProfileReview};
use pillion_engine::review::{Endpoint, Review};
use pillion_engine::snapshot::Snapshot;
use tokio::time::Instant;
use tracing::Instrument;

use crate::admission::{Admission, LookupResults, Next, RequestContext, ReviewResponse};
use crate::body::{self, Budget, BufferedBody, Limits, Sender, SharedLimits};
use crate::client_text::{Bounded, LOGGED_BYTES};
use crate::clients::client_address;
use crate::overload::{
    self, Deadline, Overload, Permit, RequestPermit, ReviewFailure, Shed, UnfinishedBodies, UnfinishedBounds,
};
use crate::refusal::{RESPONSE_BYTES, Refusal};
use crate::trace::RequestSpan;

/// The state of the routes: [`Admission`], and limits that all requests share.
struct Service {
    admission: Admission,
    bodies: SharedLimits,
    overload: Overload,
}

/// Returns the routes for POST requests: `/mutate`, `/validate`, the paths below them for each failure mode, and the
/// paths for profiles and connectivity checks.
pub fn router(admission: Admission) -> Router {
    let metrics = &admission.metrics;
    let settings = &admission.settings;
    let bounds = UnfinishedBounds {
        total: settings.overload.max_unfinished,
        per_address: settings.overload.max_unfinished_per_address,
    };
    let bodies = SharedLimits {
        budget: Budget::new(settings.body_budget, metrics.body_memory.clone()),
        unfinished: UnfinishedBodies::new(bounds, metrics.incomplete_bodies.clone()),
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
    let check =
        async |State(service): State<Arc<Service>>, request: Request| service.answer_connectivity_check(request).await;
    router
        .route(VALIDATE_PROFILES_PATH, post(profile))
        // The controller appends its epoch to this path in the webhook configuration. The replica ignores the epoch.
        .route(&format!("{}/{{epoch}}", trust_probe::PATH), post(check))
        .fallback(async || {
            (
                StatusCode::NOT_FOUND,
                "nothing is served here: expected /mutate, /mutate/MODE, /validate, /validate/MODE or /validate-profiles\n",
            )
        })
        .method_not_allowed_fallback(async || {
            (StatusCode::METHOD_NOT_ALLOWED, "expected a POST of an AdmissionReview\n")
        })
        .with_state(Arc::new(Service { admission, bodies, overload }))
}

impl Service {
    /// Decides a review and returns its response. Records the outcome in the trace, the log and the metrics.
    async fn answer(self: Arc<Self>, endpoint: Endpoint, request: Request) -> Response<Body> {
        let began = Instant::now();
        let version = request.version();
        let metrics = &self.admission.metrics;
        let context = RequestContext {
            endpoint,
            span: RequestSpan::begin(endpoint, request.headers()),
            tenant: metrics.tenants.request(),
            client: client_address(request.extensions()),
            deadline: self.overload.deadline(request.uri().query()),
        };
        // Unwind-safe: only counters and an immutable snapshot outlive a panic.
        let result = AssertUnwindSafe(self.decide(&context, request)).catch_unwind().await;
        let (outcome, incomplete, response) = match result.unwrap_or_else(|panic| Err(Refusal::from_panic(&*panic))) {
            Ok(ReviewResponse { outcome, incomplete, body }) => (outcome, incomplete, json_response(body)),
            Err(refusal) => {
                context.span.refused(&refusal);
                self.report(endpoint, &refusal);
                (refusal.outcome(), false, refusal.response(version))
            }
        };
        context.span.answered(outcome, response.status());
        metrics.answered(endpoint, outcome, began.elapsed(), context.span.sampled_trace());
        context.tenant.answered(outcome, incomplete);
        response
    }

    /// Handles a request after its head: reads the body, waits for permits, does lookups, and decides.
    async fn decide(self: &Arc<Self>, context: &RequestContext, request: Request) -> Result<ReviewResponse, Refusal> {
        let receive = context.span.receive();
        let limit = self.admission.settings.body_limit;
        let body = self.receive(request, limit, context.deadline).instrument(receive.clone()).await?;
        // The permit is taken only now, so that a client with an unfinished body does not hold one.
        let _request_permit = self.request_permit()?;
        if overload::is_large(&body.bytes) {
            drop(receive);
            // A request's future is as large as its largest state, so this rare state is boxed.
            return Box::pin(self.decide_large(context, body)).await;
        }
        let mut permit = self.permit(context, &body.bytes).instrument(receive.clone()).await?;
        let review = receive.in_scope(|| Review::parse(&body.bytes)).map_err(Refusal::Review)?;
        drop(receive);
        context.span.review(&review);
        let snapshot = &self.admission.snapshot.load();
        let mut results = LookupResults::default();
        loop {
            // There is no `await` while the request holds the permit, because the permit measures the decision.
            let mut resolve = context.span.resolve();
            let lookup = match self.admission.next(context, snapshot, &review, &mut results, &mut resolve)? {
                Next::Respond(response) => return Ok(response),
                Next::Lookup(lookup) => lookup,
            };
            // Other requests can use the permit while this request waits for a lookup.
            drop(permit);
            self.admission.look_up(lookup, context, &mut results).instrument(resolve.clone()).await;
            permit = self.permit(context, &body.bytes).instrument(resolve).await?;
        }
    }

    /// Decides a request on a thread for large bodies. After a lookup, parses the body again, so that such a thread
    /// never waits for a lookup.
    async fn decide_large(
        self: &Arc<Self>,
        context: &RequestContext,
        body: BufferedBody,
    ) -> Result<ReviewResponse, Refusal> {
        let snapshot = self.admission.snapshot.load_full();
        // The tenant is set before the context is cloned for the other thread: a tenant that is set later in the clone
        // does not reach this context, with which the response is counted.
        self.attribute(context, &body.bytes);
        let body = Arc::new(body);
        let mut results = LookupResults::default();
        loop {
            let mut resolve = context.span.resolve();
            let permit = self.permit(context, &body.bytes).instrument(resolve.clone()).await?;
            let work = {
                let (service, context) = (Arc::clone(self), context.clone());
                let (snapshot, body) = (Arc::clone(&snapshot), Arc::clone(&body));
                move || {
                    // The body's memory stays reserved until the work is done, even if the caller no longer waits.
                    let review = resolve.in_scope(|| Review::parse(&body.bytes)).map_err(Refusal::Review)?;
                    context.span.review(&review);
                    let next = service.admission.next(&context, &snapshot, &review, &mut results, &mut resolve)?;
                    Ok::<_, Refusal>((next, results, resolve))
                }
            };
            let done = self.overload.offload(permit, work).await;
            let (next, new_results, resolve) = done.unwrap_or_else(|panic| Err(Refusal::from_panic(&*panic)))?;
            results = new_results;
            match next {
                Next::Respond(response) => return Ok(response),
                Next::Lookup(lookup) => {
                    self.admission.look_up(lookup, context, &mut results).instrument(resolve).await;
                }
            }
        }
    }

    /// Checks that the request's headers declare unencoded JSON, and reads its body. The size limit is the smaller of
    /// `bytes` and the body limit.
    async fn receive(&self, request: Request, bytes: usize, deadline: Deadline) -> Result<BufferedBody, Refusal> {
        let Admission { metrics, settings, .. } = &self.admission;
        if deadline.has_passed() {
            return Err(Refusal::Shed(Shed::Deadline));
        }
        check_content(request.headers())?;
        let sender = Sender::of(&request);
        let limits =
            Limits { bytes: bytes.min(settings.body_limit), time: settings.body_timeout.min(deadline.remaining()) };
        let body = body::read(request.into_body(), limits, &self.bodies, sender).await;
        let body = body.map_err(|error| Refusal::from_body(error, limits))?;
        metrics.body_read(body.bytes.len());
        Ok(body)
    }

    /// Returns a permit for a request whose body has arrived. The caller holds the permit until the response is ready.
    fn request_permit(&self) -> Result<RequestPermit<'_>, Refusal> {
        self.overload.request_permit().ok_or(Refusal::Shed(Shed::InFlight))
    }

    /// Waits for a permit to decide. If the request is shed, attributes it in metrics to the namespace in its body.
    async fn permit(&self, context: &RequestContext, body: &Bytes) -> Result<Permit, Refusal> {
        self.overload.permit(body, context.deadline).await.map_err(|shed| {
            self.attribute(context, body);
            Refusal::Shed(shed)
        })
    }

    /// Attributes the request in metrics to the namespace that is peeked from its body. If the snapshot lacks that
    /// namespace, the request is attributed to `_other`. Does nothing if no namespace is found in the body.
    fn attribute(&self, context: &RequestContext, body: &Bytes) {
        if let Some(name) = overload::peek_namespace(body) {
            context.tenant.set_namespace(name, self.admission.snapshot.load().namespace(name).is_some());
        }
    }

    /// Logs and counts a refusal.
    fn report(&self, endpoint: Endpoint, refusal: &Refusal) {
        let endpoint = endpoint.as_str();
        match refusal {
            Refusal::Panic(text) => {
                self.admission.metrics.panics.inc();
                tracing::error!(endpoint, panic = %Bounded(text, LOGGED_BYTES), "a request was answered with 500: a panic");
            }
            Refusal::Internal(error) => {
                self.admission.metrics.self_check_failed(error);
                let error = error.to_string();
                tracing::error!(endpoint, error = %Bounded(&error, 4 * LOGGED_BYTES), "a request was answered with 500");
            }
            refusal => {
                if let Refusal::Shed(shed) = refusal {
                    self.overload.count(*shed);
                }
                if tracing::enabled!(tracing::Level::DEBUG) {
                    let (status, text) = (refusal.status().as_u16(), refusal.to_string());
                    tracing::debug!(endpoint, status, reason = %Bounded(&text, LOGGED_BYTES), "a request was rejected");
                }
            }
        }
    }

    /// Answers a review of a profile that is about to be stored. The response warns the author of mistakes, but never
    /// rejects the profile.
    ///
    /// Reviews of profiles are rare, but compiling one profile may take long. So they have a thread of their own,
    /// separate from the decisions on pods, and a short queue that is fair between client addresses. Parent profiles
    /// are looked up.
    async fn answer_profile(self: Arc<Self>, request: Request) -> Response<Body> {
        let version = request.version();
        match self.review_profile(request).await {
            Ok(response) => response,
            Err(refusal) => {
                if let Refusal::Shed(shed) = refusal {
                    self.overload.count(shed);
                }
                refusal.response(version)
            }
        }
    }

    async fn review_profile(self: &Arc<Self>, request: Request) -> Result<Response<Body>, Refusal> {
        let deadline = self.overload.deadline(request.uri().query());
        let client = client_address(request.extensions());
        let body = self.receive(request, self.admission.settings.body_limit, deadline).await?;
        let _request_permit = self.request_permit()?;
        let bytes = body.bytes.clone();
        let review = match self.compute_profile(client, deadline, move || ProfileReview::parse(&bytes)).await? {
            Ok(review) => review,
            Err(error) => return Ok(invalid_review_response("profile", &error)),
        };
        let mut parents = KnownParents::with_names(cluster_profiles(&self.admission.snapshot.load()));
        for _ in 0..MAX_CHAIN {
            let Some(query) = review.wanted(&parents) else { break };
            let wanted = Wanted { objects: vec![query.clone()], ..Wanted::default() };
            let LookedUp { objects, .. } = self.admission.look_up_objects(wanted, client, deadline).await;
            match objects.into_iter().next() {
                Some((query, answer)) => parents.found(&query, &answer),
                None => parents.found(&query, &Answer::NotRequested),
            }
        }
        let work = move || {
            let warnings = review.warnings(&parents);
            (review.respond(&warnings), warnings.len(), review)
        };
        let (response, warnings, review) = self.compute_profile(client, deadline, work).await?;
        let profile = review.name().to_string();
        tracing::debug!(profile = %Bounded(&profile, LOGGED_BYTES), warnings, "a profile is stored");
        Ok(json_response(response))
    }

    /// Runs `work` on the thread for profiles, in an order that is fair between clients. Returns at the deadline at the
    /// latest. Unfinished work keeps its permit until it is done.
    async fn compute_profile<T: Send + 'static>(
        &self,
        client: IpAddr,
        deadline: Deadline,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        self.overload.review_profile(client, deadline, work).await.map_err(|failure| match failure {
            ReviewFailure::Shed(shed) => Refusal::Shed(shed),
            ReviewFailure::Panicked(panic) => Refusal::from_panic(&*panic),
        })
    }

    /// Answers a connectivity check, which proves that an API server reaches a replica. The controller makes each API
    /// server call a replica. It allows failure policies that reject pods when no replica answers only after all calls
    /// have succeeded, or after a time limit.
    async fn answer_connectivity_check(self: Arc<Self>, request: Request) -> Response<Body> {
        let version = request.version();
        self.check_connectivity(request).await.unwrap_or_else(|refusal| refusal.response(version))
    }

    async fn check_connectivity(&self, request: Request) -> Result<Response<Body>, Refusal> {
        let deadline = self.overload.deadline(request.uri().query());
        let body = self.receive(request, trust_probe::MAX_REVIEW_BYTES, deadline).await?;
        let _request_permit = self.request_permit()?;
        Ok(match trust_probe::refusal(&body.bytes) {
            Ok(response) => json_response(response),
            Err(error) => invalid_review_response("trust probe", &error),
        })
    }
}

/// Returns the names of the cluster profiles.
fn cluster_profiles(snapshot: &Snapshot) -> Vec<String> {
    let names = snapshot.profiles().iter().map(|profile| profile.name());
    names.filter(|name| name.namespace.is_none()).map(|name| name.name.to_string()).collect()
}

/// Checks that the content is unencoded JSON, as Kubernetes sends it. Rejects encoded content without decoding it.
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
fn json_response(body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Returns a 400 response for a body that is not a review of this kind of object. The error in the text is truncated.
fn invalid_review_response(kind: &str, error: &dyn fmt::Display) -> Response<Body> {
    let error = error.to_string();
    let text = format!("not a review of a {kind}: {}\n", Bounded(&error, RESPONSE_BYTES));
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response
}
