//! Tests the RBAC permissions of the service accounts, as the real API server reports them. The tests compare the
//! complete lists, so any added permission makes them fail. They also try single operations, and run the programs with
//! the tokens of these accounts.

use std::collections::BTreeSet;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectRulesReview, SelfSubjectRulesReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams, WatchParams};
use pillion_api::webhook_configuration::{self, Settings};
use pillion_control::audit::{Cause, State};
use pillion_testkit::control_plane::client_of;
use pillion_testkit::namespace::replica_address;
use pillion_testkit::registration::{NAMESPACE, SERVER_NAME};
use pillion_testkit::{
    ControlPlane, Replica, ReplicaSpec, TestCa, eventually, isolated, isolated_with_crds, register_service,
    register_webhook,
};

use serde_json::json;

use crate::audit::Audit;
use crate::rig::{NGINX, PATIENCE, bare_pod, install_crds, names};

/// Time limit for the audit to report a finding.
const FOUND_WITHIN: Duration = Duration::from_secs(30);

pub(crate) const WEBHOOK: &str = include_str!("../../../../deploy/rbac/webhook.yaml");
pub(crate) const CONTROLLER: &str = include_str!("../../../../deploy/rbac/controller.yaml");

/// The permissions of the webhook in a tenant's namespace, which come from its `ClusterRole`.
const WEBHOOK_IN_TENANT_NAMESPACE: &str = "\
apps daemonsets: get
apps deployments: get
apps replicasets: get
apps statefulsets: get
batch cronjobs: get
batch jobs: get
namespaces: get list watch
pillion.dev clusterprofilerevisions: get
pillion.dev clusterinjectionprofiles: get list watch
pillion.dev profilerevisions: get
pillion.dev injectionprofiles: list watch
replicationcontrollers: get
serviceaccounts: get
";

/// The additional permissions of the webhook in the release's namespace.
const WEBHOOK_IN_RELEASE_NAMESPACE: &str = "\
configmaps pillion: get list watch
secrets pillion-serving: get list watch
";

const CONTROLLER_IN_TENANT_NAMESPACE: &str = "\
admissionregistration.k8s.io mutatingadmissionpolicies pillion-held: create delete get list patch update watch
admissionregistration.k8s.io mutatingadmissionpolicies pillion-safety-net: delete get
admissionregistration.k8s.io mutatingadmissionpolicybindings pillion-held: create delete get list patch update watch
admissionregistration.k8s.io mutatingadmissionpolicybindings pillion-safety-net: delete get
admissionregistration.k8s.io mutatingwebhookconfigurations pillion: delete get list update watch
admissionregistration.k8s.io mutatingwebhookconfigurations: create
admissionregistration.k8s.io validatingadmissionpolicies pillion-held: create delete get list patch update watch
admissionregistration.k8s.io validatingadmissionpolicybindings pillion-held: create delete get list patch update watch
admissionregistration.k8s.io validatingwebhookconfigurations pillion: delete get list update watch
admissionregistration.k8s.io validatingwebhookconfigurations: create
apps daemonsets: get
apps deployments: get
apps replicasets: get
apps statefulsets: get
batch cronjobs: get
batch jobs: get
events.k8s.io events: create patch
namespaces: get list watch
pillion.dev clusterprofilerevisions: create delete get list watch
pillion.dev clusterinjectionprofiles/status: patch
pillion.dev clusterinjectionprofiles: get list watch
pillion.dev injectiontrustprobes: create
pillion.dev profilerevisions: create delete get list watch
pillion.dev injectionprofiles/status: patch
pillion.dev injectionprofiles: get list watch
pods: delete get list patch watch
replicationcontrollers: get
serviceaccounts: get
";

