//! Converts configurations of k8s-sidecar-injector. Each one is a file, or a key of a `ConfigMap`. Pods request it by
//! `name` or `name:version`.
//!
//! Each configuration becomes a profile that extends the shipped profile `sidecar-config`, which contains the parts
//! that all configurations need. The conversion merges inherited configurations, as the injector does when it reads the
//! files.

use serde_json::{Map, Value as Json, json};

use super::{Converted, Document, Remark, escaped, literal, object_name, quoted};

/// The profile that all others extend.
const BASE: &str = "sidecar-config";

/// The container patch of [`BASE`] that applies to all containers.
const EVERYWHERE: &str = "everywhere";

/// The version of a configuration that specifies none.
const LATEST: &str = "latest";

/// The maximum number of configurations in an inheritance chain.
const LONGEST_CHAIN: usize = 16;

/// Lists whose elements have names. A configuration merges them by name with the inherited lists.
const NAMED: [&str; 5] = ["containers", "volumes", "env", "volumeMounts", "initContainers"];

/// Fields other than lists, with their expected types.
const SINGLE: [(&str, &str); 5] = [
    ("name", "text"),
    ("inherits", "text"),
    ("serviceAccountName", "text"),
    ("hostNetwork", "true or false"),
    ("hostPID", "true or false"),
];

/// String fields at any level. The injector unmarshals YAML into typed fields, so it reads an unquoted number or
/// boolean there as a string.
const TEXT: [&str; 9] =
    ["name", "image", "value", "mountPath", "subPath", "workingDir", "ip", "inherits", "serviceAccountName"];
/// Lists of strings at any level, whose elements the injector reads like the fields in [`TEXT`].
const TEXTS: [&str; 3] = ["args", "command", "hostnames"];

/// Names that mean yes or no in a request annotation. They can request a profile only together with a version other
/// than [`LATEST`].
const WORDS: [&str; 14] =
    ["true", "t", "yes", "y", "on", "enabled", "1", "false", "f", "no", "n", "off", "disabled", "0"];

/// Options of the conversion.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The prefix of the annotations, without the slash.
    pub(crate) prefix: String,
}

/// The default annotation prefix of k8s-sidecar-injector.
pub(crate) const PREFIX: &str = "injector.tumblr.com";

impl Default for Options {
    fn default() -> Self {
        Self { prefix: PREFIX.to_owned() }
    }
}

type Fields = Map<String, Json>;

/// A configuration that pods can request.
struct Configuration {
    document: usize,
    /// The name, in lower case like the version.
    name: String,
    version: String,
    /// The fields, including the inherited ones.
    fields: Fields,
}

/// Converts each configuration to a profile.
///
/// # Errors
/// All problems that prevent a conversion.
pub(crate) fn convert(documents: &[Document], options: &Options) -> Result<Converted, Vec<Remark>> {
    let mut reader = Reader { documents, faults: Vec::new(), notes: Vec::new() };
    let configurations: Vec<_> = (0..documents.len()).filter_map(|index| reader.configuration(index)).collect();
    reader.report_duplicates(&configurations);
    let names = profile_names(&configurations);
    let profiles: Vec<_> = configurations
        .iter()
        .zip(&names)
        .filter_map(|(configuration, name)| reader.profile(configuration, name, options))
        .collect();
    let Reader { faults, notes, .. } = reader;
    if faults.is_empty() { Ok(Converted { profiles, notes }) } else { Err(faults) }
}

struct Reader<'d> {
    documents: &'d [Document],
    faults: Vec<Remark>,
    notes: Vec<Remark>,
}

