//! Replicas that are killed, hang, or lose their node while pods are created: what was in flight on them can fail, and nothing else for long.
//!
//! What kubelet and the endpoint slice controller would do is done here, as late as they would. A killed container's
//! address stays, and connections to it are refused at once; kubelet sees its end within a second, and the slice says so.
//! Until then the API server also opens connections to that address: it picks an endpoint at random, and does not try
//! another one. So there are pods that were cut, and pods that were turned away; both are over when the slice is up to date.

use std::fmt::{self, Display};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pillion_testkit::{Isolation, Replica, Silence};

use crate::load::{Created, Ended, Level, Load, Outcomes, count_from, tell};
use crate::rig::Rig;

const REPLICAS: u8 = 3;
/// Times that a replica is killed, unless `PILLION_KILLS` says otherwise.
const KILLS: u64 = 2;
/// Pods between two faults.
const BETWEEN: u64 = 120;
/// By how much later after a batch of pods was sent each kill comes than the one before.
const STEP: Duration = Duration::from_millis(3);
/// How long kubelet takes to see that a container has ended.
const END_IS_SEEN: Duration = Duration::from_secs(1);
/// How long it takes to see by its probes that one does not answer, and then to kill it.
const HANG_IS_SEEN: Duration = Duration::from_secs(3);
/// How long the node controller takes to see that a node is silent, forty seconds in most clusters: what is lost
/// is in proportion.
const SILENCE_IS_SEEN: Duration = Duration::from_secs(12);
/// How long the API server takes to learn of a slice that was written.
const SLICE_IS_SEEN: Duration = Duration::from_secs(1);
/// Idle connections that an API server keeps to a webhook, and so what one replica has in flight of it for long.
const POOL: usize = 25;

/// What a replica suffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// SIGKILL, and started again before anybody saw it: the slice says all the while that it is ready.
    Restarted,
    /// SIGKILL.
    Killed,
    /// SIGSTOP, and SIGKILL later.
    Hung,
    /// Its node has no power: neither answers nor refusals come from its address.
    Silent,
}

#[derive(Debug)]
struct Fault {
    kind: Kind,
    at: Instant,
    /// When the signal had done its work.
    done: Instant,
    /// What is sent later is not to fail any more.
    over: Instant,
}

/// What a fault did.
struct Damage<'o> {
    fault: &'o Fault,
    lost: Vec<&'o Created>,
}

impl Fault {
    /// Kills a replica, and starts it again once that is seen.
    async fn kill(rig: &mut Rig, victim: usize) -> Result<Self> {
        let address = rig.replicas[victim].address();
        let at = Instant::now();
        rig.replicas[victim].kill()?;
        let done = Instant::now();
        tokio::time::sleep(END_IS_SEEN).await;
        rig.service.set_ready(address, false).await?;
        let seen = Instant::now() + SLICE_IS_SEEN;
        restart(rig, victim).await?;
        // An API server that is late to see it, on a busy machine, is turned away until one is there again.
        let over = seen.max(Instant::now());
        Ok(Self { kind: Kind::Killed, at, done, over })
    }

    /// Kills a replica, which is started again at once.
    async fn restart(rig: &mut Rig, victim: usize) -> Result<Self> {
        let at = Instant::now();
        rig.replicas[victim].kill()?;
        let done = Instant::now();
        restart(rig, victim).await?;
        let over = Instant::now() + SLICE_IS_SEEN;
        Ok(Self { kind: Kind::Restarted, at, done, over })
    }

    /// Stops one where it stands; its probes fail, it is taken out, and killed when it still does not answer.
    async fn hang(rig: &mut Rig, victim: usize) -> Result<Self> {
        let address = rig.replicas[victim].address();
        let at = Instant::now();
        rig.replicas[victim].process().pause()?;
        let done = Instant::now();
        tokio::time::sleep(HANG_IS_SEEN).await;
        rig.service.set_ready(address, false).await?;
        tokio::time::sleep(HANG_IS_SEEN).await;
        rig.replicas[victim].kill()?;
        // With it go the connections that were idle when it stopped, on each of which one pod could have waited.
        let over = Instant::now() + SLICE_IS_SEEN;
        restart(rig, victim).await?;
        Ok(Self { kind: Kind::Hung, at, done, over })
    }

    /// Has its node lose power; the slice says so when the node controller has seen it.
    async fn silence(rig: &mut Rig, victim: usize) -> Result<Self> {
        let address = rig.replicas[victim].address();
        let at = Instant::now();
        let silence = Silence::of(address)?;
        rig.replicas[victim].process().pause()?;
        let done = Instant::now();
        tokio::time::sleep(SILENCE_IS_SEEN).await;
        rig.service.set_ready(address, false).await?;
        // Connections that were idle when the power went are tried again, one pod each, until their packets are given up.
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

    /// Those that were on their way when it happened.
    fn cut(&self) -> usize {
        self.lost.iter().filter(|created| created.sent <= self.fault.done).count()
    }

    /// How long after the fault the last one was sent that failed.
    fn last(&self) -> Duration {
        self.lost.iter().map(|created| created.sent.saturating_duration_since(self.fault.at)).max().unwrap_or_default()
    }

    fn check(&self) -> Result<()> {
        // A refused pod is one that is required; a pod without its sidecar is one that is not.
        for created in &self.lost {
            let as_labelled = match (&created.ended, created.level) {
                (Ended::Failed(why), Level::Required) => {
                    // It was cut, turned away, or waited in vain: the webhook has given no answer.
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
            // At another moment of the pods' way each time.
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
        ensure!(unaccounted.is_none() && accounted == lost.len(), "lost to no fault: {unaccounted:?}");
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
