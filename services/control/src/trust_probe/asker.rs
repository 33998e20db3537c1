//! Sends a dry run to each API server, and checks whether it called the trust probe's endpoint or a replica.
//!
//! The Service of the trust probe has no selector: a selector would match all controllers, and only the leader has the
//! certificate. So the leader writes the Service's one endpoint slice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Config};
use pillion_api::trust_probe::InjectionTrustProbe;
use serde_json::json;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use super::answer::{
    DryRunResponse, ReceivedCall, ServerOutcome, Silence, fold, interpret_connectivity, interpret_trust,
};
use super::server::TrustProbe;
use super::{Settings, TrustProbeMetrics};
use crate::certificates::rotation::{Generation, Propagation};
use crate::client::chain;
use crate::leader::FIELD_MANAGER;
use crate::probe::{Endpoint, Selected};
use crate::random;
use crate::release::Release;

/// Sends dry runs to the API servers.
pub struct ApiServerProber {
    client: Client,
    config: Config,
    release: Arc<Release>,
    trust_probe: TrustProbe,
    address: SocketAddr,
    settings: Settings,
    metrics: TrustProbeMetrics,
    servers: KnownServers,
    /// A client for each API server. The key `None` is the configured address.
    clients: BTreeMap<Option<SocketAddr>, Client>,
}

/// The proof that a round requires of each API server.
#[derive(Clone, Copy, Debug)]
enum Proof {
    /// The API server trusts this CA and has the configuration of this epoch or a later one.
    Trust(Generation, u64),
    /// The API server reaches a replica.
    Replica,
}

/// Results of one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustRound {
    /// The summary for the rotation.
    pub propagation: Propagation,
    /// The result for every API server, for logs.
    pub answers: Vec<ServerAnswer>,
}

/// The result for one API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAnswer {
    /// The address of the API server; `None` for the configured address.
    pub server: Option<SocketAddr>,
    /// The outcome for this API server.
    pub outcome: ServerOutcome,
}

impl fmt::Debug for ApiServerProber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ApiServerProber")
            .field("trust_probe", &self.trust_probe)
            .field("servers", &self.servers)
            .finish_non_exhaustive()
    }
}

impl ApiServerProber {
    /// Creates a prober with the credentials and CAs of `config`. `address` is the address at which API servers reach
    /// the trust probe: the controller's own pod.
    #[must_use]
    pub fn new(
        (client, config): (Client, Config),
        release: Arc<Release>,
        trust_probe: TrustProbe,
        address: SocketAddr,
        settings: Settings,
        metrics: TrustProbeMetrics,
    ) -> Self {
        let (servers, clients) = (KnownServers::default(), BTreeMap::new());
        Self { client, config, release, trust_probe, address, settings, metrics, servers, clients }
    }

    /// The endpoint that API servers call.
    #[must_use]
    pub const fn trust_probe(&self) -> &TrustProbe {
        &self.trust_probe
    }

    /// Asks all API servers concurrently whether they trust this CA and have the configuration of this epoch. Takes at
    /// most three times [`Settings::timeout`], and never fails: unreachable API servers count as silent.
    ///
    /// If no API server is reachable at its own address, the configured address is asked. That proves the bundle of
    /// only one API server, so the others count as silent.
    pub async fn ask(&mut self, newest: Generation, epoch: u64) -> TrustRound {
        let round = if self.trust_probe.shows() == Some(newest) {
            let listed = self.list().await;
            self.ask_listed(&listed, Proof::Trust(newest, epoch)).await
        } else {
            // The endpoint serves a certificate of another CA, or none.
            let outcome = ServerOutcome::Silent(Silence::NoCertificate);
            TrustRound { propagation: fold([], None), answers: vec![ServerAnswer { server: None, outcome }] }
        };
        self.metrics.set_servers(round.propagation);
        for answer in &round.answers {
            self.metrics.count_request(&answer.outcome);
            debug!(server = ?answer.server, outcome = ?answer.outcome, "an API server was asked for a trust probe");
        }
        round
    }

    /// Checks whether all API servers reach a replica. Meanwhile, the webhook configuration must route dry runs to the
    /// replicas.
    pub(crate) async fn check_connectivity(&mut self) -> TrustRound {
        let listed = timeout(self.settings.timeout, ApiServers::list(&self.client)).await;
        let listed = self.merge(listed);
        let round = self.ask_listed(&listed, Proof::Replica).await;
        for answer in &round.answers {
            debug!(server = ?answer.server, outcome = ?answer.outcome, "an API server was asked to call a replica");
        }
        round
    }

