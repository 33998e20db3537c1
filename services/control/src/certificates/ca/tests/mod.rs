//! Tests the Secrets of a release and its bundles. [`issue`] tests new certificates.

mod issue;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::stored::CorruptSecret;
use super::{BundleContents, CaMaterial, CaSecret, Issuing, KnownCas, Lifetimes, MAX_EPOCH, MissingCa, Reason};
use crate::certificates::rotation::{
    Ca, Configuration, Generation, Observed, Phase, ProbeSummary, Propagation, Record, Serving, ServingCertificate,
    Settings, Stored, Trigger, next,
};
use crate::certificates::serving_secret::{ServingInputs, ServingSecret};
use crate::release::{DEFAULT_CLUSTER_DOMAIN, Release};

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

fn now() -> Timestamp {
    "2026-11-21T12:00:00.123456Z".parse().unwrap()
}

fn release() -> Release {
    Release::new("pillion", "pillion-system", DEFAULT_CLUSTER_DOMAIN).unwrap()
}

fn names() -> Vec<String> {
    release().server_names().to_vec()
}

/// Calls `make` with the default lifetimes, to issue certificates at `now`.
fn issuing<T>(now: Timestamp, make: impl FnOnce(Issuing<'_>) -> T) -> T {
    issuing_with(&Lifetimes::default(), now, make)
}

fn issuing_with<T>(lifetimes: &Lifetimes, now: Timestamp, make: impl FnOnce(Issuing<'_>) -> T) -> T {
    make(Issuing { release: &release(), lifetimes, now })
}

fn ca(number: u32) -> CaMaterial {
    issuing(now(), |issuing| issuing.ca(Generation(number))).unwrap()
}

/// Returns the record of a rotation in this phase.
fn record(phase: Phase, active: Option<Ca>, next: Option<Ca>) -> Record {
    Record { phase, since: now(), epoch: 7, bundle_epoch: 5, certificate_epoch: 6, active, next, trigger: None }
}

/// Returns the result of reading a missing Secret.
fn nothing() -> CaSecret {
    CaSecret::read(None, &release())
}

/// Returns the contents of the Secret in this phase of a rotation from CA 1 to CA 2.
fn rotating(phase: Phase) -> KnownCas {
    let (active, next) = (ca(1), ca(2));
    let stable = nothing().with(record(Phase::Stable, Some(active.facts), None), Some(active.clone())).unwrap();
    stable.with(record(phase, Some(active.facts), Some(next.facts)), Some(next)).unwrap()
}

fn read(data: BTreeMap<String, ByteString>) -> CaSecret {
    CaSecret::read(Some(&Secret { data: Some(data), ..Secret::default() }), &release())
}

fn known(secret: &CaSecret) -> &KnownCas {
    match &secret.stored {
        Stored::Is(known) => known,
        other => panic!("{other:?}: {:?}", secret.fault),
    }
}

fn parsed<'c>(certificate: &'c CertificateDer<'_>) -> X509Certificate<'c> {
    let (rest, parsed) = X509Certificate::from_der(certificate).unwrap();
    assert!(rest.is_empty());
    parsed
}

/// Returns damaged versions of a value of the Secret. They are truncated anywhere, have one byte changed or removed
/// anywhere, or are empty, doubled or replaced.
fn damaged(text: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let text = text.to_vec();
    let whole = [b"junk".to_vec(), vec![0xff; 100], text.repeat(2), Vec::new()];
    let anywhere = (0..text.len()).flat_map(move |at| {
        let changed = |byte| {
            let mut changed = text.clone();
            changed[at] = byte;
            changed
        };
        let mut without = text.clone();
        without.remove(at);
        [text[..at].to_vec(), changed(text[at] ^ 1), changed(text[at] ^ 0x20), changed(0), without]
    });
    whole.into_iter().chain(anywhere)
}

fn keys(known: &KnownCas) -> Vec<String> {
    known.data().unwrap().into_keys().collect()
}

fn keyless(ca: Option<Ca>) -> Option<Ca> {
    ca.map(|ca| Ca { has_key: false, ..ca })
}

/// Returns the contents of the Secret in all phases of a rotation from CA 1 to CA 2, and after it.
fn phases() -> Vec<KnownCas> {
    let mut all: Vec<_> =
        [Phase::Staged, Phase::Expanded, Phase::Switched, Phase::Verified].map(rotating).into_iter().collect();
    let verified = all.last().unwrap().clone();
    for phase in [Phase::Soaking, Phase::Contracted] {
        let Record { active, next, .. } = *verified.record();
        all.push(verified.with(record(phase, keyless(active), next), None).unwrap());
    }
    let contracted = all.last().unwrap();
    let stable = record(Phase::Stable, contracted.record().next, None);
    all.push(contracted.with(Record { trigger: Some(Trigger::Age), ..stable }, None).unwrap());
    all
}

#[test]
fn ca_secret_round_trips_in_every_phase() {
    for written in phases() {
        let secret = read(written.data().unwrap());
        assert_eq!(known(&secret), &written);
        assert_eq!(secret.record(), Stored::Is(written.record().clone()));
        assert_eq!((secret.highest, secret.fault), (Some(Generation(2)), None));
    }
}

#[test]
fn retired_keys_go_and_some_certificates_stay() {
    let phases = phases();
    let [.., verified, soaking, contracted, stable] = phases.as_slice() else { panic!() };
    let both = ["ca-1.crt", "ca-1.key", "ca-2.crt", "ca-2.key", "format", "record"];
    assert_eq!(keys(verified), both);
    let one = ["ca-1.crt", "ca-2.crt", "ca-2.key", "format", "record"];
    for known in [soaking, contracted, stable] {
        assert_eq!(keys(known), one);
    }
    assert_eq!(stable.generation_of(ca(1).certificate()), None);
    let retired = verified.ca(Generation(1)).unwrap().certificate();
    assert_eq!(verified.generation_of(retired), Some(Generation(1)));
    assert_eq!(stable.generation_of(retired), None, "CA 1 is retired");

    let mut known = stable.clone();
    for number in 3..12 {
        let fresh = ca(number);
        known = known.with(record(Phase::Stable, Some(fresh.facts), None), Some(fresh)).unwrap();
    }
    let kept: Vec<_> = keys(&known).into_iter().filter(|key| key.starts_with("ca-")).collect();
    let expected = ["ca-10.crt", "ca-11.crt", "ca-11.key", "ca-7.crt", "ca-8.crt", "ca-9.crt"];
    assert_eq!(kept, expected);
    assert_eq!(self::known(&read(known.data().unwrap())), &known);
}

#[test]
fn rejects_record_without_its_material() {
    let (one, two) = (ca(1), ca(2));
    let staged = record(Phase::Staged, Some(one.facts), Some(two.facts));
    assert_eq!(nothing().with(staged.clone(), Some(two.clone())), Err(MissingCa(Generation(1))));
    let stable = nothing().with(record(Phase::Stable, Some(one.facts), None), Some(one)).unwrap();
    assert_eq!(stable.with(staged.clone(), None), Err(MissingCa(Generation(2))));
    let staged = stable.with(staged, Some(two)).unwrap();
    let soaking = staged.with(record(Phase::Soaking, keyless(staged.record().active), staged.record().next), None);
    let again = soaking.unwrap().with(staged.record().clone(), None);
    assert_eq!(again, Err(MissingCa(Generation(1))), "the key of CA 1 was deleted");
}

#[test]
fn existing_secret_keeps_its_metadata() {
    let known = rotating(Phase::Staged);
    let fresh = known.secret(&release(), None).unwrap();
    assert_eq!(fresh.metadata.name.as_deref(), Some("pillion-ca"));
    assert_eq!(fresh.metadata.namespace.as_deref(), Some("pillion-system"));
    let mut existing = Secret { data: Some(BTreeMap::from([("x".to_owned(), ByteString(vec![1]))])), ..fresh.clone() };
    existing.metadata.resource_version = Some("42".to_owned());
    let written = known.secret(&release(), Some(&existing)).unwrap();
    assert_eq!(written.metadata, existing.metadata);
    assert_eq!(written.data, fresh.data, "other data is removed");
}

/// Runs the leader's decision, which must not panic.
fn decide(secret: &CaSecret) {
    for configuration in [Configuration::Absent, Configuration::Empty { epoch: MAX_EPOCH }] {
        let seen = Observed {
            now: now(),
            clock_agrees: true,
            record: secret.record(),
            serving: Stored::Corrupt,
            configuration,
            endpoints: ProbeSummary {
                answering: 0,
                rounds: 0,
                is_other_ca_served: false,
                untrusted: false,
                unreachable: 0,
            },
            propagation: Propagation { proven: 0, behind: 0, silent: 0 },
            requested: None,
            highest: secret.highest,
        };
        let _ = next(&Settings::default(), &seen);
    }
}

#[test]
fn detects_damage_anywhere_and_keeps_the_number() {
    let written = rotating(Phase::Switched);
    let whole = written.data().unwrap();
    let mut tried = 0;
    for (key, value) in &whole {
        for damage in damaged(&value.0) {
            tried += 1;
            let mut data = whole.clone();
            data.insert(key.clone(), ByteString(damage.clone()));
            let secret = read(data);
            decide(&secret);
            assert_eq!(secret.stored == Stored::Corrupt, secret.fault.is_some());
            // The CA numbers are in the certificates, and in the names of the data keys.
            assert!(secret.highest >= Some(Generation(2)), "{key}: {:?}", secret.highest);
            // A changed record may still be consistent. But each certificate must equal the original.
            if let (Stored::Is(found), true) = (&secret.stored, key.starts_with("ca-")) {
                assert_eq!(found.record(), written.record());
                for (found, expected) in found.cas().zip(written.cas()) {
                    assert_eq!(found.certificate(), expected.certificate(), "{key}: {damage:?}");
                }
            } else if key == "format" && damage != b"1" {
                assert_eq!(secret.fault, Some(CorruptSecret::Format), "{damage:?}");
            }
        }
        let mut data = whole.clone();
        data.remove(key);
        let secret = read(data);
        assert_eq!((&secret.stored, secret.highest), (&Stored::Corrupt, Some(Generation(2))), "without {key}");
        decide(&secret);
    }
    assert!(tried > 10_000, "{tried}");
}

#[test]
fn ignores_damage_to_retired_certificates() {
    let stable = phases().pop().unwrap();
    let whole = stable.data().unwrap();
    for damage in damaged(&whole["ca-1.crt"].0).step_by(7) {
        let mut data = whole.clone();
        data.insert("ca-1.crt".to_owned(), ByteString(damage));
        let secret = read(data);
        assert_eq!(known(&secret).record(), stable.record());
    }
}

#[test]
fn readable_certificates_of_corrupt_secret_are_retired() {
    let written = rotating(Phase::Verified);
    let mut data = written.data().unwrap();
    data.remove("record");
    let corrupt = read(data);
    assert_eq!(corrupt.highest, Some(Generation(2)));
    let fresh = ca(3);
    let known = corrupt.with(record(Phase::Staged, None, Some(fresh.facts)), Some(fresh)).unwrap();
    let expected = ["ca-1.crt", "ca-2.crt", "ca-3.crt", "ca-3.key", "format", "record"];
    assert_eq!(keys(&known), expected);
    assert_eq!(known.cas().count(), 1, "retired CAs do not count");
}

#[test]
fn rejects_contradictory_records() {
    let written = rotating(Phase::Verified);
    let data = written.data().unwrap();
    let base = written.record().clone();
    let (active, next) = (base.active, base.next);
    for wrong in [
        Record { epoch: MAX_EPOCH + 1, ..base.clone() },
        Record { epoch: u64::MAX, ..base.clone() },
        Record { bundle_epoch: base.epoch + 1, ..base.clone() },
        Record { certificate_epoch: base.epoch + 1, ..base.clone() },
        Record { next: None, ..base.clone() },
        Record { phase: Phase::Stable, ..base.clone() },
        Record { active: next, next: active, ..base.clone() },
        Record { next: active, ..base.clone() },
        Record { next: next.map(|next| Ca { generation: Generation(u32::MAX), ..next }), ..base.clone() },
    ] {
        let mut data = data.clone();
        data.insert("record".to_owned(), ByteString(serde_json::to_vec(&wrong).unwrap()));
        let secret = read(data);
        assert!(matches!(secret.fault, Some(CorruptSecret::Contradiction(_))), "{wrong:?}: {:?}", secret.fault);
        assert_eq!(secret.highest, Some(Generation(2)));
        decide(&secret);
    }
    let other_end = Record { next: next.map(|next| Ca { not_after: now(), ..next }), ..base };
    let mut data = data;
    data.insert("record".to_owned(), ByteString(serde_json::to_vec(&other_end).unwrap()));
    assert!(matches!(read(data).fault, Some(CorruptSecret::Certificate { of: Generation(2), .. })));
}

#[test]
fn rejects_material_of_other_cas() {
    let written = rotating(Phase::Verified);
    let data = written.data().unwrap();
    let other = ca(2);
    let others = nothing().with(record(Phase::Stable, Some(other.facts), None), Some(other)).unwrap().data().unwrap();
    let with = |changes: &[(&str, &ByteString)]| {
        let mut data = data.clone();
        for (key, value) in changes {
            data.insert((*key).to_owned(), (*value).clone());
        }
        read(data).fault
    };
    let key_of_1 = &data["ca-1.key"];
    assert!(matches!(with(&[("ca-2.key", key_of_1)]), Some(CorruptSecret::Key { of: Generation(2), .. })));
    assert!(matches!(with(&[("ca-2.key", &others["ca-2.key"])]), Some(CorruptSecret::Key { .. })));
    assert!(matches!(with(&[("ca-2.crt", &others["ca-2.crt"])]), Some(CorruptSecret::Key { .. })));
    let crt_of_1 = &data["ca-1.crt"];
    assert!(matches!(with(&[("ca-2.crt", crt_of_1)]), Some(CorruptSecret::Certificate { of: Generation(2), .. })));
}

/// The format is frozen: every later release must be able to read what today's release writes, and vice versa.
#[test]
fn format_1_is_frozen() {
    let one = ca(1);
    let data = nothing().with(record(Phase::Stable, Some(one.facts), None), Some(one)).unwrap().data().unwrap();
    let text = |key: &str| String::from_utf8(data[key].0.clone()).unwrap();
    assert_eq!(text("format"), "1");
    assert_eq!(
        text("record"),
        "{\"phase\":\"stable\",\"since\":\"2026-11-21T12:00:00.123456Z\",\"epoch\":7,\"bundleEpoch\":5,\"certificateEpoch\":6,\
         \"active\":{\"generation\":1,\"created\":\"2026-11-21T12:00:00Z\",\"notAfter\":\"2027-11-21T12:00:00Z\",\
         \"hasKey\":true},\"next\":null,\"trigger\":null}"
    );
    assert!(text("ca-1.crt").starts_with("-----BEGIN CERTIFICATE-----\n"));
    assert!(text("ca-1.key").starts_with("-----BEGIN PRIVATE KEY-----\n"));

    let newer = text("record").replace("{\"phase\"", "{\"newer\":[1],\"phase\"");
    let mut newer_data = data.clone();
    newer_data.insert("record".to_owned(), ByteString(newer.into_bytes()));
    newer_data.insert("newer".to_owned(), ByteString(vec![1]));
    assert_eq!(known(&read(newer_data)).record(), known(&read(data)).record());
}

const ONE: Generation = Generation(1);
const TWO: Generation = Generation(2);

#[test]
fn bundle_order_is_stable() {
    let known = rotating(Phase::Expanded);
    let pem = |generation| known.ca(generation).unwrap().pem();
    let both = pem(ONE) + &pem(TWO);
    assert_eq!(known.bundle(&[ONE, TWO], &[]).unwrap(), both);
    assert_eq!(known.bundle(&[TWO, ONE], &[]).unwrap(), both);
    assert_eq!(known.bundle(&[TWO], &[]).unwrap(), pem(TWO));
    assert_eq!(known.bundle(&[], &[]).unwrap(), "");
    assert_eq!(known.bundle(&[ONE, Generation(3)], &[]), Err(MissingCa(Generation(3))));

    let unknown = [ca(8).certificate().clone(), ca(9).certificate().clone()];
    let with = known.bundle(&[ONE], &unknown).unwrap();
    let [first, second] = &unknown;
    let ours = known.ca(ONE).unwrap().certificate().clone();
    let again = known.bundle(&[ONE], &[second.clone(), ours, first.clone(), second.clone()]).unwrap();
    assert_eq!(with, again, "the order does not depend on the input, and duplicates are dropped");
    assert!(with.starts_with(&pem(ONE)) && with.matches("BEGIN").count() == 3);
}

#[test]
fn bundle_contents_are_known_or_unknown() {
    let known = rotating(Phase::Expanded);
    let pem = |generation| known.ca(generation).unwrap().pem();
    let (one, two) = (pem(ONE), pem(TWO));
    let truncated = two.get(..two.len() - 40).unwrap();
    for (text, cas, unknown) in [
        (String::new(), &[][..], 0),
        (" \n".to_owned(), &[], 0),
        (one.clone(), &[ONE], 0),
        (one.clone() + "\n\n" + &two + "\n", &[ONE, TWO], 0),
        (one.replace('\n', "\r\n"), &[ONE], 0),
        (one.clone() + &ca(8).pem(), &[ONE], 1),
        // A different CA with the same number.
        (ca(1).pem().repeat(2), &[], 1),
        ("junk\n".to_owned() + &one + "# ours\n", &[ONE], 0),
        (one.repeat(2), &[ONE], 0),
        (truncated.to_owned() + &one, &[ONE], 0),
        (one.clone() + truncated, &[ONE], 0),
        (one.replace("CERTIFICATE", "PUBLIC KEY"), &[], 0),
    ] {
        let found = BundleContents::read(text.as_bytes(), Some(&known));
        assert_eq!(found.cas, cas.iter().copied().collect(), "{text}");
        assert_eq!(found.unknown.len(), unknown, "{text}");
        // Without a record, all certificates are unknown, and they can be kept.
        let lost = BundleContents::read(text.as_bytes(), None);
        assert_eq!(lost.unknown.len(), cas.len() + unknown);
        let kept = known.bundle(&[], &lost.unknown).unwrap();
        assert_eq!(BundleContents::read(kept.as_bytes(), None).unknown.len(), lost.unknown.len());
    }
    let stable = known.with(record(Phase::Stable, known.record().next, None), None).unwrap();
    let found = BundleContents::read((one + &two).as_bytes(), Some(&stable));
    assert_eq!((found.cas, found.unknown.len()), (BTreeSet::from([TWO]), 1), "a retired CA is unknown");
}

fn observed(secret: Option<&Secret>, known: Option<&KnownCas>, now: Timestamp) -> ServingSecret {
    ServingSecret::read(secret, ServingInputs { release: &release(), known, lifetimes: &Lifetimes::default(), now })
}

fn written(known: &KnownCas, signer: u32) -> (Secret, Timestamp) {
    let certificate = issuing(now(), |issuing| known.sign(Generation(signer), &names(), issuing)).unwrap();
    (certificate.secret(&release(), 9, None), certificate.renew_at)
}

#[test]
fn serving_secret_round_trips() {
    let known = rotating(Phase::Switched);
    for signer in [1, 2] {
        let (secret, renew_at) = written(&known, signer);
        assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/tls"));
        assert_eq!(secret.metadata.name.as_deref(), Some("pillion-serving"));
        let certificate = Some(ServingCertificate { signer: Some(Generation(signer)), renew_at });
        let seen = observed(Some(&secret), Some(&known), now());
        assert_eq!(seen.stored, Stored::Is(Serving { certificate, epoch: 9 }));
        assert_eq!(seen.highest, Some(Generation(signer)));
        let unknown = observed(Some(&secret), None, now());
        let certificate = Some(ServingCertificate { signer: None, renew_at });
        assert_eq!(unknown.stored, Stored::Is(Serving { certificate, epoch: 9 }), "the CA is unknown");
        assert_eq!(unknown.highest, Some(Generation(signer)), "the certificate names its number");
    }
    assert_eq!(observed(None, Some(&known), now()).stored, Stored::Missing);
}

#[test]
fn signer_is_identified_by_key() {
    let (ours, theirs) = (rotating(Phase::Switched), rotating(Phase::Switched));
    let (secret, _) = written(&theirs, 2);
    let seen = observed(Some(&secret), Some(&ours), now());
    assert_eq!(seen.stored.get().unwrap().certificate.unwrap().signer, None);
}

#[test]
fn invalid_serving_certificate_is_reported_with_reason() {
    let known = rotating(Phase::Switched);
    let (secret, _) = written(&known, 2);
    let (other, _) = written(&known, 2);
    let foreign = issuing(now(), |issuing| known.sign(Generation(2), &release().trust_probe_names(), issuing)).unwrap();
    let with = |changes: &[(&str, &[u8])]| {
        let mut secret = secret.clone();
        let data = secret.data.as_mut().unwrap();
        for (key, value) in changes {
            data.insert((*key).to_owned(), ByteString(value.to_vec()));
        }
        secret
    };
    let others_key = &other.data.as_ref().unwrap()["tls.key"].0;
    let ca_1 = known.ca(Generation(1)).unwrap().pem();
    let later = now() + 8 * DAY;
    for (secret, at, reason) in [
        (with(&[("tls.key", others_key)]), now(), Reason::Mismatch),
        (with(&[("tls.key", b"")]), now(), Reason::NoKey),
        (with(&[("tls.crt", b"junk")]), now(), Reason::NoCertificate),
        (with(&[("ca.crt", ca_1.as_bytes())]), now(), Reason::Untrusted),
        (with(&[("ca.crt", b"junk")]), now(), Reason::Untrusted),
        (foreign.secret(&release(), 9, Some(&secret)), now(), Reason::Name),
        (secret.clone(), later, Reason::Expired),
        (secret.clone(), now() - DAY, Reason::NotYet),
    ] {
        let seen = observed(Some(&secret), Some(&known), at);
        assert_eq!(seen.stored, Stored::Is(Serving { certificate: None, epoch: 9 }), "{reason:?}");
        assert_eq!(seen.judged.unwrap().unwrap_err().reason, reason);
    }
    let without = with(&[("ca.crt", b"\n")]);
    assert!(
        observed(Some(&without), Some(&known), now()).judged.unwrap().is_ok(),
        "without a CA, trust is not checked"
    );
    let empty = Secret { data: None, ..secret.clone() };
    assert_eq!(observed(Some(&empty), Some(&known), now()).stored, Stored::Is(Serving { certificate: None, epoch: 9 }));
}

#[test]
fn rejects_invalid_epochs() {
    let known = rotating(Phase::Switched);
    let (secret, _) = written(&known, 2);
    for (text, epoch) in [
        (Some("0".to_owned()), Some(0)),
        (Some(MAX_EPOCH.to_string()), Some(MAX_EPOCH)),
        (Some((MAX_EPOCH + 1).to_string()), None),
        (Some(u64::MAX.to_string()), None),
        (Some("-1".to_owned()), None),
        (Some("seven".to_owned()), None),
        (Some(String::new()), None),
        (None, None),
    ] {
        let mut secret = secret.clone();
        secret.metadata.annotations = text.clone().map(|text| [("pillion.dev/epoch".to_owned(), text)].into());
        let seen = observed(Some(&secret), Some(&known), now()).stored;
        assert_eq!(seen.get().map(|serving| serving.epoch), epoch, "{text:?}");
        assert_eq!(seen == Stored::Corrupt, epoch.is_none());
    }
}

#[test]
fn detects_damage_to_serving_secret() {
    let known = rotating(Phase::Switched);
    let (whole, _) = written(&known, 2);
    let original = observed(Some(&whole), Some(&known), now()).judged.unwrap().unwrap();
    let mut tried = 0;
    for (key, value) in whole.data.as_ref().unwrap() {
        for damage in damaged(&value.0) {
            tried += 1;
            let mut secret = whole.clone();
            secret.data.as_mut().unwrap().insert(key.clone(), ByteString(damage));
            let seen = observed(Some(&secret), Some(&known), now());
            if let Ok(fit) = seen.judged.unwrap() {
                assert_eq!(fit, original, "{key}: only the original pair is valid");
            }
        }
    }
    assert!(tried > 5_000, "{tried}");
}
