//! A bounded queue that is fair between classes: surplus round robin.
//!
//! Classes with waiting items form a ring. The class at the front is served until it has used up its credit, then it
//! moves to the end; at the front it gets one quantum more. An item may leave its class in debt, so even a costly item
//! is served at its class's next visit and paid for later. A class without waiting items is forgotten only when it has
//! no debt, or when nothing waits at all.
//!
//! So the first item of a class waits for at most one visit of each other class: a quantum and one costly item. The
//! queue knows nothing of time or tasks.

use std::collections::{HashMap, VecDeque};

use super::Shed;

/// The maximum cost of one item, in quanta. It bounds how long a debt takes to pay.
const DEAREST: u64 = 64;

/// The bounds of a queue.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    /// The maximum number of waiting items.
    pub(super) length: usize,
    /// The maximum number of waiting items of one class.
    pub(super) per_class: usize,
    /// The cost that a class may use at each visit.
    pub(super) quantum: u64,
}

/// Waiting values, each in a class.
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    bounds: Bounds,
    classes: HashMap<u64, Class<T>>,
    /// Classes with waiting items or debts, each once. The visit of the class at the front has begun.
    ring: VecDeque<u64>,
    length: usize,
    next_ticket: u64,
}

#[derive(Debug)]
struct Class<T> {
    waiting: VecDeque<Waiting<T>>,
    /// At most zero, except for the class at the front.
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
    /// The queue is full, or the class has its maximum of items. A full queue accepts a value only by displacing an
    /// item of a class with at least two more items.
    pub(super) fn push(&mut self, class: u64, cost: u64, value: T) -> Result<Pushed<T>, Shed> {
        let own = self.classes.get(&class).map_or(0, |class| class.waiting.len());
        if own >= self.bounds.per_class {
            return Err(Shed::TenantQueueFull);
        }
        let displaced =
            if self.length < self.bounds.length { None } else { Some(self.displace(own + 2).ok_or(Shed::QueueFull)?) };
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let cost = signed(cost.min(self.bounds.quantum.saturating_mul(DEAREST)));
        let is_first = self.ring.is_empty();
        let class = self.classes.entry(class).or_insert_with_key(|class| {
            self.ring.push_back(*class);
            // In an empty ring, the new class is at the front, and its visit begins at once.
            Class { waiting: VecDeque::new(), credit: if is_first { signed(self.bounds.quantum) } else { 0 } }
        });
        class.waiting.push_back(Waiting { ticket, cost, value });
        self.length += 1;
        Ok(Pushed { ticket, displaced })
    }

    /// Takes the next item in fair order.
    pub(super) fn pop(&mut self) -> Option<T> {
        // Each round gives every class a quantum, and debts are limited, so this ends.
        while self.length > 0 {
            let class = self.front()?;
            if class.credit > 0
                && let Some(first) = class.waiting.pop_front()
            {
                class.credit = class.credit.saturating_sub(first.cost);
                self.length -= 1;
                self.go_on();
                return Some(first.value);
            }
            self.go_on();
        }
        None
    }

    /// Removes an item that no longer waits.
    pub(super) fn remove(&mut self, class: u64, ticket: Ticket) -> Option<T> {
        let waiting = &mut self.classes.get_mut(&class)?.waiting;
        let at = waiting.binary_search_by_key(&ticket, |waiting| waiting.ticket).ok()?;
        let removed = waiting.remove(at)?;
        self.length -= 1;
        self.forget_all_if_empty();
        Some(removed.value)
    }

    /// Takes the newest item of the class with the most items, if it has at least `least`.
    fn displace(&mut self, least: usize) -> Option<T> {
        let (_, class) = self.classes.iter_mut().max_by_key(|(_, class)| class.waiting.len())?;
        if class.waiting.len() < least {
            return None;
        }
        self.length -= 1;
        // The class has at least two items, so it does not become empty.
        class.waiting.pop_back().map(|last| last.value)
    }

    fn front(&mut self) -> Option<&mut Class<T>> {
        self.classes.get_mut(self.ring.front()?)
    }

    /// Ends the visit of the class at the front if it has nothing waiting or no credit, and begins the next one's.
    fn go_on(&mut self) {
        self.forget_all_if_empty();
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

    fn forget_all_if_empty(&mut self) {
        if self.length == 0 {
            self.classes.clear();
            self.ring.clear();
        }
    }
}

fn signed(cost: u64) -> i64 {
    i64::try_from(cost).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
