//! The kill switch as requests see it: while decisions are switched off, the webhook allows every object unchanged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether requests are decided. Clones share the state, which the cluster watch sets. At first, requests are decided.
///
/// A request uses the state at the beginning of its decision; a decision that has begun is not stopped.
#[derive(Clone, Debug, Default)]
pub struct Switch {
    off: Arc<AtomicBool>,
}

impl Switch {
    /// Switches decisions off or on. `off`: every object is allowed unchanged.
    pub fn set_off(&self, off: bool) {
        self.off.store(off, Ordering::Relaxed);
    }

    /// Whether every object is allowed unchanged.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.off.load(Ordering::Relaxed)
    }
}
