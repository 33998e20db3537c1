//! The names that users, dashboards and other programs use. They are part of the API, so they must not change.

/// The API group of the custom resources, and the prefix of all labels and annotations.
pub const GROUP: &str = "pillion.dev";

/// The version of the custom resources.
pub const VERSION: &str = "v1alpha1";

/// The value of `apiVersion` in a profile.
pub const API_VERSION: &str = "pillion.dev/v1alpha1";

/// Label on a namespace: opts the namespace in. The value is the label value of a [`FailureMode`].
pub const INJECTION_LABEL: &str = "pillion.dev/injection";

/// Label on a pod: with the value `false`, the pod opts out of every profile that allows it and, in `enabled`
/// namespaces, of all profiles.
pub const INJECT_LABEL: &str = "pillion.dev/inject";

/// Annotation on a namespace or a pod: a comma-separated list of requested profiles. On a pod, `-name` opts out of a
/// profile.
pub const PROFILES_ANNOTATION: &str = "pillion.dev/profiles";

/// Annotation on an injected object: the injection record. It lists what was injected, and by which profile and
/// revision.
pub const INJECTED_ANNOTATION: &str = "pillion.dev/injected";

/// Annotation on a running pod: the revisions of the injected containers after an upgrade in place. It is a JSON object
/// with the pod's `uid` and `profiles`. Each profile has `from`, the revision in the injection record, and `to`, the
/// revision of the upgrade. Unlike the record, the annotation can be written by all users who may change the pod's
/// images.
pub const UPGRADED_ANNOTATION: &str = "pillion.dev/upgraded";

/// The scheduling gate of pods in `held` namespaces. A pod has it until Pillion has decided whether to inject the pod.
pub const INJECTION_GATE: &str = "pillion.dev/injection";

/// Label on a revision: the name of its profile. It is shortened if it is too long for a label.
pub const PROFILE_LABEL: &str = "pillion.dev/profile";

/// Annotation on a profile: the revision that is published instead of the last accepted one.
pub const ROLLBACK_TO_ANNOTATION: &str = "pillion.dev/rollback-to";

/// Annotation on a profile: the accepted revision that is rolled back. The rollback ends when another revision is
/// accepted. Without this annotation, it ends when [`ROLLBACK_TO_ANNOTATION`] is removed.
pub const ROLLBACK_FROM_ANNOTATION: &str = "pillion.dev/rollback-from";

/// Annotation on a profile: the time of the rollback request. A rollback that has ended does not start again. To roll
/// back to the same revision again, set another time.
pub const ROLLBACK_TIME_ANNOTATION: &str = "pillion.dev/rollback-requested-at";

/// Annotation on a profile that steers its rollout to running pods. Its value is `pause`, `resume REVISION TIME` or
/// `undo REVISION TIME`. With a revision, it applies only to the rollout of that revision, so it has no effect on later
/// ones. A request with the same time is handled only once.
pub const ROLLOUT_ANNOTATION: &str = "pillion.dev/rollout";

/// Label of a pod whose containers are being upgraded in place.
pub const UPGRADING_LABEL: &str = "pillion.dev/upgrading";

/// The annotation that the kubelet sets on the mirror pod of a static pod. The static pod is already running, so
/// admission cannot change it.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Namespaces whose pods are never injected, regardless of their labels. A cluster that cannot start its own system
/// pods cannot be repaired.
pub const SYSTEM_NAMESPACES: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// The label that the API server sets on every namespace. Its value is the name of the namespace. Exclusions use this
/// label, because the owner of the namespace cannot remove it.
pub const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// The path for mutating calls by clients other than the API server: curl, load generators and `pillion dev`.
pub const MUTATE_PATH: &str = "/mutate";

/// The path for checking profiles when they are stored. The response contains only warnings.
pub const VALIDATE_PROFILES_PATH: &str = "/validate-profiles";

/// The path for validating calls by clients other than the API server.
pub const VALIDATE_PATH: &str = "/validate";

/// The failure mode of a namespace: what happens to its pods while Pillion is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureMode {
    /// The pod is created without injection (`failurePolicy: Ignore`), and the audit reports it.
    Enabled,
    /// The pod is rejected (`failurePolicy: Fail`).
    Required,
    /// The pod is created, but not scheduled until Pillion has decided whether to inject it.
    Held,
}

impl FailureMode {
    /// All failure modes, in the order of their entries in the webhook configuration.
    pub const ALL: [Self; 3] = [Self::Enabled, Self::Required, Self::Held];

    /// Returns the value of the label [`INJECTION_LABEL`] for this failure mode.
    #[must_use]
    pub const fn label_value(self) -> &'static str {
        match self {
            Self::Enabled => "enabled",
            Self::Required => "required",
            Self::Held => "held",
        }
    }

    /// Returns the path that the API server calls for mutation in namespaces with this failure mode.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Enabled => "/mutate/enabled",
            Self::Required => "/mutate/required",
            Self::Held => "/mutate/held",
        }
    }

    /// Returns the path that the API server calls for validation in namespaces with this failure mode.
    #[must_use]
    pub const fn validate_path(self) -> &'static str {
        match self {
            Self::Enabled => "/validate/enabled",
            Self::Required => "/validate/required",
            Self::Held => "/validate/held",
        }
    }

    /// Returns the failure mode with this label value. `None` for other values.
    #[must_use]
    pub fn from_label_value(value: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|failure_mode| failure_mode.label_value() == value)
    }
}
/// The maximum length of a DNS label, such as the name of a namespace, in bytes.
const DNS_LABEL_BYTES: usize = 63;
/// The maximum length of a DNS name, such as the name of most objects, in bytes.
const DNS_NAME_BYTES: usize = 253;

/// The maximum length of a review's uid, in bytes. The response repeats the uid. The API server's uids have 36 bytes.
pub const MAX_UID_BYTES: usize = 256;

/// Whether a name is a DNS label, like the names of namespaces: lower-case letters, digits and `-`. The first and the
/// last character must not be `-`.
#[must_use]
pub fn is_dns_label(name: &str) -> bool {
    name.len() <= DNS_LABEL_BYTES && has_name_characters(name, b"-")
}

/// Whether a name is a DNS name, like the names of most objects: lower-case letters, digits, `-` and `.`. The first and
/// the last character must not be `-` or `.`, and `..` is not allowed. Such a name is safe in the path of a URL.
#[must_use]
pub fn is_dns_name(name: &str) -> bool {
    name.len() <= DNS_NAME_BYTES && has_name_characters(name, b"-.") && !name.contains("..")
}

fn has_name_characters(name: &str, separators: &[u8]) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
        && bytes.iter().all(|byte| alphanumeric(byte) || separators.contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dns_names_have_no_path_characters() {
        for name in ["a", "0", "a-0", "kube-system", &"a".repeat(63)] {
            assert!(is_dns_label(name) && is_dns_name(name), "{name:?}");
        }
        let dotted = ["a.b", "a.b-c.0", &"a".repeat(253)];
        assert!(dotted.iter().all(|name| is_dns_name(name) && !is_dns_label(name)));
        let long = "a".repeat(254);
        for name in
            ["", "-a", "a-", "A", "a..b", ".a", "a.", "a/../b", "..", "a%2fb", "a?b", "a#b", "a b", "é", "a\n", &long]
        {
            assert!(!is_dns_name(name) && !is_dns_label(name), "{name:?}");
        }
    }
}
