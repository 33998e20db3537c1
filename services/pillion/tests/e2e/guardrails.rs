//! Tests the guardrails of the chart on a real API server. A tenant with the role `admin` writes a secret into a
//! profile, and a pod author creates pods while no replica reviews them.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingAdmissionPolicy};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use pillion_testkit::control_plane::client_of;
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, ControllerManager, eventually, isolated};
use serde_json::{Value as Json, json};

use crate::chart::{helm_ok, run, values};
use crate::rig::{PATIENCE, Rig, SOON, bare_pod, names};

/// The Kubernetes controllers that aggregate the role `admin`, and that check the types of policies.
const CONTROLLERS: &str = "clusterrole-aggregation-controller,validatingadmissionpolicy-status-controller";

/// The start of the message with which a profile with a secret is rejected. The name of the field with the secret
/// follows.
const REJECTION: &str = "every reader of profiles can see this, and";
/// The end of the message, which suggests the remedy.
const REMEDY: &str = "that with valueFrom.secretKeyRef";

pub(crate) fn dry_run() -> PostParams {
    PostParams { dry_run: true, ..PostParams::default() }
}

fn profiles(client: Client) -> Api<DynamicObject> {
    let kind = kube::api::GroupVersionKind::gvk("pillion.dev", "v1alpha1", "InjectionProfile");
    Api::namespaced_with(client, "team-a", &kube::discovery::ApiResource::from_gvk(&kind))
}

fn profile(spec: &Json) -> Result<DynamicObject> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "pillion.dev/v1alpha1", "kind": "InjectionProfile",
        "metadata": {"name": "own", "namespace": "team-a"}, "spec": spec,
    }))?)
}

/// Returns a spec whose template adds a container with this environment.
fn with_env(env: &Json) -> Json {
    json!({"template": {"spec": {"containers": [{"name": "side", "image": "side:1", "env": env}]}}})
}

fn with_value(name: &str, value: &str) -> Json {
    with_env(&json!([{"name": name, "value": value}]))
}

/// Returns a spec with this field, and a template that the guardrail ignores.
fn with_harmless_template(field: &str, value: &Json) -> Json {
    json!({field: value, "template": {"metadata": {"labels": {"a": "b"}}}})
}

/// Names of environment variables that the guardrail rejects with an ordinary value such as `hunter22`.
const NAMES_OF_SECRETS: [&str; 14] = [
    "DB_PASS",
    "SMTP_PASS",
    "PASS",
    "MYSQL_PWD",
    "REDISCLI_AUTH",
    "STRIPE_API_KEY",
    "STORAGE_ACCOUNT_KEY",
    "ENCRYPTION_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "MASTER_KEY",
    "accessKey",
    "PRIVATE_KEY",
    "REFRESH_TOKEN",
    "DB_CREDENTIALS",
];

