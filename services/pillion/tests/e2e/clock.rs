//! Clock jumps: no rotation step is early or skipped, and every new certificate is valid by the API server's clock,
//! which is the reference.
//!
//! The controllers and replicas are processes of the real program with moved clocks ([`pillion_testkit::moved_clock`]).
//! So all its uses of time are tested without test code in the program, including the TLS library. A proxy that changes
//! the API server's `Date` header would test only the comparison. If all of Pillion has a moved clock, the effect is
//! that of an API server with a wrong clock.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use pillion_control::Release;
use pillion_control::certificates::authority::ValidCertificate;
use pillion_control::certificates::{rotation, serving_secret};
use pillion_control::release::DEFAULT_CLUSTER_DOMAIN;
use pillion_testkit::namespace::replica_address;
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, Isolation, MovedClock, Replica, eventually, is_thorough};
use serde_json::json;

use crate::direct::metric;
use crate::load::{Load, tell};
use crate::managed::{Managed, QUICK, RELEASE, controller};
use crate::rig::{PATIENCE, quickest};
use crate::rolling::nothing_is_lost;
use crate::rotation::{Damage, LIMIT, RATE, Write};

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;
/// The number of idle rotation cycles to wait for, at one a second, to show that nothing happens late either.
const TURNS: u32 = 3;

/// The limit for repairing a bundle.
const REPAIRED_WITHIN: Duration = Duration::from_secs(1);

/// The first addresses of controllers and replicas with moved clocks.
const CONTROLLERS: u8 = 121;
const REPLICAS: u8 = 21;

impl Managed {
    /// Replaces the controllers by ones with these clocks.
    async fn controllers_by(&mut self, clocks: &[&MovedClock]) -> Result<()> {
        let before = std::mem::take(&mut self.controllers);
        for (number, clock) in (CONTROLLERS..).zip(clocks) {
            let mut spec = self.spec.clone();
            spec.env.extend(clock.environment());
            self.controllers.push(controller(&spec, replica_address(number)).await?);
        }
        for mut before in before {
            before.terminate(PATIENCE).await?;
        }
        eventually(PATIENCE, "one of the controllers leads", async || self.leading().await.map(drop)).await
    }

    /// Replaces the replicas by ones with this clock.
    async fn replicas_by(&mut self, clock: &MovedClock, count: u8) -> Result<()> {
        let mut spec = self.rig.spec.clone();
        spec.env.extend(clock.environment());
        let mut replicas = Vec::new();
        for number in (REPLICAS..).take(count.into()) {
            let replica = Replica::start(&spec, replica_address(number)).await?;
            self.rig.service.set_ready(replica.address(), true).await?;
            replicas.push(replica);
        }
        for before in std::mem::replace(&mut self.rig.replicas, replicas) {
            self.rig.service.remove(before.address()).await?;
        }
        Ok(())
    }

    /// Returns the leader once it reports the state of its rotation.
    async fn leading(&self) -> Result<&Replica> {
        let leader = self.leader().await?;
        let leading = self.controllers.iter().find(|running| running.address() == leader);
        let leading = leading.with_context(|| format!("the leader {leader} is not one of the controllers"))?;
        ensure!(metric(leading, "pillion_controller_rotation_last_look_seconds").await? > 0.0, "no turn yet");
        Ok(leading)
    }

    /// Returns the index of the leading controller.
    async fn leads(&self) -> Result<usize> {
        let leader = self.leading().await?.address();
        self.controllers.iter().position(|running| running.address() == leader).context("it is one of the controllers")
    }

    /// Waits until the leader reports that its clock is this far ahead, and that it waits for nothing else.
    async fn differs(&self, ahead: i64) -> Result<()> {
        eventually(PATIENCE, "the leader reports that the clocks differ", async || {
            let leading = self.leading().await?;
            #[expect(clippy::cast_precision_loss, reason = "seconds")]
            let told = metric(leading, "pillion_controller_clock_difference_seconds").await? - ahead as f64;
            ensure!(told.abs() < 5.0, "{told} s from {ahead} s");
            ensure!(metric(leading, "pillion_controller_clock_agrees").await? < 0.5, "it reports that they agree");
            ensure!(
                metric(leading, "pillion_controller_rotation_blocked{reason=\"clock\"}").await? > 0.5,
                "it goes on"
            );
            Ok(())
        })
        .await
    }

    /// Waits until the leader reports that the clocks agree.
    async fn agrees(&self) -> Result<()> {
        eventually(PATIENCE, "the leader reports that the clocks agree", async || {
            let leading = self.leading().await?;
            ensure!(metric(leading, "pillion_controller_clock_agrees").await? > 0.5, "it reports that they differ");
            ensure!(metric(leading, "pillion_controller_rotation_blocked{reason=\"clock\"}").await? < 0.5, "blocked");
            Ok(())
        })
        .await
    }

