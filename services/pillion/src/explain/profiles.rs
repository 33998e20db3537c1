//! The profiles in an explanation: the outcome of each, the values of its parameters and their sources, and why a
//! requested profile is not active.

use std::sync::Arc;

use pillion_api::names::{INJECT_LABEL, PROFILES_ANNOTATION, ROLLBACK_FROM_ANNOTATION};
use pillion_api::profile::Activation;
use pillion_api::selector::LabelSelector;
use pillion_control::informer::cluster_listing::Stored;
use pillion_control::informer::text::Broken;
use pillion_engine::decision::{Decision, Notice, ProfileDecision, Reason};
use pillion_engine::profile::CompiledProfile;
use pillion_engine::select::considered::{Considered, ParameterValue, RequestState, SetBy};
use pillion_engine::snapshot::Snapshot;
use serde::Serialize;
use serde_json::Value;

use super::facts::{ExplainFacts, NamespaceFacts};
use crate::finding::{Code, Finding, ObjectRef, Severity};

/// A profile in an explanation, with its outcome.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProfileView {
    pub(crate) profile: String,
    pub(crate) revision: String,
    /// The outcome; `not_requested` if the profile was not requested.
    pub(crate) outcome: &'static str,
    pub(crate) reason: &'static str,
    /// The reason as a sentence, with details of this object.
    pub(crate) message: String,
    pub(crate) parameters: Vec<ParameterView>,
}

/// The value of a parameter, with its sources.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ParameterView {
    pub(crate) name: String,
    /// Null if the parameter is unset and has no default, or has no value because of `error`.
    pub(crate) value: Value,
    /// The sources of the value, by precedence: `object`, `serviceAccount`, `namespace`, `namespaceProfile` or
    /// `default`.
    pub(crate) from: Vec<FromView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// A source of a parameter's value.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FromView {
    pub(crate) source: &'static str,
    /// The key of the label or annotation; empty for other sources.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) key: String,
}

/// Returns a description of how to request a profile. `None` if the profile needs no request, or cannot be requested.
pub(super) fn asking(profile: &CompiledProfile) -> Option<String> {
    if profile.activation() != Activation::Requested {
        return None;
    }
    let name = &profile.name().name;
    let own = profile.request_keys().next().map(|key| {
        let word = profile.request_value().unwrap_or(name);
        format!("{key}: {word:?}")
    });
    let asked = own.unwrap_or_else(|| format!("{PROFILES_ANNOTATION}: {name}"));
    Some(format!("request it with {asked}"))
}

/// Returns the considered profiles, of which the requested ones come first, then the other active profiles of the
/// cluster and the namespace, and then the stored profiles that are not active.
pub(crate) fn views(decision: &Decision, considered: &[Considered], facts: &ExplainFacts) -> Vec<ProfileView> {
    let mut views: Vec<_> = considered.iter().map(|one| view(decision, one)).collect();
    // Active profiles were not considered if the namespace is not opted in, or if there is no pod.
    let is_visible = |profile: &&Arc<CompiledProfile>| {
        profile.name().namespace.as_deref().is_none_or(|namespace| namespace == facts.namespace.name)
    };
    for profile in facts.snapshot.profiles().iter().filter(is_visible) {
        let name = profile.name().to_string();
        // A profile in a rollout has two revisions.
        if !views.iter().any(|view| view.profile == name) {
            views.push(ProfileView {
                profile: name,
                revision: profile.revision().to_owned(),
                outcome: "not_matched",
                reason: decision.reason.as_str(),
                message: decision.reason.sentence().to_owned(),
                parameters: Vec::new(),
            });
        }
    }
    // Stored profiles that are not active.
    for stored in &facts.stored {
        let name = stored.name.to_string();
        if !views.iter().any(|view| view.profile == name) {
            let why = readiness(stored, &facts.broken).map(|finding| finding.message);
            views.push(ProfileView {
                profile: name,
                revision: String::new(),
                outcome: "not_served",
                reason: "profile_not_ready",
                message: why.unwrap_or_else(|| "no revision of it is active".to_owned()),
                parameters: Vec::new(),
            });
        }
    }
    views
}

