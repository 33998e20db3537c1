//! `pillion crds` as a process: what it prints is what kubectl takes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Stdio};

use serde_json::Value;

fn crds(arguments: &[&str]) -> String {
    let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion")).arg("crds").args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn all_definitions_are_printed_as_documents() {
    let text = crds(&[]);
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let expected: Vec<Value> =
        pillion_api::crd::definitions().unwrap().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
    assert_eq!(documents, expected);
    assert_eq!(text.matches("\n---\n").count(), 4);
    for line in text.lines() {
        assert!(
            !line.ends_with(": null") && !line.trim_end().ends_with(" {}") || line.ends_with("status: {}"),
            "{line}"
        );
    }
}

#[test]
fn json_is_a_list_with_the_same() {
    let list: Value = serde_json::from_str(&crds(&["-o", "json"])).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&crds(&[])).unwrap();
    assert_eq!(list["kind"], "List");
    assert_eq!(list["items"], Value::Array(documents));
}

#[test]
fn a_reader_that_stops_reading_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_pillion"))
        .arg("crds")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}
