//! Tests new certificates with an independent parser, signature check and TLS client. Tests each reason to reject a
//! certificate.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use rustls::crypto::aws_lc_rs;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::X509Certificate;

use super::{DAY, HOUR, ca, issuing, issuing_with, names, now, parsed, release, rotating};
use crate::certificates::ca::judge::judge;
use crate::certificates::ca::{
    CaName, Expected, InvalidPair, IssueError, Lifetimes, MAX_GENERATION, Reason, ServingMaterial, ca_name,
    claimed_generation, distinguished_name,
};
use crate::certificates::rotation::{Ca, Generation, Phase};
use crate::release::{DEFAULT_CLUSTER_DOMAIN, Release};

fn key_identifiers(certificate: &X509Certificate<'_>) -> (Vec<u8>, Vec<u8>) {
    let (mut subject, mut ca) = (Vec::new(), Vec::new());
    for extension in certificate.extensions() {
        match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => subject = id.0.to_vec(),
            ParsedExtension::AuthorityKeyIdentifier(id) => {
                ca = id.key_identifier.as_ref().unwrap().0.to_vec();
            }
            _ => {}
        }
    }
    (subject, ca)
}

fn is_p256(certificate: &X509Certificate<'_>) -> bool {
    let algorithm = &certificate.public_key().algorithm;
    let curve = algorithm.parameters.as_ref().and_then(|curve| curve.as_oid().ok());
    algorithm.algorithm.to_id_string() == "1.2.840.10045.2.1"
        && curve.is_some_and(|curve| curve.to_id_string() == "1.2.840.10045.3.1.7")
}

fn seconds(certificate: &X509Certificate<'_>) -> (i64, i64) {
    let validity = certificate.validity();
    (validity.not_before.timestamp(), validity.not_after.timestamp())
}

