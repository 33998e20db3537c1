//! Rotates certificates while pods are created: no creation fails, and every pod is injected, whatever happens to the
//! leader and to the API servers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use pillion_api::webhook_configuration::is_rehearsal;
use pillion_testkit::namespace::SECOND_API_SERVER;
use pillion_testkit::{ControlPlane, Isolation, TestCa, eventually, is_thorough};
use serde_json::json;

use crate::direct::metric;
use crate::load::{Load, count_from, tell};
use crate::managed::{Managed, QUICK, RELEASE, controller};
use crate::rbac::refusals;
use crate::rig::{SOON, base64, quickest};
use crate::rolling::nothing_is_lost;

/// The default number of rotations, which `PILLION_ROTATIONS` overrides.
const ROTATIONS: u64 = 8;
/// The limit for one rotation, with two busy cores.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// The limit for all of [`ROTATIONS`], and for up to a hundred. More take proportionally longer.
const ALL_WITHIN: Duration = Duration::from_mins(5);
/// The limit for repairing a webhook configuration.
const REPAIRED_WITHIN: Duration = Duration::from_secs(1);
/// Pods per second during a rotation.
pub(crate) const RATE: u64 = 15;
/// Pods per second during [`ROTATIONS`].
const ROTATIONS_RATE: u64 = 60;

/// The writes of a rotation in order: to the record, the webhook configuration and the serving certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// The record reached this phase.
    Record(&'static str),
    /// The configuration trusts this many CAs.
    Bundle(usize),
    /// The next CA has signed the serving certificate.
    Leaf,
}

impl Write {
    pub(crate) const ALL: [Self; 10] = [
        Self::Record("staged"),
        Self::Record("expanded"),
        Self::Bundle(2),
        Self::Record("switched"),
        Self::Leaf,
        Self::Record("verified"),
        Self::Record("soaking"),
        Self::Record("contracted"),
        Self::Bundle(1),
        Self::Record("stable"),
    ];

    /// Returns whether the observed state follows this write, or a later one.
    fn is_made(self, phase: &str, rotated: bool, bundle: usize, leaf: u64, next: u64) -> bool {
        const PHASES: [&str; 6] = ["staged", "expanded", "switched", "verified", "soaking", "contracted"];
        let at = |phase: &str| PHASES.iter().position(|known| *known == phase);
        let reached = |wanted: &str| rotated || at(phase) >= at(wanted);
        match self {
            Self::Record("stable") => rotated,
            Self::Record(wanted) => reached(wanted),
            Self::Bundle(2) => reached("expanded") && bundle == 2 || reached("switched"),
            Self::Bundle(_) => reached("contracted") && bundle == 1 || rotated,
            Self::Leaf => leaf >= next,
        }
    }
}

