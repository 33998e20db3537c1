//! `pillion inject`: injects into the pods of manifests on the local machine, with the webhook's engine.
//!
//! * [`objects`]: finds pods in manifests, and prints changed manifests.
//! * [`simulated_cluster`]: computes decisions for pods, with profiles and objects from files instead of a cluster.

pub(crate) mod objects;
pub(crate) mod simulated_cluster;

use std::fmt::Write;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use pillion_engine::decision::{Decision, Outcome, ProfileDecision, ProfileOutcome};
use serde_json::Value;

use self::objects::{Changed, Output};
use self::simulated_cluster::{KnownObjects, SimulatedCluster};
use crate::config::ConfigArg;
use crate::exit::Exit;
use crate::load::{LoadError, Problem, Source, typed, yaml};
use crate::output;

/// Arguments of `pillion inject`.
#[derive(Clone, Debug, Args)]
pub(crate) struct InjectArgs {
    /// Manifests, "-" for standard input. Pods, workloads with a pod template and Lists are injected. All other objects
    /// are printed unchanged, and used for lookups of service accounts and owners. May be given several times.
    #[arg(short, long = "filename", value_name = "FILE", required_unless_present = "review")]
    files: Vec<PathBuf>,
    /// Profiles: a file, or a folder of files. May be given several times.
    #[arg(short, long = "profile", value_name = "PATH", required = true)]
    profiles: Vec<PathBuf>,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = Output::Yaml, value_name = "FORMAT", conflicts_with = "review")]
    output: Output,
    /// The namespace of objects that do not set one. Default: the only namespace of --namespace-file, else "default".
    #[arg(short, long, value_name = "NAME", conflicts_with = "review")]
    namespace: Option<String>,
    /// Namespace objects, whose labels and annotations are used. All other namespaces are treated as
    /// opted in with pillion.dev/injection=enabled.
    #[arg(long, value_name = "FILE")]
    namespace_file: Option<PathBuf>,
    /// Answer a saved AdmissionReview instead, as the webhook would; "-" for standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    review: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArg,
    /// Do not print the decisions.
    #[arg(short, long)]
    quiet: bool,
}

/// Injects into manifests, or answers a review. After an error, or if a pod of the manifests is rejected, prints
/// nothing on standard output. So `pillion inject | kubectl apply -f -` never applies only some of the objects.
pub(crate) fn run(args: InjectArgs) -> anyhow::Result<Exit> {
    let InjectArgs { files, profiles, output, namespace, namespace_file, review, config, quiet } = args;
    let simulated =
        match SimulatedCluster::configured(&profiles, namespace_file.as_deref(), namespace.as_deref(), &config) {
            Ok(simulated) => simulated,
            Err(LoadError::Problems(problems)) => return wrong(&problems),
            Err(LoadError::Other(error)) => return Err(error),
        };
    if let Some(file) = review {
        return answer(&file, &simulated, quiet);
    }
    match documents(&files) {
        Ok(documents) => inject(documents, &simulated, output, quiet),
        Err(problems) => wrong(&problems),
    }
}

fn wrong(problems: &[Problem]) -> anyhow::Result<Exit> {
    output::problems(problems)?;
    Ok(Exit::Findings)
}

fn inject(documents: Vec<Value>, simulated: &SimulatedCluster, output: Output, quiet: bool) -> anyhow::Result<Exit> {
    let known = KnownObjects::new(&documents, simulated.default_namespace());
    let mut changed = Vec::with_capacity(documents.len());
    let mut denied = false;
    for before in documents {
        let mut after = before.clone();
        let document = &mut after;
        let mut patch = Vec::new();
        for place in objects::pods(document) {
            let name = place.describe(simulated.default_namespace());
            let decided =
                simulated_cluster::decide(document, &place, simulated, &known).with_context(|| name.clone())?;
            denied |= decided.decision.outcome == Outcome::Denied;
            if !quiet || decided.decision.outcome == Outcome::Denied {
                output::report(&lines(&name, &decided.decision))?;
            }
            patch.extend(objects::apply(document, &place, decided.patch.as_deref()).with_context(|| name)?);
        }
        changed.push(Changed { before, after, patch });
    }
    if denied {
        return Ok(Exit::Findings);
    }
    objects::print(changed, output, "injected", simulated.default_namespace())?;
    Ok(Exit::Success)
}

