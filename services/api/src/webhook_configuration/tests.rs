//! Tests which requests each entry matches, which path it calls, and its failure policy.

use super::*;
use crate::names::INJECTION_LABEL;
use crate::profile::{ProfileSpec, Target};

fn webhooks(failure_modes: &[FailureMode]) -> Vec<MutatingWebhook> {
    let settings =
        Settings { failure_modes: failure_modes.to_vec(), ..Settings::new("pillion-system", b"-----BEGIN".as_slice()) };
    mutating(&settings).webhooks.unwrap()
}

#[test]
fn failure_modes_have_path_and_failure_policy() {
    let found: Vec<_> = webhooks(&FailureMode::ALL)
        .into_iter()
        .map(|entry| (entry.name, entry.failure_policy.unwrap(), entry.client_config.service.unwrap().path.unwrap()))
        .collect();
    let expected = [
        ("enabled.pillion.dev", "Ignore", "/mutate/enabled"),
        ("required.pillion.dev", "Fail", "/mutate/required"),
        ("held.pillion.dev", "Ignore", "/mutate/held"),
    ];
    assert_eq!(found, expected.map(|(n, f, p)| (n.to_owned(), f.to_owned(), p.to_owned())));
}

#[test]
fn excludes_system_and_release_namespaces() {
    for entry in webhooks(&FailureMode::ALL) {
        let expressions = entry.namespace_selector.unwrap().match_expressions.unwrap();
        let excluded = expressions.iter().find(|e| e.key == NAMESPACE_NAME_LABEL).unwrap();
        assert_eq!(excluded.operator, "NotIn");
        let expected = ["kube-system", "kube-public", "kube-node-lease", "pillion-system"];
        assert_eq!(excluded.values.as_deref().unwrap(), expected);
    }
}

#[test]
fn only_enabled_namespaces_opt_out_before_call() {
    for (entry, failure_mode) in webhooks(&FailureMode::ALL).into_iter().zip(FailureMode::ALL) {
        let opts_out = entry.object_selector.unwrap().match_expressions.is_some();
        assert_eq!(opts_out, failure_mode == FailureMode::Enabled, "{failure_mode:?}");
    }
}

fn spec(target: serde_json::Value, validates: bool) -> ProfileSpec {
    let mut spec = serde_json::json!({"template": {"metadata": {}}});
    if !target.is_null() {
        spec["target"] = target;
    }
    if validates {
        spec["validations"] = serde_json::json!([{"expression": "true"}]);
    }
    serde_json::from_value(spec).unwrap()
}

fn validated(everywhere: Vec<RuleWithOperations>) -> Validated {
    Validated { everywhere, ..Validated::default() }
}

#[test]
fn validation_rules_match_targets_only() {
    use serde_json::{Value, json};
    let settings = Settings {
        failure_modes: FailureMode::ALL.to_vec(),
        ..Settings::new("pillion-system", b"-----BEGIN".as_slice())
    };
    assert_eq!(validating(&settings, &validated(validating_rules([&spec(Value::Null, false)]))), None);
    let both = json!({"version": "v1", "resources": ["pods", "pods/ephemeralcontainers"], "operations": ["UPDATE"]});
    let games = json!({"group": "agones.dev", "version": "v1", "resources": ["gameservers"]});
    let profiles = [spec(games, true), spec(both, true), spec(Value::Null, true)];
    let rules = validating_rules(&profiles);
    let expected = [("pods", "CREATE,UPDATE"), ("pods/ephemeralcontainers", "UPDATE"), ("gameservers", "CREATE")];
    assert_eq!(rule_texts(&rules), expected.map(|(resource, operations)| (resource.to_owned(), operations.to_owned())));
    assert_eq!(rules, validating_rules(profiles.iter().rev()));
    for (entry, failure_mode) in
        validating(&settings, &validated(rules.clone())).unwrap().webhooks.unwrap().into_iter().zip(FailureMode::ALL)
    {
        assert_eq!(entry.client_config.service.unwrap().path.as_deref(), Some(failure_mode.validate_path()));
        assert_eq!(entry.failure_policy.as_deref(), Some(failure_policy(&settings, failure_mode)));
        assert_eq!(entry.object_selector, Some(LabelSelector::default()), "the profile controls opting out");
    }
}

#[test]
fn default_rule_matches_pod_creation_only() {
    for entry in webhooks(&FailureMode::ALL) {
        let [rule] = entry.rules.unwrap().try_into().unwrap();
        assert_eq!(rule.resources.unwrap(), ["pods"]);
        assert_eq!(rule.operations.unwrap(), ["CREATE"]);
        assert_eq!(entry.side_effects, "None");
        assert_eq!(entry.reinvocation_policy.as_deref(), Some("IfNeeded"));
    }
}

