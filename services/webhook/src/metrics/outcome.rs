//! The outcome of a request: the router decides it once, and labels, logs and spans show it.

use pillion_engine::report::Outcome;

/// How a request ended, as it stands in metrics and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestOutcome {
    /// A decision was made and answered.
    Decided(Outcome),
    /// The request is not an admission review that can be decided: HTTP 4xx.
    BadRequest,
    /// Pillion failed: HTTP 500.
    Error,
    /// It was turned away though nothing is wrong with it: HTTP 503. [`Shed`](crate::overload::Shed) says why.
    Shed,
}

impl RequestOutcome {
    /// All outcomes.
    pub const ALL: [Self; 8] = [
        Self::Decided(Outcome::Injected),
        Self::Decided(Outcome::Unchanged),
        Self::Decided(Outcome::Skipped),
        Self::Decided(Outcome::Validated),
        Self::Decided(Outcome::Denied),
        Self::BadRequest,
        Self::Error,
        Self::Shed,
    ];

    /// The outcome as it stands in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Decided(outcome) => outcome.as_str(),
            Self::BadRequest => "bad_request",
            Self::Error => "error",
            Self::Shed => "shed",
        }
    }

    /// Its place in [`Self::ALL`].
    pub(super) const fn index(self) -> usize {
        match self {
            Self::Decided(Outcome::Injected) => 0,
            Self::Decided(Outcome::Unchanged) => 1,
            Self::Decided(Outcome::Skipped) => 2,
            Self::Decided(Outcome::Validated) => 3,
            Self::Decided(Outcome::Denied) => 4,
            Self::BadRequest => 5,
            Self::Error => 6,
            Self::Shed => 7,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_stands_where_its_index_says() {
        for (place, outcome) in RequestOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome.index(), place, "{outcome:?}");
        }
    }
}