    async fn list(&mut self) -> ApiServers {
        let limit = self.settings.timeout;
        let (published, listed) = tokio::join!(
            timeout(limit, publish(&self.client, &self.release, self.address)),
            timeout(limit, ApiServers::list(&self.client)),
        );
        match published {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "the endpoint slice of the trust probe cannot be written"),
            Err(_) => warn!(?limit, "the endpoint slice of the trust probe was not written in time"),
        }
        self.merge(listed)
    }

    fn merge(&mut self, listed: Result<ApiServers, Elapsed>) -> ApiServers {
        // If the list timed out, neither the addresses nor their number are known.
        self.servers.merge(listed.unwrap_or_default(), Instant::now(), self.settings.keep_unlisted_for)
    }

    async fn ask_listed(&mut self, listed: &ApiServers, proof: Proof) -> TrustRound {
        let servers: Vec<_> = listed.addresses.iter().copied().map(Some).collect();
        let mut answers = self.ask_all(servers, proof).await;
        let is_unreachable = |answer: &ServerAnswer| {
            matches!(answer.outcome, ServerOutcome::Silent(Silence::Unreachable | Silence::Timeout))
        };
        if answers.iter().all(is_unreachable) {
            let by_configuration = self.ask_all(vec![None], proof).await;
            let propagation = fold(by_configuration.iter().map(|answer| &answer.outcome), listed.number);
            answers.extend(by_configuration);
            return TrustRound { propagation, answers };
        }
        TrustRound { propagation: fold(answers.iter().map(|answer| &answer.outcome), listed.number), answers }
    }

    async fn ask_all(&mut self, servers: Vec<Option<SocketAddr>>, proof: Proof) -> Vec<ServerAnswer> {
        let mut asking = Vec::with_capacity(servers.len());
        for server in servers {
            let client = self.client_of(server);
            let (trust_probe, limit) = (self.trust_probe.clone(), self.settings.timeout);
            asking.push(async move {
                let outcome = match client {
                    Some(client) => timeout(limit, ask(&client, &trust_probe, proof))
                        .await
                        .unwrap_or(ServerOutcome::Silent(Silence::Timeout)),
                    None => ServerOutcome::Silent(Silence::Unreachable),
                };
                ServerAnswer { server, outcome }
            });
        }
        let answers = join_all(asking).await;
        for answer in &answers {
            // The connection may have failed, so drop the client.
            if matches!(answer.outcome, ServerOutcome::Silent(Silence::Unreachable | Silence::Timeout)) {
                self.clients.remove(&answer.server);
            }
        }
        answers
    }

    fn client_of(&mut self, server: Option<SocketAddr>) -> Option<Client> {
        if let Some(client) = self.clients.get(&server) {
            return Some(client.clone());
        }
        match Client::try_from(self.config_of(server)?) {
            Ok(client) => {
                self.clients.insert(server, client.clone());
                Some(client)
            }
            Err(error) => {
                warn!(%error, "cannot create a client for the API server at its own address");
                None
            }
        }
    }

    fn config_of(&self, server: Option<SocketAddr>) -> Option<Config> {
        let mut config = self.config.clone();
        // A rejection is a valid response, so retries would only take time.
        config.default_retry = false;
        config.connect_timeout = Some(self.settings.timeout);
        config.read_timeout = None;
        if let Some(address) = server {
            config.cluster_url = format!("https://{address}").parse().ok()?;
            config.tls_server_name.get_or_insert_with(|| self.settings.server_name.clone());
            // Connect to this API server directly.
            config.proxy_url = None;
        }
        Some(config)
    }
}

/// Sends a dry run to one API server, and interprets its response.
async fn ask(client: &Client, trust_probe: &TrustProbe, proof: Proof) -> ServerOutcome {
    let name = format!("trust-probe-{}", random::token());
    let expectation = trust_probe.expect(name.clone());
    let params = PostParams { dry_run: true, field_manager: Some(FIELD_MANAGER.to_owned()) };
    let trust_probes: Api<InjectionTrustProbe> = Api::all(client.clone());
    let message;
    let response = match trust_probes.create(&params, &InjectionTrustProbe::new(name)).await {
        Ok(_) => DryRunResponse::Allowed,
        Err(kube::Error::Api(ref status)) => {
            return interpret(DryRunResponse::Rejected(&status.message), expectation.shown(), proof);
        }
        Err(error @ kube::Error::SerdeError(_)) => {
            message = error.to_string();
            DryRunResponse::Rejected(&message)
        }
        Err(error) => {
            debug!(%error, "an API server cannot be asked for a trust probe");
            DryRunResponse::Missing(&Silence::Unreachable)
        }
    };
    interpret(response, expectation.shown(), proof)
}

fn interpret(response: DryRunResponse<'_>, shown: Option<ReceivedCall>, proof: Proof) -> ServerOutcome {
    match proof {
        Proof::Trust(newest, epoch) => interpret_trust(response, shown, newest, epoch),
        Proof::Replica => interpret_connectivity(response),
    }
}

/// The known API servers, with the time when each was last listed. Includes those that left the list recently.
#[derive(Debug, Default)]
struct KnownServers {
    seen: BTreeMap<SocketAddr, Instant>,
}

/// The API servers to ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ApiServers {
    /// The addresses of the API servers.
    addresses: BTreeSet<SocketAddr>,
    /// The number of API servers; `None` if unknown. Several API servers may share one address.
    number: Option<usize>,
}

