//! Runs a replica for twenty seconds with hundreds of requests per second and many of the events that can occur in a
//! year of operation (`PILLION_SOAK_SECONDS` overrides the duration). The replica receives valid reviews of all sizes
//! and invalid ones, clients that connect, disconnect and break off, new certificates, changed profiles and namespaces,
//! and scrapes. Every valid review must get the right response. At the end, the memory use and the number of open files
//! must be at most slightly larger than after the warm-up.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use base64::Engine;
use pillion_testkit::{ControlPlane, TestCa};
use rustls::pki_types::ServerName;
use serde_json::{Value as Json, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::{Program, eventually, get, trusting_ca};

const SECONDS: &str = "PILLION_SOAK_SECONDS";
const DEFAULT_SECONDS: u64 = 20;
pub(crate) const KIB: usize = 1024;
pub(crate) const MIB: usize = 1024 * KIB;
/// Maximum growth of the memory use from the second quarter of the samples to the last: a fraction, plus a number of
/// bytes.
const DRIFT: (f64, usize) = (0.05, 3 * MIB / 2);
/// Maximum growth of the number of open files from before the soak to after it. It is not zero, because the number of
/// connections to the API server varies. Between two quarters of the samples, twice as much is allowed.
const MORE_FILES: usize = 4;
/// The replica's limit for lookups of namespaces in the API server, per second.
const LOOKUPS_A_SECOND: f64 = 10.0;
pub(crate) const NAMESPACE: &str = "soak";

fn profile(generation: u32) -> String {
    json!({
        "apiVersion": "pillion.dev/v1alpha1", "kind": "ClusterInjectionProfile", "metadata": {"name": "soak"},
        "spec": {
            "activation": "Always",
            "template": {
                "metadata": {"annotations": {"example.com/by": "${object.metadata.name + '/' + namespaceObject.metadata.name}"}},
                "spec": {
                    "containers": [{"name": "sidecar", "image": format!("registry.example/sidecar:{generation}")}],
                    "volumes": [{"name": "config", "configMap": {"name": "sidecar"}}],
                },
            },
        },
    })
    .to_string()
}

/// Changes the cluster during the soak: profiles, namespaces and the serving certificate.
async fn changes(target: Rc<Target>, control_plane: Rc<ControlPlane>, ca: TestCa, folder: Rc<Path>) {
    for round in 2.. {
        if !target.goes_on() {
            break;
        }
        target.generation.set(round);
        control_plane.apply_yaml(&profile(round)).await.unwrap();
        target.count("profile changes");
        control_plane
            .create_namespace(&format!("passing-{round}"), &[("pillion.dev/injection", "enabled")])
            .await
            .unwrap();
        if round % 2 == 0 {
            renew(&ca, &folder);
            target.count("certificates");
        }
        sleep_until(target.until.min(Instant::now() + Duration::from_secs(3))).await;
    }
}

/// Replaces the key and the certificate by renaming complete files, like the kubelet. If the program reads between the
/// two replacements, the files do not match, and the program reads them again.
fn renew(ca: &TestCa, folder: &Path) {
    let fresh = folder.join("fresh");
    std::fs::create_dir_all(&fresh).unwrap();
    ca.serving_files(&fresh, "tls", &["localhost"]).unwrap();
    for name in ["tls.key", "tls.crt"] {
        std::fs::rename(fresh.join(name), folder.join(name)).unwrap();
    }
}

/// A measurement of a process: its private memory in bytes, and its open files.
#[derive(Clone, Copy, Debug)]
struct Sample {
    memory: usize,
    files: usize,
}

impl Sample {
    fn of(process: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        let memory = line.trim().trim_end_matches("kB").trim().parse::<usize>().unwrap() * KIB;
        let files = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
        Self { memory, files }
    }
}

async fn observe(target: Rc<Target>, process: u32, operations: String) -> Vec<Sample> {
    let mut samples = Vec::new();
    for number in 0_usize.. {
        if !target.goes_on() {
            break;
        }
        samples.push(Sample::of(process));
        if number % 4 == 0 {
            let (operations, path) = (operations.clone(), "/metrics");
            let scrape = tokio::task::spawn_blocking(move || get(&operations, path)).await.unwrap();
            assert!(metric(&scrape.body, "pillion_webhook_panics_total") < 0.5);
            target.count("scrapes");
        }
        sleep(Duration::from_millis(250)).await;
    }
    samples
}

fn metric(scrape: &str, series: &str) -> f64 {
    let value = scrape.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("no series {series} in\n{scrape}"))
}

