//! Caches single objects of the API server, refreshes them early, and serves stale ones while the API server is
//! unavailable.
//!
//! A new cache entry is **fresh** for a limited time, which bounds how late a change is seen. An entry that is used in
//! the last third of that time is refreshed in the background, so a pod never waits for an entry in use. For an older
//! entry, the pod waits for a new request. If the request fails, the stale entry is served:
//!
//! - If the API server is unavailable: for up to an hour. A restart of the API server must not change what pods get.
//! - If the API server refuses the request: until the entry is five minutes old. An API server that has just started
//!   may
//! refuse requests for a moment, but a withdrawn permission must take effect soon.
//!
//! While the API server is unavailable, pods do not wait if there is an entry. Occasional requests in the background
//! show when the API server is available again.
//!
//! Any client that reaches the webhook's port can cause lookups. So each client address has a rate limit. Each tenant
//! may use a quarter of the concurrent requests, however many of its pods wait.

use std::collections::HashMap;
use std::fmt::Display;
use std::hash::Hash;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use http_body_util::LengthLimitError;
use moka::Expiry;
use moka::future::Cache;
use pillion_engine::lookup::Answer;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, warn};

use crate::throttle::{ClientRates, Rate, Throttle};

/// How long callers wait for a result by default. This is shorter than the webhook's limit of 300 ms for a lookup, so
/// that the cause of each failure is known.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_millis(250);
/// How long a stale entry is served while the API server is unavailable.
pub(crate) const STALE_FOR: Duration = Duration::from_hours(1);
/// The maximum age of an entry that is served although the API server refuses the request.
const REFUSED_FOR: Duration = Duration::from_mins(5);
/// After a request found the API server unavailable: how long callers with a stale entry do not wait.
const AWAY_FOR: Duration = Duration::from_secs(5);
/// Minimum time between two log lines about failed lookups.
pub(crate) const QUIET_FOR: Duration = Duration::from_secs(5);

/// The result of a request; `None` if the object does not exist.
pub type Fetched<V> = Result<Option<V>, FetchError>;
/// Requests an object.
pub(crate) type Fetch<K, V> = dyn Fn(K) -> BoxFuture<'static, Fetched<V>> + Send + Sync;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The API server is unreachable or overloaded: a temporary error.
    #[error("{}", crate::client::chain(&**.0))]
    Unavailable(Box<dyn std::error::Error + Send + Sync>),
    /// The API server refused the request, or its response is unusable.
    #[error("{}", crate::client::chain(&**.0))]
    Refused(Box<dyn std::error::Error + Send + Sync>),
}

/// Limits for lookups of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Timeout of a request, including the wait for a permit.
    pub(crate) ask_limit: Duration,
    /// Maximum number of concurrent requests.
    pub(crate) at_once: usize,
    /// Maximum number of requests per second; `None` for no limit.
    pub(crate) a_second: Option<usize>,
    /// Maximum number of requests per second that one client address may cause.
    pub(crate) a_second_per_client: u32,
    /// Size of the cache in bytes.
    pub(crate) capacity: u64,
    /// How long an existing object is fresh.
    pub(crate) found_for: Duration,
    /// How long "not found" is fresh.
    pub(crate) missing_for: Duration,
    /// How long a failed request is not repeated.
    pub(crate) failed_for: Duration,
    /// The maximum age of an entry that is served while the API server is unavailable.
    pub(crate) stale_for: Duration,
    /// The name of these objects in log lines.
    pub(crate) wanted: &'static str,
}

/// A cache of objects with its fetcher. Clones share the cache and the limits.
pub(crate) struct Remembered<K, V, W> {
    cache: Cache<K, Arc<CacheEntry<V>>>,
    asking: Arc<Asking<K, V, W>>,
}

