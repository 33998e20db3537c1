//! The kind for dry runs that prove which CA an API server trusts. The API server never stores objects of this kind.
//!
//! The webhook configuration has an entry that only matches the creation of an [`InjectionTrustProbe`]. The endpoint of
//! this entry uses a serving certificate of the newest CA. So if the dry run of a creation causes a call of the
//! endpoint, the API server has this entry and trusts this CA.

use std::borrow::Cow;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::names;

/// The plural name of the kind, as in URLs, RBAC rules and the rule of the webhook configuration's entry.
pub const PLURAL: &str = "injectiontrustprobes";

/// The name of the entry in the webhook configuration. Error messages of the API server contain it.
pub const WEBHOOK: &str = "trust-probe.pillion.dev";

/// The path prefix for the entry of the mutating configuration. The [epoch](path) follows it.
pub const PATH: &str = "/trust-probe";

/// The path prefix for the entry of the validating configuration. The two configurations are separate objects, so an
/// API server may have the current version of one and an older version of the other.
pub const VALIDATE_PATH: &str = "/trust-probe/validate";

/// The message with which a replica denies the review of an [`InjectionTrustProbe`]. It proves to the client of the dry
/// run that the call reached a replica. Replicas get such calls only during a [connectivity
/// check](crate::webhook_configuration::Settings::checks_connectivity).
pub const REACHED: &str = "a replica of Pillion was reached: trust probes are not stored";

/// The maximum size of the review of an [`InjectionTrustProbe`], in bytes. The object only has a name.
pub const MAX_REVIEW_BYTES: usize = 64 * 1024;

/// Returns a replica's response to the review of an [`InjectionTrustProbe`]: a denial with the message [`REACHED`].
///
/// # Errors
/// The body is not a review, or its uid is empty or longer than [`names::MAX_UID_BYTES`].
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

/// Appends an epoch of the rotation to `of`, the path of an entry. A call with this path proves that the API server has
/// this version of the configuration, regardless of the CA that it trusts.
#[must_use]
pub fn path(of: &str, epoch: u64) -> String {
    format!("{of}/{epoch}")
}

/// Returns the epoch that follows `of` in a path. 0 if nothing follows. `None` if `path` has a different form.
#[must_use]
pub fn epoch_of(path: &str, of: &str) -> Option<u64> {
    match path.strip_prefix(of)? {
        "" => Some(0),
        rest => rest.strip_prefix('/')?.parse().ok(),
    }
}

/// An object that the controller creates only with a dry run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InjectionTrustProbe {
    /// `pillion.dev/v1alpha1`.
    pub api_version: String,
    /// `InjectionTrustProbe`.
    pub kind: String,
    /// The metadata, whose name is unique for each request.
    pub metadata: ObjectMeta,
}

impl InjectionTrustProbe {
    /// The value of `kind`.
    pub const KIND: &str = "InjectionTrustProbe";

    /// Creates an object with this name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            api_version: names::API_VERSION.to_owned(),
            kind: Self::KIND.to_owned(),
            metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        }
    }
}

impl Resource for InjectionTrustProbe {
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
