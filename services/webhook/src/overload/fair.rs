//! A bounded queue that is fair between classes. It implements the algorithm "surplus round robin".
//!
//! Classes with waiting items form a ring. The class at the front is served until it has used up its credit. Then it
//! moves to the end of the ring. When it is at the front again, its credit grows by one quantum. Its last item may cost
//! more than the remaining credit and leave the class in debt. So a class never has to save credit for a costly item:
//! the item is served at the first visit with credit, and later visits pay off the debt. A class without waiting items
//! is removed only when it has no debt, or when no class has waiting items.
//!
//! So the first item of a class without debt waits for at most one visit to each other class. A visit costs at most a
//! quantum and one costly item. The queue uses neither a clock nor an async runtime.

use std::collections::{HashMap, VecDeque};

use super::shed::Shed;

/// The maximum cost of one item, in quanta. It limits how long a class needs to pay off its debt.
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
        }
        None
    }

    /// Removes and returns the item with this ticket. `None` if it is no longer in the queue.
    pub(super) fn remove(&mut self, class: u64, ticket: Ticket) -> Option<T> {
        let waiting = &mut self.classes.get_mut(&class)?.waiting;
        let at = waiting.binary_search_by_key(&ticket, |waiting| waiting.ticket).ok()?;
        let removed = waiting.remove(at)?;
        self.length -= 1;
        self.forget_debts_if_empty();
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

    /// If the class at the front has no waiting items or no credit, moves on to the next class.
    fn end_visit_if_due(&mut self) {
        self.forget_debts_if_empty();
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

    fn forget_debts_if_empty(&mut self) {
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QUANTUM: u64 = 10;

    fn bounds(length: usize, per_class: usize) -> Bounds {
        Bounds { length, per_class, quantum: QUANTUM }
    }

    #[test]
    fn costly_class_pays_for_its_cost() {
        let mut queue = FairQueue::new(bounds(1000, 500));
        for _ in 0..100 {
            queue.push(1, 10 * QUANTUM, 1).unwrap();
            queue.push(2, QUANTUM, 2).unwrap();
        }
        let served: Vec<_> = std::iter::from_fn(|| queue.pop()).take(55).collect();
        let costly = served.iter().filter(|class| **class == 1).count();
        assert!((4..=7).contains(&costly), "{costly} of {}", served.len());
    }

    #[test]
    fn full_queue_displaces_from_longest_class() {
        let mut queue = FairQueue::new(bounds(6, 4));
        for number in 0..4 {
            queue.push(1, 1, number).unwrap();
        }
        assert_eq!(queue.push(1, 1, 99).unwrap_err(), Shed::TenantQueueFull);
        queue.push(2, 1, 10).unwrap();
        queue.push(3, 1, 20).unwrap();
        let pushed = queue.push(4, 1, 30).unwrap();
        assert_eq!((pushed.displaced, queue.len()), (Some(3), 6), "the newest item of the longest class");
        assert_eq!(queue.push(2, 1, 11).unwrap().displaced, Some(2));
        assert_eq!(queue.push(2, 1, 12).unwrap_err(), Shed::QueueFull, "no class has two items more");
        assert_eq!(queue.push(1, 1, 13).unwrap_err(), Shed::QueueFull);
        assert_eq!(FairQueue::new(bounds(0, 4)).push(1, 1, ()).unwrap_err(), Shed::QueueFull);
        assert_eq!(FairQueue::new(bounds(4, 0)).push(1, 1, ()).unwrap_err(), Shed::TenantQueueFull);
    }

    /// Tests that a class keeps its debt if it always has exactly one costly item waiting.
    #[test]
    fn single_waiting_items_pay_their_debt() {
        let mut queue = FairQueue::new(bounds(1000, 500));
        for _ in 0..400 {
            queue.push(2, QUANTUM, 2).unwrap();
        }
        queue.push(1, 10 * QUANTUM, 1).unwrap();
        let mut costly = 0;
        for _ in 0..220 {
            if queue.pop() == Some(1) {
                costly += 1;
                queue.push(1, 10 * QUANTUM, 1).unwrap();
            }
        }
        assert!((15..=25).contains(&costly), "{costly}");
    }

    /// Thousands of classes send one costly item each. The number of classes that the queue keeps because of their
    /// debts must stay bounded.
    #[test]
    fn debts_are_bounded() {
        let mut queue = FairQueue::new(bounds(16, 16));
        let mut most = 0;
        for class in 0..10_000 {
            queue.push(class, u64::MAX, ()).unwrap();
            if queue.len() == 16 {
                queue.pop().unwrap();
            }
            most = most.max(queue.classes.len());
        }
        let bound = 16 * usize::try_from(MAX_COST).unwrap() + 16;
        assert!(most <= bound, "{most}");
        while queue.pop().is_some() {}
        assert!(queue.classes.is_empty());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push { class: u64, cost: u64 },
        Pop,
        Remove { index: usize },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            // Class 0 gets far more items than any other class.
            4 => (Just(0_u64), 0..40_u64).prop_map(|(class, cost)| Step::Push { class, cost }),
            4 => (1..6_u64, 0..40_u64).prop_map(|(class, cost)| Step::Push { class, cost }),
            4 => Just(Step::Pop),
            1 => any::<prop::sample::Index>().prop_map(|index| Step::Remove { index: index.index(1000) }),
        ];
        prop::collection::vec(step, 0..300)
    }

    /// A waiting item in the model of the queue, with the costs that may be served before it.
    #[derive(Clone, Debug)]
    struct Modelled {
        ticket: Ticket,
        class: u64,
        cost: u64,
        /// The cost of earlier items of the same class, plus the debt that the class may have.
        own: u64,
        /// By class, the cost of other classes' items that were served since this item arrived.
        others: HashMap<u64, u64>,
    }

    proptest! {
        /// Other classes delay an item by a limited amount of work, whatever the order of arrivals. For each visit that
        /// the item's class needs, each other class is served at most a quantum. In addition, each other class may be
        /// served one costly item.
        #[test]
        fn delay_by_other_classes_is_bounded(steps in steps()) {
            const MAX: u64 = 40;
            let mut queue = FairQueue::new(bounds(1000, 1000));
            let mut model: Vec<Modelled> = Vec::new();
            let pops = steps.len();
            for step in steps.into_iter().chain((0..pops).map(|_| Step::Pop)) {
                match step {
                    Step::Push { class, cost } => {
                        let own = model.iter().filter(|other| other.class == class).map(|other| other.cost).sum::<u64>() + MAX;
                        let ticket = queue.push(class, cost, queue.next_ticket).unwrap().ticket;
                        model.push(Modelled { ticket, class, cost, own, others: HashMap::new() });
                    }
                    Step::Pop => {
                        let Some(served) = queue.pop() else {
                            prop_assert!(model.is_empty());
                            continue;
                        };
                        let at = model.iter().position(|waiting| waiting.ticket.0 == served).unwrap();
                        let served = model.remove(at);
                        let first = model.iter().filter(|other| other.class == served.class).all(|other| other.ticket > served.ticket);
                        prop_assert!(first, "out of its class's order");
                        let visits = served.own.div_ceil(QUANTUM) + 1;
                        for work in served.others.values() {
                            prop_assert!(*work <= visits * QUANTUM + MAX, "{work} to one other class: {served:?}");
                        }
                        for waiting in model.iter_mut().filter(|waiting| waiting.class != served.class) {
                            *waiting.others.entry(served.class).or_default() += served.cost;
                        }
                    }
                    Step::Remove { index } if !model.is_empty() => {
                        let gone = model.remove(index % model.len());
                        prop_assert_eq!(queue.remove(gone.class, gone.ticket), Some(gone.ticket.0));
                        prop_assert_eq!(queue.remove(gone.class, gone.ticket), None);
                    }
                    Step::Remove { .. } => {}
                }
                prop_assert_eq!(queue.len(), model.len());
                let mut classes: Vec<_> = model.iter().map(|waiting| waiting.class).collect();
                classes.sort_unstable();
                classes.dedup();
                prop_assert!(queue.classes.len() >= classes.len() && queue.classes.len() <= 6);
                prop_assert_eq!(queue.ring.len(), queue.classes.len());
                prop_assert!(!model.is_empty() || queue.classes.is_empty(), "an empty queue keeps no debt");
            }
            prop_assert!(model.is_empty());
        }

        /// The first item of a class without debt waits for at most one visit to each other class.
        #[test]
        fn first_item_waits_one_visit_per_class(costs in prop::collection::vec((1..6_u64, 0..40_u64), 0..200), served in 0..100_usize) {
            let mut queue = FairQueue::new(bounds(1000, 1000));
            for (class, cost) in costs {
                queue.push(class, cost, (class, cost)).unwrap();
            }
            for _ in 0..served {
                queue.pop();
            }
            queue.push(0, 1, (0, 0)).unwrap();
            let mut others = HashMap::<u64, u64>::new();
            while let Some((class, cost)) = queue.pop() {
                if class == 0 {
                    break;
                }
                *others.entry(class).or_default() += cost;
            }
            for work in others.values() {
                prop_assert!(*work < QUANTUM + 40, "{work}");
            }
        }
    }
}
