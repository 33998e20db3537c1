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
    own: Vec<Text>,
    others: Vec<Text>,
}

/// An uncompiled profile.
#[derive(Clone, Debug)]
struct Text {
    name: ProfileName,
    spec: ProfileSpec,
    /// The result of compiling it unchanged. A case that sets values compiles its own copy.
    compiled: OnceLock<Result<Arc<CompiledProfile>, String>>,
}

/// All profiles that can be extended, with the values that one case sets.
struct Library<'t>(Vec<&'t Text>);

impl Parents for Library<'_> {
    fn parent(&self, name: &str) -> Parent<'_> {
        let found = self.0.iter().find(|text| text.name.namespace.is_none() && *text.name.name == *name);
        found.map_or(Parent::Unknown, |text| Parent::Accepted(Cow::Borrowed(&text.spec)))
    }

    fn names(&self) -> Vec<&str> {
        self.0.iter().filter(|text| text.name.namespace.is_none()).map(|text| &*text.name.name).collect()
    }
}

impl Profiles {
    /// Creates the profiles of a folder. A case that names no profiles has all of them.
    #[must_use]
    pub fn new(profiles: impl IntoIterator<Item = (ProfileName, ProfileSpec)>) -> Self {
        Self { own: profiles.into_iter().map(Text::new).collect(), others: Vec::new() }
    }

    /// Adds profiles that a case has only if they are extended or named.
    #[must_use]
    pub fn with_others(mut self, profiles: impl IntoIterator<Item = (ProfileName, ProfileSpec)>) -> Self {
        self.others.extend(profiles.into_iter().map(Text::new));
        self
    }

    /// Adds a profile to the profiles of the folder.
    #[must_use]
    pub fn with(mut self, name: ProfileName, spec: ProfileSpec) -> Self {
        self.own.push(Text::new((name, spec)));
        self
    }

    /// Returns the compiled profiles of a case, with the values that it sets.
    ///
    /// # Errors
    /// Fails if the case names an unknown profile or parameter, or if one of its profiles does not compile.
    pub(crate) fn of_case(&self, case: &Case) -> Result<ProfileSet, Unusable> {
        let mut changed: Vec<Text> = Vec::new();
        for (field, name) in case.parameters.keys().map(|name| ("parameters", name)) {
            changed.push(self.find(field, name)?.clone_written());
        }
        for name in case.values.keys() {
            if !changed.iter().any(|text| text.is_called(name)) {
                changed.push(self.find("values", name)?.clone_written());
            }
        }
        for text in &mut changed {
            text.set(case)?;
        }
        let own: Vec<&Text> = match &case.profiles {
            None => self.own.iter().collect(),
            Some(names) => names.iter().map(|name| self.find("profiles", name)).collect::<Result<_, _>>()?,
        };
        let now = |text: &Text| changed.iter().position(|other| other.name == text.name);
        let current = |text| now(text).and_then(|place| changed.get(place)).unwrap_or(text);
        let library = Library(self.all().map(current).collect());
        let compiled = own.into_iter().map(current).map(|text| {
            // A profile that extends others may inherit a changed value.
            let is_as_written = changed.is_empty() || (text.spec.extends.is_none() && now(text).is_none());
            let compiled = if is_as_written {
                text.compiled.get_or_init(|| text.compile(&library)).clone()
            } else {
                text.compile(&library)
            };
            compiled.map_err(|faults| Unusable::Profile { profile: text.name.to_string(), faults })
        });
        compiled.collect::<Result<Vec<_>, _>>().map(ProfileSet::new)
    }

    fn all(&self) -> impl Iterator<Item = &Text> {
        self.own.iter().chain(&self.others)
    }

    fn find(&self, field: &'static str, name: &str) -> Result<&Text, Unusable> {
        self.all().find(|text| text.is_called(name)).ok_or_else(|| {
            let names: Vec<_> = self.own.iter().map(|text| text.name.to_string()).collect();
            let meant = (!names.is_empty()).then(|| names.join(", "));
            Unusable::UnknownProfile { field, name: name.to_owned(), meant }
        })
    }
}

impl Text {
    fn new((name, spec): (ProfileName, ProfileSpec)) -> Self {
        Self { name, spec, compiled: OnceLock::new() }
    }

    fn clone_written(&self) -> Self {
        Self::new((self.name.clone(), self.spec.clone()))
    }

    fn is_called(&self, name: &str) -> bool {
        match name.split_once('/') {
            None => *self.name.name == *name,
            Some((namespace, name)) => self.name.namespace.as_deref() == Some(namespace) && *self.name.name == *name,
        }
    }

    fn compile(&self, library: &Library<'_>) -> Result<Arc<CompiledProfile>, String> {
        let faults = |faults: Vec<Diagnostic>| faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        ProfileSource::Author(&self.spec, library).compile(&self.name).map(Arc::new).map_err(faults)
    }

    /// Sets the values that a case has for this profile.
    fn set(&mut self, case: &Case) -> Result<(), Unusable> {
        let parameters = case.parameters.iter().find(|(name, _)| self.is_called(name));
        for (parameter, value) in parameters.into_iter().flat_map(|(_, parameters)| parameters) {
            self.set_parameter(parameter, value)?;
        }
        if let Some((_, values)) = case.values.iter().find(|(name, _)| self.is_called(name)) {
            let request = self.spec.request.get_or_insert_default();
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
        let own = serde_json::json!({"name": name, "default": value});
        match serde_json::from_value(own) {
            // The parent may have the parameter. If not, the compiler reports it.
            Ok(parameter) if self.spec.extends.is_some() => {
                parameters.push(parameter);
                Ok(())
            }
            _ => Err(Unusable::UnknownParameter {
                profile: self.name.to_string(),
                parameter: name.to_owned(),
                there: parameters.iter().map(|parameter| parameter.name.as_str()).collect::<Vec<_>>().join(", "),
            }),
        }
    }
}
