//! Flattened profiles: a profile merged with everything that it inherits, as a revision stores it.
//!
//! The webhook compiles what it serves from revisions alone. It reads neither current profiles nor their parents, so
//! every replica compiles the same result at any time.

use pillion_api::profile::ProfileSpec;
use pillion_api::revision::{MAX_TEXT_BYTES, RevisionBounds, RevisionSpec};

use super::compile::{compile_text, refuse_cluster_only};
use super::extend::{self, Effective, NoParents, Parents};
use super::revision::hash;
use super::{CompiledProfile, Diagnostic, Limits, ProfileName};

/// A profile merged with everything that it inherits, and its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct FlattenedProfile {
    /// The spec. It extends nothing.
    pub spec: ProfileSpec,
    /// The limits of the profile.
    pub limits: Limits,
    /// The cluster profiles that it extends, the nearest first.
    pub ancestors: Vec<Box<str>>,
    /// The inherited parameters that a namespaced profile sets.
    pub set_by_namespace: Vec<String>,
}

impl FlattenedProfile {
    /// Flattens a profile with those that it extends.
    ///
    /// # Errors
    /// The mistakes in the chain. Success does not mean that the flattened profile compiles.
    pub fn new(name: &ProfileName, spec: &ProfileSpec, parents: &dyn Parents) -> Result<Self, Vec<Diagnostic>> {
        let mut diagnostics = Vec::new();
        refuse_cluster_only(name, spec, &mut diagnostics);
        if !diagnostics.is_empty() {
            return Err(diagnostics);
        }
        if spec.extends.is_some() {
            return extend::resolve(name, spec, parents).map(Self::from);
        }
        let limits = Limits::of(name);
        Ok(Self { spec: spec.clone(), limits, ancestors: Vec::new(), set_by_namespace: Vec::new() })
    }

    /// Returns the revision: a hash of everything but `rollout`, which does not change the result for a pod.
    #[must_use]
    pub fn revision(&self) -> Option<Box<str>> {
        hash(&serde_json::to_string(&self.spec).ok()?, self.limits, &self.ancestors, &self.set_by_namespace)
    }

