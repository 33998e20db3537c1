//! Example profiles, each with an object that requests it. The object comes from the first test case of the profile in
//! which the pod is injected, if there is one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pillion_api::ProfileSpec;
use pillion_api::names::PROFILES_ANNOTATION;
use pillion_cases::{Case, Metadata};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::run::{self, Platform, Texts, is_profile};
use crate::load::{self, Source, yaml};
use crate::output;

/// The maximum number of profile files, and of files with test cases in a folder.
const MAX_FILES: usize = 500;
/// The maximum size of each file, in bytes. A cluster stores no object that is much larger.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// The maximum size of all files together, in bytes, since they are kept in memory. Files that would exceed it are
/// ignored.
const MAX_BYTES: u64 = 32 * 1024 * 1024;
/// The maximum number of test cases that are tried for an example.
const MAX_CASES: usize = 60;
/// The namespace of an object without one.
const NAMESPACE: &str = "default";

/// The example profiles of the playground.
#[derive(Debug, Default)]
pub(super) struct Library {
    examples: Vec<Example>,
    /// Specs of cluster profiles by name, which edited profiles may extend.
    parents: BTreeMap<Box<str>, ProfileSpec>,
}

/// A profile with its test cases.
#[derive(Clone, Debug)]
struct Example {
    id: String,
    name: String,
    group: Group,
    /// The profile's description.
    about: String,
    profile: String,
    cases: Cases,
}

/// Files of test cases; all profiles of a folder share them.
type Cases = Arc<[(PathBuf, String)]>;

/// Reads files within a size limit, and caches the test cases of each folder.
#[derive(Debug)]
struct Reader {
    /// The remaining bytes that may be read.
    left: u64,
    cases: HashMap<PathBuf, Cases>,
}

/// The origin of an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Group {
    /// A file on this machine.
    Here,
    /// Embedded in this program.
    Shipped,
}

/// An example in the page's list.
#[derive(Debug, Serialize)]
pub(super) struct Entry {
    id: String,
    name: String,
    group: Group,
    about: String,
}

impl Library {
    /// Reads the files at these paths. The embedded examples are added, unless the files contain examples with the
    /// names of all of them.
    pub(super) fn read(paths: &[PathBuf]) -> Self {
        let files = paths.iter().flat_map(|path| load::files(path).unwrap_or_default()).take(MAX_FILES);
        let mut reader = Reader { left: MAX_BYTES, cases: HashMap::new() };
        let here: Vec<Example> = files.filter_map(|file| Example::read(&file, &mut reader)).collect();
        let names: HashSet<String> = here.iter().map(|example| example.name.clone()).collect();
        let shipped: Vec<Example> = SHIPPED
            .iter()
            .filter_map(|one| {
                let id = format!("shipped/{}", one.name);
                Example::new(
                    id,
                    one.name.to_owned(),
                    Group::Shipped,
                    one.profile.to_owned(),
                    [(one.file.into(), one.cases.to_owned())].into(),
                )
            })
            .collect();
        let mut library = Self::default();
        for example in shipped.iter().chain(&here) {
            let source = Arc::new(Source::new(example.id.as_str(), example.profile.clone()));
            library.parents.extend(load::specs_of(&source));
        }
        let is_checkout = shipped.iter().all(|example| names.contains(&example.name));
        library.examples = here;
        library.examples.extend(shipped.into_iter().filter(|_| !is_checkout));
        library
    }

    /// Returns the cluster profiles that others may extend.
    pub(super) const fn parents(&self) -> &BTreeMap<Box<str>, ProfileSpec> {
        &self.parents
    }

    pub(super) fn list(&self) -> Vec<Entry> {
        let entry = |Example { id, name, group, about, .. }: &Example| {
            let (id, name, about) = (id.clone(), name.clone(), about.clone());
            Entry { id, name, group: *group, about }
        };
        self.examples.iter().map(entry).collect()
    }

    /// Returns the editor texts of an example with its first test case in which the pod is injected. If there is none,
    /// uses the first test case in which the pod is rejected. If there is none of these either, uses a pod that
    /// requests the profile. `None` if the example does not exist.
    pub(super) fn texts(&self, id: &str, platform: &Platform, given_up: &CancellationToken) -> Option<Texts> {
        let example = self.examples.iter().find(|example| example.id == id)?;
        let (profiles, cases) = example.documents();
        let mut second = None;
        for case in cases.into_iter().take(MAX_CASES).take_while(|_| !given_up.is_cancelled()) {
            let Some(texts) = texts_of(&profiles, case) else { continue };
            let answer = run::run(&texts, platform, &self.parents, given_up);
            let Some(pod) = answer.result.and_then(|result| result.pods.into_iter().next()) else { continue };
            if pod.refused.is_some() {
                second.get_or_insert(texts);
            } else if pod.decision.outcome == "injected" {
                return Some(texts);
            }
        }
        Some(second.unwrap_or_else(|| example.plain(profiles)))
    }
}