const CONTROLLER_IN_RELEASE_NAMESPACE: &str = "\
configmaps pillion: get list watch
configmaps: create
coordination.k8s.io leases pillion-controller: get list update watch
coordination.k8s.io leases: create
discovery.k8s.io endpointslices pillion-trust-probe: create delete patch
discovery.k8s.io endpointslices: list
podtemplates: create
secrets pillion-ca: get list update watch
secrets pillion-serving: get list update watch
secrets: create
services pillion: get
";

/// The additional permissions of the controller in `default` and in `kube-system`, which contain the endpoints and
/// Leases of the API servers.
const CONTROLLER_IN_DEFAULT: &str = "discovery.k8s.io endpointslices: list\n";
const CONTROLLER_IN_SYSTEM: &str = "coordination.k8s.io leases: list\n";

/// An account, verb, resource (`group/resource`), namespace (empty: all namespaces) and name, and whether the operation
/// is permitted.
type Case = (&'static str, &'static str, &'static str, &'static str, &'static str, bool);

const CASES: &[Case] = &[
    ("webhook", "get", "/secrets", NAMESPACE, "pillion-serving", true),
    ("webhook", "watch", "/secrets", NAMESPACE, "pillion-serving", true),
    ("webhook", "get", "/secrets", NAMESPACE, "pillion-ca", false),
    ("webhook", "watch", "/secrets", NAMESPACE, "pillion-ca", false),
    ("webhook", "list", "/secrets", NAMESPACE, "", false),
    ("webhook", "list", "/secrets", "", "", false),
    ("webhook", "get", "/secrets", "team-a", "pillion-serving", false),
    ("webhook", "update", "/secrets", NAMESPACE, "pillion-serving", false),
    ("webhook", "get", "/configmaps", NAMESPACE, "pillion", true),
    ("webhook", "update", "/configmaps", NAMESPACE, "pillion", false),
    ("webhook", "get", "/configmaps", NAMESPACE, "another", false),
    ("webhook", "list", "/pods", "", "", false),
    ("webhook", "create", "/pods", "team-a", "", false),
    ("webhook", "create", "/serviceaccounts/token", NAMESPACE, "pillion-controller", false),
    ("webhook", "list", "/serviceaccounts", "team-a", "", false),
    ("webhook", "get", "coordination.k8s.io/leases", NAMESPACE, "pillion-controller", false),
    ("webhook", "get", "admissionregistration.k8s.io/mutatingwebhookconfigurations", "", "pillion", false),
    ("webhook", "patch", "admissionregistration.k8s.io/mutatingwebhookconfigurations", "", "pillion", false),
    ("webhook", "patch", "pillion.dev/injectionprofiles/status", "team-a", "a", false),
    ("webhook", "create", "pillion.dev/clusterprofilerevisions", "", "", false),
    ("controller", "get", "/secrets", NAMESPACE, "pillion-ca", true),
    ("controller", "update", "/secrets", NAMESPACE, "pillion-serving", true),
    ("controller", "create", "/secrets", NAMESPACE, "", true),
    ("controller", "create", "/secrets", "team-a", "", false),
    ("controller", "create", "/podtemplates", NAMESPACE, "", true),
    ("controller", "create", "/podtemplates", "team-a", "", false),
    ("controller", "get", "/secrets", NAMESPACE, "another", false),
    ("controller", "list", "/secrets", NAMESPACE, "", false),
    ("controller", "delete", "/secrets", NAMESPACE, "pillion-ca", false),
    ("controller", "update", "/configmaps", NAMESPACE, "pillion", false),
    ("controller", "update", "coordination.k8s.io/leases", NAMESPACE, "pillion-controller", true),
    ("controller", "update", "coordination.k8s.io/leases", "kube-system", "kube-scheduler", false),
    ("controller", "update", "admissionregistration.k8s.io/mutatingwebhookconfigurations", "", "pillion", true),
    ("controller", "update", "admissionregistration.k8s.io/mutatingwebhookconfigurations", "", "another", false),
    ("controller", "list", "admissionregistration.k8s.io/mutatingwebhookconfigurations", "", "", false),
    ("controller", "create", "admissionregistration.k8s.io/validatingadmissionpolicies", "", "another", false),
    ("controller", "update", "pillion.dev/clusterinjectionprofiles", "", "a", false),
    // When a profile is stored, the webhook reads its parent to validate the profile.
    ("webhook", "get", "pillion.dev/clusterinjectionprofiles", "", "a", true),
    ("webhook", "get", "pillion.dev/injectionprofiles", "team-a", "a", false),
    ("controller", "patch", "pillion.dev/clusterinjectionprofiles/status", "", "a", true),
    ("controller", "update", "pillion.dev/clusterprofilerevisions", "", "a", false),
    ("controller", "list", "/pods", "", "", true),
    ("controller", "create", "/pods", "team-a", "", false),
    ("controller", "create", "/pods/exec", "team-a", "a", false),
    // The next four operations are permitted only with the chart's value rollout.inPlace, which tests/chart.rs checks.
    ("controller", "create", "/pods", NAMESPACE, "", false),
    ("controller", "patch", "/pods/resize", "team-a", "a", false),
    ("controller", "list", "policy/poddisruptionbudgets", "", "", false),
    ("controller", "get", "/nodes", "", "node-1", false),
    ("controller", "list", "discovery.k8s.io/endpointslices", "default", "", true),
    ("controller", "list", "coordination.k8s.io/leases", "kube-system", "", true),
    ("controller", "patch", "discovery.k8s.io/endpointslices", NAMESPACE, "pillion-trust-probe", true),
    ("controller", "patch", "discovery.k8s.io/endpointslices", NAMESPACE, "pillion-abcde", false),
    ("controller", "create", "discovery.k8s.io/endpointslices", NAMESPACE, "", false),
    ("controller", "create", "/configmaps", "team-a", "", false),
    ("controller", "list", "discovery.k8s.io/endpointslices", "team-a", "", false),
    ("controller", "delete", "apps/deployments", "team-a", "a", false),
    ("controller", "patch", "/namespaces", "", "team-a", false),
    ("controller", "bind", "rbac.authorization.k8s.io/clusterroles", "", "cluster-admin", false),
    ("controller", "impersonate", "/users", "", "admin", false),
];

/// Starts a control plane with the roles and two namespaces.
async fn control_plane() -> Result<ControlPlane> {
    let control_plane = ControlPlane::start().await?;
    for namespace in [NAMESPACE, "team-a"] {
        let failure_mode = ("pillion.dev/injection", "enabled");
        let labels: &[_] = if namespace == NAMESPACE { &[] } else { &[failure_mode] };
        control_plane.create_namespace(namespace, labels).await?;
    }
    for yaml in [WEBHOOK, CONTROLLER] {
        control_plane.apply_yaml(yaml).await?;
    }
    Ok(control_plane)
}

/// Returns the permissions that an account's token has in a namespace, except those that every account has.
async fn rules(control_plane: &ControlPlane, account: &str, namespace: &str) -> Result<BTreeSet<String>> {
    let kubeconfig = kubeconfig(control_plane, account).await?;
    let of = async |kubeconfig| {
        let api: Api<SelfSubjectRulesReview> = Api::all(client_of(kubeconfig).await?);
        let spec = SelfSubjectRulesReviewSpec { namespace: Some(namespace.to_owned()) };
        let review = SelfSubjectRulesReview { spec, ..SelfSubjectRulesReview::default() };
        let status = api.create(&PostParams::default(), &review).await?.status.context("rules")?;
        ensure!(!status.incomplete, "the rules are incomplete: {:?}", status.evaluation_error);
        let mut lines = BTreeSet::new();
        for rule in status.resource_rules {
            let one =
                |all: Option<Vec<String>>| all.filter(|all| !all.is_empty()).unwrap_or_else(|| vec![String::new()]);
            let mut verbs = rule.verbs;
            verbs.sort();
            for group in one(rule.api_groups) {
                for resource in one(rule.resources.clone()) {
                    for name in one(rule.resource_names.clone()) {
                        let what = [&*group, &*resource, &*name].into_iter().filter(|text| !text.is_empty());
                        lines.insert((what.collect::<Vec<_>>().join(" "), verbs.clone()));
                    }
                }
            }
        }
        anyhow::Ok(lines)
    };
    let everybody = control_plane.kubeconfig_for_service_account("default", "nobody-in-particular").await?;
    let everybody = of(&everybody).await?;
    let own = of(&kubeconfig).await?;
    // Several rules may name the same resource.
    let mut merged = std::collections::BTreeMap::<String, BTreeSet<String>>::new();
    for (what, verbs) in own.difference(&everybody) {
        merged.entry(what.clone()).or_default().extend(verbs.iter().cloned());
    }
    let line = |(what, verbs): (String, BTreeSet<String>)| {
        format!("{what}: {}", verbs.into_iter().collect::<Vec<_>>().join(" "))
    };
    Ok(merged.into_iter().map(line).collect())
}

fn lines(of: &[&str]) -> BTreeSet<String> {
    of.iter().flat_map(|text| text.lines()).map(str::to_owned).collect()
}

#[test]
fn service_accounts_have_exactly_listed_permissions() {
    isolated(|| async {
        let control_plane = control_plane().await?;
        for (account, namespace, expected) in [
            ("webhook", "team-a", &[WEBHOOK_IN_TENANT_NAMESPACE][..]),
            ("webhook", "default", &[WEBHOOK_IN_TENANT_NAMESPACE]),
            ("webhook", NAMESPACE, &[WEBHOOK_IN_TENANT_NAMESPACE, WEBHOOK_IN_RELEASE_NAMESPACE]),
            ("controller", "team-a", &[CONTROLLER_IN_TENANT_NAMESPACE]),
            ("controller", "default", &[CONTROLLER_IN_TENANT_NAMESPACE, CONTROLLER_IN_DEFAULT]),
            ("controller", "kube-system", &[CONTROLLER_IN_TENANT_NAMESPACE, CONTROLLER_IN_SYSTEM]),
            ("controller", NAMESPACE, &[CONTROLLER_IN_TENANT_NAMESPACE, CONTROLLER_IN_RELEASE_NAMESPACE]),
        ] {
            let expected = lines(expected);
            eventually(PATIENCE, "the roles are active", async || {
                let found = rules(&control_plane, account, namespace).await?;
                let more: Vec<_> = found.difference(&expected).collect();
                let less: Vec<_> = expected.difference(&found).collect();
                ensure!(more.is_empty() && less.is_empty(), "{account} in {namespace}: more {more:#?}, less {less:#?}");
                Ok(())
            })
            .await?;
        }
        let reviews: Api<SubjectAccessReview> = Api::all(control_plane.client());
        for (account, verb, resource, namespace, name, may) in CASES {
            let allowed = may_do(&reviews, account, verb, resource, namespace, name).await?;
            ensure!(allowed == *may, "{account}: {verb} {resource} {namespace}/{name}: {allowed}");
        }
        Ok(())
    });
}

async fn may_do(
    reviews: &Api<SubjectAccessReview>,
    account: &str,
    verb: &str,
    resource: &str,
    namespace: &str,
    name: &str,
) -> Result<bool> {
    let mut parts = resource.split('/').map(str::to_owned);
    let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let attributes = ResourceAttributes {
        verb: given(verb),
        group: parts.next(),
        resource: parts.next(),
        subresource: parts.next(),
        namespace: given(namespace),
        name: given(name),
        ..ResourceAttributes::default()
    };
    let spec = SubjectAccessReviewSpec {
        user: Some(format!("system:serviceaccount:{NAMESPACE}:pillion-{account}")),
        groups: Some(
            ["system:serviceaccounts", &format!("system:serviceaccounts:{NAMESPACE}"), "system:authenticated"]
                .map(str::to_owned)
                .into(),
        ),
        resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    };
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    Ok(reviews.create(&PostParams::default(), &review).await?.status.context("a response")?.allowed)
}

/// Returns the lines of a log that report a missing permission.
pub(crate) fn refusals(log: &str) -> Vec<&str> {
    let words = ["forbidden", "Forbidden", "needs a role", "cannot list", "cannot watch", "cannot get"];
    log.lines().filter(|line| words.iter().any(|word| line.contains(word))).collect()
}

/// Returns the kubeconfig of the account `webhook` or `controller`, once its roles are active. The API server receives
/// roles through its watch, and a program that starts earlier would log missing permissions.
pub(crate) async fn kubeconfig(control_plane: &ControlPlane, account: &str) -> Result<PathBuf> {
    let reviews: Api<SubjectAccessReview> = Api::all(control_plane.client());
    let may = |case: &&Case| case.0 == account && case.5;
    eventually(PATIENCE, "the roles are active", async || {
        for (account, verb, resource, namespace, name, _) in CASES.iter().filter(may) {
            let allowed = may_do(&reviews, account, verb, resource, namespace, name).await?;
            ensure!(allowed, "{account} may not {verb} {resource} {namespace}/{name} yet");
        }
        Ok(())
    })
    .await?;
    control_plane.kubeconfig_for_service_account(NAMESPACE, &format!("pillion-{account}")).await
}

/// A profile that looks up the pod's service account and its owners.
const LOOKUP_PROFILE: &str = "
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: curious}
spec:
  activation: Always
  failurePolicy: Fail
  variables:
  - {name: seen, expression: \"serviceAccount.?metadata.?name.orValue('none') + ' ' + owner.?name.orValue('none')\"}
  matchConditions: [{name: looks, expression: \"variables.seen != ''\"}]
  template: {metadata: {annotations: {example.com/seen: '${variables.seen}'}}}
";

#[test]
fn replica_injects_with_own_service_account() {
    isolated_with_crds(|| async {
        let control_plane = control_plane().await?;
        install_crds(&control_plane).await?;
        control_plane.apply_yaml(NGINX).await?;
        control_plane.apply_yaml(LOOKUP_PROFILE).await?;

        let kubeconfig = kubeconfig(&control_plane, "webhook").await?;
        let ca = TestCa::new()?;
        let tls = ca.serving_files(control_plane.directory(), "serving", &[SERVER_NAME])?;
        let mut spec = ReplicaSpec::new(env!("CARGO_BIN_EXE_pillion"), kubeconfig, tls);
        spec.args = ["--drain-minimum", "0"].map(str::to_owned).into();
        let replica = Replica::start(&spec, replica_address(1)).await?;
        register_service(&control_plane.client(), &[replica.address()]).await?;
        let configuration = webhook_configuration::mutating(&Settings::new(NAMESPACE, ca.bundle_pem()));
        register_webhook(&control_plane.client(), &configuration).await?;

        let pods: Api<Pod> = Api::namespaced(control_plane.client(), "team-a");
        let mut pod = bare_pod("probe");
        pod["spec"]["serviceAccountName"] = "default".into();
        pod["metadata"]["ownerReferences"] = serde_json::json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "backup",
            "controller": true, "uid": "029dc23e-3de8-41af-ab3c-a95b34b82bf3"}]);
        let parameters = PostParams { dry_run: true, ..PostParams::default() };
        eventually(PATIENCE, "pods are injected", async || {
            let created = pods.create(&parameters, &serde_json::from_value(pod.clone())?).await?;
            let created = serde_json::to_value(created)?;
            ensure!(names(&created).contains(&"sidecar-nginx".to_owned()), "{created}");
            ensure!(created["metadata"]["annotations"]["example.com/seen"] == "none backup", "{created}");
            Ok(())
        })
        .await?;
        let log = replica.log_text()?;
        ensure!(log.contains("all profiles and namespaces are listed"), "{log}");
        ensure!(refusals(&log).is_empty(), "{:#?}", refusals(&log));
        Ok(())
    });
}

