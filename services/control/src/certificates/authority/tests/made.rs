//! Tests new CAs and serving certificates with an independent parser, signature check and TLS client.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::aws_lc_rs;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::X509Certificate;

use super::{DAY, HOUR, authority, making, making_with, names, now, parsed, release, rotating};
use crate::certificates::authority::{Lifetimes, MakeError, Reason, SystemRandomness, identity};
use crate::certificates::rotation::{Generation, Phase};

fn key_identifiers(certificate: &X509Certificate<'_>) -> (Vec<u8>, Vec<u8>) {
    let (mut subject, mut authority) = (Vec::new(), Vec::new());
    for extension in certificate.extensions() {
        match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => subject = id.0.to_vec(),
            ParsedExtension::AuthorityKeyIdentifier(id) => {
                authority = id.key_identifier.as_ref().unwrap().0.to_vec();
            }
            _ => {}
        }
    }
    (subject, authority)
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
fn an_authority_is_what_the_specification_says() {
    let made = making(now(), |making| making.authority(Generation(3), &["extra.example".to_owned()])).unwrap();
    let certificate = parsed(made.certificate());
    assert!(is_p256(&certificate));
    assert_eq!(identity::claimed(&release(), made.certificate()), Some(Generation(3)));
    assert_eq!(certificate.subject(), certificate.issuer());
    assert_eq!(certificate.raw_serial().len(), 16, "{:?}", certificate.raw_serial());
    let (from, until) = seconds(&certificate);
    assert_eq!(from, now().as_second() - 7200);
    assert_eq!(until, now().as_second() + 365 * 86_400);
    assert_eq!(until, made.facts.not_after.as_second());
    assert_eq!((made.facts.created.as_second(), made.facts.has_key), (now().as_second(), true));

    let constraints = certificate.basic_constraints().unwrap().unwrap();
    assert!(constraints.critical && constraints.value.ca && constraints.value.path_len_constraint == Some(0));
    let usage = certificate.key_usage().unwrap().unwrap();
    assert!(usage.critical && usage.value.key_cert_sign() && usage.value.flags == 1 << 5, "{:?}", usage.value);
    let (subject, authority) = key_identifiers(&certificate);
    assert!(!subject.is_empty() && subject == authority);
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
            "pillion-canary.pillion-system.svc",
            "pillion-canary.pillion-system.svc.cluster.local",
            "extra.example",
        ]
    );
    certificate.verify_signature(None).unwrap();
}

