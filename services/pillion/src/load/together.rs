//! Compiles the profiles of all files together, since a profile may extend one in another file.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pillion_api::{ProfileSpec, RevisionSpec};
use pillion_engine::profile::{
    CompiledProfile, Diagnostic, MAX_CHAIN, Parent, Parents, Part, ProfileName, ProfileSource, compile, warnings,
};

use super::problem::{Problem, Source};
use super::yaml::{self, Node};
use super::{Loaded, Written};

/// Collects the profiles of all files, which are read one after the other.
///
/// A profile that extends nothing is compiled when it is read. A source takes three times the memory of the compiled
/// profile, and a process does not return its peak memory. Therefore, the sources of thousands of profiles must not be
/// in memory at the same time.
#[derive(Debug)]
pub(super) struct CollectedProfiles {
    keeps_texts: bool,
    /// The results, in the order of the files.
    found: Vec<Found>,
    /// The JSON specs of cluster profiles that extend nothing, by name. Other profiles may extend these.
    roots: BTreeMap<Box<str>, String>,
    /// Cluster profiles that do not compile, or whose objects have other problems, such as an unknown field.
    broken: BTreeSet<Box<str>>,
}

/// A result from a file.
#[derive(Debug)]
enum Found {
    /// A profile that extends another, possibly in a file that is not read yet.
    Extending(Box<Text>),
    /// The result of compiling a profile that extends nothing.
    Compiled(Box<Loaded>),
    /// A problem that was found before compiling, such as a syntax error.
    Problem(Problem),
}

/// A profile as its author wrote it.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) source: Arc<Source>,
    /// The offset of the profile's object in the source. Nodes are not kept, since there may be many.
    pub(super) start: usize,
    pub(super) name: ProfileName,
    pub(super) spec: ProfileSpec,
    /// Whether `spec` has no defaults from outside the file.
    pub(super) is_as_written: bool,
}

/// The cluster profiles in which parents are looked up: those of all files, and `others`.
struct ParentSources<'f> {
    /// Cluster profiles that are not in files. A profile in a file takes precedence over the profile of the same name
    /// here.
    others: &'f BTreeMap<Box<str>, ProfileSpec>,
    roots: &'f BTreeMap<Box<str>, String>,
    extending: BTreeMap<&'f str, &'f ProfileSpec>,
    broken: BTreeSet<Box<str>>,
}

impl Parents for ParentSources<'_> {
    fn parent(&self, name: &str) -> Parent<'_> {
        let extending = self.extending.get(name).map(|spec| Cow::Borrowed(*spec));
        let root = || Some(Cow::Owned(serde_json::from_str(self.roots.get(name)?).ok()?));
        let other = || self.others.get(name).map(Cow::Borrowed);
        let spec = extending.or_else(root).or_else(other);
        match spec {
            spec if self.broken.contains(name) => Parent::Broken(spec),
            Some(spec) => Parent::Accepted(spec),
            None => Parent::Unknown,
        }
    }

    fn names(&self) -> Vec<&str> {
        let roots = self.roots.keys().chain(self.others.keys()).chain(&self.broken).map(|name| &**name);
        roots.chain(self.extending.keys().copied()).collect()
    }
}

impl CollectedProfiles {
    /// Creates an empty collection. If `keeps_texts` is true, profiles are also kept as their authors wrote them.
    pub(super) const fn new(keeps_texts: bool) -> Self {
        Self { keeps_texts, found: Vec::new(), roots: BTreeMap::new(), broken: BTreeSet::new() }
    }

    /// Adds a problem.
    pub(super) fn problem(&mut self, problem: Problem) {
        self.found.push(Found::Problem(problem));
    }

    /// Adds a cluster profile whose object has problems, so that it is not compiled.
    pub(super) fn unreadable(&mut self, name: &str) {
        self.broken.insert(name.into());
    }

    /// Adds a profile. `object` is the node of the profile.
    pub(super) fn profile(&mut self, text: Text, object: &Node) {
        if text.spec.extends.is_some() {
            return self.found.push(Found::Extending(Box::new(text)));
        }
        let compiled = compile(&text.name, &text.spec);
        // Profiles of namespaces cannot be extended.
        if text.name.namespace.is_none() {
            let written = || object.get("spec").map(Node::to_value).unwrap_or_default();
            let spec =
                if text.is_as_written { written() } else { serde_json::to_value(&text.spec).unwrap_or_default() };
            self.roots.insert(text.name.name.clone(), spec.to_string());
            if compiled.is_err() {
                self.broken.insert(text.name.name.clone());
            }
        }
        let mut loaded = Loaded::default();
        loaded.add(text, compiled, |_| Some(object), self.keeps_texts);
        self.found.push(Found::Compiled(Box::new(loaded)));
    }

    /// Adds a published revision, which contains everything that its profile extends. `object` is its node.
    pub(super) fn revision(&mut self, source: &Arc<Source>, object: &Node, name: ProfileName, revision: &RevisionSpec) {
        let compiled = ProfileSource::Revision(revision).compile(&name);
        if name.namespace.is_none() {
            self.roots.insert(name.name.clone(), revision.text.clone());
            if compiled.is_err() {
                self.broken.insert(name.name.clone());
            }
        }
        // If the text cannot be read, the revision does not compile.
        let spec = serde_json::from_str(&revision.text).unwrap_or_default();
        let text = Text { source: Arc::clone(source), start: object.span.start, name, spec, is_as_written: true };
        let mut loaded = Loaded::default();
        loaded.add(text, compiled, |_| Some(object), self.keeps_texts);
        self.found.push(Found::Compiled(Box::new(loaded)));
    }

