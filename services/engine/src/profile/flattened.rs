//! Flattened profiles: profiles merged with all inherited parts, as they are stored in revisions.
//!
//! The webhook compiles its profiles only from revisions, and not from current profiles and their parents. So all
//! replicas compile the same result at any time.

use std::collections::BTreeMap;

use pillion_api::profile::ProfileSpec;
use pillion_api::revision::{MAX_TEXT_BYTES, RevisionBounds, RevisionSpec};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use super::{Diagnostic, Limits, ProfileName};

/// The field that is reported for errors in a parent.
pub(super) const EXTENDS: &str = "spec.extends.name";

/// The fields that are not part of a revision, because they do not affect the injected pod.
const UNHASHED: [&str; 2] = ["rollout", "safetyNet"];

/// The number of hexadecimal digits of a revision. 40 bits are enough to distinguish the few revisions of one profile.
const REVISION_LENGTH: usize = 10;

/// A profile merged with all inherited parts, and its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct FlattenedProfile {
    /// The merged spec, without `extends`.
    pub spec: ProfileSpec,
    /// The limits of the profile.
    pub limits: Limits,
    /// The cluster profiles that the profile extends, the nearest first.
    pub ancestors: Vec<Box<str>>,
    /// The inherited parameters whose values a namespaced profile sets.
    pub set_by_namespace: Vec<String>,
    /// The revision from which the profile was read. `None` if it was not read from a revision.
    pub(super) stored_revision: Option<Box<str>>,
    /// The places where the parts of the merged spec were written. `None` if the spec was not merged.
    pub(super) origin: Option<Origin>,
}

impl FlattenedProfile {
    /// Creates the flattened form of a profile that extends nothing.
    pub(super) const fn standalone(spec: ProfileSpec, limits: Limits) -> Self {
        Self { spec, limits, ancestors: Vec::new(), set_by_namespace: Vec::new(), stored_revision: None, origin: None }
    }

    /// Returns the revision: a hash of the spec without `rollout` and `safetyNet`, which do not affect the injected
    /// pod. If the profile extends others, the hash includes `limits`, `ancestors` and `set_by_namespace` too. `None`
    /// if the spec cannot be serialized.
    #[must_use]
    pub fn revision(&self) -> Option<Box<str>> {
        hash(&serde_json::to_string(&self.spec).ok()?, self.limits, &self.ancestors, &self.set_by_namespace)
    }

    /// Returns the revision object to store. `source` is the author's own spec, if it extends a profile.
    ///
    /// # Errors
    /// Fails if the flattened spec cannot be serialized, or if it or `source` is too large.
    pub fn to_revision(
        &self,
        name: &ProfileName,
        generation: Option<i64>,
        source: Option<&str>,
    ) -> Result<RevisionSpec, Diagnostic> {
        let spec = ProfileSpec { rollout: None, safety_net: None, ..self.spec.clone() };
        let text = serde_json::to_string(&spec).map_err(|error| Diagnostic::new("spec", error.to_string()))?;
        let revision = self.revision().unwrap_or_default().into();
        let source = source.filter(|_| !self.ancestors.is_empty());
        if let Some(size) = [text.len(), source.map_or(0, str::len)].into_iter().find(|size| *size > MAX_TEXT_BYTES) {
            let message = format!("with inherited parts, the profile has {size} bytes; {MAX_TEXT_BYTES} are allowed");
            return Err(Diagnostic::new("spec", message));
        }
        Ok(RevisionSpec {
            profile: name.name.to_string(),
            revision,
            generation,
            bounds: match self.limits {
                Limits::Platform => RevisionBounds::Platform,
                Limits::Parent => RevisionBounds::Parent,
                Limits::Tenant => RevisionBounds::Tenant,
            },
            ancestors: self.ancestors.iter().map(ToString::to_string).collect(),
            set_by_namespace: self.set_by_namespace.clone(),
            text,
            source: source.map(str::to_owned),
        })
    }

