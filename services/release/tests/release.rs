//! A whole release of the repository, twice, with programs that do nothing; only helm is the real one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pillion_release::archive::sha256;
use pillion_release::binary::Architecture;
use pillion_release::build::{runtime, target};
use pillion_release::licences::third_party;
use pillion_release::linked::Linked;
use pillion_release::release::{Parts, make};
use pillion_release::sbom::sbom;
use pillion_release::source::Source;
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn source() -> Source {
    Source {
        root: root(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        revision: Some("0a".repeat(20)),
        time: 1_700_000_000,
    }
}

/// The least that is a static program for a processor, and tells of a crate that is in it.
fn program(folder: &Path, machine: u8) -> PathBuf {
    let mut program = vec![0; 64];
    program[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    (program[16], program[18], program[20], program[52]) = (3, machine, 1, 64);
    let linked = linked();
    let (name, version) = linked.crates.keys().find(|(name, _)| name == "serde").unwrap();
    program.extend_from_slice(format!("/cargo/registry/src/index-0a/{name}-{version}/src/lib.rs").as_bytes());
    let file = folder.join(machine.to_string());
    fs::write(&file, program).unwrap();
    file
}

fn helm() -> PathBuf {
    let built = Command::new(root().join("services/testkit/tools/build.sh")).arg("helm").output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Path::new(String::from_utf8(built.stdout).unwrap().trim()).join("helm")
}

fn linked() -> Linked {
    Linked::of(&root(), target(Architecture::Amd64)).unwrap()
}

#[test]
fn a_release_is_whole_and_the_same_twice() {
    let folder = tempfile::tempdir().unwrap();
    let parts = Parts {
        // What is not committed has no archive of its source, and tests are run before a commit.
        source: Source { revision: Some("0a-dirty".to_owned()), ..source() },
        programs: vec![program(folder.path(), 62), program(folder.path(), 183)],
        repository: "registry.example.com/platform/pillion".to_owned(),
        helm: helm(),
    };
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    let names = make(&parts, &one).unwrap();
    // What is there is replaced, and nothing of it is left.
    fs::create_dir(&other).unwrap();
    fs::write(other.join("SHA256SUMS"), "0a  README.md\n0a  pillion-0.0.1.tgz\n").unwrap();
    fs::write(other.join("README.md"), "# Pillion 0.0.1\n").unwrap();
    fs::write(other.join("pillion-0.0.1.tgz"), "of an earlier one").unwrap();
    assert_eq!(make(&parts, &other).unwrap(), names);
    let sums = |folder: &Path| fs::read_to_string(folder.join("SHA256SUMS")).unwrap();
    assert_eq!(sums(&one), sums(&other));

    let sums: BTreeMap<_, _> = sums(&one)
        .lines()
        .map(|line| line.split_once("  ").map(|(sum, name)| (name.to_owned(), sum.to_owned())).unwrap())
        .collect();
    let found: BTreeSet<_> =
        fs::read_dir(&one).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(found, names.into_iter().collect());
    for name in found.iter().filter(|name| *name != "SHA256SUMS") {
        assert_eq!(sums[name], sha256(&fs::read(one.join(name)).unwrap()), "{name}");
    }
    let checked =
        Command::new("sha256sum").args(["--check", "--strict", "--quiet", "SHA256SUMS"]).current_dir(&one).status();
    assert!(checked.unwrap().success());
    let version = env!("CARGO_PKG_VERSION");
    for rest in [
        ".tgz",
        "-image.tar",
        "-linux-amd64-image.tar",
        "-linux-amd64.cdx.json",
        "-linux-amd64.tar.gz",
        "-linux-arm64-image.tar",
        "-crds.yaml",
        "-manifests.yaml",
        "-dashboards.tar.gz",
        "-deploy.tar.gz",
        "-profiles.tar.gz",
    ] {
        assert!(found.contains(&format!("pillion-{version}{rest}")), "no {rest} in {found:?}");
    }

    let readme = fs::read_to_string(one.join("README.md")).unwrap();
    assert!(!readme.contains('{'), "a placeholder is left in {readme}");
    let install = "--set image.repository=registry.example.com/platform/pillion --set image.digest=sha256:";
    assert!(readme.contains(install), "{readme}");
    let words = readme.split(|character: char| character.is_whitespace() || ['`', ':'].contains(&character));
    let ours = words.filter(|word| word.starts_with(&format!("pillion-{version}")));
    for file in ours.filter(|file| !file.contains('*')) {
        assert!(found.contains(file), "README.md names {file}");
    }
    let manifests = fs::read_to_string(one.join(format!("pillion-{version}-manifests.yaml"))).unwrap();
    assert!(manifests.contains(&format!("image: \"registry.example.com/platform/pillion:{version}\"")));
    assert!(manifests.contains("kind: CustomResourceDefinition"));
    assert!(!manifests.contains("helm.sh/hook"), "a job that Helm runs at its time would run at once");
}

/// The words behind a keyword of a Containerfile.
fn words<'a>(containerfile: &'a str, keyword: &str) -> Vec<&'a str> {
    let lines = containerfile.lines().filter_map(|line| line.strip_prefix(keyword));
    lines.flat_map(str::split_whitespace).collect()
}

