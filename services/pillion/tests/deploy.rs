//! Tests `deploy/`: the plain manifests are complete, kustomizations based on them build, and the chart accepts the
//! values in the examples for Argo CD, Flux and kind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pillion_testkit::tools;
use serde_json::{Value as Json, json};

const NAMESPACE: &str = "pillion-system";
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn run(program: &str, arguments: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(tools::program(program).unwrap());
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, home.path());
    }
    command.args(arguments).current_dir(repository()).output().unwrap()
}

fn printed(program: &str, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = run(program, arguments);
    assert!(status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

fn documents(text: &str) -> Vec<Json> {
    let found: Vec<Json> = serde_saphyr::from_multiple(text).unwrap();
    found.into_iter().filter(|document| !document.is_null()).collect()
}

fn file(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn find<'o>(objects: &'o [Json], kind: &str, name: &str) -> &'o Json {
    let found = objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

#[test]
fn manifests_are_complete_and_reference_existing_objects() {
    let objects = documents(&file("deploy/manifests/pillion.yaml"));
    assert!(objects.len() > 30, "{}", objects.len());
    find(&objects, "Namespace", NAMESPACE);
    for object in &objects {
        let metadata = &object["metadata"];
        assert_ne!(metadata["labels"]["app.kubernetes.io/managed-by"], "Helm", "{metadata}");
        assert_eq!(metadata["labels"]["app.kubernetes.io/instance"], "pillion", "{metadata}");
        assert_eq!(
            metadata["annotations"].get("helm.sh/hook"),
            None,
            "{metadata}: no tool runs hooks of plain manifests"
        );
        if object["kind"].as_str().unwrap().ends_with("RoleBinding") {
            find(&objects, object["roleRef"]["kind"].as_str().unwrap(), object["roleRef"]["name"].as_str().unwrap());
            for subject in object["subjects"].as_array().unwrap() {
                find(&objects, "ServiceAccount", subject["name"].as_str().unwrap());
            }
        }
    }
    let definitions = documents(&file("deploy/manifests/crds.yaml"));
    assert_eq!(definitions.len(), 5, "profiles of both kinds, revisions of both, trust probes");
}

/// Returns the kind, namespace and name of each object, sorted.
fn identities(objects: &[Json]) -> Vec<String> {
    let mut all: Vec<_> = objects
        .iter()
        .map(|object| format!("{} {} {}", object["kind"], object["metadata"]["namespace"], object["metadata"]["name"]))
        .collect();
    all.sort();
    all
}

#[test]
fn kustomizations_build_and_change_documented_fields() {
    let base = documents(&printed("kubectl", &["kustomize", "deploy/manifests"]));
    let mut plain = documents(&file("deploy/manifests/crds.yaml"));
    plain.extend(documents(&file("deploy/manifests/pillion.yaml")));
    assert_eq!(identities(&base), identities(&plain));

    let overlay = documents(&printed("kubectl", &["kustomize", "deploy/kustomize/overlay"]));
    let profile = find(&overlay, "ClusterInjectionProfile", "team-label");
    plain.push(profile.clone());
    assert_eq!(identities(&overlay), identities(&plain), "no object changes");
    let webhook = find(&overlay, "Deployment", "pillion-webhook");
    let pod = &webhook["spec"]["template"]["spec"];
    assert_eq!(webhook["spec"]["replicas"], 5);
    assert_eq!(pod["containers"][0]["resources"]["requests"]["cpu"], "500m");
    for component in ["webhook", "controller"] {
        let pod = &find(&overlay, "Deployment", &format!("pillion-{component}"))["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["image"], "registry.example.com/platform/pillion:0.1.0");
        assert_eq!(pod["imagePullSecrets"], json!([{"name": "registry"}]));
    }
    assert!(overlay.iter().all(|object| object["metadata"]["labels"]["team"] == "platform"));
    // The program accepts the policy file and the profile in the overlay.
    let folder = tempfile::tempdir().unwrap();
    let policy = find(&overlay, "ConfigMap", "pillion-webhook")["data"]["policy.yaml"].as_str().unwrap();
    fs::write(folder.path().join("policy.yaml"), policy).unwrap();
    fs::write(folder.path().join("profile.yaml"), profile.to_string()).unwrap();
    for arguments in [&["webhook", "--check-config", "--config", "policy.yaml"][..], &["lint", "profile.yaml"]] {
        let mut program = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"));
        program.args(arguments).current_dir(folder.path()).assert().success();
    }
}

/// Renders the chart for a release with `helm template`, which does not query the cluster.
fn template(release: &str, values: &Json) -> Result<Vec<Json>, String> {
    let folder = tempfile::tempdir().unwrap();
    let values_file = folder.path().join("values.json");
    fs::write(&values_file, values.to_string()).unwrap();
    let arguments = ["template", release, "charts/pillion", "--namespace", NAMESPACE, "--values"];
    let Output { status, stdout, stderr } = run("helm", &[&arguments[..], &[values_file.to_str().unwrap()]].concat());
    if !status.success() {
        return Err(String::from_utf8(stderr).unwrap());
    }
    Ok(documents(&String::from_utf8(stdout).unwrap()))
}

/// Renders the chart for the release `pillion` with these values.
fn rendered(values: &Json) -> Vec<Json> {
    template("pillion", values).unwrap()
}

/// Returns the images of a release's pods.
fn images(objects: &[Json]) -> Vec<&str> {
    let workloads = objects.iter().filter(|object| object["kind"] == "Deployment" || object["kind"] == "Job");
    let images = workloads.filter_map(|object| object.pointer("/spec/template/spec/containers/0/image"));
    images.map(|image| image.as_str().unwrap()).collect()
}

/// The image reference in the examples for Argo CD and Flux, which users should replace.
const IMAGE: &str = "registry.example.com/platform/pillion:0.1.0";

fn has_hook(objects: &[Json], hook: &str) -> bool {
    let hooks = objects.iter().filter_map(|object| object["metadata"]["annotations"]["helm.sh/hook"].as_str());
    hooks.into_iter().any(|found| found.contains(hook))
}

#[test]
fn argo_cd_example_ignores_foreign_fields() {
    let application = documents(&file("deploy/argocd/application.yaml")).remove(0);
    let spec = &application["spec"];
    assert_eq!(application["metadata"]["name"], "pillion", "the label app.kubernetes.io/instance");
    assert_eq!(spec["source"]["helm"]["releaseName"], "pillion");
    assert_eq!(spec["destination"]["namespace"], NAMESPACE);
    assert!(repository().join(spec["source"]["path"].as_str().unwrap()).join("Chart.yaml").exists());
    let options = spec["syncPolicy"]["syncOptions"].as_array().unwrap();
    for option in ["ServerSideApply=true", "RespectIgnoreDifferences=true", "CreateNamespace=true"] {
        assert!(options.contains(&json!(option)), "{option}");
    }
    let values = &spec["source"]["helm"]["valuesObject"];
    let objects = rendered(values);
    assert_eq!(images(&objects), [IMAGE; 2], "the default names no registry");
    assert!(file("deploy/argocd/application.yaml").lines().next().unwrap().contains("the image"));
    assert!(!has_hook(&objects, ""), "Argo CD does not run Helm's hooks as Helm does");
    let mut all = objects;
    all.extend(documents(&file("deploy/manifests/crds.yaml")));
    for rule in spec["ignoreDifferences"].as_array().unwrap() {
        let is_meant = |object: &&Json| {
            let group = object["apiVersion"].as_str().unwrap().split_once('/').map_or("", |(group, _)| group);
            group == rule["group"]
                && object["kind"] == rule["kind"]
                && (rule["name"].is_null() || object["metadata"]["name"] == rule["name"])
        };
        assert!(all.iter().any(|object| is_meant(&object)), "{rule} matches no rendered object");
    }
    let rules = spec["ignoreDifferences"].to_string();
    let scaled = all.iter().filter(|object| object["spec"].get("replicas").is_some());
    for deployment in scaled {
        assert!(rules.contains(deployment["metadata"]["name"].as_str().unwrap()), "{}", deployment["metadata"]);
    }
}

#[test]
fn flux_example_preserves_crds_replicas_and_expressions() {
    let objects = documents(&file("deploy/flux/release.yaml"));
    let release = find(&objects, "HelmRelease", "pillion");
    let spec = &release["spec"];
    assert_eq!((&spec["install"]["crds"], &spec["upgrade"]["crds"]), (&json!("Create"), &json!("CreateReplace")));
    find(&objects, "GitRepository", spec["chart"]["spec"]["sourceRef"]["name"].as_str().unwrap());
    assert!(repository().join(spec["chart"]["spec"]["chart"].as_str().unwrap()).join("Chart.yaml").exists());
    assert_eq!(spec["driftDetection"]["ignore"][0]["paths"], json!(["/spec/replicas"]));
    let rendered = rendered(&spec["values"]);
    assert_eq!(images(&rendered), [IMAGE; 3], "the default names no registry");
    assert!(file("deploy/flux/release.yaml").lines().next().unwrap().contains("the image"));
    assert!(!has_hook(&rendered, "pre-upgrade") && has_hook(&rendered, "pre-delete"));

    let kustomization = documents(&file("deploy/flux/profiles.yaml")).remove(0);
    assert_eq!(kustomization["spec"].get("postBuild"), None, "postBuild would replace the expressions in profiles");
}

#[test]
fn kind_example_uses_only_local_images() {
    let cluster = documents(&file("deploy/kind/cluster.yaml")).remove(0);
    assert_eq!(cluster["nodes"].as_array().unwrap().len(), 3);
    let objects = rendered(&documents(&file("deploy/kind/values.yaml"))[0]);
    let workloads = objects.iter().filter(|object| object["kind"] == "Deployment" || object["kind"] == "Job");
    let pods = workloads.filter_map(|object| object.pointer("/spec/template/spec/containers/0"));
    let policies: Vec<_> = pods.map(|container| &container["imagePullPolicy"]).collect();
    assert!(policies.len() == 4 && policies.iter().all(|policy| *policy == "Never"), "{policies:?}");
}

/// Returns the names of a release's Services.
fn services(objects: &[Json]) -> Vec<&str> {
    let services = objects.iter().filter(|object| object["kind"] == "Service");
    services.map(|service| service["metadata"]["name"].as_str().unwrap()).collect()
}

#[test]
fn service_names_are_valid_dns_labels() {
    let longest = template(&"p".repeat(44), &json!({})).unwrap();
    let names = services(&longest);
    assert_eq!(names.len(), 4, "{names:?}");
    assert!(names.iter().all(|name| name.len() <= 63), "{names:?}");
    for (release, expected) in
        [(&*"p".repeat(45), "is longer than 44 bytes"), ("a.b", "is not valid for a Service"), ("1a", "is not valid")]
    {
        let error = template(release, &json!({})).unwrap_err();
        assert!(error.contains(expected) && error.contains("set fullnameOverride"), "{error}");
    }
    let overridden = template("a.b", &json!({"fullnameOverride": "a-b"})).unwrap();
    assert!(services(&overridden).iter().all(|name| name.starts_with("a-b")));
}

#[test]
fn null_values_map_gives_one_clear_error() {
    for path in ["service", "guardrails", "webhook/autoscaling", "guardrails/inlineSecrets", "metrics/serviceMonitor"] {
        let mut values = json!(null);
        for key in path.rsplit('/') {
            values = json!({key: values});
        }
        let error = template("pillion", &values).unwrap_err();
        let expected = format!("{} is null, which removes all its defaults", path.replace('/', "."));
        assert!(error.contains(&expected) && error.trim().lines().count() < 5, "{error}");
    }
    let without = rendered(&json!({"webhook": {"policy": null}, "controller": {"policy": null}}));
    let plain = rendered(&json!({}));
    for name in ["pillion-webhook", "pillion-controller"] {
        assert_eq!(find(&without, "ConfigMap", name), find(&plain, "ConfigMap", name));
    }
    let crossed = json!({"webhook": {"autoscaling": {"enabled": true, "minReplicas": 9, "maxReplicas": 3}}});
    let error = template("pillion", &crossed).unwrap_err();
    assert!(error.contains("minReplicas is 9, but maxReplicas is only 3"), "{error}");
}

/// Renders the policy that rejects inline secrets, and returns its expressions. Returns no expressions if the values
/// disable the policy.
fn secret_policy_expressions(secrets: &Json) -> Result<Vec<String>, String> {
    let objects = template("pillion", &json!({"guardrails": {"inlineSecrets": secrets}}))?;
    let mut policies = objects.iter().filter(|object| object["metadata"]["name"] == "pillion-inline-secrets");
    let policy = policies.find(|object| object["kind"] == "ValidatingAdmissionPolicy");
    let Some(policy) = policy else { return Ok(Vec::new()) };
    assert!(!policy.to_string().contains(r#"matches(\"\")"#), "a pattern matches everything");
    assert!(!policy.to_string().contains("matches(null)"), "a pattern is null");
    let validations = policy["spec"]["validations"].as_array().unwrap().iter();
    Ok(validations.map(|validation| validation["expression"].as_str().unwrap().to_owned()).collect())
}

#[test]
fn secret_patterns_can_be_disabled() {
    let (named, shaped) = (
        vec!["variables.named == ''"],
        vec!["variables.shaped == ''", "variables.shapedParameters == ''", "variables.shapedVariables == ''"],
    );
    assert_eq!(secret_policy_expressions(&json!({})).unwrap(), [&named[..], &shaped[..]].concat());
    for none in [json!([]), json!(null)] {
        assert_eq!(secret_policy_expressions(&json!({"shapes": none})).unwrap(), named);
    }
    assert_eq!(secret_policy_expressions(&json!({"names": null})).unwrap(), shaped);
    assert!(secret_policy_expressions(&json!({"names": null, "shapes": []})).unwrap().is_empty());
    for key in ["exceptNames", "harmlessValues"] {
        let error = secret_policy_expressions(&json!({key: null})).unwrap_err();
        assert!(error.contains(&format!("guardrails.inlineSecrets.{key} is null: omit it, or set")), "{error}");
    }
}
