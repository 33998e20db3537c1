//! Limits the number of connections. When the limit is reached, decides which client loses a connection.
//!
//! If the server simply closed further connections, the client that opens the most would lock out all others, including
//! the API servers. So when all permits are taken, the address with the most permits loses one to an address with
//! fewer. Each address thus gets its share, however many connections another one opens. If no address can lose a
//! connection in this way, for example because each has only one, a new address replaces the oldest connection with an
//! incomplete handshake or request: an honest client completes these within milliseconds. A client with an accepted
//! certificate never loses a connection to another client, and no request that has arrived completely is lost.

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
    /// Cancelled to end all connections at once.
    cut: CancellationToken,
    taken: Arc<Mutex<TakenPermits>>,
}

/// The permit of a connection. Dropping this value returns the permit.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    holder: Arc<Holder>,
    cut: CancellationToken,
    address: IpAddr,
    number: u64,
    taken: Arc<Mutex<TakenPermits>>,
}

/// How far a client has been authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Authentication {
    /// Only the client's address is known, because the handshake is not complete.
    Pending,
    /// The handshake is complete, or the server does not use TLS. The client has no accepted certificate.
    Anonymous,
    /// The client has presented an accepted certificate.
    Certificate,
}

#[derive(Debug, Default)]
struct TakenPermits {
    count: usize,
    /// The number of the next permit.
    next_number: u64,
    /// The permits by address and number. The first permit of each address is its oldest.
    by_address: HashMap<IpAddr, BTreeMap<u64, Arc<Holder>>>,
}

/// The connection that holds a permit.
#[derive(Debug)]
struct Holder {
    requests: Arc<Requests>,
    authentication: AtomicU8,
    /// Cancelled when the permit is revoked, or when all connections are cut. Each connection has its own token, so
    /// that requests do not contend for a lock.
    end: CancellationToken,
}

/// What would be interrupted if a permit were revoked. Of one address's permits, one with the lowest variant is revoked
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Loss {
    Handshake,
    Nothing,
    IncompleteRequest,
}

impl ConnectionPermits {
    pub(super) fn new(max: usize, cut: CancellationToken) -> Self {
        Self { max, cut, taken: Arc::default() }
    }

    /// Returns a permit for a connection from this address. If all are taken, revokes a permit of another address.
    /// `None`: no permit can be revoked.
    pub(super) fn take(&self, address: IpAddr) -> Option<ConnectionPermit> {
        let address = address.to_canonical();
        let mut taken = lock(&self.taken);
        if taken.count >= self.max {
            taken.revoke_for(address)?;
        }
        let number = taken.next_number;
        taken.next_number += 1;
        taken.count += 1;
        let holder = Arc::new(Holder {
            requests: Arc::default(),
            authentication: AtomicU8::new(Authentication::Pending as u8),
            end: self.cut.child_token(),
        });
        taken.by_address.entry(address).or_default().insert(number, Arc::clone(&holder));
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
    pub(super) fn set_authentication(&self, authentication: Authentication) {
        self.holder.authentication.store(authentication as u8, Ordering::Relaxed);
    }

    /// Runs a connection until it ends, its permit is revoked, or all connections are cut. After a revocation, first
    /// answers a request that has arrived completely. Returns whether the permit was revoked.
    pub(super) async fn run(&self, connection: impl Future<Output = ()>) -> bool {
        let mut connection = pin!(connection);
        let has_ended = self.holder.end.run_until_cancelled(connection.as_mut()).await.is_some();
        if has_ended || lock(&self.taken).contains(self.address, self.number) {
            return false;
        }
        // The request may have arrived completely just before the permit was revoked. In that case, answers it first.
        let answered = poll_fn(|cx| {
            let is_over = connection.as_mut().poll(cx).is_ready();
            if is_over || !self.holder.requests.has_pending_response() { Poll::Ready(()) } else { Poll::Pending }
        });
        self.cut.run_until_cancelled(answered).await;
        true
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        lock(&self.taken).remove(self.address, self.number);
    }
}

impl Holder {
    /// Returns what would be interrupted if this connection were closed. `None`: the connection must not be closed.
    fn loss(&self) -> Option<Loss> {
        let authentication = self.authentication.load(Ordering::Relaxed);
        if authentication == Authentication::Certificate as u8 || self.requests.has_pending_response() {
            None
        } else if authentication == Authentication::Pending as u8 {
            Some(Loss::Handshake)
        } else if self.requests.all_answered() {
            Some(Loss::Nothing)
        } else {
            Some(Loss::IncompleteRequest)
        }
    }
}

impl TakenPermits {
    /// Revokes a permit so that the address `newcomer` can have it. `None`: no permit can be revoked. In the worst
    /// case, this checks every connection, which costs less than the handshake that follows.
    fn revoke_for(&mut self, newcomer: IpAddr) -> Option<()> {
        let (address, number) = self.of_busiest_address(newcomer).or_else(|| self.oldest_unfinished(newcomer))?;
        let holder = self.remove(address, number)?;
        holder.requests.set_last();
        holder.end.cancel();
        Some(())
    }

