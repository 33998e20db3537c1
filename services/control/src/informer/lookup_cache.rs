//! Caches single objects of the API server, refreshes them early, and serves stale ones while the API server is
//! unavailable.
//!
//! A cache entry is **fresh** for a while, which bounds how late a change is seen. An entry that is used in the last
//! third of that time is refreshed in the background, so entries in use never delay a pod. For an older entry the pod
//! waits for a new request. If that fails because the API server is unavailable, the stale entry is served for up to an
//! hour: a restart of the API server must not change what pods get. If the API server refuses the request, the stale
//! entry is served for five minutes: an API server that has just started refuses what it allows a moment later, but a
//! withdrawn permission must take effect soon.
//!
//! While the API server is unavailable, a pod does not wait if there is an entry; requests continue in the background
//! now and then.
//!
//! Any client that reaches the webhook's port can cause lookups. So each client address has a rate limit, and each
//! tenant has a quarter of the concurrent requests, however many of its pods wait.

use std::collections::HashMap;
use std::fmt::Display;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use http_body_util::LengthLimitError;
use moka::Expiry;
use moka::future::Cache;
use pillion_engine::lookup::Answer;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, warn};

use crate::informer::lookup_metrics::{LookupKind, LookupMetrics, LookupResult};
use crate::throttle::{ClientRates, Rate, Throttle};

/// How long whoever wants answers waits for them, unless somebody says otherwise. Shorter than the 300 ms that the webhook
/// waits for a look-up, so that it is known how each ended.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_millis(250);
/// How long an old answer is served while the API server cannot be asked.
pub(crate) const STALE_FOR: Duration = Duration::from_hours(1);
/// How old an answer may be that is served although the API server refuses to give it.
const REFUSED_FOR: Duration = Duration::from_mins(5);
/// After the API server could not be asked: how long nobody waits for it who can be given an old answer.
const AWAY_FOR: Duration = Duration::from_secs(5);
/// How long the log is quiet after it told of a look-up that brought nothing.
pub(crate) const QUIET_FOR: Duration = Duration::from_secs(5);

/// The answer to a question; `None` if there is no such thing.
pub type Fetched<V> = Result<Option<V>, FetchError>;
/// Asks.
pub(crate) type Fetch<K, V> = dyn Fn(K) -> BoxFuture<'static, Fetched<V>> + Send + Sync;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The API server could not be asked, or was not able to answer: that passes.
    #[error("{}", crate::client::chain(&**.0))]
    Unavailable(Box<dyn std::error::Error + Send + Sync>),
    /// The API server was asked and answers that this is not to be had, or what it answers cannot be used.
    #[error("{}", crate::client::chain(&**.0))]
    Refused(Box<dyn std::error::Error + Send + Sync>),
}

/// What bounds look-ups of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// How long one question may take, waiting for a turn included.
    pub(crate) ask_limit: Duration,
    /// Questions at one time.
    pub(crate) at_once: usize,
    /// Questions in any one second; `None` if that is not bounded.
    pub(crate) a_second: Option<usize>,
    /// Questions in any one second that one client address may cause.
    pub(crate) a_second_per_client: u32,
    /// Bytes that are remembered.
    pub(crate) capacity: u64,
    /// How long what is there is fresh.
    pub(crate) found_for: Duration,
    /// How long it is fresh that something is not there.
    pub(crate) missing_for: Duration,
    /// How long it is not asked for again after that was in vain.
    pub(crate) failed_for: Duration,
    /// How old an answer may be that is served while the API server cannot be asked.
    pub(crate) stale_for: Duration,
    /// What the log calls what is asked for.
    pub(crate) wanted: &'static str,
}

/// Answers that are remembered. Clones share them, and the bounds.
pub(crate) struct Remembered<K, V, W> {
    cache: Cache<K, Arc<CacheEntry<V>>>,
    asking: Arc<Asking<K, V, W>>,
}

/// What asks, and what bounds it.
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

