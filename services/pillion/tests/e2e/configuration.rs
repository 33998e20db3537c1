//! Tests changes of the webhook configurations by other clients, with a real API server: which changes the controller
//! reverts, and which it keeps. No replica is needed.

#![allow(clippy::print_stdout, reason = "the test prints its measurements")]

mod kept;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use pillion_api::held;
use pillion_api::profile::Operation;
use pillion_api::webhook_configuration::Validated;
use pillion_control::certificates::rotation::{Configuration, Generation};
use pillion_control::held::{HeldMetrics, PolicySettings, policies};
use pillion_control::leader::LeaderContext;
use pillion_control::release::Release;
use pillion_control::webhook_config::{
    self, Live, Rules, Settings, Target, WriteError, claim, entry_manager, observe, settings_of, write,
};
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, TestCa, eventually, isolated};
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::sync::watch;

use self::kept::{KeptControlPlane, release};
use crate::rig::{SOON, TRIES, base64, quickest};

/// Time limit for the controller to revert a wrong change.
const REPAIRED_WITHIN: Duration = Duration::from_secs(1);

/// Repeats a check until it succeeds, for at most [`SOON`]. Returns how long that took.
async fn took(what: &str, check: impl AsyncFn() -> Result<()>) -> Result<Duration> {
    let began = Instant::now();
    loop {
        match check().await {
            Ok(()) => return Ok(began.elapsed()),
            Err(error) if began.elapsed() > SOON => return Err(error.context(format!("{what}: not within {SOON:?}"))),
            Err(_) => tokio::time::sleep(Duration::from_millis(2)).await,
        }
    }
}

/// Returns a target that uses every option, for one CA.
fn target(release: &Release, ca: &TestCa, epoch: u64) -> Target {
    let settings = pillion_api::webhook_configuration::Settings {
        trust_probe: true,
        validates_profiles: true,
        ..settings_of(release)
    };
    let rules = Rules::default();
    // Two calls for namespaced profiles. The first one has the longest possible entry name, and the second one is for
    // deletions.
    let calls = [("pods/ephemeralcontainers", Operation::Create), ("pods/resize", Operation::Delete)];
    let own = calls.map(|(resource, operation)| ((resource.to_owned(), operation), ["team-a".to_owned()].into()));
    let rules = Rules { validated: Validated { everywhere: rules.mutating.clone(), own: own.into() }, ..rules };
    Target::new(settings, rules, ca.bundle_pem().into_bytes(), epoch)
}

/// Returns settings with which a `Keeper` repairs the webhook configurations without pauses.
fn without_pauses() -> Settings {
    let mut settings = Settings::default();
    settings.at_once = 1000;
    settings
}

