//! Tests profiles that try to exhaust the resources of the program. `pillion lint` must reject each one quickly, and
//! `pillion dev` must continue to serve requests while its files contain such profiles.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use crate::support::{Program, patch, post};

/// The maximum processor time of `lint`, in seconds. The elapsed time may be longer on a busy machine.
const LIMIT: u64 = if cfg!(debug_assertions) { 10 } else { 2 };

/// A hostile profile, and a part of the error that `lint` must print for it.
struct Bomb {
    name: &'static str,
    text: String,
    message: &'static str,
}

/// Returns a profile with these additional fields in its spec and in its container.
fn profile(spec: &str, container: &str) -> String {
    format!(
        "apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {{name: bomb}}\nspec:\n{spec}  \
         template:\n    spec:\n      containers:\n      - name: bomb\n        image: i\n{container}"
    )
}

fn condition(expression: &str) -> String {
    profile(&format!("  matchConditions:\n  - name: c\n    expression: \"{expression}\"\n"), "")
}

fn precondition(expression: &str) -> String {
    profile(&format!("  preconditions:\n  - name: c\n    expression: \"{expression}\"\n"), "")
}

fn variable(expression: &str) -> String {
    profile(&format!("  variables:\n  - name: v\n    expression: \"{expression}\"\n"), "")
}

fn argument(value: &str) -> String {
    profile("", &format!("        args:\n        - \"{value}\"\n"))
}

fn bombs() -> Vec<Bomb> {
    let terms = format!("1{}", "+1".repeat(5_000));
    // 400 terms stay below the limit of 1,000 bytes, but exceed the limit on nesting.
    let short_terms = format!("1{} == 1", "+1".repeat(400));
    let parentheses = format!("{}true{}", "(".repeat(2_000), ")".repeat(2_000));
    let short_parentheses = format!("{}true{}", "(".repeat(400), ")".repeat(400));
    let list = format!("[{}]", vec!["1"; 50].join(","));
    let loops = format!("{list}.all(a, {list}.all(b, {list}.all(c, a + b + c > 0)))");
    let nested = format!("{}x{}", "{a: ".repeat(100), "}".repeat(100));
    let deeper = format!("{}x{}", "{a: ".repeat(5_000), "}".repeat(5_000));
    let keys = (0..100_000).fold(String::new(), |mut keys, key| {
        let _ = writeln!(keys, "        k{key}: 1");
        keys
    });
    let mut laughs = "        a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for level in 1..12 {
        let before = format!("*a{},", level - 1).repeat(10);
        let _ = writeln!(laughs, "        a{level}: &a{level} [{before}]");
    }
    let broken = profile("  bad: 1\n", "") + "---\n";
    let (few_keys, _) = keys.split_once("        k3000:").unwrap();
    let bomb = |name, text, message| Bomb { name, text, message };
    vec![
        bomb("terms in a condition", condition(&terms), "spec.matchConditions[0].expression"),
        bomb("terms in a variable", variable(&terms), "spec.variables[0].expression"),
        bomb("terms in a template", argument(&format!("${{{terms}}}")), "containers[0].args[0]"),
        bomb("few terms in a condition", condition(&short_terms), "spec.matchConditions[0].expression"),
        bomb("few terms in a template", argument(&format!("${{{short_terms}}}")), "containers[0].args[0]"),
        bomb("parentheses in a condition", condition(&parentheses), "spec.matchConditions[0].expression"),
        bomb("parentheses in a variable", variable(&short_parentheses), "spec.variables[0].expression"),
        bomb("brackets that are never closed", condition(&"[".repeat(1_000)), "spec.matchConditions[0].expression"),
        bomb("many leading operators", condition(&"!-".repeat(500)), "spec.matchConditions[0].expression"),
        bomb("terms in a precondition", precondition(&terms), "spec.preconditions[0].expression"),
        bomb("nested loops", condition(&loops), "spec.matchConditions[0].expression"),
        bomb("deep template", profile("", &format!("        x: {nested}\n")), "levels deep"),
        bomb("deeper template", profile("", &format!("        x: {deeper}\n")), "more than 128 levels deep"),
        bomb("large template", argument(&"x".repeat(2_000_000)), "are allowed"),
        bomb("many keys", profile("", &keys), "are allowed"),
        bomb("aliases of aliases", profile("", &laughs), "its anchors and aliases repeat too much"),
        bomb(
            "large file",
            profile("", &format!("# {}\n", "x".repeat(10_000_000))),
            "a file with profiles may have at most",
        ),
        bomb("many documents", "---\na: 1\n".repeat(400_000), "more than 10000 documents"),
        bomb("a very long key", profile(&format!("  {}: 1\n", "x".repeat(1_000_000)), ""), "error: "),
        bomb(
            "a very long kind",
            format!("apiVersion: pillion.dev/v1alpha1\nkind: {}\n", "x".repeat(3_000_000)),
            "is not a kind",
        ),
        bomb(
            "a very long activation",
            profile(&format!("  activation: {}\n", "x".repeat(3_000_000)), ""),
            "is not one of the allowed values",
        ),
        bomb(
            "a very long field name",
            profile("", &format!("        ? {}\n        : 1\n", "x".repeat(60_000))),
            "Kubernetes has no field",
        ),
        bomb("many unknown fields", profile("", few_keys), "Kubernetes has no field"),
        bomb("open braces", "{".repeat(1_000_000), "error: "),
        // Must remain the last bomb: it has so many problems that `pillion dev` does not show those of later files.
        bomb("many broken profiles", "---\n".to_owned() + &broken.repeat(9_000), "and 8900 more"),
    ]
}