fn view(decision: &Decision, considered: &Considered) -> ProfileView {
    let profile = &considered.profile;
    let decided = decision.profiles.iter().find(|decided| decided.profile.name() == profile.name());
    let (outcome, reason, message) = match decided {
        Some(decided) => (decided.outcome.as_str(), decided.reason.as_str(), describe_decision(decided)),
        None => match considered.request_state {
            RequestState::NamespaceSelector => ("not_matched", "namespace_selector", namespace_mismatch(profile)),
            RequestState::OtherTarget => {
                ("not_matched", "other_resource", "its target is not the creation of pods".to_owned())
            }
            RequestState::Requested => ("not_matched", decision.reason.as_str(), decision.reason.sentence().to_owned()),
            RequestState::NotRequested => ("not_requested", "not_requested", not_requested(considered)),
        },
    };
    ProfileView {
        profile: profile.name().to_string(),
        revision: profile.revision().to_owned(),
        outcome,
        reason,
        message,
        parameters: considered.parameters.iter().map(parameter).collect(),
    }
}

/// Returns a reason as a sentence, with details of the object.
pub(crate) fn describe_reason(reason: Reason, detail: Option<&str>) -> String {
    let sentence = reason.sentence();
    detail.map_or_else(|| sentence.to_owned(), |detail| format!("{sentence}: {detail}"))
}

/// Returns the reason of a profile's outcome as a sentence, with the selector that does not match.
pub(crate) fn describe_decision(decision: &ProfileDecision) -> String {
    let selector = decision.profile.object_selector().filter(|_| decision.reason == Reason::ObjectSelector);
    let selector = selector.map(ToString::to_string);
    describe_reason(decision.reason, selector.as_deref().or(decision.detail.as_deref()))
}

/// Returns the sentence that the labels of the namespace do not match the profile's selector.
pub(crate) fn namespace_mismatch(profile: &CompiledProfile) -> String {
    let selector = profile.namespace_selector().map(|selector| format!(": {selector}")).unwrap_or_default();
    format!("the labels of the namespace do not match the profile's namespaceSelector{selector}")
}

fn not_requested(considered: &Considered) -> String {
    let profile = &considered.profile;
    if profile.activation() == Activation::Never {
        return "other profiles extend it; it is never applied itself".to_owned();
    }
    let keys: Vec<_> = profile.request_keys().collect();
    if keys.is_empty() {
        format!("to request it: {PROFILES_ANNOTATION}: {}", profile.name().name)
    } else {
        format!("neither by {} nor by its name", keys.join(" or "))
    }
}

fn parameter(parameter: &ParameterValue) -> ParameterView {
    let from = parameter.set_by.iter().map(|(by, key)| FromView { source: by.as_str(), key: key.to_string() });
    let (value, error) = match &parameter.value {
        Ok(value) => (value.clone().unwrap_or(Value::Null), None),
        Err(error) => (Value::Null, Some(error.to_string())),
    };
    ParameterView { name: parameter.name.to_string(), value, from: from.collect(), error }
}

impl ParameterView {
    /// Formats the sources of the value.
    pub(crate) fn describe_sources(&self) -> String {
        let sources: Vec<_> = self
            .from
            .iter()
            .map(|from| match (from.source, &*from.key) {
                (source, "") if source == SetBy::NamespaceProfile.as_str() => "the namespace's profile".to_owned(),
                (source, "") => source.to_owned(),
                (source, key) => {
                    format!("{key} of the {}", if source == "serviceAccount" { "service account" } else { source })
                }
            })
            .collect();
        sources.join(", ")
    }
}

