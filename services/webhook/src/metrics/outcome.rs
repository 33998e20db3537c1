//! The outcome of a request: the router decides it once, and labels, logs and spans show it.

use pillion_engine::decision::Outcome;

/// The outcome of a request, as shown in metrics and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestOutcome {
    /// A decision was made and answered.
    Decided(Outcome),
    /// The request is not a valid admission review: HTTP 4xx.
    BadRequest,
    /// Pillion failed: HTTP 500.
    Error,
    /// The request is valid but was rejected: HTTP 503. [`Shed`](crate::overload::Shed) gives the reason.
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

    /// Returns the outcome as shown in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Decided(outcome) => outcome.as_str(),
            Self::BadRequest => "bad_request",
            Self::Error => "error",
            Self::Shed => "shed",
        }
    }

    /// Returns the index in [`Self::ALL`].
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
