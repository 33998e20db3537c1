//! Periods of time in which a condition held, as far as samples show.

use std::collections::VecDeque;

/// Maximum number of spans. Pods older than a hundred changes of the switch are not asked about.
const KEPT: usize = 64;

/// Seconds before the first sample that it also covers: no controller samples during an election.
const BEFORE_FIRST: i64 = 60;

/// When a condition held, in seconds since 1970. A span begins and ends at samples in which it did not hold: it may
/// have held at any time in between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    ended: VecDeque<(i64, i64)>,
    began: Option<i64>,
    /// Time of the last sample in which it did not hold.
    last_not: Option<i64>,
}

impl Spans {
    /// Adds a sample. If the condition holds in the first one, it also held during the election; earlier times are
    /// unknown.
    pub fn look(&mut self, now: i64, is_so: bool) {
        if is_so {
            let began = self.last_not.unwrap_or_else(|| now.saturating_sub(BEFORE_FIRST));
            self.began.get_or_insert(began);
            return;
        }
        if let Some(began) = self.began.take() {
            if self.ended.len() == KEPT {
                self.ended.pop_front();
            }
            self.ended.push_back((began, now));
        }
        self.last_not = Some(now);
    }

    /// Whether the condition may have held at this time.
    #[must_use]
    pub fn cover(&self, time: i64) -> bool {
        self.began.is_some_and(|began| began <= time)
            || self.ended.iter().any(|(began, ended)| (*began..=*ended).contains(&time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_reaches_from_look_to_look() {
        let mut spans = Spans::default();
        spans.look(10, false);
        assert!(!spans.cover(10));
        spans.look(20, true);
        spans.look(30, true);
        assert!(!spans.cover(9) && spans.cover(10) && spans.cover(25) && spans.cover(1_000));
        spans.look(40, false);
        assert!(spans.cover(40) && !spans.cover(41));
        let mut from_the_first = Spans::default();
        from_the_first.look(1_000, true);
        assert!(from_the_first.cover(1_000 - BEFORE_FIRST) && !from_the_first.cover(999 - BEFORE_FIRST));
        for time in 0..1_000 {
            spans.look(100 + time, time % 2 == 0);
        }
        assert_eq!(spans.ended.len(), KEPT);
    }
}