    /// Waits for some cycles of the rotation.
    async fn turns(&self) -> Result<()> {
        let mut last = 0.0;
        for _ in 0..TURNS {
            last = eventually(PATIENCE, "the rotation runs a cycle", async || {
                let look = metric(self.leading().await?, "pillion_controller_rotation_last_look_seconds").await?;
                ensure!((look - last).abs() > 0.5, "none since {last}");
                Ok(look)
            })
            .await?;
        }
        Ok(())
    }

    /// Returns the versions of both Secrets.
    async fn versions(&self) -> Result<[Option<String>; 2]> {
        let mut versions = [None, None];
        for (version, name) in versions.iter_mut().zip(["authority", "serving"]) {
            let secret = self.secrets().get_opt(&format!("{RELEASE}-{name}")).await?;
            *version = secret.and_then(|secret| secret.resource_version());
        }
        Ok(versions)
    }

    /// Returns the serving certificate, which must be valid by the machine's clock, as the API server uses it.
    async fn valid_leaf(&self) -> Result<ValidCertificate> {
        let release = Release::new(RELEASE, NAMESPACE, DEFAULT_CLUSTER_DOMAIN)?;
        let secret = self.secrets().get(&format!("{RELEASE}-serving")).await?;
        let now = Timestamp::now();
        let fit = serving_secret::judge(&secret, &release.server_names(), now)?;
        ensure!(fit.not_before <= now && now < fit.not_after, "at {now}: {fit:?}");
        Ok(fit)
    }

    /// Empties a bundle, and returns the time until it is restored.
    async fn repairs_a_bundle(&self) -> Result<Duration> {
        // Uses an entry that the load does not call, since calls without a bundle would fail.
        let entries = self.configurations().get(RELEASE).await?.webhooks.context("entries")?;
        let of_load = ["enabled.pillion.dev", "required.pillion.dev"];
        let place =
            entries.iter().position(|entry| !of_load.contains(&entry.name.as_str())).context("another entry")?;
        let path = format!("/webhooks/{place}/clientConfig/caBundle");
        let emptied: json_patch::Patch = serde_json::from_value(json!([{"op": "replace", "path": path, "value": ""}]))?;
        let (parameters, emptied) = (PatchParams::default(), Patch::<()>::Json(emptied));
        quickest(REPAIRED_WITHIN, "the bundle emptied", async || {
            let began = Instant::now();
            self.configurations().patch(RELEASE, &parameters, &emptied).await?;
            eventually(PATIENCE, "the bundle is restored", async || {
                ensure!(self.trusted().await? == 1);
                Ok(())
            })
            .await?;
            Ok(began.elapsed())
        })
        .await
    }

