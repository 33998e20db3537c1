//! `pillion rollout status`: shows the rollouts of profiles to their running pods.

use std::time::{Duration, Instant};

use clap::Args;
use kube::Client;
use pillion_api::kinds::UpgradeStatus;
use pillion_api::profile::RolloutStrategy;
use pillion_control::informer::cluster_listing::{self, Part, Stored};
use pillion_engine::profile::ProfileName;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::args::{ApiServerArgs, NamespaceArgs};
use crate::config::Time;
use crate::exit::Exit;
use crate::output::{self, ListForm};
use crate::profiles::ProfileRef;

/// How often to read the status with `--watch`.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Arguments of `pillion rollout status`.
#[derive(Clone, Debug, Args)]
pub(super) struct StatusArgs {
    /// Show only this profile: the name of a `ClusterInjectionProfile`, or NAMESPACE/NAME of an `InjectionProfile`.
    /// With --namespace, a name without a slash is an `InjectionProfile`.
    #[arg(value_name = "PROFILE", conflicts_with = "all_namespaces")]
    profile: Option<String>,
    #[command(flatten)]
    namespaces: NamespaceArgs,
    /// Print the status again after each change, until no rollout runs.
    #[arg(long)]
    watch: bool,
    /// How long --watch waits. If a rollout still runs then, the command exits with 1.
    #[arg(long, value_name = "DURATION", default_value = "30m", requires = "watch")]
    timeout: Time,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = ListForm::Text, value_name = "FORMAT")]
    output: ListForm,
    #[command(flatten)]
    api_server: ApiServerArgs,
}

/// The profiles to show.
enum Selection {
    /// All cluster profiles, and the profiles of this namespace, or of all namespaces.
    All { client: Client, namespace: Option<String> },
    /// One profile.
    One(ProfileRef),
}

/// A rollout of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    kind: String,
    profile: ProfileName,
    upgrade: UpgradeStatus,
    /// The shares of the steps, in percent.
    steps: Vec<u64>,
}

/// Prints the rollouts. Returns [`Exit::Failure`] if profiles cannot be listed, and [`Exit::Findings`] if a rollout has
/// failed, or still runs after the timeout of `--watch`.
pub(super) async fn run(args: StatusArgs) -> anyhow::Result<Exit> {
    let StatusArgs { profile, namespaces, watch, timeout, output, api_server } = args;
    let selection = if let Some(name) = profile {
        Selection::One(ProfileRef::new(name, namespaces.named().map(str::to_owned), api_server)?)
    } else {
        let client = api_server.connect().await?;
        Selection::All { namespace: namespaces.selected(&client), client }
    };
    let begin = Instant::now();
    let mut printed: Option<Vec<Row>> = None;
    loop {
        let (stored, unread) = selection.read().await?;
        let mut rows: Vec<_> = stored.iter().filter_map(Row::new).collect();
        rows.sort_by(|one, other| one.profile.cmp(&other.profile));
        if printed.as_ref() != Some(&rows) {
            print(output, &rows, printed.is_none())?;
        }
        let running = stored.iter().find_map(running).filter(|_| watch && unread.is_empty());
        let Some(running) = running else { return finish(&rows, &unread, &selection, output) };
        let left = timeout.0.saturating_sub(begin.elapsed());
        if left.is_zero() {
            output::report(&format!("error: after {timeout}, {running}"))?;
            return Ok(Exit::Findings);
        }
        printed = Some(rows);
        tokio::time::sleep(LOOK_EVERY.min(left)).await;
    }
}

fn print(output: ListForm, rows: &[Row], is_first: bool) -> anyhow::Result<()> {
    match output {
        _ if is_first => {}
        ListForm::Text | ListForm::Wide => output::print("\n")?,
        ListForm::Yaml => output::print("---\n")?,
        ListForm::Json => {}
    }
    output.print(|is_wide| table(rows, is_wide), || value(rows))
}

