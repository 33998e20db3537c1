//! Limits connections, and decides which client keeps its connections when not all can.
//!
//! If further connections were simply closed, the client that opens the most would keep out all others, among them the
//! API servers. So when all permits are taken, the address with the most permits gives one up to an address with fewer.
//! Each address thus gets its share, however many connections another one opens. If all addresses have one connection
//! each, a newcomer replaces the oldest connection with an incomplete handshake or request: an honest client completes
//! these within milliseconds. A client with a valid certificate gives up none, and no request that has arrived
//! completely is lost.

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
    /// Cuts all connections.
    cut: CancellationToken,
    taken: Arc<Mutex<Taken>>,
}

/// The permit of a connection, returned on drop.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    holder: Arc<Holder>,
    cut: CancellationToken,
    address: IpAddr,
    number: u64,
    taken: Arc<Mutex<Taken>>,
}

/// How far a client has been authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Standing {
    /// Only its address is known: the handshake is not complete.
    New,
    /// The handshake is complete, or the server uses no TLS.
    Open,
    /// The client has shown an accepted certificate.
    Known,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// It ended by itself.
    ByItself,
    /// All connections were cut.
    Cut,
    /// It was closed for a client with fewer connections.
    GivenUp,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// The number of the next permit.
    next: u64,
    /// Permits by address and number: the first of an address is its oldest.
    of: HashMap<IpAddr, BTreeMap<u64, Arc<Holder>>>,
}

/// The connection that holds a permit.
#[derive(Debug)]
struct Holder {
    requests: Arc<Requests>,
    standing: AtomicU8,
    /// Ends the connection: its permit was given up, or all are cut. Each connection has its own token, so that
    /// requests do not contend for a lock.
    end: CancellationToken,
}

/// The loss if a permit is given up, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Loss {
    Handshake,
    Nothing,
    /// An incomplete request.
    Beginning,
}

impl ConnectionPermits {
    pub(super) fn new(max: usize, cut: CancellationToken) -> Self {
        Self { max, cut, taken: Arc::default() }
    }

    /// Returns a permit for a connection from this address, if need be by revoking one of another address. `None` if
    /// none can be revoked.
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
    /// Returns the counters for the connection's requests.
    pub(super) fn requests(&self) -> Arc<Requests> {
        Arc::clone(&self.holder.requests)
    }

    /// Sets how far the client has been authenticated.
    pub(super) fn stands(&self, standing: Standing) {
        self.holder.standing.store(standing as u8, Ordering::Relaxed);
    }

    /// Runs a connection until it ends or has to give up its permit.
    pub(super) async fn run(&self, connection: impl Future<Output = ()>) -> Left {
        let mut connection = pin!(connection);
        if self.holder.end.run_until_cancelled(connection.as_mut()).await.is_some() {
            return Left::ByItself;
        }
        if lock(&self.taken).has(self.address, self.number) {
            return Left::Cut;
        }
        // A request may have arrived just when the permit was given up.
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
    /// Returns the loss if this connection were closed, or `None` if it must stay.
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
    /// Revokes a permit for the newcomer. Considers addresses that have more permits than the newcomer will have, and
    /// takes the one with the most that can give one up. Revokes its oldest permit among those with the least loss. In
    /// the worst case this looks at every connection, which costs less than the handshake that follows.
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

    /// Returns the oldest connection with an incomplete handshake or request, for an address without connections.
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

    /// Returns a permit, unless it was given up before.
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
