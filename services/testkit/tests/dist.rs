//! Tests the output of `just dist`, with a minimal program in place of the real one.

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
    assert!(error.contains("files that do not belong to a release"), "{error}");
    assert!(folder.path().join("thesis.pdf").exists());
}

/// Compiles a static program that contains the source path of a dependency, as the panic messages of a Rust binary do.
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
#[ignore = "builds cargo-cyclonedx and cargo-about on first use; run it by its name"]
fn dist_is_complete_and_reproducible() {
    let folder = tempfile::tempdir().unwrap();
    let program = static_program(folder.path());
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    // The third run replaces the release that the second one wrote.
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
        assert!(licences.contains(text), "{text} is missing");
    }
    let bill: Value = serde_json::from_slice(&fs::read(one.join(format!("{name}.cdx.json"))).unwrap()).unwrap();
    let components: Vec<_> =
        bill["components"].as_array().unwrap().iter().map(|each| each["name"].as_str().unwrap()).collect();
    for name in ["pillion-engine", "kube", "rustls", "aws-lc-sys", "serde", "tokio", "rust-std", "glibc"] {
        assert!(components.contains(&name), "{name} is missing");
    }
    for name in ["pillion-testkit", "proptest", "serde_derive", "syn", "cc", "ring"] {
        assert!(!components.contains(&name), "{name} is not part of the program");
    }

    // The Containerfile builds the same image from the archive of the CLI. Only `/tmp` differs.
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

/// The chart in the repository has an image without a registry. `dist.sh` replaces it in the chart of a release.
#[test]
fn release_chart_names_published_image() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let workflow: Value = serde_saphyr::from_str(&read(".github/workflows/release.yaml")).unwrap();
    let registry = workflow["env"]["REGISTRY"].as_str().unwrap();
    assert!(registry.starts_with("ghcr.io/"), "{registry}");
    let steps = workflow["jobs"]["release"]["steps"].as_array().unwrap();
    let command = |recipe: &str| {
        let mut commands = steps.iter().filter_map(|step| step["run"].as_str());
        commands.find(|command| command.starts_with(&format!("./justw {recipe} "))).unwrap()
    };
    let (dist, publish) = (command("dist"), command("publish"));
    assert!(dist.ends_with(" --repository \"$REGISTRY/pillion\""), "{dist}");
    assert!(publish.starts_with("./justw publish \"$REGISTRY\""), "{publish}");
    assert!(read("justfile").contains("    image=$registry/pillion "), "`just publish` pushes another image");
    // `dist.sh` replaces the line `  repository: pillion`, and fails without it.
    let values = read("charts/pillion/values.yaml");
    assert_eq!(values.lines().filter(|line| *line == "  repository: pillion").count(), 1);
}

/// Returns each part of `text` that follows `before`, up to the next `after`.
fn between<'t>(text: &'t str, before: &str, after: &str) -> Vec<&'t str> {
    text.split(before).skip(1).filter_map(|rest| Some(rest.split_once(after)?.0)).collect()
}

#[test]
fn krew_manifest_has_all_archives_of_release() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    // The release builds one archive for each linux platform of the workflow, and one for macOS.
    let (justfile, workflow) = (read("justfile"), read(".github/workflows/release.yaml"));
    let recipe = workflow.lines().find(|line| line.contains("./justw dist --platform")).unwrap();
    let linux = recipe.split("--platform ").skip(1).filter_map(|rest| rest.split(' ').next());
    assert!(read("services/testkit/tools/dist.sh").contains("name=pillion-$version-linux-$architecture\n"));
    let mut platforms: Vec<String> = linux.map(|architecture| format!("linux-{architecture}")).collect();
    for name in between(&justfile, "name=pillion-{{ version }}-", "\n") {
        platforms.push(name.to_owned());
    }
    assert_eq!(platforms, ["linux-amd64", "linux-arm64", "darwin-arm64"]);

    let folder = tempfile::tempdir().unwrap();
    let krew = || Command::new(root().join("services/testkit/tools/krew.sh")).arg(folder.path()).output().unwrap();
    let missing = krew();
    let error = String::from_utf8_lossy(&missing.stderr);
    assert!(!missing.status.success() && error.contains(&format!("pillion-{version}-linux-amd64.tar.gz")), "{error}");

    let mut sums = Vec::new();
    for platform in &platforms {
        let name = format!("pillion-{version}-{platform}");
        let tree = folder.path().join(&name);
        // The archives for linux have a folder of licences, and the archive for macOS has one file.
        let licence = if platform.starts_with("linux") { tree.join("licences/LICENSE") } else { tree.join("LICENSE") };
        fs::create_dir_all(licence.parent().unwrap()).unwrap();
        fs::write(licence, "licence").unwrap();
        fs::write(tree.join("pillion"), platform).unwrap();
        run("tar", &["-czf", &format!("{name}.tar.gz"), &name], folder.path());
        let sum = run("sha256sum", &[&format!("{name}.tar.gz")], folder.path());
        sums.push(sum.split(' ').next().unwrap().to_owned());
    }
    let done = krew();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let manifest = fs::read_to_string(folder.path().join(format!("pillion-{version}-krew.yaml"))).unwrap();
    assert!(!manifest.contains("{version}") && !manifest.contains("{sha256}"), "{manifest}");
    let manifest: Value = serde_saphyr::from_str(&manifest).unwrap();
    assert_eq!(manifest["metadata"]["name"], "pillion");
    assert_eq!(manifest["spec"]["version"], format!("v{version}"));
    let found = manifest["spec"]["platforms"].as_array().unwrap();
    assert_eq!(found.len(), platforms.len());
    for ((found, platform), sum) in found.iter().zip(&platforms).zip(&sums) {
        let labels = &found["selector"]["matchLabels"];
        let name = format!("{}-{}", labels["os"].as_str().unwrap(), labels["arch"].as_str().unwrap());
        assert_eq!((&name, found["sha256"].as_str()), (platform, Some(sum.as_str())));
        let archive = found["uri"].as_str().unwrap().rsplit('/').next().unwrap();
        assert_eq!(archive, format!("pillion-{version}-{platform}.tar.gz"));
        // Krew unpacks the archive, and moves the files that `files` lists.
        let listed = run("tar", &["-tf", archive], folder.path());
        for file in found["files"].as_array().unwrap() {
            let pattern = file["from"].as_str().unwrap().replace('*', "");
            assert!(listed.lines().any(|path| path.contains(&pattern) && !path.ends_with('/')), "{pattern}: {listed}");
        }
        assert_eq!(found["bin"], "pillion");
    }
}
