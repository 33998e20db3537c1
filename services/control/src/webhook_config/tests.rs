//! Tests the comparison of observed and desired state, and the decisions that depend on it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{MatchCondition, MutatingWebhook, ValidatingWebhook};
use pillion_api::names::NAMESPACE_NAME_LABEL;
use pillion_api::profile::Operation;
use pillion_api::webhook_configuration::{OwnCalls, Validated};
use pillion_engine::profile::{CompiledProfile, ProfileName, compile};
use pillion_engine::snapshot::ProfileSet;

use super::*;
use crate::certificates::rotation::{Bundle, Configuration, Generation};
use crate::webhook_config::live::tests::{der, pem};
use crate::webhook_config::{
    ConfigurationKind, EPOCH_ANNOTATION, MAXIMUM_OWN_CALLS, RELEASE_ANNOTATION, Rules, WRITTEN_ANNOTATION, settings_of,
};

const NOW: &str = "2026-11-21T03:00:00Z";

fn release() -> Release {
    Release::new("pillion", "pillion-system", "cluster.local").unwrap()
}

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

/// A change that another client makes.
type Change = fn(&mut Live);

/// Creates a target that has rules for validations, and a bundle of the CAs with these numbers.
fn target(cas: &[u8], epoch: u64) -> Target {
    let settings = pillion_api::webhook_configuration::Settings {
        trust_probe: true,
        validates_profiles: true,
        ..settings_of(&release())
    };
    let rules = Rules::default();
    let own = OwnCalls::from([(("pods".to_owned(), Operation::Update), BTreeSet::from(["shop".to_owned()]))]);
    let rules = Rules { validated: Validated { everywhere: rules.mutating.clone(), own }, ..rules };
    Target::new(settings, rules, pem(cas), epoch)
}

/// Returns the observed state after `target` was written.
fn after(target: &Target) -> Live {
    let desired = target.desired(&release(), now());
    Live { mutating: Some(desired.mutating), validating: desired.validating, disabled: false }
}

fn entry<'l>(live: &'l mut Live, name: &str) -> &'l mut MutatingWebhook {
    let entries = live.mutating.as_mut().unwrap().webhooks.as_mut().unwrap();
    entries.iter_mut().find(|entry| entry.name == name).unwrap()
}

fn validating_entry<'l>(live: &'l mut Live, name: &str) -> &'l mut ValidatingWebhook {
    let entries = live.validating.as_mut().unwrap().webhooks.as_mut().unwrap();
    entries.iter_mut().find(|entry| entry.name == name).unwrap()
}

fn bundle(entry: &mut MutatingWebhook, bytes: &[u8]) {
    entry.client_config.ca_bundle = Some(ByteString(bytes.to_vec()));
}

fn annotate(live: &mut Live, key: &str, value: Option<&str>) {
    let annotations = live.mutating.as_mut().unwrap().metadata.annotations.as_mut().unwrap();
    match value {
        Some(value) => drop(annotations.insert(key.to_owned(), value.to_owned())),
        None => drop(annotations.remove(key)),
    }
}

/// Certificate n belongs to CA n. From 100 on, certificates are unknown.
fn generation_of(certificate: &[u8]) -> Option<Generation> {
    (0..100).find(|number| der(*number) == certificate).map(|number| Generation(number.into()))
}

