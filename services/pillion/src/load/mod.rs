//! Loads profiles from files: finds, reads and compiles them, and reports errors with their positions.
//!
//! * [`defaults`]: parameter defaults that are set outside a profile's source.
//! * [`yaml`]: parses a file into a tree with positions, and finds the position of a field by its path.
//! * [`typed`]: converts the tree to Rust types, within the limits of the CRDs.
//! * [`together`]: compiles the profiles of all files together, since one may extend another.
//! * [`problem`]: an error in a file, and its format.

pub(crate) mod defaults;
pub(crate) mod problem;
mod together;
pub(crate) mod typed;
pub(crate) mod yaml;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pillion_api::names::{API_VERSION, GROUP};
use pillion_api::{
    ClusterInjectionProfile, ClusterProfileRevision, InjectionProfile, ProfileRevision, ProfileSpec, RevisionSpec,
};
use pillion_engine::profile::{CompiledProfile, ProfileName};

pub(crate) use self::defaults::Defaults;
pub(crate) use self::problem::{LoadError, Problem, Severity, Source};
use self::together::{CollectedProfiles, Text};
use self::yaml::Node;

/// The maximum size of a file with profiles, in bytes. A file may contain several profiles, and the API server stores
/// no single object that is larger than about a third of this size.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// The fields of a profile object.
const FIELDS: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];

/// The two kinds of profiles.
const KINDS: [&str; 2] = [ClusterInjectionProfile::KIND, InjectionProfile::KIND];

/// The kinds of published revisions, which `pillion profiles export` prints.
const REVISION_KINDS: [&str; 2] = [ClusterProfileRevision::KIND, ProfileRevision::KIND];

/// Compiled profiles, and the problems of profiles that did not load.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// The profiles, in the order of paths, files and documents.
    pub(crate) profiles: Vec<Arc<CompiledProfile>>,
    /// The profiles as their authors wrote them, in the order of `profiles`. Empty unless requested.
    pub(crate) texts: Vec<Written>,
    /// Problems that prevented profiles from loading, in the order of paths, files and documents.
    pub(crate) problems: Vec<Problem>,
    /// Warnings about loaded profiles.
    pub(crate) warnings: Vec<Problem>,
}

/// A profile as its author wrote it, and its file.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) file: String,
    pub(crate) name: ProfileName,
    pub(crate) spec: ProfileSpec,
}

/// The namespace of an `InjectionProfile` that does not set one.
const DEFAULT_NAMESPACE: &str = "default";

/// Loads all profiles at these paths. An `InjectionProfile` without a namespace is in `default`.
pub(crate) fn profiles(paths: &[PathBuf]) -> Loaded {
    profiles_in(paths, DEFAULT_NAMESPACE)
}

/// Loads all profiles at these paths. An `InjectionProfile` without a namespace is in `namespace`.
pub(crate) fn profiles_in(paths: &[PathBuf], namespace: &str) -> Loaded {
    Loader::new(namespace, false).load(paths, &BTreeMap::new())
}

/// Like [`profiles`], but also returns the profiles as their authors wrote them.
pub(crate) fn profiles_with_texts(paths: &[PathBuf]) -> Loaded {
    profiles_among(paths, &BTreeMap::new())
}

/// Like [`profiles_with_texts`]. The profiles in the files may extend or replace `others`, which are cluster profiles.
pub(crate) fn profiles_among(paths: &[PathBuf], others: &BTreeMap<Box<str>, ProfileSpec>) -> Loaded {
    Loader::new(DEFAULT_NAMESPACE, true).load(paths, others)
}

/// Loads the profiles of a source. They may extend `others`, which are cluster profiles. `defaults` override the
/// defaults of the profiles' parameters.
pub(crate) fn profiles_of(
    source: &Arc<Source>,
    namespace: &str,
    others: &BTreeMap<Box<str>, ProfileSpec>,
    defaults: Defaults,
) -> Loaded {
    let mut loader = Loader { defaults, ..Loader::new(namespace, false) };
    loader.text(source);
    loader.expect_some(&source.name, 0);
    loader.report_unused_defaults();
    loader.gathered.load(others)
}

