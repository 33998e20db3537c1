//! `pillion profiles history`: lists the stored revisions of a profile.

use clap::Args;
use kube::api::ListParams;
use pillion_api::RevisionSpec;
use pillion_api::kinds::ProfileStatus;
use pillion_api::names::PROFILE_LABEL;
use pillion_api::revision::label_value;
use pillion_control::informer::cluster_listing::Stored;
use serde_json::{Value, json};

use super::{Profile, ProfileRef};
use crate::exit::Exit;
use crate::output::{self, ListForm};

/// Arguments of `pillion profiles history`.
#[derive(Clone, Debug, Args)]
pub(super) struct HistoryArgs {
    #[command(flatten)]
    which: ProfileRef,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = ListForm::Text, value_name = "FORMAT")]
    output: ListForm,
}

/// A row of the table.
struct Line {
    revision: String,
    generation: String,
    made: String,
    parents: String,
    served: String,
}

pub(super) async fn run(args: HistoryArgs) -> anyhow::Result<Exit> {
    let HistoryArgs { which, output } = args;
    let which = which.resolve()?;
    let Profile { client, stored: Stored { metadata, status, .. }, .. } = which.read().await?;
    let selector = format!("{PROFILE_LABEL}={}", label_value(&which.name));
    let list = which.revisions(&client).list(&ListParams::default().labels(&selector)).await?;
    let mut lines: Vec<(usize, Line)> = Vec::new();
    for object in list.items {
        let mut owners = object.metadata.owner_references.iter().flatten();
        if !owners.any(|owner| Some(&owner.uid) == metadata.uid.as_ref()) {
            continue;
        }
        let Some(Ok(spec)) = object.data.get("spec").map(|spec| serde_json::from_value::<RevisionSpec>(spec.clone()))
        else {
            continue;
        };
        let place = status.revisions.iter().position(|kept| *kept == spec.revision).unwrap_or(usize::MAX);
        let made = object.metadata.creation_timestamp.map(|time| time.0.to_string()).unwrap_or_default();
        lines.push((
            place,
            Line {
                served: served(&status, &spec.revision),
                generation: spec.generation.map(|generation| generation.to_string()).unwrap_or_default(),
                parents: spec.ancestors.join(","),
                revision: spec.revision,
                made,
            },
        ));
    }
    lines.sort_by(|(one, a), (other, b)| (one, &b.made).cmp(&(other, &a.made)));
    let lines: Vec<Line> = lines.into_iter().map(|(_, line)| line).collect();
    output.print(|is_wide| table(&lines, is_wide), || value(&lines))?;
    Ok(Exit::Success)
}

/// Formats which workloads get a revision.
fn served(status: &ProfileStatus, revision: &str) -> String {
    let is = |other: &Option<String>| other.as_deref() == Some(revision);
    let share = status.rollout.as_ref().map(|rollout| rollout.percent.unwrap_or(100));
    if status.rollback().is_some_and(|rollback| rollback.from == revision) {
        return "rolled back".to_owned();
    }
    match (is(&status.revision), is(&status.promoted_revision), share) {
        (true, _, None) => "all workloads".to_owned(),
        (true, _, Some(share)) => format!("{share} % of workloads"),
        (false, true, Some(_)) => "all others".to_owned(),
        (false, ..) => "-".to_owned(),
    }
}

/// Returns the lines as JSON.
fn value(lines: &[Line]) -> Value {
    let revisions = lines.iter().map(|Line { revision, generation, made, parents, served }| {
        json!({
            "revision": revision, "generation": generation.parse::<i64>().ok(), "created": made, "servedTo": served,
            "parents": parents.split(',').filter(|parent| !parent.is_empty()).collect::<Vec<_>>(),
        })
    });
    json!({"revisions": revisions.collect::<Vec<_>>()})
}

/// Formats a table in the style of kubectl; empty if there are no lines. A wide table also shows the parents.
fn table(lines: &[Line], is_wide: bool) -> String {
    let narrow = |line: &Line| {
        let Line { revision, generation, made, parents: _, served } = line;
        [revision, generation, made, served].map(Clone::clone)
    };
    if !is_wide {
        return output::columns(["REVISION", "GENERATION", "CREATED", "SERVED TO"], lines.iter().map(narrow));
    }
    let rows = lines.iter().map(|line| {
        let [revision, generation, made, served] = narrow(line);
        let parents = if line.parents.is_empty() { "-".to_owned() } else { line.parents.clone() };
        [revision, generation, made, served, parents]
    });
    output::columns(["REVISION", "GENERATION", "CREATED", "SERVED TO", "PARENTS"], rows)
}

#[cfg(test)]
mod tests {
    use pillion_api::profile::Rollout;

    use super::*;

    #[test]
    fn history_shows_selection_of_revision() {
        let some = |revision: &str| Some(revision.to_owned());
        let mut status = ProfileStatus {
            revision: some("b"),
            promoted_revision: some("b"),
            accepted_revision: some("b"),
            ..ProfileStatus::default()
        };
        assert_eq!((&*served(&status, "b"), &*served(&status, "a")), ("all workloads", "-"));
        status.rollout = Some(Rollout { percent: Some(10), ..Rollout::default() });
        status.promoted_revision = some("a");
        assert_eq!((&*served(&status, "b"), &*served(&status, "a")), ("10 % of workloads", "all others"));
        let rolled = ProfileStatus {
            revision: some("a"),
            promoted_revision: some("a"),
            accepted_revision: some("b"),
            ..ProfileStatus::default()
        };
        assert_eq!((&*served(&rolled, "b"), &*served(&rolled, "a")), ("rolled back", "all workloads"));
    }
}
