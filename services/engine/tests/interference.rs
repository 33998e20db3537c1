//! Tests non-interference: namespaced profiles do not change the results of cluster profiles. The engine skips a
//! namespaced profile that would change them, and reports a reason.
//!
//! Cluster profiles, namespaced profiles and matching objects are generated from a sequence of numbers. Each object is
//! one case: it is created, and then reviewed again or updated. Proptest generates the sequences and shrinks a failing
//! one. The environment variable `PILLION_INTERFERENCE_CASES` sets the number of cases.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "test helpers fail by panicking")]

mod attacks;
mod claims;
mod generate;

use std::collections::BTreeMap;
use std::sync::Arc;

use pillion_api::names::FailureMode;
use pillion_api::profile::ProfileSpec;
use pillion_engine::decision::{Outcome, ProfileDecision, ProfileOutcome, Reason};
use pillion_engine::profile::{CompiledProfile, Parent, Parents, ProfileName, ProfileSource};
use pillion_engine::review::{Decided, Endpoint, Facts, Review};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Value as Json, json};

use crate::common::apply;
use claims::Claims;
use generate::{Case, Choices, Kind, Profiles};

const NAMESPACE: &str = "shop";

/// Returns the key of the namespace annotation that sets the parameter of the cluster profile `profile`.
fn parameter_key(profile: &str) -> String {
    format!("parameters.example.com/{profile}")
}

/// The cluster profiles that other profiles may extend.
struct Library(Vec<(String, ProfileSpec)>);

impl Parents for Library {
    fn parent(&self, name: &str) -> Parent<'_> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map_or(Parent::Unknown, |(_, spec)| Parent::Accepted(std::borrow::Cow::Borrowed(spec)))
    }

    fn names(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name.as_str()).collect()
    }
}

/// Compiles the cluster profiles and the namespaced profiles (`own`). Leaves out invalid ones. All profiles may extend
/// the cluster profiles.
fn compiled(
    cluster: &[(String, Json)],
    own: &[(String, Json)],
) -> (Vec<Arc<CompiledProfile>>, Vec<Arc<CompiledProfile>>) {
    let read = |spec: &Json| serde_json::from_value::<ProfileSpec>(spec.clone()).ok();
    let mut library = Library(Vec::new());
    let mut platform = Vec::new();
    for (name, spec) in cluster {
        if let Some(spec) = read(spec)
            && let Ok(profile) = ProfileSource::Author(&spec, &library).compile(&ProfileName::cluster(name.as_str()))
        {
            platform.push(Arc::new(profile));
            library.0.push((name.clone(), spec));
        }
    }
    let namespaced = own.iter().filter_map(|(name, spec)| {
        let name = ProfileName::namespaced(NAMESPACE, name.as_str());
        Some(Arc::new(ProfileSource::Author(&read(spec)?, &library).compile(&name).ok()?))
    });
    (platform, namespaced.collect())
}

/// Returns the decision for the creation of a pod, and the patched pod. The pod is `None` if its creation is denied.
/// `parameters` are annotations of the namespace.
fn pass(object: &Json, profiles: &[Arc<CompiledProfile>], parameters: &[(String, String)]) -> (Decided, Option<Json>) {
    review(object, (Kind::Pod, "CREATE"), &snapshot(profiles), parameters)
}

fn snapshot(profiles: &[Arc<CompiledProfile>]) -> Snapshot {
    Snapshot::new(ProfileSet::new(profiles.iter().map(Arc::clone)))
}

/// Does the same as [`pass`] for an object of any kind and any operation.
fn review(
    object: &Json,
    (kind, operation): (Kind, &str),
    snapshot: &Snapshot,
    parameters: &[(String, String)],
) -> (Decided, Option<Json>) {
    let resource = match kind {
        Kind::Pod => "pods",
        Kind::ConfigMap => "configmaps",
    };
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "namespace": NAMESPACE, "operation": operation, "object": object,
            "oldObject": if operation == "UPDATE" { object.clone() } else { Json::Null },
            "resource": {"group": "", "version": "v1", "resource": resource},
        },
    });
    let body = review.to_string();
    let annotations = parameters.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let namespace = Namespace::new([("pillion.dev/injection", "enabled")], annotations);
    let facts = Facts { namespace: Some(Arc::new(namespace)), ..Facts::default() };
    let endpoint = Endpoint::FailureMode(FailureMode::Enabled);
    let decided = Review::parse(body.as_bytes()).unwrap().decide(endpoint, snapshot, &facts).unwrap();
    if decided.decision.outcome == Outcome::Denied {
        return (decided, None);
    }
    let mut object = object.clone();
    apply(&mut object, &decided);
    (decided, Some(object))
}