fn live_lookups(scrape: &str) -> impl Fn(&str) -> f64 {
    |result| metric(scrape, &format!("pillion_webhook_namespace_lookups_total{{result=\"{result}\"}}"))
}

fn median(mut values: Vec<usize>) -> usize {
    values.sort_unstable();
    values[values.len() / 2]
}

/// Returns the median memory and the maximum number of open files in the quarter `which` of the samples, counted from
/// 0.
fn quarter(samples: &[Sample], which: usize) -> (usize, usize) {
    let length = samples.len() / 4;
    let part = &samples[which * length..(which + 1) * length];
    (median(part.iter().map(|sample| sample.memory).collect()), part.iter().map(|sample| sample.files).max().unwrap())
}

#[test]
fn soak_keeps_memory_files_and_responses_stable() {
    let seconds = std::env::var(SECONDS).map_or(DEFAULT_SECONDS, |text| text.parse().unwrap());
    assert!(seconds >= 10, "{SECONDS}: {seconds} seconds are too short");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, soak(seconds));
}

/// Starts the tasks of all clients and changes. Returns the handles of the tasks.
fn clients_and_changes(
    target: &Rc<Target>,
    control_plane: &Rc<ControlPlane>,
    ca: TestCa,
    folder: &Path,
) -> Vec<JoinHandle<()>> {
    let mut tasks: Vec<_> =
        (1..=4).map(|client| tokio::task::spawn_local(send_valid_reviews(Rc::clone(target), client))).collect();
    tasks.push(tokio::task::spawn_local(send_invalid_requests(Rc::clone(target))));
    tasks.push(tokio::task::spawn_local(open_and_close_connections(Rc::clone(target))));
    tasks.push(tokio::task::spawn_local(break_off_connections(Rc::clone(target))));
    tasks.push(tokio::task::spawn_local(send_forged_reviews(Rc::clone(target))));
    tasks.push(tokio::task::spawn_local(changes(Rc::clone(target), Rc::clone(control_plane), ca, folder.into())));
    tasks
}

/// Series that must be 0 after all clients have ended.
const ZERO_AFTERWARDS: [&str; 4] = [
    "pillion_webhook_panics_total",
    "pillion_webhook_inflight_requests",
    "pillion_webhook_body_memory_bytes",
    "pillion_webhook_connections",
];

