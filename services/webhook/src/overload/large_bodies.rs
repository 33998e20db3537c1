//! Threads for large bodies, of a lower priority than those that serve.
//!
//! A review of 3 MiB computes for ten milliseconds. A thread of its own keeps it out of the way of other requests, unless
//! there are fewer cores than threads: then the system alternates between both every few milliseconds, and a small request
//! waits that long. So these threads have a lower priority. On an idle machine that costs them nothing.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use tokio::sync::oneshot;

/// By how much nicer they are than the others: a tenth of a core is left to them where all are busy.
const NICER: i32 = 10;

type Job = Box<dyn FnOnce() + Send>;

/// What a panic left behind.
pub(crate) type Panicked = Box<dyn Any + Send>;

/// The threads, which are started when the first large body comes.
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

    /// Runs this on one of the threads.
    ///
    /// # Errors
    /// It panicked.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Panicked> {
        let (done, result) = oneshot::channel();
        // Whoever listens to this thread listens to what is told there too.
        let listening = tracing::dispatcher::get_default(Clone::clone);
        let job = Box::new(move || {
            // Unwind-safe: what it has is its own, and goes with it. Err: nobody waits for it any more.
            let work = AssertUnwindSafe(|| tracing::dispatcher::with_default(&listening, work));
            let _ = done.send(catch_unwind(work));
        });
        match self.jobs.get_or_init(|| start(self.name, self.threads)) {
            // Err: the threads are gone, which they are not as long as this is there; then the result is gone too.
            Some(jobs) => drop(jobs.send(job)),
            None => drop(tokio::task::spawn_blocking(job)),
        }
        result.await.unwrap_or_else(|_| Err(Box::new("a thread for large bodies is gone")))
    }
}

/// Starts the threads; `None` if the system gives none. They end when nobody can send them anything more.
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
        // Held while waiting: whoever has it gets the next one.
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
        // Each waits for the other: on one thread neither would end.
        let leaders = tokio::join!(pool.run(wait(Arc::clone(&barrier))), pool.run(wait(barrier)));
        assert!(leaders.0.unwrap() != leaders.1.unwrap());
    }
}
