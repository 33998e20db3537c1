//! Converts `Instrumentation` resources of the OpenTelemetry operator. For each language, a resource becomes a cluster
//! profile that extends the shipped profile of that language and changes the defaults of its parameters. Pods of all
//! namespaces request it by `namespace/name`. A second profile, in the resource's own namespace, extends the first and
//! changes only how pods request it. Pods of that namespace request it by `name`, or by `true` if the namespace has no
//! other resource.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::{Converted, Document, Remark, escaped, is_empty_value, literal, object_name};

/// The prefix of all request annotations.
const REQUEST: &str = "instrumentation.opentelemetry.io/inject-";

/// The resource's fields that concern all languages, each with the profile parameter that it sets.
const COMMON: [(&str, &str); 9] = [
    ("/exporter/endpoint", "endpoint"),
    ("/exporter/tls", "tls"),
    ("/resource/resourceAttributes", "platformAttributes"),
    ("/resource/addK8sUIDAttributes", "addUIDs"),
    ("/propagators", "propagators"),
    ("/sampler/type", "sampler"),
    ("/sampler/argument", "samplerArgument"),
    ("/defaults/useLabelsForResourceAttributes", "useLabels"),
    ("/env", "env"),
];

/// The resource's fields that concern languages with an agent, each with the profile parameter that it sets.
const OF_AGENTS: [(&str, &str); 2] =
    [("/imagePullPolicy", "pullPolicy"), ("/initContainerSecurityContext", "securityContext")];

/// A language for which a shipped profile exists.
#[derive(Clone, Copy, Debug)]
struct Language {
    /// The name in annotations and profile names.
    name: &'static str,
    /// The language's field in the resource's spec. `sdk` has none.
    field: Option<&'static str>,
    /// The subfields of [`Self::field`] to convert, each with the profile parameter that it sets.
    parameters: &'static [(&'static str, &'static str)],
}

/// The [`Language::parameters`] of `nodejs`, `python` and `dotnet`.
const AGENT: &[(&str, &str)] = &[("image", "image"), ("env", "languageEnv"), ("resourceRequirements", "resources")];

/// All languages with shipped profiles.
const LANGUAGES: [Language; 8] = [
    Language {
        name: "java",
        field: Some("java"),
        parameters: &[
            ("image", "image"),
            ("env", "languageEnv"),
            ("resources", "resources"),
            ("extensions", "extensions"),
        ],
    },
    Language { name: "nodejs", field: Some("nodejs"), parameters: AGENT },
    Language { name: "python", field: Some("python"), parameters: AGENT },
    Language { name: "dotnet", field: Some("dotnet"), parameters: AGENT },
    Language {
        name: "go",
        field: Some("go"),
        parameters: &[
            ("image", "image"),
            ("env", "languageEnv"),
            ("resourceRequirements", "resources"),
            ("securityContext", "securityContext"),
        ],
    },
    Language {
        name: "apache-httpd",
        field: Some("apacheHttpd"),
        parameters: &[
            ("image", "image"),
            ("env", "languageEnv"),
            ("resourceRequirements", "resources"),
            ("attrs", "attrs"),
            ("version", "version"),
            ("configPath", "configPath"),
        ],
    },
    Language {
        name: "nginx",
        field: Some("nginx"),
        parameters: &[
            ("image", "image"),
            ("env", "languageEnv"),
            ("resourceRequirements", "resources"),
            ("attrs", "attrs"),
            ("configFile", "configFile"),
        ],
    },
    Language { name: "sdk", field: None, parameters: &[] },
];

/// The names of all languages.
pub(crate) const LANGUAGE_NAMES: [&str; 8] =
    ["java", "nodejs", "python", "dotnet", "go", "apache-httpd", "nginx", "sdk"];

/// Options of the conversion.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The languages to convert. Empty: all.
    pub(crate) languages: Vec<String>,
    /// The namespace of resources without one.
    pub(crate) namespace: String,
}

