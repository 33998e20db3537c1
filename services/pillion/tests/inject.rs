//! Tests `pillion inject` as a process: it reads manifests and prints injected manifests.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

use std::fs;
use std::process::{Command, Output};

use serde_json::{Value, json};

const PROFILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles");
const ASK: &str = "sidecar-injector-webhook.morven.me/inject";
const STATUS: &str = "sidecar-injector-webhook.morven.me/status";

const POD: &str = "\
apiVersion: v1
kind: Pod
metadata:
  name: web
  annotations:
    sidecar-injector-webhook.morven.me/inject: \"yes\"
spec:
  futureField: {kept: [1, 2.5, null]}
  containers:
  - name: app
    image: busybox
    args: [\"0644\", \"yes\", \"a: b\"]
    volumeMounts:
    - {name: files, mountPath: /files}
  volumes:
  - name: files
    configMap: {name: files, defaultMode: 0644}
";

const DEPLOYMENT: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: shop
spec:
  replicas: 3
  selector:
    matchLabels: {app: web}
  template:
    metadata:
      labels: {app: web}
      annotations:
        sidecar-injector-webhook.morven.me/inject: \"yes\"
    spec:
      containers:
      - name: app
        image: busybox
";

const CONFIG_MAP: &str = "\
apiVersion: v1
kind: ConfigMap
metadata:
  name: files
data:
  answer: \"yes\"
  script: |
    one
    two
";

fn inject_with(input: &str, arguments: &[&str]) -> Output {
    assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"))
        .args(["inject", "--profile", &format!("{PROFILES}/nginx")])
        .args(arguments)
        .write_stdin(input)
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Injects into the manifests `input`, which are passed on standard input. Returns standard output.
fn inject(input: &str, arguments: &[&str]) -> String {
    let output = inject_with(input, &[&["-f", "-"], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn documents(text: &str) -> Vec<Value> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    serde_saphyr::from_multiple_with_options(text, options).unwrap()
}

fn document(text: &str) -> Value {
    let mut all = documents(text);
    assert_eq!(all.len(), 1, "{text}");
    all.remove(0)
}

/// Asserts that a pod or template has each part of the shipped sidecar exactly once.
#[track_caller]
fn assert_injected(pod: &Value) {
    let named = |list: &str, name: &str| -> Vec<Value> {
        let list = pod["spec"][list].as_array().unwrap();
        list.iter().filter(|element| element["name"] == name).cloned().collect()
    };
    let sidecars = named("containers", "sidecar-nginx");
    assert_eq!(sidecars.len(), 1, "{pod:#}");
    assert_eq!(sidecars[0]["image"], "nginx:1.29");
    assert_eq!(sidecars[0]["volumeMounts"], json!([{"name": "nginx-conf", "mountPath": "/etc/nginx"}]));
    let volume = json!({"name": "nginx-conf", "configMap": {"name": "nginx-configmap"}});
    assert_eq!(named("volumes", "nginx-conf"), [volume]);
    assert_eq!(pod["metadata"]["annotations"][STATUS], "injected");
}

#[test]
fn namespace_has_the_label_that_the_api_server_sets() {
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("profile.yaml");
    let only_shop = "apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {name: shop-only}\nspec:\n  \
                     namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}\n  \
                     template: {metadata: {labels: {injected: \"yes\"}}}\n";
    fs::write(&profile, only_shop).unwrap();
    let namespaces = folder.path().join("namespaces.yaml");
    let namespace = |name: &str| {
        format!("kind: Namespace\nmetadata: {{name: {name}, labels: {{pillion.dev/injection: enabled}}}}\n---\n")
    };
    fs::write(&namespaces, namespace("shop") + &namespace("other")).unwrap();
    let (profile, namespaces) = (profile.to_str().unwrap(), namespaces.to_str().unwrap());
    for arguments in [&["--profile", profile][..], &["--profile", profile, "--namespace-file", namespaces]] {
        for (name, injected) in [("shop", json!("yes")), ("other", Value::Null)] {
            let manifest = DEPLOYMENT.replace("namespace: shop", &format!("namespace: {name}"));
            let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"))
                .args(["inject", "-f", "-"])
                .args(arguments)
                .write_stdin(manifest)
                .output()
                .unwrap();
            let after = document(&String::from_utf8(output.stdout.clone()).unwrap());
            let labels = &after["spec"]["template"]["metadata"]["labels"];
            assert_eq!(labels.get("injected").unwrap_or(&Value::Null), &injected, "{arguments:?}: {}", stderr(&output));
        }
    }
}

#[test]
fn injected_pod_keeps_authors_fields() {
    let before = document(POD);
    let output = inject_with(POD, &["-f", "-"]);
    let after = document(&String::from_utf8(output.stdout.clone()).unwrap());
    assert_injected(&after);
    assert_eq!(after["spec"]["futureField"], json!({"kept": [1, 2.5, null]}));
    assert_eq!(after["spec"]["containers"][0], before["spec"]["containers"][0]);
    assert_eq!(after["spec"]["volumes"][0]["configMap"]["defaultMode"], 420);
    assert_eq!(after["metadata"].get("namespace"), None);
    assert_eq!(stderr(&output), "Pod default/web: injected\n  nginx: applied\n");
}

#[test]
fn injected_template_keeps_no_invented_fields() {
    let after = document(&inject(DEPLOYMENT, &[]));
    let template = &after["spec"]["template"];
    assert_injected(template);
    let keys: Vec<_> = template.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["metadata", "spec"]);
    let metadata: Vec<_> = template["metadata"].as_object().unwrap().keys().collect();
    assert_eq!(metadata, ["labels", "annotations"]);
    let mut rest = after.clone();
    rest["spec"]["template"] = document(DEPLOYMENT)["spec"]["template"].clone();
    assert_eq!(rest, document(DEPLOYMENT));
}

/// Injects the profiles in a folder into an object, and returns the object.
fn injected(profile: &str, object: &Value) -> Value {
    let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"))
        .args(["inject", "--profile", &format!("{PROFILES}/{profile}"), "-f", "-", "-o", "json", "-q"])
        .write_stdin(object.to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn template_gets_result_of_created_pod() {
    let template = || json!({"metadata": {"labels": {"team": "red"}}, "spec": {"containers": [{"name": "app", "image": "app:1"}]}});
    // Each kind of workload, with the owner of its pods in a cluster, and labels that only the created pod has.
    let kinds = [
        ("apps/v1", "Deployment", ("apps/v1", "ReplicaSet", "web-5d9c7b"), json!({"pod-template-hash": "5d9c7b"})),
        ("apps/v1", "ReplicaSet", ("apps/v1", "ReplicaSet", "web"), json!({})),
        ("apps/v1", "StatefulSet", ("apps/v1", "StatefulSet", "web"), json!({})),
        ("apps/v1", "DaemonSet", ("apps/v1", "DaemonSet", "web"), json!({})),
        ("v1", "ReplicationController", ("v1", "ReplicationController", "web"), json!({})),
        ("batch/v1", "Job", ("batch/v1", "Job", "web"), json!({})),
        ("batch/v1", "CronJob", ("batch/v1", "Job", "web-29000000"), json!({})),
    ];
    for (version, kind, (owner_version, owner_kind, owner), labels) in kinds {
        let metadata = json!({"name": "web", "namespace": "shop"});
        let (workload, at) = if kind == "CronJob" {
            (json!({"jobTemplate": {"spec": {"template": template()}}}), "/spec/jobTemplate/spec/template")
        } else {
            (json!({"template": template()}), "/spec/template")
        };
        let workload = json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": workload});
        let offline = injected("istio", &workload).pointer(at).unwrap().clone();
        assert_eq!(offline["metadata"].get("ownerReferences"), None, "{kind}");
        let of_workload = format!("kubernetes://apis/{version}/namespaces/shop/{}s/web", kind.to_lowercase());
        assert!(offline.to_string().contains(&of_workload), "{kind}: {offline}");

        let mut created = template();
        created["apiVersion"] = json!("v1");
        created["kind"] = json!("Pod");
        created["metadata"]["namespace"] = json!("shop");
        created["metadata"]["generateName"] = json!(format!("{owner}-"));
        created["metadata"]["ownerReferences"] = json!([
            {"apiVersion": owner_version, "kind": owner_kind, "name": owner, "uid": "1", "controller": true}]);
        for (label, value) in labels.as_object().unwrap() {
            created["metadata"]["labels"][label] = value.clone();
        }
        let mut in_cluster = injected("istio", &created);
        for (label, _) in labels.as_object().unwrap() {
            in_cluster["metadata"]["labels"].as_object_mut().unwrap().remove(label);
        }
        assert_eq!(offline["spec"], in_cluster["spec"], "{kind}");
        assert_eq!(offline["metadata"]["labels"], in_cluster["metadata"]["labels"], "{kind}");
    }
}

#[test]
fn document_order_and_other_kinds_are_preserved() {
    let bare = POD.replace("\"yes\"\nspec", "\"no\"\nspec");
    let input = format!("{CONFIG_MAP}---\n{POD}---\n# a remark\n---\n{bare}---\n{DEPLOYMENT}");
    let after = documents(&inject(&input, &[]));
    let kinds: Vec<_> = after.iter().map(|object| object["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["ConfigMap", "Pod", "Pod", "Deployment"]);
    assert_eq!(after[0], document(CONFIG_MAP));
    assert_injected(&after[1]);
    assert_eq!(after[2], document(&bare));
    assert_injected(&after[3]["spec"]["template"]);
}

#[test]
fn list_items_are_injected_in_place() {
    let items = [document(CONFIG_MAP), document(POD), document(DEPLOYMENT)];
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let after: Value = serde_json::from_str(&inject(&list.to_string(), &["-o", "json"])).unwrap();
    assert_eq!(after["items"][0], items[0]);
    assert_injected(&after["items"][1]);
    assert_injected(&after["items"][2]["spec"]["template"]);
    assert_eq!(after["items"].as_array().unwrap().len(), 3);
}

#[test]
fn reads_several_files_and_json_lists() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("a.yaml"), CONFIG_MAP).unwrap();
    fs::write(path("b.json"), document(POD).to_string()).unwrap();
    let output = inject_with("", &["-f", &path("a.yaml"), "-f", &path("b.json"), "-o", "json", "-q"]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&list["kind"], &list["items"][0]["kind"]), (&json!("List"), &json!("ConfigMap")));
    assert_injected(&list["items"][1]);
    assert!(output.stderr.is_empty(), "{}", stderr(&output));
    let one: Value = serde_json::from_str(&inject(POD, &["-o", "json"])).unwrap();
    assert_injected(&one);
}

#[test]
fn patch_output_applies_to_its_document() {
    let bare = "apiVersion: v1\nkind: Pod\nmetadata: {name: bare}\nspec: {containers: [{name: a, image: b}]}\n";
    let without_metadata = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x", "namespace": "asks"},
        "spec": {"template": {"spec": {"containers": [{"name": "a", "image": "b"}]}}}});
    let folder = tempfile::tempdir().unwrap();
    let namespace = folder.path().join("namespace.yaml");
    let asks = format!(
        "kind: Namespace\nmetadata:\n  name: asks\n  labels: {{pillion.dev/injection: enabled}}\n  annotations: {{{ASK}: \"yes\"}}\n"
    );
    fs::write(&namespace, asks).unwrap();
    let namespace = namespace.display().to_string();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [document(POD), without_metadata]}).to_string();
    for input in [POD, DEPLOYMENT, bare, CONFIG_MAP, &without_metadata.to_string(), &list] {
        let arguments = ["--namespace-file", &namespace, "--namespace", "other"];
        let expected = document(&inject(input, &arguments));
        let patch: Value = serde_json::from_str(&inject(input, &[&arguments[..], &["-o", "patch"]].concat())).unwrap();
        let mut patched = document(input);
        assert_eq!(patch.as_array().unwrap().is_empty(), patched == expected, "{patch:#}");
        json_patch::patch(&mut patched, &serde_json::from_value::<json_patch::Patch>(patch).unwrap()).unwrap();
        assert_eq!(patched, expected, "{input}");
    }
    let injected = document(&inject(&without_metadata.to_string(), &["--namespace-file", &namespace]));
    assert_injected(&injected["spec"]["template"]);
}