async fn soak(seconds: u64) {
    let folder = tempfile::tempdir().unwrap();
    let control_plane = ControlPlane::builder().on_loopback().unwrap().directory(folder.path()).start().await.unwrap();
    let control_plane = Rc::new(control_plane);
    let crds = std::process::Command::new(env!("CARGO_BIN_EXE_pillion")).arg("crds").output().unwrap();
    let applied = control_plane
        .kubectl_with_input(&["apply", "-f", "-"], std::str::from_utf8(&crds.stdout).unwrap())
        .await
        .unwrap();
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    control_plane
        .wait_for_crds(&["clusterinjectionprofiles.pillion.dev", "injectionprofiles.pillion.dev"])
        .await
        .unwrap();
    control_plane.apply_yaml(&profile(1)).await.unwrap();
    control_plane.create_namespace(NAMESPACE, &[("pillion.dev/injection", "enabled")]).await.unwrap();

    let ca = TestCa::new().unwrap();
    ca.serving_files(folder.path(), "tls", &["localhost"]).unwrap();
    let kubeconfig = control_plane.kubeconfig();
    let arguments = [
        "webhook",
        "--kubeconfig",
        kubeconfig.to_str().unwrap(),
        "--tls-cert",
        "tls.crt",
        "--tls-key",
        "tls.key",
        "--listen",
        "127.0.0.1:0",
        "--metrics-listen",
        "127.0.0.1:0",
        "--drain-minimum",
        "0",
    ];
    let mut replica = Program::start(&arguments, folder.path());
    let address = replica.word_after(" address=");
    let operations = replica.word_after("metrics_address=");
    eventually("the replica is ready", || (get(&operations, "/readyz").status == 200).then_some(()));
    sleep(Duration::from_secs(1)).await;
    let idle = Sample::of(replica.id());

    let target = Rc::new(Target::new(address, &ca.bundle_pem(), seconds));
    let tasks = clients_and_changes(&target, &control_plane, ca, folder.path());
    let samples = observe(Rc::clone(&target), replica.id(), operations.clone()).await;
    for task in tasks {
        task.await.unwrap();
    }

    let ((early, early_files), (late, late_files)) = (quarter(&samples, 1), quarter(&samples, 3));
    let after = eventually("no more files are open than before", || {
        let now = Sample::of(replica.id());
        (now.files <= idle.files + MORE_FILES).then_some(now)
    });
    let scrape = get(&operations, "/metrics").body;
    println!("{seconds} s: {:?}", target.counts.borrow());
    pillion_testkit::write_result(&json!({
        "seconds": seconds,
        "requests": *target.counts.borrow(),
        "memory_kib": {"idle": idle.memory / KIB, "second_quarter": early / KIB, "last_quarter": late / KIB},
        "files": {"idle": idle.files, "second_quarter": early_files, "last_quarter": late_files, "after": after.files},
    }))
    .unwrap();
    println!(
        "RssAnon in KiB: {} idle, {} in the second quarter, {} in the last, {} after; files: {} idle, {early_files} and \
         {late_files} at most, {} after",
        idle.memory / KIB,
        early / KIB,
        late / KIB,
        after.memory / KIB,
        idle.files,
        after.files
    );
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "memory of one process"
    )]
    let most = early + (early as f64 * DRIFT.0) as usize + DRIFT.1;
    assert!(late <= most, "{late} bytes of memory in the last quarter, and {early} in the second");
    assert!(late_files <= early_files + 2 * MORE_FILES, "{late_files} open files, {early_files} before");
    for series in ZERO_AFTERWARDS {
        assert!(metric(&scrape, series).abs() < 0.5, "{series}");
    }
    for what in
        ["injected", "updates", "bad requests", "requests that were broken off", "profile changes", "certificates"]
    {
        assert!(target.counts.borrow().get(what).is_some_and(|count| *count > 1), "{what}: none");
    }
    let asked: f64 = ["found", "missing", "failed", "timed_out"].map(live_lookups(&scrape)).into_iter().sum();
    println!("{asked} namespace lookups, {} rejected", live_lookups(&scrape)("refused"));
    #[expect(clippy::cast_precision_loss, reason = "seconds of a test")]
    let most = LOOKUPS_A_SECOND * (seconds + 2) as f64;
    assert!((1.0..=most).contains(&asked), "{asked} namespace lookups at the API server");
    let served = target.generation.get();
    assert!(replica.stderr().contains("a new serving certificate is served"), "{}", replica.stderr());
    println!("{served} generations of the profile");

    replica.terminate();
    assert_eq!(replica.wait_for_exit().code(), Some(0), "{}", replica.stderr());
}

/// The time limit of an operation that succeeds, on a machine that also runs other tests.
const PATIENCE: Duration = Duration::from_secs(20);
/// Returns a review of at least this many bytes.
pub(crate) fn review(number: usize, operation: &str, bytes: usize) -> Json {
    let object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("pod-{number}"), "namespace": NAMESPACE, "annotations": {"filler": "x".repeat(bytes)}},
        "spec": {"containers": [{"name": "app", "image": "registry.example/app:1"}]},
    });
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": format!("uid-{number}"),
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": NAMESPACE, "operation": operation, "object": object,
            "oldObject": if operation == "UPDATE" { object.clone() } else { Json::Null },
            "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
        },
    })
}

/// The connection data of the replica for the clients, and counts of their requests.
pub(crate) struct Target {
    pub(crate) address: String,
    tls: TlsConnector,
    /// The latest generation of the profile that the test has requested.
    pub(crate) generation: Cell<u32>,
    pub(crate) until: Instant,
    pub(crate) counts: RefCell<BTreeMap<&'static str, usize>>,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) closes: bool,
    pub(crate) body: Vec<u8>,
}

