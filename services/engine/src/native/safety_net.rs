//! The safety net: converts the additions of cluster profiles to the mutations of one `MutatingAdmissionPolicy`.
//!
//! The API server evaluates the policy before it calls the webhook. So the policy acts like a first pass of the engine:
//! it adds the same parts as the engine, and writes the same entries into the injection record, marked with
//! `by: policy`. While replicas answer, the webhook first undoes the marked entries. While no replica answers, pods
//! keep the additions.
//!
//! All profiles are in one policy, because API servers evaluate several policies in no defined order. Each profile has
//! one mutation. The mutations have the order of the profiles, and an error in one does not affect the others. A
//! mutation sees the pod with the additions of earlier mutations, but the expressions of a profile must see the pod of
//! its author. So a profile is left out if it reads what an earlier one adds.
//!
//! The engine itself renders the additions: it applies the profile to a minimal pod. Expressions that read only
//! parameters have the same result for every pod, because a covered profile has no parameter with sources. Slots stand
//! for all other expressions. The API server evaluates these.
//!
//! Where a mutation cannot do what the engine does, it does nothing.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use pillion_api::ProfileSpec;
use pillion_api::names::{FailureMode, INJECT_LABEL, INJECTED_ANNOTATION, INJECTION_LABEL, PROFILES_ANNOTATION};
use pillion_api::opt_in::OptIn;
use pillion_api::profile::{Activation, FailurePolicy, Operation};
use pillion_api::selector::{LabelSelector, Operator};
use serde_json::{Map, Value, json};

use super::conditions::{Expressions, Used, list, opted_in_as, quoted};
use super::literal::{self, Slots};
use super::{NotExported, PolicyScope, Profile, common};
use crate::creation::Creation;
use crate::expression::{Part, Text, rename_members};
use crate::profile::{CompiledProfile, ProfileName, compile};
use crate::record::{BY, BY_POLICY, Change, Record};
use crate::review::{Endpoint, Facts, Review};
use crate::snapshot::{Namespace, ProfileSet, Snapshot};

/// The name of the minimal pod, and of its namespace, its container and its images.
const MINIMAL: &str = "pillion-safety-net";

/// The maximum number of characters in the record of a policy. The engine's limit is 16 KiB.
const MAX_RECORD: usize = 16_000;

/// The maximum number of namespaces in which a profile is not covered because of a namespaced profile.
const MAX_EXCLUDED: usize = 500;

/// Maximum size of all mutations and variables in bytes. An API server stores objects of up to 1.5 MiB.
const MAX_BYTES: usize = 256 * 1024;

/// The directives that a covered template may have, if they do not depend on the pod.
const DIRECTIVES: [&str; 2] = ["$when", "$position"];

/// A profile that opts in to the safety net.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'p> {
    /// The active revision.
    pub compiled: &'p CompiledProfile,
    /// The spec of the active revision.
    pub spec: &'p ProfileSpec,
}

/// A profile in the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Covered {
    /// The profile.
    pub name: ProfileName,
    /// The revision that the policy adds.
    pub revision: Box<str>,
    /// The variables that the mutation uses: names and expressions. Their names are unique in the policy.
    pub variables: Vec<(String, String)>,
    /// The expression of the mutation, which computes a JSON patch.
    pub mutation: String,
    /// A pod with the additions, for a dry run. Computed strings are examples. An API server rejects every pod for
    /// which a policy adds a field that it does not know, so it must accept this pod first.
    pub sample: Value,
}

/// The content of the policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SafetyNet {
    /// The profiles in the policy, in the order in which they are applied.
    pub covered: Vec<Covered>,
    /// The profiles that the policy cannot express, with the reasons.
    pub uncovered: Vec<(ProfileName, NotExported)>,
}

/// Converts profiles for the policy. `all` contains all profiles of the cluster, because the effect of a request
/// depends on them.
pub fn safety_net<'p>(
    candidates: impl IntoIterator<Item = Candidate<'p>>,
    all: &ProfileSet,
    opt_in: &OptIn,
) -> SafetyNet {
    let mut candidates: Vec<_> = candidates.into_iter().collect();
    candidates.sort_by_key(|candidate| (candidate.compiled.order, candidate.compiled.name().clone()));
    let mut net = SafetyNet::default();
    let mut earlier: Vec<Conversion> = Vec::new();
    let mut bytes = 0;
    for candidate in candidates {
        let name = candidate.compiled.name().clone();
        match convert(candidate, all, opt_in, &earlier) {
            Ok(conversion) if bytes + conversion.len() > MAX_BYTES => {
                let why = format!("the policy of all profiles would have more than {MAX_BYTES} bytes");
                net.uncovered.push((name, NotExported::new("spec.template", why)));
            }
            Ok(conversion) => {
                bytes += conversion.len();
                net.covered.push(conversion.covered(candidate.compiled));
                earlier.push(conversion);
            }
            Err(why) => net.uncovered.push((name, why)),
        }
    }
    net
}