/// Returns the finding's code for a reason of the engine, or `None` if the reason needs no finding.
pub(crate) fn code(reason: Reason) -> Option<Code> {
    Some(match reason {
        Reason::OptedOut => Code::OptedOut,
        Reason::ObjectSelector => Code::ObjectSelector,
        Reason::Ambiguous => Code::AmbiguousRequest,
        Reason::UnknownProfile => Code::UnknownProfile,
        Reason::MatchCondition => Code::MatchCondition,
        Reason::Precondition => Code::Precondition,
        Reason::InvalidParameter => Code::InvalidParameter,
        Reason::ExpressionFailed => Code::ExpressionFailed,
        Reason::LookupFailed => Code::LookupFailed,
        Reason::ExclusiveGroup => Code::ExclusiveGroup,
        Reason::NameTaken => Code::NameTaken,
        Reason::TypeConflict | Reason::DuplicateKey | Reason::MissingVolume | Reason::InvalidResult => {
            Code::TemplateConflict
        }
        Reason::OperatingSystem => Code::OperatingSystem,
        Reason::RecordTooLarge | Reason::LimitExceeded => Code::LimitExceeded,
        Reason::SwitchedOff => Code::SwitchedOff,
        // For `Extended`, the profile that extends this one is applied instead.
        Reason::Extended
        | Reason::Injected
        | Reason::AlreadyInjected
        | Reason::Valid
        | Reason::ValidationFailed
        | Reason::OtherOperation
        | Reason::OtherResource
        | Reason::BeingDeleted
        | Reason::MirrorPod
        | Reason::NoContainers
        | Reason::SystemNamespace
        | Reason::NotOptedIn
        | Reason::NoProfile
        | Reason::NotRequested => return None,
    })
}

/// Reports a notice as a finding: its code, its profile, and a message.
pub(crate) fn notice(
    notice: &Notice,
    considered: &[Considered],
    stored: &[Stored],
    namespace: &str,
    mut find: impl FnMut(Code, Option<&str>, String),
) {
    match notice {
        Notice::RecordDropped => find(Code::ForeignRecord, None, notice.to_string()),
        Notice::AmbiguousRequest { .. } => find(Code::AmbiguousRequest, None, notice.to_string()),
        Notice::UnknownProfile { word, .. } => {
            let name = word.split('@').next().unwrap_or(word);
            let selective = considered
                .iter()
                .find(|one| one.request_state == RequestState::NamespaceSelector && *one.profile.name().name == *name);
            // A mismatch of the namespace selector is reported instead.
            if selective.is_some() {
                return;
            }
            let known: Vec<_> = considered.iter().map(|one| &*one.profile.name().name).collect();
            let near = known
                .iter()
                .filter(|known| strsim::jaro_winkler(known, name) > 0.85)
                .max_by(|one, other| strsim::jaro_winkler(one, name).total_cmp(&strsim::jaro_winkler(other, name)));
            let meant = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            let of_name = stored.iter().filter(|stored| *stored.name.name == *name);
            let mut namespaces = of_name.filter_map(|stored| stored.name.namespace.as_deref());
            let elsewhere = namespaces.find(|other| *other != namespace).map(|other| {
                format!("; namespace {other} has a profile of this name, which applies only to pods of that namespace")
            });
            let hint = elsewhere.unwrap_or(meant);
            find(Code::UnknownProfile, Some(name), format!("{notice}{hint}"));
        }
        Notice::Parameter { profile, message } => {
            find(Code::InvalidParameter, Some(profile), message.to_string());
        }
        Notice::OfProfile { .. } => {}
    }
}

/// Describes a label or annotation of a pod that looks like a request for a profile, but requests none.
pub(super) fn near_request(pod: &Value, considered: &[Considered]) -> Option<String> {
    /// A key whose similarity to a request key exceeds this value differs from it in about one letter.
    const MIN_SIMILARITY: f64 = 0.97;
    let part = |part: &str| pod.pointer("/metadata").and_then(|metadata| metadata.get(part)?.as_object());
    if part("labels").is_some_and(|labels| labels.contains_key(PROFILES_ANNOTATION)) {
        return Some(format!("{PROFILES_ANNOTATION} is a label of the pod, and only an annotation requests a profile"));
    }
    let keys: Vec<_> = considered.iter().flat_map(|one| one.profile.request_keys()).collect();
    let known = || keys.iter().copied().chain([PROFILES_ANNOTATION]);
    let pod_keys = ["annotations", "labels"].into_iter().filter_map(part).flat_map(|map| map.keys());
    pod_keys.filter(|key| known().all(|known| known != key.as_str())).find_map(|key| {
        let near = known().find(|known| strsim::jaro_winkler(known, key) > MIN_SIMILARITY)?;
        Some(format!("{key} on the pod looks like a misspelt {near}"))
    })
}

