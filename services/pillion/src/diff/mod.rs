//! `pillion diff`: shows how changed profiles would change the pods of manifests, or running pods.
//!
//! * [`cluster`]: compares running pods, workload by workload. It writes nothing to the cluster.
//!
//! Both comparisons render the same pod twice with the same engine, so changes by the API server or by other webhooks
//! do not appear as differences.

pub(crate) mod cluster;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::Args;
use pillion_api::names::INJECTED_ANNOTATION;
use pillion_engine::decision::{Decision, Outcome};
use serde_json::{Value, json};

use crate::args::{ClusterArgs, NamespaceArgs};
use crate::config::ConfigArg;
use crate::exit::Exit;
use crate::inject;
use crate::inject::objects::{self, Place};
use crate::inject::simulated_cluster::{self, KnownObjects, SimulatedCluster};
use crate::load::Problem;
use crate::output::{self, Form};
use crate::{args, difference};

/// The help of `--namespace`. Unlike in other commands, the flag also applies to manifests.
const NAMESPACE_HELP: &str = "The namespace of the pods. Default: that of the kubeconfig's context, else \"default\". For \
                              manifests: the namespace of objects that do not set one.";

/// Arguments of `pillion diff`.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("namespace", |argument| argument.help(NAMESPACE_HELP).long_help(NAMESPACE_HELP)))]
pub(crate) struct DiffArgs {
    /// The changed profiles: files, and folders of files. May be given several times.
    #[arg(short, long = "profile", value_name = "PATH", required = true)]
    profiles: Vec<PathBuf>,
    /// Manifests to compare instead of running pods, "-" for standard input. May be given several times.
    #[arg(short, long = "filename", value_name = "FILE", requires = "against")]
    files: Vec<PathBuf>,
    /// The old profiles, for manifests. May be given several times.
    #[arg(long, value_name = "PATH", requires = "files")]
    against: Vec<PathBuf>,
    #[command(flatten)]
    namespaces: NamespaceArgs,
    /// Compare only pods with these labels, as in app=web,tier!=cache.
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "files")]
    selector: Option<String>,
    /// Namespace objects, whose labels and annotations are used for manifests.
    #[arg(long, value_name = "FILE", requires = "files")]
    namespace_file: Option<PathBuf>,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORMAT")]
    output: Form,
    #[command(flatten)]
    config: ConfigArg,
    #[command(flatten)]
    at: ClusterArgs,
}