#[test]
fn a_leaf_is_what_the_specification_says() {
    let signer = authority(3);
    let leaf = making(now(), |making| making.leaf(&signer, &names())).unwrap();
    let (certificate, issuer) = (parsed(leaf.certificate()), parsed(signer.certificate()));
    assert!(is_p256(&certificate));
    assert_eq!(certificate.issuer(), issuer.subject());
    assert_ne!(certificate.subject(), issuer.subject());
    certificate.verify_signature(Some(issuer.public_key())).unwrap();
    parsed(authority(3).certificate()).verify_signature(Some(issuer.public_key())).unwrap_err();
    assert_eq!(certificate.raw_serial().len(), 16);
    assert_eq!(seconds(&certificate), (now().as_second() - 7200, now().as_second() + 7 * 86_400));
    assert_eq!((leaf.signer, leaf.not_after.as_second()), (Generation(3), now().as_second() + 7 * 86_400));
    let half = leaf.renew_at.as_second() - now().as_second();
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
fn no_two_authorities_share_a_name_nor_two_certificates_a_number() {
    let mut random = SystemRandomness;
    let (release, lifetimes) = (release(), Lifetimes::default());
    let mut making = super::Making { release: &release, lifetimes: &lifetimes, now: now(), random: &mut random };
    let (one, two) = (making.authority(Generation(1), &[]).unwrap(), making.authority(Generation(1), &[]).unwrap());
    let (one, two) = (parsed(one.certificate()), parsed(two.certificate()));
    assert_ne!(one.subject(), two.subject());
    assert_ne!(one.raw_serial(), two.raw_serial());
    assert_ne!(one.public_key(), two.public_key());
}

#[test]
fn a_leaf_ends_well_before_its_authority() {
    let signer = authority(1);
    let end = signer.facts.not_after;
    let leaf_at = |before: Duration| {
        let now = end - before;
        making(now, |making| making.leaf(&signer, &names())).map(|leaf| (leaf.not_after - now, end - leaf.not_after))
    };
    let hours = |span: jiff::Span| span.total(jiff::Unit::Hour).unwrap().round();
    for (before, lives, remains) in [
        (100 * DAY, 168.0, 93.0 * 24.0),
        (37 * DAY, 168.0, 30.0 * 24.0),
        (34 * DAY, 96.0, 30.0 * 24.0),
        // The CA was not replaced, and a serving certificate is still needed.
        (33 * DAY, 84.0, 33.0 * 24.0 - 84.0),
        (2 * DAY, 48.0, 0.0),
        (HOUR, 1.0, 0.0),
    ] {
        let (found, left) = leaf_at(before).unwrap();
        assert_eq!((hours(found), hours(left)), (lives, remains), "{before:?} before the end");
    }
    let ended = leaf_at(Duration::ZERO).unwrap_err();
    assert!(matches!(ended, MakeError::Ended { .. }), "{ended}");
}

#[test]
fn lives_scale_down_to_seconds() {
    let lifetimes = Lifetimes::of(Duration::from_mins(1), Duration::from_secs(10));
    let signer = making_with(&lifetimes, now(), |making| making.authority(Generation(1), &[])).unwrap();
    assert_eq!(signer.facts.not_after.as_second() - now().as_second(), 60);
    let leaf = making_with(&lifetimes, now(), |making| making.leaf(&signer, &names())).unwrap();
    assert_eq!(leaf.not_after.as_second() - now().as_second(), 10);
    let renewal = leaf.renew_at.duration_since(now()).as_millis();
    assert!((3_500..=5_000).contains(&renewal), "{renewal}");
    let late = now() + Duration::from_secs(50);
    let leaf = making_with(&lifetimes, late, |making| making.leaf(&signer, &names())).unwrap();
    assert_eq!(signer.facts.not_after.as_second() - leaf.not_after.as_second(), 5);
}

#[test]
fn an_authority_signs_for_its_release_alone() {
    let signer = authority(1);
    for foreign in ["kubernetes.default.svc", "other.pillion-system.svc", "svc"] {
        let names = [foreign.to_owned()];
        match making(now(), |making| making.leaf(&signer, &names)) {
            Err(MakeError::Unfit(unfit)) => assert_eq!(unfit.reason, Reason::Untrusted, "{unfit}"),
            other => panic!("{foreign}: {other:?}"),
        }
    }
    let canary = release().canary_names();
    assert!(making(now(), |making| making.leaf(&signer, &canary)).is_ok());
    for wrong in ["ä.svc", "a b", ""] {
        let made = making(now(), |making| making.leaf(&signer, &[wrong.to_owned()]));
        assert!(made.is_err(), "{wrong:?}");
        let made = making(now(), |making| making.authority(Generation(1), &[wrong.to_owned()]));
        assert_eq!(made, Err(MakeError::NotAName(wrong.to_owned())));
    }
}

#[test]
fn only_who_has_a_key_signs() {
    let known = rotating(Phase::Expanded);
    for generation in [Generation(1), Generation(2)] {
        let leaf = making(now(), |making| known.sign(generation, &names(), making)).unwrap();
        assert_eq!(leaf.signer, generation);
    }
    let unknown = making(now(), |making| known.sign(Generation(3), &names(), making));
    assert_eq!(unknown, Err(MakeError::NoAuthority(Generation(3))));
    let mut record = known.record().clone();
    record.phase = Phase::Soaking;
    record.active = record.active.map(|active| crate::certificates::rotation::Authority { has_key: false, ..active });
    let soaking = known.with(record, None).unwrap();
    let without = making(now(), |making| soaking.sign(Generation(1), &names(), making));
    assert_eq!(without, Err(MakeError::NoKey(Generation(1))));
}

#[test]
fn no_private_key_is_shown() {
    let known = rotating(Phase::Expanded);
    let leaf = making(now(), |making| known.sign(Generation(1), &names(), making)).unwrap();
    let shown = format!("{known:?} {leaf:?}");
    assert!(shown.contains("PrivateKey(..)") && !shown.contains("PRIVATE KEY"), "{shown}");
    let key = leaf.key().pem().lines().nth(1).unwrap();
    assert!(!shown.contains(key));
}

/// An in-memory handshake with the TLS library on both sides; the client's result.
fn handshake(
    version: &'static SupportedProtocolVersion,
    leaf: &crate::certificates::authority::LeafMaterial,
    bundle: &str,
    name: &str,
) -> Result<(), rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let server = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[version]).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(leaf.pem().as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(leaf.key().pem().as_bytes()).unwrap();
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
fn clients_that_trust_the_bundle_trust_the_leaf_and_others_do_not() {
    // Uses this machine's clock: the client has no other.
    let now = jiff::Timestamp::now();
    let (one, two) = making(now, |making| {
        (making.authority(Generation(1), &[]).unwrap(), making.authority(Generation(2), &[]).unwrap())
    });
    let leaf = making(now, |making| making.leaf(&two, &names())).unwrap();
    let both = one.pem() + &two.pem();
    for version in [&TLS12, &TLS13] {
        for name in names() {
            handshake(version, &leaf, &both, &name).unwrap();
            handshake(version, &leaf, &two.pem(), &name).unwrap();
            handshake(version, &leaf, &one.pem(), &name).unwrap_err();
        }
        handshake(version, &leaf, &both, "pillion.other.svc").unwrap_err();
    }
}
