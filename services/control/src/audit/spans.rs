//! Periods of time in which a condition held, as far as samples show.

use std::collections::VecDeque;

/// How many spans are remembered. Nobody asks about pods of a switch that was set a hundred times ago.
const KEPT: usize = 64;

/// Seconds before the first look, of which it speaks too: nobody looks while a leader is elected.
const BEFORE_FIRST: i64 = 60;

/// When something was so, in seconds since 1970. A span begins when it was last seen not to be so, and ends when it is seen
/// not to be so any more: what happened in between may have happened while it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    ended: VecDeque<(i64, i64)>,
    began: Option<i64>,
    /// When it was last seen not to be so.
    last_not: Option<i64>,
}

impl Spans {
    /// It is so now, or it is not. What is so at the first look has been so while a leader was elected; of what was before,
    /// nothing is known.
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

    /// Whether it may have been so then.
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