/// The fetcher and its limits.
struct Asking<K, V, W> {
    fetch: Box<Fetch<K, V>>,
    bounds: Bounds,
    at_once: Semaphore,
    tenants: TenantTurns,
    rate: Option<Rate>,
    clients: ClientRates,
    away_until: Mutex<Option<Instant>>,
    failures: Throttle,
    metrics: LookupMetrics<W>,
}

/// The caller of a lookup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker<'a> {
    /// When the caller needs the result.
    pub(crate) deadline: Instant,
    /// The address that sent the review; `None` for lookups that no client caused.
    pub(crate) client: Option<IpAddr>,
    /// The namespace of the review's object, if known.
    pub(crate) tenant: Option<&'a str>,
    /// Results that are older than this are not used.
    pub(crate) after: Option<Instant>,
}

impl Asker<'_> {
    /// A lookup that Pillion itself needs.
    pub(crate) const fn own(deadline: Instant) -> Self {
        Self { deadline, client: None, tenant: None, after: None }
    }
}

/// Request permits for each tenant, the same number for all.
struct TenantTurns {
    each: usize,
    turns: Mutex<HashMap<Box<str>, Weak<Semaphore>>>,
}

/// Number of tenants in the table above which those without a running request are removed.
const TENANTS: usize = 256;

impl TenantTurns {
    fn of(&self, tenant: &str) -> Arc<Semaphore> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = turns.get(tenant).and_then(Weak::upgrade) {
            return known;
        }
        if turns.len() >= TENANTS {
            turns.retain(|_, turns| turns.strong_count() > 0);
        }
        let fresh = Arc::new(Semaphore::new(self.each));
        turns.insert(tenant.into(), Arc::downgrade(&fresh));
        fresh
    }
}

/// A cached object, the last failure, or both.
#[derive(Debug)]
struct CacheEntry<V> {
    fact: Option<Fact<V>>,
    failure: Option<Failure>,
    /// The result of the lookup that created this entry.
    ended: LookupResult,
    /// Whether a refresh is running.
    refreshing: AtomicBool,
}

#[derive(Clone, Debug)]
struct Fact<V> {
    value: Option<V>,
    received_at: Instant,
}

#[derive(Clone, Debug)]
struct Failure {
    /// The message for pod authors. The log has the exact cause.
    why: &'static str,
    until: Instant,
}

/// The state of a cache entry, which decides how it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The entry is served.
    Fresh,
    /// The entry is served, and a refresh is due.
    Due,
    /// The entry is too old: request the object, and serve the entry if that fails.
    Expired,
    /// The entry is too old, and the last request has just failed.
    Stale,
    /// The entry has no object, and the last request has just failed.
    Failed,
    /// The entry has no object, and no request has failed just now.
    Unknown,
}

/// Returns the timeout of a request whose callers wait for `answer_limit`. It is slightly shorter, so that all callers
/// see the result.
pub(crate) fn ask_limit(answer_limit: Duration) -> Duration {
    answer_limit * 24 / 25
}

impl FetchError {
    /// Creates a temporary error.
    pub fn unavailable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Unavailable(error.into())
    }

    /// Whether the API server responded, even with an error. Then it is available, and other stale entries are not
    /// served without a request. For example, an aggregated API server may fail for one kind alone.
    fn is_an_answer(&self) -> bool {
        let (Self::Unavailable(source) | Self::Refused(source)) = self;
        matches!(source.downcast_ref(), Some(kube::Error::Api(_)))
    }

    /// Creates an error that a retry does not resolve.
    pub fn refused(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Refused(error.into())
    }
}

impl From<kube::Error> for FetchError {
    fn from(error: kube::Error) -> Self {
        match &error {
            kube::Error::Api(status) if status.code < 500 && ![408, 429].contains(&status.code) => Self::refused(error),
            kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) | kube::Error::BuildRequest(_) => {
                Self::refused(error)
            }
            // The response exceeds the size limit.
            kube::Error::Service(cause) if cause.is::<LengthLimitError>() => Self::refused(error),
            _ => Self::unavailable(error),
        }
    }
}