/// Reports if there are no rollouts, or if profiles cannot be listed, and returns the exit code.
fn finish(rows: &[Row], unread: &[(Part, String)], selection: &Selection, output: ListForm) -> anyhow::Result<Exit> {
    if rows.is_empty() && output.is_text() {
        output::report(&match selection {
            Selection::All { .. } => "no rollouts to running pods found".to_owned(),
            Selection::One(which) => format!("{which} has no rollout to running pods"),
        })?;
    }
    for (part, why) in unread {
        output::report(&format!("error: {} cannot be listed: {why}", part.as_str()))?;
    }
    let has_failed = rows.iter().any(|row| row.upgrade.phase.has_failed());
    Ok(if unread.is_empty() { Exit::findings(has_failed) } else { Exit::Failure })
}

impl Selection {
    /// Reads the profiles. Also returns the kinds that cannot be listed.
    async fn read(&self) -> anyhow::Result<(Vec<Stored>, Vec<(Part, String)>)> {
        match self {
            Self::All { client, namespace } => Ok(cluster_listing::profiles(client, namespace.as_deref()).await),
            Self::One(which) => Ok((vec![which.read().await?.stored], Vec::new())),
        }
    }
}

/// Whether the controller upgrades running pods to new revisions of a profile with this spec.
pub(super) fn has_running_pods(spec: &Value) -> bool {
    let strategy = spec.pointer("/rollout/strategy").and_then(|strategy| RolloutStrategy::deserialize(strategy).ok());
    strategy.is_some_and(RolloutStrategy::has_running_pods)
}

/// Returns a description of the profile's rollout if it runs, or has not begun yet. `None` if there is nothing to wait
/// for.
fn running(stored: &Stored) -> Option<String> {
    let Stored { name, metadata, status, .. } = stored;
    let upgrade = status.upgrade.as_ref();
    let is_observed = metadata.generation <= status.observed_generation;
    // The controller publishes `status.rollout` first, and then begins the rollout.
    let is_published = status.rollout.is_some();
    let is_current = upgrade.map(|upgrade| &*upgrade.revision) == status.revision.as_deref();
    if has_running_pods(stored.spec()) && (!is_observed || (is_published && !is_current)) {
        return Some(format!(
            "the controller has not begun the rollout of {name}: check that it runs with `pillion status`"
        ));
    }
    let UpgradeStatus { phase, pods, upgraded, .. } = upgrade.filter(|upgrade| !upgrade.phase.has_ended())?;
    Some(format!("the rollout of {name} still has the phase {}, with {upgraded}/{pods} pods", phase.as_str()))
}

/// Returns the shares of the steps of a rollout, in percent. The last one is always 100. A rollback has one step.
fn steps(spec: &Value, is_rollback: bool) -> Vec<u64> {
    let steps = spec.pointer("/rollout/steps").and_then(Value::as_array).filter(|_| !is_rollback);
    let percents = steps.into_iter().flatten().filter_map(|step| step.get("percent").and_then(Value::as_u64));
    let mut percents: Vec<_> = percents.collect();
    if percents.last().is_none_or(|last| *last < 100) {
        percents.push(100);
    }
    percents
}

impl Row {
    fn new(stored: &Stored) -> Option<Self> {
        let status = &stored.status;
        Some(Self {
            kind: stored.kind(),
            profile: stored.name.clone(),
            upgrade: status.upgrade.clone()?,
            steps: steps(stored.spec(), status.rollback().is_some()),
        })
    }

    /// Returns the share of the current step, in percent. `None` if the profile no longer has this step.
    fn percent(&self) -> Option<u64> {
        self.steps.get(usize::try_from(self.upgrade.step).ok()?).copied()
    }

    fn step(&self) -> String {
        let number = self.upgrade.step.saturating_add(1);
        match self.percent() {
            Some(percent) => format!("{number}/{} ({percent} %)", self.steps.len()),
            None => number.to_string(),
        }
    }
}

