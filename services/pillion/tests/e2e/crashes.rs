//! Replicas that are killed, hang, or lose their node while pods are created. Requests in flight on them may fail,
//! and all others only for a short time.
//!
//! The test plays kubelet and the endpoint slice controller, with the same delays. After a container is killed, its
//! address stays and refuses connections. Kubelet sees the end within a second, and then the slice is updated. Until
//! then the API server also opens connections to that address: it picks an endpoint at random, and does not try
//! another. So some pods are cut off, and some are refused. Both end when the slice is up to date.

use std::fmt::{self, Display};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pillion_testkit::{Isolation, Replica, Silence};

use crate::load::{Created, Ended, Level, Load, Outcomes, count_from, tell};
use crate::rig::Rig;

const REPLICAS: u8 = 3;
/// How often a replica is killed. `PILLION_KILLS` overrides it.
const KILLS: u64 = 2;
/// Number of pods between two faults.
const BETWEEN: u64 = 120;
/// Each kill follows a batch of pods by this much more than the kill before.
const STEP: Duration = Duration::from_millis(3);
/// How long kubelet takes to notice that a container has ended.
const END_IS_SEEN: Duration = Duration::from_secs(1);
/// How long kubelet's probes take to notice that a container hangs. Kubelet kills it after the same time again.
const HANG_IS_SEEN: Duration = Duration::from_secs(3);
/// How long the node controller takes to notice a silent node. In most clusters it takes 40 seconds, with
/// proportionally more lost pods.
const SILENCE_IS_SEEN: Duration = Duration::from_secs(12);
/// How long the API server takes to receive a changed slice.
const SLICE_IS_SEEN: Duration = Duration::from_secs(1);
/// Idle connections that an API server keeps to a webhook: the number of requests that one replica can have in flight
/// for long.
const POOL: usize = 25;

/// The kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// SIGKILL, and an immediate restart, before the slice changes: it lists the replica as ready throughout.
    Restarted,
    /// SIGKILL.
    Killed,
    /// SIGSTOP, followed by SIGKILL.
    Hung,
    /// The node has no power: its address sends neither responses nor resets.
    Silent,
}

#[derive(Debug)]
struct Fault {
    kind: Kind,
    at: Instant,
    /// When the signal took effect.
    done: Instant,
    /// Requests sent after this time must not fail.
    over: Instant,
}

/// The effect of a fault.
struct Damage<'o> {
    fault: &'o Fault,
    lost: Vec<&'o Created>,
}

impl Fault {
    /// Kills a replica, and starts it again once kubelet notices.
    async fn kill(rig: &mut Rig, victim: usize) -> Result<Self> {
        let address = rig.replicas[victim].address();
        let at = Instant::now();
        rig.replicas[victim].kill()?;
        let done = Instant::now();
        tokio::time::sleep(END_IS_SEEN).await;
        rig.service.set_ready(address, false).await?;
        let seen = Instant::now() + SLICE_IS_SEEN;
        restart(rig, victim).await?;
        // On a busy machine the API server may learn of the change late. Its requests are refused until the replica
        // is back.
        let over = seen.max(Instant::now());
        Ok(Self { kind: Kind::Killed, at, done, over })
    }

    /// Kills a replica and restarts it immediately.
    async fn restart(rig: &mut Rig, victim: usize) -> Result<Self> {
        let at = Instant::now();
        rig.replicas[victim].kill()?;
        let done = Instant::now();
        restart(rig, victim).await?;
        let over = Instant::now() + SLICE_IS_SEEN;
        Ok(Self { kind: Kind::Restarted, at, done, over })
    }

    /// Stops a replica. Its probes fail, so it leaves the slice, and kubelet kills it when it still does not respond.
    async fn hang(rig: &mut Rig, victim: usize) -> Result<Self> {
        let address = rig.replicas[victim].address();
        let at = Instant::now();
        rig.replicas[victim].process().pause()?;
        let done = Instant::now();
        tokio::time::sleep(HANG_IS_SEEN).await;
        rig.service.set_ready(address, false).await?;
        tokio::time::sleep(HANG_IS_SEEN).await;
        rig.replicas[victim].kill()?;
        // The idle connections are lost too. One pod could have waited on each of them.
        let over = Instant::now() + SLICE_IS_SEEN;
        restart(rig, victim).await?;
        Ok(Self { kind: Kind::Hung, at, done, over })
    }

    /// Cuts the power of a replica's node. The slice changes when the node controller notices.
    async fn silence(rig: &mut Rig, victim: usize) -> Result<Self> {
        let address = rig.replicas[victim].address();
        let at = Instant::now();
        let silence = Silence::of(address)?;
        rig.replicas[victim].process().pause()?;
        let done = Instant::now();
        tokio::time::sleep(SILENCE_IS_SEEN).await;
        rig.service.set_ready(address, false).await?;
        // The API server reuses the idle connections, one pod each, until TCP gives up their packets.
        let over = Instant::now() + SLICE_IS_SEEN;
        tokio::time::sleep(HANG_IS_SEEN).await;
        drop(silence);
        rig.replicas[victim].kill()?;
        restart(rig, victim).await?;
        Ok(Self { kind: Kind::Silent, at, done, over })
    }

