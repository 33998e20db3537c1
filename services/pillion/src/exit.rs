//! The exit codes, the same for all commands: 0 is success, 1 reports findings, and 2 is a failure, as with `grep` and
//! `kubectl diff`.

use std::process::{ExitCode, Termination};

/// The result of a command, as its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// 0: the command did its work and found nothing wrong.
    Success,
    /// 1: the command did its work and found something, such as an error, a difference or a pod without its profiles.
    Findings,
    /// 2: the command could not do its work: invalid arguments, a missing file, an unavailable API server.
    Failure,
}

impl Exit {
    /// Returns [`Exit::Findings`] if there are any, else [`Exit::Success`].
    pub(crate) const fn findings(are_any: bool) -> Self {
        if are_any { Self::Findings } else { Self::Success }
    }

    /// Returns the exit code.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Findings => 1,
            Self::Failure => 2,
        }
    }
}

impl Termination for Exit {
    fn report(self) -> ExitCode {
        ExitCode::from(self.code())
    }
}