#[test]
fn drift_is_corrected_within_a_second() {
    isolated(|| async {
        let (ours, foreign) = (TestCa::new()?, TestCa::new()?);
        let target = target(&release()?, &ours, 7);
        let kept = KeptControlPlane::filled(without_pauses(), &target).await?;
        let bundle = "/webhooks/0/clientConfig/caBundle";
        let (foreign, both) =
            (base64(foreign.bundle_pem()), base64(format!("{}{}", ours.bundle_pem(), foreign.bundle_pem())));
        let junk = base64("junk");
        let extra = json!({
            "name": "extra.example.org", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": "https://example.org/"},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        });
        let wide = json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}]);
        let changes = [
            ("the CA bundle emptied", json!([{"op": "remove", "path": bundle}]), "ca_bundle_empty"),
            (
                "the bundle replaced by junk",
                json!([{"op": "replace", "path": bundle, "value": junk}]),
                "ca_bundle_invalid",
            ),
            (
                "the bundle of another CA",
                json!([{"op": "replace", "path": bundle, "value": foreign}]),
                "ca_bundle_incomplete",
            ),
            (
                "a foreign CA in the bundle",
                json!([{"op": "replace", "path": bundle, "value": both}]),
                "ca_bundle_foreign",
            ),
            ("an entry deleted", json!([{"op": "remove", "path": "/webhooks/1"}]), "entry_missing"),
            ("all entries deleted", json!([{"op": "replace", "path": "/webhooks", "value": []}]), "entry_missing"),
            ("an entry added", json!([{"op": "add", "path": "/webhooks/-", "value": extra}]), "entry_extra"),
            ("a selector edited", json!([{"op": "remove", "path": "/webhooks/0/namespaceSelector"}]), "selector"),
            (
                "a policy edited",
                json!([{"op": "replace", "path": "/webhooks/1/failurePolicy", "value": "Ignore"}]),
                "policy",
            ),
            (
                "a condition added",
                json!([{"op": "add", "path": "/webhooks/0/matchConditions", "value": [{"name": "n", "expression": "false"}]}]),
                "policy",
            ),
            ("rules widened", json!([{"op": "replace", "path": "/webhooks/1/rules", "value": wide}]), "rules"),
            (
                "the epoch removed",
                json!([{"op": "remove", "path": "/metadata/annotations/pillion.dev~1epoch"}]),
                "metadata",
            ),
        ];
        let mut longest = Duration::ZERO;
        for (what, patch, drift) in &changes {
            let once = async || -> Result<Duration> {
                let before = kept.repairs("mutating", drift);
                let is_external = kept.patch(patch).await.with_context(|| format!("{what}: {patch}"))?;
                took(what, async || {
                    kept.expect_matches(&target).await?;
                    // The live resource version must differ from that of the other client's change. This proves that
                    // the controller reverted the change.
                    let now = kept.live().await?.mutating.context("there")?.metadata.resource_version;
                    let is_undone = kept.repairs("mutating", drift) > before;
                    ensure!(now != is_external.metadata.resource_version && is_undone, "{what}");
                    Ok(())
                })
                .await
            };
            longest = longest.max(quickest(REPAIRED_WITHIN, what, once).await?);
        }
        for (what, which) in [("deleted", "mutating"), ("the validating one deleted", "validating")] {
            let once = async || -> Result<Duration> {
                let before = kept.repairs(which, "missing");
                match which {
                    "mutating" => drop(kept.mutating().delete("pillion", &DeleteParams::default()).await?),
                    _ => drop(kept.validating().delete("pillion", &DeleteParams::default()).await?),
                }
                took(what, async || {
                    kept.expect_matches(&target).await?;
                    ensure!(kept.repairs(which, "missing") > before, "{what}");
                    Ok(())
                })
                .await
            };
            longest = longest.max(quickest(REPAIRED_WITHIN, what, once).await?);
        }
        println!("the longest: {longest:?}");
        let there = kept.live().await?.mutating.context("there")?.metadata.annotations.context("annotations")?;
        ensure!(there["pillion.dev/epoch"] == "7" && there["pillion.dev/release"] == "pillion-system/pillion");
        kept.end().await
    });
}

#[test]
fn persistent_drift_is_paced_and_reported() {
    isolated(|| async {
        let mut settings = Settings::default();
        (settings.first_pause, settings.longest_pause) = (Duration::from_millis(300), Duration::from_millis(1200));
        let target = target(&release()?, &TestCa::new()?, 1);
        let kept = KeptControlPlane::filled(settings, &target).await?;
        // Pauses are 0, 0, 0, 300, 600 and 1200 ms, then always 1200 ms. In six seconds there are at most 3 + 2 + 4
        // repairs. Allow one more.
        let (began, mut written) = (Instant::now(), 0);
        while began.elapsed() < Duration::from_secs(6) {
            kept.patch(&json!([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}])).await.ok();
            written += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let (repairs, lasted) = (kept.repairs("mutating", "ca_bundle_empty"), began.elapsed());
        println!("{written} changes, {repairs} repairs in {lasted:?}");
        let most = 6.0 + (lasted.as_secs_f64() - 0.9) / 1.2;
        ensure!((6.0..=most).contains(&repairs), "{repairs} in {lasted:?}");
        eventually(SOON, "the metric reports the contention", async || {
            ensure!(kept.metric("pillion_controller_configuration_contested") == Some(1.0));
            Ok(())
        })
        .await?;
        eventually(SOON, "the target is restored", async || kept.expect_matches(&target).await).await?;
        kept.end().await
    });
}