#[test]
fn ca_certificate_has_specified_fields() {
    let made = issuing(now(), |issuing| issuing.ca(Generation(3))).unwrap();
    let certificate = parsed(made.certificate());
    assert!(is_p256(&certificate));
    assert_eq!(claimed_generation(&release(), made.certificate()), Some(Generation(3)));
    assert_eq!(certificate.subject(), certificate.issuer());
    let (from, until) = seconds(&certificate);
    assert_eq!(from, now().as_second() - 7200);
    assert_eq!(until, now().as_second() + 365 * 86_400);
    assert_eq!(until, made.facts.not_after.as_second());
    assert_eq!((made.facts.created.as_second(), made.facts.has_key), (now().as_second(), true));

    let constraints = certificate.basic_constraints().unwrap().unwrap();
    assert!(constraints.critical && constraints.value.ca && constraints.value.path_len_constraint == Some(0));
    let usage = certificate.key_usage().unwrap().unwrap();
    assert!(usage.critical && usage.value.key_cert_sign() && usage.value.flags == 1 << 5, "{:?}", usage.value);
    let (subject, ca) = key_identifiers(&certificate);
    assert!(!subject.is_empty() && subject == ca);
    let constraints = certificate.name_constraints().unwrap().unwrap();
    assert!(!constraints.critical && constraints.value.excluded_subtrees.is_none());
    let permitted = constraints.value.permitted_subtrees.as_ref().unwrap();
    let permitted: Vec<_> = permitted
        .iter()
        .map(|subtree| match subtree.base {
            GeneralName::DNSName(name) => name,
            ref other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        permitted,
        [
            "pillion.pillion-system.svc",
            "pillion.pillion-system.svc.cluster.local",
            "pillion-trust-probe.pillion-system.svc",
            "pillion-trust-probe.pillion-system.svc.cluster.local",
        ]
    );
    certificate.verify_signature(None).unwrap();
}

#[test]
fn serving_certificate_has_specified_fields() {
    let signer = ca(3);
    let serving = issuing(now(), |issuing| issuing.serving_certificate(&signer, &names())).unwrap();
    let (certificate, issuer) = (parsed(serving.certificate()), parsed(signer.certificate()));
    assert!(is_p256(&certificate));
    assert_eq!(certificate.issuer(), issuer.subject());
    assert_ne!(certificate.subject(), issuer.subject());
    certificate.verify_signature(Some(issuer.public_key())).unwrap();
    parsed(ca(3).certificate()).verify_signature(Some(issuer.public_key())).unwrap_err();
    assert_eq!(seconds(&certificate), (now().as_second() - 7200, now().as_second() + 7 * 86_400));
    assert_eq!((serving.signer, serving.not_after.as_second()), (Generation(3), now().as_second() + 7 * 86_400));
    let half = serving.renew_at.as_second() - now().as_second();
    assert!((86_400 * 315 / 100 - 1..=86_400 * 350 / 100).contains(&half), "{half}");

    let alternative = certificate.subject_alternative_name().unwrap().unwrap();
    let expected: Vec<_> = names().into_iter().collect();
    let found: Vec<_> = alternative
        .value
        .general_names
        .iter()
        .map(|name| match name {
            GeneralName::DNSName(name) => (*name).to_owned(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(found, expected);
    assert!(!certificate.is_ca());
    let usage = certificate.key_usage().unwrap().unwrap();
    assert!(usage.value.digital_signature() && usage.value.flags == 1);
    let extended = certificate.extended_key_usage().unwrap().unwrap();
    assert!(extended.value.server_auth && !extended.value.client_auth && !extended.value.any);
    let ((own, of_signer), (signers, _)) = (key_identifiers(&certificate), key_identifiers(&issuer));
    assert!(!own.is_empty() && own != signers && of_signer == signers);
}

#[test]
fn cas_share_neither_name_nor_serial() {
    let (one, two) = (ca(1), ca(1));
    let (one, two) = (parsed(one.certificate()), parsed(two.certificate()));
    assert_ne!(one.subject(), two.subject());
    assert_ne!(one.raw_serial(), two.raw_serial());
    assert_ne!(one.public_key(), two.public_key());
}

#[test]
fn serving_certificate_ends_before_its_ca() {
    let signer = ca(1);
    let end = signer.facts.not_after;
    let certificate_at = |before: Duration| {
        let now = end - before;
        issuing(now, |issuing| issuing.serving_certificate(&signer, &names()))
            .map(|serving| (serving.not_after - now, end - serving.not_after))
    };
    let hours = |span: jiff::Span| span.total(jiff::Unit::Hour).unwrap().round();
    for (before, lives, remains) in [
        (100 * DAY, 168.0, 93.0 * 24.0),
        (37 * DAY, 168.0, 30.0 * 24.0),
        (34 * DAY, 96.0, 30.0 * 24.0),
        // The CA was not replaced in time. The certificate gets half of its lifetime, or ends with the CA.
        (33 * DAY, 84.0, 33.0 * 24.0 - 84.0),
        (2 * DAY, 48.0, 0.0),
        (HOUR, 1.0, 0.0),
    ] {
        let (found, left) = certificate_at(before).unwrap();
        assert_eq!((hours(found), hours(left)), (lives, remains), "{before:?} before the end");
    }
    let ended = certificate_at(Duration::ZERO).unwrap_err();
    assert!(matches!(ended, IssueError::Ended { .. }), "{ended}");
    assert!(ended.to_string().starts_with("CA 1 expires at "), "{ended}");
}

#[test]
fn lifetimes_scale_down_to_seconds() {
    let lifetimes = Lifetimes::of(Duration::from_mins(1), Duration::from_secs(10));
    let signer = issuing_with(&lifetimes, now(), |issuing| issuing.ca(Generation(1))).unwrap();
    assert_eq!(signer.facts.not_after.as_second() - now().as_second(), 60);
    let serving = issuing_with(&lifetimes, now(), |issuing| issuing.serving_certificate(&signer, &names())).unwrap();
    assert_eq!(serving.not_after.as_second() - now().as_second(), 10);
    let renewal = serving.renew_at.duration_since(now()).as_millis();
    assert!((3_500..=5_000).contains(&renewal), "{renewal}");
    let late = now() + Duration::from_secs(50);
    let serving = issuing_with(&lifetimes, late, |issuing| issuing.serving_certificate(&signer, &names())).unwrap();
    assert_eq!(signer.facts.not_after.as_second() - serving.not_after.as_second(), 5);
}

#[test]
fn ca_signs_only_names_of_its_release() {
    let signer = ca(1);
    for foreign in ["kubernetes.default.svc", "other.pillion-system.svc", "svc"] {
        let names = [foreign.to_owned()];
        match issuing(now(), |issuing| issuing.serving_certificate(&signer, &names)) {
            Err(IssueError::Untrusted(invalid)) => assert_eq!(invalid.reason, Reason::Untrusted, "{invalid}"),
            other => panic!("{foreign}: {other:?}"),
        }
    }
    let trust_probe = release().trust_probe_names();
    assert!(issuing(now(), |issuing| issuing.serving_certificate(&signer, &trust_probe)).is_ok());
    for wrong in ["ä.svc", "a b", ""] {
        let made = issuing(now(), |issuing| issuing.serving_certificate(&signer, &[wrong.to_owned()]));
        assert!(made.is_err(), "{wrong:?}");
    }
}

#[test]
fn ca_without_key_cannot_sign() {
    let known = rotating(Phase::Expanded);
    for generation in [Generation(1), Generation(2)] {
        let serving = issuing(now(), |issuing| known.sign(generation, &names(), issuing)).unwrap();
        assert_eq!(serving.signer, generation);
    }
    let unknown = issuing(now(), |issuing| known.sign(Generation(3), &names(), issuing));
    assert_eq!(unknown, Err(IssueError::NoCa(Generation(3))));
    assert!(IssueError::NoCa(Generation(3)).to_string().starts_with("CA 3 does not exist"));
    let mut record = known.record().clone();
    record.phase = Phase::Soaking;
    record.active = record.active.map(|active| Ca { has_key: false, ..active });
    let soaking = known.with(record, None).unwrap();
    let without = issuing(now(), |issuing| soaking.sign(Generation(1), &names(), issuing));
    assert_eq!(without, Err(IssueError::NoKey(Generation(1))));
}

#[test]
fn debug_output_omits_private_keys() {
    let known = rotating(Phase::Expanded);
    let serving = issuing(now(), |issuing| known.sign(Generation(1), &names(), issuing)).unwrap();
    let shown = format!("{known:?} {serving:?}");
    assert!(shown.contains("PrivateKey(..)") && !shown.contains("PRIVATE KEY"), "{shown}");
    let key = serving.key().pem().lines().nth(1).unwrap();
    assert!(!shown.contains(key));
}

/// Runs an in-memory handshake, and returns the client's result. Both sides use the TLS library.
fn handshake(
    version: &'static SupportedProtocolVersion,
    serving: &ServingMaterial,
    bundle: &str,
    name: &str,
) -> Result<(), rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let server = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[version]).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(serving.pem().as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(serving.key().pem().as_bytes()).unwrap();
    let server = server.with_no_client_auth().with_single_cert(chain, key).unwrap();
    let client = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
    let client = client.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    let mut buffer = Vec::new();
    for _ in 0..10 {
        buffer.clear();
        while client.wants_write() {
            client.write_tls(&mut buffer).unwrap();
        }
        server.read_tls(&mut buffer.as_slice()).unwrap();
        let _ = server.process_new_packets();
        buffer.clear();
        while server.wants_write() {
            server.write_tls(&mut buffer).unwrap();
        }
        client.read_tls(&mut buffer.as_slice()).unwrap();
        client.process_new_packets()?;
        if !client.is_handshaking() && !server.is_handshaking() {
            client.writer().write_all(b"hello").unwrap();
            buffer.clear();
            client.write_tls(&mut buffer).unwrap();
            server.read_tls(&mut buffer.as_slice()).unwrap();
            server.process_new_packets().unwrap();
            let mut heard = [0; 5];
            server.reader().read_exact(&mut heard).unwrap();
            assert_eq!(&heard, b"hello");
            return Ok(());
        }
    }
    panic!("the handshake does not end");
}

#[test]
fn tls_clients_trust_only_the_bundle() {
    // The client always uses this machine's clock.
    let now = Timestamp::now();
    let (one, two) = issuing(now, |issuing| (issuing.ca(Generation(1)).unwrap(), issuing.ca(Generation(2)).unwrap()));
    let serving = issuing(now, |issuing| issuing.serving_certificate(&two, &names())).unwrap();
    let both = one.pem() + &two.pem();
    for version in [&TLS12, &TLS13] {
        for name in names() {
            handshake(version, &serving, &both, &name).unwrap();
            handshake(version, &serving, &two.pem(), &name).unwrap();
            handshake(version, &serving, &one.pem(), &name).unwrap_err();
        }
        handshake(version, &serving, &both, "pillion.other.svc").unwrap_err();
    }
}

#[test]
fn ca_name_has_release_and_number() {
    let certificate = |name: DistinguishedName| -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name;
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().into()
    };
    let release = release();
    for number in [1, 7, MAX_GENERATION] {
        let made = certificate(ca_name(&release, Generation(number), "ab"));
        assert_eq!(claimed_generation(&release, &made), Some(Generation(number)));
        assert_eq!(CaName::of_issuer(&made).unwrap().generation_in(&release), Some(Generation(number)));
    }
    for (name, namespace) in [("pillion-2", "pillion-system"), ("pillion", "other")] {
        let other = Release::new(name, namespace, DEFAULT_CLUSTER_DOMAIN).unwrap();
        let made = certificate(ca_name(&other, Generation(3), "0"));
        assert_eq!(claimed_generation(&release, &made), None, "a CA of another release");
    }
    for text in ["Pillion", "Pillion CA 3", "Pillion CA +3 x", "Pillion CA 2147483648 x", "CA 3 x"] {
        let made = certificate(distinguished_name(&release, text.to_owned()));
        assert_eq!(claimed_generation(&release, &made), None, "{text}");
    }
    let mut twice = ca_name(&release, Generation(3), "x");
    twice.push(DnType::CustomDnType(vec![2, 5, 4, 10]), "pillion-system");
    let _ = claimed_generation(&release, &certificate(twice));
    assert_eq!(claimed_generation(&release, &CertificateDer::from(vec![0x30, 0x82])), None, "not a certificate");
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn renewal_is_spread_before_half_of_life() {
    let lifetimes = Lifetimes::default();
    let (made, day) = (1_000_000, 86_400);
    let mut seen = BTreeSet::new();
    for number in 0..200_u8 {
        let serving = CertificateDer::from(vec![number; 300]);
        let (from, until) = (at(made - 7_200), at(made + 7 * day));
        let renew = lifetimes.renew_at(&serving, from, until);
        assert_eq!(renew, lifetimes.renew_at(&serving, from, until), "the same time for every leader");
        let after = renew.as_second() - made;
        assert!((day * 315 / 100..=day * 350 / 100).contains(&after), "{after}");
        seen.insert(after);
    }
    assert!(seen.len() > 190, "spread: {}", seen.len());
    assert!(seen.last().unwrap() - seen.first().unwrap() > day / 4, "the times cover most of the range");
}

#[test]
fn renewal_scales_down_to_seconds() {
    let lifetimes = Lifetimes::of(Duration::from_mins(1), Duration::from_secs(10));
    assert_eq!(lifetimes.margin.as_secs(), 4);
    let serving = CertificateDer::from(vec![7; 300]);
    let renew = lifetimes.renew_at(&serving, at(100 - 10), at(110));
    let after = renew.duration_since(at(100)).as_millis();
    assert!((4_500..=5_000).contains(&after), "{after}");
}

#[test]
fn renewal_is_never_after_the_end() {
    let serving = CertificateDer::from(vec![1]);
    for (from, until) in [
        (Timestamp::MIN, Timestamp::MAX),
        (Timestamp::MAX, Timestamp::MIN),
        (Timestamp::MIN, Timestamp::MIN),
        (Timestamp::MAX, Timestamp::MAX),
        (at(0), at(0)),
        (at(0), at(1)),
    ] {
        for lifetimes in [Lifetimes::default(), Lifetimes::of(Duration::ZERO, Duration::ZERO)] {
            assert!(lifetimes.renew_at(&serving, from, until) <= until);
        }
    }
}

fn reason(
    certificate: &str,
    key: &str,
    names: &[String],
    now: Timestamp,
    trusted: Option<&[CertificateDer<'static>]>,
) -> Option<Reason> {
    let judged = judge(certificate.as_bytes(), key.as_bytes(), Expected { names, now, trusted });
    if let Err(invalid) = &judged {
        let text = invalid.to_string();
        assert!(!text.is_empty() && !text.contains("PRIVATE KEY-"), "{text}");
    }
    judged.err().map(|InvalidPair { reason, .. }| reason)
}

#[test]
fn each_invalid_pair_has_its_reason() {
    let (signer, other) = (ca(1), ca(2));
    let serving = issuing(now(), |issuing| issuing.serving_certificate(&signer, &names())).unwrap();
    let another = issuing(now(), |issuing| issuing.serving_certificate(&signer, &names())).unwrap();
    let (crt, key) = (serving.pem(), serving.key().pem().to_owned());
    let trusted = [other.certificate().clone(), signer.certificate().clone()];
    let other_cas = [other.certificate().clone()];
    let all = names();
    let more = [all.clone(), vec!["pillion.example".to_owned()]].concat();
    let nonsense = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    let useless = "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n";
    let broken = "-----BEGIN CERTIFICATE-----\nMIIB\n";
    let early = now() - 2 * HOUR;
    let minutes = |minutes: u64| Duration::from_mins(minutes);

    let purpose = {
        let mut params = CertificateParams::new(all.clone()).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    };
    let mut seen = BTreeSet::new();
    for (crt, key, names, at, trusted, expected) in [
        (&*crt, &*key, &all, now(), Some(&trusted[..]), None),
        (&crt, &key, &all, now(), None, None),
        (&crt, &key, &vec![], now(), Some(&trusted), Some(Reason::Name)),
        ("", &key, &all, now(), None, Some(Reason::NoCertificate)),
        (&key, &key, &all, now(), None, Some(Reason::NoCertificate)),
        (broken, &key, &all, now(), None, Some(Reason::NoCertificate)),
        (nonsense, &key, &all, now(), None, Some(Reason::BadCertificate)),
        (&crt, "", &all, now(), None, Some(Reason::NoKey)),
        (&crt, &crt, &all, now(), None, Some(Reason::NoKey)),
        (&crt, useless, &all, now(), None, Some(Reason::BadKey)),
        (&crt, another.key().pem(), &all, now(), None, Some(Reason::Mismatch)),
        (&crt, &key, &more, now(), Some(&trusted), Some(Reason::Name)),
        (&crt, &key, &vec!["not a name".to_owned()], now(), None, Some(Reason::Name)),
        // Certificates are backdated by two hours, and a clock difference of five minutes is tolerated.
        (&crt, &key, &all, early - minutes(4), Some(&trusted), None),
        (&crt, &key, &all, early - minutes(6), Some(&trusted), Some(Reason::NotYet)),
        (&crt, &key, &all, now() + 7 * DAY - minutes(1), Some(&trusted), None),
        (&crt, &key, &all, now() + 7 * DAY + minutes(1), Some(&trusted), Some(Reason::Expired)),
        (&purpose.0, &purpose.1, &all, now(), None, Some(Reason::Purpose)),
        (&crt, &key, &all, now(), Some(&other_cas), Some(Reason::Untrusted)),
        (&crt, &key, &all, now(), Some(&[]), Some(Reason::Untrusted)),
    ] {
        let found = reason(crt, key, names, at, trusted);
        assert_eq!(found, expected, "{crt:.40} {names:?} {at}");
        seen.extend(found.map(Reason::as_str));
    }
    assert_eq!(seen, Reason::ALL.iter().map(|reason| reason.as_str()).collect(), "every reason is tested");
}

#[test]
fn expired_ca_is_not_trusted() {
    let signer = ca(1);
    let late = signer.facts.not_after - DAY;
    let serving = issuing(late, |issuing| issuing.serving_certificate(&signer, &names())).unwrap();
    let trusted = [signer.certificate().clone()];
    let at = |now| reason(&serving.pem(), serving.key().pem(), &names(), now, Some(&trusted));
    assert_eq!(at(late), None);
    // The certificate ends with its CA, so its own expiry is reported first.
    assert_eq!(at(signer.facts.not_after), Some(Reason::Expired));
}

#[test]
fn accepts_chain_with_intermediate() {
    let issuer = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params
    };
    let root = CertifiedIssuer::self_signed(issuer("root"), KeyPair::generate().unwrap()).unwrap();
    let middle = CertifiedIssuer::signed_by(issuer("middle"), KeyPair::generate().unwrap(), &root).unwrap();
    let key = KeyPair::generate().unwrap();
    let serving = CertificateParams::new(names()).unwrap().signed_by(&key, &middle).unwrap();
    let trusted = [root.der().clone()];
    let judged = |text: &str| reason(text, &key.serialize_pem(), &names(), now(), Some(&trusted));
    assert_eq!(judged(&(serving.pem() + &middle.pem())), None);
    assert_eq!(judged(&serving.pem()), Some(Reason::Untrusted), "without the intermediate");
    assert_eq!(
        judged(&(middle.pem() + &serving.pem())),
        Some(Reason::Mismatch),
        "the serving certificate is not first"
    );
}
