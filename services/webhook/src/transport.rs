//! Facts about a connection that other layers use: the client's address, what the connection waits for, and the metrics
//! of the transport (failed accepts, timeouts, rejected requests, draining).

use std::net::{IpAddr, Ipv4Addr};

use http::Extensions;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// What a connection is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// For a request.
    Idle,
    /// For the rest of a request's head.
    Head,
    /// For an answer, or for the body that it needs.
    Answer,
    /// For the client to read what it was answered.
    Reader,
}

impl Waiting {
    /// All that a connection can wait for.
    pub(crate) const ALL: [Self; 4] = [Self::Idle, Self::Head, Self::Answer, Self::Reader];

    /// As it stands in metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Head => "head",
            Self::Answer => "answer",
            Self::Reader => "reader",
        }
    }
}

/// The address of the client, in the extensions of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientAddress(pub(crate) IpAddr);

/// The address of the client that sent a request; the unspecified one where a request comes from no connection.
pub(crate) fn client_address(extensions: &Extensions) -> IpAddr {
    extensions.get::<ClientAddress>().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.0)
}

/// Why a request was answered with 401 or 403.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unauthorized {
    /// Its client showed no certificate: 401.
    NoCertificate,
    /// Its client's certificate is of the right authority, and has none of the names that are asked for: 403.
    Name,
}

/// The metrics of the transport.
#[derive(Clone, Debug)]
pub struct TransportMetrics {
    /// 1 from the moment on at which the server was asked to end.
    pub draining: Gauge,
    /// How often no connection could be accepted, most likely for want of a file descriptor.
    pub accept_errors: Counter,
    /// Connections that were closed for a client that had fewer, because there were as many as there may be.
    pub given_up: Counter,
    timed_out: [Counter; Waiting::ALL.len()],
    unauthorized: [Counter; Unauthorized::ALL.len()],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitingLabel {
    waiting: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

impl Unauthorized {
    /// All reasons.
    pub const ALL: [Self; 2] = [Self::NoCertificate, Self::Name];

    /// The reason as it stands in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoCertificate => "no_certificate",
            Self::Name => "name",
        }
    }
}

impl TransportMetrics {
    /// Makes the metrics and registers them where a prefix is given already.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let draining = Gauge::default();
        registry.register(
            "draining",
            "Whether the process was asked to end and answers what still comes: 1 if so",
            draining.clone(),
        );
        let accept_errors = Counter::default();
        registry.register(
            "accept_errors",
            "Failures to accept any connection, for want of a file descriptor most likely",
            accept_errors.clone(),
        );
        let given_up = Counter::default();
        registry.register(
            "connections_given_up",
            "TLS connections that were closed for a client with fewer of them, for there were as many as there may be",
            given_up.clone(),
        );
        let family = Family::<WaitingLabel, Counter>::default();
        registry.register(
            "connections_timed_out",
            "TLS connections that were closed for being too slow, by what was waited for",
            family.clone(),
        );
        let timed_out =
            Waiting::ALL.map(|waiting| family.get_or_create_owned(&WaitingLabel { waiting: waiting.as_str() }));
        let family = Family::<ReasonLabel, Counter>::default();
        registry.register(
            "unauthorized_requests",
            "Requests that were turned away before their body was read, by why",
            family.clone(),
        );
        let unauthorized =
            Unauthorized::ALL.map(|reason| family.get_or_create_owned(&ReasonLabel { reason: reason.as_str() }));
        Self { draining, accept_errors, given_up, timed_out, unauthorized }
    }

    #[expect(clippy::indexing_slicing, reason = "a fieldless enum's discriminant is its place in ALL")]
    pub(crate) fn timed_out(&self, waiting: Waiting) {
        self.timed_out[waiting as usize].inc();
    }

    #[expect(clippy::indexing_slicing, reason = "a fieldless enum's discriminant is its place in ALL")]
    pub(crate) fn unauthorized(&self, reason: Unauthorized) {
        self.unauthorized[reason as usize].inc();
    }
}
