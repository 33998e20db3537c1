//! Limits the number of requests whose bodies are still arriving, for each client address and in total.
//!
//! The body of a review arrives within milliseconds of its head. So if a client keeps bodies incomplete on purpose,
//! they are older than others. When one more body would exceed a limit, the oldest unfinished body is shed. An address
//! that exceeds its own limit loses its own oldest body; no other address is affected. When the memory budget is
//! exhausted, a body that needs memory also sheds older unfinished bodies, if they hold enough bytes.
//!
//! [`super::RequestPermits`] limits the number of requests whose bodies have arrived.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::oneshot;

use super::shed::Shed;

/// The maximum number of unfinished bodies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The maximum for all clients together.
    pub(crate) total: usize,
    /// The maximum for each client address.
    pub(crate) per_address: usize,
}

/// Keeps track of the unfinished bodies. Evicts the oldest one when a limit is exceeded.
#[derive(Debug)]
pub(crate) struct UnfinishedBodies {
    bounds: Bounds,
    gauge: Gauge,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next_number: u64,
    /// The bodies by number. Numbers increase, so the oldest body comes first.
    bodies: BTreeMap<u64, Entry>,
    numbers_of: HashMap<IpAddr, BTreeSet<u64>>,
}

#[derive(Debug)]
struct Entry {
    address: IpAddr,
    /// Bytes of the memory budget that the body holds.
    bytes: Arc<AtomicUsize>,
    evict: oneshot::Sender<Eviction>,
}

/// The registration of one unfinished body. It is dropped when the body is complete, or when its reader stops.
#[derive(Debug)]
pub(crate) struct Unfinished {
    bodies: Arc<UnfinishedBodies>,
    number: u64,
    bytes: Arc<AtomicUsize>,
    evicted: oneshot::Receiver<Eviction>,
}

/// A request to the reader of a body to stop. The reader drops this value once it has released the body's memory.
#[derive(Debug)]
pub(crate) struct Eviction {
    pub(crate) reason: Shed,
    _released: oneshot::Sender<()>,
}

/// The evicted bodies whose memory is being released.
#[derive(Debug)]
pub(crate) struct Released(Vec<oneshot::Receiver<()>>);

impl UnfinishedBodies {
    pub(crate) fn new(bounds: Bounds, gauge: Gauge) -> Arc<Self> {
        Arc::new(Self { bounds, gauge, state: Mutex::default() })
    }

    /// Registers a body from this address that holds this many bytes. If a limit is exceeded, evicts the oldest body of
    /// the address or of all addresses.
    pub(crate) fn register(self: &Arc<Self>, address: IpAddr, bytes: usize) -> Unfinished {
        let (evict, evicted) = oneshot::channel();
        let bytes = Arc::new(AtomicUsize::new(bytes));
        let mut state = self.state();
        let number = state.next_number;
        state.next_number += 1;
        let numbers = state.numbers_of.entry(address).or_default();
        numbers.insert(number);
        let own_oldest = numbers.first().copied().filter(|_| numbers.len() > self.bounds.per_address);
        state.bodies.insert(number, Entry { address, bytes: Arc::clone(&bytes), evict });
        let oldest = || state.bodies.keys().next().copied().filter(|_| state.bodies.len() > self.bounds.total);
        let victim = own_oldest.or_else(oldest).and_then(|number| state.remove(number));
        self.update_gauge(&state);
        drop(state);
        if let Some(victim) = victim {
            victim.evict(Shed::Unfinished);
        }
        Unfinished { bodies: Arc::clone(self), number, bytes, evicted }
    }

    /// Evicts the oldest bodies that hold memory, until the evicted bodies together hold at least `bytes` bytes. Evicts
    /// only bodies that are older than `than`, or any registered bodies if `than` is `None`. If all these bodies
    /// together hold fewer bytes, evicts none and returns `None`.
    pub(crate) fn evict_older(&self, than: Option<&Unfinished>, bytes: usize) -> Option<Released> {
        let than = than.map_or(u64::MAX, |unfinished| unfinished.number);
        let mut state = self.state();
        let mut held = 0_usize;
        let mut victims = Vec::new();
        for (number, entry) in state.bodies.range(..than) {
            if held >= bytes {
                break;
            }
            let bytes_held = entry.bytes.load(Ordering::Relaxed);
            if bytes_held > 0 {
                held = held.saturating_add(bytes_held);
                victims.push(*number);
            }
        }
        if held < bytes {
            return None;
        }
        let victims: Vec<_> = victims.into_iter().filter_map(|number| state.remove(number)).collect();
        self.update_gauge(&state);
        drop(state);
        Some(Released(victims.into_iter().map(|victim| victim.evict(Shed::NoMemory)).collect()))
    }