#[test]
fn stale_leader_loses_by_conflict() {
    isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        control_plane.create_namespace(NAMESPACE, &[]).await?;
        let (client, release, ca) = (control_plane.client(), release()?, TestCa::new()?);
        let nothing = observe(&client, &release, false).await?;
        ensure!(nothing.configuration(&|_| None) == Configuration::Absent);

        // Both writers have read that no configuration exists. The writer with the lower epoch writes second.
        let claimed = claim(&client, &release, &nothing, 5).await?;
        ensure!(matches!(claim(&client, &release, &nothing, 4).await, Err(WriteError::Changed)));
        ensure!(observe(&client, &release, false).await?.configuration(&|_| None) == Configuration::Empty { epoch: 5 });
        // After `claimed` was read, a writer with a higher epoch claimed the configuration.
        let later = claim(&client, &release, &claimed, 9).await?;
        ensure!(matches!(
            write(&client, &release, &claimed, &target(&release, &ca, 5)).await,
            Err(WriteError::Changed)
        ));
        // The lower epoch is rejected even if the writer reads the configuration again.
        let read = observe(&client, &release, false).await?;
        let behind = write(&client, &release, &read, &target(&release, &ca, 8)).await;
        ensure!(matches!(behind, Err(WriteError::Behind { live: 9, ours: 8 })), "{behind:?}");
        ensure!(matches!(claim(&client, &release, &read, 8).await, Err(WriteError::Behind { .. })));

        let written = write(&client, &release, &later, &target(&release, &ca, 9)).await?;
        let know = |_: &[u8]| Some(Generation(1));
        let Configuration::Present(bundle) = written.configuration(&know) else { bail!("{written:?}") };
        ensure!(bundle.uniform && bundle.epoch == 9 && bundle.cas.len() == 1 && !bundle.unknown, "{bundle:?}");
        ensure!(matches!(claim(&client, &release, &written, 10).await, Err(WriteError::NotEmpty)));
        ensure!(matches!(write(&client, &release, &later, &target(&release, &ca, 9)).await, Err(WriteError::Changed)));
        let mut empty = target(&release, &ca, 9);
        empty.settings.ca_bundle.clear();
        ensure!(matches!(write(&client, &release, &written, &empty).await, Err(WriteError::NoCa)));

        // The field manager identifies the client that wrote a field.
        let api = Api::<MutatingWebhookConfiguration>::all(client.clone());
        let ignore: json_patch::Patch = serde_json::from_value(json!([
            {"op": "replace", "path": "/webhooks/1/failurePolicy", "value": "Ignore"},
        ]))?;
        let parameters = PatchParams { field_manager: Some("vandal".to_owned()), ..PatchParams::default() };
        let edited = api.patch("pillion", &parameters, &Patch::<()>::Json(ignore)).await?.metadata;
        let writer = |entry| entry_manager(&edited, entry, &["f:failurePolicy"]);
        ensure!(writer("required.pillion.dev").as_deref() == Some("vandal"), "{:?}", edited.managed_fields);

        // Labels and annotations of other clients are kept. The validating configuration is deleted when it would have
        // no entry.
        let labelled = json!({"metadata": {"labels": {"team": "platform"}, "annotations": {"a": "b"}}});
        api.patch("pillion", &PatchParams::default(), &Patch::Merge(&labelled)).await?;
        let mut quiet = target(&release, &ca, 10);
        (quiet.settings.validates_profiles, quiet.settings.trust_probe) = (false, false);
        quiet.rules.validated = Validated::default();
        let read = observe(&client, &release, false).await?;
        let written = write(&client, &release, &read, &quiet).await?;
        ensure!(written.validating.is_none() && observe(&client, &release, false).await?.validating.is_none());
        let metadata = written.mutating.context("there")?.metadata;
        ensure!(metadata.labels.context("labels")?["team"] == "platform");
        ensure!(metadata.annotations.context("annotations")?["a"] == "b");

        // Another release of the same name may neither write nor delete the configurations.
        let other = Release::new("pillion", "elsewhere", "cluster.local")?;
        let read = observe(&client, &other, false).await?;
        let refused = write(&client, &other, &read, &target(&other, &ca, 99)).await;
        ensure!(
            matches!(&refused, Err(WriteError::OtherRelease(owner)) if owner == "pillion-system/pillion"),
            "{refused:?}"
        );
        ensure!(!webhook_config::remove(&client, &other).await?);
        ensure!(webhook_config::remove(&client, &release).await?);
        ensure!(observe(&client, &release, false).await? == Live::default());
        Ok(())
    });
}