#[test]
fn drift_is_classified_by_kind() {
    let cases: [(Change, &str); 25] = [
        (|_| (), ""),
        (|live| live.mutating = None, "mutating:missing"),
        (|live| live.validating = None, "validating:missing"),
        (
            |live| drop(live.mutating.as_mut().unwrap().webhooks.as_mut().unwrap().remove(0)),
            "mutating:entry_missing(enabled.pillion.dev)",
        ),
        (
            |live| {
                let extra =
                    MutatingWebhook { name: "x.example.org".to_owned(), ..entry(live, "enabled.pillion.dev").clone() };
                live.mutating.as_mut().unwrap().webhooks.as_mut().unwrap().push(extra);
            },
            "mutating:entry_extra(x.example.org)",
        ),
        (|live| live.mutating.as_mut().unwrap().webhooks.as_mut().unwrap().reverse(), "mutating:entry_order"),
        (
            |live| entry(live, "required.pillion.dev").client_config.ca_bundle = None,
            "mutating:ca_bundle_empty(required.pillion.dev)",
        ),
        (|live| bundle(entry(live, "required.pillion.dev"), b"\n"), "mutating:ca_bundle_empty(required.pillion.dev)"),
        (
            |live| bundle(entry(live, "required.pillion.dev"), b"junk"),
            "mutating:ca_bundle_invalid(required.pillion.dev) mutating:ca_bundle_incomplete(required.pillion.dev)",
        ),
        (
            |live| bundle(entry(live, "required.pillion.dev"), &pem(&[1])),
            "mutating:ca_bundle_incomplete(required.pillion.dev)",
        ),
        (
            |live| bundle(entry(live, "required.pillion.dev"), &pem(&[1, 2, 200])),
            "mutating:ca_bundle_foreign(required.pillion.dev)",
        ),
        (
            |live| bundle(entry(live, "trust-probe.pillion.dev"), &pem(&[200])),
            "mutating:ca_bundle_incomplete(trust-probe.pillion.dev) mutating:ca_bundle_foreign(trust-probe.pillion.dev)",
        ),
        (
            |live| bundle(entry(live, "required.pillion.dev"), &pem(&[2, 1])),
            "mutating:ca_bundle_order(required.pillion.dev)",
        ),
        (
            |live| entry(live, "enabled.pillion.dev").client_config.service.as_mut().unwrap().path = None,
            "mutating:service(enabled.pillion.dev)",
        ),
        (|live| entry(live, "enabled.pillion.dev").namespace_selector = None, "mutating:selector(enabled.pillion.dev)"),
        (|live| entry(live, "enabled.pillion.dev").object_selector = None, "mutating:selector(enabled.pillion.dev)"),
        (|live| entry(live, "required.pillion.dev").object_selector = None, ""),
        (
            |live| entry(live, "required.pillion.dev").failure_policy = Some("Ignore".to_owned()),
            "mutating:policy(required.pillion.dev)",
        ),
        (
            |live| {
                let never = MatchCondition { name: "never".to_owned(), expression: "false".to_owned() };
                entry(live, "enabled.pillion.dev").match_conditions = Some(vec![never]);
            },
            "mutating:policy(enabled.pillion.dev)",
        ),
        (|live| entry(live, "enabled.pillion.dev").timeout_seconds = Some(30), "mutating:timeout(enabled.pillion.dev)"),
        (|live| entry(live, "enabled.pillion.dev").rules = None, "mutating:rules(enabled.pillion.dev)"),
        (
            |live| validating_entry(live, "validate-required.pillion.dev").timeout_seconds = None,
            "validating:timeout(validate-required.pillion.dev)",
        ),
        (|live| annotate(live, WRITTEN_ANNOTATION, Some("2027-01-01T00:00:00Z")), "mutating:metadata"),
        (|live| annotate(live, WRITTEN_ANNOTATION, Some("2020-01-01T00:00:00Z")), ""),
        (|live| live.mutating.as_mut().unwrap().metadata.labels = None, "mutating:metadata"),
    ];
    let target = target(&[1, 2], 7);
    let desired = target.desired(&release(), now());
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        let mut live = after(&target);
        change(&mut live);
        let drifts = differences(&live, &desired, now());
        assert_eq!(Drifts(&drifts).to_string(), expected, "case {number}");
        let expected = if drifts.is_empty() { Plan::Idle } else { Plan::Repair(drifts) };
        assert_eq!(plan(&release(), &live, Some(&target), now()), expected);
    }
}

#[test]
fn unknown_profiles_keep_live_rules() {
    let target = target(&[1], 3);
    assert_ne!(target.rules.validated, Rules::default().validated);
    assert_eq!(Rules::of_live(&after(&target)), target.rules);
    assert_eq!(Rules::of_live(&Live::default()), Rules::default());
}