    /// Returns the revision object to store. `source` is the author's own spec, if it extends another profile.
    ///
    /// # Errors
    /// The text is too large.
    pub fn to_revision(
        &self,
        name: &ProfileName,
        generation: Option<i64>,
        source: Option<&str>,
    ) -> Result<RevisionSpec, Diagnostic> {
        let spec = ProfileSpec { rollout: None, ..self.spec.clone() };
        let text = serde_json::to_string(&spec).map_err(|error| Diagnostic::new("spec", error.to_string()))?;
        let revision = self.revision().unwrap_or_default().into();
        let source = source.filter(|_| !self.ancestors.is_empty());
        if let Some(size) = [text.len(), source.map_or(0, str::len)].into_iter().find(|size| *size > MAX_TEXT_BYTES) {
            let message = format!("with what it inherits the profile is {size} bytes; {MAX_TEXT_BYTES} are allowed");
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
    /// This build does not understand it, it belongs to another profile, or its hash does not match.
    pub fn from_revision(name: &ProfileName, revision: &RevisionSpec) -> Result<Self, Diagnostic> {
        if *revision.profile != *name.name {
            return Err(Diagnostic::new("spec.profile", format!("the revision is of {:?}", revision.profile)));
        }
        let limits = match (revision.bounds, &name.namespace) {
            (RevisionBounds::Platform, None) => Limits::Platform,
            (RevisionBounds::Parent, Some(_)) => Limits::Parent,
            (RevisionBounds::Tenant, Some(_)) => Limits::Tenant,
            (bounds, _) => return Err(Diagnostic::new("spec.bounds", format!("{name} cannot have {bounds:?}"))),
        };
        let spec: ProfileSpec = serde_json::from_str(&revision.text).map_err(|error| {
            Diagnostic::new("spec.text", error.to_string())
                .with_help("it may be written for a newer version of Pillion: upgrade this one")
        })?;
        let ancestors: Vec<_> = revision.ancestors.iter().map(|name| name.as_str().into()).collect();
        // The hash is that of the stored text: another build may serialize the same profile differently.
        let hash = hash(&revision.text, limits, &ancestors, &revision.set_by_namespace);
        if hash.as_deref() != Some(&*revision.revision) {
            let hash = hash.as_deref().unwrap_or("none");
            let message =
                format!("the revision is called {}, and the hash of its content is {hash}", revision.revision);
            let help = "only the controller writes revisions: delete this one, and it is made again";
            return Err(Diagnostic::new("spec.revision", message).with_help(help));
        }
        let spec = ProfileSpec { extends: None, ..spec };
        Ok(Self { spec, limits, ancestors, set_by_namespace: revision.set_by_namespace.clone() })
    }

    /// Compiles the text.
    ///
    /// # Errors
    /// All diagnostics.
    pub fn compile(&self, name: &ProfileName) -> Result<CompiledProfile, Vec<Diagnostic>> {
        let mut compiled = compile_text(name, &self.spec, self.limits)?;
        compiled.complete(&self.ancestors, &self.set_by_namespace);
        Ok(CompiledProfile { revision: self.revision().unwrap_or_default(), ..compiled })
    }
}

impl From<Effective> for FlattenedProfile {
    fn from(effective: Effective) -> Self {
        let Effective { spec, limits, ancestors, set, .. } = effective;
        Self { spec, limits, ancestors, set_by_namespace: set }
    }
}

/// Compiles a profile that extends none.
///
/// # Errors
/// All diagnostics.
pub fn compile(name: &ProfileName, spec: &ProfileSpec) -> Result<CompiledProfile, Vec<Diagnostic>> {
    compile_with(name, spec, &NoParents)
}

/// Compiles a profile that may extend one of `parents`.
///
/// # Errors
/// All diagnostics, including those of inherited parts.
pub fn compile_with(
    name: &ProfileName,
    spec: &ProfileSpec,
    parents: &dyn Parents,
) -> Result<CompiledProfile, Vec<Diagnostic>> {
    // Only the author's own spec is checked: a namespaced profile may inherit fields that it must not set.
    let mut diagnostics = Vec::new();
    refuse_cluster_only(name, spec, &mut diagnostics);
    let compiled = match spec.extends {
        Some(_) => compile_extending(name, spec, parents),
        None => compile_text(name, spec, Limits::of(name)),
    };
    match compiled {
        Ok(compiled) if diagnostics.is_empty() => Ok(compiled),
        Ok(_) => Err(diagnostics),
        Err(more) => Err(diagnostics.into_iter().chain(more).collect()),
    }
}

/// Compiles a profile that extends another one.
fn compile_extending(
    name: &ProfileName,
    spec: &ProfileSpec,
    parents: &dyn Parents,
) -> Result<CompiledProfile, Vec<Diagnostic>> {
    let effective = extend::resolve(name, spec, parents)?;
    match compile_text(name, &effective.spec, effective.limits) {
        Ok(mut compiled) => {
            compiled.complete(&effective.ancestors, &effective.set);
            let revision = FlattenedProfile::from(effective).revision().unwrap_or_default();
            Ok(CompiledProfile { revision, ..compiled })
        }
        Err(diagnostics) => Err(diagnostics.into_iter().map(|diagnostic| effective.relocate(diagnostic)).collect()),
    }
}

/// Compiles a stored revision. It keeps the stored revision name, because this build may serialize it differently.
///
/// # Errors
/// This build does not understand it, or it no longer compiles.
pub fn compile_revision(name: &ProfileName, revision: &RevisionSpec) -> Result<CompiledProfile, Vec<Diagnostic>> {
    let flattened = FlattenedProfile::from_revision(name, revision).map_err(|diagnostic| vec![diagnostic])?;
    let compiled = flattened.compile(name)?;
    Ok(CompiledProfile { revision: revision.revision.as_str().into(), ..compiled })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::profile::{Library, compile_with};

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

    #[test]
    fn what_is_kept_compiles_to_what_was_accepted() {
        for name in [ProfileName::cluster("child"), ProfileName::namespaced("shop", "child")] {
            let accepted = compile_with(&name, &child("debug"), &library()).unwrap();
            let flattened = FlattenedProfile::new(&name, &child("debug"), &library()).unwrap();
            assert_eq!(flattened.revision().as_deref(), Some(accepted.revision()));
            let kept = flattened.to_revision(&name, Some(3), Some("{}")).unwrap();
            assert!(!kept.text.contains("extends") && !kept.text.contains("rollout"), "{}", kept.text);
            assert_eq!((kept.source.as_deref(), kept.ancestors.as_slice()), (Some("{}"), &["parent".to_owned()][..]));
            let served = compile_revision(&name, &kept).unwrap();
            assert_eq!(served.revision(), accepted.revision());
            assert_eq!(served.limits(), accepted.limits());
            assert!(served.ancestors().eq(accepted.ancestors()));
            let set = |profile: &CompiledProfile| profile.parameters.first().unwrap().set_by_namespace;
            assert_eq!(set(&served), set(&accepted));
            assert_eq!(set(&served), name.namespace.is_some());
        }
    }

    /// Tenants read their revisions, so docs/tenancy.md says that they can read what they extend.
    #[test]
    fn revision_of_tenants_child_has_the_text_of_its_parent() {
        let name = ProfileName::namespaced("shop", "child");
        let kept =
            FlattenedProfile::new(&name, &child("debug"), &library()).unwrap().to_revision(&name, None, None).unwrap();
        let text: Json = serde_json::from_str(&kept.text).unwrap();
        assert_eq!(text["template"]["metadata"]["labels"]["level"], "${params.level}");
        let page = include_str!("../../../../docs/tenancy.md").split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(page.contains("the revision of a child holds the whole text of its parents"));
    }

    #[test]
    fn who_gets_it_is_no_part_of_it_and_what_bounds_it_is() {
        let name = ProfileName::cluster("p");
        let text =
            |percent| spec(json!({"rollout": {"percent": percent}, "template": {"metadata": {"labels": {"a": "b"}}}}));
        let revision = |spec: &ProfileSpec| FlattenedProfile::new(&name, spec, &library()).unwrap().revision();
        assert_eq!(revision(&text(1)), revision(&text(100)));
        assert_eq!(revision(&text(1)), revision(&ProfileSpec { rollout: None, ..text(1) }));

        // Written by the tenant itself, the same spec is limited and has another revision.
        let name = ProfileName::namespaced("shop", "child");
        let inherited = FlattenedProfile::new(&name, &child("debug"), &library()).unwrap();
        let own = FlattenedProfile::new(&name, &inherited.spec, &library()).unwrap();
        assert_eq!((inherited.limits, own.limits), (Limits::Parent, Limits::Tenant));
        assert_ne!(inherited.revision(), own.revision());
    }

    #[test]
    fn revision_with_another_content_than_its_name_says_is_refused() {
        let name = ProfileName::namespaced("shop", "child");
        let kept =
            FlattenedProfile::new(&name, &child("debug"), &library()).unwrap().to_revision(&name, None, None).unwrap();
        let forged = [
            RevisionSpec { text: kept.text.replace("debug", "trace"), ..kept.clone() },
            RevisionSpec { ancestors: vec!["privileged".to_owned()], ..kept.clone() },
            RevisionSpec { set_by_namespace: Vec::new(), ..kept.clone() },
            RevisionSpec { bounds: RevisionBounds::Tenant, ..kept.clone() },
            RevisionSpec { revision: "0123456789".to_owned(), ..kept.clone() },
        ];
        for forged in forged {
            let [diagnostic] = compile_revision(&name, &forged).unwrap_err().try_into().unwrap();
            assert!(diagnostic.message.contains("the hash of its content is"), "{diagnostic}");
        }
        // A newer build may serialize the fields in another order. The revision stays the same.
        let Json::Object(fields) = serde_json::from_str(&kept.text).unwrap() else { panic!() };
        let text = Json::Object(fields.into_iter().rev().collect()).to_string();
        assert_ne!(text, kept.text);
        assert!(compile_revision(&name, &RevisionSpec { text, ..kept }).is_ok());
    }

    #[test]
    fn revision_with_bounds_of_tenants_has_limits_of_tenants() {
        let name = ProfileName::namespaced("shop", "own");
        let lookups = json!([{"name": "others", "version": "v1", "resource": "configmaps", "objectName": "settings", "namespace": "other"}]);
        let template = json!({"metadata": {"labels": {"a": "${lookups.?others.?data.?a.orValue('')}"}}});
        for limits in [Limits::Tenant, Limits::Platform] {
            let spec = spec(json!({"lookups": lookups, "template": template}));
            let forged = FlattenedProfile { spec, limits, ancestors: Vec::new(), set_by_namespace: Vec::new() };
            let forged = forged.to_revision(&name, None, None).unwrap();
            let diagnostics = compile_revision(&name, &forged).unwrap_err();
            let expected =
                if limits == Limits::Tenant { "lookups are for cluster profiles" } else { "cannot have Platform" };
            assert!(diagnostics.iter().any(|diagnostic| diagnostic.message.contains(expected)), "{diagnostics:?}");
        }
    }

    #[test]
    fn numbers_have_the_same_hash_when_read_again() {
        let name = ProfileName::cluster("p");
        for number in 1..2_000_u32 {
            let number = f64::from(number).sqrt() * 1e-7;
            let spec = spec(json!({"template": {"spec": {"x": number}}}));
            let flattened = FlattenedProfile {
                spec,
                limits: Limits::Platform,
                ancestors: Vec::new(),
                set_by_namespace: Vec::new(),
            };
            let kept = flattened.to_revision(&name, None, None).unwrap();
            assert!(FlattenedProfile::from_revision(&name, &kept).is_ok(), "{number}");
        }
    }

    #[test]
    fn a_revision_is_of_its_profile_and_bounded_as_that_may_be() {
        let name = ProfileName::namespaced("shop", "child");
        let kept =
            FlattenedProfile::new(&name, &child("debug"), &library()).unwrap().to_revision(&name, None, None).unwrap();
        let other = ProfileName::namespaced("shop", "other");
        assert!(compile_revision(&other, &kept).unwrap_err()[0].message.contains("child"));
        let platforms = RevisionSpec { bounds: RevisionBounds::Platform, ..kept.clone() };
        assert!(compile_revision(&name, &platforms).is_err(), "a namespace's is never the platform's");
        assert!(compile_revision(&ProfileName::cluster("child"), &kept).is_err());
        let newer = RevisionSpec { text: r#"{"newField": 1}"#.to_owned(), ..kept };
        assert!(compile_revision(&name, &newer).unwrap_err()[0].to_string().contains("newer version"));
    }
}