/// Returns the keys of requests and of the opt-out label that are set on a workload itself, but not on its pods.
pub(crate) fn misplaced(workload: &Value, pod: &Value, snapshot: &Snapshot) -> Vec<String> {
    let on = |object: &Value, part: &str, key: &str| {
        object.pointer("/metadata").and_then(|metadata| metadata.get(part)?.get(key)).is_some()
    };
    let mut keys = vec![PROFILES_ANNOTATION.to_owned(), INJECT_LABEL.to_owned()];
    keys.extend(snapshot.profiles().iter().flat_map(|profile| profile.request_keys().map(str::to_owned)));
    keys.sort();
    keys.dedup();
    let is_misplaced =
        |key: &String| ["labels", "annotations"].into_iter().any(|part| on(workload, part, key) && !on(pod, part, key));
    keys.into_iter().filter(is_misplaced).collect()
}

/// Returns the profiles that would be selected if their namespace selector matched. Each has a flag, which is true if
/// the pod or the namespace requests the profile.
pub(crate) fn excluded_by_namespace(
    considered: &[Considered],
    pod: &Value,
    namespace: &NamespaceFacts,
) -> Vec<(Arc<CompiledProfile>, bool)> {
    let selective = considered.iter().filter(|one| one.request_state == RequestState::NamespaceSelector);
    let asked = |one: &&Considered| {
        let profile = &one.profile;
        let by_key = profile.is_requested_by(requests_of(profile, pod, namespace));
        let is_asked = by_key || is_named(&profile.name().name, pod, namespace);
        let is_for_all = profile.activation() == Activation::Always;
        (is_asked || is_for_all).then_some(is_asked)
    };
    selective.filter_map(|one| Some((Arc::clone(&one.profile), asked(&one)?))).collect()
}

/// Returns the values of a profile's own label and annotation on a pod and its namespace, by precedence.
fn requests_of<'o>(profile: &CompiledProfile, pod: &'o Value, namespace: &'o NamespaceFacts) -> Vec<&'o str> {
    let (label, annotation) = (profile.request_label(), profile.request_annotation());
    let of_pod = [("labels", label), ("annotations", annotation)].map(|(part, key)| of_pod(pod, part, key?));
    let of_namespace = [(&namespace.labels, label), (&namespace.annotations, annotation)]
        .map(|(map, key)| map.get(key?).map(String::as_str));
    of_pod.into_iter().chain(of_namespace).flatten().collect()
}

/// Returns the values of these keys on a pod and its namespace, as labels or annotations.
fn values_of<'o>(keys: &[&str], pod: &'o Value, namespace: &'o NamespaceFacts) -> Vec<&'o str> {
    let mut values = Vec::new();
    for key in keys {
        values.extend(["labels", "annotations"].into_iter().filter_map(|part| of_pod(pod, part, key)));
    }
    for key in keys {
        let maps = [&namespace.labels, &namespace.annotations];
        values.extend(maps.into_iter().filter_map(|map| map.get(*key)).map(String::as_str));
    }
    values
}

/// Returns the value of a pod's label or annotation. `part` is `labels` or `annotations`.
fn of_pod<'o>(pod: &'o Value, part: &str, key: &str) -> Option<&'o str> {
    pod.pointer("/metadata")?.get(part)?.get(key)?.as_str()
}

/// Whether a pod or its namespace requests a profile by its name.
fn is_named(name: &str, pod: &Value, namespace: &NamespaceFacts) -> bool {
    let names = [
        of_pod(pod, "annotations", PROFILES_ANNOTATION),
        namespace.annotations.get(PROFILES_ANNOTATION).map(String::as_str),
    ];
    let mut words = names.into_iter().flatten().flat_map(|list| list.split(',')).map(str::trim);
    words.any(|word| word.split('@').next() == Some(name))
}