/// A list of the pod's spec whose elements a policy can add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ElementList {
    InitContainers,
    Containers,
    Volumes,
}

impl ElementList {
    const ALL: [Self; 3] = [Self::InitContainers, Self::Containers, Self::Volumes];

    const fn field(self) -> &'static str {
        match self {
            Self::InitContainers => "initContainers",
            Self::Containers => "containers",
            Self::Volumes => "volumes",
        }
    }
}

/// An addition of a profile.
#[derive(Clone, Debug)]
enum Addition {
    /// A label or an annotation. `map` is `labels` or `annotations`.
    Entry { map: &'static str, key: String, value: String },
    /// An element of a list.
    Element {
        list: ElementList,
        name: String,
        value: Value,
        /// Whether the element is inserted at the start of the list.
        is_first: bool,
        /// Whether the pod may already have an equal element. The engine then adds nothing.
        may_exist: bool,
    },
}

impl Addition {
    /// Returns the fields of the path to the addition. Ends at the list, because expressions read lists as a whole.
    fn path(&self) -> Vec<String> {
        match self {
            Self::Entry { map, key, .. } => vec!["metadata".to_owned(), (*map).to_owned(), key.clone()],
            Self::Element { list, .. } => vec!["spec".to_owned(), list.field().to_owned()],
        }
    }
}

/// A converted profile.
#[derive(Debug)]
struct Conversion {
    name: String,
    revision: String,
    variables: Vec<(String, String)>,
    additions: Vec<(String, Addition)>,
    /// The number of elements that the profile inserts at the start of each list.
    firsts: Vec<(ElementList, usize)>,
    mutation: String,
    sample: Value,
}

impl Conversion {
    /// Returns the approximate size in the policy, in bytes.
    fn len(&self) -> usize {
        self.mutation.len() + self.variables.iter().map(|(name, source)| name.len() + source.len()).sum::<usize>()
    }

    fn covered(&self, compiled: &CompiledProfile) -> Covered {
        Covered {
            name: compiled.name().clone(),
            revision: compiled.revision().into(),
            variables: self.variables.clone(),
            mutation: self.mutation.clone(),
            sample: self.sample.clone(),
        }
    }

