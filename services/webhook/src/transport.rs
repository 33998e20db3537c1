//! Facts about a connection that other layers use: the client's address, what the connection waits for, and the metrics
//! of the transport (failed accepts, timeouts, rejected requests, draining).

use std::net::{IpAddr, Ipv4Addr};

use http::Extensions;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The event that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// A request.
    Idle,
    /// The rest of a request's head.
    Head,
    /// A response, or the body that it depends on.
    Answer,
    /// The client to read its response.
    Reader,
}

impl Waiting {
    /// All variants.
    pub(crate) const ALL: [Self; 4] = [Self::Idle, Self::Head, Self::Answer, Self::Reader];

    /// Returns the variant as shown in metrics.
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

/// Returns the address of the client that sent a request, or the unspecified address if there is no connection.
pub(crate) fn client_address(extensions: &Extensions) -> IpAddr {
    extensions.get::<ClientAddress>().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.0)
}

/// Why a request was answered with 401 or 403.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unauthorized {
    /// The client showed no certificate: 401.
    NoCertificate,
    /// The client's certificate is of the right CA, but has none of the required names: 403.
    Name,
}

/// The metrics of the transport.
#[derive(Clone, Debug)]
pub struct TransportMetrics {
    /// 1 once the server is draining.
    pub draining: Gauge,
    /// Failed accepts, most likely because no file descriptor was free.
    pub accept_errors: Counter,
    /// Connections closed at the limit in favour of a client with fewer.
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

    /// Returns the reason as shown in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoCertificate => "no_certificate",
            Self::Name => "name",
        }
    }
}

impl TransportMetrics {
    /// Creates the metrics and registers them. The registry already has the prefix.
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
