//! Parameter defaults that are set separately from the source of a profile. They replace the defaults in the profile,
//! as if an installer had edited them.

use std::sync::Arc;

use pillion_api::ProfileSpec;
use pillion_engine::profile::ProfileName;
use serde_json::{Value, json};

use super::problem::{Problem, Source};
use super::typed;
use super::yaml::{Content, Node};

/// Defaults by profile and parameter. A default that matches no parameter is reported as a problem.
#[derive(Debug, Default)]
pub(crate) struct Defaults {
    profiles: Vec<OfProfile>,
}

#[derive(Debug)]
struct OfProfile {
    name: String,
    /// The problem to report unless a profile matches.
    unknown: Option<Problem>,
    parameters: Vec<OfParameter>,
}

#[derive(Debug)]
struct OfParameter {
    name: String,
    value: Value,
    /// The problem to report unless a parameter matches.
    unknown: Option<Problem>,
}

impl Defaults {
    /// Parses a document such as `{nginx: {image: "nginx:1.29"}}`. An empty document sets nothing.
    ///
    /// # Errors
    /// The document has a different structure.
    pub(crate) fn read(source: &Arc<Source>, documents: &[Node]) -> Result<Self, Problem> {
        let mut profiles = Vec::new();
        let expect_mapping = |node: &Node, what: &str| match &node.content {
            Content::Mapping(_) => Ok(()),
            _ => {
                Err(Problem::at(source, node.span.clone(), format!("expected {what}, found {}", typed::type_of(node)))
                    .with_help("write PROFILE: {PARAMETER: value}".to_owned()))
            }
        };
        for document in documents {
            expect_mapping(document, "a mapping of profile names")?;
            for profile in document.entries() {
                expect_mapping(&profile.value, "a mapping of the profile's parameters")?;
                let unknown = format!("there is no profile {}", profile.key);
                let parameters = profile.value.entries().iter().map(|entry| {
                    let unknown = format!("the profile {} has no parameter {}", profile.key, entry.key);
                    OfParameter {
                        name: entry.key.clone(),
                        value: entry.value.to_value(),
                        unknown: Some(Problem::at(source, entry.key_span.clone(), unknown)),
                    }
                });
                profiles.push(OfProfile {
                    name: profile.key.clone(),
                    unknown: Some(Problem::at(source, profile.key_span.clone(), unknown)),
                    parameters: parameters.collect(),
                });
            }
        }
        Ok(Self { profiles })
    }

    /// Sets the defaults for this profile in its spec. Returns whether there were any.
    pub(super) fn set(&mut self, name: &ProfileName, spec: &mut ProfileSpec) -> bool {
        let mut any = false;
        let is_it = |set: &&mut OfProfile| set.name == *name.name || set.name == name.to_string();
        for profile in self.profiles.iter_mut().filter(is_it) {
            profile.unknown = None;
            for set in &mut profile.parameters {
                any = true;
                if let Some(parameter) = spec.parameters.iter_mut().find(|parameter| parameter.name == set.name) {
                    parameter.default = Some(set.value.clone());
                    set.unknown = None;
                } else if spec.extends.is_some()
                    && let Ok(parameter) = serde_json::from_value(json!({"name": set.name, "default": set.value}))
                {
                    // The parent may have this parameter. If it does not, the compiler reports the problem.
                    spec.parameters.push(parameter);
                    set.unknown = None;
                }
            }
        }
        any
    }

    /// Returns a problem for each profile and each parameter that matched nothing. The parameters of an unknown profile
    /// get no problems of their own.
    pub(super) fn unused(self) -> impl Iterator<Item = Problem> {
        self.profiles.into_iter().flat_map(|profile| {
            let parameters = if profile.unknown.is_some() { Vec::new() } else { profile.parameters };
            profile.unknown.into_iter().chain(parameters.into_iter().filter_map(|set| set.unknown))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::load::{self, yaml};

    const PROFILE: &str = "\
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: shipper}
spec:
  parameters: [{name: image, type: string, default: \"shipper:1\"}, {name: port, type: integer, default: 80}]
  template: {spec: {containers: [{name: shipper, image: \"${params.image}\"}]}}
";

    fn problems(defaults: &str) -> Vec<String> {
        let source = Arc::new(Source::new("parameters.yaml", defaults.to_owned()));
        let documents = yaml::documents(&source.text).unwrap();
        let defaults = match Defaults::read(&source, &documents) {
            Ok(defaults) => defaults,
            Err(problem) => return vec![problem.to_string()],
        };
        let profile = Arc::new(Source::new("profile.yaml", PROFILE.to_owned()));
        let loaded = load::profiles_of(&profile, "default", &BTreeMap::new(), defaults);
        loaded.problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn default_replaces_written_default() {
        for defaults in ["", "shipper: {image: \"shipper:2\", port: 81}"] {
            assert_eq!(problems(defaults), Vec::<String>::new(), "{defaults}");
        }
        let wrong = problems("shipper: {port: many}");
        assert!(wrong.len() == 1 && wrong[0].starts_with("profile.yaml:5:"), "{wrong:?}");
    }

    #[test]
    fn unknown_default_is_reported_with_position() {
        for (defaults, expected) in [
            ("shiper: {image: a}", "parameters.yaml:1:1: there is no profile shiper"),
            ("shipper: {imag: a}", "parameters.yaml:1:11: the profile shipper has no parameter imag"),
            (
                "shipper: a",
                "parameters.yaml:1:10: expected a mapping of the profile's parameters, found a string (write PROFILE: {PARAMETER: value})",
            ),
        ] {
            assert_eq!(problems(defaults), [expected]);
        }
    }
}
