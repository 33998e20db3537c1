//! Which API servers there are, as the cluster tells it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, ListParams};
use tokio::time::Instant;

use crate::probe::{Endpoint, Selected};

/// The API servers that are known, also for a while after they are not listed any more.
#[derive(Debug, Default)]
pub struct Servers {
    seen: BTreeMap<SocketAddr, Instant>,
}

/// The API servers to be asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Where they are.
    pub addresses: BTreeSet<SocketAddr>,
    /// How many there are at least: several may be behind one address.
    pub number: usize,
}

impl Servers {
    /// Those that are there now, and those that were a moment ago: an API server that hangs leaves the list, and goes on
    /// with what it knew.
    pub fn note(&mut self, listed: Listed, now: Instant, vanished: Duration) -> Listed {
        self.seen.extend(listed.addresses.into_iter().map(|address| (address, now)));
        self.seen.retain(|_, last| now.saturating_duration_since(*last) < vanished || *last == now);
        let addresses: BTreeSet<_> = self.seen.keys().copied().collect();
        let number = listed.number.max(addresses.len());
        Listed { addresses, number }
    }
}

impl Listed {
    /// The addresses behind the Service `kubernetes`, and how many API servers say of themselves that they are there.
    ///
    /// # Errors
    /// The addresses cannot be listed.
    pub async fn list(client: &Client) -> kube::Result<Self> {
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
        let of_service = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
        let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
        // One for each API server by the name of its machine; one that is gone for good stays for an hour.
        let of_identity = ListParams::default().labels("apiserver.kubernetes.io/identity=kube-apiserver");
        let (slices, leases) = tokio::join!(slices.list(&of_service), leases.list(&of_identity));
        let slices = slices?.items;
        let addresses: BTreeSet<_> =
            Selected::of_slices(&slices, "https").endpoints.iter().filter_map(Endpoint::socket).collect();
        // Not everybody may list leases: then the addresses are all that is known.
        let leases = leases.map_or(0, |leases| leases.items.len());
        let number = leases.max(addresses.len());
        Ok(Self { addresses, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(hosts: &[u8], number: usize) -> Listed {
        let address = |host: &u8| SocketAddr::from(([10, 0, 0, *host], 6443));
        Listed { addresses: hosts.iter().map(address).collect(), number }
    }

    #[test]
    fn one_that_vanishes_is_known_for_a_while() {
        let (zero, second) = (Instant::now(), Duration::from_secs(1));
        let mut servers = Servers::default();
        assert_eq!(servers.note(listed(&[1, 2], 2), zero, 10 * second), listed(&[1, 2], 2));
        assert_eq!(servers.note(listed(&[1], 1), zero + 9 * second, 10 * second), listed(&[1, 2], 2));
        assert_eq!(servers.note(listed(&[1], 1), zero + 10 * second, 10 * second), listed(&[1], 1));
        assert_eq!(servers.note(listed(&[], 0), zero + 12 * second, 10 * second), listed(&[1], 1));
        // Also where nothing is to be remembered, those that are there are asked.
        assert_eq!(servers.note(listed(&[3], 1), zero + 12 * second, Duration::ZERO), listed(&[3], 1));
    }

    #[test]
    fn several_behind_one_address_are_several() {
        let now = Instant::now();
        assert_eq!(Servers::default().note(listed(&[1], 3), now, Duration::ZERO).number, 3);
    }
}
