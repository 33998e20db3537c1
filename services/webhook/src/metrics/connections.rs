//! Metrics of connections, handshakes, unauthorized requests and the serving certificate.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use sha2::{Digest, Sha256};
use x509_parser::parse_x509_certificate;

use super::PREFIX;
use crate::counters::{Counters, register};
use crate::tls::ServingCertificate;

/// Bucket bounds in seconds. A handshake takes a millisecond of processor time, and one or two round trips.
const HANDSHAKE_BUCKETS: [f64; 6] = [0.001, 0.005, 0.025, 0.1, 1.0, 5.0];

pillion_api::labelled! {
    /// What the server waits for on a connection.
    pub(crate) enum Waiting {
        /// The next request.
        Idle => "idle",
        /// The rest of a request's head.
        Head => "slow_head",
        /// The response of the application, or the rest of the request's body.
        Answer => "slow_request",
        /// The client, which has not read its response yet.
        Reader => "slow_reader",
    }
}

/// The number of reasons in [`CLOSED`]. With `CLOSED.len()` instead, the crate does not compile with optimizations.
const CLOSED_COUNT: usize = 5;

/// Why the server closed a connection: the event for which it waited too long, or an eviction at the connection limit.
const CLOSED: [&str; CLOSED_COUNT] =
    [Waiting::Idle.as_str(), Waiting::Head.as_str(), Waiting::Answer.as_str(), Waiting::Reader.as_str(), "evicted"];

pillion_api::labelled! {
    /// Why a request was answered with 401 or 403.
    pub(crate) enum Unauthorized {
        /// The client sent no certificate: 401.
        NoCertificate => "no_certificate",
        /// A configured CA issued the client's certificate, but the certificate has none of the required names: 403.
        Name => "name",
    }
}

pillion_api::labelled! {
    /// How a TLS handshake ended, or why the server did not begin one.
    pub(crate) enum HandshakeResult {
        /// The handshake succeeded, and the connection is served.
        Ok => "ok",
        /// The client did not speak TLS, offered no common version or cipher, rejected the server's certificate, or
        /// disconnected; or the server has no certificate yet.
        Failed => "failed",
        /// The handshake timed out.
        TimedOut => "timed_out",
        /// The connection limit was reached, so the connection was closed without a handshake.
        Refused => "refused",
        /// The client's certificate is invalid, for example expired or issued by another CA.
        ClientCertificate => "client_certificate",
    }
}

pillion_api::labelled! {
    /// The result of a check of the certificate's files or Secret.
    pub enum ReloadResult {
        /// A new certificate is active.
        Served => "served",
        /// The files or the Secret contain the certificate that is already active.
        Unchanged => "unchanged",
        /// The files or the Secret are unreadable or missing; the last valid certificate remains active.
        Unreadable => "unreadable",
        /// The content is invalid; the last valid certificate remains active.
        Invalid => "invalid",
    }
}

/// The metrics of the TLS connections.
#[derive(Clone, Debug)]
pub struct ConnectionMetrics {
    /// Open connections, including those in their handshake.
    pub(crate) connections: Gauge,
    /// 1 while the server is draining, and 0 before.
    pub(crate) draining: Gauge,
    /// Connections that could not be accepted, usually because no file descriptor was free.
    pub(crate) accept_errors: Counter,
    handshakes: Counters<{ HandshakeResult::ALL.len() }>,
    durations: Histogram,
    closed: Counters<CLOSED_COUNT>,
    unauthorized: Counters<{ Unauthorized::ALL.len() }>,
}

impl ConnectionMetrics {
    /// Creates the metrics and registers them in `registry`, which already has the prefix.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let connections = register(registry, "connections", "Open connections, including those in their TLS handshake");
        let durations = Histogram::new(HANDSHAKE_BUCKETS);
        registry.register(
            "tls_handshake_duration_seconds",
            "Time from a TCP connection to the end of its TLS handshake, including waits for the client",
            durations.clone(),
        );
        let help = "1 while the replica shuts down and answers the remaining requests";
        let draining = register(registry, "draining", help);
        let help = "Failed attempts to accept a connection, most likely because no file descriptor was free";
        let accept_errors = register(registry, "accept_errors", help);
        Self {
            connections,
            draining,
            accept_errors,
            handshakes: Counters::register(
                registry,
                "tls_handshakes",
                "TLS handshakes, by result",
                "result",
                HandshakeResult::ALL.map(HandshakeResult::as_str),
            ),
            durations,
            closed: Counters::register(
                registry,
                "closed_connections",
                "Connections that the server closed, by reason: idle, too slow, or evicted at the connection limit",
                "reason",
                CLOSED,
            ),
            unauthorized: Counters::register(
                registry,
                "unauthorized_requests",
                "Requests rejected with HTTP 401 or 403 before their body was read, by reason",
                "reason",
                Unauthorized::ALL.map(Unauthorized::as_str),
            ),
        }
    }

    /// Counts a handshake, or a refused connection, without recording a duration.
    pub(crate) fn handshake(&self, result: HandshakeResult) {
        self.handshakes.count(result as usize);
    }

    /// Counts a completed or failed handshake, and records its duration.
    pub(crate) fn handshake_ended(&self, result: HandshakeResult, after: Duration) {
        self.handshake(result);
        self.durations.observe(after.as_secs_f64());
    }

    /// Counts a connection that was closed because the server waited on it for too long.
    pub(crate) fn timed_out(&self, waiting: Waiting) {
        self.closed.count(waiting as usize);
    }

    /// Counts a connection that was closed at the connection limit, to make room for a client with fewer connections.
    pub(crate) fn evicted(&self) {
        self.closed.count(Waiting::ALL.len());
    }

    /// Counts a request that was answered with 401 or 403.
    pub(crate) fn unauthorized(&self, reason: Unauthorized) {
        self.unauthorized.count(reason as usize);
    }
}

