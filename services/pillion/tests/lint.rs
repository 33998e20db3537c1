//! `pillion lint` as a process: what is wrong is shown in the author's own text, and the exit code says whether anything is.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::Output;

use tempfile::TempDir;

const PROFILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles");

fn lint(paths: &[&Path]) -> Output {
    assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion")).arg("lint").args(paths).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn file(text: &str) -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.yaml");
    fs::write(&path, text).unwrap();
    (folder, path)
}

/// The shipped profile with one part of its text replaced.
fn nginx_with(from: &str, to: &str) -> String {
    let text = fs::read_to_string(Path::new(PROFILES).join("nginx/profile.yaml")).unwrap();
    assert!(text.contains(from), "{from}");
    text.replacen(from, to, 1)
}

#[test]
fn the_shipped_profiles_are_right_by_folder_and_by_file() {
    for path in ["", "nginx", "nginx/profile.yaml"] {
        let output = lint(&[&Path::new(PROFILES).join(path)]);
        assert_eq!(output.status.code(), Some(0), "{path}: {}", stderr(&output));
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("ok: "), "{path}");
    }
    let output = lint(&[&Path::new(PROFILES).join("nginx")]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ok: 1 profile\n");
}

#[test]
fn a_misspelled_field_is_shown_in_its_line_with_what_was_meant() {
    let (_folder, path) = file(&nginx_with("  template:", "  tempalte:"));
    let output = lint(&[&path]);
    assert_eq!(output.status.code(), Some(1));
    let expected = format!(
        "\
error: unknown field `tempalte`
  --> {}:16:3
   |
16 |   tempalte:
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
fn what_the_compiler_finds_is_shown_where_it_is() {
    let (_folder, path) = file(&nginx_with("image: nginx:1.29", "image: \"${params.image}\""));
    let output = lint(&[&path]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains(&format!("{}:23:19", path.display())), "{text}");
    assert!(text.contains("spec.template.spec.containers[0].image"), "{text}");
    assert!(text.contains("image: \"${params.image}\"\n"), "{text}");
}

#[test]
fn all_problems_are_shown_not_only_the_first() {
    let (folder, path) = file(&nginx_with("activation: Requested", "activation: requested"));
    let other = folder.path().join("other.yaml");
    fs::write(&other, "a: [1\nb: 2\n").unwrap();
    let text = stderr(&lint(&[folder.path()]));
    assert!(text.contains(&format!("{}:7:15", path.display())) && text.contains("did you mean `Requested`?"), "{text}");
    assert!(text.contains(&format!("{}:2:", other.display())), "{text}");
    assert!(text.contains("2 problems"), "{text}");
}

#[test]
fn there_are_no_colours_where_there_is_no_terminal() {
    let (_folder, path) = file("kind: ClusterInjectionProfile\n");
    assert!(!stderr(&lint(&[&path])).contains('\u{1b}'));
}

#[test]
fn a_path_without_a_profile_is_an_error() {
    let (folder, path) = file("apiVersion: v1\nkind: Pod\n");
    let nowhere = folder.path().join("nowhere");
    let empty = tempfile::tempdir().unwrap();
    for (path, message) in [(&*path, "there is no "), (&*nowhere, "cannot be read"), (empty.path(), "there is no ")] {
        let output = lint(&[path]);
        assert_eq!(output.status.code(), Some(1));
        let text = stderr(&output);
        assert!(text.contains(message) && text.contains(&path.display().to_string()), "{text}");
    }
    assert_eq!(lint(&[]).status.code(), Some(2));
}

#[test]
fn github_shows_mistakes_at_their_place() {
    let (_folder, path) = file(&nginx_with("  activation:", "  activaton:"));
    let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"))
        .args(["lint", "-f", "github"])
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with(&format!("::error file={},line=", path.display())), "{text}");
    assert!(text.contains("did you mean `activation`?") && text.lines().count() == 1, "{text}");
}
