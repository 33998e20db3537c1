//! The program as a process, and a minimal HTTP client to send requests to it.

#![allow(dead_code, reason = "each test file is a separate crate and uses a part of this")]
#![expect(clippy::unwrap_used, reason = "tests and their helpers fail by panicking")]

pub(crate) mod collector;
pub(crate) mod metrics_page;
pub(crate) mod prometheus;
pub(crate) mod replicas;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

/// The time limit of any step on a busy machine.
const LIMIT: Duration = Duration::from_mins(1);
/// The interval between two checks.
const REST: Duration = Duration::from_millis(25);

/// Waits until `look` returns a value. Fails after [`LIMIT`] with a message that contains `what`.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "not within {LIMIT:?}: {what}");
        std::thread::sleep(REST);
    }
}

/// A running process of the program. The process is killed when this value is dropped.
pub(crate) struct Program {
    child: Child,
    stdout: Arc<Mutex<String>>,
    stderr: Arc<Mutex<String>>,
    /// The threads that read standard output and error until they close.
    readers: [JoinHandle<()>; 2],
}

impl Program {
    pub(crate) fn start(arguments: &[&str], folder: &Path) -> Self {
        Self::start_with(arguments, &[], folder)
    }

    /// Like [`Program::start`], but with these environment variables.
    pub(crate) fn start_with(arguments: &[&str], variables: &[(&str, &str)], folder: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pillion"));
        Self::spawn(command.args(arguments).envs(variables.iter().copied()), folder)
    }

    /// Like [`Program::start`], but `command` executes the program.
    pub(crate) fn start_with_wrapper(command: &[&str], arguments: &[&str], folder: &Path) -> Self {
        let (first, rest) = command.split_first().unwrap();
        Self::spawn(Command::new(first).args(rest).arg(env!("CARGO_BIN_EXE_pillion")).args(arguments), folder)
    }

    fn spawn(command: &mut Command, folder: &Path) -> Self {
        let mut child = command
            .current_dir(folder)
            // These variables specify a cluster. A test passes its own kubeconfig, or none.
            .env_remove("KUBECONFIG")
            .env_remove("KUBERNETES_SERVICE_HOST")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdout, of_stdout) = collect(child.stdout.take().unwrap());
        let (stderr, of_stderr) = collect(child.stderr.take().unwrap());
        Self { child, stdout, stderr, readers: [of_stdout, of_stderr] }
    }

    pub(crate) fn stdout(&self) -> String {
        self.stdout.lock().unwrap().clone()
    }

    pub(crate) fn stderr(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    /// Waits until standard output or standard error contains `text`.
    pub(crate) fn wait_for_output(&self, text: &str) {
        eventually(&format!("{text:?} in\n{}\n{}", self.stdout(), self.stderr()), || {
            (self.stdout().contains(text) || self.stderr().contains(text)).then_some(())
        });
    }

    /// Waits for `text` on standard output or standard error, and returns the word after it.
    pub(crate) fn word_after(&self, text: &str) -> String {
        eventually(&format!("a word after {text:?} in\n{}\n{}", self.stdout(), self.stderr()), || {
            let all = format!("{}\n{}", self.stdout(), self.stderr());
            let (_, rest) = all.split_once(text)?;
            // Waits for the whole line, because the word may be incomplete before.
            let (line, _) = rest.split_once('\n')?;
            line.split_whitespace().next().map(ToOwned::to_owned)
        })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the private memory of the process, in KiB.
    pub(crate) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Returns the processor time of the process, in hundredths of a second.
    pub(crate) fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The fields after the name, which may contain spaces, are the state and then numbers.
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    }

    pub(crate) fn terminate(&self) {
        let killed = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
    }

    pub(crate) fn wait_for_exit(&mut self) -> ExitStatus {
        let child = &mut self.child;
        let status = eventually("the process has ended", || child.try_wait().unwrap());
        // The threads may not have read the last output yet.
        eventually("all output has arrived", || self.readers.iter().all(JoinHandle::is_finished).then_some(()));
        status
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(stream: impl Read + Send + 'static) -> (Arc<Mutex<String>>, JoinHandle<()>) {
    let text = Arc::new(Mutex::new(String::new()));
    let into = Arc::clone(&text);
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let mut text = into.lock().unwrap();
            text.push_str(&line);
            text.push('\n');
        }
    });
    (text, reader)
}

