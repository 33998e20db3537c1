//! Models which entries of webhook configurations the API server calls when a pod is created, from their rules,
//! selectors and conditions. The engine evaluates the conditions like those of profiles. Conditions that only the API
//! server can evaluate (`authorizer`) are reported as unknown.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector as Text;
use pillion_api::names::FailureMode;
use pillion_api::selector::{LabelSelector, Operator, Requirement};
use pillion_control::Release;
use pillion_engine::decision::{ProfileOutcome, Reason};
use pillion_engine::profile::{ProfileName, compile};
use pillion_engine::review::{Endpoint, Facts, Review};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use serde::Serialize;
use serde_json::{Value, json};

use crate::trial;

/// The API server's treatment of a webhook entry for a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EntryView {
    /// The name of the entry's webhook configuration.
    pub(crate) configuration: String,
    pub(crate) name: String,
    /// Whether the entry belongs to Pillion.
    pub(crate) ours: bool,
    pub(crate) outcome: CallOutcome,
    /// The human-readable reason for the outcome.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) detail: String,
    pub(crate) failure_policy: String,
    /// The failure mode of the entry, if it belongs to Pillion.
    #[serde(skip)]
    pub(crate) failure_mode: Option<FailureMode>,
}

/// Whether the API server calls an entry, or why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum CallOutcome {
    Called,
    NamespaceSelector,
    ObjectSelector,
    ConditionFalse,
    ConditionFailed,
    /// A condition cannot be evaluated here.
    Unknown,
}

/// The creation request for which entries are evaluated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryRequest<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) namespace_labels: &'a BTreeMap<String, String>,
    /// The pod as its author wrote it.
    pub(crate) pod: &'a Value,
    pub(crate) user: &'a Value,
    /// Whether the creating user is unknown, so that `user` is a placeholder.
    pub(crate) is_user_guessed: bool,
    pub(crate) is_dry_run: bool,
}

/// Returns all entries for the creation of pods, in the API server's calling order.
pub(crate) fn entries(
    configurations: &[MutatingWebhookConfiguration],
    release: &Release,
    about: EntryRequest<'_>,
) -> Vec<EntryView> {
    let mut configurations: Vec<_> = configurations.iter().collect();
    configurations.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
    let all = configurations.into_iter().flat_map(|configuration| {
        let name = configuration.metadata.name.clone().unwrap_or_default();
        configuration.webhooks.iter().flatten().map(move |entry| (name.clone(), entry))
    });
    let mut views: Vec<_> = all
        .filter(|(_, entry)| entry.rules.iter().flatten().any(creates_pods))
        .map(|(configuration, entry)| {
            let failure_mode = failure_mode(entry, release);
            let (outcome, detail) = outcome(entry, about);
            EntryView {
                configuration,
                name: entry.name.clone(),
                ours: failure_mode.is_some(),
                outcome,
                detail,
                failure_policy: entry.failure_policy.clone().unwrap_or_else(|| "Fail".to_owned()),
                failure_mode,
            }
        })
        .collect();
    let called = views.iter().find(|view| view.outcome == CallOutcome::Called).and_then(|view| view.failure_mode);
    for view in views.iter_mut().filter(|view| view.outcome == CallOutcome::NamespaceSelector) {
        if let (Some(own), Some(called)) = (view.failure_mode, called) {
            let (own, called) = (own.label_value(), called.label_value());
            view.detail = format!("this entry serves `{own}` namespaces; this one is `{called}`");
        }
    }
    views
}

/// Whether a rule covers the creation of pods.
pub(crate) fn creates_pods(rule: &RuleWithOperations) -> bool {
    let has = |list: &Option<Vec<String>>, word: &str| list.iter().flatten().any(|one| one == "*" || one == word);
    let is_pods = |resource: &String| ["pods", "*", "*/*"].contains(&&**resource);
    has(&rule.api_groups, "")
        && has(&rule.api_versions, "v1")
        && has(&rule.operations, "CREATE")
        && rule.resources.iter().flatten().any(is_pods)
        && rule.scope.as_deref().is_none_or(|scope| scope != "Cluster")
}

