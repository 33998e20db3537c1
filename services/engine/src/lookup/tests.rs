//! Tests the lookups that a profile's spec needs, the owners of pods, and decisions that use lookup results.

#![expect(clippy::needless_pass_by_value, reason = "calls can contain `json!` without a reference")]

use serde_json::{Value as Json, json};

use super::*;
use crate::decision::{Notice, ProfileDecision, ProfileOutcome};
use crate::json::OwnedTape;
use crate::profile::{CompiledProfile, ProfileName};
use crate::review::{Decided, Endpoint, Facts, Review};
use crate::snapshot::{Namespace, ProfileSet, Snapshot};

const ENABLED: Endpoint = Endpoint::FailureMode(pillion_api::names::FailureMode::Enabled);

fn try_compile(name: &ProfileName, mut spec: Json) -> Result<CompiledProfile, Vec<String>> {
    spec["activation"] = json!("Always");
    spec["template"] = json!({"metadata": {"labels": {"x": "y"}}});
    crate::profile::compile(name, &serde_json::from_value(spec).unwrap())
        .map_err(|compile_errors| compile_errors.iter().map(ToString::to_string).collect())
}

fn compile(spec: Json) -> CompiledProfile {
    try_compile(&ProfileName::cluster("p"), spec).unwrap()
}

fn compile_errors(spec: Json) -> String {
    try_compile(&ProfileName::cluster("p"), spec).unwrap_err().join("; ")
}

fn tape(value: &Json) -> Arc<OwnedTape> {
    Arc::new(OwnedTape::parse(value.to_string()).unwrap())
}

/// Returns the spec of a profile with one precondition.
fn condition(expression: &str) -> Json {
    json!({"preconditions": [{"name": "c", "expression": expression}]})
}

/// Replaces the preconditions of a profile's spec with one precondition.
fn with_condition(mut spec: Json, expression: &str) -> Json {
    spec["preconditions"] = condition(expression)["preconditions"].clone();
    spec
}

fn owner(version: &str, kind: &str, name: &str) -> Json {
    json!({"apiVersion": version, "kind": kind, "name": name, "uid": format!("{name}-uid"), "controller": true})
}