pub(crate) type Connection = TlsStream<TcpStream>;

impl Target {
    pub(crate) fn new(address: String, ca: &str, seconds: u64) -> Self {
        Self {
            address,
            tls: TlsConnector::from(trusting_ca(ca.as_bytes())),
            generation: Cell::new(1),
            until: Instant::now() + Duration::from_secs(seconds),
            counts: RefCell::default(),
        }
    }

    pub(crate) fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    pub(crate) fn count(&self, what: &'static str) {
        *self.counts.borrow_mut().entry(what).or_default() += 1;
    }

    pub(crate) async fn connect(&self) -> Connection {
        let connect = async {
            let tcp = TcpStream::connect(&self.address).await.unwrap();
            tcp.set_nodelay(true).unwrap();
            self.tls.connect(ServerName::try_from("localhost").unwrap(), tcp).await.unwrap()
        };
        timeout(PATIENCE, connect).await.expect("no handshake")
    }

    pub(crate) async fn ask(&self, connection: &mut Connection, path: &str, kind: &str, body: &[u8]) -> Answer {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let ask = async {
            // The write must succeed: the replica closes a connection only after a response with `connection: close`.
            connection.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
            connection.flush().await.unwrap();
            read_answer(connection).await
        };
        timeout(PATIENCE, ask).await.expect("no response")
    }
}

async fn read_answer(connection: &mut Connection) -> Answer {
    let mut bytes = Vec::new();
    let mut buffer = [0; 8 * KIB];
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        let read = connection.read(&mut buffer).await.unwrap();
        assert!(read > 0, "the connection closed before the response");
        bytes.extend_from_slice(&buffer[..read]);
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap().parse::<usize>().unwrap();
    let mut body = bytes[end + 4..].to_vec();
    while body.len() < length {
        let read = connection.read(&mut buffer).await.unwrap();
        assert!(read > 0, "the connection closed during the response");
        body.extend_from_slice(&buffer[..read]);
    }
    Answer { status: head[9..12].parse().unwrap(), closes: head.contains("connection: close"), body }
}

/// Checks that the response injects the sidecar into the pod, from a generation of the profile that the test has
/// requested.
pub(crate) fn check_injected(target: &Target, number: usize, answer: &Answer) {
    let text = String::from_utf8_lossy(&answer.body);
    assert_eq!(answer.status, 200, "{text}");
    let answer: Json = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(answer["response"]["uid"], format!("uid-{number}"));
    assert_eq!(answer["response"]["allowed"], true, "{text}");
    let patch = answer["response"]["patch"].as_str().unwrap_or_else(|| panic!("not injected: {text}"));
    let patch = base64::engine::general_purpose::STANDARD.decode(patch).unwrap();
    let patch = String::from_utf8(patch).unwrap();
    let image = patch.split("registry.example/sidecar:").nth(1).unwrap_or_else(|| panic!("no sidecar: {patch}"));
    let generation: u32 = image.split('"').next().unwrap().parse().unwrap();
    assert!((1..=target.generation.get()).contains(&generation), "{generation}: {patch}");
    assert!(patch.contains(&format!("pod-{number}/{NAMESPACE}")), "{patch}");
}

