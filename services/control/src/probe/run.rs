//! Probes all endpoints, round after round.

use std::sync::Arc;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::fold::UNKNOWN;
use super::judge::{Judgement, certificates};
use super::metrics::Outcome;
use super::{Expected, Judge, ProbeMetrics, Probed, Rounds, Selected, Settings, Verdict, dial};
use crate::certificates::clock::Clock;
use crate::certificates::rotation::Endpoints;
use crate::leader::LeaderContext;
use crate::release::Release;
use crate::webhook_config::switch::Making;

/// Results of a round.
#[derive(Clone, Debug)]
pub struct Found {
    /// The requirements on the endpoints.
    pub expected: Arc<Expected>,
    /// The summary for the rotation.
    pub endpoints: Endpoints,
    /// The result for every endpoint, for logs.
    pub probed: Vec<Probed>,
    /// Start of the round: it does not reflect later changes.
    pub began: Instant,
}

/// Probes endpoints in rounds and counts the passed ones.
#[derive(Debug)]
pub struct Prober {
    settings: Settings,
    metrics: ProbeMetrics,
    rounds: Rounds,
    clock: Option<Clock>,
}

impl Found {
    /// The summary for these requirements; unknown if the round had other ones.
    #[must_use]
    pub fn of(found: Option<&Self>, expected: &Expected) -> Endpoints {
        found.filter(|found| *found.expected == *expected).map_or(UNKNOWN, |found| found.endpoints)
    }
}

impl Prober {
    /// Without any passed round yet.
    #[must_use]
    pub fn new(settings: Settings, metrics: ProbeMetrics) -> Self {
        Self { settings, metrics, rounds: Rounds::default(), clock: None }
    }