/// Returns the names and specs of the readable cluster profiles of a source, so that other profiles can extend them.
/// They are not compiled.
pub(crate) fn specs_of(source: &Arc<Source>) -> Vec<(Box<str>, ProfileSpec)> {
    let documents = yaml::documents(&source.text).unwrap_or_default();
    let objects = documents.iter().flat_map(Node::objects);
    let cluster = objects.filter(|object| object.text("kind") == Some(ClusterInjectionProfile::KIND));
    let read = cluster.filter_map(|object| {
        let name = object.get("metadata")?.text("name")?;
        Some((name.into(), Loader::spec(source, object).ok()?))
    });
    read.collect()
}

struct Loader<'n> {
    namespace: &'n str,
    /// Parameter defaults that are set outside the sources.
    defaults: Defaults,
    /// The file, line and column at which each name was found first.
    seen: HashMap<ProfileName, String>,
    gathered: CollectedProfiles,
}

impl<'n> Loader<'n> {
    fn new(namespace: &'n str, keeps_texts: bool) -> Self {
        let (defaults, gathered) = (Defaults::default(), CollectedProfiles::new(keeps_texts));
        Self { namespace, defaults, seen: HashMap::new(), gathered }
    }

    fn load(mut self, paths: &[PathBuf], others: &BTreeMap<Box<str>, ProfileSpec>) -> Loaded {
        for path in paths {
            self.path(path);
        }
        self.gathered.load(others)
    }

    fn path(&mut self, path: &Path) {
        let before = self.gathered.len();
        match files(path) {
            Ok(files) => files.iter().for_each(|file| self.file(file)),
            Err(error) => self.report(Problem::whole(path.display().to_string(), format!("cannot be read: {error}"))),
        }
        self.expect_some(&path.display().to_string(), before);
    }

    /// Reports a problem if a source has neither profiles nor problems. `before` is the number of results before the
    /// source was read.
    fn expect_some(&mut self, name: &str, before: usize) {
        if self.gathered.len() == before {
            let kinds = KINDS.join(" or ");
            let problem = Problem::whole(name, format!("contains no {kinds}"))
                .with_help(format!("a profile is an object with apiVersion: {API_VERSION} and one of these kinds"));
            self.report(problem);
        }
    }

    fn report_unused_defaults(&mut self) {
        for problem in std::mem::take(&mut self.defaults).unused() {
            self.report(problem);
        }
    }

    fn report(&mut self, problem: Problem) {
        self.gathered.problem(problem);
    }

    fn file(&mut self, file: &Path) {
        let name = file.display().to_string();
        let size = fs::metadata(file).map_or(0, |metadata| metadata.len());
        if size > MAX_FILE_BYTES {
            let message = format!("a file with profiles may have at most {MAX_FILE_BYTES} bytes; this one has {size}");
            return self.report(Problem::whole(name, message).with_help("split it into several files".to_owned()));
        }
        match fs::read_to_string(file) {
            Ok(text) => self.text(&Arc::new(Source::new(name, text))),
            Err(error) => self.report(Problem::whole(name, format!("cannot be read: {error}"))),
        }
    }

    fn text(&mut self, source: &Arc<Source>) {
        match yaml::documents(&source.text) {
            Ok(documents) => documents.iter().flat_map(Node::objects).for_each(|object| self.object(source, object)),
            Err(fault) => self.report(Problem::syntax(source, fault)),
        }
    }