/// Returns specs with a secret, each with the part of the message that names the field. Tokens are assembled here, so
/// that this file contains no token.
fn secrets() -> Vec<(Json, &'static str)> {
    let github = format!("ghp_{}", "a1".repeat(18));
    let jwt = format!("eyJ{}.eyJ{}.sig", "hbGciOiJIUzI1NiJ9", "zdWIiOiJhbm9uIn0");
    let pem = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----";
    let mut all = vec![
        (with_value("DB_PASSWORD", "hunter22"), "the environment variable DB_PASSWORD"),
        (with_value("apiKey", "hunter22"), "apiKey"),
        (with_value("SIGNING_KEY", "0f3b9a"), "SIGNING_KEY"),
        (with_value("CLIENT_SECRET", "a b c d"), "CLIENT_SECRET"),
        (with_value("ANNOUNCED", "api-key=0f3b9a"), "the environment variable ANNOUNCED"),
        (with_value("OTEL_EXPORTER_OTLP_HEADERS", "api-key=0f3b9a"), "OTEL_EXPORTER_OTLP_HEADERS"),
        (with_value("OTEL_EXPORTER_OTLP_HEADERS", "a=b,authorization=Bearer%20abcdef"), "OTEL_EXPORTER_OTLP_HEADERS"),
        (with_env(&json!([{"name": "A", "value": "b"}, {"name": "MY_TOKEN", "value": "abcdef"}])), "MY_TOKEN"),
        (with_env(&json!([{"$when": "true", "$value": [{"name": "MY_TOKEN", "value": "abcdef"}]}])), "MY_TOKEN"),
        (with_value("DATABASE_URL", "postgres://app:hunter22@db/shop"), "the environment variable DATABASE_URL"),
        (with_value("CERTIFICATE", pem), "the environment variable CERTIFICATE"),
        (with_value("HARMLESS", &github), "the environment variable HARMLESS"),
        (with_value("HARMLESS", &jwt), "the environment variable HARMLESS"),
        (
            with_harmless_template(
                "parameters",
                &json!([{"name": "password", "type": "string", "default": "hunter22"}]),
            ),
            "the default of the parameter password",
        ),
        (
            with_harmless_template("parameters", &json!([{"name": "harmless", "type": "string", "default": pem}])),
            "the default of the parameter harmless",
        ),
        (
            with_harmless_template("variables", &json!([{"name": "harmless", "expression": format!("'{github}'")}])),
            "the variable harmless",
        ),
        (
            json!({"containerPatches": [{"name": "all", "template": {"env": [{"name": "VAULT_TOKEN", "value": "s.abcdef"}]}}]}),
            "VAULT_TOKEN",
        ),
        (json!({"template": {"metadata": {"annotations": {"a": pem}}}}), "a password is in the annotations"),
    ];
    for name in NAMES_OF_SECRETS {
        all.push((with_value(name, "hunter22"), name));
    }
    for list in ["containers", "initContainers"] {
        let container = json!({"name": "side", "image": "side:1", "args": ["--token", github]});
        all.push((json!({"template": {"spec": {list: [container]}}}), "the args of a container"));
        let env = json!([{"name": "MY_TOKEN", "value": "abcdef"}]);
        let group = json!([{"$value": [{"name": "side", "image": "side:1", "env": env}]}]);
        all.push((json!({"template": {"spec": {list: group}}}), "MY_TOKEN"));
        let cloned = json!([{"$value": {"name": "side", "image": "side:1", "env": env}, "image": "side:2"}]);
        all.push((json!({"template": {"spec": {list: cloned}}}), "MY_TOKEN"));
    }
    all
}

