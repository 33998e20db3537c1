//! Isolates panics: a panic while an object is processed affects that object alone.
//!
//! Without the guard, a panic would end the controller's leadership. If a stored object causes the panic, the next
//! leader would panic too, and a replica whose watch has ended would exit. So one tenant's profile could stop rotation,
//! drift correction, revisions and audit for the whole cluster. Therefore all work on users' objects outside of
//! requests runs in [`guarded`]. Requests have their own guard.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pillion_engine::profile::{Diagnostic, Part};
use tracing::error;

/// Maximum bytes of a panic message in the log.
const MESSAGE_BYTES: usize = 1_000;

/// Where users report bugs.
const ISSUES: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/issues");

/// The work panicked. The panic message is only in the log, since it may contain other tenants' data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is a bug in Pillion: report it at {}, with the log", ISSUES)]
pub struct Panicked;

/// Runs `work`. Logs a panic, with the name of `object`, and returns it as an error.
///
/// # Errors
/// The work panicked.
pub fn guarded<T>(object: &dyn Display, work: impl FnOnce() -> T) -> Result<T, Panicked> {
    let work = || {
        inject_fault(object);
        work()
    };
    // Unwind-safe: if the work panics, callers keep their earlier state, and the engine does not change its inputs.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let message =
            panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let message = message.unwrap_or("no message");
        let message = message.get(..message.floor_char_boundary(MESSAGE_BYTES)).unwrap_or_default();
        error!(what = %object, panic = message, help = %Panicked, "a panic was caught; all other work continues without this object");
        Panicked
    })
}

/// Like [`guarded`], for work that returns a profile's errors. A panic becomes one of these errors.
///
/// # Errors
/// The profile is invalid, or the work panicked.
pub fn compiled<T>(
    object: &dyn Display,
    work: impl FnOnce() -> Result<T, Vec<Diagnostic>>,
) -> Result<T, Vec<Diagnostic>> {
    guarded(object, work).unwrap_or_else(|panicked| Err(vec![panicked.diagnostic()]))
}

impl Panicked {
    /// Returns the error for the profile's author.
    #[must_use]
    pub fn diagnostic(self) -> Diagnostic {
        Diagnostic {
            path: "spec".to_owned(),
            message: "this is a bug in Pillion, not a mistake in the profile: processing the spec failed".to_owned(),
            help: Some(format!(
                "report it at {ISSUES}, with the profile and the log; until it is fixed, a different spec may work"
            )),
            part: Part::Value,
        }
    }
}

#[cfg(test)]
use faults::inject_fault;
/// Does nothing: only tests inject panics.
#[cfg(not(test))]
const fn inject_fault(_: &dyn Display) {}

/// Lets tests inject panics, to simulate unknown bugs of the engine.
#[cfg(test)]
pub(crate) mod faults {
    use std::cell::RefCell;
    use std::fmt::Display;

    thread_local! {
        static AT: RefCell<Option<String>> = const { RefCell::new(None) };
    }

    /// Until the guard is dropped, guarded work on the chosen object panics on this thread.
    #[must_use]
    pub(crate) struct FaultGuard;

    /// Makes guarded work on this object panic until the returned guard is dropped.
    pub(crate) fn at(object: &str) -> FaultGuard {
        AT.set(Some(object.to_owned()));
        FaultGuard
    }

    pub(super) fn inject_fault(object: &dyn Display) {
        let is_chosen = AT.with_borrow(|at| at.as_deref() == Some(&*object.to_string()));
        assert!(!is_chosen, "the secret of {object}");
    }

    impl Drop for FaultGuard {
        fn drop(&mut self) {
            AT.set(None);
        }
    }
}

/// Captures log lines in tests.
#[cfg(test)]
pub(crate) mod log_capture {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use tracing::subscriber::DefaultGuard;

    /// Captures the log lines of this thread until this value is dropped.
    pub(crate) struct LogCapture {
        lines: Lines,
        _guard: DefaultGuard,
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl LogCapture {
        pub(crate) fn start() -> Self {
            let lines = Lines::default();
            let writer = lines.clone();
            let subscriber =
                tracing_subscriber::fmt().with_ansi(false).without_time().with_writer(move || writer.clone()).finish();
            Self { lines, _guard: tracing::subscriber::set_default(subscriber) }
        }

        /// Returns the lines since the last call.
        pub(crate) fn take(&self) -> String {
            String::from_utf8(std::mem::take(&mut *self.lines.0.lock().unwrap())).unwrap()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::log_capture::LogCapture;
    use super::*;

    #[test]
    fn panic_is_logged_and_returned_as_error() {
        let log = LogCapture::start();
        let objects = ["good", "bad", "better"];
        let done = objects.map(|name| {
            guarded(&name, || {
                assert!(name != "bad", "index out of bounds");
                name.len()
            })
        });
        assert_eq!(done, [Ok(4), Err(Panicked), Ok(6)]);
        let lines = log.take();
        assert_eq!(lines.lines().count(), 1, "{lines}");
        for part in ["ERROR", "what=bad", "index out of bounds", "bug in Pillion", "/issues"] {
            assert!(lines.contains(part), "{part} is not in {lines}");
        }
    }

    #[test]
    fn diagnostic_of_panic_hides_its_message() {
        let fault = faults::at("team-a/logger");
        let diagnostics = compiled(&"team-a/logger", || Ok(())).unwrap_err();
        let [diagnostic] = diagnostics.as_slice() else { panic!("{diagnostics:?}") };
        let text = diagnostic.to_string();
        assert!(text.contains("a bug in Pillion") && text.contains("report it at https://"), "{text}");
        assert!(!text.contains("the secret"), "{text}");
        assert_eq!(compiled(&"team-a/other", || Ok(1)), Ok(1), "another object is not affected");
        drop(fault);
        assert_eq!(compiled(&"team-a/logger", || Ok(2)), Ok(2));
        let wrong = Panicked.diagnostic();
        assert_eq!(compiled::<()>(&"team-a/logger", || Err(vec![wrong.clone()])), Err(vec![wrong]));
    }
}
