//! What README and docs say is run: every `console` block is a session in a folder that holds the files which the blocks
//! before it begin with a comment naming them, and has to print what stands there, to the letter.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod known;
mod links;
mod migration;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use known::KNOWN;

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
    let mut documents =
        ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root.join(name)).to_vec();
    for folder in ["charts", "dashboards", "deploy", "docs", "load-tests", "profiles"] {
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
                let file = folder.path().join(name);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, &block.text).unwrap();
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
    assert_eq!(*command, "./justw test");
    for document in [readme, contributing] {
        assert!(document.lines().any(|line| line == *command), "{command} does not stand in the document");
    }
}

/// A workload of anybody's, for what READMEs say to try with one.
const DEPLOYMENT: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: \"web:1\"}]}}
";

/// Whether a command does nothing but try shipped profiles, and succeeds where it is run.
fn runs(command: &str) -> bool {
    let words: Vec<_> = command.split(' ').collect();
    let [program, "lint" | "test" | "inject", arguments @ ..] = words.as_slice() else { return false };
    let is_shipped = |word: &&str| word.split('/').next() == Some("profiles");
    let is_known = |word: &&str| is_shipped(word) || ["-f", "deployment.yaml", "-p", "--profile"].contains(word);
    if *program != "pillion" || !arguments.iter().all(is_known) {
        return false;
    }
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(root().join("profiles"), folder.path().join("profiles")).unwrap();
    fs::write(folder.path().join("deployment.yaml"), DEPLOYMENT).unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_pillion"));
    program.args(words.get(1..).unwrap()).current_dir(folder.path()).output().unwrap().status.success()
}

#[test]
fn every_shell_command_is_known_to_a_test() {
    // tests/e2e/break_glass.rs, held.rs and first_profile.rs run each command of their pages, and find one that is new; so
    // does dashboards.rs with runbooks.
    let by_themselves = ["docs/break-glass.md", "docs/held.md", "docs/tutorial.md", "docs/tenancy.md"];
    let is_runbook = |document: &Path| document.parent().is_some_and(|folder| folder.ends_with("docs/runbooks"));
    let is_ours =
        |document: &PathBuf| !is_runbook(document) && !by_themselves.iter().any(|page| document.ends_with(page));
    for document in documents().into_iter().filter(is_ours) {
        for block in blocks(&document).into_iter().filter(|block| block.language == "sh") {
            let uncommented = block.text.lines().map(|line| line.split(" #").next().unwrap().trim());
            for line in uncommented.filter(|line| !line.is_empty() && !line.starts_with('#')) {
                assert!(
                    KNOWN.iter().any(|(command, _)| *command == line) || runs(line),
                    "{}: {line:?} is run by no test",
                    document.display()
                );
            }
        }
    }
}

#[test]
fn every_page_is_on_the_list_of_pages() {
    let docs = root().join("docs");
    let list = fs::read_to_string(docs.join("README.md")).unwrap();
    for entry in fs::read_dir(docs).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_page = Path::new(&name).extension().is_some_and(|extension| extension == "md") && name != "README.md";
        assert!(!is_page || list.contains(&format!("]({name})")), "docs/README.md does not lead to {name}");
    }
}