/// What is in a folder by its path below it: the bytes of files, and nothing of folders.
fn contents(folder: &Path) -> BTreeMap<String, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name().into_string().unwrap())).unwrap();
        if path.is_dir() {
            found.extend(contents(&path).into_iter().map(|(below, content)| (format!("{name}/{below}"), content)));
            found.insert(name, None);
        } else {
            found.insert(name, Some(fs::read(path).unwrap()));
        }
    }
    found
}

#[test]
fn the_containerfile_makes_the_image_that_dist_makes_but_for_tmp() {
    let containerfile = fs::read_to_string(root().join("deploy/image/Containerfile")).unwrap();
    assert_eq!(words(&containerfile, "FROM "), ["scratch"]);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dist");
    let source = Source { revision: Some("0a-dirty".to_owned()), ..source() };
    let programs = vec![program(folder.path(), 62)];
    make(&Parts { source, programs, repository: "pillion".to_owned(), helm: helm() }, &out).unwrap();

    // What it copies is in the archive that it is run in, and comes to the places of the image's own files.
    let unpack = |file: &Path, into: &str| {
        let into = folder.path().join(into);
        fs::create_dir(&into).unwrap();
        let unpacked =
            Command::new("tar").arg("--extract").arg("--file").arg(file).current_dir(&into).status().unwrap();
        assert!(unpacked.success(), "{}", file.display());
        into
    };
    let name = format!("pillion-{}-linux-amd64", env!("CARGO_PKG_VERSION"));
    let context = unpack(&out.join(format!("{name}.tar.gz")), "context").join(&name);
    let layout = unpack(&out.join(format!("{name}-image.tar")), "layout");
    let docker: Value = serde_json::from_slice(&fs::read(layout.join("manifest.json")).unwrap()).unwrap();
    let blob = |path: &Value| layout.join(path.as_str().unwrap());
    let files = unpack(&blob(&docker[0]["Layers"][0]), "files");
    let copied = words(&containerfile, "COPY ");
    assert_eq!(copied, ["pillion", "pillion.cdx.json", "/", "licences", "/licences"]);
    let (mut image, context) = (contents(&files), contents(&context));
    assert_eq!(image.remove("tmp"), Some(None), "the one folder that an engine cannot make on nothing");
    assert!(containerfile.contains("empty folder /tmp"), "it says what differs");
    assert_eq!(image.keys().collect::<Vec<_>>(), context.keys().collect::<Vec<_>>());
    for (path, content) in context {
        // Not by `assert_eq!`, which would print a program.
        assert!(image[&path] == content, "{path}");
    }

    let config: Value = serde_json::from_slice(&fs::read(blob(&docker[0]["Config"])).unwrap()).unwrap();
    let config = &config["config"];
    assert_eq!(words(&containerfile, "USER "), [config["User"].as_str().unwrap()]);
    assert_eq!(words(&containerfile, "WORKDIR "), [config["WorkingDir"].as_str().unwrap()]);
    assert_eq!(words(&containerfile, "ENV "), [config["Env"][0].as_str().unwrap()]);
    assert_eq!(words(&containerfile, "ENTRYPOINT "), [config["Entrypoint"].to_string()]);
    for label in config["Labels"].as_object().unwrap().keys().filter(|label| !label.ends_with(".created")) {
        assert!(containerfile.contains(&format!("{label}=")), "{label} is missing");
    }
}

