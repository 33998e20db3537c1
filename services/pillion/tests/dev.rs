//! Tests `pillion dev` as a process: the profiles that it serves, the commands that it prints, and its responses to
//! reviews that a real API server sent.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Program, eventually, patch, post};

const ANY_PORTS: [&str; 5] = ["dev", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];

fn write_profile(folder: &Path, image: &str) {
    let text = format!(
        "apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {{name: helper}}\n\
         spec: {{template: {{spec: {{containers: [{{name: helper, image: \"{image}\"}}]}}}}}}\n"
    );
    fs::write(folder.join("helper.yaml"), text).unwrap();
}

/// The URL, the CA file and the review file in the printed `curl` command.
struct Sample {
    url: String,
    ca: PathBuf,
    review: PathBuf,
}

impl Sample {
    fn printed_by(dev: &Program) -> Self {
        Self {
            ca: dev.word_after("--cacert ").into(),
            review: dev.word_after("--data @").into(),
            url: format!("https://{}", dev.word_after("https://")),
        }
    }

    fn send(&self) -> Option<String> {
        patch(&post(&self.url, &self.ca, &fs::read_to_string(&self.review).unwrap()))
    }
}

#[test]
fn changed_profiles_are_reloaded() {
    let folder = tempfile::tempdir().unwrap();
    write_profile(folder.path(), "helper:1");
    let mut dev = Program::start(&[&ANY_PORTS[..], &["--profile", "."]].concat(), folder.path());
    let sample = Sample::printed_by(&dev);
    dev.wait_for_output("applies to every pod that its selectors match");
    assert!(sample.send().unwrap().contains("helper:1"));

    write_profile(folder.path(), "helper:2");
    eventually("the changed profile is served", || sample.send().filter(|patch| patch.contains("helper:2")));

    fs::write(folder.path().join("helper.yaml"), "apiVersion: pillion.dev/v1alpha1\nkind: [\n").unwrap();
    dev.wait_for_output("still active: helper");
    // Standard error may arrive later than standard output, so the test waits for it.
    eventually("standard error names the file", || dev.stderr().contains("helper.yaml").then_some(()));
    assert!(sample.send().unwrap().contains("helper:2"));

    write_profile(folder.path(), "helper:3");
    eventually("the repaired profile is served", || sample.send().filter(|patch| patch.contains("helper:3")));

    let made = sample.ca.parent().unwrap();
    dev.terminate();
    assert_eq!(dev.wait_for_exit().code(), Some(0), "{}", dev.stderr());
    assert!(!made.exists(), "the temporary folder was not removed");
}

#[test]
fn embedded_profile_is_the_default() {
    let folder = tempfile::tempdir().unwrap();
    let dev = Program::start(&ANY_PORTS, folder.path());
    let sample = Sample::printed_by(&dev);
    dev.wait_for_output("default: enabled");
    assert!(sample.send().unwrap().contains("nginx"));
}

#[test]
fn checkout_serves_nginx_profile() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let dev = Program::start(&ANY_PORTS, &root);
    let sample = Sample::printed_by(&dev);
    dev.wait_for_output("  from profiles/nginx\n");
    dev.wait_for_output("  others in profiles: --profile profiles/NAME; all at once: --profile profiles\n");
    let served = dev.stdout();
    let served = served.split("\nProfiles").nth(1).unwrap().split("\nNamespaces").next().unwrap();
    assert_eq!(served.lines().count(), 4, "only the printed file: {served}");
    let patch = sample.send().unwrap();
    assert!(patch.contains("sidecar-nginx"), "{patch}");
}

#[test]
fn folder_profiles_is_served() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("profiles")).unwrap();
    write_profile(&folder.path().join("profiles"), "helper:1");
    let dev = Program::start(&ANY_PORTS, folder.path());
    dev.wait_for_output("  from profiles\n");
    assert!(Sample::printed_by(&dev).send().unwrap().contains("helper:1"));
    assert!(!dev.stdout().contains("others in"), "{}", dev.stdout());
}

