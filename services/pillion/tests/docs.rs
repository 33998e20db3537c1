//! What README and docs say is run: every `console` block is a session in a folder that holds the files which the blocks
//! before it begin with a comment naming them, and has to print what stands there, to the letter.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A fenced block of a Markdown file.
struct Block {
    language: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn blocks(file: &Path) -> Vec<Block> {
    let text = fs::read_to_string(file).unwrap();
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.trim_start().strip_prefix("```") else { continue };
        let indent = line.len() - line.trim_start().len();
        let body: Vec<_> = lines
            .by_ref()
            .take_while(|line| line.trim() != "```")
            .map(|line| line.get(indent..).unwrap_or_default())
            .collect();
        blocks.push(Block { language: language.to_owned(), text: body.join("\n") + "\n" });
    }
    blocks
}

/// All Markdown files that people read.
fn documents() -> Vec<PathBuf> {
    let root = root();
    let mut documents = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    for folder in ["docs", "load-tests", "profiles"] {
        let mut folders = vec![root.join(folder)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "md") {
                    documents.push(path);
                }
            }
        }
    }
    documents
}

/// Runs the sessions of a document. How many there were.
fn run_sessions(document: &Path) -> usize {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(root().join("profiles"), folder.path().join("profiles")).unwrap();
    let mut sessions = 0;
    for block in blocks(document) {
        if block.language == "console" {
            sessions += 1;
            run_session(&block.text, folder.path(), document);
        } else if let Some(name) = block.text.lines().next().and_then(|line| line.strip_prefix("# ")) {
            let is_file = Path::new(name).extension().is_some_and(|extension| extension == "yaml");
            if block.language == "yaml" && is_file {
                fs::write(folder.path().join(name), &block.text).unwrap();
            }
        }
    }
    sessions
}

fn run_session(session: &str, folder: &Path, document: &Path) {
    let program = Path::new(env!("CARGO_BIN_EXE_pillion")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut commands: Vec<(&str, String)> = Vec::new();
    for line in session.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            commands.push((command, String::new()));
        } else {
            let (_, expected) = commands.last_mut().expect("a session begins with a command");
            expected.push_str(line);
            expected.push('\n');
        }
    }
    for (command, expected) in commands {
        let output = Command::new("sh").args(["-c", command]).current_dir(folder).env("PATH", &path).output().unwrap();
        // What was decided goes to standard error beside the result; a session shows the result, or what was wrong.
        let shown = if output.stdout.is_empty() { output.stderr } else { output.stdout };
        let shown = String::from_utf8(shown).unwrap();
        assert_eq!(shown.trim_end(), expected.trim_end(), "{}: $ {command}", document.display());
    }
}

#[test]
fn every_session_prints_what_it_says() {
    let sessions: usize = documents().iter().map(|document| run_sessions(document)).sum();
    assert!(sessions >= 2, "the README has at least two sessions, found {sessions}");
}

#[test]
fn ci_runs_the_readmes_test_command_and_nothing_else() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let contributing = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let script = fs::read_to_string(root().join(".ci/run")).unwrap();
    let commands: Vec<_> = script
        .lines()
        .filter(|line| {
            !line.is_empty() && !line.starts_with('#') && !line.starts_with("set ") && !line.starts_with("cd ")
        })
        .collect();
    let [command] = commands.as_slice() else { panic!("one command, found {commands:?}") };
    assert!(command.ends_with("just test"), "{command}");
    for document in [readme, contributing] {
        assert!(document.lines().any(|line| line == *command), "{command} does not stand in the document");
    }
}

#[test]
fn every_shell_command_is_known_to_a_test() {
    // Commands that serve, install or need a cluster are run by other tests; this list says by which, and a command that
    // is in no list is found.
    let known = [
        ("cargo run --release -p pillion -- dev", "tests/dev.rs runs the program so"),
        ("cargo install --locked just@1.59.0 && just test", ".ci/run"),
        ("pillion lint profiles/nginx", "tests/lint.rs"),
        ("pillion inject -f deployment.yaml --profile profiles/nginx", "tests/inject.rs"),
        ("pillion status", "tests/e2e/audit.rs"),
        ("pillion status -n shop", "as above"),
        ("pillion profiles history nginx", "tests/e2e/revisions.rs"),
        ("pillion profiles rollback nginx", "tests/e2e/revisions.rs"),
        ("pillion certs status", "tests/e2e/rotation.rs"),
        ("pillion certs rotate --wait 600", "tests/e2e/rotation.rs"),
        ("pillion certs rotate --compromised --wait 600", "as above"),
        ("pillion webhook --serving-secret pillion-system/pillion-serving", "tests/e2e/serving_secret.rs"),
        ("just bench", "it measures, and needs h2load and valgrind; run by hand"),
        ("just bench --quick", "as above"),
        ("just bench --gate", "as above"),
        (
            "pillion dev --profiles load-tests/profile.yaml --namespaces-file <(load-tests/namespaces.sh) --folder /tmp/pillion-dev",
            "tests/load_tests.rs",
        ),
        (
            "export PILLION_URL=https://localhost:8443/mutate SSL_CERT_FILE=/tmp/pillion-dev/ca.crt",
            "tests/load_tests.rs",
        ),
        ("just load", "tests/load_tests.rs runs each script, with other settings"),
        ("RATE=100 DURATION=5m just load steady", "as above"),
        ("just nightly", "what CI runs, longer"),
        ("cargo bench -p pillion-engine --bench answers", "the same program runs as a test of the engine"),
    ];
    // tests/e2e/break_glass.rs and held.rs run each command of their pages, and find one that is new.
    let by_themselves = ["docs/break-glass.md", "docs/held.md"];
    let is_ours = |document: &PathBuf| !by_themselves.iter().any(|page| document.ends_with(page));
    for document in documents().into_iter().filter(is_ours) {
        for block in blocks(&document).into_iter().filter(|block| block.language == "sh") {
            let uncommented = block.text.lines().map(|line| line.split(" #").next().unwrap().trim());
            for line in uncommented.filter(|line| !line.is_empty() && !line.starts_with('#')) {
                assert!(
                    known.iter().any(|(command, _)| *command == line),
                    "{}: {line:?} is run by no test",
                    document.display()
                );
            }
        }
    }
}

#[test]
fn every_link_to_a_file_leads_to_one() {
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split('#').next().unwrap();
            if path.is_empty() || path.contains("://") {
                continue;
            }
            let file = document.parent().unwrap().join(path);
            assert!(file.exists(), "{}: {target} leads nowhere", document.display());
        }
    }
}
