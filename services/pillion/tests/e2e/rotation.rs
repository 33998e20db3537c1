//! Certificates are rotated while pods are created all the time: none fails and none is missed, whatever becomes of the
//! leader and of the API servers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kube::api::{DeleteParams, Patch, PatchParams};
use pillion_testkit::namespace::SECOND_API_SERVER;
use pillion_testkit::{ControlPlane, Isolation, TestCa, eventually};
use serde_json::json;

use crate::load::{Load, alone, count_from, tell};
use crate::managed::{Managed, QUICK, RELEASE, controller};
use crate::rbac::refusals;
use crate::rig::SOON;
use crate::rolling::nothing_is_lost;

/// Rotations, unless `PILLION_ROTATIONS` says otherwise.
const ROTATIONS: u64 = 25;
/// How long one may take, with a machine of two cores busy.
const LIMIT: Duration = Duration::from_secs(30);
/// Pods a second meanwhile.
const RATE: u64 = 60;

/// The writes of a rotation, in their order: to the record, to the webhook configuration, to the leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    /// The record came to this phase.
    Record(&'static str),
    /// The configuration trusts so many authorities.
    Bundle(usize),
    /// The leaf is of the next authority.
    Leaf,
}

impl Write {
    const ALL: [Self; 10] = [
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

    /// Whether it was made: what is there is as it is after it, or after a later one.
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
    /// Waits, without a pause, until a write of the rotation to authority `next` was made.
    async fn sees(&self, write: Write, next: u64) -> Result<()> {
        let end = Instant::now() + LIMIT;
        while Instant::now() < end {
            let (phase, active) = self.rotation().await?;
            if write.is_made(&phase, active >= next, self.trusted().await?, self.leaf().await?, next) {
                return Ok(());
            }
        }
        bail!("{write:?} was not made within {LIMIT:?}")
    }
}

#[test]
fn rotations_lose_no_pod() {
    let rotations = count_from("PILLION_ROTATIONS", ROTATIONS, 1..=10_000).unwrap();
    let _alone = alone();
    let limit = Duration::from_secs(180 + 12 * rotations);
    Isolation::new().time_limit(limit).run(|| async move {
        let managed = Managed::start(ControlPlane::builder(), QUICK, 3, 2).await?;
        let first = managed.is_stable(1, LIMIT).await?;
        let load = Load::start_at(&managed.rig, RATE).await?;
        let began = Instant::now();
        let mut longest = Duration::ZERO;
        for number in 1..=rotations {
            let asked = Instant::now();
            managed.rotate()?;
            let generation = managed.is_stable(first + number, LIMIT).await?;
            ensure!(generation == first + number, "asked {number} times from {first} on, and this is {generation}");
            longest = longest.max(asked.elapsed());
        }
        let took = began.elapsed();
        load.answers(200).await?;
        let outcomes = load.stop().await?;
        for running in managed.controllers.iter().chain(&managed.rig.replicas) {
            let log = running.log_text()?;
            ensure!(refusals(&log).is_empty(), "{}: {:#?}", running.address(), refusals(&log));
        }
        tell(&format!("{rotations} rotations in {took:.0?}, the longest {longest:.1?}: {outcomes}"));
        ensure!(took < Duration::from_secs(3 * rotations.max(20)), "{rotations} rotations took {took:?}");
        let pods = u64::try_from(outcomes.all.len())?;
        ensure!(pods >= 50 * took.as_secs(), "{pods} pods in {took:?} are less than 50 a second");
        nothing_is_lost(&outcomes)
    });
}

/// A rotation in which the leader is hit after each of its writes in turn, as `hit` says. How long each took to be through.
async fn a_leader_that_is_hit(writes: &[Write], hit: Hit) -> Result<()> {
    let mut managed = Managed::start(ControlPlane::builder(), QUICK, 3, 2).await?;
    let mut active = managed.is_stable(1, LIMIT).await?;
    let load = Load::start_at(&managed.rig, RATE).await?;
    let mut took = Vec::new();
    for write in writes {
        let next = active + 1;
        managed.rotate()?;
        managed.sees(*write, next).await?;
        let leader = managed.leader().await?;
        let place = managed.controllers.iter().position(|running| running.address() == leader);
        let place = place.with_context(|| format!("{leader} leads, and is none of ours"))?;
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
            // It goes on with what it was about to do, and finds that others did.
            Hit::Pause => managed.controllers[place].process().resume()?,
        }
        ensure!(active == next, "{write:?}: authority {active} instead of {next}");
    }
    load.answers(100).await?;
    let outcomes = load.stop().await?;
    tell(&format!("the leader was hit ({hit:?}) after {} writes, through after {took:.1?}: {outcomes}", writes.len()));
    nothing_is_lost(&outcomes)
}

/// What becomes of a leader.
#[derive(Clone, Copy, Debug)]
enum Hit {
    /// It is gone at once.
    Kill,
    /// It stands still until another has done its work, and then goes on.
    Pause,
}

