//! Sets the source revision and the compiler version that `pillion_build_info` exports.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The revision is read from the environment and not from git. Otherwise each commit would cause a rebuild. Also,
    // images are built without `.git`.
    println!("cargo::rerun-if-env-changed=PILLION_REVISION");
    println!("cargo::rustc-env=PILLION_REVISION={}", std::env::var("PILLION_REVISION").unwrap_or_default());
    println!("cargo::rustc-env=PILLION_RUSTC={}", rustc().unwrap_or_default());
}

/// Returns the version of the compiler, such as `1.95.0`.
fn rustc() -> Option<String> {
    let output = Command::new(std::env::var_os("RUSTC")?).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.split_whitespace().nth(1).map(ToOwned::to_owned)
}