/// Whether a selector matches a namespace with these labels.
pub(crate) fn selects(selector: Option<&Text>, labels: &BTreeMap<String, String>) -> bool {
    failing(selector, &|key| labels.get(key).map(String::as_str)).is_none()
}

/// Returns the failure mode of an entry that calls the release's Service. `None` for other entries, and for paths
/// without a failure mode.
fn failure_mode(entry: &MutatingWebhook, release: &Release) -> Option<FailureMode> {
    let service = entry.client_config.service.as_ref()?;
    let is_ours = service.namespace == release.namespace() && service.name == release.service();
    let path = service.path.as_deref().filter(|_| is_ours)?;
    FailureMode::ALL.into_iter().find(|failure_mode| failure_mode.path() == path)
}

fn outcome(entry: &MutatingWebhook, about: EntryRequest<'_>) -> (CallOutcome, String) {
    let labels = about.pod.pointer("/metadata/labels");
    let of_pod = |key: &str| labels?.get(key)?.as_str();
    let of_namespace = |key: &str| about.namespace_labels.get(key).map(String::as_str);
    if let Some(failing) = failing(entry.namespace_selector.as_ref(), &of_namespace) {
        return (CallOutcome::NamespaceSelector, failing);
    }
    if let Some(failing) = failing(entry.object_selector.as_ref(), &of_pod) {
        return (CallOutcome::ObjectSelector, failing);
    }
    let conditions = entry.match_conditions.as_deref().unwrap_or_default();
    // If the creating user is unknown, the conditions that do not read the user can still be evaluated.
    let (of_user, others): (Vec<_>, Vec<_>) =
        conditions.iter().partition(|one| about.is_user_guessed && one.expression.contains("userInfo"));
    let held = if others.is_empty() { (CallOutcome::Called, String::new()) } else { conditions_hold(&others, about) };
    match (of_user.first(), held) {
        (Some(condition), (CallOutcome::Called, _)) => {
            let detail = format!("condition {} depends on the creator of the pod, who is unknown", condition.name);
            (CallOutcome::Unknown, detail)
        }
        (_, held) => held,
    }
}

/// Returns a description of the selector's requirements that are not met; `None` if all are met, or if there is no
/// selector.
fn failing<'l>(selector: Option<&Text>, label: &dyn Fn(&str) -> Option<&'l str>) -> Option<String> {
    let selector: LabelSelector = serde_json::from_value(serde_json::to_value(selector?).ok()?).ok()?;
    let mut mismatches = Vec::new();
    for (key, value) in &selector.match_labels {
        let requirement = Requirement { key: key.clone(), operator: Operator::In, values: vec![value.clone()] };
        mismatches.extend(mismatch(&requirement, label));
    }
    mismatches.extend(selector.match_expressions.iter().filter_map(|requirement| mismatch(requirement, label)));
    (!mismatches.is_empty()).then(|| mismatches.join("; "))
}

fn mismatch<'l>(requirement: &Requirement, label: &dyn Fn(&str) -> Option<&'l str>) -> Option<String> {
    let alone = LabelSelector { match_expressions: vec![requirement.clone()], ..LabelSelector::default() };
    if alone.matches(label) {
        return None;
    }
    let Requirement { key, operator, values } = requirement;
    let mut text = match operator {
        Operator::In => format!("label {key} must be {}", values.join(" or ")),
        Operator::NotIn => format!("label {key} must not be {}", values.join(" or ")),
        Operator::Exists => format!("label {key} must be set"),
        Operator::DoesNotExist => format!("label {key} must not be set"),
    };
    // Writing to a string never fails.
    let _ = match label(key) {
        Some(value) => write!(text, ", but is {value:?}"),
        None => write!(text, ", but is not set"),
    };
    Some(text)
}

