//! Tests which profiles are selected for a pod.

use std::sync::Arc;

use pillion_api::names::FailureMode;
use serde_json::{Value as Json, json};

use crate::context::{Arena, EvalContext};
use crate::decision::{Notice, ProfileDecision, ProfileOutcome, Reason};
use crate::expression::Allowances;
use crate::json::OwnedTape;
use crate::lookup::LookedUp;
use crate::profile::target::Action;
use crate::profile::{Library, ProfileName, ProfileSource, compile};
use crate::snapshot::{Namespace, ProfileSet};

use super::candidates::Candidates;
use super::{Selection, select};

const KEY: &str = "example.com/inject";

/// Returns the name of a profile, parsed from `name` or `namespace/name`, and its spec with an added template.
fn profile(name: &str, mut spec: Json) -> (ProfileName, Json) {
    spec["template"] = json!({"metadata": {"labels": {"x": "y"}}});
    let name = match name.split_once('/') {
        Some((namespace, name)) => ProfileName::namespaced(namespace, name),
        None => ProfileName::cluster(name),
    };
    (name, spec)
}

/// The result of a selection, with owned values.
struct Found {
    profiles: Vec<ProfileDecision>,
    notices: Vec<Notice>,
    denied: Option<(Reason, Box<str>)>,
    reason: Reason,
}

struct Case {
    profiles: Vec<(ProfileName, Json)>,
    namespace: Namespace,
    failure_mode: FailureMode,
}

impl Case {
    fn new(profiles: impl Into<Vec<(ProfileName, Json)>>) -> Self {
        Self { profiles: profiles.into(), namespace: Namespace::default(), failure_mode: FailureMode::Enabled }
    }

    fn namespace(self, annotations: &[(&'static str, &'static str)]) -> Self {
        Self { namespace: Namespace::new([("env", "prod")], annotations.iter().copied()), ..self }
    }

    fn select(&self, labels: &Json, annotations: &Json) -> Found {
        let compiled = self
            .profiles
            .iter()
            .map(|(name, spec)| Arc::new(compile(name, &serde_json::from_value(spec.clone()).unwrap()).unwrap()));
        let set = ProfileSet::new(compiled);
        let (cluster, own) = set.indexes("team-a");
        let candidates = Candidates::find(cluster, own, &self.namespace);
        let pod = json!({"metadata": {"labels": labels, "annotations": annotations}});
        let tape = OwnedTape::parse(pod.to_string()).unwrap();
        let context = EvalContext {
            object: tape.root(),
            request: tape.root(),
            namespace_name: "team-a",
            namespace: &self.namespace,
            uid: "u",
            looked_up: &LookedUp::default(),
            allowances: &Allowances::until(None),
        };
        let arena = Arena::new();
        let Selection { profiles, notices, denied, reason } =
            select(&candidates, Action::CREATE_POD, self.failure_mode, context, &arena);
        let profiles = profiles.into_iter().map(|selected| selected.decision).collect();
        Found { profiles, notices, denied, reason }
    }

    /// Returns the profiles that are applied to a pod, in order.
    fn applied(&self, labels: &Json, annotations: &Json) -> Vec<String> {
        let selection = self.select(labels, annotations);
        let applied = selection.profiles.iter().filter(|decision| decision.outcome == ProfileOutcome::Unchanged);
        applied.map(|decision| decision.profile.display_name().to_owned()).collect()
    }
}

fn by_key() -> Json {
    json!({"requestedBy": {"annotation": KEY, "label": KEY}})
}

#[test]
fn value_is_truthy_falsy_or_name() {
    let case = Case::new([
        profile("java", json!({"requestedBy": {"annotation": KEY, "values": ["JVM"]}})),
        profile("python", json!({"requestedBy": {"annotation": KEY, "truthy": ["serpent"]}})),
    ]);
    for (value, applied) in [
        ("true", &["java"][..]),
        ("YES", &["java"]),
        (" on ", &["java"]),
        ("serpent", &["python"]),
        ("Python", &["python"]),
        ("jvm", &["java"]),
        ("python, java", &["java", "python"]),
        ("false", &[]),
        ("", &[]),
        ("ruby", &[]),
    ] {
        assert_eq!(case.applied(&json!({}), &json!({KEY: value})), applied, "{value:?}");
    }
    assert!(case.applied(&json!({}), &json!({})).is_empty());
}

