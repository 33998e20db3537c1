//! The Secret with the CAs and the record of the rotation.
//!
//! # Format 1
//! This format is frozen: an older release must be able to read what a newer one wrote. A newer release may add data
//! keys and fields of the record, but must not change or omit existing ones. An older release drops unknown keys and
//! fields when it writes.
//!
//! | data key | content |
//! |---|---|
//! | `format` | `1` |
//! | `record` | [`Record`], JSON |
//! | `ca-N.crt` | the certificate of CA N, PEM: of the record's CAs and, for diagnosis, a few retired ones |
//! | `ca-N.key` | the key of CA N, PKCS #8, PEM: only if the CA may still sign |

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ObjectMeta;
use rcgen::{KeyPair, PublicKeyData};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::issue::{IssueError, Issuing, ServingMaterial};
use super::{
    CaMaterial, MAX_EPOCH, MAX_GENERATION, PrivateKey, certificates, claimed_generation, parse_generation, pem,
    validity,
};
use crate::certificates::rotation::{Ca, Generation, Phase, Record, Stored};
use crate::release::Release;

const FORMAT: &str = "format";
const FORMAT_1: &str = "1";
const RECORD: &str = "record";

/// Number of retired certificates that are kept.
const RETIRED: usize = 4;

/// The contents of the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaSecret {
    /// The record with its CAs.
    pub stored: Stored<KnownCas>,
    /// The highest CA number in the Secret. It is read even from a corrupt Secret.
    pub highest: Option<Generation>,
    /// Why the Secret is corrupt; `None` if it is not.
    pub fault: Option<CorruptSecret>,
    /// The readable certificates of a corrupt Secret.
    readable: BTreeMap<Generation, CertificateDer<'static>>,
}

/// Why the Secret is corrupt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CorruptSecret {
    /// The format is missing or unknown.
    #[error("its format is not {FORMAT_1}")]
    Format,
    /// The record is missing or unreadable.
    #[error("its record cannot be read: {0}")]
    Record(String),
    /// The record contradicts itself.
    #[error("its record contradicts itself: {0}")]
    Contradiction(&'static str),
    /// A certificate is missing or does not match the record.
    #[error("the certificate of CA {} {what}", .of.0)]
    Certificate {
        /// The CA.
        of: Generation,
        /// What is wrong with the certificate.
        what: &'static str,
    },
    /// A key is missing or does not match the certificate.
    #[error("the key of CA {} {what}", .of.0)]
    Key {
        /// The CA.
        of: Generation,
        /// What is wrong with the key.
        what: &'static str,
    },
}

/// The error if a CA is not in the record, or if the certificate or the key of a recorded CA is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the certificate or the key of CA {} is missing", (.0).0)]
pub struct MissingCa(pub Generation);

/// The record with its CAs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownCas {
    record: Record,
    active: Option<CaMaterial>,
    next: Option<CaMaterial>,
    /// At most [`RETIRED`] certificates.
    retired: BTreeMap<Generation, CertificateDer<'static>>,
}

impl CaSecret {
    /// Reads the Secret. `secret` is `None` if the Secret does not exist.
    #[must_use]
    pub fn read(secret: Option<&Secret>, release: &Release) -> Self {
        let Some(secret) = secret else {
            return Self { stored: Stored::Missing, highest: None, fault: None, readable: BTreeMap::new() };
        };
        let none = BTreeMap::new();
        let data = secret.data.as_ref().unwrap_or(&none);
        let readable: BTreeMap<_, _> =
            data.iter().filter_map(|(key, value)| readable(key, &value.0, release)).collect();
        let record = record(data);
        let recorded = record.iter().flat_map(|record| [record.active, record.next]).flatten();
        let recorded = recorded.map(|ca| ca.generation).filter(is_possible);
        let named = data.keys().filter_map(|key| numbered(key, ".crt"));
        let highest = recorded.chain(named).chain(readable.keys().copied()).max();
        match record.and_then(|record| KnownCas::read(record, data, &readable)) {
            Ok(known) => Self { stored: Stored::Is(known), highest, fault: None, readable: BTreeMap::new() },
            Err(fault) => Self { stored: Stored::Corrupt, highest, fault: Some(fault), readable },
        }
    }

    /// Returns the record without certificates and keys, for the rotation.
    #[must_use]
    pub fn record(&self) -> Stored<Record> {
        match &self.stored {
            Stored::Missing => Stored::Missing,
            Stored::Corrupt => Stored::Corrupt,
            Stored::Is(known) => Stored::Is(known.record.clone()),
        }
    }

