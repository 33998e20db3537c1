//! Finds the third-party programs that tests run. `tools/build.sh` builds them once from pinned Go modules into a cache
//! outside the checkout. The control plane's programs may also come from `KUBEBUILDER_ASSETS`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context, bail};

/// The programs of a control plane.
pub(crate) const PROGRAMS: [&str; 3] = ["etcd", "kube-apiserver", "kubectl"];

/// The environment variable with a folder of prebuilt control plane programs, as in envtest and Kubebuilder.
pub(crate) const ASSETS_VARIABLE: &str = "KUBEBUILDER_ASSETS";

/// Returns the folder that contains `etcd`, `kube-apiserver` and `kubectl`.
///
/// The first call builds them, which takes about ten minutes on two cores; later calls take milliseconds. During a
/// build, the script's progress goes directly to standard error, because the test harness captures other output.
///
/// # Errors
/// A program is missing from `KUBEBUILDER_ASSETS`, or the script failed. The error contains the script's output, which
/// explains how to install Go if it is missing.
pub(crate) fn dir() -> anyhow::Result<PathBuf> {
    let dir = built(&PROGRAMS)?;
    check(&dir)?;
    Ok(dir)
}

/// Returns the path of one program that `tools/build.sh` can build, such as `kubectl`, `kube-controller-manager`,
/// `prometheus`, `helm`, or a program of a [cluster](crate::cluster). The program is built on first use, which takes
/// minutes.
///
/// # Errors
/// The script that builds it failed; the error contains its output.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = built(&[name])?.join(name);
    if !path.is_file() {
        bail!("there is no {}, although tools/build.sh succeeded", path.display());
    }
    Ok(path)
}

/// Returns the folder with the source of a Go module, such as one that contains CRDs. `tools/FOLDER/go.mod` pins its
/// version. The first call downloads it, which needs a network.
///
/// # Errors
/// Go is not installed, or the module cannot be downloaded; the error contains Go's output.
pub fn go_module(folder: &str, module: &str) -> anyhow::Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools").join(folder);
    let mut command = Command::new("go");
    command.args(["mod", "download", "-json", module]).current_dir(folder).env("GOWORK", "off");
    let output = command.output().context("cannot run `go`: install Go from https://go.dev/doc/install")?;
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    match found.get("Dir").and_then(serde_json::Value::as_str) {
        Some(dir) => Ok(dir.into()),
        None => bail!("go cannot download {module}: {found}{}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// Returns the folder with these programs, without building any.
///
/// # Errors
/// Some programs are not built; the error names them.
pub(crate) fn built_before(programs: &[&str]) -> anyhow::Result<PathBuf> {
    let output = Command::new("bash")
        .arg(script())
        .arg("--if-built")
        .args(programs)
        .stdin(Stdio::null())
        .output()
        .context("cannot run tools/build.sh")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let printed = String::from_utf8(output.stdout).context("a path that is not UTF-8")?;
    printed.lines().last().map(PathBuf::from).context("tools/build.sh printed no folder")
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/build.sh")
}

/// Returns the folder with these programs, and builds missing ones. Once `tools/build.sh` has succeeded for a list of
/// programs, this process does not run it again for that list.
pub(crate) fn built(programs: &[&str]) -> anyhow::Result<PathBuf> {
    static FOUND: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    // The lock is held during the build, so that tests of one process do not start it concurrently.
    let mut found = FOUND.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let names = programs.join(" ");
    if let Some(dir) = found.get(&names) {
        return Ok(dir.clone());
    }
    let dir = build(&script(), programs)?;
    found.insert(names, dir.clone());
    Ok(dir)
}

fn check(dir: &Path) -> anyhow::Result<()> {
    for program in PROGRAMS {
        let path = dir.join(program);
        if !path.is_file() {
            bail!(
                "there is no {} (from {ASSETS_VARIABLE} or tools/build.sh); a folder of tools holds {}; unset \
                 {ASSETS_VARIABLE} to have them built",
                path.display(),
                PROGRAMS.join(", ")
            );
        }
    }
    Ok(())
}

/// Runs the script, and returns the folder that the last line of its output names.
fn build(script: &Path, programs: &[&str]) -> anyhow::Result<PathBuf> {
    let mut child = Command::new("bash")
        .arg(script)
        .args(programs)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run bash {}", script.display()))?;

    let mut output = String::new();
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).lines() {
            let line = line.context("reading the output of tools/build.sh")?;
            // The harness would show captured output only after the build, so the line is written directly.
            let _ = writeln!(std::io::stderr(), "tools: {line}");
            output.push_str(&line);
            output.push('\n');
        }
    }
    let mut printed = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut printed).context("reading the folder of the tools")?;
    }
    let status = child.wait().context("waiting for the build of the tools")?;
    if !status.success() {
        bail!("building the tools failed ({status}):\n{output}");
    }
    match printed.lines().last() {
        Some(dir) => Ok(PathBuf::from(dir)),
        None => bail!("{} printed no folder; it should end with the folder of the tools", script.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn last_line_of_script_is_folder() {
        let script = script("echo about to build >&2; echo noise; echo /some/where");
        assert_eq!(build(script.path(), &[]).unwrap(), PathBuf::from("/some/where"));
    }

    #[test]
    fn error_contains_scripts_output() {
        let script = script("echo 'error: no go on the PATH' >&2; echo '  help: install Go' >&2; exit 2");
        let error = build(script.path(), &[]).unwrap_err().to_string();
        assert!(error.contains("no go on the PATH\n  help: install Go"), "{error}");
    }

    #[test]
    fn folder_without_programs_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("etcd"), "").unwrap();
        let error = check(dir.path()).unwrap_err().to_string();
        assert!(error.contains("kube-apiserver (from KUBEBUILDER_ASSETS"), "{error}");
    }
}