/// Returns specs that the guardrail must accept: their strings only resemble a secret, or cannot be checked.
fn no_secrets() -> Vec<Json> {
    let referred = json!([{"name": "DB_PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}]);
    let mut all = vec![
        with_env(&referred),
        with_env(&json!("${[]}")),
        json!({"template": {"metadata": "${object.metadata}", "spec": {"containers": {"$value": "${[]}"}}}}),
        json!({"template": {"metadata": {"annotations": {"url": "https://example.com/a?b=c@d"}}}}),
        with_harmless_template(
            "parameters",
            &json!([
                {"name": "secretName", "type": "string", "default": "db"},
                {"name": "tokenExpirationSeconds", "type": "integer", "default": 86400},
                {"name": "password", "type": "string", "default": "${'a' + 'b'}"},
            ]),
        ),
    ];
    for (name, value) in [
        ("PASSWORD_FILE", "secrets/password"),
        ("TOKEN_MOUNT", "somewhere"),
        ("tokenPath", "token"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/secrets/token"),
        ("VAULT_TOKEN_TTL", "24h"),
        ("API_KEY", "${params.key}"),
        ("API_KEY", "$(OTHER)"),
        ("ENABLE_TOKEN_AUTH", "true"),
        ("KEYCLOAK", "keycloak.example.com"),
        ("MONKEY", "banana"),
        ("SECRET", ""),
        ("DATABASE_URL", "postgres://db/shop"),
        ("PUBLIC", "-----BEGIN PUBLIC KEY-----"),
        ("PARTITION_KEY", "customer"),
        ("ROUTING_KEY", "orders"),
        ("CACHE_KEY", "v2"),
        ("PRIMARY_KEY", "id"),
        ("KEY_DESERIALIZER", "org.example.StringDeserializer"),
        ("TOKEN_SERIALIZER", "json"),
        ("TOKENIZER", "gpt2-large"),
        ("PASSWORD_POLICY", "strict"),
        ("SECRETS_MANAGER_REGION", "eu-west-1"),
        ("DD_API_KEY_SECRET_ARN", "arn:aws:secretsmanager:eu-west-1:1:secret:dd"),
        ("DD_API_KEY", "arn:aws:secretsmanager:eu-west-1:1:secret:dd"),
        ("SECRET_STORE", "vault"),
        ("SECRETS_BACKEND", "vault"),
        ("CREDENTIALS_SOURCE", "instance"),
        ("SSL_KEY", "certs/tls.key"),
        ("OTEL_TOKEN", "https://id.example.com/token"),
        ("AUTH", "oidc"),
        ("COMPASS", "north-east"),
        ("BYPASS", "nothing-at-all"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "tenant=shop"),
    ] {
        all.push(with_value(name, value));
    }
    all
}

/// Returns the specs that are most expensive for the API server to check: profiles of the maximum size, with few
/// strings and with many.
fn largest() -> Vec<Json> {
    let env: Vec<_> =
        (0..30).map(|n| json!({"name": format!("A_TOKEN_{n}"), "value": format!("/{}", "v".repeat(120))})).collect();
    let containers: Vec<_> = (0..10).map(|n| json!({"name": format!("c{n}"), "image": "c:1", "env": env})).collect();
    let variables: Vec<_> =
        (0..128).map(|n| json!({"name": format!("v{n}"), "expression": format!("'{}'", "x".repeat(1000))})).collect();
    let parameters: Vec<_> = (0..64)
        .map(|n| json!({"name": format!("secret{n}"), "type": "string", "default": format!("/{}", "y".repeat(1000))}))
        .collect();
    vec![
        with_value("A_TOKEN", &format!("/{}", "v".repeat(65_000))),
        json!({"variables": variables, "parameters": parameters, "template": {"spec": {"containers": containers}}}),
    ]
}

/// Waits until Kubernetes has checked the types of all policies. Returns the warnings.
async fn type_warnings(client: &Client) -> Result<Vec<String>> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    eventually(PATIENCE, "types are checked", async || {
        let mut warnings = Vec::new();
        for policy in policies.list(&ListParams::default()).await?.items {
            let (name, seen) = (policy.metadata.name.context("a name")?, policy.metadata.generation);
            let status = policy.status.with_context(|| format!("{name} has no status"))?;
            ensure!(status.observed_generation == seen, "{name} is not checked yet");
            let found = status.type_checking.with_context(|| format!("{name} is not checked"))?;
            let found = found.expression_warnings.unwrap_or_default().into_iter();
            warnings.extend(found.map(|warning| format!("{name} {}: {}", warning.field_ref, warning.warning)));
        }
        Ok(warnings)
    })
    .await
}

/// A policy that uses a missing field. It shows that the type check reports errors.
const WRONG: &str = "
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: wrong}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]
  validations: [{expression: object.spec.nonsense == 'a'}]
";

#[test]
#[allow(clippy::print_stdout, reason = "the test prints its measurements")]
fn tenant_stores_profiles_without_secrets() {
    isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        let _controllers = ControllerManager::with(&control_plane, CONTROLLERS).await?;
        for namespace in [NAMESPACE, "team-a"] {
            control_plane.create_namespace(namespace, &[]).await?;
        }
        let opt_in = json!({"optIn": ["mesh=yes:required"]});
        helm_ok(&control_plane, &["install", "pillion"], Some(&opt_in)).await?;
        let bind = ["create", "rolebinding", "tenant", "-n", "team-a", "--user=tenant", "--clusterrole=admin"];
        control_plane.kubectl_ok(&bind).await?;

        let client = control_plane.client();
        ensure!(type_warnings(&client).await?.is_empty(), "{:#?}", type_warnings(&client).await?);
        let checked =
            Api::<ValidatingAdmissionPolicy>::all(client.clone()).list(&ListParams::default()).await?.items.len();
        control_plane.apply_yaml(WRONG).await?;
        let wrong = type_warnings(&client).await?;
        ensure!(wrong.len() == 1 && wrong[0].contains("undefined field 'nonsense'"), "{wrong:#?}");

        let tenant = profiles(client_of(&control_plane.kubeconfig_as("tenant", &[])?).await?);
        let secrets = secrets();
        eventually(SOON, "the policy and the role are active", async || {
            let (spec, found) = &secrets[0];
            let error = tenant.create(&dry_run(), &profile(spec)?).await.err().context("it was stored")?.to_string();
            ensure!(error.contains(found), "{error}");
            Ok(())
        })
        .await?;
        for (spec, found) in &secrets {
            let stored = tenant.create(&dry_run(), &profile(spec)?).await;
            let error = stored.err().with_context(|| format!("the profile was stored: {spec}"))?.to_string();
            ensure!(error.contains(REJECTION) && error.contains(found) && error.contains(REMEDY), "{spec}: {error}");
        }
        let (allowed, largest) = (no_secrets(), largest());
        for spec in allowed.iter().chain(&largest) {
            let stored = tenant.create(&dry_run(), &profile(spec)?).await;
            ensure!(stored.is_ok(), "{}: {stored:?}", spec.to_string().chars().take(300).collect::<String>());
        }

        // An update may not add a secret to a stored profile.
        let mut stored = tenant.create(&PostParams::default(), &profile(&with_value("A", "b"))?).await?;
        stored.data["spec"] = secrets[0].0.clone();
        let error =
            tenant.replace("own", &PostParams::default(), &stored).await.err().context("it was changed")?.to_string();
        ensure!(error.contains(REJECTION), "{error}");

        // The shipped profiles are checked as if a tenant wrote them. The API server may reject them for another
        // reason, but not because of a secret.
        let mut shipped = 0;
        for folder in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles"))? {
            let Ok(text) = std::fs::read_to_string(folder?.path().join("profile.yaml")) else { continue };
            for document in serde_saphyr::from_multiple::<Json>(&text)? {
                shipped += 1;
                let answer = tenant.create(&dry_run(), &profile(&document["spec"])?).await;
                let is_refused = answer.as_ref().err().is_some_and(|error| error.to_string().contains(REJECTION));
                ensure!(!is_refused, "{}: {answer:?}", document["metadata"]["name"]);
            }
        }
        println!(
            "guardrails: {checked} policies without type warnings, {} specs rejected, {} stored, {shipped} shipped profiles without a secret",
            secrets.len(),
            allowed.len() + largest.len()
        );
        ensure!(shipped > 30);
        Ok(())
    });
}

