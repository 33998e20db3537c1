//! Tests the policies that protect records and revisions from forgery, as helm installs them: for each opt-in label,
//! and in an upgrade of a release that did not have these policies.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldsV1;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use pillion_api::{InjectionProfile, ProfileRevision};
use pillion_testkit::control_plane::client_of;
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, eventually, isolated};
use serde_json::{Value as Json, json};

use crate::chart::helm_ok;
use crate::guardrails::{dry_run, plain};
use crate::rig::SOON;

/// Starts a cluster with the chart and these values.
async fn installed(values: &Json) -> Result<ControlPlane> {
    let control_plane = ControlPlane::start().await?;
    control_plane.create_namespace(NAMESPACE, &[]).await?;
    helm_ok(&control_plane, &["install", "pillion"], Some(values)).await?;
    Ok(control_plane)
}

/// There are opt-in labels of several kinds. The policy `pillion-records` must have one binding for each label key that
/// can require injection, with the matching namespace selector.
#[test]
fn required_labels_have_policy_bindings() {
    isolated(|| async {
        let control_plane = installed(&json!({"optIn": [
            "istio-injection=enabled",
            "example.com/Mesh_v1=a:required",
            "example.com/Mesh_v1=b:required",
            "pillion.dev/injection=always:required",
        ]}))
        .await?;
        let bindings = control_plane.kubectl_ok(&["get", "validatingadmissionpolicybindings", "-o", "json"]).await?;
        let bindings: Json = serde_json::from_str(&bindings)?;
        let found: BTreeSet<_> = bindings["items"]
            .as_array()
            .context("items")?
            .iter()
            .filter(|binding| binding["spec"]["policyName"] == "pillion-records")
            .map(|binding| {
                let labels = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"].as_array();
                let labels = labels.into_iter().flatten().filter(|label| label["key"] != "kubernetes.io/metadata.name");
                let labels: Vec<_> =
                    labels.map(|label| format!("{} {} {}", label["key"], label["operator"], label["values"])).collect();
                format!("{}: {}", binding["metadata"]["name"], labels.join(", "))
            })
            .collect();
        let expected = [
            r#""pillion-records": "pillion.dev/injection" "In" ["required","always"]"#,
            r#""pillion-records-example-com-mesh-v1-75576c1d": "example.com/Mesh_v1" "In" ["a","b"], "pillion.dev/injection" "DoesNotExist" null, "istio-injection" "DoesNotExist" null"#,
        ];
        ensure!(found == expected.map(str::to_owned).into(), "{found:#?}");
        Ok(())
    });
}

/// A role that permits everything in a namespace, and a profile in that namespace.
const EVERYTHING: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: everything, namespace: team-a}
rules: [{apiGroups: ['*'], resources: ['*'], verbs: ['*']}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: everything, namespace: team-a}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: everything}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: tenant}]
---
apiVersion: pillion.dev/v1alpha1
kind: InjectionProfile
metadata: {name: own, namespace: team-a}
spec: {template: {metadata: {labels: {a: b}}}}
";

/// Tries to write a revision of a profile, and the status that publishes the revision, both with a dry run.
async fn writes(client: &Client, revision: &ProfileRevision) -> [kube::Result<()>; 2] {
    let revisions: Api<ProfileRevision> = Api::namespaced(client.clone(), "team-a");
    let profiles: Api<InjectionProfile> = Api::namespaced(client.clone(), "team-a");
    let status = Patch::Merge(json!({"status": {"revision": revision.spec.revision}}));
    let parameters = PatchParams { dry_run: true, ..PatchParams::default() };
    [
        revisions.create(&dry_run(), revision).await.map(drop),
        profiles.patch_status("own", &parameters, &status).await.map(drop),
    ]
}

