//! Tests a lost connection: the API server responds to lists, and then sends nothing more. Tokio's clock is paused.

#![allow(clippy::unwrap_used, reason = "tests report failures by panicking")]

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use kube::Client;
use kube::client::Body;
use pillion_control::CacheMetrics;
use pillion_control::Publisher;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

type Requests = Arc<Mutex<Vec<(Duration, String)>>>;

/// Returns a client whose lists are empty, and whose watches never deliver anything. Each request is recorded in
/// `requests`.
fn client(requests: Requests) -> Client {
    let began = Instant::now();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let uri = request.uri().to_string();
        requests.lock().unwrap().push((began.elapsed(), uri.clone()));
        let body: UnsyncBoxBody<Bytes, Infallible> = if uri.contains("watch=true") {
            StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>()).boxed_unsync()
        } else {
            let list = r#"{"apiVersion":"v1","kind":"List","metadata":{"resourceVersion":"7"},"items":[]}"#;
            Full::new(Bytes::from_static(list.as_bytes())).boxed_unsync()
        };
        std::future::ready(Ok::<_, Infallible>(http::Response::new(body)))
    });
    Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn silent_watch_reconnects_without_new_list() {
    let requests = Requests::default();
    let shutdown = CancellationToken::new();
    let (publisher, mut status) = Publisher::new(Arc::default());
    let publisher = publisher.with_metrics(CacheMetrics::default());
    let running = tokio::spawn(publisher.run(client(Arc::clone(&requests)), shutdown.clone()));
    status.wait_for(|status| status.synced).await.unwrap();
    tokio::time::sleep(Duration::from_secs(105)).await;
    shutdown.cancel();
    running.await.unwrap().unwrap();

    let requests = requests.lock().unwrap();
    for kind in ["/clusterinjectionprofiles?", "/injectionprofiles?", "/namespaces?"] {
        let of_kind = |is_watch| {
            let all =
                requests.iter().filter(move |(_, uri)| uri.contains(kind) && uri.contains("watch=true") == is_watch);
            all.collect::<Vec<_>>()
        };
        assert_eq!(of_kind(false).len(), 1, "{requests:?}");
        let watches = of_kind(true);
        let times: Vec<_> = watches.iter().map(|(time, _)| time.as_secs()).collect();
        assert_eq!(times, [0, 50, 100], "{kind}");
        for (_, uri) in watches {
            assert!(uri.contains("timeoutSeconds=45") && uri.contains("allowWatchBookmarks=true"), "{uri}");
            assert!(uri.contains("resourceVersion=7"), "{uri}");
        }
    }
    assert!(requests.iter().any(|(_, uri)| uri.contains("/namespaces?") && uri.contains("limit=250")), "{requests:?}");
}
