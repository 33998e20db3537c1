//! Tests `pillion lint` as a process. It shows each mistake at its position in the file, and its exit code reports
//! whether there are mistakes. Each profile in `mistakes` has its expected output in a file beside it. `just generate`
//! writes the expected outputs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;

const PROFILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles");

fn lint(paths: &[&Path]) -> Output {
    assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion")).arg("lint").args(paths).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn file(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.yaml");
    fs::write(&path, text).unwrap();
    (folder, path)
}

/// Returns the source of the shipped profile `nginx`, in which `to` replaces the first `from`.
fn nginx_with(from: &str, to: &str) -> String {
    let text = fs::read_to_string(Path::new(PROFILES).join("nginx/profile.yaml")).unwrap();
    assert!(text.contains(from), "{from}");
    text.replacen(from, to, 1)
}

#[test]
fn shipped_profiles_are_valid() {
    for path in ["", "nginx", "nginx/profile.yaml"] {
        let output = lint(&[&Path::new(PROFILES).join(path)]);
        assert_eq!(output.status.code(), Some(0), "{path}: {}", stderr(&output));
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("ok: "), "{path}");
    }
    let output = lint(&[&Path::new(PROFILES).join("nginx")]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ok: 1 profile\n");
}

#[test]
fn misspelled_field_is_shown_with_suggestion() {
    let (_folder, path) = file(&nginx_with("  template:", "  tempalte:"));
    let output = lint(&[&path]);
    assert_eq!(output.status.code(), Some(1));
    let expected = format!(
        "\
error: unknown field `tempalte`
  --> {}:15:3
   |
15 |   tempalte:
   |   ^^^^^^^^
   |
help: did you mean `template`?
",
        path.display()
    );
    assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
    assert!(output.stdout.is_empty());
}

#[test]
fn compiler_errors_have_positions() {
    let (_folder, path) = file(&nginx_with("image: nginx:1.29", "image: \"${params.image}\""));
    let output = lint(&[&path]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains(&format!("{}:22:19", path.display())), "{text}");
    assert!(text.contains("spec.template.spec.containers[0].image"), "{text}");
    assert!(text.contains("image: \"${params.image}\"\n"), "{text}");
}

#[test]
fn all_problems_are_shown() {
    let (folder, path) = file(&nginx_with("activation: Requested", "activation: requested"));
    let other = folder.path().join("other.yaml");
    fs::write(&other, "a: [1\nb: 2\n").unwrap();
    let text = stderr(&lint(&[folder.path()]));
    assert!(text.contains(&format!("{}:7:15", path.display())) && text.contains("did you mean `Requested`?"), "{text}");
    assert!(text.contains(&format!("{}:2:", other.display())), "{text}");
    assert!(text.contains("2 problems"), "{text}");
}

#[test]
fn pipes_get_no_colours() {
    let (_folder, path) = file("kind: ClusterInjectionProfile\n");
    assert!(!stderr(&lint(&[&path])).contains('\u{1b}'));
}

#[test]
fn path_without_profile_is_an_error() {
    let (folder, path) = file("apiVersion: v1\nkind: Pod\n");
    let nowhere = folder.path().join("nowhere");
    let empty = tempfile::tempdir().unwrap();
    for (path, message, code) in [
        (&*path, "contains no ClusterInjectionProfile", 1),
        (&*nowhere, "cannot be read", 2),
        (empty.path(), "contains no ", 1),
    ] {
        let output = lint(&[path]);
        assert_eq!(output.status.code(), Some(code));
        let text = stderr(&output);
        assert!(text.contains(message) && text.contains(&path.display().to_string()), "{text}");
    }
    assert_eq!(lint(&[]).status.code(), Some(2));
}

#[test]
fn github_annotations_have_positions() {
    let (_folder, path) = file(&nginx_with("  activation:", "  activaton:"));
    let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"))
        .args(["lint", "-o", "github"])
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with(&format!("::error file={},line=", path.display())), "{text}");
    assert!(text.contains("did you mean `activation`?") && text.lines().count() == 1, "{text}");
}

#[test]
fn github_annotations_are_limited() {
    let (_folder, path) = file(&"kind: ClusterInjectionProfile\n---\n".repeat(150));
    let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"))
        .args(["lint", "-o", "github"])
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 100);
}

const MISTAKES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mistakes");

fn lint_mistakes(arguments: &[&str]) -> Output {
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"));
    command.arg("lint").args(arguments).current_dir(MISTAKES).output().unwrap()
}

fn mistakes_files() -> Vec<PathBuf> {
    let mut mistakes_files: Vec<_> = fs::read_dir(MISTAKES).unwrap().map(|entry| entry.unwrap().path()).collect();
    mistakes_files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    mistakes_files.sort();
    mistakes_files
}

fn name(file: &Path) -> &str {
    file.file_name().unwrap().to_str().unwrap()
}

#[test]
fn every_mistake_prints_expected_text() {
    let mut mistakes = 0;
    for file in mistakes_files() {
        let output = lint_mistakes(&[name(&file)]);
        let printed = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(output.stdout.is_empty());
        let expected = fs::read_to_string(file.with_extension("txt")).unwrap();
        assert_eq!(printed, expected, "{}", file.display());
        let errors = printed.matches("error: ").count();
        assert_eq!(
            printed.matches(&format!(" --> {}:", name(&file))).count(),
            errors + printed.matches("warning: ").count()
        );
        mistakes += errors;
    }
    assert!(mistakes >= 60, "{mistakes}");
}

#[test]
fn json_has_same_problems_as_text() {
    for file in mistakes_files() {
        let output = lint_mistakes(&["-o", "json", name(&file)]);
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
fn warnings_do_not_fail() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("p.yaml");
    fs::write(
        &file,
        "apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {name: p}\nspec:\n  template:\n    \
         spec: {containers: [{name: a, image: i, volumeMounts: [{name: data, mountPath: /data}]}]}\n",
    )
    .unwrap();
    let output = lint_mistakes(&[file.to_str().unwrap()]);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{printed}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "ok: 1 profile\n");
    assert!(
        printed.starts_with("warning: ") && printed.contains(":6:67\n") && printed.ends_with("1 warning\n"),
        "{printed}"
    );
    let output = lint_mistakes(&["--output", "json", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    let problems: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(problems[0]["severity"], "warning");
    assert_eq!(problems[0]["path"], "spec.template.spec.containers[0].volumeMounts[0].name");
}