/// Returns annotations for the namespace. If a namespaced profile was applied instead of the cluster profile that it
/// extends, they set the cluster profile's parameter to the value from the namespaced profile.
fn parameters_set(decided: &Decided, own: &[(String, Json)]) -> Vec<(String, String)> {
    let extended = decided
        .decision
        .profiles
        .iter()
        .filter(|decision| decision.reason == Reason::Extended && decision.outcome == ProfileOutcome::NotMatched);
    let set = |decision: &ProfileDecision| {
        let child = decision.detail.as_deref()?.split_once('/')?.1;
        let (_, spec) = own.iter().find(|(name, _)| name == child)?;
        let value = spec.pointer("/parameters/0/default")?.as_str()?;
        Some((parameter_key(&decision.profile.name().name), value.to_owned()))
    };
    extended.filter_map(set).collect()
}

/// Returns the names of the profiles whose changes are in the object after the decision.
fn applied(decided: &Decided) -> Vec<&str> {
    let has =
        |decision: &&ProfileDecision| matches!(decision.outcome, ProfileOutcome::Applied | ProfileOutcome::Unchanged);
    decided.decision.profiles.iter().filter(has).map(|decision| decision.profile.display_name()).collect()
}

const fn operation(kind: Kind, pass: usize) -> &'static str {
    match (kind, pass) {
        (Kind::ConfigMap, 1..) => "UPDATE",
        (Kind::Pod | Kind::ConfigMap, _) => "CREATE",
    }
}

/// Runs all cases, and returns the violation in the first failing case, or `None` if namespaced profiles do not change
/// any result of cluster profiles. Calls `see` with each decision and its object.
fn interference(profiles: &Profiles, see: &mut dyn FnMut(&Decided, &Json)) -> Option<String> {
    let (cluster, own) = compiled(&profiles.cluster, &profiles.own);
    let together = snapshot(&cluster.iter().chain(&own).map(Arc::clone).collect::<Vec<_>>());
    let cluster = snapshot(&cluster);
    profiles.cases.iter().find_map(|case| interference_in(case, profiles, &cluster, &together, see))
}

fn interference_in(
    case: &Case,
    profiles: &Profiles,
    cluster: &Snapshot,
    together: &Snapshot,
    see: &mut dyn FnMut(&Decided, &Json),
) -> Option<String> {
    let (mut alone, mut both) = (case.object.clone(), case.object.clone());
    let mut before = case.object.clone();
    for (pass, is_there) in case.is_there.into_iter().enumerate() {
        let on = (case.kind, operation(case.kind, pass));
        let (decided, after) = review(&both, on, if is_there { together } else { cluster }, &[]);
        see(&decided, after.as_ref().unwrap_or(&both));
        // A denied object is not stored, so there is no second pass.
        let after = after?;
        let parameters = parameters_set(&decided, &profiles.own);
        let (by_themselves, expected) = review(&alone, on, cluster, &parameters);
        let expected = expected?;
        let mut claims = Claims::of(&before, &expected);
        if case.copies {
            let (of_bare, bare) = review(&case.bare(), (case.kind, "CREATE"), cluster, &parameters);
            if applied(&of_bare) == applied(&by_themselves) {
                claims.confirm(&case.bare(), &bare?, &expected);
            }
        }
        if let Some(fault) = claims.broken(&expected, &after) {
            let decisions = decided.decision.profiles.iter();
            let lines: Vec<_> = decisions
                .map(|decision| {
                    let (name, reason) = (decision.profile.display_name(), decision.reason);
                    format!("{name}: {:?} {reason} {:?}", decision.outcome, decision.detail)
                })
                .collect();
            return Some(format!(
                "{fault} after pass {pass} of {:?}\nobject: {before}\nplatform: {}\nnamespace: {}\nalone: {expected}\n\
                 together: {after}\n{}",
                case.is_there,
                json!(profiles.cluster),
                json!(profiles.own),
                lines.join("\n")
            ));
        }
        (alone, both) = (expected, after);
        for object in [&mut alone, &mut both, &mut before] {
            case.change(object);
        }
    }
    None
}

/// Returns the number of sequences to generate. Each sequence yields profiles and [`Profiles::CASES`] objects.
fn rows() -> u32 {
    let cases = std::env::var("PILLION_INTERFERENCE_CASES").ok().and_then(|cases| cases.parse().ok());
    u32::try_from(cases.unwrap_or(100_000_usize).div_ceil(Profiles::CASES)).unwrap()
}

/// A sequence of numbers. Its debug output omits the numbers, because the failure message contains the generated
/// profiles.
struct Numbers(Vec<u16>);

impl std::fmt::Debug for Numbers {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("(see the message)")
    }
}

fn numbers() -> impl Strategy<Value = Numbers> {
    prop::collection::vec(any::<u16>(), 900).prop_map(Numbers)
}

/// Returns a random seed if `PILLION_INTERFERENCE_CASES` is set. Otherwise, every run tests the same cases.
fn seed() -> RngSeed {
    let is_searching = std::env::var_os("PILLION_INTERFERENCE_CASES").is_some();
    if is_searching { ProptestConfig::default().rng_seed } else { RngSeed::Fixed(1) }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: rows(), rng_seed: seed(), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn namespaced_profiles_change_no_platform_results(numbers in numbers()) {
        let fault = interference(&Profiles::of(&mut Choices::new(&numbers.0)), &mut |_, _| {});
        prop_assert!(fault.is_none(), "{}", fault.unwrap_or_default());
    }
}

