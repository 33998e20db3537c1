//! Arguments that several commands share: the release and the API server. Also runs the requests of short commands.

use std::future::Future;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use pillion_control::client;
use pillion_control::release::{DEFAULT_CLUSTER_DOMAIN, Release};

/// The release of a command.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReleaseArgs {
    /// The release: its namespace and its name. The names of its objects derive from it.
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "pillion-system/pillion", env = "PILLION_RELEASE", value_parser = release)]
    release: Release,
    /// Domain of the cluster's internal names.
    #[arg(long, value_name = "DOMAIN", default_value = DEFAULT_CLUSTER_DOMAIN, env = "PILLION_CLUSTER_DOMAIN")]
    cluster_domain: String,
}

impl ReleaseArgs {
    /// Returns the release.
    ///
    /// # Errors
    /// The domain is invalid.
    pub(crate) fn release(&self) -> anyhow::Result<Release> {
        Ok(Release::new(self.release.name(), self.release.namespace(), &self.cluster_domain)?)
    }
}

/// The cluster, for interactive commands.
#[derive(Clone, Debug, Args)]
pub(crate) struct ApiServerArgs {
    /// How to reach the API server. Default: as kubectl does.
    #[arg(long, value_name = "FILE", env = "PILLION_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

impl ApiServerArgs {
    /// Returns a client of an API server that responds.
    ///
    /// # Errors
    /// There is no configuration, or the API server does not respond.
    pub(crate) async fn connect(&self) -> anyhow::Result<kube::Client> {
        let client = match &self.kubeconfig {
            Some(file) => client::connect(Some(file)).await?,
            None => client::inferred().await?,
        };
        // Otherwise each request of a command would wait for the same failure, and report it.
        match client.apiserver_version().await {
            Ok(_) => Ok(client),
            // It responds: the user lacks this permission only.
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(client),
            Err(error) => Err(error).context("the API server cannot be asked: is the kubeconfig the right one?"),
        }
    }
}

/// The cluster, and the release in it.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClusterArgs {
    #[command(flatten)]
    api_server: ApiServerArgs,
    #[command(flatten)]
    release: ReleaseArgs,
}

impl ClusterArgs {
    /// Returns the release, without a connection.
    ///
    /// # Errors
    /// The release is invalid.
    pub(crate) fn release(&self) -> anyhow::Result<Release> {
        self.release.release()
    }

    /// Returns a client, and the release.
    ///
    /// # Errors
    /// The API server is unavailable, or the release is invalid.
    pub(crate) async fn connect(&self) -> anyhow::Result<(kube::Client, Release)> {
        let release = self.release.release()?;
        Ok((self.api_server.connect().await?, release))
    }
}

/// Parses a release, `NAMESPACE/NAME`.
pub(crate) fn release(text: &str) -> Result<Release, String> {
    let (namespace, name) = text.split_once('/').ok_or("expected NAMESPACE/NAME, as in pillion-system/pillion")?;
    Release::new(name, namespace, DEFAULT_CLUSTER_DOMAIN).map_err(|error| error.to_string())
}

/// Runs a short command's future to its end on one thread.
///
/// # Errors
/// The future's own error, or the runtime cannot be created.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_has_namespace_and_name() {
        let named = release("pillion-system/pillion").unwrap();
        assert_eq!((named.namespace(), named.name()), ("pillion-system", "pillion"));
        assert!(release("pillion").unwrap_err().contains("NAMESPACE/NAME"));
        assert!(release("a/b/c").unwrap_err().contains("b/c"));
    }
}