/// Runs `pillion lint` on the file, and kills it when it exceeds [`LIMIT`].
fn lint(file: &Path) -> Output {
    let script = format!("ulimit -t {LIMIT} && exec \"$0\" lint \"$1\"");
    let mut command = assert_cmd::Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_pillion")]).arg(file);
    command.timeout(Duration::from_secs(60 * LIMIT)).output().unwrap()
}

#[test]
fn bombs_are_rejected_quickly_with_reason() {
    let folder = tempfile::tempdir().unwrap();
    for Bomb { name, text, message } in bombs() {
        let file = folder.path().join("bomb.yaml");
        fs::write(&file, text).unwrap();
        let output = lint(&file);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let beginning: String = stderr.chars().take(500).collect();
        assert_eq!(output.status.code(), Some(1), "{name}: {beginning}");
        assert!(stderr.contains(message), "{name}: {beginning}");
        assert!(stderr.len() < 60_000, "{name}: {} bytes are printed: {beginning}", stderr.len());
    }
}

#[test]
fn replica_survives_bombs() {
    let folder = tempfile::tempdir().unwrap();
    let good = "apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {name: helper}\n\
                spec: {template: {spec: {containers: [{name: helper, image: \"helper:1\"}]}}}\n";
    fs::write(folder.path().join("helper.yaml"), good).unwrap();
    let arguments = ["dev", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--profile", "."];
    let mut dev = Program::start(&arguments, folder.path());
    let ca = dev.word_after("--cacert ");
    let url = format!("https://{}", dev.word_after("https://"));
    let review = fs::read_to_string(dev.word_after("--data @")).unwrap();
    let serves = || patch(&post(&url, ca.as_ref(), &review)).unwrap().contains("helper:1");
    let mut bombs = bombs();
    // This bomb has so many problems that `dev` would not show the problems of later files.
    bombs.retain(|bomb| bomb.name != "many unknown fields");
    for (index, bomb) in bombs.iter().enumerate() {
        fs::write(folder.path().join(format!("bomb-{index:02}.yaml")), &bomb.text).unwrap();
        assert!(serves(), "{}", bomb.name);
    }
    for (index, bomb) in bombs.iter().enumerate() {
        dev.wait_for_output(&format!("bomb-{index:02}.yaml"));
        assert!(serves(), "{}", bomb.name);
    }
    dev.terminate();
    assert_eq!(dev.wait_for_exit().code(), Some(0), "{}", dev.stderr());
}
