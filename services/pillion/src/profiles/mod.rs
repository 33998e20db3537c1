//! `pillion profiles`: lists profiles, exports their published revisions, shows the stored revisions of a profile, and
//! rolls a profile back to one of them.

mod export;
mod history;
mod list;
mod rollback;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use pillion_api::kinds::ProfileStatus;
use pillion_api::{ClusterInjectionProfile, ClusterProfileRevision, InjectionProfile, ProfileRevision};
use pillion_control::informer::cluster_listing::Stored;
use serde_json::{Value, json};

use crate::args::ApiServerArgs;
use crate::args::block_on;
use crate::exit::Exit;

/// Arguments of `pillion profiles`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProfilesArgs {
    #[command(subcommand)]
    command: ProfilesCommand,
}

#[derive(Clone, Debug, Subcommand)]
#[expect(clippy::doc_markdown, reason = "the text is shown in a terminal as it is")]
enum ProfilesCommand {
    /// List the profiles of both kinds: all ClusterInjectionProfiles, and the InjectionProfiles of a namespace.
    List(list::ListArgs),
    /// Print the published revisions of profiles, for commands without a cluster: pillion inject -p FILE
    ///
    /// A revision contains everything that its profile extends, so the file needs no other profiles. With this file,
    /// pillion inject decides as the cluster does, and writes the same injection records.
    Export(export::ExportArgs),
    /// List the stored revisions of a profile, most recently published first.
    History(history::HistoryArgs),
    /// Publish an older revision of a profile again, for all workloads, until a changed profile is accepted.
    Rollback(rollback::RollbackArgs),
}

/// The profile that a command uses.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProfileRef {
    /// Name of the profile, or NAMESPACE/NAME of an `InjectionProfile`.
    #[arg(value_name = "NAME")]
    name: String,
    /// Namespace of an `InjectionProfile`. Without it: a `ClusterInjectionProfile`.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    api_server: ApiServerArgs,
}

/// A profile in the cluster, with its API client.
pub(crate) struct Profile {
    client: Client,
    api: Api<DynamicObject>,
    pub(crate) stored: Stored,
}

/// Runs the subcommand.
pub(crate) fn run(args: ProfilesArgs) -> anyhow::Result<Exit> {
    match args.command {
        ProfilesCommand::List(args) => block_on(list::run(args)),
        ProfilesCommand::Export(args) => block_on(export::run(args)),
        ProfilesCommand::History(args) => block_on(history::run(args)),
        ProfilesCommand::Rollback(args) => block_on(rollback::run(args)),
    }
}

impl Profile {
    /// Sets annotations; null removes one.
    ///
    /// # Errors
    /// The profile has changed since it was read (409), or the request fails for another reason.
    pub(crate) async fn annotate(&self, annotations: &Value) -> kube::Result<()> {
        let name = self.stored.metadata.name.as_deref().unwrap_or_default();
        // With `resourceVersion`, the API server rejects the patch if the profile has changed since it was read.
        let version = &self.stored.metadata.resource_version;
        let patch = json!({"metadata": {"resourceVersion": version, "annotations": annotations}});
        self.api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }
}

impl ProfileRef {
    /// Creates a reference to the profile with this name, which may contain the namespace, as in `team-a/logger`.
    ///
    /// # Errors
    /// The name is invalid, or contains a namespace other than `namespace`.
    pub(crate) fn new(name: String, namespace: Option<String>, api_server: ApiServerArgs) -> anyhow::Result<Self> {
        Self { name, namespace, api_server }.resolve()
    }

    /// Moves the namespace of a name such as `team-a/logger` to its own field.
    ///
    /// # Errors
    /// The name is invalid, or contains a namespace other than `--namespace`.
    pub(crate) fn resolve(self) -> anyhow::Result<Self> {
        let Some((namespace, name)) = self.name.split_once('/') else { return Ok(self) };
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            bail!("{:?} is not the name of a profile: expected NAME or NAMESPACE/NAME, as in team-a/logger", self.name);
        }
        if let Some(other) = self.namespace.as_deref().filter(|other| *other != namespace) {
            bail!("profile {} is not in namespace {other}: omit --namespace", self.name);
        }
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Ok(Self { name, namespace: Some(namespace), ..self })
    }

    /// Reads the profile.
    ///
    /// # Errors
    /// The profile does not exist, or cannot be read.
    pub(crate) async fn read(&self) -> anyhow::Result<Profile> {
        let client = self.api_server.connect().await?;
        let api = self.api(&client, &self.resource());
        let found = api.get_opt(&self.name).await.with_context(|| format!("cannot read {self}"))?;
        let Some(object) = found else { bail!("there is no {self}") };
        Ok(Profile { client, api, stored: Stored::new(object) })
    }

    fn resource(&self) -> ApiResource {
        match self.namespace {
            Some(_) => ApiResource::erase::<InjectionProfile>(&()),
            None => ApiResource::erase::<ClusterInjectionProfile>(&()),
        }
    }

    fn revisions(&self, client: &Client) -> Api<DynamicObject> {
        revisions(client, self.namespace.as_deref())
    }

    fn api(&self, client: &Client, resource: &ApiResource) -> Api<DynamicObject> {
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
            None => Api::all_with(client.clone(), resource),
        }
    }

    /// Returns the arguments of commands for the profile, such as `pillion profiles rollback`.
    pub(crate) fn arguments(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} -n {namespace}", self.name),
            None => self.name.clone(),
        }
    }
}

/// Returns the API of the revisions of a namespace's profiles, or of cluster profiles.
fn revisions(client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<ProfileRevision>(&())),
        None => Api::all_with(client.clone(), &ApiResource::erase::<ClusterProfileRevision>(&())),
    }
}

/// Returns the only stored revision that begins with these digits.
///
/// # Errors
/// There is none, or more than one.
fn stored_revision(status: &ProfileStatus, digits: &str) -> anyhow::Result<String> {
    let kept = &status.revisions;
    let found: Vec<_> = kept.iter().filter(|revision| !digits.is_empty() && revision.starts_with(digits)).collect();
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        [] => bail!("no stored revision begins with {digits:?}; the stored revisions are {}", kept.join(", ")),
        _ => bail!("more than one revision begins with {digits:?}: add more digits"),
    }
}

impl std::fmt::Display for ProfileRef {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(formatter, "InjectionProfile {}/{}", namespace, self.name),
            None => write!(formatter, "ClusterInjectionProfile {}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        which: ProfileRef,
    }

    #[test]
    fn name_may_contain_namespace() {
        for (line, expected) in [
            ("pillion nginx", Ok("ClusterInjectionProfile nginx")),
            ("pillion logger -n team-a", Ok("InjectionProfile team-a/logger")),
            ("pillion team-a/logger", Ok("InjectionProfile team-a/logger")),
            ("pillion team-a/logger -n team-a", Ok("InjectionProfile team-a/logger")),
            ("pillion team-a/logger -n team-b", Err("not in namespace team-b")),
            ("pillion /logger", Err("expected NAME or NAMESPACE/NAME")),
            ("pillion a/b/c", Err("expected NAME or NAMESPACE/NAME")),
        ] {
            let which = Line::parse_from(line.split(' ')).which.resolve();
            match (which.map(|which| which.to_string()), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{line}: {error}"),
                (found, expected) => panic!("{line}: {found:?} instead of {expected:?}"),
            }
        }
    }
}