    /// Reads a profile or a published revision. Objects of other API groups are ignored, such as a ConfigMap that a
    /// profile mounts, or a Namespace, but a profile's kind with a wrong API group is reported.
    fn object(&mut self, source: &Arc<Source>, object: &Node) {
        let api_version = object.text("apiVersion").unwrap_or_default();
        let kind = object.text("kind").unwrap_or_default();
        let ours = api_version.split('/').next() == Some(GROUP);
        if !ours && !KINDS.contains(&kind) {
            return;
        }
        let place = |field| object.entry(field).map_or_else(|| object.span.clone(), |entry| entry.value.span.clone());
        if REVISION_KINDS.contains(&kind) && api_version == API_VERSION {
            return match self.revision(source, object, kind) {
                Ok((name, revision)) => self.add_revision(source, object, name, &revision),
                Err(problem) => self.report(problem),
            };
        }
        if !KINDS.contains(&kind) {
            let help = typed::meant(kind, KINDS).map(|meant| format!("did you mean `{meant}`?"));
            let problem = Problem::at(source, place("kind"), format!("`{kind}` is not a kind of {GROUP}"));
            return self
                .report(problem.with_help(help.or_else(|| Some(format!("the kinds are {}", KINDS.join(" and "))))));
        }
        if api_version != API_VERSION {
            let message = format!("apiVersion `{api_version}` is not supported by this build");
            return self
                .report(Problem::at(source, place("apiVersion"), message).with_help(format!("use {API_VERSION}")));
        }
        let unknown: Vec<_> = typed::unknown_fields(source, object, &FIELDS).collect();
        let name = self.name(source, object, kind);
        let spec = Self::spec(source, object);
        let exceeded = object.get("spec").map(|spec| typed::exceeded_limits(source, kind, spec)).unwrap_or_default();
        let faults: Vec<_> = unknown.into_iter().chain(exceeded).collect();
        match (name, spec) {
            (Ok(name), Ok(spec)) if faults.is_empty() => self.profile(source, object, name, spec),
            (name, spec) => {
                if let Ok(ProfileName { namespace: None, name }) = &name {
                    self.gathered.unreadable(name);
                }
                let problems = faults.into_iter().chain([name.err(), spec.err()].into_iter().flatten());
                problems.for_each(|problem| self.report(problem));
            }
        }
    }

    fn name(&self, source: &Arc<Source>, object: &Node, kind: &str) -> Result<ProfileName, Problem> {
        let Some(metadata) = object.get("metadata") else {
            return Err(Problem::at(source, object.span.clone(), "metadata.name is missing"));
        };
        let ObjectMeta { name, namespace, .. } = typed::read(source, metadata, "metadata")?;
        let at = |field| metadata.entry(field).map_or_else(|| metadata.span.clone(), |entry| entry.value.span.clone());
        let name = name.unwrap_or_default();
        if name.is_empty() {
            return Err(Problem::at(source, at("name"), "metadata.name is missing"));
        }
        if !is_subdomain(&name) {
            return Err(Problem::at(
                source,
                at("name"),
                format!("metadata.name: `{name}` is not a valid Kubernetes name"),
            )
            .with_help(
                "use at most 253 lower-case letters, digits, `-` and `.`; begin and end with a letter or digit"
                    .to_owned(),
            ));
        }
        let namespace = match (kind == InjectionProfile::KIND, namespace) {
            (true, namespace) => Some(namespace.unwrap_or_else(|| self.namespace.to_owned()).into()),
            (false, None) => None,
            (false, Some(_)) => {
                return Err(Problem::at(source, at("namespace"), format!("a {kind} has no namespace"))
                    .with_help(format!("remove the namespace, or change the kind to {}", InjectionProfile::KIND)));
            }
        };
        Ok(ProfileName { namespace, name: name.into() })
    }

    /// Reads a published revision. The object has a different name than its profile.
    fn revision(
        &self,
        source: &Arc<Source>,
        object: &Node,
        kind: &str,
    ) -> Result<(ProfileName, RevisionSpec), Problem> {
        let missing = || Problem::at(source, object.span.clone(), "spec is missing");
        let revision: RevisionSpec = typed::read(source, object.get("spec").ok_or_else(missing)?, "spec")?;
        let namespace = (kind == ProfileRevision::KIND).then(|| {
            let namespace = object.get("metadata").and_then(|metadata| metadata.text("namespace"));
            namespace.unwrap_or(self.namespace).into()
        });
        Ok((ProfileName { namespace, name: revision.profile.as_str().into() }, revision))
    }

