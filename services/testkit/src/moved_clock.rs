//! Moves the wall clock of single processes forward or back while they run.
//!
//! A test cannot set the machine's clock, and Linux has no namespace for the wall clock. So the process preloads a
//! small library, which reads an offset from a file and adds it to the kernel's time. The program itself is unchanged.
//! The C compiler that the environment variable `CC` names builds the library. The default is `cc`, with which Rust
//! links.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::namespace;

const SOURCE: &str = include_str!("moved_clock.c");
/// The environment variable with the path of the file that holds the offset.
const FILE: &str = "PILLION_TEST_CLOCK";

/// A clock with an offset from the machine's clock. Several processes can use it.
#[derive(Debug)]
pub struct MovedClock {
    library: PathBuf,
    path: PathBuf,
    file: File,
}

impl MovedClock {
    /// Creates a clock that is equal to the machine's clock. Each clock of a test needs a different `name`.
    ///
    /// # Errors
    /// The call is not inside an isolated test, another clock of the test has this name, or there is no C compiler
    /// (`cc`, or the one in `CC`).
    pub fn new(name: &str) -> anyhow::Result<Self> {
        let directory = namespace::directory()?;
        let library = directory.join("moved_clock.so");
        if !library.exists() {
            build(&library)?;
        }
        let path = directory.join(format!("clock-{name}"));
        let file = OpenOptions::new().write(true).create_new(true).open(&path).context("the clock's file")?;
        let clock = Self { library, path, file };
        clock.ahead_by(0)?;
        Ok(clock)
    }

    /// Returns the environment variables of a process that uses the clock.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        vec![("LD_PRELOAD".to_owned(), text(&self.library)), (FILE.to_owned(), text(&self.path))]
    }

    /// Sets the offset from the machine's clock, in seconds. With a negative offset, this clock is behind.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn ahead_by(&self, seconds: i64) -> anyhow::Result<()> {
        // Running processes map the file, so it must never be truncated.
        self.file.write_all_at(&seconds.to_ne_bytes(), 0).context("cannot write the clock's file")
    }
}

fn build(library: &Path) -> anyhow::Result<()> {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(&compiler);
    command.args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-x", "c", "-o"]).arg(library).arg("-");
    let running = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut running = running.with_context(|| format!("no C compiler {}", compiler.display()))?;
    running.stdin.take().context("stdin")?.write_all(SOURCE.as_bytes())?;
    let built = running.wait_with_output()?;
    ensure!(built.status.success(), "the clock's library: {}", String::from_utf8_lossy(&built.stderr));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolated;

    #[test]
    fn moves_clock_of_one_process() {
        isolated(|| async {
            let clock = MovedClock::new("one")?;
            let date = |environment: Vec<(String, String)>| -> anyhow::Result<i64> {
                let output = Command::new("date").arg("+%s").envs(environment).output()?;
                ensure!(output.status.success(), "{output:?}");
                Ok(String::from_utf8(output.stdout)?.trim().parse()?)
            };
            for ahead in [0, 1_000_000, -1_000_000] {
                clock.ahead_by(ahead)?;
                let moved = date(clock.environment())? - date(Vec::new())?;
                ensure!((moved - ahead).abs() < 60, "{moved} s instead of {ahead}");
            }
            Ok(())
        });
    }
}
