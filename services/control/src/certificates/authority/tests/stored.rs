//! Tests that the Secret with the CAs survives a round trip, and that damage is always detected.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::{authority, damaged, known, nothing, now, read, record, release, rotating};
use crate::certificates::authority::stored::Fault;
use crate::certificates::authority::{AuthoritySecret, Known, MAX_EPOCH, MissingAuthority};
use crate::certificates::rotation::{
    Authority, Configuration, Endpoints, Generation, Observed, Phase, Propagation, Record, Settings, Stored, Trigger,
    next,
};

fn keys(known: &Known) -> Vec<String> {
    known.data().unwrap().into_keys().collect()
}

fn keyless(authority: Option<Authority>) -> Option<Authority> {
    authority.map(|authority| Authority { has_key: false, ..authority })
}

/// The contents in all phases of a rotation from CA 1 to CA 2.
fn phases() -> Vec<Known> {
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
fn what_is_written_is_read_in_every_phase() {
    for written in phases() {
        let secret = read(written.data().unwrap());
        assert_eq!(known(&secret), &written);
        assert_eq!(secret.record(), Stored::Is(written.record().clone()));
        assert_eq!((secret.highest, secret.fault), (Some(Generation(2)), None));
    }
}

#[test]
fn keys_go_when_the_record_says_so_and_retired_certificates_stay_for_a_while() {
    let phases = phases();
    let [.., verified, soaking, contracted, stable] = phases.as_slice() else { panic!() };
    let both = ["authority-1.crt", "authority-1.key", "authority-2.crt", "authority-2.key", "format", "record"];
    assert_eq!(keys(verified), both);
    let one = ["authority-1.crt", "authority-2.crt", "authority-2.key", "format", "record"];
    for known in [soaking, contracted, stable] {
        assert_eq!(keys(known), one);
    }
    assert_eq!(stable.generation_of(authority(1).certificate()), None);
    let retired = verified.authority(Generation(1)).unwrap().certificate();
    assert_eq!(verified.generation_of(retired), Some(Generation(1)));
    assert_eq!(stable.generation_of(retired), None, "a retired authority is nobody's any more");

    let mut known = stable.clone();
    for number in 3..12 {
        let fresh = authority(number);
        known = known.with(record(Phase::Stable, Some(fresh.facts), None), Some(fresh)).unwrap();
    }
    let kept: Vec<_> = keys(&known).into_iter().filter(|key| key.starts_with("authority")).collect();
    let expected = [
        "authority-10.crt",
        "authority-11.crt",
        "authority-11.key",
        "authority-7.crt",
        "authority-8.crt",
        "authority-9.crt",
    ];
    assert_eq!(kept, expected);
    assert_eq!(super::known(&read(known.data().unwrap())), &known);
}

#[test]
fn a_record_is_not_written_without_its_material() {
    let (one, two) = (authority(1), authority(2));
    let staged = record(Phase::Staged, Some(one.facts), Some(two.facts));
    assert_eq!(nothing().with(staged.clone(), Some(two.clone())), Err(MissingAuthority(Generation(1))));
    let stable = nothing().with(record(Phase::Stable, Some(one.facts), None), Some(one)).unwrap();
    assert_eq!(stable.with(staged.clone(), None), Err(MissingAuthority(Generation(2))));
    let staged = stable.with(staged, Some(two)).unwrap();
    let soaking = staged.with(record(Phase::Soaking, keyless(staged.record().active), staged.record().next), None);
    let again = soaking.unwrap().with(staged.record().clone(), None);
    assert_eq!(again, Err(MissingAuthority(Generation(1))), "its key is gone");
}

#[test]
fn the_secret_that_is_there_is_written_over_and_keeps_its_metadata() {
    let known = rotating(Phase::Staged);
    let fresh = known.secret(&release(), None).unwrap();
    assert_eq!(fresh.metadata.name.as_deref(), Some("pillion-authority"));
    assert_eq!(fresh.metadata.namespace.as_deref(), Some("pillion-system"));
    let mut existing = Secret { data: Some(BTreeMap::from([("x".to_owned(), ByteString(vec![1]))])), ..fresh.clone() };
    existing.metadata.resource_version = Some("42".to_owned());
    let written = known.secret(&release(), Some(&existing)).unwrap();
    assert_eq!(written.metadata, existing.metadata);
    assert_eq!(written.data, fresh.data, "nothing else stays");
}

/// The leader's decision must not panic either.
fn decide(secret: &AuthoritySecret) {
    for configuration in [Configuration::Absent, Configuration::Empty { epoch: MAX_EPOCH }] {
        let seen = Observed {
            now: now(),
            clock_agrees: true,
            record: secret.record(),
            serving: Stored::Corrupt,
            configuration,
            endpoints: Endpoints { answering: 0, rounds: 0, older: false, stranger: false, unreachable: 0 },
            propagation: Propagation { proven: 0, behind: 0, silent: 0 },
            asked: None,
            highest: secret.highest,
        };
        let _ = next(&Settings::default(), &seen);
    }
}

#[test]
fn damage_anywhere_is_seen_and_the_number_is_still_known() {
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
            // The CA numbers are in the certificates' names, and in the names of their keys.
            assert!(secret.highest >= Some(Generation(2)), "{key}: {:?}", secret.highest);
            // A changed record may still be consistent; a key or certificate must be exactly the original.
            if let (Stored::Is(found), true) = (&secret.stored, key.starts_with("authority")) {
                assert_eq!(found.record(), written.record());
                for (found, expected) in found.authorities().zip(written.authorities()) {
                    assert_eq!(found.certificate(), expected.certificate(), "{key}: {damage:?}");
                }
            } else if key == "format" && damage != b"1" {
                assert_eq!(secret.fault, Some(Fault::Format), "{damage:?}");
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
fn damage_to_a_retired_certificate_matters_to_nobody() {
    let stable = phases().pop().unwrap();
    let whole = stable.data().unwrap();
    for damage in damaged(&whole["authority-1.crt"].0).step_by(7) {
        let mut data = whole.clone();
        data.insert("authority-1.crt".to_owned(), ByteString(damage));
        let secret = read(data);
        assert_eq!(known(&secret).record(), stable.record());
    }
}

#[test]
fn what_can_be_read_of_a_corrupt_secret_stays_as_retired() {
    let written = rotating(Phase::Verified);
    let mut data = written.data().unwrap();
    data.remove("record");
    let corrupt = read(data);
    assert_eq!(corrupt.highest, Some(Generation(2)));
    let fresh = authority(3);
    let known = corrupt.with(record(Phase::Staged, None, Some(fresh.facts)), Some(fresh)).unwrap();
    let expected = ["authority-1.crt", "authority-2.crt", "authority-3.crt", "authority-3.key", "format", "record"];
    assert_eq!(keys(&known), expected);
    assert_eq!(known.authorities().count(), 1, "retired ones are nobody's");
}

#[test]
fn a_record_that_contradicts_itself_is_corrupt() {
    let written = rotating(Phase::Verified);
    let data = written.data().unwrap();
    let base = written.record().clone();
    let (active, next) = (base.active, base.next);
    for wrong in [
        Record { epoch: MAX_EPOCH + 1, ..base.clone() },
        Record { epoch: u64::MAX, ..base.clone() },
        Record { bundle_epoch: base.epoch + 1, ..base.clone() },
        Record { leaf_epoch: base.epoch + 1, ..base.clone() },
        Record { next: None, ..base.clone() },
        Record { phase: Phase::Stable, ..base.clone() },
        Record { active: next, next: active, ..base.clone() },
        Record { next: active, ..base.clone() },
        Record { next: next.map(|next| Authority { generation: Generation(u32::MAX), ..next }), ..base.clone() },
    ] {
        let mut data = data.clone();
        data.insert("record".to_owned(), ByteString(serde_json::to_vec(&wrong).unwrap()));
        let secret = read(data);
        assert!(matches!(secret.fault, Some(Fault::Contradiction(_))), "{wrong:?}: {:?}", secret.fault);
        assert_eq!(secret.highest, Some(Generation(2)));
        decide(&secret);
    }
    let other_end = Record { next: next.map(|next| Authority { not_after: now(), ..next }), ..base };
    let mut data = data;
    data.insert("record".to_owned(), ByteString(serde_json::to_vec(&other_end).unwrap()));
    assert!(matches!(read(data).fault, Some(Fault::Certificate { of: Generation(2), .. })));
}

#[test]
fn material_of_others_is_not_taken_for_ours() {
    let written = rotating(Phase::Verified);
    let data = written.data().unwrap();
    let other = authority(2);
    let others = nothing().with(record(Phase::Stable, Some(other.facts), None), Some(other)).unwrap().data().unwrap();
    let with = |changes: &[(&str, &ByteString)]| {
        let mut data = data.clone();
        for (key, value) in changes {
            data.insert((*key).to_owned(), (*value).clone());
        }
        read(data).fault
    };
    let key_of_1 = &data["authority-1.key"];
    assert!(matches!(with(&[("authority-2.key", key_of_1)]), Some(Fault::Key { of: Generation(2), .. })));
    assert!(matches!(with(&[("authority-2.key", &others["authority-2.key"])]), Some(Fault::Key { .. })));
    assert!(matches!(with(&[("authority-2.crt", &others["authority-2.crt"])]), Some(Fault::Key { .. })));
    let crt_of_1 = &data["authority-1.crt"];
    assert!(matches!(with(&[("authority-2.crt", crt_of_1)]), Some(Fault::Certificate { of: Generation(2), .. })));
}

/// Frozen: every later release reads what today's release writes, and the other way round.
#[test]
fn format_1_is_what_it_was() {
    let one = authority(1);
    let data = nothing().with(record(Phase::Stable, Some(one.facts), None), Some(one)).unwrap().data().unwrap();
    let text = |key: &str| String::from_utf8(data[key].0.clone()).unwrap();
    assert_eq!(text("format"), "1");
    assert_eq!(
        text("record"),
        "{\"phase\":\"stable\",\"since\":\"2026-11-21T12:00:00.123456Z\",\"epoch\":7,\"bundleEpoch\":5,\"leafEpoch\":6,\
         \"active\":{\"generation\":1,\"created\":\"2026-11-21T12:00:00Z\",\"notAfter\":\"2027-11-21T12:00:00Z\",\
         \"hasKey\":true},\"next\":null,\"trigger\":null}"
    );
    assert!(text("authority-1.crt").starts_with("-----BEGIN CERTIFICATE-----\n"));
    assert!(text("authority-1.key").starts_with("-----BEGIN PRIVATE KEY-----\n"));

    let newer = text("record").replace("{\"phase\"", "{\"newer\":[1],\"phase\"");
    let mut newer_data = data.clone();
    newer_data.insert("record".to_owned(), ByteString(newer.into_bytes()));
    newer_data.insert("newer".to_owned(), ByteString(vec![1]));
    assert_eq!(known(&read(newer_data)).record(), known(&read(data)).record());
}
