//! Restarts all replicas one by one, like a rolling update of a Deployment, while the test creates pods continuously.
//! No creation may fail, and no pod may lack its sidecar.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pillion_testkit::{Isolation, RegisteredService, Replica, ReplicaSpec, namespace};

use crate::load::{Creation, CreationResult, Load, LoadResults, count_from, print_figures};
use crate::rig::{NGINX, PATIENCE, Rig};

const REPLICAS: u8 = 3;
/// Number of restarts of all replicas. `PILLION_ROLLS` overrides it.
const ROLLS: u64 = 2;
/// Number of pods that are created between two replacements.
const PODS_BETWEEN: u64 = 100;
/// How long the old replica remains in the endpoint slice after its termination begins, for successive replacements.
/// The kubelet and the endpoint slice controller are notified of a pod's deletion at the same time, and neither waits
/// for the other.
const LAGS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(200), Duration::from_millis(600), Duration::from_millis(1200)];
/// Time limit for a change of a profile to reach every replica, on a busy machine with two cores.
const CHANGED: Duration = Duration::from_secs(5);

/// The replicas of a Deployment.
struct Fleet {
    service: RegisteredService,
    spec: ReplicaSpec,
    running: VecDeque<Replica>,
    /// Replicas that were asked to terminate.
    draining: Vec<Replica>,
    /// For each draining replica, the number of pods that it had injected before its termination began.
    answered: Vec<u64>,
    next: u8,
}

impl Fleet {
    /// Takes over the replicas of a rig.
    fn of(rig: &mut Rig) -> Self {
        let running = std::mem::take(&mut rig.replicas).into();
        let (service, spec) = (rig.service.clone(), rig.spec.clone());
        Self { service, spec, running, draining: Vec::new(), answered: Vec::new(), next: REPLICAS + 1 }
    }

    /// Replaces the oldest replica: waits until the new one is ready, adds it to the endpoints, and terminates the old
    /// one. After `lag`, removes the old one from the endpoints.
    async fn replace_one(&mut self, lag: Duration) -> Result<()> {
        let new = Replica::start(&self.spec, namespace::replica_address(self.next)).await?;
        self.next = self.next.checked_add(1).context("no address is left")?;
        self.service.set_ready(new.address(), true).await?;
        self.running.push_back(new);
        let mut old = self.running.pop_front().context("a replica")?;
        self.answered.push(injected_by(&old).await?);
        old.process().terminate()?;
        tokio::time::sleep(lag).await;
        self.service.remove(old.address()).await?;
        self.draining.push(old);
        Ok(())
    }

    /// Returns how many of the draining replicas have exited.
    fn exited_count(&mut self) -> Result<usize> {
        let mut exited = 0;
        for replica in &mut self.draining {
            exited += usize::from(replica.process().exited()?.is_some());
        }
        Ok(exited)
    }

    /// Waits until all draining replicas exit. Fails if one exits with an error, or cuts off a connection.
    async fn all_end(mut self) -> Result<()> {
        for replica in &mut self.draining {
            let address = replica.address();
            let status = replica.process().wait(PATIENCE).await?;
            ensure!(status.success(), "the replica at {address} ended with {status}");
            let log = replica.log_text()?;
            ensure!(!log.contains("connections were closed") && log.contains("ended"), "{address}: {log}");
        }
        Ok(())
    }
}

/// Returns the number of pods that a replica has injected.
pub(crate) async fn injected_by(replica: &Replica) -> Result<u64> {
    let metrics = replica.metrics_text().await?;
    let counters = metrics
        .lines()
        .filter(|line| line.starts_with("pillion_webhook_requests_total{") && line.contains("outcome=\"injected\""));
    let counts = counters.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    Ok(counts.sum())
}

#[test]
fn rolling_restarts_lose_no_pod() {
    let rolls = count_from("PILLION_ROLLS", ROLLS, 1..=80).unwrap();
    let limit = Duration::from_secs(600 + 30 * rolls);
    Isolation::new().with_crds().time_limit(limit).run(|| async move {
        let mut rig = Rig::start_as_in_production(REPLICAS).await?;
        let mut fleet = Fleet::of(&mut rig);
        let load = Load::start(&rig).await?;
        let began = Instant::now();
        let mut images = vec![("nginx:1.29".to_owned(), began)];
        let mut lags = LAGS.into_iter().cycle();
        for roll in 1..=rolls {
            for step in 0..REPLICAS {
                fleet.replace_one(lags.next().context("a lag")?).await?;
                if step == 1 {
                    // The profile changes in the middle of a restart, as in an upgrade: old, new and draining replicas
                    // run at the same time.
                    let image = format!("nginx:roll-{roll}");
                    rig.control_plane.apply_yaml(&NGINX.replace("nginx:1.29", &image)).await?;
                    images.push((image, Instant::now()));
                }
                load.wait_for_responses(PODS_BETWEEN).await?;
            }
        }
        let took = began.elapsed();
        let results = load.stop().await?;
        results.write_result("restarts", rolls)?;
        let exited = fleet.exited_count()?;
        print_figures(&format!(
            "{rolls} rolling restarts of {REPLICAS} replicas in {took:.0?} ({exited} of {} have ended meanwhile): {results}\n  \
             injected by each before it was replaced: {:?}",
            fleet.draining.len(),
            fleet.answered,
        ));
        expect_no_loss(&results)?;
        every_change_is_served(&results, &images)?;
        let used = fleet.answered.iter().filter(|answered| **answered > 0).count();
        ensure!(2 * used >= fleet.answered.len(), "most replicas were replaced before they received a pod");

        // The draining replicas wait until the API server closes its connections, which it does when it stops.
        rig.control_plane.stop_api_server()?;
        fleet.all_end().await
    });
}

pub(crate) fn expect_no_loss(results: &LoadResults) -> Result<()> {
    let lost = results.lost();
    let first: Vec<_> = lost.iter().take(5).collect();
    ensure!(lost.is_empty(), "{} pods of {} were lost; the first: {first:#?}", lost.len(), results.all.len());
    Ok(())
}

/// Checks that no pod gets an image that was replaced more than [`CHANGED`] earlier, regardless of which replica
/// responded.
fn every_change_is_served(results: &LoadResults, images: &[(String, Instant)]) -> Result<()> {
    for created in &results.all {
        let CreationResult::Injected(image) = &created.result else { continue };
        let place = images.iter().position(|(known, _)| known == image).with_context(|| format!("{image}: unknown"))?;
        let Some((next, since)) = images.get(place + 1) else { continue };
        let late = created.sent.saturating_duration_since(*since);
        ensure!(late < CHANGED, "{late:?} after {next} a pod gets {image}");
    }
    // If no pod had the last image, the check would prove nothing.
    let (last, _) = images.last().context("an image")?;
    let served = |created: &&Creation| created.result == CreationResult::Injected(last.clone());
    ensure!(results.all.iter().any(|created| served(&created)), "{last} was never served");
    Ok(())
}
