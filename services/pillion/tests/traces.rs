//! Tests the spans of requests that a real OpenTelemetry Collector receives. A slow or missing collector must not
//! affect requests.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests and their helpers fail by panicking")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::collector::FakeCollector;
use crate::support::{DevEndpoint, Program, connect, eventually, get, patch};
use pillion_testkit::TestCa;
use serde_json::Value;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// The names of the child spans of an injected request, in their order.
const PARTS: [&str; 6] = ["receive", "resolve", "match", "merge", "self-check", "serialise"];

/// The OpenTelemetry Collector, which writes received spans to a file.
struct Collector {
    process: Child,
    file: PathBuf,
    clear: SocketAddr,
    tls: SocketAddr,
    ca: String,
    _folder: tempfile::TempDir,
}

impl Collector {
    fn start() -> Self {
        let program = pillion_testkit::tools::program("otelcol").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let ca = TestCa::new().unwrap();
        ca.serving_files(folder.path(), "tls", &["localhost"]).unwrap();
        std::fs::write(folder.path().join("ca.crt"), ca.bundle_pem()).unwrap();
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (clear, tls) = (free(), free());
        let at = |name: &str| folder.path().join(name).display().to_string();
        let config = format!(
            "receivers:\n  otlp:\n    protocols: {{grpc: {{endpoint: \"{clear}\"}}}}\n  \
               otlp/tls:\n    protocols: {{grpc: {{endpoint: \"{tls}\", tls: {{cert_file: {}, key_file: {}}}}}}}\n\
             exporters:\n  file: {{path: {}, flush_interval: 100ms}}\n\
             service:\n  telemetry: {{metrics: {{level: none}}}}\n  \
               pipelines: {{traces: {{receivers: [otlp, otlp/tls], exporters: [file]}}}}\n",
            at("tls.crt"),
            at("tls.key"),
            at("spans.json"),
        );
        std::fs::write(at("config.yaml"), config).unwrap();
        let log = std::fs::File::create(at("log")).unwrap();
        let process = Command::new(program)
            .args(["--config", &format!("file:{}", at("config.yaml"))])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let log = || std::fs::read_to_string(at("log")).unwrap();
        eventually("the collector is ready", || log().contains("Everything is ready").then_some(()));
        Self { process, file: at("spans.json").into(), clear, tls, ca: at("ca.crt"), _folder: folder }
    }

