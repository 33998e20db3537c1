//! Connects to every endpoint of the webhook and checks the certificate that it serves.
//!
//! The Secret does not prove which certificate a replica serves, and API servers may not trust the certificate of a
//! ready replica. So each address behind the Service is probed over a separate TLS connection, whether it is ready, not
//! ready or terminating. The served certificate is checked against the *bundle* of the API servers, and against the
//! *newest* CA alone. The handshake proves that the replica has the key.
//!
//! [`targets`] selects the endpoints. [`judge`] connects to them and judges their certificates. This module repeats the
//! probes, and summarises the verdicts for the rotation. If another issuer, such as cert-manager, creates the
//! certificates, there is no rotation. The endpoints are probed too, but are checked only against the bundle
//! ([`Expected::of_other_issuer`]).
//!
//! No object of the API server shows which certificate an endpoint serves. So the loop runs at a fixed interval, and is
//! not a kube-rs `Controller`.
//!
//! RBAC permissions: `list` on endpoint slices in the release's namespace. If [`Settings::pods`] is set: `get` on the
//! release's Service and `list` on pods, in the same namespace. For [`report`]: `get` on the webhook configuration, and
//! `get` and `create` on the `ConfigMap` of the kill switch.

pub mod judge;
pub mod metrics;
pub mod targets;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use rustls_pki_types::CertificateDer;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use crate::certificates::ca::certificates;
use crate::certificates::clock::Clock;
use crate::certificates::rotation::{Generation, ProbeSummary};
use crate::leader::LeaderContext;
use crate::release::Release;
use crate::webhook_config::switch::SwitchCreator;

pub use judge::{Defect, Expected, Judgement, KnownCa, Unreachable, Verdict};
pub use metrics::{ProbeMetrics, RoundResult};
pub use targets::{Endpoint, Selected};

/// Settings of the probes. Tests scale all durations down.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Time between two rounds. A round that begins less than this time after the last counted round is not counted.
    pub gap: Duration,
    /// Timeout for one endpoint, connection and handshake together.
    pub timeout: Duration,
    /// Maximum number of concurrent probes.
    pub parallel: usize,
    /// Minimum time for which a certificate must remain valid.
    pub least_left: Duration,
    /// The name of the probed port of the Service. If a slice has only one port, that port is probed.
    pub port: String,
    /// Whether to probe the pods that the Service selects, in addition to its endpoints. The list of endpoints may lag
    /// behind the pods.
    pub pods: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            gap: Duration::from_secs(10),
            timeout: Duration::from_secs(3),
            parallel: 16,
            least_left: Duration::from_hours(24),
            port: "https".to_owned(),
            pods: true,
        }
    }
}

/// Maximum time between two rounds before the first webhook entries exist. Nothing is injected until then, and the
/// entries are created only after a round has found a trusted endpoint.
const GAP_BEFORE_FIRST_ENTRIES: Duration = Duration::from_secs(1);

/// The result for one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// The probed endpoint.
    pub endpoint: Endpoint,
    /// The verdict on the endpoint's certificate.
    pub verdict: Verdict,
    /// Whether API servers with the bundle would trust the certificate.
    pub trusted: bool,
    /// End of the certificate's validity, if readable.
    pub not_after: Option<Timestamp>,
}

/// Results of a round.
#[derive(Clone, Debug)]
pub struct ProbeRound {
    /// The requirements for which the endpoints were probed.
    pub expected: Arc<Expected>,
    /// The summary for the rotation.
    pub endpoints: ProbeSummary,
    /// The result for every endpoint, for logs.
    pub probed: Vec<Probed>,
    /// Start of the round. The results do not reflect later changes.
    pub began: Instant,
}

/// Probes endpoints in rounds, and counts consecutive passed rounds.
#[derive(Debug)]
pub struct Prober {
    settings: Settings,
    metrics: ProbeMetrics,
    rounds: RoundCounter,
    clock: Option<Clock>,
}