impl Reader<'_> {
    fn configuration(&mut self, document: usize) -> Option<Configuration> {
        let before = self.faults.len();
        let fields = self.checked(document)?;
        let (name, version) = match fields.get("name").and_then(Json::as_str).unwrap_or_default() {
            "" => {
                let fault = Remark::new(document, "name", "a configuration needs a name, by which pods request it");
                self.faults.push(fault.with_help("set name: NAME, or name: NAME:VERSION"));
                return None;
            }
            full => self.name_and_version(document, full)?,
        };
        let fields = self.with_inherited(document, fields, &mut vec![document])?;
        (self.faults.len() == before).then_some(Configuration { document, name, version, fields })
    }

    /// Validates the fields of a document. Fields that the injector ignores are omitted.
    fn checked(&mut self, document: usize) -> Option<Fields> {
        let mut value = self.documents.get(document)?.value.clone();
        read_as_text(&mut value);
        let Some(fields) = value.as_object() else {
            self.faults.push(Remark::new(
                document,
                "",
                "a configuration is a mapping: name, containers, env and so on",
            ));
            return None;
        };
        let mut known = Fields::new();
        for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            if NAMED.contains(&key.as_str()) || key == "hostAliases" {
                let unique = if key == "hostAliases" { "ip" } else { "name" };
                self.check_list(document, key, value, unique);
            } else if let Some((_, expected)) = SINGLE.iter().find(|(name, _)| name == key) {
                let fits = if *expected == "text" { value.is_string() } else { value.is_boolean() };
                if !fits {
                    self.faults.push(Remark::new(document, key, format!("expected {expected}, found {value}")));
                }
            } else {
                let note = Remark::new(document, key, format!("unknown field `{key}` is left out"));
                let names: Vec<_> = NAMED.into_iter().chain(["hostAliases"]).collect();
                let names = names.into_iter().chain(SINGLE.map(|(name, _)| name));
                let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
                self.notes.push(note.with_help(format!("known fields are {}", names.join(", "))));
                continue;
            }
            known.insert(key.clone(), value.clone());
        }
        Some(known)
    }

    /// Checks that each element of a list has a non-empty string at the key `unique`, which is `name` or `ip`. These
    /// strings may repeat only in `volumeMounts` and `hostAliases`.
    fn check_list(&mut self, document: usize, field: &str, value: &Json, unique: &str) {
        let Some(items) = value.as_array() else {
            self.faults.push(Remark::new(document, field, "expected a list"));
            return;
        };
        let mut seen: Vec<&str> = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let path = format!("{field}[{index}]");
            let Some(key) = item.get(unique).and_then(Json::as_str).filter(|key| !key.is_empty()) else {
                self.faults.push(Remark::new(document, path, format!("each element of {field} needs `{unique}`")));
                continue;
            };
            // A volume may have several mounts, and an address several aliases.
            if seen.contains(&key) && !["volumeMounts", "hostAliases"].contains(&field) {
                let fault = Remark::new(document, path, format!("there is another `{key}` in {field}"));
                self.faults.push(fault.with_help("remove all but one: the effective one may differ by container"));
            }
            seen.push(key);
        }
    }

    fn name_and_version(&mut self, document: usize, full: &str) -> Option<(String, String)> {
        let lower = full.to_lowercase();
        let (name, version) = lower.split_once(':').unwrap_or((&lower, LATEST));
        let version = if version.is_empty() { LATEST } else { version };
        let message = if version.contains(':') {
            "has more than one `:`"
        } else if name.is_empty() {
            "has no name before its version"
        } else if lower.contains(',') || lower.trim() != lower {
            "has a comma, or a space at either end: commas separate the names that a pod requests"
        } else if WORDS.contains(&name) && version == LATEST {
            "means yes or no in a request annotation"
        } else {
            return Some((name.to_owned(), version.to_owned()));
        };
        let fault = Remark::new(document, "name", format!("`{full}` {message}"));
        self.faults.push(fault.with_help("rename it, and request it by the new name"));
        None
    }

    /// Merges inherited fields into a document's fields, recursively. `chain` lists the documents visited so far,
    /// ending with this one.
    fn with_inherited(&mut self, document: usize, mut fields: Fields, chain: &mut Vec<usize>) -> Option<Fields> {
        let Some(Json::String(parent)) = fields.remove("inherits") else { return Some(fields) };
        let file = self.documents.get(document).map(|document| document.file.as_str()).unwrap_or_default();
        let wanted = path_beside(file, &parent);
        let Some(found) = self.documents.iter().position(|other| other.file == wanted) else {
            let fault = Remark::new(document, "inherits", format!("`{wanted}` is not among the converted files"));
            self.faults.push(fault.with_help("convert both files together, for instance by naming their folder"));
            return None;
        };
        if chain.contains(&found) {
            self.faults.push(Remark::new(
                document,
                "inherits",
                format!("`{parent}` also inherits from this configuration"),
            ));
            return None;
        }
        if chain.len() >= LONGEST_CHAIN {
            let message = format!("the inheritance chain is longer than {LONGEST_CHAIN} configurations");
            self.faults.push(Remark::new(document, "inherits", message));
            return None;
        }
        chain.push(found);
        let notes = self.notes.len();
        let faults = self.faults.len();
        let parent = self.checked(found);
        // The parent's problems are reported when the parent itself is converted.
        self.notes.truncate(notes);
        self.faults.truncate(faults);
        let parent = self.with_inherited(found, parent?, chain)?;
        Some(merge_inherited(parent, fields))
    }

    /// Reports configurations with the same name and version.
    fn report_duplicates(&mut self, configurations: &[Configuration]) {
        for (index, configuration) in configurations.iter().enumerate() {
            let same =
                |other: &&Configuration| other.name == configuration.name && other.version == configuration.version;
            let Some(first) = configurations.iter().take(index).find(same) else { continue };
            let file = self.documents.get(first.document).map(|document| document.file.as_str()).unwrap_or_default();
            let message = format!("{file} also has the name {}:{}", configuration.name, configuration.version);
            let fault = Remark::new(configuration.document, "name", message);
            self.faults.push(fault.with_help("names must be unique: give one of them another version"));
        }
    }

    fn profile(&mut self, configuration: &Configuration, name: &str, options: &Options) -> Option<Json> {
        let fields = match literal(&Json::Object(configuration.fields.clone()), "") {
            Ok(Json::Object(fields)) => fields,
            Ok(_) => return None,
            Err(path) => {
                let path = path.trim_start_matches('.').to_owned();
                let fault = Remark::new(configuration.document, path, "a key with a `$` is not a Kubernetes field");
                self.faults.push(fault);
                return None;
            }
        };
        let Options { prefix } = options;
        let full = format!("{}:{}", configuration.name, configuration.version);
        let mut spec = json!({
            "description": escaped(&format!("{full} of k8s-sidecar-injector")),
            "extends": {"name": BASE},
            "requestedBy": {"annotation": format!("{prefix}/request"), "values": words(configuration)},
        });
        let mut parameters = Vec::new();
        if let Some(account) = fields.get("serviceAccountName").filter(|account| *account != "") {
            parameters.push(json!({"name": "account", "default": account}));
        }
        if prefix != PREFIX {
            parameters.push(json!({"name": "status", "default": format!("{prefix}/status")}));
        }
        set(&mut spec, "parameters", parameters.into());
        let pod = pod(&fields);
        if !pod.is_empty() {
            set(&mut spec, "template", json!({"spec": pod}));
        }
        let everywhere = everywhere(&fields);
        if !everywhere.is_empty() {
            set(&mut spec, "containerPatches", json!([{"name": EVERYWHERE, "template": everywhere}]));
        }
        Some(json!({
            "apiVersion": "pillion.dev/v1alpha1",
            "kind": "ClusterInjectionProfile",
            "metadata": {"name": name},
            "spec": spec,
        }))
    }
}

