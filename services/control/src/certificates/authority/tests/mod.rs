//! Shared test data: a release, its CAs and their record.

mod bundled;
mod judged;
mod made;
mod served;
mod stored;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{AuthorityMaterial, AuthoritySecret, Known, Lifetimes, MakeError, Making, Randomness};
use crate::certificates::rotation::{Authority, Generation, Phase, Record, Stored};
use crate::release::{DEFAULT_CLUSTER_DOMAIN, Release};

pub(super) const HOUR: Duration = Duration::from_hours(1);
pub(super) const DAY: Duration = Duration::from_hours(24);

/// Bytes that count up.
pub(super) struct Counting(u8);

impl Randomness for Counting {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), MakeError> {
        for byte in bytes {
            self.0 = self.0.wrapping_add(1);
            *byte = self.0;
        }
        Ok(())
    }
}

pub(super) fn now() -> Timestamp {
    "2026-11-21T12:00:00.123456Z".parse().unwrap()
}

pub(super) fn release() -> Release {
    Release::new("pillion", "pillion-system", DEFAULT_CLUSTER_DOMAIN).unwrap()
}

pub(super) fn names() -> Vec<String> {
    release().server_names().to_vec()
}

/// Creates something with the default lifetimes.
pub(super) fn making<T>(now: Timestamp, make: impl FnOnce(&mut Making<'_>) -> T) -> T {
    making_with(&Lifetimes::default(), now, make)
}

pub(super) fn making_with<T>(lifetimes: &Lifetimes, now: Timestamp, make: impl FnOnce(&mut Making<'_>) -> T) -> T {
    make(&mut Making { release: &release(), lifetimes, now, random: &mut Counting(0) })
}

pub(super) fn authority(number: u32) -> AuthorityMaterial {
    making(now(), |making| making.authority(Generation(number), &[])).unwrap()
}

/// The record of a rotation in this phase.
pub(super) fn record(phase: Phase, active: Option<Authority>, next: Option<Authority>) -> Record {
    Record { phase, since: now(), epoch: 7, bundle_epoch: 5, leaf_epoch: 6, active, next, trigger: None }
}

/// A missing Secret.
pub(super) fn nothing() -> AuthoritySecret {
    AuthoritySecret::read(None, &release())
}

/// A rotation from CA 1 to CA 2.
pub(super) fn rotating(phase: Phase) -> Known {
    let (active, next) = (authority(1), authority(2));
    let stable = nothing().with(record(Phase::Stable, Some(active.facts), None), Some(active.clone())).unwrap();
    stable.with(record(phase, Some(active.facts), Some(next.facts)), Some(next)).unwrap()
}

pub(super) fn read(data: BTreeMap<String, ByteString>) -> AuthoritySecret {
    AuthoritySecret::read(Some(&Secret { data: Some(data), ..Secret::default() }), &release())
}

pub(super) fn known(secret: &AuthoritySecret) -> &Known {
    match &secret.stored {
        Stored::Is(known) => known,
        other => panic!("{other:?}: {:?}", secret.fault),
    }
}

pub(super) fn parsed<'c>(certificate: &'c CertificateDer<'_>) -> X509Certificate<'c> {
    let (rest, parsed) = X509Certificate::from_der(certificate).unwrap();
    assert!(rest.is_empty());
    parsed
}

/// Damaged versions of a text: truncated, or a byte changed, removed or doubled, anywhere; empty; replaced.
pub(super) fn damaged(text: &[u8]) -> impl Iterator<Item = Vec<u8>> {
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