    /// Returns an expression that is true if an earlier mutation has applied this profile.
    fn is_applied(&self) -> String {
        let entry = entry_begin(&self.name, &self.revision);
        format!(
            "object.metadata.?annotations[?{}].orValue('').contains({})",
            quoted(INJECTED_ANNOTATION),
            quoted(&entry)
        )
    }
}

/// Returns the start of a profile's entry in the record.
fn entry_begin(name: &str, revision: &str) -> String {
    format!("{{\"profile\":{},\"revision\":{},\"added\":[", json!(name), json!(revision))
}

fn convert(
    candidate: Candidate<'_>,
    all: &ProfileSet,
    opt_in: &OptIn,
    earlier: &[Conversion],
) -> Result<Conversion, NotExported> {
    let Candidate { compiled, spec } = candidate;
    check_spec(compiled, spec)?;
    let others = || all.active().filter(|other| other.name() != compiled.name());
    let shares_key =
        |other: &CompiledProfile| other.request_keys().any(|key| compiled.request_keys().any(|own| own == key));
    let rival = others().find(|other| other.name().namespace.is_none() && shares_key(other));
    let rival = rival.map(|other| other.display_name());
    let profile = Profile { compiled, spec, rival, scope: PolicyScope::Everywhere, opt_in };
    let expressions = Expressions::new(spec);
    let common = common(profile, &expressions)?;

    let mut template = Template { expressions: &expressions, sources: Vec::new() };
    let written = spec.template.as_ref().ok_or_else(|| NotExported::new("spec.template", "there is none"))?;
    let rendered = template.rewrite(written, "spec.template")?;
    let sources = template.sources;
    let rendering = render(compiled, spec, &expressions, rendered, written)?;

    let number = earlier.len();
    let mut used: Used = common.used.clone();
    for (path, source) in &sources {
        used.extend(expressions.check(source).map_err(|why| NotExported::new(path, why))?);
    }
    let excluded: BTreeSet<_> = others()
        // In the excluded namespaces, a namespaced profile may be applied instead: it has the same request key or the
        // same name, or it extends the profile.
        .filter(|other| {
            shares_key(other)
                || other.name().name == compiled.name().name
                || other.ancestors().any(|ancestor| ancestor == compiled.display_name())
        })
        .filter_map(|other| other.name().namespace.as_deref().map(str::to_owned))
        .collect();
    if excluded.len() > MAX_EXCLUDED {
        let why = format!("{} namespaces have profiles that extend it or have its request key", excluded.len());
        return Err(NotExported::new("spec.requestedBy", why));
    }
    check_reads(spec, &expressions, &sources, &used, earlier)?;

    let rename = |source: &str| {
        let renamed = rename_members(source, "variables", |name| variable(number, name));
        renamed.map_err(|error| NotExported::new("spec", error.to_string()))
    };
    let mut writer = Writer { number, variables: Vec::new(), conditions: Vec::new() };
    for variable_ in expressions.in_order(&used) {
        writer.variables.push((variable(number, &variable_.name), rename(&variable_.expression)?));
    }
    for (index, (_, source)) in sources.iter().enumerate() {
        writer.variables.push((slot(number, index), rename(source)?));
    }
    if opt_in.labels().len() > 1 {
        writer.conditions.push(opted_in_as(opt_in, |failure_mode| failure_mode == FailureMode::Enabled));
    }
    writer.conditions.extend(selector(spec.namespace_selector.as_ref(), "namespaceObject.metadata.?labels"));
    writer.conditions.extend(selector(spec.object_selector.as_ref(), "object.metadata.?labels"));
    if !excluded.is_empty() {
        writer.conditions.push(format!("!(request.namespace in {})", list(&excluded.into_iter().collect::<Vec<_>>())));
    }
    for condition in common.conditions.iter().chain(&common.guards) {
        writer.conditions.push(rename(&condition.expression)?);
    }
    writer.pins(&compiled.name().name);
    writer.additions(&rendering, sources.len());
    let mutation = writer.mutation(&rendering, compiled, earlier)?;
    Ok(Conversion {
        name: compiled.display_name().to_owned(),
        revision: compiled.revision().to_owned(),
        variables: writer.variables,
        firsts: ElementList::ALL.map(|list| (list, rendering.firsts(list))).into(),
        additions: rendering.additions,
        mutation,
        sample: rendering.sample,
    })
}

/// Returns an error if the profile has a part that the policy cannot express, or has no template.
fn check_spec(compiled: &CompiledProfile, spec: &ProfileSpec) -> Result<(), NotExported> {
    let target = compiled.target();
    let is_for_new_pods = target.group.is_empty()
        && target.resources.iter().any(|resource| resource == "pods")
        && target.operations.contains(&Operation::Create);
    let is_fatal = compiled.failure_policy == FailurePolicy::Fail;
    for (path, is_there, why) in [
        ("spec.target", !is_for_new_pods, "the safety net is for new pods"),
        ("spec.containerPatches", !spec.container_patches.is_empty(), "the safety net cannot patch each container"),
        ("spec.lookups", !spec.lookups.is_empty(), "the API server does not support lookups"),
        ("spec.failurePolicy", is_fatal, "with Fail, pods must not be created without the profile"),
        ("spec.template", spec.template.is_none(), "the safety net adds the parts of a template, and there is none"),
    ] {
        if is_there {
            return Err(NotExported::new(path, why));
        }
    }
    Ok(())
}

/// Checks that a profile reads nothing that an earlier one adds.
fn check_reads(
    spec: &ProfileSpec,
    expressions: &Expressions<'_>,
    sources: &[(String, String)],
    used: &Used,
    earlier: &[Conversion],
) -> Result<(), NotExported> {
    let entry = |map: &str, key: &str| vec!["metadata".to_owned(), map.to_owned(), key.to_owned()];
    let mut reads = vec![entry("labels", INJECT_LABEL), entry("annotations", PROFILES_ANNOTATION)];
    if let Some(key) = &spec.requested_by {
        reads.extend(key.label.iter().map(|key| entry("labels", key)));
        reads.extend(key.annotation.iter().map(|key| entry("annotations", key)));
    }
    if let Some(LabelSelector { match_labels, match_expressions }) = &spec.object_selector {
        let keys = match_labels.keys().chain(match_expressions.iter().map(|requirement| &requirement.key));
        reads.extend(keys.map(|key| entry("labels", key)));
    }
    let variables = expressions.in_order(used).into_iter().map(|variable| &variable.expression);
    let conditions = spec.match_conditions.iter().map(|condition| &condition.expression);
    let sources = sources.iter().map(|(_, source)| source);
    for source in variables.chain(conditions).chain(sources) {
        reads.extend(expressions.object_paths(source));
    }
    for other in earlier {
        let record = entry("annotations", INJECTED_ANNOTATION);
        for added in other.additions.iter().map(|(_, addition)| addition.path()).chain([record]) {
            let overlaps = |read: &&Vec<String>| read.iter().zip(&added).all(|(read, added)| read == added);
            if let Some(read) = reads.iter().find(overlaps) {
                let why = format!("it reads object.{}, to which {} adds first", read.join("."), other.name);
                return Err(NotExported::new("spec", why));
            }
        }
    }
    Ok(())
}

/// Rewrites a template so that the engine can render it without a pod.
struct Template<'e, 'p> {
    expressions: &'e Expressions<'p>,
    /// The expressions that the API server evaluates, each with its field. The index is the number of the slot.
    sources: Vec<(String, String)>,
}

impl Template<'_, '_> {
    fn rewrite(&mut self, value: &Value, path: &str) -> Result<Value, NotExported> {
        match value {
            Value::String(text) => self.string(text, path),
            Value::Array(items) => {
                let items =
                    items.iter().enumerate().map(|(index, item)| self.rewrite(item, &format!("{path}[{index}]")));
                items.collect::<Result<_, _>>().map(Value::Array)
            }
            Value::Object(fields) => {
                let mut rewritten = Map::new();
                for (key, field) in fields {
                    let path = format!("{path}.{key}");
                    if key.starts_with('$') {
                        self.check_directive(key, field, &path)?;
                        rewritten.insert(key.clone(), field.clone());
                    } else {
                        rewritten.insert(key.clone(), self.rewrite(field, &path)?);
                    }
                }
                Ok(Value::Object(rewritten))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(value.clone()),
        }
    }

    fn string(&mut self, text: &str, path: &str) -> Result<Value, NotExported> {
        let failed = |why: String| NotExported::new(path, why);
        if Slots::is_ambiguous(text) {
            return Err(failed("the safety net does not support this character".to_owned()));
        }
        let parts = match Text::parse(text).map_err(|error| failed(error.to_string()))? {
            Text::Literal(_) => return Ok(text.into()),
            Text::Whole(source) => vec![Part::Expression(source)],
            Text::Mixed(parts) => parts,
        };
        let mut rewritten = String::new();
        for part in parts {
            match part {
                Part::Text(text) => rewritten.push_str(&text.replace("${", "$${")),
                Part::Expression(source) if self.expressions.reads_only_parameters(&source.text) => {
                    rewritten.extend(["${", &source.text, "}"]);
                }
                Part::Expression(source) => {
                    self.expressions.check(&source.text).map_err(failed)?;
                    rewritten.push_str(&Slots::text(self.sources.len()));
                    self.sources.push((path.to_owned(), source.text.trim().to_owned()));
                }
            }
        }
        Ok(rewritten.into())
    }

    /// Checks that a directive is supported and has the same effect for every pod.
    fn check_directive(&self, key: &str, value: &Value, path: &str) -> Result<(), NotExported> {
        let is_constant = |text: &str| match Text::parse(text) {
            Ok(Text::Literal(_)) => true,
            Ok(Text::Whole(source)) => self.expressions.reads_only_parameters(&source.text),
            Ok(Text::Mixed(_)) | Err(_) => false,
        };
        let is_supported = match (key, value) {
            ("$when", Value::String(source)) => self.expressions.reads_only_parameters(source),
            ("$when", Value::Bool(_)) => true,
            ("$position", Value::String(text)) => is_constant(text),
            _ => false,
        };
        if is_supported {
            return Ok(());
        }
        let why = if DIRECTIVES.contains(&key) {
            format!("the safety net supports {key} only if it does not depend on the pod")
        } else {
            format!("the safety net does not support {key}")
        };
        Err(NotExported::new(path, why))
    }
}

/// The additions of a profile, rendered by the engine.
struct Rendering {
    /// The additions with their pointers in the record, in the order of the record.
    additions: Vec<(String, Addition)>,
    refuses_windows: bool,
    /// Volumes that the added containers mount, and that the pod must have.
    foreign_volumes: BTreeSet<String>,
    /// The minimal pod with the additions.
    sample: Value,
}

impl Rendering {
    fn elements(&self) -> impl Iterator<Item = (ElementList, &String, &Value)> {
        self.additions.iter().filter_map(|(_, addition)| match addition {
            Addition::Element { list, name, value, .. } => Some((*list, name, value)),
            Addition::Entry { .. } => None,
        })
    }

