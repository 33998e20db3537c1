//! The output of `pillion lint` for every kind of mistake: beside each file with mistakes stands the expected text, which
//! `just generate` writes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mistakes");

fn lint(arguments: &[&str]) -> Output {
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"));
    command.arg("lint").args(arguments).current_dir(FOLDER).output().unwrap()
}

fn files() -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    files
}

fn name(file: &Path) -> &str {
    file.file_name().unwrap().to_str().unwrap()
}

#[test]
fn every_mistake_is_shown_with_its_line_and_column_and_its_piece_of_text() {
    let mut mistakes = 0;
    for file in files() {
        let output = lint(&[name(&file)]);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(output.stdout.is_empty());
        let expected = fs::read_to_string(file.with_extension("txt")).unwrap();
        assert_eq!(told, expected, "{}", file.display());
        let errors = told.matches("error: ").count();
        assert_eq!(told.matches(&format!(" --> {}:", name(&file))).count(), errors + told.matches("warning: ").count());
        mistakes += errors;
    }
    assert!(mistakes >= 60, "{mistakes}");
}

#[test]
fn a_program_gets_the_same_as_json() {
    for file in files() {
        let output = lint(&["--format", "json", name(&file)]);
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stderr.is_empty());
        let problems: Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = fs::read_to_string(file.with_extension("txt")).unwrap();
        assert!(!problems.as_array().unwrap().is_empty());
        for problem in problems.as_array().unwrap() {
            let place = format!("{}:{}:{}\n", problem["file"].as_str().unwrap(), problem["line"], problem["column"]);
            assert!(text.contains(&place), "{place} is not in {text}");
            for part in ["message", "help"] {
                let part = problem.get(part).map_or("", |part| part.as_str().unwrap());
                assert!(text.contains(part), "{part} is not in {text}");
            }
        }
    }
}

#[test]
fn a_warning_is_told_and_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("p.yaml");
    fs::write(
        &file,
        "apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {name: p}\nspec:\n  template:\n    \
         spec: {containers: [{name: a, image: i, volumeMounts: [{name: data, mountPath: /data}]}]}\n",
    )
    .unwrap();
    let output = lint(&[file.to_str().unwrap()]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "ok: 1 profile\n");
    assert!(told.starts_with("warning: ") && told.contains(":6:67\n") && told.ends_with("1 warning\n"), "{told}");
    // As it is called here, and as it is called everywhere else.
    for flag in ["--format", "--output", "-o"] {
        let output = lint(&[flag, "json", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{flag}");
        let problems: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(problems[0]["severity"], "warning");
        assert_eq!(problems[0]["path"], "spec.template.spec.containers[0].volumeMounts[0].name");
    }
}
