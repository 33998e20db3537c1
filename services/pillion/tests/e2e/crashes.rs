//! Kills and pauses replicas, and silences their nodes, while pods are created. Requests in flight there may fail, and
//! others only for a short time.
//!
//! The test plays the kubelet and the endpoint slice controller, with their usual delays. The address of a killed
//! container stays and refuses connections at once. The kubelet notices its end within a second and updates the slice.
//! Until then the API server also connects to that address: it picks a random endpoint and does not try another one. So
//! some pods are cut off and some are refused; both end once the slice is up to date.

use std::fmt::{self, Display};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pillion_testkit::{Isolation, Replica, Silence};

use crate::load::{Created, Ended, Level, Load, Outcomes, count_from, tell};
use crate::rig::Rig;

const REPLICAS: u8 = 3;
/// The default number of kills, which `PILLION_KILLS` overrides.
const KILLS: u64 = 2;
/// The number of pods between two faults.
const BETWEEN: u64 = 120;
/// The increment of the delay between sending a batch of pods and each kill.
const STEP: Duration = Duration::from_millis(3);
/// How long the kubelet takes to notice that a container has ended.
const END_IS_SEEN: Duration = Duration::from_secs(1);
/// How long the kubelet's probes take to detect a hanging container and to kill it.
const HANG_IS_SEEN: Duration = Duration::from_secs(3);
/// How long the node controller takes to notice a silent node. Most clusters need forty seconds, and the number of lost
/// pods is proportional.
const SILENCE_IS_SEEN: Duration = Duration::from_secs(12);
/// How long the API server takes to observe a new slice.
const SLICE_IS_SEEN: Duration = Duration::from_secs(1);
/// The idle connections that an API server keeps to a webhook: the maximum that one replica can hold in flight for
/// long.
const POOL: usize = 25;

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// SIGKILL and an immediate restart, before the kubelet notices: the slice shows the replica as ready throughout.
    Restarted,
    /// SIGKILL.
    Killed,
    /// SIGSTOP, and SIGKILL later.
    Hung,
    /// The node has no power: its address neither responds nor refuses connections.
    Silent,
}

#[derive(Debug)]
struct Fault {
    kind: Kind,
    at: Instant,
    /// When the signal had taken effect.
    done: Instant,
    /// Requests that are sent later must not fail.
    over: Instant,
}

/// The damage of a fault.
struct Damage<'o> {
    fault: &'o Fault,
    lost: Vec<&'o Created>,
}

impl Fault {
    /// Kills a replica, and restarts it once the kubelet has noticed.
    async fn kill(rig: &mut Rig, victim: usize) -> Result<Self> {
        let address = rig.replicas[victim].address();
        let at = Instant::now();
        rig.replicas[victim].kill()?;
        let done = Instant::now();
        tokio::time::sleep(END_IS_SEEN).await;
        rig.service.set_ready(address, false).await?;
        let seen = Instant::now() + SLICE_IS_SEEN;
        restart(rig, victim).await?;
        // On a busy machine the API server may notice late, and is refused until the replica is back.
        let over = seen.max(Instant::now());
        Ok(Self { kind: Kind::Killed, at, done, over })
    }

    /// Kills a replica and restarts it at once.
    async fn restart(rig: &mut Rig, victim: usize) -> Result<Self> {
        let at = Instant::now();
        rig.replicas[victim].kill()?;
        let done = Instant::now();
        restart(rig, victim).await?;
        let over = Instant::now() + SLICE_IS_SEEN;
        Ok(Self { kind: Kind::Restarted, at, done, over })
    }

    /// Pauses a replica. Its probes fail, the slice marks it as not ready, and it is killed while it still does not
    /// respond.
    async fn hang(rig: &mut Rig, victim: usize) -> Result<Self> {
        let address = rig.replicas[victim].address();
        let at = Instant::now();
        rig.replicas[victim].process().pause()?;
        let done = Instant::now();
        tokio::time::sleep(HANG_IS_SEEN).await;
        rig.service.set_ready(address, false).await?;
        tokio::time::sleep(HANG_IS_SEEN).await;
        rig.replicas[victim].kill()?;
        // Its idle connections end too, on each of which one pod may have waited.
        let over = Instant::now() + SLICE_IS_SEEN;
        restart(rig, victim).await?;
        Ok(Self { kind: Kind::Hung, at, done, over })
    }

    /// Cuts a node's power. The slice is updated once the node controller has noticed.
    async fn silence(rig: &mut Rig, victim: usize) -> Result<Self> {
        let address = rig.replicas[victim].address();
        let at = Instant::now();
        let silence = Silence::of(address)?;
        rig.replicas[victim].process().pause()?;
        let done = Instant::now();
        tokio::time::sleep(SILENCE_IS_SEEN).await;
        rig.service.set_ready(address, false).await?;
        // The API server retries idle connections, with one pod each, until their packets time out.
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

    /// Counts the lost pods that were in flight when the fault happened.
    fn cut(&self) -> usize {
        self.lost.iter().filter(|created| created.sent <= self.fault.done).count()
    }

    /// Returns the delay from the fault to the last request that failed.
    fn last(&self) -> Duration {
        self.lost.iter().map(|created| created.sent.saturating_duration_since(self.fault.at)).max().unwrap_or_default()
    }

    fn check(&self) -> Result<()> {
        // A rejected pod must be a required one; a pod without its sidecar must not be.
        for created in &self.lost {
            let as_labelled = match (&created.ended, created.level) {
                (Ended::Failed(why), Level::Required) => {
                    // The request was cut off, refused or timed out: the webhook has not responded.
                    why.contains("failed to call webhook: Post") && why.contains("required.pillion.dev")
                }
                (Ended::NotInjected, Level::Enabled) => true,
                _ => false,
            };
            ensure!(as_labelled, "{created:?}");
        }
        let kind = self.fault.kind;
        ensure!(self.cut() <= POOL, "{} pods were in flight on a replica that was {kind:?}", self.cut());
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
            // Each kill happens at another stage of the requests.
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