const RECORD: &str = "pillion.dev/injected";
const EMPTY: &str = r#"{"version":1,"profiles":[]}"#;

/// Returns a pod without annotations.
pub(crate) fn plain() -> Json {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain"},
        "spec": {"containers": [{"name": "app", "image": "app:1"}]}})
}

fn forged() -> Json {
    let mut pod = plain();
    pod["metadata"]["annotations"] = json!({RECORD: EMPTY});
    pod
}

async fn refusal(rig: &Rig, namespace: &str, pod: &Json) -> Result<String> {
    let created = rig.dry_run(namespace, pod).await;
    Ok(created.err().with_context(|| format!("a pod was created in {namespace}"))?.to_string())
}

/// Waits until the API server rejects pods that no replica has reviewed. Returns the message.
async fn wait_for_rejection(rig: &Rig, namespace: &str) -> Result<String> {
    eventually(SOON, "pods are rejected", async || {
        let error = refusal(rig, namespace, &plain()).await?;
        ensure!(error.contains("has not decided about this pod"), "{error}");
        Ok(error)
    })
    .await
}

async fn created(rig: &Rig, namespace: &str, why: &str) -> Result<()> {
    eventually(SOON, why, async || {
        let pod = rig.dry_run(namespace, &plain()).await?;
        ensure!(pod["metadata"]["annotations"].get(RECORD).is_none(), "a webhook decided: {pod}");
        Ok(())
    })
    .await
}

/// Writes a value into the ConfigMap of the kill switch. `None` removes the key.
async fn set_switch(rig: &Rig, key: &str, word: Option<&str>) -> Result<()> {
    let patch = json!({"data": {key: word}}).to_string();
    let arguments = ["-n", NAMESPACE, "patch", "configmap", "pillion", "--type=merge", "-p", &patch];
    rig.control_plane.kubectl_ok(&arguments).await.map(drop)
}

