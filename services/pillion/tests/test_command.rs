//! Tests `pillion test` as a process: it counts passed cases, and shows each difference from the expected result with
//! its path.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::Path;
use std::process::Output;

use tempfile::TempDir;

const PROFILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles");

const PROFILE: &str = "\
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: helper}
spec:
  activation: Always
  parameters: [{name: image, type: string, default: \"helper:1\"}]
  template: {spec: {containers: [{name: helper, image: \"${params.image}\"}]}}
";

const CASES: &str = "\
name: adds a helper
object: {spec: {containers: [{name: web, image: \"web:1\"}]}}
result: {spec: {containers: [{name: web, image: \"web:1\"}, {name: helper, image: \"helper:1\"}]}}
---
name: another helper
parameters: {helper: {image: \"helper:2\"}}
object: {spec: {containers: [{name: web, image: \"web:1\"}]}}
part: {spec: {containers: [{}, {image: \"helper:2\"}]}}
";

/// Returns a folder with these profiles. For each profile, the argument contains the name, the source and the test
/// cases.
fn folders(folders: &[(&str, &str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, profile, cases) in folders {
        let tests = root.path().join(name).join("tests");
        fs::create_dir_all(&tests).unwrap();
        fs::write(root.path().join(name).join("profile.yaml"), profile).unwrap();
        fs::write(tests.join("cases.yaml"), cases).unwrap();
    }
    root
}

fn test(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"));
    command.arg("test").args(arguments).current_dir(folder).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn shipped_profiles_pass_their_cases() {
    let output = test(Path::new(PROFILES), &["."]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    // Warnings would appear on standard error.
    assert_eq!(stderr(&output), "");
    assert!(!text.contains("no cases"), "a shipped profile has cases:\n{text}");
    let cases: usize = text.lines().last().unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(cases >= 44, "{text}");
}

#[test]
fn passed_cases_are_counted() {
    let root = folders(&[("a", PROFILE, CASES), ("more/b", PROFILE, "")]);
    let output = test(root.path(), &["."]);
    assert_eq!(stdout(&output), "./a       2 cases\n./more/b  no cases\n2 cases: 2 passed, 0 failed\n");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn default_path_is_folder_profiles() {
    let root = folders(&[("profiles/a", PROFILE, CASES)]);
    assert_eq!(stdout(&test(root.path(), &[])), "profiles/a  2 cases\n2 cases: 2 passed, 0 failed\n");
}

#[test]
fn wrong_expectation_lists_each_difference() {
    let wrong = CASES.replace("image: \"helper:1\"}]}}\n---", "image: \"helper:3\", tty: true}]}}\n---");
    let root = folders(&[("a", PROFILE, &wrong)]);
    let output = test(root.path(), &["a"]);
    let expected = "\
a  2 cases, 1 failed

a/tests/cases.yaml:1: adds a helper
  spec.containers[helper].image
    expected  \"helper:3\"
    found     \"helper:1\"
  spec.containers[helper].tty
    expected  true
    found     (nothing)

2 cases: 1 passed, 1 failed
";
    assert_eq!(stdout(&output), expected);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn missing_profile_is_reported_with_reason() {
    let cases = "name: one\nobject: {spec: {containers: [{name: helper, image: \"mine:1\"}]}}\npart: {spec: {containers: [{}, {}]}}\n";
    let output = test(folders(&[("a", PROFILE, cases)]).path(), &["a"]);
    let text = stdout(&output);
    assert!(text.contains("  spec.containers\n    expected  \"a list of 2\"\n"), "{text}");
    assert!(text.contains("message to the author: pillion: profile helper was not applied: "), "{text}");
}

#[test]
fn misspelled_field_has_suggestion() {
    let misspelled = CASES.replace("result:", "reslut:");
    let output = test(folders(&[("a", PROFILE, &misspelled)]).path(), &["a"]);
    let expected = "\
error: unknown field `reslut`
 --> a/tests/cases.yaml:3:1
  |
3 | reslut: {spec: {containers: [{name: web, image: \"web:1\"}, {name: helper, image: \"helper:1\"}]}}
  | ^^^^^^
  |
help: did you mean `result`?
";
    assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    assert_eq!(stdout(&output), "a  1 case, 1 problem\n1 case: 1 passed, 0 failed, 1 problem\n");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn failing_case_setup_is_explained() {
    let cases =
        "name: one\nprofiles: [helpers]\nobject: {spec: {}}\nunchanged: true\n---\nname: two\nobject: {spec: {}}\n";
    let text = stdout(&test(folders(&[("a", PROFILE, cases)]).path(), &["a"]));
    assert!(
        text.contains("a/tests/cases.yaml:1: one\n  profiles: there is no profile \"helpers\"; there is helper\n"),
        "{text}"
    );
    assert!(text.contains("a/tests/cases.yaml:6: two\n  nothing is expected: "), "{text}");
}

#[test]
fn only_tested_profiles_report_mistakes() {
    let broken = PROFILE.replace("template", "tempalte");
    let root = folders(&[("a", PROFILE, CASES), ("broken", &broken.replace("helper}", "broken}"), "")]);
    let output = test(root.path(), &["a"]);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "other folders do not affect it");
    let output = test(root.path(), &["."]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("did you mean `template`?"), "{}", stderr(&output));
}

#[test]
fn profile_extends_neighbour_and_case_has_own_profiles() {
    let child = "apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {name: child}\n\
                 spec: {activation: Always, extends: {name: helper}, parameters: [{name: image, default: \"child:1\"}]}\n";
    let cases = "name: own image\nobject: {spec: {containers: [{name: web, image: \"web:1\"}]}}\npart: {spec: {containers: [{}, {image: \"child:1\"}]}}\n";
    let asked =
        cases.replace("name: own image\n", "name: both\nprofiles: [grandchild]\n").replace("child:1", "grandchild:1");
    let grandchild = child
        .replace("name: helper", "name: child")
        .replace("name: child}\nspec", "name: grandchild}\nspec")
        .replace("child:1", "grandchild:1");
    let root = folders(&[("a", PROFILE, CASES), ("b", child, cases)]);
    fs::write(root.path().join("b/tests/more.yaml"), format!("{grandchild}---\n{asked}")).unwrap();
    let output = test(root.path(), &["b"]);
    assert_eq!(stdout(&output), "b  2 cases\n2 cases: 2 passed, 0 failed\n", "{}", stderr(&output));
    assert_eq!(stdout(&test(root.path(), &["b/tests/more.yaml"])), "b  1 case\n1 case: 1 passed, 0 failed\n");
}

#[test]
fn copied_folder_beside_profile_changes_no_result() {
    let root = folders(&[("a-copy", PROFILE, CASES), ("helper", PROFILE, CASES)]);
    for path in ["helper", "a-copy", "."] {
        let output = test(root.path(), &[path]);
        assert_eq!(output.status.code(), Some(0), "{path}: {}{}", stdout(&output), stderr(&output));
    }
}

#[test]
fn cases_are_selected_by_name() {
    let root = folders(&[("a", PROFILE, CASES)]);
    let output = test(root.path(), &["a", "--filter", "ANOTHER"]);
    assert_eq!(stdout(&output), "a  1 case\n1 case: 1 passed, 0 failed\n");
    let output = test(root.path(), &["a", "--filter", "nobody"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no case has \"nobody\" in its name"), "{}", stderr(&output));
}

#[test]
fn json_output_is_complete() {
    let root = folders(&[("a", PROFILE, &CASES.replace("\"helper:2\"}]}}", "\"helper:4\"}]}}"))]);
    let output = test(root.path(), &["a", "-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["passed"], &json["failed"]), (&1.into(), &1.into()));
    let case = &json["folders"][0]["cases"][1];
    assert_eq!(
        (&case["file"], &case["line"], &case["passed"]),
        (&"a/tests/cases.yaml".into(), &5.into(), &false.into())
    );
    let difference = serde_json::json!({
        "aspect": "object", "path": "spec.containers[1].image", "found": "helper:2", "expected": "helper:4",
    });
    assert_eq!(case["differences"][0], difference);
}

#[test]
fn pipe_output_has_no_colours() {
    let output = test(folders(&[("a", PROFILE, &CASES.replace("helper:1\"}]}}", "x\"}]}}"))]).path(), &["."]);
    assert!(stdout(&output).contains("1 failed") && !stdout(&output).contains('\u{1b}'), "{}", stdout(&output));
}

#[test]
fn path_without_profiles_is_an_error() {
    let empty = tempfile::tempdir().unwrap();
    for (arguments, expected) in
        [(&["."][..], "contains no folder of profiles"), (&["nowhere"], "no such file"), (&[], "no such file")]
    {
        let output = test(empty.path(), arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

#[test]
fn update_writes_actual_results() {
    let cases = "# kept\n\
        name: expects another image\n\
        object: {spec: {containers: [{name: web, image: \"web:1\"}]}}\n\
        result:\n  spec:\n    containers: [{name: web, image: \"web:1\"}]\n\n\
        # kept too\n---\nname: expects nothing yet\nobject: {spec: {containers: [{name: web, image: \"web:1\"}]}}\n\
        ---\nname: expects a part\nobject: {spec: {containers: [{name: web, image: \"web:1\"}]}}\npart: {spec: {containers: [{}]}}\n";
    let root = folders(&[("helper", PROFILE, cases)]);
    let file = root.path().join("helper/tests/cases.yaml");
    let output = test(root.path(), &["helper"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fs::read_to_string(&file).unwrap(), cases, "files change only with --update");

    let output = test(root.path(), &["helper", "--update"]);
    assert_eq!(stderr(&output), "updated: 2 cases\n");
    assert!(stdout(&output).contains("3 cases: 2 passed, 1 failed"), "{}", stdout(&output));
    let result = "result:\n  spec:\n    containers:\n    - name: web\n      image: web:1\n    - name: helper\n      image: helper:1\n";
    let after = fs::read_to_string(&file).unwrap();
    assert!(after.starts_with("# kept\nname: expects another image\n"), "{after}");
    assert!(after.contains(&format!("{result}\n# kept too\n---\nname: expects nothing yet\n")), "{after}");
    assert_eq!(after.matches(result).count(), 2, "{after}");
    assert!(after.ends_with("part: {spec: {containers: [{}]}}\n"), "{after}");
    let output = test(root.path(), &["helper", "--update"]);
    assert_eq!((stderr(&output).as_str(), fs::read_to_string(&file).unwrap()), ("", after));
}

#[test]
fn junit_output_is_valid() {
    let wrong = CASES.replace("helper:1", "helper:<&3>");
    let root = folders(&[("helper", PROFILE, &wrong)]);
    let output = test(root.path(), &["helper", "-o", "junit"]);
    assert_eq!(output.status.code(), Some(1));
    let xml = stdout(&output);
    for part in [
        "<testsuites name=\"pillion test\" tests=\"2\" failures=\"1\" errors=\"0\">",
        "<testcase classname=\"helper/tests/cases.yaml\" name=\"another helper\" file=\"helper/tests/cases.yaml\" line=\"5\"/>",
        "<failure message=\"spec.containers[helper].image\">",
        "helper:&lt;&amp;3&gt;",
    ] {
        assert!(xml.contains(part), "{part} is not in\n{xml}");
    }
    let read = std::process::Command::new("python3")
        .args(["-c", "import sys, xml.dom.minidom as m; m.parseString(sys.argv[1])", &xml])
        .status();
    assert!(read.is_ok_and(|status| status.success()), "{xml}");
    let broken = folders(&[("empty", PROFILE, "name: [\n")]);
    let output = test(broken.path(), &["empty", "-o", "junit"]);
    assert!(stdout(&output).contains("<error message=\"empty/tests/cases.yaml:"), "{}", stdout(&output));

    let output = test(root.path(), &["helper", "-o", "github"]);
    assert_eq!(output.status.code(), Some(1));
    let lines = stdout(&output);
    let expected =
        "::error file=helper/tests/cases.yaml,line=1,col=1,title=adds a helper::spec.containers[helper].image%0A";
    assert!(lines.starts_with(expected) && lines.ends_with("2 cases: 1 passed, 1 failed\n"), "{lines}");
}
