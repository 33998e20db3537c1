//! Compares the pods of manifests under the old and the new profiles.

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use serde_json::Value;

use super::report::{Compared, Rendered};
use super::{DiffArgs, Fault};
use crate::inject::known::KnownObjects;
use crate::inject::objects::{self, Place};
use crate::inject::simulated_cluster::SimulatedCluster;
use crate::inject::{self, review};

/// Compares each pod.
pub(super) fn compare(args: &DiffArgs) -> Result<Vec<Compared>, Fault> {
    let (before, after) = (simulated(args, &args.against)?, simulated(args, &args.profiles)?);
    let documents = inject::documents(&args.files).map_err(Fault::Problems)?;
    let known = KnownObjects::new(&documents, before.default_namespace());
    let mut compared = Vec::new();
    for document in &documents {
        for place in objects::pods(document) {
            let name = place.describe(before.default_namespace());
            let rendered = |simulated| rendered(document, &place, simulated, &known).with_context(|| name.clone());
            let (before, after) = (rendered(&before)?, rendered(&after)?);
            compared.push(Compared { name, pods: 1, before, after });
        }
    }
    if compared.is_empty() {
        let files: Vec<_> = args.files.iter().map(|file| file.display().to_string()).collect();
        return Err(anyhow!("there is no pod and no workload in {}: nothing can be compared", files.join(", ")).into());
    }
    Ok(compared)
}

fn rendered(
    document: &Value,
    place: &Place,
    simulated: &SimulatedCluster,
    known: &KnownObjects,
) -> anyhow::Result<Rendered> {
    let decided = review::decide(document, place, simulated, known)?;
    let mut changed = document.clone();
    objects::apply(&mut changed, place, decided.patch.as_deref())?;
    let pod = changed.pointer(&place.pointer).cloned().unwrap_or_default();
    Ok(Rendered::new(&decided.decision, pod))
}

fn simulated(args: &DiffArgs, profiles: &[PathBuf]) -> Result<SimulatedCluster, Fault> {
    SimulatedCluster::configured(profiles, args.namespace_file.as_deref(), args.namespace.as_deref(), &args.config)?
        .map_err(Fault::Problems)
}
