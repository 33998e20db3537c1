//! The kind whose dry run proves which CA an API server trusts. Objects of it are never stored.
//!
//! The webhook configuration has an entry for the creation of an [`InjectionCanary`] and for nothing else. Its endpoint
//! serves a certificate of the newest CA. So a dry run of a creation succeeds only at an API server that has this entry
//! and this CA.

use std::borrow::Cow;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::names;

/// The plural name, as it stands in URLs, roles and the rule of the entry.
pub const PLURAL: &str = "injectioncanaries";

/// The name of the entry in the webhook configuration. The API server says it when a call fails.
pub const WEBHOOK: &str = "canary.pillion.dev";

/// The path that the entry of the mutating configuration calls; behind it stands the [`epoch`](path) that it is of.
pub const PATH: &str = "/canary";

/// The path that the entry of the validating configuration calls. Each configuration is an object of its own, and an API server
/// may know the one as it is and the other as it was.
pub const VALIDATE_PATH: &str = "/canary/validate";

/// What a replica says when it is called for a canary, and refuses it: so the author of a dry run knows that the call came
/// through. It is called for one only during a [rehearsal](crate::webhook_configuration::Settings::rehearses).
pub const REACHED: &str = "a replica of Pillion was reached: nobody stores a canary";

/// Bytes of a review of a canary, which has a name and nothing else; what is larger is none.
pub const MAX_REVIEW_BYTES: usize = 64 * 1024;

/// A replica's answer to a review of a canary: no, in the words of [`REACHED`].
///
/// # Errors
/// It is not a review, or one whose id nobody would repeat.
pub fn refusal(review: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Review {
        request: Request,
    }
    #[derive(Deserialize)]
    struct Request {
        uid: String,
    }
    let Review { request: Request { uid } } = serde_json::from_slice(review)?;
    if uid.is_empty() || uid.len() > names::MAX_UID_BYTES {
        let message = format!("request.uid has {} bytes; expected 1 to {}", uid.len(), names::MAX_UID_BYTES);
        return Err(serde::de::Error::custom(message));
    }
    let status = json!({"code": 403, "reason": "Forbidden", "message": REACHED});
    let answer = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": uid, "allowed": false, "status": status},
    });
    serde_json::to_vec(&answer)
}

/// A path with the epoch of the rotation that its entry was written for: an API server that calls it has that entry, and with
/// it all that stands in the same object, whomever it trusted before.
#[must_use]
pub fn path(of: &str, epoch: u64) -> String {
    format!("{of}/{epoch}")
}

/// The epoch that stands in a path; 0, before all others, if it is the path alone. `None`: it is another path.
#[must_use]
pub fn epoch_of(path: &str, of: &str) -> Option<u64> {
    match path.strip_prefix(of)? {
        "" => Some(0),
        rest => rest.strip_prefix('/')?.parse().ok(),
    }
}

/// An object that is created by dry run only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InjectionCanary {
    /// `pillion.dev/v1alpha1`.
    pub api_version: String,
    /// `InjectionCanary`.
    pub kind: String,
    /// Its name is that of one request.
    pub metadata: ObjectMeta,
}

impl InjectionCanary {
    /// The value of `kind`.
    pub const KIND: &str = "InjectionCanary";

    /// One of this name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            api_version: names::API_VERSION.to_owned(),
            kind: Self::KIND.to_owned(),
            metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        }
    }
}

impl Resource for InjectionCanary {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Self::KIND.into()
    }
    fn group((): &()) -> Cow<'_, str> {
        names::GROUP.into()
    }
    fn version((): &()) -> Cow<'_, str> {
        names::VERSION.into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        PLURAL.into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
