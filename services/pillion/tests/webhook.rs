//! Tests `pillion webhook` as a process. It reports mistakes before it binds a port. A replica without a connection to
//! the cluster is alive but not ready. A terminating replica drains. A replica without free file descriptors recovers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use pillion_testkit::{ControlPlane, TestCa};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use crate::support::{Program, eventually, get, hanging_api_server, post, trusting_ca, write_kubeconfig};

const ANY_PORTS: [&str; 9] = [
    "webhook",
    "--listen",
    "127.0.0.1:0",
    "--metrics-listen",
    "127.0.0.1:0",
    "--drain-minimum",
    "0",
    "--kubeconfig",
    "kubeconfig",
];

fn write_certificates(folder: &Path) {
    let ca = TestCa::new().unwrap();
    ca.serving_files(folder, "tls", &["localhost"]).unwrap();
    std::fs::write(folder.join("ca.crt"), ca.bundle_pem()).unwrap();
}

fn start(folder: &Path, certificate: &str, key: &str) -> Program {
    Program::start(&[&ANY_PORTS[..], &["--tls-cert", certificate, "--tls-key", key]].concat(), folder)
}

#[test]
fn replica_without_cluster_is_alive_but_unready() {
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    let _api_server = hanging_api_server(folder.path());
    let mut replica = start(folder.path(), "tls.crt", "tls.key");
    let operations = replica.word_after("metrics_address=");
    assert_eq!(get(&operations, "/livez").status, 200);
    let ready = get(&operations, "/readyz");
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("profiles and namespaces") && !ready.body.contains("certificate"), "{ready:?}");
    let metrics = get(&operations, "/metrics").body;
    assert!(metrics.contains("pillion_webhook_broken_profiles 0"), "{metrics}");
    // Without profiles, a replica must not respond as if no profile matched.
    let port = replica.word_after("listening address=").rsplit(':').next().unwrap().to_owned();
    let review = include_str!("../../engine/tests/reviews/create-deployment-pod.json");
    let url = format!("https://localhost:{port}/mutate/required");
    let answer = post(&url, &folder.path().join("ca.crt"), review);
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.body.contains("waiting for the first lists of profiles and namespaces: try again"), "{answer:?}");

    replica.terminate();
    assert_eq!(replica.wait_for_exit().code(), Some(0), "{}", replica.stderr());
}

#[test]
fn failing_watch_is_logged_and_retried() {
    let folder = tempfile::tempdir().unwrap();
    // No process listens on the port of this API server.
    write_certificates(folder.path());
    write_kubeconfig(folder.path(), "http://127.0.0.1:1");
    let replica = start(folder.path(), "tls.crt", "tls.key");
    eventually("it is logged twice for namespaces", || {
        let stderr = replica.stderr();
        (stderr
            .lines()
            .filter(|line| {
                line.contains("the watch failed; the last known objects remain in use")
                    && line.contains("kind=\"namespaces\"")
            })
            .count()
            >= 2)
            .then_some(())
    });
}

/// Returns the first part that an error contains twice, as in `what: why: why`, or `None` if there is none. Ignores
/// parts of up to eight bytes.
fn repeated_part(text: &str) -> Option<String> {
    let parts: Vec<_> = text.trim().split(": ").filter(|part| part.len() > 8).collect();
    let twice = |(index, part): (usize, &&str)| parts.iter().skip(index + 1).any(|other| other.contains(*part));
    parts.iter().enumerate().find(|(index, part)| twice((*index, part))).map(|(_, part)| (*part).to_owned())
}

#[test]
fn each_cause_is_printed_once() {
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    write_kubeconfig(folder.path(), "http://127.0.0.1:1");
    let certificate = ["webhook", "--tls-cert", "tls.crt", "--tls-key", "tls.key"];
    for (more, expected) in [
        (&[][..], "environment variable not found"),
        (&["--kubeconfig", "nowhere.yaml"], "nowhere.yaml"),
        (&["--kubeconfig", "tls.crt"], "tls.crt"),
        (&["--kubeconfig", "kubeconfig", "--log-level", "pillion=loud"], "pillion=loud"),
        (&["--kubeconfig", "kubeconfig", "--log-level", "info,,=,"], "--log-level"),
        (&["--kubeconfig", "kubeconfig", "--listen", "192.0.2.1:0"], "192.0.2.1:0"),
    ] {
        let mut replica = Program::start(&[&certificate[..], more].concat(), folder.path());
        assert_eq!(replica.wait_for_exit().code(), Some(2), "{more:?}");
        replica.wait_for_output(expected);
        let stderr = replica.stderr();
        let error = stderr.lines().find_map(|line| line.strip_prefix("error: ")).unwrap();
        assert_eq!(repeated_part(error), None, "{stderr}");
    }
}