    fn update_gauge(&self, state: &State) {
        self.gauge.set(i64::try_from(state.bodies.len()).unwrap_or(i64::MAX));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.bodies.remove(&number)?;
        if let Some(numbers) = self.numbers_of.get_mut(&entry.address) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.numbers_of.remove(&entry.address);
            }
        }
        Some(entry)
    }
}

impl Entry {
    fn evict(self, reason: Shed) -> oneshot::Receiver<()> {
        let (released, receiver) = oneshot::channel();
        // `send` fails if the reader was dropped, which has released its memory.
        let _ = self.evict.send(Eviction { reason, _released: released });
        receiver
    }
}

impl Unfinished {
    /// Records the number of bytes that the body holds now.
    pub(crate) fn set_bytes(&self, bytes: usize) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Waits until the body is evicted, and returns the eviction.
    pub(crate) async fn evicted(&mut self) -> Eviction {
        match (&mut self.evicted).await {
            Ok(eviction) => eviction,
            // This cannot happen: while `self` exists, only an eviction removes the sender, and it uses the sender.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut state = self.bodies.state();
        let entry = state.remove(self.number);
        self.bodies.update_gauge(&state);
        drop(state);
        drop(entry);
    }
}

impl Released {
    /// Waits until all evicted bodies have released their memory.
    pub(crate) async fn wait(self) {
        for receiver in self.0 {
            // An error means that the eviction was dropped, which is the expected signal.
            let _ = receiver.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const FIRST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn bodies(total: usize, per_address: usize) -> Arc<UnfinishedBodies> {
        UnfinishedBodies::new(Bounds { total, per_address }, Gauge::default())
    }

    fn eviction(body: &mut Unfinished) -> Option<Shed> {
        body.evicted().now_or_never().map(|eviction| eviction.reason)
    }

    #[test]
    fn address_above_bound_loses_its_oldest_body() {
        let bodies = bodies(10, 2);
        let mut other = bodies.register(OTHER, 0);
        let mut own: Vec<_> = (0..3).map(|_| bodies.register(FIRST, 0)).collect();
        let evictions: Vec<_> = own.iter_mut().map(eviction).collect();
        assert_eq!(evictions, [Some(Shed::Unfinished), None, None]);
        assert_eq!((eviction(&mut other), bodies.gauge.get()), (None, 3));
    }

    #[test]
    fn total_bound_evicts_oldest_body() {
        let bodies = bodies(3, 3);
        let address = |host| IpAddr::from([192, 0, 2, host]);
        let mut all: Vec<_> = (0..5).map(|host| bodies.register(address(host), 0)).collect();
        let evicted: Vec<_> = all.iter_mut().map(|body| eviction(body).is_some()).collect();
        assert_eq!(evicted, [true, true, false, false, false]);
    }

    #[test]
    fn completed_bodies_are_removed() {
        let bodies = bodies(2, 1);
        let first = bodies.register(FIRST, 0);
        let evicting = bodies.register(FIRST, 0);
        drop((first, evicting));
        let state = bodies.state();
        assert_eq!((state.bodies.len(), state.numbers_of.len(), bodies.gauge.get()), (0, 0, 0));
    }

    #[test]
    fn older_bodies_are_evicted_if_they_suffice() {
        let bodies = bodies(10, 10);
        let (mut empty, mut older) = (bodies.register(FIRST, 0), bodies.register(FIRST, 60));
        let own = bodies.register(OTHER, 10);
        let mut younger = bodies.register(FIRST, 100);
        assert!(bodies.evict_older(Some(&own), 61).is_none(), "older bodies hold 60 bytes");
        assert!(bodies.evict_older(Some(&own), 60).is_some());
        assert_eq!(eviction(&mut older), Some(Shed::NoMemory));
        assert_eq!((eviction(&mut empty), eviction(&mut younger)), (None, None));
        younger.set_bytes(5);
        assert!(bodies.evict_older(None, 16).is_none(), "bodies of 10 and 5 bytes are left");
        assert!(bodies.evict_older(None, 15).is_some());
    }

    #[tokio::test]
    async fn release_completes_when_eviction_is_dropped() {
        let bodies = bodies(10, 10);
        let mut older = bodies.register(FIRST, 60);
        let released = bodies.evict_older(None, 1).unwrap();
        let mut waiting = std::pin::pin!(released.wait());
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        let eviction = older.evicted().await;
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        drop(eviction);
        waiting.await;
        let gone = bodies.register(FIRST, 60);
        let released = bodies.evict_older(None, 1).unwrap();
        drop(gone);
        released.wait().await;
    }
}