#[test]
fn falsy_value_on_pod_declines_request_by_name() {
    let names = "pillion.dev/profiles";
    for (namespace, pod, applied) in [
        (&[(names, "java")][..], json!({}), true),
        (&[(names, "java")], json!({KEY: "no"}), false),
        (&[(names, "java")], json!({KEY: ""}), false),
        (&[(names, "java")], json!({KEY: "yes"}), true),
        (&[], json!({names: "java", KEY: "no"}), false),
        // The pod's request takes precedence over the namespace's value.
        (&[(KEY, "no")], json!({names: "java"}), true),
    ] {
        let case = Case::new([profile("java", by_key())]).namespace(namespace);
        assert_eq!(!case.applied(&json!({}), &pod).is_empty(), applied, "{namespace:?} {pod}");
        let found = case.select(&json!({}), &pod);
        assert_eq!(found.profiles.iter().any(|decision| decision.reason == Reason::OptedOut), !applied, "{pod}");
    }
    let case = Case::new([profile("guard", json!({"requestedBy": {"annotation": KEY}, "optOut": "Forbidden"}))]);
    assert_eq!(case.applied(&json!({}), &json!({names: "guard", KEY: "no"})), ["guard"]);
}

#[test]
fn empty_value_declines_or_counts_as_absent() {
    for (empty, activation, value, applied) in [
        (json!("Counts"), "Requested", "", false),
        (json!("Absent"), "Requested", "", true),
        (json!("Absent"), "Requested", " ", true),
        (json!("Absent"), "Requested", "false", false),
        (json!("Counts"), "Always", "", false),
        (json!("Absent"), "Always", "", true),
        (json!("Absent"), "Always", "no", false),
    ] {
        let more = json!({"activation": activation, "requestedBy": {"annotation": KEY, "empty": empty}});
        let case = Case::new([profile("java", more)]);
        let expected: &[&str] = if applied { &["java"] } else { &[] };
        // If the pod has no value, the namespace requests the profile.
        let case = case.namespace(&[(KEY, "true")]);
        assert_eq!(case.applied(&json!({}), &json!({KEY: value})), expected, "{empty} {activation} {value:?}");
    }
    let nobody = Case::new([profile("java", json!({"requestedBy": {"annotation": KEY, "empty": "Absent"}}))]);
    assert!(nobody.applied(&json!({}), &json!({KEY: ""})).is_empty());
    // With `empty: Absent`, an empty label is ignored, so the value of the pod's annotation is used.
    for (empty, applied) in [("Absent", &["java"][..]), ("Counts", &[])] {
        let both = json!({"requestedBy": {"label": KEY, "annotation": KEY, "empty": empty}});
        let case = Case::new([profile("java", both)]);
        assert_eq!(case.applied(&json!({KEY: ""}), &json!({KEY: "true"})), applied, "{empty}");
    }
}

#[test]
fn first_present_key_decides_request() {
    let asked = |spec: Json, values: &[&str]| {
        let (name, spec) = profile("java", spec);
        let profile = compile(&name, &serde_json::from_value(spec).unwrap()).unwrap();
        profile.is_requested_by(values.iter().copied())
    };
    let counts = json!({"requestedBy": {"annotation": KEY, "falsy": ["never"]}});
    let absent = json!({"requestedBy": {"annotation": KEY, "empty": "Absent"}});
    let forced = json!({"requestedBy": {"annotation": KEY}, "optOut": "Forbidden"});
    for (spec, values, expected) in [
        (&counts, &[][..], false),
        (&counts, &["true"], true),
        (&counts, &["other"], true),
        (&counts, &["no"], true),
        (&counts, &["Never"], false),
        (&counts, &["", "true"], false),
        (&counts, &["never,java"], true),
        (&absent, &["", " "], false),
        (&absent, &[" ", "true"], true),
        (&absent, &["false", "true"], false),
        (&forced, &["false", "true"], true),
        (&forced, &["false", ""], false),
        (&json!({}), &["true"], false),
    ] {
        assert_eq!(asked(spec.clone(), values), expected, "{spec} {values:?}");
    }
}

