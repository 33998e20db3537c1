//! Prints a comparison as SARIF 2.1.0, with one result for each workload that differs.

use std::env;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use super::{Change, Compared, text};

/// The rules: stable identifier, level and description.
const RULES: [(&str, &str, &str); 5] = [
    ("workload-added", "note", "A workload is added, with the injected parts of its pods"),
    ("workload-removed", "note", "A workload is removed"),
    ("pod-changed", "note", "The pods of a workload would be different"),
    ("pod-rejected", "warning", "The pods of a workload would be rejected"),
    ("pod-admitted", "note", "The pods of a workload would no longer be rejected"),
];

/// Returns the log. `fallback` is the path of results without a file: GitHub rejects results without a location.
pub(super) fn log(compared: &[Compared], fallback: &str) -> Value {
    let rules: Vec<_> = RULES
        .iter()
        .map(|(id, level, description)| {
            json!({"id": id, "shortDescription": {"text": description}, "defaultConfiguration": {"level": level}})
        })
        .collect();
    let results: Vec<_> = compared.iter().filter_map(|one| result(one, fallback)).collect();
    let driver = json!({
        "name": "Pillion", "version": env!("CARGO_PKG_VERSION"), "informationUri": env!("CARGO_PKG_REPOSITORY"),
        "rules": rules,
    });
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    })
}

/// Returns the result of a workload. `None` if it does not differ.
fn result(one: &Compared, fallback: &str) -> Option<Value> {
    let rule = match one.change() {
        Change::Same => return None,
        Change::Added => "workload-added",
        Change::Removed => "workload-removed",
        Change::Changed => "pod-changed",
        Change::Rejected => "pod-rejected",
        Change::Admitted => "pod-admitted",
    };
    let index = RULES.iter().position(|(id, ..)| *id == rule)?;
    let (_, level, description) = RULES.get(index)?;
    let lines = text::profiles(one);
    let details = if lines.is_empty() { String::new() } else { format!("\n{}", lines.join("\n")) };
    let file = one.at.as_ref().map_or(fallback, |at| &at.file);
    let mut location = json!({"artifactLocation": {"uri": uri(file)}});
    if let (Some(at), Value::Object(fields)) = (&one.at, &mut location) {
        fields.insert("region".to_owned(), json!({"startLine": at.line}));
    }
    Some(json!({
        "ruleId": rule, "ruleIndex": index, "level": level,
        "message": {"text": format!("{}: {description}{details}", one.name)},
        "locations": [{
            "physicalLocation": location,
            "logicalLocations": [{"fullyQualifiedName": one.name, "kind": "resource"}],
        }],
    }))
}

/// Returns the URI of a file, relative to the current folder if the file is in it.
fn uri(file: &str) -> String {
    let path = Path::new(file);
    let relative = env::current_dir().ok().and_then(|folder| path.strip_prefix(folder).ok().map(Path::to_owned));
    let path = relative.unwrap_or_else(|| path.strip_prefix(".").unwrap_or(path).to_owned());
    let mut uri = String::from(if path.is_absolute() { "file://" } else { "" });
    for byte in path.to_string_lossy().bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            // Writing to a string never fails.
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_relative_and_escaped() {
        assert_eq!(uri("./a b/é:1.yaml"), "a%20b/%C3%A9%3A1.yaml");
        let inside = env::current_dir().unwrap().join("web.yaml");
        assert_eq!(uri(inside.to_str().unwrap()), "web.yaml");
        assert_eq!(uri("/other/web.yaml"), "file:///other/web.yaml");
    }
}
