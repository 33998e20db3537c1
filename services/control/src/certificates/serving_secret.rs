//! Follows the Secret with the serving certificate, for a replica.
//!
//! It starts with the Secret as it is now: a list without a `resourceVersion`, which the API server answers from etcd's
//! majority and not from a cache. Otherwise a replica could start with a certificate that is no longer trusted. Then it
//! watches.
//!
//! Each new pair is checked, and an invalid pair is not passed on: the last valid one stays. It also stays when the
//! Secret is deleted or the API server is unavailable.
//!
//! A pair of an older CA than that of the served certificate is rejected too. It comes from a restored backup, and API
//! servers may no longer trust its CA. The controller replaces it within seconds. If the pair stays for ten minutes,
//! the controller wants it: everything about newer CAs is lost.

use std::time::Duration;

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::certificates::authority::serving::{GENERATION_ANNOTATION, judge, pair};
use crate::certificates::authority::{EPOCH_ANNOTATION, Fit, Issuer, Reason, Unfit, epoch};
use crate::certificates::rotation::Generation;
use crate::client::watch_object;

/// How often a pair that is not valid yet is checked again.
const AGAIN: Duration = Duration::from_secs(10);

/// How long a pair of an older CA is rejected.
const OLDER_FOR: Duration = Duration::from_mins(10);

/// The name of the watched object in log lines.
const WHAT: &str = "the Secret with the serving certificate";

/// The Secret with a replica's serving certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedSecret {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The names that the certificate must have.
    pub names: Vec<String>,
}

/// A change of the Secret.
#[derive(Debug)]
pub enum News {
    /// A pair that can be served.
    Fit(Box<ServingPair>),
    /// An invalid pair; the last valid one stays. Reported once, until the Secret changes.
    Unfit(Unfit),
    /// A pair of an older CA than that of the served certificate. Reported once, until the Secret changes.
    Older {
        /// The number of the CA that signed the served certificate.
        served: Generation,
        /// The number of the CA that signed the certificate in the Secret.
        offered: Generation,
    },
    /// The Secret does not exist. Reported once, until it is created.
    Gone,
}

/// A pair that can be served.
pub struct ServingPair {
    /// The certificate chain, PEM.
    pub certificate: Vec<u8>,
    /// The key, PEM.
    pub key: Vec<u8>,
    /// The checked serving certificate.
    pub fit: Fit,
    /// The epoch of the record for which it was written, if annotated.
    pub epoch: Option<u64>,
    /// The number of the CA that signed it, if annotated.
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
struct Seen {
    /// The Secret, if its existence was reported.
    secret: Option<Secret>,
    /// Why it was rejected.
    refused: Option<Refused>,
    told_gone: bool,
    /// The last pair that could be served.
    served: Option<Served>,
}

struct Served {
    issuer: Issuer,
    not_after: Timestamp,
}

/// Why a pair was rejected.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refused {
    Unfit(Reason),
    /// It is of an older CA; with the time when it was first seen.
    Older(Instant),
}

impl WatchedSecret {
    /// Follows the Secret until `stop`, and reports its changes.
    pub async fn follow(self, client: Client, stop: CancellationToken, tell: impl FnMut(News)) {
        let api = Api::<Secret>::namespaced(client, &self.namespace);
        self.take(watch_object::watch(api, WHAT, &self.name), Timestamp::now, stop, tell).await;
    }

    /// Runs [`WatchedSecret::follow`] with a given watch and clock.
    async fn take(
        &self,
        states: impl Stream<Item = watch_object::Seen<Secret>> + Send,
        now: impl Fn() -> Timestamp,
        stop: CancellationToken,
        mut tell: impl FnMut(News),
    ) {
        let mut states = std::pin::pin!(states);
        let mut again = tokio::time::interval(AGAIN);
        let mut seen = Seen::default();
        loop {
            let state = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                state = states.next() => state,
                _ = again.tick(), if seen.may_pass() => {
                    seen.again(self, now()).into_iter().for_each(&mut tell);
                    continue;
                }
            };
            let news = match state {
                Some(watch_object::Seen::Is(Some(secret))) => seen.change(*secret, self, now()),
                Some(watch_object::Seen::Is(None)) => seen.gone(),
                // The last pair stays.
                Some(watch_object::Seen::Forbidden) => continue,
                // A watch does not end; if it did, the last pair would stay.
                None => return stop.cancelled().await,
            };
            news.into_iter().for_each(&mut tell);
        }
    }
}

impl Seen {
    fn change(&mut self, secret: Secret, watched: &WatchedSecret, now: Timestamp) -> Option<News> {
        if self.secret.as_ref().is_some_and(|seen| seen.data == secret.data) {
            return None;
        }
        self.told_gone = false;
        self.refused = None;
        let news = self.compared(judged(&secret, watched, now), now);
        self.secret = Some(secret);
        Some(news)
    }

