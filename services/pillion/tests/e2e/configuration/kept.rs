//! A control plane in which a [`Keeper`], the leader's task for the webhook configurations, runs in the test process.
//! Helpers read and change the configurations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use futures::FutureExt;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams};
use pillion_control::leader::LeaderContext;
use pillion_control::release::Release;
use pillion_control::webhook_config::switch;
use pillion_control::webhook_config::{Keeper, Live, Metrics, Settings, Target, observe};
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, eventually};
use prometheus_client::registry::Registry;
use serde_json::{Value as Json, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::rig::SOON;

/// A control plane, and a [`Keeper`], which keeps the webhook configurations equal to its target.
pub(super) struct KeptControlPlane {
    pub(super) control_plane: ControlPlane,
    pub(super) release: Arc<Release>,
    target: watch::Sender<Option<Arc<Target>>>,
    /// The result of the keeper's check of a target. The keeper fills an empty configuration only if this is true.
    pub(super) confirmed: Arc<AtomicBool>,
    registry: Registry,
    pub(super) stop: CancellationToken,
    keeping: tokio::task::JoinHandle<()>,
}

impl KeptControlPlane {
    async fn start(settings: Settings) -> Result<Self> {
        let control_plane = ControlPlane::start().await?;
        control_plane.create_namespace(NAMESPACE, &[]).await?;
        let release = Arc::new(release()?);
        switch::ensure(&control_plane.client(), &release).await?;
        Ok(Self::term(control_plane, release, settings))
    }

    /// Starts a keeper for one leadership term.
    fn term(control_plane: ControlPlane, release: Arc<Release>, settings: Settings) -> Self {
        let (target, receiver) = watch::channel(None);
        let confirmed = Arc::new(AtomicBool::new(true));
        let confirm = {
            let confirmed = Arc::clone(&confirmed);
            Arc::new(move |_| std::future::ready(confirmed.load(Ordering::SeqCst)).boxed())
        };
        let mut registry = Registry::default();
        let (keeper, _) = Keeper::new(settings, Metrics::register(&mut registry), receiver, confirm);
        let (client, stop) = (control_plane.client(), CancellationToken::new());
        let leading = LeaderContext { client, release: Arc::clone(&release), stop: stop.clone() };
        let keeping = tokio::spawn(keeper.run(leading));
        Self { control_plane, release, target, confirmed, registry, stop, keeping }
    }

    /// Starts a keeper, and waits until both configurations match the target.
    pub(super) async fn filled(settings: Settings, target: &Target) -> Result<Self> {
        Self::start(settings).await?.fill(target).await
    }

    async fn fill(self, target: &Target) -> Result<Self> {
        self.target.send_replace(Some(Arc::new(target.clone())));
        eventually(SOON, "both configurations exist", async || self.expect_matches(target).await).await?;
        Ok(self)
    }

    /// Ends the leadership term, and starts the next one with the same control plane. Waits until both configurations
    /// match the target.
    pub(super) async fn next_term(self, settings: Settings, target: &Target) -> Result<Self> {
        let Self { control_plane, release, stop, keeping, .. } = self;
        stop.cancel();
        tokio::time::timeout(SOON, keeping).await.context("the keeper has not stopped")??;
        Self::term(control_plane, release, settings).fill(target).await
    }

    pub(super) async fn live(&self) -> Result<Live> {
        Ok(observe(&self.control_plane.client(), &self.release, false).await?)
    }

    /// Fails unless the entries of both live configurations equal those of the target.
    pub(super) async fn expect_matches(&self, target: &Target) -> Result<()> {
        let live = self.live().await?;
        let wanted = pillion_api::webhook_configuration::mutating_with(&target.settings, &target.rules.mutating);
        let validating = pillion_api::webhook_configuration::validating(&target.settings, &target.rules.validated);
        let entries = serde_json::to_value(live.mutating.and_then(|there| there.webhooks))?;
        ensure!(without_empty(entries) == without_empty(serde_json::to_value(wanted.webhooks)?), "mutating");
        let entries = serde_json::to_value(live.validating.and_then(|there| there.webhooks))?;
        let validating = serde_json::to_value(validating.and_then(|there| there.webhooks))?;
        ensure!(without_empty(entries) == without_empty(validating), "validating");
        Ok(())
    }

    pub(super) fn metric(&self, series: &str) -> Option<f64> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).ok()?;
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    pub(super) fn repairs(&self, configuration: &str, drift: &str) -> f64 {
        let series = format!(
            "pillion_controller_configuration_repairs_total{{configuration=\"{configuration}\",reason=\"{drift}\"}}"
        );
        self.metric(&series).unwrap_or_default()
    }

    pub(super) async fn patch(&self, patch: &Json) -> Result<MutatingWebhookConfiguration> {
        let patch: json_patch::Patch = serde_json::from_value(patch.clone())?;
        let parameters = PatchParams { field_manager: Some("vandal".to_owned()), ..PatchParams::default() };
        Ok(self.mutating().patch("pillion", &parameters, &Patch::<()>::Json(patch)).await?)
    }

    pub(super) async fn mark(&self, word: &str) -> Result<()> {
        let patch = json!({"data": {"webhooks": word}});
        let maps = Api::<ConfigMap>::namespaced(self.control_plane.client(), NAMESPACE);
        maps.patch("pillion", &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }

    pub(super) fn mutating(&self) -> Api<MutatingWebhookConfiguration> {
        Api::all(self.control_plane.client())
    }

    pub(super) fn validating(&self) -> Api<ValidatingWebhookConfiguration> {
        Api::all(self.control_plane.client())
    }

    pub(super) async fn end(self) -> Result<()> {
        self.stop.cancel();
        tokio::time::timeout(SOON, self.keeping).await.context("the keeper has not stopped")??;
        Ok(())
    }
}

/// Removes empty values, because the API server writes empty defaults for absent fields.
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

pub(super) fn release() -> Result<Release> {
    Ok(Release::new("pillion", NAMESPACE, "cluster.local")?)
}
