//! Tests the time of a pass over many namespaces, and the number of concurrent requests, with a fake API server and
//! paused time.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response, StatusCode};
use kube::client::Body;
use pillion_api::names::FailureMode;
use pillion_engine::profile::compile;
use pillion_engine::snapshot::{Namespace, ProfileSet};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::release::DEFAULT_CLUSTER_DOMAIN;

/// Number of namespaces with one pod each.
const NAMESPACES: usize = 10_000;
/// How long the API server takes for each response.
const RESPONSE_TIME: Duration = Duration::from_millis(10);

/// A fake API server with one pod in each namespace.
#[derive(Debug, Default)]
struct ApiServer {
    /// Number of containers of each pod.
    containers: usize,
    /// Number of requests for whole pods so far.
    reads: AtomicUsize,
    /// Number of concurrent requests for whole pods. `most` is the highest number so far.
    concurrent: AtomicUsize,
    most: AtomicUsize,
}

impl ApiServer {
    fn client(self: &Arc<Self>) -> Client {
        let this = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (this, uri) = (Arc::clone(&this), request.uri().clone());
            async move {
                let (code, content) = this.answer(&uri).await;
                Response::builder().status(code).body(Body::from(content.to_string().into_bytes()))
            }
        });
        Client::new(service, "default")
    }

    async fn answer(&self, uri: &http::Uri) -> (StatusCode, Value) {
        let is_read = uri.path().ends_with("/pods/web");
        if is_read {
            self.reads.fetch_add(1, Ordering::SeqCst);
            let concurrent = self.concurrent.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(concurrent, Ordering::SeqCst);
        }
        tokio::time::sleep(RESPONSE_TIME).await;
        if is_read {
            self.concurrent.fetch_sub(1, Ordering::SeqCst);
        }
        let found = match uri.path().split('/').collect::<Vec<_>>()[..] {
            ["", "api", "v1", "pods"] if uri.query().is_some_and(|query| query.contains("watch=")) => {
                std::future::pending().await
            }
            ["", "api", "v1", "pods"] => {
                let pods: Vec<_> = (0..NAMESPACES).map(|number| metadata(&namespace(number))).collect();
                json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {"resourceVersion": "1"}, "items": pods})
            }
            ["", "api", "v1", "namespaces", namespace, "pods", "web"] => {
                let container = |number| json!({"name": format!("c{number}"), "image": "app:1"});
                let mut pod = metadata(namespace);
                (pod["apiVersion"], pod["kind"]) = (json!("v1"), json!("Pod"));
                pod["spec"] = json!({"containers": (0..self.containers).map(container).collect::<Vec<_>>()});
                pod
            }
            ["", "apis", "discovery.k8s.io", ..] => {
                json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList", "metadata": {}, "items": []})
            }
            _ => {
                let code = StatusCode::NOT_FOUND;
                return (
                    code,
                    json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": code.as_u16()}),
                );
            }
        };
        (StatusCode::OK, found)
    }
}

fn namespace(number: usize) -> String {
    format!("team-{number:05}")
}

fn metadata(namespace: &str) -> Value {
    json!({
        "apiVersion": "meta.k8s.io/v1",
        "kind": "PartialObjectMetadata",
        "metadata": {"namespace": namespace, "name": "web", "uid": "1", "creationTimestamp": "2026-11-21T03:00:00Z"},
    })
}

/// Returns a snapshot with a profile for pods with one container. So the audit needs the whole pods.
fn snapshot() -> Snapshot {
    let spec = json!({"activation": "Always", "template": {"metadata": {"labels": {"a": "b"}}},
        "matchConditions": [{"name": "one", "expression": "object.spec.containers.size() == 1"}]});
    let profile = compile(&ProfileName::cluster("a"), &serde_json::from_value(spec).unwrap()).unwrap();
    let namespaces =
        (0..NAMESPACES).map(|number| (namespace(number).into(), Namespace::opted_in(FailureMode::Enabled)));
    Snapshot::new(ProfileSet::new([Arc::new(profile)])).with_namespaces(namespaces)
}

/// Runs the audit until its report is complete. Returns the report, and how long the pass took.
async fn run_pass(api_server: &Arc<ApiServer>) -> (Arc<Report>, Duration) {
    let stop = CancellationToken::new();
    let release = Arc::new(Release::new("pillion", "pillion-system", DEFAULT_CLUSTER_DOMAIN).unwrap());
    let leading = LeaderContext { client: api_server.client(), release, stop: stop.clone() };
    let (_status, synced) = watch::channel(Status { synced: true, ..Status::default() });
    let (sender, mut audited) = watch::channel(Audited::default());
    let (_questions, asked) = mpsc::channel(1);
    let parts = AuditChannels {
        published: Arc::new(ArcSwap::from_pointee(snapshot())),
        status: synced,
        reads: Reads::default(),
        metrics: AuditMetrics::register(&mut Registry::default(), 10, 10),
        audited: sender,
        questions: asked,
    };
    let began = Instant::now();
    let task = tokio::spawn(run(leading, parts, AuditSettings::default()));
    let complete = audited.wait_for(|audited| audited.report.is_complete);
    let report = Arc::clone(&timeout(Duration::from_mins(10), complete).await.unwrap().unwrap().report);
    let lasted = began.elapsed();
    stop.cancel();
    task.await.unwrap();
    (report, lasted)
}

#[tokio::test(start_paused = true)]
async fn pass_reads_ten_thousand_namespaces_in_a_minute() {
    // Pods with two containers do not match, so they cause no findings. Pods with one container lack the profile. Their
    // findings need further requests, which delay the pass.
    for (containers, missing) in [(2, 0), (1, NAMESPACES as u64)] {
        let api_server = Arc::new(ApiServer { containers, ..ApiServer::default() });
        let (report, lasted) = run_pass(&api_server).await;
        assert_eq!((report.pods.missing, report.total()), (missing, missing));
        assert_eq!(api_server.reads.load(Ordering::SeqCst), NAMESPACES, "each pod is read once");
        assert_eq!(api_server.most.load(Ordering::SeqCst), 2, "concurrent requests");
        // At most 200 requests begin in a second.
        let expected = Duration::from_secs(50)..Duration::from_secs(70);
        assert!(expected.contains(&lasted), "{missing} findings: the pass took {lasted:?}");
    }
}
