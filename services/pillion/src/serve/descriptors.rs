//! Raises the soft limit of file descriptors to the hard limit, since each connection takes one. The low soft limit
//! exists for programs that use `select`; Go's programs raise it in the same way.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{debug, warn};

/// File descriptors that the process needs besides connections: files, pipes, the API server.
const BESIDE: u64 = 128;

/// Raises the limit as far as possible, and warns if it is too low for this many connections.
pub(crate) fn raise_limit(connections: usize) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    if let Err(error) = raised {
        debug!(%error, "the limit of file descriptors cannot be raised");
    }
    // None: no limit.
    let limit = if raised.is_ok() { maximum } else { current };
    let needed = BESIDE.saturating_add(u64::try_from(connections).unwrap_or(u64::MAX));
    if let Some(limit) = limit.filter(|limit| *limit < needed) {
        warn!(
            limit,
            needed,
            "the limit of file descriptors is lower than that of connections: raise it (ulimit -n), or new connections wait \
             when it is reached"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let less = current.or(maximum).map_or(256, |limit| limit.min(256));
        setrlimit(Resource::Nofile, Rlimit { current: Some(less), maximum }).unwrap();
        raise_limit(4096);
        assert_eq!(getrlimit(Resource::Nofile), Rlimit { current: maximum, maximum });
    }
}
