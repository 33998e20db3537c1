//! Readiness of the process, and the routes of the operations port: liveness, readiness and metrics.
//!
//! A component that must finish its start before requests arrive registers by name with [`Readiness`], and sets itself
//! ready when it has finished. `/readyz` returns the names of the components that are not ready. [`once_ready`] rejects
//! requests until all components have been ready at the same time.

use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::FutureExt;
use futures::future::{BoxFuture, Either};
use http::header::{CONTENT_TYPE, VARY};
use http::{HeaderMap, StatusCode};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tower::{Layer, Service, ServiceBuilder};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::timeout::TimeoutLayer;

use crate::body;
use crate::metrics::exposition::Format;
use crate::metrics::{Exposition, Metrics};
use crate::overload::Shed;
use crate::refusal::Refusal;

/// The maximum number of bytes of a rejected body that are read and discarded. It equals the default limit of a body.
const DISCARD_LIMIT: usize = 7 * 1024 * 1024;
/// How long a response may take. A full scrape takes milliseconds, so a response that takes longer is stuck, and the
/// client should get an error.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The readiness of the process: it is ready if all components are ready and it is not draining.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    state: Arc<ReadinessState>,
}

#[derive(Debug, Default)]
struct ReadinessState {
    draining: AtomicBool,
    components: Mutex<Vec<Arc<ComponentState>>>,
}

/// A component that is registered with [`Readiness`]. At first it is not ready.
#[derive(Clone, Debug)]
#[must_use = "the process is not ready before this component is set ready"]
pub struct Component {
    state: Arc<ComponentState>,
}

#[derive(Debug)]
struct ComponentState {
    name: &'static str,
    ready: AtomicBool,
}

/// Why the process is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotReady {
    /// Whether the process is shutting down.
    pub draining: bool,
    /// The components that are not ready, in the order in which they were registered.
    pub waiting_for: Vec<&'static str>,
}

impl Readiness {
    /// Adds a component that is not ready yet. Two components may share a name, and both must be ready.
    pub fn component(&self, name: &'static str) -> Component {
        let state = Arc::new(ComponentState { name, ready: AtomicBool::new(false) });
        self.components().push(Arc::clone(&state));
        Component { state }
    }

    /// Marks the process as draining, so that it is not ready from now on. Call this before the servers drain: the API
    /// server's traffic then moves to other replicas while this one still answers.
    pub fn drain(&self) {
        self.state.draining.store(true, Ordering::Release);
    }

    /// Checks that the process is ready. Otherwise returns the reasons as an error.
    pub fn check(&self) -> Result<(), NotReady> {
        let waiting_for: Vec<_> = self
            .components()
            .iter()
            .filter(|state| !state.ready.load(Ordering::Acquire))
            .map(|state| state.name)
            .collect();
        let draining = self.state.draining.load(Ordering::Acquire);
        if draining || !waiting_for.is_empty() { Err(NotReady { draining, waiting_for }) } else { Ok(()) }
    }

    /// Registers the readiness metric as `PREFIX_ready`.
    pub fn register(&self, registry: &mut Registry, prefix: &str) {
        registry.sub_registry_with_prefix(prefix).register_collector(Box::new(self.clone()));
    }

    fn components(&self) -> std::sync::MutexGuard<'_, Vec<Arc<ComponentState>>> {
        self.state.components.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for Readiness {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let gauge = ConstGauge::new(i64::from(self.check().is_ok()));
        let help = "1 if /readyz succeeds";
        gauge.encode(encoder.encode_descriptor("ready", help, None, gauge.metric_type())?)
    }
}

impl Component {
    /// Sets whether the component is ready.
    pub fn set_ready(&self, ready: bool) {
        self.state.ready.store(ready, Ordering::Release);
    }
}

impl fmt::Display for NotReady {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("not ready:")?;
        if self.draining {
            formatter.write_str(" draining")?;
        }
        for (index, name) in self.waiting_for.iter().enumerate() {
            let separator = if index > 0 || self.draining { ", waiting for" } else { " waiting for" };
            write!(formatter, "{separator} {name}")?;
        }
        Ok(())
    }
}

#[derive(Clone)]
struct Ops {
    readiness: Readiness,
    exposition: Arc<Exposition>,
}