/// Returns whether the API server rejected the request with status 403.
fn is_forbidden<T>(answer: &kube::Result<T>) -> bool {
    matches!(answer, Err(kube::Error::Api(status)) if status.code == 403)
}

#[test]
fn resource_names_limit_lists_watches_and_applies() {
    isolated(|| async {
        let control_plane = control_plane().await?;
        let webhook = client_of(&kubeconfig(&control_plane, "webhook").await?).await?;
        let secrets: Api<Secret> = Api::namespaced(webhook, NAMESPACE);
        eventually(PATIENCE, "the roles are active", async || {
            secrets.list(&ListParams::default().fields("metadata.name=pillion-serving")).await?;
            Ok(())
        })
        .await?;
        ensure!(is_forbidden(&secrets.list(&ListParams::default()).await), "all Secrets");
        ensure!(is_forbidden(&secrets.list(&ListParams::default().fields("metadata.name=pillion-ca")).await));
        let watched = secrets.watch(&WatchParams::default().fields("metadata.name=pillion-serving"), "0").await;
        ensure!(watched.is_ok(), "a watch by name is rejected");
        ensure!(
            is_forbidden(&secrets.watch(&WatchParams::default(), "0").await.map(|_| ())),
            "a watch of all Secrets is permitted"
        );

        // For server-side apply, RBAC checks the object's name. For a POST request, it cannot.
        let controller = client_of(&kubeconfig(&control_plane, "controller").await?).await?;
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(controller);
        let binding = |name: &str| -> Result<ValidatingAdmissionPolicyBinding> {
            let spec = json!({"policyName": "pillion-held", "validationActions": ["Audit"]});
            let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name},
                "kind": "ValidatingAdmissionPolicyBinding", "spec": spec});
            Ok(serde_json::from_value(object)?)
        };
        let apply = PatchParams::apply("pillion-controller");
        let posted = bindings.create(&PostParams::default(), &binding("pillion-held")?).await;
        ensure!(is_forbidden(&posted), "{posted:?}");
        let other = bindings.patch("other", &apply, &Patch::Apply(binding("other")?)).await;
        ensure!(is_forbidden(&other), "{other:?}");
        bindings.patch("pillion-held", &apply, &Patch::Apply(binding("pillion-held")?)).await?;
        Ok(())
    });
}

