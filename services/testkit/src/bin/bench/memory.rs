//! Measures the memory of an idle replica, and of a replica in a cluster full of tenants.

use std::path::Path;

use anyhow::Context;
use serde_json::Value;

use crate::Folder;
use crate::client::expect_containers;
use crate::load::Load;
use crate::machine::Machine;
use crate::profiles::{self, Full, NAMESPACE};
use crate::server::{Dev, Server};

/// The size of the full cluster.
pub(crate) const FULL: Full = Full { namespaces: 10_000, profiles: 2_000 };

/// The number of requests before memory is measured. In the full cluster, each request uses a different namespace.
const REQUESTS: u32 = 100;

/// Worker threads: as many as in a replica with a limit of two cores. Each has its own malloc arena.
const THREADS: u32 = 2;

/// Anonymous memory in MiB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// The baseline server, after the same requests as an idle replica.
    pub(crate) floor: f64,
    pub(crate) idle: f64,
    pub(crate) full: f64,
}

/// Measures the baseline and both replicas, one after the other.
///
/// # Errors
/// A server does not start, or its response is wrong.
pub(crate) async fn measure(machine: &Machine, folder: &Folder) -> anyhow::Result<Memory> {
    let body = folder.write("review.json", crate::REVIEW)?;
    Ok(Memory {
        floor: floor(machine, folder, &body).await?,
        idle: idle(machine, folder, &body).await?,
        full: full(machine, folder).await?,
    })
}

async fn floor(machine: &Machine, folder: &Folder, body: &Path) -> anyhow::Result<f64> {
    let server = Server::floor(machine, folder, THREADS).await?;
    requests(machine, &server, body, &folder.path("load-floor-memory")).await?;
    server.anonymous_memory()
}

async fn requests(machine: &Machine, server: &Server, body: &Path, log: &Path) -> anyhow::Result<()> {
    let url = &server.url();
    Load { url, body, requests: REQUESTS, connections: 8, rate: None, log }.run(machine).await.map(drop)
}

async fn idle(machine: &Machine, folder: &Folder, body: &Path) -> anyhow::Result<f64> {
    let arguments = [format!("--namespace={NAMESPACE}=enabled")];
    let dev = Dev { name: "idle", profiles: profiles::ONE, arguments: &arguments, threads: THREADS };
    let server = Server::dev(machine, folder, dev).await?;
    requests(machine, &server, body, &folder.path("load-idle")).await?;
    server.anonymous_memory()
}

async fn full(machine: &Machine, folder: &Folder) -> anyhow::Result<f64> {
    for (number, text) in FULL.tenants_profiles().enumerate() {
        folder.write(&format!("full/profiles/tenant-{number:05}.json"), text)?;
    }
    let namespaces = folder.write("full/namespaces.json", FULL.namespaces_file())?;
    let arguments = [format!("--namespace-file={}", namespaces.display())];
    let dev = Dev { name: "full", profiles: profiles::ONE, arguments: &arguments, threads: THREADS };
    let server = Server::dev(machine, folder, dev).await?;
    for request in 0..REQUESTS {
        // Spreads the requests evenly over the tenants with a profile.
        let number = request * ((FULL.profiles - 1) / REQUESTS);
        let review = review_of(&Full::namespace(number))?;
        let cluster = profiles::ONE.iter().map(|(name, _)| *name);
        let expected: Vec<_> = cluster.chain(["proxy"]).collect();
        expect_containers(&server, &review, &expected).await?;
    }
    server.anonymous_memory()
}

/// Returns the captured review, moved to another namespace.
fn review_of(namespace: &str) -> anyhow::Result<Value> {
    let mut review: Value = serde_json::from_str(crate::REVIEW)?;
    for pointer in ["/request/namespace", "/request/object/metadata/namespace"] {
        *review.pointer_mut(pointer).with_context(|| format!("the review has no {pointer}"))? = namespace.into();
    }
    Ok(review)
}
