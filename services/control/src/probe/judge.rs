//! Opens a TLS connection to an endpoint, and judges the certificate that it serves: which CA signed it, and whether an
//! API server would accept it. The handshake proves that the endpoint has the key.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::certificates::ca::judge::{is_valid_at, verify};
use crate::certificates::ca::validity;
use crate::certificates::rotation::Generation;
use crate::release::Release;

/// A CA of the rotation's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownCa {
    /// The number of the CA.
    pub generation: Generation,
    /// The CA's certificate.
    pub certificate: CertificateDer<'static>,
}

/// The requirements on endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The name that an API server requires in the certificate.
    pub server_name: ServerName<'static>,
    /// The CAs of the record, trusted or not.
    pub known: Vec<KnownCa>,
    /// The newest known CA, which should sign all served certificates. `None` if another issuer creates the
    /// certificates.
    pub newest: Option<Generation>,
    /// The certificates that API servers trust. While this is empty, no API server calls the webhook, and `known` is
    /// used instead.
    pub bundle: Vec<CertificateDer<'static>>,
    /// The epoch of the record when the serving certificate last had to change.
    pub certificate_epoch: u64,
}

/// The verdict on an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The endpoint serves a valid certificate of the newest CA.
    Newest,
    /// The endpoint serves a certificate of another known CA.
    Older(Generation),
    /// The endpoint serves a valid certificate of another issuer that the bundle trusts.
    Trusted,
    /// The endpoint serves an unreadable certificate, or one of an unexpected issuer: of no known CA or, if another
    /// issuer creates the certificates, of no CA in the bundle.
    Untrusted,
    /// The endpoint serves an invalid certificate of an expected CA: of the newest CA or, if another issuer creates the
    /// certificates, of a CA in the bundle.
    Invalid(Defect),
    /// The endpoint could not be probed.
    Unreachable(Unreachable),
}

pillion_api::labelled! {
    /// Why a certificate of an expected CA is invalid.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Defect {
        /// The certificate or its CA expires soon.
        Expiring => "expires soon",
        /// The certificate has expired.
        Expired => "expired",
        /// The certificate is not valid yet.
        NotYetValid => "not valid yet",
        /// The certificate lacks the required name.
        WrongName => "wrong name",
        /// The CA has expired or is not valid yet. The API server checks that too.
        Ca => "invalid CA",
        /// The certificate is not a server certificate, or is damaged.
        Unusable => "not a server certificate",
    }
}

/// The result of judging an endpoint's certificate chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The verdict on the certificate.
    pub verdict: Verdict,
    /// Whether API servers with the bundle would trust the certificate now.
    pub trusted: bool,
    /// End of the certificate's validity, if readable.
    pub not_after: Option<Timestamp>,
}

impl Verdict {
    /// The labels of all verdicts.
    pub(crate) const LABELS: [&str; 7] =
        ["newest", "older", "trusted", "untrusted", "expiring", "invalid", "unreachable"];

    /// The verdict as a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Newest => "newest",
            Self::Older(_) => "older",
            Self::Trusted => "trusted",
            Self::Untrusted => "untrusted",
            Self::Invalid(Defect::Expiring) => "expiring",
            Self::Invalid(_) => "invalid",
            Self::Unreachable(_) => "unreachable",
        }
    }
}

impl Expected {
    /// Returns the requirements on a release's endpoints. `None` if the release's name is not a DNS name, which
    /// [`Release`] rules out.
    #[must_use]
    pub fn of(
        release: &Release,
        known: Vec<KnownCa>,
        newest: Option<Generation>,
        bundle: Vec<CertificateDer<'static>>,
        certificate_epoch: u64,
    ) -> Option<Self> {
        let [name, _] = release.server_names();
        let server_name = ServerName::try_from(name).ok()?;
        Some(Self { server_name, known, newest, bundle, certificate_epoch })
    }