    /// Returns the contents to write for this record: see [`KnownCas::with`].
    ///
    /// # Errors
    /// See [`KnownCas::with`].
    pub fn with(&self, record: Record, fresh: Option<CaMaterial>) -> Result<KnownCas, MissingCa> {
        let known = self.stored.get();
        let cas = known.into_iter().flat_map(KnownCas::cas).cloned();
        let retired = known.map_or(&self.readable, |known| &known.retired);
        KnownCas::assemble(record, &cas.chain(fresh).collect::<Vec<_>>(), retired.clone())
    }
}

impl KnownCas {
    /// The record of the rotation.
    #[must_use]
    pub const fn record(&self) -> &Record {
        &self.record
    }

    /// The record's CAs, the active one first.
    pub fn cas(&self) -> impl Iterator<Item = &CaMaterial> {
        self.active.iter().chain(&self.next)
    }

    /// Returns the active or next CA with this number; `None` if the record has no such CA.
    #[must_use]
    pub fn ca(&self, generation: Generation) -> Option<&CaMaterial> {
        self.cas().find(|ca| ca.facts.generation == generation)
    }

    /// Returns the number of the active or next CA that has exactly this certificate; `None` if neither has it.
    #[must_use]
    pub(crate) fn generation_of(&self, certificate: &CertificateDer<'_>) -> Option<Generation> {
        let mut cas = self.cas();
        cas.find(|known| known.certificate == *certificate).map(|known| known.facts.generation)
    }

    /// Returns the contents to write for this record: the record and its CAs. `fresh` is a CA that was created for it.
    /// Keys that the record no longer lists are dropped. CAs that the record no longer lists are retired: the last few
    /// of their certificates are kept.
    ///
    /// # Errors
    /// A certificate or a key that the record lists is missing.
    pub fn with(&self, record: Record, fresh: Option<CaMaterial>) -> Result<Self, MissingCa> {
        let cas: Vec<_> = self.cas().cloned().chain(fresh).collect();
        Self::assemble(record, &cas, self.retired.clone())
    }

    /// Signs a serving certificate for `names`. API servers verify the first name.
    ///
    /// # Errors
    /// The CA does not exist. For the other errors, see [`Issuing::serving_certificate`].
    pub fn sign(
        &self,
        signer: Generation,
        names: &[String],
        issuing: Issuing<'_>,
    ) -> Result<ServingMaterial, IssueError> {
        issuing.serving_certificate(self.ca(signer).ok_or(IssueError::NoCa(signer))?, names)
    }

    /// Returns all data of the Secret.
    ///
    /// # Errors
    /// The record cannot be serialized: a bug in this program.
    pub fn data(&self) -> Result<BTreeMap<String, ByteString>, serde_json::Error> {
        let mut data = BTreeMap::new();
        let mut put = |key: String, value: String| data.insert(key, ByteString(value.into_bytes()));
        put(FORMAT.to_owned(), FORMAT_1.to_owned());
        put(RECORD.to_owned(), serde_json::to_string(&self.record)?);
        for (generation, certificate) in &self.retired {
            put(certificate_key(*generation), pem(certificate));
        }
        for ca in self.cas() {
            let generation = ca.facts.generation;
            put(certificate_key(generation), ca.pem());
            if let Some(key) = &ca.key {
                put(private_key(generation), key.0.clone());
            }
        }
        Ok(data)
    }

    /// Builds the Secret to write: a new one, or the existing one with new data. The existing `resourceVersion` is
    /// kept, so the write fails if the Secret has changed.
    ///
    /// # Errors
    /// See [`KnownCas::data`].
    pub fn secret(&self, release: &Release, existing: Option<&Secret>) -> Result<Secret, serde_json::Error> {
        let fresh = || Secret {
            metadata: ObjectMeta {
                name: Some(release.ca_secret()),
                namespace: Some(release.namespace().to_owned()),
                ..ObjectMeta::default()
            },
            ..Secret::default()
        };
        let mut secret = existing.cloned().unwrap_or_else(fresh);
        secret.data = Some(self.data()?);
        Ok(secret)
    }

