//! The kill switch as requests see it: while it is off, the webhook allows every object unchanged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether requests are decided at all. Clones share it; who watches the cluster moves it. On at the beginning.
///
/// A request is decided by what it is when its decision begins; one that is being decided is not stopped.
#[derive(Clone, Debug, Default)]
pub struct Switch {
    off: Arc<AtomicBool>,
}

impl Switch {
    /// Moves it.
    pub fn set_off(&self, off: bool) {
        self.off.store(off, Ordering::Relaxed);
    }

    /// Whether everything is allowed as it is.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.off.load(Ordering::Relaxed)
    }
}
