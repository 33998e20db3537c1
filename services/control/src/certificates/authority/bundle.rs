//! The `caBundle` of the webhook configuration, by which API servers trust.

use std::collections::BTreeSet;

use rustls_pki_types::CertificateDer;

use super::stored::{Known, MissingAuthority};
use super::{certificates, identity, pem};
use crate::certificates::rotation::Generation;
use crate::release::Release;

/// What is in a bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The record's active and next authority, as far as they are in it.
    pub authorities: BTreeSet<Generation>,
    /// Certificates that are neither's: of nobody who is known, or retired.
    pub unknown: Vec<CertificateDer<'static>>,
    /// Whether there is something else in it than certificates, each once, as we write them.
    pub junk: bool,
    /// The highest number that a certificate claims to have.
    pub highest: Option<Generation>,
}

impl Contents {
    /// Reads a bundle, as the API server does: what is not a certificate is passed over.
    #[must_use]
    pub fn read(text: &[u8], known: Option<&Known>, release: &Release) -> Self {
        let mut contents = Self::default();
        let mut seen = Vec::new();
        for certificate in certificates(text) {
            if seen.contains(&certificate) {
                continue;
            }
            contents.highest = contents.highest.max(identity::claimed(release, &certificate));
            match known.and_then(|known| known.generation_of(&certificate)) {
                Some(generation) => _ = contents.authorities.insert(generation),
                None => contents.unknown.push(certificate.clone()),
            }
            seen.push(certificate);
        }
        let canonical = seen.iter().map(pem).collect::<String>();
        contents.junk = without_space(text).ne(without_space(canonical.as_bytes()));
        contents
    }

    /// Whether nobody at all is trusted by it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.authorities.is_empty() && self.unknown.is_empty()
    }
}

fn without_space(text: &[u8]) -> impl Iterator<Item = u8> {
    text.iter().copied().filter(|byte| !byte.is_ascii_whitespace())
}

impl Known {
    /// The bundle of these authorities, the one that signs today before the next, then those `besides` in an order that is
    /// always the same.
    ///
    /// # Errors
    /// One of the authorities is neither the record's active nor its next one.
    pub fn bundle(
        &self,
        authorities: &[Generation],
        besides: &[CertificateDer<'static>],
    ) -> Result<String, MissingAuthority> {
        if let Some(missing) = authorities.iter().find(|generation| self.authority(**generation).is_none()) {
            return Err(MissingAuthority(*missing));
        }
        let ours = self.authorities().filter(|authority| authorities.contains(&authority.facts.generation));
        let ours: Vec<_> = ours.map(super::AuthorityMaterial::certificate).collect();
        let besides: BTreeSet<&[u8]> = besides.iter().map(AsRef::as_ref).collect();
        let besides = besides.into_iter().map(CertificateDer::from);
        let besides = besides.filter(|certificate| !ours.iter().any(|ours| ours.as_ref() == certificate.as_ref()));
        let besides: String = besides.map(|certificate| pem(&certificate)).collect();
        Ok(ours.into_iter().map(pem).collect::<String>() + &besides)
    }
}