fn pod(labels: Json, annotations: Json, owners: Json) -> Json {
    let metadata =
        json!({"generateName": "web-", "labels": labels, "annotations": annotations, "ownerReferences": owners});
    let spec = json!({"serviceAccountName": "builder", "containers": [{"name": "app", "image": "app:1"}]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

fn bare() -> Json {
    pod(json!({}), json!({}), json!([]))
}

fn of_deployment() -> Json {
    pod(json!({"pod-template-hash": "7c9d"}), json!({}), json!([owner("apps/v1", "ReplicaSet", "web-7c9d")]))
}

fn of(version: &str, kind: &str, name: &str) -> Json {
    pod(json!({}), json!({}), json!([owner(version, kind, name)]))
}

fn body(object: &Json) -> String {
    let resource = json!({"group": "", "version": "v1", "resource": "pods"});
    let user = json!({"username": "somebody"});
    let request = json!({"uid": "u", "resource": resource, "namespace": "team-a", "operation": "CREATE",
        "object": object, "userInfo": user});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string()
}

fn snapshot(spec: Json) -> Snapshot {
    let snapshot = Snapshot::new(ProfileSet::new([Arc::new(compile(spec))]));
    let namespace = Namespace::new([("pillion.dev/injection", "enabled")], [("example.com/p", "namespace")]);
    snapshot.with_namespace("team-a", Some(namespace))
}

fn wanted(spec: Json, object: &Json) -> Wanted {
    let (snapshot, body) = (snapshot(spec), body(object));
    let facts = Facts { namespace: snapshot.namespace("team-a"), ..Facts::default() };
    Review::parse(body.as_bytes()).unwrap().needs(ENABLED, &snapshot, &facts)
}

fn decide(spec: Json, object: &Json, looked_up: LookedUp) -> Decided {
    let (snapshot, body) = (snapshot(spec), body(object));
    let facts = Facts { namespace: snapshot.namespace("team-a"), looked_up, ..Facts::default() };
    Review::parse(body.as_bytes()).unwrap().decide(ENABLED, &snapshot, &facts).unwrap()
}

fn decided(spec: Json, object: &Json, looked_up: LookedUp) -> ProfileDecision {
    decide(spec, object, looked_up).decision.profiles.remove(0)
}

/// Whether the expression is true for an object.
fn holds(expression: &str, object: &Json, looked_up: LookedUp) -> bool {
    let decision = decided(condition(expression), object, looked_up);
    assert!(
        matches!(decision.reason, Reason::Injected | Reason::AlreadyInjected | Reason::Precondition),
        "{expression}: {} {:?}",
        decision.reason,
        decision.detail
    );
    decision.outcome == ProfileOutcome::Applied
}

fn account(annotations: Json) -> LookedUp {
    let object = json!({"metadata": {"name": "builder", "labels": {}, "annotations": annotations}});
    LookedUp { service_account: Answer::Found(tape(&object)), ..LookedUp::default() }
}

#[test]
fn expressions_determine_needs() {
    use OwnerNeeds::{Metadata, Names, Nothing};
    let needs = |service_account, owners, lookups: &[&str]| Needs {
        service_account,
        owners,
        lookups: lookups.iter().map(|name| Box::from(*name)).collect(),
    };
    for (expression, expected) in [
        ("object.metadata.generateName == 'x' && cluster.?region.hasValue()", needs(false, Nothing, &[])),
        ("serviceAccount.?annotations[?'a'].hasValue()", needs(true, Nothing, &[])),
        ("owner.?name.orValue('') == 'web'", needs(false, Names, &[])),
        ("owner.hasValue()", needs(false, Names, &[])),
        ("has(owner.kind) || owner['name'] == 'x'", needs(false, Names, &[])),
        ("owner.optMap(o, o.kind + o.name).orValue('') == 'x'", needs(false, Names, &[])),
        ("owner.?uid.orValue('') == 'web'", needs(false, Metadata, &[])),
        ("owner.?labels[?'a'].hasValue()", needs(false, Metadata, &[])),
        ("owner.optMap(o, o.labels).hasValue()", needs(false, Metadata, &[])),
        ("toJson(owner.orValue({})) == ''", needs(false, Metadata, &[])),
        ("owners.size() > 0", needs(false, Names, &[])),
        ("owners[0].name == 'a'", needs(false, Names, &[])),
        ("owners.map(o, ['k8s.' + o.kind.lowerAscii(), o.name]).size() > 0", needs(false, Names, &[])),
        ("owners.filter(o, o.kind == 'Job').map(o, o.name).size() > 0", needs(false, Names, &[])),
        ("owners.exists(o, [1].exists(i, o.?annotations.hasValue()))", needs(false, Metadata, &[])),
        ("owners.filter(o, o.kind == 'Job').map(o, o).size() > 0", needs(false, Metadata, &[])),
        ("owners.filter(o, 'a' in o.labels).size() > 0", needs(false, Metadata, &[])),
        ("owners[[0].map(i, i)[0]]['uid'] == ''", needs(false, Metadata, &[])),
        ("cel.bind(all, owners, all.size() > 0)", needs(false, Metadata, &[])),
        ("lookups.settings.data.a == 'b'", needs(false, Nothing, &["settings"])),
    ] {
        let lookups = json!([
            {"name": "settings", "version": "v1", "resource": "configmaps", "objectName": "settings"},
            {"name": "unused", "version": "v1", "resource": "configmaps", "objectName": "unused"},
        ]);
        let mut spec = condition(expression);
        spec["lookups"] = lookups.clone();
        assert_eq!(*compile(spec).needs(), expected, "{expression}");
        // A condition also needs the lookups that its variables need.
        let variables = json!([{"name": "v", "expression": expression}]);
        let spec = json!({"lookups": lookups, "variables": variables});
        assert_eq!(*compile(with_condition(spec, "variables.v")).needs(), expected, "a variable: {expression}");
        let default = json!({"name": "d", "type": "boolean", "default": format!("${{{expression}}}")});
        let spec = json!({"lookups": lookups, "parameters": [default]});
        assert_eq!(*compile(spec).needs(), expected, "a default: {expression}");
    }
    let parameter = json!({"name": "p", "type": "string", "annotation": "a", "sources": ["Pod", "ServiceAccount"]});
    assert_eq!(*compile(json!({"parameters": [parameter]})).needs(), needs(true, Nothing, &[]));
}

#[test]
fn review_wants_what_profiles_read() {
    assert!(wanted(condition("object.metadata.generateName != ''"), &of_deployment()).is_empty());
    let wants = wanted(condition("serviceAccount.hasValue()"), &bare());
    assert_eq!((wants.service_account.as_deref(), &*wants.namespace), (Some("builder"), "team-a"));
    let mut unnamed = bare();
    unnamed["spec"]["serviceAccountName"].take();
    assert_eq!(wanted(condition("serviceAccount.hasValue()"), &unnamed).service_account.as_deref(), Some("default"));

    let mut opted_out = bare();
    opted_out["metadata"]["labels"] = json!({"pillion.dev/inject": "false"});
    assert!(wanted(condition("serviceAccount.hasValue()"), &opted_out).is_empty());
    let mut elsewhere = condition("serviceAccount.hasValue()");
    elsewhere["objectSelector"] = json!({"matchLabels": {"a": "b"}});
    assert!(wanted(elsewhere, &bare()).is_empty());

    let names = "owner.?name.hasValue()";
    for known in [bare(), of_deployment(), of("apps/v1", "StatefulSet", "db"), of("example.com/v1", "Game", "g")] {
        assert!(wanted(condition(names), &known).is_empty(), "{known}");
    }
    for open in [of("batch/v1", "Job", "backup-1"), of("apps/v1", "ReplicaSet", "web-abc")] {
        let chain = wanted(condition(names), &open).owners.unwrap();
        assert_eq!(json!(&*chain.next().unwrap().name), open["metadata"]["ownerReferences"][0]["name"]);
    }
    let labels = wanted(condition("owner.?labels.hasValue()"), &of_deployment()).owners.unwrap();
    assert_eq!(labels.next().unwrap().resource(), Some("replicasets"));
}

/// Returns the kinds and names of an owner chain, and the names of the owners that were looked up to complete it.
fn follow(object: &Json, with_metadata: bool, known: &[(&str, Json)]) -> (Vec<String>, Vec<String>) {
    let pod = tape(object);
    let mut chain = OwnerChain::of_pod(pod.root(), with_metadata);
    let mut asked = Vec::new();
    while let Some(next) = chain.next().cloned() {
        asked.push(next.name.to_string());
        assert!(asked.len() < 10, "{asked:?}");
        let found = known.iter().find(|(name, _)| **name == *next.name);
        chain.found(found.map(|(_, metadata)| tape(&json!({"metadata": metadata}))));
    }
    let shown = chain.owners().iter().map(|owner| format!("{}/{}", owner.reference.kind, owner.reference.name));
    (shown.collect(), asked)
}

#[test]
fn owner_chain_ends_at_workload() {
    let cron = json!({"uid": "backup-1-uid", "ownerReferences": [owner("batch/v1", "CronJob", "backup")]});
    let rollout = json!({"ownerReferences": [owner("example.com/v1", "Rollout", "web")]});
    let other = json!({"uid": "another", "ownerReferences": [owner("batch/v1", "CronJob", "backup")]});
    let job = of("batch/v1", "Job", "backup-1");
    for (object, with_metadata, known, expected, asked) in [
        (bare(), true, vec![], &[][..], &[][..]),
        (of_deployment(), false, vec![], &["ReplicaSet/web-7c9d", "Deployment/web"], &[]),
        (of_deployment(), true, vec![], &["ReplicaSet/web-7c9d", "Deployment/web"], &["web-7c9d", "web"]),
        (of("apps/v1", "StatefulSet", "db"), false, vec![], &["StatefulSet/db"], &[]),
        (of("apps/v1", "DaemonSet", "agent"), false, vec![], &["DaemonSet/agent"], &[]),
        (of("example.com/v1", "Game", "g"), true, vec![], &["Game/g"], &[]),
        (job.clone(), false, vec![("backup-1", cron.clone())], &["Job/backup-1", "CronJob/backup"], &["backup-1"]),
        (job.clone(), true, vec![("backup-1", cron)], &["Job/backup-1", "CronJob/backup"], &["backup-1", "backup"]),
        (job.clone(), false, vec![], &["Job/backup-1"], &["backup-1"]),
        (job, false, vec![("backup-1", other)], &["Job/backup-1"], &["backup-1"]),
        (
            of("apps/v1", "ReplicaSet", "web-x"),
            false,
            vec![("web-x", rollout)],
            &["ReplicaSet/web-x", "Rollout/web"],
            &["web-x"],
        ),
    ] {
        let found = follow(&object, with_metadata, &known);
        let text = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(found, (text(expected), text(asked)), "{object} {with_metadata}");
    }
    // A circular chain of owners ends at the maximum length.
    let circle = json!({"ownerReferences": [owner("batch/v1", "Job", "backup-1")]});
    assert_eq!(follow(&of("batch/v1", "Job", "backup-1"), true, &[("backup-1", circle)]).0.len(), 4);
    // An owner that is not the pod's controller is ignored.
    let mut uncontrolled = of("apps/v1", "StatefulSet", "db");
    uncontrolled["metadata"]["ownerReferences"][0]["controller"] = json!(false);
    assert!(follow(&uncontrolled, true, &[]).0.is_empty());
}

#[test]
fn expressions_read_owners() {
    let nothing = LookedUp::default;
    assert!(holds(
        "owner.?name.orValue('') == 'web' && owner.?kind.orValue('') == 'Deployment'",
        &of_deployment(),
        nothing()
    ));
    assert!(holds(
        "owners.map(o, o.name) == ['web-7c9d', 'web'] && owners[0].uid == 'web-7c9d-uid'",
        &of_deployment(),
        {
            let mut chain = OwnerChain::of_pod(tape(&of_deployment()).root(), true);
            chain.found(None);
            chain.found(None);
            LookedUp { owners: Answer::Found(chain), ..nothing() }
        }
    ));
    assert!(holds("!owner.hasValue() && owners.size() == 0", &bare(), nothing()));
    let mut chain = OwnerChain::of_pod(tape(&of("apps/v1", "StatefulSet", "db")).root(), true);
    chain.found(Some(tape(&json!({"metadata": {"uid": "db-uid", "labels": {"team": "red"}}}))));
    let known = LookedUp { owners: Answer::Found(chain), ..nothing() };
    let expression = "owner.?labels[?'team'].orValue('') == 'red' && owners[0].annotations.size() == 0";
    assert!(holds(expression, &of("apps/v1", "StatefulSet", "db"), known));
    // Without a lookup, the owner of the pod's Job is unknown.
    let decision = decided(condition("!owner.hasValue()"), &of("batch/v1", "Job", "j"), nothing());
    assert_eq!((decision.reason, decision.outcome), (Reason::LookupFailed, ProfileOutcome::Skipped));
}

#[test]
fn service_account_is_found_missing_or_failed() {
    let expression = "serviceAccount.?annotations[?'a'].orValue('none') == 'x'";
    assert!(holds(expression, &bare(), account(json!({"a": "x"}))));
    assert!(!holds(expression, &bare(), account(json!({}))));
    let missing = || LookedUp { service_account: Answer::Missing, ..LookedUp::default() };
    assert!(holds("!serviceAccount.hasValue()", &bare(), missing()));

    let failed = || LookedUp { service_account: Answer::Failed("no answer in time".into()), ..LookedUp::default() };
    let decision = decided(condition(expression), &bare(), failed());
    assert_eq!((decision.reason, decision.outcome), (Reason::LookupFailed, ProfileOutcome::Skipped));
    assert!(decision.detail.unwrap().contains("no answer in time"));
    let mut strict = condition(expression);
    strict["failurePolicy"] = json!("Fail");
    assert_eq!(decided(strict, &bare(), failed()).outcome, ProfileOutcome::Denied);
    let unread = condition("object.metadata.generateName == 'x' && serviceAccount.hasValue()");
    assert_eq!(decided(unread, &bare(), failed()).reason, Reason::Precondition, "the result is not read");
    assert_eq!(decided(condition(expression), &bare(), LookedUp::default()).reason, Reason::LookupFailed);
}

#[test]
fn expressions_read_cluster_facts() {
    let facts = tape(&json!({"region": "eu-west-1", "nativeSidecars": true}));
    let known = LookedUp { cluster: Some(facts), ..LookedUp::default() };
    assert!(holds("cluster.region == 'eu-west-1' && cluster.nativeSidecars", &bare(), known));
    assert!(holds("!cluster.?region.hasValue()", &bare(), LookedUp::default()));
}

#[test]
fn expressions_read_lookups_by_name() {
    let settings = json!({"name": "settings", "version": "v1", "resource": "configmaps", "objectName": "settings"});
    let selector = json!({"matchLabels": {"a": "b"}});
    let all = json!({"name": "all", "group": "apps", "version": "v1", "resource": "deployments", "namespace": "platform",
        "selector": selector});
    let spec = |expression: &str| with_condition(json!({"lookups": [settings, all]}), expression);
    let wants = wanted(spec("lookups.settings.data.a == 'b' && lookups.all.size() == 2"), &bare());
    let places: Vec<_> = wants.objects.iter().map(|query| (&*query.namespace, &*query.resource)).collect();
    assert_eq!(places, [("team-a", "configmaps"), ("platform", "deployments")]);

    let answers = [Answer::Found(tape(&json!({"data": {"a": "b"}}))), Answer::Found(tape(&json!([{}, {}])))];
    let known = LookedUp { objects: wants.objects.iter().cloned().zip(answers).collect(), ..LookedUp::default() };
    let expression = "lookups.settings.data.a == 'b' && lookups.all.size() == 2";
    assert_eq!(decided(spec(expression), &bare(), known).outcome, ProfileOutcome::Applied);
    let missing = wants.clone().answered(&Answer::Missing);
    let decision = decided(spec("!lookups.?settings.hasValue()"), &bare(), missing.clone());
    assert_eq!(decision.outcome, ProfileOutcome::Applied);
    assert_eq!(decided(spec(expression), &bare(), missing).reason, Reason::ExpressionFailed);
    let failed = wants.answered(&Answer::Failed("away".into()));
    assert_eq!(decided(spec(expression), &bare(), failed).reason, Reason::LookupFailed);
}

#[test]
fn compile_reports_invalid_lookups() {
    let base = json!({"name": "x", "version": "v1", "resource": "configmaps", "objectName": "a"});
    let with = |field: &str, value: Json| {
        let mut lookup = base.clone();
        lookup[field] = value;
        json!({"lookups": [lookup]})
    };
    for (spec, expected) in [
        (with("resource", json!("secrets")), "Secrets are never looked up"),
        (with("resource", json!("serviceaccounts/token")), "spec.lookups[0].resource"),
        (with("resource", json!("../secrets")), "spec.lookups[0].resource"),
        (with("version", json!("")), "spec.lookups[0].version"),
        (with("group", json!("a/b")), "spec.lookups[0].group"),
        (with("namespace", json!("a/../b")), "spec.lookups[0].namespace"),
        (with("objectName", json!("${object.metadata.name}")), "expressions are not evaluated"),
        (with("selector", json!({})), "either an objectName or a selector"),
        (with("objectName", Json::Null), "either an objectName or a selector"),
        (json!({"lookups": [base, base]}), "is also used at spec.lookups[0]"),
        (with_condition(with("group", json!("")), "lookups.y.a"), "did you mean `lookups.x`"),
    ] {
        let found = compile_errors(spec.clone());
        assert!(found.contains(expected), "{spec}: {found:?} does not contain {expected:?}");
    }
    let tenants = try_compile(&ProfileName::namespaced("team-a", "p"), json!({"lookups": [base]})).unwrap_err();
    assert!(tenants.iter().any(|fault| fault.contains("only cluster profiles can declare lookups")), "{tenants:?}");
}

#[test]
fn most_specific_source_sets_parameter() {
    let parameter = |sources: &[&str], merge: &str| {
        json!({"name": "p", "type": "string", "annotation": "example.com/p", "default": "default", "sources": sources,
            "merge": merge})
    };
    let all = ["Namespace", "Pod", "ServiceAccount"];
    let with_pod = pod(json!({}), json!({"example.com/p": "pod"}), json!([]));
    let with_account = || account(json!({"example.com/p": "account"}));
    for (sources, object, looked_up, expected) in [
        (&all[..], &with_pod, with_account(), "pod"),
        (&all, &bare(), with_account(), "account"),
        (&all, &bare(), account(json!({})), "namespace"),
        (&all, &bare(), LookedUp { service_account: Answer::Missing, ..LookedUp::default() }, "namespace"),
        (&["Pod", "ServiceAccount"], &bare(), account(json!({})), "default"),
        (&["ServiceAccount"], &with_pod, with_account(), "account"),
        (&["Namespace"], &with_pod, with_account(), "namespace"),
        (&["Pod"], &bare(), with_account(), "default"),
    ] {
        for merge in ["Replace", "Merge"] {
            let spec = json!({"parameters": [parameter(sources, merge)]});
            let decision =
                decided(with_condition(spec, &format!("params.p == '{expected}'")), object, looked_up.clone());
            assert_eq!(
                decision.outcome,
                ProfileOutcome::Applied,
                "{sources:?} {merge} {expected}: {:?}",
                decision.detail
            );
        }
    }
    // The pod's value has priority, even if the lookup of the service account failed.
    let unavailable = || LookedUp { service_account: Answer::Failed("away".into()), ..LookedUp::default() };
    let spec = |expression: &str| with_condition(json!({"parameters": [parameter(&all, "Replace")]}), expression);
    assert_eq!(decided(spec("params.p == 'pod'"), &with_pod, unavailable()).outcome, ProfileOutcome::Applied);
    assert_eq!(decided(spec("params.p == 'pod'"), &bare(), unavailable()).reason, Reason::LookupFailed);
    assert_eq!(
        decided(spec("true"), &bare(), unavailable()).outcome,
        ProfileOutcome::Applied,
        "no expression reads the parameter"
    );
}

#[test]
fn default_may_be_computed() {
    let parameters = json!([
        {"name": "base", "type": "integer", "default": 2},
        {"name": "whole", "type": "integer", "default": "${params.base + 1}"},
        {"name": "text", "type": "string", "default": "n=${params.whole}, $${x}, ${request.namespace}"},
        {"name": "list", "type": "list", "default": ["a", "${owner.?name}", "${containers[0].name}"]},
        {"name": "map", "type": "map", "default": {"a": "${string(params.base)}", "b": "${object.?nothing}"}},
        {"name": "absent", "type": "string", "default": "${object.?nothing}"},
        {"name": "clamped", "type": "integer", "maximum": 3, "clamp": true, "default": "${params.whole * 10}"},
        {"name": "native", "type": "boolean", "default": "${cluster.nativeSidecars}"},
        {"name": "wrong", "type": "integer", "minimum": 10, "default": "${params.base}"},
        {"name": "plain", "type": "string", "default": "$${x}"},
    ]);
    for (expression, reason) in [
        ("params.whole == 3", Reason::Injected),
        ("params.text == 'n=3, ${x}, team-a'", Reason::Injected),
        ("params.list == ['a', 'app']", Reason::Injected),
        ("params.map == {'a': '2'}", Reason::Injected),
        ("!has(params.absent)", Reason::Injected),
        ("params.clamped == 3", Reason::Injected),
        ("params.plain == '${x}'", Reason::Injected),
        // An error in a default only affects expressions that read the parameter.
        ("params.native", Reason::ExpressionFailed),
        ("params.wrong > 0", Reason::ExpressionFailed),
    ] {
        let spec = with_condition(json!({"parameters": parameters}), expression);
        let decision = decided(spec, &bare(), LookedUp::default());
        assert_eq!(decision.reason, reason, "{expression}: {:?}", decision.detail);
    }
    for (parameter, expected) in [
        (json!({"name": "a", "type": "string", "default": "${params.b}"}), "only the parameters before it"),
        (json!({"name": "a", "type": "string", "default": "${params.a}"}), "only the parameters before it"),
        (json!({"name": "a", "type": "string", "default": "${variables.v}"}), "spec.parameters[0].default"),
        (json!({"name": "a", "type": "string", "default": "${objekt}"}), "did you mean `object`"),
        (json!({"name": "a", "type": "string", "default": "${"}), "is not closed"),
        (json!({"name": "a", "type": "list", "default": ["${"]}), "spec.parameters[0].default[0]"),
        (json!({"name": "a", "type": "integer", "default": "$${x}"}), "expected a whole number"),
    ] {
        let spec = json!({"parameters": [parameter, {"name": "b", "type": "string"}],
            "variables": [{"name": "v", "expression": "1"}]});
        let found = compile_errors(spec);
        assert!(found.contains(expected), "{parameter}: {found:?} does not contain {expected:?}");
    }
}

#[test]
fn notices_report_invalid_and_clamped_values() {
    let expiration = json!({"name": "e", "type": "integer", "minimum": 600, "clamp": true, "default": 86400,
        "onInvalid": "Default", "annotation": "example.com/e", "sources": ["Pod", "ServiceAccount"]});
    let notices = |annotations: Json, looked_up: LookedUp, expected: i64| {
        let spec = with_condition(json!({"parameters": [expiration]}), &format!("params.e == {expected}"));
        let decided = decide(spec, &pod(json!({}), annotations, json!([])), looked_up);
        assert_eq!(decided.decision.profiles[0].outcome, ProfileOutcome::Applied);
        let texts = decided.decision.notices.into_iter().map(|notice| match notice {
            Notice::Parameter { profile, message } => format!("{profile}: {message}"),
            other => panic!("{other:?}"),
        });
        texts.collect::<Vec<_>>()
    };
    assert_eq!(notices(json!({"example.com/e": "700"}), account(json!({})), 700), [""; 0]);
    assert_eq!(
        notices(json!({"example.com/e": "10"}), account(json!({})), 600),
        ["p: example.com/e: 10 is outside of the allowed range; 600 is used"]
    );
    let found = notices(json!({"example.com/e": "soon"}), account(json!({})), 86400);
    assert_eq!(found, ["p: example.com/e: expected a whole number, found \"soon\"; the default is used"]);
    let found = notices(json!({}), account(json!({"example.com/e": "1"})), 600);
    assert_eq!(found, ["p: example.com/e of the service account: 1 is outside of the allowed range; 600 is used"]);
}