    /// Considers addresses with more permits than `newcomer` will have. Selects the address with the most permits,
    /// among those with a permit that can be revoked. Returns its permit with the lowest [`Loss`], or the oldest of
    /// several. `None`: no address qualifies.
    fn of_busiest_address(&self, newcomer: IpAddr) -> Option<(IpAddr, u64)> {
        let own = self.by_address.get(&newcomer).map_or(0, BTreeMap::len);
        let larger = self.by_address.iter().filter(|(_, permits)| permits.len() > own + 1);
        let candidates = larger.filter_map(|(address, permits)| {
            let losses = permits.iter().filter_map(|(number, holder)| Some((holder.loss()?, *number)));
            Some((permits.len(), *address, losses.min()?.1))
        });
        let (_, address, number) = candidates.max_by_key(|(count, ..)| *count)?;
        Some((address, number))
    }

    /// Returns the oldest connection with an incomplete handshake or request. `None`: there is none, or `newcomer`
    /// already has a connection.
    fn oldest_unfinished(&self, newcomer: IpAddr) -> Option<(IpAddr, u64)> {
        if self.by_address.contains_key(&newcomer) {
            return None;
        }
        let is_unfinished = |holder: &Holder| matches!(holder.loss(), Some(Loss::Handshake | Loss::IncompleteRequest));
        let unfinished = self.by_address.iter().flat_map(|(address, permits)| {
            let unfinished = permits.iter().filter(|(_, holder)| is_unfinished(holder));
            unfinished.map(|(number, _)| (*number, *address))
        });
        unfinished.min().map(|(number, address)| (address, number))
    }

    fn contains(&self, address: IpAddr, number: u64) -> bool {
        self.by_address.get(&address).is_some_and(|permits| permits.contains_key(&number))
    }