/// On whose behalf something is looked up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker<'a> {
    /// The answer is needed by then.
    pub(crate) deadline: Instant,
    /// The address that sent the review, if one did.
    pub(crate) client: Option<IpAddr>,
    /// The namespace of the review's object, if that is known.
    pub(crate) tenant: Option<&'a str>,
    /// An answer from before this moment will not do.
    pub(crate) after: Option<Instant>,
}

impl Asker<'_> {
    /// Pillion itself.
    pub(crate) const fn own(deadline: Instant) -> Self {
        Self { deadline, client: None, tenant: None, after: None }
    }
}

/// Turns to ask, by tenant: so many at one time for each.
struct TenantTurns {
    each: usize,
    turns: Mutex<HashMap<Box<str>, Weak<Semaphore>>>,
}

/// Tenants that are kept before those without a question are forgotten.
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

/// What is known: a fact, why it could not be asked for last, or both.
#[derive(Debug)]
struct CacheEntry<V> {
    fact: Option<Fact<V>>,
    failure: Option<Failure>,
    /// How the question ended that this comes from.
    ended: LookupResult,
    /// Somebody asks for it again.
    refreshing: AtomicBool,
}

#[derive(Clone, Debug)]
struct Fact<V> {
    value: Option<V>,
    told_at: Instant,
}

#[derive(Clone, Debug)]
struct Failure {
    /// For authors of pods. Why exactly is for the log.
    why: &'static str,
    until: Instant,
}

/// What may be done with what is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It is served.
    Fresh,
    /// It is served, and it is time to ask again.
    Due,
    /// It is too old; ask, and serve it if that is in vain.
    Expired,
    /// It is too old, and asking was in vain a moment ago.
    Stale,
    /// Nothing is known, as asking was in vain a moment ago.
    Failed,
    /// Nothing is known.
    Unknown,
}

/// How long one question may take if whoever wants the answer waits so long: a little less, so that all who wait learn how
/// it ended.
pub(crate) fn ask_limit(answer_limit: Duration) -> Duration {
    answer_limit * 24 / 25
}

impl FetchError {
    /// Something that passes.
    pub fn unavailable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Unavailable(error.into())
    }

    /// Whether it is what the API server said, if only that it is not able to answer this: then it is not away, and what
    /// others ask for need not be served old. A service behind it may be broken for one kind alone.
    fn is_an_answer(&self) -> bool {
        let (Self::Unavailable(source) | Self::Refused(source)) = self;
        matches!(source.downcast_ref(), Some(kube::Error::Api(_)))
    }

    /// Something that asking again does not change.
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
            // More than is read of one answer.
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
    /// A fact that is too old to be served at all is none.
    fn fact(&self, bounds: &Bounds, now: Instant) -> Option<&Fact<V>> {
        self.fact.as_ref().filter(|fact| now.duration_since(fact.told_at) < bounds.stale_for)
    }

    fn standing(&self, bounds: &Bounds, now: Instant) -> Standing {
        let failed = self.failure.as_ref().is_some_and(|failure| now < failure.until);
        let Some(fact) = self.fact(bounds, now) else {
            return if failed { Standing::Failed } else { Standing::Unknown };
        };
        let age = now.duration_since(fact.told_at);
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
    /// The same for who wants nothing from before `after`: such a fact is as one that is too old.
    fn standing_after(&self, bounds: &Bounds, now: Instant, after: Option<Instant>) -> Standing {
        let is_before = self.fact(bounds, now).is_some_and(|fact| is_before(fact, after));
        match self.standing(bounds, now) {
            Standing::Fresh | Standing::Due if is_before => Standing::Expired,
            standing => standing,
        }
    }
}

impl<V: Clone> CacheEntry<V> {
    /// What is answered to who wants nothing from before `after`.
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
    after.is_some_and(|after| fact.told_at < after)
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
    /// `weight` says what an answer takes in memory.
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