/// Counts checks that found the certificate's files or Secret changed, missing or unreadable, by result.
#[derive(Clone, Debug)]
pub struct ReloadMetrics {
    results: Counters<{ ReloadResult::ALL.len() }>,
}

impl ReloadMetrics {
    /// Creates the counters and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let results = Counters::register(
            registry.sub_registry_with_prefix(PREFIX),
            "certificate_reloads",
            "Checks that found the serving certificate's files or Secret changed, missing or unreadable, by result",
            "result",
            ReloadResult::ALL.map(ReloadResult::as_str),
        );
        Self { results }
    }

    /// Counts a check of the files or of the Secret.
    pub fn count_check(&self, result: ReloadResult) {
        self.results.count(result as usize);
    }

    /// Returns the number of checks with this result.
    #[must_use]
    pub fn times(&self, result: ReloadResult) -> u64 {
        self.results.get(result as usize)
    }
}

/// Exports the validity and the fingerprint of the serving certificate, which is read at each scrape.
#[derive(Debug)]
struct CertificateCollector(Arc<ServingCertificate>);

/// Registers the metrics of the serving certificate.
pub fn register_certificate(registry: &mut Registry, certificate: Arc<ServingCertificate>) {
    registry.sub_registry_with_prefix(PREFIX).register_collector(Box::new(CertificateCollector(certificate)));
}

impl Collector for CertificateCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(der) = self.0.der() else { return Ok(()) };
        let validity = parse_x509_certificate(&der).ok().map(|(_, certificate)| certificate.validity().clone());
        let times = validity.map(|validity| [validity.not_before.timestamp(), validity.not_after.timestamp()]);
        let [from, until] = times.map_or([None; 2], |times| times.map(Some));
        for (name, help, value) in [
            ("certificate_not_before_timestamp", "Start of the serving certificate's validity, as Unix time", from),
            ("certificate_not_after_timestamp", "End of the serving certificate's validity, as Unix time", until),
        ] {
            if let Some(value) = value {
                let gauge = ConstGauge::new(value);
                gauge.encode(encoder.encode_descriptor(name, help, Some(&Unit::Seconds), gauge.metric_type())?)?;
            }
        }
        let info = Info::new([("fingerprint", fingerprint(&der))]);
        info.encode(encoder.encode_descriptor("certificate", "The serving certificate", None, info.metric_type())?)
    }
}

/// Returns the first 8 bytes of the certificate's SHA-256 fingerprint, in hexadecimal.
fn fingerprint(der: &[u8]) -> String {
    Sha256::digest(der).iter().take(8).fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::text;
    use crate::tls::PemText;

    #[test]
    fn exports_validity_of_serving_certificate() {
        let pair = |until: i64| {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::new(vec!["pillion.test".to_owned()]).unwrap();
            params.not_before = rcgen::date_time_ymd(2026, 1, 2);
            params.not_after = rcgen::date_time_ymd(2026, 1, 2) + Duration::from_secs(until.unsigned_abs());
            (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
        };
        let pem = |text| PemText { source: "a test", text };
        let (first, key) = pair(3600);
        let certificate = ServingCertificate::new(pem(first.as_bytes()), pem(key.as_bytes())).unwrap();
        let mut registry = Registry::default();
        register_certificate(&mut registry, Arc::clone(&certificate));
        let value = |name: &str| {
            let text = text(&registry);
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse::<i64>().unwrap()
        };
        // 2026-01-02T00:00:00Z
        assert_eq!(value("pillion_webhook_certificate_not_before_timestamp_seconds"), 1_767_312_000);
        assert_eq!(value("pillion_webhook_certificate_not_after_timestamp_seconds"), 1_767_312_000 + 3600);
        let fingerprint = || {
            let text = text(&registry);
            let (_, rest) = text.split_once("pillion_webhook_certificate_info{fingerprint=\"").unwrap();
            rest.split_once("\"} 1\n").unwrap().0.to_owned()
        };
        let before = fingerprint();
        assert!(before.len() == 16 && before.bytes().all(|byte| byte.is_ascii_hexdigit()), "{before}");

        let (second, key) = pair(7200);
        certificate.swap(pem(second.as_bytes()), pem(key.as_bytes())).unwrap();
        assert_eq!(value("pillion_webhook_certificate_not_after_timestamp_seconds"), 1_767_312_000 + 7200);
        assert_ne!(fingerprint(), before);
    }
}
