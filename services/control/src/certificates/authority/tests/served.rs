//! Tests the leader's view of the Secret with the serving certificate.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::{DAY, damaged, making, names, now, release, rotating};
use crate::certificates::authority::serving::{Judging, ServingSecret};
use crate::certificates::authority::{Known, Lifetimes, MAX_EPOCH, Reason};
use crate::certificates::rotation::{Generation, Leaf, Phase, Serving, Stored};

fn see(secret: Option<&Secret>, known: Option<&Known>, now: jiff::Timestamp) -> ServingSecret {
    ServingSecret::read(secret, Judging { release: &release(), known, lifetimes: &Lifetimes::default(), now })
}

fn written(known: &Known, signer: u32) -> (Secret, jiff::Timestamp) {
    let leaf = making(now(), |making| known.sign(Generation(signer), &names(), making)).unwrap();
    (leaf.secret(&release(), 9, None), leaf.renew_at)
}

#[test]
fn what_is_written_is_seen() {
    let known = rotating(Phase::Switched);
    for signer in [1, 2] {
        let (secret, renew_at) = written(&known, signer);
        assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/tls"));
        assert_eq!(secret.metadata.name.as_deref(), Some("pillion-serving"));
        let leaf = Some(Leaf { signer: Some(Generation(signer)), renew_at });
        let seen = see(Some(&secret), Some(&known), now());
        assert_eq!(seen.stored, Stored::Is(Serving { leaf, epoch: 9 }));
        assert_eq!(seen.highest, Some(Generation(signer)));
        let unknown = see(Some(&secret), None, now());
        let leaf = Some(Leaf { signer: None, renew_at });
        assert_eq!(unknown.stored, Stored::Is(Serving { leaf, epoch: 9 }), "of nobody who is known");
        assert_eq!(unknown.highest, Some(Generation(signer)), "but it says its number");
    }
    assert_eq!(see(None, Some(&known), now()).stored, Stored::Missing);
}

#[test]
fn a_signer_of_the_same_number_is_another() {
    let (ours, theirs) = (rotating(Phase::Switched), rotating(Phase::Switched));
    let (secret, _) = written(&theirs, 2);
    let seen = see(Some(&secret), Some(&ours), now());
    assert_eq!(seen.stored.get().unwrap().leaf.unwrap().signer, None);
}

#[test]
fn a_leaf_that_no_replica_would_serve_is_none() {
    let known = rotating(Phase::Switched);
    let (secret, _) = written(&known, 2);
    let (other, _) = written(&known, 2);
    let foreign = making(now(), |making| known.sign(Generation(2), &release().canary_names(), making)).unwrap();
    let with = |changes: &[(&str, &[u8])]| {
        let mut secret = secret.clone();
        let data = secret.data.as_mut().unwrap();
        for (key, value) in changes {
            data.insert((*key).to_owned(), ByteString(value.to_vec()));
        }
        secret
    };
    let others_key = &other.data.as_ref().unwrap()["tls.key"].0;
    let authority_1 = known.authority(Generation(1)).unwrap().pem();
    let later = now() + 8 * DAY;
    for (secret, at, reason) in [
        (with(&[("tls.key", others_key)]), now(), Reason::Mismatch),
        (with(&[("tls.key", b"")]), now(), Reason::NoKey),
        (with(&[("tls.crt", b"junk")]), now(), Reason::NoCertificate),
        (with(&[("ca.crt", authority_1.as_bytes())]), now(), Reason::Untrusted),
        (with(&[("ca.crt", b"junk")]), now(), Reason::Untrusted),
        (foreign.secret(&release(), 9, Some(&secret)), now(), Reason::Name),
        (secret.clone(), later, Reason::Expired),
        (secret.clone(), now() - DAY, Reason::NotYet),
    ] {
        let seen = see(Some(&secret), Some(&known), at);
        assert_eq!(seen.stored, Stored::Is(Serving { leaf: None, epoch: 9 }), "{reason:?}");
        assert_eq!(seen.judged.unwrap().unwrap_err().reason, reason);
    }
    let without = with(&[("ca.crt", b"\n")]);
    assert!(see(Some(&without), Some(&known), now()).judged.unwrap().is_ok(), "an issuer that nobody names");
    let empty = Secret { data: None, ..secret.clone() };
    assert_eq!(see(Some(&empty), Some(&known), now()).stored, Stored::Is(Serving { leaf: None, epoch: 9 }));
}

#[test]
fn an_epoch_that_makes_no_sense_is_damage() {
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
        let seen = see(Some(&secret), Some(&known), now()).stored;
        assert_eq!(seen.get().map(|serving| serving.epoch), epoch, "{text:?}");
        assert_eq!(seen == Stored::Corrupt, epoch.is_none());
    }
}

#[test]
fn damage_anywhere_is_seen() {
    let known = rotating(Phase::Switched);
    let (whole, _) = written(&known, 2);
    let original = see(Some(&whole), Some(&known), now()).judged.unwrap().unwrap();
    let mut tried = 0;
    for (key, value) in whole.data.as_ref().unwrap() {
        for damage in damaged(&value.0) {
            tried += 1;
            let mut secret = whole.clone();
            secret.data.as_mut().unwrap().insert(key.clone(), ByteString(damage));
            let seen = see(Some(&secret), Some(&known), now());
            if let Ok(fit) = seen.judged.unwrap() {
                assert_eq!(fit, original, "{key}: what can be served is what was written");
            }
        }
    }
    assert!(tried > 5_000, "{tried}");
}