    fn add_revision(&mut self, source: &Arc<Source>, object: &Node, name: ProfileName, revision: &RevisionSpec) {
        if self.is_first(source, object.span.clone(), &name) {
            self.gathered.revision(source, object, name, revision);
        }
    }

    fn spec(source: &Arc<Source>, object: &Node) -> Result<ProfileSpec, Problem> {
        match object.get("spec") {
            Some(spec) if matches!(spec.content, yaml::Content::Mapping(_)) => typed::read(source, spec, "spec"),
            Some(spec) => {
                let at = object.entry("spec").map_or_else(|| object.span.clone(), |entry| entry.key_span.clone());
                Err(Problem::at(source, at, format!("spec must be a mapping, found {}", typed::type_of(spec))))
            }
            None => Err(Problem::at(source, object.span.clone(), "spec is missing")),
        }
    }

    fn profile(&mut self, source: &Arc<Source>, object: &Node, name: ProfileName, mut spec: ProfileSpec) {
        let at = object.get("metadata").and_then(|metadata| metadata.entry("name"));
        let at = at.map_or_else(|| object.span.clone(), |entry| entry.value.span.clone());
        if !self.is_first(source, at, &name) {
            return;
        }
        let is_as_written = !self.defaults.set(&name, &mut spec);
        let text = Text { source: Arc::clone(source), start: object.span.start, name, spec, is_as_written };
        self.gathered.profile(text, object);
    }

    /// Whether no earlier profile has this name. Otherwise reports a problem.
    fn is_first(&mut self, source: &Arc<Source>, at: Range<usize>, name: &ProfileName) -> bool {
        let here = Problem::at(source, at, format!("there is another profile {name}"));
        if let Some(first) = self.seen.get(name) {
            let help = format!("the other one is at {first}; names must be unique");
            self.report(here.with_help(help));
            return false;
        }
        let (line, column) = here.position().unwrap_or((1, 1));
        self.seen.insert(name.clone(), format!("{}:{line}:{column}", source.name));
        true
    }
}

/// Names of folders that contain test objects instead of profiles.
const EXCLUDED_FOLDERS: [&str; 6] = ["case", "cases", "fixtures", "test", "testdata", "tests"];

/// Returns the files that a path names, sorted: the file itself, or the YAML and JSON files in a folder and in its
/// direct subfolders, without hidden files and folders and without [`EXCLUDED_FOLDERS`]. So the path can be the folder
/// of one profile, or the folder of all profiles.
pub(crate) fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in sorted(path)? {
        if !entry.is_dir() {
            found.extend(is_profile_file(&entry).then_some(entry));
        } else if !is_excluded(&entry) {
            found.extend(sorted(&entry)?.into_iter().filter(|below| !below.is_dir() && is_profile_file(below)));
        }
    }
    Ok(found)
}

fn sorted(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    entries.sort();
    Ok(entries)
}

/// Whether a path is hidden. A mounted ConfigMap has folders like `..data` with copies of the files.
fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
}

fn is_excluded(folder: &Path) -> bool {
    let name = folder.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    is_hidden(folder) || EXCLUDED_FOLDERS.contains(&&*name)
}

fn is_profile_file(file: &Path) -> bool {
    let extension = file.extension().map(|extension| extension.to_string_lossy()).unwrap_or_default();
    !is_hidden(file) && ["yaml", "yml", "json"].contains(&&*extension)
}

/// Whether a name is a DNS subdomain, as Kubernetes requires.
fn is_subdomain(name: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.iter().all(|&c| inner(c) || c == b'-')
            && bytes.first().is_some_and(|&c| inner(c))
            && bytes.last().is_some_and(|&c| inner(c))
    };
    name.len() <= 253 && name.split('.').all(label)
}

#[cfg(test)]
mod tests;