/// Converts numbers and booleans in string fields to strings.
fn read_as_text(value: &mut Json) {
    let as_text = |value: &mut Json| {
        if value.is_number() || value.is_boolean() {
            *value = Json::String(value.to_string());
        }
    };
    match value {
        Json::Array(items) => items.iter_mut().for_each(read_as_text),
        Json::Object(fields) => {
            for (key, value) in fields {
                if TEXT.contains(&key.as_str()) {
                    as_text(value);
                } else if TEXTS.contains(&key.as_str()) {
                    value.as_array_mut().into_iter().flatten().for_each(as_text);
                }
                read_as_text(value);
            }
        }
        _ => {}
    }
}

/// Resolves a path in a file relative to that file.
fn path_beside(file: &str, name: &str) -> String {
    let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = folder.split('/').collect();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| !["", ".", ".."].contains(last)) => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    if folder.is_empty() { path.trim_start_matches('/').to_owned() } else { path }
}

/// Merges a configuration into its parent. An element of the child replaces the parent's element with the same name, at
/// the same position. The host aliases of both are kept. Other fields of the child replace those of the parent.
fn merge_inherited(mut parent: Fields, child: Fields) -> Fields {
    for (key, value) in child {
        match (parent.get_mut(&key), value) {
            (Some(Json::Array(list)), Json::Array(items)) if NAMED.contains(&key.as_str()) => {
                *list = merge_by_name(list, items);
            }
            (Some(Json::Array(list)), Json::Array(items)) => list.extend(items),
            // An empty string means unset.
            (Some(_), Json::String(text)) if text.is_empty() => {}
            (_, value) => {
                parent.insert(key, value);
            }
        }
    }
    parent
}

fn merge_by_name(list: &[Json], mut items: Vec<Json>) -> Vec<Json> {
    let mut whole = Vec::new();
    for old in list {
        let (own, rest): (Vec<_>, Vec<_>) = items.into_iter().partition(|item| item.get("name") == old.get("name"));
        items = rest;
        let is_replaced = !own.is_empty() || whole.iter().any(|new: &Json| new.get("name") == old.get("name"));
        whole.extend(own);
        if !is_replaced {
            whole.push(old.clone());
        }
    }
    whole.extend(items);
    whole
}

