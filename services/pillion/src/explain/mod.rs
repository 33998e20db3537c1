//! `pillion explain`: explains why a pod has or lacks the parts that its profiles add. The facts come from a cluster,
//! from files, or from a saved review. This module contains the arguments, and prints the explanation.
//!
//! * [`facts`]: the object to explain, the facts about it, and the changes that its injection record lists.
//! * [`gather`]: gathers the facts from a cluster or from files.
//! * [`judge`]: a pure function from facts to an [`Explanation`]. [`mod@webhooks`], [`mod@profiles`], [`sidecar`] and
//!   [`past`] are parts of this function.

pub(crate) mod facts;
mod gather;
pub(crate) mod judge;
mod past;
pub(crate) mod profiles;
pub(crate) mod sidecar;
pub(crate) mod webhooks;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pillion_control::Release;
use pillion_engine::profile::CompiledProfile;
use serde_json::{Value, json};

use self::facts::{ChangeKind, Target};
use self::gather::{Asked, Cluster, OfflineInputs, PodLookupCache};
pub(crate) use self::gather::{expand_lists, opted_in};
use self::judge::Verdict;
pub(crate) use self::judge::{DecisionView, Explanation, view};
use self::webhooks::{CallOutcome, EntryView};
use crate::args::ClusterArgs;
use crate::args::block_on;
use crate::config::{ConfigArg, Overrides, WebhookPolicy};
use crate::exit::Exit;
use crate::finding::{self, Finding};
use crate::load::LoadError;
use crate::output::{self, Form};

/// Arguments of `pillion explain`.
#[derive(Clone, Debug, Args)]
#[expect(clippy::doc_markdown, reason = "the text is shown in a terminal as it is")]
pub(crate) struct ExplainArgs {
    /// The object in the cluster: a pod's name, or KIND/NAME, as in deployment/web or namespace/shop.
    #[arg(value_name = "OBJECT", num_args = 1..=2, required_unless_present_any = ["file", "review"], conflicts_with_all = ["file", "review"])]
    object: Vec<String>,
    /// The namespace. Default: that of the object in the file, else that of the kubeconfig, else "default".
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// A manifest with pods or workloads to explain offline; "-" for standard input. Needs --profile.
    #[arg(short, long = "filename", value_name = "FILE", requires = "profiles", conflicts_with = "review")]
    file: Option<PathBuf>,
    /// A saved AdmissionReview to explain; "-" for standard input. Offline with --profile, else in the cluster.
    #[arg(long, value_name = "FILE")]
    review: Option<PathBuf>,
    /// Use profiles from files instead of the cluster's profiles: a file, or a folder of files. May be given several
    /// times.
    #[arg(short, long = "profile", value_name = "PATH")]
    profiles: Vec<PathBuf>,
    /// Offline: the Namespace object, whose labels and annotations are used. Default: an opted-in namespace.
    #[arg(long, value_name = "FILE", requires = "profiles")]
    namespace_file: Option<PathBuf>,
    /// Offline: the MutatingWebhookConfigurations. Default: the configuration of a release with default settings.
    #[arg(long, value_name = "FILE", requires = "profiles")]
    webhooks_file: Option<PathBuf>,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORMAT")]
    output: Form,
    #[command(flatten)]
    config: ConfigArg,
    #[command(flatten)]
    at: ClusterArgs,
}

/// Explains the pods and workloads among `objects` without a cluster. All of them are in one namespace. The lookups of
/// profiles are resolved from `known`.
///
/// # Errors
/// The policy has too many cluster facts, or they nest too deeply.
pub(crate) fn of_objects(
    objects: &[Value],
    known: &[Value],
    profiles: impl IntoIterator<Item = Arc<CompiledProfile>>,
    namespace: ObjectMeta,
    policy: &WebhookPolicy,
    release: &Release,
) -> anyhow::Result<impl Iterator<Item = Explanation>> {
    let facts = gather::around(profiles, namespace, None, policy, release)?;
    let questions = gather::questions(objects, &facts.namespace.name);
    Ok(questions.into_iter().map(move |mut question| {
        gather::complete(&mut question, &facts, known);
        judge::judge(&facts, &question)
    }))
}

