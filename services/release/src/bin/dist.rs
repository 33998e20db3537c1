//! Builds the program for each platform and writes a release of it: images, chart, command line, bills of materials, licences
//! and checksums. `just dist` runs it.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Parser, ValueEnum};
use pillion_release::binary::Architecture;
use pillion_release::build::{build, host};
use pillion_release::release::{Parts, make};
use pillion_release::source::{Source, ensure_root};

/// Makes a release of the checkout in the current folder.
#[derive(Debug, Parser)]
struct Arguments {
    /// Platforms to build it for; by default that of this machine.
    #[arg(long = "platform", value_name = "PLATFORM")]
    platforms: Vec<Platform>,
    /// Static programs that are built already, taken as they are.
    #[arg(long = "program", value_name = "FILE")]
    programs: Vec<PathBuf>,
    /// Registry and repository of the image, as in registry.example.com/platform/pillion.
    #[arg(long, default_value = "pillion")]
    repository: String,
    /// The folder to write. What is in it must be a release.
    #[arg(long, value_name = "FOLDER", default_value = "dist")]
    out: PathBuf,
    /// The program helm.
    #[arg(long, value_name = "FILE", default_value = "helm")]
    helm: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Platform {
    /// 64-bit x86.
    Amd64,
    /// 64-bit ARM.
    Arm64,
}

#[expect(clippy::print_stdout, reason = "its output is what it is for")]
fn main() -> anyhow::Result<()> {
    let Arguments { platforms, mut programs, repository, out, helm } = Arguments::parse();
    let root = Path::new(".").canonicalize().context("no current folder")?;
    ensure_root(&root)?;
    let source = Source::of(&root)?;
    let mut architectures: Vec<_> = platforms
        .into_iter()
        .map(|platform| match platform {
            Platform::Amd64 => Architecture::Amd64,
            Platform::Arm64 => Architecture::Arm64,
        })
        .collect();
    if architectures.is_empty() && programs.is_empty() {
        architectures.push(host().context("images are made for amd64 and arm64; name one with --platform")?);
    }
    architectures.sort_unstable();
    architectures.dedup();
    for architecture in architectures {
        programs.push(build(&source, architecture)?);
    }
    let out = std::path::absolute(out).context("the folder")?;
    let names = make(&Parts { source, programs, repository, helm }, &out)?;
    for name in names {
        let size = out.join(&name).metadata()?.len();
        println!("{size:>12} {name}");
    }
    println!("{}", out.display());
    Ok(())
}
