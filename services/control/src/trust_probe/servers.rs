//! Lists the API servers of the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, ListParams};
use tokio::time::Instant;
use tracing::warn;

use crate::client::chain;
use crate::probe::{Endpoint, Selected};

/// The known API servers, including those that left the list recently.
#[derive(Debug, Default)]
pub struct Servers {
    seen: BTreeMap<SocketAddr, Instant>,
}

/// The API servers to ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Their addresses.
    pub addresses: BTreeSet<SocketAddr>,
    /// Their number: several may share one address. `None` if unknown.
    pub number: Option<usize>,
}

impl Servers {
    /// Merges the current list with recently listed API servers: one that hangs leaves the list, but continues with its
    /// old state.
    pub fn note(&mut self, listed: Listed, now: Instant, vanished: Duration) -> Listed {
        self.seen.extend(listed.addresses.into_iter().map(|address| (address, now)));
        self.seen.retain(|_, last| now.saturating_duration_since(*last) < vanished || *last == now);
        let addresses: BTreeSet<_> = self.seen.keys().copied().collect();
        let number = listed.number.map(|number| number.max(addresses.len()));
        Listed { addresses, number }
    }
}

impl Listed {
    /// Lists the addresses behind the Service `kubernetes`, and counts the identity Leases of API servers. A failed or
    /// empty list means "unknown", not that there are no other API servers.
    pub async fn list(client: &Client) -> Self {
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
        let of_service = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
        let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
        // Each API server has one by its host name; the Lease of a removed one stays for an hour.
        let of_identity = ListParams::default().labels("apiserver.kubernetes.io/identity=kube-apiserver");
        let (slices, leases) = tokio::join!(slices.list(&of_service), leases.list(&of_identity));
        let addresses = slices.map(|slices| {
            Selected::of_slices(&slices.items, "https").endpoints.iter().filter_map(Endpoint::socket).collect()
        });
        Self::of(addresses, leases.map(|leases| leases.items.len()))
    }

    fn of(addresses: kube::Result<BTreeSet<SocketAddr>>, leases: kube::Result<usize>) -> Self {
        for (what, error) in [("addresses", addresses.as_ref().err()), ("Leases", leases.as_ref().err())] {
            if let Some(error) = error {
                warn!(
                    error = chain(error),
                    "the {what} of the API servers cannot be listed: their number is not known"
                );
            }
        }
        let number = match (&addresses, leases) {
            (Ok(addresses), Ok(leases)) if leases > 0 => Some(leases.max(addresses.len())),
            _ => None,
        };
        Self { addresses: addresses.unwrap_or_default(), number }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(hosts: &[u8], number: usize) -> Listed {
        let address = |host: &u8| SocketAddr::from(([10, 0, 0, *host], 6443));
        Listed { addresses: hosts.iter().map(address).collect(), number: Some(number) }
    }

    #[test]
    fn one_that_vanishes_is_known_for_a_while() {
        let (zero, second) = (Instant::now(), Duration::from_secs(1));
        let mut servers = Servers::default();
        assert_eq!(servers.note(listed(&[1, 2], 2), zero, 10 * second), listed(&[1, 2], 2));
        assert_eq!(servers.note(listed(&[1], 1), zero + 9 * second, 10 * second), listed(&[1, 2], 2));
        assert_eq!(servers.note(listed(&[1], 1), zero + 10 * second, 10 * second), listed(&[1], 1));
        assert_eq!(servers.note(listed(&[], 0), zero + 12 * second, 10 * second), listed(&[1], 1));
        // Current API servers are asked even if none are kept.
        assert_eq!(servers.note(listed(&[3], 1), zero + 12 * second, Duration::ZERO), listed(&[3], 1));
    }

    #[test]
    fn several_behind_one_address_are_several() {
        let now = Instant::now();
        assert_eq!(Servers::default().note(listed(&[1], 3), now, Duration::ZERO).number, Some(3));
    }

    #[test]
    fn number_is_unknown_unless_both_lists_say_it() {
        let addresses = |hosts: &[u8]| Ok(listed(hosts, 0).addresses);
        let fails = || kube::Error::LinesCodecMaxLineLengthExceeded;
        assert_eq!(Listed::of(addresses(&[1, 2]), Ok(3)), listed(&[1, 2], 3));
        assert_eq!(Listed::of(addresses(&[1, 2]), Ok(1)), listed(&[1, 2], 2));
        for (addresses, leases) in [
            (Err(fails()), Ok(3)),
            (addresses(&[1]), Err(fails())),
            (Err(fails()), Err(fails())),
            (addresses(&[1]), Ok(0)),
        ] {
            assert_eq!(Listed::of(addresses, leases).number, None);
        }
        // A recently listed API server is still asked.
        let now = Instant::now();
        let mut servers = Servers::default();
        servers.note(listed(&[1, 2], 2), now, Duration::from_secs(1));
        let noted = servers.note(Listed::default(), now, Duration::from_secs(1));
        assert_eq!((noted.addresses.len(), noted.number), (2, None));
    }
}
