//! An administrator's request for a rotation: an annotation of the Lease, which `pillion certs rotate` writes. Writing
//! it needs no access to the Secrets.
//!
//! A request has an identity. It is fulfilled when an annotation of the Secret with the record has the same value as
//! the request. One write stores the record and this annotation, so each request is fulfilled exactly once.

use std::fmt;
use std::str::FromStr;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;

use crate::certificates::rotation::Trigger;

/// The Lease's annotation with the request.
pub const REQUEST_ANNOTATION: &str = "pillion.dev/rotate";
/// The annotation of the CAs' Secret with the last fulfilled request.
pub const FULFILLED_ANNOTATION: &str = "pillion.dev/rotated";

/// The prefix of a request if the CA's key is compromised.
const COMPROMISED: &str = "compromised:";
/// Maximum bytes of an identity.
const MAX_IDENTITY: usize = 128;

/// A request for a rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotationRequest {
    /// Identifies the request. The administrator chooses it: for example, the current time.
    pub identity: String,
    /// Whether the CA's key is compromised, so that the old CA is removed without an overlap.
    pub compromised: bool,
}

/// The annotation's value is not a valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 1 to {MAX_IDENTITY} letters, digits, and any of - _ . : +")]
pub struct ParseRequestError;

impl RotationRequest {
    /// Returns the request in the Lease. `None` if there is none, or if it is invalid or fulfilled.
    #[must_use]
    pub fn of(lease: Option<&Lease>, record: Option<&Secret>) -> Option<Self> {
        let annotations = lease?.metadata.annotations.as_ref()?;
        let request: Self = annotations.get(REQUEST_ANNOTATION)?.parse().ok()?;
        (fulfilled(record) != Some(request.to_string().as_str())).then_some(request)
    }

    /// Returns the reason with which the rotation starts.
    #[must_use]
    pub const fn trigger(&self) -> Trigger {
        if self.compromised { Trigger::Compromised } else { Trigger::Requested }
    }

    /// Records in the Secret that the request is fulfilled.
    pub(super) fn fulfil(&self, record: &mut Secret) {
        record.metadata.annotations.get_or_insert_default().insert(FULFILLED_ANNOTATION.to_owned(), self.to_string());
    }
}

fn fulfilled(record: Option<&Secret>) -> Option<&str> {
    record?.metadata.annotations.as_ref()?.get(FULFILLED_ANNOTATION).map(String::as_str)
}

impl FromStr for RotationRequest {
    type Err = ParseRequestError;

    fn from_str(text: &str) -> Result<Self, ParseRequestError> {
        let (compromised, identity) = match text.strip_prefix(COMPROMISED) {
            Some(identity) => (true, identity),
            None => (false, text),
        };
        let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_.:+".contains(character);
        if identity.is_empty() || identity.len() > MAX_IDENTITY || !identity.chars().all(is_plain) {
            return Err(ParseRequestError);
        }
        Ok(Self { identity: identity.to_owned(), compromised })
    }
}

impl fmt::Display for RotationRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = if self.compromised { COMPROMISED } else { "" };
        write!(formatter, "{reason}{}", self.identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(text: &str) -> Lease {
        let mut lease = Lease::default();
        lease.metadata.annotations.get_or_insert_default().insert(REQUEST_ANNOTATION.to_owned(), text.to_owned());
        lease
    }

    #[test]
    fn request_is_fulfilled_once() {
        let lease = lease("2026-11-21T10:00:00Z");
        let request = RotationRequest::of(Some(&lease), None).unwrap();
        assert_eq!(request.trigger(), Trigger::Requested);
        let mut record = Secret::default();
        assert_eq!(RotationRequest::of(Some(&lease), Some(&record)), Some(request.clone()));
        request.fulfil(&mut record);
        assert_eq!(RotationRequest::of(Some(&lease), Some(&record)), None);
        assert_eq!(RotationRequest::of(Some(&self::lease("2")), Some(&record)).unwrap().identity, "2");
    }

    #[test]
    fn compromised_key_is_another_request() {
        let request = RotationRequest::of(Some(&lease("compromised:1")), None).unwrap();
        assert_eq!((request.trigger(), request.identity.as_str()), (Trigger::Compromised, "1"));
        assert_eq!(request.to_string().parse(), Ok(request));
        let mut record = Secret::default();
        "1".parse::<RotationRequest>().unwrap().fulfil(&mut record);
        assert!(RotationRequest::of(Some(&lease("compromised:1")), Some(&record)).is_some());
    }

    #[test]
    fn rejects_invalid_requests() {
        for text in ["", "compromised:", "a b", "a\nb", &"x".repeat(129)] {
            assert_eq!(RotationRequest::of(Some(&lease(text)), None), None, "{text:?}");
        }
        assert_eq!(RotationRequest::of(Some(&Lease::default()), None), None);
        assert_eq!(RotationRequest::of(None, None), None);
    }
}
