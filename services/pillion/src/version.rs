//! `pillion version`: prints the version of this program, and of the installation if the API server is reachable.

use std::fmt::Write;

use anyhow::Context;
use clap::Args;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::Api;
use pillion_control::Release;
use serde::Serialize;

use crate::args::{ClusterArgs, block_on};
use crate::exit::Exit;
use crate::output::{self, Form};

/// The label that contains the version of a component.
const VERSION_LABEL: &str = "app.kubernetes.io/version";

/// Arguments of `pillion version`.
#[derive(Clone, Debug, Args)]
pub(crate) struct VersionArgs {
    /// Print only the version of this program, without connecting to the API server.
    #[arg(long)]
    client: bool,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORMAT")]
    output: Form,
    #[command(flatten)]
    at: ClusterArgs,
}

/// The versions, in the structure of the machine-readable output.
#[derive(Debug, Serialize)]
struct Versions {
    client: Client,
    /// `None` if the API server was not contacted, or if the installation could not be read.
    server: Option<Server>,
}

/// The version of this program.
#[derive(Debug, Serialize)]
struct Client {
    version: &'static str,
    /// The Git commit; empty in builds without it.
    revision: &'static str,
}

/// The versions in the cluster. `kubernetes` is `None` if it could not be read. The components are `None` if they are
/// not installed.
#[derive(Debug, Serialize)]
struct Server {
    kubernetes: Option<String>,
    webhook: Option<Component>,
    controller: Option<Component>,
}

/// A Deployment of the release.
#[derive(Debug, Serialize)]
struct Component {
    version: Option<String>,
    image: Option<String>,
}

/// Prints the versions. If the installation cannot be read, reports that and succeeds.
pub(crate) fn run(args: VersionArgs) -> anyhow::Result<Exit> {
    let VersionArgs { client, output, at } = args;
    let server = if client { None } else { Some(block_on(server(&at))) };
    let (server, error) = match server {
        None => (None, None),
        Some(Ok(server)) => (Some(server), None),
        Some(Err(error)) => (None, Some(error)),
    };
    let client =
        Client { version: env!("CARGO_PKG_VERSION"), revision: option_env!("PILLION_REVISION").unwrap_or_default() };
    let versions = Versions { client, server };
    output.print(|| Ok(text(&versions)), || Ok(serde_json::to_value(&versions)?))?;
    if let Some(error) = error {
        output::report(&format!("the version of the installation is unknown: {}", output::causes(&error)))?;
    }
    Ok(Exit::Success)
}

async fn server(at: &ClusterArgs) -> anyhow::Result<Server> {
    let (client, release) = at.connect().await?;
    let kubernetes = client.apiserver_version().await.ok().map(|found| found.git_version);
    let webhook = component(&client, &release, "webhook").await?;
    let controller = component(&client, &release, "controller").await?;
    Ok(Server { kubernetes, webhook, controller })
}

/// Reads a Deployment of the release; `None` if it does not exist.
async fn component(client: &kube::Client, release: &Release, component: &str) -> anyhow::Result<Option<Component>> {
    let name = format!("{}-{component}", release.name());
    let deployments = Api::<Deployment>::namespaced(client.clone(), release.namespace());
    let found = deployments.get_opt(&name).await;
    let found = found.with_context(|| format!("the Deployment {}/{name} cannot be read", release.namespace()))?;
    Ok(found.map(|deployment| {
        let version = deployment.metadata.labels.and_then(|mut labels| labels.remove(VERSION_LABEL));
        let pod = deployment.spec.template.spec;
        let container = pod.and_then(|pod| pod.containers.into_iter().find(|container| container.name == component));
        Component { version, image: container.and_then(|container| container.image) }
    }))
}

fn text(versions: &Versions) -> String {
    let Client { version, revision } = versions.client;
    let mut text = format!("client       {version}");
    // Writing to a string never fails.
    if !revision.is_empty() {
        let _ = write!(text, ", revision {revision}");
    }
    text.push('\n');
    let Some(Server { kubernetes, webhook, controller }) = &versions.server else { return text };
    for (name, component) in [("webhook", webhook), ("controller", controller)] {
        let found = component.as_ref().map(|Component { version, image }| {
            let version = version.as_deref().unwrap_or("unknown version");
            format!("{version}, image {}", image.as_deref().unwrap_or("unknown"))
        });
        let _ = writeln!(text, "{name:<13}{}", found.as_deref().unwrap_or("not installed"));
    }
    let _ = writeln!(text, "kubernetes   {}", kubernetes.as_deref().unwrap_or("unknown version"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_lines() {
        let client = || Client { version: "1.2.0", revision: "abc" };
        let alone = Versions { client: client(), server: None };
        assert_eq!(text(&alone), "client       1.2.0, revision abc\n");
        let webhook = Component { version: Some("1.1.0".to_owned()), image: Some("pillion:1.1.0".to_owned()) };
        let server = Server { kubernetes: Some("v1.36.3".to_owned()), webhook: Some(webhook), controller: None };
        assert_eq!(
            text(&Versions { client: client(), server: Some(server) }),
            "client       1.2.0, revision abc\n\
             webhook      1.1.0, image pillion:1.1.0\n\
             controller   not installed\n\
             kubernetes   v1.36.3\n"
        );
    }
}
