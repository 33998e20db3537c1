//! `pillion crds`: prints the custom resource definitions for `kubectl apply -f -`. With `--apply`, applies them
//! without kubectl, for example in a Job before an upgrade.

use anyhow::Context;
use clap::Args;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::Value;

use crate::args::{ApiServerArgs, block_on};
use crate::exit::Exit;
use crate::output::{self, Format};

/// The field manager for server-side apply.
const FIELD_MANAGER: &str = "pillion-crds";

/// Arguments of `pillion crds`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CrdsArgs {
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = Format::Yaml, value_name = "FORMAT")]
    output: Format,
    /// Apply the CRDs to the cluster with server-side apply, and print only their names. Changes by other field
    /// managers are overwritten.
    #[arg(long, conflicts_with = "output")]
    apply: bool,
    #[command(flatten)]
    api_server: ApiServerArgs,
}

/// Prints or applies all CRDs.
pub(crate) fn run(args: CrdsArgs) -> anyhow::Result<Exit> {
    let CrdsArgs { output, apply, api_server } = args;
    let definitions = pillion_api::crd::definitions().context("cannot generate the CRDs")?;
    let objects = definitions
        .iter()
        .map(|definition| serde_json::to_value(definition).map(without_nulls))
        .collect::<Result<Vec<_>, _>>()
        .context("cannot serialize the CRDs")?;
    if apply {
        return block_on(applied(objects, api_server));
    }
    output::print(&output::objects(&objects, output)?)?;
    Ok(Exit::Success)
}

/// Applies the CRDs in order, and stops at the first one that fails. The CRDs applied before it are not reverted, which
/// is safe: they are compatible with the versions that the API server serves.
async fn applied(objects: Vec<Value>, api_server: ApiServerArgs) -> anyhow::Result<Exit> {
    let client = api_server.client().await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    for object in objects {
        let name = object.pointer("/metadata/name").and_then(Value::as_str).context("a CRD has no name")?;
        let applied = definitions.patch(name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&object)).await;
        applied.with_context(|| format!("cannot apply the CRD {name}"))?;
        output::print(&format!("{name}\n"))?;
    }
    Ok(Exit::Success)
}

/// Removes fields that are null, because the API server would store them as explicit values.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(key, value)| (key, without_nulls(value)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}
