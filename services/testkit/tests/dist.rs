//! Tests the output of `just dist`, with an empty program in place of the real one.

#![expect(clippy::unwrap_used, reason = "tests and their helpers fail by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn dist(programs: &[&Path], out: &Path) -> Output {
    let mut command = Command::new("bash");
    command.arg(root().join("services/testkit/tools/dist.sh")).arg("--out").arg(out);
    for program in programs {
        command.arg("--program").arg(program);
    }
    command.args(["--repository", "registry.example.com/platform/pillion"]);
    command.env("SOURCE_DATE_EPOCH", "1700000000").output().unwrap()
}

fn run(program: &str, arguments: &[&str], folder: &Path) -> String {
    let output = Command::new(program).args(arguments).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn dist_rejects_dynamic_program() {
    let folder = tempfile::tempdir().unwrap();
    let output = dist(&[&std::env::current_exe().unwrap()], &folder.path().join("dist"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("is not static"), "{error}");
}

#[test]
fn dist_keeps_folder_without_release() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("README.md"), "# Something else\n").unwrap();
    fs::write(folder.path().join("SHA256SUMS"), format!("{}  thesis.pdf\n", "0a".repeat(32))).unwrap();
    fs::write(folder.path().join("thesis.pdf"), "years").unwrap();
    let output = dist(&[], folder.path());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("something else in it than a release"), "{error}");
    assert!(folder.path().join("thesis.pdf").exists());
}

/// Compiles a static program that contains the source path of a dependency, like the panic messages of a Rust binary.
fn static_program(folder: &Path) -> PathBuf {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let (_, rest) = lock.split_once("name = \"serde\"\nversion = \"").unwrap();
    let version = rest.split('"').next().unwrap();
    let source = format!(
        "const char *crate = \"/registry/src/index/serde-{version}/src/lib.rs\"; int main() {{ return !crate; }}"
    );
    fs::write(folder.join("main.c"), source).unwrap();
    run("cc", &["-static", "-o", "program", "main.c"], folder);
    folder.join("program")
}

#[test]
#[ignore = "builds cargo-cyclonedx and cargo-about on first use: run by the name of this test"]
fn dist_is_complete_and_reproducible() {
    let folder = tempfile::tempdir().unwrap();
    let program = static_program(folder.path());
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    // The third run replaces the release of the second.
    for out in [&one, &other, &other] {
        let output = dist(&[&program], out);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let sums = fs::read_to_string(one.join("SHA256SUMS")).unwrap();
    assert_eq!(sums, fs::read_to_string(other.join("SHA256SUMS")).unwrap());
    run("sha256sum", &["--check", "--strict", "--quiet", "SHA256SUMS"], &one);
    let version = env!("CARGO_PKG_VERSION");
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let name = format!("pillion-{version}-linux-{architecture}");
    let mut expected = vec![
        "CHANGELOG.md".to_owned(),
        "LICENSE".to_owned(),
        "README.md".to_owned(),
        "RUST-STANDARD-LIBRARY.html".to_owned(),
        "THIRD-PARTY-LICENCES.txt".to_owned(),
        format!("{name}-image.tar"),
        format!("{name}.cdx.json"),
        format!("{name}.tar.gz"),
    ];
    for rest in [".tgz", "-crds.yaml", "-manifests.yaml", "-dashboards.tar.gz", "-deploy.tar.gz", "-profiles.tar.gz"] {
        expected.push(format!("pillion-{version}{rest}"));
    }
    for file in &expected {
        assert!(sums.contains(&format!("  {file}\n")), "no {file} in {sums}");
    }
    let values = run("tar", &["-xzOf", &format!("pillion-{version}.tgz"), "pillion/values.yaml"], &one);
    assert!(values.contains("\n  repository: registry.example.com/platform/pillion\n"), "the chart has another image");
    let readme = fs::read_to_string(one.join("README.md")).unwrap();
    assert!(!readme.contains('{'), "a placeholder is left in {readme}");

    let licences = fs::read_to_string(one.join("THIRD-PARTY-LICENCES.txt")).unwrap();
    for text in ["Apache License", "Permission is hereby granted, free of charge", "GNU LESSER GENERAL PUBLIC LICENSE"]
    {
        assert!(licences.contains(text), "no {text}");
    }
    let bill: Value = serde_json::from_slice(&fs::read(one.join(format!("{name}.cdx.json"))).unwrap()).unwrap();
    let components: Vec<_> =
        bill["components"].as_array().unwrap().iter().map(|each| each["name"].as_str().unwrap()).collect();
    for name in ["pillion-engine", "kube", "rustls", "aws-lc-sys", "serde", "tokio", "rust-std", "glibc"] {
        assert!(components.contains(&name), "{name} is in the program");
    }
    for name in ["pillion-testkit", "proptest", "serde_derive", "syn", "cc", "ring"] {
        assert!(!components.contains(&name), "{name} is not in the program");
    }

    // The Containerfile builds the same image from the archive of the CLI, except for /tmp.
    run("tar", &["-xf", &format!("{name}-image.tar"), "--one-top-level=layout"], &one);
    let layout = one.join("layout");
    let read = |path: &str| -> Value { serde_json::from_slice(&fs::read(layout.join(path)).unwrap()).unwrap() };
    let docker = read("manifest.json");
    let config = read(docker[0]["Config"].as_str().unwrap());
    assert_eq!((&config["architecture"], &config["created"]), (&json!(architecture), &json!("2023-11-14T22:13:20Z")));
    let listed = |archive: &Path| run("tar", &["-tf", archive.to_str().unwrap()], &one);
    let files: Vec<_> =
        listed(&layout.join(docker[0]["Layers"][0].as_str().unwrap())).lines().map(str::to_owned).collect();
    let program = listed(&one.join(format!("{name}.tar.gz"))).replace(&format!("{name}/"), "");
    let expected: Vec<_> = program.lines().filter(|line| !line.is_empty()).chain(["tmp/"]).collect();
    assert_eq!(files, expected);
    let containerfile = fs::read_to_string(root().join("deploy/image/Containerfile")).unwrap();
    let lines: BTreeMap<_, _> = containerfile.lines().filter_map(|line| line.split_once(' ')).collect();
    let config = &config["config"];
    assert_eq!(lines["USER"], config["User"]);
    assert_eq!(lines["WORKDIR"], config["WorkingDir"]);
    assert_eq!(lines["ENV"], config["Env"][0]);
    assert_eq!(lines["ENTRYPOINT"], config["Entrypoint"].to_string());
    for label in config["Labels"].as_object().unwrap().keys().filter(|label| !label.ends_with(".created")) {
        assert!(containerfile.contains(&format!("{label}=")), "{label} is missing");
    }
}
