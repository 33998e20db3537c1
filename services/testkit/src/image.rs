//! Builds images for the test cluster: archives with one layer, for import by `ctr` and `kind`. This needs no registry
//! and no image builder. `tools/image.sh` writes the archives, as it does for a release.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

/// An image to build. Its files are collected in a temporary folder.
#[derive(Debug)]
#[must_use]
pub struct Image {
    reference: String,
    entrypoint: String,
    root: TempDir,
}

impl Image {
    /// Creates an image with this reference (`HOST/NAME:TAG`), whose containers run the program `entrypoint`.
    ///
    /// # Errors
    /// The folder for its files cannot be created.
    pub fn new(reference: impl Into<String>, entrypoint: impl Into<String>) -> anyhow::Result<Self> {
        let root = tempfile::tempdir().context("no folder for the image")?;
        Ok(Self { reference: reference.into(), entrypoint: entrypoint.into(), root })
    }

    /// Copies the file `source` to the path `place` in the image, with mode 0755.
    ///
    /// # Errors
    /// The file cannot be copied.
    pub fn file(self, place: &str, source: &Path) -> anyhow::Result<Self> {
        let place = self.root.path().join(place.trim_start_matches('/'));
        let status = Command::new("install").args(["-D", "--mode=755"]).arg(source).arg(place).status();
        ensure!(status.context("cannot run install")?.success(), "cannot copy {}", source.display());
        Ok(self)
    }

    /// Copies the program `source` to the path `place` in the image. Also adds its shared libraries, at the paths where
    /// the dynamic loader searches.
    ///
    /// # Errors
    /// As [`Image::file`], or a library is missing.
    pub fn program(self, place: &str, source: &Path) -> anyhow::Result<Self> {
        libraries(source)?.iter().try_fold(self.file(place, source)?, |image, library| {
            let place = library.to_str().context("a path")?;
            image.file(place, library)
        })
    }

    /// Writes the image to the file `archive`.
    ///
    /// # Errors
    /// This machine's architecture is not supported, or the script fails.
    pub fn write(self, archive: &Path) -> anyhow::Result<()> {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => anyhow::bail!("images are not built for {other}"),
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/image.sh");
        let output = Command::new("bash")
            .arg(script)
            .arg(&self.reference)
            .arg(archive)
            .args([&self.entrypoint, "--"])
            .arg(format!("{architecture}={}", self.root.path().display()))
            .output()
            .context("cannot run tools/image.sh")?;
        ensure!(output.status.success(), "tools/image.sh: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}

/// Copies `archive`, an archive of one image, to the file `to`, and changes the image's reference to `reference`. The
/// content and its digest stay the same.
///
/// # Errors
/// The file is not an OCI layout, or cannot be copied.
pub fn renamed(archive: &Path, reference: &str, to: &Path) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("no folder for the image")?;
    let tar = |action: &str, file: &Path, what: &[&str]| {
        let status = Command::new("tar").arg(action).arg(file).arg("-C").arg(folder.path()).args(what).status();
        ensure!(status.context("cannot run tar")?.success(), "tar {action} {} failed", file.display());
        anyhow::Ok(())
    };
    tar("-xf", archive, &[])?;
    let change = |name: &str, pointer: &str, value: Value| {
        let file = folder.path().join(name);
        let text = std::fs::read(&file).with_context(|| format!("{} has no {name}", archive.display()))?;
        let mut json: Value = serde_json::from_slice(&text)?;
        *json.pointer_mut(pointer).with_context(|| format!("{name} has no {pointer}"))? = value;
        anyhow::Ok(std::fs::write(file, json.to_string())?)
    };
    change("index.json", "/manifests/0/annotations", names(reference))?;
    // This file is in Docker's format. Some archives omit it.
    if folder.path().join("manifest.json").exists() {
        change("manifest.json", "/0/RepoTags", json!([reference]))?;
    }
    tar("-cf", to, &["."])
}

fn names(reference: &str) -> Value {
    json!({"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference})
}

/// Returns the shared libraries of a program. A static program has none.
fn libraries(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("cannot run ldd")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let output = String::from_utf8_lossy(&output.stderr).into_owned() + &text;
        ensure!(output.contains("not a dynamic executable"), "ldd {}: {output}", program.display());
        return Ok(Vec::new());
    }
    ensure!(!text.contains("not found"), "a library of {} is missing:\n{text}", program.display());
    // Lines have the form `name => /path (address)`, or `/path (address)` for the loader itself. Only the line of the
    // kernel's vDSO has no path.
    Ok(text
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_has_layer_user_and_entrypoint() {
        let dir = tempfile::tempdir().unwrap();
        let archive = dir.path().join("image.tar");
        let own = std::env::current_exe().unwrap();
        let image = Image::new("example.com/own:1", "/bin/own").unwrap();
        image.program("/bin/own", &own).unwrap().write(&archive).unwrap();
        let listed = |archive: &Path| {
            let output = Command::new("tar").arg("-tvf").arg(archive).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let outside = listed(&archive);
        let blobs = outside.lines().filter(|line| line.starts_with('-') && line.contains("blobs/sha256/")).count();
        assert!(outside.contains("index.json") && blobs == 3, "{outside}");

        let unpacked = Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(dir.path()).status().unwrap();
        assert!(unpacked.success());
        let read =
            |path: &str| -> Value { serde_json::from_slice(&std::fs::read(dir.path().join(path)).unwrap()).unwrap() };
        let blob = |value: &Value| value["digest"].as_str().unwrap().replacen("sha256:", "blobs/sha256/", 1);
        let other = dir.path().join("other.tar");
        renamed(&archive, "example.com/other:2", &other).unwrap();
        let found = Command::new("tar").args(["-xOf"]).arg(&other).arg("./index.json").output().unwrap();
        let index: Value = serde_json::from_slice(&found.stdout).unwrap();
        assert_eq!(index["manifests"][0]["annotations"]["io.containerd.image.name"], "example.com/other:2");
        assert_eq!(index["manifests"][0]["digest"], read("index.json")["manifests"][0]["digest"]);

        let listed_image = &read("index.json")["manifests"][0];
        assert_eq!(listed_image["annotations"]["io.containerd.image.name"], "example.com/own:1");
        let config = read(&blob(&read(&blob(listed_image))["config"]));
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["config"]["Entrypoint"], json!(["/bin/own"]));
        let layer = dir.path().join(blob(&read(&blob(listed_image))["layers"][0]));
        let inside = listed(&layer);
        assert!(
            inside.contains("-rwxr-xr-x") && inside.contains(" bin/own\n") && inside.contains("libc.so"),
            "{inside}"
        );
    }
}
