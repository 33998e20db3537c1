//! Rate limits for Events and dry runs: a burst for each namespace, then one for each pause. A namespace that has used
//! up its budget takes nothing from others. All namespaces together have a limit too, since thousands of them at the
//! same time would overload the API server. The platform's own profiles have a separate budget.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// For one namespace, and for the platform's own profiles.
const EACH: Rate = Rate { at_once: 25, pause: Duration::from_secs(2) };

/// For all namespaces together: ten noisy namespaces exhaust it in a burst, and twenty in the long run.
const ALL: Rate = Rate { at_once: 250, pause: Duration::from_millis(100) };

/// A burst, then one for each pause.
#[derive(Clone, Copy, Debug)]
struct Rate {
    at_once: u32,
    pause: Duration,
}

/// The remaining budgets. A namespace with a full budget has no entry.
#[derive(Debug, Default)]
pub(super) struct Budget {
    namespaces: HashMap<Box<str>, Used>,
    all: Option<Used>,
    platform: Option<Used>,
}

#[derive(Debug)]
struct Used {
    rate: Rate,
    left: u32,
    /// Time up to which the budget has been refilled.
    at: Instant,
}

impl Budget {
    /// Takes one, if available; `None` stands for the platform's own profiles.
    pub(super) fn take(&mut self, namespace: Option<&str>, now: Instant) -> bool {
        let Some(namespace) = namespace else {
            return self.platform.get_or_insert_with(|| Used::nothing(EACH, now)).take(now);
        };
        self.namespaces.retain(|_, used| {
            used.gain(now);
            used.left < EACH.at_once
        });
        // A namespace without budget takes nothing from the total. A namespace that the total blocks keeps its own
        // budget.
        if self.namespaces.get(namespace).is_some_and(|used| used.left == 0) {
            return false;
        }
        self.all.get_or_insert_with(|| Used::nothing(ALL, now)).take(now)
            && self.namespaces.entry(namespace.into()).or_insert_with(|| Used::nothing(EACH, now)).take(now)
    }
}

impl Used {
    const fn nothing(rate: Rate, now: Instant) -> Self {
        Self { rate, left: rate.at_once, at: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        self.gain(now);
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        true
    }

    fn gain(&mut self, now: Instant) {
        let Rate { at_once, pause } = self.rate;
        let gained = now.duration_since(self.at).as_millis() / pause.as_millis();
        let gained = u32::try_from(gained).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(gained).min(at_once);
        self.at += pause.saturating_mul(gained);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_namespace_silences_itself_alone() {
        let (mut budget, now) = (Budget::default(), Instant::now());
        let noisy = |budget: &mut Budget, now| (0..100).filter(|_| budget.take(Some("noisy"), now)).count();
        assert_eq!(noisy(&mut budget, now), 25);
        assert!(budget.take(Some("quiet"), now) && budget.take(None, now));
        assert_eq!(noisy(&mut budget, now + EACH.pause / 2), 0);
        assert_eq!(noisy(&mut budget, now + 3 * EACH.pause / 2), 1);
        assert_eq!(noisy(&mut budget, now + 2 * EACH.pause), 1, "half a pause is not lost");
        assert_eq!(budget.namespaces.len(), 1, "of those that have all left nothing is kept");
        assert_eq!(noisy(&mut budget, now + 1_000 * EACH.pause), 25);
    }

    #[test]
    fn thousands_of_namespaces_have_a_limit_together() {
        let (mut budget, now) = (Budget::default(), Instant::now());
        let names: Vec<_> = (0..5_000).map(|number| format!("team-{number}")).collect();
        let round =
            |budget: &mut Budget, now| names.iter().filter(|name| budget.take(Some(name.as_str()), now)).count();
        assert_eq!(round(&mut budget, now), 250);
        assert!(budget.take(None, now), "the platform's own profiles share with nobody");
        let second = Duration::from_secs(1);
        assert_eq!(round(&mut budget, now + second), 10);
        let late = "team-4999";
        assert!(!budget.take(Some(late), now + second));
        let left = (0..100).filter(|_| budget.take(Some(late), now + 10 * second)).count();
        assert_eq!(left, 25, "who was kept waiting by others has all of its own left");
    }
}
