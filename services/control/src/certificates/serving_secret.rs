//! The Secret with the serving certificate of the replicas: how the leader writes and reads it ([`ServingSecret`]), and
//! how a replica follows it ([`WatchedSecret`]).
//!
//! The Secret's type is `kubernetes.io/tls`, which many tools support.
//!
//! | data key | content |
//! |---|---|
//! | `tls.crt` | the serving certificate, PEM |
//! | `tls.key` | its key, PKCS #8, PEM |
//! | `ca.crt` | the CA that signed it, PEM: a replica uses it to check that the pair is complete |
//!
//! The annotation `pillion.dev/epoch` has the epoch of the record for which the Secret was written, and
//! `pillion.dev/generation` the number of the CA. One write replaces all data and annotations, so no replica sees a key
//! without its certificate.
//!
//! # How a replica follows the Secret
//! First it lists the Secret without a `resourceVersion`. The API server reads such a list from etcd. Its cache could
//! contain a certificate that is no longer trusted. Then the replica watches the Secret.
//!
//! The replica checks each new pair, and ignores an invalid one. It continues to serve the last valid pair, even when
//! the Secret is deleted or the API server is unavailable.
//!
//! The replica also rejects a pair whose CA is older than that of the served certificate. Such a pair comes from a
//! restored backup, and API servers may no longer trust its CA. The controller usually replaces it within seconds. If
//! the pair is still there after ten minutes, the controller has lost all data about newer CAs, and the replica accepts
//! the pair. The replica also accepts it if the served certificate has expired.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ObjectMeta;
use kube::{Api, Client};
use rustls_pki_types::CertificateDer;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::certificates::ca::judge::{self, is_signed_by};
use crate::certificates::ca::{
    CaName, EPOCH_ANNOTATION, Expected, InvalidPair, KnownCas, Lifetimes, Reason, ServingMaterial, ValidCertificate,
    certificates, claimed_generation, epoch,
};
use crate::certificates::rotation::{Generation, Serving, ServingCertificate, Stored};
use crate::client::watch_object;
use crate::release::Release;

/// Time between two checks of a rejected pair that may become acceptable.
const RECHECK_INTERVAL: Duration = Duration::from_secs(10);

/// How long a pair of an older CA is rejected.
const MAX_OLDER_DURATION: Duration = Duration::from_mins(10);

/// The name of the watched object in log lines.
const OBJECT_NAME: &str = "the Secret with the serving certificate";

/// The annotation with the number of the CA that signed the certificate.
pub(crate) const GENERATION_ANNOTATION: &str = "pillion.dev/generation";

const TYPE: &str = "kubernetes.io/tls";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const CA: &str = "ca.crt";

/// The leader's view of the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServingSecret {
    /// The observed state for the rotation.
    pub stored: Stored<Serving>,
    /// The certificate, or why no replica would serve it. `None` if the Secret does not exist.
    pub judged: Option<Result<ValidCertificate, InvalidPair>>,
    /// The number of the release's CA that the certificate names as its issuer or, if the issuer is no such CA, as its
    /// subject. `None` if it names no such CA.
    pub highest: Option<Generation>,
}

/// The leader's inputs for checking the Secret.
#[derive(Clone, Copy, Debug)]
pub struct ServingInputs<'i> {
    /// The release.
    pub release: &'i Release,
    /// The CAs of the record; `None` if the record is not readable.
    pub known: Option<&'i KnownCas>,
    /// The lifetimes, which determine when the certificate is renewed.
    pub lifetimes: &'i Lifetimes,
    /// The current time.
    pub now: Timestamp,
}

