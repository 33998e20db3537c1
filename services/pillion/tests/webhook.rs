//! `pillion webhook` as far as it goes without a cluster: what is wrong is found before a port is bound, and a replica
//! that has not seen the cluster yet is alive and not ready.

#![expect(clippy::unwrap_used, reason = "a test says what is wrong by panicking, also in its helpers")]

use std::net::TcpListener;
use std::path::Path;

use crate::support::{Program, eventually, get, post};
use pillion_testkit::TestCa;

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

fn write_files(folder: &Path, api_server: &str) {
    let ca = TestCa::new().unwrap();
    ca.serving_files(folder, "tls", &["localhost"]).unwrap();
    std::fs::write(folder.join("ca.crt"), ca.bundle_pem()).unwrap();
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: \"{api_server}\"}}}}]\n\
         users: [{{name: u, user: {{token: t}}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
         current-context: x\n"
    );
    std::fs::write(folder.join("kubeconfig"), kubeconfig).unwrap();
}

fn start(folder: &Path, certificate: &str, key: &str) -> Program {
    Program::start(&[&ANY_PORTS[..], &["--tls-cert", certificate, "--tls-key", key]].concat(), folder)
}

#[test]
fn a_replica_without_a_cluster_is_alive_not_ready_and_ends_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    // Bound and never accepted from: an API server that does not answer.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    write_files(folder.path(), &format!("http://{}", silent.local_addr().unwrap()));
    let mut replica = start(folder.path(), "tls.crt", "tls.key");
    let operations = replica.word_behind("metrics_address=");
    assert_eq!(get(&operations, "/livez").status, 200);
    let ready = get(&operations, "/readyz");
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("profiles and namespaces") && !ready.body.contains("certificate"), "{ready:?}");
    let metrics = get(&operations, "/metrics").body;
    assert!(metrics.contains("pillion_broken_profiles 0"), "{metrics}");
    // Knowing no profile, it must not say that there is nothing to do.
    let port = replica.word_behind("listening address=").rsplit(':').next().unwrap().to_owned();
    let review = include_str!("../../engine/tests/reviews/create-deployment-pod.json");
    let url = format!("https://localhost:{port}/mutate/required");
    let answer = post(&url, &folder.path().join("ca.crt"), review);
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.body.contains("waiting for the first lists of profiles and namespaces: try again"), "{answer:?}");

    replica.terminate();
    assert_eq!(replica.ended().code(), Some(0), "{}", replica.stderr());
}

#[test]
fn an_api_server_that_refuses_is_told_and_asked_again() {
    let folder = tempfile::tempdir().unwrap();
    // Nobody listens there, and no test beside this one is given that port.
    write_files(folder.path(), "http://127.0.0.1:1");
    let replica = start(folder.path(), "tls.crt", "tls.key");
    eventually("it is told twice for namespaces", || {
        let told = replica.stderr();
        (told
            .lines()
            .filter(|line| line.contains("not watched at present") && line.contains("kind=\"namespaces\""))
            .count()
            >= 2)
            .then_some(())
    });
}

/// Whether a text says anything of some length twice: `what: why: why`.
fn says_a_part_twice(text: &str) -> Option<String> {
    let parts: Vec<_> = text.trim().split(": ").filter(|part| part.len() > 8).collect();
    let twice = |(index, part): (usize, &&str)| parts.iter().skip(index + 1).any(|other| other.contains(*part));
    parts.iter().enumerate().find(|(index, part)| twice((*index, part))).map(|(_, part)| (*part).to_owned())
}

#[test]
fn each_cause_is_told_once() {
    let folder = tempfile::tempdir().unwrap();
    write_files(folder.path(), "http://127.0.0.1:1");
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
        assert_eq!(replica.ended().code(), Some(1), "{more:?}");
        replica.tells(expected);
        let told = replica.stderr();
        let error = told.lines().find_map(|line| line.strip_prefix("error: ")).unwrap();
        assert_eq!(says_a_part_twice(error), None, "{told}");
    }
}

#[test]
fn what_is_wrong_is_found_before_a_port_is_bound() {
    let folder = tempfile::tempdir().unwrap();
    write_files(folder.path(), "http://127.0.0.1:1");
    std::fs::write(folder.path().join("none.pem"), "nothing").unwrap();
    for (certificate, key, expected) in [
        ("nowhere.crt", "tls.key", "cannot read the certificate nowhere.crt"),
        ("tls.crt", "nowhere.key", "cannot read the private key nowhere.key"),
        ("none.pem", "tls.key", "none.pem"),
        ("tls.crt", "none.pem", "none.pem"),
    ] {
        let mut replica = start(folder.path(), certificate, key);
        assert_eq!(replica.ended().code(), Some(1));
        replica.tells(expected);
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
        assert_eq!(replica.ended().code(), Some(1));
        replica.tells(expected);
        assert!(!replica.stderr().contains("listening"), "{}", replica.stderr());
    }
    std::fs::write(folder.path().join("kubeconfig"), "current-context: nowhere").unwrap();
    let mut replica = start(folder.path(), "tls.crt", "tls.key");
    assert_eq!(replica.ended().code(), Some(1));
    replica.tells("kubeconfig");
    assert!(!replica.stderr().contains("listening"), "{}", replica.stderr());
}