    /// Returns the requirements on endpoints with certificates of another issuer: only the bundle is known.
    #[must_use]
    pub fn of_other_issuer(release: &Release, bundle: Vec<CertificateDer<'static>>) -> Option<Self> {
        Self::of(release, Vec::new(), None, bundle, 0)
    }
    /// Judges an endpoint's certificate chain, which must remain valid for `least_left`.
    #[must_use]
    pub fn judge(&self, chain: &[CertificateDer<'_>], now: Timestamp, least_left: Duration) -> Judgement {
        let validity = chain.first().and_then(validity);
        let trusted = self.verify(chain, &valid_at(&self.trusted(), now), now).is_ok();
        let verdict = match validity {
            Some((from, _)) => self.verdict(chain, from, now, least_left),
            None => Verdict::Untrusted,
        };
        Judgement { verdict, trusted, not_after: validity.map(|(_, until)| until) }
    }

    fn verdict(&self, chain: &[CertificateDer<'_>], from: Timestamp, now: Timestamp, least_left: Duration) -> Verdict {
        let (cas, valid) = match self.newest {
            Some(newest) => {
                let mut known = self.known.iter();
                let signer = known.find(|known| self.is_signed_by(&[&known.certificate], chain, from));
                match signer {
                    Some(signer) if signer.generation == newest => (vec![&signer.certificate], Verdict::Newest),
                    Some(signer) => return Verdict::Older(signer.generation),
                    None => return Verdict::Untrusted,
                }
            }
            None if self.is_signed_by(&self.trusted(), chain, from) => (self.trusted(), Verdict::Trusted),
            None => return Verdict::Untrusted,
        };
        match self.defect(&cas, chain, now, least_left) {
            Some(defect) => Verdict::Invalid(defect),
            None => valid,
        }
    }

    /// Returns why API servers that trust only these CAs would reject the certificate now, or before `least_left` has
    /// passed.
    fn defect(
        &self,
        cas: &[&CertificateDer<'static>],
        chain: &[CertificateDer<'_>],
        now: Timestamp,
        least_left: Duration,
    ) -> Option<Defect> {
        let valid = valid_at(cas, now);
        match self.verify(chain, &valid, now) {
            Ok(()) => {}
            // The CA that signed the certificate is not valid now.
            Err(CertificateError::UnknownIssuer) => return Some(Defect::Ca),
            Err(error) => return Some(defect_of(&error)),
        }
        let later = now.checked_add(least_left).unwrap_or(Timestamp::MAX);
        self.verify(chain, &valid_at(&valid, later), later).err().map(|_| Defect::Expiring)
    }

    /// Whether one of these CAs signed the certificate. The certificate's names and the validity of the CA are not
    /// checked. `from` is the start of the certificate's validity.
    fn is_signed_by(&self, cas: &[&CertificateDer<'static>], chain: &[CertificateDer<'_>], from: Timestamp) -> bool {
        match self.verify(chain, cas, from) {
            Ok(()) => true,
            // Names are checked after the signature, so the error of a wrong name means that the signature is valid.
            Err(error) => defect_of(&error) == Defect::WrongName,
        }
    }

    fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        cas: &[&CertificateDer<'static>],
        time: Timestamp,
    ) -> Result<(), CertificateError> {
        verify(chain, cas.iter().copied(), &self.server_name, time)
    }

    /// Returns the CAs of the bundle or, while it is empty, all known CAs.
    fn trusted(&self) -> Vec<&CertificateDer<'static>> {
        if self.bundle.is_empty() {
            self.known.iter().map(|known| &known.certificate).collect()
        } else {
            self.bundle.iter().collect()
        }
    }
}

/// Returns the certificates that are valid at this time.
fn valid_at<'c>(cas: &[&'c CertificateDer<'static>], time: Timestamp) -> Vec<&'c CertificateDer<'static>> {
    cas.iter().copied().filter(|ca| is_valid_at(ca, time)).collect()
}

const fn defect_of(error: &CertificateError) -> Defect {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => Defect::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Defect::NotYetValid,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => Defect::WrongName,
        _ => Defect::Unusable,
    }
}

pillion_api::labelled! {
    /// Why an endpoint could not be probed.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Unreachable {
        /// The endpoint has no IP address, or no port.
        NoAddress => "no_address",
        /// The connection failed or was closed.
        Connection => "connection",
        /// The endpoint did not respond in time.
        Timeout => "timeout",
        /// The TLS handshake failed: for example, the endpoint lacks the key of its certificate.
        Handshake => "handshake",
    }
}

