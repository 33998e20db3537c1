//! Locks a cluster, so that one process at a time uses it. The kernel releases the lock of a killed process.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The lock of a cluster. Dropping it releases the lock.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Locks the cluster of this folder, which need not exist yet.
    ///
    /// # Errors
    /// Another process holds the lock, or the lock file cannot be created.
    pub(super) fn of(home: &Path) -> anyhow::Result<Self> {
        let (folder, name) = home.parent().zip(home.file_name()).context("a folder for a cluster")?;
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let name = name.to_string_lossy();
        let path = folder.join(format!(".{name}.lock"));
        let shown = || format!("cannot lock {}", path.display());
        for _ in 0..16 {
            let file = File::create(&path).with_context(shown)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    bail!("another process uses the cluster {name} and holds {}; wait until it ends", path.display())
                }
                Err(TryLockError::Error(error)) => return Err(error).with_context(shown),
            }
            // The previous holder may just have removed the file. Another process would then lock a new file, so this
            // lock would have no effect. In that case, tries again.
            let is_there =
                std::fs::metadata(&path).is_ok_and(|there| file.metadata().is_ok_and(|ours| ours.ino() == there.ino()));
            if is_there {
                return Ok(Self { path, _file: file });
            }
        }
        bail!("{}: other processes keep removing it", shown())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The lock file is removed while it is still locked.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_is_exclusive_and_cleaned_up() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("clusters/t1");
        let lock = Lock::of(&home).unwrap();
        let error = Lock::of(&home).unwrap_err().to_string();
        assert!(error.contains("another process uses the cluster t1"), "{error}");
        Lock::of(&folder.path().join("clusters/t2")).unwrap();
        drop(lock);
        assert_eq!(std::fs::read_dir(folder.path().join("clusters")).unwrap().count(), 0);
        Lock::of(&home).unwrap();
    }
}