impl ServingSecret {
    /// Reads the Secret. `secret` is `None` if the Secret does not exist. The certificate must have the release's own
    /// names. Additional names are ignored.
    #[must_use]
    pub fn read(secret: Option<&Secret>, judging: ServingInputs<'_>) -> Self {
        let ServingInputs { release, known, lifetimes, now } = judging;
        let Some(secret) = secret else { return Self { stored: Stored::Missing, judged: None, highest: None } };
        let names = release.server_names();
        let judged = judge(secret, &names, now);
        let certificate = judged.as_ref().ok().map(|fit| {
            let [name, _] = &names;
            let mut cas = known.into_iter().flat_map(KnownCas::cas);
            let signer = cas.find(|known| is_signed_by(fit, known.certificate(), name, now));
            let signer = signer.map(|known| known.facts.generation);
            ServingCertificate { signer, renew_at: lifetimes.renew_at(&fit.certificate, fit.not_before, fit.not_after) }
        });
        let highest = certificates(data(secret, CERTIFICATE)).first().and_then(|certificate| {
            let issuer = CaName::of_issuer(certificate).and_then(|issuer| issuer.generation_in(release));
            issuer.or_else(|| claimed_generation(release, certificate))
        });
        let written = secret.metadata.annotations.as_ref().and_then(|all| epoch(all.get(EPOCH_ANNOTATION)?));
        let stored = written.map_or(Stored::Corrupt, |epoch| Stored::Is(Serving { certificate, epoch }));
        Self { stored, judged: Some(judged), highest }
    }
}

/// Checks the pair in a Secret as a replica does: against the CA in the same Secret, if there is one.
///
/// # Errors
/// The pair cannot be served.
pub fn judge(secret: &Secret, names: &[String], now: Timestamp) -> Result<ValidCertificate, InvalidPair> {
    let trusted = cas(secret)?;
    let expected = Expected { names, now, trusted: trusted.as_deref() };
    judge::judge(data(secret, CERTIFICATE), data(secret, KEY), expected)
}

fn cas(secret: &Secret) -> Result<Option<Vec<CertificateDer<'static>>>, InvalidPair> {
    let text = data(secret, CA);
    // An issuer such as cert-manager may leave `ca.crt` empty if it does not know the CA.
    if text.trim_ascii().is_empty() {
        return Ok(None);
    }
    match certificates(text) {
        found if found.is_empty() => Err(InvalidPair::new(Reason::Untrusted, "there is no certificate in ca.crt")),
        found => Ok(Some(found)),
    }
}

/// Returns the certificate and the key as stored in the Secret; empty if they are missing.
#[must_use]
pub fn pair(secret: &Secret) -> (&[u8], &[u8]) {
    (data(secret, CERTIFICATE), data(secret, KEY))
}

pub(crate) fn data<'s>(secret: &'s Secret, key: &str) -> &'s [u8] {
    secret.data.as_ref().and_then(|data| data.get(key)).map_or(&[], |value| &value.0)
}

impl ServingMaterial {
    /// Builds the Secret to write for this epoch: a new one, or the existing one with new data. The existing
    /// `resourceVersion` is kept, so the write fails if the Secret has changed.
    #[must_use]
    pub fn secret(&self, release: &Release, epoch: u64, existing: Option<&Secret>) -> Secret {
        let fresh = || Secret {
            metadata: ObjectMeta {
                name: Some(release.serving_secret()),
                namespace: Some(release.namespace().to_owned()),
                ..ObjectMeta::default()
            },
            type_: Some(TYPE.to_owned()),
            ..Secret::default()
        };
        let mut secret = existing.cloned().unwrap_or_else(fresh);
        let annotations = secret.metadata.annotations.get_or_insert_default();
        annotations.insert(EPOCH_ANNOTATION.to_owned(), epoch.to_string());
        annotations.insert(GENERATION_ANNOTATION.to_owned(), self.signer.0.to_string());
        let texts = [(CERTIFICATE, self.pem()), (KEY, self.key().pem().to_owned()), (CA, self.ca_pem())];
        let data = texts.map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())));
        secret.data = Some(BTreeMap::from(data));
        secret
    }
}

/// The Secret with a replica's serving certificate, and the names that the certificate must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedSecret {
    /// The namespace of the Secret.
    pub namespace: String,
    /// The name of the Secret.
    pub name: String,
    /// The names that the certificate must have.
    pub names: Vec<String>,
}

