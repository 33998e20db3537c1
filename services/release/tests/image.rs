//! The archive of an image, read as a container runtime reads it: every digest and size is followed from the top to the files.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::io::Read;

use pillion_release::archive::{Archive, sha256};
use pillion_release::binary::Architecture;
use pillion_release::image::{Image, ImageArchive, ImageMetadata, archive};
use serde_json::Value;

const TIME: u64 = 1_700_000_000;

/// The least that is a static program for a processor.
fn program(machine: u8) -> Vec<u8> {
    let mut program = vec![0; 64];
    program[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    program[16] = 3;
    program[18] = machine;
    program[20] = 1;
    program[52] = 64;
    program
}

const AMD64: u8 = 62;
const ARM64: u8 = 183;

fn metadata() -> ImageMetadata {
    ImageMetadata {
        repository: "pillion".into(),
        tag: "0.1.0".into(),
        time: TIME,
        labels: [("version".to_owned(), "0.1.0".to_owned()), ("licenses".to_owned(), "Apache-2.0".to_owned())].into(),
    }
}

fn image(machine: u8) -> Image {
    Image::new(&metadata(), &program(machine), Archive::new().file("licences/LICENSE", "text")).unwrap()
}

fn files(tar: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut archive = tar::Archive::new(tar);
    let read = |entry: Result<tar::Entry<'_, &[u8]>, std::io::Error>| {
        let mut entry = entry.unwrap();
        assert_eq!(entry.header().mtime().unwrap(), TIME);
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        (format!("{} {:o}", entry.path().unwrap().display(), entry.header().mode().unwrap()), content)
    };
    archive.entries().unwrap().map(read).collect()
}

/// The content that a descriptor speaks of, if its size and digest are true.
fn followed<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'a [u8] {
    let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
    let content = &files[&format!("blobs/sha256/{digest} 644")];
    assert_eq!(sha256(content), digest);
    assert_eq!(descriptor["size"], content.len());
    content
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

/// Follows a manifest to its files, and compares what is said on the way. The layer's files.
fn check_manifest(files: &BTreeMap<String, Vec<u8>>, descriptor: &Value, architecture: &str) {
    assert_eq!(descriptor["platform"], serde_json::json!({"architecture": architecture, "os": "linux"}));
    let manifest = json(followed(files, descriptor));
    assert_eq!(manifest["mediaType"], descriptor["mediaType"]);
    assert_eq!(manifest["annotations"]["org.opencontainers.image.created"], "2023-11-14T22:13:20Z");
    let config = json(followed(files, &manifest["config"]));
    assert_eq!(config["architecture"], architecture);
    assert_eq!(config["config"]["User"], "65532:65532");
    assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/pillion"]));
    assert_eq!(config["config"]["Labels"], manifest["annotations"]);
    assert_eq!(config["config"]["Labels"]["org.opencontainers.image.licenses"], "Apache-2.0");

    let mut layer = Vec::new();
    flate2::read::GzDecoder::new(followed(files, &manifest["layers"][0])).read_to_end(&mut layer).unwrap();
    assert_eq!(config["rootfs"]["diff_ids"], serde_json::json!([format!("sha256:{}", sha256(&layer))]));
    let layer = self::files(&layer);
    assert_eq!(layer.keys().collect::<Vec<_>>(), ["licences/ 755", "licences/LICENSE 644", "pillion 755", "tmp/ 1777"]);
    assert_eq!(layer["pillion 755"][18], if architecture == "amd64" { AMD64 } else { ARM64 });
}

#[test]
fn an_archive_of_one_platform_is_a_layout_and_what_older_dockers_load() {
    let ImageArchive { digest, bytes } = archive(&metadata(), &[image(AMD64)]).unwrap();
    let files = files(&bytes);
    assert_eq!(json(&files["oci-layout 644"]), serde_json::json!({"imageLayoutVersion": "1.0.0"}));
    let index = json(&files["index.json 644"]);
    let top = &index["manifests"][0];
    assert_eq!(top["digest"], digest);
    assert_eq!(top["annotations"]["io.containerd.image.name"], "docker.io/library/pillion:0.1.0");
    assert_eq!(top["annotations"]["org.opencontainers.image.ref.name"], "0.1.0");
    check_manifest(&files, top, "amd64");

    let docker = json(&files["manifest.json 644"]);
    assert_eq!(docker[0]["RepoTags"], serde_json::json!(["pillion:0.1.0"]));
    let manifest = json(followed(&files, top));
    for (path, descriptor) in
        [(&docker[0]["Config"], &manifest["config"]), (&docker[0]["Layers"][0], &manifest["layers"][0])]
    {
        let digest = descriptor["digest"].as_str().unwrap();
        assert_eq!(*path, format!("blobs/{}", digest.replace(':', "/")));
    }
    // What nothing leads to is not there: the layout, two lists, and manifest, config and layer.
    assert_eq!(files.len(), 6);
}

#[test]
fn an_archive_of_two_platforms_has_an_index_of_both() {
    let ImageArchive { digest, bytes } = archive(&metadata(), &[image(ARM64), image(AMD64)]).unwrap();
    let files = files(&bytes);
    let top = &json(&files["index.json 644"])["manifests"][0];
    assert_eq!(top["digest"], digest);
    assert_eq!(top["mediaType"], "application/vnd.oci.image.index.v1+json");
    let index = json(followed(&files, top));
    check_manifest(&files, &index["manifests"][0], "amd64");
    check_manifest(&files, &index["manifests"][1], "arm64");
    assert!(!files.contains_key("manifest.json 644"), "it can name one image alone");
}

#[test]
fn the_same_program_is_the_same_bytes() {
    let one = archive(&metadata(), &[image(AMD64), image(ARM64)]).unwrap();
    let other = archive(&metadata(), &[image(ARM64), image(AMD64)]).unwrap();
    assert_eq!(one.digest, other.digest);
    assert_eq!(one.bytes, other.bytes);
    let later = ImageMetadata { time: TIME + 1, ..metadata() };
    let later = archive(&later, &[Image::new(&later, &program(AMD64), Archive::new()).unwrap()]).unwrap();
    assert_ne!(one.digest, later.digest);
}

#[test]
fn what_is_no_image_is_refused() {
    assert_eq!(image(ARM64).architecture(), Architecture::Arm64);
    let dynamic = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let error = format!("{:#}", Image::new(&metadata(), &dynamic, Archive::new()).unwrap_err());
    assert!(error.contains("cannot run in an image of its own: not static"), "{error}");
    assert!(archive(&metadata(), &[]).is_err());
    assert!(archive(&metadata(), &[image(AMD64), image(AMD64)]).is_err());
}