    /// How many answers are remembered.
    pub(crate) fn len(&self) -> u64 {
        self.cache.entry_count()
    }

    /// That something was wanted that can have no answer.
    pub(crate) fn count(&self, what: W, result: LookupResult) {
        self.asking.metrics.count(what, result);
    }

    /// The answer, at the deadline at the latest.
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
        // Before others may wait for this one's answer: they are not refused for its client.
        if client.is_some_and(|client| !self.asking.clients.take(client)) {
            self.asking.tell_refused(&key, client, bounds.a_second_per_client as usize);
            self.count(what, if fact.is_some() { LookupResult::Stale } else { LookupResult::Refused });
            let failed = || Answer::Failed("this client had too much looked up within a second".into());
            return known.filter(|_| fact.is_some()).map_or_else(failed, |known| known.answer(&bounds, now, after));
        }
        let ask = Arc::clone(&self.asking).ask(key.clone(), fact, tenant.map(Box::from));
        let is_due = |known: &Arc<CacheEntry<V>>| {
            let standing = known.standing_after(&bounds, Instant::now(), after);
            matches!(standing, Standing::Expired | Standing::Unknown)
        };
        // Who comes meanwhile waits for this one answer. If the review that asks is given up, the next one asks.
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

    /// Asks again while what is known is served: one at a time for each key, and only if it is nobody else's turn.
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
            let now = asking.tell(&key, old.fact.clone(), None).await;
            let ended = if now.failure.is_none() { LookupResult::Refreshed } else { LookupResult::RefreshFailed };
            this.count(what, ended);
            this.cache.insert(key, now).await;
        });
    }
}

impl<K: Clone + Display, V: Clone, W: LookupKind> Asking<K, V, W> {
    async fn ask(self: Arc<Self>, key: K, old: Option<Fact<V>>, tenant: Option<Box<str>>) -> Arc<CacheEntry<V>> {
        if self.rate.as_ref().is_none_or(Rate::take) {
            return self.tell(&key, old, tenant.as_deref()).await;
        }
        self.tell_refused(&key, None, self.bounds.a_second.unwrap_or_default());
        // It may be asked for at once again.
        let failure = Failure { why: "the API server was asked too often", until: Instant::now() };
        let ended = if old.is_some() { LookupResult::Stale } else { LookupResult::Refused };
        Arc::new(CacheEntry { fact: old, failure: Some(failure), ended, refreshing: AtomicBool::new(false) })
    }

    /// Says in the log, now and then, that something is not looked up; for which client, if it was for that.
    fn tell_refused(&self, key: &K, client: Option<IpAddr>, limit: usize) {
        if let Some(suppressed) = self.failures.tell() {
            let (wanted, client) = (self.bounds.wanted, client.map(tracing::field::display));
            warn!(%key, suppressed, wanted, limit, client, "not looked up: too many were within a second");
        }
    }

    /// Asks, and says what is known then; `old` is what was known before.
    async fn tell(&self, key: &K, old: Option<Fact<V>>, tenant: Option<&str>) -> Arc<CacheEntry<V>> {
        let limit = self.bounds.ask_limit;
        let answer = async {
            // First among its own: a tenant with many questions leaves turns to others.
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
                return known(Some(Fact { value, told_at: Instant::now() }), None, ended);
            }
            Ok(Err(error)) => (error, "the API server did not give it", LookupResult::Failed),
            Err(_) => {
                let error = FetchError::unavailable(format!("no answer within {limit:?}"));
                (error, "no answer in time", LookupResult::TimedOut)
            }
        };
        let passes = matches!(error, FetchError::Unavailable(_));
        let old = old.filter(|old| passes || old.told_at.elapsed() < REFUSED_FOR);
        if let Some(suppressed) = self.failures.tell() {
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

/// When what is remembered is forgotten, so that it takes no memory; what may be served when is [`CacheEntry::standing`]'s.
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

#[cfg(test)]
mod tests;
