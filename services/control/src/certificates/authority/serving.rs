//! The Secret with the serving certificate of the replicas. Its type is `kubernetes.io/tls`, which every tool knows.
//!
//! | data key | content |
//! |---|---|
//! | `tls.crt` | the serving certificate, PEM |
//! | `tls.key` | its key, PKCS #8, PEM |
//! | `ca.crt` | the CA that signed it, PEM: a replica uses it to check that the pair is complete |
//!
//! The annotation `pillion.dev/epoch` has the epoch of the record for which it was written, and
//! `pillion.dev/generation` the number of the CA. One write replaces all of it: no replica sees a key without its
//! certificate.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ObjectMeta;
use rustls_pki_types::CertificateDer;

use super::certificates;
use super::judge::{self, Expected, Fit, Reason, Unfit};
use super::lifetimes::Lifetimes;
use super::make::LeafMaterial;
use super::stored::Known;
use super::{EPOCH_ANNOTATION, epoch, identity};
use crate::certificates::rotation::{Generation, Leaf, Serving, Stored};
use crate::release::Release;

/// The annotation with the number of the CA that signed the certificate.
pub const GENERATION_ANNOTATION: &str = "pillion.dev/generation";

const TYPE: &str = "kubernetes.io/tls";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITY: &str = "ca.crt";

/// The leader's view of the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServingSecret {
    /// The observed state for the rotation.
    pub stored: Stored<Serving>,
    /// The certificate, or why no replica would serve it. `None` if there is no Secret.
    pub judged: Option<Result<Fit, Unfit>>,
    /// The CA number that the certificate claims as its issuer.
    pub highest: Option<Generation>,
}

/// The leader's inputs for checking the Secret.
#[derive(Clone, Copy, Debug)]
pub struct Judging<'j> {
    /// The release.
    pub release: &'j Release,
    /// The known CAs.
    pub known: Option<&'j Known>,
    /// The lifetimes, for the time of renewal.
    pub lifetimes: &'j Lifetimes,
    /// The current time.
    pub now: Timestamp,
}

impl ServingSecret {
    /// Reads the Secret; `None` if there is none. The certificate must have the release's own names; further names are
    /// ignored.
    #[must_use]
    pub fn read(secret: Option<&Secret>, judging: Judging<'_>) -> Self {
        let Judging { release, known, lifetimes, now } = judging;
        let Some(secret) = secret else { return Self { stored: Stored::Missing, judged: None, highest: None } };
        let names = release.server_names();
        let judged = judge(secret, &names, now);
        let leaf = judged.as_ref().ok().map(|fit| {
            let [name, _] = &names;
            let mut authorities = known.into_iter().flat_map(Known::authorities);
            let signer = authorities.find(|known| judge::is_signed_by(fit, known.certificate(), name, now));
            let signer = signer.map(|known| known.facts.generation);
            Leaf { signer, renew_at: lifetimes.renew_at(&fit.leaf, fit.not_before, fit.not_after) }
        });
        let highest = certificates(data(secret, CERTIFICATE)).first().and_then(|leaf| {
            let issuer = identity::claimed_issuer(release, leaf);
            issuer.or_else(|| identity::claimed(release, leaf))
        });
        let written = secret.metadata.annotations.as_ref().and_then(|all| epoch(all.get(EPOCH_ANNOTATION)?));
        let stored = written.map_or(Stored::Corrupt, |epoch| Stored::Is(Serving { leaf, epoch }));
        Self { stored, judged: Some(judged), highest }
    }
}

/// Checks the pair in a Secret as a replica does: against the CA in the same Secret, if there is one.
///
/// # Errors
/// The pair cannot be served.
pub fn judge(secret: &Secret, names: &[String], now: Timestamp) -> Result<Fit, Unfit> {
    let trusted = authorities(secret)?;
    let expected = Expected { names, now, trusted: trusted.as_deref() };
    judge::judge(data(secret, CERTIFICATE), data(secret, KEY), expected)
}

fn authorities(secret: &Secret) -> Result<Option<Vec<CertificateDer<'static>>>, Unfit> {
    let text = data(secret, AUTHORITY);
    // A certificate issuer may leave it empty if it does not know the CA.
    if text.trim_ascii().is_empty() {
        return Ok(None);
    }
    match certificates(text) {
        found if found.is_empty() => Err(Unfit::new(Reason::Untrusted, "there is no certificate in ca.crt")),
        found => Ok(Some(found)),
    }
}

/// The certificate and the key as stored in the Secret.
#[must_use]
pub fn pair(secret: &Secret) -> (&[u8], &[u8]) {
    (data(secret, CERTIFICATE), data(secret, KEY))
}

pub(crate) fn data<'s>(secret: &'s Secret, key: &str) -> &'s [u8] {
    secret.data.as_ref().and_then(|data| data.get(key)).map_or(&[], |value| &value.0)
}

impl LeafMaterial {
    /// Builds the Secret to write for this epoch: a new one, or the existing one with new data. The existing
    /// `resourceVersion` guards the write.
    #[must_use]
    pub fn secret(&self, release: &Release, epoch: u64, existing: Option<&Secret>) -> Secret {
        let fresh = || Secret {
            metadata: ObjectMeta {
                name: Some(release.serving_secret()),
                namespace: Some(release.namespace().to_owned()),
                ..ObjectMeta::default()
            },
            type_: Some(TYPE.to_owned()),
            ..Secret::default()
        };
        let mut secret = existing.cloned().unwrap_or_else(fresh);
        let annotations = secret.metadata.annotations.get_or_insert_default();
        annotations.insert(EPOCH_ANNOTATION.to_owned(), epoch.to_string());
        annotations.insert(GENERATION_ANNOTATION.to_owned(), self.signer.0.to_string());
        let texts = [(CERTIFICATE, self.pem()), (KEY, self.key().pem().to_owned()), (AUTHORITY, self.authority_pem())];
        let data = texts.map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())));
        secret.data = Some(BTreeMap::from(data));
        secret
    }
}
