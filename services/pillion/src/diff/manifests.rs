//! Compares the pods of manifests, in two states of the manifests, of the profiles, or of both. Workloads are matched
//! by kind, namespace and name.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde_json::Value;

use super::{Compared, DiffArgs, Position, Rendered};
use crate::inject;
use crate::inject::objects::{self, Place};
use crate::inject::simulated_cluster::{self, KnownObjects, SimulatedCluster};
use crate::load::{self, LoadError, Problem};

/// Files that mark a folder as the input of a tool, and the command that writes its manifests.
const UNRENDERED: [(&str, &str); 4] = [
    ("kustomization.yaml", "kubectl kustomize"),
    ("kustomization.yml", "kubectl kustomize"),
    ("Kustomization", "kubectl kustomize"),
    ("Chart.yaml", "helm template"),
];

/// A document, and its pods.
struct Manifest {
    document: Value,
    pods: Vec<(Place, Option<Position>)>,
}

/// Identifies a workload: `Deployment shop/web`, and its number among the workloads of this name, from 0. A name may
/// occur several times if it is generated, or if the manifests contain a workload twice.
type Key = (String, usize);

/// Compares each pod of the manifests.
pub(super) fn compare(args: &DiffArgs) -> Result<Vec<Compared>, LoadError> {
    let inputs = args.files.iter().chain(&args.against_files).filter(|file| file.as_os_str() == "-").count();
    if inputs > 1 {
        return Err(anyhow!(
            "\"-\" is given {inputs} times, but standard input can be read only once: write the other manifests to a file"
        )
        .into());
    }
    let against = if args.against.is_empty() { &args.profiles } else { &args.against };
    // An empty folder is valid here, because a pull request may add the first profile.
    let against: Vec<_> = against.iter().filter(|path| !is_empty_folder(path)).cloned().collect();
    let (old_cluster, new_cluster) = (simulated(args, &against)?, simulated(args, &args.profiles)?);
    let new = read(&args.files)?;
    let old = if args.against_files.is_empty() { None } else { Some(read(&args.against_files)?) };
    let mut before: BTreeMap<Key, Rendered> = BTreeMap::new();
    for (key, rendered, _) in render(old.as_ref().unwrap_or(&new), &old_cluster)? {
        before.insert(key, rendered);
    }
    let mut compared = Vec::new();
    for (key, rendered, at) in render(&new, &new_cluster)? {
        let before = before.remove(&key);
        compared.push(Compared { name: key.0, pods: 1, before, after: Some(rendered), at });
    }
    compared.extend(before.into_iter().map(|((name, _), before)| Compared {
        name,
        pods: 1,
        before: Some(before),
        after: None,
        at: None,
    }));
    if compared.is_empty() {
        let files = args.files.iter().chain(&args.against_files);
        let files: Vec<_> = files.map(|file| file.display().to_string()).collect();
        return Err(anyhow!("{} contains no pod and no workload: nothing can be compared", files.join(", ")).into());
    }
    Ok(compared)
}

fn simulated(args: &DiffArgs, profiles: &[PathBuf]) -> Result<SimulatedCluster, LoadError> {
    SimulatedCluster::configured(profiles, args.namespace_file.as_deref(), args.namespaces.named(), &args.config)
}

fn is_empty_folder(path: &Path) -> bool {
    path.is_dir() && load::files(path).is_ok_and(|files| files.is_empty())
}

/// Reads manifests, with the positions of their pods.
fn read(paths: &[PathBuf]) -> Result<Vec<Manifest>, LoadError> {
    let (mut manifests, mut problems) = (Vec::new(), Vec::new());
    for path in paths {
        let mut files = Vec::new();
        match collect_files(path, &mut files) {
            Ok(()) => {}
            Err(problem) => problems.push(problem),
        }
        for file in files {
            let is_file = file.as_os_str() != "-";
            let source = inject::read(&file).and_then(|source| Ok((inject::nodes(&source)?, source)));
            let (nodes, source) = match source {
                Ok(read) => read,
                Err(problem) => {
                    problems.push(problem);
                    continue;
                }
            };
            manifests.extend(nodes.iter().map(|node| {
                let document = node.to_value();
                let pods = objects::pods(&document).into_iter().map(|place| {
                    let line = source.line(node.place(&place.path()).start).0;
                    (place, is_file.then(|| Position { file: source.name.clone(), line }))
                });
                let pods = pods.collect();
                Manifest { document, pods }
            }));
        }
    }
    if problems.is_empty() { Ok(manifests) } else { Err(LoadError::Problems(problems)) }
}

/// Adds a file, or the YAML and JSON files in a folder and its subfolders, sorted. Hidden files and folders and linked
/// subfolders are skipped. Returns a problem if a folder cannot be read, or contains one of the [`UNRENDERED`] files.
fn collect_files(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), Problem> {
    let unreadable = |error: io::Error| Problem::whole(path.display().to_string(), format!("cannot be read: {error}"));
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>).map_err(unreadable)?;
    let mut entries: Vec<_> = entries.into_iter().map(|entry| (entry.path(), entry.file_name())).collect();
    entries.sort();
    for (name, command) in UNRENDERED {
        if entries.iter().any(|(_, entry)| *entry == name) {
            let folder = path.display();
            let problem =
                Problem::whole(folder.to_string(), format!("contains {name}, so it is not a folder of manifests"));
            return Err(
                problem.with_help(format!("write its manifests to a file, and compare the file: {command} {folder}"))
            );
        }
    }
    for (entry, _) in entries.into_iter().filter(|(_, name)| !name.to_string_lossy().starts_with('.')) {
        let extension = entry.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if entry.is_dir() {
            if !entry.is_symlink() {
                collect_files(&entry, files)?;
            }
        } else if ["yaml", "yml", "json"].contains(&extension) {
            files.push(entry);
        }
    }
    Ok(())
}

/// Runs the engine on each pod of the manifests.
fn render(
    manifests: &[Manifest],
    simulated: &SimulatedCluster,
) -> anyhow::Result<Vec<(Key, Rendered, Option<Position>)>> {
    let namespace = simulated.default_namespace();
    let known = KnownObjects::new(manifests.iter().map(|manifest| &manifest.document), namespace);
    let mut names: HashMap<String, usize> = HashMap::new();
    let mut all = Vec::new();
    for Manifest { document, pods } in manifests {
        for (place, at) in pods {
            let name = place.describe(namespace);
            let rendered = render_pod(document, place, simulated, &known).with_context(|| name.clone())?;
            let count = names.entry(name.clone()).or_default();
            all.push(((name, *count), rendered, at.clone()));
            *count += 1;
        }
    }
    Ok(all)
}

fn render_pod(
    document: &Value,
    place: &Place,
    simulated: &SimulatedCluster,
    known: &KnownObjects,
) -> anyhow::Result<Rendered> {
    let decided = simulated_cluster::decide(document, place, simulated, known)?;
    let mut changed = document.clone();
    objects::apply(&mut changed, place, decided.patch.as_deref())?;
    let pod = changed.pointer(&place.pointer).cloned().unwrap_or_default();
    Ok(Rendered::new(&decided.decision, pod))
}
