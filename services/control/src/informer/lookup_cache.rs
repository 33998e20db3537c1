//! Caches single objects of the API server, refreshes them early, and serves stale ones while the API server is
//! unavailable.
//!
//! A new cache entry is **fresh** for a limited time, which bounds how late a change is seen. An existing object that
//! is used in the last third of that time is refreshed in the background, so pods do not wait for objects that are in
//! regular use. For an entry that is no longer fresh, the pod waits for a new request. If the request fails, the stale
//! entry is served:
//!
//! - If the API server is unavailable: until the entry is an hour old. A restart of the API server must not change
//!   which profiles pods get.
//! - If the API server refuses the request: until the entry is five minutes old. An API server that has just started
//!   may briefly refuse requests, but the removal of a permission must take effect soon.
//!
//! For a few seconds after a request has found the API server unavailable, pods with a stale entry get it without
//! waiting. Meanwhile, requests in the background show when the API server is available again.
//!
//! Any client that reaches the webhook's port can cause lookups. So each client address has a rate limit. If the tenant
//! of a lookup is known, the tenant may use a quarter of the concurrent requests, however many of its pods wait.

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
/// The maximum age of an entry that is served while the API server is unavailable.
pub(crate) const MAX_STALE_DURATION: Duration = Duration::from_hours(1);
/// The maximum age of an entry that is served although the API server refuses the request.
const MAX_AGE_IF_REFUSED: Duration = Duration::from_mins(5);
/// How long callers with a stale entry get it without waiting, after a request has found the API server unavailable.
const UNAVAILABLE_PAUSE: Duration = Duration::from_secs(5);
/// Minimum time between two log lines about failed lookups.
pub(crate) const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// The result of a request; `None` if the object does not exist.
pub type Fetched<V> = Result<Option<V>, FetchError>;
/// A function that requests an object.
pub(crate) type Fetch<K, V> = dyn Fn(K) -> BoxFuture<'static, Fetched<V>> + Send + Sync;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The API server is unreachable or overloaded, or responded with a server error. A retry may succeed.
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
    pub(crate) request_timeout: Duration,
    /// Maximum number of concurrent requests.
    pub(crate) concurrent: usize,
    /// Maximum number of requests per second; `None` for no limit.
    pub(crate) a_second: Option<usize>,
    /// Maximum number of requests per second that one client address may cause.
    pub(crate) a_second_per_client: u32,
    /// Maximum size of the cache, in bytes.
    pub(crate) capacity: u64,
    /// How long an existing object is fresh.
    pub(crate) found_for: Duration,
    /// How long "not found" is fresh.
    pub(crate) missing_for: Duration,
    /// Minimum time before a failed request is repeated.
    pub(crate) failed_for: Duration,
    /// The maximum age of an entry that is served while the API server is unavailable.
    pub(crate) stale_for: Duration,
    /// The name of the looked-up objects in log lines.
    pub(crate) wanted: &'static str,
}

/// A cache of objects with its fetcher. Clones share the cache and the limits.
pub(crate) struct LookupCache<K, V, W> {
    cache: Cache<K, Arc<CacheEntry<V>>>,
    fetcher: Arc<Fetcher<K, V, W>>,
}

/// The fetcher and its limits.
struct Fetcher<K, V, W> {
    fetch: Box<Fetch<K, V>>,
    bounds: Bounds,
    concurrent: Semaphore,
    tenants: TenantPermits,
    rate: Option<Rate>,
    clients: ClientRates,
    unavailable_until: Mutex<Option<Instant>>,
    failures: Throttle,
    metrics: LookupMetrics<W>,
}

/// The caller of a lookup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller<'a> {
    /// When the caller needs the result.
    pub(crate) deadline: Instant,
    /// The address of the client that sent the review; `None` for a lookup that no client caused.
    pub(crate) client: Option<IpAddr>,
    /// The namespace of the review's object, if known.
    pub(crate) tenant: Option<&'a str>,
    /// Results that were received before this time are not used. `None`: any cached result may be used.
    pub(crate) after: Option<Instant>,
}

impl Caller<'_> {
    /// Creates the caller of a lookup that Pillion itself needs. No client or tenant limit applies.
    pub(crate) const fn own(deadline: Instant) -> Self {
        Self { deadline, client: None, tenant: None, after: None }
    }
}

/// The request permits of each tenant. All tenants have the same number.
struct TenantPermits {
    each: usize,
    permits: Mutex<HashMap<Box<str>, Weak<Semaphore>>>,
}

