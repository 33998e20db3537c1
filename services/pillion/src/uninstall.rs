//! `pillion uninstall`: removes a release's cluster-scoped objects before the release itself is deleted.
//!
//! A namespaced object cannot own a cluster-scoped one, so deleting a release leaves its webhook configurations. If a
//! configuration remained, the API server would reject every new pod of `required` namespaces.

use anyhow::Context;
use clap::Args;
use pillion_api::{held, safety_net};
use pillion_control::Release;
use pillion_control::held::PolicySettings;
use pillion_control::webhook_config;
use pillion_control::webhook_config::switch;

use crate::args;
use crate::args::{ApiServerArgs, block_on};
use crate::exit::Exit;
use crate::output;

/// Arguments of `pillion uninstall`.
#[derive(Clone, Debug, Args)]
pub(crate) struct UninstallArgs {
    /// Namespace and name of the release.
    #[arg(long, value_name = "NAMESPACE/NAME", env = "PILLION_RELEASE", value_parser = args::release)]
    release: Release,
    #[command(flatten)]
    api_server: ApiServerArgs,
}

/// Sets `webhooks: disabled` in the release's ConfigMap, so that no controller recreates the webhook configurations.
/// Then deletes the webhook configurations, the policies of held namespaces, and the policy of the safety net.
pub(crate) fn run(args: UninstallArgs) -> anyhow::Result<Exit> {
    block_on(async {
        let UninstallArgs { release, api_server } = args;
        let client = api_server.client().await?;
        let (namespace, name) = (release.namespace(), release.switch());
        let goes = switch::disable(&client, &release).await.with_context(|| {
            format!("cannot write {}: disabled to the ConfigMap {namespace}/{name}", switch::WEBHOOKS_KEY)
        })?;
        let removed = webhook_config::remove(&client, &release)
            .await
            .with_context(|| format!("cannot delete the webhook configurations {}", release.configuration()))?;
        let policies = PolicySettings::new(held::Settings::new(name, namespace));
        pillion_control::held::policies::remove(&client, &policies).await.with_context(|| {
            format!("cannot delete the policies {name}-held: pods of held namespaces would wait forever")
        })?;
        let net = safety_net::Settings::new(name, namespace);
        pillion_control::safety_net::remove(&client, &net)
            .await
            .with_context(|| format!("cannot delete the policy {}: it would still inject pods", net.name))?;
        let said = if removed { "are deleted" } else { "did not exist" };
        let then = if goes {
            format!("is deleted with the service account {}", release.controller())
        } else {
            format!("remains: delete it before you install {name} again")
        };
        output::show(&format!(
            "the webhook configurations {} {said}: the API server calls no webhook\n\
             the ConfigMap {namespace}/{name} has {}: disabled, and {then}\n",
            release.configuration(),
            switch::WEBHOOKS_KEY
        ))?;
        Ok(Exit::Success)
    })
}