    /// Reads a stored revision.
    ///
    /// # Errors
    /// This version cannot parse the revision, the revision belongs to another profile, its limits are invalid for the
    /// profile's scope, or its hash does not match.
    pub(super) fn from_revision(name: &ProfileName, revision: &RevisionSpec) -> Result<Self, Diagnostic> {
        if *revision.profile != *name.name {
            return Err(Diagnostic::new("spec.profile", format!("the revision belongs to {:?}", revision.profile)));
        }
        let limits = match (revision.bounds, &name.namespace) {
            (RevisionBounds::Platform, None) => Limits::Platform,
            (RevisionBounds::Parent, Some(_)) => Limits::Parent,
            (RevisionBounds::Tenant, Some(_)) => Limits::Tenant,
            (bounds, _) => {
                return Err(Diagnostic::new("spec.bounds", format!("{name} cannot have the bounds {bounds:?}")));
            }
        };
        let spec: ProfileSpec = serde_json::from_str(&revision.text).map_err(|error| {
            Diagnostic::new("spec.text", error.to_string())
                .with_help("a newer version of Pillion may have written it; upgrade this one")
        })?;
        let ancestors: Vec<_> = revision.ancestors.iter().map(|name| name.as_str().into()).collect();
        // Hash the stored `text`, because another version may serialize the same profile differently.
        let hash = hash(&revision.text, limits, &ancestors, &revision.set_by_namespace);
        if hash.as_deref() != Some(&*revision.revision) {
            let hash = hash.as_deref().unwrap_or("none");
            let message = format!("the revision is named {}, but the hash of its content is {hash}", revision.revision);
            let help = "only the controller writes revisions; delete this one, and the controller recreates it";
            return Err(Diagnostic::new("spec.revision", message).with_help(help));
        }
        Ok(Self {
            spec: ProfileSpec { extends: None, ..spec },
            limits,
            ancestors,
            set_by_namespace: revision.set_by_namespace.clone(),
            stored_revision: hash,
            origin: None,
        })
    }

    /// Returns the revision of the compiled profile. A stored revision is kept, because this version may serialize the
    /// profile differently.
    pub(super) fn compiled_revision(&self) -> Box<str> {
        self.stored_revision.clone().or_else(|| self.revision()).unwrap_or_default()
    }

    /// Moves a diagnostic from the flattened spec to the profile and the path where the author wrote the invalid part.
    /// If an ancestor contains the part, the diagnostic points to `extends`, and its message names the ancestor.
    pub(super) fn relocate(&self, diagnostic: Diagnostic) -> Diagnostic {
        let Some(origin) = &self.origin else { return diagnostic };
        let Some(path) = diagnostic.path.strip_prefix("spec") else { return diagnostic };
        let (text, path) = origin.locate(path);
        // The chain ends with the profile's parent and the profile itself.
        let up = self.ancestors.len().checked_sub(text + 1);
        match up.and_then(|up| self.ancestors.get(up)) {
            None => Diagnostic { path, ..diagnostic },
            Some(ancestor) => {
                let message = format!("{path} of {ancestor}, which it extends: {}", diagnostic.message);
                Diagnostic { help: diagnostic.help, ..Diagnostic::new(EXTENDS, message) }
            }
        }
    }
}

/// Hashes a spec without the fields in [`UNHASHED`], and with sorted object keys. If the profile extends others, the
/// hash includes its limits, its ancestors and the names in `set`. `None` if `text` is not a JSON object.
fn hash(text: &str, limits: Limits, ancestors: &[Box<str>], set: &[String]) -> Option<Box<str>> {
    // Parse the spec as a stored revision is parsed, because parsing may change numbers.
    let mut json: Json = serde_json::from_str(text).ok()?;
    let fields = json.as_object_mut()?;
    for field in UNHASHED {
        fields.remove(field);
    }
    if !ancestors.is_empty() {
        let bounds = format!("{limits:?}");
        json = serde_json::json!({"text": json, "bounds": bounds, "ancestors": ancestors, "set": set});
    }
    json.sort_all_objects();
    let hash = Sha256::digest(json.to_string());
    let mut hex = format!("{hash:x}");
    hex.truncate(REVISION_LENGTH);
    Some(hex.into())
}

/// The places where a part and its nested parts were written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Origin {
    /// The index of the profile in the chain: 0 is the profile that extends nothing.
    text: usize,
    /// The path of the part in the profile with the index `text`.
    path: String,
    below: Below,
}