/// Number of tenants in the table at which tenants without a running or waiting request are removed.
const TENANTS: usize = 256;

impl TenantPermits {
    fn of(&self, tenant: &str) -> Arc<Semaphore> {
        let mut permits = self.permits.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = permits.get(tenant).and_then(Weak::upgrade) {
            return known;
        }
        if permits.len() >= TENANTS {
            permits.retain(|_, permits| permits.strong_count() > 0);
        }
        let fresh = Arc::new(Semaphore::new(self.each));
        permits.insert(tenant.into(), Arc::downgrade(&fresh));
        fresh
    }
}

/// A cached object, the last failure, or both.
#[derive(Debug)]
struct CacheEntry<V> {
    object: Option<CachedObject<V>>,
    failure: Option<Failure>,
    /// The result of the lookup that created this entry.
    result: LookupResult,
    /// Whether a refresh is running.
    refreshing: AtomicBool,
}

#[derive(Clone, Debug)]
struct CachedObject<V> {
    value: Option<V>,
    received_at: Instant,
}

#[derive(Clone, Debug)]
struct Failure {
    /// The message for pod authors. The log contains the exact cause.
    message: &'static str,
    until: Instant,
}

/// The state of a cache entry, which determines how it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryState {
    /// The entry is served.
    Fresh,
    /// The entry is served, and a refresh is due.
    Due,
    /// The entry is too old, so the object is requested. The entry is served if the request fails, or without a request
    /// if the API server was found unavailable a few seconds ago.
    Expired,
    /// The entry is too old, and the last request has just failed.
    Stale,
    /// The entry has no object, and the last request has just failed.
    Failed,
    /// The entry has no object, and no request has just failed.
    Unknown,
}

/// Returns the timeout of a request whose callers wait for `answer_limit`. The timeout is slightly shorter than that
/// limit, so that the callers get the result even if the request times out.
pub(crate) fn request_timeout(answer_limit: Duration) -> Duration {
    answer_limit * 24 / 25
}

impl FetchError {
    /// Creates a temporary error.
    pub fn unavailable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Unavailable(error.into())
    }

    /// Whether the API server responded with an error status. If so, it is treated as available, and stale entries of
    /// other objects are not served without a request. For example, an aggregated API server may fail for one kind
    /// only.
    fn is_response(&self) -> bool {
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
    fn object(&self, bounds: &Bounds, now: Instant) -> Option<&CachedObject<V>> {
        self.object.as_ref().filter(|object| now.duration_since(object.received_at) < bounds.stale_for)
    }

    fn state(&self, bounds: &Bounds, now: Instant) -> EntryState {
        let failed = self.failure.as_ref().is_some_and(|failure| now < failure.until);
        let Some(object) = self.object(bounds, now) else {
            return if failed { EntryState::Failed } else { EntryState::Unknown };
        };
        let age = now.duration_since(object.received_at);
        let fresh_for = if object.value.is_some() { bounds.found_for } else { bounds.missing_for };
        match (age < fresh_for, failed) {
            (true, false) if object.value.is_some() && age >= fresh_for * 2 / 3 => EntryState::Due,
            (true, _) => EntryState::Fresh,
            (false, true) => EntryState::Stale,
            (false, false) => EntryState::Expired,
        }
    }
}

impl<V> CacheEntry<V> {
    /// Like [`Self::state`], but returns `Expired` for a fresh entry whose object was received earlier than `after`.
    fn state_after(&self, bounds: &Bounds, now: Instant, after: Option<Instant>) -> EntryState {
        let is_before = self.object(bounds, now).is_some_and(|object| is_before(object, after));
        match self.state(bounds, now) {
            EntryState::Fresh | EntryState::Due if is_before => EntryState::Expired,
            state => state,
        }
    }
}

impl<V: Clone> CacheEntry<V> {
    /// Returns the result for a caller. An object that was received before `after` is not used.
    fn answer(&self, bounds: &Bounds, now: Instant, after: Option<Instant>) -> Answer<V> {
        match self.object(bounds, now) {
            Some(object) if is_before(object, after) => Answer::Failed("only an older response is cached".into()),
            Some(CachedObject { value: Some(value), .. }) => Answer::Found(value.clone()),
            Some(CachedObject { value: None, .. }) => Answer::Missing,
            None => {
                Answer::Failed(self.failure.as_ref().map_or("no response in time", |failure| failure.message).into())
            }
        }
    }
}