    /// Builds the bundle of these CAs: the active one before the next, and then the CAs in `others` in a stable order.
    ///
    /// # Errors
    /// A CA in `cas` is not the record's active or next CA.
    pub fn bundle(&self, cas: &[Generation], others: &[CertificateDer<'static>]) -> Result<String, MissingCa> {
        if let Some(missing) = cas.iter().find(|generation| self.ca(**generation).is_none()) {
            return Err(MissingCa(*missing));
        }
        let ours = self.cas().filter(|ca| cas.contains(&ca.facts.generation));
        let ours: Vec<_> = ours.map(CaMaterial::certificate).collect();
        let others: BTreeSet<&[u8]> = others.iter().map(AsRef::as_ref).collect();
        let others = others.into_iter().map(CertificateDer::from);
        let others = others.filter(|certificate| !ours.iter().any(|ours| ours.as_ref() == certificate.as_ref()));
        let others: String = others.map(|certificate| pem(&certificate)).collect();
        Ok(ours.into_iter().map(pem).collect::<String>() + &others)
    }

    fn read(
        record: Record,
        data: &BTreeMap<String, ByteString>,
        readable: &BTreeMap<Generation, CertificateDer<'static>>,
    ) -> Result<Self, CorruptSecret> {
        let material = |facts: Ca| {
            let generation = facts.generation;
            let error = |what| CorruptSecret::Certificate { of: generation, what };
            let certificate = readable.get(&generation).ok_or_else(|| error("is missing, or cannot be read"))?.clone();
            is_of(&certificate, facts).map_err(error)?;
            let key = facts.has_key.then(|| {
                let error = |what| CorruptSecret::Key { of: generation, what };
                let text = data.get(&private_key(generation)).ok_or_else(|| error("is missing"))?;
                let text = std::str::from_utf8(&text.0).map_err(|_| error("is not text"))?;
                is_key_of(text, &certificate).map_err(error)?;
                Ok(PrivateKey(text.to_owned()))
            });
            Ok(CaMaterial { facts, key: key.transpose()?, certificate })
        };
        let active = record.active.map(material).transpose()?;
        let next = record.next.map(material).transpose()?;
        let recorded =
            |generation| [record.active, record.next].into_iter().flatten().any(|ca| ca.generation == generation);
        let retired = readable.iter().filter(|(generation, _)| !recorded(**generation));
        let retired = bounded(retired.map(|(generation, certificate)| (*generation, certificate.clone())).collect());
        Ok(Self { record, active, next, retired })
    }

    fn assemble(
        record: Record,
        cas: &[CaMaterial],
        mut retired: BTreeMap<Generation, CertificateDer<'static>>,
    ) -> Result<Self, MissingCa> {
        let material = |facts: Ca| {
            let missing = MissingCa(facts.generation);
            let mut of = cas.iter().filter(|ca| ca.facts.generation == facts.generation);
            let CaMaterial { certificate, key, .. } = of.next_back().ok_or(missing)?.clone();
            let key = if facts.has_key { Some(key.ok_or(missing)?) } else { None };
            Ok(CaMaterial { facts, certificate, key })
        };
        let (active, next) = (record.active.map(material).transpose()?, record.next.map(material).transpose()?);
        for ca in cas {
            retired.insert(ca.facts.generation, ca.certificate.clone());
        }
        for current in active.iter().chain(&next) {
            retired.remove(&current.facts.generation);
        }
        Ok(Self { record, active, next, retired: bounded(retired) })
    }
}

/// The CAs in a `caBundle`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BundleContents {
    /// The numbers of the record's active and next CA, if the bundle has them.
    pub cas: BTreeSet<Generation>,
    /// Other certificates, each once: those of unknown or retired CAs.
    pub unknown: Vec<CertificateDer<'static>>,
}

impl BundleContents {
    /// Reads a bundle as the API server does: everything except certificates is skipped. Without `known`, all
    /// certificates are unknown.
    #[must_use]
    pub fn read(text: &[u8], known: Option<&KnownCas>) -> Self {
        let mut contents = Self::default();
        for certificate in certificates(text) {
            match known.and_then(|known| known.generation_of(&certificate)) {
                Some(generation) => _ = contents.cas.insert(generation),
                None if contents.unknown.contains(&certificate) => {}
                None => contents.unknown.push(certificate),
            }
        }
        contents
    }
}

/// Keeps the [`RETIRED`] certificates with the highest CA numbers.
fn bounded(
    mut retired: BTreeMap<Generation, CertificateDer<'static>>,
) -> BTreeMap<Generation, CertificateDer<'static>> {
    while retired.len() > RETIRED {
        retired.pop_first();
    }
    retired
}

