//! Certificates rotate while the test creates pods continuously. No creation may fail, and no pod may lack its sidecar,
//! even if the leader or an API server fails.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use pillion_api::webhook_configuration::is_connectivity_check;
use pillion_testkit::namespace::SECOND_API_SERVER;
use pillion_testkit::{ControlPlane, Isolation, Replica, TestCa, eventually, is_thorough};
use serde_json::json;

use crate::direct::metric;
use crate::explain::pillion;
use crate::load::{Load, count_from, print_figures};
use crate::managed::{Managed, QUICK, RELEASE, controller};
use crate::rbac::refusals;
use crate::rig::{SOON, base64, quickest};
use crate::rolling::expect_no_loss;

/// Number of rotations. `PILLION_ROTATIONS` overrides it.
const ROTATIONS: u64 = 8;
/// Time limit for one rotation, on a busy machine with two cores.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// Time limit for up to 100 rotations. For more rotations, it increases in proportion.
const ALL_WITHIN: Duration = Duration::from_mins(5);
/// Time limit for the leader to restore a webhook configuration.
const REPAIRED_WITHIN: Duration = Duration::from_secs(1);
/// Pods per second during a test.
pub(crate) const RATE: u64 = 15;
/// Pods per second while the test makes [`ROTATIONS`] rotations.
const ROTATIONS_RATE: u64 = 60;

/// The writes of a rotation to the record, the webhook configuration and the serving Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// The record reached this phase.
    Record(&'static str),
    /// The configuration trusts this many CAs.
    Bundle(usize),
    /// The certificate in the serving Secret is issued by the next CA.
    Certificate,
}

impl Write {
    pub(crate) const ALL: [Self; 10] = [
        Self::Record("staged"),
        Self::Record("expanded"),
        Self::Bundle(2),
        Self::Record("switched"),
        Self::Certificate,
        Self::Record("verified"),
        Self::Record("soaking"),
        Self::Record("contracted"),
        Self::Bundle(1),
        Self::Record("stable"),
    ];

    /// Returns whether the observed state shows this write or a later one. `rotated` means that the CA `next` is
    /// active. `bundle` is the number of trusted CAs, and `issuer` the CA of the serving certificate.
    fn is_visible(self, phase: &str, rotated: bool, bundle: usize, issuer: u64, next: u64) -> bool {
        const PHASES: [&str; 6] = ["staged", "expanded", "switched", "verified", "soaking", "contracted"];
        let at = |phase: &str| PHASES.iter().position(|known| *known == phase);
        let reached = |wanted: &str| rotated || at(phase) >= at(wanted);
        match self {
            Self::Record("stable") => rotated,
            Self::Record(wanted) => reached(wanted),
            Self::Bundle(2) => reached("expanded") && bundle == 2 || reached("switched"),
            Self::Bundle(_) => reached("contracted") && bundle == 1 || rotated,
            Self::Certificate => issuer >= next,
        }
    }
}