#[test]
fn rules_come_from_active_profiles() {
    let profile = |name: &str, spec: serde_json::Value| {
        Arc::new(compile(&ProfileName::cluster(name), &serde_json::from_value(spec).unwrap()).unwrap())
    };
    let template = serde_json::json!({"metadata": {"labels": {"a": "b"}}});
    let games = serde_json::json!({"group": "agones.dev", "version": "v1", "resources": ["gameservers"]});
    let jobs = serde_json::json!({"group": "batch", "version": "v1", "resources": ["jobs"]});
    let validations = serde_json::json!([{"expression": "true"}]);
    let profiles = ProfileSet::new([
        profile("pods", serde_json::json!({"template": template})),
        profile("games", serde_json::json!({"target": games, "template": template})),
        profile("jobs", serde_json::json!({"target": jobs, "validations": validations})),
        profile("base", serde_json::json!({"target": jobs, "template": template, "activation": "Never"})),
    ]);
    let resources = |rules: &[k8s_openapi::api::admissionregistration::v1::RuleWithOperations]| {
        rules.iter().flat_map(|rule| rule.resources.clone().unwrap()).collect::<Vec<_>>()
    };
    let rules = Rules::of(&profiles);
    assert_eq!(resources(&rules.mutating), ["pods", "gameservers"]);
    assert_eq!(resources(&rules.validated.everywhere), ["jobs"]);
    assert_eq!(resources(&Rules::default().mutating), ["pods"]);
    assert_eq!(Rules::default().validated, Validated::default());
}

/// Returns the failure policy, the namespaces and the rules of each validating entry, by the entry's name.
fn validated_by(profiles: &ProfileSet) -> BTreeMap<String, (String, Vec<String>, Vec<String>)> {
    let target = Target::new(settings_of(&release()), Rules::of(profiles), pem(&[1]), 1);
    let entries = target.desired(&release(), now()).validating.and_then(|there| there.webhooks).unwrap_or_default();
    let entries = entries.into_iter().map(|entry| {
        let requirements = entry.namespace_selector.unwrap().match_expressions.unwrap();
        let named = requirements.into_iter().filter(|one| one.key == NAMESPACE_NAME_LABEL && one.operator == "In");
        let rules = entry
            .rules
            .unwrap()
            .into_iter()
            .map(|rule| format!("{} {}", rule.resources.unwrap().join(","), rule.operations.unwrap().join(",")));
        let content =
            (entry.failure_policy.unwrap(), named.flat_map(|one| one.values.unwrap()).collect(), rules.collect());
        (entry.name, content)
    });
    entries.collect()
}

fn validating_profile(name: &ProfileName, target: &serde_json::Value) -> Arc<CompiledProfile> {
    let spec = serde_json::json!({"target": target, "validations": [{"expression": "true"}]});
    Arc::new(compile(name, &serde_json::from_value(spec).unwrap()).unwrap())
}

fn all_of_pods() -> serde_json::Value {
    serde_json::json!({
        "version": "v1",
        "resources": ["pods", "pods/resize"],
        "operations": ["CREATE", "UPDATE", "DELETE"],
    })
}

#[test]
fn tenant_targets_call_only_their_namespace() {
    let pods = serde_json::json!({"version": "v1", "resources": ["pods"]});
    let platform = validating_profile(&ProfileName::cluster("platform"), &pods);
    let alone = validated_by(&ProfileSet::new([Arc::clone(&platform)]));
    let own = |namespace: &str| validating_profile(&ProfileName::namespaced(namespace, "own"), &all_of_pods());
    let mut with = validated_by(&ProfileSet::new([platform, own("shop"), own("bank")]));
    for (name, entry) in &alone {
        assert_eq!(with.remove(name).as_ref(), Some(entry), "{name} does not depend on tenants");
    }
    let [update, delete] = ["update", "delete"]
        .map(|operation| with.remove(&format!("validate-required-own-pods-{operation}.pillion.dev")));
    let entry = |policy: &str, rule: &str| {
        let namespaces = ["bank", "shop"].map(str::to_owned).to_vec();
        Some((policy.to_owned(), namespaces, vec![rule.to_owned()]))
    };
    assert_eq!(update, entry("Fail", "pods UPDATE"));
    assert_eq!(delete, entry("Ignore", "pods DELETE"));
    // The remaining entries are for the failure mode `enabled` and for other labels. The creation of pods needs no
    // entry, since the entries for all namespaces cover it.
    assert_eq!(with.len(), 8);
    assert!(with.values().all(|(_, namespaces, _)| namespaces == &["bank", "shop"]), "{with:?}");
}

