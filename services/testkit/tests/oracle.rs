//! Compares the engine's merge with a real kube-apiserver. For each pod and template, strategic merge and server-side
//! apply must give the same result as the engine, apart from the differences in `pins.rs`.
//!
//! Pods are stored as `PodTemplate` objects: they have the same fields, and the API server's pod admission does not
//! change them. Results are compared after the API server has normalised them. `PILLION_ORACLE_CASES` sets the number
//! of cases, and `PILLION_ORACLE_SEED` selects other cases.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests fail by panicking")]
#![allow(clippy::print_stdout, reason = "the test prints the numbers of comparisons")]

mod cases;
mod choices;
mod compare;
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
fn keyed_lists_match_api_server() {
    isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        let openapi = openapi::OpenApi::fetch(&control_plane.client()).await?;
        let found = known::disagreements(&openapi);
        ensure!(found.is_empty(), "{found:#?}");
        Ok(())
    });
}

#[test]
fn merge_matches_kubernetes() {
    Isolation::new().time_limit(cases::time_limit()).run(cases::run);
}
