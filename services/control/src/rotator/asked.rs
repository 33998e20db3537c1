//! How a person asks for a rotation: by an annotation of the Lease, which everybody who runs the controllers may write and
//! which tells nobody a secret. `pillion certs rotate` writes it.
//!
//! The wish has an identity. It is fulfilled when the Secret with the record carries the same: both are written at once, so
//! that no wish is fulfilled twice, and none is forgotten.

use std::fmt;
use std::str::FromStr;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;

use crate::certificates::rotation::Trigger;

/// The Lease's annotation with the wish.
pub const ASK_ANNOTATION: &str = "pillion.dev/rotate";
/// The annotation of the authorities' Secret with the last wish that was fulfilled.
pub const ASKED_ANNOTATION: &str = "pillion.dev/rotated";

/// What stands before the identity when the authority's key is known to others.
const COMPROMISED: &str = "compromised:";
/// Bytes of an identity.
const MAX_IDENTITY: usize = 128;

/// Somebody's wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Which one; whoever asks chooses it. A time will do.
    pub identity: String,
    /// Whether the authority's key is known to others, so that the old one is not kept for a while.
    pub compromised: bool,
}

/// It is no wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 1 to {MAX_IDENTITY} letters, digits, and any of - _ . : +")]
pub struct NoWish;

impl Wish {
    /// What is wished, if it is not fulfilled.
    #[must_use]
    pub fn of(lease: Option<&Lease>, record: Option<&Secret>) -> Option<Self> {
        let annotations = lease?.metadata.annotations.as_ref()?;
        let wish: Self = annotations.get(ASK_ANNOTATION)?.parse().ok()?;
        (fulfilled(record) != Some(wish.to_string().as_str())).then_some(wish)
    }

    /// As what reason a rotation begins for it.
    #[must_use]
    pub const fn trigger(&self) -> Trigger {
        if self.compromised { Trigger::Compromised } else { Trigger::Asked }
    }

    /// Notes in the Secret that it is fulfilled.
    pub(super) fn fulfil(&self, record: &mut Secret) {
        record.metadata.annotations.get_or_insert_default().insert(ASKED_ANNOTATION.to_owned(), self.to_string());
    }
}

fn fulfilled(record: Option<&Secret>) -> Option<&str> {
    record?.metadata.annotations.as_ref()?.get(ASKED_ANNOTATION).map(String::as_str)
}

impl FromStr for Wish {
    type Err = NoWish;

    fn from_str(text: &str) -> Result<Self, NoWish> {
        let (compromised, identity) = match text.strip_prefix(COMPROMISED) {
            Some(identity) => (true, identity),
            None => (false, text),
        };
        let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_.:+".contains(character);
        if identity.is_empty() || identity.len() > MAX_IDENTITY || !identity.chars().all(is_plain) {
            return Err(NoWish);
        }
        Ok(Self { identity: identity.to_owned(), compromised })
    }
}

impl fmt::Display for Wish {
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
        lease.metadata.annotations.get_or_insert_default().insert(ASK_ANNOTATION.to_owned(), text.to_owned());
        lease
    }

    #[test]
    fn a_wish_is_fulfilled_once() {
        let lease = lease("2026-11-21T10:00:00Z");
        let wish = Wish::of(Some(&lease), None).unwrap();
        assert_eq!(wish.trigger(), Trigger::Asked);
        let mut record = Secret::default();
        assert_eq!(Wish::of(Some(&lease), Some(&record)), Some(wish.clone()));
        wish.fulfil(&mut record);
        assert_eq!(Wish::of(Some(&lease), Some(&record)), None);
        assert_eq!(Wish::of(Some(&self::lease("2")), Some(&record)).unwrap().identity, "2");
    }

    #[test]
    fn a_stolen_key_is_another_wish() {
        let wish = Wish::of(Some(&lease("compromised:1")), None).unwrap();
        assert_eq!((wish.trigger(), wish.identity.as_str()), (Trigger::Compromised, "1"));
        assert_eq!(wish.to_string().parse(), Ok(wish));
        let mut record = Secret::default();
        "1".parse::<Wish>().unwrap().fulfil(&mut record);
        assert!(Wish::of(Some(&lease("compromised:1")), Some(&record)).is_some());
    }

    #[test]
    fn what_is_no_wish_is_none() {
        for text in ["", "compromised:", "a b", "a\nb", &"x".repeat(129)] {
            assert_eq!(Wish::of(Some(&lease(text)), None), None, "{text:?}");
        }
        assert_eq!(Wish::of(Some(&Lease::default()), None), None);
        assert_eq!(Wish::of(None, None), None);
    }
}
