//! Profiles from files that change. A broken file leaves the active profiles in place, as in a cluster.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use pillion_engine::profile::{CompiledProfile, ProfileName, ProfileSet};

use crate::load::{self, Problem};

/// Profiles in files, and which of them are at work.
#[derive(Debug)]
pub(crate) struct ProfileFiles {
    paths: Vec<PathBuf>,
    fingerprint: Option<u64>,
    at_work: BTreeMap<ProfileName, Arc<CompiledProfile>>,
}

/// What reading the files brought.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// Profiles whose text is new.
    pub(crate) changed: Vec<ProfileName>,
    /// Profiles that are gone.
    pub(crate) gone: Vec<ProfileName>,
    /// Profiles that stay at work though no file has them now, as there are problems.
    pub(crate) kept: Vec<ProfileName>,
    /// What is wrong.
    pub(crate) problems: Vec<Problem>,
}

impl ProfileFiles {
    /// Nothing is read yet.
    pub(crate) const fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths, fingerprint: None, at_work: BTreeMap::new() }
    }

    /// Where they are.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The profiles at work.
    pub(crate) fn at_work(&self) -> ProfileSet {
        ProfileSet::new(self.at_work.values().cloned())
    }

    /// Reads the files if they are others than the last time.
    pub(crate) fn load_if_changed(&mut self) -> Option<Loaded> {
        // Taken before they are read: a change in between is seen the next time.
        let fingerprint = self.fingerprint();
        if self.fingerprint.replace(fingerprint) == Some(fingerprint) {
            return None;
        }
        let load::Loaded { profiles, problems, .. } = load::profiles(&self.paths);
        let fresh: BTreeMap<_, _> = profiles.into_iter().map(|profile| (profile.name().clone(), profile)).collect();
        let mut loaded = Loaded { problems, ..Loaded::default() };
        for (name, profile) in &fresh {
            let before = self.at_work.get(name).map(|before| before.revision());
            if before != Some(profile.revision()) {
                loaded.changed.push(name.clone());
            }
        }
        // A broken file does not tell which profiles it would have, so while there is one nothing goes away.
        let missing: Vec<_> = self.at_work.keys().filter(|name| !fresh.contains_key(*name)).cloned().collect();
        if loaded.problems.is_empty() {
            self.at_work = fresh;
            loaded.gone = missing;
        } else {
            self.at_work.extend(fresh);
            loaded.kept = missing;
        }
        Some(loaded)
    }

    /// Of the files' names and contents. Modification times would miss a second change within their grain.
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for path in &self.paths {
            for file in load::files::of(path).unwrap_or_default() {
                std::fs::read(&file).ok().hash(&mut hasher);
                file.hash(&mut hasher);
            }
        }
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn write(dir: &Path, name: &str, image: &str) {
        let text = format!(
            "apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {{name: {name}}}\n\
             spec: {{template: {{spec: {{containers: [{{name: sidecar, image: \"{image}\"}}]}}}}}}\n"
        );
        std::fs::write(dir.join(format!("{name}.yaml")), text).unwrap();
    }

    fn names(names: &[ProfileName]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn changes_are_seen_and_what_is_broken_leaves_the_last_good_one() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "one", "one:1");
        write(dir.path(), "two", "two:1");
        let mut files = ProfileFiles::new(vec![dir.path().to_owned()]);
        assert_eq!(names(&files.load_if_changed().unwrap().changed), ["one", "two"]);
        assert!(files.load_if_changed().is_none(), "nothing has changed");

        write(dir.path(), "one", "one:2");
        assert_eq!(names(&files.load_if_changed().unwrap().changed), ["one"]);

        std::fs::write(dir.path().join("one.yaml"), "kind: [").unwrap();
        let broken = files.load_if_changed().unwrap();
        assert_eq!((names(&broken.kept), broken.problems.len()), (vec!["one".to_owned()], 1));
        assert_eq!(files.at_work().len(), 2);

        std::fs::remove_file(dir.path().join("one.yaml")).unwrap();
        assert_eq!(names(&files.load_if_changed().unwrap().gone), ["one"]);
        assert_eq!(files.at_work().len(), 1);
    }
}