#[test]
fn injecting_again_changes_nothing() {
    let input = format!("{CONFIG_MAP}---\n{POD}---\n{DEPLOYMENT}");
    let once = inject(&input, &[]);
    assert_ne!(once, input);
    let output = inject_with(&once, &["-f", "-"]);
    assert_eq!(String::from_utf8(output.stdout.clone()).unwrap(), once);
    assert!(stderr(&output).contains("Pod default/web: unchanged"), "{}", stderr(&output));
    assert_eq!(inject(&once, &["-o", "patch"]), "[]\n[]\n[]\n");
}

#[test]
fn namespace_labels_and_annotations_apply() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("namespace.yaml").display().to_string();
    let with = |labels: &str, annotations: &str| {
        let text =
            format!("kind: Namespace\nmetadata:\n  name: shop\n  labels: {labels}\n  annotations: {annotations}\n");
        fs::write(&path, text).unwrap();
        let output = inject_with(&POD.replace(ASK, "unrelated"), &["-f", "-", "--namespace-file", &path]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        (document(&String::from_utf8(output.stdout.clone()).unwrap()), stderr(&output))
    };
    let ask = format!("{{{ASK}: \"yes\"}}");
    let (pod, text) = with("{pillion.dev/injection: enabled}", &ask);
    assert_injected(&pod);
    assert!(text.starts_with("Pod shop/web: injected"), "{text}");
    let (pod, text) = with("{}", &ask);
    assert_eq!(pod["spec"]["containers"].as_array().unwrap().len(), 1);
    assert!(text.contains("not opted in"), "{text}");
    let (pod, text) = with("{pillion.dev/injection: enabled}", "{}");
    assert_eq!(pod["spec"]["containers"].as_array().unwrap().len(), 1);
    assert!(text.contains("requests a profile"), "{text}");
}