/// Returns the routes of the operations port: `/livez`, `/readyz`, `/metrics`.
pub fn router(readiness: Readiness, exposition: Arc<Exposition>) -> Router {
    Router::new()
        .route("/livez", get(async || "alive\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Ops { readiness, exposition })
        .layer(
            ServiceBuilder::new()
                .layer(CompressionLayer::new())
                .layer(TimeoutLayer::with_status_code(StatusCode::SERVICE_UNAVAILABLE, RESPONSE_TIMEOUT))
                .layer(CatchPanicLayer::new()),
        )
}

async fn readyz(State(ops): State<Ops>) -> Response {
    match ops.readiness.check() {
        Ok(()) => "ready\n".into_response(),
        Err(not_ready) => (StatusCode::SERVICE_UNAVAILABLE, format!("{not_ready}\n")).into_response(),
    }
}

async fn metrics(State(ops): State<Ops>, headers: HeaderMap) -> Response {
    let format = Format::accepted(&headers);
    match ops.exposition.text(format) {
        Ok(text) => ([(CONTENT_TYPE, format.content_type()), (VARY, "accept")], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "the metrics cannot be written as text");
            (StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written as text\n").into_response()
        }
    }
}

/// Returns `app` behind a gate. The gate answers 503 until all components of `readiness` are ready, because a pod could
/// otherwise be created without its sidecar. From then on it always calls `app`, also while the process drains.
///
/// A replica that is not ready still receives requests if its container has restarted at the same address. On a 503
/// with `Retry-After`, the API server retries within its timeout, on a new connection and most likely at another
/// replica. If no attempt succeeds, it applies the failure policy.
pub fn once_ready(app: Router, readiness: Readiness, metrics: Arc<Metrics>) -> Router {
    app.layer(ReadinessGate { readiness, metrics, was_ready: Arc::default() })
}

#[derive(Clone)]
struct ReadinessGate {
    readiness: Readiness,
    metrics: Arc<Metrics>,
    was_ready: Arc<AtomicBool>,
}

impl ReadinessGate {
    /// Returns an error with the components that are not ready. Once all have been ready, never returns an error again.
    fn check(&self) -> Result<(), NotReady> {
        if self.was_ready.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.readiness.check() {
            Err(not_ready) if !not_ready.waiting_for.is_empty() => Err(not_ready),
            _ => {
                self.was_ready.store(true, Ordering::Release);
                Ok(())
            }
        }
    }
}

impl<S> Layer<S> for ReadinessGate {
    type Service = GatedService<S>;

    fn layer(&self, inner: S) -> GatedService<S> {
        GatedService { gate: self.clone(), inner }
    }
}

#[derive(Clone)]
struct GatedService<S> {
    gate: ReadinessGate,
    inner: S,
}

impl<S> Service<Request> for GatedService<S>
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<S::Future, BoxFuture<'static, Result<Response, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        match self.gate.check() {
            Ok(()) => Either::Left(self.inner.call(request)),
            Err(not_ready) => {
                self.gate.metrics.overload.count(Shed::NotReady);
                Either::Right(reject(not_ready, request).boxed())
            }
        }
    }
}

