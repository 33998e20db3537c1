//! Tests the election and the leader's tasks with a real API server.

#![expect(clippy::unwrap_used, reason = "tests report failures by panicking")]

mod lease;
mod probe;
mod trust_probe;

use std::time::Duration;

use anyhow::{Context, ensure};
use pillion_control::Release;
use pillion_control::certificates::clock::{Clock, ClockMetrics, Settings};
use pillion_control::release::DEFAULT_CLUSTER_DOMAIN;
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, eventually, isolated};
use tokio_util::sync::CancellationToken;

/// Time limit for short operations on a busy machine.
const SOON: Duration = Duration::from_mins(1);

fn release() -> Release {
    Release::new("pillion", NAMESPACE, DEFAULT_CLUSTER_DOMAIN).unwrap()
}

#[test]
fn clocks_agree_until_api_server_is_silent() {
    isolated(|| async {
        let mut control_plane = ControlPlane::start().await?;
        let mut settings = Settings::default();
        settings.interval = Duration::from_millis(100);
        settings.max_age = Duration::from_secs(2);
        settings.timeout = Duration::from_millis(500);
        let clock = Clock::new(settings, ClockMetrics::default());
        ensure!(!clock.agrees(), "clocks do not agree without a response");
        let stop = CancellationToken::new();
        let (running, until) = (clock.clone(), stop.clone());
        let client = control_plane.client();
        let task = tokio::spawn(async move { running.run(client, until).await });
        eventually(SOON, "the clocks agree", async || clock.agrees().then_some(()).context("not yet")).await?;
        // The `Date` header of responses has a resolution of one second.
        let difference = clock.difference().context("the difference is unknown")?;
        ensure!(difference.unsigned_abs() < Duration::from_secs(3), "{difference:?}");

        control_plane.stop_api_server()?;
        eventually(SOON, "the response is too old", async || (!clock.agrees()).then_some(()).context("not yet"))
            .await?;
        control_plane.start_api_server().await?;
        eventually(SOON, "the clocks agree again", async || clock.agrees().then_some(()).context("not yet")).await?;
        stop.cancel();
        task.await?;
        Ok(())
    });
}
