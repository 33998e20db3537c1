//! The webhook configurations against whoever changes them: what the keeper finds, undoes and leaves alone, at a real API
//! server. No replica is needed for that.

#![allow(clippy::print_stdout, reason = "figures are what it is about, too")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::FutureExt;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use pillion_control::configuration::{
    self, Keeper, Live, Metrics, Rules, Settings, Target, WriteError, claim, managers, observe, settings_of, write,
};
use pillion_control::leading::Leading;
use pillion_control::release::Release;
use pillion_control::rotation::{Configuration, Generation};
use pillion_control::switch;
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, TestCa, eventually, isolated};
use prometheus_client::registry::Registry;
use serde_json::{Value as Json, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::rig::SOON;

/// Within which what is wrong has to be right again.
const REPAIRED_WITHIN: Duration = Duration::from_secs(1);

/// A control plane, and a keeper of a fixed target.
struct Kept {
    control_plane: ControlPlane,
    release: Arc<Release>,
    target: watch::Sender<Option<Arc<Target>>>,
    /// Whether a target is confirmed.
    confirmed: Arc<AtomicBool>,
    registry: Registry,
    stop: CancellationToken,
    keeping: tokio::task::JoinHandle<()>,
}

impl Kept {
    async fn start(settings: Settings) -> Result<Self> {
        let control_plane = ControlPlane::start().await?;
        control_plane.create_namespace(NAMESPACE, &[]).await?;
        let release = Arc::new(Release::new("pillion", NAMESPACE, "cluster.local")?);
        switch::ensure(&control_plane.client(), &release).await?;
        let (target, receiver) = watch::channel(None);
        let confirmed = Arc::new(AtomicBool::new(true));
        let confirm = {
            let confirmed = Arc::clone(&confirmed);
            Arc::new(move |_| std::future::ready(confirmed.load(Ordering::SeqCst)).boxed())
        };
        let mut registry = Registry::default();
        let (keeper, _) = Keeper::new(settings, Metrics::register(&mut registry), receiver, confirm);
        let (client, stop) = (control_plane.client(), CancellationToken::new());
        let leading = Leading { client, release: Arc::clone(&release), stop: stop.clone() };
        let keeping = tokio::spawn(keeper.run(leading));
        Ok(Self { control_plane, release, target, confirmed, registry, stop, keeping })
    }

    /// With both configurations as they ought to be.
    async fn filled(settings: Settings, target: &Target) -> Result<Self> {
        let kept = Self::start(settings).await?;
        kept.target.send_replace(Some(Arc::new(target.clone())));
        eventually(SOON, "both are there", async || kept.is_as(target).await).await?;
        Ok(kept)
    }

    async fn live(&self) -> Result<Live> {
        Ok(observe(&self.control_plane.client(), &self.release, false).await?)
    }

    /// Fails unless what is there is what a target asks for, but for the marks.
    async fn is_as(&self, target: &Target) -> Result<()> {
        let live = self.live().await?;
        let wanted = pillion_api::webhook_configuration::mutating_with(&target.settings, &target.rules.mutating);
        let validating = pillion_api::webhook_configuration::validating(&target.settings, &target.rules.validating);
        let entries = serde_json::to_value(live.mutating.and_then(|there| there.webhooks))?;
        ensure!(without_empty(entries) == without_empty(serde_json::to_value(wanted.webhooks)?), "mutating");
        let entries = serde_json::to_value(live.validating.and_then(|there| there.webhooks))?;
        let validating = serde_json::to_value(validating.and_then(|there| there.webhooks))?;
        ensure!(without_empty(entries) == without_empty(validating), "validating");
        Ok(())
    }

    fn metric(&self, series: &str) -> Option<f64> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).ok()?;
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    fn repairs(&self, configuration: &str, drift: &str) -> f64 {
        let series = format!(
            "pillion_controller_configuration_repairs_total{{configuration=\"{configuration}\",drift=\"{drift}\"}}"
        );
        self.metric(&series).unwrap_or_default()
    }

    async fn patch(&self, patch: &Json) -> Result<MutatingWebhookConfiguration> {
        let patch: json_patch::Patch = serde_json::from_value(patch.clone())?;
        let parameters = PatchParams { field_manager: Some("vandal".to_owned()), ..PatchParams::default() };
        Ok(self.mutating().patch("pillion", &parameters, &Patch::<()>::Json(patch)).await?)
    }

    async fn mark(&self, word: &str) -> Result<()> {
        let patch = json!({"data": {"webhooks": word}});
        let maps = Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(self.control_plane.client(), NAMESPACE);
        maps.patch("pillion", &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }

    fn mutating(&self) -> Api<MutatingWebhookConfiguration> {
        Api::all(self.control_plane.client())
    }

    fn validating(&self) -> Api<ValidatingWebhookConfiguration> {
        Api::all(self.control_plane.client())
    }

    async fn end(self) -> Result<()> {
        self.stop.cancel();
        tokio::time::timeout(SOON, self.keeping).await.context("the keeper does not end")??;
        Ok(())
    }
}

/// How long it takes until something holds, looked at all the time.
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

/// What the API server writes where nothing was written means the same.
fn without_empty(mut value: Json) -> Json {
    match &mut value {
        Json::Object(fields) => {
            let filled: serde_json::Map<_, _> = std::mem::take(fields)
                .into_iter()
                .map(|(key, value)| (key, without_empty(value)))
                .filter(|(_, value)| !value.is_null() && *value != json!({}) && *value != json!([]))
                .collect();
            *fields = filled;
        }
        Json::Array(elements) => elements.iter_mut().for_each(|element| *element = without_empty(element.take())),
        _ => {}
    }
    value
}

/// Everything that there can be, for one authority.
fn target(release: &Release, authority: &TestCa, epoch: u64) -> Target {
    let settings =
        pillion_api::webhook_configuration::Settings { canary: true, validates_profiles: true, ..settings_of(release) };
    let rules = Rules::default();
    let rules = Rules { validating: rules.mutating.clone(), ..rules };
    Target::new(settings, rules, authority.bundle_pem().into_bytes(), epoch)
}

fn release() -> Result<Release> {
    Ok(Release::new("pillion", NAMESPACE, "cluster.local")?)
}

fn base64(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// Repairs without pauses.
fn at_once() -> Settings {
    let mut settings = Settings::default();
    settings.at_once = 1000;
    settings
}

#[test]
fn whatever_is_changed_is_as_it_ought_to_be_again_within_a_second() {
    isolated(|| async {
        let (ours, foreign) = (TestCa::new()?, TestCa::new()?);
        let target = target(&release()?, &ours, 7);
        let kept = Kept::filled(at_once(), &target).await?;
        let bundle = "/webhooks/0/clientConfig/caBundle";
        let (stranger, both) =
            (base64(&foreign.bundle_pem()), base64(&format!("{}{}", ours.bundle_pem(), foreign.bundle_pem())));
        let junk = base64("junk");
        let extra = json!({
            "name": "extra.example.org", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": "https://example.org/"},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        });
        let wide = json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}]);
        let changes = [
            ("the bundle emptied", json!([{"op": "remove", "path": bundle}]), "ca_bundle_empty"),
            (
                "the bundle replaced by junk",
                json!([{"op": "replace", "path": bundle, "value": junk}]),
                "ca_bundle_junk",
            ),
            (
                "the bundle a stranger's",
                json!([{"op": "replace", "path": bundle, "value": stranger}]),
                "ca_bundle_lacking",
            ),
            (
                "a stranger in the bundle",
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
                "marks",
            ),
        ];
        let mut longest = Duration::ZERO;
        for (what, patch, drift) in &changes {
            let before = kept.repairs("mutating", drift);
            let vandals = kept.patch(patch).await.with_context(|| format!("{what}: {patch}"))?;
            let after = took(what, async || {
                kept.is_as(&target).await?;
                // The version that the vandal wrote is not the one that is there: so this one was seen, and undone.
                let now = kept.live().await?.mutating.context("there")?.metadata.resource_version;
                ensure!(now != vandals.metadata.resource_version && kept.repairs("mutating", drift) > before, "{what}");
                Ok(())
            })
            .await?;
            println!("{what}: right again after {after:?}");
            longest = longest.max(after);
        }
        for (what, which) in [("deleted", "mutating"), ("the validating one deleted", "validating")] {
            let before = kept.repairs(which, "missing");
            match which {
                "mutating" => drop(kept.mutating().delete("pillion", &DeleteParams::default()).await?),
                _ => drop(kept.validating().delete("pillion", &DeleteParams::default()).await?),
            }
            let after = took(what, async || {
                kept.is_as(&target).await?;
                ensure!(kept.repairs(which, "missing") > before, "{what}");
                Ok(())
            })
            .await?;
            println!("{what}: right again after {after:?}");
            longest = longest.max(after);
        }
        println!("the longest: {longest:?}");
        ensure!(longest < REPAIRED_WITHIN, "{longest:?}");
        let there = kept.live().await?.mutating.context("there")?.metadata.annotations.context("annotations")?;
        ensure!(there["pillion.dev/epoch"] == "7" && there["pillion.dev/release"] == "pillion-system/pillion");
        kept.end().await
    });
}

#[test]
fn who_does_not_give_up_is_answered_with_pauses_and_told_of() {
    isolated(|| async {
        let mut settings = Settings::default();
        (settings.first_pause, settings.longest_pause) = (Duration::from_millis(300), Duration::from_millis(1200));
        let target = target(&release()?, &TestCa::new()?, 1);
        let kept = Kept::filled(settings, &target).await?;
        // 0, 0, 0, 300, 600 and 1200 ms, then each 1200 ms: no more than 3 + 2 + 4 in six seconds.
        let (began, mut written) = (Instant::now(), 0);
        while began.elapsed() < Duration::from_secs(6) {
            kept.patch(&json!([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}])).await.ok();
            written += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let repairs = kept.repairs("mutating", "ca_bundle_empty");
        println!("{written} changes, {repairs} repairs");
        ensure!((6.0..=10.0).contains(&repairs), "{repairs}");
        let contested = "pillion_controller_configuration_contested";
        ensure!(kept.metric(contested) == Some(1.0));
        eventually(Duration::from_secs(5), "right again after the fight", async || kept.is_as(&target).await).await?;
        kept.end().await
    });
}

#[test]
fn who_is_behind_loses_by_conflict() {
    isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        control_plane.create_namespace(NAMESPACE, &[]).await?;
        let (client, release, authority) = (control_plane.client(), release()?, TestCa::new()?);
        let nothing = observe(&client, &release, false).await?;
        ensure!(nothing.configuration(&|_| None) == Configuration::Absent);

        // Both read that there is none; the one of the earlier epoch comes late.
        let claimed = claim(&client, &release, &nothing, 5).await?;
        ensure!(matches!(claim(&client, &release, &nothing, 4).await, Err(WriteError::Changed)));
        ensure!(observe(&client, &release, false).await?.configuration(&|_| None) == Configuration::Empty { epoch: 5 });
        // It was claimed for a later epoch since it was read.
        let later = claim(&client, &release, &claimed, 9).await?;
        ensure!(matches!(
            write(&client, &release, &claimed, &target(&release, &authority, 5)).await,
            Err(WriteError::Changed)
        ));
        // Nor does it help to read it again.
        let read = observe(&client, &release, false).await?;
        let behind = write(&client, &release, &read, &target(&release, &authority, 8)).await;
        ensure!(matches!(behind, Err(WriteError::Behind { live: 9, ours: 8 })), "{behind:?}");
        ensure!(matches!(claim(&client, &release, &read, 8).await, Err(WriteError::Behind { .. })));

        let written = write(&client, &release, &later, &target(&release, &authority, 9)).await?;
        let know = |_: &[u8]| Some(Generation(1));
        let Configuration::Present(bundle) = written.configuration(&know) else { bail!("{written:?}") };
        ensure!(bundle.uniform && bundle.epoch == 9 && bundle.authorities.len() == 1 && !bundle.unknown, "{bundle:?}");
        ensure!(matches!(claim(&client, &release, &written, 10).await, Err(WriteError::NotEmpty)));
        ensure!(matches!(
            write(&client, &release, &later, &target(&release, &authority, 9)).await,
            Err(WriteError::Changed)
        ));
        let mut empty = target(&release, &authority, 9);
        empty.settings.ca_bundle.clear();
        ensure!(matches!(write(&client, &release, &written, &empty).await, Err(WriteError::NoAuthority)));

        // Who wrote something is known by the name that the client gave itself.
        let api = Api::<MutatingWebhookConfiguration>::all(client.clone());
        let ignore: json_patch::Patch = serde_json::from_value(json!([
            {"op": "replace", "path": "/webhooks/1/failurePolicy", "value": "Ignore"},
        ]))?;
        let parameters = PatchParams { field_manager: Some("vandal".to_owned()), ..PatchParams::default() };
        let edited = api.patch("pillion", &parameters, &Patch::<()>::Json(ignore)).await?.metadata;
        let writer = |entry| managers::of_entry(&edited, entry, &["f:failurePolicy"]);
        ensure!(writer("required.pillion.dev").as_deref() == Some("vandal"), "{:?}", edited.managed_fields);

        // Labels and annotations of others stay, and nothing validating is left where nothing validates.
        let labelled = json!({"metadata": {"labels": {"team": "platform"}, "annotations": {"a": "b"}}});
        api.patch("pillion", &PatchParams::default(), &Patch::Merge(&labelled)).await?;
        let mut quiet = target(&release, &authority, 10);
        (quiet.settings.validates_profiles, quiet.settings.canary) = (false, false);
        quiet.rules.validating.clear();
        let read = observe(&client, &release, false).await?;
        let written = write(&client, &release, &read, &quiet).await?;
        ensure!(written.validating.is_none() && observe(&client, &release, false).await?.validating.is_none());
        let metadata = written.mutating.context("there")?.metadata;
        ensure!(metadata.labels.context("labels")?["team"] == "platform");
        ensure!(metadata.annotations.context("annotations")?["a"] == "b");

        // Another release of the same name keeps its hands off, and so does its uninstalling.
        let other = Release::new("pillion", "elsewhere", "cluster.local")?;
        let read = observe(&client, &other, false).await?;
        let refused = write(&client, &other, &read, &target(&other, &authority, 99)).await;
        ensure!(
            matches!(&refused, Err(WriteError::Stranger(owner)) if owner == "pillion-system/pillion"),
            "{refused:?}"
        );
        ensure!(!configuration::remove(&client, &other).await?);
        ensure!(configuration::remove(&client, &release).await?);
        ensure!(observe(&client, &release, false).await? == Live::default());
        Ok(())
    });
}