#[test]
fn what_is_no_release_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("thesis.pdf"), "").unwrap();
    fs::write(folder.path().join("SHA256SUMS"), "0a  thesis.pdf\n").unwrap();
    let parts = Parts { source: source(), programs: Vec::new(), repository: "pillion".to_owned(), helm: "helm".into() };
    let error = make(&parts, folder.path()).unwrap_err().to_string();
    assert!(error.contains("something else in it than a release"), "{error}");
    assert!(folder.path().join("thesis.pdf").exists());
}

#[test]
fn the_program_is_made_of_what_it_uses_and_not_of_what_builds_and_tests_it() {
    let linked = linked();
    let names: BTreeSet<_> = linked.crates.keys().map(|(name, _)| name.as_str()).collect();
    for name in ["pillion", "pillion-engine", "kube", "rustls", "aws-lc-sys", "serde", "tokio"] {
        assert!(names.contains(name), "{name} is in the program");
    }
    for name in ["pillion-testkit", "pillion-release", "proptest", "serde_derive", "syn", "cc", "ring"] {
        assert!(!names.contains(name), "{name} is not in the program");
    }
    for each in linked.foreign() {
        assert!(!each.licence.is_empty(), "{} says no licence", each.name);
        assert!(each.folder.join("Cargo.toml").is_file(), "{} has no source", each.name);
    }
}

#[test]
fn the_bill_of_materials_lists_every_crate_and_says_who_uses_it() {
    let linked = linked();
    let runtime = runtime(Architecture::Amd64, &root()).unwrap();
    let bill = sbom(&source(), Architecture::Amd64, b"program", &linked, &runtime).unwrap();
    let bill: Value = serde_json::from_str(&bill).unwrap();
    assert_eq!(bill["metadata"]["component"]["hashes"][0]["content"], sha256(b"program"));
    assert_eq!(bill["metadata"]["timestamp"], "2023-11-14T22:13:20Z");
    let text = |value: &Value, field: &str| value[field].as_str().unwrap().to_owned();
    let components = bill["components"].as_array().unwrap();
    let listed: BTreeSet<_> = components.iter().map(|each| (text(each, "name"), text(each, "version"))).collect();
    assert_eq!(listed.len(), components.len(), "a component stands there twice");
    for key in linked.crates.keys().filter(|(name, _)| name != "pillion") {
        assert!(listed.contains(key), "{key:?} is missing");
    }
    assert!(listed.contains(&("rust-std".to_owned(), runtime.rust.clone())));
    assert!(listed.contains(&("glibc".to_owned(), runtime.glibc.clone().unwrap())));

    // Who uses what leads from the program to all crates, and to nothing that is not listed.
    let references: BTreeSet<_> = components.iter().map(|each| text(each, "bom-ref")).collect();
    let uses: BTreeMap<_, Vec<_>> = bill["dependencies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|each| (text(each, "ref"), each["dependsOn"].as_array().unwrap().iter().collect()))
        .collect();
    let mut reached = BTreeSet::new();
    let mut next = vec![text(&bill["metadata"]["component"], "bom-ref")];
    while let Some(reference) = next.pop() {
        for used in uses[&reference].iter().map(|used| used.as_str().unwrap()) {
            assert!(references.contains(used), "{used} is used and not listed");
            if reached.insert(used.to_owned()) {
                next.push(used.to_owned());
            }
        }
    }
    assert_eq!(references.difference(&reached).count(), 2, "all but the two libraries that are no crates");
}

#[test]
fn every_crate_in_the_program_has_its_licence_passed_on() {
    let (source, linked) = (source(), linked());
    let runtime = runtime(Architecture::Amd64, &source.root).unwrap();
    let page = third_party(&source, std::slice::from_ref(&linked), &runtime).unwrap();
    for each in linked.foreign() {
        let name = format!("{} {}", each.name, each.version);
        let used = page.split("\nUsed by:").skip(1);
        let mut used = used.map(|part| part.split("\n\n").next().unwrap().replace('\n', " "));
        assert!(used.any(|users| users.split(',').any(|user| user.trim() == name)), "{name} has no text");
    }
    for text in ["Apache License", "Permission is hereby granted, free of charge", "GNU LESSER GENERAL PUBLIC LICENSE"]
    {
        assert!(page.contains(text), "{text}");
    }
    // Of who has none, or the root of all, there is nothing to be found.
    let home = std::env::var("HOME").ok().filter(|home| home.len() > 1).unwrap_or_else(|| "/root".to_owned());
    assert!(!page.contains(&format!("{home}/")), "a path of this machine");
}