impl Reader {
    /// Reads a file; `None` if it exceeds a size limit, cannot be read, or is not a regular file.
    fn text(&mut self, file: &Path) -> Option<String> {
        let metadata = fs::metadata(file).ok().filter(fs::Metadata::is_file)?;
        let left = self.left.checked_sub(metadata.len()).filter(|_| metadata.len() <= MAX_FILE_BYTES)?;
        let text = fs::read_to_string(file).ok()?;
        self.left = left;
        Some(text)
    }

    /// Returns the test cases in the folder `tests` of a folder of profiles.
    fn cases(&mut self, folder: &Path) -> Cases {
        if let Some(cases) = self.cases.get(folder) {
            return Arc::clone(cases);
        }
        let files = load::files(&folder.join("tests")).unwrap_or_default();
        let read: Vec<_> =
            files.into_iter().take(MAX_FILES).filter_map(|file| Some((file.clone(), self.text(&file)?))).collect();
        let cases = Cases::from(read);
        self.cases.insert(folder.to_owned(), Arc::clone(&cases));
        cases
    }
}

impl Example {
    /// Reads an example; `None` if the file has no profile for pods, or cannot be read.
    fn read(file: &Path, reader: &mut Reader) -> Option<Self> {
        let stem = file.file_stem()?.to_string_lossy().into_owned();
        let folder = file.parent()?;
        // A `profile.yaml` is named after its folder, as in `profiles/nginx/profile.yaml`.
        let of_folder =
            folder.file_name().filter(|_| stem == "profile").map(|name| name.to_string_lossy().into_owned());
        let name = of_folder.unwrap_or(stem);
        let profile = reader.text(file)?;
        Self::new(file.display().to_string(), name, Group::Here, profile, reader.cases(folder))
    }

    fn new(id: String, name: String, group: Group, profile: String, cases: Cases) -> Option<Self> {
        // An invalid file is also listed, so that the page can show its problems.
        let documents = yaml::documents(&profile).unwrap_or_default();
        let profiles: Vec<&yaml::Node> =
            documents.iter().flat_map(yaml::Node::objects).filter(|object| is_profile(object)).collect();
        if !documents.is_empty() && !profiles.iter().any(|profile| is_for_pods(profile)) {
            return None;
        }
        let about = profiles.iter().find_map(|profile| profile.get("spec")?.text("description"));
        let about = about.unwrap_or_default().to_owned();
        Some(Self { id, name, group, about, profile, cases })
    }

    /// Returns the profiles, including those that the files of test cases contain, and the test cases.
    fn documents(&self) -> (String, Vec<Case>) {
        let mut profiles = self.profile.clone();
        // For a shipped profile, the file with the embedded test cases comes first.
        let first = SHIPPED.iter().find(|shipped| shipped.name == self.name);
        let mut texts: Vec<&(PathBuf, String)> = self.cases.iter().collect();
        texts.sort_by_key(|(file, _)| !first.is_some_and(|first| file.ends_with(first.file)));
        let mut cases = Vec::new();
        for document in texts.into_iter().flat_map(|(_, text)| text.split("\n---\n")) {
            let Some(node) = yaml::documents(document).ok().and_then(|mut documents| documents.pop()) else { continue };
            if is_profile(&node) {
                profiles = format!("{}\n---\n{}\n", profiles.trim_end(), document.trim());
            } else if let Ok(case) = serde_json::from_value(node.to_value()) {
                cases.push(case);
            }
        }
        (profiles, cases)
    }

    /// Returns the editor texts with a pod that requests the first profile by name.
    fn plain(&self, profile: String) -> Texts {
        let documents = yaml::documents(&profile).unwrap_or_default();
        let mut objects = documents.iter().flat_map(yaml::Node::objects);
        let name = objects.find_map(|object| object.get("metadata")?.text("name")).unwrap_or(&self.name);
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web", "annotations": {PROFILES_ANNOTATION: name}},
            "spec": {"containers": [{"name": "web", "image": "registry.example.com/web:1.0"}]},
        });
        let object = output::yaml(&pod).unwrap_or_default();
        let namespace = namespace_of(&Metadata::default(), NAMESPACE);
        Texts { profile, object, namespace: output::yaml(&namespace).unwrap_or_default(), parameters: String::new() }
    }
}

fn is_for_pods(profile: &yaml::Node) -> bool {
    let target = profile.get("spec").and_then(|spec| spec.get("target")?.get("resources"));
    let is_pods = |node: &yaml::Node| matches!(&node.content, yaml::Content::Scalar(name) if name == "pods");
    target.is_none_or(|resources| resources.items().iter().any(is_pods))
}