/// Whether a stored profile applies to a pod, or the pod or namespace requests it. Reads the stored spec, which may not
/// compile.
pub(crate) fn concerns(stored: &Stored, pod: &Value, namespace: &NamespaceFacts) -> bool {
    let spec = stored.spec();
    let text = |path: &str| spec.pointer(path).and_then(Value::as_str);
    let keys: Vec<_> = ["/requestedBy/label", "/requestedBy/annotation"].into_iter().filter_map(text).collect();
    // The profile may not compile, and then its request values are unknown. So any value is treated as a request.
    applies_to_all(stored, pod, namespace)
        || !values_of(&keys, pod, namespace).is_empty()
        || is_named(&stored.name.name, pod, namespace)
}

/// Whether a stored profile applies to this pod without a request.
fn applies_to_all(stored: &Stored, pod: &Value, namespace: &NamespaceFacts) -> bool {
    let spec = stored.spec();
    let of_pod = |key: &str| pod.pointer("/metadata/labels")?.get(key)?.as_str();
    let of_namespace = |key: &str| namespace.labels.get(key).map(String::as_str);
    let is_always = match spec.get("activation").and_then(Value::as_str) {
        Some(activation) => activation == "Always",
        // The default is Requested for a profile with `requestedBy`, which may be inherited.
        None => spec.get("requestedBy").is_none() && spec.get("extends").is_none(),
    };
    is_always && selects(spec.get("namespaceSelector"), of_namespace) && selects(spec.get("objectSelector"), of_pod)
}

/// Whether a selector, given as JSON, matches these labels. A missing or invalid selector matches.
fn selects<'l>(selector: Option<&Value>, label: impl Fn(&str) -> Option<&'l str>) -> bool {
    let selector = selector.filter(|selector| !selector.is_null());
    let selector: Option<LabelSelector> = selector.and_then(|selector| serde_json::from_value(selector.clone()).ok());
    selector.is_none_or(|selector| selector.matches(label))
}

/// Returns a finding if the stored version of a profile is not active.
pub(crate) fn readiness(stored: &Stored, broken: &[Broken]) -> Option<Finding> {
    let namespace = stored.name.namespace.as_deref();
    let object = ObjectRef::new(&stored.kind(), namespace, &stored.name.name);
    let name = stored.name.to_string();
    let of = namespace.map(|namespace| format!(" -n {namespace}")).unwrap_or_default();
    let kind = if namespace.is_some() { "iprof" } else { "ciprof" };
    let serves = stored.status.revision.as_ref();
    let severity = if serves.is_some() { Severity::Warning } else { Severity::Error };
    let remedy = format!(
        "correct the errors that this command shows: kubectl{of} get {kind} {} -o yaml | pillion lint /dev/stdin",
        stored.name.name
    );
    let not_ready = |why: String| {
        let message = match serves {
            Some(revision) => {
                format!("the last edit is invalid: {why}; pods still get the previous revision {revision}")
            }
            None => format!("the profile is invalid, so no pod gets it: {why}"),
        };
        Finding::new(Code::ProfileNotReady, object.clone(), message)
            .remedy(remedy.clone())
            .of_profile(&name)
            .graded(severity)
    };
    for type_ in ["Accepted", "Ready"] {
        if let Some((false, _, message)) = stored.condition(type_) {
            return Some(not_ready(message.to_owned()));
        }
    }
    if let Some(broken) = broken.iter().find(|broken| broken.name == stored.name) {
        let why = broken.diagnostics.first().map(|one| format!("{}: {}", one.path, one.message));
        return Some(not_ready(why.unwrap_or_else(|| "it does not compile".to_owned())));
    }
    let (observed, generation) = (stored.status.observed_generation, stored.metadata.generation);
    // Without a controller, `observedGeneration` stays unset.
    if observed.is_some() && observed < generation {
        let message = format!(
            "the controller has not reconciled generation {} yet; pods get the revision of generation {}",
            generation.unwrap_or_default(),
            observed.unwrap_or_default()
        );
        return Some(Finding::new(Code::ProfilePending, object, message).of_profile(&name));
    }
    None
}