impl Managed {
    /// Waits until this write of the rotation to CA `next` has happened.
    pub(crate) async fn sees(&self, write: Write, next: u64) -> Result<()> {
        let end = Instant::now() + LIMIT;
        while Instant::now() < end {
            let (phase, active) = self.rotation().await?;
            if write.is_made(&phase, active >= next, self.trusted().await?, self.leaf().await?, next) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        bail!("{write:?} was not made within {LIMIT:?}")
    }
}

#[test]
fn rotations_lose_no_pod() {
    let rotations = count_from("PILLION_ROTATIONS", ROTATIONS, 1..=10_000).unwrap();
    let limit = Duration::from_secs(600 + 12 * rotations);
    Isolation::new().time_limit(limit).run(|| async move {
        let managed = Managed::start(ControlPlane::builder(), QUICK, 3, 2).await?;
        let first = managed.is_stable(1, LIMIT).await?;
        let load = Load::start_at(&managed.rig, ROTATIONS_RATE).await?;
        let began = Instant::now();
        let mut longest = Duration::ZERO;
        for number in 1..=rotations {
            let asked = Instant::now();
            managed.rotate()?;
            let generation = managed.is_stable(first + number, 2 * LIMIT).await?;
            ensure!(generation == first + number, "asked {number} times from {first} on, and this is {generation}");
            longest = longest.max(asked.elapsed());
        }
        let took = began.elapsed();
        load.answers(200).await?;
        let outcomes = load.stop().await?;
        outcomes.write_result("rotations", rotations)?;
        for running in managed.controllers.iter().chain(&managed.rig.replicas) {
            let log = running.log_text()?;
            ensure!(refusals(&log).is_empty(), "{}: {:#?}", running.address(), refusals(&log));
        }
        tell(&format!("{rotations} rotations in {took:.0?}, the longest {longest:.1?}: {outcomes}"));
        let all_within = ALL_WITHIN.max(Duration::from_secs(3 * rotations));
        ensure!(took < all_within, "{rotations} rotations took {took:?}");
        let pods = u64::try_from(outcomes.all.len())?;
        ensure!(pods >= 50 * took.as_secs(), "{pods} pods in {took:?} are less than 50 a second");
        nothing_is_lost(&outcomes)
    });
}

/// Runs rotations and disturbs the leader after each of its writes in turn. A short run uses every second write, and
/// different ones for each kind of `hit`.
async fn a_leader_that_is_hit(hit: Hit) -> Result<()> {
    let mut managed = Managed::start(ControlPlane::builder(), QUICK, 3, 2).await?;
    let mut active = managed.is_stable(1, LIMIT).await?;
    let load = Load::start_at(&managed.rig, RATE).await?;
    let mut took = Vec::new();
    let (first, step) = if is_thorough() { (0, 1) } else { (hit as usize, 2) };
    for write in Write::ALL.into_iter().skip(first).step_by(step) {
        let next = active + 1;
        managed.rotate()?;
        managed.sees(write, next).await?;
        let leader = managed.leader().await?;
        let place = managed.controllers.iter().position(|running| running.address() == leader);
        let place = place.with_context(|| format!("the leader {leader} is not one of the controllers"))?;
        let hit_at = Instant::now();
        match hit {
            Hit::Kill => managed.controllers[place].kill()?,
            Hit::Pause => managed.controllers[place].process().pause()?,
        }
        active = managed.is_stable(next, LIMIT).await.with_context(|| format!("hit after {write:?}"))?;
        took.push(hit_at.elapsed());
        match hit {
            Hit::Kill => {
                drop(managed.controllers.remove(place));
                managed.controllers.push(controller(&managed.spec, leader).await?);
            }
            // The paused leader continues with its next write, and finds that another has made it.
            Hit::Pause => managed.controllers[place].process().resume()?,
        }
        ensure!(active == next, "{write:?}: authority {active} instead of {next}");
    }
    load.answers(100).await?;
    let outcomes = load.stop().await?;
    tell(&format!("the leader was hit ({hit:?}) after {} writes, through after {took:.1?}: {outcomes}", took.len()));
    nothing_is_lost(&outcomes)
}

/// The disturbance of a leader.
#[derive(Clone, Copy, Debug)]
enum Hit {
    /// The leader is killed.
    Kill,
    /// The leader is paused until another has finished the rotation, and then continues.
    Pause,
}

#[test]
fn leader_killed_after_any_write_loses_nothing() {
    Isolation::new().time_limit(Duration::from_mins(15)).run(|| async { a_leader_that_is_hit(Hit::Kill).await });
}

#[test]
fn leader_paused_after_any_write_conflicts() {
    Isolation::new().time_limit(Duration::from_mins(15)).run(|| async { a_leader_that_is_hit(Hit::Pause).await });
}

#[test]
fn rotation_waits_for_hanging_api_server() {
    // Longer than the pause, so the timeout does not cause the result.
    let policy = QUICK.replace("propagationTimeout: 5s", "propagationTimeout: 25s");
    Isolation::new().own_network("runs a second API server").run(|| async move {
        let managed = Managed::start(ControlPlane::builder(), &policy, 3, 2).await?;
        let mut second = managed.rig.control_plane.second_api_server().await?;
        let active = managed.is_stable(1, LIMIT).await?;
        let load = Load::start_at(&managed.rig, RATE).await?;
        second.process().pause()?;
        let paused = Instant::now();
        managed.rotate()?;
        managed.sees(Write::Bundle(2), active + 1).await?;
        while paused.elapsed() < Duration::from_secs(10) {
            let (phase, _) = managed.rotation().await?;
            ensure!(phase == "expanded", "{phase}, {:?} after {SECOND_API_SERVER} was paused", paused.elapsed());
            load.answers(20).await?;
        }
        second.process().resume()?;
        managed.is_stable(active + 1, 2 * LIMIT).await?;
        let through = paused.elapsed();
        // The second API server trusts the current bundle, and calls the replicas.
        managed.is_called_by(&second.client(), "required").await?;

        // The controller waits for an API server that has ended only until the configured timeout.
        drop(second);
        let asked = Instant::now();
        managed.rotate()?;
        managed.is_stable(active + 2, 3 * LIMIT).await?;
        let without = asked.elapsed();
        ensure!(without > Duration::from_secs(20), "it was waited for {without:?} only");
        let outcomes = load.stop().await?;
        tell(&format!("one API server hung for 10 s: through after {through:.1?}; gone: {without:.1?}; {outcomes}"));
        nothing_is_lost(&outcomes)
    });
}

#[test]
fn a_stolen_key_is_replaced_without_soaking() {
    let policy = QUICK.replace("overlap: 200ms", "overlap: 1h");
    Isolation::new().run(|| async move {
        let managed = Managed::start(ControlPlane::builder(), &policy, 3, 1).await?;
        let active = managed.is_stable(1, LIMIT).await?;
        let load = Load::start_at(&managed.rig, RATE).await?;
        let told = managed.pillion(&["certs", "rotate", "--compromised", "--wait", "120"])?;
        ensure!(told.contains("stable since"), "{told}");
        ensure!(managed.is_stable(active + 1, SOON).await? == active + 1);
        let status = managed.pillion(&["certs", "status"])?;
        for expected in [
            &format!("authority     {} made", active + 1),
            &format!("certificate   of authority {}", active + 1),
            &format!("enabled.pillion.dev trusts authority {}", active + 1),
        ] {
            ensure!(status.contains(expected.as_str()), "{expected}: {status}");
        }
        let status: serde_json::Value = serde_json::from_str(&managed.pillion(&["certs", "status", "-o", "json"])?)?;
        ensure!(status["rotation"]["active"]["generation"] == active + 1, "{status:#}");
        ensure!(status["certificate"]["authority"] == active + 1, "{status:#}");
        ensure!(status["webhooks"][0]["authorities"] == serde_json::json!([active + 1]), "{status:#}");

        // Also during the next CA's soak, which would take an hour: then both are replaced.
        managed.rotate()?;
        managed.sees(Write::Record("soaking"), active + 2).await?;
        managed.pillion(&["certs", "rotate", "--compromised", "--wait", "120"])?;
        let last = managed.is_stable(active + 2, SOON).await?;
        ensure!(last == active + 3, "authority {last} instead of {}", active + 3);
        nothing_is_lost(&load.stop().await?)
    });
}

#[test]
fn damaged_secrets_are_recreated_without_lost_pods() {
    Isolation::new().run(|| async {
        let managed = Managed::start(ControlPlane::builder(), QUICK, 3, 2).await?;
        let mut active = managed.is_stable(1, LIMIT).await?;
        let load = Load::start_at(&managed.rig, RATE).await?;
        let mut took = Vec::new();
        for (damage, is_new) in Damage::ALL {
            let began = Instant::now();
            managed.damage(damage).await.with_context(|| format!("{damage:?}"))?;
            let least = active + u64::from(is_new);
            let mended = eventually(LIMIT, "both configurations match the target", async || {
                let (phase, generation) = managed.rotation().await?;
                let (leaf, trusted) = (managed.leaf().await?, managed.trusted().await?);
                ensure!(
                    phase == "stable" && generation >= least && leaf == generation && trusted == 1,
                    "{phase}, authority {generation} of {least}, leaf of {leaf}, {trusted} trusted"
                );
                Ok(generation)
            });
            active = mended.await.with_context(|| format!("{damage:?}"))?;
            ensure!(active == least, "{damage:?}: authority {active} instead of {least}");
            took.push((damage, began.elapsed()));
        }
        load.answers(100).await?;
        let outcomes = load.stop().await?;
        tell(&format!("mended: {took:.1?}; {outcomes}"));
        nothing_is_lost(&outcomes)
    });
}

#[test]
fn damaged_webhook_configuration_is_restored_within_second() {
    Isolation::new().run(|| async {
        let managed = Managed::start(ControlPlane::builder(), QUICK, 3, 2).await?;
        managed.is_stable(1, LIMIT).await?;
        let configurations = managed.configurations();
        // Pods are injected and the rotation is complete before the connectivity check passes. Failed calls reject no
        // pod until then, so that state is not final.
        let whole = eventually(LIMIT * 2, "the connectivity check has ended", async || {
            let there = configurations.get(RELEASE).await?;
            ensure!(!is_rehearsal(&there, RELEASE), "it goes on");
            Ok(there.webhooks)
        })
        .await?;
        ensure!(whole.as_ref().is_some_and(|entries| entries.len() >= 4), "{whole:?}");
        let stranger = TestCa::new()?.bundle_pem();
        let bundle = "/webhooks/0/clientConfig/caBundle";
        let damages = [
            ("the bundle emptied", Some(json!([{"op": "replace", "path": bundle, "value": ""}]))),
            ("the bundle replaced by junk", Some(json!([{"op": "replace", "path": bundle, "value": base64("junk")}]))),
            ("a stranger's bundle", Some(json!([{"op": "replace", "path": bundle, "value": base64(&stranger)}]))),
            ("an entry deleted", Some(json!([{"op": "remove", "path": "/webhooks/1"}]))),
            (
                "the policy changed",
                Some(json!([{"op": "replace", "path": "/webhooks/1/failurePolicy", "value": "Ignore"}])),
            ),
            ("the whole deleted", None),
        ];
        let mut took = Vec::new();
        for (what, damage) in damages {
            let mut number = 0;
            let mended = quickest(REPAIRED_WITHIN, what, async || {
                // Frequent repairs against one writer count as contention and are slowed down, so the writers' names
                // differ.
                number += 1;
                let writer = format!("{what} {number}");
                let began = Instant::now();
                match &damage {
                    Some(damage) => {
                        let damage: json_patch::Patch = serde_json::from_value(damage.clone())?;
                        let parameters = PatchParams { field_manager: Some(writer), ..PatchParams::default() };
                        configurations.patch(RELEASE, &parameters, &Patch::<()>::Json(damage)).await?;
                    }
                    None => drop(configurations.delete(RELEASE, &DeleteParams::default()).await?),
                }
                eventually(SOON, what, async || {
                    let there = configurations.get_opt(RELEASE).await?.and_then(|there| there.webhooks);
                    ensure!(there == whole, "{there:?}");
                    Ok(began.elapsed())
                })
                .await
            });
            took.push((what, mended.await?));
        }
        tell(&format!("as it was: {took:.0?}"));
        managed.rig.is_called("team-a").await
    });
}

/// An object that contains the epoch of its writer.
#[derive(Clone, Copy, Debug)]
enum Marked {
    Mutating,
    Validating,
    Leaf,
}

const EPOCH: &str = "pillion.dev/epoch";

impl Managed {
    /// Returns an object's epoch.
    async fn epoch_of(&self, marked: Marked) -> Result<String> {
        let metadata = match marked {
            Marked::Mutating => self.configurations().get(RELEASE).await?.metadata,
            Marked::Validating => self.validating().get(RELEASE).await?.metadata,
            Marked::Leaf => self.secrets().get(&format!("{RELEASE}-serving")).await?.metadata,
        };
        metadata.annotations.and_then(|mut all| all.remove(EPOCH)).context("an epoch")
    }

