//! Rejects requests until the first lists of the cluster are complete, since a pod could otherwise miss its sidecar.
//!
//! A replica that is not ready still gets requests when its container restarts at an address that the API server knows.
//! The requests are rejected with 503 and `Retry-After`. The API server then retries within its timeout, on a new
//! connection and most likely at another replica. After that the failure policy decides.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use futures::FutureExt;
use futures::future::{BoxFuture, Either};
use http::Response;
use tower::{Layer, Service};

use crate::body;
use crate::health::{NotReady, Readiness};
use crate::metrics::Metrics;
use crate::overload::Shed;
use crate::refusal::Refusal;

/// Bytes of a rejected body that are read and discarded: the default limit of a body.
const PASSED_OVER: usize = 7 * 1024 * 1024;

/// Answers 503 until all components of `readiness` are ready. From then on it always calls `app`, also while the
/// process drains.
pub fn once_ready(app: Router, readiness: Readiness, metrics: Arc<Metrics>) -> Router {
    app.layer(OnceReady { readiness, metrics, was_ready: Arc::default() })
}

#[derive(Clone)]
struct OnceReady {
    readiness: Readiness,
    metrics: Arc<Metrics>,
    was_ready: Arc<AtomicBool>,
}

impl OnceReady {
    /// Returns an error with the components that have yet to become ready for the first time.
    fn check(&self) -> Result<(), NotReady> {
        if self.was_ready.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.readiness.check() {
            Err(why) if !why.waiting_for.is_empty() => Err(why),
            _ => {
                self.was_ready.store(true, Ordering::Release);
                Ok(())
            }
        }
    }
}

impl<S> Layer<S> for OnceReady {
    type Service = Gated<S>;

    fn layer(&self, inner: S) -> Gated<S> {
        Gated { gate: self.clone(), inner }
    }
}

#[derive(Clone)]
struct Gated<S> {
    gate: OnceReady,
    inner: S,
}

impl<S> Service<Request> for Gated<S>
where
    S: Service<Request, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<S::Future, BoxFuture<'static, Result<Response<Body>, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        match self.gate.check() {
            Ok(()) => Either::Left(self.inner.call(request)),
            Err(why) => {
                self.gate.metrics.overload.count(Shed::NotReady);
                Either::Right(turn_away(why, request).boxed())
            }
        }
    }
}

/// Rejects a request after reading its body. A client that is still writing would see its connection reset instead of
/// the response, and the API server does not repeat such a request.
async fn turn_away(why: NotReady, request: Request) -> Result<Response<Body>, Infallible> {
    tracing::debug!(%why, "a request was answered with 503");
    let version = request.version();
    body::pass_over(request, PASSED_OVER).await;
    let mut response = Refusal::Shed(Shed::NotReady).answer(version);
    // Names the components that are not ready.
    *response.body_mut() = Body::from(format!("{why}: try again\n"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use axum::routing::post;
    use http::StatusCode;
    use http::header::{CONNECTION, EXPECT, HeaderValue, RETRY_AFTER};
    use prometheus_client::registry::Registry;
    use tower::ServiceExt;

    use super::*;

    async fn answer(app: &Router) -> (u16, Option<String>) {
        let request = Request::post("/mutate").body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        let retry = response.headers().get(RETRY_AFTER).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(retry.is_some(), response.headers().contains_key(CONNECTION));
        (response.status().as_u16(), retry)
    }

    #[tokio::test]
    async fn who_is_turned_away_has_been_listened_to() {
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
    async fn nothing_is_decided_before_all_is_known_and_everything_after() {
        let (readiness, mut registry) = (Readiness::default(), Registry::default());
        let metrics = Arc::new(Metrics::register(&mut registry));
        let lists = readiness.component("the first lists");
        let app = Router::new().route("/mutate", post(async || "decided"));
        let app = once_ready(app, readiness.clone(), metrics);
        let later = (503, Some("1".to_owned()));
        assert_eq!(answer(&app).await, later);
        readiness.drain();
        assert_eq!(answer(&app).await, later, "a process that is asked to end knows no more");
        lists.set_ready(true);
        assert_eq!(answer(&app).await, (200, None), "a process that drains answers what comes");
        // Losing readiness later changes nothing.
        lists.set_ready(false);
        assert_eq!(answer(&app).await, (200, None));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains("pillion_shed_total{reason=\"not_ready\"} 2\n"), "{text}");
    }
}
