//! `pillion certs rotate`: requests a rotation, and waits for its end with `--wait`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, Patch, PatchParams};
use pillion_control::rotator::request::{REQUEST_ANNOTATION, RotationRequest};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::status::Seen;
use crate::args::ClusterArgs;
use crate::output;

/// How often `--wait` checks the progress.
const LOOK: Duration = Duration::from_secs(1);

/// Arguments of `pillion certs rotate`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RotateArgs {
    #[command(flatten)]
    at: ClusterArgs,
    /// The authority's key is known to others: the old authority is not trusted for a while longer, as it is otherwise.
    #[arg(long)]
    compromised: bool,
    /// Wait until it is done, for so many seconds at most. Exit code 1: it was not done in time.
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
}

pub(super) async fn run(args: RotateArgs) -> anyhow::Result<ExitCode> {
    let (client, release) = args.at.connect().await?;
    let request = RotationRequest { identity: Timestamp::now().to_string(), compromised: args.compromised };
    let leases: Api<Lease> = Api::namespaced(client.clone(), release.namespace());
    let patch = json!({"metadata": {"annotations": {REQUEST_ANNOTATION: request.to_string()}}});
    match leases.patch(&release.lease(), &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => bail!(
            "there is no Lease {}/{}: no controller of this release ever ran; expected --release as it was given at its \
             installation",
            release.namespace(),
            release.lease()
        ),
        Err(error) => return Err(error).context("the Lease cannot be written: that takes the right to patch it"),
    }
    output::print(&format!("asked for a new certificate authority ({request}); see: pillion certs status\n"))?;
    let Some(seconds) = args.wait else { return Ok(ExitCode::SUCCESS) };
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        let seen = Seen::read(&client, &release).await?;
        if seen.has_fulfilled(&request) {
            output::print(&seen.text(Timestamp::now()))?;
            return Ok(ExitCode::SUCCESS);
        }
        if Instant::now() >= end {
            output::tell(&format!("error: not done within {seconds} s\n{}", seen.text(Timestamp::now())))?;
            return Ok(ExitCode::FAILURE);
        }
        sleep(LOOK).await;
    }
}
