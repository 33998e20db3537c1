//! Tests `pillion cost` as a process, on manifests that `pillion inject` has written.

use std::fs;
use std::process::Output;

use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::metrics::lint;

const PROFILE: &str = "\
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: shipper}
spec:
  activation: Always
  template:
    spec:
      initContainers:
      - {name: setup, image: 'setup:1', resources: {requests: {cpu: 30m, memory: 8Mi}}}
      containers:
      - {name: shipper, image: 'shipper:1', resources: {requests: {cpu: 20m, memory: 32Mi}, limits: {memory: 64Mi}}}
      - {name: exporter, image: 'exporter:1'}
";

const WEB: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: 'web:1', resources: {requests: {cpu: 5m}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: own, namespace: till}
spec: {containers: [{name: shipper, image: 'own:1', resources: {requests: {cpu: 7}}}]}
";

fn pillion(arguments: &[&str], folder: &TempDir, input: &str) -> Output {
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"));
    command.args(arguments).current_dir(folder.path()).write_stdin(input).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns a folder with a price table, and the injected manifest of a Deployment. The manifest also contains a pod
/// that is not injected.
fn injected() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("profile.yaml"), PROFILE).unwrap();
    fs::write(folder.path().join("prices.yaml"), "{currency: EUR, cpuCoreHour: 1, memoryGiBHour: 0}").unwrap();
    let (web, own) = WEB.split_once("---\n").unwrap();
    let output = pillion(&["inject", "-q", "-f", "-", "-p", "profile.yaml"], &folder, web);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let manifest = format!("{}---\n{own}", text(&output.stdout));
    (folder, manifest)
}

#[test]
fn counts_added_containers_of_manifest() {
    let (folder, manifest) = injected();
    let output = pillion(&["cost", "-f", "-", "--by", "container", "-o", "wide"], &folder, &manifest);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    // The init container requests 30m, and runs before the other containers, which request 25m together. So it adds 5m.
    assert_eq!(
        text(&output.stdout),
        "CONTAINER   PODS   CONTAINERS   NO REQUESTS   CPU   MEMORY   CPU LIMITS   MEMORY LIMITS\n\
         shipper     1      1            0             20m   32Mi     0m           64Mi\n\
         setup       1      1            0             5m    0Mi      0m           0Mi\n\
         exporter    1      1            1             0m    0Mi      0m           0Mi\n\
         TOTAL       1      3            1             25m   32Mi     0m           64Mi\n"
    );
}

#[test]
fn prices_add_monthly_cost() {
    let (folder, manifest) = injected();
    let arguments = ["cost", "-f", "-", "--by", "namespace,profile", "--prices", "prices.yaml", "-o"];
    let output = pillion(&[&arguments[..], &["json"]].concat(), &folder, &manifest);
    let value: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["rows"].as_array().unwrap().len(), 1, "{value:#}");
    let row = &value["rows"][0];
    assert_eq!(
        [&row["namespace"], &row["profile"], &row["container"]],
        [&json!("shop"), &json!("shipper"), &Json::Null]
    );
    assert_eq!([&row["monthlyCost"], &value["total"]["monthlyCost"]], [18.25, 18.25]);
    let yaml = pillion(&[&arguments[..], &["yaml"]].concat(), &folder, &manifest);
    assert_eq!(serde_saphyr::from_str::<Json>(&text(&yaml.stdout)).unwrap(), value);
}

#[test]
fn promtool_accepts_cost_as_metrics() {
    let (folder, manifest) = injected();
    let arguments =
        ["cost", "-f", "-", "--by", "namespace,profile,container", "--prices", "prices.yaml", "-o", "prometheus"];
    let output = pillion(&arguments, &folder, &manifest);
    let metrics = text(&output.stdout);
    assert_eq!((output.status.code(), lint(&metrics)), (Some(0), String::new()), "{metrics}");
    let labels = "tenant=\"shop\",profile=\"shipper\",container=\"shipper\"";
    let line = format!("pillion_injected_requests{{{labels},resource=\"cpu\",unit=\"core\"}} 0.02");
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
}

#[test]
fn mistakes_are_explained() {
    let (folder, manifest) = injected();
    fs::write(folder.path().join("wrong.yaml"), "currency: EUR\ncpuCoreHour: 1\nmemoryGbHour: 1\n").unwrap();
    for (arguments, expected) in [
        (&["cost", "-f", "-", "--prices", "wrong.yaml"][..], "wrong.yaml:3:1"),
        (&["cost", "-f", "-", "--prices", "missing.yaml"], "missing.yaml"),
        (&["cost", "-f", "missing.yaml"], "missing.yaml"),
        (&["cost", "-f", "-", "-n", "shop"], "cannot be used with"),
        (&["cost", "-f", "-", "-A"], "cannot be used with"),
        (&["cost", "-f", "-", "--by", "node"], "namespace, profile, container"),
    ] {
        let output = pillion(arguments, &folder, &manifest);
        let stderr = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), String::new()), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    let (_, own) = WEB.split_once("---\n").unwrap();
    let output = pillion(&["cost", "-f", "-"], &folder, own);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), String::new()));
    assert_eq!(text(&output.stderr), "no pod has a container that a profile added\n");
}
