//! Every name on the wire. Users, dashboards and other programs rely on them, so they are a contract.

/// The API group of the custom resources, and the prefix of all labels and annotations.
pub const GROUP: &str = "pillion.dev";

/// The version of the custom resources.
pub const VERSION: &str = "v1alpha1";

/// The value of `apiVersion` in a profile.
pub const API_VERSION: &str = "pillion.dev/v1alpha1";

/// Label on a namespace: opts its pods in. Its value is one of [`InjectionLevel`]'s.
pub const INJECTION_LABEL: &str = "pillion.dev/injection";

/// Label on a pod: `false` opts it out, as far as a profile lets itself be dropped.
pub const INJECT_LABEL: &str = "pillion.dev/inject";

/// Annotation on a namespace or a pod: a comma-separated list of profiles that are asked for by name. On a pod, `-name`
/// takes one away.
pub const PROFILES_ANNOTATION: &str = "pillion.dev/profiles";

/// Annotation on the result: the record of what was injected, by which profile at which revision.
pub const INJECTED_ANNOTATION: &str = "pillion.dev/injected";

/// The scheduling gate that a pod of a `held` namespace carries until Pillion has decided about it.
pub const INJECTION_GATE: &str = "pillion.dev/injection";

/// Label on a revision: the profile that it is of, cut if it is longer than a label's value may be.
pub const PROFILE_LABEL: &str = "pillion.dev/profile";

/// Annotation on a profile: the revision that is published instead of the last accepted one.
pub const ROLLBACK_TO_ANNOTATION: &str = "pillion.dev/rollback-to";

/// Annotation on a profile: the accepted revision that is rolled back. Once another one is accepted, the rollback has had
/// its day. Without it, a rollback holds until it is taken away.
pub const ROLLBACK_FROM_ANNOTATION: &str = "pillion.dev/rollback-from";

/// The annotation by which a kubelet marks the mirror of a static pod: that one runs already, and nobody can change it.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Namespaces that are never injected into, whatever their labels say: a cluster that cannot start its own system
/// pods cannot be repaired.
pub const SYSTEM_NAMESPACES: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// The label that the API server itself puts on every namespace, with the namespace's name as value. Its owner cannot
/// remove it, which is why exclusions are by this label.
pub const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// The path for everybody who is not the API server: curl, load generators, `pillion dev`.
pub const MUTATE_PATH: &str = "/mutate";

/// The path on which profiles themselves are looked at when they are stored. It only warns.
pub const VALIDATE_PROFILES_PATH: &str = "/validate-profiles";

/// The same as [`MUTATE_PATH`] for validations.
pub const VALIDATE_PATH: &str = "/validate";

/// How firmly a namespace is opted in: what happens to its pods when Pillion cannot answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InjectionLevel {
    /// The pod is created without (`failurePolicy: Ignore`), and the audit finds it.
    Enabled,
    /// The pod is refused (`failurePolicy: Fail`).
    Required,
    /// The pod is created, but not scheduled until it is injected.
    Held,
}

impl InjectionLevel {
    /// All levels, in the order in which the webhook configuration lists them.
    pub const ALL: [Self; 3] = [Self::Enabled, Self::Required, Self::Held];

    /// The value of the label [`INJECTION_LABEL`].
    #[must_use]
    pub const fn label_value(self) -> &'static str {
        match self {
            Self::Enabled => "enabled",
            Self::Required => "required",
            Self::Held => "held",
        }
    }

    /// The path that the API server calls for namespaces of this level.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Enabled => "/mutate/enabled",
            Self::Required => "/mutate/required",
            Self::Held => "/mutate/held",
        }
    }

    /// The path that the API server calls for validations in namespaces of this level.
    #[must_use]
    pub const fn validate_path(self) -> &'static str {
        match self {
            Self::Enabled => "/validate/enabled",
            Self::Required => "/validate/required",
            Self::Held => "/validate/held",
        }
    }

    /// The level that a label value names, or `None` if it names none.
    #[must_use]
    pub fn from_label_value(value: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.label_value() == value)
    }
}
/// Bytes of a label of DNS, as namespaces' names are.
const DNS_LABEL_BYTES: usize = 63;
/// Bytes of a name of DNS, as most objects' names are.
const DNS_NAME_BYTES: usize = 253;

/// Bytes of the longest id of a review that is repeated in an answer. The API server's have 36.
pub const MAX_UID_BYTES: usize = 256;

/// Whether it is a label of DNS, as namespaces' names are: letters in lower case, digits and `-`, which neither begins nor
/// ends it.
#[must_use]
pub fn is_dns_label(name: &str) -> bool {
    name.len() <= DNS_LABEL_BYTES && is_of_names(name, b"-")
}

/// Whether it is a name of DNS, as most objects' names are: letters in lower case, digits, `-` and single `.`, which neither
/// begin nor end it. So it can be a part of a URL's path.
#[must_use]
pub fn is_dns_name(name: &str) -> bool {
    name.len() <= DNS_NAME_BYTES && is_of_names(name, b"-.") && !name.contains("..")
}

fn is_of_names(name: &str, within: &[u8]) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
        && bytes.iter().all(|byte| alphanumeric(byte) || within.contains(byte))
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