#[test]
fn a_leader_that_is_killed_after_any_write_is_replaced_and_no_pod_is_lost() {
    let _alone = alone();
    Isolation::new()
        .time_limit(Duration::from_mins(8))
        .run(|| async { a_leader_that_is_hit(&Write::ALL, Hit::Kill).await });
}

#[test]
fn a_leader_that_is_paused_after_any_write_loses_by_conflict_and_no_pod_is_lost() {
    let _alone = alone();
    Isolation::new()
        .time_limit(Duration::from_mins(8))
        .run(|| async { a_leader_that_is_hit(&Write::ALL, Hit::Pause).await });
}

#[test]
fn an_api_server_that_hangs_keeps_the_rotation_waiting() {
    let _alone = alone();
    // Longer than the pause: it is not that the time was over.
    let policy = QUICK.replace("propagationTimeout: 5s", "propagationTimeout: 25s");
    Isolation::new().time_limit(Duration::from_mins(4)).run(|| async move {
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
        managed.is_stable(active + 1, LIMIT).await?;
        let through = paused.elapsed();
        // It trusts whom it ought to, and calls them.
        managed.is_called_by(&second.client(), "required").await?;

        // One that is gone for good is waited for as long as the settings say, and no longer.
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
    let _alone = alone();
    let policy = QUICK.replace("overlap: 200ms", "overlap: 1h");
    Isolation::new().run(|| async move {
        let managed = Managed::start(ControlPlane::builder(), &policy, 3, 1).await?;
        let active = managed.is_stable(1, LIMIT).await?;
        let load = Load::start_at(&managed.rig, RATE).await?;
        let told = managed.pillion(&["certs", "rotate", "--compromised", "--wait", "60"])?;
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

        // Also while the next one is soaking, which would take an hour: then both are replaced.
        managed.rotate()?;
        managed.sees(Write::Record("soaking"), active + 2).await?;
        managed.pillion(&["certs", "rotate", "--compromised", "--wait", "60"])?;
        let last = managed.is_stable(active + 2, SOON).await?;
        ensure!(last == active + 3, "authority {last} instead of {}", active + 3);
        nothing_is_lost(&load.stop().await?)
    });
}

#[test]
fn what_is_lost_or_damaged_is_made_anew_and_no_pod_is_lost() {
    let _alone = alone();
    Isolation::new().time_limit(Duration::from_mins(5)).run(|| async {
        let managed = Managed::start(ControlPlane::builder(), QUICK, 3, 2).await?;
        let mut active = managed.is_stable(1, LIMIT).await?;
        let load = Load::start_at(&managed.rig, RATE).await?;
        let mut took = Vec::new();
        for (damage, is_new) in Damage::ALL {
            let began = Instant::now();
            managed.damage(damage).await.with_context(|| format!("{damage:?}"))?;
            let least = active + u64::from(is_new);
            let mended = eventually(LIMIT, "all is as it ought to be", async || {
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
fn a_webhook_configuration_that_is_damaged_is_as_it_was_within_a_second() {
    let _alone = alone();
    Isolation::new().run(|| async {
        let managed = Managed::start(ControlPlane::builder(), QUICK, 3, 2).await?;
        managed.is_stable(1, LIMIT).await?;
        let configurations = managed.configurations();
        let whole = configurations.get(RELEASE).await?.webhooks;
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
            // Repairs that follow one another closely are taken for a fight, and paced.
            let began = Instant::now();
            match damage {
                Some(damage) => {
                    let damage: json_patch::Patch = serde_json::from_value(damage)?;
                    let parameters = PatchParams { field_manager: Some(what.to_owned()), ..PatchParams::default() };
                    configurations.patch(RELEASE, &parameters, &Patch::<()>::Json(damage)).await?;
                }
                None => drop(configurations.delete(RELEASE, &DeleteParams::default()).await?),
            }
            let mended = eventually(SOON, what, async || {
                let there = configurations.get_opt(RELEASE).await?.and_then(|there| there.webhooks);
                ensure!(there == whole, "{there:?}");
                Ok(began.elapsed())
            });
            took.push((what, mended.await?));
        }
        tell(&format!("as it was: {took:.0?}"));
        for (what, took) in took {
            ensure!(took < Duration::from_secs(1), "{what}: {took:?}");
        }
        managed.rig.is_called("team-a").await
    });
}

/// As it stands in JSON.
fn base64(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// What somebody does to the Secrets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Damage {
    /// The leaf's Secret is deleted.
    LeafDeleted,
    /// Its key is another's.
    LeafWithAnotherKey,
    /// Its certificate is for another name.
    LeafForAnotherName,
    /// Its certificate is no text.
    LeafJunk,
    /// The record's Secret is deleted.
    RecordDeleted,
    /// Its record is no text.
    RecordJunk,
    /// The authority's key is another's.
    AuthorityWithAnotherKey,
    /// Both are deleted.
    BothDeleted,
}

impl Damage {
    /// Each, and whether it takes a new authority.
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
