//! `pillion cost`: shows the CPU and memory that injection adds to pods, and what they cost.
//!
//! * [`report`]: sums up the containers that profiles added. It does no I/O.
//! * [`prices`]: the price table.

mod prices;
mod report;

use std::path::PathBuf;
use std::pin::pin;

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use futures::StreamExt;
use kube::Client;
use kube::api::DynamicObject;
use pillion_api::names::INJECTED_ANNOTATION;
use pillion_engine::audit::added_containers;
use pillion_engine::review::RecordTrust;
use pillion_json::OwnedTape;
use serde_json::Value;

use self::prices::Prices;
use self::report::{Dimension, Report};
use crate::args::{ApiServerArgs, NamespaceArgs, block_on};
use crate::exit::Exit;
use crate::inject;
use crate::inject::objects;
use crate::output::{self, ListForm, Progress};
use crate::running_pods;

/// Arguments of `pillion cost`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CostArgs {
    #[command(flatten)]
    namespaces: NamespaceArgs,
    /// Count only pods with these labels, as in app=web,tier!=cache.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// Count the pods of manifests instead, such as the output of pillion inject; "-" for standard input. A pod template
    /// counts as one pod. May be given several times.
    #[arg(short, long = "filename", value_name = "FILE", conflicts_with_all = ["namespace", "all_namespaces", "selector"])]
    files: Vec<PathBuf>,
    /// How the rows of the table are grouped. Several values, separated by commas, make a row for each combination.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "profile", value_name = "FIELD")]
    by: Vec<Dimension>,
    /// A price table, YAML: currency, cpuCoreHour and memoryGiBHour. Adds the cost of 730 hours, which is one month.
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = CostForm::Text, value_name = "FORMAT")]
    output: CostForm,
    #[command(flatten)]
    api_server: ApiServerArgs,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CostForm {
    /// A table.
    Text,
    /// A table with more columns.
    Wide,
    /// One JSON object.
    Json,
    /// One object, as YAML.
    Yaml,
    /// Metrics in the text format of Prometheus.
    Prometheus,
}

/// Prints what injection adds. All formats except the metrics begin with the most expensive row.
pub(crate) fn run(args: CostArgs) -> anyhow::Result<Exit> {
    let CostArgs { namespaces, selector, files, by, prices, output, api_server } = args;
    let prices = match prices.as_deref().map(Prices::read).transpose() {
        Ok(prices) => prices,
        Err(problem) => {
            output::problems(&[problem])?;
            return Ok(Exit::Failure);
        }
    };
    let mut report = Report::new(by, prices);
    if files.is_empty() {
        block_on(async {
            let client = api_server.connect().await?;
            count_cluster(&client, namespaces.selected(&client), selector.as_deref(), &mut report).await
        })?;
    } else {
        match inject::documents(&files) {
            Ok(documents) => documents.iter().try_for_each(|document| count_document(document, &mut report))?,
            Err(problems) => {
                output::problems(&problems)?;
                return Ok(Exit::Failure);
            }
        }
    }
    let list = match output {
        CostForm::Text => ListForm::Text,
        CostForm::Wide => ListForm::Wide,
        CostForm::Json => ListForm::Json,
        CostForm::Yaml => ListForm::Yaml,
        CostForm::Prometheus => {
            output::print(&report.exposition())?;
            return Ok(Exit::Success);
        }
    };
    list.print(|is_wide| report.table(is_wide), || report.value())?;
    if report.is_empty() && list.is_text() {
        output::report("no pod has a container that a profile added")?;
    }
    Ok(Exit::Success)
}

/// Counts the pods of a namespace, or of all namespaces, page by page.
async fn count_cluster(
    client: &Client,
    namespace: Option<String>,
    selector: Option<&str>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut pages = pin!(running_pods::pages(client, namespace.as_deref(), selector));
    let (mut progress, mut count) = (Progress::new(), 0);
    while let Some(pods) = pages.next().await {
        let pods = pods.with_context(|| match &namespace {
            Some(namespace) => format!("the pods of namespace {namespace} cannot be listed"),
            None => "the pods of all namespaces cannot be listed (-n selects one namespace)".to_owned(),
        })?;
        count += pods.len();
        for pod in pods.iter().filter(|pod| is_recorded(pod)) {
            let text = serde_json::to_string(pod).context("cannot serialize a pod")?;
            let tape = OwnedTape::parse(text).context("cannot parse a pod")?;
            report.add(
                pod.metadata.namespace.as_deref().unwrap_or_default(),
                &added_containers(tape.root(), RecordTrust::ManagedFields),
            );
        }
        progress.show(&format!("pods: {count} read"));
    }
    Ok(())
}

/// Whether a pod has an injection record. Most pods have none, and this check is cheaper than parsing the pod.
fn is_recorded(pod: &DynamicObject) -> bool {
    pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(INJECTED_ANNOTATION))
}

/// Counts the pods and the pod templates of a document.
fn count_document(document: &Value, report: &mut Report) -> anyhow::Result<()> {
    for place in objects::pods(document) {
        let Some(pod) = document.pointer(&place.pointer) else { continue };
        let tape =
            OwnedTape::parse(pod.to_string()).map_err(|error| anyhow!("{}: {error}", place.describe("default")))?;
        report
            .add(place.namespace.as_deref().unwrap_or("default"), &added_containers(tape.root(), RecordTrust::AsFound));
    }
    Ok(())
}