/// Runs the command that the message of a rejection suggests.
async fn run_suggested_command(rig: &Rig, error: &str) -> Result<()> {
    let (_, command) = error.split_once("for now: kubectl ").context("a command")?;
    let (before, patch) = command.split_once(" -p '").context("a patch")?;
    let (patch, _) = patch.split_once('\'').context("the end of the patch")?;
    let arguments: Vec<_> = before.split(' ').chain(["-p", patch]).collect();
    rig.control_plane.kubectl_ok(&arguments).await.map(drop)
}

/// Checks that the policy accepts mirror pods, and pods in namespaces to which it does not apply.
async fn expect_others_accepted(rig: &Rig) -> Result<()> {
    for namespace in [NAMESPACE, "left-alone", "kube-public", "both", "team-b", "nobodys"] {
        created(rig, namespace, namespace).await?;
    }
    rig.control_plane
        .kubectl_ok(&["create", "clusterrolebinding", "node", "--user=system:node:n1", "--clusterrole=cluster-admin"])
        .await?;
    let node = client_of(&rig.control_plane.kubeconfig_as("system:node:n1", &["system:authenticated"])?).await?;
    let mut mirror = plain();
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    mirror["spec"]["nodeName"] = json!("n1");
    let mirrors: Api<Pod> = Api::namespaced(node, "team-a");
    eventually(SOON, "a mirror pod is permitted", async || {
        Ok(mirrors.create(&dry_run(), &serde_json::from_value(mirror.clone())?).await.map(drop)?)
    })
    .await?;
    let claimed = refusal(rig, "team-a", &mirror).await?;
    ensure!(claimed.contains("has not decided about this pod"), "only a node may create mirror pods: {claimed}");
    Ok(())
}

/// Checks each remedy: the one in the message, and those in `docs/break-glass.md`.
async fn check_each_remedy(rig: &Rig, error: &str) -> Result<()> {
    run_suggested_command(rig, error).await?;
    created(rig, "team-a", "records are ignored").await?;
    set_switch(rig, "records", Some("enforced")).await?;
    wait_for_rejection(rig, "team-a").await?;
    set_switch(rig, "webhooks", Some("WebhooksDisabled ")).await?;
    created(rig, "team-a", "disabled").await?;
    set_switch(rig, "webhooks", Some("enabled")).await?;
    wait_for_rejection(rig, "team-a").await?;
    set_switch(rig, "injection", Some("of")).await?;
    created(rig, "team-a", "an unknown value keeps replicas in their state, which may be disabled").await?;
    set_switch(rig, "injection", None).await?;
    wait_for_rejection(rig, "team-a").await?;
    rig.label_namespace("team-a", "pillion.dev/injection", "disabled").await?;
    created(rig, "team-a", "the label").await?;
    rig.label_namespace("team-a", "pillion.dev/injection", "required").await?;
    wait_for_rejection(rig, "team-a").await?;
    rig.control_plane.kubectl_ok(&["-n", NAMESPACE, "delete", "configmap", "pillion"]).await?;
    created(rig, "team-a", "the ConfigMap is deleted, as together with the release's namespace").await?;
    Ok(())
}