/// Rejects a request. If its client may still be writing the body, first reads and discards the body. Otherwise the
/// client would see a connection reset instead of the response, and the API server does not retry after a reset.
async fn reject(not_ready: NotReady, request: Request) -> Result<Response, Infallible> {
    tracing::debug!(why = %not_ready, "a request was answered with 503");
    let version = request.version();
    body::discard_rejected(request, DISCARD_LIMIT).await;
    let mut response = Refusal::Shed(Shed::NotReady).response(version);
    // This text replaces the general one, because it names the components that are not ready.
    *response.body_mut() = Body::from(format!("{not_ready}: try again\n"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use axum::routing::post;
    use http::header::{CONNECTION, EXPECT, HeaderValue, RETRY_AFTER};
    use http_body_util::BodyExt;
    use prometheus_client::metrics::counter::Counter;
    use tower::ServiceExt;

    use super::*;

    async fn get(router: &Router, path: &str) -> (StatusCode, String, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let content_type = response.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, content_type, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn ready_when_all_components_are_and_not_draining() {
        let readiness = Readiness::default();
        let router = router(readiness.clone(), Arc::default());
        let (snapshot, certificate) = (readiness.component("snapshot"), readiness.component("serving certificate"));

        let (status, _, text) = get(&router, "/readyz").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(text, "not ready: waiting for snapshot, waiting for serving certificate\n");

        snapshot.set_ready(true);
        assert_eq!(get(&router, "/readyz").await.2, "not ready: waiting for serving certificate\n");
        certificate.set_ready(true);
        assert_eq!(get(&router, "/readyz").await.0, StatusCode::OK);

        readiness.drain();
        assert_eq!(get(&router, "/readyz").await.2, "not ready: draining\n");
        snapshot.set_ready(false);
        let (status, _, text) = get(&router, "/readyz").await;
        assert_eq!((status, &*text), (StatusCode::SERVICE_UNAVAILABLE, "not ready: draining, waiting for snapshot\n"));
        assert_eq!(get(&router, "/livez").await.0, StatusCode::OK, "a draining process stays alive");
    }

    #[tokio::test]
    async fn metrics_format_follows_accept_header() {
        let mut registry = Registry::with_prefix("pillion");
        let counter = Counter::<u64>::default();
        registry.register("things", "Things that were counted", counter.clone());
        counter.inc_by(3);
        let router = router(Readiness::default(), Arc::new(registry.into()));
        let (status, content_type, text) = get(&router, "/metrics").await;
        assert_eq!((status, &*content_type), (StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8"));
        assert!(text.contains("# TYPE pillion_things_total counter\npillion_things_total 3\n"), "{text}");

        let request = Request::get("/metrics").header("accept", "application/openmetrics-text;version=1.0.0");
        let response = router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.headers()[CONTENT_TYPE], "application/openmetrics-text; version=1.0.0; charset=utf-8");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(text.contains("# TYPE pillion_things counter\n") && text.ends_with("# EOF\n"), "{text}");
    }

    #[tokio::test]
    async fn readiness_is_exported() {
        let readiness = Readiness::default();
        let mut registry = Registry::default();
        readiness.register(&mut registry, "pillion_webhook");
        let router = router(readiness.clone(), Arc::new(registry.into()));
        let component = readiness.component("something");
        let shown = async |ready: u8| {
            let text = get(&router, "/metrics").await.2;
            assert!(text.contains(&format!("pillion_webhook_ready {ready}\n")), "{text}");
        };
        shown(0).await;
        component.set_ready(true);
        shown(1).await;
        readiness.drain();
        shown(0).await;
    }

    #[tokio::test]
    async fn metrics_are_compressed_if_accepted() {
        let mut registry = Registry::default();
        registry.register("counted", "Something that is counted, at some length", Counter::<u64>::default());
        let router = router(Readiness::default(), Arc::new(registry.into()));
        let request = Request::get("/metrics").header("accept-encoding", "gzip").body(Body::empty()).unwrap();
        let response = router.oneshot(request).await.unwrap();
        assert_eq!(response.headers()["content-encoding"], "gzip");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(&body[..2], b"\x1f\x8b");
    }

    #[tokio::test]
    async fn panic_is_answered_and_next_request_served() {
        #[derive(Debug)]
        struct Broken;
        impl Collector for Broken {
            fn encode(&self, _: DescriptorEncoder<'_>) -> fmt::Result {
                panic!("a collector that is broken")
            }
        }
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Broken));
        let router = router(Readiness::default(), Arc::new(registry.into()));
        assert_eq!(get(&router, "/metrics").await.0, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(get(&router, "/livez").await.0, StatusCode::OK);
    }

    async fn answer(app: &Router) -> (u16, Option<String>) {
        let request = Request::post("/mutate").body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        let retry = response.headers().get(RETRY_AFTER).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(retry.is_some(), response.headers().contains_key(CONNECTION));
        (response.status().as_u16(), retry)
    }

    #[tokio::test]
    async fn body_of_rejected_request_is_read() {
        let (readiness, mut registry) = (Readiness::default(), Registry::default());
        let metrics = Arc::new(Metrics::register(&mut registry));
        let _lists = readiness.component("the first lists");
        let app = once_ready(Router::new().route("/mutate", post(async || "decided")), readiness, metrics);
        for (waits, expected) in [(false, 3), (true, 0)] {
            let read = Arc::new(AtomicUsize::new(0));
            let counter = Arc::clone(&read);
            let pieces = (0..3).map(move |_| {
                counter.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Infallible>("{}")
            });
            let mut request = Request::post("/mutate").body(Body::from_stream(futures::stream::iter(pieces))).unwrap();
            if waits {
                request.headers_mut().insert(EXPECT, HeaderValue::from_static("100-continue"));
            }
            assert_eq!(app.clone().oneshot(request).await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(read.load(Ordering::Relaxed), expected);
        }
    }

    #[tokio::test]
    async fn requests_are_rejected_until_first_ready() {
        let (readiness, mut registry) = (Readiness::default(), Registry::default());
        let metrics = Arc::new(Metrics::register(&mut registry));
        let lists = readiness.component("the first lists");
        let app = Router::new().route("/mutate", post(async || "decided"));
        let app = once_ready(app, readiness.clone(), metrics);
        let later = (503, Some("1".to_owned()));
        assert_eq!(answer(&app).await, later);
        readiness.drain();
        assert_eq!(answer(&app).await, later, "draining does not make the process ready");
        lists.set_ready(true);
        assert_eq!(answer(&app).await, (200, None), "a draining process answers requests");
        // The gate stays open if a component is no longer ready.
        lists.set_ready(false);
        assert_eq!(answer(&app).await, (200, None));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains("pillion_webhook_shed_requests_total{reason=\"not_ready\"} 2\n"), "{text}");
    }
}
