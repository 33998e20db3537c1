//! `pillion crds`: prints the definitions of the custom resources, for `kubectl apply -f -`.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde_json::Value;

use crate::output::{self, Format};

/// Arguments of `pillion crds`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CrdsArgs {
    /// How they are printed.
    #[arg(short, long, value_enum, default_value_t = Format::Yaml, value_name = "FORMAT")]
    output: Format,
}

/// Prints all definitions.
#[expect(clippy::needless_pass_by_value, reason = "every command takes its arguments by value")]
pub(crate) fn run(args: CrdsArgs) -> anyhow::Result<ExitCode> {
    let CrdsArgs { output } = args;
    let definitions = pillion_api::crd::definitions().context("the definitions cannot be made")?;
    let objects = definitions
        .iter()
        .map(|definition| serde_json::to_value(definition).map(without_nulls))
        .collect::<Result<Vec<_>, _>>()
        .context("the definitions cannot be written")?;
    output::print(&output::objects(&objects, output)?)?;
    Ok(ExitCode::SUCCESS)
}

/// The API server would keep a null as if it had been said.
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