impl Managed {
    /// Waits until this write of the rotation to the CA `next` is visible.
    pub(crate) async fn wait_for_write(&self, write: Write, next: u64) -> Result<()> {
        let end = Instant::now() + LIMIT;
        while Instant::now() < end {
            let (phase, active) = self.rotation().await?;
            if write.is_visible(&phase, active >= next, self.trusted_cas().await?, self.serving_ca().await?, next) {
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
    Isolation::new().with_crds().time_limit(limit).run(|| async move {
        let managed = Managed::start(ControlPlane::builder(), QUICK, 3, 2).await?;
        let first = managed.wait_until_stable(1, LIMIT).await?;
        let load = Load::start_at(&managed.rig, ROTATIONS_RATE).await?;
        let began = Instant::now();
        let mut longest = Duration::ZERO;
        for number in 1..=rotations {
            let asked = Instant::now();
            managed.rotate()?;
            let generation = managed.wait_until_stable(first + number, 2 * LIMIT).await?;
            ensure!(generation == first + number, "{number} rotations after CA {first}, the CA is {generation}");
            longest = longest.max(asked.elapsed());
        }
        let took = began.elapsed();
        load.wait_for_responses(200).await?;
        let results = load.stop().await?;
        results.write_result("rotations", rotations)?;
        for running in managed.controllers.iter().chain(&managed.rig.replicas) {
            let log = running.log_text()?;
            ensure!(refusals(&log).is_empty(), "{}: {:#?}", running.address(), refusals(&log));
        }
        print_figures(&format!("{rotations} rotations in {took:.0?}, the longest {longest:.1?}: {results}"));
        let all_within = ALL_WITHIN.max(Duration::from_secs(3 * rotations));
        ensure!(took < all_within, "{rotations} rotations took {took:?}");
        let pods = u64::try_from(results.all.len())?;
        ensure!(pods >= 50 * took.as_secs(), "{pods} pods in {took:?} are less than 50 a second");
        expect_no_loss(&results)
    });
}

/// Disrupts the leader after each write of a rotation. There is one rotation per write. A short run covers only half of
/// the writes, and `Kill` and `Pause` cover different halves.
async fn disrupt_leader_after_each_write(disruption: Disruption) -> Result<()> {
    let mut managed = Managed::start(ControlPlane::builder(), QUICK, 3, 2).await?;
    let mut active = managed.wait_until_stable(1, LIMIT).await?;
    let load = Load::start_at(&managed.rig, RATE).await?;
    let (mut took, mut former_leaders) = (Vec::new(), 0);
    let (first, step) = if is_thorough() { (0, 1) } else { (disruption as usize, 2) };
    for write in Write::ALL.into_iter().skip(first).step_by(step) {
        let next = active + 1;
        managed.rotate()?;
        managed.wait_for_write(write, next).await?;
        let leader = managed.leader().await?;
        let place = managed.controllers.iter().position(|running| running.address() == leader);
        let place = place.with_context(|| format!("the leader {leader} is not one of the test's controllers"))?;
        let disrupted_at = Instant::now();
        match disruption {
            Disruption::Kill => managed.controllers[place].kill()?,
            Disruption::Pause => managed.controllers[place].process().pause()?,
        }
        active = managed.wait_until_stable(next, LIMIT).await.with_context(|| format!("disrupted after {write:?}"))?;
        took.push(disrupted_at.elapsed());
        match disruption {
            Disruption::Kill => {
                drop(managed.controllers.remove(place));
                managed.controllers.push(controller(&managed.spec, leader).await?);
            }
            // The old leader resumes its last step, and finds that another controller has become the leader.
            Disruption::Pause => {
                managed.controllers[place].process().resume()?;
                // After its last write, the rotation completes without a new leader, so the paused controller may still
                // hold the Lease when it resumes.
                if managed.leader().await? != leader {
                    expect_no_leader_gauges(&managed.controllers[place]).await?;
                    former_leaders += 1;
                }
            }
        }
        ensure!(active == next, "{write:?}: CA {active} instead of {next}");
    }
    ensure!(former_leaders > 0 || matches!(disruption, Disruption::Kill), "no paused leader was replaced");
    load.wait_for_responses(100).await?;
    let results = load.stop().await?;
    print_figures(&format!(
        "the leader was disrupted ({disruption:?}) after {} writes, each rotation complete after {took:.1?}: {results}",
        took.len()
    ));
    expect_no_loss(&results)
}

/// Waits until a former leader exports 0 for each gauge that only a leader sets.
async fn expect_no_leader_gauges(former: &Replica) -> Result<()> {
    let own = ["pillion_controller_ready", "pillion_controller_build_info"];
    eventually(LIMIT, "a former leader exports no gauge of a leader", async || {
        let page = former.metrics_text().await?;
        let gauges: Vec<_> = page
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" gauge"))
            .filter(|name| name.starts_with("pillion_controller_") && !own.contains(name))
            .collect();
        ensure!(gauges.len() >= 10, "only {gauges:?}");
        let name = |line: &str| line.split(['{', ' ']).next().unwrap_or_default().to_owned();
        let set: Vec<_> = page
            .lines()
            .filter(|line| gauges.contains(&&*name(line)) && !line.ends_with(" 0") && !line.ends_with(" 0.0"))
            .collect();
        ensure!(set.is_empty(), "{set:#?}");
        Ok(())
    })
    .await
}

/// How a leader is disrupted.
#[derive(Clone, Copy, Debug)]
enum Disruption {
    /// The process is killed.
    Kill,
    /// The process is stopped until the rotation is complete, and is then resumed.
    Pause,
}

#[test]
fn leader_killed_after_any_write_loses_nothing() {
    Isolation::new()
        .with_crds()
        .time_limit(Duration::from_mins(15))
        .run(|| async { disrupt_leader_after_each_write(Disruption::Kill).await });
}

#[test]
fn leader_paused_after_any_write_conflicts() {
    Isolation::new()
        .with_crds()
        .time_limit(Duration::from_mins(15))
        .run(|| async { disrupt_leader_after_each_write(Disruption::Pause).await });
}

#[test]
fn rotation_waits_for_hanging_api_server() {
    // The timeout is longer than the pause, so the rotation cannot proceed because of the timeout.
    let policy = QUICK.replace("propagationTimeout: 5s", "propagationTimeout: 25s");
    Isolation::new().with_crds().run(|| async move {
        let managed = Managed::start(ControlPlane::builder(), &policy, 3, 2).await?;
        let mut second = managed.rig.control_plane.second_api_server().await?;
        let active = managed.wait_until_stable(1, LIMIT).await?;
        let load = Load::start_at(&managed.rig, RATE).await?;
        second.process().pause()?;
        let paused = Instant::now();
        managed.rotate()?;
        managed.wait_for_write(Write::Bundle(2), active + 1).await?;
        while paused.elapsed() < Duration::from_secs(10) {
            let (phase, _) = managed.rotation().await?;
            ensure!(phase == "expanded", "{phase}, {:?} after {SECOND_API_SERVER} was paused", paused.elapsed());
            load.wait_for_responses(20).await?;
        }
        second.process().resume()?;
        managed.wait_until_stable(active + 1, 2 * LIMIT).await?;
        let through = paused.elapsed();
        // The second API server has the right CA bundle, and calls the webhook.
        managed.wait_until_called_by(&second.client(), "required").await?;

        // The rotation waits for a lost API server until `propagationTimeout` has passed, and then proceeds.
        drop(second);
        let asked = Instant::now();
        managed.rotate()?;
        managed.wait_until_stable(active + 2, 3 * LIMIT).await?;
        let without = asked.elapsed();
        ensure!(without > Duration::from_secs(20), "the rotation waited only for {without:?}");
        let results = load.stop().await?;
        print_figures(&format!(
            "one API server hung for 10 s: complete after {through:.1?}; lost: {without:.1?}; {results}"
        ));
        expect_no_loss(&results)
    });
}

#[test]
fn compromised_key_is_replaced_without_soak() {
    let policy = QUICK.replace("overlap: 200ms", "overlap: 1h");
    Isolation::new().with_crds().run(|| async move {
        let managed = Managed::start(ControlPlane::builder(), &policy, 3, 1).await?;
        let active = managed.wait_until_stable(1, LIMIT).await?;
        let load = Load::start_at(&managed.rig, RATE).await?;
        let message = managed.pillion(&["certs", "rotate", "--compromised", "--wait", "2m"])?;
        ensure!(message.contains("stable since"), "{message}");
        ensure!(managed.wait_until_stable(active + 1, SOON).await? == active + 1);
        let status = pillion(&managed.rig.control_plane, &["status"]).await?.json;
        let lines: Vec<_> = status["installation"].as_array().into_iter().flatten().collect();
        for (what, expected) in [
            ("CA", format!("{} created", active + 1)),
            ("certificate", format!("signed by CA {}", active + 1)),
            ("webhook", format!("enabled.pillion.dev trusts CA {}", active + 1)),
        ] {
            let says = |line: &serde_json::Value| {
                line["part"] == what && line["text"].as_str().is_some_and(|said| said.contains(&expected))
            };
            ensure!(lines.iter().any(|line| says(line)), "{what} {expected}: {status:#}");
        }
        let certificates = &status["certificates"];
        ensure!(certificates["rotation"]["active"]["generation"] == active + 1, "{status:#}");
        ensure!(certificates["certificate"]["ca"] == active + 1, "{status:#}");
        ensure!(certificates["webhooks"][0]["cas"] == serde_json::json!([active + 1]), "{status:#}");

        // The CA is reported as compromised during the soak of the next CA, which would take an hour. The rotation then
        // replaces both CAs.
        managed.rotate()?;
        managed.wait_for_write(Write::Record("soaking"), active + 2).await?;
        managed.pillion(&["certs", "rotate", "--compromised", "--wait", "2m"])?;
        let last = managed.wait_until_stable(active + 2, SOON).await?;
        ensure!(last == active + 3, "CA {last} instead of {}", active + 3);
        expect_no_loss(&load.stop().await?)
    });
}

#[test]
fn damaged_secrets_are_recreated_without_lost_pods() {
    Isolation::new().with_crds().run(|| async {
        let managed = Managed::start(ControlPlane::builder(), QUICK, 3, 2).await?;
        let mut active = managed.wait_until_stable(1, LIMIT).await?;
        let load = Load::start_at(&managed.rig, RATE).await?;
        let mut took = Vec::new();
        for (damage, is_new) in Damage::ALL {
            let began = Instant::now();
            managed.damage(damage).await.with_context(|| format!("{damage:?}"))?;
            let least = active + u64::from(is_new);
            let mended = eventually(LIMIT, "the desired state is restored", async || {
                let (phase, generation) = managed.rotation().await?;
                let (issuer, trusted) = (managed.serving_ca().await?, managed.trusted_cas().await?);
                ensure!(
                    phase == "stable" && generation >= least && issuer == generation && trusted == 1,
                    "{phase}, CA {generation} of {least}, serving certificate of {issuer}, {trusted} trusted"
                );
                Ok(generation)
            });
            active = mended.await.with_context(|| format!("{damage:?}"))?;
            ensure!(active == least, "{damage:?}: CA {active} instead of {least}");
            took.push((damage, began.elapsed()));
        }
        load.wait_for_responses(100).await?;
        let results = load.stop().await?;
        print_figures(&format!("restored: {took:.1?}; {results}"));
        expect_no_loss(&results)
    });
}

#[test]
fn damaged_webhook_configuration_is_restored_within_second() {
    Isolation::new().with_crds().run(|| async {
        let managed = Managed::start(ControlPlane::builder(), QUICK, 3, 2).await?;
        managed.wait_until_stable(1, LIMIT).await?;
        let configurations = managed.configurations();
        // Until the connectivity check succeeds, failed calls do not reject pods. That configuration is temporary, so
        // the test waits until it changes.
        let whole = eventually(LIMIT * 2, "the connectivity check is over", async || {
            let there = configurations.get(RELEASE).await?;
            ensure!(!is_connectivity_check(&there, RELEASE), "the check continues");
            Ok(there.webhooks)
        })
        .await?;
        ensure!(whole.as_ref().is_some_and(|entries| entries.len() >= 4), "{whole:?}");
        let foreign = TestCa::new()?.bundle_pem();
        let bundle = "/webhooks/0/clientConfig/caBundle";
        let damages = [
            ("the CA bundle emptied", Some(json!([{"op": "replace", "path": bundle, "value": ""}]))),
            ("the bundle replaced by junk", Some(json!([{"op": "replace", "path": bundle, "value": base64("junk")}]))),
            ("the bundle of another CA", Some(json!([{"op": "replace", "path": bundle, "value": base64(&foreign)}]))),
            ("an entry deleted", Some(json!([{"op": "remove", "path": "/webhooks/1"}]))),
            (
                "the policy changed",
                Some(json!([{"op": "replace", "path": "/webhooks/1/failurePolicy", "value": "Ignore"}])),
            ),
            ("the configuration deleted", None),
        ];
        let mut took = Vec::new();
        for (what, damage) in damages {
            let mut number = 0;
            let mended = quickest(REPAIRED_WITHIN, what, async || {
                // The controller slows down if one client changes the configuration often. So each change comes from a
                // new client.
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
        print_figures(&format!("restored: {took:.0?}"));
        managed.rig.wait_until_called("team-a").await
    });
}

/// An object that is marked with an epoch.
#[derive(Clone, Copy, Debug)]
enum MarkedObject {
    Mutating,
    Validating,
    ServingSecret,
}

const EPOCH: &str = "pillion.dev/epoch";

impl Managed {
    /// Returns the epoch in the annotation of an object.
    async fn epoch_of(&self, object: MarkedObject) -> Result<String> {
        let metadata = match object {
            MarkedObject::Mutating => self.configurations().get(RELEASE).await?.metadata,
            MarkedObject::Validating => self.validating().get(RELEASE).await?.metadata,
            MarkedObject::ServingSecret => self.secrets().get(&format!("{RELEASE}-serving")).await?.metadata,
        };
        metadata.annotations.and_then(|mut all| all.remove(EPOCH)).context("an epoch")
    }

    async fn raise(&self, object: MarkedObject, epoch: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {EPOCH: epoch}}}));
        let parameters = PatchParams { field_manager: Some("somebody".to_owned()), ..PatchParams::default() };
        match object {
            MarkedObject::Mutating => drop(self.configurations().patch(RELEASE, &parameters, &patch).await?),
            MarkedObject::Validating => drop(self.validating().patch(RELEASE, &parameters, &patch).await?),
            MarkedObject::ServingSecret => {
                drop(self.secrets().patch(&format!("{RELEASE}-serving"), &parameters, &patch).await?);
            }
        }
        Ok(())
    }