#[test]
fn opted_out_pod_is_unchanged() {
    let input = POD.replace("  annotations:", "  labels: {pillion.dev/inject: \"false\"}\n  annotations:");
    let output = inject_with(&input, &["-f", "-"]);
    assert_eq!(document(&String::from_utf8(output.stdout.clone()).unwrap()), document(&input));
    assert!(stderr(&output).contains("the pod opts out"), "{}", stderr(&output));
}

#[test]
fn name_conflict_is_reported_and_changes_nothing() {
    let input = POD.replace("name: app", "name: sidecar-nginx");
    let output = inject_with(&input, &["-f", "-"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(document(&String::from_utf8(output.stdout.clone()).unwrap()), document(&input));
    assert!(stderr(&output).contains("nginx: skipped, a name that the profile adds is taken"), "{}", stderr(&output));
}

#[test]
fn rejected_pod_prints_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let profile = fs::read_to_string(format!("{PROFILES}/nginx/profile.yaml")).unwrap();
    let path = folder.path().join("strict.yaml").display().to_string();
    fs::write(&path, profile.replace("activation: Requested", "activation: Always\n  failurePolicy: Fail")).unwrap();
    let input = format!("{CONFIG_MAP}---\n{}", POD.replace("name: app", "name: sidecar-nginx"));
    let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"))
        .args(["inject", "-q", "-f", "-", "--profile", &path])
        .write_stdin(input)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(output.stdout.is_empty());
    assert!(stderr(&output).contains("Pod default/web: denied"), "{}", stderr(&output));
}

#[test]
fn input_and_profile_mistakes_have_positions() {
    for (input, place) in [
        ("a: 1\nb: [1\nc: 2\n", "<stdin>:3:"),
        ("apiVersion: v1\nkind: Pod\nkind: Pod\n", "<stdin>:3:1"),
        ("apiVersion: v1\n", "<stdin>:1:1"),
        ("- kind: Pod\n", "<stdin>:1:1"),
        ("kind: Y\n", "<stdin>:1:7"),
    ] {
        let output = inject_with(input, &["-f", "-"]);
        assert_eq!(output.status.code(), Some(1), "{input}");
        assert!(output.stdout.is_empty());
        assert!(stderr(&output).contains(place), "{input}: {}", stderr(&output));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.yaml").display().to_string();
    let profile = fs::read_to_string(format!("{PROFILES}/nginx/profile.yaml")).unwrap();
    fs::write(&path, profile.replace("  activation:", "  activaton:")).unwrap();
    let output = inject_with(POD, &["-f", "-", "--profile", &path]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let text = stderr(&output);
    assert!(text.contains(&format!("{path}:7:3")) && text.contains("did you mean `activation`?"), "{text}");
    assert_eq!(inject_with(POD, &[]).status.code(), Some(2));
    assert_eq!(inject_with(POD, &["-f", "/nowhere/pod.yaml"]).status.code(), Some(1));
}

#[test]
fn saved_review_gets_webhooks_response() {
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "shop", "operation": "CREATE", "userInfo": {"username": "someone"}, "object": document(POD),
    }});
    let output = inject_with(&review.to_string(), &["--review", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["kind"], "AdmissionReview");
    assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
    assert_eq!(answer["response"]["allowed"], true);
    assert_eq!(answer["response"]["patchType"], "JSONPatch");

    let output = inject_with("{\"kind\": \"Pod\"}", &["--review", "-"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    assert_eq!(inject_with("", &["--review", "-", "-f", "-"]).status.code(), Some(2));
}

/// Helm parses YAML 1.1. It must read the same objects from the output of `pillion inject`.
#[test]
fn helm_reads_the_same_objects() {
    let text = inject(&format!("{CONFIG_MAP}---\n{POD}---\n{DEPLOYMENT}"), &[]);
    let chart = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(chart.path().join(name), text).unwrap();
    fs::create_dir(chart.path().join("templates")).unwrap();
    write("Chart.yaml", "{apiVersion: v2, name: read, version: 0.1.0}");
    write("input.yaml", &text);
    write(
        "templates/list.yaml",
        "{{- $items := list -}}{{- range splitList \"---\\n\" (.Files.Get \"input.yaml\") -}}{{- $items = append $items (fromYaml .) -}}\
         {{- end -}}{{ dict \"apiVersion\" \"v1\" \"kind\" \"List\" \"items\" $items | toJson }}",
    );
    let helm = pillion_testkit::tools::program("helm").unwrap();
    let output = Command::new(helm).arg("template").arg(chart.path()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let printed = String::from_utf8(output.stdout).unwrap();
    let list: Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    assert_eq!(list["items"], Value::from(documents(&text)));
}

#[test]
fn child_inherits_sidecar_in_any_order() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, kind: &str, spec: &Value| {
        let profile =
            json!({"apiVersion": "pillion.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        let path = folder.path().join(name);
        fs::write(&path, profile.to_string()).unwrap();
        path.display().to_string()
    };
    let parent = json!({
        "activation": "Never",
        "parameters": [{"name": "on", "type": "boolean", "default": false, "annotation": "example.com/on", "sources": ["Namespace"]}],
        "matchConditions": [{"name": "on", "expression": "params.on"}],
        "template": {"spec": {"containers": [{"name": "agent", "image": "agent:1"}]}},
    });
    let parent = write("parent", "ClusterInjectionProfile", &parent);
    let extending = |on: bool| json!({"extends": {"name": "parent"}, "parameters": [{"name": "on", "default": on}]});
    let on = write("on", "InjectionProfile", &extending(true));
    let off = write("off", "InjectionProfile", &extending(false));
    let images = |profiles: [&String; 2]| {
        let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"));
        command
            .args(["inject", "-o", "json", "-f", "-"])
            .args(profiles.into_iter().flat_map(|path| ["--profile", path]));
        let output = command.write_stdin(POD).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let pod: Value = serde_json::from_slice(&output.stdout).unwrap();
        let containers = pod["spec"]["containers"].as_array().unwrap().iter();
        containers.map(|container| container["image"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(images([&on, &parent]), ["busybox", "agent:1"]);
    assert_eq!(images([&parent, &on]), ["busybox", "agent:1"]);
    assert_eq!(images([&off, &parent]), ["busybox"]);
}

/// Profiles that read facts outside the pod: facts about its service account, its owner, and the cluster.
const READERS: &str = "
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: account}
spec:
  activation: Always
  matchConditions:
  - {name: c, expression: \"params.role == 'reader' && cluster.?region.orValue('') == 'eu-west-1'\"}
  parameters:
  - {name: role, type: string, default: none, annotation: example.com/role, sources: [ServiceAccount]}
  template: {metadata: {annotations: {example.com/account: 'yes'}}}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: owner}
spec:
  activation: Always
  matchConditions:
  - {name: c, expression: \"owner.?name.orValue('') == 'web' && owner.?labels[?'team'].orValue('') == 'red'\"}
  template: {metadata: {annotations: {example.com/owner: 'yes'}}}
";

#[test]
fn lookups_use_other_objects_of_manifest() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    let facts = file("facts.yaml", &format!("{POLICY}cluster: {{region: eu-west-1}}\n"));
    let profiles = file("profiles.yaml", READERS);
    let labels = json!({"team": "red"});
    let spec = json!({"serviceAccountName": "builder", "containers": [{"name": "app", "image": "app:1"}]});
    let workload = |kind: &str, name: &str| {
        json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "labels": labels},
            "spec": {"template": {"metadata": {}, "spec": spec}}})
    };
    let reference =
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "u", "controller": true});
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "builder", "annotations": {"example.com/role": "reader"}}},
        workload("Deployment", "web"),
        workload("StatefulSet", "other"),
        workload("StatefulSet", "web"),
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-0", "ownerReferences": [reference]}, "spec": spec},
    ]});
    let annotations = |arguments: &[&str]| -> Vec<Value> {
        let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"))
            .args(["inject", "--profile", &profiles, "-f", "-", "-o", "json", "-q"])
            .args(arguments)
            .write_stdin(list.to_string())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let list: Value = serde_json::from_slice(&output.stdout).unwrap();
        let of = |pod: &Value, name: &str| pod["metadata"]["annotations"][format!("example.com/{name}")] == "yes";
        let pods = list["items"].as_array().unwrap().iter().skip(1).map(|item| {
            let pod = if item["kind"] == "Pod" { item } else { &item["spec"]["template"] };
            json!([of(pod, "account"), of(pod, "owner")])
        });
        pods.collect()
    };
    let with_facts = annotations(&["--config", &facts]);
    assert_eq!(json!(with_facts), json!([[true, true], [true, false], [true, true], [true, true]]));
    let without = annotations(&[]);
    assert_eq!(json!(without), json!([[false, true], [false, false], [false, true], [false, true]]));
}