impl KnownServers {
    /// Merges the current list with API servers that were listed recently. An API server that hangs disappears from the
    /// list, but may later continue with its old configuration.
    fn merge(&mut self, listed: ApiServers, now: Instant, keep_unlisted_for: Duration) -> ApiServers {
        self.seen.extend(listed.addresses.into_iter().map(|address| (address, now)));
        self.seen.retain(|_, last| now.saturating_duration_since(*last) < keep_unlisted_for || *last == now);
        let addresses: BTreeSet<_> = self.seen.keys().copied().collect();
        let number = listed.number.map(|number| number.max(addresses.len()));
        ApiServers { addresses, number }
    }
}

impl ApiServers {
    /// Lists the addresses behind the Service `kubernetes`, and counts the identity Leases of API servers. If one of
    /// the lists fails, or if there is no Lease, the number of API servers is unknown.
    async fn list(client: &Client) -> Self {
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
        let of_service = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
        let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
        // Each API server has a Lease for its host name. The Lease of a removed API server remains for an hour.
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

/// Returns the Service of the trust probe, for the manifests.
///
/// # Errors
/// Never in practice: the object is a valid Service.
pub fn service(release: &Release) -> Result<Service, serde_json::Error> {
    serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": release.trust_probe_service(), "namespace": release.namespace()},
        "spec": {"ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": "https"}]},
    }))
}

/// Returns the endpoint slice that routes the trust probe's Service to `address`.
///
/// # Errors
/// Never in practice: the object is a valid endpoint slice.
fn slice(release: &Release, address: SocketAddr) -> Result<EndpointSlice, serde_json::Error> {
    serde_json::from_value(json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": release.trust_probe_service(),
            "namespace": release.namespace(),
            "labels": {
                "kubernetes.io/service-name": release.trust_probe_service(),
                // Without this label, the endpoint slice controller might delete the slice as its own.
                "endpointslice.kubernetes.io/managed-by": FIELD_MANAGER,
            },
        },
        "addressType": if address.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [address.ip().to_string()], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": address.port(), "protocol": "TCP"}],
    }))
}

/// Routes the trust probe's Service to this address, and replaces the earlier address.
async fn publish(client: &Client, release: &Release, address: SocketAddr) -> kube::Result<()> {
    let slice = slice(release, address).map_err(kube::Error::SerdeError)?;
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), release.namespace());
    let (name, params) = (release.trust_probe_service(), PatchParams::apply(FIELD_MANAGER).force());
    match slices.patch(&name, &params, &Patch::Apply(&slice)).await {
        // The new address has another IP family, and the address type of a slice is immutable.
        Err(kube::Error::Api(status)) if status.code == 422 => {
            slices.delete(&name, &DeleteParams::default()).await?;
            slices.patch(&name, &params, &Patch::Apply(&slice)).await.map(drop)
        }
        patched => patched.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(hosts: &[u8], number: usize) -> ApiServers {
        let address = |host: &u8| SocketAddr::from(([10, 0, 0, *host], 6443));
        ApiServers { addresses: hosts.iter().map(address).collect(), number: Some(number) }
    }

    #[test]
    fn vanished_api_server_is_asked_for_a_while() {
        let (zero, second) = (Instant::now(), Duration::from_secs(1));
        let mut servers = KnownServers::default();
        assert_eq!(servers.merge(listed(&[1, 2], 2), zero, 10 * second), listed(&[1, 2], 2));
        assert_eq!(servers.merge(listed(&[1], 1), zero + 9 * second, 10 * second), listed(&[1, 2], 2));
        assert_eq!(servers.merge(listed(&[1], 1), zero + 10 * second, 10 * second), listed(&[1], 1));
        assert_eq!(servers.merge(listed(&[], 0), zero + 12 * second, 10 * second), listed(&[1], 1));
        // Listed API servers are asked even if no others are kept.
        assert_eq!(servers.merge(listed(&[3], 1), zero + 12 * second, Duration::ZERO), listed(&[3], 1));
        // Three API servers share one address.
        assert_eq!(KnownServers::default().merge(listed(&[1], 3), zero, Duration::ZERO).number, Some(3));
    }

    #[test]
    fn number_needs_both_lists() {
        let addresses = |hosts: &[u8]| Ok(listed(hosts, 0).addresses);
        let fails = || kube::Error::LinesCodecMaxLineLengthExceeded;
        assert_eq!(ApiServers::of(addresses(&[1, 2]), Ok(3)), listed(&[1, 2], 3));
        assert_eq!(ApiServers::of(addresses(&[1, 2]), Ok(1)), listed(&[1, 2], 2));
        for (addresses, leases) in [
            (Err(fails()), Ok(3)),
            (addresses(&[1]), Err(fails())),
            (Err(fails()), Err(fails())),
            (addresses(&[1]), Ok(0)),
        ] {
            assert_eq!(ApiServers::of(addresses, leases).number, None);
        }
        // An API server that was listed recently is still asked.
        let now = Instant::now();
        let mut servers = KnownServers::default();
        servers.merge(listed(&[1, 2], 2), now, Duration::from_secs(1));
        let merged = servers.merge(ApiServers::default(), now, Duration::from_secs(1));
        assert_eq!((merged.addresses.len(), merged.number), (2, None));
    }
}
