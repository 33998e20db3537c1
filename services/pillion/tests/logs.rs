//! Logs, metrics and traces must never contain any part of an object except its kind, namespace and name. A test sends
//! a pod with marked secrets through many code paths of the program, at the highest log level and with all traces.
//! Another test toggles the log level with a signal.

#![expect(clippy::unwrap_used, reason = "tests and their helpers fail by panicking")]

use std::process::Command;

use crate::support::collector::FakeCollector;
use crate::support::{DevEndpoint, Program, eventually, get};
use serde_json::{Value, json};

/// A string that does not occur in the program's output by chance.
const MARK: &str = "xq7secretzw";

/// Returns a pod in which every string that could be a secret contains [`MARK`].
fn pod() -> Value {
    let marked = |what: &str| format!("{MARK}-{what}");
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "web", "namespace": "default",
            "labels": {"team": marked("label")},
            "annotations": {"example.com/token": marked("annotation"), (format!("{MARK}/key")): "x"},
        },
        "spec": {
            "containers": [{
                "name": "app", "image": "app:1",
                "command": [marked("command")], "args": ["--password", marked("argument")],
                "env": [{"name": "PASSWORD", "value": marked("value")}, {"name": marked("name"), "value": "x"}],
                "livenessProbe": {"httpGet": {"path": "/", "port": 80, "httpHeaders": [{"name": "a", "value": marked("header")}]}},
            }],
            "volumes": [{"name": "v", "secret": {"secretName": marked("volume")}}],
        },
    })
}

fn review(object: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "0df28fbd-5f5f-11e8-bc74-36e6bb280816",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "default", "operation": "CREATE", "object": object,
            "userInfo": {"username": "somebody", "extra": {"token": [format!("{MARK}-extra")]}},
        },
    })
}

/// One profile is applied, one computes with marked strings and then fails, and one rejects the pod because of marked
/// strings.
const PROFILES: &str = r#"
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: applied}
spec:
  activation: Always
  template:
    metadata:
      annotations: {example.com/copied: "${object.metadata.annotations['example.com/token']}"}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: failing}
spec:
  activation: Always
  template:
    metadata:
      annotations: {example.com/number: "${string(int(object.metadata.annotations['example.com/token']))}"}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: refusing}
spec:
  activation: Requested
  failurePolicy: Fail
  template:
    metadata:
      annotations: {example.com/number: "${string(int(object.spec.containers[0].env[0].value))}"}
"#;

struct Dev {
    program: Program,
    endpoint: DevEndpoint,
    _folder: tempfile::TempDir,
}

impl Dev {
    fn start(more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("profiles.yaml"), PROFILES).unwrap();
        let ports = ["dev", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--profile", "profiles.yaml"];
        let program = Program::start(&[&ports[..], more].concat(), folder.path());
        Self { endpoint: DevEndpoint::of(&program), program, _folder: folder }
    }

    fn post(&self, headers: &str, body: &str) -> u16 {
        self.endpoint.post(headers, body).status
    }
}

#[test]
fn logs_metrics_and_spans_contain_only_names() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (collector, address) = FakeCollector::start(&runtime);
    let endpoint = format!("http://{address}");
    let everything =
        ["--log-level", "trace", "--log-format", "json", "--otlp-endpoint", &endpoint, "--trace-ratio", "1"];
    let mut dev = Dev::start(&everything);

    let injected = review(&pod()).to_string();
    assert_eq!(dev.post("", &injected), 200);
    let mut asks = pod();
    asks["metadata"]["annotations"]["pillion.dev/profiles"] = "refusing".into();
    assert_eq!(dev.post("", &review(&asks).to_string()), 200);
    let mut twice = injected.clone();
    let place = twice.find(r#""env":["#).unwrap();
    twice.insert_str(place, &format!(r#""env":[{{"name":"A","value":"{MARK}"}}],"#));
    assert_eq!(dev.post("", &twice), 200, "a duplicate key causes a rejection");
    let mut unmarked = pod();
    unmarked["metadata"]["namespace"] = "nobody-knows".into();
    let mut elsewhere = review(&unmarked);
    elsewhere["request"]["namespace"] = "nobody-knows".into();
    assert_eq!(dev.post("", &elsewhere.to_string()), 200);
    // Invalid requests: a review that is cut off within a secret, an object of the kind Secret instead of a review, and
    // two reviews that are not valid JSON.
    let cut = injected.find("annotation\"").unwrap();
    assert_eq!(dev.post("", &injected[..cut]), 400);
    assert_eq!(
        dev.post("", &format!("{{\"apiVersion\": \"v1\", \"kind\": \"Secret\", \"data\": {{\"a\": \"{MARK}\"}}}}")),
        400
    );
    assert_eq!(dev.post("", &injected.replacen("{\"apiVersion\":\"v1\"", MARK, 1)), 400);
    assert_eq!(dev.post("", &injected.replacen("\"spec\":{", &format!("\"spec\":{{\"\\ud800\":\"{MARK}\","), 1)), 400);
    assert_eq!(dev.post(&format!("authorization: Bearer {MARK}\r\n"), &injected), 200);
    assert_eq!(
        dev.post(&format!("traceparent: {MARK}\r\ntracestate: a={MARK}\r\nbaggage: a={MARK}\r\n"), &injected),
        200
    );

    eventually("spans of all requests have arrived", || (collector.spans("admission").len() >= 10).then_some(()));
    let metrics_at = dev.program.word_after("http://");
    let metrics = get(metrics_at.split('/').next().unwrap(), "/metrics").body;
    dev.program.terminate();
    assert_eq!(dev.program.wait_for_exit().code(), Some(0));
    let (log, spans) = (dev.program.stderr(), format!("{:?}", collector.all()));
    for proof in
        ["\"decided\"", "a request was rejected", "\"outcome\":\"injected\"", "\"outcome\":\"denied\"", "TRACE"]
    {
        assert!(log.contains(proof), "{proof} is missing in:\n{log}");
    }
    assert!(metrics.contains("pillion_webhook_requests_total") && spans.contains("self-check"), "{metrics}\n{spans}");
    for (what, text) in [("a line", &log), ("a metric", &metrics), ("a span", &spans)] {
        let leak = text.lines().find(|line| line.contains(MARK));
        assert_eq!(leak, None, "{what} contains the mark");
    }
}

#[test]
fn signal_toggles_decision_log() {
    let dev = Dev::start(&["--log-level", "info"]);
    let raise = || {
        let pid = dev.program.id().to_string();
        assert!(Command::new("kill").args(["-USR1", &pid]).status().unwrap().success());
    };
    let body = review(&pod()).to_string();
    let decided =
        || dev.program.stderr().lines().filter(|line| line.contains("decided") && line.contains("uid=")).count();
    assert_eq!(dev.post("", &body), 200);
    raise();
    dev.program.wait_for_output("SIGUSR1: logging in detail for a while");
    assert_eq!(decided(), 0);
    assert_eq!(dev.post("", &body), 200);
    eventually("the decision is logged", || (decided() == 1).then_some(()));
    raise();
    dev.program.wait_for_output("the configured log level is active again");
    assert_eq!(dev.post("", &body), 200);
    raise();
    eventually("the program logs in detail again", || {
        (dev.program.stderr().matches("in detail for a while").count() == 2).then_some(())
    });
    assert_eq!(decided(), 1, "{}", dev.program.stderr());
}