/// Returns a finding if a stored profile is rolled back.
pub(crate) fn rolled_back(stored: &Stored) -> Option<Finding> {
    let rollback = stored.status.rollback()?;
    let namespace = stored.name.namespace.as_deref();
    let object = ObjectRef::new(&stored.kind(), namespace, &stored.name.name);
    let message = format!("rolled back: pods get revision {} instead of {}", rollback.to, rollback.from);
    let of = namespace.map(|namespace| format!(" -n {namespace}")).unwrap_or_default();
    let undo = format!("pillion profiles rollback {}{of} --undo", stored.name.name);
    // Without this annotation, a corrected profile does not end the rollback.
    let annotations = stored.metadata.annotations.as_ref();
    let has_from = annotations.is_some_and(|annotations| annotations.contains_key(ROLLBACK_FROM_ANNOTATION));
    let correct = if has_from { "correct the profile, or " } else { "" };
    let remedy = format!("{correct}end the rollback: {undo}");
    Some(Finding::new(Code::RolledBack, object, message).remedy(remedy).of_profile(&stored.name.to_string()))
}

#[cfg(test)]
mod tests {
    use pillion_engine::profile::{ProfileName, compile};
    use serde_json::json;

    use super::*;

    /// A profile that needs a request, and whose namespace selector does not match, is reported only if it is
    /// requested.
    #[test]
    fn empty_or_falsy_value_requests_no_profile() {
        const KEY: &str = "example.com/inject";
        let excluded = |empty: &str, on_pod: &str, on_namespace: &str| {
            let spec = json!({"requestedBy": {"annotation": KEY, "empty": empty}, "template": {"metadata": {"labels": {"a": "b"}}}});
            let spec = serde_json::from_value(spec).unwrap();
            let profile = Arc::new(compile(&ProfileName::cluster("agent"), &spec).unwrap());
            let considered =
                Considered { profile, request_state: RequestState::NamespaceSelector, parameters: Vec::new() };
            let annotations = [(KEY.to_owned(), on_namespace.to_owned())].into();
            let namespace = NamespaceFacts { annotations, ..NamespaceFacts::default() };
            let pod = json!({"metadata": {"annotations": {KEY: on_pod}}});
            let excluded = excluded_by_namespace(&[considered], &pod, &namespace);
            excluded.iter().map(|(profile, is_asked)| (profile.name().to_string(), *is_asked)).collect::<Vec<_>>()
        };
        let asked = [("agent".to_owned(), true)];
        assert_eq!(excluded("Counts", "true", "false"), asked);
        assert_eq!(excluded("Absent", "", "true"), asked);
        assert_eq!(excluded("Counts", "", "true"), []);
        assert_eq!(excluded("Absent", "", " "), []);
        assert_eq!(excluded("Counts", "false", "true"), []);
    }

    #[test]
    fn broken_profile_matches_pods_by_selectors() {
        let labels = [("env".to_owned(), "prod".to_owned())];
        let namespace = NamespaceFacts { labels: labels.into(), ..NamespaceFacts::default() };
        let pod = json!({"metadata": {"labels": {"tier": "web"}}});
        let is_for_all = |spec: Value, own: Option<&str>| {
            let object = json!({"metadata": {"name": "a", "namespace": own}, "spec": spec});
            applies_to_all(&Stored::new(serde_json::from_value(object).unwrap()), &pod, &namespace)
        };
        let is_for = |spec: Value| is_for_all(spec, None);
        let env = |value: &str| json!({"matchLabels": {"env": value}});
        let tier = |value: &str| json!({"matchLabels": {"tier": value}});
        assert!(is_for(json!({"activation": "Always"})));
        assert!(is_for(
            json!({"activation": "Always", "namespaceSelector": env("prod"), "objectSelector": tier("web")})
        ));
        assert!(!is_for(json!({"activation": "Always", "namespaceSelector": env("dev")})));
        assert!(!is_for(json!({"activation": "Always", "objectSelector": tier("db")})));
        assert!(!is_for(json!({"activation": "Requested"})) && is_for(json!({})));
        assert!(!is_for(json!({"requestedBy": {"label": "a"}})) && !is_for(json!({"extends": {"name": "a"}})));
        // An invalid selector matches every pod.
        assert!(is_for(json!({"activation": "Always", "objectSelector": {"matchLabels": 7}})));
    }
}
