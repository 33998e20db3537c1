//! Compiling the profiles of all files together, as one may extend another wherever that one stands.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pillion_api::ProfileSpec;
use pillion_engine::profile::{
    CompiledProfile, Diagnostic, MAX_CHAIN, Parent, Parents, Part, ProfileName, advise, compile_with,
};

use super::problem::{Problem, Source};
use super::yaml::{self, Node};
use super::{Loaded, place};

/// What stands in the files, in their order.
#[derive(Debug)]
pub(super) enum Found {
    /// A profile that can be read.
    Profile(Box<Text>),
    /// Something that is wrong.
    Problem(Problem),
}

/// A profile as its author wrote it.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) source: Arc<Source>,
    /// Where its object begins in the source. Thousands of profiles are held at once, so their nodes are not.
    pub(super) start: usize,
    pub(super) name: ProfileName,
    pub(super) spec: ProfileSpec,
}

/// The cluster profiles of all files, as those that extend them find them.
struct Texts<'f> {
    specs: BTreeMap<&'f str, &'f ProfileSpec>,
    /// Those that do not compile, or whose text cannot be read.
    broken: BTreeSet<&'f str>,
}

impl Parents for Texts<'_> {
    fn parent(&self, name: &str) -> Parent<'_> {
        let spec = self.specs.get(name).map(|spec| Cow::Borrowed(*spec));
        match spec {
            spec if self.broken.contains(name) => Parent::Broken(spec),
            Some(spec) => Parent::Accepted(spec),
            None => Parent::Unknown,
        }
    }

    fn names(&self) -> Vec<&str> {
        self.specs.keys().chain(&self.broken).copied().collect()
    }
}

/// Compiles all. `unreadable` are the cluster profiles that are there and whose text cannot be read.
pub(super) fn compile(found: Vec<Found>, unreadable: &BTreeSet<String>) -> Loaded {
    let texts: Vec<&Text> = found.iter().filter_map(Found::text).collect();
    let is_cluster = |text: &&&Text| text.name.namespace.is_none();
    let mut parents = Texts {
        specs: texts.iter().filter(is_cluster).map(|text| (&*text.name.name, &text.spec)).collect(),
        broken: unreadable.iter().map(String::as_str).collect(),
    };
    // Parents first, so that who extends a broken one is told that, and not all its mistakes again.
    let mut order: Vec<_> = texts.iter().map(|text| (depth(&text.spec, &parents), *text)).collect();
    order.sort_by_key(|(depth, text)| (text.name.namespace.is_some(), *depth));
    let mut compiled = BTreeMap::new();
    for (_, text) in order {
        let profile = compile_with(&text.name, &text.spec, &parents);
        if profile.is_err() && text.name.namespace.is_none() {
            parents.broken.insert(&text.name.name);
        }
        compiled.insert(text.name.clone(), profile);
    }
    let mut loaded = Loaded::default();
    let mut reader = Reader::default();
    for found in found {
        match found {
            Found::Problem(problem) => loaded.problems.push(problem),
            Found::Profile(text) => {
                if let Some(compiled) = compiled.remove(&text.name) {
                    loaded.add(&text, compiled, &mut reader);
                }
            }
        }
    }
    loaded
}

impl Found {
    fn text(&self) -> Option<&Text> {
        match self {
            Self::Profile(text) => Some(text),
            Self::Problem(_) => None,
        }
    }
}

/// The file that was read last, so that a file with many mistakes is not read for each.
#[derive(Default)]
struct Reader {
    source: Option<Arc<Source>>,
    documents: Vec<Node>,
}

impl Reader {
    /// The object of a profile, read once more.
    fn object(&mut self, text: &Text) -> Option<&Node> {
        if !self.source.as_ref().is_some_and(|source| Arc::ptr_eq(source, &text.source)) {
            self.documents = yaml::documents(&text.source.text).ok()?;
            self.source = Some(Arc::clone(&text.source));
        }
        self.documents.iter().find_map(|document| find(document, text.start))
    }
}

/// The object that begins at a byte: a document, or an item of a list of objects.
fn find(node: &Node, start: usize) -> Option<&Node> {
    if node.text("kind") == Some("List") {
        return node.get("items").map(Node::items).into_iter().flatten().find_map(|item| find(item, start));
    }
    (node.span.start == start).then_some(node)
}

impl Loaded {
    fn add(&mut self, text: &Text, compiled: Result<CompiledProfile, Vec<Diagnostic>>, reader: &mut Reader) {
        match compiled {
            Ok(profile) => {
                self.profiles.push(Arc::new(profile));
                let advice = advise(&text.spec);
                if !advice.is_empty() {
                    self.warnings.extend(told(text, advice, reader).map(Problem::harmless));
                }
                self.specs.push(text.spec.clone());
            }
            Err(diagnostics) => {
                let mut problems: Vec<_> = told(text, diagnostics, reader).collect();
                problems.sort_by_key(|problem| problem.span.as_ref().map(|span| span.start));
                self.problems.extend(problems);
            }
        }
    }
}

/// Mistakes with their places.
fn told(text: &Text, diagnostics: Vec<Diagnostic>, reader: &mut Reader) -> impl Iterator<Item = Problem> {
    let object = reader.object(text);
    let problems: Vec<_> = diagnostics
        .into_iter()
        .map(|diagnostic| {
            let at = object.map_or(text.start..text.start, |object| match &diagnostic.part {
                Part::Value => place::of(object, &diagnostic.path),
                Part::Name => place::of_name(object, &diagnostic.path),
                Part::Bytes(part) => place::of_part(&text.source.text, object, &diagnostic.path, part),
            });
            Problem::at(&text.source, at, diagnostic.message).of_field(diagnostic.path).with_help(diagnostic.help)
        })
        .collect();
    problems.into_iter()
}

/// How many profiles a profile extends, as far as that is of interest: of a longer chain, or of one that is a circle, the
/// order does not matter.
fn depth(spec: &ProfileSpec, parents: &Texts<'_>) -> usize {
    let next = |spec: &&ProfileSpec| parents.specs.get(spec.extends.as_ref()?.name.as_str()).copied();
    std::iter::successors(Some(spec), next).take(MAX_CHAIN + 1).count()
}
