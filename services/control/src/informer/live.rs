//! Looks up a namespace that the watch has not delivered yet. A pod may arrive within milliseconds of its namespace.
//!
//! The name comes from the client, and the request uses the replica's permissions, so lookups have several limits:
//!
//! - Only valid namespace names are looked up.
//! - Pods of the same namespace wait for one request.
//! - Concurrent requests are limited, and so are requests per second, in total and for each client.
//! - A request has a short timeout.
//!
//! Results are cached for a short time, and "not found" for an even shorter time. While the API server is unavailable,
//! results are cached for longer ([`crate::informer::lookup_cache`]). If a lookup fails, the namespace is treated as
//! unknown.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Namespace as NamespaceObject;
use kube::{Api, Client};
use pillion_api::names::is_dns_label;
use pillion_api::opt_in::OptIn;
use pillion_engine::lookup::Answer;
use pillion_engine::snapshot::Namespace;
use tokio::time::Instant;

use crate::informer::lookup_cache::{
    self, ANSWER_LIMIT, Bounds, Caller, LookupCache, LookupKind, MAX_STALE_DURATION, request_timeout,
};
use crate::informer::namespaces;

pub use crate::informer::lookup_cache::{FetchError, LookupResult};

/// How long "not found" or a failure is cached.
const MISSING_DURATION: Duration = Duration::from_secs(1);
/// Approximate bytes of a cache entry without its namespace.
const ENTRY_BYTES: usize = 256;

fn bounds(answer_limit: Duration) -> Bounds {
    Bounds {
        request_timeout: request_timeout(answer_limit),
        concurrent: 8,
        a_second: Some(40),
        // A client gets a quarter of the total rate, so that one client cannot use up all of it.
        a_second_per_client: 10,
        capacity: 4 * 1024 * 1024,
        // The watch delivers the namespace long before this time has passed.
        found_for: Duration::from_secs(10),
        missing_for: MISSING_DURATION,
        failed_for: MISSING_DURATION,
        stale_for: MAX_STALE_DURATION,
        wanted: "a namespace that the watch has not delivered",
    }
}

/// The result of a lookup; `None` if the namespace does not exist.
pub type Fetched = lookup_cache::Fetched<Namespace>;

/// Counts lookups of namespaces, as `pillion_webhook_namespace_lookups`.
pub type LookupMetrics = lookup_cache::LookupMetrics<NamespaceLookup>;

/// The lookup kind for single namespaces.
#[derive(Clone, Copy, Debug)]
pub struct NamespaceLookup;

impl LookupKind for NamespaceLookup {
    const NAME: &'static str = "pillion_webhook_namespace_lookups";
    const HELP: &'static str = "Lookups of namespaces that the watch had not delivered yet, by result";
    const ALL: &'static [Self] = &[Self];

    fn label(self) -> Option<&'static str> {
        None
    }
}

/// Looks up single namespaces. Clones share the cache and the limits.
#[derive(Clone)]
pub struct LiveNamespaces {
    cache: LookupCache<Box<str>, Arc<Namespace>, NamespaceLookup>,
    answer_limit: Duration,
}

impl fmt::Debug for LiveNamespaces {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LiveNamespaces").field("cached", &self.cache.len()).finish_non_exhaustive()
    }
}

impl LiveNamespaces {
    /// Looks up namespaces in the API server. A lookup takes at most `answer_limit`, including the wait for a permit,
    /// since the pod's review waits for the result. Namespaces opt in by the labels of `opt_in`.
    #[must_use]
    pub fn new(client: Client, metrics: LookupMetrics, answer_limit: Duration, opt_in: OptIn) -> Self {
        let api: Api<NamespaceObject> = Api::all(client);
        let opt_in = Arc::new(opt_in);
        let fetch = move |name: Box<str>| {
            let (api, opt_in) = (api.clone(), Arc::clone(&opt_in));
            async move {
                let found = api.get_metadata_opt(&name).await?;
                Ok(found.map(|object| namespaces::read(object.metadata, &opt_in).1))
            }
            .boxed()
        };
        Self::with_fetcher(fetch, metrics, answer_limit)
    }

    /// Test constructor with a custom fetcher and a limit of 250 milliseconds.
    #[must_use]
    pub fn by(
        fetch: impl Fn(Box<str>) -> BoxFuture<'static, Fetched> + Send + Sync + 'static,
        metrics: LookupMetrics,
    ) -> Self {
        Self::with_fetcher(fetch, metrics, ANSWER_LIMIT)
    }

    fn with_fetcher(
        fetch: impl Fn(Box<str>) -> BoxFuture<'static, Fetched> + Send + Sync + 'static,
        metrics: LookupMetrics,
        answer_limit: Duration,
    ) -> Self {
        let fetch = move |name| fetch(name).map(|answer| answer.map(|found| found.map(Arc::new))).boxed();
        let bytes = |namespace: &Arc<Namespace>| namespace.memory();
        let cache = LookupCache::new(
            fetch,
            move |name, found| ENTRY_BYTES + name.len() + found.map_or(0, bytes),
            bounds(answer_limit),
            metrics,
        );
        Self { cache, answer_limit }
    }

    /// Returns the namespace, `Missing` if it does not exist, or `Failed` if the lookup failed. Takes at most
    /// `answer_limit`.
    pub async fn get(&self, name: &str) -> Answer<Arc<Namespace>> {
        self.look_up(name, Caller::own(Instant::now() + self.answer_limit)).await
    }

    /// Like [`Self::get`], for a review that `client` sent. Cached results from before `after` are not used.
    pub async fn get_for(&self, name: &str, client: IpAddr, after: Option<Instant>) -> Answer<Arc<Namespace>> {
        let own = Caller::own(Instant::now() + self.answer_limit);
        self.look_up(name, Caller { client: Some(client), after, ..own }).await
    }

    async fn look_up(&self, name: &str, caller: Caller<'_>) -> Answer<Arc<Namespace>> {
        if !is_dns_label(name) {
            self.cache.count(NamespaceLookup, LookupResult::Invalid);
            return Answer::Missing;
        }
        self.cache.get(NamespaceLookup, name.into(), caller).await
    }
}

#[cfg(test)]
mod tests;
