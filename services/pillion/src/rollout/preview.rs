//! `pillion rollout plan`: shows what the newest revisions of profiles would change in the running pods that have these
//! profiles. Nothing is changed.

use std::collections::BTreeMap;

use anyhow::Context;
use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::ListParams;
use pillion_control::audit::NOT_ENDED;
use pillion_control::client::lists;
use pillion_control::rollout::PodUpgrade;
use pillion_control::rollout::change::pods;
use serde_json::{Value, json};

use super::in_place::{CONCURRENT_PLANS, Upgrader};
use crate::args::{ClusterArgs, NamespaceArgs};
use crate::exit::Exit;
use crate::output::{self, ListForm, Progress};

/// The maximum number of reasons in a row of the table.
const MAX_REASONS: usize = 3;

/// Arguments of `pillion rollout plan`.
#[derive(Clone, Debug, Args)]
pub(super) struct PreviewArgs {
    #[command(flatten)]
    namespaces: NamespaceArgs,
    /// Consider only pods with these labels, as in app=web,tier!=cache.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = ListForm::Text, value_name = "FORMAT")]
    output: ListForm,
    #[command(flatten)]
    at: ClusterArgs,
}

/// The plans for the pods of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Row {
    namespace: String,
    /// The number of pods that have the newest revisions.
    stay: usize,
    /// The pods that can be changed in place.
    in_place: Vec<String>,
    /// The pods that cannot be changed in place, with the reasons.
    recreate: BTreeMap<String, Vec<String>>,
}

/// Prints the plan. Pods to change are not findings, because nothing is wrong with them.
pub(super) async fn run(args: PreviewArgs) -> anyhow::Result<Exit> {
    let PreviewArgs { namespaces, selector, output, at } = args;
    let (client, release) = at.connect().await?;
    let upgrader = Upgrader::new(client.clone(), &release, super::lookups(&client)).await?;
    if let Some(why) = upgrader.unknown_policy() {
        anyhow::bail!("{why}; without its guardrails and facts, pods cannot be planned");
    }
    let selected = namespaces.selected(&client);
    let mut progress = Progress::new();
    let mut rows = Vec::new();
    for namespace in upgrader.namespaces().filter(|name| selected.as_ref().is_none_or(|only| only == name)) {
        progress.show(&format!("planning namespace {namespace}"));
        let mut parameters = ListParams::default().fields(NOT_ENDED);
        parameters.label_selector.clone_from(&selector);
        let pods = lists::all(&pods(&client, &namespace), &parameters).await;
        let pods = pods.with_context(|| format!("the pods of namespace {namespace} cannot be listed"))?;
        let plans = pods.iter().map(|pod| upgrader.to_newest(pod));
        let plans: Vec<_> = stream::iter(plans).buffered(CONCURRENT_PLANS).try_collect().await?;
        let names = pods.iter().map(|pod| pod.metadata.name.clone().unwrap_or_default());
        let row = Row::new(namespace, names.zip(plans));
        if row.all() > 0 {
            rows.push(row);
        }
    }
    drop(progress);
    output.print(|_| table(&rows), || json!(rows.iter().map(Row::value).collect::<Vec<_>>()))?;
    if rows.is_empty() && output.is_text() {
        output::report("no running pods with profiles found")?;
    }
    Ok(Exit::Success)
}

impl Row {
    /// Groups pods by their plans. `None` is the plan of a pod without a readable injection record, which is ignored.
    fn new(namespace: String, plans: impl Iterator<Item = (String, Option<PodUpgrade>)>) -> Self {
        let mut row = Self { namespace, ..Self::default() };
        for (pod, plan) in plans {
            match plan {
                None => {}
                Some(PodUpgrade::Current) => row.stay += 1,
                Some(PodUpgrade::Possible(_)) => row.in_place.push(pod),
                Some(PodUpgrade::Recreate(why) | PodUpgrade::Impossible(why)) => _ = row.recreate.insert(pod, why),
            }
        }
        row
    }

    fn all(&self) -> usize {
        self.stay + self.in_place.len() + self.recreate.len()
    }

    /// Returns the reasons why pods cannot be changed in place, with the number of pods. The most frequent reason comes
    /// first.
    fn reasons(&self) -> Vec<(&str, usize)> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for why in self.recreate.values().flatten() {
            *counts.entry(why).or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts
    }

    fn value(&self) -> Value {
        json!({
            "namespace": self.namespace,
            "stay": self.stay,
            "inPlace": self.in_place,
            "recreate": self.recreate.iter().map(|(pod, why)| json!({"pod": pod, "reasons": why})).collect::<Vec<_>>(),
        })
    }
}

/// Formats a table in the style of kubectl; empty if there are no rows.
fn table(rows: &[Row]) -> String {
    let rows = rows.iter().map(|row| {
        let reasons = row.reasons();
        let texts: Vec<_> = reasons.iter().take(MAX_REASONS).map(|(why, count)| format!("{why} ({count})")).collect();
        let why = if texts.is_empty() { "-".to_owned() } else { texts.join("; ") };
        let (in_place, recreate) = (row.in_place.len().to_string(), row.recreate.len().to_string());
        [row.namespace.clone(), in_place, recreate, row.stay.to_string(), why]
    });
    output::columns(["NAMESPACE", "IN PLACE", "RESTART", "STAY", "WHY"], rows)
}

#[cfg(test)]
mod tests {
    use pillion_control::rollout::Upgrade;
    use pillion_engine::in_place::Upgraded;

    use super::*;

    #[test]
    fn namespace_counts_plans_and_reasons() {
        let upgrade = Upgrade { changes: Vec::new(), previous: BTreeMap::new(), upgraded: Upgraded::default() };
        let because = |why: &[&str]| Some(PodUpgrade::Recreate(why.iter().map(|why| (*why).to_owned()).collect()));
        let plans = [
            ("a", Some(PodUpgrade::Current)),
            ("b", Some(PodUpgrade::Possible(Box::new(upgrade)))),
            ("c", because(&["x changes", "y changes"])),
            ("d", because(&["y changes"])),
            ("e", None),
        ];
        let row = Row::new("shop".to_owned(), plans.into_iter().map(|(pod, plan)| (pod.to_owned(), plan)));
        assert_eq!(row.all(), 4);
        let text = table(std::slice::from_ref(&row));
        let line = text.lines().last().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(line, "shop 1 2 1 y changes (2); x changes (1)");
        assert_eq!(row.value()["recreate"][1], json!({"pod": "d", "reasons": ["y changes"]}));
        assert_eq!(table(&[]), "");
    }
}
