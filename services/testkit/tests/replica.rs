//! Tests webhook replicas as processes, with other programs instead of the real binary.

use std::time::Duration;

use anyhow::ensure;
use pillion_testkit::namespace::{self, replica_address};
use pillion_testkit::registration::SERVER_NAME;
use pillion_testkit::{Isolation, Replica, ReplicaSpec, TestCa};

const SOON: Duration = Duration::from_mins(1);

#[test]
fn early_replica_failure_shows_output() {
    Isolation::new().own_network("needs no control plane").run(|| async {
        let dir = namespace::directory()?;
        let tls = TestCa::new()?.serving_files(&dir, "replica", &[SERVER_NAME])?;
        // The command is `sh webhook --kubeconfig ...`. It fails because there is no script `webhook`.
        let spec = ReplicaSpec::new("/bin/sh", dir.join("none.kubeconfig"), tls);
        let error = Replica::start(&spec, replica_address(1)).await.unwrap_err().to_string();
        ensure!(error.contains("replica 10.111.1.1 ended (exit status: "), "{error}");
        ensure!(error.contains("webhook"), "the shell's error is missing: {error}");
        Ok(())
    });
}

#[test]
fn replica_starts_responds_and_stops() {
    Isolation::new().own_network("needs no control plane").run(|| async {
        let dir = namespace::directory()?;
        let tls = TestCa::new()?.serving_files(&dir, "replica", &[SERVER_NAME])?;
        let mut spec = ReplicaSpec::new(env!("CARGO_BIN_EXE_stub-replica"), dir.join("none.kubeconfig"), tls);
        spec.env.push(("GREETING".to_owned(), "hello".to_owned()));
        let mut replicas = Replica::start_many(&spec, 2).await?;
        for replica in &mut replicas {
            let metrics = replica.metrics_text().await?;
            ensure!(metrics.contains(&format!("listens on {}:8443", replica.address())), "{metrics}");
            ensure!(replica.log_text()?.contains("hello"));
            ensure!(replica.terminate(SOON).await?.code() == Some(5));
            ensure!(replica.get("/readyz").await.is_err(), "it responds after its end");
        }
        Ok(())
    });
}
