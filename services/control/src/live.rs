//! The look-up of a namespace that the watch has not delivered yet: a pod may come within milliseconds of its namespace.
//!
//! The name comes from whoever sends a review, and the question goes to the API server by this process's own rights. So
//! it is bounded in every way: only what can be a namespace's name is asked for, one request for a name at a time however
//! many pods wait for it, few requests at a time and in a second, a short time to answer, a short memory for what was
//! found and a shorter one for what was not. It never fails; who is not found is unknown.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Namespace as NamespaceObject;
use kube::{Api, Client};
use moka::Expiry;
use moka::future::Cache;
use pillion_engine::snapshot::Namespace;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::namespaces;

/// How long the API server may take, waiting for a turn included: a pod waits for it, and the API server itself waits for
/// the pod's answer. Shorter than the 300 ms that the webhook waits for a look-up, so that it is known how each ended.
const ANSWER_LIMIT: Duration = Duration::from_millis(250);
/// Requests at one time.
const AT_ONCE: usize = 8;
/// Requests in any one second, over all names.
const A_SECOND: usize = 10;
/// How many namespaces are remembered.
const CAPACITY: u64 = 10_000;
/// How long one that is there is remembered. The watch delivers it much sooner.
const FOUND_FOR: Duration = Duration::from_secs(10);
/// How long one that is not there, or could not be asked for, is remembered.
const UNKNOWN_FOR: Duration = Duration::from_secs(1);
/// How long the log is quiet after it told of a look-up that brought nothing.
const QUIET_FOR: Duration = Duration::from_secs(5);
/// Bytes of a namespace's name: it is a label of DNS.
const NAME_BYTES: usize = 63;

/// Why a namespace could not be asked for.
pub type FetchError = Box<dyn std::error::Error + Send + Sync>;
/// The answer to the question for a namespace; `None` if there is none of that name.
pub type Fetched = Result<Option<Namespace>, FetchError>;
/// Asks for a namespace.
type Fetch = dyn Fn(Box<str>) -> BoxFuture<'static, Fetched> + Send + Sync;

/// How a look-up ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookupResult {
    /// It was remembered, or somebody was asking for it already.
    Hit,
    /// The API server has it.
    Found,
    /// The API server does not have it.
    Missing,
    /// The API server could not be asked, or answered with an error.
    Failed,
    /// There was no answer in time.
    TimedOut,
    /// The API server was not asked, as it had been asked too often.
    Refused,
    /// The API server was not asked, as no namespace can have such a name.
    Invalid,
}

/// Counts look-ups by how they ended.
#[derive(Clone, Debug)]
pub struct LookupMetrics {
    results: [Counter; LookupResult::ALL.len()],
}

/// Namespaces looked up one by one. Clones share what they remember, and the bounds.
#[derive(Clone)]
pub struct LiveNamespaces {
    cache: Cache<Box<str>, Option<Arc<Namespace>>>,
    asking: Arc<Asking>,
}

/// What asks, and what bounds it.
struct Asking {
    fetch: Box<Fetch>,
    at_once: Semaphore,
    rate: Rate,
    failures: Throttle,
    metrics: LookupMetrics,
}

/// The API server was asked too often. Nothing is known of the namespace, and nothing is remembered.
#[derive(Debug)]
struct Refused;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// So many in any one second.
#[derive(Debug)]
struct Rate {
    limit: usize,
    /// When the last ones were, `limit` at most, the oldest first.
    last: Mutex<VecDeque<Instant>>,
}

/// Says whether the log is to tell of something that may come very often.
#[derive(Debug)]
pub(crate) struct Throttle {
    quiet_for: Duration,
    state: Mutex<ThrottleState>,
}

#[derive(Debug, Default)]
struct ThrottleState {
    told: Option<Instant>,
    suppressed: u64,
}

impl LookupResult {
    /// All results.
    pub const ALL: [Self; 7] =
        [Self::Hit, Self::Found, Self::Missing, Self::Failed, Self::TimedOut, Self::Refused, Self::Invalid];

    /// The result as it stands in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Found => "found",
            Self::Missing => "missing",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Refused => "refused",
            Self::Invalid => "invalid",
        }
    }
}

impl LookupMetrics {
    /// Makes the counters and registers them as `pillion_live_lookups`.
    pub fn register(registry: &mut Registry) -> Self {
        let family = Family::<ResultLabel, Counter>::default();
        registry.sub_registry_with_prefix("pillion").register(
            "live_lookups",
            "Look-ups of namespaces that the watch had not delivered, by how they ended",
            family.clone(),
        );
        let results =
            LookupResult::ALL.map(|result| family.get_or_create_owned(&ResultLabel { result: result.as_str() }));
        Self { results }
    }

    #[expect(clippy::indexing_slicing, reason = "a fieldless enum's discriminant is its place in ALL")]
    fn count(&self, result: LookupResult) {
        self.results[result as usize].inc();
    }
}

impl fmt::Debug for LiveNamespaces {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LiveNamespaces").field("remembered", &self.cache.entry_count()).finish_non_exhaustive()
    }
}

