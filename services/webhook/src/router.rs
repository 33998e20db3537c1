//! The routes of the admission port: an HTTP request becomes a review, the engine decides it, and the decision becomes an
//! answer, a line in the log and a few counters.
//!
//! A decision takes some 30 us of computing, less than handing it to another thread would: it is made where the request
//! was read.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::routing::post;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use pillion_engine::lookup::{Answer, LookedUp, Wanted};
use pillion_engine::report::ProfileDecision;
use pillion_engine::review::{Decided, Endpoint, Facts, Review};
use pillion_engine::snapshot::{Namespace, Snapshot};
use prometheus_client::metrics::gauge::Gauge;
use tracing::Instrument;

use crate::body::{self, Limits, Whole};
use crate::budget::Budget;
use crate::metrics::{Metrics, RequestOutcome, Tenant};
use crate::policy::Policy;
use crate::refusal::{Bounded, LOGGED_BYTES, Refusal};
use crate::trace::RequestSpan;

/// Looks a namespace up where it is known for certain, because the snapshot does not know it: it may be a second old.
/// `None`: it is not known there either, or cannot be looked up now.
///
/// The router bounds the time of one look-up. The name is whatever a client wrote, of any length. Whoever gives the
/// function makes sure that it can be one, and bounds the look-ups' number: it takes calls for the same name together, and
/// remembers names that do not exist.
pub type LiveNamespace = Arc<dyn Fn(&str) -> BoxFuture<'static, Option<Arc<Namespace>>> + Send + Sync>;

/// Looks up what a review wants besides its namespace: service accounts, owners, objects that profiles declare.
///
/// The router bounds the time of it, and asks only where something is wanted, which is seldom. Whoever gives the function
/// remembers answers, takes calls for the same object together, and says of what could not be had that it failed.
pub type LookUps = Arc<dyn Fn(Wanted) -> BoxFuture<'static, LookedUp> + Send + Sync>;

/// The limits of one request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RequestSettings {
    /// Bytes of a body. A review of an update holds two objects of up to 3 MiB.
    pub body_limit: usize,
    /// Bytes that the bodies of all requests may take together; what would be more is answered with 503. Large bodies
    /// leave a quarter of it to small ones.
    pub body_budget: usize,
    /// From the end of a request's head to the end of its body.
    pub body_timeout: Duration,
    /// How long the look-up of a namespace may take, and all that a review wants besides.
    pub live_timeout: Duration,
}

impl Default for RequestSettings {
    fn default() -> Self {
        Self {
            body_limit: 7 * 1024 * 1024,
            body_budget: 64 * 1024 * 1024,
            body_timeout: Duration::from_secs(5),
            live_timeout: Duration::from_millis(300),
        }
    }
}

/// What requests are answered with.
#[derive(Clone)]
pub struct Admission {
    /// Profiles and namespaces, replaced as a whole by whoever watches the cluster.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// The look-up of namespaces that the snapshot does not know, if there is one.
    pub live_namespace: Option<LiveNamespace>,
    /// The look-ups that reviews want. Without it nothing is found.
    pub look_ups: Option<LookUps>,
    /// What the platform says, replaced as a whole by whoever reads its file.
    pub policy: Arc<ArcSwap<Policy>>,
    /// Where requests are counted.
    pub metrics: Arc<Metrics>,
    /// The limits.
    pub settings: RequestSettings,
}

/// [`Admission`], and what all requests share besides.
struct Service {
    admission: Admission,
    budget: Arc<Budget>,
}

