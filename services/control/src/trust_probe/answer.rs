//! Interprets the responses of API servers.

use pillion_api::trust_probe::{REACHED, WEBHOOK};

use crate::certificates::rotation::{Generation, Propagation};

/// A call of an API server to the trust probe's endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceivedCall {
    /// The CA of the certificate that the API server received and trusted.
    pub(super) certificate: Generation,
    /// The epoch of the webhook entry that the API server used.
    pub(super) epoch: u64,
}

/// The result for one API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerOutcome {
    /// The API server proved what the round required: that it trusts the newest CA, or that it reaches a replica.
    Proven,
    /// The API server called, and did not trust the certificate.
    Behind,
    /// There is no result.
    Silent(Silence),
}

/// Why there is no result for an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The connection failed or was interrupted.
    Unreachable,
    /// The request timed out.
    Timeout,
    /// The API server allowed the request, but did not make the calls that are a proof. Usually it does not have the
    /// current webhook entries yet.
    NotCalled,
    /// The API server used an entry of an earlier epoch, so it does not have the current configuration.
    Stale,
    /// The API server received a certificate of a different CA, since the trust probe's certificate changed meanwhile.
    OtherCertificate,
    /// The API server rejected the request for a reason other than the certificate, with this message.
    Refused(String),
    /// The trust probe has no certificate of the newest CA.
    NoCertificate,
}

/// The response to a dry run.
#[derive(Clone, Copy, Debug)]
pub(super) enum DryRunResponse<'a> {
    /// The dry run succeeded.
    Allowed,
    /// The dry run was rejected with this message, or its response was unreadable.
    Rejected(&'a str),
    /// There was no response, for this reason.
    Missing(&'a Silence),
}

impl ServerOutcome {
    /// The labels of all outcomes.
    pub(crate) const LABELS: [&str; 3] = ["proven", "behind", "silent"];

    /// The outcome as a metric label.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Proven => "proven",
            Self::Behind => "behind",
            Self::Silent(_) => "silent",
        }
    }
}

/// Interprets a response. `shown` is the recorded call with the request's name.
///
/// If the API server trusted the certificate, its bundle has the CA. If it used an entry of this epoch or a later one,
/// it has the bundle that was written for this epoch. So it no longer trusts removed CAs.
pub(super) fn interpret_trust(
    response: DryRunResponse<'_>,
    shown: Option<ReceivedCall>,
    newest: Generation,
    epoch: u64,
) -> ServerOutcome {
    match (response, shown) {
        (DryRunResponse::Allowed, Some(shown)) if shown.certificate == newest && shown.epoch >= epoch => {
            ServerOutcome::Proven
        }
        (DryRunResponse::Allowed, Some(shown)) if shown.certificate == newest => ServerOutcome::Silent(Silence::Stale),
        (DryRunResponse::Allowed, Some(_)) => ServerOutcome::Silent(Silence::OtherCertificate),
        (DryRunResponse::Allowed, None) => ServerOutcome::Silent(Silence::NotCalled),
        (DryRunResponse::Rejected(message), _) if rejects_certificate(message) => ServerOutcome::Behind,
        (DryRunResponse::Rejected(message), _) => ServerOutcome::Silent(Silence::Refused(message.to_owned())),
        (DryRunResponse::Missing(silence), _) => ServerOutcome::Silent(silence.clone()),
    }
}

/// Interprets a response while dry runs are routed to the replicas. Only a replica's response proves that the API
/// server reached a replica.
pub(super) fn interpret_connectivity(response: DryRunResponse<'_>) -> ServerOutcome {
    match response {
        DryRunResponse::Rejected(message) if message.contains(WEBHOOK) && message.contains(REACHED) => {
            ServerOutcome::Proven
        }
        // The API server does not have the entry yet, or has an earlier one.
        DryRunResponse::Allowed => ServerOutcome::Silent(Silence::NotCalled),
        DryRunResponse::Rejected(message) if rejects_certificate(message) => ServerOutcome::Behind,
        DryRunResponse::Rejected(message) => ServerOutcome::Silent(Silence::Refused(message.to_owned())),
        DryRunResponse::Missing(silence) => ServerOutcome::Silent(silence.clone()),
    }
}

/// Whether the API server rejected the certificate of the endpoint that it called. All errors of Go's `x509` package
/// begin with `x509:`, such as those for an unknown CA, a wrong name or an expired certificate.
fn rejects_certificate(message: &str) -> bool {
    message.contains(WEBHOOK) && message.contains("x509: ")
}