    /// Waits until the object's epoch is again a number that the record has already reached.
    async fn wait_until_overwritten(&self, object: MarkedObject) -> Result<()> {
        eventually(LIMIT, "the epoch is corrected", async || {
            let (epoch, record) = (self.epoch_of(object).await?, self.record().await?["epoch"].as_u64());
            let epoch: Option<u64> = epoch.parse().ok();
            ensure!(epoch.is_some() && epoch <= record, "{object:?}: {epoch:?}, and the record has {record:?}");
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
    Isolation::new().with_crds().run(|| async move {
        let managed = Managed::start(ControlPlane::builder(), &policy, 3, 1).await?;
        let active = managed.wait_until_stable(1, LIMIT).await?;
        let load = Load::start_at(&managed.rig, RATE).await?;
        let all = [MarkedObject::Mutating, MarkedObject::Validating, MarkedObject::ServingSecret];
        // The epochs are one ahead, far ahead, the maximum, greater than the maximum, and not a number.
        for epoch in ["2", "1000", "9007199254740992", "9223372036854775808", "junk"] {
            for object in all {
                managed.raise(object, epoch).await?;
                managed.wait_until_overwritten(object).await.with_context(|| epoch.to_owned())?;
                let (phase, generation) = managed.rotation().await?;
                ensure!(phase == "stable" && generation == active, "{object:?} {epoch}: {phase}, {generation}");
            }
        }
        managed.rotate()?;
        managed.wait_for_write(Write::Record("soaking"), active + 1).await?;
        for object in all {
            managed.raise(object, "1000").await?;
            managed.wait_until_overwritten(object).await?;
        }
        let rotated = managed.wait_until_stable(active + 1, LIMIT).await?;
        ensure!(rotated == active + 1, "CA {rotated} instead of {}", active + 1);
        let controller = &managed.controllers[0];
        let disbelieved = metric(controller, "pillion_controller_rotation_foreign_epochs_total").await?;
        ensure!(disbelieved >= 12.0, "{disbelieved} wrong epochs were reported");
        let log = controller.log_text()?;
        ensure!(
            log.contains("manager=\"somebody\"") && log.contains("another client wrote a higher pillion.dev/epoch")
        );
        expect_no_loss(&load.stop().await?)
    });
}

/// Damage to the Secrets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Damage {
    /// The serving Secret is deleted.
    CertificateDeleted,
    /// The serving Secret has a key that does not belong to its certificate.
    CertificateWithWrongKey,
    /// The serving certificate is for a different name.
    CertificateForWrongName,
    /// The serving certificate is not valid PEM.
    CertificateInvalid,
    /// The record's Secret is deleted.
    RecordDeleted,
    /// The record is not valid JSON.
    RecordInvalid,
    /// The CA has a key that does not belong to its certificate.
    CaWithWrongKey,
    /// Both Secrets are deleted.
    BothDeleted,
}

impl Damage {
    /// Each kind of damage, and whether it requires a new CA.
    const ALL: [(Self, bool); 8] = [
        (Self::CertificateDeleted, false),
        (Self::CertificateWithWrongKey, false),
        (Self::CertificateForWrongName, false),
        (Self::CertificateInvalid, false),
        (Self::RecordDeleted, true),
        (Self::RecordInvalid, true),
        (Self::CaWithWrongKey, true),
        (Self::BothDeleted, true),
    ];
}
