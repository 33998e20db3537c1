//! A wrong clock must not shorten or skip a step of the rotation. The API server's clock is authoritative: no
//! certificate may be issued that is not yet valid by that clock.
//!
//! Controllers and replicas are processes of the real program, and the test moves their clocks
//! ([`pillion_testkit::moved_clock`]). So the program needs no hooks for this test, and every use of the time is
//! tested, including the uses in the TLS library. A proxy that changes the `Date` header of API responses would test
//! only the comparison of clocks. Moving all clocks of Pillion is equivalent to a wrong clock of the API server.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use pillion_control::Release;
use pillion_control::certificates::ca::ValidCertificate;
use pillion_control::certificates::{rotation, serving_secret};
use pillion_control::release::DEFAULT_CLUSTER_DOMAIN;
use pillion_testkit::namespace::replica_address;
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, Isolation, MovedClock, Replica, eventually, is_thorough};
use serde_json::json;

use crate::direct::metric;
use crate::load::{Load, print_figures};
use crate::managed::{Managed, QUICK, RELEASE, controller};
use crate::rig::{PATIENCE, quickest};
use crate::rolling::expect_no_loss;
use crate::rotation::{Damage, LIMIT, RATE, Write};

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;
/// Number of reconciliations of the rotation in which nothing may change, to show that a step is not merely late. The
/// leader reconciles once per second.
const RECONCILIATIONS: u32 = 3;

/// Time limit for the leader to restore a CA bundle.
const REPAIRED_WITHIN: Duration = Duration::from_secs(1);

/// The last byte of the address of the first controller with a moved clock, and of the first such replica.
const CONTROLLERS: u8 = 121;
const REPLICAS: u8 = 21;

impl Managed {
    /// Replaces the controllers with new ones, one for each of these clocks.
    async fn replace_controllers(&mut self, clocks: &[&MovedClock]) -> Result<()> {
        let before = std::mem::take(&mut self.controllers);
        for (number, clock) in (CONTROLLERS..).zip(clocks) {
            let mut spec = self.spec.clone();
            spec.env.extend(clock.environment());
            self.controllers.push(controller(&spec, replica_address(number)).await?);
        }
        for mut before in before {
            before.terminate(PATIENCE).await?;
        }
        eventually(PATIENCE, "one of the controllers leads", async || self.wait_for_leader().await.map(drop)).await
    }

