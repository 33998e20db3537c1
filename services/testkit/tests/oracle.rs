//! Kubernetes as the oracle of the merge. The engine must merge a template into a pod as a real kube-apiserver does,
//! both by strategic merge and by server-side apply.
//!
//! The API server stores pods as `PodTemplate` objects, which have the same fields but are not changed by pod
//! admission. Results are compared in the form in which the API server would store them. `PILLION_ORACLE_CASES` and
//! `PILLION_ORACLE_SEED` set the number of test cases and their seed.

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
