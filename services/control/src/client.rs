//! The connection to the API server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::watch::WATCH_FOR;

/// How long connecting may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// How long the API server may be silent. Longer than a watch lives, so that this ends only what hangs: a list whose
/// connection was lost without a word.
const SILENCE_LIMIT: Duration = Duration::from_secs(WATCH_FOR.as_secs() + 10);

/// There is no way to the API server.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig {} cannot be used", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// No kubeconfig was given, and this is not a pod.
    #[error("this is no pod with a service account's token; outside of a cluster, give a kubeconfig")]
    NotInCluster(#[source] Box<kube::config::InClusterError>),
    /// There is no kubeconfig where kubectl looks for one, and this is not a pod.
    #[error("there is no kubeconfig, and this is no pod; name one by --kubeconfig")]
    Nowhere(#[source] Box<kube::config::InferConfigError>),
    /// The configuration makes no client: a certificate that is none, say.
    #[error("the configuration makes no client")]
    Client(#[source] Box<kube::Error>),
}

/// A client by a kubeconfig, or by the pod's service account if there is none. Nothing is sent.
///
/// # Errors
/// The files do not say how to reach an API server.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, ClientError> {
    let config = configuration(kubeconfig).await?;
    Client::try_from(config).map_err(|source| ClientError::Client(Box::new(source)))
}

/// A client as kubectl has it: by the kubeconfig of the environment or of the home folder, else by the pod's service account.
/// Nothing is sent.
///
/// # Errors
/// There is none of them, or they do not say how to reach an API server.
pub async fn inferred() -> Result<Client, ClientError> {
    let config = Config::infer().await.map_err(|source| ClientError::Nowhere(Box::new(source)))?;
    Client::try_from(bounded(config)).map_err(|source| ClientError::Client(Box::new(source)))
}

/// What such a client is made of: for who makes more than one of it.
///
/// # Errors
/// As [`connect`].
pub async fn configuration(kubeconfig: Option<&Path>) -> Result<Config, ClientError> {
    let config = match kubeconfig {
        Some(path) => from_file(path)
            .await
            .map_err(|source| ClientError::Kubeconfig { path: path.to_owned(), source: Box::new(source) })?,
        None => Config::incluster().map_err(|source| ClientError::NotInCluster(Box::new(source)))?,
    };
    Ok(bounded(config))
}

/// With limits for what hangs.
fn bounded(mut config: Config) -> Config {
    config.connect_timeout = Some(CONNECT_LIMIT);
    config.read_timeout = Some(SILENCE_LIMIT);
    // Else the time that a connection was idle before a request would count.
    config.reset_reader_on_write = true;
    config
}

async fn from_file(path: &Path) -> Result<Config, kube::config::KubeconfigError> {
    Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &KubeConfigOptions::default()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_kubeconfig_that_is_not_there_is_named() {
        let error = connect(Some(Path::new("/nowhere/kubeconfig"))).await.err().unwrap();
        assert!(error.to_string().contains("/nowhere/kubeconfig"), "{error}");
    }
}
