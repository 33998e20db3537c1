//! `pillion explain`: explains why a pod has, or lacks, what its profiles add; from a cluster, from files, or from a
//! saved review.
//!
//! * [`subject`]: the object in question.
//! * [`facts`]: the facts for an explanation; [`cluster`] and [`files`] gather them.
//! * [`judge`]: a pure function from facts to an [`Explanation`]; [`webhooks`], [`calling`], [`profiles`], [`past`] and
//!   [`changes`] are parts of it.
//! * [`render`]: prints the explanation for people.

pub(crate) mod calling;
pub(crate) mod changes;
mod cluster;
mod facts;
mod files;
mod judge;
mod past;
pub(crate) mod profiles;
mod render;
mod subject;
pub(crate) mod webhooks;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pillion_control::Release;
use pillion_engine::profile::CompiledProfile;
use serde_json::{Value, json};

use self::cluster::{Asked, Cluster, Known};
use self::files::Given;
pub(crate) use self::files::{opted_in, taken_apart};
pub(crate) use self::judge::{DecisionView, Explanation, view};
use self::subject::Target;
use crate::args::ClusterArgs;
use crate::args::block_on;
use crate::config::{ConfigArg, Overrides, WebhookPolicy};
use crate::finding::{self, Finding};
use crate::output::{self, Form};

/// The exit code if the question could not be answered.
pub(crate) const NOT_ANSWERED: u8 = 2;

/// Arguments of `pillion explain`.
#[derive(Clone, Debug, Args)]
#[expect(clippy::doc_markdown, reason = "the text is shown in a terminal as it is")]
pub(crate) struct ExplainArgs {
    /// What is asked about, in the cluster: a pod's name, or KIND/NAME, as in deployment/web or namespace/shop.
    #[arg(value_name = "OBJECT", num_args = 1..=2, required_unless_present_any = ["file", "review"], conflicts_with_all = ["file", "review"])]
    object: Vec<String>,
    /// The namespace. Default: that of the object in the file, else that of the kubeconfig, else "default".
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// A manifest with pods or workloads instead, offline; "-" for standard input. Needs --profile.
    #[arg(short, long = "filename", value_name = "FILE", requires = "profiles", conflicts_with = "review")]
    file: Option<PathBuf>,
    /// A saved AdmissionReview instead; "-" for standard input. With --profile offline, else in the cluster.
    #[arg(long, value_name = "FILE")]
    review: Option<PathBuf>,
    /// Profiles from files, in place of the cluster's: a file, or a folder of files. May be given several times.
    #[arg(short, long = "profile", value_name = "PATH")]
    profiles: Vec<PathBuf>,
    /// Offline: the Namespace, whose labels and annotations count. Default: one that is opted in.
    #[arg(long, value_name = "FILE", requires = "profiles")]
    namespace_file: Option<PathBuf>,
    /// Offline: the MutatingWebhookConfigurations. Default: that of a release with the defaults.
    #[arg(long, value_name = "FILE", requires = "profiles")]
    webhooks_file: Option<PathBuf>,
    /// How the answer is printed.
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORMAT")]
    output: Form,
    #[command(flatten)]
    config: ConfigArg,
    #[command(flatten)]
    at: ClusterArgs,
}

/// Explains the pods and workloads among these objects with these profiles, offline. All objects are in one namespace.
///
/// # Errors
/// The policy's cluster facts nest too deeply.
pub(crate) fn of_objects(
    objects: &[Value],
    known: &[Value],
    profiles: impl IntoIterator<Item = Arc<CompiledProfile>>,
    namespace: ObjectMeta,
    policy: &WebhookPolicy,
    release: &Release,
) -> anyhow::Result<impl Iterator<Item = Explanation>> {
    let facts = files::around(profiles, namespace, None, policy, release)?;
    let questions = files::questions(objects, &facts.namespace.name);
    Ok(questions.into_iter().map(move |mut question| {
        files::complete(&mut question, &facts, known);
        judge::judge(&facts, &question)
    }))
}

/// The result of the command.
enum Answer {
    /// The explanations, and a finding if not all pods were checked.
    Explained(Vec<Explanation>, Option<Finding>),
    NotThere(Finding),
    /// The given profiles are invalid; the problems have been printed.
    Wrong,
}

/// Explains an object. Exit code 0: it is as its profiles say; 1: it is not; 2: the question could not be answered.
pub(crate) fn run(args: ExplainArgs) -> anyhow::Result<ExitCode> {
    let output = args.output;
    let answer = match block_on(answer(args)) {
        Ok(answer) => answer,
        Err(error) => {
            output::error(&error)?;
            return Ok(ExitCode::from(NOT_ANSWERED));
        }
    };
    let (explanations, others) = match answer {
        Answer::Explained(explanations, more) => (explanations, more.into_iter().collect()),
        Answer::NotThere(finding) => (Vec::new(), vec![finding]),
        Answer::Wrong => return Ok(ExitCode::from(NOT_ANSWERED)),
    };
    let found = explanations.iter().flat_map(|one| one.findings.iter().cloned()).chain(others);
    let findings = finding::sorted(found.collect());
    let text =
        || if explanations.is_empty() { finding::lines(&findings) } else { render::text(&explanations, &findings) };
    output.print(|| Ok(text()), || document(&explanations, &findings))?;
    let is_good = !explanations.is_empty() && explanations.iter().all(|one| one.verdict.is_good());
    Ok(if is_good && finding::is_well(&findings) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the output for programs: the object, its pods, and all findings in one list.
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
    let mut objects = files::objects(file)?;
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
        let mut question = subject::of_review(saved(&file)?);
        let namespace = question.object.namespace.clone().or(namespace).unwrap_or(default);
        let facts = cluster.surroundings(&namespace).await;
        cluster.complete(&mut question, &facts, &mut Known::default()).await;
        return Ok(Answer::Explained(vec![judge::judge(&facts, &question)], None));
    }
    let target = target.context("say what is to be explained")?;
    let namespace = if target.kind.kind == "Namespace" { target.name.clone() } else { namespace.unwrap_or(default) };
    let facts = cluster.surroundings(&namespace).await;
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
        bail!("an object of the cluster is explained with the cluster's profiles; with --profile name a file by -f");
    }
    let (objects, mut questions) = match (&args.file, &args.review) {
        (Some(file), _) => {
            let objects = files::objects(file)?;
            let namespace = files::namespace_of(&objects, args.namespace.as_deref())?;
            let questions = files::questions(&objects, &namespace);
            if questions.is_empty() {
                bail!("there is no pod and no workload in {}", file.display());
            }
            (objects, questions)
        }
        (None, Some(file)) => (Vec::new(), vec![subject::of_review(saved(file)?)]),
        (None, None) => bail!("say what is to be explained: by -f or --review"),
    };
    let namespace = questions.first().and_then(|question| question.object.namespace.clone());
    let namespace = namespace.or_else(|| args.namespace.clone()).context("it is in no namespace")?;
    let given = Given {
        profiles: &args.profiles,
        namespace_file: args.namespace_file.as_deref(),
        webhooks_file: args.webhooks_file.as_deref(),
        policy: &policy,
        release: &release,
        namespace: &namespace,
    };
    let facts = match files::surroundings(&given)? {
        Ok(facts) => facts,
        Err(problems) => {
            output::problems(&problems)?;
            return Ok(Answer::Wrong);
        }
    };
    for question in &mut questions {
        files::complete(question, &facts, &objects);
    }
    Ok(Answer::Explained(questions.iter().map(|question| judge::judge(&facts, question)).collect(), None))
}

#[cfg(test)]
mod tests;