impl fmt::Debug for Admission {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Admission")
            .field("live_namespace", &self.live_namespace.is_some())
            .field("look_ups", &self.look_ups.is_some())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// The routes: POST to `/mutate`, to `/validate`, and to the paths of each injection level below them.
pub fn router(admission: Admission) -> Router {
    let budget = Budget::new(admission.settings.body_budget, admission.metrics.body_bytes.clone());
    let mut router = Router::new();
    for endpoint in Endpoint::ALL {
        let answer = move |State(service): State<Arc<Service>>, request: Request| async move {
            service.answer(endpoint, request).await
        };
        router = router.route(endpoint.path(), post(answer));
    }
    router
        .fallback(async || {
            (
                StatusCode::NOT_FOUND,
                "nothing is served here: expected /mutate, /mutate/LEVEL, /validate or /validate/LEVEL\n",
            )
        })
        .method_not_allowed_fallback(async || {
            (StatusCode::METHOD_NOT_ALLOWED, "expected a POST of an AdmissionReview\n")
        })
        .with_state(Arc::new(Service { admission, budget }))
}

impl Service {
    async fn answer(&self, endpoint: Endpoint, request: Request) -> Response<Body> {
        let began = Instant::now();
        let metrics = &self.admission.metrics;
        let _inflight = InFlight::new(&metrics.inflight);
        let version = request.version();
        let span = RequestSpan::begin(endpoint, request.headers());
        let tenant = metrics.tenants.request();
        // Unwind-safe: what a panic leaves behind are counters and an immutable snapshot.
        let result = AssertUnwindSafe(self.decide(endpoint, request, &span, &tenant)).catch_unwind().await;
        let result = result.unwrap_or_else(|panic| Err(Refusal::from_panic(&*panic)));
        let (outcome, response) = match result {
            Ok((outcome, body)) => (outcome, review_answer(body)),
            Err(refusal) => {
                span.refused(&refusal);
                self.admission.report(endpoint, &refusal);
                (refusal.outcome(), refusal.answer(version))
            }
        };
        span.answered(outcome, response.status());
        metrics.answered(endpoint, outcome, began.elapsed(), span.sampled_trace(), &tenant);
        response
    }

    async fn decide(
        &self,
        endpoint: Endpoint,
        request: Request,
        span: &RequestSpan,
        tenant: &Tenant,
    ) -> Result<(RequestOutcome, Vec<u8>), Refusal> {
        let Admission { snapshot, metrics, .. } = &self.admission;
        let receive = span.receive();
        let body = self.receive(request).instrument(receive.clone()).await?;
        let review = receive.in_scope(|| Review::parse(&body.bytes)).map_err(Refusal::Review)?;
        drop(receive);
        span.review(&review);

        let resolve = span.resolve();
        // One state of the cluster from here to the answer, also across a look-up.
        let snapshot = snapshot.load();
        let known = snapshot.namespace(review.namespace());
        tenant.found(review.namespace(), known.is_some());
        let namespace = match known {
            Some(known) => Some(known),
            None => self.admission.look_up(review.namespace()).instrument(resolve.clone()).await,
        };
        let policy = self.admission.policy.load();
        let mut facts = Facts { namespace, guardrails: policy.guardrails.clone(), ..Facts::default() };
        let wanted = resolve.in_scope(|| review.needs(endpoint, &snapshot, &facts));
        if !wanted.is_empty() {
            facts.looked_up = self.admission.look_up_all(wanted).instrument(resolve.clone()).await;
        }
        facts.looked_up.cluster.clone_from(&policy.cluster);
        drop(resolve);
        let mut steps = span.steps();
        let decided = review.decide_observed(endpoint, &snapshot, &facts, &mut steps).map_err(Refusal::Fault)?;
        drop(steps);
        span.decided(&decided.decision);
        metrics.decided(&decided.decision, review.dry_run());
        if let Some(patch) = &decided.patch {
            metrics.patch_bytes.observe_bytes(patch.len());
        }
        log(endpoint, &review, &decided);
        let answer = span.serialise().in_scope(|| review.respond(&decided));
        Ok((RequestOutcome::Decided(decided.decision.outcome), answer))
    }

