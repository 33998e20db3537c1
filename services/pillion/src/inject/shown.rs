//! Prints changed manifests.

use clap::ValueEnum;
use serde_json::Value;

use super::objects;
use crate::difference;
use crate::output::{self, Format};

/// How the result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// The objects, as YAML documents.
    Yaml,
    /// The object, as JSON; several as a List.
    Json,
    /// For each document the JSON patch (RFC 6902) that changes it.
    Patch,
    /// For each document that is changed a unified diff of its YAML, in colours on a terminal.
    Diff,
}

/// A document of a manifest, before and after.
#[derive(Clone, Debug)]
pub(crate) struct Changed {
    /// The document as read.
    pub(crate) before: Value,
    /// The changed document.
    pub(crate) after: Value,
    /// The JSON patch between them.
    pub(crate) patch: Vec<Value>,
}

/// Prints documents. `what` describes the change, such as `injected`.
pub(crate) fn print(
    documents: Vec<Changed>,
    output: Output,
    what: &str,
    default_namespace: &str,
) -> anyhow::Result<()> {
    let format = match output {
        Output::Patch => {
            let patches = documents.into_iter().map(|document| output::json(&Value::Array(document.patch)));
            return output::print(&patches.collect::<anyhow::Result<String>>()?);
        }
        Output::Diff => {
            let differences = documents.iter().map(|document| diff(document, what, default_namespace));
            return output::show(&differences.collect::<anyhow::Result<String>>()?);
        }
        Output::Yaml => Format::Yaml,
        Output::Json => Format::Json,
    };
    let objects: Vec<_> = documents.into_iter().map(|document| document.after).collect();
    output::print(&output::objects(&objects, format)?)
}

fn diff(Changed { before, after, .. }: &Changed, what: &str, default_namespace: &str) -> anyhow::Result<String> {
    let name = name(before, default_namespace);
    difference::of((&name, before), (&format!("{name}, {what}"), after))
}

/// Returns the label of a document: kind and name of a pod or workload, else only the kind.
fn name(document: &Value, default_namespace: &str) -> String {
    match objects::pods(document).as_slice() {
        [one] => one.describe(default_namespace),
        _ => document.get("kind").and_then(Value::as_str).unwrap_or("document").to_owned(),
    }
}