    fn damage<'o>(&'o self, outcomes: &'o Outcomes) -> Damage<'o> {
        let met = |created: &&Created| self.at <= created.sent + created.took && created.sent <= self.over;
        Damage { fault: self, lost: outcomes.lost().into_iter().filter(met).collect() }
    }
}

async fn restart(rig: &mut Rig, victim: usize) -> Result<()> {
    let address = rig.replicas[victim].address();
    rig.replicas[victim] = Replica::start(&rig.spec, address).await?;
    rig.service.set_ready(address, true).await
}

impl Damage<'_> {
    fn of_level(&self, level: Level) -> usize {
        self.lost.iter().filter(|created| created.level == level).count()
    }

    /// Returns the number of requests that were in flight at the fault.
    fn cut(&self) -> usize {
        self.lost.iter().filter(|created| created.sent <= self.fault.done).count()
    }

    /// Returns how long after the fault the last failing request was sent.
    fn last(&self) -> Duration {
        self.lost.iter().map(|created| created.sent.saturating_duration_since(self.fault.at)).max().unwrap_or_default()
    }

    fn check(&self) -> Result<()> {
        // Only required pods may be rejected, and only other pods may lack their sidecar.
        for created in &self.lost {
            let as_labelled = match (&created.ended, created.level) {
                (Ended::Failed(why), Level::Required) => {
                    // The request was cut off, refused, or timed out, so the webhook has sent no response.
                    why.contains("failed to call webhook: Post") && why.contains("required.pillion.dev")
                }
                (Ended::NotInjected, Level::Enabled) => true,
                _ => false,
            };
            ensure!(as_labelled, "{created:?}");
        }
        let kind = self.fault.kind;
        ensure!(self.cut() <= POOL, "{} pods were in flight on what was {kind:?}", self.cut());
        Ok(())
    }
}

impl Display for Damage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { kind, at, over, .. } = self.fault;
        write!(
            f,
            "{kind:?}: {} lost ({} failed, {} not injected), {} of them in flight at that moment, the last one sent {:.2?} later \
             (allowed: {:.2?})",
            self.lost.len(),
            self.of_level(Level::Required),
            self.of_level(Level::Enabled),
            self.cut(),
            self.last(),
            over.duration_since(*at),
        )
    }
}

#[test]
fn dying_replica_loses_only_own_requests() {
    let kills = count_from("PILLION_KILLS", KILLS, 1..=500).unwrap();
    let limit = Duration::from_secs(600 + 30 * kills);
    Isolation::new().time_limit(limit).run(|| async move {
        let mut rig = Rig::start_as_in_production(REPLICAS).await?;
        let load = Load::start(&rig).await?;
        let mut faults = Vec::new();
        let victims = (0..usize::from(REPLICAS)).cycle().zip((0..6).cycle());
        for ((victim, steps), _) in victims.zip(0..kills) {
            load.answers(BETWEEN).await?;
            // Each kill comes at a different moment of a pod's creation.
            load.amid_a_batch(STEP * steps).await;
            faults.push(Fault::kill(&mut rig, victim).await?);
            load.answers(BETWEEN).await?;
            load.amid_a_batch(STEP * steps).await;
            faults.push(Fault::restart(&mut rig, victim).await?);
        }
        load.answers(BETWEEN).await?;
        faults.push(Fault::hang(&mut rig, 0).await?);
        load.answers(BETWEEN).await?;
        let outcomes = load.stop().await?;

        tell(&format!("of {REPLICAS} replicas, one after the other: {outcomes}"));
        let damages: Vec<_> = faults.iter().map(|fault| fault.damage(&outcomes)).collect();
        for damage in &damages {
            tell(&format!("  {damage}"));
        }
        damages.iter().try_for_each(Damage::check)?;
        let accounted: usize = damages.iter().map(|damage| damage.lost.len()).sum();
        let lost = outcomes.lost();
        let unaccounted =
            lost.iter().find(|created| damages.iter().all(|d| !d.lost.iter().any(|one| one.sent == created.sent)));
        ensure!(unaccounted.is_none() && accounted == lost.len(), "lost without a fault: {unaccounted:?}");
        Ok(())
    });
}

#[test]
fn silent_node_costs_its_share_of_calls() {
    Isolation::new().run(|| async move {
        let mut rig = Rig::start_as_in_production(REPLICAS).await?;
        let load = Load::start(&rig).await?;
        load.answers(BETWEEN).await?;
        let fault = Fault::silence(&mut rig, 0).await?;
        load.answers(BETWEEN).await?;
        let outcomes = load.stop().await?;
        let damage = fault.damage(&outcomes);
        tell(&format!("a node of {REPLICAS} without power: {outcomes}"));
        tell(&format!("  {damage}"));
        damage.check()?;
        ensure!(damage.lost.len() == outcomes.lost().len(), "{damage}");
        Ok(())
    });
}
