//! Finds the folders of profiles below the given paths.
//!
//! A folder of profiles contains a `profile.yaml`, and its test cases in `tests/`. Its sibling folders are read too,
//! since profiles may extend profiles in sibling folders.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::load::Problem;

/// The file name of a folder's profiles.
const PROFILE: &str = "profile.yaml";

/// The subfolder of test cases.
const CASES: &str = "tests";

/// The maximum depth of the search.
const MAX_DEPTH: usize = 8;

/// Folders with the same parent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    /// The folders to test, each with its files of test cases.
    pub(super) tested: BTreeMap<PathBuf, Files>,
    /// All folders, including siblings that are not tested.
    pub(super) all: BTreeSet<PathBuf>,
}

/// The files of test cases to run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Files {
    /// All files.
    All,
    /// Only these files.
    Only(BTreeSet<PathBuf>),
}

impl Files {
    /// Returns the selected files of a folder, sorted.
    pub(super) fn of(&self, folder: &Path) -> Vec<PathBuf> {
        match self {
            Self::Only(files) => files.iter().cloned().collect(),
            Self::All => entries(&folder.join(CASES)).into_iter().filter(|path| is_yaml(path)).collect(),
        }
    }
}

/// Returns the folders of profiles at these paths, grouped by their parent.
///
/// # Errors
/// The problems of paths without profiles.
pub(super) fn of(paths: &[PathBuf]) -> Result<Vec<Group>, Vec<Problem>> {
    let mut groups: BTreeMap<PathBuf, Group> = BTreeMap::new();
    let mut problems = Vec::new();
    for path in paths {
        let mut found = Vec::new();
        if path.is_dir() {
            collect(path, 0, &mut found);
        } else if path.is_file() {
            found.extend(folder_of_cases(path).map(|folder| (folder, Files::Only([path.clone()].into()))));
        } else {
            problems.push(Problem::whole(path.display().to_string(), "there is no such file or folder"));
            continue;
        }
        if found.is_empty() {
            let help = format!("a folder of profiles has a {PROFILE}, and its cases in {CASES}/*.yaml");
            let problem = Problem::whole(path.display().to_string(), "contains no folder of profiles");
            problems.push(problem.with_help(help));
        }
        for (folder, files) in found {
            let group = groups.entry(beside(&folder)).or_default();
            match (group.tested.get_mut(&folder), files) {
                (Some(Files::Only(files)), Files::Only(more)) => files.extend(more),
                (Some(all), Files::All) => *all = Files::All,
                (Some(Files::All), Files::Only(_)) => {}
                (None, files) => drop(group.tested.insert(folder, files)),
            }
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    for (parent, group) in &mut groups {
        group.all = group.tested.keys().cloned().collect();
        // Several paths may name the same folder; the path that the user specified is kept.
        let known: BTreeSet<_> = group.all.iter().filter_map(|folder| folder.canonicalize().ok()).collect();
        let neighbours = entries(parent).into_iter().filter(|folder| is_folder_of_profiles(folder));
        let neighbours = neighbours.filter(|folder| folder.canonicalize().is_ok_and(|folder| !known.contains(&folder)));
        group.all.extend(neighbours);
    }
    Ok(groups.into_values().collect())
}

fn collect(folder: &Path, depth: usize, found: &mut Vec<(PathBuf, Files)>) {
    if is_folder_of_profiles(folder) {
        found.push((folder.to_owned(), Files::All));
        return;
    }
    if depth < MAX_DEPTH {
        for entry in entries(folder).into_iter().filter(|entry| entry.is_dir()) {
            collect(&entry, depth + 1, found);
        }
    }
}

fn is_folder_of_profiles(folder: &Path) -> bool {
    folder.join(PROFILE).is_file()
}

/// Returns the folder of profiles to which this file of test cases belongs; `None` if it is not in such a folder.
fn folder_of_cases(file: &Path) -> Option<PathBuf> {
    let cases = file.parent().filter(|folder| folder.ends_with(CASES))?;
    let folder = cases.parent().map_or_else(PathBuf::new, Path::to_owned);
    let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
    is_folder_of_profiles(&folder).then_some(folder)
}

/// Returns the parent of a folder.
fn beside(folder: &Path) -> PathBuf {
    match folder.parent() {
        Some(parent) if folder.file_name().is_some() => {
            if parent.as_os_str().is_empty() {
                PathBuf::from(".")
            } else {
                parent.to_owned()
            }
        }
        _ => folder.join(".."),
    }
}

/// Returns the entries of a folder, sorted, without hidden ones. Empty if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.retain(|path| path.file_name().is_some_and(|name| !name.to_string_lossy().starts_with('.')));
    entries.sort();
    entries
}

fn is_yaml(path: &Path) -> bool {
    path.is_file() && path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_profile_folders_are_found() {
        let root = tempfile::tempdir().unwrap();
        for file in [
            "a/profile.yaml",
            "a/tests/one.yaml",
            "a/tests/two.yml",
            "a/tests/notes.md",
            "b/profile.yaml",
            "x/c/profile.yaml",
            "y/z.txt",
        ] {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        let at = |path: &str| root.path().join(path);
        let groups = of(&[at("")]).unwrap();
        let tested: Vec<Vec<_>> = groups.iter().map(|group| group.tested.keys().cloned().collect()).collect();
        assert_eq!(tested, [vec![at("a"), at("b")], vec![at("x/c")]]);
        assert_eq!(groups[0].tested[&at("a")].of(&at("a")), [at("a/tests/one.yaml"), at("a/tests/two.yml")]);

        let one = of(&[at("b"), at("a/tests/two.yml")]).unwrap();
        assert_eq!(one[0].tested[&at("a")], Files::Only([at("a/tests/two.yml")].into()));
        assert_eq!(one[0].all, [at("a"), at("b")].into());
        assert_eq!(of(&[at("b")]).unwrap()[0].all, [at("a"), at("b")].into(), "neighbours are read");

        for (path, message) in [
            ("y", "contains no folder of profiles"),
            ("nowhere", "no such file"),
            ("y/z.txt", "contains no folder of profiles"),
        ] {
            let problems = of(&[at(path)]).unwrap_err();
            assert!(problems[0].to_string().contains(message), "{}", problems[0]);
        }
    }
}