impl From<serde_json::Error> for FetchError {
    fn from(error: serde_json::Error) -> Self {
        Self::refused(error)
    }
}

impl<V> CacheEntry<V> {
    /// Returns the cached object unless it is too old to be served at all.
    fn fact(&self, bounds: &Bounds, now: Instant) -> Option<&Fact<V>> {
        self.fact.as_ref().filter(|fact| now.duration_since(fact.received_at) < bounds.stale_for)
    }

    fn standing(&self, bounds: &Bounds, now: Instant) -> Standing {
        let failed = self.failure.as_ref().is_some_and(|failure| now < failure.until);
        let Some(fact) = self.fact(bounds, now) else {
            return if failed { Standing::Failed } else { Standing::Unknown };
        };
        let age = now.duration_since(fact.received_at);
        let fresh_for = if fact.value.is_some() { bounds.found_for } else { bounds.missing_for };
        match (age < fresh_for, failed) {
            (true, false) if fact.value.is_some() && age >= fresh_for * 2 / 3 => Standing::Due,
            (true, _) => Standing::Fresh,
            (false, true) => Standing::Stale,
            (false, false) => Standing::Expired,
        }
    }
}

impl<V> CacheEntry<V> {
    /// Like [`Self::standing`], but an entry from before `after` counts as expired.
    fn standing_after(&self, bounds: &Bounds, now: Instant, after: Option<Instant>) -> Standing {
        let is_before = self.fact(bounds, now).is_some_and(|fact| is_before(fact, after));
        match self.standing(bounds, now) {
            Standing::Fresh | Standing::Due if is_before => Standing::Expired,
            standing => standing,
        }
    }
}

impl<V: Clone> CacheEntry<V> {
    /// Returns the result for a caller that needs a result from after `after`.
    fn answer(&self, bounds: &Bounds, now: Instant, after: Option<Instant>) -> Answer<V> {
        match self.fact(bounds, now) {
            Some(fact) if is_before(fact, after) => Answer::Failed("only an older answer is known".into()),
            Some(Fact { value: Some(value), .. }) => Answer::Found(value.clone()),
            Some(Fact { value: None, .. }) => Answer::Missing,
            None => Answer::Failed(self.failure.as_ref().map_or("no answer in time", |failure| failure.why).into()),
        }
    }
}

fn is_before<V>(fact: &Fact<V>, after: Option<Instant>) -> bool {
    after.is_some_and(|after| fact.received_at < after)
}

impl<K, V, W> Clone for Remembered<K, V, W> {
    fn clone(&self) -> Self {
        Self { cache: self.cache.clone(), asking: Arc::clone(&self.asking) }
    }
}

