//! Revisions: accepted versions of profiles, which are stored in the cluster and immutable.
//!
//! The meaning of a child profile depends on its parents, which may later be edited or become invalid. Therefore a
//! revision contains the complete spec with all inherited parts, and a replica needs nothing else to apply it. The spec
//! is JSON in a string, so that the API server does not prune, reorder or default it, and revisions can be compared as
//! strings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The maximum size of `text` in a revision, in bytes. A template has up to 64 KiB, and a revision may contain several
/// merged templates.
pub const MAX_TEXT_BYTES: usize = 256 * 1024;

/// The maximum length of the profile's name in an object name, in bytes. Kubernetes allows 253, and 17 are left for `-`
/// and the revision.
const NAME_BYTES: usize = 253 - 17;

/// The maximum length of a label value, in bytes.
const LABEL_BYTES: usize = 63;

/// The number of hexadecimal digits of the hash at the end of a shortened name.
const DIGITS: usize = 10;

/// The content of a revision. Only the controller writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RevisionSpec {
    /// The name of the profile.
    #[schemars(length(min = 1, max = 253))]
    pub profile: String,
    /// The hash of `text` and, if the profile extends others, of its limits. Injection records contain the hash. A pod
    /// can select this revision with `pillion.dev/profiles: name@hash`.
    #[schemars(length(min = 4, max = 64))]
    pub revision: String,
    /// The generation of the profile that was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// The limits of the profile.
    pub bounds: RevisionBounds,
    /// The cluster profiles that the profile extends, the nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 253)))]
    pub ancestors: Vec<String>,
    /// The inherited parameters whose values a namespaced profile sets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63)))]
    pub set_by_namespace: Vec<String>,
    /// The `spec` of the profile with everything that it inherits, as JSON.
    #[schemars(length(max = 262_144))]
    pub text: String,
    /// The `spec` as its author wrote it, as JSON, if the profile extends another one. The next leader merges it again
    /// when a parent changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 262_144))]
    pub source: Option<String>,
}

/// The limits of the profile of a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RevisionBounds {
    /// No limits: the profile is a cluster profile.
    Platform,
    /// The limits of the cluster profile that the profile extends.
    Parent,
    /// The limits for namespaced profiles.
    Tenant,
}

/// Returns the name of the object that contains a revision: `<profile>-<hash>`. If the profile's name is too long, its
/// end is replaced by a hash.
#[must_use]
pub fn object_name(profile: &str, revision: &str) -> String {
    format!("{}-{revision}", shortened(profile, NAME_BYTES))
}

/// Returns the label value for a profile's name, shortened if necessary.
#[must_use]
pub fn label_value(profile: &str) -> String {
    shortened(profile, LABEL_BYTES)
}

/// Shortens a name to at most `limit` bytes. A hash of the whole name makes shortened names unique.
fn shortened(name: &str, limit: usize) -> String {
    if name.len() <= limit {
        return name.to_owned();
    }
    let hash = format!("{:x}", Sha256::digest(name));
    let kept = name.get(..name.floor_char_boundary(limit.saturating_sub(DIGITS + 1))).unwrap_or_default();
    // Remove `.` and `-` from the end, because `-` follows, and a part of a DNS name cannot begin with `-`.
    let kept = kept.trim_end_matches(['.', '-']);
    format!("{kept}-{}", hash.get(..DIGITS).unwrap_or(&hash))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::is_dns_name;

    #[test]
    fn revision_name_has_profile_and_hash() {
        assert_eq!(object_name("otel-java", "7f3a91c2d0"), "otel-java-7f3a91c2d0");
        assert_eq!(label_value("otel-java"), "otel-java");
    }

    #[test]
    fn long_names_are_shortened_and_unique() {
        let dotted = |last: &str| format!("{}{last}", "ab.".repeat(84));
        let (first, other) = (dotted("x"), dotted("y"));
        assert_eq!(first.len(), 253);
        for (name, other) in
            [(first.clone(), other), ("a".repeat(253), "a".repeat(252)), ("a".repeat(237), "a".repeat(238))]
        {
            let (object, label) = (object_name(&name, "7f3a91c2d0"), label_value(&name));
            assert!(object.len() <= 253 && is_dns_name(&object), "{object}");
            assert!(!object.contains(".-"), "{object}");
            assert!(label.len() <= 63 && is_dns_name(&label), "{label}");
            assert_ne!(object, object_name(&other, "7f3a91c2d0"));
            assert_ne!(label, label_value(&other));
        }
        assert_eq!(object_name(&"a".repeat(236), "7f3a91c2d0").len(), 247);
    }
}
