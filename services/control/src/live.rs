//! The look-up of a namespace that the watch has not delivered yet: a pod may come within milliseconds of its namespace.
//!
//! It is bounded in every way: one request for a name at a time however many pods wait for it, a short time to answer,
//! a short memory for what was found and a shorter one for what was not. It never fails; who is not found is unknown.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Namespace as NamespaceObject;
use kube::{Api, Client};
use moka::Expiry;
use moka::future::Cache;
use pillion_engine::snapshot::Namespace;
use tracing::{debug, warn};

use crate::namespaces;

/// How long the API server may take: a pod waits for it, and the API server itself waits for the pod's answer.
const ANSWER_LIMIT: Duration = Duration::from_millis(300);
/// How many namespaces are remembered.
const CAPACITY: u64 = 10_000;
/// How long one that is there is remembered. The watch delivers it much sooner.
const FOUND_FOR: Duration = Duration::from_secs(10);
/// How long one that is not there, or could not be asked for, is remembered.
const UNKNOWN_FOR: Duration = Duration::from_secs(1);

/// Why a namespace could not be asked for.
pub type FetchError = Box<dyn std::error::Error + Send + Sync>;
/// The answer to the question for a namespace; `None` if there is none of that name.
pub type Fetched = Result<Option<Namespace>, FetchError>;
/// Asks for a namespace.
type Fetch = dyn Fn(Box<str>) -> BoxFuture<'static, Fetched> + Send + Sync;

/// Namespaces looked up one by one. Clones share what they remember.
#[derive(Clone)]
pub struct LiveNamespaces {
    fetch: Arc<Fetch>,
    cache: Cache<Box<str>, Option<Arc<Namespace>>>,
}

impl fmt::Debug for LiveNamespaces {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LiveNamespaces").field("remembered", &self.cache.entry_count()).finish_non_exhaustive()
    }
}

impl LiveNamespaces {
    /// Asks the API server.
    #[must_use]
    pub fn new(client: Client) -> Self {
        let api: Api<NamespaceObject> = Api::all(client);
        Self::by(move |name| {
            let api = api.clone();
            async move {
                let found = api.get_metadata_opt(&name).await?;
                Ok(found.map(|object| namespaces::read(object.metadata).1))
            }
            .boxed()
        })
    }

    /// Asks whom you like.
    #[must_use]
    pub fn by(fetch: impl Fn(Box<str>) -> BoxFuture<'static, Fetched> + Send + Sync + 'static) -> Self {
        let cache = Cache::builder().max_capacity(CAPACITY).expire_after(Memory).build();
        Self { fetch: Arc::new(fetch), cache }
    }

    /// What is known of a namespace; `None` if nothing is, for whatever reason. Takes 300 milliseconds at most.
    pub async fn get(&self, name: &str) -> Option<Arc<Namespace>> {
        if let Some(known) = self.cache.get(name).await {
            return known;
        }
        let name: Box<str> = name.into();
        let ask = ask(Arc::clone(&self.fetch), name.clone());
        // Who comes meanwhile waits for this one answer. If the request that asks is given up, the next one asks.
        self.cache.get_with(name, ask).await
    }
}

async fn ask(fetch: Arc<Fetch>, name: Box<str>) -> Option<Arc<Namespace>> {
    match tokio::time::timeout(ANSWER_LIMIT, fetch(name.clone())).await {
        Ok(Ok(found)) => {
            debug!(namespace = %name, found = found.is_some(), "asked for a namespace that the watch has not delivered");
            found.map(Arc::new)
        }
        Ok(Err(error)) => {
            warn!(namespace = %name, %error, "cannot ask for a namespace that the watch has not delivered");
            None
        }
        Err(_) => {
            warn!(namespace = %name, limit = ?ANSWER_LIMIT, "no answer in time for a namespace that the watch has not delivered");
            None
        }
    }
}

/// How long an answer is remembered.
struct Memory;

impl Expiry<Box<str>, Option<Arc<Namespace>>> for Memory {
    fn expire_after_create(&self, _: &Box<str>, known: &Option<Arc<Namespace>>, _: Instant) -> Option<Duration> {
        Some(if known.is_some() { FOUND_FOR } else { UNKNOWN_FOR })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn many_who_ask_at_once_ask_once() {
        let asked = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new(Semaphore::new(0));
        let live = LiveNamespaces::by({
            let (asked, gate) = (Arc::clone(&asked), Arc::clone(&gate));
            move |_| {
                let (asked, gate) = (Arc::clone(&asked), Arc::clone(&gate));
                async move {
                    asked.fetch_add(1, Ordering::SeqCst);
                    gate.acquire().await?.forget();
                    Ok(Some(Namespace::new([("team", "red")], [])))
                }
                .boxed()
            }
        });
        let waiting = futures::future::join_all((0..50).map(|_| live.get("shop")));
        let open = async { gate.add_permits(1) };
        let (answers, ()) = futures::join!(waiting, open);
        assert!(answers.iter().flatten().all(|namespace| namespace.label("team") == Some("red")));
        assert_eq!((answers.len(), asked.load(Ordering::SeqCst)), (50, 1));

        assert!(live.get("shop").await.is_some());
        assert_eq!(asked.load(Ordering::SeqCst), 1, "it is remembered");
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_answer_in_time_is_unknown() {
        let live = LiveNamespaces::by(|_| std::future::pending().boxed());
        assert_eq!(live.get("shop").await, None);
    }

    #[tokio::test]
    async fn an_error_is_unknown_and_remembered_only_shortly() {
        let live = LiveNamespaces::by(|_| async { Err("no route".into()) }.boxed());
        assert_eq!(live.get("shop").await, None);
        let memory = |known: &Option<Arc<Namespace>>| Memory.expire_after_create(&"shop".into(), known, Instant::now());
        assert_eq!(memory(&None), Some(UNKNOWN_FOR));
        assert_eq!(memory(&Some(Arc::default())), Some(FOUND_FOR));
    }
}
