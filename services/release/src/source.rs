//! The checkout that is released: its version, its revision and the time of its last commit.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

/// The checkout that a release is made from.
#[derive(Debug, Clone)]
pub struct Source {
    /// Its folder.
    pub root: PathBuf,
    /// The version of all of its crates, of the chart and of the image.
    pub version: String,
    /// The commit, with `-dirty` behind it if files differ from it; none where there is no git.
    pub revision: Option<String>,
    /// When the commit was made, in seconds since 1970, or what `SOURCE_DATE_EPOCH` says.
    pub time: u64,
}

impl Source {
    /// The checkout in a folder.
    ///
    /// # Errors
    /// If `SOURCE_DATE_EPOCH` is not a number, or there is neither it nor a commit.
    pub fn of(root: &Path) -> anyhow::Result<Self> {
        let git = |arguments: &[&str]| output("git", arguments, root).map(|text| text.trim().to_owned());
        let revision = git(&["rev-parse", "--verify", "HEAD"]).ok();
        let is_dirty = revision.is_some() && !git(&["status", "--porcelain"])?.is_empty();
        let time = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(time) => time.trim().parse().context("SOURCE_DATE_EPOCH is not a number of seconds since 1970")?,
            Err(_) => git(&["log", "-1", "--format=%ct"])
                .context(
                    "the time of the release is not known: set SOURCE_DATE_EPOCH, or use a clone of the repository",
                )?
                .parse()
                .context("git told no time of the commit")?,
        };
        Ok(Self {
            root: root.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            revision: revision.map(|revision| if is_dirty { revision + "-dirty" } else { revision }),
            time,
        })
    }

    /// Whether it is a commit, and nothing else.
    #[must_use]
    pub fn is_a_commit(&self) -> bool {
        self.revision.as_ref().is_some_and(|revision| !revision.ends_with("-dirty"))
    }
}

/// What a program prints that is run in a folder.
///
/// # Errors
/// If it cannot be run, or fails; with what it says of that.
pub fn output<A: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: &[A], folder: &Path) -> anyhow::Result<String> {
    String::from_utf8(bytes(program, arguments, folder)?).context("a program printed what is not UTF-8")
}

/// As [`output`], whatever the bytes are.
///
/// # Errors
/// As for [`output`].
pub fn bytes<A: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: &[A], folder: &Path) -> anyhow::Result<Vec<u8>> {
    let program = program.as_ref();
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    if !output.status.success() {
        let arguments: Vec<_> = arguments.iter().map(|argument| argument.as_ref().to_string_lossy()).collect();
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} {} failed: {}", program.display(), arguments.join(" "), said.trim());
    }
    Ok(output.stdout)
}

/// The program that builds, as cargo names itself to what it runs.
#[must_use]
pub fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Fails unless a folder is the root of the repository.
///
/// # Errors
/// If it is not.
pub fn ensure_root(root: &Path) -> anyhow::Result<()> {
    ensure!(root.join("charts/pillion/Chart.yaml").is_file(), "{} is not the repository's folder", root.display());
    Ok(())
}
