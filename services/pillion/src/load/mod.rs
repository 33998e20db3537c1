//! Profiles from files: found, read, compiled, and what is wrong with them told at its place.
//!
//! * [`files`]: which files a path names.
//! * [`yaml`]: a file's text as a tree that knows where everything stands.
//! * [`typed`]: from the tree to Rust types.
//! * [`place`]: from a field's path to its place.
//! * [`together`]: from the texts of all files to profiles, as one may extend another.
//! * [`problem`]: what is wrong, and how it is shown.

pub(crate) mod files;
pub(crate) mod place;
pub(crate) mod problem;
mod together;
pub(crate) mod typed;
pub(crate) mod yaml;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pillion_api::names::{API_VERSION, GROUP};
use pillion_api::{ClusterInjectionProfile, InjectionProfile, ProfileSpec};
use pillion_engine::profile::{CompiledProfile, ProfileName};

pub(crate) use self::problem::{Problem, Source};
use self::together::{Found, Text};
use self::yaml::Node;

/// How large a file with profiles may be, in bytes. The API server takes no object of a third of it.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// The fields of an object that is a profile.
const FIELDS: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];

/// The two kinds.
const KINDS: [&str; 2] = [ClusterInjectionProfile::KIND, InjectionProfile::KIND];

/// Profiles, and what is wrong with those that are not among them.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// In the order of the paths, files and documents.
    pub(crate) profiles: Vec<Arc<CompiledProfile>>,
    /// The texts of the profiles, in the same order.
    pub(crate) specs: Vec<ProfileSpec>,
    /// What keeps profiles from being among them, in the same order.
    pub(crate) problems: Vec<Problem>,
    /// What should be looked at in those that are.
    pub(crate) warnings: Vec<Problem>,
}

/// Loads all profiles that the paths name. A tenant's profile that does not say its namespace is in `default`.
pub(crate) fn profiles(paths: &[PathBuf]) -> Loaded {
    profiles_in(paths, "default")
}

/// Loads all profiles that the paths name; a tenant's profile that does not say its namespace is in this one.
pub(crate) fn profiles_in(paths: &[PathBuf], namespace: &str) -> Loaded {
    let mut loader = Loader { namespace, seen: HashMap::new(), found: Vec::new(), unreadable: BTreeSet::new() };
    for path in paths {
        loader.path(path);
    }
    together::compile(loader.found, &loader.unreadable)
}

struct Loader<'n> {
    namespace: &'n str,
    /// Where each name was first found.
    seen: HashMap<ProfileName, Problem>,
    found: Vec<Found>,
    /// Cluster profiles whose text cannot be read.
    unreadable: BTreeSet<String>,
}