/// Returns the editor texts of a test case. `None` if the case uses features for which there is no editor, or expects
/// no change.
fn texts_of(profile: &str, case: Case) -> Option<Texts> {
    let Case { profiles, parameters, values, cluster, namespace, service_account, objects, request, object, .. } = case;
    let is_editable = profiles.is_none() && values.is_empty() && cluster.is_empty() && request.is_empty();
    if !is_editable || case.unchanged {
        return None;
    }
    let name = object.get("metadata").and_then(|metadata| metadata.get("namespace")?.as_str());
    let name = namespace.name.clone().or_else(|| name.map(str::to_owned)).unwrap_or_else(|| NAMESPACE.to_owned());
    let account = object.get("spec").and_then(|spec| spec.get("serviceAccountName")?.as_str()).unwrap_or("default");
    let account = service_account.map(|described| {
        let metadata = metadata_of(&described, described.name.as_deref().unwrap_or(account), Some(&name));
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    });
    let all: Vec<Value> = std::iter::once(named(object)).chain(account).chain(objects).collect();
    let parameters: Map<String, Value> =
        parameters.into_iter().map(|(profile, values)| (profile, Value::Object(values))).collect();
    Some(Texts {
        profile: profile.to_owned(),
        object: output::objects(&all, output::Format::Yaml).ok()?,
        namespace: output::yaml(&namespace_of(&namespace, &name)).ok()?,
        parameters: if parameters.is_empty() {
            String::new()
        } else {
            output::yaml(&Value::Object(parameters)).ok()?
        },
    })
}

/// Returns the object with `apiVersion` and `kind` first. An object without a name is given one.
fn named(object: Map<String, Value>) -> Value {
    let text = |field: &str, default: &str| object.get(field).cloned().unwrap_or_else(|| default.into());
    let mut named = Map::new();
    named.insert("apiVersion".to_owned(), text("apiVersion", "v1"));
    named.insert("kind".to_owned(), text("kind", "Pod"));
    let mut metadata = object.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    if !metadata.contains_key("name") && !metadata.contains_key("generateName") {
        metadata.shift_insert(0, "name".to_owned(), "web".into());
    }
    named.insert("metadata".to_owned(), Value::Object(metadata));
    let rest = object.into_iter().filter(|(field, _)| !["apiVersion", "kind", "metadata"].contains(&field.as_str()));
    named.extend(rest);
    Value::Object(named)
}

fn namespace_of(described: &Metadata, name: &str) -> Value {
    let mut described = described.clone();
    let level = pillion_api::names::FailureMode::Enabled.label_value();
    let opt_in = pillion_api::names::INJECTION_LABEL;
    described.labels.entry(opt_in.to_owned()).or_insert_with(|| level.to_owned());
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata_of(&described, name, None)})
}

fn metadata_of(described: &Metadata, name: &str, namespace: Option<&str>) -> Value {
    let mut metadata =
        json!({"name": name, "namespace": namespace, "labels": described.labels, "annotations": described.annotations});
    if let Some(fields) = metadata.as_object_mut() {
        fields.retain(|_, value| !value.is_null() && value.as_object().is_none_or(|all| !all.is_empty()));
    }
    metadata
}

/// A profile with its test cases, both as YAML.
#[derive(Clone, Copy, Debug)]
struct Shipped {
    name: &'static str,
    profile: &'static str,
    /// The file of the test cases, below `tests`.
    file: &'static str,
    cases: &'static str,
}

macro_rules! shipped {
    ($($name:literal: $cases:literal,)+) => {
        &[$(Shipped {
            name: $name,
            profile: include_str!(concat!("../../../../../profiles/", $name, "/profile.yaml")),
            file: $cases,
            cases: include_str!(concat!("../../../../../profiles/", $name, "/tests/", $cases)),
        },)+]
    };
}