    fn containers(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.elements().filter(|(list, ..)| *list != ElementList::Volumes).map(|(_, name, value)| (name, value))
    }

    /// Returns the number of elements that the profile inserts at the start of a list.
    fn firsts(&self, wanted: ElementList) -> usize {
        let is_it = |addition: &&(String, Addition)| matches!(&addition.1, Addition::Element { list, is_first: true, .. } if *list == wanted);
        self.additions.iter().filter(is_it).count()
    }
}

/// Applies a rewritten template to the minimal pod. `written` is the template as its author wrote it.
fn render(
    compiled: &CompiledProfile,
    spec: &ProfileSpec,
    expressions: &Expressions<'_>,
    template: Value,
    written: &Value,
) -> Result<Rendering, NotExported> {
    let is_constant = |source: &str| expressions.reads_only_parameters(source);
    let probe = ProfileSpec {
        activation: Some(Activation::Always),
        parameters: spec.parameters.clone(),
        variables: spec.variables.iter().filter(|variable| is_constant(&variable.expression)).cloned().collect(),
        template: Some(template),
        ..ProfileSpec::default()
    };
    let probe = compile(compiled.name(), &probe).map_err(|diagnostics| match diagnostics.into_iter().next() {
        Some(diagnostic) => NotExported::new(diagnostic.path, diagnostic.message),
        None => NotExported::new("spec.template", "it cannot be rendered"),
    })?;
    let container = json!({"name": MINIMAL, "image": MINIMAL});
    let volumes: Vec<_> = probe.foreign_volumes.iter().map(|name| json!({"name": name, "emptyDir": {}})).collect();
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": MINIMAL, "namespace": MINIMAL},
        "spec": {
            "containers": [container], "volumes": volumes,
            "initContainers": [{"name": format!("{MINIMAL}-init"), "image": MINIMAL}],
        },
    });
    let refuses_windows = probe.adds_linux_containers;
    let failed = |why: String| NotExported::new("spec.template", why);
    let user = json!({"username": MINIMAL});
    let creation = Creation { object: &pod, namespace: MINIMAL, uid: MINIMAL, user: &user, dry_run: true };
    let body = creation.review().to_string();
    let review = Review::parse(body.as_bytes()).map_err(|error| failed(error.to_string()))?;
    let snapshot = Snapshot::new(ProfileSet::new([Arc::new(probe)]));
    let labels = [(INJECTION_LABEL, FailureMode::Enabled.label_value())];
    let namespace = Namespace::new(labels, [(INJECTION_LABEL, ""); 0]);
    let facts = Facts { namespace: Some(Arc::new(namespace)), ..Facts::default() };
    let decided = review
        .decide(Endpoint::FailureMode(FailureMode::Enabled), &snapshot, &facts)
        .map_err(|error| failed(error.to_string()))?;
    let Some(patch) = decided.patch else {
        let decision = decided.decision;
        let detail = decision.profiles.first().and_then(|profile| profile.detail.clone()).unwrap_or_default();
        return Err(failed(format!("it adds nothing to a minimal pod: {}: {detail}", decision.reason.sentence())));
    };
    let patch: json_patch::Patch = serde_json::from_slice(&patch).map_err(|error| failed(error.to_string()))?;
    json_patch::patch(&mut pod, &patch).map_err(|error| failed(error.to_string()))?;
    read_rendering(&pod, written, refuses_windows)
}