fn is_before<V>(object: &CachedObject<V>, after: Option<Instant>) -> bool {
    after.is_some_and(|after| object.received_at < after)
}

impl<K, V, W> Clone for LookupCache<K, V, W> {
    fn clone(&self) -> Self {
        Self { cache: self.cache.clone(), fetcher: Arc::clone(&self.fetcher) }
    }
}

impl<K, V, W> LookupCache<K, V, W>
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
        let weigher = move |key: &K, entry: &Arc<CacheEntry<V>>| {
            let value = entry.object.as_ref().and_then(|object| object.value.as_ref());
            u32::try_from(weight(key, value)).unwrap_or(u32::MAX)
        };
        let memory = EntryExpiry { stale_for: bounds.stale_for, failed_for: bounds.failed_for };
        let cache = Cache::builder().max_capacity(bounds.capacity).weigher(weigher).expire_after(memory).build();
        let fetcher = Fetcher {
            fetch: Box::new(fetch),
            bounds,
            concurrent: Semaphore::new(bounds.concurrent),
            tenants: TenantPermits { each: (bounds.concurrent / 4).max(1), permits: Mutex::default() },
            clients: ClientRates::new(bounds.a_second_per_client),
            rate: bounds.a_second.map(Rate::new),
            unavailable_until: Mutex::default(),
            failures: Throttle::new(LOG_INTERVAL),
            metrics,
        };
        Self { cache, fetcher: Arc::new(fetcher) }
    }

    /// Returns the number of cached entries.
    pub(crate) fn len(&self) -> u64 {
        self.cache.entry_count()
    }

    /// Counts a lookup of `target` by its result. [`Self::get`] counts its own lookups. Other code calls this function
    /// only for invalid lookups, which need no request.
    pub(crate) fn count(&self, target: W, result: LookupResult) {
        self.fetcher.metrics.count(target, result);
    }

    /// Looks up an object in the cache or with a request. Returns at the caller's deadline at the latest.
    pub(crate) async fn get(&self, target: W, key: K, caller: Caller<'_>) -> Answer<V> {
        let (now, bounds) = (Instant::now(), self.fetcher.bounds);
        let Caller { deadline, client, tenant, after } = caller;
        let entry = self.cache.get(&key).await;
        let state = entry.as_ref().map_or(EntryState::Unknown, |entry| entry.state_after(&bounds, now, after));
        if let Some(entry) = &entry {
            let served = match state {
                EntryState::Fresh | EntryState::Failed => Some(LookupResult::Hit),
                EntryState::Due => {
                    self.refresh(target, &key, entry);
                    Some(LookupResult::Hit)
                }
                EntryState::Stale => Some(LookupResult::Stale),
                EntryState::Expired if self.fetcher.is_unavailable(now) => {
                    self.refresh(target, &key, entry);
                    Some(LookupResult::Stale)
                }
                EntryState::Expired | EntryState::Unknown => None,
            };
            if let Some(served) = served {
                self.count(target, served);
                return entry.answer(&bounds, now, after);
            }
        }
        let object = entry.as_ref().and_then(|entry| entry.object(&bounds, now).cloned());
        // Check the client's rate before other callers can wait for the request. They must not fail because of this
        // client.
        if client.is_some_and(|client| !self.fetcher.clients.take(client)) {
            self.fetcher.log_refused(&key, client, bounds.a_second_per_client as usize);
            self.count(target, if object.is_some() { LookupResult::Stale } else { LookupResult::Refused });
            let failed = || Answer::Failed("this client exceeded its lookups per second".into());
            return entry.filter(|_| object.is_some()).map_or_else(failed, |entry| entry.answer(&bounds, now, after));
        }
        let request = Arc::clone(&self.fetcher).request_limited(key.clone(), object, tenant.map(Box::from));
        let is_due = |entry: &Arc<CacheEntry<V>>| {
            let state = entry.state_after(&bounds, Instant::now(), after);
            matches!(state, EntryState::Expired | EntryState::Unknown)
        };
        // Other callers that need the same object wait for this request. If the caller that started it is cancelled,
        // the next waiting caller starts a new request.
        let requested = timeout_at(deadline, self.cache.entry(key).or_insert_with_if(request, is_due)).await;
        let Ok(requested) = requested else {
            self.fetcher.set_unavailable();
            let old = entry.filter(|entry| entry.object(&bounds, now).is_some());
            self.count(target, if old.is_some() { LookupResult::Stale } else { LookupResult::TimedOut });
            let failed = || Answer::Failed("no response in time".into());
            return old.map_or_else(failed, |old| old.answer(&bounds, now, after));
        };
        let (is_fresh, entry) = (requested.is_fresh(), requested.into_value());
        let result = match entry.state(&bounds, Instant::now()) {
            _ if is_fresh => entry.result,
            EntryState::Stale => LookupResult::Stale,
            _ => LookupResult::Hit,
        };
        self.count(target, result);
        entry.answer(&bounds, Instant::now(), after)
    }

    /// Refreshes an entry while it is served. Each key has at most one running refresh, and a refresh takes no permit
    /// that a caller waits for.
    fn refresh(&self, target: W, key: &K, entry: &Arc<CacheEntry<V>>) {
        if entry.refreshing.swap(true, Ordering::Relaxed) {
            return;
        }
        let (this, key, old) = (self.clone(), key.clone(), Arc::clone(entry));
        tokio::spawn(async move {
            let fetcher = &this.fetcher;
            let has_permit = fetcher.concurrent.available_permits() > 0 && fetcher.rate.as_ref().is_none_or(Rate::take);
            if !has_permit {
                old.refreshing.store(false, Ordering::Relaxed);
                return;
            }
            let now = fetcher.request(&key, old.object.clone(), None).await;
            let result = if now.failure.is_none() { LookupResult::Refreshed } else { LookupResult::RefreshFailed };
            this.count(target, result);
            this.cache.insert(key, now).await;
        });
    }
}