/// A change of the Secret that the replica must handle.
#[derive(Debug)]
pub enum SecretChange {
    /// The Secret has a pair that can be served.
    Valid(Box<ServingPair>),
    /// The pair is invalid, and the replica continues to serve the last valid one. Reported again only if the Secret's
    /// data or the reason changes.
    Invalid(InvalidPair),
    /// The CA of the pair is older than that of the served certificate. Reported only once until the Secret changes.
    Older {
        /// The number of the CA that signed the served certificate.
        served: Generation,
        /// The number of the CA that signed the certificate in the Secret.
        offered: Generation,
    },
    /// The Secret does not exist. Reported only once until the Secret is created.
    Gone,
}

/// A pair that can be served.
pub struct ServingPair {
    /// The certificate chain, PEM.
    pub certificate: Vec<u8>,
    /// The key, PEM.
    pub key: Vec<u8>,
    /// The checked serving certificate.
    pub fit: ValidCertificate,
    /// The epoch of the record for which the pair was written, if the Secret has the annotation.
    pub epoch: Option<u64>,
    /// The number of the CA that signed the certificate, if the Secret has the annotation.
    pub generation: Option<String>,
}

impl std::fmt::Debug for ServingPair {
    /// Omits the key.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { fit, epoch, generation, .. } = self;
        let mut shown = formatter.debug_struct("ServingPair");
        shown.field("fit", fit).field("epoch", epoch).field("generation", generation).finish_non_exhaustive()
    }
}

/// Whether a certificate of CA `offered` may replace one of CA `served`. CA numbers grow in the order of creation.
#[must_use]
pub fn may_replace(served: Generation, offered: Generation) -> bool {
    offered >= served
}

/// The last reported state of the Secret.
#[derive(Default)]
struct ReportedState {
    /// The last reported Secret; `None` if no Secret was reported, or if it was deleted since.
    secret: Option<Secret>,
    /// Why the pair in the Secret was rejected; `None` if it was not.
    rejection: Option<Rejection>,
    gone_reported: bool,
    /// The issuer of the last accepted certificate, and the end of its validity. `None` if no pair was accepted, or if
    /// the issuer is not a CA of Pillion.
    served: Option<Served>,
}

struct Served {
    issuer: CaName,
    not_after: Timestamp,
}

/// Why a pair was rejected.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rejection {
    Invalid(Reason),
    /// The CA of the pair is older than that of the served certificate. The value is the time when the pair was first
    /// rejected for this reason.
    Older(Instant),
}

impl WatchedSecret {
    /// Watches the Secret until `stop`, and reports its changes.
    pub async fn follow(self, client: Client, stop: CancellationToken, report: impl FnMut(SecretChange)) {
        let api = Api::<Secret>::namespaced(client, &self.namespace);
        self.run(watch_object::watch(api, OBJECT_NAME, &self.name), Timestamp::now, stop, report).await;
    }

    /// Runs [`WatchedSecret::follow`] with the given watch and clock.
    async fn run(
        &self,
        states: impl Stream<Item = watch_object::Observation<Secret>> + Send,
        now: impl Fn() -> Timestamp,
        stop: CancellationToken,
        mut report: impl FnMut(SecretChange),
    ) {
        let mut states = std::pin::pin!(states);
        let mut recheck = tokio::time::interval(RECHECK_INTERVAL);
        let mut seen = ReportedState::default();
        loop {
            let state = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                state = states.next() => state,
                _ = recheck.tick(), if seen.may_become_valid() => {
                    seen.recheck(self, now()).into_iter().for_each(&mut report);
                    continue;
                }
            };
            let news = match state {
                Some(watch_object::Observation::State(Some(secret))) => seen.change(*secret, self, now()),
                Some(watch_object::Observation::State(None)) => seen.gone(),
                // The replica continues to serve the last pair.
                Some(watch_object::Observation::Forbidden) => continue,
                // The stream never ends. If it did, the replica would continue to serve the last pair.
                None => return stop.cancelled().await,
            };
            news.into_iter().for_each(&mut report);
        }
    }
}

impl ReportedState {
    fn change(&mut self, secret: Secret, watched: &WatchedSecret, now: Timestamp) -> Option<SecretChange> {
        if self.secret.as_ref().is_some_and(|seen| seen.data == secret.data) {
            return None;
        }
        self.gone_reported = false;
        self.rejection = None;
        let news = self.compare_with_served(judged(&secret, watched, now), now);
        self.secret = Some(secret);
        Some(news)
    }