/// Formats a table in the style of kubectl; empty if there are no rows.
fn table(rows: &[Row], is_wide: bool) -> String {
    // A message is one line of the table.
    let message = |row: &Row| {
        let texts = [&row.upgrade.message, &row.upgrade.waiting].into_iter().flatten();
        let message = texts.map(String::as_str).collect::<Vec<_>>().join("; ");
        let message = if message.is_empty() { "-".to_owned() } else { message };
        message.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let narrow = |row: &Row| {
        let UpgradeStatus { revision, phase, pods, upgraded, .. } = &row.upgrade;
        let phase = phase.as_str().to_owned();
        [row.profile.to_string(), revision.clone(), phase, row.step(), format!("{upgraded}/{pods}")]
    };
    if !is_wide {
        let rows = rows.iter().map(|row| {
            let [profile, revision, phase, step, pods] = narrow(row);
            [profile, revision, phase, step, pods, message(row)]
        });
        return output::columns(["PROFILE", "REVISION", "PHASE", "STEP", "PODS", "MESSAGE"], rows);
    }
    let head =
        ["PROFILE", "REVISION", "PHASE", "STEP", "PODS", "UPGRADING", "NOT IN PLACE", "PREVIOUS", "SINCE", "MESSAGE"];
    let rows = rows.iter().map(|row| {
        let [profile, revision, phase, step, pods] = narrow(row);
        let UpgradeStatus { previous_revision, since, upgrading, not_in_place, .. } = &row.upgrade;
        let previous = previous_revision.clone().unwrap_or_else(|| "-".to_owned());
        let (upgrading, not_in_place) = (upgrading.to_string(), not_in_place.to_string());
        [profile, revision, phase, step, pods, upgrading, not_in_place, previous, since.0.to_string(), message(row)]
    });
    output::columns(head, rows)
}

/// Returns the rows as JSON, with null for unknown values.
fn value(rows: &[Row]) -> Value {
    let rollouts = rows.iter().map(|row| {
        let Row { kind, profile, upgrade, steps } = row;
        json!({
            "kind": kind, "name": profile.name, "namespace": profile.namespace,
            "revision": upgrade.revision, "previousRevision": upgrade.previous_revision,
            "phase": upgrade.phase, "since": upgrade.since,
            "step": upgrade.step, "steps": steps.len(), "percent": row.percent(),
            "pods": upgrade.pods, "upgraded": upgrade.upgraded, "upgrading": upgrade.upgrading,
            "notInPlace": upgrade.not_in_place, "message": upgrade.message, "waiting": upgrade.waiting,
        })
    });
    json!({"rollouts": rollouts.collect::<Vec<_>>()})
}

#[cfg(test)]
pub(super) mod tests {
    use kube::api::DynamicObject;
    use pillion_api::kinds::UpgradePhase;

    use super::*;

    /// Returns the status of a rollout of revision `b2`, whose previous revision is `a1`.
    pub(in crate::rollout) fn upgrade(phase: UpgradePhase) -> UpgradeStatus {
        let status = json!({
            "revision": "b2", "previousRevision": "a1", "phase": phase, "step": 1, "since": "2026-01-02T03:04:05Z",
            "pods": 40, "upgraded": 12, "upgrading": 2, "notInPlace": 1,
        });
        serde_json::from_value(status).unwrap()
    }

    fn stored(metadata: &Value, rollout: &Value, status: &Value) -> Stored {
        let object = json!({
            "apiVersion": "pillion.dev/v1alpha1", "kind": "InjectionProfile", "metadata": metadata,
            "spec": {"rollout": rollout}, "status": status,
        });
        Stored::new(serde_json::from_value::<DynamicObject>(object).unwrap())
    }

    fn in_place() -> Value {
        json!({"strategy": "InPlace", "steps": [{"percent": 5}, {"percent": 25}]})
    }

    #[test]
    fn table_has_step_and_pods() {
        let halted = UpgradeStatus { message: Some("pod a/b:\nimage".to_owned()), ..upgrade(UpgradePhase::Halted) };
        let profiles = [
            stored(&json!({"name": "nginx"}), &in_place(), &json!({"upgrade": upgrade(UpgradePhase::Upgrading)})),
            stored(&json!({"name": "logger", "namespace": "team-a"}), &json!({}), &json!({"upgrade": halted})),
            stored(&json!({"name": "without"}), &in_place(), &json!({})),
        ];
        let rows: Vec<_> = profiles.iter().filter_map(Row::new).collect();
        assert_eq!(
            table(&rows, false),
            "PROFILE         REVISION   PHASE       STEP         PODS    MESSAGE\n\
             nginx           b2         Upgrading   2/3 (25 %)   12/40   -\n\
             team-a/logger   b2         Halted      2            12/40   pod a/b: image\n"
        );
        let wide = table(&rows, true);
        assert!(wide.contains("UPGRADING   NOT IN PLACE   PREVIOUS   SINCE"), "{wide}");
        assert!(wide.contains("2           1              a1         2026-01-02T03:04:05Z   -"), "{wide}");
        let value = value(&rows);
        let (first, second) = (&value["rollouts"][0], &value["rollouts"][1]);
        assert_eq!((&first["kind"], &first["namespace"]), (&json!("ClusterInjectionProfile"), &Value::Null));
        assert_eq!((&first["step"], &first["steps"], &first["percent"]), (&json!(1), &json!(3), &json!(25)));
        assert_eq!((&second["namespace"], &second["phase"]), (&json!("team-a"), &json!("Halted")));
        assert_eq!(table(&[], true), "");
    }

    #[test]
    fn last_step_has_all_pods() {
        let spec = |steps: Value| json!({"rollout": {"steps": steps}});
        assert_eq!(steps(&json!({}), false), [100]);
        assert_eq!(steps(&spec(json!([{"percent": 5}])), false), [5, 100]);
        assert_eq!(steps(&spec(json!([{"percent": 5}, {"percent": 100}])), false), [5, 100]);
        assert_eq!(steps(&spec(json!([{"percent": 5}])), true), [100]);
    }

    #[test]
    fn watch_waits_for_current_rollout() {
        let status = |observed: i64, revision: &str, phase| {
            json!({
                "observedGeneration": observed, "revision": revision, "promotedRevision": "a1", "rollout": {"percent": 0},
                "upgrade": upgrade(phase),
            })
        };
        let published = |revision: &str| json!({"observedGeneration": 3, "revision": revision});
        for (rollout, status, expected) in [
            (in_place(), status(3, "b2", UpgradePhase::Baking), Some("phase Baking, with 12/40 pods")),
            (in_place(), status(3, "b2", UpgradePhase::Paused), Some("phase Paused")),
            (in_place(), status(3, "b2", UpgradePhase::SteppingBack), Some("phase SteppingBack")),
            (in_place(), status(3, "b2", UpgradePhase::SteppedBack), None),
            (in_place(), status(3, "b2", UpgradePhase::Halted), None),
            (in_place(), status(3, "b2", UpgradePhase::Complete), None),
            // The profile has changed, or its new revision was just published.
            (in_place(), status(2, "b2", UpgradePhase::Complete), Some("has not begun")),
            (in_place(), status(3, "c3", UpgradePhase::Complete), Some("has not begun")),
            // The controller does not upgrade running pods.
            (in_place(), published("c3"), None),
            (json!({}), status(2, "b2", UpgradePhase::Complete), None),
        ] {
            let profile = stored(&json!({"name": "nginx", "generation": 3}), &rollout, &status);
            let found = running(&profile);
            match expected {
                Some(part) => assert!(found.as_ref().is_some_and(|text| text.contains(part)), "{status}: {found:?}"),
                None => assert_eq!(found, None, "{status}"),
            }
        }
    }
}
