//! Creates pods continuously in several namespaces and over several connections, and counts the outcomes.

use std::fmt::{self, Display};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::api::{Api, DeleteParams, PostParams};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::platform::{Platform, is_injected, pod};

/// The pause between two creations of one client.
const PAUSE: Duration = Duration::from_millis(150);

/// The outcomes of creations.
#[derive(Debug, Default, Clone)]
pub(crate) struct Outcomes {
    /// Pods created with the sidecar.
    pub(crate) injected: usize,
    /// Pods created without it.
    pub(crate) without: usize,
    /// The API server's message for each rejected pod.
    pub(crate) refused: Vec<String>,
    /// The duration of the slowest creation.
    pub(crate) slowest: Duration,
}

impl Display for Outcomes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { injected, without, refused, slowest } = self;
        write!(
            formatter,
            "{injected} with the sidecar, {without} without, {} refused, slowest {slowest:?}",
            refused.len()
        )
    }
}

/// Clients that create pods until this is dropped.
pub(crate) struct Creations {
    outcomes: Arc<Mutex<Outcomes>>,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    _guard: DropGuard,
}

impl Creations {
    /// Starts one client for each namespace.
    pub(crate) async fn begin(platform: &Platform, namespaces: &[&str]) -> Result<Self> {
        let outcomes = Arc::new(Mutex::new(Outcomes::default()));
        let stop = CancellationToken::new();
        let mut tasks = Vec::new();
        for namespace in namespaces {
            // Each client has its own connection to the API server, as in a real cluster.
            let pods = Api::namespaced(platform.cluster.client().await?, namespace);
            tasks.push(tokio::spawn(create(pods, Arc::clone(&outcomes), stop.clone())));
        }
        Ok(Self { outcomes, tasks, _guard: stop.clone().drop_guard(), stop })
    }

    /// Returns the outcomes so far.
    pub(crate) fn so_far(&self) -> Outcomes {
        locked(&self.outcomes).clone()
    }

    /// Stops the clients and returns all outcomes.
    pub(crate) async fn end(mut self) -> Result<Outcomes> {
        self.stop.cancel();
        for task in std::mem::take(&mut self.tasks) {
            task.await.context("a client")?;
        }
        let outcomes = self.so_far();
        ensure!(
            outcomes.injected + outcomes.without + outcomes.refused.len() > 20,
            "hardly a pod was created: {outcomes}"
        );
        Ok(outcomes)
    }
}

fn locked(outcomes: &Mutex<Outcomes>) -> MutexGuard<'_, Outcomes> {
    outcomes.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn create(pods: Api<k8s_openapi::api::core::v1::Pod>, outcomes: Arc<Mutex<Outcomes>>, stop: CancellationToken) {
    let mut number = 0_u32;
    while !stop.is_cancelled() {
        number += 1;
        let name = format!("created-{number}");
        let begun = Instant::now();
        let answer = pods.create(&PostParams::default(), &pod(&name, false)).await;
        {
            let mut outcomes = locked(&outcomes);
            outcomes.slowest = outcomes.slowest.max(begun.elapsed());
            match &answer {
                Ok(created) if is_injected(created) => outcomes.injected += 1,
                Ok(_) => outcomes.without += 1,
                Err(error) => outcomes.refused.push(error.to_string()),
            }
        }
        if answer.is_ok() {
            // The pod has no node, so it is deleted at once.
            let _ = pods.delete(&name, &DeleteParams::default().grace_period(0)).await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