impl Loader<'_> {
    fn path(&mut self, path: &Path) {
        let before = self.found.len();
        match files::of(path) {
            Ok(files) => files.iter().for_each(|file| self.file(file)),
            Err(error) => self.report(Problem::whole(path.display().to_string(), format!("cannot be read: {error}"))),
        }
        if self.found.len() == before {
            let kinds = KINDS.join(" or ");
            let problem = Problem::whole(path.display().to_string(), format!("there is no {kinds} in it"))
                .with_help(format!("a profile is an object with apiVersion: {API_VERSION} and one of these kinds"));
            self.report(problem);
        }
    }

    fn report(&mut self, problem: Problem) {
        self.found.push(Found::Problem(problem));
    }

    fn file(&mut self, file: &Path) {
        let name = file.display().to_string();
        let size = fs::metadata(file).map_or(0, |metadata| metadata.len());
        if size > MAX_FILE_BYTES {
            let message = format!("a file with profiles has at most {MAX_FILE_BYTES} bytes, and this has {size}");
            return self.report(Problem::whole(name, message).with_help("make several files of it".to_owned()));
        }
        match fs::read_to_string(file) {
            Ok(text) => self.text(name, text),
            Err(error) => self.report(Problem::whole(name, format!("cannot be read: {error}"))),
        }
    }

    fn text(&mut self, name: String, text: String) {
        let source = Arc::new(Source::new(name, text));
        match yaml::documents(&source.text) {
            Ok(documents) => documents.iter().for_each(|document| self.document(&source, document)),
            Err(fault) => self.report(Problem::syntax(&source, fault)),
        }
    }

    fn document(&mut self, source: &Arc<Source>, document: &Node) {
        if document.text("kind") == Some("List") {
            let items = document.get("items").map(Node::items).unwrap_or_default();
            for item in items {
                self.object(source, item);
            }
        } else {
            self.object(source, document);
        }
    }

    /// Objects of other kinds stand beside profiles without harm: a ConfigMap that a profile mounts, a Namespace.
    fn object(&mut self, source: &Arc<Source>, object: &Node) {
        let api_version = object.text("apiVersion").unwrap_or_default();
        let kind = object.text("kind").unwrap_or_default();
        let ours = api_version.split('/').next() == Some(GROUP);
        if !ours && !KINDS.contains(&kind) {
            return;
        }
        let place = |field| object.entry(field).map_or_else(|| object.span.clone(), |entry| entry.value.span.clone());
        if !KINDS.contains(&kind) {
            let help = typed::meant(kind, KINDS).map(|meant| format!("did you mean `{meant}`?"));
            let problem = Problem::at(source, place("kind"), format!("`{kind}` is not a kind of {GROUP}"));
            return self.report(problem.with_help(help.or_else(|| Some(format!("there is {}", KINDS.join(" and "))))));
        }
        if api_version != API_VERSION {
            let message = format!("apiVersion `{api_version}` is not one that this build knows");
            return self
                .report(Problem::at(source, place("apiVersion"), message).with_help(format!("use {API_VERSION}")));
        }
        let unknown: Vec<_> = typed::unknown_fields(source, object, &FIELDS).collect();
        let name = self.name(source, object, kind);
        let spec = Self::spec(source, object);
        match (name, spec) {
            (Ok(name), Ok(spec)) if unknown.is_empty() => self.profile(source, object, name, spec),
            (name, spec) => {
                if let Ok(ProfileName { namespace: None, name }) = &name {
                    self.unreadable.insert(name.to_string());
                }
                let problems = unknown.into_iter().chain([name.err(), spec.err()].into_iter().flatten());
                self.found.extend(problems.map(Found::Problem));
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
                format!("metadata.name: `{name}` is not a name of Kubernetes"),
            )
            .with_help(
                "use small letters, digits, `-` and `.`, at most 253, a letter or digit first and last".to_owned(),
            ));
        }
        let namespace = match (kind == InjectionProfile::KIND, namespace) {
            (true, namespace) => Some(namespace.unwrap_or_else(|| self.namespace.to_owned()).into()),
            (false, None) => None,
            (false, Some(_)) => {
                return Err(Problem::at(source, at("namespace"), format!("a {kind} is in no namespace"))
                    .with_help(format!("take the namespace away, or make it an {}", InjectionProfile::KIND)));
            }
        };
        Ok(ProfileName { namespace, name: name.into() })
    }

    fn spec(source: &Arc<Source>, object: &Node) -> Result<ProfileSpec, Problem> {
        match object.get("spec") {
            Some(spec) if matches!(spec.content, yaml::Content::Mapping(_)) => typed::read(source, spec, "spec"),
            Some(spec) => {
                let at = object.entry("spec").map_or_else(|| object.span.clone(), |entry| entry.key_span.clone());
                Err(Problem::at(source, at, format!("spec has to be a mapping and is {}", typed::type_of(spec))))
            }
            None => Err(Problem::at(source, object.span.clone(), "spec is missing")),
        }
    }

    fn profile(&mut self, source: &Arc<Source>, object: &Node, name: ProfileName, spec: ProfileSpec) {
        let at = object.get("metadata").and_then(|metadata| metadata.entry("name"));
        let at = at.map_or_else(|| object.span.clone(), |entry| entry.value.span.clone());
        let here = Problem::at(source, at, format!("there is another profile {name}"));
        if let Some(first) = self.seen.get(&name) {
            let (line, column) = first.position().unwrap_or((1, 1));
            let help = format!("the other one is at {}:{line}:{column}; names have to be unique", first.source.name);
            return self.report(here.with_help(help));
        }
        self.seen.insert(name.clone(), here);
        let (source, start) = (Arc::clone(source), object.span.start);
        self.found.push(Found::Profile(Box::new(Text { source, start, name, spec })));
    }
}

/// Whether a name is a DNS subdomain, as names of custom resources are.
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
