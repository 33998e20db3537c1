//! The profiles of test cases, with the values that a case sets in them.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use pillion_api::profile::ProfileSpec;
use serde_json::Value as Json;

use super::{Case, Unusable};
use pillion_engine::profile::{CompiledProfile, Diagnostic, Parent, Parents, ProfileName, ProfileSource};
use pillion_engine::snapshot::ProfileSet;

/// The profiles of a folder, and the profiles of other folders that they may extend.
#[derive(Debug, Default)]
pub struct Profiles {
    folder: Vec<SourceProfile>,
    extendable: Vec<SourceProfile>,
}

/// A profile as its author wrote it.
#[derive(Clone, Debug)]
struct SourceProfile {
    name: ProfileName,
    spec: ProfileSpec,
    /// The result of compiling the unchanged profile. A case that sets values compiles its own copy.
    compiled: OnceLock<Result<Arc<CompiledProfile>, String>>,
}

/// All profiles that can be extended, with the values that one case sets.
struct Library<'t>(Vec<&'t SourceProfile>);

impl Parents for Library<'_> {
    fn parent(&self, name: &str) -> Parent<'_> {
        let found = self.0.iter().find(|profile| profile.name.namespace.is_none() && *profile.name.name == *name);
        found.map_or(Parent::Unknown, |profile| Parent::Accepted(Cow::Borrowed(&profile.spec)))
    }

    fn names(&self) -> Vec<&str> {
        self.0.iter().filter(|profile| profile.name.namespace.is_none()).map(|profile| &*profile.name.name).collect()
    }
}

impl Profiles {
    /// Creates the profiles of a folder. A case that names no profiles uses all of them.
    #[must_use]
    pub fn new(profiles: impl IntoIterator<Item = (ProfileName, ProfileSpec)>) -> Self {
        Self { folder: profiles.into_iter().map(SourceProfile::new).collect(), extendable: Vec::new() }
    }

    /// Adds profiles that a case uses only if it names them, or if one of its profiles extends them.
    #[must_use]
    pub fn with_others(mut self, profiles: impl IntoIterator<Item = (ProfileName, ProfileSpec)>) -> Self {
        self.extendable.extend(profiles.into_iter().map(SourceProfile::new));
        self
    }

    /// Adds a profile to the profiles of the folder.
    #[must_use]
    pub fn with(mut self, name: ProfileName, spec: ProfileSpec) -> Self {
        self.folder.push(SourceProfile::new((name, spec)));
        self
    }

    /// Returns the compiled profiles of a case, with the values that it sets.
    ///
    /// # Errors
    /// Fails if the case names an unknown profile or parameter, or if one of its profiles does not compile.
    pub(crate) fn of_case(&self, case: &Case) -> Result<ProfileSet, Unusable> {
        let mut changed: Vec<SourceProfile> = Vec::new();
        for (field, name) in case.parameters.keys().map(|name| ("parameters", name)) {
            changed.push(self.find(field, name)?.uncompiled_copy());
        }
        for name in case.values.keys() {
            if !changed.iter().any(|profile| profile.has_name(name)) {
                changed.push(self.find("values", name)?.uncompiled_copy());
            }
        }
        for profile in &mut changed {
            profile.set(case)?;
        }
        let selected: Vec<&SourceProfile> = match &case.profiles {
            None => self.folder.iter().collect(),
            Some(names) => names.iter().map(|name| self.find("profiles", name)).collect::<Result<_, _>>()?,
        };
        let changed_index = |profile: &SourceProfile| changed.iter().position(|other| other.name == profile.name);
        let current = |profile| changed_index(profile).and_then(|index| changed.get(index)).unwrap_or(profile);
        let library = Library(self.all().map(current).collect());
        let compiled = selected.into_iter().map(current).map(|profile| {
            // A profile that extends others may inherit a changed value.
            let is_as_written =
                changed.is_empty() || (profile.spec.extends.is_none() && changed_index(profile).is_none());
            let compiled = if is_as_written {
                profile.compiled.get_or_init(|| profile.compile(&library)).clone()
            } else {
                profile.compile(&library)
            };
            compiled.map_err(|problems| Unusable::Profile { profile: profile.name.to_string(), problems })
        });
        compiled.collect::<Result<Vec<_>, _>>().map(ProfileSet::new)
    }

    fn all(&self) -> impl Iterator<Item = &SourceProfile> {
        self.folder.iter().chain(&self.extendable)
    }

    fn find(&self, field: &'static str, name: &str) -> Result<&SourceProfile, Unusable> {
        self.all().find(|profile| profile.has_name(name)).ok_or_else(|| {
            let names: Vec<_> = self.folder.iter().map(|profile| profile.name.to_string()).collect();
            let existing = (!names.is_empty()).then(|| names.join(", "));
            Unusable::UnknownProfile { field, name: name.to_owned(), existing }
        })
    }
}

impl SourceProfile {
    fn new((name, spec): (ProfileName, ProfileSpec)) -> Self {
        Self { name, spec, compiled: OnceLock::new() }
    }

    fn uncompiled_copy(&self) -> Self {
        Self::new((self.name.clone(), self.spec.clone()))
    }

    fn has_name(&self, name: &str) -> bool {
        match name.split_once('/') {
            None => *self.name.name == *name,
            Some((namespace, name)) => self.name.namespace.as_deref() == Some(namespace) && *self.name.name == *name,
        }
    }

    fn compile(&self, library: &Library<'_>) -> Result<Arc<CompiledProfile>, String> {
        let problems =
            |problems: Vec<Diagnostic>| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        ProfileSource::Author(&self.spec, library).compile(&self.name).map(Arc::new).map_err(problems)
    }

    /// Sets the values that a case has for this profile.
    fn set(&mut self, case: &Case) -> Result<(), Unusable> {
        let parameters = case.parameters.iter().find(|(name, _)| self.has_name(name));
        for (parameter, value) in parameters.into_iter().flat_map(|(_, parameters)| parameters) {
            self.set_parameter(parameter, value)?;
        }
        if let Some((_, values)) = case.values.iter().find(|(name, _)| self.has_name(name)) {
            let request = self.spec.requested_by.get_or_insert_default();
            request.values.clone_from(values);
        }
        Ok(())
    }

    fn set_parameter(&mut self, name: &str, value: &Json) -> Result<(), Unusable> {
        let parameters = &mut self.spec.parameters;
        if let Some(parameter) = parameters.iter_mut().find(|parameter| parameter.name == name) {
            parameter.default = Some(value.clone());
            return Ok(());
        }
        let parameter = serde_json::json!({"name": name, "default": value});
        match serde_json::from_value(parameter) {
            // The parent may have the parameter. If not, the compiler reports it.
            Ok(parameter) if self.spec.extends.is_some() => {
                parameters.push(parameter);
                Ok(())
            }
            _ => Err(Unusable::UnknownParameter {
                profile: self.name.to_string(),
                parameter: name.to_owned(),
                existing: parameters.iter().map(|parameter| parameter.name.as_str()).collect::<Vec<_>>().join(", "),
            }),
        }
    }
}
