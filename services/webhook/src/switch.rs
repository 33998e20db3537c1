//! The kill switch. While it disables decisions, the webhook allows every object. It changes none of them, except that
//! it removes Pillion's scheduling gate from new pods in `held` namespaces.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The state of the kill switch. At first, decisions are on. Clones share the state, which the cluster watch sets.
///
/// A request reads the state before its decision, and again after each lookup. A decision that has begun is not
/// stopped.
#[derive(Clone, Debug, Default)]
pub struct Switch {
    off: Arc<AtomicBool>,
}

impl Switch {
    /// Switches decisions off or on. If `off` is true, every object is allowed without injection or validation.
    pub fn set_off(&self, off: bool) {
        self.off.store(off, Ordering::Relaxed);
    }

    /// Returns whether decisions are switched off, so that every object is allowed without injection or validation.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.off.load(Ordering::Relaxed)
    }
}