fn certificate_key(Generation(number): Generation) -> String {
    format!("ca-{number}.crt")
}

fn private_key(Generation(number): Generation) -> String {
    format!("ca-{number}.key")
}

fn numbered(key: &str, suffix: &str) -> Option<Generation> {
    parse_generation(key.strip_prefix("ca-")?.strip_suffix(suffix)?)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "`Option::filter` passes a reference")]
fn is_possible(generation: &Generation) -> bool {
    generation.0 <= MAX_GENERATION
}

/// Parses a CA certificate, and reads its number from its data key. Returns `None` if the data key is not that of a
/// certificate, or if the certificate is damaged or belongs to a different release or number.
fn readable(key: &str, text: &[u8], release: &Release) -> Option<(Generation, CertificateDer<'static>)> {
    let generation = numbered(key, ".crt").filter(|generation| certificate_key(*generation) == key)?;
    let [certificate] = certificates(text).try_into().ok()?;
    let is_intact = X509Certificate::from_der(&certificate).is_ok_and(|(rest, parsed)| {
        // The certificate is self-signed, so the signature reveals a changed byte. The signature does not cover the
        // algorithm identifier after the signed part, so this identifier is compared separately.
        let is_signed = parsed.verify_signature(None).is_ok() && repeats_its_algorithm(&certificate, &parsed);
        rest.is_empty() && parsed.is_ca() && is_signed
    });
    let is_expected = is_intact && claimed_generation(release, &certificate) == Some(generation);
    is_expected.then_some((generation, certificate))
}

/// Whether the algorithm identifier after the signed part equals the one inside it, byte for byte. The parser alone
/// would also accept other DER tags.
fn repeats_its_algorithm(certificate: &[u8], parsed: &X509Certificate<'_>) -> bool {
    let signed: &[u8] = parsed.tbs_certificate.as_ref();
    let at = certificate.windows(signed.len()).position(|bytes| bytes == signed);
    let after_signed = at.and_then(|at| certificate.get(at + signed.len()..)).unwrap_or_default();
    // The identifier has a tag byte, a length byte and the content. No algorithm needs a longer length field.
    let algorithm = after_signed.get(1).and_then(|length| after_signed.get(..2 + usize::from(*length)));
    algorithm.is_some_and(|algorithm| signed.windows(algorithm.len()).any(|bytes| bytes == algorithm))
}

fn record(data: &BTreeMap<String, ByteString>) -> Result<Record, CorruptSecret> {
    if data.get(FORMAT).is_none_or(|format| format.0 != FORMAT_1.as_bytes()) {
        return Err(CorruptSecret::Format);
    }
    let text = data.get(RECORD).ok_or_else(|| CorruptSecret::Record("it is missing".to_owned()))?;
    let record: Record = serde_json::from_slice(&text.0).map_err(|error| CorruptSecret::Record(error.to_string()))?;
    let error = if record.epoch > MAX_EPOCH {
        "the epoch is impossibly high"
    } else if record.bundle_epoch > record.epoch || record.certificate_epoch > record.epoch {
        "the epoch of the bundle or of the serving certificate is later than the record's"
    } else if record.next.is_some() != (record.phase != Phase::Stable) {
        "there is a next CA while stable, or none during a rotation"
    } else if record.active.zip(record.next).is_some_and(|(active, next)| active.generation >= next.generation) {
        "the next CA is not newer than the active one"
    } else if ![record.active, record.next].iter().flatten().all(|ca| is_possible(&ca.generation)) {
        "the number of a CA is impossibly high"
    } else {
        return Ok(record);
    };
    Err(CorruptSecret::Contradiction(error))
}

/// Checks that the certificate's validity ends at the time that the record specifies.
fn is_of(certificate: &CertificateDer<'_>, facts: Ca) -> Result<(), &'static str> {
    let (_, ends) = validity(certificate).ok_or("cannot be read")?;
    if ends == facts.not_after { Ok(()) } else { Err("ends at another time than in the record") }
}

fn is_key_of(text: &str, certificate: &CertificateDer<'_>) -> Result<(), &'static str> {
    let key = KeyPair::from_pem(text).map_err(|_| "cannot be read")?;
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| "has no readable certificate")?;
    if key.subject_public_key_info() == parsed.public_key().raw {
        Ok(())
    } else {
        Err("belongs to another certificate")
    }
}