/// Runs a line as if a user had pasted it into a shell whose `PATH` does not contain `pillion`.
fn run_pasted(line: &str, folder: &Path) -> String {
    let output = Command::new("sh").args(["-c", line]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Waits for the line of standard output that contains `text`, and returns it.
fn line_with(dev: &Program, text: &str) -> String {
    dev.wait_for_output(text);
    let stdout = dev.stdout();
    stdout.lines().find(|line| line.contains(text)).unwrap().trim().to_owned()
}

#[test]
fn printed_curl_command_shows_patch() {
    let folder = tempfile::tempdir().unwrap();
    write_profile(folder.path(), "helper:1");
    let dev = Program::start(&[&ANY_PORTS[..], &["--profile", "."]].concat(), folder.path());
    let patch: Value = serde_json::from_str(&run_pasted(&line_with(&dev, "curl "), folder.path())).unwrap();
    assert!(patch.is_array() && patch.to_string().contains("helper:1"), "{patch}");
}

#[test]
fn printed_inject_command_works() {
    let folder = tempfile::tempdir().unwrap();
    write_profile(folder.path(), "helper:1");
    let dev = Program::start(&[&ANY_PORTS[..], &["--profile", "helper.yaml"]].concat(), folder.path());
    assert!(run_pasted(&line_with(&dev, " inject "), folder.path()).contains("helper:1"));
}

#[test]
fn namespaces_come_from_flags_and_files() {
    let folder = tempfile::tempdir().unwrap();
    write_profile(folder.path(), "helper:1");
    fs::write(folder.path().join("namespaces.yaml"), "till: held\nout: {labels: {a: b}}\n").unwrap();
    let more = ["--profile", ".", "--namespace", "shop=required", "--namespace-file", "namespaces.yaml"];
    // The file with the namespaces is in the folder of profiles. `dev` ignores files in that folder that contain no
    // profile.
    let dev = Program::start(&[&ANY_PORTS[..], &more].concat(), folder.path());
    let sample = Sample::printed_by(&dev);
    for line in ["  shop: required\n", "  till: held\n", "  out: not opted in\n"] {
        dev.wait_for_output(line);
    }
    let review = fs::read_to_string(&sample.review).unwrap();
    let send = |namespace: &str| {
        let review = review.replace("\"namespace\": \"shop\"", &format!("\"namespace\": \"{namespace}\""));
        patch(&post(&sample.url, &sample.ca, &review))
    };
    assert!(send("shop").is_some() && send("till").is_some());
    assert!(send("out").is_none() && send("unknown").is_none());
}

/// Returns the last version of a file that the tutorial shows.
fn tutorial_file(file: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tutorial.md");
    let page = fs::read_to_string(page).unwrap();
    let begin = format!("```yaml\n# {file}\n");
    page.rsplit(&begin).next().unwrap().split("```").next().unwrap().to_owned()
}

#[test]
fn tutorials_profile_is_served() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("shipper")).unwrap();
    let text = tutorial_file("shipper/profile.yaml");
    fs::write(folder.path().join("shipper/profile.yaml"), &text).unwrap();
    let named = ["-p", "shipper", "--namespace", "shop=enabled"];
    let dev = Program::start(&[&ANY_PORTS[..], &named].concat(), folder.path());
    let patch = Sample::printed_by(&dev).send().unwrap();
    assert!(patch.contains("\"shipper\"") && patch.contains("/logs/"), "{patch}");
    fs::write(folder.path().join("shipper/profile.yaml"), text.replace("busybox:1.37", "busybox:1.36")).unwrap();
    eventually("the changed profile is served", || {
        Sample::printed_by(&dev).send().filter(|patch| patch.contains("busybox:1.36"))
    });

    // If a profile's namespace is not among those that `dev` serves, the profile applies to no pod, and the program
    // reports that.
    let dev = Program::start(&[&ANY_PORTS[..], &["-p", "shipper"]].concat(), folder.path());
    dev.wait_for_output("not shop, to which profile shop/shipper applies; to add it: --namespace shop=enabled");
}

/// Returns a profile of 1.5 KB with three expressions.
fn large_profile(kind: &str, metadata: &Value, number: usize) -> Value {
    let env: Vec<_> = (0..16)
        .map(|index| json!({"name": format!("SETTING_{index}"), "value": format!("value {index} of profile {number}")}))
        .collect();
    json!({
        "apiVersion": "pillion.dev/v1alpha1", "kind": kind, "metadata": metadata,
        "spec": {
            "matchConditions": [{"name": "pod-network", "expression": "!object.spec.?hostNetwork.orValue(false)"}],
            "template": {
                "metadata": {"annotations": {"example.com/of": "${primary.name}"}},
                "spec": {
                    "containers": [{
                        "name": "agent", "image": format!("registry.example.com/agent-{number}:1.0"),
                        "args": ["--log-level=warn", "--name=${primary.name}"], "env": env,
                        "ports": [{"name": "agent", "containerPort": 15_001}],
                        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
                        "readinessProbe": {"httpGet": {"path": "/ready", "port": 15_001}, "periodSeconds": 5},
                        "volumeMounts": [{"name": "agent", "mountPath": "/etc/agent", "readOnly": true}],
                    }],
                    "volumes": [{"name": "agent", "configMap": {"name": "agent"}}],
                },
            },
        },
    })
}

