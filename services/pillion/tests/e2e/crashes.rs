//! Tests replicas that are killed, hang, or lose their node while pods are created. Requests in flight on them may
//! fail. Other requests may fail only for a short time.
//!
//! The test simulates the kubelet and the endpoint slice controller, with the same delays. After a container is killed,
//! its address remains and refuses connections. The kubelet notices the end within a second, and then the slice is
//! updated. Until then, the API server also opens connections to that address: it picks an endpoint at random, and does
//! not try another one. So some requests are cut off and some are refused until the slice is up to date.

use std::fmt::{self, Display};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pillion_testkit::{Isolation, Replica, Silence};

use crate::load::{Creation, CreationResult, FailureMode, Load, LoadResults, count_from, print_figures};
use crate::rig::Rig;

const REPLICAS: u8 = 3;
/// The number of kills. `PILLION_KILLS` overrides it.
const KILLS: u64 = 2;
/// Number of pods that are created between two faults.
const PODS_BETWEEN: u64 = 120;
/// The delay between a batch of pods and a kill increases by this much in each of six rounds, and then starts again at
/// zero.
const STEP: Duration = Duration::from_millis(3);
/// How long the kubelet takes to notice that a container has terminated.
const END_DETECTION: Duration = Duration::from_secs(1);
/// How long the kubelet's probes take to notice that a container hangs. After the same time again, the kubelet kills
/// it.
const HANG_DETECTION: Duration = Duration::from_secs(3);
/// How long the node controller takes to notice that a node is silent. By default, Kubernetes takes 50 seconds (40 in
/// older versions), and proportionally more pods are lost.
const SILENCE_DETECTION: Duration = Duration::from_secs(12);
/// How long the API server takes to receive a changed slice.
const SLICE_PROPAGATION: Duration = Duration::from_secs(1);
/// The number of idle connections that an API server keeps open to a webhook. It limits the number of requests in
/// flight on a hanging replica.
const POOL: usize = 25;

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultKind {
    /// SIGKILL and an immediate restart. The slice does not change, so it lists the replica as ready throughout.
    Restarted,
    /// SIGKILL, and a restart after the kubelet notices.
    Killed,
    /// SIGSTOP, followed by SIGKILL.
    Hung,
    /// The node has no power: its address sends neither responses nor resets.
    Silent,
}

#[derive(Debug)]
struct ReplicaFault {
    kind: FaultKind,
    at: Instant,
    /// When the signal took effect.
    effective: Instant,
    /// Requests sent after this time must not fail.
    recovered: Instant,
}

/// A fault, and the pods that were lost because of it.
struct FaultEffect<'o> {
    fault: &'o ReplicaFault,
    lost: Vec<&'o Creation>,
}

impl ReplicaFault {
    /// Kills a replica, and starts it again once the kubelet notices.
    async fn kill(rig: &mut Rig, victim: usize) -> Result<Self> {
        let address = rig.replicas[victim].address();
        let at = Instant::now();
        rig.replicas[victim].kill()?;
        let effective = Instant::now();
        tokio::time::sleep(END_DETECTION).await;
        rig.service.set_ready(address, false).await?;
        let seen = Instant::now() + SLICE_PROPAGATION;
        restart(rig, victim).await?;
        // On a busy machine, the API server may receive the changed slice only after `seen`. Its calls to this address
        // are refused until the replica has restarted. So the later of the two times counts.
        let recovered = seen.max(Instant::now());
        Ok(Self { kind: FaultKind::Killed, at, effective, recovered })
    }

    /// Kills a replica and restarts it immediately.
    async fn restart(rig: &mut Rig, victim: usize) -> Result<Self> {
        let at = Instant::now();
        rig.replicas[victim].kill()?;
        let effective = Instant::now();
        restart(rig, victim).await?;
        let recovered = Instant::now() + SLICE_PROPAGATION;
        Ok(Self { kind: FaultKind::Restarted, at, effective, recovered })
    }

    /// Pauses a replica. Its probes fail, so it is removed from the slice. The kubelet kills it when it still does not
    /// respond.
    async fn hang(rig: &mut Rig, victim: usize) -> Result<Self> {
        let address = rig.replicas[victim].address();
        let at = Instant::now();
        rig.replicas[victim].process().pause()?;
        let effective = Instant::now();
        tokio::time::sleep(HANG_DETECTION).await;
        rig.service.set_ready(address, false).await?;
        tokio::time::sleep(HANG_DETECTION).await;
        rig.replicas[victim].kill()?;
        // Pods on idle connections of the hanging replica are lost too, at most one on each connection.
        let recovered = Instant::now() + SLICE_PROPAGATION;
        restart(rig, victim).await?;
        Ok(Self { kind: FaultKind::Hung, at, effective, recovered })
    }

    /// Simulates a power loss of a replica's node. The slice changes when the node controller notices.
    async fn silence(rig: &mut Rig, victim: usize) -> Result<Self> {
        let address = rig.replicas[victim].address();
        let at = Instant::now();
        let silence = Silence::of(address)?;
        rig.replicas[victim].process().pause()?;
        let effective = Instant::now();
        tokio::time::sleep(SILENCE_DETECTION).await;
        rig.service.set_ready(address, false).await?;
        // The API server reuses each idle connection to the silent node for one pod, until a TCP timeout closes the
        // connection.
        let recovered = Instant::now() + SLICE_PROPAGATION;
        tokio::time::sleep(HANG_DETECTION).await;
        drop(silence);
        rig.replicas[victim].kill()?;
        restart(rig, victim).await?;
        Ok(Self { kind: FaultKind::Silent, at, effective, recovered })
    }

    /// Whether the request for a pod was sent during the outage.
    fn includes(&self, created: &Creation) -> bool {
        (self.at..=self.recovered).contains(&created.sent)
    }

