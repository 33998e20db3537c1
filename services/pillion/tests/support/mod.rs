//! Runs the program as a process, with a minimal HTTP client for it.

#![allow(dead_code, reason = "each test file is a separate crate and uses a part of this")]
#![expect(clippy::unwrap_used, reason = "tests and their helpers fail by panicking")]

pub(crate) mod collector;
pub(crate) mod metrics_page;
pub(crate) mod prometheus;
pub(crate) mod replicas;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

/// The longest wait for anything, on a busy machine.
const LIMIT: Duration = Duration::from_mins(1);
/// The pause between two attempts.
const REST: Duration = Duration::from_millis(25);

/// Waits until `look` returns a value.
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

/// A running process of the program. Dropping it kills it.
pub(crate) struct Program {
    child: Child,
    stdout: Arc<Mutex<String>>,
    stderr: Arc<Mutex<String>>,
    /// The threads that read its output until it closes.
    readers: [JoinHandle<()>; 2],
}

impl Program {
    pub(crate) fn start(arguments: &[&str], folder: &Path) -> Self {
        Self::start_with(arguments, &[], folder)
    }

    /// Like [`Program::start`], with environment variables.
    pub(crate) fn start_with(arguments: &[&str], variables: &[(&str, &str)], folder: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pillion"));
        Self::spawn(command.args(arguments).envs(variables.iter().copied()), folder)
    }

    /// Like [`Program::start`], through a command that executes the program in its place.
    pub(crate) fn start_under(command: &[&str], arguments: &[&str], folder: &Path) -> Self {
        let (first, rest) = command.split_first().unwrap();
        Self::spawn(Command::new(first).args(rest).arg(env!("CARGO_BIN_EXE_pillion")).args(arguments), folder)
    }

    fn spawn(command: &mut Command, folder: &Path) -> Self {
        let mut child = command
            .current_dir(folder)
            // Removes the variables that name a cluster, so that only the test's own is used.
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

    /// Waits until standard output or error contains this text.
    pub(crate) fn tells(&self, text: &str) {
        eventually(&format!("{text:?} in\n{}\n{}", self.stdout(), self.stderr()), || {
            (self.stdout().contains(text) || self.stderr().contains(text)).then_some(())
        });
    }

    /// Returns the word that follows this text on standard output or error.
    pub(crate) fn word_behind(&self, text: &str) -> String {
        eventually(&format!("a word behind {text:?} in\n{}\n{}", self.stdout(), self.stderr()), || {
            let all = format!("{}\n{}", self.stdout(), self.stderr());
            let (_, rest) = all.split_once(text)?;
            // Needs a whole line, since the word may be incomplete otherwise.
            let (line, _) = rest.split_once('\n')?;
            line.split_whitespace().next().map(ToOwned::to_owned)
        })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the private memory of the process in KiB.
    pub(crate) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Returns the process's CPU time in hundredths of a second.
    pub(crate) fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The state and the numbers follow the name, which may contain spaces.
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    }

    pub(crate) fn terminate(&self) {
        let killed = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
    }

    pub(crate) fn ended(&mut self) -> ExitStatus {
        let child = &mut self.child;
        let status = eventually("the process has ended", || child.try_wait().unwrap());
        // Its last output may not have been read yet.
        eventually("all that it said has come", || self.readers.iter().all(JoinHandle::is_finished).then_some(()));
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

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Sends a GET without TLS to an address such as `127.0.0.1:9090`.
pub(crate) fn get(address: &str, path: &str) -> Answer {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    exchange(stream, &format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"))
}

/// Posts JSON to `https://localhost:PORT/PATH`, trusting only this CA.
pub(crate) fn post(url: &str, authority: &Path, body: &str) -> Answer {
    post_with(url, authority, "", body)
}

/// Like [`post`] with further headers, each with its line break.
pub(crate) fn post_with(url: &str, authority: &Path, headers: &str, body: &str) -> Answer {
    let (address, path) = url.strip_prefix("https://").unwrap().split_once('/').unwrap();
    let head = format!(
        "POST /{path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         {headers}connection: close\r\n\r\n",
        body.len()
    );
    exchange(connect(url, authority), &(head + body))
}

/// Returns a client that trusts only this CA, in PEM form.
pub(crate) fn trusting(authority: &[u8]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

/// Opens a TLS connection to the server of `https://localhost:PORT/PATH`.
pub(crate) fn connect(url: &str, authority: &Path) -> StreamOwned<ClientConnection, TcpStream> {
    let (address, _) = url.strip_prefix("https://").unwrap().split_once('/').unwrap();
    let (host, port) = address.split_once(':').unwrap();
    let config = trusting(&std::fs::read(authority).unwrap());
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
    assert!(!head.to_ascii_lowercase().contains("transfer-encoding"), "this client takes whole bodies only: {head}");
    Answer { status, body: body.to_owned() }
}

/// Returns the JSON patch in a response as a string, or `None` if there is none.
pub(crate) fn patch(answer: &Answer) -> Option<String> {
    assert_eq!(answer.status, 200, "{answer:?}");
    let review: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(review.pointer("/response/allowed"), Some(&Value::Bool(true)), "{answer:?}");
    let patch = review.pointer("/response/patch")?.as_str()?;
    let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, patch).unwrap();
    Some(String::from_utf8(bytes).unwrap())
}