#[derive(Clone, Debug, PartialEq)]
enum Below {
    /// All nested parts were written in the same profile, at the corresponding paths.
    Same,
    Fields(BTreeMap<String, Origin>),
    Items(Vec<Origin>),
}

impl Origin {
    /// Creates the origin of a part that was completely written in one profile. `text` is the index of the profile in
    /// the chain.
    pub(super) fn of(text: usize, path: impl Into<String>) -> Self {
        Self { text, path: path.into(), below: Below::Same }
    }

    /// Returns this origin with `fields` as the origins of its fields.
    pub(super) fn with_fields(&self, fields: BTreeMap<String, Self>) -> Self {
        Self { text: self.text, path: self.path.clone(), below: Below::Fields(fields) }
    }

    /// Returns this origin with `items` as the origins of its items.
    pub(super) fn with_items(&self, items: Vec<Self>) -> Self {
        Self { text: self.text, path: self.path.clone(), below: Below::Items(items) }
    }

    /// Returns the origin of a field of this part.
    pub(super) fn field(&self, name: &str) -> Self {
        match &self.below {
            Below::Fields(fields) if fields.contains_key(name) => fields.get(name).cloned(),
            _ => None,
        }
        .unwrap_or_else(|| Self::of(self.text, format!("{}.{name}", self.path)))
    }

    /// Returns the origin of an item of this part.
    pub(super) fn item(&self, index: usize) -> Self {
        match &self.below {
            Below::Items(items) => items.get(index).cloned(),
            _ => None,
        }
        .unwrap_or_else(|| Self::of(self.text, format!("{}[{index}]", self.path)))
    }

    /// Returns the index of the profile in which a path below this part was written, and the path in that profile. A
    /// path that no profile wrote has the origin of the nearest enclosing part.
    pub(super) fn locate(&self, path: &str) -> (usize, String) {
        let (mut here, mut rest) = (self, path);
        // Each step descends one level, and the tree is not deeper than the profile.
        loop {
            let next = match &here.below {
                Below::Same => None,
                Below::Fields(fields) => step_into_field(fields, rest),
                Below::Items(items) => step_into_item(items, rest),
            };
            match next {
                Some((next, remaining)) => (here, rest) = (next, remaining),
                None => return (here.text, format!("{}{rest}", here.path)),
            }
        }
    }
}

/// Finds the field at the start of a path, and returns it with the rest of the path. Keys may contain dots, so the
/// longest matching key is used. If no key matches, returns `$value`, which paths may omit.
fn step_into_field<'o, 'p>(fields: &'o BTreeMap<String, Origin>, rest: &'p str) -> Option<(&'o Origin, &'p str)> {
    let ends = |remaining: &str| remaining.is_empty() || remaining.starts_with(['.', '[']);
    let fitting = fields.iter().filter_map(|(key, origin)| {
        let plain = rest.strip_prefix('.').and_then(|rest| rest.strip_prefix(key.as_str()));
        let remaining = plain.or_else(|| rest.strip_prefix(&format!("[{key:?}]"))).filter(|rest| ends(rest))?;
        Some((origin, remaining))
    });
    let longest = fitting.min_by_key(|(_, remaining)| remaining.len());
    longest.or_else(|| fields.get("$value").filter(|_| !rest.is_empty()).map(|value| (value, rest)))
}

