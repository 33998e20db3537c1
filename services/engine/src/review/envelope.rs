//! The envelope of an AdmissionReview: the fields beside the objects that a decision needs.

use std::borrow::Cow;

use pillion_api::names::MAX_UID_BYTES;
use pillion_api::profile::Operation;

use super::ReviewError;
use crate::json::{BorrowedTape, Kind, Value, first_duplicate_key};
use crate::profile::target::{Action, Phase};

/// The maximum number of keys in an object of the envelope. The API server sends at most sixteen. With so few keys, the
/// fastest way to find duplicates is to compare each key with all those before it.
const MAX_KEYS: usize = 64;

/// The maximum length of invalid values in messages, in characters.
const SHOWN: usize = 60;

/// The supported versions. The response has the same version as the review.
const VERSIONS: [&str; 2] = ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"];

/// The metadata of a request.
#[derive(Debug)]
pub(super) struct Envelope<'b> {
    /// The version of the review.
    pub(super) api_version: &'static str,
    pub(super) uid: Cow<'b, str>,
    pub(super) namespace: Cow<'b, str>,
    /// The operation. `None` if profiles cannot target it, such as `CONNECT`.
    pub(super) operation: Option<Operation>,
    pub(super) group: Cow<'b, str>,
    pub(super) version: Cow<'b, str>,
    /// The plural resource name. If there is a subresource, a slash and its name follow.
    pub(super) resource: Cow<'b, str>,
    pub(super) dry_run: bool,
    /// Whether a node sent the request, such as a kubelet that creates a mirror pod.
    pub(super) by_node: bool,
}

impl<'b> Envelope<'b> {
    /// Parses the envelope of a review.
    pub(super) fn read(tape: &BorrowedTape<'b>) -> Result<Self, ReviewError> {
        let review = object("the body", Some(tape.root()), "an AdmissionReview")?;
        let version = text("apiVersion", review.get("apiVersion"), "admission.k8s.io/v1 or admission.k8s.io/v1beta1")?;
        let supported = VERSIONS.into_iter().find(|supported| *supported == version);
        let api_version = supported.ok_or_else(|| {
            unexpected("apiVersion", review.get("apiVersion"), "admission.k8s.io/v1 or admission.k8s.io/v1beta1")
        })?;
        if !review.get("kind").is_some_and(|kind| kind.is("AdmissionReview")) {
            return Err(unexpected("kind", review.get("kind"), "AdmissionReview"));
        }
        let request = object("request", review.get("request"), "an AdmissionRequest")?;
        let uid = request.get("uid").and_then(|uid| tape.text_of(uid));
        let uid = uid.ok_or_else(|| unexpected("request.uid", request.get("uid"), "a string that is not empty"))?;
        if uid.is_empty() || uid.len() > MAX_UID_BYTES {
            return Err(unexpected("request.uid", request.get("uid"), "1 to 256 bytes"));
        }
        let operation = match &*text("request.operation", request.get("operation"), "an operation")? {
            "CREATE" => Some(Operation::Create),
            "UPDATE" => Some(Operation::Update),
            "DELETE" => Some(Operation::Delete),
            _ => None,
        };
        let resource = object("request.resource", request.get("resource"), "group, version and resource")?;
        let part = |field| resource.get(field).and_then(|value| tape.text_of(value)).unwrap_or_default();
        let (group, version, name) = (part("group"), part("version"), part("resource"));
        let subresource = request.get("subResource").and_then(Value::as_str).unwrap_or_default();
        let resource = if subresource.is_empty() { name } else { Cow::Owned(format!("{name}/{subresource}")) };
        if operation == Some(Operation::Create) && group.is_empty() && version == "v1" && resource == "pods" {
            object("request.object", request.get("object"), "the pod that is being created")?;
        }
        let user = request.get("userInfo").and_then(|user| user.get("username")).and_then(Value::as_str);
        Ok(Self {
            api_version,
            uid,
            namespace: request.get("namespace").and_then(|name| tape.text_of(name)).unwrap_or_default(),
            operation,
            group,
            version,
            resource,
            dry_run: request.get("dryRun").and_then(Value::as_bool).unwrap_or(false),
            by_node: user.is_some_and(|user| user.starts_with("system:node:")),
        })
    }

    /// Returns the action of the request. `None` if profiles cannot target the operation, such as `CONNECT`.
    pub(super) fn action(&self, phase: Phase) -> Option<Action<'_>> {
        let (group, version, resource) = (&*self.group, &*self.version, &*self.resource);
        Some(Action { phase, group, version, resource, operation: self.operation? })
    }
}

/// Returns the object in a field. Fails if the value is not an object, or if it has too many keys or duplicate keys.
fn object<'t>(field: &'static str, value: Option<Value<'t>>, expected: &'static str) -> Result<Value<'t>, ReviewError> {
    let object = value.filter(|value| value.kind() == Kind::Object);
    let object = object.ok_or_else(|| unexpected(field, value, expected))?;
    // The object of the request may have any number of keys. The merge finds duplicates in it.
    if field != "request.object" {
        if object.members().nth(MAX_KEYS).is_some() {
            return Err(ReviewError::TooManyKeys { field, most: MAX_KEYS });
        }
        if let Some(key) = first_duplicate_key(|| object.members().map(|(key, _)| key)) {
            return Err(ReviewError::Twice(key.text().into()));
        }
    }
    Ok(object)
}

fn text<'t>(
    field: &'static str,
    value: Option<Value<'t>>,
    expected: &'static str,
) -> Result<Cow<'t, str>, ReviewError> {
    value.and_then(Value::as_str).ok_or_else(|| unexpected(field, value, expected))
}

fn unexpected(field: &'static str, value: Option<Value<'_>>, expected: &'static str) -> ReviewError {
    let found = value.map_or_else(
        || "absent".to_owned(),
        |value| {
            let shown = value.raw().chars().take(SHOWN).collect::<String>();
            if shown.len() < value.raw().len() { format!("{shown}...") } else { shown }
        },
    );
    ReviewError::Field { field, found, expected }
}
