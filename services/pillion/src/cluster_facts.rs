//! What the platform says of its cluster, for the name `cluster` of expressions: one map from a file, read at the start.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use pillion_engine::json::OwnedTape;

use crate::load::yaml;

/// Where the facts are.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ClusterFactsArgs {
    /// What expressions read as `cluster`: a map in YAML or JSON, such as {region: eu-west-1, nativeSidecars: true}.
    /// Without it the map is empty.
    #[arg(long, value_name = "FILE", env = "PILLION_CLUSTER_FACTS")]
    cluster_facts: Option<PathBuf>,
}

impl ClusterFactsArgs {
    /// Reads the file, if there is one.
    ///
    /// # Errors
    /// It cannot be read, or is not one map.
    pub(crate) fn load(&self) -> anyhow::Result<Option<Arc<OwnedTape>>> {
        let Some(file) = &self.cluster_facts else { return Ok(None) };
        let facts = read(file).with_context(|| format!("--cluster-facts {}", file.display()))?;
        Ok(Some(Arc::new(facts)))
    }
}

fn read(file: &Path) -> anyhow::Result<OwnedTape> {
    let text = fs::read_to_string(file)?;
    let mut documents = yaml::documents(&text).map_err(|fault| anyhow::anyhow!("not YAML: {}", fault.message))?;
    let (Some(document), true) = (documents.pop(), documents.is_empty()) else {
        bail!("expected one map, such as {{region: eu-west-1}}");
    };
    let value = document.to_value();
    if !value.is_object() {
        bail!("expected a map, such as {{region: eu-west-1}}");
    }
    Ok(OwnedTape::parse(value.to_string())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("facts.yaml");
        fs::write(&file, text).unwrap();
        let loaded = ClusterFactsArgs { cluster_facts: Some(file) }.load();
        loaded.map(|facts| facts.unwrap().root().raw().to_owned()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn facts_are_one_map() {
        assert_eq!(
            load("region: eu-west-1\nnativeSidecars: true\n").unwrap(),
            r#"{"region":"eu-west-1","nativeSidecars":true}"#
        );
        assert!(ClusterFactsArgs::default().load().unwrap().is_none());
        for wrong in ["", "[a]", "text", "a: 1\n---\nb: 2\n", "a: [", "a: 1\na: 2\n"] {
            let error = load(wrong).unwrap_err();
            assert!(error.starts_with("--cluster-facts ") && error.contains("facts.yaml"), "{wrong:?}: {error}");
        }
        let missing = ClusterFactsArgs { cluster_facts: Some("/does/not/exist".into()) };
        assert!(missing.load().is_err());
    }
}
