//! Counts lookups by their target and their result.

use std::marker::PhantomData;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// How a look-up ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookupResult {
    /// It was remembered, or somebody was asking for it already.
    Hit,
    /// What was remembered is old, and was served because the API server could not be asked.
    Stale,
    /// The API server has it.
    Found,
    /// The API server does not have it.
    Missing,
    /// What was remembered and is in use was asked for again in good time. No request waited for it.
    Refreshed,
    /// The same in vain. What was remembered stays.
    RefreshFailed,
    /// The API server could not be asked, or answered with an error, and nothing was remembered.
    Failed,
    /// There was no answer in time, and nothing was remembered.
    TimedOut,
    /// The API server was not asked, as it had been asked too often.
    Refused,
    /// The API server was not asked, as nothing can have such a name.
    Invalid,
}

/// What a kind of look-up is about, in labels of metrics.
pub trait LookupKind: Copy + Send + Sync + 'static {
    /// The counter's name, without prefix and suffix.
    const NAME: &'static str;
    /// What it counts.
    const HELP: &'static str;
    /// All that they may be about.
    const ALL: &'static [Self];

    /// The value of the label `what`; `None` if there is one thing only.
    fn label(self) -> Option<&'static str>;
}

/// Counts look-ups of one kind by what they were about and how they ended.
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

    /// The result as it stands in metrics.
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
    /// Makes the counters and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let family = Family::<Labels, Counter>::default();
        registry.sub_registry_with_prefix("pillion").register(W::NAME, W::HELP, family.clone());
        let metrics = Self { family, about: PhantomData };
        // Series that are there from the beginning have a rate from their first event on.
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
