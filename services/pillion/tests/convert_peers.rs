//! Tests `pillion convert` for resources of other injectors, as a process. `lint` accepts the written profiles, and the
//! profiles inject the parts that the resources specify.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests fail by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

struct Run {
    stdout: String,
    stderr: String,
    code: Option<i32>,
}

fn pillion(arguments: &[&str], folder: &Path, stdin: &str) -> Run {
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"));
    let output = command.args(arguments).current_dir(folder).write_stdin(stdin).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { stdout: text(output.stdout), stderr: text(output.stderr), code: output.status.code() }
}

fn convert(what: &[&str], stdin: &str) -> Run {
    pillion(&[&["convert"], what, &["-f", "-"]].concat(), Path::new("."), stdin)
}

fn profiles() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles").canonicalize().unwrap()
}

fn documents(text: &str) -> Vec<Json> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error} in\n{text}"))
}

/// Injects the converted and the shipped profiles into a pod. Returns the pod, and the messages of `pillion inject`.
fn inject(converted: &str, shipped: &[&str], pod: &Json) -> (Json, String) {
    inject_in(None, converted, shipped, pod)
}

/// Like [`inject`], but with the Namespace object of the pod's namespace, if it is not `None`.
fn inject_in(namespace: Option<&Json>, converted: &str, shipped: &[&str], pod: &Json) -> (Json, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("converted.yaml"), converted).unwrap();
    let shipped: Vec<_> = shipped.iter().map(|name| profiles().join(name).display().to_string()).collect();
    let mut arguments = vec!["inject", "-f", "-", "-o", "json", "-p", "converted.yaml"];
    for path in &shipped {
        arguments.extend(["-p", path]);
    }
    if let Some(namespace) = namespace {
        fs::write(folder.path().join("namespace.yaml"), namespace.to_string()).unwrap();
        arguments.extend(["--namespace-file", "namespace.yaml"]);
    }
    let run = pillion(&arguments, folder.path(), &pod.to_string());
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    (serde_json::from_str(&run.stdout).unwrap(), run.stderr)
}

fn lint(converted: &str, shipped: &[&str]) -> Run {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("converted.yaml"), converted).unwrap();
    let shipped: Vec<_> = shipped.iter().map(|name| profiles().join(name).display().to_string()).collect();
    let paths: Vec<_> = ["lint", "converted.yaml"].into_iter().chain(shipped.iter().map(String::as_str)).collect();
    pillion(&paths, folder.path(), "")
}

fn env(pod: &Json, container: &str, name: &str) -> Option<String> {
    let containers = pod["spec"]["containers"].as_array().unwrap();
    let container = containers.iter().find(|one| one["name"] == container).unwrap();
    let variable = container["env"].as_array()?.iter().find(|one| one["name"] == name)?;
    Some(variable["value"].as_str().unwrap_or_default().to_owned())
}

const INSTRUMENTATION: &str = r#"
apiVersion: opentelemetry.io/v1alpha1
kind: Instrumentation
metadata: {name: edge, namespace: observability}
spec:
  exporter:
    endpoint: http://collector.observability:4318
    tls: {secretName: otel-tls, ca_file: ca.crt}
  propagators: [tracecontext, b3]
  sampler: {type: parentbased_traceidratio, argument: "0.25"}
  resource: {resourceAttributes: {deployment.environment: edge}, addK8sUIDAttributes: false}
  env: [{name: OTEL_LOG_LEVEL, value: "cost ${5}"}]
  java:
    image: registry.example.com/java:1
    env: [{name: OTEL_JAVAAGENT_DEBUG, value: "true"}]
    resources: {limits: {cpu: 100m}}
    volumeLimitSize: 10Mi
    extensions: [{image: registry.example.com/extension:1, dir: /extensions}]
  python: {image: registry.example.com/python:1, resourceRequirements: {}}
  go: {volumeLimitSize: 10Mi}
  future: {field: 1}
"#;

const OTEL: [&str; 8] = [
    "otel-sdk",
    "otel-java",
    "otel-nodejs",
    "otel-python",
    "otel-dotnet",
    "otel-go",
    "otel-apache-httpd",
    "otel-nginx",
];

