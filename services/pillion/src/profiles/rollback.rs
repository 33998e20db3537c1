//! `pillion profiles rollback`: publishes an older revision again. With `--undo`, ends the rollback.
//!
//! The command sets or removes annotations instead of editing the profile's spec. A controller that syncs the cluster
//! with a repository restores every field that the repository contains, but keeps annotations that it does not contain.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use pillion_api::kinds::ProfileStatus;
use pillion_api::names::{ROLLBACK_FROM_ANNOTATION, ROLLBACK_TIME_ANNOTATION, ROLLBACK_TO_ANNOTATION};
use pillion_api::{ClusterInjectionProfile, InjectionProfile};
use pillion_control::client::lists;
use serde_json::json;

use super::{ProfileRef, stored_revision};
use crate::config::Time;
use crate::exit::Exit;
use crate::output::{self, Progress};

/// How often to check whether the revision is published.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Arguments of `pillion profiles rollback`.
#[derive(Clone, Debug, Args)]
pub(super) struct RollbackArgs {
    #[command(flatten)]
    which: ProfileRef,
    /// The revision; its first digits are enough. Default: during a rollout, the promoted revision; otherwise the one
    /// that was published before the current revision.
    #[arg(long, value_name = "REVISION")]
    to: Option<String>,
    /// End a rollback: the last accepted revision is published again.
    #[arg(long, conflicts_with = "to")]
    undo: bool,
    /// How long to wait until the revision is published.
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    wait: Time,
}

pub(super) async fn run(args: RollbackArgs) -> anyhow::Result<Exit> {
    let RollbackArgs { which, to, undo, wait } = args;
    let which = which.resolve()?;
    let profile = which.read().await?;
    let status = &profile.stored.status;
    let (annotations, expected) = if undo {
        let accepted = status.accepted_revision.clone();
        (
            json!({ROLLBACK_TO_ANNOTATION: null, ROLLBACK_FROM_ANNOTATION: null, ROLLBACK_TIME_ANNOTATION: null}),
            accepted,
        )
    } else {
        let to = target(status, to.as_deref())?;
        let from = status.accepted_revision.clone();
        let now = Timestamp::now().to_string();
        let annotations =
            json!({ROLLBACK_TO_ANNOTATION: to, ROLLBACK_FROM_ANNOTATION: from, ROLLBACK_TIME_ANNOTATION: now});
        (annotations, Some(to))
    };
    let Some(expected) = expected else { bail!("no spec of {which} was ever accepted") };
    profile.annotate(&annotations).await?;
    if !is_published(&which, &expected, wait.0).await? {
        output::report(&format!(
            "error: revision {expected} of {which} was requested, but is not published after {wait}; \
             check that the controller runs"
        ))?;
        return Ok(Exit::Findings);
    }
    let before = status.revision.as_deref().unwrap_or("none");
    let done = format!("{which}: revision {expected} is published instead of {before}\n");
    let how_long = format!(
        "The rollback lasts until another spec is accepted. To end it now:\n  pillion profiles rollback {} --undo\n",
        which.arguments()
    );
    if undo {
        output::print(&done)?;
        return Ok(Exit::Success);
    }
    output::print(&(done + &how_long))?;
    if which.namespace.is_none() {
        let note = extension_note(&profile.client, &which.name).await;
        if !note.is_empty() {
            output::report(note.trim_end())?;
        }
    }
    Ok(Exit::Success)
}

