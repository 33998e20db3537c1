//! Builds the program that is shipped: static, so that an image needs nothing else, and without the build machine's
//! paths. docs/decisions.md says why it is linked with glibc.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::binary::Architecture;
use crate::source::{Source, cargo, output};

/// Cargo's profile for what is shipped.
const PROFILE: &str = "dist";

/// What programs for a processor are called by rustc and by gcc.
#[derive(Debug, Clone, Copy)]
struct Names {
    target: &'static str,
    processor: &'static str,
    linker: &'static str,
    package: &'static str,
}

fn names(architecture: Architecture) -> Names {
    match architecture {
        Architecture::Amd64 => Names {
            target: "x86_64-unknown-linux-gnu",
            processor: "x86_64",
            linker: "x86_64-linux-gnu-gcc",
            package: "gcc-x86-64-linux-gnu",
        },
        Architecture::Arm64 => Names {
            target: "aarch64-unknown-linux-gnu",
            processor: "aarch64",
            linker: "aarch64-linux-gnu-gcc",
            package: "gcc-aarch64-linux-gnu",
        },
    }
}

/// What rustc calls the platform of a processor.
#[must_use]
pub fn target(architecture: Architecture) -> &'static str {
    names(architecture).target
}

/// The processor of this machine, if images are made for it.
#[must_use]
pub fn host() -> Option<Architecture> {
    [Architecture::Amd64, Architecture::Arm64]
        .into_iter()
        .find(|architecture| names(*architecture).processor == std::env::consts::ARCH)
}

/// The C compiler that links for a processor.
fn compiler(architecture: Architecture) -> &'static str {
    if host() == Some(architecture) { "cc" } else { names(architecture).linker }
}

/// Builds the program for a processor; where it is then.
///
/// # Errors
/// If a compiler for it is missing, or the build fails.
pub fn build(source: &Source, architecture: Architecture) -> anyhow::Result<PathBuf> {
    let Names { target, linker, package, .. } = names(architecture);
    ensure_compilers(architecture, &source.root).with_context(|| {
        format!("no compiler for {target}: run `rustup target add {target}` and install {linker} (Debian: {package})")
    })?;
    let variable = target.to_uppercase().replace('-', "_");
    let mut command = Command::new(cargo());
    command
        .args(["build", "--locked", "--profile", PROFILE, "--target", target, "--package", "pillion"])
        .current_dir(&source.root)
        .env(format!("CARGO_TARGET_{variable}_RUSTFLAGS"), rust_flags(&source.root)?)
        .env("PILLION_REVISION", source.revision.as_deref().unwrap_or_default())
        .env_remove("RUSTFLAGS");
    if host() != Some(architecture) {
        command.env(format!("CARGO_TARGET_{variable}_LINKER"), linker);
    }
    let status = command.status().context("cannot run cargo")?;
    ensure!(status.success(), "the build for {target} failed");
    Ok(target_folder(&source.root)?.join(target).join(PROFILE).join("pillion"))
}

/// Flags for what is in the program. Its panics tell where they were in the source; with whose home that was, two people would
/// build two programs.
fn rust_flags(root: &Path) -> anyhow::Result<String> {
    let cargo_home = match (std::env::var_os("CARGO_HOME"), std::env::var_os("HOME")) {
        (Some(home), _) if !home.is_empty() => PathBuf::from(home),
        (_, Some(home)) => PathBuf::from(home).join(".cargo"),
        _ => bail!("neither CARGO_HOME nor HOME is set"),
    };
    let root = root.canonicalize().with_context(|| format!("cannot find {}", root.display()))?;
    Ok(format!(
        "-Ctarget-feature=+crt-static --remap-path-prefix={}=/cargo --remap-path-prefix={}=/pillion",
        cargo_home.display(),
        root.display()
    ))
}

fn ensure_compilers(architecture: Architecture, folder: &Path) -> anyhow::Result<()> {
    let Names { target, .. } = names(architecture);
    output(compiler(architecture), &["--version"], folder)?;
    let libraries = output("rustc", &["--print", "target-libdir", "--target", target], folder)?;
    ensure!(Path::new(libraries.trim()).is_dir(), "rustc has no standard library for {target}");
    Ok(())
}

fn target_folder(root: &Path) -> anyhow::Result<PathBuf> {
    let arguments = ["metadata", "--locked", "--no-deps", "--format-version", "1"];
    let metadata: serde_json::Value = serde_json::from_str(&output(cargo(), &arguments, root)?)?;
    metadata
        .get("target_directory")
        .and_then(|folder| folder.as_str())
        .map(PathBuf::from)
        .context("cargo tells no target folder")
}

/// What is in a static program beside crates: the versions of Rust's standard library and of the C library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// As in `1.95.0`.
    pub rust: String,
    /// As in `2.36`; none where no C compiler for the processor is installed.
    pub glibc: Option<String>,
    /// Where the licences of Rust's standard library and its dependencies are.
    pub rust_licences: PathBuf,
}

/// What a program gets for a processor on this machine.
///
/// # Errors
/// If rustc does not tell.
pub fn runtime(architecture: Architecture, root: &Path) -> anyhow::Result<Runtime> {
    let version = output("rustc", &["--version"], root)?;
    let sysroot = output("rustc", &["--print", "sysroot"], root)?;
    let arguments = ["-dM", "-E", "-include", "features.h", "-x", "c", "/dev/null"];
    let macros = output(compiler(architecture), &arguments, root).unwrap_or_default();
    let number = |name: &str| {
        let line = macros.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
        line.map(|number| number.trim().to_owned())
    };
    Ok(Runtime {
        rust: version.split_whitespace().nth(1).context("rustc tells no version")?.to_owned(),
        glibc: number("__GLIBC__").zip(number("__GLIBC_MINOR__")).map(|(major, minor)| format!("{major}.{minor}")),
        rust_licences: Path::new(sysroot.trim()).join("share/doc/rust/COPYRIGHT-library.html"),
    })
}
