//! Metrics of connections, handshakes and the serving certificate.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;
use sha2::{Digest, Sha256};
use x509_parser::parse_x509_certificate;

use crate::histogram::Histogram;
use crate::tls::ServingCertificate;
use crate::transport::TransportMetrics;

/// Nanoseconds. A handshake takes a millisecond of computing and one or two round trips.
const HANDSHAKE_BUCKETS: [u64; 6] = [1_000_000, 5_000_000, 25_000_000, 100_000_000, 1_000_000_000, 5_000_000_000];

/// How a TLS handshake ended, or why there was none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandshakeResult {
    /// The connection is served.
    Ok,
    /// The client did not speak TLS, offered no common version or cipher, or disconnected.
    Failed,
    /// The handshake timed out.
    TimedOut,
    /// The connection limit was reached.
    Refused,
    /// The client's certificate is invalid: expired, or of another CA.
    ClientCertificate,
}

impl HandshakeResult {
    /// All results.
    pub const ALL: [Self; 5] = [Self::Ok, Self::Failed, Self::TimedOut, Self::Refused, Self::ClientCertificate];

    /// Returns the result as shown in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Refused => "refused",
            Self::ClientCertificate => "client_certificate",
        }
    }
}

/// The result of a check of the certificate's files or Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReloadResult {
    /// A new certificate is active.
    Served,
    /// The certificate is the active one.
    Unchanged,
    /// The files or the Secret are unreadable or missing; the last good certificate stays active.
    Unreadable,
    /// The content is invalid; the last good certificate stays active.
    Invalid,
}

impl ReloadResult {
    /// All results.
    pub const ALL: [Self; 4] = [Self::Served, Self::Unchanged, Self::Unreadable, Self::Invalid];

    /// Returns the result as shown in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Unchanged => "unchanged",
            Self::Unreadable => "unreadable",
            Self::Invalid => "invalid",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// The metrics of the TLS connections.
#[derive(Clone, Debug)]
pub struct ConnectionMetrics {
    /// Open connections, including those in their handshake.
    pub connections: Gauge,
    /// Further metrics of the server.
    pub transport: TransportMetrics,
    handshakes: [Counter; HandshakeResult::ALL.len()],
    durations: Histogram,
}

impl ConnectionMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let connections = Gauge::default();
        registry.register("tls_connections", "TLS connections that are open", connections.clone());
        let family = Family::<ResultLabel, Counter>::default();
        registry.register("tls_handshakes", "TLS handshakes, by how they ended", family.clone());
        let handshakes =
            HandshakeResult::ALL.map(|result| family.get_or_create_owned(&ResultLabel { result: result.as_str() }));
        let durations = Histogram::seconds(&HANDSHAKE_BUCKETS);
        registry.register(
            "tls_handshake_seconds",
            "Time from a TCP connection to the end of its TLS handshake, in seconds, of those that came to an end",
            durations.clone(),
        );
        Self { connections, transport: TransportMetrics::register(registry), handshakes, durations }
    }

    /// Counts a handshake.
    #[expect(clippy::indexing_slicing, reason = "a fieldless enum's discriminant is its place in ALL")]
    pub fn handshake(&self, result: HandshakeResult) {
        self.handshakes[result as usize].inc();
    }

    /// Counts a completed or failed handshake with its duration.
    pub fn handshake_ended(&self, result: HandshakeResult, after: Duration) {
        self.handshake(result);
        self.durations.observe_time(after);
    }
}

/// Counts reloads of certificates by result.
#[derive(Clone, Debug, Default)]
pub struct ReloadMetrics {
    results: [Counter; ReloadResult::ALL.len()],
}

impl ReloadMetrics {
    /// Creates the counters and registers them as `pillion_tls_reloads`.
    pub fn register(registry: &mut Registry) -> Self {
        let family = Family::<ResultLabel, Counter>::default();
        registry.sub_registry_with_prefix("pillion").register(
            "tls_reloads",
            "Looks at the serving certificate's files or Secret that found them changed, gone or unreadable, by result",
            family.clone(),
        );
        let results =
            ReloadResult::ALL.map(|result| family.get_or_create_owned(&ResultLabel { result: result.as_str() }));
        Self { results }
    }

