//! Continuously creates pods in several namespaces and over several connections, and counts the results.

use std::fmt::{self, Display};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::api::{Api, DeleteParams, PostParams};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::platform::{Platform, is_injected, pod};

/// The pause of a client after each creation.
const PAUSE: Duration = Duration::from_millis(150);

/// The results of creations.
#[derive(Debug, Default, Clone)]
pub(crate) struct CreationResults {
    /// Number of pods created with the sidecar.
    pub(crate) injected: usize,
    /// Number of pods created without the sidecar.
    pub(crate) without: usize,
    /// The errors of failed creations, such as the API server's messages for rejected pods.
    pub(crate) refused: Vec<String>,
    /// The duration of the slowest creation.
    pub(crate) slowest: Duration,
}

impl Display for CreationResults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { injected, without, refused, slowest } = self;
        write!(
            formatter,
            "{injected} with the sidecar, {without} without, {} rejected, slowest {slowest:?}",
            refused.len()
        )
    }
}

/// Clients that create pods until this value is dropped.
pub(crate) struct Creations {
    results: Arc<Mutex<CreationResults>>,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    _guard: DropGuard,
}

impl Creations {
    /// Starts one client for each namespace.
    pub(crate) async fn start(platform: &Platform, namespaces: &[&str]) -> Result<Self> {
        let results = Arc::new(Mutex::new(CreationResults::default()));
        let stop = CancellationToken::new();
        let mut tasks = Vec::new();
        for namespace in namespaces {
            // Each client has its own connection to the API server, as in a real cluster.
            let pods = Api::namespaced(platform.cluster.client().await?, namespace);
            tasks.push(tokio::spawn(create(pods, Arc::clone(&results), stop.clone())));
        }
        Ok(Self { results, tasks, _guard: stop.clone().drop_guard(), stop })
    }

    /// Returns the results so far.
    pub(crate) fn results_so_far(&self) -> CreationResults {
        locked(&self.results).clone()
    }

    /// Stops the clients, and returns all results. Fails if together they made 20 attempts or fewer.
    pub(crate) async fn stop(mut self) -> Result<CreationResults> {
        self.stop.cancel();
        for task in std::mem::take(&mut self.tasks) {
            task.await.context("a client")?;
        }
        let results = self.results_so_far();
        ensure!(
            results.injected + results.without + results.refused.len() > 20,
            "too few pods were created: {results}"
        );
        Ok(results)
    }
}

fn locked(results: &Mutex<CreationResults>) -> MutexGuard<'_, CreationResults> {
    results.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn create(
    pods: Api<k8s_openapi::api::core::v1::Pod>,
    results: Arc<Mutex<CreationResults>>,
    stop: CancellationToken,
) {
    let mut number = 0_u32;
    while !stop.is_cancelled() {
        number += 1;
        let name = format!("created-{number}");
        let begun = Instant::now();
        let answer = pods.create(&PostParams::default(), &pod(&name, false)).await;
        {
            let mut results = locked(&results);
            results.slowest = results.slowest.max(begun.elapsed());
            match &answer {
                Ok(created) if is_injected(created) => results.injected += 1,
                Ok(_) => results.without += 1,
                Err(error) => results.refused.push(error.to_string()),
            }
        }
        if answer.is_ok() {
            // The pod is bound to no node, so the API server deletes it at once.
            let _ = pods.delete(&name, &DeleteParams::default().grace_period(0)).await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
