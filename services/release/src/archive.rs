//! Reproducible tar archives: sorted by path, with one time for all entries and no owners.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, ensure};
use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// The files of an archive by their path in it.
#[derive(Debug, Clone, Default)]
pub struct Archive {
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone)]
struct Entry {
    kind: EntryType,
    mode: u32,
    content: Vec<u8>,
}

impl Archive {
    /// One without a file.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With a file that everybody may read. The path has no slash at its beginning.
    #[must_use]
    pub fn file(self, path: &str, content: impl Into<Vec<u8>>) -> Self {
        self.entry(path, EntryType::Regular, 0o644, content.into())
    }

    /// With a file that everybody may read and run.
    #[must_use]
    pub fn program(self, path: &str, content: impl Into<Vec<u8>>) -> Self {
        self.entry(path, EntryType::Regular, 0o755, content.into())
    }

    /// With an empty folder of these rights. Folders of files need not be named.
    #[must_use]
    pub fn folder(self, path: &str, mode: u32) -> Self {
        self.entry(path, EntryType::Directory, mode, Vec::new())
    }

    /// With the folders of all files, where they are not named: who unpacks it as another user does not give them rights of their
    /// own making.
    #[must_use]
    pub fn with_folders(self) -> Self {
        let paths: BTreeSet<String> = self
            .entries
            .keys()
            .flat_map(|path| path.match_indices('/').filter_map(|(at, _)| path.get(..at)))
            .filter(|folder| !self.entries.contains_key(*folder))
            .map(ToOwned::to_owned)
            .collect();
        paths.iter().fold(self, |archive, path| archive.folder(path, 0o755))
    }

    /// With all files below a folder, those with a dot at the beginning of their name too, under `path`.
    ///
    /// # Errors
    /// If it cannot be read, or holds something that is neither a file nor a folder.
    pub fn tree(mut self, path: &str, folder: &Path) -> anyhow::Result<Self> {
        for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
            let (name, file, kind) = (entry.file_name(), entry.path(), entry.file_type()?);
            let name = name.to_str().with_context(|| format!("{} is not UTF-8", file.display()))?;
            let below = format!("{path}/{name}");
            self = if kind.is_dir() {
                self.tree(&below, &file)?
            } else {
                ensure!(kind.is_file(), "{} is neither a file nor a folder", file.display());
                let content = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
                if is_executable(&file)? { self.program(&below, content) } else { self.file(&below, content) }
            };
        }
        Ok(self)
    }

    fn entry(mut self, path: &str, kind: EntryType, mode: u32, content: Vec<u8>) -> Self {
        self.entries.insert(path.to_owned(), Entry { kind, mode, content });
        self
    }

    /// The archive's bytes; `time` in seconds since 1970 is that of every entry.
    ///
    /// # Errors
    /// If a path is too long for the format.
    pub fn tar(&self, time: u64) -> anyhow::Result<Vec<u8>> {
        let mut builder = Builder::new(Vec::new());
        for (path, entry) in &self.entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(entry.kind);
            header.set_mode(entry.mode);
            header.set_mtime(time);
            header.set_uid(0);
            header.set_gid(0);
            header.set_size(entry.content.len().try_into().context("a file is too large")?);
            let path = if entry.kind.is_dir() { format!("{path}/") } else { path.clone() };
            builder
                .append_data(&mut header, &path, entry.content.as_slice())
                .with_context(|| format!("cannot pack {path}"))?;
        }
        builder.into_inner().context("cannot end the archive")
    }

    /// The same, compressed.
    ///
    /// # Errors
    /// As for [`Self::tar`].
    pub fn tar_gz(&self, time: u64) -> anyhow::Result<Vec<u8>> {
        gzip(&self.tar(time)?)
    }
}

/// Compressed, without a name and a time in its head.
///
/// # Errors
/// None that memory does not have.
pub fn gzip(content: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    encoder.write_all(content).and_then(|()| encoder.finish()).context("cannot compress")
}

/// The SHA-256 of some bytes in hexadecimal digits.
#[must_use]
pub fn sha256(content: &[u8]) -> String {
    format!("{:x}", Sha256::digest(content))
}

fn is_executable(file: &Path) -> anyhow::Result<bool> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::metadata(file)?.permissions().mode() & 0o100 != 0)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn entries_are_sorted_and_of_one_time_and_owner() {
        let archive = Archive::new().file("b/two", "2").program("a", "1").folder("tmp", 0o1777);
        let bytes = archive.tar(1_700_000_000).unwrap();
        let mut seen = Vec::new();
        for entry in tar::Archive::new(bytes.as_slice()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let header = entry.header().clone();
            assert_eq!((header.mtime().unwrap(), header.uid().unwrap(), header.gid().unwrap()), (1_700_000_000, 0, 0));
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            seen.push((entry.path().unwrap().display().to_string(), header.mode().unwrap(), content));
        }
        let expected = [("a", 0o755, "1"), ("b/two", 0o644, "2"), ("tmp/", 0o1777, "")];
        assert_eq!(seen, expected.map(|(path, mode, content)| (path.to_owned(), mode, content.to_owned())));
    }

    #[test]
    fn the_order_in_which_files_are_named_changes_nothing() {
        let one = Archive::new().file("a", "1").file("b", "2").tar_gz(7).unwrap();
        let other = Archive::new().file("b", "2").file("a", "1").tar_gz(7).unwrap();
        assert_eq!(one, other);
        assert_ne!(one, Archive::new().file("a", "1").file("b", "3").tar_gz(7).unwrap());
    }

    #[test]
    fn folders_stand_before_what_is_in_them_and_keep_rights_that_were_named() {
        let archive = Archive::new().file("a/b/one", "1").file("a.txt", "2").file("tmp/two", "3").folder("tmp", 0o1777);
        let bytes = archive.with_folders().tar(1).unwrap();
        let shown = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
            let entry = entry.unwrap();
            format!("{} {:o}", entry.path().unwrap().display(), entry.header().mode().unwrap())
        };
        let seen: Vec<_> = tar::Archive::new(bytes.as_slice()).entries().unwrap().map(shown).collect();
        assert_eq!(seen, ["a/ 755", "a.txt 644", "a/b/ 755", "a/b/one 644", "tmp/ 1777", "tmp/two 644"]);
    }

    #[test]
    fn a_tree_has_its_files_and_their_rights() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("below")).unwrap();
        fs::write(folder.path().join("below/.hidden"), "x").unwrap();
        fs::set_permissions(folder.path().join("below/.hidden"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(folder.path().join("plain"), "y").unwrap();
        let tree = Archive::new().tree("top", folder.path()).unwrap();
        let named = Archive::new().program("top/below/.hidden", "x").file("top/plain", "y");
        assert_eq!(tree.tar(1).unwrap(), named.tar(1).unwrap());
    }
}
