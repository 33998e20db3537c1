//! Limits connections, and decides which client keeps its connections when not all can.
//!
//! If further connections were simply closed, the client that opens the most would keep out all others, among them the API
//! servers. So when all permits are taken, the address with the most permits gives one up to an address with fewer: each
//! gets its share, however many another one asks for. If all addresses have one connection each, a newcomer replaces the
//! oldest connection whose handshake or request has not ended: an honest client's ends within milliseconds. A client with a
//! valid certificate gives up none, and no request is lost that has arrived completely.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio_util::sync::CancellationToken;

use super::connection::Requests;

/// The connection permits of a server.
#[derive(Debug)]
pub(super) struct ConnectionPermits {
    max: usize,
    /// Ends all connections.
    cut: CancellationToken,
    taken: Arc<Mutex<Taken>>,
}

/// The permit of a connection; it is returned when it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    holder: Arc<Holder>,
    cut: CancellationToken,
    address: IpAddr,
    number: u64,
    taken: Arc<Mutex<Taken>>,
}

/// What is known of the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Standing {
    /// Nothing but an address: its handshake is not over.
    New,
    /// It speaks TLS, or nobody has to here.
    Open,
    /// It has shown a certificate by which it may call.
    Known,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// It ended.
    ByItself,
    /// All connections were cut.
    Cut,
    /// Somebody with fewer connections came.
    GivenUp,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// The number of the next permit.
    next: u64,
    /// By address and number: the oldest of an address is its first.
    of: HashMap<IpAddr, BTreeMap<u64, Arc<Holder>>>,
}

/// What is known of the connection in a permit.
#[derive(Debug)]
struct Holder {
    requests: Arc<Requests>,
    standing: AtomicU8,
    /// Ends it: its permit was given up, or all are cut. Its own, so that a request takes no lock that others want.
    end: CancellationToken,
}

/// What giving up a permit would cost, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Loss {
    Handshake,
    Nothing,
    /// The beginning of a request.
    Beginning,
}

impl ConnectionPermits {
    pub(super) fn new(max: usize, cut: CancellationToken) -> Self {
        Self { max, cut, taken: Arc::default() }
    }

    /// A permit for a connection from this address, one that another address gives up for it if need be; `None` if
    /// nobody has to.
    pub(super) fn take(&self, address: IpAddr) -> Option<ConnectionPermit> {
        let address = address.to_canonical();
        let mut taken = lock(&self.taken);
        if taken.all >= self.max {
            taken.give_up_for(address)?;
        }
        let number = taken.next;
        taken.next += 1;
        taken.all += 1;
        let holder = Arc::new(Holder {
            requests: Arc::default(),
            standing: AtomicU8::new(Standing::New as u8),
            end: self.cut.child_token(),
        });
        taken.of.entry(address).or_default().insert(number, Arc::clone(&holder));
        drop(taken);
        Some(ConnectionPermit { holder, cut: self.cut.clone(), address, number, taken: Arc::clone(&self.taken) })
    }
}

impl ConnectionPermit {
    /// Where the requests of the connection are to be counted.
    pub(super) fn requests(&self) -> Arc<Requests> {
        Arc::clone(&self.holder.requests)
    }

    /// Says what became known of the other end.
    pub(super) fn stands(&self, standing: Standing) {
        self.holder.standing.store(standing as u8, Ordering::Relaxed);
    }

    /// Runs a connection to its end, or until it has to give up its permit.
    pub(super) async fn run(&self, connection: impl Future<Output = ()>) -> Left {
        let mut connection = pin!(connection);
        if self.holder.end.run_until_cancelled(connection.as_mut()).await.is_some() {
            return Left::ByItself;
        }
        if lock(&self.taken).has(self.address, self.number) {
            return Left::Cut;
        }
        // A request may have come when the permit was given up already.
        let answered = poll_fn(|cx| {
            let is_over = connection.as_mut().poll(cx).is_ready();
            if is_over || !self.holder.requests.is_one_being_answered() { Poll::Ready(()) } else { Poll::Pending }
        });
        self.cut.run_until_cancelled(answered).await;
        Left::GivenUp
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        lock(&self.taken).remove(self.address, self.number);
    }
}

impl Holder {
    /// What would be lost with it; `None` if that may not be.
    fn loss(&self) -> Option<Loss> {
        let standing = self.standing.load(Ordering::Relaxed);
        if standing == Standing::Known as u8 || self.requests.is_one_being_answered() {
            None
        } else if standing == Standing::New as u8 {
            Some(Loss::Handshake)
        } else if self.requests.are_none() {
            Some(Loss::Nothing)
        } else {
            Some(Loss::Beginning)
        }
    }
}

impl Taken {
    /// Takes a permit from the address that has the most of those who have more than the newcomer will have, and can give up
    /// one: its oldest among those with the least loss. Looks at every connection at worst, which costs less than the
    /// handshake that comes.
    fn give_up_for(&mut self, newcomer: IpAddr) -> Option<()> {
        let (address, number) = self.of_the_most(newcomer).or_else(|| self.oldest_unfinished(newcomer))?;
        let holder = self.remove(address, number)?;
        holder.requests.end();
        holder.end.cancel();
        Some(())
    }

    fn of_the_most(&self, newcomer: IpAddr) -> Option<(IpAddr, u64)> {
        let has = self.of.get(&newcomer).map_or(0, BTreeMap::len);
        let givers = self.of.iter().filter(|(_, permits)| permits.len() > has + 1).filter_map(|(address, permits)| {
            let losses = permits.iter().filter_map(|(number, holder)| Some((holder.loss()?, *number)));
            Some((permits.len(), *address, losses.min()?.1))
        });
        let (_, address, number) = givers.max_by_key(|(count, ..)| *count)?;
        Some((address, number))
    }

    /// The oldest connection that has not ended what it began, for an address that has none.
    fn oldest_unfinished(&self, newcomer: IpAddr) -> Option<(IpAddr, u64)> {
        if self.of.contains_key(&newcomer) {
            return None;
        }
        let is_unfinished = |holder: &Holder| matches!(holder.loss(), Some(Loss::Handshake | Loss::Beginning));
        let unfinished = self.of.iter().flat_map(|(address, permits)| {
            let unfinished = permits.iter().filter(|(_, holder)| is_unfinished(holder));
            unfinished.map(|(number, _)| (*number, *address))
        });
        unfinished.min().map(|(number, address)| (address, number))
    }

    fn has(&self, address: IpAddr, number: u64) -> bool {
        self.of.get(&address).is_some_and(|permits| permits.contains_key(&number))
    }

    /// Takes a permit back, unless it was given up before.
    fn remove(&mut self, address: IpAddr, number: u64) -> Option<Arc<Holder>> {
        let permits = self.of.get_mut(&address)?;
        let holder = permits.remove(&number)?;
        if permits.is_empty() {
            self.of.remove(&address);
        }
        self.all -= 1;
        Some(holder)
    }
}

fn lock(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