impl<K, V, W> Remembered<K, V, W>
where
    K: Clone + Display + Eq + Hash + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    W: LookupKind,
{
    /// Creates a cache. `weight` returns the bytes of an entry.
    pub(crate) fn new(
        fetch: impl Fn(K) -> BoxFuture<'static, Fetched<V>> + Send + Sync + 'static,
        weight: impl Fn(&K, Option<&V>) -> usize + Send + Sync + 'static,
        bounds: Bounds,
        metrics: LookupMetrics<W>,
    ) -> Self {
        let weigher = move |key: &K, known: &Arc<CacheEntry<V>>| {
            let value = known.fact.as_ref().and_then(|fact| fact.value.as_ref());
            u32::try_from(weight(key, value)).unwrap_or(u32::MAX)
        };
        let memory = Memory { stale_for: bounds.stale_for, failed_for: bounds.failed_for };
        let cache = Cache::builder().max_capacity(bounds.capacity).weigher(weigher).expire_after(memory).build();
        let asking = Asking {
            fetch: Box::new(fetch),
            bounds,
            at_once: Semaphore::new(bounds.at_once),
            tenants: TenantTurns { each: (bounds.at_once / 4).max(1), turns: Mutex::default() },
            clients: ClientRates::new(bounds.a_second_per_client),
            rate: bounds.a_second.map(Rate::new),
            away_until: Mutex::default(),
            failures: Throttle::new(QUIET_FOR),
            metrics,
        };
        Self { cache, asking: Arc::new(asking) }
    }

    /// Number of cached entries.
    pub(crate) fn len(&self) -> u64 {
        self.cache.entry_count()
    }

    /// Counts a lookup that needs no request because its name is invalid.
    pub(crate) fn count(&self, what: W, result: LookupResult) {
        self.asking.metrics.count(what, result);
    }

    /// Returns the result, at the deadline at the latest.
    pub(crate) async fn get(&self, what: W, key: K, asker: Asker<'_>) -> Answer<V> {
        let (now, bounds) = (Instant::now(), self.asking.bounds);
        let Asker { deadline, client, tenant, after } = asker;
        let known = self.cache.get(&key).await;
        let standing = known.as_ref().map_or(Standing::Unknown, |known| known.standing_after(&bounds, now, after));
        if let Some(known) = &known {
            let served = match standing {
                Standing::Fresh | Standing::Failed => Some(LookupResult::Hit),
                Standing::Due => {
                    self.refresh(what, &key, known);
                    Some(LookupResult::Hit)
                }
                Standing::Stale => Some(LookupResult::Stale),
                Standing::Expired if self.asking.is_away(now) => {
                    self.refresh(what, &key, known);
                    Some(LookupResult::Stale)
                }
                Standing::Expired | Standing::Unknown => None,
            };
            if let Some(served) = served {
                self.count(what, served);
                return known.answer(&bounds, now, after);
            }
        }
        let fact = known.as_ref().and_then(|known| known.fact(&bounds, now).cloned());
        // Check this before other callers can wait for the request: they must not fail because of this client's rate.
        if client.is_some_and(|client| !self.asking.clients.take(client)) {
            self.asking.log_refused(&key, client, bounds.a_second_per_client as usize);
            self.count(what, if fact.is_some() { LookupResult::Stale } else { LookupResult::Refused });
            let failed = || Answer::Failed("this client had too much looked up within a second".into());
            return known.filter(|_| fact.is_some()).map_or_else(failed, |known| known.answer(&bounds, now, after));
        }
        let ask = Arc::clone(&self.asking).ask(key.clone(), fact, tenant.map(Box::from));
        let is_due = |known: &Arc<CacheEntry<V>>| {
            let standing = known.standing_after(&bounds, Instant::now(), after);
            matches!(standing, Standing::Expired | Standing::Unknown)
        };
        // Callers that arrive meanwhile wait for this request. If its caller is cancelled, the next waiting caller
        // starts a new request.
        let entry = timeout_at(deadline, self.cache.entry(key).or_insert_with_if(ask, is_due)).await;
        let Ok(entry) = entry else {
            self.asking.is_away_now();
            let old = known.filter(|known| known.fact(&bounds, now).is_some());
            self.count(what, if old.is_some() { LookupResult::Stale } else { LookupResult::TimedOut });
            let failed = || Answer::Failed("no answer in time".into());
            return old.map_or_else(failed, |old| old.answer(&bounds, now, after));
        };
        let (is_fresh, known) = (entry.is_fresh(), entry.into_value());
        let ended = match known.standing(&bounds, Instant::now()) {
            _ if is_fresh => known.ended,
            Standing::Stale => LookupResult::Stale,
            _ => LookupResult::Hit,
        };
        self.count(what, ended);
        known.answer(&bounds, Instant::now(), after)
    }

    /// Refreshes an entry while it is served. Each key has at most one refresh, and it takes no permit that a caller
    /// waits for.
    fn refresh(&self, what: W, key: &K, known: &Arc<CacheEntry<V>>) {
        if known.refreshing.swap(true, Ordering::Relaxed) {
            return;
        }
        let (this, key, old) = (self.clone(), key.clone(), Arc::clone(known));
        tokio::spawn(async move {
            let asking = &this.asking;
            let has_turn = asking.at_once.available_permits() > 0 && asking.rate.as_ref().is_none_or(Rate::take);
            if !has_turn {
                old.refreshing.store(false, Ordering::Relaxed);
                return;
            }
            let now = asking.request(&key, old.fact.clone(), None).await;
            let ended = if now.failure.is_none() { LookupResult::Refreshed } else { LookupResult::RefreshFailed };
            this.count(what, ended);
            this.cache.insert(key, now).await;
        });
    }
}

