//! Arguments that several commands share: the API server, the release and the namespace. Flags that kubectl also has
//! are named as in kubectl. [`block_on`] runs the future of a short command.

use std::future::Future;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use pillion_control::client;
use pillion_control::client::ConnectOptions;
use pillion_control::release::{DEFAULT_CLUSTER_DOMAIN, Release};

use crate::config::Time;

/// Arguments that select the release.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReleaseArgs {
    /// Namespace and name of the release. The names of its objects derive from them.
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "pillion-system/pillion", env = "PILLION_RELEASE", value_parser = release)]
    release: Release,
    /// The cluster's DNS domain.
    #[arg(long, value_name = "DOMAIN", default_value = DEFAULT_CLUSTER_DOMAIN, env = "PILLION_CLUSTER_DOMAIN")]
    cluster_domain: String,
}

impl ReleaseArgs {
    /// Returns the release, with the cluster domain from the command line.
    ///
    /// # Errors
    /// The cluster domain is invalid.
    pub(crate) fn release(&self) -> anyhow::Result<Release> {
        Ok(Release::new(self.release.name(), self.release.namespace(), &self.cluster_domain)?)
    }
}

/// The help heading of the connection flags.
pub(crate) const CONNECTION: &str = "Connection";

/// Arguments of all commands that connect to an API server.
#[derive(Clone, Debug, Args)]
pub(crate) struct ApiServerArgs {
    /// The kubeconfig file. Default: $KUBECONFIG, else ~/.kube/config, else the service account of this pod.
    #[arg(long, value_name = "FILE", env = "PILLION_KUBECONFIG", help_heading = CONNECTION)]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig. Default: its current context.
    #[arg(long, value_name = "NAME", help_heading = CONNECTION)]
    context: Option<String>,
    /// Act as this user, by impersonation.
    #[arg(long = "as", value_name = "USER", help_heading = CONNECTION)]
    user: Option<String>,
    /// Act as a member of this group, by impersonation. May be given several times.
    #[arg(long = "as-group", value_name = "GROUP", requires = "user", help_heading = CONNECTION)]
    groups: Vec<String>,
    /// Fail if the API server sends nothing for this long during a request, such as 30s. Default: 55s.
    #[arg(long, value_name = "DURATION", help_heading = CONNECTION)]
    request_timeout: Option<Time>,
}

impl ApiServerArgs {
    /// Creates a client without sending a request.
    ///
    /// # Errors
    /// There is no valid configuration.
    pub(crate) async fn client(&self) -> anyhow::Result<kube::Client> {
        let Self { kubeconfig, context, user, groups, request_timeout } = self.clone();
        // As with kubectl, zero disables the timeout.
        let request_timeout = request_timeout.map(|Time(limit)| limit).filter(|limit| !limit.is_zero());
        Ok(client::connect_with(&ConnectOptions { kubeconfig, context, user, groups, request_timeout }).await?)
    }

    /// Connects to the API server, and checks that it responds.
    ///
    /// # Errors
    /// There is no valid configuration, or the API server does not respond.
    pub(crate) async fn connect(&self) -> anyhow::Result<kube::Client> {
        let client = self.client().await?;
        // Fails here if the API server is unavailable. Otherwise, each request of the command would time out.
        match client.apiserver_version().await {
            Ok(_) => Ok(client),
            // The API server responds. The user only lacks the permission to read its version.
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(client),
            Err(error) => Err(error).context("cannot reach the API server (check the kubeconfig)"),
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
    /// There is no valid configuration, the API server does not respond, or the cluster domain is invalid.
    pub(crate) async fn connect(&self) -> anyhow::Result<(kube::Client, Release)> {
        let release = self.release.release()?;
        Ok((self.api_server.connect().await?, release))
    }
}

/// Arguments that select namespaced objects, as for `kubectl get`.
#[derive(Clone, Debug, Args)]
pub(crate) struct NamespaceArgs {
    /// The namespace. Default: that of the kubeconfig's context, else "default".
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// All namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
}

impl NamespaceArgs {
    /// Returns the selected namespace, or `None` for all namespaces.
    pub(crate) fn selected(&self, client: &kube::Client) -> Option<String> {
        let default = || client.default_namespace().to_owned();
        (!self.all_namespaces).then(|| self.namespace.clone().unwrap_or_else(default))
    }

    /// Returns the namespace that the command line specifies, if any.
    pub(crate) fn named(&self) -> Option<&str> {
        self.namespace.as_deref()
    }
}

/// Parses a release, written as `NAMESPACE/NAME`.
pub(crate) fn release(text: &str) -> Result<Release, String> {
    let (namespace, name) = text.split_once('/').ok_or("expected NAMESPACE/NAME, as in pillion-system/pillion")?;
    Release::new(name, namespace, DEFAULT_CLUSTER_DOMAIN).map_err(|error| error.to_string())
}

/// Runs a short command's future to completion on one thread.
///
/// # Errors
/// The future fails, or the runtime cannot be created.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the async runtime")?;
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
