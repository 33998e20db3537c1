//! Namespaces for commands without a cluster, from `--namespace` and from files.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pillion_api::names::FailureMode;
use pillion_api::opt_in::OptIn;
use pillion_engine::snapshot::Namespace;
use serde::Deserialize;
use serde_json::Value;

/// Namespaces by name.
pub(crate) type Namespaces = BTreeMap<Box<str>, Namespace>;

/// The failure mode of each namespace; `None` if it is not opted in. It is stored separately, because the namespaces
/// themselves are moved to the snapshot.
pub(crate) type FailureModes = BTreeMap<Box<str>, Option<FailureMode>>;

/// A namespace with its failure mode, as in `shop=required`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamespaceArg {
    pub(crate) name: Box<str>,
    pub(crate) failure_mode: FailureMode,
}

impl FromStr for NamespaceArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, failure_mode)) = text.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            return Err("expected NAME=MODE, as in shop=required".to_owned());
        };
        Ok(Self { name: name.into(), failure_mode: self::failure_mode(failure_mode)? })
    }
}

fn failure_mode(text: &str) -> Result<FailureMode, String> {
    FailureMode::from_label_value(text)
        .ok_or_else(|| format!("{text:?} is not a failure mode: expected enabled, required or held"))
}

/// An entry of a map of namespaces: a failure mode, or labels and annotations.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected enabled, required or held, or a map with labels and annotations")]
enum Short {
    FailureMode(String),
    Metadata(Metadata),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// A Namespace object, with only the fields that this module uses.
#[derive(Deserialize)]
struct Object {
    metadata: ObjectMeta,
}

/// Returns the failure modes of all namespaces.
pub(crate) fn failure_modes(namespaces: &Namespaces) -> FailureModes {
    namespaces.iter().map(|(name, namespace)| (name.clone(), namespace.failure_mode())).collect()
}

/// Reads a file: a map of names, or Namespace objects as documents, as a list, or as `kubectl get ns -o yaml` prints
/// them.
///
/// # Errors
/// The file cannot be read, or has a different structure.
pub(crate) fn from_file(path: &Path) -> anyhow::Result<Namespaces> {
    let read = || from_text(&std::fs::read_to_string(path)?);
    read().with_context(|| format!("--namespace-file {} cannot be used", path.display()))
}

fn from_text(text: &str) -> anyhow::Result<Namespaces> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)?;
    let mut namespaces = Namespaces::new();
    for document in documents {
        match document {
            Value::Null => {}
            Value::Array(items) => add_objects(&mut namespaces, items)?,
            Value::Object(mut map) if map.contains_key("kind") => match map.remove("items") {
                Some(Value::Array(items)) => add_objects(&mut namespaces, items)?,
                _ => add_objects(&mut namespaces, vec![Value::Object(map)])?,
            },
            Value::Object(map) => {
                for (name, value) in map {
                    let short = serde_json::from_value(value).with_context(|| format!("namespace {name}"))?;
                    let namespace = match short {
                        Short::FailureMode(text) => {
                            let failure_mode = failure_mode(&text)
                                .map_err(anyhow::Error::msg)
                                .with_context(|| format!("namespace {name}"))?;
                            Namespace::opted_in(failure_mode)
                        }
                        Short::Metadata(Metadata { labels, annotations }) => Namespace::new(labels, annotations),
                    };
                    namespaces.insert(name.into(), namespace);
                }
            }
            _ => bail!("expected a map of names such as {{shop: required}}, or Namespace objects"),
        }
    }
    Ok(namespaces)
}

fn add_objects(namespaces: &mut Namespaces, objects: Vec<Value>) -> anyhow::Result<()> {
    for object in objects {
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or("Namespace");
        if kind != "Namespace" {
            bail!("found a {kind}: expected only Namespace objects");
        }
        let Object { metadata } = serde_json::from_value(object)?;
        let (name, namespace) = pillion_control::informer::namespaces::read(metadata, &OptIn::default());
        if name.is_empty() {
            bail!("found a Namespace without metadata.name");
        }
        namespaces.insert(name, namespace);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_parse_from_names_and_objects() {
        let short = "shop: required\ntill: {labels: {pillion.dev/injection: held, team: red}, annotations: {a: b}}\n";
        let read = from_text(short).unwrap();
        assert_eq!(read["shop"].failure_mode(), Some(FailureMode::Required));
        assert_eq!((read["till"].label("team"), read["till"].annotation("a")), (Some("red"), Some("b")));

        let object =
            "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {pillion.dev/injection: enabled}}}";
        for text in [
            object.to_owned(),
            format!("- {object}\n"),
            format!("---\n{object}\n---\n{object}\n"),
            format!("apiVersion: v1\nkind: List\nitems:\n- {object}\n"),
        ] {
            let read = from_text(&text).unwrap();
            assert_eq!(read.len(), 1, "{text}");
            assert_eq!(read["shop"].failure_mode(), Some(FailureMode::Enabled), "{text}");
        }
    }

    #[test]
    fn invalid_namespace_error_has_position_and_expectation() {
        for (text, expected) in [
            ("shop: maybe", "enabled, required or held"),
            ("shop: {label: {}}", "namespace shop"),
            ("kind: Pod\nmetadata: {name: a}", "found a Pod"),
            ("kind: Namespace\nmetadata: {}", "without metadata.name"),
            ("just text", "expected a map of names"),
        ] {
            let error = format!("{:#}", from_text(text).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
