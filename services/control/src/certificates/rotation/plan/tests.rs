//! Tests the next step in rare cases: lost or compromised keys, and forged records and epochs.

use super::super::observed::{Endpoints, Leaf};
use super::*;

const EPOCH: u64 = 7;

fn authority(number: u32) -> Authority {
    let (created, not_after) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
    Authority { generation: Generation(number), created, not_after, has_key: true }
}

/// The observed state during a soak of one day, with everything in place.
fn soaking(asked: Option<Trigger>) -> Observed {
    let (now, signer) = (Timestamp::UNIX_EPOCH, Some(Generation(2)));
    let authorities = [Generation(1), Generation(2)].into();
    let record = Record {
        phase: Phase::Soaking,
        since: now,
        epoch: EPOCH,
        bundle_epoch: EPOCH,
        leaf_epoch: EPOCH,
        active: Some(Authority { has_key: false, ..authority(1) }),
        next: Some(authority(2)),
        trigger: Some(Trigger::Age),
    };
    Observed {
        now,
        clock_agrees: true,
        record: Stored::Is(record),
        serving: Stored::Is(Serving { leaf: Some(Leaf { signer, renew_at: Timestamp::MAX }), epoch: EPOCH }),
        configuration: Configuration::Present(Bundle {
            authorities,
            uniform: true,
            unknown: false,
            epoch: EPOCH,
            written: now,
        }),
        endpoints: Endpoints { answering: 3, rounds: 3, older: false, stranger: false, unreachable: 0 },
        propagation: Propagation { proven: 0, behind: 0, silent: 0 },
        asked,
        highest: Some(Generation(2)),
    }
}

fn phase(step: &Step) -> Option<Phase> {
    if let Step::Advance(record) = step { Some(record.phase) } else { None }
}

#[test]
fn a_key_that_others_know_is_not_soaked_whenever_that_is_said() {
    let settings = Settings::default();
    assert_eq!(phase(&next(&settings, &soaking(None))), None);
    assert_eq!(phase(&next(&settings, &soaking(Some(Trigger::Asked)))), None);
    let compromised = soaking(Some(Trigger::Compromised));
    assert_eq!(phase(&next(&settings, &compromised)), Some(Phase::Contracted));
    let endpoints = Endpoints { rounds: 0, unreachable: 1, ..compromised.endpoints };
    let unprobed = Observed { endpoints, ..compromised };
    assert_eq!(phase(&next(&settings, &unprobed)), None, "not before all are seen with the new leaf");
}

#[test]
fn an_authority_that_cannot_sign_is_replaced_like_one_whose_key_is_lost() {
    let mut seen = soaking(None);
    let active = Some(Authority { has_key: false, ..authority(2) });
    if let Stored::Is(record) = &mut seen.record {
        *record = Record { phase: Phase::Stable, active, next: None, ..record.clone() };
    }
    if let Configuration::Present(bundle) = &mut seen.configuration {
        bundle.authorities = [Generation(2)].into();
    }
    // Its serving certificate is due, and it cannot sign another.
    seen.serving = Stored::Is(Serving { leaf: None, epoch: EPOCH });
    let expected = Step::NewAuthority { generation: Generation(3), trigger: Some(Trigger::Lost) };
    assert_eq!(next(&Settings::default(), &seen), expected);
}

/// The observed state with this record, and everything in place.
fn in_order(phase: Phase) -> Observed {
    let mut seen = soaking(None);
    let next = (phase != Phase::Stable).then(|| authority(2));
    let record = Record { phase, active: Some(authority(1)), next, ..seen.record.get().unwrap().clone() };
    let trusted = record.trusted().collect();
    let signer = record.signer().map(|signer| signer.generation);
    seen.serving = Stored::Is(Serving { leaf: Some(Leaf { signer, renew_at: Timestamp::MAX }), epoch: EPOCH });
    if let Configuration::Present(bundle) = &mut seen.configuration {
        bundle.authorities = trusted;
    }
    seen.record = Stored::Is(record);
    seen
}

fn raise(seen: &mut Observed, bundle_to: u64, leaf_to: u64) {
    if let (Configuration::Present(bundle), Stored::Is(serving)) = (&mut seen.configuration, &mut seen.serving) {
        (bundle.epoch, serving.epoch) = (bundle_to, leaf_to);
    }
}

