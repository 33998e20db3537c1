//! Tests that isolated tests run once, inside their namespaces, fail when their body fails, and leave no process
//! behind.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use pillion_testkit::namespace::{self, replica_address};
use pillion_testkit::{ControlPlane, Isolation};
use tokio::net::TcpListener;

#[test]
fn failure_keeps_logs_and_shows_tail() {
    let outcome = Isolation::new().own_network("tests the namespaces").try_run(|| async {
        let _control_plane = ControlPlane::start().await?;
        println!("said before the failure");
        bail!("on purpose")
    });
    let failure = outcome.unwrap_err();
    let dir = failure.directory.clone().unwrap();
    let text = failure.to_string();
    let log = dir.join("control-plane-10.111.0.1/kube-apiserver.log");
    assert!(text.contains("failure_keeps_logs_and_shows_tail: on purpose"), "{text}");
    assert!(text.contains(&format!("--- the end of {}", log.display())), "{text}");
    assert!(std::fs::read_to_string(&log).unwrap().contains("Serving securely"));
    assert!(failure.output.contains("said before the failure"), "{}", failure.output);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn passed_test_leaves_nothing() {
    // The closure runs in another process, so it returns the folder's name in a file with a fixed path.
    let note = Path::new(env!("CARGO_TARGET_TMPDIR")).join("folder-of-a-test-that-passed");
    Isolation::new().own_network("tests the namespaces").run(|| async {
        let dir = namespace::directory()?;
        std::fs::write(dir.join("some.log"), "text")?;
        std::fs::write(&note, dir.as_os_str().as_encoded_bytes())?;
        Ok(())
    });
    let dir = std::fs::read_to_string(&note).unwrap();
    assert!(!dir.is_empty() && !Path::new(&dir).exists(), "{dir} is still there");
}

#[test]
fn panic_in_body_is_failure() {
    let failure = Isolation::new()
        .own_network("tests the namespaces")
        .try_run(|| async {
            assert_eq!(1 + 1, 3, "arithmetic");
            Ok(())
        })
        .unwrap_err();
    assert!(failure.message.contains("panicked: ") && failure.message.contains("arithmetic"), "{failure}");
    std::fs::remove_dir_all(failure.directory.unwrap()).unwrap();
}

#[test]
fn hanging_body_and_its_children_are_ended() {
    let started = Instant::now();
    let failure = Isolation::new()
        .own_network("tests the namespaces")
        .time_limit(Duration::from_millis(300))
        .try_run(|| async {
            std::process::Command::new("sleep").arg("1000").spawn()?;
            std::future::pending().await
        })
        .unwrap_err();
    assert!(failure.message.contains("did not end within 300ms"), "{failure}");
    // The sleeping process holds the output pipe open. If it had survived, the call above would have waited for it.
    assert!(started.elapsed() < Duration::from_mins(1));
    std::fs::remove_dir_all(failure.directory.unwrap()).unwrap();
}

#[test]
fn runs_both_bodies_of_one_test() {
    let note = |dir: &Path| dir.join("first-was-here");
    Isolation::new().own_network("tests the namespaces").run(|| async {
        let dir = namespace::directory()?;
        std::fs::write(note(&dir), "")?;
        Ok(())
    });
    let second =
        Isolation::new().own_network("tests the namespaces").try_run(|| async { bail!("the second") }).unwrap_err();
    assert!(second.message.contains("the second"), "{second}");
    let dir = second.directory.unwrap();
    assert!(!note(&dir).exists(), "the first body was run in the copy for the second");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn exactly_the_range_is_local() {
    Isolation::new().own_network("tests the namespaces").run(|| async {
        for address in [namespace::API_SERVER, replica_address(1), replica_address(250)] {
            TcpListener::bind((address, 8443)).await.with_context(|| format!("{address}"))?;
        }
        let beyond = tokio::net::TcpStream::connect(("10.112.0.1", 443)).await;
        ensure!(beyond.is_err_and(|error| error.kind() == std::io::ErrorKind::NetworkUnreachable));
        Ok(())
    });
}
