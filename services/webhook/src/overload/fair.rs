//! A bounded queue that is fair between classes. It implements the algorithm "surplus round robin".
//!
//! Classes with waiting items or debts form a ring. The class at the front is served until it has used up its credit.
//! Then it moves to the end of the ring. When it is at the front again, its credit grows by one quantum. Its last item
//! may cost more than the remaining credit and leave the class in debt. So a class never has to save credit for a
//! costly item: the item is served at the first visit with credit, and later visits pay off the debt. A class without
//! waiting items is removed only when it has no debt.
//!
//! The cost of an item is only an estimate. If the item really costs more, the caller charges the rest to the class
//! later, as a debt. Until then the class may get further items.
//!
//! So the first item of a class without debt waits for at most one visit to each other class. A visit costs at most a
//! quantum, one costly item, and the real cost of the class's items that are not charged yet. The queue uses neither a
//! clock nor an async runtime.

use std::collections::{HashMap, VecDeque};

use super::shed::Shed;

/// The maximum cost with which an item is queued, in quanta.
const MAX_COST: u64 = 64;

/// The bounds of a queue.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    /// The maximum number of waiting items.
    pub(super) length: usize,
    /// The maximum number of waiting items of one class.
    pub(super) per_class: usize,
    /// The credit that a class gets at each visit.
    pub(super) quantum: u64,
    /// The maximum debt of a class by charges. It limits how long a class needs to pay off its debt, and so the number
    /// of classes that the queue keeps because of their debts.
    pub(super) debt: u64,
}

/// A queue of items, each of which belongs to a class.
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    bounds: Bounds,
    classes: HashMap<u64, Class<T>>,
    /// The classes with waiting items or debts, each once. The class at the front is the one being served.
    ring: VecDeque<u64>,
    length: usize,
    next_ticket: u64,
}

#[derive(Debug)]
struct Class<T> {
    waiting: VecDeque<Waiting<T>>,
    /// The cost that the class may still use; a negative value is a debt. Only the class at the front may have a
    /// positive credit.
    credit: i64,
}

#[derive(Debug)]
struct Waiting<T> {
    ticket: Ticket,
    cost: i64,
    value: T,
}

/// Identifies a waiting item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// The result of queueing a value.
#[derive(Debug)]
pub(super) struct Pushed<T> {
    pub(super) ticket: Ticket,
    /// The item that was displaced because the queue was full: the newest of the class with the most items.
    pub(super) displaced: Option<T>,
}

impl<T> FairQueue<T> {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, classes: HashMap::new(), ring: VecDeque::new(), length: 0, next_ticket: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.length
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Queues a value.
    ///
    /// # Errors
    /// The queue is full, or the class already has its maximum number of items. A full queue accepts a value only by
    /// displacing an item of a class that has at least two items more.
    pub(super) fn push(&mut self, class: u64, cost: u64, value: T) -> Result<Pushed<T>, Shed> {
        let own = self.classes.get(&class).map_or(0, |class| class.waiting.len());
        if own >= self.bounds.per_class {
            return Err(Shed::TenantQueueFull);
        }
        let displaced =
            if self.length < self.bounds.length { None } else { Some(self.displace(own + 2).ok_or(Shed::QueueFull)?) };
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let cost = signed(cost.min(self.bounds.quantum.saturating_mul(MAX_COST)));
        let is_first = self.ring.is_empty();
        let class = self.classes.entry(class).or_insert_with_key(|class| {
            self.ring.push_back(*class);
            // If the ring was empty, the new class is at the front, so it gets its credit at once.
            Class { waiting: VecDeque::new(), credit: if is_first { signed(self.bounds.quantum) } else { 0 } }
        });
        class.waiting.push_back(Waiting { ticket, cost, value });
        self.length += 1;
        Ok(Pushed { ticket, displaced })
    }