/// Evaluates the conditions of an entry by compiling them as match conditions of an otherwise empty profile.
fn conditions_hold(conditions: &[&MatchCondition], about: EntryRequest<'_>) -> (CallOutcome, String) {
    let unknown = |why: String| (CallOutcome::Unknown, why);
    let spec = json!({
        "activation": "Always",
        "matchConditions": conditions.iter().map(|one| json!({
            "name": one.name, "expression": one.expression,
        })).collect::<Vec<_>>(),
        "template": {"metadata": {"annotations": {"example.com/asked": "true"}}},
    });
    let Ok(spec) = serde_json::from_value(spec) else { return unknown("its conditions cannot be read".to_owned()) };
    let profile = match compile(&ProfileName::cluster("condition"), &spec) {
        Ok(profile) => profile,
        Err(diagnostics) => {
            let why = diagnostics.first().map(|one| one.message.clone()).unwrap_or_default();
            return unknown(format!("a condition cannot be evaluated here: {why}"));
        }
    };
    let snapshot = Snapshot::new(ProfileSet::new([Arc::new(profile)]));
    let none: [(&str, &str); 0] = [];
    let labels = about.namespace_labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let facts = Facts { namespace: Some(Arc::new(Namespace::new(labels, none))), ..Facts::default() };
    let review = if about.is_dry_run { trial::review } else { trial::of_creation };
    let review = review(about.pod, about.namespace, about.user);
    let body = serde_json::to_vec(&review).unwrap_or_default();
    let endpoint = Endpoint::FailureMode(FailureMode::Enabled);
    let Ok(review) = Review::parse(&body) else { return unknown("the pod cannot be read".to_owned()) };
    let Ok(decided) = review.decide(endpoint, &snapshot, &facts) else {
        return unknown("the conditions cannot be evaluated".to_owned());
    };
    let Some(decision) = decided.decision.profiles.first() else {
        return unknown(format!("its conditions are not evaluated: {}", decided.decision.reason.sentence()));
    };
    let detail = decision.detail.as_deref().unwrap_or_default().to_owned();
    match (decision.outcome, decision.reason) {
        (_, Reason::MatchCondition) => (CallOutcome::ConditionFalse, format!("condition {detail} is false")),
        (ProfileOutcome::Skipped | ProfileOutcome::Denied, _) => (CallOutcome::ConditionFailed, detail),
        _ => (CallOutcome::Called, String::new()),
    }
}

#[cfg(test)]
mod tests {
    use pillion_api::webhook_configuration::{Settings, mutating};

    use super::*;

    fn view(labels: &[(&str, &str)], pod: &Value, change: impl FnOnce(&mut MutatingWebhook)) -> (CallOutcome, String) {
        let release = Release::new("pillion", "pillion-system", "cluster.local").unwrap();
        let mut configuration = mutating(&Settings::new("pillion-system", "ca"));
        change(&mut configuration.webhooks.as_mut().unwrap()[0]);
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let user = json!({"username": "u"});
        let about = EntryRequest {
            namespace: "shop",
            namespace_labels: &labels,
            pod,
            user: &user,
            is_user_guessed: false,
            is_dry_run: false,
        };
        let views = entries(&[configuration], &release, about);
        assert!(views.iter().all(|view| view.ours), "{views:?}");
        (views[0].outcome, views[0].detail.clone())
    }