/// The result of the command.
enum Answer {
    /// The explanations, and a finding if not all pods were checked.
    Explained(Vec<Explanation>, Option<Finding>),
    NotThere(Finding),
    /// The given profiles are invalid; the problems have been printed.
    InvalidProfiles,
}

/// Explains an object. Returns [`Exit::Success`] if the object exists, all verdicts are good ([`Verdict::is_good`]),
/// and no finding is an error or a warning. Returns [`Exit::Failure`] if the given profiles are invalid, and otherwise
/// [`Exit::Findings`].
pub(crate) fn run(args: ExplainArgs) -> anyhow::Result<Exit> {
    let output = args.output;
    let (explanations, others) = match block_on(answer(args))? {
        Answer::Explained(explanations, more) => (explanations, Vec::from_iter(more)),
        Answer::NotThere(finding) => (Vec::new(), vec![finding]),
        Answer::InvalidProfiles => return Ok(Exit::Failure),
    };
    let findings = all_findings(&explanations, others);
    let text = || if explanations.is_empty() { finding::lines(&findings) } else { text(&explanations, &findings) };
    output.print(|| Ok(text()), || document(&explanations, &findings))?;
    let is_good = !explanations.is_empty() && explanations.iter().all(|one| one.verdict.is_good());
    Ok(Exit::findings(!(is_good && finding::needs_no_action(&findings))))
}

/// Returns the findings of all explanations. The first explanation may be about a workload or a namespace; its findings
/// are not repeated for each of its pods.
fn all_findings(explanations: &[Explanation], others: Vec<Finding>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    let mut of_first = 0;
    for (index, explanation) in explanations.iter().enumerate() {
        let is_same = |one: &Finding, other: &Finding| {
            (one.code, &one.profile, &one.message) == (other.code, &other.profile, &other.message)
        };
        let known = findings.get(..of_first).unwrap_or_default();
        let new = explanation.findings.iter().filter(|one| !known.iter().any(|other| is_same(one, other)));
        let new: Vec<_> = new.cloned().collect();
        findings.extend(new);
        if index == 0 {
            of_first = findings.len();
        }
    }
    findings.extend(others);
    finding::sorted(findings)
}

/// Returns the machine-readable output: the first object, the other objects in the field `pods`, and all findings in
/// one list.
fn document(explanations: &[Explanation], findings: &[Finding]) -> anyhow::Result<Value> {
    let mut document = match explanations.first() {
        Some(first) => serde_json::to_value(first)?,
        None => json!({}),
    };
    if let Some(fields) = document.as_object_mut() {
        let mut pods: Vec<Value> = Vec::new();
        for pod in explanations.iter().skip(1) {
            let mut pod = serde_json::to_value(pod)?;
            if let Some(fields) = pod.as_object_mut() {
                fields.remove("findings");
            }
            pods.push(pod);
        }
        fields.insert("pods".to_owned(), Value::Array(pods));
        fields.insert("findings".to_owned(), serde_json::to_value(findings)?);
    }
    Ok(document)
}

async fn answer(args: ExplainArgs) -> anyhow::Result<Answer> {
    if args.profiles.is_empty() { in_cluster(args).await } else { offline(&args) }
}

/// Reads a saved review.
fn saved(file: &Path) -> anyhow::Result<Value> {
    let mut objects = gather::objects(file)?;
    let Some(review) = objects.pop().filter(|review| review.get("request").is_some_and(Value::is_object)) else {
        bail!("{} is not an AdmissionReview: it has no request", file.display());
    };
    Ok(review)
}

