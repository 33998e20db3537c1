//! Shows the progress of long work on one line of standard error, if that is a terminal.

use std::io::{self, IsTerminal, Write};

/// The width of the line.
const WIDTH: usize = 78;

/// Progress in a known number of steps.
#[derive(Debug)]
pub(crate) struct Progress {
    what: &'static str,
    done: usize,
    of: usize,
    is_seen: bool,
}

impl Progress {
    /// Creates the progress display. `what` names the steps, in the plural.
    pub(crate) fn new(what: &'static str, of: usize) -> Self {
        Self { what, done: 0, of, is_seen: io::stderr().is_terminal() }
    }

    /// Begins the next step.
    pub(crate) fn step(&mut self, name: &str) {
        self.done += 1;
        if self.is_seen {
            write(&line(self.what, self.done, self.of, name));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_seen && self.done > 0 {
            write("");
        }
    }
}

fn write(text: &str) {
    // Err: standard error is closed.
    let _ = write!(io::stderr().lock(), "\r{text:<WIDTH$}\r");
}

fn line(what: &str, done: usize, of: usize, name: &str) -> String {
    format!("{what}: {done} of {of}, {name}").chars().take(WIDTH).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_no_longer_than_a_terminal_is_wide() {
        assert_eq!(line("namespaces", 3, 40, "shop"), "namespaces: 3 of 40, shop");
        assert_eq!(line("namespaces", 3, 40, &"é".repeat(200)).chars().count(), WIDTH);
    }
}
