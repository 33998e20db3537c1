//! Connects to the API server. Also defines the duration of all watches, their pauses after failures, and the messages
//! for errors.
//!
//! - [`lists`]: reads lists page by page.
//! - `watch_object`: watches one object by name.
//! - `owner_reference`: owner references for cluster-scoped objects.

pub mod lists;
pub(crate) mod owner_reference;
pub(crate) mod watch_object;

use std::path::{Path, PathBuf};
use std::time::Duration;

use backon::ExponentialBuilder;
use futures::{Stream, TryStreamExt};
use http_body_util::Limited;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::watcher::{self, Event};
use kube::{Client, Config};
use tower::service_fn;

/// Duration of a watch. The next watch continues without a new list. If the API server does not end a watch within five
/// more seconds, the connection counts as lost.
pub(crate) const WATCH_DURATION: Duration = Duration::from_secs(45);

/// The first pause after a watch was interrupted. It doubles each time. Jitter makes each pause up to twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause without jitter. This is short, so that watches resume soon after a long outage.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// After this time without an error, the next pause is the first one again. Any event of the watch has the same effect.
const PAUSE_RESET_AFTER: Duration = Duration::from_mins(2);

/// Timeout for connecting.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// How long the API server may be silent during a request. The limit is longer than a watch, so it ends only hanging
/// requests, such as a list whose connection was lost.
const SILENCE_LIMIT: Duration = Duration::from_secs(WATCH_DURATION.as_secs() + 10);

/// Why no client could be created.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The given kubeconfig is missing or invalid, or does not have the given context.
    #[error("the kubeconfig {} cannot be used", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// The default kubeconfig is missing or invalid, or does not have the given context.
    #[error("the context {name:?} of the kubeconfig cannot be used")]
    Context {
        /// The context.
        name: String,
        /// The cause.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// No kubeconfig was given, and the process does not run in a pod.
    #[error("this process does not run in a pod with a service account token; outside of a cluster, pass a kubeconfig")]
    NotInCluster(#[source] Box<kube::config::InClusterError>),
    /// There is no usable kubeconfig at kubectl's default locations, and the process does not run in a pod.
    #[error("there is no kubeconfig, and this process does not run in a pod; pass one with --kubeconfig")]
    Nowhere(#[source] Box<kube::config::InferConfigError>),
    /// The configuration is invalid: for example, its certificate.
    #[error("cannot create a client from the configuration")]
    Client(#[source] Box<kube::Error>),
}

/// Creates a client from a kubeconfig, or from the pod's service account if `kubeconfig` is `None`. Sends no request.
///
/// # Errors
/// The configuration is missing or invalid.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, ClientError> {
    let config = configuration(kubeconfig).await?;
    Client::try_from(config).map_err(|source| ClientError::Client(Box::new(source)))
}

/// How a command connects to the API server. The fields correspond to flags of kubectl.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// The kubeconfig. `None`: `$KUBECONFIG`, else `~/.kube/config`, else the pod's service account if `context` is
    /// `None`.
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig. `None`: its current context.
    pub context: Option<String>,
    /// The user to impersonate.
    pub user: Option<String>,
    /// The groups to impersonate. They are ignored without `user`.
    pub groups: Vec<String>,
    /// How long the API server may be silent during a request.
    pub request_timeout: Option<Duration>,
}

/// Creates a client as kubectl does. Sends no request.
///
/// # Errors
/// The configuration is missing or invalid, or has no such context.
pub async fn connect_with(options: &ConnectOptions) -> Result<Client, ClientError> {
    let ConnectOptions { kubeconfig, context, user, groups, request_timeout } = options;
    let choice = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
    let config = match (kubeconfig, context) {
        (Some(path), _) => from_file(path, &choice)
            .await
            .map_err(|source| ClientError::Kubeconfig { path: path.clone(), source: Box::new(source) })?,
        (None, Some(name)) => Config::from_kubeconfig(&choice)
            .await
            .map_err(|source| ClientError::Context { name: name.clone(), source: Box::new(source) })?,
        (None, None) => Config::infer().await.map_err(|source| ClientError::Nowhere(Box::new(source)))?,
    };
    let mut config = with_timeouts(config);
    if let Some(user) = user {
        config.auth_info.impersonate = Some(user.clone());
        config.auth_info.impersonate_groups = Some(groups.clone());
    }
    if let Some(timeout) = request_timeout {
        config.connect_timeout = Some(CONNECT_LIMIT.min(*timeout));
        config.read_timeout = Some(*timeout);
    }
    Client::try_from(config).map_err(|source| ClientError::Client(Box::new(source)))
}

/// Returns the configuration that [`connect`] uses, for callers that create several clients.
///
/// # Errors
/// See [`connect`].
pub async fn configuration(kubeconfig: Option<&Path>) -> Result<Config, ClientError> {
    let config = match kubeconfig {
        Some(path) => from_file(path, &KubeConfigOptions::default())
            .await
            .map_err(|source| ClientError::Kubeconfig { path: path.to_owned(), source: Box::new(source) })?,
        None => Config::incluster().map_err(|source| ClientError::NotInCluster(Box::new(source)))?,
    };
    Ok(with_timeouts(config))
}

/// Adds timeouts, so that no request hangs.
fn with_timeouts(mut config: Config) -> Config {
    config.connect_timeout = Some(CONNECT_LIMIT);
    config.read_timeout = Some(SILENCE_LIMIT);
    // By default, the time for which a connection was idle before a request counts toward the read timeout.
    config.reset_reader_on_write = true;
    config
}

/// Returns a client that limits responses to this many bytes. A larger response fails with
/// [`http_body_util::LengthLimitError`].
///
/// kube's client reads a whole response into memory before its size is known, and users control the size of a list. For
/// example, 200 objects of 1 MiB each, read a few times in parallel, would exceed a replica's memory.
pub(crate) fn bounded(client: Client, bytes: usize) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request: http::Request<Body>| {
        let client = client.clone();
        async move { Ok::<_, kube::Error>(client.send(request).await?.map(|body| Limited::new(body, bytes))) }
    });
    Client::new(service, namespace)
}

