//! Tests bundles: which CAs they trust, and their other contents.

use std::collections::BTreeSet;

use super::{authority, known, making, now, read, record, release, rotating};
use crate::certificates::authority::{Contents, Known, MissingAuthority};
use crate::certificates::rotation::{Generation, Phase};
use crate::release::{DEFAULT_CLUSTER_DOMAIN, Release};

const ONE: Generation = Generation(1);
const TWO: Generation = Generation(2);

fn contents(text: &str, known: Option<&Known>) -> Contents {
    Contents::read(text.as_bytes(), known, &release())
}

#[test]
fn a_bundle_has_the_active_authority_first_and_is_always_the_same() {
    let known = rotating(Phase::Expanded);
    let pem = |generation| known.authority(generation).unwrap().pem();
    let both = pem(ONE) + &pem(TWO);
    assert_eq!(known.bundle(&[ONE, TWO], &[]).unwrap(), both);
    assert_eq!(known.bundle(&[TWO, ONE], &[]).unwrap(), both);
    assert_eq!(known.bundle(&[TWO], &[]).unwrap(), pem(TWO));
    assert_eq!(known.bundle(&[], &[]).unwrap(), "");
    assert_eq!(known.bundle(&[ONE, Generation(3)], &[]), Err(MissingAuthority(Generation(3))));

    let strangers = [authority(8).certificate().clone(), authority(9).certificate().clone()];
    let with = known.bundle(&[ONE], &strangers).unwrap();
    let [first, second] = &strangers;
    let ours = known.authority(ONE).unwrap().certificate().clone();
    let again = known.bundle(&[ONE], &[second.clone(), ours, first.clone(), second.clone()]).unwrap();
    assert_eq!(with, again, "in the same order, each once");
    assert!(with.starts_with(&pem(ONE)) && with.matches("BEGIN").count() == 3);
}

#[test]
fn what_is_in_a_bundle_is_told() {
    let known = rotating(Phase::Expanded);
    let stranger = authority(8);
    let foreign_release = Release::new("other", "pillion-system", DEFAULT_CLUSTER_DOMAIN).unwrap();
    let foreign = making(now(), |making| {
        let mut making = super::Making { release: &foreign_release, random: making.random, ..*making };
        making.authority(Generation(99), &[]).unwrap()
    });
    let pem = |generation| known.authority(generation).unwrap().pem();
    let (one, two) = (pem(ONE), pem(TWO));
    let truncated = two.get(..two.len() - 40).unwrap();
    let same_number = authority(1).pem();
    for (text, authorities, unknown, junk, highest) in [
        (String::new(), &[][..], 0, false, None),
        (" \n".to_owned(), &[], 0, false, None),
        (one.clone(), &[ONE], 0, false, Some(ONE)),
        (one.clone() + &two, &[ONE, TWO], 0, false, Some(TWO)),
        (one.clone() + "\n\n" + &two + "\n", &[ONE, TWO], 0, false, Some(TWO)),
        (one.replace('\n', "\r\n"), &[ONE], 0, false, Some(ONE)),
        (one.clone() + &stranger.pem(), &[ONE], 1, false, Some(Generation(8))),
        (same_number, &[], 1, false, Some(ONE)),
        (one.clone() + &foreign.pem(), &[ONE], 1, false, Some(ONE)),
        ("junk".to_owned(), &[], 0, true, None),
        ("junk\n".to_owned() + &one, &[ONE], 0, true, Some(ONE)),
        (one.clone() + "# ours\n", &[ONE], 0, true, Some(ONE)),
        (one.clone() + &one, &[ONE], 0, true, Some(ONE)),
        (truncated.to_owned() + &one, &[ONE], 0, true, Some(ONE)),
        (one.clone() + truncated, &[ONE], 0, true, Some(ONE)),
        (one.replace("CERTIFICATE", "PUBLIC KEY"), &[], 0, true, None),
    ] {
        let found = contents(&text, Some(&known));
        let expected: BTreeSet<_> = authorities.iter().copied().collect();
        assert_eq!(found.authorities, expected, "{text}");
        assert_eq!((found.unknown.len(), found.junk, found.highest), (unknown, junk, highest), "{text}");
        assert_eq!(found.is_empty(), authorities.is_empty() && unknown == 0);
        // Certificates of a lost record stay on request.
        let nobody = contents(&text, None);
        assert_eq!(nobody.unknown.len(), authorities.len() + unknown);
        let kept = known.bundle(&[], &nobody.unknown).unwrap();
        let again = contents(&kept, None);
        assert!(!again.junk && again.unknown.len() == nobody.unknown.len());
    }
}

#[test]
fn a_retired_authority_is_a_stranger() {
    let expanded = rotating(Phase::Verified);
    let retired = expanded.authority(ONE).unwrap().pem();
    let stable = expanded.with(record(Phase::Stable, expanded.record().next, None), None).unwrap();
    let stable = read(stable.data().unwrap());
    let found = contents(&(retired + &expanded.authority(TWO).unwrap().pem()), Some(known(&stable)));
    assert_eq!((found.authorities, found.unknown.len()), (BTreeSet::from([TWO]), 1));
}

#[test]
fn no_damage_makes_a_bundle_panic_or_lie() {
    let known = rotating(Phase::Expanded);
    let text = known.bundle(&[ONE, TWO], &[]).unwrap();
    for damage in super::damaged(text.as_bytes()) {
        let found = Contents::read(&damage, Some(&known), &release());
        assert!(found.authorities.is_subset(&BTreeSet::from([ONE, TWO])));
        let whole = found.authorities.len() == 2 && found.unknown.is_empty() && !found.junk;
        let same = damage.iter().filter(|byte| !byte.is_ascii_whitespace());
        let same = same.eq(text.as_bytes().iter().filter(|byte| !byte.is_ascii_whitespace()));
        assert!(same || !whole, "{:?}", String::from_utf8_lossy(&damage));
    }
}
