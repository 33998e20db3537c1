//! Restarts replicas like a Deployment's rolling update while pods are created: no creation fails, and every pod is
//! injected.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pillion_testkit::{Isolation, RegisteredService, Replica, ReplicaSpec, namespace};

use crate::load::{Created, Ended, Load, Outcomes, count_from, tell};
use crate::rig::{NGINX, PATIENCE, Rig};

const REPLICAS: u8 = 3;
/// The default number of restarts of all replicas, which `PILLION_ROLLS` overrides.
const ROLLS: u64 = 2;
/// The number of pods between two replacements.
const BETWEEN: u64 = 100;
/// How much later the endpoint slices change than the kubelet acts, for successive replacements. Both observe a pod's
/// deletion at the same time, and neither waits for the other.
const LAGS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(200), Duration::from_millis(600), Duration::from_millis(1200)];
/// The limit for a changed profile to reach every replica, with two busy cores.
const CHANGED: Duration = Duration::from_secs(5);

/// The replicas of a Deployment.
struct Fleet {
    service: RegisteredService,
    spec: ReplicaSpec,
    running: VecDeque<Replica>,
    /// The replicas that are terminating.
    draining: Vec<Replica>,
    /// The number of requests that each of these had answered before.
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

    /// Replaces the oldest replica: the new one is ready before it gets requests, and then the old one is deleted.
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

    /// Returns how many of the terminating replicas have ended.
    fn ended(&mut self) -> Result<usize> {
        let mut ended = 0;
        for replica in &mut self.draining {
            ended += usize::from(replica.process().exited()?.is_some());
        }
        Ok(ended)
    }

    /// Waits until all terminating replicas have ended in order, without cutting a connection.
    async fn all_end(mut self) -> Result<()> {
        for replica in &mut self.draining {
            let address = replica.address();
            let status = replica.process().wait(PATIENCE).await?;
            ensure!(status.success(), "the replica at {address} ended with {status}");
            let log = replica.log_text()?;
            ensure!(!log.contains("connections were cut") && log.contains("ended"), "{address}: {log}");
        }
        Ok(())
    }
}

/// Returns the number of pods that a replica has injected.
pub(crate) async fn injected_by(replica: &Replica) -> Result<u64> {
    let metrics = replica.metrics_text().await?;
    let counters = metrics
        .lines()
        .filter(|line| line.starts_with("pillion_admission_requests_total{") && line.contains("outcome=\"injected\""));
    let counts = counters.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    Ok(counts.sum())
}

#[test]
fn rolling_restarts_lose_no_pod() {
    let rolls = count_from("PILLION_ROLLS", ROLLS, 1..=80).unwrap();
    let limit = Duration::from_secs(600 + 30 * rolls);
    Isolation::new().own_network("stops the API server").time_limit(limit).run(|| async move {
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
                    // Changes the profile during the restart, like an upgrade, with old, new and draining replicas.
                    let image = format!("nginx:roll-{roll}");
                    rig.control_plane.apply_yaml(&NGINX.replace("nginx:1.29", &image)).await?;
                    images.push((image, Instant::now()));
                }
                load.answers(BETWEEN).await?;
            }
        }
        let took = began.elapsed();
        let outcomes = load.stop().await?;
        outcomes.write_result("restarts", rolls)?;
        let ended = fleet.ended()?;
        tell(&format!(
            "{rolls} rolling restarts of {REPLICAS} replicas in {took:.0?} ({ended} of {} have ended meanwhile): {outcomes}\n  \
             injected by each before it was replaced: {:?}",
            fleet.draining.len(),
            fleet.answered,
        ));
        nothing_is_lost(&outcomes)?;
        every_change_is_served(&outcomes, &images)?;
        let used = fleet.answered.iter().filter(|answered| **answered > 0).count();
        ensure!(2 * used >= fleet.answered.len(), "most replicas were replaced before they got a request");

        // Stopping the API server closes its connections, which the draining replicas wait for.
        rig.control_plane.stop_api_server()?;
        fleet.all_end().await
    });
}

pub(crate) fn nothing_is_lost(outcomes: &Outcomes) -> Result<()> {
    let lost = outcomes.lost();
    let first: Vec<_> = lost.iter().take(5).collect();
    ensure!(lost.is_empty(), "{} pods of {} were lost; the first: {first:#?}", lost.len(), outcomes.all.len());
    Ok(())
}

/// Checks that no pod gets a profile that was replaced some time ago, from any replica.
fn every_change_is_served(outcomes: &Outcomes, images: &[(String, Instant)]) -> Result<()> {
    for created in &outcomes.all {
        let Ended::Injected(image) = &created.ended else { continue };
        let place = images.iter().position(|(known, _)| known == image).with_context(|| format!("{image}: unknown"))?;
        let Some((next, since)) = images.get(place + 1) else { continue };
        let late = created.sent.saturating_duration_since(*since);
        ensure!(late < CHANGED, "{late:?} after {next} a pod is given {image}");
    }
    // The last change must have been served at least once.
    let (last, _) = images.last().context("an image")?;
    let served = |created: &&Created| created.ended == Ended::Injected(last.clone());
    ensure!(outcomes.all.iter().any(|created| served(&created)), "{last} was never served");
    Ok(())
}
