//! Tests of the order in which items are served, and of its bounds.

use proptest::prelude::*;

use super::*;

const QUANTUM: u64 = 10;
const DEBT: u64 = 1000 * QUANTUM;
/// The maximum cost of an item in the property tests.
const MAX: u64 = 40;
/// The maximum amount by which the real cost of an item exceeds its cost in the property tests.
const MAX_EXCESS: u64 = 200;

fn bounds(length: usize, per_class: usize) -> Bounds {
    Bounds { length, per_class, quantum: QUANTUM, debt: DEBT }
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
fn class_pays_for_real_cost() {
    let mut queue = FairQueue::new(bounds(1000, 500));
    for _ in 0..200 {
        queue.push(1, QUANTUM, 1).unwrap();
        queue.push(2, QUANTUM, 2).unwrap();
    }
    let served = std::iter::from_fn(|| {
        let class = queue.pop()?;
        queue.charge(class, if class == 1 { 20 * QUANTUM } else { 0 });
        Some(class)
    });
    let served: Vec<_> = served.take(110).collect();
    let costly = served.iter().filter(|class| **class == 1).count();
    assert!((4..=7).contains(&costly), "{costly} of {}", served.len());
}

/// Tests that paying off a debt takes a few visits, not one visit for each quantum of the debt.
#[test]
fn huge_debts_are_paid_in_few_visits() {
    let mut queue = FairQueue::new(Bounds { quantum: 1, debt: u64::MAX, ..bounds(1000, 500) });
    for _ in 0..3 {
        for class in 0..100 {
            queue.push(class, 1, class).unwrap();
        }
    }
    let served: Vec<_> = std::iter::from_fn(|| {
        let class = queue.pop()?;
        queue.charge(class, 1_u64 << (40 + class % 20));
        Some(class)
    })
    .collect();
    assert_eq!(served.len(), 300);
    let last: Vec<_> = served[285..].iter().map(|class| class % 20).collect();
    assert!(last.iter().all(|debt| *debt >= 18), "the classes with the largest debts are last: {last:?}");
}

#[test]
fn debt_without_waiting_items_delays_next_item() {
    let mut queue = FairQueue::new(bounds(1000, 500));
    queue.push(1, 1, 1).unwrap();
    assert_eq!(queue.pop(), Some(1));
    queue.charge(1, 5 * QUANTUM);
    for class in [1, 2, 2, 2] {
        queue.push(class, QUANTUM, class).unwrap();
    }
    let served: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
    assert_eq!(served, [2, 2, 2, 1]);
    queue.charge(1, 5 * QUANTUM);
    queue.forget_debts();
    assert!(queue.classes.is_empty() && queue.ring.is_empty());
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
    for (excess, quanta) in [(0, MAX_COST), (u64::MAX, 200)] {
        let mut queue = FairQueue::new(Bounds { debt: 200 * QUANTUM, ..bounds(16, 16) });
        let mut most = 0;
        for class in 0..10_000 {
            queue.push(class, u64::MAX, class).unwrap();
            if queue.len() == 16 {
                let served = queue.pop().unwrap();
                queue.charge(served, excess);
            }
            most = most.max(queue.classes.len());
        }
        let bound = 16 * usize::try_from(quanta).unwrap() + 16;
        assert!((bound / 2..=bound).contains(&most), "{most}");
        while queue.pop().is_some() {}
        queue.forget_debts();
        assert!(queue.classes.is_empty() && queue.ring.is_empty());
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Queues an item whose real cost is `cost + excess`.
    Push {
        class: u64,
        cost: u64,
        excess: u64,
    },
    /// Takes an item from the queue. The item is then in progress.
    Pop,
    /// Ends an item in progress, and charges its class.
    End {
        index: usize,
    },
    Remove {
        index: usize,
    },
}

fn push(class: impl Strategy<Value = u64>) -> impl Strategy<Value = Step> {
    let excess = prop_oneof![Just(0), 0..=MAX_EXCESS];
    (class, 0..=MAX, excess).prop_map(|(class, cost, excess)| Step::Push { class, cost, excess })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = || any::<prop::sample::Index>().prop_map(|index| index.index(1000));
    let step = prop_oneof![
        // Class 0 gets far more items than any other class.
        4 => push(Just(0_u64)),
        4 => push(1..6_u64),
        4 => Just(Step::Pop),
        4 => index().prop_map(|index| Step::End { index }),
        1 => index().prop_map(|index| Step::Remove { index }),
    ];
    prop::collection::vec(step, 0..300)
}

/// The maximum number of items in progress.
const SLOTS: u64 = 3;
/// The maximum debt of a class, including the excess of its items in progress, which will be charged later. A class
/// gets an item only if it has credit. So without that excess, its debt is at most the cost of one item.
const MAX_DEBT: u64 = MAX + SLOTS * MAX_EXCESS;

/// A waiting item in the model of the queue, with the real costs that may be served before it.
#[derive(Clone, Debug)]
struct Modelled {
    ticket: Ticket,
    class: u64,
    cost: u64,
    excess: u64,
    /// The real cost of earlier items of the same class, plus the debt that the class may have.
    own: u64,
    /// By class, the real cost of other classes' items that were served since this item arrived.
    others: HashMap<u64, u64>,
}

#[derive(Debug)]
struct Model {
    queue: FairQueue<u64>,
    waiting: Vec<Modelled>,
    /// The classes and excesses of the items in progress.
    in_progress: Vec<(u64, u64)>,
}

impl Model {
    fn run(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Push { class, cost, excess } => {
                let earlier = self.waiting.iter().filter(|other| other.class == class);
                let own = earlier.map(|other| other.cost + other.excess).sum::<u64>() + MAX_DEBT;
                let ticket = self.queue.push(class, cost, self.queue.next_ticket).unwrap().ticket;
                self.waiting.push(Modelled { ticket, class, cost, excess, own, others: HashMap::new() });
            }
            Step::Pop if self.in_progress.len() as u64 == SLOTS => {}
            Step::Pop => match self.queue.pop() {
                Some(served) => self.served(served)?,
                None => prop_assert!(self.waiting.is_empty()),
            },
            Step::End { index } if !self.in_progress.is_empty() => {
                let (class, excess) = self.in_progress.remove(index % self.in_progress.len());
                self.queue.charge(class, excess);
            }
            Step::Remove { index } if !self.waiting.is_empty() => {
                let gone = self.waiting.remove(index % self.waiting.len());
                prop_assert_eq!(self.queue.remove(gone.class, gone.ticket), Some(gone.ticket.0));
                prop_assert_eq!(self.queue.remove(gone.class, gone.ticket), None);
            }
            Step::End { .. } | Step::Remove { .. } => {}
        }
        prop_assert_eq!(self.queue.len(), self.waiting.len());
        let mut classes: Vec<_> = self.waiting.iter().map(|waiting| waiting.class).collect();
        classes.sort_unstable();
        classes.dedup();
        prop_assert!(self.queue.classes.len() >= classes.len() && self.queue.classes.len() <= 6);
        prop_assert_eq!(self.queue.ring.len(), self.queue.classes.len());
        Ok(())
    }

    /// Moves a served item to the items in progress. Checks that the items of its class are served in order, and that
    /// no other class was served more than its bound while this item waited.
    fn served(&mut self, ticket: u64) -> Result<(), TestCaseError> {
        let at = self.waiting.iter().position(|waiting| waiting.ticket.0 == ticket).unwrap();
        let served = self.waiting.remove(at);
        let mut later = self.waiting.iter().filter(|other| other.class == served.class);
        prop_assert!(later.all(|other| other.ticket > served.ticket), "out of its class's order");
        let visits = served.own.div_ceil(QUANTUM) + 1;
        for work in served.others.values() {
            prop_assert!(*work <= visits * QUANTUM + MAX_DEBT, "{work} to one other class: {served:?}");
        }
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.class != served.class) {
            *waiting.others.entry(served.class).or_default() += served.cost + served.excess;
        }
        self.in_progress.push((served.class, served.excess));
        Ok(())
    }
}

