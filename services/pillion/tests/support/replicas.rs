//! Runs the serving commands, with helpers for tests of their metrics.

use std::net::TcpListener;
use std::path::PathBuf;

use pillion_testkit::TestCa;

use super::{Program, get, patch, post_with};

/// A policy that counts requests by namespace.
pub(crate) const TENANTS: &str = concat!("--config=", env!("CARGO_MANIFEST_DIR"), "/tests/support/tenants.yaml");

const ANY_PORTS: [&str; 4] = ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];

/// `pillion dev` with a sample profile.
pub(crate) struct Dev {
    program: Program,
    url: String,
    authority: PathBuf,
    review: String,
    /// The address of its metrics.
    pub(crate) operations: String,
    _folder: tempfile::TempDir,
}

impl Dev {
    pub(crate) fn start(more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = Program::start(&[&["dev"], &ANY_PORTS[..], more].concat(), folder.path());
        Self {
            authority: program.word_behind("--cacert ").into(),
            review: std::fs::read_to_string(program.word_behind("--data @")).unwrap(),
            url: format!("https://{}", program.word_behind("https://")),
            operations: program.word_behind("Metrics http://").trim_end_matches("/metrics").to_owned(),
            program,
            _folder: folder,
        }
    }

    /// Sends a request that is injected, with these headers, each with its line break.
    pub(crate) fn inject(&self, headers: &str) {
        let answer = post_with(&self.url, &self.authority, headers, &self.review);
        assert!(patch(&answer).is_some(), "{answer:?}\n{}", self.program.stderr());
    }

    /// Sends a request that is not a review.
    pub(crate) fn send_nonsense(&self) {
        assert_eq!(post_with(&self.url, &self.authority, "", "{}").status, 400);
    }

    pub(crate) fn scrape(&self) -> String {
        get(&self.operations, "/metrics").body
    }
}

/// `pillion webhook` with an API server that does not respond.
pub(crate) struct Webhook {
    program: Program,
    /// The address of its metrics.
    pub(crate) operations: String,
    _folder: tempfile::TempDir,
    _api_server: TcpListener,
}

impl Webhook {
    pub(crate) fn start(more: &[&str]) -> Self {
        let (folder, api_server) = unanswered();
        TestCa::new().unwrap().serving_files(folder.path(), "tls", &["localhost"]).unwrap();
        let files = ["--kubeconfig", "kubeconfig", "--tls-cert", "tls.crt", "--tls-key", "tls.key"];
        let program = Program::start(&[&["webhook"], &ANY_PORTS[..], &files, more].concat(), folder.path());
        let operations = program.word_behind("metrics_address=");
        Self { program, operations, _folder: folder, _api_server: api_server }
    }

    pub(crate) fn scrape(&self) -> String {
        let answer = get(&self.operations, "/metrics");
        assert_eq!(answer.status, 200, "{}", self.program.stderr());
        answer.body
    }
}

/// `pillion controller` with an API server that does not respond.
pub(crate) struct Controller {
    program: Program,
    /// The address of its metrics.
    pub(crate) operations: String,
    _folder: tempfile::TempDir,
    _api_server: TcpListener,
}

impl Controller {
    pub(crate) fn start() -> Self {
        let (folder, api_server) = unanswered();
        let ports = ["--canary-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];
        let program =
            Program::start(&[&["controller", "--kubeconfig", "kubeconfig"], &ports[..]].concat(), folder.path());
        let operations = program.word_behind("metrics_address=");
        Self { program, operations, _folder: folder, _api_server: api_server }
    }

    pub(crate) fn scrape(&self) -> String {
        let answer = get(&self.operations, "/metrics");
        assert_eq!(answer.status, 200, "{}", self.program.stderr());
        answer.body
    }
}

/// Returns a folder with a kubeconfig, and the listener of the API server that it names.
fn unanswered() -> (tempfile::TempDir, TcpListener) {
    let folder = tempfile::tempdir().unwrap();
    // Bound, but never accepts a connection.
    let api_server = TcpListener::bind("127.0.0.1:0").unwrap();
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: \"http://{}\"}}}}]\n\
         users: [{{name: u, user: {{token: t}}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
         current-context: x\n",
        api_server.local_addr().unwrap()
    );
    std::fs::write(folder.path().join("kubeconfig"), kubeconfig).unwrap();
    (folder, api_server)
}