    /// Whether a rejected pair may become acceptable with time.
    fn may_pass(&self) -> bool {
        matches!(self.refused, Some(Refused::Unfit(Reason::NotYet) | Refused::Older(_)))
    }

    /// Checks a rejected pair again: it may have become valid, or the controller may want it. An unchanged rejection is
    /// not reported again.
    fn again(&mut self, watched: &WatchedSecret, now: Timestamp) -> Option<News> {
        let news = judged(self.secret.as_ref()?, watched, now);
        let before = self.refused;
        let news = self.compared(news, now);
        (before != self.refused).then_some(news)
    }

    fn gone(&mut self) -> Option<News> {
        (self.secret, self.refused) = (None, None);
        (!std::mem::replace(&mut self.told_gone, true)).then_some(News::Gone)
    }

    /// The same news, except that a pair of an older CA is rejected.
    fn compared(&mut self, news: News, now: Timestamp) -> News {
        let pair = match news {
            News::Fit(pair) => pair,
            News::Unfit(unfit) => {
                self.refused = Some(Refused::Unfit(unfit.reason));
                return News::Unfit(unfit);
            }
            news => return news,
        };
        let issuer = Issuer::of(&pair.fit.leaf);
        if let (Some(Served { issuer: served, not_after }), Some(offered)) = (&self.served, &issuer) {
            let since = match self.refused {
                Some(Refused::Older(since)) => since,
                _ => Instant::now(),
            };
            let is_of_same_release = (&served.namespace, &served.release) == (&offered.namespace, &offered.release);
            let is_older = is_of_same_release && !may_replace(served.generation, offered.generation);
            if is_older && *not_after > now && since.elapsed() < OLDER_FOR {
                self.refused = Some(Refused::Older(since));
                return News::Older { served: served.generation, offered: offered.generation };
            }
        }
        self.refused = None;
        self.served = issuer.map(|issuer| Served { issuer, not_after: pair.fit.not_after });
        News::Fit(pair)
    }
}

