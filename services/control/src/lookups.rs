//! Looks up what reviews want beside the namespace: the pod's service account, its owners, and what profiles declare.
//!
//! Nothing is watched for it. A watch of every service account, Job and workload of a large cluster would take more
//! memory than all else together, for the few that a profile asks for. An object is asked for when the first pod wants
//! it, and remembered for half a minute, which is how late a change may be seen; the pods of one workload come in a row,
//! have one service account, and cost one request. Of service accounts and owners only the metadata is asked for.
//!
//! A pod waits for the answer, so it is bounded in every way: one deadline for all that a review wants, one request for
//! one object at a time however many pods wait for it, few requests at once, little memory. What is not there is a fact,
//! remembered shortly; what could not be asked for is a failure, remembered more shortly still.

mod key;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use kube::Client;
use moka::Expiry;
use moka::future::Cache;
use pillion_engine::json::OwnedTape;
use pillion_engine::lookup::{Answer, LookedUp, OwnerChain, Query, Wanted};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::live::{FetchError, LookupResult, Throttle};

pub use key::{Key, Which};

/// How long all look-ups of one review may take together. Shorter than the 300 ms that the webhook waits for them, so that
/// it is known how each ended.
const ANSWER_LIMIT: Duration = Duration::from_millis(250);
/// Requests at one time.
const AT_ONCE: usize = 16;
/// Bytes that are remembered.
const CAPACITY: u64 = 16 * 1024 * 1024;
/// What an entry takes besides what was found, about.
const ENTRY_BYTES: usize = 512;
/// How long an object is remembered.
const FOUND_FOR: Duration = Duration::from_secs(30);
/// How long it is remembered that there is none.
const MISSING_FOR: Duration = Duration::from_secs(5);
/// How long it is remembered that one could not be asked for: the next pods fail at once instead of waiting in vain.
const FAILED_FOR: Duration = Duration::from_secs(1);
/// How long the log is quiet after it told of a look-up that failed.
const QUIET_FOR: Duration = Duration::from_secs(5);

/// What the API server answered, as JSON: an object, or a list of objects; `None` if there is none.
pub type Fetched = Result<Option<Arc<OwnedTape>>, FetchError>;
/// Asks for an object.
type Fetch = dyn Fn(Key) -> BoxFuture<'static, Fetched> + Send + Sync;
/// How a look-up ended.
type Found = Answer<Arc<OwnedTape>>;

/// Counts look-ups by what they were about and how they ended.
#[derive(Clone, Debug)]
pub struct Metrics {
    family: Family<Labels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    what: &'static str,
    result: &'static str,
}

/// What a look-up is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    ServiceAccount,
    Owner,
    Object,
}

/// Look-ups. Clones share what they remember, and the bounds.
#[derive(Clone)]
pub struct Lookups {
    cache: Cache<Key, Found>,
    asking: Arc<Asking>,
}

/// What asks, and what bounds it.
struct Asking {
    fetch: Box<Fetch>,
    at_once: Semaphore,
    failures: Throttle,
    metrics: Metrics,
}

impl What {
    const ALL: [Self; 3] = [Self::ServiceAccount, Self::Owner, Self::Object];

    const fn as_str(self) -> &'static str {
        match self {
            Self::ServiceAccount => "service_account",
            Self::Owner => "owner",
            Self::Object => "object",
        }
    }
}

impl Metrics {
    /// Makes the counters and registers them as `pillion_lookups`.
    pub fn register(registry: &mut Registry) -> Self {
        let family = Family::<Labels, Counter>::default();
        registry.sub_registry_with_prefix("pillion").register(
            "lookups",
            "Look-ups of service accounts, owners and declared objects for reviews, by how they ended",
            family.clone(),
        );
        let metrics = Self { family };
        // Series that are there from the beginning have a rate from their first event on.
        for what in What::ALL {
            for result in LookupResult::ALL {
                drop(metrics.counter(what, result));
            }
        }
        metrics
    }

    fn counter(&self, what: What, result: LookupResult) -> Counter {
        self.family.get_or_create_owned(&Labels { what: what.as_str(), result: result.as_str() })
    }
}

impl fmt::Debug for Lookups {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Lookups").field("remembered", &self.cache.entry_count()).finish_non_exhaustive()
    }
}

impl Lookups {
    /// Asks the API server.
    #[must_use]
    pub fn new(client: Client, metrics: Metrics) -> Self {
        Self::by(move |key| key.fetch(client.clone()).boxed(), metrics)
    }

    /// Asks whom you like.
    #[must_use]
    pub fn by(fetch: impl Fn(Key) -> BoxFuture<'static, Fetched> + Send + Sync + 'static, metrics: Metrics) -> Self {
        let cache = Cache::builder().max_capacity(CAPACITY).weigher(weight).expire_after(Memory).build();
        let asking = Asking {
            fetch: Box::new(fetch),
            at_once: Semaphore::new(AT_ONCE),
            failures: Throttle::new(QUIET_FOR),
            metrics,
        };
        Self { cache, asking: Arc::new(asking) }
    }

