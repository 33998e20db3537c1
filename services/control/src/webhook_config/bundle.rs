//! The content of a `caBundle`: an ordered list of certificates, and nothing else.

use std::collections::BTreeSet;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::{PemObject, SectionKind};

use crate::certificates::authority;

/// A parsed bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    /// The certificates, DER, in order.
    pub certificates: Vec<Vec<u8>>,
    /// Whether it has at least one certificate, and nothing else.
    pub clean: bool,
}

impl Bundle {
    /// Reads PEM. Anything but certificates is skipped, and the bundle is not clean.
    #[must_use]
    pub fn read(pem: &[u8]) -> Self {
        let (mut certificates, mut clean) = (Vec::new(), has_nothing_outside(pem));
        for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem) {
            match section {
                Ok((SectionKind::Certificate, der)) => {
                    clean &= is_one_sequence(&der);
                    certificates.push(der);
                }
                Ok(_) => clean = false,
                // Sections after an unreadable one cannot be separated from it.
                Err(_) => {
                    clean = false;
                    break;
                }
            }
        }
        clean &= !certificates.is_empty();
        Self { certificates, clean }
    }

    /// The certificates without their order.
    #[must_use]
    pub fn set(&self) -> BTreeSet<&[u8]> {
        self.certificates.iter().map(Vec::as_slice).collect()
    }
}

/// Encodes DER certificates as PEM, in this order.
#[must_use]
pub fn to_pem<'c>(certificates: impl IntoIterator<Item = &'c CertificateDer<'c>>) -> Vec<u8> {
    certificates.into_iter().map(authority::pem).collect::<String>().into_bytes()
}

/// Whether there are only sections and empty lines.
fn has_nothing_outside(pem: &[u8]) -> bool {
    let mut inside = false;
    for line in pem.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii) {
        if line.starts_with(b"-----BEGIN ") {
            inside = true;
        } else if line.starts_with(b"-----END ") {
            inside = false;
        } else if !inside && !line.is_empty() {
            return false;
        }
    }
    !inside
}

/// Whether it has the outer form of a certificate: one sequence over all bytes.
fn is_one_sequence(der: &[u8]) -> bool {
    let Some(([0x30, first], rest)) = der.split_first_chunk::<2>() else { return false };
    let octets = usize::from(first & 0x7f);
    if first & 0x80 == 0 {
        return rest.len() == octets;
    }
    rest.split_at_checked(octets).is_some_and(|(length, content)| {
        octets <= 4 && length.iter().fold(0, |sum: usize, byte| sum << 8 | usize::from(*byte)) == content.len()
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A bundle of certificate-like sections, one for each number.
    pub(crate) fn pem(numbers: &[u8]) -> Vec<u8> {
        let certificates: Vec<_> = numbers.iter().map(|number| CertificateDer::from(der(*number))).collect();
        to_pem(&certificates)
    }

    pub(crate) fn der(number: u8) -> Vec<u8> {
        [&[0x30, 0x81, 200][..], &[number; 200]].concat()
    }

    #[test]
    fn what_is_written_is_read() {
        let bundle = Bundle::read(&pem(&[3, 1]));
        assert_eq!(bundle, Bundle { certificates: vec![der(3), der(1)], clean: true });
        assert_eq!(bundle.set().len(), 2);
    }

    #[test]
    fn what_is_no_certificate_makes_it_unclean() {
        let good = String::from_utf8(pem(&[1])).unwrap();
        let key = good.replace("CERTIFICATE", "PRIVATE KEY");
        let cut = good.replace("-----END CERTIFICATE-----\n", "");
        let not_der = "-----BEGIN CERTIFICATE-----\nanVuaw==\n-----END CERTIFICATE-----\n";
        for (text, certificates) in [
            (String::new(), 0),
            ("junk".to_owned(), 0),
            (format!("junk\n{good}"), 1),
            (format!("{good}{key}"), 1),
            (format!("{good}{cut}"), 1),
            (format!("{good}{not_der}"), 2),
        ] {
            let bundle = Bundle::read(text.as_bytes());
            assert_eq!((bundle.certificates.len(), bundle.clean), (certificates, false), "{text}");
        }
        assert!(Bundle::read(format!("\n{good}\n\n{good}").as_bytes()).clean);
    }
}