/// An endpoint's certificate chain, with its serving certificate first. It is never empty.
pub type Chain = Vec<CertificateDer<'static>>;

/// Connects to an endpoint within the limit, and returns its certificate chain.
///
/// # Errors
/// The endpoint could not be probed.
pub(crate) async fn dial(socket: SocketAddr, name: ServerName<'static>, limit: Duration) -> Result<Chain, Unreachable> {
    timeout(limit, connect(socket, name)).await.unwrap_or(Err(Unreachable::Timeout))
}

async fn connect(socket: SocketAddr, name: ServerName<'static>) -> Result<Chain, Unreachable> {
    let collector = Arc::new(CertificateCollector::new());
    let config = ClientConfig::builder_with_provider(Arc::clone(&collector.provider))
        .with_safe_default_protocol_versions()
        .map_err(|_| Unreachable::Handshake)?;
    let mut config = config
        .dangerous()
        .with_custom_certificate_verifier(Arc::<CertificateCollector>::clone(&collector))
        .with_no_client_auth();
    // API servers use this protocol.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream = TcpStream::connect(socket).await.map_err(|_| Unreachable::Connection)?;
    match TlsConnector::from(Arc::new(config)).connect(name, stream).await {
        Ok(mut stream) => {
            // Close the connection without sending a request. An error does not matter: the handshake has already
            // succeeded.
            let _ = stream.shutdown().await;
        }
        Err(error) => {
            let by_tls = error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<Error>);
            return Err(if by_tls { Unreachable::Handshake } else { Unreachable::Connection });
        }
    }
    collector.chain().filter(|chain| !chain.is_empty()).ok_or(Unreachable::Handshake)
}

/// Keeps the peer's certificates, whether valid or not. It verifies the handshake's signature, which proves that the
/// peer has the key.
struct CertificateCollector {
    provider: Arc<CryptoProvider>,
    chain: Mutex<Option<Chain>>,
}

impl fmt::Debug for CertificateCollector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CertificateCollector").finish_non_exhaustive()
    }
}

impl CertificateCollector {
    fn new() -> Self {
        Self { provider: Arc::new(rustls::crypto::aws_lc_rs::default_provider()), chain: Mutex::default() }
    }

    fn chain(&self) -> Option<Chain> {
        self.chain.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl ServerCertVerifier for CertificateCollector {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let chain = std::iter::once(certificate).chain(others).map(|each| each.clone().into_owned()).collect();
        *self.chain.lock().unwrap_or_else(PoisonError::into_inner) = Some(chain);
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
        KeyUsagePurpose,
    };

    use super::*;
    use crate::certificates::ca::certificates;
    use crate::release::DEFAULT_CLUSTER_DOMAIN;

    const DAY: Duration = Duration::from_hours(24);

    /// A CA for the tests. The times of all certificates are in days from now.
    struct Ca {
        generation: Generation,
        issuer: CertifiedIssuer<'static, KeyPair>,
    }

    /// Verdicts on three certificates, and whether they are trusted.
    type Verdicts = [(Verdict, bool); 3];

    struct ServingCertificate<'l> {
        name: &'l str,
        from: i64,
        until: i64,
        for_servers: bool,
    }

    const GOOD: ServingCertificate<'static> =
        ServingCertificate { name: "pillion.pillion-system.svc", from: -1, until: 7, for_servers: true };