    /// Whether a rejected pair may become acceptable later.
    fn may_become_valid(&self) -> bool {
        matches!(self.rejection, Some(Rejection::Invalid(Reason::NotYet) | Rejection::Older(_)))
    }

    /// Checks a rejected pair again. Its validity may have begun, or it may have been in the Secret for long enough. An
    /// unchanged rejection is not reported again.
    fn recheck(&mut self, watched: &WatchedSecret, now: Timestamp) -> Option<SecretChange> {
        let news = judged(self.secret.as_ref()?, watched, now);
        let before = self.rejection;
        let news = self.compare_with_served(news, now);
        (before != self.rejection).then_some(news)
    }

    fn gone(&mut self) -> Option<SecretChange> {
        (self.secret, self.rejection) = (None, None);
        (!std::mem::replace(&mut self.gone_reported, true)).then_some(SecretChange::Gone)
    }

    /// Returns `news` unchanged, or [`SecretChange::Older`] instead of a valid pair of an older CA that must not be
    /// served yet.
    fn compare_with_served(&mut self, news: SecretChange, now: Timestamp) -> SecretChange {
        let pair = match news {
            SecretChange::Valid(pair) => pair,
            SecretChange::Invalid(invalid) => {
                self.rejection = Some(Rejection::Invalid(invalid.reason));
                return SecretChange::Invalid(invalid);
            }
            news => return news,
        };
        let issuer = CaName::of_issuer(&pair.fit.certificate);
        if let (Some(Served { issuer: served, not_after }), Some(offered)) = (&self.served, &issuer) {
            let since = match self.rejection {
                Some(Rejection::Older(since)) => since,
                _ => Instant::now(),
            };
            let is_of_same_release = (&served.namespace, &served.release) == (&offered.namespace, &offered.release);
            let is_older = is_of_same_release && !may_replace(served.generation, offered.generation);
            if is_older && *not_after > now && since.elapsed() < MAX_OLDER_DURATION {
                self.rejection = Some(Rejection::Older(since));
                return SecretChange::Older { served: served.generation, offered: offered.generation };
            }
        }
        self.rejection = None;
        self.served = issuer.map(|issuer| Served { issuer, not_after: pair.fit.not_after });
        SecretChange::Valid(pair)
    }
}