#[test]
fn unknown_value_warns_or_denies() {
    let ask = |case: &Case, word: &str| case.select(&json!({}), &json!({KEY: word}));
    let mild = Case::new([profile("java", by_key())]);
    assert_eq!(ask(&mild, "ruby").notices, [Notice::UnknownProfile { key: KEY.into(), word: "ruby".into() }]);
    assert_eq!(ask(&mild, "false").notices, []);

    let strict = Case::new([profile("java", json!({"requestedBy": {"annotation": KEY, "onUnknown": "Deny"}}))]);
    assert_eq!(ask(&strict, "ruby").denied.map(|(reason, _)| reason), Some(Reason::UnknownProfile));
    let required = Case { failure_mode: FailureMode::Required, ..mild };
    assert_eq!(ask(&required, "ruby").denied.map(|(reason, _)| reason), Some(Reason::UnknownProfile));
    let long = ask(&required, &"x".repeat(1_000)).denied.unwrap().1;
    assert!(long.len() < 200, "{long}");
}

#[test]
fn value_requests_cluster_and_namespaced_profile() {
    let both = Case::new([profile("java", by_key()), profile("team-a/mine", by_key())]);
    let asked =
        |value: &str, names: &str| both.applied(&json!({}), &json!({KEY: value, "pillion.dev/profiles": names}));
    assert_eq!(asked("true", ""), ["java", "team-a/mine"]);
    assert_eq!(asked("true", "-mine"), ["java"]);
    assert_eq!(asked("java", "-mine"), ["java"]);
}

#[test]
fn ambiguous_truthy_value_applies_no_profile() {
    let case = Case::new([profile("java", by_key()), profile("python", by_key())]);
    let selection = case.select(&json!({}), &json!({KEY: "true"}));
    assert!(selection.profiles.is_empty());
    assert_eq!(selection.notices, [Notice::AmbiguousRequest { key: KEY.into() }]);
}

#[test]
fn label_before_annotation_and_pod_before_namespace() {
    let profiles = [profile("java", by_key()), profile("python", by_key())];
    let case = Case::new(profiles).namespace(&[(KEY, "python")]);
    assert_eq!(case.applied(&json!({}), &json!({})), ["python"]);
    assert_eq!(case.applied(&json!({}), &json!({KEY: "java"})), ["java"]);
    assert_eq!(case.applied(&json!({KEY: "python"}), &json!({KEY: "java"})), ["python"]);
    assert!(case.applied(&json!({}), &json!({KEY: "false"})).is_empty());
    assert_eq!(case.applied(&json!({}), &json!({KEY: "true"})), ["python"], "the namespace's value names the profile");
}

#[test]
fn names_request_profiles_and_pod_drops_them() {
    const NAMES: &str = "pillion.dev/profiles";
    let requested = || json!({"activation": "Requested"});
    let case = Case::new([
        profile("a", requested()),
        profile("b", requested()),
        profile("forced", json!({"activation": "Requested", "optOut": "Forbidden"})),
        profile("team-a/own", requested()),
        profile("team-b/foreign", requested()),
    ])
    .namespace(&[(NAMES, "a,forced")]);
    assert_eq!(case.applied(&json!({}), &json!({})), ["a", "forced"]);
    assert_eq!(case.applied(&json!({}), &json!({NAMES: "b, own"})), ["a", "b", "forced", "team-a/own"]);
    assert_eq!(case.applied(&json!({}), &json!({NAMES: "-a,-forced"})), ["forced"]);
    let unknown = case.select(&json!({}), &json!({NAMES: "foreign"}));
    assert_eq!(unknown.notices, [Notice::UnknownProfile { key: NAMES.into(), word: "foreign".into() }]);
}

#[test]
fn forbidden_opt_out_cannot_be_bypassed() {
    let forced = || profile("agent", json!({"optOut": "Forbidden", "requestedBy": {"annotation": KEY}}));
    // The namespace requests the profile by its key. The pod's value for the key has no effect.
    let case = Case::new([forced()]).namespace(&[(KEY, "true")]);
    for value in ["true", "false", "", "bogus"] {
        assert_eq!(case.applied(&json!({}), &json!({KEY: value})), ["agent"], "{value:?}");
    }
    // A tenant cannot replace the profile with a profile of the namespace that has the same name or key.
    let shadow = || profile("team-a/agent", json!({"activation": "Requested", "requestedBy": {"annotation": KEY}}));
    for asks in [(KEY, "true"), (KEY, "agent"), ("pillion.dev/profiles", "agent")] {
        let case = Case::new([forced(), shadow()]).namespace(&[asks]);
        assert_eq!(case.applied(&json!({}), &json!({})), ["agent", "team-a/agent"], "{asks:?}");
    }
}

