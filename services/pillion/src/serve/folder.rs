//! The folder into which `dev` writes files for people: the CA to trust, a sample request, a sample pod.

use std::path::{Path, PathBuf};

use anyhow::Context;
use tempfile::TempDir;

use super::sample::Sample;
use crate::output;

/// The CA of the serving certificate.
const AUTHORITY: &str = "ca.crt";
/// The review of the sample pod's creation.
const REVIEW: &str = "review.json";
/// The sample pod.
const POD: &str = "pod.yaml";

/// A folder that is removed when the process ends, unless the user gave it.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Removes the folder when it is dropped.
    _temporary: Option<TempDir>,
}

impl Folder {
    /// Opens the given folder, which is created if necessary, or a temporary one.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub(crate) fn open(given: Option<PathBuf>) -> anyhow::Result<Self> {
        if let Some(path) = given {
            std::fs::create_dir_all(&path).with_context(|| format!("cannot make the folder {}", path.display()))?;
            // The printed paths must work from any current directory.
            let path = std::path::absolute(&path).with_context(|| format!("cannot use {}", path.display()))?;
            return Ok(Self { path, _temporary: None });
        }
        let temporary = tempfile::Builder::new().prefix("pillion-dev-").tempdir().context("cannot make a folder")?;
        Ok(Self { path: temporary.path().to_owned(), _temporary: Some(temporary) })
    }

    /// Writes a file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.path.join(name);
        // A concurrent reader sees the old or the new content, never a part.
        let fresh = self.path.join(format!(".{name}.new"));
        std::fs::write(&fresh, text)
            .and_then(|()| std::fs::rename(&fresh, &path))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Writes the CA certificate.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write_authority(&self, pem: &str) -> anyhow::Result<()> {
        self.write(AUTHORITY, pem).map(drop)
    }

    /// Writes the sample pod and the review of its creation.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn write_sample(&self, sample: &Sample) -> anyhow::Result<()> {
        self.write(REVIEW, &output::json(&sample.review)?)?;
        self.write(POD, &output::yaml(&sample.pod)?).map(drop)
    }

    pub(crate) fn authority(&self) -> PathBuf {
        self.path(AUTHORITY)
    }

    pub(crate) fn review(&self) -> PathBuf {
        self.path(REVIEW)
    }

    pub(crate) fn pod(&self) -> PathBuf {
        self.path(POD)
    }

    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }
}