fn target(text: serde_json::Value) -> Target {
    serde_json::from_value(text).unwrap()
}

/// Returns the resources and operations of each rule, joined by commas.
fn rule_texts(rules: &[RuleWithOperations]) -> Vec<(String, String)> {
    let joined = |texts: &Option<Vec<String>>| texts.as_ref().unwrap().join(",");
    rules.iter().map(|rule| (joined(&rule.resources), joined(&rule.operations))).collect()
}

#[test]
fn mutation_rules_match_targets_with_templates() {
    use serde_json::json;
    let only_pods = mutating(&Settings::new("s", "")).webhooks.unwrap().remove(0).rules.unwrap();
    for (targets, expected) in [
        (vec![], vec![("pods", "CREATE")]),
        (
            vec![json!({"version": "v1", "resources": ["pods"], "operations": ["CREATE", "UPDATE", "DELETE"]})],
            vec![("pods", "CREATE")],
        ),
        (vec![json!({"version": "v1", "resources": ["pods", "pods/ephemeralcontainers"]})], vec![("pods", "CREATE")]),
        (
            vec![
                json!({"group": "agones.dev", "version": "v1", "resources": ["gameservers"], "operations": ["UPDATE", "DELETE"]}),
                json!({"group": "agones.dev", "version": "v1", "resources": ["gameservers"]}),
                json!({"group": "apps", "version": "v1", "resources": ["deployments", "deployments/scale"], "operations": ["DELETE"]}),
            ],
            vec![("pods", "CREATE"), ("gameservers", "CREATE,UPDATE")],
        ),
        (
            vec![
                json!({"group": "*", "version": "v1", "resources": ["a"]}),
                json!({"group": "a.b", "version": "v1", "resources": ["*"]}),
                json!({"group": "pillion.dev", "version": "v1alpha1", "resources": ["injectionprofiles"]}),
                json!({"group": "coordination.k8s.io", "version": "v1", "resources": ["leases"]}),
            ],
            vec![("pods", "CREATE")],
        ),
    ] {
        let rules = mutating_rules(targets.into_iter().map(target));
        let expected: Vec<_> = expected.into_iter().map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
        assert_eq!(rule_texts(&rules), expected);
        assert_eq!(rules[0], only_pods[0], "the rule for pods is unchanged");
        assert!(rules.iter().all(|rule| rule.scope.as_deref() == Some("Namespaced")));
    }
}

#[test]
fn no_namespace_matches_two_entries() {
    let keys = [INJECTION_LABEL, "istio-injection", "team/injector"];
    let values = [None, Some("enabled"), Some("required"), Some("held"), Some("disabled"), Some("on")];
    let opt_in =
        OptIn::with(["istio-injection=enabled", "istio-injection=required:required", "team/injector=on:held"]).unwrap();
    let settings =
        Settings { failure_modes: FailureMode::ALL.to_vec(), opt_in: opt_in.clone(), ..Settings::new("system", "") };
    let entries = mutating(&settings).webhooks.unwrap();
    let names: Vec<_> = entries.iter().map(|entry| &*entry.name).collect();
    let own = ["enabled.pillion.dev", "enabled.istio-injection.pillion.dev"];
    let required = ["required.pillion.dev", "required.istio-injection.pillion.dev"];
    let held = ["held.pillion.dev", "held.injector.team.pillion.dev"];
    assert_eq!(names, [own, required, held].concat());
    for number in 0..values.len().pow(3) {
        let label = |key: &str| match keys.iter().position(|known| *known == key) {
            Some(index) => values[number / values.len().pow(u32::try_from(index).unwrap()) % values.len()],
            None => Some("shop"),
        };
        let selects = |entry: &&MutatingWebhook| {
            let requirements = entry.namespace_selector.as_ref().unwrap().match_expressions.as_ref().unwrap();
            requirements.iter().all(|requirement| {
                let has = |value| requirement.values.as_ref().is_some_and(|values| values.iter().any(|v| v == value));
                match &*requirement.operator {
                    "In" => label(&requirement.key).is_some_and(has),
                    "NotIn" => !label(&requirement.key).is_some_and(has),
                    "DoesNotExist" => label(&requirement.key).is_none(),
                    other => panic!("{other}"),
                }
            })
        };
        let selected: Vec<_> = entries.iter().filter(selects).collect();
        assert!(selected.len() <= 1, "{number}: {selected:?}");
        let path = selected.first().map(|entry| entry.client_config.service.as_ref().unwrap().path.clone().unwrap());
        assert_eq!(path.as_deref(), opt_in.failure_mode(label).map(FailureMode::path), "{number}");
    }
}

