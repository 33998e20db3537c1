//! Checks whether the local clock and the API server's clock agree.
//!
//! The controller uses the local clock to create and check certificates. While this clock is wrong, the controller
//! creates no certificate, and takes no step that depends on an age. The API server sends its time with every response
//! (`Date` header). The time is stored with the *monotonic* time of the request, so a step of the local clock is
//! detected at once. The median of several responses is used, so a few responses from an API server with a wrong clock
//! do not change the result.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderMap, Request, header};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::client::Body;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Settings of the comparison. Tests scale all durations down.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Clocks agree if their difference is below this value.
    pub tolerance: Duration,
    /// Maximum number of recent responses that are used.
    pub answers: usize,
    /// Maximum age of a response that is used.
    pub max_age: Duration,
    /// Time between two requests.
    pub interval: Duration,
    /// Timeout of a request. The time in a slower response would be too inexact.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tolerance: Duration::from_mins(5),
            answers: 5,
            max_age: Duration::from_mins(10),
            interval: Duration::from_secs(30),
            timeout: Duration::from_secs(3),
        }
    }
}

/// Recent responses.
#[derive(Debug, Default)]
struct Answers(VecDeque<Answer>);

/// The API server's time in a response, and the monotonic time in the middle between the request and the response.
#[derive(Clone, Copy, Debug)]
struct Answer {
    date: Timestamp,
    at: Instant,
}

/// Compares the local clock with the API server's. Clones share the state.
#[derive(Clone, Debug)]
pub struct Clock {
    settings: Arc<Settings>,
    answers: Arc<Mutex<Answers>>,
    metrics: ClockMetrics,
}

/// A reading of the local clock: the time, and whether it can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The local time.
    pub now: Timestamp,
    /// The latest possible time on a clock that agrees with the local one.
    pub latest: Timestamp,
    /// Whether the API server's clock agrees with `now`.
    pub agrees: bool,
}

/// Gauges of the comparison. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ClockMetrics {
    difference: Gauge<f64, AtomicU64>,
    agrees: Gauge,
}

impl ClockMetrics {
    /// Creates the metrics and registers them with the prefix `pillion_controller`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("pillion_controller");
        let text = "Time by which this clock is ahead of the API server's: the median of the last responses";
        registry.register_with_unit("clock_difference", text, Unit::Seconds, metrics.difference.clone());
        let text = "1 if this clock and the API server's agree. Otherwise no certificate is created";
        registry.register("clock_agrees", text, metrics.agrees.clone());
        metrics
    }

    /// Sets the gauges to 0 when leadership ends.
    pub fn reset(&self) {
        self.difference.set(0.0);
        self.agrees.set(0);
    }
}

impl Answers {
    fn add(&mut self, answer: Answer, settings: &Settings) {
        self.0.push_back(answer);
        while self.0.len() > settings.answers.max(1) {
            self.0.pop_front();
        }
    }

    /// How far `wall` is ahead of the API server's clock; `None` without recent responses.
    fn difference(&self, wall: Timestamp, now: Instant, settings: &Settings) -> Option<SignedDuration> {
        let ages = self.0.iter().map(|answer| (answer.date, now.saturating_duration_since(answer.at)));
        let mut all: Vec<_> = ages
            .filter(|(_, age)| *age < settings.max_age)
            .filter_map(|(date, age)| Some(wall.duration_since(date.checked_add(age).ok()?)))
            .collect();
        all.sort_unstable();
        // An even number of responses has two middle differences. Use the one with the larger absolute value.
        let (low, high) = (all.get(all.len().saturating_sub(1) / 2)?, all.get(all.len() / 2)?);
        Some(if low.abs() > high.abs() { *low } else { *high })
    }
}

impl Clock {
    /// Creates a clock that has received no response yet. [`Self::agrees`] returns false until the first response.
    #[must_use]
    pub fn new(settings: Settings, metrics: ClockMetrics) -> Self {
        Self { settings: Arc::new(settings), answers: Arc::default(), metrics }
    }