/// Waits until the controller has published the revision for all workloads. Returns false if this takes longer than
/// `limit`.
async fn is_published(which: &ProfileRef, expected: &str, limit: Duration) -> anyhow::Result<bool> {
    let mut progress = Progress::new();
    let wait = async {
        loop {
            let now = which.read().await?.stored.status;
            if now.revision.as_deref() == Some(expected) && now.rollout.is_none() {
                return Ok(true);
            }
            progress.show(&format!("waiting until revision {expected} is published"));
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(limit, wait).await.unwrap_or(Ok(false))
}

/// Returns the revision to roll back to: the only one that begins with `to`, or the default if there is no `to`.
fn target(status: &ProfileStatus, to: Option<&str>) -> anyhow::Result<String> {
    if let Some(digits) = to {
        return stored_revision(status, digits);
    }
    let published = status.revision.as_ref();
    // During a rollout, the default is the promoted revision, which the workloads outside the rollout's share get.
    if let Some(promoted) = status.promoted_revision.as_ref().filter(|promoted| Some(*promoted) != published) {
        return Ok(promoted.clone());
    }
    let kept = &status.revisions;
    let place = kept.iter().position(|revision| Some(revision) == published);
    match place.and_then(|place| kept.get(place + 1)) {
        Some(before) => Ok(before.clone()),
        None => bail!("no revision was published before the current one; specify one with --to"),
    }
}

/// The maximum number of extending profiles that the note lists.
const NAMED: usize = 20;

/// A profile that extends another profile.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Child {
    namespace: Option<String>,
    name: String,
    parent: String,
}

/// Formats a note about the profiles that extend a cluster profile, directly or indirectly. Empty if there are none. If
/// profiles cannot be listed, the note contains the error.
async fn extension_note(client: &Client, name: &str) -> String {
    match listed(client).await {
        Ok(all) => text(name, &extending(name, &all)),
        Err(error) => format!("Profiles that extend {name} use its stored spec. They cannot be listed: {error}\n"),
    }
}

async fn listed(client: &Client) -> kube::Result<Vec<Child>> {
    let mut all = Vec::new();
    for resource in [ApiResource::erase::<ClusterInjectionProfile>(&()), ApiResource::erase::<InjectionProfile>(&())] {
        let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
        all.extend(lists::all(&api, &ListParams::default()).await?.into_iter().filter_map(child));
    }
    Ok(all)
}

fn child(object: DynamicObject) -> Option<Child> {
    let parent = object.data.pointer("/spec/extends/name")?.as_str()?.to_owned();
    Some(Child { namespace: object.metadata.namespace, name: object.metadata.name?, parent })
}

/// Returns all descendants of a cluster profile. Only cluster profiles can be extended, so a namespace's profile has no
/// children.
fn extending<'c>(name: &str, all: &'c [Child]) -> BTreeSet<&'c Child> {
    let mut found = BTreeSet::new();
    let mut parents = vec![name];
    while let Some(parent) = parents.pop() {
        for child in all.iter().filter(|child| child.parent == parent) {
            if found.insert(child) && child.namespace.is_none() {
                parents.push(&child.name);
            }
        }
    }
    found
}

fn text(name: &str, children: &BTreeSet<&Child>) -> String {
    if children.is_empty() {
        return String::new();
    }
    let named = children.iter().take(NAMED).map(|Child { namespace, name, .. }| match namespace {
        Some(namespace) => format!("  InjectionProfile {namespace}/{name}\n"),
        None => format!("  ClusterInjectionProfile {name}\n"),
    });
    let more = children.len().saturating_sub(NAMED);
    let more = if more > 0 { format!("  and {more} more\n") } else { String::new() };
    format!(
        "The rollback does not affect the profiles that extend it, which still use its stored spec:\n{}{more}\
         Roll each of them back too. An InjectionProfile that only sets parameters cannot be rolled back: correct the \
         spec of {name} for those.\n",
        named.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(revision: &str, promoted: &str) -> ProfileStatus {
        ProfileStatus {
            revision: Some(revision.to_owned()),
            promoted_revision: Some(promoted.to_owned()),
            revisions: ["cc33", "bb22", "ba11", "aa00"].map(str::to_owned).into(),
            ..ProfileStatus::default()
        }
    }

    #[test]
    fn rollback_targets_previous_or_promoted_revision() {
        assert_eq!(target(&status("cc33", "cc33"), None).unwrap(), "bb22");
        assert_eq!(target(&status("cc33", "aa00"), None).unwrap(), "aa00");
        let error = target(&status("aa00", "aa00"), None).unwrap_err().to_string();
        assert!(error.contains("--to"), "{error}");
    }

    #[test]
    fn unique_hash_prefix_finds_revision() {
        let status = status("cc33", "cc33");
        assert_eq!(target(&status, Some("bb")).unwrap(), "bb22");
        for (digits, expected) in [("b", "more than one"), ("dd", "cc33, bb22"), ("", "no stored revision")] {
            let error = target(&status, Some(digits)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn lists_direct_and_indirect_extending_profiles() {
        let child = |namespace: Option<&str>, name: &str, parent: &str| Child {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            parent: parent.to_owned(),
        };
        let all = [
            child(None, "java", "otel"),
            child(Some("shop"), "ours", "java"),
            child(Some("shop"), "otel", "otel"),
            child(Some("shop"), "theirs", "nginx"),
            // A cycle, which the controller would not accept.
            child(None, "otel", "java"),
        ];
        let note = text("otel", &extending("otel", &all));
        for expected in
            ["ClusterInjectionProfile java\n", "InjectionProfile shop/ours\n", "InjectionProfile shop/otel\n"]
        {
            assert!(note.contains(expected), "{note}");
        }
        assert!(!note.contains("theirs"), "{note}");
        assert_eq!(text("nothing", &extending("nothing", &all)), "");
        let many: Vec<_> = (0..NAMED + 3).map(|number| child(None, &format!("p-{number}"), "otel")).collect();
        assert!(text("otel", &extending("otel", &many)).contains("and 3 more"));
    }
}