fn judged(secret: &Secret, watched: &WatchedSecret, now: Timestamp) -> News {
    let fit = match judge(secret, &watched.names, now) {
        Ok(fit) => fit,
        Err(unfit) => return News::Unfit(unfit),
    };
    let (certificate, key) = pair(secret);
    let annotation = |key| secret.metadata.annotations.as_ref().and_then(|all| all.get(key));
    News::Fit(Box::new(ServingPair {
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
    use k8s_openapi::ByteString;
    use kube::runtime::watcher::{self, Event};

    use super::*;
    use crate::certificates::authority::{Lifetimes, Making, SystemRandomness};
    use crate::release::{DEFAULT_CLUSTER_DOMAIN, Release};

    const DAY: Duration = Duration::from_hours(24);

    fn release() -> Release {
        Release::new("pillion", "pillion-system", DEFAULT_CLUSTER_DOMAIN).unwrap()
    }

    fn noon() -> Timestamp {
        "2026-11-21T12:00:00Z".parse().unwrap()
    }

    /// A Secret with a new serving certificate of this time.
    fn secret(now: Timestamp, epoch: u64) -> Secret {
        signed(Generation(4), now, epoch)
    }

    fn signed(by: Generation, now: Timestamp, epoch: u64) -> Secret {
        let (release, lifetimes, mut random) = (release(), Lifetimes::default(), SystemRandomness);
        let mut making = Making { release: &release, lifetimes: &lifetimes, now, random: &mut random };
        let authority = making.authority(by, &[]).unwrap();
        making.leaf(&authority, &release.server_names()).unwrap().secret(&release, epoch, None)
    }

    fn without_key(secret: &Secret) -> Secret {
        let mut secret = secret.clone();
        secret.data.as_mut().unwrap().insert("tls.key".to_owned(), ByteString(b"broken".to_vec()));
        secret
    }

    /// One short string for each report.
    async fn told(events: Vec<watcher::Result<Event<Secret>>>, now: impl Fn() -> Timestamp) -> Vec<String> {
        let [name, _] = release().server_names();
        let watched = WatchedSecret { namespace: "n".to_owned(), name: "s".to_owned(), names: vec![name] };
        let told = Arc::new(Mutex::new(Vec::new()));
        let (stop, lines) = (CancellationToken::new(), Arc::clone(&told));
        let tell = move |news| {
            lines.lock().unwrap().push(match news {
                News::Fit(pair) => format!("fit {:?} {:?}", pair.epoch, pair.generation),
                News::Unfit(unfit) => unfit.reason.as_str().to_owned(),
                News::Older { served, offered } => format!("{} older than {}", offered.0, served.0),
                News::Gone => "gone".to_owned(),
            });
        };
        let end = stop.clone();
        // Time advances automatically, as the clock of the test stands still.
        let ending = async move {
            tokio::time::sleep(Duration::from_mins(1)).await;
            end.cancel();
        };
        let states = watch_object::told(stream::iter(events).chain(stream::pending()), WHAT, "s");
        tokio::join!(watched.take(states, now, stop, tell), ending);
        told.lock().unwrap().clone()
    }

    fn cut_off() -> watcher::Result<Event<Secret>> {
        Err(watcher::Error::NoResourceVersion)
    }

    #[tokio::test(start_paused = true)]
    async fn each_content_is_judged_once_and_told_as_it_comes() {
        let (first, second) = (secret(noon(), 1), secret(noon(), 2));
        let mut touched = first.clone();
        touched.metadata.resource_version = Some("2".to_owned());
        let events = vec![
            Ok(Event::Init),
            Ok(Event::InitApply(first.clone())),
            Ok(Event::InitDone),
            Ok(Event::Apply(touched)),
            cut_off(),
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
        assert_eq!(told(events, noon).await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_is_cut_off_says_nothing() {
        let first = secret(noon(), 1);
        let events = vec![
            Ok(Event::Init),
            Ok(Event::InitApply(first.clone())),
            cut_off(),
            Ok(Event::Init),
            Ok(Event::InitDone),
            Ok(Event::Apply(first)),
        ];
        assert_eq!(told(events, noon).await, ["gone", "fit Some(1) Some(\"4\")"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_valid_yet_is_judged_again_and_told_when_it_is() {
        let began = Instant::now();
        let early = Duration::from_mins(125);
        // After half a minute, the start of its validity is near enough.
        let now = move || noon() - early - Duration::from_secs(30) + began.elapsed();
        let events = vec![Ok(Event::Apply(secret(noon(), 1)))];
        assert_eq!(told(events, now).await, ["not_yet", "fit Some(1) Some(\"4\")"]);
    }

    #[tokio::test(start_paused = true)]
    async fn certificate_of_an_older_authority_is_refused() {
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
        assert_eq!(told(restored, noon).await, [fit(9, 5), older(), "gone".to_owned(), older(), fit(12, 6)]);
        // A replica without a certificate accepts it.
        assert_eq!(told(vec![Ok(Event::Apply(old.clone()))], noon).await, [fit(3, 4)]);
        // An expired certificate is no reason to reject an older one.
        let late = std::sync::atomic::AtomicBool::new(false);
        let events = vec![Ok(Event::Apply(new)), Ok(Event::Apply(signed(Generation(4), noon() + 20 * DAY, 3)))];
        let now = || if late.swap(true, std::sync::atomic::Ordering::Relaxed) { noon() + 20 * DAY } else { noon() };
        assert_eq!(told(events, now).await, [fit(9, 5), fit(3, 4)]);
    }

    #[tokio::test(start_paused = true)]
    async fn older_certificate_that_stays_is_served_after_a_while() {
        let [name, _] = release().server_names();
        let watched = WatchedSecret { namespace: "n".to_owned(), name: "s".to_owned(), names: vec![name] };
        let mut seen = Seen::default();
        seen.change(signed(Generation(5), noon(), 9), &watched, noon());
        let news = seen.change(signed(Generation(4), noon(), 1), &watched, noon());
        assert!(matches!(news, Some(News::Older { .. })));
        tokio::time::advance(OLDER_FOR.saturating_sub(AGAIN)).await;
        assert!(seen.may_pass() && seen.again(&watched, noon()).is_none());
        tokio::time::advance(AGAIN).await;
        assert!(matches!(seen.again(&watched, noon()), Some(News::Fit(_))));
        assert!(!seen.may_pass());
    }

    #[tokio::test(start_paused = true)]
    async fn it_begins_with_the_secret_as_it_is_and_not_as_a_cache_has_it() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (stop, seen) = (CancellationToken::new(), Arc::clone(&asked));
        let end = stop.clone();
        let answer = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            seen.lock().unwrap().push(request.uri().to_string());
            // The list; the watch never follows.
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
        watched.follow(Client::new(answer, "n"), stop, |news| assert!(matches!(news, News::Gone), "{news:?}")).await;
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
    fn a_key_is_not_shown() {
        let secret = secret(noon(), 1);
        let [name, _] = release().server_names();
        let watched = WatchedSecret { namespace: "n".to_owned(), name: "s".to_owned(), names: vec![name] };
        let shown = format!("{:?}", judged(&secret, &watched, noon()));
        assert!(shown.contains("not_after") && !shown.contains("key"), "{shown}");
    }
}