impl<K: Clone + Display, V: Clone, W: LookupKind> Asking<K, V, W> {
    async fn ask(self: Arc<Self>, key: K, old: Option<Fact<V>>, tenant: Option<Box<str>>) -> Arc<CacheEntry<V>> {
        if self.rate.as_ref().is_none_or(Rate::take) {
            return self.request(&key, old, tenant.as_deref()).await;
        }
        self.log_refused(&key, None, self.bounds.a_second.unwrap_or_default());
        // The next lookup may start a request at once.
        let failure = Failure { why: "the API server was asked too often", until: Instant::now() };
        let ended = if old.is_some() { LookupResult::Stale } else { LookupResult::Refused };
        Arc::new(CacheEntry { fact: old, failure: Some(failure), ended, refreshing: AtomicBool::new(false) })
    }

    /// Logs, at a limited rate, that a lookup was refused. `client` is given if that client exceeded its rate.
    fn log_refused(&self, key: &K, client: Option<IpAddr>, limit: usize) {
        if let Some(suppressed) = self.failures.take_turn() {
            let (wanted, client) = (self.bounds.wanted, client.map(tracing::field::display));
            warn!(%key, suppressed, wanted, limit, client, "not looked up: too many were within a second");
        }
    }

    /// Requests the object and returns the new entry. `old` is the object of the previous entry.
    async fn request(&self, key: &K, old: Option<Fact<V>>, tenant: Option<&str>) -> Arc<CacheEntry<V>> {
        let limit = self.bounds.ask_limit;
        let answer = async {
            // Take the tenant's permit first, so that a tenant with many requests leaves shared permits to others.
            let own = tenant.map(|tenant| self.tenants.of(tenant));
            let _own_turn = match &own {
                Some(own) => Some(own.acquire().await.map_err(FetchError::unavailable)?),
                None => None,
            };
            let turn = self.at_once.acquire().await.map_err(FetchError::unavailable)?;
            let answer = (self.fetch)(key.clone()).await;
            drop(turn);
            answer
        };
        let known = |fact, failure, ended: LookupResult| {
            debug!(%key, result = ended.as_str(), wanted = self.bounds.wanted, "looked up");
            Arc::new(CacheEntry { fact, failure, ended, refreshing: AtomicBool::new(false) })
        };
        let (error, why, ended) = match timeout(limit, answer).await {
            Ok(Ok(value)) => {
                *self.away() = None;
                let ended = if value.is_some() { LookupResult::Found } else { LookupResult::Missing };
                return known(Some(Fact { value, received_at: Instant::now() }), None, ended);
            }
            Ok(Err(error)) => (error, "the API server did not give it", LookupResult::Failed),
            Err(_) => {
                let error = FetchError::unavailable(format!("no answer within {limit:?}"));
                (error, "no answer in time", LookupResult::TimedOut)
            }
        };
        let passes = matches!(error, FetchError::Unavailable(_));
        let old = old.filter(|old| passes || old.received_at.elapsed() < REFUSED_FOR);
        if let Some(suppressed) = self.failures.take_turn() {
            let (wanted, old) = (self.bounds.wanted, old.is_some());
            warn!(%key, %error, suppressed, wanted, old_answer_served = old, "cannot look it up");
        }
        if passes && !error.is_an_answer() {
            self.is_away_now();
        }
        let ended = if old.is_some() { LookupResult::Stale } else { ended };
        known(old, Some(Failure { why, until: Instant::now() + self.bounds.failed_for }), ended)
    }