/// Reads the additions from the rendered pod and its record.
fn read_rendering(pod: &Value, written: &Value, refuses_windows: bool) -> Result<Rendering, NotExported> {
    let failed = |why: &str| NotExported::new("spec.template", why);
    let record = pod.pointer("/metadata/annotations").and_then(|annotations| annotations.get(INJECTED_ANNOTATION));
    let record = record.and_then(Value::as_str).and_then(Record::read).ok_or_else(|| failed("it adds nothing"))?;
    let mut additions = Vec::new();
    for change in record.changes() {
        let Change::Added(pointer) = change else {
            return Err(failed("the safety net can only add parts, and not change existing ones"));
        };
        let addition = read_addition(pod, written, &pointer)?;
        additions.push((pointer.into_owned(), addition));
    }
    let names = |list: &str| -> BTreeSet<String> {
        let elements = additions.iter().filter_map(|(_, addition)| match addition {
            Addition::Element { list: own, name, .. } if own.field() == list => Some(name.clone()),
            _ => None,
        });
        elements.collect()
    };
    let own = names("volumes");
    let mut rendering = Rendering { additions, refuses_windows, foreign_volumes: BTreeSet::new(), sample: sample(pod) };
    let mounts = rendering.containers().flat_map(|(_, container)| {
        let mounts = container.get("volumeMounts").and_then(Value::as_array);
        mounts.into_iter().flatten().filter_map(|mount| mount.get("name")?.as_str())
    });
    rendering.foreign_volumes = mounts.filter(|name| !own.contains(*name)).map(str::to_owned).collect();
    Ok(rendering)
}

