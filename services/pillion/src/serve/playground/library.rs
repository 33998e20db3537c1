//! Profiles to start from, each with an object that asks for it. The objects are those of the profiles' own cases: of each
//! profile the first one into which something is injected.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pillion_api::ProfileSpec;
use pillion_api::names::PROFILES_ANNOTATION;
use pillion_engine::case::{Case, Metadata};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::run::{self, Platform, Texts, is_profile};
use super::shipped;
use crate::load::{self, Source, files, yaml};
use crate::output;

/// How many files of profiles are looked at.
const MAX_FILES: usize = 500;
/// How large each of them may be, in bytes. An object in a cluster is not larger.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// How large all that is read may be together, in bytes: it is kept. What is over is as if it were not there.
const MAX_BYTES: u64 = 32 * 1024 * 1024;
/// How many cases are tried.
const MAX_CASES: usize = 60;
/// The namespace of an object that does not say one.
const NAMESPACE: &str = "default";

/// All that there is to start from.
#[derive(Debug, Default)]
pub(super) struct Library {
    examples: Vec<Example>,
    /// Cluster profiles by name, as they are written: those that are edited may extend them.
    parents: BTreeMap<Box<str>, ProfileSpec>,
}

/// A profile with its cases.
#[derive(Clone, Debug)]
struct Example {
    id: String,
    name: String,
    group: Group,
    /// What the profile says that it is for.
    about: String,
    profile: String,
    cases: Cases,
}

/// Files of cases with their texts; all profiles of a folder have the same.
type Cases = Arc<[(PathBuf, String)]>;

/// Reads files, each folder of cases once.
#[derive(Debug)]
struct Reader {
    /// How many bytes may still be read.
    left: u64,
    cases: HashMap<PathBuf, Cases>,
}

/// Where an example is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Group {
    /// A file of this machine.
    Here,
    /// This program.
    Shipped,
}

/// An example as the page lists it.
#[derive(Debug, Serialize)]
pub(super) struct Entry {
    id: String,
    name: String,
    group: Group,
    about: String,
}

impl Library {
    /// Reads the files below these paths. What is part of this program is there in any case, unless the files have all of
    /// it, as those of a checkout have.
    pub(super) fn read(paths: &[PathBuf]) -> Self {
        let files = paths.iter().flat_map(|path| files::of(path).unwrap_or_default()).take(MAX_FILES);
        let mut reader = Reader { left: MAX_BYTES, cases: HashMap::new() };
        let here: Vec<Example> = files.filter_map(|file| Example::read(&file, &mut reader)).collect();
        let names: HashSet<String> = here.iter().map(|example| example.name.clone()).collect();
        let shipped: Vec<Example> = shipped::ALL
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

    /// The cluster profiles that others may extend.
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

    /// The texts of an example; `None` of one that is not there.
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
    /// A file's text, unless it is too large or no file.
    fn text(&mut self, file: &Path) -> Option<String> {
        let metadata = fs::metadata(file).ok().filter(fs::Metadata::is_file)?;
        let left = self.left.checked_sub(metadata.len()).filter(|_| metadata.len() <= MAX_FILE_BYTES)?;
        let text = fs::read_to_string(file).ok()?;
        self.left = left;
        Some(text)
    }

    /// The cases of the profiles in a folder.
    fn cases(&mut self, folder: &Path) -> Cases {
        if let Some(cases) = self.cases.get(folder) {
            return Arc::clone(cases);
        }
        let files = files::of(&folder.join("tests")).unwrap_or_default();
        let read: Vec<_> =
            files.into_iter().take(MAX_FILES).filter_map(|file| Some((file.clone(), self.text(&file)?))).collect();
        let cases = Cases::from(read);
        self.cases.insert(folder.to_owned(), Arc::clone(&cases));
        cases
    }
}

impl Example {
    /// From a file; `None` if it has no profile for pods, or cannot be read.
    fn read(file: &Path, reader: &mut Reader) -> Option<Self> {
        let stem = file.file_stem()?.to_string_lossy().into_owned();
        let folder = file.parent()?;
        // `profiles/nginx/profile.yaml` is called nginx.
        let of_folder =
            folder.file_name().filter(|_| stem == "profile").map(|name| name.to_string_lossy().into_owned());
        let name = of_folder.unwrap_or(stem);
        let profile = reader.text(file)?;
        Self::new(file.display().to_string(), name, Group::Here, profile, reader.cases(folder))
    }

    fn new(id: String, name: String, group: Group, profile: String, cases: Cases) -> Option<Self> {
        // A file that cannot be read is shown too: with what is wrong with it.
        let documents = yaml::documents(&profile).unwrap_or_default();
        let profiles: Vec<&yaml::Node> = documents.iter().filter(|document| is_profile(document)).collect();
        if !documents.is_empty() && !profiles.iter().any(|profile| is_for_pods(profile)) {
            return None;
        }
        let about = profiles.iter().find_map(|profile| profile.get("spec")?.text("description"));
        let about = about.unwrap_or_default().to_owned();
        Some(Self { id, name, group, about, profile, cases })
    }

    /// The text of the profiles, with those that stand among the cases, and the cases.
    fn documents(&self) -> (String, Vec<Case>) {
        let mut profiles = self.profile.clone();
        // Of a profile that is shipped the same cases come first.
        let first = shipped::ALL.iter().find(|shipped| shipped.name == self.name);
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

    /// A pod that asks for the first of the profiles by its name.
    fn plain(&self, profile: String) -> Texts {
        let documents = yaml::documents(&profile).unwrap_or_default();
        let name = documents.iter().find_map(|document| document.get("metadata")?.text("name")).unwrap_or(&self.name);
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

/// The texts that a case is made of; `None` if it is about something that the page has no editor for, or about what does not
/// happen.
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

/// An object as one writes it: with its kind first, and with a name.
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
    let level = pillion_api::names::InjectionLevel::Enabled.label_value();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;
    use crate::config::WebhookPolicy;

    fn platform() -> Platform {
        Platform::new(WebhookPolicy::default(), args::release("pillion-system/pillion").unwrap()).unwrap()
    }

    #[test]
    fn every_shipped_profile_is_there_with_an_object_that_it_is_for() {
        let library = Library::read(&[]);
        let platform = platform();
        for Entry { id, name, about, .. } in library.list() {
            assert!(!about.is_empty(), "{name} does not say what it is for");
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
        assert_eq!(names(&checkout), names(&library), "what is shipped is what is in the folder");
        assert!(checkout.list().iter().all(|entry| entry.group == Group::Here));
    }

    #[test]
    fn a_file_of_ones_own_comes_first_and_a_pod_asks_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let profile = "apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {name: own}\n\
                       spec: {template: {metadata: {labels: {a: b}}}}\n";
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
    fn cases_of_a_folder_are_read_once_and_no_more_is_read_than_may_be() {
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