impl LiveNamespaces {
    /// Asks the API server.
    #[must_use]
    pub fn new(client: Client, metrics: LookupMetrics) -> Self {
        let api: Api<NamespaceObject> = Api::all(client);
        let fetch = move |name: Box<str>| {
            let api = api.clone();
            async move {
                let found = api.get_metadata_opt(&name).await?;
                Ok(found.map(|object| namespaces::read(object.metadata).1))
            }
            .boxed()
        };
        Self::by(fetch, metrics)
    }

    /// Asks whom you like.
    #[must_use]
    pub fn by(
        fetch: impl Fn(Box<str>) -> BoxFuture<'static, Fetched> + Send + Sync + 'static,
        metrics: LookupMetrics,
    ) -> Self {
        let cache = Cache::builder().max_capacity(CAPACITY).expire_after(Memory).build();
        let asking = Asking {
            fetch: Box::new(fetch),
            at_once: Semaphore::new(AT_ONCE),
            rate: Rate::new(A_SECOND),
            failures: Throttle::new(QUIET_FOR),
            metrics,
        };
        Self { cache, asking: Arc::new(asking) }
    }

    /// What is known of a namespace; `None` if nothing is, for whatever reason. Takes 250 milliseconds at most, unless
    /// whoever asked first for the same name gave up.
    pub async fn get(&self, name: &str) -> Option<Arc<Namespace>> {
        if !can_be_a_namespace(name) {
            self.asking.metrics.count(LookupResult::Invalid);
            return None;
        }
        if let Some(known) = self.cache.get(name).await {
            self.asking.metrics.count(LookupResult::Hit);
            return known;
        }
        let name: Box<str> = name.into();
        let ask = Arc::clone(&self.asking).ask(name.clone());
        // Who comes meanwhile waits for this one answer. If the request that asks is given up, the next one asks.
        let Ok(entry) = self.cache.entry(name).or_try_insert_with(ask).await else {
            self.asking.metrics.count(LookupResult::Refused);
            return None;
        };
        if !entry.is_fresh() {
            self.asking.metrics.count(LookupResult::Hit);
        }
        entry.into_value()
    }
}

impl Asking {
    async fn ask(self: Arc<Self>, name: Box<str>) -> Result<Option<Arc<Namespace>>, Refused> {
        if !self.rate.take() {
            if let Some(suppressed) = self.failures.tell() {
                warn!(
                    namespace = %name,
                    suppressed,
                    "not asked for a namespace that the watch has not delivered: {A_SECOND} were asked for within a second"
                );
            }
            return Err(Refused);
        }
        let answer = async {
            let _turn = self.at_once.acquire().await?;
            (self.fetch)(name.clone()).await
        };
        let answer = tokio::time::timeout(ANSWER_LIMIT, answer).await;
        let (result, found) = match answer {
            Ok(Ok(Some(namespace))) => (LookupResult::Found, Some(Arc::new(namespace))),
            Ok(Ok(None)) => (LookupResult::Missing, None),
            Ok(Err(error)) => {
                if let Some(suppressed) = self.failures.tell() {
                    warn!(
                        namespace = %name,
                        error = %crate::watch::chain(&*error),
                        suppressed,
                        "cannot ask for a namespace that the watch has not delivered"
                    );
                }
                (LookupResult::Failed, None)
            }
            Err(_) => {
                if let Some(suppressed) = self.failures.tell() {
                    warn!(
                        namespace = %name,
                        limit = ?ANSWER_LIMIT,
                        suppressed,
                        "no answer in time for a namespace that the watch has not delivered"
                    );
                }
                (LookupResult::TimedOut, None)
            }
        };
        debug!(namespace = %name, result = result.as_str(), "asked for a namespace that the watch has not delivered");
        self.metrics.count(result);
        Ok(found)
    }
}

impl Rate {
    const fn new(limit: usize) -> Self {
        Self { limit, last: Mutex::new(VecDeque::new()) }
    }

    /// Whether it may be once more, now.
    fn take(&self) -> bool {
        let now = Instant::now();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= self.limit {
            if last.front().is_some_and(|oldest| now.duration_since(*oldest) < Duration::from_secs(1)) {
                return false;
            }
            last.pop_front();
        }
        last.push_back(now);
        true
    }
}

impl Throttle {
    pub(crate) fn new(quiet_for: Duration) -> Self {
        Self { quiet_for, state: Mutex::default() }
    }

    /// If it is to be told now: how many times it was not since it was told last.
    pub(crate) fn tell(&self) -> Option<u64> {
        let now = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.told.is_some_and(|told| now.duration_since(told) < self.quiet_for) {
            state.suppressed = state.suppressed.saturating_add(1);
            return None;
        }
        state.told = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

/// Whether the name is a label of DNS, as namespaces' names are. Anything else would be a path of its own in a URL.
fn can_be_a_namespace(name: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    bytes.len() <= NAME_BYTES
        && bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
        && bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
}

/// How long an answer is remembered.
struct Memory;

impl Expiry<Box<str>, Option<Arc<Namespace>>> for Memory {
    fn expire_after_create(
        &self,
        _: &Box<str>,
        known: &Option<Arc<Namespace>>,
        _: std::time::Instant,
    ) -> Option<Duration> {
        Some(if known.is_some() { FOUND_FOR } else { UNKNOWN_FOR })
    }
}

#[cfg(test)]
mod tests;