#[test]
fn instrumentation_becomes_one_profile_per_language() {
    let run = convert(&["opentelemetry"], INSTRUMENTATION);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    for message in
        ["spec.future: left out, because the profile has no parameter for this", "the agent for Go has no volume"]
    {
        assert!(run.stderr.contains(message), "{}", run.stderr);
    }
    assert_eq!(run.stderr.matches("warning").count(), 2, "{}", run.stderr);
    assert_eq!(documents(&run.stdout).len(), 16);
    let linted = lint(&run.stdout, &OTEL);
    assert_eq!((linted.code, linted.stderr.as_str()), (Some(0), ""), "{}", linted.stdout);

    let pod = |namespace: &str, word: &str| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": namespace, "annotations": {"instrumentation.opentelemetry.io/inject-java": word}},
            "spec": {"containers": [{"name": "web", "image": "web:1"}]}})
    };
    // Any namespace can use the full name. The profile's own namespace can also use the short name or `true`, because
    // it contains only this profile.
    for (namespace, word) in [
        ("shop", "observability/edge"),
        ("observability", "edge"),
        ("observability", "true"),
        ("observability", "observability/edge"),
    ] {
        let (after, message) = inject(&run.stdout, &OTEL, &pod(namespace, word));
        let at = format!("{namespace} {word}: {message}");
        assert_eq!(
            env(&after, "web", "OTEL_EXPORTER_OTLP_ENDPOINT").unwrap(),
            "http://collector.observability:4318",
            "{at}"
        );
        assert_eq!(env(&after, "web", "OTEL_TRACES_SAMPLER_ARG").unwrap(), "0.25", "{at}");
        assert_eq!(env(&after, "web", "OTEL_PROPAGATORS").unwrap(), "tracecontext,b3", "{at}");
        assert_eq!(env(&after, "web", "OTEL_LOG_LEVEL").unwrap(), "cost ${5}", "{at}");
        assert_eq!(env(&after, "web", "OTEL_JAVAAGENT_DEBUG").unwrap(), "true", "{at}");
        assert!(
            env(&after, "web", "OTEL_RESOURCE_ATTRIBUTES").unwrap().contains("deployment.environment=edge"),
            "{at}"
        );
        let init = &after["spec"]["initContainers"][0];
        assert_eq!(
            (&init["image"], &init["resources"]),
            (&json!("registry.example.com/java:1"), &json!({"limits": {"cpu": "100m"}}))
        );
        let volumes = after["spec"]["volumes"].as_array().unwrap();
        assert!(volumes.iter().any(|volume| volume["emptyDir"]["sizeLimit"] == "10Mi"), "{after:#}");
        assert_eq!(after["spec"]["initContainers"].as_array().unwrap().len(), 2, "{after:#}");
    }
    // In other namespaces the short name matches nothing, and `true` selects the platform's profile.
    let (after, message) = inject(&run.stdout, &OTEL, &pod("shop", "edge"));
    assert!(after["spec"].get("initContainers").is_none(), "{message}");
    let (after, _) = inject(&run.stdout, &OTEL, &pod("shop", "true"));
    assert_eq!(env(&after, "web", "OTEL_EXPORTER_OTLP_ENDPOINT"), None);
}

/// If a pod's annotation is empty, the namespace's annotation applies, as with the shipped profiles and the
/// OpenTelemetry operator.
#[test]
fn empty_pod_annotation_defers_to_namespace() {
    const KEY: &str = "instrumentation.opentelemetry.io/inject-java";
    let run = convert(&["opentelemetry", "--language", "java"], INSTRUMENTATION);
    for converted in documents(&run.stdout) {
        assert_eq!(converted["spec"]["requestedBy"]["empty"], "Absent", "{converted}");
    }
    for (name, asks, on_pod, is_injected) in [
        ("shop", "observability/edge", "", true),
        ("shop", "observability/edge", " ", true),
        ("shop", "observability/edge", "false", false),
        ("observability", "edge", "", true),
    ] {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": name, "labels": {"pillion.dev/injection": "enabled"}, "annotations": {KEY: asks}}});
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": name, "annotations": {KEY: on_pod}},
            "spec": {"containers": [{"name": "web", "image": "web:1"}]}});
        let (after, message) = inject_in(Some(&namespace), &run.stdout, &["otel-sdk", "otel-java"], &pod);
        let expected = is_injected.then(|| "http://collector.observability:4318".to_owned());
        assert_eq!(env(&after, "web", "OTEL_EXPORTER_OTLP_ENDPOINT"), expected, "{name} {on_pod:?}: {message}");
    }
}