impl<K: Clone + Display, V: Clone, W: LookupKind> Fetcher<K, V, W> {
    async fn request_limited(
        self: Arc<Self>,
        key: K,
        old: Option<CachedObject<V>>,
        tenant: Option<Box<str>>,
    ) -> Arc<CacheEntry<V>> {
        if self.rate.as_ref().is_none_or(Rate::take) {
            return self.request(&key, old, tenant.as_deref()).await;
        }
        self.log_refused(&key, None, self.bounds.a_second.unwrap_or_default());
        // The next lookup may start a request at once.
        let failure = Failure { message: "too many lookups per second", until: Instant::now() };
        let result = if old.is_some() { LookupResult::Stale } else { LookupResult::Refused };
        Arc::new(CacheEntry { object: old, failure: Some(failure), result, refreshing: AtomicBool::new(false) })
    }

    /// Logs, at a limited rate, that a lookup was refused. `client` is given if that client exceeded its rate.
    fn log_refused(&self, key: &K, client: Option<IpAddr>, limit: usize) {
        if let Some(suppressed) = self.failures.take_turn() {
            let (wanted, client) = (self.bounds.wanted, client.map(tracing::field::display));
            warn!(%key, suppressed, wanted, limit, client, "the lookup was rejected: too many within a second");
        }
    }

    /// Requests the object and returns the new entry. `old` is the object of the previous entry.
    async fn request(&self, key: &K, old: Option<CachedObject<V>>, tenant: Option<&str>) -> Arc<CacheEntry<V>> {
        let limit = self.bounds.request_timeout;
        let answer = async {
            // Take the tenant's permit first, so that a tenant with many requests does not use up the shared permits.
            let own = tenant.map(|tenant| self.tenants.of(tenant));
            let _own_permit = match &own {
                Some(own) => Some(own.acquire().await.map_err(FetchError::unavailable)?),
                None => None,
            };
            let permit = self.concurrent.acquire().await.map_err(FetchError::unavailable)?;
            let answer = (self.fetch)(key.clone()).await;
            drop(permit);
            answer
        };
        let entry = |object, failure, result: LookupResult| {
            debug!(%key, result = result.as_str(), wanted = self.bounds.wanted, "looked up");
            Arc::new(CacheEntry { object, failure, result, refreshing: AtomicBool::new(false) })
        };
        let (error, message, result) = match timeout(limit, answer).await {
            Ok(Ok(value)) => {
                *self.unavailable() = None;
                let result = if value.is_some() { LookupResult::Found } else { LookupResult::Missing };
                return entry(Some(CachedObject { value, received_at: Instant::now() }), None, result);
            }
            Ok(Err(error)) => (error, "the API server returned an error", LookupResult::Failed),
            Err(_) => {
                let error = FetchError::unavailable(format!("no response within {limit:?}"));
                (error, "no response in time", LookupResult::TimedOut)
            }
        };
        let is_temporary = matches!(error, FetchError::Unavailable(_));
        let old = old.filter(|old| is_temporary || old.received_at.elapsed() < MAX_AGE_IF_REFUSED);
        if let Some(suppressed) = self.failures.take_turn() {
            let (wanted, old) = (self.bounds.wanted, old.is_some());
            warn!(%key, %error, suppressed, wanted, old_answer_served = old, "the lookup failed");
        }
        if is_temporary && !error.is_response() {
            self.set_unavailable();
        }
        let result = if old.is_some() { LookupResult::Stale } else { result };
        entry(old, Some(Failure { message, until: Instant::now() + self.bounds.failed_for }), result)
    }

