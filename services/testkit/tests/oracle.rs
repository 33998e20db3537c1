//! Kubernetes as the oracle of the merge: what the engine makes of a pod and a template is what a real kube-apiserver
//! makes of them, by strategic merge and by server-side apply.
//!
//! Pods are kept as `PodTemplate` objects, which hold the same fields and are not changed by what admission does with pods. Results
//! are compared as the API server would keep them. `PILLION_ORACLE_CASES` and `PILLION_ORACLE_SEED` make longer and other
//! runs.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests fail by panicking, as tests do")]
#![allow(clippy::print_stdout, reason = "what a run has compared is worth reading")]

mod cases;
mod choices;
mod compare;
mod dice;
mod known;
mod openapi;
mod ours;
mod parts;
mod pins;
mod pods;
mod server;
mod shrink;

use anyhow::ensure;
use pillion_testkit::{ControlPlane, Isolation, isolated};

#[test]
fn keyed_lists_are_those_of_the_api_server() {
    isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        let openapi = openapi::OpenApi::fetch(&control_plane.client()).await?;
        let found = known::disagreements(&openapi);
        ensure!(found.is_empty(), "{found:#?}");
        Ok(())
    });
}

#[test]
fn the_merge_is_kubernetes_own() {
    Isolation::new().time_limit(cases::time_limit()).run(cases::run);
}
