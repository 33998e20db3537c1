//! Permits: their number, their order, and that all are returned.

use std::time::Duration;

use futures::future::join_all;
use prometheus_client::metrics::gauge::Gauge;
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;

use super::*;
use crate::histogram::Histogram;

fn queue(slots: usize, unqueued: usize, length: usize) -> Arc<DecisionQueue> {
    let queue = fair::Bounds { length, per_class: length, quantum: 8 };
    let metrics = QueueMetrics { queued: Gauge::default(), waited: Histogram::seconds(&[1_000_000_000]) };
    DecisionQueue::new(&Bounds { slots, unqueued, queue }, metrics)
}

fn far() -> Deadline {
    Deadline(Instant::now() + Duration::from_mins(1))
}

/// Asserts that the queue is empty, all permits are returned, and the task has ended.
#[track_caller]
fn assert_at_rest(queue: &DecisionQueue) {
    let state = queue.state();
    assert_eq!((state.queue.len(), state.given, queue.metrics.queued.get()), (0, 0, 0));
    assert!(!state.is_served);
    drop(state);
    assert_eq!(queue.unqueued.load(Ordering::Relaxed), 0);
}

async fn settle() {
    for _ in 0..10 {
        yield_now().await;
    }
}

#[tokio::test]
async fn a_few_are_decided_as_they_come_and_the_next_when_all_that_is_ready_has_run() {
    let queue = queue(1, 2, 10);
    assert!(queue.unqueued().is_some() && queue.unqueued().is_some());
    assert!(queue.unqueued().is_none() && queue.unqueued().is_none());
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    let noting = |name: &'static str| {
        let order = Arc::clone(&order);
        move || order.lock().unwrap().push(name)
    };
    let (waiting, note) = (Arc::clone(&queue), noting("queued"));
    tasks.spawn(async move {
        let _permit = waiting.queued(1, 1, far()).await.unwrap();
        note();
    });
    for _ in 0..10 {
        let note = noting("ready");
        tasks.spawn(async move {
            // Four tasks, each ready once the one before has run.
            note();
            for _ in 0..3 {
                let note = note.clone();
                tokio::spawn(async move { note() }).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    let order = order.lock().unwrap().clone();
    assert_eq!(order.iter().position(|name| *name == "queued"), Some(40), "{order:?}");
    settle().await;
    assert_at_rest(&queue);
    assert!(queue.unqueued().is_some());
}

#[tokio::test]
async fn there_are_never_more_turns_than_slots_and_all_are_served() {
    let queue = queue(3, 0, 500);
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let all = (0..500).map(|number| {
        let (queue, running, most) = (Arc::clone(&queue), Arc::clone(&running), Arc::clone(&most));
        async move {
            let _permit = queue.queued(number % 7, 10, far()).await.unwrap();
            most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            yield_now().await;
            running.fetch_sub(1, Ordering::Relaxed);
        }
    });
    join_all(all).await;
    assert_eq!(most.load(Ordering::Relaxed), 3);
    settle().await;
    assert_at_rest(&queue);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_to_its_deadline_is_told_then_and_its_place_is_free() {
    let queue = queue(1, 0, 1);
    let permit = queue.queued(1, 1, far()).await.unwrap();
    let began = Instant::now();
    let deadline = Deadline(began + Duration::from_millis(300));
    assert_eq!(queue.queued(2, 1, deadline).await.unwrap_err(), Shed::Deadline);
    assert_eq!(began.elapsed(), Duration::from_millis(300));
    let waiting = tokio::spawn({
        let queue = Arc::clone(&queue);
        async move { queue.queued(2, 1, far()).await.map(drop) }
    });
    settle().await;
    assert_eq!(queue.queued(3, 1, far()).await.unwrap_err(), Shed::QueueFull, "the queue is full again");
    drop(permit);
    waiting.await.unwrap().unwrap();
    settle().await;
    assert_at_rest(&queue);
}

#[tokio::test]
async fn a_full_queue_lets_another_class_in_and_tells_who_has_to_go() {
    let queue = queue(1, 0, 3);
    let permit = queue.queued(0, 1, far()).await.unwrap();
    let mut noisy = JoinSet::new();
    for _ in 0..3 {
        let queue = Arc::clone(&queue);
        noisy.spawn(async move { queue.queued(1, 1, far()).await.map(drop) });
    }
    settle().await;
    let quiet = tokio::spawn({
        let queue = Arc::clone(&queue);
        async move { queue.queued(2, 1, far()).await.map(drop) }
    });
    settle().await;
    drop(permit);
    quiet.await.unwrap().unwrap();
    let ended = noisy.join_all().await;
    assert_eq!(ended.iter().filter(|ended| **ended == Err(Shed::QueueFull)).count(), 1);
}

/// Tasks leave the queue while waiting, when they get a permit, while deciding, and by a panic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_goes_away_gives_back_what_it_had() {
    let queue = queue(2, 4, 64);
    for round in 0..200_u64 {
        let mut tasks = JoinSet::new();
        for number in 0..50_u64 {
            let queue = Arc::clone(&queue);
            tasks.spawn(async move {
                let permit = match queue.unqueued() {
                    Some(permit) => permit,
                    None => match queue.queued(number % 5, number, far()).await {
                        Ok(permit) => permit,
                        Err(_) => return,
                    },
                };
                match (round + number) % 4 {
                    0 => yield_now().await,
                    1 => std::future::pending().await,
                    2 if round % 20 == 0 => std::panic::resume_unwind(Box::new("for a test")),
                    _ => {}
                }
                drop(permit);
            });
        }
        for _ in 0..round % 7 {
            yield_now().await;
        }
        tasks.shutdown().await;
    }
    for _ in 0..20_000 {
        if !queue.state().is_served {
            break;
        }
        sleep(Duration::from_millis(1)).await;
    }
    // All were decided on arrival, so the counter was not reset.
    queue.unqueued.store(0, Ordering::Relaxed);
    assert_at_rest(&queue);
}