    fn set_validity(params: &mut CertificateParams, from: i64, until: i64) {
        let day = |days: i64| {
            let seconds = Timestamp::now().as_second() + days * 86_400;
            // rcgen uses another crate's time type, so the time is a date plus seconds.
            rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(seconds).unwrap())
        };
        (params.not_before, params.not_after) = (day(from), day(until));
    }

    impl Ca {
        fn new(generation: u32) -> Self {
            Self::valid(generation, -1, 365)
        }

        fn valid(generation: u32, from: i64, until: i64) -> Self {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, format!("CA {generation}"));
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
            set_validity(&mut params, from, until);
            let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
            Self { generation: Generation(generation), issuer }
        }

        fn certificate(&self) -> CertificateDer<'static> {
            certificates(self.issuer.pem().as_bytes()).remove(0)
        }

        fn known(&self) -> KnownCa {
            KnownCa { generation: self.generation, certificate: self.certificate() }
        }

        fn serving_certificate(&self, certificate: &ServingCertificate<'_>) -> Vec<CertificateDer<'static>> {
            let mut params = CertificateParams::new(vec![certificate.name.to_owned()]).unwrap();
            params.extended_key_usages = vec![if certificate.for_servers {
                ExtendedKeyUsagePurpose::ServerAuth
            } else {
                ExtendedKeyUsagePurpose::ClientAuth
            }];
            set_validity(&mut params, certificate.from, certificate.until);
            let pem = params.signed_by(&KeyPair::generate().unwrap(), &self.issuer).unwrap().pem();
            certificates(pem.as_bytes())
        }
    }

    fn release() -> Release {
        Release::new("pillion", "pillion-system", DEFAULT_CLUSTER_DOMAIN).unwrap()
    }

    fn expected(known: &[&Ca], newest: u32, bundle: &[&Ca]) -> Expected {
        let known = known.iter().map(|ca| ca.known()).collect();
        let bundle = bundle.iter().map(|ca| ca.certificate()).collect();
        Expected::of(&release(), known, Some(Generation(newest)), bundle, 1).unwrap()
    }

    fn judge(expected: &Expected, chain: &[CertificateDer<'_>]) -> (Verdict, bool) {
        let judgement = expected.judge(chain, Timestamp::now(), DAY + DAY / 2);
        (judgement.verdict, judgement.trusted)
    }

    #[test]
    fn verdict_and_trust_are_independent() {
        let (old, new, untrusted) = (Ca::new(1), Ca::new(2), Ca::new(3));
        let certificates = [&old, &new, &untrusted].map(|ca| ca.serving_certificate(&GOOD));
        let cases: [(&str, &[&Ca], Verdicts); 4] = [
            (
                "expanded",
                &[&old, &new],
                [(Verdict::Older(Generation(1)), true), (Verdict::Newest, true), (Verdict::Untrusted, false)],
            ),
            (
                "contracted",
                &[&new],
                [(Verdict::Older(Generation(1)), false), (Verdict::Newest, true), (Verdict::Untrusted, false)],
            ),
            (
                "a foreign certificate in the bundle",
                &[&old, &untrusted],
                [(Verdict::Older(Generation(1)), true), (Verdict::Newest, false), (Verdict::Untrusted, true)],
            ),
            (
                "no bundle yet: all known CAs",
                &[],
                [(Verdict::Older(Generation(1)), true), (Verdict::Newest, true), (Verdict::Untrusted, false)],
            ),
        ];
        for (what, bundle, verdicts) in cases {
            let expected = expected(&[&old, &new], 2, bundle);
            for (certificate, verdict) in certificates.iter().zip(verdicts) {
                assert_eq!(judge(&expected, certificate), verdict, "{what}");
            }
        }
    }

    #[test]
    fn invalid_certificate_of_newest_ca_has_defect() {
        let new = Ca::new(2);
        let expected = expected(&[&new], 2, &[&new]);
        let cases = [
            (GOOD, (Verdict::Newest, true)),
            (ServingCertificate { until: 2, ..GOOD }, (Verdict::Newest, true)),
            (ServingCertificate { until: 1, ..GOOD }, (Verdict::Invalid(Defect::Expiring), true)),
            (ServingCertificate { from: -9, until: -2, ..GOOD }, (Verdict::Invalid(Defect::Expired), false)),
            (ServingCertificate { from: 2, ..GOOD }, (Verdict::Invalid(Defect::NotYetValid), false)),
            (
                ServingCertificate { name: "other.pillion-system.svc", ..GOOD },
                (Verdict::Invalid(Defect::WrongName), false),
            ),
        ];
        for (certificate, verdict) in cases {
            assert_eq!(judge(&expected, &new.serving_certificate(&certificate)), verdict);
        }
        let for_clients = new.serving_certificate(&ServingCertificate { for_servers: false, ..GOOD });
        assert!(matches!(
            judge(&expected, &for_clients),
            (Verdict::Untrusted | Verdict::Invalid(Defect::Unusable), false)
        ));
    }

    #[test]
    fn expired_certificate_of_older_ca_is_older() {
        let (old, new) = (Ca::new(1), Ca::new(2));
        let expected = expected(&[&old, &new], 2, &[&old, &new]);
        let expired = old.serving_certificate(&ServingCertificate { from: -9, until: -2, ..GOOD });
        assert_eq!(judge(&expected, &expired), (Verdict::Older(Generation(1)), false));
    }

    #[test]
    fn validity_of_ca_counts() {
        let (over, ending) = (Ca::valid(2, -30, -2), Ca::valid(3, -30, 1));
        let expected_over = expected(&[&over], 2, &[&over]);
        assert_eq!(judge(&expected_over, &over.serving_certificate(&GOOD)), (Verdict::Invalid(Defect::Ca), false));
        // The certificate has seven days left, but its CA has only one.
        let soon =
            expected(&[&ending], 3, &[&ending]).judge(&ending.serving_certificate(&GOOD), Timestamp::now(), 2 * DAY);
        assert_eq!((soon.verdict, soon.trusted), (Verdict::Invalid(Defect::Expiring), true));
    }

    #[test]
    fn certificates_of_other_issuers_are_judged_by_bundle() {
        let (theirs, other) = (Ca::new(7), Ca::new(8));
        let expected = Expected::of_other_issuer(&release(), vec![theirs.certificate()]).unwrap();
        let cases = [
            (theirs.serving_certificate(&GOOD), (Verdict::Trusted, true)),
            (
                theirs.serving_certificate(&ServingCertificate { until: 1, ..GOOD }),
                (Verdict::Invalid(Defect::Expiring), true),
            ),
            (
                theirs.serving_certificate(&ServingCertificate { name: "other", ..GOOD }),
                (Verdict::Invalid(Defect::WrongName), false),
            ),
            (
                theirs.serving_certificate(&ServingCertificate { from: -9, until: -2, ..GOOD }),
                (Verdict::Invalid(Defect::Expired), false),
            ),
            (other.serving_certificate(&GOOD), (Verdict::Untrusted, false)),
        ];
        for (certificate, verdict) in cases {
            assert_eq!(judge(&expected, &certificate), verdict);
        }
    }

    #[test]
    fn unreadable_certificate_is_untrusted() {
        let new = Ca::new(2);
        let expected = expected(&[&new], 2, &[&new]);
        assert_eq!(judge(&expected, &[]), (Verdict::Untrusted, false));
        assert_eq!(judge(&expected, &[CertificateDer::from(vec![1, 2, 3])]), (Verdict::Untrusted, false));
        let none = Expected { known: Vec::new(), bundle: vec![CertificateDer::from(vec![1])], ..expected };
        assert_eq!(judge(&none, &new.serving_certificate(&GOOD)), (Verdict::Untrusted, false));
    }
}
