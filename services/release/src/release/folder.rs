//! The folder of a release: what may be removed from it, and what is written into it.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use crate::archive::sha256;

/// The file by which everything else is checked.
const CHECKSUMS: &str = "SHA256SUMS";
/// Signatures of it, which are made later and not by us: with a key of SSH, and by `just publish`.
const SIGNATURES: [&str; 2] = ["SHA256SUMS.sig", "SHA256SUMS.sigstore.json"];
/// How the page begins that every release has. Checksums alone are in folders of anybody.
const TITLE: &str = "# Pillion ";

/// The files of a release as they are written.
pub(super) struct Folder {
    path: PathBuf,
    names: Vec<String>,
}

impl Folder {
    /// One that is made, or is empty, or had a release in it and nothing else; that is removed.
    pub(super) fn empty(path: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
        for name in removable(path)? {
            fs::remove_file(path.join(&name)).with_context(|| format!("cannot remove {name}"))?;
        }
        Ok(Self { path: path.to_owned(), names: Vec::new() })
    }

    pub(super) fn write(&mut self, name: &str, content: impl AsRef<[u8]>) -> anyhow::Result<()> {
        fs::write(self.path.join(name), content).with_context(|| format!("cannot write {name}"))?;
        self.names.push(name.to_owned());
        Ok(())
    }

    /// Counts in a file that was written by another program.
    pub(super) fn add(&mut self, name: &str) -> anyhow::Result<()> {
        ensure!(self.path.join(name).is_file(), "nothing has written {name}");
        self.names.push(name.to_owned());
        Ok(())
    }

    /// Writes the checksums of all of them, as `sha256sum` does; all names.
    pub(super) fn end(mut self) -> anyhow::Result<Vec<String>> {
        self.names.sort();
        let mut sums = String::new();
        for name in &self.names {
            let content = fs::read(self.path.join(name)).with_context(|| format!("cannot read {name}"))?;
            writeln!(sums, "{}  {name}", sha256(&content))?;
        }
        self.write(CHECKSUMS, sums)?;
        Ok(self.names)
    }
}

/// The files of the release that is in a folder, all of which may go; none of an empty folder. Whatever a release has not listed
/// is somebody's, and then nothing may.
fn removable(path: &Path) -> anyhow::Result<BTreeSet<String>> {
    let shown = path.display();
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(path).with_context(|| format!("cannot list {shown}"))? {
        let entry = entry.with_context(|| format!("cannot list {shown}"))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        ensure!(entry.file_type()?.is_file(), "{}", refused(path, &name));
        found.insert(name);
    }
    let Some(first) = found.first() else { return Ok(found) };
    let read = |name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
    let sums = read(CHECKSUMS);
    if sums.is_empty() || !read("README.md").starts_with(TITLE) {
        bail!("{}", refused(path, first));
    }
    let listed: BTreeSet<_> = sums.lines().filter_map(|line| Some(line.split_once("  ")?.1)).collect();
    let is_known = |name: &str| listed.contains(name) || name == CHECKSUMS || SIGNATURES.contains(&name);
    match found.iter().find(|name| !is_known(name)) {
        Some(other) => bail!("{}", refused(path, other)),
        None => Ok(found),
    }
}

fn refused(path: &Path, name: &str) -> String {
    format!(
        "{} has something else in it than a release: {name}; nothing was removed; name another folder, or empty this one",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of what is in a folder.
    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// A folder with a small release in it, and its path.
    fn release() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dist");
        let mut files = Folder::empty(&path).unwrap();
        files.write("README.md", "# Pillion 0.1.0\n").unwrap();
        files.write("pillion-0.1.0.tgz", "chart").unwrap();
        assert_eq!(files.end().unwrap(), ["README.md", "pillion-0.1.0.tgz", CHECKSUMS]);
        (folder, path)
    }

    #[test]
    fn a_release_is_replaced_and_so_is_one_that_was_signed() {
        let (_folder, path) = release();
        for name in SIGNATURES {
            fs::write(path.join(name), "signature").unwrap();
        }
        Folder::empty(&path).unwrap();
        assert_eq!(names(&path), [""; 0]);
    }

    #[test]
    fn what_lies_beside_a_release_keeps_all_of_it() {
        let (_folder, path) = release();
        fs::write(path.join("thesis.pdf"), "years").unwrap();
        let error = Folder::empty(&path).map(drop).unwrap_err().to_string();
        assert!(error.contains("something else in it than a release: thesis.pdf"), "{error}");
        assert_eq!(names(&path), ["README.md", CHECKSUMS, "pillion-0.1.0.tgz", "thesis.pdf"]);
        fs::remove_file(path.join("thesis.pdf")).unwrap();
        fs::create_dir(path.join("photographs")).unwrap();
        assert!(Folder::empty(&path).is_err());
        assert!(path.join("photographs").is_dir());
    }

    #[test]
    fn checksums_of_somebody_else_are_no_release() {
        let folder = tempfile::tempdir().unwrap();
        for readme in [None, Some("# Something else\n")] {
            fs::write(folder.path().join("thesis.pdf"), "years").unwrap();
            fs::write(folder.path().join(CHECKSUMS), "0a  thesis.pdf\n0b  README.md\n").unwrap();
            if let Some(text) = readme {
                fs::write(folder.path().join("README.md"), text).unwrap();
            }
            assert!(Folder::empty(folder.path()).is_err());
            assert!(folder.path().join("thesis.pdf").exists() && folder.path().join(CHECKSUMS).exists());
        }
    }
}