/// Converts each resource to its profiles.
///
/// # Errors
/// The first problem of each document that cannot be converted.
pub(crate) fn convert(documents: &[Document], options: &Options) -> Result<Converted, Vec<Remark>> {
    let mut converted = Converted::default();
    let mut faults = Vec::new();
    let mut seen: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut names = Vec::new();
    for (index, document) in documents.iter().enumerate() {
        let resource = match Resource::read(index, document, options) {
            Ok(resource) => resource,
            Err(fault) => {
                faults.push(fault);
                continue;
            }
        };
        let key = (resource.namespace.clone(), resource.name.clone());
        if seen.insert(key, index).is_some() {
            let message = format!("there is another Instrumentation {}/{}", resource.namespace, resource.name);
            faults.push(Remark::new(index, "metadata.name", message));
            continue;
        }
        match resource.profiles(options, &mut names, &mut converted.notes) {
            Ok(profiles) => converted.profiles.extend(profiles),
            Err(fault) => faults.push(fault),
        }
    }
    let mut by_namespace: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for ((namespace, _), index) in &seen {
        by_namespace.entry(namespace).or_default().push(*index);
    }
    for (namespace, all) in by_namespace.iter().filter(|(_, all)| all.len() > 1) {
        let message = format!(
            "namespace {namespace} has {} Instrumentations: a pod that requests `true` gets none, as with the operator",
            all.len()
        );
        let first = all.iter().min().copied().unwrap_or_default();
        converted.notes.push(Remark::new(first, "metadata.namespace", message).with_help("request one by name"));
    }
    if faults.is_empty() { Ok(converted) } else { Err(faults) }
}

/// An `Instrumentation` resource.
struct Resource<'d> {
    document: usize,
    namespace: String,
    name: String,
    spec: &'d Json,
}