async fn in_cluster(args: ExplainArgs) -> anyhow::Result<Answer> {
    let ExplainArgs { object, namespace, review, config, at, .. } = args;
    let policy = match config.config {
        Some(_) => Some(config.required::<WebhookPolicy>(&Overrides::default())?),
        None => None,
    };
    // Invalid arguments are reported before connecting to the cluster.
    let target = if review.is_none() { Some(Target::parse(&object)?) } else { None };
    let (client, release) = at.connect().await?;
    let default = client.default_namespace().to_owned();
    let cluster = Cluster::new(client, release, policy);
    if let Some(file) = review {
        let mut question = facts::of_review(saved(&file)?);
        let namespace = question.object.namespace.clone().or(namespace).unwrap_or(default);
        let facts = cluster.facts(&namespace).await;
        cluster.complete(&mut question, &facts, &mut PodLookupCache::default()).await;
        return Ok(Answer::Explained(vec![judge::judge(&facts, &question)], None));
    }
    let target = target.context("specify an object to explain")?;
    let namespace = if target.kind.kind == "Namespace" { target.name.clone() } else { namespace.unwrap_or(default) };
    let facts = cluster.facts(&namespace).await;
    Ok(match cluster.questions(&target, &facts).await? {
        Asked::Questions(questions, more) => {
            Answer::Explained(questions.iter().map(|question| judge::judge(&facts, question)).collect(), more)
        }
        Asked::NotThere(finding) => Answer::NotThere(finding),
    })
}

fn offline(args: &ExplainArgs) -> anyhow::Result<Answer> {
    let policy = args.config.required::<WebhookPolicy>(&Overrides::default())?;
    let release = args.at.release()?;
    if !args.object.is_empty() {
        bail!(
            "with --profile, pass the object as a file with -f: an object of the cluster is explained with the cluster's profiles"
        );
    }
    let (objects, mut questions) = match (&args.file, &args.review) {
        (Some(file), _) => {
            let objects = gather::objects(file)?;
            let namespace = gather::namespace_of(&objects, args.namespace.as_deref())?;
            let questions = gather::questions(&objects, &namespace);
            if questions.is_empty() {
                bail!("{} contains no pod and no workload", file.display());
            }
            (objects, questions)
        }
        (None, Some(file)) => (Vec::new(), vec![facts::of_review(saved(file)?)]),
        (None, None) => bail!("pass an object to explain with -f or --review"),
    };
    let namespace = questions.first().and_then(|question| question.object.namespace.clone());
    let namespace =
        namespace.or_else(|| args.namespace.clone()).context("the object has no namespace; pass one with -n")?;
    let inputs = OfflineInputs {
        profiles: &args.profiles,
        namespace_file: args.namespace_file.as_deref(),
        webhooks_file: args.webhooks_file.as_deref(),
        policy: &policy,
        release: &release,
        namespace: &namespace,
    };
    let facts = match gather::offline_facts(&inputs) {
        Ok(facts) => facts,
        Err(LoadError::Problems(problems)) => {
            output::problems(&problems)?;
            return Ok(Answer::InvalidProfiles);
        }
        Err(LoadError::Other(error)) => return Err(error),
    };
    for question in &mut questions {
        gather::complete(question, &facts, &objects);
    }
    Ok(Answer::Explained(questions.iter().map(|question| judge::judge(&facts, question)).collect(), None))
}

const BOLD: &str = "\u{1b}[1m";
const DIM: &str = "\u{1b}[2m";
const RED: &str = "\u{1b}[31m";
const GREEN: &str = "\u{1b}[32m";
const YELLOW: &str = "\u{1b}[33m";
const RESET: &str = "\u{1b}[0m";

/// The maximum number of characters of a value that are printed.
const SHOWN: usize = 60;

/// Formats the explanations: the first object in full, the other objects, such as its pods, in one line each, then the
/// findings.
fn text(explanations: &[Explanation], findings: &[Finding]) -> String {
    let mut text = String::new();
    // Writing to a string never fails.
    for (index, explanation) in explanations.iter().enumerate() {
        let colour = if explanation.verdict.is_good() { GREEN } else { RED };
        let words = explanation.verdict.words();
        let _ = writeln!(text, "{BOLD}{}{RESET}: {colour}{words}{RESET}", explanation.object);
        if index == 0 {
            webhooks(&mut text, explanation);
            profiles(&mut text, explanation);
            changes(&mut text, explanation);
        }
    }
    if !findings.is_empty() {
        let _ = writeln!(text);
        text += &finding::lines(findings);
    }
    text
}