proptest! {
    /// Other classes delay an item by a limited amount of work, whatever the order of arrivals. For each visit that
    /// the item's class needs, each other class is served at most a quantum of real cost. In addition, each other
    /// class may be served one costly item, and the excess of a few items that are charged later.
    #[test]
    fn delay_by_other_classes_is_bounded(steps in steps()) {
        let queue = FairQueue::new(bounds(1000, 1000));
        let mut model = Model { queue, waiting: Vec::new(), in_progress: Vec::new() };
        for step in &steps {
            model.run(step)?;
        }
        for _ in &steps {
            model.run(&Step::Pop)?;
            model.run(&Step::End { index: 0 })?;
        }
        prop_assert!(model.waiting.is_empty());
        model.queue.forget_debts();
        prop_assert!(model.queue.classes.is_empty(), "an empty queue keeps no debt");
    }

    /// A class whose items cost more than announced gets no more real cost than a class that always has items
    /// waiting. Several of its items may be in progress before the first is charged.
    #[test]
    fn class_gets_at_most_its_share_of_real_cost(
        items in prop::collection::vec((1..=MAX, 0..=MAX_EXCESS), 1..50),
        slots in 1..=SLOTS,
    ) {
        let mut queue = FairQueue::new(bounds(4000, 2000));
        for (cost, excess) in items.iter().cycle().take(2000) {
            queue.push(0, *cost, (0, cost + excess, *excess)).unwrap();
            queue.push(1, QUANTUM, (1, QUANTUM, 0)).unwrap();
        }
        let mut in_progress = VecDeque::new();
        let mut real = [0, 0];
        while real[1] < 1900 * QUANTUM {
            if in_progress.len() as u64 == slots {
                let (class, excess) = in_progress.pop_front().unwrap();
                queue.charge(class, excess);
            }
            let Some((class, cost, excess)) = queue.pop() else { break };
            real[usize::try_from(class).unwrap()] += cost;
            in_progress.push_back((class, excess));
            prop_assert!(real[0] <= real[1] + 2 * QUANTUM + MAX_DEBT, "{real:?}");
        }
        let all = items.iter().map(|(cost, excess)| cost + excess).sum::<u64>() * 2000 / items.len() as u64;
        prop_assert!(real[0] + MAX_DEBT + 2 * QUANTUM >= real[1].min(all), "less than its share: {real:?}");
    }

    /// The first item of a class without debt waits for at most one visit to each other class.
    #[test]
    fn first_item_waits_one_visit_per_class(
        costs in prop::collection::vec((1..6_u64, 0..=MAX, 0..=MAX_EXCESS), 0..200),
        served in 0..100_usize,
    ) {
        let mut queue = FairQueue::new(bounds(1000, 1000));
        for item in costs {
            queue.push(item.0, item.1, item).unwrap();
        }
        let next = |queue: &mut FairQueue<(u64, u64, u64)>| {
            let (class, cost, excess) = queue.pop()?;
            queue.charge(class, excess);
            Some((class, cost + excess))
        };
        for _ in 0..served {
            next(&mut queue);
        }
        queue.push(0, 1, (0, 0, 0)).unwrap();
        let mut others = HashMap::<u64, u64>::new();
        while let Some((class, cost)) = next(&mut queue) {
            if class == 0 {
                break;
            }
            *others.entry(class).or_default() += cost;
        }
        for work in others.values() {
            prop_assert!(*work < QUANTUM + MAX + MAX_EXCESS, "{work}");
        }
    }
}