#[test]
fn invalid_instrumentation_is_reported_and_languages_are_selectable() {
    let run = convert(&["opentelemetry", "--language", "python"], INSTRUMENTATION);
    let names: Vec<_> =
        documents(&run.stdout).iter().map(|one| one["metadata"]["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["otel-python-observability-edge", "edge-python"]);
    let two = format!("{INSTRUMENTATION}---\n{}", INSTRUMENTATION.replace("name: edge", "name: other"));
    let run = convert(&["opentelemetry", "--language", "sdk"], &two);
    assert!(run.stderr.contains("namespace observability has 2 Instrumentations"), "{}", run.stderr);
    for (text, message) in [
        (
            INSTRUMENTATION.replace("v1alpha1", "v1beta1"),
            "this build does not convert version opentelemetry.io/v1beta1",
        ),
        (INSTRUMENTATION.replace("name: edge, ", ""), "an Instrumentation needs a name"),
        (format!("{INSTRUMENTATION}---\n{INSTRUMENTATION}"), "there is another Instrumentation observability/edge"),
        ("{apiVersion: v1, kind: Service}".to_owned(), "contains no Instrumentation"),
    ] {
        let run = convert(&["opentelemetry"], &text);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""));
        assert!(run.stderr.contains(message), "{}", run.stderr);
    }
}

const SIDECAR_CONFIG: &str = r"
apiVersion: v1
kind: ConfigMap
metadata: {name: sidecar-injector-webhook-configmap}
data:
  sidecarconfig.yaml: |
    containers:
    - name: sidecar-nginx
      image: nginx:1.12.2
      ports: [{containerPort: 80}]
      volumeMounts: [{name: nginx-conf, mountPath: /etc/nginx}]
    volumes:
    - name: nginx-conf
      configMap: {name: nginx-configmap}
";

#[test]
fn sidecar_configuration_becomes_profile() {
    let run = convert(&["morvencao", "--name", "nginx-sidecar"], SIDECAR_CONFIG);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    assert_eq!(lint(&run.stdout, &[]).code, Some(0));
    let pod = |word: &str| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "annotations": {"sidecar-injector-webhook.morven.me/inject": word}},
            "spec": {"containers": [{"name": "web", "image": "web:1"}]}})
    };
    for word in ["yes", "y", "true", "on"] {
        let (after, message) = inject(&run.stdout, &[], &pod(word));
        assert_eq!(after["spec"]["containers"][1]["name"], "sidecar-nginx", "{message}");
        assert_eq!(after["spec"]["volumes"][0]["configMap"]["name"], "nginx-configmap");
        assert_eq!(after["metadata"]["annotations"]["sidecar-injector-webhook.morven.me/status"], "injected");
    }
    let (after, _) = inject(&run.stdout, &[], &pod("no"));
    assert_eq!(after, pod("no"));
    let with_status = |status: &str| {
        let mut pod = pod("yes");
        pod["metadata"]["annotations"]["sidecar-injector-webhook.morven.me/status"] = json!(status);
        pod
    };
    let (after, message) = inject(&run.stdout, &[], &with_status("Injected"));
    assert_eq!(after, with_status("Injected"));
    assert!(message.contains("is injected already"), "{message}");
    let (after, message) = inject(&run.stdout, &[], &with_status("pending"));
    assert_eq!(after["spec"]["containers"][1]["name"], "sidecar-nginx", "{message}");
    assert_eq!(after["metadata"]["annotations"]["sidecar-injector-webhook.morven.me/status"], "injected");
    for (text, message) in [
        ("containers: {}", "expected a list"),
        ("containers: [{image: a}]", "each element of containers needs a `name`"),
        ("{}", "the configuration has neither containers nor volumes"),
    ] {
        let run = convert(&["morvencao"], text);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{text}");
        assert!(run.stderr.contains(message), "{}", run.stderr);
    }
    let run = convert(&["morvencao"], "{containers: [{name: a, image: a}], other: 1}");
    assert!(run.code == Some(1) && run.stderr.contains("the injector ignores this field"), "{}", run.stderr);
}