fn webhooks(text: &mut String, explanation: &Explanation) {
    if explanation.webhooks.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{BOLD}Webhook entries for pods{RESET}");
    let is_called = explanation.webhooks.iter().any(|entry| entry.ours && entry.outcome == CallOutcome::Called);
    // If one of Pillion's entries is called, its entries for other failure modes are irrelevant.
    let is_shown = |entry: &&EntryView| !(entry.ours && is_called && entry.outcome == CallOutcome::NamespaceSelector);
    for entry in explanation.webhooks.iter().filter(is_shown) {
        let (colour, what) = match entry.outcome {
            CallOutcome::Called => (GREEN, "called".to_owned()),
            CallOutcome::Unknown => (YELLOW, format!("unknown: {}", entry.detail)),
            _ => (DIM, format!("not called: {}", entry.detail)),
        };
        let _ = writeln!(text, "  {} {DIM}({}){RESET}  {colour}{what}{RESET}", entry.name, entry.configuration);
    }
}

fn profiles(text: &mut String, explanation: &Explanation) {
    let decision = &explanation.decision;
    // The decision is for a pod that would be created now, which may differ from the stored pod.
    let about = match explanation.verdict {
        Verdict::OptedIn | Verdict::NotOptedIn => "for a pod that requests no profile, ",
        Verdict::NotInjected | Verdict::PartlyInjected => "if the pod were created now, ",
        _ => "",
    };
    let _ = writeln!(text, "\n{BOLD}Profiles{RESET}  {DIM}{about}{}: {}{RESET}", decision.outcome, decision.message);
    for profile in &explanation.profiles {
        let colour = match profile.outcome {
            "applied" | "unchanged" => GREEN,
            "skipped" | "denied" | "not_served" => RED,
            _ => DIM,
        };
        let outcome = profile.outcome.replace('_', " ");
        let revision = if profile.revision.is_empty() { String::new() } else { format!("@{}", profile.revision) };
        let _ = write!(text, "  {}{DIM}{revision}{RESET}  {colour}{outcome}{RESET}", profile.profile);
        let _ = match profile.outcome {
            "applied" | "unchanged" => writeln!(text),
            _ => writeln!(text, ", {}", profile.message),
        };
        for parameter in &profile.parameters {
            let value = match &parameter.error {
                Some(error) => format!("{RED}{error}{RESET}"),
                None => shortened(&parameter.value.to_string()),
            };
            let _ = writeln!(text, "    {} = {value}  {DIM}{}{RESET}", parameter.name, parameter.describe_sources());
        }
    }
    for notice in &decision.notices {
        let _ = writeln!(text, "  {YELLOW}warning{RESET}: {notice}");
    }
}

fn changes(text: &mut String, explanation: &Explanation) {
    if !explanation.changes.is_empty() {
        let _ = writeln!(text, "\n{BOLD}Changes by Pillion{RESET}");
    }
    for change in &explanation.changes {
        let sign = match change.what {
            ChangeKind::Added => "+",
            ChangeKind::Replaced => "~",
            ChangeKind::Removed => "-",
        };
        let gone = if change.present { String::new() } else { format!("  {RED}missing now{RESET}") };
        let revision = change.revision.as_deref().unwrap_or_default();
        let _ = writeln!(text, "  {sign} {}  {DIM}{}@{revision}{RESET}{gone}", change.path, change.by);
    }
    if !explanation.managers.is_empty() {
        let managers: Vec<_> =
            explanation.managers.iter().map(|one| format!("{} ({})", one.manager, one.time)).collect();
        let _ = writeln!(text, "\n{BOLD}Written by{RESET}  {}", managers.join(", "));
    }
}

fn shortened(value: &str) -> String {
    match value.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", value.get(..end).unwrap_or(value)),
        None => value.to_owned(),
    }
}

#[cfg(test)]
mod tests;