#[test]
#[allow(clippy::print_stdout, reason = "the test prints its measurements")]
fn required_namespace_rejects_undecided_pods() {
    isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        control_plane.create_namespace(NAMESPACE, &[("pillion.dev/injection", "required")]).await?;
        let required = [("pillion.dev/injection", "required")];
        for (name, labels) in [
            ("team-a", &required[..]),
            ("left-alone", &required[..]),
            ("kube-public", &required[..]),
            ("mesh", &[("mesh", "yes")]),
            ("both", &[("mesh", "yes"), ("pillion.dev/injection", "enabled")]),
            ("team-b", &[("pillion.dev/injection", "enabled")]),
            ("nobodys", &[]),
        ] {
            if name == "kube-public" {
                control_plane.kubectl_ok(&["label", "namespace", name, "pillion.dev/injection=required"]).await?;
            } else {
                control_plane.create_namespace(name, labels).await?;
            }
        }
        let mut values = values(&json!(["nginx"]));
        values["optIn"] = json!(["mesh=yes:required"]);
        values["excludedNamespaces"] = json!(["left-alone"]);
        helm_ok(&control_plane, &["install", "pillion"], Some(&values)).await?;

        // While a release starts, the API server calls no webhook and rejects no pod.
        let pods: Api<Pod> = Api::namespaced(control_plane.client(), "team-a");
        let mut early = 0;
        for _ in 0..20 {
            pods.create(&dry_run(), &serde_json::from_value(plain())?).await?;
            early += 1;
        }
        let (mut rig, mut controllers) = run(control_plane).await?;
        let mut refusals = 0;
        eventually(PATIENCE, "the API server calls the webhook", async || {
            let created = rig.dry_run("team-a", &bare_pod("probe")).await;
            refusals += usize::from(created.is_err());
            early += 1;
            ensure!(names(&created?).contains(&"sidecar-nginx".to_owned()));
            Ok(())
        })
        .await?;
        ensure!(refusals == 0, "{refusals} of {early} pods were rejected while the release started");
        rig.wait_until_called("mesh").await?;
        rig.wait_until_served(1).await?;

        // The webhook records every decision, so the policy accepts the pod.
        for namespace in ["team-a", "mesh"] {
            let mut pod = plain();
            pod["metadata"]["name"] = json!("decided");
            let pod = rig.create(namespace, &pod).await?;
            ensure!(pod["metadata"]["annotations"][RECORD] == EMPTY, "{pod}");
        }
        let injected = rig.create("team-a", &bare_pod("injected")).await?;
        ensure!(injected["metadata"]["annotations"][RECORD].as_str().is_some_and(|record| record.contains("nginx")));
        created(&rig, "both", "Pillion's own label has precedence").await?;
        eventually(PATIENCE, "the ConfigMap exists", async || {
            rig.control_plane.kubectl_ok(&["-n", NAMESPACE, "get", "configmap", "pillion"]).await.map(drop)
        })
        .await?;
        let by_the_author = "the author of this pod wrote it: remove it from the manifest";
        eventually(SOON, "a forged record is rejected", async || {
            let error = refusal(&rig, "team-a", &forged()).await?;
            ensure!(error.contains(by_the_author), "{error}");
            Ok(())
        })
        .await?;
        rig.dry_run("team-b", &forged()).await?;

        // While injection is disabled, replicas do not change pods, and the policy accepts them.
        set_switch(&rig, "injection", Some("disabled")).await?;
        created(&rig, "team-a", "the kill switch").await?;
        set_switch(&rig, "injection", Some("enabled")).await?;
        rig.wait_until_called("team-a").await?;

        // All processes are stopped. At first the configuration still exists and does not reject pods, then it is
        // deleted.
        for process in controllers.iter_mut().chain(&mut rig.replicas) {
            process.kill()?;
        }
        let command = "kubectl get mutatingwebhookconfiguration pillion -o json";
        let ignoring =
            rig.control_plane.kubectl_ok(&["get", "mutatingwebhookconfiguration", "pillion", "-o", "json"]).await;
        let ignoring = ignoring.context(command)?.replace(r#""failurePolicy": "Fail""#, r#""failurePolicy": "Ignore""#);
        let replaced = rig.control_plane.kubectl_with_input(&["replace", "-f", "-"], &ignoring).await?;
        ensure!(replaced.status.success(), "{}", String::from_utf8_lossy(&replaced.stderr));
        wait_for_rejection(&rig, "team-a").await?;
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(rig.control_plane.client());
        configurations.delete("pillion", &DeleteParams::default()).await?;
        let error = wait_for_rejection(&rig, "team-a").await?;
        wait_for_rejection(&rig, "mesh").await?;
        ensure!(refusal(&rig, "team-a", &forged()).await?.contains(by_the_author));

        expect_others_accepted(&rig).await?;
        check_each_remedy(&rig, &error).await?;
        println!(
            "guardrails: {early} pods while the release started, none rejected; six ways to avoid the rejection work"
        );
        Ok(())
    });
}