    /// Returns all received spans, each with its resource.
    fn spans(&self) -> Vec<Span> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        // The collector may still be writing the last line.
        let batches = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut spans = Vec::new();
        for batch in batches {
            for resource in batch["resourceSpans"].as_array().unwrap() {
                let scopes = resource["scopeSpans"].as_array().unwrap().iter();
                let all = scopes.flat_map(|scope| scope["spans"].as_array().unwrap());
                spans.extend(all.map(|span| Span { span: span.clone(), resource: resource["resource"].clone() }));
            }
        }
        spans
    }

    fn wait_for(&self, name: &str, count: usize) -> Vec<Span> {
        eventually(&format!("{count} spans {name}"), || {
            let found: Vec<_> = self.spans().into_iter().filter(|span| span.text("name") == name).collect();
            (found.len() >= count).then_some(found)
        })
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A span in the format in which the collector writes it, with its resource.
#[derive(Clone, Debug)]
struct Span {
    span: Value,
    resource: Value,
}

impl Span {
    fn text(&self, key: &str) -> &str {
        self.span[key].as_str().unwrap_or_default()
    }

    fn time(&self, key: &str) -> u64 {
        self.text(key).parse().unwrap()
    }

    /// Returns an attribute as a string, with commas between the elements of a list, or `None` if the span lacks the
    /// attribute.
    fn attribute(&self, key: &str) -> Option<String> {
        attribute(&self.span, key)
    }

    fn is_error(&self) -> bool {
        self.span["status"]["code"] == 2
    }
}

fn attribute(of: &Value, key: &str) -> Option<String> {
    fn text(value: &Value) -> String {
        if let Some(values) = value["arrayValue"]["values"].as_array() {
            return values.iter().map(text).collect::<Vec<_>>().join(",");
        }
        let plain = ["stringValue", "intValue", "boolValue"].iter().find_map(|kind| value.get(*kind)).unwrap();
        plain.as_str().map_or_else(|| plain.to_string(), str::to_owned)
    }
    let found = of["attributes"].as_array()?.iter().find(|attribute| attribute["key"] == key)?;
    Some(text(&found["value"]))
}

/// A profile that injects into every pod, and a profile that rejects every pod that requests it.
const PROFILES: &str = "\
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: helper}
spec:
  activation: Always
  template: {spec: {containers: [{name: helper, image: \"helper:1\"}]}}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: impossible}
spec:
  activation: Requested
  failurePolicy: Fail
  template: {metadata: {annotations: {example.com/number: \"${string(int('none'))}\"}}}
";

/// A process of `pillion dev` that exports traces, and its endpoint for requests.
struct Dev {
    program: Program,
    endpoint: DevEndpoint,
    folder: tempfile::TempDir,
}

impl Dev {
    fn start(more: &[&str], variables: &[(&str, &str)], policy: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("profiles.yaml"), PROFILES).unwrap();
        let policy = format!("apiVersion: config.pillion.dev/v1alpha1\nkind: WebhookPolicy\n{policy}");
        std::fs::write(folder.path().join("policy.yaml"), policy).unwrap();
        let ports = ["dev", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];
        let files = ["--profile", "profiles.yaml", "--config", "policy.yaml"];
        let quiet = [("PILLION_LOG_LEVEL", "info")];
        let program =
            Program::start_with(&[&ports[..], &files, more].concat(), &[&quiet, variables].concat(), folder.path());
        Self { endpoint: DevEndpoint::of(&program), program, folder }
    }

    fn send(&self, headers: &str) {
        assert!(patch(&self.endpoint.post(headers, &self.endpoint.review)).is_some());
    }

    /// Sends a review that a profile rejects.
    fn send_denied(&self, headers: &str) {
        let mut review: Value = serde_json::from_str(&self.endpoint.review).unwrap();
        review["request"]["object"]["metadata"]["annotations"]["pillion.dev/profiles"] = "impossible".into();
        let answer = self.endpoint.post(headers, &review.to_string());
        assert!(answer.body.contains("\"allowed\":false"), "{answer:?}");
    }

    /// Opens a connection for many requests, like the API server.
    fn connection(&self) -> Connection {
        let path = self.endpoint.url.rsplit_once('/').unwrap().1;
        let head = "host: x\r\ncontent-type: application/json\r\ncontent-length";
        let request =
            format!("POST /{path} HTTP/1.1\r\n{head}: {}\r\n\r\n{}", self.endpoint.review.len(), self.endpoint.review);
        Connection { stream: connect(&self.endpoint.url, &self.endpoint.ca), request }
    }

    fn metric(&self, name: &str) -> u64 {
        let address = self.program.word_after("http://");
        let metrics = get(address.split('/').next().unwrap(), "/metrics").body;
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
        line.trim().parse().unwrap()
    }

    /// Terminates the process, and returns how long it took.
    fn end(&mut self) -> Duration {
        let began = Instant::now();
        self.program.terminate();
        assert_eq!(self.program.wait_for_exit().code(), Some(0), "{}", self.program.stderr());
        began.elapsed()
    }
}

struct Connection {
    stream: rustls::StreamOwned<rustls::ClientConnection, std::net::TcpStream>,
    request: String,
}

impl Connection {
    /// Sends a request, and returns how long it took.
    fn time(&mut self) -> Duration {
        let began = Instant::now();
        self.stream.write_all(self.request.as_bytes()).unwrap();
        let (mut text, mut piece) = (Vec::new(), [0; 16 * 1024]);
        loop {
            let read = self.stream.read(&mut piece).unwrap();
            assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&text));
            text.extend_from_slice(piece.get(..read).unwrap());
            if let Some((head, body)) = std::str::from_utf8(&text).unwrap().split_once("\r\n\r\n") {
                let (_, length) = head.split_once("content-length: ").unwrap();
                if body.len() == length.lines().next().unwrap().parse::<usize>().unwrap() {
                    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
                    return began.elapsed();
                }
            }
        }
    }
}

fn traceparent(flags: &str) -> String {
    format!("traceparent: 00-{TRACE}-{PARENT}-{flags}\r\n")
}

#[test]
fn request_span_joins_trace_and_has_child_spans() {
    let collector = Collector::start();
    // The program traces only the requests that the sender has sampled.
    let endpoint = format!("http://{}", collector.clear);
    let resource = [("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=web-0,k8s.namespace.name=pillion")];
    let mut dev = Dev::start(&["--otlp-endpoint", &endpoint, "--trace-ratio", "0"], &resource, "");
    dev.send(&traceparent("01"));
    dev.send("");
    dev.send(&traceparent("00"));
    for bad in ["nonsense".to_owned(), format!("00-{TRACE}-{PARENT}-01-{}", "x".repeat(8000))] {
        dev.send(&format!("traceparent: {bad}\r\n"));
    }
    assert_eq!(dev.endpoint.post(&traceparent("01"), "{}").status, 400);
    dev.end();

    let spans = collector.wait_for("admission", 2);
    assert_eq!(spans.len(), 2, "{spans:?}");
    for span in &spans {
        assert_eq!((span.text("traceId"), span.text("parentSpanId")), (TRACE, PARENT));
        assert_eq!(span.span["kind"], 2, "the kind of a server span");
        assert!(!span.is_error(), "{span:?}");
        for (key, value) in [
            ("service.name", "pillion"),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("k8s.pod.name", "web-0"),
            ("k8s.namespace.name", "pillion"),
        ] {
            assert_eq!(attribute(&span.resource, key).as_deref(), Some(value), "{key}: {:?}", span.resource);
        }
    }
    let outcome =
        |wanted: &str| spans.iter().find(|span| span.attribute("outcome").as_deref() == Some(wanted)).unwrap();
    let injected = outcome("injected");
    for (key, expected) in [
        ("endpoint", "any"),
        ("namespace", "default"),
        ("reason", "injected"),
        ("profiles", "helper"),
        ("uid", "00000000-0000-4000-8000-000000000001"),
        ("dry_run", "true"),
        ("http.response.status_code", "200"),
    ] {
        assert_eq!(injected.attribute(key).as_deref(), Some(expected), "{key}: {injected:?}");
    }
    let mut last = injected.time("startTimeUnixNano");
    let all = collector.spans();
    for part in PARTS {
        let below = |span: &&Span| span.text("name") == part && span.text("parentSpanId") == injected.text("spanId");
        let of_it: Vec<_> = all.iter().filter(below).collect();
        let [span] = of_it.as_slice() else { panic!("not exactly one {part}: {all:?}") };
        assert_eq!(span.text("traceId"), TRACE);
        assert!(last <= span.time("startTimeUnixNano"), "{part} started before the previous part had ended");
        last = span.time("endTimeUnixNano");
    }
    assert!(last <= injected.time("endTimeUnixNano"));
    assert_eq!(outcome("bad_request").attribute("reason").as_deref(), Some("no_review"));
    let below_bad = all.iter().filter(|span| span.text("parentSpanId") == outcome("bad_request").text("spanId"));
    assert_eq!(below_bad.map(|span| span.text("name")).collect::<Vec<_>>(), ["receive"]);
    assert!(
        !dev.program.stderr().contains("admission{"),
        "the log differs from the log without traces: {}",
        dev.program.stderr()
    );
}

#[test]
fn tls_collector_is_verified_and_ratio_applies() {
    let collector = Collector::start();
    let endpoint = format!("https://localhost:{}", collector.tls.port());
    let dev = Dev::start(
        &["--otlp-endpoint", &endpoint, "--otlp-ca", &collector.ca],
        &[("OTEL_SERVICE_NAME", "injector")],
        "traces: {ratio: 1}\n",
    );
    dev.send("");
    dev.send(&traceparent("00"));
    let span = collector.wait_for("admission", 1).remove(0);
    assert_eq!(attribute(&span.resource, "service.name").as_deref(), Some("injector"));
    assert_eq!(span.text("parentSpanId"), "");
    eventually("failed exports are counted", || {
        (dev.metric("pillion_webhook_trace_spans_exported_total") == 7).then_some(())
    });

    // A collector with an untrusted certificate receives no spans, and the program logs that.
    let dev = Dev::start(&["--otlp-endpoint", &endpoint, "--trace-ratio", "1"], &[], "");
    dev.send("");
    dev.program.wait_for_output("the collector rejects traces");
    let dropped = "pillion_webhook_trace_spans_dropped_total{reason=\"export_failed\"}";
    eventually("failed exports are counted", || (dev.metric(dropped) == 7).then_some(()));
}

#[test]
fn failed_and_rejected_requests_are_traced_within_limit() {
    let collector = Collector::start();
    let endpoint = format!("http://{}", collector.clear);
    let policy =
        "traces: {ratio: 0, errorsPerSecond: 3}\nrequests: {maxBody: 3Mi, maxBodyMemory: 4Mi, bodyTimeout: 30s}\n";
    let mut dev = Dev::start(&["--otlp-endpoint", &endpoint], &[], policy);
    dev.send_denied(&traceparent("00"));
    let span = collector.wait_for("admission", 1).remove(0);
    assert_eq!((span.text("traceId"), span.text("parentSpanId")), (TRACE, PARENT), "{span:?}");
    for (key, expected) in [
        ("sampled_for", "error"),
        ("endpoint", "any"),
        ("namespace", "default"),
        ("outcome", "denied"),
        ("http.response.status_code", "200"),
    ] {
        assert_eq!(span.attribute(key).as_deref(), Some(expected), "{key}: {span:?}");
    }
    assert!(span.attribute("profiles").unwrap().contains("impossible") && !span.is_error(), "{span:?}");
    assert!(span.time("startTimeUnixNano") < span.time("endTimeUnixNano"));

    // An incomplete body uses three quarters of the memory for bodies. To free memory for a complete body, the replica
    // drops the incomplete one.
    let large = format!("{}{}", dev.endpoint.review, " ".repeat(3 * 1024 * 1024 - dev.endpoint.review.len()));
    let mut slow = connect(&dev.endpoint.url, &dev.endpoint.ca);
    let path = dev.endpoint.url.rsplit_once('/').unwrap().1;
    let head = "host: x\r\ncontent-type: application/json\r\ncontent-length";
    write!(slow, "POST /{path} HTTP/1.1\r\n{head}: {}\r\n\r\n", large.len()).unwrap();
    slow.write_all(large.get(1..).unwrap().as_bytes()).unwrap();
    slow.flush().unwrap();
    let taken = u64::try_from(large.len() - 1).unwrap();
    eventually("the memory is in use", || (dev.metric("pillion_webhook_body_memory_bytes") >= taken).then_some(()));
    assert_eq!(dev.endpoint.post("", large.get(..large.len() / 2).unwrap()).status, 200);
    drop(slow);
    let spans = collector.wait_for("admission", 2);
    let shed = spans.iter().find(|span| span.attribute("outcome").as_deref() == Some("shed")).unwrap();
    assert!(shed.is_error(), "{shed:?}");
    assert_eq!(shed.attribute("http.response.status_code").as_deref(), Some("503"));

    let before = collector.spans().len();
    let began = Instant::now();
    for _ in 0..60 {
        dev.send_denied("");
    }
    let seconds = began.elapsed().as_secs() + 1;
    dev.end();
    let most = usize::try_from(3 * (seconds + 1)).unwrap();
    let more =
        eventually("the last spans have arrived", || Some(collector.spans().len() - before).filter(|more| *more >= 3));
    assert!(more <= most, "{more} of 60 in {seconds} s");
    assert!(collector.spans().iter().all(|span| span.text("name") == "admission"), "no child spans");
}

#[test]
fn trace_ratio_follows_policy_file() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (collector, address) = FakeCollector::start(&runtime);
    let mut dev = Dev::start(&["--otlp-endpoint", &format!("http://{address}")], &[], "traces: {ratio: 0}\n");
    dev.send("");
    let file = dev.folder.path().join("policy.yaml");
    let policy = std::fs::read_to_string(&file).unwrap().replace("ratio: 0", "ratio: 1");
    std::fs::write(dev.folder.path().join("fresh.yaml"), policy).unwrap();
    std::fs::rename(dev.folder.path().join("fresh.yaml"), &file).unwrap();
    dev.program.wait_for_output("traces.ratio");
    dev.send("");
    dev.end();
    eventually("the spans have arrived", || (collector.spans("serialise").len() == 1).then_some(()));
    assert_eq!(collector.spans("admission").len(), 1);
}

#[test]
fn collector_headers_come_from_environment_and_stay_secret() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (collector, address) = FakeCollector::start(&runtime);
    let headers = [("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20hushhush")];
    let endpoint = format!("http://{address}");
    let arguments = ["--otlp-endpoint", &endpoint, "--trace-ratio", "1", "--log-level", "trace"];
    let dev = Dev::start(&arguments, &headers, "");
    dev.send("");
    let sent =
        eventually("a batch has arrived", || Some(collector.header("authorization")).filter(|found| !found.is_empty()));
    assert!(sent.iter().all(|value| value == "Bearer hushhush"), "{sent:?}");
    assert!(!dev.program.stderr().contains("hushhush"), "{}", dev.program.stderr());
}

#[test]
fn silent_collector_slows_no_request_and_bounds_memory() {
    const REQUESTS: usize = 1_000;
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let plain = Dev::start(&[], &[], "");
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let mut traced = Dev::start(&["--otlp-endpoint", &endpoint, "--trace-ratio", "1"], &[], "");
    let (mut one, mut other) = (plain.connection(), traced.connection());
    let p99 = |mut times: Vec<Duration>| {
        times.sort();
        *times.get(times.len() * 99 / 100).unwrap()
    };
    // The requests alternate between both programs, so that a busy machine affects both equally.
    let mut measure = || {
        let (without, with) = (0..REQUESTS).map(|_| (one.time(), other.time())).unzip();
        (p99(without), p99(with))
    };
    measure();
    let full = "pillion_webhook_trace_spans_dropped_total{reason=\"queue_full\"}";
    // A request has seven spans. The queue and the batch that is being sent have room for 366 requests.
    eventually("the queue is full", || (traced.metric(full) > 0).then_some(()));
    let memory = traced.program.memory();
    // If requests waited for the collector, every request would be slower. A busy machine delays only some of them.
    let is_slower = |(without, with): &(Duration, Duration)| *with >= *without * 2 + Duration::from_millis(5);
    let mut rounds = Vec::new();
    while rounds.len() < 5 && rounds.last().is_none_or(is_slower) {
        rounds.push(measure());
    }
    let grown = traced.program.memory().saturating_sub(memory);
    println!("p99 without traces, and with a silent collector: {rounds:?}; memory grew by {grown} KiB");
    assert!(!rounds.last().is_some_and(is_slower), "p99 without traces, and with a silent collector: {rounds:?}");
    assert!(grown < 4 * 1024, "memory grew by {grown} KiB over a multiple of {REQUESTS} requests");
    assert!(traced.metric(full) > 2_000, "{}", traced.metric(full));
    let ended = traced.end();
    assert!(ended < Duration::from_secs(10), "{ended:?}");
}

#[test]
fn missing_collector_is_logged_once_without_delaying_exit() {
    let mut dev = Dev::start(&["--otlp-endpoint", "http://127.0.0.1:1", "--trace-ratio", "1"], &[], "");
    let failed = "pillion_webhook_trace_spans_dropped_total{reason=\"export_failed\"}";
    for batch in 1..=2 {
        dev.send("");
        eventually("spans are dropped", || (dev.metric(failed) >= batch * 7).then_some(()));
    }
    assert_eq!(dev.program.stderr().matches("the collector rejects traces").count(), 1, "{}", dev.program.stderr());
    let ended = dev.end();
    assert!(ended < Duration::from_secs(10), "{ended:?}");
}

#[test]
fn missing_system_cas_suggest_collector_ca() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("profiles.yaml"), PROFILES).unwrap();
    let ports = ["dev", "--profile", "profiles.yaml", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];
    let arguments = [&ports[..], &["--otlp-endpoint", "https://127.0.0.1:1"]].concat();
    // Simulates a container image without CA certificates.
    let nobody = [("SSL_CERT_FILE", "/dev/null"), ("SSL_CERT_DIR", "/dev/null")];
    let mut program = Program::start_with(&arguments, &nobody, folder.path());
    assert_eq!(program.wait_for_exit().code(), Some(2));
    program.wait_for_output("without --otlp-ca; the system may have no CAs");
}

#[test]
fn invalid_collector_address_fails_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(&["dev", "--otlp-endpoint", "collector:4317"], folder.path());
    assert_eq!(program.wait_for_exit().code(), Some(2));
    program.wait_for_output("expected a URL such as http://");
}
