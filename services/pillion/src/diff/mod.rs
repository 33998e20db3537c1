//! `pillion diff`: shows how changed profiles or manifests would change pods.
//!
//! * [`cluster`]: compares running pods, workload by workload. It writes nothing to the cluster.
//! * [`manifests`]: compares the pods of manifests.
//! * [`text`]: prints the result for users and as JSON.
//! * [`markdown`]: prints the result for comments in pull requests.
//! * [`sarif`]: prints the result for code scanning.
//!
//! Both comparisons render the old and the new state of a pod with the same engine, so changes by the API server or by
//! other webhooks do not appear as differences.

pub(crate) mod cluster;
mod manifests;
mod markdown;
mod sarif;
mod text;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};
use pillion_api::names::INJECTED_ANNOTATION;
use pillion_engine::decision::{Decision, Outcome};
use serde_json::Value;

use crate::args;
use crate::args::{ClusterArgs, NamespaceArgs};
use crate::config::ConfigArg;
use crate::exit::Exit;
use crate::load::LoadError;
use crate::output;

/// The help of `--namespace`. Unlike in other commands, the flag also applies to manifests.
const NAMESPACE_HELP: &str = "The namespace of the pods. Default: that of the kubeconfig's context, else \"default\". For \
                              manifests: the namespace of objects that do not set one.";

/// Arguments of `pillion diff`.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("old").args(["against", "against_files"]).multiple(true)))]
#[command(mut_arg("namespace", |argument| argument.help(NAMESPACE_HELP).long_help(NAMESPACE_HELP)))]
pub(crate) struct DiffArgs {
    /// The changed profiles: files, and folders of files. May be given several times.
    #[arg(short, long = "profile", value_name = "PATH", required = true)]
    profiles: Vec<PathBuf>,
    /// Manifests to compare instead of running pods: files, folders, and "-" for standard input. May be given several
    /// times.
    #[arg(short, long = "filename", value_name = "FILE", requires = "old")]
    files: Vec<PathBuf>,
    /// The old profiles, if manifests are compared. An empty folder stands for no profiles. Default: the profiles of
    /// --profile. May be given several times.
    #[arg(long, value_name = "PATH", requires = "files")]
    against: Vec<PathBuf>,
    /// The old manifests: files, folders, and "-" for standard input. Default: the manifests of --filename. May be given
    /// several times.
    #[arg(long = "against-filename", value_name = "FILE", requires = "files")]
    against_files: Vec<PathBuf>,
    #[command(flatten)]
    namespaces: NamespaceArgs,
    /// Compare only pods with these labels, as in app=web,tier!=cache.
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "files")]
    selector: Option<String>,
    /// Namespace objects, whose labels and annotations are used for manifests.
    #[arg(long, value_name = "FILE", requires = "files")]
    namespace_file: Option<PathBuf>,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = DiffForm::Text, value_name = "FORMAT")]
    output: DiffForm,
    #[command(flatten)]
    config: ConfigArg,
    #[command(flatten)]
    at: ClusterArgs,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DiffForm {
    /// Human-readable text.
    Text,
    /// One JSON object.
    Json,
    /// One object, as YAML.
    Yaml,
    /// Markdown for a comment in a pull request, at most 60,000 bytes.
    Markdown,
    /// SARIF 2.1.0 for code scanning, with one result for each workload that differs.
    Sarif,
}

