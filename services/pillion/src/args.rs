//! Arguments that several commands share: the release and the API server. [`block_on`] runs the future of a short
//! command.

use std::future::Future;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use pillion_control::client;
use pillion_control::release::{DEFAULT_CLUSTER_DOMAIN, Release};

/// Arguments that select the release.
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
    /// Returns the release, with the cluster domain of the arguments.
    ///
    /// # Errors
    /// The cluster domain is invalid.
    pub(crate) fn release(&self) -> anyhow::Result<Release> {
        Ok(Release::new(self.release.name(), self.release.namespace(), &self.cluster_domain)?)
    }
}

/// Arguments of interactive commands that select the API server.
#[derive(Clone, Debug, Args)]
pub(crate) struct ApiServerArgs {
    /// Kubeconfig file for the API server. Default: like kubectl.
    #[arg(long, value_name = "FILE", env = "PILLION_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

impl ApiServerArgs {
    /// Connects to the API server, and checks that it responds.
    ///
    /// # Errors
    /// There is no valid configuration, or the API server does not respond.
    pub(crate) async fn connect(&self) -> anyhow::Result<kube::Client> {
        let client = match &self.kubeconfig {
            Some(file) => client::connect(Some(file)).await?,
            None => client::inferred().await?,
        };
        // Fails here if the API server is unavailable. Otherwise, each request of the command would wait and fail.
        match client.apiserver_version().await {
            Ok(_) => Ok(client),
            // The API server responds. The user only lacks the permission to read its version.
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(client),
            Err(error) => Err(error).context("the API server cannot be asked: is the kubeconfig the right one?"),
        }
    }
}

/// Arguments that select the API server and the release.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClusterArgs {
    #[command(flatten)]
    api_server: ApiServerArgs,
    #[command(flatten)]
    release: ReleaseArgs,
}

impl ClusterArgs {
    /// Returns the release without connecting to the API server.
    ///
    /// # Errors
    /// The cluster domain is invalid.
    pub(crate) fn release(&self) -> anyhow::Result<Release> {
        self.release.release()
    }

    /// Connects to the API server. Returns the client and the release.
    ///
    /// # Errors
    /// The API server is unavailable, or the cluster domain is invalid.
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
