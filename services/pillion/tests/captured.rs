//! Reviews that a real API server sent, posted to the running program over TLS.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Program, patch, post};
use serde_json::Value as Json;

/// For everybody, so that each review is injected whatever its pod asks for.
const PROFILE: &str = "apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {name: everybody}\n\
                       spec:\n  activation: Always\n  template:\n    metadata: {annotations: {example.com/x: 'yes'}}\n\
                       \x20   spec: {containers: [{name: extra, image: 'extra:1'}]}\n";

fn reviews(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|file| file.extension().is_some_and(|ext| ext == "json")).collect();
    files.sort();
    files
}

#[test]
fn every_captured_review_is_answered() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = reviews(&root.join("services/engine/tests/reviews"));
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("everybody.yaml"), PROFILE).unwrap();
    let arguments =
        ["dev", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--profiles", ".", "--folder", "state"];
    let program = Program::start(&arguments, folder.path());
    let url = program.word_behind("Serving ").replace("/mutate", "/mutate/required");
    let authority = folder.path().join("state/ca.crt");
    assert!(files.len() >= 10, "{files:?}");
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let review: Json = serde_json::from_str(&text).unwrap();
        let answer = post(&url, &authority, &text);
        let patch = patch(&answer);
        let answered: Json = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(answered["response"]["uid"], review["request"]["uid"], "{}", file.display());
        let is_new_pod = review["request"]["operation"] == "CREATE" && review["request"]["kind"]["kind"] == "Pod";
        assert_eq!(patch.is_some(), is_new_pod, "{}", file.display());
        let Some(patch) = patch else { continue };
        let mut object = review["request"]["object"].clone();
        let operations: json_patch::Patch = serde_json::from_str(&patch).unwrap();
        json_patch::patch(&mut object, &operations).unwrap();
        let containers = object["spec"]["containers"].as_array_mut().unwrap();
        assert_eq!(containers.pop().unwrap()["name"], "extra");
        // Nothing else is touched: what was added taken away, the object is the one that was sent.
        let annotations = object["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove("example.com/x").unwrap();
        annotations.remove("pillion.dev/injected").unwrap();
        if review["request"]["object"]["metadata"].get("annotations").is_none() {
            object["metadata"].as_object_mut().unwrap().remove("annotations");
        }
        assert_eq!(object, review["request"]["object"], "{}", file.display());
    }
}