fn answer(file: &Path, simulated: &SimulatedCluster, quiet: bool) -> anyhow::Result<Exit> {
    let source = match read(file) {
        Ok(source) => source,
        Err(problem) => return wrong(&[problem]),
    };
    let (response, decided) = match simulated_cluster::answer(source.text.as_bytes(), simulated) {
        Ok(answer) => answer,
        Err(error) => return wrong(&[Problem::whole(source.name.as_str(), format!("{error:#}"))]),
    };
    if !quiet {
        output::report(&lines(&source.name, &decided.decision))?;
    }
    output::print(&format!("{}\n", response.trim_end()))?;
    Ok(Exit::findings(decided.decision.outcome == Outcome::Denied))
}

/// Reads a file, or standard input for "-".
pub(crate) fn read(file: &Path) -> Result<Arc<Source>, Problem> {
    let (name, text) = if file.as_os_str() == "-" {
        let mut text = String::new();
        ("<stdin>".to_owned(), io::stdin().read_to_string(&mut text).map(|_| text))
    } else {
        (file.display().to_string(), fs::read_to_string(file))
    };
    match text {
        Ok(text) => Ok(Arc::new(Source::new(name, text))),
        Err(error) => Err(Problem::whole(name, format!("cannot be read: {error}"))),
    }
}

/// Returns the documents of all files.
///
/// # Errors
/// The problems of the files.
pub(crate) fn documents(files: &[PathBuf]) -> Result<Vec<Value>, Vec<Problem>> {
    let mut documents = Vec::new();
    let mut problems = Vec::new();
    for file in files {
        match read(file).and_then(|source| manifests(&source)) {
            Ok(more) => documents.extend(more),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() { Ok(documents) } else { Err(problems) }
}

/// Returns the documents of a manifest. Returns an error if the manifest is not YAML, or if a document has no kind.
pub(crate) fn manifests(source: &Arc<Source>) -> Result<Vec<Value>, Problem> {
    Ok(nodes(source)?.iter().map(yaml::Node::to_value).collect())
}

/// Like [`manifests`], but returns the documents with their positions.
pub(crate) fn nodes(source: &Arc<Source>) -> Result<Vec<yaml::Node>, Problem> {
    let documents = yaml::documents(&source.text).map_err(|fault| Problem::syntax(source, fault))?;
    for document in &documents {
        let (at, what) = match document.entry("kind") {
            Some(_) if document.text("kind").is_some() => continue,
            Some(entry) => (&entry.value, format!("kind must be a string, found {}", typed::type_of(&entry.value))),
            None => (document, "this is not a Kubernetes object: it has no kind".to_owned()),
        };
        return Err(Problem::at(source, at.span.clone(), what));
    }
    Ok(documents)
}

/// Formats one line for the object, one for each considered profile, and one for each notice.
fn lines(name: &str, decision: &Decision) -> String {
    let mut text = format!("{name}: {}", decision.outcome.as_str());
    if decision.outcome != Outcome::Injected {
        let _ = write!(text, ", {}", sentence(decision.reason.sentence(), decision.detail.as_deref()));
    }
    for profile in &decision.profiles {
        let _ = write!(text, "\n  {}", profile_line(profile));
    }
    for notice in &decision.notices {
        let _ = write!(text, "\n  warning: {notice}");
    }
    text
}

fn profile_line(decision: &ProfileDecision) -> String {
    let name = decision.profile.name();
    match decision.outcome {
        ProfileOutcome::Applied => format!("{name}: applied"),
        ProfileOutcome::Unchanged => format!("{name}: unchanged"),
        ProfileOutcome::Validated => format!("{name}: its validations were evaluated"),
        ProfileOutcome::NotMatched | ProfileOutcome::Skipped | ProfileOutcome::Denied => {
            let outcome = decision.outcome.as_str().replace('_', " ");
            format!("{name}: {outcome}, {}", sentence(decision.reason.sentence(), decision.detail.as_deref()))
        }
    }
}

fn sentence(reason: &str, detail: Option<&str>) -> String {
    detail.map_or_else(|| reason.to_owned(), |detail| format!("{reason}: {detail}"))
}