/// Returns the pod with examples in place of computed strings. Its metadata contains only labels and annotations.
fn sample(pod: &Value) -> Value {
    let mut pod = pod.clone();
    literal::fill(&mut pod);
    if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|field, _| ["labels", "annotations"].contains(&field.as_str()));
    }
    pod
}

fn read_addition(pod: &Value, written: &Value, pointer: &str) -> Result<Addition, NotExported> {
    let tokens: Vec<_> = pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~")).collect();
    let tokens: Vec<_> = tokens.iter().map(String::as_str).collect();
    let unsupported = || {
        let why = "the safety net adds only labels, annotations, containers, init containers and volumes";
        NotExported::new(format!("spec.template{}", pointer.replace('/', ".")), why)
    };
    match tokens.as_slice() {
        ["metadata", map, key] => {
            let map = ["labels", "annotations"].into_iter().find(|known| known == map).ok_or_else(unsupported)?;
            let value = pod.get("metadata").and_then(|metadata| metadata.get(map)?.get(key)?.as_str());
            Ok(Addition::Entry { map, key: (*key).to_owned(), value: value.ok_or_else(unsupported)?.to_owned() })
        }
        ["spec", field, name] => {
            let list = ElementList::ALL.into_iter().find(|list| list.field() == *field).ok_or_else(unsupported)?;
            let has_name = |item: &Value, name: &str| item.get("name").and_then(Value::as_str) == Some(name);
            let elements = pod.pointer(&format!("/spec/{field}")).and_then(Value::as_array).ok_or_else(unsupported)?;
            let index = elements.iter().position(|item| has_name(item, name)).ok_or_else(unsupported)?;
            let is_minimal = |item: &Value| item.get("image").and_then(Value::as_str) == Some(MINIMAL);
            let minimal = elements.iter().position(is_minimal);
            let source = written.pointer(&format!("/spec/{field}")).and_then(Value::as_array);
            let source = source.into_iter().flatten().find(|item| has_name(item, name));
            // An element with directives or expressions is never equal to an existing one.
            let is_plain = source.is_some_and(|source| !source.to_string().contains('$'));
            Ok(Addition::Element {
                list,
                name: (*name).to_owned(),
                value: elements.get(index).cloned().ok_or_else(unsupported)?,
                is_first: minimal.is_some_and(|minimal| index < minimal),
                may_exist: is_plain && list == ElementList::Volumes,
            })
        }
        _ => Err(unsupported()),
    }
}

/// Returns the name of a profile's variable in the policy.
fn variable(number: usize, name: &str) -> String {
    format!("p{number}_v_{name}")
}

/// Returns the name of the variable for a slot.
fn slot(number: usize, index: usize) -> String {
    format!("p{number}_e{index}")
}

/// Writes the variables, the conditions and the mutation of a profile.
struct Writer {
    number: usize,
    variables: Vec<(String, String)>,
    /// The conditions under which the mutation changes a pod.
    conditions: Vec<String>,
}