    /// Returns the number of profiles and problems.
    pub(super) const fn len(&self) -> usize {
        self.found.len()
    }

    /// Compiles the profiles that extend others, and returns all profiles and problems. `others` are cluster profiles
    /// that are not in files.
    pub(super) fn load(self, others: &BTreeMap<Box<str>, ProfileSpec>) -> Loaded {
        let Self { keeps_texts, found, roots, broken } = self;
        let texts: Vec<&Text> = found.iter().filter_map(Found::extending).collect();
        let is_cluster = |text: &&&Text| text.name.namespace.is_none();
        let extending = texts.iter().filter(is_cluster).map(|text| (&*text.name.name, &text.spec)).collect();
        let mut parents = ParentSources { others, roots: &roots, extending, broken };
        // Parents come first, so that a child of a broken parent gets one error, instead of all errors of the parent.
        let mut order: Vec<_> = texts.iter().map(|text| (depth(&text.spec, &parents), *text)).collect();
        order.sort_by_key(|(depth, text)| (text.name.namespace.is_some(), *depth));
        let mut compiled = BTreeMap::new();
        for (_, text) in order {
            let profile = ProfileSource::Author(&text.spec, &parents).compile(&text.name);
            if profile.is_err() && text.name.namespace.is_none() {
                parents.broken.insert(text.name.name.clone());
            }
            compiled.insert(text.name.clone(), profile);
        }
        let mut loaded = Loaded::default();
        let mut reader = Reader::default();
        for found in found {
            match found {
                Found::Problem(problem) => loaded.problems.push(problem),
                Found::Compiled(one) => loaded.append(*one),
                Found::Extending(text) => {
                    if let Some(compiled) = compiled.remove(&text.name) {
                        loaded.add(*text, compiled, |text| reader.object(text), keeps_texts);
                    }
                }
            }
        }
        loaded
    }
}

impl Found {
    fn extending(&self) -> Option<&Text> {
        match self {
            Self::Extending(text) => Some(text),
            Self::Compiled(_) | Self::Problem(_) => None,
        }
    }
}

/// Caches the last parsed file, so that a file with many problems is parsed once.
#[derive(Default)]
struct Reader {
    source: Option<Arc<Source>>,
    documents: Vec<Node>,
}

impl Reader {
    /// Returns the object of a profile, parsed again.
    fn object(&mut self, text: &Text) -> Option<&Node> {
        if !self.source.as_ref().is_some_and(|source| Arc::ptr_eq(source, &text.source)) {
            self.documents = yaml::documents(&text.source.text).ok()?;
            self.source = Some(Arc::clone(&text.source));
        }
        self.documents.iter().find_map(|document| find(document, text.start))
    }
}

/// Returns the object at an offset: a document, or an item of a list.
fn find(node: &Node, start: usize) -> Option<&Node> {
    if node.text("kind") == Some("List") {
        return node.get("items").map(Node::items).into_iter().flatten().find_map(|item| find(item, start));
    }
    (node.span.start == start).then_some(node)
}

impl Loaded {
    /// Adds the result of compiling a profile. `object` returns the profile's node, for positions.
    fn add<'o>(
        &mut self,
        text: Text,
        compiled: Result<CompiledProfile, Vec<Diagnostic>>,
        object: impl FnOnce(&Text) -> Option<&'o Node>,
        keeps_text: bool,
    ) {
        match compiled {
            Ok(profile) => {
                self.profiles.push(Arc::new(profile));
                let warnings = warnings(&text.spec);
                if !warnings.is_empty() {
                    self.warnings.extend(located(&text, warnings, object(&text)).map(Problem::into_warning));
                }
                if keeps_text {
                    let Text { source, name, spec, .. } = text;
                    self.texts.push(Written { file: source.name.clone(), name, spec });
                }
            }
            Err(diagnostics) => {
                let mut problems: Vec<_> = located(&text, diagnostics, object(&text)).collect();
                problems.sort_by_key(|problem| problem.span.as_ref().map(|span| span.start));
                self.problems.extend(problems);
            }
        }
    }

    fn append(&mut self, other: Self) {
        let Self { profiles, texts, problems, warnings } = other;
        self.profiles.extend(profiles);
        self.texts.extend(texts);
        self.problems.extend(problems);
        self.warnings.extend(warnings);
    }
}

/// Converts diagnostics to problems with positions.
fn located(text: &Text, diagnostics: Vec<Diagnostic>, object: Option<&Node>) -> impl Iterator<Item = Problem> {
    diagnostics.into_iter().map(move |diagnostic| {
        let at = object.map_or(text.start..text.start, |object| match &diagnostic.part {
            Part::Value => object.place(&diagnostic.path),
            Part::Name => object.place_of_name(&diagnostic.path),
            Part::Bytes(part) => object.place_of_part(&text.source.text, &diagnostic.path, part),
        });
        Problem::at(&text.source, at, diagnostic.message).of_field(diagnostic.path).with_help(diagnostic.help)
    })
}

/// Returns the number of profiles in a profile's inheritance chain that extend others, up to a limit. It is used to
/// compile parents before their children. The order does not matter for profiles whose chain is too long or contains a
/// cycle.
fn depth(spec: &ProfileSpec, parents: &ParentSources<'_>) -> usize {
    let next = |spec: &&ProfileSpec| parents.extending.get(spec.extends.as_ref()?.name.as_str()).copied();
    std::iter::successors(Some(spec), next).take(MAX_CHAIN + 1).count()
}
