//! The webhook configurations of a release: desired state, observed state, drift, and the task that corrects it.
//!
//! The controller owns both configurations as a whole: anything else in their entries is drift and is removed. So it
//! *replaces* what it read, guarded by the `resourceVersion`; server-side apply would keep entries, conditions and
//! fields of others. Labels and annotations of others stay.
//!
//! An annotation holds the *epoch* of the rotation's record for which a configuration was written
//! ([`EPOCH_ANNOTATION`]). A write never lowers the epoch: a writer with an older record is outdated.
//!
//! * [`managers`]: reads from `managedFields` who wrote a field.
//! * [`switch`]: the `ConfigMap` with the kill switch, and its creation.
//! * [`bundle`]: the certificates in a `caBundle`.
//! * [`live`]: the observed state, also for the rotation.
//! * [`desired`]: the desired state, from settings, rules and bundle.
//! * [`drift`]: the difference, as data.
//! * [`write`](mod@write): claims, writes and removes configurations.
//! * [`pacing`]: slows down repairs against a writer that does not give up.
//! * [`keeper`]: the task that corrects drift, with its [`metrics`].

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
pub use live::{ConfigurationKind, Live};
pub use metrics::Metrics;
pub use pacing::Settings;
pub use write::{WriteError, claim, observe, remove, write};

/// The annotation with the time of the last write of the entries, by the writer's clock.
pub const WRITTEN_ANNOTATION: &str = "pillion.dev/ca-written";
/// The annotation with the owning release, as NAMESPACE/NAME. Other releases do not write the object.
pub const RELEASE_ANNOTATION: &str = "pillion.dev/release";
/// The label with the managing component, for people and tools.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "pillion-controller");