    /// Removes a permit. `None`: it was revoked before.
    fn remove(&mut self, address: IpAddr, number: u64) -> Option<Arc<Holder>> {
        let permits = self.by_address.get_mut(&address)?;
        let holder = permits.remove(&number)?;
        if permits.is_empty() {
            self.by_address.remove(&address);
        }
        self.count -= 1;
        Some(holder)
    }
}

fn lock(taken: &Mutex<TakenPermits>) -> MutexGuard<'_, TakenPermits> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const GREEDY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));
    const THIRD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 3));

    fn permits(max: usize) -> ConnectionPermits {
        ConnectionPermits::new(max, CancellationToken::new())
    }

    fn take(permits: &ConnectionPermits, address: IpAddr, count: usize) -> Vec<ConnectionPermit> {
        let taken = (0..count).map(|_| permits.take(address).expect("a permit is free"));
        taken.inspect(|permit| permit.set_authentication(Authentication::Anonymous)).collect()
    }

    fn revoked(permits: &[ConnectionPermit]) -> Vec<bool> {
        permits.iter().map(|permit| permit.holder.end.is_cancelled()).collect()
    }

    #[test]
    fn address_with_most_loses_its_oldest() {
        let permits = permits(6);
        let greedy = take(&permits, GREEDY, 6);
        let others = take(&permits, OTHER, 3);
        assert_eq!(revoked(&greedy), [true, true, true, false, false, false]);
        assert!(permits.take(OTHER).is_none(), "OTHER would have more connections than GREEDY");
        assert!(permits.take(GREEDY).is_none());
        assert_eq!(revoked(&others), [false; 3]);
    }

    #[test]
    fn free_permits_are_used_before_any_is_revoked() {
        let permits = permits(3);
        let mut greedy = take(&permits, GREEDY, 3);
        assert!(permits.take(GREEDY).is_none());
        greedy.pop();
        let other = take(&permits, OTHER, 1);
        assert_eq!((revoked(&greedy), revoked(&other)), (vec![false; 2], vec![false]));
    }

    #[test]
    fn permit_with_least_loss_is_revoked_first() {
        let permits = permits(5);
        let greedy = take(&permits, GREEDY, 5);
        let [incomplete, complete, idle, known, new] = &greedy[..] else { panic!("there are five") };
        incomplete.holder.requests.begin();
        incomplete.holder.requests.body_arriving();
        complete.holder.requests.begin();
        known.set_authentication(Authentication::Certificate);
        new.set_authentication(Authentication::Pending);
        let _others = take(&permits, OTHER, 1);
        assert!(new.holder.end.is_cancelled());
        let _others = take(&permits, THIRD, 1);
        assert!(idle.holder.end.is_cancelled());
        let _others = take(&permits, IpAddr::from([192, 0, 2, 4]), 1);
        assert!(incomplete.holder.end.is_cancelled());
        assert!(permits.take(IpAddr::from([192, 0, 2, 5])).is_none(), "no connection may be closed");
        assert!(!complete.holder.end.is_cancelled() && !known.holder.end.is_cancelled());
    }

    #[test]
    fn newcomer_replaces_oldest_unfinished_connection() {
        let permits = permits(5);
        let all: Vec<_> = (1..=5).map(|host| take(&permits, IpAddr::from([198, 51, 100, host]), 1).remove(0)).collect();
        let [idle, complete, incomplete, younger, known] = &all[..] else { panic!("there are five") };
        complete.holder.requests.begin();
        for permit in [incomplete, younger, known] {
            permit.holder.requests.begin();
            permit.holder.requests.body_arriving();
        }
        known.set_authentication(Authentication::Certificate);
        let newcomer = take(&permits, OTHER, 1);
        assert_eq!(revoked(&all), [false, false, true, false, false]);
        assert!(permits.take(OTHER).is_none(), "the address already has a connection");
        let third = take(&permits, THIRD, 1);
        assert!(younger.holder.end.is_cancelled() && !idle.holder.end.is_cancelled());
        assert_eq!((revoked(&newcomer), revoked(&third)), (vec![false], vec![false]));
        assert!(permits.take(GREEDY).is_none(), "idle connections and finished requests are kept");
    }

    #[test]
    fn next_address_loses_permit_if_first_cannot() {
        let permits = permits(5);
        let busy = take(&permits, GREEDY, 3);
        for permit in &busy {
            permit.holder.requests.begin();
        }
        let idle = take(&permits, OTHER, 2);
        let _third = take(&permits, THIRD, 1);
        assert_eq!((revoked(&busy), revoked(&idle)), (vec![false; 3], vec![true, false]));
    }

    #[tokio::test]
    async fn pending_request_is_answered_after_revocation() {
        let permits = permits(2);
        let greedy = take(&permits, GREEDY, 2);
        let holder = Arc::clone(&greedy[0].holder);
        let (finish, answered) = tokio::sync::oneshot::channel::<()>();
        let connection = async {
            // The request arrives just after its connection's permit was revoked.
            let _third = permits.take(OTHER).expect("the first permit is revoked");
            assert!(holder.end.is_cancelled() && holder.requests.are_last());
            holder.requests.begin();
            answered.await.unwrap();
            holder.requests.response_taken();
            holder.requests.answered();
            assert!(holder.requests.has_pending_response());
            holder.requests.response_read();
            pending::<()>().await;
        };
        let mut run = pin!(greedy[0].run(connection));
        assert!(futures::poll!(run.as_mut()).is_pending());
        finish.send(()).unwrap();
        assert!(run.await);
    }

    #[tokio::test]
    async fn cut_ends_connections_with_and_without_permit() {
        let permits = permits(2);
        let greedy = take(&permits, GREEDY, 2);
        let _other = permits.take(OTHER).expect("the first permit is revoked");
        greedy[0].holder.requests.begin();
        permits.cut.cancel();
        assert!(greedy[0].run(pending()).await);
        assert!(!greedy[1].run(pending()).await);
    }

    #[test]
    fn permit_is_returned_exactly_once() {
        let permits = permits(3);
        let greedy = take(&permits, GREEDY, 3);
        let other = permits.take(OTHER);
        drop(greedy);
        drop(other);
        let taken = lock(&permits.taken);
        assert_eq!((taken.count, taken.by_address.len()), (0, 0));
    }

    #[test]
    fn mapped_address_counts_as_same_address() {
        let permits = permits(4);
        let _greedy = take(&permits, GREEDY, 4);
        let mapped = std::net::Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped();
        assert!(permits.take(mapped.into()).is_none());
    }
}
