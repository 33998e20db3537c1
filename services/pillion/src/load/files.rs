//! Finds the files that a path names: the file itself, or the YAML and JSON files in a folder and in the folders
//! directly below it. So the path can be the folder of one profile or of all.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Folders that hold test objects, not profiles.
const NOT_PROFILES: [&str; 6] = ["case", "cases", "fixtures", "test", "testdata", "tests"];

/// Returns the files that a path names, sorted.
pub(crate) fn of(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in sorted(path)? {
        if !entry.is_dir() {
            found.extend(readable(&entry).then_some(entry));
        } else if !left_out(&entry) {
            found.extend(sorted(&entry)?.into_iter().filter(|below| !below.is_dir() && readable(below)));
        }
    }
    Ok(found)
}

fn sorted(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    entries.sort();
    Ok(entries)
}

/// Whether a path is hidden. A mounted ConfigMap has folders like `..data` with copies of the files.
fn hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
}

fn left_out(folder: &Path) -> bool {
    let name = folder.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    hidden(folder) || NOT_PROFILES.contains(&&*name)
}

fn readable(file: &Path) -> bool {
    let extension = file.extension().map(|extension| extension.to_string_lossy()).unwrap_or_default();
    !hidden(file) && ["yaml", "yml", "json"].contains(&&*extension)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_its_files_and_those_one_level_below() {
        let root = tempfile::tempdir().unwrap();
        for file in [
            "top.yaml",
            "notes.md",
            ".hidden.yaml",
            "a/p.yml",
            "a/q.json",
            "a/tests/case.yaml",
            "tests/pod.yaml",
            "..data/top.yaml",
            "b/c/deep.yaml",
        ] {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        let names = |path: &Path| -> Vec<String> {
            let files = of(path).unwrap();
            files.iter().map(|file| file.strip_prefix(root.path()).unwrap().display().to_string()).collect()
        };
        assert_eq!(names(root.path()), ["a/p.yml", "a/q.json", "top.yaml"]);
        assert_eq!(names(&root.path().join("a")), ["a/p.yml", "a/q.json"]);
        assert_eq!(names(&root.path().join("notes.md")), ["notes.md"]);
        assert!(of(&root.path().join("nowhere")).is_err());
    }
}
