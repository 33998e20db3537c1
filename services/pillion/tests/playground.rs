//! Tests the playground of `pillion dev`. This file tests the responses of the real program, and [`page`] tests the
//! page in a real browser.

mod driver;
mod page;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::Program;

const PROFILE: &str = "\
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata:
  name: logger
spec:
  activation: Always
  parameters:
  - {name: level, type: string, enum: [info, debug], default: info, annotation: logs.example.com/level, sources: [Pod, Namespace]}
  template:
    spec:
      containers:
      - name: logger
        image: registry.example.com/logger:1.0
        env: [{name: LEVEL, value: \"${params.level}\"}]
";

const POD: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: [{name: web, image: \"web:1\"}]}
";

/// A process of `pillion dev` with its playground, started in the repository by default.
struct Dev {
    address: String,
    program: Program,
}

impl Dev {
    fn start(more: &[&str]) -> Self {
        Self::start_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), more)
    }

    fn start_in(folder: &Path, more: &[&str]) -> Self {
        let ports = ["dev", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];
        let program = Program::start(&[&ports[..], more].concat(), folder);
        let url = program.word_after("Playground http://");
        let port = url.trim_end_matches('/').rsplit_once(':').unwrap().1.to_owned();
        Self { address: format!("127.0.0.1:{port}"), program }
    }

    /// Returns the page's address, with the trailing `/`.
    fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    fn get(&self, path: &str, headers: &str) -> Answer {
        send(&self.address, &format!("GET {path}"), &format!("host: {}\r\n{headers}", self.address), b"")
    }

    fn post(&self, headers: &str, body: &[u8]) -> Answer {
        let headers = format!("host: {}\r\n{headers}", self.address);
        send(&self.address, "POST /playground/run", &headers, body)
    }

    /// Runs inputs in the same way as the page. Returns the response.
    fn run(&self, texts: &Value) -> Value {
        let origin = format!("origin: http://{}\r\nsec-fetch-site: same-origin\r\n", self.address);
        let answer = self.post(&format!("content-type: application/json\r\n{origin}"), texts.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }
}

fn texts(profile: &str, object: &str) -> Value {
    json!({"profile": profile, "object": object})
}

/// Runs a command of the program in a folder with these files. Returns its standard output.
fn pillion(arguments: &[&str], files: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_pillion"));
    let output = command.args(arguments).current_dir(folder.path()).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn playground_results_match_inject_and_explain() {
    let dev = Dev::start(&[]);
    let files = [("profile.yaml", PROFILE), ("object.yaml", POD)];
    let answer = dev.run(&texts(PROFILE, POD));
    assert_eq!(answer["diagnostics"], json!([]));
    let result = &answer["result"];
    let injected = pillion(&["inject", "-q", "-f", "object.yaml", "-p", "profile.yaml"], &files);
    assert_eq!(result["objects"], json!(injected));
    let patch = pillion(&["inject", "-q", "-f", "object.yaml", "-p", "profile.yaml", "-o", "patch"], &files);
    assert_eq!(result["patches"], json!([serde_json::from_str::<Value>(&patch).unwrap()]));
    let explained = pillion(&["explain", "-f", "object.yaml", "-p", "profile.yaml", "-o", "json"], &files);
    let explained: Value = serde_json::from_str(&explained).unwrap();
    let pod = &result["pods"][0];
    for field in ["verdict", "profiles", "webhooks", "decision", "findings"] {
        assert_eq!(pod["explanation"][field], explained[field], "{field}");
    }
    assert_eq!((&pod["name"], &pod["decision"]["outcome"]), (&json!("Pod default/web"), &json!("injected")));
    assert!(pod["changes"].as_array().unwrap().iter().any(|change| change["path"] == "/spec/containers/logger"));
    let diff = pillion(&["inject", "-q", "-f", "object.yaml", "-p", "profile.yaml", "-o", "diff"], &files);
    let lines = result["diff"].as_array().unwrap().iter().flat_map(|hunk| {
        let lines = hunk["lines"].as_array().unwrap().iter().map(|line| {
            let sign = match line["change"].as_str().unwrap() {
                "added" => "+",
                "removed" => "-",
                _ => " ",
            };
            format!("{sign}{}", line["text"].as_str().unwrap())
        });
        [hunk["header"].as_str().unwrap().to_owned()].into_iter().chain(lines).collect::<Vec<_>>()
    });
    assert_eq!(lines.collect::<Vec<_>>(), diff.lines().skip(2).collect::<Vec<_>>());
}

#[test]
fn runs_use_workloads_namespaces_and_parameters() {
    let dev = Dev::start(&[]);
    let template = "{metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: \"web:1\"}]}}";
    let object = format!(
        "{POD}---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: shop, namespace: till}}\nspec: {{template: {template}}}\n"
    );
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: default\n  labels: {pillion.dev/injection: required}\n  \
                     annotations: {logs.example.com/level: debug}\n";
    let parameters = "logger: {level: info}\n";
    let answer =
        dev.run(&json!({"profile": PROFILE, "object": object, "namespace": namespace, "parameters": parameters}));
    let pods = answer["result"]["pods"].as_array().unwrap();
    let names: Vec<_> = pods.iter().map(|pod| pod["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["Pod default/web", "Deployment till/shop"]);
    assert!(pods.iter().all(|pod| pod["decision"]["outcome"] == "injected"), "{pods:?}");
    let of = |pod: &Value| pod["explanation"]["profiles"][0]["parameters"][0]["value"].clone();
    assert_eq!((of(&pods[0]), of(&pods[1])), (json!("debug"), json!("info")));
    assert_eq!(answer["result"]["patches"].as_array().unwrap().len(), 2);
    // There is no Namespace object for the second pod's namespace. A diagnostic at the pod's position reports that.
    let [diagnostic] = answer["diagnostics"].as_array().unwrap().as_slice() else { panic!("{answer}") };
    assert_eq!(
        (&diagnostic["severity"], &diagnostic["file"], &diagnostic["line"]),
        (&json!("warning"), &json!("object.yaml"), &json!(8))
    );

    let off = namespace.replace("required", "nobody");
    let answer = dev.run(&json!({"profile": PROFILE, "object": POD, "namespace": off}));
    let pod = &answer["result"]["pods"][0];
    assert_eq!(
        (&pod["decision"]["reason"], &pod["explanation"]["findings"][0]["code"]),
        (&json!("not_opted_in"), &json!("opt_in_value_unknown"))
    );

    // A profile may extend a shipped profile.
    let java = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/otel-java/profile.yaml"))
        .unwrap();
    let object = POD
        .replace("{name: web}", "{name: web, annotations: {instrumentation.opentelemetry.io/inject-java: \"true\"}}");
    let answer = dev.run(&json!({"profile": java, "object": object, "parameters": "otel-java: {image: \"agent:1\"}"}));
    assert_eq!(answer["diagnostics"], json!([]), "{answer}");
    assert!(answer["result"]["objects"].as_str().unwrap().contains("image: agent:1"), "{answer}");
}

#[test]
fn playground_reports_mistakes_as_lint_does() {
    let dev = Dev::start(&[]);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mistakes");
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    let mut mistakes = 0;
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let linted = pillion(&["lint", "-o", "json", "profile.yaml"], &[("profile.yaml", &text)]);
        let linted: Vec<Value> = serde_json::from_str(&linted).unwrap();
        let answer = dev.run(&texts(&text, POD));
        assert_eq!(answer["result"], Value::Null);
        let diagnostics: Vec<_> = answer["diagnostics"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|diagnostic| diagnostic["file"] == "profile.yaml")
            .collect();
        assert_eq!(diagnostics, linted.iter().collect::<Vec<_>>(), "{}", file.display());
        mistakes += diagnostics.len();
    }
    assert!(mistakes >= 60, "{mistakes}");
}

#[test]
fn any_input_gets_response_with_position() {
    let dev = Dev::start(&[]);
    let many = format!("{POD}---\n").repeat(51);
    let deep = format!("{}x{}", "{a: ".repeat(5_000), "}".repeat(5_000));
    let laughs = (1..12).fold("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned(), |all, n| {
        let one = vec![format!("*a{}", n - 1); 10].join(",");
        format!("{all}a{n}: &a{n} [{one}]\n")
    });
    for (name, texts, file, line, part) in [
        ("no profile", texts("", POD), "profile.yaml", None, "contains no ClusterInjectionProfile"),
        ("no YAML", texts("a: [", POD), "profile.yaml", Some(1), ""),
        ("no object", texts(PROFILE, ""), "object.yaml", None, "neither a pod nor a workload"),
        ("no YAML as object", texts(PROFILE, "kind: Pod\nmetadata: {\n"), "object.yaml", Some(2), ""),
        ("no kind", texts(PROFILE, "a: 1"), "object.yaml", Some(1), "it has no kind"),
        (
            "another kind",
            texts(PROFILE, "apiVersion: v1\nkind: ConfigMap\n"),
            "object.yaml",
            None,
            "neither a pod nor a workload",
        ),
        ("too many", texts(PROFILE, &many), "object.yaml", None, "at most 50"),
        ("too deep", texts(PROFILE, &deep), "object.yaml", Some(1), ""),
        ("laughs", texts(PROFILE, &laughs), "object.yaml", None, ""),
        ("nonsense", texts("\u{0}\u{7}\u{feff}", "- - -"), "object.yaml", Some(1), ""),
        (
            "an invalid pod",
            texts(PROFILE, "apiVersion: v1\nkind: Pod\nmetadata: 5\nspec: {containers: 7}"),
            "",
            None,
            "",
        ),
        (
            "namespaces",
            json!({"profile": PROFILE, "object": POD, "namespace": "kind: Namespace\nmetadata: {labels: 5}"}),
            "namespace.yaml",
            Some(2),
            "",
        ),
        (
            "parameters",
            json!({"profile": PROFILE, "object": POD, "parameters": "logger: [1]"}),
            "parameters.yaml",
            Some(1),
            "mapping",
        ),
        (
            "a value",
            json!({"profile": PROFILE, "object": POD, "parameters": "logger: {level: loud}"}),
            "profile.yaml",
            Some(8),
            "",
        ),
    ] {
        let answer = dev.run(&texts);
        let diagnostics = answer["diagnostics"].as_array().unwrap();
        if file.is_empty() {
            continue;
        }
        assert!(answer["result"].is_null(), "{name}: the run has a result");
        let is_it = |one: &&Value| one["file"] == file && one["message"].as_str().unwrap().contains(part);
        let found = diagnostics.iter().find(is_it).unwrap_or_else(|| panic!("{name}: {diagnostics:?}"));
        if line.is_some() {
            assert_eq!(found["line"], json!(line), "{name}: {found}");
        }
    }
}

/// Returns inputs whose run takes longer than any test waits: many profiles with nested loops, and many pods.
fn slow() -> Value {
    let numbers = (0..60).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
    let profiles = (0..100).map(|number| {
        format!(
            "---\n{}",
            PROFILE.replace("name: logger", &format!("name: logger-{number}")).replace(
                "${params.level}",
                &format!("${{[{numbers}].map(a, [{numbers}].filter(b, a < b).size()).sum()}}")
            )
        )
    });
    texts(&profiles.collect::<String>(), &format!("{POD}---\n").repeat(50))
}

impl Dev {
    /// Starts two slow runs, which is the maximum number of concurrent runs.
    fn begin_slow(&self) -> [TcpStream; 2] {
        let before = self.program.cpu_ticks();
        let body = slow().to_string();
        let head = format!(
            "POST /playground/run HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        let streams = [(); 2].map(|()| {
            let mut stream = TcpStream::connect(&self.address).unwrap();
            stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).unwrap();
            stream
        });
        crate::support::eventually("both runs have started", || (self.program.cpu_ticks() > before + 50).then_some(()));
        streams
    }
}

/// Returns two durations. The first is how long a run waits after the clients of two slow runs disconnect. The second
/// is how long the program takes to exit while two other slow runs are in progress.
fn freed_and_ended() -> [Duration; 2] {
    let mut dev = Dev::start(&[]);
    drop(dev.begin_slow());
    let began = Instant::now();
    assert_ne!(dev.run(&texts(PROFILE, POD))["result"], Value::Null);
    let freed = began.elapsed();

    let streams = dev.begin_slow();
    let began = Instant::now();
    dev.program.terminate();
    assert!(dev.program.wait_for_exit().success());
    let ended = began.elapsed();
    drop(streams);
    [freed, ended]
}

#[test]
fn abandoned_runs_stop() {
    const SOON: Duration = Duration::from_secs(6);
    let mut all = Vec::new();
    // A busy machine can delay either operation, so the test retries until both durations are short in the same
    // attempt.
    loop {
        let took = freed_and_ended();
        if took.iter().all(|took| *took < SOON) {
            return;
        }
        all.push(took);
        assert!(all.len() < 3, "abandoned runs delay other runs, or the exit: {all:?}");
    }
}

#[test]
fn foreign_requests_are_rejected() {
    let dev = Dev::start(&[]);
    let json_type = "content-type: application/json\r\n";
    let body = texts(PROFILE, POD).to_string();
    for (status, headers, body) in [
        (400, json_type, "{"),
        (400, json_type, "{}"),
        (400, json_type, "{\"profile\": \"\", \"object\": \"\", \"more\": 1}"),
        (400, json_type, "{\"profile\": 1, \"object\": \"\"}"),
        (415, "", &*body),
        (415, "content-type: text/plain\r\n", &body),
        (403, "content-type: application/json\r\norigin: http://evil.example\r\n", &body),
        (403, "content-type: application/json\r\norigin: null\r\n", &body),
        (403, "content-type: application/json\r\nsec-fetch-site: cross-site\r\n", &body),
        (403, "content-type: application/json\r\nsec-fetch-site: same-site\r\n", &body),
        (200, json_type, &body),
    ] {
        let answer = dev.post(headers, body.as_bytes());
        assert_eq!(answer.status, status, "{headers} {body}: {}", answer.text());
        assert_eq!(answer.json().get("error").is_some(), status != 200, "{}", answer.text());
    }
    let large = json!({"profile": " ".repeat(3 * 1024 * 1024), "object": ""}).to_string();
    assert_eq!(dev.post(json_type, large.as_bytes()).status, 413);
    assert_eq!(send(&dev.address, "GET /playground/run", &format!("host: {}\r\n", dev.address), b"").status, 405);

    // A foreign DNS name may resolve to this machine, so requests with such a host are rejected.
    for path in ["/", "/playground/playground.js", "/playground/examples", "/playground/example?id=shipped/nginx"] {
        for host in ["evil.example", "evil.example:80", "localhost.evil.example", "192.0.2.1"] {
            let answer = send(&dev.address, &format!("GET {path}"), &format!("host: {host}\r\n"), b"");
            assert_eq!(answer.status, 421, "{path} {host}");
            assert!(answer.json()["error"].as_str().unwrap().contains("localhost"));
        }
        assert_eq!(dev.get(path, "sec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors\r\n").status, 403, "{path}");
        for host in ["localhost", "localhost:1", "[::1]:9090"] {
            assert_ne!(
                send(&dev.address, &format!("GET {path}"), &format!("host: {host}\r\n"), b"").status,
                421,
                "{path}"
            );
        }
    }
    // Probes and metrics accept any host name.
    for path in ["/livez", "/metrics"] {
        assert_eq!(send(&dev.address, &format!("GET {path}"), "host: evil.example\r\n", b"").status, 200);
    }
}

#[test]
fn page_has_all_files_and_strict_policy() {
    let dev = Dev::start(&[]);
    let page = dev.get("/", "");
    for (path, media_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/playground/style.css", "text/css; charset=utf-8"),
        ("/playground/playground.js", "text/javascript; charset=utf-8"),
        ("/playground/editor.js", "text/javascript; charset=utf-8"),
        ("/playground/icon.svg", "image/svg+xml"),
        ("/playground/examples", "application/json"),
    ] {
        let answer = dev.get(path, "");
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(media_type)), "{path}");
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; "), "{policy}");
        assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    assert!(page.text().starts_with("<!doctype html>"));
    let link = dev.get("/", "sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\n");
    assert_eq!(link.status, 200, "links from other sites are allowed");
    for path in [
        "/playground",
        "/playground/../../Cargo.toml",
        "/playground/example?id=../Cargo.toml",
        "/playground/example?id=/etc/passwd",
    ] {
        assert_eq!(dev.get(path, "").status, 404, "{path}");
    }
    assert_eq!(dev.get("/playground/example", "").status, 400);
}

#[test]
fn examples_are_local_and_shipped_profiles() {
    let names = |dev: &Dev, group: &str| -> Vec<String> {
        let all = dev.get("/playground/examples", "").json();
        let of = all.as_array().unwrap().iter().filter(|one| one["group"] == group);
        of.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    let checkout = Dev::start(&[]);
    let (here, shipped) = (names(&checkout, "here"), names(&checkout, "shipped"));
    assert!(here.len() >= 20 && here.contains(&"istio".to_owned()) && shipped.is_empty(), "{here:?} {shipped:?}");

    let folder = tempfile::tempdir().unwrap();
    let alone = Dev::start_in(folder.path(), &[]);
    assert_eq!((names(&alone, "here"), names(&alone, "shipped")), (vec![], here));
    let nginx = alone.get("/playground/example?id=shipped%2Fnginx", "").json();
    let injected = alone.run(&nginx);
    assert!(injected["result"]["objects"].as_str().unwrap().contains("sidecar-nginx"), "{injected}");

    fs::write(folder.path().join("logger.yaml"), PROFILE).unwrap();
    let own = Dev::start_in(folder.path(), &["--profile", "logger.yaml"]);
    assert_eq!(names(&own, "here"), ["logger"]);
    assert!(
        own.get("/playground/example?id=logger.yaml", "").json()["object"]
            .as_str()
            .unwrap()
            .contains("pillion.dev/profiles: logger")
    );
    // The program returns the current content of the file.
    fs::write(folder.path().join("logger.yaml"), PROFILE.replace("logger:1.0", "logger:2.0")).unwrap();
    assert_eq!(names(&own, "here"), ["logger"]);
    assert!(
        own.get("/playground/example?id=logger.yaml", "").json()["profile"].as_str().unwrap().contains("logger:2.0")
    );
}

#[test]
fn playground_is_absent_on_public_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["dev", "--listen", "127.0.0.1:0", "--metrics-listen", "0.0.0.0:0"];
    let program = Program::start(&arguments, folder.path());
    let port =
        program.word_after("Metrics http://").trim_end_matches("/metrics").rsplit_once(':').unwrap().1.to_owned();
    program.wait_for_output("No playground: ");
    let address = format!("127.0.0.1:{port}");
    assert_eq!(send(&address, "GET /", "host: localhost\r\n", b"").status, 404);
    assert_eq!(send(&address, "GET /livez", "host: localhost\r\n", b"").status, 200);
}

/// The time limit of a response.
const LIMIT: Duration = Duration::from_mins(1);

/// A response with its headers.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Returns the value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.headers.lines().filter_map(|line| line.split_once(':'));
        let mut found = lines.filter(|(found, _)| found.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.trim())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Sends a request. `headers` contains complete header lines with their line ends, including the host.
pub(crate) fn send(address: &str, line: &str, headers: &str, body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let length = if body.is_empty() { String::new() } else { format!("content-length: {}\r\n", body.len()) };
    let head = format!("{line} HTTP/1.1\r\n{headers}{length}connection: close\r\n\r\n");
    // The server may respond and close the connection before it has read everything.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    let (mut bytes, mut piece) = (Vec::new(), [0; 16 * 1024]);
    // Some servers do not close the connection, so this reads up to the announced length.
    while !is_whole(&bytes) {
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(length) => bytes.extend_from_slice(&piece[..length]),
        }
    }
    let end = end_of_head(&bytes).unwrap_or_else(|| panic!("no response to {line}"));
    let headers = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let status = headers.split_whitespace().nth(1).unwrap().parse().unwrap();
    let is_chunked = headers.to_ascii_lowercase().contains("transfer-encoding");
    assert!(!is_chunked, "this client supports no chunked bodies: {headers}");
    Answer { status, headers, body: bytes[end + 4..].to_vec() }
}

/// Returns the offset of the end of the response's head.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n")
}

fn is_whole(bytes: &[u8]) -> bool {
    let Some(end) = end_of_head(bytes) else { return false };
    let text = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    length.is_some_and(|length| bytes.len() >= end + 4 + length)
}
