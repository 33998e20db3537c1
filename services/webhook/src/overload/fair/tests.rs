//! Checks the queue's guarantees for any order of arrivals.

use proptest::prelude::*;

use super::*;

const QUANTUM: u64 = 10;

fn bounds(length: usize, per_class: usize) -> Bounds {
    Bounds { length, per_class, quantum: QUANTUM }
}

#[test]
fn one_class_is_served_in_its_order() {
    let mut queue = FairQueue::new(bounds(100, 100));
    for number in 0..50_u64 {
        queue.push(7, number, number).unwrap();
    }
    let served: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
    assert_eq!(served, (0..50).collect::<Vec<_>>());
    assert!(queue.is_empty() && queue.classes.is_empty() && queue.ring.is_empty());
}

#[test]
fn many_of_one_class_do_not_delay_the_first_of_another() {
    let mut queue = FairQueue::new(bounds(1000, 500));
    for number in 0..500 {
        queue.push(1, QUANTUM, number).unwrap();
    }
    queue.push(2, QUANTUM, 1000).unwrap();
    let before = std::iter::from_fn(|| queue.pop()).position(|value| value == 1000);
    assert!(before.unwrap() <= 1, "{before:?}");
}

#[test]
fn a_dear_class_pays_for_it() {
    let mut queue = FairQueue::new(bounds(1000, 500));
    for _ in 0..100 {
        queue.push(1, 10 * QUANTUM, 1).unwrap();
        queue.push(2, QUANTUM, 2).unwrap();
    }
    let served: Vec<_> = std::iter::from_fn(|| queue.pop()).take(55).collect();
    let dear = served.iter().filter(|class| **class == 1).count();
    assert!((4..=7).contains(&dear), "{dear} of {}", served.len());
}

#[test]
fn the_bounds_hold_and_a_full_queue_takes_from_the_longest_class() {
    let mut queue = FairQueue::new(bounds(6, 4));
    for number in 0..4 {
        queue.push(1, 1, number).unwrap();
    }
    assert_eq!(queue.push(1, 1, 99).unwrap_err(), Shed::TenantQueueFull);
    queue.push(2, 1, 10).unwrap();
    queue.push(3, 1, 20).unwrap();
    let pushed = queue.push(4, 1, 30).unwrap();
    assert_eq!((pushed.displaced, queue.len()), (Some(3), 6), "the last of the longest");
    assert_eq!(queue.push(2, 1, 11).unwrap().displaced, Some(2));
    assert_eq!(queue.push(2, 1, 12).unwrap_err(), Shed::QueueFull, "nobody has two more than it");
    assert_eq!(queue.push(1, 1, 13).unwrap_err(), Shed::QueueFull);
    assert_eq!(FairQueue::new(bounds(0, 4)).push(1, 1, ()).unwrap_err(), Shed::QueueFull);
    assert_eq!(FairQueue::new(bounds(4, 0)).push(1, 1, ()).unwrap_err(), Shed::TenantQueueFull);
}

/// The class has exactly one costly item waiting at any time: its debt is not forgotten.
#[test]
fn to_come_one_by_one_makes_nothing_cheaper() {
    let mut queue = FairQueue::new(bounds(1000, 500));
    for _ in 0..400 {
        queue.push(2, QUANTUM, 2).unwrap();
    }
    queue.push(1, 10 * QUANTUM, 1).unwrap();
    let mut dear = 0;
    for _ in 0..220 {
        if queue.pop() == Some(1) {
            dear += 1;
            queue.push(1, 10 * QUANTUM, 1).unwrap();
        }
    }
    assert!((15..=25).contains(&dear), "{dear}");
}

/// Thousands of classes that send one costly item each leave no more state than the queue's size.
#[test]
fn debts_do_not_pile_up() {
    let mut queue = FairQueue::new(bounds(16, 16));
    let mut most = 0;
    for class in 0..10_000 {
        queue.push(class, u64::MAX, ()).unwrap();
        if queue.len() == 16 {
            queue.pop().unwrap();
        }
        most = most.max(queue.classes.len());
    }
    let bound = 16 * usize::try_from(DEAREST).unwrap() + 16;
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
        // One class comes far more often than the others.
        4 => (Just(0_u64), 0..40_u64).prop_map(|(class, cost)| Step::Push { class, cost }),
        4 => (1..6_u64, 0..40_u64).prop_map(|(class, cost)| Step::Push { class, cost }),
        4 => Just(Step::Pop),
        1 => any::<prop::sample::Index>().prop_map(|index| Step::Remove { index: index.index(1000) }),
    ];
    prop::collection::vec(step, 0..300)
}

/// A waiting item in the model: the cost within its class, and the work done for other classes meanwhile.
#[derive(Clone, Debug)]
struct Modelled {
    ticket: Ticket,
    class: u64,
    cost: u64,
    /// The cost of earlier items of its class, and the debt that its class may have.
    own: u64,
    /// The cost served to other classes since it arrived, by class.
    others: HashMap<u64, u64>,
}

proptest! {
    /// An item waits for a bounded amount of other classes' work, whatever the order of arrivals: for each visit that
    /// its own class needs, a quantum and one costly item of each other class.
    #[test]
    fn nobody_waits_for_more_than_a_fair_part_of_others_work(steps in steps()) {
        const DEAR: u64 = 40;
        let mut queue = FairQueue::new(bounds(1000, 1000));
        let mut model: Vec<Modelled> = Vec::new();
        let pops = steps.len();
        for step in steps.into_iter().chain((0..pops).map(|_| Step::Pop)) {
            match step {
                Step::Push { class, cost } => {
                    let own = model.iter().filter(|other| other.class == class).map(|other| other.cost).sum::<u64>() + DEAR;
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
                    for given in served.others.values() {
                        prop_assert!(*given <= visits * QUANTUM + DEAR, "{given} to one other class: {served:?}");
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
            prop_assert!(!model.is_empty() || queue.classes.is_empty(), "when nothing waits, nothing is owed");
        }
        prop_assert!(model.is_empty());
    }

    /// The first item of a class waits for at most one visit of each other class.
    #[test]
    fn the_first_of_its_class_waits_for_one_visit_of_each_other(costs in prop::collection::vec((1..6_u64, 0..40_u64), 0..200), served in 0..100_usize) {
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
        for given in others.values() {
            prop_assert!(*given < QUANTUM + 40, "{given}");
        }
    }
}