/// Summarises the outcomes for `servers` API servers. API servers that were not asked count as silent. If the number is
/// unknown (`None`), one API server counts as not asked, since several may share an address.
pub fn fold<'o>(outcomes: impl IntoIterator<Item = &'o ServerOutcome>, servers: Option<usize>) -> Propagation {
    let (mut proven, mut behind, mut silent) = (0, 0, 0);
    for outcome in outcomes {
        match outcome {
            ServerOutcome::Proven => proven += 1,
            ServerOutcome::Behind => behind += 1,
            ServerOutcome::Silent(_) => silent += 1,
        }
    }
    let answered = proven + behind + silent;
    let not_asked = servers.map_or(1, |servers| servers.max(1).saturating_sub(answered));
    Propagation { proven, behind, silent: silent + not_asked }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEWEST: Generation = Generation(2);
    const UNTRUSTED: &str = "Internal error occurred: failed calling webhook \"trust-probe.pillion.dev\": failed to call webhook: \
                            Post \"https://pillion-trust-probe.pillion-system.svc:443/trust-probe?timeout=5s\": tls: failed to verify \
                            certificate: x509: certificate signed by unknown authority";

    #[test]
    fn only_a_recorded_call_is_proof() {
        let by = |certificate, epoch| Some(ReceivedCall { certificate, epoch });
        assert_eq!(interpret_trust(DryRunResponse::Allowed, by(NEWEST, 7), NEWEST, 7), ServerOutcome::Proven);
        assert_eq!(interpret_trust(DryRunResponse::Allowed, by(NEWEST, 8), NEWEST, 7), ServerOutcome::Proven);
        assert_eq!(
            interpret_trust(DryRunResponse::Allowed, by(NEWEST, 6), NEWEST, 7),
            ServerOutcome::Silent(Silence::Stale)
        );
        assert_eq!(
            interpret_trust(DryRunResponse::Allowed, None, NEWEST, 7),
            ServerOutcome::Silent(Silence::NotCalled)
        );
        assert_eq!(
            interpret_trust(DryRunResponse::Allowed, by(Generation(1), 7), NEWEST, 7),
            ServerOutcome::Silent(Silence::OtherCertificate)
        );
        // The API server called, but rejected the request or did not respond, which proves nothing.
        assert!(matches!(
            interpret_trust(DryRunResponse::Rejected("quota"), by(NEWEST, 7), NEWEST, 7),
            ServerOutcome::Silent(Silence::Refused(_))
        ));
        let silence = interpret_trust(DryRunResponse::Missing(&Silence::Timeout), by(NEWEST, 7), NEWEST, 7);
        assert_eq!(silence, ServerOutcome::Silent(Silence::Timeout));
    }

    #[test]
    fn distinguishes_mistrust_from_other_failures() {
        assert_eq!(interpret_trust(DryRunResponse::Rejected(UNTRUSTED), None, NEWEST, 7), ServerOutcome::Behind);
        let other_webhook = UNTRUSTED.replace("trust-probe.pillion.dev", "somebody.else.dev");
        let refused = "Internal error occurred: failed calling webhook \"trust-probe.pillion.dev\": failed to call webhook: Post \
                       \"https://pillion-trust-probe.pillion-system.svc:443/trust-probe?timeout=5s\": dial tcp 10.0.0.1:8444: \
                       connect: connection refused";
        for message in [other_webhook.as_str(), refused, "injectiontrustprobes.pillion.dev is forbidden", ""] {
            let silent = ServerOutcome::Silent(Silence::Refused(message.to_owned()));
            assert_eq!(interpret_trust(DryRunResponse::Rejected(message), None, NEWEST, 7), silent);
        }
    }

    #[test]
    fn only_a_replicas_response_proves_reachability() {
        let denied = format!("admission webhook \"trust-probe.pillion.dev\" denied the request: {REACHED}");
        assert_eq!(interpret_connectivity(DryRunResponse::Rejected(&denied)), ServerOutcome::Proven);
        assert_eq!(interpret_connectivity(DryRunResponse::Rejected(UNTRUSTED)), ServerOutcome::Behind);
        assert_eq!(
            interpret_connectivity(DryRunResponse::Allowed),
            ServerOutcome::Silent(Silence::NotCalled),
            "the API server has no entry yet"
        );
        let on_the_way = "Internal error occurred: failed calling webhook \"trust-probe.pillion.dev\": failed to call webhook: \
                          Post \"https://pillion.pillion-system.svc:443/trust-probe/7?timeout=5s\": dial tcp 10.0.0.1:443: \
                          connect: connection refused";
        let others = denied.replace("trust-probe.pillion.dev", "somebody.else.dev");
        for message in [on_the_way, others.as_str(), "injectiontrustprobes.pillion.dev is forbidden"] {
            assert_eq!(
                interpret_connectivity(DryRunResponse::Rejected(message)),
                ServerOutcome::Silent(Silence::Refused(message.to_owned()))
            );
        }
        assert_eq!(
            interpret_connectivity(DryRunResponse::Missing(&Silence::Timeout)),
            ServerOutcome::Silent(Silence::Timeout)
        );
    }

    #[test]
    fn api_servers_not_asked_count_as_silent() {
        let silent = ServerOutcome::Silent(Silence::Timeout);
        let counts = |outcomes: &[ServerOutcome], servers| {
            let Propagation { proven, behind, silent } = fold(outcomes, servers);
            (proven, behind, silent)
        };
        assert_eq!(counts(&[ServerOutcome::Proven, ServerOutcome::Proven], Some(2)), (2, 0, 0));
        assert_eq!(counts(&[ServerOutcome::Proven, silent.clone()], Some(2)), (1, 0, 1));
        assert_eq!(counts(&[ServerOutcome::Proven, ServerOutcome::Behind, silent.clone()], Some(1)), (1, 1, 1));
        assert_eq!(counts(&[ServerOutcome::Proven], Some(3)), (1, 0, 2), "three API servers share one address");
        assert_eq!(counts(&[], Some(0)), (0, 0, 1), "no API server was asked");
        assert_eq!(counts(&[ServerOutcome::Proven], None), (1, 0, 1), "one of an unknown number of API servers");
        assert_eq!(counts(&[ServerOutcome::Proven, silent.clone()], None), (1, 0, 2));
    }
}