fn judged(secret: &Secret, watched: &WatchedSecret, now: Timestamp) -> SecretChange {
    let fit = match judge(secret, &watched.names, now) {
        Ok(fit) => fit,
        Err(invalid) => return SecretChange::Invalid(invalid),
    };
    let (certificate, key) = pair(secret);
    let annotation = |key| secret.metadata.annotations.as_ref().and_then(|all| all.get(key));
    SecretChange::Valid(Box::new(ServingPair {
        certificate: certificate.to_vec(),
        key: key.to_vec(),
        fit,
        epoch: annotation(EPOCH_ANNOTATION).and_then(|text| epoch(text)),
        generation: annotation(GENERATION_ANNOTATION).cloned(),
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use futures::stream;
    use kube::runtime::watcher::{self, Event};

    use super::*;
    use crate::certificates::ca::Issuing;
    use crate::release::DEFAULT_CLUSTER_DOMAIN;

    const DAY: Duration = Duration::from_hours(24);

    fn release() -> Release {
        Release::new("pillion", "pillion-system", DEFAULT_CLUSTER_DOMAIN).unwrap()
    }

    fn noon() -> Timestamp {
        "2026-11-21T12:00:00Z".parse().unwrap()
    }

    /// Returns a Secret with a serving certificate that CA 4 signed at this time.
    fn secret(now: Timestamp, epoch: u64) -> Secret {
        signed(Generation(4), now, epoch)
    }

    fn signed(by: Generation, now: Timestamp, epoch: u64) -> Secret {
        let (release, lifetimes) = (release(), Lifetimes::default());
        let issuing = Issuing { release: &release, lifetimes: &lifetimes, now };
        let ca = issuing.ca(by).unwrap();
        issuing.serving_certificate(&ca, &release.server_names()).unwrap().secret(&release, epoch, None)
    }

    fn without_key(secret: &Secret) -> Secret {
        let mut secret = secret.clone();
        secret.data.as_mut().unwrap().insert("tls.key".to_owned(), ByteString(b"broken".to_vec()));
        secret
    }

    /// Returns one string for each report.
    async fn reports(events: Vec<watcher::Result<Event<Secret>>>, now: impl Fn() -> Timestamp) -> Vec<String> {
        let [name, _] = release().server_names();
        let watched = WatchedSecret { namespace: "n".to_owned(), name: "s".to_owned(), names: vec![name] };
        let reported = Arc::new(Mutex::new(Vec::new()));
        let (stop, lines) = (CancellationToken::new(), Arc::clone(&reported));
        let report = move |news| {
            lines.lock().unwrap().push(match news {
                SecretChange::Valid(pair) => format!("fit {:?} {:?}", pair.epoch, pair.generation),
                SecretChange::Invalid(invalid) => invalid.reason.as_str().to_owned(),
                SecretChange::Older { served, offered } => format!("{} older than {}", offered.0, served.0),
                SecretChange::Gone => "gone".to_owned(),
            });
        };
        let end = stop.clone();
        // The paused clock advances automatically while all tasks wait.
        let ending = async move {
            tokio::time::sleep(Duration::from_mins(1)).await;
            end.cancel();
        };
        let states = watch_object::observations(stream::iter(events).chain(stream::pending()), OBJECT_NAME, "s");
        tokio::join!(watched.run(states, now, stop, report), ending);
        reported.lock().unwrap().clone()
    }

    fn interruption() -> watcher::Result<Event<Secret>> {
        Err(watcher::Error::NoResourceVersion)
    }

    #[tokio::test(start_paused = true)]
    async fn reports_each_content_once() {
        let (first, second) = (secret(noon(), 1), secret(noon(), 2));
        let mut touched = first.clone();
        touched.metadata.resource_version = Some("2".to_owned());
        let events = vec![
            Ok(Event::Init),
            Ok(Event::InitApply(first.clone())),
            Ok(Event::InitDone),
            Ok(Event::Apply(touched)),
            interruption(),
            Ok(Event::Init),
            Ok(Event::InitApply(first.clone())),
            Ok(Event::InitDone),
            Ok(Event::Apply(without_key(&first))),
            Ok(Event::Apply(without_key(&first))),
            Ok(Event::Apply(second.clone())),
            Ok(Event::Delete(second.clone())),
            Ok(Event::Init),
            Ok(Event::InitDone),
            Ok(Event::Apply(second)),
        ];
        let fit = |epoch| format!("fit Some({epoch}) Some(\"4\")");
        let expected = [fit(1), "no_key".to_owned(), fit(2), "gone".to_owned(), fit(2)];
        assert_eq!(reports(events, noon).await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn interrupted_list_reports_nothing() {
        let first = secret(noon(), 1);
        let events = vec![
            Ok(Event::Init),
            Ok(Event::InitApply(first.clone())),
            interruption(),
            Ok(Event::Init),
            Ok(Event::InitDone),
            Ok(Event::Apply(first)),
        ];
        assert_eq!(reports(events, noon).await, ["gone", "fit Some(1) Some(\"4\")"]);
    }

    #[tokio::test(start_paused = true)]
    async fn future_certificate_is_checked_again() {
        let began = Instant::now();
        let early = Duration::from_mins(125);
        // The certificate's validity begins too far in the future. Half a minute later, the certificate is acceptable.
        let now = move || noon() - early - Duration::from_secs(30) + began.elapsed();
        let events = vec![Ok(Event::Apply(secret(noon(), 1)))];
        assert_eq!(reports(events, now).await, ["not_yet", "fit Some(1) Some(\"4\")"]);
    }

    #[tokio::test(start_paused = true)]
    async fn rejects_certificate_of_older_ca() {
        let (old, new) = (signed(Generation(4), noon(), 3), signed(Generation(5), noon(), 9));
        let newer = signed(Generation(6), noon(), 12);
        let restored = vec![
            Ok(Event::Apply(new.clone())),
            Ok(Event::Apply(old.clone())),
            Ok(Event::Delete(old.clone())),
            Ok(Event::Apply(old.clone())),
            Ok(Event::Apply(newer)),
        ];
        let fit = |epoch, generation| format!("fit Some({epoch}) Some(\"{generation}\")");
        let older = || "4 older than 5".to_owned();
        assert_eq!(reports(restored, noon).await, [fit(9, 5), older(), "gone".to_owned(), older(), fit(12, 6)]);
        // A replica without a certificate accepts the old pair.
        assert_eq!(reports(vec![Ok(Event::Apply(old.clone()))], noon).await, [fit(3, 4)]);
        // Once the served certificate has expired, a pair of an older CA is accepted.
        let late = std::sync::atomic::AtomicBool::new(false);
        let events = vec![Ok(Event::Apply(new)), Ok(Event::Apply(signed(Generation(4), noon() + 20 * DAY, 3)))];
        let now = || if late.swap(true, std::sync::atomic::Ordering::Relaxed) { noon() + 20 * DAY } else { noon() };
        assert_eq!(reports(events, now).await, [fit(9, 5), fit(3, 4)]);
    }

    #[tokio::test(start_paused = true)]
    async fn serves_older_certificate_that_stays() {
        let [name, _] = release().server_names();
        let watched = WatchedSecret { namespace: "n".to_owned(), name: "s".to_owned(), names: vec![name] };
        let mut seen = ReportedState::default();
        seen.change(signed(Generation(5), noon(), 9), &watched, noon());
        let news = seen.change(signed(Generation(4), noon(), 1), &watched, noon());
        assert!(matches!(news, Some(SecretChange::Older { .. })));
        tokio::time::advance(MAX_OLDER_DURATION.saturating_sub(RECHECK_INTERVAL)).await;
        assert!(seen.may_become_valid() && seen.recheck(&watched, noon()).is_none());
        tokio::time::advance(RECHECK_INTERVAL).await;
        assert!(matches!(seen.recheck(&watched, noon()), Some(SecretChange::Valid(_))));
        assert!(!seen.may_become_valid());
    }

    #[tokio::test(start_paused = true)]
    async fn starts_with_uncached_list() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (stop, seen) = (CancellationToken::new(), Arc::clone(&asked));
        let end = stop.clone();
        let answer = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            seen.lock().unwrap().push(request.uri().to_string());
            // Stop after the list and the first watch.
            if seen.lock().unwrap().len() > 1 {
                end.cancel();
            }
            let list = r#"{"kind":"SecretList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}"#;
            std::future::ready(Ok::<_, kube::Error>(http::Response::new(kube::client::Body::from(
                list.as_bytes().to_vec(),
            ))))
        });
        let watched =
            WatchedSecret { namespace: "n".to_owned(), name: "pillion-serving".to_owned(), names: Vec::new() };
        watched
            .follow(Client::new(answer, "n"), stop, |news| assert!(matches!(news, SecretChange::Gone), "{news:?}"))
            .await;
        let asked = asked.lock().unwrap();
        let [list, watch, ..] = asked.as_slice() else { panic!("{asked:?}") };
        for request in [list, watch] {
            assert!(request.starts_with("/api/v1/namespaces/n/secrets?"), "{request}");
            assert!(request.contains("fieldSelector=metadata.name%3Dpillion-serving"), "{request}");
        }
        assert!(!list.contains("resourceVersion") && !list.contains("watch="), "{list}");
        assert!(watch.contains("watch=true") && watch.contains("resourceVersion=7"), "{watch}");
    }

    #[test]
    fn debug_output_omits_key() {
        let secret = secret(noon(), 1);
        let [name, _] = release().server_names();
        let watched = WatchedSecret { namespace: "n".to_owned(), name: "s".to_owned(), names: vec![name] };
        let shown = format!("{:?}", judged(&secret, &watched, noon()));
        assert!(shown.contains("not_after") && !shown.contains("key"), "{shown}");
    }
}