#[test]
fn only_the_controller_writes_revisions_and_status() {
    isolated(|| async {
        let control_plane = installed(&json!({})).await?;
        control_plane.create_namespace("team-a", &[]).await?;
        control_plane.apply_yaml(EVERYTHING).await?;
        let forged: ProfileRevision = serde_json::from_value(json!({
            "apiVersion": "pillion.dev/v1alpha1", "kind": "ProfileRevision",
            "metadata": {"name": "own-0123456789", "namespace": "team-a"},
            "spec": {"profile": "own", "revision": "0123456789", "bounds": "Parent", "ancestors": ["guard"], "text": "{}"},
        }))?;
        let tenant = client_of(&control_plane.kubeconfig_as("tenant", &[])?).await?;
        eventually(SOON, "the policy is active", async || {
            for written in writes(&tenant, &forged).await {
                let error = written.err().context("the tenant wrote the object")?.to_string();
                ensure!(error.contains("only the controller of Pillion writes"), "{error}");
            }
            Ok(())
        })
        .await?;
        let controller = format!("system:serviceaccount:{NAMESPACE}:pillion-controller");
        let controller = client_of(&control_plane.kubeconfig_as(&controller, &["system:authenticated"])?).await?;
        for written in writes(&controller, &forged).await {
            written.context("the controller")?;
        }
        // Other clients may change the metadata of a revision, except its labels.
        let stored: Api<ProfileRevision> = Api::namespaced(control_plane.client(), "team-a");
        stored.create(&PostParams::default(), &forged).await?;
        let revisions: Api<ProfileRevision> = Api::namespaced(tenant, "team-a");
        for (field, is_allowed) in [("annotations", true), ("labels", false)] {
            let patch = Patch::Merge(json!({"metadata": {field: {"a": "b"}}}));
            let patched = revisions.patch("own-0123456789", &PatchParams::default(), &patch).await;
            ensure!(patched.is_ok() == is_allowed, "{field}: {patched:?}");
        }
        Ok(())
    });
}

/// A forged record for a container that the pod author wrote.
const FORGED: &str =
    r#"{"version":1,"profiles":[{"profile":"sidecar","revision":"0123456789","added":["/spec/containers/app"]}]}"#;

/// Returns whether `managedFields` contains any field owner, and whether it contains an owner of the record.
fn owners(pod: &Pod) -> (bool, bool) {
    let entries = pod.metadata.managed_fields.iter().flatten().filter_map(|entry| entry.fields_v1.as_ref());
    let is_record = |fields: &FieldsV1| fields.0.pointer("/f:metadata/f:annotations/f:pillion.dev~1injected").is_some();
    (entries.clone().next().is_some(), entries.into_iter().any(is_record))
}

#[test]
fn stored_records_cannot_be_forged() {
    isolated(|| async {
        let control_plane = installed(&json!({"crds": {"upgrade": false}})).await?;
        control_plane.kubectl_ok(&["-n", NAMESPACE, "create", "configmap", "pillion"]).await?;
        control_plane.create_namespace("team-a", &[]).await?;
        let pods: Api<Pod> = Api::namespaced(control_plane.client(), "team-a");
        let pod: Pod = serde_json::from_value(plain())?;
        pods.create(&PostParams::default(), &pod).await?;
        let record = |text: &str| Patch::Merge(json!({"metadata": {"annotations": {"pillion.dev/injected": text}}}));
        // A client that updates an object also writes its `managedFields`. So a pod author can remove the owner of a
        // forged record.
        let forged = pods.patch("plain", &PatchParams::default(), &record(FORGED)).await?;
        ensure!(owners(&forged) == (true, true), "{forged:?}");
        let mut stripped = forged;
        let entries = stripped.metadata.managed_fields.iter_mut().flatten();
        for fields in entries.filter_map(|entry| entry.fields_v1.as_mut()) {
            if let Some(metadata) = fields.0.pointer_mut("/f:metadata").and_then(Json::as_object_mut) {
                metadata.remove("f:annotations");
            }
        }
        let stripped = pods.replace("plain", &PostParams::default(), &stripped).await?;
        ensure!(owners(&stripped) == (true, false), "the record has a field owner: {stripped:?}");

        let required = ["label", "namespace", "team-a", "pillion.dev/injection=required"];
        control_plane.kubectl_ok(&required).await?;
        let changed = FORGED.replace("app", "other");
        eventually(SOON, "the policy is active", async || {
            let parameters = PatchParams { dry_run: true, ..PatchParams::default() };
            let error = pods.patch("plain", &parameters, &record(&changed)).await.err();
            let error = error.context("a record was forged")?.to_string();
            ensure!(error.contains("only Pillion may write the annotation"), "{error}");
            Ok(())
        })
        .await?;
        let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
        pods.patch("plain", &PatchParams::default(), &label).await.context("the record is unchanged")?;
        let removed = Patch::Merge(json!({"metadata": {"annotations": {"pillion.dev/injected": null}}}));
        pods.patch("plain", &PatchParams::default(), &removed).await.context("the record is removed")?;
        let again = pods.patch("plain", &PatchParams::default(), &record(FORGED)).await;
        ensure!(again.is_err(), "{again:?}");
        Ok(())
    });
}

