//! Counts lookups by their target and their result.

use std::marker::PhantomData;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookupResult {
    /// The entry was cached, or a request for it was running.
    Hit,
    /// A stale entry was served because the API server was unavailable.
    Stale,
    /// The object exists.
    Found,
    /// The object does not exist.
    Missing,
    /// A cached entry in use was refreshed early. No review waited for it.
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

/// A kind of lookups, and its metric labels.
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
        // Series that exist from the start have a rate from their first event.
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