#[test]
fn deleted_switch_is_recreated_without_effect() {
    isolated(|| async {
        let target = target(&release()?, &TestCa::new()?, 3);
        let mut kept = KeptControlPlane::filled(without_pauses(), &target).await?;
        let maps = Api::<ConfigMap>::namespaced(kept.control_plane.client(), NAMESPACE);
        let mut quickest = Duration::MAX;
        for _ in 0..TRIES {
            let before = maps.get("pillion").await?;
            maps.delete("pillion", &DeleteParams::default()).await?;
            let after = took("the switch deleted", async || {
                let there = maps.get("pillion").await?;
                ensure!(there.metadata.uid != before.metadata.uid && there.data == before.data, "{there:?}");
                Ok(())
            })
            .await?;
            println!("the switch deleted: recreated after {after:?}");
            quickest = quickest.min(after);
            if quickest < REPAIRED_WITHIN {
                break;
            }
            // A keeper recreates the ConfigMap at most once a minute, so another attempt needs a new leadership term.
            kept = kept.next_term(without_pauses(), &target).await?;
        }
        ensure!(quickest < REPAIRED_WITHIN, "{quickest:?}");
        kept.expect_matches(&target).await?;
        ensure!(kept.metric("pillion_controller_configuration_disabled") == Some(0.0));
        kept.end().await
    });
}

/// Returns the kinds and UIDs of an object's owners.
fn owners(metadata: ObjectMeta) -> Vec<(String, String)> {
    metadata.owner_references.unwrap_or_default().into_iter().map(|owner| (owner.kind, owner.uid)).collect()
}

#[test]
fn owner_references_follow_recreated_namespace() {
    isolated(|| async {
        let target = target(&release()?, &TestCa::new()?, 3);
        let kept = KeptControlPlane::filled(without_pauses(), &target).await?;
        let client = kept.control_plane.client();
        let leading =
            LeaderContext { client: client.clone(), release: Arc::clone(&kept.release), stop: kept.stop.clone() };
        let settings = PolicySettings::new(held::Settings::new("pillion", NAMESPACE));
        let metrics = HeldMetrics::register(&mut Registry::default());
        let (_wanted, wanted) = watch::channel(Some(true));
        let policies = tokio::spawn(policies::run(leading, settings, wanted, metrics));

        let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(client.clone());
        let uid = Api::<Namespace>::all(client.clone()).get(NAMESPACE).await?.metadata.uid.context("an id")?;
        let are_its_own = async || {
            let expected = [("Namespace".to_owned(), uid.clone())];
            let found = [kept.mutating().get("pillion").await?.metadata, bindings.get("pillion-held").await?.metadata];
            for metadata in found {
                let owners = owners(metadata);
                ensure!(owners == expected, "{owners:?} is not {expected:?}");
            }
            Ok(())
        };
        eventually(SOON, "all objects have the namespace as their owner", are_its_own).await?;
        // Simulates an owner that was deleted and recreated before the garbage collector processed its dependents.
        let gone = json!([{"op": "replace", "path": "/metadata/ownerReferences/0/uid", "value": "gone"}]);
        let gone: json_patch::Patch = serde_json::from_value(gone)?;
        bindings.patch("pillion-held", &PatchParams::default(), &Patch::<()>::Json(gone)).await?;
        kept.patch(&json!([
            {"op": "replace", "path": "/metadata/ownerReferences/0/uid", "value": "gone"},
            {"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"},
        ]))
        .await?;
        eventually(SOON, "all objects have the current namespace as their owner", are_its_own).await?;
        kept.expect_matches(&target).await?;
        kept.end().await?;
        tokio::time::timeout(SOON, policies).await.context("the policies' task has not stopped")??;
        Ok(())
    });
}