#[test]
fn opt_out_label_drops_optional_profiles() {
    let case = Case::new([
        profile("a", json!({"activation": "Always"})),
        profile("b", json!({"activation": "Always", "optOut": "Forbidden"})),
    ]);
    assert_eq!(case.applied(&json!({}), &json!({})), ["a", "b"]);
    let out = json!({"pillion.dev/inject": "false"});
    assert_eq!(case.applied(&out, &json!({})), ["b"]);
    assert_eq!(case.select(&out, &json!({})).profiles[0].reason, Reason::OptedOut);
}

#[test]
fn falsy_value_drops_always_active_profile() {
    let spec = |opt_out: &str| json!({"activation": "Always", "optOut": opt_out, "requestedBy": {"annotation": KEY, "label": KEY}});
    let droppable = Case::new([profile("a", spec("Allowed"))]);
    assert_eq!(droppable.applied(&json!({}), &json!({})), ["a"]);
    assert_eq!(droppable.applied(&json!({}), &json!({KEY: "true"})), ["a"]);
    assert!(droppable.applied(&json!({}), &json!({KEY: "off"})).is_empty());
    assert!(droppable.applied(&json!({KEY: "false"}), &json!({KEY: "true"})).is_empty());
    let forced = Case::new([profile("a", spec("Forbidden"))]);
    assert_eq!(forced.applied(&json!({}), &json!({KEY: "off"})), ["a"]);
}

#[test]
fn selectors_exclude() {
    let production = json!({"matchLabels": {"env": "prod"}});
    let case = Case::new([
        profile("here", json!({"activation": "Always", "namespaceSelector": production})),
        profile("elsewhere", json!({"activation": "Always", "namespaceSelector": {"matchLabels": {"env": "test"}}})),
        profile("web", json!({"activation": "Always", "objectSelector": {"matchLabels": {"app": "web"}}})),
    ])
    .namespace(&[]);
    assert_eq!(case.applied(&json!({"app": "web"}), &json!({})), ["here", "web"]);
    let other = case.select(&json!({"app": "db"}), &json!({}));
    let web = other.profiles.iter().find(|decision| decision.profile.display_name() == "web").unwrap();
    assert_eq!((web.outcome, web.reason), (ProfileOutcome::NotMatched, Reason::ObjectSelector));
    assert!(other.profiles.iter().all(|decision| decision.profile.display_name() != "elsewhere"));
}

#[test]
fn exclusive_group_applies_first_matching_profile() {
    let spec = |order: i32, app: &str| {
        json!({"activation": "Always", "order": order, "exclusiveGroup": "credentials",
               "objectSelector": {"matchLabels": {"app": app}}})
    };
    let case = Case::new([profile("late", spec(200, "web")), profile("early", spec(1, "web"))]);
    assert_eq!(case.applied(&json!({"app": "web"}), &json!({})), ["early"]);
    let case = Case::new([profile("late", spec(200, "web")), profile("early", spec(1, "other"))]);
    assert_eq!(case.applied(&json!({"app": "web"}), &json!({})), ["late"]);
}

#[test]
fn default_activation_depends_on_requested_by() {
    for scope in ["", "team-a/"] {
        let always = Case::new([profile(&format!("{scope}p"), json!({}))]);
        assert_eq!(always.applied(&json!({}), &json!({})), [format!("{scope}p")]);
        let requested = Case::new([profile(&format!("{scope}p"), by_key())]);
        assert!(requested.applied(&json!({}), &json!({})).is_empty());
        assert_eq!(requested.applied(&json!({}), &json!({KEY: "p"})), [format!("{scope}p")]);
    }
}

#[test]
fn never_active_profile_is_not_applied() {
    let case = Case::new([profile("base", json!({"activation": "Never", "requestedBy": {"annotation": KEY}}))]);
    assert_eq!(case.select(&json!({}), &json!({KEY: "base"})).reason, Reason::NoProfile);
}

/// Returns the outcome of a profile with these match conditions.
fn conditional(conditions: &Json, labels: &Json) -> (ProfileOutcome, Reason, Option<String>) {
    decided(&json!({"matchConditions": conditions}), labels)
}

