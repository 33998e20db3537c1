//! Runs the real components that tests need: kube-apiserver with its etcd, replicas of the real binary, certificates.
//!
//! A test with a control plane looks like this:
//!
//! ```no_run
//! // #[test]
//! fn serves_its_version() {
//!     pillion_testkit::isolated(|| async {
//!         let control_plane = pillion_testkit::ControlPlane::start().await?;
//!         assert!(control_plane.client().apiserver_version().await.is_ok());
//!         Ok(())
//!     });
//! }
//! ```
//!
//! - [`tools`]: finds or builds `etcd`, `kube-apiserver`, `kubectl` and other programs.
//! - [`isolation`]: runs a test in Linux namespaces of its own, which need no root; [`namespace`]: its addresses and
//!   folder.
//! - [`control_plane`]: etcd and kube-apiserver, started in a few seconds; clients, kubeconfigs and the real kubectl.
//! - [`replica`]: replicas of webhook and controller as processes of the real binary.
//! - [`kwok`]: the real kwok, which simulates the nodes and kubelets of large clusters.
//! - [`moved_clock`]: moves the wall clock of single processes while they run.
//! - [`controller_manager`]: the real controllers that create pods, for tests of owner references.
//! - [`vpa`], [`metrics_server`]: the real Vertical Pod Autoscaler, and the real source of metrics for autoscalers.
//! - [`mod@cluster`]: a real cluster of one node, where containers run; [`image`]: images for it.
//! - [`registration`]: registers webhooks with the API server: Service, endpoint slices, webhook configuration.
//! - [`certificates`]: a CA for tests.
//! - [`dashboards`]: renders Grafana dashboards from `dashboards/source`.
//! - [`dice`]: repeatable randomness for generators.
//! - [`daemon`]: a process with a log file, which ends when its value is dropped.
//! - [`eventually`](mod@eventually): waits for a condition with a time limit.
//! - [`https`]: an HTTPS server stack like production's, for webhooks inside a test and for the benchmark's baseline.
//!
//! Binaries: `control-plane up|down` (a control plane on this machine's loopback, for manual use), `cluster up|down` (a
//! real cluster of one node), `bench` (the benchmark), `floor` (an HTTPS server with the lowest possible cost, as the
//! benchmark's baseline) and `stub-replica` (a substitute for the real binary in tests).

pub mod certificates;
pub mod dashboards;
pub mod dice;
pub mod eventually;
pub mod daemon;
pub mod https;
pub mod image;
mod kubeconfig;
pub mod namespace;
pub mod tools;
mod remote;
pub mod control_plane;
pub mod cluster;
pub mod controller_manager;
pub mod kwok;
pub mod moved_clock;
pub mod replica;
pub mod registration;
pub mod vpa;
pub mod metrics_server;
mod shared;
pub mod isolation;

pub use certificates::{TestCa, TlsFiles};
pub use cluster::Cluster;
pub use control_plane::ControlPlane;
pub use controller_manager::ControllerManager;
pub use eventually::eventually;
pub use isolation::{Isolation, isolated, isolated_with_crds};
pub use kwok::Kwok;
pub use metrics_server::MetricsServer;
pub use moved_clock::MovedClock;
pub use namespace::Silence;
pub use registration::{RegisteredService, register_service, register_webhook};
pub use replica::{Replica, ReplicaSpec, Role};

/// Returns whether tests run all cases instead of a sample, because `PILLION_THOROUGH` is set, as in `just nightly`.
#[must_use]
pub fn is_thorough() -> bool {
    std::env::var_os("PILLION_THOROUGH").is_some()
}

/// Writes a test's result to the file that `PILLION_RESULT` names, if it is set. Recipes such as `just rotate` print
/// the result as their last line. Call this function before asserting on the result, so that a failing test reports it
/// too.
///
/// # Errors
/// The file cannot be written.
pub fn write_result(result: &serde_json::Value) -> anyhow::Result<()> {
    use anyhow::Context as _;
    let Some(file) = std::env::var_os("PILLION_RESULT") else { return Ok(()) };
    std::fs::write(&file, format!("{result}\n")).with_context(|| format!("cannot write {}", file.display()))
}
