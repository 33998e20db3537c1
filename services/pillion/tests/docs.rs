//! Runs what README and docs show. Every `console` block is a session, which has to print what the block shows; its folder
//! holds the `yaml` blocks before it that start with a comment with a file name. In `sh` blocks, commands that need no cluster
//! are run. `src/args.rs` parses all `pillion` commands. The tests in `e2e` run the commands of `docs/break-glass.md`,
//! `held.md`, `install.md`, `tutorial.md`, `tenancy.md` and the runbooks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod links;
mod migration;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pillion_testkit::tools;

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
fn ci_runs_only_the_documented_test_command() {
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

/// A workload for the commands of pages that have no workload of their own.
const DEPLOYMENT: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: \"web:1\"}]}}
";

/// Commands that need no cluster and write only what they print.
const OFFLINE: [&str; 6] =
    ["pillion lint ", "pillion test ", "pillion inject ", "pillion export ", "helm template ", "kubectl kustomize "];

/// Folders of the repository that commands name.
const FOLDERS: [&str; 5] = ["charts", "dashboards", "deploy", "load-tests", "profiles"];

/// The lines of all `sh` blocks, without comments, each with its document.
fn shell_lines() -> Vec<(PathBuf, String)> {
    let mut lines = Vec::new();
    for document in documents() {
        for block in blocks(&document).into_iter().filter(|block| block.language == "sh") {
            let uncommented = block.text.lines().map(|line| line.split(" #").next().unwrap().trim());
            let commands = uncommented.filter(|line| !line.is_empty() && !line.starts_with('#'));
            lines.extend(commands.map(|line| (document.clone(), line.to_owned())));
        }
    }
    lines
}

#[test]
fn offline_commands_in_documents_succeed() {
    let folder = tempfile::tempdir().unwrap();
    for name in FOLDERS {
        std::os::unix::fs::symlink(root().join(name), folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("deployment.yaml"), DEPLOYMENT).unwrap();
    let programs = [
        PathBuf::from(env!("CARGO_BIN_EXE_pillion")),
        tools::program("helm").unwrap(),
        tools::program("kubectl").unwrap(),
    ];
    let mut path: Vec<_> = programs.iter().map(|program| program.parent().unwrap().to_owned()).collect();
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
    let path = std::env::join_paths(path).unwrap();
    let mut done = BTreeSet::new();
    for (document, line) in shell_lines() {
        let is_offline = OFFLINE.iter().any(|command| line.starts_with(command));
        // All profiles at once take minutes, and `--update` writes into them: tests/test_command.rs runs these.
        let is_of_all = line.split(' ').any(|word| word == "profiles");
        if !is_offline || is_of_all || !done.insert(line.clone()) {
            continue;
        }
        let mut command = Command::new("sh");
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, folder.path());
        }
        let output = command.args(["-c", &line]).current_dir(folder.path()).env("PATH", &path).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: $ {line}\n{stderr}", document.display());
    }
    assert!(done.len() > 50, "found {} commands", done.len());
}

#[test]
fn shell_commands_name_existing_files() {
    for (document, line) in shell_lines() {
        for word in line.split([' ', '=', '(', ')', '<', '\'']) {
            let is_of_repository = word.split_once('/').is_some_and(|(folder, _)| FOLDERS.contains(&folder));
            assert!(!is_of_repository || root().join(word).exists(), "{}: {line}: no {word}", document.display());
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