/// Returns the outcome of a profile with these fields.
fn decided(fields: &Json, labels: &Json) -> (ProfileOutcome, Reason, Option<String>) {
    let mut spec = json!({
        "activation": "Always",
        "variables": [
            {"name": "team", "expression": "object.metadata.labels[?'team'].orValue('nobody')"},
            {"name": "known", "expression": "variables.team in ['red', 'blue']"},
        ],
    });
    json_patch::merge(&mut spec, fields);
    let case = Case::new([profile("p", spec)]).namespace(&[("tier", "gold")]);
    let decision = case.select(labels, &json!({})).profiles.remove(0);
    (decision.outcome, decision.reason, decision.detail.map(Into::into))
}

#[test]
fn conditions_read_object_namespace_and_variables() {
    let condition = |expression: &str| json!([{"name": "c", "expression": expression}]);
    let holds = |expression: &str| conditional(&condition(expression), &json!({"team": "red"})).0;
    for expression in [
        "variables.known",
        "variables.team == 'red' && namespaceObject.metadata.labels.env == 'prod'",
        "namespaceObject.metadata.annotations.tier == 'gold' && namespaceObject.metadata.name == 'team-a'",
        "containers.size() == 0 && !has(object.spec)",
    ] {
        assert_eq!(holds(expression), ProfileOutcome::Unchanged, "{expression}");
    }
    assert_eq!(holds("!variables.known"), ProfileOutcome::NotMatched);
}

#[test]
fn failed_precondition_returns_its_message() {
    let known = |action: &str| json!({"name": "known", "expression": "variables.known", "action": action, "message": "which team?"});
    let second = || json!({"name": "second", "expression": "false"});
    let decide = |preconditions: Json| decided(&json!({"preconditions": preconditions}), &json!({}));
    let reasons = |decision: &(ProfileOutcome, Reason, Option<String>)| (decision.0, decision.1);
    let skipped = decide(json!([known("Skip")]));
    assert_eq!(skipped, (ProfileOutcome::Skipped, Reason::Precondition, Some("which team?".to_owned())));
    let both = decide(json!([known("Skip"), second()]));
    assert_eq!(both.2.as_deref(), Some("which team?; second"), "the default is Skip");
    let denied = decide(json!([second(), known("Deny")]));
    assert_eq!(denied, (ProfileOutcome::Denied, Reason::Precondition, Some("which team?".to_owned())));
    let error = json!({"name": "wrong", "expression": "object.spec.nothing.here == 1", "action": "Warn"});
    assert_eq!(reasons(&decide(json!([error]))), (ProfileOutcome::Skipped, Reason::ExpressionFailed));
    let first = json!([second(), {"name": "wrong", "expression": "object.spec.nothing.here == 1"}]);
    assert!(decide(first).2.unwrap().starts_with("second; wrong: "));
}

#[test]
fn preconditions_are_for_matching_objects_only() {
    let deny = json!([{"name": "never", "expression": "false", "action": "Deny"}]);
    let decide = |expression: &str| {
        let conditions = json!([{"name": "c", "expression": expression}]);
        decided(&json!({"matchConditions": conditions, "preconditions": deny}), &json!({}))
    };
    assert_eq!(decide("true").0, ProfileOutcome::Denied);
    assert_eq!(decide("false"), (ProfileOutcome::NotMatched, Reason::MatchCondition, Some("c".to_owned())));
    let (outcome, reason, detail) = decide("object.spec.nothing.here == 1");
    assert_eq!((outcome, reason), (ProfileOutcome::Skipped, Reason::ExpressionFailed));
    assert!(!detail.unwrap().contains("never"), "it is unknown whether the profile matches");
    let several = json!([
        {"name": "wrong", "expression": "object.spec.nothing.here == 1"},
        {"name": "a", "expression": "false"},
        {"name": "b", "expression": "false"},
    ]);
    let unmatched = (ProfileOutcome::NotMatched, Reason::MatchCondition, Some("a; b".to_owned()));
    assert_eq!(conditional(&several, &json!({})), unmatched, "an error does not count if another condition is false");
}

