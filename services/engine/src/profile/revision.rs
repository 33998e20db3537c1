//! The revision of a profile: a hash of its text and its limits.

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::Limits;

/// The number of hexadecimal digits of a revision. Forty bits distinguish the few revisions of one profile.
const REVISION_LENGTH: usize = 10;

/// Hashes a text and its limits, with sorted object keys.
pub(super) fn hash(text: &str, limits: Limits, ancestors: &[Box<str>], set: &[String]) -> Option<Box<str>> {
    // The text is parsed as a stored revision is, because parsing can change numbers.
    let mut json: Value = serde_json::from_str(text).ok()?;
    json.as_object_mut()?.remove("rollout");
    if !ancestors.is_empty() {
        let bounds = format!("{limits:?}");
        json = serde_json::json!({"text": json, "bounds": bounds, "ancestors": ancestors, "set": set});
    }
    json.sort_all_objects();
    let hash = Sha256::digest(json.to_string());
    let mut hex = format!("{hash:x}");
    hex.truncate(REVISION_LENGTH);
    Some(hex.into())
}