/// Why the comparison failed.
enum DiffError {
    /// Problems in files.
    Problems(Vec<Problem>),
    /// Any other error.
    Other(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for DiffError {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

/// Prints the differences.
pub(crate) fn run(args: DiffArgs) -> anyhow::Result<Exit> {
    let output = args.output;
    let compared = if args.files.is_empty() {
        args::block_on(async { Ok(cluster::compare(args).await) })?
    } else {
        compare(&args)
    };
    let compared = match compared {
        Ok(compared) => compared,
        Err(DiffError::Problems(problems)) => {
            output::problems(&problems)?;
            return Ok(Exit::Failure);
        }
        Err(DiffError::Other(error)) => return Err(error),
    };
    output.print(|| text(&compared), || value(&compared))?;
    if output == Form::Text {
        output::report(&summary(&compared))?;
    }
    Ok(Exit::findings(compared.iter().any(Compared::differs)))
}

/// Compares each pod of the manifests.
fn compare(args: &DiffArgs) -> Result<Vec<Compared>, DiffError> {
    let (before, after) = (simulated(args, &args.against)?, simulated(args, &args.profiles)?);
    let documents = inject::documents(&args.files).map_err(DiffError::Problems)?;
    let known = KnownObjects::new(&documents, before.default_namespace());
    let mut compared = Vec::new();
    for document in &documents {
        for place in objects::pods(document) {
            let name = place.describe(before.default_namespace());
            let rendered = |simulated| rendered(document, &place, simulated, &known).with_context(|| name.clone());
            let (before, after) = (rendered(&before)?, rendered(&after)?);
            compared.push(Compared { name, pods: 1, before, after });
        }
    }
    if compared.is_empty() {
        let files: Vec<_> = args.files.iter().map(|file| file.display().to_string()).collect();
        return Err(anyhow!("{} contains no pod and no workload: nothing can be compared", files.join(", ")).into());
    }
    Ok(compared)
}

fn rendered(
    document: &Value,
    place: &Place,
    simulated: &SimulatedCluster,
    known: &KnownObjects,
) -> anyhow::Result<Rendered> {
    let decided = simulated_cluster::decide(document, place, simulated, known)?;
    let mut changed = document.clone();
    objects::apply(&mut changed, place, decided.patch.as_deref())?;
    let pod = changed.pointer(&place.pointer).cloned().unwrap_or_default();
    Ok(Rendered::new(&decided.decision, pod))
}

fn simulated(args: &DiffArgs, profiles: &[PathBuf]) -> Result<SimulatedCluster, DiffError> {
    SimulatedCluster::configured(profiles, args.namespace_file.as_deref(), args.namespaces.named(), &args.config)?
        .map_err(DiffError::Problems)
}

/// A pod of a workload, with the engine's results for the old and for the new profiles.
#[derive(Clone, Debug)]
struct Compared {
    /// The workload: `Deployment shop/web`.
    name: String,
    /// The number of the workload's pods; 1 for a workload in a manifest.
    pods: usize,
    /// The result with the old profiles.
    before: Rendered,
    /// The result with the new profiles.
    after: Rendered,
}

/// The engine's result for a pod.
#[derive(Clone, Debug, PartialEq)]
struct Rendered {
    /// The pod, without the record and server-side metadata. `None` if it is rejected.
    pod: Option<Value>,
    /// The human-readable result for each considered profile.
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
}

/// Returns a unified diff for each workload that differs.
fn text(compared: &[Compared]) -> anyhow::Result<String> {
    let mut text = String::new();
    for one in compared.iter().filter(|one| one.differs()) {
        let Compared { name, pods, before, after } = one;
        let count = if *pods == 1 { "1 pod".to_owned() } else { format!("{pods} pods") };
        let _ = writeln!(text, "{name} ({count})");
        for (profile, result) in &after.profiles {
            match before.profiles.get(profile) {
                Some(was) if was == result => {}
                Some(was) => drop(writeln!(text, "  {profile}: {result}; currently: {was}")),
                None => drop(writeln!(text, "  {profile}: {result}; currently it does not apply")),
            }
        }
        for profile in before.profiles.keys().filter(|profile| !after.profiles.contains_key(*profile)) {
            let _ = writeln!(text, "  {profile}: would no longer apply");
        }
        match (&before.pod, &after.pod) {
            (Some(before), Some(after)) => {
                text.push_str(&difference::of((name, before), (&format!("{name}, changed"), after))?);
            }
            (Some(_), None) => text.push_str("  its pods would be rejected\n"),
            (None, Some(_)) => text.push_str("  its pods would no longer be rejected\n"),
            (None, None) => {}
        }
    }
    Ok(text)
}

/// Formats the number of workloads that differ.
fn summary(compared: &[Compared]) -> String {
    let differing = compared.iter().filter(|one| one.differs()).count();
    match compared.len() {
        1 => format!("{differing} of 1 workload would be different"),
        all => format!("{differing} of {all} workloads would be different"),
    }
}

/// Returns the comparison as JSON.
fn value(compared: &[Compared]) -> anyhow::Result<Value> {
    let workloads = compared.iter().map(|one| {
        let patch = match (&one.before.pod, &one.after.pod) {
            (Some(before), Some(after)) => {
                serde_json::to_value(json_patch::diff(before, after)).context("cannot serialize the patch")?
            }
            _ => Value::Null,
        };
        let rendered = |rendered: &Rendered| json!({"profiles": rendered.profiles, "rejected": rendered.pod.is_none()});
        Ok(json!({
            "workload": one.name, "pods": one.pods, "differs": one.differs(),
            "before": rendered(&one.before), "after": rendered(&one.after), "patch": patch,
        }))
    });
    let workloads = workloads.collect::<anyhow::Result<Vec<_>>>()?;
    let differing = compared.iter().filter(|one| one.differs()).count();
    Ok(json!({"workloads": workloads, "differing": differing, "same": compared.len() - differing}))
}
