//! Runs `pillion dev`, `pillion webhook` and `pillion controller` for tests of their metrics.

use std::net::TcpListener;

use pillion_testkit::TestCa;
use tempfile::TempDir;

use super::{DevEndpoint, Program, get, hanging_api_server, patch};

const ANY_PORTS: [&str; 4] = ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];

/// A process of `pillion dev` with a sample profile.
pub(crate) struct Dev {
    program: Program,
    endpoint: DevEndpoint,
    /// The address that serves the metrics.
    pub(crate) operations: String,
    _folder: TempDir,
}

impl Dev {
    pub(crate) fn start(more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = Program::start(&[&["dev"], &ANY_PORTS[..], more].concat(), folder.path());
        Self {
            endpoint: DevEndpoint::of(&program),
            operations: program.word_after("Metrics http://").trim_end_matches("/metrics").to_owned(),
            program,
            _folder: folder,
        }
    }

    /// Sends a review whose pod is injected, with these header lines, each including its line end.
    pub(crate) fn inject(&self, headers: &str) {
        let answer = self.endpoint.post(headers, &self.endpoint.review);
        assert!(patch(&answer).is_some(), "{answer:?}\n{}", self.program.stderr());
    }

    /// Sends a body that is not a review.
    pub(crate) fn send_nonsense(&self) {
        assert_eq!(self.endpoint.post("", "{}").status, 400);
    }

    pub(crate) fn scrape(&self) -> String {
        get(&self.operations, "/metrics").body
    }
}

/// A process of `pillion webhook` or `pillion controller` whose API server does not respond.
pub(crate) struct Unconnected {
    program: Program,
    /// The address that serves the metrics.
    pub(crate) operations: String,
    _folder: TempDir,
    _api_server: TcpListener,
}

impl Unconnected {
    pub(crate) fn webhook(more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        TestCa::new().unwrap().serving_files(folder.path(), "tls", &["localhost"]).unwrap();
        let files = ["webhook", "--tls-cert", "tls.crt", "--tls-key", "tls.key"];
        Self::start(folder, &[&files[..], &ANY_PORTS, more].concat())
    }

    pub(crate) fn controller() -> Self {
        let ports = ["controller", "--trust-probe-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];
        Self::start(tempfile::tempdir().unwrap(), &ports)
    }

    fn start(folder: TempDir, arguments: &[&str]) -> Self {
        let api_server = hanging_api_server(folder.path());
        let program = Program::start(&[arguments, &["--kubeconfig", "kubeconfig"]].concat(), folder.path());
        let operations = program.word_after("metrics_address=");
        Self { program, operations, _folder: folder, _api_server: api_server }
    }

    pub(crate) fn scrape(&self) -> String {
        let answer = get(&self.operations, "/metrics");
        assert_eq!(answer.status, 200, "{}", self.program.stderr());
        answer.body
    }
}
