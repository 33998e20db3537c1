//! Tests `pillion convert` as a process: the profiles that it writes, and the configurations that it cannot convert and
//! reports with their positions. Test cases in the folders of the extended profiles check how the written profiles
//! change pods.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests fail by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

/// The output, the messages and the exit code of a conversion.
struct Run {
    stdout: String,
    stderr: String,
    code: Option<i32>,
}

impl Run {
    fn profiles(&self) -> Vec<Json> {
        serde_saphyr::from_multiple(&self.stdout).unwrap_or_else(|error| panic!("{error} in\n{}", self.stdout))
    }
}

fn pillion(arguments: &[&str], folder: &Path, stdin: &str) -> Run {
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"));
    let output = command.args(arguments).current_dir(folder).write_stdin(stdin).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { stdout: text(output.stdout), stderr: text(output.stderr), code: output.status.code() }
}

fn convert(stdin: &str) -> Run {
    pillion(&["convert", "tumblr", "-f", "-"], Path::new("."), stdin)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sidecars() -> Run {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/convert");
    let run = pillion(&["convert", "tumblr", "-f", "sidecars"], &folder, "");
    assert_eq!((run.stderr.as_str(), run.code), ("", Some(0)));
    run
}

fn named<'p>(profiles: &'p [Json], name: &str) -> &'p Json {
    let found = profiles.iter().find(|profile| profile["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("there is no {name} in {profiles:?}"))
}

#[test]
fn cases_use_the_converted_profile() {
    let text = fs::read_to_string(root().join("profiles/tumblr/tests/cases.yaml")).unwrap();
    let documents: Vec<Json> = serde_saphyr::from_multiple(&text).unwrap();
    let there: Vec<_> = documents.into_iter().filter(|document| document.get("spec").is_some()).collect();
    let profiles = sidecars().profiles();
    assert_eq!(there.len(), profiles.len());
    for profile in &profiles {
        assert_eq!(named(&there, profile["metadata"]["name"].as_str().unwrap()), profile);
    }
}

#[test]
fn converted_profile_passes_lint() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("profiles.yaml"), sidecars().stdout).unwrap();
    let base = root().join("profiles/tumblr");
    let lint = pillion(&["lint", "profiles.yaml", base.to_str().unwrap()], folder.path(), "");
    assert_eq!((lint.stdout.as_str(), lint.stderr.as_str()), ("ok: 7 profiles\n", ""));
}

const CONFIG_MAPS: &str = "\
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: sidecars, namespace: injector}
  data:
    parent.yaml: |
      name: parent
      env: [{name: A, value: a}]
    child.yaml: |
      name: child:v2
      inherits: parent.yaml
      env: [{name: B, value: b}]
