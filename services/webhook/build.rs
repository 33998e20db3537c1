//! What `pillion_build_info` tells of the build: the revision, if whoever builds says it, and the compiler.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Given, not asked of git: a commit would otherwise be a reason to build anew, and an image is built without .git.
    println!("cargo::rerun-if-env-changed=PILLION_REVISION");
    println!("cargo::rustc-env=PILLION_REVISION={}", std::env::var("PILLION_REVISION").unwrap_or_default());
    println!("cargo::rustc-env=PILLION_RUSTC={}", rustc().unwrap_or_default());
}

/// The version of the compiler, as in `1.95.0`.
fn rustc() -> Option<String> {
    let output = Command::new(std::env::var_os("RUSTC")?).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.split_whitespace().nth(1).map(ToOwned::to_owned)
}