/// During this upgrade, older replicas do not write records yet, and the ConfigMap of the kill switch already exists.
#[test]
fn upgrade_that_adds_records_rejects_no_pod() {
    isolated(|| async {
        let control_plane = installed(&json!({"crds": {"upgrade": false}, "guardrails": {"records": false}})).await?;
        control_plane.kubectl_ok(&["-n", NAMESPACE, "create", "configmap", "pillion"]).await?;
        control_plane.create_namespace("team-a", &[("pillion.dev/injection", "required")]).await?;
        let pods: Api<Pod> = Api::namespaced(control_plane.client(), "team-a");
        let pod: Pod = serde_json::from_value(plain())?;
        // The policy `MARKER` becomes active at the same time as the release's policies. Once it rejects a pod, the
        // release's policies are active too.
        let with = json!({"crds": {"upgrade": false}});
        let output = helm_ok(&control_plane, &["upgrade", "pillion"], Some(&with)).await?;
        ensure!(output.contains("the\nnext upgrade enables that"), "{output}");
        let marker = MARKER.replace("NAMESPACE", NAMESPACE);
        control_plane.apply_yaml(&marker).await?;
        let mut with_label = pod.clone();
        with_label.metadata.labels = Some([("marked".to_owned(), "yes".to_owned())].into());
        eventually(SOON, "the new policies are active", async || {
            pods.create(&dry_run(), &pod).await.context("an uninjected pod of an old replica")?;
            let error = pods.create(&dry_run(), &with_label).await.err().context("not active yet")?.to_string();
            ensure!(error.contains("marked pods"), "{error}");
            Ok(())
        })
        .await?;
        pods.create(&dry_run(), &pod).await.context("an uninjected pod of an old replica")?;

        let output = helm_ok(&control_plane, &["upgrade", "pillion"], Some(&with)).await?;
        ensure!(!output.contains("next upgrade enables"), "{output}");
        eventually(SOON, "the next upgrade requires records", async || {
            let error = pods.create(&dry_run(), &pod).await.err().context("a pod was created")?.to_string();
            ensure!(error.contains("has not decided about this pod"), "{error}");
            Ok(())
        })
        .await
    });
}

/// A policy whose parameters have the same kind as the parameters of the release's policies.
const MARKER: &str = "
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: marked}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints:
    resourceRules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]
  validations:
  - expression: \"!has(object.metadata.labels) || !('marked' in object.metadata.labels)\"
    message: marked pods are refused
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: marked}
spec:
  policyName: marked
  paramRef: {name: pillion, namespace: NAMESPACE, parameterNotFoundAction: Allow}
  validationActions: [Deny]
";

/// The label keys differ, but become equal once their dots and slashes are replaced with hyphens for the names of
/// bindings.
#[test]
fn similar_labels_have_separate_bindings() {
    isolated(|| async {
        let control_plane = installed(&json!({"optIn": ["a.b/c=x:required", "a-b/c=x:required"]})).await?;
        let bindings = ["get", "validatingadmissionpolicybindings", "--output=name"];
        let found = control_plane.kubectl_ok(&bindings).await?;
        ensure!(found.lines().filter(|name| name.contains("pillion-records-a-b-c-")).count() == 2, "{found}");
        Ok(())
    });
}