/// Counts the directives in the spec of a profile, by name, and the kinds of positions, conflicts and joins. Also
/// counts computed restart policies. Adds the counts to `seen`, with the prefix `whose`.
fn directives(whose: &str, text: &Json, seen: &mut BTreeMap<String, usize>) {
    let fields = text.as_object().into_iter().flatten();
    for (key, value) in fields {
        if key.starts_with('$') {
            *seen.entry(format!("{whose} {key}")).or_default() += 1;
            let said = match value {
                Json::String(word) if ["$position", "$conflict"].contains(&key.as_str()) => vec![word.as_str()],
                Json::String(word) if key == "$forEach" && word == "existing" => vec![word.as_str()],
                Json::Object(fields) if ["$position", "$join"].contains(&key.as_str()) => {
                    fields.keys().map(String::as_str).collect()
                }
                _ => Vec::new(),
            };
            for said in said {
                *seen.entry(format!("{whose} {key} {said}")).or_default() += 1;
            }
        }
        if key == "restartPolicy" && value.as_str().is_some_and(|policy| policy.starts_with("${")) {
            *seen.entry(format!("{whose} restartPolicy computed")).or_default() += 1;
        }
        directives(whose, value, seen);
    }
    text.as_array().into_iter().flatten().for_each(|item| directives(whose, item, seen));
}

/// Checks that most generated profiles are valid, and that they use every directive and lead to every outcome.
/// Otherwise, the property test would prove little.
#[test]
fn generator_reaches_every_directive_and_outcome() {
    const DIRECTIVES: [&str; 19] = [
        "$forEach",
        "$forEach existing",
        "$prune",
        "$value",
        "$when",
        "$conflict Merge",
        "$conflict Replace",
        "$conflict Fail",
        "$conflict Keep",
        "$position First",
        "$position Last",
        "$position before",
        "$position after",
        "$join separator",
        "$join prepend",
        "$join format",
        "$join valueFrom",
        "$join",
        "restartPolicy computed",
    ];
    const OUTCOMES: [&str; 15] = [
        "own injected",
        "own precondition",
        "own limit_exceeded",
        "own name_taken",
        "own exclusive_group",
        "own object_selector",
        "own already_injected",
        "platform injected",
        "platform extended",
        "platform name_taken",
        "platform exclusive_group",
        "platform match_condition",
        "platform precondition",
        "moved",
        "updated",
    ];
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = numbers();
    let mut seen = BTreeMap::<String, usize>::new();
    for _ in 0..200 {
        let numbers = proptest::strategy::ValueTree::current(&strategy.new_tree(&mut runner).unwrap());
        let profiles = Profiles::of(&mut Choices::new(&numbers.0));
        let (cluster, own) = compiled(&profiles.cluster, &profiles.own);
        *seen.entry("written".to_owned()).or_default() += profiles.cluster.len() + profiles.own.len();
        *seen.entry("compiled".to_owned()).or_default() += cluster.len() + own.len();
        for (whose, compiled, written) in [("platform", cluster, &profiles.cluster), ("own", own, &profiles.own)] {
            for profile in compiled {
                let (_, text) = written.iter().find(|(name, _)| *name == *profile.name().name).unwrap();
                directives(whose, text, &mut seen);
                *seen.entry(format!("{whose} order {}", text["order"])).or_default() += 1;
            }
        }
        let fault = interference(&profiles, &mut |decided, after| {
            for decision in &decided.decision.profiles {
                let whose = if decision.profile.name().namespace.is_some() { "own" } else { "platform" };
                *seen.entry(format!("{whose} {}", decision.reason)).or_default() += 1;
            }
            let record = after["metadata"]["annotations"]["pillion.dev/injected"].as_str().unwrap_or_default();
            *seen.entry("moved".to_owned()).or_default() += usize::from(record.contains("\"order\":"));
            let is_updated = after["kind"] == "ConfigMap" && decided.patch.is_some();
            *seen.entry("updated".to_owned()).or_default() += usize::from(is_updated);
        });
        assert_eq!(fault, None);
    }
    println!("{seen:?}");
    assert!(seen["compiled"] * 2 > seen["written"], "{seen:?}");
    let orders = ["own order -5", "own order 100", "own order 300", "platform order 1", "platform order 200"];
    let directives = ["platform", "own"].map(|whose| DIRECTIVES.map(|directive| format!("{whose} {directive}")));
    let all = directives.into_iter().flatten().chain(OUTCOMES.into_iter().chain(orders).map(str::to_owned));
    for what in all {
        assert!(seen.get(&what).is_some_and(|count| *count >= 10), "{what}: {seen:?}");
    }
}