/// The header of a policy file.
const POLICY: &str = "apiVersion: config.pillion.dev/v1alpha1\nkind: WebhookPolicy\n";

const TENANTS: &str = "\
apiVersion: pillion.dev/v1alpha1
kind: InjectionProfile
metadata: {name: side, namespace: shop}
spec:
  template:
    spec:
      containers:
      - {name: side, image: ghcr.io/team/side:1}
";

#[test]
fn guardrails_limit_tenants_profile() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let profile = file("tenant.yaml", TENANTS);
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop}, spec: {containers: [{name: app, image: a}]}}";
    for (guardrails, injected, message) in [
        ("registries: [ghcr.io/team]", true, ""),
        ("registries: [ghcr.io/teammate]", false, "/spec/containers/side/image: \"ghcr.io/team/side:1\" is not from"),
        ("minimumPodSecurity: restricted", false, "Pod Security control"),
        ("maxContainers: 0", false, "at most 0 containers"),
    ] {
        let policy = file("policy.yaml", &format!("{POLICY}guardrails: {{{guardrails}}}\n"));
        let output = inject_with(pod, &["--profile", &profile, "--config", &policy, "-f", "-"]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout).contains("ghcr.io/team/side"), injected, "{guardrails}");
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
    }
    let wrong = file("policy.yaml", &format!("{POLICY}guardrails:\n  maxContainers: 1\n  registries: [nginx]\n"));
    let output = inject_with(pod, &["--config", &wrong, "-f", "-"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    assert!(stderr(&output).contains("policy.yaml:5:16"), "{}", stderr(&output));
}
