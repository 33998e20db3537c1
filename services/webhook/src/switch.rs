//! The kill switch as requests see it: while it is off, the webhook allows every object unchanged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether requests are decided. Clones share the state, which the cluster watch sets. It starts as on.
///
/// A request uses the state at the beginning of its decision; a decision that has begun is not stopped.
#[derive(Clone, Debug, Default)]
pub struct Switch {
    off: Arc<AtomicBool>,
}

impl Switch {
    /// Turns the webhook off or on.
    pub fn set_off(&self, off: bool) {
        self.off.store(off, Ordering::Relaxed);
    }

    /// Whether every object is allowed unchanged.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.off.load(Ordering::Relaxed)
    }
}