impl Writer {
    /// Adds conditions that exclude a pod if its annotation `pillion.dev/profiles`, or that of its namespace, names a
    /// revision of the profile. The mutation cannot add a pinned revision, because it has only the active one.
    fn pins(&mut self, name: &str) {
        let pins =
            [format!("{name}@"), format!("-{name}@")].map(|pin| format!("w.trim().startsWith({})", quoted(&pin)));
        for place in ["object", "namespaceObject"] {
            let words =
                format!("{place}.metadata.?annotations[?{}].orValue('').split(',')", quoted(PROFILES_ANNOTATION));
            self.conditions.push(format!("!{words}.exists(w, {})", pins.join(" || ")));
        }
    }

    /// Adds the conditions under which the engine adds all parts.
    fn additions(&mut self, rendering: &Rendering, slots: usize) {
        let names: Vec<String> = rendering.containers().map(|(name, _)| name.clone()).collect();
        if !names.is_empty() {
            for field in ["containers", "initContainers", "ephemeralContainers"] {
                let names = list(&names);
                self.conditions.push(format!("!object.spec.?{field}.orValue([]).exists(c, c.name in {names})"));
            }
        }
        let mut whole = Vec::new();
        for (_, addition) in &rendering.additions {
            match addition {
                Addition::Entry { value, .. } => literal::whole_strings(&json!(value), &mut whole),
                Addition::Element { value, .. } => literal::whole_strings(value, &mut whole),
            }
        }
        for index in 0..slots {
            let value = format!("variables.{}", slot(self.number, index));
            // The engine can also convert other values to strings, such as lists. The mutation then does nothing.
            self.conditions.push(if whole.contains(&index) {
                format!("type({value}) == string")
            } else {
                format!("(type({value}) == string || type({value}) == int || type({value}) == bool)")
            });
        }
        if rendering.refuses_windows {
            self.conditions.push("object.spec.?os.?name.orValue('') != 'windows'".to_owned());
            self.conditions.push("object.spec.?nodeSelector[?'kubernetes.io/os'].orValue('') != 'windows'".to_owned());
        }
        for name in &rendering.foreign_volumes {
            self.conditions.push(format!("object.spec.?volumes.orValue([]).exists(v, v.name == {})", quoted(name)));
        }
        // The engine raises the pod's own resources by those of the added containers. The mutation cannot do this.
        if rendering.containers().any(|(_, container)| container.get("resources").is_some()) {
            self.conditions.push("!has(object.spec.resources)".to_owned());
        }
    }

    /// Returns the expression of the mutation, and adds the variables that it uses.
    fn mutation(
        &mut self,
        rendering: &Rendering,
        compiled: &CompiledProfile,
        earlier: &[Conversion],
    ) -> Result<String, NotExported> {
        let number = self.number;
        let value = |index: usize| format!("variables.{}", slot(number, index));
        let as_literal =
            |json: &Value| literal::json(json, &value).map_err(|why| NotExported::new("spec.template", why));
        let mut conditions = std::mem::take(&mut self.conditions);
        let (mut added, mut operations) = (Vec::new(), Vec::new());
        let mut begun = BTreeSet::new();
        let mut firsts: HashMap<&str, usize> = HashMap::new();
        operations.push(missing("metadata", "annotations", "{}"));
        for (pointer, addition) in &rendering.additions {
            let (is_missing, operation) = match addition {
                Addition::Entry { map, key, value: text } => {
                    if *map == "labels" && begun.insert(*map) {
                        operations.push(missing("metadata", map, "{}"));
                    }
                    let is_missing = format!("!object.metadata.?{map}[?{}].hasValue()", quoted(key));
                    let path = quoted(&format!("/metadata/{map}/{}", escaped(key)));
                    (Some(is_missing), operation(&path, &literal::string(text, &value)))
                }
                Addition::Element { list, name, value: element, is_first, may_exist } => {
                    let field = list.field();
                    if begun.insert(field) {
                        operations.push(missing("spec", field, "[]"));
                    }
                    let element = as_literal(element)?;
                    let elements = format!("object.spec.?{field}.orValue([])");
                    let is_taken = format!("{elements}.exists(v, v.name == {})", quoted(name));
                    let is_missing = if *may_exist {
                        let name = quoted(name);
                        conditions.push(format!("{elements}.all(v, v.name != {name} || v == {element})"));
                        Some(format!("!{is_taken}"))
                    } else {
                        if *list == ElementList::Volumes {
                            conditions.push(format!("!{is_taken}"));
                        }
                        None
                    };
                    let path = if *is_first {
                        let count = firsts.entry(field).or_default();
                        *count += 1;
                        first_path(*list, *count - 1, earlier)
                    } else {
                        quoted(&format!("/spec/{field}/-"))
                    };
                    (is_missing, operation(&path, &element))
                }
            };
            let pointer = quoted(&json!(pointer).to_string());
            if let Some(is_missing) = is_missing {
                added.push(format!("({is_missing} ? [{pointer}] : [])"));
                operations.push(format!("({is_missing} ? [{operation}] : [])"));
            } else {
                added.push(format!("[{pointer}]"));
                operations.push(format!("[{operation}]"));
            }
        }
        self.define("added", added.join(" + "));
        self.define("record", record(number, compiled));
        let conditions: Vec<_> = conditions.iter().map(|condition| format!("({condition})")).collect();
        self.define("applies", conditions.join(" && "));
        let variable = |name: &str| format!("variables.p{number}_{name}");
        let (applies, added, record) = (variable("applies"), variable("added"), variable("record"));
        let path = quoted(&format!("/metadata/annotations/{}", escaped(INJECTED_ANNOTATION)));
        operations.push(format!("[{}]", operation(&path, &record)));
        let nothing = format!("!{applies} || size({added}) == 0 || size({record}) > {MAX_RECORD}");
        Ok(format!("{nothing} ? [] :\n{}", operations.join(" +\n")))
    }