    /// Waits until the leader reports this phase, and checks that it stays in it for this long.
    async fn stays(&self, phase: &str, long: Duration) -> Result<()> {
        let since = Instant::now();
        while since.elapsed() < long {
            let (now, _) = self.rotation().await?;
            ensure!(now == phase, "{now} after {:?}", since.elapsed());
            self.valid_leaf().await?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

#[test]
fn clock_jump_changes_nothing_and_recovers() {
    Isolation::new().time_limit(Duration::from_mins(15)).run(|| async {
        let mut managed = Managed::start(ControlPlane::builder(), QUICK, 1, 1).await?;
        let (controllers, replicas) = (MovedClock::new("controllers")?, MovedClock::new("replicas")?);
        managed.controllers_by(&[&controllers, &controllers]).await?;
        managed.replicas_by(&replicas, 3).await?;
        let active = managed.is_stable(1, LIMIT).await?;
        managed.agrees().await?;
        let load = Load::start_at(&managed.rig, RATE).await?;
        let before = managed.versions().await?;
        // The serving certificate is due; the CA is due; both have expired; nothing is valid yet; not even a CA exists.
        let jumps = [5 * DAY, 200 * DAY, 3 * 365 * DAY, -5 * HOUR, -300 * DAY];
        let all_jumps = jumps.into_iter().flat_map(|ahead| [(ahead, false), (ahead, true)]);
        // Each jump takes about 15 seconds, so a normal run tests every third.
        let jumps: Vec<_> = all_jumps.step_by(if is_thorough() { 1 } else { 3 }).collect();
        for &(ahead, all) in &jumps {
            controllers.ahead_by(ahead)?;
            // If the replicas' clocks move too, it is the API server's clock that is wrong.
            replicas.ahead_by(if all { ahead } else { 0 })?;
            managed.differs(ahead).await?;
            managed.turns().await?;
            load.answers(60).await?;
            controllers.ahead_by(0)?;
            replicas.ahead_by(0)?;
            managed.agrees().await?;
            managed.turns().await?;
            let after = managed.versions().await?;
            ensure!(after == before, "{ahead} s ahead: {after:?} instead of {before:?}");
        }
        let events: Api<Event> = Api::namespaced(managed.rig.control_plane.client(), NAMESPACE);
        let about = ListParams::default().fields("reason=ClocksDiffer");
        eventually(PATIENCE, "Events report it", async || {
            let told: BTreeSet<_> =
                events.list(&about).await?.items.into_iter().filter_map(|event| event.type_).collect();
            ensure!(told == BTreeSet::from(["Normal".to_owned(), "Warning".to_owned()]), "{told:?}");
            Ok(())
        })
        .await?;
        // Includes the logs of earlier leaders.
        let told: String = managed.controllers.iter().map(Replica::log_text).collect::<Result<_>>()?;
        for line in ["this clock and the API server's differ by minutes", "certificates are as they should be"] {
            ensure!(told.contains(line), "{line:?} is not in the log");
        }

        // Requested rotations and lost Secrets wait, but the CA bundle is published whatever the time.
        controllers.ahead_by(5 * DAY)?;
        managed.differs(5 * DAY).await?;
        managed.rotate()?;
        managed.damage(Damage::LeafDeleted).await?;
        let repaired = managed.repairs_a_bundle().await?;
        managed.turns().await?;
        let [record, leaf] = managed.versions().await?;
        ensure!(record == before[0] && leaf.is_none(), "{record:?}, {leaf:?} while the clocks differ");
        controllers.ahead_by(0)?;
        let rotated = managed.is_stable(active + 1, LIMIT).await?;
        ensure!(rotated == active + 1 && managed.leaf().await? == rotated, "authority {rotated}");
        managed.valid_leaf().await?;
        let outcomes = load.stop().await?;
        tell(&format!("{} jumps; a bundle repaired meanwhile in {repaired:.0?}; {outcomes}", jumps.len() + 1));
        nothing_is_lost(&outcomes)
    });
}

#[test]
fn rotation_survives_clock_jump_after_each_write() {
    Isolation::new().time_limit(Duration::from_mins(15)).run(|| async {
        let mut managed = Managed::start(ControlPlane::builder(), QUICK, 3, 1).await?;
        let clock = MovedClock::new("controllers")?;
        managed.controllers_by(&[&clock, &clock]).await?;
        let mut active = managed.is_stable(1, LIMIT).await?;
        let load = Load::start_at(&managed.rig, RATE).await?;
        let mut took = Vec::new();
        let jumps = [10 * DAY, -5 * HOUR, 400 * DAY];
        let cases: Vec<_> = if is_thorough() {
            jumps.into_iter().flat_map(|ahead| Write::ALL.map(|write| (ahead, write))).collect()
        } else {
            // Tests each write once, and each jump with every third write.
            jumps.into_iter().cycle().zip(Write::ALL).collect()
        };
        for (ahead, write) in cases {
            let next = active + 1;
            managed.rotate()?;
            managed.sees(write, next).await?;
            clock.ahead_by(ahead)?;
            let jumped = Instant::now();
            while jumped.elapsed() < Duration::from_millis(1_500) {
                managed.valid_leaf().await.with_context(|| format!("{ahead} s ahead after {write:?}"))?;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            clock.ahead_by(0)?;
            let right = Instant::now();
            active = managed.is_stable(next, LIMIT).await.with_context(|| format!("{ahead} s, {write:?}"))?;
            took.push(right.elapsed());
            ensure!(active == next, "{ahead} s ahead after {write:?}: authority {active} instead of {next}");
            ensure!(managed.leaf().await? == active && managed.trusted().await? == 1, "{ahead} s, {write:?}");
        }
        load.answers(100).await?;
        let outcomes = load.stop().await?;
        let longest = took.iter().max().copied().unwrap_or_default();
        tell(&format!("{} jumps in a rotation, through at most {longest:.1?} after: {outcomes}", took.len()));
        nothing_is_lost(&outcomes)
    });
}

#[test]
fn a_clock_that_jumps_ahead_shortens_no_wait() {
    let overlap = Duration::from_secs(10);
    let policy = QUICK.replace("overlap: 200ms", "overlap: 10s").replace("Timeout: 5s", "Timeout: 60s");
    Isolation::new().own_network("runs a second API server").run(|| async move {
        let mut managed = Managed::start(ControlPlane::builder(), &policy, 3, 1).await?;
        let clock = MovedClock::new("controllers")?;
        managed.controllers_by(&[&clock, &clock]).await?;
        let mut second = managed.rig.control_plane.second_api_server().await?;
        let active = managed.is_stable(1, LIMIT).await?;
        let load = Load::start_at(&managed.rig, RATE).await?;
        second.process().pause()?;
        managed.rotate()?;
        managed.sees(Write::Bundle(2), active + 1).await?;
        clock.ahead_by(HOUR)?;
        managed.stays("expanded", Duration::from_secs(4)).await?;
        clock.ahead_by(0)?;
        second.process().resume()?;

        managed.sees(Write::Record("soaking"), active + 1).await?;
        let soaking = Instant::now();
        for ahead in [2 * DAY, -DAY] {
            clock.ahead_by(ahead)?;
            managed.differs(ahead).await?;
            managed.stays("soaking", Duration::from_secs(2)).await?;
        }
        clock.ahead_by(0)?;
        managed.is_stable(active + 1, LIMIT).await?;
        let soaked = soaking.elapsed();
        ensure!(soaked + Duration::from_secs(1) > overlap, "it soaked for {soaked:?}");
        let outcomes = load.stop().await?;
        tell(&format!("soaked for {soaked:.1?} of {overlap:?}: {outcomes}"));
        nothing_is_lost(&outcomes)
    });
}

#[test]
fn wrong_initial_clock_creates_no_certificates() {
    Isolation::new().run(|| async {
        let mut managed = Managed::start_uncalled(ControlPlane::builder(), QUICK, 0, 0).await?;
        let clock = MovedClock::new("controllers")?;
        for ahead in [3 * DAY, -HOUR] {
            clock.ahead_by(ahead)?;
            if managed.controllers.is_empty() {
                managed.controllers_by(&[&clock, &clock]).await?;
            }
            managed.differs(ahead).await?;
            managed.turns().await?;
            ensure!(managed.versions().await? == [None, None], "{:?}", managed.versions().await?);
        }
        clock.ahead_by(0)?;
        managed.is_stable(1, LIMIT).await?;
        managed.replicas_by(&clock, 2).await?;
        managed.rig.namespace("team-a", Some("enabled")).await?;
        managed.rig.is_called("team-a").await?;
        managed.valid_leaf().await?;
        ensure!(managed.rotation().await? == (rotation::Phase::Stable.to_string(), 1));
        Ok(())
    });
}

#[test]
fn clock_of_former_leader_shortens_no_wait() {
    let overlap = Duration::from_secs(12);
    let policy = QUICK.replace("overlap: 200ms", "overlap: 12s").replace("Timeout: 5s", "Timeout: 40s");
    Isolation::new().own_network("runs a second API server").run(|| async move {
        let mut managed = Managed::start(ControlPlane::builder(), &policy, 3, 1).await?;
        let clocks = [MovedClock::new("first")?, MovedClock::new("second")?];
        managed.controllers_by(&[&clocks[0], &clocks[1]]).await?;
        let mut second = managed.rig.control_plane.second_api_server().await?;
        let active = managed.is_stable(1, LIMIT).await?;
        let load = Load::start_at(&managed.rig, RATE).await?;
        let place = managed.leads().await?;
        // Small enough that the clocks agree, and longer than either wait.
        clocks[place].ahead_by(-240)?;
        managed.agrees().await?;
        // An API server that hangs leaves the endpoints after five seconds at the earliest, and the next leader must
        // still find it there. So it is paused only now.
        second.process().pause()?;
        managed.rotate()?;
        managed.sees(Write::Bundle(2), active + 1).await?;
        managed.controllers[place].kill()?;
        eventually(PATIENCE, "the other one leads", async || {
            let leads = managed.leads().await?;
            ensure!(leads != place);
            Ok(())
        })
        .await?;
        managed.stays("expanded", Duration::from_secs(5)).await?;

        // The first controller returns with the right time after the second has started the soak with the wrong one.
        clocks[place].ahead_by(0)?;
        clocks[1 - place].ahead_by(-240)?;
        second.process().resume()?;
        managed.sees(Write::Record("soaking"), active + 1).await?;
        let soaking = Instant::now();
        managed.controllers[1 - place].kill()?;
        let mut spec = managed.spec.clone();
        spec.env.extend(clocks[place].environment());
        let back = managed.controllers[place].address();
        managed.controllers[place] = controller(&spec, back).await?;
        managed.is_stable(active + 1, LIMIT).await?;
        let soaked = soaking.elapsed();
        ensure!(soaked + Duration::from_secs(2) > overlap, "it soaked for {soaked:?}");
        let outcomes = load.stop().await?;
        tell(&format!("soaked for {soaked:.1?} of {overlap:?}: {outcomes}"));
        nothing_is_lost(&outcomes)
    });
}