    /// Counts a check of the files or of the Secret.
    #[expect(clippy::indexing_slicing, reason = "a fieldless enum's discriminant is its place in ALL")]
    pub fn looked(&self, result: ReloadResult) {
        self.results[result as usize].inc();
    }

    /// Returns how often checks had this result.
    #[must_use]
    #[expect(clippy::indexing_slicing, reason = "a fieldless enum's discriminant is its place in ALL")]
    pub fn times(&self, result: ReloadResult) -> u64 {
        self.results[result as usize].get()
    }
}

/// The serving certificate, read at each scrape.
#[derive(Debug)]
struct Leaf(Arc<ServingCertificate>);

/// Registers the metrics of the serving certificate.
pub fn register_certificate(registry: &mut Registry, certificate: Arc<ServingCertificate>) {
    registry.sub_registry_with_prefix("pillion").register_collector(Box::new(Leaf(certificate)));
}

impl Collector for Leaf {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(der) = self.0.leaf() else { return Ok(()) };
        let validity = parse_x509_certificate(&der).ok().map(|(_, leaf)| leaf.validity().clone());
        let times = validity.map(|validity| [validity.not_before.timestamp(), validity.not_after.timestamp()]);
        let [from, until] = times.map_or([None; 2], |times| times.map(Some));
        for (name, help, value) in [
            ("leaf_not_before_seconds", "When the serving certificate becomes valid, in seconds since 1970", from),
            ("leaf_not_after_seconds", "When the serving certificate expires, in seconds since 1970", until),
            (
                "leaf_generation",
                "A number for the serving certificate: the same on all replicas that serve the same one",
                Some(generation(&der)),
            ),
        ] {
            if let Some(value) = value {
                let gauge = ConstGauge::new(value);
                gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
            }
        }
        Ok(())
    }
}

/// Returns the first 48 bits of the certificate's fingerprint, which a floating-point number represents exactly.
fn generation(der: &[u8]) -> i64 {
    Sha256::digest(der).iter().take(6).fold(0, |number, byte| number << 8 | i64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::PemText;

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        text
    }

    #[test]
    fn each_handshake_result_is_counted_under_its_own_name() {
        let mut registry = Registry::default();
        let metrics = ConnectionMetrics::register(&mut registry);
        for result in HandshakeResult::ALL {
            metrics.handshake_ended(result, Duration::from_millis(2));
            let line = format!("tls_handshakes_total{{result=\"{}\"}} 1\n", result.as_str());
            let text = text(&registry);
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
        let text = text(&registry);
        assert!(text.contains("tls_handshake_seconds_bucket{le=\"0.005\"} 5\n"), "{text}");
    }

    #[test]
    fn each_reload_result_is_counted_under_its_own_name() {
        let mut registry = Registry::default();
        let metrics = ReloadMetrics::register(&mut registry);
        for result in ReloadResult::ALL {
            metrics.looked(result);
            let line = format!("pillion_tls_reloads_total{{result=\"{}\"}} 1\n", result.as_str());
            let text = text(&registry);
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn the_certificate_that_is_served_is_shown() {
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
        assert_eq!(value("pillion_leaf_not_before_seconds"), 1_767_312_000);
        assert_eq!(value("pillion_leaf_not_after_seconds"), 1_767_312_000 + 3600);
        let generation = value("pillion_leaf_generation");
        assert!((0..1 << 48).contains(&generation));

        let (second, key) = pair(7200);
        certificate.swap(pem(second.as_bytes()), pem(key.as_bytes())).unwrap();
        assert_eq!(value("pillion_leaf_not_after_seconds"), 1_767_312_000 + 7200);
        assert_ne!(value("pillion_leaf_generation"), generation);
    }
}