#[test]
fn mistakes_are_found_before_ports_are_bound() {
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    write_kubeconfig(folder.path(), "http://127.0.0.1:1");
    std::fs::write(folder.path().join("none.pem"), "nothing").unwrap();
    for (certificate, key, expected) in [
        ("nowhere.crt", "tls.key", "cannot read the certificate nowhere.crt"),
        ("tls.crt", "nowhere.key", "cannot read the private key nowhere.key"),
        ("none.pem", "tls.key", "none.pem"),
        ("tls.crt", "none.pem", "none.pem"),
    ] {
        let mut replica = start(folder.path(), certificate, key);
        assert_eq!(replica.wait_for_exit().code(), Some(2));
        replica.wait_for_output(expected);
        assert!(!replica.stderr().contains("listening"), "{}", replica.stderr());
    }
    let policy =
        "apiVersion: config.pillion.dev/v1alpha1\nkind: WebhookPolicy\nguardrails:\n  volumeKinds: [hostPath]\n";
    std::fs::write(folder.path().join("policy.yaml"), policy).unwrap();
    for (file, expected) in [
        ("policy.yaml", "the configuration cannot be used: policy.yaml:4:17: "),
        ("nowhere.yaml", "the configuration cannot be used: nowhere.yaml: cannot be read"),
    ] {
        let files = ["--tls-cert", "tls.crt", "--tls-key", "tls.key", "--config", file];
        let mut replica = Program::start(&[&ANY_PORTS[..], &files].concat(), folder.path());
        assert_eq!(replica.wait_for_exit().code(), Some(2));
        replica.wait_for_output(expected);
        assert!(!replica.stderr().contains("listening"), "{}", replica.stderr());
    }
    std::fs::write(folder.path().join("kubeconfig"), "current-context: nowhere").unwrap();
    let mut replica = start(folder.path(), "tls.crt", "tls.key");
    assert_eq!(replica.wait_for_exit().code(), Some(2));
    replica.wait_for_output("kubeconfig");
    assert!(!replica.stderr().contains("listening"), "{}", replica.stderr());
}

const DRAIN_LIMIT: Duration = Duration::from_mins(1);
/// The value of `--drain-minimum`.
const DRAIN_MINIMUM: Duration = Duration::from_secs(2);

type TlsConnection = StreamOwned<ClientConnection, TcpStream>;

fn connect_tls(address: &str, ca: &str) -> TlsConnection {
    let config = trusting_ca(ca.as_bytes());
    let tcp = TcpStream::connect(address).unwrap();
    tcp.set_read_timeout(Some(DRAIN_LIMIT)).unwrap();
    StreamOwned::new(ClientConnection::new(config, ServerName::try_from("localhost").unwrap()).unwrap(), tcp)
}

/// Sends a request that is not a review, and returns the response in lower case. The `connection` header of the
/// response shows whether the connection stays open.
fn post_nonsense(connection: &mut TlsConnection) -> String {
    connection.write_all(b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").unwrap();
    let mut text = Vec::new();
    let mut byte = [0];
    // The body is one line of text.
    while !(text.ends_with(b"\n") && text.windows(4).any(|four| four == b"\r\n\r\n") && !text.ends_with(b"\r\n")) {
        connection.read_exact(&mut byte).unwrap();
        text.extend_from_slice(&byte);
    }
    String::from_utf8(text).unwrap().to_lowercase()
}

#[test]
fn draining_replica_responds_until_clients_leave() {
    pillion_testkit::isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        let crds = std::process::Command::new(env!("CARGO_BIN_EXE_pillion")).arg("crds").output()?;
        control_plane.kubectl_with_input(&["apply", "-f", "-"], std::str::from_utf8(&crds.stdout)?).await?;
        control_plane.wait_for_crds(&["clusterinjectionprofiles.pillion.dev", "injectionprofiles.pillion.dev"]).await?;
        let kubeconfig = control_plane.kubeconfig().display().to_string();
        tokio::task::spawn_blocking(move || check_drain(&kubeconfig)).await?;
        Ok(())
    });
}

