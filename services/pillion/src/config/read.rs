//! Reads and checks a policy file. Flags take precedence over the file.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::anyhow;
use clap::Args;
use pillion_api::names::INJECTION_LABEL;
use pillion_api::opt_in::{OptIn, OptInError};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::settings::{Setting, plain};
use super::units::Time;
use crate::load::{Problem, Source, typed, yaml};

/// The maximum size of the file in bytes. A ConfigMap has the same limit.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// The `apiVersion` of all policy files.
const API_VERSION: &str = "config.pillion.dev/v1alpha1";

/// The value of `apiVersion`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) enum ApiVersion {
    #[default]
    #[serde(rename = "config.pillion.dev/v1alpha1")]
    V1Alpha1,
}

/// A kind of policy file, with its keys and constraints.
pub(crate) trait PolicyFile: Default + DeserializeOwned + Serialize {
    /// The value of `kind`.
    const KIND: &'static str;

    /// Returns all keys.
    fn settings() -> &'static [Setting];

    /// Applies the values of the flags to the policy.
    fn apply(&mut self, overrides: &Overrides);

    /// Returns the errors in single values that neither the types nor the ranges of the keys detect.
    fn invalid_values(&self) -> Vec<PolicyError>;

    /// Returns the constraints between keys that are violated.
    fn contradictions(&self) -> Vec<PolicyError>;

    /// Returns the policy as a tree with the keys of the file.
    fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// An error in a policy whose values have valid types.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PolicyError {
    /// The key with the error.
    pub(crate) path: &'static str,
    pub(crate) message: String,
    /// What the user can do to correct the error.
    pub(crate) help: Option<String>,
}

impl PolicyError {
    /// Creates an error without a remedy.
    pub(super) fn new(path: &'static str, message: String) -> Self {
        Self { path, message, help: None }
    }
}

/// Returns an error if the first value exceeds the second. The first two arguments are keys with their values.
pub(super) fn at_most<T: PartialOrd + Display>(
    (path, value): (&'static str, T),
    (other, most): (&'static str, T),
    help: &str,
) -> Option<PolicyError> {
    (value > most).then(|| PolicyError {
        path,
        message: format!("expected at most {other} ({most}), found {value}"),
        help: Some(help.to_owned()),
    })
}

/// Returns the error in the opt-in labels, if any: an invalid label, or a label other than `pillion.dev/injection=held`
/// with the failure mode `held`.
pub(super) fn opt_in_error(path: &'static str, labels: &Result<OptIn, OptInError>) -> Option<PolicyError> {
    match labels {
        Err(error) => Some(PolicyError::new(path, error.to_string())),
        // The admission policies that hold pods select only the label `pillion.dev/injection`.
        Ok(labels) => labels.held_by_others().map(|(key, value)| {
            let message = format!(
                "{key}={value} cannot have the failure mode held: only {INJECTION_LABEL}=held holds pods; expected \
                 enabled or required"
            );
            PolicyError::new(path, message)
        }),
    }
}

/// Arguments for the policy file.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ConfigArg {
    /// The policy file, YAML: guardrails, facts of the cluster, limits, log level, trace ratio. Omitted keys have their
    /// defaults. Long-running commands reload it when it changes.
    #[arg(long, value_name = "FILE", env = "PILLION_CONFIG")]
    pub(crate) config: Option<PathBuf>,
}

/// Values from flags and the environment. They take precedence over the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Overrides {
    pub(crate) log_level: Option<String>,
    pub(crate) trace_ratio: Option<f64>,
    pub(crate) drain_minimum: Option<Time>,
    pub(crate) drain_deadline: Option<Time>,
}

impl ConfigArg {
    /// Returns the policy from the file, or the defaults if no file is configured. `overrides` take precedence over both.
    ///
    /// # Errors
    /// The file cannot be read, or the file or the flags contain problems.
    pub(crate) fn load<P: PolicyFile>(&self, overrides: &Overrides) -> Result<P, Vec<Problem>> {
        match &self.config {
            Some(file) => from_text(file, &text_of(file).map_err(|problem| vec![problem])?, overrides),
            None => with_flags(&Arc::new(Source::new("the defaults", String::new())), None, overrides),
        }
    }

    /// Like [`ConfigArg::load`], with all problems in one error.
    pub(crate) fn required<P: PolicyFile>(&self, overrides: &Overrides) -> anyhow::Result<P> {
        self.load(overrides).map_err(|problems| anyhow!("the configuration cannot be used: {}", lines(&problems)))
    }
}