#[test]
fn deletion_rules_always_fail_open() {
    let all = validated_by(&ProfileSet::new([validating_profile(&ProfileName::cluster("a"), &all_of_pods())]));
    let of = |name: &str| {
        let (policy, _, rules) = all.get(name).unwrap();
        (policy.clone(), rules.join("; "))
    };
    let content = |policy: &str, rules: &str| (policy.to_owned(), rules.to_owned());
    let expected = content("Fail", "pods CREATE,UPDATE; pods/resize CREATE,UPDATE");
    assert_eq!(of("validate-required.pillion.dev"), expected);
    assert_eq!(of("validate-required-delete.pillion.dev"), content("Ignore", "pods DELETE; pods/resize DELETE"));
}

#[test]
fn tenant_calls_are_bounded() {
    let pods = serde_json::json!({"version": "v1", "resources": ["pods"]});
    let own = |number: usize| validating_profile(&ProfileName::namespaced(format!("team-{number:04}"), "own"), &pods);
    let rules = Rules::of(&ProfileSet::new((0..=MAXIMUM_OWN_CALLS).rev().map(own)));
    let called: usize = rules.validated.own.values().map(BTreeSet::len).sum();
    assert_eq!(called, MAXIMUM_OWN_CALLS);
    assert_eq!(rules.omitted_namespaces, BTreeSet::from([format!("team-{MAXIMUM_OWN_CALLS:04}")]));
    let target = Target::new(settings_of(&release()), rules, pem(&[1]), 1);
    let size = serde_json::to_string(&target.desired(&release(), now()).validating).unwrap().len();
    assert!(size < 200_000, "{size} bytes of 1.5 MB");
}

#[test]
fn validating_configuration_needs_validations() {
    let mut quiet = target(&[1], 1);
    quiet.settings.trust_probe = false;
    let live = after(&quiet);
    quiet.settings.validates_profiles = false;
    quiet.rules.validated = Validated::default();
    let drifts = differences(&live, &quiet.desired(&release(), now()), now());
    assert_eq!(Drifts(&drifts).to_string(), "validating:unexpected");
    assert_eq!(after(&quiet).validating, None);
}

#[test]
fn drift_names_the_writer() {
    let target = target(&[1], 1);
    let mut live = after(&target);
    entry(&mut live, "enabled.pillion.dev").client_config.ca_bundle = None;
    live.mutating.as_mut().unwrap().metadata.managed_fields = serde_json::from_value(serde_json::json!([
        {"manager": "pillion-controller", "time": "2026-11-21T01:00:00Z", "fieldsV1": {}},
        {"manager": "argocd", "time": "2026-11-21T02:00:00Z", "fieldsV1": {}},
    ]))
    .unwrap();
    let drifts = differences(&live, &target.desired(&release(), now()), now());
    assert_eq!(drifts[0].manager.as_deref(), Some("argocd"));
}

#[test]
fn older_target_is_behind_newer_is_written() {
    let live = after(&target(&[1], 7));
    assert_eq!(plan(&release(), &live, Some(&target(&[2], 6)), now()), Plan::Behind(7));
    let Plan::Repair(drifts) = plan(&release(), &live, Some(&target(&[1], 8)), now()) else { panic!() };
    assert_eq!(
        Drifts(&drifts).to_string(),
        "mutating:metadata mutating:service(trust-probe.pillion.dev) validating:metadata validating:service(trust-probe.pillion.dev)"
    );
    assert_eq!(plan(&release(), &live, None, now()), Plan::Idle, "without a target, nothing is written");
}

#[test]
fn removes_disarmed_and_ignores_other_releases() {
    let target = target(&[1], 7);
    let disabled = |live: Live| Live { disabled: true, ..live };
    assert_eq!(plan(&release(), &disabled(after(&target)), Some(&target), now()), Plan::Remove);
    assert_eq!(plan(&release(), &disabled(Live::default()), Some(&target), now()), Plan::Idle);
    let mut others = after(&target);
    annotate(&mut others, RELEASE_ANNOTATION, Some("elsewhere/pillion"));
    for live in [others.clone(), disabled(others)] {
        assert_eq!(plan(&release(), &live, Some(&target), now()), Plan::OtherRelease("elsewhere/pillion".to_owned()));
    }
}