/// Prints the differences.
pub(crate) fn run(args: DiffArgs) -> anyhow::Result<Exit> {
    let output = args.output;
    // The location of a result without a file: the changed manifests or, if they have no path, the changed profiles.
    let paths = args.files.iter().chain(&args.profiles);
    let fallback = paths.map(|path| path.display().to_string()).find(|path| path != "-").unwrap_or_default();
    let compared = if args.files.is_empty() {
        args::block_on(async { Ok(cluster::compare(args).await) })?
    } else {
        manifests::compare(&args)
    };
    let compared = match compared {
        Ok(compared) => compared,
        Err(LoadError::Problems(problems)) => {
            output::problems(&problems)?;
            return Ok(Exit::Failure);
        }
        Err(LoadError::Other(error)) => return Err(error),
    };
    match output {
        DiffForm::Text => {
            output::show(&text::workloads(&compared)?)?;
            output::report(&text::summary(&compared))?;
        }
        DiffForm::Json => output::print(&output::json(&text::value(&compared)?)?)?,
        DiffForm::Yaml => output::print(&output::yaml(&text::value(&compared)?)?)?,
        DiffForm::Markdown => output::show(&markdown::report(&compared)?)?,
        DiffForm::Sarif => output::print(&output::json(&sarif::log(&compared, &fallback))?)?,
    }
    Ok(Exit::findings(compared.iter().any(Compared::differs)))
}

/// A pod of a workload, with the engine's results in the old and in the new state.
#[derive(Clone, Debug)]
struct Compared {
    /// The workload: `Deployment shop/web`.
    name: String,
    /// The number of the workload's pods; 1 for a workload in a manifest.
    pods: usize,
    /// The result in the old state. `None` if the workload is only in the new one.
    before: Option<Rendered>,
    /// The result in the new state. `None` if the workload is only in the old one.
    after: Option<Rendered>,
    /// The position of the workload in the new manifests. `None` if the manifests do not contain it, or are read from
    /// standard input, and for running pods.
    at: Option<Position>,
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Position {
    file: String,
    /// The number of the line, from 1.
    line: usize,
}

/// How a workload differs between the two states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Same,
    Added,
    Removed,
    Changed,
    /// The pods would be rejected, and were not before.
    Rejected,
    /// The pods would no longer be rejected.
    Admitted,
}

impl Change {
    /// Returns the human-readable form.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Changed => "changed",
            Self::Rejected => "would be rejected",
            Self::Admitted => "would no longer be rejected",
        }
    }
}

/// The engine's result for a pod.
#[derive(Clone, Debug, PartialEq)]
struct Rendered {
    /// The pod, without the record and server-side metadata. `None` if it is rejected.
    pod: Option<Value>,
    /// The human-readable result for each considered profile. If the pod is rejected and no profile was considered, the
    /// key `(all)` has the reason.
    profiles: BTreeMap<String, String>,
}

impl Rendered {
    /// Converts a decision and its patched pod.
    fn new(decision: &Decision, mut pod: Value) -> Self {
        if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
            for key in ["managedFields", "uid", "resourceVersion", "creationTimestamp", "generation", "selfLink"] {
                metadata.shift_remove(key);
            }
            if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
                annotations.shift_remove(INJECTED_ANNOTATION);
                if annotations.is_empty() {
                    metadata.shift_remove("annotations");
                }
            }
        }
        let profiles = decision.profiles.iter().map(|profile| {
            let detail = profile.detail.as_deref().map(|detail| format!(": {detail}")).unwrap_or_default();
            let result =
                format!("{} ({}{detail})", profile.outcome.as_str().replace('_', " "), profile.reason.sentence());
            (profile.profile.display_name().to_owned(), result)
        });
        let mut profiles: BTreeMap<_, _> = profiles.collect();
        let is_denied = decision.outcome == Outcome::Denied;
        if is_denied && profiles.is_empty() {
            profiles.insert("(all)".to_owned(), decision.denial_message());
        }
        Self { pod: (!is_denied).then_some(pod), profiles }
    }
}

impl Compared {
    /// Whether the pod or the result of a profile differs.
    fn differs(&self) -> bool {
        self.before != self.after
    }

    fn change(&self) -> Change {
        match (&self.before, &self.after) {
            (before, after) if before == after => Change::Same,
            (_, None) => Change::Removed,
            (None, Some(after)) if after.pod.is_some() => Change::Added,
            (Some(Rendered { pod: Some(_), .. }) | None, Some(Rendered { pod: None, .. })) => Change::Rejected,
            (Some(Rendered { pod: None, .. }), Some(Rendered { pod: Some(_), .. })) => Change::Admitted,
            _ => Change::Changed,
        }
    }
}
