//! Threads for large bodies, of a lower priority than those that serve.
//!
//! A review of 3 MiB computes for ten milliseconds. A separate thread keeps it from delaying other requests, unless
//! there are fewer cores than threads: then the system alternates every few milliseconds, and a small request waits
//! that long. So these threads have a lower priority. On an idle machine that costs nothing.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use tokio::sync::oneshot;

/// Added to the niceness of these threads: on a busy machine they get about a tenth of a core.
const NICER: i32 = 10;

type Job = Box<dyn FnOnce() + Send>;

/// The payload of a panic.
pub(crate) type Panicked = Box<dyn Any + Send>;

/// The threads. They start with the first large body.
#[derive(Debug)]
pub(super) struct LargeBodyPool {
    name: &'static str,
    threads: usize,
    jobs: OnceLock<Option<Sender<Job>>>,
}

impl LargeBodyPool {
    pub(super) const fn new(name: &'static str, threads: usize) -> Self {
        Self { name, threads, jobs: OnceLock::new() }
    }

    /// Runs `work` on one of the threads.
    ///
    /// # Errors
    /// `work` panicked.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Panicked> {
        let (done, result) = oneshot::channel();
        // The worker logs to the caller's subscriber.
        let listening = tracing::dispatcher::get_default(Clone::clone);
        let job = Box::new(move || {
            // Unwind-safe: `work` owns its data, which is dropped with it. Err: the caller no longer waits.
            let work = AssertUnwindSafe(|| tracing::dispatcher::with_default(&listening, work));
            let _ = done.send(catch_unwind(work));
        });
        match self.jobs.get_or_init(|| start(self.name, self.threads)) {
            // Err: the threads have ended, which cannot happen while this pool exists. Then the result is lost as well.
            Some(jobs) => drop(jobs.send(job)),
            None => drop(tokio::task::spawn_blocking(job)),
        }
        result.await.unwrap_or_else(|_| Err(Box::new("a thread for large bodies is gone")))
    }
}

/// Starts the threads, which end when all senders are dropped. `None` if the system could start none.
fn start(name: &str, threads: usize) -> Option<Sender<Job>> {
    let (sender, receiver) = mpsc::channel();
    let receiver = Arc::new(Mutex::new(receiver));
    let started = (0..threads).filter(|_| {
        let receiver = Arc::clone(&receiver);
        let started = thread::Builder::new().name(name.to_owned()).spawn(move || work(&receiver));
        if let Err(error) = &started {
            tracing::warn!(%error, "a thread for large bodies cannot be started");
        }
        started.is_ok()
    });
    (started.count() > 0).then_some(sender)
}

fn work(jobs: &Mutex<Receiver<Job>>) {
    if let Err(error) = rustix::process::nice(NICER) {
        tracing::debug!(%error, "a thread for large bodies has the priority of all others");
    }
    loop {
        // Held while waiting: the thread with the lock gets the next job.
        let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        job();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[tokio::test]
    async fn what_panics_says_so_and_the_thread_goes_on() {
        let pool = LargeBodyPool::new("pillion-test", 1);
        let panicked = pool.run(|| panic!("for a test")).await;
        let panicked: Panicked = Result::<(), _>::unwrap_err(panicked);
        assert_eq!(panicked.downcast_ref::<&str>(), Some(&"for a test"));
        assert_eq!(pool.run(|| 7).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn its_threads_are_nicer_than_ours() {
        let ours = rustix::process::nice(0).unwrap();
        let theirs = LargeBodyPool::new("pillion-test", 1).run(|| rustix::process::nice(0).unwrap()).await.unwrap();
        assert_eq!(theirs, (ours + NICER).min(19));
    }

    #[tokio::test]
    async fn as_many_run_at_one_time_as_there_are_threads() {
        let pool = LargeBodyPool::new("pillion-test", 2);
        let barrier = Arc::new(Barrier::new(2));
        let wait = |barrier: Arc<Barrier>| move || barrier.wait().is_leader();
        // Each job waits for the other, so one thread would not suffice.
        let leaders = tokio::join!(pool.run(wait(Arc::clone(&barrier))), pool.run(wait(barrier)));
        assert!(leaders.0.unwrap() != leaders.1.unwrap());
    }
}
