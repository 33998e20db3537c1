//! Metrics of the watches: the number of cached objects, the age of each cache, and the number of interruptions.
//!
//! The age of a cache is the time since its watch last received anything from the API server. That is an event, a
//! bookmark (sent about once a minute, and shortly before a watch ends), or the response to a list or a new watch.
//! kube's watcher drops bookmarks, and objects that seldom change cause no events for hours. So `recording` records the
//! time when bytes of a response arrive, and the age rises whenever the API server is silent.
//!
//! The delay until a change is served is not measured here. Only `managedFields` has the time of a write, in whole
//! seconds of the API server's clock. That is too coarse for a delay of a tenth of a second. A test with a real API
//! server measures it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use kube::runtime::watcher;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};
use tower::service_fn;

use crate::labels::{Label, LabelPair};

pillion_api::labelled! {
    /// The watched resource.
    pub enum WatchedKind {
        /// Cluster profiles.
        ClusterProfiles => "clusterinjectionprofiles",
        /// Namespaced profiles.
        Profiles => "injectionprofiles",
        /// Namespaces.
        Namespaces => "namespaces",
    }
}

pillion_api::labelled! {
    /// Why a watch was interrupted.
    pub enum InterruptionReason {
        /// The resource version is too old for the API server (HTTP 410): all objects are listed again.
        Expired => "expired",
        /// The connection was lost or could not be opened.
        Disconnected => "disconnected",
        /// The API server is overloaded or failing (HTTP 429, 5xx).
        Unavailable => "unavailable",
        /// The API server denied the request (HTTP 401, 403).
        Forbidden => "forbidden",
        /// The resource does not exist (HTTP 404).
        NotFound => "not_found",
        /// The response of the API server could not be parsed, or has a status that no other reason covers.
        Invalid => "invalid",
    }
}

/// Gauges and counters of the three watches. Clones share the values.
#[derive(Clone, Debug, Default)]
pub struct CacheMetrics {
    last_response: [LastResponse; WatchedKind::ALL.len()],
    synced: Family<Label, Gauge>,
    objects: Family<Label, Gauge>,
    restarts: Family<LabelPair, Counter>,
    lists: Family<Label, Counter>,
    snapshots: Counter,
}

/// Time of the API server's last response.
#[derive(Clone)]
pub(crate) struct LastResponse {
    since: Instant,
    /// Milliseconds from `since` to the last response.
    last: Arc<AtomicU64>,
}

/// Computes the ages of the caches when metrics are scraped.
#[derive(Debug)]
struct StalenessCollector([LastResponse; WatchedKind::ALL.len()]);

impl WatchedKind {
    const fn label(self) -> Label {
        [("kind", self.as_str())]
    }
}

impl InterruptionReason {
    /// Classifies the error that interrupted a watch.
    #[must_use]
    pub fn of(error: &watcher::Error) -> Self {
        let code = match error {
            watcher::Error::WatchError(status) => status.code,
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => match error {
                kube::Error::Api(status) => status.code,
                kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => return Self::Invalid,
                _ => return Self::Disconnected,
            },
            watcher::Error::NoResourceVersion => return Self::Invalid,
        };
        match code {
            410 => Self::Expired,
            401 | 403 => Self::Forbidden,
            404 => Self::NotFound,
            429 | 500.. => Self::Unavailable,
            _ => Self::Invalid,
        }
    }
}

impl CacheMetrics {
    /// Creates the metrics and registers them with the prefix `pillion_webhook`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("pillion_webhook");
        let text = "1 once all objects of this kind were listed";
        registry.register("cache_synced", text, metrics.synced.clone());
        let text = "Watched objects, by kind";
        registry.register("cache_objects", text, metrics.objects.clone());
        let text = "Interruptions of a watch, by kind and reason. After an interruption by expiry, all objects are listed again";
        registry.register("watch_restarts", text, metrics.restarts.clone());
        let text = "Lists of all objects of a kind: at the start, and after a watch expired";
        registry.register("cache_lists", text, metrics.lists.clone());
        let text = "Snapshots of profiles and namespaces that were activated";
        registry.register("snapshots", text, metrics.snapshots.clone());
        registry.register_collector(Box::new(StalenessCollector(metrics.last_response.clone())));
        // Create all series at the start, so that their rates include the first event.
        for kind in WatchedKind::ALL {
            metrics.set_objects(kind, false, 0);
            drop(metrics.lists.get_or_create_owned(&kind.label()));
            for reason in InterruptionReason::ALL {
                drop(metrics.restart(kind, reason));
            }
        }
        metrics
    }

    #[expect(clippy::indexing_slicing, reason = "the array has an element for each variant, by discriminant")]
    pub(crate) const fn last_response(&self, kind: WatchedKind) -> &LastResponse {
        &self.last_response[kind as usize]
    }

    pub(crate) fn set_objects(&self, kind: WatchedKind, synced: bool, objects: usize) {
        self.synced.get_or_create_owned(&kind.label()).set(i64::from(synced));
        self.objects.get_or_create_owned(&kind.label()).set(i64::try_from(objects).unwrap_or(i64::MAX));
    }

    pub(crate) fn list_begins(&self, kind: WatchedKind) {
        self.lists.get_or_create_owned(&kind.label()).inc();
    }

    pub(crate) fn restarted(&self, kind: WatchedKind, reason: InterruptionReason) {
        self.restart(kind, reason).inc();
    }

    pub(crate) fn published(&self) {
        self.snapshots.inc();
    }

    fn restart(&self, kind: WatchedKind, reason: InterruptionReason) -> Counter {
        self.restarts.get_or_create_owned(&[("kind", kind.as_str()), ("reason", reason.as_str())])
    }
}