/// All shipped profiles for pods, each with one file of its test cases.
const SHIPPED: &[Shipped] = shipped! {
    "agones-sdk": "cases.yaml",
    "annotate": "cases.yaml",
    "cloud-sql-proxy": "cases.yaml",
    "dapr": "containers.yaml",
    "deny-env": "cases.yaml",
    "eks-pod-identity": "cases.yaml",
    "istio": "cases.yaml",
    "linkerd": "whole.yaml",
    "log-shipper": "cases.yaml",
    "nginx": "cases.yaml",
    "otel-apache-httpd": "apache-httpd.yaml",
    "otel-collector-sidecar": "collector.yaml",
    "otel-dotnet": "dotnet.yaml",
    "otel-go": "go.yaml",
    "otel-injector": "injector.yaml",
    "otel-java": "java.yaml",
    "otel-nginx": "nginx.yaml",
    "otel-nodejs": "nodejs.yaml",
    "otel-python": "python.yaml",
    "otel-sdk": "variables.yaml",
    "resource-defaults": "cases.yaml",
    "tumblr": "cases.yaml",
    "vault-agent": "cases.yaml",
    "wireguard": "cases.yaml",
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;
    use crate::config::WebhookPolicy;

    fn platform() -> Platform {
        Platform::new(WebhookPolicy::default(), args::release("pillion-system/pillion").unwrap()).unwrap()
    }

    #[test]
    fn library_has_matching_object_per_shipped_profile() {
        let library = Library::read(&[]);
        let platform = platform();
        for Entry { id, name, about, .. } in library.list() {
            assert!(!about.is_empty(), "{name} has no description");
            let texts = library.texts(&id, &platform, &CancellationToken::new()).unwrap();
            let answer = run::run(&texts, &platform, library.parents(), &CancellationToken::new());
            let pod = answer.result.unwrap_or_else(|| panic!("{name}: {:?}", answer.diagnostics)).pods.remove(0);
            let expected = if name == "deny-env" { "skipped" } else { "injected" };
            assert_eq!(pod.decision.outcome, expected, "{name}: {texts:?} {pod:?}");
            assert_eq!(pod.refused.is_some(), name == "deny-env", "{name}: {pod:?}");
        }
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles");
        let checkout = Library::read(&[folder.into()]);
        let names = |library: &Library| library.list().into_iter().map(|entry| entry.name).collect::<Vec<_>>();
        assert_eq!(names(&checkout), names(&library), "the shipped profiles are those of the folder");
        assert!(checkout.list().iter().all(|entry| entry.group == Group::Here));
    }

    #[test]
    fn own_file_comes_first_with_requesting_pod() {
        let folder = tempfile::tempdir().unwrap();
        let profile = "apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {name: own}\n\
                       spec: {activation: Requested, template: {metadata: {labels: {a: b}}}}\n";
        fs::write(folder.path().join("one.yaml"), profile).unwrap();
        fs::write(folder.path().join("other.yaml"), "kind: ConfigMap\napiVersion: v1\n").unwrap();
        fs::write(folder.path().join("broken.yaml"), "kind: [").unwrap();
        let library = Library::read(&[folder.path().to_owned()]);
        let here: Vec<_> = library.list().into_iter().filter(|entry| entry.group == Group::Here).collect();
        assert_eq!(here.iter().map(|entry| &*entry.name).collect::<Vec<_>>(), ["broken", "one"]);
        let texts = library.texts(&here[1].id, &platform(), &CancellationToken::new()).unwrap();
        assert_eq!(texts.profile, profile);
        assert!(texts.object.contains("pillion.dev/profiles: own"), "{}", texts.object);
        assert_eq!(library.texts("/etc/passwd", &platform(), &CancellationToken::new()), None);
    }

    #[test]
    fn profiles_in_list_are_examples_and_parents() {
        let folder = tempfile::tempdir().unwrap();
        let list = "kind: List\nitems:\n- apiVersion: pillion.dev/v1alpha1\n  kind: ClusterInjectionProfile\n  \
                    metadata: {name: base}\n  spec: {template: {metadata: {labels: {a: b}}}}\n";
        fs::write(folder.path().join("list.yaml"), list).unwrap();
        let library = Library::read(&[folder.path().to_owned()]);
        let here = library.list().into_iter().find(|entry| entry.group == Group::Here).unwrap();
        let texts = library.texts(&here.id, &platform(), &CancellationToken::new()).unwrap();
        assert!(texts.object.contains("pillion.dev/profiles: base"), "{}", texts.object);
        assert!(library.parents().contains_key("base"));
    }

    #[test]
    fn cases_are_read_once_within_limits() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("tests")).unwrap();
        fs::write(folder.path().join("tests/cases.yaml"), "a: 1\n").unwrap();
        for name in ["one", "two", "three"] {
            fs::write(folder.path().join(format!("{name}.yaml")), "kind: [").unwrap();
        }
        let read = |left: u64| {
            let mut reader = Reader { left, cases: HashMap::new() };
            let files = ["one", "two", "three"].map(|name| folder.path().join(format!("{name}.yaml")));
            let examples: Vec<Example> = files.iter().filter_map(|file| Example::read(file, &mut reader)).collect();
            (examples, reader.left)
        };
        let (examples, left) = read(100);
        assert_eq!((examples.len(), left), (3, 100 - 3 * 7 - 5));
        assert!(examples.iter().all(|example| Arc::ptr_eq(&example.cases, &examples[0].cases)));
        assert_eq!(examples[0].cases.len(), 1);
        let (examples, left) = read(15);
        assert_eq!((examples.len(), left), (1, 3));
    }
}
