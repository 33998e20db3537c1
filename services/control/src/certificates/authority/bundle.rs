//! The `caBundle` of the webhook configurations, with the CAs that API servers trust.

use std::collections::BTreeSet;

use rustls_pki_types::CertificateDer;

use super::stored::{Known, MissingAuthority};
use super::{certificates, identity, pem};
use crate::certificates::rotation::Generation;
use crate::release::Release;

/// The contents of a bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Which of the record's active and next CA are in it.
    pub authorities: BTreeSet<Generation>,
    /// Other certificates: unknown or retired.
    pub unknown: Vec<CertificateDer<'static>>,
    /// Whether it has anything besides certificates in Pillion's format, each once.
    pub junk: bool,
    /// The highest CA number that a certificate claims.
    pub highest: Option<Generation>,
}

impl Contents {
    /// Reads a bundle as the API server does: anything but certificates is skipped.
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

    /// Whether it trusts no CA at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.authorities.is_empty() && self.unknown.is_empty()
    }
}

fn without_space(text: &[u8]) -> impl Iterator<Item = u8> {
    text.iter().copied().filter(|byte| !byte.is_ascii_whitespace())
}

impl Known {
    /// Builds the bundle of these CAs: the active one before the next, then those in `besides` in a stable order.
    ///
    /// # Errors
    /// One of the CAs is neither the record's active nor its next one.
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
