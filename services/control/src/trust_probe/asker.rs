//! Sends a dry run to each API server, and waits for the resulting call.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use futures::future::join_all;
use kube::api::{Api, PostParams};
use kube::{Client, Config};
use pillion_api::canary::InjectionCanary;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use super::answer::{Outcome, Said, Shown, Silence, fold, outcome, reached};
use super::server::Canary;
use super::servers::{Listed, Servers};
use super::{CanaryMetrics, Settings, slice};
use crate::certificates::rotation::{Generation, Propagation};
use crate::leader::FIELD_MANAGER;
use crate::random;
use crate::release::Release;

/// Asks API servers.
pub struct Asker {
    client: Client,
    config: Config,
    release: Arc<Release>,
    canary: Canary,
    address: SocketAddr,
    settings: Settings,
    metrics: CanaryMetrics,
    servers: Servers,
    /// One client for each API server; `None` is the configured address.
    clients: BTreeMap<Option<SocketAddr>, Client>,
}

/// What to prove.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    /// The API server trusts this CA and has the configuration of this epoch.
    Trust(Generation, u64),
    /// The API server reaches a replica.
    Replica,
}

/// Results of one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The summary for the rotation.
    pub propagation: Propagation,
    /// The result for every API server, for logs.
    pub answers: Vec<Answer>,
}

/// The result for one API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its address; `None` for the configured address.
    pub server: Option<SocketAddr>,
    /// Its outcome.
    pub outcome: Outcome,
}

impl fmt::Debug for Asker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Asker")
            .field("canary", &self.canary)
            .field("servers", &self.servers)
            .finish_non_exhaustive()
    }
}

impl Asker {
    /// Uses the credentials and CAs of `config`. `address` is where API servers reach the trust probe: the controller's
    /// own pod.
    #[must_use]
    pub fn new(
        (client, config): (Client, Config),
        release: Arc<Release>,
        canary: Canary,
        address: SocketAddr,
        settings: Settings,
        metrics: CanaryMetrics,
    ) -> Self {
        let (servers, clients) = (Servers::default(), BTreeMap::new());
        Self { client, config, release, canary, address, settings, metrics, servers, clients }
    }

    /// Asks all API servers concurrently whether they trust this CA and have the configuration of this epoch. Takes at
    /// most three times [`Settings::timeout`] and never fails: unreachable API servers count as silent.
    ///
    /// If no API server is reachable at its own address, the configured address is asked. That proves the bundle for
    /// only one API server, and the others count as silent.
    pub async fn ask(&mut self, newest: Generation, epoch: u64) -> Asked {
        let asked = if self.canary.shows() == Some(newest) {
            let listed = self.list().await;
            self.ask_listed(&listed, Wanted::Trust(newest, epoch)).await
        } else {
            // The endpoint shows another certificate, or none.
            let outcome = Outcome::Silent(Silence::NoLeaf);
            Asked { propagation: fold([], None), answers: vec![Answer { server: None, outcome }] }
        };
        self.metrics.found(asked.propagation);
        for answer in &asked.answers {
            self.metrics.asked(&answer.outcome);
            debug!(server = ?answer.server, outcome = ?answer.outcome, "an API server was asked for a canary");
        }
        asked
    }

    /// Asks all API servers in the same way whether they reach a replica, while dry runs are routed to the replicas.
    pub async fn rehearse(&mut self) -> Asked {
        let listed = timeout(self.settings.timeout, Listed::list(&self.client)).await;
        let listed = self.note(listed);
        let asked = self.ask_listed(&listed, Wanted::Replica).await;
        for answer in &asked.answers {
            debug!(server = ?answer.server, outcome = ?answer.outcome, "an API server was asked to call a replica");
        }
        asked
    }

    async fn list(&mut self) -> Listed {
        let limit = self.settings.timeout;
        let (published, listed) = tokio::join!(
            timeout(limit, slice::publish(&self.client, &self.release, self.address)),
            timeout(limit, Listed::list(&self.client)),
        );
        match published {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "the endpoint slice of the canary cannot be written"),
            Err(_) => warn!(?limit, "the endpoint slice of the canary was not written in time"),
        }
        self.note(listed)
    }

    fn note(&mut self, listed: Result<Listed, Elapsed>) -> Listed {
        // The list failed: neither the addresses nor their number are known.
        self.servers.note(listed.unwrap_or_default(), Instant::now(), self.settings.vanished)
    }

    async fn ask_listed(&mut self, listed: &Listed, wanted: Wanted) -> Asked {
        let servers: Vec<_> = listed.addresses.iter().copied().map(Some).collect();
        let mut answers = self.ask_all(servers, wanted).await;
        let is_mute =
            |answer: &Answer| matches!(answer.outcome, Outcome::Silent(Silence::Unreachable | Silence::Timeout));
        if answers.iter().all(is_mute) {
            let by_configuration = self.ask_all(vec![None], wanted).await;
            let propagation = fold(by_configuration.iter().map(|answer| &answer.outcome), listed.number);
            answers.extend(by_configuration);
            return Asked { propagation, answers };
        }
        Asked { propagation: fold(answers.iter().map(|answer| &answer.outcome), listed.number), answers }
    }

    async fn ask_all(&mut self, servers: Vec<Option<SocketAddr>>, wanted: Wanted) -> Vec<Answer> {
        let mut asking = Vec::with_capacity(servers.len());
        for server in servers {
            let client = self.client_of(server);
            let (canary, limit) = (self.canary.clone(), self.settings.timeout);
            asking.push(async move {
                let outcome = match client {
                    Some(client) => {
                        timeout(limit, ask(&client, &canary, wanted)).await.unwrap_or(Outcome::Silent(Silence::Timeout))
                    }
                    None => Outcome::Silent(Silence::Unreachable),
                };
                Answer { server, outcome }
            });
        }
        let answers = join_all(asking).await;
        for answer in &answers {
            // Drop the client, since its connection may be dead.
            if matches!(answer.outcome, Outcome::Silent(Silence::Unreachable | Silence::Timeout)) {
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
                warn!(%error, "no client for the API server at an address of its own");
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

/// Asks one API server.
async fn ask(client: &Client, canary: &Canary, wanted: Wanted) -> Outcome {
    let name = format!("canary-{}", random::token());
    let expectation = canary.expect(name.clone());
    let params = PostParams { dry_run: true, field_manager: Some(FIELD_MANAGER.to_owned()) };
    let canaries: Api<InjectionCanary> = Api::all(client.clone());
    let unreadable;
    let said = match canaries.create(&params, &InjectionCanary::new(name)).await {
        Ok(_) => Said::Yes,
        Err(kube::Error::Api(ref status)) => {
            return known(Said::No(&status.message), expectation.shown(), wanted);
        }
        Err(error @ kube::Error::SerdeError(_)) => {
            unreadable = error.to_string();
            Said::No(&unreadable)
        }
        Err(error) => {
            debug!(%error, "an API server cannot be asked for a canary");
            Said::Nothing(&Silence::Unreachable)
        }
    };
    known(said, expectation.shown(), wanted)
}

fn known(said: Said<'_>, shown: Option<Shown>, wanted: Wanted) -> Outcome {
    match wanted {
        Wanted::Trust(newest, epoch) => outcome(said, shown, newest, epoch),
        Wanted::Replica => reached(said),
    }
}
