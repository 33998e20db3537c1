//! `--guardrails`: what the platform allows tenants' profiles to do, from a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::anyhow;
use clap::Args;
use pillion_engine::limits::Guardrails;

use crate::load::{Problem, Source, typed, yaml};

/// Where the guardrails are.
#[derive(Clone, Debug, Args)]
pub(crate) struct GuardrailsArg {
    /// What namespaced profiles may do to a pod, as YAML: registries, volumeKinds, minimumPodSecurity, reservedDomains,
    /// reservedKeys, maxContainers, maxVolumes, maxEnv, maxMounts, maxKeys, maxBytes. What is left out has its default;
    /// images may then come from everywhere. Read once, at the start.
    #[arg(long, value_name = "FILE", env = "PILLION_GUARDRAILS")]
    guardrails: Option<PathBuf>,
}

impl GuardrailsArg {
    /// The guardrails of the file, or the defaults if there is none.
    ///
    /// # Errors
    /// The file cannot be read, or something in it is wrong.
    pub(crate) fn load(&self) -> Result<Guardrails, Problem> {
        self.guardrails.as_deref().map_or_else(|| Ok(Guardrails::default()), from_file)
    }

    /// [`GuardrailsArg::load`], with what is wrong told in a line.
    pub(crate) fn required(&self) -> anyhow::Result<Guardrails> {
        self.load().map_err(|problem| anyhow!("--guardrails cannot be used: {problem}"))
    }
}

fn from_file(file: &Path) -> Result<Guardrails, Problem> {
    let name = file.display().to_string();
    match fs::read_to_string(file) {
        Ok(text) => from_source(&Arc::new(Source::new(name, text))),
        Err(error) => Err(Problem::whole(name, format!("cannot be read: {error}"))),
    }
}

fn from_source(source: &Arc<Source>) -> Result<Guardrails, Problem> {
    let documents = yaml::documents(&source.text).map_err(|fault| Problem::syntax(source, fault))?;
    match documents.as_slice() {
        [] => Ok(Guardrails::default()),
        [document] if matches!(document.content, yaml::Content::Mapping(_)) => typed::read(source, document, ""),
        [document] => {
            let expected = "expected a map, as in {registries: [ghcr.io/team], maxContainers: 2}";
            Err(Problem::at(source, document.span.clone(), expected))
        }
        [_, second, ..] => {
            Err(Problem::at(source, second.span.clone(), "there is a second document; expected the guardrails in one"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Guardrails, String> {
        let source = Arc::new(Source::new("g.yaml".to_owned(), text.to_owned()));
        from_source(&source).map_err(|problem| problem.to_string())
    }

    #[test]
    fn a_file_says_what_differs_from_the_defaults() {
        let text =
            "registries: [ghcr.io/team]\nvolumeKinds: [configMap]\nminimumPodSecurity: restricted\nmaxContainers: 2\n";
        let read = read(text).unwrap();
        let registries: Vec<_> = read.registries.iter().flatten().map(ToString::to_string).collect();
        assert_eq!((registries, read.max_containers), (vec!["ghcr.io/team".to_owned()], 2));
        assert_eq!(read.max_bytes, Guardrails::default().max_bytes);
        for text in ["", "# nothing\n", "{}", "---\n"] {
            assert_eq!(self::read(text).unwrap(), Guardrails::default(), "{text:?}");
        }
    }

    #[test]
    fn the_page_shows_the_defaults() {
        let page = include_str!("../../../docs/guardrails.md");
        let block = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        assert_eq!(read(block).unwrap(), Guardrails::default());
        // Each of them is there: serde names all when it is given one that is none of them.
        let told = serde_json::from_str::<Guardrails>(r#"{"none": 1}"#).unwrap_err().to_string();
        let fields: Vec<_> = told.split('`').skip(3).step_by(2).collect();
        assert_eq!(fields.len(), 11, "{told}");
        for field in fields {
            assert!(block.lines().any(|line| line.starts_with(&format!("{field}:"))), "{field}");
        }
    }

    #[test]
    fn what_is_wrong_has_its_place_and_what_was_expected() {
        for (text, expected) in [
            ("maxContainers: 2\nregistrys: []\n", &["g.yaml:2:1", "registrys", "registries"][..]),
            ("registries: [ghcr.io, nginx]\n", &["g.yaml:1:", "nginx", "expected HOST or HOST/PATH"]),
            ("volumeKinds:\n- hostPath\n", &["g.yaml:2:3", "cannot be allowed to tenants"]),
            ("minimumPodSecurity: strict\n", &["g.yaml:1:21", "strict", "restricted"]),
            ("maxEnv: many\n", &["g.yaml:1:9", "maxEnv"]),
            ("a: 1\n---\nb: 2\n", &["g.yaml:3:1", "second document"]),
            ("- a\n", &["g.yaml:1:1", "expected a map"]),
            ("{", &["g.yaml"]),
        ] {
            let told = read(text).unwrap_err();
            assert!(expected.iter().all(|part| told.contains(part)), "{text}: {told}");
        }
    }
}