#[test]
fn audit_works_with_controllers_service_account() {
    isolated_with_crds(|| async {
        let control_plane = control_plane().await?;
        install_crds(&control_plane).await?;
        control_plane.apply_yaml(NGINX).await?;
        control_plane.apply_yaml(LOOKUP_PROFILE).await?;
        let audit = Audit::start(client_of(&kubeconfig(&control_plane, "controller").await?).await?)?;
        let pods: Api<Pod> = Api::namespaced(control_plane.client(), "team-a");
        pods.create(&PostParams::default(), &serde_json::from_value(bare_pod("lost"))?).await?;
        eventually(FOUND_WITHIN, "the finding includes the result of a lookup", async || {
            let report = audit.audited.borrow().report.clone();
            let found: Vec<_> = report.findings.iter().map(|finding| (&*finding.profile, finding.state)).collect();
            ensure!(
                report.is_complete && found == [("curious", State::Missing), ("nginx", State::Missing)],
                "{report:?}"
            );
            // The controller could read namespaces, profiles and the configuration, so it knows the cause of each
            // finding.
            ensure!(report.findings.iter().all(|finding| finding.cause != Cause::Unknown), "{report:?}");
            ensure!(report.asked_namespaces.is_empty() && report.asked_profiles.is_empty(), "{report:?}");
            Ok(())
        })
        .await
    });
}