#[test]
fn rotation_sees_intersection_of_all_entries() {
    let present = |cas: &[u32], uniform, unknown| {
        let cas: BTreeSet<_> = cas.iter().copied().map(Generation).collect();
        Configuration::Present(Bundle { cas, uniform, unknown, epoch: 7, written: now() })
    };
    let cases: [(Change, Configuration); 13] = [
        (|_| (), present(&[1, 2], true, false)),
        (|live| live.disabled = true, Configuration::WebhooksDisabled),
        (|live| (live.disabled, live.mutating, live.validating) = (true, None, None), Configuration::WebhooksDisabled),
        (|live| live.mutating = None, Configuration::Absent),
        (|live| live.mutating.as_mut().unwrap().webhooks = None, Configuration::Empty { epoch: 7 }),
        (|live| live.mutating.as_mut().unwrap().webhooks = Some(Vec::new()), Configuration::Empty { epoch: 7 }),
        (|live| live.validating = None, present(&[1, 2], true, false)),
        (|live| bundle(entry(live, "trust-probe.pillion.dev"), &pem(&[2])), present(&[2], false, false)),
        (|live| bundle(entry(live, "trust-probe.pillion.dev"), &pem(&[1, 2, 200])), present(&[1, 2], false, true)),
        (|live| bundle(entry(live, "trust-probe.pillion.dev"), &pem(&[2, 1])), present(&[1, 2], true, false)),
        (|live| bundle(entry(live, "trust-probe.pillion.dev"), b"junk"), present(&[], false, false)),
        (
            |live| validating_entry(live, "profiles.pillion.dev").client_config.ca_bundle = None,
            present(&[], false, false),
        ),
        // The higher epoch of the two configurations is used, so that outdated leaders stop. The later write time is
        // used, so that the rotation waits for slow API servers.
        (|live| annotate(live, EPOCH_ANNOTATION, Some("no number")), present(&[1, 2], true, false)),
    ];
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        let mut live = after(&target(&[1, 2], 7));
        change(&mut live);
        assert_eq!(live.configuration(&generation_of), expected, "case {number}");
    }
    let mut with_unknown = after(&target(&[1], 7));
    bundle(entry(&mut with_unknown, "enabled.pillion.dev"), &pem(&[200, 1, 201]));
    assert_eq!(with_unknown.unknown(&generation_of), BTreeSet::from([der(200), der(201)]));
}

#[test]
fn missing_write_time_counts_as_never() {
    let mut live = after(&target(&[1], 7));
    live.validating = None;
    annotate(&mut live, WRITTEN_ANNOTATION, None);
    let Configuration::Present(bundle) = live.configuration(&generation_of) else { panic!() };
    assert_eq!(bundle.written, Timestamp::MAX);
}

#[test]
fn bundle_without_ca_is_rejected() {
    for text in ["", "junk", "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"] {
        let target = Target::new(settings_of(&release()), Rules::default(), text.into(), 1);
        assert!(!target.has_cas(), "{text:?}");
    }
    assert!(target(&[1], 1).has_cas());
}

#[test]
fn configuration_names_come_from_release() {
    let release = Release::new("injector", "platform", "cluster.local").unwrap();
    let settings = pillion_api::webhook_configuration::Settings { trust_probe: true, ..settings_of(&release) };
    let desired = Target::new(settings, Rules::default(), pem(&[1]), 1).desired(&release, now());
    assert_eq!(desired.mutating.metadata.name.as_deref(), Some(release.configuration()));
    let services: BTreeSet<_> = desired
        .mutating
        .webhooks
        .unwrap()
        .into_iter()
        .map(|entry| {
            let service = entry.client_config.service.unwrap();
            (service.namespace, service.name)
        })
        .collect();
    let expected = [release.service().to_owned(), release.trust_probe_service()];
    assert_eq!(services, expected.map(|name| ("platform".to_owned(), name)).into());
}

#[test]
fn drift_kinds_have_distinct_labels() {
    assert_eq!(ConfigurationKind::ALL.map(ConfigurationKind::as_str), ["mutating", "validating"]);
    let distinct: BTreeSet<_> = DriftKind::ALL.iter().map(|kind| kind.as_str()).collect();
    assert_eq!(distinct.len(), DriftKind::ALL.len());
}