#[test]
fn warning_precondition_applies_profile() {
    let spec = |group: &str, order: i32| {
        let warn = json!([{"name": "w", "expression": "false", "action": "Warn", "message": "${object.metadata.labels.team} is old"}]);
        json!({"activation": "Always", "order": order, "exclusiveGroup": group, "preconditions": warn})
    };
    let select = |groups: [&str; 2]| {
        let [a, b] = groups;
        let selection = Case::new([profile("a", spec(a, 1)), profile("b", spec(b, 2))]);
        let selection = selection.select(&json!({"team": "red"}), &json!({}));
        let outcomes: Vec<_> = selection.profiles.iter().map(|decision| decision.outcome).collect();
        (outcomes, selection.notices.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let (applied, left_out) = (ProfileOutcome::Unchanged, ProfileOutcome::NotMatched);
    let warning = |name: &str| format!("profile {name}: red is old");
    assert_eq!(select(["one", "two"]), (vec![applied, applied], vec![warning("a"), warning("b")]));
    assert_eq!(select(["one", "one"]), (vec![applied, left_out], vec![warning("a")]), "only applied profiles warn");
}

#[test]
fn precondition_message_may_be_computed() {
    let failure_message = |message: &str, team: &str| {
        let precondition = json!([{"name": "known", "expression": "false", "action": "Deny", "message": message}]);
        decided(&json!({"preconditions": precondition}), &json!({"team": team})).2.unwrap()
    };
    assert_eq!(failure_message("${variables.team} is no team", "green"), "green is no team");
    assert_eq!(failure_message("${variables.team} is no team", "a\nb"), "a b is no team");
    assert_eq!(
        failure_message("${object.metadata.labels.zone}", "green"),
        "known",
        "a message that fails is replaced by the name"
    );
}

#[test]
fn invalid_parameter_counts_only_for_matching_profile() {
    let spec = json!({
        "activation": "Always",
        "failurePolicy": "Fail",
        "parameters": [
            {"name": "failure_mode", "type": "integer", "default": 5, "annotation": "example.com/failure_mode", "sources": ["Pod"]},
            {"name": "port", "type": "integer", "default": 5, "annotation": "example.com/port", "sources": ["Pod"]},
            {"name": "size", "type": "integer", "default": 5, "onInvalid": "Default", "annotation": "example.com/size", "sources": ["Pod"]},
        ],
        "matchConditions": [
            {"name": "red", "expression": "object.metadata.labels.team == 'red'"},
        ],
        "preconditions": [
            {"name": "loud", "expression": "params.failure_mode > 3"},
            {"name": "small", "expression": "params.size < 9", "action": "Deny", "message": "too large"},
        ],
    });
    let select = |team: &str, annotations: &Json| {
        let mut selection = Case::new([profile("p", spec.clone())]).select(&json!({"team": team}), annotations);
        let decision = selection.profiles.remove(0);
        (decision.outcome, decision.reason, decision.detail.unwrap_or_default().into_string(), selection.notices.len())
    };
    let wrong = json!({"example.com/failure_mode": "x", "example.com/port": "y", "example.com/size": "z"});
    let (outcome, reason, detail, notices) = select("red", &wrong);
    assert_eq!((outcome, reason, notices), (ProfileOutcome::Denied, Reason::InvalidParameter, 1));
    assert!(detail.contains("example.com/failure_mode") && detail.contains("example.com/port"), "{detail}");
    let (outcome, reason, _, notices) = select("blue", &wrong);
    assert_eq!((outcome, reason, notices), (ProfileOutcome::NotMatched, Reason::MatchCondition, 0));
    let (outcome, _, detail, _) = select("red", &json!({"example.com/failure_mode": "x", "example.com/size": "9"}));
    assert_eq!(outcome, ProfileOutcome::Denied);
    assert!(detail.starts_with("too large; ") && detail.contains("example.com/failure_mode"), "{detail}");
}

#[test]
fn failing_expression_leaves_out_profile() {
    let failing = json!([{"name": "c", "expression": "object.spec.nothing.here == 1"}]);
    let (outcome, reason, detail) = conditional(&failing, &json!({}));
    assert_eq!((outcome, reason), (ProfileOutcome::Skipped, Reason::ExpressionFailed));
    assert!(detail.unwrap().starts_with("c: "));
}

#[test]
fn pod_and_namespace_set_bounded_parameters() {
    let spec = |on_invalid: &str| {
        json!({
            "activation": "Always",
            "parameters": [
                {"name": "failure_mode", "type": "integer", "minimum": 1, "maximum": 9, "default": 5, "onInvalid": on_invalid,
                 "annotation": "example.com/failure_mode", "sources": ["Pod", "Namespace"]},
                {"name": "fixed", "type": "string", "default": "x"},
                {"name": "open", "type": "string", "annotation": "example.com/open", "sources": ["Pod"]},
            ],
            "matchConditions": [
                {"name": "failure_mode", "expression": "params.failure_mode == 3 && params.fixed == 'x' && !has(params.open)"},
            ],
        })
    };
    let select = |on_invalid: &str, namespace: &[(&'static str, &'static str)], pod: Json| {
        let case = Case::new([profile("p", spec(on_invalid))]).namespace(namespace);
        let decision = case.select(&json!({}), &pod).profiles.remove(0);
        (decision.outcome, decision.reason)
    };
    let holds = (ProfileOutcome::Unchanged, Reason::AlreadyInjected);
    let fails = (ProfileOutcome::NotMatched, Reason::MatchCondition);
    let failure_mode = |value: &str| json!({"example.com/failure_mode": value});
    assert_eq!(select("Skip", &[("example.com/failure_mode", "3")], json!({})), holds);
    assert_eq!(select("Skip", &[("example.com/failure_mode", "4")], failure_mode("3")), holds);
    assert_eq!(select("Skip", &[("example.com/failure_mode", "3")], failure_mode("4")), fails);
    assert_eq!(select("Skip", &[], json!({})), fails);
    let wrong = Reason::InvalidParameter;
    assert_eq!(select("Skip", &[], failure_mode("10")), (ProfileOutcome::Skipped, wrong));
    assert_eq!(select("Deny", &[], failure_mode("three")), (ProfileOutcome::Denied, wrong));
    assert_eq!(
        select("Default", &[("example.com/failure_mode", "3")], failure_mode("three")),
        fails,
        "the default is 5"
    );
}

#[test]
fn parameter_child_stands_in_for_parent() {
    let (_, base) = profile("base", json!({"activation": "Always", "exclusiveGroup": "g", "order": 5}));
    let (_, other) = profile("other", json!({"activation": "Always", "exclusiveGroup": "g", "order": 7}));
    let library = Library::new([("base", base.clone()), ("other", other.clone())]);
    let select = |own: Json| {
        let texts = [
            (ProfileName::cluster("base"), base.clone()),
            (ProfileName::cluster("other"), other.clone()),
            (ProfileName::namespaced("team-a", "own"), own),
        ];
        let read = |text: Json| serde_json::from_value(text).unwrap();
        let compiled =
            texts.map(|(name, text)| Arc::new(ProfileSource::Author(&read(text), &library).compile(&name).unwrap()));
        let namespace = Namespace::default();
        let set = ProfileSet::new(compiled);
        let (cluster, own) = set.indexes("team-a");
        let candidates = Candidates::find(cluster, own, &namespace);
        let tape = OwnedTape::parse("{}".to_owned()).unwrap();
        let (object, request) = (tape.root(), tape.root());
        let context = EvalContext {
            object,
            request,
            namespace_name: "team-a",
            namespace: &namespace,
            uid: "u",
            looked_up: &LookedUp::default(),
            allowances: &Allowances::until(None),
        };
        let arena = Arena::new();
        let decisions = select(&candidates, Action::CREATE_POD, FailureMode::Enabled, context, &arena).profiles;
        decisions
            .into_iter()
            .map(|selected| (selected.profile.display_name().to_owned(), selected.decision.reason))
            .collect::<Vec<_>>()
    };
    let expected = |own, base| -> Vec<(String, Reason)> {
        [("base", base), ("other", Reason::ExclusiveGroup), ("team-a/own", own)]
            .map(|(name, reason)| (name.to_owned(), reason))
            .into()
    };
    let applied = Reason::AlreadyInjected;
    let mut in_its_place = expected(applied, Reason::Extended);
    in_its_place.rotate_right(1);
    assert_eq!(select(json!({"extends": {"name": "base"}})), in_its_place);
    let elsewhere = json!({"extends": {"name": "base"}, "objectSelector": {"matchLabels": {"x": "y"}}});
    assert_eq!(select(elsewhere), expected(Reason::ObjectSelector, applied));
    let more = json!({"extends": {"name": "base"}, "variables": [{"name": "v", "expression": "1"}]});
    assert_eq!(select(more), expected(Reason::ExclusiveGroup, applied));
}