/// Formats problems on one line.
pub(crate) fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Reads the policy file. Returns a problem if the file is unreadable or too large.
pub(crate) fn text_of(file: &Path) -> Result<String, Problem> {
    let name = || file.display().to_string();
    let size = fs::metadata(file).map_or(0, |metadata| metadata.len());
    if size > MAX_FILE_BYTES {
        let message = format!("a policy file may have at most {MAX_FILE_BYTES} bytes; this one has {size}");
        return Err(Problem::whole(name(), message));
    }
    fs::read_to_string(file).map_err(|error| Problem::whole(name(), format!("cannot be read: {error}")))
}

/// Parses a policy, and applies the flags.
pub(crate) fn from_text<P: PolicyFile>(file: &Path, text: &str, overrides: &Overrides) -> Result<P, Vec<Problem>> {
    let source = Arc::new(Source::new(file.display().to_string(), text.to_owned()));
    let document = document(&source, P::KIND).map_err(|problem| vec![problem])?;
    with_flags(&source, Some(&document), overrides)
}

fn with_flags<P: PolicyFile>(
    source: &Arc<Source>,
    document: Option<&yaml::Node>,
    overrides: &Overrides,
) -> Result<P, Vec<Problem>> {
    let mut policy = match document {
        Some(document) => typed::read(source, document, "").map_err(|problem| vec![problem])?,
        None => P::default(),
    };
    policy.apply(overrides);
    let problems: Vec<_> = mistakes(&policy)
        .into_iter()
        .map(|PolicyError { path, message, help }| {
            let problem = match (overrides.flag(path), document) {
                (Some(flag), _) => Problem::whole(flag, message),
                (None, Some(document)) => Problem::at(source, document.place(path), message).of_field(path),
                (None, None) => Problem::whole(source.name.as_str(), message).of_field(path),
            };
            problem.with_help(help)
        })
        .collect();
    if problems.is_empty() { Ok(policy) } else { Err(problems) }
}

/// Returns the only document of a file, a map with the fields of the header. The values of these fields are checked
/// later. An empty file is an error, and not a file with only defaults: the file may have been truncated, or may not be
/// completely written yet.
fn document(source: &Arc<Source>, kind: &str) -> Result<yaml::Node, Problem> {
    let expected_header = [("apiVersion", API_VERSION), ("kind", kind)];
    let mut documents = yaml::documents(&source.text).map_err(|fault| Problem::syntax(source, fault))?;
    if let Some(second) = documents.get(1) {
        return Err(Problem::at(source, second.span.clone(), "there is a second document; expected one"));
    }
    let header = expected_header.map(|(key, value)| format!("{key}: {value}")).join(", ");
    let Some(document) = documents.pop() else {
        let expected = format!("the file has no content; expected a map that begins with {header}");
        return Err(Problem::whole(source.name.as_str(), expected));
    };
    let yaml::Content::Mapping(_) = document.content else {
        let expected = format!("expected a map that begins with {header}");
        return Err(Problem::at(source, document.span, expected));
    };
    match expected_header.into_iter().find(|(key, _)| document.get(key).is_none()) {
        Some((key, _)) => Err(Problem::at(source, document.span, format!("the field `{key}` is missing"))
            .with_help(format!("begin the file with {header}"))),
        None => Ok(document),
    }
}

/// Returns the errors in a policy whose values have valid types.
fn mistakes<P: PolicyFile>(policy: &P) -> Vec<PolicyError> {
    let tree = policy.to_value();
    let mut mistakes = policy.invalid_values();
    for setting in P::settings() {
        if let Some(message) = setting.out_of_range(&tree) {
            let help = format!("{} The default is {}", setting.meaning, plain(&setting.default));
            mistakes.push(PolicyError { path: &setting.path, message, help: Some(help) });
        }
    }
    // Contradictions are reported only if all values are valid.
    if mistakes.is_empty() { policy.contradictions() } else { mistakes }
}

impl Overrides {
    /// Returns the flag that sets this key. `None` if no flag sets it, or if the flag was not given.
    fn flag(&self, path: &str) -> Option<&'static str> {
        let Self { log_level, trace_ratio, drain_minimum, drain_deadline } = self;
        match path {
            "logs.level" => log_level.as_ref().map(|_| "--log-level"),
            "traces.ratio" => trace_ratio.map(|_| "--trace-ratio"),
            "connections.drainMinimum" => drain_minimum.map(|_| "--drain-minimum"),
            "connections.drainDeadline" => drain_deadline.map(|_| "--drain-deadline"),
            _ => None,
        }
    }
}