    /// Judges validity by the API server's time instead of the local time.
    #[must_use]
    pub fn by(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// Probes every current endpoint once, each within [`Settings::timeout`].
    ///
    /// # Errors
    /// The endpoints could not be listed.
    pub async fn round(&mut self, client: &Client, release: &Release, expected: &Arc<Expected>) -> kube::Result<Found> {
        let began = Instant::now();
        let listed = tokio::time::timeout(self.settings.timeout, Selected::list(client, release, &self.settings)).await;
        let selected = match listed {
            Ok(Ok(selected)) => selected,
            failed => {
                self.metrics.ended(Outcome::Error);
                return Err(match failed {
                    Ok(Err(error)) => error,
                    _ => kube::Error::Service("the endpoint slices were not listed in time".into()),
                });
            }
        };
        let probed = self.probe(selected, expected).await;
        let endpoints = self.rounds.add((&**expected).into(), &probed, began, self.settings.gap);
        self.metrics.found(&probed, endpoints);
        Ok(Found { expected: Arc::clone(expected), endpoints, probed, began })
    }

    async fn probe(&self, selected: Selected, expected: &Expected) -> Vec<Probed> {
        let now = self.clock.as_ref().map_or_else(Timestamp::now, Clock::api_servers);
        let judge = Judge::new(expected, now, self.settings.least_left);
        let judge = &judge;
        let limit = self.settings.timeout;
        let all = selected.endpoints.into_iter().map(|endpoint| async move {
            let shown = match endpoint.socket() {
                Some(socket) => dial::dial(socket, expected.server_name.clone(), limit).await,
                None => Err(dial::Unreachable::NoAddress),
            };
            let Judgement { verdict, trusted, not_after } = match shown {
                Ok(chain) => judge.judge(&chain),
                Err(why) => Judgement { verdict: Verdict::Unreachable(why), trusted: false, not_after: None },
            };
            Probed { endpoint, verdict, trusted, not_after }
        });
        futures::stream::iter(all).buffered(self.settings.parallel.max(1)).collect().await
    }
}

/// Probes while this controller leads: at once when the requirements change, then every [`Settings::gap`]. Without
/// requirements or a list of endpoints, there are no results.
pub async fn run(
    leading: LeaderContext,
    settings: Settings,
    metrics: ProbeMetrics,
    clock: Clock,
    mut expected: watch::Receiver<Option<Arc<Expected>>>,
    found: watch::Sender<Option<Found>>,
) {
    let gap = settings.gap;
    let mut prober = Prober::new(settings, metrics.clone()).by(clock);
    let mut told = Vec::new();
    loop {
        let began = Instant::now();
        let wanted = expected.borrow_and_update().clone();
        let round = async {
            if let Some(wanted) = &wanted {
                let round = prober.round(&leading.client, &leading.release, wanted).await;
                tell(&mut told, round.as_ref());
                found.send_replace(round.ok());
            } else {
                found.send_replace(None);
            }
            sleep_until(began + gap).await;
        };
        tokio::select! {
            biased;
            () = leading.stop.cancelled() => break,
            // The current round and its results are for outdated requirements.
            changed = expected.wait_for(|now| *now != wanted) => {
                if changed.is_err() {
                    break;
                }
                found.send_replace(None);
            }
            () = round => {}
        }
    }
    found.send_replace(None);
    metrics.forget();
}

/// Probes endpoints with certificates of another issuer, against the `caBundle`s of the webhook configuration, and logs
/// the results. Once API servers would trust an endpoint, it also creates the `ConfigMap` of the kill switch: no other
/// task does so here, and guardrails need it.
pub async fn report(leading: LeaderContext, settings: Settings, metrics: ProbeMetrics) {
    let gap = settings.gap;
    let mut prober = Prober::new(settings, metrics.clone());
    let (mut told, mut is_called, mut making) = (Vec::new(), false, Making::default());
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(leading.client.clone());
    let rounds = async {
        loop {
            let began = Instant::now();
            let round = async {
                let configuration = configurations.get_opt(leading.release.configuration()).await?;
                let bundle = configuration.as_ref().map(bundle).unwrap_or_default();
                let Some(expected) = Expected::of_strangers(&leading.release, bundle).map(Arc::new) else {
                    return Err(kube::Error::Service("the release's name is no DNS name".into()));
                };
                prober.round(&leading.client, &leading.release, &expected).await
            };
            let round = round.await;
            tell(&mut told, round.as_ref());
            is_called |= round.is_ok_and(|found| found.endpoints.answering > 0);
            if is_called {
                keep_switch(&leading, &mut making).await;
            }
            sleep_until(began + gap).await;
        }
    };
    tokio::select! {
        () = leading.stop.cancelled() => {}
        () = rounds => {}
    }
    metrics.forget();
}

/// Creates the `ConfigMap` of the kill switch if it is missing. It is read once per round, which is often enough
/// without a watch.
async fn keep_switch(leading: &LeaderContext, making: &mut Making) {
    let LeaderContext { client, release, .. } = leading;
    let switches = Api::<ConfigMap>::namespaced(client.clone(), release.namespace());
    // If reading fails, try to create it: that does no harm to an existing one.
    if let Ok(found) = switches.get_metadata_opt(release.switch()).await {
        making.seen(found.is_some());
    }
    making.make(client, release).await;
}

/// All CA certificates of all entries.
fn bundle(configuration: &MutatingWebhookConfiguration) -> Vec<rustls_pki_types::CertificateDer<'static>> {
    let entries = configuration.webhooks.iter().flatten();
    let mut all: Vec<_> = entries
        .filter_map(|entry| entry.client_config.ca_bundle.as_ref())
        .flat_map(|pem| certificates(&pem.0))
        .collect();
    all.sort_by(|a, b| a.as_ref().cmp(b.as_ref()));
    all.dedup();
    all
}

/// Logs what has changed since the previous round.
fn tell(told: &mut Vec<Probed>, round: Result<&Found, &kube::Error>) {
    let found = match round {
        Ok(found) => found,
        Err(error) => {
            warn!(%error, "it is not known which endpoints there are");
            return;
        }
    };
    for now in &found.probed {
        let before = told.iter().find(|before| before.endpoint == now.endpoint);
        if before.is_some_and(|before| before.verdict == now.verdict) {
            continue;
        }
        let endpoint = &now.endpoint;
        match now.verdict {
            Verdict::Newest | Verdict::Trusted => info!(%endpoint, verdict = now.verdict.as_str(), "endpoint"),
            Verdict::Unreachable(why) => warn!(%endpoint, why = why.as_str(), "an endpoint cannot be probed"),
            verdict => {
                warn!(%endpoint, ?verdict, trusted = now.trusted, "an endpoint serves another leaf than it ought to");
            }
        }
    }
    told.clone_from(&found.probed);
}