    fn away(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.away_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_away(&self, now: Instant) -> bool {
        self.away().is_some_and(|until| now < until)
    }

    fn is_away_now(&self) {
        *self.away() = Some(Instant::now() + AWAY_FOR);
    }
}

/// Decides when entries are removed to free memory. [`CacheEntry::standing`] decides whether they may be served.
struct Memory {
    stale_for: Duration,
    failed_for: Duration,
}

impl Memory {
    fn of<V>(&self, known: &CacheEntry<V>) -> Duration {
        if known.fact.is_some() { self.stale_for } else { self.failed_for }
    }
}

impl<K, V> Expiry<K, Arc<CacheEntry<V>>> for Memory {
    fn expire_after_create(&self, _: &K, known: &Arc<CacheEntry<V>>, _: std::time::Instant) -> Option<Duration> {
        Some(self.of(known))
    }

    fn expire_after_update(
        &self,
        _: &K,
        known: &Arc<CacheEntry<V>>,
        _: std::time::Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(self.of(known))
    }
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookupResult {
    /// The object was cached, or a request for it was running.
    Hit,
    /// A stale entry was served because the API server was unavailable.
    Stale,
    /// The object exists.
    Found,
    /// The object does not exist.
    Missing,
    /// A cached entry was refreshed early, and no review waited for it.
    Refreshed,
    /// An early refresh failed. The cached entry stays.
    RefreshFailed,
    /// The API server was unavailable or returned an error, and no entry was cached.
    Failed,
    /// The request timed out, and no entry was cached.
    TimedOut,
    /// No request was sent because a rate limit was exceeded.
    Refused,
    /// No request was sent because the name is invalid.
    Invalid,
}

/// A kind of lookup, with its metric labels.
pub trait LookupKind: Copy + Send + Sync + 'static {
    /// The counter's name, without prefix and suffix.
    const NAME: &'static str;
    /// The help text of the counter.
    const HELP: &'static str;
    /// All targets.
    const ALL: &'static [Self];

    /// The value of the label `what`; `None` if the kind has only one target.
    fn label(self) -> Option<&'static str>;
}

/// Counts lookups of one kind by target and result.
#[derive(Clone, Debug)]
pub struct LookupMetrics<W> {
    family: Family<Labels, Counter>,
    about: PhantomData<W>,
}

type Labels = Vec<(&'static str, &'static str)>;

impl LookupResult {
    /// All results.
    pub const ALL: [Self; 10] = [
        Self::Hit,
        Self::Stale,
        Self::Found,
        Self::Missing,
        Self::Refreshed,
        Self::RefreshFailed,
        Self::Failed,
        Self::TimedOut,
        Self::Refused,
        Self::Invalid,
    ];

    /// The result as a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Stale => "stale",
            Self::Found => "found",
            Self::Missing => "missing",
            Self::Refreshed => "refreshed",
            Self::RefreshFailed => "refresh_failed",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Refused => "refused",
            Self::Invalid => "invalid",
        }
    }
}

impl<W: LookupKind> LookupMetrics<W> {
    /// Creates the counters and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let family = Family::<Labels, Counter>::default();
        registry.sub_registry_with_prefix("pillion").register(W::NAME, W::HELP, family.clone());
        let metrics = Self { family, about: PhantomData };
        // Create all series at the start, so that their rates include the first event.
        for what in W::ALL {
            for result in LookupResult::ALL {
                drop(metrics.counter(*what, result));
            }
        }
        metrics
    }

    pub(crate) fn count(&self, what: W, result: LookupResult) {
        self.counter(what, result).inc();
    }

    fn counter(&self, what: W, result: LookupResult) -> Counter {
        let what = what.label().map(|what| ("what", what));
        self.family.get_or_create_owned(&what.into_iter().chain([("result", result.as_str())]).collect())
    }
}

#[cfg(test)]
mod tests;