impl ProbeRound {
    /// Returns the summary of a round for these requirements, or a summary without results if there is none.
    #[must_use]
    pub fn of(found: Option<&Self>, expected: &Expected) -> ProbeSummary {
        found.filter(|found| *found.expected == *expected).map_or(NO_RESULTS, |found| found.endpoints)
    }
}

impl Prober {
    /// Creates a prober without any passed round.
    #[must_use]
    pub fn new(settings: Settings, metrics: ProbeMetrics) -> Self {
        Self { settings, metrics, rounds: RoundCounter::default(), clock: None }
    }

    /// Uses the API server's time instead of the local time to judge validity.
    #[must_use]
    pub fn by(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// Probes every current endpoint once, each within [`Settings::timeout`].
    ///
    /// # Errors
    /// The endpoints could not be listed.
    pub async fn round(
        &mut self,
        client: &Client,
        release: &Release,
        expected: &Arc<Expected>,
    ) -> kube::Result<ProbeRound> {
        let began = Instant::now();
        let listed = tokio::time::timeout(self.settings.timeout, Selected::list(client, release, &self.settings)).await;
        let selected = match listed {
            Ok(Ok(selected)) => selected,
            failed => {
                self.metrics.count_round(RoundResult::Error);
                return Err(match failed {
                    Ok(Err(error)) => error,
                    _ => kube::Error::Service("the endpoint slices were not listed in time".into()),
                });
            }
        };
        let probed = self.probe(selected, expected).await;
        let endpoints = self.rounds.add((&**expected).into(), &probed, began, self.settings.gap);
        self.metrics.record_round(&probed, endpoints);
        Ok(ProbeRound { expected: Arc::clone(expected), endpoints, probed, began })
    }

    async fn probe(&self, selected: Selected, expected: &Expected) -> Vec<Probed> {
        let now = self.clock.as_ref().map_or_else(Timestamp::now, Clock::api_servers);
        let Settings { timeout, least_left, .. } = self.settings;
        let all = selected.endpoints.into_iter().map(|endpoint| async move {
            let shown = match endpoint.socket() {
                Some(socket) => judge::dial(socket, expected.server_name.clone(), timeout).await,
                None => Err(Unreachable::NoAddress),
            };
            let Judgement { verdict, trusted, not_after } = match shown {
                Ok(chain) => expected.judge(&chain, now, least_left),
                Err(why) => Judgement { verdict: Verdict::Unreachable(why), trusted: false, not_after: None },
            };
            Probed { endpoint, verdict, trusted, not_after }
        });
        futures::stream::iter(all).buffered(self.settings.parallel.max(1)).collect().await
    }
}

/// Probes while this controller leads: at once when the requirements change, then every [`Settings::gap`], or every
/// second while API servers trust no CA and so cannot call the webhook. Without requirements, or if the endpoints
/// cannot be listed, `found` is `None`.
pub async fn run(
    leading: LeaderContext,
    settings: Settings,
    metrics: ProbeMetrics,
    clock: Clock,
    mut expected: watch::Receiver<Option<Arc<Expected>>>,
    found: watch::Sender<Option<ProbeRound>>,
) {
    let gap = settings.gap;
    let mut prober = Prober::new(settings, metrics.clone()).by(clock);
    let mut reported = Vec::new();
    loop {
        let began = Instant::now();
        let wanted = expected.borrow_and_update().clone();
        let no_entries = wanted.as_ref().is_some_and(|wanted| wanted.bundle.is_empty());
        let pause = if no_entries { gap.min(GAP_BEFORE_FIRST_ENTRIES) } else { gap };
        let round = async {
            if let Some(wanted) = &wanted {
                let round = prober.round(&leading.client, &leading.release, wanted).await;
                log_changes(&mut reported, round.as_ref());
                found.send_replace(round.ok());
            } else {
                found.send_replace(None);
            }
            sleep_until(began + pause).await;
        };
        tokio::select! {
            biased;
            () = leading.stop.cancelled() => break,
            // The requirements have changed: cancel the current round, and discard the results for the old
            // requirements.
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
    metrics.reset();
}

/// Probes endpoints with certificates of another issuer against the `caBundle`s of the webhook configuration, and logs
/// the results. Once API servers would trust an endpoint, also creates the `ConfigMap` of the kill switch, which
/// guardrails need: if another issuer creates the certificates, no other task creates the `ConfigMap`.
pub async fn report(leading: LeaderContext, settings: Settings, metrics: ProbeMetrics) {
    let gap = settings.gap;
    let mut prober = Prober::new(settings, metrics.clone());
    let (mut reported, mut is_trusted, mut creator) = (Vec::new(), false, SwitchCreator::default());
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(leading.client.clone());
    let rounds = async {
        loop {
            let began = Instant::now();
            let round = async {
                let configuration = configurations.get_opt(leading.release.configuration()).await?;
                let bundle = configuration.as_ref().map(bundle).unwrap_or_default();
                let Some(expected) = Expected::of_other_issuer(&leading.release, bundle).map(Arc::new) else {
                    return Err(kube::Error::Service("the release's name is not a DNS name".into()));
                };
                prober.round(&leading.client, &leading.release, &expected).await
            };
            let round = round.await;
            log_changes(&mut reported, round.as_ref());
            is_trusted |= round.is_ok_and(|found| found.endpoints.answering > 0);
            if is_trusted {
                ensure_switch(&leading, &mut creator).await;
            }
            sleep_until(began + gap).await;
        }
    };
    tokio::select! {
        () = leading.stop.cancelled() => {}
        () = rounds => {}
    }
    metrics.reset();
}

/// Creates the `ConfigMap` of the kill switch if it is missing. Reading it once per round is often enough, so it is not
/// watched.
async fn ensure_switch(leading: &LeaderContext, creator: &mut SwitchCreator) {
    let LeaderContext { client, release, .. } = leading;
    let switches = Api::<ConfigMap>::namespaced(client.clone(), release.namespace());
    // If reading fails, try to create the `ConfigMap`. That does not change an existing one.
    if let Ok(found) = switches.get_metadata_opt(release.switch()).await {
        creator.seen(found.is_some());
    }
    creator.create(client, release).await;
}

/// Returns the CA certificates of all entries, without duplicates.
fn bundle(configuration: &MutatingWebhookConfiguration) -> Vec<CertificateDer<'static>> {
    let entries = configuration.webhooks.iter().flatten();
    let mut all: Vec<_> = entries
        .filter_map(|entry| entry.client_config.ca_bundle.as_ref())
        .flat_map(|pem| certificates(&pem.0))
        .collect();
    all.sort_by(|a, b| a.as_ref().cmp(b.as_ref()));
    all.dedup();
    all
}

/// Logs the changes since the previous round.
fn log_changes(reported: &mut Vec<Probed>, round: Result<&ProbeRound, &kube::Error>) {
    let found = match round {
        Ok(found) => found,
        Err(error) => {
            warn!(%error, "the endpoints cannot be listed");
            return;
        }
    };
    for now in &found.probed {
        let before = reported.iter().find(|before| before.endpoint == now.endpoint);
        if before.is_some_and(|before| before.verdict == now.verdict) {
            continue;
        }
        let endpoint = &now.endpoint;
        match now.verdict {
            Verdict::Newest | Verdict::Trusted => info!(%endpoint, verdict = now.verdict.as_str(), "endpoint"),
            Verdict::Unreachable(why) => warn!(%endpoint, why = why.as_str(), "an endpoint cannot be probed"),
            Verdict::Invalid(defect) => {
                let (reason, trusted) = (defect.as_str(), now.trusted);
                warn!(%endpoint, reason, trusted, "an endpoint serves an invalid certificate");
            }
            verdict @ (Verdict::Older(_) | Verdict::Untrusted) => {
                let (verdict, trusted) = (verdict.as_str(), now.trusted);
                warn!(%endpoint, verdict, trusted, "an endpoint serves a certificate of another CA than expected");
            }
        }
    }
    reported.clone_from(&found.probed);
}

/// The requirements for which rounds are counted. The count starts again when they change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RoundKey {
    certificate_epoch: u64,
    newest: Option<Generation>,
}

/// The number of consecutive passed rounds.
#[derive(Debug, Default)]
struct RoundCounter {
    of: Option<(RoundKey, BTreeSet<Endpoint>)>,
    passed: u32,
    /// Start of the last counted round.
    last: Option<Instant>,
}

/// The summary without results.
pub(crate) const NO_RESULTS: ProbeSummary =
    ProbeSummary { answering: 0, rounds: 0, is_other_ca_served: false, untrusted: false, unreachable: 0 };

impl From<&Expected> for RoundKey {
    fn from(expected: &Expected) -> Self {
        Self { certificate_epoch: expected.certificate_epoch, newest: expected.newest }
    }
}

impl RoundCounter {
    /// Adds a round over all endpoints that began at `began`.
    ///
    /// A round is passed if there are endpoints and each serves a valid certificate of the newest CA. It counts if it
    /// began at least `gap` after the last counted round. The count starts again after a failed round, or when the
    /// certificate, the CA or the set of endpoints changes.
    fn add(&mut self, key: RoundKey, probed: &[Probed], began: Instant, gap: Duration) -> ProbeSummary {
        let endpoints: BTreeSet<_> = probed.iter().map(|each| each.endpoint.clone()).collect();
        let is_passed = !probed.is_empty() && probed.iter().all(|each| each.verdict == Verdict::Newest);
        let continues = self.of.as_ref().is_some_and(|(of, all)| (of, all) == (&key, &endpoints));
        if !continues || !is_passed {
            *self = Self { of: Some((key, endpoints)), ..Self::default() };
        }
        if is_passed && self.last.is_none_or(|last| began.saturating_duration_since(last) >= gap) {
            self.passed = self.passed.saturating_add(1);
            self.last = Some(began);
        }
        ProbeSummary {
            answering: probed.iter().filter(|each| each.trusted).count(),
            rounds: self.passed,
            is_other_ca_served: probed.iter().any(|each| is_other_ca(each.verdict)),
            untrusted: probed.iter().any(|each| matches!(each.verdict, Verdict::Trusted | Verdict::Untrusted)),
            unreachable: probed.iter().filter(|each| matches!(each.verdict, Verdict::Unreachable(_))).count(),
        }
    }
}

/// Whether a client that trusts only the newest CA would reject the endpoint now. Returns false for unreachable
/// endpoints.
const fn is_other_ca(verdict: Verdict) -> bool {
    match verdict {
        Verdict::Newest | Verdict::Invalid(Defect::Expiring) | Verdict::Unreachable(_) => false,
        Verdict::Older(_) | Verdict::Trusted | Verdict::Untrusted | Verdict::Invalid(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: Duration = Duration::from_secs(10);
    const OLD: Verdict = Verdict::Older(Generation(1));

    fn probed(verdicts: &[(&str, Verdict)]) -> Vec<Probed> {
        let one = |(address, verdict): &(&str, Verdict)| Probed {
            endpoint: Endpoint { address: (*address).to_owned(), port: Some(8443) },
            verdict: *verdict,
            trusted: matches!(verdict, Verdict::Newest | Verdict::Older(_)),
            not_after: None,
        };
        verdicts.iter().map(one).collect()
    }

    const fn key(certificate_epoch: u64, newest: u32) -> RoundKey {
        RoundKey { certificate_epoch, newest: Some(Generation(newest)) }
    }

    /// The verdicts of a round, by address.
    type Verdicts<'v> = &'v [(&'v str, Verdict)];

    /// Returns the count after each of these rounds. A round has its start (in seconds after the first round), its
    /// requirements and its verdicts.
    fn after(rounds: &[(u64, RoundKey, Verdicts<'_>)]) -> Vec<u32> {
        let zero = Instant::now();
        let mut count = RoundCounter::default();
        let mut passed = Vec::new();
        for (seconds, key, verdicts) in rounds {
            let began = zero + Duration::from_secs(*seconds);
            passed.push(count.add(*key, &probed(verdicts), began, GAP).rounds);
        }
        passed
    }

    #[test]
    fn rounds_count_with_time_between_them() {
        let all: &[_] = &[("a", Verdict::Newest), ("b", Verdict::Newest)];
        let k = key(5, 2);
        assert_eq!(after(&[(0, k, all), (10, k, all), (20, k, all)]), [1, 2, 3]);
        assert_eq!(after(&[(0, k, all), (9, k, all), (10, k, all), (19, k, all), (20, k, all)]), [1, 1, 2, 2, 3]);
    }

    #[test]
    fn failed_round_restarts_the_count() {
        let all: &[_] = &[("a", Verdict::Newest), ("b", Verdict::Newest)];
        let k = key(5, 2);
        let failed = [
            OLD,
            Verdict::Untrusted,
            Verdict::Trusted,
            Verdict::Invalid(Defect::Expiring),
            Verdict::Invalid(Defect::WrongName),
            Verdict::Unreachable(Unreachable::Timeout),
        ];
        for verdict in failed {
            let failed: &[_] = &[("a", Verdict::Newest), ("b", verdict)];
            let passed = after(&[(0, k, all), (10, k, all), (20, k, failed), (30, k, all), (40, k, all)]);
            assert_eq!(passed, [1, 2, 0, 1, 2], "{verdict:?}");
        }
    }

    #[test]
    fn changed_expectation_or_endpoints_restart_the_count() {
        let all: &[_] = &[("a", Verdict::Newest), ("b", Verdict::Newest)];
        let more: &[_] = &[("a", Verdict::Newest), ("b", Verdict::Newest), ("c", Verdict::Newest)];
        let k = key(5, 2);
        assert_eq!(after(&[(0, k, all), (10, k, all), (20, key(6, 2), all)]), [1, 2, 1]);
        assert_eq!(after(&[(0, k, all), (10, k, all), (20, key(5, 3), all)]), [1, 2, 1]);
        assert_eq!(after(&[(0, k, all), (10, k, more), (20, k, more), (30, k, all)]), [1, 1, 2, 1]);
        let replaced: &[_] = &[("a", Verdict::Newest), ("c", Verdict::Newest)];
        assert_eq!(after(&[(0, k, all), (10, k, replaced)]), [1, 1]);
    }

    #[test]
    fn round_without_endpoints_is_not_passed() {
        let k = key(5, 2);
        assert_eq!(after(&[(0, k, &[]), (10, k, &[]), (20, k, &[("a", Verdict::Newest)])]), [0, 0, 1]);
    }

    #[test]
    fn summary_counts_endpoints_by_kind() {
        let add = |verdicts: &[(&str, Verdict)]| {
            RoundCounter::default().add(key(5, 2), &probed(verdicts), Instant::now(), GAP)
        };
        let all = add(&[("a", Verdict::Newest), ("b", OLD), ("c", Verdict::Unreachable(Unreachable::Handshake))]);
        let expected =
            ProbeSummary { answering: 2, rounds: 0, is_other_ca_served: true, untrusted: false, unreachable: 1 };
        assert_eq!(all, expected);
        // An untrusted certificate also counts as a certificate of another CA.
        let untrusted = add(&[("a", Verdict::Untrusted)]);
        assert_eq!(untrusted, ProbeSummary { is_other_ca_served: true, untrusted: true, ..NO_RESULTS });
        // An expired certificate counts as a certificate of another CA. An expiring one does not.
        assert!(add(&[("a", Verdict::Invalid(Defect::Expired))]).is_other_ca_served);
        assert!(!add(&[("a", Verdict::Invalid(Defect::Expiring))]).is_other_ca_served);
        assert_eq!(
            add(&[("a", Verdict::Unreachable(Unreachable::Timeout))]),
            ProbeSummary { unreachable: 1, ..NO_RESULTS }
        );
    }
}
