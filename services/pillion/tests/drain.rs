//! A replica that is asked to end, as its clients see it: unready first, answering still, and gone when nobody is left.

#![expect(clippy::unwrap_used, reason = "a test says what is wrong by panicking, also in its helpers")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::{Program, eventually, get, trusting};
use pillion_testkit::{ControlPlane, TestCa};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

const LIMIT: Duration = Duration::from_mins(1);
/// What the replica is told by `--drain-minimum`.
const MINIMUM: Duration = Duration::from_secs(2);

type Connection = StreamOwned<ClientConnection, TcpStream>;

fn connect(address: &str, authority: &str) -> Connection {
    let config = trusting(authority.as_bytes());
    let tcp = TcpStream::connect(address).unwrap();
    tcp.set_read_timeout(Some(LIMIT)).unwrap();
    StreamOwned::new(ClientConnection::new(config, ServerName::try_from("localhost").unwrap()).unwrap(), tcp)
}

/// The head of the answer to something that is no review, which is as good as any to see how a connection does.
fn ask(connection: &mut Connection) -> String {
    connection.write_all(b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").unwrap();
    let mut text = Vec::new();
    let mut byte = [0];
    // One line of text is the whole body.
    while !(text.ends_with(b"\n") && text.windows(4).any(|four| four == b"\r\n\r\n") && !text.ends_with(b"\r\n")) {
        connection.read_exact(&mut byte).unwrap();
        text.extend_from_slice(&byte);
    }
    String::from_utf8(text).unwrap().to_lowercase()
}

#[test]
fn a_replica_that_is_asked_to_end_answers_until_nobody_is_left() {
    pillion_testkit::isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        let crds = std::process::Command::new(env!("CARGO_BIN_EXE_pillion")).arg("crds").output()?;
        control_plane.kubectl_with_input(&["apply", "-f", "-"], std::str::from_utf8(&crds.stdout)?).await?;
        control_plane.wait_for_crds(&["clusterinjectionprofiles.pillion.dev", "injectionprofiles.pillion.dev"]).await?;
        let kubeconfig = control_plane.kubeconfig().display().to_string();
        tokio::task::spawn_blocking(move || drains(&kubeconfig)).await?;
        Ok(())
    });
}

fn drains(kubeconfig: &str) {
    let folder = tempfile::tempdir().unwrap();
    let authority = TestCa::new().unwrap();
    authority.serving_files(folder.path(), "tls", &["localhost"]).unwrap();
    let minimum = MINIMUM.as_secs().to_string();
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
    let address = replica.word_behind(" address=");
    let operations = replica.word_behind("metrics_address=");
    eventually("it is ready", || (get(&operations, "/readyz").status == 200).then_some(()));
    let mut pooled = connect(&address, &authority.bundle_pem());
    assert!(!ask(&mut pooled).contains("connection: close"));
    assert!(get(&operations, "/metrics").body.contains("pillion_draining 0\n"));

    replica.terminate();
    let began = Instant::now();
    eventually("it is not ready", || get(&operations, "/readyz").body.contains("draining").then_some(()));
    eventually("it drains", || get(&operations, "/metrics").body.contains("pillion_draining 1\n").then_some(()));
    // Who comes now, because nobody has told it yet, is answered and sent away.
    for _ in 0..3 {
        let mut late = connect(&address, &authority.bundle_pem());
        assert!(ask(&mut late).contains("connection: close"));
    }
    assert_eq!(get(&operations, "/livez").status, 200);
    // So is who has kept a connection. It is left alone until it has its answer, beyond the minimum too.
    std::thread::sleep((MINIMUM + Duration::from_millis(300)).saturating_sub(began.elapsed()));
    assert!(ask(&mut pooled).contains("connection: close"));
    assert_eq!(replica.ended().code(), Some(0), "{}", replica.stderr());
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
    assert!(!replica.stderr().contains("were cut"), "{}", replica.stderr());
    assert!(TcpStream::connect(&address).is_err());
}