/// Loads 600 profiles: half of them are cluster profiles, and half belong to tenants. A compiled profile takes 12 KiB
/// of memory. A profile would take 28 KiB if all files stayed in memory while they are read.
#[test]
fn loading_profiles_bounds_memory() {
    const LIMIT_KIB: u64 = 16 * 1024;
    let folder = tempfile::tempdir().unwrap();
    for number in 0..600 {
        let name = format!("tenant-{number:03}");
        let profile = match number % 2 {
            0 => large_profile("ClusterInjectionProfile", &json!({"name": name}), number),
            _ => large_profile("InjectionProfile", &json!({"name": "agent", "namespace": name}), number),
        };
        let text = profile.to_string();
        assert!((1_400..1_700).contains(&text.len()), "{} bytes", text.len());
        fs::write(folder.path().join(format!("{name}.json")), text).unwrap();
    }
    let dev = Program::start(&[&ANY_PORTS[..], &["--profile", ".", "--log-level", "info"]].concat(), folder.path());
    assert!(Sample::printed_by(&dev).send().is_some());
    dev.wait_for_output("  tenant-599/agent (");
    assert!(dev.memory() < LIMIT_KIB, "{} KiB", dev.memory());
}

#[test]
fn invalid_flags_fail_at_once() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, expected) in [
        (&["--profile", "nowhere"][..], "nowhere"),
        (&["--namespace-file", "nowhere.yaml"][..], "nowhere.yaml"),
        (&["--listen", "192.0.2.1:0"][..], "--listen"),
    ] {
        let last = if arguments.contains(&"--listen") { &ANY_PORTS[..1] } else { &ANY_PORTS[..] };
        let mut dev = Program::start(&[last, arguments].concat(), folder.path());
        assert_eq!(dev.wait_for_exit().code(), Some(2));
        dev.wait_for_output(expected);
        assert!(!dev.stdout().contains("Serving"), "{}", dev.stdout());
    }
}

/// A profile that applies to every pod, so that the pod of every review is injected.
const FOR_EVERY_POD: &str = "apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {name: everybody}\n\
                       spec:\n  activation: Always\n  template:\n    metadata: {annotations: {example.com/x: 'yes'}}\n\
                       \x20   spec: {containers: [{name: extra, image: 'extra:1'}]}\n";

fn reviews(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|file| file.extension().is_some_and(|ext| ext == "json")).collect();
    files.sort();
    files
}

#[test]
fn captured_reviews_are_answered() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = reviews(&root.join("services/engine/tests/reviews"));
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("everybody.yaml"), FOR_EVERY_POD).unwrap();
    let arguments =
        ["dev", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--profile", ".", "--folder", "state"];
    let program = Program::start(&arguments, folder.path());
    let url = program.word_after("Serving ").replace("/mutate", "/mutate/required");
    let ca = folder.path().join("state/ca.crt");
    assert!(files.len() >= 10, "{files:?}");
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let review: Value = serde_json::from_str(&text).unwrap();
        let answer = post(&url, &ca, &text);
        let patch = patch(&answer);
        let answered: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(answered["response"]["uid"], review["request"]["uid"], "{}", file.display());
        let is_new_pod = review["request"]["operation"] == "CREATE" && review["request"]["kind"]["kind"] == "Pod";
        assert_eq!(patch.is_some(), is_new_pod, "{}", file.display());
        let Some(patch) = patch else { continue };
        let mut object = review["request"]["object"].clone();
        let operations: json_patch::Patch = serde_json::from_str(&patch).unwrap();
        json_patch::patch(&mut object, &operations).unwrap();
        let containers = object["spec"]["containers"].as_array_mut().unwrap();
        assert_eq!(containers.pop().unwrap()["name"], "extra");
        // Without the added parts, the object equals the one that the API server sent.
        let annotations = object["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove("example.com/x").unwrap();
        annotations.remove("pillion.dev/injected").unwrap();
        if review["request"]["object"]["metadata"].get("annotations").is_none() {
            object["metadata"].as_object_mut().unwrap().remove("annotations");
        }
        assert_eq!(object, review["request"]["object"], "{}", file.display());
    }
}
