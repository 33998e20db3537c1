//! Sends COUNT requests to the router, one after the other and without a network, for measurements with an instruction
//! profiler. Run it twice with different counts: the cost of one request is the difference between the numbers of
//! instructions, divided by the difference between the counts. `valgrind` also counts allocations.
//!
//! ```text
//! unloaded COUNT [UNQUEUED]
//! ```
//!
//! UNQUEUED is the number of requests that a worker decides on arrival before it queues further ones.

use std::process::ExitCode;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::body::Body;
use http::Request;
use pillion_api::names::FailureMode;
use pillion_engine::snapshot::{Namespace, Snapshot};
use pillion_webhook::admission::{Admission, RequestSettings};
use pillion_webhook::metrics::Metrics;
use pillion_webhook::router::router;
use pillion_webhook::switch::Switch;
use prometheus_client::registry::Registry;
use tower::ServiceExt;

type Failure = Box<dyn std::error::Error>;

const REVIEW: &str = r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","kind":{"group":"","version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1","resource":"pods"},"namespace":"team-a","operation":"CREATE","object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[]}}}}"#;

#[expect(clippy::print_stderr, reason = "errors go to the terminal of the caller")]
fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<(), Failure> {
    let count: u32 = std::env::args().nth(1).ok_or("expected a number of requests")?.parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async move {
        // Spawned, because a server also handles its requests on a worker thread and not in `block_on`.
        let answered = tokio::spawn(async move { answer(count).await.map_err(|error| error.to_string()) });
        answered.await?.map_err(Failure::from)
    })
}

async fn answer(count: u32) -> Result<(), Failure> {
    let metrics = Arc::new(Metrics::register(&mut Registry::default()));
    let namespace = Namespace::opted_in(FailureMode::Enabled);
    let snapshot = Snapshot::default().with_namespace("team-a", Some(namespace));
    let snapshot = Arc::new(ArcSwap::from_pointee(snapshot));
    let mut settings = RequestSettings::default();
    if let Some(unqueued) = std::env::args().nth(2) {
        settings.overload.unqueued_per_worker = unqueued.parse()?;
    }
    let router = router(Admission {
        snapshot,
        live_namespace: None,
        lookups: None,
        policy: Arc::default(),
        switch: Switch::default(),
        metrics,
        settings,
    });
    for _ in 0..count {
        let request = Request::post("/mutate/enabled?timeout=10s")
            .header("content-type", "application/json")
            .body(Body::from(REVIEW))?;
        let status = router.clone().oneshot(request).await?.status();
        if status != http::StatusCode::OK {
            return Err(format!("answered with {status}").into());
        }
        // Lets other tasks run, such as the task that serves the decision queue.
        tokio::task::yield_now().await;
    }
    Ok(())
}