    /// Replaces the replicas with `count` new ones that use this clock.
    async fn replace_replicas(&mut self, clock: &MovedClock, count: u8) -> Result<()> {
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

    /// Waits for a leader, and returns it. Fails if it has not reconciled the rotation yet.
    async fn wait_for_leader(&self) -> Result<&Replica> {
        let leader = self.leader().await?;
        let leader_replica = self.controllers.iter().find(|running| running.address() == leader);
        let leader_replica =
            leader_replica.with_context(|| format!("the leader {leader} is not one of the test's controllers"))?;
        ensure!(
            metric(leader_replica, "pillion_controller_rotation_last_reconcile_timestamp_seconds").await? > 0.0,
            "the leader has not reconciled yet"
        );
        Ok(leader_replica)
    }

    /// Returns the index of the leader among the controllers.
    async fn leader_index(&self) -> Result<usize> {
        let leader = self.wait_for_leader().await?.address();
        self.controllers
            .iter()
            .position(|running| running.address() == leader)
            .context("the leader is not one of the test's controllers")
    }

    /// Waits until the leader reports that its clock is `ahead` seconds ahead, and that the difference blocks the
    /// rotation.
    async fn wait_for_clock_difference(&self, ahead: i64) -> Result<()> {
        eventually(PATIENCE, "the leader reports different clocks", async || {
            let leader_replica = self.wait_for_leader().await?;
            #[expect(clippy::cast_precision_loss, reason = "seconds")]
            let difference =
                metric(leader_replica, "pillion_controller_clock_difference_seconds").await? - ahead as f64;
            ensure!(difference.abs() < 5.0, "{difference} s from {ahead} s");
            ensure!(metric(leader_replica, "pillion_controller_clock_agrees").await? < 0.5, "the clocks agree");
            ensure!(
                metric(leader_replica, "pillion_controller_rotation_blocked{reason=\"clock\"}").await? > 0.5,
                "the clocks do not block the rotation"
            );
            Ok(())
        })
        .await
    }

    /// Waits until the leader reports that the clocks agree and do not block the rotation.
    async fn wait_for_clock_agreement(&self) -> Result<()> {
        eventually(PATIENCE, "the leader reports equal clocks", async || {
            let leader_replica = self.wait_for_leader().await?;
            ensure!(
                metric(leader_replica, "pillion_controller_clock_agrees").await? > 0.5,
                "the leader reports different clocks"
            );
            ensure!(
                metric(leader_replica, "pillion_controller_rotation_blocked{reason=\"clock\"}").await? < 0.5,
                "the clocks block the rotation"
            );
            Ok(())
        })
        .await
    }

    /// Waits for [`RECONCILIATIONS`] reconciliations of the rotation.
    async fn wait_for_reconciliations(&self) -> Result<()> {
        let mut last = 0.0;
        for _ in 0..RECONCILIATIONS {
            last = eventually(PATIENCE, "the leader reconciles", async || {
                let look = metric(
                    self.wait_for_leader().await?,
                    "pillion_controller_rotation_last_reconcile_timestamp_seconds",
                )
                .await?;
                ensure!((look - last).abs() > 0.5, "none since {last}");
                Ok(look)
            })
            .await?;
        }
        Ok(())
    }

    /// Returns the resource versions of the CA's Secret and of the serving Secret. `None` means that the Secret does
    /// not exist.
    async fn secret_versions(&self) -> Result<[Option<String>; 2]> {
        let mut versions = [None, None];
        for (version, name) in versions.iter_mut().zip(["ca", "serving"]) {
            let secret = self.secrets().get_opt(&format!("{RELEASE}-{name}")).await?;
            *version = secret.and_then(|secret| secret.resource_version());
        }
        Ok(versions)
    }

    /// Returns the serving certificate in the Secret. Fails unless it is valid by this machine's clock, which the API
    /// server also uses.
    async fn valid_certificate(&self) -> Result<ValidCertificate> {
        let release = Release::new(RELEASE, NAMESPACE, DEFAULT_CLUSTER_DOMAIN)?;
        let secret = self.secrets().get(&format!("{RELEASE}-serving")).await?;
        let now = Timestamp::now();
        let fit = serving_secret::judge(&secret, &release.server_names(), now)?;
        ensure!(fit.not_before <= now && now < fit.not_after, "at {now}: {fit:?}");
        Ok(fit)
    }

    /// Empties a CA bundle, and waits until the leader restores it. Returns the duration.
    async fn measure_bundle_repair(&self) -> Result<Duration> {
        // Choose an entry that the load does not use, since the load's pods would fail while the bundle is empty.
        let entries = self.configurations().get(RELEASE).await?.webhooks.context("entries")?;
        let of_load = ["enabled.pillion.dev", "required.pillion.dev"];
        let place =
            entries.iter().position(|entry| !of_load.contains(&entry.name.as_str())).context("another entry")?;
        let path = format!("/webhooks/{place}/clientConfig/caBundle");
        let emptied: json_patch::Patch = serde_json::from_value(json!([{"op": "replace", "path": path, "value": ""}]))?;
        let (parameters, emptied) = (PatchParams::default(), Patch::<()>::Json(emptied));
        quickest(REPAIRED_WITHIN, "the CA bundle emptied", async || {
            let began = Instant::now();
            self.configurations().patch(RELEASE, &parameters, &emptied).await?;
            eventually(PATIENCE, "the CA bundle is restored", async || {
                ensure!(self.trusted_cas().await? == 1);
                Ok(())
            })
            .await?;
            Ok(began.elapsed())
        })
        .await
    }

    /// Fails unless the rotation remains in this phase, with a valid serving certificate, for the duration `long`.
    async fn expect_phase_stays(&self, phase: &str, long: Duration) -> Result<()> {
        let since = Instant::now();
        while since.elapsed() < long {
            let (now, _) = self.rotation().await?;
            ensure!(now == phase, "{now} after {:?}", since.elapsed());
            self.valid_certificate().await?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

#[test]
fn clock_jump_changes_nothing_and_recovers() {
    Isolation::new().with_crds().time_limit(Duration::from_mins(15)).run(|| async {
        let mut managed = Managed::start(ControlPlane::builder(), QUICK, 1, 1).await?;
        let (controllers, replicas) = (MovedClock::new("controllers")?, MovedClock::new("replicas")?);
        managed.replace_controllers(&[&controllers, &controllers]).await?;
        managed.replace_replicas(&replicas, 3).await?;
        let active = managed.wait_until_stable(1, LIMIT).await?;
        managed.wait_for_clock_agreement().await?;
        let load = Load::start_at(&managed.rig, RATE).await?;
        let before = managed.secret_versions().await?;
        // According to the moved clocks, the serving certificate is due for renewal, the CA is due too, both have
        // expired, neither is valid yet, or the CA has not been created yet.
        let jumps = [5 * DAY, 200 * DAY, 3 * 365 * DAY, -5 * HOUR, -300 * DAY];
        let all_jumps = jumps.into_iter().flat_map(|ahead| [(ahead, false), (ahead, true)]);
        // Each jump takes about 15 seconds, so a run does only every third unless `PILLION_THOROUGH` is set.
        let jumps: Vec<_> = all_jumps.step_by(if is_thorough() { 1 } else { 3 }).collect();
        for &(ahead, all) in &jumps {
            controllers.ahead_by(ahead)?;
            // If the clocks of the replicas move too, only the API server's clock differs.
            replicas.ahead_by(if all { ahead } else { 0 })?;
            managed.wait_for_clock_difference(ahead).await?;
            managed.wait_for_reconciliations().await?;
            load.wait_for_responses(60).await?;
            controllers.ahead_by(0)?;
            replicas.ahead_by(0)?;
            managed.wait_for_clock_agreement().await?;
            managed.wait_for_reconciliations().await?;
            let after = managed.secret_versions().await?;
            ensure!(after == before, "{ahead} s ahead: {after:?} instead of {before:?}");
        }
        let events: Api<Event> = Api::namespaced(managed.rig.control_plane.client(), NAMESPACE);
        let about = ListParams::default().fields("reason=ClocksDiffer");
        eventually(PATIENCE, "Events report the difference and its end", async || {
            let difference: BTreeSet<_> =
                events.list(&about).await?.items.into_iter().filter_map(|event| event.type_).collect();
            ensure!(difference == BTreeSet::from(["Normal".to_owned(), "Warning".to_owned()]), "{difference:?}");
            Ok(())
        })
        .await?;
        // The logs of all controllers are read, since any of them may have been the leader.
        let difference: String = managed.controllers.iter().map(Replica::log_text).collect::<Result<_>>()?;
        for line in ["this clock and the API server's differ by minutes", "all certificates are valid"] {
            ensure!(difference.contains(line), "{line:?} is not in the log");
        }

        // While the clocks differ, the leader issues no certificate, neither a requested one nor a replacement for a
        // lost one. It still restores CA bundles.
        controllers.ahead_by(5 * DAY)?;
        managed.wait_for_clock_difference(5 * DAY).await?;
        managed.rotate()?;
        managed.damage(Damage::CertificateDeleted).await?;
        let repaired = managed.measure_bundle_repair().await?;
        managed.wait_for_reconciliations().await?;
        let [record, serving] = managed.secret_versions().await?;
        ensure!(record == before[0] && serving.is_none(), "{record:?}, {serving:?} while the clocks differ");
        controllers.ahead_by(0)?;
        let rotated = managed.wait_until_stable(active + 1, LIMIT).await?;
        ensure!(rotated == active + 1 && managed.serving_ca().await? == rotated, "CA {rotated}");
        managed.valid_certificate().await?;
        let results = load.stop().await?;
        print_figures(&format!("{} jumps; a bundle repaired meanwhile in {repaired:.0?}; {results}", jumps.len() + 1));
        expect_no_loss(&results)
    });
}

#[test]
fn rotation_survives_clock_jump_after_each_write() {
    Isolation::new().with_crds().time_limit(Duration::from_mins(15)).run(|| async {
        let mut managed = Managed::start(ControlPlane::builder(), QUICK, 3, 1).await?;
        let clock = MovedClock::new("controllers")?;
        managed.replace_controllers(&[&clock, &clock]).await?;
        let mut active = managed.wait_until_stable(1, LIMIT).await?;
        let load = Load::start_at(&managed.rig, RATE).await?;
        let mut took = Vec::new();
        let jumps = [10 * DAY, -5 * HOUR, 400 * DAY];
        let cases: Vec<_> = if is_thorough() {
            jumps.into_iter().flat_map(|ahead| Write::ALL.map(|write| (ahead, write))).collect()
        } else {
            // Unless `PILLION_THOROUGH` is set, each write is combined with only one of the jumps.
            jumps.into_iter().cycle().zip(Write::ALL).collect()
        };
        for (ahead, write) in cases {
            let next = active + 1;
            managed.rotate()?;
            managed.wait_for_write(write, next).await?;
            clock.ahead_by(ahead)?;
            let jumped = Instant::now();
            while jumped.elapsed() < Duration::from_millis(1_500) {
                managed.valid_certificate().await.with_context(|| format!("{ahead} s ahead after {write:?}"))?;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            clock.ahead_by(0)?;
            let right = Instant::now();
            active = managed.wait_until_stable(next, LIMIT).await.with_context(|| format!("{ahead} s, {write:?}"))?;
            took.push(right.elapsed());
            ensure!(active == next, "{ahead} s ahead after {write:?}: CA {active} instead of {next}");
            ensure!(managed.serving_ca().await? == active && managed.trusted_cas().await? == 1, "{ahead} s, {write:?}");
        }
        load.wait_for_responses(100).await?;
        let results = load.stop().await?;
        let longest = took.iter().max().copied().unwrap_or_default();
        print_figures(&format!("{} jumps during rotations, each complete within {longest:.1?}: {results}", took.len()));
        expect_no_loss(&results)
    });
}

#[test]
fn clock_jump_ahead_shortens_no_wait() {
    let overlap = Duration::from_secs(10);
    let policy = QUICK.replace("overlap: 200ms", "overlap: 10s").replace("Timeout: 5s", "Timeout: 60s");
    Isolation::new().with_crds().run(|| async move {
        let mut managed = Managed::start(ControlPlane::builder(), &policy, 3, 1).await?;
        let clock = MovedClock::new("controllers")?;
        managed.replace_controllers(&[&clock, &clock]).await?;
        let mut second = managed.rig.control_plane.second_api_server().await?;
        let active = managed.wait_until_stable(1, LIMIT).await?;
        let load = Load::start_at(&managed.rig, RATE).await?;
        second.process().pause()?;
        managed.rotate()?;
        managed.wait_for_write(Write::Bundle(2), active + 1).await?;
        clock.ahead_by(HOUR)?;
        managed.expect_phase_stays("expanded", Duration::from_secs(4)).await?;
        clock.ahead_by(0)?;
        second.process().resume()?;

        managed.wait_for_write(Write::Record("soaking"), active + 1).await?;
        let soaking = Instant::now();
        for ahead in [2 * DAY, -DAY] {
            clock.ahead_by(ahead)?;
            managed.wait_for_clock_difference(ahead).await?;
            managed.expect_phase_stays("soaking", Duration::from_secs(2)).await?;
        }
        clock.ahead_by(0)?;
        managed.wait_until_stable(active + 1, LIMIT).await?;
        let soaked = soaking.elapsed();
        ensure!(soaked + Duration::from_secs(1) > overlap, "the soak lasted {soaked:?}");
        let results = load.stop().await?;
        print_figures(&format!("soaked for {soaked:.1?} of {overlap:?}: {results}"));
        expect_no_loss(&results)
    });
}

#[test]
fn wrong_initial_clock_creates_no_certificates() {
    Isolation::new().with_crds().run(|| async {
        let mut managed = Managed::start_without_namespace(ControlPlane::builder(), QUICK, 0, 0).await?;
        let clock = MovedClock::new("controllers")?;
        for ahead in [3 * DAY, -HOUR] {
            clock.ahead_by(ahead)?;
            if managed.controllers.is_empty() {
                managed.replace_controllers(&[&clock, &clock]).await?;
            }
            managed.wait_for_clock_difference(ahead).await?;
            managed.wait_for_reconciliations().await?;
            ensure!(managed.secret_versions().await? == [None, None], "{:?}", managed.secret_versions().await?);
        }
        clock.ahead_by(0)?;
        managed.wait_until_stable(1, LIMIT).await?;
        managed.replace_replicas(&clock, 2).await?;
        managed.rig.namespace("team-a", Some("enabled")).await?;
        managed.rig.wait_until_called("team-a").await?;
        managed.valid_certificate().await?;
        ensure!(managed.rotation().await? == (rotation::Phase::Stable.to_string(), 1));
        Ok(())
    });
}

#[test]
fn clock_of_former_leader_shortens_no_wait() {
    let overlap = Duration::from_secs(12);
    let policy = QUICK.replace("overlap: 200ms", "overlap: 12s").replace("Timeout: 5s", "Timeout: 40s");
    Isolation::new().with_crds().run(|| async move {
        let mut managed = Managed::start(ControlPlane::builder(), &policy, 3, 1).await?;
        let clocks = [MovedClock::new("first")?, MovedClock::new("second")?];
        managed.replace_controllers(&[&clocks[0], &clocks[1]]).await?;
        let mut second = managed.rig.control_plane.second_api_server().await?;
        let active = managed.wait_until_stable(1, LIMIT).await?;
        let load = Load::start_at(&managed.rig, RATE).await?;
        let place = managed.leader_index().await?;
        // Clocks that differ by four minutes are treated as equal, although that is longer than `overlap` and
        // `propagationTimeout`.
        clocks[place].ahead_by(-240)?;
        managed.wait_for_clock_agreement().await?;
        // The second API server must not be paused earlier: five or more seconds after it hangs, it disappears from the
        // endpoints, and the next leader must still find it there.
        second.process().pause()?;
        managed.rotate()?;
        managed.wait_for_write(Write::Bundle(2), active + 1).await?;
        managed.controllers[place].kill()?;
        eventually(PATIENCE, "the other controller leads", async || {
            let leads = managed.leader_index().await?;
            ensure!(leads != place);
            Ok(())
        })
        .await?;
        managed.expect_phase_stays("expanded", Duration::from_secs(5)).await?;

        // The second controller begins the soak with a clock that is four minutes behind. Then it is killed, and the
        // first controller restarts with the right time. This must not shorten the soak.
        clocks[place].ahead_by(0)?;
        clocks[1 - place].ahead_by(-240)?;
        second.process().resume()?;
        managed.wait_for_write(Write::Record("soaking"), active + 1).await?;
        let soaking = Instant::now();
        managed.controllers[1 - place].kill()?;
        let mut spec = managed.spec.clone();
        spec.env.extend(clocks[place].environment());
        let back = managed.controllers[place].address();
        managed.controllers[place] = controller(&spec, back).await?;
        managed.wait_until_stable(active + 1, LIMIT).await?;
        let soaked = soaking.elapsed();
        ensure!(soaked + Duration::from_secs(2) > overlap, "the soak lasted {soaked:?}");
        let results = load.stop().await?;
        print_figures(&format!("soaked for {soaked:.1?} of {overlap:?}: {results}"));
        expect_no_loss(&results)
    });
}