/// Sends reviews of all sizes over connections that stay open, like the API server.
pub(crate) async fn send_valid_reviews(target: Rc<Target>, client: usize) {
    const SIZES: [usize; 8] = [KIB, 2 * KIB, 4 * KIB, 6 * KIB, 8 * KIB, 16 * KIB, 64 * KIB, 256 * KIB];
    let mut connection = target.connect().await;
    let mut number = client * 1_000_000;
    while target.goes_on() {
        number += 1;
        let updates = number % 10 == 9;
        // Only a few requests are large.
        let size = SIZES[if number.is_multiple_of(20) { 7 } else { number % 7 }];
        let body = review(number, if updates { "UPDATE" } else { "CREATE" }, size).to_string();
        let path = ["/mutate/enabled", "/mutate"][number % 2];
        let answer = target.ask(&mut connection, path, "application/json", body.as_bytes()).await;
        if updates {
            let review: Json = serde_json::from_slice(&answer.body).unwrap();
            assert!(review["response"]["allowed"] == true && review["response"].get("patch").is_none(), "{review}");
            target.count("updates");
        } else {
            check_injected(&target, number, &answer);
            target.count("injected");
        }
        if answer.closes {
            connection = target.connect().await;
            target.count("connections that the replica closed");
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Sends invalid requests of several kinds in turn, and rarely a request that is too large.
pub(crate) async fn send_invalid_requests(target: Rc<Target>) {
    let text = review(0, "CREATE", KIB).to_string();
    let deep = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
    let cases: [(&str, &str, &str, u16); 8] = [
        ("/mutate", "application/json", "", 400),
        ("/mutate", "application/json", "{}", 400),
        ("/mutate", "application/json", &text[..text.len() / 2], 400),
        ("/mutate", "application/json", &deep, 400),
        ("/mutate", "text/plain", &text, 415),
        ("/nowhere", "application/json", &text, 404),
        ("/mutate/enabled", "application/json", &text.replace("\"uid-0\"", "\"\""), 400),
        ("/mutate", "application/json", &" ".repeat(7 * MIB + 1), 413),
    ];
    let mut connection = target.connect().await;
    for number in 0.. {
        if !target.goes_on() {
            break;
        }
        // The request of 7 MiB is sent rarely.
        let (path, kind, body, status) = cases[if number % 100 == 0 { 7 } else { number % 7 }];
        let answer = target.ask(&mut connection, path, kind, body.as_bytes()).await;
        assert_eq!(answer.status, status, "{}", String::from_utf8_lossy(&answer.body));
        target.count("bad requests");
        if answer.closes {
            connection = target.connect().await;
        }
        sleep(Duration::from_millis(40)).await;
    }
}

/// Opens connections for a single request, or for none.
pub(crate) async fn open_and_close_connections(target: Rc<Target>) {
    for number in 9_000_000.. {
        if !target.goes_on() {
            break;
        }
        let mut connection = target.connect().await;
        if number % 2 == 0 {
            let body = review(number, "CREATE", KIB).to_string();
            let answer = target.ask(&mut connection, "/mutate/enabled", "application/json", body.as_bytes()).await;
            check_injected(&target, number, &answer);
            target.count("injected");
        }
        target.count("short connections");
        drop(connection);
        sleep(Duration::from_millis(60)).await;
    }
}

/// Breaks off connections in the handshake, in a request's head, in its body and before the response. Also connects
/// without TLS.
pub(crate) async fn break_off_connections(target: Rc<Target>) {
    let body = review(0, "CREATE", 100 * KIB).to_string();
    let head = format!(
        "POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let request = [head.as_bytes(), body.as_bytes()].concat();
    for number in 0_usize.. {
        if !target.goes_on() {
            break;
        }
        match number % 5 {
            0 => {
                let mut tcp = TcpStream::connect(&target.address).await.unwrap();
                tcp.write_all(&[0x16, 3, 1, 2, 0, 1]).await.unwrap();
            }
            1 => {
                let mut tcp = TcpStream::connect(&target.address).await.unwrap();
                tcp.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
            }
            cut => {
                let mut connection = target.connect().await;
                let end = [20, head.len() + 50_000, request.len()][cut - 2];
                connection.write_all(&request[..end]).await.unwrap();
                let _ = connection.flush().await;
            }
        }
        target.count("requests that were broken off");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Sends reviews for namespaces that do not exist. The replica looks up each one in the API server, within its rate
/// limit.
pub(crate) async fn send_forged_reviews(target: Rc<Target>) {
    let mut connection = target.connect().await;
    for number in 0.. {
        if !target.goes_on() {
            break;
        }
        let mut review = review(number, "CREATE", KIB);
        review["request"]["namespace"] = json!(format!("nowhere-{number}"));
        let answer = target.ask(&mut connection, "/mutate", "application/json", review.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200);
        target.count("unknown namespaces");
        if answer.closes {
            connection = target.connect().await;
        }
        sleep(Duration::from_millis(25)).await;
    }
}
