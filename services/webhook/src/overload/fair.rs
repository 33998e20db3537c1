//! A bounded queue that is fair between classes: surplus round robin.
//!
//! The classes that have something waiting stand in a ring. The one at its front is served until it has used up its
//! credit, then goes to the end; whenever it comes to the front it gets one quantum more. Whoever is served may leave its
//! class in debt, so that even a dear one is served at its class's next visit, and paid for later. A class of which
//! nothing waits is forgotten: there are never more of them than the queue is long.
//!
//! So one that is the first of its class waits for at most one visit of each other class: a quantum and one dear request.
//! Nothing here knows of time or of tasks.

use std::collections::{HashMap, VecDeque};

use super::Shed;

/// What one may cost at most, in quanta: no debt takes longer to pay.
const DEAREST: u64 = 64;

/// The bounds of a queue.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    /// How many may wait.
    pub(super) length: usize,
    /// How many of one class may.
    pub(super) per_class: usize,
    /// What a class may use at each visit.
    pub(super) quantum: u64,
}

/// Values that wait, each in a class.
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    bounds: Bounds,
    classes: HashMap<u64, Class<T>>,
    /// The classes that have something waiting, each once; the front one has its credit.
    ring: VecDeque<u64>,
    length: usize,
    next_ticket: u64,
}

#[derive(Debug)]
struct Class<T> {
    waiting: VecDeque<Waiting<T>>,
    /// Not above zero while it is not the front one.
    credit: i64,
}

#[derive(Debug)]
struct Waiting<T> {
    ticket: Ticket,
    cost: i64,
    value: T,
}

/// Names one that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// What happened to a value that was to wait.
#[derive(Debug)]
pub(super) struct Pushed<T> {
    pub(super) ticket: Ticket,
    /// The queue was full, and this one had to go for it: the last of the class of which the most wait.
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

    /// Lets a value wait.
    ///
    /// # Errors
    /// As many wait as may. A full queue takes a value in exchange for one of a class of which at least two more wait.
    pub(super) fn push(&mut self, class: u64, cost: u64, value: T) -> Result<Pushed<T>, Shed> {
        let own = self.classes.get(&class).map_or(0, |class| class.waiting.len());
        if own >= self.bounds.per_class {
            return Err(Shed::TenantQueueFull);
        }
        let displaced =
            if self.length < self.bounds.length { None } else { Some(self.displace(own + 2).ok_or(Shed::QueueFull)?) };
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        if own == 0 {
            // Whoever comes to an empty ring is at its front, and has what is had there.
            let credit = if self.ring.is_empty() { signed(self.bounds.quantum) } else { 0 };
            self.classes.insert(class, Class { waiting: VecDeque::new(), credit });
            self.ring.push_back(class);
        }
        if let Some(class) = self.classes.get_mut(&class) {
            let cost = signed(cost.min(self.bounds.quantum.saturating_mul(DEAREST)));
            class.waiting.push_back(Waiting { ticket, cost, value });
            self.length += 1;
        }
        Ok(Pushed { ticket, displaced })
    }

    /// The one whose turn it is.
    pub(super) fn pop(&mut self) -> Option<T> {
        loop {
            let key = *self.ring.front()?;
            let class = self.classes.get_mut(&key)?;
            if class.credit > 0 {
                let first = class.waiting.pop_front()?;
                class.credit = class.credit.saturating_sub(first.cost);
                self.length -= 1;
                if class.waiting.is_empty() {
                    self.forget(key);
                } else if class.credit <= 0 {
                    self.turn();
                }
                return Some(first.value);
            }
            // Still in debt after its visit.
            self.turn();
        }
    }

    /// Takes one out that does not want to wait any more.
    pub(super) fn remove(&mut self, class: u64, ticket: Ticket) -> Option<T> {
        let waiting = &mut self.classes.get_mut(&class)?.waiting;
        let at = waiting.binary_search_by_key(&ticket, |waiting| waiting.ticket).ok()?;
        let removed = waiting.remove(at)?;
        self.length -= 1;
        if waiting.is_empty() {
            self.forget(class);
        }
        Some(removed.value)
    }

    /// Takes the last one of the class of which the most wait, if they are at least so many.
    fn displace(&mut self, least: usize) -> Option<T> {
        let (_, class) = self.classes.iter_mut().max_by_key(|(_, class)| class.waiting.len())?;
        if class.waiting.len() < least {
            return None;
        }
        self.length -= 1;
        // At least two waited.
        class.waiting.pop_back().map(|last| last.value)
    }

    /// The visit of the class at the front has ended; the next one's begins.
    fn turn(&mut self) {
        self.ring.rotate_left(1);
        self.visit();
    }

    fn visit(&mut self) {
        if let Some(class) = self.ring.front().and_then(|key| self.classes.get_mut(key)) {
            class.credit = class.credit.saturating_add(signed(self.bounds.quantum.max(1)));
        }
    }

    fn forget(&mut self, key: u64) {
        self.classes.remove(&key);
        if self.ring.front() == Some(&key) {
            self.ring.pop_front();
            self.visit();
        } else {
            self.ring.retain(|other| *other != key);
        }
    }
}

fn signed(cost: u64) -> i64 {
    i64::try_from(cost).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
