//! Manual pages and completions, as a process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

fn pillion(arguments: &[&str]) -> String {
    let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_command_has_a_page_with_its_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man/man1");
    assert_eq!(pillion(&["man", pages.to_str().unwrap()]), "");
    for page in ["pillion.1", "pillion-diff.1", "pillion-convert-opentelemetry.1", "pillion-certs-rotate.1"] {
        let text = fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.contains(".TH "), "{page}: {text}");
    }
    let diff = fs::read_to_string(pages.join("pillion-diff.1")).unwrap();
    assert!(diff.contains("Exit codes") && diff.contains("something would be different"), "{diff}");
    assert!(pillion(&["man"]).contains("pillion \\- One sidecar injector"), "{}", pillion(&["man"]));
}

#[test]
fn every_shell_has_completions_that_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let completions = pillion(&["completions", shell]);
        for word in ["rollout", "uninject", "opentelemetry"] {
            assert!(completions.contains(word), "{shell} does not know {word}");
        }
    }
    let script = format!("{}\ncomplete -p pillion", pillion(&["completions", "bash"]));
    let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