#[test]
fn an_epoch_that_nobody_who_rotates_wrote_is_written_over() {
    for phase in Phase::ALL {
        for epoch in [EPOCH + 1, EPOCH + 1000, u64::MAX / 2, u64::MAX] {
            let mut seen = in_order(phase);
            assert_eq!(seen.forged(), None, "{phase}");
            raise(&mut seen, epoch, EPOCH);
            assert_eq!(seen.forged(), Some(EPOCH), "{phase} {epoch}");
            let step = next(&Settings::default(), &seen);
            assert!(matches!(step, Step::WriteBundle { epoch: EPOCH, .. }), "{phase} {epoch}: {step:?}");
            raise(&mut seen, EPOCH, epoch);
            let step = next(&Settings::default(), &seen);
            assert!(matches!(step, Step::WriteLeaf { epoch: EPOCH, .. }), "{phase} {epoch}: {step:?}");
        }
    }
}

#[test]
fn a_record_that_was_put_back_is_told_from_that_by_who_is_trusted_and_who_signs() {
    let is_recovered = |seen: &Observed| {
        seen.forged().is_none() && matches!(next(&Settings::default(), seen), Step::NewAuthority { .. })
    };
    // The restored record does not know the next CA, that it is trusted, or that it signs.
    let mut seen = in_order(Phase::Stable);
    raise(&mut seen, EPOCH + 3, EPOCH);
    let of = |seen: &Observed, change: fn(&mut Bundle, &mut Leaf)| {
        let mut seen = seen.clone();
        if let (Configuration::Present(bundle), Stored::Is(Serving { leaf: Some(leaf), .. })) =
            (&mut seen.configuration, &mut seen.serving)
        {
            change(bundle, leaf);
        }
        seen
    };
    assert!(is_recovered(&of(&seen, |bundle, _| bundle.unknown = true)));
    assert!(is_recovered(&of(&seen, |_, leaf| leaf.signer = None)));
    let mut seen = in_order(Phase::Staged);
    raise(&mut seen, EPOCH + 3, EPOCH);
    assert!(is_recovered(&of(&seen, |bundle, _| bundle.authorities = [Generation(2)].into())));
    assert!(is_recovered(&of(&seen, |_, leaf| leaf.signer = Some(Generation(2)))));
}

#[test]
fn numbers_do_not_come_to_an_end() {
    let mut seen = in_order(Phase::Stable);
    raise(&mut seen, u64::MAX, u64::MAX);
    seen.record = Stored::Missing;
    assert_eq!(Record::with(authority(3), Some(Trigger::Lost), &seen).epoch, 1);
    raise(&mut seen, LEAP, EPOCH);
    assert_eq!(Record::with(authority(3), Some(Trigger::Lost), &seen).epoch, LEAP + 1);
}

#[test]
fn a_next_authority_that_cannot_sign_is_replaced_until_somebody_may_serve_it() {
    let settings = Settings { overlap: Duration::from_hours(24), ..Settings::default() };
    for phase in [Phase::Staged, Phase::Expanded, Phase::Switched, Phase::Verified, Phase::Soaking] {
        let mut seen = in_order(phase);
        let Stored::Is(record) = &mut seen.record else { unreachable!() };
        record.next = Some(Authority { has_key: false, ..authority(2) });
        let fine = next(&settings, &seen);
        let replaced = Step::NewAuthority { generation: Generation(3), trigger: Some(Trigger::Lost) };
        if phase < Phase::Switched {
            assert_eq!(fine, replaced, "{phase}");
            continue;
        }
        // A serving certificate of it already exists, so the rotation continues.
        assert!(!matches!(fine, Step::NewAuthority { .. } | Step::Wait { blocked: Blocked::Unable, .. }), "{phase}");
        seen.serving = Stored::Missing;
        assert_eq!(next(&settings, &seen), wait(Blocked::Unable), "{phase}");
        let leaf = Some(Leaf { signer: Some(Generation(1)), renew_at: Timestamp::MAX });
        seen.serving = Stored::Is(Serving { leaf, epoch: EPOCH - 1 });
        let expected = if phase == Phase::Switched { replaced } else { wait(Blocked::Unable) };
        assert_eq!(next(&settings, &seen), expected, "{phase}");
    }
}
