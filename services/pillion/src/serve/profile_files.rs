//! Profiles from files, which are read again when they change. If a file is invalid, its last valid profiles remain
//! active, as in a cluster.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use pillion_engine::profile::{CompiledProfile, ProfileName};
use pillion_engine::snapshot::ProfileSet;

use crate::load::{self, Problem};

/// The paths of profile files, and the active profiles.
#[derive(Debug)]
pub(crate) struct ProfileFiles {
    paths: Vec<PathBuf>,
    fingerprint: Option<u64>,
    active: BTreeMap<ProfileName, Arc<CompiledProfile>>,
}

/// The result of reading the files.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// New or changed profiles.
    pub(crate) changed: Vec<ProfileName>,
    /// Removed profiles.
    pub(crate) gone: Vec<ProfileName>,
    /// Profiles that are in no file now, but remain active because there are problems.
    pub(crate) kept: Vec<ProfileName>,
    /// The problems in the files.
    pub(crate) problems: Vec<Problem>,
}

impl ProfileFiles {
    /// Creates an empty set, without reading any file.
    pub(crate) const fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths, fingerprint: None, active: BTreeMap::new() }
    }

    /// Returns the paths of the profile files.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Returns the active profiles.
    pub(crate) fn active(&self) -> ProfileSet {
        ProfileSet::new(self.active.values().cloned())
    }

    /// Reads the files if they changed since the last time; otherwise returns `None`.
    pub(crate) fn load_if_changed(&mut self) -> Option<Loaded> {
        // Computed before reading, so that a change during the read is noticed the next time.
        let fingerprint = self.fingerprint();
        if self.fingerprint.replace(fingerprint) == Some(fingerprint) {
            return None;
        }
        let load::Loaded { profiles, problems, .. } = load::profiles(&self.paths);
        let fresh: BTreeMap<_, _> = profiles.into_iter().map(|profile| (profile.name().clone(), profile)).collect();
        let mut loaded = Loaded { problems, ..Loaded::default() };
        for (name, profile) in &fresh {
            let before = self.active.get(name).map(|before| before.revision());
            if before != Some(profile.revision()) {
                loaded.changed.push(name.clone());
            }
        }
        // While a file is invalid, its profiles are unknown, so no profile is removed.
        let missing: Vec<_> = self.active.keys().filter(|name| !fresh.contains_key(*name)).cloned().collect();
        if loaded.problems.is_empty() {
            self.active = fresh;
            loaded.gone = missing;
        } else {
            self.active.extend(fresh);
            loaded.kept = missing;
        }
        Some(loaded)
    }

    /// Hashes the files' names and contents. Modification times are not used, because two changes within the resolution
    /// of these times would look like one.
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for path in &self.paths {
            for file in load::files(path).unwrap_or_default() {
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
    fn broken_change_keeps_last_valid_profiles() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "one", "one:1");
        write(dir.path(), "two", "two:1");
        let mut files = ProfileFiles::new(vec![dir.path().to_owned()]);
        assert_eq!(names(&files.load_if_changed().unwrap().changed), ["one", "two"]);
        assert!(files.load_if_changed().is_none(), "the files are unchanged");

        write(dir.path(), "one", "one:2");
        assert_eq!(names(&files.load_if_changed().unwrap().changed), ["one"]);

        std::fs::write(dir.path().join("one.yaml"), "kind: [").unwrap();
        let broken = files.load_if_changed().unwrap();
        assert_eq!((names(&broken.kept), broken.problems.len()), (vec!["one".to_owned()], 1));
        assert_eq!(files.active().len(), 2);

        std::fs::remove_file(dir.path().join("one.yaml")).unwrap();
        assert_eq!(names(&files.load_if_changed().unwrap().gone), ["one"]);
        assert_eq!(files.active().len(), 1);
    }
}