    /// Whether the clocks agree now. They do not if the API server has not responded for [`Settings::max_age`].
    #[must_use]
    pub fn agrees(&self) -> bool {
        self.read().agrees
    }

    /// Returns the time together with the result of the check. If the caller read them separately, the clock could be
    /// corrected in between: the caller would use the wrong time, although the check succeeds.
    #[must_use]
    pub fn read(&self) -> Reading {
        let (now, at) = (Timestamp::now(), Instant::now());
        let latest = now.checked_add(self.settings.tolerance).unwrap_or(now);
        Reading { now, latest, agrees: self.at(now, at) }
    }

    /// How far the local clock is ahead of the API server's; `None` without recent responses.
    #[must_use]
    pub fn difference(&self) -> Option<SignedDuration> {
        self.lock().difference(Timestamp::now(), Instant::now(), &self.settings)
    }

    /// Returns the API server's time. API servers check certificates against it. Returns the local time if the API
    /// server's time is unknown.
    #[must_use]
    pub fn api_servers(&self) -> Timestamp {
        let (now, at) = (Timestamp::now(), Instant::now());
        let difference = self.lock().difference(now, at, &self.settings).unwrap_or_default();
        now.checked_sub(difference).unwrap_or(now)
    }

    fn at(&self, wall: Timestamp, now: Instant) -> bool {
        let difference = self.lock().difference(wall, now, &self.settings);
        let agrees = difference.is_some_and(|difference| difference.unsigned_abs() < self.settings.tolerance);
        self.metrics.agrees.set(i64::from(agrees));
        if let Some(difference) = difference {
            self.metrics.difference.set(difference.as_secs_f64());
        }
        agrees
    }

    /// Records the time in a response of the API server. `sent` is when the request was sent. A response without a
    /// valid `Date` header is ignored.
    pub(crate) fn record_response(&self, headers: &HeaderMap, sent: Instant, received: Instant) {
        let Some(date) = headers.get(header::DATE).and_then(|date| date.to_str().ok()).and_then(date) else { return };
        let at = sent + received.saturating_duration_since(sent) / 2;
        self.lock().add(Answer { date, at }, &self.settings);
    }

    /// Sends one request to the API server, and records the time in the response.
    ///
    /// # Errors
    /// The request failed or timed out. Any HTTP response is used, even an error.
    pub(crate) async fn request_time(&self, client: &Client) -> kube::Result<()> {
        let request = Request::get("/version").body(Body::empty()).map_err(kube::Error::HttpError)?;
        let sent = Instant::now();
        let answer = timeout(self.settings.timeout, client.send(request)).await;
        let response = answer.map_err(|_| kube::Error::Service("no response in time".into()))??;
        self.record_response(response.headers(), sent, Instant::now());
        Ok(())
    }