fn check_drain(kubeconfig: &str) {
    let folder = tempfile::tempdir().unwrap();
    let ca = TestCa::new().unwrap();
    ca.serving_files(folder.path(), "tls", &["localhost"]).unwrap();
    let minimum = format!("{}s", DRAIN_MINIMUM.as_secs());
    let arguments = [
        "webhook",
        "--listen",
        "127.0.0.1:0",
        "--metrics-listen",
        "127.0.0.1:0",
        "--drain-minimum",
        &*minimum,
        "--kubeconfig",
        kubeconfig,
        "--tls-cert",
        "tls.crt",
        "--tls-key",
        "tls.key",
    ];
    let mut replica = Program::start(&arguments, folder.path());
    let address = replica.word_after(" address=");
    let operations = replica.word_after("metrics_address=");
    eventually("the replica is ready", || (get(&operations, "/readyz").status == 200).then_some(()));
    let mut pooled = connect_tls(&address, &ca.bundle_pem());
    assert!(!post_nonsense(&mut pooled).contains("connection: close"));
    assert!(get(&operations, "/metrics").body.contains("pillion_webhook_draining 0\n"));

    replica.terminate();
    let began = Instant::now();
    eventually("it is not ready", || get(&operations, "/readyz").body.contains("draining").then_some(()));
    eventually("it is draining", || {
        get(&operations, "/metrics").body.contains("pillion_webhook_draining 1\n").then_some(())
    });
    // A client that does not know yet that the replica is terminating gets a response, and then its connection is
    // closed.
    for _ in 0..3 {
        let mut late = connect_tls(&address, &ca.bundle_pem());
        assert!(post_nonsense(&mut late).contains("connection: close"));
    }
    assert_eq!(get(&operations, "/livez").status, 200);
    // A client with an idle connection gets the same response, even after `--drain-minimum`.
    std::thread::sleep((DRAIN_MINIMUM + Duration::from_millis(300)).saturating_sub(began.elapsed()));
    assert!(post_nonsense(&mut pooled).contains("connection: close"));
    assert_eq!(replica.wait_for_exit().code(), Some(0), "{}", replica.stderr());
    assert!(began.elapsed() < DRAIN_LIMIT, "{:?}", began.elapsed());
    assert!(!replica.stderr().contains("connections were closed"), "{}", replica.stderr());
    assert!(TcpStream::connect(&address).is_err());
}

/// The process's limit of file descriptors. About 30 descriptors are open after its start.
const DESCRIPTORS: &str = "64";
const CLIENTS: usize = 100;
/// How long the test leaves the process without a free file descriptor.
const EXHAUSTED_FOR: Duration = Duration::from_secs(2);

/// Scrapes the metrics on a connection that stays open.
fn scrape(stream: &mut BufReader<TcpStream>) -> String {
    stream.get_mut().write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut length = 0;
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the connection ends");
        if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
            length = text.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    String::from_utf8(body).unwrap()
}

fn metric(scrape: &str, series: &str) -> f64 {
    scrape.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok()).unwrap()
}

/// Returns the processor time of a process, in seconds.
fn cpu_seconds(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: f64 = [11, 12].into_iter().map(|field| fields.get(field).unwrap().parse::<f64>().unwrap()).sum();
    ticks / 100.0
}

#[test]
fn descriptor_exhaustion_is_survived() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["dev", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];
    let dev = Program::start_with_wrapper(
        &["sh", "-c", "ulimit -n \"$0\" && exec \"$@\"", DESCRIPTORS],
        &arguments,
        folder.path(),
    );
    let ca = dev.word_after("--cacert ");
    let sample = std::fs::read_to_string(dev.word_after("--data @")).unwrap();
    let url = format!("https://{}", dev.word_after("https://"));
    let address = url.strip_prefix("https://").unwrap().split('/').next().unwrap().replace("localhost", "127.0.0.1");
    let operations = dev.word_after("http://").split('/').next().unwrap().replace("localhost", "127.0.0.1");
    let mut scraper = BufReader::new(TcpStream::connect(&operations).unwrap());
    assert!(metric(&scrape(&mut scraper), "pillion_webhook_accept_errors_total") < 0.5);
    assert_eq!(post(&url, ca.as_ref(), &sample).status, 200);

    // The kernel accepts all connections, but the process has descriptors for only some of them.
    let clients: Vec<_> = (0..CLIENTS).map(|_| TcpStream::connect(&address).unwrap()).collect();
    eventually("the process has no free descriptor", || {
        (metric(&scrape(&mut scraper), "pillion_webhook_accept_errors_total") > 0.5).then_some(())
    });
    let (before, began) = (cpu_seconds(dev.id()), Instant::now());
    let errors = metric(&scrape(&mut scraper), "pillion_webhook_accept_errors_total");
    std::thread::sleep(EXHAUSTED_FOR);
    let errors = metric(&scrape(&mut scraper), "pillion_webhook_accept_errors_total") - errors;
    let busy = (cpu_seconds(dev.id()) - before) / began.elapsed().as_secs_f64();
    println!("{errors} errors in {EXHAUSTED_FOR:?}, {:.1} per cent of a core", busy * 100.0);
    // About 20 errors per second are expected, plus a margin. A busy machine may extend the duration, so the test
    // measures it.
    let most = 30.0 * began.elapsed().as_secs_f64();
    assert!((1.0..=most).contains(&errors), "{errors} errors, at most {most} expected: no pause between errors");
    assert!(busy < 0.5, "the process is in a busy loop");
    let logged = dev.stderr().lines().filter(|line| line.contains("no connection can be accepted")).count();
    assert!((1..=4).contains(&logged), "logged {logged} times: {}", dev.stderr());

    drop(clients);
    eventually("the next client is served", || (post(&url, ca.as_ref(), &sample).status == 200).then_some(()));
    assert!(metric(&scrape(&mut scraper), "pillion_webhook_tls_handshakes_total{result=\"ok\"}") > 1.5);
}