    /// The body of a request that may be a review.
    async fn receive(&self, request: Request) -> Result<Whole, Refusal> {
        let Admission { metrics, settings, .. } = &self.admission;
        check_content(request.headers())?;
        let waits = request.headers().contains_key(EXPECT);
        let limits = Limits { bytes: settings.body_limit, time: settings.body_timeout };
        let body = body::read(request.into_body(), limits, &self.budget, waits).await;
        let body = body.map_err(|error| Refusal::from_body(error, limits))?;
        metrics.request_bytes.observe_bytes(body.bytes.len());
        Ok(body)
    }
}

impl Admission {
    /// A namespace that the snapshot does not know, if it is to be found in time.
    async fn look_up(&self, name: &str) -> Option<Arc<Namespace>> {
        // Objects of the cluster's own have no namespace.
        let look_up = self.live_namespace.as_ref().filter(|_| !name.is_empty())?;
        let found = tokio::time::timeout(self.settings.live_timeout, look_up(name)).await;
        if found.is_err() {
            // A client can bring this about with each request: whoever gives the function tells of it, now and then.
            tracing::debug!(
                namespace = %Bounded(name, LOGGED_BYTES),
                timeout = ?self.settings.live_timeout,
                "a namespace that is not known yet could not be looked up in time"
            );
        }
        found.ok().flatten()
    }

    /// What a review wants, as far as it is to be had in time.
    async fn look_up_all(&self, wanted: Wanted) -> LookedUp {
        let Some(look_ups) = &self.look_ups else { return wanted.answered(&Answer::Missing) };
        match tokio::time::timeout(self.settings.live_timeout, look_ups(wanted.clone())).await {
            Ok(looked_up) => looked_up,
            Err(_) => wanted.answered(&Answer::Failed("no answer in time".into())),
        }
    }

    fn report(&self, endpoint: Endpoint, refusal: &Refusal) {
        let endpoint = endpoint.as_str();
        match refusal {
            Refusal::Panic(text) => {
                self.metrics.panics.inc();
                tracing::error!(endpoint, panic = %Bounded(text, LOGGED_BYTES), "a request was answered with 500: a panic");
            }
            Refusal::Fault(fault) => {
                self.metrics.failed(fault);
                let fault = fault.to_string();
                tracing::error!(endpoint, fault = %Bounded(&fault, 4 * LOGGED_BYTES), "a request was answered with 500");
            }
            refusal if tracing::enabled!(tracing::Level::DEBUG) => {
                let (status, text) = (refusal.status().as_u16(), refusal.to_string());
                tracing::debug!(endpoint, status, reason = %Bounded(&text, LOGGED_BYTES), "a request was refused");
            }
            _ => {}
        }
    }
}

/// What Kubernetes sends is JSON as it is. Anything that would have to be unpacked is refused before it is.
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

fn review_answer(body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// One line for each decision: who and why, and never the object, which can hold secrets.
fn log(endpoint: Endpoint, review: &Review<'_>, decided: &Decided) {
    let decision = &decided.decision;
    tracing::debug!(
        endpoint = endpoint.as_str(),
        namespace = %Bounded(review.namespace(), LOGGED_BYTES),
        name = %Bounded(&review.object_name().unwrap_or_default(), LOGGED_BYTES),
        uid = %Bounded(review.uid(), LOGGED_BYTES),
        dry_run = review.dry_run(),
        outcome = decision.outcome.as_str(),
        reason = decision.reason.as_str(),
        profiles = %Profiles(&decision.profiles),
        "decided"
    );
}

/// What was decided about each profile, for the log: `nginx@3f2a=applied/injected team-a/x@91bc=skipped/name_taken`.
struct Profiles<'d>(&'d [ProfileDecision]);

impl fmt::Display for Profiles<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, decided) in self.0.iter().enumerate() {
            let space = if index > 0 { " " } else { "" };
            let (name, revision) = (decided.profile.name(), decided.profile.revision());
            let (outcome, reason) = (decided.outcome.as_str(), decided.reason);
            write!(formatter, "{space}{name}@{revision}={outcome}/{reason}")?;
        }
        Ok(())
    }
}

/// Counts a request for as long as it is being answered, or until its client goes away.
struct InFlight<'m>(&'m Gauge);

impl<'m> InFlight<'m> {
    fn new(gauge: &'m Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}
