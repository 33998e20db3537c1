//! `pillion profiles`: lists profiles, shows the stored revisions of a profile, and rolls a profile back to one of
//! them.

mod history;
mod list;
mod rollback;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client};
use pillion_api::kinds::ProfileStatus;
use pillion_api::{ClusterInjectionProfile, ClusterProfileRevision, InjectionProfile, ProfileRevision};

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
    /// List the stored revisions of a profile, most recently published first.
    History(history::HistoryArgs),
    /// Publish an older revision of a profile again, for all workloads, until a changed profile is accepted.
    Rollback(rollback::RollbackArgs),
}

/// The profile that a command uses.
#[derive(Clone, Debug, Args)]
struct ProfileRef {
    /// Name of the profile.
    #[arg(value_name = "NAME")]
    name: String,
    /// Namespace of an `InjectionProfile`. Without it: a `ClusterInjectionProfile`.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    api_server: ApiServerArgs,
}

/// A profile in the cluster, with its API client.
struct Profile {
    client: Client,
    api: Api<DynamicObject>,
    metadata: ObjectMeta,
    status: ProfileStatus,
}

/// Runs the subcommand.
pub(crate) fn run(args: ProfilesArgs) -> anyhow::Result<Exit> {
    match args.command {
        ProfilesCommand::List(args) => block_on(list::run(args)),
        ProfilesCommand::History(args) => block_on(history::run(args)),
        ProfilesCommand::Rollback(args) => block_on(rollback::run(args)),
    }
}

impl ProfileRef {
    async fn read(&self) -> anyhow::Result<Profile> {
        let client = self.api_server.connect().await?;
        let api = self.api(&client, &self.resource());
        let found = api.get_opt(&self.name).await.with_context(|| format!("cannot read {self}"))?;
        let Some(mut object) = found else { bail!("there is no {self}") };
        let status = object.data.get_mut("status").map_or(serde_json::Value::Null, serde_json::Value::take);
        let status = serde_json::from_value(status).unwrap_or_default();
        Ok(Profile { client, api, metadata: object.metadata, status })
    }

    fn resource(&self) -> ApiResource {
        match self.namespace {
            Some(_) => ApiResource::erase::<InjectionProfile>(&()),
            None => ApiResource::erase::<ClusterInjectionProfile>(&()),
        }
    }

    fn revisions(&self, client: &Client) -> Api<DynamicObject> {
        let resource = match self.namespace {
            Some(_) => ApiResource::erase::<ProfileRevision>(&()),
            None => ApiResource::erase::<ClusterProfileRevision>(&()),
        };
        self.api(client, &resource)
    }

    fn api(&self, client: &Client, resource: &ApiResource) -> Api<DynamicObject> {
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
            None => Api::all_with(client.clone(), resource),
        }
    }

    /// Returns the arguments of `pillion profiles` for the profile.
    fn arguments(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} -n {namespace}", self.name),
            None => self.name.clone(),
        }
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