    fn unavailable(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.unavailable_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_unavailable(&self, now: Instant) -> bool {
        self.unavailable().is_some_and(|until| now < until)
    }

    fn set_unavailable(&self) {
        *self.unavailable() = Some(Instant::now() + UNAVAILABLE_PAUSE);
    }
}

/// Decides when entries are removed to free memory. [`CacheEntry::state`] decides whether they may be served.
struct EntryExpiry {
    stale_for: Duration,
    failed_for: Duration,
}

impl EntryExpiry {
    fn of<V>(&self, entry: &CacheEntry<V>) -> Duration {
        if entry.object.is_some() { self.stale_for } else { self.failed_for }
    }
}

impl<K, V> Expiry<K, Arc<CacheEntry<V>>> for EntryExpiry {
    fn expire_after_create(&self, _: &K, entry: &Arc<CacheEntry<V>>, _: std::time::Instant) -> Option<Duration> {
        Some(self.of(entry))
    }

    fn expire_after_update(
        &self,
        _: &K,
        entry: &Arc<CacheEntry<V>>,
        _: std::time::Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(self.of(entry))
    }
}

pillion_api::labelled! {
    /// The result of a lookup.
    #[derive(Hash)]
    pub enum LookupResult {
        /// The result was cached, or a request for the object was already running.
        Hit => "hit",
        /// A stale entry was served because a request failed or was not sent.
        Stale => "stale",
        /// The API server returned the object.
        Found => "found",
        /// The API server responded that the object does not exist.
        Missing => "missing",
        /// A cached entry was refreshed early, and no review waited for it.
        Refreshed => "refreshed",
        /// An early refresh failed. The cached object is kept, unless it is too old to be served.
        RefreshFailed => "refresh_failed",
        /// The API server was unavailable or returned an error, and no usable entry was cached.
        Failed => "failed",
        /// The request timed out, and no usable entry was cached.
        TimedOut => "timed_out",
        /// No request was sent because a rate limit was exceeded, and no usable entry was cached.
        Refused => "refused",
        /// No request was sent because a name is invalid or the query is for Secrets.
        Invalid => "invalid",
    }
}

/// A kind of lookup, with its metric labels.
pub trait LookupKind: Copy + Send + Sync + 'static {
    /// The counter's name, without the suffix `_total`.
    const NAME: &'static str;
    /// The help text of the counter.
    const HELP: &'static str;
    /// All lookup targets of this kind.
    const ALL: &'static [Self];

    /// Returns the value of the metric label `kind`; `None` if the kind has only one target.
    fn label(self) -> Option<&'static str>;
}

/// Counts lookups of one kind by target and result.
#[derive(Clone, Debug)]
pub struct LookupMetrics<W> {
    family: Family<Labels, Counter>,
    about: PhantomData<W>,
}

type Labels = Vec<(&'static str, &'static str)>;

impl<W: LookupKind> LookupMetrics<W> {
    /// Creates the counters and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let family = Family::<Labels, Counter>::default();
        registry.register(W::NAME, W::HELP, family.clone());
        let metrics = Self { family, about: PhantomData };
        // Create all series at the start, so that their rates include the first event.
        for target in W::ALL {
            for result in LookupResult::ALL {
                drop(metrics.counter(*target, result));
            }
        }
        metrics
    }

    pub(crate) fn count(&self, target: W, result: LookupResult) {
        self.counter(target, result).inc();
    }

    fn counter(&self, target: W, result: LookupResult) -> Counter {
        let target = target.label().map(|target| ("kind", target));
        self.family.get_or_create_owned(&target.into_iter().chain([("result", result.as_str())]).collect())
    }
}

#[cfg(test)]
mod tests;