#[test]
fn unconfirmed_configuration_stays_empty() {
    isolated(|| async {
        let target = target(&release()?, &TestCa::new()?, 3);
        let kept = KeptControlPlane::filled(without_pauses(), &target).await?;
        kept.confirmed.store(false, Ordering::SeqCst);
        kept.mutating().delete("pillion", &DeleteParams::default()).await?;
        eventually(SOON, "the keeper creates an empty configuration", async || {
            let seen = kept.live().await?;
            ensure!(seen.configuration(&|_| None) == Configuration::Empty { epoch: 3 } && seen.validating.is_none());
            Ok(())
        })
        .await?;
        tokio::time::sleep(Duration::from_millis(1200)).await;
        ensure!(kept.live().await?.configuration(&|_| None) == Configuration::Empty { epoch: 3 });
        kept.confirmed.store(true, Ordering::SeqCst);
        eventually(SOON, "the configurations are filled", async || kept.expect_matches(&target).await).await?;
        kept.end().await
    });
}

#[test]
fn disarmed_webhooks_stay_deleted_until_enabled() {
    isolated(|| async {
        let target = target(&release()?, &TestCa::new()?, 3);
        let kept = KeptControlPlane::filled(without_pauses(), &target).await?;
        let gone = async || -> Result<()> {
            let live = kept.live().await?;
            ensure!(live.mutating.is_none() && live.validating.is_none() && live.disabled, "{live:?}");
            Ok(())
        };
        let once = async || -> Result<Duration> {
            kept.mark("enabled").await?;
            eventually(SOON, "both configurations exist", async || kept.expect_matches(&target).await).await?;
            kept.mark("disabled").await?;
            took("the configurations are deleted", async || gone().await).await
        };
        quickest(REPAIRED_WITHIN, "disabled", once).await?;
        // An unknown value leaves the webhooks disabled.
        kept.mark("dissarmed").await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        ensure!(kept.live().await?.mutating.is_none());
        kept.mark("disabled").await?;
        ensure!(kept.metric("pillion_controller_configuration_disabled") == Some(1.0));
        let refused = write(&kept.control_plane.client(), &kept.release, &kept.live().await?, &target).await;
        ensure!(matches!(refused, Err(WriteError::WebhooksDisabled)), "{refused:?}");

        kept.mark("enabled").await?;
        eventually(SOON, "the configurations are recreated", async || kept.expect_matches(&target).await).await?;
        // Runs `pillion uninstall` while a controller runs.
        let accounts = Api::<ServiceAccount>::namespaced(kept.control_plane.client(), NAMESPACE);
        let account = serde_json::from_value(json!({"metadata": {"name": "pillion-controller"}}))?;
        let account = accounts.create(&PostParams::default(), &account).await?;
        let kubeconfig = kept.control_plane.kubeconfig();
        let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_pillion"))
            .args(["uninstall", "--release", "pillion-system/pillion", "--kubeconfig"])
            .arg(kubeconfig)
            .output()
            .await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        tokio::time::sleep(Duration::from_millis(500)).await;
        // A keeper that receives the value late may recreate the configurations once, but then deletes them again.
        eventually(SOON, "the configurations are deleted permanently", gone).await?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(text.contains("is deleted with the service account pillion-controller"), "{text}");
        // The ConfigMap is deleted together with the controller's service account, after the last controller has ended.
        // So a later installation does not find this ConfigMap.
        let maps = Api::<ConfigMap>::namespaced(kept.control_plane.client(), NAMESPACE);
        let owners = maps.get("pillion").await?.metadata.owner_references.unwrap_or_default();
        let owners: Vec<_> = owners.into_iter().map(|owner| (owner.kind, Some(owner.uid))).collect();
        ensure!(owners == [("ServiceAccount".to_owned(), account.metadata.uid)], "{owners:?}");
        kept.end().await
    });
}