#[test]
fn failure_modes_have_own_timeouts() {
    let timeouts = Timeouts { enabled: 1, required: 90, held: 0 };
    let settings = Settings { failure_modes: FailureMode::ALL.to_vec(), timeouts, ..Settings::new("system", "") };
    let found: Vec<_> = mutating(&settings).webhooks.unwrap().iter().map(|entry| entry.timeout_seconds).collect();
    assert_eq!(found, [Some(1), Some(30), Some(1)]);
}

#[test]
fn trust_probe_and_profile_entries_are_opt_in() {
    let settings =
        Settings { trust_probe: true, trust_probe_epoch: 7, validates_profiles: true, ..Settings::new("system", "") };
    let entries = mutating(&settings).webhooks.unwrap();
    let trust_probe = entries.last().unwrap();
    let service = trust_probe.client_config.service.as_ref().unwrap();
    assert_eq!((&*trust_probe.name, trust_probe.failure_policy.as_deref()), ("trust-probe.pillion.dev", Some("Fail")));
    assert_eq!(
        (&*service.name, service.path.as_deref(), service.port),
        ("pillion-trust-probe", Some("/trust-probe/7"), Some(443))
    );
    assert_eq!(trust_probe.rules.as_ref().unwrap()[0].scope.as_deref(), Some("Cluster"));
    assert_eq!(
        rule_texts(trust_probe.rules.as_ref().unwrap()),
        [("injectiontrustprobes".to_owned(), "CREATE".to_owned())]
    );

    let entries = validating(&settings, &Validated::default()).unwrap().webhooks.unwrap();
    let [profiles, trust_probe] = entries.try_into().unwrap();
    assert_eq!((&*trust_probe.name, trust_probe.failure_policy.as_deref()), ("trust-probe.pillion.dev", Some("Fail")));
    assert_eq!(trust_probe.client_config.service.unwrap().path.as_deref(), Some("/trust-probe/validate/7"));
    assert_eq!(rule_texts(&trust_probe.rules.unwrap()), [("injectiontrustprobes".to_owned(), "CREATE".to_owned())]);
    assert_eq!((&*profiles.name, profiles.failure_policy.as_deref()), (PROFILES_ENTRY, Some("Ignore")));
    assert_eq!(profiles.client_config.service.unwrap().path.as_deref(), Some("/validate-profiles"));
    let kinds = "clusterinjectionprofiles,injectionprofiles".to_owned();
    assert_eq!(rule_texts(&profiles.rules.unwrap()), [(kinds, "CREATE,UPDATE".to_owned())]);
}

#[test]
fn connectivity_check_denies_nothing() {
    let checked = Settings {
        failure_modes: FailureMode::ALL.to_vec(),
        trust_probe: true,
        trust_probe_epoch: 7,
        validates_profiles: true,
        ..Settings::new("pillion-system", "")
    };
    let unchecked = Settings { checks_connectivity: true, ..checked.clone() };
    let rules = mutating_rules([]);
    let policies = |settings: &Settings| -> Vec<String> {
        let mutating = mutating(settings).webhooks.unwrap().into_iter();
        let validating = validating(settings, &validated(rules.clone())).unwrap().webhooks.unwrap().into_iter();
        let policies = mutating.map(|entry| (entry.name, entry.failure_policy.unwrap()));
        let policies = policies.chain(validating.map(|entry| (entry.name, entry.failure_policy.unwrap())));
        policies.filter(|(_, policy)| policy == "Fail").map(|(name, _)| name).collect()
    };
    let trust_probes = ["trust-probe.pillion.dev"; 2];
    assert_eq!(policies(&unchecked), trust_probes, "only trust probes can fail");
    let required = ["required.pillion.dev", trust_probes[0], "validate-required.pillion.dev", trust_probes[1]];
    assert_eq!(policies(&checked), required);
    let service = |settings: &Settings| {
        let trust_probe = mutating(settings).webhooks.unwrap().pop().unwrap().client_config.service.unwrap();
        (trust_probe.name, trust_probe.path.unwrap())
    };
    assert_eq!(service(&unchecked), ("pillion".to_owned(), "/trust-probe/7".to_owned()));
    assert_eq!(service(&checked), ("pillion-trust-probe".to_owned(), "/trust-probe/7".to_owned()));
    assert!(
        is_connectivity_check(&mutating(&unchecked), "pillion")
            && !is_connectivity_check(&mutating(&checked), "pillion")
    );
}
