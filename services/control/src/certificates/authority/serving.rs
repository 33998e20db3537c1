//! The Secret with the leaf that replicas serve: of the type `kubernetes.io/tls`, so that every tool knows it.
//!
//! | data key | what it is |
//! |---|---|
//! | `tls.crt` | the leaf, PEM |
//! | `tls.key` | its key, PKCS #8, PEM |
//! | `ca.crt` | the authority that signed it, PEM: by it a replica sees that the pair is whole |
//!
//! The annotation `pillion.dev/epoch` has the record's epoch for which it was written, `pillion.dev/generation` the number of
//! the authority. All is written at once: no replica ever sees a key without its certificate.

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

/// The annotation with the number of the authority that signed the leaf.
pub const GENERATION_ANNOTATION: &str = "pillion.dev/generation";

const TYPE: &str = "kubernetes.io/tls";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITY: &str = "ca.crt";

/// What a leader sees in the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServingSecret {
    /// As the rotation observes it.
    pub stored: Stored<Serving>,
    /// The leaf, or why no replica would serve it. `None` if there is no Secret.
    pub judged: Option<Result<Fit, Unfit>>,
    /// The number that the leaf's signer claims to have.
    pub highest: Option<Generation>,
}

/// What a leader judges the Secret by.
#[derive(Clone, Copy, Debug)]
pub struct Judging<'j> {
    /// Whose it is.
    pub release: &'j Release,
    /// The authorities that are known.
    pub known: Option<&'j Known>,
    /// When leaves are to be renewed.
    pub lifetimes: &'j Lifetimes,
    /// What time it is.
    pub now: Timestamp,
}

impl ServingSecret {
    /// Reads the Secret; `None` if there is none. The leaf has to have the release's own names; where it has others besides,
    /// they are not looked at.
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

/// Judges the pair in a Secret as a replica does: by the authority that stands beside it, if there is one.
///
/// # Errors
/// It cannot be served.
pub fn judge(secret: &Secret, names: &[String], now: Timestamp) -> Result<Fit, Unfit> {
    let trusted = authorities(secret)?;
    let expected = Expected { names, now, trusted: trusted.as_deref() };
    judge::judge(data(secret, CERTIFICATE), data(secret, KEY), expected)
}

fn authorities(secret: &Secret) -> Result<Option<Vec<CertificateDer<'static>>>, Unfit> {
    let text = data(secret, AUTHORITY);
    // An issuer that is not known leaves it empty.
    if text.trim_ascii().is_empty() {
        return Ok(None);
    }
    match certificates(text) {
        found if found.is_empty() => Err(Unfit::new(Reason::Untrusted, "there is no certificate in ca.crt")),
        found => Ok(Some(found)),
    }
}

/// The certificate and the key, as they stand in the Secret.
#[must_use]
pub fn pair(secret: &Secret) -> (&[u8], &[u8]) {
    (data(secret, CERTIFICATE), data(secret, KEY))
}

pub(crate) fn data<'s>(secret: &'s Secret, key: &str) -> &'s [u8] {
    secret.data.as_ref().and_then(|data| data.get(key)).map_or(&[], |value| &value.0)
}

impl LeafMaterial {
    /// The Secret to be written for this epoch: a new one, or the one that is there with other data, so that its
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