const SIDECAR_SET: &str = r#"
apiVersion: apps.kruise.io/v1alpha1
kind: SidecarSet
metadata: {name: log-agent}
spec:
  selector: {matchLabels: {app: web}}
  namespaceSelector: {matchLabels: {team: shop}}
  containers:
  - name: agent
    image: agent:1
    volumeMounts: [{name: buffer, mountPath: /buffer}]
    shareVolumePolicy: {type: enabled}
    transferEnv: [{sourceContainerName: web, envName: ZONE}, {sourceContainerName: web, envNames: [A, B]}]
    upgradeStrategy: {upgradeType: ColdUpgrade}
  - {name: last, image: "last:${1}", podInjectPolicy: AfterAppContainer}
  volumes: [{name: buffer, emptyDir: {}}]
  imagePullSecrets: [{name: pull}]
  patchPodMetadata:
  - {annotations: {kept: theirs, new: ours}, patchPolicy: Retain}
  - {annotations: {replaced: ours}, patchPolicy: Overwrite}
  updateStrategy: {type: RollingUpdate, maxUnavailable: 1}
"#;

#[test]
fn sidecar_set_becomes_profile() {
    let run = convert(&["sidecarset"], SIDECAR_SET);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(
        run.stderr.contains("spec.updateStrategy: left out, because the profile's own field `rollout` configures"),
        "{}",
        run.stderr
    );
    assert!(run.stderr.contains("pillion rollout"), "{}", run.stderr);
    let linted = lint(&run.stdout, &[]);
    assert_eq!((linted.code, linted.stderr.as_str()), (Some(0), ""), "{}\n{}", linted.stdout, run.stdout);
    let profile = documents(&run.stdout).remove(0);
    assert_eq!(profile["spec"]["namespaceSelector"], json!({"matchLabels": {"team": "shop"}}));

    let anywhere = run.stdout.replace("  namespaceSelector:\n    matchLabels:\n      team: shop\n", "");
    assert_ne!(anywhere, run.stdout);
    let pod = |app: &str| {
        json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "labels": {"app": app}, "annotations": {"kept": "mine", "replaced": "mine"}},
        "spec": {
            "containers": [{"name": "web", "image": "web:1", "env": [{"name": "ZONE", "value": "z"}, {"name": "B", "value": "b"}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "data", "mountPath": "/buffer"}]}],
            "volumes": [{"name": "data", "emptyDir": {}}],
        }})
    };
    let (after, message) = inject(&anywhere, &[], &pod("web"));
    let containers = &after["spec"]["containers"];
    let names: Vec<_> = containers.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["agent", "web", "last"], "{message}");
    assert_eq!(
        containers[0]["volumeMounts"],
        json!([{"name": "buffer", "mountPath": "/buffer"}, {"name": "data", "mountPath": "/data"}])
    );
    assert_eq!(containers[0]["env"], json!([{"name": "ZONE", "value": "z"}, {"name": "B", "value": "b"}]));
    assert_eq!(containers[2]["image"], "last:${1}");
    assert_eq!(after["spec"]["imagePullSecrets"], json!([{"name": "pull"}]));
    let annotations = &after["metadata"]["annotations"];
    assert_eq!(
        (&annotations["kept"], &annotations["new"], &annotations["replaced"]),
        (&json!("mine"), &json!("ours"), &json!("ours"))
    );
    let (after, _) = inject(&anywhere, &[], &pod("db"));
    assert_eq!(after, pod("db"));

    let paused = SIDECAR_SET.replace("  selector:", "  injectionStrategy: {paused: true}\n  selector:");
    let run = convert(&["sidecarset"], &paused);
    assert!(run.stdout.is_empty() && run.stderr.contains("the SidecarSet is paused"), "{} {}", run.stdout, run.stderr);
}

#[test]
fn v1beta1_sidecar_set_keeps_its_namespaces() {
    let inside = |fields: &str| {
        let set = SIDECAR_SET.replace("v1alpha1", "v1beta1");
        set.replace("  namespaceSelector: {matchLabels: {team: shop}}", &format!("  specificNamespace: {{{fields}}}"))
    };
    for (fields, expected) in [
        ("namespaceSelector: {matchLabels: {team: shop}}", json!({"matchLabels": {"team": "shop"}})),
        (
            "namespace: shop",
            json!({"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["shop"]}]}),
        ),
    ] {
        let run = convert(&["sidecarset"], &inside(fields));
        assert!(!run.stderr.contains("specificNamespace"), "{}", run.stderr);
        assert_eq!(documents(&run.stdout)[0]["spec"]["namespaceSelector"], expected, "{}", run.stdout);
    }
}