/// Returns the values with which pods can request a configuration.
fn words(configuration: &Configuration) -> Vec<String> {
    let Configuration { name, version, .. } = configuration;
    let full = format!("{name}:{version}");
    // `name:` means a name without a version.
    if version == LATEST { vec![name.clone(), full, format!("{name}:")] } else { vec![full] }
}

/// Returns a unique name for each profile. No name equals a value that requests another profile.
fn profile_names(configurations: &[Configuration]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (index, configuration) in configurations.iter().enumerate() {
        let Configuration { name, version, .. } = configuration;
        let plain = if version == LATEST { object_name(name) } else { object_name(&format!("{name}-{version}")) };
        let is_taken = |candidate: &String| {
            let others = configurations.iter().enumerate().filter(|(other, _)| *other != index);
            names.contains(candidate) || others.flat_map(|(_, other)| words(other)).any(|word| word == *candidate)
        };
        let numbered = (2..).map(|number| format!("{plain}-{number}"));
        // `find` always succeeds: `numbered` is infinite, and the number of configurations is finite.
        names.push(std::iter::once(plain.clone()).chain(numbered).find(|name| !is_taken(name)).unwrap_or_default());
    }
    names
}

/// Returns the pod template of the profile.
fn pod(fields: &Fields) -> Fields {
    let mut pod = Fields::new();
    for field in ["hostNetwork", "hostPID"] {
        if fields.get(field) == Some(&Json::Bool(true)) {
            pod.insert(field.to_owned(), json!({"$value": true, "$conflict": "Replace"}));
        }
    }
    for field in ["initContainers", "containers"] {
        pod.extend(fields.get(field).filter(|list| !is_empty(list)).map(|list| (field.to_owned(), list.clone())));
    }
    let volumes: Vec<_> = items(fields, "volumes").map(|volume| with(volume, "$conflict", "Keep")).collect();
    let aliases = aliases(fields);
    for (field, list) in [("volumes", volumes), ("hostAliases", aliases)] {
        if !list.is_empty() {
            pod.insert(field.to_owned(), list.into());
        }
    }
    pod
}

/// Returns one host alias for each address, with all names of this address, since Kubernetes merges host aliases by
/// address.
fn aliases(fields: &Fields) -> Vec<Json> {
    let mut aliases: Vec<(Json, Vec<Json>)> = Vec::new();
    for alias in items(fields, "hostAliases") {
        let address = alias.get("ip").cloned().unwrap_or_default();
        let place = aliases.iter().position(|(ip, _)| *ip == address).unwrap_or(aliases.len());
        if place == aliases.len() {
            aliases.push((address, Vec::new()));
        }
        let Some((_, names)) = aliases.get_mut(place) else { continue };
        for name in alias.get("hostnames").and_then(Json::as_array).into_iter().flatten() {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
    }
    let alias = |(ip, names)| json!({"ip": ip, "hostnames": {"$value": names, "$join": {}}});
    aliases.into_iter().filter(|(_, names)| !names.is_empty()).map(alias).collect()
}

/// Returns the template for every container. A volume is mounted only if the container does not mount it yet.
fn everywhere(fields: &Fields) -> Fields {
    let mut container = Fields::new();
    if let Some(env) = fields.get("env").filter(|list| !is_empty(list)) {
        container.insert("env".to_owned(), env.clone());
    }
    let mounts: Vec<_> = items(fields, "volumeMounts")
        .map(|mount| {
            let name = quoted(mount.get("name").and_then(Json::as_str).unwrap_or_default());
            with(mount, "$when", &format!("!hasMount(container, {name})"))
        })
        .collect();
    if !mounts.is_empty() {
        container.insert("volumeMounts".to_owned(), mounts.into());
    }
    container
}

fn items<'f>(fields: &'f Fields, list: &str) -> impl Iterator<Item = &'f Json> {
    fields.get(list).and_then(Json::as_array).into_iter().flatten()
}

fn is_empty(list: &Json) -> bool {
    list.as_array().is_none_or(Vec::is_empty)
}

/// Returns a copy of an element, with a directive inserted after the first field.
fn with(element: &Json, directive: &str, value: &str) -> Json {
    let mut fields = Fields::new();
    for (index, (name, member)) in element.as_object().into_iter().flatten().enumerate() {
        fields.insert(name.clone(), member.clone());
        if index == 0 {
            fields.insert(directive.to_owned(), value.into());
        }
    }
    Json::Object(fields)
}

fn set(object: &mut Json, field: &str, value: Json) {
    let is_empty = value.as_array().is_some_and(Vec::is_empty);
    if let Some(fields) = object.as_object_mut().filter(|_| !is_empty) {
        fields.insert(field.to_owned(), value);
    }
}
