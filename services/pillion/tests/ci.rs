//! Runs the steps of `deploy/ci` in a git repository, as GitHub and GitLab run them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value as Json;
use tempfile::TempDir;

const PILLION: &str = env!("CARGO_BIN_EXE_pillion");

const PROFILE: &str = "\
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: logger}
spec:
  activation: Always
  template: {spec: {containers: [{name: logger, image: \"logger:1\"}]}}
";

fn pod(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: web, image: \"web:1\"}}]}}\n"
    )
}

fn template(path: &str) -> Json {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/ci").join(path);
    serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn git(folder: &Path, arguments: &[&str]) -> String {
    let identity = ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"];
    let output = Command::new("git").args(identity).args(arguments).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", text(&output.stderr));
    text(&output.stdout).trim().to_owned()
}

fn commit(folder: &Path) {
    git(folder, &["add", "--all"]);
    git(folder, &["commit", "--quiet", "--message", "test"]);
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns a repository with two commits. The second one changes the profile, removes a pod, and adds a pod in a new
/// folder.
fn repository() -> TempDir {
    let repository = tempfile::tempdir().unwrap();
    let folder = repository.path();
    git(folder, &["init", "--quiet"]);
    fs::create_dir(folder.join("manifests")).unwrap();
    fs::write(folder.join("profile.yaml"), PROFILE).unwrap();
    fs::write(folder.join("manifests/pods.yaml"), format!("{}---\n{}", pod("one"), pod("two"))).unwrap();
    commit(folder);
    fs::create_dir(folder.join("new")).unwrap();
    fs::write(folder.join("profile.yaml"), PROFILE.replace("logger:1", "logger:2")).unwrap();
    fs::write(folder.join("manifests/pods.yaml"), pod("one")).unwrap();
    fs::write(folder.join("new/pod.yaml"), pod("three")).unwrap();
    commit(folder);
    repository
}

fn assert_reports(markdown: &str, sarif: &Json) {
    assert!(markdown.contains("3 of 3 workloads would be different (1 added, 1 removed)"), "{markdown}");
    assert!(markdown.contains("\n-    image: logger:1\n+    image: logger:2\n"), "{markdown}");
    let results = sarif["runs"][0]["results"].as_array().unwrap();
    let results: Vec<_> = results
        .iter()
        .map(|result| {
            let uri = &result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"];
            (result["ruleId"].as_str().unwrap(), uri.as_str().unwrap())
        })
        .collect();
    let expected =
        [("pod-changed", "manifests/pods.yaml"), ("workload-added", "new/pod.yaml"), ("workload-removed", "manifests")];
    assert_eq!(results, expected);
}

/// Runs the steps of the action in a runner with these inputs. Inputs that are not given have their defaults. Returns
/// the output of the last step, and the content of the files for the summary and for the outputs.
fn run_action(folder: &Path, inputs: &[(&str, &str)]) -> (Output, String, String) {
    let action = template("github/action.yml");
    let runner = folder.join(".git/runner");
    fs::create_dir_all(&runner).unwrap();
    let (summary, outputs) = (runner.join("summary"), runner.join("outputs"));
    let _ = (fs::remove_file(&summary), fs::remove_file(&outputs));
    let value = |name: &str| {
        let given = inputs.iter().find(|(input, _)| *input == name).map(|(_, value)| *value);
        given
            .or_else(|| action["inputs"][name]["default"].as_str())
            .unwrap_or_else(|| panic!("no input {name}"))
            .to_owned()
    };
    let steps = action["runs"]["steps"].as_array().unwrap();
    let mut last = None;
    for step in steps {
        let script = step["run"].as_str().unwrap();
        assert!(!script.contains("${{"), "the values of inputs must not become code: {script}");
        assert_eq!(step["shell"], "bash");
        let mut command = Command::new("bash");
        command.args(["--noprofile", "--norc", "-e", "-o", "pipefail", "-c", script]).current_dir(folder);
        for (name, expression) in step["env"].as_object().unwrap() {
            let input = expression.as_str().unwrap().strip_prefix("${{ inputs.").unwrap().strip_suffix(" }}").unwrap();
            command.env(name, value(input));
        }
        command.envs([("RUNNER_TEMP", &runner), ("GITHUB_STEP_SUMMARY", &summary), ("GITHUB_OUTPUT", &outputs)]);
        let output = command.output().unwrap();
        let is_success = output.status.success();
        last = Some(output);
        if !is_success {
            break;
        }
    }
    let content = |file| fs::read_to_string(file).unwrap_or_default();
    (last.unwrap(), content(&summary), content(&outputs))
}

#[test]
fn action_reports_changes_since_base() {
    let repository = repository();
    let folder = repository.path();
    let inputs = [("profiles", "profile.yaml"), ("manifests", "manifests new"), ("pillion", PILLION)];
    let (output, summary, outputs) = run_action(folder, &inputs);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let value = |name: &str| {
        let mut lines = outputs.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or_else(|| panic!("{outputs}"))
    };
    assert_eq!(value("changed"), "true");
    assert_eq!(fs::read_to_string(value("markdown")).unwrap(), summary);
    assert_reports(&summary, &serde_json::from_str(&fs::read_to_string(value("sarif")).unwrap()).unwrap());
    assert_eq!(git(folder, &["worktree", "list"]).lines().count(), 1, "the old state is removed");

    let (output, summary, outputs) = run_action(folder, &[&inputs[..], &[("base", "HEAD")]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(outputs.contains("changed=false") && summary.contains("0 of 2 workloads"), "{outputs}{summary}");
}

#[test]
fn action_fails_for_mistakes() {
    let repository = repository();
    let folder = repository.path();
    let inputs = [("profiles", "profile.yaml"), ("manifests", "manifests"), ("pillion", PILLION)];
    let (output, summary, _) = run_action(folder, &[&inputs[..], &[("base", "nowhere")]].concat());
    assert_eq!((output.status.code(), summary.as_str()), (Some(2), ""));
    assert!(text(&output.stdout).contains("fetch-depth"), "{}", text(&output.stdout));

    fs::write(folder.join("profile.yaml"), PROFILE.replace("template:", "tempalte:")).unwrap();
    let (output, summary, outputs) = run_action(folder, &inputs);
    assert_eq!((output.status.code(), summary.as_str(), outputs.as_str()), (Some(2), "", ""));
    assert!(text(&output.stderr).contains("did you mean `template`?"), "{}", text(&output.stderr));
    assert_eq!(git(folder, &["worktree", "list"]).lines().count(), 1, "the old state is removed");
}

fn run_gitlab(folder: &Path, base: &str) -> Output {
    let job = &template("gitlab.yml")[".pillion-diff"];
    let script: Vec<_> = job["script"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    let mut command = Command::new("sh");
    command.args(["-e", "-c", &script.join("\n")]).current_dir(folder);
    command.envs(job["variables"].as_object().unwrap().iter().map(|(name, value)| (name, value.as_str().unwrap())));
    command.env("PILLION_PROFILES", "profile.yaml").env("PILLION_MANIFESTS", "manifests new").env("PILLION", PILLION);
    command.env("CI_MERGE_REQUEST_DIFF_BASE_SHA", base).output().unwrap()
}

#[test]
fn gitlab_job_reports_changes_since_base() {
    let repository = repository();
    let folder = repository.path();
    let output = run_gitlab(folder, &git(folder, &["rev-parse", "HEAD^1"]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let artifacts = &template("gitlab.yml")[".pillion-diff"]["artifacts"]["paths"];
    let artifact = |index: usize| fs::read_to_string(folder.join(artifacts[index].as_str().unwrap())).unwrap();
    assert_eq!(text(&output.stdout), artifact(0));
    assert_reports(&artifact(0), &serde_json::from_str(&artifact(1)).unwrap());
    assert_eq!(git(folder, &["worktree", "list"]).lines().count(), 1, "the old state is removed");

    let output = run_gitlab(folder, "");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("GIT_DEPTH"), "{}", text(&output.stderr));
    fs::remove_file(folder.join("profile.yaml")).unwrap();
    let output = run_gitlab(folder, "HEAD");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("profile.yaml"), "{}", text(&output.stderr));
}