/// The endpoint that `pillion dev` prints, and its sample review.
pub(crate) struct DevEndpoint {
    pub(crate) url: String,
    pub(crate) ca: PathBuf,
    pub(crate) review: String,
}

impl DevEndpoint {
    /// Waits until the program has printed its endpoint.
    pub(crate) fn of(program: &Program) -> Self {
        Self {
            ca: program.word_after("--cacert ").into(),
            review: std::fs::read_to_string(program.word_after("--data @")).unwrap(),
            url: format!("https://{}", program.word_after("https://")),
        }
    }

    /// Posts a body with these header lines, each including its line end.
    pub(crate) fn post(&self, headers: &str, body: &str) -> Answer {
        post_with(&self.url, &self.ca, headers, body)
    }
}

/// Writes a kubeconfig for an API server at this URL into a folder.
pub(crate) fn write_kubeconfig(folder: &Path, api_server: &str) {
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: \"{api_server}\"}}}}]\n\
         users: [{{name: u, user: {{token: t}}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
         current-context: x\n"
    );
    std::fs::write(folder.join("kubeconfig"), kubeconfig).unwrap();
}

/// Writes a kubeconfig for an API server that hangs: its socket is bound, but it never accepts connections.
pub(crate) fn hanging_api_server(folder: &Path) -> TcpListener {
    let api_server = TcpListener::bind("127.0.0.1:0").unwrap();
    write_kubeconfig(folder, &format!("http://{}", api_server.local_addr().unwrap()));
    api_server
}

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Sends a GET request to an address without TLS, such as `127.0.0.1:9090`.
pub(crate) fn get(address: &str, path: &str) -> Answer {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    exchange(stream, &format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"))
}

/// Posts JSON to `https://localhost:PORT/PATH`, and trusts only this CA.
pub(crate) fn post(url: &str, ca: &Path, body: &str) -> Answer {
    post_with(url, ca, "", body)
}

/// Like [`post`], but with additional header lines, each including its line end.
pub(crate) fn post_with(url: &str, ca: &Path, headers: &str, body: &str) -> Answer {
    let (address, path) = url.strip_prefix("https://").unwrap().split_once('/').unwrap();
    let head = format!(
        "POST /{path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         {headers}connection: close\r\n\r\n",
        body.len()
    );
    exchange(connect(url, ca), &(head + body))
}

/// Returns a client configuration that trusts only this CA, given as PEM.
pub(crate) fn trusting_ca(ca: &[u8]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

/// Opens a TLS connection to the host of `https://localhost:PORT/PATH`, and trusts only this CA.
pub(crate) fn connect(url: &str, ca: &Path) -> StreamOwned<ClientConnection, TcpStream> {
    let (address, _) = url.strip_prefix("https://").unwrap().split_once('/').unwrap();
    let (host, port) = address.split_once(':').unwrap();
    let config = trusting_ca(&std::fs::read(ca).unwrap());
    let name = ServerName::try_from(host.to_owned()).unwrap();
    let tcp = TcpStream::connect(("127.0.0.1", port.parse::<u16>().unwrap())).unwrap();
    tcp.set_read_timeout(Some(LIMIT)).unwrap();
    StreamOwned::new(ClientConnection::new(config, name).unwrap(), tcp)
}

fn exchange(mut stream: impl Read + Write, request: &str) -> Answer {
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(!head.to_ascii_lowercase().contains("transfer-encoding"), "this client supports no chunked bodies: {head}");
    Answer { status, body: body.to_owned() }
}

/// Returns the JSON patch in a response as a string, or `None` if the response contains no patch.
pub(crate) fn patch(answer: &Answer) -> Option<String> {
    assert_eq!(answer.status, 200, "{answer:?}");
    let review: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(review.pointer("/response/allowed"), Some(&Value::Bool(true)), "{answer:?}");
    let patch = review.pointer("/response/patch")?.as_str()?;
    let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, patch).unwrap();
    Some(String::from_utf8(bytes).unwrap())
}