    fn effect<'o>(&'o self, results: &'o LoadResults) -> FaultEffect<'o> {
        let met = |created: &&Creation| self.at <= created.sent + created.took && created.sent <= self.recovered;
        FaultEffect { fault: self, lost: results.lost().into_iter().filter(met).collect() }
    }
}

async fn restart(rig: &mut Rig, victim: usize) -> Result<()> {
    let address = rig.replicas[victim].address();
    rig.replicas[victim] = Replica::start(&rig.spec, address).await?;
    rig.service.set_ready(address, true).await
}

impl FaultEffect<'_> {
    fn count_in(&self, failure_mode: FailureMode) -> usize {
        self.lost.iter().filter(|created| created.failure_mode == failure_mode).count()
    }

    /// Returns the number of lost pods whose requests were in flight at the fault.
    fn in_flight_count(&self) -> usize {
        self.lost.iter().filter(|created| created.sent <= self.fault.effective).count()
    }

    /// Returns how long after the fault the last failing request was sent.
    fn last_failure_delay(&self) -> Duration {
        self.lost.iter().map(|created| created.sent.saturating_duration_since(self.fault.at)).max().unwrap_or_default()
    }

    fn check(&self) -> Result<()> {
        // Only pods of `required` namespaces may be rejected, and only pods of other namespaces may lack their sidecar.
        for created in &self.lost {
            let as_labelled = match (&created.result, created.failure_mode) {
                (CreationResult::Failed(message), FailureMode::Required) => {
                    // The request was cut off, refused, or timed out. In all these cases the webhook sent no response.
                    message.contains("failed to call webhook: Post") && message.contains("required.pillion.dev")
                }
                (CreationResult::NotInjected, FailureMode::Enabled) => true,
                _ => false,
            };
            ensure!(as_labelled, "{created:?}");
        }
        let kind = self.fault.kind;
        ensure!(
            self.in_flight_count() <= POOL,
            "{} pods were in flight on the replica with the fault {kind:?}",
            self.in_flight_count()
        );
        Ok(())
    }
}

impl Display for FaultEffect<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReplicaFault { kind, at, recovered, .. } = self.fault;
        write!(
            f,
            "{kind:?}: {} lost ({} failed, {} not injected), {} of them in flight at that moment, the last one sent {:.2?} later \
             (allowed: {:.2?})",
            self.lost.len(),
            self.count_in(FailureMode::Required),
            self.count_in(FailureMode::Enabled),
            self.in_flight_count(),
            self.last_failure_delay(),
            recovered.duration_since(*at),
        )
    }
}

#[test]
fn dying_replica_loses_only_own_requests() {
    let kills = count_from("PILLION_KILLS", KILLS, 1..=500).unwrap();
    let limit = Duration::from_secs(600 + 30 * kills);
    Isolation::new().with_crds().time_limit(limit).run(|| async move {
        let mut rig = Rig::start_as_in_production(REPLICAS).await?;
        let load = Load::start(&rig).await?;
        let mut faults = Vec::new();
        let victims = (0..usize::from(REPLICAS)).cycle().zip((0..6).cycle());
        for ((victim, steps), _) in victims.zip(0..kills) {
            load.wait_for_responses(PODS_BETWEEN).await?;
            // The kills happen at different moments of the creation of pods.
            load.wait_for_batch(STEP * steps).await;
            faults.push(ReplicaFault::kill(&mut rig, victim).await?);
            load.wait_for_responses(PODS_BETWEEN).await?;
            load.wait_for_batch(STEP * steps).await;
            faults.push(ReplicaFault::restart(&mut rig, victim).await?);
        }
        load.wait_for_responses(PODS_BETWEEN).await?;
        faults.push(ReplicaFault::hang(&mut rig, 0).await?);
        load.wait_for_responses(PODS_BETWEEN).await?;
        let results = load.stop().await?;

        print_figures(&format!("of {REPLICAS} replicas, one after the other: {results}"));
        let effects: Vec<_> = faults.iter().map(|fault| fault.effect(&results)).collect();
        for effect in &effects {
            print_figures(&format!("  {effect}"));
        }
        effects.iter().try_for_each(FaultEffect::check)?;
        let accounted: usize = effects.iter().map(|effect| effect.lost.len()).sum();
        let lost = results.lost();
        let unaccounted =
            lost.iter().find(|created| effects.iter().all(|d| !d.lost.iter().any(|one| one.sent == created.sent)));
        ensure!(unaccounted.is_none() && accounted == lost.len(), "lost without a fault: {unaccounted:?}");
        Ok(())
    });
}

#[test]
fn silent_node_costs_its_share_of_calls() {
    Isolation::new().with_crds().run(|| async move {
        let mut rig = Rig::start_as_in_production(REPLICAS).await?;
        let load = Load::start(&rig).await?;
        load.wait_for_responses(PODS_BETWEEN).await?;
        let fault = ReplicaFault::silence(&mut rig, 0).await?;
        load.wait_for_responses(PODS_BETWEEN).await?;
        let results = load.stop().await?;
        let effect = fault.effect(&results);
        print_figures(&format!("a node of {REPLICAS} without power: {results}"));
        print_figures(&format!("  {effect}"));
        effect.check()?;
        ensure!(effect.lost.len() == results.lost().len(), "{effect}");
        // The silent replica gets a third of the calls. The other replicas answer theirs.
        let lost = effect.lost.iter().filter(|created| fault.includes(created)).count();
        let sent = results.all.iter().filter(|created| fault.includes(created)).count();
        ensure!(0 < lost && lost <= sent / 2, "{lost} of {sent} pods were lost during the outage; {effect}");
        Ok(())
    });
}
