//! `pillion profiles export`: prints a stored revision of each profile, for commands that use no cluster. The default
//! is the promoted revision.
//!
//! The output has the revisions themselves, and not the profiles. A revision contains everything that its profile
//! extends, and its limits. So the profile compiles to the same revision without the cluster, even if a later spec of
//! the profile is being rolled out or was rejected. The metadata has only names and namespaces, so the output is the
//! same for the same revisions.

use anyhow::bail;
use clap::Args;
use futures::stream::{self, StreamExt};
use kube::Client;
use pillion_api::kinds::ProfileStatus;
use pillion_api::names::API_VERSION;
use pillion_api::revision::object_name;
use pillion_api::{ClusterProfileRevision, ProfileRevision, RevisionSpec};
use pillion_control::informer::cluster_listing::{self, Stored};
use serde_json::{Value, json};

use super::{revisions, stored_revision};
use crate::args::{ApiServerArgs, NamespaceArgs};
use crate::exit::Exit;
use crate::output::{self, Format};

/// Maximum number of concurrent requests.
const REQUESTS: usize = 16;

/// Arguments of `pillion profiles export`.
#[derive(Clone, Debug, Args)]
pub(super) struct ExportArgs {
    /// Names of profiles, or NAMESPACE/NAME of an `InjectionProfile`. Without names: all `ClusterInjectionProfile`s,
    /// and the `InjectionProfile`s of the namespace.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    namespaces: NamespaceArgs,
    /// The revision of each profile: promoted, newest, or the first digits of a stored revision. During a rollout, the
    /// chosen workloads get the newest revision, and all others get the promoted one. Otherwise, both are the same.
    #[arg(long, default_value = "promoted", value_name = "REVISION")]
    revision: String,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = Format::Yaml, value_name = "FORMAT")]
    output: Format,
    #[command(flatten)]
    api_server: ApiServerArgs,
}

/// Prints the revisions: first those of cluster profiles by name, then the others by namespace and name. A profile
/// whose selected revision does not exist or cannot be read is left out, and is a finding.
pub(super) async fn run(args: ExportArgs) -> anyhow::Result<Exit> {
    let ExportArgs { names, namespaces, revision, output, api_server } = args;
    let client = api_server.connect().await?;
    let (mut stored, unread) = cluster_listing::profiles(&client, namespaces.selected(&client).as_deref()).await;
    if let Some((part, why)) = unread.first() {
        bail!("{} cannot be listed: {why}", part.as_str());
    }
    for name in &names {
        if !stored.iter().any(|stored| is_named(stored, name)) {
            bail!("there is no profile {name} among those of the cluster and of the selected namespace");
        }
    }
    stored.retain(|stored| names.is_empty() || names.iter().any(|name| is_named(stored, name)));
    stored.sort_by(|one, other| one.name.cmp(&other.name));
    let (client, revision) = (&client, &revision);
    let fetching = stream::iter(&stored).map(|stored| async move { (stored, fetch(client, stored, revision).await) });
    let mut fetching = fetching.buffered(REQUESTS);
    let (mut objects, mut is_complete) = (Vec::new(), true);
    while let Some((stored, fetched)) = fetching.next().await {
        match fetched {
            Ok(object) => objects.push(object),
            Err(error) => {
                is_complete = false;
                output::report(&format!("error: profile {} is left out: {error:#}", stored.name))?;
            }
        }
    }
    if objects.is_empty() {
        output::report("no published revisions found")?;
    } else {
        output::print(&output::objects(&objects, output)?)?;
    }
    Ok(Exit::findings(!is_complete))
}

/// Whether a profile has this name. A name without a namespace names profiles of both kinds.
fn is_named(stored: &Stored, name: &str) -> bool {
    stored.name.to_string() == name || &*stored.name.name == name
}

/// Returns the revision of a profile as an object.
async fn fetch(client: &Client, stored: &Stored, revision: &str) -> anyhow::Result<Value> {
    let revision = selected(&stored.status, revision)?;
    let (namespace, name) = (stored.name.namespace.as_deref(), object_name(&stored.name.name, &revision));
    let Some(object) = revisions(client, namespace).get_opt(&name).await? else {
        bail!("its revision {revision} is not stored: check that the controller runs");
    };
    let spec: RevisionSpec = serde_json::from_value(object.data.get("spec").cloned().unwrap_or_default())?;
    // Only the controller needs the field `source`, which is the author's text.
    let spec = RevisionSpec { source: None, ..spec };
    let kind = if namespace.is_some() { ProfileRevision::KIND } else { ClusterProfileRevision::KIND };
    let mut metadata = json!({"name": name});
    if let (Some(namespace), Some(metadata)) = (namespace, metadata.as_object_mut()) {
        metadata.insert("namespace".to_owned(), namespace.into());
    }
    Ok(json!({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}))
}

/// Returns the hash of the selected revision.
fn selected(status: &ProfileStatus, revision: &str) -> anyhow::Result<String> {
    let published = match revision {
        "promoted" => status.promoted_revision.as_ref().or(status.revision.as_ref()),
        "newest" => status.revision.as_ref(),
        digits => return stored_revision(status, digits),
    };
    match published {
        Some(revision) => Ok(revision.clone()),
        None => bail!("no revision of it is published: pillion profiles list -o wide shows why"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revision_is_selected_by_role_or_digits() {
        let some = |revision: &str| Some(revision.to_owned());
        let status = ProfileStatus {
            revision: some("b2"),
            promoted_revision: some("a1"),
            revisions: ["b2", "a1", "c3", "c4"].map(str::to_owned).into(),
            ..ProfileStatus::default()
        };
        for (revision, expected) in [
            ("promoted", Ok("a1")),
            ("newest", Ok("b2")),
            ("c3", Ok("c3")),
            ("c", Err("more than one")),
            ("d", Err("no stored")),
        ] {
            match (selected(&status, revision), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
                (found, expected) => panic!("{revision}: {found:?} instead of {expected:?}"),
            }
        }
        let first = ProfileStatus { promoted_revision: None, ..status };
        assert_eq!(selected(&first, "promoted").unwrap(), "b2");
        assert!(selected(&ProfileStatus::default(), "newest").unwrap_err().to_string().contains("no revision"));
    }
}