#[test]
fn what_nobody_confirms_stays_empty() {
    isolated(|| async {
        let target = target(&release()?, &TestCa::new()?, 3);
        let kept = Kept::filled(at_once(), &target).await?;
        kept.confirmed.store(false, Ordering::SeqCst);
        kept.mutating().delete("pillion", &DeleteParams::default()).await?;
        eventually(SOON, "claimed", async || {
            let seen = kept.live().await?;
            ensure!(seen.configuration(&|_| None) == Configuration::Empty { epoch: 3 } && seen.validating.is_none());
            Ok(())
        })
        .await?;
        tokio::time::sleep(Duration::from_millis(1200)).await;
        ensure!(kept.live().await?.configuration(&|_| None) == Configuration::Empty { epoch: 3 });
        kept.confirmed.store(true, Ordering::SeqCst);
        eventually(SOON, "filled", async || kept.is_as(&target).await).await?;
        kept.end().await
    });
}

#[test]
fn what_is_disarmed_goes_and_stays_away_until_it_is_armed() {
    isolated(|| async {
        let target = target(&release()?, &TestCa::new()?, 3);
        let kept = Kept::filled(at_once(), &target).await?;
        let gone = async || {
            let live = kept.live().await?;
            ensure!(live.mutating.is_none() && live.validating.is_none() && live.disarmed, "{live:?}");
            Ok(())
        };
        kept.mark("disarmed").await?;
        let since = Instant::now();
        eventually(SOON, "gone", gone).await?;
        println!("gone after {:?}", since.elapsed());
        ensure!(since.elapsed() < REPAIRED_WITHIN);
        // A word that is not understood changes nothing.
        kept.mark("dissarmed").await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        ensure!(kept.live().await?.mutating.is_none());
        kept.mark("disarmed").await?;
        ensure!(kept.metric("pillion_controller_configuration_disarmed") == Some(1.0));
        let refused = write(&kept.control_plane.client(), &kept.release, &kept.live().await?, &target).await;
        ensure!(matches!(refused, Err(WriteError::Disarmed)), "{refused:?}");

        kept.mark("armed").await?;
        eventually(SOON, "back", async || kept.is_as(&target).await).await?;
        // What `pillion uninstall` does, while a controller is alive.
        let kubeconfig = kept.control_plane.kubeconfig();
        let said = tokio::process::Command::new(env!("CARGO_BIN_EXE_pillion"))
            .args(["uninstall", "--release", "pillion-system/pillion", "--kubeconfig"])
            .arg(kubeconfig)
            .output()
            .await?;
        ensure!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        tokio::time::sleep(Duration::from_millis(500)).await;
        gone().await?;
        kept.end().await
    });
}
