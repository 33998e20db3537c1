//! `pillion uninject`: removes injected parts from manifests, using the injection records of the pods. It needs
//! no profile, because the record contains the previous state.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use pillion_engine::inject::{UndoError, Undone, undo};
use serde_json::Value;

use crate::exit::Exit;
use crate::inject::objects::{self, Changed, Output, Place};
use crate::{inject, output};

/// Arguments of `pillion uninject`.
#[derive(Clone, Debug, Args)]
pub(crate) struct UninjectArgs {
    /// Manifests with injected pods, "-" for standard input: pods, workloads with a pod template, and Lists. All other
    /// objects are printed unchanged. May be given several times.
    #[arg(short, long = "filename", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = Output::Yaml, value_name = "FORMAT")]
    output: Output,
    /// Do not print what was undone. Changes that cannot be undone are always printed.
    #[arg(short, long)]
    quiet: bool,
}

/// Prints the manifests without the injected parts. Prints nothing on standard output if there are errors.
pub(crate) fn run(args: UninjectArgs) -> anyhow::Result<Exit> {
    let UninjectArgs { files, output, quiet } = args;
    let documents = match inject::documents(&files) {
        Ok(documents) => documents,
        Err(problems) => {
            output::problems(&problems)?;
            return Ok(Exit::Failure);
        }
    };
    let mut changed = Vec::with_capacity(documents.len());
    let mut left = false;
    for before in documents {
        let mut after = before.clone();
        for place in objects::pods(&before) {
            let name = place.describe("default");
            match undo_injection(&mut after, &place).with_context(|| name.clone())? {
                None if quiet => {}
                None => output::report(&format!("{name}: nothing was injected, according to its record"))?,
                Some(undone) => {
                    left |= !undone.gone.is_empty();
                    if !quiet || !undone.gone.is_empty() {
                        output::report(&warning(&name, &undone))?;
                    }
                }
            }
        }
        let patch = serde_json::to_value(json_patch::diff(&before, &after)).context("cannot serialize the patch")?;
        let patch = patch.as_array().cloned().unwrap_or_default();
        changed.push(Changed { before, after, patch });
    }
    objects::print(changed, output, "uninjected", "default")?;
    Ok(Exit::findings(left))
}

/// Undoes the injection in one pod of a document. `None` if the pod has no injection record.
fn undo_injection(document: &mut Value, place: &Place) -> anyhow::Result<Option<Undone>> {
    let Some(pod) = document.pointer_mut(&place.pointer) else { return Ok(None) };
    let undone = match undo(&pod.to_string()) {
        Ok(undone) => undone,
        Err(UndoError::NoRecord) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut object: Value =
        serde_json::from_str(undone.object.root().raw()).context("the remaining object is not JSON")?;
    if let Some(fields) = object.as_object_mut()
        && fields.get("metadata").and_then(Value::as_object).is_some_and(serde_json::Map::is_empty)
    {
        // The metadata existed only for the record.
        fields.shift_remove("metadata");
    }
    *pod = object;
    Ok(Some(undone))
}

/// Formats what was undone in a pod.
fn warning(name: &str, undone: &Undone) -> String {
    let profiles = undone.profiles.iter().map(|(profile, revision)| format!("\n  {profile} at {revision}: removed"));
    let gone = undone.gone.iter().map(|place| {
        format!("\n  warning: {place} is missing: it was removed after the injection, so nothing is undone there")
    });
    format!("{name}: uninjected{}{}", profiles.collect::<String>(), gone.collect::<String>())
}