    /// Takes the next item in fair order. `None` if the queue is empty.
    pub(super) fn pop(&mut self) -> Option<T> {
        let mut visits = 0;
        // Each round gives every class a quantum, and debts are limited, so the loop ends.
        while self.length > 0 {
            let class = self.front()?;
            if class.credit > 0
                && let Some(first) = class.waiting.pop_front()
            {
                class.credit = class.credit.saturating_sub(first.cost);
                self.length -= 1;
                self.end_visit_if_due();
                return Some(first.value);
            }
            self.end_visit_if_due();
            visits += 1;
            // A whole round without an item: no class with waiting items had credit.
            if visits >= self.ring.len() {
                self.skip_rounds();
                visits = 0;
            }
        }
        None
    }

    /// Charges a class for an item whose real cost exceeds the cost with which it was queued by this amount.
    pub(super) fn charge(&mut self, class: u64, excess: u64) {
        if excess == 0 {
            return;
        }
        let class = self.classes.entry(class).or_insert_with_key(|class| {
            self.ring.push_back(*class);
            Class { waiting: VecDeque::new(), credit: 0 }
        });
        class.credit = class.credit.saturating_sub(signed(excess)).max(-signed(self.bounds.debt));
    }

    /// Returns the debt of a class.
    #[cfg(test)]
    pub(super) fn debt(&self, class: u64) -> u64 {
        self.classes.get(&class).map_or(0, |class| u64::try_from(-class.credit).unwrap_or(0))
    }

    /// Forgets all debts if the queue is empty.
    pub(super) fn forget_debts(&mut self) {
        if self.is_empty() {
            self.classes.clear();
            self.ring.clear();
        }
    }

    /// Removes and returns the item with this ticket. `None` if it is no longer in the queue.
    pub(super) fn remove(&mut self, class: u64, ticket: Ticket) -> Option<T> {
        let waiting = &mut self.classes.get_mut(&class)?.waiting;
        let at = waiting.binary_search_by_key(&ticket, |waiting| waiting.ticket).ok()?;
        let removed = waiting.remove(at)?;
        self.length -= 1;
        Some(removed.value)
    }

    /// Removes the newest item of the class with the most items, and returns it. `None`: that class has fewer than
    /// `least` items.
    fn displace(&mut self, least: usize) -> Option<T> {
        let (_, class) = self.classes.iter_mut().max_by_key(|(_, class)| class.waiting.len())?;
        if class.waiting.len() < least {
            return None;
        }
        self.length -= 1;
        // The class has at least two items, so it still has one afterwards.
        class.waiting.pop_back().map(|last| last.value)
    }

    fn front(&mut self) -> Option<&mut Class<T>> {
        self.classes.get_mut(self.ring.front()?)
    }

    /// If the class at the front has no waiting items or no credit, moves on to the next class and adds a quantum to
    /// its credit. Removes the previous class if it has neither items nor debt.
    fn end_visit_if_due(&mut self) {
        let Some(class) = self.front() else { return };
        let is_empty = class.waiting.is_empty();
        if !is_empty && class.credit > 0 {
            return;
        }
        if is_empty && class.credit >= 0 {
            if let Some(key) = self.ring.pop_front() {
                self.classes.remove(&key);
            }
        } else {
            self.ring.rotate_left(1);
        }
        let quantum = signed(self.bounds.quantum.max(1));
        if let Some(class) = self.front() {
            class.credit = class.credit.saturating_add(quantum);
        }
    }

    /// Skips the rounds in which no class would get an item. Each class with a debt gets the credit of all these rounds
    /// at once, up to a credit of 0. Otherwise a class with a debt of thousands of quanta would need as many visits.
    fn skip_rounds(&mut self) {
        let quantum = signed(self.bounds.quantum.max(1));
        let waiting = self.classes.values().filter(|class| !class.waiting.is_empty());
        let Some(rounds) = waiting.map(|class| (-class.credit).max(0) / quantum).min() else { return };
        for class in self.classes.values_mut().filter(|class| class.credit < 0) {
            class.credit = class.credit.saturating_add(rounds.saturating_mul(quantum)).min(0);
        }
    }
}

fn signed(cost: u64) -> i64 {
    i64::try_from(cost).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