    /// Sends requests to the API server until `stop`, and checks the local clock.
    pub async fn run(&self, client: Client, stop: CancellationToken) {
        let asking = async {
            let mut reported = None;
            loop {
                if let Err(error) = self.request_time(&client).await {
                    warn!(%error, "the API server's time cannot be read");
                }
                let agrees = self.agrees();
                if reported != Some(agrees) {
                    let difference = self.difference().map(|difference| difference.as_secs());
                    if agrees {
                        info!(?difference, "this clock and the API server's agree");
                    } else {
                        warn!(?difference, "this clock and the API server's differ: no certificate is created");
                    }
                    reported = Some(agrees);
                }
                // Without a recent response, send requests at short intervals, since some steps wait for the time.
                let known = self.difference().is_some();
                sleep(if known { self.settings.interval } else { self.settings.interval.min(FIRST_INTERVAL) }).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = asking => {}
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Time between two requests while there is no recent response.
const FIRST_INTERVAL: Duration = Duration::from_secs(1);

/// Parses the value of a `Date` header, such as `Sat, 21 Nov 2026 12:00:00 GMT`. `None` if it is invalid.
fn date(text: &str) -> Option<Timestamp> {
    jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use tower::service_fn;

    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// Whether `wall` agrees with these responses. Each response has its age, and the time by which it is ahead of
    /// `wall`, in minutes.
    fn agrees(answers: &[(u32, i64)]) -> bool {
        let clock = Clock::new(Settings::default(), ClockMetrics::default());
        let (wall, zero) = (time("2026-11-21T12:00:00Z"), Instant::now());
        let now = zero + 100 * MINUTE;
        for (ago, ahead) in answers {
            let date = wall - *ago * MINUTE + SignedDuration::from_mins(*ahead);
            clock.lock().add(Answer { date, at: now - *ago * MINUTE }, &clock.settings);
        }
        clock.at(wall, now)
    }

    #[test]
    fn compares_median_of_recent_responses() {
        assert!(!agrees(&[]), "without a response");
        assert!(agrees(&[(0, 0)]) && agrees(&[(3, 4)]) && agrees(&[(3, -4)]));
        assert!(!agrees(&[(3, 5)]) && !agrees(&[(3, -5)]) && !agrees(&[(0, 60 * 24 * 365)]));
        assert!(agrees(&[(3, 0), (2, 100), (1, 0)]), "one of three clocks is wrong");
        assert!(!agrees(&[(3, 0), (2, 100), (1, 90)]));
        assert!(!agrees(&[(2, 0), (1, 100)]), "one of two clocks is wrong, and it is unknown which");
        assert!(!agrees(&[(10, 0)]), "the response is too old");
        assert!(agrees(&[(10, 100), (9, 0)]));
        let latest = [(8, 100), (7, 100), (6, 100), (5, 0), (4, 0), (3, 0), (2, 0), (1, 0)];
        assert!(agrees(&latest), "only the last responses count");
    }

    #[test]
    fn clock_step_is_seen_at_once() {
        let clock = Clock::new(Settings::default(), ClockMetrics::default());
        let (wall, now) = (time("2026-11-21T12:00:00Z"), Instant::now());
        clock.lock().add(Answer { date: wall, at: now }, &clock.settings);
        assert!(clock.at(wall, now));
        assert!(clock.at(wall + 2 * MINUTE, now + 2 * MINUTE), "both clocks advance");
        assert!(!clock.at(wall + 2 * MINUTE, now + 8 * MINUTE), "the local clock was set back");
        assert!(!clock.at(wall + 10 * 365 * 24 * 60 * MINUTE, now + MINUTE));
        assert!((clock.metrics.difference.get() - (10.0 * 365.0 * 1440.0 - 1.0) * 60.0).abs() < 1.0);
        assert_eq!(clock.metrics.agrees.get(), 0);
    }

    #[test]
    fn parses_http_dates() {
        assert_eq!(date("Sat, 21 Nov 2026 12:00:00 GMT"), Some(time("2026-11-21T12:00:00Z")));
        assert_eq!(date("2026-11-21"), None);
        let clock = Clock::new(Settings::default(), ClockMetrics::default());
        let now = Instant::now();
        clock.record_response(&HeaderMap::new(), now, now);
        clock.record_response(&HeaderMap::from_iter([(header::DATE, HeaderValue::from_static("junk"))]), now, now);
        assert_eq!(clock.difference(), None);
    }

    #[tokio::test]
    async fn any_response_has_the_time() {
        let answer = service_fn(|_: Request<Body>| async {
            let response = http::Response::builder().status(403).header("date", "Sat, 21 Nov 2020 12:00:00 GMT");
            Ok::<_, kube::Error>(response.body(Body::empty()).unwrap())
        });
        let clock = Clock::new(Settings::default(), ClockMetrics::default());
        clock.request_time(&Client::new(answer, "default")).await.unwrap();
        assert!(clock.difference().unwrap() > SignedDuration::from_hours(24 * 365));
        assert!(!clock.agrees());
    }
}