fn step_into_item<'o, 'p>(items: &'o [Origin], rest: &'p str) -> Option<(&'o Origin, &'p str)> {
    let (index, remaining) = rest.strip_prefix('[')?.split_once(']')?;
    Some((items.get(index.parse::<usize>().ok()?)?, remaining))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::profile::{CompiledProfile, Library, ProfileSource};

    fn spec(json: Json) -> ProfileSpec {
        serde_json::from_value(json).unwrap()
    }

    fn library() -> Library {
        let parent = json!({
            "activation": "Never", "rollout": {"percent": 5},
            "parameters": [{"name": "level", "type": "string", "default": "info", "annotation": "a/level", "sources": ["Namespace"]}],
            "template": {"metadata": {"labels": {"level": "${params.level}"}}},
        });
        Library::new([("parent", parent)])
    }

    fn child(level: &str) -> ProfileSpec {
        spec(json!({"extends": {"name": "parent"}, "parameters": [{"name": "level", "default": level}]}))
    }

    /// Returns the stored revision of a child that sets the level to `debug`.
    fn child_revision(name: &ProfileName) -> RevisionSpec {
        let flattened = ProfileSource::Author(&child("debug"), &library()).flatten(name).unwrap();
        flattened.to_revision(name, None, None).unwrap()
    }

    #[test]
    fn stored_revision_compiles_to_same_profile() {
        for name in [ProfileName::cluster("child"), ProfileName::namespaced("shop", "child")] {
            let accepted = ProfileSource::Author(&child("debug"), &library()).compile(&name).unwrap();
            let flattened = ProfileSource::Author(&child("debug"), &library()).flatten(&name).unwrap();
            assert_eq!(flattened.revision().as_deref(), Some(accepted.revision()));
            let kept = flattened.to_revision(&name, Some(3), Some("{}")).unwrap();
            assert!(!kept.text.contains("extends") && !kept.text.contains("rollout"), "{}", kept.text);
            assert_eq!((kept.source.as_deref(), kept.ancestors.as_slice()), (Some("{}"), &["parent".to_owned()][..]));
            let served = ProfileSource::Revision(&kept).compile(&name).unwrap();
            assert_eq!(served.revision(), accepted.revision());
            assert_eq!(served.limits(), accepted.limits());
            assert!(served.ancestors().eq(accepted.ancestors()));
            let set = |profile: &CompiledProfile| profile.parameters.first().unwrap().set_by_namespace;
            assert_eq!(set(&served), set(&accepted));
            assert_eq!(set(&served), name.namespace.is_some());
        }
    }

    /// Tenants can read their revisions. docs/tenancy.md therefore states that they can read the profiles that they
    /// extend.
    #[test]
    fn tenant_revision_contains_parent_text() {
        let name = ProfileName::namespaced("shop", "child");
        let kept = child_revision(&name);
        let text: Json = serde_json::from_str(&kept.text).unwrap();
        assert_eq!(text["template"]["metadata"]["labels"]["level"], "${params.level}");
    }

    #[test]
    fn revision_includes_limits_and_not_rollout() {
        let name = ProfileName::cluster("p");
        let text =
            |percent| spec(json!({"rollout": {"percent": percent}, "template": {"metadata": {"labels": {"a": "b"}}}}));
        let revision = |spec: &ProfileSpec| ProfileSource::Author(spec, &library()).flatten(&name).unwrap().revision();
        assert_eq!(revision(&text(1)), revision(&text(100)));
        assert_eq!(revision(&text(1)), revision(&ProfileSpec { rollout: None, ..text(1) }));

        // A tenant who writes the same spec without `extends` gets the limits for tenants and a different revision.
        let name = ProfileName::namespaced("shop", "child");
        let inherited = ProfileSource::Author(&child("debug"), &library()).flatten(&name).unwrap();
        let own = ProfileSource::Author(&inherited.spec, &library()).flatten(&name).unwrap();
        assert_eq!((inherited.limits, own.limits), (Limits::Parent, Limits::Tenant));
        assert_ne!(inherited.revision(), own.revision());
    }

    #[test]
    fn rejects_revision_with_wrong_hash() {
        let name = ProfileName::namespaced("shop", "child");
        let kept = child_revision(&name);
        let forged = [
            RevisionSpec { text: kept.text.replace("debug", "trace"), ..kept.clone() },
            RevisionSpec { ancestors: vec!["privileged".to_owned()], ..kept.clone() },
            RevisionSpec { set_by_namespace: Vec::new(), ..kept.clone() },
            RevisionSpec { bounds: RevisionBounds::Tenant, ..kept.clone() },
            RevisionSpec { revision: "0123456789".to_owned(), ..kept.clone() },
        ];
        for forged in forged {
            let [diagnostic] = ProfileSource::Revision(&forged).compile(&name).unwrap_err().try_into().unwrap();
            assert!(diagnostic.message.contains("the hash of its content is"), "{diagnostic}");
        }
        // A newer version may serialize the fields in a different order. This does not change the revision.
        let Json::Object(fields) = serde_json::from_str(&kept.text).unwrap() else { panic!() };
        let text = Json::Object(fields.into_iter().rev().collect()).to_string();
        assert_ne!(text, kept.text);
        assert!(ProfileSource::Revision(&RevisionSpec { text, ..kept }).compile(&name).is_ok());
    }

    #[test]
    fn tenant_revision_has_tenant_limits() {
        let name = ProfileName::namespaced("shop", "own");
        let lookups = json!([{"name": "others", "version": "v1", "resource": "configmaps", "objectName": "settings", "namespace": "other"}]);
        let template = json!({"metadata": {"labels": {"a": "${lookups.?others.?data.?a.orValue('')}"}}});
        for limits in [Limits::Tenant, Limits::Platform] {
            let spec = spec(json!({"lookups": lookups, "template": template}));
            let forged = FlattenedProfile::standalone(spec, limits);
            let forged = forged.to_revision(&name, None, None).unwrap();
            let diagnostics = ProfileSource::Revision(&forged).compile(&name).unwrap_err();
            let expected = if limits == Limits::Tenant {
                "only cluster profiles can declare lookups"
            } else {
                "cannot have the bounds Platform"
            };
            assert!(diagnostics.iter().any(|diagnostic| diagnostic.message.contains(expected)), "{diagnostics:?}");
        }
    }

    #[test]
    fn parsed_numbers_keep_hash() {
        let name = ProfileName::cluster("p");
        for number in 1..2_000_u32 {
            let number = f64::from(number).sqrt() * 1e-7;
            let spec = spec(json!({"template": {"spec": {"x": number}}}));
            let flattened = FlattenedProfile::standalone(spec, Limits::Platform);
            let kept = flattened.to_revision(&name, None, None).unwrap();
            assert!(ProfileSource::Revision(&kept).flatten(&name).is_ok(), "{number}");
        }
    }

    #[test]
    fn rejects_revision_of_other_profile_or_scope() {
        let name = ProfileName::namespaced("shop", "child");
        let kept = child_revision(&name);
        let other = ProfileName::namespaced("shop", "other");
        assert!(ProfileSource::Revision(&kept).compile(&other).unwrap_err()[0].message.contains("child"));
        let platforms = RevisionSpec { bounds: RevisionBounds::Platform, ..kept.clone() };
        assert!(
            ProfileSource::Revision(&platforms).compile(&name).is_err(),
            "a namespaced profile never has the platform's limits"
        );
        assert!(ProfileSource::Revision(&kept).compile(&ProfileName::cluster("child")).is_err());
        let newer = RevisionSpec { text: r#"{"newField": 1}"#.to_owned(), ..kept };
        assert!(ProfileSource::Revision(&newer).compile(&name).unwrap_err()[0].to_string().contains("newer version"));
    }

    fn merged() -> Origin {
        let child = Origin::of(1, "spec");
        let list = child.field("list").with_items(vec![Origin::of(0, "spec.list[4]"), child.field("list").item(0)]);
        let value = child.field("args").with_fields([("$value".to_owned(), Origin::of(0, "spec.args"))].into());
        let fields = [("list", list), ("a", Origin::of(0, "spec.a")), ("a.b/c", child.field("a.b/c")), ("args", value)];
        child.with_fields(fields.into_iter().map(|(name, origin)| (name.to_owned(), origin)).collect())
    }

    #[test]
    fn locates_path_in_originating_profile() {
        for (path, text, own) in [
            (".list[0].name", 0, "spec.list[4].name"),
            (".list[1].name", 1, "spec.list[0].name"),
            (".list[7]", 1, "spec.list[7]"),
            (".list", 1, "spec.list"),
            (".a.b", 0, "spec.a.b"),
            (".a.b/c", 1, "spec.a.b/c"),
            ("[\"a.b/c\"]", 1, "spec.a.b/c"),
            (".args[2]", 0, "spec.args[2]"),
            (".args.$value[2]", 0, "spec.args[2]"),
            (".other", 1, "spec.other"),
            ("", 1, "spec"),
        ] {
            assert_eq!(merged().locate(path), (text, own.to_owned()), "{path}");
        }
    }
}