    fn define(&mut self, name: &str, expression: String) {
        self.variables.push((format!("p{}_{name}", self.number), expression));
    }
}

/// Returns the path of an element at the start of a list, after those that earlier mutations and this one inserted
/// there.
fn first_path(list: ElementList, before: usize, earlier: &[Conversion]) -> String {
    let field = list.field();
    let mut index = before.to_string();
    for other in earlier {
        let count = other.firsts.iter().find(|(of, _)| *of == list).map_or(0, |(_, count)| *count);
        if count > 0 {
            index = format!("{index} + ({} ? {count} : 0)", other.is_applied());
        }
    }
    format!("'/spec/{field}/' + string({index})")
}

/// Returns the expression for the record with the entry of a profile.
fn record(number: usize, compiled: &CompiledProfile) -> String {
    let begin = entry_begin(compiled.display_name(), compiled.revision());
    let end = format!("],\"{BY}\":\"{BY_POLICY}\"}}]}}");
    let key = quoted(INJECTED_ANNOTATION);
    let before = format!("object.metadata.?annotations[?{key}].orValue('')");
    let first = quoted("{\"version\":1,\"profiles\":[");
    // The record of an earlier mutation ends with two brackets.
    let continued = format!("{before}.substring(0, size({before}) - 2) + ','");
    format!(
        "({before} == '' ? {first} : {continued}) + {} + variables.p{number}_added.join(',') + {}",
        quoted(&begin),
        quoted(&end)
    )
}

/// Returns an expression that adds a missing map or list.
fn missing(parent: &str, field: &str, empty: &str) -> String {
    let path = quoted(&format!("/{parent}/{field}"));
    format!("(has(object.{parent}.{field}) ? [] : [{}])", operation(&path, empty))
}

fn operation(path: &str, value: &str) -> String {
    format!("JSONPatch{{op: 'add', path: {path}, value: {value}}}")
}

fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Returns conditions that are true if the labels at `place` match a selector.
fn selector(selector: Option<&LabelSelector>, place: &str) -> Vec<String> {
    let Some(LabelSelector { match_labels, match_expressions }) = selector else { return Vec::new() };
    let label = |key: &str| format!("{place}[?{}]", quoted(key));
    let equal = match_labels
        .iter()
        .map(|(key, value)| format!("{}.optMap(v, v == {}).orValue(false)", label(key), quoted(value)));
    let expressions = match_expressions.iter().map(|requirement| {
        let (label, values) = (label(&requirement.key), list(&requirement.values));
        match requirement.operator {
            Operator::In => format!("{label}.optMap(v, v in {values}).orValue(false)"),
            Operator::NotIn => format!("{label}.optMap(v, !(v in {values})).orValue(true)"),
            Operator::Exists => format!("{label}.hasValue()"),
            Operator::DoesNotExist => format!("!{label}.hasValue()"),
        }
    });
    equal.chain(expressions).collect()
}

#[cfg(test)]
mod tests;
