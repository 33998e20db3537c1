//! The exit codes, which are the same for all commands, as in `diff` and `kubectl diff`: 0 means success, 1 means
//! findings, and 2 means failure.

use std::process::{ExitCode, Termination};

/// The result of a command, as its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// 0: the command succeeded and found nothing wrong.
    Success,
    /// 1: the command succeeded and found something, such as an error, a difference or a pod that lacks injected parts.
    Findings,
    /// 2: the command failed, for example because of invalid arguments or an unavailable API server.
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
