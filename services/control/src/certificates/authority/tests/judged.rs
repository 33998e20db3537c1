//! Tests each reason for which a certificate is not served.

use std::collections::BTreeSet;

use jiff::Timestamp;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair};
use rustls_pki_types::CertificateDer;

use super::{DAY, HOUR, authority, making, names, now};
use crate::certificates::authority::judge::judge;
use crate::certificates::authority::{Expected, Reason, Unfit};

fn reason(
    certificate: &str,
    key: &str,
    names: &[String],
    now: Timestamp,
    trusted: Option<&[CertificateDer<'static>]>,
) -> Option<Reason> {
    let judged = judge(certificate.as_bytes(), key.as_bytes(), Expected { names, now, trusted });
    if let Err(unfit) = &judged {
        let text = unfit.to_string();
        assert!(!text.is_empty() && !text.contains("PRIVATE KEY-"), "{text}");
    }
    judged.err().map(|Unfit { reason, .. }| reason)
}

#[test]
fn each_reason_is_told_and_the_rest_is_served() {
    let (signer, other) = (authority(1), authority(2));
    let leaf = making(now(), |making| making.leaf(&signer, &names())).unwrap();
    let another = making(now(), |making| making.leaf(&signer, &names())).unwrap();
    let (crt, key) = (leaf.pem(), leaf.key().pem().to_owned());
    let trusted = [other.certificate().clone(), signer.certificate().clone()];
    let strangers = [other.certificate().clone()];
    let all = names();
    let more = [all.clone(), vec!["pillion.example".to_owned()]].concat();
    let nonsense = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    let useless = "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n";
    let broken = "-----BEGIN CERTIFICATE-----\nMIIB\n";
    let early = now() - 2 * HOUR;
    let minutes = |minutes: u64| std::time::Duration::from_mins(minutes);

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
        // Certificates are backdated by two hours, and five minutes of clock difference are tolerated.
        (&crt, &key, &all, early - minutes(4), Some(&trusted), None),
        (&crt, &key, &all, early - minutes(6), Some(&trusted), Some(Reason::NotYet)),
        (&crt, &key, &all, now() + 7 * DAY - minutes(1), Some(&trusted), None),
        (&crt, &key, &all, now() + 7 * DAY + minutes(1), Some(&trusted), Some(Reason::Expired)),
        (&purpose.0, &purpose.1, &all, now(), None, Some(Reason::Purpose)),
        (&crt, &key, &all, now(), Some(&strangers), Some(Reason::Untrusted)),
        (&crt, &key, &all, now(), Some(&[]), Some(Reason::Untrusted)),
    ] {
        let found = reason(crt, key, names, at, trusted);
        assert_eq!(found, expected, "{crt:.40} {names:?} {at}");
        seen.extend(found.map(Reason::as_str));
    }
    assert_eq!(seen, Reason::ALL.iter().map(|reason| reason.as_str()).collect(), "each is tried");
}

#[test]
fn an_authority_that_has_ended_vouches_for_nobody() {
    let signer = authority(1);
    let late = signer.facts.not_after - DAY;
    let leaf = making(late, |making| making.leaf(&signer, &names())).unwrap();
    let trusted = [signer.certificate().clone()];
    let at = |now| reason(&leaf.pem(), leaf.key().pem(), &names(), now, Some(&trusted));
    assert_eq!(at(late), None);
    // It ends with its CA, so the first failed check is reported.
    assert_eq!(at(signer.facts.not_after), Some(Reason::Expired));
}

#[test]
fn a_chain_by_way_of_an_intermediate_is_one() {
    use rcgen::{BasicConstraints, CertifiedIssuer, DnType, IsCa, KeyUsagePurpose};
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
    let leaf = CertificateParams::new(names()).unwrap().signed_by(&key, &middle).unwrap();
    let trusted = [root.der().clone()];
    let judged = |text: &str| reason(text, &key.serialize_pem(), &names(), now(), Some(&trusted));
    assert_eq!(judged(&(leaf.pem() + &middle.pem())), None);
    assert_eq!(judged(&leaf.pem()), Some(Reason::Untrusted), "without it");
    assert_eq!(judged(&(middle.pem() + &leaf.pem())), Some(Reason::Mismatch), "the leaf does not stand first");
}