    /// Everything that a review wants, within 250 milliseconds. It never fails as a whole: each answer says how it ended.
    pub async fn get(&self, wanted: Wanted) -> LookedUp {
        let deadline = Instant::now() + ANSWER_LIMIT;
        let Wanted { namespace, service_account, owners, objects } = wanted;
        let account = async {
            let Some(name) = service_account else { return Answer::NotAsked };
            self.one(What::ServiceAccount, Key::service_account(&namespace, &name), deadline).await
        };
        let owners = async {
            let Some(chain) = owners else { return Answer::NotAsked };
            self.follow(chain, &namespace, deadline).await
        };
        let objects = objects.into_iter().map(|query: Query| async {
            let found = self.one(What::Object, Key::declared(&query), deadline).await;
            (query, found)
        });
        let (service_account, owners, objects) = futures::join!(account, owners, join_all(objects));
        LookedUp { service_account, owners, objects, cluster: None }
    }

    /// Follows owners to the end of their chain. Each step waits for the one before it.
    async fn follow(&self, mut chain: OwnerChain, namespace: &str, deadline: Instant) -> Answer<OwnerChain> {
        while let Some(key) = chain.next().and_then(|next| Key::owner(namespace, next)) {
            match self.one(What::Owner, Some(key), deadline).await {
                Answer::Found(object) => chain.found(Some(object)),
                Answer::Missing => chain.found(None),
                Answer::Failed(why) => return Answer::Failed(why),
                Answer::NotAsked => return Answer::NotAsked,
            }
        }
        Answer::Found(chain)
    }

    /// One look-up. Without a key there can be no such object: its name is none.
    async fn one(&self, what: What, key: Option<Key>, deadline: Instant) -> Found {
        let count = |result| self.asking.metrics.counter(what, result).inc();
        let Some(key) = key else {
            count(LookupResult::Invalid);
            return Answer::Missing;
        };
        if let Some(known) = self.cache.get(&key).await {
            count(LookupResult::Hit);
            return known;
        }
        let ask = Arc::clone(&self.asking).ask(what, key.clone());
        // Who comes meanwhile waits for this one answer. If the review that asks is given up, the next one asks.
        let entry = tokio::time::timeout_at(deadline, self.cache.entry(key).or_insert_with(ask)).await;
        let Ok(entry) = entry else {
            count(LookupResult::TimedOut);
            return Answer::Failed("no answer in time".into());
        };
        if !entry.is_fresh() {
            count(LookupResult::Hit);
        }
        entry.into_value()
    }
}

impl Asking {
    async fn ask(self: Arc<Self>, what: What, key: Key) -> Found {
        let answer = async {
            let _turn = self.at_once.acquire().await?;
            (self.fetch)(key.clone()).await
        };
        let (result, found, told) = match tokio::time::timeout(ANSWER_LIMIT, answer).await {
            Ok(Ok(Some(object))) => (LookupResult::Found, Answer::Found(object), None),
            Ok(Ok(None)) => (LookupResult::Missing, Answer::Missing, None),
            Ok(Err(error)) => {
                // Pods' authors are shown this. Why exactly is for the log.
                let found = Answer::Failed("the API server did not give it".into());
                (LookupResult::Failed, found, Some(crate::watch::chain(&*error)))
            }
            Err(_) => {
                let told = Some(format!("no answer within {ANSWER_LIMIT:?}"));
                (LookupResult::TimedOut, Answer::Failed("no answer in time".into()), told)
            }
        };
        if let Some(error) = told
            && let Some(suppressed) = self.failures.tell()
        {
            warn!(%key, error, suppressed, "cannot look up what a profile reads");
        }
        debug!(%key, result = result.as_str(), "looked up what a profile reads");
        self.metrics.counter(what, result).inc();
        found
    }
}

/// What an entry takes in memory.
fn weight(key: &Key, found: &Found) -> u32 {
    let found = match found {
        Answer::Found(object) => object.memory(),
        Answer::Missing | Answer::Failed(_) | Answer::NotAsked => 0,
    };
    u32::try_from(ENTRY_BYTES + key.bytes() + found).unwrap_or(u32::MAX)
}

/// How long an answer is remembered.
struct Memory;

impl Expiry<Key, Found> for Memory {
    fn expire_after_create(&self, _: &Key, found: &Found, _: std::time::Instant) -> Option<Duration> {
        Some(match found {
            Answer::Found(_) => FOUND_FOR,
            Answer::Missing => MISSING_FOR,
            Answer::Failed(_) | Answer::NotAsked => FAILED_FOR,
        })
    }
}

#[cfg(test)]
mod tests;