async fn from_file(path: &Path, choice: &KubeConfigOptions) -> Result<Config, kube::config::KubeconfigError> {
    Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, choice).await
}

/// Returns the configuration of a watch that lists `page_size` objects per page. Bookmarks are enabled by default.
pub(crate) fn config(page_size: u32) -> watcher::Config {
    let seconds = u32::try_from(WATCH_DURATION.as_secs()).unwrap_or(u32::MAX);
    watcher::Config::default().timeout(seconds).page_size(page_size)
}

/// Adds a growing pause after each error to the events of a watcher. Removes `Init` events, and calls `begins` instead:
/// kube's watcher emits `Init` before each attempt to list, and any event resets the pause.
pub(crate) fn with_pauses<O: Send>(
    events: impl Stream<Item = watcher::Result<Event<O>>> + Send,
    begins: impl Fn() + Send,
) -> impl Stream<Item = watcher::Result<Event<O>>> + Send {
    let events = events.try_filter(move |event| {
        let is_init = matches!(event, Event::Init);
        if is_init {
            begins();
        }
        std::future::ready(!is_init)
    });
    events.backoff(pauses())
}

fn pauses() -> impl Backoff + 'static {
    let pauses = ExponentialBuilder::default()
        .with_min_delay(FIRST_PAUSE)
        .with_max_delay(LONGEST_PAUSE)
        .with_factor(2.0)
        .with_jitter()
        .without_max_times();
    ResetTimerBackoff::new(watcher::ExponentialBackoff::from(pauses), PAUSE_RESET_AFTER)
}

/// Returns the message for a watch error: only the API server's own message, if there is one.
pub(crate) fn error_message(error: &watcher::Error) -> String {
    let status = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status,
        error => return chain(error),
    };
    if status.message.is_empty() { format!("HTTP status {}", status.code) } else { status.message.clone() }
}

/// Returns the message of an error, followed by the causes that it does not already contain.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    for cause in causes.map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// Returns instructions for an error that a retry does not resolve; `None` for other errors.
pub(crate) fn help(error: &watcher::Error) -> Option<&'static str> {
    let (watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))) = error
    else {
        return None;
    };
    match status.code {
        401 => Some("the API server rejected the credentials: check the service account's token or the kubeconfig"),
        403 => Some("the service account needs a role with the verbs list and watch for this kind"),
        404 => Some("the custom resource definitions are not installed: pillion crds | kubectl apply -f -"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use kube::api::ListParams;

    use super::*;
    use crate::informer::lookup_cache::FetchError;

    /// Lists from a fake API server whose response has this many bytes, with a limit of 1,000.
    async fn list(bytes: usize) -> kube::Result<usize> {
        let answer = service_fn(move |_: http::Request<Body>| async move {
            let mut text = String::from(r#"{"apiVersion":"v1","kind":"ConfigMapList","metadata":{},"items":[]"#);
            text.extend(std::iter::repeat_n(' ', bytes - text.len() - 1));
            text.push('}');
            Ok::<_, kube::Error>(http::Response::new(Body::from(text.into_bytes())))
        });
        let client = bounded(Client::new(answer, "default"), 1_000);
        Api::<ConfigMap>::all(client).list(&ListParams::default()).await.map(|list| list.items.len())
    }

    #[tokio::test]
    async fn too_large_response_is_refused() {
        assert_eq!(list(1_000).await.unwrap(), 0);
        let error = FetchError::from(list(1_001).await.unwrap_err());
        assert!(matches!(error, FetchError::Refused(_)), "{error:?}: a retry does not help");
    }

    #[tokio::test]
    async fn error_names_missing_kubeconfig() {
        let error = connect(Some(Path::new("/nowhere/kubeconfig"))).await.err().unwrap();
        assert!(error.to_string().contains("/nowhere/kubeconfig"), "{error}");
    }
}
