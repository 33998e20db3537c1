//! Creates pods from several writers at once, and checks and times each creation. Each writer has a connection of its
//! own, and creates one pod after the other.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use axum::http::Request;
use kube::Client;
use pillion_testkit::ControlPlane;
use serde_json::Value as Json;
use tokio::task::JoinSet;

/// The pods that writers create.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    /// The pod, without a namespace.
    pub(crate) pod: Json,
    /// The namespaces. Pods alternate between them.
    pub(crate) namespaces: Vec<String>,
    /// Whether the pods are stored. Otherwise the creations are server-side dry runs.
    pub(crate) is_stored: bool,
    /// The number of pods.
    pub(crate) pods: usize,
    /// After this time, writers create no further pods.
    pub(crate) limit: Duration,
    /// The number of pods per second, or `None` for as many as possible.
    pub(crate) rate: Option<u32>,
    /// A text that the response for an injected pod contains, or `None` if no pod is injected.
    pub(crate) injected: Option<String>,
}

/// The results of a batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Created {
    /// How long each creation took, in ascending order. Failed creations are included.
    pub(crate) took: Vec<Duration>,
    /// The number of pods that were created without the expected content.
    pub(crate) not_injected: usize,
    /// The number of failed creations for each error.
    pub(crate) failed: BTreeMap<String, usize>,
    /// The time from the first request to the last response.
    pub(crate) lasted: Duration,
}

/// The clients of the writers.
pub(crate) struct Writers(Vec<Client>);

/// The creation of one pod.
pub(crate) struct PodRequest {
    /// The path and the query.
    pub(crate) path: String,
    /// The pod as JSON.
    pub(crate) body: Vec<u8>,
    /// A text that the response for an injected pod contains, or `None` if the pod is not injected.
    pub(crate) injected: Option<String>,
}

/// The state that the writers of one batch share: which pods are still to be created, and when.
struct Shared<F> {
    pods: Range<usize>,
    limit: Duration,
    rate: Option<u32>,
    /// Returns the request for the pod with this number.
    request: F,
    next: AtomicUsize,
    began: Instant,
}

impl Writers {
    pub(crate) fn new(control_plane: &ControlPlane, count: usize) -> Result<Self> {
        let mut config = control_plane.config()?;
        // The tests need the API server's first response.
        config.default_retry = false;
        Ok(Self((0..count).map(|_| Client::try_from(config.clone())).collect::<Result<_, _>>()?))
    }

    /// Creates the pods of a batch, and waits for all responses.
    pub(crate) async fn create(&self, batch: Batch) -> Result<Created> {
        let Batch { pod, namespaces, is_stored, pods, limit, rate, injected } = batch;
        let query = if is_stored { "" } else { "?dryRun=All" };
        let path = |namespace: &String| format!("/api/v1/namespaces/{namespace}/pods{query}");
        let (paths, body): (Vec<_>, _) = (namespaces.iter().map(path).collect(), pod.to_string().into_bytes());
        let request = move |number: usize| PodRequest {
            path: paths[number % paths.len()].clone(),
            body: body.clone(),
            injected: injected.clone(),
        };
        self.create_each(0..pods, limit, rate, request).await
    }

    /// Creates a pod for each number, with its own request, and waits for all responses. Creates no further pods after
    /// `limit`. `rate` is the number of pods per second, or `None` for as many as possible.
    pub(crate) async fn create_each(
        &self,
        pods: Range<usize>,
        limit: Duration,
        rate: Option<u32>,
        request: impl Fn(usize) -> PodRequest + Send + Sync + 'static,
    ) -> Result<Created> {
        let (next, began) = (AtomicUsize::new(pods.start), Instant::now());
        let shared = Arc::new(Shared { pods, limit, rate, request, next, began });
        let mut writers = JoinSet::new();
        for client in &self.0 {
            let (client, shared) = (client.clone(), Arc::clone(&shared));
            writers.spawn(async move { shared.write(&client).await });
        }
        let mut all = Created::default();
        while let Some(created) = writers.join_next().await {
            all.add(created??);
        }
        all.lasted = shared.began.elapsed();
        all.took.sort_unstable();
        Ok(all)
    }
}

impl<F: Fn(usize) -> PodRequest> Shared<F> {
    /// Creates pods until the writers have begun to create all pods of the batch, or the time limit is reached.
    async fn write(&self, client: &Client) -> Result<Created> {
        let mut created = Created::default();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.pods.end || self.began.elapsed() >= self.limit {
                return Ok(created);
            }
            if let Some(rate) = self.rate {
                let due = Duration::from_secs(1).saturating_mul(u32::try_from(number - self.pods.start)?) / rate;
                tokio::time::sleep_until((self.began + due).into()).await;
            }
            let PodRequest { path, body, injected } = (self.request)(number);
            let request = Request::post(path).header("content-type", "application/json").body(body)?;
            let sent = Instant::now();
            let response = client.request_text(request).await;
            created.took.push(sent.elapsed());
            match (response, injected) {
                (Err(error), _) => *created.failed.entry(describe(error)).or_default() += 1,
                (Ok(pod), Some(text)) if !pod.contains(&text) => created.not_injected += 1,
                _ => {}
            }
        }
    }
}

fn describe(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{}: {}", status.code, status.message),
        error => error.to_string(),
    }
}

impl Created {
    pub(crate) fn add(&mut self, other: Self) {
        self.took.extend(other.took);
        self.not_injected += other.not_injected;
        for (error, times) in other.failed {
            *self.failed.entry(error).or_default() += times;
        }
    }

    /// Returns the number of failed creations.
    pub(crate) fn failures(&self) -> usize {
        self.failed.values().sum()
    }

    /// Returns a percentile of the durations in milliseconds, or NaN if there are none. The durations must be in
    /// ascending order.
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        let took = self.took.get(self.took.len() * percent / 100).or_else(|| self.took.last());
        took.map_or(f64::NAN, |took| took.as_secs_f64() * 1e3)
    }
}
