//! The webhook configurations of a release: as they are, as they ought to be, and who sees to it that the one is the other.
//!
//! The controller owns both, whole: whatever else stands in their entries is drift, and is taken away. That is why they are
//! written by *replacing* what was read, guarded by its `resourceVersion`: server-side apply would leave an entry, a
//! condition or a field that somebody else added. Labels and annotations of others stay.
//!
//! An annotation holds the *epoch* of the rotation's record for which a configuration was written ([`EPOCH_ANNOTATION`]). A
//! write never goes back in epochs: who acts on an older record than the one that was last written for is behind.
//!
//! * [`bundle`]: what stands in a `caBundle`.
//! * [`desired`]: what ought to be there, from settings, rules and bundle.
//! * [`live`]: what is there, and what the rotation makes of it.
//! * [`drift`]: the difference, as data; [`managers`]: whose it is.
//! * [`write`](mod@write): claiming, writing and removing.
//! * [`pacing`]: how often somebody who does not give up is answered.
//! * [`keeper`]: the task that repairs, with its [`metrics`], and makes the `ConfigMap` of the kill switch.

pub mod bundle;
pub mod desired;
pub mod drift;
pub mod keeper;
pub mod live;
pub mod managers;
pub mod metrics;
pub mod pacing;
pub mod switch;
pub mod write;

pub use crate::certificates::authority::EPOCH_ANNOTATION;
pub use desired::{MAXIMUM_OWN_CALLS, Rules, Target, settings_of};
pub use drift::{Drift, DriftKind};
pub use keeper::{Confirm, Keeper};
pub use live::{Live, Which};
pub use metrics::Metrics;
pub use pacing::Settings;
pub use write::{WriteError, claim, observe, remove, write};

/// When its entries were last written, by the clock of whoever did.
pub const WRITTEN_ANNOTATION: &str = "pillion.dev/ca-written";
/// Whose it is, as NAMESPACE/NAME of the release: nobody writes another's.
pub const RELEASE_ANNOTATION: &str = "pillion.dev/release";
/// Who looks after it, for people and for tools that ask.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "pillion-controller");
