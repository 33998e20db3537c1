//! Reasons for decisions.
//!
//! Reasons are a closed set, because they are label values of a metric. Details of one request are stored separately.

use std::fmt;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident => $text:literal, $sentence:literal;)+) => {
        /// The reason for a decision. It is a closed set, because reasons are label values of a metric.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Returns the reason as the value of the metric label, the log field and the span attribute.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// Returns a human-readable sentence for the reason, without its full stop.
            #[must_use]
            pub const fn sentence(self) -> &'static str {
                match self { $(Self::$name => $sentence,)+ }
            }
        }
    };
}

reasons! {
    /// At least one profile changed the object.
    Injected => "injected", "the profiles were applied";
    /// The object already has everything that the profiles add.
    AlreadyInjected => "already_injected", "the object already has everything that its profiles add";
    /// All validations of the profiles succeeded.
    Valid => "valid", "the object passes the validations of its profiles";
    /// A validation of the profile failed.
    ValidationFailed => "validation_failed", "the object does not pass a validation";
    /// The kill switch is on, so no profile is applied.
    SwitchedOff => "switched_off", "injection is disabled for the whole cluster";
    /// The operation of the request is not handled, such as the update of a pod on the mutating path.
    OtherOperation => "other_operation", "only objects that are created are injected";
    /// No profile targets the resource or subresource of the request, or the request contains no object.
    OtherResource => "other_resource", "no profile targets this resource";
    /// The object is being deleted. Additions to it would have no effect, and finalizers cannot be added.
    BeingDeleted => "being_deleted", "the object is being deleted";
    /// The object is a mirror pod. It represents a static pod of the kubelet, so changes would have no effect.
    MirrorPod => "mirror_pod", "the pod is a mirror pod of a static pod, so it cannot be changed";
    /// The pod has no containers. The API server rejects such a pod, but an injected container would make it valid.
    NoContainers => "no_containers", "the pod has no containers";
    /// The object is in a system namespace.
    SystemNamespace => "system_namespace", "Pillion never injects into system namespaces";
    /// None of the namespace's labels opts it in, or the namespace was not found.
    NotOptedIn => "not_opted_in", "the namespace is not opted in by the label pillion.dev/injection";
    /// The namespace is opted in, but no profile is available in it.
    NoProfile => "no_profile", "no profile matches this namespace";
    /// Profiles are available in the namespace, but neither the namespace nor the pod requests one.
    NotRequested => "not_requested", "neither the pod nor its namespace requests a profile";
    /// The author of the pod opted out, or the namespace declines the profile.
    OptedOut => "opted_out", "the pod opts out";
    /// The pod's labels do not match the profile's objectSelector.
    ObjectSelector => "object_selector", "the labels of the pod do not match the profile's objectSelector";
    /// The value of a request key is truthy, and several profiles use the key.
    Ambiguous => "ambiguous", "this key requests more than one profile; request one by its name";
    /// A requested profile does not exist.
    UnknownProfile => "unknown_profile", "a requested profile does not exist";
    /// A match condition of the profile is false.
    MatchCondition => "match_condition", "a match condition of the profile is false";
    /// A precondition of the profile or of a container patch is not met.
    Precondition => "precondition", "a precondition of the profile is not met";
    /// A parameter was set to a value that the profile does not allow.
    InvalidParameter => "invalid_parameter", "a parameter was set to a value that the profile does not allow";
    /// An expression of the profile could not be evaluated.
    ExpressionFailed => "expression_failed", "an expression of the profile could not be evaluated";
    /// An expression or a parameter reads the result of a failed lookup.
    LookupFailed => "lookup_failed", "an object that the profile reads could not be looked up";
    /// Another profile of the same exclusive group has precedence.
    ExclusiveGroup => "exclusive_group", "another profile of its exclusive group is applied";
    /// A namespaced profile that extends the cluster profile and only sets values is applied instead of it.
    Extended => "extended", "a profile of the namespace that extends it is applied instead";
    /// The object already has a container or volume with the name that the profile adds, or a value for which the
    /// conflict rule is `Fail`.
    NameTaken => "name_taken", "a name that the profile adds is taken";
    /// A field has different types in the object and in the template.
    TypeConflict => "type_conflict", "a field of the object has another type than in the profile's template";
    /// A key occurs twice in a map of the object.
    DuplicateKey => "duplicate_key", "a key occurs twice in one object, so its value is ambiguous";
    /// A container of the profile mounts a volume that exists neither in the pod nor in the profile.
    MissingVolume => "missing_volume", "a container of the profile mounts a volume that does not exist";
    /// The API server would reject the pod. For example, a container requests more than its limit, or a probe or hook
    /// does not have exactly one handler.
    InvalidResult => "invalid_result", "the API server would reject the pod with the profile's changes";
    /// The pod is for Windows, but the profile's containers are not.
    OperatingSystem => "operating_system", "the pod is for Windows, and the profile's containers are not";
    /// The record would exceed its maximum size.
    RecordTooLarge => "record_too_large", "the injection record would be too large";
    /// The result would exceed a limit of Kubernetes or of Pillion, or a namespaced profile would change the result
    /// of a cluster profile.
    LimitExceeded => "limit_exceeded", "the result would exceed a limit";
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}