impl<'d> Resource<'d> {
    fn read(document: usize, whole: &'d Document, options: &Options) -> Result<Self, Remark> {
        static NOTHING: Json = Json::Null;
        let text = |pointer: &str| whole.value.pointer(pointer).and_then(Json::as_str);
        let version = text("/apiVersion").unwrap_or_default();
        if text("/kind") != Some("Instrumentation") || version.split('/').next() != Some("opentelemetry.io") {
            return Err(Remark::new(document, "kind", "this is not an Instrumentation of opentelemetry.io"));
        }
        if version != "opentelemetry.io/v1alpha1" {
            let message = format!("this build does not convert version {version}");
            return Err(Remark::new(document, "apiVersion", message).with_help("write it as opentelemetry.io/v1alpha1"));
        }
        let name = text("/metadata/name").filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| Remark::new(document, "metadata.name", "an Instrumentation needs a name"))?;
        Ok(Self {
            document,
            namespace: text("/metadata/namespace").unwrap_or(&options.namespace).to_owned(),
            name: name.to_owned(),
            spec: whole.value.get("spec").unwrap_or(&NOTHING),
        })
    }

    fn profiles(
        &self,
        options: &Options,
        names: &mut Vec<String>,
        notes: &mut Vec<Remark>,
    ) -> Result<Vec<Json>, Remark> {
        self.note_unknown(notes);
        let is_meant = |language: &&Language| {
            options.languages.is_empty() || options.languages.iter().any(|name| name == language.name)
        };
        let mut profiles = Vec::new();
        for language in LANGUAGES.iter().filter(is_meant) {
            let full = format!("{}/{}", self.namespace, self.name);
            let name =
                unique_name(&object_name(&format!("otel-{}-{}-{}", language.name, self.namespace, self.name)), names);
            let annotation = format!("{REQUEST}{}", language.name);
            profiles.push(json!({
                "apiVersion": "pillion.dev/v1alpha1",
                "kind": "ClusterInjectionProfile",
                "metadata": {"name": name},
                "spec": {
                    "description": escaped(&format!("Instrumentation {full} for {}", language.name)),
                    "extends": {"name": format!("otel-{}", language.name)},
                    // `requestedBy` is inherited only as a whole, so it is complete here.
                    "requestedBy": {"annotation": annotation, "values": [full], "truthy": [], "empty": "Absent"},
                    "parameters": self.parameters(language, notes)?,
                },
            }));
            profiles.push(json!({
                "apiVersion": "pillion.dev/v1alpha1",
                "kind": "InjectionProfile",
                "metadata": {"name": object_name(&format!("{}-{}", self.name, language.name)), "namespace": self.namespace},
                "spec": {
                    "extends": {"name": name},
                    "activation": "Requested",
                    "requestedBy": {"annotation": annotation, "values": [self.name], "empty": "Absent"},
                },
            }));
        }
        Ok(profiles)
    }

    /// Returns the parameters that the resource sets for a language.
    fn parameters(&self, language: &Language, notes: &mut Vec<Remark>) -> Result<Json, Remark> {
        let mut parameters = Vec::new();
        let mut set = |name: &str, value: &Json, path: &str| -> Result<(), Remark> {
            if is_empty_value(value) {
                return Ok(());
            }
            let value = literal(value, path)
                .map_err(|path| Remark::new(self.document, path, "a profile cannot contain a key with a `$`"))?;
            parameters.push(json!({"name": name, "default": value}));
            Ok(())
        };
        let of_agents = OF_AGENTS.iter().filter(|(_, name)| match language.name {
            "sdk" => false,
            // The agent for Go is a sidecar with a fixed security context, so only the pull policy is set.
            "go" => *name == "pullPolicy",
            _ => true,
        });
        for (pointer, name) in COMMON.iter().chain(of_agents) {
            if let Some(value) = self.spec.pointer(pointer) {
                set(name, value, &format!("spec{}", pointer.replace('/', ".")))?;
            }
        }
        let Some(field) = language.field else { return Ok(parameters.into()) };
        let Some(own) = self.spec.get(field).and_then(Json::as_object) else { return Ok(parameters.into()) };
        for (member, name) in language.parameters {
            if let Some(value) = own.get(*member) {
                set(name, value, &format!("spec.{field}.{member}"))?;
            }
        }
        let claim =
            own.get("volumeClaimTemplate").filter(|claim| claim.get("spec").is_some_and(|spec| !is_empty_value(spec)));
        let limit = own.get("volumeLimitSize").filter(|limit| !is_empty_value(limit));
        match (claim, limit) {
            (None, None) => {}
            _ if language.name == "go" => {
                let path = format!("spec.{field}.volumeLimitSize");
                notes.push(Remark::new(self.document, path, "left out, because the agent for Go has no volume"));
            }
            (Some(claim), _) => {
                let volume = json!({"ephemeral": {"volumeClaimTemplate": claim}});
                set("volume", &volume, &format!("spec.{field}.volumeClaimTemplate"))?;
            }
            (None, Some(limit)) => {
                let volume = json!({"emptyDir": {"sizeLimit": limit}});
                set("volume", &volume, &format!("spec.{field}.volumeLimitSize"))?;
            }
        }
        Ok(parameters.into())
    }

    /// Adds a remark for each non-empty field without a profile parameter.
    fn note_unknown(&self, notes: &mut Vec<Remark>) {
        let known = COMMON.iter().chain(&OF_AGENTS).map(|(pointer, _)| (*pointer).to_owned());
        let of_languages = LANGUAGES.iter().filter_map(|language| Some((language.field?, language.parameters)));
        let of_languages = of_languages.flat_map(|(field, parameters)| {
            let own = parameters.iter().map(|(member, _)| *member).chain(["volumeClaimTemplate", "volumeLimitSize"]);
            own.map(move |member| format!("/{field}/{member}"))
        });
        let known: Vec<String> = known.chain(of_languages).collect();
        let mut note = |path: String| {
            notes.push(Remark::new(self.document, path, "left out, because the profile has no parameter for this"));
        };
        for (field, value) in self.spec.as_object().into_iter().flatten().filter(|(_, value)| !is_empty_value(value)) {
            let pointer = format!("/{field}");
            if known.contains(&pointer) {
                continue;
            }
            let below = format!("{pointer}/");
            if !known.iter().any(|one| one.starts_with(&below)) {
                note(format!("spec.{field}"));
                continue;
            }
            for (member, _) in value.as_object().into_iter().flatten().filter(|(_, value)| !is_empty_value(value)) {
                if !known.contains(&format!("{below}{member}")) {
                    note(format!("spec.{field}.{member}"));
                }
            }
        }
    }
}

/// Returns `name`. If it is taken, returns at most 59 bytes of it with a number. Adds the result to `taken`.
fn unique_name(name: &str, taken: &mut Vec<String>) -> String {
    let numbered = (2..).map(|number| format!("{}-{number}", name.get(..name.len().min(59)).unwrap_or(name)));
    // `find` always succeeds: `numbered` is infinite, and `taken` is finite.
    let free = std::iter::once(name.to_owned()).chain(numbered).find(|name| !taken.contains(name)).unwrap_or_default();
    taken.push(free.clone());
    free
}
