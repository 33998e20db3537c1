//! Traces: what a collector gets of a request that belongs to somebody's trace, and that a collector which is not there
//! costs nobody anything.

#![expect(clippy::unwrap_used, reason = "a test says what is wrong by panicking, also in its helpers")]

mod support;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use support::{Program, eventually, patch, post_with};
use tonic::{Request, Response, Status};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// Keeps the spans that it is sent.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let spans = resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans);
        self.0.lock().unwrap().extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// A collector on a loopback port, for as long as the runtime lives.
    fn start(runtime: &tokio::runtime::Runtime) -> (Self, SocketAddr) {
        let collector = Self::default();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let server = tonic::transport::Server::builder().add_service(TraceServiceServer::new(collector.clone()));
        runtime.spawn(server.serve(address));
        (collector, address)
    }

    fn spans(&self, name: &str) -> Vec<Span> {
        self.0.lock().unwrap().iter().filter(|span| span.name == name).cloned().collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// The text of a span's attribute.
fn attribute(span: &Span, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == key)?;
    Some(match found.value.clone()?.value? {
        Value::StringValue(text) => text,
        Value::BoolValue(bool) => bool.to_string(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    })
}

/// `pillion dev` that sends its traces there, and a request to it.
struct Dev {
    program: Program,
    url: String,
    authority: PathBuf,
    review: String,
    _folder: tempfile::TempDir,
}

impl Dev {
    fn start(more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ports = ["dev", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];
        let program = Program::start(&[&ports[..], more].concat(), folder.path());
        Self {
            authority: program.word_behind("--cacert ").into(),
            review: std::fs::read_to_string(program.word_behind("--data @")).unwrap(),
            url: format!("https://{}", program.word_behind("https://")),
            program,
            _folder: folder,
        }
    }

    fn send(&self, headers: &str) {
        assert!(patch(&post_with(&self.url, &self.authority, headers, &self.review)).is_some());
    }

    /// How long the middle one of many requests takes.
    fn usual_time(&self) -> Duration {
        let mut times: Vec<_> = (0..41)
            .map(|_| {
                let began = Instant::now();
                self.send("");
                began.elapsed()
            })
            .collect();
        times.sort();
        *times.get(times.len() / 2).unwrap()
    }

    /// Asks it to end; how long that takes.
    fn end(&mut self) -> Duration {
        let began = Instant::now();
        self.program.terminate();
        assert_eq!(self.program.ended().code(), Some(0), "{}", self.program.stderr());
        began.elapsed()
    }
}

#[test]
fn a_request_is_a_span_in_the_senders_trace_with_a_span_for_each_part() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (collector, address) = Collector::start(&runtime);
    // Nothing is traced but what the sender has decided to trace.
    let mut dev = Dev::start(&["--otlp-endpoint", &format!("http://{address}"), "--trace-ratio", "0"]);
    dev.send(&format!("traceparent: 00-{TRACE}-{PARENT}-01\r\n"));
    dev.send("");
    dev.send(&format!("traceparent: 00-{TRACE}-{PARENT}-00\r\n"));
    for bad in ["nonsense".to_owned(), format!("00-{TRACE}-{PARENT}-01-{}", "x".repeat(8000))] {
        dev.send(&format!("traceparent: {bad}\r\n"));
    }
    let broken = post_with(&dev.url, &dev.authority, &format!("traceparent: 00-{TRACE}-{PARENT}-01\r\n"), "{}");
    assert_eq!(broken.status, 400);
    dev.end();

    eventually("the last span is sent", || (collector.spans("admission").len() >= 2).then_some(()));
    let spans = collector.spans("admission");
    assert_eq!(spans.len(), 2, "{spans:?}");
    for span in &spans {
        assert_eq!((hex(&span.trace_id).as_str(), hex(&span.parent_span_id).as_str()), (TRACE, PARENT));
    }
    let outcome = |wanted: &str| spans.iter().find(|span| attribute(span, "outcome").as_deref() == Some(wanted));
    let injected = outcome("injected").unwrap();
    for (key, expected) in [
        ("endpoint", "any"),
        ("namespace", "default"),
        ("reason", "injected"),
        ("uid", "00000000-0000-4000-8000-000000000001"),
        ("dry_run", "true"),
        ("http.response.status_code", "200"),
    ] {
        assert_eq!(attribute(injected, key).as_deref(), Some(expected), "{key}: {injected:?}");
    }
    for part in ["receive", "decide", "respond"] {
        let parts = collector.spans(part);
        let of_it: Vec<_> = parts.iter().filter(|span| span.parent_span_id == injected.span_id).collect();
        let [span] = of_it.as_slice() else { panic!("not one {part}: {parts:?}") };
        assert_eq!(hex(&span.trace_id), TRACE);
        assert!(span.start_time_unix_nano >= injected.start_time_unix_nano);
        assert!(span.end_time_unix_nano <= injected.end_time_unix_nano);
    }
    let refused = outcome("bad_request").unwrap();
    assert_eq!(attribute(refused, "reason").as_deref(), Some("no_review"));
    assert!(!dev.program.stderr().contains("admission{"), "the log is as without traces: {}", dev.program.stderr());
}

#[test]
fn a_collector_that_is_not_there_makes_nothing_slower_and_the_end_no_later_than_it_may_be() {
    let usual = Dev::start(&[]).usual_time();
    // Nobody listens; and somebody listens and says nothing.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for address in [closed, silent.local_addr().unwrap()] {
        let mut dev = Dev::start(&["--otlp-endpoint", &format!("http://{address}"), "--trace-ratio", "1"]);
        let traced = dev.usual_time();
        assert!(traced < usual * 3 + Duration::from_millis(20), "{traced:?}, without traces {usual:?}");
        let ended = dev.end();
        assert!(ended < Duration::from_secs(10), "{ended:?}");
    }
}