- {apiVersion: v1, kind: Service, metadata: {name: injector}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: other}, data: {one: \"{name: one, hostPID: true}\"}}
";

#[test]
fn config_map_keys_inherit_from_each_other() {
    let run = convert(CONFIG_MAPS);
    assert_eq!((run.stderr.as_str(), run.code), ("", Some(0)));
    let profiles = run.profiles();
    assert_eq!(profiles.len(), 3);
    let child = &named(&profiles, "child-v2")["spec"];
    assert_eq!(child["requestedBy"], json!({"annotation": "injector.tumblr.com/request", "values": ["child:v2"]}));
    let env = &child["containerPatches"][0]["template"]["env"];
    assert_eq!(env, &json!([{"name": "A", "value": "a"}, {"name": "B", "value": "b"}]));
    assert!(child.get("parameters").is_none());
    named(&profiles, "one");
}

#[test]
fn numbers_become_strings_where_expected() {
    let text = "name: agent\nenv: [{name: PORT, value: 8125}, {name: ON_HOST, value: true}]\n\
        containers: [{name: 7, image: agent, args: [--port, 8125], ports: [{containerPort: 8125}], env: [{name: A, value: 1.5}]}]\n";
    let run = convert(text);
    assert_eq!((run.stderr.as_str(), run.code), ("", Some(0)));
    let profile = &run.profiles()[0]["spec"];
    let container = &profile["template"]["spec"]["containers"][0];
    assert_eq!((&container["name"], &container["args"]), (&json!("7"), &json!(["--port", "8125"])));
    assert_eq!(container["env"], json!([{"name": "A", "value": "1.5"}]));
    assert_eq!(container["ports"], json!([{"containerPort": 8125}]));
    let everywhere = &profile["containerPatches"][0]["template"]["env"];
    assert_eq!(everywhere, &json!([{"name": "PORT", "value": "8125"}, {"name": "ON_HOST", "value": "true"}]));
}

#[test]
fn prefix_applies_to_both_annotations() {
    let arguments = ["convert", "tumblr", "-f", "-", "--prefix", "injector.example.com/", "-o", "json"];
    let run = pillion(&arguments, Path::new("."), "{name: a, env: [{name: A, value: a}]}");
    let profile: Json = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(profile["spec"]["requestedBy"]["annotation"], "injector.example.com/request");
    let status = json!([{"name": "status", "default": "injector.example.com/status"}]);
    assert_eq!(profile["spec"]["parameters"], status);
}

#[test]
fn unknown_fields_are_dropped_with_warning() {
    let run = convert("name: a\nhostPID: true\nvolumeMount: []\n");
    assert_eq!(run.code, Some(1));
    assert_eq!(run.profiles().len(), 1);
    let message = "warning: unknown field `volumeMount` is left out\n --> <stdin>:3:1\n";
    assert!(run.stderr.contains(message), "{}", run.stderr);
    assert!(run.stderr.contains("known fields are `containers`"), "{}", run.stderr);
}

#[test]
fn converted_profile_names_are_valid_and_unique() {
    let run =
        convert("name: logs:next\n---\nname: logs-next\n---\nname: My_Logs\n---\nname: my.logs\n---\nname: '___'\n");
    let profiles = run.profiles();
    let names: Vec<_> = profiles
        .iter()
        .map(|profile| {
            (
                profile["metadata"]["name"].as_str().unwrap(),
                profile["spec"]["requestedBy"]["values"][0].as_str().unwrap(),
            )
        })
        .collect();
    let expected = [
        ("logs-next-2", "logs:next"),
        ("logs-next", "logs-next"),
        ("my-logs", "my_logs"),
        ("my-logs-2", "my.logs"),
        ("unnamed", "___"),
    ];
    assert_eq!(names, expected);
}

#[test]
fn unconvertible_input_reports_position_and_prints_nothing() {
    for (text, place, message) in [
        ("env: []\n", "1:1", "name: a configuration needs a name"),
        ("- name: a\n", "1:1", "a configuration is a mapping"),
        ("name: [a]\n", "1:1", "name: expected text, found [\"a\"]"),
        ("name: a:b:c\n", "1:1", "name: `a:b:c` has more than one `:`"),
        ("name: ':b'\n", "1:1", "has no name before its version"),
        ("name: a,b\n", "1:1", "has a comma"),
        ("name: enabled\n", "1:1", "means yes or no in a request annotation"),
        ("name: a\n---\nname: A:latest\n", "3:1", "name: <stdin> also has the name a:latest"),
        ("name: a\nhostNetwork: 'true'\n", "2:1", "hostNetwork: expected true or false, found \"true\""),
        ("name: a\nserviceAccountName: [b]\n", "2:1", "serviceAccountName: expected text, found [\"b\"]"),
        ("name: a\nenv: {A: a}\n", "2:1", "env: expected a list"),
        ("name: a\nenv:\n- {name: A}\n- {value: b}\n", "4:4", "env[1]: each element of env needs `name`"),
        ("name: a\nenv:\n- {name: A}\n- {name: A}\n", "4:4", "env[1]: there is another `A` in env"),
        (
            "name: a\nhostAliases: [{hostnames: [b]}]\n",
            "2:16",
            "hostAliases[0]: each element of hostAliases needs `ip`",
        ),
        ("name: a\ninherits: b.yaml\n", "2:1", "inherits: `b.yaml` is not among the converted files"),
        ("name: a\ncontainers: [{name: b, $when: 'true'}]\n", "2:24", "containers[0].$when: a key with a `$`"),
        ("{apiVersion: v1, kind: ConfigMap, binaryData: {a: YQ==}}", "1:48", "a configuration cannot be binary"),
        ("{apiVersion: v1, kind: ConfigMap, data: {a: 1}}", "1:45", "data.a: expected a string"),
    ] {
        let run = convert(text);
        assert_eq!((run.stdout.as_str(), run.code), ("", Some(2)), "{text}");
        let shown = format!("--> <stdin>:{place}\n");
        assert!(run.stderr.contains(message) && run.stderr.contains(&shown), "{text}\n{}", run.stderr);
    }
}

#[test]
fn config_map_mistakes_point_into_the_key() {
    let run = convert("{apiVersion: v1, kind: ConfigMap, metadata: {name: m}, data: {k: \"name: a\\nenv: b\\n\"}}");
    assert!(run.stderr.contains("--> <stdin>/m/k:2:1\n") && run.stderr.contains("env: b"), "{}", run.stderr);
}

#[test]
fn empty_input_is_an_error() {
    for text in ["", "{apiVersion: v1, kind: Service}"] {
        let run = convert(text);
        assert_eq!(run.code, Some(2));
        assert!(run.stderr.contains("contains neither a ConfigMap nor a configuration"), "{}", run.stderr);
    }
    let run = pillion(&["convert", "tumblr", "-f", "nowhere"], Path::new("."), "");
    assert!(run.code == Some(2) && run.stderr.contains("cannot be read"), "{}", run.stderr);
    let run = convert("name: [");
    assert!(run.code == Some(2) && run.stderr.contains("<stdin>"), "{}", run.stderr);
}

#[test]
fn inheritance_cycle_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    for (file, text) in [("a.yaml", "{name: a, inherits: b.yaml}"), ("b.yaml", "{name: b, inherits: ./x/../a.yaml}")] {
        fs::write(folder.path().join(file), text).unwrap();
    }
    let run = pillion(&["convert", "tumblr", "-f", "."], folder.path(), "");
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("also inherits from this configuration"), "{}", run.stderr);
}