    async fn raise(&self, marked: Marked, epoch: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {EPOCH: epoch}}}));
        let parameters = PatchParams { field_manager: Some("somebody".to_owned()), ..PatchParams::default() };
        match marked {
            Marked::Mutating => drop(self.configurations().patch(RELEASE, &parameters, &patch).await?),
            Marked::Validating => drop(self.validating().patch(RELEASE, &parameters, &patch).await?),
            Marked::Leaf => drop(self.secrets().patch(&format!("{RELEASE}-serving"), &parameters, &patch).await?),
        }
        Ok(())
    }

    /// Waits until the object's epoch is one that the record has reached.
    async fn is_written_over(&self, marked: Marked) -> Result<()> {
        eventually(LIMIT, "the epoch is overwritten", async || {
            let (epoch, record) = (self.epoch_of(marked).await?, self.record().await?["epoch"].as_u64());
            let epoch: Option<u64> = epoch.parse().ok();
            ensure!(epoch.is_some() && epoch <= record, "{marked:?}: {epoch:?}, and the record has {record:?}");
            Ok(())
        })
        .await
    }

    fn validating(&self) -> Api<ValidatingWebhookConfiguration> {
        Api::all(self.rig.control_plane.client())
    }
}

#[test]
fn foreign_epoch_is_overwritten_without_rotation() {
    let policy = QUICK.replace("overlap: 200ms", "overlap: 8s");
    Isolation::new().run(|| async move {
        let managed = Managed::start(ControlPlane::builder(), &policy, 3, 1).await?;
        let active = managed.is_stable(1, LIMIT).await?;
        let load = Load::start_at(&managed.rig, RATE).await?;
        let all = [Marked::Mutating, Marked::Validating, Marked::Leaf];
        // One more, many more, the maximum, more than the maximum, and an invalid one.
        for epoch in ["2", "1000", "9007199254740992", "9223372036854775808", "junk"] {
            for marked in all {
                managed.raise(marked, epoch).await?;
                managed.is_written_over(marked).await.with_context(|| epoch.to_owned())?;
                let (phase, generation) = managed.rotation().await?;
                ensure!(phase == "stable" && generation == active, "{marked:?} {epoch}: {phase}, {generation}");
            }
        }
        managed.rotate()?;
        managed.sees(Write::Record("soaking"), active + 1).await?;
        for marked in all {
            managed.raise(marked, "1000").await?;
            managed.is_written_over(marked).await?;
        }
        let rotated = managed.is_stable(active + 1, LIMIT).await?;
        ensure!(rotated == active + 1, "authority {rotated} instead of {}", active + 1);
        let controller = &managed.controllers[0];
        let disbelieved = metric(controller, "pillion_controller_rotation_epochs_disbelieved_total").await?;
        ensure!(disbelieved >= 12.0, "{disbelieved} were reported");
        let log = controller.log_text()?;
        ensure!(
            log.contains("manager=\"somebody\"") && log.contains("another client wrote a higher pillion.dev/epoch")
        );
        nothing_is_lost(&load.stop().await?)
    });
}

/// Damage to the Secrets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Damage {
    /// The Secret of the serving certificate is deleted.
    LeafDeleted,
    /// Its key belongs to another certificate.
    LeafWithAnotherKey,
    /// Its certificate is for another name.
    LeafForAnotherName,
    /// Its certificate is not PEM.
    LeafJunk,
    /// The record's Secret is deleted.
    RecordDeleted,
    /// Its record is invalid.
    RecordJunk,
    /// The CA's key belongs to another CA.
    AuthorityWithAnotherKey,
    /// Both Secrets are deleted.
    BothDeleted,
}

impl Damage {
    /// All kinds of damage, and whether the repair needs a new CA.
    const ALL: [(Self, bool); 8] = [
        (Self::LeafDeleted, false),
        (Self::LeafWithAnotherKey, false),
        (Self::LeafForAnotherName, false),
        (Self::LeafJunk, false),
        (Self::RecordDeleted, true),
        (Self::RecordJunk, true),
        (Self::AuthorityWithAnotherKey, true),
        (Self::BothDeleted, true),
    ];
}