impl LastResponse {
    /// Creates a state without any response. The age is the time since `since`.
    #[cfg(test)]
    pub(crate) fn silent_since(since: Instant) -> Self {
        Self { since, last: Arc::default() }
    }

    /// Records a response of the API server.
    pub(crate) fn record(&self) {
        let millis = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.fetch_max(millis, Ordering::Relaxed);
    }

    pub(crate) fn age(&self) -> Duration {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        self.since.elapsed().saturating_sub(last)
    }
}

/// Until the first response, the age is the time since this value was created.
impl Default for LastResponse {
    fn default() -> Self {
        Self { since: Instant::now(), last: Arc::default() }
    }
}

impl fmt::Debug for LastResponse {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("LastResponse").field(&self.age()).finish()
    }
}

impl Collector for StalenessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let text = "Time since the API server last sent anything to the watch of this kind";
        let mut family = encoder.encode_descriptor("cache_staleness", text, Some(&Unit::Seconds), MetricType::Gauge)?;
        for (kind, last_response) in WatchedKind::ALL.iter().zip(&self.0) {
            let label = kind.label();
            ConstGauge::new(last_response.age().as_secs_f64()).encode(family.encode_family(&label)?)?;
        }
        Ok(())
    }
}

/// Returns a client that records when the head and each chunk of a successful response arrive.
pub(crate) fn recording(client: Client, last_response: LastResponse) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request: http::Request<Body>| {
        let (client, last_response) = (client.clone(), last_response.clone());
        async move {
            let response = client.send(request).await?;
            let is_success = response.status().is_success();
            if is_success {
                last_response.record();
            }
            let record_chunk = move |frame| {
                if is_success {
                    last_response.record();
                }
                frame
            };
            Ok::<_, kube::Error>(response.map(|body| body.map_frame(record_chunk)))
        }
    });
    Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposition_has_all_series() {
        let mut registry = Registry::default();
        let metrics = CacheMetrics::register(&mut registry);
        metrics.set_objects(WatchedKind::Namespaces, true, 7);
        metrics.restarted(WatchedKind::Profiles, InterruptionReason::Expired);
        metrics.published();
        let text = crate::labels::exposition(&registry);
        for line in [
            "pillion_webhook_cache_synced{kind=\"namespaces\"} 1",
            "pillion_webhook_cache_synced{kind=\"injectionprofiles\"} 0",
            "pillion_webhook_cache_objects{kind=\"namespaces\"} 7",
            "pillion_webhook_watch_restarts_total{kind=\"injectionprofiles\",reason=\"expired\"} 1",
            "pillion_webhook_watch_restarts_total{kind=\"clusterinjectionprofiles\",reason=\"disconnected\"} 0",
            "pillion_webhook_snapshots_total 1",
            "pillion_webhook_cache_lists_total{kind=\"namespaces\"} 0",
            "pillion_webhook_cache_staleness_seconds{kind=\"namespaces\"} 0",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert_eq!(text.lines().filter(|line| line.starts_with("pillion_webhook_watch_restarts_total")).count(), 18);
    }

    #[test]
    fn age_grows_until_a_response() {
        let last_response = LastResponse {
            since: Instant::now().checked_sub(Duration::from_mins(1)).unwrap(),
            ..LastResponse::default()
        };
        assert!(last_response.age().as_secs() >= 60);
        last_response.record();
        assert!(last_response.age().as_secs() < 30);
    }

    #[test]
    fn interruption_reason_comes_from_status_code() {
        let status = |code| {
            let status = kube::core::Status { code, ..kube::core::Status::default() };
            InterruptionReason::of(&watcher::Error::WatchError(status.boxed()))
        };
        assert_eq!(
            [410, 401, 403, 404, 429, 500, 503, 422].map(status).map(InterruptionReason::as_str),
            ["expired", "forbidden", "forbidden", "not_found", "unavailable", "unavailable", "unavailable", "invalid"]
        );
        let lost = kube::Error::Service(std::io::Error::other("reset").into());
        assert_eq!(InterruptionReason::of(&watcher::Error::WatchFailed(lost)), InterruptionReason::Disconnected);
    }

    /// Returns the recorded age after the head of a response with this status, and after its body of `pieces` bytes.
    async fn age_after(status: u16, pieces: usize) -> (Duration, Duration) {
        let answer = service_fn(move |_: http::Request<Body>| async move {
            let body = Body::from(vec![b' '; pieces]);
            Ok::<_, kube::Error>(http::Response::builder().status(status).body(body).unwrap())
        });
        let last_response = LastResponse::silent_since(Instant::now().checked_sub(Duration::from_mins(1)).unwrap());
        let client = recording(Client::new(answer, "default"), last_response.clone());
        let response = client.send(http::Request::get("/").body(Body::empty()).unwrap()).await.unwrap();
        let at_once = last_response.age();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), pieces);
        (at_once, last_response.age())
    }

    #[tokio::test]
    async fn only_successful_responses_count() {
        let (at_once, after) = age_after(200, 3).await;
        assert!(at_once.as_secs() < 30 && after.as_secs() < 30, "{at_once:?}, {after:?}");
        let (at_once, after) = age_after(503, 3).await;
        assert!(at_once.as_secs() >= 60 && after.as_secs() >= 60, "{at_once:?}, {after:?}");
    }
}