    fn pod(labels: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": labels},
            "spec": {"containers": [{"name": "a", "image": "a"}]}})
    }

    #[test]
    fn failing_selector_requirements_are_described() {
        let enabled = [("pillion.dev/injection", "enabled"), ("kubernetes.io/metadata.name", "shop")];
        assert_eq!(view(&enabled, &pod(&json!({})), |_| {}), (CallOutcome::Called, String::new()));
        let (outcome, detail) = view(&[], &pod(&json!({})), |_| {});
        assert_eq!(outcome, CallOutcome::NamespaceSelector);
        assert_eq!(detail, "label pillion.dev/injection must be enabled, but is not set");
        let (outcome, detail) = view(&enabled, &pod(&json!({"pillion.dev/inject": "false"})), |_| {});
        assert_eq!(outcome, CallOutcome::ObjectSelector);
        assert_eq!(detail, "label pillion.dev/inject must not be false, but is \"false\"");
    }

    #[test]
    fn entries_of_other_failure_modes_name_both() {
        let labels = BTreeMap::from([("pillion.dev/injection".to_owned(), "enabled".to_owned())]);
        let (pod, user) = (pod(&json!({})), json!({"username": "u"}));
        let about = EntryRequest {
            namespace: "shop",
            namespace_labels: &labels,
            pod: &pod,
            user: &user,
            is_user_guessed: false,
            is_dry_run: false,
        };
        let release = Release::new("pillion", "pillion-system", "cluster.local").unwrap();
        let views = entries(&[mutating(&Settings::new("pillion-system", "ca"))], &release, about);
        let required = views.iter().find(|view| view.failure_mode == Some(FailureMode::Required)).unwrap();
        assert_eq!(required.detail, "this entry serves `required` namespaces; this one is `enabled`");
    }

    #[test]
    fn match_conditions_are_evaluated_or_unknown() {
        let enabled = [("pillion.dev/injection", "enabled")];
        let with = |expression: &str| {
            let condition = MatchCondition { name: "mine".to_owned(), expression: expression.to_owned() };
            view(&enabled, &pod(&json!({})), |entry| entry.match_conditions = Some(vec![condition])).0
        };
        assert_eq!(with("object.spec.containers.size() == 1"), CallOutcome::Called);
        assert_eq!(with("object.spec.containers.size() == 2"), CallOutcome::ConditionFalse);
        assert_eq!(with("request.userInfo.username == 'u'"), CallOutcome::Called);
        assert_eq!(with("!(request.dryRun)"), CallOutcome::Called);
        assert_eq!(with("object.metadata.labels['none'] == 'x'"), CallOutcome::ConditionFailed);
        assert_eq!(with("authorizer.path('/x').check('get').allowed()"), CallOutcome::Unknown);
    }

    #[test]
    fn user_condition_is_unknown_without_known_creator() {
        let outcome = |expressions: &[&str], is_user_guessed: bool| {
            let condition =
                |expression: &&str| MatchCondition { name: "mine".to_owned(), expression: (*expression).to_owned() };
            let mut configuration = mutating(&Settings::new("pillion-system", "ca"));
            let entry = &mut configuration.webhooks.as_mut().unwrap()[0];
            entry.match_conditions = Some(expressions.iter().map(condition).collect());
            let labels = BTreeMap::from([("pillion.dev/injection".to_owned(), "enabled".to_owned())]);
            let (pod, user) = (pod(&json!({})), json!({"username": "u", "groups": ["system:authenticated"]}));
            let about = EntryRequest {
                namespace: "shop",
                namespace_labels: &labels,
                pod: &pod,
                user: &user,
                is_user_guessed,
                is_dry_run: false,
            };
            let release = Release::new("pillion", "pillion-system", "cluster.local").unwrap();
            entries(&[configuration], &release, about)[0].outcome
        };
        let nodes = "!('system:nodes' in request.userInfo.groups)";
        assert_eq!(outcome(&[nodes], false), CallOutcome::Called);
        assert_eq!(outcome(&[nodes], true), CallOutcome::Unknown);
        assert_eq!(outcome(&["request.userInfo.username == 'jane'"], true), CallOutcome::Unknown);
        assert_eq!(outcome(&["request.userInfo.username == 'jane'"], false), CallOutcome::ConditionFalse);
        assert_eq!(outcome(&[nodes, "object.spec.containers.size() == 2"], true), CallOutcome::ConditionFalse);
    }

    #[test]
    fn webhook_entries_for_other_kinds_are_skipped() {
        let rule = |resources: &[&str], operations: &[&str]| RuleWithOperations {
            api_groups: Some(vec![String::new()]),
            api_versions: Some(vec!["v1".to_owned()]),
            operations: Some(operations.iter().map(|&word| word.to_owned()).collect()),
            resources: Some(resources.iter().map(|&word| word.to_owned()).collect()),
            scope: None,
        };
        assert!(creates_pods(&rule(&["pods"], &["CREATE"])) && creates_pods(&rule(&["*"], &["*"])));
        assert!(!creates_pods(&rule(&["pods/status"], &["CREATE"])) && !creates_pods(&rule(&["pods"], &["UPDATE"])));
    }
}
