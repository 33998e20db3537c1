//! Creates the `ConfigMap` of the kill switch if it is missing, so that operators find it. If it is deleted, it is
//! created again, since guardrails depend on it. Repeated deletions are not fought.

use std::time::{Duration, Instant};

use kube::Client;
use tracing::{info, warn};

use super::ensure;
use crate::client::chain;
use crate::release::Release;

/// Minimum time between two creations.
const PAUSE: Duration = Duration::from_mins(1);

/// The known state of the `ConfigMap`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Making {
    /// Whether it exists, if known. Creating an existing one does no harm.
    is_there: bool,
    /// Time of the last attempt.
    tried: Option<Instant>,
    /// Whether that failed.
    has_failed: bool,
}

impl Making {
    /// Records whether it exists.
    pub(crate) const fn seen(&mut self, is_there: bool) {
        self.is_there = is_there;
    }

    /// Creates it if it is missing. Returns when to retry, if later.
    pub(crate) async fn make(&mut self, client: &Client, release: &Release) -> Option<Instant> {
        let now = Instant::now();
        let due = self.due(now)?;
        if due > now {
            return Some(due);
        }
        let made = ensure(client, release).await;
        let (name, is_news) = (release.switch(), self.tried(made.is_ok(), now));
        match made {
            Ok(true) => info!(name, "the ConfigMap of the kill switch is made"),
            Err(error) if is_news => warn!(
                name,
                error = chain(&error),
                "the ConfigMap of the kill switch could not be made: who wants to stop this has to make it"
            ),
            Ok(false) | Err(_) => {}
        }
        self.due(now)
    }

    /// When to create it; `None` if it exists.
    fn due(&self, now: Instant) -> Option<Instant> {
        (!self.is_there).then(|| self.tried.map_or(now, |tried| now.max(tried + PAUSE)))
    }

    /// Records an attempt. Returns whether to log it: a failure is logged once.
    const fn tried(&mut self, is_made: bool, now: Instant) -> bool {
        let is_news = is_made || !self.has_failed;
        self.is_there = is_made;
        self.tried = Some(now);
        self.has_failed = !is_made;
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_deleted_is_made_again_at_once_and_then_with_pauses() {
        let begun = Instant::now();
        let later = |seconds| begun + Duration::from_secs(seconds);
        let mut making = Making::default();
        assert_eq!(making.due(begun), Some(begun), "nobody has seen one");
        assert!(making.tried(true, begun));
        assert_eq!(making.due(later(1)), None);
        making.seen(true);
        assert_eq!(making.due(later(100)), None);
        making.seen(false);
        assert_eq!(making.due(later(100)), Some(later(100)));
        assert!(making.tried(true, later(100)));
        making.seen(false);
        assert_eq!(making.due(later(101)), Some(later(160)), "again already");
        assert_eq!(making.due(later(200)), Some(later(200)));
    }

    #[test]
    fn what_cannot_be_made_is_tried_again_and_told_once() {
        let begun = Instant::now();
        let mut making = Making::default();
        assert!(making.tried(false, begun));
        assert_eq!(making.due(begun), Some(begun + PAUSE));
        assert!(!making.tried(false, begun + PAUSE));
        assert!(making.tried(true, begun + 2 * PAUSE));
        making.seen(false);
        assert!(making.tried(false, begun + 3 * PAUSE));
    }
}
