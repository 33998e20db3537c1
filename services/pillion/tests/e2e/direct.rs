//! Sends reviews from a test directly to a replica, without an API server. Also reads the replica's metrics, and the
//! memory and processor time of a process.

use std::time::Duration;

use anyhow::{Context, Result};
use axum::http::Request;
use kube::{Client, Config};
use pillion_testkit::Replica;
use pillion_testkit::registration::SERVER_NAME;
use pillion_testkit::replica::WEBHOOK_PORT;
use serde_json::{Value as Json, json};

/// Sends reviews to one replica.
pub(crate) struct Direct {
    client: Client,
}

impl Direct {
    pub(crate) fn to(replica: &Replica) -> Result<Self> {
        let mut config = Config::new(format!("https://{}:{WEBHOOK_PORT}", replica.address()).parse()?);
        config.tls_server_name = Some(SERVER_NAME.to_owned());
        // The tests that use this client do not check the server's certificate.
        config.accept_invalid_certs = true;
        Ok(Self { client: Client::try_from(config)? })
    }

    /// Sends a review to this path. Returns the body of the response.
    pub(crate) async fn answer(&self, path: &str, review: &Json) -> Result<String> {
        let request =
            Request::post(path).header("content-type", "application/json").body(review.to_string().into_bytes());
        self.client.request_text(request?).await.context("a review")
    }
}

/// Returns the review of a pod's creation.
pub(crate) fn review(uid: &str, namespace: &str, pod: &Json) -> Json {
    let kind = json!({"group": "", "version": "v1", "kind": "Pod"});
    let resource = json!({"group": "", "version": "v1", "resource": "pods"});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": uid, "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
        "namespace": namespace, "operation": "CREATE", "userInfo": {"username": "somebody"}, "object": pod,
        "oldObject": null, "dryRun": false, "options": null}})
}

/// Returns the value of a series in the replica's metrics.
pub(crate) async fn metric(replica: &Replica, series: &str) -> Result<f64> {
    let text = replica.metrics_text().await?;
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    value.with_context(|| format!("no series {series}"))
}

/// Returns the value of a line of `/proc/PID/status`, in KiB.
pub(crate) fn memory(pid: u32, line: &str) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value =
        text.lines().find_map(|text| text.strip_prefix(line)?.trim_start_matches(':').split_whitespace().next());
    value.and_then(|value| value.parse().ok()).with_context(|| format!("no {line} of process {pid}"))
}

/// Returns the processor time that a process has used. The kernel reports it in units of 10 ms.
pub(crate) fn processor_time(pid: u32) -> Result<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<_> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |field: usize| fields.get(field).and_then(|text| text.parse::<u64>().ok()).context("a field of stat");
    Ok(Duration::from_millis(10 * (ticks(11)? + ticks(12)?)))
}
